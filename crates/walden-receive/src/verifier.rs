//! Decodes WAL while it is received: acknowledged WAL has the right checksums.
//!
//! Otherwise, bits flipped by the network, a proxy or memory would be noticed only when a segment is
//! archived, after the server has reported to clients that their commits are safe.

use std::ops::ControlFlow;

use walden_format::fault::{Fault, FaultKind};
use walden_format::geometry::Geometry;
use walden_format::lsn::{Lsn, SegmentSize, Timeline};
use walden_format::page::{LONG_HEADER, PageHeaderError, SHORT_HEADER, UnreadPageHeader};
use walden_format::record::Record;
use walden_format::stream::{Decoder, StreamInfo, Visitor};
use walden_format::version::UnreadableMagic;

/// Decodes the WAL of a timeline in pieces of any size.
pub(crate) struct Verifier {
    timeline: Timeline,
    size: SegmentSize,
    info: Option<StreamInfo>,
    /// The WAL from the start of the page in which the last verified record starts: a decoder starts with a
    /// page.
    tail: Vec<u8>,
    tail_start: Lsn,
    verified: Lsn,
    /// The end of the incomplete record, unless a crash cut it off.
    pending_until: Lsn,
    /// The incomplete record, if it is too long to be held.
    long_record: Option<LongRecord>,
    /// Maximum number of bytes of WAL that are held, in addition to the bytes of the last [`Verifier::push`].
    max_held_bytes: usize,
    /// The bytes between a switch record and this position, the end of the segment, are not records.
    unused_until: Lsn,
    /// Verify WAL of an unknown version by its page headers.
    accept_unknown_versions: bool,
    /// The magic and the size of the pages, if their version is unknown.
    unread: Option<(u16, u32)>,
}

/// The default of [`Verifier::max_held_bytes`].
const MAX_HELD_BYTES: usize = 64 << 20;

/// A record that is too long to be held: its checksum is computed while it is received.
struct LongRecord {
    start: Lsn,
    end: Lsn,
    /// Gets complete pages. The next one is the first in [`Verifier::tail`].
    decoder: Decoder,
}

/// Visits records to find the last record.
#[derive(Default)]
struct Last {
    start: Lsn,
    is_switch: bool,
}

impl Visitor for Last {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.start = record.lsn;
        self.is_switch = record.header.is_switch();
        ControlFlow::Continue(())
    }
}

impl Verifier {
    /// Creates a verifier that starts at a segment or, if `info` is known, at a page. The rest of a record
    /// that started earlier is not verified.
    pub fn new(
        timeline: Timeline,
        size: SegmentSize,
        start: Lsn,
        info: Option<StreamInfo>,
        accept_unknown_versions: bool,
    ) -> Verifier {
        Verifier {
            timeline,
            size,
            info,
            tail: Vec::new(),
            tail_start: start,
            verified: start,
            pending_until: start,
            long_record: None,
            max_held_bytes: MAX_HELD_BYTES,
            unused_until: start,
            accept_unknown_versions,
            unread: None,
        }
    }

    /// Returns whether a page has been received, or was in the spool, so that the version is known.
    pub fn is_version_known(&self) -> bool {
        self.info.is_some() || self.unread.is_some()
    }

