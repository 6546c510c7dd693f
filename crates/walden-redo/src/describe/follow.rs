//! One block through the log: each record that touched it, and its page at chosen moments.
//!
//! Only that block's page is kept. PostgreSQL's redo routines change a page by the record and the page alone, so no other
//! page has to be known; the records that don't touch the block are passed over, but for those that make, cut or remove
//! its file, and those of a table that clear bits of its visibility map without naming it.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use walden_format::lsn::Lsn;
use walden_format::payload::xact::{TransactionEnd, plain_end};
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::{Fork, Image, Record};
use walden_format::rmgr::{self, Kind, info, rmid};
use walden_format::version::Major;

use crate::page::maps::HEAP_BLOCKS_PER_PAGE;
use crate::page::{Misfit, Page};
use crate::pool::PageBox;
use crate::replay::{Observer, Replay};
use crate::step::{Role, Touched};
use crate::store::{BlockKey, LastRecord, State, Unknown};

/// Blocks of the relation that are remembered, to say which there are where the wanted one is not.
const MAX_BLOCKS: usize = 100_000;

/// Follows a block.
#[derive(Debug)]
pub struct Follow {
    key: BlockKey,
    replay: Replay,
    base: Option<Base>,
    /// The moments still to come, the next one last.
    moments: Vec<Lsn>,
    /// What was asked for: each moment's page, as far as they have come.
    pub snapshots: Vec<Snapshot>,
    /// The records that touched the block, in the log's order.
    pub history: Vec<Entry>,
    with_history: bool,
    unfinished: FxHashMap<u32, Vec<usize>>,
    state: PageState,
    last: Option<LastRecord>,
    /// The blocks of the same fork that records touch, not more than some.
    pub blocks: BTreeSet<u32>,
    /// A record was seen that touches the relation, in any of its forks.
    pub relation_seen: bool,
    from: Option<Lsn>,
    end: Lsn,
    version: Major,
}

/// A block's page in a base backup.
#[derive(Debug)]
pub struct Base {
    /// Where the log has to be replayed from for the backup (its redo pointer).
    pub redo: Lsn,
    /// The page.
    pub page: PageBox,
}

/// What is known of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// All of it.
    Exact,
    /// Not.
    Unknown(Unknown),
    /// Not: a record of a resource manager that cannot be replayed changed it.
    Untracked,
    /// There is none: its file was removed, initialized or cut.
    Gone,
    /// Not: the log has a gap.
    Gap {
        /// The log before it ends here.
        from: Lsn,
        /// And goes on here.
        to: Lsn,
    },
    /// Not: the base backup's page is of a later moment; its LSN.
    Ahead(Lsn),
    /// Not yet: no record touched it.
    Untouched,
}

/// The page at a moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The moment.
    pub at: Lsn,
    /// The page, if it is known.
    pub page: Option<PageBox>,
    /// What is known of it.
    pub state: PageState,
    /// The last record before that touched it.
    pub last: Option<LastRecord>,
    /// How far the log was read by then.
    pub reached: Lsn,
    /// The log at hand ends before the moment.
    pub is_beyond: bool,
}

/// A record that touched the block.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it starts.
    pub lsn: Lsn,
    /// Where it ends: the page's LSN afterwards.
    pub end: Lsn,
    /// Who wrote it.
    pub version: Major,
    /// What it is.
    pub kind: Kind,
    /// The transaction, or 0.
    pub xid: u32,
    /// How the transaction ended, if the log says so later.
    pub ended: Option<Ended>,
    /// Bytes of the whole record.
    pub record_bytes: u32,
    /// Bytes of its data for this block; nothing if it does not name the block.
    pub data_bytes: Option<u16>,
    /// Its image of this block.
    pub image: Option<Image>,
    /// It makes the page anew.
    pub init: bool,
    /// The page of the base backup has this change already.
    pub ahead: bool,
    /// What is known of the page afterwards.
    pub state: PageState,
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// When.
    pub time: Timestamp,
    /// It was committed.
    pub committed: bool,
}

impl Follow {
    /// Follows a block, and notes each record that touches it.
    pub fn history(key: BlockKey) -> Follow {
        Follow { with_history: true, ..Follow::at(key, &[]) }
    }

    /// Follows a block to the moments given, and keeps its page of each: as it was after the last record that ends at the
    /// moment or before.
    pub fn at(key: BlockKey, moments: &[Lsn]) -> Follow {
        let mut moments = moments.to_vec();
        moments.sort_unstable();
        moments.reverse();
        Follow {
            key,
            replay: Replay::default(),
            base: None,
            moments,
            snapshots: Vec::new(),
            history: Vec::new(),
            with_history: false,
            unfinished: FxHashMap::default(),
            state: PageState::Untouched,
            last: None,
            blocks: BTreeSet::new(),
            relation_seen: false,
            from: None,
            end: Lsn::INVALID,
            version: Major::V18,
        }
    }

    /// Takes the page of a base backup when the log comes to where the backup has to be replayed from; a page that is
    /// known by then from the log itself is kept.
    pub fn with_base(&mut self, base: Base) {
        self.base = Some(base);
    }

