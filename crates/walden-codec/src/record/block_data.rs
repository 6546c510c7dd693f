//! Codes block data: selects the predictor for each kind of data.

use walden_format::payload::gin::XlGinInsert;
use walden_format::payload::gist::{XlGistPageSplit, XlGistPageUpdate};
use walden_format::payload::heap::{UpdateFlags, XlHeapInsert, XlHeapMultiInsert, XlHeapUpdate};
use walden_format::payload::offset_numbers;
use walden_format::rmgr::info::{RMGR_MASK, gist};
use walden_format::rmgr::rmid;

use walden_redo::PageBox;
use walden_redo::reconstruct::{apply_fragments, fragments_between};

use super::shape::Shape;
use super::{Current, Fields, MAX_ROW_BYTES, Model};
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::predict::fragments::{MIN_FRAGMENT_BYTES, split_fragments};
use crate::predict::index::moved_tuples::{Cause, MIN_MOVED_BYTES};
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::BlockAddress;
use crate::predict::{Predictor, gin, heap, index};
use crate::tuple::heap::HeapTuple;
use crate::tuple::index::is_index_tuple;
use crate::{Corrupt, corrupt};

/// Data of a block.
pub struct DataSource<'a> {
    /// Index of the block in the record.
    pub index: usize,
    /// ID of the block in the record.
    pub id: u8,
    /// Address of the block.
    pub address: BlockAddress,
    /// Page of the tuple that an update replaces.
    pub old_address: BlockAddress,
    /// Page that a GiST record splits; the block itself for other records.
    pub split_address: BlockAddress,
    /// When encoding: the data.
    pub bytes: Option<&'a [u8]>,
}

