//! Pages that WAL overwrites, and their images, which replay does not need.

use std::collections::VecDeque;
use std::ops::Range;

use walden_format::geometry::Geometry;
use walden_format::lsn::Lsn;
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_redo::{BlockKey, Overwrites};
use walden_source::kept::KeptSegments;

/// Collects the pages that WAL overwrites before a position that is known only later: the redo pointer of the
/// last checkpoint.
#[derive(Default)]
pub(crate) struct OverwritesBefore {
    /// Overwrites in segments before the last known redo pointer.
    all: Overwrites,
    /// The end of these segments.
    end: Lsn,
    /// Overwrites in later segments, with the end of each segment.
    later: VecDeque<(Lsn, Overwrites)>,
    /// Number of pages in `later`.
    count: usize,
}

impl OverwritesBefore {
    /// Adds those in the segment that ends at `end`. Without them, more is replayed than necessary.
    pub fn add(&mut self, end: Lsn, found: Overwrites) {
        if self.count + found.count() <= Overwrites::MAX_PAGES {
            self.count += found.count();
            self.later.push_back((end, found));
        }
    }

    /// Notes a redo pointer up to which WAL may be replayed.
    pub fn reach(&mut self, redo: Lsn) {
        while let Some((end, found)) = self.later.pop_front_if(|(end, _)| *end <= redo) {
            self.count -= found.count();
            self.all.append(found);
            self.end = end;
        }
    }

    /// Returns those before the redo pointer up to which WAL is replayed, if they are known.
    pub fn before(self, redo: Lsn) -> Option<Overwrites> {
        // The last checkpoint need not be the one to replay to.
        (self.end <= redo).then_some(self.all)
    }
}

/// The place of a full-page image in the WAL.
pub(crate) struct ImagePlace {
    page: BlockKey,
    /// The record.
    lsn: Lsn,
    /// Offset of the image's bytes from the record's start, and their number.
    offset: u32,
    len: u16,
}

impl ImagePlace {
    /// Images below this length are not noted.
    const MIN_LEN: u16 = 512;

    /// Finds the images of a record that replay reads only if it restores the page.
    pub fn find(record: &Record<'_>) -> impl Iterator<Item = ImagePlace> {
        // Replay may look at others to learn whether hint bits are logged.
        let is_read = record.header.rmid == rmid::HEAP2 && record.version >= Major::V19;
        let blocks = if is_read { &[] } else { record.blocks };
        blocks.iter().filter_map(|block| {
            let image = block.image.filter(|image| image.len >= ImagePlace::MIN_LEN)?;
            let page = BlockKey::from_block(block);
            Some(ImagePlace { page, lsn: record.lsn, offset: image.offset, len: image.len })
        })
    }

    /// Returns the image's bytes in the segment that starts at `start`, without the headers of WAL pages.
    fn ranges(&self, geometry: Geometry, start: Lsn) -> impl Iterator<Item = Range<usize>> + use<> {
        let from = geometry.record_end(self.lsn, self.offset.into());
        let to = geometry.record_end(self.lsn, u64::from(self.offset) + u64::from(self.len));
        let to = to.min(start.plus(geometry.segment_size().bytes()));
        // A page may start with the image.
        let headers = geometry.pages_between(Lsn(from.0.saturating_sub(1)), to);
        let headers = headers.map(|(page, width)| (page, page.plus(width as u64)));
        let mut at = from;
        headers.chain([(to, to)]).filter_map(move |(header, end)| {
            let piece = at.bytes_since(start) as usize..header.bytes_since(start) as usize;
            at = end;
            (piece.start < piece.end).then_some(piece)
        })
    }
}

/// The images of the last segments, until enough later WAL is known: then many of them are overwritten.
#[derive(Default)]
pub(crate) struct ImagesOfSegments(VecDeque<(Lsn, Vec<ImagePlace>)>);

impl ImagesOfSegments {
    /// Segments that are kept as they are. With fewer, more images would not be overwritten yet, and with
    /// more, their contents would take more memory.
    const SEGMENTS: usize = 16;

    pub fn add(&mut self, start: Lsn, images: Vec<ImagePlace>) {
        self.0.push_back((start, images));
    }

