//! `walden archive init`: a configuration file, and the lines for postgresql.conf.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use walden_archive::Archive;
use walden_archive::probe::Probe;

use super::check;
use crate::configuration::FILE;
use crate::place::Place;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  walden archive init --repo /backup/main -o /etc/walden/walden.toml
  walden archive init --repo s3://backups/main --dsn 'host=/run/postgresql user=postgres'
      also what the server's settings lack
  walden archive init --config /etc/walden/walden.toml
      the archive that a configuration names which is there already
  walden archive init --repo s3://backups/main --recipient age1... --recipient alice=age1...
      an encrypted archive, which these can read; walden archive key generate makes a key pair";

/// Make an archive, write walden.toml, prove that both work, and print the lines for postgresql.conf
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct InitArgs {
    /// The archive: a folder, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    repo: Option<String>,

    /// Make the archive that this configuration names, and write none
    #[arg(long, value_name = "FILE", conflicts_with_all = ["repo", "output"])]
    config: Option<PathBuf>,

    /// Encrypt the archive for whoever has the private key to this public key: age1..., or NAME=age1... (repeatable)
    #[cfg(feature = "encryption")]
    #[arg(long = "recipient", value_name = "RECIPIENT", value_parser = walden_archive::encryption::keys::User::parse)]
    recipients: Vec<walden_archive::encryption::keys::User>,

    /// Where to write the configuration
    #[arg(short, long, value_name = "FILE", default_value = FILE)]
    output: PathBuf,

    /// Also look at the server's settings over this connection: a URL or `host=... user=...`
    #[arg(long, value_name = "DSN")]
    dsn: Option<String>,
}

