//! Content with a header that is known only after it.

/// Bytes with a header before them, without moving them.
pub struct WithHeader {
    bytes: Vec<u8>,
    start: usize,
}

impl WithHeader {
    /// `bytes` from `body_at` on, after `header`, which must fit before that.
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
