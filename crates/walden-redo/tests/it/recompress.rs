//! What servers compressed becomes the same bytes again.

use std::ops::ControlFlow;
use std::path::Path;

use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_redo::recompress::{Method, Recompressor};
use walden_source::inventory::Inventory;
use walden_source::scan::{ScanOptions, scan_in_order};

/// How many images are compressed, and how many values in rows of `INSERT`.
struct Compressed {
    recompressor: Recompressor,
    images: usize,
    values: usize,
}

impl Visitor for Compressed {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        for block in record.blocks {
            let Some(image) = &block.image else { continue };
            let Some(method) = Method::of(image.compression) else { continue };
            let stored = record.image_data(image);
            let mut raw = vec![0; 8192 - usize::from(image.hole_len)];
            assert_eq!(method.decompress(stored, &mut raw), Some(raw.len()));
            assert!(self.recompressor.reproduces(method, &raw, stored), "{}", record.lsn);
            self.images += 1;
        }
        if record.header.rmid == rmid::HEAP
            && record.kind() & 0x70 == 0
            && let Some(row) = record.blocks.first().and_then(|block| record.block_data(block).get(5..))
        {
            self.values += self.recompressor.compressed_values(row, 23).count();
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn golden_images_and_values_come_back() {
    // By version: the images compressed by pglz, the values compressed within their rows.
    for (version, images, values) in [("14.23", 0, 1), ("15.18", 0, 1), ("17.11", 0, 1), ("18.6", 16, 0)] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(version);
        let mut compressed = Compressed { recompressor: Recompressor::new(), images: 0, values: 0 };
        for run in &Inventory::of(&[folder]).unwrap().runs {
            let options = ScanOptions { threads: 1, from: None, to: None };
            scan_in_order(run, options, &mut compressed, |_| ());
        }
        assert_eq!((compressed.images, compressed.values), (images, values), "{version}");
    }
}
