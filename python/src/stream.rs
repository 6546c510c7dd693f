//! Streams batches to Python.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use walden_arrow::row_changes::RowTable;
use walden_arrow::{Batches, ReadError, ReadOptions, Table};
use walden_source::inventory::Inventory;

use crate::errors;
use crate::interrupt::SIGNALS_EVERY;

/// A source of batches, from which several streams can be started.
pub enum Reading {
    /// A table of the WAL, or of a part of it.
    Table {
        inventory: Arc<Inventory>,
        table: Table,
        options: ReadOptions,
        part: Option<(usize, Range<usize>)>,
    },
    /// The row changes of a table.
    RowChanges { table: Box<RowTable>, batch_rows: usize },
}

impl Reading {
    /// Starts to read from the start.
    pub fn start(&self) -> Batches {
        match self {
            Reading::Table { inventory, table, options, part } => {
                let (inventory, options) = (Arc::clone(inventory), options.clone());
                match part.clone() {
                    Some(part) => Batches::start_part(inventory, part, *table, options),
                    None => Batches::start(inventory, *table, options),
                }
            }
            Reading::RowChanges { table, batch_rows } => {
                Batches::start_row_changes(RowTable::clone(table), *batch_rows)
            }
        }
    }

    /// Returns the table's name.
    pub fn name(&self) -> &'static str {
        match self {
            Reading::Table { table, .. } => table.name(),
            Reading::RowChanges { .. } => "row_changes",
        }
    }

    /// Returns the schema of the selected columns.
    pub fn schema(&self) -> SchemaRef {
        match self {
            Reading::Table { table, options, .. } => options.schema(*table),
            Reading::RowChanges { table, .. } => table.schema(),
        }
    }

    /// Returns the number of segments to read.
    pub fn segments(&self) -> usize {
        match self {
            Reading::Table { part: Some((_, segments)), .. } => segments.len(),
            Reading::Table { inventory, .. } => inventory.runs.iter().map(|run| run.segments.len()).sum(),
            Reading::RowChanges { table, .. } => table.changes().segments(),
        }
    }
}

/// Drops a reader that ends early, in a separate thread. The reader's thread ends with its next batch, which
/// is discarded.
pub fn abandon(batches: Option<Batches>) {
    let Some(batches) = batches else { return };
    // If no thread can be started, the drop waits here.
    let _ = std::thread::Builder::new().name("walden".into()).spawn(move || drop(batches));
}

/// The error that ended the last stream. Consumers of the Arrow stream interface receive only its text.
#[derive(Clone, Default)]
pub struct LastError(Arc<Mutex<Option<ReadError>>>);

impl LastError {
    fn set(&self, error: Option<ReadError>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Returns the error as an exception.
    pub fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        let error = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        error.as_ref().map(|error| errors::from_read(py, error))
    }
}

/// Streams batches to a consumer that is independent of Python. Checks for signals if it is called in the
/// main thread that created it.
pub struct Stream {
    batches: Option<Batches>,
    /// The main thread, if it made the stream.
    main: Option<ThreadId>,
    last_error: LastError,
}

impl Stream {
    /// Starts to read.
    pub fn start(py: Python<'_>, reading: &Reading, last_error: &LastError) -> PyResult<Stream> {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?;
        let is_main = threading.call_method0("current_thread")?.is(&main);
        last_error.set(None);
        Ok(Stream {
            batches: Some(reading.start()),
            main: is_main.then(|| std::thread::current().id()),
            last_error: last_error.clone(),
        })
    }

    fn check_signals(&self) -> Result<(), ArrowError> {
        if self.main != Some(std::thread::current().id()) {
            return Ok(());
        }
        Python::attach(|py| {
            let Err(error) = py.check_signals() else { return Ok(()) };
            // Python also checks for signals when it creates a string. The text is therefore formatted before
            // the interrupt below.
            let text = format!("interrupted: {error}");
            // The consumer converts this to its own error. The interrupt itself is raised as soon as Python
            // code runs again.
            if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                let _ = py.import("_thread").and_then(|thread| thread.call_method0("interrupt_main"));
            }
            Err(ArrowError::ExternalError(text.into()))
        })
    }
}

impl Iterator for Stream {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Err(error) = self.check_signals() {
                abandon(self.batches.take());
                return Some(Err(error));
            }
            match self.batches.as_mut()?.next_batch_within(SIGNALS_EVERY) {
                None => {}
                Some(None) => {
                    self.batches = None;
                    return None;
                }
                Some(Some(Ok(batch))) => return Some(Ok(batch)),
                Some(Some(Err(error))) => {
                    self.batches = None;
                    // The consumer receives the text as a C string.
                    let text = error.to_string().replace('\0', " ");
                    self.last_error.set(Some(error));
                    return Some(Err(ArrowError::ExternalError(text.into())));
                }
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        abandon(self.batches.take());
    }
}
