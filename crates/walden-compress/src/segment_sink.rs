//! A writer that keeps the original of a member, which may be a segment.

use std::io::{self, Write};

/// Maximum number of bytes to keep. Only unusually large segments exceed it.
const MAX_BYTES: usize = 64 << 20;

/// Keeps written bytes, up to a limit.
#[derive(Default)]
pub(crate) struct SegmentSink {
    bytes: Vec<u8>,
    is_too_large: bool,
}

impl SegmentSink {
    /// Returns all bytes; `None` if they exceeded the limit.
    pub fn segment(&self) -> Option<&[u8]> {
        (!self.is_too_large).then_some(&self.bytes)
    }
}

impl Write for SegmentSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_too_large |= self.bytes.len() + bytes.len() > MAX_BYTES;
        if self.is_too_large {
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
