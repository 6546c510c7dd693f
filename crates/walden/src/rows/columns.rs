//! Changes as a file of columns: Parquet or Arrow.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use arrow::array::{
    ArrayRef, RecordBatch, StringBuilder, TimestampMicrosecondBuilder, UInt32Builder, UInt64Builder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use walden_arrow::export::{FileFormat, TableWriter};
use walden_codec::container::Meta;
use walden_rows::{Entry, Image, Outcome};

use super::print::{Object, state};
use crate::output::Output;

/// Changes of a batch.
const BATCH: usize = 8192;

/// Writes entries to a file, which appears when it is finished.
pub(super) struct ColumnFile {
    output: Output,
    writer: TableWriter<File>,
    schema: SchemaRef,
    columns: Columns,
}

impl ColumnFile {
    pub fn new(path: &Path, format: FileFormat) -> Result<ColumnFile> {
        let schema = schema();
        let output = Output::create_result(path)?;
        let writer = TableWriter::new(output.file().try_clone()?, format, &schema, "walden rows 1")?;
        Ok(ColumnFile { output, writer, schema, columns: Columns::default() })
    }

    pub fn entry(&mut self, entry: &Entry) -> Result<()> {
        self.columns.add(entry)?;
        if self.columns.rows < BATCH { Ok(()) } else { self.flush() }
    }

    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.writer.finish()?;
        self.output.commit(&Meta::default()).map(drop)
    }

    fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.columns).batch(&self.schema)?;
        Ok(self.writer.write(&batch)?)
    }
}

fn schema() -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let text = DataType::Utf8;
    Arc::new(Schema::new(vec![
        Field::new("lsn", DataType::UInt64, false),
        Field::new("time", time, true),
        Field::new("state", text.clone(), false),
        Field::new("xid", DataType::UInt32, false),
        Field::new("top_xid", DataType::UInt32, false),
        Field::new("relation", text.clone(), false),
        Field::new("operation", text.clone(), false),
        Field::new("before", text.clone(), true),
        Field::new("after", text.clone(), true),
        Field::new("before_unknown", text.clone(), true),
        Field::new("after_unknown", text, true),
    ]))
}

/// The columns of a batch.
#[derive(Default)]
struct Columns {
    rows: usize,
    lsn: UInt64Builder,
    time: TimestampMicrosecondBuilder,
    state: StringBuilder,
    xid: UInt32Builder,
    top_xid: UInt32Builder,
    relation: StringBuilder,
    operation: StringBuilder,
    /// Before and after: the rows as JSON, and why one is not known.
    images: [StringBuilder; 2],
    unknown: [StringBuilder; 2],
}

impl Columns {
    fn add(&mut self, entry: &Entry) -> Result<()> {
        let (xid, top_xid, table, operation) = match entry {
            Entry::Event(event) => (event.xid, event.top_xid, &event.table, event.kind.name()),
            Entry::Change(change) => (change.xid, change.top_xid, &change.table, change.operation.name()),
        };
        self.rows += 1;
        self.lsn.append_value(entry.lsn().0);
        self.time.append_option(match entry.outcome() {
            Outcome::Committed { time, .. } => Some(time.unix_micros()),
            Outcome::Aborted { .. } | Outcome::Unfinished => None,
        });
        self.state.append_value(state(entry.outcome()));
        self.xid.append_value(xid);
        self.top_xid.append_value(top_xid);
        self.relation.append_value(table.to_string());
        self.operation.append_value(operation);
        let images = match entry {
            Entry::Event(_) => [&Image::None, &Image::None],
            Entry::Change(change) => [&change.before, &change.after],
        };
        for ((image, rows), unknown) in images.into_iter().zip(&mut self.images).zip(&mut self.unknown) {
            let json = image.row().map(|row| serde_json::to_string(&Object(table, row))).transpose()?;
            rows.append_option(json);
            unknown.append_option(match image {
                Image::Unknown(why) => Some(*why),
                Image::None | Image::Row(_) => None,
            });
        }
        Ok(())
    }

    fn batch(mut self, schema: &SchemaRef) -> Result<RecordBatch> {
        let time = self.time.finish().with_timezone("UTC");
        let [before, after] = &mut self.images;
        let [before_unknown, after_unknown] = &mut self.unknown;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.lsn.finish()),
            Arc::new(time),
            Arc::new(self.state.finish()),
            Arc::new(self.xid.finish()),
            Arc::new(self.top_xid.finish()),
            Arc::new(self.relation.finish()),
            Arc::new(self.operation.finish()),
            Arc::new(before.finish()),
            Arc::new(after.finish()),
            Arc::new(before_unknown.finish()),
            Arc::new(after_unknown.finish()),
        ];
        Ok(RecordBatch::try_new(schema.clone(), columns)?)
    }
}
