//! Identity of the system's current boot: unsynchronized data is valid only until the system restarts.

use std::fs;
use std::path::Path;

/// Linux's unique ID of each boot.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the boot ID in a file; `None` if the file does not exist.
pub(crate) fn boot_id(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|boot| !boot.is_empty())
}
