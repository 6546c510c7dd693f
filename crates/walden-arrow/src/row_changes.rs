//! The changes of a table's rows, as a table with typed columns.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Float32Builder,
    Float64Builder, Int16Builder, Int32Builder, Int64Builder, MapBuilder, RecordBatch, RecordBatchOptions,
    StringBuilder, StructArray, Time64MicrosecondBuilder, TimestampMicrosecondBuilder, UInt32Builder,
    UInt64Builder,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::kernels::cast_utils::{Parser, parse_decimal};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Field, Fields, Float32Type, Float64Type, Schema, SchemaRef,
    Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use arrow::error::ArrowError;
use arrow::temporal_conversions::{date32_to_datetime, timestamp_us_to_datetime};
use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::payload::timestamp::EPOCH_DAYS;
use walden_rows::value::{Numeric, NumericSign, Value};
use walden_rows::{
    Cell, ColumnType, Entry, Filter, Image, Outcome, RowChanges, RowsError, Summary, TypedColumn, oid,
};

use crate::options::{ReadError, lsn_text};

/// Default number of rows in a batch of changed rows.
pub const ROW_CHANGE_BATCH_ROWS: usize = 8192;
/// Bytes of values at which a batch is full, because rows may have large values.
const BATCH_BYTES: usize = 16 << 20;
/// Arrow counts from 1970-01-01.
const EPOCH_MICROS: i64 = EPOCH_DAYS * DAY_MICROS;
const DAY_MICROS: i64 = 86_400_000_000;
/// Number of digits of a 128-bit decimal.
const MAX_DIGITS: u8 = 38;

/// The changes of a table's rows, with a schema that includes the table's columns.
#[derive(Clone, Debug)]
pub struct RowTable {
    changes: RowChanges,
    columns: Arc<[RowColumn]>,
    /// The schema of the wanted columns.
    schema: SchemaRef,
    /// Indexes of the wanted columns; `None` for all columns in their order.
    wanted: Option<Arc<[usize]>>,
    /// Whether any wanted column describes the rows before, and the rows after.
    wants_images: [bool; 2],
    lsn_text: bool,
}

/// A column of the rows.
#[derive(Clone, Debug)]
struct RowColumn {
    name: String,
    data_type: DataType,
}

impl RowTable {
    /// Computes the schema. With `lsn_text`, each LSN column has a second column with the LSN as text, as in
    /// `16/B374D848`.
    ///
    /// # Errors
    /// The table has no columns.
    pub fn new(changes: RowChanges, lsn_text: bool) -> Result<RowTable, RowsError> {
        let column =
            |column: TypedColumn| RowColumn { data_type: data_type(&column.types), name: column.name };
        let columns: Arc<[RowColumn]> = changes.columns()?.into_iter().map(column).collect();
        let schema = schema(&columns, lsn_text);
        Ok(RowTable { changes, columns, schema, wanted: None, wants_images: [true; 2], lsn_text })
    }

    /// Restricts the schema to these columns, in this order.
    ///
    /// # Errors
    /// An index is out of range.
    pub fn project(mut self, columns: &[usize]) -> Result<RowTable, ArrowError> {
        self.schema = Arc::new(self.schema.project(columns)?);
        let wants = |image: &str| self.schema.fields().iter().any(|field| field.name().starts_with(image));
        self.wants_images = ["before", "after"].map(wants);
        let of_all = |index: &usize| self.wanted.as_ref().map_or(*index, |wanted| wanted[*index]);
        self.wanted = Some(columns.iter().map(of_all).collect());
        Ok(self)
    }

    /// Returns the columns, see docs/json.md.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Returns the surveyed changes.
    pub fn changes(&self) -> &RowChanges {
        &self.changes
    }

