//! The `walden` program.

mod lab;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Explains, predicts and shrinks PostgreSQL's write-ahead log.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Real PostgreSQL servers and workloads, for experiments
    Lab(lab::Arguments),
}

fn main() -> ExitCode {
    let Command::Lab(arguments) = Arguments::parse().command;
    match lab::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
