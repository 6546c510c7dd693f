//! Changes of extensions' pages: the resource manager Generic, since 9.6.
//!
//! A block's data consists of fragments, each of which replaces a range of the page; there is no main data.
//! The format is defined in `generic_xlog.c`. Fragments are not variants of [`super::Payload`] yet; replay
//! reads and writes them here.

use super::layout::layout;

layout! {
    /// The header of a fragment, followed by its bytes (`FRAGMENT_HEADER_SIZE`).
    GenericFragment[4] {
        /// The offset of the bytes on the page.
        0 offset: u16,
        /// The number of bytes that follow.
        2 length: u16,
    }
}
