//! Changes of existing tuples: `DELETE`, `UPDATE`, `HOT_UPDATE`, `LOCK`, `HEAP_CONFIRM`, `INPLACE`.

use super::{
    DeleteFlags, InfoBits, LockFlags, Parsed, Tuple, UpdateFlags, XlHeapDelete, XlHeapLock, XlHeapOffset,
    XlHeapUpdate, page_data, tuple,
};
use crate::payload::listing::listing;
use crate::payload::standby::{self, Invalidations};
use crate::payload::{Fields, Payload, PayloadError};
use crate::record::Record;
use crate::simple::SimpleRecord;
use crate::version::Major;

/// `DELETE` (`xl_heap_delete`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delete<'a> {
    /// The tuple's new `xmax`: the deleting transaction, or a multixact that contains this transaction.
    pub xmax: u32,
    /// `offnum`: offset number of the deleted tuple.
    pub offset: u16,
    /// `infobits_set`: bits of `t_infomask` that describe `xmax` (`XLHL_*`).
    pub infobits: InfoBits,
    /// `flags`: `XLH_DELETE_*`.
    pub flags: DeleteFlags,
    /// The old tuple or its key, for logical decoding.
    pub old: Option<Tuple<'a>>,
}

pub(crate) fn delete<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let XlHeapDelete { xmax, offset, infobits, flags } = fields.structure("xl_heap_delete")?;
    let has_old = flags.contains_old_tuple() || flags.contains_old_key();
    let old = if has_old { Some(tuple(fields)?) } else { None };
    Ok(Payload::Delete(Delete { xmax, offset, infobits, flags, old }))
}

listing!(Delete<'_>: |it, list| list
    .field("xmax", it.xmax)
    .field("off", it.offset)
    .field("infobits", it.infobits)
    .field("flags", it.flags)
    .some("old", it.old.map(|tuple| tuple.len())));

/// `UPDATE` and `HOT_UPDATE` (`xl_heap_update`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Update<'a> {
    /// Whether the new tuple is a heap-only tuple.
    pub hot: bool,
    /// `old_xmax`: `xmax` of the old tuple.
    pub old_xmax: u32,
    /// `old_offnum`: offset number of the old tuple.
    pub old_offset: u16,
    /// `old_infobits_set`: bits of `t_infomask` that describe the old tuple's `xmax` (`XLHL_*`).
    pub old_infobits: InfoBits,
    /// `flags`: `XLH_UPDATE_*`.
    pub flags: UpdateFlags,
    /// `new_xmax`: `xmax` of the new tuple, not 0 if it inherits a lock.
    pub new_xmax: u32,
    /// `new_offnum`: offset number of the new tuple.
    pub new_offset: u16,
    /// The new tuple, from block 0's data; `None` if the block has an image.
    pub new: Option<NewTuple<'a>>,
    /// The old tuple or its key, for logical decoding.
    pub old: Option<Tuple<'a>>,
}

/// Returns the line pointers of the old and the new tuple of an update, without decoding its other fields.
///
/// `record` must be an `UPDATE` or a `HOT_UPDATE`.
#[inline]
pub fn update_offsets(record: &Record<'_>) -> Option<(u16, u16)> {
    let update = XlHeapUpdate::read(record.main_data())?;
    Some((update.old_offset, update.new_offset))
}

/// Returns [`update_offsets`] of a record of the simple layout.
#[inline(always)]
pub fn simple_update_offsets(record: &SimpleRecord<'_>) -> Option<(u16, u16)> {
    let update = XlHeapUpdate::read(record.main_data())?;
    Some((update.old_offset, update.new_offset))
}

/// The new tuple of an update. Bytes that the old tuple has too may be omitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewTuple<'a> {
    /// Bytes at the start of the attributes that come from the old tuple.
    pub prefix: u16,
    /// Bytes at the end of the attributes that come from the old tuple.
    pub suffix: u16,
    /// Header and attributes without the omitted prefix and suffix.
    pub tuple: Tuple<'a>,
}

impl NewTuple<'_> {
    /// Bytes of the tuple on its page, excluding its line pointer and the padding after it.
    pub fn len(&self) -> usize {
        self.tuple.len() + usize::from(self.prefix) + usize::from(self.suffix)
    }

    /// Always false: a tuple has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

pub(crate) fn update<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    update_of(record, fields, false)
}

