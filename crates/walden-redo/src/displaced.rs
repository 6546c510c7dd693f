//! What a record would have said if its images had not displaced it.
//!
//! A block with an image has no data: the image shows the outcome. The record without the image can be told from the page
//! before it and the image: the new row version is on the image, the line pointers that became dead are dead there. It is
//! what the same record would be right after a page's first touch, and replayed on the page before it must give the image.

use walden_format::assemble::assemble;
use walden_format::record::{BlockRef, Record, RecordHeader, decode};
use walden_format::rmgr::{ImageClass, KindTable, rmid};

use crate::heap;
use crate::page::{PAGE_BYTES, Page};
use crate::pool::PageBox;
use crate::replay::{Role, Touched, manager, touched_with};

/// A record with images, and its pages before and after.
pub struct Displaced<'a> {
    /// The record.
    pub record: &'a Record<'a>,
    touched: &'a [Touched],
}

impl<'a> Displaced<'a> {
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

/// Whether the record's image of a block is all there is to its change, and not what would come of data in its place.
pub(crate) fn is_whole(record: &Record<'_>, id: u8) -> bool {
    let kinds = KindTable::of(record.version);
    let kind = kinds.kind(record.header.rmid, record.header.info);
    kinds.image_class(kind.index(), id) == ImageClass::Forced
}

/// Whether the data told of a block is what the record has, where it has both the data and an image: in a log written with
/// `wal_consistency_checking`. Nothing where there is nothing to compare.
pub fn compare_predicted(record: &Record<'_>, touched: &[Touched], index: usize) -> Option<Match> {
    let (block, known) = (record.blocks.get(index)?, touched.get(index)?);
    let beside = block.image.is_some_and(|image| !image.apply);
    if !beside
        || block.will_init
        || known.role != Role::Redo
        || known.image.is_none()
        || is_whole(record, block.id)
    {
        return None;
    }
    let told = (manager(record.header.rmid)?.displaced)(&Displaced { record, touched }, block);
    Some(match told {
        Some(told) if told == record.block_data(block) => Match::Exact,
        Some(_) => Match::Differs,
        None => Match::Unknown,
    })
}

/// What each block's data would be if the record had no images, told from the pages before it and the images; nothing where
/// it can't be told, or where an image displaced nothing.
///
/// `pages` has both of each block, as far as they are known.
pub fn data(record: &Record<'_>, pages: &mut [(Option<PageBox>, Option<PageBox>)]) -> Vec<Option<Vec<u8>>> {
    let Some(manager) = manager(record.header.rmid) else { return vec![None; record.blocks.len()] };
    let touched = touched_with(record, pages);
    let displaced = Displaced { record, touched: &touched };
    let data = |(block, touched): (&BlockRef, &Touched)| {
        let told = touched.image.is_some() && block.data_len == 0 && !is_whole(record, block.id);
        if told { (manager.displaced)(&displaced, block) } else { None }
    };
    let data = record.blocks.iter().zip(&touched).map(data).collect();
    for (pages, touched) in pages.iter_mut().zip(touched) {
        *pages = (touched.page, touched.image);
    }
    data
}

/// What one block's data would be if the record had no images, as an observer sees pages before the record; nothing if it
/// can't be told.
pub fn data_of(record: &Record<'_>, touched: &[Touched], index: usize) -> Option<Vec<u8>> {
    let block = record.blocks.get(index)?;
    if is_whole(record, block.id) {
        return None;
    }
    (manager(record.header.rmid)?.displaced)(&Displaced { record, touched }, block)
}

/// Bytes that an update's new row version begins and ends with as the old one does, and that its record leaves out where it
/// may (`log_heap_update`): 0 and 0 if the versions are on two pages, nothing if they are not known. An observer knows them
/// before the record.
pub fn shared_with_old(record: &Record<'_>, touched: &[Touched]) -> Option<(usize, usize)> {
    heap::shared_with_old(&Displaced { record, touched })
}

/// How what is told of a block's data compares with the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// The same bytes.
    Exact,
    /// Other bytes, which may have the same effect.
    Differs,
    /// The pages before are not known, or the record keeps nothing of it.
    Unknown,
}

/// A record put together here.
#[derive(Debug)]
pub struct BareRecord {
    bytes: Vec<u8>,
    blocks: Vec<BlockRef>,
}

impl BareRecord {
    /// The record without images, the data that they displaced in their place; nothing if it can't be told.
    ///
    /// Nothing takes the place of an image that is always there (see [`ImageClass::Forced`]).
    ///
    /// `touched` are the pages before the record, as an observer sees them.
    pub fn of(record: &Record<'_>, touched: &[Touched]) -> Option<BareRecord> {
        let manager = manager(record.header.rmid)?;
        let displaced = Displaced { record, touched };
        let mut blocks = Vec::with_capacity(record.blocks.len());
        let mut lacks_first = false;
        for (block, touched) in record.blocks.iter().zip(touched) {
            let restored = block.image.is_some() && touched.role == Role::Restored;
            // An image that is always there displaces nothing.
            let is_displaced = restored && block.data_len == 0 && !is_whole(record, block.id);
            let data = if is_displaced {
                (manager.displaced)(&displaced, block)?
            } else {
                record.block_data(block).to_vec()
            };
            lacks_first |= is_displaced && block.id == 0;
            blocks.push((BlockRef { image: None, ..*block }, data));
        }
        let mut bytes = assemble(record, &blocks);
        if lacks_first && record.header.rmid == rmid::HEAP {
            let main = bytes.len() - record.main_data().len();
            heap::displaced_flags(&displaced, &mut bytes[main..]);
        }
        Some(BareRecord { bytes, blocks: Vec::new() })
    }

    /// Bytes of the record, padding not included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never: a record has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The record, with the place and version of the one that it was made of.
    pub fn record<'a>(&'a mut self, like: &Record<'_>) -> Option<Record<'a>> {
        let header = RecordHeader::parse(&self.bytes)?;
        let place = (like.lsn, like.end);
        decode(&self.bytes, header, place, like.version, PAGE_BYTES as u32, &mut self.blocks).ok()
    }
}
