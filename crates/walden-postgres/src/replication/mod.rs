//! A client of physical streaming replication, which receives a server's WAL while it is written.
//!
//! [`Replication::connect`] takes the parameters of libpq ([`crate::connection`]). The functions send the
//! commands of `walsender`. After [`Replication::start`], [`Replication::receive`] returns WAL and
//! [`Replication::report`] reports the durable position.
//!
//! The client uses threads rather than an asynchronous runtime: there is one connection per server, whose
//! thread waits for the disk as often as for the network. Published clients lack copying in both directions
//! (`tokio-postgres`) or acknowledge WAL on their own, but only the caller may decide to acknowledge.

mod base_backup;
mod handshake;
mod message;
mod transport;

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use walden_format::lsn::{Lsn, SegmentSize, Timeline};
use walden_format::payload::Timestamp;

use self::message::{Begin, Message, Streamed};
use self::transport::Transport;
use crate::connection::{ConnectionError, Parameters, QueryError, hint};

pub use base_backup::{BackupArchive, BackupBegin, BackupPart, BackupStream, BaseBackupOptions};
pub use message::{NextTimeline, Progress, read_messages};

/// Longest time for the answer to a command.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Minimum free space in the buffer before a read, in bytes.
const READ_BYTES: usize = 128 << 10;
/// Most notices of a server that are kept.
const MAX_NOTICES: usize = 20;
/// Initial size of the buffer. Its unused bytes move to the start when less than [`READ_BYTES`] are free.
const BUFFER_BYTES: usize = 1 << 20;

/// An error reported by a server.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ServerError {
    /// `ERROR`, `FATAL` or `PANIC`, in the server's language.
    pub severity: String,
    /// The SQLSTATE, five characters.
    pub code: String,
    /// The primary message as the server sent it.
    pub message: String,
    /// Further details, possibly empty.
    pub detail: String,
    /// The server's hint, possibly empty.
    pub hint: String,
}

impl ServerError {
    /// Creates an error with a SQLSTATE and no texts.
    pub fn with_code(code: &str) -> ServerError {
        ServerError { code: code.to_owned(), ..ServerError::default() }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerError { severity, message, detail, hint, code } = self;
        write!(f, "{severity}: {message}")?;
        if !detail.is_empty() {
            write!(f, ": {detail}")?;
        }
        if !hint.is_empty() {
            write!(f, " ({hint})")?;
        }
        write!(f, " (SQLSTATE {code})")
    }
}

impl std::error::Error for ServerError {}

/// Why WAL cannot be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicationError {
    /// Invalid parameters or files.
    #[error(transparent)]
    Parameters(#[from] ConnectionError),
    /// The server cannot be reached.
    #[error("cannot connect to {place}{notes}")]
    Connect {
        /// Host and port, or the folder of the socket.
        place: String,
        /// Further information for the user, in parentheses.
        notes: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server does not support TLS, or its certificate is not trusted.
    #[error("cannot connect to {place} with TLS: {problem}{notes}")]
    Tls {
        /// Host and port, or the folder of the socket.
        place: String,
        /// The expected and the found value.
        problem: String,
        /// The demanded TLS parameters, in parentheses.
        notes: String,
    },
    /// The server refuses the login, or is not trusted.
    #[error("cannot log in to {place}: {problem}{notes}")]
    Authentication {
        /// Host and port, or the folder of the socket.
        place: String,
        /// The expected and the found value.
        problem: String,
        /// Further information for the user, in parentheses.
        notes: String,
    },
    /// The server reports an error.
    #[error("the server reports {0}")]
    Server(ServerError),
    /// The server sends an unexpected message.
    #[error("the server's answer: expected {expected}, found {found}")]
    Protocol {
        /// The expected message.
        expected: &'static str,
        /// The message found.
        found: String,
    },
    /// The connection is lost.
    #[error("the connection to the server is lost")]
    Lost(#[source] io::Error),
    /// The server has ended the connection properly, for example at its shutdown.
    #[error("the server has closed the connection")]
    Closed,
}

impl ReplicationError {
    /// Returns the error that the server reports, if it is one.
    pub fn server_error(&self) -> Option<&ServerError> {
        match self {
            ReplicationError::Server(error) => Some(error),
            _ => None,
        }
    }
}

walden_format::diagnostics! { ReplicationError {
    Self::Parameters(error) => of(error),
    Self::Connect { source, .. } => "replication-unreachable": hint::hint_of_io(Some(source)),
    Self::Tls { .. } => "replication-tls": hint::TLS,
    Self::Authentication { .. } => "replication-authentication": hint::PASSWORD,
    Self::Server(error) => "replication-server": hint::hint_of_sqlstate(&error.code, &error.message),
    Self::Protocol { .. } => "replication-protocol": "check that host and port are those of a PostgreSQL server, and not of a connection pooler",
    Self::Lost(_) | Self::Closed => "replication-lost",
} }

/// A server's identity and WAL position (`IDENTIFY_SYSTEM`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct System {
    /// The system identifier.
    pub system_id: u64,
    /// The timeline that the server writes or, as a standby, replays.
    pub timeline: Timeline,
    /// The end of the server's durable WAL.
    pub flushed: Lsn,
}

/// The fields of `READ_REPLICATION_SLOT` for a replication slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The oldest position that the server keeps for the slot, and its timeline; `None` if the slot was never
    /// used.
    pub restart: Option<(Lsn, Timeline)>,
}