    /// Reads the changes that pass `filter`, in WAL order, and calls `emit` with each batch until it breaks.
    /// `done` receives the bytes of each segment that was read. A batch has up to `batch_rows` rows.
    ///
    /// # Errors
    /// The changes cannot be read. Damage is not an error: it is in the summary.
    pub fn read(
        &self,
        filter: &Filter,
        batch_rows: usize,
        done: impl FnMut(u64),
        mut emit: impl FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<Summary, ReadError> {
        let mut rows = Rows::new(&self.columns);
        let mut failure = None;
        let mut flush = |rows: &mut Rows| match rows.batch(self) {
            Ok(batch) => emit(batch),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        };
        let mut is_over = false;
        let summary = self.changes.read(filter, done, |entry| {
            rows.add(&self.columns, &entry, self.wants_images);
            if rows.count < batch_rows.max(1) && rows.bytes < BATCH_BYTES {
                return ControlFlow::Continue(());
            }
            let flow = flush(&mut rows);
            is_over = flow.is_break();
            flow
        })?;
        if rows.count > 0 && !is_over {
            // This is the last batch in any case.
            let _ = flush(&mut rows);
        }
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(summary),
        }
    }
}

/// Returns the Arrow type of a column with these PostgreSQL types: the widest integer type, or text for other
/// mixtures.
fn data_type(types: &[ColumnType]) -> DataType {
    let types = types.iter().map(|of| one_type(*of));
    types.reduce(common_type).unwrap_or(DataType::Utf8)
}

fn common_type(one: DataType, other: DataType) -> DataType {
    const INTEGERS: [DataType; 3] = [DataType::Int16, DataType::Int32, DataType::Int64];
    let width = |of: &DataType| INTEGERS.iter().position(|integer| integer == of);
    match (width(&one), width(&other)) {
        _ if one == other => one,
        (Some(width), Some(wider)) => INTEGERS[width.max(wider)].clone(),
        _ => DataType::Utf8,
    }
}

fn one_type(of: ColumnType) -> DataType {
    match of.builtin.unwrap_or_default() {
        oid::BOOL => DataType::Boolean,
        oid::INT2 => DataType::Int16,
        oid::INT4 => DataType::Int32,
        oid::INT8 => DataType::Int64,
        oid::FLOAT4 => DataType::Float32,
        oid::FLOAT8 => DataType::Float64,
        oid::OID | oid::XID | oid::CID => DataType::UInt32,
        oid::XID8 | oid::PG_LSN => DataType::UInt64,
        oid::NUMERIC => decimal(of.typmod),
        oid::BYTEA => DataType::Binary,
        oid::DATE => DataType::Date32,
        oid::TIME => DataType::Time64(TimeUnit::Microsecond),
        oid::TIMESTAMP => DataType::Timestamp(TimeUnit::Microsecond, None),
        oid::TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        _ => DataType::Utf8,
    }
}

/// Returns the type of `numeric(p,s)` (`numeric_typmod_precision` and `numeric_typmod_scale`); text if Arrow
/// has none.
fn decimal(typmod: i32) -> DataType {
    let Some(packed) = typmod.checked_sub(4).filter(|packed| *packed >= 0) else { return DataType::Utf8 };
    let (precision, scale) = (packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024);
    match (u8::try_from(precision), i8::try_from(scale)) {
        (Ok(precision @ 1..=MAX_DIGITS), Ok(scale)) if scale >= 0 && scale as u8 <= precision => {
            DataType::Decimal128(precision, scale)
        }
        _ => DataType::Utf8,
    }
}

fn row_fields(columns: &[RowColumn]) -> Fields {
    columns.iter().map(|column| Field::new(&column.name, column.data_type.clone(), true)).collect()
}

/// Creates a map from column names to reasons.
fn reasons() -> MapBuilder<StringBuilder, StringBuilder> {
    MapBuilder::new(None, StringBuilder::new(), StringBuilder::new())
}

