//! Records across pages and segments, whatever their layout; and invalid WAL.

use std::ops::ControlFlow;

use proptest::prelude::*;
use walden_format::fault::{Fault, FaultKind};
use walden_format::lsn::Lsn;
use walden_format::page::PageHeader;
use walden_format::record::Record;
use walden_format::stream::{Decoder, NeededPart, Place, Progress, Visitor};
use walden_format::version::Major;
use walden_testing::writer::{LogWriter, PAGE, header_bytes};

#[derive(Default)]
struct Seen {
    records: Vec<(Lsn, Vec<u8>)>,
    headers: u64,
    continuation: u64,
    abandoned: u64,
    padding: u64,
    record_bytes: u64,
    /// Does without the data of records with an even number of bytes.
    declines_even: bool,
}

impl Seen {
    fn total(&self) -> u64 {
        self.headers + self.continuation + self.abandoned + self.padding + self.record_bytes
    }
}

impl Visitor for Seen {
    fn page_header(&mut self, _lsn: Lsn, width: usize) {
        self.headers += width as u64;
    }

    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.records.push((record.lsn, record.bytes().to_vec()));
        self.record_bytes += u64::from(record.header.total_len) + u64::from(record.alignment);
        ControlFlow::Continue(())
    }

    fn needed_part(&self, record: &Record<'_>) -> NeededPart {
        match self.declines_even && record.main_len.is_multiple_of(2) {
            true => NeededPart::Headers,
            false => NeededPart::All,
        }
    }

    fn continuation(&mut self, _lsn: Lsn, bytes: u64) {
        self.continuation += bytes;
    }

    fn abandoned(&mut self, _lsn: Lsn, bytes: u64) {
        self.abandoned += bytes;
    }

    fn padding(&mut self, _lsn: Lsn, bytes: u64) {
        self.padding += bytes;
    }
}

/// Reads the main data of records.
#[derive(Default)]
struct MainData(Vec<(Vec<u8>, Vec<u8>)>);

impl Visitor for MainData {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let of_block = record.blocks.iter().flat_map(|block| record.block_data(block)).copied().collect();
        self.0.push((record.main_data().to_vec(), of_block));
        ControlFlow::Continue(())
    }

    fn needed_part(&self, _: &Record<'_>) -> NeededPart {
        NeededPart::MainData
    }
}

#[test]
fn main_data_is_read_without_the_data_before_it() {
    let mut log = LogWriter::new(Major::V17);
    let lengths = [0_u16, 700, 8000, 20_000, 65_000];
    for (data, main) in lengths.iter().flat_map(|data| [1, 90, 250].map(|main| (*data, main))) {
        let mut rest = vec![0, if data > 0 { 0x20 } else { 0 }];
        rest.extend(data.to_le_bytes());
        rest.extend([1663_u32, 5, 16384, 1].map(u32::to_le_bytes).as_flattened());
        rest.extend([255, main]);
        rest.extend(vec![7; data.into()]);
        rest.extend((0..main).rev());
        log.record(10, 0, 1, &rest);
    }
    for window in [PAGE, 7 * PAGE, log.bytes.len().next_multiple_of(PAGE)] {
        let (mut decoder, mut seen) = (Decoder::new(log.info, log.start, Lsn(u64::MAX)), MainData::default());
        log.bytes.chunks(window).for_each(|piece| assert!(decoder.push(piece, &mut seen).is_ok()));
        assert_eq!(seen.0.len(), log.records.len());
        let mut zeros = 0;
        for ((main, of_block), data) in seen.0.iter().zip(lengths.iter().flat_map(|data| [*data; 3])) {
            assert!(main.iter().rev().copied().eq(0..main.len() as u8), "{main:?}");
            assert!(of_block.len() == usize::from(data) && of_block.iter().all(|byte| [0, 7].contains(byte)));
            zeros += of_block.iter().filter(|byte| **byte == 0).count();
        }
        assert!(zeros > 250_000, "{zeros} bytes were not copied");
    }
}

