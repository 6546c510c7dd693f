//! Predicts the size of a compressed archive. Compression rates of full-page images and of other bytes are
//! fitted to a few segments of the trace.

use serde::Serialize;
use walden_recompress::Method;

use crate::buckets::{Bucket, Buckets};
use crate::outcome::Prediction;
use crate::settings::Settings;

/// A segment of the trace, compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Bytes of full-page images in the sample.
    pub images: u64,
    /// All other bytes.
    pub other: u64,
    /// Bytes after compression.
    pub compressed: u64,
}

/// Compressed bytes per byte.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// The rate of full-page images; `None` if the trace has none.
    pub images: Option<f64>,
    /// The rate of all other bytes.
    pub other: f64,
    /// Root mean square error of the fit, as a fraction of the mean compressed size.
    pub error: f64,
}

/// A compressor and its rates on the trace.
#[derive(Clone, PartialEq, Debug)]
pub struct Compressor {
    /// Name or command of the compressor.
    pub name: String,
    /// Whether the compressor decompresses images that the server compressed, so that these take as many
    /// bytes as images that the server did not compress.
    pub recompresses_images: bool,
    /// The compressor's rates.
    pub rates: Rates,
}

/// The predicted size of an archive.
#[derive(Clone, Debug, Serialize)]
pub struct ArchiveSize {
    /// Name or command of the compressor.
    pub compressor: String,
    /// Size of the archive in bytes.
    pub bytes: u64,
    /// Error of `bytes` in either direction, in bytes.
    pub error_bytes: u64,
    /// An archive of the same work for a month, in an object store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub month: Option<ArchiveMonth>,
}

/// What archiving takes in a month of 30 days, at the trace's rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArchiveMonth {
    /// Bytes that are stored in the month.
    pub stored_bytes: f64,
    /// Number of bytes that are billed at any time: the WAL of the days that the archive keeps, or of the
    /// minimum storage duration.
    pub billed_bytes: f64,
    /// Number of requests that write or list.
    pub put_requests: f64,
    /// Number of requests that read.
    pub get_requests: f64,
    /// Price of the billed bytes and the requests, if prices are known.
    pub price: Option<f64>,
}

/// Fits non-negative rates to segments by least squares; `None` without any bytes.
///
/// `compressed = images * a + rest * b`, solved by the normal equations. If all segments have about the same
/// share of images, the two rates cannot be distinguished and are assumed to be equal.
pub fn fit(samples: &[Sample]) -> Option<Rates> {
    let sum = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>();
    let (images, rest) = (sum(&|one| one.images as f64), sum(&|one| one.other as f64));
    let compressed = sum(&|one| one.compressed as f64);
    if images + rest <= 0.0 || compressed <= 0.0 {
        return None;
    }
    let alike = compressed / (images + rest);
    let xx = sum(&|one| (one.images as f64).powi(2));
    let yy = sum(&|one| (one.other as f64).powi(2));
    let xy = sum(&|one| one.images as f64 * one.other as f64);
    let xz = sum(&|one| one.images as f64 * one.compressed as f64);
    let yz = sum(&|one| one.other as f64 * one.compressed as f64);
    let determinant = xx * yy - xy * xy;
    let (a, b) = if images == 0.0 || rest == 0.0 || determinant <= 1e-3 * xx * yy {
        (alike, alike)
    } else {
        match ((xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant) {
            (a, _) if a < 0.0 => (0.0, compressed / rest),
            (_, b) if b < 0.0 => (compressed / images, 0.0),
            both => both,
        }
    };
    let off = sum(&|one| (one.images as f64 * a + one.other as f64 * b - one.compressed as f64).powi(2));
    let mean = compressed / samples.len() as f64;
    let error = (off / samples.len() as f64).sqrt() / mean;
    Some(Rates { images: (images > 0.0).then_some(a), other: b, error })
}

impl Compressor {
    /// Returns the size of an archive of the trace itself.
    pub fn trace_size(&self, actual: &Buckets) -> ArchiveSize {
        let images = actual.images();
        self.sized(images as f64 * self.rates.images.unwrap_or(0.0), actual.total() - images)
    }

    /// Returns the size of an archive of a prediction; `None` if it has images but the trace has none to fit
    /// a rate to.
    pub fn predicted_size(
        &self,
        traced: &Settings,
        actual: (&Buckets, u64),
        settings: &Settings,
        prediction: &Prediction,
    ) -> Option<ArchiveSize> {
        let images = prediction.buckets.images();
        let rest = prediction.buckets.total() - images;
        let (now, then) = (traced.wal_compression, settings.wal_compression);
        let kept = |method: Option<Method>| method.is_some() && !self.recompresses_images;
        let stored = if images == 0 {
            0.0
        } else if now == then {
            images as f64 * self.rates.images?
        } else if kept(then) {
            // Images that the server has compressed do not shrink further.
            images as f64
        } else {
            // Images have as many bytes on average as in the trace.
            let (buckets, count) = actual;
            let each =
                buckets.get(Bucket::CheckpointImages) as f64 / count.max(1) as f64 * self.rates.images?;
            each * prediction.images as f64
        };
        Some(self.sized(stored, rest))
    }

    fn sized(&self, images: f64, rest: u64) -> ArchiveSize {
        let bytes = images + rest as f64 * self.rates.other;
        ArchiveSize {
            compressor: self.name.clone(),
            bytes: bytes as u64,
            error_bytes: (bytes * self.rates.error) as u64,
            month: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use walden_format::version::Major;

    use super::*;

    fn sample(images: u64, rest: u64) -> Sample {
        Sample { images, other: rest, compressed: images / 10 + rest / 2 }
    }

    #[test]
    fn rates_are_fitted() {
        let rates = fit(&[sample(1000, 100), sample(500, 600), sample(100, 1000)]).unwrap();
        assert!((rates.images.unwrap() - 0.1).abs() < 1e-6 && (rates.other - 0.5).abs() < 1e-6);
        assert!(rates.error < 1e-6);
        // The rates cannot be distinguished.
        let rates = fit(&[sample(1000, 1000), sample(500, 500)]).unwrap();
        assert_eq!((rates.images, rates.other), (Some(0.3), 0.3));
        assert_eq!(fit(&[sample(0, 1000)]).unwrap().images, None);
        assert_eq!(fit(&[]), None);
    }

    #[test]
    fn compressed_images_are_stored_as_they_are() {
        let mut actual = Buckets::default();
        actual.add(Bucket::CheckpointImages, 8000);
        actual.add(Bucket::Records, 2000);
        let traced = Settings::default_of(Major::V15);
        let rates = Rates { images: Some(0.1), other: 0.5, error: 0.02 };
        let compressor = |recompresses_images| Compressor { name: "one".into(), recompresses_images, rates };
        assert_eq!(compressor(true).trace_size(&actual).bytes, 1800);
        let then = |recompresses_images, method| {
            let mut buckets = Buckets::default();
            buckets.add(Bucket::CheckpointImages, 2000);
            buckets.add(Bucket::Records, 2000);
            let prediction = Prediction { buckets, images: 1, ..Prediction::default() };
            let settings = Settings { wal_compression: method, ..traced.clone() };
            compressor(recompresses_images)
                .predicted_size(&traced, (&actual, 1), &settings, &prediction)
                .unwrap()
                .bytes
        };
        assert_eq!([true, false].map(|recompresses_images| then(recompresses_images, None)), [1200, 1200]);
        for method in [Method::Pglz, Method::Lz4, Method::Zstd] {
            assert_eq!(
                [true, false].map(|recompresses_images| then(recompresses_images, Some(method))),
                [1800, 3000]
            );
        }
    }
}
