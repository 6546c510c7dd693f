//! The contexts of each byte of a column: in rows, in symbols, and in other bytes.

use super::range_coder::BinaryCoder;
use super::row_modes::{self, Mode};
use super::{ColumnKeys, Model, POSITIONS, hash};

/// Maximum width in bytes of rows that are always coded as rows. Wider rows are coded as text, unless a flag
/// is set.
const MAX_ROW_WIDTH: usize = 256;

/// Contexts of a byte, and other inputs of its prediction.
pub(super) struct Contexts<const C: usize, const K: usize> {
    pub class: usize,
    pub position: usize,
    /// Hash of the column and the position in it.
    pub key: u64,
    /// Byte predicted by repeating the last step between the rows above: 0 for none, otherwise 0x100 and the
    /// byte.
    pub extrapolated: u32,
    /// Counter contexts.
    pub counter: [u64; C],
    /// Run contexts without the last byte. Each selects a line of the table, which is prefetched while the
    /// last byte is coded.
    pub lines: [u64; K],
    /// The last byte, if it is part of the run context.
    pub last: [u64; K],
}

impl<const C: usize, const K: usize> Contexts<C, K> {
    /// Returns the mixer set by class and position.
    pub fn set(&self) -> usize {
        self.class * POSITIONS + self.position.min(POSITIONS - 1)
    }
}

/// A row of a column, with the rows above it.
#[derive(Clone, Copy)]
struct Row<'r> {
    keys: ColumnKeys,
    width: usize,
    /// Bytes of the column.
    bytes: &'r [u8],
    /// Offset of the row's first byte.
    start: usize,
}

impl Row<'_> {
    /// Returns the byte `rows` rows above a position, or 0.
    #[inline(always)]
    fn above(&self, position: usize, rows: usize) -> u64 {
        match (self.start + position).checked_sub(rows * self.width) {
            Some(at) => u64::from(self.bytes[at]),
            None => 0,
        }
    }

    /// Returns the byte at a position if the step between the two rows above is repeated.
    #[inline(always)]
    fn extrapolated(&self, position: usize) -> u64 {
        (2 * self.above(position, 1)).wrapping_sub(self.above(position, 2)) & 0xFF
    }

    #[inline(always)]
    fn counter_contexts<const C: usize>(&self, position: usize, left: u64, changes: u64) -> [u64; C] {
        let (up, l1) = (self.above(position, 1), left & 0xFF);
        let column = hash(self.keys.column_key, position as u64);
        let class_key = self.keys.class_key;
        std::array::from_fn(|context| match context {
            0 => hash(column, up),
            1 => hash(column, 1 << 32 | l1),
            2 => hash(class_key, 2 << 32 | left & 0xFFFF),
            3 => hash(column, 3 << 32),
            4 => hash(column, 4 << 32 | up << 8 | changes & 0xFF),
            5 => hash(class_key, 5 << 32 | left & 0xFF_FFFF),
            _ => hash(hash(class_key, position as u64), 6 << 32 | up),
        })
    }

    /// Returns the lines of run contexts. `prefix` is a hash of the row's bytes, `left` and `changes` have
    /// the last bytes; all three exclude the byte directly before the position.
    #[inline(always)]
    fn lines<const K: usize>(&self, position: usize, prefix: u64, left: u64, changes: u64) -> [u64; K] {
        let [up, up2, up3] = [1, 2, 3].map(|rows| self.above(position, rows));
        let next = if position + 1 < self.width { self.above(position + 1, 1) } else { 0 };
        let straight = self.extrapolated(position);
        let column = hash(self.keys.column_key, position as u64);
        let class_key = self.keys.class_key;
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
    }
}

impl<const C: usize, const K: usize, const A: usize, const N: usize> Model<C, K, A, N> {
    /// Returns whether a column of rows is coded as rows. Most columns of wide rows have no structure, and
    /// are coded as text.
    pub(super) fn is_coded_as_rows<B: BinaryCoder>(
        &mut self,
        coder: &mut B,
        keys: ColumnKeys,
        width: usize,
        bytes: &[u8],
    ) -> bool {
        if !bytes.len().is_multiple_of(width) {
            return false;
        }
        if width <= MAX_ROW_WIDTH {
            return true;
        }
        if bytes.len() / width < row_modes::MIN_ROWS {
            return false;
        }
        let given = coder.choices(1, || vec![row_modes::have_structure(bytes, width).into()])[0];
        self.flag(coder, hash(keys.column_key, 0x52), u32::from(given) & 1) != 0
    }

