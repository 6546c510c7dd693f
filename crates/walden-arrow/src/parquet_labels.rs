//! Column chunks of labels in Parquet files.
//!
//! Arrow's dictionaries have the keys that Parquet's dictionary encoding wants. The Parquet library looks up each row's text in a
//! dictionary of its own instead, and compares it for the statistics; that was most of the time of an export. Here each
//! text of a batch is looked up once, and rows are numbers. What is written follows the Parquet specification: a dictionary page,
//! and data pages of the first version with values in `RLE_DICTIONARY`.

use arrow::array::{Array, AsArray, DictionaryArray};
use arrow::datatypes::Int32Type;
use parquet::basic::{BoundaryOrder, Compression, Encoding, PageType, Type, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    ColumnChunkMetaData, ColumnIndexBuilder, OffsetIndexBuilder, PageEncodingStats,
};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use rustc_hash::FxHashMap;

/// Rows of a data page: what a reader can skip by the column index.
const PAGE: usize = 20_000;
/// The key of a row that is NULL.
const NULL: u32 = u32::MAX;

/// The rows of one label column in a row group.
pub(crate) struct LabelChunk {
    descriptor: ColumnDescPtr,
    /// The texts in the order of their first row.
    texts: Vec<Box<str>>,
    key_of: FxHashMap<Box<str>, u32>,
    keys: Vec<u32>,
}

impl LabelChunk {
    pub fn new(descriptor: ColumnDescPtr) -> LabelChunk {
        LabelChunk { descriptor, texts: Vec::new(), key_of: FxHashMap::default(), keys: Vec::new() }
    }

    /// Adds rows of a dictionary array of strings.
    pub fn write(&mut self, column: &DictionaryArray<Int32Type>) {
        let texts = column.values().as_string::<i32>();
        // A text is added with the first row that has it: what no row has, statistics must not say.
        let mut known = vec![NULL; texts.len()];
        self.keys.reserve(column.len());
        for key in column.keys() {
            let key = match key.map(|key| key as usize) {
                Some(key) if known[key] != NULL => known[key],
                Some(key) if texts.is_valid(key) => {
                    known[key] = self.key(texts.value(key));
                    known[key]
                }
                _ => NULL,
            };
            self.keys.push(key);
        }
    }

    fn key(&mut self, text: &str) -> u32 {
        if let Some(key) = self.key_of.get(text) {
            return *key;
        }
        let key = self.texts.len() as u32;
        self.texts.push(text.into());
        self.key_of.insert(text.into(), key);
        key
    }

    /// The chunk's bytes and what a row group needs to know of them.
    pub fn close(self, level: ZstdLevel) -> Result<(Vec<u8>, ColumnCloseResult)> {
        let mut pages = Pages::new(level)?;
        pages.dictionary(&self.texts)?;
        let order = Order::new(&self.texts);
        let width = bit_width(self.texts.len());
        let mut column_index = ColumnIndexBuilder::new(Type::BYTE_ARRAY);
        let mut boundary_order = Boundaries::default();
        let mut chunk = Range::default();
        for rows in self.keys.chunks(PAGE) {
            let page = order.range(rows);
            let nulls = page.nulls as i64;
            match (page.min, page.max) {
                (Some(min), Some(max)) => {
                    boundary_order.add(min, max);
                    let bytes = |rank: u32| order.text(rank).as_bytes().to_vec();
                    column_index.append(false, bytes(min), bytes(max), nulls);
                }
                _ => column_index.append(true, Vec::new(), Vec::new(), nulls),
            }
            chunk.add(&page);
            pages.data(&data_page(rows, width, self.descriptor.max_def_level() > 0), rows.len())?;
        }
        column_index.set_boundary_order(boundary_order.order());

        let bytes = |rank: u32| ByteArray::from(order.text(rank));
        let statistics =
            ValueStatistics::new(chunk.min.map(bytes), chunk.max.map(bytes), None, Some(chunk.nulls), false);
        let statistics = Statistics::from(statistics.with_backwards_compatible_min_max(false));
        let encoding_stats = |page_type, encoding, count| PageEncodingStats { page_type, encoding, count };
        let metadata = ColumnChunkMetaData::builder(self.descriptor.clone())
            .set_compression(Compression::ZSTD(level))
            .set_encodings([Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY].into_iter().collect())
            .set_page_encoding_stats(vec![
                encoding_stats(PageType::DICTIONARY_PAGE, Encoding::PLAIN, 1),
                encoding_stats(PageType::DATA_PAGE, Encoding::RLE_DICTIONARY, pages.count),
            ])
            .set_total_compressed_size(pages.compressed)
            .set_total_uncompressed_size(pages.uncompressed)
            .set_num_values(self.keys.len() as i64)
            .set_dictionary_page_offset(Some(0))
            .set_data_page_offset(pages.first_data_page)
            .set_statistics(statistics)
            .build()?;
        let bytes = pages.out.into_inner()?;
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: self.keys.len() as u64,
            metadata,
            bloom_filter: None,
            column_index: Some(column_index.build()?),
            offset_index: Some(pages.offsets.build()),
        };
        Ok((bytes, close))
    }
}

