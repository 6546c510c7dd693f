//! The cost of an archive in an object store: stored bytes, requests, and minimum storage durations.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::list::Listing;
use crate::archive::{Archive, ArchiveError};
use crate::base_backups::BASE;
use crate::objects::name::{BACKUP, HISTORY, WAL};
use crate::store::StoreError;

/// Describes the prices of [`CLASSES`].
pub const AS_OF: &str =
    "list prices as known in 2025, in US dollars, of us-east-1, us-central1 and East US, without traffic";
/// Describes prices that the user states.
pub const OWN: &str = "prices of walden.toml or --price, the others list prices";
/// Days of a month.
pub const MONTH_DAYS: f64 = 30.0;
/// Write and list requests of a push, and read requests, as `docs/archive-reference.md` states.
pub const PUSH_REQUESTS: (u64, u64) = (2, 1);
/// Number of objects that a list request returns.
const LISTED_AT_ONCE: u64 = 1000;
/// Bytes per GB of a price: S3, Azure and Google bill binary gigabytes.
pub const GB: f64 = 1_073_741_824.0;
const DAY_SECONDS: f64 = 86_400.0;
/// Minimum time from which the rate of archiving is observed, in seconds.
const MIN_OBSERVED: f64 = 60.0;

/// Prices in one currency. Removals cost nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Prices {
    /// Price of storing a GB for a month.
    pub storage: f64,
    /// Price of 1000 requests that write or list.
    pub put: f64,
    /// Price of 1000 requests that read.
    pub get: f64,
    /// Price of reading a GB, in addition to the requests.
    pub retrieval: f64,
}

impl Prices {
    /// Returns the price of storing this many bytes for a month.
    pub fn storage_of(&self, bytes: f64) -> f64 {
        bytes / GB * self.storage
    }
}

/// Prices that replace list prices: those that are set.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnPrices {
    /// See [`Prices::storage`].
    pub storage: Option<f64>,
    /// See [`Prices::put`].
    pub put: Option<f64>,
    /// See [`Prices::get`].
    pub get: Option<f64>,
    /// See [`Prices::retrieval`].
    pub retrieval: Option<f64>,
}

impl OwnPrices {
    /// Parses `storage=0.02,put=0.005`.
    ///
    /// # Errors
    /// A name that is no field of this type, or a value that is no price.
    pub fn parse(text: &str) -> Result<OwnPrices, String> {
        let mut prices = OwnPrices::default();
        for pair in text.split(',') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let field = match name.trim() {
                "storage" => &mut prices.storage,
                "put" => &mut prices.put,
                "get" => &mut prices.get,
                "retrieval" => &mut prices.retrieval,
                other => return Err(format!("expected storage, put, get or retrieval, found \"{other}\"")),
            };
            let number = value.trim().parse();
            *field = Some(number.map_err(|_| format!("expected {name}=PRICE, found \"{pair}\""))?);
        }
        prices.check().map(|()| prices)
    }

    /// Checks that all prices are numbers from 0 on.
    ///
    /// # Errors
    /// The first other value.
    pub fn check(&self) -> Result<(), String> {
        let all = [self.storage, self.put, self.get, self.retrieval];
        match all.into_iter().flatten().find(|price| !price.is_finite() || *price < 0.0) {
            None => Ok(()),
            Some(price) => Err(format!("expected a price of 0 or more, found {price}")),
        }
    }

    /// Returns all prices: those that are set, and the list prices.
    #[must_use]
    pub fn or(self, list: Option<Prices>) -> Prices {
        let list = list.unwrap_or_default();
        Prices {
            storage: self.storage.unwrap_or(list.storage),
            put: self.put.unwrap_or(list.put),
            get: self.get.unwrap_or(list.get),
            retrieval: self.retrieval.unwrap_or(list.retrieval),
        }
    }
}

/// A storage class whose objects can be read at once.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Class {
    /// Scheme of the store's URLs.
    pub scheme: &'static str,
    /// The store's name of the class.
    pub name: &'static str,
    /// The list prices of the class.
    pub prices: Prices,
    /// Number of days for which an object is billed at least.
    pub min_days: u32,
    /// Bytes that are billed for an object at least.
    pub min_bytes: u64,
}

