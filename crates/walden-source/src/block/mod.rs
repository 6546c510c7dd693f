//! The history of one block: every record that changed it, and its page at any LSN.

mod json;
mod key;
mod place;

use std::io;
use std::ops::ControlFlow;

use serde_json::{Value, json};
use walden_format::lsn::Lsn;
use walden_format::record::{Fork, Record};
use walden_format::rmgr::Kind;
use walden_format::stream::Visitor;
use walden_redo::describe::diff::{Change, diff};
use walden_redo::describe::follow::{Base, Entry, Follow, PageState, Snapshot};
use walden_redo::describe::{Description, describe};
use walden_redo::page::checksum;
use walden_redo::{BlockKey, Page, PageBox, Unknown};

pub use self::key::{find_block, parse_file};
use self::key::{label, ranges};
use self::place::BasePage;
use crate::datadir::DataDir;
use crate::inventory::Run;
use crate::names::Names;
use crate::scan::{Damage, ScanOptions, SegmentEnd, scan_in_order};

/// The end of the WAL.
pub const END: Lsn = Lsn(u64::MAX);

/// Why the history of a block cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The base backup belongs to another cluster than the WAL.
    #[error("the base backup belongs to the cluster with the system identifier {base}, the WAL to {log}")]
    OtherCluster {
        /// System identifier of the base backup.
        base: u64,
        /// System identifier of the WAL.
        log: u64,
    },
    /// The base backup cannot be read.
    #[error("{0}")]
    Base(#[from] io::Error),
}

/// Why a page is not known, and a remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// The reason.
    pub text: String,
    /// The remedy, if there is one.
    pub hint: Option<&'static str>,
}

impl Reason {
    fn new(text: String) -> Reason {
        Reason { text, hint: None }
    }
}

/// A block's history, or its pages at LSNs.
#[derive(Debug)]
pub struct BlockHistory {
    key: BlockKey,
    label: String,
    /// The relation as the user named it.
    wanted: String,
    base: Option<DataDir>,
    moments: Vec<Lsn>,
    follow: Follow,
    /// The start LSN of the first run that was read, and the LSN up to which the WAL could be read. If no run
    /// had to be read, the start and end LSN of all runs.
    range: (Lsn, Lsn),
    /// Information about the base backup.
    pub notes: Vec<String>,
    /// Damage at which reading ended.
    pub damage: Option<Damage>,
}

impl BlockHistory {
    /// Replays the records of a block. `wanted` is the relation as the user named it, for error texts. If
    /// `moments` is empty, collects the block's history, otherwise its pages at these LSNs. `done` receives
    /// the number of bytes of each segment that was read.
    ///
    /// # Errors
    /// The base backup is of another cluster, or cannot be read.
    pub fn read(
        runs: &[Run],
        (key, wanted): (BlockKey, &str),
        names: &Names,
        base: Option<DataDir>,
        moments: &[Lsn],
        threads: usize,
        done: impl FnMut(u64),
    ) -> Result<BlockHistory, BlockError> {
        if let (Some(base), Some(run)) = (&base, runs.first())
            && base.control().system_identifier != run.system_id
        {
            return Err(BlockError::OtherCluster {
                base: base.control().system_identifier,
                log: run.system_id,
            });
        }
        let follow = match moments {
            [] => Follow::history(key),
            moments => Follow::at(key, moments),
        };
        let mut view = BlockHistory {
            key,
            label: label(key, names),
            wanted: wanted.to_owned(),
            base,
            moments: moments.to_vec(),
            follow,
            range: (Lsn::INVALID, Lsn::INVALID),
            notes: Vec::new(),
            damage: None,
        };
        let from = view.take_base()?;
        view.range = view.scan(runs, from, threads, done);
        view.check_base();
        Ok(view)
    }

    /// Returns the block with its name and numbers.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the position up to which the WAL could be read.
    pub fn end(&self) -> Lsn {
        self.range.1
    }

    /// Returns the records that changed the block; empty if pages at LSNs were read.
    pub fn records(&self) -> &[Entry] {
        &self.follow.history
    }

