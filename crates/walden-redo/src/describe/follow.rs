//! Follows one block through the WAL: each record that changed it, and its page at given LSNs.
//!
//! Only this block's page is kept. PostgreSQL's redo routines compute a page from the record and that page
//! alone, so that no other page is needed. Records that do not refer to the block are skipped, except for two
//! kinds: records that create, truncate or drop its file, and records of a table that clear bits of its
//! visibility map without a reference to the map's block.

use std::collections::{BTreeSet, HashMap};

use walden_format::lsn::Lsn;
use walden_format::payload::xact::{TransactionEnd, plain_end};
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::{Fork, Image, Record};
use walden_format::rmgr::{self, Kind, rmid};
use walden_format::version::Major;

use crate::managers::shows_logged_hints;
use crate::page::maps::HEAP_BLOCKS_PER_PAGE;
use crate::page::{Misfit, Page};
use crate::pool::PageBox;
use crate::replay::{Observer, Replay};
use crate::step::{Role, Touched};
use crate::store::{BlockKey, HintSettings, LastRecord, State, Unknown};

/// Maximum number of block numbers that [`Follow::blocks`] keeps, for the error message if the block does not
/// occur.
const MAX_BLOCKS: usize = 100_000;

/// Replays the records of one block.
#[derive(Debug)]
pub struct Follow {
    key: BlockKey,
    replay: Replay,
    base: Option<Base>,
    /// The LSNs of later snapshots; the next snapshot is last.
    moments: Vec<Lsn>,
    /// The pages at the requested LSNs, as far as the WAL was read.
    pub snapshots: Vec<Snapshot>,
    /// The records that changed the block, in the order of the WAL.
    pub history: Vec<Entry>,
    with_history: bool,
    unfinished: HashMap<u32, Vec<usize>>,
    state: PageState,
    last: Option<LastRecord>,
    /// Numbers of the fork's blocks that records refer to; at most 100,000.
    pub blocks: BTreeSet<u32>,
    /// Whether a record refers to the relation, in any fork.
    pub relation_seen: bool,
    from: Option<Lsn>,
    end: Lsn,
    version: Major,
}

/// A block's page in a base backup.
#[derive(Debug)]
pub struct Base {
    /// The redo pointer of the backup's checkpoint, from which the WAL must be replayed.
    pub redo: Lsn,
    /// The page as the backup has it.
    pub page: PageBox,
}

/// Whether the block's page is known, or the reason why it is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// The page is PostgreSQL's, except for hints.
    Exact,
    /// Unknown, for this reason.
    Unknown(Unknown),
    /// Unknown: a record of a resource manager that is not replayed changed it.
    Untracked,
    /// The block does not exist: its file was dropped, created or truncated.
    Gone,
    /// Unknown: segments are missing.
    Gap {
        /// End of the WAL before the gap.
        from: Lsn,
        /// Start of the WAL after the gap.
        to: Lsn,
    },
    /// Unknown: the base backup's page has this LSN, which is later than the requested one.
    Ahead(Lsn),
    /// Unknown: no record has changed it yet.
    Untouched,
}

/// The page at an LSN.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The requested LSN.
    pub at: Lsn,
    /// The page, if it is known.
    pub page: Option<PageBox>,
    /// Whether the page is known.
    pub state: PageState,
    /// The last record that changed the page before `at`.
    pub last: Option<LastRecord>,
    /// LSN up to which the WAL was read.
    pub reached: Lsn,
    /// Whether the WAL ends before `at`.
    pub is_beyond: bool,
}

/// A record that changed the block.
#[derive(Clone, Debug)]
pub struct Entry {
    /// LSN of the record's start.
    pub lsn: Lsn,
    /// LSN of the record's end, which is the page's LSN afterwards.
    pub end: Lsn,
    /// PostgreSQL's major version that wrote the record.
    pub version: Major,
    /// Resource manager and kind of the record.
    pub kind: Kind,
    /// `xl_xid`: the transaction, or 0.
    pub xid: u32,
    /// The end of the transaction, if the WAL contains it.
    pub ended: Option<Ended>,
    /// `xl_tot_len`: bytes of the whole record.
    pub record_bytes: u32,
    /// Bytes of data for this block; `None` if the record does not refer to the block.
    pub data_bytes: Option<u16>,
    /// The record's full-page image of this block.
    pub image: Option<Image>,
    /// Whether the record initializes the page (`BKPBLOCK_WILL_INIT`).
    pub init: bool,
    /// Whether the page of the base backup already has the change.
    pub ahead: bool,
    /// Whether the page is known after the record.
    pub state: PageState,
}

/// The end of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Time of commit or abort.
    pub time: Timestamp,
    /// Whether it committed.
    pub committed: bool,
}

impl Follow {
    /// Follows a block, and lists each record that changes it.
    pub fn history(key: BlockKey) -> Follow {
        Follow { with_history: true, ..Follow::at(key, &[]) }
    }

