//! Infers schemas from tuples.
//!
//! The WAL does not record where a tuple's attributes start, but a tuple can be read in few ways: a varlena
//! has its length in its header, numbers are aligned and padded with zeros, and the last attribute ends at
//! the end of the tuple. A schema that reads dozens of tuples of different lengths is correct, or equivalent.
//! It need not match the table's definition: it only has to place similar values in one column.
//!
//! Only encoding infers schemas. They are stored, so decoding does not depend on the inference.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use walden_redo::page::varlena::{
    COMPRESSED_HEADER_BYTES, LONG_HEADER_BYTES, LongHeader, ShortHeader, TOAST_POINTER_BYTES,
    TOAST_POINTER_HEADER,
};

/// A field of a tuple: an attribute, or adjacent fixed-width attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// `width` bytes at the next multiple of `align`.
    Fixed {
        /// Width in bytes.
        width: u16,
        /// Alignment: 1, 2, 4 or 8.
        align: u8,
    },
    /// A variable-length value, with a header that has its length (`varatt.h`).
    Varlena,
}

/// Position of a field in a tuple.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Offset of the first byte after alignment. A varlena's header is included.
    pub start: usize,
    /// Offset after the last byte.
    pub end: usize,
    /// Kind of a varlena.
    pub kind: Varlena,
}

/// Storage form of a variable-length value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Varlena {
    /// One-byte header. Fixed-width fields have this value as well.
    Short,
    /// TOAST pointer.
    External,
    /// Four-byte header.
    Long,
    /// Four-byte header, compressed.
    Compressed,
}

/// Reads a tuple by a schema into `spans`. Returns false if the schema does not read the tuple to its end.
///
/// The length of a tuple is rounded up to a multiple of `end_align` with zeros.
pub fn read(fields: &[Field], tuple: &[u8], end_align: usize, spans: &mut Vec<Span>) -> bool {
    spans.clear();
    let mut at = 0;
    for field in fields {
        let Some(span) = next(*field, tuple, at) else { return false };
        at = span.end;
        spans.push(span);
    }
    ends(tuple, at, end_align)
}

/// Returns the next aligned offset. The alignment is a power of two; without this function, the compiler
/// would divide.
#[inline]
pub fn aligned(at: usize, align: usize) -> usize {
    debug_assert!(align.is_power_of_two());
    (at + align - 1) & !(align - 1)
}

fn ends(tuple: &[u8], at: usize, end_align: usize) -> bool {
    tuple.len() == aligned(at, end_align) && tuple[at..].iter().all(|&byte| byte == 0)
}

/// Returns the span of a field that starts at or after `at`, if the tuple can have one there.
#[inline]
fn next(field: Field, tuple: &[u8], at: usize) -> Option<Span> {
    match field {
        Field::Fixed { width, align } => {
            let start = aligned(at, align.into());
            let end = start + usize::from(width);
            let fits = end <= tuple.len() && tuple[at..start].iter().all(|&byte| byte == 0);
            fits.then_some(Span { start, end, kind: Varlena::Short })
        }
        Field::Varlena => {
            let &first = tuple.get(at)?;
            match ShortHeader::decode(first) {
                Some(ShortHeader::External) => {
                    let end = at + TOAST_POINTER_BYTES;
                    let fits = tuple.get(at..end)?.starts_with(&TOAST_POINTER_HEADER);
                    return fits.then_some(Span { start: at, end, kind: Varlena::External });
                }
                Some(ShortHeader::Value { size }) => {
                    let end = at + size;
                    return (end <= tuple.len()).then_some(Span { start: at, end, kind: Varlena::Short });
                }
                None => {}
            }
            let start = at.next_multiple_of(LONG_HEADER_BYTES);
            if tuple.get(at..start)?.iter().any(|&byte| byte != 0) {
                return None;
            }
            let header = LongHeader::read(tuple.get(start..)?)?;
            let (kind, least) = match header.is_compressed {
                false => (Varlena::Long, LONG_HEADER_BYTES),
                true => (Varlena::Compressed, COMPRESSED_HEADER_BYTES),
            };
            let len = header.size as usize;
            let end = start.checked_add(len).filter(|&end| len >= least && end <= tuple.len())?;
            Some(Span { start, end, kind })
        }
    }
}

/// Minimum number of tuples to infer a schema from.
const MIN_SAMPLES: usize = 4;
/// Maximum number of samples. More do not improve the schema.
const MAX_SAMPLES: usize = 32;
/// Maximum number of search steps, including searches without outliers. Successful searches took up to two
/// thousand.
const MAX_STEPS: usize = 4000;

/// Samples of the tuples of one layout.
#[derive(Default, Debug)]
pub struct Samples {
    tuples: Vec<Vec<u8>>,
    seen: usize,
}

