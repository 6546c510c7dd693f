//! The table `records`.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use walden_format::describe;
use walden_format::record::{self, Record};
use walden_format::rmgr::{Kind, KindTable};
use walden_format::simple::SimpleRecord;

use crate::columns::{Files, Kinds, Numbers, null_if, numbers, times};
use crate::rows::{ColumnSelection, Place, Rows, fork_column};

/// Rows of `records`.
pub(crate) struct RecordRows {
    len: usize,
    start: Numbers<u64>,
    end: Numbers<u64>,
    previous: Numbers<u64>,
    time: Numbers<i64>,
    xid: Numbers<u32>,
    top_xid: Numbers<u32>,
    /// Values above `u16::MAX` represent no origin.
    origin: Numbers<u32>,
    kind: Kinds,
    length: Numbers<u32>,
    main_data: Numbers<u32>,
    block_data: Numbers<u32>,
    image_bytes: Numbers<u32>,
    images: Numbers<u8>,
    blocks: Numbers<u8>,
    /// Descriptions, if the column is wanted.
    descriptions: Option<Vec<Option<String>>>,
    file: Files,
    fork: Numbers<u8>,
    block: Numbers<u32>,
}

const FILE_COLUMNS: [&str; 9] = [
    "relation",
    "relation_kind",
    "table_name",
    "database_name",
    "tablespace",
    "database",
    "relfilenumber",
    "fork",
    "block",
];

impl Rows for RecordRows {
    fn new(wanted: &ColumnSelection, rows: usize) -> RecordRows {
        let wants = |names: &[&str]| wanted.any(names);
        RecordRows {
            len: 0,
            start: Numbers::new(wants(&["start_lsn"]), rows),
            end: Numbers::new(wants(&["end_lsn"]), rows),
            previous: Numbers::new(wants(&["prev_lsn"]), rows),
            time: Numbers::new(wants(&["time"]), rows),
            xid: Numbers::new(wants(&["xid"]), rows),
            top_xid: Numbers::new(wants(&["top_xid"]), rows),
            origin: Numbers::new(wants(&["origin"]), rows),
            kind: Kinds::new(wants(&["resource_manager", "record_type"]), rows),
            length: Numbers::new(wants(&["bytes", "record_length"]), rows),
            main_data: Numbers::new(wants(&["main_data_length"]), rows),
            block_data: Numbers::new(wants(&["block_data_length"]), rows),
            image_bytes: Numbers::new(wants(&["fpi_length"]), rows),
            images: Numbers::new(wants(&["fpi_count"]), rows),
            blocks: Numbers::new(wants(&["block_count"]), rows),
            descriptions: wants(&["description"]).then(Vec::new),
            // The columns of fork and block need the rows without a block.
            file: Files::new(wants(&FILE_COLUMNS), rows),
            fork: Numbers::new(wants(&["fork"]), rows),
            block: Numbers::new(wants(&["block"]), rows),
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn record(&mut self, record: &Record<'_>, kind: Kind, _: &KindTable, time: i64) {
        self.len += 1;
        self.start.push(record.lsn.0);
        self.end.push(record.end.0);
        self.previous.push(record.header.prev.0);
        self.time.push(time);
        self.xid.push(record.header.xid);
        self.top_xid.push(record.toplevel_xid.unwrap_or_default());
        self.origin.push(record.origin.map_or(u32::MAX, u32::from));
        self.kind.push(kind);
        self.length.push(record.header.total_len);
        self.main_data.push(record.main_len);
        self.block_data.push(record.blocks.iter().map(|block| u32::from(block.data_len)).sum());
        self.image_bytes.push(record.image_bytes());
        self.images.push(record.blocks.iter().filter(|block| block.image.is_some()).count() as u8);
        self.blocks.push(record.blocks.len() as u8);
        if let Some(descriptions) = &mut self.descriptions {
            descriptions.push(describe(record));
        }
        match record.blocks.first() {
            Some(block) => {
                self.file.push(block.relation);
                self.fork.push(block.fork.0);
                self.block.push(block.block);
            }
            None => {
                self.file.push_none();
                self.fork.push(0);
                self.block.push(0);
            }
        }
    }

    #[inline(always)]
    fn simple(&mut self, record: &SimpleRecord<'_>, kind: Kind, time: i64) {
        let header = record.header();
        self.len += 1;
        self.start.push(record.lsn.0);
        self.end.push(record.end().0);
        self.previous.push(header.prev.0);
        self.time.push(time);
        self.xid.push(header.xid);
        self.top_xid.push(0);
        self.origin.push(u32::MAX);
        self.kind.push(kind);
        self.length.push(header.total_len);
        self.main_data.push(record.main_len().into());
        self.block_data.push(record.data_len().into());
        self.image_bytes.push(0);
        self.images.push(0);
        self.blocks.push(record.has_block().into());
        if let Some(descriptions) = &mut self.descriptions {
            descriptions.push(record.as_record(describe));
        }
        match record.has_block() {
            true => self.file.push(record.relation()),
            false => self.file.push_none(),
        }
        self.fork.push(record.fork().0);
        self.block.push(record.block());
    }

    fn times(&mut self) -> &mut [i64] {
        &mut self.time.values
    }

    fn column(&self, name: &str, place: &Place<'_>) -> ArrayRef {
        match name {
            "start_lsn" => self.start.map::<UInt64Type>(|lsn| lsn),
            "end_lsn" => self.end.map::<UInt64Type>(|lsn| lsn),
            "prev_lsn" => self.previous.map::<UInt64Type>(|lsn| lsn),
            "time" => times(self.time.values.iter().copied()),
            "xid" => nonzero(&self.xid.values),
            "top_xid" => nonzero(&self.top_xid.values),
            "origin" => {
                let origins = self.origin.values.iter().map(|origin| *origin as u16);
                let nulls = null_if(&self.origin.values, |origin| *origin > u16::MAX.into());
                numbers::<UInt16Type>(origins, nulls)
            }
            "bytes" => self.length.map::<UInt32Type>(record::aligned_len),
            "record_length" => self.length.map::<UInt32Type>(|bytes| bytes),
            "main_data_length" => self.main_data.map::<UInt32Type>(|bytes| bytes),
            "block_data_length" => self.block_data.map::<UInt32Type>(|bytes| bytes),
            "fpi_length" => self.image_bytes.map::<UInt32Type>(|bytes| bytes),
            "fpi_count" => self.images.map::<UInt8Type>(|images| images),
            "block_count" => self.blocks.map::<UInt8Type>(|blocks| blocks),
            "description" => Arc::new(StringArray::from_iter(self.descriptions.iter().flatten())),
            "fork" => fork_column(&self.fork.values, |row| self.file.column.keys.values[row] >= 0),
            "block" => numbers::<UInt32Type>(self.block.values.iter().copied(), self.file.nulls()),
            _ => place
                .column(name, self.len)
                .or_else(|| place.kind_column(name, &self.kind))
                .or_else(|| place.relation_column(name, &self.file))
                .unwrap_or_else(|| unreachable!("records has no column {name}")),
        }
    }
}

/// Creates an array of numbers in which 0 is NULL.
pub(crate) fn nonzero(values: &[u32]) -> ArrayRef {
    numbers::<UInt32Type>(values.iter().copied(), null_if(values, |value| *value == 0))
}