    /// Cuts overwritten images out of segments.
    pub fn cut(&mut self, kept: &KeptSegments, overwrites: &OverwritesBefore, geometry: Geometry) {
        while self.0.len() > Self::SEGMENTS
            && let Some((start, images)) = self.0.pop_front()
        {
            // Replay verifies the checksums of records near its end.
            if start.plus(2 * geometry.segment_size().bytes()) <= overwrites.end {
                let is_overwritten = |image: &&ImagePlace| overwrites.all.has_later(image.page, image.lsn);
                let overwritten = images.iter().filter(is_overwritten);
                kept.cut(start, overwritten.flat_map(|image| image.ranges(geometry, start)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::Arc;

    use proptest::prelude::*;
    use walden_format::lsn::{SegmentName, SegmentSize};
    use walden_format::record::{Fork, RelFileLocator};
    use walden_source::inventory::{Run, SegmentFile};
    use walden_source::open::{Compression, open};
    use walden_source::store::{SegmentContents, SegmentStore, SharedStore};

    use super::*;

    const SEGMENT: u64 = 1 << 20;

    fn image(block: u32, lsn: Lsn, offset: u32, len: u16) -> ImagePlace {
        let relation = RelFileLocator { tablespace: 1663, database: 5, relation: 16384 };
        ImagePlace { page: BlockKey { relation, fork: Fork::MAIN, block }, lsn, offset, len }
    }

    fn geometry() -> Geometry {
        Geometry::with_default_pages(SegmentSize::new(SEGMENT).unwrap())
    }

    proptest! {
        /// The bytes of a record, one by one, are where the geometry has them.
        #[test]
        fn an_image_is_found_around_page_headers(
            page in 0..128_u64, at in 40..8192_u64, offset in 24..20_000_u32, len in 512..8193_u16,
        ) {
            let (geometry, start) = (geometry(), Lsn(7 * SEGMENT));
            let lsn = start.plus(page * 8192 + at / 8 * 8);
            let position = |byte: u32| geometry.start_at(geometry.usable_position(lsn) + u64::from(byte));
            let expected: Vec<u64> = (offset..offset + u32::from(len))
                .map(|byte| position(byte).bytes_since(start))
                .filter(|at| *at < SEGMENT)
                .collect();
            let found: Vec<u64> =
                image(1, lsn, offset, len).ranges(geometry, start).flatten().map(|at| at as u64).collect();
            prop_assert_eq!(found, expected);
        }
    }

    /// Segments full of their number.
    #[derive(Clone, Debug)]
    struct Numbered;

    impl SegmentStore for Numbered {
        fn reader(&self) -> Box<dyn SegmentContents> {
            Box::new(Numbered)
        }
    }

    impl SegmentContents for Numbered {
        fn read(&mut self, number: u64) -> std::io::Result<Arc<Vec<u8>>> {
            Ok(Arc::new(vec![number as u8; SEGMENT as usize]))
        }
    }

    #[test]
    fn images_are_cut_once_a_later_one_is_replayed_for_sure() {
        let (size, store) = (SegmentSize::new(SEGMENT).unwrap(), SharedStore::new(Numbered));
        let segment = |number: u64| SegmentFile {
            path: "archive".into(),
            name: SegmentName::new(1, number, size),
            partial: false,
            compression: Compression::Walden,
            member: Some(number),
            store: Some(store.clone()),
            needs_previous: false,
            size_on_disk: 1,
            start: size.start_of(number),
            version: Major::V17,
            system_id: 7,
            segment_size: size,
            page_bytes: 8192,
            is_restarted: false,
        };
        let read = |segment: &SegmentFile| {
            let mut content = Vec::new();
            open(segment).unwrap().read_to_end(&mut content).unwrap();
            content
        };
        const COUNT: u64 = 60;
        let segments = (1..=COUNT).map(segment).collect();
        let mut run = Run { system_id: 7, timeline: 1, version: Major::V17, segment_size: size, segments };
        let kept = KeptSegments::keep(&mut run, Lsn(0), usize::MAX);
        let (mut overwrites, mut images) = (OverwritesBefore::default(), ImagesOfSegments::default());
        // Each segment has 100 images: of a page of its own, and those of 99 pages of each third segment.
        for segment in &run.segments {
            read(segment);
            let number = segment.start.0 / SEGMENT;
            let of_segment: Vec<ImagePlace> = (0..100)
                .map(|index| {
                    let block =
                        if index == 0 { number as u32 } else { 1000 + index + 100 * (number % 3) as u32 };
                    image(block, segment.start.plus(10_000 * u64::from(index) + 40), 100, 8192)
                })
                .collect();
            let mut found = Overwrites::default();
            of_segment.iter().for_each(|image| found.insert(image.page, image.lsn));
            overwrites.add(segment.start.plus(SEGMENT), found);
            images.add(segment.start, of_segment);
            // The redo pointer of the last checkpoint, which is some segments back.
            overwrites.reach(Lsn((number.saturating_sub(4) / 5 * 5) * SEGMENT));
            images.cut(&kept, &overwrites, geometry());
        }
        kept.start_last_scan();
        let mut cut = 0;
        for segment in &run.segments {
            let number = segment.start.0 / SEGMENT;
            let content = read(segment);
            let other = content.iter().filter(|byte| **byte != number as u8).count();
            assert!(
                content[..8000].iter().all(|byte| *byte == number as u8),
                "its own page is not overwritten"
            );
            assert!(other == 0 || number <= COUNT - 16, "{number}: {other} bytes");
            cut += usize::from(other > 800_000);
        }
        assert_eq!(cut, COUNT as usize - 16, "segments without their overwritten images");
    }
}
