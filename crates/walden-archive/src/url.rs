//! An archive's location as users write it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::archive::Archive;
use crate::encryption::KeyOptions;
#[cfg(feature = "s3")]
use crate::inspect::cost;
#[cfg(feature = "s3")]
use crate::objects::name::WAL;
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
    /// Storage class of segments and packs in an object store.
    pub storage_class: Option<String>,
    /// Tags of objects in an object store, by name.
    pub tags: BTreeMap<String, String>,
    /// Maximum number of bytes of content per second.
    pub bandwidth: Option<u64>,
    /// Keys of an encrypted archive.
    pub keys: KeyOptions,
}

walden_format::setters!(PlaceOptions {
    store: Vec<(String, String)>,
    without_conditional_requests: bool,
    answer_within: Option<Duration>,
    lock: Option<LockRule>,
    storage_class: Option<String>,
    tags: BTreeMap<String, String>,
    bandwidth: Option<u64>,
    keys: KeyOptions,
});

/// Returns a text that is equal for two spellings of the same place. `options` are the options of the place's
/// object store.
///
/// Upper case in host names, repeated slashes, the default port, and the scheme of an endpoint do not matter.
/// Names of hosts are not resolved.
pub fn spelling(place: &str, options: &[(String, String)]) -> String {
    let (scheme, rest) = place.split_once("://").unwrap_or(("file", place));
    let scheme = match scheme {
        "file" => {
            let path = std::path::Path::new(rest);
            let path = path.canonicalize().or_else(|_| std::path::absolute(path));
            // Also removes a slash at the end.
            return path.map_or_else(
                |_| rest.to_owned(),
                |path| path.components().collect::<std::path::PathBuf>().display().to_string(),
            );
        }
        "azure" | "abfs" | "abfss" => "az",
        other => other,
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let option = |names: &[&str]| {
        let is_named = |(name, _): &&(String, String)| names.contains(&name.to_ascii_lowercase().as_str());
        let given = options.iter().rev().find(is_named).map(|(_, value)| value.clone());
        let named = || names.iter().find_map(|name| std::env::var(name.to_ascii_uppercase()).ok());
        given.or_else(named).filter(|value| !value.is_empty())
    };
    let (host, service) = match scheme {
        "s3" => {
            let endpoint = option(&["endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url"]);
            // A bucket's name is unique among all of Amazon's endpoints.
            let endpoint = endpoint.map(|endpoint| endpoint_host(&endpoint));
            let endpoint = endpoint.filter(|host| !host.ends_with(".amazonaws.com"));
            (host.to_ascii_lowercase(), endpoint.unwrap_or_default())
        }
        "gs" => (host.to_ascii_lowercase(), String::new()),
        "swift" => {
            let named = |name: &str| option(&[name, &format!("os_{name}")]).unwrap_or_default();
            let project = [named("project_id"), named("project_name"), named("username")];
            let account = project.into_iter().find(|project| !project.is_empty()).unwrap_or_default();
            (host.to_owned(), format!("{} {account}", endpoint_host(&named("auth_url"))))
        }
        "az" => {
            // abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX
            let (container, of_url) = host.split_once('@').unwrap_or((host, ""));
            let of_url = of_url.split('.').next().filter(|account| !account.is_empty()).map(str::to_owned);
            let account = of_url
                .or_else(|| option(&["account_name", "azure_storage_account_name", "azure_account_name"]));
            (container.to_ascii_lowercase(), account.unwrap_or_default().to_ascii_lowercase())
        }
        _ => {
            let (user, host) = host.rsplit_once('@').unwrap_or(("", host));
            let host = host.strip_suffix(":22").filter(|_| scheme == "sftp").unwrap_or(host);
            (host.to_ascii_lowercase(), user.to_owned())
        }
    };
    format!("{scheme}://{host}/{} {service}", parts.join("/"))
}

/// Returns the host and port of an endpoint's URL.
fn endpoint_host(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    let host = rest.split('/').next().unwrap_or_default().to_ascii_lowercase();
    let port = if scheme.eq_ignore_ascii_case("http") { ":80" } else { ":443" };
    let host = host.strip_suffix(port).map(str::to_owned).unwrap_or(host);
    // A dot at the end makes a name absolute.
    let (name, port) = host.rsplit_once(':').unwrap_or((&host, ""));
    let name = name.trim_end_matches('.');
    let name = if name == "localhost" { "127.0.0.1" } else { name };
    if port.is_empty() { name.to_owned() } else { format!("{name}:{port}") }
}

/// Opens the archive at a location: a path, `file:///path`, the URL of an object store (`s3://bucket/prefix`,
/// `az://container/prefix`, `gs://bucket/prefix`, `swift://container/prefix`), or `sftp://user@host/path`.
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
        None => Box::new(Folder::new(place).with_bandwidth(options.bandwidth)),
        Some(("file", path)) => Box::new(Folder::new(path).with_bandwidth(options.bandwidth)),
        #[cfg(feature = "s3")]
        Some((scheme, _)) if crate::store::clouds::is_object_store(scheme) => {
            let PlaceOptions { store, lock, answer_within, bandwidth, .. } = options;
            let remote = crate::store::Remote::open(place, store, *lock, *answer_within, *bandwidth)?;
            let class_problem = options.storage_class.as_ref().and_then(|class| match scheme {
                "swift" => Some("cannot use storage_class: Swift has no storage classes".to_owned()),
                _ => cost::check_class(place, class).err(),
            });
            if let Some(problem) = class_problem.or_else(|| check_tags(place, &options.tags).err()) {
                return Err(StoreError {
                    source: Some(problem.into()),
                    ..StoreError::new("open", "the archive", place, crate::store::Cause::Other)
                });
            }
            let remote =
                remote.without_locks_below(UNLOCKED).in_storage_class(options.storage_class.clone(), WAL);
            let remote = remote.with_tags(&options.tags);
            let plain = options.without_conditional_requests;
            Box::new(if plain { remote.without_conditional_requests() } else { remote })
        }
        #[cfg(feature = "sftp")]
        Some(("sftp", _)) => {
            let sftp = crate::store::Sftp::open(place, &options.store, options.answer_within)?;
            Box::new(sftp.with_bandwidth(options.bandwidth))
        }
        Some((scheme, _)) => {
            let stores = match (cfg!(feature = "s3"), cfg!(feature = "sftp")) {
                (true, true) => "a path, file://, s3://, az://, gs://, swift:// or sftp://",
                (true, false) => "a path, file://, s3://, az://, gs:// or swift:// (built without sftp://)",
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
    let mut keys = options.keys.clone();
    if is_s3 {
        keys.store.clone_from(&options.store);
    }
    Ok(Archive::with_keys(store, keys))
}

/// Checks tags by the rules that the clouds share. Otherwise a store would refuse each object, long after the
/// tags were configured.
#[cfg(feature = "s3")]
fn check_tags(place: &str, tags: &BTreeMap<String, String>) -> Result<(), String> {
    /// S3 and Azure have at most this many.
    const MAX_TAGS: usize = 10;
    const MAX_NAME: usize = 128;
    const MAX_VALUE: usize = 256;
    if tags.len() > MAX_TAGS {
        return Err(format!("cannot use tags: expected at most {MAX_TAGS}, found {}", tags.len()));
    }
    // Google and Swift have custom metadata instead, whose names are those of HTTP headers.
    let of_names = match place.split_once("://").map_or("", |(scheme, _)| scheme) {
        "gs" => "-_",
        "swift" => "-",
        _ => " +-=._:/",
    };
    let is_valid = |text: &str, others: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.as_bytes().contains(&byte))
    };
    for (name, value) in tags {
        if name.is_empty() || name.len() > MAX_NAME || !is_valid(name, of_names) {
            return Err(format!(
                "cannot use tags: expected names of 1 to {MAX_NAME} letters, digits, and characters of \"{of_names}\", found \"{}\"",
                name.escape_default()
            ));
        }
        if value.len() > MAX_VALUE || !is_valid(value, " +-=._:/") {
            return Err(format!(
                "cannot use the tag {name}: expected a value of at most {MAX_VALUE} letters, digits, and characters of \" +-=._:/\", found \"{}\"",
                value.escape_default()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "s3")]
    #[test]
    fn swift_has_no_storage_classes() {
        let login = ("auth_url".to_owned(), "http://127.0.0.1:1/v3".to_owned());
        let options = PlaceOptions::default().store(vec![login]);
        open("swift://backups/main", &options).unwrap();
        let error = open("swift://backups/main", &options.storage_class(Some("Cool".to_owned()))).err();
        let text = walden_source::error_text(&error.unwrap());
        assert!(text.contains("cannot use storage_class"), "{text}");
    }

    #[test]
    fn two_spellings_of_a_place_are_equal() {
        let spelling = |(place, endpoint): (&str, &str)| {
            let options = [("endpoint".to_owned(), endpoint.to_owned())];
            spelling(place, &options[..usize::from(!endpoint.is_empty())])
        };
        let minio = "http://minio.example.net:9000";
        for (one, other) in [
            (("s3://backups/main", minio), ("s3://backups/main/", minio)),
            (("s3://backups/main", minio), ("s3://backups//main", minio)),
            (("s3://backups/a/b", minio), ("s3://backups/a//b/", minio)),
            (("s3://backups/main", minio), ("s3://backups/main", "http://MinIO.example.net:9000/")),
            (("s3://backups/main", minio), ("s3://backups/main", "https://minio.example.net.:9000")),
            (("s3://b/p", "http://localhost:9000"), ("s3://b/p", "http://127.0.0.1:9000")),
            (("s3://b/p", "https://s3.example.net"), ("s3://b/p", "https://s3.example.net:443/")),
            (("s3://b/p", "https://s3.eu-west-1.amazonaws.com"), ("s3://b/p", "https://s3.amazonaws.com")),
            (("az://c/p", ""), ("azure://C//p/", "")),
            (("abfss://c@one.dfs.core.windows.net/p", ""), ("abfs://c@ONE.dfs.core.windows.net/p/", "")),
            (("gs://b/p", ""), ("gs://b/p//", "")),
            (("swift://b/p", ""), ("swift://b//p/", "")),
            (("sftp://me@Backup.example.net/p", ""), ("sftp://me@backup.example.net:22//p", "")),
            (("/nowhere/main", ""), ("file:///nowhere/main/", "")),
        ] {
            assert_eq!(spelling(one), spelling(other), "{one:?} {other:?}");
        }
        for (one, other) in [
            (("s3://backups/main", minio), ("s3://backups/Main", minio)),
            (("s3://backups/main", minio), ("s3://backups/main/x", minio)),
            (("s3://backups/main", minio), ("s3://backups/main", "http://minio.example.net:9001")),
            (("s3://backups/main", minio), ("gs://backups/main", "")),
            (("swift://backups/main", ""), ("swift://Backups/main", "")),
            (("abfss://c@one.dfs.core.windows.net/p", ""), ("abfss://c@two.dfs.core.windows.net/p", "")),
            (("/nowhere/main", ""), ("/nowhere/other", "")),
        ] {
            assert_ne!(spelling(one), spelling(other), "{one:?} {other:?}");
        }
    }
}
