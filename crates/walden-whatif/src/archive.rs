//! Predicts the size of a compressed archive. Compression rates of full-page images and of other bytes are
//! fitted to a few segments of the trace and of the predicted WAL.

use serde::Serialize;

use crate::buckets::{Bucket, Buckets};
use crate::outcome::Prediction;

/// A segment, compressed.
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
    /// The rate of full-page images; `None` if the samples have none.
    pub images: Option<f64>,
    /// The rate of all other bytes.
    pub other: f64,
    /// Error of the compressed size that these rates yield, in either direction, as a fraction.
    pub error: f64,
}

/// A compressor and its rates.
#[derive(Clone, PartialEq, Debug)]
pub struct Compressor {
    /// Name or command of the compressor.
    pub name: String,
    /// The rates on the trace.
    pub trace: Rates,
    /// The rates on the WAL of each prediction, in their order; `None` if none of it was compressed.
    pub predictions: Vec<Option<Rates>>,
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

/// Minimum error of a compressed size as a fraction: another run has other values, and the compressed
/// segments have other LSNs.
const MIN_ERROR: f64 = 0.02;
/// Error if there are too few samples to determine it, as a fraction.
const UNKNOWN_ERROR: f64 = 0.3;

/// Fits non-negative rates to segments by least squares; `None` without any bytes. `bytes` are all bytes that
/// the samples stand for.
///
/// `compressed = images * a + rest * b`, solved by the normal equations. If all segments have about the same
/// share of images, the two rates cannot be distinguished and are assumed to be equal.
pub fn fit(samples: &[Sample], bytes: u64) -> Option<Rates> {
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
    let (a, b, parameters) = if images == 0.0 || rest == 0.0 || determinant <= 1e-3 * xx * yy {
        (alike, alike, 1)
    } else {
        match ((xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant) {
            (a, _) if a < 0.0 => (0.0, compressed / rest, 1),
            (_, b) if b < 0.0 => (compressed / images, 0.0, 1),
            (a, b) => (a, b, 2),
        }
    };
    let off = sum(&|one| (one.images as f64 * a + one.other as f64 * b - one.compressed as f64).powi(2));
    let count = samples.len();
    let mean = compressed / count as f64;
    // Three times the standard error of the mean of the samples, as these are few.
    let random = match count.saturating_sub(parameters) {
        0 => UNKNOWN_ERROR,
        degrees => 3.0 * (off / degrees as f64).sqrt() / mean / (count as f64).sqrt(),
    };
    let missing = 1.0 - ((images + rest) / bytes.max(1) as f64).min(1.0);
    let error = MIN_ERROR.hypot(random * missing.sqrt());
    Some(Rates { images: (images > 0.0).then_some(a), other: b, error })
}

impl Compressor {
    /// Returns the size of an archive of the trace itself.
    pub fn trace_size(&self, actual: &Buckets) -> ArchiveSize {
        self.sized(&self.trace, actual, 0.0)
    }

    /// Returns the size of an archive of the prediction at this index, whose bytes have this error as a
    /// fraction; `None` if none of its WAL was compressed.
    pub fn predicted_size(&self, index: usize, prediction: &Prediction, error: f64) -> Option<ArchiveSize> {
        let rates = self.predictions.get(index)?.as_ref()?;
        Some(self.sized(rates, &prediction.buckets, error))
    }

    fn sized(&self, rates: &Rates, buckets: &Buckets, error: f64) -> ArchiveSize {
        let (images, unused) = (buckets.images(), buckets.get(Bucket::Switches));
        // The unused ends of segments compress to nearly nothing.
        let other = (buckets.total() - images).saturating_sub(unused);
        let bytes = images as f64 * rates.images.unwrap_or(rates.other) + other as f64 * rates.other;
        ArchiveSize {
            compressor: self.name.clone(),
            bytes: bytes as u64,
            error_bytes: (bytes * rates.error.hypot(error)) as u64,
            month: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(images: u64, rest: u64) -> Sample {
        Sample { images, other: rest, compressed: images / 10 + rest / 2 }
    }

    #[test]
    fn rates_are_fitted() {
        let rates = fit(&[sample(1000, 100), sample(500, 600), sample(100, 1000)], 10_000).unwrap();
        assert!((rates.images.unwrap() - 0.1).abs() < 1e-6 && (rates.other - 0.5).abs() < 1e-6);
        assert!((rates.error - MIN_ERROR).abs() < 1e-6);
        // The rates cannot be distinguished.
        let rates = fit(&[sample(1000, 1000), sample(500, 500)], 3000).unwrap();
        assert_eq!((rates.images, rates.other), (Some(0.3), 0.3));
        assert_eq!(fit(&[sample(0, 1000)], 1000).unwrap().images, None);
        assert_eq!(fit(&[], 0), None);
    }

    #[test]
    fn few_samples_have_a_large_error_unless_they_are_all() {
        let few = [sample(1000, 100), sample(500, 600)];
        assert!(fit(&few, 1_000_000).unwrap().error > 0.29);
        assert_eq!(fit(&few, 2200).unwrap().error, MIN_ERROR);
    }

    #[test]
    fn a_prediction_has_the_rates_of_its_own_wal() {
        let rates = |images| Rates { images: Some(images), other: 0.5, error: 0.02 };
        let predictions = vec![Some(rates(0.9)), None];
        let compressor = Compressor { name: "one".into(), trace: rates(0.1), predictions };
        let mut buckets = Buckets::default();
        buckets.add(Bucket::CheckpointImages, 8000);
        buckets.add(Bucket::Records, 2000);
        buckets.add(Bucket::Switches, 5000);
        assert_eq!(compressor.trace_size(&buckets).bytes, 1800);
        let prediction = Prediction { buckets, ..Prediction::default() };
        let size = compressor.predicted_size(0, &prediction, 0.03).unwrap();
        assert_eq!((size.bytes, size.error_bytes), (8200, 295));
        assert!(compressor.predicted_size(1, &prediction, 0.03).is_none());
    }
}