fn decode(log: &LogWriter, bytes: &[u8], from: usize, window: usize) -> (Seen, Lsn, Result<Progress, Fault>) {
    decode_checked(log, bytes, from, window, Lsn(0))
}

fn decode_checked(
    log: &LogWriter,
    bytes: &[u8],
    from: usize,
    window: usize,
    checked: Lsn,
) -> (Seen, Lsn, Result<Progress, Fault>) {
    let start = log.start.plus(from as u64);
    let mut decoder = Decoder::new(log.info, start, Lsn(u64::MAX)).checked_until(checked);
    let mut seen = Seen::default();
    let mut result = Ok(Progress::More);
    for piece in bytes[from..].chunks(window) {
        result = decoder.push(piece, &mut seen);
        if result.is_err() {
            break;
        }
    }
    assert_eq!(seen.total(), decoder.position().0 - start.0, "what is reported adds up to the position");
    (seen, decoder.position(), result)
}

/// Records of all lengths, including some longer than a page and one longer than a segment.
pub fn sample(version: Major) -> LogWriter {
    let mut log = LogWriter::new(version);
    for (index, length) in
        [0usize, 1, 7, 8, 100, 8000, 5, 8192, 20_000, 3, 8128, 8129, 8130, 8131, 64_000, 1 << 20, 12]
            .iter()
            .enumerate()
    {
        log.main_data(10, 0, &vec![index as u8; *length]);
    }
    log
}

#[test]
fn records_come_back_whatever_the_windows() {
    let log = sample(Major::V17);
    for window in [PAGE, 2 * PAGE, 7 * PAGE, log.bytes.len().next_multiple_of(PAGE)] {
        let (seen, position, result) = decode(&log, &log.bytes, 0, window);
        assert_eq!(result, Ok(Progress::More));
        assert_eq!(seen.records, log.records);
        assert_eq!(position, log.position());
        assert_eq!(seen.headers, header_bytes(&log.info, log.start, log.bytes.len()));
    }
}

#[test]
fn a_record_whose_data_is_not_needed_has_its_headers_and_is_verified() {
    let log = sample(Major::V17);
    let decode = |bytes: &[u8], window: usize| {
        let mut decoder = Decoder::new(log.info, log.start, Lsn(u64::MAX));
        let mut seen = Seen { declines_even: true, ..Seen::default() };
        let result = bytes.chunks(window).try_for_each(|piece| decoder.push(piece, &mut seen).map(drop));
        assert_eq!(seen.total(), decoder.position().0 - log.start.0);
        (seen, result)
    };
    for window in [PAGE, 7 * PAGE, log.bytes.len().next_multiple_of(PAGE)] {
        let (seen, result) = decode(&log.bytes, window);
        assert_eq!((result, seen.records.len()), (Ok(()), log.records.len()));
        let mut shortened = Vec::new();
        for ((lsn, found), (expected_lsn, whole)) in seen.records.iter().zip(&log.records) {
            assert_eq!(lsn, expected_lsn);
            assert!(whole.starts_with(found) && found.len() >= 30.min(whole.len()));
            if found.len() < whole.len() {
                shortened.push(whole.len());
            }
        }
        // A record of 8000 bytes may be on one page.
        assert!(shortened.iter().all(|length| *length > 8000), "{shortened:?}");
        assert!(
            [20_000, 64_000, 1 << 20].iter().all(|data| shortened.iter().any(|it| it.abs_diff(*data) < 100))
        );
        assert!(!seen.records.iter().any(|(_, bytes)| bytes.len() > 9000));
    }
    let (lsn, _) = log.records[8];
    let mut damaged = log.bytes.clone();
    damaged[(lsn.0 - log.start.0) as usize + 18_000] ^= 1;
    let (seen, result) = decode(&damaged, PAGE);
    assert!(matches!(result, Err(Fault { kind: FaultKind::Checksum { .. }, lsn: at, .. }) if at == lsn));
    assert_eq!(seen.records.len(), 8);
}

