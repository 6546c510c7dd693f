//! Writes some of the segments of simulated servers, so that their compressed sizes can be measured.
//!
//! A segment starts with the first record that starts in it. Records that a simulation writes itself, for
//! checkpoints and segment switches, and images of unknown pages are left out.

use std::sync::mpsc::SyncSender;

use walden_format::assemble::RecordBuilder;
use walden_format::geometry::Geometry;
use walden_format::lsn::{Lsn, SegmentSize, Timeline};
use walden_format::page::{LongHeader, PageHeader, flags};
use walden_format::record::{BlockRef, Compression, ImageHeader, ImageInfo, Record, block_flags};
use walden_format::version::Major;
use walden_recompress::{Method, Recompressor};
use walden_redo::{PAGE_BYTES, Page, Touched};

use super::State;
use super::block::{Block, Class, raw_image_of};
use crate::simulate::Simulation;

/// A segment that a simulated server would write.
#[derive(Debug)]
pub struct WrittenSegment {
    /// Index of the simulation.
    pub simulation: usize,
    /// The whole segment; bytes after its last record are zeros.
    pub bytes: Vec<u8>,
    /// Bytes of full-page images in it.
    pub images: u64,
    /// All other bytes of its records and pages.
    pub other: u64,
}

/// The segments to write.
pub struct WantedSegments {
    /// The cluster's system identifier.
    pub system_id: u64,
    /// The timeline in page headers.
    pub timeline: Timeline,
    /// The numbers of the segments by simulation, ascending.
    pub numbers: Vec<Vec<u64>>,
    /// Receives each segment. If the receiver is gone, the pass ends.
    pub sender: SyncSender<WrittenSegment>,
}

/// Writes wanted segments while a pass runs.
pub(super) struct SegmentWriter {
    wanted: WantedSegments,
    /// For each simulation, the end of the segment in which its last record ended, and the segment that is
    /// being written.
    states: Vec<(u64, Option<OpenSegment>)>,
    recompressor: Recompressor,
    is_receiver_gone: bool,
}

struct OpenSegment {
    size: SegmentSize,
    start: Lsn,
    bytes: Vec<u8>,
    images: u64,
    previous: Lsn,
}

impl SegmentWriter {
    pub fn new(wanted: WantedSegments) -> SegmentWriter {
        let states = wanted.numbers.iter().map(|_| (0, None)).collect();
        SegmentWriter { wanted, states, recompressor: Recompressor::new(), is_receiver_gone: false }
    }

    pub fn is_receiver_gone(&self) -> bool {
        self.is_receiver_gone
    }

    /// Sends the segments that are not complete.
    pub fn finish(mut self) {
        (0..self.states.len()).for_each(|at| self.close(at));
    }

    fn close(&mut self, at: usize) {
        let Some(open) = self.states.get_mut(at).and_then(|state| state.1.take()) else { return };
        let (mut bytes, images) = (open.bytes, open.images);
        let other = (bytes.len() as u64).saturating_sub(images);
        bytes.resize(open.size.bytes() as usize, 0);
        let segment = WrittenSegment { simulation: at, bytes, images, other };
        self.is_receiver_gone |= self.wanted.sender.send(segment).is_err();
    }

    /// Closes the segment that the simulation has left, and opens the current one if it is wanted.
    fn advance(&mut self, at: usize, simulation: &Simulation) {
        let end = simulation.segment_end();
        if self.states[at].0 == end {
            return;
        }
        self.close(at);
        let size = simulation.settings.segment_size;
        let number = simulation.segment_number();
        let is_wanted = self.wanted.numbers[at].binary_search(&number).is_ok();
        let start = size.start_of(number);
        let open = is_wanted.then(|| OpenSegment {
            size,
            start,
            bytes: Vec::with_capacity(size.bytes() as usize),
            images: 0,
            previous: Lsn(start.0.saturating_sub(PAGE_BYTES as u64 / 2)),
        });
        self.states[at] = (end, open);
    }
}

impl OpenSegment {
    /// Appends a record, and page headers before and within it, up to the end of the segment.
    fn append(&mut self, record: &[u8], (version, system_id, timeline): (Major, u64, Timeline)) {
        let geometry = Geometry::with_default_pages(self.size);
        let (page_bytes, limit) = (geometry.page_bytes() as usize, self.size.bytes() as usize);
        let mut written = 0;
        let mut lsn = None;
        while written < record.len() && self.bytes.len() < limit {
            if self.bytes.len().is_multiple_of(page_bytes) {
                let remaining = if written > 0 { (record.len() - written) as u32 } else { 0 };
                let header = PageHeader {
                    version,
                    info: if written > 0 { flags::FIRST_IS_CONTRECORD } else { 0 },
                    timeline,
                    address: self.start.plus(self.bytes.len() as u64),
                    remaining,
                    long: self.bytes.is_empty().then_some(LongHeader {
                        system_id,
                        segment_bytes: limit as u32,
                        page_bytes: page_bytes as u32,
                    }),
                };
                self.bytes.extend_from_slice(&header.to_bytes()[..header.width()]);
            }
            lsn.get_or_insert(self.start.plus(self.bytes.len() as u64));
            let room = page_bytes - self.bytes.len() % page_bytes;
            let part = room.min(record.len() - written);
            self.bytes.extend_from_slice(&record[written..written + part]);
            written += part;
        }
        self.bytes.resize(self.bytes.len().next_multiple_of(8).min(limit), 0);
        self.previous = lsn.unwrap_or(self.previous);
    }
}

