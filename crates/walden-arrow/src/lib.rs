#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod batches;
mod blocks;
mod columns;
pub mod export;
pub mod folder;
mod framing;
mod options;
mod parquet_file;
mod read;
mod records;
pub mod row_changes;
mod rows;
mod schema;
mod segments;
mod summary;
mod times;
mod transactions;
mod visitor;

pub use batches::{BATCHES_AHEAD, Batches};
pub use options::{BATCH_ROWS, ReadError, ReadOptions, lsn_text};
pub use read::{is_divisible, read, read_part};
pub use schema::{Column, ColumnType, Table};
pub use segments::Part;
pub use times::segments_between;
