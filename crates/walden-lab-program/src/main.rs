//! The `walden-lab` program: PostgreSQL servers, workloads, experiments, and benchmarks. `walden lab` and
//! `walden bench` run it.

#![deny(clippy::print_stdout, reason = "it panics when the reader closes the pipe; see `terminal::print`")]

mod bench;
mod lab;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use walden::{FOUND, arguments, judge, memory, names, output, programs, redo, set_up, terminal, wrong_usage};

/// Runs PostgreSQL servers: workloads whose WAL is kept, published experiments, and benchmarks
#[derive(Parser, Debug)]
#[command(name = "walden-lab", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    #[command(flatten)]
    Lab(lab::LabCommand),
    Bench(bench::BenchArgs),
    #[command(flatten)]
    SetUp(set_up::SetUp),
}

fn main() -> ExitCode {
    walden::set_command(Arguments::command);
    walden::exit_status(match walden::parse::<Arguments>().command {
        Command::Lab(command) => lab::run(&command),
        Command::Bench(args) => bench::run(&args),
        Command::SetUp(set_up) => set_up.run(Arguments::command()),
    })
}
