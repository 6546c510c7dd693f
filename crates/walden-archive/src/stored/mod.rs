//! What is stored: the files that PostgreSQL archives by name, what is checked of them, and the objects that hold them.

pub(crate) mod backup_files;
pub mod check;
pub mod contents;
pub mod documents;
pub(crate) mod link;
pub mod name;
pub mod object;
pub mod same_log;
