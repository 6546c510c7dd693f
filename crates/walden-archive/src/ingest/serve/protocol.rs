//! Defines the messages between `walden_archive.so` and this process over a Unix socket.
//! `archive_library/walden_archive.c` is the other side.
//!
//! A connection handles one file: a request, then replies, the last being [`Reply::Archived`] or
//! [`Reply::Failed`]. Numbers are big-endian.
//!
//! ```text
//! request  "WALD" | version u8 = 1 | zero u8 | bytes of the fields u16, at most 8192 | fields
//!          four fields: data directory | file name | walden.repo | walden.config (the last two may be empty)
//! reply    kind u8 | bytes of the fields u16, at most 8192 | fields
//!          'W'  still at work, at least each second; no fields
//!          'D'  archived and durable; one field: warnings, a line each
//!          'F'  not archived; three fields: message | detail | hint    (the last two may be empty)
//! field    bytes u16 | bytes; no zero byte among them
//! ```
//!
//! A request of another version gets the reply `'F'`, which has the same form in all versions.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Version of the requests.
pub const VERSION: u8 = 1;
/// Maximum total size of a message's fields in bytes.
pub const MAX_FIELDS: usize = 8192;

const MAGIC: [u8; 4] = *b"WALD";
const HEADER: usize = 8;
/// Maximum size in bytes of a message, of a detail and of a hint. A reply has room for one of each.
const MAX_TEXT: usize = 2600;

/// A server's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The server's data directory.
    pub data: PathBuf,
    /// Name of the file in its `pg_wal`, not validated yet.
    pub file: String,
    /// `walden.repo`: the archive that the server expects, or empty.
    pub repo: String,
    /// `walden.config`: the configuration that the server expects, or empty.
    pub config: PathBuf,
}

/// Reasons for rejecting a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request cannot be read.
    #[error("cannot read the request")]
    Io(#[from] io::Error),
    /// The magic bytes are missing.
    #[error("cannot use the request: expected \"WALD\" at its start, found other bytes")]
    Magic,
    /// The request has another version.
    #[error("cannot use the request: expected version {VERSION}, found {0}")]
    Version(u8),
    /// The fields are invalid.
    #[error("cannot use the request: expected {expected}")]
    Fields {
        /// The expected fields.
        expected: &'static str,
    },
}

walden_format::diagnostics! { RequestError {
    Self::Version(_) => "serve-request-version": "install walden and walden_archive.so of the same release, then restart walden archive serve and the server",
    _ => "serve-request": "only walden_archive.so talks to this socket",
} }

impl Request {
    /// Reads exactly one request.
    ///
    /// # Errors
    /// The connection failed or the request is invalid. At most a header and [`MAX_FIELDS`] bytes are read
    /// into memory.
    pub fn read(input: &mut dyn Read) -> Result<Request, RequestError> {
        let mut header = [0; HEADER];
        input.read_exact(&mut header)?;
        let [magic @ .., version, _, high, low] = header;
        if magic != MAGIC {
            return Err(RequestError::Magic);
        }
        if version != VERSION {
            return Err(RequestError::Version(version));
        }
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        if bytes > MAX_FIELDS {
            return Err(RequestError::Fields { expected: "at most 8192 bytes of fields" });
        }
        let mut fields = vec![0; bytes];
        input.read_exact(&mut fields)?;
        Request::parse(&fields)
    }

    /// Parses a request's fields.
    fn parse(fields: &[u8]) -> Result<Request, RequestError> {
        let mut left = fields;
        let mut next = || -> Result<Vec<u8>, RequestError> {
            let (field, behind) = left
                .split_first_chunk()
                .and_then(|(bytes, behind)| behind.split_at_checked(u16::from_be_bytes(*bytes).into()))
                .filter(|(field, _)| !field.contains(&0))
                .ok_or(RequestError::Fields { expected: "four fields without zero bytes" })?;
            left = behind;
            Ok(field.to_vec())
        };
        let [data, file, repo, config] = [next()?, next()?, next()?, next()?];
        if !left.is_empty() {
            return Err(RequestError::Fields { expected: "nothing after four fields" });
        }
        let text = |field| {
            String::from_utf8(field)
                .map_err(|_| RequestError::Fields { expected: "a name and a URL in UTF-8" })
        };
        let path = |field| PathBuf::from(OsString::from_vec(field));
        Ok(Request { data: path(data), file: text(file)?, repo: text(repo)?, config: path(config) })
    }
}

