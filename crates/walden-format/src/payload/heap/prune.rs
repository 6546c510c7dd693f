//! Line pointers that were freed or redirected, tuples that were frozen, bits of the visibility map that were
//! set.

use super::{Parsed, page_data};
use crate::payload::layout::layout;
use crate::payload::listing::{flags, listing};
use crate::payload::{Fields, Item, Items, Payload, PayloadError, push_offset_numbers};
use crate::reader::Reader;
use crate::record::{Record, RelFileLocator};
use crate::version::Major;

/// Line pointers or tuples were pruned or frozen: `CLEAN`, since 14 `PRUNE` and `VACUUM`, since 17
/// `PRUNE_ON_ACCESS`, `PRUNE_VACUUM_SCAN` and `PRUNE_VACUUM_CLEANUP`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prune<'a> {
    /// Standbys cancel queries that need tuples removed by this or an earlier transaction.
    pub conflict_horizon: Option<u32>,
    /// Whether the table is a catalog, for logical decoding; since 16, except in `VACUUM`.
    pub on_catalog: Option<bool>,
    /// `flags`: `XLHP_*`; since 17.
    pub flags: Option<PruneFlags>,
    /// Pruned line pointers and freeze plans, from block 0's data; `None` if the block has an image.
    pub items: Option<PruneItems<'a>>,
}

flags! {
    /// The parts and flags of a prune record (`XLHP_*`); since 17.
    PruneFlags(u16) {
        /// The table is a catalog.
        is_catalog_relation IS_CATALOG_RELATION = 1 << 1;
        /// Redo needs a cleanup lock.
        cleanup_lock CLEANUP_LOCK = 1 << 2;
        /// There is a conflict horizon.
        has_conflict_horizon HAS_CONFLICT_HORIZON = 1 << 3;
        /// There are freeze plans.
        has_freeze_plans HAS_FREEZE_PLANS = 1 << 4;
        /// There are redirected line pointers.
        has_redirections HAS_REDIRECTIONS = 1 << 5;
        /// There are dead line pointers.
        has_dead_items HAS_DEAD_ITEMS = 1 << 6;
        /// There are unused line pointers.
        has_now_unused_items HAS_NOW_UNUSED_ITEMS = 1 << 7;
        /// Sets the all-visible bit in the visibility map; since 19.
        sets_all_visible SETS_ALL_VISIBLE = 1 << 8;
        /// Sets the all-frozen bit in the visibility map; since 19.
        sets_all_frozen SETS_ALL_FROZEN = 1 << 9;
    }
}

impl PruneFlags {
    /// The offset of the conflict horizon in the main data, if the flags include it (`SizeOfHeapPrune`).
    pub const CONFLICT_HORIZON_AT: usize = 2;
    /// The flags that announce lists.
    const LISTS: u16 = PruneFlags::HAS_FREEZE_PLANS
        | PruneFlags::HAS_REDIRECTIONS
        | PruneFlags::HAS_DEAD_ITEMS
        | PruneFlags::HAS_NOW_UNUSED_ITEMS;

    /// Whether the record has any list. A record without lists, possible since 19, only sets bits of the
    /// visibility map and marks the page as all visible.
    #[inline]
    pub fn has_lists(self) -> bool {
        self.0 & PruneFlags::LISTS != 0
    }
}

/// The line pointers and tuples that a record pruned or froze on its page.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PruneItems<'a> {
    /// Plans by which tuples were frozen; since 17.
    pub freeze_plans: Items<'a, FreezePlan>,
    /// Line pointers that now redirect to others.
    pub redirected: Items<'a, Redirection>,
    /// Line pointers without tuples that indexes still reference.
    pub dead: Items<'a, u16>,
    /// Offset numbers of line pointers that became `LP_UNUSED`.
    pub unused: Items<'a, u16>,
    /// Line pointers of the frozen tuples, in the order of the plans.
    pub frozen: Items<'a, u16>,
}

/// The lists of a prune record to be written; reading them yields the same lists as [`PruneItems`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PruneLists<'a> {
    /// Plans by which tuples are frozen.
    pub freeze_plans: &'a [FreezePlan],
    /// Line pointers that now redirect to others.
    pub redirected: &'a [Redirection],
    /// Line pointers without tuples that indexes still reference.
    pub dead: &'a [u16],
    /// Offset numbers of line pointers that became `LP_UNUSED`.
    pub unused: &'a [u16],
    /// Line pointers of the frozen tuples, in the order of the plans.
    pub frozen: &'a [u16],
}

impl PruneLists<'_> {
    /// Returns block 0's data of `CLEAN`, `PRUNE` and heap's `VACUUM` until 16, and of a `FREEZE_PAGE` of 16:
    /// only the lists, whose lengths are in the main data.
    pub fn lists_alone(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.push_freeze_plans(&mut out);
        self.push_redirected(&mut out);
        push_offset_numbers(&mut out, self.dead.iter().chain(self.unused).chain(self.frozen).copied());
        out
    }

    /// Returns block 0's data since 17: each nonempty list after its length (`xlhp_freeze_plans`,
    /// `xlhp_prune_items`). The length of `frozen` follows from the plans.
    pub fn lists_with_lengths(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let push_length = |out: &mut Vec<u8>, length: usize| out.extend((length as u16).to_le_bytes());
        if !self.freeze_plans.is_empty() {
            push_length(&mut out, self.freeze_plans.len());
            // Plans are aligned to 4 bytes.
            out.extend([0; 2]);
            self.push_freeze_plans(&mut out);
        }
        if !self.redirected.is_empty() {
            push_length(&mut out, self.redirected.len());
            self.push_redirected(&mut out);
        }
        for list in [self.dead, self.unused] {
            if !list.is_empty() {
                push_length(&mut out, list.len());
                push_offset_numbers(&mut out, list.iter().copied());
            }
        }
        push_offset_numbers(&mut out, self.frozen.iter().copied());
        out
    }

    fn push_freeze_plans(&self, out: &mut Vec<u8>) {
        out.extend(self.freeze_plans.iter().flat_map(FreezePlan::to_bytes));
    }

    fn push_redirected(&self, out: &mut Vec<u8>) {
        push_offset_numbers(
            out,
            self.redirected.iter().flat_map(|redirected| [redirected.from, redirected.to]),
        );
    }
}

