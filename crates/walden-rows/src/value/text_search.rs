//! `tsvector` as text (`tsvector.c`, layout in `ts_type.h`).

use std::fmt::Write;

/// How much longer the text may be than the bytes: an entry with a string of one byte and a position takes 9 and gives 10.
const MAX_GROWTH: usize = 16;

/// The text of a `tsvector` without the header of its length; `None` if the bytes are none.
pub fn tsvector_text(bytes: &[u8]) -> Option<String> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let half = |bytes: &[u8], at: usize| bytes.get(at..)?.first_chunk().map(|half| u16::from_le_bytes(*half));
    let count = word(0)? as usize;
    let strings = bytes.get(4 + count.checked_mul(4)?..)?;
    let mut out = String::with_capacity(bytes.len());
    for index in 0..count {
        // WordEntry: haspos 1 bit, len 11 bits, pos 20 bits.
        let entry = word(4 + 4 * index)?;
        let (length, at) = ((entry >> 1 & 0x7FF) as usize, (entry >> 12) as usize);
        out.push_str(if index > 0 { " '" } else { "'" });
        for c in std::str::from_utf8(strings.get(at..at + length)?).ok()?.chars() {
            if matches!(c, '\'' | '\\') {
                out.push(c);
            }
            out.push(c);
        }
        out.push('\'');
        // Entries that share their strings: damage, which would take much memory.
        if out.len() > MAX_GROWTH * (bytes.len() + 1) {
            return None;
        }
        if entry & 1 == 0 {
            continue;
        }
        let positions = (at + length).next_multiple_of(2);
        for position in 0..usize::from(half(strings, positions)?) {
            // WordEntryPos: weight in the upper 2 bits.
            let place = half(strings, positions + 2 + 2 * position)?;
            let colon = if position == 0 { ':' } else { ',' };
            let weight = ["", "C", "B", "A"][usize::from(place >> 14)];
            write!(out, "{colon}{}{weight}", place & 0x3FFF).ok()?;
        }
    }
    Some(out)
}
