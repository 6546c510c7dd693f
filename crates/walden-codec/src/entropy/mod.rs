//! From columns to few bytes: rows turned into planes, and a general compressor after that; or, at higher levels, every bit
//! predicted.
//!
//! A part, as it is stored:
//!
//! ```text
//! coder       1 byte: 0 stored as it is, 1 zstd, 2 zstd after what came before in the class, from 3 on modelled
//! raw         LEB128: bytes after decompression
//! stored      LEB128: bytes that follow
//! checksum    4 bytes: CRC-32C of what follows
//! ...
//! ```

mod general;
mod layout;
mod logistic;
mod modelled;
mod range;

use walden_format::crc::crc32c_append;

use self::modelled::{EFFORTS, Modelled};
use crate::Corrupt;
use crate::columns::{CLASSES, Class, Content, Form, get_number, put_number};

const CODER_STORED: u8 = 0;
const CODER_ZSTD: u8 = 1;
const CODER_ZSTD_AFTER: u8 = 2;
const CODER_MODELLED: u8 = 3;

/// What is not of a class, in the place of one.
const DIRECTORY: usize = CLASSES.len();
const OTHER: usize = CLASSES.len() + 1;

/// How much is spent, by level from 1 on.
const LEVELS: [Means; 9] = [
    Means::General(1),
    Means::General(2),
    Means::General(3),
    Means::General(4),
    Means::General(5),
    Means::General(9),
    Means::Modelled(0),
    Means::Modelled(1),
    Means::Modelled(2),
];

#[derive(Clone, Copy)]
enum Means {
    /// zstd, at a level of its own.
    General(i32),
    /// Predicted, with an effort.
    Modelled(u8),
}

/// Compresses columns; remembers, from chunk to chunk, what helps with the next.
pub struct Packer {
    means: Means,
    state: State,
    statistics: Vec<Statistics>,
}

/// What became of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statistics {
    /// The class.
    pub class: Class,
    /// Its columns' bytes.
    pub bytes: u64,
    /// What they were stored in.
    pub stored: u64,
}

/// What both sides remember.
#[derive(Default)]
struct State {
    modelled: Option<Box<Modelled>>,
    /// What came before, by class.
    before: Vec<Vec<u8>>,
}

impl State {
    /// The model of an effort. It is the same for all that follows each other: none is made twice.
    fn modelled(&mut self, effort: u8) -> Result<&mut Modelled, Corrupt> {
        let effort = *EFFORTS.get(usize::from(effort)).ok_or(Corrupt("a part's coder is unknown"))?;
        let modelled = self.modelled.get_or_insert_with(|| Box::new(Modelled::new(effort)));
        if modelled.effort() == effort {
            Ok(modelled)
        } else {
            Err(Corrupt("a part's coder is another than before"))
        }
    }

    fn before(&mut self, class: usize) -> &mut Vec<u8> {
        if self.before.len() <= class {
            self.before.resize(class + 1, Vec::new());
        }
        &mut self.before[class]
    }

    fn remember(&mut self, class: usize, content: &[u8]) {
        /// Of a class.
        const MOST_BEFORE: usize = 4 << 20;
        let before = self.before(class);
        let content = &content[content.len().saturating_sub(MOST_BEFORE)..];
        let surplus = (before.len() + content.len()).saturating_sub(MOST_BEFORE);
        before.drain(..surplus);
        before.extend_from_slice(content);
    }
}

impl Packer {
    /// `level` is from 1 to 9.
    pub fn new(level: u8) -> Packer {
        Packer {
            means: LEVELS[usize::from(level.clamp(1, 9)) - 1],
            state: State::default(),
            statistics: Vec::new(),
        }
    }

    /// What became of classes so far.
    pub fn statistics(&self) -> &[Statistics] {
        &self.statistics
    }

    /// Writes a directory of columns.
    pub fn directory(&mut self, directory: &[u8], out: &mut Vec<u8>) {
        self.content(DIRECTORY, directory, out);
    }

    /// Writes the columns of a class.
    pub fn class(&mut self, class: Class, columns: &[&Content], out: &mut Vec<u8>) {
        let before = out.len();
        match self.means {
            Means::General(_) => {
                let mut layout = layout::Layout::default();
                columns.iter().for_each(|column| layout.push(&column.bytes, column.form));
                self.content(class as usize, &layout.finish(), out);
            }
            Means::Modelled(effort) => {
                let mut encoder = range::Encoder::new();
                let mut bytes = Vec::new();
                let Ok(modelled) = self.state.modelled(effort) else { return };
                let mut raw = 0;
                for column in columns {
                    bytes.clear();
                    bytes.extend_from_slice(&column.bytes);
                    raw += bytes.len();
                    modelled.column(&mut encoder, class as usize, column.number, column.form, &mut bytes);
                }
                put_part(CODER_MODELLED + effort, raw, &encoder.finish(), out);
            }
        }
        let bytes = columns.iter().map(|column| column.bytes.len() as u64).sum();
        self.count(class, bytes, (out.len() - before) as u64);
    }

    /// Writes anything as one part.
    pub fn part(&mut self, content: &[u8], out: &mut Vec<u8>) {
        self.content(OTHER, content, out);
    }