fn schema(columns: &[RowColumn], lsn_text: bool) -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let row = DataType::Struct(row_fields(columns));
    let unknown_columns = arrow::array::ArrayBuilder::finish(&mut reasons()).data_type().clone();
    let mut fields = Vec::new();
    let mut add = |name: &str, data_type: &DataType, nullable, description: &str| {
        let metadata = [("description".to_owned(), description.to_owned())].into();
        fields.push(Field::new(name, data_type.clone(), nullable).with_metadata(metadata));
    };
    let (text, lsn, xid) = (&DataType::Utf8, &DataType::UInt64, &DataType::UInt32);
    add("lsn", lsn, false, "position of the record");
    add("commit_lsn", lsn, true, "position of the commit; NULL if there is none");
    add("time", &time, true, "when the transaction committed; NULL if it did not");
    add("state", text, false, "committed, aborted or unfinished");
    add("xid", xid, false, "transaction or subtransaction");
    add("top_xid", xid, false, "the toplevel transaction");
    add("relation", text, false, "the table; a partition by its own name");
    add("operation", text, false, "insert, update, delete; of events truncate, rewrite, drop");
    add("file", text, true, "of a rewrite the table's file after it");
    add(
        "column",
        text,
        true,
        "of add-column, drop-column, alter-column and set-expression the column's name",
    );
    add("moved", &DataType::Boolean, false, "whether a delete moves the row to another partition");
    add("old_tid", text, true, "where the row was: (block,offset)");
    add("new_tid", text, true, "where the row is");
    add("before", &row, true, "the row before; NULL if there is none or it is not known");
    add("after", &row, true, "the row after; NULL if there is none or it is not known");
    add("before_unknown", text, true, "why the row before is not known");
    add("after_unknown", text, true, "why the row after is not known");
    let description = "why columns of it are NULL that are not in the row: by their names";
    add("before_unknown_columns", &unknown_columns, true, description);
    add("after_unknown_columns", &unknown_columns, true, description);
    if lsn_text {
        add("lsn_text", text, false, "lsn in the form 16/B374D848");
        add("commit_lsn_text", text, true, "commit_lsn in the form 16/B374D848");
    }
    Arc::new(Schema::new(fields))
}

/// Rows that are not yet in a batch.
struct Rows {
    count: usize,
    /// Approximate number of bytes of the values.
    bytes: usize,
    lsn: UInt64Builder,
    commit_lsn: UInt64Builder,
    time: TimestampMicrosecondBuilder,
    state: StringBuilder,
    xid: UInt32Builder,
    top_xid: UInt32Builder,
    relation: StringBuilder,
    operation: StringBuilder,
    file: StringBuilder,
    column: StringBuilder,
    moved: BooleanBuilder,
    tids: [StringBuilder; 2],
    /// Before and after.
    images: [Images; 2],
}

/// The rows before or after the changes.
struct Images {
    columns: Vec<Values>,
    /// Column indexes by name.
    places: Arc<FxHashMap<String, usize>>,
    is_there: Vec<bool>,
    unknown: StringBuilder,
    unknown_columns: MapBuilder<StringBuilder, StringBuilder>,
}

impl Rows {
    fn new(columns: &[RowColumn]) -> Rows {
        let places = columns.iter().enumerate().map(|(place, column)| (column.name.clone(), place));
        let places = Arc::new(places.collect::<FxHashMap<String, usize>>());
        let images = || Images {
            columns: columns.iter().map(|column| Values::new(&column.data_type)).collect(),
            places: Arc::clone(&places),
            is_there: Vec::new(),
            unknown: StringBuilder::new(),
            unknown_columns: reasons(),
        };
        Rows {
            count: 0,
            bytes: 0,
            lsn: UInt64Builder::new(),
            commit_lsn: UInt64Builder::new(),
            time: TimestampMicrosecondBuilder::new(),
            state: StringBuilder::new(),
            xid: UInt32Builder::new(),
            top_xid: UInt32Builder::new(),
            relation: StringBuilder::new(),
            operation: StringBuilder::new(),
            file: StringBuilder::new(),
            column: StringBuilder::new(),
            moved: BooleanBuilder::new(),
            tids: Default::default(),
            images: [images(), images()],
        }
    }