#[test]
fn a_stream_can_start_at_any_page() {
    let log = sample(Major::V9_5);
    for from in (0..log.bytes.len()).step_by(PAGE) {
        let (seen, position, result) = decode(&log, &log.bytes, from, PAGE);
        assert_eq!(result, Ok(Progress::More), "from {from}");
        assert_eq!(position, log.position());
        let start = log.start.plus(from as u64);
        let expected: Vec<_> = log.records.iter().filter(|(lsn, _)| *lsn >= start).cloned().collect();
        assert_eq!(seen.records, expected, "from {from}");
    }
}

#[test]
fn what_was_checked_is_not_checked_again() {
    let log = sample(Major::V17);
    let mut damaged = log.bytes.clone();
    // In the data of the record of 8000 bytes, which crosses a page, and in the record of 100 bytes before
    // it.
    for at in [log.records[5].0, log.records[4].0] {
        damaged[(at.0 - log.start.0) as usize + 50] ^= 1;
        let end = log.records[6].0;
        let (seen, _, result) = decode_checked(&log, &damaged, 0, PAGE, at);
        let fault = result.unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Checksum { .. }) && fault.lsn == at, "{fault:?}");
        assert!(seen.records.last().unwrap().0 < at);
        // The estimated end of a record that crosses pages is later than its actual end.
        let (seen, _, result) = decode_checked(&log, &damaged, 0, PAGE, end.plus(2 * PAGE as u64));
        assert_eq!((result, seen.records.len()), (Ok(Progress::More), log.records.len()));
    }
}

#[test]
fn a_limit_ends_the_stream_after_the_record_before_it() {
    let log = sample(Major::V18);
    for (index, (limit, _)) in log.records.iter().enumerate() {
        let mut decoder = Decoder::new(log.info, log.start, *limit);
        let mut seen = Seen::default();
        assert_eq!(decoder.push(&log.bytes, &mut seen), Ok(Progress::Done));
        assert_eq!(seen.records, log.records[..index]);
        assert_eq!(seen.total(), decoder.position().0 - log.start.0);
    }
}

#[test]
fn a_switch_is_followed_by_padding() {
    let mut log = LogWriter::new(Major::V14);
    log.main_data(10, 0, b"before");
    log.switch();
    log.main_data(10, 0, b"after");
    let (seen, _, result) = decode(&log, &log.bytes, 0, 3 * PAGE);
    assert_eq!(result, Ok(Progress::More));
    assert_eq!(seen.records, log.records);
    assert!(seen.padding > 1_000_000, "{}", seen.padding);
    assert_eq!(log.info.segment_size.offset_of(log.records[2].0), 40);
}

#[test]
fn a_record_cut_off_by_a_crash_is_overwritten() {
    for version in [Major::V13, Major::V18, Major::V19] {
        for (length, written) in [(9_000, 100), (30_000, 9_000), (30_000, 17_000)] {
            let mut log = LogWriter::new(version);
            log.main_data(10, 0, b"before");
            let begun = log.position();
            log.crash_in_record(length, written);
            let mut overwrite = begun.0.to_le_bytes().to_vec();
            overwrite.extend([0; 8]);
            log.main_data(0, 0xD0, &overwrite);
            log.main_data(10, 0, b"after");
            let (seen, _, result) = decode(&log, &log.bytes, 0, PAGE);
            assert_eq!(result, Ok(Progress::More));
            assert_eq!(seen.records, log.records);
            assert!(seen.abandoned >= written as u64);
            // A stream that starts within the abandoned record skips it too.
            let (later, _, result) = decode(&log, &log.bytes, PAGE, PAGE);
            assert_eq!(result, Ok(Progress::More));
            assert_eq!(later.records, log.records[1..]);
        }
    }
}

#[test]
fn zeros_are_the_end_of_the_log() {
    let mut log = sample(Major::V16);
    let end = log.position();
    log.bytes.resize(log.bytes.len().next_multiple_of(PAGE) + 2 * PAGE, 0);
    let (seen, position, result) = decode(&log, &log.bytes, 0, PAGE);
    let fault = result.unwrap_err();
    assert!(fault.is_unwritten(), "{fault}");
    assert_eq!((fault.lsn, position), (end, end));
    assert_eq!(seen.records, log.records);
}

