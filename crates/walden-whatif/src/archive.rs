//! How large an archive of the log would be: what images and everything else come to in some compressor, learned from a few
//! of the trace's segments.

use serde::Serialize;
use walden_redo::recompress::Method;

use crate::outcome::{Bucket, Buckets, Prediction};
use crate::settings::Settings;

/// A segment, compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Bytes of images in it.
    pub images: u64,
    /// Everything else.
    pub rest: u64,
    /// What the compressor made of it.
    pub compressed: u64,
}

/// What a byte comes to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// Of an image; nothing where the trace has none.
    pub images: Option<f64>,
    /// Of anything else.
    pub rest: f64,
    /// How far segments are from that, as a fraction of what they come to.
    pub error: f64,
}

/// A compressor, and what it makes of the trace.
#[derive(Clone, PartialEq, Debug)]
pub struct Compressor {
    /// Its name or command.
    pub name: String,
    /// It takes images that the server compressed apart, so that these come to what they do without.
    pub sees_through: bool,
    /// What it makes of bytes.
    pub rates: Rates,
}

/// What an archive would be.
#[derive(Clone, Debug, Serialize)]
pub struct ArchiveSize {
    /// Compressed by.
    pub compressor: String,
    /// Bytes.
    pub bytes: u64,
    /// It may be off by so many either way.
    pub error_bytes: u64,
}

/// The rates that fit best to segments (least squares, none below zero).
///
/// `compressed = images * a + rest * b`, solved by the normal equations. Where all segments have about the same share of
/// images, the two can't be told apart and are taken to be alike.
pub fn fit(samples: &[Sample]) -> Option<Rates> {
    let sum = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>();
    let (images, rest) = (sum(&|one| one.images as f64), sum(&|one| one.rest as f64));
    let compressed = sum(&|one| one.compressed as f64);
    if images + rest <= 0.0 || compressed <= 0.0 {
        return None;
    }
    let alike = compressed / (images + rest);
    let xx = sum(&|one| (one.images as f64).powi(2));
    let yy = sum(&|one| (one.rest as f64).powi(2));
    let xy = sum(&|one| one.images as f64 * one.rest as f64);
    let xz = sum(&|one| one.images as f64 * one.compressed as f64);
    let yz = sum(&|one| one.rest as f64 * one.compressed as f64);
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
    let off = sum(&|one| (one.images as f64 * a + one.rest as f64 * b - one.compressed as f64).powi(2));
    let mean = compressed / samples.len() as f64;
    let error = (off / samples.len() as f64).sqrt() / mean;
    Some(Rates { images: (images > 0.0).then_some(a), rest: b, error })
}

impl Compressor {
    /// The trace itself.
    pub fn of_trace(&self, actual: &Buckets) -> ArchiveSize {
        let images = actual.images();
        self.sized(images as f64 * self.rates.images.unwrap_or(0.0), actual.total() - images)
    }

    /// A prediction; nothing where the trace does not show what its images would come to.
    pub fn of(
        &self,
        traced: &Settings,
        actual: (&Buckets, u64),
        settings: &Settings,
        prediction: &Prediction,
    ) -> Option<ArchiveSize> {
        let images = prediction.buckets.images();
        let rest = prediction.buckets.total() - images;
        let (now, then) = (traced.wal_compression, settings.wal_compression);
        let kept = |method: Option<Method>| method.is_some() && !self.sees_through;
        let stored = if images == 0 {
            0.0
        } else if now == then {
            images as f64 * self.rates.images?
        } else if kept(then) {
            // What the server has compressed does not get smaller.
            images as f64
        } else {
            // As much for each image as the trace's come to.
            let (buckets, count) = actual;
            let each =
                buckets.get(Bucket::CheckpointImages) as f64 / count.max(1) as f64 * self.rates.images?;
            each * prediction.images as f64
        };
        Some(self.sized(stored, rest))
    }

    fn sized(&self, images: f64, rest: u64) -> ArchiveSize {
        let bytes = images + rest as f64 * self.rates.rest;
        ArchiveSize {
            compressor: self.name.clone(),
            bytes: bytes as u64,
            error_bytes: (bytes * self.rates.error) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use walden_format::version::Major;

    use super::*;

    fn sample(images: u64, rest: u64) -> Sample {
        Sample { images, rest, compressed: images / 10 + rest / 2 }
    }

    #[test]
    fn rates_are_found() {
        let rates = fit(&[sample(1000, 100), sample(500, 600), sample(100, 1000)]).unwrap();
        assert!((rates.images.unwrap() - 0.1).abs() < 1e-6 && (rates.rest - 0.5).abs() < 1e-6);
        assert!(rates.error < 1e-6);
        // Nothing tells them apart.
        let rates = fit(&[sample(1000, 1000), sample(500, 500)]).unwrap();
        assert_eq!((rates.images, rates.rest), (Some(0.3), 0.3));
        assert_eq!(fit(&[sample(0, 1000)]).unwrap().images, None);
        assert_eq!(fit(&[]), None);
    }

    #[test]
    fn what_the_server_compressed_stays() {
        let mut actual = Buckets::default();
        actual.add(Bucket::CheckpointImages, 8000);
        actual.add(Bucket::Records, 2000);
        let traced = Settings::default_of(Major::V15);
        let rates = Rates { images: Some(0.1), rest: 0.5, error: 0.02 };
        let compressor = |sees_through| Compressor { name: "one".into(), sees_through, rates };
        assert_eq!(compressor(true).of_trace(&actual).bytes, 1800);
        let then = |sees_through, method| {
            let mut buckets = Buckets::default();
            buckets.add(Bucket::CheckpointImages, 2000);
            buckets.add(Bucket::Records, 2000);
            let prediction = Prediction { buckets, images: 1, ..Prediction::default() };
            let settings = Settings { wal_compression: method, ..traced.clone() };
            compressor(sees_through).of(&traced, (&actual, 1), &settings, &prediction).unwrap().bytes
        };
        assert_eq!([true, false].map(|sees_through| then(sees_through, None)), [1200, 1200]);
        for method in [Method::Pglz, Method::Lz4, Method::Zstd] {
            assert_eq!([true, false].map(|sees_through| then(sees_through, Some(method))), [1800, 3000]);
        }
    }
}
