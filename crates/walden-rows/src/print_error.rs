//! Errors of printed changes and scripts, and of the temporary files that hold them.

use std::io;

/// Why changes cannot be printed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrintError {
    /// The file that holds printed changes until their order is known cannot be used.
    #[error("{action} (TMPDIR)")]
    Spill {
        /// What failed.
        action: &'static str,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// The temporary file does not contain the bytes that were written to it.
    #[error("cannot read the temporary file (TMPDIR): expected a statement at byte {0}, found other bytes")]
    Changed(u64),
    /// A value cannot be printed as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The output cannot be written.
    #[error("cannot write the output")]
    Output(#[source] io::Error),
}

pub(crate) const CREATE: &str = "cannot make a temporary file";
pub(crate) const WRITE: &str = "cannot write to the temporary file";
pub(crate) const READ: &str = "cannot read the temporary file";

/// Names what failed with the temporary file.
pub(crate) fn spill(action: &'static str) -> impl Fn(io::Error) -> PrintError {
    move |error| PrintError::Spill { action, error }
}
