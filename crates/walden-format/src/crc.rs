//! The checksum of a record: CRC-32C, with the processor's instructions where it has them.
//!
//! The `crc32c` crate is made for long inputs; most records are shorter than the preparations it takes. So short pieces
//! have a loop of their own: one instruction per 8 bytes.

use crate::record::RECORD_HEADER;

/// CRC-32C (Castagnoli) of `bytes` appended to what `crc` was computed of; start with 0.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// The checksum that a whole record should have: of everything after its header, then of the header up to the checksum.
///
/// `record` has at least a header's length.
#[inline]
pub fn record_crc(record: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = hardware::record_crc(record) {
        return crc;
    }
    crc32c_append(crc32c_append(0, &record[RECORD_HEADER..]), &record[..HEADER_PART])
}

/// Bytes of the header before the checksum.
const HEADER_PART: usize = 20;

/// The only unsafe code of this crate: a call that needs a processor feature, made after asking for it.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod hardware {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

    use super::{HEADER_PART, RECORD_HEADER};

    /// Longer pieces are better off with several streams at once.
    const SHORT: usize = 512;

    #[inline]
    pub fn record_crc(record: &[u8]) -> Option<u32> {
        if record.len() > SHORT || !std::arch::is_x86_feature_detected!("sse4.2") {
            return None;
        }
        // SAFETY: the processor has the feature that the function is compiled for.
        Some(unsafe { short_record_crc(record) })
    }

    #[target_feature(enable = "sse4.2")]
    fn short_record_crc(record: &[u8]) -> u32 {
        let body = append(!0, &record[RECORD_HEADER..]);
        !append(body, &record[..HEADER_PART])
    }

    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn append(crc: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut wide = u64::from(crc);
        for word in words {
            wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
        }
        let mut crc = wide as u32;
        let (half, rest) = rest.as_chunks::<4>();
        for word in half {
            crc = _mm_crc32_u32(crc, u32::from_le_bytes(*word));
        }
        for byte in rest {
            crc = _mm_crc32_u8(crc, *byte);
        }
        crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_is_the_standards() {
        assert_eq!(crc32c_append(0, b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_append(crc32c_append(0, b"1234"), b"56789"), 0xE306_9283);
    }

    #[test]
    fn both_ways_to_a_records_checksum_agree() {
        let bytes: Vec<u8> = (0..3000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for length in (24..700).chain([1024, 2999, 3000]) {
            let record = &bytes[..length];
            let plain = crc32c_append(crc32c_append(0, &record[24..]), &record[..20]);
            assert_eq!(record_crc(record), plain, "{length}");
        }
    }
}
