//! Standard output, whose errors are marked.
//!
//! A pipe that is broken elsewhere, such as a connection to an object store, is a failure; a reader of
//! standard output that is gone is none.

use std::fmt;
use std::io::{self, Write};

/// Standard output with marked errors.
#[derive(Debug)]
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes).map_err(mark)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().map_err(mark)
    }
}

/// An error of standard output.
#[derive(Debug)]
struct StdoutError(io::Error);

impl fmt::Display for StdoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for StdoutError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// Marks an error as one of standard output.
pub fn mark(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), StdoutError(error))
}

/// Returns whether an error is one of standard output.
pub fn is_marked(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<StdoutError>())
}
