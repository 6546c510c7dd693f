//! Changes of tables: the resource managers Heap and Heap2.
//!
//! Structures: `access/heapam_xlog.h`. Writers: `heapam.c`; since 17 `log_heap_prune_and_freeze` in `pruneheap.c`.
//!
//! Which blocks a record refers to changed within 17 and 18: 17.11 and 18.6 register the visibility map's block where they
//! clear its bits. Nothing here counts blocks; the table's page is block 0 in all of these kinds.

use super::listing::{flags, listing};
use super::standby::{self, Invalidations};
use super::{Fields, Item, Items, Payload, PayloadError};
use crate::lsn::Lsn;
use crate::reader::Reader;
use crate::record::{Record, RelFileLocator};
use crate::usual::UsualRecord;
use crate::version::Major;

type Parsed<'a> = Result<Payload<'a>, PayloadError>;

const INIT_PAGE: u8 = 0x80;
/// Width of a tuple's header without its null bitmap (`SizeofHeapTupleHeader`).
const TUPLE_HEADER: usize = 23;
/// `LogicalRewriteMappingData`
const REWRITE_MAPPING: u64 = 36;

flags! {
    /// What an insert did (`XLH_INSERT_*`).
    InsertFlags(u8) {
        /// The page was all visible.
        all_visible_cleared = 1 << 0;
        /// The last record of one `heap_multi_insert`.
        last_in_multi = 1 << 1;
        /// May be taken back: `INSERT ... ON CONFLICT`.
        is_speculative = 1 << 2;
        /// The tuple is there even if there is an image, for logical decoding.
        contains_new_tuple = 1 << 3;
        /// Into a TOAST table; since 14.
        on_toast_relation = 1 << 4;
        /// The page is all frozen; since 14.
        all_frozen_set = 1 << 5;
    }
}

flags! {
    /// What an update did (`XLH_UPDATE_*`).
    UpdateFlags(u8) {
        /// The old tuple's page was all visible.
        old_all_visible_cleared = 1 << 0;
        /// The new tuple's page was all visible.
        new_all_visible_cleared = 1 << 1;
        /// The old tuple is there, for logical decoding.
        contains_old_tuple = 1 << 2;
        /// The old tuple's key is there, for logical decoding.
        contains_old_key = 1 << 3;
        /// The new tuple is there even if there is an image, for logical decoding.
        contains_new_tuple = 1 << 4;
        /// The new tuple begins as the old one.
        prefix_from_old = 1 << 5;
        /// The new tuple ends as the old one.
        suffix_from_old = 1 << 6;
    }
}

flags! {
    /// What a delete did (`XLH_DELETE_*`).
    DeleteFlags(u8) {
        /// The page was all visible.
        all_visible_cleared = 1 << 0;
        /// The old tuple is there, for logical decoding.
        contains_old_tuple = 1 << 1;
        /// The old tuple's key is there, for logical decoding.
        contains_old_key = 1 << 2;
        /// Takes back a speculative insert.
        is_super = 1 << 3;
        /// An update moved the row to another partition; since 11.
        is_partition_move = 1 << 4;
        /// Logical decoding leaves it out; since 19.
        no_logical = 1 << 5;
    }
}

flags! {
    /// What the tuple's header says of its `xmax` (`XLHL_*`).
    InfoBits(u8) {
        /// A multixact.
        xmax_is_multi = 0x01;
        /// A lock, no update.
        xmax_lock_only = 0x02;
        /// An exclusive lock.
        xmax_excl_lock = 0x04;
        /// A key share lock.
        xmax_keyshr_lock = 0x08;
        /// The key was updated or the tuple deleted.
        keys_updated = 0x10;
    }
}

/// A tuple as records have it: the header's parts that redo can't make up, and what follows the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuple<'a> {
    /// Number of attributes and flags (`t_infomask2`).
    pub infomask2: u16,
    /// Flags (`t_infomask`).
    pub infomask: u16,
    /// Where the attributes start in the whole tuple (`t_hoff`).
    pub header_len: u8,
    /// Null bitmap, padding and attributes; in an update without what is as in the old tuple.
    pub data: &'a [u8],
}

