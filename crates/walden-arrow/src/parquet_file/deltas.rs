//! Numbers as deltas: Parquet's `DELTA_BINARY_PACKED`.

use arrow::array::{Array, ArrayRef};
use parquet::basic::Encoding;

use super::encoder::{Encoder, PAGE, Range, Values};
use super::numbers::{self, NumberType};
use super::packing::{bit_pack, definition_levels, leb128, zigzag};

/// Number of deltas that share a minimum.
const BLOCK: usize = 128;
/// Number of deltas that share a bit width.
const MINIBLOCK: usize = 32;

/// Encodes each number as the delta from the preceding one.
pub(super) struct Deltas {
    number_type: NumberType,
    rows: usize,
    /// Numbers of the rows that are not NULL.
    numbers: Vec<u64>,
    /// 1 for each row that is not NULL, 0 for others; empty while no row is NULL.
    is_present: Vec<u32>,
}

impl Deltas {
    pub fn new(number_type: NumberType) -> Deltas {
        Deltas { number_type, rows: 0, numbers: Vec::with_capacity(PAGE), is_present: Vec::new() }
    }
}

impl Encoder for Deltas {
    fn rows(&self) -> usize {
        self.rows
    }

    fn add(&mut self, column: &ArrayRef) {
        let start = self.numbers.len();
        numbers::append(column, &mut self.numbers);
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
        if nulls.is_some() && self.is_present.is_empty() {
            self.is_present.resize(self.rows, 1);
        }
        self.rows += column.len();
        let Some(nulls) = nulls else {
            if !self.is_present.is_empty() {
                self.is_present.resize(self.rows, 1);
            }
            return;
        };
        let mut end = start;
        for (row, is_present) in nulls.iter().enumerate() {
            self.is_present.push(is_present.into());
            self.numbers[end] = self.numbers[start + row];
            end += usize::from(is_present);
        }
        self.numbers.truncate(end);
    }

    fn end_page(&mut self, nullable: bool, out: &mut Vec<u8>) -> Range {
        definition_levels(nullable, self.rows, &self.is_present, out);
        delta_binary_packed(&self.numbers, self.number_type, out);
        let bounds = self.numbers.first().map(|first| {
            let order = |number: u64| self.number_type.order(number);
            let both =
                |(min, max): (u64, u64), number: &u64| (min.min(order(*number)), max.max(order(*number)));
            let (min, max) = self.numbers.iter().fold((order(*first), order(*first)), both);
            // The order function is its own inverse.
            (order(min), order(max))
        });
        let range = Range { bounds, nulls: (self.rows - self.numbers.len()) as u64 };
        self.rows = 0;
        self.numbers.clear();
        self.is_present.clear();
        range
    }

    fn dictionary(&self) -> Option<(Vec<u8>, usize)> {
        None
    }

    fn encoding(&self) -> Encoding {
        Encoding::DELTA_BINARY_PACKED
    }

    fn values(&self) -> Values<'_> {
        Values::Numbers(self.number_type)
    }
}

fn delta_binary_packed(numbers: &[u64], number_type: NumberType, out: &mut Vec<u8>) {
    // Numbers of the smaller type wrap within that type.
    let signed = |number: u64| match number_type.width {
        4 => i64::from(number as i32),
        _ => number.cast_signed(),
    };
    leb128(BLOCK as u64, out);
    leb128((BLOCK / MINIBLOCK) as u64, out);
    leb128(numbers.len() as u64, out);
    let Some((first, rest)) = numbers.split_first() else { return zigzag(0, out) };
    zigzag(signed(*first), out);
    let mut deltas = [0; BLOCK];
    for (last, block) in numbers.chunks(BLOCK).map(|block| block[0]).zip(rest.chunks(BLOCK)) {
        let deltas = &mut deltas[..block.len()];
        deltas[0] = signed(block[0].wrapping_sub(last));
        for (delta, pair) in deltas[1..].iter_mut().zip(block.windows(2)) {
            *delta = signed(pair[1].wrapping_sub(pair[0]));
        }
        packed_block(deltas, out);
    }
}

fn packed_block(deltas: &[i64], out: &mut Vec<u8>) {
    let smallest = deltas.iter().copied().min().unwrap_or_default();
    zigzag(smallest, out);
    let widths = out.len();
    out.extend_from_slice(&[0; BLOCK / MINIBLOCK]);
    for (index, deltas) in deltas.chunks(MINIBLOCK).enumerate() {
        let mut above = [0; MINIBLOCK];
        let mut all = 0;
        for (above, delta) in above.iter_mut().zip(deltas) {
            *above = delta.wrapping_sub(smallest).cast_unsigned();
            all |= *above;
        }
        let width = u64::BITS - all.leading_zeros();
        out[widths + index] = width as u8;
        bit_pack(above.into_iter(), width, out);
    }
}
