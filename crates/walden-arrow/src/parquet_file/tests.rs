//! The output equals the library's, and the library can read it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::{KeyValue, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::{ParquetFile, ROW_GROUP};

fn label_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

fn schema(nullable: bool) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("label", label_type(), nullable),
        Field::new("number", DataType::UInt32, false),
    ]))
}

/// Creates batches with their own dictionaries, of the texts that `text` returns for a row's number.
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

fn content() -> KeyValue {
    KeyValue::new("content".to_owned(), String::new())
}

fn metadata(file: &[u8]) -> ParquetMetaData {
    ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Required)
        .parse_and_finish(&bytes::Bytes::from(file.to_vec()))
        .unwrap()
}

fn column(file: Vec<u8>) -> ArrayRef {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(file)).unwrap().build().unwrap();
    let read: Vec<ArrayRef> = reader
        .map(|batch| {
            let column = batch.unwrap().column(0).clone();
            // Each batch has its own dictionary.
            if column.data_type() == &label_type() { cast(&column, &DataType::Utf8).unwrap() } else { column }
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
    (600_000, true, |row| (!scattered(row).is_multiple_of(7)).then(|| format!("{}", scattered(row) % 300))),
    (90_000, false, |row| Some(format!("all different: {}", scattered(row)))),
    (90_000, true, |row| (row % 9 < 8).then(|| format!("{:06}", row / 13))),
    (90_000, false, |row| Some(format!("{:06}", 90_000 - row / 8))),
];

/// Returns both writers' files of the same batches.
fn written(schema: &SchemaRef, batches: &[RecordBatch]) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut ours = ParquetFile::new(&mut bytes, schema, content()).unwrap();
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

/// Checks that a column's statistics equal the library's.
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
    // Few distinct values, also at the ends of the range; many after the first rows; one; none.
    let few = |row: u64| Some([0, 1, 5000, u64::MAX, 1 << 63][scattered(row) as usize % 5]);
    let later = |row: u64| Some(if row < 5000 { 7 } else { row });
    let gaps = |row: u64| (!row.is_multiple_of(3)).then_some(u64::MAX - row / 40_000);
    // Many values from the first rows: rising, scattered, with NULLs only in some pages, and at the ends of
    // the range.
    let rising = |row: u64| Some((1 << 40) + row * 57 + row % 7);
    let anywhere = |row: u64| Some(row.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let some = |row: u64| (row < 30_000 || row % 11 < 6).then_some(row / 30_000 % 2 * 100 + row % 100);
    let ends = |row: u64| Some([0, u64::MAX, 1 << 63, (1 << 63) - 1][row as usize % 4] ^ (row % 500));
    type Number<'a> = &'a dyn Fn(u64) -> Option<u64>;
    let numbers: [(&str, Number<'_>); 8] = [
        ("few", &few),
        ("later", &later),
        ("gaps", &gaps),
        ("none", &|_| None),
        ("rising", &rising),
        ("anywhere", &anywhere),
        ("some", &some),
        ("ends", &ends),
    ];
    for data_type in [DataType::UInt8, DataType::UInt16, DataType::UInt32, DataType::UInt64, time] {
        let bits = 8 * data_type.primitive_width().unwrap() as u32;
        for (name, number) in numbers {
            let case = format!("{name} of {data_type}");
            let schema = Arc::new(Schema::new(vec![Field::new("number", data_type.clone(), true)]));
            // Numbers that wrap change their value, but stay numbers.
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

/// Statistics exclude texts that are in a batch's dictionary but in no row.
#[test]
fn unused_texts_do_not_count() {
    let schema = schema(false);
    let batch = &batches(&schema, 26, &|row| Some(((b'a' + row as u8) as char).to_string()))[0];
    let mut bytes = Vec::new();
    let mut file = ParquetFile::new(&mut bytes, &schema, content()).unwrap();
    file.write(&batch.slice(3, 4)).unwrap();
    file.finish().unwrap();
    let metadata = metadata(&bytes);
    let statistics = metadata.row_group(0).column(0).statistics().unwrap();
    assert_eq!(statistics.min_bytes_opt(), Some(&b"d"[..]));
    assert_eq!(statistics.max_bytes_opt(), Some(&b"g"[..]));
    assert_eq!(column(bytes).len(), 4);
}
