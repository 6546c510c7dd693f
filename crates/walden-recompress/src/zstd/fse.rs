//! Finite state entropy (FSE, tabled ANS): codes symbols in fractions of bits by transitions between the
//! states of a table.
//!
//! A table has 2^log states. Each symbol has a number of states in proportion to its frequency, rounded by
//! [`normalize`] (normalized counts, here `shares`). [`describe`] writes the normalized counts, from which
//! the decoder builds the same table.

use super::bits::BitWriter;

/// The largest table has 2^9 states.
const MAX_STATES: usize = 512;
/// The number of match length codes, the largest alphabet.
pub(super) const MAX_SYMBOLS: usize = 53;
/// The smallest table has 2^5 states (`FSE_MIN_TABLELOG`).
const MIN_LOG: u32 = 5;
/// The normalized count of a symbol with less than one state: it gets one state at the end of the table.
const LESS_THAN_ONE: i16 = -1;

/// Normalized counts: the number of states of each symbol, or [`LESS_THAN_ONE`].
pub(super) type Shares = [i16; MAX_SYMBOLS];

/// An encoding table.
pub(super) struct Table {
    log: u32,
    /// Next states, grouped by symbol (`tableU16`).
    next: [u16; MAX_STATES],
    symbols: [Step; MAX_SYMBOLS],
}

/// The state transition of a symbol (`FSE_symbolCompressionTransform`).
#[derive(Clone, Copy, Default)]
struct Step {
    /// `deltaNbBits`: plus the state, it is the number of bits to write times 2^16.
    bits: u32,
    /// `deltaFindState`: plus the state without these bits, it is the index of the next state.
    next: i32,
}

impl Default for Table {
    fn default() -> Table {
        Table { log: 0, next: [0; MAX_STATES], symbols: [Step::default(); MAX_SYMBOLS] }
    }
}

impl Table {
    /// Builds the table of 2^`log` states for these normalized counts.
    pub(super) fn build(shares: &[i16], log: u32) -> Table {
        let mut table = Table::default();
        table.fill(shares, log);
        table
    }

    /// Builds the table like [`Table::build`], reusing the table's memory.
    pub(super) fn fill(&mut self, shares: &[i16], log: u32) {
        let states = 1_usize << log;
        // Index of each symbol's first state in `next`.
        let mut starts = [0_usize; MAX_SYMBOLS];
        let mut spread = [0_u8; MAX_STATES];
        let mut total = 0_usize;
        let mut end = states;
        for (symbol, &share) in shares.iter().enumerate() {
            starts[symbol] = total;
            let step = &mut self.symbols[symbol];
            if share == LESS_THAN_ONE {
                end -= 1;
                spread[end] = symbol as u8;
            }
            let share = u32::from(share.unsigned_abs());
            let bits = match share {
                0 => log + 1,
                1 => log,
                _ => log - (share - 1).ilog2(),
            };
            // The first state that writes one more bit.
            let more = if share > 1 { share << bits } else { states as u32 };
            *step = Step { bits: (bits << 16).wrapping_sub(more), next: total as i32 - share as i32 };
            total += share as usize;
        }
        let stride = (states >> 1) + (states >> 3) + 3;
        let mut at = 0;
        for (symbol, &share) in shares.iter().enumerate() {
            for _ in 0..share {
                spread[at] = symbol as u8;
                at = (at + stride) & (states - 1);
                while at >= end {
                    at = (at + stride) & (states - 1);
                }
            }
        }
        for (state, &symbol) in spread[..states].iter().enumerate() {
            let place = &mut starts[usize::from(symbol)];
            self.next[*place] = (states + state) as u16;
            *place += 1;
        }
        self.log = log;
    }

    /// Builds the table for a single symbol, which takes no bits (RLE mode).
    pub(super) fn fill_one(&mut self, symbol: usize) {
        self.log = 0;
        self.next[0] = 0;
        self.symbols[symbol] = Step::default();
    }