/// Why a position cannot be read by SQL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// There is no ordinary connection.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The query fails.
    #[error("cannot read pg_replication_slots")]
    Query(#[from] QueryError),
}

walden_format::diagnostics! { SlotError {
    Self::Connection(error) => of(error),
    Self::Query(_) => none,
} }

/// Returns the oldest position that a server keeps for a slot, or `None` if the slot was never used or does
/// not exist. Uses an ordinary connection, because replication connections have no command for this before
/// PostgreSQL 15.
///
/// # Errors
/// Errors of the ordinary connection and of the server.
pub fn slot_restart_by_sql(parameters: &Parameters, name: &str) -> Result<Option<Lsn>, SlotError> {
    let query = "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
    let mut client = parameters.connect_anywhere()?;
    let Some(row) = client.query_opt(query, &[&name])? else { return Ok(None) };
    let restart: Option<String> = row.try_get(0).map_err(QueryError::from)?;
    Ok(restart.and_then(|lsn| lsn.parse().ok()))
}

/// An SQL condition on `pg_replication_slots` (13 and later): the server has invalidated the slot, which
/// therefore keeps no WAL. While a client streams with such a slot, PostgreSQL 16 and 17 show it as
/// `unreserved`. Other slots are `unreserved` only after they have exceeded `max_slot_wal_keep_size`
/// (`pg_get_replication_slots` in `slotfuncs.c`).
pub const SLOT_IS_LOST: &str =
    "coalesce(wal_status = 'lost' OR wal_status = 'unreserved' AND safe_wal_size > 0, false)";

/// Returns whether a server (13 or later) has invalidated a slot.
///
/// # Errors
/// Errors of the ordinary connection and of the server.
pub fn slot_is_lost_by_sql(parameters: &Parameters, name: &str) -> Result<bool, SlotError> {
    let query = format!("SELECT {SLOT_IS_LOST} FROM pg_replication_slots WHERE slot_name = $1");
    let mut client = parameters.connect_anywhere()?;
    let Some(row) = client.query_opt(&query, &[&name])? else { return Ok(false) };
    Ok(row.try_get(0).map_err(QueryError::from)?)
}

/// Returns the names of the files in a server's `pg_wal`, over an ordinary connection.
///
/// # Errors
/// Errors of the ordinary connection and of the server, for example for a user without the privileges of
/// `pg_monitor`.
pub fn wal_files_by_sql(parameters: &Parameters) -> Result<Vec<String>, SlotError> {
    let mut client = parameters.connect_anywhere()?;
    let rows = client.query("SELECT name FROM pg_ls_waldir()", &[])?;
    rows.iter().map(|row| Ok(row.try_get(0).map_err(QueryError::from)?)).collect()
}

/// The result of requesting WAL from a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Started {
    /// The server streams WAL.
    Streaming,
    /// The timeline has ended.
    Ended(NextTimeline),
}

