//! The file with this machine's rates of recovery: written by `walden bench redo --calibrate`, read by `walden whatif`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use walden_whatif::recovery::RecoveryRates;

/// `$XDG_CONFIG_HOME/walden/recovery.json`, else `~/.config/walden/recovery.json`; `None` without either variable.
pub fn default_path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(config.join("walden").join("recovery.json"))
}

/// Reads a file of rates.
pub fn read(path: &Path) -> Result<RecoveryRates> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the rates of recovery: {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "cannot use the rates of recovery in {}: expected what `walden bench redo --calibrate` writes; remove the file or repeat \
             that command",
            path.display()
        )
    })
}

/// Reads the default file, if there is one.
pub fn read_default() -> Result<Option<RecoveryRates>> {
    let Some(path) = default_path() else { return Ok(None) };
    match fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        _ => read(&path).map(Some),
    }
}
