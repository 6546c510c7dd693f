//! Column chunks of Parquet files with few different values.
//!
//! Arrow's dictionaries have the keys that Parquet's dictionary encoding wants. The Parquet library looks up each row's text in a
//! dictionary of its own instead, and compares it for the statistics; that was most of the time of an export. Here each
//! text of a batch is looked up once, and rows are numbers. Numbers of which there are few go the same way, a third of the time
//! of writing their differences. What is written follows the Parquet specification: a dictionary page, and data pages of the first
//! version with values in `RLE_DICTIONARY`.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, DictionaryArray};
use arrow::datatypes::{
    DataType, Int32Type, TimeUnit, TimestampMicrosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
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
use rustc_hash::{FxHashMap, FxHashSet};

/// Rows of a data page: what a reader can skip by the column index.
const PAGE: usize = 20_000;
/// The key of a row that is NULL.
const NULL: u32 = u32::MAX;
/// The first rows of a chunk of numbers, which decide how it is written.
const SAMPLE: usize = 4096;
/// So many of them have one value on average, or more.
const REPEATED: usize = 64;

/// The rows of one column in a row group.
pub(crate) struct DictionaryChunk {
    descriptor: ColumnDescPtr,
    level: ZstdLevel,
    values: Values,
    /// Keys of the rows that are in no page yet.
    keys: Vec<u32>,
    /// The last page that had each key, by its index.
    last_page: Vec<usize>,
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

impl DictionaryChunk {
    /// A chunk for a column that begins with these rows; `None` if there are too many different values in it for a dictionary.
    ///
    /// # Errors
    /// There is no memory for a compressor.
    pub fn new(
        descriptor: &ColumnDescPtr,
        column: &ArrayRef,
        level: ZstdLevel,
    ) -> Result<Option<DictionaryChunk>> {
        let Some(values) = Values::of(column) else { return Ok(None) };
        Ok(Some(DictionaryChunk {
            descriptor: descriptor.clone(),
            level,
            values,
            keys: Vec::with_capacity(PAGE),
            last_page: Vec::new(),
            pages: Vec::new(),
            compressor: zstd::bulk::Compressor::new(level.compression_level()).map_err(external)?,
        }))
    }

    /// Adds rows of the same type as the first ones.
    ///
    /// # Errors
    /// That of the compressor.
    pub fn write(&mut self, column: &ArrayRef) -> Result<()> {
        let mut from = 0;
        while from < column.len() {
            let rows = (PAGE - self.keys.len()).min(column.len() - from);
            self.values.keys(&column.slice(from, rows), &mut self.keys);
            from += rows;
            if self.keys.len() == PAGE {
                self.end_page()?;
            }
        }
        Ok(())
    }

    fn end_page(&mut self) -> Result<()> {
        // Each page may have keys of another width: that of those which are there by now.
        let width = bit_width(self.values.len());
        let range = self.range();
        let plain = data_page(&self.keys, width, self.descriptor.max_def_level() > 0, range.nulls);
        let bytes = self.compressor.compress(&plain).map_err(external)?;
        self.pages.push(DataPage { bytes, plain_length: plain.len(), rows: self.keys.len(), range });
        self.keys.clear();
        Ok(())
    }

    /// The range of values in the page that is being filled.
    fn range(&mut self) -> Range {
        let page = self.pages.len() + 1;
        self.last_page.resize(self.values.len(), 0);
        let mut range = Range::default();
        for run in self.keys.chunk_by(PartialEq::eq) {
            let key = run[0];
            match self.last_page.get_mut(key as usize) {
                None => range.nulls += run.len() as u64,
                Some(last) if *last == page => {}
                Some(last) => {
                    *last = page;
                    range.add(&Range { min: Some(key), max: Some(key), nulls: 0 }, &self.values);
                }
            }
        }
        range
    }

    /// The chunk's bytes and what a row group needs to know of them.
    ///
    /// # Errors
    /// That of the compressor.
    pub fn close(mut self) -> Result<(Vec<u8>, ColumnCloseResult)> {
        if !self.keys.is_empty() {
            self.end_page()?;
        }
        let mut out = ChunkWriter::default();
        let dictionary = self.values.plain();
        let compressed = self.compressor.compress(&dictionary).map_err(external)?;
        let first_data_page = out.dictionary(compressed, dictionary.len(), self.values.len())?;
        let mut column_index = ColumnIndexBuilder::new(self.values.physical_type());
        let (mut boundaries, mut chunk, mut rows) = (Boundaries::default(), Range::default(), 0);
        let count = self.pages.len() as i32;
        for page in self.pages {
            let nulls = page.range.nulls as i64;
            match (page.range.min, page.range.max) {
                (Some(min), Some(max)) => {
                    boundaries.add((min, max), &self.values);
                    column_index.append(false, self.values.bytes(min), self.values.bytes(max), nulls);
                }
                _ => column_index.append(true, Vec::new(), Vec::new(), nulls),
            }
            chunk.add(&page.range, &self.values);
            rows += page.rows;
            out.data(page)?;
        }
        column_index.set_boundary_order(boundaries.order());

        let encoding_stats = |page_type, encoding, count| PageEncodingStats { page_type, encoding, count };
        let metadata = ColumnChunkMetaData::builder(self.descriptor.clone())
            .set_compression(Compression::ZSTD(self.level))
            .set_encodings([Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY].into_iter().collect())
            .set_page_encoding_stats(vec![
                encoding_stats(PageType::DICTIONARY_PAGE, Encoding::PLAIN, 1),
                encoding_stats(PageType::DATA_PAGE, Encoding::RLE_DICTIONARY, count),
            ])
            .set_total_compressed_size(out.compressed)
            .set_total_uncompressed_size(out.uncompressed)
            .set_num_values(rows as i64)
            .set_dictionary_page_offset(Some(0))
            .set_data_page_offset(first_data_page)
            .set_statistics(self.values.statistics(chunk))
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

/// The different values of a chunk, in the order of their first row.
enum Values {
    Texts(Texts),
    Numbers(Box<Numbers>),
}

impl Values {
    /// Those of a column that begins with these rows; `None` if there are too many different ones.
    fn of(column: &ArrayRef) -> Option<Values> {
        if let DataType::Dictionary(key, value) = column.data_type() {
            let is_label = **key == DataType::Int32 && **value == DataType::Utf8;
            return is_label.then(|| Values::Texts(Texts::default()));
        }
        let numbers = Numbers::of(column.data_type())?;
        let sample = column.slice(0, column.len().min(SAMPLE));
        let mut distinct = FxHashSet::default();
        each_number(&sample, |number| {
            distinct.insert(number);
        });
        let are_few = column.len() >= SAMPLE && distinct.len() <= SAMPLE / REPEATED;
        are_few.then(|| Values::Numbers(Box::new(numbers)))
    }

    /// Adds the keys of rows.
    fn keys(&mut self, column: &ArrayRef, keys: &mut Vec<u32>) {
        match self {
            Values::Texts(texts) => texts.keys(column.as_dictionary::<Int32Type>(), keys),
            Values::Numbers(numbers) => {
                each_number(column, |number| keys.push(number.map_or(NULL, |number| numbers.key(number))));
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Values::Texts(texts) => texts.texts.len(),
            Values::Numbers(numbers) => numbers.values.len(),
        }
    }

    fn physical_type(&self) -> Type {
        match self {
            Values::Texts(_) => Type::BYTE_ARRAY,
            Values::Numbers(numbers) if numbers.width == 4 => Type::INT32,
            Values::Numbers(_) => Type::INT64,
        }
    }

    /// The dictionary page's bytes.
    fn plain(&self) -> Vec<u8> {
        match self {
            Values::Texts(texts) => {
                let mut plain = Vec::new();
                for text in &texts.texts {
                    plain.extend_from_slice(&(text.len() as u32).to_le_bytes());
                    plain.extend_from_slice(text.as_bytes());
                }
                plain
            }
            Values::Numbers(numbers) => numbers
                .values
                .iter()
                .flat_map(|value| value.to_le_bytes().into_iter().take(numbers.width))
                .collect(),
        }
    }

    fn compare(&self, one: u32, other: u32) -> Ordering {
        let (one, other) = (one as usize, other as usize);
        match self {
            Values::Texts(texts) => texts.texts[one].as_bytes().cmp(texts.texts[other].as_bytes()),
            Values::Numbers(numbers) => {
                let order = |value: u64| value ^ u64::from(numbers.is_signed) << 63;
                order(numbers.values[one]).cmp(&order(numbers.values[other]))
            }
        }
    }

    /// A value as it is in the column index.
    fn bytes(&self, key: u32) -> Vec<u8> {
        match self {
            Values::Texts(texts) => texts.texts[key as usize].as_bytes().to_vec(),
            Values::Numbers(numbers) => numbers.values[key as usize].to_le_bytes()[..numbers.width].to_vec(),
        }
    }

    fn statistics(&self, Range { min, max, nulls }: Range) -> Statistics {
        let nulls = Some(nulls);
        match self {
            Values::Texts(texts) => {
                let text = |key: u32| ByteArray::from(&*texts.texts[key as usize]);
                ValueStatistics::new(min.map(text), max.map(text), None, nulls, false).into()
            }
            Values::Numbers(numbers) => {
                let is_signed = numbers.is_signed;
                let long = |key: u32| numbers.values[key as usize] as i64;
                let short = |key: u32| long(key) as i32;
                match numbers.width {
                    4 => ValueStatistics::new(min.map(short), max.map(short), None, nulls, false)
                        .with_backwards_compatible_min_max(is_signed)
                        .into(),
                    _ => ValueStatistics::new(min.map(long), max.map(long), None, nulls, false)
                        .with_backwards_compatible_min_max(is_signed)
                        .into(),
                }
            }
        }
    }
}

#[derive(Default)]
struct Texts {
    texts: Vec<Box<str>>,
    key_of: FxHashMap<Box<str>, u32>,
}

impl Texts {
    fn keys(&mut self, column: &DictionaryArray<Int32Type>, keys: &mut Vec<u32>) {
        let texts = column.values().as_string::<i32>();
        // A text is added with the first row that has it: what no row has, statistics must not say.
        let mut known = vec![NULL; texts.len()];
        let mut look_up = |key: i32| {
            let key = key as usize;
            if known[key] == NULL && texts.is_valid(key) {
                known[key] = self.key(texts.value(key));
            }
            known[key]
        };
        match column.keys().nulls() {
            None => keys.extend(column.keys().values().iter().map(|key| look_up(*key))),
            Some(_) => keys.extend(column.keys().iter().map(|key| key.map_or(NULL, &mut look_up))),
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
}

/// Numbers below this have a table of their keys.
const SMALL: usize = 1 << 12;

struct Numbers {
    /// Bytes of Parquet's physical type.
    width: usize,
    is_signed: bool,
    /// With the sign extended.
    values: Vec<u64>,
    small: [u32; SMALL],
    key_of: FxHashMap<u64, u32>,
    last: Option<(u64, u32)>,
}

impl Numbers {
    fn of(data_type: &DataType) -> Option<Numbers> {
        let (width, is_signed) = match data_type {
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => (4, false),
            DataType::UInt64 => (8, false),
            DataType::Timestamp(TimeUnit::Microsecond, _) => (8, true),
            _ => return None,
        };
        let (values, key_of) = (Vec::new(), FxHashMap::default());
        Some(Numbers { width, is_signed, values, small: [NULL; SMALL], key_of, last: None })
    }

    #[inline]
    fn key(&mut self, number: u64) -> u32 {
        if let Some(key) = self.small.get(number as usize).copied().filter(|key| *key != NULL) {
            return key;
        }
        match self.last {
            Some((last, key)) if last == number => key,
            _ => self.look_up(number),
        }
    }

    #[inline(never)]
    fn look_up(&mut self, number: u64) -> u32 {
        let values = &mut self.values;
        let key = *self.key_of.entry(number).or_insert_with(|| {
            values.push(number);
            values.len() as u32 - 1
        });
        if let Some(small) = self.small.get_mut(number as usize) {
            *small = key;
        }
        self.last = Some((number, key));
        key
    }
}

/// Each number of a column, with the sign extended.
fn each_number(column: &ArrayRef, take: impl FnMut(Option<u64>)) {
    fn of<P: ArrowPrimitiveType>(
        column: &ArrayRef,
        number: impl Fn(P::Native) -> u64,
        mut take: impl FnMut(Option<u64>),
    ) {
        let column = column.as_primitive::<P>();
        match column.nulls() {
            None => column.values().iter().for_each(|value| take(Some(number(*value)))),
            Some(nulls) => {
                let rows = column.values().iter().zip(nulls);
                rows.for_each(|(value, is_valid)| take(is_valid.then(|| number(*value))));
            }
        }
    }
    match column.data_type() {
        DataType::UInt8 => of::<UInt8Type>(column, u64::from, take),
        DataType::UInt16 => of::<UInt16Type>(column, u64::from, take),
        DataType::UInt32 => of::<UInt32Type>(column, u64::from, take),
        DataType::UInt64 => of::<UInt64Type>(column, |value| value, take),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            of::<TimestampMicrosecondType>(column, i64::cast_unsigned, take);
        }
        other => unreachable!("{other} has no numbers of its own"),
    }
}

/// Keys of the smallest and the largest value, and the number of NULLs.
#[derive(Default)]
struct Range {
    min: Option<u32>,
    max: Option<u32>,
    nulls: u64,
}

impl Range {
    fn add(&mut self, other: &Range, values: &Values) {
        let keep = |mine: Option<u32>, other: Option<u32>, unless: Ordering| match (mine, other) {
            (Some(mine), Some(other)) if values.compare(other, mine) != unless => Some(mine),
            (mine, None) => mine,
            (_, other) => other,
        };
        self.min = keep(self.min, other.min, Ordering::Less);
        self.max = keep(self.max, other.max, Ordering::Greater);
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
    fn add(&mut self, (min, max): (u32, u32), values: &Values) {
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

/// Puts compressed pages together.
struct ChunkWriter {
    bytes: TrackedWrite<Vec<u8>>,
    offsets: OffsetIndexBuilder,
    compressed: i64,
    uncompressed: i64,
}

impl Default for ChunkWriter {
    fn default() -> ChunkWriter {
        let (bytes, offsets) = (TrackedWrite::new(Vec::new()), OffsetIndexBuilder::new());
        ChunkWriter { bytes, offsets, compressed: 0, uncompressed: 0 }
    }
}

impl ChunkWriter {
    /// Returns where the next page is.
    fn dictionary(&mut self, compressed: Vec<u8>, plain_length: usize, values: usize) -> Result<i64> {
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
            encoding: Encoding::RLE_DICTIONARY,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let begin = self.compressed;
        let end = self.write(written, page.plain_length)?;
        self.offsets.append_row_count(page.rows as i64);
        self.offsets.append_offset_and_size(begin, (end - begin) as i32);
        Ok(())
    }

    fn write(&mut self, page: Page, plain_length: usize) -> Result<i64> {
        let page = CompressedPage::new(page, plain_length);
        let written = SerializedPageWriter::new(&mut self.bytes).write_page(page)?;
        self.compressed += written.compressed_size as i64;
        self.uncompressed += written.uncompressed_size as i64;
        Ok(self.compressed)
    }
}

fn external(error: std::io::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// A data page before compression: which rows are not NULL, if any may be; then the width of keys and the keys of the others.
fn data_page(rows: &[u32], width: u32, nullable: bool, nulls: u64) -> Vec<u8> {
    let mut page = Vec::with_capacity(rows.len() * width as usize / 8 + rows.len() / 8 + 64);
    if nullable {
        page.extend_from_slice(&[0; 4]);
        match nulls {
            0 => run(rows.len(), 1, 1, &mut page),
            _ => hybrid(&rows.iter().map(|key| u32::from(*key != NULL)).collect::<Vec<u32>>(), 1, &mut page),
        }
        let length = page.len() as u32 - 4;
        page[..4].copy_from_slice(&length.to_le_bytes());
    }
    page.push(width as u8);
    match nulls {
        0 => hybrid(rows, width, &mut page),
        _ => hybrid(&rows.iter().copied().filter(|key| *key != NULL).collect::<Vec<u32>>(), width, &mut page),
    }
    page
}

/// Bits of the largest key, at least 1.
fn bit_width(values: usize) -> u32 {
    (values.saturating_sub(1) as u32).checked_ilog2().map_or(1, |bits| bits + 1)
}

/// Values that are packed or repeated together.
const GROUP: usize = 8;

/// Appends values in Parquet's hybrid of runs and bit-packed groups of 8.
fn hybrid(values: &[u32], width: u32, out: &mut Vec<u8>) {
    // The groups that are packed, and all that comes after them.
    let (mut packed, mut rest) = (0, values);
    let mut from = values;
    while let Some(group) = rest.first_chunk::<GROUP>() {
        let value = group[0];
        if group.iter().all(|one| *one == value) {
            bit_pack(&from[..packed], width, out);
            let length = rest.iter().position(|one| *one != value).unwrap_or(rest.len());
            run(length, value, width, out);
            rest = &rest[length..];
            (packed, from) = (0, rest);
        } else {
            packed += GROUP;
            rest = &rest[GROUP..];
        }
    }
    bit_pack(from, width, out);
}

fn run(length: usize, value: u32, width: u32, out: &mut Vec<u8>) {
    if length > 0 {
        leb128((length as u64) << 1, out);
        out.extend_from_slice(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
    }
}

/// Appends groups; the last one may be shorter, and is filled with zeros.
fn bit_pack(values: &[u32], width: u32, out: &mut Vec<u8>) {
    if values.is_empty() {
        return;
    }
    leb128((values.len().div_ceil(GROUP) as u64) << 1 | 1, out);
    let end = out.len() + values.len().div_ceil(GROUP) * width as usize;
    if width <= 8 {
        for group in values.chunks(GROUP) {
            let bits = group.iter().rev().fold(0u64, |bits, value| bits << width | u64::from(*value));
            out.extend_from_slice(&bits.to_le_bytes()[..width as usize]);
        }
        return;
    }
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

    use arrow::array::{RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array};
    use arrow::compute::{cast, concat};
    use arrow::datatypes::{Field, Schema, SchemaRef};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
    use parquet::file::page_index::column_index::ColumnIndexMetaData;
    use parquet::file::properties::{EnabledStatistics, WriterProperties};

    use super::*;
    use crate::parquet_file::{ParquetFile, ROW_GROUP};

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

    fn column(file: Vec<u8>) -> ArrayRef {
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(file)).unwrap().build().unwrap();
        let read: Vec<ArrayRef> = reader
            .map(|batch| {
                let column = batch.unwrap().column(0).clone();
                // Dictionaries are those of single batches.
                if column.data_type() == &label_type() {
                    cast(&column, &DataType::Utf8).unwrap()
                } else {
                    column
                }
            })
            .collect();
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
        (600_000, true, |row| {
            (!scattered(row).is_multiple_of(7)).then(|| format!("{}", scattered(row) % 300))
        }),
        (90_000, false, |row| Some(format!("all different: {}", scattered(row)))),
        (90_000, true, |row| (row % 9 < 8).then(|| format!("{:06}", row / 13))),
        (90_000, false, |row| Some(format!("{:06}", 90_000 - row / 8))),
    ];

    /// Both writers' files of the same batches.
    fn written(schema: &SchemaRef, batches: &[RecordBatch]) -> (Vec<u8>, Vec<u8>) {
        let mut bytes = Vec::new();
        let mut ours = ParquetFile::new(&mut bytes, schema, "").unwrap();
        let properties = WriterProperties::builder()
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_max_row_group_row_count(Some(ROW_GROUP))
            .build();
        let mut theirs = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).unwrap();
        for batch in batches {
            ours.write(batch).unwrap();
            theirs.write(batch).unwrap();
        }
        ours.finish().unwrap();
        (bytes, theirs.into_inner().unwrap())
    }

    /// That a column's statistics are the library's.
    fn compare_statistics(ours: &[u8], theirs: &[u8], column: usize, case: &str) {
        let (ours, theirs) = (metadata(ours), metadata(theirs));
        assert_eq!(ours.num_row_groups(), theirs.num_row_groups(), "{case}");
        for (ours, theirs) in ours.row_groups().iter().zip(theirs.row_groups()) {
            assert_eq!(ours.column(column).statistics(), theirs.column(column).statistics(), "{case}");
            assert_eq!(ours.column(column).num_values(), theirs.column(column).num_values(), "{case}");
        }
        let indexes = |metadata: &ParquetMetaData| -> Vec<ColumnIndexMetaData> {
            metadata.column_index().unwrap().iter().map(|columns| columns[column].clone()).collect()
        };
        for (ours, theirs) in indexes(&ours).iter().zip(indexes(&theirs)) {
            // The library's pages are a few rows longer or shorter.
            let nulls = |index: &ColumnIndexMetaData| index.null_counts().unwrap().iter().sum::<i64>();
            assert_eq!(nulls(ours), nulls(&theirs), "{case}");
            assert_eq!(ours.get_boundary_order(), theirs.get_boundary_order(), "{case}");
        }
    }

    #[test]
    fn texts_are_what_the_library_writes() {
        for (case, (rows, nullable, text)) in CASES.into_iter().enumerate() {
            let schema = schema(nullable);
            let (ours, theirs) = written(&schema, &batches(&schema, rows, &text));
            compare_statistics(&ours, &theirs, 0, &format!("case {case}"));
            let expected: StringArray = (0..rows as u64).map(text).collect();
            let expected: ArrayRef = Arc::new(expected);
            assert_eq!(&column(ours), &expected, "case {case}");
            assert_eq!(&column(theirs), &expected, "case {case}");
        }
    }

    #[test]
    fn numbers_are_what_the_library_writes() {
        const ROWS: u64 = 100_000;
        let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        // Few different ones, also at the ends of the range; many after the first rows; one; none.
        let few = |row: u64| Some([0, 1, 5000, u64::MAX, 1 << 63][scattered(row) as usize % 5]);
        let later = |row: u64| Some(if row < 5000 { 7 } else { row });
        let gaps = |row: u64| (!row.is_multiple_of(3)).then_some(u64::MAX - row / 40_000);
        type Number<'a> = &'a dyn Fn(u64) -> Option<u64>;
        let numbers: [(&str, Number<'_>); 4] =
            [("few", &few), ("later", &later), ("gaps", &gaps), ("none", &|_| None)];
        for data_type in [DataType::UInt8, DataType::UInt16, DataType::UInt32, DataType::UInt64, time] {
            let bits = 8 * data_type.primitive_width().unwrap() as u32;
            for (name, number) in numbers {
                let case = format!("{name} of {data_type}");
                let schema = Arc::new(Schema::new(vec![Field::new("number", data_type.clone(), true)]));
                // Numbers that wrap are others, but numbers.
                let values = (0..ROWS).map(|row| number(row).map(|value| value & (u64::MAX >> (64 - bits))));
                let values: ArrayRef = match data_type {
                    DataType::Timestamp(..) => {
                        let times = values.map(|value| value.map(u64::cast_signed));
                        Arc::new(times.collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
                    }
                    _ => cast(&(values.collect::<UInt64Array>()), &data_type).unwrap(),
                };
                let rows = [values.slice(0, 10_000), values.slice(10_000, 90_000)];
                let batches = rows.map(|rows| RecordBatch::try_new(schema.clone(), vec![rows]).unwrap());
                let (ours, theirs) = written(&schema, &batches);
                compare_statistics(&ours, &theirs, 0, &case);
                assert_eq!(&column(ours), &values, "{case}");
            }
        }
    }

    /// Statistics say nothing of texts that a batch's dictionary has and no row.
    #[test]
    fn unused_texts_do_not_count() {
        let schema = schema(false);
        let batch = &batches(&schema, 26, &|row| Some(((b'a' + row as u8) as char).to_string()))[0];
        let mut bytes = Vec::new();
        let mut file = ParquetFile::new(&mut bytes, &schema, "").unwrap();
        file.write(&batch.slice(3, 4)).unwrap();
        file.finish().unwrap();
        let metadata = metadata(&bytes);
        let statistics = metadata.row_group(0).column(0).statistics().unwrap();
        assert_eq!(statistics.min_bytes_opt(), Some(&b"d"[..]));
        assert_eq!(statistics.max_bytes_opt(), Some(&b"g"[..]));
        assert_eq!(column(bytes).len(), 4);
    }
}
