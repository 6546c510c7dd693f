//! Tables of the WAL, with the Arrow PyCapsule interface.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, RecordBatch, StructArray};
use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use pyo3_arrow::error::PyArrowResult;
use pyo3_arrow::ffi::{ArrayIterator, to_array_pycapsules, to_schema_pycapsule, to_stream_pycapsule};
use walden_arrow::row_changes::{ROW_CHANGE_BATCH_ROWS, RowTable};
use walden_arrow::{BATCH_ROWS, Batches, Table as Name, is_divisible};
use walden_format::lsn::Lsn;
use walden_format::transam::without_epoch;
use walden_rows::{Filter, Operation, Options, RowChanges, Wanted};

use crate::errors;
use crate::interrupt::{self, SIGNALS_EVERY};
use crate::log::Log;
use crate::parts::{self, Place};
use crate::stream::{LastError, Reading, Stream, abandon};

/// A table of the WAL for Arrow's PyCapsule interface. Each stream reads the WAL again.
#[pyclass(frozen, module = "walden._walden")]
pub struct Table {
    reading: Arc<Reading>,
    last_error: LastError,
}

/// Returns a table of the WAL, or of a part of it with the bounds of its range.
#[pyfunction]
#[pyo3(signature = (log, name, *, columns, lsn_text, batch_rows, part))]
pub fn table(
    py: Python<'_>,
    log: &Log,
    name: &str,
    columns: Option<Vec<String>>,
    lsn_text: bool,
    batch_rows: Option<usize>,
    part: Option<(Place, Option<u64>, Option<u64>)>,
) -> PyResult<Table> {
    let table = table_of(name)?;
    let batch_rows = rows_of_a_batch(batch_rows, BATCH_ROWS)?;
    let known: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
    let columns = columns.map(|names| indexes_of(&known, name, &names)).transpose()?;
    let (mut options, part) = match part {
        None => (log.options(py, None)?, None),
        Some(_) if !is_divisible(table) => {
            let problem = format!(
                "part: expected a table that can be read in parts (records, blocks, framing, segments), found {name}"
            );
            return Err(errors::wrong_value(problem));
        }
        Some((place, from, to)) => {
            // Bounds by time were converted to LSNs when the WAL was divided.
            let mut options = walden_arrow::ReadOptions::new(Arc::clone(&log.names), log.threads);
            (options.from, options.to) = (from.map(Lsn), to.map(Lsn));
            (options, Some(parts::find(&log.inventory, place)?))
        }
    };
    options.columns = columns;
    options.lsn_text = lsn_text;
    options.batch_rows = batch_rows;
    let reading = Reading::Table { inventory: Arc::clone(&log.inventory), table, options, part };
    Ok(Table { reading: Arc::new(reading), last_error: LastError::default() })
}

/// Returns the row changes of a table, and notes for the caller. Reads the WAL once, for the table's columns.
#[pyfunction]
#[pyo3(signature = (log, relation, *, base, aborted, xid, operations, columns, lsn_text, batch_rows, memory))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of a function of Python")]
pub fn row_changes(
    py: Python<'_>,
    log: &Log,
    relation: String,
    base: Option<PathBuf>,
    aborted: bool,
    xid: Option<u64>,
    operations: Vec<String>,
    columns: Option<Vec<String>>,
    lsn_text: bool,
    batch_rows: Option<usize>,
    memory: usize,
) -> PyResult<(Table, Vec<String>)> {
    let operation = |name: &String| {
        let known = || Operation::ALL.map(Operation::name).join(", ");
        Operation::from_name(name).ok_or_else(|| {
            errors::wrong_value(format!("operations: expected some of {}, found {name}", known()))
        })
    };
    let operations = operations.iter().map(operation).collect::<PyResult<Vec<_>>>()?;
    let xid = xid.map(without_epoch).transpose();
    let xid = xid.map_err(|error| errors::wrong_value(format!("xid: {error}")))?;
    let batch_rows = rows_of_a_batch(batch_rows, ROW_CHANGE_BATCH_ROWS)?;
    let range = log.options(py, base.as_deref())?;
    let options = Options::new(Wanted::Name(relation), memory)
        .base(base)
        .filter(Filter { from: range.from, to: range.to, xid, operations, with_aborted: aborted })
        .threads(log.threads);
    let (inventory, names) = (Arc::clone(&log.inventory), Arc::clone(&log.names));
    let surveyed = interrupt::run(py, move |cancel| {
        let changes = RowChanges::survey_part_of(&inventory.runs, &names, options, |_| cancel.check())?;
        RowTable::new(changes, lsn_text)
    })?;
    let mut table = surveyed.map_err(|error| errors::from_rows(&error))?;
    let notes = table.changes().notes.iter().map(|note| errors::with_arguments(note)).collect();
    if let Some(names) = columns {
        let schema = table.schema();
        let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        table = table
            .project(&indexes_of(&known, "row_changes", &names)?)
            .map_err(|error| errors::other(&error))?;
    }
    let reading = Reading::RowChanges { table: Box::new(table), batch_rows };
    Ok((Table { reading: Arc::new(reading), last_error: LastError::default() }, notes))
}

/// Returns the names of the tables.
#[pyfunction]
pub fn table_names() -> Vec<&'static str> {
    Name::all().map(Name::name).collect()
}

/// Returns whether a table can be read in parts.
#[pyfunction]
pub fn can_be_divided(name: &str) -> PyResult<bool> {
    Ok(is_divisible(table_of(name)?))
}

