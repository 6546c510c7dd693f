//! Columns bit by bit, each bit predicted by what was seen in several contexts: the smallest form, and the slowest.
//!
//! Each context (the bytes to the left, those above in the rows before, both, the column's as a whole...) has counters of
//! its own, found by hash; a mixer learns whom to believe. Encoding and decoding are the same function, see
//! [`Bits`], and all that was learned is kept for the columns that follow.

use super::logistic::{Correction, Counter, Mixer, TABLES, Tables};
use super::range::Bits;
use crate::columns::Form;

/// How much is spent on a byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Contexts with counters for each bit, the first ones of each form's list.
    counted: usize,
    /// Contexts that remember the byte that came last, likewise.
    recalled: usize,
    /// Nibbles of contexts with counters, and contexts that remember, as powers of 2.
    counted_bits: u32,
    recalled_bits: u32,
    /// Bytes in which matches are looked for, as a power of 2.
    history_bits: u32,
    /// Whether what a counter says is judged by what came of it in others, and mixtures are mixed again.
    refined: bool,
}

/// The efforts there are, by the number in the compressed form.
pub const EFFORTS: [Effort; 3] = [
    Effort { counted: 2, recalled: 3, counted_bits: 18, recalled_bits: 20, history_bits: 23, refined: false },
    Effort { counted: 4, recalled: 6, counted_bits: 19, recalled_bits: 21, history_bits: 23, refined: true },
    Effort {
        counted: MOST_COUNTED,
        recalled: MOST_RECALLED,
        counted_bits: 20,
        recalled_bits: 22,
        history_bits: 24,
        refined: true,
    },
];

const MOST_COUNTED: usize = 7;
const MOST_RECALLED: usize = 10;
/// Recalled bytes, that of the match, and that of the step.
const RECALLED: usize = MOST_RECALLED + 2;
const MATCH: usize = MOST_RECALLED;
const STEP: usize = MOST_RECALLED + 1;
/// Predictions of a bit: two for each context with counters, those recalled, and a constant.
const MOST_INPUTS: usize = 2 * MOST_COUNTED + RECALLED + 1;

/// Bytes that must be equal for a match.
const FEWEST_EQUAL: u32 = 6;

/// Rows wider than this are bytes: so wide is only what has no form.
const WIDEST_ROW: u16 = 256;
/// Below this many rows, bytes that never change are not told apart.
const FEWEST_ROWS: usize = 8;

/// What has been learned.
pub struct Modelled {
    tables: &'static Tables,
    effort: Effort,
    /// Each of 15 counters of a nibble in a context, after a check that it is this context.
    buckets: Vec<[u16; 16]>,
    slots: [usize; MOST_COUNTED],
    /// What came of counters, by what they said: 1024 for each context.
    refined: Vec<Counter>,
    refined_at: [usize; MOST_COUNTED],
    /// Bytes that came last, see [`Recalled`].
    recall: Vec<u32>,
    recall_at: [usize; MOST_RECALLED],
    /// What is recalled for this byte; 0 for nothing, otherwise 0x100 and the byte.
    recalled: [u32; RECALLED],
    /// Where their strength is, without that of the bit.
    strength_at: [usize; RECALLED],
    strengths: Vec<Counter>,
    /// For each position, whether it was the step's byte the last six times.
    steps: Vec<u8>,
    inputs: [i32; MOST_INPUTS],
    mixers: [Mixer; 2],
    last: Mixer,
    corrections: [Correction; 2],
    /// For the question if it is the recalled byte.
    asking: Mixer,
    asked: Vec<Counter>,
    /// Whether a position of rows never changes, by what it was before.
    still: Vec<Counter>,
    history: Vec<u8>,
    /// Bytes written to the history.
    written: usize,
    matches: Vec<u32>,
    /// Where the match goes on, and how long it is; 0 if there is none.
    match_at: usize,
    match_len: u32,
    /// The last bytes, the latest lowest.
    left: u64,
}

/// Where a byte is.
struct Place {
    class: usize,
    position: usize,
    /// Told apart in corrections.
    key: u64,
    /// What it is if the rows above go on with the step they took; as [`Modelled::recalled`].
    step: u32,
    counted: [u64; MOST_COUNTED],
    recalled: [u64; MOST_RECALLED],
}