const fn class(
    scheme: &'static str,
    name: &'static str,
    prices: [f64; 4],
    min_days: u32,
    min_bytes: u64,
) -> Class {
    let [storage, put, get, retrieval] = prices;
    Class { scheme, name, prices: Prices { storage, put, get, retrieval }, min_days, min_bytes }
}

/// The known classes; the first class of each store is the store's default.
#[rustfmt::skip]
pub const CLASSES: [Class; 12] = [
    class("s3", "STANDARD",            [0.023,  0.005, 0.0004, 0.0],  0,   0),
    class("s3", "INTELLIGENT_TIERING", [0.023,  0.005, 0.0004, 0.0],  0,   0),
    class("s3", "STANDARD_IA",         [0.0125, 0.01,  0.001,  0.01], 30,  128 << 10),
    class("s3", "ONEZONE_IA",          [0.01,   0.01,  0.001,  0.01], 30,  128 << 10),
    class("s3", "GLACIER_IR",          [0.004,  0.02,  0.01,   0.03], 90,  128 << 10),
    class("gs", "STANDARD",            [0.020,  0.005, 0.0004, 0.0],  0,   0),
    class("gs", "NEARLINE",            [0.010,  0.01,  0.001,  0.01], 30,  0),
    class("gs", "COLDLINE",            [0.004,  0.02,  0.01,   0.02], 90,  0),
    class("gs", "ARCHIVE",             [0.0012, 0.05,  0.05,   0.05], 365, 0),
    class("az", "Hot",                 [0.018,  0.005, 0.0004, 0.0],  0,   0),
    class("az", "Cool",                [0.01,   0.01,  0.001,  0.01], 30,  0),
    class("az", "Cold",                [0.0036, 0.018, 0.01,   0.03], 90,  0),
];

/// Classes whose objects cannot be read until they are restored, so that no archive can use them.
const OFFLINE: [(&str, &str); 3] = [("s3", "GLACIER"), ("s3", "DEEP_ARCHIVE"), ("az", "Archive")];

/// Returns the scheme of a location, with one spelling for each store.
fn scheme(location: &str) -> &str {
    match location.split_once("://").map_or("", |(scheme, _)| scheme) {
        "azure" | "abfs" | "abfss" => "az",
        other => other,
    }
}

/// Returns the class of a store's new objects: the one of this name, or the store's default. `None` if the
/// store has no classes or the class is not known.
pub fn class_of(location: &str, name: Option<&str>) -> Option<&'static Class> {
    let mut classes = CLASSES.iter().filter(|class| class.scheme == scheme(location));
    match name {
        None => classes.next(),
        Some(name) => classes.find(|class| class.name.eq_ignore_ascii_case(name)),
    }
}

/// Checks that an archive can use a storage class.
///
/// # Errors
/// The class is known to keep objects where `get` cannot read them.
pub fn check_class(location: &str, name: &str) -> Result<(), String> {
    let is_same = |(of, other): &&(&str, &str)| *of == scheme(location) && other.eq_ignore_ascii_case(name);
    match OFFLINE.iter().find(is_same) {
        None => Ok(()),
        Some((of, _)) => {
            let known: Vec<&str> =
                CLASSES.iter().filter(|class| class.scheme == *of).map(|class| class.name).collect();
            Err(format!(
                "expected a storage class whose objects can be read at once ({}), found {name}",
                known.join(", ")
            ))
        }
    }
}

/// Objects that are younger than the minimum storage duration of their class. Removing them saves nothing
/// until then.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Early {
    /// The class.
    pub storage_class: String,
    /// The minimum storage duration of the class, in days.
    pub min_days: u32,
    /// Number of the objects.
    pub objects: u64,
    /// Stored size of the objects in bytes.
    pub bytes: u64,
    /// Storage that is billed after removal, in bytes times days: the sum of each object's bytes times its
    /// remaining days.
    pub byte_days: f64,
}

impl Early {
    /// Returns the price of the remaining days.
    pub fn price(&self, prices: &Prices) -> f64 {
        prices.storage_of(self.byte_days / MONTH_DAYS)
    }
}