pub(crate) fn hot_update<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    update_of(record, fields, true)
}

fn update_of<'a>(record: &Record<'a>, fields: &mut Fields<'a>, hot: bool) -> Parsed<'a> {
    let XlHeapUpdate { old_xmax, old_offset, old_infobits, flags, new_xmax, new_offset } =
        fields.structure("xl_heap_update")?;
    let has_old = flags.contains_old_tuple() || flags.contains_old_key();
    let old = if has_old { Some(tuple(fields)?) } else { None };
    let new = match page_data(record, fields) {
        Some(mut data) => {
            let prefix = if flags.prefix_from_old() { data.u16("prefixlen")? } else { 0 };
            let suffix = if flags.suffix_from_old() { data.u16("suffixlen")? } else { 0 };
            Some(NewTuple { prefix, suffix, tuple: tuple(&mut data)? })
        }
        None => None,
    };
    Ok(Payload::Update(Update {
        hot,
        old_xmax,
        old_offset,
        old_infobits,
        flags,
        new_xmax,
        new_offset,
        new,
        old,
    }))
}

listing!(Update<'_>: |it, list| list
    .field("old_xmax", it.old_xmax)
    .field("old_off", it.old_offset)
    .field("old_infobits", it.old_infobits)
    .field("flags", it.flags)
    .field("new_xmax", it.new_xmax)
    .field("new_off", it.new_offset)
    .some("tuple", it.new.map(|tuple| tuple.len()))
    .count("prefix", it.new.map_or(0, |tuple| tuple.prefix.into()))
    .count("suffix", it.new.map_or(0, |tuple| tuple.suffix.into()))
    .some("old", it.old.map(|tuple| tuple.len())));

/// `CONFIRM`: a speculative insertion is confirmed (`xl_heap_confirm`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Confirm {
    /// `offnum`: offset number of the tuple.
    pub offset: u16,
}

pub(crate) fn confirm<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let XlHeapOffset { offset } = fields.structure("xl_heap_confirm")?;
    Ok(Payload::Confirm(Confirm { offset }))
}

listing!(Confirm: |it, list| list.field("off", it.offset));

/// `LOCK` and `LOCK_UPDATED`: a tuple was locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// `xmax`: the tuple's new `xmax`, which may be a multixact.
    pub xmax: u32,
    /// `offnum`: offset number of the tuple.
    pub offset: u16,
    /// `infobits_set`: bits of `t_infomask` that describe `xmax` (`XLHL_*`).
    pub infobits: InfoBits,
    /// `flags`: `XLH_LOCK_*`; since 9.6.
    pub flags: LockFlags,
}

pub(crate) fn lock<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    lock_of(fields).map(Payload::Lock)
}

pub(crate) fn lock_updated<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    lock_of(fields).map(Payload::LockUpdated)
}

fn lock_of(fields: &mut Fields<'_>) -> Result<Lock, PayloadError> {
    let XlHeapLock { xmax, offset, infobits } = fields.structure("xl_heap_lock")?;
    let flags = if fields.since(Major::V9_6) { LockFlags(fields.u8("flags")?) } else { LockFlags(0) };
    Ok(Lock { xmax, offset, infobits, flags })
}

listing!(Lock: |it, list| list
    .field("xmax", it.xmax)
    .field("off", it.offset)
    .field("infobits", it.infobits)
    .field("flags", it.flags));

/// `INPLACE`: a catalog tuple was overwritten in place (`xl_heap_inplace`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Inplace<'a> {
    /// `offnum`: offset number of the tuple.
    pub offset: u16,
    /// Messages for the caches of other sessions; since 18.
    pub invalidations: Option<Invalidations<'a>>,
    /// The new attributes, without tuple header, from block 0's data.
    pub tuple: Option<&'a [u8]>,
}

pub(crate) fn inplace<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let offset = fields.u16("offnum")?;
    let invalidations = if fields.since(Major::V18) { Some(standby::message_list(fields)?) } else { None };
    let tuple = page_data(record, fields).map(|mut data| data.rest());
    Ok(Payload::Inplace(Inplace { offset, invalidations, tuple }))
}

listing!(Inplace<'_>: |it, list| list
    .field("off", it.offset)
    .count("invalidations", it.invalidations.map_or(0, |list| list.messages.len()))
    .some("tuple", it.tuple.map(<[u8]>::len)));
