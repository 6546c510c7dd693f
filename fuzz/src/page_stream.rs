//! Decodes arbitrary pages. Half of the inputs get correct page headers, so that the fuzzer passes their
//! checks.

use std::ops::ControlFlow;

use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::record::Record;
use walden_format::stream::{Decoder, StreamInfo, Visitor};
use walden_format::version::Major;

const PAGE: usize = 1024;

#[derive(Default)]
struct Sum(u64);

impl Visitor for Sum {
    fn page_header(&mut self, _: Lsn, width: usize) {
        self.0 += width as u64;
    }

    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.0 += u64::from(record.header.total_len) + u64::from(record.alignment);
        ControlFlow::Continue(())
    }

    fn continuation(&mut self, _: Lsn, bytes: u64) {
        self.0 += bytes;
    }

    fn abandoned(&mut self, _: Lsn, bytes: u64) {
        self.0 += bytes;
    }

    fn padding(&mut self, _: Lsn, bytes: u64) {
        self.0 += bytes;
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let [version, mend, window, data @ ..] = data else { return };
    let versions: Vec<Major> = Major::all().collect();
    let info = StreamInfo {
        version: versions[usize::from(*version) % versions.len()],
        timeline: 1,
        system_id: 7,
        segment_size: SegmentSize::new(1 << 20).unwrap(),
        page_bytes: PAGE as u32,
        data_page_bytes: 8192,
    };
    let start = Lsn(1 << 20);
    let mut log = data.to_vec();
    if mend & 1 == 1 {
        for (index, page) in log.chunks_mut(PAGE).enumerate().filter(|(_, page)| page.len() >= 40) {
            let long = index % (1024 * 1024 / PAGE) == 0;
            page[..2].copy_from_slice(&info.version.magic().to_le_bytes());
            page[2] = page[2] & 0b1001 | u8::from(long) << 1;
            page[3] = 0;
            page[4..8].copy_from_slice(&1u32.to_le_bytes());
            page[8..16].copy_from_slice(&(start.0 + (index * PAGE) as u64).to_le_bytes());
            if long {
                page[24..32].copy_from_slice(&info.system_id.to_le_bytes());
                page[32..36].copy_from_slice(&(1u32 << 20).to_le_bytes());
                page[36..40].copy_from_slice(&(PAGE as u32).to_le_bytes());
            }
        }
    }
    // Below `checked`, the decoder does not verify checksums.
    let checked = if mend & 2 == 2 { Lsn(u64::MAX) } else { Lsn(0) };
    let mut decoder = Decoder::new(info, start, Lsn(u64::MAX)).checked_until(checked);
    let mut sum = Sum::default();
    for piece in log.chunks(PAGE * (usize::from(*window) % 8 + 1)) {
        if decoder.push(piece, &mut sum).is_err() {
            break;
        }
    }
    assert_eq!(sum.0, decoder.position().0 - start.0);
    assert!(decoder.position().0 <= start.0 + log.len() as u64);
}
