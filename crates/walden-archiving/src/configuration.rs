//! The configuration file `walden.toml`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use walden_archive::cost::OwnPrices;
use walden_archive::store::versions::{LockMode, LockRule};
use walden_archive::url;
use walden_postgres::connection;
use walden_receive::AckAfter;

use walden_report::units::parse_size;

/// The name of the configuration file.
pub const FILE: &str = "walden.toml";
/// The longest lock: S3 allows 100 years.
const MAX_LOCK_DAYS: u32 = 36_500;
/// The highest compression level.
const MAX_LEVEL: u8 = 9;

/// The content of `walden.toml`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The section `[archive]`.
    #[serde(default)]
    pub archive: ArchiveSection,
    /// The sections `[[receive]]`.
    #[serde(default)]
    pub receive: Vec<ReceiveSection>,
}

impl Configuration {
    /// Returns the first key whose value is a secret: an object store's key or token, or a server's password.
    pub fn secret(&self) -> Option<String> {
        let is_secret = |name: &str| {
            let name = name.to_ascii_lowercase();
            ["secret", "token", "password", "encryption_key", "customer_key", "account_key"]
                .iter()
                .any(|word| name.contains(word))
        };
        let stores = self.archive.repo.0.iter().filter_map(|repository| repository.store.as_ref());
        let mut options = stores.chain([&self.archive.store]).flatten();
        let of_store = options.find(|(name, value)| is_secret(name) && !value.is_empty());
        let of_server = || {
            let has_password = |section: &&ReceiveSection| connection::has_password(&section.dsn);
            self.receive.iter().find(has_password).map(|_| "dsn (a password)".to_owned())
        };
        of_store.map(|(name, _)| name.clone()).or_else(of_server)
    }
}

/// The section `[archive]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchiveSection {
    /// The archive's location, or several repositories that each hold all WAL.
    #[serde(default)]
    pub repo: Repositories,
    /// Number of repositories that must have a file before a push is acknowledged [default: all].
    pub acknowledge: Option<usize>,
    /// The public key that the archive must have. A push encrypts to it, or fails.
    pub recipient: Option<String>,
    /// The file with a private key for reading, relative to the configuration's folder.
    pub identity: Option<PathBuf>,
    /// Compression level of pushed segments, 0 to 9.
    pub level: Option<u8>,
    /// Number of waiting files above which level 0 is used.
    pub fast_queue: Option<usize>,
    /// Number of further waiting files that one call archives ahead.
    pub look_ahead: Option<usize>,
    /// Threads per call.
    pub threads: Option<usize>,
    /// Number of waiting files above which each push prints a warning, and `status` exits with 1.
    pub backlog_warning: Option<usize>,
    /// Seconds that a file may wait before `status` exits with 1.
    pub backlog_warning_seconds: Option<u64>,
    /// Hours after which the newest base backup in the archive is too old for `status` and `check`.
    pub backup_max_age_hours: Option<u64>,
    /// Segments that are fetched ahead for recovery.
    pub prefetch: Option<usize>,
    /// The file to which push and get append JSON lines.
    pub log: Option<PathBuf>,
    /// The format of messages on standard error.
    pub log_format: Option<LogFormat>,
    /// Archive segments as bytes if Walden does not read their version.
    #[serde(default)]
    pub accept_unknown_versions: bool,
    /// The object store does not support conditional requests.
    #[serde(default)]
    pub without_conditional_requests: bool,
    /// Number of days for which each stored object is locked (Object Lock of S3).
    pub lock_days: Option<u32>,
    /// Who may shorten these locks [default: governance].
    pub lock_mode: Option<LockMode>,
    /// Storage class of segments and packs in an object store.
    pub storage_class: Option<String>,
    /// Prices for `list --cost`, instead of the list prices of the class.
    pub price: Option<OwnPrices>,
    /// Tags of objects in an object store.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Maximum bandwidth, for example `50MB/s`.
    pub bandwidth: Option<Bandwidth>,
    /// Options of object stores by name, such as endpoint and region.
    #[serde(default)]
    pub store: BTreeMap<String, String>,
}

/// A bandwidth in bytes per second, as text with a unit: `50MB/s`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Bandwidth(pub u64);

/// A lower limit would let requests run into their time limits.
const MIN_BANDWIDTH: u64 = 64 << 10;

impl TryFrom<String> for Bandwidth {
    type Error = String;

    fn try_from(text: String) -> Result<Bandwidth, String> {
        let size = text.strip_suffix("/s").and_then(|size| parse_size(size).ok());
        match size.and_then(|size| u64::try_from(size).ok()).filter(|&bytes| bytes >= MIN_BANDWIDTH) {
            Some(bytes) => Ok(Bandwidth(bytes)),
            None => Err(format!("bandwidth: expected 64kB/s or more, such as 50MB/s, found \"{text}\"")),
        }
    }
}

