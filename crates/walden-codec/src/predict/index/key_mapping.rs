//! Maps a heap tuple's attributes to an index tuple's key: which attributes, and in which order.
//!
//! Encoding finds a mapping by comparing keys with the heap tuples that they refer to, and stores it.

use crate::columns::{Coder, Column};
use crate::tuple::schema::{Field, Span, Varlena, aligned};
use crate::{Corrupt, corrupt};

/// A key and its heap tuple.
pub struct Sample {
    pub key: Vec<u8>,
    /// Attributes of the heap tuple.
    pub tuple: Vec<u8>,
    /// Spans of its fields.
    pub spans: Vec<Span>,
}

/// Source of one piece of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Piece {
    /// A varlena.
    Whole { field: u16 },
    /// Bytes of a fixed-width field, at an aligned offset.
    Part { field: u16, offset: u16, width: u16, align: u8 },
}

/// How a key is built from a heap tuple's fields, as `FormIndexDatum` and `index_form_tuple` build it from
/// columns. An index on an expression has no mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyMapping(Vec<Piece>);

impl KeyMapping {
    const MAX_PIECES: usize = 64;

    /// Returns the bytes counted for a mapping. Both directions count the same, whatever size the compiler
    /// chooses for `Piece`.
    pub fn counted_bytes(&self) -> usize {
        const MAPPING_BYTES: usize = 64;
        const PIECE_BYTES: usize = 10;
        MAPPING_BYTES + PIECE_BYTES * self.0.len()
    }

    /// Builds the key of a heap tuple. Returns false if the tuple lacks a field or has it in a TOAST table,
    /// or if the key is longer than `max_bytes`.
    ///
    /// A mapping may contain a field more than once: columns with equal values in all samples cannot be
    /// distinguished, and an index may contain a column twice. Without `max_bytes`, a hostile mapping builds
    /// half a megabyte from each heap tuple.
    pub fn key(&self, tuple: &[u8], spans: &[Span], max_bytes: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        for piece in &self.0 {
            match *piece {
                Piece::Whole { field } => {
                    let Some(span) = spans.get(usize::from(field)) else { return false };
                    match span.kind {
                        Varlena::Short => {}
                        Varlena::Long | Varlena::Compressed => pad(out, 4),
                        Varlena::External => return false,
                    }
                    out.extend_from_slice(&tuple[span.start..span.end]);
                }
                Piece::Part { field, offset, width, align } => {
                    pad(out, usize::from(align));
                    let bytes = spans.get(usize::from(field)).and_then(|span| {
                        let from = span.start + usize::from(offset);
                        tuple[..span.end].get(from..from + usize::from(width))
                    });
                    let Some(bytes) = bytes else { return false };
                    out.extend_from_slice(bytes);
                }
            }
            if out.len() > max_bytes {
                return false;
            }
        }
        pad(out, 8);
        true
    }

    /// Returns a mapping that builds the keys of all samples.
    pub fn from_samples(samples: &[Sample], fields: &[Field]) -> Option<KeyMapping> {
        let mut pieces = Vec::new();
        /// Maximum number of search steps. Successful searches took dozens.
        const MAX_STEPS: u32 = 600;
        let mut steps = MAX_STEPS;
        let at = vec![0; samples.len()];
        next_piece(samples, fields, &at, &mut pieces, &mut steps).then_some(KeyMapping(pieces))
    }

    /// As [`Self::from_samples`], from borrowed keys, attributes and spans.
    pub fn infer<'a>(
        samples: impl Iterator<Item = (&'a [u8], &'a [u8], &'a [Span])>,
        fields: &[Field],
    ) -> Option<KeyMapping> {
        let sample = |(key, tuple, spans): (&[u8], &[u8], &[Span])| Sample {
            key: key.to_vec(),
            tuple: tuple.to_vec(),
            spans: spans.to_vec(),
        };
        let samples: Vec<Sample> = samples.map(sample).collect();
        KeyMapping::from_samples(&samples, fields)
    }

