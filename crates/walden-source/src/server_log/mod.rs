//! Reads the server's log in the formats of `log_destination`: csvlog, jsonlog, and stderr with a
//! `log_line_prefix`; plain or compressed.
//!
//! Files are read as streams. At most [`MAX_FIELD`] bytes of each field are kept.

mod csv;
mod json;
mod languages;
mod stderr;

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

pub use self::stderr::Prefix;
use crate::open;

/// Most bytes of a field or a message that are kept.
pub const MAX_FIELD: usize = 64 << 10;

/// An entry of the server's log: its session and transaction, and its text.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Entry {
    /// When it was written, in microseconds since 1970-01-01 UTC. A time zone abbreviation counts as UTC.
    pub time: Option<i64>,
    /// The session: its identifier, or else the process ID.
    pub session: String,
    /// The virtual transaction, `3/42`, if it is logged.
    pub virtual_xid: String,
    /// The top-level transaction; 0 if none is assigned yet, or it is not logged.
    pub xid: u32,
    /// The user.
    pub user: String,
    /// The database.
    pub database: String,
    /// The client's address without its port; `[local]` for a Unix socket.
    pub client: String,
    /// `application_name`
    pub application: String,
    /// The message; that of a logged statement begins in English, whatever `lc_messages` is.
    pub message: String,
    /// The statement that caused it (`STATEMENT`).
    pub statement: String,
}

/// The relevant fields that a server's log has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fields {
    /// Transactions.
    pub xid: bool,
    /// Virtual transactions.
    pub virtual_xid: bool,
    /// Sessions or processes.
    pub session: bool,
    /// Users.
    pub user: bool,
    /// Applications.
    pub application: bool,
    /// Clients.
    pub client: bool,
}

impl Fields {
    const ALL: Fields =
        Fields { xid: true, virtual_xid: true, session: true, user: true, application: true, client: true };
}

/// Why a server's log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file system, or compressed data; the text names the file.
    #[error("cannot read the server's log")]
    Io(#[source] io::Error),
    /// A log in text format whose prefix is not known.
    #[error(
        "cannot read the server's log {}: expected csvlog, jsonlog or lines with a known log_line_prefix, found \"{found}\"; \
         give the server's setting as --log-line-prefix", .path.display()
    )]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The start of its first line.
        found: String,
    },
    /// The prefix does not contain the transaction.
    #[error(
        "cannot join the server's log {}: {} \"{prefix}\" has no %x, the transaction; {}log_line_prefix = '%m [%p] %q%u@%d %a %h %v %x ' \
         has all that is used",
        .path.display(),
        if *.is_guessed { "its lines look like those of log_line_prefix" } else { "log_line_prefix" },
        if *.is_guessed { "if the server's setting is another one, give it as --log-line-prefix; " } else { "" },
    )]
    NoTransaction {
        /// The file.
        path: PathBuf,
        /// The prefix.
        prefix: String,
        /// The prefix was derived from the lines.
        is_guessed: bool,
    },
}

/// Reads a log file and calls `each` with every entry. `prefix` is `log_line_prefix`, for a log in text
/// format.
///
/// # Errors
/// See [`LogError`]. Lines that are not entries are skipped.
pub fn read(path: &Path, prefix: Option<&Prefix>, each: &mut dyn FnMut(Entry)) -> Result<Fields, LogError> {
    read_from(
        BufReader::with_capacity(256 << 10, open::open_text(path).map_err(LogError::Io)?),
        path,
        prefix,
        each,
    )
}

fn read_from(
    mut input: BufReader<impl Read>,
    path: &Path,
    prefix: Option<&Prefix>,
    each: &mut dyn FnMut(Entry),
) -> Result<Fields, LogError> {
    let named = |error: io::Error| {
        let text = error.to_string();
        let has_name = text.contains(&*path.to_string_lossy());
        let text = if has_name { text } else { format!("{}: {text}", path.display()) };
        LogError::Io(io::Error::new(error.kind(), text))
    };
    let each = &mut |mut entry: Entry| {
        entry.message = languages::in_english(entry.message);
        each(entry);
    };
    let start = input.fill_buf().map_err(named)?;
    if start.is_empty() {
        return Ok(Fields::ALL);
    }
    if start[0] == b'{' {
        json::read(&mut input, each).map_err(named)?;
        return Ok(Fields::ALL);
    }
    if csv::looks_like(start) {
        csv::read(&mut input, each).map_err(named)?;
        return Ok(Fields::ALL);
    }
    let first = String::from_utf8_lossy(start.split(|byte| *byte == b'\n').next().unwrap_or_default());
    let found = first.chars().take(80).collect();
    let known = match prefix {
        Some(prefix) => prefix.clone(),
        None => Prefix::usual(start).ok_or_else(|| LogError::Unknown { path: path.to_owned(), found })?,
    };
    if !known.fields.xid {
        let is_guessed = prefix.is_none();
        return Err(LogError::NoTransaction { path: path.to_owned(), prefix: known.text, is_guessed });
    }
    stderr::read(&mut input, &known, each).map_err(named)?;
    Ok(known.fields)
}

