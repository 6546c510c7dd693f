//! Limits of decoding.

/// Limits of encoding and decoding.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of memory for replayed pages. Further pages go to a temporary file.
    pub page_memory: usize,
    /// Maximum total weight of a segment's columns: their bytes, plus 16 per column. For a file coded as
    /// bytes, the maximum length of the original.
    pub columns: usize,
    /// Maximum number of blocks kept at one time. Each block takes [`BLOCK_NOTES`] bytes and a page.
    pub blocks: usize,
    /// Whether parts coded with context mixing (levels 7 to 9) may be decoded. Context mixing takes 128 MB of
    /// memory.
    pub may_model: bool,
    /// Whether records may have the forms of data that version 2 of the format added. Files for readers of
    /// version 1 do not use these forms.
    pub may_copy: bool,
}

/// Maximum bytes of memory for the bookkeeping of a block and its relation.
pub const BLOCK_NOTES: u64 = 512;

impl Default for Limits {
    /// 64 MB for pages in memory, and no other limit.
    fn default() -> Limits {
        Limits {
            page_memory: 64 << 20,
            columns: usize::MAX,
            blocks: usize::MAX,
            may_model: true,
            may_copy: true,
        }
    }
}
