//! Attributes of any length (`varatt.h`): their lengths and kinds, then their content.

use walden_format::record::RelFileLocator;

use super::{FieldColumns, pad};
use crate::columns::{Coder, Column};
use crate::tuple::schema::{EXTERNAL_BYTES, Span, Varlena};
use crate::value::expand::{Ahead, CHUNK, Expander, Method, starts};
use crate::value::vectors::{Literal, Vectors};
use crate::{Corrupt, corrupt};

/// How a varlena is told that has a header of one byte, in the lowest two bits; above them its length without header.
pub const SHORT: u64 = 0;

/// A header of one byte holds no more; 1 alone would be a reference.
pub const MAX_SHORT_BYTES: u64 = 126;

/// A varlena: its kind and length together, then its content.
pub fn varlena<S: Coder>(
    coder: &mut S,
    columns: &FieldColumns,
    (expander, vectors): (&mut Expander, &mut Vectors),
    source: Option<(&[u8], Span)>,
    origin: usize,
    out: &mut Vec<u8>,
) -> Result<(), Corrupt> {
    // Of a length: no reference, but told and short.
    const EXTERNAL: u64 = 1;
    // Of no length: told, or really of none.
    const LONG: u64 = 2;
    // Of a length that no compressed value has: coded as it was before compression, by which method.
    const COMPRESSED: u64 = 3;
    let mut expanded = None;
    let mut told = None;
    let (symbol, bytes) = match source {
        None => (0, &[][..]),
        Some((row, span)) => {
            let bytes = &row[span.start..span.end];
            match span.kind {
                Varlena::Short => {
                    told = vectors.tell_short(&bytes[1..]);
                    match told {
                        Some(_) => (EXTERNAL | 1 << 2, &bytes[1..]),
                        None => (SHORT | ((bytes.len() - 1) as u64) << 2, &bytes[1..]),
                    }
                }
                Varlena::External => (EXTERNAL, &bytes[2..]),
                Varlena::Long => {
                    told = vectors.parse(&bytes[4..]);
                    let len = if told.is_some() { 0 } else { bytes.len() - 4 };
                    (LONG | (len as u64) << 2, &bytes[4..])
                }
                Varlena::Compressed => {
                    expanded = expander.expand(&bytes[4..]);
                    let len = match &expanded {
                        Some((_, method)) => method.number() as usize,
                        None => bytes.len() - 4,
                    };
                    (COMPRESSED | (len as u64) << 2, &bytes[4..])
                }
            }
        }
    };
    let symbol = coder.symbol(columns.length, symbol)?;
    let len = usize::try_from(symbol >> 2).unwrap_or(usize::MAX);
    let kind = symbol & 3;
    match kind {
        SHORT => {
            if len as u64 > MAX_SHORT_BYTES {
                return Err(corrupt("a short value can't be so long"));
            }
            out.push((len as u8 + 1) << 1 | 1);
            coder.bytes(columns.content, bytes, len, out)
        }
        EXTERNAL if len > 0 => {
            let value = vectors.code(coder, columns.content, told)?.unwrap_or_default();
            if value.is_empty() || value.len() as u64 > MAX_SHORT_BYTES {
                return Err(corrupt("a short value can't be so long"));
            }
            out.push((value.len() as u8 + 1) << 1 | 1);
            out.extend_from_slice(&value);
            Ok(())
        }
        EXTERNAL => {
            out.extend_from_slice(&[1, 18]);
            coder.bytes(columns.external, bytes, EXTERNAL_BYTES - 2, out)
        }
        COMPRESSED if len < Method::OF_VALUES.len() => {
            pad(out, origin, 4);
            let content = whole(coder, columns, vectors, expanded.as_ref().map(|(content, _)| &content[..]))?;
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            expander.shrink(&content, Method::OF_VALUES[len], out)?;
            let header = header(out.len() - start)? | 2;
            out[start..start + 4].copy_from_slice(&header.to_le_bytes());
            Ok(())
        }
        LONG if len == 0 => {
            pad(out, origin, 4);
            let value = vectors.code(coder, columns.content, told)?.unwrap_or_default();
            out.extend_from_slice(&header(value.len().saturating_add(4))?.to_le_bytes());
            out.extend_from_slice(&value);
            Ok(())
        }
        _ => {
            pad(out, origin, 4);
            let compressed = kind == COMPRESSED;
            out.extend((header(len.saturating_add(4))? | if compressed { 2 } else { 0 }).to_le_bytes());
            let column = if compressed { columns.compressed } else { columns.content };
            coder.bytes(column, bytes, len, out)
        }
    }
}

