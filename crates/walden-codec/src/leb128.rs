//! LEB128 integers.

use crate::{Corrupt, corrupt};

/// Maximum length of a 64-bit LEB128 integer in bytes.
pub const MAX_LEB128_BYTES: usize = 10;

/// Appends an integer as LEB128.
#[inline]
pub fn put_leb128(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Decodes a LEB128 integer and advances the input.
#[inline]
pub fn get_leb128(input: &mut &[u8]) -> Result<u64, Corrupt> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) =
            input.split_first().ok_or_else(|| corrupt("cannot decode a LEB128 integer: it is cut short"))?;
        *input = after;
        // The tenth byte holds one bit.
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(corrupt("cannot decode a LEB128 integer: expected at most 64 bits"))
}

/// Converts a decoded integer to a narrower type.
#[inline]
pub fn narrow<T: TryFrom<u64>>(value: u64) -> Result<T, Corrupt> {
    T::try_from(value).map_err(|_| corrupt("cannot decode an integer: expected one that fits its field"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_decoded_and_none_exceeds_64_bits() {
        for value in [0, 127, 128, u64::from(u32::MAX), 1 << 63, u64::MAX] {
            let mut bytes = Vec::new();
            put_leb128(&mut bytes, value);
            assert_eq!(get_leb128(&mut &bytes[..]), Ok(value));
        }
        for last in [0x02, 0x7F, 0x81] {
            let mut bytes = [0xFF; 10];
            bytes[9] = last;
            assert!(get_leb128(&mut &bytes[..]).is_err(), "{last}");
        }
        assert!(narrow::<u32>(1 << 32).is_err());
    }
}
