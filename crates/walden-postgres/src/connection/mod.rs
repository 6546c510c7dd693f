//! Connections to PostgreSQL servers, as libpq makes them: the same connection strings and URLs, environment variables, service and
//! password files, and TLS with the same `sslmode`s.
//!
//! Documentation: "Database Connection Control Functions" and "SSL Support" in PostgreSQL's chapter on libpq; `fe-connect.c` decides.

mod client;
pub(crate) mod hint;
mod parameters;
mod passwords;
mod text;
mod tls;

use std::path::{Path, PathBuf};
use std::time::Duration;

use postgres::error::SqlState;
use tokio::runtime::Builder;
use tokio_postgres_rustls::MakeRustlsConnect;

pub use client::{Client, QueryError};
pub use parameters::{Endpoint, Parameters};
pub use tls::TlsMode;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The connection string, a service file or a variable cannot be used.
    #[error("cannot use {place}: {problem}")]
    Parameter {
        /// Where it is written.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of certificates or keys cannot be used.
    #[error("cannot use {} for TLS: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The operating system has nothing to connect with.
    #[error("cannot prepare a connection: {0}")]
    Runtime(#[source] std::io::Error),
    /// The server accepts the connection, and does not let us in within the time limit.
    #[error(
        "cannot connect to {place}: expected a PostgreSQL server to complete the login within {seconds} s (connect_timeout), found none"
    )]
    Silent {
        /// Host and port, or the folder of the socket.
        place: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The server cannot be reached or refuses the connection.
    #[error("cannot connect to {place}: {}{notes}", walden_source::error_text(.source))]
    Server {
        /// Host and port, or the folder of the socket.
        place: String,
        /// What else the user should know, in parentheses.
        notes: String,
        /// Why.
        #[source]
        source: postgres::Error,
    },
}

impl ConnectionError {
    /// For errors of servers that want a password.
    pub(crate) fn unused_password_file(file: &Path) -> String {
        format!(
            " ({} was not used, as others may access it: its permissions should be u=rw (0600) or less)",
            file.display()
        )
    }
}

/// Connects to a server; what `conninfo` leaves out comes from where libpq takes it, and without a database's name any will do.
///
/// # Errors
/// Parameters and files that cannot be used, and a server that does not let us in.
pub fn connect(conninfo: &str) -> Result<Client, ConnectionError> {
    Parameters::parse(conninfo)?.connect_anywhere()
}

/// Whether a connection string itself has a password, which every user of the machine can see in the
/// arguments of a process.
pub fn has_password(conninfo: &str) -> bool {
    let parameters = text::parse(conninfo).unwrap_or_default();
    parameters.iter().any(|(name, value)| name == "password" && !value.is_empty())
}

impl Parameters {
    /// Connects to the database that is named, else to `postgres` or `template1`.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn connect_anywhere(&self) -> Result<Client, ConnectionError> {
        if self.get("dbname").is_some() {
            return self.connect();
        }
        match self.with("dbname", "postgres").connect() {
            Err(ConnectionError::Server { source, .. })
                if source.code() == Some(&SqlState::INVALID_CATALOG_NAME) =>
            {
                self.with("dbname", "template1").connect()
            }
            other => other,
        }
    }

    /// Connects to the first of the hosts that lets us in. Names in queries are those of the system catalogs.
    ///
    /// # Errors
    /// As [`connect`]; of several hosts, the last one's.
    pub fn connect(&self) -> Result<Client, ConnectionError> {
        let endpoints = self.endpoints()?;
        let mut last = None;
        for endpoint in &endpoints {
            match self.connect_to(endpoint) {
                Ok(client) => return Ok(client),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| ConnectionError::Parameter {
            place: "the connection string".to_owned(),
            problem: "expected a host, found none".to_owned(),
        }))
    }

    fn connect_to(&self, endpoint: &Endpoint) -> Result<Client, ConnectionError> {
        let mode = self.tls_mode_of(endpoint)?;
        let config = self.config(endpoint)?;
        let tls = match mode {
            TlsMode::Disable => None,
            _ => Some(MakeRustlsConnect::new(self.tls_config()?)),
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(ConnectionError::Runtime)?;
        match Client::connect(runtime, &config, mode, tls) {
            Ok(Some(client)) => Ok(client),
            Ok(None) => Err(ConnectionError::Silent {
                place: endpoint.to_string(),
                seconds: config.get_connect_timeout().map_or(0, Duration::as_secs),
            }),
            Err(source) => Err(ConnectionError::Server {
                notes: self.notes(endpoint, mode, &source),
                place: endpoint.to_string(),
                source,
            }),
        }
    }

    /// What was demanded of TLS, and what was not used.
    fn notes(&self, endpoint: &Endpoint, mode: TlsMode, error: &postgres::Error) -> String {
        let mut notes = match is_of_tls(error) {
            true => self.describe_tls(mode),
            false => String::new(),
        };
        if let Some(file) = self.unused_password_file(endpoint) {
            notes += &ConnectionError::unused_password_file(&file);
        }
        notes
    }
}

fn is_of_tls(error: &postgres::Error) -> bool {
    // The client library has no other way to say it.
    error.to_string().starts_with("error performing TLS handshake")
}
