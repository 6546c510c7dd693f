//! `jsonb` as text (`jsonb.c`, layout in `jsonb.h`).
//!
//! ```text
//! offset  width  of a container
//!      0      4  count in 28 bits, above them: 1 scalar, 2 object, 4 array
//!      4    4 n  an entry per element, of an object per key and then per value:
//!                length or end in 28 bits, kind in 3 bits, whether it is the end in 1 bit
//!                contents; numbers and containers at multiples of 4
//! ```

use std::fmt::Write;

use super::Numeric;

/// Containers within each other that are followed; PostgreSQL's limit is the stack.
const MAX_DEPTH: usize = 500;
/// The longest text (`MaxAllocSize`).
const MAX_TEXT_BYTES: usize = (1 << 30) - 1;
const LENGTH: u32 = 0x0FFF_FFFF;
const IS_SCALAR: u32 = 0x1000_0000;
const IS_OBJECT: u32 = 0x2000_0000;
const IS_ARRAY: u32 = 0x4000_0000;
const HAS_END: u32 = 0x8000_0000;

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
        let contents = bytes.get(4 + count.checked_mul(4)?..)?;
        Some(Entries { bytes, contents, count, at: 0, offset: 0 })
    }

    /// The next entry's kind, and its content from the offset on that it has there.
    fn next(&mut self) -> Option<(u32, &'a [u8])> {
        if self.at == self.count {
            return None;
        }
        let entry = word(self.bytes, 4 + 4 * self.at)?;
        self.at += 1;
        let length = (entry & LENGTH) as usize;
        let end = if entry & HAS_END != 0 { length } else { self.offset.checked_add(length)? };
        let start = std::mem::replace(&mut self.offset, end);
        let kind = entry >> 28 & 7;
        // Numbers and containers are aligned.
        let start = if matches!(kind, 1 | 5) { start.next_multiple_of(4) } else { start };
        Some((kind, self.contents.get(start..end)?))
    }
}

fn container(bytes: &[u8], depth: usize, out: &mut String) -> Option<()> {
    if depth > MAX_DEPTH {
        return None;
    }
    let header = word(bytes, 0)?;
    let count = (header & LENGTH) as usize;
    if header & IS_OBJECT != 0 {
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
    if header & IS_ARRAY == 0 {
        return None;
    }
    let mut elements = Entries::of(bytes, count)?;
    let is_scalar = header & IS_SCALAR != 0;
    out.push_str(if is_scalar { "" } else { "[" });
    for index in 0..count {
        out.push_str(if index > 0 { ", " } else { "" });
        element(elements.next()?, depth, out)?;
    }
    out.push_str(if is_scalar { "" } else { "]" });
    Some(())
}

fn element((kind, content): (u32, &[u8]), depth: usize, out: &mut String) -> Option<()> {
    // Numbers of few bytes may have many digits; PostgreSQL's own limit is this.
    if out.len() > MAX_TEXT_BYTES {
        return None;
    }
    match kind {
        0 => string(content, out)?,
        // A number with a header of 4 bytes.
        1 => write!(out, "{}", Numeric::parse(content.get(4..)?)?).ok()?,
        2 => out.push_str("false"),
        3 => out.push_str("true"),
        4 => out.push_str("null"),
        5 => container(content, depth + 1, out)?,
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
