//! The WAL of a window of time, summed up and with names: a line of `walden watch --format json`, and the
//! content of the tables and views of `walden watch`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::time::SystemTime;

use regex::Regex;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Map, Value};
use walden_explain::document::{CauseDocument, Document, images_by_cause};
use walden_explain::group::{Cell, Dimension, Owner};
use walden_explain::tally::{Bucket, ImageCause, Tally};
use walden_explain::{Explanation, Label, Labels, Part};
use walden_format::record::Fork;
use walden_format::rmgr::Kind;
use walden_source::counted;

use crate::archiver::Archiver;
use crate::forecast::Forecast;
use crate::server::Slot;
use crate::watch::{CAUSES, Note, Watch};
use crate::windows::Window;

/// Version of the JSON format. Any change other than an addition increments it.
pub const FORMAT_VERSION: u32 = 1;

/// The sums over the WAL of a window of time.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct WatchDocument {
    pub format: &'static str,
    pub format_version: u32,
    /// When the window ended, RFC 3339 in UTC.
    pub time: String,
    pub postgresql: String,
    pub system_identifier: String,
    pub timeline: u32,
    /// The end of the counted WAL.
    pub lsn: String,
    /// Length of the window.
    pub window_seconds: f64,
    #[serde(flatten)]
    pub sum: RateDocument,
    pub committed: u64,
    pub aborted: u64,
    /// Bytes by bucket, as in `walden explain`.
    pub buckets: Map<String, Value>,
    /// Full-page images by cause, as `images` of `walden explain`.
    pub images_by_cause: Map<String, Value>,
    /// Relations, largest first, each with all its forks.
    pub relations: Vec<GroupDocument>,
    /// Kinds of records, largest first.
    pub record_kinds: Vec<GroupDocument>,
    /// Databases, largest first.
    pub databases: Vec<GroupDocument>,
    /// Causes of all bytes, largest first, as in `walden explain`.
    pub causes: Vec<CauseDocument>,
    /// Other requested groups.
    pub groups: Vec<GroupsDocument>,
    pub bytes_per_second_1m: f64,
    pub bytes_per_second_5m: f64,
    /// Whether the server runs ([`crate::process::ServerProcess::name`]); `None` if that is not known.
    pub server_state: Option<&'static str>,
    pub checkpoint: Option<CheckpointDocument>,
    pub archiver: Option<Archiver>,
    pub slots: Vec<SlotDocument>,
    /// Bytes that could not be counted since the start.
    pub missed_bytes: u64,
    pub notes: Vec<NoteDocument>,
    /// Why the WAL cannot be read at present.
    pub problem: Option<String>,
    /// Why the server cannot be queried at present; slots, archiver and settings are then read from its
    /// files, or unknown.
    pub server_problem: Option<String>,
}

/// Bytes and counts of a group, with the rate per second.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct RateDocument {
    pub bytes: u64,
    pub bytes_per_second: f64,
    pub records: u64,
    pub images: u64,
    pub image_bytes: u64,
}

/// A group of records, with its bytes, counts and share.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct GroupDocument {
    pub label: Label,
    #[serde(flatten)]
    pub sum: RateDocument,
    /// Share of all bytes of the window, from 0 to 1.
    pub share: f64,
    /// Bytes of images by cause, without causes that have none.
    pub image_bytes_by_cause: Map<String, Value>,
}

/// The groups of one grouping.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct GroupsDocument {
    /// `schema`, `partition`, `tablespace` or `group`.
    pub by: &'static str,
    /// Largest first.
    pub rows: Vec<GroupDocument>,
}

/// Groupings by names of relations.
#[derive(Clone, Debug)]
pub enum Grouping {
    /// By schema; a TOAST table belongs to its table's schema.
    Schema,
    /// By partitioned table including all its partitions; each other table is a group of its own.
    Partition,
    /// By tablespace.
    Tablespace,
    /// By the match of a pattern in a relation's name.
    Pattern(Box<Regex>),
}

impl Grouping {
    /// Returns its name as a dimension of `walden explain`.
    pub fn name(&self) -> &'static str {
        self.dimension().name()
    }

    /// Returns its heading above a list.
    pub fn title(&self) -> &'static str {
        match self {
            Grouping::Schema => "Schemas",
            Grouping::Partition => "Partitioned tables",
            Grouping::Tablespace => "Tablespaces",
            Grouping::Pattern(_) => "Groups",
        }
    }

    fn dimension(&self) -> Dimension {
        match self {
            Grouping::Schema => Dimension::Schema,
            Grouping::Partition => Dimension::Partition,
            Grouping::Tablespace => Dimension::Tablespace,
            Grouping::Pattern(_) => Dimension::Pattern,
        }
    }
}

