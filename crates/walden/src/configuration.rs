//! The configuration file `walden.toml`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Deserialize;
use walden_postgres::connection;

/// The name of the configuration file.
pub const FILE: &str = "walden.toml";
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
            ["secret", "token", "password", "encryption_key"].iter().any(|word| name.contains(word))
        };
        let of_store = self.archive.store.iter().find(|(name, value)| is_secret(name) && !value.is_empty());
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
    /// The archive's location.
    pub repo: Option<String>,
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
    /// Options of object stores by name, such as endpoint and region.
    #[serde(default)]
    pub store: BTreeMap<String, String>,
}

impl ArchiveSection {
    /// Checks values that deserialization accepts but the archive does not. Otherwise each push would refuse
    /// them, long after the file was written.
    ///
    /// # Errors
    /// Names the key whose value is invalid.
    pub fn check(&self) -> Result<(), String> {
        if let Some(level) = self.level.filter(|&level| level > MAX_LEVEL) {
            return Err(format!("level in [archive]: expected 0 to {MAX_LEVEL}, found {level}"));
        }
        if self.threads == Some(0) {
            return Err("threads in [archive]: expected at least 1, found 0".to_owned());
        }
        match self.recipient.as_deref().map(check_recipient) {
            Some(Err(problem)) => Err(format!("recipient in [archive]: {problem}")),
            _ => Ok(()),
        }
    }

    /// Returns the number of files that may wait to be archived before it counts as a problem.
    pub fn backlog(&self) -> usize {
        self.backlog_warning.unwrap_or(1000)
    }

    /// Returns the seconds that a file may wait to be archived before it counts as a problem.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Like PostgreSQL's message log
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
    /// The archive [default: that of the section `[archive]`].
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
    pub ack_after: AckAfterOption,
}

/// [`walden_receive::AckAfter`] as an option.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckAfterOption {
    #[default]
    Spool,
    Archive,
}
