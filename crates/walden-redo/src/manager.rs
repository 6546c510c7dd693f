//! The three functions of a resource manager in replay.

use walden_format::record::{BlockRef, Fork, Record};
use walden_format::version::Major;

use crate::page::{Misfit, Page};
use crate::step::{Role, Step, Touched};

/// Maximum number of bytes of a block's data: `data_length` of `XLogRecordBlockHeader` is a `uint16`.
///
/// Line pointers of a damaged page may all refer to the same bytes, so data that is reconstructed from a page
/// can be much longer.
pub(crate) const MAX_BLOCK_DATA_BYTES: usize = u16::MAX as usize;

/// A resource manager whose records can be replayed.
pub(crate) struct Manager {
    /// Replays a record (`rm_redo`). An error makes all pages that the record changes unknown.
    pub redo: fn(&mut Step<'_, '_>) -> Result<(), Misfit>,
    /// Masks changes that may differ between PostgreSQL's page and the replayed one (`rm_mask`).
    pub mask: fn(&mut Page, Major, Fork),
    /// Reconstructs the data that a block of the record would have without its full-page image; `None` if the
    /// pages do not determine it.
    pub block_data: fn(&PagesAround<'_>, &BlockRef) -> Option<Vec<u8>>,
}

/// A record with images, and its pages before and after.
pub struct PagesAround<'a> {
    /// The record whose block is masked or reconstructed.
    pub record: &'a Record<'a>,
    pub touched: &'a [Touched],
}

impl<'a> PagesAround<'a> {
    /// Returns a block's page before the record, if known.
    pub fn before(&self, id: u8) -> Option<&'a Page> {
        self.touched(id).filter(|touched| touched.role != Role::Ahead)?.page.as_deref()
    }

    /// Returns a block's page after the record, if the record has its image.
    pub fn after(&self, id: u8) -> Option<&'a Page> {
        self.touched(id)?.image.as_deref()
    }

    fn touched(&self, id: u8) -> Option<&'a Touched> {
        let index = self.record.blocks.iter().position(|block| block.id == id)?;
        self.touched.get(index)
    }
}
