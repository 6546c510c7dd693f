//! Simulates less frequent checkpoints, with the touches of a sample of pages.
//!
//! A page has an image at its first change after a redo pointer. The WAL shows these first changes for its
//! own redo pointers. If the simulated server keeps some of these redo pointers, a page keeps its first image
//! after each kept pointer, and saves its other images. The simulation therefore rounds the start of each
//! checkpoint to the nearest redo pointer of the WAL.

use rustc_hash::FxHashMap;
use walden_format::lsn::{Lsn, SegmentSize};

use crate::image_sample::{Touch, TouchKind};

/// A redo pointer of the WAL.
#[derive(Clone, Copy, Debug)]
pub(super) struct RedoPointer {
    pub redo: Lsn,
    /// Start of its checkpoint, in seconds since 1970-01-01 UTC.
    pub time: i64,
    /// Whether it was requested, and is kept under all settings.
    pub is_requested: bool,
}

/// The trigger of checkpoints.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trigger {
    /// Number of segments from one redo pointer to the next.
    pub segments: Option<u64>,
    /// `checkpoint_timeout`, in seconds.
    pub timeout: Option<i64>,
}

/// Compressed bytes per byte of images.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageRatios {
    /// Compression ratio of images that their record kind always contains.
    pub forced: f64,
    /// Compression ratio of images of pages that the WAL has not touched before.
    pub first: f64,
    /// Compression ratio of images of pages that had an image before: recent rows and keys compress less.
    pub repeated: f64,
}

impl ImageRatios {
    pub const UNCOMPRESSED: ImageRatios = ImageRatios { forced: 1.0, first: 1.0, repeated: 1.0 };
}

/// The touches by cycle, ready for simulations.
pub(super) struct Workload {
    /// The redo pointer in force at the start of the WAL.
    begin: RedoPointer,
    /// End of the WAL, and its last time.
    end: RedoPointer,
    pointers: Vec<RedoPointer>,
    segment_size: SegmentSize,
    /// By cycle, starting with the one before the first pointer: page numbers from 0, kinds and bytes.
    cycles: Vec<Vec<(u32, TouchKind, f64)>>,
    pages: usize,
    /// Average bytes of data that a block with an image omits.
    displaced: f64,
}

/// The positions and times of a range of WAL.
pub(super) struct Bounds {
    /// The redo pointer in force at the start.
    pub begin: RedoPointer,
    /// The end, and the last time.
    pub end: RedoPointer,
    pub segment_size: SegmentSize,
}

impl Workload {
    /// Creates a workload. `touches` are in WAL order; each represents `weight` times its own bytes.
    /// `pointers` are ascending and after the start.
    pub fn new(
        touches: &[Touch],
        weight: f64,
        displaced: f64,
        bounds: Bounds,
        pointers: Vec<RedoPointer>,
    ) -> Workload {
        let Bounds { begin, end, segment_size } = bounds;
        let mut numbers: FxHashMap<u64, u32> = FxHashMap::default();
        let mut cycles = vec![Vec::new(); pointers.len() + 1];
        let mut cycle = 0;
        for touch in touches {
            while pointers.get(cycle).is_some_and(|pointer| pointer.redo <= touch.lsn) {
                cycle += 1;
            }
            let next = numbers.len() as u32;
            let page = *numbers.entry(touch.page).or_insert(next);
            cycles[cycle].push((page, touch.kind, f64::from(touch.bytes) * weight));
        }
        let pages = numbers.len();
        Workload { begin, end, pointers, segment_size, cycles, pages, displaced: displaced * weight }
    }

    /// Returns the bytes saved if all redo pointers of the WAL are kept: by compression, and by images that
    /// the rule does not explain.
    pub fn saved_with_all_pointers(&self, ratios: ImageRatios) -> f64 {
        Walk::new(self, ratios).run(|_| true)
    }

    /// Number of a trigger's intervals in the WAL.
    pub fn intervals(&self, trigger: Trigger) -> f64 {
        let (begin, end) = (&self.begin, &self.end);
        let by_volume = trigger.segments.map_or(0.0, |segments| {
            end.redo.0.saturating_sub(begin.redo.0) as f64
                / (segments * self.segment_size.bytes()).max(1) as f64
        });
        let by_time = trigger
            .timeout
            .map_or(0.0, |timeout| end.time.saturating_sub(begin.time) as f64 / timeout.max(1) as f64);
        by_volume.max(by_time)
    }

