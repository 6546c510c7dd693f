//! The configuration file `walden.toml`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Deserialize;
use walden_postgres::connection;

/// The file that is looked for.
pub const FILE: &str = "walden.toml";
/// The highest level of compression.
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
    /// The first key whose value is a secret: an object store's key or token, or a password of a server.
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

/// What can be said of an archive.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchiveSection {
    /// The archive's place.
    pub repo: Option<String>,
    /// The public key that the archive must have: what is pushed is encrypted to it or not archived.
    pub recipient: Option<String>,
    /// The file with a private key that may read, from the configuration's folder on.
    pub identity: Option<PathBuf>,
    /// Level of compression of pushed segments, 0 to 9.
    pub level: Option<u8>,
    /// Number of waiting files above which they are compressed at level 0.
    pub fast_queue: Option<usize>,
    /// Files that are archived ahead by one call.
    pub look_ahead: Option<usize>,
    /// Threads of a call.
    pub threads: Option<usize>,
    /// Number of waiting files above which each push prints a warning, and `status` gives 1.
    pub backlog_warning: Option<usize>,
    /// Seconds that a file may wait, after which `status` gives 1.
    pub backlog_warning_seconds: Option<u64>,
    /// Segments that lie ready for recovery.
    pub prefetch: Option<usize>,
    /// The file that push and get append JSON lines to.
    pub log: Option<PathBuf>,
    /// The form of messages on standard error.
    pub log_format: Option<LogFormat>,
    /// Archive segments of a version that Walden does not read as bytes.
    #[serde(default)]
    pub accept_unknown_versions: bool,
    /// The object store has no conditional requests.
    #[serde(default)]
    pub without_conditional_requests: bool,
    /// Options of object stores by name, such as endpoint and region.
    #[serde(default)]
    pub store: BTreeMap<String, String>,
}

impl ArchiveSection {
    /// Makes sure of values that the form of the file alone allows: what pushes would refuse much later, and at each file, is refused where
    /// it is written.
    ///
    /// # Errors
    /// Which key has a value that it cannot have.
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

    /// Files that may wait to be archived; more are a problem.
    pub fn backlog(&self) -> usize {
        self.backlog_warning.unwrap_or(1000)
    }

    /// Seconds that a file may wait to be archived; longer is a problem.
    pub fn backlog_seconds(&self) -> u64 {
        self.backlog_warning_seconds.unwrap_or(900)
    }
}

#[cfg(feature = "encryption")]
fn check_recipient(text: &str) -> Result<(), String> {
    walden_archive::encryption::keys::parse_recipient(text).map(drop)
}

/// As far as it can be told without encryption.
#[cfg(not(feature = "encryption"))]
fn check_recipient(text: &str) -> Result<(), String> {
    match text.starts_with("age1") {
        true => Ok(()),
        false => Err(format!("expected a public key of age (age1...), found {text:?}")),
    }
}

/// The form of messages on standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// As PostgreSQL's own log
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
    /// The server.
    pub dsn: String,
    /// The archive [default: that of the section `[archive]`].
    pub repo: Option<String>,
    /// The folder in which the log lies until it is archived.
    pub spool: Option<PathBuf>,
    /// The replication slot.
    pub slot: Option<String>,
    /// Make the slot if it is not there.
    #[serde(default)]
    pub create_slot: bool,
    /// Make durable at once what has come.
    #[serde(default)]
    pub synchronous: bool,
    /// Where the log must be durable before it is acknowledged.
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
