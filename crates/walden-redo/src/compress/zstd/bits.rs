//! Bits on their way into bytes: the first is the lowest of the first byte. Decoders of a stream of bits begin at its end.

/// Appends bits to bytes.
pub(super) struct BitWriter<'a> {
    target: &'a mut Vec<u8>,
    /// The bits that are not yet in `target`, from the lowest up.
    word: u64,
    held: u32,
}

impl<'a> BitWriter<'a> {
    pub(super) fn new(target: &'a mut Vec<u8>) -> BitWriter<'a> {
        BitWriter { target, word: 0, held: 0 }
    }

    /// Takes the lowest `bits` of `value`. Between two calls of [`BitWriter::flush`] there is room for 33.
    #[inline]
    pub(super) fn add(&mut self, value: u32, bits: u32) {
        self.add_clean(value & mask(bits), bits);
    }

    /// [`BitWriter::add`] of a value that has no other bits.
    #[inline]
    pub(super) fn add_clean(&mut self, value: u32, bits: u32) {
        debug_assert!(self.held + bits <= 64 && value & !mask(bits) == 0);
        self.word |= u64::from(value) << self.held;
        self.held += bits;
    }

    #[inline]
    pub(super) fn flush(&mut self) {
        if self.held >= 32 {
            self.target.extend_from_slice(&(self.word as u32).to_le_bytes());
            self.word >>= 32;
            self.held -= 32;
        }
    }

    /// The last byte is filled with zeros.
    pub(super) fn finish(self) {
        let bytes = self.word.to_le_bytes();
        self.target.extend_from_slice(&bytes[..self.held.div_ceil(8) as usize]);
    }

    /// The end is marked, so that a decoder finds the last bit.
    pub(super) fn finish_marked(mut self) {
        self.flush();
        self.add_clean(1, 1);
        self.finish();
    }
}

#[inline]
fn mask(bits: u32) -> u32 {
    debug_assert!(bits < 32);
    (1 << bits) - 1
}