impl Model {
    /// Codes a block's data, by a predictor if there is one for its form, else as bytes. Appends the data to
    /// `out`.
    pub(super) fn block_data<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        fields: Fields<'_>,
        source: &DataSource<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let &Shape { rmid, info, .. } = self.shapes.get(fields.shape);
        let form = DataForm::detect((rmid, info), source.id, fields.main);
        if form != DataForm::Bytes {
            let mut old = std::mem::take(&mut self.old_tuple);
            old.clear();
            let item = form.replaces().and_then(|number| self.known_page(source.old_address)?.item(number));
            old.extend_from_slice(item.unwrap_or_default());
            let is_predicted = self.predicted_data(current, fields, source, (form, &old), out)?;
            self.old_tuple = old;
            if is_predicted {
                return Ok(());
            }
        }
        self.data_bytes(current, fields, source, out)?;
        if rmid == rmid::GENERIC {
            self.predictors.recent_fragments.note(source.address.key(), out);
        }
        Ok(())
    }

    /// Codes a block's data by the predictor of its form. Returns false if the data is coded as bytes. `old`
    /// is the tuple that is replaced.
    fn predicted_data<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        fields: Fields<'_>,
        source: &DataSource<'_>,
        (form, old): (DataForm, &[u8]),
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        let relation = source.address.relation;
        let key = [relation.number, fields.shape as u32, source.index as u32];
        let kind = Kind::Symbols(Class::BlockData);
        let column = self.predictors.keyed_columns.column(current.coder, Topic::DataForms, key, kind)?;
        let old = HeapTuple::parse(old);
        let mut coder = self.tuple_coder(current.coder);
        let bytes = source.bytes;
        match form {
            DataForm::Bytes => Ok(false),
            DataForm::Tuple { .. } => coder.data(column, &mut heap::NewTuple { relation, old }, bytes, out),
            DataForm::TuplePart { flags, .. } => {
                coder.data(column, &mut heap::NewTuplePart { relation, old, flags }, bytes, out)
            }
            DataForm::Tuples(count) => {
                coder.data(column, &mut heap::NewTuples { relation, count }, bytes, out)
            }
            DataForm::IndexTuple => coder.data(column, &mut index::NewTuple { relation }, bytes, out),
            DataForm::GinEntry => {
                coder.data(column, &mut gin::NewEntry { address: source.address }, bytes, out)
            }
            DataForm::GinPending => coder.data(column, &mut gin::PendingTuples { relation }, bytes, out),
        }
    }

    /// When encoding: returns the form added by version 2 that suits the block's data better than bytes, if
    /// any.
    fn added_form<'d>(&mut self, fields: Fields<'_>, source: &DataSource<'d>) -> Option<AddedForm<'d>> {
        let data = source.bytes?;
        let &Shape { rmid, info, .. } = self.shapes.get(fields.shape);
        match rmid {
            rmid::GENERIC => self.fragment_form(source.address, data),
            rmid::GIST => self.gist_form((info, fields.main), source, data),
            _ => None,
        }
    }

    /// Returns the form for fragments of a page (generic WAL).
    fn fragment_form<'d>(&mut self, address: BlockAddress, data: &'d [u8]) -> Option<AddedForm<'d>> {
        if data.len() < MIN_FRAGMENT_BYTES {
            return None;
        }
        if let Some(before) = self.copy_of_known_page(address) {
            let mut after = before.clone();
            apply_fragments(&mut after, data).ok()?;
            if fragments_between(&before, &after).is_some_and(|fragments| fragments == data) {
                return Some(AddedForm::Page(before, after));
            }
        }
        match self.predictors.recent_fragments.has(address.key()) {
            true => split_fragments(data).map(AddedForm::Fragments),
            false => None,
        }
    }

    /// Returns the form for tuples of a GiST index.
    fn gist_form<'d>(
        &mut self,
        (info, main): (u8, &[u8]),
        source: &DataSource<'_>,
        data: &'d [u8],
    ) -> Option<AddedForm<'d>> {
        if is_gist_insert(info, main) && is_index_tuple(data) {
            return Some(AddedForm::IndexTuple(data));
        }
        (data.len() >= MIN_MOVED_BYTES && self.known_page(source.split_address).is_some())
            .then_some(AddedForm::Moved(data))
    }

    /// Codes a block's data in a form added by version 2.
    fn added_data<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        fields: Fields<'_>,
        source: &DataSource<'_>,
        (number, form): (u64, Option<AddedForm<'_>>),
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let split = gist_split(self.shapes.get(fields.shape), fields.main);
        let (address, relation) = (source.address, source.address.relation);
        let mut coder = self.tuple_coder(current.coder);
        match (number, form) {
            (FRAGMENTS_OF_PAGE, Some(AddedForm::Page(before, after))) => {
                coder.page_fragments(address, Some((&before, &after)), out)
            }
            (FRAGMENTS_OF_PAGE, _) => coder.page_fragments(address, None, out),
            (FRAGMENTS, Some(AddedForm::Fragments(fragments))) => {
                coder.fragments(address, Some(&fragments), out)
            }
            (FRAGMENTS, _) => coder.fragments(address, None, out),
            (INDEX_TUPLE, form) => {
                let data = form.as_ref().and_then(AddedForm::tuples);
                index::NewTuple { relation }.code(&mut coder, data, out)
            }
            (MOVED_TUPLES, form) => {
                let cause = if split.is_some() { Cause::Split } else { Cause::Update };
                let data = form.as_ref().and_then(AddedForm::tuples);
                coder.moved_tuples(cause, (source.split_address, None), data, out)?;
                if source.id == 1 && split.is_some_and(|split| split.is_leaf) {
                    coder.keys.skip_expected(relation.number);
                }
                Ok(())
            }
            _ => Err(corrupt("cannot decode block data: expected less than 64 kB, or a known form")),
        }
    }

    /// Codes a block's data as bytes with a length.
    fn data_bytes<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        fields: Fields<'_>,
        source: &DataSource<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let (relation, shape) = (source.address.relation.number, fields.shape as u32);
        let key = [relation, shape, source.index as u32];
        let keyed_columns = &mut self.predictors.keyed_columns;
        let column =
            keyed_columns.column(current.coder, Topic::DataLengths, key, Kind::Symbols(Class::BlockData))?;
        let bytes = source.bytes.unwrap_or_default();
        let form = self.added_form(fields, source);
        let number = form.as_ref().map_or(bytes.len() as u64, AddedForm::number);
        let number = current.coder.symbol(column, number)?;
        if number > u16::MAX.into() {
            self.use_copies()?;
            return self.added_data(current, fields, source, (number, form), out);
        }
        let len = u16::try_from(number);
        let len = len.map_err(|_| corrupt("cannot decode block data: expected less than 64 kB"))?;
        if len == 0 {
            return Ok(());
        }
        let (keyed_columns, coder) = (&mut self.predictors.keyed_columns, &mut *current.coder);
        // Data of one length is coded as rows. Long data of equal length is too rare for that.
        let column = if len <= MAX_ROW_BYTES {
            let key = [relation, shape << 8 | source.index as u32, len.into()];
            keyed_columns.column(coder, Topic::Data, key, Kind::Rows(Class::Payload, len))?
        } else {
            keyed_columns.column(coder, Topic::LongData, key, Kind::Bytes(Class::Payload))?
        };
        coder.bytes(column, bytes, len.into(), out)
    }
}

