//! `walden completions`: completion scripts for shells.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::terminal;

/// Print a script that completes this program's commands and options in a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  walden completions bash > /usr/share/bash-completion/completions/walden
  walden completions zsh > \"${fpath[1]}/_walden\"
  walden completions fish > ~/.config/fish/completions/walden.fish
  walden-sql completions bash > /usr/share/bash-completion/completions/walden-sql")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub fn run(args: &CompletionsArgs, mut program: Command) -> Result<ExitCode> {
    program.build();
    let name = program.get_name().to_owned();
    // Generates into memory first: the generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut without_hidden(&program), name.as_str(), &mut script);
    // For bash, clap_complete treats the hyphen in `walden-sql` as a command separator in one place, but not
    // in another.
    let [wrong, right] = ["__subcmd__", "__"].map(|hyphen| name.replace('-', hyphen) + "__subcmd__");
    terminal::print(&String::from_utf8(script)?.replace(&wrong, &right))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the command without its hidden commands and options, which the scripts would otherwise complete.
fn without_hidden(built: &Command) -> Command {
    let visible = built.get_subcommands().filter(|command| !command.is_hide_set());
    // `Command` accepts only static names; the process ends after printing the script.
    let name: &'static str = built.get_name().to_owned().leak();
    let command = Command::new(name)
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .disable_version_flag(true)
        .args(built.get_arguments().filter(|argument| !argument.is_hide_set()).cloned())
        .groups(built.get_groups().cloned())
        .subcommands(visible.map(without_hidden));
    match built.get_about() {
        Some(about) => command.about(about.clone()),
        None => command,
    }
}