impl Modelled {
    /// Nothing learned yet.
    pub fn new(effort: Effort) -> Modelled {
        let tables = &*TABLES;
        let inputs = effort.inputs();
        let mixer = |sets| Mixer::new(inputs, sets, 1 << 14, 24);
        Modelled {
            tables,
            effort,
            buckets: vec![[SMALL_NEW; 16]; 1 << effort.counted_bits],
            slots: [0; MOST_COUNTED],
            refined: (0..1024 * MOST_COUNTED).map(|at| refined_start(tables, at % 64)).collect(),
            refined_at: [0; MOST_COUNTED],
            recall: vec![0; 1 << effort.recalled_bits],
            recall_at: [0; MOST_RECALLED],
            recalled: [0; RECALLED],
            strength_at: [0; RECALLED],
            strengths: (0..RECALLED * STRENGTHS).map(strength_start).collect(),
            steps: vec![0; 1 << 14],
            inputs: [0; MOST_INPUTS],
            mixers: [mixer(256 * 20), mixer(CLASS_SETS * POSITIONS)],
            last: Mixer::new(2, 256, (1 << 16) / 2, 2),
            corrections: [Correction::new(tables, 1 << 16), Correction::new(tables, 1 << 16)],
            asking: Mixer::new(RECALLED + 3, (RECALLED + 1) * 32, 1 << 14, 24),
            asked: vec![Counter::NEW; 1 << 16],
            still: vec![Counter::NEW; 1 << 12],
            history: vec![0; 1 << effort.history_bits],
            written: 0,
            matches: vec![0; 1 << (effort.history_bits - 2)],
            match_at: 0,
            match_len: 0,
            left: 0,
        }
    }

    /// What it was made with.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// Codes a column: encoding reads `bytes`, decoding writes them.
    pub fn column<B: Bits>(&mut self, bits: &mut B, class: usize, number: u32, form: Form, bytes: &mut [u8]) {
        let class = class % CLASS_SETS;
        let class_key = hash(class as u64 + 1, 0x51);
        let column_key = hash(class_key, u64::from(number) + 1);
        self.left = 0;
        self.match_len = 0;
        match form {
            Form::Rows(width) if width <= WIDEST_ROW && bytes.len().is_multiple_of(usize::from(width)) => {
                self.rows(bits, class, class_key, column_key, usize::from(width), bytes);
            }
            Form::Symbols => self.symbols(bits, class, class_key, column_key, bytes),
            _ => self.text(bits, class, class_key, column_key, bytes),
        }
    }

    /// Rows: what is above is as good a context as what is to the left.
    fn rows<B: Bits>(
        &mut self,
        bits: &mut B,
        class: usize,
        class_key: u64,
        column_key: u64,
        width: usize,
        bytes: &mut [u8],
    ) {
        let class_key = hash(class_key, width as u64);
        let many = bytes.len() / width >= FEWEST_ROWS;
        let (mut moving, mut still) = (Vec::with_capacity(width), Vec::new());
        for position in 0..width {
            if many && self.is_still(bits, column_key, width, position, bytes) {
                still.push(position);
            } else {
                moving.push(position);
            }
        }
        let mut start = 0;
        while start < bytes.len() {
            let first = start == 0;
            let all = 0..width;
            if first {
                self.row(bits, class, class_key, column_key, width, all, bytes, start);
            } else {
                still.iter().for_each(|position| bytes[start + position] = bytes[start + position - width]);
                self.row(bits, class, class_key, column_key, width, moving.iter().copied(), bytes, start);
            }
            start += width;
        }
    }

    /// Whether all rows have the same byte at a position.
    fn is_still<B: Bits>(
        &mut self,
        bits: &mut B,
        column_key: u64,
        width: usize,
        position: usize,
        bytes: &[u8],
    ) -> bool {
        let still = bytes[position..].iter().step_by(width).all(|&byte| byte == bytes[position]);
        let at = hash(column_key, position as u64) as usize & (self.still.len() - 1);
        let counter = &mut self.still[at];
        let p = counter.p().clamp(32, 65535 - 32);
        let bit = bits.code(still.into(), p);
        counter.learn(self.tables, bit, 30);
        bit != 0
    }