    /// Follows a block, and takes a snapshot of its page at each of these LSNs: after the last record that
    /// ends at or before the LSN.
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
            unfinished: HashMap::new(),
            state: PageState::Untouched,
            last: None,
            blocks: BTreeSet::new(),
            relation_seen: false,
            from: None,
            end: Lsn::INVALID,
            version: Major::V18,
        }
    }

    /// Uses the page of a base backup from the backup's redo pointer on, unless the WAL has made the page
    /// known by then.
    pub fn with_base(&mut self, base: Base) {
        self.base = Some(base);
    }

    /// Sets the settings that decide whether hint bits are logged.
    pub fn with_hint_settings(&mut self, settings: HintSettings) {
        self.replay.store.hint_logging().note_settings(settings);
    }

    /// Returns the block that is followed.
    pub fn key(&self) -> BlockKey {
        self.key
    }

    /// Returns PostgreSQL's major version that wrote the last record.
    pub fn version(&self) -> Major {
        self.version
    }

    /// Returns whether all snapshots are taken and no history is requested, so that no more records are
    /// needed.
    pub fn is_done(&self) -> bool {
        !self.with_history && self.moments.is_empty()
    }

    /// Replays the next record.
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

    /// Reports that the WAL between two LSNs is missing, which makes the page unknown.
    pub fn gap(&mut self, from: Lsn, to: Lsn) {
        if self.from.is_none() {
            return;
        }
        self.take_base(from);
        // The WAL that the backup needs starts in the gap.
        self.base = self.base.take().filter(|base| base.redo >= to);
        let hints = *self.replay.store.hint_logging();
        self.replay = Replay::default();
        *self.replay.store.hint_logging() = hints;
        if self.state != PageState::Untouched {
            self.state = PageState::Gap { from, to };
        }
    }

    /// Handles the end of the WAL, which was read up to `reached`, and takes the remaining snapshots.
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

    /// Uses the page of the backup once the WAL has reached its redo pointer. If the WAL starts later, it may
    /// lack changes of the page, and the backup's page is not used.
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
        // Truncating a table clears bits on the last page that its visibility map keeps
        // (`visibilitymap_prepare_truncate`).
        let page = if record.header.rmid == rmid::SMGR { self.page().cloned() } else { None };
        self.replay.apply(record, &mut ());
        let is_there = self.replay.store.find(self.key).is_some();
        let is_changed = page.is_some_and(|page| self.page().is_none_or(|now| now.0 != page.0));
        if before && !is_there {
            self.set_state(record, PageState::Gone, None, false);
        } else if is_changed {
            self.set_state(record, PageState::Exact, None, false);
        }
    }

    fn with_blocks(&mut self, record: &Record<'_>) {
        if !self.replay.store.are_hints_logged() && shows_logged_hints(record) {
            self.replay.store.hint_logging().note_shown();
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
                    self.record_of_block(record, index);
                }
            }
        }
        if !names_it && self.may_clear_bits(record) {
            let before = self.page().cloned();
            self.replay.apply(record, &mut KeepOnly { key: self.key, role: None });
            if before.is_some_and(|before| self.page().is_none_or(|now| now.0 != before.0)) {
                let state = self.stored_state();
                self.set_state(record, state, None, false);
            }
        }
    }

    fn record_of_block(&mut self, record: &Record<'_>, index: usize) {
        let mut only = KeepOnly { key: self.key, role: None };
        self.replay.apply(record, &mut only);
        let state = match (self.stored_state(), self.state) {
            // A page that became unknown because of a gap keeps that reason.
            (PageState::Unknown(Unknown::NotSeen), gap @ PageState::Gap { .. }) => gap,
            (state, _) => state,
        };
        self.set_state(record, state, Some(index), only.role == Some(Role::Ahead));
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

    /// Returns whether a table's record may clear bits of its visibility map on the followed page, without a
    /// reference to the map (`visibilitymap_clear` called by `heap_redo`).
    fn may_clear_bits(&self, record: &Record<'_>) -> bool {
        self.key.fork == Fork::VISIBILITY_MAP
            && matches!(record.header.rmid, rmid::HEAP | rmid::HEAP2)
            && record.blocks.iter().any(|block| {
                block.relation == self.key.relation
                    && block.fork == Fork::MAIN
                    && block.block / HEAP_BLOCKS_PER_PAGE == self.key.block
            })
    }

    fn set_state(&mut self, record: &Record<'_>, state: PageState, block: Option<usize>, ahead: bool) {
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

/// Returns the end of a transaction from a commit or abort record, and the record's fields if it has more
/// than the time.
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

/// Drops all other pages of a record: their next records are skipped, so they would be out of date.
struct KeepOnly {
    key: BlockKey,
    role: Option<Role>,
}

impl Observer for KeepOnly {
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
