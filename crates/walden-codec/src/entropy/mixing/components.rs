//! Counters, mixers and adaptive probability maps, in integer arithmetic: encoder and decoder must compute
//! the same results.
//!
//! A probability p is mixed as its *stretch*, ln(p / (1 - p)), in 1/256. *Squash* is the inverse.

use std::sync::LazyLock;

/// Maximum stretch.
const MAX_STRETCH: i32 = 2815;

/// Tables of stretch and squash, and of learning rates.
pub struct Tables {
    /// Stretch of a probability in 1/4096.
    stretch: Vec<i16>,
    /// Probability in 1/65536 of a stretch, from -[`MAX_STRETCH`] on.
    squash: Vec<u16>,
    /// Learning rate of a counter by the number of bits seen, in 1/65536 of the error.
    rate: Vec<u32>,
}

/// The tables, computed once.
pub static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    // e to the power of 1/256, in units of 2^-50.
    const ONE: u128 = 1 << 50;
    const STEP: u128 = 1_130_306_554_484_061;
    let mut power = ONE;
    let mut half = Vec::new();
    for _ in 0..=MAX_STRETCH {
        // 1 / (1 + 1 / power)
        half.push((power * 65536 / (power + ONE)) as u32);
        // Shifted first, so that the product does not overflow: it reaches 2^72.
        power = (power >> 12) * STEP / (ONE >> 12);
    }
    let squash: Vec<u16> = (-MAX_STRETCH..=MAX_STRETCH)
        .map(|at| {
            let p = half[at.unsigned_abs() as usize];
            (if at < 0 { 65536 - p } else { p }).clamp(1, 65535) as u16
        })
        .collect();
    let mut stretch = Vec::new();
    let mut at = 0;
    for p in 0..4096_u32 {
        // The middle of the interval that this probability represents.
        while at + 1 < squash.len() && u32::from(squash[at]) < p * 16 + 8 {
            at += 1;
        }
        stretch.push((at as i32 - MAX_STRETCH).clamp(-2047, 2047) as i16);
    }
    let rate = (0..1024).map(|seen| 65536 * 2 / (seen * 2 + 3)).collect();
    Tables { stretch, squash, rate }
});

impl Tables {
    /// Returns the stretch of a probability in 1/65536.
    #[inline]
    pub fn stretch(&self, p: u32) -> i16 {
        self.stretch[(p >> 4) as usize & 0xFFF]
    }

    /// Returns the probability in 1/65536 of a stretch.
    #[inline]
    pub fn squash(&self, stretch: i32) -> u32 {
        self.squash[(stretch.clamp(-MAX_STRETCH, MAX_STRETCH) + MAX_STRETCH) as usize].into()
    }
}

/// An adaptive probability of 22 bits. The lower 10 bits count the bits seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter(pub u32);

impl Counter {
    /// A counter without observations.
    pub const NEW: Counter = Counter(1 << 31);

    /// Returns the probability of a 1, in 1/65536.
    #[inline]
    pub fn p(self) -> u32 {
        self.0 >> 16
    }

    #[inline]
    fn seen(self) -> u32 {
        self.0 & 0x3FF
    }

    /// Learns a bit. The count of bits seen is capped at `limit`.
    #[inline]
    pub fn learn(&mut self, tables: &Tables, bit: u32, limit: u32) {
        let (p, seen) = (i64::from(self.0 >> 10), self.seen());
        let target = i64::from(bit) * ((1 << 22) - 1);
        let p = p + (((target - p) * i64::from(tables.rate[seen as usize])) >> 16);
        self.0 = (p as u32) << 10 | (seen + 1).min(limit);
    }
}

/// A logistic mixer of `N` predictions, with a set of weights for each context.
///
/// Weights and inputs have 16 bits, and `N` is a multiple of 8, so that mixing takes a few vector
/// instructions.
pub struct Mixer<const N: usize> {
    weights: Vec<[i16; N]>,
    at: usize,
    p: u32,
    rate: i32,
}

/// A weight of 1.
pub const WEIGHT: i16 = 1 << 13;

impl<const N: usize> Mixer<N> {
    /// Creates a mixer with `sets` sets of weights, which all start as `weight`.
    pub fn new(sets: usize, weight: i16, rate: i32) -> Mixer<N> {
        Mixer { weights: vec![[weight; N]; sets], at: 0, p: 0, rate }
    }

    /// Returns the stretch of the mixed inputs, with the weights of a set.
    #[inline]
    pub fn mix(&mut self, tables: &Tables, inputs: &[i16; N], set: usize) -> i32 {
        self.at = set;
        let weights = &self.weights[set];
        let sum: i32 =
            weights.iter().zip(inputs).map(|(&weight, &input)| i32::from(weight) * i32::from(input)).sum();
        let stretch = (sum >> 13).clamp(-MAX_STRETCH, MAX_STRETCH);
        self.p = tables.squash(stretch);
        stretch
    }