impl State {
    /// Appends the record to the segments of the simulations in `written`, a bit mask.
    #[inline(never)]
    pub(super) fn write_segments(&mut self, record: &Record<'_>, touched: &[Touched], written: u64) {
        let Some(mut writer) = self.segments.take() else { return };
        for (at, simulation) in self.simulations.iter().enumerate() {
            if let (1, Some(open)) = (written >> at & 1, writer.states[at].1.as_mut()) {
                let method = simulation.settings.wal_compression;
                let (bytes, images) = rewrite(
                    record,
                    &self.blocks,
                    touched,
                    (at, method),
                    open.previous,
                    &mut writer.recompressor,
                );
                open.images += images;
                let of_pages = (record.version, writer.wanted.system_id, writer.wanted.timeline);
                open.append(&bytes, of_pages);
            }
            writer.advance(at, simulation);
        }
        self.segments = Some(writer);
    }
}

/// Returns the bytes of the record as a simulation under `method` writes it after the record at `previous`,
/// and the number of its bytes that are images.
fn rewrite(
    record: &Record<'_>,
    blocks: &[Block],
    touched: &[Touched],
    (at, method): (usize, Option<Method>),
    previous: Lsn,
    recompressor: &mut Recompressor,
) -> (Vec<u8>, u64) {
    let mut header = record.header;
    header.prev = previous;
    let mut builder = RecordBuilder::new(header);
    (builder.origin, builder.toplevel_xid) = (record.origin, record.toplevel_xid);
    builder.main_data = record.main_data().to_vec();
    let mut images = 0;
    for ((block, state), touched) in record.blocks.iter().zip(blocks).zip(touched) {
        let flags = if block.will_init { block_flags::WILL_INIT } else { 0 };
        let has_image = state.image_mask >> at & 1 != 0;
        let data = match (record.block_data(block), &state.displaced) {
            ([], Some(displaced)) if !has_image => displaced,
            // The image replaces the data.
            (_, _) if has_image && state.class != Class::Forced && !state.is_checked => &[][..],
            (own, _) => own,
        };
        let image = (has_image || state.is_checked)
            .then(|| image_of(record, (block, state, touched), method, recompressor))
            .flatten();
        images += image.as_ref().map_or(0, |(header, bytes)| (header.width() + bytes.len()) as u64);
        let image = image.as_ref().map(|(header, bytes)| (*header, &bytes[..]));
        builder.push_block(block.id, flags, (block.relation, block.fork, block.block), image, data);
    }
    (builder.sealed_bytes(), images)
}

/// Returns the image of a block under a method; `None` if its page is not known.
fn image_of(
    record: &Record<'_>,
    (block, state, touched): (&BlockRef, &Block, &Touched),
    method: Option<Method>,
    recompressor: &mut Recompressor,
) -> Option<(ImageHeader, Vec<u8>)> {
    let version = record.version;
    if let Some(own) = block.image.filter(|own| Method::from_compression(own.compression) == method) {
        let hole_len = ImageHeader::has_hole_len(own.info, version).then_some(own.hole_len);
        let header = ImageHeader { len: own.len, hole_offset: own.hole_offset, info: own.info, hole_len };
        return Some((header, record.image_data(&own).to_vec()));
    }
    let page: &Page = touched.page.as_deref()?;
    let (offset, hole) = match block.image {
        Some(own) => (own.hole_offset, own.hole_len),
        None if raw_image_of(record, block, page).has_hole => {
            (page.lower() as u16, (page.upper() - page.lower()) as u16)
        }
        None => (0, 0),
    };
    // In the page, `pd_lsn` is already the LSN of the record itself.
    let mut before = page.clone();
    before.set_lsn(state.lsn);
    let mut raw = before.0.get(..usize::from(offset))?.to_vec();
    raw.extend_from_slice(before.0.get(usize::from(offset) + usize::from(hole)..)?);
    let is_applied = block.image.is_none_or(|own| own.apply);
    let mut compressed = Vec::new();
    let extra = if hole > 0 { ImageHeader::HOLE_LEN_WIDTH } else { 0 };
    let kept = method.filter(|method| {
        recompressor.compress(*method, &raw, &mut compressed) && compressed.len() + extra < raw.len()
    });
    let compression = match kept {
        None => Compression::None,
        Some(Method::Pglz) => Compression::Pglz,
        Some(Method::Lz4) => Compression::Lz4,
        Some(Method::Zstd) => Compression::Zstd,
    };
    let info = ImageInfo::new(hole > 0, is_applied, compression, version)?;
    let bytes = if kept.is_some() { compressed } else { raw };
    let hole_len = (kept.is_some() && hole > 0).then_some(hole);
    Some((ImageHeader { len: u16::try_from(bytes.len()).ok()?, hole_offset: offset, info, hole_len }, bytes))
}