    /// Decodes the next bytes, and returns the verified position: the end of a record.
    ///
    /// # Errors
    /// The fault, if the WAL is damaged.
    pub fn push(&mut self, mut at: Lsn, mut bytes: &[u8]) -> Result<Lsn, Fault> {
        if at < self.unused_until {
            let unused = self.unused_until.bytes_since(at).min(bytes.len() as u64) as usize;
            (at, bytes) = (at.plus(unused as u64), &bytes[unused..]);
            (self.verified, self.tail_start) = (at, at);
        }
        self.tail.extend_from_slice(bytes);
        if self.unread.is_some() {
            return self.push_unread();
        }
        let end = at.plus(bytes.len() as u64);
        if end < self.pending_until && self.long_record.is_none() {
            if self.tail.len() <= self.max_held_bytes {
                return Ok(self.verified);
            }
            self.begin_long_record()?;
        }
        if self.long_record.is_some() && !self.push_long_record(end)? {
            return Ok(self.verified);
        }
        let info = match self.info {
            Some(info) => info,
            // The first page header is incomplete.
            None if self.tail.len() < LONG_HEADER => return Ok(self.verified),
            None => {
                let fault = |kind| Fault { lsn: self.tail_start, at: self.tail_start, kind };
                let info = match StreamInfo::from_first_page(&self.tail) {
                    Err(kind) if self.accept_unknown_versions && kind.unknown_version().is_some() => {
                        let first = UnreadPageHeader::parse(&self.tail);
                        let pages = first.and_then(|first| Some((first.magic, first.long?.page_bytes)));
                        let is_valid = |pages: &(u16, u32)| Geometry::new(self.size, pages.1).is_some();
                        self.unread = Some(pages.filter(is_valid).ok_or_else(|| fault(kind))?);
                        return self.push_unread();
                    }
                    other => other.map_err(fault)?,
                };
                *self.info.insert(StreamInfo { timeline: self.timeline, ..info })
            }
        };
        let page_bytes = info.page_bytes as usize;
        let whole = info.geometry().decodable_end(end).bytes_since(self.tail_start) as usize;
        let mut decoder = Decoder::new(info, self.tail_start, Lsn(u64::MAX)).with_checked_padding();
        let mut last = Last::default();
        decoder.push(&self.tail[..whole], &mut last)?;
        if let Some(unfinished) = decoder.unfinished() {
            self.pending_until = info.geometry().record_end(unfinished.lsn, unfinished.total_len.into());
        }
        if last.start == Lsn::INVALID {
            if decoder.unfinished().is_none() {
                // All these bytes belong to a record that started earlier.
                let pages = self.tail.len() - self.tail.len() % page_bytes;
                self.drain(pages);
            }
            return Ok(self.verified);
        }
        self.verified = self.verified.max(decoder.position());
        if last.is_switch {
            let segment = self.size.segment_of(last.start);
            self.unused_until = self.size.start_of(segment + 1);
            self.verified = end.min(self.unused_until);
            let behind = end.bytes_since(self.unused_until) as usize;
            let kept = self.tail.len() - behind.min(self.tail.len());
            self.tail.drain(..kept);
            self.tail_start = self.unused_until.min(end);
            return Ok(self.verified);
        }
        let offset = last.start.bytes_since(self.tail_start) as usize;
        self.drain(offset - offset % page_bytes);
        Ok(self.verified)
    }

    /// Checks the headers of received pages of a version that Walden does not read. Returns the end of the
    /// received WAL, excluding an incomplete header.
    fn push_unread(&mut self) -> Result<Lsn, Fault> {
        while let Some(header) = self.tail.get(..SHORT_HEADER) {
            let Some((magic, page_bytes)) = self.unread else { break };
            let is_first = self.size.offset_of(self.tail_start) == 0;
            if is_first && self.tail.len() < LONG_HEADER {
                break;
            }
            // Pages after a switch record are zeros.
            if header.iter().any(|&byte| byte != 0) {
                self.expect_unread_page(magic, page_bytes)?;
            }
            self.verified = self.tail_start.plus(self.tail.len() as u64);
            if self.tail.len() < page_bytes as usize {
                return Ok(self.verified);
            }
            self.drain(page_bytes as usize);
        }
        self.verified = self.tail_start;
        Ok(self.verified)
    }

