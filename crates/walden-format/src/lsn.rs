//! WAL positions and the names of WAL files.

use std::fmt;
use std::str::FromStr;

/// A log sequence number: a byte position in the write-ahead log, printed as `HIGH/LOW` in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Zero: never the position of a record, PostgreSQL's `InvalidXLogRecPtr`.
    pub const INVALID: Lsn = Lsn(0);

    /// This position rounded up to the next multiple of 8, where a record can start (`MAXALIGN`).
    pub fn aligned(self) -> Lsn {
        Lsn(self.0.saturating_add(7) & !7)
    }

    /// This position moved forward by `bytes`, saturating at the largest LSN.
    pub fn plus(self, bytes: u64) -> Lsn {
        Lsn(self.0.saturating_add(bytes))
    }

    /// Bytes from `earlier` to this position; zero if `earlier` is later.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints the same text as `{:X}/{:08X}` of both halves, in a third of the time: lists of records
        // print many LSNs.
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let digit = |shift: u32| DIGITS[(self.0 >> shift & 0xF) as usize];
        let mut text = [b'/'; 17];
        let mut at = text.len();
        for shift in (0..32).step_by(4) {
            at -= 1;
            text[at] = digit(shift);
        }
        at -= 1;
        for shift in (32..64).step_by(4) {
            if shift > 32 && self.0 >> shift == 0 {
                break;
            }
            at -= 1;
            text[at] = digit(shift);
        }
        f.write_str(std::str::from_utf8(&text[at..]).unwrap_or_default())
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A string that is not an LSN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLsn(pub String);

impl fmt::Display for InvalidLsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not an LSN: expected two hexadecimal numbers such as 0/16B3748", self.0)
    }
}

impl std::error::Error for InvalidLsn {}

impl FromStr for Lsn {
    type Err = InvalidLsn;

    fn from_str(text: &str) -> Result<Lsn, InvalidLsn> {
        let invalid = || InvalidLsn(text.to_owned());
        let (high, low) = text.split_once('/').ok_or_else(invalid)?;
        let half = |digits: &str| {
            let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        match (half(high), half(low)) {
            (Some(high), Some(low)) => Ok(Lsn(high << 32 | low)),
            _ => Err(invalid()),
        }
    }
}

/// The number of a timeline: 1 after initdb; each recovery that ends in a promotion starts a new one.
pub type Timeline = u32;

/// The size of the segment files of a cluster: a power of two from 1 MB to 1 GB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentSize(u32);

impl SegmentSize {
    /// 16 MB, initdb's default.
    pub const DEFAULT: SegmentSize = SegmentSize(16 << 20);
    /// The smallest size that PostgreSQL accepts (`WalSegMinSize`).
    pub const MIN: SegmentSize = SegmentSize(1 << 20);
    /// The largest size that PostgreSQL accepts (`WalSegMaxSize`).
    pub const MAX: SegmentSize = SegmentSize(1 << 30);

    /// Returns the size if PostgreSQL accepts `bytes` as a segment size (`IsValidWalSegSize`).
    pub const fn new(bytes: u64) -> Option<SegmentSize> {
        let is_valid = bytes.is_power_of_two() && bytes >= Self::MIN.bytes() && bytes <= Self::MAX.bytes();
        if is_valid { Some(SegmentSize(bytes as u32)) } else { None }
    }

    /// The size in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0 as u64
    }

