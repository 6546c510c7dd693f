//! Network addresses (`network.c`, `inet_net_ntop.c`, `mac.c`) and `uuid`.

use std::fmt;

/// `inet` or `cidr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inet {
    /// The address: the first 4 bytes, or all 16.
    pub address: [u8; 16],
    /// Whether it is an IPv6 address.
    pub is_v6: bool,
    /// Length of the network's part in bits.
    pub bits: u8,
    /// Whether it is a `cidr`, whose length is always printed.
    pub is_cidr: bool,
}

impl Inet {
    /// Parses a value without its length header (`inet_struct`).
    pub fn parse(bytes: &[u8], is_cidr: bool) -> Option<Inet> {
        /// `PGSQL_AF_INET` and `PGSQL_AF_INET6`.
        const FAMILIES: [u8; 2] = [2, 3];
        let (&[family, bits], rest) = bytes.split_first_chunk()?;
        let is_v6 = family == FAMILIES[1];
        let length = if is_v6 { 16 } else { 4 };
        if !FAMILIES.contains(&family) || rest.len() != length {
            return None;
        }
        let mut address = [0; 16];
        address[..length].copy_from_slice(rest);
        Some(Inet { address, is_v6, bits, is_cidr })
    }
}

impl fmt::Display for Inet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.address;
        match self.is_v6 {
            false => write!(f, "{a}.{b}.{c}.{d}")?,
            true => v6(&self.address, f)?,
        }
        let whole = if self.is_v6 { 128 } else { 32 };
        if self.is_cidr || self.bits != whole { write!(f, "/{}", self.bits) } else { Ok(()) }
    }
}

/// Formats an IPv6 address, with its longest run of zeros omitted (`pg_inet_net_ntop`).
fn v6(address: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let words: [u16; 8] =
        std::array::from_fn(|at| u16::from_be_bytes([address[2 * at], address[2 * at + 1]]));
    let run = longest_zeros(&words);
    for (index, word) in words.iter().enumerate() {
        if run.contains(&index) {
            if index == run.start {
                f.write_str(":")?;
            }
            continue;
        }
        if index != 0 {
            f.write_str(":")?;
        }
        // An IPv4 address embedded in an IPv6 address.
        if index == 6 && run.start == 0 && (run.len() == 6 || run.len() == 5 && words[5] == 0xFFFF) {
            let [.., a, b, c, d] = *address;
            return write!(f, "{a}.{b}.{c}.{d}");
        }
        write!(f, "{word:x}")?;
    }
    if run.end == 8 && !run.is_empty() { f.write_str(":") } else { Ok(()) }
}

/// The first longest run of at least two zeros; without any, an empty range at the end.
fn longest_zeros(words: &[u16; 8]) -> std::ops::Range<usize> {
    let mut best = 8..8;
    for start in 0..8 {
        let length = words[start..].iter().take_while(|&&word| word == 0).count();
        if length >= 2 && length > best.len() {
            best = start..start + length;
        }
    }
    best
}

pub(super) fn mac(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, byte) in bytes.iter().enumerate() {
        let colon = if index > 0 { ":" } else { "" };
        write!(f, "{colon}{byte:02x}")?;
    }
    Ok(())
}

pub(super) fn uuid(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, byte) in bytes.iter().enumerate() {
        let hyphen = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
        write!(f, "{hyphen}{byte:02x}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_short_as_they_may_be() {
        let four = |bits, is_cidr| {
            Inet::parse(&[2, bits, 10, 0, 0, 7], is_cidr).map(|inet| inet.to_string()).unwrap_or_default()
        };
        assert_eq!(four(32, false), "10.0.0.7");
        assert_eq!(four(32, true), "10.0.0.7/32");
        assert_eq!(four(8, false), "10.0.0.7/8");
        let six = |words: [u16; 8]| {
            let mut bytes = vec![3, 128];
            words.iter().for_each(|word| bytes.extend(word.to_be_bytes()));
            Inet::parse(&bytes, false).map(|inet| inet.to_string()).unwrap_or_default()
        };
        assert_eq!(six([0; 8]), "::");
        assert_eq!(six([0, 0, 0, 0, 0, 0, 0, 1]), "::1");
        assert_eq!(six([0x2001, 0xDB8, 0, 0, 1, 0, 0, 1]), "2001:db8::1:0:0:1");
        assert_eq!(six([0x2001, 0xDB8, 0, 0, 0, 0, 0, 0]), "2001:db8::");
        assert_eq!(six([0, 0, 0, 0, 0, 0xFFFF, 0x102, 0x304]), "::ffff:1.2.3.4");
        assert_eq!(six([0, 0, 0, 0, 0, 0, 0x102, 0x304]), "::1.2.3.4");
        assert_eq!(six([1, 0, 3, 4, 5, 6, 7, 8]), "1:0:3:4:5:6:7:8");
        assert_eq!(Inet::parse(&[2, 32, 1, 2, 3], false), None);
        assert_eq!(Inet::parse(&[9, 32, 1, 2, 3, 4], false), None);
    }
}
