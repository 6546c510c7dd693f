//! Columns bit by bit, each bit predicted by what was seen in several contexts: the smallest form, and the slowest.
//!
//! Each context (the bytes to the left, those above in the rows before, both, the column's as a whole...) has counters of
//! its own, found by hash; a mixer learns whom to believe. Encoding and decoding are the same function, see
//! [`Bits`], and all that was learned is kept for the columns that follow.

use super::logistic::{Correction, Counter, Mixer, TABLES, Tables, WEIGHT};
use super::nibbles::{self, Cell, Shares};
use super::prefetch::prefetch;
use super::range::Bits;
use super::rows::{self, Mode};
use crate::columns::Form;

/// What has been learned, with one of the efforts.
pub enum Modelled {
    /// A few contexts, in little memory.
    Fast(Box<Model<3, 5, 8, 8>>),
    /// Between.
    Medium(Box<Model<4, 8, 16, 16>>),
    /// All contexts there are.
    Thorough(Box<Model<7, 12, 16, 32>>),
}

impl Modelled {
    /// Nothing learned yet, with an effort by its number in the compressed form; nothing if there is no such one.
    pub fn new(effort: u8) -> Option<Modelled> {
        Some(match effort {
            0 => Modelled::Fast(Box::new(Model::new(Sizes {
                counted: 17,
                recalled: 19,
                history: 23,
                matches: 19,
            }))),
            1 => Modelled::Medium(Box::new(Model::new(Sizes {
                counted: 19,
                recalled: 21,
                history: 23,
                matches: 19,
            }))),
            2 => Modelled::Thorough(Box::new(Model::new(Sizes {
                counted: 20,
                recalled: 22,
                history: 24,
                matches: 22,
            }))),
            _ => return None,
        })
    }

    /// What it was made with.
    pub fn effort(&self) -> u8 {
        match self {
            Modelled::Fast(_) => 0,
            Modelled::Medium(_) => 1,
            Modelled::Thorough(_) => 2,
        }
    }

    /// Codes a column: encoding reads `bytes`, decoding writes them.
    pub fn column<B: Bits>(&mut self, bits: &mut B, class: usize, number: u32, form: Form, bytes: &mut [u8]) {
        match self {
            Modelled::Fast(model) => model.column(bits, class, number, form, bytes),
            Modelled::Medium(model) => model.column(bits, class, number, form, bytes),
            Modelled::Thorough(model) => model.column(bits, class, number, form, bytes),
        }
    }
}

/// Room for what is learned, as powers of 2.
struct Sizes {
    /// Nibbles of contexts with counters.
    counted: u32,
    /// Contexts that remember.
    recalled: u32,
    /// Bytes in which matches are looked for.
    history: u32,
    /// Places where matches may be.
    matches: u32,
}

/// Bytes that must be equal for a match.
const MIN_EQUAL: u32 = 6;

/// Rows wider than this are text, unless it is said that they are rows.
const WIDEST_ROW: usize = 256;

/// A model with `C` contexts that have counters for each bit, and `K` *candidates*: the bytes that came last in the first
/// `K` - 2 contexts of another list, the one the match goes on with, and the one that the step of the rows above leads to.
/// `A` has room for what is mixed when it is asked if the byte is the likeliest candidate, `N` for what is mixed for a bit.
pub struct Model<const C: usize, const K: usize, const A: usize, const N: usize> {
    tables: &'static Tables,
    /// Of a nibble in a context, what its bits or its values were.
    buckets: Vec<Pair>,
    /// Of this nibble: which pair, and which of the two.
    slots: [(usize, usize); C],
    /// What came of counters, by what they said: 1024 for each context.
    refined: Vec<Counter>,
    refined_at: [usize; C],
    /// Bytes that came last, see [`Recalled`].
    recall: Vec<Line>,
    recall_at: [(usize, usize); K],
    /// The candidates for this byte: 0 for none, otherwise 0x100 and the byte.
    candidates: [u32; K],
    /// Where their strength is, without that of the bit.
    strength_at: [usize; K],
    strengths: Vec<Counter>,
    /// For each position, whether it was the step's byte the last six times.
    steps: Vec<u8>,
    mixers: [Mixer<N>; 2],
    /// How much contexts count whose cells tell of a nibble, by class, half and how much they have seen.
    shares: Vec<Shares<C>>,
    corrections: [Correction; 2],
    /// For the question if it is the likeliest candidate.
    asking: Mixer<A>,
    asked: Vec<Counter>,
    /// What columns and their positions are like, by what they were before.
    flags: Vec<Counter>,
    /// Counters of positions that have nothing but them.
    direct: Vec<[Counter; 256]>,
    history: Vec<u8>,
    /// Bytes written to the history.
    written: usize,
    matches: Vec<Line>,
    /// Where the match goes on, and how long it is; 0 if there is none.
    match_at: usize,
    match_len: u32,
    /// Where the next entry of `matches` is, but for its last byte.
    match_line: usize,
    /// The last bytes, the latest lowest.
    left: u64,
}

