//! Which boot of the system goes on: what is not synchronised counts no longer than that.

use std::fs;
use std::path::Path;

/// What Linux names each boot by.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The boot that a file names; nothing where the system has no such file.
pub(crate) fn boot_id(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|boot| !boot.is_empty())
}
