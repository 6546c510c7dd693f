//! Measures how much rates vary within a range: a smaller change may be chance.

use std::collections::BTreeMap;

use crate::document::{GroupDocument, ViewDocument};

/// Bytes in each of consecutive spans of time.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// Width of a span in seconds.
    pub width: i64,
    bytes: Vec<u64>,
}

/// The spans of a range.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    first: i64,
    spans: usize,
    width: i64,
}

/// Maximum number of spans; longer series are not compared.
const MAX_SPANS: i64 = 100_000;
/// Minimum number of spans in a range, without the first and the last span, which are incomplete.
const MIN_SPANS: usize = 8;
/// Minimum number of batches that neighbouring spans are joined to, as rates of neighbours are correlated.
const BATCHES: usize = 10;

impl Frame {
    pub fn from_view(view: &ViewDocument) -> Option<Frame> {
        let width = view.span_seconds.filter(|width| *width > 0)?;
        let starts = || view.groups.iter().filter_map(start_of);
        let (first, last) = (starts().min()?, starts().max()?);
        let spans = (last - first) / width + 1;
        (spans <= MAX_SPANS).then_some(Frame { first, spans: usize::try_from(spans).ok()?, width })
    }
}

/// When a group of a view by time starts, in seconds since 1970-01-01 UTC.
fn start_of(group: &GroupDocument) -> Option<i64> {
    Some(group.keys.first()?.text.parse::<jiff::Timestamp>().ok()?.as_second())
}

impl Series {
    /// Returns the series of a view whose first dimension is time, by the `key` of a group.
    pub fn from_view(
        view: &ViewDocument,
        key: impl Fn(&GroupDocument) -> Option<String>,
    ) -> BTreeMap<String, Series> {
        Frame::from_view(view).map(|frame| Series::in_frame(view, frame, key)).unwrap_or_default()
    }

    /// Returns the series of another view of the same range, over the same spans.
    pub fn in_frame(
        view: &ViewDocument,
        frame: Frame,
        key: impl Fn(&GroupDocument) -> Option<String>,
    ) -> BTreeMap<String, Series> {
        let mut all: BTreeMap<String, Series> = BTreeMap::new();
        for group in &view.groups {
            let (Some(start), Some(key)) = (start_of(group), key(group)) else { continue };
            let Ok(at) = usize::try_from((start - frame.first) / frame.width) else { continue };
            let empty = || Series { width: frame.width, bytes: vec![0; frame.spans] };
            if let Some(bytes) = all.entry(key).or_insert_with(empty).bytes.get_mut(at) {
                *bytes += group.sum.wal_bytes();
            }
        }
        all
    }

    /// Returns a series with the same spans and zero bytes in each.
    pub fn empty(&self) -> Series {
        Series { width: self.width, bytes: vec![0; self.bytes.len()] }
    }

    /// Seconds since the start of the first span, and bytes per second.
    pub fn rate(&self) -> Vec<(f64, f64)> {
        let point =
            |(at, bytes): (usize, &u64)| ((at as i64 * self.width) as f64, *bytes as f64 / self.width as f64);
        self.bytes.iter().enumerate().map(point).collect()
    }

    /// The square of the standard error of the mean rate, in bytes per second; `None` with too few spans.
    fn squared_error(&self) -> Option<f64> {
        let inner = self.bytes.get(1..self.bytes.len().checked_sub(1)?)?;
        if inner.len() < MIN_SPANS {
            return None;
        }
        let joined = (inner.len() / BATCHES).max(1);
        let rates: Vec<f64> = inner
            .chunks_exact(joined)
            .map(|batch| batch.iter().sum::<u64>() as f64 / (joined as i64 * self.width) as f64)
            .collect();
        let count = rates.len() as f64;
        let mean = rates.iter().sum::<f64>() / count;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Some(variance / count)
    }
}

/// The change of the mean rate that may be chance: two standard errors of the difference, in bytes per
/// second.
pub(super) fn estimate_change_noise(a: &Series, b: &Series) -> Option<f64> {
    Some(2.0 * (a.squared_error()? + b.squared_error()?).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_rates_have_no_noise_and_short_series_an_unknown_one() {
        let series = |bytes: &[u64]| Series { width: 2, bytes: bytes.to_vec() };
        let steady = series(&[100; 30]);
        assert_eq!(estimate_change_noise(&steady, &steady.empty()), Some(0.0));
        assert_eq!(estimate_change_noise(&steady, &series(&[100; 9])), None);
        assert_eq!(estimate_change_noise(&steady, &series(&[])), None);
        let varying: Vec<u64> = (0..42).map(|n| if n / 4 % 2 == 0 { 0 } else { 2000 }).collect();
        let noise = estimate_change_noise(&steady, &series(&varying)).unwrap();
        // Ten batches that alternate between 250 and 750 bytes per second: two standard errors of their mean.
        assert!((noise - 2.0 * 250.0 / 3.0).abs() < 1e-9, "{noise}");
        assert_eq!(steady.rate()[1], (2.0, 50.0));
    }
}
