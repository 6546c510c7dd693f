//! zstd frames, compressed to the very bytes that libzstd makes of them at its default level, as servers do for full-page images.

mod matches;

/// libzstd's releases, as far as they compress pages differently; the newest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// From 1.5.7 on: a long copy that begins later has to be longer than the short one that begins here.
    V1_5_7,
    /// From 1.5.1 on: positions are searched two at a time; bytes that are often and equally often literals come in another
    /// order.
    V1_5_1,
    /// From 1.5.0 on: what counts as too short an end of a block.
    V1_5_0,
    /// From 1.4.7 on: how tables for few symbols round those that are rare.
    V1_4_7,
    /// From 1.4.1 on: which position before the end of a copy is found again.
    V1_4_1,
    /// From 1.4.0 on, the oldest that a server can be built with.
    V1_4_0,
}

/// Literals, then a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sequence {
    /// Bytes that come as they are before the copy.
    pub literals: u32,
    /// 1 to 3: a repeated offset by its number as the format counts it (with literals == 0 the meaning shifts as the format says); from 4 on the offset + 3. (libzstd's `offBase`.)
    pub offset: u32,
    /// Bytes copied, 3 or more.
    pub copied: u32,
}