impl Tuple<'_> {
    /// How many attributes the tuple has.
    pub fn attributes(&self) -> u16 {
        self.infomask2 & 0x07FF
    }

    /// Bytes that a tuple with this data takes on its page, its line pointer and the padding after it not counted.
    pub fn len(&self) -> usize {
        TUPLE_HEADER + self.data.len()
    }

    /// Never: a tuple has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

fn tuple<'a>(fields: &mut Fields<'a>) -> Result<Tuple<'a>, PayloadError> {
    fields.new_structure();
    Ok(Tuple {
        infomask2: fields.u16("t_infomask2")?,
        infomask: fields.u16("t_infomask")?,
        header_len: fields.u8("t_hoff")?,
        data: fields.rest(),
    })
}

/// The data of block 0, the table's page.
fn page_data<'a>(record: &Record<'a>, fields: &Fields<'a>) -> Option<Fields<'a>> {
    record.block(0).and_then(|block| fields.of_block(record, block))
}

/// `INSERT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Insert<'a> {
    /// The tuple's line pointer.
    pub offset: u16,
    /// What it did.
    pub flags: InsertFlags,
    /// The tuple.
    pub tuple: Option<Tuple<'a>>,
}

pub(crate) fn insert<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::Insert(Insert {
        offset: fields.u16("offnum")?,
        flags: InsertFlags(fields.u8("flags")?),
        tuple: page_data(record, fields).map(|mut data| tuple(&mut data)).transpose()?,
    }))
}

listing!(Insert<'_>: |it, list| list
    .field("off", it.offset)
    .field("flags", it.flags)
    .some("tuple", it.tuple.map(|tuple| tuple.len())));

/// `DELETE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delete<'a> {
    /// The tuple's new `xmax`: the deleter, or a multixact with it.
    pub xmax: u32,
    /// The tuple's line pointer.
    pub offset: u16,
    /// What `xmax` is.
    pub infobits: InfoBits,
    /// What it did.
    pub flags: DeleteFlags,
    /// The old tuple or its key, for logical decoding.
    pub old: Option<Tuple<'a>>,
}

pub(crate) fn delete<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let xmax = fields.u32("xmax")?;
    let offset = fields.u16("offnum")?;
    let infobits = InfoBits(fields.u8("infobits_set")?);
    let flags = DeleteFlags(fields.u8("flags")?);
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

/// `UPDATE` and `HOT_UPDATE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Update<'a> {
    /// The new tuple is a heap-only tuple.
    pub hot: bool,
    /// The old tuple's new `xmax`.
    pub old_xmax: u32,
    /// The old tuple's line pointer.
    pub old_offset: u16,
    /// What the old tuple's `xmax` is.
    pub old_infobits: InfoBits,
    /// What it did.
    pub flags: UpdateFlags,
    /// The new tuple's `xmax`.
    pub new_xmax: u32,
    /// The new tuple's line pointer.
    pub new_offset: u16,
    /// The new tuple.
    pub new: Option<NewTuple<'a>>,
    /// The old tuple or its key, for logical decoding.
    pub old: Option<Tuple<'a>>,
}

/// The line pointers of the old and the new tuple of an update, without the rest of its fields.
///
/// `record` must be of the kinds `UPDATE` or `HOT_UPDATE`.
#[inline]
pub fn update_offsets(record: &Record<'_>) -> Option<(u16, u16)> {
    update_offsets_of(record.main_data())
}

/// As [`update_offsets`] of a record of the usual layout.
#[inline(always)]
pub fn usual_update_offsets(record: &UsualRecord<'_>) -> Option<(u16, u16)> {
    update_offsets_of(record.main_data())
}

#[inline(always)]
fn update_offsets_of(main_data: &[u8]) -> Option<(u16, u16)> {
    // xl_heap_update: old_xmax u32, old_offnum u16, old_infobits u8, flags u8, new_xmax u32, new_offnum u16.
    let fields: &[u8; 14] = main_data.first_chunk()?;
    Some((u16::from_le_bytes([fields[4], fields[5]]), u16::from_le_bytes([fields[12], fields[13]])))
}

/// The new tuple of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewTuple<'a> {
    /// So many bytes of the attributes come from the old tuple's beginning.
    pub prefix: u16,
    /// So many bytes of the attributes come from the old tuple's end.
    pub suffix: u16,
    /// The tuple without them.
    pub tuple: Tuple<'a>,
}

