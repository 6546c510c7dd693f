//! `jsonb` as text (`jsonb.c`).

use std::fmt::Write;

use walden_redo::page::jsonb::{
    ALIGNMENT, COUNT_MASK, ENTRY_HAS_END, KIND_SHIFT, LENGTH_MASK, WORD_BYTES, container as flags, entry,
    entry_type,
};
use walden_redo::page::varlena::LONG_HEADER_BYTES;

use super::Numeric;
use crate::encoding::Encoding;

/// Maximum depth of nested containers; PostgreSQL's limit is the stack.
const MAX_DEPTH: usize = 500;
/// Maximum length of the text in bytes (`MaxAllocSize`).
const MAX_TEXT_BYTES: usize = (1 << 30) - 1;

/// Returns a value's text as PostgreSQL prints it. The input has no length header, and its strings are in an
/// encoding. `None` if the bytes are no valid value.
pub fn jsonb_text(bytes: &[u8], encoding: Encoding) -> Option<String> {
    let mut writer = Writer { out: String::with_capacity(2 * bytes.len()), encoding };
    writer.container(bytes, 0)?;
    Some(writer.out)
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
    fn parse(bytes: &'a [u8], count: usize) -> Option<Entries<'a>> {
        let contents = bytes.get(WORD_BYTES + count.checked_mul(WORD_BYTES)?..)?;
        Some(Entries { bytes, contents, count, at: 0, offset: 0 })
    }

    /// The next entry's type, and its content, which starts at the current offset.
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

/// Text that grows.
struct Writer {
    out: String,
    encoding: Encoding,
}

impl Writer {
    fn container(&mut self, bytes: &[u8], depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        let header = word(bytes, 0)?;
        let (kind, count) = (header >> KIND_SHIFT, (header & COUNT_MASK) as usize);
        if kind & flags::OBJECT != 0 {
            let mut keys = Entries::parse(bytes, count.checked_mul(2)?)?;
            // The values follow all keys.
            let mut values = Entries { ..Entries::parse(bytes, keys.count)? };
            (0..count).try_for_each(|_| values.next().map(drop))?;
            self.out.push('{');
            for index in 0..count {
                let (_, key) = keys.next()?;
                self.out.push_str(if index > 0 { ", " } else { "" });
                self.string(key)?;
                self.out.push_str(": ");
                self.element(values.next()?, depth)?;
            }
            self.out.push('}');
            return Some(());
        }
        if kind & flags::ARRAY == 0 {
            return None;
        }
        let mut elements = Entries::parse(bytes, count)?;
        let is_scalar = kind & flags::SCALAR != 0;
        self.out.push_str(if is_scalar { "" } else { "[" });
        for index in 0..count {
            self.out.push_str(if index > 0 { ", " } else { "" });
            self.element(elements.next()?, depth)?;
        }
        self.out.push_str(if is_scalar { "" } else { "]" });
        Some(())
    }

    fn element(&mut self, (entry_type, content): (u8, &[u8]), depth: usize) -> Option<()> {
        // A number of few bytes may have many digits. This is PostgreSQL's own limit.
        if self.out.len() > MAX_TEXT_BYTES {
            return None;
        }
        match entry_type {
            entry::STRING => self.string(content)?,
            entry::NUMERIC => {
                write!(self.out, "{}", Numeric::parse(content.get(LONG_HEADER_BYTES..)?)?).ok()?
            }
            entry::FALSE => self.out.push_str("false"),
            entry::TRUE => self.out.push_str("true"),
            entry::NULL => self.out.push_str("null"),
            entry::CONTAINER => self.container(content, depth + 1)?,
            _ => return None,
        }
        Some(())
    }

    /// Escapes a string like `escape_json`.
    fn string(&mut self, bytes: &[u8]) -> Option<()> {
        let text = self.encoding.decode(bytes)?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                c if c < ' ' => write!(self.out, "\\u{:04x}", c as u32).ok()?,
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Some(())
    }
}
