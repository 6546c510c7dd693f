//! Numbers as bits: LEB128, bit packing, and Parquet's hybrid of runs and packed groups.

/// Number of values that are packed or repeated together in the hybrid.
const GROUP: usize = 8;

/// Appends Parquet's definition levels, which mark the rows that are not NULL; nothing if the column is not
/// nullable. `is_present` has 1 or 0 for each row, or is empty if all rows are present.
pub(super) fn definition_levels(nullable: bool, rows: usize, is_present: &[u32], out: &mut Vec<u8>) {
    if !nullable {
        return;
    }
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    match is_present {
        [] => run(rows, 1, 1, out),
        _ => hybrid(is_present, 1, out),
    }
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Returns the number of bits of the largest key, at least 1.
pub(super) fn bit_width(values: usize) -> u32 {
    (values.saturating_sub(1) as u32).checked_ilog2().map_or(1, |bits| bits + 1)
}

/// Appends values in Parquet's hybrid of runs and bit-packed groups of 8.
pub(super) fn hybrid(values: &[u32], width: u32, out: &mut Vec<u8>) {
    // The number of packed groups, and the remaining values.
    let (mut packed, mut rest) = (0, values);
    let mut from = values;
    while let Some(group) = rest.first_chunk::<GROUP>() {
        let value = group[0];
        if are_all(group, value) {
            groups(&from[..packed], width, out);
            let length = run_length(rest);
            run(length, value, width, out);
            rest = &rest[length..];
            (packed, from) = (0, rest);
        } else {
            packed += GROUP;
            rest = &rest[GROUP..];
        }
    }
    groups(from, width, out);
}

/// Returns the number of equal values at the start.
pub(super) fn run_length<T: Copy + PartialEq>(values: &[T]) -> usize {
    /// Long runs are compared in chunks of this length, without a branch for each value.
    const CHUNK: usize = 64;
    let Some(first) = values.first().copied() else { return 0 };
    let short = values.iter().take(CHUNK).take_while(|value| **value == first).count();
    if short < CHUNK {
        return short;
    }
    let (chunks, _) = values.as_chunks::<CHUNK>();
    let equal = CHUNK * chunks.iter().take_while(|chunk| are_all(chunk, first)).count();
    equal + values[equal..].iter().take_while(|value| **value == first).count()
}

#[inline(always)]
fn are_all<T: Copy + PartialEq, const N: usize>(values: &[T; N], wanted: T) -> bool {
    values.iter().fold(true, |equal, value| equal & (*value == wanted))
}

fn run(length: usize, value: u32, width: u32, out: &mut Vec<u8>) {
    if length > 0 {
        leb128((length as u64) << 1, out);
        out.extend_from_slice(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
    }
}

/// Appends packed groups; the last group may be shorter, and is filled with zeros.
fn groups(values: &[u32], width: u32, out: &mut Vec<u8>) {
    if values.is_empty() {
        return;
    }
    let count = values.len().div_ceil(GROUP);
    leb128((count as u64) << 1 | 1, out);
    let start = out.len();
    let end = start + count * width as usize;
    if width > u8::BITS {
        bit_pack(values.iter().map(|value| u64::from(*value)), width, out);
        return out.resize(end, 0);
    }
    // Each group is one number of up to 8 bytes; the next group overwrites the bytes beyond its width.
    out.resize(end + size_of::<u64>(), 0);
    for (index, group) in values.chunks(GROUP).enumerate() {
        let bits = group.iter().rev().fold(0u64, |bits, value| bits << width | u64::from(*value));
        let at = start + index * width as usize;
        out[at..at + size_of::<u64>()].copy_from_slice(&bits.to_le_bytes());
    }
    out.truncate(end);
}

/// Appends values of up to 64 bits, the lowest bit first; the last byte is filled with zeros.
#[inline(always)]
pub(super) fn bit_pack(values: impl Iterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    // Pending bits: fewer than 32, before a value's are added.
    let (mut bits, mut count) = (0u64, 0);
    let mut push = |value: u64, width: u32, out: &mut Vec<u8>| {
        bits |= value << count;
        count += width;
        if count >= 32 {
            out.extend_from_slice(&(bits as u32).to_le_bytes());
            bits >>= 32;
            count -= 32;
        }
    };
    match width {
        0 => {}
        1..=32 => values.for_each(|value| push(value, width, out)),
        _ => values.for_each(|value| {
            push(value & u64::from(u32::MAX), 32, out);
            push(value >> 32, width - 32, out);
        }),
    }
    out.extend_from_slice(&bits.to_le_bytes()[..count.div_ceil(8) as usize]);
}

/// Appends a number in groups of seven bits, the lowest first, each except the last with its highest bit set.
pub(super) fn leb128(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number with its sign in the lowest bit.
pub(super) fn zigzag(value: i64, out: &mut Vec<u8>) {
    leb128((value << 1 ^ value >> 63).cast_unsigned(), out);
}
