//! Modes of row positions: constant, difference from the row above, order 0, or mixed.

/// Mode of a position in rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(pub u8);

impl Mode {
    /// Coded by context mixing, unchanged.
    pub const MIXED: Mode = Mode(0);
    /// All rows have the first row's byte.
    const CONSTANT: u8 = 1;
    /// Byte of a little-endian number that is coded as the difference from the previous row: the number's
    /// first byte, or a later byte.
    const DIFFERENCE: u8 = 2;
    const CONTINUED: u8 = 4;
    /// Coded by the frequencies of bytes alone.
    const ORDER0: u8 = 8;

    /// Number of bits of a mode.
    pub const BITS: u32 = 4;

    /// Returns whether all rows have the same byte.
    pub fn is_constant(self) -> bool {
        self.0 & Mode::CONSTANT != 0
    }

    /// Returns whether the position is coded by the frequencies of bytes alone.
    pub fn is_order0(self) -> bool {
        self.0 & Mode::ORDER0 != 0 && !self.is_constant()
    }

    fn is_difference(self) -> bool {
        self.0 & (Mode::DIFFERENCE | Mode::CONTINUED) != 0 && !self.is_constant()
    }

    fn is_continued(self) -> bool {
        self.0 & Mode::CONTINUED != 0
    }
}

/// Minimum number of rows for modes. With fewer, all positions are mixed.
pub const MIN_ROWS: usize = 8;

/// Replaces rows by their differences from the row above, from the last row to the first.
pub fn to_differences(bytes: &mut [u8], modes: &[Mode]) {
    let width = modes.len();
    if !modes.iter().any(|mode| mode.is_difference()) {
        return;
    }
    for start in (width..bytes.len()).step_by(width).collect::<Vec<_>>().into_iter().rev() {
        let (above, row) = bytes[start - width..start + width].split_at_mut(width);
        let mut borrow = 0;
        for (position, mode) in modes.iter().enumerate() {
            if !mode.is_difference() {
                borrow = 0;
                continue;
            }
            if !mode.is_continued() {
                borrow = 0;
            }
            let difference = i32::from(row[position]) - i32::from(above[position]) - borrow;
            row[position] = difference as u8;
            borrow = i32::from(difference < 0);
        }
    }
}

/// Reverses [`to_differences`].
pub fn from_differences(bytes: &mut [u8], modes: &[Mode]) {
    let width = modes.len();
    if !modes.iter().any(|mode| mode.is_difference()) {
        return;
    }
    for start in (width..bytes.len()).step_by(width) {
        let (above, row) = bytes[start - width..start + width].split_at_mut(width);
        let mut carry = 0;
        for (position, mode) in modes.iter().enumerate() {
            if !mode.is_difference() {
                carry = 0;
                continue;
            }
            if !mode.is_continued() {
                carry = 0;
            }
            let sum = u32::from(row[position]) + u32::from(above[position]) + carry;
            row[position] = sum as u8;
            carry = sum >> 8;
        }
    }
}

/// Returns whether bytes are more similar by position than regardless of it. Used only by encoding.
pub fn have_structure(bytes: &[u8], width: usize) -> bool {
    let sample = &bytes[..bytes.len().min(SAMPLED_BYTES) / width * width];
    let mut counts = [0_u32; 256];
    sample.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let by_position: f64 = (0..width)
        .map(|position| costs(sample, width, position))
        .map(|costs| costs.mixed.min(costs.difference).min(costs.continued))
        .sum();
    sample.len() / width >= 64 && by_position < bits(&counts) / 4.0
}

const SAMPLED_BYTES: usize = 1 << 20;

/// Chooses the modes with the smallest estimated size and the least work. Used only by encoding.
pub fn choose(bytes: &[u8], width: usize) -> Vec<Mode> {
    let rows = bytes.len() / width;
    if rows < MIN_ROWS {
        return vec![Mode::MIXED; width];
    }
    let mut modes = Vec::with_capacity(width);
    let mut state = [0.0, f64::MAX];
    let mut steps: Vec<[u8; 2]> = Vec::with_capacity(width);
    let sampled = rows.min(SAMPLED);
    for position in 0..width {
        let costs = costs(&bytes[..sampled * width], width, position);
        if bytes[position..].iter().step_by(width).all(|&byte| byte == bytes[position]) {
            modes.push(Mode(Mode::CONSTANT));
        } else {
            modes.push(Mode::MIXED);
        }
        // Dynamic programming: the cost of all positions up to this position, if this position is mixed, and
        // if it is a difference.
        let mixed = state[0].min(state[1]) + costs.mixed;
        let new = state[0].min(state[1]) + costs.difference;
        let on = state[1] + costs.continued;
        steps.push([u8::from(state[1] < state[0]), u8::from(on < new)]);
        state = [mixed, new.min(on)];
        if modes[position].is_constant() {
            state[1] = f64::MAX;
        }
    }
    let mut at = usize::from(state[1] < state[0]);
    for position in (0..width).rev() {
        let [before, continued] = steps[position];
        if at == 1 {
            modes[position].0 |= if continued == 1 { Mode::CONTINUED } else { Mode::DIFFERENCE };
            at = if continued == 1 { 1 } else { before.into() };
        } else {
            at = before.into();
        }
    }
    if rows >= MIN_FOR_ORDER0 {
        let mut sample = bytes[..sampled * width].to_vec();
        to_differences(&mut sample, &modes);
        for (position, mode) in modes.iter_mut().enumerate() {
            if !mode.is_constant() && is_noise(&sample, width, position) {
                mode.0 |= Mode::ORDER0;
            }
        }
    }
    modes
}

