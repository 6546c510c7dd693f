//! Decodes a segment truncated at every byte, and with each bit flipped: all records before the damage are
//! returned, and no record that the original does not contain.

use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use walden_format::lsn::Lsn;
use walden_format::record::{Record, RecordHeader};
use walden_format::stream::{Decoder, StreamInfo, Visitor};

const PAGE: usize = 8192;

/// At every byte of the first 64 kB; after that at every 7th byte, which hits every offset within a record of
/// some records.
#[test]
fn a_segment_cut_at_any_byte_yields_the_records_before() {
    let segment = golden_segment();
    let original = records_from(&segment, 0, &segment);
    for at in (0..64 << 10).chain((64 << 10..=segment.len()).step_by(7)) {
        let _ = check(&original, &segment, &segment[..at], at, false);
    }
}

/// Every bit of the first 16 kB; after that one bit of every 11th byte, in turn.
#[test]
fn a_flipped_bit_never_makes_a_record() {
    let mut segment = golden_segment();
    let whole = segment.clone();
    let original = records_from(&whole, 0, &whole);
    let every_bit = 0..8 * (16 << 10);
    let sample = (16 << 10..segment.len()).step_by(11).map(|at| 8 * at + at % 8);
    let (mut flips, mut spoilt) = (0, 0);
    for bit in every_bit.chain(sample) {
        let at = bit / 8;
        segment[at] ^= 1 << (bit % 8);
        // Decode up to the end of the next page, which shows the effect of the flipped bit.
        let end = (at / PAGE * PAGE + 2 * PAGE).min(segment.len());
        spoilt += u64::from(check(&original, &whole, &segment[..end], at, true));
        flips += 1;
        segment[at] ^= 1 << (bit % 8);
    }
    // The other bits are in page headers, padding, and records that cross pages.
    assert!(spoilt > flips * 9 / 10, "only {spoilt} of {flips} bits were in records");
}

/// Decodes from the page before `at`; checks that all returned records are in the original, and that no
/// record that ends before `at` is missing.
///
/// `changed`: the byte at `at` is not the original's. Returns whether that byte belongs to a record, which
/// then must be rejected.
fn check(original: &[Seen], segment: &[u8], bytes: &[u8], at: usize, changed: bool) -> bool {
    let first_page = (at / PAGE).saturating_sub(1);
    let found = records_from(segment, first_page, bytes);
    let start = Lsn(segment_start(segment).0 + (first_page * PAGE) as u64);
    let place = Lsn(segment_start(segment).0 + at as u64);
    let original = &original[original.partition_point(|record| record.lsn < start)..];
    assert!(found.len() <= original.len(), "byte {at}: more records than there are");
    // In WAL order, without gaps.
    assert!(found == original[..found.len()], "byte {at}: a record that is not in the original");
    let before = original.partition_point(|record| record.end <= place);
    assert!(found.len() >= before, "byte {at}: {} of {before} records before it", found.len());
    let hit = original.get(before).is_some_and(|record| record.lsn <= place);
    let spoils = hit && changed && !in_page_header(at);
    if spoils {
        assert_eq!(found.len(), before, "byte {at}: the record that it is in was taken for whole");
    }
    spoils
}

fn in_page_header(at: usize) -> bool {
    at % PAGE < if at < PAGE { 40 } else { 24 }
}

/// A record: its LSN, its end without alignment, and its header.
#[derive(PartialEq)]
struct Seen {
    lsn: Lsn,
    end: Lsn,
    header: RecordHeader,
}

/// Collects the decoded records.
#[derive(Default)]
struct Collector(Vec<Seen>);

impl Visitor for Collector {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let end = Lsn(record.end.0 - u64::from(record.alignment));
        self.0.push(Seen { lsn: record.lsn, end, header: record.header });
        ControlFlow::Continue(())
    }
}

/// Returns the complete records in a segment's bytes, from the start of a page.
fn records_from(segment: &[u8], page: usize, bytes: &[u8]) -> Vec<Seen> {
    let info = StreamInfo::from_first_page(segment).expect("a segment");
    let start = segment_start(segment).plus((page * PAGE) as u64);
    let mut collector = Collector::default();
    let _ = Decoder::new(info, start, Lsn(u64::MAX)).push(&bytes[page * PAGE..], &mut collector);
    collector.0
}

fn segment_start(segment: &[u8]) -> Lsn {
    Lsn(u64::from_le_bytes(segment[8..16].try_into().expect("eight bytes")))
}

/// A segment of 1 MB filled with records.
fn golden_segment() -> Vec<u8> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden/17.11/000000010000000000000009.xz");
    let mut bytes = Vec::new();
    liblzma::read::XzDecoder::new(File::open(path).expect("a file"))
        .read_to_end(&mut bytes)
        .expect("a segment");
    bytes
}