    /// Learns the bit that the last mix predicted.
    #[inline]
    pub fn learn(&mut self, inputs: &[i16; N], bit: u32) {
        let error = ((((bit << 16) as i32 - self.p as i32) * self.rate) >> 8) as i16;
        for (weight, &input) in self.weights[self.at].iter_mut().zip(inputs) {
            // Half of the product, rounded, saturating.
            let twice = ((i32::from(input) * i32::from(error)) >> 16) as i16;
            *weight = weight.saturating_add((twice + 1) >> 1);
        }
    }
}

/// An adaptive probability map (secondary symbol estimation). The map refines a probability by the bits that
/// followed similar probabilities in a context.
pub struct Apm {
    /// Probabilities at 33 stretches for each context, in 1/65536.
    table: Vec<u16>,
    at: usize,
}

impl Apm {
    const STEPS: usize = 33;

    /// Creates a map that initially changes nothing.
    pub fn new(tables: &Tables, contexts: usize) -> Apm {
        let row = (0..Self::STEPS as i32).map(|step| tables.squash((step - 16) * 128) as u16);
        Apm { table: row.collect::<Vec<u16>>().repeat(contexts), at: 0 }
    }

    /// Returns the refined probability of a stretch, in 1/65536.
    #[inline]
    pub fn refine(&mut self, stretch: i32, context: usize) -> u32 {
        let place = (stretch.clamp(-2047, 2047) + 2048) as usize;
        let (step, part) = (place >> 7, (place & 127) as u32);
        let at = context * Self::STEPS + step;
        let pair = &self.table[at..at + 2];
        self.at = at + usize::from(part >= 64);
        (u32::from(pair[0]) * (128 - part) + u32::from(pair[1]) * part) >> 7
    }

    /// Learns the bit that the last refined probability predicted.
    #[inline]
    pub fn learn(&mut self, bit: u32) {
        let p = &mut self.table[self.at];
        let target = (bit * 65535) as i32;
        *p = (i32::from(*p) + ((target - i32::from(*p)) >> 6)) as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encoder and decoder must compute the same results, on any machine.
    #[test]
    fn tables_are_pinned() {
        let tables = &*TABLES;
        assert_eq!(tables.squash.len(), 2 * MAX_STRETCH as usize + 1);
        let sum = |values: &mut dyn Iterator<Item = i64>| {
            values.fold(0_i64, |sum, value| sum.wrapping_mul(31).wrapping_add(value))
        };
        assert_eq!(
            [
                sum(&mut tables.squash.iter().map(|&value| value.into())),
                sum(&mut tables.stretch.iter().map(|&value| value.into())),
                sum(&mut tables.rate.iter().map(|&value| value.into())),
            ],
            [SQUASH, STRETCH, RATE]
        );
    }

    const SQUASH: i64 = -5935593848741569280;
    const STRETCH: i64 = 1868052115460310259;
    const RATE: i64 = -4979862303060032710;

    #[test]
    fn squash_is_the_inverse_of_stretch() {
        let tables = &*TABLES;
        assert_eq!(tables.squash(0), 32768);
        for p in (64..65472).step_by(16) {
            let back = tables.squash(tables.stretch(p).into()) as i32;
            assert!((back - p as i32).abs() <= 64 + p.min(65536 - p) as i32 / 100, "{p} {back}");
        }
    }

    #[test]
    fn counters_converge_to_the_frequency_of_ones() {
        let mut counter = Counter::NEW;
        (0..2000).for_each(|at| counter.learn(&TABLES, u32::from(at % 4 == 0), 1000));
        assert!((counter.p() as i32 - 16384).abs() < 1000, "{}", counter.p());
        assert_eq!(counter.seen(), 1000);
    }

    #[test]
    fn a_mixer_learns_which_input_is_right() {
        let mut mixer = Mixer::<8>::new(1, WEIGHT / 4, 24);
        let mut p = 0;
        for at in 0..5000_u32 {
            let bit = at.wrapping_mul(0x9E37_79B9) >> 31;
            let mut inputs = [0; 8];
            inputs[0] = if bit != 0 { 1000 } else { -1000 };
            inputs[1] = if at % 3 == 0 { 1000 } else { -1000 };
            let stretch = mixer.mix(&TABLES, &inputs, 0);
            p = TABLES.squash(if bit != 0 { stretch } else { -stretch });
            mixer.learn(&inputs, bit);
        }
        assert!(p > 64000, "{p}");
    }

    #[test]
    fn an_apm_learns_what_follows_a_probability() {
        let mut apm = Apm::new(&TABLES, 2);
        for _ in 0..1000 {
            apm.refine(0, 1);
            apm.learn(1);
        }
        assert!(apm.refine(0, 1) > 60000);
        assert!((apm.refine(0, 0) as i32 - 32768).abs() < 300);
    }
}