/// When the objects of an archive were stored, if their class has a minimum storage duration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ages {
    class: Option<&'static Class>,
    stored: BTreeMap<String, (Timestamp, u64)>,
}

impl Ages {
    /// Lists the archive's WAL, unless the class has no minimum.
    pub fn list(archive: &Archive) -> Result<Ages, StoreError> {
        let store = archive.store();
        let class = class_of(store.location(), store.storage_class()).filter(|class| class.min_days > 0);
        let mut ages = Ages { class, stored: BTreeMap::new() };
        if class.is_some() {
            store.list(WAL, &mut |listed| {
                if let Some(stored) = listed.stored {
                    ages.stored.insert(listed.key, (stored, listed.bytes));
                }
            })?;
        }
        Ok(ages)
    }

    /// Returns the objects among `keys` that are younger than the minimum storage duration; `None` if no
    /// object is.
    pub fn early<'a>(&self, keys: impl Iterator<Item = &'a str>) -> Option<Early> {
        let Class { name, min_days, .. } = self.class?;
        let mut early = Early { storage_class: (*name).to_owned(), min_days: *min_days, ..Early::default() };
        let now = Timestamp::now();
        for (stored, bytes) in keys.filter_map(|key| self.stored.get(key)) {
            // A clock that is behind the store's makes an object new, not older than it is.
            let age = now.duration_since(*stored).as_secs_f64().max(0.0) / DAY_SECONDS;
            let remaining = f64::from(*min_days) - age;
            if remaining > 0.0 {
                early.objects += 1;
                early.bytes += bytes;
                early.byte_days += *bytes as f64 * remaining;
            }
        }
        Some(early).filter(|early| early.objects > 0)
    }

    fn all_early(&self) -> Option<Early> {
        self.early(self.stored.keys().map(String::as_str))
    }
}

/// The cost of an archive. Money is in the currency of the prices, `None` without prices.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Cost {
    /// Storage class of new segments and packs, if the store has classes.
    pub storage_class: Option<String>,
    /// The prices.
    pub prices: Option<Prices>,
    /// Where the prices come from.
    pub prices_from: Option<String>,
    /// Number of objects.
    pub objects: u64,
    /// Stored size of the objects in bytes.
    pub stored_bytes: u64,
    /// Number of bytes that are billed, which is more than the stored bytes in classes that bill small
    /// objects as larger objects.
    pub billed_bytes: u64,
    /// Price of storing the objects for a month.
    pub storage_month: Option<f64>,
    /// The rate of archiving; `None` if the commit times are unknown or too close.
    pub rate: Option<Rate>,
    /// Restoring all WAL.
    pub restore: Restore,
    /// Objects that are younger than the minimum storage duration of their class.
    pub early: Option<Early>,
    /// The price that removing the objects of `early` now would waste.
    pub early_price: Option<f64>,
    /// The base backups, which are not in the other figures; `None` without any.
    pub base_backups: Option<BaseBackupCost>,
}

/// The cost of the base backups in the archive. They are in the store's default class.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct BaseBackupCost {
    /// Storage class, if the store has classes.
    pub storage_class: Option<String>,
    /// Number of objects.
    pub objects: u64,
    /// Stored size of the objects in bytes.
    pub stored_bytes: u64,
    /// Price of storing the objects for a month.
    pub storage_month: Option<f64>,
    /// Restoring the newest base backup, without WAL; `None` if none is complete.
    pub restore: Option<Restore>,
}

/// The archived objects of a month of 30 days, at the rate since the first commit in the archive.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Rate {
    /// Number of segments.
    pub segments: f64,
    /// Stored size of the segments in bytes.
    pub stored_bytes: f64,
    /// Number of requests that write or list.
    pub put_requests: f64,
    /// Number of requests that read.
    pub get_requests: f64,
    /// Price of the requests.
    pub price: Option<f64>,
}

/// Requests and bytes for restoring.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Restore {
    /// Number of requests that list.
    pub list_requests: u64,
    /// Number of requests that read: one for each segment or piece.
    pub get_requests: u64,
    /// Number of bytes that are read.
    pub bytes: u64,
    /// Price of requests and retrieval, without traffic.
    pub price: Option<f64>,
}