/// Runs `walden archive init`.
pub fn run(args: &InitArgs) -> Result<ExitCode> {
    let place = match (&args.repo, &args.config) {
        (Some(_), _) if args.output.exists() => bail!(
            "cannot write {0}: it exists already; --config {0} makes the archive that it names, -o names another file",
            args.output.display()
        ),
        // A relative path would mean another folder to each program that reads the file.
        (Some(repo), _) if !repo.contains("://") => {
            Place::of(std::path::absolute(repo)?.display().to_string())
        }
        (Some(repo), _) => Place::of(repo.clone()),
        (None, config) => Place { repo: None, config: config.clone(), identity: None },
    };
    let (archive, section) = place.open()?;
    #[cfg(feature = "encryption")]
    if !args.recipients.is_empty() {
        archive.encrypted().initialise_keys(&args.recipients)?;
    }
    let probe = walden_archive::probe::probe(&archive).context("cannot use the archive")?;
    archive.found()?;
    if let Some(repo) = &place.repo {
        write_configuration(&args.output, repo, &archive)?;
    }
    let program = program();
    let written = args.config.as_ref().map_or("is written", |_| "is as it was");
    let config = std::path::absolute(args.config.as_ref().unwrap_or(&args.output))?.display().to_string();
    let commands = server_commands(&program, &["--config".to_owned(), config.clone()]);
    let [archive_command, restore_command] = &commands;
    let dsn = args.dsn.as_deref().unwrap_or("host=/run/postgresql user=postgres");
    let came_back = match probe {
        Probe { get: Some(_), .. } => "was archived there, came back byte for byte, and was removed",
        Probe { get: None, .. } => {
            "was archived there and removed (a private key would show that it comes back)"
        }
    };
    let check_command = format!("{} archive check --config {}", word(&program), word(&config));
    terminal::print(&format!(
        "{config} {written}, and the archive works: a segment {came_back}.\n\nIn postgresql.conf:\n\n  archive_mode = on\n  archive_command = {archive_command}\n  restore_command = {restore_command}\n\narchive_mode needs a restart. Then let the server's own WAL prove it, from end to end:\n\n  {check_command} --dsn {} --switch\n",
        quoted(dsn)
    ))?;
    if let Some(dsn) = &args.dsn {
        let server = check::describe_server(dsn, &archive, &section, &commands);
        terminal::print(&format!("\nThe server as it is now:\n\n{server}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_configuration(path: &Path, repo: &str, archive: &Archive) -> Result<()> {
    let recipient = match archive.encrypted().recipient()? {
        Some(recipient) => format!(
            "recipient = \"{recipient}\"  # nothing is encrypted to another key\n# identity = \"restore.key\"  # where WAL is restored: the file with the private key of a user\n"
        ),
        None => String::new(),
    };
    let text = format!(
        "# Walden's archive of this cluster's WAL; see `walden archive --help`.\n\n[archive]\nrepo = {}\n{recipient}\n# level = 3            # 1 (fast) to 9 (small)\n# fast_queue = 64      # while more segments wait, they are compressed at level 0\n# look_ahead = 64      # other ready segments that one push archives\n# backlog_warning = 1000         # files that wait, beyond which a push warns and status gives 1\n# backlog_warning_seconds = 900  # seconds that a file waits, beyond which status gives 1\n# prefetch = 16        # segments that lie ready for recovery\n# log = \"/var/log/postgresql/walden.json\"  # push and get append JSON lines to it: status and metrics read them\n\n# [archive.store]      # object stores: what the environment does not say\n# endpoint = \"https://s3.example.net\"\n# region = \"eu-1\"\n",
        serde_json::Value::String(repo.to_owned())
    );
    crate::output::write_text(path, &text)
}

/// The same for the archive of a place, which they name from any working directory.
pub fn commands_of(place: &Place) -> [String; 2] {
    let absolute =
        |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    let mut options = Vec::new();
    if let Ok((_, Some(config))) = place.configuration() {
        options.extend(["--config".to_owned(), absolute(&config)]);
    }
    if let Some(repo) = &place.repo {
        let repo = if repo.contains("://") { repo.clone() } else { absolute(Path::new(repo)) };
        options.extend(["--repo".to_owned(), repo]);
    }
    server_commands(&program(), &options)
}

/// This program's own file.
fn program() -> String {
    std::env::current_exe().map_or("walden".to_owned(), |path| path.display().to_string())
}

/// The values of `archive_command` and `restore_command`, as postgresql.conf has them.
fn server_commands(program: &str, options: &[String]) -> [String; 2] {
    // PostgreSQL replaces what follows a %, and %% by one.
    let word = |text: &str| word(text).replace('%', "%%");
    let (program, options) =
        (word(program), options.iter().map(|text| format!(" {}", word(text))).collect::<String>());
    let setting = |command: String| format!("'{}'", command.replace('\\', "\\\\").replace('\'', "''"));
    [
        setting(format!("{program} archive push{options} %p")),
        setting(format!("{program} archive get{options} %f \"%p\"")),
    ]
}

/// A word for a shell, in quotation marks if it needs them.
fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:,@".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => quoted(text),
    }
}

/// A word for a shell, in quotation marks.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The value of a setting as PostgreSQL reads it (`GUC_scanstr` in `guc-file.l`), and the command as it then runs it.
    fn command_of(setting: &str, file: &str, path: &str) -> String {
        let inner = setting.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')).unwrap();
        let (mut value, mut rest) = (String::new(), inner.chars());
        while let Some(character) = rest.next() {
            match character {
                '\'' => assert_eq!(rest.next(), Some('\''), "the string ends early: {setting}"),
                '\\' => {
                    value.extend(rest.next());
                    continue;
                }
                _ => {}
            }
            value.push(character);
        }
        let (mut command, mut rest) = (String::new(), value.chars());
        while let Some(character) = rest.next() {
            match character {
                '%' => match rest.next() {
                    Some('f') => command.push_str(file),
                    Some('p') => command.push_str(path),
                    Some('%') => command.push('%'),
                    other => panic!("%{other:?} in {value}"),
                },
                other => command.push(other),
            }
        }
        command
    }

    #[test]
    fn plain_paths_are_printed_as_they_are() {
        let options = ["--config".to_owned(), "/etc/walden/18-main.toml".to_owned()];
        let [archive, restore] = server_commands("/usr/bin/walden", &options);
        assert_eq!(archive, "'/usr/bin/walden archive push --config /etc/walden/18-main.toml %p'");
        assert_eq!(restore, "'/usr/bin/walden archive get --config /etc/walden/18-main.toml %f \"%p\"'");
    }

    #[test]
    fn commands_run_a_program_and_name_a_configuration_with_any_characters() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("it's 100%f of \"a\" $HOME \\ path; `x`");
        std::fs::create_dir(&odd).unwrap();
        let program = odd.join("walden");
        std::os::unix::fs::symlink("/bin/echo", &program).unwrap();
        let config = odd.join("walden.toml").display().to_string();
        let options = ["--config".to_owned(), config.clone()];
        let [archive, restore] = server_commands(&program.display().to_string(), &options);
        for (setting, expected) in [
            (archive, format!("archive push --config {config} pg_wal/7")),
            (restore, format!("archive get --config {config} 7 pg_wal/7")),
        ] {
            let command = command_of(&setting, "7", "pg_wal/7");
            let output = Command::new("sh").arg("-c").arg(&command).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), expected, "{command}: {output:?}");
        }
        let dsn = "host=/run user='it''s'";
        let output = Command::new("sh").arg("-c").arg(format!("printf %s {}", quoted(dsn))).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), dsn);
    }
}
