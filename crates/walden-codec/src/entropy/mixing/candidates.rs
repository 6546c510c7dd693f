//! Candidates for the next byte: from run models (the byte that was last seen in a context), the match model,
//! and extrapolation of rows. A first bit codes whether the best one is right.

use super::contexts::Contexts;
use super::prefetch::prefetch;
use super::range_coder::BinaryCoder;
use super::{Model, hash};

/// Minimum number of equal bytes for a match, and number of compared bytes.
const MIN_MATCH: u32 = 6;
const COMPARED: usize = 31;

/// Number of counters of a candidate: for each of 64 forms (how well it predicted so far), one per bit and
/// one for the test.
pub(super) const FORM_COUNTERS: usize = 64 * COUNTERS;
const COUNTERS: usize = 16;
/// Index of the counter for the test.
const TEST: usize = 8;

/// A line of the processor's cache.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Line(pub [u32; 16]);

/// The byte last seen in a run context: check (16 bits), byte (8), misses (3) and run length (5).
#[derive(Clone, Copy)]
struct RunEntry(u32);

impl RunEntry {
    fn byte(self) -> u32 {
        self.0 >> 8 & 0xFF
    }

    fn misses(self) -> u32 {
        self.0 >> 5 & 7
    }

    fn run(self) -> u32 {
        self.0 & 31
    }

    /// Returns how well the entry predicted so far, from 0 to 63.
    fn form(self) -> usize {
        let run = match self.run() {
            run @ 0..=3 => run,
            4..=6 => 4,
            7..=12 => 5,
            13..=30 => 6,
            _ => 7,
        };
        (run << 3 | self.misses()) as usize
    }

    fn updated(self, byte: u8) -> u32 {
        let (run, misses) = if self.run() == 0 {
            (1, self.misses())
        } else if self.byte() == u32::from(byte) {
            let run = (self.run() + 1).min(31);
            (run, if run.is_multiple_of(4) { self.misses().saturating_sub(1) } else { self.misses() })
        } else {
            (1, (self.misses() + 2).min(7))
        };
        self.0 & 0xFFFF_0000 | u32::from(byte) << 8 | misses << 5 | run
    }
}

impl<const C: usize, const K: usize, const A: usize, const N: usize> Model<C, K, A, N> {
    const MATCH: usize = K - 2;
    const EXTRAPOLATED: usize = K - 1;

    /// Finds the candidates for a byte.
    #[inline]
    pub(super) fn find_candidates(&mut self, contexts: &Contexts<C, K>) {
        for context in 0..K - 2 {
            let hashed = hash(contexts.lines[context], contexts.last[context]);
            let check = (hashed >> 48) as u32;
            let (line, at) = (self.run_line(contexts.lines[context]), hashed as usize & 15);
            let entries = [self.run_table[line].0[at], self.run_table[line].0[at ^ 1]];
            let found = if entries[0] >> 16 == check {
                0
            } else if entries[1] >> 16 == check {
                1
            } else {
                // Replaces the entry with the shorter run.
                let shorter = usize::from(RunEntry(entries[1]).run() < RunEntry(entries[0]).run());
                self.run_table[line].0[at ^ shorter] = check << 16;
                self.run_at[context] = (line, at ^ shorter);
                self.candidates[context] = 0;
                continue;
            };
            let entry = RunEntry(entries[found]);
            self.run_at[context] = (line, at ^ found);
            self.candidates[context] = if entry.run() > 0 { 0x100 | entry.byte() } else { 0 };
            self.candidate_at[context] = context * FORM_COUNTERS + entry.form() * COUNTERS;
        }
        self.candidates[Self::MATCH] = 0;
        if self.match_len > 0 {
            let byte = self.history[self.match_at & (self.history.len() - 1)];
            self.candidates[Self::MATCH] = 0x100 | u32::from(byte);
            self.candidate_at[Self::MATCH] =
                Self::MATCH * FORM_COUNTERS + match_form(self.match_len) * COUNTERS;
        }
        self.candidates[Self::EXTRAPOLATED] = contexts.extrapolated;
        if contexts.extrapolated != 0 {
            let history = self.extrapolation_history[self.extrapolation_at(contexts)];
            self.candidate_at[Self::EXTRAPOLATED] =
                Self::EXTRAPOLATED * FORM_COUNTERS + usize::from(history) * COUNTERS;
        }
    }

    fn extrapolation_at(&self, contexts: &Contexts<C, K>) -> usize {
        contexts.key as usize & (self.extrapolation_history.len() - 1)
    }

    /// Returns the best candidate and its probability in 1/65536; 0 without a candidate.
    #[inline]
    fn best_candidate(&self, p: &mut [u32; K]) -> (u32, u32) {
        let (mut best, mut best_p) = (0, 0);
        for (k, p) in p.iter_mut().enumerate() {
            if self.candidates[k] != 0 {
                *p = self.candidate_counters[self.candidate_at[k] + TEST].p();
                if *p > best_p {
                    (best, best_p) = (self.candidates[k], *p);
                }
            }
        }
        (best, best_p)
    }

