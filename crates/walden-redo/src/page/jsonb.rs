//! Values of type `jsonb`, without their varlena header (`jsonb.h`).
//!
//! ```text
//! offset  width  JsonbContainer
//!      0      4  number of keys or elements in 28 bits, kind of container above them: see [`container`]
//!      4    4 n  JEntry, for each key and then each value, or for each element: 28 bits for its length, or
//!                for its end relative to the start of the first one; 3 bits for its type, see [`entry`];
//!                1 bit to indicate the end
//!                keys, then values, or elements; numbers and containers are aligned to a multiple of 4
//! ```
//!
//! A number is a `numeric` with its header of 4 bytes.

/// Bytes of a container's header, and of a `JEntry`.
pub const WORD_BYTES: usize = 4;
/// Position of the bits for the kind of container in a container's header, and for the type in an entry.
pub const KIND_SHIFT: u32 = 28;
/// The number of keys or elements in a container's header (`JB_CMASK`).
pub const COUNT_MASK: u32 = (1 << KIND_SHIFT) - 1;
/// The length or end in an entry (`JENTRY_OFFLENMASK`).
pub const LENGTH_MASK: u32 = (1 << KIND_SHIFT) - 1;
/// Flag of an entry that has the end of its content instead of the length (`JENTRY_HAS_OFF`).
pub const ENTRY_HAS_END: u32 = 0x8000_0000;
/// Every entry with an index that is a multiple of this has its end (`JB_OFFSET_STRIDE`).
pub const END_STRIDE: usize = 32;
/// Alignment of numbers and containers.
pub const ALIGNMENT: usize = 4;

/// Kinds of containers: the bits of a header from [`KIND_SHIFT`] on.
pub mod container {
    /// An array around a single value that is not a container; set together with [`ARRAY`] (`JB_FSCALAR`).
    pub const SCALAR: u32 = 1;
    /// `JB_FOBJECT`
    pub const OBJECT: u32 = 2;
    /// `JB_FARRAY`
    pub const ARRAY: u32 = 4;
}

/// Types of entries (`JENTRY_IS*`), as returned by [`entry_type`].
#[allow(missing_docs)]
pub mod entry {
    pub const STRING: u8 = 0;
    pub const NUMERIC: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const TRUE: u8 = 3;
    pub const NULL: u8 = 4;
    pub const CONTAINER: u8 = 5;
}

/// Returns the type of an entry: see [`entry`].
#[inline]
pub fn entry_type(entry: u32) -> u8 {
    (entry >> KIND_SHIFT & 7) as u8
}
