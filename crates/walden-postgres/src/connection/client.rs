//! A connection in which every step has a time limit.
//!
//! The crate `postgres` waits for an answer without a limit, even while closing a connection. With
//! `tokio-postgres`, which has the same protocol, waiting can stop at any time.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use postgres::error::SqlState;
use postgres::types::ToSql;
use postgres::{Error, NoTls, Row, SimpleQueryMessage};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Config, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::TlsMode;
use super::text_row::{self, TextRow};

/// Longest time without an answer to a query. The query may be waiting for locks of other sessions.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Longest time for closing a connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The server does not answer.
    #[error("the server did not answer within {seconds} s")]
    Silent {
        /// The time limit.
        seconds: u64,
    },
    /// The answer has another number of rows.
    #[error("the server's answer has a wrong number of rows: expected one, found {found}")]
    Rows {
        /// Number of rows.
        found: usize,
    },
    /// The server reports an error, or the connection is lost.
    #[error(transparent)]
    Server(#[from] Error),
}

impl QueryError {
    /// Returns the SQLSTATE that the server reports.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            QueryError::Server(error) => error.code(),
            QueryError::Silent { .. } | QueryError::Rows { .. } => None,
        }
    }

    /// Returns whether the server cannot convert a text to the connection's encoding.
    fn is_of_encoding(&self) -> bool {
        let codes = [&SqlState::CHARACTER_NOT_IN_REPERTOIRE, &SqlState::UNTRANSLATABLE_CHARACTER];
        self.code().is_some_and(|code| codes.contains(&code))
    }
}

/// A connection to a server.
pub struct Client {
    // The first field is dropped first, and dropping the client ends the session.
    client: tokio_postgres::Client,
    session: Session,
    limit: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects with the wanted TLS mode. Returns `Ok(None)` if this takes longer than the configuration's
    /// limit.
    pub(super) fn connect(
        runtime: Runtime,
        config: &Config,
        mode: TlsMode,
        tls: Option<MakeRustlsConnect>,
    ) -> Result<Option<Client>, Error> {
        let limit = config.get_connect_timeout().copied();
        let mut session = Session { runtime: Some(runtime), task: None };
        let connected = session.run(async {
            within(limit, async {
                let (client, task) = attempt(config, mode, tls).await?;
                client.batch_execute("SET search_path = pg_catalog").await?;
                Ok((client, task))
            })
            .await
        });
        let Some(connected) = connected.flatten() else { return Ok(None) };
        let (client, task) = connected?;
        session.task = Some(task);
        Ok(Some(Client { client, session, limit: ANSWER_WITHIN }))
    }

    /// Sets the longest time without an answer to a query.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Runs a query without parameters, over the protocol that every connection pooler supports. Returns the
    /// rows as text. Bytes that are not UTF-8, as in names of SQL_ASCII databases, become U+FFFD.
    ///
    /// # Errors
    /// An error of the server, a lost connection, and a server that does not answer.
    pub fn simple_query(&mut self, query: &str) -> Result<Vec<TextRow>, QueryError> {
        self.simple_query_with("", query)
    }

    /// Runs a query as [`Client::simple_query`] does, with settings for the query: statements `SET LOCAL`,
    /// each with a semicolon.
    ///
    /// # Errors
    /// The errors of [`Client::simple_query`].
    pub fn simple_query_with(&mut self, settings: &str, query: &str) -> Result<Vec<TextRow>, QueryError> {
        let error = match self.messages(&format!("{settings} {query}")) {
            Ok(messages) => match text_row::plain(messages) {
                Some(rows) => return Ok(rows),
                None => None,
            },
            Err(error) if error.is_of_encoding() => Some(error),
            Err(error) => return Err(error),
        };
        let escaped = match self.messages(&text_row::without_rows(query)) {
            Ok(messages) => self.messages(&text_row::escaping(settings, query, &messages)),
            Err(error) => Err(error),
        };
        // A statement such as SHOW cannot be part of another statement.
        Ok(text_row::unescape(escaped.map_err(|escaped| error.unwrap_or(escaped))?))
    }

