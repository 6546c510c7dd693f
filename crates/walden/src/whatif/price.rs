//! Prices a month of `walden archive` with the WAL of a trace.

use walden_archive::cost::{Class, MONTH_DAYS, OwnPrices, Rate};
use walden_whatif::archive::{ArchiveMonth, ArchiveSize};
use walden_whatif::document::Document;

/// The name of Walden's codec among the compressors of a document.
const WALDEN: &str = "walden compress";

/// The prices of a month in an archive.
pub struct Priced {
    pub class: Option<&'static Class>,
    pub own: Option<OwnPrices>,
    /// Days for which WAL is kept.
    pub keep_days: u32,
}

impl Priced {
    /// Returns a month of an archive in which `segments` segments of `bytes` bytes are stored in `seconds`
    /// seconds.
    fn month(&self, segments: u64, bytes: u64, seconds: f64) -> Option<ArchiveMonth> {
        let list = self.class.map(|class| class.prices);
        let prices = self.own.map(|own| own.or(list)).or(list);
        let rate = Rate::new(segments, bytes, seconds, prices.as_ref())?;
        let (min_days, min_bytes) = self.class.map_or((0, 0), |class| (class.min_days, class.min_bytes));
        let days = f64::from(self.keep_days.max(min_days));
        let billed_bytes = rate.stored_bytes.max(rate.segments * min_bytes as f64) * days / MONTH_DAYS;
        let price =
            prices.zip(rate.price).map(|(prices, requests)| prices.storage_of(billed_bytes) + requests);
        Some(ArchiveMonth {
            stored_bytes: rate.stored_bytes,
            billed_bytes,
            put_requests: rate.put_requests,
            get_requests: rate.get_requests,
            price,
        })
    }
}

/// Adds a month of `walden archive` to the sizes in a document, if the trace's time is known.
pub fn add_months(document: &mut Document, priced: &Priced, segment_bytes: u64) {
    let Some(seconds) = document.trace.seconds else { return };
    let own = |sizes: &mut Vec<ArchiveSize>, segments: u64| {
        if let Some(size) = sizes.iter_mut().find(|size| size.compressor == WALDEN) {
            size.month = priced.month(segments, size.bytes, seconds);
        }
    };
    let segments = document.trace_bytes.div_ceil(segment_bytes);
    own(&mut document.trace.archive, segments);
    for prediction in &mut document.predictions {
        own(&mut prediction.archive, prediction.segments);
    }
}

#[cfg(test)]
mod tests {
    use walden_archive::cost::{GB, class_of};

    use super::*;

    #[test]
    fn a_month_is_billed_for_the_days_that_are_kept() {
        let month = |class: Option<&str>, keep_days| {
            let class = class.and_then(|name| class_of("s3://bucket", Some(name)));
            let priced = Priced { class, own: None, keep_days };
            // 10 segments of 1 MB each day.
            priced.month(10, 10_000_000, 86_400.0).unwrap()
        };
        let standard = month(Some("STANDARD"), 30);
        assert_eq!((standard.stored_bytes.round(), standard.billed_bytes.round()), (3e8, 3e8));
        assert_eq!((standard.put_requests.round(), standard.get_requests.round()), (600.0, 300.0));
        let price = 3e8 / GB * 0.023 + 0.6 * 0.005 + 0.3 * 0.0004;
        assert!((standard.price.unwrap() - price).abs() < 1e-9, "{standard:?}");
        // The minimum storage duration counts if fewer days are kept.
        assert_eq!(month(Some("GLACIER_IR"), 10).billed_bytes.round(), 9e8);
        assert_eq!(month(None, 15).billed_bytes.round(), 1.5e8);
        assert_eq!(month(None, 15).price, None);
    }
}
