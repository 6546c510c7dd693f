//! How a file is archived, and what became of it.

use std::time::Duration;

use crate::archive::ArchiveError;
use crate::stored::check::Refusal;
use crate::stored::name::ArchivedFile;

/// The level for a long queue: records are checked, and not decoded to be compressed.
pub const FAST: u8 = 0;

/// How files are archived.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// The level of compression, 0 to 9.
    pub level: u8,
    /// As long as more files than this wait to be archived, they are compressed at [`FAST`]. Those that were complete 10 seconds before
    /// are so as long as more than an eighth of this wait: the end of a long queue would take as long as all before it.
    pub fast_queue: usize,
    /// Archive damaged records, with a warning.
    pub accept_damaged: bool,
    /// Archive segments of a version of PostgreSQL that Walden does not read as bytes, with a warning.
    pub accept_unknown_versions: bool,
    /// How many other files that are ready one call archives at most.
    pub look_ahead: usize,
    /// After so long a call begins no further file.
    pub time: Duration,
    /// How many files are worked on at the same time.
    pub threads: usize,
}

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

/// What became of a file.
#[derive(Clone, PartialEq, Debug)]
pub struct Pushed {
    /// The file.
    pub file: ArchivedFile,
    /// It was archived before, with the same content.
    pub was_there: bool,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of its object; nothing if it was there.
    pub stored: Option<u64>,
    /// What the user should know although it is archived.
    pub warnings: Vec<String>,
    /// How long it took to check, compress and store it.
    pub took: Duration,
}

/// Why a file was not archived.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// PostgreSQL archives no files of this name.
    #[error("cannot archive {0}: expected the name of a segment, a history or a backup history file")]
    Name(String),
    /// The file is refused.
    #[error("cannot archive {name}")]
    Refused {
        /// The file's name.
        name: String,
        /// Why.
        #[source]
        refusal: Refusal,
    },
    /// The archive cannot take it.
    #[error("cannot archive {name}")]
    Archive {
        /// The file's name.
        name: String,
        /// Why.
        #[source]
        source: ArchiveError,
    },
}

impl PushError {
    /// The cause in a word, for logs and metrics.
    pub fn cause(&self) -> &'static str {
        match self {
            PushError::Name(_) => "name",
            PushError::Refused { refusal, .. } => match refusal {
                Refusal::Io(_) => "unreadable",
                Refusal::Mismatch { .. } | Refusal::Timeline { .. } | Refusal::Link { .. } => "mismatch",
                Refusal::UnknownVersion { .. } => "unknown_version",
                Refusal::Damaged { .. } => "damaged",
                Refusal::Incomplete { .. } => "incomplete",
                Refusal::History(_) => "history",
            },
            PushError::Archive { source, .. } => source.cause(),
        }
    }

    /// Whether a [`PushError::cause`] is that the file's content was refused, or that another content is archived.
    pub fn is_cause_of_content(cause: &str) -> bool {
        ["conflict", "damaged", "history", "incomplete", "mismatch", "unknown_version"].contains(&cause)
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        match self {
            PushError::Name(name) | PushError::Refused { name, .. } | PushError::Archive { name, .. } => name,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            PushError::Name(_) => Some("archive_command hands over the path: 'walden archive push %p'"),
            PushError::Refused { refusal, .. } => Some(refusal.hint()),
            PushError::Archive { source, .. } => source.hint(),
        }
    }
}
