//! Columns bit by bit, each bit predicted by what was seen in several contexts: the smallest form, and the slowest.
//!
//! Each context (the bytes to the left, those above in the rows before, both, the column's as a whole...) has counters of
//! its own, found by hash; a mixer learns whom to believe. Encoding and decoding are the same function, see
//! [`Bits`], and all that was learned is kept for the columns that follow.

use super::logistic::{Correction, Counter, Mixer, TABLES, Tables};
use super::range::Bits;
use crate::columns::Form;

/// How much is spent on a bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Contexts, the first ones of each form's list.
    contexts: usize,
    /// Counters are 16 times 2 to the power of this.
    bucket_bits: u32,
    /// Whether what a counter says is judged by what came of it in others, and mixtures are mixed again.
    refined: bool,
}

/// The efforts there are, by the number in the compressed form.
pub const EFFORTS: [Effort; 3] = [
    Effort { contexts: 5, bucket_bits: 18, refined: false },
    Effort { contexts: 10, bucket_bits: 19, refined: true },
    Effort { contexts: MOST_CONTEXTS, bucket_bits: 20, refined: true },
];

const MOST_CONTEXTS: usize = 16;
/// Predictions: two for each context, those of the match, and a constant.
const MOST_INPUTS: usize = 2 * MOST_CONTEXTS + 3;

/// Bytes in which matches are looked for.
const HISTORY_BITS: u32 = 22;
const MATCH_BITS: u32 = 18;
/// Bytes that must be equal for a match.
const FEWEST_EQUAL: u32 = 6;

/// Below this many rows, bytes that never change are not told apart.
const FEWEST_ROWS: usize = 8;

/// What has been learned.
pub struct Modelled {
    tables: &'static Tables,
    effort: Effort,
    /// Each of 15 counters of a nibble in a context, after a check that it is this context.
    buckets: Vec<[u32; 16]>,
    hashes: [u64; MOST_CONTEXTS],
    slots: [usize; MOST_CONTEXTS],
    /// What came of counters, by what they said: 512 for each context.
    refined: Vec<Counter>,
    refined_at: [usize; MOST_CONTEXTS],
    inputs: [i32; MOST_INPUTS],
    mixers: [Mixer; 3],
    last: Mixer,
    corrections: [Correction; 2],
    /// Whether a position of rows never changes, by what it was before.
    still: Vec<Counter>,
    history: Vec<u8>,
    /// Bytes written to the history.
    written: usize,
    matches: Vec<u32>,
    /// Where the match goes on, and how long it is; 0 if there is none.
    match_at: usize,
    match_len: u32,
    match_strength: Vec<Counter>,
    /// The last bytes, the latest lowest.
    left: u64,
}

/// Where a byte is, as far as mixing goes.
#[derive(Clone, Copy)]
struct Place {
    class: usize,
    position: usize,
    /// Told apart in corrections.
    key: u64,
}

