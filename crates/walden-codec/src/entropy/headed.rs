//! Content with a header that is only known afterwards.

/// Content whose header was written into reserved bytes before it, so that the content was not moved.
pub struct WithHeader {
    bytes: Vec<u8>,
    start: usize,
}

impl WithHeader {
    /// Creates the content from `bytes[body_at..]`, with `header` directly before it. The header must have at
    /// most `body_at` bytes.
    pub fn new(header: &[u8], mut bytes: Vec<u8>, body_at: usize) -> WithHeader {
        let start = body_at - header.len();
        bytes[start..body_at].copy_from_slice(header);
        WithHeader { bytes, start }
    }
}

impl std::ops::Deref for WithHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}
