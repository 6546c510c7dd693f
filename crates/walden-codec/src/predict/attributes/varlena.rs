//! Codes variable-length attributes (`varatt.h`): kind and length, then content.
//!
//! A value is coded as bytes or as a value of a known type ([`crate::value::vectors`]). A value that the
//! server compressed is coded uncompressed. A chunk of a TOAST table's value is predicted from the value's
//! first chunk, with which the whole value is coded.

use walden_format::record::RelFileLocator;
use walden_redo::page::varlena::{
    LONG_HEADER_BYTES, LongHeader, MAX_SHORT_CONTENT, ShortHeader, TOAST_CHUNK_BYTES, TOAST_POINTER_CONTENT,
    TOAST_POINTER_HEADER,
};

use super::{FieldColumns, pad};
use crate::columns::{Coder, Column};
use crate::tuple::schema::{Span, Varlena};
use crate::value::expand::{Method, Recompressor, UpcomingValues, value_of_first_chunk};
use crate::value::vectors::{StructuredValue, Vectors};
use crate::{Corrupt, corrupt};

/// One-byte header, coded as bytes. Forms occupy the two lowest bits of a symbol; the content length is above
/// them.
pub const SHORT: u64 = 0;
/// Length 0: a TOAST pointer. Any other length: a value of a known type with a one-byte header.
const EXTERNAL: u64 = 1;
/// Four-byte header. Length 0: a value of a known type, or an empty value.
const LONG: u64 = 2;
/// Compressed. A length below the number of compression methods, which no compressed value has, selects the
/// method of a value that is coded uncompressed.
const COMPRESSED: u64 = 3;

/// Context for coding the values of a field.
pub struct ValueCoder<'v, S> {
    /// Columns of one direction.
    pub coder: &'v mut S,
    /// Values that the server compressed.
    pub recompressor: &'v mut Recompressor,
    /// Texts and their words.
    pub vectors: &'v mut Vectors,
    /// Columns of the field.
    pub columns: &'v FieldColumns,
    /// Offset of the tuple's attributes in the output.
    pub origin: usize,
}

/// Context for coding chunks of a TOAST table.
pub struct Chunks<'c> {
    /// Column of chunk forms.
    pub column: Column,
    /// When encoding: values that were seen ahead.
    pub ahead: &'c UpcomingValues,
    /// Number of the table, and its locator when encoding.
    pub relation: (u32, Option<RelFileLocator>),
}

/// Encoder's choice of how to code a varlena.
struct Choice<'a> {
    symbol: u64,
    bytes: &'a [u8],
    literal: Option<StructuredValue>,
    expanded: Option<Vec<u8>>,
}