    fn add(&mut self, columns: &[RowColumn], entry: &Entry, wants_images: [bool; 2]) {
        let (xid, top_xid, table, operation) = match entry {
            Entry::Event(event) => (event.xid, event.top_xid, &event.table, event.kind.name()),
            Entry::Change(change) => (change.xid, change.top_xid, &change.table, change.operation.name()),
        };
        let (time, commit) = match entry.outcome() {
            Outcome::Committed { time, lsn } => (Some(time.unix_micros()), Some(lsn)),
            Outcome::Aborted { .. } | Outcome::Unfinished => (None, None),
        };
        self.count += 1;
        self.lsn.append_value(entry.lsn().0);
        self.commit_lsn.append_option(commit.map(|lsn| lsn.0));
        self.time.append_option(time);
        self.state.append_value(entry.outcome().name());
        self.xid.append_value(xid);
        self.top_xid.append_value(top_xid);
        self.relation.append_value(table.to_string());
        self.operation.append_value(operation);
        let (images, tids) = match entry {
            Entry::Event(_) => ([&Image::None, &Image::None], [None, None]),
            Entry::Change(change) => ([&change.before, &change.after], [change.old_tid, change.new_tid]),
        };
        self.file.append_option(match entry {
            Entry::Event(event) => event.kind.file().map(|file| file.to_string()),
            Entry::Change(_) => None,
        });
        self.column.append_option(match entry {
            Entry::Event(event) => event.column.as_deref(),
            Entry::Change(_) => None,
        });
        self.moved.append_value(matches!(entry, Entry::Change(change) if change.is_moved));
        for (builder, tid) in self.tids.iter_mut().zip(tids) {
            builder.append_option(tid.map(|tid| tid.to_string()));
        }
        for ((into, image), is_wanted) in self.images.iter_mut().zip(images).zip(wants_images) {
            // Converting values is most of the work.
            let image = if is_wanted { image } else { &Image::None };
            let names = table.columns.iter().map(|column| column.column.name.as_str());
            self.bytes += into.add(columns, names, image);
        }
    }

    /// Makes a batch and starts a new one.
    fn batch(&mut self, table: &RowTable) -> Result<RecordBatch, ArrowError> {
        let mut rows = std::mem::replace(self, Rows::new(&table.columns));
        let fields = row_fields(&table.columns);
        let [old_tid, new_tid] = &mut rows.tids;
        let [before, after] = &mut rows.images;
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(rows.lsn.finish()),
            Arc::new(rows.commit_lsn.finish()),
            Arc::new(rows.time.finish().with_timezone("UTC")),
            Arc::new(rows.state.finish()),
            Arc::new(rows.xid.finish()),
            Arc::new(rows.top_xid.finish()),
            Arc::new(rows.relation.finish()),
            Arc::new(rows.operation.finish()),
            Arc::new(rows.file.finish()),
            Arc::new(rows.column.finish()),
            Arc::new(rows.moved.finish()),
            Arc::new(old_tid.finish()),
            Arc::new(new_tid.finish()),
            Arc::new(before.rows(&fields)?),
            Arc::new(after.rows(&fields)?),
            Arc::new(before.unknown.finish()),
            Arc::new(after.unknown.finish()),
            Arc::new(before.unknown_columns.finish()),
            Arc::new(after.unknown_columns.finish()),
        ];
        if table.lsn_text {
            // Text forms of the first two columns.
            columns.extend([lsn_text(&columns[0]), lsn_text(&columns[1])]);
        }
        if let Some(wanted) = &table.wanted {
            columns = wanted.iter().map(|index| columns[*index].clone()).collect();
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.count));
        RecordBatch::try_new_with_options(table.schema(), columns, &options)
    }
}

