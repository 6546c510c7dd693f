//! `started.json`, the first object of a backup, which names its writer.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::documents::VERSION;
use super::name;
use crate::archive::Archive;
use crate::boot;

/// The content of `started.json`.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Started {
    walden_backup: u32,
    /// In microseconds since 1970-01-01 00:00:00 UTC.
    started: i64,
    /// The process that makes the backup.
    process: Option<String>,
    /// Longest time between two objects while the process exists.
    heartbeat_seconds: Option<u64>,
}

/// Returns the content for a backup of this process. `heartbeat` is the longest time between two objects.
pub(super) fn text(started: Timestamp, heartbeat: Option<SignedDuration>) -> Vec<u8> {
    let note = Started {
        walden_backup: VERSION,
        started: started.as_microsecond(),
        process: boot::process(),
        heartbeat_seconds: heartbeat.map(|heartbeat| heartbeat.as_secs().unsigned_abs()),
    };
    serde_json::to_vec(&note).unwrap_or_default()
}

/// Returns whether the writer of a backup without `backup.json` is known to be gone: on this machine, or, if
/// it `is_silent`, also elsewhere. A `started.json` that cannot be read leaves this unknown.
pub(super) fn is_writer_gone(archive: &Archive, name: &str, is_silent: bool) -> bool {
    let Ok(text) = archive.store().read(&name::key(name, name::STARTED)) else { return false };
    let started: Started = serde_json::from_slice(&text).unwrap_or_default();
    started.process.as_deref().is_some_and(boot::is_gone) || is_silent && started.heartbeat_seconds.is_some()
}
