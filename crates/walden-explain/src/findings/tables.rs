//! The tables with most WAL, if no other rule explains their WAL.

use std::collections::BTreeMap;

use walden_format::record::Fork;
use walden_source::counted;

use super::Candidate;
use super::causes::{Activity, Mechanism, Piece, assign};
use super::facts::{Facts, Index, Table};
use super::indexes::is_droppable;
use super::ledger::Claim;
use super::settings::{checkpoint_images, uncompressed_images};
use crate::group::Owner;

/// Number of activities that the text names, if several wrote most of the bytes.
const NAMED_ACTIVITIES: usize = 3;

/// The bytes of a table with its indexes and TOAST tables.
struct Group<'a> {
    table: &'a Table,
    claim: Claim,
    images: u64,
    actions: BTreeMap<Activity, Action>,
}

/// The bytes that one activity wrote to a table.
#[derive(Clone, Copy, Default)]
struct Action {
    bytes: u64,
    indexes: u64,
    toast: u64,
    /// Portion of `bytes` for updates that are not HOT.
    missed_hot: u64,
    /// Number of records of the table itself.
    records: u64,
}

impl Group<'_> {
    fn add(&mut self, piece: &Piece, relation: usize) {
        let relation = &self.table.relations[relation];
        let action = self.actions.entry(piece.activity).or_default();
        action.bytes += piece.bytes();
        if relation.is_index && relation.part != crate::labels::Part::ToastIndex {
            action.indexes += piece.bytes();
        } else if relation.is_index || relation.is_toast() {
            action.toast += piece.bytes();
        } else if !matches!(piece.mechanism, Mechanism::Lock) || piece.activity != Activity::Update {
            action.records += piece.records;
        }
        if piece.mechanism == Mechanism::MissedHot {
            action.missed_hot += piece.bytes();
        }
        self.images += if piece.mechanism.is_image() { piece.bytes() } else { 0 };
        piece.claim(&mut self.claim);
    }

    /// Activities by their bytes, the largest first.
    fn by_bytes(&self) -> Vec<(Activity, Action)> {
        let mut actions: Vec<_> =
            self.actions.iter().map(|(activity, action)| (*activity, *action)).collect();
        actions.sort_by_key(|(_, action)| std::cmp::Reverse(action.bytes));
        actions
    }
}

/// Tables with a large part of the WAL, unless nearly all of it is images that settings explain.
pub(super) fn main_tables(facts: &Facts<'_>) -> Vec<Candidate> {
    /// The least share of the WAL in records without their images.
    const MIN_PLAIN: f64 = 0.15;
    /// The largest share of a table's bytes that settings explain alone.
    const MAX_IMAGES: f64 = 0.8;
    let new = |table| Group { table, claim: Claim::default(), images: 0, actions: BTreeMap::new() };
    let mut groups: Vec<Group<'_>> = facts.tables.iter().map(new).collect();
    for piece in assign(facts) {
        let Some((table, relation)) = piece.relation else { continue };
        // CREATE DATABASE copies tables of the template. Images for consistency checking have a finding.
        let is_own =
            piece.activity != Activity::CreateDatabase && piece.mechanism != Mechanism::ConsistencyImage;
        if is_own {
            groups[table].add(&piece, relation);
        }
    }
    let has_setting = !checkpoint_images(facts).is_empty() || !uncompressed_images(facts).is_empty();
    let is_notable = |group: &Group<'_>| {
        let plain = group.claim.bytes() - group.images;
        !has_setting
            || facts.share(plain) >= MIN_PLAIN
            || (group.images as f64) < MAX_IMAGES * group.claim.bytes() as f64
    };
    groups
        .into_iter()
        .filter(|group| !group.table.is_catalog && group.claim.bytes() > 0 && is_notable(group))
        .map(|group| candidate(facts, group))
        .collect()
}

fn candidate(facts: &Facts<'_>, group: Group<'_>) -> Candidate {
    let name = group.table.name.as_str();
    let total = group.claim.bytes();
    let actions = group.by_bytes();
    let (activity, first) = actions.first().copied().unwrap_or((Activity::Other, Action::default()));
    // One activity wrote most of the table's WAL, or several activities did.
    let mut text = if first.bytes * 5 >= total * 3 {
        let mut text = format!(
            "{} of the WAL: {}{}",
            facts.percent(first.bytes),
            subject(activity, &first, name),
            places(facts, &group, &first)
        );
        if (total - first.bytes) * 20 > total {
            let rest = actions[1..].iter().take(NAMED_ACTIVITIES - 1);
            text += &format!("; in addition: {}", names(facts, rest));
        }
        text
    } else {
        format!(
            "{} of the WAL: {name}, by {}",
            facts.percent(total),
            names(facts, actions.iter().take(NAMED_ACTIVITIES))
        )
    };
    if group.images * 10 > total {
        text += &format!("; full-page images are {} of the WAL", facts.percent(group.images));
    }
    // A transaction that writes at least half of the WAL has written most of the table.
    if let Some(one) = facts.explanation.transactions.first().filter(|one| facts.share(one.bytes) >= 0.5) {
        text += &format!("; transaction {} writes {} of the WAL", one.xid, facts.percent(one.bytes));
    }
    Candidate {
        text,
        points_at: name.to_owned(),
        remedy: remedy(facts, &group, activity, &first),
        saves: None,
        ..Candidate::new(group.claim, (0.0, 1.0))
    }
}