    /// Checks the header of the first page in [`Verifier::tail`].
    fn expect_unread_page(&self, magic: u16, page_bytes: u32) -> Result<(), Fault> {
        let at = self.tail_start;
        let fault = |kind| Fault { lsn: at, at, kind };
        let no_page = |magic| FaultKind::PageHeader(PageHeaderError::Magic(magic, UnreadableMagic::NotWal));
        let Some(found) = UnreadPageHeader::parse(&self.tail).filter(|found| found.magic == magic) else {
            return Err(fault(no_page(u16::from_le_bytes([self.tail[0], self.tail[1]]))));
        };
        if found.address != at {
            return Err(fault(FaultKind::PageAddress { expected: at, found: found.address }));
        }
        if !(1..=self.timeline).contains(&found.timeline) {
            let (expected, found) = (self.timeline, found.timeline);
            return Err(fault(FaultKind::PageTimeline { expected, found }));
        }
        match (self.size.offset_of(at) == 0, found.long) {
            (true, Some(long))
                if u64::from(long.segment_bytes) != self.size.bytes() || long.page_bytes != page_bytes =>
            {
                let (segment_bytes, page_bytes) = (long.segment_bytes, long.page_bytes);
                Err(fault(FaultKind::Geometry { segment_bytes, page_bytes }))
            }
            (true, Some(_)) | (false, None) => Ok(()),
            (long_expected, _) => Err(fault(FaultKind::PageHeaderWidth { long_expected })),
        }
    }

    /// Starts decoding an incomplete record while it is received, because it is too long to be held.
    fn begin_long_record(&mut self) -> Result<(), Fault> {
        let Some(info) = self.info else { return Ok(()) };
        let pages = self.tail.len() - self.tail.len() % info.page_bytes as usize;
        let mut decoder = Decoder::new(info, self.tail_start, Lsn(u64::MAX)).with_checked_padding();
        decoder.push(&self.tail[..pages], &mut Last::default())?;
        // A crash may have cut off the unfinished record, and another record follows.
        if let Some(unfinished) = decoder.unfinished() {
            let (start, bytes) = (unfinished.lsn, unfinished.total_len.into());
            let end = info.geometry().record_end(start, bytes);
            self.long_record = Some(LongRecord { start, end, decoder });
            self.drain(pages);
        } else {
            self.pending_until = self.tail_start;
        }
        Ok(())
    }

    /// Decodes the next bytes of a record that is too long to be held. Returns true once it has ended: the
    /// page in which it ends is then the first in [`Verifier::tail`].
    fn push_long_record(&mut self, end: Lsn) -> Result<bool, Fault> {
        let (Some(info), Some(long)) = (self.info, &mut self.long_record) else { return Ok(true) };
        let page_bytes = info.page_bytes as usize;
        let decodable = info.geometry().decodable_end(end);
        let (mut decoded, mut is_ended) = (0, false);
        while !is_ended && decoded < self.tail.len() {
            let rest = &self.tail[decoded..];
            let page = match rest.get(..page_bytes) {
                Some(page) => page,
                // The page in which it ends may be incomplete.
                None if long.end <= decodable => rest,
                None => break,
            };
            long.decoder.push(page, &mut Last::default())?;
            let unfinished = long.decoder.unfinished().map(|unfinished| unfinished.lsn);
            is_ended = unfinished != Some(long.start);
            if !is_ended {
                decoded += page.len();
            }
        }
        if is_ended {
            self.verified = self.verified.max(long.decoder.position());
            self.long_record = None;
            self.pending_until = self.verified;
        }
        self.drain(decoded);
        Ok(is_ended)
    }