impl NewTuple<'_> {
    /// Bytes that the tuple takes on its page, its line pointer and the padding after it not counted.
    pub fn len(&self) -> usize {
        self.tuple.len() + usize::from(self.prefix) + usize::from(self.suffix)
    }

    /// Never: a tuple has a header.
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
    let old_xmax = fields.u32("old_xmax")?;
    let old_offset = fields.u16("old_offnum")?;
    let old_infobits = InfoBits(fields.u8("old_infobits_set")?);
    let flags = UpdateFlags(fields.u8("flags")?);
    let new_xmax = fields.u32("new_xmax")?;
    let new_offset = fields.u16("new_offnum")?;
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

/// `TRUNCATE`: for logical decoding only; the files are cut by another record. Since 11.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HeapTruncate<'a> {
    /// OID of the database.
    pub database: u32,
    /// How.
    pub flags: HeapTruncateFlags,
    /// OIDs of the tables.
    pub relations: Items<'a, u32>,
}

flags! {
    /// How tables are truncated (`XLH_TRUNCATE_*`).
    HeapTruncateFlags(u8) {
        /// `CASCADE`
        cascade = 1 << 0;
        /// `RESTART IDENTITY`
        restart_sequences = 1 << 1;
    }
}

pub(crate) fn truncate<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let database = fields.u32("dbId")?;
    let count = fields.u32("nrelids")?;
    let flags = HeapTruncateFlags(fields.u8("flags")?);
    fields.padded_to(4, "xl_heap_truncate")?;
    Ok(Payload::HeapTruncate(HeapTruncate { database, flags, relations: fields.items("relids", count)? }))
}

listing!(HeapTruncate<'_>: |it, list| list
    .field("db", it.database)
    .field("flags", it.flags)
    .field("relids", it.relations));

/// `HEAP_CONFIRM`: a speculative insert stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Confirm {
    /// The tuple's line pointer.
    pub offset: u16,
}

pub(crate) fn confirm<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::Confirm(Confirm { offset: fields.u16("offnum")? }))
}

listing!(Confirm: |it, list| list.field("off", it.offset));

/// `LOCK` and `LOCK_UPDATED`: a tuple was locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The tuple's new `xmax`.
    pub xmax: u32,
    /// The tuple's line pointer.
    pub offset: u16,
    /// What `xmax` is.
    pub infobits: InfoBits,
    /// What it did; since 9.6.
    pub flags: LockFlags,
}

flags! {
    /// What a lock did (`XLH_LOCK_*`).
    LockFlags(u8) {
        /// The page was all frozen.
        all_frozen_cleared = 1 << 0;
    }
}

pub(crate) fn lock<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    lock_of(fields).map(Payload::Lock)
}

pub(crate) fn lock_updated<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    lock_of(fields).map(Payload::LockUpdated)
}

fn lock_of(fields: &mut Fields<'_>) -> Result<Lock, PayloadError> {
    Ok(Lock {
        xmax: fields.u32("xmax")?,
        offset: fields.u16("offnum")?,
        infobits: InfoBits(fields.u8("infobits_set")?),
        flags: if fields.since(Major::V9_6) { LockFlags(fields.u8("flags")?) } else { LockFlags(0) },
    })
}

listing!(Lock: |it, list| list
    .field("xmax", it.xmax)
    .field("off", it.offset)
    .field("infobits", it.infobits)
    .field("flags", it.flags));

/// `INPLACE`: a catalog's tuple was overwritten.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Inplace<'a> {
    /// The tuple's line pointer.
    pub offset: u16,
    /// Messages for the caches of other sessions; since 18.
    pub invalidations: Option<Invalidations<'a>>,
    /// The tuple without its header.
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

/// `MULTI_INSERT`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MultiInsert<'a> {
    /// What it did.
    pub flags: InsertFlags,
    /// How many tuples.
    pub count: u16,
    /// Their line pointers; nothing if the page is made anew: 1, 2, 3 and so on.
    pub offsets: Option<Items<'a, u16>>,
    /// The tuples.
    pub tuples: Option<Tuples<'a>>,
}