/// Activities with their shares.
fn names<'a>(facts: &Facts<'_>, actions: impl Iterator<Item = &'a (Activity, Action)>) -> String {
    let name = |(activity, action): &(Activity, Action)| {
        format!("{} {}", activity.description(), facts.percent(action.bytes))
    };
    actions.map(name).collect::<Vec<_>>().join(", ")
}

fn subject(activity: Activity, action: &Action, name: &str) -> String {
    let count = action.records;
    match activity {
        Activity::Insert => format!("{} inserted one by one into {name}", counted(count, "row")),
        Activity::Copy => format!("COPY into {name}"),
        Activity::Update => format!("{} of {name}", counted(count, "update")),
        Activity::Delete => format!("{} of {name}", counted(count, "delete")),
        Activity::RowLock => format!("{} of {name} by SELECT FOR UPDATE or SHARE", counted(count, "lock")),
        Activity::ForeignKey => format!("{} of {name} by checks of foreign keys", counted(count, "lock")),
        Activity::PartitionMove => format!("updates that move rows of {name} to another partition"),
        Activity::Read => format!("reads of {name}, which prune pages and set hint bits"),
        Activity::IndexBuild => format!("builds of indexes of {name}"),
        _ => format!("{} of {name}", activity.description()),
    }
}

/// The shares of the table, its indexes and TOAST in an activity's bytes, if it wrote to several of these.
fn places(facts: &Facts<'_>, group: &Group<'_>, action: &Action) -> String {
    let table = action.bytes - action.indexes - action.toast;
    let indexes = match group.table.indexes().len() {
        1 => "its index".to_owned(),
        count => format!("its {count} indexes"),
    };
    let parts = [("table", table), (indexes.as_str(), action.indexes), ("TOAST", action.toast)];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(part, bytes)| format!("{part} {}", facts.percent(*bytes)))
        .collect();
    if parts.len() > 1 { format!(" ({})", parts.join(", ")) } else { String::new() }
}

/// Changes of the work that write less.
fn remedy(facts: &Facts<'_>, group: &Group<'_>, activity: Activity, action: &Action) -> String {
    if group.table.is_gone(facts) {
        return "nothing for this table, which was dropped within this WAL; --by relation,record shows its records"
            .to_owned();
    }
    let mut parts: Vec<String> = Vec::new();
    parts.extend(match activity {
        Activity::Insert => Some(
            "COPY, which logs many rows in one record (INSERT logs each row by itself, also with many VALUES); an insert that a \
             trigger makes for each row can be one for a statement, with transition tables (REFERENCING NEW TABLE)"
                .to_owned(),
        ),
        Activity::Copy => Some("load only rows that are new, and make indexes after a large load".to_owned()),
        Activity::Update => Some("update only rows and columns that change, several changes of a row at once".to_owned()),
        Activity::Delete => Some(
            "drop or truncate partitions in place of deletes; a delete of a referenced row deletes those that refer to it, where the \
             foreign key says ON DELETE CASCADE"
                .to_owned(),
        ),
        Activity::RowLock => Some("fewer explicit row locks".to_owned()),
        Activity::Vacuum | Activity::Read => Some("fewer updates and deletes of its rows".to_owned()),
        _ => None,
    });
    if action.missed_hot * 4 >= action.bytes && action.missed_hot > 0 {
        parts.push(
            "HOT updates write into no index: they change no indexed column and find free space on the page (fillfactor)".to_owned(),
        );
    }
    if action.indexes * 4 >= action.bytes {
        parts.extend(droppable(facts, group));
    }
    if group.images * 4 >= group.claim.bytes() {
        parts.push(
            "checkpoints farther apart (max_wal_size, checkpoint_timeout) write fewer images".to_owned(),
        );
    }
    if parts.is_empty() {
        parts.push("--by relation,record shows the records that wrote it".to_owned());
    }
    parts.join("; ")
}

/// Advice about the largest index that may be dropped.
fn droppable(facts: &Facts<'_>, group: &Group<'_>) -> Option<String> {
    let indexes = group.table.indexes();
    let bytes = |index: &Index<'_>| -> u64 {
        let cells = index.files.iter().flat_map(|file| &file.cells);
        cells.map(|cell| facts.tally(*cell).bytes()).sum()
    };
    let largest =
        indexes.iter().filter(|index| is_droppable(facts, index)).max_by_key(|index| bytes(index))?;
    let is_known = facts.labels.is_required_index(Owner::Relation(largest.last.file, Fork::MAIN)).is_some();
    Some(format!(
        "drop or merge indexes that few queries need, as each of these rows writes into all of them: the largest {} is {} ({} of the WAL)",
        if is_known { "that no constraint needs" } else { "index" },
        largest.name,
        facts.percent(bytes(largest))
    ))
}
