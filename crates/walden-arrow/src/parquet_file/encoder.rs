//! Encoders of the rows of a column chunk, and the ranges of a page's values.

use std::cmp::Ordering;

use arrow::array::ArrayRef;
use parquet::basic::{Encoding, Type};
use parquet::data_type::ByteArray;
use parquet::file::statistics::{Statistics, ValueStatistics};

use super::numbers::NumberType;

/// Rows of a data page: the unit that a reader can skip by the column index.
pub(super) const PAGE: usize = 20_000;

/// Encodes rows, page by page.
pub(super) trait Encoder: Send {
    /// Number of rows in the current page.
    fn rows(&self) -> usize;

    /// Adds rows to the current page.
    fn add(&mut self, rows: &ArrayRef);

    /// Ends the page: appends its bytes before compression, and returns the range of its values. The next
    /// page is empty.
    fn end_page(&mut self, nullable: bool, out: &mut Vec<u8>) -> Range;

    /// The dictionary page's bytes before compression and its number of values, if there is one.
    fn dictionary(&self) -> Option<(Vec<u8>, usize)>;

    /// The encoding of values in data pages.
    fn encoding(&self) -> Encoding;

    /// The meaning of the numbers in ranges.
    fn values(&self) -> Values<'_>;
}

/// The values of a chunk, each represented by a number.
pub(super) enum Values<'a> {
    /// The number is an index into these texts.
    Texts(&'a [Box<str>]),
    /// The number is the value itself, with its sign extended.
    Numbers(NumberType),
}

impl Values<'_> {
    pub fn physical_type(&self) -> Type {
        match self {
            Values::Texts(_) => Type::BYTE_ARRAY,
            Values::Numbers(numbers) if numbers.width == 4 => Type::INT32,
            Values::Numbers(_) => Type::INT64,
        }
    }

    pub fn compare(&self, one: u64, other: u64) -> Ordering {
        match self {
            Values::Texts(texts) => texts[one as usize].as_bytes().cmp(texts[other as usize].as_bytes()),
            Values::Numbers(numbers) => numbers.order(one).cmp(&numbers.order(other)),
        }
    }

    /// Returns a value as bytes for the column index.
    pub fn bytes(&self, value: u64) -> Vec<u8> {
        match self {
            Values::Texts(texts) => texts[value as usize].as_bytes().to_vec(),
            Values::Numbers(numbers) => value.to_le_bytes()[..numbers.width].to_vec(),
        }
    }

    pub fn statistics(&self, Range { bounds, nulls }: Range) -> Statistics {
        let (min, max) = bounds.unzip();
        let nulls = Some(nulls);
        match self {
            Values::Texts(texts) => {
                let text = |place: u64| ByteArray::from(&*texts[place as usize]);
                ValueStatistics::new(min.map(text), max.map(text), None, nulls, false).into()
            }
            Values::Numbers(NumberType { width: 4, is_signed }) => {
                let number = |number: u64| number as i32;
                ValueStatistics::new(min.map(number), max.map(number), None, nulls, false)
                    .with_backwards_compatible_min_max(*is_signed)
                    .into()
            }
            Values::Numbers(NumberType { is_signed, .. }) => {
                let number = u64::cast_signed;
                ValueStatistics::new(min.map(number), max.map(number), None, nulls, false)
                    .with_backwards_compatible_min_max(*is_signed)
                    .into()
            }
        }
    }
}

/// The smallest and the largest value, if there are any, and the number of NULLs.
#[derive(Default)]
pub(super) struct Range {
    pub bounds: Option<(u64, u64)>,
    pub nulls: u64,
}

impl Range {
    pub fn add(&mut self, other: &Range, values: &Values<'_>) {
        self.bounds = match (self.bounds, other.bounds) {
            (Some((min, max)), Some((other_min, other_max))) => {
                let is_less = values.compare(other_min, min) == Ordering::Less;
                let is_greater = values.compare(other_max, max) == Ordering::Greater;
                Some((if is_less { other_min } else { min }, if is_greater { other_max } else { max }))
            }
            (mine, other) => mine.or(other),
        };
        self.nulls += other.nulls;
    }
}
