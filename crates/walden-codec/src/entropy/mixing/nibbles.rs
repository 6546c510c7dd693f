//! Predicts nibbles by their frequencies in a few contexts. A byte takes two steps, where bits take eight.
//!
//! All arithmetic is on sixteen 16-bit numbers, which takes a few vector instructions.

use super::range_coder::ONE;

/// Distribution of a nibble in a context. The lower four bits of the first number count the nibbles seen.
/// Each other number is the total probability of all nibbles below it, in 1/32768.
pub type Slot = [u16; 16];

/// Initial slot: all nibbles are equally probable.
pub const NEW: Slot = {
    let mut slot = [0; 16];
    let mut at = 1;
    while at < 16 {
        slot[at] = at as u16 * (ONE / 16);
        at += 1;
    }
    slot
};

/// Minimum probability of a nibble, in 1/32768.
const MIN_PROBABILITY: u16 = 4;

/// Learning rate by the number of nibbles seen, in 1/65536 of the error.
const RATES: [i16; 16] =
    [29000, 21000, 16000, 12500, 10500, 9000, 7800, 6900, 6200, 5600, 5100, 4700, 4300, 3900, 3500, 3000];

/// Returns the number of nibbles that a slot has seen, in four classes.
#[inline]
pub fn count_class(slot: &Slot) -> usize {
    match slot[0] & 15 {
        0 => 0,
        1..=2 => 1,
        3..=9 => 2,
        _ => 3,
    }
}

/// Updates a slot with a nibble.
#[inline]
pub fn learn(slot: &mut Slot, value: u32) {
    let first = slot[0];
    let rate = i32::from(RATES[usize::from(first & 15)]);
    for (at, below) in slot.iter_mut().enumerate() {
        let target = if at as u32 > value { (ONE - 1) as i16 } else { 0 };
        let error = target.wrapping_sub(*below as i16);
        *below = below.wrapping_add(((i32::from(error) * rate) >> 16) as u16);
    }
    slot[0] = if first & 15 < 15 { first + 1 } else { first };
}

/// Mixes the distributions of `C` contexts with weights in 1/65536, whose sum never exceeds 1.
#[derive(Clone)]
pub struct NibbleMixer<const C: usize>([u16; C]);

const ALL: u32 = 65535;
/// Minimum weight of a context.
const MIN_WEIGHT: u32 = 400;
/// Learning rate, as a negative power of 2.
const RATE_SHIFT: u32 = 5;

impl<const C: usize> NibbleMixer<C> {
    /// Creates a mixer with equal weights.
    pub fn new() -> NibbleMixer<C> {
        NibbleMixer([(ALL / C as u32) as u16; C])
    }

    /// Returns the mixed distribution. Every nibble has a probability above 0: the numbers of slots ascend
    /// and are below [`ONE`], so mixed ones do as well, and the multiple of `MIN_PROBABILITY` makes each
    /// larger than the previous one. The result stays below [`ONE`] because 1/512 is subtracted first.
    #[inline]
    pub fn mix(&self, slots: &[Slot; C]) -> Slot {
        let mut mixed = [0_u16; 16];
        for (slot, &weight) in slots.iter().zip(&self.0) {
            for (mixed, &below) in mixed.iter_mut().zip(slot) {
                *mixed += ((u32::from(below) * u32::from(weight)) >> 16) as u16;
            }
        }
        for (at, mixed) in mixed.iter_mut().enumerate() {
            *mixed = *mixed - (*mixed >> 9) + at as u16 * MIN_PROBABILITY;
        }
        mixed[0] = 0;
        mixed
    }

    /// Learns which contexts predicted a nibble well, by a step towards the posterior weights of Bayes' rule.
    #[inline]
    pub fn learn(&mut self, slots: &[Slot; C], value: u32) {
        let at = value as usize & 15;
        let predicted: [u32; C] = std::array::from_fn(|context| {
            let slot = &slots[context];
            let above = if at < 15 { slot[at + 1] } else { ONE };
            let below = if at > 0 { slot[at] } else { 0 };
            u32::from(above.saturating_sub(below)) + 8
        });
        let all: u32 = predicted
            .iter()
            .zip(&self.0)
            .map(|(&predicted, &weight)| (predicted * u32::from(weight)) >> 16)
            .sum();
        let inverse = (1 << 27) / (all + 1);
        let mut left = ALL as i32;
        let mut largest = 0;
        for (context, &predicted) in predicted.iter().enumerate() {
            let weight = u32::from(self.0[context]);
            // In 1/4096, at most 16.
            let ratio = ((u64::from(predicted) * u64::from(inverse)) >> 15).min(0xFFFF) as u32;
            let weight = weight - (weight >> RATE_SHIFT) + ((weight * ratio) >> (12 + RATE_SHIFT));
            self.0[context] = weight.clamp(MIN_WEIGHT, ALL - MIN_WEIGHT) as u16;
            left -= i32::from(self.0[context]);
            if self.0[context] > self.0[largest] {
                largest = context;
            }
        }
        // The largest weight is greater than the correction.
        self.0[largest] = (i32::from(self.0[largest]) + left) as u16;
    }
}
