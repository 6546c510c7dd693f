//! Options for reading a table: the rows, the batches, and the errors.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use walden_explain::{Bound, ExplainError, StepBack, Timeline};
use walden_format::lsn::Lsn;
use walden_source::inventory::Run;
use walden_source::names::Names;
use walden_source::scan::Damage;

use crate::columns::NO_TIME;
use crate::rows::ColumnSelection;
use crate::schema::{ColumnType, Table};
use crate::segments::Bounds;

/// Default number of rows of a batch.
pub const BATCH_ROWS: usize = 1 << 16;

/// The rows of a table to read, and how to read them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadOptions {
    /// Names of relations and databases.
    pub names: Arc<Names>,
    /// Indexes of the wanted columns in [`Table::columns`], in the order of the batches; `None` for all.
    pub columns: Option<Vec<usize>>,
    /// Only records that start here or later.
    pub from: Option<Lsn>,
    /// Only records that start before this.
    pub to: Option<Lsn>,
    /// Number of decoding threads, at least 1. All have ended when a function that takes these options
    /// returns.
    pub threads: usize,
    /// Number of rows of a full batch, at least 1. The blocks of one record are in one batch, which may
    /// therefore have up to 32 more.
    pub batch_rows: usize,
    /// Whether each LSN column has a second column, `NAME_text`, with the LSN as text, as in `16/B374D848`.
    pub lsn_text: bool,
}

walden_format::setters!(ReadOptions {
    names: Arc<Names>,
    columns: Option<Vec<usize>>,
    from: Option<Lsn>,
    to: Option<Lsn>,
    threads: usize,
    batch_rows: usize,
    lsn_text: bool,
});

impl ReadOptions {
    /// Selects all columns of all records, with `threads` threads.
    pub fn new(names: Arc<Names>, threads: usize) -> ReadOptions {
        ReadOptions {
            names,
            columns: None,
            from: None,
            to: None,
            threads,
            batch_rows: BATCH_ROWS,
            lsn_text: false,
        }
    }

    /// Sets the range between two bounds. A bound by time needs a pass over the runs; `progress` receives the
    /// bytes read. `base` is the start of the base backup on which rows are replayed, if there is one.
    /// Returns where the server's clock was set back, if that makes a bound ambiguous.
    ///
    /// # Errors
    /// No transaction ends at or after the start.
    pub fn set_range(
        &mut self,
        runs: &[Run],
        from: Option<Bound>,
        to: Option<Bound>,
        base: Option<Lsn>,
        progress: impl FnMut(u64),
    ) -> Result<Option<StepBack>, ExplainError> {
        let by_time = |bound| matches!(bound, Some(Bound::Time(_)));
        let timeline = match by_time(from) || by_time(to) {
            true => Timeline::read(runs, self.threads, progress),
            false => Timeline::default(),
        };
        (self.from, self.to) = match base {
            Some(base) => timeline.range_on_base(from, to, base)?,
            None => timeline.range(from, to)?,
        };
        Ok(timeline.ambiguous([from, to]))
    }

    /// Returns the schema of the batches of a table.
    pub fn schema(&self, table: Table) -> SchemaRef {
        let all = table.schema();
        let mut fields: Vec<Arc<Field>> =
            self.columns_of(table).into_iter().map(|index| all.fields()[index].clone()).collect();
        if self.lsn_text {
            for index in self.columns_of(table) {
                let column = &table.columns()[index];
                if column.column_type == ColumnType::Lsn {
                    let name = format!("{}_text", column.name);
                    fields.push(Arc::new(Field::new(name, DataType::Utf8, column.nullable)));
                }
            }
        }
        Arc::new(Schema::new(fields))
    }

    pub(crate) fn columns_of(&self, table: Table) -> Vec<usize> {
        let count = table.columns().len();
        match &self.columns {
            Some(columns) => columns.iter().copied().filter(|index| *index < count).collect(),
            None => (0..count).collect(),
        }
    }

    pub(crate) fn wanted(&self, table: Table) -> ColumnSelection {
        ColumnSelection { table, columns: self.columns_of(table) }
    }

    pub(crate) fn bounds(&self, wanted: &ColumnSelection) -> Bounds {
        let known_time = if wanted.any(&["time"]) { None } else { Some(NO_TIME) };
        Bounds { from: self.from, to: self.to, threads: self.threads, in_turn: false, known_time }
    }

    /// Creates a batch of a table's columns; `column` creates each by its name.
    pub(crate) fn batch(
        &self,
        table: Table,
        rows: usize,
        column: impl Fn(&str) -> ArrayRef,
    ) -> Result<RecordBatch, ArrowError> {
        let columns = self.columns_of(table);
        let mut arrays: Vec<ArrayRef> =
            columns.iter().map(|index| column(table.columns()[*index].name)).collect();
        if self.lsn_text {
            for (place, index) in columns.iter().enumerate() {
                if table.columns()[*index].column_type == ColumnType::Lsn {
                    arrays.push(lsn_text(&arrays[place]));
                }
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema(table), arrays, &options)
    }
}

/// Returns LSNs as text, as an array of strings, from an array of `UInt64`; an empty array for any other
/// type.
pub fn lsn_text(array: &ArrayRef) -> ArrayRef {
    let numbers = array.as_any().downcast_ref::<UInt64Array>();
    let texts = numbers.into_iter().flatten().map(|lsn| lsn.map(|lsn| Lsn(lsn).to_string()));
    Arc::new(StringArray::from_iter(texts))
}

/// The reason why a table cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The WAL is damaged; all rows before the damage were delivered.
    #[error("{0}; {hint}", hint = .0.hint().unwrap_or_default())]
    Damaged(Arc<Damage>),
    /// The WAL cannot be summed up.
    #[error(transparent)]
    Explain(#[from] ExplainError),
    /// The changes of a table's rows cannot be read.
    #[error(transparent)]
    Rows(#[from] walden_rows::RowsError),
    /// A batch cannot be created or used.
    #[error("cannot make a record batch")]
    Arrow(#[from] ArrowError),
}

walden_format::diagnostics! { ReadError {
    // The message contains the hint.
    Self::Damaged(damage) => code_of(damage),
    Self::Rows(error) => of(error),
    Self::Explain(_) | Self::Arrow(_) => none,
} }

/// The receiver of the batches.
pub(crate) type Emit<'a> = dyn FnMut(RecordBatch) -> ControlFlow<()> + Send + 'a;
