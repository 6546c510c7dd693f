//! Files of coded members: *segment form*, one member that needs nothing else, and *pack form*, many in order.
//!
//! A file is a header and *frames*: each says its kind, its number and its length, and has checksums of its header and of
//! its content. A member is a head, pieces, and an end; a pack has an index and a footer after the last member. Members
//! are found by walking the frames where there is no index, and by searching for the next frame where there is damage.
//!
//! `docs/format.md` says all of it byte for byte.

mod layout;
mod reader;
mod salvage;
mod writer;

use std::fmt;
use std::io;

pub use layout::{End, Entry, FORMAT_VERSION, FileForm, FileHeader, Head, MIN_READER, Meta, Place};
pub use reader::{Reader, Summary};
pub use salvage::{Decode, Loss, Walk, walk};
pub use writer::{Added, WriteOptions, Writer};

use crate::coder;

/// What reading accepts.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes of the largest segment whose records are decoded; PostgreSQL's largest is the default.
    pub segment_bytes: u64,
    /// What decoding may use.
    pub coder: coder::Limits,
}

impl Default for ReadLimits {
    fn default() -> ReadLimits {
        ReadLimits { segment_bytes: 1 << 30, coder: coder::Limits::default() }
    }
}

/// Why a file can't be read or written.
#[derive(Debug)]
pub enum Error {
    /// The file system's, of the compressed file.
    Io(io::Error),
    /// The file system's, of the original: reading it while compressing, writing it while decompressing.
    Original(io::Error),
    /// The file is something else.
    Foreign,
    /// The file needs a reader of a later version of the format.
    Newer(u16),
    /// The file is not as it was written.
    Damage(Box<Damage>),
    /// A temporary file could not be written or read, whatever is in the file.
    Temporary(String),
    /// A limit of the reader: what, how much is allowed, how much it is.
    Limit(&'static str, u64, u64),
    /// A member can't be decoded without the one before it.
    NeedsKeyframe(String),
}

/// Where a file is not as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
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
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.member {
            Some((_, Some(name))) => write!(f, "member {name}: ")?,
            Some((number, None)) => write!(f, "member {}: ", number.saturating_add(1))?,
            None => {}
        }
        let Damage { part, offset, expected, found, .. } = self;
        write!(f, "{part} at offset {offset}: expected {expected}, found {found}")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) | Error::Original(error) => error.fmt(f),
            Error::Foreign => f.write_str("not made by walden compress"),
            Error::Newer(version) => {
                write!(f, "made by a later version: format {version} is needed, {FORMAT_VERSION} is known")
            }
            Error::Damage(damage) => damage.fmt(f),
            Error::Temporary(text) => f.write_str(text),
            Error::Limit(what, most, found) => write!(f, "{what}: at most {most} are allowed, found {found}"),
            Error::NeedsKeyframe(name) => {
                write!(f, "member {name} can't be decoded without what is before it")
            }
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// What can be done about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Damage(_) => Some(
                "get another copy of the file; walden decompress --salvage extracts everything that is not damaged",
            ),
            Error::Newer(_) => Some("use the version of walden that made the file, or a later one"),
            Error::Temporary(_) => Some("TMPDIR says where temporary files are; it needs room there"),
            _ => None,
        }
    }
}