/// A received message.
#[derive(PartialEq, Eq, Debug)]
pub enum Received<'b> {
    /// Part of the WAL.
    Wal {
        /// The position of its first byte.
        start: Lsn,
        /// The end of the server's WAL.
        server_end: Lsn,
        /// The bytes.
        bytes: &'b [u8],
    },
    /// A keepalive message.
    Keepalive {
        /// The end of the server's WAL.
        server_end: Lsn,
        /// The server requests an immediate report.
        wants_reply: bool,
    },
    /// The timeline has ended. The server sends no more WAL on this connection until the next
    /// [`Replication::start`].
    EndOfTimeline(NextTimeline),
    /// Nothing is available yet.
    Nothing,
}

/// A replication connection.
pub struct Replication {
    transport: Transport,
    /// Received bytes; the bytes from `taken` to `filled` are not used yet.
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
    /// The server's version, such as `15.18 (Debian 15.18-1)`.
    version: String,
    place: String,
    heard: Instant,
    /// Warnings and notices of the server since they were last taken, at most [`MAX_NOTICES`].
    notices: Vec<String>,
}

impl Replication {
    /// Connects to the first host that accepts the connection.
    ///
    /// # Errors
    /// Invalid parameters, or the reason why connecting failed; with several hosts, the reason of the last
    /// host.
    pub fn connect(parameters: &Parameters) -> Result<Replication, ReplicationError> {
        Replication::connect_observed(parameters, &mut || {})
    }

    /// As [`Replication::connect`], and calls `before_each` before each host: each has its own time limit,
    /// and all together may take long.
    ///
    /// # Errors
    /// The errors of [`Replication::connect`].
    pub fn connect_observed(
        parameters: &Parameters,
        before_each: &mut dyn FnMut(),
    ) -> Result<Replication, ReplicationError> {
        let mut last = None;
        for endpoint in parameters.endpoints()? {
            before_each();
            match handshake::connect(parameters, &endpoint) {
                Ok(replication) => return Ok(replication),
                Err(error) => last = Some(error),
            }
        }
        let (expected, found) = ("a host to connect to", "none".to_owned());
        Err(last.unwrap_or(ReplicationError::Protocol { expected, found }))
    }

    fn new(transport: Transport, place: String) -> Replication {
        let (version, heard) = (String::new(), Instant::now());
        let (buffer, notices) = (vec![0; BUFFER_BYTES], Vec::new());
        Replication { transport, buffer, taken: 0, filled: 0, version, place, heard, notices }
    }

    /// Returns host and port, or the folder of the socket.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the server's version, such as `15.18 (Debian 15.18-1)`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the server's major version, or `None` if it cannot be parsed.
    pub fn major(&self) -> Option<u32> {
        major_of(&self.version)
    }