pub(crate) fn multi_insert<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let flags = InsertFlags(fields.u8("flags")?);
    let count = fields.u16("ntuples")?;
    let new_page = record.header.info & INIT_PAGE != 0;
    let offsets = if new_page { None } else { Some(fields.items("offsets", count)?) };
    let tuples = match page_data(record, fields) {
        Some(data) => Some(Tuples::checked(data, count)?),
        None => None,
    };
    Ok(Payload::MultiInsert(MultiInsert { flags, count, offsets, tuples }))
}

listing!(MultiInsert<'_>: |it, list| list
    .field("ntuples", it.count)
    .field("flags", it.flags)
    .some("offsets", it.offsets)
    .some("tuples", it.tuples.map(|tuples| format!("{} bytes", tuples.data.left()))));

/// The tuples of a [`MultiInsert`], as an iterator. Copy it to iterate again.
#[derive(Clone, Copy)]
pub struct Tuples<'a> {
    data: Fields<'a>,
    left: u16,
}

impl<'a> Tuples<'a> {
    /// So that what the iterator gives is what is there.
    fn checked(data: Fields<'a>, count: u16) -> Result<Tuples<'a>, PayloadError> {
        let mut walk = Tuples { data, left: count };
        for _ in 0..count {
            walk.read()?;
        }
        walk.data.end("tuples")?;
        Ok(Tuples { data, left: count })
    }

    fn read(&mut self) -> Result<Tuple<'a>, PayloadError> {
        let data_len = self.data.u16("datalen")?;
        Ok(Tuple {
            infomask2: self.data.u16("t_infomask2")?,
            infomask: self.data.u16("t_infomask")?,
            header_len: self.data.u8("t_hoff")?,
            data: self.data.bytes("tuple", data_len)?,
        })
    }
}

impl<'a> Iterator for Tuples<'a> {
    type Item = Tuple<'a>;

    fn next(&mut self) -> Option<Tuple<'a>> {
        self.left = self.left.checked_sub(1)?;
        self.read().ok()
    }
}

impl PartialEq for Tuples<'_> {
    fn eq(&self, other: &Self) -> bool {
        Iterator::eq(*self, *other)
    }
}

impl std::fmt::Debug for Tuples<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// Line pointers or tuples were pruned or frozen: `CLEAN`, since 14 `PRUNE` and `VACUUM`, since 17 `PRUNE_ON_ACCESS`,
/// `PRUNE_VACUUM_SCAN` and `PRUNE_VACUUM_CLEANUP`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prune<'a> {
    /// Standbys cancel queries that need what this or an earlier transaction removed.
    pub conflict_horizon: Option<u32>,
    /// The table is a catalog, for logical decoding; since 16, but not of `VACUUM`.
    pub on_catalog: Option<bool>,
    /// What there is; since 17.
    pub flags: Option<PruneFlags>,
    /// What was pruned and frozen.
    pub items: Option<PruneItems<'a>>,
}

flags! {
    /// What a prune record has (`XLHP_*`); since 17.
    PruneFlags(u16) {
        /// The table is a catalog.
        is_catalog_relation = 1 << 1;
        /// Redo needs a cleanup lock.
        cleanup_lock = 1 << 2;
        /// There is a conflict horizon.
        has_conflict_horizon = 1 << 3;
        /// There are freeze plans.
        has_freeze_plans = 1 << 4;
        /// There are redirected line pointers.
        has_redirections = 1 << 5;
        /// There are dead line pointers.
        has_dead_items = 1 << 6;
        /// There are unused line pointers.
        has_now_unused_items = 1 << 7;
        /// Sets the all-visible bit in the visibility map; since 19.
        sets_all_visible = 1 << 8;
        /// Sets the all-frozen bit in the visibility map; since 19.
        sets_all_frozen = 1 << 9;
    }
}

/// What a record pruned and froze on its page.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PruneItems<'a> {
    /// How tuples were frozen; since 17.
    pub freeze_plans: Items<'a, FreezePlan>,
    /// Line pointers that lead to others now.
    pub redirected: Items<'a, Redirection>,
    /// Line pointers without tuples that indexes still refer to.
    pub dead: Items<'a, u16>,
    /// Line pointers that are free.
    pub unused: Items<'a, u16>,
    /// Line pointers of the frozen tuples, in the order of the plans.
    pub frozen: Items<'a, u16>,
}

/// A line pointer that leads to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirection {
    /// The line pointer.
    pub from: u16,
    /// The one that it leads to.
    pub to: u16,
}

