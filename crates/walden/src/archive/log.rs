//! Options for the messages of commands that archive and restore files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use walden_archiving::configuration::{ArchiveSection, LogFormat};
use walden_archiving::log::Log;

use crate::output;

/// Format and destination of a command's messages.
#[derive(Args, Clone, Debug)]
pub struct LogOptions {
    /// Format of messages on standard error [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormatName>,

    /// Append a JSON line about each file to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Formats under the names that users type.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormatName {
    /// Like PostgreSQL's server log
    Text,
    /// A JSON object in each line
    Json,
}

impl LogOptions {
    /// Opens the log, with defaults from the configuration.
    pub fn open(&self, section: &ArchiveSection) -> Log {
        let named = self.log_format.map(|name| match name {
            LogFormatName::Text => LogFormat::Text,
            LogFormatName::Json => LogFormat::Json,
        });
        let file = self.log.clone().or_else(|| section.log.clone());
        Log::new(named.or(section.log_format).unwrap_or_default(), file, output::print_line)
    }
}
