//! Where the log comes from: files and folders of segments, also as other tools compress and name them, and the names of
//! the relations that the log knows by number alone.
//!
//! [`inventory`] finds segments and puts them in order, [`open`] reads one whatever its compression, [`scan`] decodes
//! a run of them in parallel. [`names`] says what a relation's files are called in SQL. [`datadir`] reads the pages that the
//! log's changes apply to.
#![forbid(unsafe_code)]

pub mod datadir;
pub mod inventory;
pub mod names;
pub mod open;
pub mod scan;
mod windows;
