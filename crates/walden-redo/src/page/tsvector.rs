//! Values of type `tsvector`, without their varlena header (`ts_type.h`).
//!
//! ```text
//! offset  width  TSVectorData
//!      0      4  number of words
//!      4    4 n  WordEntry, for each word: 1 bit: it has positions; length in 11 bits; start in 20 bits,
//!                relative to the start of the first word
//!                words; a word with positions is followed, at an even offset, by their number (2 bytes)
//!                and the positions (WordEntryPos, 2 bytes: position in 14 bits, from 1 on; weight in 2 bits)
//! ```

/// Size in bytes of the field with the number of words, and of each `WordEntry`.
pub const WORD_ENTRY_BYTES: usize = 4;
/// Size and alignment in bytes of the field with the number of positions, and size of each `WordEntryPos`.
pub const POSITION_BYTES: usize = 2;
/// The largest position, which all later words have too (`MAXENTRYPOS` less 1).
pub const MAX_POSITION: u16 = (1 << POSITION_BITS) - 1;

const POSITION_BITS: u32 = 14;

/// The position and length of a word, and whether it has positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordEntry {
    /// Whether positions follow the word.
    pub has_positions: bool,
    /// Length of the word in bytes.
    pub len: usize,
    /// Offset of the word from the start of the first word, in bytes.
    pub at: usize,
}

impl WordEntry {
    const LEN_BITS: u32 = 11;
    const AT_BITS: u32 = 20;
    const LEN_SHIFT: u32 = 1;
    const AT_SHIFT: u32 = Self::LEN_SHIFT + Self::LEN_BITS;

    /// Decodes the four bytes, given as a number.
    #[inline]
    pub fn from_word(word: u32) -> WordEntry {
        WordEntry {
            has_positions: word & 1 != 0,
            len: (word >> Self::LEN_SHIFT & ((1 << Self::LEN_BITS) - 1)) as usize,
            at: (word >> Self::AT_SHIFT) as usize,
        }
    }

    /// Encodes the four bytes as a number; `None` if the word is too long or its offset is too large
    /// (`MAXSTRLEN`, `MAXSTRPOS`).
    #[inline]
    pub fn to_word(self) -> Option<u32> {
        let len = u32::try_from(self.len).ok().filter(|&len| len < 1 << Self::LEN_BITS)?;
        let at = u32::try_from(self.at).ok().filter(|&at| at < 1 << Self::AT_BITS)?;
        Some(at << Self::AT_SHIFT | len << Self::LEN_SHIFT | u32::from(self.has_positions))
    }
}

/// Returns the position in a `WordEntryPos`.
#[inline]
pub fn position_of(position: u16) -> u16 {
    position & MAX_POSITION
}

/// Returns the weight in a `WordEntryPos`: 3 for A, 2 for B, 1 for C, 0 for D.
#[inline]
pub fn weight_of(position: u16) -> u16 {
    position >> POSITION_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_are_written() {
        let longest = WordEntry { has_positions: true, len: 0x7FF, at: 0xF_FFFF };
        assert_eq!(longest.to_word(), Some(u32::MAX));
        let entry = WordEntry { has_positions: false, len: 3, at: 5 };
        assert_eq!(entry.to_word(), Some(5 << 12 | 3 << 1));
        for entry in [longest, entry] {
            assert_eq!(entry.to_word().map(WordEntry::from_word), Some(entry));
        }
        assert_eq!(WordEntry { len: 0x800, ..entry }.to_word(), None);
        assert_eq!(WordEntry { at: 1 << 20, ..entry }.to_word(), None);
        assert_eq!((position_of(0xC005), weight_of(0xC005), MAX_POSITION), (5, 3, 0x3FFF));
    }
}
