//! `walden archive key`: lists and changes who can read an encrypted archive.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use walden_archive::Archive;
use walden_archive::encryption::keys::{self, Change, Changed, NewUser, Statement, User};
use walden_archiving::configuration::FILE;
use walden_format::payload::Timestamp;
use walden_report::table::harmless;

use crate::place::PlaceArgs;
use crate::terminal::{self, Format};

const EXAMPLES: &str = "\
Examples:
  walden archive key generate -o restore.key
      create a key pair: write the private key to the file, print the public key
  walden archive init --repo s3://backups/main --recipient age1...
      create an encrypted archive that the private key for age1... can read
  walden archive key list --repo s3://backups/main
  walden archive key add --identity restore.key alice=age1...
      let alice read the whole archive too, now and in the future
  walden archive key add --identity restore.key arn:aws:kms:eu-1:123456789012:key/...
      let everyone read who may decrypt with this key of AWS KMS: --identity arn:aws:kms:...
  walden archive key add --identity restore.key 'vault=command:wrap-key encrypt'
      the same with any other key service: the command gets a private key on standard input and prints it
      encrypted; --identity 'command:wrap-key decrypt' reads
  walden archive key remove --identity restore.key alice
      alice cannot read future objects; she may have kept keys for existing ones

Objects are never rewritten. Private keys are age files, which age-keygen also writes. push needs no private key.";

/// List and change who can read an encrypted archive
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Subcommand, Debug)]
enum KeyCommand {
    /// Create a key pair: write the private key to a file and print the public key
    Generate {
        /// Output file, which must not exist
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// List the users who can read, and the archive's own public keys
    List {
        #[command(flatten)]
        place: PlaceArgs,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Allow more users to read (needs a private key that can read)
    Add {
        #[command(flatten)]
        place: PlaceArgs,

        /// Public keys of the users (age1...), keys of AWS KMS (arn:aws:kms:...), or commands that encrypt
        /// (command:PROGRAM ARGUMENTS), optionally with names: NAME=age1...
        #[arg(value_name = "RECIPIENT", required = true, value_parser = NewUser::parse)]
        recipients: Vec<NewUser>,
    },
    /// Remove users: future WAL is encrypted to a new archive key that these users lack (needs a private key
    /// that can read)
    Remove {
        #[command(flatten)]
        place: PlaceArgs,

        /// Public keys, names, or keys of AWS KMS of the users
        #[arg(value_name = "RECIPIENT", required = true)]
        recipients: Vec<String>,
    },
    /// Encrypt future WAL to a new archive key (needs a private key that can read)
    Rotate {
        #[command(flatten)]
        place: PlaceArgs,
    },
}

/// Runs `walden archive key`.
pub fn run(args: &KeyArgs) -> Result<ExitCode> {
    match &args.command {
        KeyCommand::Generate { output } => generate(output)?,
        KeyCommand::List { place, format } => {
            let (archive, _) = place.open()?;
            let location = archive.store().location();
            let Some(statement) = keys::newest(archive.encrypted().inner())? else {
                archive.encrypted().expect_keys()?;
                bail!(
                    "the archive in {location} is not encrypted; an archive is encrypted from its creation, by walden archive init --recipient, or not at all"
                );
            };
            terminal::show(*format, || &statement, || table(location, &statement))?;
        }
        KeyCommand::Add { place, recipients } => change(place, |archive| {
            let users = recipients.iter().map(|user| user.create(archive.encrypted().options()));
            Ok(Change::Add(users.collect::<Result<Vec<User>, _>>()?))
        })?,
        KeyCommand::Remove { place, recipients } => {
            change(place, |_| Ok(Change::Remove(recipients.clone())))?
        }
        KeyCommand::Rotate { place } => change(place, |_| Ok(Change::Rotate))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn generate(output: &PathBuf) -> Result<()> {
    let pair = keys::generate();
    // Created with its final mode, so that no other user can read it at any moment.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(output);
    file.and_then(|mut file| {
        file.write_all(pair.identity_file.as_bytes())?;
        file.sync_all()
    })
    .with_context(|| format!("cannot write {}", output.display()))?;
    let file = output.display();
    terminal::print(&format!(
        "{}\n\nThe private key is in {file}. Keep copies of it away from the server and from the archive: without it nothing can be restored.\n",
        pair.recipient
    ))
}

fn change(place: &PlaceArgs, change: impl FnOnce(&Archive) -> Result<Change>) -> Result<()> {
    let (archive, section) = place.open()?;
    let change = change(&archive)?;
    let Changed { statement, kept } = archive.encrypted().change_keys(&change)?;
    let mut text = table(archive.store().location(), &statement);
    if let (Some(newest), false) = (statement.recipients.first(), matches!(change, Change::Add(_))) {
        let _ = writeln!(
            text,
            "\nIn {FILE} of every server that archives, so that the new key is used:\n\n  recipient = \"{newest}\""
        );
        if section.recipient.is_none() {
            let _ = writeln!(text, "\n(A server without such a line uses it from its next push on.)");
        }
    }
    for (name, kept) in kept {
        let _ = writeln!(
            text,
            "\nWARNING: {name} stays, and removed users can decrypt it, with all keys of the archive up to then: {kept}. \
             The next change of the keys removes it, if it may."
        );
    }
    terminal::print(&text)
}

fn table(location: &str, statement: &Statement) -> String {
    let Statement { generation, recipients, users, created } = statement;
    let made = Timestamp::from_unix_micros(*created);
    let mut text = format!("{location}: generation {generation} of keys, made {made}\n\nWho can read:\n");
    for user in users {
        let service = user.wrapped.as_ref().map(|wrapped| wrapped.service.as_str());
        let names: String = user
            .name
            .as_deref()
            .into_iter()
            .chain(service)
            .map(|name| format!("  {}", harmless(name)))
            .collect();
        let _ = writeln!(text, "  {}{names}", user.recipient);
    }
    text.push_str("The archive's own public keys, to which objects are encrypted:\n");
    for (at, recipient) in recipients.iter().enumerate() {
        let use_of = if at == 0 { "now" } else { "formerly" };
        let _ = writeln!(text, "  {recipient}  {use_of}");
    }
    text
}