/// The current checkpoint cycle.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct CheckpointDocument {
    pub redo: String,
    #[serde(flatten)]
    pub next: Forecast,
    /// Whether a checkpoint in progress was seen (PostgreSQL 17 and later).
    #[serde(rename = "running")]
    pub is_running: bool,
    /// Whether a checkpoint may be in progress that started before the watch (17 and later).
    pub may_be_running: bool,
    /// Whether the server does not run, according to its files ([`WatchDocument::server_state`]). No
    /// checkpoint is then predicted.
    #[serde(rename = "server_stopped")]
    pub is_server_stopped: bool,
    /// Why the server counts as not running, for the user.
    #[serde(skip)]
    pub stopped_text: Option<String>,
    pub max_wal_size: Option<u64>,
    pub checkpoint_timeout_seconds: Option<i64>,
    /// Checkpoints seen since the start, by cause.
    pub seen: BTreeMap<&'static str, u64>,
}

/// A slot and its lag.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct SlotDocument {
    #[serde(flatten)]
    pub slot: Slot,
    /// Bytes from its restart position to the end of WAL.
    pub lag_bytes: Option<u64>,
}

/// An event.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct NoteDocument {
    pub time: String,
    pub text: String,
}

impl WatchDocument {
    /// Returns the document of a window, with at most `top` groups per list.
    pub fn new(watch: &Watch, window: &Window, groupings: &[Grouping], top: usize) -> WatchDocument {
        let info = watch.info();
        let total = window.sums.total();
        let views = Views::new(watch, window);
        let minute = watch.window(60.0);
        let minutes = watch.window(300.0);
        let position = watch.position();
        WatchDocument {
            format: "walden watch",
            format_version: FORMAT_VERSION,
            time: time_text(SystemTime::now()),
            postgresql: info.version.to_string(),
            system_identifier: info.system_id.to_string(),
            timeline: info.timeline,
            lsn: position.to_string(),
            window_seconds: window.seconds,
            sum: rate(&total, window),
            committed: window.sums.committed,
            aborted: window.sums.aborted,
            buckets: Bucket::all()
                .map(|bucket| (bucket.name().to_owned(), total.buckets.get(bucket).into()))
                .collect(),
            images_by_cause: images_by_cause(&window.sums.images),
            relations: views.relations(top),
            record_kinds: views.record_kinds(top),
            databases: views.databases(top),
            // The explanation of all WAL so far is a copy, which takes longer than the other lists.
            causes: if top > 0 { views.causes(&watch.explanation(), top) } else { Vec::new() },
            groups: groupings
                .iter()
                .map(|grouping| GroupsDocument { by: grouping.name(), rows: views.by(grouping, top) })
                .collect(),
            bytes_per_second_1m: minute.per_second(minute.sums.total().bytes()),
            bytes_per_second_5m: minutes.per_second(minutes.sums.total().bytes()),
            server_state: watch.server_process().name(),
            checkpoint: CheckpointDocument::new(watch),
            archiver: watch.server().archiver,
            slots: watch
                .server()
                .slots
                .iter()
                .map(|slot| SlotDocument {
                    lag_bytes: slot.restart_lsn.map(|lsn| position.0.saturating_sub(lsn.0)),
                    slot: slot.clone(),
                })
                .collect(),
            missed_bytes: watch.totals().missed_bytes,
            notes: watch.notes().iter().map(NoteDocument::new).collect(),
            problem: watch.problem().map(str::to_owned),
            server_problem: watch.server_problem().map(str::to_owned),
        }
    }
}

/// Describes the effect of a server that cannot be queried.
pub fn unqueried_text(problem: &str) -> String {
    format!(
        "cannot query the server, so its slots and archiver are unknown, or those of its files: {problem}"
    )
}

impl CheckpointDocument {
    /// Returns the current cycle, if it is known.
    pub fn new(watch: &Watch) -> Option<CheckpointDocument> {
        let settings = watch.checkpoint_settings();
        let seen = CAUSES.map(|cause| (cause.name(), watch.totals().checkpoints(cause)));
        Some(CheckpointDocument {
            redo: watch.cycle()?.redo.to_string(),
            next: watch.forecast()?,
            is_running: watch.is_checkpoint_running(),
            may_be_running: watch.may_checkpoint_be_running(),
            is_server_stopped: watch.server_process().is_stopped(),
            stopped_text: watch.server_process().stopped_text(),
            max_wal_size: settings.map(|settings| settings.max_wal_size),
            checkpoint_timeout_seconds: settings.map(|settings| settings.timeout),
            seen: seen.into_iter().filter(|(_, count)| *count > 0).collect(),
        })
    }
}

