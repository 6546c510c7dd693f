//! A binary range coder with carry propagation.
//!
//! One function codes in both directions: encoding writes the given bit, decoding ignores it and returns the
//! bit that was written. A model is therefore written once.

use crate::{Corrupt, corrupt};

/// A direction of coding.
pub trait BinaryCoder {
    /// Whether the given bits are those that are coded.
    const ENCODES: bool;

    /// Codes a bit that is 1 with probability `one` in 1/65536, from 1 to 65535.
    fn code_bit(&mut self, bit: u32, one: u32) -> u32;

    /// Codes one of 16 values. `below` has for each value the total probability of all smaller values, in
    /// 1/[`ONE`].
    ///
    /// The probabilities must ascend strictly, and the last must be below [`ONE`]. A value of probability 0
    /// would reduce the range to 0, and normalization would never terminate.
    fn code_nibble(&mut self, value: u32, below: &[u16; 16]) -> u32;

    /// Makes `count` choices that only an encoder can make. The model then codes each choice. A decoder
    /// receives zeros.
    fn choices(&mut self, count: usize, choose: impl FnOnce() -> Vec<u8>) -> Vec<u8>;
}

/// Sum of the probabilities of nibbles.
pub const ONE: u16 = 1 << 15;

/// Maximum number of zeros at the end of the output that are not stored.
const MAX_OMITTED_ZEROS: usize = 4;

/// The range is normalized when it falls below this.
const MIN_RANGE: u32 = 1 << 24;

/// Returns the start and length of a nibble's part of the range. The last nibble gets the remainder.
#[inline]
fn part(range: u32, value: usize, below: &[u16; 16]) -> (u32, u32) {
    let step = range >> 15;
    let start = if value > 0 { step * u32::from(below[value]) } else { 0 };
    let range = if value < 15 { step * u32::from(below[value + 1]) - start } else { range - start };
    (start, range)
}

/// Encodes bits.
pub struct Encoder {
    low: u64,
    range: u32,
    /// The last byte, which a carry may still change, and the number of 0xFF bytes after it.
    held: Option<u8>,
    pending_ff: u64,
    out: Vec<u8>,
    /// All choices so far.
    pub chosen: Vec<u8>,
}

impl Encoder {
    /// Creates an encoder without output.
    pub fn new() -> Encoder {
        Encoder { low: 0, range: u32::MAX, held: None, pending_ff: 0, out: Vec::new(), chosen: Vec::new() }
    }

    /// Flushes the encoder and returns its output, extended with zeros to `min_bytes`.
    pub fn finish(mut self, min_bytes: usize) -> Vec<u8> {
        for _ in 0..5 {
            self.shift();
        }
        let zeros = self.out.iter().rev().take(MAX_OMITTED_ZEROS).take_while(|byte| **byte == 0).count();
        self.out.truncate(self.out.len() - zeros);
        if self.out.len() < min_bytes {
            self.out.resize(min_bytes, 0);
        }
        self.out
    }

    #[inline]
    fn normalize(&mut self) {
        while self.range < MIN_RANGE {
            self.range <<= 8;
            self.shift();
        }
    }

    fn shift(&mut self) {
        let carry = (self.low >> 32) as u8;
        let byte = (self.low >> 24) as u8;
        if carry == 0 && byte == 0xFF {
            self.pending_ff += 1;
        } else {
            if let Some(held) = self.held {
                self.out.push(held.wrapping_add(carry));
            }
            for _ in 0..self.pending_ff {
                self.out.push(0xFF_u8.wrapping_add(carry));
            }
            self.pending_ff = 0;
            self.held = Some(byte);
        }
        self.low = (self.low & 0x00FF_FFFF) << 8;
    }
}

impl BinaryCoder for Encoder {
    const ENCODES: bool = true;

    #[inline]
    fn code_bit(&mut self, bit: u32, one: u32) -> u32 {
        let bound = (self.range >> 16) * one;
        if bit != 0 {
            self.range = bound;
        } else {
            self.low += u64::from(bound);
            self.range -= bound;
        }
        self.normalize();
        bit
    }

    #[inline]
    fn code_nibble(&mut self, value: u32, below: &[u16; 16]) -> u32 {
        let value = value & 15;
        let (start, range) = part(self.range, value as usize, below);
        self.low += u64::from(start);
        self.range = range;
        self.normalize();
        value
    }

    fn choices(&mut self, _: usize, choose: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        let choices = choose();
        self.chosen.extend_from_slice(&choices);
        choices
    }
}

/// Does not code: a model learns content that was coded otherwise, using the encoder's choices.
pub struct Learner<'a> {
    /// Remaining choices.
    pub chosen: &'a [u8],
}

