//! Floating point numbers in their shortest form (`float4out`, `float8out` with `extra_float_digits` above
//! 0).

use std::fmt;

/// Numbers with this or a larger decimal exponent are printed with an exponent (`d2s.c`).
const FLOAT8_EXPONENT: i32 = 15;
/// Smallest decimal exponent at which a `float4` is printed with an exponent (`f2s.c`).
const FLOAT4_EXPONENT: i32 = 6;

/// Maximum number of digits after the first digit that a number needs.
const MAX_FRACTION: usize = 16;

/// A floating point number as stored. Two are equal if their bytes are, so NaN equals itself, and zeros of
/// different sign differ.
#[derive(Clone, Copy, Debug)]
pub struct Float<T>(pub T);

impl PartialEq for Float<f32> {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl PartialEq for Float<f64> {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl fmt::Display for Float<f32> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        float4(self.0, f)
    }
}

impl fmt::Display for Float<f64> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        float8(self.0, f)
    }
}

fn float8(value: f64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Some(name) = special(value) {
        return f.write_str(name);
    }
    let (bits, fields) = (value.to_bits(), Binary { mantissa_bits: 52, bias: 1075 });
    let is_same = |text: &str| text.parse::<f64>() == Ok(value) && !fields.is_boundary(bits, text);
    let text = format!("{value:e}");
    let mut exact = (digits(&text)..=MAX_FRACTION).map(|digits| format!("{value:.digits$e}"));
    shortest(&exact.find(|text| is_same(text)).unwrap_or(text), FLOAT8_EXPONENT, f)
}

fn float4(value: f32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Some(name) = special(value.into()) {
        return f.write_str(name);
    }
    let (bits, fields) = (value.to_bits().into(), Binary { mantissa_bits: 23, bias: 150 });
    let is_same = |text: &str| text.parse::<f32>() == Ok(value) && !fields.is_boundary(bits, text);
    let text = format!("{value:e}");
    let mut exact = (digits(&text)..=MAX_FRACTION).map(|digits| format!("{value:.digits$e}"));
    shortest(&exact.find(|text| is_same(text)).unwrap_or(text), FLOAT4_EXPONENT, f)
}

/// Returns the number of digits after the point of a number in its shortest form. Of two equally long and
/// equally near numbers, PostgreSQL uses the even number, as Rust does with a given number of digits.
fn digits(scientific: &str) -> usize {
    let mantissa = scientific.split('e').next().unwrap_or_default();
    mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len())
}

/// The fields of a binary number.
#[derive(Clone, Copy)]
struct Binary {
    mantissa_bits: u32,
    /// A mantissa counts in units of 2 to the power of the exponent minus this.
    bias: i32,
}

impl Binary {
    /// Whether a decimal number is exactly in the middle between a binary number and its neighbour.
    /// PostgreSQL does not print such a number, as other programs may round it to either of the two
    /// (`STRICTLY_SHORTEST` in `ryu_common.h`); Rust prints it.
    fn is_boundary(self, bits: u64, scientific: &str) -> bool {
        let fraction = bits & ((1 << self.mantissa_bits) - 1);
        let exponent =
            (bits >> self.mantissa_bits) as i32 & if self.mantissa_bits == 52 { 0x7FF } else { 0xFF };
        let (mantissa, exponent) = match exponent {
            0 => (fraction, 1),
            _ => (fraction | 1 << self.mantissa_bits, exponent),
        };
        let unit = exponent - self.bias;
        let above = (2 * mantissa + 1, unit - 1);
        // The distance from a power of two to the next lower number is half the distance to the next higher
        // number.
        let below = match fraction == 0 && exponent > 1 {
            true => (4 * mantissa - 1, unit - 2),
            false => ((2 * mantissa).saturating_sub(1), unit - 1),
        };
        let Some(decimal) = dyadic(scientific) else { return false };
        decimal == above || decimal == below
    }
}

/// A decimal number as an odd number and the power of two that it is multiplied by; `None` if it has no such
/// form, or is too large to matter.
fn dyadic(scientific: &str) -> Option<(u64, i32)> {
    let (mantissa, exponent) = scientific.trim_start_matches('-').split_once('e')?;
    let digits: u64 = mantissa.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok()?;
    let exponent = exponent.parse::<i32>().ok()? - self::digits(scientific) as i32;
    let twos = digits.trailing_zeros();
    let odd = digits.checked_shr(twos)?;
    let fives = 5_u64.checked_pow(exponent.unsigned_abs());
    let odd = match exponent >= 0 {
        true => odd.checked_mul(fives?)?,
        false => fives.filter(|fives| odd.is_multiple_of(*fives)).map(|fives| odd / fives)?,
    };
    Some((odd, exponent + twos as i32))
}

fn special(value: f64) -> Option<&'static str> {
    match value {
        _ if value.is_nan() => Some("NaN"),
        f64::INFINITY => Some("Infinity"),
        f64::NEG_INFINITY => Some("-Infinity"),
        _ => None,
    }
}

/// Converts Rust's notation, such as `-1.25e-7`, to the notation of C's `%g`.
fn shortest(scientific: &str, limit: i32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => ("-", mantissa),
        None => ("", mantissa),
    };
    f.write_str(sign)?;
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    if !(-4..limit).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let sign = if exponent < 0 { '-' } else { '+' };
        return write!(f, "{first}{point}{rest}e{sign}{:02}", exponent.abs());
    }
    let Ok(before_point) = usize::try_from(exponent + 1) else {
        return write!(f, "0.{}{digits}", "0".repeat((-exponent - 1) as usize));
    };
    if before_point == 0 {
        return write!(f, "0.{digits}");
    }
    match digits.split_at_checked(before_point) {
        Some((whole, "")) => f.write_str(whole),
        Some((whole, fraction)) => write!(f, "{whole}.{fraction}"),
        None => write!(f, "{digits}{}", "0".repeat(before_point - digits.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_as_short_as_they_can_be() {
        let double = |value: f64| Float(value).to_string();
        let single = |value: f32| Float(value).to_string();
        assert_eq!(double(0.0), "0");
        assert_eq!(double(-0.0), "-0");
        assert_eq!(double(0.1), "0.1");
        assert_eq!(double(123_456.789), "123456.789");
        assert_eq!(double(0.0001), "0.0001");
        assert_eq!(double(0.000_012_5), "1.25e-05");
        assert_eq!(double(100_000_000_000_000.0), "100000000000000");
        assert_eq!(double(1e15), "1e+15");
        assert_eq!(double(1.5e300), "1.5e+300");
        assert_eq!(double(f64::NAN), "NaN");
        assert_eq!(double(f64::NEG_INFINITY), "-Infinity");
        assert_eq!(single(1.1), "1.1");
        assert_eq!(single(123_456.0), "123456");
        assert_eq!(single(1_234_567.0), "1.234567e+06");
        // 1213888.25
        assert_eq!(single(f32::from_bits(0x4994_2E02)), "1.2138882e+06");
        assert_eq!(single(81_436_016.0), "8.1436016e+07");
    }

    #[test]
    fn floats_are_equal_if_their_bytes_are() {
        assert_eq!(Float(f64::NAN), Float(f64::NAN));
        assert_eq!(Float(f32::NAN), Float(f32::NAN));
        assert_ne!(Float(0.0_f64), Float(-0.0_f64));
        assert_ne!(Float(0.0_f32), Float(-0.0_f32));
        assert_eq!(Float(1.5_f64), Float(1.5_f64));
    }
}
