//! Tests that recompression reproduces the bytes that servers wrote.

use std::ops::ControlFlow;
use std::path::Path;

use walden_format::record::Record;
use walden_format::stream::Visitor;
use walden_recompress::{Method, Recompressor};
use walden_source::inventory::Inventory;
use walden_source::scan::{ScanOptions, scan_in_order};

/// Counts of compressed images.
struct Compressed {
    recompressor: Recompressor,
    images: usize,
}

impl Visitor for Compressed {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        for block in record.blocks {
            let Some(image) = &block.image else { continue };
            let Some(method) = Method::from_compression(image.compression) else { continue };
            let stored = record.image_data(image);
            let mut raw = vec![0; 8192 - usize::from(image.hole_len)];
            assert_eq!(method.decompress(stored, &mut raw), Some(raw.len()));
            let mut compressed = Vec::new();
            assert!(self.recompressor.compress(method, &raw, &mut compressed));
            assert_eq!(compressed, stored, "{}", record.lsn);
            self.images += 1;
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn golden_images_are_compressed_as_servers_did() {
    // By version: number of images compressed by pglz.
    for (version, images) in [("14.23", 0), ("15.18", 0), ("17.11", 0), ("18.6", 16)] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(version);
        let mut compressed = Compressed { recompressor: Recompressor::new(), images: 0 };
        for run in &Inventory::search(&[folder]).unwrap().runs {
            let options = ScanOptions::new(1);
            scan_in_order(run, options, &mut compressed, |_| ());
        }
        assert_eq!(compressed.images, images, "{version}");
    }
}
