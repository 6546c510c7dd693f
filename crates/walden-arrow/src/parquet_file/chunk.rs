//! A column chunk: pages of encoded rows, compressed, with their metadata for the row group and the indexes.
//!
//! The Parquet library processes values one by one: it searches a dictionary for each text, compares each
//! value for the statistics, and packs the bits of each delta individually. These steps took most of the time
//! of an export. This module encodes a page's rows in bulk. The output follows the Parquet specification:
//! data pages of the first version.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef};
use parquet::basic::{BoundaryOrder, Compression, Encoding, PageType, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    ColumnChunkMetaData, ColumnIndexBuilder, OffsetIndexBuilder, PageEncodingStats,
};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use super::deltas::Deltas;
use super::dictionary::Dictionary;
use super::encoder::{Encoder, PAGE, Range, Values};
use super::numbers::NumberType;

/// The rows of one column in a row group.
pub(super) struct ColumnChunk {
    descriptor: ColumnDescPtr,
    level: ZstdLevel,
    encoder: Box<dyn Encoder>,
    pages: Vec<DataPage>,
    compressor: zstd::bulk::Compressor<'static>,
}

/// A data page, compressed.
struct DataPage {
    bytes: Vec<u8>,
    plain_length: usize,
    rows: usize,
    range: Range,
}

impl ColumnChunk {
    /// Creates a chunk for a column that starts with these rows; `None` if the library has to write its type.
    ///
    /// # Errors
    /// The compressor cannot be created for lack of memory.
    pub fn new(
        descriptor: &ColumnDescPtr,
        column: &ArrayRef,
        level: ZstdLevel,
    ) -> Result<Option<ColumnChunk>> {
        let encoder: Box<dyn Encoder> = match Dictionary::from_column(column) {
            Some(dictionary) => Box::new(dictionary),
            None => match NumberType::from_data_type(column.data_type()) {
                Some(numbers) => Box::new(Deltas::new(numbers)),
                None => return Ok(None),
            },
        };
        Ok(Some(ColumnChunk {
            descriptor: descriptor.clone(),
            level,
            encoder,
            pages: Vec::new(),
            compressor: zstd::bulk::Compressor::new(level.compression_level()).map_err(external)?,
        }))
    }

    /// Adds rows of the same type as the first rows.
    ///
    /// # Errors
    /// Returns the compressor's error.
    pub fn write(&mut self, column: &ArrayRef) -> Result<()> {
        let mut from = 0;
        while from < column.len() {
            let rows = (PAGE - self.encoder.rows()).min(column.len() - from);
            self.encoder.add(&column.slice(from, rows));
            from += rows;
            if self.encoder.rows() == PAGE {
                self.end_page()?;
            }
        }
        Ok(())
    }

    fn end_page(&mut self) -> Result<()> {
        let (rows, mut plain) = (self.encoder.rows(), Vec::new());
        let range = self.encoder.end_page(self.descriptor.max_def_level() > 0, &mut plain);
        let bytes = self.compressor.compress(&plain).map_err(external)?;
        self.pages.push(DataPage { bytes, plain_length: plain.len(), rows, range });
        Ok(())
    }

