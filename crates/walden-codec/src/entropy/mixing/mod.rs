//! Context mixing: each byte of a column is predicted from several contexts, and the predictions are mixed. The smallest
//! form, and the slowest.
//!
//! - [`contexts`]: the contexts of a byte in rows, symbols and text (the bytes left of it, those above it, and so on).
//! - [`candidates`]: run models and the match model predict whole bytes, and a first bit says whether the best one is right.
//! - [`bits`], [`nibbles`]: otherwise, counters of the contexts predict its bits or nibbles, which [`components`] mix.
//! - [`range_coder`]: turns probabilities and bits into bytes.
//!
//! Encoding and decoding are the same function, over a [`BinaryCoder`]. All statistics are kept for the columns that follow.

mod bits;
mod candidates;
mod components;
mod contexts;
mod nibbles;
mod prefetch;
pub mod range_coder;
mod row_modes;

use self::candidates::{FORM_COUNTERS, Line};
use self::components::{Apm, Counter, Mixer, TABLES, Tables, WEIGHT};
use self::contexts::Contexts;
use self::nibbles::{NibbleMixer, Slot};
use self::range_coder::BinaryCoder;
use crate::cases::Cases;
use crate::column_kind::Form;

/// A context-mixing coder of one effort, and its statistics.
pub enum ContextMixer {
    /// Few contexts, little memory; nibbles instead of bits.
    Fast(Box<Model<3, 5, 8, 8>>),
    /// Some contexts.
    Medium(Box<Model<4, 8, 16, 16>>),
    /// All contexts.
    Thorough(Box<Model<7, 12, 16, 32>>),
}

impl ContextMixer {
    /// A coder without statistics, of an effort by its number in the format; `None` if there is no such effort.
    pub fn new(effort: u8, cases: Cases) -> Option<ContextMixer> {
        Some(match effort {
            0 => ContextMixer::Fast(Box::new(Model::new(
                cases,
                Sizes { slots: 17, runs: 19, history: 23, matches: 19 },
            ))),
            1 => ContextMixer::Medium(Box::new(Model::new(
                cases,
                Sizes { slots: 19, runs: 21, history: 23, matches: 19 },
            ))),
            2 => ContextMixer::Thorough(Box::new(Model::new(
                cases,
                Sizes { slots: 20, runs: 22, history: 24, matches: 22 },
            ))),
            _ => return None,
        })
    }

    /// The number of its effort.
    pub fn effort(&self) -> u8 {
        match self {
            ContextMixer::Fast(_) => 0,
            ContextMixer::Medium(_) => 1,
            ContextMixer::Thorough(_) => 2,
        }
    }

    /// Codes a column: encoding reads `bytes` (and may leave anything there), decoding writes them.
    pub fn column<B: BinaryCoder>(
        &mut self,
        coder: &mut B,
        class: usize,
        number: u32,
        form: Form,
        bytes: &mut [u8],
    ) {
        match self {
            ContextMixer::Fast(model) => model.column(coder, class, number, form, bytes),
            ContextMixer::Medium(model) => model.column(coder, class, number, form, bytes),
            ContextMixer::Thorough(model) => model.column(coder, class, number, form, bytes),
        }
    }
}

/// Sizes of tables, as powers of 2.
struct Sizes {
    /// Slots of counter contexts.
    slots: u32,
    /// Entries of run contexts.
    runs: u32,
    /// Bytes of the match model's history.
    history: u32,
    /// Entries of the match model.
    matches: u32,
}

/// The statistics of `C` counter contexts and `K` *candidates*: the bytes predicted by `K` - 2 run contexts, by the match
/// model, and by extrapolation of the rows above. `A` is the number of inputs of the mixer for the test whether the best
/// candidate is right, `N` that of the mixers for a bit.
pub struct Model<const C: usize, const K: usize, const A: usize, const N: usize> {
    /// The cases that are not left out, in both directions.
    cases: Cases,
    tables: &'static Tables,
    /// Counters of nibbles in contexts.
    buckets: Vec<Bucket>,
    /// For the current nibble, the bucket and the slot of each counter context.
    slot_at: [(usize, usize); C],
    /// Of each counter context, probabilities by the count and the stretch of its counter: 1024 for each.
    counter_maps: Vec<Counter>,
    map_at: [usize; C],
    /// Entries of run contexts.
    run_table: Vec<Line>,
    /// For the current byte, the line and the entry of each run context.
    run_at: [(usize, usize); K],
    /// The candidates for the current byte: 0 for none, otherwise 0x100 and the byte.
    candidates: [u32; K],
    /// The first of the counters of each one's form.
    candidate_at: [usize; K],
    candidate_counters: Vec<Counter>,
    /// By key, whether extrapolation was right the last six times.
    extrapolation_history: Vec<u8>,
    /// For a bit: one with sets by agreement of candidates, one with sets by class and position.
    mixers: [Mixer<N>; 2],
    /// By class, half of the byte, and counts of the slots.
    nibble_mixers: Vec<NibbleMixer<C>>,
    apms: [Apm; 2],
    test_mixer: Mixer<A>,
    test_counters: Vec<Counter>,
    /// Flags of columns and modes of their positions.
    flags: Vec<Counter>,
    /// Counters of positions of order 0.
    order0: Vec<[Counter; 256]>,
    /// Ring of bytes for the match model.
    history: Vec<u8>,
    /// Bytes written to the history.
    written: usize,
    match_table: Vec<Line>,
    /// Where the match goes on in the history, and its length; 0 if there is none.
    match_at: usize,
    match_len: u32,
    /// The line of `match_table` for the next byte.
    match_line: usize,
    /// The last bytes, the latest lowest.
    left: u64,
}

