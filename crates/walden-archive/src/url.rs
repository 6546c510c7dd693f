//! An archive's location as users write it.

use std::time::Duration;

use crate::archive::Archive;
use crate::encryption::KeyOptions;
use crate::store::versions::LockRule;
use crate::store::{Folder, Store, StoreError};

/// Prefixes of the keys that are never locked: parts of the newest segment, results of `verify`, records of
/// `prune` and test segments are removed soon.
#[cfg(feature = "s3")]
const UNLOCKED: &[&str] = &[
    crate::inventory::parts::LIVE,
    crate::objects::name::VERIFIED,
    crate::objects::name::PRUNED,
    crate::ingest::probe::PROBES,
];

/// How to use a location.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct PlaceOptions {
    /// Options of object stores, such as `endpoint` and `region`, by name.
    pub store: Vec<(String, String)>,
    /// Whether the object store lacks conditional requests.
    pub without_conditional_requests: bool,
    /// Time limit for an object store's answer, including retries, and for each page of a listing; by
    /// default, requests are retried for a minute.
    pub answer_within: Option<Duration>,
    /// Locks stored objects in a bucket of S3 with Object Lock.
    pub lock: Option<LockRule>,
    /// Keys of an encrypted archive.
    pub keys: KeyOptions,
}

walden_format::setters!(PlaceOptions {
    store: Vec<(String, String)>,
    without_conditional_requests: bool,
    answer_within: Option<Duration>,
    lock: Option<LockRule>,
    keys: KeyOptions,
});

/// Opens the archive at a location: a path, `file:///path`, or the URL of an object store
/// (`s3://bucket/prefix`, `az://container/prefix`, `gs://bucket/prefix`).
///
/// Nothing is read yet.
///
/// # Errors
/// A URL or an option that cannot be used.
#[cfg_attr(not(feature = "s3"), allow(unused_variables))]
pub fn open(place: &str, options: &PlaceOptions) -> Result<Archive, StoreError> {
    let is_s3 = place.starts_with("s3://");
    if options.lock.is_some() && !(is_s3 && cfg!(feature = "s3")) {
        let problem =
            "cannot use lock_days: expected an archive in s3://, as other stores have no Object Lock of S3";
        return Err(StoreError {
            source: Some(problem.into()),
            ..StoreError::new("open", "the archive", place, crate::store::Cause::Other)
        });
    }
    let store: Box<dyn Store> = match place.split_once("://") {
        None => Box::new(Folder::new(place)),
        Some(("file", path)) => Box::new(Folder::new(path)),
        #[cfg(feature = "s3")]
        Some((scheme, _)) if crate::store::clouds::is_object_store(scheme) => {
            let remote =
                crate::store::Remote::open(place, &options.store, options.lock, options.answer_within)?;
            let remote = remote.without_locks_below(UNLOCKED);
            let plain = options.without_conditional_requests;
            Box::new(if plain { remote.without_conditional_requests() } else { remote })
        }
        Some((scheme, _)) => {
            let stores = if cfg!(feature = "s3") {
                "a path, file://, s3://, az:// or gs://"
            } else {
                "a path or file:// (built without object stores)"
            };
            let problem = format!("expected {stores}, found {scheme}://");
            return Err(StoreError {
                operation: "open",
                key: String::new(),
                location: place.to_owned(),
                cause: crate::store::Cause::Other,
                source: Some(problem.into()),
            });
        }
    };
    Ok(Archive::with_keys(store, options.keys.clone()))
}
