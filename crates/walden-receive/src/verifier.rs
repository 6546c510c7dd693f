//! The log is decoded as it comes: what is acknowledged has the right checksums.
//!
//! A network, a proxy or memory that flips bits would otherwise be noticed when a segment is archived, after clients were told that
//! their commits are safe.

use std::ops::ControlFlow;

use walden_format::fault::Fault;
use walden_format::lsn::{Lsn, SegmentSize, Timeline};
use walden_format::page::LONG_HEADER;
use walden_format::record::Record;
use walden_format::rmgr::{info, rmid};
use walden_format::stream::{Decoder, StreamInfo, Visitor};

/// Decodes a timeline's log in parts of any size.
pub(crate) struct Verifier {
    timeline: Timeline,
    size: SegmentSize,
    info: Option<StreamInfo>,
    /// The log from the start of the page on in which the last record that is verified starts: a decoder begins with a page.
    tail: Vec<u8>,
    tail_start: Lsn,
    verified: Lsn,
    /// The record that goes on here does not end before.
    pending_until: Lsn,
    /// What follows a switch of segments, to the end of the segment, is no record.
    unused_until: Lsn,
}

/// The last record.
#[derive(Default)]
struct Last {
    start: Lsn,
    is_switch: bool,
}

impl Visitor for Last {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let header = &record.header;
        self.start = record.lsn;
        self.is_switch = header.rmid == rmid::XLOG && header.info & info::RMGR_MASK == info::xlog::SWITCH;
        ControlFlow::Continue(())
    }
}

impl Verifier {
    /// Begins at the start of a segment or, where `info` is known from there, of a page. The end of a record that began before is
    /// taken as it is.
    pub fn new(timeline: Timeline, size: SegmentSize, start: Lsn, info: Option<StreamInfo>) -> Verifier {
        Verifier {
            timeline,
            size,
            info,
            tail: Vec::new(),
            tail_start: start,
            verified: start,
            pending_until: start,
            unused_until: start,
        }
    }

    /// Decodes what comes next, and gives back up to where all is right: at the end of a record.
    ///
    /// # Errors
    /// Where it is not.
    pub fn push(&mut self, mut at: Lsn, mut bytes: &[u8]) -> Result<Lsn, Fault> {
        if at < self.unused_until {
            let unused = self.unused_until.bytes_since(at).min(bytes.len() as u64) as usize;
            (at, bytes) = (at.plus(unused as u64), &bytes[unused..]);
            (self.verified, self.tail_start) = (at, at);
        }
        self.tail.extend_from_slice(bytes);
        let end = at.plus(bytes.len() as u64);
        if end < self.pending_until {
            return Ok(self.verified);
        }
        let info = match self.info {
            Some(info) => info,
            // Not even the first header.
            None if self.tail.len() < LONG_HEADER => return Ok(self.verified),
            None => {
                let fault = |kind| Fault { lsn: self.tail_start, at: self.tail_start, kind };
                let info = StreamInfo::of_segment(&self.tail).map_err(fault)?;
                *self.info.insert(StreamInfo { timeline: self.timeline, ..info })
            }
        };
        let page_bytes = info.page_bytes as usize;
        let whole = info.geometry().decodable_end(end).bytes_since(self.tail_start) as usize;
        let mut decoder = Decoder::new(info, self.tail_start, Lsn(u64::MAX));
        let mut last = Last::default();
        decoder.push(&self.tail[..whole], &mut last)?;
        if let Some(unfinished) = decoder.unfinished() {
            self.pending_until = unfinished.lsn.plus(unfinished.total_len.into());
        }
        if last.start == Lsn::INVALID {
            self.skip_long_record(end, page_bytes);
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
        let page_start = offset - offset % page_bytes;
        self.tail.drain(..page_start);
        self.tail_start = self.tail_start.plus(page_start as u64);
        Ok(self.verified)
    }
    /// Of a record that is longer than what is held, the checksum is compared when its segments are archived.
    fn skip_long_record(&mut self, end: Lsn, page_bytes: usize) {
        if self.tail.len() > MAX_TAIL {
            let kept = self.tail.len() - self.tail.len() % page_bytes;
            self.tail.drain(..kept);
            self.tail_start = Lsn(end.0 - self.tail.len() as u64);
            self.pending_until = self.tail_start;
        }
    }
}

/// Bytes of a record that are held at most.
const MAX_TAIL: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use walden_format::version::Major;
    use walden_testing::writer::LogWriter;

    use super::*;

    const SEGMENT: u64 = 1 << 20;
    const START: Lsn = Lsn(3 * SEGMENT);

    /// A log with records of all sizes, some across segments, and a switch; and where its records end.
    fn log() -> (Vec<u8>, Vec<Lsn>) {
        let mut writer = LogWriter::new(Major::V18);
        (writer.info.timeline, writer.start, writer.previous) = (1, START, Lsn(START.0 - 32));
        let mut ends = Vec::new();
        for number in 0_usize.. {
            let text = format!("record {number} ").repeat(1 + (number * 37) % 1900);
            writer.main_data(rmid::XLOG, info::xlog::NOOP, text.as_bytes());
            // Now and then, a record that ends in the first bytes of a page.
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
        Verifier::new(1, SegmentSize::new(SEGMENT).unwrap(), START, None)
    }

    fn push_all(log: &[u8], sizes: &[usize]) -> Result<Vec<Lsn>, (Lsn, Fault)> {
        let (mut verifier, mut at, mut verified) = (verifier(), 0, Vec::new());
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
            // Nothing is verified that has not come, and all records that have come are.
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
        // All of some, and each that ends right behind the header of a page.
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
    fn a_flipped_bit_is_found_before_anything_behind_it_is_verified() {
        let (log, _) = log();
        for at in (0..log.len()).step_by(15_013) {
            let mut damaged = log.clone();
            damaged[at] ^= 4;
            match push_all(&damaged, &[50_000]) {
                Err((verified, _)) => assert!(verified <= START.plus(at as u64), "flipped at {at}"),
                // Unused bytes behind a switch; the archive compares them with what it expects there.
                Ok(_) => assert!(log[at] == 0, "flipped at {at}, not found"),
            }
        }
    }
}
