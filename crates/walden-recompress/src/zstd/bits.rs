//! Writes a bit stream into bytes, starting at the lowest bit of the first byte. Decoders read it backwards
//! from its end.

/// Appends bits to bytes.
pub(super) struct BitWriter<'a> {
    target: &'a mut Vec<u8>,
    /// Bits that are not yet in `target`, from the lowest up.
    word: u64,
    held: u32,
}

impl<'a> BitWriter<'a> {
    pub(super) fn new(target: &'a mut Vec<u8>) -> BitWriter<'a> {
        BitWriter { target, word: 0, held: 0 }
    }

    /// Appends the lowest `bits` bits of `value`. At most 33 bits fit between two calls of
    /// [`BitWriter::flush`].
    #[inline]
    pub(super) fn add(&mut self, value: u32, bits: u32) {
        self.add_clean(value & mask(bits), bits);
    }

    /// Appends bits like [`BitWriter::add`], for a value below 2^`bits`.
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

    /// Writes the remaining bits; the last byte is padded with zeros.
    pub(super) fn finish(self) {
        let bytes = self.word.to_le_bytes();
        self.target.extend_from_slice(&bytes[..self.held.div_ceil(8) as usize]);
    }

    /// Appends a 1 as end mark, by which a decoder finds the last bit, and writes the remaining bits.
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
