//! A writer of Parquet files: files and row groups of the library, and column chunks of this crate
//! ([`chunk`]) for the types that tables use.

mod chunk;
mod deltas;
mod dictionary;
mod encoder;
mod numbers;
mod packing;
#[cfg(test)]
mod tests;

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::Result;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;

use self::chunk::ColumnChunk;

/// Rows of a row group: the unit that a reader can skip by its statistics, and that a writer keeps in memory.
pub(crate) const ROW_GROUP: usize = 1 << 19;

/// Writes batches of one schema, compressed with zstd.
pub struct ParquetFile<W: Write + Send> {
    file: SerializedFileWriter<W>,
    schema: SchemaRef,
    factory: ArrowRowGroupWriterFactory,
    level: ZstdLevel,
    rows: usize,
    /// Chunks of the current row group, one per leaf; empty between row groups.
    chunks: Vec<Chunk>,
}

enum Chunk {
    Ours(ColumnChunk),
    /// Used for nested columns, and for types that few columns have.
    Library(Box<ArrowColumnWriter>),
}

impl<W: Write + Send> ParquetFile<W> {
    /// Creates a file, with a pair of its metadata.
    pub(crate) fn new(out: W, schema: &SchemaRef, metadata: KeyValue) -> Result<ParquetFile<W>> {
        let level = ZstdLevel::default();
        // Includes Arrow's schema in the file's metadata.
        let writer = ArrowWriter::try_new(out, schema.clone(), Some(properties(schema, metadata, level)))?;
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

    /// Adds a pair to the file's metadata, which is written at its end.
    pub(crate) fn add_metadata(&mut self, pair: KeyValue) {
        self.file.append_key_value_metadata(pair);
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.end_row_group()?;
        self.file.finish().map(drop)
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.chunks.is_empty() {
            self.begin_row_group(batch)?;
        }
        let mut chunks = self.chunks.iter_mut().peekable();
        for (field, column) in self.schema.fields().iter().zip(batch.columns()) {
            if let Some(Chunk::Ours(chunk)) = chunks.next_if(|next| matches!(next, Chunk::Ours(_))) {
                chunk.write(column)?;
                continue;
            }
            for leaf in compute_leaves(field, column)? {
                if let Some(Chunk::Library(chunk)) = chunks.next() {
                    chunk.write(&leaf)?;
                }
            }
        }
        self.rows += batch.num_rows();
        Ok(())
    }

    /// Chooses the encoding of each column from the first rows of the row group.
    fn begin_row_group(&mut self, batch: &RecordBatch) -> Result<()> {
        let index = self.file.flushed_row_groups().len();
        let writers = self.factory.create_column_writers(index)?;
        let leaves = self.file.schema_descr();
        for (leaf, writer) in writers.into_iter().enumerate() {
            let (descriptor, column) = (leaves.column(leaf), batch.column(leaves.get_column_root_idx(leaf)));
            let ours = match descriptor.path().parts() {
                [_] => ColumnChunk::new(&descriptor, column, self.level)?,
                _ => None,
            };
            self.chunks.push(match ours {
                Some(chunk) => Chunk::Ours(chunk),
                None => Chunk::Library(Box::new(writer)),
            });
        }
        Ok(())
    }

    fn end_row_group(&mut self) -> Result<()> {
        if self.chunks.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for chunk in self.chunks.drain(..) {
            match chunk {
                Chunk::Ours(chunk) => {
                    let (bytes, close) = chunk.close()?;
                    group.append_column(&Bytes::from(bytes), close)?;
                }
                Chunk::Library(writer) => writer.close()?.append_to_row_group(&mut group)?,
            }
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }
}

fn properties(schema: &SchemaRef, metadata: KeyValue, level: ZstdLevel) -> WriterProperties {
    let sorting = schema
        .index_of("start_lsn")
        .ok()
        .map(|index| vec![SortingColumn { column_idx: index as i32, descending: false, nulls_first: false }]);
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_sorting_columns(sorting)
        .set_key_value_metadata(Some(vec![metadata]))
        .build()
}