    /// Codes rows. The bytes of the previous row are as good a context as the previous bytes of the same row.
    pub(super) fn rows<B: BinaryCoder>(
        &mut self,
        coder: &mut B,
        keys: ColumnKeys,
        width: usize,
        bytes: &mut [u8],
    ) {
        let keys = ColumnKeys { class_key: hash(keys.class_key, width as u64), ..keys };
        let mut modes = vec![Mode::MIXED; width];
        if bytes.len() / width >= row_modes::MIN_ROWS {
            let choose = || row_modes::choose(bytes, width).iter().map(|mode| mode.0).collect();
            let chosen = coder.choices(width, choose);
            for (position, (mode, given)) in modes.iter_mut().zip(chosen).enumerate() {
                *mode = self.mode(coder, hash(keys.column_key, position as u64), Mode(given & 15));
            }
        }
        if B::ENCODES {
            row_modes::to_differences(bytes, &modes);
        }
        let all: Vec<usize> = (0..width).collect();
        let (constant, varying): (Vec<usize>, Vec<usize>) =
            all.iter().partition(|&&position| modes[position].is_constant());
        for start in (0..bytes.len()).step_by(width) {
            if start > 0 {
                constant
                    .iter()
                    .for_each(|&position| bytes[start + position] = bytes[start + position - width]);
            }
            let positions = if start == 0 { &all } else { &varying };
            self.row(coder, keys, positions, &modes, bytes, start);
        }
        row_modes::from_differences(bytes, &modes);
    }

    /// Codes the mode of a row position.
    fn mode<B: BinaryCoder>(&mut self, coder: &mut B, key: u64, given: Mode) -> Mode {
        let mut coded = 1;
        for bit in (0..Mode::BITS).rev() {
            let bit = self.flag(coder, hash(key, coded), u32::from(given.0) >> bit & 1);
            coded = coded << 1 | u64::from(bit);
        }
        Mode(coded as u8 & ((1 << Mode::BITS) - 1))
    }

    /// Codes some positions of the row that starts at `start`.
    fn row<B: BinaryCoder>(
        &mut self,
        coder: &mut B,
        keys: ColumnKeys,
        positions: &[usize],
        modes: &[Mode],
        bytes: &mut [u8],
        start: usize,
    ) {
        let width = modes.len();
        let is_extrapolated = start >= 2 * width;
        // Differences of the last bytes from those above them.
        let mut changes = 0_u64;
        // Hash of all mixed bytes of the row except the last, and the last mixed byte.
        let (mut prefix, mut last) = (keys.column_key, None);
        for (index, &position) in positions.iter().enumerate() {
            let key = hash(keys.column_key, position as u64);
            if modes[position].is_order0() {
                let byte = self.order0_byte(coder, bytes[start + position], key);
                bytes[start + position] = byte;
                self.left = self.left << 8 | u64::from(byte);
                changes <<= 8;
                continue;
            }
            let row = Row { keys, width, bytes, start };
            let (left, up) = (self.left, row.above(position, 1));
            let contexts = Contexts {
                class: keys.class,
                position,
                key,
                extrapolated: if is_extrapolated { 0x100 | row.extrapolated(position) as u32 } else { 0 },
                counter: row.counter_contexts(position, left, changes),
                lines: row.lines(position, prefix, left >> 8, changes >> 8),
                last: std::array::from_fn(|context| match context {
                    0 => last.unwrap_or(0),
                    2 | 7 => 0,
                    6 => changes & 0xFF,
                    _ => left & 0xFF,
                }),
            };
            self.prefetch_slots(&contexts.counter);
            if let Some(last) = last {
                prefix = hash(prefix, last);
            }
            if let Some(&next) = positions[index + 1..].iter().find(|&&next| !modes[next].is_order0()) {
                self.prefetch_runs(&row.lines(next, prefix, left, changes));
            }
            let byte = self.byte(coder, bytes[start + position], &contexts);
            bytes[start + position] = byte;
            last = Some(u64::from(byte));
            changes = changes << 8 | u64::from(byte.wrapping_sub(up as u8));
        }
    }

    /// Codes a byte that no context predicts, by the frequencies of bytes alone.
    fn order0_byte<B: BinaryCoder>(&mut self, coder: &mut B, byte: u8, key: u64) -> u8 {
        let at = key as usize & (self.order0.len() - 1);
        let counters = &mut self.order0[at];
        let mut coded = 1_usize;
        for bit in (0..8).rev() {
            let counter = &mut counters[coded & 0xFF];
            let bit = coder.code_bit(u32::from(byte) >> bit & 1, counter.p().clamp(16, 65535 - 16));
            counter.learn(self.tables, bit, 1000);
            coded = coded << 1 | bit as usize;
        }
        coded as u8
    }