/// Returns when the first entry of a log file was written, in microseconds since 1970-01-01 UTC.
///
/// # Errors
/// The errors of [`read`].
pub fn first_time(path: &Path, prefix: Option<&Prefix>) -> Result<Option<i64>, LogError> {
    let mut first = None;
    let start = open::open_text(path).map_err(LogError::Io)?.take(FIRST_BYTES);
    read_from(BufReader::with_capacity(64 << 10, start), path, prefix, &mut |entry| {
        first = first.or(entry.time);
    })?;
    Ok(first)
}

/// Bytes at the start of a file in which the first entry is searched for.
const FIRST_BYTES: u64 = 256 << 10;

/// Reads a line without its line end, at most its first [`MAX_FIELD`] bytes. Returns false at the end of the
/// input.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut has_any = false;
    loop {
        let available = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if available.is_empty() {
            return Ok(has_any);
        }
        has_any = true;
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        line.extend(&part[..part.len().min(MAX_FIELD.saturating_sub(line.len()))]);
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Parses the time of an entry, such as `2026-11-20 22:00:00.123 UTC`.
fn parse_time(text: &str) -> Option<i64> {
    let mut words = text.split(' ');
    let (date, clock) = (words.next()?, words.next()?);
    let time: jiff::civil::DateTime = format!("{date}T{clock}").parse().ok()?;
    let zone = words.next().unwrap_or("UTC");
    let offset = zone.parse::<i32>().ok().filter(|_| zone.starts_with(['+', '-']));
    let seconds = match offset {
        // `+01` or `+0130`
        Some(offset) if zone.len() <= 3 => offset * 3600,
        Some(offset) => offset / 100 * 3600 + offset % 100 * 60,
        None => 0,
    };
    let utc = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_microsecond();
    utc.checked_sub(i64::from(seconds) * 1_000_000)
}

/// Removes the port from a client's address: `10.0.0.1:5432`, `10.0.0.1(5432)`, `[local]`.
fn without_port(client: &str) -> &str {
    if let Some(end) = client.find('(') {
        return &client[..end];
    }
    match client.rsplit_once(':') {
        Some((host, port))
            if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) && !host.is_empty() =>
        {
            host
        }
        _ => client,
    }
}

/// Returns the entries of a text, read through a very small buffer.
#[cfg(test)]
fn entries(
    read: impl FnOnce(&mut BufReader<&[u8]>, &mut dyn FnMut(Entry)) -> io::Result<()>,
    text: &str,
) -> Vec<Entry> {
    let mut all = Vec::new();
    read(&mut BufReader::with_capacity(7, text.as_bytes()), &mut |entry| all.push(entry)).unwrap();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_zones() {
        let utc = parse_time("2026-11-20 22:00:00.125 UTC").unwrap();
        assert_eq!(utc % 1_000_000, 125_000);
        assert_eq!(parse_time("2026-11-20 23:00:00.125 +01"), Some(utc));
        assert_eq!(parse_time("2026-11-20 16:30:00.125 -0530"), Some(utc));
        assert_eq!(parse_time("2026-11-20 22:00:00.125 CET"), Some(utc));
        for bad in ["", "2026", "2026-11-20", "x y z", "2026-13-40 22:00:00"] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_log_must_be_a_regular_file() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("postgresql.log");
        walden_testing::make_fifo(&fifo);
        let error = crate::error_text(&read(&fifo, None, &mut |_| ()).unwrap_err());
        assert!(error.ends_with("postgresql.log: expected a regular file, found a FIFO"), "{error}");
        assert!(first_time(&fifo, None).is_err());
        assert!(crate::names::Names::load(&fifo).is_err());
    }

    #[test]
    fn ports_are_left_out() {
        assert_eq!(without_port("10.0.0.1:5432"), "10.0.0.1");
        assert_eq!(without_port("10.0.0.1(5432)"), "10.0.0.1");
        assert_eq!(without_port("[local]"), "[local]");
        assert_eq!(without_port("fe80::1:5432"), "fe80::1");
        assert_eq!(without_port(""), "");
    }
}
