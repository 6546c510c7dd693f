//! Zigzag-coded deltas between numbers: small for close numbers of either order. Differences wrap around.

/// Returns the delta of a 32-bit number against a base.
pub fn zigzag_delta(value: u32, base: u32) -> u32 {
    zigzag_delta_of_width(value.into(), base.into(), 4) as u32
}

/// Returns the 32-bit number with a delta against a base: the reverse of [`zigzag_delta`].
pub fn zigzag_value(delta: u32, base: u32) -> u32 {
    zigzag_value_of_width(delta.into(), base.into(), 4) as u32
}

/// Returns the delta of a 64-bit number against a base.
pub fn zigzag_delta_u64(value: u64, base: u64) -> u64 {
    zigzag_delta_of_width(value, base, 8)
}

/// Returns the 64-bit number with a delta against a base: the reverse of [`zigzag_delta_u64`].
pub fn zigzag_value_u64(delta: u64, base: u64) -> u64 {
    zigzag_value_of_width(delta, base, 8)
}

/// Returns the delta of a number against a base. All three have `width` bytes, 1 to 8.
#[inline]
pub fn zigzag_delta_of_width(value: u64, base: u64, width: usize) -> u64 {
    let shift = 64 - 8 * width as u32;
    let delta = (value.wrapping_sub(base) << shift).cast_signed();
    (delta << 1 ^ delta >> 63).cast_unsigned() >> shift
}

/// Returns the number of `width` bytes with a delta against a base: the reverse of [`zigzag_delta_of_width`].
#[inline]
pub fn zigzag_value_of_width(delta: u64, base: u64, width: usize) -> u64 {
    let value = base.wrapping_add(delta >> 1 ^ (delta & 1).wrapping_neg());
    value & u64::MAX >> (64 - 8 * width as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_restored_from_their_deltas() {
        for (value, base) in [(0, 0), (5, 3), (3, 5), (0, u32::MAX), (u32::MAX, 0), (1 << 31, 0)] {
            assert_eq!(zigzag_value(zigzag_delta(value, base), base), value);
            let (value, base) = (u64::from(value) << 32, u64::from(base) << 32 | 7);
            assert_eq!(zigzag_value_u64(zigzag_delta_u64(value, base), base), value);
        }
        assert_eq!([zigzag_delta(4, 5), zigzag_delta(5, 4), zigzag_delta(0, u32::MAX)], [1, 2, 2]);
    }

    #[test]
    fn deltas_have_the_width_of_their_numbers() {
        for width in [1, 2, 4, 8] {
            let all = u64::MAX >> (64 - 8 * width as u32);
            for (value, base) in [(0, 0), (5, 3), (3, 5), (0, all), (all, 0), (all / 2, all), (77, all / 2)] {
                let (value, base) = (value & all, base & all);
                let away = zigzag_delta_of_width(value, base, width);
                assert!(away <= all);
                assert_eq!(zigzag_value_of_width(away, base, width), value, "{value} from {base}");
            }
            assert_eq!(zigzag_delta_of_width(4, 5, width), 1);
        }
    }
}