    /// Returns whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.transport.is_encrypted()
    }

    /// Returns when the server last sent anything.
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Reads the server's identity and WAL position.
    ///
    /// # Errors
    /// As for all commands: an error that the server reports, an invalid answer, a lost connection.
    pub fn identify(&mut self) -> Result<System, ReplicationError> {
        let row = self.one_row("IDENTIFY_SYSTEM")?;
        let text = |at: usize| row.get(at).and_then(Option::as_deref).map(String::from_utf8_lossy);
        let system = || {
            let system_id = text(0)?.parse().ok()?;
            let (timeline, flushed) = (text(1)?.parse().ok()?, text(2)?.parse().ok()?);
            Some(System { system_id, timeline, flushed })
        };
        system().ok_or_else(|| unexpected("a system identifier, a timeline and a position", &row))
    }

    /// Returns the server's segment size.
    ///
    /// # Errors
    /// The errors of [`Replication::identify`].
    pub fn segment_size(&mut self) -> Result<SegmentSize, ReplicationError> {
        let row = self.one_row("SHOW wal_segment_size")?;
        let text = row.first().cloned().flatten().unwrap_or_default();
        parse_size(&text)
            .and_then(SegmentSize::new)
            .ok_or_else(|| unexpected("the size of segments, such as 16MB", &row))
    }

    /// Returns whether the server supports [`Replication::read_slot`], which needs PostgreSQL 15 or newer.
    pub fn can_read_slots(&self) -> bool {
        self.major() >= Some(15)
    }

    /// Reads a slot of a server that [supports it](Replication::can_read_slots). Returns `None` if there is
    /// none of this name.
    ///
    /// # Errors
    /// The errors of [`Replication::identify`].
    pub fn read_slot(&mut self, name: &str) -> Result<Option<Slot>, ReplicationError> {
        let row = self.one_row(&format!("READ_REPLICATION_SLOT {}", quote(name)))?;
        let text = |at: usize| row.get(at).and_then(Option::as_deref).map(String::from_utf8_lossy);
        if text(0).is_none() {
            return Ok(None);
        }
        let restart = || Some((text(1)?.parse().ok()?, text(2)?.parse().ok()?));
        Ok(Some(Slot { restart: restart() }))
    }

    /// Creates a physical slot, for which the server keeps WAL from now on.
    ///
    /// # Errors
    /// The errors of [`Replication::identify`]; SQLSTATE 42710 if a slot of this name exists.
    pub fn create_slot(&mut self, name: &str) -> Result<(), ReplicationError> {
        let command = format!("CREATE_REPLICATION_SLOT {} PHYSICAL RESERVE_WAL", quote(name));
        self.one_row(&command).map(drop)
    }

    /// Drops a slot that no client uses.
    ///
    /// # Errors
    /// The errors of [`Replication::identify`]; SQLSTATE 55006 if a client uses the slot.
    pub fn drop_slot(&mut self, name: &str) -> Result<(), ReplicationError> {
        self.send_query(&format!("DROP_REPLICATION_SLOT {}", quote(name)))?;
        self.rows().map(drop)
    }

    /// Returns the history file of a timeline.
    ///
    /// # Errors
    /// The errors of [`Replication::identify`].
    pub fn timeline_history(&mut self, timeline: Timeline) -> Result<Vec<u8>, ReplicationError> {
        let row = self.one_row(&format!("TIMELINE_HISTORY {timeline}"))?;
        let content = row.get(1).cloned().flatten();
        content.ok_or_else(|| unexpected("a timeline's history", &row))
    }

    /// Requests the WAL of a timeline from a position on.
    ///
    /// # Errors
    /// The errors of [`Replication::identify`].
    pub fn start(
        &mut self,
        slot: Option<&str>,
        timeline: Timeline,
        from: Lsn,
    ) -> Result<Started, ReplicationError> {
        let slot = slot.map(|name| format!("SLOT {} ", quote(name))).unwrap_or_default();
        self.send_query(&format!("START_REPLICATION {slot}PHYSICAL {from} TIMELINE {timeline}"))?;
        self.transport.deadline = Some(Instant::now() + ANSWER_WITHIN);
        let message = self.wait_for_message()?;
        match message.kind {
            // CopyBothResponse.
            b'W' => {
                self.transport.deadline = None;
                Ok(Started::Streaming)
            }
            b'T' => Ok(Started::Ended(self.next_timeline()?)),
            _ => Err(protocol("the start of the stream", &message)),
        }
    }

    /// Returns the next message if one is available, without waiting.
    ///
    /// # Errors
    /// A lost or closed connection, and an error that the server reports.
    pub fn receive(&mut self) -> Result<Received<'_>, ReplicationError> {
        loop {
            if let Some(length) = self.whole_message()? {
                let (from, to) = (self.taken, self.taken + length);
                self.taken = to;
                let is_copy_done = self.buffer.get(from) == Some(&b'c');
                if is_copy_done {
                    return self.end_of_stream().map(Received::EndOfTimeline);
                }
                if !self.is_skipped(from, to) {
                    return streamed(&Message::whole(&self.buffer[from..to]));
                }
                continue;
            }
            match self.read_more() {
                Ok(()) => {}
                Err(ReplicationError::Lost(error)) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Received::Nothing);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until more may have arrived, or `wake` is readable, at most for this time. Useful only after
    /// [`Received::Nothing`].
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn wait(&self, time: Duration, wake: BorrowedFd<'_>) -> Result<(), ReplicationError> {
        self.transport.wait(time, wake).map_err(ReplicationError::Lost)
    }

    /// Reports the received and the durable position. Requests an answer from the server if `wants_reply` is
    /// set.
    ///
    /// # Errors
    /// A lost connection.
    pub fn report(&mut self, progress: Progress, wants_reply: bool) -> Result<(), ReplicationError> {
        let message = message::status_update(progress, now(), wants_reply);
        self.transport.write_all(&message).map_err(ReplicationError::Lost)
    }

    /// Returns whether a message has no meaning here: the server may send notices and parameters at any time.
    fn is_skipped(&self, from: usize, to: usize) -> bool {
        matches!(self.buffer[from..to].first(), Some(b'N' | b'S'))
    }

    fn end_of_stream(&mut self) -> Result<NextTimeline, ReplicationError> {
        const COPY_DONE: [u8; 5] = [b'c', 0, 0, 0, 4];
        self.transport.deadline = Some(Instant::now() + ANSWER_WITHIN);
        self.transport.write_all(&COPY_DONE).map_err(ReplicationError::Lost)?;
        let message = self.wait_for_message()?;
        match message.kind {
            b'T' => self.next_timeline(),
            // The stream ends without a next timeline: the server shuts down.
            b'C' => Err(ReplicationError::Closed),
            _ => Err(protocol("the timeline that follows", &message)),
        }
    }

    /// Reads the result with the next timeline, after its row description.
    fn next_timeline(&mut self) -> Result<NextTimeline, ReplicationError> {
        let rows = self.rows()?;
        let row = rows.into_iter().next().unwrap_or_default();
        let text = |at: usize| row.get(at).and_then(Option::as_deref).map(String::from_utf8_lossy);
        let next = || Some(NextTimeline { timeline: text(0)?.parse().ok()?, start: text(1)?.parse().ok()? });
        next().ok_or_else(|| unexpected("the next timeline and its start", &row))
    }

    fn one_row(&mut self, command: &str) -> Result<Vec<Option<Vec<u8>>>, ReplicationError> {
        self.send_query(command)?;
        let rows = self.rows()?;
        rows.into_iter()
            .next()
            .ok_or(ReplicationError::Protocol { expected: "a result of one row", found: "none".to_owned() })
    }

    fn send_query(&mut self, command: &str) -> Result<(), ReplicationError> {
        let mut message = vec![b'Q'];
        message.extend((command.len() as u32 + 5).to_be_bytes());
        message.extend(command.as_bytes());
        message.push(0);
        self.transport.deadline = Some(Instant::now() + ANSWER_WITHIN);
        self.transport.write_all(&message).map_err(ReplicationError::Lost)
    }

    /// Returns the rows of all results of a command, up to its end.
    fn rows(&mut self) -> Result<Vec<Vec<Option<Vec<u8>>>>, ReplicationError> {
        let (mut rows, mut failure) = (Vec::new(), None);
        self.transport.deadline = Some(Instant::now() + ANSWER_WITHIN);
        loop {
            let message = match self.wait_for_message() {
                // Reads on until the server is ready again, so that the connection remains usable.
                Err(ReplicationError::Server(error)) => {
                    failure.get_or_insert(error);
                    continue;
                }
                other => other?,
            };
            match message.kind {
                b'D' => {
                    let row = message::parse_row(message.content);
                    rows.push(row.ok_or_else(|| protocol("a row", &message))?);
                }
                b'Z' => break,
                b'T' | b'C' | b'I' => {}
                _ => return Err(protocol("the result of a command", &message)),
            }
        }
        self.transport.deadline = None;
        match failure {
            Some(error) => Err(ReplicationError::Server(error)),
            None => Ok(rows),
        }
    }

    /// Returns the next message except for notices and parameters, until the deadline.
    fn wait_for_message(&mut self) -> Result<Message<'_>, ReplicationError> {
        let range = self.wait_for_range()?;
        Ok(Message::whole(&self.buffer[range]))
    }

    /// Returns where the next message is in the buffer, as [`Replication::wait_for_message`].
    fn wait_for_range(&mut self) -> Result<Range<usize>, ReplicationError> {
        loop {
            if let Some(length) = self.whole_message()? {
                let (from, to) = (self.taken, self.taken + length);
                self.taken = to;
                if !self.is_skipped(from, to) {
                    let message = Message::whole(&self.buffer[from..to]);
                    if message.kind == b'E' {
                        return Err(ReplicationError::Server(message::parse_error(message.content)));
                    }
                    return Ok(from..to);
                }
                self.keep_parameter(from, to);
                continue;
            }
            match self.read_more() {
                Err(ReplicationError::Lost(error)) if error.kind() == ErrorKind::WouldBlock => {
                    self.transport.wait_until_deadline(false).map_err(ReplicationError::Lost)?;
                }
                other => other?,
            }
        }
    }

    /// Keeps the server's version from a ParameterStatus message, and the text of a notice.
    fn keep_parameter(&mut self, from: usize, to: usize) {
        let message = Message::whole(&self.buffer[from..to]);
        if message.kind == b'N' && self.notices.len() < MAX_NOTICES {
            let notice = message::parse_error(message.content);
            self.notices.push(format!("{}: {}", notice.severity, notice.message));
        }
        let mut texts = message::strings(message.content);
        if message.kind == b'S' && texts.next().as_deref() == Some("server_version") {
            self.version = texts.next().unwrap_or_default();
        }
    }

    /// Returns the length of the first message in the buffer, if it is complete.
    fn whole_message(&mut self) -> Result<Option<usize>, ReplicationError> {
        let received = self.buffer.get(self.taken..self.filled).unwrap_or_default();
        let begin = message::begin(received)
            .map_err(|found| ReplicationError::Protocol { expected: "a message of the protocol", found })?;
        match begin {
            Begin::Whole(length) => Ok(Some(length)),
            Begin::Part(_) => Ok(None),
        }
    }

    fn read_more(&mut self) -> Result<(), ReplicationError> {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        } else if self.buffer.len() - self.filled < READ_BYTES {
            self.buffer.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
            if self.buffer.len() - self.filled < READ_BYTES {
                // Doubles a full buffer: the buffer grows with the received bytes, not with the length that a
                // message states.
                self.buffer.resize(2 * self.buffer.len(), 0);
            }
        }
        match self.transport.read(&mut self.buffer[self.filled..]) {
            Ok(0) => Err(ReplicationError::Lost(ErrorKind::UnexpectedEof.into())),
            Ok(bytes) => {
                self.filled += bytes;
                self.heard = Instant::now();
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(ReplicationError::Lost(error)),
        }
    }
}

