//! Assigns every byte of the WAL to one cause: a statement or task, a relation, and a mechanism.
//!
//! A cell (owner and record kind) mostly has one cause. If a cell has several causes, the evidence of its
//! relation divides the cell, such as the entries of an index between inserts and updates. Shares become
//! whole bytes, and the last part of a cell gets all remaining bytes, so that the causes add up to the WAL.

use std::collections::BTreeMap;

use serde::Serialize;
use walden_format::record::Fork;
use walden_format::rmgr::info::{btree, heap, heap2, xact, xlog};
use walden_format::rmgr::{Kind, rmid};
use walden_format::version::Major;

use super::facts::{Facts, Relation, Table, is_delete, is_index_manager, is_insert, is_lock, is_update};
use super::ledger::Claim;
use super::maintenance::{is_by_queries, share_of_vacuum};
use super::rewrites::is_built;
use crate::evidence::Evidence;
use crate::group::Owner;
use crate::labels::{Part, VacuumWork, vacuum_work};
use crate::tally::{Bucket, Tally};

/// The statement, maintenance task or server task that wrote WAL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Activity {
    Insert,
    Copy,
    Update,
    PartitionMove,
    Delete,
    Write,
    RowLock,
    Apply,
    ForeignKey,
    Read,
    Vacuum,
    IndexBuild,
    Rewrite,
    Refresh,
    CreateDatabase,
    Catalog,
    Sequence,
    Commit,
    TwoPhase,
    Subtransaction,
    Message,
    Switch,
    Server,
    Other,
}

impl Activity {
    /// Returns a phrase for the activity.
    pub fn description(self) -> &'static str {
        match self {
            Activity::Insert => "INSERT row by row",
            Activity::Copy => "COPY",
            Activity::Update => "UPDATE",
            Activity::PartitionMove => "UPDATE that moves rows to another partition",
            Activity::Delete => "DELETE",
            Activity::Write => "INSERT and UPDATE",
            Activity::RowLock => "SELECT FOR UPDATE or SHARE",
            Activity::Apply => "apply of a subscription",
            Activity::ForeignKey => "checks of foreign keys",
            Activity::Read => "reads",
            Activity::Vacuum => "vacuum",
            Activity::IndexBuild => "index build",
            Activity::Rewrite => "rewrite of the table",
            Activity::Refresh => "materialized view",
            Activity::CreateDatabase => "CREATE DATABASE",
            Activity::Catalog => "catalog changes",
            Activity::Sequence => "nextval(), setval()",
            Activity::Commit => "ends of transactions",
            Activity::TwoPhase => "two-phase commit",
            Activity::Subtransaction => "subtransactions",
            Activity::Message => "logical messages",
            Activity::Switch => "segment switches",
            Activity::Server => "the server itself",
            Activity::Other => "others",
        }
    }
}

/// How a statement or task wrote WAL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Mechanism {
    RowData,
    OldRow,
    IndexEntry,
    PageSplit,
    MissedHot,
    Toast,
    FirstTouchImage,
    BackupImage,
    ForcedImage,
    HintImage,
    ConsistencyImage,
    Lock,
    Freeze,
    Prune,
    DeadRow,
    Visibility,
    DeadEntry,
    Catalog,
    SequenceValue,
    TransactionEnd,
    PreparedState,
    Message,
    File,
    Padding,
    PageHeader,
    Framing,
    State,
    Other,
}

