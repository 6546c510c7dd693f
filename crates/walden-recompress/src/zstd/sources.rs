//! Sources on which releases of libzstd are compared, and checksums of the results. The generator in
//! `tests/zstd-vectors` uses the same file.

use super::numbers::numbers;

/// Adds a number to an order-dependent checksum of numbers.
pub fn added(sum: u64, number: u32) -> u64 {
    (sum ^ u64::from(number)).wrapping_mul(0x0100_0000_01B3).rotate_left(29)
}

/// Returns the FNV-1a hash of 64 bits.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// Returns two sources in which all releases find the same few sequences, so that the frames show only how
/// releases write them.
pub fn judged_sources() -> [Vec<u8>; 2] {
    let even = even(&mut numbers(2), 70, 256);
    let mostly_even = even.chunks(4).flat_map(|four| four.iter().copied().chain([200])).collect();
    [mostly_even, mixed(&mut numbers(1), 256, 6, 20_000)]
}

/// Generates random bytes below `values`, uniform or, with a higher `power`, biased to low ones.
pub fn mixed(number: &mut impl FnMut(u64) -> u64, values: u64, power: u32, len: usize) -> Vec<u8> {
    let one = |_| (0..power).map(|_| number(values)).min().unwrap_or(0) as u8;
    (0..len).map(one).collect()
}

/// Generates a shuffle of `values` different bytes with `each` copies of each.
pub fn even(number: &mut impl FnMut(u64) -> u64, values: usize, each: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..values * each).map(|at| (at % values) as u8).collect();
    for at in 1..bytes.len() {
        bytes.swap(at, number(at as u64 + 1) as usize);
    }
    bytes
}

/// Returns sources of all relevant lengths, the same ones each time.
pub fn sources() -> Vec<Vec<u8>> {
    let mut number = numbers(42);
    let lengths = (0..140).chain([255, 256, 257, 512, 1000, 2049, 4096, 7000, 8155, 8191, 8192, 8193]);
    let mut sources = Vec::new();
    for len in lengths.chain([12_000, 16_383, 16_384, 16_385, 20_000, 32_767, 32_768]) {
        let random: Vec<u8> = (0..len).map(|_| number(256) as u8).collect();
        sources.push(random.iter().map(|byte| byte & 3).collect());
        sources.push(random);
        sources.push(vec![b'x'; len]);
        // Words of a text or random bytes, and copies of earlier pieces, some with one byte changed.
        for (words, copies) in [(500, 20), (5000, 3), (1, 2), (1, 1)] {
            let mut text = Vec::new();
            while text.len() < len {
                let word = number(words);
                if words > 1 {
                    text.extend_from_slice(format!("{:x} ", word * word * 0x1234_5678).as_bytes());
                } else {
                    text.extend((0..number(1200)).map(|_| number(256) as u8));
                }
                for _ in 0..number(1 + 20 / copies) {
                    let start = number(text.len() as u64 + 1) as usize;
                    let end = (start + number(60) as usize).min(text.len());
                    text.extend_from_within(start..end);
                    if let Some(last) = text.last_mut() {
                        *last = last.wrapping_add(number(2) as u8);
                    }
                }
            }
            text.truncate(len);
            sources.push(text);
        }
    }
    sources
}