    #[allow(clippy::too_many_arguments)]
    fn row<B: Bits>(
        &mut self,
        bits: &mut B,
        class: usize,
        class_key: u64,
        column_key: u64,
        width: usize,
        positions: impl Iterator<Item = usize>,
        bytes: &mut [u8],
        start: usize,
    ) {
        let mut prefix = column_key;
        let mut changes = 0_u64;
        for position in positions {
            let at = start + position;
            let above = |rows: usize| match at.checked_sub(rows * width) {
                Some(at) => u64::from(bytes[at]),
                None => 0,
            };
            let (up, up2, up3) = (above(1), above(2), above(3));
            let next = if position + 1 < width && start > 0 { u64::from(bytes[at + 1 - width]) } else { 0 };
            let left = self.left;
            let (l1, l2) = (left & 0xFF, left & 0xFFFF);
            let column = hash(column_key, position as u64);
            let class_place = hash(class_key, position as u64);
            let straight = (2 * up).wrapping_sub(up2) & 0xFF;
            let place = Place {
                class,
                position,
                key: column,
                step: if start >= 2 * width { 0x100 | straight as u32 } else { 0 },
                counted: [
                    hash(column, up),
                    hash(column, 1 << 32 | l1),
                    hash(class_key, 2 << 32 | l2),
                    hash(column, 3 << 32),
                    hash(column, 4 << 32 | up << 8 | changes & 0xFF),
                    hash(class_key, 5 << 32 | left & 0xFF_FFFF),
                    hash(class_place, 6 << 32 | up),
                ],
                recalled: [
                    hash(prefix, position as u64),
                    hash(column, 11 << 32 | up << 8 | l1),
                    hash(column, 12 << 32 | up << 8 | up2),
                    hash(class_key, 13 << 60 | left & 0xFFFF_FFFF),
                    hash(column, 14 << 32 | l2),
                    hash(class_place, 15 << 32 | up << 16 | l2),
                    hash(column, 16 << 32 | straight << 16 | changes & 0xFFFF),
                    hash(column, 17 << 32 | up << 16 | up2 << 8 | up3),
                    hash(class_key, 18 << 52 | left & 0xFFFF_FFFF_FFFF),
                    hash(column, 19 << 32 | up << 16 | next << 8 | l1),
                ],
            };
            let byte = self.byte(bits, bytes[at], &place);
            bytes[at] = byte;
            prefix = hash(prefix, u64::from(byte));
            changes = changes << 8 | u64::from(byte.wrapping_sub(up as u8));
        }
    }

    /// Numbers: which ones follow each other.
    fn symbols<B: Bits>(
        &mut self,
        bits: &mut B,
        class: usize,
        class_key: u64,
        column_key: u64,
        bytes: &mut [u8],
    ) {
        let mut within = 0;
        for byte in bytes {
            let left = self.left;
            let column = hash(column_key, within);
            let class_place = hash(class_key, within);
            let masked = |mask: u64| left & mask;
            let place = Place {
                class,
                position: within as usize,
                key: column,
                step: 0,
                counted: [
                    hash(column, masked(0xFF)),
                    hash(column, 1 << 32),
                    hash(column, 2 << 32 | masked(0xFFFF)),
                    hash(class_place, 3 << 32 | masked(0xFF)),
                    hash(column, 4 << 32 | masked(0xFF00)),
                    hash(column, 5 << 32 | masked(0xFF_FFFF)),
                    hash(class_place, 6 << 32 | masked(0xFFFF)),
                ],
                recalled: [
                    hash(column, 11 << 32 | masked(0xFFFF)),
                    hash(column, 12 << 32 | masked(0xFF_FFFF)),
                    hash(column, 13 << 60 | masked(0xFFFF_FFFF)),
                    hash(class_place, 14 << 60 | masked(0xFFFF_FFFF)),
                    hash(column, 15 << 52 | masked(0xFFFF_FFFF_FFFF)),
                    hash(column, 16 << 32 | masked(0xFF)),
                    hash(column, 17 << 32 | masked(0xFF_FF00)),
                    hash(column, 18 << 32 | masked(0xFF_0000)),
                    hash(hash(column, 19), left),
                    hash(column, 20 << 32 | masked(0xFFFF_FF00)),
                ],
            };
            *byte = self.byte(bits, *byte, &place);
            within = if *byte < 0x80 { 0 } else { (within + 1).min(7) };
        }
    }

