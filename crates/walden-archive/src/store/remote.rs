//! Stores objects in an object store: S3-compatible, Azure Blob Storage, Google Cloud Storage, or OpenStack
//! Swift.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::TryStreamExt as _;
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error as ClientError, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _,
    PutMode, PutOptions, PutPayload, RetryConfig, TagSet,
};
use tokio::runtime::{Builder, Runtime};

use super::client::PacedConnector;
use super::client_error::failure;
use super::clouds::Clients;
use super::object_lock::Bucket;
use super::pace::{Pace, Turns};
use super::versions::{Kept, Lock, LockRule, Protection, Version, Versioned};
use super::{Cause, Created, Listed, MAX_OBJECT_BYTES, Store, StoreError, is_valid, swift};

/// Default limit for a request without content, and for its retries.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Default limit for a request with content, including retries. The transfer time at [`MIN_RATE`] is added.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum pause between two attempts if the store must answer within a time limit.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Assumed minimum transfer rate, in bytes per second. The time limit of a transfer grows with its size.
const MIN_RATE: u64 = 128 << 10;

/// A bucket or container, or a prefix in one.
///
/// Objects are created by a conditional request (`If-None-Match: *`, or its equivalent), which S3, most
/// compatible servers, Azure and Google Cloud Storage reject if the key exists.
/// [`Remote::without_conditional_requests`] supports other servers.
#[derive(Debug)]
pub struct Remote {
    /// Client for requests without content. Each must be answered within [`REQUEST_TIMEOUT`].
    client: Arc<dyn ObjectStore>,
    /// Client for content. The client's own timeout does not depend on the size, so it is disabled here.
    transfers: Arc<dyn ObjectStore>,
    /// Client for content that also sends a checksum header, which buckets with Object Lock require.
    checked_transfers: Arc<dyn ObjectStore>,
    /// Set once the store rejects content without a checksum header.
    needs_checksum: AtomicBool,
    /// Client for content that is locked.
    locked_transfers: Option<Arc<dyn ObjectStore>>,
    /// Prefixes of the keys of objects that are not locked.
    unlocked: &'static [&'static str],
    /// Storage class of the objects whose keys start with [`Remote::classified`], unless it is the bucket's
    /// default.
    storage_class: Option<String>,
    classified: &'static str,
    bucket: Option<Bucket>,
    protection: OnceLock<Protection>,
    prefix: Path,
    location: String,
    is_conditional: bool,
    answer_within: Option<Duration>,
    pace: Arc<Pace>,
    tags: TagSet,
    metadata: Attributes,
    runtime: Runtime,
}

impl Remote {
    /// Opens the archive at a URL: `s3://bucket/prefix`, `az://container/prefix` (Azure Blob Storage, also
    /// `abfss://container@account.dfs.core.windows.net/prefix`), `gs://bucket/prefix` (Google Cloud Storage),
    /// or `swift://container/prefix` (OpenStack Swift).
    ///
    /// Credentials and other settings come from the environment variables of each cloud's own tools
    /// (`AWS_ACCESS_KEY_ID`, `AZURE_STORAGE_ACCOUNT_KEY`, `GOOGLE_APPLICATION_CREDENTIALS`, ...), or from its
    /// metadata service. `options` can set each of them by its lowercase name, with or without the prefix
    /// (`aws_`, `azure_`, `google_`, `os_`).
    ///
    /// With `rule`, objects are locked (Object Lock of S3).
    ///
    /// With `answer_within`, a request fails if the store does not answer within this time, including
    /// retries. Otherwise requests are retried for one minute. Transfers get additional time, at 128 kB per
    /// second of content, and the time that `bandwidth`, a limit in bytes per second, makes them wait.
    ///
    /// # Errors
    /// A URL or an option that cannot be used.
    pub fn open(
        url: &str,
        options: &[(String, String)],
        rule: Option<LockRule>,
        answer_within: Option<Duration>,
        bandwidth: Option<u64>,
    ) -> Result<Remote, StoreError> {
        catch_panics("open", "the archive", url, || {
            let retries = retries(answer_within);
            let pace = Pace::new(bandwidth);
            let connector = PacedConnector(Arc::clone(&pace));
            let clients = match url.starts_with("swift://") {
                true => swift::clients(url, options, REQUEST_TIMEOUT, retries.retry_timeout, &connector),
                false => Clients::new(url, options, rule, REQUEST_TIMEOUT, retries, &connector),
            };
            let Clients { limited, unlimited, checked, locked, bucket } = clients?;
            let path = url.split_once("://").map_or("", |(_, path)| path);
            let prefix = path.split_once('/').map_or("", |(_, prefix)| prefix);
            let remote = Remote::new(limited, prefix, url)?;
            Ok(Remote {
                transfers: unlimited,
                checked_transfers: checked,
                locked_transfers: locked,
                bucket,
                answer_within,
                pace,
                ..remote
            })
        })?
    }