/// What is in the processor's cache, or is not, as one.
#[derive(Clone)]
#[repr(align(64))]
struct Line([u32; 16]);

/// What two contexts know of a nibble, each after a check that it is this context: 15 counters of bits, or a [`Cell`].
#[derive(Clone)]
#[repr(align(64))]
struct Pair([Cell; 2]);

/// Where a byte is.
struct Place<const C: usize, const K: usize> {
    class: usize,
    position: usize,
    /// Told apart in corrections.
    key: u64,
    /// What it is if the rows above go on with the step they took; as a candidate.
    step: u32,
    counted: [u64; C],
    /// Contexts that remember, without the byte before, so that they can be asked for while that is coded.
    early: [u64; K],
    /// The byte before, where it belongs to the context.
    late: [u64; K],
}

impl<const C: usize, const K: usize, const A: usize, const N: usize> Model<C, K, A, N> {
    const MATCH: usize = K - 2;
    const STEP: usize = K - 1;
    /// Whether a byte that is no candidate is told by its nibbles, in two steps, or by its bits, in eight.
    const BY_NIBBLES: bool = N <= 8;
    /// Weights at first: the more there is to mix, the less.
    const STARTING: i16 = WEIGHT / N as i16 * 4;
    const STARTING_ASKED: i16 = WEIGHT * 2 / (K + 3) as i16;
    /// Where what is known of a nibble says how much it has seen, and what it is at first.
    const SEEN: usize = if Self::BY_NIBBLES { 0 } else { 1 };
    const UNSEEN: Cell = if Self::BY_NIBBLES { nibbles::NEW } else { [SMALL_NEW; 16] };

    /// Nothing learned yet.
    fn new(sizes: Sizes) -> Model<C, K, A, N> {
        let tables = &*TABLES;
        let by_bits = usize::from(!Self::BY_NIBBLES);
        Model {
            tables,
            buckets: vec![Pair([Self::UNSEEN; 2]); 1 << (sizes.counted - 1)],
            slots: [(0, 0); C],
            refined: (0..1024 * C).map(|at| refined_start(tables, at % 64)).collect(),
            refined_at: [0; C],
            recall: vec![Line([0; 16]); 1 << (sizes.recalled - 4)],
            recall_at: [(0, 0); K],
            candidates: [0; K],
            strength_at: [0; K],
            strengths: vec![Counter(3 << 30); K * STRENGTHS],
            steps: vec![0; 1 << 14],
            mixers: [
                Mixer::new(256 * AGREEMENTS * by_bits, Self::STARTING, 24),
                Mixer::new(CLASS_SETS * POSITIONS * by_bits, Self::STARTING, 24),
            ],
            shares: if Self::BY_NIBBLES {
                vec![Shares::new(); (CLASS_SETS * 2) << (2 * C)]
            } else {
                Vec::new()
            },
            corrections: [Correction::new(tables, by_bits << 16), Correction::new(tables, by_bits << 16)],
            asking: Mixer::new((K + 1) * 32, Self::STARTING_ASKED, 24),
            asked: vec![Counter::NEW; 1 << 16],
            flags: vec![Counter::NEW; 1 << 14],
            direct: vec![[Counter::NEW; 256]; 1 << 10],
            history: vec![0; 1 << sizes.history],
            written: 0,
            matches: vec![Line([0; 16]); 1 << (sizes.matches - 4)],
            match_at: 0,
            match_len: 0,
            match_line: 0,
            left: 0,
        }
    }

