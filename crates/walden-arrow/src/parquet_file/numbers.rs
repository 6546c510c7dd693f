//! Columns of numbers: unsigned numbers and times.

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, TimeUnit};

/// Parquet's representation of numbers of an Arrow type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NumberType {
    /// Bytes of the physical type: 4 or 8.
    pub width: usize,
    pub is_signed: bool,
}

impl NumberType {
    /// Returns the representation; `None` for types that no table uses.
    pub fn from_data_type(data_type: &DataType) -> Option<NumberType> {
        let (width, is_signed) = match data_type {
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => (4, false),
            DataType::UInt64 => (8, false),
            DataType::Timestamp(TimeUnit::Microsecond, _) => (8, true),
            _ => return None,
        };
        Some(NumberType { width, is_signed })
    }

    /// Maps a number so that unsigned comparison yields the order of its type.
    #[inline(always)]
    pub fn order(self, number: u64) -> u64 {
        number ^ (u64::from(self.is_signed) << 63)
    }
}

/// A number in an Arrow array.
pub(super) trait Number: Copy + PartialEq {
    /// Returns the number with its sign extended.
    fn extended(self) -> u64;
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Number for $type {
            #[inline(always)]
            fn extended(self) -> u64 {
                u64::from(self)
            }
        })*
    };
}

numbers!(u8, u16, u32, u64);

impl Number for i64 {
    #[inline(always)]
    fn extended(self) -> u64 {
        self.cast_unsigned()
    }
}

/// Applies the same code to the slice of numbers of each type supported by [`NumberType::from_data_type`].
/// NULL rows have an arbitrary number.
macro_rules! each_type {
    ($column:expr, $numbers:ident => $work:expr) => {{
        use arrow::array::{Array as _, AsArray as _};
        use arrow::datatypes::{
            DataType, TimestampMicrosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
        };
        let column = $column;
        match column.data_type() {
            DataType::UInt8 => {
                let $numbers = column.as_primitive::<UInt8Type>().values();
                $work
            }
            DataType::UInt16 => {
                let $numbers = column.as_primitive::<UInt16Type>().values();
                $work
            }
            DataType::UInt32 => {
                let $numbers = column.as_primitive::<UInt32Type>().values();
                $work
            }
            DataType::UInt64 => {
                let $numbers = column.as_primitive::<UInt64Type>().values();
                $work
            }
            DataType::Timestamp(..) => {
                let $numbers = column.as_primitive::<TimestampMicrosecondType>().values();
                $work
            }
            other => unreachable!("{other} has no numbers of its own"),
        }
    }};
}
pub(super) use each_type;

/// Appends the numbers of all rows, with the sign extended; arbitrary numbers for NULL rows.
pub(super) fn append(column: &ArrayRef, out: &mut Vec<u64>) {
    each_type!(column, numbers => out.extend(numbers.iter().map(|number| number.extended())));
}
