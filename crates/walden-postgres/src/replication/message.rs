//! Parses the messages of a server on a replication connection, and the messages inside its CopyData stream.
//!
//! Documentation: "Message Formats" and "Streaming Replication Protocol" in PostgreSQL's chapter on the
//! frontend/backend protocol.

use walden_format::lsn::{Lsn, Timeline};

use super::ServerError;

/// Bytes of a message's type and length.
pub(super) const HEADER_BYTES: usize = 5;
/// Maximum size of a message in bytes. Messages with WAL have at most 128 kB and a header (`MAX_SEND_SIZE` in
/// `walsender.c`).
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message<'b> {
    /// The type: a letter.
    pub kind: u8,
    pub content: &'b [u8],
}

/// The first message in the received bytes.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Begin {
    /// A complete message of this number of bytes, including its header.
    Whole(usize),
    /// An incomplete message that needs this number of bytes in total.
    Part(usize),
}

/// Finds the end of the first message.
///
/// # Errors
/// A length that is too small or too large.
pub(super) fn begin(bytes: &[u8]) -> Result<Begin, String> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(Begin::Part(HEADER_BYTES)) };
    let [_, length @ ..] = *header;
    // The length includes itself, but not the type.
    let bytes_in_all = u32::from_be_bytes(length) as usize + 1;
    match bytes_in_all {
        HEADER_BYTES..=MAX_MESSAGE_BYTES if bytes_in_all <= bytes.len() => Ok(Begin::Whole(bytes_in_all)),
        HEADER_BYTES..=MAX_MESSAGE_BYTES => Ok(Begin::Part(bytes_in_all)),
        _ => Err(format!("a message of {bytes_in_all} bytes")),
    }
}

impl<'b> Message<'b> {
    /// Returns the message that consists of all `bytes`, measured by [`begin`].
    pub fn whole(bytes: &'b [u8]) -> Message<'b> {
        let (header, content) = bytes.split_at(HEADER_BYTES.min(bytes.len()));
        Message { kind: header.first().copied().unwrap_or_default(), content }
    }

    /// Describes the message for errors: its type, and the length of its content.
    pub fn describe(&self) -> String {
        format!("message '{}' of {} bytes", self.kind.escape_ascii(), self.content.len())
    }
}

/// An authentication request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Authentication {
    Ok,
    CleartextPassword,
    Md5Password([u8; 4]),
    /// The mechanisms to choose from.
    Sasl(Vec<String>),
    SaslContinue(Vec<u8>),
    SaslFinal(Vec<u8>),
    /// The number of a method that is not implemented here.
    Other(u32),
}

impl Authentication {
    pub fn parse(content: &[u8]) -> Option<Authentication> {
        let (kind, more) = content.split_first_chunk::<4>()?;
        Some(match u32::from_be_bytes(*kind) {
            0 => Authentication::Ok,
            3 => Authentication::CleartextPassword,
            5 => Authentication::Md5Password(more.try_into().ok()?),
            10 => Authentication::Sasl(strings(more).take_while(|name| !name.is_empty()).collect()),
            11 => Authentication::SaslContinue(more.to_vec()),
            12 => Authentication::SaslFinal(more.to_vec()),
            other => Authentication::Other(other),
        })
    }
}

/// Splits zero-terminated strings.
pub(super) fn strings(bytes: &[u8]) -> impl Iterator<Item = String> {
    bytes.split(|&byte| byte == 0).map(|text| String::from_utf8_lossy(text).into_owned())
}

/// Parses the fields of an error or a notice, each of which starts with a letter.
pub(super) fn parse_error(content: &[u8]) -> ServerError {
    let mut error = ServerError::default();
    for field in content.split(|&byte| byte == 0) {
        let Some((&letter, text)) = field.split_first() else { continue };
        let target = match letter {
            b'S' => &mut error.severity,
            b'C' => &mut error.code,
            b'M' => &mut error.message,
            b'D' => &mut error.detail,
            b'H' => &mut error.hint,
            _ => continue,
        };
        *target = String::from_utf8_lossy(text).into_owned();
    }
    error
}

/// Parses the values of a row; `None` for a null value.
pub(super) fn parse_row(content: &[u8]) -> Option<Vec<Option<Vec<u8>>>> {
    let (count, mut left) = content.split_first_chunk::<2>()?;
    let mut values = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, more) = left.split_first_chunk::<4>()?;
        left = more;
        let value = match u32::from_be_bytes(*length) {
            u32::MAX => None,
            length => {
                let (value, more) = left.split_at_checked(length as usize)?;
                left = more;
                Some(value.to_vec())
            }
        };
        values.push(value);
    }
    left.is_empty().then_some(values)
}

/// A message inside the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Streamed<'b> {
    /// Part of the WAL.
    Wal {
        start: Lsn,
        /// The end of the server's WAL.
        end: Lsn,
        bytes: &'b [u8],
    },
    /// A keepalive message.
    Keepalive {
        end: Lsn,
        /// The server requests an immediate reply.
        wants_reply: bool,
    },
}

