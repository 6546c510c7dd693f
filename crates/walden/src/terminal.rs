//! What is around the program, and how it prints.

use clap::ValueEnum;

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// Tables for people
    #[default]
    Table,
    /// One JSON document with exact numbers
    Json,
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