    /// Codes a mapping.
    pub fn code<S: Coder>(
        coder: &mut S,
        column: Column,
        source: Option<&KeyMapping>,
    ) -> Result<KeyMapping, Corrupt> {
        let mut pieces = Vec::new();
        loop {
            // 0 ends the mapping, 1 is a varlena, a larger number is 1 + the width of a part.
            let piece = source.and_then(|mapping| mapping.0.get(pieces.len()));
            let code = match piece {
                None => 0,
                Some(Piece::Whole { .. }) => 1,
                Some(Piece::Part { width, .. }) => 1 + u64::from(*width),
            };
            let code = coder.symbol(column, code)?;
            if code == 0 {
                return Ok(KeyMapping(pieces));
            }
            if pieces.len() == KeyMapping::MAX_PIECES {
                return Err(corrupt("cannot decode a key mapping: expected fewer pieces"));
            }
            let wrong = Corrupt("cannot decode a key mapping: expected fields of 16 bits");
            let mut number =
                |value: u16| u16::try_from(coder.symbol(column, value.into())?).map_err(|_| wrong);
            let field = number(match piece {
                Some(Piece::Whole { field } | Piece::Part { field, .. }) => *field,
                None => 0,
            })?;
            pieces.push(if code == 1 {
                Piece::Whole { field }
            } else {
                let (offset, align) = match piece {
                    Some(Piece::Part { offset, align, .. }) => (*offset, align.trailing_zeros() as u16),
                    _ => (0, 0),
                };
                let (offset, align) = (number(offset)?, number(align)?);
                let width = u16::try_from(code - 1).map_err(|_| wrong)?;
                Piece::Part {
                    field,
                    offset,
                    width,
                    align: if align < 4 { 1 << align } else { return Err(wrong) },
                }
            });
        }
    }
}

/// Appends zeros up to a multiple of `align`.
pub fn pad(out: &mut Vec<u8>, align: usize) {
    out.resize(aligned(out.len(), align), 0);
}

/// Returns whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Extends a mapping that builds the keys up to the offsets `at` to one that builds whole keys, by a
/// depth-first search in at most `steps` steps.
fn next_piece(
    samples: &[Sample],
    fields: &[Field],
    at: &[usize],
    pieces: &mut Vec<Piece>,
    steps: &mut u32,
) -> bool {
    let ends = |(sample, &at): (&Sample, &usize)| {
        at.next_multiple_of(8) == sample.key.len() && is_zero(&sample.key[at..])
    };
    if samples.iter().zip(at).all(ends) {
        return true;
    }
    if *steps == 0 || pieces.len() == KeyMapping::MAX_PIECES {
        return false;
    }
    *steps -= 1;
    for (field, _) in fields.iter().enumerate().filter(|(_, field)| **field == Field::Varlena) {
        if let Some(ahead) = after_varlena(samples, field, at) {
            pieces.push(Piece::Whole { field: field as u16 });
            if next_piece(samples, fields, &ahead, pieces, steps) {
                return true;
            }
            pieces.pop();
        }
    }
    for align in [8, 4, 2, 1_usize] {
        // A smaller alignment is tried only if it leads to another offset.
        let is_aligned = |to: usize| at.iter().all(|at| at.is_multiple_of(to));
        if (2..8).contains(&align) && is_aligned(align) && is_aligned(8) {
            continue;
        }
        let Some(starts) = aligned_starts(samples, at, align) else { continue };
        if next_part(samples, fields, (&starts, align), pieces, steps) {
            return true;
        }
        if *steps == 0 {
            return false;
        }
    }
    false
}

