//! `numeric` (`numeric.c`), and `money` (`cash.c`).
//!
//! ```text
//! offset  width  after the header of the value's length
//!      0      2  upper 2 bits: 0 positive, 1 negative, 2 short form, 3 special
//!                of the short form: sign 1 bit, display scale 6 bits, weight 7 bits
//!                otherwise: display scale 14 bits
//!      2      2  weight, not in the short form
//!      2 or 4    digits of base 10000, 2 bytes each
//! ```

use std::fmt;

/// Decimal digits in a digit of base 10000 (`DEC_DIGITS`).
const DECIMAL_DIGITS: i32 = 4;

/// The sign of a [`Numeric`], or its special value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum NumericSign {
    Positive,
    Negative,
    NaN,
    Infinity,
    NegativeInfinity,
}

/// An exact decimal number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numeric {
    /// The sign.
    pub sign: NumericSign,
    /// The power of 10000 of the first digit.
    pub weight: i16,
    /// Number of decimal digits shown after the point.
    pub scale: u16,
    /// Digits of base 10000, the highest first.
    pub digits: Vec<u16>,
}

impl Numeric {
    /// Parses a value without its length header; `None` if it is invalid.
    pub fn parse(bytes: &[u8]) -> Option<Numeric> {
        let (header, rest) = bytes.split_first_chunk::<2>()?;
        let header = u16::from_le_bytes(*header);
        let number = |sign, weight, scale, digits: &[u8]| {
            let (digits, rest) = digits.as_chunks::<2>();
            let digits: Vec<u16> = digits.iter().map(|digit| u16::from_le_bytes(*digit)).collect();
            let is_sound = rest.is_empty() && digits.iter().all(|&digit| digit < 10_000);
            is_sound.then_some(Numeric { sign, weight, scale, digits })
        };
        let sign = |is_negative| if is_negative { NumericSign::Negative } else { NumericSign::Positive };
        match header & 0xC000 {
            0xC000 => {
                let sign = match header & 0xF000 {
                    0xC000 => NumericSign::NaN,
                    0xD000 => NumericSign::Infinity,
                    _ => NumericSign::NegativeInfinity,
                };
                Some(Numeric { sign, weight: 0, scale: 0, digits: Vec::new() })
            }
            0x8000 => {
                let weight = (header & 0x3F) as i16 | if header & 0x40 != 0 { !0x3F } else { 0 };
                number(sign(header & 0x2000 != 0), weight, header >> 7 & 0x3F, rest)
            }
            long => {
                let (weight, digits) = rest.split_first_chunk::<2>()?;
                number(sign(long == 0x4000), i16::from_le_bytes(*weight), header & 0x3FFF, digits)
            }
        }
    }

    /// The digit of a power of 10000.
    fn digit(&self, power: i32) -> u16 {
        let index = usize::try_from(i32::from(self.weight) - power);
        index.ok().and_then(|index| self.digits.get(index)).copied().unwrap_or(0)
    }
}

/// Formats the number like `numeric_out` (`get_str_from_var`).
impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sign {
            NumericSign::NaN => return f.write_str("NaN"),
            NumericSign::Infinity => return f.write_str("Infinity"),
            NumericSign::NegativeInfinity => return f.write_str("-Infinity"),
            NumericSign::Negative => f.write_str("-")?,
            NumericSign::Positive => {}
        }
        let highest = i32::from(self.weight);
        if highest < 0 {
            f.write_str("0")?;
        } else {
            write!(f, "{}", self.digit(highest))?;
            (0..highest).rev().try_for_each(|power| write!(f, "{:04}", self.digit(power)))?;
        }
        if self.scale == 0 {
            return Ok(());
        }
        let mut fraction = String::with_capacity(usize::from(self.scale) + 4);
        let powers = (i32::from(self.scale) + DECIMAL_DIGITS - 1) / DECIMAL_DIGITS;
        for power in 1..=powers {
            fraction.push_str(&format!("{:04}", self.digit(-power)));
        }
        fraction.truncate(self.scale.into());
        write!(f, ".{fraction}")
    }
}

/// `money` in the C locale (`cash_out`).
pub(super) fn money(hundredths: i64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (all, sign) = (hundredths.unsigned_abs(), if hundredths < 0 { "-" } else { "" });
    let whole = (all / 100).to_string();
    write!(f, "{sign}$")?;
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            f.write_str(",")?;
        }
        write!(f, "{digit}")?;
    }
    write!(f, ".{:02}", all % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: &[u16]) -> Option<String> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Numeric::parse(&bytes).map(|numeric| numeric.to_string())
    }

    #[test]
    fn numbers_have_all_their_digits() {
        assert_eq!(text(&[0x8000]).as_deref(), Some("0"));
        assert_eq!(text(&[0x8100, 12, 3400]).as_deref(), Some("12.34"));
        assert_eq!(text(&[0xA181, 12, 3400]).as_deref(), Some("-123400.000"));
        assert_eq!(text(&[0x8000 | 4 << 7 | 0x7F, 5]).as_deref(), Some("0.0005"));
        assert_eq!(text(&[0x4002, 1, 7, 8, 9900]).as_deref(), Some("-70008.99"));
        assert_eq!(text(&[0xC000]).as_deref(), Some("NaN"));
        assert_eq!(text(&[0xD000]).as_deref(), Some("Infinity"));
        assert_eq!(text(&[0xF000]).as_deref(), Some("-Infinity"));
        assert_eq!(text(&[0x8000, 10_000]), None);
        assert_eq!(text(&[]), None);
    }
}