/// Returns the schema of a table, without a source.
#[pyfunction]
pub fn schema(name: &str) -> PyResult<Schema> {
    Ok(Schema(table_of(name)?.schema()))
}

fn table_of(name: &str) -> PyResult<Name> {
    Name::from_name(name).ok_or_else(|| {
        errors::wrong_value(format!("table: expected one of {}, found {name}", table_names().join(", ")))
    })
}

/// Returns the maximum number of rows per batch. It is limited, because memory for the rows is allocated in
/// advance and larger batches have no benefit.
fn rows_of_a_batch(wanted: Option<usize>, default: usize) -> PyResult<usize> {
    match wanted {
        Some(0) => Err(errors::wrong_value("batch_rows: expected 1 or more, found 0")),
        Some(rows) => Ok(rows.min(16 * BATCH_ROWS)),
        None => Ok(default),
    }
}

/// Returns the indexes of the selected columns among those of the table.
fn indexes_of(known: &[&str], table: &str, names: &[String]) -> PyResult<Vec<usize>> {
    let mut indexes = Vec::with_capacity(names.len().min(known.len()));
    for name in names {
        let index = known.iter().position(|column| column == name).ok_or_else(|| {
            let known = known.join(", ");
            errors::wrong_value(format!("columns: {table} has no column {name}; it has {known}"))
        })?;
        if indexes.contains(&index) {
            return Err(errors::wrong_value(format!("columns: {name} is there twice")));
        }
        indexes.push(index);
    }
    Ok(indexes)
}

#[pymethods]
impl Table {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyArrowResult<Bound<'py, PyCapsule>> {
        let stream = Stream::start(py, &self.reading, &self.last_error)?;
        let arrays = stream.map(|batch| batch.map(|batch| Arc::new(StructArray::from(batch)) as ArrayRef));
        let reader = ArrayIterator::new(arrays, struct_field(&self.reading.schema()));
        to_stream_pycapsule(py, Box::new(reader), requested_schema)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyArrowResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.reading.schema().as_ref())
    }

    fn __iter__(&self) -> BatchIterator {
        BatchIterator { batches: Mutex::new(Some(self.reading.start())) }
    }

    fn __repr__(&self) -> String {
        let schema = self.reading.schema();
        let fields = schema.fields().iter().map(|field| column_line(field));
        let (name, segments) = (self.reading.name(), self.reading.segments());
        format!("walden.Table {name} of {segments} segments\n{}", fields.collect::<Vec<_>>().join("\n"))
    }

    /// The table's name.
    #[getter]
    fn name(&self) -> &'static str {
        self.reading.name()
    }

    /// The names of its columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.reading.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The exception for the error that ended the last stream of this table. The stream's consumer can only
    /// raise its own exception, with the same text.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<PyErr> {
        self.last_error.exception(py)
    }
}

/// A schema for pyarrow and other Arrow consumers.
#[pyclass(frozen, module = "walden._walden")]
pub struct Schema(SchemaRef);

#[pymethods]
impl Schema {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyArrowResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.0.as_ref())
    }

    fn __repr__(&self) -> String {
        self.0.fields().iter().map(|field| column_line(field)).collect::<Vec<_>>().join("\n")
    }
}

fn struct_field(schema: &SchemaRef) -> FieldRef {
    Arc::new(Field::new_struct("", schema.fields().clone(), false).with_metadata(schema.metadata().clone()))
}

fn column_line(field: &Field) -> String {
    let data_type = match field.data_type() {
        DataType::Dictionary(..) => "text, dictionary".to_owned(),
        DataType::Utf8 => "text".to_owned(),
        DataType::Timestamp(..) => "timestamp[us, UTC]".to_owned(),
        other => other.to_string().to_lowercase(),
    };
    let description = field.metadata().get("description").map_or("", String::as_str);
    format!(
        "  {}: {data_type}{}  {description}",
        field.name(),
        if field.is_nullable() { ", nullable" } else { "" }
    )
}

/// The batches of a table. An error is raised as Walden's own exception.
#[pyclass(module = "walden._walden")]
pub struct BatchIterator {
    batches: Mutex<Option<Batches>>,
}

#[pymethods]
impl BatchIterator {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let reading = self.batches.get_mut().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Err(interrupt) = py.check_signals() {
                abandon(reading.take());
                return Err(interrupt);
            }
            let Some(batches) = reading else { return Ok(None) };
            match py.detach(|| batches.next_batch_within(SIGNALS_EVERY)) {
                None => {}
                Some(Some(Ok(batch))) => return Ok(Some(Batch(batch))),
                Some(ended) => {
                    *reading = None;
                    return match ended {
                        Some(Err(error)) => Err(errors::from_read(py, &error)),
                        _ => Ok(None),
                    };
                }
            }
        }
    }
}

impl Drop for BatchIterator {
    fn drop(&mut self) {
        abandon(self.batches.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Rows of a table, for `pyarrow.record_batch(batch)` and other consumers of Arrow's PyCapsule interface.
#[pyclass(frozen, module = "walden._walden")]
pub struct Batch(RecordBatch);

#[pymethods]
impl Batch {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyArrowResult<Bound<'py, PyTuple>> {
        let array = StructArray::from(self.0.clone());
        to_array_pycapsules(py, struct_field(&self.0.schema()), &array as &dyn Array, requested_schema)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyArrowResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.0.schema().as_ref())
    }

    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    fn __repr__(&self) -> String {
        format!("walden.Batch of {} rows and {} columns", self.0.num_rows(), self.0.num_columns())
    }
}
