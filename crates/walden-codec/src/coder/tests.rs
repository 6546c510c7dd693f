use walden_format::crc::record_crc;
use walden_format::lsn::Lsn;
use walden_format::page::{LONG_HEADER, SHORT_HEADER, flags};
use walden_format::rmgr::rmid;
use walden_recompress::zstd::{Release, Zstd};

use super::*;
use crate::framing::{FirstPage, HeaderChange, HeaderFields, PageSink, PageWriter, StreamingSink};

const SEGMENT: usize = 4 << 20;
const PAGE: usize = 8192;

/// Returns an `XLOG_HEAP_INSERT` record. Table 1 and other tables have their two attributes in opposite
/// order.
fn insert(table: u32, number: u32, prev: Lsn) -> Vec<u8> {
    const HAS_DATA: u8 = 0x20;
    // `t_infomask2`, `t_infomask`, `t_hoff`, and the padding before the first attribute.
    const HEAD: [u8; 6] = [2, 0, 2, 8, 24, 0];
    let mixed = number.wrapping_mul(0x9E37_79B1);
    let text: Vec<u8> = (0..4 + mixed % 20).map(|at| b'a' + (mixed >> at) as u8 % 16).collect();
    let text = [&[(text.len() as u8 + 1) << 1 | 1][..], &text].concat();
    let mut tuple = if table == 1 { number.to_le_bytes().to_vec() } else { text.clone() };
    tuple.resize(tuple.len().next_multiple_of(4), 0);
    tuple.extend(if table == 1 { text } else { number.to_le_bytes().to_vec() });
    let mut bytes = vec![0; 24];
    bytes.extend([0, HAS_DATA]);
    bytes.extend(((HEAD.len() + tuple.len()) as u16).to_le_bytes());
    bytes.extend([1663, 5, table, number / 100].map(u32::to_le_bytes).as_flattened());
    // `xl_heap_insert`: offset number and flags.
    bytes.extend([255, 3]);
    bytes.extend(HEAD);
    bytes.extend(tuple);
    bytes.extend([(number % 100) as u8 + 1, 0, 0]);
    let total = bytes.len() as u32;
    bytes[..4].copy_from_slice(&total.to_le_bytes());
    bytes[8..16].copy_from_slice(&prev.0.to_le_bytes());
    bytes[17] = rmid::HEAP;
    let crc = record_crc(&bytes);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Returns a long page header of PostgreSQL 15 for a page on which `continued` bytes of a record continue.
fn first_header(continued: u32) -> [u8; LONG_HEADER] {
    let mut first = [0; LONG_HEADER];
    first[..4].copy_from_slice(&[0x10, 0xD1, if continued > 0 { 3 } else { 2 }, 0]);
    first[4] = 1;
    first[8..16].copy_from_slice(&(SEGMENT as u64).to_le_bytes());
    first[16..20].copy_from_slice(&continued.to_le_bytes());
    first[32..36].copy_from_slice(&(SEGMENT as u32).to_le_bytes());
    first[36..40].copy_from_slice(&8192_u32.to_le_bytes());
    first
}

/// Returns a segment with the records that `write` writes, filled with zeros.
fn segment_of(
    continued: u32,
    changes: Vec<HeaderChange>,
    write: impl FnOnce(&mut PageWriter<StreamingSink<'_>>),
) -> Vec<u8> {
    let first = FirstPage::parse(&first_header(continued)).expect("a first page");
    let mut segment = Vec::new();
    let mut take = |bytes: &[u8]| segment.extend_from_slice(bytes);
    let mut pages = PageWriter::new(first, changes, StreamingSink::new(&mut take));
    write(&mut pages);
    pages.out.put_zeros_to(SEGMENT);
    pages.out.flush();
    segment
}

/// Writes tuples up to an offset and returns the LSN of the last record.
fn put_tuples(
    pages: &mut PageWriter<StreamingSink<'_>>,
    until: usize,
    table: u32,
    from: u32,
    mut prev: Lsn,
) -> Lsn {
    for number in from.. {
        let at = pages.next_start();
        let record = insert(table, number, prev);
        if at >= until || pages.space_left() < record.len() {
            break;
        }
        pages.record(&record, record.len() as u32);
        prev = Lsn((SEGMENT + at) as u64);
    }
    prev
}

/// Returns a segment with tuples of one table up to an offset, then of another.
fn segment(tables: [u32; 2], until: usize) -> Vec<u8> {
    segment_of(0, Vec::new(), |pages| {
        pages.record(&[], 0);
        let prev = put_tuples(pages, until, tables[0], 0, Lsn(0));
        put_tuples(pages, SEGMENT, tables[1], 100_000, prev);
    })
}

/// Returns an `XLOG_FPI` record of a page of random letters from an alphabet, compressed with zstd.
fn full_page_image(letters: u32, number: u32, prev: Lsn) -> Vec<u8> {
    const HAS_IMAGE: u8 = 0x10;
    const XLOG_FPI: u8 = 0xB0;
    // `BKPIMAGE_APPLY` and `BKPIMAGE_COMPRESS_ZSTD`.
    const IMAGE_INFO: u8 = 0x12;
    let mut state = number;
    let mut letter = || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        b'a' + ((state >> 16) % letters) as u8
    };
    let page: Vec<u8> = (0..PAGE).map(|_| letter()).collect();
    let mut image = Vec::new();
    assert!(Zstd::default().compress(Release::V1_5_7, &page, &mut image));
    let mut bytes = vec![0; 24];
    bytes.extend([0, HAS_IMAGE, 0, 0]);
    bytes.extend((image.len() as u16).to_le_bytes());
    bytes.extend([0, 0, IMAGE_INFO]);
    bytes.extend([1663, 5, 16384, number].map(u32::to_le_bytes).as_flattened());
    bytes.extend(image);
    let total = bytes.len() as u32;
    bytes[..4].copy_from_slice(&total.to_le_bytes());
    bytes[8..16].copy_from_slice(&prev.0.to_le_bytes());
    bytes[16] = XLOG_FPI;
    bytes[17] = rmid::XLOG;
    let crc = record_crc(&bytes);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Returns the number of images in a segment full of images, and the bytes of its columns.
fn images_and_columns(letters: u32) -> (usize, usize) {
    let mut images = 0;
    let segment = segment_of(0, Vec::new(), |pages| {
        pages.record(&[], 0);
        let mut prev = Lsn(0);
        loop {
            let at = pages.next_start();
            let record = full_page_image(letters, images as u32, prev);
            if pages.space_left() < record.len() {
                break;
            }
            pages.record(&record, record.len() as u32);
            prev = Lsn((SEGMENT + at) as u64);
            images += 1;
        }
    });
    let encoded = Encoder::new(3, Limits::default()).encode(&segment);
    assert!(encoded.form == Form::Records);
    let mut columns = ColumnDecoder::default();
    let columns = columns.decode(&encoded, SEGMENT).expect("its own");
    let bytes = columns.iter().map(|column| column.bytes.len()).sum();
    encoded_len(&segment);
    (images, bytes)
}

#[test]
fn images_of_unknown_pages_are_decompressed_as_long_as_the_columns_stay_within_their_limit() {
    // Five letters take 2.3 bits each, so in the columns the images take 3.4 times their size in the WAL.
    let (images, bytes) = images_and_columns(5);
    assert!(bytes > images * PAGE, "{images} images, {bytes} bytes of columns");
    // Images of two letters would exceed the limit.
    let (images, bytes) = images_and_columns(2);
    let most = max_column_weight(SEGMENT);
    assert!(images * PAGE > most);
    assert!(bytes <= most && bytes > most - most / 8, "{bytes} bytes of columns of at most {most}");
}

/// Encodes a segment as records, verifies that it decodes, and returns its encoded length.
fn encoded_len(segment: &[u8]) -> usize {
    let encoded = Encoder::new(3, Limits::default()).encode(segment);
    assert!(encoded.form == Form::Records);
    let mut decoded = Vec::new();
    let mut take = |bytes: &[u8]| decoded.extend_from_slice(bytes);
    Decoder::new(Limits::default()).decode(&encoded, SEGMENT, &mut take).expect("its own");
    assert!(decoded == segment);
    encoded.content.len()
}

#[test]
fn a_table_that_comes_late_is_compressed_as_well_as_one_that_is_there_from_the_beginning() {
    let sizes = [SEGMENT / 16, SEGMENT - SEGMENT / 3].map(|until| encoded_len(&segment([1, 2], until)));
    assert!(sizes[1] < sizes[0] + sizes[0] / 50, "{sizes:?} bytes");
}

/// Cases: the first segment of a cluster, segments in which base backups start and end, and a promotion.
#[test]
fn page_flags_and_timelines_may_change_within_a_segment() {
    let mut segment = segment([1, 2], SEGMENT / 2);
    let usual = encoded_len(&segment);
    for (number, page) in segment.chunks_mut(PAGE).enumerate() {
        page[2] |= if number > 0 && number % 100 < 90 { flags::BKP_REMOVABLE as u8 } else { 0 };
        page[4] += (number > 300) as u8 + 2 * (number > 400) as u8;
    }
    let changed = encoded_len(&segment);
    assert!(changed < usual + 50, "{changed} bytes, {usual} without changes");

    // Header values that no server writes are still reproduced.
    segment[77 * PAGE + 20] = 1;
    segment[78 * PAGE + 4] = 1;
    encoded_len(&segment);
}

const OVERWRITES: HeaderFields = HeaderFields { flags: 8, timeline: 1 };
const USUAL: HeaderFields = HeaderFields { flags: 0, timeline: 1 };

/// A crash leaves the start of a record; recovery continues on the next page.
#[test]
fn records_go_on_after_one_that_a_crash_cut_off() {
    let changes =
        vec![HeaderChange { page: 103, fields: OVERWRITES }, HeaderChange { page: 104, fields: USUAL }];
    let cut = segment_of(0, changes, |pages| {
        pages.record(&[], 0);
        let prev = put_tuples(pages, 100 * PAGE + 5000, 1, 0, Lsn(0));
        // Start of a longer record, up to the end of page 102.
        let at = pages.next_start();
        let record = [&50_000_u32.to_le_bytes()[..], &[0; 4], &prev.0.to_le_bytes(), &[7; 60_000]].concat();
        let len = (103 * PAGE - at) - 2 * SHORT_HEADER;
        pages.record(&record[..len], 50_000);
        pages.abandon_record();
        assert!(pages.is_at_page_start());
        put_tuples(pages, SEGMENT, 1, 50_000, prev);
    });
    let usual = encoded_len(&segment([1, 1], SEGMENT));
    let cut = encoded_len(&cut);
    assert!(cut < usual + usual / 50 + 100, "{cut} bytes, {usual} without a crash");
}

/// Records follow a record that started in the previous segment and was cut off by a crash.
#[test]
fn records_go_on_after_one_from_the_segment_before_that_a_crash_cut_off() {
    let changes = vec![HeaderChange { page: 2, fields: OVERWRITES }, HeaderChange { page: 3, fields: USUAL }];
    let cut = segment_of(50_000, changes, |pages| {
        let head = vec![7; 2 * PAGE - LONG_HEADER - SHORT_HEADER];
        pages.record(&head, 50_000);
        pages.abandon_record();
        put_tuples(pages, SEGMENT, 1, 0, Lsn(SEGMENT as u64 - 8192));
    });
    let usual = encoded_len(&segment([1, 1], SEGMENT));
    let cut = encoded_len(&cut);
    assert!(cut < usual + usual / 50 + 100, "{cut} bytes, {usual} without a crash");
}

/// A commit record of a transaction that dropped many tables can be longer than several pieces of the
/// original.
#[test]
fn records_follow_the_end_of_a_long_one() {
    const LENGTHS: [usize; 4] = [300_000, 600_000, 1_500_000, SEGMENT - 100_000];
    for bytes in LENGTHS {
        let segment = segment_of(bytes as u32, Vec::new(), |pages| {
            pages.record(&vec![7; bytes], bytes as u32);
            put_tuples(pages, SEGMENT, 1, 0, Lsn(SEGMENT as u64 - 8192));
        });
        encoded_len(&segment);
    }
    // The record fills the segment.
    let segment = segment_of(9_000_000, Vec::new(), |pages| {
        pages.record(&vec![7; pages.space_left()], 9_000_000);
    });
    encoded_len(&segment);
}

#[test]
fn the_encoder_has_the_reason_why_a_file_is_coded_as_bytes() {
    let whole = segment([1, 1], PAGE * 20);
    let reason = |bytes: &[u8], limits: Limits| {
        let mut encoder = Encoder::new(3, limits);
        let form = encoder.encode(bytes).form;
        assert_eq!(form == Form::Bytes, encoder.fallback().is_some());
        encoder.fallback().cloned()
    };
    let usual = Limits::default();
    assert_eq!(reason(&whole, usual), None);
    assert!(matches!(reason(b"text", usual), Some(Fallback::FirstPage(_))));
    let size = Fallback::Size { stated: SEGMENT as u64, found: PAGE as u64 };
    assert_eq!(reason(&whole[..PAGE], usual), Some(size));
    let mut moved = whole.clone();
    moved[8..16].copy_from_slice(&(PAGE as u64).to_le_bytes());
    assert_eq!(reason(&moved, usual), Some(Fallback::Address(Lsn(PAGE as u64))));
    assert_eq!(reason(&whole, Limits { blocks: 1, ..usual }), Some(Fallback::Limits));
    // The next file has its own reason.
    assert_eq!(reason(&whole, usual), None);
}
