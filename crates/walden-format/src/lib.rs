#![doc = include_str!("../README.md")]
//!
//! # Structure
//!
//! A *segment* is a file of 16 MB, unless initdb was given another size, made of *pages* of 8 kB. A page
//! starts with a header ([`page`]); the bytes after it are *records* ([`record`]), which may continue over
//! any number of pages. A record has a header of 24 bytes, then headers of the blocks that it changes, then
//! for each block a full-page image or data or both, then its main data. Its *resource manager* and bits of
//! its info byte determine its kind ([`rmgr`]). The kind determines the layout of the main data and of the
//! blocks' data ([`payload`]).
//!
//! The versions of PostgreSQL differ in kinds, flags and fields. Such differences are rows of a table or
//! checks of the version where a field is read; there are no modules by version. The page magic determines
//! the version. Unknown resource managers and kinds of record are values, not errors.
//!
//! No length from input is trusted: all reads are bounded, and no unchecked count from the input determines
//! an allocation. The only unsafe code calls the processor's CRC instructions in [`crc`].
#![deny(unsafe_code)]

/// Defines methods of an options struct, each of which sets the field of its name.
///
/// Other crates cannot construct `#[non_exhaustive]` structs by a literal.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($options:ident { $($field:ident: $type:ty),* $(,)? }) => {
        impl $options {$(
            #[doc = concat!("Sets `", stringify!($field), "`.")]
            #[must_use]
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*}
    };
}

pub mod assemble;
pub mod crc;
pub mod crossing;
mod describe;
pub mod diagnostic;
pub mod fault;
pub mod geometry;
pub mod lsn;
pub mod page;
pub mod payload;
pub mod reader;
pub mod record;
pub mod records;
pub mod redirect;
pub mod rmgr;
pub mod simple;
pub mod stream;
pub mod transam;
pub mod version;

pub use describe::describe;
