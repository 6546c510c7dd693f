//! What a resource manager is to replay: three functions.

use walden_format::record::{BlockRef, Fork, Record};
use walden_format::version::Major;

use crate::page::{Misfit, Page};
use crate::step::{Role, Step, Touched};

/// Bytes that a block's data has at most: `data_length` of `XLogRecordBlockHeader` is a `uint16`.
///
/// Line pointers of a damaged page may all refer to the same bytes, so what is reconstructed from a page can be much longer.
pub(crate) const MAX_BLOCK_DATA_BYTES: usize = u16::MAX as usize;

/// A resource manager whose records can be replayed.
pub(crate) struct Manager {
    /// Replays a record (`rm_redo`). An error makes all pages unknown that it had to change.
    pub redo: fn(&mut Step<'_, '_>) -> Result<(), Misfit>,
    /// Makes equal what may differ between PostgreSQL's page and replay's (`rm_mask`).
    pub mask: fn(&mut Page, Major, Fork),
    /// Reconstructs the data that a block of the record would have if it had no full-page image; nothing if the
    /// pages do not show it.
    pub block_data: fn(&PagesAround<'_>, &BlockRef) -> Option<Vec<u8>>,
}

/// A record with images, and its pages before and after.
pub struct PagesAround<'a> {
    /// The record whose block is masked or reconstructed.
    pub record: &'a Record<'a>,
    pub touched: &'a [Touched],
}

impl<'a> PagesAround<'a> {
    /// A block's page before the record, if it is known.
    pub fn before(&self, id: u8) -> Option<&'a Page> {
        self.touched(id).filter(|touched| touched.role != Role::Ahead)?.page.as_deref()
    }

    /// A block's page after the record, if the record has its image.
    pub fn after(&self, id: u8) -> Option<&'a Page> {
        self.touched(id)?.image.as_deref()
    }

    fn touched(&self, id: u8) -> Option<&'a Touched> {
        let index = self.record.blocks.iter().position(|block| block.id == id)?;
        self.touched.get(index)
    }
}
