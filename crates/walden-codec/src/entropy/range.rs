//! A binary range coder: bits of any probability, to a fraction of a bit each.
//!
//! One function codes in both directions: encoding writes the bit it is given, decoding ignores that and gives the one that
//! was written. So a model is written once.

/// Codes bits, one way or the other.
pub trait Bits {
    /// Whether it writes the bits that it is given.
    const ENCODES: bool;

    /// Codes a bit of which `one` is the probability to be 1, in 1/65536, from 1 to 65535.
    fn code(&mut self, bit: u32, one: u32) -> u32;

    /// Codes one of 16 values. `below` has for each the probability of those below it, in 1/[`ONE`]; each has one itself.
    fn nibble(&mut self, value: u32, below: &[u16; 16]) -> u32;

    /// So many choices that only an encoder makes. They are not coded by this.
    fn choices(&mut self, count: usize, choose: impl FnOnce() -> Vec<u8>) -> Vec<u8>;
}

/// All of the probability of nibbles.
pub const ONE: u16 = 1 << 15;

/// A range is widened when it gets below this.
const NARROW: u32 = 1 << 24;

/// Where the part of a range that is a nibble's starts, and how long it is. The last one has what remains.
#[inline]
fn part(range: u32, value: usize, below: &[u16; 16]) -> (u32, u32) {
    let step = range >> 15;
    let start = if value > 0 { step * u32::from(below[value]) } else { 0 };
    let range = if value < 15 { step * u32::from(below[value + 1]) - start } else { range - start };
    (start, range)
}

/// Writes bits.
pub struct Encoder {
    low: u64,
    range: u32,
    /// The byte that a carry may still change, and how many bytes of 0xFF are after it.
    held: Option<u8>,
    full: u64,
    out: Vec<u8>,
    /// All choices that were made.
    pub chosen: Vec<u8>,
}

impl Encoder {
    /// Nothing written yet.
    pub fn new() -> Encoder {
        Encoder { low: 0, range: u32::MAX, held: None, full: 0, out: Vec::new(), chosen: Vec::new() }
    }

    /// Ends the bits, and gives their bytes.
    pub fn finish(mut self) -> Vec<u8> {
        for _ in 0..5 {
            self.shift();
        }
        // Reading gives zeros after the end.
        while self.out.last() == Some(&0) {
            self.out.pop();
        }
        self.out
    }

    #[inline]
    fn widen(&mut self) {
        while self.range < NARROW {
            self.range <<= 8;
            self.shift();
        }
    }

    fn shift(&mut self) {
        let carry = (self.low >> 32) as u8;
        let byte = (self.low >> 24) as u8;
        if carry == 0 && byte == 0xFF {
            self.full += 1;
        } else {
            if let Some(held) = self.held {
                self.out.push(held.wrapping_add(carry));
            }
            for _ in 0..self.full {
                self.out.push(0xFF_u8.wrapping_add(carry));
            }
            self.full = 0;
            self.held = Some(byte);
        }
        self.low = (self.low & 0x00FF_FFFF) << 8;
    }
}

impl Bits for Encoder {
    const ENCODES: bool = true;

    #[inline]
    fn code(&mut self, bit: u32, one: u32) -> u32 {
        let bound = (self.range >> 16) * one;
        if bit != 0 {
            self.range = bound;
        } else {
            self.low += u64::from(bound);
            self.range -= bound;
        }
        self.widen();
        bit
    }

    #[inline]
    fn nibble(&mut self, value: u32, below: &[u16; 16]) -> u32 {
        let value = value & 15;
        let (start, range) = part(self.range, value as usize, below);
        self.low += u64::from(start);
        self.range = range;
        self.widen();
        value
    }

    fn choices(&mut self, _: usize, choose: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        let choices = choose();
        self.chosen.extend_from_slice(&choices);
        choices
    }
}

/// Has a model learn what is coded otherwise, with the choices that the encoder made.
pub struct Nowhere<'a> {
    pub chosen: &'a [u8],
}

impl Bits for Nowhere<'_> {
    const ENCODES: bool = true;

    #[inline]
    fn code(&mut self, bit: u32, _: u32) -> u32 {
        bit
    }

    #[inline]
    fn nibble(&mut self, value: u32, _: &[u16; 16]) -> u32 {
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

/// Reads bits. Whatever the bytes are, it gives some; after the last byte come zeros.
pub struct Decoder<'a> {
    code: u32,
    range: u32,
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Reads what an [`Encoder`] wrote.
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        let mut decoder = Decoder { code: 0, range: u32::MAX, rest: bytes };
        for _ in 0..4 {
            decoder.code = decoder.code << 8 | u32::from(decoder.next());
        }
        decoder
    }

    #[inline]
    fn widen(&mut self) {
        while self.range < NARROW {
            self.range <<= 8;
            self.code = self.code << 8 | u32::from(self.next());
        }
    }

    #[inline]
    fn next(&mut self) -> u8 {
        let (byte, rest) = self.rest.split_first().map_or((0, self.rest), |(&byte, rest)| (byte, rest));
        self.rest = rest;
        byte
    }
}

impl Bits for Decoder<'_> {
    const ENCODES: bool = false;

    #[inline]
    fn code(&mut self, _: u32, one: u32) -> u32 {
        let bound = (self.range >> 16) * one;
        let bit = u32::from(self.code < bound);
        if bit != 0 {
            self.range = bound;
        } else {
            self.code -= bound;
            self.range -= bound;
        }
        self.widen();
        bit
    }

    #[inline]
    fn nibble(&mut self, _: u32, below: &[u16; 16]) -> u32 {
        let at = self.code / (self.range >> 15);
        let value = below[1..].iter().map(|&below| u32::from(u32::from(below) <= at)).sum();
        let (start, range) = part(self.range, value as usize, below);
        self.code = self.code.wrapping_sub(start);
        self.range = range;
        self.widen();
        value
    }

    fn choices(&mut self, count: usize, _: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        vec![0; count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits and probabilities that follow from a number.
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
            encoder.code(bit, one);
        });
        // And against all odds, which makes for carries.
        bits(2_000).for_each(|(bit, one)| {
            encoder.code(1 - bit, one);
        });
        let bytes = encoder.finish();
        let mut decoder = Decoder::new(&bytes);
        assert!(bits(100_000).all(|(bit, one)| decoder.code(0, one) == bit));
        assert!(bits(2_000).all(|(bit, one)| decoder.code(0, one) == 1 - bit));
    }

    #[test]
    fn likely_bits_take_next_to_nothing() {
        let mut encoder = Encoder::new();
        (0..65536).for_each(|_| {
            encoder.code(1, 65535);
        });
        assert!(encoder.finish().len() <= 4);
    }
}
