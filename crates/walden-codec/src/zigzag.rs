//! Numbers as their distance from others: zigzag, so that near ones are small whatever the sign.

/// The distance of a number from another.
pub fn zigzag_delta(value: u32, base: u32) -> u32 {
    let distance = value.wrapping_sub(base).cast_signed();
    (distance << 1 ^ distance >> 31).cast_unsigned()
}

/// The number at a distance: the reverse of [`zigzag_delta`].
pub fn zigzag_value(delta: u32, base: u32) -> u32 {
    base.wrapping_add(delta >> 1 ^ (delta & 1).wrapping_neg())
}

/// The distance of a number from another.
pub fn zigzag_delta_u64(value: u64, base: u64) -> u64 {
    let distance = value.wrapping_sub(base).cast_signed();
    (distance << 1 ^ distance >> 63).cast_unsigned()
}

/// The number at a distance: the reverse of [`zigzag_delta_u64`].
pub fn zigzag_value_u64(delta: u64, base: u64) -> u64 {
    base.wrapping_add(delta >> 1 ^ (delta & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_from_their_distances() {
        for (value, base) in [(0, 0), (5, 3), (3, 5), (0, u32::MAX), (u32::MAX, 0), (1 << 31, 0)] {
            assert_eq!(zigzag_value(zigzag_delta(value, base), base), value);
            let (value, base) = (u64::from(value) << 32, u64::from(base) << 32 | 7);
            assert_eq!(zigzag_value_u64(zigzag_delta_u64(value, base), base), value);
        }
        assert_eq!([zigzag_delta(4, 5), zigzag_delta(5, 4), zigzag_delta(0, u32::MAX)], [1, 2, 2]);
    }
}
