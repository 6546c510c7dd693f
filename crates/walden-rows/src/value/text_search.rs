//! `tsvector` as text (`tsvector.c`).

use std::fmt::Write;

use walden_redo::page::tsvector::{POSITION_BYTES, WORD_ENTRY_BYTES, WordEntry, position_of, weight_of};

use crate::encoding::Encoding;

/// Maximum ratio of the text's length to the number of bytes. An entry with a string of one byte and a
/// position takes 9 bytes and yields 10.
const MAX_GROWTH: usize = 16;

/// Returns the text of a `tsvector` without its length header, whose words are in an encoding; `None` if the
/// bytes are invalid.
pub fn tsvector_text(bytes: &[u8], encoding: Encoding) -> Option<String> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let half = |bytes: &[u8], at: usize| bytes.get(at..)?.first_chunk().map(|half| u16::from_le_bytes(*half));
    let count = word(0)? as usize;
    let strings = bytes.get(WORD_ENTRY_BYTES + count.checked_mul(WORD_ENTRY_BYTES)?..)?;
    let mut out = String::with_capacity(bytes.len());
    for index in 0..count {
        let WordEntry { has_positions, len, at } =
            WordEntry::from_word(word(WORD_ENTRY_BYTES * (1 + index))?);
        out.push_str(if index > 0 { " '" } else { "'" });
        for c in encoding.decode(strings.get(at..at + len)?)?.chars() {
            if matches!(c, '\'' | '\\') {
                out.push(c);
            }
            out.push(c);
        }
        out.push('\'');
        // Damaged entries that share their strings could take much memory.
        if out.len() > MAX_GROWTH * (bytes.len() + 1) {
            return None;
        }
        if !has_positions {
            continue;
        }
        let positions = (at + len).next_multiple_of(POSITION_BYTES);
        for number in 0..usize::from(half(strings, positions)?) {
            let position = half(strings, positions + POSITION_BYTES * (1 + number))?;
            let colon = if number == 0 { ':' } else { ',' };
            let weight = ["", "C", "B", "A"][usize::from(weight_of(position))];
            write!(out, "{colon}{}{weight}", position_of(position)).ok()?;
        }
    }
    Some(out)
}