    /// Anything else: as text is predicted, and as what has words of some bytes.
    fn text<B: Bits>(
        &mut self,
        bits: &mut B,
        class: usize,
        class_key: u64,
        column_key: u64,
        bytes: &mut [u8],
    ) {
        let (mut word, mut word_before) = (0, 0);
        for (at, byte) in bytes.iter_mut().enumerate() {
            let left = self.left;
            let masked = |mask: u64| left & mask;
            let place = Place {
                class,
                position: (left >> 5 & 7) as usize,
                key: column_key,
                step: 0,
                counted: [
                    hash(class_key, 1 << 32 | masked(0xFF)),
                    hash(class_key, 2 << 32 | masked(0xFFFF)),
                    hash(class_key, 3 << 32 | masked(0xFF_FFFF)),
                    hash(class_key, 4 << 32),
                    hash(hash(class_key, word), 5 << 32 | masked(0xFF)),
                    hash(class_key, 6 << 32 | masked(0xFF00)),
                    hash(class_key, 7 << 60 | masked(0xFFFF_FFFF)),
                ],
                recalled: [
                    hash(class_key, 11 << 60 | masked(0xFFFF_FFFF)),
                    hash(class_key, 12 << 52 | masked(0xFFFF_FFFF_FFFF)),
                    hash(class_key, 13 << 32 | masked(0xFF_FFFF)),
                    hash(hash(word_before, word), 14 << 32),
                    hash(class_key, 15 << 60 | masked(0xFF_FFFF_FFFF)),
                    hash(column_key, 16 << 32 | masked(0xFFFF)),
                    hash(class_key, 17 << 52 | masked(0xFF00_FFFF)),
                    hash(class_key, 18 << 52 | masked(0xFFFF_FF00)),
                    hash(hash(class_key, (at & 3) as u64), left >> 24 & 0xFF | left >> 48 & 0xFF00),
                    hash(hash(class_key, 20), left),
                ],
            };
            *byte = self.byte(bits, *byte, &place);
            if byte.is_ascii_alphanumeric() || *byte >= 0x80 {
                word = hash(word, u64::from(*byte));
            } else if word != 0 {
                (word_before, word) = (word, 0);
            }
        }
    }

    /// Codes a byte.
    fn byte<B: Bits>(&mut self, bits: &mut B, byte: u8, place: &Place) -> u8 {
        self.recall(place);
        // If the byte is the one most likely recalled, no bits are needed.
        let byte = match self.ask(bits, byte, place) {
            Some(byte) => byte,
            None => self.bits(bits, byte, place),
        };
        if place.step != 0 {
            let at = place.key as usize & (self.steps.len() - 1);
            self.steps[at] = self.steps[at] << 1 & 63 | u8::from(place.step == 0x100 | u32::from(byte));
        }
        self.remember(byte);
        byte
    }