impl NoteDocument {
    fn new(note: &Note) -> NoteDocument {
        NoteDocument { time: time_text(note.time), text: note.text.clone() }
    }
}

/// The groups of a window, with names.
pub struct Views<'a> {
    window: &'a Window,
    labels: Labels<'a>,
    total: u64,
    version: walden_format::version::Major,
}

impl<'a> Views<'a> {
    /// Groups the sums of a window.
    pub fn new(watch: &'a Watch, window: &'a Window) -> Views<'a> {
        // Uses all databases seen so far, so that a relation has the same text in each window.
        let databases = watch.totals().databases.keys().flatten().filter(|database| **database != 0).count();
        Views {
            window,
            labels: Labels::from_names(watch.names(), databases > 1),
            total: window.sums.total().bytes(),
            version: watch.info().version,
        }
    }

    /// Groups by relation, each with all its forks; includes records without a relation, and page headers.
    pub fn relations(&self, top: usize) -> Vec<GroupDocument> {
        // A rewritten relation has several files.
        self.groups(|cell| main_of(cell.owner), |owner| self.labels.owner(*owner), top, "relation")
    }

    /// Groups by table with its indexes, TOAST table and maps.
    pub fn tables(&self, top: usize) -> Vec<GroupDocument> {
        self.groups(|cell| cell.owner, |owner| self.labels.table_of(*owner), top, "table")
    }

    /// Groups by kind of record.
    pub fn record_kinds(&self, top: usize) -> Vec<GroupDocument> {
        self.groups(|cell| cell.kind, |kind| kind_label(self.version, *kind), top, "kind")
    }

    /// Groups by database.
    pub fn databases(&self, top: usize) -> Vec<GroupDocument> {
        let database = |cell: &Cell| match cell.owner {
            Owner::Relation(relation, _) => Some(relation.database),
            _ => None,
        };
        self.groups(database, |database| self.labels.database(*database), top, "database")
    }

    /// Returns the causes of the window's bytes. `explanation` is of all WAL since the start
    /// ([`Watch::explanation`]): its evidence divides the bytes.
    pub fn causes(&self, explanation: &Explanation, top: usize) -> Vec<CauseDocument> {
        let sums = &self.window.sums;
        let mut cells: Vec<(Cell, Tally)> = sums.cells.iter().map(|(cell, tally)| (*cell, *tally)).collect();
        cells.push((Cell { owner: Owner::None, kind: None }, sums.others));
        cells.sort_unstable_by_key(|(cell, _)| *cell);
        Document::causes_of(explanation, &cells, &self.labels, top)
    }

    /// Returns the causes as groups.
    pub fn cause_groups(&self, explanation: &Explanation, top: usize) -> Vec<GroupDocument> {
        let group = |cause: CauseDocument| {
            let text = match cause.folded {
                Some(count) => counted(count, "more cause"),
                None => cause.label(),
            };
            let sum = RateDocument {
                bytes: cause.bytes,
                bytes_per_second: self.window.per_second(cause.bytes),
                records: cause.records,
                images: cause.images,
                image_bytes: if cause.mechanism.is_image() { cause.bytes } else { 0 },
            };
            let label = Label::plain(Part::Rest, &text);
            GroupDocument { label, sum, share: cause.share, image_bytes_by_cause: Map::new() }
        };
        self.causes(explanation, top).into_iter().map(group).collect()
    }

    /// Groups by another grouping.
    pub fn by(&self, grouping: &Grouping, top: usize) -> Vec<GroupDocument> {
        let label = |owner: &Owner| match grouping {
            Grouping::Schema => self.labels.schema(*owner),
            Grouping::Partition => self.labels.partition_root(*owner),
            Grouping::Tablespace => self.labels.tablespace(*owner),
            Grouping::Pattern(pattern) => self.labels.pattern(*owner, Some(pattern)),
        };
        self.groups(|cell| main_of(cell.owner), label, top, grouping.name())
    }

    /// Groups the relations with a label's text by fork and kind of record.
    pub fn kinds_of(&self, text: &str) -> Vec<GroupDocument> {
        let is_of = |cell: &Cell| {
            self.labels.owner(main_of(cell.owner)).text == text
                || self.labels.table_of(cell.owner).text == text
        };
        let mut groups: FxHashMap<(Owner, Option<u16>), Tally> = FxHashMap::default();
        for (cell, tally) in self.window.sums.cells.iter().filter(|(cell, _)| is_of(cell)) {
            groups.entry((cell.owner, cell.kind)).or_default().merge(tally);
        }
        let label = |(owner, kind): &(Owner, Option<u16>)| {
            let kind = kind_label(self.version, *kind);
            let fork = self.labels.owner(*owner);
            Label { text: format!("{}: {}", fork.part_text(), kind.text), ..kind }
        };
        self.sorted(groups.iter().map(|(key, tally)| (label(key), *tally)).collect(), usize::MAX, "kind")
    }

    fn groups<K: Eq + Hash>(
        &self,
        key: impl Fn(&Cell) -> K,
        label: impl Fn(&K) -> Label,
        top: usize,
        what: &str,
    ) -> Vec<GroupDocument> {
        let mut groups: FxHashMap<K, Tally> = FxHashMap::default();
        for (cell, tally) in &self.window.sums.cells {
            groups.entry(key(cell)).or_default().merge(tally);
        }
        let mut groups: Vec<(Label, Tally)> =
            groups.into_iter().map(|(key, tally)| (label(&key), tally)).collect();
        if self.window.sums.others.bytes() > 0 {
            groups.push((Label::plain(Part::Rest, &format!("small {what}s")), self.window.sums.others));
        }
        self.sorted(groups, top, what)
    }

    /// Merges groups of the same text, sorts them by size, and combines all after the first `top` into one.
    fn sorted(&self, groups: Vec<(Label, Tally)>, top: usize, what: &str) -> Vec<GroupDocument> {
        let mut by_text: BTreeMap<String, (Label, Tally)> = BTreeMap::new();
        for (label, tally) in groups {
            by_text.entry(label.text.clone()).or_insert_with(|| (label, Tally::default())).1.merge(&tally);
        }
        let mut all: Vec<(Label, Tally)> = by_text.into_values().collect();
        all.sort_by_key(|(_, tally)| Reverse(tally.bytes()));
        let rest = all.split_off(top.min(all.len()));
        if !rest.is_empty() {
            let mut sum = Tally::default();
            rest.iter().for_each(|(_, tally)| sum.merge(tally));
            let text = counted(rest.len() as u64, &format!("more {what}"));
            all.push((Label::plain(Part::Rest, &text), sum));
        }
        all.iter().map(|(label, tally)| self.group(label, tally)).collect()
    }

    fn group(&self, label: &Label, tally: &Tally) -> GroupDocument {
        let causes = ImageCause::ALL.iter().map(|cause| (cause.name(), tally.buckets.get(cause.bucket())));
        GroupDocument {
            label: label.clone(),
            sum: rate(tally, self.window),
            share: if self.total > 0 { tally.bytes() as f64 / self.total as f64 } else { 0.0 },
            image_bytes_by_cause: causes
                .filter(|(_, bytes)| *bytes > 0)
                .map(|(name, bytes)| (name.to_owned(), bytes.into()))
                .collect(),
        }
    }
}

