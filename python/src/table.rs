//! Tables of a log, with the Arrow PyCapsule interface.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, RecordBatch, StructArray};
use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use pyo3_arrow::error::PyArrowResult;
use pyo3_arrow::ffi::{ArrayIterator, to_array_pycapsules, to_schema_pycapsule, to_stream_pycapsule};
use walden_arrow::{BATCH_ROWS, Batches, Table as Name, is_divisible};
use walden_format::lsn::Lsn;

use crate::errors;
use crate::interrupt::SIGNALS_EVERY;
use crate::log::Log;
use crate::parts::{self, Place};
use crate::stream::{LastError, Reading, Stream, abandon};

/// A table of a log: what Arrow's PyCapsule interface takes. Each stream of it is a new reading.
#[pyclass(frozen, module = "walden._walden")]
pub struct Table {
    reading: Reading,
    last_error: LastError,
}

/// A table of a log, or of a part of it with the bounds of its range.
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
    if batch_rows == Some(0) {
        return Err(errors::wrong_value("batch_rows: expected 1 or more, found 0"));
    }
    let columns = columns.map(|names| column_indexes(table, &names)).transpose()?;
    let (mut options, part) = match part {
        None => (log.options(py)?, None),
        Some(_) if !is_divisible(table) => {
            let problem = format!(
                "part: expected a table that can be read in parts (records, blocks, framing, segments), found {name}"
            );
            return Err(errors::wrong_value(problem));
        }
        Some((place, from, to)) => {
            // The positions of bounds by time are known since the log was divided.
            let mut options = walden_arrow::ReadOptions::new(Arc::clone(&log.names), log.threads);
            (options.from, options.to) = (from.map(Lsn), to.map(Lsn));
            (options, Some(parts::find(&log.inventory, place)?))
        }
    };
    options.columns = columns;
    options.lsn_text = lsn_text;
    // More than a batch can have helps nobody, and rows take memory before they are there.
    options.batch_rows = batch_rows.unwrap_or(BATCH_ROWS).min(16 * BATCH_ROWS);
    let reading = Reading { inventory: Arc::clone(&log.inventory), table, options, part };
    Ok(Table { reading, last_error: LastError::default() })
}

/// The names of the tables.
#[pyfunction]
pub fn table_names() -> Vec<&'static str> {
    Name::all().map(Name::name).collect()
}

/// Whether a table can be read in parts.
#[pyfunction]
pub fn can_be_divided(name: &str) -> PyResult<bool> {
    Ok(is_divisible(table_of(name)?))
}

/// The schema of a table, without a log.
#[pyfunction]
pub fn schema(name: &str) -> PyResult<Schema> {
    Ok(Schema(table_of(name)?.schema()))
}

fn table_of(name: &str) -> PyResult<Name> {
    Name::from_name(name).ok_or_else(|| {
        errors::wrong_value(format!("table: expected one of {}, found {name}", table_names().join(", ")))
    })
}

fn column_indexes(table: Name, names: &[String]) -> PyResult<Vec<usize>> {
    let mut indexes = Vec::with_capacity(names.len().min(table.columns().len()));
    for name in names {
        let known = || table.columns().iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
        let index = table.columns().iter().position(|column| column.name == name).ok_or_else(|| {
            errors::wrong_value(format!("columns: {} has no column {name}; it has {}", table.name(), known()))
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
        let reader = ArrayIterator::new(arrays, struct_field(&self.schema_ref()));
        to_stream_pycapsule(py, Box::new(reader), requested_schema)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyArrowResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.schema_ref().as_ref())
    }

    fn __iter__(&self) -> BatchIterator {
        BatchIterator { batches: Mutex::new(Some(self.reading.start())) }
    }

    fn __repr__(&self) -> String {
        let schema = self.schema_ref();
        let fields = schema.fields().iter().map(|field| column_line(field));
        let runs = &self.reading.inventory.runs;
        let segments = match &self.reading.part {
            Some((_, segments)) => segments.len(),
            None => runs.iter().map(|run| run.segments.len()).sum(),
        };
        let name = self.reading.table.name();
        format!("walden.Table {name} of {segments} segments\n{}", fields.collect::<Vec<_>>().join("\n"))
    }

    /// The table's name.
    #[getter]
    fn name(&self) -> &'static str {
        self.reading.table.name()
    }

    /// The names of its columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema_ref().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The exception for what ended the last stream of this table, whose consumer could only raise one of its own with the same text.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<PyErr> {
        self.last_error.exception(py)
    }
}

impl Table {
    fn schema_ref(&self) -> SchemaRef {
        self.reading.options.schema(self.reading.table)
    }
}

/// A schema that pyarrow and others take.
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

/// The batches of a table, one after the other; what ends them early is raised as Walden's own exception.
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
                        Some(Err(error)) => Err(errors::of_read(py, &error)),
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

/// Rows of a table, for `pyarrow.record_batch(batch)` and whatever else knows Arrow's PyCapsule interface.
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