/// The value of `repo`: a location, or a list of locations and of tables with options.
#[derive(Clone, Default, Debug)]
pub struct Repositories(pub Vec<RepositorySection>);

/// One of several repositories. Options that are not set have the values of the section `[archive]`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositorySection {
    /// The archive's location.
    pub url: String,
    /// See [`ArchiveSection::recipient`].
    pub recipient: Option<String>,
    /// See [`ArchiveSection::identity`].
    pub identity: Option<PathBuf>,
    /// See [`ArchiveSection::level`].
    pub level: Option<u8>,
    /// See [`ArchiveSection::without_conditional_requests`].
    pub without_conditional_requests: Option<bool>,
    /// See [`ArchiveSection::lock_days`].
    pub lock_days: Option<u32>,
    /// See [`ArchiveSection::lock_mode`].
    pub lock_mode: Option<LockMode>,
    /// See [`ArchiveSection::storage_class`].
    pub storage_class: Option<String>,
    /// See [`ArchiveSection::price`].
    pub price: Option<OwnPrices>,
    /// See [`ArchiveSection::tags`].
    pub tags: Option<BTreeMap<String, String>>,
    /// See [`ArchiveSection::bandwidth`].
    pub bandwidth: Option<Bandwidth>,
    /// See [`ArchiveSection::store`].
    pub store: Option<BTreeMap<String, String>>,
}

impl<'de> Deserialize<'de> for Repositories {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Repositories, D::Error> {
        struct Several;
        impl<'de> Visitor<'de> for Several {
            type Value = Repositories;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a path or URL, or a list of them")
            }
            fn visit_str<E>(self, url: &str) -> Result<Repositories, E> {
                Ok(Repositories(vec![RepositorySection::from_url(url)]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Repositories, A::Error> {
                let list: Vec<One> = Vec::deserialize(SeqAccessDeserializer::new(list))?;
                Ok(Repositories(list.into_iter().map(|One(section)| section).collect()))
            }
        }
        deserializer.deserialize_any(Several)
    }
}

/// An element of a list of repositories.
struct One(RepositorySection);

impl<'de> Deserialize<'de> for One {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<One, D::Error> {
        struct Element;
        impl<'de> Visitor<'de> for Element {
            type Value = One;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a path or URL, or a table with url and options")
            }
            fn visit_str<E>(self, url: &str) -> Result<One, E> {
                Ok(One(RepositorySection::from_url(url)))
            }
            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<One, A::Error> {
                RepositorySection::deserialize(MapAccessDeserializer::new(table)).map(One)
            }
        }
        deserializer.deserialize_any(Element)
    }
}

impl RepositorySection {
    fn from_url(url: &str) -> RepositorySection {
        RepositorySection { url: url.to_owned(), ..RepositorySection::default() }
    }
}

impl ArchiveSection {
    /// Returns the location of the first repository.
    pub fn first_repo(&self) -> Option<&str> {
        self.repo.0.first().map(|repository| repository.url.as_str())
    }

    /// Returns the URL by which an archive is configured; `None` if the section names other archives.
    pub(crate) fn configured_url(&self, url: &str) -> Option<String> {
        let spelling = |url: &str, store: &BTreeMap<String, String>| {
            url::spelling(url, &store.clone().into_iter().collect::<Vec<_>>())
        };
        let of = |repository: &RepositorySection| {
            let store = repository.store.as_ref().unwrap_or(&self.store);
            spelling(&repository.url, store) == spelling(url, store)
        };
        match self.repo.0.is_empty() {
            true => Some(url.to_owned()),
            false => self.repo.0.iter().find(|one| one.url == url || of(one)).map(|one| one.url.clone()),
        }
    }

    /// Returns the section for an archive that it does not name, and that has its own keys.
    #[must_use]
    pub(crate) fn for_other_archive(self) -> ArchiveSection {
        ArchiveSection { recipient: None, ..self }
    }

    /// Returns the section with the options of a repository, if it is configured.
    #[must_use]
    pub fn for_repository(mut self, url: &str) -> ArchiveSection {
        let Some(repository) = self.repo.0.iter().find(|repository| repository.url == url).cloned() else {
            return self;
        };
        let RepositorySection {
            url: _,
            recipient,
            identity,
            level,
            without_conditional_requests,
            lock_days,
            lock_mode,
            storage_class,
            price,
            tags,
            bandwidth,
            store,
        } = repository;
        self.recipient = recipient.or(self.recipient);
        self.identity = identity.or(self.identity);
        self.level = level.or(self.level);
        self.without_conditional_requests =
            without_conditional_requests.unwrap_or(self.without_conditional_requests);
        self.lock_days = lock_days.or(self.lock_days);
        self.lock_mode = lock_mode.or(self.lock_mode);
        self.storage_class = storage_class.or(self.storage_class);
        self.price = price.or(self.price);
        self.tags = tags.unwrap_or(self.tags);
        self.bandwidth = bandwidth.or(self.bandwidth);
        self.store = store.unwrap_or(self.store);
        self
    }