    /// Creates an archive in any store of the client library, under a prefix. `location` appears in messages.
    ///
    /// # Errors
    /// The runtime cannot be created.
    pub fn new(client: Arc<dyn ObjectStore>, prefix: &str, location: &str) -> Result<Remote, StoreError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| StoreError {
            operation: "open",
            key: String::new(),
            location: location.to_owned(),
            cause: Cause::Other,
            source: Some(error.into()),
        })?;
        Ok(Remote {
            transfers: client.clone(),
            checked_transfers: client.clone(),
            needs_checksum: AtomicBool::new(false),
            locked_transfers: None,
            unlocked: &[],
            storage_class: None,
            classified: "",
            bucket: None,
            protection: OnceLock::new(),
            client,
            prefix: Path::from(prefix),
            location: location.to_owned(),
            is_conditional: true,
            answer_within: None,
            pace: Arc::default(),
            tags: TagSet::default(),
            metadata: Attributes::new(),
            runtime,
        })
    }

    /// Supports servers without conditional requests: `create` first checks whether the object exists. Two
    /// concurrent writers can both find it missing.
    #[must_use]
    pub fn without_conditional_requests(self) -> Remote {
        Remote { is_conditional: false, ..self }
    }

    /// Does not lock the objects whose keys start with these prefixes.
    #[must_use]
    pub fn without_locks_below(self, prefixes: &'static [&'static str]) -> Remote {
        Remote { unlocked: prefixes, ..self }
    }

    /// Stores the objects whose keys start with a prefix in a storage class: `STANDARD_IA` and others of S3,
    /// `NEARLINE` and others of Google, `Cool` and others of Azure.
    #[must_use]
    pub fn in_storage_class(self, storage_class: Option<String>, prefix: &'static str) -> Remote {
        Remote { storage_class, classified: prefix, ..self }
    }

    /// Stores each object with these tags (S3, Azure), or with custom metadata of these names in Google Cloud
    /// Storage and Swift, which have no tags of objects.
    #[must_use]
    pub fn with_tags(mut self, tags: &BTreeMap<String, String>) -> Remote {
        let has_metadata = ["gs://", "swift://"].iter().any(|scheme| self.location.starts_with(scheme));
        for (name, value) in tags {
            if has_metadata {
                let name = Attribute::Metadata(name.clone().into());
                self.metadata.insert(name, value.clone().into());
            } else {
                self.tags.push(name, value);
            }
        }
        self
    }

    fn path(&self, operation: &'static str, key: &str) -> Result<Path, StoreError> {
        if !is_valid(key) {
            let (key, location) = (key.to_owned(), self.location.clone());
            return Err(StoreError { operation, key, location, cause: Cause::InvalidKey, source: None });
        }
        Ok(Path::from_iter(self.prefix.parts().chain(Path::from(key).parts())))
    }

    fn wait<T>(
        &self,
        operation: &'static str,
        key: &str,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, StoreError> {
        let result = self.block_on(operation, key, self.answer(request))?;
        self.answered(operation, key, result)
    }

    /// Awaits a request, and returns the time limit as the error if the request exceeds it.
    async fn answer<T>(&self, request: impl Future<Output = T>) -> Result<T, Duration> {
        match self.answer_within {
            None => Ok(request.await),
            // `timeout` must be called within the runtime because it needs the runtime's clock.
            Some(limit) => tokio::time::timeout(limit, request).await.map_err(|_| limit),
        }
    }

    /// Like [`Remote::wait`], for a request that transfers `bytes` bytes of content in turns.
    fn transfer<T>(
        &self,
        operation: &'static str,
        key: &str,
        bytes: u64,
        turns: &Turns,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, StoreError> {
        let limit = self.transfer_limit(bytes);
        let result = self.block_on(operation, key, async { turns.within(limit, request).await })?;
        self.answered(operation, key, result)
    }

    fn block_on<T>(
        &self,
        operation: &'static str,
        key: &str,
        future: impl Future<Output = T>,
    ) -> Result<T, StoreError> {
        catch_panics(operation, key, &self.location, || self.runtime.block_on(future))
    }

    fn transfer_limit(&self, bytes: u64) -> Duration {
        self.answer_within.unwrap_or(TRANSFER_TIMEOUT) + Duration::from_secs(bytes / MIN_RATE)
    }

    fn answered<T>(
        &self,
        operation: &'static str,
        key: &str,
        result: Result<Result<T, ClientError>, Duration>,
    ) -> Result<T, StoreError> {
        let limit = match result {
            Ok(result) => return result.map_err(|error| failure(operation, key, &self.location, error)),
            Err(limit) => limit,
        };
        Err(StoreError {
            operation,
            key: key.to_owned(),
            location: self.location.clone(),
            cause: Cause::Unavailable,
            source: Some(format!("expected an answer within {} s, found none", limit.as_secs()).into()),
        })
    }

    fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, StoreError> {
        let path = self.path("read", key)?;
        let turns = Turns::new(&self.pace);
        let mut options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        options.extensions.insert(Arc::clone(&turns));
        // The headers of the answer contain the size, which sets the time limit for the content.
        let answer = self.transfer("read", key, 0, &turns, self.transfers.get_opts(&path, options))?;
        let bytes = answer.range.end.saturating_sub(answer.range.start);
        if bytes > MAX_OBJECT_BYTES {
            let (key, location) = (key.to_owned(), self.location.clone());
            return Err(StoreError {
                operation: "read",
                key,
                location,
                cause: Cause::TooLarge,
                source: None,
            });
        }
        self.transfer("read", key, bytes, &turns, answer.bytes()).map(Vec::from)
    }

    /// Stores an object, locked if the archive's objects are.
    fn put(&self, key: &str, path: &Path, content: &[u8], mode: &PutMode) -> Result<Created, StoreError> {
        let payload = PutPayload::from(content.to_vec());
        let bytes = content.len() as u64;
        let create = |is_checked: bool| {
            let client = match &self.locked_transfers {
                Some(locked) if !self.unlocked.iter().any(|prefix| key.starts_with(prefix)) => locked,
                _ if is_checked => &self.checked_transfers,
                _ => &self.transfers,
            };
            let payload = payload.clone();
            let mut options = PutOptions::from(mode.clone());
            options.tags = self.tags.clone();
            options.attributes = self.metadata.clone();
            let turns = Turns::new(&self.pace);
            options.extensions.insert(Arc::clone(&turns));
            if let Some(class) = self.storage_class.as_ref().filter(|_| key.starts_with(self.classified)) {
                options.attributes.insert(Attribute::StorageClass, class.clone().into());
            }
            self.transfer("create", key, bytes, &turns, async {
                match client.put_opts(path, payload, options).await {
                    Ok(_) => Ok(Created::New),
                    Err(ClientError::AlreadyExists { .. } | ClientError::Precondition { .. }) => {
                        Ok(Created::Exists)
                    }
                    Err(error) => Err(error),
                }
            })
        };
        match create(self.needs_checksum.load(Ordering::Relaxed)) {
            Err(error) if lacks_checksum(&error) && !self.needs_checksum.swap(true, Ordering::Relaxed) => {
                create(true)
            }
            other => other,
        }
    }

    /// Sends a request for versions or locks, whose client has no time limit of its own.
    fn request<T>(
        &self,
        operation: &'static str,
        key: &str,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, StoreError> {
        self.transfer(operation, key, 0, &Turns::new(&self.pace), request)
    }

    fn bucket(&self, operation: &'static str, key: &str) -> Result<&Bucket, StoreError> {
        self.bucket.as_ref().ok_or_else(|| StoreError {
            source: Some("the store has no versions that Walden can use".into()),
            ..StoreError::new(operation, key, &self.location, Cause::Other)
        })
    }

    /// Returns whether the bucket locks objects, as far as these credentials can find out.
    fn has_object_lock(&self) -> Result<bool, StoreError> {
        if self.bucket.is_none() || self.locked_transfers.is_some() {
            return Ok(self.bucket.is_some());
        }
        match self.protection() {
            Ok(protection) => Ok(protection.has_object_lock),
            Err(error) if error.cause == Cause::Unavailable => Err(error),
            Err(_) => Ok(false),
        }
    }
}

impl Versioned for Remote {
    fn rule(&self) -> Option<LockRule> {
        self.bucket.as_ref()?.rule
    }

    fn protection(&self) -> Result<Protection, StoreError> {
        if let Some(known) = self.protection.get() {
            return Ok(*known);
        }
        let found = self.request("read the protection of", "", self.bucket("read", "")?.protection())?;
        Ok(*self.protection.get_or_init(|| found))
    }

    fn versions(&self, prefix: &str, visit: &mut dyn FnMut(String, Vec<Version>)) -> Result<(), StoreError> {
        let bucket = self.bucket("list", prefix)?;
        let own = self.prefix.as_ref();
        let full = match own.is_empty() {
            true => prefix.to_owned(),
            false => format!("{own}/{prefix}"),
        };
        let mut after = None;
        let mut group: Option<(String, Vec<Version>)> = None;
        loop {
            let page = self.request("list the versions of", prefix, bucket.page(&full, after.as_ref()))?;
            for (key, version) in page.versions {
                let key = key.strip_prefix(own).unwrap_or(&key).trim_start_matches('/').to_owned();
                match &mut group {
                    Some((known, versions)) if *known == key => versions.push(version),
                    _ => {
                        if let Some((key, versions)) = group.replace((key, vec![version])) {
                            visit(key, versions);
                        }
                    }
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        if let Some((key, versions)) = group {
            visit(key, versions);
        }
        Ok(())
    }

    fn read_version(&self, key: &str, version: &Version) -> Result<Vec<u8>, StoreError> {
        let path = self.path("read", key)?;
        let bucket = self.bucket("read", key)?;
        if version.bytes > MAX_OBJECT_BYTES {
            return Err(StoreError::new("read", key, &self.location, Cause::TooLarge));
        }
        let turns = Turns::new(&self.pace);
        self.transfer("read", key, version.bytes, &turns, bucket.read(&path, &version.id, &turns))
    }

    fn add_version(&self, key: &str, content: &[u8]) -> Result<(), StoreError> {
        let path = self.path("create", key)?;
        self.put(key, &path, content, &PutMode::Overwrite).map(drop)
    }

    fn remove_version(&self, key: &str, id: &str) -> Result<Option<Kept>, StoreError> {
        let path = self.path("remove", key)?;
        let bucket = self.bucket("remove", key)?;
        match self.request("remove", key, bucket.remove(&path, id)) {
            Err(error) if error.cause == Cause::Denied => {
                // The right to see the lock may be missing, too.
                let lock = self.request("read the lock of", key, bucket.lock(&path, Some(id))).ok().flatten();
                let until = lock.map(|lock| lock.until).filter(|until| *until > Timestamp::now());
                Ok(Some(Kept { until, problem: walden_source::error_text(&error) }))
            }
            Err(error) if error.cause == Cause::NotFound => Ok(None),
            other => other.map(|()| None),
        }
    }

    fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        let path = self.path("read", key)?;
        self.request("read the lock of", key, self.bucket("read", key)?.lock(&path, None))
    }

    fn set_lock(&self, key: &str, lock: Lock) -> Result<(), StoreError> {
        let path = self.path("lock", key)?;
        self.request("lock", key, self.bucket("lock", key)?.set_lock(&path, lock))
    }
}

impl Store for Remote {
    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
        let path = self.path("create", key)?;
        if !self.is_conditional {
            match self.size(key) {
                Ok(_) => return Ok(Created::Exists),
                Err(error) if error.cause == Cause::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let mode = if self.is_conditional { PutMode::Create } else { PutMode::Overwrite };
        self.put(key, &path, content, &mode)
    }

    /// An object store acknowledges only durable objects.
    fn make_durable(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.get(key, None)
    }

    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        self.get(key, Some(range))
    }

    fn size(&self, key: &str) -> Result<u64, StoreError> {
        let path = self.path("read", key)?;
        self.wait("read", key, async { self.client.head(&path).await.map(|meta| meta.size) })
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        let under = match prefix.strip_suffix('/') {
            None => self.prefix.clone(),
            Some(prefix) => self.path("list", prefix)?,
        };
        let own = self.prefix.as_ref();
        let result = self.block_on("list", prefix, async {
            let mut listing = self.client.list(Some(&under));
            loop {
                // Each page of the listing is a separate request with the full time limit, because the number
                // of pages is unbounded.
                let meta = match self.answer(listing.try_next()).await {
                    Ok(Ok(Some(meta))) => meta,
                    Ok(Ok(None)) => return Ok(Ok(())),
                    Ok(Err(error)) => return Ok(Err(error)),
                    Err(limit) => return Err(limit),
                };
                let key = meta.location.as_ref();
                let key = key.strip_prefix(own).unwrap_or(key).trim_start_matches('/');
                let stored = Timestamp::from_second(meta.last_modified.timestamp()).ok();
                visit(Listed { key: key.to_owned(), bytes: meta.size, stored });
            }
        })?;
        self.answered("list", prefix, result)
    }

    fn remove(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path("remove", key)?;
        match self.wait("remove", key, self.client.delete(&path)) {
            Err(error) if error.cause == Cause::NotFound => Ok(()),
            other => other,
        }
    }

    fn discard(&self, key: &str) -> Result<Option<Kept>, StoreError> {
        if !self.has_object_lock()? {
            return match self.remove(key) {
                Err(error) if error.cause == Cause::Denied => {
                    Ok(Some(Kept { until: None, problem: walden_source::error_text(&error) }))
                }
                other => other.map(|()| None),
            };
        }
        let mut own = Vec::new();
        self.versions(key, &mut |found, versions| {
            if found == key {
                own = versions;
            }
        })?;
        // The oldest first: the version that is read goes last.
        for version in own.iter().rev() {
            if let Some(kept) = self.remove_version(key, &version.id)? {
                return Ok(Some(kept));
            }
        }
        Ok(None)
    }

    fn storage_class(&self) -> Option<&str> {
        self.storage_class.as_deref()
    }

    fn versioned(&self) -> Option<&dyn Versioned> {
        self.bucket.is_some().then_some(self)
    }

    /// An object store never keeps part of an object.
    fn remove_leftovers(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn location(&self) -> &str {
        &self.location
    }

    fn warning(&self) -> Option<&str> {
        let is_swift = self.location.starts_with("swift://");
        match self.is_conditional {
            false => Some(
                "the store has no conditional requests: two servers that archive the same name at the same time both succeed, and the second overwrites the first",
            ),
            true if is_swift => Some(
                "Swift checks whether an object exists only when an upload starts: two servers that archive the same name at the same time can both succeed, and the second overwrites the first",
            ),
            true => None,
        }
    }
}

/// Runs code of the client library, which panics on some configuration values instead of returning an error.
pub(super) fn catch_panics<T>(
    operation: &'static str,
    key: &str,
    location: &str,
    run: impl FnOnce() -> T,
) -> Result<T, StoreError> {
    let message = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => {
            panic.downcast::<&str>().map_or_else(|_| "no message".to_owned(), |text| (*text).to_owned())
        }
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = format!(
            "the client library failed with \"{}\": check the URL, the settings of the archive and the AWS_*, AZURE_* or GOOGLE_* variables of the environment",
            message(panic)
        );
        let (key, location) = (key.to_owned(), location.to_owned());
        StoreError { operation, key, location, cause: Cause::Other, source: Some(text.into()) }
    })
}

/// Configures retries. With a time limit, retries use only half of it so that the error still reports the
/// cause.
fn retries(answer_within: Option<Duration>) -> RetryConfig {
    let mut retries = RetryConfig {
        retry_timeout: answer_within.map_or(REQUEST_TIMEOUT, |limit| limit / 2),
        // Limits retries by time only: rejected connections would use up any number of attempts within
        // seconds.
        max_retries: usize::MAX,
        ..Default::default()
    };
    if answer_within.is_some() {
        retries.backoff.max_backoff = MAX_PAUSE;
    }
    retries
}

/// Returns whether the store rejected content because the checksum header is missing, as buckets with Object
/// Lock do.
fn lacks_checksum(error: &StoreError) -> bool {
    let text = walden_source::error_text(error).to_ascii_lowercase();
    text.contains("content-md5") && text.contains("required") || text.contains("x-amz-sdk-checksum-algorithm")
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::throttle::{ThrottleConfig, ThrottledStore};

    use super::super::client_error::without_settings;
    use super::*;

    /// Returns a store that delays each object of a listing, like a page, and that must answer within a time
    /// limit.
    fn slow_listing(page: Duration, answer_within: Duration) -> Remote {
        let config = ThrottleConfig { wait_list_per_entry: page, ..ThrottleConfig::default() };
        let client = ThrottledStore::new(InMemory::new(), config);
        let remote = Remote::new(Arc::new(client), "", "memory").unwrap();
        Remote { answer_within: Some(answer_within), ..remote }
    }

    #[test]
    fn each_page_of_a_listing_has_the_time_of_a_request() {
        let keys: Vec<String> = (0..15).map(|number| format!("wal/{number:02}")).collect();
        let list = |remote: &Remote| {
            for key in &keys {
                assert_eq!(remote.create(key, b"content").unwrap(), Created::New);
            }
            let mut found = Vec::new();
            remote.list("wal/", &mut |listed| found.push(listed.key))?;
            Ok::<Vec<String>, StoreError>(found)
        };
        let mut found = list(&slow_listing(Duration::from_millis(100), Duration::from_secs(1))).unwrap();
        found.sort();
        assert_eq!(found, keys);
        let error = list(&slow_listing(Duration::from_secs(60), Duration::from_secs(1))).unwrap_err();
        assert_eq!((error.operation, error.cause), ("list", Cause::Unavailable));
    }

    /// Every combination of setting and value results in a store or an error, and so does a request to that
    /// store.
    #[test]
    fn no_value_of_a_setting_causes_a_panic() {
        const SETTINGS: [&str; 16] = [
            "endpoint",
            "region",
            "bucket",
            "access_key_id",
            "secret_access_key",
            "token",
            "virtual_hosted_style_request",
            "s3_express",
            "conditional_put",
            "checksum_algorithm",
            "aws_server_side_encryption",
            "aws_sse_customer_key_base64",
            "proxy_url",
            "user_agent",
            "timeout",
            "no_such_setting",
        ];
        const VALUES: [&str; 12] = [
            "",
            " ",
            "127.0.0.1:5599",
            "minio.example.net",
            "http://",
            "http:///bucket",
            "ftp://127.0.0.1:1",
            "http://[::1",
            "http://127.0.0.1:99999",
            "a\r\nb: c",
            "\u{0}\u{fffd}",
            "%zz{}\"<>",
        ];
        let store = [("endpoint", "http://127.0.0.1:1"), ("access_key_id", "k"), ("secret_access_key", "s")];
        for (setting, value) in SETTINGS.into_iter().flat_map(|setting| VALUES.map(|value| (setting, value)))
        {
            let changed = store.into_iter().filter(|(name, _)| *name != setting).chain([(setting, value)]);
            let options: Vec<_> = changed.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let urls = ["s3://bucket/prefix", "s3://", "s3://b ucket/\u{e9}?x#y"];
            for (url, limit) in urls.into_iter().flat_map(|url| [(url, None), (url, Some(1 << 20))]) {
                if let Ok(remote) = Remote::open(url, &options, None, Some(Duration::from_millis(5)), limit) {
                    let _ = remote.read("archive.json").unwrap_err();
                    let _ = remote.list("wal/", &mut |_| ()).unwrap_err();
                }
            }
        }
    }

    #[test]
    fn an_endpoint_without_a_scheme_is_refused() {
        for (endpoint, found) in [
            ("127.0.0.1:5599", "relative URL without a base"),
            ("minio.example.net", "relative URL without a base"),
            ("minio:9000", "no such scheme"),
            ("https://", "empty host"),
        ] {
            let options = [("endpoint".to_owned(), endpoint.to_owned())];
            let error = Remote::open("s3://bucket", &options, None, None, None).unwrap_err();
            let text = walden_source::error_text(&error);
            assert!(text.contains(&format!("cannot use endpoint = \"{endpoint}\"")), "{text}");
            assert!(text.contains(found), "{text}");
        }
    }

    #[test]
    fn what_is_not_there_is_said_in_one_line() {
        const BODY: &str = "<?xml version=\"1.0\"?>\n<Error><Code>@</Code><RequestId>7</RequestId></Error>";
        let text = |code: &str| {
            let source = BODY.replace('@', code).into();
            let error = ClientError::NotFound { path: "main/archive.json".to_owned(), source };
            let error = failure("read", "archive.json", "s3://backups/main", error);
            (walden_source::error_text(&error), error.cause)
        };
        let expected = "cannot read archive.json in s3://backups/main: no such bucket";
        assert_eq!(text("NoSuchBucket"), (expected.to_owned(), Cause::NoBucket));
        let expected = "cannot read archive.json in s3://backups/main: no such object";
        assert_eq!(text("NoSuchKey"), (expected.to_owned(), Cause::NotFound));
    }

    #[test]
    fn the_settings_of_the_client_are_left_out() {
        let said = "Error performing GET http://127.0.0.1:1/b/k in 7.5s, after 9 retries, max_retries: 18446744073709551615, \
                    retry_timeout: 7.5s  - HTTP error: error sending request";
        let error = ClientError::Generic { store: "S3", source: said.into() };
        let text = walden_source::error_text(&failure("read", "archive.json", "s3://b", error));
        assert_eq!(
            text,
            "cannot read archive.json in s3://b: the store did not answer as expected: Generic S3 error: Error performing GET \
             http://127.0.0.1:1/b/k in 7.5s, after 9 retries: HTTP error: error sending request"
        );
        assert_eq!(without_settings("HTTP error: error sending request"), None);
    }

    #[test]
    fn an_object_that_lacks_its_bytes_is_damaged_and_not_out_of_reach() {
        let cause = |answer: &str| {
            let source = format!("Server returned non-2xx status code: {answer}: ").into();
            failure("read", "key", "s3://bucket", ClientError::Generic { store: "S3", source }).cause
        };
        assert_eq!(cause("416 Range Not Satisfiable"), Cause::Damaged);
        assert_eq!(cause("503 Service Unavailable"), Cause::Unavailable);
    }
}