    /// Bytes that the WAL saves under another trigger. `phase`: length of the first interval as a share of a
    /// full interval, from 0 to 1.
    pub fn saved(&self, trigger: Trigger, ratios: ImageRatios, phase: f64) -> f64 {
        let mut due = Due::new(trigger, self.segment_size, &self.begin, phase);
        Walk::new(self, ratios).run(|boundary| due.decide(boundary))
    }
}

/// A redo pointer of the WAL, its position in the simulated WAL, and the next redo pointer's position if it
/// is not kept.
struct Boundary {
    pointer: RedoPointer,
    position: f64,
    next_position: f64,
    next_time: i64,
}

/// The position and time of the next checkpoint.
struct Due {
    trigger: Trigger,
    segment_bytes: f64,
    position: Option<f64>,
    time: Option<f64>,
}

impl Due {
    fn new(trigger: Trigger, size: SegmentSize, begin: &RedoPointer, phase: f64) -> Due {
        let mut due = Due { trigger, segment_bytes: size.bytes() as f64, position: None, time: None };
        let (position, time) = (begin.redo.0 as f64, begin.time as f64);
        due.position = due.position_after(position).map(|next| position + (next - position) * phase);
        due.time = trigger.timeout.map(|timeout| time + timeout as f64 * phase);
        due
    }

    /// The position of the checkpoint that follows one at `position`: the start of a segment.
    fn position_after(&self, position: f64) -> Option<f64> {
        let segments = self.trigger.segments? as f64;
        Some(((position / self.segment_bytes).floor() + segments) * self.segment_bytes)
    }

    /// Returns whether a redo pointer is kept, because it is the nearest one to the next checkpoint. The
    /// following interval compensates for the rounding.
    fn decide(&mut self, boundary: &Boundary) -> bool {
        let time = boundary.pointer.time as f64;
        let is_by_position =
            self.position.is_some_and(|due| is_nearest(due, boundary.position, boundary.next_position));
        let is_by_time = self.time.is_some_and(|due| is_nearest(due, time, boundary.next_time as f64));
        if !(is_by_position || is_by_time || boundary.pointer.is_requested) {
            return false;
        }
        let after = self.position_after(boundary.position);
        self.position = match (is_by_position, self.position, self.trigger.segments) {
            (true, Some(due), Some(segments)) => {
                Some(due + segments as f64 * self.segment_bytes).filter(|next| *next > boundary.position)
            }
            _ => None,
        }
        .or(after);
        self.time = self.trigger.timeout.map(|timeout| time + timeout as f64);
        true
    }
}

/// Whether `at` has reached `due`, or is nearer to it than `next`.
fn is_nearest(due: f64, at: f64, next: f64) -> bool {
    at >= due || due - at < next - due
}

/// A simulation in progress.
struct Walk<'a> {
    workload: &'a Workload,
    ratios: ImageRatios,
    /// By page: the last cycle in which it was touched, counted from 1.
    last_cycles: Vec<u32>,
    saved: f64,
}