impl<S: Coder> ValueCoder<'_, S> {
    /// Codes a varlena and appends it to `out`. `source` has the tuple's attributes and the varlena's span in
    /// them.
    pub fn varlena(&mut self, source: Option<(&[u8], Span)>, out: &mut Vec<u8>) -> Result<(), Corrupt> {
        let none = Choice { symbol: 0, bytes: &[], literal: None, expanded: None };
        let Choice { symbol, bytes, literal, expanded } = source.map_or(none, |source| self.choose(source));
        let FieldColumns { length, content, external, compressed, .. } = *self.columns;
        let symbol = self.coder.symbol(length, symbol)?;
        let len = usize::try_from(symbol >> 2).unwrap_or(usize::MAX);
        match symbol & 3 {
            SHORT => {
                put_short_header(len, out)?;
                self.coder.bytes(content, bytes, len, out)
            }
            EXTERNAL if len == 0 => {
                out.extend_from_slice(&TOAST_POINTER_HEADER);
                self.coder.bytes(external, bytes, TOAST_POINTER_CONTENT, out)
            }
            EXTERNAL => {
                let value = self.vectors.code(self.coder, content, literal)?.unwrap_or_default();
                if value.is_empty() {
                    return Err(corrupt("cannot decode a short varlena: expected 1 to 126 bytes"));
                }
                put_short_header(value.len(), out)?;
                out.extend_from_slice(&value);
                Ok(())
            }
            COMPRESSED if len < Method::OF_VALUES.len() => {
                self.compressed(Method::OF_VALUES[len], expanded.as_deref(), out)
            }
            LONG if len == 0 => {
                pad(out, self.origin, LONG_HEADER_BYTES);
                let value = self.vectors.code(self.coder, content, literal)?.unwrap_or_default();
                put_long_header(value.len(), false, out)?;
                out.extend_from_slice(&value);
                Ok(())
            }
            kind => {
                pad(out, self.origin, LONG_HEADER_BYTES);
                let is_compressed = kind == COMPRESSED;
                put_long_header(len, is_compressed, out)?;
                self.coder.bytes(if is_compressed { compressed } else { content }, bytes, len, out)
            }
        }
    }

    /// Returns the best way to code a varlena.
    fn choose<'a>(&mut self, (attributes, span): (&'a [u8], Span)) -> Choice<'a> {
        let value = &attributes[span.start..span.end];
        let (mut literal, mut expanded) = (None, None);
        let (symbol, bytes) = match span.kind {
            Varlena::Short => {
                let bytes = &value[1..];
                literal = self.vectors.parse_short(bytes);
                match literal {
                    Some(_) => (EXTERNAL | 1 << 2, bytes),
                    None => (SHORT | (bytes.len() as u64) << 2, bytes),
                }
            }
            Varlena::External => (EXTERNAL, &value[TOAST_POINTER_HEADER.len()..]),
            Varlena::Long => {
                let bytes = &value[LONG_HEADER_BYTES..];
                literal = self.vectors.parse(bytes);
                let len = if literal.is_some() { 0 } else { bytes.len() };
                (LONG | (len as u64) << 2, bytes)
            }
            Varlena::Compressed => {
                let bytes = &value[LONG_HEADER_BYTES..];
                let len = match self.recompressor.decompress(bytes) {
                    Some((content, method)) => {
                        expanded = Some(content);
                        method.number() as usize
                    }
                    None => bytes.len(),
                };
                (COMPRESSED | (len as u64) << 2, bytes)
            }
        };
        Choice { symbol, bytes, literal, expanded }
    }

    /// Codes a compressed value uncompressed, compresses it again and appends it to `out`.
    fn compressed(
        &mut self,
        method: Method,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        pad(out, self.origin, LONG_HEADER_BYTES);
        let content = self.expanded(source)?;
        let start = out.len();
        out.extend_from_slice(&[0; LONG_HEADER_BYTES]);
        self.recompressor.recompress(&content, method, out)?;
        let header = long_header(out.len() - start, true)?;
        out[start..start + LONG_HEADER_BYTES].copy_from_slice(&header);
        Ok(())
    }

    /// Codes the uncompressed content of a compressed value.
    fn expanded(&mut self, source: Option<&[u8]>) -> Result<Vec<u8>, Corrupt> {
        let FieldColumns { content, expanded, .. } = *self.columns;
        let literal = source.and_then(|value| self.vectors.parse(value));
        // Length 0 marks a value of a known type.
        let source = source.filter(|_| literal.is_none());
        let len = self.coder.symbol(expanded, source.map_or(0, |value| value.len() as u64))?;
        if len == 0 {
            let value = self.vectors.code(self.coder, content, literal)?;
            return value.ok_or_else(|| {
                corrupt("cannot decode a compressed value: expected a value of a known type")
            });
        }
        let mut value = Vec::new();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.coder.bytes(content, source.unwrap_or_default(), len, &mut value)?;
        Ok(value)
    }
}

/// A chunk that is coded as any value.
const CHUNK_OTHER: u64 = 0;
/// A chunk of a known value.
const CHUNK_KNOWN: u64 = 1;
/// The first chunk, with the whole value: uncompressed.
const FIRST_PLAIN: u64 = 3;
/// The first chunk, with the whole value: compressed, by its method in [`Method::OF_VALUES`].
const FIRST_COMPRESSED: [u64; 3] = [2, 4, 5];

/// The whole value that is coded with a first chunk.
#[derive(Default)]
struct Whole {
    /// Content before compression.
    expanded: Option<Vec<u8>>,
    literal: Option<StructuredValue>,
}

