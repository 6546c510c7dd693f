//! An archive's location as users write it.

use std::time::Duration;

use crate::archive::Archive;
use crate::encryption::KeyOptions;
#[cfg(feature = "s3")]
use crate::inspect::cost;
#[cfg(feature = "s3")]
use crate::objects::name::WAL;
use crate::store::versions::LockRule;
use crate::store::{Folder, Store, StoreError};

/// Prefixes of the keys that are never locked: parts of the newest segment, results of `verify` and test
/// segments are removed soon.
#[cfg(feature = "s3")]
const UNLOCKED: &[&str] =
    &[crate::inventory::parts::LIVE, crate::objects::name::VERIFIED, crate::ingest::probe::PROBES];

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
    /// Storage class of segments and packs in an object store.
    pub storage_class: Option<String>,
    /// Keys of an encrypted archive.
    pub keys: KeyOptions,
}

walden_format::setters!(PlaceOptions {
    store: Vec<(String, String)>,
    without_conditional_requests: bool,
    answer_within: Option<Duration>,
    lock: Option<LockRule>,
    storage_class: Option<String>,
    keys: KeyOptions,
});

/// Opens the archive at a location: a path, `file:///path`, the URL of an object store (`s3://bucket/prefix`,
/// `az://container/prefix`, `gs://bucket/prefix`), or `sftp://user@host/path`.
///
/// Nothing is read yet.
///
/// # Errors
/// A URL or an option that cannot be used.
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
            if let Some(problem) =
                options.storage_class.as_ref().and_then(|class| cost::check_class(place, class).err())
            {
                return Err(StoreError {
                    source: Some(problem.into()),
                    ..StoreError::new("open", "the archive", place, crate::store::Cause::Other)
                });
            }
            let remote =
                remote.without_locks_below(UNLOCKED).in_storage_class(options.storage_class.clone(), WAL);
            let plain = options.without_conditional_requests;
            Box::new(if plain { remote.without_conditional_requests() } else { remote })
        }
        #[cfg(feature = "sftp")]
        Some(("sftp", _)) => {
            Box::new(crate::store::Sftp::open(place, &options.store, options.answer_within)?)
        }
        Some((scheme, _)) => {
            let stores = match (cfg!(feature = "s3"), cfg!(feature = "sftp")) {
                (true, true) => "a path, file://, s3://, az://, gs:// or sftp://",
                (true, false) => "a path, file://, s3://, az:// or gs:// (built without sftp://)",
                (false, true) => "a path, file:// or sftp:// (built without object stores)",
                (false, false) => "a path or file:// (built without object stores and sftp://)",
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
