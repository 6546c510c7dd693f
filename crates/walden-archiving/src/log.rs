//! Output of each call for users and programs: lines in PostgreSQL's log, and JSON lines in a file.
//!
//! Calls of `archive_command` share only this file. Each call appends its lines with a single write, so that
//! lines of concurrent calls do not mix; logrotate may rename the file at any time.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use walden_archive::push::{PushError, Pushed};
use walden_format::diagnostic::{Diagnosis, Diagnostic as _, Hint};
use walden_source::error_text;

use crate::configuration::LogFormat;
use crate::error::FetchError;

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
    /// Stable code of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
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
            code: None,
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
                code: error.code().map(str::to_owned),
                hint: error.hint().map(Hint::into_owned),
                ready,
                ..Entry::new("push", name.to_owned(), Outcome::Failed)
            },
        }
    }

    /// Creates the entry of a requested file.
    pub fn for_get(name: &str, result: Result<(), &FetchError>, took: Duration) -> Entry {
        let done = |outcome| Entry {
            seconds: Some(took.as_secs_f64()),
            ..Entry::new("get", name.to_owned(), outcome)
        };
        match result {
            Ok(()) => done(Outcome::Fetched),
            Err(error) if error.is_missing() => done(Outcome::Missing),
            Err(error) => Entry::for_failure("get", name, error, error.diagnose(), took),
        }
    }

    /// Creates the entry of a command that failed.
    pub fn for_failure(
        command: &str,
        name: &str,
        error: &dyn Error,
        diagnosis: Diagnosis,
        took: Duration,
    ) -> Entry {
        Entry {
            cause: Some(diagnosis.cause.unwrap_or("other").to_owned()),
            message: Some(error_text(error)),
            code: diagnosis.code.map(str::to_owned),
            hint: diagnosis.hint.map(Hint::into_owned),
            seconds: Some(took.as_secs_f64()),
            ..Entry::new(command, name.to_owned(), Outcome::Failed)
        }
    }
}

/// Destination of a command's messages.
pub struct Log {
    format: LogFormat,
    file: Option<PathBuf>,
    print: fn(&str),
}

impl Log {
    /// Creates a log. `print` writes a line to standard error, in `format`. `file` gets a JSON line per
    /// entry.
    pub fn new(format: LogFormat, file: Option<PathBuf>, print: fn(&str)) -> Log {
        Log { format, file, print }
    }

    /// Writes the outcomes of files. A log that cannot be written never prevents archiving.
    pub fn write(&self, entries: &[Entry]) {
        let line = |entry: &Entry| serde_json::to_string(entry).unwrap_or_default() + "\n";
        if self.format == LogFormat::Json {
            let of_interest = |entry: &&Entry| entry.message.is_some() || entry.outcome == Outcome::Failed;
            for entry in entries.iter().filter(of_interest) {
                (self.print)(line(entry).trim_end());
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
            LogFormat::Text => (self.print)(&format!("WARNING: {message}")),
            LogFormat::Json => self.print_json("warning", message),
        }
    }

    /// Writes a message that concerns no file.
    pub fn note(&self, message: &str) {
        match self.format {
            LogFormat::Text => (self.print)(message),
            LogFormat::Json => self.print_json("message", message),
        }
    }

    /// Writes the warnings of a push as text; as JSON, they are in its entry.
    pub fn print_warnings(&self, pushed: &Pushed) {
        if self.is_text() {
            for warning in &pushed.warnings {
                (self.print)(&format!("WARNING: {}: {warning}", pushed.file));
            }
        }
    }

    /// Writes an error as text, in the form of PostgreSQL's messages, because it ends up in the server's log;
    /// as JSON, it is in the entry of its file. `when` precedes it.
    pub fn print_error(&self, when: &str, error: &dyn Error, hint: Option<Hint>) {
        if self.is_text() {
            (self.print)(&format!("ERROR: {when}{}", error_text(error)));
            if let Some(hint) = hint {
                (self.print)(&format!("HINT: {hint}"));
            }
        }
    }

    /// Writes a line as it is.
    pub(crate) fn print(&self, line: &str) {
        (self.print)(line);
    }

    fn print_json(&self, kind: &str, message: &str) {
        let time = jiff::Timestamp::now().to_string();
        (self.print)(&serde_json::json!({ "time": time, kind: message }).to_string());
    }

    /// Returns whether messages are text.
    pub fn is_text(&self) -> bool {
        self.format == LogFormat::Text
    }
}
