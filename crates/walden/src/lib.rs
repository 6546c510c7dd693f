//! The `walden` program: maps arguments to options, and options to one function of a library crate.
//!
//! Its public modules are for the programs `walden-lab` and `walden-sql`. They are not a public API: the
//! library crates are.

#![deny(clippy::print_stdout, reason = "it panics when the reader closes the pipe; see `terminal::print`")]

mod archive;
#[doc(hidden)]
pub mod arguments;
mod completions;
mod compress;
mod decompress;
#[cfg(feature = "demo")]
mod demo;
#[doc(hidden)]
pub mod diagnostics;
mod diff;
mod exhausted;
mod explain;
#[cfg(feature = "export")]
mod export;
mod help;
#[cfg(feature = "demo")]
#[doc(hidden)]
pub mod judge;
mod level;
mod man;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod names;
#[doc(hidden)]
pub mod output;
mod page;
mod place;
#[doc(hidden)]
pub mod programs;
mod progress;
#[doc(hidden)]
pub mod range;
mod receive;
mod recover;
#[doc(hidden)]
pub mod redo;
mod retention;
mod rows;
#[doc(hidden)]
mod savings;
mod servers;
#[doc(hidden)]
pub mod set_up;
#[doc(hidden)]
pub mod sources;
mod systemd;
#[cfg(feature = "export")]
#[doc(hidden)]
pub mod table_log;
#[doc(hidden)]
pub mod terminal;
mod test;
mod watch;
mod whatif;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use walden_archive::name::ArchivedFile;
use walden_postgres::connection;

/// Exit status: a check found a difference.
pub const FOUND: u8 = 1;
/// Exit status: wrong usage, as in clap.
pub const USAGE: u8 = 2;
/// Exit status: the input is unreadable or damaged.
pub const DAMAGED: u8 = 3;

/// Version, commit, features and target, one per line, from the build script.
const LONG_VERSION: &str = include_str!(concat!(env!("OUT_DIR"), "/long_version"));

/// Explains, predicts, replays, compresses and archives PostgreSQL's write-ahead log (WAL)
#[derive(Parser, Debug)]
#[command(name = "walden", version, long_version = LONG_VERSION, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    #[cfg(feature = "demo")]
    Demo(demo::DemoArgs),
    Explain(explain::ExplainArgs),
    Diff(Box<diff::DiffArgs>),
    Watch(Box<watch::WatchArgs>),
    Retention(retention::RetentionArgs),
    Whatif(Box<whatif::WhatifArgs>),
    Page(page::PageArgs),
    Rows(Box<rows::RowsArgs>),
    Redo(redo::RedoArgs),
    /// Query the WAL with SQL: records, blocks, transactions, checkpoints (runs the program walden-sql)
    Sql(programs::Words),
    #[cfg(feature = "export")]
    Export(export::ExportArgs),
    Compress(compress::CompressArgs),
    Decompress(decompress::DecompressArgs),
    Test(test::TestArgs),
    Archive(archive::ArchiveArgs),
    Receive(Box<receive::ReceiveArgs>),
    Restore(Box<recover::restore::RestoreArgs>),
    Backup(Box<recover::backup::BackupArgs>),
    /// Run PostgreSQL servers: workloads whose WAL is kept, and published experiments; the program walden-lab
    /// does it
    Lab(programs::Words),
    /// Measure Walden against other programs on the same files (runs the program walden-lab)
    Bench(programs::Words),
    #[command(flatten)]
    SetUp(set_up::SetUp),
}

