//! Values of type `jsonb`, without the header of their length (`jsonb.h`).
//!
//! ```text
//! offset  width  JsonbContainer
//!      0      4  number of keys or elements in 28 bits, above them what the container is: see [`container`]
//!      4    4 n  JEntry, for each key and then each value, or for each element: its length, or where it ends counted
//!                from the first one's start, in 28 bits; type in 3 bits, see [`entry`]; 1 bit: it is the end
//!                keys, then values, or elements; numbers and containers from the next multiple of 4 on
//! ```
//!
//! A number is a `numeric` with its header of 4 bytes.

/// Bytes of a container's header, and of a `JEntry`.
pub const WORD_BYTES: usize = 4;
/// Where the bits begin that say what a container is, and the type of an entry.
pub const KIND_SHIFT: u32 = 28;
/// The number of keys or elements in a container's header (`JB_CMASK`).
pub const COUNT_MASK: u32 = (1 << KIND_SHIFT) - 1;
/// The length or end in an entry (`JENTRY_OFFLENMASK`).
pub const LENGTH_MASK: u32 = (1 << KIND_SHIFT) - 1;
/// Whether an entry has the end of its content in place of the length (`JENTRY_HAS_OFF`).
pub const ENTRY_HAS_END: u32 = 0x8000_0000;
/// Every so many entries have their end (`JB_OFFSET_STRIDE`).
pub const END_STRIDE: usize = 32;
/// What the contents of numbers and containers are aligned to.
pub const ALIGNMENT: usize = 4;

/// What a container is: the bits of its header from [`KIND_SHIFT`] on.
pub mod container {
    /// An array around a single value, which is no container itself; with [`ARRAY`] (`JB_FSCALAR`).
    pub const SCALAR: u32 = 1;
    /// `JB_FOBJECT`
    pub const OBJECT: u32 = 2;
    /// `JB_FARRAY`
    pub const ARRAY: u32 = 4;
}

/// Types of entries (`JENTRY_IS*`), as [`entry_type`] gives them.
#[allow(missing_docs)]
pub mod entry {
    pub const STRING: u8 = 0;
    pub const NUMERIC: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const TRUE: u8 = 3;
    pub const NULL: u8 = 4;
    pub const CONTAINER: u8 = 5;
}

/// The type of an entry: see [`entry`].
#[inline]
pub fn entry_type(entry: u32) -> u8 {
    (entry >> KIND_SHIFT & 7) as u8
}
