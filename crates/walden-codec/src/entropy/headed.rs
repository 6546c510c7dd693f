//! Content with a header that is only known afterwards.

/// Content with a header that was written before it without moving it.
pub struct WithHeader {
    bytes: Vec<u8>,
    start: usize,
}

impl WithHeader {
    /// Creates the content of `bytes` from `body_at` on, with `header` before it. The header must fit before
    /// `body_at`.
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