    fn messages(&mut self, query: &str) -> Result<Vec<SimpleQueryMessage>, QueryError> {
        let (client, limit) = (&self.client, self.limit);
        let result = self.session.run(collect(limit, client.simple_query_raw(query)));
        self.with_cause(result)
    }

    /// Runs a query with parameters.
    ///
    /// # Errors
    /// The errors of [`Client::simple_query`].
    pub fn query(&mut self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, QueryError> {
        let (client, limit) = (&self.client, self.limit);
        let parameters = parameters.iter().copied();
        let result = self.session.run(collect(limit, client.query_raw(query, parameters)));
        self.with_cause(result)
    }

    /// Runs a query that returns one row.
    ///
    /// # Errors
    /// The errors of [`Client::simple_query`], and another number of rows.
    pub fn query_one(&mut self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Row, QueryError> {
        self.query_opt(query, parameters)?.ok_or(QueryError::Rows { found: 0 })
    }

    /// Runs a query that returns at most one row.
    ///
    /// # Errors
    /// The errors of [`Client::simple_query`], and more rows.
    pub fn query_opt(
        &mut self,
        query: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, QueryError> {
        let mut rows = self.query(query, parameters)?;
        match rows.len() {
            0 | 1 => Ok(rows.pop()),
            found => Err(QueryError::Rows { found }),
        }
    }

    /// Replaces the error of a closed connection with the reason for closing it.
    fn with_cause<T>(&mut self, result: Option<Result<T, QueryError>>) -> Result<T, QueryError> {
        let result = result.unwrap_or(Err(QueryError::Silent { seconds: self.limit.as_secs() }));
        let is_closed = matches!(&result, Err(QueryError::Server(error)) if error.is_closed());
        match self.session.task.take() {
            // `timeout` panics outside of the runtime, so it is created by the future.
            Some(task) if is_closed => match self.session.run(async { timeout(CLOSE_WITHIN, task).await }) {
                Some(Ok(Ok(Err(cause)))) => Err(cause.into()),
                _ => result,
            },
            task => {
                self.session.task = task;
                result
            }
        }
    }
}

/// The part of a connection that sends and receives.
struct Session {
    /// `None` only while the session is dropped.
    runtime: Option<Runtime>,
    task: Option<Task>,
}

type Task = JoinHandle<Result<(), Error>>;

impl Session {
    /// Runs a step, which has a time limit of its own.
    fn run<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        self.runtime.as_ref().map(|runtime| runtime.block_on(step))
    }
}

impl Drop for Session {
    /// Ends the session on the server. Does not wait for a name server or a network that does not answer.
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if let Some(task) = self.task.take() {
            // It does not matter whether the server receives the message.
            let _ = runtime.block_on(async { timeout(CLOSE_WITHIN, task).await });
        }
        runtime.shutdown_background();
    }
}

/// Connects as libpq does: if the server refuses TLS, tries plain text, and vice versa, as `sslmode` allows.
async fn attempt(
    config: &Config,
    mode: TlsMode,
    tls: Option<MakeRustlsConnect>,
) -> Result<(tokio_postgres::Client, Task), Error> {
    let plain = || start(config, SslMode::Disable, NoTls);
    let Some(tls) = tls else { return plain().await };
    let encrypted = |ssl_mode| start(config, ssl_mode, tls);
    match mode {
        TlsMode::Disable => plain().await,
        TlsMode::Allow => match plain().await {
            Err(error) if is_refused(&error) => encrypted(SslMode::Require).await,
            other => other,
        },
        TlsMode::Prefer => match encrypted(SslMode::Prefer).await {
            Err(error) if is_refused(&error) || super::is_of_tls(&error) => plain().await,
            other => other,
        },
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => encrypted(SslMode::Require).await,
    }
}

async fn start<T>(config: &Config, ssl_mode: SslMode, tls: T) -> Result<(tokio_postgres::Client, Task), Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (client, connection) = config.clone().ssl_mode(ssl_mode).connect(tls).await?;
    Ok((client, tokio::spawn(connection)))
}

/// Returns whether `pg_hba.conf` has no line for this kind of connection. It may have a line for the same
/// connection with or without TLS.
fn is_refused(error: &Error) -> bool {
    error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
}

/// Runs a step. Returns `None` if it takes longer than the limit.
async fn within<T>(limit: Option<Duration>, step: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => timeout(limit, step).await.ok(),
        None => Some(step.await),
    }
}

