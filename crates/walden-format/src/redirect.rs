//! Redirects the tablespaces that WAL creates into the data directory of a server that replays a copy of the
//! WAL.
//!
//! Replay of `Tablespace/CREATE` links `pg_tblspc/OID` to the path in the record, and uses an existing
//! directory at that path (`create_tablespace_directories` in `tablespace.c`): on the original server's
//! machine, that is its live files. An empty path denotes an in-place tablespace, which is the directory
//! `pg_tblspc/OID` itself, and all other records reach a tablespace through that name. So a copy of a segment
//! with all paths empty can be replayed anywhere. The record keeps its length; its checksum changes.
//!
//! Each segment is processed on its own, with the [`Head`] of the record that crosses into it.

use std::fmt;
use std::ops::ControlFlow;

use crate::assemble::seal;
use crate::crc::record_crc;
use crate::geometry::Geometry;
use crate::lsn::{Lsn, Timeline};
use crate::page::PageHeader;
use crate::record::{self, RECORD_HEADER, Record, RecordHeader};
use crate::rmgr::{info, rmid};
use crate::stream::{Decoder, StreamInfo, Visitor};

/// Bytes of a `Tablespace/CREATE` record's main data before the path (`xl_tblspc_create_rec`).
const PATH_OFFSET: usize = 4;
/// No valid `Tablespace/CREATE` record is longer: its path is shorter than `MAXPGPATH`.
const MAX_RECORD: usize = 8192;

/// A tablespace whose path was emptied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redirected {
    /// The start LSN of the record that creates the tablespace.
    pub lsn: Lsn,
    /// The tablespace's OID.
    pub tablespace: u32,
    /// The tablespace's path in the original record.
    pub path: Vec<u8>,
}

/// The first bytes of a record at the end of a segment, too few to determine the kind of record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The start LSN of the record.
    pub lsn: Lsn,
    /// The record's bytes in this segment.
    pub bytes: Vec<u8>,
}

/// The changes made to a segment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rewritten {
    /// The tablespaces that the segment creates, in WAL order.
    pub tablespaces: Vec<Redirected>,
    /// The record that continues in the next segment, if its kind is not known yet.
    pub head: Option<Head>,
    /// The end of the decodable records, if it is before the segment's end; all bytes after it are zeroed.
    pub cut_at: Option<Lsn>,
}

/// Why a segment cannot be rewritten.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RedirectError {
    /// The first page is not a valid first page of a segment.
    Unreadable,
    /// A record that creates a tablespace continues in the next segment, but its checksum is in this segment.
    CrossesSegments(Lsn),
}

impl fmt::Display for RedirectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedirectError::Unreadable => f.write_str("expected a segment whose first page can be decoded"),
            RedirectError::CrossesSegments(lsn) => {
                write!(f, "the record at {lsn}, which creates a tablespace, continues in the next segment")
            }
        }
    }
}

impl std::error::Error for RedirectError {}