/// Two slots of counter contexts in one line of the processor's cache.
#[derive(Clone)]
#[repr(align(64))]
struct Bucket([Slot; 2]);

/// Where a column's contexts are apart from those of others.
#[derive(Clone, Copy)]
struct ColumnKeys {
    class: usize,
    class_key: u64,
    column_key: u64,
}

/// Classes that have mixer sets of their own.
const CLASS_SETS: usize = 32;
/// Positions of rows that have mixer sets of their own.
const POSITIONS: usize = 64;

impl<const C: usize, const K: usize, const A: usize, const N: usize> Model<C, K, A, N> {
    /// Whether a byte that is no candidate is coded by its nibbles, in two steps, or by its bits, in eight.
    const BY_NIBBLES: bool = N <= 8;
    /// First weights of the mixers: the more inputs, the less.
    const BIT_WEIGHT: i16 = WEIGHT / N as i16 * 4;
    const TEST_WEIGHT: i16 = WEIGHT * 2 / (K + 3) as i16;

    fn new(cases: Cases, sizes: Sizes) -> Model<C, K, A, N> {
        let tables = &*TABLES;
        let by_bits = usize::from(!Self::BY_NIBBLES);
        let nibble_sets = if Self::BY_NIBBLES { (CLASS_SETS * 2) << (2 * C) } else { 0 };
        Model {
            cases,
            tables,
            buckets: vec![Bucket([Self::NEW_SLOT; 2]); 1 << (sizes.slots - 1)],
            slot_at: [(0, 0); C],
            counter_maps: (0..1024 * C).map(|at| bits::new_map_counter(tables, at % 64)).collect(),
            map_at: [0; C],
            run_table: vec![Line([0; 16]); 1 << (sizes.runs - 4)],
            run_at: [(0, 0); K],
            candidates: [0; K],
            candidate_at: [0; K],
            candidate_counters: vec![Counter(3 << 30); K * FORM_COUNTERS],
            extrapolation_history: vec![0; 1 << 14],
            mixers: [
                Mixer::new(256 * bits::AGREEMENTS * by_bits, Self::BIT_WEIGHT, 24),
                Mixer::new(CLASS_SETS * POSITIONS * by_bits, Self::BIT_WEIGHT, 24),
            ],
            nibble_mixers: vec![NibbleMixer::new(); nibble_sets],
            apms: [Apm::new(tables, by_bits << 16), Apm::new(tables, by_bits << 16)],
            test_mixer: Mixer::new((K + 1) * 32, Self::TEST_WEIGHT, 24),
            test_counters: vec![Counter::NEW; 1 << 16],
            flags: vec![Counter::NEW; 1 << 14],
            order0: vec![[Counter::NEW; 256]; 1 << 10],
            history: vec![0; 1 << sizes.history],
            written: 0,
            match_table: vec![Line([0; 16]); 1 << (sizes.matches - 4)],
            match_at: 0,
            match_len: 0,
            match_line: 0,
            left: 0,
        }
    }

    fn column<B: BinaryCoder>(
        &mut self,
        coder: &mut B,
        class: usize,
        number: u32,
        form: Form,
        bytes: &mut [u8],
    ) {
        let class = class % CLASS_SETS;
        let class_key = hash(class as u64 + 1, 0x51);
        let column_key = hash(class_key, u64::from(number) + 1);
        let keys = ColumnKeys { class, class_key, column_key };
        self.left = 0;
        self.match_len = 0;
        match form {
            Form::Rows(width) if self.is_coded_as_rows(coder, keys, usize::from(width), bytes) => {
                self.rows(coder, keys, usize::from(width), bytes);
            }
            Form::Symbols => self.symbols(coder, keys, bytes),
            _ => self.bytes(coder, keys, bytes),
        }
    }

    /// Codes a flag of a column, or a bit of the mode of one of its positions, with an adaptive counter.
    fn flag<B: BinaryCoder>(&mut self, coder: &mut B, key: u64, given: u32) -> u32 {
        let at = key as usize & (self.flags.len() - 1);
        let counter = &mut self.flags[at];
        let bit = coder.code_bit(given, counter.p().clamp(32, 65535 - 32));
        counter.learn(self.tables, bit, 30);
        bit
    }

    /// Codes a byte.
    #[inline(always)]
    fn byte<B: BinaryCoder>(&mut self, coder: &mut B, byte: u8, contexts: &Contexts<C, K>) -> u8 {
        self.find_candidates(contexts);
        let byte = match self.test_best_candidate(coder, byte, contexts) {
            Some(byte) => byte,
            None if Self::BY_NIBBLES => self.nibbles(coder, byte, contexts),
            None => self.bits(coder, byte, contexts),
        };
        self.update(byte, contexts);
        byte
    }
}

#[inline]
fn hash(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ mixed >> 32
}
