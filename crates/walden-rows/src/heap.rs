//! Heap records as changes of tuples.
//!
//! The page after a record also contains the previous tuple: an update or delete only marks it. A record's
//! full-page image therefore suffices, even if the page before is unknown. If a record contains a whole
//! tuple, the record's tuple is used, as a page of a base backup may be ahead of the record.

use walden_format::payload::heap::{Tuple, Update, moved_from};
use walden_format::payload::{self, Payload};
use walden_format::record::{BlockRef, Fork, Record, RelFileLocator};
use walden_format::rmgr::rmid;
use walden_redo::page::Tid;
use walden_redo::page::heap_tuple::{
    HEAP_TUPLE_HEADER_BYTES, HeapTupleHeader, LOGGED_FIELDS, LOGGED_FIELDS_BYTES,
};
use walden_redo::{Observer, Role, Touched};

/// The effect of a record on a tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Insert,
    /// An insert that is valid only once confirmed (`INSERT ... ON CONFLICT`).
    SpeculativeInsert,
    Confirm,
    /// The removal of an unconfirmed speculative insert.
    Retract,
    Update,
    Delete,
    /// A delete that moves the row to another partition.
    Move,
}

/// A tuple's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Bytes {
    /// No tuple.
    None,
    /// All bytes.
    Whole(Vec<u8>),
    /// The key's columns only, the others null: the old tuple as logged for logical decoding.
    Key(Vec<u8>),
    Unknown(&'static str),
}

/// A change of a tuple.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TupleChange {
    pub file: RelFileLocator,
    pub action: Action,
    pub old_tid: Option<Tid>,
    pub new_tid: Option<Tid>,
    pub old: Bytes,
    pub new: Bytes,
}

const NO_PAGE: &str = "the WAL has no earlier image of its page, and there is no base backup";
const AHEAD: &str = "the base backup has a later state of its page";
const UNREADABLE: &str = "the record cannot be read";

/// Whether a record may change tuples.
pub(crate) fn is_heap(record: &Record<'_>) -> bool {
    matches!(record.header.rmid, rmid::HEAP | rmid::HEAP2)
}

/// Collects a record's changes of tuples, and whether the page of its first block is known after the record.
pub(crate) struct Collector<'t> {
    tuples: &'t mut Vec<TupleChange>,
    pub is_page_known: bool,
}

impl<'t> Collector<'t> {
    pub fn new(tuples: &'t mut Vec<TupleChange>) -> Collector<'t> {
        Collector { tuples, is_page_known: false }
    }
}

impl Observer for Collector<'_> {
    fn after(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        changes(record, touched, self.tuples);
        self.is_page_known = touched.first().is_some_and(|touched| touched.page.is_some());
    }
}

/// Extracts the changes of tuples from a heap record and the pages after it.
fn changes(record: &Record<'_>, touched: &[Touched], out: &mut Vec<TupleChange>) {
    if !is_heap(record) {
        return;
    }
    let Some(block) = record.block(0).filter(|block| block.fork == Fork::MAIN) else { return };
    let pages = Pages { record, touched };
    let Ok(payload) = payload::parse(record) else { return };
    let tid = |block: &BlockRef, offset_number| Some(Tid { block: block.block, offset_number });
    let change = |action| TupleChange {
        file: block.relation,
        action,
        old_tid: None,
        new_tid: None,
        old: Bytes::None,
        new: Bytes::None,
    };
    match payload {
        Payload::Insert(insert) => {
            let action =
                if insert.flags.is_speculative() { Action::SpeculativeInsert } else { Action::Insert };
            let new = pages.new_tuple(insert.tuple, 0, insert.offset);
            out.push(TupleChange { new_tid: tid(block, insert.offset), new, ..change(action) });
        }
        Payload::MultiInsert(multi) => {
            let mut tuples = multi.tuples;
            let mut offsets = multi.offsets.map(IntoIterator::into_iter);
            for index in 0..multi.count {
                let offset = match &mut offsets {
                    Some(offsets) => offsets.next(),
                    None => index.checked_add(1),
                };
                let Some(offset) = offset else { return };
                let tuple = tuples.as_mut().and_then(Iterator::next);
                let new = pages.new_tuple(tuple, 0, offset);
                out.push(TupleChange { new_tid: tid(block, offset), new, ..change(Action::Insert) });
            }
        }
        Payload::Delete(delete) => {
            let action = if delete.flags.is_super() {
                Action::Retract
            } else if delete.flags.is_partition_move() {
                Action::Move
            } else {
                Action::Delete
            };
            let old = pages.old_tuple(0, delete.offset, delete.xmax, action == Action::Retract);
            let old = pages.or_logged(old, delete.old, delete.flags.contains_old_tuple());
            out.push(TupleChange { old_tid: tid(block, delete.offset), old, ..change(action) });
        }
        Payload::Update(update) => {
            let old_block = moved_from(record);
            let old_id = old_block.map_or(0, |block| block.id);
            let page_old = pages.old_tuple(old_id, update.old_offset, update.old_xmax, false);
            let new = pages.updated_tuple(&update, &page_old);
            let old = pages.or_logged(page_old, update.old, update.flags.contains_old_tuple());
            out.push(TupleChange {
                old_tid: tid(old_block.unwrap_or(block), update.old_offset),
                new_tid: tid(block, update.new_offset),
                old,
                new,
                ..change(Action::Update)
            });
        }
        Payload::Confirm(confirm) => {
            out.push(TupleChange { new_tid: tid(block, confirm.offset), ..change(Action::Confirm) });
        }
        _ => {}
    }
}

