//! PostgreSQL's write-ahead log as structures: positions and file names, pages, records, block references, full-page
//! images, and one table of resource managers and record kinds with what differs between the versions.
//!
//! Pure: no I/O, no clock, no unsafe code but the calls of a processor's instructions in [`crc`]; nothing is allocated per
//! record. No input can make it panic. Reads the log of PostgreSQL 9.5 to 19 and chooses by the magic in the pages. Unknown
//! resource managers and record kinds are values.
//!
//! A stream of records comes out of [`stream::Decoder`].
#![deny(unsafe_code)]

pub mod assemble;
pub mod crc;
pub mod fault;
pub mod geometry;
pub mod lsn;
pub mod page;
pub mod payload;
pub mod reader;
pub mod record;
pub mod rmgr;
pub mod stream;
pub mod usual;
pub mod version;