    fn content(&mut self, class: usize, content: &[u8], out: &mut Vec<u8>) {
        let level = match self.means {
            Means::General(level) => level,
            Means::Modelled(effort) => {
                let mut encoder = range::Encoder::new();
                let Ok(modelled) = self.state.modelled(effort) else { return };
                modelled.column(&mut encoder, class, 0, Form::Bytes, &mut content.to_vec());
                return put_part(CODER_MODELLED + effort, content.len(), &encoder.finish(), out);
            }
        };
        let before = self.state.before(class);
        let coder = if before.is_empty() { CODER_ZSTD } else { CODER_ZSTD_AFTER };
        match general::compress(content, before, level) {
            Some(packed) if packed.len() < content.len() => put_part(coder, content.len(), &packed, out),
            _ => put_part(CODER_STORED, content.len(), content, out),
        }
        self.state.remember(class, content);
    }

    fn count(&mut self, class: Class, bytes: u64, stored: u64) {
        match self.statistics.iter_mut().find(|of| of.class == class) {
            Some(of) => {
                of.bytes += bytes;
                of.stored += stored;
            }
            None => self.statistics.push(Statistics { class, bytes, stored }),
        }
    }
}

fn put_part(coder: u8, raw: usize, packed: &[u8], out: &mut Vec<u8>) {
    out.push(coder);
    put_number(out, raw as u64);
    put_number(out, packed.len() as u64);
    out.extend(crc32c_append(0, packed).to_le_bytes());
    out.extend_from_slice(packed);
}

/// Decompresses what [`Packer`] wrote.
#[derive(Default)]
pub struct Unpacker {
    state: State,
}

impl Unpacker {
    /// Takes a directory off; `most` is how many bytes it may have.
    pub fn directory(&mut self, rest: &mut &[u8], most: usize) -> Result<Vec<u8>, Corrupt> {
        let part = Part::take(rest, most)?;
        self.content(DIRECTORY, &part)
    }

    /// Takes the columns of a class off, each of as many bytes as are said.
    pub fn class(
        &mut self,
        class: Class,
        columns: &mut [(&mut Content, usize)],
        rest: &mut &[u8],
    ) -> Result<(), Corrupt> {
        let most = layout::most_bytes(columns.iter().map(|(column, bytes)| (column.form, *bytes)));
        let part = Part::take(rest, most)?;
        if let Some(effort) = part.coder.checked_sub(CODER_MODELLED) {
            if part.raw != columns.iter().map(|(_, bytes)| bytes).sum::<usize>() {
                return Err(Corrupt("a part has another length than its columns"));
            }
            let mut decoder = range::Decoder::new(part.packed);
            let modelled = self.state.modelled(effort)?;
            for (column, bytes) in columns {
                column.bytes.clear();
                column.bytes.resize(*bytes, 0);
                modelled.column(&mut decoder, class as usize, column.number, column.form, &mut column.bytes);
            }
            return Ok(());
        }
        let content = self.content(class as usize, &part)?;
        let mut laid_out = layout::Columns::new(&content)?;
        for (column, bytes) in columns {
            column.bytes = laid_out.take(column.form, *bytes)?;
        }
        laid_out.finish()
    }

    /// Takes a part off.
    pub fn part(&mut self, rest: &mut &[u8], most: usize) -> Result<Vec<u8>, Corrupt> {
        let part = Part::take(rest, most)?;
        self.content(OTHER, &part)
    }

    fn content(&mut self, class: usize, part: &Part<'_>) -> Result<Vec<u8>, Corrupt> {
        let content = match part.coder {
            CODER_STORED => part.packed.to_vec(),
            CODER_ZSTD => general::decompress(part.packed, &[], part.raw)?,
            CODER_ZSTD_AFTER => general::decompress(part.packed, self.state.before(class), part.raw)?,
            coder => {
                let mut decoder = range::Decoder::new(part.packed);
                let modelled = self.state.modelled(coder - CODER_MODELLED)?;
                let mut content = vec![0; part.raw];
                modelled.column(&mut decoder, class, 0, Form::Bytes, &mut content);
                return Ok(content);
            }
        };
        if content.len() != part.raw {
            return Err(Corrupt("a part has another length than it says"));
        }
        self.state.remember(class, &content);
        Ok(content)
    }
}

/// A part, taken off but not decompressed.
struct Part<'a> {
    coder: u8,
    raw: usize,
    packed: &'a [u8],
}

impl<'a> Part<'a> {
    /// `most` is how many bytes it may have after decompression.
    fn take(rest: &mut &'a [u8], most: usize) -> Result<Part<'a>, Corrupt> {
        let (&coder, after) = rest.split_first().ok_or(Corrupt("a part is cut short"))?;
        *rest = after;
        let raw = usize::try_from(get_number(rest)?).unwrap_or(usize::MAX);
        let stored = usize::try_from(get_number(rest)?).unwrap_or(usize::MAX);
        if raw > most {
            return Err(Corrupt("a part is larger than it may be"));
        }
        let (checksum, after) = rest.split_first_chunk::<4>().ok_or(Corrupt("a part is cut short"))?;
        let (packed, after) = after.split_at_checked(stored).ok_or(Corrupt("a part is cut short"))?;
        *rest = after;
        if crc32c_append(0, packed) != u32::from_le_bytes(*checksum) {
            return Err(Corrupt("a part's checksum is wrong"));
        }
        Ok(Part { coder, raw, packed })
    }
}