impl Images {
    /// Adds a row; returns its approximate size in bytes.
    fn add<'n>(
        &mut self,
        columns: &[RowColumn],
        names: impl Iterator<Item = &'n str>,
        image: &Image,
    ) -> usize {
        self.is_there.push(image.row().is_some());
        self.unknown.append_option(match image {
            Image::Unknown(why) => Some(*why),
            Image::None | Image::Row(_) => None,
        });
        let cells = image.row().map_or(&[][..], |row| &row.cells);
        let mut bytes = 0;
        let mut has_reason = false;
        let mut explain = |name: &str, why: &dyn Display| {
            has_reason = true;
            self.unknown_columns.keys().append_value(name);
            self.unknown_columns.values().append_value(why.to_string());
        };
        for (name, cell) in names.zip(cells) {
            let place = self.places.get(name).copied();
            match (cell, place) {
                (Cell::Null, _) => {}
                (Cell::Unknown(why), _) => explain(name, why),
                (Cell::Value(value), Some(place)) => match self.columns[place].add(value) {
                    Some(added) => bytes += added,
                    None => {
                        explain(name, &format_args!("{value}: not a value of {}", columns[place].data_type))
                    }
                },
                // The WAL had no catalog row for the column.
                (Cell::Value(value), None) => {
                    explain(name, &format_args!("{value}: of a column that is not known"))
                }
            }
        }
        // An unclosed map has as many offsets as rows, so the lengths match.
        let _ = self.unknown_columns.append(has_reason);
        let count = self.is_there.len();
        self.columns.iter_mut().for_each(|values| values.fill(count));
        bytes + 8 * self.columns.len()
    }

    fn rows(&mut self, fields: &Fields) -> Result<StructArray, ArrowError> {
        let is_there = NullBuffer::new(BooleanBuffer::from(std::mem::take(&mut self.is_there)));
        let arrays: Vec<ArrayRef> = self.columns.iter_mut().map(Values::finish).collect();
        StructArray::try_new(fields.clone(), arrays, Some(is_there))
    }
}

