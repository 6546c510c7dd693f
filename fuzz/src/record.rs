//! Decodes records with correct lengths and checksums and arbitrary contents: every kind and every version,
//! down to the typed fields.

use std::ops::ControlFlow;

use walden_format::crc::crc32c_append;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::payload;
use walden_format::record::Record;
use walden_format::rmgr;
use walden_format::stream::{Decoder, StreamInfo, Visitor};
use walden_format::version::Major;

const PAGE: u32 = 1 << 16;

struct ReadAll;

impl Visitor for ReadAll {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let data: usize = record.blocks.iter().map(|block| record.block_data(block).len()).sum();
        let images: u32 =
            record.blocks.iter().filter_map(|b| b.image).map(|i| record.image_data(&i).len() as u32).sum();
        assert_eq!(images, record.image_bytes());
        assert_eq!(record.main_data().len(), record.main_len as usize);
        assert!(data + images as usize + record.main_data().len() + 24 <= record.bytes().len());
        let kind = rmgr::kind(record.version, record.header.rmid, record.header.info);
        let _ = (kind.name(record.version), kind.resource_manager(record.version));
        drop(walden_format::describe(record));
        match payload::parse(record) {
            Ok(payload) => drop(payload.to_string()),
            Err(error) => drop(error.to_string()),
        }
        ControlFlow::Continue(())
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let [version, rmid, info, rest @ ..] = data else { return };
    let versions: Vec<Major> = Major::all().collect();
    let version = versions[usize::from(*version) % versions.len()];
    let stream = StreamInfo {
        version,
        timeline: 1,
        system_id: 7,
        segment_size: SegmentSize::new(1 << 20).unwrap(),
        page_bytes: PAGE,
        data_page_bytes: 8192,
    };
    let rest = &rest[..rest.len().min(60_000)];
    let mut record = Vec::with_capacity(rest.len() + 24);
    record.extend((rest.len() as u32 + 24).to_le_bytes());
    record.extend(9u32.to_le_bytes());
    record.extend(40u64.to_le_bytes());
    record.extend([*info, *rmid, 0, 0]);
    let crc = crc32c_append(crc32c_append(0, rest), &record);
    record.extend(crc.to_le_bytes());
    record.extend(rest);

    let start = Lsn(1 << 20);
    let mut page = Vec::new();
    page.extend(version.magic().to_le_bytes());
    page.extend(2u16.to_le_bytes());
    page.extend(1u32.to_le_bytes());
    page.extend(start.0.to_le_bytes());
    page.extend([0; 8]);
    page.extend(7u64.to_le_bytes());
    page.extend((1u32 << 20).to_le_bytes());
    page.extend(PAGE.to_le_bytes());
    page.extend(record);
    let _ = Decoder::new(stream, start, Lsn(u64::MAX)).push(&page, &mut ReadAll);
}
