//! Data of blocks: what it is, and who predicts it.

use walden_format::rmgr::rmid;

use super::blocks::Around;
use super::shape::Shape;
use super::{MAX_ROW_BYTES, Model};
use crate::columns::{Class, Coder, Kind};
use crate::predict::heap::headers::Heads;
use crate::predict::index::Context;
use crate::predict::names::Topic;
use crate::predict::relation::Place;
use crate::tuple::heap::{self, MultiInsert, Old};
use crate::tuple::{gin, index};
use crate::{Corrupt, corrupt};

impl Model {
    /// A block's data: what it is made of where that is known, and bytes of a length otherwise.
    #[allow(clippy::too_many_arguments)]
    pub fn block_data<S: Coder>(
        &mut self,
        coder: &mut S,
        around: Around<'_>,
        index: usize,
        place: Place,
        old_place: Place,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        const BYTES: u64 = 0;
        const MADE: u64 = 1;
        let Shape { rmid: manager, info, .. } = self.shapes[around.shape];
        let id = self.shapes[around.shape].blocks[index].id;
        let form = DataForm::of(manager, info, id, around.main);
        let relation = place.relation;
        let like = [relation.number, around.shape as u32, index as u32];
        if form != DataForm::Bytes {
            let mut old = std::mem::take(&mut self.old);
            old.clear();
            let number = match form {
                DataForm::Row { old: Some(number) } | DataForm::RowPart { old: number, .. } => Some(number),
                _ => None,
            };
            let row = number.and_then(|number| self.known(old_place)?.item(number));
            old.extend_from_slice(row.unwrap_or_default());
            let old_row = Old::of(&old);
            let column = self.predictors.names.column(
                coder,
                Topic::DataForm,
                like,
                Kind::Symbols(Class::BlockData),
            )?;
            let made = source.is_some_and(|data| form.fits(data, old_row, &mut self.predictors.heads));
            let made = coder.symbol(column, if made { MADE } else { BYTES })? == MADE;
            if made {
                let mut entry = None;
                let mut tuple_coder = self.tuple_coder(coder);
                match form {
                    DataForm::Row { .. } => tuple_coder.insert(relation, old_row, source, out)?,
                    DataForm::RowPart { prefix, suffix, .. } => {
                        tuple_coder.part(relation, old_row, (prefix, suffix), out)?;
                    }
                    DataForm::Rows(rows) => tuple_coder.multi_insert(relation, rows, source, out)?,
                    DataForm::IndexTuple => {
                        tuple_coder.index_tuple(relation, Context::Record, source, out)?;
                    }
                    DataForm::GinPending => tuple_coder.pending(relation, source, out)?,
                    DataForm::GinEntry => entry = Some(tuple_coder.gin_head(relation, source)?),
                    DataForm::Bytes => {}
                }
                if let Some(head) = entry {
                    // The entry that is replaced.
                    let number = gin::replaced(&head);
                    let item = number.and_then(|number| self.known(place)?.item(number));
                    old.extend_from_slice(item.unwrap_or_default());
                    self.tuple_coder(coder).gin_entry(relation, head, &old, source, out)?;
                }
            }
            self.old = old;
            if made {
                return Ok(());
            }
        }
        let column =
            self.predictors.names.column(coder, Topic::DataLength, like, Kind::Symbols(Class::BlockData))?;
        let len = coder.symbol(column, source.map_or(0, |data| data.len() as u64))?;
        let len = u16::try_from(len).map_err(|_| corrupt("a length can't be"))?;
        if len == 0 {
            return Ok(());
        }
        // Rows of one length beside each other only where there are many of them.
        let column = if len <= MAX_ROW_BYTES {
            let like = [relation.number, (around.shape as u32) << 8 | index as u32, len.into()];
            self.predictors.names.column(coder, Topic::Data, like, Kind::Rows(Class::Payload, len))?
        } else {
            self.predictors.names.column(coder, Topic::LongData, like, Kind::Bytes(Class::Payload))?
        };
        coder.bytes(column, source.unwrap_or_default(), len.into(), out)
    }
}

/// What a block's data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataForm {
    Bytes,
    /// A row's head and the row; of an update, with the number of the row that it replaces.
    Row {
        old: Option<u16>,
    },
    /// The same without what it has in common with the row that it replaces.
    RowPart {
        old: u16,
        prefix: bool,
        suffix: bool,
    },
    /// So many rows.
    Rows(usize),
    IndexTuple,
    /// An entry of a GIN index.
    GinEntry,
    /// Tuples of a GIN index's pending list.
    GinPending,
}

impl DataForm {
    /// Of a record's block.
    pub fn of(manager: u8, info: u8, id: u8, main: &[u8]) -> DataForm {
        let half = |at: usize| main.get(at..at + 2).map_or(0, |two| u16::from_le_bytes([two[0], two[1]]));
        match (manager, info & 0x70, id) {
            (rmid::HEAP, 0x00, 0) => DataForm::Row { old: None },
            (rmid::HEAP, 0x20 | 0x40, 0) => {
                // `xl_heap_update`.
                let flags = main.get(7).copied().unwrap_or(0);
                match (flags & 0x20 != 0, flags & 0x40 != 0) {
                    (false, false) => DataForm::Row { old: Some(half(4)) },
                    (prefix, suffix) => DataForm::RowPart { old: half(4), prefix, suffix },
                }
            }
            (rmid::HEAP2, 0x50, 0) => DataForm::Rows(half(2).into()),
            (rmid::BTREE, _, 0) if matches!(info & 0xF0, 0x00 | 0x10) => DataForm::IndexTuple,
            (rmid::HASH, 0x20, 0) => DataForm::IndexTuple,
            (rmid::GIN, 0x20, 0) if half(0) & gin::IS_DATA == 0 => DataForm::GinEntry,
            (rmid::GIN, 0x60, 1) | (rmid::GIN, 0x70, 0) => DataForm::GinPending,
            _ => DataForm::Bytes,
        }
    }

    /// Whether data can be coded in this form, for encoding, which then does.
    pub fn fits(self, data: &[u8], old: Option<Old<'_>>, heads: &mut Heads) -> bool {
        match self {
            DataForm::Row { .. } => data.len() >= heap::HEAD_BYTES,
            DataForm::RowPart { prefix, suffix, .. } => heads.take_part(data, old, (prefix, suffix)),
            DataForm::Rows(rows) => MultiInsert::is_exactly(data, rows),
            DataForm::IndexTuple => index::is_tuple(data),
            DataForm::GinEntry => gin::is_entry(data),
            DataForm::GinPending => gin::is_pending(data),
            DataForm::Bytes => false,
        }
    }
}

/// Gives the line pointers of the rows that a record puts on its first page, in their order.
pub fn inserted(manager: u8, info: u8, main: &[u8], put: impl FnMut(u16)) {
    const MADE_ANEW: u8 = 0x80;
    let half = |at: usize| main.get(at..at + 2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    match (manager, info & 0x70) {
        (rmid::HEAP, 0x00) => half(0).into_iter().for_each(put),
        // `xl_heap_update`. Where the row stays on its page without a word to indexes, no index tuple follows.
        (rmid::HEAP, 0x20) => half(12).into_iter().for_each(put),
        // `xl_heap_multi_insert`: numbers only where the page is not new.
        (rmid::HEAP2, 0x50) => {
            let rows = half(2).unwrap_or(0);
            match info & MADE_ANEW {
                0 => (0..rows).map_while(|row| half(4 + 2 * usize::from(row))).for_each(put),
                _ => (1..=rows.min(2048)).for_each(put),
            }
        }
        _ => {}
    }
}