impl Mechanism {
    /// Returns a phrase for the mechanism.
    pub fn description(self) -> &'static str {
        match self {
            Mechanism::RowData => "rows",
            Mechanism::OldRow => "old rows for logical decoding",
            Mechanism::IndexEntry => "index entries",
            Mechanism::PageSplit => "splits of index pages",
            Mechanism::MissedHot => "index entries, as the update is not HOT",
            Mechanism::Toast => "large values (TOAST)",
            Mechanism::FirstTouchImage => "images: first touch after a checkpoint",
            Mechanism::BackupImage => "images: base backup with full_page_writes off",
            Mechanism::ForcedImage => "images: forced",
            Mechanism::HintImage => "images: hint bits",
            Mechanism::ConsistencyImage => "images: consistency checking",
            Mechanism::Lock => "row locks",
            Mechanism::Freeze => "freezing",
            Mechanism::Prune => "pruning",
            Mechanism::DeadRow => "removal of dead rows",
            Mechanism::Visibility => "visibility map",
            Mechanism::DeadEntry => "removal of dead index entries",
            Mechanism::Catalog => "catalog rows",
            Mechanism::SequenceValue => "values of sequences",
            Mechanism::TransactionEnd => "commit and abort records",
            Mechanism::PreparedState => "states of prepared transactions",
            Mechanism::Message => "content of messages",
            Mechanism::File => "files created, truncated or copied",
            Mechanism::Padding => "unused ends of segments",
            Mechanism::PageHeader => "page headers",
            Mechanism::Framing => "cut-off records",
            Mechanism::State => "checkpoints, running transactions, locks",
            Mechanism::Other => "other records",
        }
    }

    /// Whether it is full-page images.
    pub fn is_image(self) -> bool {
        use Mechanism::{BackupImage, ConsistencyImage, FirstTouchImage, ForcedImage, HintImage};
        matches!(self, FirstTouchImage | BackupImage | ForcedImage | HintImage | ConsistencyImage)
    }
}

/// A part of a cell that has one cause.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// Index in [`Facts::cells`].
    pub cell: usize,
    /// Indexes in [`Facts::tables`] and in the table's relations.
    pub relation: Option<(usize, usize)>,
    pub activity: Activity,
    pub mechanism: Mechanism,
    /// Bytes without images, but with their headers.
    pub plain: u64,
    /// Bytes of images.
    pub image_bytes: u64,
    pub records: u64,
    pub images: u64,
}

impl Piece {
    pub fn bytes(&self) -> u64 {
        self.plain + self.image_bytes
    }

    /// Adds it to a claim.
    pub fn claim(&self, claim: &mut Claim) {
        claim.add_plain(self.cell, self.plain);
        claim.add_images(self.cell, self.image_bytes);
    }
}

/// The sums of a cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cause {
    pub activity: Activity,
    /// The table, or other relation.
    pub relation: Option<String>,
    pub mechanism: Mechanism,
    pub bytes: u64,
    pub records: u64,
    pub images: u64,
}

/// Sums pieces by cause, the largest first.
pub(super) fn sum(facts: &Facts<'_>, pieces: &[Piece]) -> Vec<Cause> {
    let mut sums: BTreeMap<(Activity, Option<usize>, Mechanism), Cause> = BTreeMap::new();
    for piece in pieces {
        let Piece { activity, mechanism, .. } = *piece;
        let table = piece.relation.map(|(table, _)| table);
        let cause = sums.entry((activity, table, mechanism)).or_insert_with(|| Cause {
            activity,
            relation: table.map(|table| facts.tables[table].name.clone()),
            mechanism,
            bytes: 0,
            records: 0,
            images: 0,
        });
        cause.bytes += piece.bytes();
        cause.records += piece.records;
        cause.images += piece.images;
    }
    let mut causes: Vec<Cause> = sums.into_values().filter(|cause| cause.bytes > 0).collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.bytes));
    causes
}

/// Activities and mechanisms with their shares of a cell's bytes. The last one gets all remaining bytes.
type Parts = Vec<((Activity, Mechanism), f64)>;

fn whole(activity: Activity, mechanism: Mechanism) -> Parts {
    vec![((activity, mechanism), 1.0)]
}

/// Assigns all bytes of the WAL.
pub(super) fn assign(facts: &Facts<'_>) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(facts.cells.len());
    for (at, table) in facts.tables.iter().enumerate() {
        let work = Work::of(facts, table);
        for (number, relation) in table.relations.iter().enumerate() {
            let assign = Assign { facts, table, relation, work: &work };
            for cell in &relation.cells {
                let Some(kind) = facts.kind(*cell) else { continue };
                let (plain, images) = assign.parts(*cell, kind);
                divide(facts, *cell, Some((at, number)), &plain, &images, &mut pieces);
            }
        }
    }
    for (at, (cell, tally)) in facts.cells.iter().enumerate() {
        match cell.owner {
            Owner::Relation(..) => {}
            Owner::None => {
                let parts = without_relation(facts, at);
                divide(facts, at, None, &parts, &[(Activity::Other, 1.0)], &mut pieces);
            }
            Owner::Framing => framing(at, tally, &mut pieces),
        }
    }
    pieces
}

