//! The server and folder of an `sftp://` URL, and the command that connects to it.

use std::process::Command;
use std::time::Duration;

/// Options of ssh: ask no questions, notice a server that does not answer, forward nothing.
const OPTIONS: [&str; 4] =
    ["BatchMode=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3", "ClearAllForwardings=yes"];

/// A folder on a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    user: Option<String>,
    host: String,
    port: Option<u16>,
    /// The folder, without a final `/`. Relative to the user's home folder if it does not start with `/`.
    pub folder: String,
    /// The ssh program.
    program: String,
    /// The configuration file instead of the user's and the system's.
    config: Option<String>,
}

impl Target {
    /// Parses `sftp://[USER@]HOST[:PORT]/PATH`. `/~/PATH` is relative to the user's home folder. Nothing is
    /// escaped. Options are `program` and `config`.
    pub fn parse(url: &str, options: &[(String, String)]) -> Result<Target, String> {
        const EXPECTED: &str = "expected sftp://USER@HOST/FOLDER or sftp://USER@HOST:PORT/FOLDER";
        let wrong = |found: &str| format!("{EXPECTED}, found {found}");
        let rest = url.strip_prefix("sftp://").ok_or_else(|| wrong(url))?;
        let (server, path) = rest.split_once('/').ok_or_else(|| wrong("no folder"))?;
        let (user, host) = match server.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, server),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return Err(wrong("a password: ssh uses keys"));
        }
        let (host, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
        };
        let port = match port.map(str::parse::<u16>) {
            Some(Ok(port)) if port > 0 => Some(port),
            Some(_) => return Err(wrong("another port than 1 to 65535")),
            None => None,
        };
        let is_name =
            |text: &str| !text.is_empty() && !text.starts_with('-') && !text.contains(char::is_whitespace);
        if !is_name(host) || user.is_some_and(|user| !is_name(user)) {
            return Err(wrong(server));
        }
        let folder = match path.strip_prefix("~/") {
            Some(relative) => relative.trim_matches('/').to_owned(),
            None => format!("/{}", path.trim_matches('/')),
        };
        let mut parts = folder.trim_start_matches('/').split('/');
        if parts.any(|part| matches!(part, "" | "." | "..") || part.contains('\0')) {
            return Err(wrong(&format!("/{path}")));
        }
        let mut target = Target {
            user: user.map(str::to_owned),
            host: host.to_owned(),
            port,
            folder,
            program: "ssh".to_owned(),
            config: None,
        };
        for (name, value) in options {
            match name.as_str() {
                "program" => target.program.clone_from(value),
                "config" => target.config = Some(value.clone()),
                _ => {
                    return Err(format!(
                        "expected program or config in the settings of an archive in sftp:// ([archive.store], or store of the repository), found {name}"
                    ));
                }
            }
        }
        Ok(target)
    }

    /// Returns the command that runs the server's SFTP subsystem.
    pub fn command(&self, connect_within: Duration) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(config) = &self.config {
            command.args(["-F", config]);
        }
        for option in OPTIONS {
            command.args(["-o", option]);
        }
        command.arg("-o").arg(format!("ConnectTimeout={}", connect_within.as_secs().max(1)));
        if let Some(user) = &self.user {
            command.args(["-l", user]);
        }
        if let Some(port) = self.port {
            command.args(["-p", &port.to_string()]);
        }
        command.args(["-T", "-x", "-s", "--", &self.host, "sftp"]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_server_and_a_folder() {
        let parse = |url: &str| Target::parse(url, &[]);
        let target = parse("sftp://backup@db2.example.net:2222/srv/wal/main/").unwrap();
        assert_eq!((target.user.as_deref(), target.host.as_str()), (Some("backup"), "db2.example.net"));
        assert_eq!((target.port, target.folder.as_str()), (Some(2222), "/srv/wal/main"));
        let target = parse("sftp://[fe80::1%eth0]/~/wal").unwrap();
        assert_eq!(
            (target.user, target.host.as_str(), target.port, target.folder.as_str()),
            (None, "fe80::1%eth0", None, "wal")
        );
        assert_eq!(parse("sftp://[::1]:22/wal").unwrap().port, Some(22));
    }

    #[test]
    fn no_part_of_a_url_becomes_an_option_of_ssh() {
        for url in [
            "sftp://",
            "sftp://host",
            "sftp://host/",
            "sftp://host/~/",
            "sftp:///wal",
            "sftp://-oProxyCommand=x/wal",
            "sftp://-l@host/wal",
            "sftp://user:secret@host/wal",
            "sftp://host:0/wal",
            "sftp://host:65536/wal",
            "sftp://host:x/wal",
            "sftp://a b/wal",
            "sftp://host/wal/../etc",
            "sftp://host/a//b",
        ] {
            let error = Target::parse(url, &[]).unwrap_err();
            assert!(error.starts_with("expected sftp://"), "{url}: {error}");
        }
        let option = ("endpoint".to_owned(), String::new());
        assert!(Target::parse("sftp://host/wal", &[option]).unwrap_err().ends_with("found endpoint"));
    }
}
