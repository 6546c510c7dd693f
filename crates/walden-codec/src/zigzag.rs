//! Numbers as distances from others, near ones small (zigzag).

/// A number as its distance from another, near ones small.
pub fn against(value: u32, base: u32) -> u32 {
    let distance = value.wrapping_sub(base).cast_signed();
    (distance << 1 ^ distance >> 31).cast_unsigned()
}

/// The way back.
pub fn difference(symbol: u32, base: u32) -> u32 {
    base.wrapping_add(symbol >> 1 ^ (symbol & 1).wrapping_neg())
}

pub fn zigzag(value: u64) -> u64 {
    (value << 1) ^ ((value as i64 >> 63) as u64)
}

pub fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}