    /// Returns the chunk's bytes and its metadata for a row group.
    ///
    /// # Errors
    /// Returns the compressor's error.
    pub fn close(mut self) -> Result<(Vec<u8>, ColumnCloseResult)> {
        if self.encoder.rows() > 0 {
            self.end_page()?;
        }
        let (values, encoding) = (self.encoder.values(), self.encoder.encoding());
        let mut out = ChunkWriter::new(encoding);
        let encoding_stats = |page_type, encoding, count| PageEncodingStats { page_type, encoding, count };
        let (mut encodings, mut page_stats) = (vec![Encoding::RLE, encoding], Vec::new());
        let dictionary = self.encoder.dictionary();
        if let Some((dictionary, count)) = &dictionary {
            let compressed = self.compressor.compress(dictionary).map_err(external)?;
            out.dictionary(compressed, dictionary.len(), *count)?;
            encodings.push(Encoding::PLAIN);
            page_stats.push(encoding_stats(PageType::DICTIONARY_PAGE, Encoding::PLAIN, 1));
        }
        page_stats.push(encoding_stats(PageType::DATA_PAGE, encoding, self.pages.len() as i32));
        let first_data_page = out.compressed;

        let mut column_index = ColumnIndexBuilder::new(values.physical_type());
        let (mut boundaries, mut chunk, mut rows) = (Boundaries::default(), Range::default(), 0);
        for page in self.pages {
            let nulls = page.range.nulls as i64;
            match page.range.bounds {
                Some((min, max)) => {
                    boundaries.add((min, max), &values);
                    column_index.append(false, values.bytes(min), values.bytes(max), nulls);
                }
                None => column_index.append(true, Vec::new(), Vec::new(), nulls),
            }
            chunk.add(&page.range, &values);
            rows += page.rows;
            out.data(page)?;
        }
        column_index.set_boundary_order(boundaries.order());

        let metadata = ColumnChunkMetaData::builder(self.descriptor.clone())
            .set_compression(Compression::ZSTD(self.level))
            .set_encodings(encodings.into_iter().collect())
            .set_page_encoding_stats(page_stats)
            .set_total_compressed_size(out.compressed)
            .set_total_uncompressed_size(out.uncompressed)
            .set_num_values(rows as i64)
            .set_dictionary_page_offset(dictionary.map(|_| 0))
            .set_data_page_offset(first_data_page)
            .set_statistics(values.statistics(chunk))
            .build()?;
        let bytes = out.bytes.into_inner()?;
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: rows as u64,
            metadata,
            bloom_filter: None,
            column_index: Some(column_index.build()?),
            offset_index: Some(out.offsets.build()),
        };
        Ok((bytes, close))
    }
}

/// Whether the ranges of pages only rise or only fall.
#[derive(Default)]
struct Boundaries {
    last: Option<(u64, u64)>,
    falls: bool,
    rises: bool,
}

impl Boundaries {
    fn add(&mut self, (min, max): (u64, u64), values: &Values<'_>) {
        if let Some((last_min, last_max)) = self.last.replace((min, max)) {
            let changes = [values.compare(min, last_min), values.compare(max, last_max)];
            self.falls |= changes.contains(&Ordering::Less);
            self.rises |= changes.contains(&Ordering::Greater);
        }
    }

    fn order(&self) -> BoundaryOrder {
        match (self.falls, self.rises) {
            (false, _) => BoundaryOrder::ASCENDING,
            (true, false) => BoundaryOrder::DESCENDING,
            (true, true) => BoundaryOrder::UNORDERED,
        }
    }
}

/// Assembles compressed pages.
struct ChunkWriter {
    encoding: Encoding,
    bytes: TrackedWrite<Vec<u8>>,
    offsets: OffsetIndexBuilder,
    compressed: i64,
    uncompressed: i64,
}

impl ChunkWriter {
    fn new(encoding: Encoding) -> ChunkWriter {
        let (bytes, offsets) = (TrackedWrite::new(Vec::new()), OffsetIndexBuilder::new());
        ChunkWriter { encoding, bytes, offsets, compressed: 0, uncompressed: 0 }
    }

    fn dictionary(&mut self, compressed: Vec<u8>, plain_length: usize, values: usize) -> Result<()> {
        let page = Page::DictionaryPage {
            buf: compressed.into(),
            num_values: values as u32,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        self.write(page, plain_length)
    }

    fn data(&mut self, page: DataPage) -> Result<()> {
        let written = Page::DataPage {
            buf: page.bytes.into(),
            num_values: page.rows as u32,
            encoding: self.encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let begin = self.compressed;
        self.write(written, page.plain_length)?;
        self.offsets.append_row_count(page.rows as i64);
        self.offsets.append_offset_and_size(begin, (self.compressed - begin) as i32);
        Ok(())
    }

    fn write(&mut self, page: Page, plain_length: usize) -> Result<()> {
        let page = CompressedPage::new(page, plain_length);
        let written = SerializedPageWriter::new(&mut self.bytes).write_page(page)?;
        self.compressed += written.compressed_size as i64;
        self.uncompressed += written.uncompressed_size as i64;
        Ok(())
    }
}

fn external(error: std::io::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}
