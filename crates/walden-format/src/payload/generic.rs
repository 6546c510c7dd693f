//! Changes of extensions' pages: the resource manager Generic, since 9.6.
//!
//! A block's data is fragments, which say which bytes of the page are what; there is no main data. `generic_xlog.c` decides. They
//! are not payloads of their own yet; replay reads and writes them here.

use super::layout::layout;

layout! {
    /// What precedes the bytes of a fragment (`FRAGMENT_HEADER_SIZE`).
    GenericFragment[4] {
        /// Where on the page the bytes are.
        0 offset: u16,
        /// How many bytes follow.
        2 length: u16,
    }
}