    /// Finds what is recalled.
    fn recall(&mut self, place: &Place) {
        let mask = self.recall.len() - 1;
        for context in 0..self.effort.recalled {
            let hashed = place.recalled[context];
            let check = (hashed >> 48) as u32;
            let at = hashed as usize & mask;
            let entries = [self.recall[at], self.recall[at ^ 1]];
            let found = if entries[0] >> 16 == check {
                0
            } else if entries[1] >> 16 == check {
                1
            } else {
                // The one of less use makes room.
                let less = usize::from(Recalled(entries[1]).run() < Recalled(entries[0]).run());
                self.recall[at ^ less] = check << 16;
                self.recall_at[context] = at ^ less;
                self.recalled[context] = 0;
                continue;
            };
            let entry = Recalled(entries[found]);
            self.recall_at[context] = at ^ found;
            self.recalled[context] = if entry.run() > 0 { 0x100 | entry.byte() } else { 0 };
            self.strength_at[context] = context * STRENGTHS + entry.judged();
        }
        if self.match_len > 0 {
            self.recalled[MATCH] = 0x100 | u32::from(self.history[self.match_at & (self.history.len() - 1)]);
            self.strength_at[MATCH] = MATCH * STRENGTHS + match_step(self.match_len) * 16;
        } else {
            self.recalled[MATCH] = 0;
        }
        self.recalled[STEP] = place.step;
        if place.step != 0 {
            let steps = self.steps[place.key as usize & (self.steps.len() - 1)];
            self.strength_at[STEP] = STEP * STRENGTHS + usize::from(steps) * 16;
        }
    }

    /// Asks whether the byte is the one most likely; the byte if it is.
    fn ask<B: Bits>(&mut self, bits: &mut B, byte: u8, place: &Place) -> Option<u8> {
        let tables = self.tables;
        let used = (0..self.effort.recalled).chain([MATCH, STEP]);
        let (mut best, mut best_p) = (0, 0);
        for context in used.clone() {
            if self.recalled[context] != 0 {
                let p = self.strengths[self.strength_at[context] + ASKED].p();
                if p > best_p {
                    (best, best_p) = (self.recalled[context], p);
                }
            }
        }
        if best == 0 {
            return None;
        }
        let mut inputs = [0; RECALLED + 3];
        let mut agree = 0;
        for context in used.clone() {
            let recalled = self.recalled[context];
            if recalled != 0 {
                let stretch = tables.stretch(self.strengths[self.strength_at[context] + ASKED].p());
                if recalled == best {
                    agree += 1;
                    inputs[context] = stretch;
                } else {
                    inputs[context] = -stretch.max(0);
                }
            }
        }
        let ats =
            [hash(place.key, 1) as usize & 0xFFFF, hash(place.key, 2 + u64::from(best)) as usize & 0xFFFF];
        inputs[RECALLED] = tables.stretch(self.asked[ats[0]].p());
        inputs[RECALLED + 1] = tables.stretch(self.asked[ats[1]].p());
        inputs[RECALLED + 2] = 256;
        let stretch = self.asking.mix(tables, &inputs, agree * 32 + (best_p >> 11) as usize);
        let hit =
            bits.code((u32::from(byte) | 0x100 == best).into(), tables.squash(stretch).clamp(16, 65535 - 16));
        self.asking.learn(&inputs, hit);
        ats.iter().for_each(|&at| self.asked[at].learn(tables, hit, 60));
        for context in used {
            let recalled = self.recalled[context];
            // Whether it was right is known if it was asked, or if it was the one.
            if recalled == best || recalled != 0 && hit != 0 {
                let right = u32::from(recalled == best) & hit;
                self.strengths[self.strength_at[context] + ASKED].learn(tables, right, 1000);
            }
            if recalled == best && hit == 0 {
                self.recalled[context] = 0;
            }
        }
        (hit != 0).then_some(best as u8)
    }

    /// Codes the bits of a byte.
    fn bits<B: Bits>(&mut self, bits: &mut B, byte: u8, place: &Place) -> u8 {
        let mut coded = 1_u32;
        for bit in (0..8).rev() {
            if bit == 7 || bit == 3 {
                self.find(place, if bit == 7 { 0 } else { coded });
            }
            let given = u32::from(byte) >> bit & 1;
            let bit = self.bit(bits, given, coded, bit, place);
            coded = coded << 1 | bit;
        }
        coded as u8
    }

    /// Finds the counters of the next nibble.
    fn find(&mut self, place: &Place, coded: u32) {
        let mask = self.buckets.len() - 1;
        for (slot, hashed) in self.slots.iter_mut().zip(&place.counted).take(self.effort.counted) {
            let hashed = hash(*hashed, u64::from(coded));
            let check = (hashed >> 48) as u16;
            let at = hashed as usize & mask;
            let other = at ^ 1;
            *slot = if self.buckets[at][0] == check {
                at
            } else if self.buckets[other][0] == check {
                other
            } else {
                // The one of less use makes room.
                let seen = |at: usize| self.buckets[at][1] & 15;
                let at = if seen(other) < seen(at) { other } else { at };
                self.buckets[at] = [SMALL_NEW; 16];
                self.buckets[at][0] = check;
                at
            };
        }
    }

