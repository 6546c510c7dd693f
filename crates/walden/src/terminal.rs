//! The terminal, output formats, and the number of cores.

use std::io::{self, IsTerminal as _, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use walden_output::stdout;
pub use walden_output::stdout::{Stdout, mark as mark_stdout};
use walden_report::table::Look;

/// Formats for printing results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// Human-readable tables
    #[default]
    Table,
    /// One JSON document with exact numbers
    Json,
}

/// Prints a result in a format. Calls only the function that this format needs.
pub fn show<D: Serialize>(
    format: Format,
    document: impl FnOnce() -> D,
    table: impl FnOnce() -> String,
) -> Result<()> {
    match format {
        Format::Table => print(&table()),
        Format::Json => print(&json(&document())?),
    }
}

/// Formats a document as JSON, for printing and for files.
pub fn json(document: &(impl Serialize + ?Sized)) -> Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

/// Prints whole lines, without colours if standard output is not a terminal. Unlike the standard library's
/// macros, which panic, this returns an error if the reader closed the pipe or the disk is full.
pub fn print(lines: &str) -> Result<()> {
    let printed = anstream::stdout().lock().write_all(lines.as_bytes());
    printed.map_err(mark_stdout).context("cannot write to standard output")
}

/// Prints bytes unchanged: data may contain byte sequences that look like colour codes.
pub fn print_data(bytes: &[u8]) -> Result<()> {
    Stdout.write_all(bytes).context("cannot write to standard output")
}

/// Returns whether the reader of standard output closed it early, as in `walden explain ... | head`.
pub fn is_reader_gone(error: &anyhow::Error) -> bool {
    errors_of_stdout(error).any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns whether standard output could not be written.
pub fn is_of_stdout(error: &anyhow::Error) -> bool {
    errors_of_stdout(error).next().is_some()
}

fn errors_of_stdout(error: &anyhow::Error) -> impl Iterator<Item = &io::Error> {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.filter(|error| stdout::is_marked(error))
}

/// Returns the appearance of tables on this terminal.
pub fn look() -> Look {
    // The size may be that of standard error's terminal, which must not limit output to a file.
    let table_width = if io::stdout().is_terminal() { columns().unwrap_or(80) } else { usize::MAX };
    Look { width: width(), table_width, colour: true }
}

/// Returns the number of columns for wrapping text: the terminal's, within limits; 80 without a terminal.
pub fn width() -> usize {
    columns().unwrap_or(80).clamp(60, 160)
}

/// Returns the terminal's number of columns, if there is a terminal.
fn columns() -> Option<usize> {
    terminal_size::terminal_size().map(|(terminal_size::Width(width), _)| width.into())
}

/// Returns the terminal's number of lines, at least 24, minus one for the next prompt. Returns `None` if
/// standard output is a file or a pipe.
pub fn lines() -> Option<usize> {
    let size = io::stdout().is_terminal().then(terminal_size::terminal_size)?;
    let lines = size.map_or(24, |(_, terminal_size::Height(lines))| lines.max(24));
    Some(usize::from(lines) - 1)
}

/// Returns the number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns the number of threads for opening many small files, which mostly wait.
pub fn io_threads() -> usize {
    (2 * cores()).min(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_gone_is_told_from_a_broken_connection() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let of_store = anyhow::Error::from(broken()).context("cannot read wal/1");
        assert!(!is_reader_gone(&of_store));
        let printed = anyhow::Error::from(mark_stdout(broken())).context("cannot write to standard output");
        assert!(is_reader_gone(&printed));
        assert_eq!(format!("{printed:#}"), format!("cannot write to standard output: {}", broken()));
        let full = mark_stdout(io::ErrorKind::StorageFull.into());
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(!is_reader_gone(&full.into()));
    }
}
