//! Codes main data that has leaf tuples of SP-GiST indexes, predicted from heap tuples or copied from the
//! page before the record.
//!
//! This main data is coded after the block numbers, because its prediction depends on the index and the page.

use walden_format::payload::spgist::MovedLeafs;
use walden_format::record::Record;
use walden_format::rmgr::info::{RMGR_MASK, spgist};
use walden_format::rmgr::rmid;
use walden_redo::BlockKey;

use super::block::Block;
use super::{Current, Model};
use crate::columns::Coder;
use crate::predict::index::leaf::NewLeaf;
use crate::predict::index::moved_tuples::MIN_MOVED_BYTES;
use crate::{Corrupt, corrupt};

/// Form in which a record's main data is coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MainForm {
    /// Bytes, of this length.
    Bytes(usize),
    /// A new leaf tuple and the fields before it.
    NewLeaf,
    /// Copies of leaf tuples and the fields before them.
    MovedLeafs,
}

/// Code for [`MainForm::NewLeaf`]. Takes the place of the length of main data, which has 32 bits.
const NEW_LEAF: u64 = 1 << 32;
/// Code for [`MainForm::MovedLeafs`].
const MOVED_LEAFS: u64 = NEW_LEAF + 1;

/// Returns whether a record with this resource manager and info inserts a leaf tuple.
pub fn is_leaf_insert((rmid, info): (u8, u8)) -> bool {
    rmid == rmid::SPGIST && info & RMGR_MASK == spgist::ADD_LEAF
}

impl Model {
    /// Codes the form of the main data of a record with a shape.
    pub(super) fn main_form<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        shape: usize,
    ) -> Result<MainForm, Corrupt> {
        let number = current.source.map_or(0, |record| match self.leaf_form(record) {
            Some(MainForm::NewLeaf) => NEW_LEAF,
            Some(MainForm::MovedLeafs) => MOVED_LEAFS,
            Some(MainForm::Bytes(_)) | None => record.main_len.into(),
        });
        match current.coder.symbol(self.shapes.get(shape).main_lengths, number)? {
            NEW_LEAF => Ok(MainForm::NewLeaf),
            MOVED_LEAFS => Ok(MainForm::MovedLeafs),
            number => u32::try_from(number)
                .ok()
                .and_then(|len| usize::try_from(len).ok())
                .map(MainForm::Bytes)
                .ok_or_else(|| corrupt("cannot decode a record: expected main data of less than 4 GiB")),
        }
    }

    /// When encoding: returns the form for leaf tuples, if the main data has them and they can be predicted.
    fn leaf_form(&mut self, record: &Record<'_>) -> Option<MainForm> {
        let kind = (record.header.rmid, record.header.info);
        let block = record.blocks.first().filter(|_| kind.0 == rmid::SPGIST)?;
        let main = record.main_data();
        if is_leaf_insert(kind) {
            return NewLeaf::parse(main).map(|_| MainForm::NewLeaf);
        }
        let moved = MovedLeafs::read(kind.1, main)?;
        let [.., leafs] = moved.split(main)?;
        let is_long = leafs.len() >= MIN_MOVED_BYTES && main.len() <= u16::MAX.into();
        let slot =
            self.replay.store.find(BlockKey::from_block(block)).filter(|_| is_long && moved.deletes > 0)?;
        self.replay.store.page(slot)?;
        Some(MainForm::MovedLeafs)
    }

    /// Codes main data that has leaf tuples and appends it to `main`. Does nothing if the main data was coded
    /// as bytes.
    pub(super) fn leaf_tuples<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        (shape, form): (usize, MainForm),
        blocks: &[Block],
        main: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        if let MainForm::Bytes(_) = form {
            return Ok(());
        }
        let block = blocks.first();
        let block =
            block.ok_or_else(|| corrupt("cannot decode leaf tuples: expected a record with a block"))?;
        self.use_copies()?;
        current.coder.set_relation(Some(block.address.relation.locator));
        let source = current.source.map(Record::main_data);
        if form == MainForm::NewLeaf {
            let leaf = source.and_then(NewLeaf::parse);
            return self.tuple_coder(current.coder).new_leaf(block.address, leaf.as_ref(), main);
        }
        let info = self.shapes.get(shape).info;
        self.tuple_coder(current.coder).moved_leafs(block.address, info, source, main)
    }
}
