//! What a row is made of, told from rows.
//!
//! The log does not say where a row's attributes begin. But a row can be read in few ways: an attribute of any length says
//! its length, numbers are aligned and the gaps before them are zeros, and the last attribute ends where the row does. A way
//! to read some dozens of rows of different lengths is right, or as good as right: it need not be the table's definition,
//! only put what is alike beside each other.
//!
//! Only encoding looks for a schema; it is stored, so decoding depends on none of this file's judgement.

use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHasher};
use std::cmp::Reverse;
use std::hash::{Hash, Hasher};

/// A part of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// So many bytes, from the next multiple of `align` on.
    Fixed {
        /// Bytes.
        width: u16,
        /// 1, 2, 4 or 8.
        align: u8,
    },
    /// A value of any length, with a header that says it (`varatt.h`).
    Varlena,
}

/// Where a field of a row is.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its first byte after alignment, a varlena's header included.
    pub start: usize,
    /// The byte after its last.
    pub end: usize,
    /// A varlena's kind.
    pub kind: Varlena,
}

/// How a varlena is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Varlena {
    /// With a header of one byte; also said of what is no varlena.
    Short,
    /// A reference to a TOAST table.
    External,
    /// With a header of four bytes.
    Long,
    /// With a header of four bytes, compressed.
    Compressed,
}

/// Bytes of a reference to a TOAST table: header, tag, and `varatt_external`.
pub const EXTERNAL_BYTES: usize = 18;
const EXTERNAL_TAG: u8 = 18;

/// Reads a row by a schema; no if it can't be read so, to its very end.
///
/// `end_align` is what a row's length is rounded up to (with zeros).
pub fn read(fields: &[Field], row: &[u8], end_align: usize, spans: &mut Vec<Span>) -> bool {
    spans.clear();
    let mut at = 0;
    for field in fields {
        let Some(span) = next(*field, row, at) else { return false };
        at = span.end;
        spans.push(span);
    }
    ends(row, at, end_align)
}

/// The next place with an alignment: a power of two, as the compiler could not know, and would divide.
#[inline]
pub fn aligned(at: usize, align: usize) -> usize {
    debug_assert!(align.is_power_of_two());
    (at + align - 1) & !(align - 1)
}

fn ends(row: &[u8], at: usize, end_align: usize) -> bool {
    row.len() == aligned(at, end_align) && row[at..].iter().all(|&byte| byte == 0)
}

/// The field that begins at or after `at`.
#[inline]
fn next(field: Field, row: &[u8], at: usize) -> Option<Span> {
    match field {
        Field::Fixed { width, align } => {
            let start = aligned(at, align.into());
            let end = start + usize::from(width);
            let fits = end <= row.len() && row[at..start].iter().all(|&byte| byte == 0);
            fits.then_some(Span { start, end, kind: Varlena::Short })
        }
        Field::Varlena => {
            let &first = row.get(at)?;
            if first & 1 == 1 {
                if first == 1 {
                    let end = at + EXTERNAL_BYTES;
                    let fits = end <= row.len() && row[at + 1] == EXTERNAL_TAG;
                    return fits.then_some(Span { start: at, end, kind: Varlena::External });
                }
                let end = at + usize::from(first >> 1);
                return (end <= row.len()).then_some(Span { start: at, end, kind: Varlena::Short });
            }
            let start = at.next_multiple_of(4);
            if row.get(at..start)?.iter().any(|&byte| byte != 0) {
                return None;
            }
            let header = u32::from_le_bytes(*row.get(start..)?.first_chunk()?);
            let (kind, least) = match header & 3 {
                0 => (Varlena::Long, 4),
                // Its length before compression follows.
                2 => (Varlena::Compressed, 8),
                _ => return None,
            };
            let len = (header >> 2) as usize;
            let end = start.checked_add(len).filter(|&end| len >= least && end <= row.len())?;
            Some(Span { start, end, kind })
        }
    }
}

/// Fewer rows tell too little.
const MIN_SAMPLES: usize = 4;
/// More rows tell nothing new.
const MAX_SAMPLES: usize = 32;
/// Steps tried before giving up, odd rows left out or not. What is found takes up to two thousand.
const MAX_STEPS: usize = 4000;