/// Texts by rank, and ranks by key.
struct Order<'a> {
    texts: &'a [Box<str>],
    key_of_rank: Vec<u32>,
    rank_of_key: Vec<u32>,
}

impl Order<'_> {
    fn new(texts: &[Box<str>]) -> Order<'_> {
        let mut key_of_rank: Vec<u32> = (0..texts.len() as u32).collect();
        key_of_rank.sort_unstable_by_key(|key| texts[*key as usize].as_bytes());
        let mut rank_of_key = vec![0; texts.len()];
        for (rank, key) in key_of_rank.iter().enumerate() {
            rank_of_key[*key as usize] = rank as u32;
        }
        Order { texts, key_of_rank, rank_of_key }
    }

    fn text(&self, rank: u32) -> &str {
        &self.texts[self.key_of_rank[rank as usize] as usize]
    }

    fn range(&self, keys: &[u32]) -> Range {
        let mut range = Range::default();
        for run in keys.chunk_by(PartialEq::eq) {
            match run[0] {
                NULL => range.nulls += run.len() as u64,
                key => {
                    let rank = Some(self.rank_of_key[key as usize]);
                    range.add(&Range { min: rank, max: rank, nulls: 0 });
                }
            }
        }
        range
    }
}

/// Ranks of the smallest and the largest text, and the number of NULLs.
#[derive(Default)]
struct Range {
    min: Option<u32>,
    max: Option<u32>,
    nulls: u64,
}

impl Range {
    fn add(&mut self, other: &Range) {
        self.min = [self.min, other.min].into_iter().flatten().min();
        self.max = self.max.max(other.max);
        self.nulls += other.nulls;
    }
}

/// Whether pages' ranges only rise or only fall.
#[derive(Default)]
struct Boundaries {
    last: Option<(u32, u32)>,
    falls: bool,
    rises: bool,
}

