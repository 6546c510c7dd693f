//! `jsonb` as text (`jsonb.c`).

use std::fmt::Write;

use walden_redo::page::jsonb::{
    ALIGNMENT, COUNT_MASK, ENTRY_HAS_END, KIND_SHIFT, LENGTH_MASK, WORD_BYTES, container as flags, entry,
    entry_type,
};
use walden_redo::page::varlena::LONG_HEADER_BYTES;

use super::Numeric;

/// Containers within each other that are followed; PostgreSQL's limit is the stack.
const MAX_DEPTH: usize = 500;
/// The longest text (`MaxAllocSize`).
const MAX_TEXT_BYTES: usize = (1 << 30) - 1;

/// The text of a value without the header of its length, as PostgreSQL prints it; `None` if the bytes are none.
pub fn jsonb_text(bytes: &[u8]) -> Option<String> {
    let mut out = String::with_capacity(2 * bytes.len());
    container(bytes, 0, &mut out)?;
    Some(out)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// A container's entries, in their order.
struct Entries<'a> {
    bytes: &'a [u8],
    contents: &'a [u8],
    count: usize,
    at: usize,
    offset: usize,
}

impl<'a> Entries<'a> {
    fn of(bytes: &'a [u8], count: usize) -> Option<Entries<'a>> {
        let contents = bytes.get(WORD_BYTES + count.checked_mul(WORD_BYTES)?..)?;
        Some(Entries { bytes, contents, count, at: 0, offset: 0 })
    }

    /// The next entry's type, and its content from the offset on that it has there.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        if self.at == self.count {
            return None;
        }
        let entry = word(self.bytes, WORD_BYTES * (1 + self.at))?;
        self.at += 1;
        let length = (entry & LENGTH_MASK) as usize;
        let end = if entry & ENTRY_HAS_END != 0 { length } else { self.offset.checked_add(length)? };
        let start = std::mem::replace(&mut self.offset, end);
        let entry_type = entry_type(entry);
        let is_aligned = matches!(entry_type, entry::NUMERIC | entry::CONTAINER);
        let start = if is_aligned { start.next_multiple_of(ALIGNMENT) } else { start };
        Some((entry_type, self.contents.get(start..end)?))
    }
}

fn container(bytes: &[u8], depth: usize, out: &mut String) -> Option<()> {
    if depth > MAX_DEPTH {
        return None;
    }
    let header = word(bytes, 0)?;
    let (kind, count) = (header >> KIND_SHIFT, (header & COUNT_MASK) as usize);
    if kind & flags::OBJECT != 0 {
        let mut keys = Entries::of(bytes, count.checked_mul(2)?)?;
        // The values follow all keys.
        let mut values = Entries { ..Entries::of(bytes, keys.count)? };
        (0..count).try_for_each(|_| values.next().map(drop))?;
        out.push('{');
        for index in 0..count {
            let (_, key) = keys.next()?;
            out.push_str(if index > 0 { ", " } else { "" });
            string(key, out)?;
            out.push_str(": ");
            element(values.next()?, depth, out)?;
        }
        out.push('}');
        return Some(());
    }
    if kind & flags::ARRAY == 0 {
        return None;
    }
    let mut elements = Entries::of(bytes, count)?;
    let is_scalar = kind & flags::SCALAR != 0;
    out.push_str(if is_scalar { "" } else { "[" });
    for index in 0..count {
        out.push_str(if index > 0 { ", " } else { "" });
        element(elements.next()?, depth, out)?;
    }
    out.push_str(if is_scalar { "" } else { "]" });
    Some(())
}

fn element((entry_type, content): (u8, &[u8]), depth: usize, out: &mut String) -> Option<()> {
    // Numbers of few bytes may have many digits; PostgreSQL's own limit is this.
    if out.len() > MAX_TEXT_BYTES {
        return None;
    }
    match entry_type {
        entry::STRING => string(content, out)?,
        entry::NUMERIC => write!(out, "{}", Numeric::parse(content.get(LONG_HEADER_BYTES..)?)?).ok()?,
        entry::FALSE => out.push_str("false"),
        entry::TRUE => out.push_str("true"),
        entry::NULL => out.push_str("null"),
        entry::CONTAINER => container(content, depth + 1, out)?,
        _ => return None,
    }
    Some(())
}

/// As `escape_json` does.
fn string(bytes: &[u8], out: &mut String) -> Option<()> {
    let text = std::str::from_utf8(bytes).ok()?;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => write!(out, "\\u{:04x}", c as u32).ok()?,
            c => out.push(c),
        }
    }
    out.push('"');
    Some(())
}
