//! Shared test material: segments of known content, and reading and writing in memory.

use std::io::{Cursor, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use walden_codec::coder::Form;
use walden_codec::container::{Entry, FileForm, Meta, ReadLimits, Reader, Walk, WriteOptions, Writer, walk};
use walden_format::crc::record_crc;
use walden_format::lsn::Lsn;
use walden_format::record::Record;
use walden_format::stream::{Decoder, StreamInfo, Visitor};

pub const PAGE: usize = 8192;

/// Name and bytes of a file.
pub type File = (&'static str, Vec<u8>);

/// Returns the folder with the segments written by a version of PostgreSQL.
fn segments_of(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(version)
}

/// Returns a segment written by a version of PostgreSQL.
pub fn segment(version: &str, name: &str) -> Vec<u8> {
    let path = segments_of(version).join(format!("{name}.xz"));
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    liblzma::read::XzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Returns the first pages of a segment followed by zeros, as at the end of the WAL.
pub fn first_pages(segment: &[u8], pages: usize) -> Vec<u8> {
    let mut bytes = segment[..pages * PAGE].to_vec();
    bytes.resize(segment.len(), 0);
    bytes
}

/// Returns a segment whose pages from one on belong to the next timeline, as written at a promotion.
pub fn promoted(mut segment: Vec<u8>, from: usize) -> Vec<u8> {
    // `xlp_tli`, which no checksum covers.
    segment.chunks_mut(PAGE).skip(from).filter(|page| page[0] != 0).for_each(|page| page[4] += 1);
    segment
}

/// Returns the start of a segment in which a crash cut off a record. It ends with the first page from `from`
/// on where another record continued, which recovery overwrote.
pub fn crashed(segment: &[u8], from: usize) -> Vec<u8> {
    struct Ignore;
    impl Visitor for Ignore {
        fn record(&mut self, _: &Record<'_>) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
    }
    const FIRST_IS_CONTRECORD: u8 = 1;
    const FIRST_IS_OVERWRITE_CONTRECORD: u8 = 8;
    const XLOG_OVERWRITE_CONTRECORD: u8 = 0xD0;
    let pages = segment.chunks(PAGE).enumerate();
    let crossed = |(number, page): &(usize, &[u8])| *number >= from && page[2] & FIRST_IS_CONTRECORD != 0;
    let cut = pages.clone().find(crossed).expect("a page that a record goes on in").0;
    let info = StreamInfo::from_first_page(segment).unwrap();
    let start = u64::from_le_bytes(segment[8..16].try_into().unwrap());
    let mut stream = Decoder::new(info, Lsn(start), Lsn(u64::MAX));
    stream.push(&segment[..cut * PAGE], &mut Ignore).unwrap();
    let (cut_off, previous) = (stream.unfinished().unwrap().lsn, stream.previous().unwrap());

    let mut record = vec![0; 24];
    record[..4].copy_from_slice(&42_u32.to_le_bytes());
    record[8..16].copy_from_slice(&previous.0.to_le_bytes());
    record[16] = XLOG_OVERWRITE_CONTRECORD;
    record.extend([255, 16]);
    record.extend(cut_off.0.to_le_bytes());
    record.extend(700_000_000_000_000_u64.to_le_bytes());
    let crc = record_crc(&record);
    record[20..24].copy_from_slice(&crc.to_le_bytes());

    let mut bytes = first_pages(segment, cut + 1);
    let page = &mut bytes[cut * PAGE..][..PAGE];
    page[2] = page[2] & !FIRST_IS_CONTRECORD | FIRST_IS_OVERWRITE_CONTRECORD;
    page[16..].fill(0);
    page[24..][..record.len()].copy_from_slice(&record);
    bytes
}

/// Returns three consecutive segments. The first and the last have few records.
pub fn consecutive() -> [File; 3] {
    let names = ["00000001000000000000000A", "00000001000000000000000B", "00000001000000000000000C"];
    let [first, second, third] = names.map(|name| segment("18.6", name));
    [(names[0], first_pages(&first, 3)), (names[1], second), (names[2], first_pages(&third, 3))]
}

/// Returns files of all kinds for a pack: segments that share pages, other files, and a segment after those.
pub fn mixture() -> Vec<File> {
    let [first, second, third] = consecutive();
    let other = ("000000010000000000000009", first_pages(&segment("17.11", "000000010000000000000009"), 2));
    vec![
        first,
        second,
        ("00000002.history", b"1\t0/C000000\tno recovery target specified\n".to_vec()),
        third,
        ("empty", Vec::new()),
        other,
        ("folder/noise", noise(3000)),
    ]
}

/// Returns bytes that do not compress.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

pub fn options(form: FileForm, level: u8) -> WriteOptions {
    WriteOptions::with_level(form, level).page_memory(1 << 20)
}

pub fn limits() -> ReadLimits {
    ReadLimits::default().page_memory(1 << 20)
}

pub fn meta(name: &str) -> Meta {
    Meta { name: name.into(), modified: Some((1_700_000_000, 5)), mode: Some(0o640) }
}

/// Writes a container. Returns it with the entries that the writer reported.
pub fn write<N: AsRef<str>, B: AsRef<[u8]>>(
    options: WriteOptions,
    files: &[(N, B)],
) -> (Vec<u8>, Vec<Entry>) {
    let mut writer = Writer::new(Vec::new(), options);
    let entries = files
        .iter()
        .map(|(name, bytes)| writer.add(meta(name.as_ref()), false, &mut Cursor::new(bytes)).unwrap().entry)
        .collect();
    (writer.finish().unwrap(), entries)
}

/// Reads all members, which must be valid.
pub fn read(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut reader = Reader::open(Cursor::new(bytes), limits()).unwrap();
    let mut files = Vec::new();
    while let Some(head) = reader.next().unwrap() {
        let mut original = Vec::new();
        let summary = reader.decode(&head, &mut original).unwrap();
        assert_eq!(summary.end.bytes, original.len() as u64);
        assert_eq!(head.meta, meta(std::str::from_utf8(&head.meta.name).unwrap()));
        files.push((String::from_utf8(head.meta.name).unwrap(), original));
    }
    files
}

/// Returns the form of each member.
pub fn forms(bytes: &[u8]) -> Vec<Form> {
    let (entries, fault) = Reader::open(Cursor::new(bytes), limits()).unwrap().entries();
    assert!(fault.is_none(), "{fault:?}");
    entries.iter().map(|entry| entry.head.form).collect()
}

/// Reads a damaged file. Returns the extracted members and the report.
pub fn salvage(bytes: &[u8]) -> (Vec<(u64, Vec<u8>)>, Option<Walk>) {
    let mut out = Vec::new();
    let walk = walk(Cursor::new(bytes), limits(), &mut |reader, head| {
        let mut original = Vec::new();
        let summary = reader.decode(head, &mut original)?;
        out.push((head.number, original));
        Ok(summary)
    });
    (out, walk.ok())
}