    fn column<B: Bits>(&mut self, bits: &mut B, class: usize, number: u32, form: Form, bytes: &mut [u8]) {
        let class = class % CLASS_SETS;
        let class_key = hash(class as u64 + 1, 0x51);
        let column_key = hash(class_key, u64::from(number) + 1);
        self.left = 0;
        self.match_len = 0;
        match form {
            Form::Rows(width) if self.in_rows(bits, column_key, usize::from(width), bytes) => {
                self.rows(bits, class, class_key, column_key, usize::from(width), bytes);
            }
            Form::Symbols => self.symbols(bits, class, class_key, column_key, bytes),
            _ => self.text(bits, class, class_key, column_key, bytes),
        }
    }

    /// Whether rows are modelled as such: so wide ones mostly have no form, and are text.
    fn in_rows<B: Bits>(&mut self, bits: &mut B, column_key: u64, width: usize, bytes: &[u8]) -> bool {
        if !bytes.len().is_multiple_of(width) || width > WIDEST_ROW && bytes.len() / width < rows::FEWEST {
            return false;
        }
        if width <= WIDEST_ROW {
            return true;
        }
        let given = bits.choices(1, || vec![rows::have_form(bytes, width).into()])[0];
        self.flag(bits, hash(column_key, 0x52), u32::from(given) & 1) != 0
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
        let mut modes = vec![Mode::PLAIN; width];
        if bytes.len() / width >= rows::FEWEST {
            let chosen =
                bits.choices(width, || rows::choose(bytes, width).iter().map(|mode| mode.0).collect());
            for (position, (mode, given)) in modes.iter_mut().zip(chosen).enumerate() {
                *mode = self.mode(bits, hash(column_key, position as u64), Mode(given & 15));
            }
        }
        if B::ENCODES {
            rows::to_differences(bytes, &modes);
        }
        let moving: Vec<usize> = (0..width).filter(|&position| !modes[position].is_still()).collect();
        let all: Vec<usize> = (0..width).collect();
        for start in (0..bytes.len()).step_by(width) {
            if start > 0 {
                (0..width)
                    .filter(|&position| modes[position].is_still())
                    .for_each(|position| bytes[start + position] = bytes[start + position - width]);
            }
            let positions = if start == 0 { &all } else { &moving };
            self.row(bits, class, class_key, column_key, width, positions, &modes, bytes, start);
        }
        rows::from_differences(bytes, &modes);
    }

    /// How a position of rows is coded.
    fn mode<B: Bits>(&mut self, bits: &mut B, key: u64, given: Mode) -> Mode {
        let mut coded = 1;
        for bit in (0..Mode::BITS).rev() {
            let bit = self.flag(bits, hash(key, coded), u32::from(given.0) >> bit & 1);
            coded = coded << 1 | u64::from(bit);
        }
        Mode(coded as u8 & ((1 << Mode::BITS) - 1))
    }

    /// What is said once for a column or one of its positions.
    fn flag<B: Bits>(&mut self, bits: &mut B, key: u64, given: u32) -> u32 {
        let at = key as usize & (self.flags.len() - 1);
        let counter = &mut self.flags[at];
        let bit = bits.code(given, counter.p().clamp(32, 65535 - 32));
        counter.learn(self.tables, bit, 30);
        bit
    }

