//! Block numbers, offset numbers, and TIDs, which consist of both (`itemptr.h`, `block.h`).
//!
//! ```text
//! offset  width  ItemPointerData
//!      0      2  bi_hi      upper half of the block number
//!      2      2  bi_lo      lower half
//!      4      2  ip_posid   offset number: which line pointer of the block, counted from 1
//! ```

/// Bytes of a TID on a page (`ItemPointerData`).
pub const TID_BYTES: usize = 6;
/// Bytes of a block number on a page (`BlockIdData`).
pub const BLOCK_ID_BYTES: usize = 4;
/// `InvalidBlockNumber`: the target of a link that leads nowhere.
pub const INVALID_BLOCK: u32 = u32::MAX;
/// `InvalidOffsetNumber`
pub const INVALID_OFFSET_NUMBER: u16 = 0;

/// The address of a tuple (`ItemPointerData`): a block of the relation and a line pointer on it.
///
/// Indexes keep other things in the same six bytes: a child's block, or the number of TIDs after the key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tid {
    /// The block of the relation's main fork.
    pub block: u32,
    /// The line pointer on it; the first is 1.
    pub offset_number: u16,
}

impl Tid {
    /// `ItemPointerSetInvalid`
    pub const INVALID: Tid = Tid { block: INVALID_BLOCK, offset_number: INVALID_OFFSET_NUMBER };

    /// Reads the six bytes.
    #[inline]
    pub fn from_bytes(bytes: &[u8; TID_BYTES]) -> Tid {
        let &[h0, h1, l0, l1, n0, n1] = bytes;
        Tid { block: block_from_bytes(&[h0, h1, l0, l1]), offset_number: u16::from_le_bytes([n0, n1]) }
    }

    /// Reads the TID at the start of `bytes`; `None` if there are fewer than six.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Tid> {
        bytes.first_chunk().map(Tid::from_bytes)
    }

    /// Returns the six bytes.
    #[inline]
    pub fn to_bytes(self) -> [u8; TID_BYTES] {
        let ([h0, h1, l0, l1], [n0, n1]) = (block_to_bytes(self.block), self.offset_number.to_le_bytes());
        [h0, h1, l0, l1, n0, n1]
    }
}

impl std::fmt::Display for Tid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({},{})", self.block, self.offset_number)
    }
}

/// Reads a block number in two halves, the upper one first (`BlockIdGetBlockNumber`).
#[inline]
pub fn block_from_bytes(&[h0, h1, l0, l1]: &[u8; BLOCK_ID_BYTES]) -> u32 {
    u32::from(u16::from_le_bytes([h0, h1])) << 16 | u32::from(u16::from_le_bytes([l0, l1]))
}

/// Encodes a block number in two halves, the upper one first (`BlockIdSet`).
#[inline]
pub fn block_to_bytes(block: u32) -> [u8; BLOCK_ID_BYTES] {
    let [high, low] = [(block >> 16) as u16, block as u16].map(u16::to_le_bytes);
    [high[0], high[1], low[0], low[1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_number_has_its_upper_half_first() {
        let tid = Tid { block: 0x0102_0304, offset_number: 0x0506 };
        assert_eq!(tid.to_bytes(), [2, 1, 4, 3, 6, 5]);
        assert_eq!(Tid::read(&tid.to_bytes()), Some(tid));
        assert_eq!(Tid::read(&[0; 5]), None);
        assert_eq!(tid.to_string(), "(16909060,1286)");
    }
}
