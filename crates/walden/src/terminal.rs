//! The terminal, output formats, and the number of cores.

use std::io::Write;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use walden_report::table::Look;

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// Tables for people
    #[default]
    Table,
    /// One JSON document with exact numbers
    Json,
}

/// Prints a result in a format, whichever of the two it needs.
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

/// A document as it is printed and written.
pub fn json(document: &(impl Serialize + ?Sized)) -> Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

/// Prints whole lines, without colours if standard output is no terminal. Unlike the macros of the standard library,
/// which panic, this returns an error if the reader closed the pipe or the disk is full.
pub fn print(lines: &str) -> Result<()> {
    anstream::stdout().lock().write_all(lines.as_bytes()).context("cannot write to standard output")
}

/// Prints bytes as they are: data may have what looks like colours.
pub fn print_data(bytes: &[u8]) -> Result<()> {
    std::io::stdout().lock().write_all(bytes).context("cannot write to standard output")
}

/// How tables look here.
pub fn look() -> Look {
    Look { width: width(), colour: true }
}

/// Columns of the terminal; 80 where there is none.
pub fn width() -> usize {
    let width = match terminal_size::terminal_size() {
        Some((terminal_size::Width(width), _)) => width.into(),
        None => 80,
    };
    width.clamp(60, 160)
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Threads for opening many small files, which is waiting as much as work.
pub fn io_threads() -> usize {
    (2 * cores()).min(16)
}