    /// Codes symbols: sequences of numbers.
    pub(super) fn symbols<B: BinaryCoder>(&mut self, coder: &mut B, keys: ColumnKeys, bytes: &mut [u8]) {
        let mut within = 0;
        let mut lines = symbol_lines(keys, 0, 0);
        for byte in bytes {
            let left = self.left;
            let l1 = left & 0xFF;
            let (column, place) = (hash(keys.column_key, within), hash(keys.class_key, within));
            let contexts = Contexts {
                class: keys.class,
                position: within as usize,
                key: column,
                extrapolated: 0,
                counter: std::array::from_fn(|context| match context {
                    0 => hash(column, l1),
                    1 => hash(column, 1 << 32),
                    2 => hash(column, 2 << 32 | left & 0xFFFF),
                    3 => hash(place, 3 << 32 | l1),
                    4 => hash(column, 4 << 32 | left & 0xFF00),
                    5 => hash(column, 5 << 32 | left & 0xFF_FFFF),
                    _ => hash(place, 6 << 32 | left & 0xFFFF),
                }),
                lines,
                last: std::array::from_fn(|context| match context {
                    6 | 7 | 9 => left & 0x80,
                    _ => l1,
                }),
            };
            self.prefetch_slots(&contexts.counter);
            lines = symbol_lines(keys, within, left);
            self.prefetch_runs(&lines);
            *byte = self.byte(coder, *byte, &contexts);
            within = if *byte < 0x80 { 0 } else { (within + 1).min(7) };
        }
    }

    /// Codes bytes of unknown structure. The contexts suit text, and binary data in units of a few bytes.
    pub(super) fn bytes<B: BinaryCoder>(&mut self, coder: &mut B, keys: ColumnKeys, bytes: &mut [u8]) {
        let class_key = keys.class_key;
        let (mut word, mut word_before) = (0, 0);
        let mut lines = text_lines(keys, [0, 0], 0, 0);
        for (at, byte) in bytes.iter_mut().enumerate() {
            let left = self.left;
            let l1 = left & 0xFF;
            let contexts = Contexts {
                class: keys.class,
                position: (left >> 5 & 7) as usize,
                key: keys.column_key,
                extrapolated: 0,
                counter: std::array::from_fn(|context| match context {
                    0 => hash(class_key, 1 << 32 | l1),
                    1 => hash(class_key, 2 << 32 | left & 0xFFFF),
                    2 => hash(class_key, 3 << 32 | left & 0xFF_FFFF),
                    3 => hash(class_key, 4 << 32),
                    4 => hash(hash(class_key, word), 5 << 32 | l1),
                    5 => hash(class_key, 6 << 32 | left & 0xFF00),
                    _ => hash(class_key, 7 << 60 | left & 0xFFFF_FFFF),
                }),
                lines,
                last: std::array::from_fn(|context| match context {
                    7 | 8 => 0,
                    _ => l1,
                }),
            };
            self.prefetch_slots(&contexts.counter);
            lines = text_lines(keys, [word_before, word], left, at + 1);
            self.prefetch_runs(&lines);
            *byte = self.byte(coder, *byte, &contexts);
            if byte.is_ascii_alphanumeric() || *byte >= 0x80 {
                word = hash(word, u64::from(*byte));
            } else if word != 0 {
                (word_before, word) = (word, 0);
            }
        }
    }
}

/// Returns the lines of run contexts in symbols, without the last byte.
#[inline(always)]
fn symbol_lines<const K: usize>(keys: ColumnKeys, within: u64, left: u64) -> [u64; K] {
    let (column, place) = (hash(keys.column_key, within), hash(keys.class_key, within));
    std::array::from_fn(|context| match context {
        0 => hash(column, 11 << 32 | left & 0xFF),
        1 => hash(column, 12 << 32 | left & 0xFFFF),
        2 => hash(column, 13 << 60 | left & 0xFF_FFFF),
        3 => hash(place, 14 << 60 | left & 0xFF_FFFF),
        4 => hash(column, 15 << 52 | left & 0xFF_FFFF_FFFF),
        5 => hash(column, 16 << 32),
        6 => hash(column, 17 << 32 | left & 0xFFFF),
        7 => hash(column, 18 << 32 | left & 0xFF00),
        8 => hash(hash(column, 19), left),
        _ => hash(column, 20 << 32 | left & 0xFF_FFFF),
    })
}

/// Returns the lines of run contexts in bytes, without the last byte. `at` is the byte's offset in the
/// column.
#[inline(always)]
fn text_lines<const K: usize>(keys: ColumnKeys, words: [u64; 2], left: u64, at: usize) -> [u64; K] {
    let ColumnKeys { class_key, column_key, .. } = keys;
    let [word_before, word] = words;
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
}