fn streamed<'b>(message: &Message<'b>) -> Result<Received<'b>, ReplicationError> {
    match message.kind {
        b'd' => match Streamed::parse(message.content) {
            Some(Streamed::Wal { start, end, bytes }) => Ok(Received::Wal { start, server_end: end, bytes }),
            Some(Streamed::Keepalive { end, wants_reply }) => {
                Ok(Received::Keepalive { server_end: end, wants_reply })
            }
            None => Err(protocol("a part of the log", message)),
        },
        b'E' => Err(ReplicationError::Server(message::parse_error(message.content))),
        // CommandComplete: the server has ended the stream.
        b'C' => Err(ReplicationError::Closed),
        _ => Err(protocol("a part of the log", message)),
    }
}

fn protocol(expected: &'static str, message: &Message<'_>) -> ReplicationError {
    ReplicationError::Protocol { expected, found: message.describe() }
}

fn unexpected(expected: &'static str, row: &[Option<Vec<u8>>]) -> ReplicationError {
    let shown = |value: &Option<Vec<u8>>| match value {
        Some(value) => String::from_utf8_lossy(value).chars().take(80).collect(),
        None => "NULL".to_owned(),
    };
    let found = row.iter().map(shown).collect::<Vec<String>>().join(", ");
    ReplicationError::Protocol { expected, found }
}

/// Returns the major version of a server's version string, which may be `19beta1` or `20devel`.
fn major_of(version: &str) -> Option<u32> {
    let is_behind = |letter: char| !letter.is_ascii_digit();
    version.split(is_behind).next()?.parse().ok()
}

/// Quotes a name.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Parses a size as the server prints it.
fn parse_size(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "kB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Returns the current time in microseconds since 2000-01-01.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_server_prints_them() {
        let sizes = [("16MB", Some(16 << 20)), ("1GB", Some(1 << 30)), ("1024kB", Some(1 << 20))];
        for (text, bytes) in sizes.into_iter().chain([("16", None), ("", None), ("xMB", None)]) {
            assert_eq!(parse_size(text.as_bytes()), bytes, "{text}");
        }
    }

    #[test]
    fn a_servers_version_has_its_major_version_first() {
        let versions = ["15.18 (Debian 15.18-1)", "14.23", "19beta1", "20devel", "9.6.24", "", "x"];
        let majors = versions.map(major_of);
        assert_eq!(majors, [Some(15), Some(14), Some(19), Some(20), Some(9), None, None]);
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
    }
}