/// A record and the pages after it.
struct Pages<'r, 't> {
    record: &'r Record<'r>,
    touched: &'t [Touched],
}

impl Pages<'_, '_> {
    fn touched(&self, id: u8) -> Option<&Touched> {
        let index = self.record.blocks.iter().position(|block| block.id == id)?;
        self.touched.get(index)
    }

    /// A tuple that the record creates.
    fn new_tuple(&self, logged: Option<Tuple<'_>>, id: u8, offset: u16) -> Bytes {
        if let Some(tuple) = logged {
            return Bytes::Whole(assemble(&tuple, &[], tuple.data, &[]));
        }
        self.on_page(id, offset, |header| header.xmin() == self.record.header.xid)
    }

    /// A tuple that the record removes.
    fn old_tuple(&self, id: u8, offset: u16, xmax: u32, is_retracted: bool) -> Bytes {
        self.on_page(id, offset, |header| header.xmax() == xmax || is_retracted)
    }

    /// Reads a tuple on a page. If the page is ahead of the record, `is_same` must hold for the tuple.
    fn on_page(&self, id: u8, offset: u16, is_same: impl Fn(&HeapTupleHeader<'_>) -> bool) -> Bytes {
        let Some(touched) = self.touched(id) else { return Bytes::Unknown(UNREADABLE) };
        let Some(page) = &touched.page else { return Bytes::Unknown(NO_PAGE) };
        let item = page.normal_item(offset).ok();
        let Some((item, header)) = item.and_then(|item| Some((item, HeapTupleHeader::parse(item)?))) else {
            return Bytes::Unknown(if touched.role == Role::Ahead { AHEAD } else { UNREADABLE });
        };
        if touched.role == Role::Ahead && !is_same(&header) {
            return Bytes::Unknown(AHEAD);
        }
        Bytes::Whole(item.to_vec())
    }

    /// Replaces a tuple that is unknown on the page with the record's data for logical decoding.
    fn or_logged(&self, on_page: Bytes, logged: Option<Tuple<'_>>, is_whole: bool) -> Bytes {
        match (on_page, logged) {
            (Bytes::Unknown(_), Some(tuple)) => {
                let bytes = assemble(&tuple, &[], tuple.data, &[]);
                if is_whole { Bytes::Whole(bytes) } else { Bytes::Key(bytes) }
            }
            (on_page, _) => on_page,
        }
    }

    /// The new tuple of an update: from the record and the bytes shared with the old tuple, or from the page.
    fn updated_tuple(&self, update: &Update<'_>, old: &Bytes) -> Bytes {
        let Some(new) = update.new else {
            return self.on_page(0, update.new_offset, |header| header.xmin() == self.record.header.xid);
        };
        let (prefix, suffix) = (usize::from(new.prefix), usize::from(new.suffix));
        if prefix == 0 && suffix == 0 {
            return Bytes::Whole(assemble(&new.tuple, &[], new.tuple.data, &[]));
        }
        let Bytes::Whole(old) = old else {
            let Bytes::Unknown(why) = old else { return Bytes::Unknown(NO_PAGE) };
            return Bytes::Unknown(why);
        };
        join(&new.tuple, prefix, suffix, old).map_or(Bytes::Unknown(UNREADABLE), Bytes::Whole)
    }
}

/// Builds a new tuple that shares its start and end with the old one (`heap_xlog_update`).
fn join(tuple: &Tuple<'_>, prefix: usize, suffix: usize, old: &[u8]) -> Option<Vec<u8>> {
    let attributes = old.get(usize::from(HeapTupleHeader::parse(old)?.hoff())..)?;
    let begin = attributes.get(..prefix)?;
    let end = attributes.get(attributes.len().checked_sub(suffix)?..)?;
    // The record contains the null bitmap before the bytes after the prefix.
    let bitmap =
        if prefix > 0 { usize::from(tuple.header_len).checked_sub(HEAP_TUPLE_HEADER_BYTES)? } else { 0 };
    let (bitmap, middle) = tuple.data.split_at_checked(bitmap)?;
    let begin = [bitmap, begin].concat();
    Some(assemble(tuple, &begin, middle, end))
}

/// Builds a tuple's bytes from the logged fields of its header and the bytes after the header.
fn assemble(tuple: &Tuple<'_>, begin: &[u8], middle: &[u8], end: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAP_TUPLE_HEADER_BYTES + begin.len() + middle.len() + end.len());
    bytes.resize(HEAP_TUPLE_HEADER_BYTES, 0);
    let [a, b] = tuple.infomask2.to_le_bytes();
    let [c, d] = tuple.infomask.to_le_bytes();
    let fields: [u8; LOGGED_FIELDS_BYTES] = [a, b, c, d, tuple.header_len];
    bytes[LOGGED_FIELDS].copy_from_slice(&fields);
    bytes.extend(begin);
    bytes.extend(middle);
    bytes.extend(end);
    bytes
}