    #[inline]
    fn bit<B: Bits>(&mut self, bits: &mut B, given: u32, coded: u32, bit: u32, place: &Place) -> u32 {
        let tables = self.tables;
        let Effort { counted, recalled, refined, .. } = self.effort;
        // Of the nibble's tree.
        let node =
            (if bit >= 4 { coded } else { 1 << (3 - bit) | coded & ((1 << (3 - bit)) - 1) }) as usize & 15;
        let mut inputs = 0;
        for context in 0..counted {
            let counter = self.buckets[self.slots[context]][node];
            let seen = usize::from(counter & 15);
            let stretch = if seen == 0 { 0 } else { tables.stretch(u32::from(counter)) };
            self.inputs[inputs] = stretch;
            inputs += 1;
            if refined {
                let at = context * 1024 + seen * 64 + ((stretch + 2048) >> 6) as usize;
                self.refined_at[context] = at;
                self.inputs[inputs] = if seen == 0 { 0 } else { tables.stretch(self.refined[at].p()) };
                inputs += 1;
            }
        }
        let left = bit + 1;
        let mut agree = 0;
        for context in (0..recalled).chain([MATCH, STEP]) {
            let byte = self.recalled[context];
            self.inputs[inputs] = if byte >> left == coded {
                let p = self.strengths[self.strength_at[context] + bit as usize].p();
                let stretch = tables.stretch(p);
                if byte >> bit & 1 != 0 {
                    agree += 1;
                    stretch
                } else {
                    agree -= 1;
                    -stretch
                }
            } else {
                0
            };
            inputs += 1;
        }
        self.inputs[inputs] = 256;
        inputs += 1;
        let given_inputs = &self.inputs[..inputs];
        let agreement = (agree + 9_i32).clamp(0, 19) as usize;
        let mut stretch = self.mixers[0].mix(tables, given_inputs, agreement * 256 + coded as usize);
        let mut mixed = [stretch, 0];
        if refined {
            mixed[1] = self.mixers[1].mix(tables, given_inputs, place.set());
            stretch = self.last.mix(tables, &mixed, coded as usize);
        }
        let mut p = tables.squash(stretch);
        if refined {
            let first = hash(place.key, u64::from(coded)) as usize & 0xFFFF;
            let second =
                hash(self.left & 0xFF | (place.class as u64) << 8, u64::from(coded)) as usize & 0xFFFF;
            let first = self.corrections[0].correct(stretch, first);
            let second = self.corrections[1].correct(stretch, second);
            p = (2 * p + first + second) / 4;
        }
        let bit_coded = bits.code(given, p.clamp(16, 65535 - 16));
        for context in 0..counted {
            if refined {
                self.refined[self.refined_at[context]].learn(tables, bit_coded, 255);
            }
            learn_small(&mut self.buckets[self.slots[context]][node], bit_coded);
        }
        for context in (0..recalled).chain([MATCH, STEP]) {
            let byte = self.recalled[context];
            if byte >> left == coded {
                let right = u32::from(byte >> bit & 1 == bit_coded);
                self.strengths[self.strength_at[context] + bit as usize].learn(tables, right, 1000);
            }
        }
        let given_inputs = &self.inputs[..inputs];
        self.mixers[0].learn(given_inputs, bit_coded);
        if refined {
            self.mixers[1].learn(given_inputs, bit_coded);
            self.last.learn(&mixed, bit_coded);
            self.corrections[0].learn(bit_coded);
            self.corrections[1].learn(bit_coded);
        }
        bit_coded
    }