/// Runs the program.
#[allow(unsafe_code)]
pub fn main() -> ExitCode {
    // SAFETY: nothing before has started a thread.
    unsafe { exhausted::report() };
    set_command(Arguments::command);
    if let Some(program) = programs::named_by(std::env::args_os()) {
        return program.run();
    }
    let command = parse_arguments().command;
    if !matches!(&command, Command::Archive(args) if args.is_get()) {
        exhausted::set_status(DAMAGED);
    }
    warn_of_passwords();
    let reuses_memory = matches!(
        command,
        Command::Compress(_)
            | Command::Decompress(_)
            | Command::Test(_)
            | Command::Redo(_)
            | Command::Page(_)
            | Command::Rows(_)
            | Command::Archive(_)
            | Command::Receive(_)
            | Command::Restore(_)
            | Command::Backup(_)
    );
    if reuses_memory {
        // SAFETY: nothing before has started a thread.
        unsafe { memory::keep_freed() };
    }
    let replays = matches!(command, Command::Redo(_));
    let restores = matches!(command, Command::Restore(_) | Command::Backup(_));
    if replays || restores && !memory::is_returned_to_host() {
        // SAFETY: nothing before has started a thread.
        unsafe { memory::use_huge_pages() };
    }
    exit_status(match command {
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Retention(args) => retention::run(&args),
        Command::Whatif(args) => whatif::run(&args),
        Command::Page(args) => page::run(&args),
        Command::Rows(args) => rows::run(&args),
        Command::Redo(args) => redo::run(&args),
        #[cfg(feature = "export")]
        Command::Export(args) => export::run(&args),
        Command::Compress(args) => compress::run(&args),
        Command::Decompress(args) => decompress::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Archive(args) => archive::run(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Restore(args) => recover::restore::run(&args),
        Command::Backup(args) => recover::backup::run(&args),
        Command::SetUp(set_up) => set_up.run(Arguments::command()),
        Command::Sql(_) | Command::Lab(_) | Command::Bench(_) => {
            unreachable!("these words start another program")
        }
    })
}

/// Converts a program's result to its exit status, and reports its error.
pub fn exit_status(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if terminal::is_reader_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(&error);
            ExitCode::from(if output::is_refusal(&error) { USAGE } else { DAMAGED })
        }
    }
}

/// Returns the definition of the running program's arguments.
static COMMAND: OnceLock<fn() -> clap::Command> = OnceLock::new();

/// Sets the definition of the arguments. [`wrong_usage`] prints the usage from it.
pub fn set_command(command: fn() -> clap::Command) {
    let _ = COMMAND.set(command);
}

/// Parses the arguments; wrong arguments end the process.
///
/// PostgreSQL treats exit statuses 1 to 125 of a restore command as "file not in the archive", and then ends
/// recovery. A wrong option must not look like that. The process that fetches ahead must also use only its
/// own exit statuses.
fn parse_arguments() -> Arguments {
    if std::env::args_os().len() < 2 {
        let _ = anstream::stderr().lock().write_all(help::first_steps().as_bytes());
        std::process::exit(USAGE.into());
    }
    let matches = help::command().try_get_matches();
    matches.and_then(|matches| Arguments::from_arg_matches(&matches)).unwrap_or_else(|error| {
        let error = help::with_tip(error);
        let words: Vec<String> =
            std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        let status = if !error.use_stderr() {
            print_help(&error)
        } else if words.starts_with(&["archive".to_owned(), "prefetch".to_owned()]) {
            archive::PREFETCH_FAILED
        } else if is_restore_command(&words) {
            archive::TROUBLE
        } else {
            error.exit()
        };
        if error.use_stderr() {
            let _ = error.print();
        }
        std::process::exit(status.into());
    })
}

/// Warns about passwords in the arguments, which other users of the machine can read while the process runs.
fn warn_of_passwords() {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(option) = option_with_password(&words) {
        output::print_line(&format!(
            "warning: {option} has a password, which other users of this machine can see (ps): put it into a password file (PGPASSFILE, \
             ~/.pgpass) or a service file (PGSERVICEFILE, ~/.pg_service.conf with mode 0600)"
        ));
    }
}

/// Returns the first option or argument that is a connection string with a password.
fn option_with_password(words: &[String]) -> Option<&str> {
    let mut option = "the connection string";
    for word in words {
        let is_option = word.starts_with("--");
        let (name, value) = match word.split_once('=') {
            Some((name, value)) if is_option => (name, value),
            _ => (if is_option { word } else { option }, word.as_str()),
        };
        let has_form = value.contains("://") || value.contains("password");
        if has_form && connection::has_password(value) {
            return Some(name);
        }
        option = if is_option { name } else { "the connection string" };
    }
    None
}

/// Parses the arguments of another program; wrong arguments end the process.
pub fn parse<P: Parser>() -> P {
    warn_of_passwords();
    P::try_parse().unwrap_or_else(|error| match error.use_stderr() {
        true => help::with_tip(error).exit(),
        false => std::process::exit(print_help(&error).into()),
    })
}

/// Prints the requested help or version, and returns the exit status. `clap` would return 0 even if writing
/// failed.
fn print_help(help: &clap::Error) -> u8 {
    let printed = help.print().and_then(|()| std::io::stdout().flush()).map_err(terminal::mark_stdout);
    match printed.context("cannot write to standard output") {
        Ok(()) => 0,
        Err(error) if terminal::is_reader_gone(&error) => 0,
        Err(error) => {
            output::report(&error);
            DAMAGED
        }
    }
}

