//! Commands that each of Walden's programs has for its installation: completions, manual pages, licences.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Command, Subcommand};

use crate::{completions, man, terminal};

const LICENCES: &str = concat!(include_str!("../NOTICE"), "\n", include_str!("../THIRD-PARTY-NOTICES"));

/// The installation commands.
#[derive(Subcommand, Debug)]
pub enum SetUp {
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    /// Print the licences of third-party code in this program
    #[command(alias = "licences")]
    Licenses,
}

impl SetUp {
    /// Runs the command for the program with these arguments.
    pub fn run(&self, program: Command) -> Result<ExitCode> {
        match self {
            SetUp::Completions(args) => completions::run(args, program),
            SetUp::Man(args) => man::run(args, program),
            SetUp::Licenses => terminal::print(LICENCES).map(|()| ExitCode::SUCCESS),
        }
    }
}