    /// Hints are logged: the server has checksums or `wal_log_hints`.
    pub fn log_hints(&mut self) {
        self.replay.store.log_hints();
    }

    /// The block.
    pub fn key(&self) -> BlockKey {
        self.key
    }

    /// Who wrote the log.
    pub fn version(&self) -> Major {
        self.version
    }

    /// Whether all moments have come.
    pub fn is_done(&self) -> bool {
        !self.with_history && self.moments.is_empty()
    }

    /// Replays a record.
    pub fn record(&mut self, record: &Record<'_>) {
        self.from.get_or_insert(record.lsn);
        self.version = record.version;
        while self.moments.last().is_some_and(|&at| record.end > at) {
            self.snapshot(false);
        }
        if self.is_done() {
            return;
        }
        self.take_base(record.lsn);
        if record.blocks.is_empty() {
            self.without_blocks(record);
        } else {
            self.with_blocks(record);
        }
        self.end = record.end;
    }

    /// The log has no records between two positions: what is known of the page is out of date.
    pub fn gap(&mut self, from: Lsn, to: Lsn) {
        if self.from.is_none() {
            return;
        }
        self.take_base(from);
        // What the backup lacks begins in the gap.
        self.base = self.base.take().filter(|base| base.redo >= to);
        let hints_are_logged = self.replay.store.are_hints_logged();
        self.replay = Replay::default();
        if hints_are_logged {
            self.log_hints();
        }
        if self.state != PageState::Untouched {
            self.state = PageState::Gap { from, to };
        }
    }

    /// The log is over; `reached` is how far it could be read.
    pub fn finish(&mut self, reached: Lsn) {
        self.end = self.end.max(reached);
        while let Some(&at) = self.moments.last() {
            self.snapshot(at > self.end);
        }
    }

    fn snapshot(&mut self, is_beyond: bool) {
        let Some(at) = self.moments.pop() else { return };
        self.take_base(at.min(self.end));
        let mut page = self.page().map(PageBox::from);
        let (mut state, last, reached) = (self.state, self.last, self.end);
        if let Some(lsn) = page.as_ref().map(|page| page.lsn()).filter(|&lsn| lsn > at) {
            (page, state) = (None, PageState::Ahead(lsn));
        }
        self.snapshots.push(Snapshot { at, page, state, last, reached, is_beyond });
    }

    fn page(&mut self) -> Option<&Page> {
        let slot = self.replay.store.find(self.key)?;
        self.replay.store.page(slot)
    }

    /// A log that starts later than the backup needs may lack changes of the page.
    fn take_base(&mut self, position: Lsn) {
        let Some(base) = self.base.take_if(|base| base.redo <= position) else { return };
        let is_complete = self.from.is_some_and(|from| from <= base.redo);
        if !is_complete || self.page().is_some() {
            return;
        }
        let slot = self.replay.store.slot(self.key);
        let kind = rmgr::kind(Major::V18, rmid::XLOG, 0);
        self.replay.store.put(slot, base.page, LastRecord { lsn: base.redo, kind });
        self.state = PageState::Exact;
    }

    fn without_blocks(&mut self, record: &Record<'_>) {
        if record.header.rmid == rmid::XACT {
            self.end_transaction(record);
        }
        let before = self.replay.store.find(self.key).is_some();
        // Cutting a table changes the last page that its visibility map keeps.
        let page = if record.header.rmid == rmid::SMGR { self.page().cloned() } else { None };
        self.replay.apply(record, &mut ());
        let is_there = self.replay.store.find(self.key).is_some();
        let is_changed = page.is_some_and(|page| self.page().is_none_or(|now| now.0 != page.0));
        if before && !is_there {
            self.note(record, PageState::Gone, None, false);
        } else if is_changed {
            self.note(record, PageState::Exact, None, false);
        }
    }

    fn with_blocks(&mut self, record: &Record<'_>) {
        if !self.replay.store.are_hints_logged() && shows_logged_hints(record) {
            self.replay.store.log_hints();
        }
        let mut names_it = false;
        for (index, block) in record.blocks.iter().enumerate() {
            if block.relation != self.key.relation {
                continue;
            }
            self.relation_seen = true;
            if block.fork == self.key.fork {
                if self.blocks.len() < MAX_BLOCKS {
                    self.blocks.insert(block.block);
                }
                if block.block == self.key.block {
                    names_it = true;
                    self.named(record, index);
                }
            }
        }
        if !names_it && self.may_clear_bits(record) {
            let before = self.page().cloned();
            self.replay.apply(record, &mut Only { key: self.key, role: None });
            if before.is_some_and(|before| self.page().is_none_or(|now| now.0 != before.0)) {
                let state = self.stored_state();
                self.note(record, state, None, false);
            }
        }
    }

    fn named(&mut self, record: &Record<'_>, index: usize) {
        let mut only = Only { key: self.key, role: None };
        self.replay.apply(record, &mut only);
        let state = match (self.stored_state(), self.state) {
            // A page that was lost in a gap stays so.
            (PageState::Unknown(Unknown::NotSeen), gap @ PageState::Gap { .. }) => gap,
            (state, _) => state,
        };
        self.note(record, state, Some(index), only.role == Some(Role::Ahead));
    }

