//! Files of coded members: *segment form*, one member that needs nothing else, and *pack form*, many in order.
//!
//! A file is a header and *frames*: each says its kind, its number and its length, and has checksums of its header and of
//! its content. A member is a head, pieces, and an end; a pack has an index and a footer after the last member. Members
//! are found by walking the frames where there is no index, and by searching for the next frame where there is damage.
//!
//! `docs/format.md` says all of it byte for byte.

mod file_form;
mod layout;
mod limits;
mod reader;
mod salvage;
mod stream;
mod writer;

use std::fmt;
use std::io;

pub use crate::coder::{FORMAT_VERSION, MIN_READER};
pub use file_form::FileForm;
pub use layout::{End, Entry, FileHeader, Hash, Head, Meta, Place};
pub use limits::{Excess, Needs, ReadLimits};
pub use reader::{Binding, Forward, Reader, Summary};
pub use salvage::{Decode, Loss, Walk, walk};
pub use stream::{compress, decompress};
pub use writer::{Added, KEYFRAME_BYTES, WriteOptions, Writer};

use crate::Corrupt;

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system's, of the compressed file.
    #[error("cannot read or write the compressed file")]
    Io(#[source] io::Error),
    /// The file system's, of the original: reading it while compressing, writing it while decompressing.
    #[error("cannot read or write the original")]
    Original(#[source] io::Error),
    /// The file is something else.
    #[error(
        "cannot read the file's header: expected that of a .wlz or .wpk file, found a file not made by walden compress"
    )]
    Foreign,
    /// There is no byte in the file.
    #[error("cannot read the file's header: expected that of a .wlz or .wpk file, found an empty file")]
    Empty,
    /// The file needs a reader of a later version of the format.
    #[error(
        "cannot read the file: expected format {FORMAT_VERSION} or older, found one that needs a reader of format {0}"
    )]
    Newer(u16),
    /// The file is not as it was written.
    #[error(transparent)]
    Damage(Box<Damage>),
    /// A temporary file could not be written or read, whatever is in the file.
    #[error("cannot keep pages: {0}")]
    Temporary(String),
    /// A limit of what is written.
    #[error("cannot {what}: expected at most {allowed} bytes, found {found}")]
    Limit {
        /// What cannot be done.
        what: &'static str,
        /// Bytes that are allowed.
        allowed: u64,
        /// Bytes that it would take.
        found: u64,
    },
    /// The kind of a frame that readers which do not know it would refuse.
    #[error("cannot write an extra frame: expected a kind from 128 to 255, found {0}")]
    ExtraKind(u8),
    /// The file states that decoding may need more than is allowed.
    #[error("{0}")]
    Needs(Excess),
    /// A member cannot be decoded without the one before it.
    #[error(
        "cannot decode member {0}: expected the members from the last keyframe on to be decoded before it"
    )]
    NeedsKeyframe(String),
}

/// Where a file is not as it was written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Damage {
    /// The member: its number and, if known, its name.
    pub member: Option<(u64, Option<String>)>,
    /// Which part of the file.
    pub part: &'static str,
    /// Where the part is in the file.
    pub offset: u64,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
    /// Why what was found cannot be decoded, if its checksum is right.
    pub source: Option<Corrupt>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { part, offset, expected, found, .. } = self;
        write!(f, "cannot read {part} at offset {offset}")?;
        match &self.member {
            Some((_, Some(name))) => write!(f, " of member {name}")?,
            Some((number, None)) => write!(f, " of member {}", number.saturating_add(1))?,
            None => {}
        }
        write!(f, ": expected {expected}, found {found}")
    }
}

impl Error {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Damage(_) => Some(
                "get another copy of the file; walden decompress --salvage extracts everything that is not damaged",
            ),
            Error::Newer(_) => Some("use the version of walden that made the file, or a later one"),
            Error::Needs(Excess::Memory { .. }) => Some(
                "allow more with --memory, if that much memory is there and the file is of a source that you trust",
            ),
            Error::Needs(Excess::Spill { .. }) => Some(
                "allow more with --spill, if the folder of temporary files (TMPDIR) has that much space, or with --memory",
            ),
            Error::Temporary(_) => {
                Some("free some space in the folder of temporary files, or name another one (TMPDIR)")
            }
            _ => None,
        }
    }
}
