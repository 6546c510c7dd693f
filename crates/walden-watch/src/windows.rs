//! Sums over the last seconds and minutes. The numbers of time slots and of cells in each slot are limited,
//! so memory is bounded.

use std::cmp::Reverse;
use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use walden_explain::group::Cell;
use walden_explain::live::Piece;
use walden_explain::tally::{ImageTable, Tally};

/// The longest window, in seconds.
pub const MAX_WINDOW: f64 = 300.0;
/// Cells of a slot; if there are more than twice as many, the smaller ones are combined into the others.
const SLOT_CELLS: usize = 1500;
/// Cells of the sums of an interval.
const MAX_CELLS: usize = 20_000;
/// Width of the slots of each ring, and the longest window that it serves, both in seconds.
const RINGS: [(f64, f64); 2] = [(0.5, 10.0), (5.0, MAX_WINDOW)];

/// Sums over a span of time.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// By relation fork and kind of record.
    pub cells: FxHashMap<Cell, Tally>,
    /// Sum of cells that are too small to be kept separately.
    pub others: Tally,
    /// Full-page images by cause and compression.
    pub images: ImageTable,
    /// Committed transactions.
    pub committed: u64,
    /// Number of transactions that were rolled back.
    pub aborted: u64,
}

impl Sums {
    /// Adds the sums of a part of the WAL.
    pub fn add(&mut self, piece: &Piece) {
        self.add_limited(piece, MAX_CELLS);
    }

    fn add_limited(&mut self, piece: &Piece, cells: usize) {
        for (cell, tally) in &piece.cells {
            self.cells.entry(*cell).or_default().merge(tally);
        }
        self.images.merge(&piece.images);
        self.committed += piece.committed;
        self.aborted += piece.aborted;
        self.limit(cells);
    }

    fn merge(&mut self, other: &Sums) {
        for (cell, tally) in &other.cells {
            self.cells.entry(*cell).or_default().merge(tally);
        }
        self.others.merge(&other.others);
        self.images.merge(&other.images);
        self.committed += other.committed;
        self.aborted += other.aborted;
    }

    fn limit(&mut self, cells: usize) {
        if self.cells.len() <= 2 * cells {
            return;
        }
        let mut all: Vec<(Cell, Tally)> = self.cells.drain().collect();
        all.sort_unstable_by_key(|(cell, tally)| (Reverse(tally.bytes()), *cell));
        for (_, tally) in all.drain(cells..) {
            self.others.merge(&tally);
        }
        self.cells.extend(all);
    }

    /// Returns the sum of all cells and the others.
    pub fn total(&self) -> Tally {
        let mut total = self.others;
        self.cells.values().for_each(|tally| total.merge(tally));
        total
    }
}

/// Sums over a window, and its length.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Length in seconds; shorter than requested if counting started later.
    pub seconds: f64,
    /// The sums.
    pub sums: Sums,
}

impl Window {
    /// Converts a sum of the window to a rate per second.
    pub fn per_second(&self, bytes: u64) -> f64 {
        if self.seconds > 0.0 { bytes as f64 / self.seconds } else { 0.0 }
    }
}

/// The sums of the last minutes, in time slots.
#[derive(Debug)]
pub struct Windows {
    began: f64,
    rings: [Ring; 2],
}

#[derive(Debug)]
struct Ring {
    width: f64,
    max_seconds: f64,
    slots: VecDeque<(i64, Sums)>,
}

impl Windows {
    /// Starts counting. Times are in seconds by any monotonic clock.
    pub fn new(now: f64) -> Windows {
        let ring = |(width, max_seconds)| Ring { width, max_seconds, slots: VecDeque::new() };
        Windows { began: now, rings: RINGS.map(ring) }
    }

    /// Adds the sums of a part of the WAL that was just written.
    pub fn add(&mut self, now: f64, piece: &Piece) {
        for ring in &mut self.rings {
            ring.slot(now).add_limited(piece, SLOT_CELLS);
        }
    }

    /// Returns the sums of the last `seconds`, at most [`MAX_WINDOW`].
    pub fn last(&self, now: f64, seconds: f64) -> Window {
        let ring = self.rings.iter().find(|ring| seconds <= ring.max_seconds).unwrap_or(&self.rings[1]);
        let first = ((now - seconds.min(ring.max_seconds)) / ring.width).floor() as i64;
        let mut window = Window::default();
        for (_, sums) in ring.slots.iter().filter(|(slot, _)| *slot >= first) {
            window.sums.merge(sums);
        }
        window.seconds = (now - (first as f64 * ring.width).max(self.began)).max(0.0);
        window
    }
}

impl Ring {
    fn slot(&mut self, now: f64) -> &mut Sums {
        let number = (now / self.width).floor() as i64;
        if self.slots.back().is_none_or(|(last, _)| *last < number) {
            self.slots.push_back((number, Sums::default()));
            let oldest = number - (self.max_seconds / self.width).ceil() as i64 - 1;
            while self.slots.front().is_some_and(|(first, _)| *first < oldest) {
                self.slots.pop_front();
            }
        }
        match self.slots.back_mut() {
            Some((_, sums)) => sums,
            None => unreachable!("a slot was pushed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walden_explain::tally::Bucket;

    fn piece(kind: u16, bytes: u64) -> Piece {
        let mut tally = Tally { records: 1, ..Tally::default() };
        tally.buckets.add(Bucket::MainData, bytes);
        let cell = Cell { kind: Some(kind), ..Cell::FRAMING };
        Piece { cells: vec![(cell, tally)], committed: 1, ..Piece::default() }
    }

    #[test]
    fn windows_slide() {
        let mut windows = Windows::new(100.0);
        for second in 0..1000 {
            windows.add(100.0 + f64::from(second), &piece(1, 1000));
        }
        for seconds in [2.0, 10.0, 60.0, 300.0] {
            let window = windows.last(1100.0, seconds);
            assert!(window.seconds >= seconds && window.seconds <= seconds + 5.0, "{}", window.seconds);
            let rate = window.per_second(window.sums.total().bytes());
            assert!((rate - 1000.0).abs() < 1000.0 / seconds, "{seconds}: {rate}");
        }
        assert_eq!(windows.last(2000.0, 300.0).sums.total().bytes(), 0);
        // Counting started later than the window.
        let mut young = Windows::new(7.0);
        young.add(8.0, &piece(1, 100));
        assert_eq!(young.last(9.0, 300.0).seconds, 2.0);
        assert_eq!(young.last(9.0, 300.0).sums.committed, 1);
    }

    #[test]
    fn many_cells_become_others_and_nothing_is_lost() {
        let mut windows = Windows::new(0.0);
        for kind in 0..10_000 {
            windows.add(1.0, &piece(kind, 1 + u64::from(kind)));
        }
        let window = windows.last(2.0, 60.0);
        assert!(window.sums.cells.len() <= 2 * SLOT_CELLS);
        assert_eq!(window.sums.total().bytes(), (1..=10_000).sum::<u64>());
        assert_eq!(window.sums.total().records, 10_000);
        assert!(windows.rings.iter().all(|ring| ring.slots.len() == 1));
    }
}
