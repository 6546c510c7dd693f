//! zstd frames, compressed to the very bytes that libzstd makes of them at its default level, as servers do for full-page images.

mod matches;

/// libzstd's releases, as far as they compress pages differently; the newest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// 1.5.7.
    V1_5_7,
    /// 1.5.1 to 1.5.6.
    V1_5_1,
    /// 1.4.0 to 1.5.0.
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