/// Returns the name of a database for metrics.
pub fn database_label(watch: &Watch, database: Option<u32>) -> String {
    match database {
        None => String::new(),
        Some(_) => Labels::from_names(watch.names(), false).database(database).text,
    }
}

/// Returns the name of a kind of record.
pub fn kind_text(watch: &Watch, kind: Option<u16>) -> String {
    kind_label(watch.info().version, kind).text
}

fn main_of(owner: Owner) -> Owner {
    match owner {
        Owner::Relation(relation, _) => Owner::Relation(relation, Fork::MAIN),
        other => other,
    }
}

fn kind_label(version: walden_format::version::Major, kind: Option<u16>) -> Label {
    match kind.and_then(|index| Kind::from_index(index.into())) {
        Some(kind) => {
            Label::plain(Part::Record, &format!("{} {}", kind.resource_manager(version), kind.name(version)))
        }
        None => Label::plain(Part::Framing, "page headers, padding"),
    }
}

fn rate(tally: &Tally, window: &Window) -> RateDocument {
    RateDocument {
        bytes: tally.bytes(),
        bytes_per_second: window.per_second(tally.bytes()),
        records: tally.records,
        images: tally.images,
        image_bytes: tally.buckets.images(),
    }
}

/// Formats a time as RFC 3339 in UTC.
pub fn time_text(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "unknown".into(), |time| format!("{time:.3}"))
}