    /// Returns the rule that locks stored objects, if one is configured.
    pub fn lock(&self) -> Option<LockRule> {
        Some(LockRule { mode: self.lock_mode.unwrap_or_default(), days: self.lock_days? })
    }

    /// Checks values that deserialization accepts but the archive does not. Otherwise each push would refuse
    /// them, long after the file was written.
    ///
    /// # Errors
    /// Names the key whose value is invalid.
    pub fn check(&self) -> Result<(), String> {
        let levels = self.repo.0.iter().map(|repository| repository.level).chain([self.level]).flatten();
        if let Some(level) = levels.into_iter().find(|&level| level > MAX_LEVEL) {
            return Err(format!("level in [archive]: expected 0 to {MAX_LEVEL}, found {level}"));
        }
        let count = self.repo.0.len();
        if let Some(acknowledge) = self.acknowledge.filter(|number| !(1..=count.max(1)).contains(number)) {
            return Err(format!(
                "acknowledge in [archive]: expected 1 to {count} (repo), found {acknowledge}"
            ));
        }
        let urls = || self.repo.0.iter().map(|repository| repository.url.as_str());
        if let Some(twice) = urls().find(|url| urls().filter(|other| other == url).count() > 1) {
            return Err(format!("repo in [archive]: expected each repository once, found {twice} twice"));
        }
        if self.threads == Some(0) {
            return Err("threads in [archive]: expected at least 1, found 0".to_owned());
        }
        let days = self.repo.0.iter().map(|repository| repository.lock_days).chain([self.lock_days]);
        if let Some(days) = days.clone().flatten().find(|days| !(1..=MAX_LOCK_DAYS).contains(days)) {
            return Err(format!("lock_days in [archive]: expected 1 to {MAX_LOCK_DAYS}, found {days}"));
        }
        let mut modes = self.repo.0.iter().map(|repository| repository.lock_mode).chain([self.lock_mode]);
        if modes.any(|mode| mode.is_some()) && days.flatten().next().is_none() {
            return Err("lock_mode in [archive]: expected lock_days with it, found none".to_owned());
        }
        let prices = self.repo.0.iter().map(|repository| repository.price).chain([self.price]).flatten();
        if let Some(problem) = prices.into_iter().find_map(|price| price.check().err()) {
            return Err(format!("price in [archive]: {problem}"));
        }
        let recipients = self.repo.0.iter().map(|repository| repository.recipient.as_deref());
        let problem = recipients
            .chain([self.recipient.as_deref()])
            .flatten()
            .find_map(|text| check_recipient(text).err());
        match problem {
            Some(problem) => Err(format!("recipient in [archive]: {problem}")),
            None => Ok(()),
        }
    }

    /// Returns the number of files that may wait to be archived before the queue counts as a problem.
    pub fn backlog(&self) -> usize {
        self.backlog_warning.unwrap_or(1000)
    }

    /// Returns the number of seconds that a file may wait to be archived before the delay counts as a
    /// problem.
    pub fn backlog_seconds(&self) -> u64 {
        self.backlog_warning_seconds.unwrap_or(900)
    }
}

#[cfg(feature = "encryption")]
fn check_recipient(text: &str) -> Result<(), String> {
    walden_archive::encryption::keys::parse_recipient(text).map(drop)
}

/// Checks the prefix only: parsing the key needs the feature `encryption`.
#[cfg(not(feature = "encryption"))]
fn check_recipient(text: &str) -> Result<(), String> {
    match text.starts_with("age1") {
        true => Ok(()),
        false => Err(format!("expected a public key of age (age1...), found {text:?}")),
    }
}

/// The format of messages on standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Like PostgreSQL's server log
    #[default]
    Text,
    /// A JSON object in each line
    Json,
}

/// A section `[[receive]]` of `walden.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveSection {
    /// The server's name in messages.
    pub name: Option<String>,
    /// The server's connection string.
    pub dsn: String,
    /// The archive [default: the archive in the section `[archive]`].
    pub repo: Option<String>,
    /// The folder that holds the WAL until it is archived.
    pub spool: Option<PathBuf>,
    /// The replication slot.
    pub slot: Option<String>,
    /// Create the slot if it does not exist.
    #[serde(default)]
    pub create_slot: bool,
    /// Sync received WAL immediately.
    #[serde(default)]
    pub synchronous: bool,
    /// Where the WAL must be durable before it is acknowledged.
    #[serde(default)]
    pub ack_after: AckAfter,
}