/// Divides the bytes of a cell. `images` are the activities that wrote its images.
fn divide(
    facts: &Facts<'_>,
    cell: usize,
    relation: Option<(usize, usize)>,
    plain: &[((Activity, Mechanism), f64)],
    images: &[(Activity, f64)],
    pieces: &mut Vec<Piece>,
) {
    let tally = facts.tally(cell);
    let buckets = &tally.buckets;
    let header = buckets.get(Bucket::ImageHeader);
    let has_writes = facts.explanation.logged_settings.full_page_writes != Some(false);
    let of_bucket = [
        (Bucket::ImageHint, Mechanism::HintImage),
        (Bucket::ImageForced, Mechanism::ForcedImage),
        (
            Bucket::ImageCheckpoint,
            if has_writes { Mechanism::FirstTouchImage } else { Mechanism::BackupImage },
        ),
        (Bucket::ImageConsistency, Mechanism::ConsistencyImage),
    ];
    let all_images: u64 = of_bucket.iter().map(|(bucket, _)| buckets.get(*bucket)).sum();
    let of_records = tally.wal_bytes() - all_images - header;
    let mut push = |piece: Piece| {
        if piece.bytes() + piece.records + piece.images > 0 {
            pieces.push(piece);
        }
    };
    let piece = |activity, mechanism| Piece {
        cell,
        relation,
        activity,
        mechanism,
        plain: 0,
        image_bytes: 0,
        records: 0,
        images: 0,
    };
    let shares: Vec<f64> = plain.iter().map(|(_, share)| *share).collect();
    let bytes = distribute(of_records, &shares);
    let records = in_proportion(tally.records, &bytes);
    let numbers = bytes.into_iter().zip(records);
    for (((activity, mechanism), _), (plain, records)) in plain.iter().zip(numbers) {
        push(Piece { plain, records, ..piece(*activity, *mechanism) });
    }
    let mut filled: Vec<(u64, Mechanism)> = of_bucket
        .into_iter()
        .map(|(bucket, mechanism)| (buckets.get(bucket), mechanism))
        .filter(|(bytes, _)| *bytes > 0)
        .collect();
    if filled.is_empty() {
        filled.push((0, Mechanism::ForcedImage));
    }
    // A cell mostly has images of one kind.
    filled.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let (mut header, mut count) = (header, tally.images);
    let shares: Vec<f64> = images.iter().map(|(_, share)| *share).collect();
    for (bytes, mechanism) in filled {
        let bytes = distribute(bytes, &shares);
        let headers = in_proportion(std::mem::take(&mut header), &bytes);
        let counts = in_proportion(std::mem::take(&mut count), &bytes);
        let numbers = bytes.into_iter().zip(headers).zip(counts);
        for ((activity, _), ((image_bytes, plain), count)) in images.iter().zip(numbers) {
            push(Piece { plain, image_bytes, images: count, ..piece(*activity, mechanism) });
        }
    }
}

/// Divides a number by shares. The last part is the remainder.
fn distribute(number: u64, shares: &[f64]) -> Vec<u64> {
    let mut left = number;
    let last = shares.len().saturating_sub(1);
    let part = |(at, share): (usize, &f64)| {
        let part = if at == last { left } else { ((number as f64 * share.clamp(0.0, 1.0)) as u64).min(left) };
        left -= part;
        part
    };
    shares.iter().enumerate().map(part).collect()
}

/// Divides a number in proportion to the bytes of parts. The remainder goes to the largest part.
fn in_proportion(number: u64, bytes: &[u64]) -> Vec<u64> {
    let total = bytes.iter().sum::<u64>().max(1);
    let part = |bytes: &u64| (u128::from(number) * u128::from(*bytes) / u128::from(total)) as u64;
    let mut parts: Vec<u64> = bytes.iter().map(part).collect();
    let left = number - parts.iter().sum::<u64>();
    if let Some((at, _)) = bytes.iter().enumerate().max_by_key(|(_, bytes)| **bytes) {
        parts[at] += left;
    }
    parts
}