    /// Codes whether the byte is the best candidate. Returns the byte if it is.
    #[inline]
    pub(super) fn test_best_candidate<B: BinaryCoder>(
        &mut self,
        coder: &mut B,
        byte: u8,
        contexts: &Contexts<C, K>,
    ) -> Option<u8> {
        let tables = self.tables;
        let mut p = [0; K];
        let (best, best_p) = self.best_candidate(&mut p);
        if best == 0 {
            return None;
        }
        let mut inputs = [0_i16; A];
        let mut agree = 0;
        for k in 0..K {
            if self.candidates[k] != 0 {
                let stretch = tables.stretch(p[k]);
                if self.candidates[k] == best {
                    agree += 1;
                    inputs[k] = stretch;
                } else {
                    inputs[k] = -stretch.max(0);
                }
            }
        }
        let counters = [1, 2 + u64::from(best)].map(|context| hash(contexts.key, context) as usize & 0xFFFF);
        inputs[K] = tables.stretch(self.test_counters[counters[0]].p());
        inputs[K + 1] = tables.stretch(self.test_counters[counters[1]].p());
        inputs[K + 2] = 256;
        let stretch = self.test_mixer.mix(tables, &inputs, agree * 32 + (best_p >> 11) as usize);
        let is_best = (u32::from(byte) | 0x100 == best).into();
        let hit = coder.code_bit(is_best, tables.squash(stretch).clamp(16, 65535 - 16));
        self.test_mixer.learn(&inputs, hit);
        counters.iter().for_each(|&at| self.test_counters[at].learn(tables, hit, 60));
        self.learn_test(best, hit);
        (hit != 0).then_some(best as u8)
    }

    /// Updates the candidates' counters for the test.
    #[inline]
    fn learn_test(&mut self, best: u32, hit: u32) {
        for k in 0..K {
            let candidate = self.candidates[k];
            // The outcome is known for a tested candidate, and for all candidates if the tested one was
            // right.
            if candidate == best || candidate != 0 && hit != 0 {
                let is_right = u32::from(candidate == best) & hit;
                self.candidate_counters[self.candidate_at[k] + TEST].learn(self.tables, is_right, 1000);
            }
            if candidate == best && hit == 0 {
                self.candidates[k] = 0;
            }
        }
    }

    /// Updates the predictors of candidates.
    #[inline]
    pub(super) fn update(&mut self, byte: u8, contexts: &Contexts<C, K>) {
        if contexts.extrapolated != 0 {
            let at = self.extrapolation_at(contexts);
            let is_right = contexts.extrapolated == 0x100 | u32::from(byte);
            self.extrapolation_history[at] = self.extrapolation_history[at] << 1 & 63 | u8::from(is_right);
        }
        for context in 0..K - 2 {
            let (line, at) = self.run_at[context];
            let entry = &mut self.run_table[line].0[at];
            *entry = RunEntry(*entry).updated(byte);
        }
        self.update_match(byte);
    }

    /// Appends a byte to the history. Continues the match, or searches for one.
    #[inline]
    fn update_match(&mut self, byte: u8) {
        let mask = self.history.len() - 1;
        let goes_on = self.match_len > 0 && self.history[self.match_at & (self.history.len() - 1)] == byte;
        self.history[self.written & mask] = byte;
        self.written = self.written.wrapping_add(1);
        self.left = self.left << 8 | u64::from(byte);
        let (line, hashed) = (self.match_line, hash(u64::from(byte), 0x77) as u32);
        let (at, check) = (hashed as usize >> 8 & 15, hashed & 0xFF);
        // The line of the next entry does not depend on the next byte, so it is prefetched long before it is
        // needed.
        self.match_line = hash(self.left & 0xFF_FFFF_FFFF, 0x77) as usize & (self.match_table.len() - 1);
        prefetch(&self.match_table, self.match_line);
        if goes_on {
            self.match_len = (self.match_len + 1).min(65535);
            self.match_at = self.match_at.wrapping_add(1);
        } else {
            self.match_len = 0;
            let found = self.match_table[line].0[at];
            let distance = (self.written as u32).wrapping_sub(found >> 8) as usize & 0xFF_FFFF;
            if found & 0xFF == check && distance > 0 && distance <= mask && distance < self.written {
                self.start_match(distance);
            }
        }
        self.match_table[line].0[at] = (self.written as u32) << 8 | check;
    }

    /// Starts a match if enough preceding bytes are equal.
    fn start_match(&mut self, distance: usize) {
        let mask = self.history.len() - 1;
        let at = self.written - distance;
        let equal = (1..=COMPARED)
            .take_while(|back| {
                self.history[at.wrapping_sub(*back) & mask]
                    == self.history[self.written.wrapping_sub(*back) & mask]
            })
            .count() as u32;
        if equal >= MIN_MATCH {
            (self.match_at, self.match_len) = (at, equal);
        }
    }

    /// Returns the index of a candidate's counter for a bit.
    #[inline]
    pub(super) fn candidate_counter(&self, k: usize, bit: u32) -> usize {
        self.candidate_at[k] + bit as usize
    }

    /// Prefetches the lines of the next byte's run contexts.
    #[inline]
    pub(super) fn prefetch_runs(&self, lines: &[u64; K]) {
        lines[..K - 2].iter().for_each(|&line| prefetch(&self.run_table, self.run_line(line)));
    }

    #[inline]
    fn run_line(&self, line: u64) -> usize {
        line as usize & (self.run_table.len() - 1)
    }
}

/// Returns the form of a match length, from 0 to 63.
fn match_form(len: u32) -> usize {
    match len {
        0..=31 => len as usize,
        _ => (27 + len.ilog2() as usize).min(63),
    }
}
