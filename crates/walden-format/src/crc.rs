//! The checksum of a record: CRC-32C, with the processor's instructions where it has them.
//!
//! The `crc32c` crate is made for long inputs; most records are shorter than the preparations it takes. So short
//! records have a loop of their own: one instruction per 8 bytes, compiled into the loop over a page's records.

use crate::record::RECORD_HEADER;

/// CRC-32C (Castagnoli) of `bytes` appended to what `crc` was computed of; start with 0.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// Bytes of the header before the checksum.
const HEADER_PART: usize = 20;

/// A way to compute the checksum that a whole record should have: of everything after its header, then of the header
/// up to the checksum.
pub(crate) trait RecordCrc: Copy {
    /// `record` has at least a header's length.
    fn record_crc(self, record: &[u8]) -> u32;

    /// Calls `work`, compiled for the processor that this way needs, so that [`RecordCrc::record_crc`] takes no call.
    fn run<R>(self, work: impl FnOnce() -> R) -> R;
}

/// Works on every processor.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl RecordCrc for Portable {
    #[inline]
    fn record_crc(self, record: &[u8]) -> u32 {
        crc32c_append(crc32c_append(0, &record[RECORD_HEADER..]), &record[..HEADER_PART])
    }

    #[inline(always)]
    fn run<R>(self, work: impl FnOnce() -> R) -> R {
        work()
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use hardware::Sse42;

/// The only unsafe code of this crate: calls that need a processor feature, made with the proof that it is there.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod hardware {
    use std::arch::x86_64::{_mm_crc32_u32, _mm_crc32_u64};

    use super::{HEADER_PART, Portable, RECORD_HEADER, RecordCrc};

    /// Longer records are better off with several streams at once.
    const SHORT: usize = 512;

    /// The proof that the processor has SSE 4.2: only [`Sse42::detect`] makes one.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Sse42(());

    impl Sse42 {
        pub(crate) fn detect() -> Option<Sse42> {
            std::arch::is_x86_feature_detected!("sse4.2").then_some(Sse42(()))
        }
    }

    impl RecordCrc for Sse42 {
        #[inline(always)]
        fn record_crc(self, record: &[u8]) -> u32 {
            if record.len() > SHORT {
                return Portable.record_crc(record);
            }
            // SAFETY: `self` proves that the processor has the feature that the function is compiled for.
            unsafe { short_record_crc(record) }
        }

        #[inline(always)]
        fn run<R>(self, work: impl FnOnce() -> R) -> R {
            // SAFETY: as above.
            unsafe { run(work) }
        }
    }

    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn run<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn short_record_crc(record: &[u8]) -> u32 {
        let (Some(header), Some(last)) = (record.first_chunk::<RECORD_HEADER>(), record.last_chunk()) else {
            return 0;
        };
        let (words, rest) = record[RECORD_HEADER..].as_chunks::<8>();
        let mut crc = u64::from(!0u32);
        for word in words {
            crc = _mm_crc32_u64(crc, u64::from_le_bytes(*word));
        }
        // The last 0 to 7 bytes in one instruction and without a branch on their number, which no processor foresees.
        // Zeros leave a state of zero as it is: so the bytes go to the top of a word of zeros, together with that part
        // of the state that they meet. The record's last 8 bytes are such a word, but for what is below.
        let bits = 8 * rest.len() as u32;
        let top = u64::from_le_bytes(*last) & !(u64::MAX >> bits);
        let met = crc << 8 << (56 - bits);
        crc = _mm_crc32_u64(0, top ^ met) ^ crc >> bits;
        let (words, rest) = header[..HEADER_PART].as_chunks::<8>();
        for word in words {
            crc = _mm_crc32_u64(crc, u64::from_le_bytes(*word));
        }
        for half in rest.as_chunks::<4>().0 {
            crc = _mm_crc32_u32(crc as u32, u32::from_le_bytes(*half)).into();
        }
        !crc as u32
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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn both_ways_to_a_records_checksum_agree() {
        let Some(sse42) = Sse42::detect() else { return };
        let bytes: Vec<u8> = (0..3000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for length in (24..700).chain([1024, 2999, 3000]) {
            let record = &bytes[..length];
            assert_eq!(sse42.record_crc(record), Portable.record_crc(record), "{length}");
            assert_eq!(sse42.run(|| sse42.record_crc(record)), Portable.record_crc(record), "{length}");
        }
    }
}