    /// Returns the initial state of the encoder, for the symbol that the decoder reads last.
    pub(super) fn begin(&self, symbol: usize) -> u32 {
        let step = self.symbols[symbol];
        let bits = step.bits.wrapping_add(1 << 15) >> 16;
        let state = (bits << 16).wrapping_sub(step.bits);
        self.follow(state >> bits, step)
    }

    /// Encodes `symbol`: writes at most 9 bits and updates the state.
    #[inline]
    pub(super) fn encode(&self, symbol: usize, state: &mut u32, bits: &mut BitWriter) {
        let step = self.symbols[symbol];
        let count = state.wrapping_add(step.bits) >> 16;
        bits.add(*state, count);
        *state = self.follow(*state >> count, step);
    }

    /// Writes the final state, with which the decoder starts.
    pub(super) fn end(&self, state: u32, bits: &mut BitWriter) {
        bits.add(state, self.log);
    }

    #[inline]
    fn follow(&self, state: u32, step: Step) -> u32 {
        u32::from(self.next[state.wrapping_add_signed(step.next) as usize & (MAX_STATES - 1)])
    }
}

/// Returns the table log for `total` symbols from 0 to `highest` (`FSE_optimalTableLog`): `spare` bits fewer
/// than `total` has, within bounds. If that is negative, the library's unsigned subtraction wraps around, and
/// the result is `most`.
pub(super) fn best_log(most: u32, total: u32, highest: usize, spare: u32) -> u32 {
    let fewest = (total.ilog2() + 1).min((highest as u32).max(1).ilog2() + 2);
    (total - 1).max(1).ilog2().wrapping_sub(spare).min(most).max(fewest).max(MIN_LOG)
}

/// Normalizes counts to 2^`log` states (`FSE_normalizeCount`). Symbols with less than one state get one,
/// coded as [`LESS_THAN_ONE`] if `less_than_one`. `None` if the library reports an error.
pub(super) fn normalize(counts: &[u32], total: u32, log: u32, less_than_one: bool) -> Option<Shares> {
    /// Fraction above which a count below 8 is rounded up, in units of 2^-20 (`rtbTable`).
    const ROUND_UP: [u64; 8] = [0, 473_195, 504_333, 520_860, 550_000, 700_000, 750_000, 830_000];

    let rare = if less_than_one { LESS_THAN_ONE } else { 1 };
    let scale = 62 - log;
    let step = (1_u64 << 62) / u64::from(total);
    let low = total >> log;
    let mut shares = [0_i16; MAX_SYMBOLS];
    let mut left = 1_i32 << log;
    let (mut largest, mut largest_share) = (0, 0);
    for (symbol, (&count, target)) in counts.iter().zip(&mut shares).enumerate() {
        if count == 0 {
            continue;
        }
        if count <= low {
            *target = rare;
            left -= 1;
            continue;
        }
        let exact = u64::from(count) * step;
        let mut share = (exact >> scale) as i16;
        if let Some(round_up) = ROUND_UP.get(share as usize) {
            let rest = exact - ((share as u64) << scale);
            share += i16::from(rest > (1 << (scale - 20)) * round_up);
        }
        if share > largest_share {
            (largest, largest_share) = (symbol, share);
        }
        *target = share;
        left -= i32::from(share);
    }
    // The most frequent symbol absorbs the difference, unless it would lose too many states.
    if -left < i32::from(shares[largest] >> 1) {
        shares[largest] += left as i16;
        return Some(shares);
    }
    normalize_poor(counts, total, log, rare)
}

/// The normalized count of a symbol that has no states yet.
const OPEN: i16 = -2;