/// A varlena's header of four bytes, for so many bytes with it.
fn header(whole: usize) -> Result<u32, Corrupt> {
    let whole = u32::try_from(whole).ok().filter(|&whole| whole < 1 << 30);
    Ok(whole.ok_or_else(|| corrupt("a value can't be so long"))? << 2)
}

/// A value as it was before compression.
fn whole<S: Coder>(
    coder: &mut S,
    columns: &FieldColumns,
    vectors: &mut Vectors,
    source: Option<&[u8]>,
) -> Result<Vec<u8>, Corrupt> {
    let told = source.and_then(|content| vectors.parse(content));
    // Of no length: told.
    let source = source.filter(|_| told.is_none());
    let len = coder.symbol(columns.expanded, source.map_or(0, |content| content.len() as u64))?;
    if len == 0 {
        return vectors
            .code(coder, columns.content, told)?
            .ok_or_else(|| corrupt("a compressed value can't be empty"));
    }
    let mut content = Vec::new();
    coder.bytes(
        columns.content,
        source.unwrap_or_default(),
        usize::try_from(len).unwrap_or(usize::MAX),
        &mut content,
    )?;
    Ok(content)
}

/// A chunk of a value that is said as a whole, if it is one: the first one says it.
#[allow(clippy::too_many_arguments)]
pub fn chunk<S: Coder>(
    coder: &mut S,
    column: Column,
    columns: &FieldColumns,
    (expander, vectors): (&mut Expander, &mut Vectors),
    ahead: &Ahead,
    (relation, locator): (u32, Option<RelFileLocator>),
    source: Option<(&[u8], Span)>,
    origin: usize,
    out: &mut Vec<u8>,
) -> Result<bool, Corrupt> {
    const OTHER: u64 = 0;
    const TOLD: u64 = 1;
    // Of a value compressed by pglz, of one that is not compressed, of one by the other methods.
    const FIRST: [u64; 3] = [2, 4, 5];
    const FIRST_PLAIN: u64 = 3;
    let mut value = None;
    let mut plain: Option<Literal> = None;
    let mut form = OTHER;
    if let Some((row, span)) = source.filter(|(_, span)| span.kind == Varlena::Long) {
        let content = &row[span.start + 4..span.end];
        if expander.chunk(relation, row).is_some_and(|chunk| chunk == content) {
            form = TOLD;
        } else if let Some(stored) =
            starts(row).zip(locator).and_then(|(number, locator)| ahead.value(locator, number))
            && stored.starts_with(content)
            && content.len() == stored.len().min(CHUNK)
        {
            value = expander.expand(stored);
            if value.is_none() {
                plain = vectors.parse(stored);
            }
            form = match (&value, &plain) {
                (Some((_, method)), _) => FIRST[method.number() as usize],
                (_, Some(_)) => FIRST_PLAIN,
                _ => OTHER,
            };
        }
    }
    let form = coder.symbol(column, form)?;
    if form == OTHER {
        return Ok(false);
    }
    if form != TOLD {
        let mut stored = Vec::new();
        if let Some(method) = FIRST.iter().position(|first| *first == form) {
            let content = whole(coder, columns, vectors, value.as_ref().map(|(content, _)| &content[..]))?;
            expander.shrink(&content, Method::OF_VALUES[method], &mut stored)?;
        } else if form != FIRST_PLAIN {
            return Err(corrupt("a chunk can't be told so"));
        } else {
            stored = vectors
                .code(coder, columns.content, plain)?
                .ok_or_else(|| corrupt("a value can't be told"))?;
        }
        let number = starts(&out[origin..]).ok_or_else(|| corrupt("a value can't start there"))?;
        expander.keep(relation, number, &stored);
    }
    let chunk =
        expander.chunk(relation, &out[origin..]).ok_or_else(|| corrupt("a value's chunk is not known"))?;
    pad(out, origin, 4);
    out.extend_from_slice(&header(chunk.len() + 4)?.to_le_bytes());
    out.extend_from_slice(chunk);
    Ok(true)
}