    /// Drops complete pages from the start of the held bytes.
    fn drain(&mut self, bytes: usize) {
        self.tail.drain(..bytes);
        self.tail_start = self.tail_start.plus(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use walden_format::rmgr::{info, rmid};
    use walden_format::version::Major;
    use walden_testing::writer::LogWriter;

    use super::*;

    const SEGMENT: u64 = 1 << 20;
    const START: Lsn = Lsn(3 * SEGMENT);

    /// Returns WAL with records of all sizes, some across segments, and a switch, and the ends of its
    /// records.
    fn log() -> (Vec<u8>, Vec<Lsn>) {
        let mut writer = LogWriter::new(Major::V18);
        (writer.info.timeline, writer.start, writer.previous) = (1, START, Lsn(START.0 - 32));
        let mut ends = Vec::new();
        for number in 0_usize.. {
            let text = format!("record {number} ").repeat(1 + (number * 37) % 1900);
            writer.main_data(rmid::XLOG, info::xlog::NOOP, text.as_bytes());
            // Occasionally, a record that ends in the first bytes of a page.
            let left = 8192 - writer.bytes.len() % 8192;
            if number % 10 == 5 && left > 200 {
                writer.main_data(rmid::XLOG, info::xlog::NOOP, &vec![7; left - 29 + 1 + number % 30]);
            }
            ends.push(START.plus(writer.bytes.len() as u64));
            if writer.bytes.len() as u64 > 5 * SEGMENT / 2 {
                break;
            }
            if number == 30 {
                writer.switch();
                ends.push(START.plus(writer.bytes.len() as u64));
            }
        }
        (writer.bytes, ends)
    }

    fn verifier() -> Verifier {
        Verifier::new(1, SegmentSize::new(SEGMENT).unwrap(), START, None, false)
    }

    fn push_all(log: &[u8], sizes: &[usize]) -> Result<Vec<Lsn>, (Lsn, Fault)> {
        push_all_to(verifier(), log, sizes)
    }

    fn push_all_to(mut verifier: Verifier, log: &[u8], sizes: &[usize]) -> Result<Vec<Lsn>, (Lsn, Fault)> {
        let (mut at, mut verified) = (0, Vec::new());
        for size in sizes.iter().cycle() {
            let end = (at + size).min(log.len());
            match verifier.push(START.plus(at as u64), &log[at..end]) {
                Ok(lsn) => verified.push(lsn),
                Err(fault) => return Err((verified.last().copied().unwrap_or(START), fault)),
            }
            at = end;
            if at == log.len() {
                break;
            }
        }
        Ok(verified)
    }

    #[test]
    fn the_end_of_the_last_record_is_found_in_parts_of_any_size() {
        let (log, ends) = log();
        for sizes in [&[131_072][..], &[8192], &[5000, 1, 300, 77_777], &[log.len()], &[997]] {
            let verified = push_all(&log, sizes).unwrap();
            assert_eq!(verified.last(), ends.last(), "{sizes:?}");
            assert!(verified.is_sorted());
            // Only received WAL is verified, and every completely received record is.
            let mut came = 0;
            for (verified, size) in verified.iter().zip(sizes.iter().cycle()) {
                came = (came + size).min(log.len());
                assert!(*verified <= START.plus(came as u64), "{sizes:?}: {verified} of {came}");
            }
        }
    }

    #[test]
    fn a_record_is_verified_with_its_last_byte() {
        let (log, ends) = log();
        // Some of the records, and each record that ends just after a page header.
        let is_behind_header = |end: &Lsn| (24..64).contains(&(end.0 % 8192));
        let some = ends.iter().take(25).skip(3).chain(ends.iter().filter(|end| is_behind_header(end)));
        let mut behind_header = 0;
        for &end in some {
            behind_header += u32::from(is_behind_header(&end));
            let bytes = end.bytes_since(START) as usize;
            assert_eq!(push_all(&log[..bytes], &[100_000]).unwrap().last(), Some(&end));
            let before = push_all(&log[..bytes - 8], &[100_000]).unwrap();
            assert!(before.last() < Some(&end), "{end}");
        }
        assert!(behind_header > 2, "{behind_header} records end behind a page's header");
    }

    #[test]
    fn a_record_that_is_too_long_to_be_held_is_verified_as_well() {
        let (log, ends) = log();
        let few = || Verifier { max_held_bytes: 10_000, ..verifier() };
        let (mut verifier, mut long) = (few(), 0);
        for (part, at) in log.chunks(997).zip((0..).step_by(997)) {
            verifier.push(START.plus(at), part).unwrap();
            long += u32::from(verifier.long_record.is_some());
            assert!(verifier.tail.len() < 20_000, "{} bytes are held", verifier.tail.len());
        }
        assert!(long > 100, "{long} parts of long records");
        for sizes in [&[5000, 1, 300, 77_777][..], &[8192], &[997]] {
            let verified = push_all_to(few(), &log, sizes).unwrap();
            assert_eq!(verified, push_all(&log, sizes).unwrap(), "{sizes:?}");
            assert_eq!(verified.last(), ends.last(), "{sizes:?}");
        }
        for at in (0..log.len()).step_by(15_013) {
            let mut damaged = log.clone();
            damaged[at] ^= 4;
            match push_all_to(few(), &damaged, &[3000]) {
                Err((verified, _)) => assert!(verified <= START.plus(at as u64), "flipped at {at}"),
                Ok(_) => assert!(log[at] == 0, "flipped at {at}, not found"),
            }
        }
    }

    /// Returns WAL with the page magic of a newer version.
    fn newer_log() -> Vec<u8> {
        let (mut log, _) = log();
        for page in log.chunks_mut(8192) {
            if page[..2] != [0, 0] {
                page[..2].copy_from_slice(&0xD1F0_u16.to_le_bytes());
            }
        }
        log
    }

    #[test]
    fn the_log_of_a_version_that_is_not_read_is_verified_by_its_pages_if_that_is_accepted() {
        let log = newer_log();
        let accepting = || Verifier { accept_unknown_versions: true, ..verifier() };
        let end = START.plus(log.len() as u64);
        for sizes in [&[131_072][..], &[8192], &[5000, 1, 300, 77_777], &[log.len()], &[997], &[20]] {
            let (_, fault) = push_all(&log, sizes).unwrap_err();
            assert_eq!(fault.kind.unknown_version().map(|(magic, _)| magic), Some(0xD1F0), "{sizes:?}");
            let verified = push_all_to(accepting(), &log, sizes).unwrap();
            assert_eq!(verified.last(), Some(&end), "{sizes:?}");
            assert!(verified.is_sorted());
            let mut came = 0;
            for (verified, size) in verified.iter().zip(sizes.iter().cycle()) {
                came = (came + size).min(log.len());
                assert!(*verified <= START.plus(came as u64), "{sizes:?}: {verified} of {came}");
                assert!(START.plus(came as u64).bytes_since(*verified) < LONG_HEADER as u64, "{sizes:?}");
            }
        }
        // The header must have the right address, timeline, magic, and sizes.
        for (at, byte) in [(8192 * 5 + 9, 0x55), (8192 * 5 + 4, 9), (8192 * 5, 0x18), (32, 1)] {
            let mut damaged = log.clone();
            damaged[at] ^= byte;
            for sizes in [&[1000][..], &[200_000]] {
                let (verified, _) = push_all_to(accepting(), &damaged, sizes).unwrap_err();
                assert!(verified <= START.plus(at as u64), "{at}: {verified}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_in_padding_is_refused() {
        let (log, ends) = log();
        let mut tested = 0;
        // The padding after each record, and the padding of a page header.
        let mut positions: Vec<usize> = ends.iter().map(|end| end.bytes_since(START) as usize - 1).collect();
        positions.extend([8192 * 3 + 20, 8192 * 3 + 23, 20]);
        for at in positions.into_iter().filter(|&at| log[at] == 0) {
            let mut damaged = log.clone();
            damaged[at] ^= 0x10;
            for sizes in [&[50_000][..], &[997], &[8192]] {
                let verifiers = [verifier(), Verifier { max_held_bytes: 10_000, ..verifier() }];
                for verifier in verifiers {
                    let Err((verified, fault)) = push_all_to(verifier, &damaged, sizes) else {
                        // The bytes after a switch record are not WAL.
                        assert_eq!(at % SEGMENT as usize, SEGMENT as usize - 1, "flipped at {at}, not found");
                        continue;
                    };
                    assert!(verified <= START.plus(at as u64), "flipped at {at}: {verified}");
                    assert_eq!(
                        (fault.at, fault.kind),
                        (START.plus(at as u64), FaultKind::Padding { found: 0x10 })
                    );
                    tested += 1;
                }
            }
        }
        assert!(tested > 100, "{tested}");
    }

    #[test]
    fn a_flipped_bit_is_found_before_anything_behind_it_is_verified() {
        let (log, _) = log();
        for at in (0..log.len()).step_by(15_013) {
            let mut damaged = log.clone();
            damaged[at] ^= 4;
            match push_all(&damaged, &[50_000]) {
                Err((verified, _)) => assert!(verified <= START.plus(at as u64), "flipped at {at}"),
                // An unused byte after a switch record. The archive compares unused bytes with the expected
                // bytes.
                Ok(_) => assert!(log[at] == 0, "flipped at {at}, not found"),
            }
        }
    }
}
