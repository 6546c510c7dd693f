//! The tables and their columns: schemas, readers and documentation are derived from these rows.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

use self::ColumnType::{Bool, Label, Lsn, Text, Time, U8, U16, U32, U64};

/// A table that presents WAL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Table {
    /// A row per record.
    Records,
    /// A row per reference to a block in a record.
    Blocks,
    /// A row per segment and kind of bytes outside of records.
    Framing,
    /// A row per transaction.
    Transactions,
    /// A row per checkpoint.
    Checkpoints,
    /// A row per segment.
    Segments,
    /// A row per fork of a relation and kind of record: the sums of `walden explain`.
    Relations,
}

/// The type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnType {
    /// A WAL position, as an unsigned number.
    Lsn,
    /// An unsigned number of 8 bits.
    U8,
    /// An unsigned number of 16 bits.
    U16,
    /// An unsigned number of 32 bits.
    U32,
    /// An unsigned number of 64 bits.
    U64,
    /// True or false.
    Bool,
    /// A text.
    Text,
    /// A text with few distinct values: dictionary-encoded.
    Label,
    /// Microseconds since 1970-01-01 UTC.
    Time,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Name of the column.
    pub name: &'static str,
    /// Type of the column.
    pub column_type: ColumnType,
    /// Whether it may be NULL.
    pub nullable: bool,
    /// Meaning of the column, with its unit.
    pub description: &'static str,
}

/// One row per table: its name, the meaning of a row, its columns.
const TABLES: [(Table, &str, &str, &[Column]); 7] = [
    (Table::Records, "records", "a record", RECORDS),
    (Table::Blocks, "blocks", "a reference to a block in a record", BLOCKS),
    (Table::Framing, "framing", "a segment and a kind of bytes outside of records", FRAMING),
    (Table::Transactions, "transactions", "a transaction, with its subtransactions", TRANSACTIONS),
    (Table::Checkpoints, "checkpoints", "a checkpoint", CHECKPOINTS),
    (Table::Segments, "segments", "a segment", SEGMENTS),
    (Table::Relations, "relations", "a fork of a relation and a kind of record", RELATIONS),
];

impl Table {
    /// Returns all tables.
    pub fn all() -> impl Iterator<Item = Table> {
        TABLES.iter().map(|row| row.0)
    }

    /// Returns its name in SQL and on the command line.
    pub fn name(self) -> &'static str {
        TABLES[self as usize].1
    }

    /// Returns the meaning of a row.
    pub fn row(self) -> &'static str {
        TABLES[self as usize].2
    }

    /// Returns the table with this name.
    pub fn from_name(name: &str) -> Option<Table> {
        TABLES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Returns its columns.
    pub fn columns(self) -> &'static [Column] {
        TABLES[self as usize].3
    }

    /// Returns its schema; each field's metadata contains the column's `description`.
    pub fn schema(self) -> SchemaRef {
        Arc::new(Schema::new(self.columns().iter().map(Column::field).collect::<Vec<Field>>()))
    }
}

impl Column {
    fn field(&self) -> Field {
        let metadata = [("description".to_owned(), self.description.to_owned())];
        Field::new(self.name, self.column_type.data_type(), self.nullable).with_metadata(metadata.into())
    }
}

impl ColumnType {
    /// Returns the type in Arrow.
    pub fn data_type(self) -> DataType {
        match self {
            Lsn | U64 => DataType::UInt64,
            U8 => DataType::UInt8,
            U16 => DataType::UInt16,
            U32 => DataType::UInt32,
            Bool => DataType::Boolean,
            Text => DataType::Utf8,
            Label => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        }
    }
}

const fn column(name: &'static str, column_type: ColumnType, description: &'static str) -> Column {
    Column { name, column_type, nullable: false, description }
}

const fn nullable(name: &'static str, column_type: ColumnType, description: &'static str) -> Column {
    Column { name, column_type, nullable: true, description }
}

const TIMELINE: Column = column(
    "timeline",
    U32,
    "timeline along which the WAL is read, mostly the timeline in the segment's name",
);
const SEGMENT: Column = column("segment", Label, "name of the segment that it starts in");
const START_LSN: Column = column("start_lsn", Lsn, "position of the record's first byte");
const XID: Column =
    nullable("xid", U32, "transaction or subtransaction that wrote it; NULL for records of none");
