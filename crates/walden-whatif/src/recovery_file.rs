//! The file with this machine's recovery rates, written by `walden bench redo --calibrate` and read by
//! `walden whatif`.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use walden_source::regular_file;

use crate::recovery::RecoveryRates;

/// Why the rates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RatesError {
    /// The file cannot be read.
    #[error("cannot read the file of recovery rates {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// The file has something else.
    #[error(
        "cannot use the recovery rates in {}: expected a file that `walden bench redo --calibrate` wrote; remove the file or repeat \
         that command",
        path.display()
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// The place of the fault.
        #[source]
        error: serde_json::Error,
    },
}

type Result<T> = std::result::Result<T, RatesError>;

/// Maximum size of the file in bytes; typical files have a few kilobytes.
const MAX_BYTES: u64 = 1 << 20;

/// Returns `$XDG_CONFIG_HOME/walden/recovery.json`, otherwise `~/.config/walden/recovery.json`; `None` if
/// neither variable is set.
pub fn default_path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(config.join("walden").join("recovery.json"))
}

/// Reads a file of rates.
///
/// # Errors
/// The file cannot be read, or has something else.
pub fn read(path: &Path) -> Result<RecoveryRates> {
    let text = read_text(path).map_err(|error| RatesError::Read { path: path.to_owned(), error })?;
    parse(&text, path)
}

fn read_text(path: &Path) -> io::Result<String> {
    let content = regular_file::read(path, MAX_BYTES)?;
    String::from_utf8(content).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

fn parse(text: &str, path: &Path) -> Result<RecoveryRates> {
    serde_json::from_str(text).map_err(|error| RatesError::Parse { path: path.to_owned(), error })
}

/// Reads the default file, if it exists. As the user did not name it, an unreadable file causes only a note,
/// which `print` receives.
///
/// # Errors
/// The file has something else.
pub fn read_default(print: impl FnOnce(&str)) -> Result<Option<RecoveryRates>> {
    default_path().map_or(Ok(None), |path| read_optional(&path, print))
}

fn read_optional(path: &Path, print: impl FnOnce(&str)) -> Result<Option<RecoveryRates>> {
    match read_text(path) {
        Ok(text) => parse(&text, path).map(Some),
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                print(&format!(
                    "note: cannot read the recovery rates in {}: {error}; the default rates are used",
                    path.display()
                ));
            }
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_file_that_cannot_be_read_is_not_needed() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("recovery.json");
        assert!(read_optional(&missing, |_| ()).unwrap().is_none());
        // A folder at this path cannot be read, not even by root.
        assert!(read_optional(folder.path(), |_| ()).unwrap().is_none());
        assert!(read(folder.path()).is_err());
        std::fs::write(&missing, "not rates").unwrap();
        assert!(read_optional(&missing, |_| ()).is_err());
    }
}
