//! Writers of files: Parquet, Arrow, CSV.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::reader::FileReader;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::schema::types::ColumnPath;

/// Rows of a row group: what a reader can skip by its statistics, and what a writer keeps in memory.
const ROW_GROUP: usize = 1 << 19;
/// The key of a file's metadata that says what it was made of.
pub const CONTENT_KEY: &str = "walden.content";

/// A format of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileFormat {
    /// Parquet, compressed with zstd, with statistics.
    Parquet,
    /// Arrow's file format (Feather 2), compressed with zstd.
    Arrow,
    /// Comma-separated values with a line of names.
    Csv,
}

impl FileFormat {
    /// The ending of files' names, without a dot.
    pub fn ending(self) -> &'static str {
        match self {
            FileFormat::Parquet => "parquet",
            FileFormat::Arrow => "arrow",
            FileFormat::Csv => "csv",
        }
    }
}

/// Writes batches of one schema to a file.
pub enum TableWriter<W: Write + Send> {
    /// See [`FileFormat::Parquet`].
    Parquet(Box<ArrowWriter<W>>),
    /// See [`FileFormat::Arrow`].
    Arrow(Box<FileWriter<W>>, SchemaRef),
    /// See [`FileFormat::Csv`].
    Csv(Box<arrow::csv::Writer<W>>),
}

impl<W: Write + Send> TableWriter<W> {
    /// Begins a file. `content` says what it is made of, under [`CONTENT_KEY`]; files in CSV do not have it.
    ///
    /// # Errors
    /// That of `out`.
    pub fn new(
        out: W,
        format: FileFormat,
        schema: &SchemaRef,
        content: &str,
    ) -> Result<TableWriter<W>, ArrowError> {
        match format {
            FileFormat::Parquet => {
                let properties = properties(schema, content);
                let writer = ArrowWriter::try_new(out, schema.clone(), Some(properties)).map_err(external)?;
                Ok(TableWriter::Parquet(Box::new(writer)))
            }
            FileFormat::Arrow => {
                let plain = without_dictionaries(schema);
                let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD))?;
                let mut writer = FileWriter::try_new_with_options(out, &plain, options)?;
                writer.write_metadata(CONTENT_KEY, content);
                Ok(TableWriter::Arrow(Box::new(writer), plain))
            }
            FileFormat::Csv => Ok(TableWriter::Csv(Box::new(arrow::csv::Writer::new(out)))),
        }
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// That of the output.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        match self {
            TableWriter::Parquet(writer) => writer.write(batch).map_err(external),
            TableWriter::Arrow(writer, plain) => {
                let columns: Vec<ArrayRef> = batch
                    .columns()
                    .iter()
                    .zip(plain.fields())
                    .map(|(column, field)| cast(column, field.data_type()))
                    .collect::<Result<_, _>>()?;
                writer.write(&RecordBatch::try_new(plain.clone(), columns)?)
            }
            TableWriter::Csv(writer) => writer.write(batch),
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// That of the output.
    pub fn finish(self) -> Result<W, ArrowError> {
        match self {
            TableWriter::Parquet(writer) => writer.into_inner().map_err(external),
            TableWriter::Arrow(mut writer, _) => {
                writer.finish()?;
                writer.into_inner()
            }
            TableWriter::Csv(writer) => Ok(writer.into_inner()),
        }
    }
}

fn external(error: ParquetError) -> ArrowError {
    ArrowError::from(error)
}

fn properties(schema: &SchemaRef, content: &str) -> WriterProperties {
    // What was written without metadata is not of Walden's making.
    let metadata = vec![KeyValue::new(CONTENT_KEY.to_owned(), content.to_owned())];
    let sorting = schema
        .index_of("start_lsn")
        .ok()
        .map(|index| vec![SortingColumn { column_idx: index as i32, descending: false, nulls_first: false }]);
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
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

/// Each batch has dictionaries of its own, which Arrow's file format has no room for.
fn without_dictionaries(schema: &SchemaRef) -> SchemaRef {
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|field| match field.data_type() {
            DataType::Dictionary(_, value) => field.as_ref().clone().with_data_type(value.as_ref().clone()),
            _ => field.as_ref().clone(),
        })
        .collect();
    Arc::new(Schema::new(fields))
}

/// What a file was made of, see [`TableWriter::new`]; `None` if it does not say so.
///
/// # Errors
/// The file cannot be read as one of this format.
pub fn content(file: std::fs::File, format: FileFormat) -> Result<Option<String>, ArrowError> {
    match format {
        FileFormat::Parquet => {
            let reader = SerializedFileReader::new(file).map_err(external)?;
            let metadata = reader.metadata().file_metadata().key_value_metadata();
            let found = metadata.and_then(|pairs| pairs.iter().find(|pair| pair.key == CONTENT_KEY));
            Ok(found.and_then(|pair| pair.value.clone()))
        }
        FileFormat::Arrow => {
            let reader = FileReader::try_new(file, None)?;
            Ok(reader.custom_metadata().get(CONTENT_KEY).cloned())
        }
        FileFormat::Csv => Ok(None),
    }
}
