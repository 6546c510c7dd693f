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
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::reader::{FileReader as _, SerializedFileReader};

use crate::parquet_file::ParquetFile;

/// The metadata key of a file's source description.
pub const CONTENT_KEY: &str = "walden.content";
/// The metadata key of the reason why rows are missing; complete files do not have it.
pub const INCOMPLETE_KEY: &str = "walden.incomplete";

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
    /// Returns the file name extension, without a dot.
    pub fn ending(self) -> &'static str {
        match self {
            FileFormat::Parquet => "parquet",
            FileFormat::Arrow => "arrow",
            FileFormat::Csv => "csv",
        }
    }
}

/// Writes batches of one schema to a file.
pub struct TableWriter<W: Write + Send>(Writer<W>);

enum Writer<W: Write + Send> {
    Parquet(Box<ParquetFile<W>>),
    /// With the schema of the file.
    Arrow(Box<FileWriter<W>>, SchemaRef),
    Csv(Box<arrow::csv::Writer<W>>),
}

impl<W: Write + Send> TableWriter<W> {
    /// Creates a file. `content` describes its source, stored under [`CONTENT_KEY`] except in CSV files.
    ///
    /// # Errors
    /// Returns the error of `out`.
    pub fn new(
        out: W,
        format: FileFormat,
        schema: &SchemaRef,
        content: &str,
    ) -> Result<TableWriter<W>, ArrowError> {
        let writer = match format {
            FileFormat::Parquet => {
                let metadata = KeyValue::new(CONTENT_KEY.to_owned(), content.to_owned());
                let file = ParquetFile::new(out, schema, metadata).map_err(from_parquet)?;
                Writer::Parquet(Box::new(file))
            }
            FileFormat::Arrow => {
                let plain = without_dictionaries(schema);
                let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD))?;
                let mut writer = FileWriter::try_new_with_options(out, &plain, options)?;
                writer.write_metadata(CONTENT_KEY, content);
                Writer::Arrow(Box::new(writer), plain)
            }
            FileFormat::Csv => Writer::Csv(Box::new(arrow::csv::Writer::new(out))),
        };
        Ok(TableWriter(writer))
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// Returns the error of the output.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        match &mut self.0 {
            Writer::Parquet(writer) => writer.write(batch).map_err(from_parquet),
            Writer::Arrow(writer, plain) => {
                let columns: Vec<ArrayRef> = batch
                    .columns()
                    .iter()
                    .zip(plain.fields())
                    .map(|(column, field)| cast(column, field.data_type()))
                    .collect::<Result<_, _>>()?;
                writer.write(&RecordBatch::try_new(plain.clone(), columns)?)
            }
            Writer::Csv(writer) => writer.write(batch),
        }
    }

    /// Stores the reason for missing rows in the file's metadata, under [`INCOMPLETE_KEY`], except in CSV
    /// files.
    pub fn mark_incomplete(&mut self, why: &str) {
        match &mut self.0 {
            Writer::Parquet(writer) => {
                writer.add_metadata(KeyValue::new(INCOMPLETE_KEY.to_owned(), why.to_owned()));
            }
            Writer::Arrow(writer, _) => writer.write_metadata(INCOMPLETE_KEY, why),
            Writer::Csv(_) => {}
        }
    }

    /// Finishes the file.
    ///
    /// # Errors
    /// Returns the error of the output.
    pub fn finish(self) -> Result<(), ArrowError> {
        match self.0 {
            Writer::Parquet(writer) => writer.finish().map_err(from_parquet),
            Writer::Arrow(mut writer, _) => {
                writer.finish()?;
                writer.into_inner().map(drop)
            }
            Writer::Csv(writer) => {
                writer.into_inner();
                Ok(())
            }
        }
    }
}

/// Keeps the output's error as the source; Arrow's own conversion reduces it to text.
fn from_parquet(error: ParquetError) -> ArrowError {
    match error {
        ParquetError::External(source) => ArrowError::ExternalError(source),
        other => other.into(),
    }
}

/// Removes dictionaries: each batch has its own, which Arrow's file format does not support.
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

/// The metadata of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileContent {
    /// The source of the file, see [`TableWriter::new`].
    pub content: String,
    /// Whether it has all rows, see [`TableWriter::mark_incomplete`].
    pub is_complete: bool,
}

/// Reads the metadata of a file; `None` if it has none.
///
/// # Errors
/// The file cannot be read as one of this format.
pub fn content(file: std::fs::File, format: FileFormat) -> Result<Option<FileContent>, ArrowError> {
    let (content, incomplete) = match format {
        FileFormat::Parquet => {
            let reader = SerializedFileReader::new(file)?;
            let pairs = reader.metadata().file_metadata().key_value_metadata();
            let value = |key: &str| {
                let pair = pairs?.iter().find(|pair| pair.key == key)?;
                pair.value.clone()
            };
            (value(CONTENT_KEY), value(INCOMPLETE_KEY))
        }
        FileFormat::Arrow => {
            let reader = FileReader::try_new(file, None)?;
            let value = |key: &str| reader.custom_metadata().get(key).cloned();
            (value(CONTENT_KEY), value(INCOMPLETE_KEY))
        }
        FileFormat::Csv => (None, None),
    };
    Ok(content.map(|content| FileContent { content, is_complete: incomplete.is_none() }))
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;

    use arrow::array::UInt32Array;

    use super::*;

    /// Accepts only this many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Callers choose their advice by the kind of the error.
    #[test]
    fn a_full_disk_is_the_source_of_the_error() {
        let schema = Arc::new(Schema::new(vec![Field::new("number", DataType::UInt32, false)]));
        let numbers: ArrayRef = Arc::new(UInt32Array::from_iter_values(0..100_000));
        let batch = RecordBatch::try_new(schema.clone(), vec![numbers]).unwrap();
        for room in [0, 10, 300] {
            let write = || -> Result<(), ArrowError> {
                let mut writer = TableWriter::new(Full(room), FileFormat::Parquet, &schema, "")?;
                writer.write(&batch)?;
                writer.finish()
            };
            let error = write().expect_err("no room");
            let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
            assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::StorageFull), "{room}: {error:?}");
        }
    }

    #[test]
    fn files_say_whether_rows_are_missing() {
        let schema = Arc::new(Schema::new(vec![Field::new("number", DataType::UInt32, false)]));
        let path = std::env::temp_dir().join(format!("walden-arrow-metadata-{}", std::process::id()));
        for format in [FileFormat::Parquet, FileFormat::Arrow] {
            for is_complete in [true, false] {
                let file = std::fs::File::create(&path).unwrap();
                let mut writer = TableWriter::new(file, format, &schema, "numbers").unwrap();
                if !is_complete {
                    writer.mark_incomplete("damage");
                }
                writer.finish().unwrap();
                let found = content(std::fs::File::open(&path).unwrap(), format).unwrap();
                assert_eq!(
                    found,
                    Some(FileContent { content: "numbers".to_owned(), is_complete }),
                    "{format:?}"
                );
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}