    /// Binary logarithm of the size in bytes.
    #[inline]
    pub(crate) fn shift(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// The number of the segment that holds `lsn`.
    #[inline]
    pub fn segment_of(self, lsn: Lsn) -> u64 {
        lsn.0 >> self.shift()
    }

    /// The offset of `lsn` in its segment, in bytes.
    #[inline]
    pub fn offset_of(self, lsn: Lsn) -> u64 {
        lsn.0 & (self.bytes() - 1)
    }

    /// The LSN at which segment `number` starts, saturating at the largest LSN.
    pub fn start_of(self, number: u64) -> Lsn {
        Lsn(number.saturating_mul(self.bytes()))
    }

    /// The number of segments in 4 GB: those whose names share [`SegmentName::log`]
    /// (`XLogSegmentsPerXLogId`).
    pub fn segments_per_log(self) -> u64 {
        (1 << 32) / self.bytes()
    }
}

/// The name of a segment file before its size is known: three hexadecimal numbers of 8 digits.
///
/// The segment's number depends on the segment size, which is stored in the file's first page, not in its
/// name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentName {
    /// The timeline that the segment belongs to.
    pub timeline: Timeline,
    /// The upper 32 bits of the segment's LSN.
    pub log: u32,
    /// The segment's index within those 4 GB.
    pub segment: u32,
}

impl SegmentName {
    /// The name of the segment with this number.
    pub fn new(timeline: Timeline, number: u64, size: SegmentSize) -> SegmentName {
        SegmentName {
            timeline,
            log: (number / size.segments_per_log()) as u32,
            segment: (number % size.segments_per_log()) as u32,
        }
    }

    /// Parses a name of exactly 24 hexadecimal digits with capital letters; `None` for any other string.
    pub fn parse(name: &str) -> Option<SegmentName> {
        if name.len() != 24 || !name.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b)) {
            return None;
        }
        let part = |from: usize| u32::from_str_radix(name.get(from..from + 8)?, 16).ok();
        Some(SegmentName { timeline: part(0)?, log: part(8)?, segment: part(16)? })
    }

    /// The segment's number; `None` if no segment of this size has this name.
    pub fn number(self, size: SegmentSize) -> Option<u64> {
        let segment = u64::from(self.segment);
        (segment < size.segments_per_log()).then(|| u64::from(self.log) * size.segments_per_log() + segment)
    }

    /// The LSN of the segment's start; `None` if no segment of this size has this name.
    pub fn start(self, size: SegmentSize) -> Option<Lsn> {
        self.number(size).map(|number| size.start_of(number))
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}{:08X}{:08X}", self.timeline, self.log, self.segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsn_round_trips_through_its_text() {
        for value in [0, 1, 0x16B3748, 0x1_0000_0000, 0x10_0000_0000, 0x16_B374_D848, u64::MAX] {
            let text = Lsn(value).to_string();
            assert_eq!(text, format!("{:X}/{:08X}", value >> 32, value as u32));
            assert_eq!(text.parse(), Ok(Lsn(value)));
        }
        assert_eq!("1/2".parse(), Ok(Lsn(0x1_0000_0002)));
        for bad in ["", "/", "1", "1/", "/1", "g/1", "123456789/0", "0/+1", "0/1/2"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad}");
        }
    }

    #[test]
    fn segment_names_round_trip_at_every_size() {
        for shift in 20..=30 {
            let size = SegmentSize::new(1 << shift).unwrap();
            for number in [0, 1, 255, 256, 4095, 4096, 123_456_789] {
                let name = SegmentName::new(3, number, size);
                assert_eq!(SegmentName::parse(&name.to_string()), Some(name));
                assert_eq!(name.number(size), Some(number));
            }
        }
        // A name that only segments of 1 MB can have.
        let name = SegmentName::parse("000000010000000000000FFF").unwrap();
        assert_eq!(name.number(SegmentSize::DEFAULT), None);
        assert_eq!(name.number(SegmentSize::new(1 << 20).unwrap()), Some(4095));
    }

    #[test]
    fn other_names_are_not_segments() {
        for name in ["00000002.history", "00000001000000000000000g", "000000010000000000000001.partial", ""] {
            assert_eq!(SegmentName::parse(name), None, "{name}");
        }
        for bytes in [0, 1, 512 << 10, 3 << 20, 2 << 30] {
            assert_eq!(SegmentSize::new(bytes), None);
        }
    }
}