impl Walk<'_> {
    fn new(workload: &Workload, ratios: ImageRatios) -> Walk<'_> {
        Walk { workload, ratios, last_cycles: vec![0; workload.pages], saved: 0.0 }
    }

    /// Decides at each redo pointer whether it is kept. Returns the bytes saved.
    fn run(mut self, mut decide: impl FnMut(&Boundary) -> bool) -> f64 {
        let workload = self.workload;
        // The first cycle of the WAL in the simulated cycle.
        let mut begin = 1;
        let (_, saved) = self.touch(0, begin);
        self.saved = saved;
        for (index, pointer) in workload.pointers.iter().enumerate() {
            let next = workload.pointers.get(index + 1).unwrap_or(&workload.end);
            let (saved_if_kept, saved_if_not) = self.touch(index + 1, begin);
            let is_kept = decide(&Boundary {
                pointer: *pointer,
                position: pointer.redo.0 as f64 - self.saved,
                next_position: next.redo.0 as f64 - self.saved - saved_if_not,
                next_time: next.time,
            });
            if is_kept {
                begin = index as u32 + 2;
            }
            self.saved += if is_kept { saved_if_kept } else { saved_if_not };
        }
        self.saved
    }

    /// Returns the bytes that a cycle saves in two cases: its redo pointer is kept, or the current simulated
    /// cycle continues. The argument after the cycle is the first cycle of the simulated one.
    fn touch(&mut self, cycle: usize, begin: u32) -> (f64, f64) {
        let (mut if_kept, mut if_not) = (0.0, 0.0);
        let number = cycle as u32 + 1;
        for (page, kind, bytes) in &self.workload.cycles[cycle] {
            let last = std::mem::replace(&mut self.last_cycles[*page as usize], number);
            let ratio = if last == 0 { self.ratios.first } else { self.ratios.repeated };
            let (compressed, dropped) = match kind {
                TouchKind::Image => (ratio, (bytes - self.workload.displaced).max(0.0)),
                TouchKind::Hint => (ratio, *bytes),
                TouchKind::Forced => (self.ratios.forced, bytes * (1.0 - self.ratios.forced)),
                TouchKind::Initialized => continue,
            };
            let compressed = bytes * (1.0 - compressed);
            if_kept += if last < number { compressed } else { dropped };
            if_not += if last < begin { compressed } else { dropped };
        }
        (if_kept, if_not)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: SegmentSize = SegmentSize::DEFAULT;

    /// Ten cycles of two segments and 30 seconds each: each cycle changes 100 pages of 8 kB, of which 50 are
    /// the same in all cycles.
    fn workload() -> Workload {
        let at = |segment: u64| Lsn(segment * SIZE.bytes());
        let pointer =
            |cycle: u64| RedoPointer { redo: at(2 * cycle), time: 30 * cycle as i64, is_requested: false };
        let touches: Vec<Touch> = (0..10u64)
            .flat_map(|cycle| {
                (0..100u64).map(move |number| Touch {
                    page: if number < 50 { number } else { 100 * (cycle + 1) + number },
                    lsn: Lsn(2 * cycle * SIZE.bytes() + 1000 * (number + 1)),
                    bytes: 8000,
                    kind: TouchKind::Image,
                    compressed: None,
                })
            })
            .collect();
        let bounds = Bounds { begin: pointer(0), end: pointer(10), segment_size: SIZE };
        Workload::new(&touches, 1.0, 100.0, bounds, (1..10).map(pointer).collect())
    }

    fn by_volume(segments: u64) -> Trigger {
        Trigger { segments: Some(segments), timeout: None }
    }

    const PLAIN: ImageRatios = ImageRatios::UNCOMPRESSED;

    #[test]
    fn the_settings_of_the_wal_save_nothing() {
        let workload = workload();
        assert_eq!(workload.saved_with_all_pointers(PLAIN), 0.0);
        assert_eq!(workload.saved(by_volume(2), PLAIN, 1.0), 0.0);
        assert_eq!(workload.saved(Trigger { segments: None, timeout: Some(30) }, PLAIN, 1.0), 0.0);
    }

    #[test]
    fn pages_of_several_cycles_have_one_image() {
        let workload = workload();
        let image = 8000.0 - 100.0;
        // Two cycles each: the 50 pages have five images instead of ten.
        assert_eq!(workload.saved(by_volume(4), PLAIN, 1.0), 5.0 * 50.0 * image);
        // The timeout is the same as twice the time.
        assert_eq!(
            workload.saved(Trigger { segments: None, timeout: Some(60) }, PLAIN, 1.0),
            5.0 * 50.0 * image
        );
        // Without any other checkpoint they have one.
        assert_eq!(workload.saved(by_volume(1000), PLAIN, 1.0), 9.0 * 50.0 * image);
        // The first trigger to be reached applies.
        let both = Trigger { segments: Some(1000), timeout: Some(60) };
        assert_eq!(workload.saved(both, PLAIN, 1.0), 5.0 * 50.0 * image);
    }

    #[test]
    fn requested_checkpoints_come_under_any_settings() {
        let mut workload = workload();
        workload.pointers.iter_mut().for_each(|pointer| pointer.is_requested = true);
        assert_eq!(workload.saved(by_volume(1000), PLAIN, 1.0), 0.0);
    }

    #[test]
    fn rounding_carries_over_to_the_next_interval() {
        let workload = workload();
        // Three segments are one and a half cycles: every second interval is one cycle, every other two.
        let saved = workload.saved(by_volume(3), PLAIN, 1.0) / (50.0 * 7900.0);
        assert!((3.0..=4.0).contains(&saved), "{saved}");
    }

    #[test]
    fn compression_saves_of_every_image_that_is_left() {
        let workload = workload();
        let half = ImageRatios { forced: 1.0, first: 0.5, repeated: 0.5 };
        assert_eq!(workload.saved_with_all_pointers(half), 1000.0 * 4000.0);
        assert_eq!(workload.saved(by_volume(1000), half, 1.0), 9.0 * 50.0 * 7900.0 + 550.0 * 4000.0);
    }
}