/// Values of a column, by their type.
enum Values {
    Bool(BooleanBuilder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    UInt32(UInt32Builder),
    UInt64(UInt64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Decimal(Decimal128Builder, u8, i8),
    Binary(BinaryBuilder),
    Date(Date32Builder),
    Time(Time64MicrosecondBuilder),
    Timestamp(TimestampMicrosecondBuilder, bool),
    Text(StringBuilder),
}

/// Applies the same code to the builder of each variant.
macro_rules! each_builder {
    ($values:expr, $builder:ident => $work:expr) => {
        match $values {
            Values::Bool($builder) => $work,
            Values::Int16($builder) => $work,
            Values::Int32($builder) => $work,
            Values::Int64($builder) => $work,
            Values::UInt32($builder) => $work,
            Values::UInt64($builder) => $work,
            Values::Float32($builder) => $work,
            Values::Float64($builder) => $work,
            Values::Decimal($builder, ..) => $work,
            Values::Binary($builder) => $work,
            Values::Date($builder) => $work,
            Values::Time($builder) => $work,
            Values::Timestamp($builder, _) => $work,
            Values::Text($builder) => $work,
        }
    };
}

impl Values {
    fn new(data_type: &DataType) -> Values {
        match data_type {
            DataType::Boolean => Values::Bool(BooleanBuilder::new()),
            DataType::Int16 => Values::Int16(Int16Builder::new()),
            DataType::Int32 => Values::Int32(Int32Builder::new()),
            DataType::Int64 => Values::Int64(Int64Builder::new()),
            DataType::UInt32 => Values::UInt32(UInt32Builder::new()),
            DataType::UInt64 => Values::UInt64(UInt64Builder::new()),
            DataType::Float32 => Values::Float32(Float32Builder::new()),
            DataType::Float64 => Values::Float64(Float64Builder::new()),
            DataType::Decimal128(precision, scale) => {
                let builder = Decimal128Builder::new().with_data_type(data_type.clone());
                Values::Decimal(builder, *precision, *scale)
            }
            DataType::Binary => Values::Binary(BinaryBuilder::new()),
            DataType::Date32 => Values::Date(Date32Builder::new()),
            DataType::Time64(_) => Values::Time(Time64MicrosecondBuilder::new()),
            DataType::Timestamp(_, zone) => {
                let builder = TimestampMicrosecondBuilder::new().with_data_type(data_type.clone());
                Values::Timestamp(builder, zone.is_some())
            }
            _ => Values::Text(StringBuilder::new()),
        }
    }

    /// Adds a value and returns its approximate size in bytes; `None` if it does not have the column's type.
    /// Also `None` for a date or time whose year Arrow cannot print: a text output would fail, or contain an
    /// error message instead.
    fn add(&mut self, value: &Value) -> Option<usize> {
        if let Value::Printed(text) = value
            && !matches!(self, Values::Text(_))
        {
            return self.add_printed(text);
        }
        match (self, value) {
            (Values::Bool(builder), Value::Bool(value)) => builder.append_value(*value),
            (Values::Int16(builder), Value::Int2(value)) => builder.append_value(*value),
            (Values::Int32(builder), Value::Int4(value)) => builder.append_value(*value),
            (Values::Int32(builder), Value::Int2(value)) => builder.append_value((*value).into()),
            (Values::Int64(builder), Value::Int2(value)) => builder.append_value((*value).into()),
            (Values::Int64(builder), Value::Int4(value)) => builder.append_value((*value).into()),
            (Values::Int64(builder), Value::Int8(value)) => builder.append_value(*value),
            (Values::UInt32(builder), Value::Oid(value)) => builder.append_value(*value),
            (Values::UInt64(builder), Value::Xid8(value) | Value::Lsn { lsn: value, .. }) => {
                builder.append_value(*value);
            }
            (Values::Float32(builder), Value::Float4(value)) => builder.append_value(value.0),
            (Values::Float64(builder), Value::Float8(value)) => builder.append_value(value.0),
            (Values::Decimal(builder, precision, scale), Value::Numeric(numeric)) => {
                builder.append_value(unscaled(numeric, *precision, *scale)?);
                return Some(16);
            }
            (Values::Binary(builder), Value::Bytea(bytes)) => {
                builder.append_value(bytes);
                return Some(bytes.len());
            }
            (Values::Date(builder), Value::Date(days)) => {
                builder.append_value(
                    finite(i64::from(*days), i32::MIN.into(), i32::MAX.into())
                        .and_then(|days| i32::try_from(days + EPOCH_DAYS).ok())
                        .filter(|days| date32_to_datetime(*days).is_some())?,
                );
            }
            (Values::Time(builder), Value::Time(micros)) => {
                builder.append_value(Some(*micros).filter(|micros| (0..DAY_MICROS).contains(micros))?);
            }
            (Values::Timestamp(builder, false), Value::Timestamp(micros))
            | (Values::Timestamp(builder, true), Value::TimestampTz(micros)) => {
                builder.append_value(
                    finite(*micros, i64::MIN, i64::MAX)
                        .and_then(|micros| micros.checked_add(EPOCH_MICROS))
                        .filter(|micros| timestamp_us_to_datetime(*micros).is_some())?,
                );
            }
            (Values::Text(builder), value) => {
                let text = value.to_string();
                builder.append_value(&text);
                return Some(text.len());
            }
            _ => return None,
        }
        Some(8)
    }

    /// Adds a value that is known only as text: the default of a column from saved names.
    fn add_printed(&mut self, text: &str) -> Option<usize> {
        match self {
            Values::Bool(builder) => builder.append_value(match text {
                "t" => true,
                "f" => false,
                _ => return None,
            }),
            Values::Int16(builder) => builder.append_value(text.parse().ok()?),
            Values::Int32(builder) => builder.append_value(text.parse().ok()?),
            Values::Int64(builder) => builder.append_value(text.parse().ok()?),
            Values::UInt32(builder) => builder.append_value(text.parse().ok()?),
            Values::UInt64(builder) => {
                let lsn = || text.parse::<Lsn>().ok().map(|lsn| lsn.0);
                builder.append_value(text.parse().ok().or_else(lsn)?);
            }
            Values::Float32(builder) => builder.append_value(Float32Type::parse(text)?),
            Values::Float64(builder) => builder.append_value(Float64Type::parse(text)?),
            Values::Decimal(builder, precision, scale) => {
                builder.append_value(parse_decimal::<Decimal128Type>(text, *precision, *scale).ok()?);
            }
            Values::Date(builder) => builder.append_value(Date32Type::parse(text)?),
            Values::Time(builder) => builder.append_value(Time64MicrosecondType::parse(text)?),
            Values::Timestamp(builder, _) => builder.append_value(TimestampMicrosecondType::parse(text)?),
            Values::Binary(_) | Values::Text(_) => return None,
        }
        Some(8)
    }

    /// Adds nulls up to a number of rows.
    fn fill(&mut self, count: usize) {
        use arrow::array::ArrayBuilder as _;
        each_builder!(self, builder => if builder.len() < count { builder.append_null() });
    }

    fn finish(&mut self) -> ArrayRef {
        each_builder!(self, builder => Arc::new(builder.finish()))
    }
}

/// Returns a value unless it is an end of the range, which represents an infinity.
fn finite(value: i64, low: i64, high: i64) -> Option<i64> {
    (value != low && value != high).then_some(value)
}

/// Returns a number as a multiple of its last decimal digit; `None` if it does not fit.
fn unscaled(numeric: &Numeric, precision: u8, scale: i8) -> Option<i128> {
    let is_negative = match numeric.sign {
        NumericSign::Positive => false,
        NumericSign::Negative => true,
        NumericSign::NaN | NumericSign::Infinity | NumericSign::NegativeInfinity => return None,
    };
    let mut number: i128 = 0;
    for (index, digit) in numeric.digits.iter().enumerate() {
        // The decimal power of the digit's last place, relative to the wanted scale.
        let power = 4 * (i64::from(numeric.weight) - i64::try_from(index).ok()?) + i64::from(scale);
        let digit = i128::from(*digit);
        let part = match u32::try_from(power.unsigned_abs()).ok()? {
            _ if digit == 0 => 0,
            up if power >= 0 => digit.checked_mul(10_i128.checked_pow(up)?)?,
            down => {
                let unit = 10_i128.checked_pow(down)?;
                if digit % unit != 0 {
                    return None;
                }
                digit / unit
            }
        };
        number = number.checked_add(part)?;
    }
    let fits = number < 10_i128.checked_pow(precision.into())?;
    fits.then_some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use arrow::util::display::{ArrayFormatter, FormatOptions};

    use super::*;

    fn typed(builtin: u32, typmod: i32) -> DataType {
        data_type(&[ColumnType { builtin: Some(builtin), typmod }])
    }

    #[test]
    fn numerics_with_a_precision_are_decimals() {
        let typmod = |precision: i32, scale: i32| (precision << 16 | scale & 0x7FF) + 4;
        assert_eq!(typed(oid::NUMERIC, typmod(12, 2)), DataType::Decimal128(12, 2));
        assert_eq!(typed(oid::NUMERIC, typmod(38, 38)), DataType::Decimal128(38, 38));
        for typmod in [-1, typmod(39, 2), typmod(3, -2), typmod(2, 4), 3, i32::MAX, i32::MIN] {
            assert_eq!(typed(oid::NUMERIC, typmod), DataType::Utf8, "{typmod}");
        }
    }

    #[test]
    fn columns_of_several_types_have_a_common_one() {
        let of = |builtin| ColumnType { builtin: Some(builtin), typmod: -1 };
        assert_eq!(data_type(&[of(oid::INT4), of(oid::INT4)]), DataType::Int32);
        assert_eq!(data_type(&[of(oid::INT4), of(oid::INT8), of(oid::INT2)]), DataType::Int64);
        assert_eq!(data_type(&[of(oid::INT2), of(oid::INT4)]), DataType::Int32);
        assert_eq!(data_type(&[of(oid::INT4), of(oid::NUMERIC)]), DataType::Utf8);
        assert_eq!(data_type(&[of(oid::INT4), of(oid::TEXT), of(oid::INT4)]), DataType::Utf8);
        let mut wide = Values::new(&DataType::Int64);
        let added =
            [Value::Int2(-1), Value::Int4(i32::MIN), Value::Int8(i64::MAX)].map(|value| wide.add(&value));
        assert_eq!(added, [Some(8); 3]);
        assert_eq!(Values::new(&DataType::Int32).add(&Value::Int8(1)), None);
        assert_eq!(data_type(&[of(oid::TEXT), of(oid::VARCHAR)]), DataType::Utf8);
    }

    #[test]
    fn decimals_are_exact_or_nothing() {
        let numeric =
            |sign, weight, digits: &[u16]| Numeric { sign, weight, scale: 2, digits: digits.to_vec() };
        let (plus, minus) = (NumericSign::Positive, NumericSign::Negative);
        assert_eq!(unscaled(&numeric(plus, 0, &[]), 12, 2), Some(0));
        assert_eq!(unscaled(&numeric(minus, 0, &[12, 3000]), 12, 2), Some(-1230));
        assert_eq!(unscaled(&numeric(plus, -1, &[5]), 4, 4), Some(5));
        assert_eq!(unscaled(&numeric(plus, -1, &[5]), 12, 2), None);
        assert_eq!(unscaled(&numeric(plus, 9, &[9999; 10]), 38, 0), None);
        let largest = numeric(plus, 9, &[99, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999]);
        assert_eq!(unscaled(&largest, 38, 0), Some(10_i128.pow(38) - 1));
        assert_eq!(unscaled(&numeric(plus, i16::MAX, &[1]), 38, 0), None);
        assert_eq!(unscaled(&numeric(NumericSign::NaN, 0, &[]), 12, 2), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut dates = Values::new(&DataType::Date32);
        assert!(dates.add(&Value::Date(0)).is_some());
        assert!(dates.add(&Value::Date(i32::MAX)).is_none());
        let mut times = Values::new(&DataType::Timestamp(TimeUnit::Microsecond, None));
        assert!(times.add(&Value::Timestamp(i64::MIN)).is_none());
        assert!(times.add(&Value::Timestamp(i64::MAX - 1)).is_none());
        assert!(times.add(&Value::TimestampTz(0)).is_none());
        assert!(times.add(&Value::Printed("2024-02-29 12:00:00".to_owned())).is_some());
        let mut days = Values::new(&DataType::Time64(TimeUnit::Microsecond));
        assert!(days.add(&Value::Time(DAY_MICROS)).is_none());
    }

    #[test]
    fn years_that_arrow_cannot_print_are_refused() {
        // 262142-12-31 is the last day that Arrow prints, 5874897-12-31 the last day of PostgreSQL, in days
        // since 2000-01-01.
        let (last, of_postgres) = (95_015_279, 2_145_031_948);
        let mut dates = Values::new(&DataType::Date32);
        assert!(dates.add(&Value::Date(last)).is_some());
        for later in [last + 1, of_postgres] {
            assert!(dates.add(&Value::Date(later)).is_none(), "{later}");
        }
        let end = (i64::from(last) + 1) * DAY_MICROS;
        let mut times = Values::new(&DataType::Timestamp(TimeUnit::Microsecond, None));
        let mut times_with_zone =
            Values::new(&DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())));
        assert!(times.add(&Value::Timestamp(end - 1)).is_some());
        assert!(times.add(&Value::Timestamp(end)).is_none());
        assert!(times_with_zone.add(&Value::TimestampTz(end - 1)).is_some());
        assert!(times_with_zone.add(&Value::TimestampTz(end)).is_none());
        for values in [&mut dates, &mut times] {
            let options = FormatOptions::new().with_display_error(false);
            let array = values.finish();
            let printed =
                ArrayFormatter::try_new(&array, &options).unwrap().value(0).try_to_string().unwrap();
            assert!(printed.starts_with("+262142-12-31"), "{printed}");
        }
    }
}