/// Extends a mapping by a part of a fixed-width field at these aligned offsets. Longer parts are tried first.
fn next_part(
    samples: &[Sample],
    fields: &[Field],
    (starts, align): (&[usize], usize),
    pieces: &mut Vec<Piece>,
    steps: &mut u32,
) -> bool {
    let mut parts = parts_at(samples, fields, starts);
    parts.sort_by_key(|&(_, _, width)| std::cmp::Reverse(width));
    for &(field, offset, longest) in parts.iter().take(4) {
        let shorter = [8, 4, 2, 1].into_iter().filter(|&width| width < longest);
        for width in std::iter::once(longest).chain(shorter) {
            let ahead: Vec<usize> = starts.iter().map(|start| start + width).collect();
            pieces.push(Piece::Part {
                field: field as u16,
                offset: offset as u16,
                width: width as u16,
                align: align as u8,
            });
            if next_piece(samples, fields, &ahead, pieces, steps) {
                return true;
            }
            pieces.pop();
            if *steps == 0 {
                return false;
            }
        }
    }
    false
}

/// Returns the offsets after a varlena, if all keys contain the varlena of their heap tuple at `at`.
fn after_varlena(samples: &[Sample], field: usize, at: &[usize]) -> Option<Vec<usize>> {
    let after = |(sample, &at): (&Sample, &usize)| {
        let span = sample.spans.get(field)?;
        let start = match span.kind {
            Varlena::Short => at,
            Varlena::Long | Varlena::Compressed => at.next_multiple_of(4),
            Varlena::External => return None,
        };
        let value = &sample.tuple[span.start..span.end];
        let fits = sample.key.get(start..)?.starts_with(value) && is_zero(&sample.key[at..start]);
        fits.then_some(start + value.len())
    };
    samples.iter().zip(at).map(after).collect()
}

/// Returns the next aligned offsets, if all keys have only zeros before them and do not end there.
fn aligned_starts(samples: &[Sample], at: &[usize], align: usize) -> Option<Vec<usize>> {
    let start = |(sample, &at): (&Sample, &usize)| {
        let start = aligned(at, align);
        (start < sample.key.len() && is_zero(&sample.key[at..start])).then_some(start)
    };
    samples.iter().zip(at).map(start).collect()
}