    #[allow(clippy::too_many_arguments)]
    fn row<B: Bits>(
        &mut self,
        bits: &mut B,
        class: usize,
        class_key: u64,
        column_key: u64,
        width: usize,
        positions: &[usize],
        modes: &[Mode],
        bytes: &mut [u8],
        start: usize,
    ) {
        let mut changes = 0_u64;
        // All that is to the left in the row and not noise: but for the last byte, and that.
        let (mut prefix, mut last) = (column_key, None);
        for (index, &position) in positions.iter().enumerate() {
            let at = start + position;
            let column = hash(column_key, position as u64);
            if modes[position].is_direct() {
                bytes[at] = self.direct(bits, bytes[at], column);
                self.left = self.left << 8 | u64::from(bytes[at]);
                changes <<= 8;
                continue;
            }
            let above = |at: usize, rows: usize| match at.checked_sub(rows * width) {
                Some(at) => u64::from(bytes[at]),
                None => 0,
            };
            let (up, up2) = (above(at, 1), above(at, 2));
            let left = self.left;
            let l1 = left & 0xFF;
            let class_place = hash(class_key, position as u64);
            let straight = (2 * up).wrapping_sub(up2) & 0xFF;
            let counted = |context: usize| match context {
                0 => hash(column, up),
                1 => hash(column, 1 << 32 | l1),
                2 => hash(class_key, 2 << 32 | left & 0xFFFF),
                3 => hash(column, 3 << 32),
                4 => hash(column, 4 << 32 | up << 8 | changes & 0xFF),
                5 => hash(class_key, 5 << 32 | left & 0xFF_FFFF),
                _ => hash(class_place, 6 << 32 | up),
            };
            // Of a position, when so much is to the left of it but for one byte.
            let early = |position: usize, prefix: u64, left: u64, changes: u64| -> [u64; K] {
                let at = start + position;
                let (up, up2, up3) = (above(at, 1), above(at, 2), above(at, 3));
                let next =
                    if position + 1 < width && start > 0 { u64::from(bytes[at + 1 - width]) } else { 0 };
                let straight = (2 * up).wrapping_sub(up2) & 0xFF;
                let column = hash(column_key, position as u64);
                std::array::from_fn(|context| match context {
                    0 => hash(prefix, position as u64),
                    1 => hash(column, 11 << 32 | up),
                    2 => hash(column, 12 << 32 | up << 8 | up2),
                    3 => hash(class_key, 13 << 60 | left & 0xFF_FFFF),
                    4 => hash(column, 14 << 32 | left & 0xFF),
                    5 => hash(hash(class_key, position as u64), 15 << 32 | up << 8 | left & 0xFF),
                    6 => hash(column, 16 << 32 | straight << 16 | changes & 0xFF),
                    7 => hash(column, 17 << 32 | up << 16 | up2 << 8 | up3),
                    8 => hash(class_key, 18 << 52 | left & 0xFF_FFFF_FFFF),
                    _ => hash(column, 19 << 32 | up << 8 | next),
                })
            };
            let last_change = changes & 0xFF;
            let place = Place {
                class,
                position,
                key: column,
                step: if start >= 2 * width { 0x100 | straight as u32 } else { 0 },
                counted: std::array::from_fn(counted),
                early: early(position, prefix, left >> 8, changes >> 8),
                late: std::array::from_fn(|context| match context {
                    0 => last.unwrap_or(0),
                    2 | 7 => 0,
                    6 => last_change,
                    _ => l1,
                }),
            };
            self.bring_counters(&place.counted);
            if let Some(last) = last {
                prefix = hash(prefix, last);
            }
            if let Some(&next) = positions[index + 1..].iter().find(|&&next| !modes[next].is_direct()) {
                self.bring_recalled(&early(next, prefix, left, changes));
            }
            let byte = self.byte(bits, bytes[at], &place);
            bytes[at] = byte;
            last = Some(u64::from(byte));
            changes = changes << 8 | u64::from(byte.wrapping_sub(up as u8));
        }
    }