/// Empties the paths of all tablespaces that a segment creates. `timeline` is the timeline in the segment's
/// name: after a switch of timelines, the first page has an earlier timeline. `heads` come from earlier
/// segments of any timeline; heads that do not continue in this segment are ignored.
///
/// # Errors
/// The segment cannot be decoded, or a record with a path extends into another segment. The segment must not
/// be replayed in these cases.
pub fn redirect_tablespaces(
    segment: &mut [u8],
    timeline: Timeline,
    heads: &[Head],
) -> Result<Rewritten, RedirectError> {
    let info = StreamInfo::from_first_page(segment).map_err(|_| RedirectError::Unreadable)?;
    let info = StreamInfo { timeline, ..info };
    let first_page = PageHeader::parse(segment).map_err(|_| RedirectError::Unreadable)?;
    let start = first_page.address;
    let mut layout = Layout { start, geometry: info.geometry(), segment };
    let mut rewritten = Rewritten::default();
    for head in heads {
        if let Some(bytes) = layout.complete(head, &first_page) {
            rewritten.tablespaces.extend(layout.redirect(head.lsn, bytes, info));
        }
    }
    let mut decoder = Decoder::new(info, start, Lsn(u64::MAX));
    let mut creations = Creations::default();
    let decoded = decoder.push(layout.segment, &mut creations);
    for (lsn, bytes) in creations.0 {
        rewritten.tablespaces.extend(layout.redirect(lsn, bytes, info));
    }
    match (decoded, decoder.unfinished()) {
        (Err(_), _) => {
            // Replay ends where decoding ends.
            let position = decoder.position().max(start.plus(first_page.width() as u64));
            layout.segment[(position.0 - start.0) as usize..].fill(0);
            rewritten.cut_at = Some(position);
        }
        (Ok(_), Some(record)) => {
            let bytes = layout.first_bytes(record.lsn, RECORD_HEADER);
            match RecordHeader::parse(&bytes) {
                Some(header) if is_creation(header.rmid, header.info) => {
                    return Err(RedirectError::CrossesSegments(record.lsn));
                }
                Some(_) => {}
                None => rewritten.head = Some(Head { lsn: record.lsn, bytes }),
            }
        }
        (Ok(_), None) => {}
    }
    Ok(rewritten)
}

fn is_creation(manager: u8, bits: u8) -> bool {
    manager == rmid::TBLSPC && bits & info::RMGR_MASK == info::tblspc::CREATE
}

/// The `Tablespace/CREATE` records of a segment.
#[derive(Default)]
struct Creations(Vec<(Lsn, Vec<u8>)>);

impl Visitor for Creations {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if is_creation(record.header.rmid, record.header.info) {
            self.0.push((record.lsn, record.bytes().to_vec()));
        }
        ControlFlow::Continue(())
    }
}

/// A segment's bytes, addressed by record.
struct Layout<'s> {
    start: Lsn,
    geometry: Geometry,
    segment: &'s mut [u8],
}

