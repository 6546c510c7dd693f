//! The checksum of a record, CRC-32C, computed with the processor's instructions if available.
//!
//! The fastest implementation depends on the length. Records of up to 88 bytes within a page use `RecordCrc`,
//! inlined into the decoder's loop, because a call alone would take longer. Inputs of 512 bytes or more,
//! which are mostly images, use the `crc-fast` crate: folding with carry-less multiplication is several times
//! as fast as the CRC-32C instruction. All others use the `crc32c` crate.

use crc_fast::{CrcAlgorithm, Digest, checksum_combine};

use crate::record::{CRC_OFFSET, RECORD_HEADER};

/// Length in bytes from which folding is faster.
const FOLDED: usize = 512;

/// Extends the CRC-32C (Castagnoli) `crc` by `bytes`; the CRC of no bytes is 0.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < FOLDED { crc32c::crc32c_append(crc, bytes) } else { folded(crc, bytes) }
}

/// Returns the CRC-32C of two parts from theirs. `second_bytes` is the length of the second part.
pub fn crc32c_combine(first: u32, second: u32, second_bytes: u64) -> u32 {
    checksum_combine(CrcAlgorithm::Crc32Iscsi, first.into(), second.into(), second_bytes) as u32
}

fn folded(crc: u32, bytes: &[u8]) -> u32 {
    // Crc32Iscsi is another name for CRC-32C. The crate's state is the checksum without the final inversion.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// Computes a record's `xl_crc`: over the bytes after its header, then over the header up to `xl_crc`
/// (`ValidXLogRecord`).
///
/// `record` must be at least as long as the header.
pub fn record_crc(record: &[u8]) -> u32 {
    let (header, body) = (&record[..CRC_OFFSET], &record[RECORD_HEADER..]);
    #[cfg(target_arch = "x86_64")]
    if body.len() < FOLDED
        && let Some(sse42) = Sse42::detect()
    {
        return sse42.crc(body, header);
    }
    crc32c_append(crc32c_append(0, body), header)
}

/// Bytes per step of [`RecordCrc::crc_around`].
const STRIDE: usize = 64;
/// Bytes before the record in the window passed to [`RecordCrc::crc_around`].
pub(crate) const BEFORE: usize = STRIDE - RECORD_HEADER;
/// Bytes from the record's start in the window passed to [`RecordCrc::crc_around`].
pub(crate) const BEHIND: usize = STRIDE + RECORD_HEADER;

/// An implementation of checksums for many short records.
pub(crate) trait RecordCrc: Copy {
    /// Returns the same result as [`record_crc`]. `around` is a window of the page: [`BEFORE`] bytes before
    /// the record and [`BEHIND`] bytes from its start.
    fn crc_around(self, around: &[u8; BEFORE + BEHIND], record: &[u8]) -> u32;

    /// Runs `work`, compiled with the processor features of this implementation, so that
    /// [`RecordCrc::crc_around`] is inlined.
    fn run<W: CrcWork>(self, work: W) -> W::Output;
}

/// Work that computes the checksums of many short records. It is not a closure, because `inline(always)` on
/// closures is not stable.
pub(crate) trait CrcWork {
    type Output;

    /// Must be `inline(always)`.
    fn with(self, crc: impl RecordCrc) -> Self::Output;
}

/// The implementation for any processor.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl RecordCrc for Portable {
    fn crc_around(self, _: &[u8; BEFORE + BEHIND], record: &[u8]) -> u32 {
        record_crc(record)
    }

    fn run<W: CrcWork>(self, work: W) -> W::Output {
        work.with(self)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use hardware::Sse42;

/// The only unsafe code of this crate: calls of functions with a target feature, made through a value that
/// proves the feature.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod hardware {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

    use super::{BEFORE, BEHIND, CrcWork, RECORD_HEADER, RecordCrc, STRIDE};

    /// Proves that the processor has SSE 4.2: only [`Sse42::detect`] creates one.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Sse42(());

    impl Sse42 {
        pub(crate) fn detect() -> Option<Sse42> {
            std::arch::is_x86_feature_detected!("sse4.2").then_some(Sse42(()))
        }
    }

    impl Sse42 {
        #[inline(always)]
        fn word(self, crc: u64, word: u64) -> u64 {
            // SAFETY: `self` proves that the processor has the feature that the function is compiled for.
            unsafe { _mm_crc32_u64(crc, word) }
        }

        #[inline(always)]
        fn half(self, crc: u64, half: u32) -> u64 {
            // SAFETY: as above.
            unsafe { _mm_crc32_u32(crc as u32, half) }.into()
        }

        #[inline(always)]
        fn byte(self, crc: u64, byte: u8) -> u64 {
            // SAFETY: as above.
            unsafe { _mm_crc32_u8(crc as u32, byte) }.into()
        }

        /// CRC-32C of `first` followed by `then`.
        #[inline]
        pub(crate) fn crc(self, first: &[u8], then: &[u8]) -> u32 {
            // SAFETY: as above.
            unsafe { crc(self, [first, then]) }
        }
    }

    #[target_feature(enable = "sse4.2")]
    fn crc(sse42: Sse42, pieces: [&[u8]; 2]) -> u32 {
        let mut crc = u64::from(!0_u32);
        for piece in pieces {
            let (words, rest) = piece.as_chunks::<8>();
            for bytes in words {
                crc = sse42.word(crc, u64::from_le_bytes(*bytes));
            }
            let (half, rest) = rest.as_chunks::<4>();
            for bytes in half {
                crc = sse42.half(crc, u32::from_le_bytes(*bytes));
            }
            for &byte in rest {
                crc = sse42.byte(crc, byte);
            }
        }
        !(crc as u32)
    }

    impl RecordCrc for Sse42 {
        /// Processes the record's bytes after its header in steps of [`STRIDE`]. The first step takes 1 to 64
        /// bytes, so that a multiple of the stride remains. Zeros precede these bytes (the bytes before the
        /// record in the page, masked), so that records of up to 88 bytes need no branch on their length. The
        /// initial state is one that the zeros turn into CRC-32C's initial state.
        #[inline(always)]
        fn crc_around(self, around: &[u8; BEFORE + BEHIND], record: &[u8]) -> u32 {
            let first = record.len().wrapping_sub(RECORD_HEADER + 1) % STRIDE + 1;
            let mut crc = u64::from(BEFORE_ZEROS[STRIDE - first]);
            for at in (first..first + STRIDE).step_by(8) {
                crc = self.word(crc, word(around, at) & word(&ZEROS_THEN_ONES, at));
            }
            if record.len() > BEHIND {
                for stride in record[RECORD_HEADER + first..].as_chunks::<STRIDE>().0 {
                    for word in stride.as_chunks::<8>().0 {
                        crc = self.word(crc, u64::from_le_bytes(*word));
                    }
                }
            }
            let [first, second, third] = [0, 8, 16].map(|at| word(around, BEFORE + at));
            !self.half(self.word(self.word(crc, first), second), third as u32) as u32
        }

        #[inline(always)]
        fn run<W: CrcWork>(self, work: W) -> W::Output {
            // SAFETY: as above.
            unsafe { run(self, work) }
        }
    }

    #[target_feature(enable = "sse4.2")]
    fn run<W: CrcWork>(sse42: Sse42, work: W) -> W::Output {
        work.with(sse42)
    }

    #[inline(always)]
    fn word(bytes: &[u8; BEFORE + BEHIND], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..].first_chunk().copied().unwrap_or_default())
    }

    /// A stride read at offset n of this table is a mask that keeps its last n bytes.
    static ZEROS_THEN_ONES: [u8; BEFORE + BEHIND] = {
        let mut mask = [0; BEFORE + BEHIND];
        let mut at = STRIDE;
        while at < mask.len() {
            mask[at] = !0;
            at += 1;
        }
        mask
    };

    /// Element n is the state that n zero bytes turn into CRC-32C's initial state.
    static BEFORE_ZEROS: [u32; STRIDE] = {
        const POLYNOMIAL: u32 = 0x82F6_3B78;
        let mut states = [!0; STRIDE];
        let mut at = 1;
        while at < STRIDE {
            let mut state = states[at - 1];
            let mut bit = 0;
            while bit < 8 {
                // Inverts a step of the CRC. A step shifts right and, if it shifts out a 1, adds the
                // polynomial, which sets the top bit.
                state = if state >> 31 == 1 { (state ^ POLYNOMIAL) << 1 | 1 } else { state << 1 };
                bit += 1;
            }
            states[at] = state;
            at += 1;
        }
        states
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_is_that_of_the_standard() {
        assert_eq!(crc32c_append(0, b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_append(crc32c_append(0, b"1234"), b"56789"), 0xE306_9283);
        let (first, second) = (crc32c_append(0, b"1234"), crc32c_append(0, b"56789"));
        assert_eq!(crc32c_combine(first, second, 5), 0xE306_9283);
        assert_eq!(crc32c_combine(first, crc32c_append(0, b""), 0), first);
    }

    #[test]
    fn long_pieces_are_folded_to_the_same() {
        let bytes: Vec<u8> = (0..70_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for length in (FOLDED - 1..FOLDED + 300).chain([8168, 16_384, 65_535, 69_000]) {
            for (crc, start) in [(0, 0), (1, 3), (0xE306_9283, 64), (u32::MAX, 999)] {
                let piece = &bytes[start..start + length];
                assert_eq!(crc32c_append(crc, piece), crc32c::crc32c_append(crc, piece), "{length} bytes");
            }
        }
    }

    struct Once<'a>(&'a [u8], usize);

    impl CrcWork for Once<'_> {
        type Output = u32;

        fn with(self, crc: impl RecordCrc) -> u32 {
            crc.crc_around(self.0.first_chunk().unwrap(), &self.0[BEFORE..][..self.1])
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn all_implementations_agree() {
        let Some(sse42) = Sse42::detect() else { return };
        let page: Vec<u8> = (0..3000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for (at, length) in (0..10).flat_map(|at| (RECORD_HEADER + 1..700).map(move |length| (at, length))) {
            let record = &page[at + BEFORE..][..length];
            let expected = crc32c::crc32c(&[&record[RECORD_HEADER..], &record[..CRC_OFFSET]].concat());
            assert_eq!(record_crc(record), expected, "{length} bytes at {at}");
            assert_eq!(Portable.run(Once(&page[at..], length)), expected, "{length} bytes at {at}");
            assert_eq!(sse42.run(Once(&page[at..], length)), expected, "{length} bytes at {at}");
        }
    }
}
