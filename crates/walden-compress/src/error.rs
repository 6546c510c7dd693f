//! Errors of files that are compressed, decompressed or tested.

use std::io;
use std::path::{Path, PathBuf};

use walden_codec::container;
use walden_output::OutputError;

/// Why a file cannot be compressed, decompressed or tested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// An output file cannot be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The compressed file is damaged, or cannot be read.
    #[error("{0}")]
    Container(#[from] container::Error),
    /// The file system refused an operation on an input or an output that has no name.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file system refused an operation on a file.
    #[error("{action} {}", path.display())]
    File {
        /// What failed, before the path: "cannot open".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// A file is not as expected.
    #[error("{action} {}: {problem}", path.display())]
    Unfit {
        /// The failed action, before the path: "cannot compress".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The problem and its remedy.
        problem: String,
    },
    /// Two files would have the same name in a pack.
    #[error(
        "{} and {} would have the same name in the pack: give the folder that contains both as the input instead",
        one.display(),
        other.display()
    )]
    SameName {
        /// One of the files.
        one: PathBuf,
        /// The other file.
        other: PathBuf,
    },
    /// A file cannot be read or coded.
    #[error("cannot compress {}", path.display())]
    Compress {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        error: container::Error,
    },
    /// The compressed form of a file does not decode to its original.
    #[error("cannot verify the compressed form of {}", path.display())]
    Verify {
        /// The file.
        path: PathBuf,
        /// The difference.
        #[source]
        error: VerifyError,
    },
    /// A pack does not decode to its originals.
    #[error("cannot verify {}", path.display())]
    VerifyPack {
        /// The pack.
        path: PathBuf,
        /// The difference.
        #[source]
        error: VerifyError,
    },
    /// Verification did not come to an end.
    #[error("{0}")]
    Unverified(#[from] VerifyError),
    /// A temporary file for standard input cannot be used.
    #[error("{action} in {} (TMPDIR)", folder.display())]
    Temporary {
        /// What failed.
        action: &'static str,
        /// The folder of temporary files.
        folder: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// A pipe to the verifying thread cannot be made.
    #[error("cannot make a pipe")]
    Pipe(#[source] io::Error),
    /// Compressed data cannot be written to standard output.
    #[error("cannot write to standard output")]
    Stdout(#[source] io::Error),
    /// Originals cannot be written to standard output.
    #[error("cannot write to standard output")]
    OriginalsToStdout(#[source] io::Error),
    /// A compressed file has members that cannot be written.
    #[error("{}: {problem}", path.display())]
    Members {
        /// The compressed file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A pack has no such member.
    #[error("{} has no member {name}; it has {known}", path.display())]
    NoMember {
        /// The pack.
        path: PathBuf,
        /// The name.
        name: String,
        /// The names of its first members.
        known: String,
    },
    /// The originals of a compressed file cannot be written.
    #[error("cannot decompress {}", path.display())]
    Decompress {
        /// The compressed file.
        path: PathBuf,
        /// The reason.
        #[source]
        error: OutputError,
    },
    /// A member would be written through a link.
    #[error("{}: cannot write member {}", path.display(), member.display())]
    Member {
        /// The compressed file.
        path: PathBuf,
        /// The member's name.
        member: PathBuf,
        /// The reason.
        #[source]
        error: OutputError,
    },
}

impl FileError {
    pub(crate) fn unfit(action: &'static str, path: &Path, problem: impl Into<String>) -> FileError {
        FileError::Unfit { action, path: path.to_owned(), problem: problem.into() }
    }
}

/// Names the operation and the path of an error of the file system.
pub(crate) fn at<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> FileError + use<'a> {
    move |error| FileError::File { action, path: path.to_owned(), error }
}

/// The difference between a compressed form and its original.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The compressed form cannot be decoded.
    #[error("{0}")]
    Container(#[from] container::Error),
    /// The compressed form cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A member is missing.
    #[error("the compressed data lacks a member that was written: expected it, found the end")]
    NoMember,
    /// A member has another header.
    #[error("the header of a member in the compressed data differs from the header that was written")]
    OtherHead,
    /// A member has another content.
    #[error("the decompressed content differs from the original: expected the same hash")]
    OtherHash,
    /// There are further members.
    #[error("the compressed data has more members than the one that was written")]
    MoreMembers,
    /// The index of a pack differs from its members.
    #[error("the pack's index differs from the index that was written")]
    OtherIndex,
    /// The verifying thread ended by a panic.
    #[error("cannot verify: the thread ended by a panic")]
    Panic,
}

walden_format::diagnostics! { VerifyError {
    // The damage concerns the new compressed form, not a file of the user.
    _ => "compress-not-verified",
} }

impl VerifyError {
    /// Returns whether memory ran out, which does not mean that the output is wrong.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        let causes =
            std::iter::successors(Some(self as &(dyn std::error::Error + 'static)), |error| error.source());
        causes
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|cause| cause.kind() == io::ErrorKind::OutOfMemory)
    }
}
