//! Files of compressed members. A file in *segment form* has one self-contained member, a file in *pack form*
//! has many members in order.
//!
//! A file is a header and *frames*. Each frame states its kind, number and length, and has a checksum for its
//! header and one for its content. A member is a head, pieces, and an end. A pack has an index and a footer
//! after the last member. Without an index, members are found by walking the frames; after damage, by
//! searching for the next frame.
//!
//! `docs/format.md` specifies every byte.

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

/// Errors of reading and writing a container.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Error of the file system, for the compressed file.
    #[error("cannot read or write the compressed file")]
    Io(#[source] io::Error),
    /// Error of the file system, for the original: reading it to compress, or writing it when decompressing.
    #[error("cannot read or write the original")]
    Original(#[source] io::Error),
    /// The file is not a container.
    #[error(
        "cannot read the file's header: expected the header of a .wlz or .wpk file, found a file not made by walden compress"
    )]
    Foreign,
    /// The file is empty.
    #[error("cannot read the file's header: expected the header of a .wlz or .wpk file, found an empty file")]
    Empty,
    /// The file requires a reader of a newer version of the format.
    #[error(
        "cannot read the file: expected format {FORMAT_VERSION} or older, found one that needs a reader of format {0}"
    )]
    Newer(u16),
    /// The file is damaged.
    #[error(transparent)]
    Damage(Box<Damage>),
    /// A temporary file could not be written or read. The compressed file is not the cause.
    #[error("cannot keep pages: {0}")]
    Temporary(String),
    /// A limit of the writer.
    #[error("cannot {what}: expected at most {allowed} bytes, found {found}")]
    Limit {
        /// The operation that failed.
        what: &'static str,
        /// Maximum in bytes.
        allowed: u64,
        /// Bytes required.
        found: u64,
    },
    /// The kind of an extra frame that readers would reject if they do not know it.
    #[error("cannot write an extra frame: expected a kind from 128 to 255, found {0}")]
    ExtraKind(u8),
    /// The header states that decoding may need more than the reader allows.
    #[error("{0}")]
    Needs(Excess),
    /// The member cannot be decoded without the previous one.
    #[error(
        "cannot decode member {0}: expected the members from the last keyframe on to be decoded before it"
    )]
    NeedsKeyframe(String),
}

/// Location and nature of damage in a file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Damage {
    /// The member: its number and, if known, its name.
    pub member: Option<(u64, Option<String>)>,
    /// Part of the file, such as "a member's head".
    pub part: &'static str,
    /// Offset of the part in the file.
    pub offset: u64,
    /// The expected value.
    pub expected: String,
    /// The value found.
    pub found: String,
    /// Error of the decoder, if the checksum is correct but the content cannot be decoded.
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

walden_format::diagnostics! { Error {
    Self::Damage(_) => "file-damaged": "get another copy of the file; walden decompress --salvage extracts everything that is not damaged",
    Self::Newer(_) => "file-newer": "use the version of walden that made the file, or a later one",
    Self::Needs(Excess::Memory { .. }) => "file-needs-memory": "allow more with --memory, if that much memory is there and the file is of a source that you trust",
    Self::Needs(Excess::Spill { .. }) => "file-needs-space": "allow more with --spill, if the folder of temporary files (TMPDIR) has that much space, or with --memory",
    Self::Temporary(_) => "file-temporary": "free some space in the folder of temporary files, or set TMPDIR to another folder",
    Self::Foreign | Self::Empty => "file-foreign",
    Self::Limit { .. } | Self::ExtraKind(_) | Self::NeedsKeyframe(_) | Self::Io(_) | Self::Original(_) => none,
} }