    /// Returns the pages at the LSNs that the WAL contains.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.follow.snapshots
    }

    /// Passes the backup's page to the follower. Returns the LSN from which the WAL is needed.
    fn take_base(&mut self) -> io::Result<Option<Lsn>> {
        let Some(base) = &mut self.base else { return Ok(None) };
        let redo = base.redo_from();
        self.follow.with_hint_settings(base.control().hint_settings());
        match place::read(base, self.key)? {
            BasePage::Page(page) => {
                self.follow.with_base(Base { redo, page });
                // A history covers all of the WAL, and an LSN before the backup needs earlier WAL.
                let moments = self.moments.iter();
                let earliest = moments.min().filter(|&&earliest| earliest >= redo);
                return Ok(earliest.map(|_| redo));
            }
            BasePage::Missing => {
                let file = place::file_path(self.key, base.control().blocks_per_segment);
                self.notes.push(format!("the base backup does not have this block (in {file})"));
            }
            BasePage::Damaged => {
                let file = place::file_path(self.key, base.control().blocks_per_segment);
                self.notes.push(format!(
                    "the block's checksum is wrong in the base backup (in {file}): it was half written then, or is damaged"
                ));
            }
        }
        Ok(None)
    }

    /// Replays the segments in order. Returns the start of the first run that was read, and the LSN up to
    /// which the WAL could be read. If nothing had to be read, returns the start and end of all runs.
    fn scan(
        &mut self,
        runs: &[Run],
        from: Option<Lsn>,
        threads: usize,
        mut done: impl FnMut(u64),
    ) -> (Lsn, Lsn) {
        let latest = self.moments.iter().max().copied();
        let mut visitor = Following { follow: &mut self.follow };
        let (mut start, mut reached) = (None, None);
        for (index, run) in runs.iter().enumerate() {
            let run_start = run.segments[0].start;
            // The first segment of a new timeline repeats the old one's records up to the switch.
            let next = runs.get(index + 1).filter(|next| next.timeline > run.timeline);
            let to = next.map(|next| next.segments[0].start);
            if to.is_some_and(|to| to <= run_start) || latest.is_some_and(|latest| latest < run_start) {
                continue;
            }
            let segments_end = run_start.plus(run.segments.len() as u64 * run.segment_size.bytes());
            if from.is_some_and(|from| segments_end <= from) {
                continue;
            }
            if let Some(reached) = reached.filter(|&reached| reached < run_start) {
                visitor.follow.gap(reached, run_start);
            }
            let options = ScanOptions::new(threads).from(from).to(to);
            let (position, ended) = scan_in_order(run, options, &mut visitor, &mut done);
            start.get_or_insert(run_start);
            reached = Some(position);
            if let SegmentEnd::Damaged(damage) = ended {
                self.damage = Some(damage);
                break;
            }
            if visitor.follow.is_done() {
                break;
            }
        }
        self.follow.finish(reached.unwrap_or(Lsn::INVALID));
        let first = runs.first().map_or(Lsn::INVALID, |run| run.segments[0].start);
        // Nothing was read if the WAL starts after all requested LSNs, or ends before the base backup.
        let last = runs.iter().map(Run::end).max().unwrap_or(Lsn::INVALID);
        (start.unwrap_or(first), reached.unwrap_or(last))
    }

    /// Notes why a backup could not be used.
    fn check_base(&mut self) {
        let (start, end) = self.range;
        let Some(base) = &self.base else { return };
        let redo = base.redo_from();
        if start > redo {
            self.notes.push(format!(
                "the base backup needs WAL from {redo} on, this WAL starts at {start}: the backup's page is not used"
            ));
        } else if end < redo {
            self.notes.push(format!(
                "the base backup starts at {redo}, after the end of this WAL at {end}: its page is not used"
            ));
        }
    }

    /// Returns the page of a snapshot.
    ///
    /// # Errors
    /// Why the page is not known.
    pub fn page<'s>(&self, snapshot: &'s Snapshot) -> Result<&'s Page, Reason> {
        let (start, end) = self.range;
        let at = snapshot.at;
        if at != END && (snapshot.is_beyond || at < start) {
            return Err(Reason::new(format!(
                "the WAL that was read is from {start} to {end}, and does not contain {at}"
            )));
        }
        if at == END && self.damage.is_some() {
            return Err(Reason::new(format!(
                "cannot determine the end of the WAL: it cannot be read from {end} on"
            )));
        }
        if let Some(page) = snapshot.page.as_deref() {
            return Ok(page);
        }
        if snapshot.state == PageState::Untouched && !self.follow.blocks.contains(&self.key.block) {
            return Err(self.absent());
        }
        let label = &self.label;
        let why = match snapshot.state {
            PageState::Untouched => "no record before touched it".into(),
            PageState::Gone => "its file was removed, truncated or created again".into(),
            state => state.to_string(),
        };
        let text = format!("{label} is not known at {}: {why}", shown(snapshot));
        let hint = match snapshot.state {
            PageState::Untouched | PageState::Unknown(Unknown::NotSeen) if self.base.is_none() => {
                "give earlier segments, back to an image of the page (the first change after a checkpoint has one), or \
                 a base backup with --base and all segments from its start on"
            }
            PageState::Untouched | PageState::Unknown(Unknown::NotSeen) => {
                "give earlier segments, back to an image of the page or to the base backup's start"
            }
            PageState::Gap { .. } => "give the missing segments, too",
            PageState::Unknown(Unknown::Misfit(_)) => {
                "the segments, or the base backup, may be of another time line or damaged; later pages are known again \
                 after the next image"
            }
            PageState::Unknown(Unknown::DatabaseCopied) => {
                "so far, the page is a copy from the database that was copied"
            }
            PageState::Unknown(Unknown::Lost) => "check the files of the base backup",
            PageState::Untracked => {
                "the page is known again after its next image: see the block's history without --at"
            }
            PageState::Ahead(_) => "ask for a later moment, or take an older base backup",
            PageState::Gone | PageState::Exact => return Err(Reason::new(text)),
        };
        Err(Reason { text, hint: Some(hint) })
    }

    /// Returns which blocks the WAL contains, as no record touches the requested one.
    pub fn absent(&self) -> Reason {
        let follow = &self.follow;
        let fork = match self.key.fork {
            Fork::MAIN => String::new(),
            fork => format!(" of fork {fork}"),
        };
        let file = self.key.relation;
        let wanted = &self.wanted;
        let is_file = *wanted == file.to_string();
        let relation = if is_file { file.to_string() } else { format!("{wanted} ({file})") };
        let latest = self.moments.iter().max().filter(|&&latest| latest != END);
        let up_to = latest.map(|latest| format!(" up to {latest}")).unwrap_or_default();
        if !follow.blocks.is_empty() {
            let blocks = ranges(follow.blocks.iter().copied());
            return Reason::new(format!(
                "no record{up_to} touches block {} of {relation}; blocks{fork} that records touch: {blocks}",
                self.key.block
            ));
        }
        if follow.relation_seen {
            return Reason::new(format!("no record{up_to} touches {relation}{fork}, only other forks of it"));
        }
        let hint = match latest {
            Some(_) => "ask for a later moment: the relation may be created, or get this file, later",
            None => {
                "`walden explain --by relation` lists the files that records touch; a relation gets a new file when it is \
                 rewritten (VACUUM FULL, CLUSTER, REINDEX, TRUNCATE)"
            }
        };
        Reason { text: format!("no record{up_to} touches {relation}"), hint: Some(hint) }
    }

    /// Describes the content of a known page.
    pub fn describe(&self, snapshot: &Snapshot, page: &Page) -> Description {
        describe(page, self.key.fork, self.key.block, last_kind(snapshot))
    }

    /// Returns what changed between the pages of two snapshots.
    ///
    /// # Errors
    /// Why one of the pages is not known.
    pub fn changes(&self, first: &Snapshot, second: &Snapshot) -> Result<Vec<Change>, Reason> {
        let (before, after) = (self.page(first)?, self.page(second)?);
        Ok(diff(&self.describe(first, before), &self.describe(second, after)))
    }

    /// Returns a page as it is stored in a file: with its checksum, if the cluster has checksums or it is not
    /// known. `checksum` decides otherwise.
    pub fn stored_page(&self, page: &Page, checksum: Option<bool>) -> PageBox {
        let mut page = PageBox::from(page);
        let has_none = self.base.as_ref().is_some_and(|base| base.control().data_checksum_version == 0);
        if checksum.unwrap_or(!has_none) {
            checksum::set_checksum(&mut page, self.key.block);
        }
        page
    }

    /// Returns where the block is stored: its file relative to the data directory, the byte offset in that
    /// file, and the number of blocks that precede it in that file.
    pub fn place(&self) -> (String, u64, u32) {
        let file_blocks =
            self.base.as_ref().map_or(place::FILE_BLOCKS, |base| base.control().blocks_per_segment);
        (
            place::file_path(self.key, file_blocks),
            place::offset_in_file(self.key.block, file_blocks),
            self.key.block % file_blocks,
        )
    }

    /// Returns the JSON that identifies the block.
    pub fn document(&self) -> Value {
        json!({
            "relation": self.label,
            "file": self.key.relation.to_string(),
            "fork": self.key.fork.to_string(),
            "block": self.key.block,
        })
    }

    /// Returns the JSON of a page at an LSN.
    pub fn moment(&self, snapshot: &Snapshot) -> Value {
        json::moment(snapshot, self.follow.version())
    }

    /// Returns the JSON of the records that changed the block.
    pub fn entries(&self) -> Value {
        self.follow.history.iter().map(json::entry).collect()
    }
}

/// A visitor that stops when no more records are needed.
struct Following<'a> {
    follow: &'a mut Follow,
}

impl Visitor for Following<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.follow.record(record);
        if self.follow.is_done() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Returns the kind of the record that last changed the page.
fn last_kind(snapshot: &Snapshot) -> Option<Kind> {
    snapshot.last.map(|last| last.kind)
}

/// Returns the LSN of a snapshot as text for messages.
pub fn shown(snapshot: &Snapshot) -> String {
    if snapshot.at == END {
        format!("the end of the WAL, {}", snapshot.reached)
    } else {
        snapshot.at.to_string()
    }
}
