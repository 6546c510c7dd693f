//! Servers as sources: those that connection strings name, and those that run on this machine.

use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use walden_archiving::commands::word as shell_word;
use walden_postgres::connection::is_connection_string;
use walden_server::account;
use walden_server::programs::find_in_path;
use walden_watch::locate::find_data_directory;
use walden_watch::running::{self, RunningServer};

/// Replaces connection strings among sources by the data directories of their servers. Returns the sources
/// and the connection strings.
pub fn local_sources(sources: impl IntoIterator<Item = PathBuf>) -> Result<(Vec<PathBuf>, Vec<String>)> {
    let mut found = (Vec::new(), Vec::new());
    for source in sources {
        if is_connection_string(&source) {
            let dsn = source.to_string_lossy().into_owned();
            found.0.push(find_data_directory(&dsn)?);
            found.1.push(dsn);
        } else {
            found.0.push(source);
        }
    }
    Ok(found)
}

/// Returns the message of a command without a source: the servers of this machine, with a command for each.
pub fn without_source(command: &str) -> String {
    let mut text = format!(
        "error: walden {command} needs a source: a data directory, its pg_wal folder, an archive of WAL, segments, or a connection string\n\n"
    );
    let servers = running::servers();
    if servers.is_empty() {
        text += "This user sees no PostgreSQL server on this machine. With the files of a server on another machine:\n";
        let _ = writeln!(text, "  walden {command} /archive/wal");
        return text;
    }
    text += "PostgreSQL servers on this machine, with the command for each:\n";
    for server in &servers {
        let version = server.version.as_ref().map_or(String::new(), |version| format!(" {version}"));
        let port = server.file.as_ref().and_then(|file| file.port);
        let port = port.map_or(String::new(), |port| format!(", port {port}"));
        let _ = writeln!(
            text,
            "\n  PostgreSQL{version} in {}{port}, user {}",
            server.data.display(),
            server.owner
        );
        for (line, what) in commands(command, server) {
            let _ = writeln!(text, "    {line}\n      {what}");
        }
    }
    if let Some(note) = closed_program(&servers) {
        let _ = write!(text, "\n{note}");
    }
    text
}

/// Returns the commands for a server, with descriptions.
fn commands(command: &str, server: &RunningServer) -> Vec<(String, &'static str)> {
    let own = rustix::process::geteuid();
    let program = invoked_as();
    let as_owner = match own.as_raw() == server.uid {
        true => String::new(),
        false if own.is_root() && find_in_path("sudo").is_none() => {
            format!("runuser -u {} -- ", shell_word(&server.owner))
        }
        false => format!("sudo -u {} ", shell_word(&server.owner)),
    };
    let file = server.file.as_ref();
    let mut lines = Vec::new();
    if let Some((host, port)) = file.and_then(|file| Some((file.host.as_deref()?, file.port?))) {
        let dsn = shell_word(&format!("host={} port={port}", connection_value(host)));
        lines.push((
            format!("{as_owner}{program} {command} {dsn}"),
            "with the names of tables and indexes, which the server is asked for",
        ));
    }
    let reader = if own.is_root() { "" } else { &as_owner };
    let data = shell_word(&server.data.to_string_lossy());
    lines.push((format!("{reader}{program} {command} {data}"), "from the files alone"));
    lines
}

/// Formats a value of a connection string, quoted if necessary.
fn connection_value(value: &str) -> String {
    match value.contains([' ', '\'', '\\']) {
        true => format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'")),
        false => value.to_owned(),
    }
}

/// Returns this program as the user invoked it: by name if the shell found it in `PATH`, otherwise by its
/// full path.
fn invoked_as() -> String {
    let first = std::env::args().next().unwrap_or_default();
    match first.contains('/') {
        true => shell_word(&crate::archive::program()),
        false => "walden".to_owned(),
    }
}

/// Returns a note if the owner of a server cannot execute this program's file.
fn closed_program(servers: &[RunningServer]) -> Option<String> {
    let program = PathBuf::from(crate::archive::program());
    let own = rustix::process::geteuid().as_raw();
    let is_open =
        |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
    let owns = |uid: u32| std::fs::metadata(&program).is_ok_and(|found| found.uid() == uid);
    let is_closed = program.ancestors().any(|path| !is_open(path));
    let other = servers.iter().find(|server| server.uid != own && !owns(server.uid))?;
    (is_closed && account::is_root()).then(|| {
        let program = program.display();
        let owner = &other.owner;
        format!(
            "{owner} may not run {program}: install -m 755 {program} /usr/local/bin/walden, and call that\n"
        )
    })
}

#[cfg(test)]
mod tests {
    use walden_watch::process::PostmasterFile;

    use super::*;

    #[test]
    fn commands_are_those_of_a_shell() {
        let file = PostmasterFile {
            host: Some("/run/it's".to_owned()),
            port: Some(5433),
            ..PostmasterFile::default()
        };
        let uid = rustix::process::geteuid().as_raw();
        let data = PathBuf::from("/data of/main");
        let server =
            RunningServer { data, owner: "postgres".to_owned(), uid, version: None, file: Some(file) };
        let lines: Vec<String> = commands("explain", &server).into_iter().map(|(line, _)| line).collect();
        assert!(lines[0].ends_with(r#" explain 'host='\''/run/it\'\''s'\'' port=5433'"#), "{}", lines[0]);
        assert!(lines[1].ends_with(" explain '/data of/main'"), "{}", lines[1]);
        let other = RunningServer { uid: uid + 1, ..server };
        let line = &commands("explain", &other)[0].0;
        assert!(
            line.starts_with("sudo -u postgres ") || line.starts_with("runuser -u postgres -- "),
            "{line}"
        );
    }
}
