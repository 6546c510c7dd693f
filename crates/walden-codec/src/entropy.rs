//! From columns to few bytes: rows turned into planes, planes into differences, and a general compressor after that.
//!
//! A part, as it is stored:
//!
//! ```text
//! coder       1 byte: 0 stored as it is, 1 zstd
//! raw         LEB128: bytes after decompression
//! stored      LEB128: bytes that follow
//! checksum    4 bytes: CRC-32C of what follows
//! ...
//! ```

use walden_format::crc::crc32c_append;

use crate::Corrupt;
use crate::columns::{Class, Content, Form, get_number, put_number};

/// Compresses columns; remembers, from chunk to chunk, what helps with the next.
pub struct Packer {
    level: i32,
}

impl Packer {
    /// `level` is from 1 to 9.
    pub fn new(level: u8) -> Packer {
        const ZSTD: [i32; 9] = [1, 2, 3, 5, 7, 9, 12, 17, 19];
        Packer { level: ZSTD[usize::from(level.clamp(1, 9)) - 1] }
    }

    /// Writes a directory of columns.
    pub fn directory(&mut self, directory: &[u8], out: &mut Vec<u8>) {
        self.part(directory, out);
    }

    /// Writes the columns of a class.
    pub fn class(&mut self, class: Class, columns: &[&Content], out: &mut Vec<u8>) {
        let mut content = Vec::new();
        for column in columns {
            let at = content.len();
            spread(&column.bytes, column.form, &mut content);
            if std::env::var("SIZES").is_ok_and(|v| v == "2") && column.bytes.len() > 50000 {
                let n = zstd::bulk::compress(&content[at..], self.level).unwrap_or_default().len();
                eprintln!(
                    "COL {class:?} {:?} {} -> {} layout {}",
                    column.form,
                    column.bytes.len(),
                    n,
                    if matches!(column.form, Form::Rows(_)) { content[at] } else { 9 }
                );
            }
        }
        let before = out.len();
        self.part(&content, out);
        if std::env::var_os("SIZES").is_some() {
            eprintln!("{class:?} {} {}", content.len(), out.len() - before);
        }
    }

    /// Writes anything as one part.
    pub fn part(&mut self, content: &[u8], out: &mut Vec<u8>) {
        let packed = zstd::bulk::compress(content, self.level).unwrap_or_default();
        let (coder, packed) = match !packed.is_empty() && packed.len() < content.len() {
            true => (CODER_ZSTD, &packed[..]),
            false => (CODER_STORED, content),
        };
        out.push(coder);
        put_number(out, content.len() as u64);
        put_number(out, packed.len() as u64);
        out.extend(crc32c_append(0, packed).to_le_bytes());
        out.extend_from_slice(packed);
    }
}

/// Decompresses what [`Packer`] wrote.
#[derive(Default)]
pub struct Unpacker {}

impl Unpacker {
    /// Takes a directory off; `most` is how many bytes it may have.
    pub fn directory(&mut self, rest: &mut &[u8], most: usize) -> Result<Vec<u8>, Corrupt> {
        self.part(rest, most)
    }

    /// Takes the columns of a class off, each of as many bytes as are said.
    pub fn class(
        &mut self,
        _: Class,
        columns: &mut [(&mut Content, usize)],
        rest: &mut &[u8],
    ) -> Result<(), Corrupt> {
        // A plane takes a byte beside its bytes, and a column one more.
        let most = columns.iter().map(|(column, bytes)| {
            let width = match column.form {
                Form::Rows(width) => usize::from(width),
                _ => 0,
            };
            bytes + width + 1
        });
        let content = self.part(rest, most.sum())?;
        let mut content = &content[..];
        for (column, bytes) in columns {
            column.bytes = gather(&mut content, column.form, *bytes)?;
        }
        if content.is_empty() { Ok(()) } else { Err(Corrupt("bytes that belong to no column")) }
    }

    /// Takes a part off.
    pub fn part(&mut self, rest: &mut &[u8], most: usize) -> Result<Vec<u8>, Corrupt> {
        let (&coder, after) = rest.split_first().ok_or(Corrupt("a part is cut short"))?;
        *rest = after;
        let raw = usize::try_from(get_number(rest)?).unwrap_or(usize::MAX);
        let stored = usize::try_from(get_number(rest)?).unwrap_or(usize::MAX);
        if raw > most {
            return Err(Corrupt("a part is larger than it may be"));
        }
        let (checksum, after) = rest.split_first_chunk::<4>().ok_or(Corrupt("a part is cut short"))?;
        let (part, after) = after.split_at_checked(stored).ok_or(Corrupt("a part is cut short"))?;
        *rest = after;
        if crc32c_append(0, part) != u32::from_le_bytes(*checksum) {
            return Err(Corrupt("a part's checksum is wrong"));
        }
        let content = match coder {
            CODER_STORED => part.to_vec(),
            CODER_ZSTD => {
                zstd::bulk::decompress(part, raw).map_err(|_| Corrupt("a part can't be decompressed"))?
            }
            _ => return Err(Corrupt("a part's coder is unknown")),
        };
        if content.len() == raw {
            Ok(content)
        } else {
            Err(Corrupt("a part has another length than it says"))
        }
    }
}