impl BinaryCoder for Learner<'_> {
    const ENCODES: bool = true;

    #[inline]
    fn code_bit(&mut self, bit: u32, _: u32) -> u32 {
        bit
    }

    #[inline]
    fn code_nibble(&mut self, value: u32, _: &[u16; 16]) -> u32 {
        value & 15
    }

    fn choices(&mut self, count: usize, _: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        let (now, later) = self.chosen.split_at(count.min(self.chosen.len()));
        self.chosen = later;
        let mut choices = now.to_vec();
        choices.resize(count, 0);
        choices
    }
}

/// Decodes bits. After the last byte it reads zeros, and [`Decoder::finish`] returns an error if it read too
/// many.
pub struct Decoder<'a> {
    code: u32,
    range: u32,
    rest: &'a [u8],
    /// Number of zeros read after the last byte.
    omitted_zeros: usize,
}

impl<'a> Decoder<'a> {
    /// Creates a decoder for the output of an [`Encoder`].
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        let mut decoder = Decoder { code: 0, range: u32::MAX, rest: bytes, omitted_zeros: 0 };
        for _ in 0..4 {
            decoder.code = decoder.code << 8 | u32::from(decoder.next());
        }
        decoder
    }

    #[inline]
    fn normalize(&mut self) {
        while self.range < MIN_RANGE {
            self.range <<= 8;
            self.code = self.code << 8 | u32::from(self.next());
        }
    }

    #[inline]
    fn next(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((&byte, rest)) => {
                self.rest = rest;
                byte
            }
            None => {
                self.omitted_zeros += 1;
                0
            }
        }
    }

    /// Checks that decoding read no more zeros than an encoder omits.
    pub fn finish(&self) -> Result<(), Corrupt> {
        if self.omitted_zeros <= MAX_OMITTED_ZEROS {
            Ok(())
        } else {
            Err(corrupt("cannot decompress a part: expected more stored bytes"))
        }
    }
}

impl BinaryCoder for Decoder<'_> {
    const ENCODES: bool = false;

    #[inline]
    fn code_bit(&mut self, _: u32, one: u32) -> u32 {
        let bound = (self.range >> 16) * one;
        let bit = u32::from(self.code < bound);
        if bit != 0 {
            self.range = bound;
        } else {
            self.code -= bound;
            self.range -= bound;
        }
        self.normalize();
        bit
    }

    #[inline]
    fn code_nibble(&mut self, _: u32, below: &[u16; 16]) -> u32 {
        let at = self.code / (self.range >> 15);
        let value = below[1..].iter().map(|&below| u32::from(u32::from(below) <= at)).sum();
        let (start, range) = part(self.range, value as usize, below);
        self.code = self.code.wrapping_sub(start);
        self.range = range;
        self.normalize();
        value
    }

    fn choices(&mut self, count: usize, _: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        vec![0; count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns pseudo-random bits and probabilities.
    fn bits(count: u32) -> impl Iterator<Item = (u32, u32)> {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        (0..count).map(move |at| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let one = match at % 3 {
                0 => 1,
                1 => 65535,
                _ => ((state >> 20) as u32 & 0xFFFF).max(1),
            };
            ((state >> 48 < u64::from(one)).into(), one)
        })
    }

    #[test]
    fn bits_come_back_whatever_their_probability() {
        let mut encoder = Encoder::new();
        bits(100_000).for_each(|(bit, one)| {
            encoder.code_bit(bit, one);
        });
        // Improbable bits, which cause carries.
        bits(2_000).for_each(|(bit, one)| {
            encoder.code_bit(1 - bit, one);
        });
        let bytes = encoder.finish(0);
        let mut decoder = Decoder::new(&bytes);
        assert!(bits(100_000).all(|(bit, one)| decoder.code_bit(0, one) == bit));
        assert!(bits(2_000).all(|(bit, one)| decoder.code_bit(0, one) == 1 - bit));
    }

    #[test]
    fn likely_bits_take_next_to_nothing() {
        let mut encoder = Encoder::new();
        (0..65536).for_each(|_| {
            encoder.code_bit(1, 65535);
        });
        assert!(encoder.finish(0).len() <= 4);
    }

    /// Bits that all match their prediction are coded as zeros.
    #[test]
    fn four_zeros_are_omitted_and_no_more_may_be_missing() {
        let encode = |min_bytes| {
            let mut encoder = Encoder::new();
            (0..4_000_000).for_each(|_| {
                encoder.code_bit(1, 65535);
            });
            encoder.finish(min_bytes)
        };
        let decode = |bytes: &[u8]| {
            let mut decoder = Decoder::new(bytes);
            assert!((0..4_000_000).all(|_| decoder.code_bit(0, 65535) == 1));
            decoder.finish()
        };
        let bytes = encode(0);
        assert!(bytes.len() > 4 && bytes.iter().all(|byte| *byte == 0), "{bytes:?}");
        assert_eq!(decode(&bytes), Ok(()));
        assert!(decode(&bytes[1..]).is_err());
        let extended = encode(100);
        assert_eq!(extended.len(), 100);
        assert_eq!(decode(&extended), Ok(()));
    }
}