impl Samples {
    /// Adds a tuple if there are too few samples, or replaces a sample at certain counts. Returns whether
    /// there were too few.
    pub fn add(&mut self, tuple: &[u8]) -> bool {
        self.seen += 1;
        let too_few = self.tuples.len() < MAX_SAMPLES;
        if too_few {
            self.tuples.push(tuple.to_vec());
        } else if self.seen.is_power_of_two() || self.seen.is_multiple_of(97) {
            // Later tuples may be longer than the first ones.
            let at = self.seen / 97 % MAX_SAMPLES;
            self.tuples[at].clear();
            self.tuples[at].extend_from_slice(tuple);
        }
        too_few
    }

    /// Returns a schema that reads the samples, if there is one.
    pub fn schema(&self, end_align: usize) -> Option<Vec<Field>> {
        let longest = self.tuples.iter().map(Vec::len).max()?;
        let same = self.tuples.iter().all(|tuple| tuple.len() == longest);
        if self.seen < MIN_SAMPLES || longest == 0 {
            return None;
        }
        let (mut odd, mut steps) = (0, MAX_STEPS);
        let mut tuples: Vec<&[u8]> = self.tuples.iter().map(Vec::as_slice).collect();
        loop {
            match search(&tuples, end_align, &mut steps) {
                Ok(fields) => return Some(merged(fields)),
                Err(Some(worst)) if odd * 8 < self.tuples.len() && tuples.len() > MIN_SAMPLES => {
                    // Ignoring outliers that no common schema reads costs less than having no schema.
                    odd += 1;
                    tuples.swap_remove(worst);
                }
                Err(_) => break,
            }
        }
        let width = u16::try_from(longest).ok().filter(|_| same && longest <= 2048)?;
        Some(vec![Field::Fixed { width, align: 1 }])
    }
}

/// Candidates for the next field, in this order.
const STEPS: [Field; 5] = [
    Field::Varlena,
    Field::Fixed { width: 8, align: 8 },
    Field::Fixed { width: 4, align: 4 },
    Field::Fixed { width: 2, align: 2 },
    Field::Fixed { width: 1, align: 1 },
];

struct Node {
    parent: u32,
    step: u8,
}

/// Returns the cheapest sequence of fields that reads all tuples (Dijkstra's algorithm), within the remaining
/// steps. Fails with the tuple at which most sequences ended, or with `None` if no steps remain.
fn search(tuples: &[&[u8]], end_align: usize, left: &mut usize) -> Result<Vec<Field>, Option<usize>> {
    let mut nodes = vec![Node { parent: u32::MAX, step: 0 }];
    // Offset of each node in each tuple.
    let (mut offsets, mut here) = (vec![0_u32; tuples.len()], vec![0; tuples.len()]);
    let mut best: FxHashMap<u64, u64> = FxHashMap::default();
    let mut open = BinaryHeap::from([Reverse((0_u64, 0_u32))]);
    let mut blame = vec![0_u32; tuples.len()];
    let mut ahead = Vec::new();
    while let Some(Reverse((cost, number))) = open.pop() {
        here.copy_from_slice(&offsets[number as usize * tuples.len()..][..tuples.len()]);
        let whole = tuples.iter().zip(&here);
        if whole.clone().all(|(tuple, &at)| ends(tuple, at as usize, end_align)) {
            return Ok(path_to(&nodes, number));
        }
        *left = left.checked_sub(1).ok_or(None)?;
        for (index, &step) in STEPS.iter().enumerate() {
            let Some(step_cost) = try_step(step, whole.clone(), &mut ahead, &mut blame) else { continue };
            let mut hasher = FxHasher::default();
            ahead.hash(&mut hasher);
            let reached = best.entry(hasher.finish()).or_insert(u64::MAX);
            let cost = cost + step_cost;
            if cost < *reached {
                *reached = cost;
                nodes.push(Node { parent: number, step: index as u8 });
                offsets.extend_from_slice(&ahead);
                open.push(Reverse((cost, nodes.len() as u32 - 1)));
            }
        }
    }
    Err(blame.iter().enumerate().max_by_key(|(_, times)| **times).map(|(tuple, _)| tuple))
}