impl<'b> Streamed<'b> {
    pub fn parse(content: &'b [u8]) -> Option<Streamed<'b>> {
        let (kind, left) = content.split_first()?;
        match kind {
            b'w' => {
                let (start, left) = left.split_first_chunk::<8>()?;
                let (end, left) = left.split_first_chunk::<8>()?;
                let (_clock, bytes) = left.split_first_chunk::<8>()?;
                let (start, end) = (Lsn(u64::from_be_bytes(*start)), Lsn(u64::from_be_bytes(*end)));
                // No LSN follows the largest LSN.
                start.0.checked_add(bytes.len() as u64)?;
                Some(Streamed::Wal { start, end, bytes })
            }
            b'k' => {
                let (end, left) = left.split_first_chunk::<8>()?;
                let (_clock, left) = left.split_first_chunk::<8>()?;
                let [wants_reply] = left else { return None };
                let end = Lsn(u64::from_be_bytes(*end));
                Some(Streamed::Keepalive { end, wants_reply: *wants_reply != 0 })
            }
            _ => None,
        }
    }
}

/// The receiver's positions that are reported to the server.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// The end of the received WAL.
    pub received: Lsn,
    /// The end LSN of the durable WAL. The server considers commits before this LSN safe.
    pub flushed: Lsn,
}

/// Encodes a complete status update. The position of applied WAL is always invalid, because the receiver does
/// not apply WAL.
pub(super) fn status_update(progress: Progress, micros_since_2000: i64, wants_reply: bool) -> Vec<u8> {
    const CONTENT_BYTES: u32 = 1 + 4 * 8 + 1;
    let mut message = vec![b'd'];
    message.extend((CONTENT_BYTES + 4).to_be_bytes());
    message.push(b'r');
    for position in [progress.received, progress.flushed, Lsn::INVALID] {
        message.extend(position.0.to_be_bytes());
    }
    message.extend(micros_since_2000.to_be_bytes());
    message.push(u8::from(wants_reply));
    message
}

/// The switch from one timeline to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextTimeline {
    /// The other timeline.
    pub timeline: Timeline,
    /// The first LSN of the new timeline.
    pub start: Lsn,
}

/// Reads messages as a client does and returns their number; for fuzzing.
///
/// # Errors
/// An invalid message.
pub fn read_messages(mut bytes: &[u8]) -> Result<usize, String> {
    let mut count = 0;
    loop {
        let length = match begin(bytes)? {
            Begin::Part(_) => return Ok(count),
            Begin::Whole(length) => length,
        };
        let (message, left) = bytes.split_at(length);
        let message = Message::whole(message);
        match message.kind {
            b'R' => drop(Authentication::parse(message.content)),
            b'E' | b'N' => drop(parse_error(message.content)),
            b'D' => drop(parse_row(message.content)),
            b'd' => {
                if let Some(Streamed::Wal { start, bytes, .. }) = Streamed::parse(message.content) {
                    start.plus(bytes.len() as u64);
                }
            }
            _ => {}
        }
        bytes = left;
        count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend((content.len() as u32 + 4).to_be_bytes());
        bytes.extend(content);
        bytes
    }

    #[test]
    fn a_message_begins_with_its_length_and_ends_there() {
        let bytes = message(b'Z', b"I");
        for cut in 0..bytes.len() {
            let needed = if cut < HEADER_BYTES { HEADER_BYTES } else { bytes.len() };
            assert_eq!(begin(&bytes[..cut]), Ok(Begin::Part(needed)), "cut at {cut}");
        }
        assert_eq!(begin(&bytes), Ok(Begin::Whole(bytes.len())));
        assert_eq!(Message::whole(&bytes), Message { kind: b'Z', content: b"I" });
        for length in [0_u32, 3, u32::MAX, 1 << 30] {
            let mut bytes = vec![b'd'];
            bytes.extend(length.to_be_bytes());
            assert!(begin(&bytes).is_err(), "a length of {length}");
        }
    }

    #[test]
    fn rows_have_as_many_values_as_they_say() {
        let row = [&[0, 3][..], &[0, 0, 0, 2], b"ab", &[255; 4], &[0, 0, 0, 0]].concat();
        let values = Some(vec![Some(b"ab".to_vec()), None, Some(Vec::new())]);
        assert_eq!(parse_row(&row), values);
        for cut in 0..row.len() {
            assert_eq!(parse_row(&row[..cut]), None, "cut at {cut}");
        }
        assert_eq!(parse_row(&[&row[..], b"x"].concat()), None);
    }

    #[test]
    fn the_stream_has_log_and_signs_of_life() {
        let numbers = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
        let wal = [&b"w"[..], &numbers(&[16, 32, 7]), b"log"].concat();
        let expected = Streamed::Wal { start: Lsn(16), end: Lsn(32), bytes: b"log" };
        assert_eq!(Streamed::parse(&wal), Some(expected));
        let alive = [&b"k"[..], &numbers(&[32, 7]), &[1]].concat();
        let expected = Streamed::Keepalive { end: Lsn(32), wants_reply: true };
        assert_eq!(Streamed::parse(&alive), Some(expected));
        let beyond = [&b"w"[..], &numbers(&[u64::MAX - 1, 0, 7]), b"log"].concat();
        for bytes in [&b""[..], b"x", &wal[..24], &alive[..17], &beyond] {
            assert_eq!(Streamed::parse(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn an_error_has_its_fields() {
        let content = b"SFATAL\0VFATAL\0C58P01\0Mgone\0Dwhy\0Hdo\0Fx.c\0\0";
        let expected = ServerError {
            severity: "FATAL".to_owned(),
            code: "58P01".to_owned(),
            message: "gone".to_owned(),
            detail: "why".to_owned(),
            hint: "do".to_owned(),
        };
        assert_eq!(parse_error(content), expected);
    }
}