fn framing(cell: usize, tally: &Tally, pieces: &mut Vec<Piece>) {
    for bucket in Bucket::all().filter(|bucket| !bucket.is_unused()) {
        let (activity, mechanism) = match bucket {
            Bucket::SwitchPadding => (Activity::Switch, Mechanism::Padding),
            Bucket::PageHeader => (Activity::Server, Mechanism::PageHeader),
            _ => (Activity::Server, Mechanism::Framing),
        };
        let bytes = tally.buckets.get(bucket);
        if bytes > 0 {
            pieces.push(Piece {
                cell,
                relation: None,
                activity,
                mechanism,
                plain: bytes,
                image_bytes: 0,
                records: 0,
                images: 0,
            });
        }
    }
}

/// The cause of a cell of records that refer to no block.
fn without_relation(facts: &Facts<'_>, cell: usize) -> Parts {
    let Some(kind) = facts.kind(cell) else { return whole(Activity::Other, Mechanism::Other) };
    let (activity, mechanism) = match (kind.rmid(), kind.info()) {
        (rmid::XACT, info) => match info & xact::OPMASK {
            xact::PREPARE => (Activity::TwoPhase, Mechanism::PreparedState),
            xact::COMMIT_PREPARED | xact::ABORT_PREPARED => (Activity::TwoPhase, Mechanism::TransactionEnd),
            xact::ASSIGNMENT => (Activity::Subtransaction, Mechanism::State),
            xact::INVALIDATION => (Activity::Catalog, Mechanism::Catalog),
            _ => (Activity::Commit, Mechanism::TransactionEnd),
        },
        (rmid::XLOG, xlog::SWITCH) => (Activity::Switch, Mechanism::Padding),
        (rmid::SMGR | rmid::RELMAP | rmid::TBLSPC, _) => (Activity::Catalog, Mechanism::File),
        (rmid::DBASE, _) => (Activity::CreateDatabase, Mechanism::File),
        (rmid::MULTIXACT, _) => (Activity::ForeignKey, Mechanism::Lock),
        (rmid::LOGICALMSG, _) => (Activity::Message, Mechanism::Message),
        (rmid::XLOG | rmid::STANDBY | rmid::CLOG | rmid::COMMIT_TS | rmid::REPLORIGIN, _) => {
            (Activity::Server, Mechanism::State)
        }
        (rmid::HEAP, info) if info & heap::OPMASK == heap::TRUNCATE => (Activity::Catalog, Mechanism::File),
        (rmid::HEAP2, info) if info & heap2::OPMASK == heap2::REWRITE => {
            (Activity::Rewrite, Mechanism::OldRow)
        }
        _ => (Activity::Other, Mechanism::Other),
    };
    whole(activity, mechanism)
}

/// How many rows of a table its statements wrote.
struct Work {
    /// Share of inserts that store rows which updates move from another partition.
    of_moves: f64,
    /// Number of updates that are not HOT.
    missed_hot: u64,
    updates: u64,
    single_inserts: u64,
    copied: u64,
    deletes: u64,
}

impl Work {
    fn of(facts: &Facts<'_>, table: &Table) -> Work {
        let count = |is_its: fn(u8, u8) -> bool| facts.records(facts.cells(table.heaps(), is_its));
        let is_single = |manager: u8, info: u8| manager == rmid::HEAP && info & heap::OPMASK == heap::INSERT;
        let is_missed = |manager: u8, info: u8| manager == rmid::HEAP && info & heap::OPMASK == heap::UPDATE;
        let (single_inserts, missed_hot) = (count(is_single), count(is_missed));
        let has_batches = count(is_insert) > single_inserts;
        // A record of COPY has many rows, each with an entry in each index.
        let entries = table.indexes().iter().map(|index| index.evidence.leaf_inserts).max().unwrap_or(0);
        let batches = count(is_insert) - single_inserts;
        let copied = match has_batches {
            true => entries.saturating_sub(missed_hot + single_inserts).max(batches),
            false => 0,
        };
        let inserts = count(is_insert);
        Work {
            of_moves: table.evidence().partition_moves.min(inserts) as f64 / inserts.max(1) as f64,
            missed_hot,
            updates: count(is_update),
            single_inserts,
            copied,
            deletes: count(is_delete),
        }
    }

