//! Converts errors to Python exceptions.

use std::error::Error;
use std::io;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyFileNotFoundError, PyOSError, PyUserWarning, PyValueError};
use pyo3::prelude::*;
use walden_archive::sources::SourcesError;
use walden_arrow::ReadError;
use walden_explain::ExplainError;
use walden_format::diagnostic::{Diagnosis, Diagnostic};
use walden_postgres::names::NamesError;
use walden_rows::RowsError;
use walden_source::datadir::DataDirError;
use walden_source::inventory::InventoryError;
use walden_source::names as saved;
use walden_source::scan::Damage;
use walden_whatif::PredictError;

create_exception!(
    walden,
    WaldenError,
    PyException,
    "Walden cannot do what was asked; the message states the reason. `code` identifies the kind of error. `hint` is the remedy or None."
);
create_exception!(
    walden,
    DamagedError,
    WaldenError,
    "The WAL is damaged. `lsn` (int), `segment`, `offset` and `path` locate the damage. All records before it were returned."
);
create_exception!(
    walden,
    WaldenWarning,
    PyUserWarning,
    "The source seems to have more than Walden read: missing segments, unreadable files, or names that were not read."
);

/// Formats an error with its causes as one line, without causes whose text is repeated.
fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // A connection error already contains its cause, followed by notes.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Replaces the program's options by Python arguments in a text about the rows of a table.
pub fn with_arguments(text: &str) -> String {
    let options = [("(--names)", "(names=...)"), ("(--base)", "(base=...)")];
    options.iter().fold(text.to_owned(), |text, (option, argument)| text.replace(option, argument))
}

/// Converts an error for which there is no specific exception.
pub fn other(error: &dyn Error) -> PyErr {
    WaldenError::new_err(text(error))
}

/// Sets the attributes `code` and `hint` of an exception.
fn diagnosed(exception: PyErr, error: &dyn Diagnostic) -> PyErr {
    let Diagnosis { code, hint, .. } = error.diagnose();
    let hint = hint.map(|hint| with_arguments(&hint));
    let set = Python::attach(|py| {
        let value = exception.value(py);
        value.setattr("code", code).and_then(|()| value.setattr("hint", hint))
    });
    set.err().unwrap_or(exception)
}

/// Builds the exception for an argument with a wrong value.
pub fn wrong_value(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

fn file(error: &dyn Error, cause: &io::Error) -> PyErr {
    match cause.kind() {
        io::ErrorKind::NotFound => PyFileNotFoundError::new_err(text(error)),
        _ => PyOSError::new_err(text(error)),
    }
}

pub fn from_sources(error: &SourcesError) -> PyErr {
    let exception = match error {
        SourcesError::Inventory(InventoryError::NotFound(_)) => PyFileNotFoundError::new_err(text(error)),
        SourcesError::Inventory(InventoryError::Io { error: cause, .. })
        | SourcesError::Read { error: cause, .. } => file(error, cause),
        _ => other(error),
    };
    diagnosed(exception, error)
}

pub fn from_names(error: &NamesError) -> PyErr {
    let exception = match error {
        NamesError::Saved(saved::NamesError::File { error: cause, .. }) => file(error, cause),
        _ => other(error),
    };
    diagnosed(exception, error)
}

pub fn from_explain(error: &ExplainError) -> PyErr {
    match error {
        ExplainError::TimeAfterEnd(_) => wrong_value(format!("start: {}", text(error))),
        _ => other(error),
    }
}

pub fn from_predict(error: &PredictError) -> PyErr {
    match error {
        // The settings under which the WAL was written are checked earlier.
        PredictError::Setting(_) => wrong_value(format!("settings: {}", text(error))),
        _ => other(error),
    }
}

pub fn from_rows(error: &RowsError) -> PyErr {
    let with_arguments = || with_arguments(&text(error));
    let exception = match error {
        RowsError::NoTable(_) | RowsError::Ambiguous(_) => {
            wrong_value(format!("relation: {}", with_arguments()))
        }
        RowsError::EndsBeforeBase { .. } => wrong_value(format!("end: {}", with_arguments())),
        RowsError::DataDir(DataDirError::NotOne { .. }) => wrong_value(format!("base: {}", with_arguments())),
        RowsError::DataDir(DataDirError::Io { error: cause, .. }) | RowsError::Base { error: cause, .. } => {
            file(error, cause)
        }
        _ => WaldenError::new_err(with_arguments()),
    };
    diagnosed(exception, error)
}

pub fn from_read(py: Python<'_>, error: &ReadError) -> PyErr {
    match error {
        ReadError::Damaged(damage) => from_damage(py, damage),
        ReadError::Explain(error) => from_explain(error),
        ReadError::Rows(error) => from_rows(error),
        _ => other(error),
    }
}

pub fn from_damage(py: Python<'_>, damage: &Damage) -> PyErr {
    let exception = DamagedError::new_err(format!("{damage}; {}", damage.hint().unwrap_or_default()));
    let exception = diagnosed(exception, damage);
    let value = exception.value(py);
    let set = value
        .setattr("lsn", damage.lsn.0)
        .and_then(|()| value.setattr("segment", damage.segment.to_string()))
        .and_then(|()| value.setattr("offset", damage.offset))
        .and_then(|()| value.setattr("path", damage.path.display().to_string()));
    match set {
        Ok(()) => exception,
        Err(error) => error,
    }
}
