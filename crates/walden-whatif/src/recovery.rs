//! Estimates the duration of recovery: a sum over the types of work in replay.
//!
//! Bytes alone do not determine it: an uncompressed image is one copy of 8 kB, a record of 60 bytes finds a
//! page and changes it, and a compressed image is small in the WAL and must be decompressed.

use serde::{Deserialize, Serialize};
use walden_recompress::Method;

use crate::buckets::{Bucket, Buckets};

/// The replay work for a part of the WAL.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Work {
    /// Number of records.
    pub records: f64,
    /// Bytes of the records, without images and framing.
    pub record_bytes: f64,
    /// Number of pages for which a buffer is found, each counted once. Between two checkpoints each has one
    /// full-page image.
    pub pages: f64,
    /// Number of full-page images.
    pub images: f64,
    /// Bytes of the images in the WAL.
    pub image_bytes: f64,
    /// The compression method of the images.
    pub compression: Option<Method>,
}

impl Work {
    /// Returns the work for the WAL of a simulation: records, images after checkpoints, and bytes.
    pub(crate) fn new(records: u64, images: u64, buckets: &Buckets, compression: Option<Method>) -> Work {
        let image_bytes = buckets.images() as f64;
        let counted = buckets.get(Bucket::CheckpointImages) as f64;
        // The other images are as large on average.
        let images =
            if counted > 0.0 { images as f64 * image_bytes / counted } else { image_bytes / PAGE_BYTES };
        let record_bytes = buckets.get(Bucket::Records) as f64;
        Work { records: records as f64, record_bytes, pages: images, images, image_bytes, compression }
    }

    /// The work between two points.
    pub(crate) fn since(self, earlier: Work) -> Work {
        Work {
            records: self.records - earlier.records,
            record_bytes: self.record_bytes - earlier.record_bytes,
            pages: self.pages - earlier.pages,
            images: self.images - earlier.images,
            image_bytes: self.image_bytes - earlier.image_bytes,
            compression: self.compression,
        }
    }

    /// Returns the same mixture of work, for `factor` times the bytes.
    pub(crate) fn scaled(self, factor: f64) -> Work {
        Work {
            records: self.records * factor,
            record_bytes: self.record_bytes * factor,
            pages: self.pages * factor,
            images: self.images * factor,
            image_bytes: self.image_bytes * factor,
            compression: self.compression,
        }
    }
}

const PAGE_BYTES: f64 = walden_redo::PAGE_BYTES as f64;

/// The time for each type of work, in nanoseconds of the recovering process, with pages and WAL in memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecoveryModel {
    /// Nanoseconds per record.
    pub record: f64,
    /// Nanoseconds per byte of a record without its images.
    pub record_byte: f64,
    /// Per page: finding or evicting a buffer, reading the page into it from the operating system's cache.
    pub page: f64,
    /// Per byte of an uncompressed image.
    pub image_byte: f64,
    /// Per image compressed with pglz, in addition to its bytes.
    pub pglz_image: f64,
    /// Per image compressed with lz4, in addition to its bytes.
    pub lz4_image: f64,
    /// Per image compressed with zstd, in addition to its bytes.
    pub zstd_image: f64,
}

impl Default for RecoveryModel {
    /// Fitted to PostgreSQL 15.18 on an AMD EPYC (Zen 5), `walden bench redo oltp oltp-pressure dense load`,
    /// within 15 %; `mixed`, with its many vacuum records, takes 1.6 times as long as these figures predict.
    /// Decompression is as `--calibrate` measured it with 15.20 on another machine (research/prediction.md).
    fn default() -> RecoveryModel {
        RecoveryModel {
            record: 450.0,
            record_byte: 1.5,
            page: 10_000.0,
            image_byte: 0.835,
            pglz_image: 2_700.0,
            lz4_image: 1_400.0,
            zstd_image: 22_500.0,
        }
    }
}

impl RecoveryModel {
    /// Returns the duration of the work in seconds.
    pub fn seconds(&self, work: &Work) -> f64 {
        let per_image = match work.compression {
            None => 0.0,
            Some(Method::Pglz) => self.pglz_image,
            Some(Method::Lz4) => self.lz4_image,
            Some(Method::Zstd) => self.zstd_image,
        };
        let nanoseconds = work.records * self.record
            + work.record_bytes * self.record_byte
            + work.pages * self.page
            + work.images * per_image
            + work.image_bytes * self.image_byte;
        nanoseconds.max(0.0) / 1e9
    }
}

/// The figures of a model, in the order of its fields.
const TERMS: usize = 7;

impl RecoveryModel {
    fn terms(&self) -> [f64; TERMS] {
        [
            self.record,
            self.record_byte,
            self.page,
            self.image_byte,
            self.pglz_image,
            self.lz4_image,
            self.zstd_image,
        ]
    }

    fn from_terms(terms: [f64; TERMS]) -> RecoveryModel {
        let [record, record_byte, page, image_byte, pglz_image, lz4_image, zstd_image] = terms;
        RecoveryModel { record, record_byte, page, image_byte, pglz_image, lz4_image, zstd_image }
    }

