//! Context mixing: predicts each byte of a column from several contexts and mixes the predictions. This is
//! the slowest coder with the smallest output.
//!
//! - [`contexts`]: the contexts of a byte in rows, symbols and text (the bytes to its left, those above it,
//!   and so on).
//! - [`candidates`]: run models and the match model predict whole bytes. A first bit codes whether the best
//!   one is right.
//! - [`bits`], [`nibbles`]: otherwise, counters of the contexts predict its bits or nibbles, and
//!   [`components`] mix them.
//! - [`range_coder`]: turns probabilities and bits into bytes.
//!
//! One function encodes and decodes, over a [`BinaryCoder`]. All statistics are kept for the next columns.

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
use crate::column_kind::Form;

/// A context-mixing coder of one effort, with its statistics.
pub enum ContextMixer {
    /// Few contexts, little memory, and nibbles rather than bits.
    Fast(Box<Model<3, 5, 8, 8>>),
    /// Some contexts.
    Medium(Box<Model<4, 8, 16, 16>>),
    /// All contexts.
    Thorough(Box<Model<7, 12, 16, 32>>),
}

impl ContextMixer {
    /// Creates a coder without statistics, given the effort's number in the format; `None` for an unknown
    /// effort.
    pub fn new(effort: u8) -> Option<ContextMixer> {
        Some(match effort {
            0 => ContextMixer::Fast(Box::new(Model::new(Sizes {
                slots: 17,
                runs: 19,
                history: 23,
                matches: 19,
            }))),
            1 => ContextMixer::Medium(Box::new(Model::new(Sizes {
                slots: 19,
                runs: 21,
                history: 23,
                matches: 19,
            }))),
            2 => ContextMixer::Thorough(Box::new(Model::new(Sizes {
                slots: 20,
                runs: 22,
                history: 24,
                matches: 22,
            }))),
            _ => return None,
        })
    }

    /// Returns the number of the effort.
    pub fn effort(&self) -> u8 {
        match self {
            ContextMixer::Fast(_) => 0,
            ContextMixer::Medium(_) => 1,
            ContextMixer::Thorough(_) => 2,
        }
    }

    /// Codes a column. Encoding reads `bytes` and may overwrite them. Decoding writes them.
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

/// Table sizes, as powers of 2.
struct Sizes {
    /// Number of slots of counter contexts.
    slots: u32,
    /// Number of entries of run contexts.
    runs: u32,
    /// Bytes of the match model's history.
    history: u32,
    /// Number of entries of the match model.
    matches: u32,
}

/// Statistics of `C` counter contexts and `K` *candidates*: the bytes predicted by `K` - 2 run contexts, by
/// the match model, and by extrapolation of the rows above. `A` is the number of inputs of the mixer that
/// tests whether the best candidate is right, `N` the number of inputs of each mixer for a bit.
pub struct Model<const C: usize, const K: usize, const A: usize, const N: usize> {
    tables: &'static Tables,
    /// Counters of nibbles in contexts.
    buckets: Vec<Bucket>,
    /// Bucket and slot of each counter context for the current nibble.
    slot_at: [(usize, usize); C],
    /// Probabilities by the count and the stretch of a counter: 1024 for each counter context.
    counter_maps: Vec<Counter>,
    map_at: [usize; C],
    /// Entries of run contexts.
    run_table: Vec<Line>,
    /// Line and entry of each run context for the current byte.
    run_at: [(usize, usize); K],
    /// Candidates for the current byte: 0 for none, otherwise 0x100 and the byte.
    candidates: [u32; K],
    /// Index of the first counter for each candidate's form.
    candidate_at: [usize; K],
    candidate_counters: Vec<Counter>,
    /// By key: whether each of the last six extrapolations was right.
    extrapolation_history: Vec<u8>,
    /// Mixers for a bit: one with sets by agreement of candidates, one with sets by class and position.
    mixers: [Mixer<N>; 2],
    /// By class, half of the byte, and counts of the slots.
    nibble_mixers: Vec<NibbleMixer<C>>,
    apms: [Apm; 2],
    test_mixer: Mixer<A>,
    test_counters: Vec<Counter>,
    /// Flags of columns, and modes of their positions.
    flags: Vec<Counter>,
    /// Order-0 counters of positions.
    order0: Vec<[Counter; 256]>,
    /// Ring buffer of the match model.
    history: Vec<u8>,
    /// Number of bytes written to the history.
    written: usize,
    match_table: Vec<Line>,
    /// Position in the history where the match continues, and its length; 0 without a match.
    match_at: usize,
    match_len: u32,
    /// Line of `match_table` for the next byte.
    match_line: usize,
    /// The last bytes, latest in the lowest position.
    left: u64,
}

/// Two slots of counter contexts in one cache line.
#[derive(Clone)]
#[repr(align(64))]
struct Bucket([Slot; 2]);

/// Keys that separate a column's contexts from the contexts of other columns.
#[derive(Clone, Copy)]
struct ColumnKeys {
    class: usize,
    class_key: u64,
    column_key: u64,
}

/// Number of classes with separate mixer sets.
const CLASS_SETS: usize = 32;
/// Number of row positions with separate mixer sets.
const POSITIONS: usize = 64;

impl<const C: usize, const K: usize, const A: usize, const N: usize> Model<C, K, A, N> {
    /// Whether a byte that no candidate predicts is coded by its nibbles, in two steps, or by its bits, in
    /// eight.
    const BY_NIBBLES: bool = N <= 8;
    /// Initial weights of the mixers: the more inputs, the lower.
    const BIT_WEIGHT: i16 = WEIGHT / N as i16 * 4;
    const TEST_WEIGHT: i16 = WEIGHT * 2 / (K + 3) as i16;

    fn new(sizes: Sizes) -> Model<C, K, A, N> {
        let tables = &*TABLES;
        let by_bits = usize::from(!Self::BY_NIBBLES);
        let nibble_sets = if Self::BY_NIBBLES { (CLASS_SETS * 2) << (2 * C) } else { 0 };
        Model {
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

    /// Codes a flag of a column, or a bit of a position's mode, with an adaptive counter.
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