/// Code for fragments of a known page, coded as the page after the record. Takes the place of the length of
/// block data, which has 16 bits.
const FRAGMENTS_OF_PAGE: u64 = 1 << 16;
/// Code for fragments, coded one by one.
const FRAGMENTS: u64 = FRAGMENTS_OF_PAGE + 1;
/// Code for an index tuple.
const INDEX_TUPLE: u64 = FRAGMENTS_OF_PAGE + 2;
/// Code for tuples copied from a page.
const MOVED_TUPLES: u64 = FRAGMENTS_OF_PAGE + 3;

/// Forms of block data added by version 2.
enum AddedForm<'d> {
    /// Fragments, as the page before and the page after the record.
    Page(PageBox, PageBox),
    /// Fragments, coded one by one.
    Fragments(Vec<(usize, &'d [u8])>),
    /// An index tuple.
    IndexTuple(&'d [u8]),
    /// Tuples copied from a page.
    Moved(&'d [u8]),
}

impl<'d> AddedForm<'d> {
    fn number(&self) -> u64 {
        match self {
            AddedForm::Page(..) => FRAGMENTS_OF_PAGE,
            AddedForm::Fragments(_) => FRAGMENTS,
            AddedForm::IndexTuple(_) => INDEX_TUPLE,
            AddedForm::Moved(_) => MOVED_TUPLES,
        }
    }

    fn tuples(&self) -> Option<&'d [u8]> {
        match self {
            AddedForm::IndexTuple(data) | AddedForm::Moved(data) => Some(data),
            AddedForm::Page(..) | AddedForm::Fragments(_) => None,
        }
    }
}

/// Returns whether a GiST record inserts one tuple and removes none.
pub fn is_gist_insert(info: u8, main: &[u8]) -> bool {
    const INSERT: XlGistPageUpdate = XlGistPageUpdate { deleted: 0, inserted: 1 };
    info & RMGR_MASK == gist::PAGE_UPDATE && XlGistPageUpdate::read(main) == Some(INSERT)
}

/// Returns the main data of a GiST page split; `None` for other records.
pub fn gist_split(shape: &Shape, main: &[u8]) -> Option<XlGistPageSplit> {
    let is_split = shape.rmid == rmid::GIST && shape.info & RMGR_MASK == gist::PAGE_SPLIT;
    XlGistPageSplit::read(main).filter(|_| is_split)
}

/// Form of a block's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataForm {
    /// Bytes without a known form.
    Bytes,
    /// A heap tuple with its header. For an update, `old` is the offset number of the replaced tuple.
    Tuple { old: Option<u16> },
    /// A heap tuple without the prefix or suffix that it shares with the replaced tuple.
    TuplePart { old: u16, flags: UpdateFlags },
    /// This number of heap tuples.
    Tuples(usize),
    /// An index tuple.
    IndexTuple,
    /// An entry of a GIN index.
    GinEntry,
    /// Tuples of a GIN index's pending list.
    GinPending,
}

impl DataForm {
    /// Returns the form of a block's data, given the resource manager and info of the record, the block's ID
    /// and the main data.
    pub fn detect((rmid, info): (u8, u8), id: u8, main: &[u8]) -> DataForm {
        use walden_format::rmgr::info::{btree, gin, hash, heap, heap2};
        /// Info bits that identify the kind of record, also for hash and GIN. Kinds with the highest bit set
        /// have no such data.
        const KIND_BITS: u8 = heap::OPMASK;
        match (rmid, id) {
            (rmid::HEAP, 0) => match info & heap::OPMASK {
                heap::INSERT => DataForm::Tuple { old: None },
                heap::UPDATE | heap::HOT_UPDATE => {
                    let Some(update) = XlHeapUpdate::read(main) else { return DataForm::Bytes };
                    let (old, flags) = (update.old_offset, update.flags);
                    match flags.prefix_from_old() || flags.suffix_from_old() {
                        false => DataForm::Tuple { old: Some(old) },
                        true => DataForm::TuplePart { old, flags },
                    }
                }
                _ => DataForm::Bytes,
            },
            (rmid::HEAP2, 0) if info & heap2::OPMASK == heap2::MULTI_INSERT => {
                DataForm::Tuples(XlHeapMultiInsert::read(main).map_or(0, |insert| insert.count.into()))
            }
            (rmid::BTREE, 0) if matches!(info & RMGR_MASK, btree::INSERT_LEAF | btree::INSERT_UPPER) => {
                DataForm::IndexTuple
            }
            (rmid::HASH, 0) if info & KIND_BITS == hash::INSERT => DataForm::IndexTuple,
            (rmid::GIN, _) => match (info & KIND_BITS, id) {
                (gin::INSERT, 0) if !XlGinInsert::read(main).is_some_and(|insert| insert.flags.is_data()) => {
                    DataForm::GinEntry
                }
                (gin::UPDATE_META_PAGE, 1) | (gin::INSERT_LISTPAGE, 0) => DataForm::GinPending,
                _ => DataForm::Bytes,
            },
            _ => DataForm::Bytes,
        }
    }

    /// Returns the offset number of the replaced heap tuple.
    fn replaces(self) -> Option<u16> {
        match self {
            DataForm::Tuple { old } => old,
            DataForm::TuplePart { old, .. } => Some(old),
            _ => None,
        }
    }
}

/// Calls `put` with the offset number of each heap tuple that a record adds to its first page, in order.
pub fn inserted_tuples(rmid: u8, info: u8, main: &[u8], put: impl FnMut(u16)) {
    use walden_format::rmgr::info::{heap, heap2};
    const MAX_TUPLES: u16 = 2048;
    match (rmid, info & heap::OPMASK) {
        (rmid::HEAP, heap::INSERT) => {
            XlHeapInsert::read(main).map(|insert| insert.offset).into_iter().for_each(put);
        }
        // A HOT update inserts no index tuples.
        (rmid::HEAP, heap::UPDATE) => {
            XlHeapUpdate::read(main).map(|update| update.new_offset).into_iter().for_each(put);
        }
        (rmid::HEAP2, heap2::MULTI_INSERT) => {
            let Some((insert, offsets)) = XlHeapMultiInsert::split(main) else { return };
            if info & heap2::INIT_PAGE != 0 {
                (1..=insert.count.min(MAX_TUPLES)).for_each(put);
                return;
            }
            // Offset numbers are present only if the page is not new.
            offset_numbers(offsets).take(insert.count.into()).for_each(put);
        }
        _ => {}
    }
}
