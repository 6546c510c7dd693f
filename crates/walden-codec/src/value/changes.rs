//! Codes fixed-width fields of updated tuples.
//!
//! A counter is close to its old value, a timestamp is close to the timestamp of the tuple that was updated
//! before. For each number, both directions choose the base that predicted earlier tuples better.

use crate::Corrupt;
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::zigzag::{zigzag_delta_of_width, zigzag_value_of_width};

/// Predictor of a field in updated tuples of a layout.
#[derive(Default)]
pub struct Changes {
    column: Option<Column>,
    numbers: Vec<NumberState>,
    /// Residuals of a tuple.
    residuals: Vec<u8>,
}

/// State of a number in the field.
#[derive(Clone, Copy, Default)]
struct NumberState {
    /// Value in the last updated tuple.
    last: u64,
    /// Moving averages of the number of bits that differed from the tuple's old value, and from the last
    /// tuple's value.
    from_old: u32,
    from_last: u32,
}

impl NumberState {
    /// Returns whether the old value predicts the number at least as well as the last tuple.
    fn is_near_old(&self) -> bool {
        self.from_old <= self.from_last
    }

    fn update(&mut self, old: u64, new: u64, width: usize) {
        let add = |bits: &mut u32, value: u64| *bits = *bits - *bits / 8 + 64 - value.leading_zeros();
        add(&mut self.from_old, zigzag_delta_of_width(new, old, width));
        add(&mut self.from_last, new ^ self.last);
        self.last = new;
    }
}

impl Changes {
    /// Codes a field with a width and an alignment, and appends it to `out`. `old` is the field of the
    /// replaced tuple.
    pub fn code<S: Coder>(
        &mut self,
        coder: &mut S,
        (width, align): (u16, u8),
        old: &[u8],
        source: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let column = match self.column {
            Some(column) => column,
            None => *self.column.insert(coder.column(Kind::Rows(Class::Fixed, width))?),
        };
        // The field may consist of several numbers. Their width follows from the field's width and alignment.
        match (usize::from(width), align) {
            (width, 8) if width.is_multiple_of(8) => {
                self.code_numbers::<8, S>(coder, column, old, source, out)
            }
            (width, _) if width.is_multiple_of(4) => {
                self.code_numbers::<4, S>(coder, column, old, source, out)
            }
            (width, _) if width.is_multiple_of(2) => {
                self.code_numbers::<2, S>(coder, column, old, source, out)
            }
            _ => self.code_numbers::<1, S>(coder, column, old, source, out),
        }
    }

    /// Codes a field of numbers of `N` bytes, as long as `old`.
    fn code_numbers<const N: usize, S: Coder>(
        &mut self,
        coder: &mut S,
        column: Column,
        old: &[u8],
        source: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let number = |bytes: &[u8; N]| {
            let mut number = [0; 8];
            number[..N].copy_from_slice(bytes);
            u64::from_le_bytes(number)
        };
        self.numbers.resize(old.len() / N, NumberState::default());
        let (old, source) = (old.as_chunks::<N>().0, source.as_chunks::<N>().0);
        let residuals = &mut self.residuals;
        residuals.clear();
        for ((state, old), new) in self.numbers.iter().zip(old).zip(source) {
            let new = number(new);
            let new = if state.is_near_old() { zigzag_delta_of_width(new, number(old), N) } else { new };
            residuals.extend_from_slice(&new.to_le_bytes()[..N]);
        }
        let start = out.len();
        coder.bytes(column, residuals, old.as_flattened().len(), out)?;
        for ((state, old), new) in self.numbers.iter_mut().zip(old).zip(out[start..].as_chunks_mut::<N>().0) {
            let (old, mut value) = (number(old), number(new));
            if state.is_near_old() {
                value = zigzag_value_of_width(value, old, N);
                new.copy_from_slice(&value.to_le_bytes()[..N]);
            }
            state.update(old, value, N);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_base_is_found() {
        let (mut counter, mut time) = (NumberState::default(), NumberState::default());
        for tuple in 0..50_u64 {
            let balance = tuple * 7919 % 10_007;
            counter.update(balance, balance + 3, 4);
            time.update(tuple * 7919 % 10_007 * 1000, (1 << 31) + tuple, 4);
        }
        assert!(counter.from_old < counter.from_last);
        assert!(time.from_old > time.from_last);
    }
}
