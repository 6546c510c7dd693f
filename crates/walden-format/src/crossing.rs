//! Verifies records that continue in another segment, when each segment is decoded on its own.
//!
//! `xl_crc` covers the bytes after the record's header and then the header up to `xl_crc`. The checksums of a
//! record's parts are combined (`crc32c_combine`), so no part is read twice.

use std::fmt;

use crc32c::crc32c_combine;

use crate::crc::crc32c_append;
use crate::lsn::Lsn;
use crate::record::{CRC_OFFSET, RECORD_HEADER};

/// The first part of a record, up to the end of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beginning {
    /// LSN of the record's start.
    pub lsn: Lsn,
    /// `xl_tot_len` in bytes.
    pub total_len: u32,
    /// Number of bytes of the record so far.
    pub bytes: u32,
    /// The first bytes: at most the record's header.
    pub header: Vec<u8>,
    /// CRC-32C of the bytes after the header so far.
    pub crc: u32,
}

/// The part of a record that a segment starts with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Continuation {
    /// Number of bytes.
    pub bytes: u32,
    /// The first bytes: at most as many as a record's header has.
    pub first: Vec<u8>,
    /// CRC-32C of all bytes.
    pub crc: u32,
    /// Whether the record ends in the segment.
    pub is_last: bool,
}

/// A record whose parts do not belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrossingFault {
    /// The parts have another length than the record states.
    Length {
        /// `xl_tot_len`
        expected: u32,
        /// The length of all parts.
        found: u64,
    },
    /// The checksum differs.
    Crc {
        /// `xl_crc`
        expected: u32,
        /// The checksum of all parts.
        found: u32,
    },
}

impl fmt::Display for CrossingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CrossingFault::Length { expected, found } => {
                write!(f, "expected {expected} bytes, found {found} bytes")
            }
            CrossingFault::Crc { expected, found } => {
                write!(f, "expected CRC {expected:08X}, found {found:08X}")
            }
        }
    }
}

impl Continuation {
    /// Adds the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let kept = RECORD_HEADER.saturating_sub(self.first.len()).min(bytes.len());
        self.first.extend_from_slice(&bytes[..kept]);
        self.bytes = self.bytes.saturating_add(bytes.len() as u32);
        self.crc = crc32c_append(self.crc, bytes);
    }
}

impl Beginning {
    /// Joins the record with its part in the next segment. Returns `None` if the record ends there and its
    /// checksum is right.
    ///
    /// # Errors
    /// The length or the checksum is wrong.
    pub fn join(&self, next: &Continuation) -> Result<Option<Beginning>, CrossingFault> {
        let found = u64::from(self.bytes) + u64::from(next.bytes);
        let length = CrossingFault::Length { expected: self.total_len, found };
        let is_right = match next.is_last {
            true => found == u64::from(self.total_len),
            false => found < u64::from(self.total_len),
        };
        if !is_right {
            return Err(length);
        }
        let of_header = RECORD_HEADER.saturating_sub(self.header.len()).min(next.first.len());
        let mut header = self.header.clone();
        header.extend_from_slice(&next.first[..of_header]);
        let body = next.bytes as usize - of_header.min(next.bytes as usize);
        // Removes the header's part: the CRC of two parts is the first part's CRC, shifted by the second
        // part's length, XOR the second part's CRC.
        let crc = next.crc ^ crc32c_combine(crc32c_append(0, &next.first[..of_header]), 0, body);
        let crc = crc32c_combine(self.crc, crc, body);
        let joined = Beginning { lsn: self.lsn, total_len: self.total_len, bytes: found as u32, header, crc };
        if !next.is_last {
            return Ok(Some(joined));
        }
        let Some((header, expected)) = joined
            .header
            .split_at_checked(CRC_OFFSET)
            .and_then(|(start, crc)| Some((start, crc.first_chunk()?)))
        else {
            return Err(length);
        };
        let (expected, found) = (u32::from_le_bytes(*expected), crc32c_append(joined.crc, header));
        if expected == found { Ok(None) } else { Err(CrossingFault::Crc { expected, found }) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::crc::record_crc;

    fn beginning(record: &[u8], total_len: u32) -> Beginning {
        let header = record.len().min(RECORD_HEADER);
        Beginning {
            lsn: Lsn(8),
            total_len,
            bytes: record.len() as u32,
            header: record[..header].to_vec(),
            crc: crc32c_append(0, &record[header..]),
        }
    }

    fn continuation(bytes: &[u8], is_last: bool) -> Continuation {
        let mut continuation = Continuation { is_last, ..Continuation::default() };
        // In pieces, as from pages.
        bytes.chunks(13).for_each(|piece| continuation.push(piece));
        continuation
    }

    proptest! {
        #[test]
        fn a_record_in_parts_has_the_checksum_of_the_whole(
            mut record in prop::collection::vec(any::<u8>(), RECORD_HEADER..300),
            cuts in prop::collection::btree_set(1usize..300, 1..4),
            flipped in prop::option::of((0usize..300, 0u8..8)),
        ) {
            let len = record.len();
            record[..4].copy_from_slice(&(len as u32).to_le_bytes());
            let crc = record_crc(&record);
            record[CRC_OFFSET..RECORD_HEADER].copy_from_slice(&crc.to_le_bytes());
            let cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut < len).collect();
            prop_assume!(!cuts.is_empty());
            // A flipped bit in the length is found as another length.
            let flipped = flipped.filter(|&(at, _)| (4..len).contains(&at));
            if let Some((at, bit)) = flipped {
                record[at] ^= 1 << bit;
            }
            let mut joined = beginning(&record[..cuts[0]], len as u32);
            let mut result = Ok(None);
            for (number, &cut) in cuts.iter().enumerate() {
                let end = cuts.get(number + 1).copied().unwrap_or(len);
                result = joined.join(&continuation(&record[cut..end], end == len));
                if let Ok(Some(next)) = &result {
                    joined = next.clone();
                }
            }
            match flipped {
                None => prop_assert_eq!(result, Ok(None)),
                Some(_) => prop_assert!(matches!(result, Err(CrossingFault::Crc { .. })), "{:?}", result),
            }
        }
    }

    #[test]
    fn parts_of_another_length_do_not_belong_together() {
        let record = [7; 60];
        let beginning = beginning(&record[..40], 60);
        for (bytes, is_last) in [(&record[..19], true), (&record[..21], true), (&record[..20], false)] {
            let found = 40 + bytes.len() as u64;
            let expected = Err(CrossingFault::Length { expected: 60, found });
            assert_eq!(beginning.join(&continuation(bytes, is_last)), expected);
        }
    }
}
