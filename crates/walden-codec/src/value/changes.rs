//! Fields of fixed width of rows that replace others.
//!
//! A counter differs little from what it was, a time little from that in the row updated before. Which of the two a number is
//! like is learnt as rows go by, by both sides.

use crate::Corrupt;
use crate::columns::{Class, Coder, Column, Kind};

/// How a field changes.
#[derive(Default)]
pub struct Changes {
    column: Option<Column>,
    parts: Vec<Part>,
    /// What is said of a row.
    said: Vec<u8>,
}

/// A number in the field, as it seems.
#[derive(Clone, Copy, Default)]
struct Part {
    /// The same in the last row that was updated.
    last: u64,
    /// Bits that lately differed from the row's old value, and from the last row's; the newest count most.
    from_old: u32,
    from_last: u32,
}

impl Part {
    fn learn(&mut self, old: u64, new: u64, width: usize) {
        let grow = |bits: &mut u32, value: u64| *bits = *bits - *bits / 8 + 64 - value.leading_zeros();
        grow(&mut self.from_old, distance(new, old, width));
        grow(&mut self.from_last, new ^ self.last);
        self.last = new;
    }
}

/// How far a number is from another, near ones small.
fn distance(value: u64, base: u64, width: usize) -> u64 {
    let shift = 64 - 8 * width as u32;
    let distance = (value.wrapping_sub(base) << shift).cast_signed();
    (distance << 1 ^ distance >> 63).cast_unsigned() >> shift
}

/// The way back.
fn at_distance(distance: u64, base: u64, width: usize) -> u64 {
    let value = base.wrapping_add(distance >> 1 ^ (distance & 1).wrapping_neg());
    value & u64::MAX >> (64 - 8 * width as u32)
}

impl Changes {
    /// Codes a field of a width and an alignment, which is `old` in the row that is replaced.
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
        // The field may be several numbers, of which only the width is known.
        match (usize::from(width), align) {
            (width, 8) if width.is_multiple_of(8) => self.numbers::<8, S>(coder, column, old, source, out),
            (width, _) if width.is_multiple_of(4) => self.numbers::<4, S>(coder, column, old, source, out),
            (width, _) if width.is_multiple_of(2) => self.numbers::<2, S>(coder, column, old, source, out),
            _ => self.numbers::<1, S>(coder, column, old, source, out),
        }
    }

    /// A field that is numbers of `N` bytes, as many as `old` is.
    fn numbers<const N: usize, S: Coder>(
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
        let near = |state: &Part| state.from_old <= state.from_last;
        self.parts.resize(old.len() / N, Part::default());
        let (old, source) = (old.as_chunks::<N>().0, source.as_chunks::<N>().0);
        let said = &mut self.said;
        said.clear();
        for ((state, old), new) in self.parts.iter().zip(old).zip(source) {
            let new = number(new);
            let new = if near(state) { distance(new, number(old), N) } else { new };
            said.extend_from_slice(&new.to_le_bytes()[..N]);
        }
        let start = out.len();
        coder.bytes(column, said, old.as_flattened().len(), out)?;
        for ((state, old), new) in self.parts.iter_mut().zip(old).zip(out[start..].as_chunks_mut::<N>().0) {
            let (old, mut value) = (number(old), number(new));
            if near(state) {
                value = at_distance(value, old, N);
                new.copy_from_slice(&value.to_le_bytes()[..N]);
            }
            state.learn(old, value, N);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_from_their_distances() {
        for width in [1, 2, 4, 8] {
            let all = u64::MAX >> (64 - 8 * width as u32);
            for (value, base) in [(0, 0), (5, 3), (3, 5), (0, all), (all, 0), (all / 2, all), (77, all / 2)] {
                let (value, base) = (value & all, base & all);
                let away = distance(value, base, width);
                assert!(away <= all);
                assert_eq!(at_distance(away, base, width), value, "{value} from {base}");
            }
            assert_eq!(distance(4, 5, width), 1);
        }
    }

    #[test]
    fn what_a_number_is_like_is_learnt() {
        let (mut counter, mut time) = (Part::default(), Part::default());
        for row in 0..50_u64 {
            let balance = row * 7919 % 10_007;
            counter.learn(balance, balance + 3, 4);
            time.learn(row * 7919 % 10_007 * 1000, (1 << 31) + row, 4);
        }
        assert!(counter.from_old < counter.from_last);
        assert!(time.from_old > time.from_last);
    }
}