/// Reads the next field of each tuple at its offset. Returns the cost in sixteenths of a byte, and sets
/// `ahead` to the offsets after the field. If a tuple cannot have the field while earlier tuples can, counts
/// that in `blame` and returns `None`.
fn try_step<'r>(
    step: Field,
    tuples: impl ExactSizeIterator<Item = (&'r &'r [u8], &'r u32)>,
    ahead: &mut Vec<u32>,
    blame: &mut [u32],
) -> Option<u64> {
    let count = tuples.len();
    ahead.clear();
    let (mut shortest, mut longest, mut most_empty, mut gaps) = (usize::MAX, 0, 0, 0);
    for (number, (tuple, &at)) in tuples.enumerate() {
        let Some(span) = next(step, tuple, at as usize) else {
            blame[number] += u32::from(!ahead.is_empty());
            return None;
        };
        let len = span.end - span.start;
        shortest = shortest.min(len);
        longest = longest.max(len);
        most_empty += usize::from(len <= 1);
        gaps += span.start - at as usize;
        ahead.push(span.end as u32);
    }
    // A varlena of varying length explains more than fixed-width bytes. One of constant length may as well be
    // a number, and is unlikely if it is always empty. Gaps cost as much as bytes, otherwise zeros would be
    // mistaken for padding.
    let gaps = (16 * gaps / count) as u64;
    Some(
        gaps + match step {
            Field::Fixed { width, .. } => 16 * u64::from(width) + 6,
            Field::Varlena if shortest == longest => 16 * longest as u64 + 20,
            Field::Varlena => 24 + (most_empty * 16 / count) as u64,
        },
    )
}

/// Returns the fields from the first node to this one.
fn path_to(nodes: &[Node], last: u32) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut number = last;
    while nodes[number as usize].parent != u32::MAX {
        fields.push(STEPS[usize::from(nodes[number as usize].step)]);
        number = nodes[number as usize].parent;
    }
    fields.reverse();
    fields
}

/// Merges adjacent fixed-width fields that have a constant distance.
fn merged(fields: Vec<Field>) -> Vec<Field> {
    let mut out: Vec<Field> = Vec::new();
    // The start of a tuple is aligned for everything.
    let mut base = 8;
    for field in fields {
        match (out.last_mut(), field) {
            (Some(Field::Fixed { width: before, .. }), Field::Fixed { width, align: wanted })
                if wanted <= base && usize::from(*before) + usize::from(width) + 8 < 2048 =>
            {
                *before = before.next_multiple_of(u16::from(wanted)) + width;
            }
            (None, Field::Fixed { width, .. }) => out.push(Field::Fixed { width, align: 1 }),
            (_, Field::Fixed { align, .. }) => {
                base = align;
                out.push(field);
            }
            (_, Field::Varlena) => out.push(field),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tuple of bigint, text, integer, text, double precision.
    fn tuple(number: u64, text: &str, other: &str) -> Vec<u8> {
        let mut tuple = number.to_le_bytes().to_vec();
        let varlena = |tuple: &mut Vec<u8>, text: &str| {
            if text.len() < 126 {
                tuple.push(((text.len() + 1) << 1) as u8 | 1);
            } else {
                tuple.resize(tuple.len().next_multiple_of(4), 0);
                tuple.extend(((text.len() as u32 + 4) << 2).to_le_bytes());
            }
            tuple.extend(text.bytes());
        };
        varlena(&mut tuple, text);
        tuple.resize(tuple.len().next_multiple_of(4), 0);
        tuple.extend((number as u32 * 7919).to_le_bytes());
        varlena(&mut tuple, other);
        tuple.resize(tuple.len().next_multiple_of(8), 0);
        tuple.extend((number as f64 * 1.7).to_le_bytes());
        tuple
    }

    fn tuples() -> Vec<Vec<u8>> {
        (0..200)
            .map(|n: u64| tuple(n * n, &"word ".repeat(n as usize * 7 % 40), &format!("{n}{}", n * 31)))
            .collect()
    }

    #[test]
    fn attributes_are_found_without_a_catalog() {
        let mut samples = Samples::default();
        for (number, tuple) in tuples().iter().enumerate() {
            assert_eq!(samples.add(tuple), number < MAX_SAMPLES);
        }
        let schema = samples.schema(1).expect("tuples of one table");
        let expected = [
            Field::Fixed { width: 8, align: 1 },
            Field::Varlena,
            Field::Fixed { width: 4, align: 4 },
            Field::Varlena,
            Field::Fixed { width: 8, align: 8 },
        ];
        assert_eq!(schema, expected);
        let mut spans = Vec::new();
        assert!(tuples().iter().all(|tuple| read(&schema, tuple, 1, &mut spans)));
        assert_eq!(spans.len(), 5);
    }

    #[test]
    fn a_tuple_is_read_to_its_end_or_not_at_all() {
        let schema = [Field::Fixed { width: 4, align: 4 }, Field::Varlena];
        let mut spans = Vec::new();
        assert!(read(&schema, &[1, 2, 3, 4, 5, b'x'], 1, &mut spans));
        assert!(!read(&schema, &[1, 2, 3, 4, 5, b'x', 0], 1, &mut spans));
        assert!(!read(&schema, &[1, 2, 3, 4, 9, b'x'], 1, &mut spans));
        assert!(!read(&schema, &[1, 2, 3], 1, &mut spans));
        assert!(read(&schema, &[1, 2, 3, 4, 5, b'x', 0, 0], 8, &mut spans));
    }
}