    /// Codes a byte that nothing else tells of.
    fn direct<B: Bits>(&mut self, bits: &mut B, byte: u8, key: u64) -> u8 {
        let at = key as usize & (self.direct.len() - 1);
        let counters = &mut self.direct[at];
        let mut coded = 1_usize;
        for bit in (0..8).rev() {
            let counter = &mut counters[coded & 0xFF];
            let bit = bits.code(u32::from(byte) >> bit & 1, counter.p().clamp(16, 65535 - 16));
            counter.learn(self.tables, bit, 1000);
            coded = coded << 1 | bit as usize;
        }
        coded as u8
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
        let early = |within: u64, left: u64| -> [u64; K] {
            let column = hash(column_key, within);
            let class_place = hash(class_key, within);
            std::array::from_fn(|context| match context {
                0 => hash(column, 11 << 32 | left & 0xFF),
                1 => hash(column, 12 << 32 | left & 0xFFFF),
                2 => hash(column, 13 << 60 | left & 0xFF_FFFF),
                3 => hash(class_place, 14 << 60 | left & 0xFF_FFFF),
                4 => hash(column, 15 << 52 | left & 0xFF_FFFF_FFFF),
                5 => hash(column, 16 << 32),
                6 => hash(column, 17 << 32 | left & 0xFFFF),
                7 => hash(column, 18 << 32 | left & 0xFF00),
                8 => hash(hash(column, 19), left),
                _ => hash(column, 20 << 32 | left & 0xFF_FFFF),
            })
        };
        let mut lines = early(0, 0);
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
                counted: std::array::from_fn(|context| match context {
                    0 => hash(column, masked(0xFF)),
                    1 => hash(column, 1 << 32),
                    2 => hash(column, 2 << 32 | masked(0xFFFF)),
                    3 => hash(class_place, 3 << 32 | masked(0xFF)),
                    4 => hash(column, 4 << 32 | masked(0xFF00)),
                    5 => hash(column, 5 << 32 | masked(0xFF_FFFF)),
                    _ => hash(class_place, 6 << 32 | masked(0xFFFF)),
                }),
                early: lines,
                late: std::array::from_fn(|context| match context {
                    6 | 7 | 9 => masked(0x80),
                    _ => masked(0xFF),
                }),
            };
            self.bring_counters(&place.counted);
            lines = early(within, left);
            self.bring_recalled(&lines);
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
        let early = |word: u64, word_before: u64, left: u64, at: usize| -> [u64; K] {
            std::array::from_fn(|context| match context {
                0 => hash(class_key, 11 << 60 | left & 0xFF_FFFF),
                1 => hash(class_key, 12 << 52 | left & 0xFF_FFFF_FFFF),
                2 => hash(class_key, 13 << 32 | left & 0xFFFF),
                3 => hash(hash(word_before, word), 14 << 32),
                4 => hash(class_key, 15 << 60 | left & 0xFFFF_FFFF),
                5 => hash(column_key, 16 << 32 | left & 0xFF),
                6 => hash(class_key, 17 << 52 | left & 0xFF_00FF),
                7 => hash(class_key, 18 << 52 | left & 0xFF_FFFF),
                8 => hash(hash(class_key, (at & 3) as u64), left >> 16 & 0xFF | left >> 40 & 0xFF00),
                _ => hash(hash(class_key, 20), left),
            })
        };
        let mut lines = early(0, 0, 0, 0);
        for (at, byte) in bytes.iter_mut().enumerate() {
            let left = self.left;
            let masked = |mask: u64| left & mask;
            let place = Place {
                class,
                position: (left >> 5 & 7) as usize,
                key: column_key,
                step: 0,
                counted: std::array::from_fn(|context| match context {
                    0 => hash(class_key, 1 << 32 | masked(0xFF)),
                    1 => hash(class_key, 2 << 32 | masked(0xFFFF)),
                    2 => hash(class_key, 3 << 32 | masked(0xFF_FFFF)),
                    3 => hash(class_key, 4 << 32),
                    4 => hash(hash(class_key, word), 5 << 32 | masked(0xFF)),
                    5 => hash(class_key, 6 << 32 | masked(0xFF00)),
                    _ => hash(class_key, 7 << 60 | masked(0xFFFF_FFFF)),
                }),
                early: lines,
                late: std::array::from_fn(|context| match context {
                    7 | 8 => 0,
                    _ => masked(0xFF),
                }),
            };
            self.bring_counters(&place.counted);
            lines = early(word, word_before, left, at + 1);
            self.bring_recalled(&lines);
            *byte = self.byte(bits, *byte, &place);
            if byte.is_ascii_alphanumeric() || *byte >= 0x80 {
                word = hash(word, u64::from(*byte));
            } else if word != 0 {
                (word_before, word) = (word, 0);
            }
        }
    }

    /// Codes a byte.
    #[inline(always)]
    fn byte<B: Bits>(&mut self, bits: &mut B, byte: u8, place: &Place<C, K>) -> u8 {
        self.recall(place);
        // If the byte is the likeliest candidate, no bits are needed.
        let byte = match self.ask(bits, byte, place) {
            Some(byte) => byte,
            None if Self::BY_NIBBLES => self.nibbles(bits, byte, place),
            None => self.bits(bits, byte, place),
        };
        if place.step != 0 {
            let at = place.key as usize & (self.steps.len() - 1);
            self.steps[at] = self.steps[at] << 1 & 63 | u8::from(place.step == 0x100 | u32::from(byte));
        }
        self.remember(byte);
        byte
    }

    /// Finds the candidates.
    #[inline]
    fn recall(&mut self, place: &Place<C, K>) {
        for context in 0..K - 2 {
            let hashed = hash(place.early[context], place.late[context]);
            let check = (hashed >> 48) as u32;
            let (line, at) = (self.recall_line(place.early[context]), hashed as usize & 15);
            let entries = [self.recall[line].0[at], self.recall[line].0[at ^ 1]];
            let found = if entries[0] >> 16 == check {
                0
            } else if entries[1] >> 16 == check {
                1
            } else {
                // The one of less use makes room.
                let less = usize::from(Recalled(entries[1]).run() < Recalled(entries[0]).run());
                self.recall[line].0[at ^ less] = check << 16;
                self.recall_at[context] = (line, at ^ less);
                self.candidates[context] = 0;
                continue;
            };
            let entry = Recalled(entries[found]);
            self.recall_at[context] = (line, at ^ found);
            self.candidates[context] = if entry.run() > 0 { 0x100 | entry.byte() } else { 0 };
            self.strength_at[context] = context * STRENGTHS + entry.judged();
        }
        if self.match_len > 0 {
            self.candidates[Self::MATCH] =
                0x100 | u32::from(self.history[self.match_at & (self.history.len() - 1)]);
            self.strength_at[Self::MATCH] = Self::MATCH * STRENGTHS + match_step(self.match_len) * 16;
        } else {
            self.candidates[Self::MATCH] = 0;
        }
        self.candidates[Self::STEP] = place.step;
        if place.step != 0 {
            let steps = self.steps[place.key as usize & (self.steps.len() - 1)];
            self.strength_at[Self::STEP] = Self::STEP * STRENGTHS + usize::from(steps) * 16;
        }
    }

    /// Asks whether the byte is the likeliest candidate; the byte if it is.
    #[inline]
    fn ask<B: Bits>(&mut self, bits: &mut B, byte: u8, place: &Place<C, K>) -> Option<u8> {
        let tables = self.tables;
        let mut p = [0; K];
        let (mut best, mut best_p) = (0, 0);
        for (k, p) in p.iter_mut().enumerate() {
            if self.candidates[k] != 0 {
                *p = self.strengths[self.strength_at[k] + ASKED].p();
                if *p > best_p {
                    (best, best_p) = (self.candidates[k], *p);
                }
            }
        }
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
        let ats =
            [hash(place.key, 1) as usize & 0xFFFF, hash(place.key, 2 + u64::from(best)) as usize & 0xFFFF];
        inputs[K] = tables.stretch(self.asked[ats[0]].p());
        inputs[K + 1] = tables.stretch(self.asked[ats[1]].p());
        inputs[K + 2] = 256;
        let stretch = self.asking.mix(tables, &inputs, agree * 32 + (best_p >> 11) as usize);
        let hit =
            bits.code((u32::from(byte) | 0x100 == best).into(), tables.squash(stretch).clamp(16, 65535 - 16));
        self.asking.learn(&inputs, hit);
        ats.iter().for_each(|&at| self.asked[at].learn(tables, hit, 60));
        for k in 0..K {
            let candidate = self.candidates[k];
            // Whether it was right is known if it was asked, or if it was the one.
            if candidate == best || candidate != 0 && hit != 0 {
                let right = u32::from(candidate == best) & hit;
                self.strengths[self.strength_at[k] + ASKED].learn(tables, right, 1000);
            }
            if candidate == best && hit == 0 {
                self.candidates[k] = 0;
            }
        }
        (hit != 0).then_some(best as u8)
    }

    /// Codes the nibbles of a byte.
    #[inline]
    fn nibbles<B: Bits>(&mut self, bits: &mut B, byte: u8, place: &Place<C, K>) -> u8 {
        let high = self.nibble(bits, u32::from(byte) >> 4, 0, place);
        let low = self.nibble(bits, u32::from(byte) & 15, 16 | high, place);
        (high << 4 | low) as u8
    }

    #[inline]
    fn nibble<B: Bits>(&mut self, bits: &mut B, given: u32, coded: u32, place: &Place<C, K>) -> u32 {
        self.find(place, coded);
        let cells: [Cell; C] = std::array::from_fn(|context| {
            let (at, one) = self.slots[context];
            self.buckets[at].0[one]
        });
        let set = cells.iter().fold(place.class << 1 | usize::from(coded != 0), |set, cell| {
            set << 2 | nibbles::seen_step(cell)
        });
        let shares = &mut self.shares[set];
        let value = bits.nibble(given, &shares.mix(&cells));
        shares.learn(&cells, value);
        for &(at, one) in &self.slots {
            nibbles::learn(&mut self.buckets[at].0[one], value);
        }
        value
    }

    /// Codes the bits of a byte.
    #[inline]
    fn bits<B: Bits>(&mut self, bits: &mut B, byte: u8, place: &Place<C, K>) -> u8 {
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
    #[inline]
    fn find(&mut self, place: &Place<C, K>, coded: u32) {
        let mask = self.buckets.len() - 1;
        for (slot, hashed) in self.slots.iter_mut().zip(&place.counted) {
            let hashed = hash(*hashed, u64::from(coded));
            let check = (hashed >> 48) as u16 & CHECK;
            let at = hashed as usize & mask;
            let pair = &mut self.buckets[at].0;
            let one = if pair[0][0] & CHECK == check {
                0
            } else if pair[1][0] & CHECK == check {
                1
            } else {
                // The one of less use makes room.
                let one = usize::from(pair[1][Self::SEEN] & !CHECK < pair[0][Self::SEEN] & !CHECK);
                pair[one] = Self::UNSEEN;
                pair[one][0] = check;
                one
            };
            *slot = (at, one);
        }
    }

    /// Has the counters of a byte's first nibble brought near.
    #[inline]
    fn bring_counters(&self, counted: &[u64; C]) {
        counted
            .iter()
            .for_each(|&hashed| prefetch(&self.buckets, hash(hashed, 0) as usize & (self.buckets.len() - 1)));
    }

    /// Has what the next byte's contexts remember brought near.
    #[inline]
    fn bring_recalled(&self, early: &[u64; K]) {
        early[..K - 2].iter().for_each(|&early| prefetch(&self.recall, self.recall_line(early)));
    }

    #[inline]
    fn recall_line(&self, early: u64) -> usize {
        early as usize & (self.recall.len() - 1)
    }

    #[inline]
    fn bit<B: Bits>(&mut self, bits: &mut B, given: u32, coded: u32, bit: u32, place: &Place<C, K>) -> u32 {
        let tables = self.tables;
        // Of the nibble's tree.
        let node =
            (if bit >= 4 { coded } else { 1 << (3 - bit) | coded & ((1 << (3 - bit)) - 1) }) as usize & 15;
        let mut inputs = [0_i16; N];
        let mut counters = [0_u16; C];
        for context in 0..C {
            let (at, one) = self.slots[context];
            let counter = self.buckets[at].0[one][node];
            counters[context] = counter;
            let stretch = tables.stretch(u32::from(counter));
            inputs[context] = stretch;
            let seen = usize::from(counter & 15);
            let at = context * 1024 + seen * 64 + ((i32::from(stretch) + 2048) >> 6) as usize;
            self.refined_at[context] = at;
            inputs[C + context] = if seen == 0 { 0 } else { tables.stretch(self.refined[at].p()) };
        }
        let first = 2 * C;
        let left = bit + 1;
        let mut agree = 0;
        for k in 0..K {
            let byte = self.candidates[k];
            if byte >> left == coded {
                let stretch = tables.stretch(self.strengths[self.strength_at[k] + bit as usize].p());
                if byte >> bit & 1 != 0 {
                    agree += 1;
                    inputs[first + k] = stretch;
                } else {
                    agree -= 1;
                    inputs[first + k] = -stretch;
                }
            }
        }
        if N > first + K {
            inputs[first + K] = 256;
        }
        let agreement = (agree + AGREEMENTS as i32 / 2).clamp(0, AGREEMENTS as i32 - 1) as usize;
        let stretch = self.mixers[0].mix(tables, &inputs, agreement * 256 + coded as usize);
        let stretch = (stretch + self.mixers[1].mix(tables, &inputs, place.set())) >> 1;
        let corrected = [
            hash(place.key, u64::from(coded)) as usize & 0xFFFF,
            hash(self.left & 0xFF | (place.class as u64) << 8, u64::from(coded)) as usize & 0xFFFF,
        ];
        let first = self.corrections[0].correct(stretch, corrected[0]);
        let second = self.corrections[1].correct(stretch, corrected[1]);
        let p = (2 * tables.squash(stretch) + first + second) / 4;
        let bit_coded = bits.code(given, p.clamp(16, 65535 - 16));
        for (context, &counter) in counters.iter().enumerate() {
            self.refined[self.refined_at[context]].learn(tables, bit_coded, 255);
            let (at, one) = self.slots[context];
            self.buckets[at].0[one][node] = learned_small(counter, bit_coded);
        }
        for k in 0..K {
            let byte = self.candidates[k];
            if byte >> left == coded {
                let right = u32::from(byte >> bit & 1 == bit_coded);
                self.strengths[self.strength_at[k] + bit as usize].learn(tables, right, 1000);
            }
        }
        self.mixers.iter_mut().for_each(|mixer| mixer.learn(&inputs, bit_coded));
        self.corrections.iter_mut().for_each(|correction| correction.learn(bit_coded));
        bit_coded
    }

    /// Learns a byte, and looks for a match if there is none.
    #[inline]
    fn remember(&mut self, byte: u8) {
        for context in 0..K - 2 {
            let (line, at) = self.recall_at[context];
            let entry = &mut self.recall[line].0[at];
            *entry = Recalled(*entry).learned(byte);
        }
        let mask = self.history.len() - 1;
        let matched = self.match_len > 0 && self.history[self.match_at & (self.history.len() - 1)] == byte;
        self.history[self.written & mask] = byte;
        self.written = self.written.wrapping_add(1);
        self.left = self.left << 8 | u64::from(byte);
        let (line, hashed) = (self.match_line, hash(u64::from(byte), 0x77) as u32);
        let (at, check) = (hashed as usize >> 8 & 15, hashed & 0xFF);
        // Of the next entry all but the last byte is known: it is asked for long before it is needed.
        self.match_line = hash(self.left & 0xFF_FFFF_FFFF, 0x77) as usize & (self.matches.len() - 1);
        prefetch(&self.matches, self.match_line);
        if matched {
            self.match_len = (self.match_len + 1).min(65535);
            self.match_at = self.match_at.wrapping_add(1);
        } else {
            self.match_len = 0;
            let found = self.matches[line].0[at];
            let distance = (self.written as u32).wrapping_sub(found >> 8) as usize & 0xFF_FFFF;
            if found & 0xFF == check && distance > 0 && distance <= mask && distance < self.written {
                self.look_back(distance);
            }
        }
        self.matches[line].0[at] = (self.written as u32) << 8 | check;
    }

    /// Begins a match if enough bytes before are equal.
    fn look_back(&mut self, distance: usize) {
        let mask = self.history.len() - 1;
        let at = self.written - distance;
        let equal = (1..32)
            .take_while(|back| {
                self.history[at.wrapping_sub(*back) & mask]
                    == self.history[self.written.wrapping_sub(*back) & mask]
            })
            .count() as u32;
        if equal >= MIN_EQUAL {
            (self.match_at, self.match_len) = (at, equal);
        }
    }
}

impl<const C: usize, const K: usize> Place<C, K> {
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

/// Sets of weights by how many candidates agree on a bit.
const AGREEMENTS: usize = 20;

/// Positions of rows that have weights of their own.
const POSITIONS: usize = 64;
/// Room for classes.
const CLASS_SETS: usize = 32;

/// What tells contexts apart in a pair; the other bits say how much was seen.
const CHECK: u16 = 0xFFF0;

/// A counter of 16 bits: the probability in the upper 12, what it has seen in the lower 4.
const SMALL_NEW: u16 = 1 << 15;

#[inline]
fn learned_small(counter: u16, bit: u32) -> u16 {
    /// Of an error, in 1/65536, by what has been seen.
    const RATE: [i32; 16] = [
        43690, 26214, 18724, 14563, 11915, 10082, 8738, 7710, 6898, 6241, 5698, 5242, 4854, 4519, 4228, 3971,
    ];
    let (p, seen) = (i32::from(counter >> 4), counter & 15);
    let target = if bit != 0 { 4095 } else { 0 };
    let p = p + (((target - p) * RATE[usize::from(seen)] + 0x8000) >> 16);
    (p as u16) << 4 | (seen + 1).min(15)
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