/// A reply to a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The file is still being processed.
    Working,
    /// The file is archived and durable.
    Archived {
        /// Warnings for the user.
        warnings: Vec<String>,
    },
    /// The file is not archived, and the server keeps it.
    Failed {
        /// The failed operation.
        message: String,
        /// The reason.
        detail: String,
        /// A remedy for the user.
        hint: String,
    },
}

impl Reply {
    /// Writes and flushes a reply. Long texts are truncated.
    ///
    /// # Errors
    /// The connection failed.
    pub fn write(&self, output: &mut dyn Write) -> io::Result<()> {
        let (kind, texts) = match self {
            Reply::Working => (b'W', Vec::new()),
            Reply::Archived { warnings } => (b'D', vec![warnings.join("\n")]),
            Reply::Failed { message, detail, hint } => {
                (b'F', vec![message.clone(), detail.clone(), hint.clone()])
            }
        };
        let mut fields = Vec::new();
        for text in &texts {
            let text = sendable(text);
            fields.extend((text.len() as u16).to_be_bytes());
            fields.extend(text.into_bytes());
        }
        let mut reply = vec![kind];
        reply.extend((fields.len() as u16).to_be_bytes());
        reply.extend(fields);
        output.write_all(&reply)
    }
}

/// Prepares a text for the server's log: truncates it and replaces control characters other than line breaks.
fn sendable(text: &str) -> String {
    let mut sendable = String::new();
    for character in text.chars() {
        let character = if character.is_control() && character != '\n' { ' ' } else { character };
        if sendable.len() + character.len_utf8() > MAX_TEXT - 3 {
            sendable.push_str("...");
            break;
        }
        sendable.push(character);
    }
    sendable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &[&[u8]]) -> Vec<u8> {
        let mut body = Vec::new();
        for field in fields {
            body.extend((field.len() as u16).to_be_bytes());
            body.extend(*field);
        }
        [&b"WALD\x01\0"[..], &(body.len() as u16).to_be_bytes(), &body].concat()
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let bytes = request(&[b"/data/\xff", b"000000010000000000000007", b"", b"/etc/walden/main.toml"]);
        let read = Request::read(&mut &bytes[..]).unwrap();
        assert_eq!(read.data, PathBuf::from(OsString::from_vec(b"/data/\xff".to_vec())));
        assert_eq!((read.file.as_str(), read.repo.as_str()), ("000000010000000000000007", ""));
        assert_eq!(read.config, PathBuf::from("/etc/walden/main.toml"));
    }

    #[test]
    fn what_is_cut_or_changed_is_no_request() {
        let bytes = request(&[b"/data", b"name", b"repo", b""]);
        for end in 0..bytes.len() {
            assert!(Request::read(&mut &bytes[..end]).is_err(), "{end}");
        }
        let other = |at: usize, value: u8| {
            let mut other = bytes.clone();
            other[at] = value;
            Request::read(&mut &other[..]).unwrap_err()
        };
        assert!(matches!(other(0, b'w'), RequestError::Magic));
        assert!(matches!(other(4, 9), RequestError::Version(9)));
        assert!(matches!(other(6, 0xFF), RequestError::Fields { .. }));
        assert!(matches!(other(9, 4), RequestError::Fields { .. }));
        for fields in [&[&b"/data"[..], b"na\0me", b"", b""][..], &[b"/data", b"n", b""], &[&b"a"[..]; 5]] {
            let error = Request::read(&mut &request(fields)[..]).unwrap_err();
            assert!(matches!(error, RequestError::Fields { .. }), "{error}");
        }
    }

    #[test]
    fn replies_of_any_length_fit() {
        let long = "ä\u{7}".repeat(10_000);
        let reply = Reply::Failed { message: long.clone(), detail: long.clone(), hint: long };
        let mut bytes = Vec::new();
        reply.write(&mut bytes).unwrap();
        let fields = usize::from(u16::from_be_bytes([bytes[1], bytes[2]]));
        assert_eq!((bytes[0], bytes.len()), (b'F', 3 + fields));
        assert!(fields <= MAX_FIELDS && std::str::from_utf8(&bytes[5..2000]).unwrap().starts_with("ä ä"));
    }
}
