//! The page of a sequence (`sequence.c`): one heap tuple, and a magic number in the special area.

use super::Page;
use super::special::SpecialArea;

/// `SEQ_MAGIC`
pub const SEQ_MAGIC: u32 = 0x1717;

/// Offsets of the tuple's values, after its header (`FormData_pg_sequence_data`).
#[allow(missing_docs)]
pub mod values {
    /// Offset of the fields from the tuple's start: the size of its header.
    pub const START: usize = 24;
    pub const LAST_VALUE: usize = 0;
    pub const LOG_CNT: usize = 8;
    pub const IS_CALLED: usize = 16;
}

/// A sequence's special area (`sequence_magic`), padded to 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceMagic(pub u32);

impl SpecialArea for SequenceMagic {
    const BYTES: usize = 8;

    #[inline]
    fn read(page: &Page) -> SequenceMagic {
        SequenceMagic(page.u32_at(Self::AT))
    }

    #[inline]
    fn write(self, page: &mut Page) {
        page.put_u32(Self::AT, self.0);
    }
}
