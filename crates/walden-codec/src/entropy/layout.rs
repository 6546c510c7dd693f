//! Columns laid out for a general compressor: rows as they are, or turned into planes, and planes into differences.

use crate::Corrupt;
use crate::columns::Form;

/// How a column's bytes are laid out.
const LAYOUT_ROWS: u8 = 0;
/// All first bytes of rows, all second ones, and so on, each plane as it is or as differences.
const LAYOUT_PLANES: u8 = 1;

const PLANE_SAME: u8 = 0;
const PLANE_DIFFERENCE: u8 = 1;

/// Below this many rows, planes are too short to be worth their heads.
const FEWEST_ROWS: usize = 4;

/// Appends a column with the layout that promises fewest bytes.
pub fn spread(bytes: &[u8], form: Form, out: &mut Vec<u8>) {
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
pub fn gather(content: &mut &[u8], form: Form, bytes: usize) -> Result<Vec<u8>, Corrupt> {
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
