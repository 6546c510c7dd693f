//! A writer of Parquet files.

use std::io::Write;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, FieldRef, Int32Type, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::Result;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;

use crate::export::CONTENT_KEY;
use crate::parquet_labels::LabelChunk;

/// Rows of a row group: what a reader can skip by its statistics, and what a writer keeps in memory.
const ROW_GROUP: usize = 1 << 19;

/// Writes batches of one schema, compressed with zstd.
pub struct ParquetFile<W: Write + Send> {
    file: SerializedFileWriter<W>,
    schema: SchemaRef,
    factory: ArrowRowGroupWriterFactory,
    level: ZstdLevel,
    rows: usize,
    /// Chunks of the row group that is being written, one per leaf; none between row groups.
    chunks: Vec<Chunk>,
}

enum Chunk {
    Labels(Box<LabelChunk>),
    Other(Box<ArrowColumnWriter>),
}

impl<W: Write + Send> ParquetFile<W> {
    /// Begins a file; `content` is put under [`CONTENT_KEY`].
    pub(crate) fn new(out: W, schema: &SchemaRef, content: &str) -> Result<ParquetFile<W>> {
        let level = ZstdLevel::default();
        // With Arrow's schema in the file's metadata.
        let writer = ArrowWriter::try_new(out, schema.clone(), Some(properties(schema, content, level)))?;
        let (file, factory) = writer.into_serialized_writer()?;
        Ok(ParquetFile { file, schema: schema.clone(), factory, level, rows: 0, chunks: Vec::new() })
    }

    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut from = 0;
        while from < batch.num_rows() {
            let rows = (ROW_GROUP - self.rows).min(batch.num_rows() - from);
            self.add(&batch.slice(from, rows))?;
            from += rows;
            if self.rows == ROW_GROUP {
                self.end_row_group()?;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<W> {
        self.end_row_group()?;
        self.file.into_inner()
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.chunks.is_empty() {
            self.begin_row_group()?;
        }
        let mut chunks = self.chunks.iter_mut();
        for (field, column) in self.schema.fields().iter().zip(batch.columns()) {
            if is_label(field) {
                if let Some(Chunk::Labels(chunk)) = chunks.next() {
                    chunk.write(column.as_dictionary::<Int32Type>());
                }
                continue;
            }
            for leaf in compute_leaves(field, column)? {
                if let Some(Chunk::Other(chunk)) = chunks.next() {
                    chunk.write(&leaf)?;
                }
            }
        }
        self.rows += batch.num_rows();
        Ok(())
    }

    fn begin_row_group(&mut self) -> Result<()> {
        let index = self.file.flushed_row_groups().len();
        let writers = self.factory.create_column_writers(index)?;
        let descriptors = self.file.schema_descr().columns();
        // Labels are leaves; so are most columns, and others have several.
        let names: Vec<&str> = self
            .schema
            .fields()
            .iter()
            .filter(|field| is_label(field))
            .map(|field| field.name().as_str())
            .collect();
        let is_label_leaf =
            |path: &ColumnPath| matches!(path.parts(), [name] if names.contains(&name.as_str()));
        self.chunks = writers
            .into_iter()
            .zip(descriptors)
            .map(|(writer, descriptor)| match is_label_leaf(descriptor.path()) {
                true => Chunk::Labels(Box::new(LabelChunk::new(descriptor.clone()))),
                false => Chunk::Other(Box::new(writer)),
            })
            .collect();
        Ok(())
    }

    fn end_row_group(&mut self) -> Result<()> {
        if self.chunks.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for chunk in self.chunks.drain(..) {
            match chunk {
                Chunk::Labels(chunk) => {
                    let (bytes, close) = chunk.close(self.level)?;
                    group.append_column(&Bytes::from(bytes), close)?;
                }
                Chunk::Other(writer) => writer.close()?.append_to_row_group(&mut group)?,
            }
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }
}

fn is_label(field: &FieldRef) -> bool {
    match field.data_type() {
        DataType::Dictionary(key, value) => **key == DataType::Int32 && **value == DataType::Utf8,
        _ => false,
    }
}

fn properties(schema: &SchemaRef, content: &str, level: ZstdLevel) -> WriterProperties {
    // What was written without metadata is not of Walden's making.
    let metadata = vec![KeyValue::new(CONTENT_KEY.to_owned(), content.to_owned())];
    let sorting = schema
        .index_of("start_lsn")
        .ok()
        .map(|index| vec![SortingColumn { column_idx: index as i32, descending: false, nulls_first: false }]);
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_sorting_columns(sorting)
        .set_key_value_metadata(Some(metadata));
    for field in schema.fields() {
        // Numbers are smaller as differences, and a dictionary of them only takes time.
        if field.data_type().is_integer() || matches!(field.data_type(), DataType::Timestamp(..)) {
            let path = ColumnPath::from(field.name().as_str());
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
    }
    properties.build()
}
