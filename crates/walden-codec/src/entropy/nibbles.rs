//! Nibbles told by which ones there were in a few contexts: two steps for a byte, where bits take eight.
//!
//! All of it is sixteen numbers of 16 bits at a time, which are a few wide instructions.

use super::range::ONE;

/// What is known of a nibble in a context: in the first number how much has been seen, in the lower four bits, and in each
/// other the share of nibbles below it, in 1/32768.
pub type Cell = [u16; 16];

/// Nothing seen: all are as likely.
pub const NEW: Cell = {
    let mut cell = [0; 16];
    let mut at = 1;
    while at < 16 {
        cell[at] = at as u16 * (ONE / 16);
        at += 1;
    }
    cell
};

/// Of what has not been seen yet, in each nibble, in 1/32768.
const LEAST: u16 = 4;

/// How much of an error a cell takes that has seen so many, in 1/65536.
const RATES: [i16; 16] =
    [29000, 21000, 16000, 12500, 10500, 9000, 7800, 6900, 6200, 5600, 5100, 4700, 4300, 3900, 3500, 3000];

/// Roughly how much a cell has seen, 0 to 3.
#[inline]
pub fn seen_step(cell: &Cell) -> usize {
    match cell[0] & 15 {
        0 => 0,
        1..=2 => 1,
        3..=9 => 2,
        _ => 3,
    }
}

/// Learns which nibble it was.
#[inline]
pub fn learn(cell: &mut Cell, value: u32) {
    let first = cell[0];
    let rate = i32::from(RATES[usize::from(first & 15)]);
    for (at, below) in cell.iter_mut().enumerate() {
        let target = if at as u32 > value { (ONE - 1) as i16 } else { 0 };
        let error = target.wrapping_sub(*below as i16);
        *below = below.wrapping_add(((i32::from(error) * rate) >> 16) as u16);
    }
    cell[0] = if first & 15 < 15 { first + 1 } else { first };
}

/// How much each of `C` contexts counts, in 1/65536. Together it is never more than all.
#[derive(Clone)]
pub struct Shares<const C: usize>([u16; C]);

const ALL: u32 = 65535;
/// No context counts less.
const MIN_SHARE: u32 = 400;
/// What of a judgement is learned, as a power of 2.
const SLOWLY: u32 = 5;

impl<const C: usize> Shares<C> {
    /// All count as much.
    pub fn new() -> Shares<C> {
        Shares([(ALL / C as u32) as u16; C])
    }

    /// For each nibble the share of those below it, in 1/32768; each nibble has one.
    #[inline]
    pub fn mix(&self, cells: &[Cell; C]) -> Cell {
        let mut mixed = [0_u16; 16];
        for (cell, &share) in cells.iter().zip(&self.0) {
            for (mixed, &below) in mixed.iter_mut().zip(cell) {
                *mixed += ((u32::from(below) * u32::from(share)) >> 16) as u16;
            }
        }
        for (at, mixed) in mixed.iter_mut().enumerate() {
            *mixed = *mixed - (*mixed >> 9) + at as u16 * LEAST;
        }
        mixed[0] = 0;
        mixed
    }

    /// Learns who has been right, as is most likely by Bayes' rule.
    #[inline]
    pub fn learn(&mut self, cells: &[Cell; C], value: u32) {
        let at = value as usize & 15;
        let said: [u32; C] = std::array::from_fn(|context| {
            let cell = &cells[context];
            let above = if at < 15 { cell[at + 1] } else { ONE };
            let below = if at > 0 { cell[at] } else { 0 };
            u32::from(above.saturating_sub(below)) + 8
        });
        let all: u32 = said.iter().zip(&self.0).map(|(&said, &share)| (said * u32::from(share)) >> 16).sum();
        let inverse = (1 << 27) / (all + 1);
        let mut left = ALL as i32;
        let mut largest = 0;
        for (context, &said) in said.iter().enumerate() {
            let share = u32::from(self.0[context]);
            // 1 in 1/4096, 16 at most.
            let ratio = ((u64::from(said) * u64::from(inverse)) >> 15).min(0xFFFF) as u32;
            let share = share - (share >> SLOWLY) + ((share * ratio) >> (12 + SLOWLY));
            self.0[context] = share.clamp(MIN_SHARE, ALL - MIN_SHARE) as u16;
            left -= i32::from(self.0[context]);
            if self.0[context] > self.0[largest] {
                largest = context;
            }
        }
        // The largest one is more than what is missing or too much.
        self.0[largest] = (i32::from(self.0[largest]) + left) as u16;
    }
}