/// Normalizes with the second method (`FSE_normalizeM2`), if rounding took too much from the most frequent
/// symbol: rare symbols get one state first, the others share the remaining states in proportion.
fn normalize_poor(counts: &[u32], mut total: u32, log: u32, rare: i16) -> Option<Shares> {
    let mut shares = [0_i16; MAX_SYMBOLS];
    let low = total >> log;
    let mut low_for_one = ((u64::from(total) * 3) >> (log + 1)) as u32;
    let mut given = 0;
    for (&count, share) in counts.iter().zip(&mut shares) {
        *share = match count {
            0 => 0,
            _ if count <= low => rare,
            _ if count <= low_for_one => 1,
            _ => OPEN,
        };
        if !matches!(*share, 0 | OPEN) {
            given += 1;
            total -= count;
        }
    }
    let mut left = (1_u32 << log).checked_sub(given)?;
    if left == 0 {
        return Some(shares);
    }
    if total / left > low_for_one {
        low_for_one = (u64::from(total) * 3 / (u64::from(left) * 2)) as u32;
        for (&count, share) in counts.iter().zip(&mut shares) {
            if *share == OPEN && count <= low_for_one {
                *share = 1;
                given += 1;
                total -= count;
            }
        }
        left = (1_u32 << log).checked_sub(given)?;
    }
    if given as usize == counts.len() {
        // All symbols are rare: the first of the most frequent ones gets the remaining states.
        let most = counts.iter().max()?;
        let first = counts.iter().position(|count| count == most)?;
        shares[first] += left as i16;
        return Some(shares);
    }
    if total == 0 {
        if !shares.iter().any(|&share| share > 0) {
            return None;
        }
        for at in (0..counts.len()).cycle() {
            if left == 0 {
                break;
            }
            if shares[at] > 0 {
                left -= 1;
                shares[at] += 1;
            }
        }
        return Some(shares);
    }
    share_in_proportion(counts, &mut shares, total, left, log)?;
    Some(shares)
}

/// Gives `left` states to the [`OPEN`] symbols, whose counts add up to `total`. `None` if a symbol would get
/// none.
fn share_in_proportion(counts: &[u32], shares: &mut Shares, total: u32, left: u32, log: u32) -> Option<()> {
    let scale = 62 - log;
    let half = (1_u64 << (scale - 1)) - 1;
    let step = ((u64::from(left) << scale) + half) / u64::from(total);
    let mut sum = half;
    for (&count, share) in counts.iter().zip(shares) {
        if *share == OPEN {
            let end = sum + u64::from(count) * step;
            let states = (end >> scale) - (sum >> scale);
            if states == 0 {
                return None;
            }
            *share = states as i16;
            sum = end;
        }
    }
    Some(())
}

/// Appends the normalized counts (`FSE_writeNCount`), each in only as many bits as the remaining states
/// require.
pub(super) fn describe(shares: &[i16], log: u32, target: &mut Vec<u8>) {
    let mut bits = BitWriter::new(target);
    bits.add(log - MIN_LOG, 4);
    // One more than the remaining states.
    let mut left = (1_i32 << log) + 1;
    let mut threshold = 1_i32 << log;
    let mut width = log + 1;
    let mut symbol = 0;
    let mut after_none = false;
    while symbol < shares.len() && left > 1 {
        if after_none {
            let mut none = shares[symbol..].iter().take_while(|&&share| share == 0).count();
            symbol += none;
            while none >= 24 {
                bits.add(0xFFFF, 16);
                bits.flush();
                none -= 24;
            }
            while none >= 3 {
                bits.add(3, 2);
                none -= 3;
            }
            bits.add(none as u32, 2);
            bits.flush();
            if symbol == shares.len() {
                break;
            }
        }
        let share = i32::from(shares[symbol]);
        symbol += 1;
        let spared = 2 * threshold - 1 - left;
        left -= share.abs();
        let mut value = share + 1;
        if value >= threshold {
            value += spared;
        }
        bits.add(value as u32, width - u32::from(value < spared));
        bits.flush();
        after_none = share == 0;
        while left < threshold && width > 1 {
            width -= 1;
            threshold >>= 1;
        }
    }
    bits.finish();
}