const CODER_STORED: u8 = 0;
const CODER_ZSTD: u8 = 1;

/// How a column's bytes are laid out.
const LAYOUT_ROWS: u8 = 0;
/// All first bytes of rows, all second ones, and so on, each plane as it is or as differences.
const LAYOUT_PLANES: u8 = 1;

const PLANE_SAME: u8 = 0;
const PLANE_DIFFERENCE: u8 = 1;

/// Below this many rows, planes are too short to be worth their heads.
const FEWEST_ROWS: usize = 4;

/// Appends a column with the layout that promises fewest bytes.
fn spread(bytes: &[u8], form: Form, out: &mut Vec<u8>) {
    let width = match form {
        Form::Rows(width) => usize::from(width),
        _ => return out.extend_from_slice(bytes),
    };
    if bytes.len() / width < FEWEST_ROWS || !bytes.len().is_multiple_of(width) {
        out.push(LAYOUT_ROWS);
        out.extend_from_slice(bytes);
        return;
    }
    let rows = bytes.len() / width;
    let mut planes = Vec::with_capacity(bytes.len() + width);
    let mut plane = vec![0; rows];
    let mut difference = vec![0; rows];
    for position in 0..width {
        let mut last = 0_u8;
        for (row, (same, other)) in plane.iter_mut().zip(&mut difference).enumerate() {
            let byte = bytes[row * width + position];
            *same = byte;
            *other = byte.wrapping_sub(last);
            last = byte;
        }
        let (head, chosen) = if cost(&difference) < cost(&plane) {
            (PLANE_DIFFERENCE, &difference)
        } else {
            (PLANE_SAME, &plane)
        };
        planes.push(head);
        planes.extend_from_slice(chosen);
    }
    if rows_are_better(bytes, &planes) {
        out.push(LAYOUT_ROWS);
        out.extend_from_slice(bytes);
    } else {
        out.push(LAYOUT_PLANES);
        out.extend_from_slice(&planes);
    }
}

/// Text compresses better along the row than across rows: tried on a sample.
fn rows_are_better(rows: &[u8], planes: &[u8]) -> bool {
    const SAMPLE: usize = 32 << 10;
    let sample = |bytes: &[u8]| {
        let middle = bytes.len() / 2;
        let start = middle.saturating_sub(SAMPLE / 2);
        let sample = &bytes[start..(start + SAMPLE).min(bytes.len())];
        zstd::bulk::compress(sample, 1).map_or(sample.len(), |packed| packed.len())
    };
    rows.len() > SAMPLE && sample(rows) < sample(planes)
}

/// Bits that an order-0 coder would need, about, in 1/16.
fn cost(plane: &[u8]) -> u64 {
    let mut counts = [0_u32; 256];
    plane.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let total = plane.len() as f64;
    counts
        .iter()
        .filter(|&&count| count > 0)
        .map(|&count| (f64::from(count) * (total / f64::from(count)).log2() * 16.0) as u64)
        .sum()
}

/// The way back: takes a column off.
fn gather(content: &mut &[u8], form: Form, bytes: usize) -> Result<Vec<u8>, Corrupt> {
    let short = Corrupt("a column is cut short");
    let mut take = |count: usize| {
        let (taken, rest) = content.split_at_checked(count).ok_or(short)?;
        *content = rest;
        Ok(taken)
    };
    let width = match form {
        Form::Rows(width) => usize::from(width),
        _ => return Ok(take(bytes)?.to_vec()),
    };
    let layout = take(1)?[0];
    if layout == LAYOUT_ROWS {
        return Ok(take(bytes)?.to_vec());
    }
    if layout != LAYOUT_PLANES || !bytes.is_multiple_of(width) {
        return Err(Corrupt("a column's layout is unknown"));
    }
    let rows = bytes / width;
    let mut out = vec![0; bytes];
    for position in 0..width {
        let head = take(1)?[0];
        let plane = take(rows)?;
        let mut last = 0_u8;
        for (row, &byte) in plane.iter().enumerate() {
            let byte = match head {
                PLANE_SAME => byte,
                PLANE_DIFFERENCE => last.wrapping_add(byte),
                _ => return Err(Corrupt("a plane's form is unknown")),
            };
            out[row * width + position] = byte;
            last = byte;
        }
    }
    Ok(out)
}
