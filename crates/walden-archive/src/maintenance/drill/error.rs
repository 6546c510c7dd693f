//! Errors of drills.

use std::error::Error;

use walden_format::diagnostic::Hint;
use walden_recover::RecoverError;
use walden_source::datadir::DataDirError;

use crate::archive::ArchiveError;
use crate::restore::base::BaseError;
use crate::restore::recovery::RecoveryError;
use crate::restore::sources::SourcesError;

/// Why a drill failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrillError {
    /// Recovery failed. The message contains the end of the server's log.
    #[error("{problem}")]
    RecoveryFailed {
        /// What happened.
        problem: String,
        /// The remedy, if one is known.
        hint: Option<Hint>,
    },
    /// The target restore point is not in the archive.
    #[error("restore point {name} is not in the archive; {known}")]
    UnknownRestorePoint {
        /// The restore point.
        name: String,
        /// The existing restore points, as text.
        known: String,
    },
    /// The backup, an option, or the installed servers do not permit the drill. The message contains the
    /// expected and the found values.
    #[error("{problem}")]
    Refused {
        /// Why.
        problem: String,
        /// The remedy, if one is known.
        hint: Option<Hint>,
    },
    /// The archive cannot be read.
    #[error("{0}")]
    Archive(#[from] ArchiveError),
    /// Recovery cannot reach the target.
    #[error("{0}")]
    Recovery(#[from] RecoveryError),
    /// A step failed.
    #[error("{step}")]
    Step {
        /// The step, as "cannot do something".
        step: String,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Another error, which states its step itself.
    #[error("{0}")]
    Other(#[source] Box<dyn Error + Send + Sync>),
}

/// The result of a part of a drill.
pub(super) type Result<T> = std::result::Result<T, DrillError>;

walden_format::diagnostics! { DrillError {
    Self::RecoveryFailed { hint, .. } => "drill-recovery-failed": hint.clone(),
    Self::Refused { hint, .. } => "drill-refused": hint.clone(),
    Self::UnknownRestorePoint { .. } => "drill-restore-point":
        "walden archive list --all names the restore points of the archive",
    Self::Archive(error) => of(error),
    Self::Recovery(error) => of(error),
    Self::Step { .. } | Self::Other(_) => none,
} }

impl DrillError {
    pub(super) fn refused(problem: impl Into<String>) -> DrillError {
        DrillError::Refused { problem: problem.into(), hint: None }
    }

    pub(super) fn recovery_failed(problem: impl Into<String>) -> DrillError {
        DrillError::RecoveryFailed { problem: problem.into(), hint: None }
    }

    /// Adds a remedy.
    pub(super) fn with_hint(mut self, text: impl Into<Hint>) -> DrillError {
        if let DrillError::RecoveryFailed { hint, .. } | DrillError::Refused { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// Returns whether recovery failed or must fail. Otherwise, recovery could not be attempted.
    pub fn is_recovery_failure(&self) -> bool {
        matches!(self, DrillError::RecoveryFailed { .. } | DrillError::UnknownRestorePoint { .. })
    }
}

macro_rules! from_others {
    ($($error:ty),*) => {
        $(impl From<$error> for DrillError {
            fn from(error: $error) -> DrillError {
                DrillError::Other(error.into())
            }
        })*
    };
}

from_others!(
    anyhow::Error,
    jiff::Error,
    postgres::Error,
    std::fmt::Error,
    std::io::Error,
    BaseError,
    DataDirError,
    RecoverError,
    SourcesError
);

/// Adds the step that failed to an error.
pub(super) trait Context<T> {
    /// Adds a step, as "cannot do something".
    fn context(self, step: impl Into<String>) -> Result<T>;

    /// Does the same with a step that is composed only after a failure.
    fn with_context<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Context<T> for std::result::Result<T, E> {
    fn context(self, step: impl Into<String>) -> Result<T> {
        self.with_context(|| step)
    }

    fn with_context<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| DrillError::Step { step: step().into(), source: error.into() })
    }
}
