//! Limits how many segments are decoded at the same time.
//!
//! Most compressed segments are read in windows. Segments of `walden compress` and of archives are decoded as
//! a whole, and a thread holds two of them: the current one, and the next one for the end of its last record.

use crate::compression::Compression;
use crate::inventory::Run;
use crate::machine::memory_bytes;
use crate::segment_file::SegmentFile;

/// Most decoded segments that a thread holds.
const MAX_DECODED: u64 = 2;
/// Divisor of the machine's memory: decoded segments may use a quarter of it.
const MEMORY_SHARE: u64 = 4;

impl Run {
    /// Returns how many threads, at least one and at most `threads`, may read segments of the run at the same
    /// time, so that their decoded segments fit into a quarter of the machine's memory.
    pub fn decoding_threads(&self, threads: usize) -> usize {
        if threads < 2 || !self.segments.iter().any(is_decoded_whole) {
            return threads;
        }
        self.threads_within(threads, memory_bytes() / MEMORY_SHARE)
    }

    fn threads_within(&self, threads: usize, bytes: u64) -> usize {
        let fitting = bytes / (MAX_DECODED * self.segment_size.bytes());
        threads.min(usize::try_from(fitting).unwrap_or(usize::MAX).max(1))
    }
}

/// Returns whether a segment is decoded as a whole when it is opened.
pub(crate) fn is_decoded_whole(segment: &SegmentFile) -> bool {
    match (&segment.store, segment.member) {
        (Some(store), Some(number)) => store.stream(number).is_none(),
        _ => segment.compression == Compression::Walden,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use walden_format::lsn::{SegmentName, SegmentSize};
    use walden_format::version::Major;

    use super::*;

    fn run(size: SegmentSize, compression: Compression) -> Run {
        let segment = |number| {
            let plain = SegmentFile::plain(Path::new("/"), SegmentName::new(1, number, size), size);
            SegmentFile { compression, ..plain }
        };
        let segments = (1..4).map(segment).collect();
        Run { system_id: 7, timeline: 1, segment_size: size, version: Major::V17, segments }
    }

    #[test]
    fn no_more_large_segments_are_decoded_at_once_than_there_is_memory_for() {
        let large = run(SegmentSize::MAX, Compression::Walden);
        for (gigabytes, expected) in [(0, 1), (1, 1), (4, 2), (5, 2), (16, 8), (1000, 8)] {
            assert_eq!(large.threads_within(8, gigabytes << 30), expected, "{gigabytes}");
        }
        assert_eq!(run(SegmentSize::DEFAULT, Compression::Walden).threads_within(8, 1 << 30), 8);
        assert!((1..=10_000).contains(&large.decoding_threads(10_000)));
    }

    #[test]
    fn segments_that_are_read_in_windows_do_not_count() {
        for compression in [Compression::None, Compression::Zstd] {
            assert_eq!(run(SegmentSize::MAX, compression).decoding_threads(10_000), 10_000);
        }
    }
}
