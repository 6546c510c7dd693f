//! The binary: arguments to options, options to one function of a crate.

#![deny(clippy::print_stdout, reason = "it panics where nobody reads on; see `terminal::print`")]

mod base;
mod bench;
mod compress;
mod decompress;
mod demo;
mod explain;
mod judge;
mod lab;
mod memory;
mod names;
mod output;
mod page;
mod progress;
mod redo;
mod terminal;
mod test;
mod turns;
mod whatif;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A check found something.
pub const FOUND: u8 = 1;
/// The input is unreadable or damaged.
pub const DAMAGED: u8 = 3;

/// Shows where PostgreSQL's write-ahead log comes from
#[derive(Parser, Debug)]
#[command(name = "walden", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::DemoArgs),
    Explain(explain::ExplainArgs),
    Whatif(whatif::WhatifArgs),
    Page(page::PageArgs),
    Redo(redo::RedoArgs),
    Compress(compress::CompressArgs),
    Decompress(decompress::DecompressArgs),
    Test(test::TestArgs),
    Lab(lab::LabArgs),
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Whatif(args) => whatif::run(&args),
        Command::Page(args) => page::run(&args),
        Command::Redo(args) => redo::run(&args),
        Command::Compress(args) => compress::run(&args),
        Command::Decompress(args) => decompress::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(&error);
            ExitCode::from(DAMAGED)
        }
    }
}

/// Whoever read the output has had enough: `walden explain ... | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds =
        error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind);
    kinds.into_iter().any(|kind| kind == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::{Command, CommandFactory};

    fn all(command: &Command) -> Vec<&Command> {
        std::iter::once(command).chain(command.get_subcommands().flat_map(all)).collect()
    }

    #[test]
    fn commands_and_options_go_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn paragraphs_of_help_are_for_the_terminal_to_break() {
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
