//! How long recovery takes: a sum over the kinds of work that replay consists of.
//!
//! Bytes alone do not tell: an uncompressed image is one copy of 8 kB, a record of 60 bytes finds a page and changes it, and a
//! compressed image is small in the WAL and has to be decompressed.

use serde::{Deserialize, Serialize};
use walden_redo::compress::Method;

use crate::outcome::{Bucket, Buckets};

/// What a part of the WAL asks of replay.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Work {
    /// Records.
    pub records: f64,
    /// Bytes of these, without images and framing.
    pub record_bytes: f64,
    /// Full-page images. Pages without one are read from the data files; either way a buffer is found for each.
    pub images: f64,
    /// Bytes of these in the WAL.
    pub image_bytes: f64,
    /// How these are compressed.
    pub compression: Option<Method>,
}

impl Work {
    /// The work of what a simulation has written: records, images after checkpoints, and bytes.
    pub(crate) fn new(records: u64, images: u64, buckets: &Buckets, compression: Option<Method>) -> Work {
        let image_bytes = buckets.images() as f64;
        let counted = buckets.get(Bucket::CheckpointImages) as f64;
        // The others are as large on average.
        let images =
            if counted > 0.0 { images as f64 * image_bytes / counted } else { image_bytes / PAGE_BYTES };
        let record_bytes = buckets.get(Bucket::Records) as f64;
        Work { records: records as f64, record_bytes, images, image_bytes, compression }
    }

    /// The work between two points.
    pub(crate) fn since(self, earlier: Work) -> Work {
        Work {
            records: self.records - earlier.records,
            record_bytes: self.record_bytes - earlier.record_bytes,
            images: self.images - earlier.images,
            image_bytes: self.image_bytes - earlier.image_bytes,
            compression: self.compression,
        }
    }

    /// The same mixture of work, for `factor` times the bytes.
    pub(crate) fn scaled(self, factor: f64) -> Work {
        Work {
            records: self.records * factor,
            record_bytes: self.record_bytes * factor,
            images: self.images * factor,
            image_bytes: self.image_bytes * factor,
            compression: self.compression,
        }
    }
}

const PAGE_BYTES: f64 = 8192.0;

/// What each kind of work takes, in nanoseconds of the recovering process, with pages and WAL in memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecoveryModel {
    /// For each record.
    pub record: f64,
    /// For each byte of a record without its images.
    pub record_byte: f64,
    /// For each page: finding or evicting a buffer, reading the page into it from the operating system's cache.
    pub page: f64,
    /// For each byte of an uncompressed image.
    pub image_byte: f64,
    /// For each image that pglz has compressed, in addition to its bytes.
    pub pglz_image: f64,
    /// For each image that lz4 has compressed, in addition to its bytes.
    pub lz4_image: f64,
    /// For each image that zstd has compressed, in addition to its bytes.
    pub zstd_image: f64,
}

impl Default for RecoveryModel {
    /// Fitted to PostgreSQL 15.18 on an AMD EPYC (Zen 5), `walden bench redo oltp oltp-pressure dense load`, within 15 %; `mixed`,
    /// with its many records of vacuum, takes 1.6 times as long as these say (docs/whatif.md).
    fn default() -> RecoveryModel {
        RecoveryModel {
            record: 450.0,
            record_byte: 1.5,
            page: 10_000.0,
            image_byte: 0.835,
            pglz_image: 25_000.0,
            lz4_image: 4_000.0,
            zstd_image: 12_000.0,
        }
    }
}

impl RecoveryModel {
    /// Seconds that the work takes.
    pub fn seconds(&self, work: &Work) -> f64 {
        let per_image = match work.compression {
            None => 0.0,
            Some(Method::Pglz) => self.pglz_image,
            Some(Method::Lz4) => self.lz4_image,
            Some(Method::Zstd) => self.zstd_image,
        };
        let nanoseconds = work.records * self.record
            + work.record_bytes * self.record_byte
            + work.images * (self.page + per_image)
            + work.image_bytes * self.image_byte;
        nanoseconds.max(0.0) / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workloads of `walden bench redo` with PostgreSQL's seconds (docs/benchmarks.md), the pages of each taken as its images.
    #[test]
    fn measured_recoveries_are_reproduced() {
        let work = |records, record_bytes, pages, image_bytes| Work {
            records,
            record_bytes,
            images: pages,
            image_bytes,
            compression: None,
        };
        for (name, work, measured) in [
            ("oltp", work(382e3, 27.5e6, 19_360.0, 149.2e6), 0.490),
            ("oltp-pressure", work(383e3, 28e6, 19_358.0, 556e6), 0.830),
            ("dense", work(2150e3, 138e6, 4_845.0, 0.0), 1.200),
            ("load", work(67e3, 110e6, 28_792.0, 88.7e6), 0.490),
        ] {
            let seconds = RecoveryModel::default().seconds(&work);
            assert!((seconds / measured - 1.0).abs() < 0.15, "{name}: {seconds} s for {measured}");
        }
    }

    #[test]
    fn compressed_images_take_longer_than_their_bytes_say() {
        let images =
            |compression, image_bytes| Work { images: 1000.0, image_bytes, compression, ..Work::default() };
        let model = RecoveryModel::default();
        let plain = model.seconds(&images(None, 8e6));
        let [pglz, lz4, zstd] =
            [Method::Pglz, Method::Lz4, Method::Zstd].map(|m| model.seconds(&images(Some(m), 2.5e6)));
        assert!(pglz > zstd && zstd > lz4 && pglz > plain, "{plain} {pglz} {lz4} {zstd}");
    }
}
