//! Connects to PostgreSQL servers as libpq does: the same connection strings and URLs, environment variables,
//! service and password files, and TLS with the same `sslmode` values.
//!
//! Documentation: "Database Connection Control Functions" and "SSL Support" in PostgreSQL's chapter on libpq.
//! The reference is `fe-connect.c`.

mod client;
pub(crate) mod hint;
mod parameters;
mod passwords;
mod text;
mod text_row;
mod tls;

use std::path::{Path, PathBuf};
use std::time::Duration;

use postgres::error::SqlState;
use tokio::runtime::Builder;
use tokio_postgres_rustls::MakeRustlsConnect;

pub use client::{Client, QueryError};
pub use parameters::{Endpoint, Parameters};
pub use text_row::TextRow;
pub use tls::TlsMode;

/// Why connecting failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The connection string, a service file or a variable cannot be used.
    #[error("cannot use {place}: {problem}")]
    Parameter {
        /// The string, file or variable.
        place: String,
        /// The problem with the place.
        problem: String,
    },
    /// A file of certificates or keys cannot be used.
    #[error("cannot use {} for TLS: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem with the file.
        problem: String,
    },
    /// The operating system has nothing to connect with.
    #[error("cannot prepare a connection")]
    Runtime(#[source] std::io::Error),
    /// The server accepts the connection, but does not complete the login within the time limit.
    #[error(
        "cannot connect to {place}: expected a PostgreSQL server to complete the login within {seconds} s (connect_timeout), found none"
    )]
    Silent {
        /// Host and port, or the folder of the socket.
        place: String,
        /// The time limit.
        seconds: u64,
    },
    /// The server cannot be reached or refuses the connection.
    #[error("cannot connect to {place}{notes}")]
    Server {
        /// Host and port, or the folder of the socket.
        place: String,
        /// Further information for the user, in parentheses.
        notes: String,
        /// The cause.
        #[source]
        source: postgres::Error,
    },
}

impl ConnectionError {
    /// Formats the note that the password file was not used, for errors of servers that want a password.
    pub(crate) fn unused_password_file(file: &Path) -> String {
        format!(
            " ({} was not used, as others may access it: its permissions should be u=rw (0600) or less)",
            file.display()
        )
    }
}

/// Connects to a server. Parameters missing in `conninfo` come from the same places as in libpq. Without a
/// database name, connects to `postgres` or `template1`.
///
/// # Errors
/// Invalid parameters and files, and a server that is unreachable or refuses the connection.
pub fn connect(conninfo: &str) -> Result<Client, ConnectionError> {
    Parameters::parse(conninfo)?.connect_anywhere()
}

/// Returns whether the connection string contains a password, which every user of the machine can see in the
/// arguments of a process.
pub fn has_password(conninfo: &str) -> bool {
    let parameters = text::parse(conninfo).unwrap_or_default();
    parameters.iter().any(|(name, value)| name == "password" && !value.is_empty())
}

/// Returns whether a source of WAL is a connection string, and not a file or an archive.
pub fn is_connection_string(source: &Path) -> bool {
    let text = source.to_string_lossy();
    let has_keyword = || {
        let name = text.split_once('=').map_or("", |(name, _)| name.trim());
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
    (is_url || has_keyword()) && !source.exists()
}

impl Parameters {
    /// Connects to the named database, or to `postgres` or `template1` if there is none.
    ///
    /// # Errors
    /// The errors of [`connect`].
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

    /// Connects to the first host that accepts the connection. Names in queries are resolved in `pg_catalog`
    /// only.
    ///
    /// # Errors
    /// The errors of [`connect`]; with several hosts, the error of the last host.
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

    /// Describes the demanded TLS mode and an unused password file.
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
    // The client library has no error code for this.
    error.to_string().starts_with("error performing TLS handshake")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings_are_told_from_files() {
        for text in ["host=db1 port=5432", "host = db1", "postgresql://db1/postgres", "postgres://u@h"] {
            assert!(is_connection_string(Path::new(text)), "{text}");
        }
        for text in [
            "/var/lib/postgresql/18/main",
            "s3://bucket/a=b",
            "/backup/a=b",
            "./host=x",
            "000000010000000000000001",
        ] {
            assert!(!is_connection_string(Path::new(text)), "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("a=b");
        std::fs::create_dir(&named).unwrap();
        assert!(!is_connection_string(&named));
    }
}