/// Returns the parts of fixed-width fields that equal the keys at these offsets in all samples: field, offset
/// in the field, and length.
fn parts_at(samples: &[Sample], fields: &[Field], starts: &[usize]) -> Vec<(usize, usize, usize)> {
    let mut parts = Vec::new();
    for (number, field) in fields.iter().enumerate() {
        let Field::Fixed { width, .. } = field else { continue };
        for offset in 0..usize::from(*width) {
            let mut longest = usize::from(*width) - offset;
            for (sample, &start) in samples.iter().zip(starts) {
                let Some(span) = sample.spans.get(number) else { return parts };
                let bytes = &sample.tuple[span.start + offset..span.end];
                let same =
                    bytes.iter().zip(&sample.key[start..]).take_while(|(tuple, key)| tuple == key).count();
                longest = longest.min(same);
                if longest == 0 {
                    break;
                }
            }
            if longest > 0 {
                parts.push((number, offset, longest));
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column_kind::{Class, Kind};
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use crate::predict::index::key_order::{KeyPart, code_parts};

    const FIELDS: [Field; 4] = [
        Field::Fixed { width: 12, align: 1 },
        Field::Varlena,
        Field::Fixed { width: 8, align: 8 },
        Field::Varlena,
    ];

    /// Returns a tuple of bigint, integer, text, bigint, text, and the spans of its fields.
    fn tuple(number: u64) -> (Vec<u8>, Vec<Span>) {
        let mut tuple = number.wrapping_mul(0x1234_5678_9ABC_DEF1).to_le_bytes().to_vec();
        tuple.extend((number as u32 % 3).to_le_bytes());
        let mut spans = vec![Span { start: 0, end: 12, kind: Varlena::Short }];
        let mut varlena = |tuple: &mut Vec<u8>, text: &str| {
            let start = tuple.len();
            tuple.push(((text.len() + 1) << 1) as u8 | 1);
            tuple.extend(text.bytes());
            spans.push(Span { start, end: tuple.len(), kind: Varlena::Short });
        };
        varlena(&mut tuple, &"ab".repeat(number as usize % 7));
        pad(&mut tuple, 8);
        let at = tuple.len();
        tuple.extend((number << 20 | 77).to_le_bytes());
        varlena(&mut tuple, &format!("name {number}"));
        spans.insert(2, Span { start: at, end: at + 8, kind: Varlena::Short });
        (tuple, spans)
    }

    /// Returns the key (text, integer, bigint).
    fn key(number: u64) -> Vec<u8> {
        let text = format!("name {number}");
        let mut key = vec![((text.len() + 1) << 1) as u8 | 1];
        key.extend(text.bytes());
        pad(&mut key, 4);
        key.extend((number as u32 % 3).to_le_bytes());
        pad(&mut key, 8);
        key.extend(number.wrapping_mul(0x1234_5678_9ABC_DEF1).to_le_bytes());
        key
    }

    #[test]
    fn a_mapping_is_found_and_makes_other_keys() {
        let known: Vec<_> = [7, 123_456, 99].map(|number| (key(number), tuple(number))).into();
        let samples = known.iter().map(|(key, (tuple, spans))| (&key[..], &tuple[..], &spans[..]));
        let mapping = KeyMapping::infer(samples, &FIELDS).expect("a mapping");
        let mut made = Vec::new();
        for number in 0..500 {
            let (tuple, spans) = tuple(number * 31);
            assert!(mapping.key(&tuple, &spans, usize::MAX, &mut made));
            assert_eq!(made, key(number * 31));
        }
        assert!(!mapping.key(&[], &[], usize::MAX, &mut made));
    }

    #[test]
    fn a_field_that_is_listed_many_times_makes_no_longer_key_than_allowed() {
        let tuple = vec![7; 8000];
        let spans = [Span { start: 0, end: 8000, kind: Varlena::Short }];
        let mapping = KeyMapping(vec![Piece::Whole { field: 0 }; KeyMapping::MAX_PIECES]);
        let mut made = Vec::new();
        assert!(!mapping.key(&tuple, &spans, 8191, &mut made));
        assert_eq!(made.len(), 2 * 8000, "it stops where the key is too long");
        assert!(mapping.key(&tuple, &spans, usize::MAX, &mut made));
        assert_eq!(made.len(), KeyMapping::MAX_PIECES * 8000);
    }

    #[test]
    fn keys_that_are_not_of_the_row_have_no_mapping() {
        let known: Vec<_> = [7, 8, 9].map(|number| (key(number + 1000), tuple(number))).into();
        let samples = known.iter().map(|(key, (tuple, spans))| (&key[..], &tuple[..], &spans[..]));
        assert_eq!(KeyMapping::infer(samples, &FIELDS), None);
    }

    #[test]
    fn mappings_and_parts_come_back() {
        let known = [(key(5), tuple(5)), (key(60), tuple(60))];
        let samples = known.iter().map(|(key, (tuple, spans))| (&key[..], &tuple[..], &spans[..]));
        let mapping = KeyMapping::infer(samples, &FIELDS).expect("a mapping");
        let parts = [KeyPart::Text, KeyPart::Integer, KeyPart::Long];
        let mut coder = Encoder::default();
        let column = coder.column(Kind::Symbols(Class::Shapes)).unwrap();
        assert_eq!(KeyMapping::code(&mut coder, column, Some(&mapping)).unwrap(), mapping);
        code_parts(&mut coder, column, Some(&parts)).unwrap();
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 16).unwrap();
        let column = coder.column(Kind::Symbols(Class::Shapes)).unwrap();
        assert_eq!(KeyMapping::code(&mut coder, column, None).unwrap(), mapping);
        assert_eq!(code_parts(&mut coder, column, None).unwrap(), parts);
    }
}
