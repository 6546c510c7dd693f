//! Finite state entropy: symbols coded in fractions of bits, by a state that walks through a table.
//!
//! A table has 2^log states, and each symbol has as many of them as its share of the symbols, rounded by
//! [`normalize`]. [`describe`] is what the decoder has to know to make the same table.

use super::bits::BitWriter;

/// Tables have 2^9 states at most.
const MAX_STATES: usize = 512;
/// And code the lengths of copies, which have the most symbols.
pub(super) const MAX_SYMBOLS: usize = 53;
/// No table is smaller than 2^5 states.
const MIN_LOG: u32 = 5;
/// A share that stands for one state, but with less than one in mind: it is put at the end of the table.
const LESS_THAN_ONE: i16 = -1;

/// States for each symbol; -1 is one that has less than a whole.
pub(super) type Shares = [i16; MAX_SYMBOLS];

/// What the encoder needs.
pub(super) struct Table {
    log: u32,
    /// The states that follow, by symbol.
    next: [u16; MAX_STATES],
    symbols: [Step; MAX_SYMBOLS],
}

/// How a symbol changes the state.
#[derive(Clone, Copy, Default)]
struct Step {
    /// Added to the state it gives the bits to write, times 2^16.
    bits: u32,
    /// Added to the state without these it gives the place of the next state.
    next: i32,
}

impl Default for Table {
    fn default() -> Table {
        Table { log: 0, next: [0; MAX_STATES], symbols: [Step::default(); MAX_SYMBOLS] }
    }
}

impl Table {
    /// For these shares of 2^`log` states.
    pub(super) fn of(shares: &[i16], log: u32) -> Table {
        let mut table = Table::default();
        table.fill(shares, log);
        table
    }

    /// As [`Table::of`].
    pub(super) fn fill(&mut self, shares: &[i16], log: u32) {
        let states = 1_usize << log;
        // Where each symbol's states begin in `next`.
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
            // The state at which one bit more is written.
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

    /// For one symbol alone, which takes no bits.
    pub(super) fn fill_one(&mut self, symbol: usize) {
        self.log = 0;
        self.next[0] = 0;
        self.symbols[symbol] = Step::default();
    }

    /// The state that stands for the symbol that the decoder finds last.
    pub(super) fn begin(&self, symbol: usize) -> u32 {
        let step = self.symbols[symbol];
        let bits = step.bits.wrapping_add(1 << 15) >> 16;
        let state = (bits << 16).wrapping_sub(step.bits);
        self.follow(state >> bits, step)
    }

    /// Writes what leads from the state after `symbol` back to the present one, and goes there: at most 9 bits.
    #[inline]
    pub(super) fn encode(&self, symbol: usize, state: &mut u32, bits: &mut BitWriter) {
        let step = self.symbols[symbol];
        let count = state.wrapping_add(step.bits) >> 16;
        bits.add(*state, count);
        *state = self.follow(*state >> count, step);
    }

    /// Writes the state itself, with which the decoder begins.
    pub(super) fn end(&self, state: u32, bits: &mut BitWriter) {
        bits.add(state, self.log);
    }

    #[inline]
    fn follow(&self, state: u32, step: Step) -> u32 {
        u32::from(self.next[state.wrapping_add_signed(step.next) as usize & (MAX_STATES - 1)])
    }
}

/// The logarithm of the states that do for `total` symbols from 0 to `highest`: `spare` bits fewer than count them, within
/// bounds. Where there are no bits to spare the library's subtraction wraps, and it takes the most.
pub(super) fn best_log(most: u32, total: u32, highest: usize, spare: u32) -> u32 {
    let fewest = (total.ilog2() + 1).min((highest as u32).max(1).ilog2() + 2);
    (total - 1).max(1).ilog2().wrapping_sub(spare).min(most).max(fewest).max(MIN_LOG)
}

/// Shares 2^`log` states among symbols by their counts; those with less than a whole state get one, marked as such if
/// `less_than_one`. Nothing if that does not work out.
pub(super) fn normalize(counts: &[u32], total: u32, log: u32, less_than_one: bool) -> Option<Shares> {
    /// By how much a share below 8 has to be above a whole number to be rounded up, in 2^-20.
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
    // What is left over or missing is the largest's, if that can bear it.
    if -left < i32::from(shares[largest] >> 1) {
        shares[largest] += left as i16;
        return Some(shares);
    }
    normalize_poor(counts, total, log, rare)
}

/// Where rounding took too much from the most frequent symbol: those that get one state first, and of the rest in proportion.
fn normalize_poor(counts: &[u32], mut total: u32, log: u32, rare: i16) -> Option<Shares> {
    const OPEN: i16 = -2;

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
        // All are rare: the first of the most frequent gets what is left.
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
    let scale = 62 - log;
    let half = (1_u64 << (scale - 1)) - 1;
    let step = ((u64::from(left) << scale) + half) / u64::from(total);
    let mut sum = half;
    for (&count, share) in counts.iter().zip(&mut shares) {
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
    Some(shares)
}

/// Appends what the decoder makes the table from: the shares, each in as many bits as the states left to share out need.
pub(super) fn describe(shares: &[i16], log: u32, target: &mut Vec<u8>) {
    let mut bits = BitWriter::new(target);
    bits.add(log - MIN_LOG, 4);
    // One more than the states left.
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