#[test]
fn an_old_page_is_told_from_the_log() {
    let mut log = LogWriter::new(Major::V16);
    for _ in 0..300 {
        log.main_data(10, 0, &[1; 100]);
    }
    let first_pages: Vec<u8> = log.bytes[PAGE..2 * PAGE].to_vec();
    let third = log.bytes.split_off(2 * PAGE);
    assert!(third.len() > PAGE);
    log.bytes.extend(first_pages);
    let (_, _, result) = decode(&log, &log.bytes, 0, PAGE);
    let expected = log.start.plus(2 * PAGE as u64);
    let found = log.start.plus(PAGE as u64);
    assert_eq!(result.unwrap_err().kind, FaultKind::PageAddress { expected, found });
}

#[test]
fn a_page_of_an_earlier_timeline_is_told_from_the_log() {
    let mut log = LogWriter::new(Major::V16);
    for _ in 0..300 {
        log.main_data(10, 0, &[1; 100]);
    }
    let timeline = log.info.timeline;
    log.bytes[2 * PAGE + 4..2 * PAGE + 8].copy_from_slice(&(timeline - 1).to_le_bytes());
    let expected = FaultKind::PageTimeline { expected: timeline, found: timeline - 1 };
    let mut decoder = Decoder::new(log.info, log.start, Lsn(u64::MAX));
    assert_eq!(decoder.page_timeline(), 0);
    let fault = decoder.push(&log.bytes, &mut Seen::default()).unwrap_err();
    assert_eq!((fault.kind, decoder.page_timeline()), (expected, timeline));
    // A decoder that resumes at that page needs the timeline of the page before it.
    let begun = || Decoder::new(log.info, log.start.plus(2 * PAGE as u64), Lsn(u64::MAX));
    let page = &log.bytes[2 * PAGE..3 * PAGE];
    assert_eq!(begun().push(page, &mut Seen::default()), Ok(Progress::More));
    let fault = begun().after_page_of(timeline).push(page, &mut Seen::default()).unwrap_err();
    assert_eq!(fault.kind, expected);
}

#[test]
fn a_stream_cut_at_any_byte_gives_the_records_before() {
    let log = sample(Major::V15);
    let near = |edge: usize| edge.saturating_sub(40)..edge + 40;
    let edges = log.records.iter().map(|(lsn, _)| (lsn.0 - log.start.0) as usize);
    for cut in edges.flat_map(near).filter(|cut| *cut < log.bytes.len()) {
        let (seen, position, _) = decode(&log, &log.bytes[..cut], 0, PAGE);
        assert!(position.0 - log.start.0 <= cut as u64);
        assert_eq!(seen.records, log.records[..seen.records.len()]);
        let whole = |(lsn, record): &&(Lsn, Vec<u8>)| {
            // A lower bound: page headers within the record need more room.
            (lsn.0 - log.start.0) as usize + record.len() * PAGE / (PAGE - 40) + 80 < cut
        };
        assert!(seen.records.len() >= log.records.iter().filter(whole).count());
    }
}

fn layout() -> impl Strategy<Value = Vec<(usize, u8)>> {
    let length = prop_oneof![0usize..300, 7_000usize..9_000, 0usize..60_000];
    proptest::collection::vec((length, 0u8..20), 1..60)
}

