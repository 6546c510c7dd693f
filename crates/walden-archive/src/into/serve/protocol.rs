//! What `walden_archive.so` asks and is answered, over a Unix socket; the other side is `archive_library/walden_archive.c`.
//!
//! A connection is for one file: a request, then replies, the last of which is [`Reply::Archived`] or [`Reply::Failed`]. Numbers
//! are big-endian.
//!
//! ```text
//! request  "WALD" | version u8 = 1 | zero u8 | bytes of the fields u16, at most 8192 | fields
//!          four fields: data directory | file name | walden.repo | walden.config    (the last two may be empty)
//! reply    kind u8 | bytes of the fields u16, at most 8192 | fields
//!          'W'  still at work, at least each second; no fields
//!          'D'  archived and durable; one field: warnings, a line each
//!          'F'  not archived; three fields: message | detail | hint    (the last two may be empty)
//! field    bytes u16 | bytes; no zero byte among them
//! ```
//!
//! A request of another version is answered by `'F'`, whose form stays the same in all versions.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The version of requests.
pub const VERSION: u8 = 1;
/// More than a request's or a reply's fields have together.
pub const MAX_FIELDS: usize = 8192;

const MAGIC: [u8; 4] = *b"WALD";
const HEADER: usize = 8;
/// The most bytes of a message, a detail or a hint: three of them fit.
const MAX_TEXT: usize = 2600;

/// What a server asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The server's data directory.
    pub data: PathBuf,
    /// The file in its `pg_wal`, by what the server calls it. Nothing was checked yet.
    pub file: String,
    /// `walden.repo`: the archive that the server expects; empty if it expects none.
    pub repo: String,
    /// `walden.config`: the configuration that it expects; empty if it expects none.
    pub config: PathBuf,
}

/// Why something is no request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It cannot be read.
    #[error("cannot read the request")]
    Io(#[from] io::Error),
    /// It does not begin as requests do.
    #[error("cannot use the request: expected \"WALD\" at its beginning, found other bytes")]
    Magic,
    /// It is of another version.
    #[error("cannot use the request: expected version {VERSION}, found {0}")]
    Version(u8),
    /// Its fields are none.
    #[error("cannot use the request: expected {expected}")]
    Fields {
        /// What was expected.
        expected: &'static str,
    },
}

impl RequestError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            RequestError::Version(_) => {
                "install walden and walden_archive.so of the same release, then restart walden archive serve and the server"
            }
            _ => "only walden_archive.so talks to this socket",
        }
    }
}

impl Request {
    /// Reads a request, and nothing behind it.
    ///
    /// # Errors
    /// The connection's, and anything that is no request. No more than [`MAX_FIELDS`] and a header is read or held.
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

    /// The request of these fields.
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
            return Err(RequestError::Fields { expected: "nothing behind four fields" });
        }
        let text = |field| {
            String::from_utf8(field)
                .map_err(|_| RequestError::Fields { expected: "a name and a URL in UTF-8" })
        };
        let path = |field| PathBuf::from(OsString::from_vec(field));
        Ok(Request { data: path(data), file: text(file)?, repo: text(repo)?, config: path(config) })
    }
}

/// What a server is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The file is still being worked on.
    Working,
    /// It is archived and durable.
    Archived {
        /// What the user should know nevertheless.
        warnings: Vec<String>,
    },
    /// It is not, and the server keeps it.
    Failed {
        /// What could not be done.
        message: String,
        /// Why.
        detail: String,
        /// What the user can do about it.
        hint: String,
    },
}

impl Reply {
    /// Writes a reply at once. Texts are shortened to what fits.
    ///
    /// # Errors
    /// The connection's.
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

/// A text as a server's log can have it: shortened, and without control characters but line breaks.
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
