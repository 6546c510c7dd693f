//! Codes a byte that no candidate predicts: its bits or nibbles, by the counters of its contexts.

use super::components::{Counter, Tables};
use super::contexts::Contexts;
use super::nibbles::{self, Slot};
use super::prefetch::prefetch;
use super::range_coder::BinaryCoder;
use super::{Model, hash};

/// Number of mixer sets for the agreement of candidates on a bit.
pub(super) const AGREEMENTS: usize = 20;

/// Mask of the bits in a slot's first number that identify its context, by a part of the context's hash. The
/// other bits are a count in slots of nibbles, and unused in slots of bits.
const CHECK: u16 = 0xFFF0;

/// Initial 16-bit counter: the probability in the upper 12 bits, a count in the lower 4.
const NEW_COUNTER: u16 = 1 << 15;

impl<const C: usize, const K: usize, const A: usize, const N: usize> Model<C, K, A, N> {
    /// Index of the number in a slot whose lowest four bits count its observations.
    const COUNT: usize = if Self::BY_NIBBLES { 0 } else { 1 };
    /// Slot without observations.
    pub(super) const NEW_SLOT: Slot = if Self::BY_NIBBLES { nibbles::NEW } else { [NEW_COUNTER; 16] };

    /// Codes the nibbles of a byte.
    #[inline]
    pub(super) fn nibbles<B: BinaryCoder>(
        &mut self,
        coder: &mut B,
        byte: u8,
        contexts: &Contexts<C, K>,
    ) -> u8 {
        let high = self.nibble(coder, u32::from(byte) >> 4, 0, contexts);
        let low = self.nibble(coder, u32::from(byte) & 15, 16 | high, contexts);
        (high << 4 | low) as u8
    }

    #[inline]
    fn nibble<B: BinaryCoder>(
        &mut self,
        coder: &mut B,
        given: u32,
        coded: u32,
        contexts: &Contexts<C, K>,
    ) -> u32 {
        self.find_slots(contexts, coded);
        let slots: [Slot; C] = std::array::from_fn(|context| {
            let (bucket, slot) = self.slot_at[context];
            self.buckets[bucket].0[slot]
        });
        let set = slots.iter().fold(contexts.class << 1 | usize::from(coded != 0), |set, slot| {
            set << 2 | nibbles::count_class(slot)
        });
        let mixer = &mut self.nibble_mixers[set];
        let value = coder.code_nibble(given, &mixer.mix(&slots));
        mixer.learn(&slots, value);
        for &(bucket, slot) in &self.slot_at {
            nibbles::learn(&mut self.buckets[bucket].0[slot], value);
        }
        value
    }

    /// Codes the bits of a byte.
    #[inline]
    pub(super) fn bits<B: BinaryCoder>(&mut self, coder: &mut B, byte: u8, contexts: &Contexts<C, K>) -> u8 {
        let mut coded = 1_u32;
        for bit in (0..8).rev() {
            if bit == 7 || bit == 3 {
                self.find_slots(contexts, if bit == 7 { 0 } else { coded });
            }
            let given = u32::from(byte) >> bit & 1;
            let bit = self.bit(coder, given, coded, bit, contexts);
            coded = coded << 1 | bit;
        }
        coded as u8
    }

    /// Finds the slots of the next nibble.
    #[inline]
    fn find_slots(&mut self, contexts: &Contexts<C, K>, coded: u32) {
        let mask = self.buckets.len() - 1;
        for (at, context) in self.slot_at.iter_mut().zip(&contexts.counter) {
            let hashed = hash(*context, u64::from(coded));
            let check = (hashed >> 48) as u16 & CHECK;
            let bucket = hashed as usize & mask;
            let pair = &mut self.buckets[bucket].0;
            let slot = if pair[0][0] & CHECK == check {
                0
            } else if pair[1][0] & CHECK == check {
                1
            } else {
                // Replaces the slot with fewer observations.
                let less = usize::from(pair[1][Self::COUNT] & !CHECK < pair[0][Self::COUNT] & !CHECK);
                pair[less] = Self::NEW_SLOT;
                pair[less][0] = check;
                less
            };
            *at = (bucket, slot);
        }
    }

    /// Prefetches the slots of a byte's first nibble.
    #[inline]
    pub(super) fn prefetch_slots(&self, contexts: &[u64; C]) {
        let mask = self.buckets.len() - 1;
        contexts.iter().for_each(|&context| prefetch(&self.buckets, hash(context, 0) as usize & mask));
    }

