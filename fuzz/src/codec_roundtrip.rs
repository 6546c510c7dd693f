//! Compresses arbitrary bytes as the members of a pack, and decodes them to the same bytes. Half of the
//! inputs are divided into two segments with correct page headers and record checksums.

use std::io::Cursor;

use walden_codec::container::{FileForm, Meta, ReadLimits, Reader, WriteOptions, Writer};
use walden_format::crc::crc32c_append;
use walden_format::version::Major;

const SEGMENT: usize = 1 << 20;
const PAGE: usize = 1024;

/// Runs one input.
pub fn run(data: &[u8]) {
    let [version, mend, cut, data @ ..] = data else { return };
    let versions: Vec<Major> = Major::all().collect();
    let version = versions[usize::from(*version) % versions.len()];
    let mut files = vec![data.to_vec()];
    if mend & 1 == 1 {
        // The second segment follows the first one, and has the remaining bytes.
        let (first, second) = data.split_at(data.len() * usize::from(*cut) / 256);
        files = vec![segment(first, version, 1), segment(second, version, 2)];
    }
    let options =
        WriteOptions::with_level(FileForm::Pack, 1).keyframe(8 * SEGMENT as u64).page_memory(1 << 20);
    let mut writer = Writer::new(Vec::new(), options);
    for (number, file) in files.iter().enumerate() {
        let meta = Meta { name: vec![b'a' + number as u8], ..Meta::default() };
        writer.add(meta, false, &mut Cursor::new(file)).expect("writing to memory");
    }
    let pack = writer.finish().expect("writing to memory");
    let limits = ReadLimits::default().page_memory(1 << 20);
    let mut reader = Reader::open(Cursor::new(&pack), limits).expect("a pack");
    let mut out = Vec::new();
    for file in &files {
        let head = reader.next().expect("a whole pack").expect("as many members");
        out.clear();
        reader.decode(&head, &mut out).expect("decodes");
        assert!(out == *file);
    }
    assert!(reader.next().expect("a whole pack").is_none());
}

/// Frames bytes as records, in pages with correct headers.
fn segment(data: &[u8], version: Major, number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SEGMENT);
    let start = number * SEGMENT as u64;
    let header = |bytes: &mut Vec<u8>, left: usize| {
        if !bytes.len().is_multiple_of(PAGE) {
            return;
        }
        let long = bytes.is_empty();
        let at = start + bytes.len() as u64;
        bytes.extend(version.magic().to_le_bytes());
        bytes.extend((u16::from(left > 0) | u16::from(long) << 1).to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(at.to_le_bytes());
        bytes.extend((left as u32).to_le_bytes());
        bytes.extend([0; 4]);
        if long {
            bytes.extend(7_u64.to_le_bytes());
            bytes.extend((SEGMENT as u32).to_le_bytes());
            bytes.extend((PAGE as u32).to_le_bytes());
        }
    };
    let (mut rest, mut previous) = (data, 0);
    while let [length, xid, info, manager, after @ ..] = rest {
        let (content, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        header(&mut bytes, 0);
        let mut record = Vec::with_capacity(24 + content.len());
        record.extend((24 + content.len() as u32).to_le_bytes());
        record.extend(u32::from(*xid).to_le_bytes());
        record.extend(u64::to_le_bytes(previous));
        record.extend([*info, *manager, 0, 0]);
        let checksum = crc32c_append(crc32c_append(0, content), &record);
        record.extend(checksum.to_le_bytes());
        record.extend(content);
        previous = start + bytes.len() as u64;
        let mut record = &record[..];
        while !record.is_empty() {
            header(&mut bytes, record.len());
            let (here, later) = record.split_at(record.len().min(PAGE - bytes.len() % PAGE));
            bytes.extend(here);
            record = later;
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    header(&mut bytes, 0);
    bytes.resize(SEGMENT, 0);
    bytes
}