    /// Fits a model to measured recoveries (work and seconds) by least squares of relative errors, with no
    /// figure below zero. Figures that the work does not determine stay as in `usual`: a deviation from
    /// `usual` counts as an error of a fifth of its relative size.
    ///
    /// The fit is deterministic.
    pub fn fit(measured: &[(Work, f64)], usual: &RecoveryModel) -> RecoveryModel {
        /// Weight of the deviation from the usual figures.
        const TO_USUAL: f64 = 0.04;
        const ROUNDS: usize = 2000;
        // As fractions of the usual figures, and of the measured seconds.
        let usual = usual.terms();
        let rows: Vec<[f64; TERMS]> = measured
            .iter()
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|(work, seconds)| {
                std::array::from_fn(|term| {
                    let mut alone = [0.0; TERMS];
                    alone[term] = usual[term];
                    RecoveryModel::from_terms(alone).seconds(work) / seconds
                })
            })
            .collect();
        let mut parts = [1.0; TERMS];
        for _ in 0..ROUNDS {
            for term in 0..TERMS {
                let (mut above, mut below) = (TO_USUAL, TO_USUAL);
                for row in &rows {
                    let others: f64 = (0..TERMS)
                        .filter(|other| *other != term)
                        .map(|other| row[other] * parts[other])
                        .sum();
                    above += row[term] * (1.0 - others);
                    below += row[term] * row[term];
                }
                parts[term] = (above / below).max(0.0);
            }
        }
        RecoveryModel::from_terms(std::array::from_fn(|term| usual[term] * parts[term]))
    }
}

/// A model that was fitted to recoveries on one machine, as stored in a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecoveryRates {
    /// Processor, cores and system.
    pub machine: String,
    /// The version of PostgreSQL that recovered.
    pub postgresql: String,
    /// The date, as YYYY-MM-DD.
    pub measured_on: String,
    /// The figures.
    pub nanoseconds: RecoveryModel,
    /// The recoveries for fitting and for verification.
    pub recoveries: Vec<Recovered>,
}

/// A measured recovery.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Recovered {
    /// The workload, including a setting under which it was run.
    pub workload: String,
    /// Whether the figures were fitted to this workload.
    #[serde(rename = "fitted", default = "fitted")]
    pub is_fitted: bool,
    /// Bytes of WAL replayed.
    pub wal_bytes: u64,
    /// Processor time of the recovering process in seconds, which is the duration on an idle machine.
    pub seconds: f64,
    /// The elapsed time in seconds.
    pub elapsed_seconds: f64,
    /// The time in seconds that the figures predict.
    pub computed_seconds: f64,
}

/// Files from before this field was added contain only recoveries that the figures were fitted to.
fn fitted() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_finds_the_figures_of_another_machine() {
        let usual = RecoveryModel::default();
        // Twice as slow; no measurement with pglz.
        let truth = RecoveryModel::from_terms(usual.terms().map(|term| 2.0 * term));
        let work = |records: f64, images: f64, compression: Option<Method>| Work {
            records,
            record_bytes: records * 70.0,
            pages: 20e3_f64.min(images),
            images,
            image_bytes: images * if compression.is_none() { 7500.0 } else { 2000.0 },
            compression,
        };
        let works = [
            work(400e3, 20e3, None),
            work(400e3, 80e3, None),
            work(2000e3, 1e3, None),
            work(400e3, 80e3, Some(Method::Lz4)),
            work(400e3, 80e3, Some(Method::Zstd)),
        ];
        let measured: Vec<(Work, f64)> = works.iter().map(|work| (*work, truth.seconds(work))).collect();
        let model = RecoveryModel::fit(&measured, &usual);
        for (work, seconds) in &measured {
            let error = model.seconds(work) / seconds - 1.0;
            assert!(error.abs() < 0.12, "{error} {model:?}");
        }
        assert_eq!(model.pglz_image, usual.pglz_image, "no recovery shows it");
        assert_eq!(model, RecoveryModel::fit(&measured, &usual), "the same each time");
        assert_eq!(RecoveryModel::fit(&[], &usual), usual);
    }

    /// Workloads of `walden bench redo` with PostgreSQL's seconds (research/benchmarks.md); the number of
    /// pages is assumed to equal that of images.
    #[test]
    fn measured_recoveries_are_reproduced() {
        let work = |records, record_bytes, pages, image_bytes| Work {
            records,
            record_bytes,
            pages,
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
        let images = |compression, image_bytes| Work {
            pages: 1000.0,
            images: 1000.0,
            image_bytes,
            compression,
            ..Work::default()
        };
        let model = RecoveryModel::default();
        let plain = model.seconds(&images(None, 8e6));
        let [pglz, lz4, zstd] =
            [Method::Pglz, Method::Lz4, Method::Zstd].map(|m| model.seconds(&images(Some(m), 2.5e6)));
        // zstd takes longer than the copy of an uncompressed image.
        assert!(zstd > plain && zstd > pglz && pglz > lz4, "{plain} {pglz} {lz4} {zstd}");
    }
}
