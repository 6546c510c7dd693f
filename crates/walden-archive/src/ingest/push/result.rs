//! Options for archiving files, and the results.

use std::time::Duration;

use crate::archive::ArchiveError;
use crate::objects::check::Refusal;
use crate::objects::name::ArchivedFile;

/// Compression level for a long queue: records are checked but not parsed for compression.
pub const FAST: u8 = 0;

/// Options for archiving files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PushOptions {
    /// Compression level, 0 to 9.
    pub level: u8,
    /// Number of waiting files above which files are compressed at level [`FAST`]. For files that were
    /// complete more than 10 seconds ago, an eighth of this number suffices; otherwise the last eighth of a
    /// long queue would take as long as the rest.
    pub fast_queue: usize,
    /// Whether to archive damaged records, with a warning.
    pub accept_damaged: bool,
    /// Whether to archive segments of PostgreSQL versions that Walden cannot read, as bytes, with a warning.
    pub accept_unknown_versions: bool,
    /// Maximum number of ready files that one call archives in addition to the requested file.
    pub look_ahead: usize,
    /// A call starts no further file after this time.
    pub time: Duration,
    /// Number of files processed concurrently.
    pub threads: usize,
}

walden_format::setters!(PushOptions {
    level: u8,
    fast_queue: usize,
    accept_damaged: bool,
    accept_unknown_versions: bool,
    look_ahead: usize,
    time: Duration,
    threads: usize,
});

impl Default for PushOptions {
    fn default() -> PushOptions {
        PushOptions {
            level: 3,
            fast_queue: 64,
            accept_damaged: false,
            accept_unknown_versions: false,
            look_ahead: 64,
            time: Duration::from_secs(10),
            threads: 2,
        }
    }
}

/// Result for an archived file.
#[derive(Clone, PartialEq, Debug)]
pub struct Pushed {
    /// The file.
    pub file: ArchivedFile,
    /// Whether the file was already archived with the same content.
    pub was_there: bool,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Size of the new object in bytes, or `None` if the file was already archived.
    pub stored: Option<u64>,
    /// Warnings about the file, which is archived anyway.
    pub warnings: Vec<String>,
    /// Time to check, compress and store the file.
    pub took: Duration,
    /// Number of copies of the archive that have the file.
    pub copies: usize,
}

/// Reasons for not archiving a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// PostgreSQL never archives a file with this name.
    #[error("cannot archive {0}: expected the name of a segment, a history or a backup history file")]
    Name(String),
    /// The file is refused.
    #[error("cannot archive {name}")]
    Refused {
        /// The file's name.
        name: String,
        /// The reason.
        #[source]
        refusal: Refusal,
    },
    /// The archive cannot store the file.
    #[error("cannot archive {name}")]
    Archive {
        /// The file's name.
        name: String,
        /// The reason.
        #[source]
        source: ArchiveError,
    },
    /// Too few copies of the archive have the file, and several failed.
    #[error("cannot archive {name}: {}", problems.join("; "))]
    Copies {
        /// The file's name.
        name: String,
        /// The location of each copy that failed and its reason.
        problems: Vec<String>,
        /// The error of the first copy that failed.
        first: Box<PushError>,
    },
}

impl PushError {
    /// Returns whether a [`PushError::cause`] means that the content was refused or conflicts with the
    /// archived content.
    pub fn is_cause_of_content(cause: &str) -> bool {
        ["conflict", "damaged", "history", "incomplete", "mismatch", "unknown_version"].contains(&cause)
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        match self {
            PushError::Name(name) | PushError::Refused { name, .. } => name,
            PushError::Archive { name, .. } | PushError::Copies { name, .. } => name,
        }
    }
}

walden_format::diagnostics! { PushError {
    Self::Name(_) => "push-name" as "name": "archive_command must pass the path: 'walden archive push %p'",
    Self::Refused { refusal, .. } => of(refusal),
    Self::Archive { source, .. } => of(source),
    Self::Copies { first, .. } => of(first),
} }
