//! What decoding may take.

/// Limits of both directions.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of memory for the pages that are replayed; what does not fit goes to a temporary file.
    pub page_memory: usize,
    /// What a segment's columns may weigh together: their bytes, and 16 for each. Of form bytes, bytes of the original.
    pub columns: usize,
    /// Blocks that may have to be kept at one time; [`BLOCK_NOTES`] and a page each.
    pub blocks: usize,
    /// Whether parts of context mixing may be decoded, as levels 7 to 9 have them: that takes 128 MB of memory.
    pub may_model: bool,
}

/// Bytes of memory at most for what is noted of a block and its relation.
pub const BLOCK_NOTES: u64 = 512;

impl Default for Limits {
    /// 64 MB for pages in memory, and no other limit.
    fn default() -> Limits {
        Limits { page_memory: 64 << 20, columns: usize::MAX, blocks: usize::MAX, may_model: true }
    }
}