impl<S: Coder> ValueCoder<'_, S> {
    /// Codes a value, which may be a chunk of a value stored out of line, and appends it to `out`.
    pub fn varlena_or_chunk(
        &mut self,
        chunks: Option<Chunks<'_>>,
        source: Option<(&[u8], Span)>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        if let Some(chunks) = chunks
            && self.chunk(chunks, source, out)?
        {
            return Ok(());
        }
        self.varlena(source, out)
    }

    /// Codes a chunk and appends it to `out`. Returns false if it is not a chunk of a value that is coded as
    /// a whole.
    fn chunk(
        &mut self,
        chunks: Chunks<'_>,
        source: Option<(&[u8], Span)>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        let source = source.filter(|(_, span)| span.kind == Varlena::Long);
        let (form, whole) = match source {
            Some((attributes, span)) => {
                self.choose_chunk(&chunks, attributes, &attributes[span.start + LONG_HEADER_BYTES..span.end])
            }
            None => (CHUNK_OTHER, Whole::default()),
        };
        let relation = chunks.relation.0;
        match self.coder.symbol(chunks.column, form)? {
            CHUNK_OTHER => return Ok(false),
            CHUNK_KNOWN => {}
            form => {
                let stored = self.whole_value(form, whole)?;
                let number = value_of_first_chunk(&out[self.origin..]);
                let number = number
                    .ok_or_else(|| corrupt("cannot decode a TOAST chunk: expected the first of its value"))?;
                self.recompressor.remember(relation, number, &stored);
            }
        }
        let chunk = self.recompressor.chunk(relation, &out[self.origin..]);
        let chunk =
            chunk.ok_or_else(|| corrupt("cannot decode a TOAST chunk: expected one of a known value"))?;
        pad(out, self.origin, LONG_HEADER_BYTES);
        put_long_header(chunk.len(), false, out)?;
        out.extend_from_slice(chunk);
        Ok(true)
    }

    /// When encoding: returns the form of a chunk, and the whole value if it is the first.
    fn choose_chunk(&mut self, chunks: &Chunks<'_>, attributes: &[u8], content: &[u8]) -> (u64, Whole) {
        let (relation, locator) = chunks.relation;
        if self.recompressor.chunk(relation, attributes).is_some_and(|chunk| chunk == content) {
            return (CHUNK_KNOWN, Whole::default());
        }
        let first = value_of_first_chunk(attributes).zip(locator);
        let stored = first.and_then(|(number, locator)| chunks.ahead.value(locator, number));
        let is_first = |stored: &&[u8]| {
            stored.starts_with(content) && content.len() == stored.len().min(TOAST_CHUNK_BYTES)
        };
        let Some(stored) = stored.filter(is_first) else { return (CHUNK_OTHER, Whole::default()) };
        if let Some((expanded, method)) = self.recompressor.decompress(stored) {
            let form = FIRST_COMPRESSED[method.number() as usize];
            return (form, Whole { expanded: Some(expanded), literal: None });
        }
        match self.vectors.parse(stored) {
            Some(literal) => (FIRST_PLAIN, Whole { expanded: None, literal: Some(literal) }),
            None => (CHUNK_OTHER, Whole::default()),
        }
    }

    /// Codes a whole value and returns it as stored in its chunks.
    fn whole_value(&mut self, form: u64, source: Whole) -> Result<Vec<u8>, Corrupt> {
        if let Some(method) = FIRST_COMPRESSED.iter().position(|first| *first == form) {
            let content = self.expanded(source.expanded.as_deref())?;
            let mut stored = Vec::new();
            self.recompressor.recompress(&content, Method::OF_VALUES[method], &mut stored)?;
            return Ok(stored);
        }
        if form != FIRST_PLAIN {
            return Err(corrupt("cannot decode a TOAST chunk: expected a known form"));
        }
        let stored = self.vectors.code(self.coder, self.columns.content, source.literal)?;
        stored.ok_or_else(|| corrupt("cannot decode a TOAST value: expected a value of a known type"))
    }
}

/// Appends a one-byte header for a content length.
fn put_short_header(content_bytes: usize, out: &mut Vec<u8>) -> Result<(), Corrupt> {
    if content_bytes > MAX_SHORT_CONTENT {
        return Err(corrupt("cannot decode a short varlena: expected 1 to 126 bytes"));
    }
    out.push(ShortHeader::byte(content_bytes));
    Ok(())
}

/// Appends a four-byte header for a content length.
fn put_long_header(content_bytes: usize, is_compressed: bool, out: &mut Vec<u8>) -> Result<(), Corrupt> {
    let size = content_bytes.saturating_add(LONG_HEADER_BYTES);
    out.extend_from_slice(&long_header(size, is_compressed)?);
    Ok(())
}

/// Creates a four-byte header for a value of `size` bytes, header included.
fn long_header(size: usize, is_compressed: bool) -> Result<[u8; LONG_HEADER_BYTES], Corrupt> {
    let header = LongHeader::new(size, is_compressed);
    let header = header.ok_or_else(|| corrupt("cannot decode a varlena: expected less than 1 GB"))?;
    Ok(header.to_bytes())
}
