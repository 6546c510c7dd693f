//! Content with a head that is known only after it.

/// Bytes before which something was put that was known only after them.
pub struct Headed {
    bytes: Vec<u8>,
    start: usize,
}

impl Headed {
    /// `bytes` from `body_at` on, after `head`, which takes as much as there is before at most.
    pub fn new(head: &[u8], mut bytes: Vec<u8>, body_at: usize) -> Headed {
        let start = body_at - head.len();
        bytes[start..body_at].copy_from_slice(head);
        Headed { bytes, start }
    }
}

impl std::ops::Deref for Headed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}