    /// Returns the activities that store rows in the table, with their shares, if `of_updates` is the share
    /// of updates among the stored rows.
    fn writers(&self, of_updates: f64) -> Vec<(Activity, f64)> {
        let inserts = (self.single_inserts + self.copied) as f64;
        let of_copies = if inserts > 0.0 { self.copied as f64 / inserts } else { 0.0 };
        let others = 1.0 - of_updates;
        vec![
            (Activity::Update, of_updates),
            (Activity::Copy, others * of_copies),
            (Activity::PartitionMove, others * (1.0 - of_copies) * self.of_moves),
            (Activity::Insert, others * (1.0 - of_copies) * (1.0 - self.of_moves)),
        ]
    }

    /// The share of updates in the entries of an index whose records do not show it.
    fn share_of_updates(&self) -> f64 {
        let all = self.missed_hot + self.single_inserts + self.copied;
        self.missed_hot as f64 / all.max(1) as f64
    }

    fn has_rows(&self) -> bool {
        self.updates + self.single_inserts + self.copied > 0
    }
}

/// Assigns the cells of a relation.
struct Assign<'a> {
    facts: &'a Facts<'a>,
    table: &'a Table,
    relation: &'a Relation,
    work: &'a Work,
}

impl Assign<'_> {
    /// The causes of a cell's bytes without images, and the activities that wrote its images.
    fn parts(&self, cell: usize, kind: Kind) -> (Parts, Vec<(Activity, f64)>) {
        let parts = self.plain(cell, kind);
        let Work { updates, deletes, .. } = *self.work;
        let images = if self.relation.is_index && kind.rmid() == rmid::BTREE {
            self.index_images(&parts)
        } else if parts.contains(&((Activity::Read, Mechanism::Prune), 1.0)) && updates + deletes > 0 {
            // The change of the page that follows would have had the image.
            let of_updates = updates as f64 / (updates + deletes) as f64;
            vec![(Activity::Update, of_updates), (Activity::Delete, 1.0)]
        } else {
            parts.iter().map(|((activity, _), share)| (*activity, *share)).collect()
        };
        (parts, images)
    }

    fn plain(&self, cell: usize, kind: Kind) -> Parts {
        let (facts, relation, manager, info) = (self.facts, self.relation, kind.rmid(), kind.info());
        if manager == rmid::SEQ {
            return whole(Activity::Sequence, Mechanism::SequenceValue);
        }
        if facts.is_copied(relation) {
            return whole(Activity::CreateDatabase, Mechanism::Other);
        }
        if self.table.is_catalog {
            return whole(Activity::Catalog, Mechanism::Catalog);
        }
        let is_map = |fork: Fork| matches!(fork, Fork::FREE_SPACE_MAP | Fork::VISIBILITY_MAP);
        if matches!(facts.cells[cell].0.owner, Owner::Relation(_, fork) if is_map(fork)) {
            return whole(Activity::Vacuum, Mechanism::Visibility);
        }
        if self.table.part == Part::MaterializedView {
            return whole(
                Activity::Refresh,
                if relation.is_index { Mechanism::IndexEntry } else { Mechanism::RowData },
            );
        }
        match manager {
            rmid::XLOG => self.image_record(info),
            rmid::HEAP => self.heap(info),
            rmid::HEAP2 => self.heap2(info),
            manager if is_index_manager(manager) || relation.is_index => self.index(kind),
            _ => whole(Activity::Other, Mechanism::Other),
        }
    }

    /// Records that contain only an image.
    fn image_record(&self, info: u8) -> Parts {
        let relation = self.relation;
        let activity = match info {
            xlog::FPI_FOR_HINT => {
                let of_vacuum = share_of_vacuum(self.facts, self.table, self.relation);
                return vec![
                    ((Activity::Vacuum, Mechanism::HintImage), of_vacuum),
                    ((Activity::Read, Mechanism::HintImage), 1.0),
                ];
            }
            _ if relation.written_by.is_some() => Activity::Rewrite,
            _ if is_built(self.facts, relation) => Activity::IndexBuild,
            _ if relation.was_created => Activity::Rewrite,
            // A page that vacuum finds empty (`lazy_scan_new_or_empty`).
            _ => Activity::Vacuum,
        };
        whole(activity, Mechanism::ForcedImage)
    }

    /// Inserted rows, by `INSERT` or `COPY`.
    fn inserted(&self, activity: Activity) -> Parts {
        if self.relation.is_toast() {
            return self.toast_inserts();
        }
        if self.relation.written_by.is_some_and(|by| by.has_logged_rows) {
            return whole(Activity::Rewrite, Mechanism::RowData);
        }
        vec![
            ((Activity::PartitionMove, Mechanism::RowData), self.work.of_moves),
            ((activity, Mechanism::RowData), 1.0),
        ]
    }

    fn toast_inserts(&self) -> Parts {
        if !self.work.has_rows() {
            return whole(Activity::Write, Mechanism::Toast);
        }
        let toasts = || self.table.relations.iter().filter(|one| one.is_toast());
        let count = |is_its: fn(u8, u8) -> bool| self.facts.records(self.facts.cells(toasts(), is_its));
        // An update deletes the value that it replaces.
        let replaced = count(is_delete) as f64 / count(is_insert).max(1) as f64;
        let of_updates = if self.work.updates > 0 { replaced.min(1.0) } else { 0.0 };
        let writers = self.work.writers(of_updates);
        writers.into_iter().map(|(activity, share)| ((activity, Mechanism::Toast), share)).collect()
    }

    fn heap(&self, info: u8) -> Parts {
        let evidence = &self.relation.evidence;
        match info & heap::OPMASK {
            heap::INSERT => self.inserted(Activity::Insert),
            heap::UPDATE | heap::HOT_UPDATE => self.with_old_rows(Activity::Update),
            heap::DELETE if self.relation.is_toast() => {
                let Work { updates, deletes, .. } = *self.work;
                let of_updates = updates as f64 / (updates + deletes).max(1) as f64;
                vec![
                    ((Activity::Update, Mechanism::Toast), of_updates),
                    ((Activity::Delete, Mechanism::Toast), 1.0),
                ]
            }
            heap::DELETE => {
                let all = self.facts.records(self.facts.cells([self.relation], is_delete));
                let of_moves = evidence.partition_moves as f64 / all.max(1) as f64;
                let mut parts = vec![((Activity::PartitionMove, Mechanism::RowData), of_moves)];
                parts.extend(self.with_old_rows(Activity::Delete));
                parts
            }
            heap::LOCK => self.locks(),
            heap::CONFIRM => whole(Activity::Insert, Mechanism::RowData),
            _ => whole(Activity::Other, Mechanism::Other),
        }
    }

    /// Changed rows, with the share of old rows that only logical decoding needs.
    fn with_old_rows(&self, activity: Activity) -> Parts {
        let is_change = |manager: u8, info: u8| is_update(manager, info) || is_delete(manager, info);
        let all = self.plain_bytes(is_change);
        let old = self.relation.evidence.old_tuples.bytes as f64 / all.max(1) as f64;
        vec![((activity, Mechanism::OldRow), old), ((activity, Mechanism::RowData), 1.0)]
    }

    fn plain_bytes(&self, is_its: impl Fn(u8, u8) -> bool + Copy) -> u64 {
        let cells = self.facts.cells([self.relation], is_its);
        cells.map(|cell| self.facts.tally(cell)).map(|tally| tally.bytes() - tally.buckets.images()).sum()
    }

    fn locks(&self) -> Parts {
        let Evidence { update_locks, upsert_locks, applied_locks, key_share_locks, .. } =
            self.relation.evidence;
        let all = self.plain_bytes(is_lock).max(1) as f64;
        vec![
            ((Activity::Update, Mechanism::Lock), (update_locks.bytes + upsert_locks.bytes) as f64 / all),
            ((Activity::Apply, Mechanism::Lock), applied_locks.bytes as f64 / all),
            ((Activity::ForeignKey, Mechanism::Lock), key_share_locks.bytes as f64 / all),
            ((Activity::RowLock, Mechanism::Lock), 1.0),
        ]
    }

    fn heap2(&self, info: u8) -> Parts {
        let (version, evidence) = (self.facts.explanation.version, &self.relation.evidence);
        let since_17 = version >= Major::V17;
        let kind = info & heap2::OPMASK;
        match kind {
            heap2::MULTI_INSERT => self.inserted(Activity::Copy),
            heap2::LOCK_UPDATED => whole(Activity::ForeignKey, Mechanism::Lock),
            heap2::VISIBLE => whole(Activity::Vacuum, Mechanism::Visibility),
            heap2::NEW_CID | heap2::REWRITE => whole(Activity::Rewrite, Mechanism::OldRow),
            heap2::PRUNE_ON_ACCESS if since_17 => whole(Activity::Read, Mechanism::Prune),
            // Before 17, vacuum and queries write the same record. Only records of queries have a
            // transaction.
            heap2::PRUNE => {
                let Evidence { prunes, prunes_in_transactions, .. } = *evidence;
                if is_by_queries(self.facts, self.table, prunes.count, prunes_in_transactions) {
                    return whole(Activity::Read, Mechanism::Prune);
                }
                let of_queries = prunes_in_transactions as f64 / prunes.count.max(1) as f64;
                vec![
                    ((Activity::Read, Mechanism::Prune), of_queries),
                    ((Activity::Vacuum, Mechanism::Prune), 1.0),
                ]
            }
            heap2::PRUNE_VACUUM_SCAN if since_17 => {
                let is_scan = |manager: u8, info: u8| {
                    manager == rmid::HEAP2 && info & heap2::OPMASK == heap2::PRUNE_VACUUM_SCAN
                };
                let all = self.facts.records(self.facts.cells([self.relation], is_scan));
                let of_freezing = evidence.freezing.count as f64 / all.max(1) as f64;
                vec![
                    ((Activity::Vacuum, Mechanism::Freeze), of_freezing),
                    ((Activity::Vacuum, Mechanism::Prune), 1.0),
                ]
            }
            heap2::FREEZE_PAGE if (Major::V14..Major::V17).contains(&version) => {
                whole(Activity::Vacuum, Mechanism::Freeze)
            }
            heap2::FREEZE_PAGE_UNTIL_13 if version < Major::V14 => whole(Activity::Vacuum, Mechanism::Freeze),
            _ => whole(Activity::Vacuum, Mechanism::DeadRow),
        }
    }

    fn index(&self, kind: Kind) -> Parts {
        let (manager, info) = (kind.rmid(), kind.info());
        if vacuum_work(self.facts.explanation.version, Some(kind), true) == VacuumWork::Sure {
            return whole(Activity::Vacuum, Mechanism::DeadEntry);
        }
        let mechanism = match (manager, info) {
            // An insert removes dead entries before it splits a page (`_bt_delete_or_dedup_one_page`).
            (rmid::BTREE, btree::DELETE | btree::REUSE_PAGE) => Mechanism::DeadEntry,
            (rmid::BTREE, btree::SPLIT_L | btree::SPLIT_R | btree::NEWROOT | btree::INSERT_UPPER) => {
                Mechanism::PageSplit
            }
            _ if self.relation.part == Part::ToastIndex => return self.toast_inserts(),
            _ => Mechanism::IndexEntry,
        };
        let evidence = &self.relation.evidence;
        let writers = match (manager, evidence.leaf_inserts) {
            (rmid::BTREE, entries @ 1..) => {
                self.work.writers(evidence.update_entries as f64 / entries as f64)
            }
            _ if self.work.has_rows() => self.work.writers(self.work.share_of_updates()),
            // Without names, the table of an index is not known.
            _ => vec![(Activity::Write, 1.0)],
        };
        let part = |(activity, share)| {
            let is_missed_hot = activity == Activity::Update && mechanism != Mechanism::DeadEntry;
            ((activity, if is_missed_hot { Mechanism::MissedHot } else { mechanism }), share)
        };
        writers.into_iter().map(part).collect()
    }

    /// Entries of updates go all over an index, and have more than their share of its images where inserts
    /// have ascending keys.
    fn index_images(&self, parts: &[((Activity, Mechanism), f64)]) -> Vec<(Activity, f64)> {
        let Evidence { leaf_inserts, leaf_images, update_images, .. } = self.relation.evidence;
        let is_divided = parts.iter().any(|((activity, _), _)| *activity == Activity::Update);
        if is_divided && leaf_inserts > 0 && leaf_images > 0 {
            return self.work.writers(update_images as f64 / leaf_images as f64);
        }
        parts.iter().map(|((activity, _), share)| (*activity, *share)).collect()
    }
}
