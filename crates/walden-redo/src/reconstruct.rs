//! Records as PostgreSQL would have written them without full-page images.
//!
//! A block with an image has no data, because the image shows the result. The block data that PostgreSQL
//! would have written without the image is reconstructed from the page before the record and from the image:
//! the image contains the new heap tuple, and shows which line pointers became dead. PostgreSQL writes a
//! record without an image for a page that was already changed since the last checkpoint. Replayed on the
//! page before the record, the reconstructed record must produce the image.

use walden_format::assemble::assemble;
use walden_format::payload::heap::SharedLengths;
use walden_format::record::{BlockRef, Record, RecordHeader, decode};
use walden_format::rmgr::{ImageClass, KindTable, rmid};

use crate::manager::PagesAround;
use crate::managers::{generic, heap, manager};
use crate::page::{Misfit, PAGE_BYTES, Page};
use crate::pool::PageBox;
use crate::step::{Role, Touched, touched_with};

/// Returns whether the record's image of a block is the whole change, and does not replace data.
pub(crate) fn is_forced_image(record: &Record<'_>, id: u8) -> bool {
    let kinds = KindTable::for_version(record.version);
    let kind = kinds.kind(record.header.rmid, record.header.info);
    kinds.image_class(kind.index(), id) == ImageClass::Forced
}

/// The result of comparing reconstructed data with the record's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// The reconstructed data has the same bytes as the record's data.
    Exact,
    /// The reconstructed data has other bytes, which may have the same effect.
    Differs,
    /// No data is reconstructed: the pages before the record are unknown, or the image does not determine the
    /// data.
    Unknown,
}

/// Compares the reconstructed data of the block at `index` of [`Record::blocks`] with the record's. Returns
/// `None` unless the block has both data and an image, as in WAL written with `wal_consistency_checking`.
///
/// `touched` are the pages before the record, as an observer sees them.
pub fn compare(record: &Record<'_>, touched: &[Touched], index: usize) -> Option<Match> {
    let (block, known) = (record.blocks.get(index)?, touched.get(index)?);
    let beside = block.image.is_some_and(|image| !image.apply);
    if !beside
        || block.will_init
        || known.role != Role::Redo
        || known.image.is_none()
        || is_forced_image(record, block.id)
    {
        return None;
    }
    let data = (manager(record.header.rmid)?.block_data)(&PagesAround { record, touched }, block);
    Some(match data {
        Some(data) if data == record.block_data(block) => Match::Exact,
        Some(_) => Match::Differs,
        None => Match::Unknown,
    })
}

/// Reconstructs each block's data, in the order of [`Record::blocks`]: `None` if the image does not determine
/// the data, if the block has no image, or if the record has the block's data.
///
/// `pages` are each block's page before the record and its image, as far as they are known. The pages are
/// unchanged afterwards.
pub fn block_data(
    record: &Record<'_>,
    pages: &mut [(Option<PageBox>, Option<PageBox>)],
) -> Vec<Option<Vec<u8>>> {
    let Some(manager) = manager(record.header.rmid) else { return vec![None; record.blocks.len()] };
    let touched = touched_with(record, pages);
    let around = PagesAround { record, touched: &touched };
    let data = |(block, touched): (&BlockRef, &Touched)| {
        let has_image_alone =
            touched.image.is_some() && block.data_len == 0 && !is_forced_image(record, block.id);
        if has_image_alone { (manager.block_data)(&around, block) } else { None }
    };
    let data = record.blocks.iter().zip(&touched).map(data).collect();
    for (pages, touched) in pages.iter_mut().zip(touched) {
        *pages = (touched.page, touched.image);
    }
    data
}

/// Reconstructs the data of the block at `index` of [`Record::blocks`]; `None` if the image does not
/// determine it.
///
/// `touched` are the pages before the record, as an observer sees them.
pub fn block_data_at(record: &Record<'_>, touched: &[Touched], index: usize) -> Option<Vec<u8>> {
    let block = record.blocks.get(index)?;
    if is_forced_image(record, block.id) {
        return None;
    }
    (manager(record.header.rmid)?.block_data)(&PagesAround { record, touched }, block)
}

/// Returns the lengths of the prefix and suffix that an update's new tuple shares with the old one, and that
/// its record may omit (`log_heap_update`): 0 if the tuples are on two pages. `None` if they are unknown.
///
/// `touched` are the pages before the record, as an observer sees them.
pub fn shared_with_old(record: &Record<'_>, touched: &[Touched]) -> Option<SharedLengths> {
    heap::shared_with_old(&PagesAround { record, touched })
}

/// Applies the block data of a Generic record to its page: fragments, and zeros for the unused space.
///
/// # Errors
/// A fragment is cut short or exceeds the page. The page may then be partly changed.
pub fn apply_fragments(page: &mut Page, data: &[u8]) -> Result<(), Misfit> {
    generic::apply(page, data)
}

/// Returns the block data of a Generic record that changes one page to another, as PostgreSQL writes it.
/// `None` if the free space of one of the pages has no valid bounds.
pub fn fragments_between(before: &Page, after: &Page) -> Option<Vec<u8>> {
    generic::fragments(before, after)
}

/// A record as PostgreSQL would have written it without full-page images.
#[derive(Debug)]
pub struct RecordWithoutImages {
    bytes: Vec<u8>,
    blocks: Vec<BlockRef>,
}

impl RecordWithoutImages {
    /// Replaces the images that replay would restore by reconstructed data; `None` if the data of a block
    /// cannot be reconstructed. An image that the record always has ([`ImageClass::Forced`]) is removed
    /// without replacement.
    ///
    /// `touched` are the pages before the record, as an observer sees them.
    pub fn reconstruct(record: &Record<'_>, touched: &[Touched]) -> Option<RecordWithoutImages> {
        let manager = manager(record.header.rmid)?;
        let around = PagesAround { record, touched };
        let mut blocks = Vec::with_capacity(record.blocks.len());
        let mut lacks_first = false;
        for (block, touched) in record.blocks.iter().zip(touched) {
            let restored = block.image.is_some() && touched.role == Role::Restored;
            let is_reconstructed = restored && block.data_len == 0 && !is_forced_image(record, block.id);
            let data = if is_reconstructed {
                (manager.block_data)(&around, block)?
            } else {
                record.block_data(block).to_vec()
            };
            lacks_first |= is_reconstructed && block.id == 0;
            blocks.push((BlockRef { image: None, ..*block }, data));
        }
        let mut bytes = assemble(record, &blocks);
        if lacks_first && record.header.rmid == rmid::HEAP {
            let main = bytes.len() - record.main_data().len();
            heap::set_prefix_and_suffix_flags(&around, &mut bytes[main..]);
        }
        Some(RecordWithoutImages { bytes, blocks: Vec::new() })
    }

    /// Decodes the record without images. It gets LSN, end and version of `original`.
    pub fn record<'a>(&'a mut self, original: &Record<'_>) -> Option<Record<'a>> {
        let header = RecordHeader::parse(&self.bytes)?;
        let place = (original.lsn, original.end);
        decode(&self.bytes, header, place, original.version, PAGE_BYTES as u32, &mut self.blocks).ok()
    }
}
