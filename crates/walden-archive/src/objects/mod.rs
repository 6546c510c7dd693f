//! Defines the files that PostgreSQL archives, their checks, and the objects that contain them.

pub(crate) mod backup_files;
pub mod check;
pub mod contents;
pub mod documents;
pub(crate) mod first_page;
pub(crate) mod link;
pub mod name;
pub mod object;
pub mod same_log;