impl Item for Redirection {
    fn width(_: Major) -> usize {
        4
    }

    fn read(reader: &mut Reader<'_>) -> Option<Redirection> {
        Some(Redirection { from: reader.u16()?, to: reader.u16()? })
    }
}

impl std::fmt::Display for Redirection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}->{}", self.from, self.to)
    }
}

/// `CLEAN` and `PRUNE`: redirections, dead line pointers, and what is left of the block's data are free ones.
pub(crate) fn clean<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let conflict_horizon = Some(fields.u32("snapshotConflictHorizon")?);
    let redirected = fields.u16("nredirected")?;
    let dead = fields.u16("ndead")?;
    let on_catalog = if fields.since(Major::V16) { Some(fields.bool("isCatalogRel")?) } else { None };
    let items = match page_data(record, fields) {
        Some(mut data) => Some(PruneItems {
            freeze_plans: Items::EMPTY,
            redirected: data.items("redirected", redirected)?,
            dead: data.items("nowdead", dead)?,
            unused: data.rest_as_items("nowunused")?,
            frozen: Items::EMPTY,
        }),
        None => None,
    };
    Ok(Payload::Prune(Prune { conflict_horizon, on_catalog, flags: None, items }))
}

/// `VACUUM`: free line pointers only.
pub(crate) fn vacuum<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let unused = fields.u16("nunused")?;
    let items = match page_data(record, fields) {
        Some(mut data) => {
            let unused = data.items("nowunused", unused)?;
            data.end("nowunused")?;
            Some(PruneItems {
                freeze_plans: Items::EMPTY,
                redirected: Items::EMPTY,
                dead: Items::EMPTY,
                unused,
                frozen: Items::EMPTY,
            })
        }
        None => None,
    };
    Ok(Payload::Prune(Prune { conflict_horizon: None, on_catalog: None, flags: None, items }))
}

/// `heap_xlog_deserialize_prune_and_freeze` in `heapdesc.c` decides.
pub(crate) fn prune<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let flags = if fields.since(Major::V19) {
        fields.u16("flags")?
    } else {
        // Why it was pruned; the kind says the same.
        fields.u8("reason")?;
        fields.u8("flags")?.into()
    };
    let flags = PruneFlags(flags);
    fields.new_structure();
    let conflict_horizon =
        if flags.has_conflict_horizon() { Some(fields.u32("snapshotConflictHorizon")?) } else { None };
    let items = match page_data(record, fields) {
        Some(data) => Some(prune_items(data, flags)?),
        None => None,
    };
    let on_catalog = Some(flags.is_catalog_relation());
    Ok(Payload::Prune(Prune { conflict_horizon, on_catalog, flags: Some(flags), items }))
}

fn prune_items<'a>(mut data: Fields<'a>, flags: PruneFlags) -> Result<PruneItems<'a>, PayloadError> {
    let mut items = PruneItems {
        freeze_plans: Items::EMPTY,
        redirected: Items::EMPTY,
        dead: Items::EMPTY,
        unused: Items::EMPTY,
        frozen: Items::EMPTY,
    };
    if flags.has_freeze_plans() {
        let count = data.u16("nplans")?;
        data.padded_to(4, "xlhp_freeze_plans")?;
        items.freeze_plans = data.items("plans", count)?;
    }
    if flags.has_redirections() {
        let count = data.u16("nredirected")?;
        items.redirected = data.items("redirected", count)?;
    }
    if flags.has_dead_items() {
        let count = data.u16("ndead")?;
        items.dead = data.items("nowdead", count)?;
    }
    if flags.has_now_unused_items() {
        let count = data.u16("nunused")?;
        items.unused = data.items("nowunused", count)?;
    }
    items.frozen = data.items("frz_offsets", frozen_by(items.freeze_plans))?;
    data.end("frz_offsets")?;
    Ok(items)
}

listing!(Prune<'_>: |it, list| {
    let list = list
        .some("conflict horizon", it.conflict_horizon)
        .some("catalog", it.on_catalog)
        .some("flags", it.flags);
    match it.items {
        Some(items) => list
            .count("plans", items.freeze_plans.len())
            .items("redirected", items.redirected)
            .items("dead", items.dead)
            .items("unused", items.unused)
            .items("frozen", items.frozen),
        None => list,
    }
});