const MANAGER: Column = column("resource_manager", Label, "resource manager, as pg_waldump prints it");
const RECORD_TYPE: Column = column("record_type", Label, "kind of record, as pg_waldump prints it");
const RELATION: Column = nullable(
    "relation",
    Label,
    "name of the relation, or tablespace/database/relfilenumber where no name is known",
);
const RELATION_KIND: Column = nullable(
    "relation_kind",
    Label,
    "table, index, toast, toast_index, sequence or materialized_view; NULL where not known",
);
const TABLE_NAME: Column = nullable(
    "table_name",
    Label,
    "table that an index, a TOAST table or its index belongs to; the relation itself for others",
);
const DATABASE_NAME: Column = nullable("database_name", Label, "name of the database, or its OID");
const TABLESPACE: Column = nullable("tablespace", U32, "OID of the tablespace");
const DATABASE: Column = nullable("database", U32, "OID of the database; 0 for shared relations");
const RELFILENUMBER: Column = nullable("relfilenumber", U32, "file number of the relation");
const FORK: Column = nullable("fork", Label, "fork of the relation: main, fsm, vm or init");
const BLOCK: Column = nullable("block", U32, "block number within the fork");

const RECORDS: &[Column] = &[
    TIMELINE,
    SEGMENT,
    START_LSN,
    column(
        "end_lsn",
        Lsn,
        "position at which the next record can start, headers of pages included; of a switch its own end",
    ),
    column("prev_lsn", Lsn, "start of the record before it"),
    nullable(
        "time",
        Time,
        "time of the last commit or abort up to here; NULL before the first one in the source",
    ),
    XID,
    nullable(
        "top_xid",
        U32,
        "top-level transaction, in the first record of a subtransaction with wal_level=logical",
    ),
    nullable("origin", U16, "replication origin"),
    MANAGER,
    RECORD_TYPE,
    column(
        "bytes",
        U32,
        "bytes of the record with its alignment: sum over records and framing is that of the files",
    ),
    column("record_length", U32, "bytes of the record"),
    column("main_data_length", U32, "bytes of the main data"),
    column("block_data_length", U32, "bytes of the data of all its blocks"),
    column("fpi_length", U32, "bytes of its full-page images as stored"),
    column("fpi_count", U8, "number of its full-page images"),
    column("block_count", U8, "number of blocks that it refers to"),
    nullable(
        "description",
        Text,
        "its fields, as pg_waldump of its version prints them, with times in UTC; NULL where not known, as before 14 and for extensions",
    ),
    RELATION,
    RELATION_KIND,
    TABLE_NAME,
    DATABASE_NAME,
    TABLESPACE,
    DATABASE,
    RELFILENUMBER,
    FORK,
    BLOCK,
];

const BLOCKS: &[Column] = &[
    TIMELINE,
    SEGMENT,
    START_LSN,
    nullable(
        "time",
        Time,
        "time of the last commit or abort up to here; NULL before the first one in the source",
    ),
    XID,
    MANAGER,
    RECORD_TYPE,
    column("block_id", U8, "number of the block in its record, 0 to 32"),
    RELATION,
    RELATION_KIND,
    TABLE_NAME,
    DATABASE_NAME,
    column("tablespace", U32, "OID of the tablespace"),
    column("database", U32, "OID of the database; 0 for shared relations"),
    column("relfilenumber", U32, "file number of the relation"),
    column("fork", Label, "fork of the relation: main, fsm, vm or init"),
    column("block", U32, "block number within the fork"),
    column("bytes", U32, "bytes of the block in the record: its header, data and image"),
    column("data_length", U16, "bytes of the block's data"),
    column("fpi_length", U16, "bytes of the full-page image as stored; 0 without one"),
    nullable(
        "fpi_cause",
        Label,
        "why there is an image: checkpoint, forced, hint or consistency; NULL without one",
    ),
    nullable("fpi_compression", Label, "compression of the image: none, pglz, lz4 or zstd; NULL without one"),
    nullable(
        "hole_length",
        U16,
        "bytes of the page's unused middle that the image leaves out; NULL without one",
    ),
    column("will_init", Bool, "whether redo initializes the page instead of reading it"),
];

