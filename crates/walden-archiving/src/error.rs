use std::error::Error;
use std::io;
use std::iter;
use std::path::PathBuf;

use walden_archive::against::AgainstError;
use walden_archive::archive::ArchiveError;
use walden_archive::drill::RedirectFileError;
use walden_archive::get::GetError;
use walden_archive::store::StoreError;
use walden_format::diagnostic::Hint;
use walden_format::lsn::InvalidLsn;
use walden_postgres::connection::{ConnectionError, QueryError};
use walden_receive::handover::CopyError;
use walden_source::hint_of_io;

/// Why an archive cannot be chosen or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The named configuration file does not exist.
    #[error("cannot read {}: expected a configuration file, found none", path.display())]
    NoConfiguration {
        /// The file.
        path: PathBuf,
    },
    /// The configuration file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The configuration file has a syntax error, an unknown key or a value of the wrong type.
    #[error("cannot use {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The place in the file, and what was expected there.
        source: Box<toml::de::Error>,
    },
    /// A key of the configuration file has an invalid value.
    #[error("cannot use {}: {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, the expected and the found value.
        problem: String,
    },
    /// Neither an option, nor the environment, nor a configuration file names an archive.
    #[error(
        "cannot choose an archive: expected --repo URL, WALDEN_REPO, or repo in the [archive] section of walden.toml in the working directory, in a data directory that an option names, or in /etc/walden"
    )]
    NoArchive,
    /// Neither an option nor the configuration names an archive to copy from.
    #[error(
        "cannot choose an archive to copy from: expected --from URL, or several repositories in walden.toml"
    )]
    NoSource,
    /// The same repository is named twice.
    #[error(
        "cannot use several repositories: expected different ones, found {one} and {other}, which are the same place"
    )]
    SamePlace {
        /// One spelling of its location.
        one: String,
        /// The other one.
        other: String,
    },
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The working directory, to which a path is relative, does not exist.
    #[error(transparent)]
    WorkingDirectory(io::Error),
}

walden_format::diagnostics! { PlaceError {
    all @ Self::Store(error) => of(error): error.hint().or_else(|| hint_of_io(all).map(Hint::from)),
    all => none: hint_of_io(all),
} }