/// Returns whether these may be the arguments of a `restore_command`, even a mistyped one: they contain `get`
/// or the name of a file that PostgreSQL requests, and no other command.
fn is_restore_command(words: &[String]) -> bool {
    let commands = Arguments::command();
    let (first, second) = (words.first().map_or("", String::as_str), words.get(1).map_or("", String::as_str));
    let is_other = match commands.find_subcommand(first) {
        Some(archive) if first == "archive" => second != "get" && archive.find_subcommand(second).is_some(),
        found => found.is_some(),
    };
    !is_other && words.iter().any(|word| word == "get" || ArchivedFile::parse(word).is_some())
}

/// Ends the process with a message and the exit status of wrong usage.
pub fn wrong_usage(text: &str) -> ! {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let command = COMMAND.get().map_or_else(Arguments::command, |command| command());
    named_command(command, words).error(ErrorKind::ArgumentConflict, text).exit()
}

/// Returns the command that the first words name. An error shows its usage.
fn named_command(mut command: clap::Command, words: impl Iterator<Item = String>) -> clap::Command {
    command.build();
    let mut named = &command;
    for word in words {
        match named.find_subcommand(&word) {
            Some(next) => named = next,
            None => break,
        }
    }
    named.clone()
}

#[cfg(test)]
mod tests {
    use super::{Arguments, is_restore_command, named_command, option_with_password};
    use clap::{Command, CommandFactory};

    #[test]
    fn a_mistyped_restore_command_is_known() {
        let is_one = |line: &str| is_restore_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in [
            "archive get --rep /x 000000010000000000000007 pg_wal/RECOVERYXLOG",
            "archive --repo /x get 000000010000000000000007 pg_wal/RECOVERYXLOG",
            "archive gett 00000002.history pg_wal/RECOVERYHISTORY",
            "archve get",
            "get 000000010000000000000007 pg_wal/RECOVERYXLOG",
        ] {
            assert!(is_one(line), "{line}");
        }
        for line in [
            "archive push --rep /x pg_wal/000000010000000000000007",
            "archive list get",
            "explain --nams x 000000010000000000000007",
            "archive export --form 000000010000000000000007",
            "explan pg_wal",
        ] {
            assert!(!is_one(line), "{line}");
        }
    }

    #[test]
    fn a_password_in_an_argument_is_found() {
        let found = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            option_with_password(&words).map(str::to_owned)
        };
        assert_eq!(found(&["retention", "--dsn", "host=db1 password=x"]).as_deref(), Some("--dsn"));
        assert_eq!(found(&["explain", "--names=postgresql://u:x@db1/d", "w"]).as_deref(), Some("--names"));
        assert_eq!(found(&["watch", "postgresql://u:x@db1"]).as_deref(), Some("the connection string"));
        for words in [&["watch", "postgresql://u@db1"][..], &["archive", "list", "--repo", "s3://bucket/x"]] {
            assert_eq!(found(words), None, "{words:?}");
        }
    }

    fn all(command: &Command) -> Vec<&Command> {
        std::iter::once(command).chain(command.get_subcommands().flat_map(all)).collect()
    }

    #[test]
    fn definitions_of_commands_and_options_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn wrong_usage_shows_the_usage_of_its_command() {
        let usage = |line: &str| {
            let mut command = named_command(Arguments::command(), line.split(' ').map(str::to_owned));
            command.error(clap::error::ErrorKind::ArgumentConflict, "no").to_string()
        };
        for (line, expected) in [
            ("explain --by user", "Usage: walden explain "),
            ("diff a", "Usage: walden diff "),
            ("archive get x", "Usage: walden archive get "),
            ("--version", "Usage: walden <COMMAND>"),
        ] {
            assert!(usage(line).contains(expected), "{}", usage(line));
        }
    }

    /// Each paragraph of help text is one line: clap wraps it to the terminal's width.
    #[test]
    fn paragraphs_of_help_have_no_line_breaks() {
        let arguments = Arguments::command();
        for command in all(&arguments) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
            let lines: Vec<&str> = help.lines().collect();
            let broken = lines.windows(2).find(|pair| is_text(pair[0]) && is_text(pair[1]));
            assert!(broken.is_none(), "{}: {broken:?}", command.get_name());
        }
    }
}