/// How some tuples of a page were frozen; since 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreezePlan {
    /// Their new `xmax`.
    pub xmax: u32,
    /// Their new `t_infomask2`.
    pub infomask2: u16,
    /// Their new `t_infomask`.
    pub infomask: u16,
    /// What becomes of `xvac`, of `VACUUM FULL` before 9.0.
    pub flags: u8,
    /// How many tuples.
    pub tuples: u16,
}

impl Item for FreezePlan {
    fn width(_: Major) -> usize {
        12
    }

    fn read(reader: &mut Reader<'_>) -> Option<FreezePlan> {
        let (xmax, infomask2, infomask) = (reader.u32()?, reader.u16()?, reader.u16()?);
        let [flags, _padding] = reader.array()?;
        Some(FreezePlan { xmax, infomask2, infomask, flags, tuples: reader.u16()? })
    }
}

fn frozen_by(plans: Items<'_, FreezePlan>) -> u64 {
    plans.map(|plan| u64::from(plan.tuples)).sum()
}

/// `FREEZE_PAGE`: tuples were frozen. Until 16.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FreezePage<'a> {
    /// Standbys cancel queries that see this transaction or an earlier one as running.
    pub cutoff_xid: u32,
    /// How many tuples; in 16 how many plans.
    pub count: u16,
    /// The table is a catalog, for logical decoding; in 16.
    pub on_catalog: Option<bool>,
    /// The tuples.
    pub frozen: Option<Frozen<'a>>,
}

/// The tuples of a [`FreezePage`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Frozen<'a> {
    /// Until 15: each for itself.
    Tuples(Items<'a, FrozenTuple>),
    /// In 16.
    Plans {
        /// How they were frozen.
        plans: Items<'a, FreezePlan>,
        /// Their line pointers, in the order of the plans.
        offsets: Items<'a, u16>,
    },
}

/// How a tuple was frozen; until 15.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrozenTuple {
    /// Its new `xmax`.
    pub xmax: u32,
    /// Its line pointer.
    pub offset: u16,
    /// Its new `t_infomask2`.
    pub infomask2: u16,
    /// Its new `t_infomask`.
    pub infomask: u16,
    /// What becomes of `xvac`, of `VACUUM FULL` before 9.0.
    pub flags: u8,
}

impl Item for FrozenTuple {
    fn width(_: Major) -> usize {
        12
    }

    fn read(reader: &mut Reader<'_>) -> Option<FrozenTuple> {
        let (xmax, offset, infomask2) = (reader.u32()?, reader.u16()?, reader.u16()?);
        let infomask = reader.u16()?;
        let [flags, _padding] = reader.array()?;
        Some(FrozenTuple { xmax, offset, infomask2, infomask, flags })
    }
}

pub(crate) fn freeze_page<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let with_plans = fields.since(Major::V16);
    let cutoff_xid = fields.u32(if with_plans { "snapshotConflictHorizon" } else { "cutoff_xid" })?;
    let count = fields.u16(if with_plans { "nplans" } else { "ntuples" })?;
    let on_catalog = if with_plans { Some(fields.bool("isCatalogRel")?) } else { None };
    let frozen = match page_data(record, fields) {
        Some(mut data) => {
            let frozen = if with_plans {
                let plans = data.items("plans", count)?;
                Frozen::Plans { plans, offsets: data.items("offsets", frozen_by(plans))? }
            } else {
                Frozen::Tuples(data.items("tuples", count)?)
            };
            data.end("tuples")?;
            Some(frozen)
        }
        None => None,
    };
    Ok(Payload::FreezePage(FreezePage { cutoff_xid, count, on_catalog, frozen }))
}

listing!(FreezePage<'_>: |it, list| {
    let list = list.field("cutoff xid", it.cutoff_xid).some("catalog", it.on_catalog);
    match it.frozen {
        Some(Frozen::Plans { offsets, .. }) => list.field("nplans", it.count).field("frozen", offsets),
        Some(Frozen::Tuples(tuples)) => list.field("frozen", tuples.len()),
        None => list.field("count", it.count),
    }
});