const FRAMING: &[Column] = &[
    TIMELINE,
    column("segment", Text, "name of the segment"),
    column("start_lsn", Lsn, "position of the segment's first byte"),
    column(
        "bucket",
        Label,
        "kind of the bytes: page_header, switch_padding, zero_tail ..., as in walden explain",
    ),
    column("bytes", U64, "bytes"),
];

const TRANSACTIONS: &[Column] = &[
    TIMELINE,
    column(
        "xid",
        U32,
        "top-level transaction; one that was rolled back may be a subtransaction where the WAL does not show this",
    ),
    column("outcome", Label, "committed, aborted, prepared, or open at the end of the source"),
    nullable("end_time", Time, "time of the commit or abort; NULL while open"),
    column("start_lsn", Lsn, "position of its first record in the source"),
    column("end_lsn", Lsn, "position of its last record in the source: the commit or abort, if it has ended"),
    column("records", U64, "number of records, including records of subtransactions"),
    column("bytes", U64, "bytes of its records with their alignment"),
    column("fpi_length", U64, "bytes of full-page images in them"),
    column("subtransactions", U32, "number of subtransactions that its commit or abort names"),
];

const CHECKPOINTS: &[Column] = &[
    column(
        "lsn",
        Lsn,
        "position of the checkpoint's record; of its CHECKPOINT_REDO if the checkpoint is unfinished",
    ),
    column("redo_lsn", Lsn, "redo pointer: where recovery from it starts"),
    column("time", Time, "start time"),
    column("cause", Label, "time, volume, requested, shutdown or first, as in walden explain"),
    column("finished", Bool, "whether the WAL has its record"),
    nullable(
        "distance",
        U64,
        "bytes between the redo pointer of the one before and its own; NULL of the first",
    ),
    nullable(
        "interval_seconds",
        U64,
        "seconds since the start of the previous checkpoint; NULL for the first",
    ),
];

const SEGMENTS: &[Column] = &[
    TIMELINE,
    column("segment", Text, "name of the segment"),
    column("path", Text, "path of its file, or its place in an archive"),
    column("system_identifier", U64, "system identifier of the cluster"),
    column("start_lsn", Lsn, "position of its first byte"),
    column("bytes", U64, "record_bytes and framing_bytes: sum over segments is that of the files"),
    column("records", U64, "number of records that start in the segment"),
    column(
        "record_bytes",
        U64,
        "bytes of these records with their alignment, also where they reach into later segments",
    ),
    column("framing_bytes", U64, "bytes outside of records: see the table framing"),
    column("fpi_length", U64, "bytes of full-page images in these records"),
    column("commits", U64, "number of commits, prepared ones counted when they commit"),
    column("aborts", U64, "number of aborts, including aborts of subtransactions"),
    nullable("first_time", Time, "time of the first commit or abort in the segment; NULL if it has none"),
    nullable("last_time", Time, "time of the last commit or abort in the segment; NULL if it has none"),
    column("stored_bytes", U64, "bytes of its file, or its part of a file, as stored"),
    column("compression", Label, "compression of the file: none, gzip, zstd, lz4, xz, walden ..."),
];

const RELATIONS: &[Column] = &[
    RELATION,
    RELATION_KIND,
    TABLE_NAME,
    DATABASE_NAME,
    TABLESPACE,
    DATABASE,
    RELFILENUMBER,
    FORK,
    nullable("resource_manager", Label, "resource manager; NULL for bytes outside of records"),
    nullable("record_type", Label, "kind of record; NULL for bytes outside of records"),
    column("records", U64, "number of records, each counted with its first block's relation"),
    column("fpi_count", U64, "number of full-page images"),
    column("bytes", U64, "bytes; sum over relations is that of the files"),
    column("fpi_length", U64, "bytes of full-page images"),
    column("record_header_bytes", U64, "bytes of the records' fixed headers"),
    column("block_header_bytes", U64, "bytes of headers of blocks"),
    column("block_data_bytes", U64, "bytes of data of blocks"),
    column("main_data_bytes", U64, "bytes of main data and its headers"),
    column("other_bytes", U64, "bytes of headers of images, alignment, and of framing"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_the_order_of_their_numbers() {
        for table in Table::all() {
            assert_eq!(Table::from_name(table.name()), Some(table));
            assert_eq!(TABLES[table as usize].0, table);
        }
    }
}
