//! Programs that `walden` runs for some of its commands, as git and cargo run their subcommands. They are
//! built separately, so that reading WAL does not require compiling a query engine.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;
use walden_server::programs::find_in_path;

/// Exit status of a shell for a command that it does not find.
const NOT_FOUND: u8 = 127;

/// Arguments that `walden` passes on without parsing them.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Words {
    /// Arguments of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    words: Vec<OsString>,
}

/// A command that another program runs.
struct Delegate {
    command: &'static str,
    program: &'static str,
    /// Whether the program expects the command as its first argument.
    passes_command: bool,
}

const DELEGATES: [Delegate; 3] = [
    Delegate { command: "sql", program: "walden-sql", passes_command: false },
    Delegate { command: "lab", program: "walden-lab", passes_command: false },
    Delegate { command: "bench", program: "walden-lab", passes_command: true },
];

/// A program with its arguments.
pub struct Program {
    delegate: &'static Delegate,
    words: Vec<OsString>,
}

/// Returns the program that a command line names, with its arguments.
pub fn named_by(command_line: impl Iterator<Item = OsString>) -> Option<Program> {
    let mut words = command_line.skip(1);
    let first = words.next()?;
    // `walden help sql` prints the same as `walden sql --help`.
    let (first, is_help) = if first == "help" { (words.next()?, true) } else { (first, false) };
    let delegate = DELEGATES.iter().find(|delegate| first == delegate.command)?;
    let command = delegate.passes_command.then_some(first);
    let help = is_help.then(|| OsString::from("--help"));
    Some(Program { delegate, words: command.into_iter().chain(words).chain(help).collect() })
}

impl Program {
    /// Replaces this process by the program. Returns only if the program cannot be run.
    pub fn run(&self) -> ExitCode {
        let Delegate { command, program, .. } = self.delegate;
        let reason = match path_of(program) {
            Ok(path) => Command::new(path).args(&self.words).exec().to_string(),
            Err(_) => "it is not installed".to_owned(),
        };
        let text = format!(
            "error: cannot run {program}, which `walden {command}` needs: {reason}\nhint: the Debian package and the release archives \
             contain it; from the sources: cargo install --path crates/{program}-program; it has to be in the folder of walden or in PATH\n"
        );
        let _ = anstream::stderr().lock().write_all(text.as_bytes());
        ExitCode::from(NOT_FOUND)
    }
}

/// Returns whether a program of this name implements commands of `walden`.
pub fn is_program(name: &OsStr) -> bool {
    DELEGATES.iter().any(|delegate| name == delegate.program)
}

/// Returns the path of one of Walden's programs: in the folder of the running program, otherwise in `PATH`.
///
/// # Errors
/// The program is in neither place.
pub fn path_of(program: &str) -> Result<PathBuf> {
    let beside = std::env::current_exe().ok().map(|path| path.with_file_name(program));
    let beside = beside.filter(|path| path.is_file());
    beside.or_else(|| find_in_path(program)).with_context(|| format!("cannot find the program {program}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_other_programs_are_passed_on() {
        let named = |line: &str| {
            let program = named_by(line.split(' ').map(OsString::from))?;
            let words: Vec<_> =
                program.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            Some((program.delegate.program, words.join(" ")))
        };
        for (line, expected) in [
            ("walden sql --help", Some(("walden-sql", "--help"))),
            ("walden lab run oltp --size 4", Some(("walden-lab", "run oltp --size 4"))),
            ("walden bench decode", Some(("walden-lab", "bench decode"))),
            ("walden help bench redo", Some(("walden-lab", "bench redo --help"))),
            ("walden explain sql", None),
            ("walden --help", None),
            ("walden", None),
        ] {
            assert_eq!(named(line), expected.map(|(program, words)| (program, words.to_owned())), "{line}");
        }
    }
}
