//! Hints for the user after a connection failed.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::iter;

use super::ConnectionError;

/// `peer` authentication: the server compares the operating system user with the requested role.
const PEER: &str = "over its socket this server accepts an operating system user only under the role of the same name (peer in pg_hba.conf): \
     run the command as that user (sudo -u postgres walden ..., or as root: runuser -u postgres -- walden ...), or connect to \
     host=localhost with a password";
pub(crate) const PASSWORD: &str = "put the password into a password file (~/.pgpass or PGPASSFILE with a line HOST:PORT:DATABASE:USER:PASSWORD and mode \
     0600), a service file or PGPASSWORD; without a password, connect over the server's socket as the user that owns the server: sudo -u postgres";
pub(crate) const TLS: &str = "sslmode and sslrootcert decide which certificates are accepted: see \"Connections to servers\" in docs/archive-operations.md";

walden_format::diagnostics! { ConnectionError {
    Self::Parameter { .. } => "connection-parameter": "a connection string is as for psql: 'host=/run/postgresql user=postgres' or 'postgresql://USER@HOST:PORT/DATABASE'",
    Self::File { .. } => "connection-tls": TLS,
    Self::Runtime(_) => "connection-limit": "the limits of the process (ulimit -a) may be reached: raise them, or end other processes",
    Self::Silent { .. } => "connection-silent": "check that host and port are those of a PostgreSQL server, and that no firewall drops the answers; connect_timeout waits longer",
    Self::Server { source, .. } => "connection-failed": hint_of_server(source),
} }

fn hint_of_server(error: &postgres::Error) -> &'static str {
    if let Some(reported) = error.as_db_error()
        && let Some(hint) = hint_of_sqlstate(reported.code().code(), reported.message())
    {
        return hint;
    }
    if super::is_of_tls(error) {
        return TLS;
    }
    // The client library has no error code for this.
    if error.to_string().contains("password missing") {
        return PASSWORD;
    }
    hint_of_io(
        iter::successors(error.source(), |cause| (*cause).source()).find_map(|cause| cause.downcast_ref()),
    )
}

/// Returns the next step after an error of the operating system while connecting.
pub(crate) fn hint_of_io(error: Option<&io::Error>) -> &'static str {
    match error.map(io::Error::kind) {
        Some(ErrorKind::PermissionDenied) => {
            "the socket's folder or permissions exclude this user (unix_socket_permissions): run the command as the server's user, such as sudo \
             -u postgres walden ..., or connect to host=localhost"
        }
        _ => {
            "is the server running, and are host and port its own? The host of a socket is its folder (unix_socket_directories); walden explain \
             without a source lists the servers that run on this machine"
        }
    }
}

/// Returns the next step after an error that a server reports before a session starts. Messages may be
/// translated, but the file name `pg_hba.conf` in them is not.
pub(crate) fn hint_of_sqlstate(code: &str, message: &str) -> Option<&'static str> {
    let is_peer = message.to_ascii_lowercase().contains("peer");
    Some(match code {
        "28000" if message.contains("pg_hba.conf") => {
            "the server needs a line for this user, database and address in pg_hba.conf, and a reload (SELECT pg_reload_conf())"
        }
        "28000" if is_peer => PEER,
        "28000" => {
            "check the role's name, and that it may log in (\\du in psql); without user= the role is that of the operating system user: run the command \
                    as the server's user (sudo -u postgres walden ...), or name a role"
        }
        "28P01" => PASSWORD,
        "3D000" => {
            "check the database's name (\\l in psql); any database of the server serves, such as dbname=postgres"
        }
        "53300" => {
            "all connections are in use: end one, or raise max_connections; superusers may use reserved ones"
        }
        "08P01" => {
            "is the address that of a connection pooler? Replication needs a connection to PostgreSQL itself"
        }
        "57P03" => "the server starts, stops or recovers: try again when it accepts connections",
        "42501" => {
            "the user lacks a privilege: GRANT pg_monitor TO it, or for replication ALTER ROLE ... REPLICATION"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart_in_any_language() {
        let hint = |message: &str| hint_of_sqlstate("28000", message).unwrap();
        for peer in [
            "Peer authentication failed for user \"postgres\"",
            "Peer-Authentifizierung für Benutzer »a« fehlgeschlagen",
        ] {
            assert!(hint(peer).contains("sudo -u postgres") && hint(peer).contains("runuser"), "{peer}");
        }
        assert!(
            hint("no pg_hba.conf entry for host \"10.0.0.1\", user \"peer\"")
                .contains("a line for this user")
        );
        assert!(hint("role \"x\" does not exist").contains("the role's name"));
        assert!(hint_of_sqlstate("28P01", "").unwrap().contains(".pgpass"));
        assert!(hint_of_sqlstate("08P01", "").unwrap().contains("pooler"));
        assert_eq!(hint_of_sqlstate("XX000", "Peer"), None);
    }

    #[test]
    fn every_connection_that_fails_has_a_hint() {
        let hint = |conninfo: &str| super::super::connect(conninfo).unwrap_err().hint().unwrap();
        assert!(hint("host=/no/such/folder user=x").contains("unix_socket_directories"));
        assert!(hint("host=x nonsense=1").contains("as for psql"));
        assert!(hint("host=localhost sslmode=verify-full sslrootcert=/no/such/file").contains("sslrootcert"));
    }
}