    fn stored_state(&mut self) -> PageState {
        let slot = self.replay.store.find(self.key);
        match slot.map(|slot| self.replay.store.state(slot)) {
            Some(State::Exact) => PageState::Exact,
            Some(State::Unknown(unknown)) => PageState::Unknown(unknown),
            Some(State::Untracked) => PageState::Untracked,
            None => PageState::Gone,
        }
    }

    /// Whether a table's record may clear bits of its visibility map on the wanted page, without referring to the map
    /// (`visibilitymap_clear` called by `heap_redo`).
    fn may_clear_bits(&self, record: &Record<'_>) -> bool {
        self.key.fork == Fork::VISIBILITY_MAP
            && matches!(record.header.rmid, rmid::HEAP | rmid::HEAP2)
            && record.blocks.iter().any(|block| {
                block.relation == self.key.relation
                    && block.fork == Fork::MAIN
                    && block.block / HEAP_BLOCKS_PER_PAGE == self.key.block
            })
    }

    fn note(&mut self, record: &Record<'_>, state: PageState, block: Option<usize>, ahead: bool) {
        let kind = rmgr::kind(record.version, record.header.rmid, record.header.info);
        self.state = state;
        self.last = Some(LastRecord { lsn: record.lsn, kind });
        if !self.with_history {
            return;
        }
        let xid = record.header.xid;
        let ends = record.header.rmid == rmid::XACT;
        if xid != 0 && !ends {
            self.unfinished.entry(xid).or_default().push(self.history.len());
        }
        let block = block.and_then(|index| record.blocks.get(index));
        self.history.push(Entry {
            lsn: record.lsn,
            end: record.end,
            version: record.version,
            kind,
            xid,
            ended: if ends { transaction_end(record).map(|(ended, _)| ended) } else { None },
            record_bytes: record.header.total_len,
            data_bytes: block.map(|block| block.data_len),
            image: block.and_then(|block| block.image),
            init: block.is_some_and(|block| block.will_init),
            ahead,
            state,
        });
    }

    fn end_transaction(&mut self, record: &Record<'_>) {
        if self.unfinished.is_empty() {
            return;
        }
        let Some((ended, end)) = transaction_end(record) else { return };
        let mut settle = |xid: u32| {
            for index in self.unfinished.remove(&xid).unwrap_or_default() {
                self.history[index].ended = Some(ended);
            }
        };
        settle(record.header.xid);
        if let Some(end) = end {
            end.twophase_xid.into_iter().for_each(&mut settle);
            end.subxacts.into_iter().for_each(&mut settle);
        }
    }
}

/// Whether a record is there only because hints are logged, with checksums or `wal_log_hints`: then setting a page's bit
/// for all visible changes its LSN.
fn shows_logged_hints(record: &Record<'_>) -> bool {
    match (record.header.rmid, record.rmgr_info()) {
        (rmid::XLOG, info::xlog::FPI_FOR_HINT) => true,
        // log_heap_visible leaves the image of the table's block out otherwise.
        (rmid::HEAP2, info::heap2::VISIBLE) => {
            record.block(1).is_some_and(|heap| heap.image.is_some_and(|image| image.apply))
        }
        _ => false,
    }
}

/// How a record ends a transaction, with the record's fields if it has more than the time.
fn transaction_end<'a>(record: &Record<'a>) -> Option<(Ended, Option<TransactionEnd<'a>>)> {
    if let Some((committed, time)) = plain_end(record) {
        return Some((Ended { time, committed }, None));
    }
    match payload::parse(record).ok()? {
        Payload::Commit(end) => Some((Ended { time: end.time, committed: true }, Some(end))),
        Payload::Abort(end) => Some((Ended { time: end.time, committed: false }, Some(end))),
        _ => None,
    }
}

/// Keeps one page: another one would be out of date when its next record is passed over.
struct Only {
    key: BlockKey,
    role: Option<Role>,
}

impl Observer for Only {
    fn after(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        for (block, touched) in record.blocks.iter().zip(touched) {
            if (block.relation, block.fork, block.block) == (self.key.relation, self.key.fork, self.key.block)
            {
                self.role = Some(touched.role);
            } else {
                touched.page = None;
            }
        }
    }
}

impl std::fmt::Display for PageState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PageState::Exact => f.write_str("exact"),
            PageState::Unknown(Unknown::Misfit(Misfit(what))) => {
                write!(f, "unknown: a record did not fit it: {what}")
            }
            PageState::Unknown(unknown) => write!(f, "unknown: {unknown}"),
            PageState::Untracked => f.write_str("untracked"),
            PageState::Gone => f.write_str("gone"),
            PageState::Gap { from, to } => write!(f, "unknown: the log from {from} to {to} is missing"),
            PageState::Ahead(lsn) => write!(f, "unknown: the base backup's page is newer, of {lsn}"),
            PageState::Untouched => f.write_str("not touched yet"),
        }
    }
}