/// `CLEANUP_INFO`: vacuum is about to remove tuples. Until 13.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanupInfo {
    /// The table.
    pub relation: RelFileLocator,
    /// Standbys cancel queries that need what this or an earlier transaction removed.
    pub latest_removed_xid: u32,
}

pub(crate) fn cleanup_info<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::CleanupInfo(CleanupInfo {
        relation: fields.relation("node")?,
        latest_removed_xid: fields.u32("latestRemovedXid")?,
    }))
}

listing!(CleanupInfo: |it, list| list
    .field("rel", it.relation)
    .field("latest removed xid", it.latest_removed_xid));

/// `VISIBLE`: bits in the visibility map were set. Until 18. Block 0 is the map's, block 1 the table's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visible {
    /// Standbys cancel queries that see this transaction or an earlier one as running.
    pub cutoff_xid: u32,
    /// Which bits; since 9.6.
    pub flags: Option<VisibleFlags>,
}

flags! {
    /// Which bits were set, and where.
    VisibleFlags(u8) {
        /// All tuples are visible to all.
        all_visible = 0x01;
        /// All tuples are frozen.
        all_frozen = 0x02;
        /// The table is a catalog, for logical decoding; since 16.
        on_catalog = 0x04;
    }
}

pub(crate) fn visible<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let cutoff_xid = fields.u32("snapshotConflictHorizon")?;
    let flags = if fields.since(Major::V9_6) { Some(VisibleFlags(fields.u8("flags")?)) } else { None };
    Ok(Payload::Visible(Visible { cutoff_xid, flags }))
}

listing!(Visible: |it, list| list.field("cutoff xid", it.cutoff_xid).some("flags", it.flags));

/// `NEW_CID`: the command ids of a catalog's tuple, for logical decoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewCid {
    /// The toplevel transaction.
    pub top_xid: u32,
    /// The command that made the tuple.
    pub cmin: u32,
    /// The command that removed it.
    pub cmax: u32,
    /// Both in one.
    pub combo_cid: u32,
    /// The catalog.
    pub relation: RelFileLocator,
    /// The tuple's block.
    pub block: u32,
    /// The tuple's line pointer.
    pub offset: u16,
}

pub(crate) fn new_cid<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let (top_xid, cmin, cmax) = (fields.u32("top_xid")?, fields.u32("cmin")?, fields.u32("cmax")?);
    let combo_cid = fields.u32("combocid")?;
    let relation = fields.relation("target_locator")?;
    // ItemPointerData: the block's upper half comes first.
    let (high, low) = (fields.u16("target_tid")?, fields.u16("target_tid")?);
    let block = u32::from(high) << 16 | u32::from(low);
    let offset = fields.u16("target_tid")?;
    Ok(Payload::NewCid(NewCid { top_xid, cmin, cmax, combo_cid, relation, block, offset }))
}

listing!(NewCid: |it, list| list
    .field("rel", it.relation)
    .field("tid", format_args!("{}/{}", it.block, it.offset))
    .field("cmin", it.cmin)
    .field("cmax", it.cmax)
    .field("combo", it.combo_cid));

/// `REWRITE`: where tuples of a catalog went that was rewritten, for logical decoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewrite<'a> {
    /// The transaction whose mapping file this is of.
    pub xid: u32,
    /// OID of the database.
    pub database: u32,
    /// OID of the catalog.
    pub relation: u32,
    /// Where in the mapping file it goes.
    pub offset: i64,
    /// How many mappings.
    pub count: u32,
    /// Where the rewrite started.
    pub start_lsn: Lsn,
    /// The mappings (`LogicalRewriteMappingData`).
    pub mappings: &'a [u8],
}

pub(crate) fn rewrite<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let (xid, database) = (fields.u32("mapped_xid")?, fields.u32("mapped_db")?);
    let relation = fields.u32("mapped_rel")?;
    let offset = fields.i64("offset")?;
    let count = fields.u32("num_mappings")?;
    let start_lsn = fields.lsn("start_lsn")?;
    let mappings = fields.bytes("mappings", u64::from(count) * REWRITE_MAPPING)?;
    Ok(Payload::Rewrite(Rewrite { xid, database, relation, offset, count, start_lsn, mappings }))
}

listing!(Rewrite<'_>: |it, list| list
    .field("xid", it.xid)
    .field("db", it.database)
    .field("rel", it.relation)
    .field("mappings", it.count));
