//! Output of each call for users and programs: lines in PostgreSQL's log, and JSON lines in a file.
//!
//! Calls of `archive_command` share only this file. Each call appends its lines with a single write, so that
//! lines of concurrent calls do not mix; logrotate may rename the file at any time.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use walden_archive::get::GetError;
use walden_archive::push::{PushError, Pushed};
use walden_receive::handover::CopyError;
use walden_source::error_text;

use crate::configuration::{ArchiveSection, LogFormat};
use crate::output;

/// Format and destination of a command's messages.
#[derive(Args, Clone, Debug)]
pub struct LogOptions {
    /// Format of messages on standard error [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Append a JSON line about each file to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Outcome for a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Archived now.
    Archived,
    /// Archived before.
    Present,
    /// Delivered to the caller.
    Fetched,
    /// Not in the archive.
    Missing,
    /// Not archived, or not delivered.
    Failed,
}

/// A line of the log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Time as in RFC 3339.
    pub time: String,
    /// `push`, `get` or `prefetch`.
    pub command: String,
    /// File name.
    pub file: String,
    /// Outcome.
    pub outcome: Outcome,
    /// Machine-readable cause of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Message of the failure, or a warning after success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Bytes of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Bytes of its object, if this call stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<u64>,
    /// Number of files waiting at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<u64>,
}

impl Entry {
    fn new(command: &str, file: String, outcome: Outcome) -> Entry {
        Entry {
            time: jiff::Timestamp::now().to_string(),
            command: command.to_owned(),
            file,
            outcome,
            cause: None,
            message: None,
            hint: None,
            seconds: None,
            bytes: None,
            stored: None,
            ready: None,
        }
    }

    /// Creates the entry of a push while `ready` files waited.
    pub fn for_push(name: &str, result: Result<&Pushed, &PushError>, ready: usize) -> Entry {
        let ready = Some(ready as u64);
        match result {
            Ok(pushed) => {
                let outcome = if pushed.was_there { Outcome::Present } else { Outcome::Archived };
                let message = Some(pushed.warnings.join("; ")).filter(|text| !text.is_empty());
                Entry {
                    message,
                    seconds: Some(pushed.took.as_secs_f64()),
                    bytes: Some(pushed.bytes),
                    stored: pushed.stored,
                    ready,
                    ..Entry::new("push", pushed.file.to_string(), outcome)
                }
            }
            Err(error) => Entry {
                cause: Some(error.cause().to_owned()),
                message: Some(error_text(error)),
                hint: error.hint().map(str::to_owned),
                ready,
                ..Entry::new("push", name.to_owned(), Outcome::Failed)
            },
        }
    }

    /// Creates the entry of a requested file.
    pub fn for_get(command: &str, name: &str, result: Result<(), &anyhow::Error>, took: Duration) -> Entry {
        let seconds = Some(took.as_secs_f64());
        let Err(error) = result else {
            return Entry { seconds, ..Entry::new(command, name.to_owned(), Outcome::Fetched) };
        };
        let got = error.downcast_ref::<GetError>();
        if let Some(GetError::NotThere { .. }) = got {
            return Entry { seconds, ..Entry::new(command, name.to_owned(), Outcome::Missing) };
        }
        let of_spool = error.downcast_ref::<CopyError>().map(CopyError::cause);
        Entry {
            cause: Some(got.map(GetError::cause).or(of_spool).unwrap_or("other").to_owned()),
            message: Some(error_text(error.as_ref())),
            hint: got.and_then(GetError::hint).map(str::to_owned),
            seconds,
            ..Entry::new(command, name.to_owned(), Outcome::Failed)
        }
    }
}

/// Destination of a command's messages.
pub struct Log {
    format: LogFormat,
    file: Option<PathBuf>,
}

impl Log {
    /// Creates the log from the options, with defaults from the configuration.
    pub fn new(options: &LogOptions, section: &ArchiveSection) -> Log {
        Log {
            format: options.log_format.or(section.log_format).unwrap_or_default(),
            file: options.log.clone().or_else(|| section.log.clone()),
        }
    }

    /// Writes the outcomes of files. A log that cannot be written never prevents archiving.
    pub fn write(&self, entries: &[Entry]) {
        let line = |entry: &Entry| serde_json::to_string(entry).unwrap_or_default() + "\n";
        if self.format == LogFormat::Json {
            let of_interest = |entry: &&Entry| entry.message.is_some() || entry.outcome == Outcome::Failed;
            for entry in entries.iter().filter(of_interest) {
                output::tell(line(entry).trim_end());
            }
        }
        let Some(path) = &self.file else { return };
        let lines: String = entries.iter().map(line).collect();
        let append = || OpenOptions::new().create(true).append(true).open(path)?.write_all(lines.as_bytes());
        if let Err(error) = append() {
            self.warn(&format!("cannot append to the activity log {}: {error}", path.display()));
        }
    }

    /// Writes a warning that concerns no file.
    pub fn warn(&self, message: &str) {
        match self.format {
            LogFormat::Text => output::tell(&format!("WARNING: {message}")),
            LogFormat::Json => self.tell_json("warning", message),
        }
    }

    /// Writes a message that concerns no file.
    pub fn note(&self, message: &str) {
        match self.format {
            LogFormat::Text => output::tell(message),
            LogFormat::Json => self.tell_json("message", message),
        }
    }

    fn tell_json(&self, kind: &str, message: &str) {
        let time = jiff::Timestamp::now().to_string();
        output::tell(&serde_json::json!({ "time": time, kind: message }).to_string());
    }

    /// Returns whether messages are text.
    pub fn is_text(&self) -> bool {
        self.format == LogFormat::Text
    }
}