/// Minimum number of rows to recognize noise.
const MIN_FOR_ORDER0: usize = 2000;

/// Returns whether a position has many different bytes that contexts predict only by chance.
fn is_noise(bytes: &[u8], width: usize, position: usize) -> bool {
    let rows = bytes.len() / width;
    let mut counts = [0_u32; 256];
    let mut last = vec![0_u16; 3 << 16];
    let mut hits = [0_u32; 3];
    let mut above = bytes;
    for row in bytes.chunks_exact(width) {
        let byte = row[position];
        let left = |back: usize| position.checked_sub(back).map_or(0, |at| usize::from(row[at]));
        let up = usize::from(above[position]);
        let contexts = [up << 8 | left(1), left(2) << 8 | left(1), left(3) << 8 | left(2)];
        for (test, context) in contexts.into_iter().enumerate() {
            let last = &mut last[test << 16 | context];
            hits[test] += u32::from(*last == 0x100 | u16::from(byte));
            *last = 0x100 | u16::from(byte);
        }
        counts[usize::from(byte)] += 1;
        above = row;
    }
    let chance = counts.iter().map(|&count| (f64::from(count) / rows as f64).powi(2)).sum::<f64>();
    let most = (chance * CHANCE.0 + CHANCE.1) * rows as f64;
    bits(&counts) > ORDER0_BITS * rows as f64 && hits.iter().all(|&hits| f64::from(hits) < most)
}

const CHANCE: (f64, f64) = (1.05, 0.003);
const ORDER0_BITS: f64 = 2.5;

/// Number of sampled rows.
const SAMPLED: usize = 16 << 10;

/// Estimated bits of a position in each mode.
struct Costs {
    mixed: f64,
    difference: f64,
    continued: f64,
}

fn costs(bytes: &[u8], width: usize, position: usize) -> Costs {
    let mut counts = [[0_u32; 256]; 3];
    let mut above: Option<&[u8]> = None;
    for row in bytes.chunks_exact(width) {
        let byte = row[position];
        counts[0][usize::from(byte)] += 1;
        if let Some(above) = above {
            let difference = byte.wrapping_sub(above[position]);
            counts[1][usize::from(difference)] += 1;
            let below = position.saturating_sub(2)..position;
            let borrow = row[below.clone()].iter().rev().lt(above[below].iter().rev());
            counts[2][usize::from(difference.wrapping_sub(borrow.into()))] += 1;
        }
        above = Some(row);
    }
    let [mixed, difference, continued] = counts.map(|counts| bits(&counts));
    // A difference must be clearly better, because mixing also predicts a byte from the one above.
    let (difference, continued) = (difference * 1.05 + 64.0, continued * 1.05 + 64.0);
    Costs { mixed, difference, continued }
}

fn bits(counts: &[u32; 256]) -> f64 {
    let total = f64::from(counts.iter().sum::<u32>());
    let of =
        |&count: &u32| if count == 0 { 0.0 } else { f64::from(count) * (total / f64::from(count)).log2() };
    counts.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns rows of a number that grows in uneven steps, noise, a constant, and a byte with few values.
    fn rows() -> Vec<u8> {
        let mut state = 1_u64;
        let mut noise = move || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(3);
            (state >> 40) as u32
        };
        let mut number = 0xFFF0_u32;
        (0..4000)
            .flat_map(|_| {
                number += 1000 + noise() % 20;
                let mut row = number.to_le_bytes().to_vec();
                row.extend([noise() as u8, 7, (noise() % 3) as u8]);
                row
            })
            .collect()
    }

    #[test]
    fn modes_fit_the_rows() {
        let modes = choose(&rows(), 7);
        let expected = [
            Mode::DIFFERENCE,
            Mode::CONTINUED,
            Mode::CONTINUED,
            Mode::CONSTANT,
            Mode::ORDER0,
            Mode::CONSTANT,
            Mode::MIXED.0,
        ];
        let got: Vec<u8> = modes.iter().map(|mode| mode.0).collect();
        assert_eq!(got[1..3], expected[1..3]);
        assert_eq!(got[3..], expected[3..]);
        assert_eq!(got[0] & !Mode::ORDER0, expected[0]);
    }

    #[test]
    fn differences_are_invertible_in_any_modes() {
        let rows = rows();
        for seed in 0..200_usize {
            let modes: Vec<Mode> =
                (0..7).map(|at| Mode((seed * 7919 + at * 31 + seed / 16 * at) as u8 & 15)).collect();
            let mut bytes = rows.clone();
            to_differences(&mut bytes, &modes);
            from_differences(&mut bytes, &modes);
            assert!(bytes == rows, "{modes:?}");
        }
    }

    #[test]
    fn wide_rows_with_structure_are_not_taken_for_text() {
        let formed: Vec<u8> = (0..200_u32)
            .flat_map(|row| (0..300_u32).flat_map(move |at| (row * 3 + at).to_le_bytes()))
            .collect();
        assert!(have_structure(&formed, 1200));
        let text = b"what is written here is in no row, whatever its width. ".repeat(3000);
        assert!(!have_structure(&text[..1201 * 100], 1201));
        assert!(!have_structure(&[], 300));
    }
}
