//! `walden completions`: scripts by which shells complete the program's arguments.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::terminal;

/// Print a script that completes this program's commands and options in a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  walden completions bash > /etc/bash_completion.d/walden
  walden completions zsh > \"${fpath[1]}/_walden\"
  walden completions fish > ~/.config/fish/completions/walden.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub fn run(args: &CompletionsArgs) -> Result<ExitCode> {
    // In memory first: the generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Arguments::command(), "walden", &mut script);
    terminal::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