    /// Learns a byte, and looks for a match if there is none.
    fn remember(&mut self, byte: u8) {
        for context in 0..self.effort.recalled {
            let entry = &mut self.recall[self.recall_at[context]];
            *entry = Recalled(*entry).learned(byte);
        }
        let mask = self.history.len() - 1;
        let matched = self.match_len > 0 && self.history[self.match_at & (self.history.len() - 1)] == byte;
        self.history[self.written & mask] = byte;
        self.written = self.written.wrapping_add(1);
        self.left = self.left << 8 | u64::from(byte);
        let hashed = hash(self.left & 0xFFFF_FFFF_FFFF, 0x77) as usize & (self.matches.len() - 1);
        if matched {
            self.match_len = (self.match_len + 1).min(65535);
            self.match_at = self.match_at.wrapping_add(1);
        } else {
            self.match_len = 0;
            let distance = (self.written as u32).wrapping_sub(self.matches[hashed]) as usize;
            if distance > 0 && distance <= mask && distance < self.written {
                let at = self.written - distance;
                let equal = (1..32)
                    .take_while(|back| {
                        self.history[at.wrapping_sub(*back) & mask]
                            == self.history[self.written.wrapping_sub(*back) & mask]
                    })
                    .count() as u32;
                if equal >= FEWEST_EQUAL {
                    (self.match_at, self.match_len) = (at, equal);
                }
            }
        }
        self.matches[hashed] = self.written as u32;
    }
}

impl Effort {
    /// Predictions of a bit.
    fn inputs(self) -> usize {
        self.counted * if self.refined { 2 } else { 1 } + self.recalled + 3
    }
}

impl Place {
    fn set(&self) -> usize {
        self.class * POSITIONS + self.position.min(POSITIONS - 1)
    }
}

/// A byte that came last in a context: check (16 bits), byte (8), misses (3) and how often it came in a row (5).
#[derive(Clone, Copy)]
struct Recalled(u32);

impl Recalled {
    fn byte(self) -> u32 {
        self.0 >> 8 & 0xFF
    }

    fn misses(self) -> u32 {
        self.0 >> 5 & 7
    }

    fn run(self) -> u32 {
        self.0 & 31
    }

    /// What tells how often it is right.
    fn judged(self) -> usize {
        let run = match self.run() {
            run @ 0..=3 => run,
            4..=6 => 4,
            7..=12 => 5,
            13..=30 => 6,
            _ => 7,
        };
        (run << 3 | self.misses()) as usize * 16
    }

    fn learned(self, byte: u8) -> u32 {
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

/// Strengths of a context: 64 forms of what is recalled, each for 8 bits and for being asked.
const STRENGTHS: usize = 64 * 16;
const ASKED: usize = 8;

/// What is recalled is mostly right.
fn strength_start(_: usize) -> Counter {
    Counter(3 << 30)
}

/// Positions of rows that have weights of their own.
const POSITIONS: usize = 64;
/// Room for classes.
const CLASS_SETS: usize = 32;

/// A counter of 16 bits: the probability in the upper 12, what it has seen in the lower 4.
const SMALL_NEW: u16 = 1 << 15;

#[inline]
fn learn_small(counter: &mut u16, bit: u32) {
    /// Of an error, in 1/65536, by what has been seen.
    const RATE: [i32; 16] = [
        43690, 26214, 18724, 14563, 11915, 10082, 8738, 7710, 6898, 6241, 5698, 5242, 4854, 4519, 4228, 3971,
    ];
    let (p, seen) = (i32::from(*counter >> 4), *counter & 15);
    let target = if bit != 0 { 4095 } else { 0 };
    let p = p + (((target - p) * RATE[usize::from(seen)] + 0x8000) >> 16);
    *counter = (p as u16) << 4 | (seen + 1).min(15);
}

/// How long a match is, roughly.
fn match_step(len: u32) -> usize {
    match len {
        0..=31 => len as usize,
        _ => (27 + len.ilog2() as usize).min(63),
    }
}

/// What a counter of that kind would say by itself.
fn refined_start(tables: &Tables, at: usize) -> Counter {
    let stretch = at as i32 * 64 - 2048 + 32;
    Counter(tables.squash(stretch) << 16 | 20)
}

#[inline]
fn hash(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ mixed >> 32
}
