//! `walden archive init`: creates an archive and a configuration file, and prints the lines for
//! postgresql.conf.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use walden_archive::Archive;
use walden_archive::archive::ArchiveError;
use walden_archive::name::{Object, WAL};
use walden_archive::pending::parent_folder;
use walden_archive::probe::{Left, PROBES, Probe};
use walden_archiving::commands::{quoted, server_commands, word};
use walden_archiving::configuration::FILE;
use walden_archiving::place::Place;
use walden_archiving::{check, data_directory};
use walden_output::Inputs;
use walden_report::table::harmless;

use super::program;
use crate::output::{self, Overwrite};
use crate::progress::Waiting;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  walden archive init --repo /backup/main -o /etc/walden/walden.toml
  walden archive init --repo s3://backups/main --dsn 'host=/run/postgresql user=postgres'
      also check the server's settings
  walden archive init --config /etc/walden/walden.toml
      create the archive that an existing configuration names
  walden archive init --repo s3://backups/main --recipient age1... --recipient alice=age1...
      create an encrypted archive for two users; walden archive key generate creates a key pair";

/// Create an archive and walden.toml, test both, and print the lines for postgresql.conf
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct InitArgs {
    /// The archive: a folder, or a URL: s3://BUCKET/PREFIX, az://CONTAINER/PREFIX, gs://BUCKET/PREFIX,
    /// swift://CONTAINER/PREFIX, or sftp://USER@HOST/FOLDER
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    repo: Option<String>,

    /// Create the archive that this configuration names, and write no configuration
    #[arg(long, value_name = "FILE", conflicts_with_all = ["repo", "output"])]
    config: Option<PathBuf>,

    /// Encrypt the archive to this public key (age1...), key of AWS KMS (arn:aws:kms:...) or command of a key
    /// service (command:PROGRAM ARGUMENTS), optionally with a name: NAME=age1... (repeatable)
    #[cfg(feature = "encryption")]
    #[arg(long = "recipient", value_name = "RECIPIENT", value_parser = walden_archive::encryption::keys::NewUser::parse)]
    recipients: Vec<walden_archive::encryption::keys::NewUser>,

    /// Where to write the configuration
    #[arg(short, long, value_name = "FILE", default_value = FILE)]
    output: PathBuf,

    /// Data directory of the server; an archive inside it is refused
    #[arg(long, visible_alias = "pgdata", value_name = "FOLDER", env = "PGDATA")]
    data: Option<PathBuf>,

    /// Also check the server's settings over this connection: a URL or `host=... user=...`
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
        (Some(_), _) if !parent_folder(&args.output).is_dir() => bail!(
            "cannot write {}: expected its folder to exist: create it, or name another file with -o",
            args.output.display()
        ),
        // A relative path would denote a different folder for each program that reads the file.
        (Some(repo), _) if !repo.contains("://") => {
            Place::from_url(std::path::absolute(repo)?.display().to_string())
        }
        (Some(repo), _) => Place::from_url(repo.clone()),
        (None, config) => Place::new(None, config.clone(), None),
    };
    let (archive, section) = place.open_for_user()?;
    let waiting = Waiting::new(format!("asking {}", harmless(archive.store().location())));
    let of_server = args.dsn.as_deref().and_then(data_directory::query);
    let known: Vec<PathBuf> = args.data.iter().cloned().chain(of_server).collect();
    if let Some(problem) = data_directory::problem_of(&archive, &known, args.config.is_some()) {
        let text = format!("cannot create an archive there: {problem}");
        return Err(output::with_hint(text, data_directory::HINT));
    }
    let folder = archive.encrypted().inner().folder();
    if let Some(conflict) = folder.and_then(|folder| Inputs::default().find_closed_folder(folder)) {
        let text = format!("cannot create an archive there: {conflict}");
        return Err(output::with_hint(text, "name a folder outside of every archive"));
    }
    if place.repo.is_some() {
        output::can_write(&[("--output", Some(&args.output))], Overwrite::default(), &Inputs::default())?;
    }
    expect_identity(&archive)?;
    archive.make_root()?;
    #[cfg(feature = "encryption")]
    if !args.recipients.is_empty() {
        let encrypted = archive.encrypted();
        let users = args.recipients.iter().map(|user| user.create(encrypted.options()));
        encrypted.initialise_keys(&users.collect::<Result<Vec<_>, _>>()?)?;
    }
    let probe = walden_archive::probe::probe(&archive).context("cannot use the archive")?;
    if let Some(repo) = &place.repo {
        write_configuration(&args.output, repo, &archive)?;
    }
    // Last, so that a failed setup leaves no usable archive.
    archive.create()?;
    drop(waiting);
    let program = program();
    let written = args.config.as_ref().map_or("is written", |_| "is as it was");
    let config = std::path::absolute(args.config.as_ref().unwrap_or(&args.output))?.display().to_string();
    let commands = server_commands(&program, &["--config".to_owned(), config.clone()]);
    let [archive_command, restore_command] = &commands;
    let dsn = args.dsn.as_deref().unwrap_or("host=/run/postgresql user=postgres");
    let came_back = match probe {
        Probe { get: Some(_), .. } => "was archived there, and came back byte for byte",
        Probe { get: None, .. } => "was archived there (a private key would show that it comes back)",
    };
    let removed = match &probe.left {
        None => "It was removed.".to_owned(),
        Some(Left::Kept(kept)) if kept.until.is_some() => {
            format!("It stays in {PROBES}: {kept}. walden archive prune --apply removes it then.")
        }
        Some(left) => format!(
            "It could not be removed from {PROBES}: {left}. walden archive pack and prune cannot remove anything without the right to delete; \
             push and get do not need it."
        ),
    };
    let check_command = format!("{} archive check --config {}", word(&program), word(&config));
    terminal::print(&format!(
        "{config} {written}, and the archive works: a segment {came_back}. {removed}\n\nIn postgresql.conf:\n\n  archive_mode = on\n  archive_command = {archive_command}\n  restore_command = {restore_command}\n\narchive_mode needs a restart. Then let the server's own WAL prove it, from end to end:\n\n  {check_command} --dsn {} --switch\n",
        quoted(dsn)
    ))?;
    let stored = place.repo.is_none().then_some(&section.store);
    if let Some(note) = environment_note(archive.store().location(), stored, &config) {
        output::print_line(&note);
    }
    if let Some(dsn) = &args.dsn {
        let server = check::describe_server(dsn, &archive, &section, &commands);
        terminal::print(&format!("\nThe server as it is now:\n\n{server}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Environment variables that configure the object store with a scheme, and the settings that replace them in
/// `[archive.store]`.
fn store_variables(scheme: &str) -> (&'static [&'static str], &'static str) {
    const AWS: [&str; 9] = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_PROFILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CONFIG_FILE",
    ];
    const AZURE: [&str; 7] = [
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
    ];
    const GOOGLE: [&str; 3] =
        ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"];
    const SWIFT: [&str; 10] = [
        "OS_AUTH_URL",
        "OS_USERNAME",
        "OS_PASSWORD",
        "OS_PROJECT_NAME",
        "OS_PROJECT_ID",
        "OS_USER_DOMAIN_NAME",
        "OS_PROJECT_DOMAIN_NAME",
        "OS_REGION_NAME",
        "OS_APPLICATION_CREDENTIAL_ID",
        "OS_APPLICATION_CREDENTIAL_SECRET",
    ];
    match scheme {
        "swift" => (&SWIFT, "auth_url, username, password and project_name, or an application credential"),
        "s3" => (&AWS, "access_key_id, secret_access_key, region and endpoint"),
        "gs" => (&GOOGLE, "application_credentials"),
        _ => (&AZURE, "account_name and account_key (or sas_token)"),
    }
}

/// Warns if an object store's settings come from this command's environment, which the server's commands
/// lack.
fn environment_note(
    location: &str,
    stored: Option<&BTreeMap<String, String>>,
    config: &str,
) -> Option<String> {
    let (scheme, _) = location.split_once("://").filter(|(scheme, _)| !matches!(*scheme, "file" | "sftp"))?;
    let (variables, settings) = store_variables(scheme);
    let is_stored = |variable: &str| {
        let variable = variable.to_ascii_lowercase();
        let mut names = stored.into_iter().flat_map(BTreeMap::keys);
        names.any(|name| {
            let prefixes = ["aws_", "azure_", "google_", "os_"];
            let name =
                prefixes.into_iter().fold(name.as_str(), |name, prefix| name.trim_start_matches(prefix));
            variable.contains(name)
        })
    };
    let is_used = |name: &&str| std::env::var_os(name).is_some() && !is_stored(name);
    let used: Vec<&str> = variables.iter().copied().filter(is_used).collect();
    if used.is_empty() {
        return None;
    }
    Some(format!(
        "warning: {} of this shell are not in {config}: archive_command and restore_command fail if the server's service lacks them, as under \
         systemd. Write {settings} into [archive.store] of {config} (chmod 600, owned by the \
         server's user), or the variables into a file that the service reads (systemctl edit: [Service], EnvironmentFile=)",
        used.join(", ")
    ))
}

/// Remedy for an archive that has lost `archive.json`.
const IDENTITY_HINT: &str = "put archive.json back from another copy of the archive. If there is none, walden archive repair rewrites it from the segments";

/// Refuses a location that has segments but no `archive.json`: the location is no empty place for a new
/// archive, and no command can use it.
fn expect_identity(archive: &Archive) -> Result<()> {
    match archive.expect_archive() {
        // A location without `archive.json` is new, unless it has segments.
        Err(error @ ArchiveError::Missing(_)) => {
            let mut has_segments = false;
            archive
                .store()
                .list(WAL, &mut |listed| has_segments |= Object::parse_key(&listed.key).is_some())?;
            match has_segments {
                true => Err(output::with_hint(error.to_string(), IDENTITY_HINT)),
                false => Ok(()),
            }
        }
        Err(error @ ArchiveError::Identity { .. }) => {
            Err(output::with_hint(error.to_string(), IDENTITY_HINT))
        }
        other => other.context("cannot use the archive"),
    }
}

fn write_configuration(path: &Path, repo: &str, archive: &Archive) -> Result<()> {
    let recipient = match archive.encrypted().recipient()? {
        Some(recipient) => format!(
            "recipient = \"{recipient}\"  # nothing is encrypted to another key\n# identity = \"restore.key\"  # where WAL is restored: the file with the private key of a user, or arn:aws:kms:... or command:... of a key service\n"
        ),
        None => String::new(),
    };
    let text = format!(
        "# Walden's archive of this cluster's WAL; see `walden archive --help`.\n\n[archive]\nrepo = {}  # or a list: several repositories with the same WAL\n# acknowledge = 1      # of several repositories: how many must have a file (all, unless set)\n{recipient}\n# level = 3            # 1 (fast) to 9 (small)\n# fast_queue = 64      # while more segments wait, they are compressed at level 0\n# look_ahead = 64      # other ready segments that one push archives\n# backlog_warning = 1000         # files that wait, beyond which a push warns and status exits with 1\n# backlog_warning_seconds = 900  # seconds that a file waits, beyond which status exits with 1\n# backup_max_age_hours = 36     # age of the newest base backup from which status exits with 1\n# prefetch = 16        # segments to fetch ahead of recovery\n# storage_class = \"STANDARD_IA\"  # of segments and packs in an object store\n# price = {{ storage = 0.0125 }}   # instead of list prices, for list --cost\n# tags = {{ team = \"db\" }}         # of each object in an object store\n# bandwidth = \"50MB/s\"            # at most, for uploads and downloads\n# lock_days = 30       # in a bucket with Object Lock: nobody can remove a stored object for so long\n# accept_unknown_versions = false  # true archives the WAL of a PostgreSQL newer than this Walden as bytes\n# log = \"/var/log/postgresql/walden.json\"  # push and get append JSON lines to it: status and metrics read them\n\n# [archive.store]      # object stores (for sftp://, program and config of ssh): settings that the environment does not have\n# endpoint = \"https://s3.example.net\"\n# region = \"eu-1\"\n# access_key_id = \"...\"      # a server that systemd starts lacks the variables of your shell\n# secret_access_key = \"...\"  # then chmod 600, and the server's user owns this file\n",
        serde_json::Value::String(repo.to_owned())
    );
    output::write(path, &text, Overwrite::default())
}