/// Why the state of archiving is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchivingError {
    /// The archive cannot be chosen or opened.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The store of the archive cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The archive and the server's files cannot be compared.
    #[error(transparent)]
    Against(#[from] AgainstError),
    /// The server cannot be reached.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The server refuses a query.
    #[error("{what}")]
    Query {
        /// What was asked.
        what: String,
        /// The cause.
        source: QueryError,
    },
    /// The server does not answer.
    #[error(transparent)]
    Unanswered(#[from] QueryError),
    /// The server's answer has other columns than expected.
    #[error(transparent)]
    Answer(#[from] postgres::Error),
    /// The server's answer has no LSN where one is expected.
    #[error(transparent)]
    Lsn(#[from] InvalidLsn),
    /// A file cannot be read.
    #[error("cannot read {what}")]
    Read {
        /// The file, and what follows from that.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// A data directory cannot be served.
    #[error("cannot serve {}", path.display())]
    Serve {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A socket cannot be created.
    #[error("cannot listen on {}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A socket is in use, or other users could replace it.
    #[error("cannot listen on {}: {problem}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The expected and the found state.
        problem: String,
    },
    /// A file cannot be removed.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file has another content than expected.
    #[error("cannot use {}", path.display())]
    Use {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
}

walden_format::diagnostics! { ArchivingError {
    Self::Place(error) => of(error),
    all @ Self::Archive(error) => of(error): error.hint().or_else(|| hint_of_io(all).map(Hint::from)),
    all @ Self::Against(error) => of(error): error.hint().or_else(|| hint_of_io(all).map(Hint::from)),
    all @ Self::Store(error) => of(error): error.hint().or_else(|| hint_of_io(all).map(Hint::from)),
    // The remedies for errors of files do not apply to connections.
    Self::Connection(error) => of(error),
    Self::Query { .. } | Self::Unanswered(_) | Self::Answer(_) => none,
    all => none: hint_of_io(all),
} }

impl ArchivingError {
    /// Returns a function that adds what was asked to the error of a query.
    pub(crate) fn query(what: impl Into<String>) -> impl FnOnce(QueryError) -> ArchivingError {
        let what = what.into();
        |source| ArchivingError::Query { what, source }
    }

    /// Returns a function that adds the file to the error of reading it.
    pub(crate) fn read(what: impl Into<String>) -> impl FnOnce(io::Error) -> ArchivingError {
        let what = what.into();
        |source| ArchivingError::Read { what, source }
    }
}

/// Why a file is not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The archive does not have the file, or cannot be read.
    #[error(transparent)]
    Get(#[from] GetError),
    /// The archive cannot be chosen or opened.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The file exists with other content.
    #[error("cannot write {}: the file exists, and its content differs from {name}", path.display())]
    OtherFile {
        /// The file.
        path: PathBuf,
        /// The name of the requested file.
        name: String,
    },
    /// The existing file cannot be compared.
    #[error("cannot get {name} for a comparison with {}", path.display())]
    Compare {
        /// The name of the requested file.
        name: String,
        /// The existing file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The spool has the file, and it cannot be used.
    #[error("cannot get {name} from {}", spool.display())]
    Spool {
        /// The name of the file.
        name: String,
        /// The spool.
        spool: PathBuf,
        /// The cause.
        source: Box<CopyError>,
    },
    /// The segment creates a tablespace that a drill's server must not have.
    #[error(transparent)]
    Redirect(#[from] RedirectFileError),
}

walden_format::diagnostics! { FetchError {
    all @ Self::Get(error) => of(error): error.hint().or_else(|| all.hint_if_full().map(Hint::from)),
    Self::OtherFile { .. } => "get-other-file": OTHER_FILE_HINT,
    all @ Self::Spool { source, .. } => of(source): source.hint().or_else(|| all.hint_if_full().map(Hint::from)),
    all @ Self::Redirect(error) => of(error): error.hint().or_else(|| all.hint_if_full().map(Hint::from)),
    all @ (Self::Place(_) | Self::Compare { .. }) => none: all.hint_if_full(),
} }

impl FetchError {
    /// Returns whether no repository has the file; recovery then continues without it.
    pub fn is_missing(&self) -> bool {
        matches!(self, FetchError::Get(GetError::NotThere { .. }))
    }

    /// Returns whether the archive is new, without any file.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, FetchError::Get(GetError::Archive { source: ArchiveError::Empty(_), .. }))
    }

    fn hint_if_full(&self) -> Option<&'static str> {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        let is_full = |error: &io::Error| [StorageFull, QuotaExceeded].contains(&error.kind());
        let mut causes = iter::successors(Some(self as &(dyn Error + 'static)), |&cause| cause.source());
        causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_full)).then_some(FULL_HINT)
    }

    /// Returns the texts of the error and of its causes.
    pub(crate) fn causes(&self) -> Vec<String> {
        let causes = iter::successors(Some(self as &(dyn Error + 'static)), |&cause| cause.source());
        causes.map(ToString::to_string).collect()
    }
}

/// Remedy for a target with other content.
const OTHER_FILE_HINT: &str = "name another path, or replace the file with --force; if it is WAL that was not archived, copy it elsewhere first";

/// Remedy if the server's file system is full.
const FULL_HINT: &str = "make room in the file system of the file, which for a server is the file system of pg_wal; a stopped recovery continues when the server is started again";

/// Result of reading the state of archiving.
pub(crate) type Result<T> = std::result::Result<T, ArchivingError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_system_of_the_server_is_hinted_at() {
        let write = |kind: io::ErrorKind| {
            let error = GetError::Write { path: PathBuf::from("pg_wal/RECOVERYXLOG"), source: kind.into() };
            FetchError::from(error).hint()
        };
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            assert_eq!(write(kind).as_deref(), Some(FULL_HINT));
            // For a received file that is not archived yet.
            let source =
                Box::new(CopyError::Write { path: PathBuf::from("RECOVERYXLOG"), source: kind.into() });
            let error = FetchError::Spool { name: String::new(), spool: PathBuf::new(), source };
            assert_eq!(error.hint().as_deref(), Some(FULL_HINT));
        }
        assert_eq!(write(io::ErrorKind::PermissionDenied), None);
    }
}