impl Boundaries {
    fn add(&mut self, min: u32, max: u32) {
        if let Some((last_min, last_max)) = self.last.replace((min, max)) {
            self.falls |= min < last_min || max < last_max;
            self.rises |= min > last_min || max > last_max;
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

/// Pages, compressed as they are written.
struct Pages {
    out: TrackedWrite<Vec<u8>>,
    compressor: zstd::bulk::Compressor<'static>,
    offsets: OffsetIndexBuilder,
    first_data_page: i64,
    count: i32,
    compressed: i64,
    uncompressed: i64,
}

impl Pages {
    fn new(level: ZstdLevel) -> Result<Pages> {
        Ok(Pages {
            out: TrackedWrite::new(Vec::new()),
            compressor: zstd::bulk::Compressor::new(level.compression_level()).map_err(external)?,
            offsets: OffsetIndexBuilder::new(),
            first_data_page: 0,
            count: 0,
            compressed: 0,
            uncompressed: 0,
        })
    }

    fn dictionary(&mut self, texts: &[Box<str>]) -> Result<()> {
        let mut plain = Vec::with_capacity(texts.iter().map(|text| 4 + text.len()).sum());
        for text in texts {
            plain.extend_from_slice(&(text.len() as u32).to_le_bytes());
            plain.extend_from_slice(text.as_bytes());
        }
        let page = Page::DictionaryPage {
            buf: self.compressor.compress(&plain).map_err(external)?.into(),
            num_values: texts.len() as u32,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        self.write(page, plain.len())?;
        self.first_data_page = self.compressed;
        Ok(())
    }

    fn data(&mut self, plain: &[u8], rows: usize) -> Result<()> {
        let page = Page::DataPage {
            buf: self.compressor.compress(plain).map_err(external)?.into(),
            num_values: rows as u32,
            encoding: Encoding::RLE_DICTIONARY,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let (offset, before) = (self.out.bytes_written() as i64, self.compressed);
        self.write(page, plain.len())?;
        self.offsets.append_row_count(rows as i64);
        self.offsets.append_offset_and_size(offset, (self.compressed - before) as i32);
        self.count += 1;
        Ok(())
    }

    fn write(&mut self, page: Page, plain: usize) -> Result<()> {
        let written =
            SerializedPageWriter::new(&mut self.out).write_page(CompressedPage::new(page, plain))?;
        self.compressed += written.compressed_size as i64;
        self.uncompressed += written.uncompressed_size as i64;
        Ok(())
    }
}

fn external(error: std::io::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// A data page before compression: which rows are not NULL, if any may be; then the width of keys and the keys of the others.
fn data_page(rows: &[u32], width: u32, nullable: bool) -> Vec<u8> {
    let mut page = Vec::with_capacity(rows.len() / 2);
    let mut present = rows;
    let mut without_nulls;
    if nullable {
        let levels: Vec<u32> = rows.iter().map(|key| u32::from(*key != NULL)).collect();
        page.extend_from_slice(&[0; 4]);
        hybrid(&levels, 1, &mut page);
        let length = page.len() as u32 - 4;
        page[..4].copy_from_slice(&length.to_le_bytes());
        if levels.contains(&0) {
            without_nulls = rows.to_vec();
            without_nulls.retain(|key| *key != NULL);
            present = &without_nulls;
        }
    }
    page.push(width as u8);
    hybrid(present, width, &mut page);
    page
}

/// Bits of the largest key, at least 1.
fn bit_width(texts: usize) -> u32 {
    (texts.saturating_sub(1) as u32).checked_ilog2().map_or(1, |bits| bits + 1)
}

/// Appends values in Parquet's hybrid of runs and bit-packed groups of 8.
fn hybrid(values: &[u32], width: u32, out: &mut Vec<u8>) {
    let mut packed: usize = 0;
    let mut at: usize = 0;
    for run in values.chunk_by(PartialEq::eq) {
        // Groups before a run must be full.
        let fill = (at - packed).next_multiple_of(8) - (at - packed);
        if run.len() >= fill + 8 {
            bit_pack(&values[packed..at + fill], width, out);
            leb128(((run.len() - fill) as u64) << 1, out);
            out.extend_from_slice(&run[0].to_le_bytes()[..width.div_ceil(8) as usize]);
            packed = at + run.len();
        }
        at += run.len();
    }
    bit_pack(&values[packed..], width, out);
}

fn bit_pack(values: &[u32], width: u32, out: &mut Vec<u8>) {
    if values.is_empty() {
        return;
    }
    let groups = values.len().div_ceil(8);
    leb128((groups as u64) << 1 | 1, out);
    let end = out.len() + groups * width as usize;
    let (mut bits, mut count) = (0u64, 0);
    for value in values {
        bits |= u64::from(*value) << count;
        count += width;
        while count >= 8 {
            out.push(bits as u8);
            bits >>= 8;
            count -= 8;
        }
    }
    if count > 0 {
        out.push(bits as u8);
    }
    out.resize(end, 0);
}

fn leb128(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use arrow::compute::{cast, concat};
    use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
    use parquet::file::page_index::column_index::ColumnIndexMetaData;
    use parquet::file::properties::{EnabledStatistics, WriterProperties};

    use super::*;
    use crate::parquet_file::ParquetFile;

    fn label_type() -> DataType {
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
    }

    fn schema(nullable: bool) -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("label", label_type(), nullable),
            Field::new("number", DataType::UInt32, false),
        ]))
    }

    /// Batches with dictionaries of their own, of the texts that `text` gives for a row's number.
    fn batches(schema: &SchemaRef, rows: usize, text: &dyn Fn(u64) -> Option<String>) -> Vec<RecordBatch> {
        let numbers: Vec<u32> = (0..rows as u32).collect();
        numbers
            .chunks(30_011)
            .map(|rows| {
                let texts: StringArray = rows.iter().map(|row| text((*row).into())).collect();
                let labels = cast(&texts, &label_type()).unwrap();
                let numbers = Arc::new(arrow::array::UInt32Array::from(rows.to_vec()));
                RecordBatch::try_new(schema.clone(), vec![labels, numbers]).unwrap()
            })
            .collect()
    }

    fn metadata(file: &[u8]) -> ParquetMetaData {
        ParquetMetaDataReader::new()
            .with_page_index_policy(PageIndexPolicy::Required)
            .parse_and_finish(&bytes::Bytes::from(file.to_vec()))
            .unwrap()
    }

    fn texts(file: Vec<u8>) -> ArrayRef {
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(file)).unwrap().build().unwrap();
        let read: Vec<ArrayRef> =
            reader.map(|batch| cast(batch.unwrap().column(0), &DataType::Utf8).unwrap()).collect();
        concat(&read.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap()
    }

    /// Number of rows, whether there are NULLs, text of a row.
    type Case = (usize, bool, fn(u64) -> Option<String>);

    fn scattered(row: u64) -> u64 {
        row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
    }

    const CASES: [Case; 9] = [
        (1, false, |_| Some(String::new())),
        (20_001, false, |_| Some("always".to_owned())),
        (70_000, true, |_| None),
        (70_000, true, |row| (row < 30_000).then(|| "early".to_owned())),
        (600_000, false, |row| Some(format!("of three: {}", scattered(row) % 3))),
        (600_000, true, |row| (scattered(row) % 7 != 0).then(|| format!("{}", scattered(row) % 300))),
        (90_000, false, |row| Some(format!("all different: {}", scattered(row)))),
        (90_000, true, |row| (row % 9 < 8).then(|| format!("{:06}", row / 13))),
        (90_000, false, |row| Some(format!("{:06}", 90_000 - row / 8))),
    ];

    #[test]
    fn files_say_what_the_librarys_own_say() {
        for (case, (rows, nullable, text)) in CASES.into_iter().enumerate() {
            let schema = schema(nullable);
            let mut ours = ParquetFile::new(Vec::new(), &schema, "").unwrap();
            let properties = WriterProperties::builder()
                .set_statistics_enabled(EnabledStatistics::Page)
                .set_max_row_group_row_count(Some(1 << 19))
                .build();
            let mut theirs = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).unwrap();
            for batch in batches(&schema, rows, &text) {
                ours.write(&batch).unwrap();
                theirs.write(&batch).unwrap();
            }
            let (ours, theirs) = (ours.finish().unwrap(), theirs.into_inner().unwrap());

            let (our_metadata, their_metadata) = (metadata(&ours), metadata(&theirs));
            let groups = our_metadata.row_groups().iter().zip(their_metadata.row_groups());
            assert_eq!(our_metadata.num_row_groups(), their_metadata.num_row_groups());
            for (our_group, their_group) in groups {
                let (our_labels, their_labels) = (our_group.column(0), their_group.column(0));
                assert_eq!(our_labels.statistics(), their_labels.statistics(), "case {case}");
                assert_eq!(our_labels.num_values(), their_labels.num_values(), "case {case}");
            }
            let indexes = |metadata: &ParquetMetaData| -> Vec<ColumnIndexMetaData> {
                metadata.column_index().unwrap().iter().map(|columns| columns[0].clone()).collect()
            };
            for (our_index, their_index) in indexes(&our_metadata).iter().zip(indexes(&their_metadata)) {
                // The library's pages are a few rows longer or shorter.
                let nulls = |index: &ColumnIndexMetaData| index.null_counts().unwrap().iter().sum::<i64>();
                assert_eq!(nulls(our_index), nulls(&their_index), "case {case}");
                assert_eq!(our_index.get_boundary_order(), their_index.get_boundary_order(), "case {case}");
            }

            let expected: StringArray = (0..rows as u64).map(text).collect();
            let expected: ArrayRef = Arc::new(expected);
            assert_eq!(&texts(ours), &expected, "case {case}");
            assert_eq!(&texts(theirs), &expected, "case {case}");
        }
    }

    /// Statistics say nothing of texts that a batch's dictionary has and no row.
    #[test]
    fn unused_texts_do_not_count() {
        let schema = schema(false);
        let batch = &batches(&schema, 26, &|row| Some(((b'a' + row as u8) as char).to_string()))[0];
        let mut file = ParquetFile::new(Vec::new(), &schema, "").unwrap();
        file.write(&batch.slice(3, 4)).unwrap();
        let bytes = file.finish().unwrap();
        let metadata = metadata(&bytes);
        let statistics = metadata.row_group(0).column(0).statistics().unwrap();
        assert_eq!(statistics.min_bytes_opt(), Some(&b"d"[..]));
        assert_eq!(statistics.max_bytes_opt(), Some(&b"g"[..]));
        assert_eq!(texts(bytes).len(), 4);
    }
}