impl Rate {
    /// Returns the rate of archiving `segments` segments with `bytes` stored bytes in `seconds` seconds.
    pub fn new(segments: u64, bytes: u64, seconds: f64, prices: Option<&Prices>) -> Option<Rate> {
        if seconds.is_nan() || seconds < MIN_OBSERVED || segments == 0 {
            return None;
        }
        let months = seconds / (MONTH_DAYS * DAY_SECONDS);
        let (segments, stored_bytes) = (segments as f64 / months, bytes as f64 / months);
        let (put_requests, get_requests) =
            (segments * PUSH_REQUESTS.0 as f64, segments * PUSH_REQUESTS.1 as f64);
        let price = prices.map(|prices| (put_requests * prices.put + get_requests * prices.get) / 1000.0);
        Some(Rate { segments, stored_bytes, put_requests, get_requests, price })
    }
}

/// Computes the cost of an archive. `own` prices replace the list prices.
///
/// # Errors
/// Errors of the store.
pub fn cost(archive: &Archive, listing: &Listing, own: Option<OwnPrices>) -> Result<Cost, ArchiveError> {
    let store = archive.store();
    let class = class_of(store.location(), store.storage_class());
    let list = class.map(|class| class.prices);
    let prices = own.map(|own| own.or(list)).or(list);
    let min_bytes = class.map_or(0, |class| class.min_bytes);
    let mut cost = Cost {
        storage_class: class.map(|class| class.name.to_owned()).or(store.storage_class().map(str::to_owned)),
        prices,
        prices_from: prices.map(|_| if own.is_some() { OWN } else { AS_OF }.to_owned()),
        ..Cost::default()
    };
    for prefix in [WAL, HISTORY, BACKUP] {
        store.list(prefix, &mut |listed| {
            cost.objects += 1;
            cost.stored_bytes += listed.bytes;
            // Only WAL has the class.
            cost.billed_bytes += if prefix == WAL { listed.bytes.max(min_bytes) } else { listed.bytes };
        })?;
    }
    let timelines = &listing.timelines;
    let segments: u64 = timelines.iter().map(|timeline| timeline.segments).sum();
    let bytes: u64 = timelines.iter().map(|timeline| timeline.stored_bytes).sum();
    let first = timelines.iter().filter_map(|timeline| timeline.first_commit_time).min();
    let last = timelines.iter().filter_map(|timeline| timeline.last_commit_time).max();
    let seconds = first.zip(last).map(|(first, last)| last.saturating_sub(first) as f64 / 1e6);
    cost.rate = seconds.and_then(|seconds| Rate::new(segments, bytes, seconds, prices.as_ref()));
    cost.storage_month = prices.map(|prices| prices.storage_of(cost.billed_bytes as f64));
    let (list_requests, get_requests) = (cost.objects.div_ceil(LISTED_AT_ONCE), segments);
    let price = prices.map(|prices| {
        let requests = list_requests as f64 * prices.put + get_requests as f64 * prices.get;
        requests / 1000.0 + bytes as f64 / GB * prices.retrieval
    });
    cost.restore = Restore { list_requests, get_requests, bytes, price };
    cost.early = Ages::list(archive)?.all_early();
    cost.early_price = cost.early.as_ref().zip(prices).map(|(early, prices)| early.price(&prices));
    cost.base_backups = base_backup_cost(archive, listing, own)?;
    Ok(cost)
}