/// Reads the whole answer. The limit applies to the time until the first part and between two parts.
async fn collect<S, T>(
    limit: Duration,
    answer: impl Future<Output = Result<S, Error>>,
) -> Result<Vec<T>, QueryError>
where
    S: Stream<Item = Result<T, Error>>,
{
    let silent = |_| QueryError::Silent { seconds: limit.as_secs() };
    let mut parts = pin!(timeout(limit, answer).await.map_err(silent)??);
    let mut collected = Vec::new();
    while let Some(part) = timeout(limit, parts.next()).await.map_err(silent)? {
        collected.push(part?);
    }
    Ok(collected)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::super::{ConnectionError, connect};
    use super::*;

    /// ReadyForQuery: the server has completed the login and waits for a query.
    const READY: &[u8] = b"Z\0\0\0\x05I";

    /// Connects to a server that handles its first connection with `serve`.
    fn connect_to(serve: fn(TcpStream) -> io::Result<()>) -> Result<Client, ConnectionError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || serve(listener.accept()?.0));
        connect(&format!("host=127.0.0.1 port={port} user=x dbname=x sslmode=disable connect_timeout=2"))
    }

    fn be_silent(mut stream: TcpStream) -> io::Result<()> {
        io::copy(&mut stream, &mut io::sink()).map(drop)
    }

    fn repeat(mut stream: TcpStream, message: &[u8]) -> io::Result<()> {
        loop {
            stream.write_all(message)?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log_in(stream: &mut TcpStream) -> io::Result<()> {
        let mut request = [0; 1000];
        let _ = stream.read(&mut request)?;
        stream.write_all(&[b"R\0\0\0\x08\0\0\0\0", READY].concat())?;
        let _ = stream.read(&mut request)?;
        stream.write_all(&[b"C\0\0\0\x08SET\0", READY].concat())
    }

    #[test]
    fn a_server_that_does_not_complete_the_login_is_given_up() {
        let servers: [fn(TcpStream) -> io::Result<()>; 4] = [
            be_silent,
            |stream| repeat(stream, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            |mut stream| {
                stream.write_all(b"R\0\0\0\x08\0\0\0\0")?;
                repeat(stream, b"S\0\0\0\x08a\0b\0")
            },
            |stream| repeat(stream, b"R\x7f\xff\xff\xff"),
        ];
        std::thread::scope(|scope| {
            for serve in servers {
                scope.spawn(move || {
                    let started = Instant::now();
                    let error = connect_to(serve).unwrap_err();
                    assert!(matches!(error, ConnectionError::Silent { seconds: 2, .. }), "{error}");
                    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
                });
            }
        });
    }

    #[test]
    fn a_server_that_does_not_answer_a_query_is_given_up() {
        let started = Instant::now();
        let mut client = connect_to(|mut stream| {
            log_in(&mut stream)?;
            be_silent(stream)
        })
        .unwrap();
        client.limit = Duration::from_secs(1);
        for _ in 0..2 {
            let error = client.simple_query("SELECT 1").unwrap_err();
            assert!(matches!(error, QueryError::Silent { seconds: 1 }), "{error}");
        }
        let error = client.query_one("SELECT $1", &[&1]).unwrap_err();
        assert!(matches!(error, QueryError::Silent { .. }), "{error}");
        drop(client);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }

    #[test]
    fn an_answer_that_is_nonsense_is_the_reported_cause() {
        let mut client = connect_to(|mut stream| {
            log_in(&mut stream)?;
            repeat(stream, b"nonsense")
        })
        .unwrap();
        client.limit = Duration::from_secs(1);
        let error = client.simple_query("SELECT 1").unwrap_err();
        assert!(!matches!(&error, QueryError::Server(error) if error.is_closed()), "{error}");
    }

    #[test]
    fn a_lost_connection_is_an_error_of_each_query() {
        let mut client = connect_to(|mut stream| log_in(&mut stream)).unwrap();
        for _ in 0..2 {
            let error = client.simple_query("SELECT 1").unwrap_err();
            assert!(matches!(&error, QueryError::Server(error) if error.code().is_none()), "{error}");
        }
    }
}