impl Layout<'_> {
    /// Returns the offset in the segment of byte `index` of a record that starts at `lsn`; `None` if it is in
    /// another segment.
    fn offset_of(&self, lsn: Lsn, index: usize) -> Option<usize> {
        let place = self.geometry.start_at(self.geometry.usable_position(lsn).checked_add(index as u64)?);
        let offset = usize::try_from(place.0.checked_sub(self.start.0)?).ok()?;
        (offset < self.segment.len()).then_some(offset)
    }

    /// Returns the first bytes of a record, at most `most`, that are in the segment.
    fn first_bytes(&self, lsn: Lsn, most: usize) -> Vec<u8> {
        let offsets = (0..most).map_while(|index| self.offset_of(lsn, index));
        offsets.map(|offset| self.segment[offset]).collect()
    }

    /// Returns the bytes of a record that started in the preceding segment with `head`, if it creates a
    /// tablespace and its checksum is right.
    fn complete(&self, head: &Head, first_page: &PageHeader) -> Option<Vec<u8>> {
        let total = u32::from_le_bytes(*head.bytes.first_chunk()?) as usize;
        let rest = total.checked_sub(head.bytes.len())?;
        let continues = first_page.continues_record() && first_page.remaining as usize == rest;
        if !continues
            || total > MAX_RECORD
            || self.offset_of(head.lsn, head.bytes.len())? != first_page.width()
        {
            return None;
        }
        let mut bytes = head.bytes.clone();
        for index in head.bytes.len()..total {
            bytes.push(*self.segment.get(self.offset_of(head.lsn, index)?)?);
        }
        let header = RecordHeader::parse(&bytes)?;
        let is_right = is_creation(header.rmid, header.info) && record_crc(&bytes) == header.crc;
        is_right.then_some(bytes)
    }

    /// Empties the path of a record that creates a tablespace. The path of an in-place tablespace is already
    /// empty.
    fn redirect(&mut self, lsn: Lsn, mut bytes: Vec<u8>, info: StreamInfo) -> Option<Redirected> {
        let header = RecordHeader::parse(&bytes)?;
        let (version, page_bytes) = (info.version, info.data_page_bytes);
        let main_len =
            record::decode(&bytes, header, (lsn, lsn), version, page_bytes, &mut Vec::new()).ok()?.main_len;
        let start = bytes.len().checked_sub(main_len as usize)?;
        let tablespace = u32::from_le_bytes(*bytes.get(start..)?.first_chunk()?);
        let path = bytes
            .get_mut(start + PATH_OFFSET..)
            .filter(|path| path.first().is_some_and(|&byte| byte != 0))?;
        let original: Vec<u8> = path.iter().copied().take_while(|&byte| byte != 0).collect();
        path.fill(0);
        seal(&mut bytes);
        // Bytes of the record in the preceding segment do not change.
        for (index, byte) in bytes.iter().enumerate() {
            if let Some(offset) = self.offset_of(lsn, index) {
                self.segment[offset] = *byte;
            }
        }
        Some(Redirected { lsn, tablespace, path: original })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assemble::RecordBuilder;
    use crate::lsn::SegmentSize;
    use crate::page::{LONG_HEADER, LongHeader, flags};
    use crate::version::Major;

    const SIZE: u64 = 1 << 20;
    const FIRST: u64 = 7;

    fn geometry() -> Geometry {
        Geometry::with_default_pages(SegmentSize::new(SIZE).unwrap())
    }

    fn record(manager: u8, kind: u8, prev: Lsn, main_data: &[u8]) -> Vec<u8> {
        let header = RecordHeader { total_len: 0, xid: 700, prev, info: kind, rmid: manager, crc: 0 };
        let mut builder = RecordBuilder::new(header);
        builder.main_data = main_data.to_vec();
        builder.sealed_bytes()
    }

    fn creation(prev: Lsn, oid: u32, path: &str) -> Vec<u8> {
        let main_data = [&oid.to_le_bytes()[..], path.as_bytes(), &[0]].concat();
        record(rmid::TBLSPC, info::tblspc::CREATE, prev, &main_data)
    }

    /// Builds two segments with records from the first usable byte; `lead` bytes of other records precede
    /// those of `made`.
    fn log(lead: u64, made: &[&dyn Fn(Lsn) -> Vec<u8>]) -> (Vec<Vec<u8>>, Vec<Lsn>) {
        let geometry = geometry();
        let mut stream: Vec<(Lsn, Vec<u8>)> = Vec::new();
        let first = geometry.usable_position(Lsn(FIRST * SIZE));
        let (mut position, mut prev) = (first, Lsn(0x28));
        let mut push = |make: &dyn Fn(Lsn) -> Vec<u8>, position: &mut u64| {
            let lsn = geometry.start_at(*position);
            let bytes = make(prev);
            *position = geometry.usable_position(geometry.end_at(*position + bytes.len() as u64 + 7)) / 8 * 8;
            stream.push((lsn, bytes));
            prev = lsn;
            lsn
        };
        let filler = |len: usize| move |prev: Lsn| record(rmid::XLOG, info::xlog::NOOP, prev, &vec![7; len]);
        while position + 600 < first + lead {
            push(&filler(250), &mut position);
        }
        // Fill exactly up to the requested position.
        let rest = (first + lead - position) as usize;
        push(&filler(rest - RECORD_HEADER - 2 - usize::from(rest > 281) * 3), &mut position);
        assert_eq!(position, first + lead);
        let places = made.iter().map(|make| push(make, &mut position)).collect();
        push(&filler(40), &mut position);
        let mut segments = vec![vec![0; SIZE as usize]; 2];
        for (index, segment) in segments.iter_mut().enumerate() {
            let start = Lsn((FIRST + index as u64) * SIZE);
            for page in (0..SIZE).step_by(8192).map(|offset| start.plus(offset)) {
                let width = geometry.header_bytes(page);
                let long = (width == LONG_HEADER).then_some(LongHeader {
                    system_id: 5,
                    segment_bytes: SIZE as u32,
                    page_bytes: 8192,
                });
                let begins = |(lsn, bytes): &&(Lsn, Vec<u8>)| {
                    *lsn < page && geometry.record_end(*lsn, bytes.len() as u64) > page
                };
                let crossing = stream.iter().find(begins);
                let remaining = crossing.map_or(0, |(lsn, bytes)| {
                    let before = geometry.usable_position(page) - geometry.usable_position(*lsn);
                    bytes.len() as u64 - before
                });
                let mut info = if long.is_some() { flags::LONG_HEADER } else { 0 };
                info |= if remaining > 0 { flags::FIRST_IS_CONTRECORD } else { 0 };
                let header = PageHeader {
                    version: Major::V18,
                    info,
                    // The timeline switches in the first segment.
                    timeline: if page == Lsn(FIRST * SIZE) { 1 } else { 2 },
                    address: page,
                    remaining: remaining as u32,
                    long,
                };
                let offset = (page.0 - start.0) as usize;
                segment[offset..offset + width].copy_from_slice(&header.to_bytes()[..width]);
            }
        }
        for (lsn, bytes) in &stream {
            for (index, byte) in bytes.iter().enumerate() {
                let place = geometry.start_at(geometry.usable_position(*lsn) + index as u64).0 - FIRST * SIZE;
                segments[(place / SIZE) as usize][(place % SIZE) as usize] = *byte;
            }
        }
        (segments, places)
    }

    /// Returns the paths of the tablespaces that two segments create, as a decoder reads them in order.
    fn paths(segments: &[Vec<u8>]) -> Vec<(Lsn, u32, Vec<u8>)> {
        struct Paths(Vec<(Lsn, u32, Vec<u8>)>);
        impl Visitor for Paths {
            fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
                if is_creation(record.header.rmid, record.header.info) {
                    let (oid, path) = record.main_data().split_first_chunk().unwrap();
                    let path = path.iter().copied().take_while(|&byte| byte != 0);
                    self.0.push((record.lsn, u32::from_le_bytes(*oid), path.collect()));
                }
                ControlFlow::Continue(())
            }
        }
        let mut found = Paths(Vec::new());
        let info = StreamInfo { timeline: 2, ..StreamInfo::from_first_page(&segments[0]).unwrap() };
        let mut decoder = Decoder::new(info, Lsn(FIRST * SIZE), Lsn(u64::MAX));
        // The WAL ends with zeros, where decoding stops.
        let _ = decoder.push(&segments.concat(), &mut found);
        found.0
    }

    fn rewrite(segments: &mut [Vec<u8>]) -> Result<Vec<Redirected>, RedirectError> {
        let mut heads = Vec::new();
        let mut redirected = Vec::new();
        for segment in segments {
            let rewritten = redirect_tablespaces(segment, 2, &heads)?;
            heads = rewritten.head.into_iter().collect();
            redirected.extend(rewritten.tablespaces);
        }
        Ok(redirected)
    }

    #[test]
    fn paths_become_empty_wherever_the_record_is() {
        let one = |prev: Lsn| creation(prev, 16_400, "/srv/space");
        let in_place = |prev: Lsn| creation(prev, 16_401, "");
        let long = |prev: Lsn| creation(prev, 16_402, &format!("/srv/{}", "x".repeat(900)));
        // Within a page, across a page's end at each offset, and with 8 or 16 bytes in the first segment.
        let usable = geometry().usable_segment_bytes();
        let page = 8192 - LONG_HEADER as u64;
        let places =
            (0..120).map(|step| page - step * 8).chain([usable - 8, usable - 16, 4000, usable - 4096]);
        for lead in places {
            let (original, lsns) = log(lead, &[&one, &in_place, &long]);
            let before = paths(&original);
            assert_eq!(before.len(), 3, "{lead}");
            assert_eq!((before[0].0, before[0].1, &before[0].2[..]), (lsns[0], 16_400, &b"/srv/space"[..]));
            let mut rewritten = original.clone();
            let redirected = rewrite(&mut rewritten).unwrap();
            let expected: Vec<Redirected> = [&before[0], &before[2]]
                .map(|(lsn, tablespace, path)| Redirected {
                    lsn: *lsn,
                    tablespace: *tablespace,
                    path: path.clone(),
                })
                .into();
            assert_eq!(redirected, expected, "{lead}");
            let after = paths(&rewritten);
            assert_eq!(after.len(), 3, "{lead}");
            assert!(after.iter().all(|(_, _, path)| path.is_empty()), "{lead}: {after:?}");
            // Only these paths and checksums change, and a second pass changes nothing.
            let end =
                (geometry().start_at(geometry().usable_position(lsns[2]) + 2000).0 - FIRST * SIZE) as usize;
            let [old, new] = [&original, &rewritten].map(|segments| segments.concat());
            let changed = old[..end].iter().zip(&new[..end]).filter(|(a, b)| *a != *b).count();
            assert!((10..=10 + 905 + 8).contains(&changed), "{lead}: {changed}");
            let again = rewritten.clone();
            assert!(rewrite(&mut rewritten).unwrap().is_empty() && rewritten == again, "{lead}");
        }
    }

    #[test]
    fn a_record_whose_checksum_is_in_the_segment_before_is_refused() {
        let one = |prev: Lsn| creation(prev, 16_400, "/srv/space");
        let usable = geometry().usable_segment_bytes();
        for bytes in [24, 32, 40] {
            let (mut segments, lsns) = log(usable - bytes, &[&one]);
            assert_eq!(rewrite(&mut segments), Err(RedirectError::CrossesSegments(lsns[0])));
        }
    }

    #[test]
    fn a_head_that_does_not_continue_changes_nothing() {
        let one = |prev: Lsn| creation(prev, 16_400, "/srv/space");
        let usable = geometry().usable_segment_bytes();
        let (segments, lsns) = log(usable - 16, &[&one]);
        let head = redirect_tablespaces(&mut segments[0].clone(), 2, &[]).unwrap().head.unwrap();
        assert_eq!((head.lsn, head.bytes.len()), (lsns[0], 16));
        for (index, value) in [(4, 9), (0, 200), (15, 1)] {
            let mut other = head.clone();
            other.bytes[index] ^= value;
            let mut segment = segments[1].clone();
            assert!(redirect_tablespaces(&mut segment, 2, &[other]).unwrap().tablespaces.is_empty());
            // The pages after the end of WAL are zeroed.
            assert!(segment[..8192] == segments[1][..8192]);
        }
        let heads = [Head { lsn: head.lsn, bytes: vec![1; 8] }, head];
        assert_eq!(redirect_tablespaces(&mut segments[1].clone(), 2, &heads).unwrap().tablespaces.len(), 1);
    }

    #[test]
    fn replay_ends_where_decoding_ends() {
        let one = |prev: Lsn| creation(prev, 16_400, "/srv/space");
        let (mut segments, lsns) = log(4000, &[&one]);
        let at = (lsns[0].0 - FIRST * SIZE) as usize;
        // Makes the checksum wrong.
        segments[0][at + 40] ^= 1;
        let rewritten = redirect_tablespaces(&mut segments[0], 2, &[]).unwrap();
        assert_eq!((rewritten.cut_at, rewritten.tablespaces.len()), (Some(lsns[0]), 0));
        assert!(segments[0][at..].iter().all(|&byte| byte == 0));
        assert!(redirect_tablespaces(&mut [0; 8192], 2, &[]).is_err());
        assert!(redirect_tablespaces(&mut [], 2, &[]).is_err());
    }
}