/// Rows of one kind, some of many.
#[derive(Default, Debug)]
pub struct Samples {
    rows: Vec<Vec<u8>>,
    seen: usize,
}

impl Samples {
    /// Adds a row, or not, if there are enough. Whether there were too few.
    pub fn add(&mut self, row: &[u8]) -> bool {
        self.seen += 1;
        let too_few = self.rows.len() < MAX_SAMPLES;
        if too_few {
            self.rows.push(row.to_vec());
        } else if self.seen.is_power_of_two() || self.seen.is_multiple_of(97) {
            // Later rows may be longer than the first ones.
            let at = self.seen / 97 % MAX_SAMPLES;
            self.rows[at].clear();
            self.rows[at].extend_from_slice(row);
        }
        too_few
    }

    /// A way to read them all, if there is one.
    pub fn schema(&self, end_align: usize) -> Option<Vec<Field>> {
        let longest = self.rows.iter().map(Vec::len).max()?;
        let same = self.rows.iter().all(|row| row.len() == longest);
        if self.seen < MIN_SAMPLES || longest == 0 {
            return None;
        }
        let (mut odd, mut steps) = (0, MAX_STEPS);
        let mut rows: Vec<&[u8]> = self.rows.iter().map(Vec::as_slice).collect();
        loop {
            match search(&rows, end_align, &mut steps) {
                Ok(fields) => return Some(merged(fields)),
                Err(Some(worst)) if odd * 8 < self.rows.len() && rows.len() > MIN_SAMPLES => {
                    // One row that is not like the others (a value that only looks like a header) costs less than none read.
                    odd += 1;
                    rows.swap_remove(worst);
                }
                Err(_) => break,
            }
        }
        let width = u16::try_from(longest).ok().filter(|_| same && longest <= 2048)?;
        Some(vec![Field::Fixed { width, align: 1 }])
    }
}

/// What may come next, tried in this order.
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

/// The cheapest way through all rows (Dijkstra's), in as many steps as are left; on failure, the row at which most ways ended,
/// unless none are left.
fn search(rows: &[&[u8]], end_align: usize, left: &mut usize) -> Result<Vec<Field>, Option<usize>> {
    let mut nodes = vec![Node { parent: u32::MAX, step: 0 }];
    // Where each node is in each row.
    let (mut places, mut here) = (vec![0_u32; rows.len()], vec![0; rows.len()]);
    let mut best: FxHashMap<u64, u64> = FxHashMap::default();
    let mut open = BinaryHeap::from([Reverse((0_u64, 0_u32))]);
    let mut blame = vec![0_u32; rows.len()];
    let mut ahead = Vec::new();
    while let Some(Reverse((cost, number))) = open.pop() {
        here.copy_from_slice(&places[number as usize * rows.len()..][..rows.len()]);
        let whole = rows.iter().zip(&here);
        if whole.clone().all(|(row, &at)| ends(row, at as usize, end_align)) {
            return Ok(way(&nodes, number));
        }
        *left = left.checked_sub(1).ok_or(None)?;
        for (index, step) in STEPS.iter().enumerate() {
            ahead.clear();
            let (mut shortest, mut longest, mut most_empty, mut gaps) = (usize::MAX, 0, 0, 0);
            for (row_number, (row, &at)) in whole.clone().enumerate() {
                let Some(span) = next(*step, row, at as usize) else {
                    blame[row_number] += u32::from(!ahead.is_empty());
                    break;
                };
                let len = span.end - span.start;
                shortest = shortest.min(len);
                longest = longest.max(len);
                most_empty += usize::from(len <= 1);
                gaps += span.start - at as usize;
                ahead.push(span.end as u32);
            }
            if ahead.len() < rows.len() {
                continue;
            }
            // In 1/16 byte: a varlena of varying length explains more than bytes that are just there; one that is always of
            // the same length may as well be a number, and is not believed if it is always empty.
            // Gaps cost what bytes cost, or zeros before a value would be taken for one.
            let gaps = (16 * gaps / rows.len()) as u64;
            let step_cost = gaps
                + match step {
                    Field::Fixed { width, .. } => 16 * u64::from(*width) + 6,
                    Field::Varlena if shortest == longest => 16 * longest as u64 + 20,
                    Field::Varlena => 24 + (most_empty * 16 / rows.len()) as u64,
                };
            let mut hasher = FxHasher::default();
            ahead.hash(&mut hasher);
            let reached = best.entry(hasher.finish()).or_insert(u64::MAX);
            let cost = cost + step_cost;
            if cost < *reached {
                *reached = cost;
                nodes.push(Node { parent: number, step: index as u8 });
                places.extend_from_slice(&ahead);
                open.push(Reverse((cost, nodes.len() as u32 - 1)));
            }
        }
    }
    Err(blame.iter().enumerate().max_by_key(|(_, times)| **times).map(|(row, _)| row))
}