    #[inline]
    fn bit<B: BinaryCoder>(
        &mut self,
        coder: &mut B,
        given: u32,
        coded: u32,
        bit: u32,
        contexts: &Contexts<C, K>,
    ) -> u32 {
        let tables = self.tables;
        let mut inputs = [0_i16; N];
        let node = node_of(coded, bit);
        let counters = self.counter_inputs(&mut inputs, node);
        let agreement = self.candidate_inputs(&mut inputs, coded, bit);
        if N > 2 * C + K {
            inputs[2 * C + K] = 256;
        }
        let stretch = self.mixers[0].mix(tables, &inputs, agreement * 256 + coded as usize);
        let stretch = (stretch + self.mixers[1].mix(tables, &inputs, contexts.set())) >> 1;
        let last = self.left & 0xFF | (contexts.class as u64) << 8;
        let [first, second] =
            [contexts.key, last].map(|context| hash(context, u64::from(coded)) as usize & 0xFFFF);
        let first = self.apms[0].refine(stretch, first);
        let second = self.apms[1].refine(stretch, second);
        let p = (2 * tables.squash(stretch) + first + second) / 4;
        let coded_bit = coder.code_bit(given, p.clamp(16, 65535 - 16));
        for (context, &counter) in counters.iter().enumerate() {
            self.counter_maps[self.map_at[context]].learn(tables, coded_bit, 255);
            let (bucket, slot) = self.slot_at[context];
            self.buckets[bucket].0[slot][node] = updated_counter(counter, coded_bit);
        }
        for k in 0..K {
            let byte = self.candidates[k];
            if byte >> (bit + 1) == coded {
                let is_right = u32::from(byte >> bit & 1 == coded_bit);
                let at = self.candidate_counter(k, bit);
                self.candidate_counters[at].learn(tables, is_right, 1000);
            }
        }
        self.mixers.iter_mut().for_each(|mixer| mixer.learn(&inputs, coded_bit));
        self.apms.iter_mut().for_each(|apm| apm.learn(coded_bit));
        coded_bit
    }

    /// Computes two inputs for each counter context: its counter, and the probability that its map assigns to
    /// the counter. Returns the counters.
    #[inline(always)]
    fn counter_inputs(&mut self, inputs: &mut [i16; N], node: usize) -> [u16; C] {
        let mut counters = [0_u16; C];
        for context in 0..C {
            let (bucket, slot) = self.slot_at[context];
            let counter = self.buckets[bucket].0[slot][node];
            counters[context] = counter;
            let stretch = self.tables.stretch(u32::from(counter));
            inputs[context] = stretch;
            let seen = usize::from(counter & 15);
            let at = context * 1024 + seen * 64 + ((i32::from(stretch) + 2048) >> 6) as usize;
            self.map_at[context] = at;
            inputs[C + context] = if seen == 0 { 0 } else { self.tables.stretch(self.counter_maps[at].p()) };
        }
        counters
    }

    /// Computes the inputs of the candidates that match the bits coded so far. Returns the mixer set for
    /// their agreement.
    #[inline(always)]
    fn candidate_inputs(&mut self, inputs: &mut [i16; N], coded: u32, bit: u32) -> usize {
        let mut agree = 0;
        for k in 0..K {
            let byte = self.candidates[k];
            if byte >> (bit + 1) == coded {
                let counter = self.candidate_counters[self.candidate_counter(k, bit)];
                let stretch = self.tables.stretch(counter.p());
                if byte >> bit & 1 != 0 {
                    agree += 1;
                    inputs[2 * C + k] = stretch;
                } else {
                    agree -= 1;
                    inputs[2 * C + k] = -stretch;
                }
            }
        }
        (agree + AGREEMENTS as i32 / 2).clamp(0, AGREEMENTS as i32 - 1) as usize
    }
}

/// Returns the index of a bit's counter in the slot of its nibble: a 1 followed by the nibble's previous
/// bits.
#[inline(always)]
fn node_of(coded: u32, bit: u32) -> usize {
    let node = if bit >= 4 { coded } else { 1 << (3 - bit) | coded & ((1 << (3 - bit)) - 1) };
    node as usize & 15
}

#[inline]
fn updated_counter(counter: u16, bit: u32) -> u16 {
    /// Learning rate by the number of observations, in 1/65536 of the error.
    const RATE: [i32; 16] = [
        43690, 26214, 18724, 14563, 11915, 10082, 8738, 7710, 6898, 6241, 5698, 5242, 4854, 4519, 4228, 3971,
    ];
    let (p, seen) = (i32::from(counter >> 4), counter & 15);
    let target = if bit != 0 { 4095 } else { 0 };
    let p = p + (((target - p) * RATE[usize::from(seen)] + 0x8000) >> 16);
    (p as u16) << 4 | (seen + 1).min(15)
}

/// Returns the initial counter of a map for a quantized stretch: the probability of that stretch.
pub(super) fn new_map_counter(tables: &Tables, quantized: usize) -> Counter {
    let stretch = quantized as i32 * 64 - 2048 + 32;
    Counter(tables.squash(stretch) << 16 | 20)
}
