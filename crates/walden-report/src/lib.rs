//! Results as people read them: tables for a terminal, CSV for a spreadsheet.
#![forbid(unsafe_code)]

pub mod csv;
pub mod explain;
pub mod page;
pub mod table;
pub mod units;
