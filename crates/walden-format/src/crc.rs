//! The checksum of a record: CRC-32C, with the processor's instructions where it has them.

/// CRC-32C (Castagnoli) of `bytes` appended to what `crc` was computed of; start with 0.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}