fn way(nodes: &[Node], last: u32) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut number = last;
    while nodes[number as usize].parent != u32::MAX {
        fields.push(STEPS[usize::from(nodes[number as usize].step)]);
        number = nodes[number as usize].parent;
    }
    fields.reverse();
    fields
}

/// Makes one field of neighbours of fixed width wherever they are always at the same distance.
fn merged(fields: Vec<Field>) -> Vec<Field> {
    let mut out: Vec<Field> = Vec::new();
    // At a row's start, everything is aligned.
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

    /// A row of bigint, text, integer, text, double precision.
    fn row(number: u64, text: &str, other: &str) -> Vec<u8> {
        let mut row = number.to_le_bytes().to_vec();
        let varlena = |row: &mut Vec<u8>, text: &str| {
            if text.len() < 126 {
                row.push(((text.len() + 1) << 1) as u8 | 1);
            } else {
                row.resize(row.len().next_multiple_of(4), 0);
                row.extend(((text.len() as u32 + 4) << 2).to_le_bytes());
            }
            row.extend(text.bytes());
        };
        varlena(&mut row, text);
        row.resize(row.len().next_multiple_of(4), 0);
        row.extend((number as u32 * 7919).to_le_bytes());
        varlena(&mut row, other);
        row.resize(row.len().next_multiple_of(8), 0);
        row.extend((number as f64 * 1.7).to_le_bytes());
        row
    }

    fn rows() -> Vec<Vec<u8>> {
        (0..200)
            .map(|n: u64| row(n * n, &"word ".repeat(n as usize * 7 % 40), &format!("{n}{}", n * 31)))
            .collect()
    }

    #[test]
    fn attributes_are_found_without_a_catalog() {
        let mut samples = Samples::default();
        for (number, row) in rows().iter().enumerate() {
            assert_eq!(samples.add(row), number < MAX_SAMPLES);
        }
        let schema = samples.schema(1).expect("rows of one table");
        let expected = [
            Field::Fixed { width: 8, align: 1 },
            Field::Varlena,
            Field::Fixed { width: 4, align: 4 },
            Field::Varlena,
            Field::Fixed { width: 8, align: 8 },
        ];
        assert_eq!(schema, expected);
        let mut spans = Vec::new();
        assert!(rows().iter().all(|row| read(&schema, row, 1, &mut spans)));
        assert_eq!(spans.len(), 5);
    }

    #[test]
    fn a_row_is_read_to_its_end_or_not_at_all() {
        let schema = [Field::Fixed { width: 4, align: 4 }, Field::Varlena];
        let mut spans = Vec::new();
        assert!(read(&schema, &[1, 2, 3, 4, 5, b'x'], 1, &mut spans));
        assert!(!read(&schema, &[1, 2, 3, 4, 5, b'x', 0], 1, &mut spans));
        assert!(!read(&schema, &[1, 2, 3, 4, 9, b'x'], 1, &mut spans));
        assert!(!read(&schema, &[1, 2, 3], 1, &mut spans));
        assert!(read(&schema, &[1, 2, 3, 4, 5, b'x', 0, 0], 8, &mut spans));
    }
}
