//! Where a heap tuple is (`ItemPointerData`).
//!
//! ```text
//! offset  width
//!      0      4  block, upper half first
//!      4      2  line pointer, from 1 on
//! ```

/// Where a row is: block and line pointer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tid {
    /// The block.
    pub block: u32,
    /// The line pointer's number.
    pub number: u16,
}

impl Tid {
    /// Bytes of one (`ItemPointerData`).
    pub const BYTES: usize = 6;

    /// Whether it is right after another one, on its page or first on the next.
    pub fn is_after(self, other: Tid) -> bool {
        let (next, number) = (other.block.wrapping_add(1), other.number.wrapping_add(1));
        (self.block == other.block && self.number == number) || (self.block == next && self.number == 1)
    }

    /// From its bytes, if there are as many.
    pub fn of(bytes: &[u8]) -> Option<Tid> {
        bytes.first_chunk().copied().map(Tid::from_bytes)
    }

    /// From its bytes.
    pub fn from_bytes([a, b, c, d, e, f]: [u8; Tid::BYTES]) -> Tid {
        let half = |low, high| u16::from_le_bytes([low, high]);
        Tid { block: u32::from(half(a, b)) << 16 | u32::from(half(c, d)), number: half(e, f) }
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; Tid::BYTES] {
        let mut bytes = [0; Tid::BYTES];
        bytes[0..2].copy_from_slice(&((self.block >> 16) as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&(self.block as u16).to_le_bytes());
        bytes[4..6].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }
}