fn base_backup_cost(
    archive: &Archive,
    listing: &Listing,
    own: Option<OwnPrices>,
) -> Result<Option<BaseBackupCost>, ArchiveError> {
    let store = archive.store();
    let class = class_of(store.location(), None);
    let list = class.map(|class| class.prices);
    let prices = own.map(|own| own.or(list)).or(list);
    let storage_class = class.map(|class| class.name.to_owned());
    let mut cost = BaseBackupCost { storage_class, ..BaseBackupCost::default() };
    store.list(BASE, &mut |listed| {
        cost.objects += 1;
        cost.stored_bytes += listed.bytes;
    })?;
    cost.storage_month = prices.map(|prices| prices.storage_of(cost.stored_bytes as f64));
    cost.restore = listing.stored_backups.last().map(|newest| {
        // The listing finds the backup, whose description, manifest and list of pieces are read.
        let list_requests = cost.objects.div_ceil(LISTED_AT_ONCE);
        let (get_requests, bytes) = (newest.pieces + 3, newest.stored_bytes);
        let price = prices.map(|prices| {
            let requests = list_requests as f64 * prices.put + get_requests as f64 * prices.get;
            requests / 1000.0 + bytes as f64 / GB * prices.retrieval
        });
        Restore { list_requests, get_requests, bytes, price }
    });
    Ok(Some(cost).filter(|cost| cost.objects > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_found_by_store_and_name() {
        let name = |location, name| class_of(location, name).map(|class| (class.name, class.min_days));
        assert_eq!(name("s3://bucket/main", None), Some(("STANDARD", 0)));
        assert_eq!(name("s3://bucket/main", Some("glacier_ir")), Some(("GLACIER_IR", 90)));
        assert_eq!(name("abfss://c@a.dfs.core.windows.net/main", Some("COLD")), Some(("Cold", 90)));
        assert_eq!(name("gs://bucket/main", Some("ARCHIVE")), Some(("ARCHIVE", 365)));
        assert_eq!(name("s3://bucket/main", Some("OWN")), None);
        assert_eq!((name("/backup/main", None), name("sftp://h/main", None)), (None, None));
    }

    #[test]
    fn classes_that_cannot_be_read_are_refused() {
        assert!(check_class("s3://bucket", "DEEP_ARCHIVE").unwrap_err().contains("GLACIER_IR"));
        assert!(check_class("az://container", "archive").unwrap_err().contains("Cold"));
        // Google's class of this name can be read at once; unknown classes may belong to another store.
        assert_eq!(check_class("gs://bucket", "ARCHIVE"), Ok(()));
        assert_eq!(check_class("s3://bucket", "OWN"), Ok(()));
    }

    #[test]
    fn only_young_objects_are_billed_for_the_rest() {
        let class = class_of("s3://bucket", Some("STANDARD_IA"));
        let days = |days: i64| Timestamp::from_second(Timestamp::now().as_second() - days * 86_400).unwrap();
        let stored = [("old", days(31), 100), ("young", days(10), 1000), ("future", days(-5), 10)];
        let stored =
            stored.into_iter().map(|(key, stored, bytes)| (key.to_owned(), (stored, bytes))).collect();
        let ages = Ages { class, stored };
        let early = ages.early(["old", "young", "unknown"].into_iter()).unwrap();
        assert_eq!((early.objects, early.bytes, early.min_days), (1, 1000, 30));
        assert!((early.byte_days - 20_000.0).abs() < 10.0, "{early:?}");
        assert!((ages.early(["future"].into_iter()).unwrap().byte_days - 300.0).abs() < 1.0);
        assert_eq!(ages.early(["old"].into_iter()), None);
        assert_eq!(Ages::default().early(["young"].into_iter()), None);
    }

    #[test]
    fn own_prices_replace_list_prices() {
        let own = OwnPrices::parse("storage=0.5, get=0").unwrap();
        let prices = own.or(Some(CLASSES[0].prices));
        assert_eq!((prices.storage, prices.put, prices.get), (0.5, 0.005, 0.0));
        for wrong in ["", "storage", "storage=x", "storage=-1", "storage=inf", "storage=NaN", "rent=1"] {
            assert!(OwnPrices::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_of_a_month() {
        let prices = CLASSES[0].prices;
        let rate = Rate::new(10, 5000, DAY_SECONDS * 3.0, Some(&prices)).unwrap();
        assert_eq!((rate.segments.round(), rate.stored_bytes.round()), (100.0, 50_000.0));
        assert!((rate.price.unwrap() - (200.0 * 0.005 + 100.0 * 0.0004) / 1000.0).abs() < 1e-9);
        assert_eq!(Rate::new(10, 5000, 1.0, None), None);
    }
}
