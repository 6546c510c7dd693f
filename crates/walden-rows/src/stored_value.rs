//! The bytes of a column in a tuple: their end, and their storage form.

use walden_recompress::Method;
use walden_redo::page::toast_pointer::ToastPointer;
use walden_redo::page::varlena::{
    COMPRESSED_HEADER_BYTES, CompressionInfo, LONG_HEADER_BYTES, LongHeader, ShortHeader,
    TOAST_POINTER_BYTES, toast_compression,
};

use crate::types::Layout;

/// Maximum length of a value in bytes (`MaxAllocSize`).
pub(crate) const MAX_VALUE_BYTES: usize = (1 << 30) - 1;
/// Maximum ratio of pglz and lz4, so that a corrupt header does not cause a larger allocation.
const MAX_RATIO: usize = 256;

/// A column's bytes in a tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored<'a> {
    /// A value of fixed length.
    Fixed(&'a [u8]),
    /// A value of variable length, without its header.
    Plain(&'a [u8]),
    /// A compressed value, starting with `va_tcinfo`.
    Compressed(&'a [u8]),
    /// A value in a TOAST table.
    Toasted(ToastPointer),
}

/// Reads the next value at `at`, and advances `at` past it; `None` if the value is truncated.
pub(crate) fn next<'a>(bytes: &'a [u8], at: &mut usize, layout: Layout) -> Option<Stored<'a>> {
    let Layout { length, align } = layout;
    if length >= 0 {
        let start = at.next_multiple_of(align);
        let value = bytes.get(start..start + usize::from(length.unsigned_abs()))?;
        *at = start + value.len();
        return Some(Stored::Fixed(value));
    }
    if length == -2 {
        let start = at.next_multiple_of(align);
        let text = bytes.get(start..)?;
        let end = text.iter().position(|&byte| byte == 0)?;
        *at = start + end + 1;
        return Some(Stored::Plain(&text[..end]));
    }
    // Padding bytes are zero, and a header of one byte is not (`att_align_pointer`).
    let start = if *bytes.get(*at)? != 0 { *at } else { at.next_multiple_of(align) };
    let rest = bytes.get(start..)?;
    match ShortHeader::decode(*rest.first()?) {
        Some(ShortHeader::External) => {
            let pointer = ToastPointer::read(rest.get(..TOAST_POINTER_BYTES)?)?;
            *at = start + TOAST_POINTER_BYTES;
            Some(Stored::Toasted(pointer))
        }
        Some(ShortHeader::Value { size }) => {
            *at = start + size;
            Some(Stored::Plain(rest.get(1..size)?))
        }
        None => {
            // A long header is aligned, even if the preceding byte is not padding.
            let start = at.next_multiple_of(align);
            let rest = bytes.get(start..)?;
            let header = LongHeader::read(rest)?;
            let content = rest.get(LONG_HEADER_BYTES..header.size as usize)?;
            *at = start + header.size as usize;
            Some(if header.is_compressed { Stored::Compressed(content) } else { Stored::Plain(content) })
        }
    }
}

/// Decompresses a value whose bytes start with `va_tcinfo`.
pub(crate) fn decompress(bytes: &[u8]) -> Option<Vec<u8>> {
    let (info, stored) = bytes.split_first_chunk::<{ COMPRESSED_HEADER_BYTES - LONG_HEADER_BYTES }>()?;
    let info = CompressionInfo::from_bytes(*info);
    let method = match info.method {
        toast_compression::PGLZ => Method::Pglz,
        toast_compression::LZ4 => Method::Lz4,
        _ => return None,
    };
    let length = info.raw_bytes as usize;
    if length > MAX_VALUE_BYTES || length > stored.len().saturating_mul(MAX_RATIO) {
        return None;
    }
    let mut raw = vec![0; length];
    (method.decompress(stored, &mut raw)? == length).then_some(raw)
}