fn written(layout: &[(usize, u8)]) -> LogWriter {
    let mut log = LogWriter::new(Major::V18);
    for (length, what) in layout {
        match what {
            0 => log.switch(),
            1 => {
                log.crash_in_record(length + 9_000, 50);
                log.main_data(0, 0xD0, &[0; 16]);
            }
            rmid => {
                log.main_data(*rmid, 0, &vec![*rmid; *length]);
            }
        }
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_layout_comes_back(layout in layout(), window in 1usize..20) {
        let log = written(&layout);
        let (seen, position, result) = decode(&log, &log.bytes, 0, window * PAGE);
        prop_assert_eq!(result, Ok(Progress::More));
        prop_assert_eq!(seen.records, log.records.clone());
        prop_assert_eq!(position, log.position());
    }

    /// Old pages follow the end of WAL that is still being written, and pages are written more than once.
    #[test]
    fn a_log_that_grows_comes_back(
        layout in layout(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 1..40),
    ) {
        let log = written(&layout);
        let (whole, _, _) = decode(&log, &log.bytes, 0, PAGE);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(log.bytes.len() + 1) & !7).collect();
        cuts.push(log.bytes.len());
        cuts.sort_unstable();
        let old_page = log.bytes[..PAGE.min(log.bytes.len())].to_vec();
        let mut seen = Seen::default();
        let mut place = Place { position: log.start, previous: None, is_switched: false };
        for cut in cuts {
            let mut visible = log.bytes[..cut].to_vec();
            visible.resize(cut.next_multiple_of(PAGE), 0);
            // Before anything is written, this page is not an old one.
            if cut > 0 {
                visible.extend(&old_page);
            }
            let mut decoder = Decoder::resume_at(log.info, place, Lsn(u64::MAX));
            let mut at = (place.position.0 - log.start.0) as usize / PAGE * PAGE;
            while let Some(page) = visible.get(at..at + PAGE) {
                // Pages after a switch are not checked, so they are pushed only once they have their own
                // headers.
                let is_switched = decoder.place().is_some_and(|place| place.is_switched);
                let address = log.start.plus(at as u64);
                let is_here = || PageHeader::parse(page).is_ok_and(|header| header.address == address);
                if is_switched && !is_here() || decoder.push(page, &mut seen).is_err() {
                    break;
                }
                at += PAGE;
            }
            place = decoder.place().unwrap();
            prop_assert_eq!(seen.total(), place.position.0 - log.start.0);
            prop_assert!(place.position.0 - log.start.0 <= cut.next_multiple_of(PAGE) as u64);
        }
        prop_assert_eq!(&seen.records, &whole.records);
        let sums = |seen: &Seen| (seen.headers, seen.abandoned, seen.padding, seen.record_bytes);
        prop_assert_eq!(sums(&seen), sums(&whole));
    }

    #[test]
    fn behind_what_was_checked_a_flipped_bit_never_makes_a_record(
        layout in layout(),
        places in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..20),
        checked: prop::sample::Index,
    ) {
        let log = written(&layout);
        let checked = log.start.plus(checked.index(log.bytes.len() + 1) as u64);
        let (seen, position, result) = decode_checked(&log, &log.bytes, 0, PAGE, checked);
        prop_assert_eq!(result, Ok(Progress::More));
        prop_assert_eq!((&seen.records, position), (&log.records, log.position()));
        let mut damaged = log.bytes.clone();
        for (place, bit) in places {
            let index = place.index(damaged.len());
            damaged[index] ^= 1 << bit;
        }
        let (seen, _, _) = decode_checked(&log, &damaged, 0, PAGE, checked);
        let later: Vec<_> = seen.records.iter().filter(|(lsn, _)| *lsn >= checked).collect();
        prop_assert!(later.iter().all(|record| log.records.contains(record)));
        // Everything is declared verified, and nothing is valid.
        let (seen, position, _) = decode_checked(&log, &damaged, 0, PAGE, Lsn(u64::MAX));
        prop_assert_eq!(seen.total(), position.0 - log.start.0);
    }

    #[test]
    fn a_flipped_bit_never_makes_a_record(layout in layout(), place in any::<prop::sample::Index>(), bit in 0u8..8) {
        let log = written(&layout);
        let mut damaged = log.bytes.clone();
        let index = place.index(damaged.len());
        damaged[index] ^= 1 << bit;
        let (seen, _, _) = decode(&log, &damaged, 0, PAGE);
        // The padding after a record or a switch is not part of any record, and is not checked.
        prop_assert_eq!(&seen.records[..], &log.records[..seen.records.len()]);
    }

    #[test]
    fn garbage_is_refused(garbage in proptest::collection::vec(any::<u8>(), 0..40_000)) {
        let log = LogWriter::new(Major::V18);
        let (seen, _, _) = decode(&log, &garbage, 0, PAGE);
        prop_assert!(seen.records.is_empty());
    }
}