impl Modelled {
    /// Nothing learned yet.
    pub fn new(effort: Effort) -> Modelled {
        let tables = &*TABLES;
        let inputs = effort.inputs();
        let weight = if effort.refined { 1 << 14 } else { 1 << 14 };
        let mixer = |sets| Mixer::new(inputs, sets, weight, 24);
        Modelled {
            tables,
            effort,
            buckets: vec![[Counter::NEW.0; 16]; 1 << effort.bucket_bits],
            hashes: [0; MOST_CONTEXTS],
            slots: [0; MOST_CONTEXTS],
            refined: (0..512 * MOST_CONTEXTS).map(|at| refined_start(tables, at % 512)).collect(),
            refined_at: [0; MOST_CONTEXTS],
            inputs: [0; MOST_INPUTS],
            mixers: [mixer(SETS_PLACE), mixer(SETS_MATCH), mixer(SETS_BITS)],
            last: Mixer::new(3, 256, (1 << 16) / 3, 2),
            corrections: [Correction::new(tables, 1 << 16), Correction::new(tables, 1 << 16)],
            still: vec![Counter::NEW; 1 << 12],
            history: vec![0; 1 << HISTORY_BITS],
            written: 0,
            matches: vec![0; 1 << MATCH_BITS],
            match_at: 0,
            match_len: 0,
            match_strength: vec![Counter::NEW; 64],
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
            Form::Rows(width) if bytes.len().is_multiple_of(usize::from(width)) => {
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
            let contexts = [
                hash(column, up << 8 | l1),
                hash(column, 1 << 32 | l2),
                hash(column, 2 << 32 | up << 8 | up2),
                hash(prefix, 3 << 32 | position as u64),
                hash(class_place, 4 << 32 | up << 8 | l1),
                hash(column, 5 << 32 | up << 16 | changes & 0xFFFF),
                hash(0, 6 << 60 | left & 0xFFFF_FFFF),
                hash(column, 7 << 32),
                hash(column, 8 << 32 | straight << 8 | changes & 0xFF),
                hash(column, 9 << 32 | left & 0xFF_FFFF),
                hash(column, 10 << 32 | up << 16 | up2 << 8 | up3),
                hash(class_place, 11 << 32 | l2),
                hash(class_key, 12 << 32 | left & 0xFF_FFFF),
                hash(column, 13 << 32 | up << 16 | next << 8 | up2),
                hash(0, 14 << 60 | left & 0xFFFF_FFFF_FFFF),
                hash(column, 15 << 32 | up << 16 | up2 << 8 | l1),
            ];
            self.hashes = contexts;
            let place = Place { class, position, key: column };
            let byte = self.byte(bits, bytes[at], place);
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
            self.hashes = [
                hash(column, left & 0xFF),
                hash(column, 1 << 32 | left & 0xFFFF),
                hash(column, 2 << 32 | left & 0xFF_FFFF),
                hash(column, 3 << 32),
                hash(class_place, 4 << 32 | left & 0xFFFF),
                hash(column, 5 << 60 | left & 0xFFFF_FFFF),
                hash(column, 6 << 60 | left & 0xFFFF_FFFF_FFFF),
                hash(class_place, 7 << 60 | left & 0xFFFF_FFFF),
                hash(column, 8 << 32 | left & 0xFF00),
                hash(column, 9 << 32 | left & 0xFF_FF00),
                hash(column, 10 << 32 | left & 0xFF_0000),
                hash(class_place, 11 << 32 | left & 0xFF),
                hash(column, 12 << 60 | left & 0xFFFF_FF00),
                hash(column, 13 << 60 | left & 0xFF00_FFFF),
                hash(class_place, 14 << 32),
                hash(hash(column, 15 << 60), left),
            ];
            let place = Place { class, position: within as usize, key: column };
            *byte = self.byte(bits, *byte, place);
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
            self.hashes = [
                hash(class_key, masked(0xFFFF)),
                hash(class_key, 1 << 32 | masked(0xFF_FFFF)),
                hash(0, 2 << 60 | masked(0xFFFF_FFFF)),
                hash(0, 3 << 60 | masked(0xFFFF_FFFF_FFFF)),
                hash(column_key, 4 << 32 | masked(0xFF)),
                hash(hash(class_key, word), 5 << 32 | masked(0xFF)),
                hash(0, 6 << 60 | masked(0xFF_FFFF_FFFF)),
                hash(class_key, 7 << 32 | masked(0xFF_FF00)),
                hash(class_key, 8 << 32 | masked(0xFFFF_0000)),
                hash(column_key, 9 << 32 | masked(0xFFFF)),
                hash(hash(word_before, word), 10 << 32),
                hash(class_key, 11 << 60 | masked(0xFF00_0000_00FF)),
                hash(class_key, 12 << 60 | masked(0xFF00_FFFF)),
                hash(hash(class_key, 13 << 60 | (at & 3) as u64), left >> 24 & 0xFF | left >> 48 & 0xFF00),
                hash(class_key, 14 << 60 | masked(0xFFFF_FF00)),
                hash(class_key, 15 << 32),
            ];
            let place = Place { class, position: (left >> 5 & 7) as usize, key: column_key };
            *byte = self.byte(bits, *byte, place);
            if byte.is_ascii_alphanumeric() || *byte >= 0x80 {
                word = hash(word, u64::from(*byte));
            } else if word != 0 {
                (word_before, word) = (word, 0);
            }
        }
    }

    /// Codes a byte in the contexts that are set.
    fn byte<B: Bits>(&mut self, bits: &mut B, byte: u8, place: Place) -> u8 {
        let expected = (self.match_len > 0).then(|| self.history[self.match_at & ((1 << HISTORY_BITS) - 1)]);
        let mut expected = expected.map(|byte| u32::from(byte) | 0x100);
        let mut coded = 1_u32;
        for bit in (0..8).rev() {
            if bit == 7 || bit == 3 {
                self.find(if bit == 7 { 0 } else { coded });
            }
            let given = u32::from(byte) >> bit & 1;
            let bit = self.bit(bits, given, coded, bit, expected, place);
            coded = coded << 1 | bit;
            let left = 8 - (32 - coded.leading_zeros() - 1);
            expected = expected.filter(|expected| expected >> left == coded);
        }
        let byte = coded as u8;
        self.remember(byte, expected.is_some());
        byte
    }

    /// Finds the counters of the next nibble.
    fn find(&mut self, coded: u32) {
        let mask = self.buckets.len() - 1;
        for (slot, hashed) in self.slots.iter_mut().zip(&self.hashes).take(self.effort.contexts) {
            let hashed = hash(*hashed, u64::from(coded));
            let check = (hashed >> 40) as u32;
            let at = hashed as usize & mask;
            let other = at ^ 1;
            *slot = if self.buckets[at][0] == check {
                at
            } else if self.buckets[other][0] == check {
                other
            } else {
                // The one of less use makes room.
                let seen = |at: usize| Counter(self.buckets[at][1]).seen();
                let at = if seen(other) < seen(at) { other } else { at };
                self.buckets[at] = [Counter::NEW.0; 16];
                self.buckets[at][0] = check;
                at
            };
        }
    }

    #[inline]
    fn bit<B: Bits>(
        &mut self,
        bits: &mut B,
        given: u32,
        coded: u32,
        bit: u32,
        expected: Option<u32>,
        place: Place,
    ) -> u32 {
        let tables = self.tables;
        let Effort { contexts, refined, .. } = self.effort;
        // Of the nibble's tree.
        let node =
            (if bit >= 4 { coded } else { 1 << (3 - bit) | coded & ((1 << (3 - bit)) - 1) }) as usize & 15;
        let mut inputs = 0;
        for context in 0..contexts {
            let counter = Counter(self.buckets[self.slots[context]][node]);
            let stretch = if counter.seen() == 0 { 0 } else { tables.stretch(counter.p()) };
            self.inputs[inputs] = stretch;
            inputs += 1;
            if refined {
                let at = context * 512 + seen_step(counter.seen()) * 64 + ((stretch + 2048) >> 6) as usize;
                self.refined_at[context] = at;
                let judged = self.refined[at];
                self.inputs[inputs] = if counter.seen() == 0 { 0 } else { tables.stretch(judged.p()) };
                inputs += 1;
            }
        }
        let mut strength = None;
        if let Some(expected) = expected {
            let bit = expected >> bit & 1;
            let at = match_step(self.match_len) * 2 + usize::from(coded == 1);
            strength = Some((at, bit));
            let stretch = tables.stretch(self.match_strength[at].p());
            self.inputs[inputs] = if bit != 0 { stretch } else { -stretch };
        } else {
            self.inputs[inputs] = 0;
        }
        self.inputs[inputs + 1] = 256;
        inputs += 2;
        let given_inputs = &self.inputs[..inputs];
        let match_set = strength.map_or(0, |(at, bit)| 1 + (at / 2) * 2 + bit as usize);
        let sets = [
            place.class * POSITIONS + place.position.min(POSITIONS - 1),
            match_set * CLASS_SETS + place.class,
            coded as usize,
        ];
        let mut stretch = self.mixers[0].mix(tables, given_inputs, sets[0]);
        let mut mixed = [stretch, 0, 0];
        if refined {
            mixed[1] = self.mixers[1].mix(tables, given_inputs, sets[1]);
            mixed[2] = self.mixers[2].mix(tables, given_inputs, sets[2]);
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
        let bit = bits.code(given, p.clamp(16, 65535 - 16));
        for context in 0..contexts {
            let slot = &mut self.buckets[self.slots[context]][node];
            if refined {
                self.refined[self.refined_at[context]].learn(tables, bit, 255);
            }
            let mut counter = Counter(*slot);
            counter.learn(tables, bit, LIMIT);
            *slot = counter.0;
        }
        if let Some((at, expected)) = strength {
            self.match_strength[at].learn(tables, (expected == bit).into(), 1000);
        }
        let given_inputs = &self.inputs[..inputs];
        self.mixers[0].learn(given_inputs, bit);
        if refined {
            self.mixers[1].learn(given_inputs, bit);
            self.mixers[2].learn(given_inputs, bit);
            self.last.learn(&mixed, bit);
            self.corrections[0].learn(bit);
            self.corrections[1].learn(bit);
        }
        bit
    }

    /// Puts a byte into the history, and looks for a match if there is none.
    fn remember(&mut self, byte: u8, matched: bool) {
        let mask = (1 << HISTORY_BITS) - 1;
        self.history[self.written & mask] = byte;
        self.written += 1;
        self.left = self.left << 8 | u64::from(byte);
        let hashed = hash(self.left & 0xFFFF_FFFF_FFFF, 0x77) as usize & ((1 << MATCH_BITS) - 1);
        if self.match_len > 0 && matched {
            self.match_len = (self.match_len + 1).min(65535);
            self.match_at += 1;
        } else {
            self.match_len = 0;
            let at = self.matches[hashed] as usize;
            if at > 0 && self.written - at < mask {
                let equal = (1..32)
                    .take_while(|back| {
                        at >= *back
                            && self.history[(at - back) & mask] == self.history[(self.written - back) & mask]
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
        self.contexts * if self.refined { 2 } else { 1 } + 2
    }
}

/// Bits seen that count.
const LIMIT: u32 = 127;

/// Positions of rows that have weights of their own.
const POSITIONS: usize = 64;
/// Room for classes.
const CLASS_SETS: usize = 32;
const SETS_PLACE: usize = CLASS_SETS * POSITIONS;
const SETS_MATCH: usize = CLASS_SETS * 44;
const SETS_BITS: usize = 256;

/// How much a counter has seen, roughly.
fn seen_step(seen: u32) -> usize {
    match seen {
        0..=4 => seen as usize,
        5..=9 => 5,
        10..=30 => 6,
        _ => 7,
    }
}

/// How long a match is, roughly.
fn match_step(len: u32) -> usize {
    match len {
        0..=15 => len as usize,
        _ => (11 + len.ilog2() as usize).min(20),
    }
}

/// What a counter of that kind would say by itself.
fn refined_start(tables: &Tables, at: usize) -> Counter {
    let stretch = (at % 64) as i32 * 64 - 2048 + 32;
    Counter(tables.squash(stretch) << 16 | 20)
}

#[inline]
fn hash(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ mixed >> 32
}