/// A line pointer that redirects to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirection {
    /// Offset number of the line pointer that became `LP_REDIRECT`.
    pub from: u16,
    /// Offset number to which this line pointer now redirects.
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

/// Reads `CLEAN` and `PRUNE`: redirections, then dead line pointers; the rest of the block's data is unused
/// line pointers.
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

/// Reads `VACUUM`: only unused line pointers.
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

/// Reads a prune record since 17, see `heap_xlog_deserialize_prune_and_freeze` in `heapdesc.c`.
pub(crate) fn prune<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let flags = if fields.since(Major::V19) {
        fields.u16("flags")?
    } else {
        // The reason for pruning, which the kind of record already determines.
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

flags! {
    /// The effect of freezing on `t_xvac`, which `VACUUM FULL` set before 9.0 (`XLH_FREEZE_XVAC`,
    /// `XLH_INVALID_XVAC`).
    FreezeFlags(u8) {
        /// `t_xvac` becomes `FrozenTransactionId`.
        freezes_xvac FREEZE_XVAC = 0x02;
        /// `t_xvac` becomes `InvalidTransactionId`.
        invalidates_xvac INVALID_XVAC = 0x04;
    }
}

layout! {
    /// `xlhp_freeze_plan`, in 16 `xl_heap_freeze_plan`: how some tuples of a page were frozen. Since 16.
    FreezePlan[12] {
        /// The new `xmax` of the tuples.
        0 xmax: u32,
        /// The new `t_infomask2` of the tuples.
        4 infomask2: u16,
        /// The new `t_infomask` of the tuples.
        6 infomask: u16,
        /// The change of `t_xvac`.
        8 flags: FreezeFlags,
        /// Number of tuples to which the plan applies.
        10 tuples: u16,
    }
}

impl Item for FreezePlan {
    fn width(_: Major) -> usize {
        FreezePlan::WIDTH
    }

    fn read(reader: &mut Reader<'_>) -> Option<FreezePlan> {
        reader.array().map(|bytes| FreezePlan::from_bytes(&bytes))
    }
}

fn frozen_by(plans: Items<'_, FreezePlan>) -> u64 {
    plans.map(|plan| u64::from(plan.tuples)).sum()
}

/// `FREEZE_PAGE`: tuples were frozen (`xl_heap_freeze_page`). Until 16.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FreezePage<'a> {
    /// Standbys cancel queries that see this transaction or an earlier one as running.
    pub cutoff_xid: u32,
    /// Number of tuples; in 16, number of plans.
    pub count: u16,
    /// Whether the table is a catalog, for logical decoding; in 16.
    pub on_catalog: Option<bool>,
    /// The frozen tuples, from block 0's data; `None` if the block has an image.
    pub frozen: Option<Frozen<'a>>,
}

/// The tuples of a [`FreezePage`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Frozen<'a> {
    /// Until 15: each tuple individually.
    Tuples(Items<'a, FrozenTuple>),
    /// In 16: plans that apply to several tuples.
    Plans {
        /// The freeze plans.
        plans: Items<'a, FreezePlan>,
        /// Offset numbers of the frozen tuples, in the order of the plans.
        offsets: Items<'a, u16>,
    },
}

layout! {
    /// A tuple's header after freezing (`xl_heap_freeze_tuple`); until 15.
    FrozenTuple[12] {
        /// `xmax`: the tuple's new `xmax`.
        0 xmax: u32,
        /// `offset`: offset number of the tuple.
        4 offset: u16,
        /// `t_infomask2`: its new value.
        6 infomask2: u16,
        /// `t_infomask`: its new value.
        8 infomask: u16,
        /// The change of `t_xvac`.
        10 flags: FreezeFlags,
    }
}

impl Item for FrozenTuple {
    fn width(_: Major) -> usize {
        FrozenTuple::WIDTH
    }

    fn read(reader: &mut Reader<'_>) -> Option<FrozenTuple> {
        reader.array().map(|bytes| FrozenTuple::from_bytes(&bytes))
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
    /// Standbys cancel queries that need tuples removed by this or an earlier transaction.
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

/// `VISIBLE`: bits in the visibility map were set. Until 18. Block 0 belongs to the map, block 1 to the
/// table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visible {
    /// Standbys cancel queries that see this transaction or an earlier one as running.
    pub cutoff_xid: u32,
    /// The bits that were set; since 9.6.
    pub flags: Option<VisibleFlags>,
}

flags! {
    /// The bits that were set, and the type of table.
    VisibleFlags(u8) {
        /// All tuples are visible to all.
        all_visible ALL_VISIBLE = 0x01;
        /// All tuples are frozen.
        all_frozen ALL_FROZEN = 0x02;
        /// Whether the table is a catalog, for logical decoding; since 16.
        on_catalog ON_CATALOG = 0x04;
    }
}

pub(crate) fn visible<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let cutoff_xid = fields.u32("snapshotConflictHorizon")?;
    let flags = if fields.since(Major::V9_6) { Some(VisibleFlags(fields.u8("flags")?)) } else { None };
    Ok(Payload::Visible(Visible { cutoff_xid, flags }))
}

listing!(Visible: |it, list| list.field("cutoff xid", it.cutoff_xid).some("flags", it.flags));
