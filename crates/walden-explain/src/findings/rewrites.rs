//! Causes in relations that are written whole.

use std::collections::{BTreeMap, BTreeSet};

use walden_format::lsn::Lsn;
use walden_format::rmgr::info::heap2;
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_source::counted;

use super::facts::{
    Facts, Relation, Table, is_delete, is_index_manager, is_index_vacuum, is_insert, is_page_image,
};
use super::ledger::Claim;
use super::{Candidate, bytes_text};
use crate::labels::Part;
use crate::tally::Bucket;

/// Minimum number of values that are replaced.
const MIN_VALUES: u64 = 50;

/// TOAST values that are deleted about as often as they are inserted: updates replace them.
pub(super) fn toast(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for table in facts.user_tables() {
        let toasts = || table.relations.iter().filter(|one| one.is_toast());
        let inserts = facts.records(facts.cells(toasts(), is_insert));
        let deletes = facts.records(facts.cells(toasts(), is_delete));
        if inserts < MIN_VALUES || deletes * 2 < inserts {
            continue;
        }
        let indexes = table.relations.iter().filter(|one| one.part == Part::ToastIndex);
        let cells = toasts().chain(indexes).flat_map(|one| one.cells.iter().copied());
        let claim = facts.claim(cells, 1.0, 1.0);
        let name = &table.name;
        found.push(Candidate {
            text: format!(
                "updates of {name} write its large values (TOAST) again whole: {inserts} chunks written and {deletes} deleted, \
                 {} of the WAL",
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: "store the parts of the large value that change often separately, in columns or a table of its own, and do not set \
                     the value if it stays the same"
                .into(),
            // Without it, the row does not contain the new value's address either.
            ..Candidate::new(claim, (0.5, 1.05))
        });
    }
    found
}

/// Tables that are filled, and then truncated or dropped.
pub(super) fn staging(facts: &Facts<'_>) -> Vec<Candidate> {
    let is_named = |table: &&Table| !matches!(table.part, Part::Relation | Part::MaterializedView);
    let named = facts.user_tables().filter(is_named).filter_map(|table| emptied(facts, table));
    named.chain(dropped(facts)).collect()
}

/// How often a table, or each of its partitions, was filled and then emptied.
fn fills(facts: &Facts<'_>, table: &Table) -> usize {
    let is_filled = |one: &Relation| facts.records(facts.cells([one], is_insert)) > 0;
    let was_emptied = |one: &&Relation| one.dropped_at.is_some() && !one.is_replaced && !one.is_index;
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for one in table.relations.iter().filter(was_emptied).filter(|one| is_filled(one)) {
        *times.entry(&one.name).or_default() += 1;
    }
    times.into_values().max().unwrap_or(0)
}

fn emptied(facts: &Facts<'_>, table: &Table) -> Option<Candidate> {
    let fills = fills(facts, table);
    // A table that is loaded unlogged and then logged has a finding for that.
    if fills == 0 || rewritten_in(facts, table) == Some(Way::Logged) {
        return None;
    }
    let claim = facts.claim(table.relations.iter().flat_map(|one| one.cells.iter().copied()), 1.0, 1.0);
    let name = &table.name;
    Some(Candidate {
        text: format!(
            "{name} was filled and truncated {fills} {}; with its indexes it takes {} of the WAL",
            if fills == 1 { "time" } else { "times" },
            facts.percent(claim.bytes())
        ),
        points_at: name.clone(),
        remedy: table.sql.statement(
            "if its rows can be lost in a crash: ALTER TABLE",
            " SET UNLOGGED while it is empty, or a temporary table: a crash then empties it, and standbys do not have it (the server \
             refuses it for a table of a publication, and for one that foreign keys of logged tables refer to); leave it unlogged, as SET \
             LOGGED logs all of its rows",
        ),
        ..Candidate::new(claim, (0.95, 1.0))
    })
}

/// Dropped tables, known only by the numbers of their files.
fn dropped(facts: &Facts<'_>) -> Option<Candidate> {
    let files = || facts.user_tables().filter(|table| table.part == Part::Relation);
    let filled: Vec<&Table> = files().filter(|table| fills(facts, table) > 0).collect();
    let relations = filled.iter().flat_map(|table| &table.relations);
    // A commit record drops indexes with their table. Others are of tables that are still there.
    let by_logging = logged_without_name(facts);
    let commits: BTreeSet<Lsn> = relations.filter_map(|one| one.dropped_at).collect();
    let commits: BTreeSet<Lsn> = commits.difference(&by_logging.commits).copied().collect();
    let is_of_them =
        |one: &&Relation| one.dropped_at.is_some_and(|commit| commits.contains(&commit)) && !one.is_replaced;
    let relations = files().flat_map(|table| &table.relations).filter(is_of_them);
    let claim = facts.claim(relations.flat_map(|one| one.cells.iter().copied()), 1.0, 1.0);
    let is_theirs = |table: &&&Table| {
        table.relations.iter().any(|one| one.dropped_at.is_some_and(|commit| commits.contains(&commit)))
    };
    let tables: Vec<&str> = filled
        .iter()
        .filter(is_theirs)
        .filter(|table| !table.relations.iter().any(Relation::is_toast))
        .map(|table| table.name.as_str())
        .collect();
    let first = *tables.first()?;
    let share = facts.percent(claim.bytes());
    let (text, points_at) = match tables.len() {
        1 => (
            format!(
                "1 table was filled and then truncated or dropped; with its indexes it takes {share} of the WAL"
            ),
            first.to_owned(),
        ),
        count => (
            format!(
                "{count} tables were filled and then truncated or dropped; with their indexes they take {share} of the WAL"
            ),
            format!("{first} and {} more", count - 1),
        ),
    };
    Some(Candidate {
        text,
        points_at,
        remedy: "for intermediate results, which can be lost in a crash: CREATE TEMPORARY TABLE or CREATE UNLOGGED TABLE (a crash empties \
                 it, and standbys do not have it); for partitions that expire, nothing: dropping them is the cheapest way to delete"
            .into(),
        // Which of the two it is, the WAL does not show.
        ..Candidate::new(claim, (0.0, 1.0))
    })
}

/// Tables that a new subscription filled (`copy_table` in `tablesync.c`), together.
pub(super) fn initial_copy(facts: &Facts<'_>) -> Vec<Candidate> {
    let is_copied = |table: &&Table| table.evidence().copies.rows > 0;
    let mut copied: Vec<&Table> = facts.user_tables().filter(is_copied).collect();
    copied.sort_by_key(|table| std::cmp::Reverse(table.evidence().copies.rows));
    let Some(first) = copied.first() else { return Vec::new() };
    let mut claim = Claim::default();
    for table in &copied {
        // Changes that are applied later are inserts of a row each.
        let is_copy =
            |manager: u8, info: u8| manager == rmid::HEAP2 && info & heap2::OPMASK == heap2::MULTI_INSERT;
        let by_copy = facts.records(facts.cells(table.heaps(), is_copy));
        let inserts = facts.records(facts.cells(table.heaps(), is_insert)).max(1);
        let share = (table.evidence().copies.rows as f64
            / (table.evidence().copies.rows + inserts.saturating_sub(by_copy)) as f64)
            .min(1.0);
        facts.extend(&mut claim, facts.cells(table.heaps(), is_copy), 1.0, 1.0);
        let is_entry = |manager: u8, info: u8| is_index_manager(manager) && !is_index_vacuum(manager, info);
        facts.extend(&mut claim, facts.cells(table.index_files(), is_entry), share, share);
        facts.extend(
            &mut claim,
            facts.cells(table.relations.iter().filter(|one| one.is_toast()), is_insert),
            share,
            share,
        );
    }
    let rows: u64 = copied.iter().map(|table| table.evidence().copies.rows).sum();
    let (others, with) = match copied.len() - 1 {
        0 => (String::new(), "its"),
        1 => (" and 1 more table".to_owned(), "their"),
        many => (format!(" and {many} more tables"), "their"),
    };
    vec![Candidate {
        text: format!(
            "a subscription of logical replication copied {} into {}{others} when it started; with {with} indexes that takes {} of the WAL",
            counted(rows, "row"),
            first.name,
            facts.percent(claim.bytes())
        ),
        points_at: first.name.clone(),
        remedy: "it happens once for each table. For a whole database, pg_createsubscriber (since 17) makes a subscriber of a standby and \
                 copies nothing; else create indexes other than the primary key after the copy; copy_data = false if the subscriber has the rows already"
            .into(),
        ..Candidate::new(claim, (0.0, 1.0))
    }]
}

/// Files without a name that `ALTER TABLE ... SET LOGGED` wrote, and that were dropped again.
struct LoggedWithoutName {
    /// How many tables' files.
    count: usize,
    /// The commits that dropped these, with the files of their indexes.
    commits: BTreeSet<Lsn>,
    /// All bytes of the files.
    claim: Claim,
}

fn logged_without_name(facts: &Facts<'_>) -> LoggedWithoutName {
    let files = || {
        facts.user_tables().filter(|table| table.part == Part::Relation).flat_map(|table| &table.relations)
    };
    let is_filled = |one: &&Relation| facts.records(facts.cells([*one], is_insert)) > 0 && !one.is_toast();
    let logged: Vec<&Relation> =
        files().filter(|one| one.written_by.is_some_and(|by| by.was_unlogged)).filter(is_filled).collect();
    let commits: BTreeSet<Lsn> = logged.iter().filter_map(|one| one.dropped_at).collect();
    let is_theirs = |one: &&Relation| one.dropped_at.is_some_and(|commit| commits.contains(&commit));
    let claim = facts.claim(files().filter(is_theirs).flat_map(|one| one.cells.iter().copied()), 1.0, 1.0);
    LoggedWithoutName { count: logged.len(), commits, claim }
}

pub(super) fn refresh(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for view in facts.user_tables().filter(|table| table.part == Part::MaterializedView) {
        // CREATE MATERIALIZED VIEW writes it whole, too, but replaces no file.
        let refreshes = view.heaps().filter(|one| one.written_by.is_some() && !one.is_index).count();
        if refreshes == 0 {
            found.extend(refresh_by_rows(facts, view));
            continue;
        }
        let written = view.relations.iter().filter(|one| one.written_by.is_some());
        let claim = facts.claim(written.flat_map(|one| one.cells.iter().copied()), 1.0, 1.0);
        let name = &view.name;
        let each = claim.bytes() / refreshes as u64;
        found.push(Candidate {
            text: format!(
                "the materialized view {name} was written whole {refreshes} {}, {} each, {} of the WAL",
                if refreshes == 1 { "time" } else { "times" },
                bytes_text(each),
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: view.sql.statement(
                "REFRESH MATERIALIZED VIEW CONCURRENTLY",
                ", which writes only rows that differ (it needs a unique index); or refresh it less often",
            ),
            // Where no row differs, the rows of the new file in catalogs disappear, too.
            ..Candidate::new(claim, (0.1, 1.05))
        });
    }
    found
}

/// `REFRESH MATERIALIZED VIEW CONCURRENTLY`, which deletes and inserts the rows that differ
/// (`refresh_by_match_merge`).
fn refresh_by_rows(facts: &Facts<'_>, view: &Table) -> Option<Candidate> {
    let old = || view.heaps().filter(|one| !one.was_created);
    let [inserted, deleted] =
        [is_insert as fn(u8, u8) -> bool, is_delete].map(|is_its| facts.records(facts.cells(old(), is_its)));
    if inserted + deleted == 0 {
        return None;
    }
    let claim = facts.claim(view.relations.iter().flat_map(|one| one.cells.iter().copied()), 1.0, 1.0);
    let name = &view.name;
    Some(Candidate {
        text: format!(
            "REFRESH MATERIALIZED VIEW CONCURRENTLY of {name} deleted {deleted} rows and inserted {inserted}; with its indexes it takes {} of \
             the WAL",
            facts.percent(claim.bytes())
        ),
        points_at: name.clone(),
        remedy: "refresh it less often; where most rows differ each time, REFRESH without CONCURRENTLY writes them once, and locks readers \
                 out meanwhile"
            .into(),
        ..Candidate::new(claim, (0.1, 0.9))
    })
}

pub(super) fn table(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    // Earlier files of a table have no name: they belong to the only one that was rewritten like that.
    let is_logged = |table: &&Table| rewritten_in(facts, table) == Some(Way::Logged);
    let logged_tables = facts.user_tables().filter(is_logged).count();
    for table in facts.user_tables() {
        let Some(way) = rewritten_in(facts, table) else { continue };
        let mut claim = written_whole(facts, table);
        let mut times = times_logged(table);
        if way == Way::Logged && logged_tables == 1 {
            let earlier = logged_without_name(facts);
            times += earlier.count;
            claim.merge(earlier.claim);
        }
        let name = &table.name;
        let share = facts.percent(claim.bytes());
        let has_repack = facts.explanation.version >= Major::V19;
        let (text, remedy, saves) = match way {
            Way::Images if has_repack => (
                format!(
                    "{name} and its indexes were written whole, as REPACK, VACUUM FULL, CLUSTER and some forms of ALTER TABLE do: \
                     {share} of the WAL"
                ),
                "plain VACUUM often enough that the space is used again; to release much space, REPACK (CONCURRENTLY), which writes \
                 a similar amount but lets queries and changes continue (it needs a primary key or another identity index)",
                Some((0.9, 1.0)),
            ),
            Way::Concurrent => (
                format!(
                    "{name} and its indexes were written whole by REPACK (CONCURRENTLY), row by row: {share} of the WAL"
                ),
                "plain VACUUM often enough that the space is used again; REPACK only to release much space",
                Some((0.9, 1.0)),
            ),
            Way::Images => (
                format!(
                    "{name} and its indexes were written whole, as VACUUM FULL, CLUSTER and some forms of ALTER TABLE do: {share} of \
                     the WAL"
                ),
                "plain VACUUM often enough that the space is used again; VACUUM FULL only to release much space",
                Some((0.9, 1.0)),
            ),
            Way::Logged => (
                format!(
                    "ALTER TABLE ... SET LOGGED wrote {name} and its indexes whole {}, after it was unlogged: {share} of the WAL",
                    match times {
                        1 => "once".to_owned(),
                        times => format!("{times} times"),
                    }
                ),
                "leave the table unlogged if its rows can be lost in a crash; else leave it logged and load it with COPY: SET LOGGED logs \
                 each row and each page of the indexes, so that the unlogged load saves nothing",
                // Changes of catalogs and files disappear, too.
                Some((0.0, 1.1)),
            ),
            Way::Rows => (
                format!(
                    "{name} and its indexes were written whole, row by row, as ALTER TABLE does for a column of another type, with a \
                     volatile default, or to SET LOGGED: {share} of the WAL"
                ),
                "all such changes of a table in one ALTER TABLE, which writes it once; a default that is a constant, or that is set \
                 after the column was added and holds for new rows, rewrites nothing",
                Some((0.0, 1.0)),
            ),
            Way::Move => (
                format!("{name} was copied to another tablespace: {share} of the WAL"),
                "tables that are created where they are to stay (TABLESPACE, default_tablespace); wal_compression compresses the \
                 images of their pages",
                None,
            ),
        };
        let candidate = Candidate::new(claim, saves.unwrap_or_default());
        let saves = candidate.saves.filter(|_| saves.is_some());
        found.push(Candidate { text, points_at: name.clone(), remedy: remedy.into(), saves, ..candidate });
    }
    found
}

pub(super) fn index_build(facts: &Facts<'_>) -> Vec<Candidate> {
    let (mut found, mut replaced) = (Vec::new(), Vec::new());
    let mut sizes: Vec<(u64, &str)> = Vec::new();
    for table in facts.user_tables().filter(|table| rewritten_in(facts, table).is_none()) {
        let mut builds: BTreeMap<&str, Build<'_>> = BTreeMap::new();
        for index in table.relations.iter().filter(|one| is_built(facts, one)) {
            let claim = images_of_build(facts, index);
            if claim.bytes() == 0 {
                continue;
            }
            // Each run of REINDEX CONCURRENTLY leaves the file of the run before, which no name has any more.
            if index.part == Part::Relation && index.dropped_at.is_some() {
                replaced.push(claim);
                continue;
            }
            let build = builds.entry(&index.index_name).or_insert_with(|| Build {
                of_table: table.behind(index),
                is_rebuilt: table.relations.iter().any(|one| one.name == index.name && !one.was_created),
                times: BTreeMap::new(),
                claim: Claim::default(),
            });
            *build.times.entry(&index.name).or_default() += 1;
            build.claim.merge(claim);
        }
        for (name, build) in builds {
            sizes.push((build.claim.bytes() / build.count() as u64, name));
            found.push(build.candidate(facts, name));
        }
    }
    if let Some((candidate, same)) = replaced_builds(facts, replaced, &sizes, &found) {
        found.retain(|one| Some(&one.points_at) != same.as_ref());
        found.push(candidate);
    }
    found
}

/// The builds of an index.
struct Build<'a> {
    of_table: String,
    /// Whether the index had another file before.
    is_rebuilt: bool,
    /// How often each index was built: by name, for a partitioned index the name of each partition.
    times: BTreeMap<&'a str, usize>,
    claim: Claim,
}

const COMPRESS_BUILD: &str = "wal_compression compresses these images";
/// Advice against builds again and again.
const REBUILD_LESS: &str = "rebuild an index only when it is bloated (pgstatindex of pgstattuple shows how full its pages are), and vacuum its \
                            table often enough that dead entries go before pages split";

impl Build<'_> {
    fn count(&self) -> usize {
        self.times.values().copied().max().unwrap_or(1)
    }

    fn candidate(self, facts: &Facts<'_>, name: &str) -> Candidate {
        let count = self.count();
        let Build { of_table, is_rebuilt, claim, .. } = self;
        let (bytes, share) = (bytes_text(claim.bytes()), facts.percent(claim.bytes()));
        let is_again = is_rebuilt || count > 1;
        let (done, remedy) = match is_again {
            true => (
                match count {
                    1 => "rebuilt (REINDEX)".to_owned(),
                    many => format!("built {many} times (REINDEX, or DROP INDEX and CREATE INDEX)"),
                },
                format!("{REBUILD_LESS}; {COMPRESS_BUILD}"),
            ),
            false => (
                "built".to_owned(),
                format!(
                    "{COMPRESS_BUILD}; an index that is built once after its table was loaded takes less WAL than one that grows with it"
                ),
            ),
        };
        let candidate = Candidate {
            text: format!(
                "index {name}{of_table} was {done}: images of all of its pages, {bytes}, take {share} of the WAL, regardless of checkpoints"
            ),
            points_at: name.to_owned(),
            remedy,
            ..Candidate::new(claim, (0.0, 1.0))
        };
        if is_again {
            return candidate;
        }
        let method = super::settings::compression_method(facts).into();
        Candidate { saves: None, try_settings: vec![("wal_compression", method)], ..candidate }
    }
}

/// Builds of indexes whose files were dropped again. `sizes`: the indexes that are left, with the bytes of a
/// build. The name belongs to an index whose build, in `found`, the candidate includes.
fn replaced_builds(
    facts: &Facts<'_>,
    builds: Vec<Claim>,
    sizes: &[(u64, &str)],
    found: &[Candidate],
) -> Option<(Candidate, Option<String>)> {
    let largest = builds.iter().map(Claim::bytes).max()?;
    let count = builds.len();
    let mut claim = Claim::default();
    builds.into_iter().for_each(|build| claim.merge(build));
    // An index of about the same size may be the same one.
    let is_alike = |&&(bytes, _): &&(u64, &str)| bytes.abs_diff(largest) * 10 <= largest;
    let alike: Vec<&str> = sizes.iter().filter(is_alike).map(|(_, name)| *name).collect();
    let same = match alike[..] {
        [name] => found.iter().find(|one| one.points_at == name),
        _ => None,
    };
    let (subject, verb) = if count == 1 { ("index", "was") } else { ("indexes", "were") };
    let and_same = same.map_or_else(String::new, |same| {
        format!(", and {}, which is about as large and may be the same index", same.points_at)
    });
    claim.merge(same.map(|same| same.claim.clone()).unwrap_or_default());
    let points_at = same.map_or_else(String::new, |same| format!("{}, ", same.points_at));
    let candidate = Candidate {
        text: format!(
            "{count} {subject} {verb} built and dropped again{and_same}, as by REINDEX CONCURRENTLY, or CREATE INDEX CONCURRENTLY after one \
             that failed: images of all pages, {}, take {} of the WAL",
            bytes_text(claim.bytes()),
            facts.percent(claim.bytes())
        ),
        points_at: format!("{points_at}REINDEX, CREATE INDEX"),
        remedy: format!(
            "{REBUILD_LESS}; where CREATE INDEX CONCURRENTLY fails, find out why before the next attempt (duplicate keys, a deadlock, \
             lock_timeout or statement_timeout); {COMPRESS_BUILD}"
        ),
        ..Candidate::new(claim, (0.0, 1.0))
    };
    Some((candidate, same.map(|same| same.points_at.clone())))
}

/// Whether a file belongs to an index that was built in the WAL.
pub(super) fn is_built(facts: &Facts<'_>, one: &Relation) -> bool {
    let is_new = one.was_created && one.written_by.is_none() && !facts.is_copied(one);
    is_new && (one.is_index || is_index_by_its_images(facts, one))
}

fn images_of_build(facts: &Facts<'_>, index: &Relation) -> Claim {
    let mut claim = Claim::default();
    for cell in facts.main_fork(index) {
        claim.add_images(cell, facts.tally(cell).buckets.get(Bucket::ImageForced));
    }
    claim
}

/// Whether a new file without a name belongs to an index, because only images filled it. A table has records
/// of its rows, unless a rewrite wrote it or `CREATE DATABASE` copied it, catalogs and all.
fn is_index_by_its_images(facts: &Facts<'_>, relation: &Relation) -> bool {
    let has_image = |cell| facts.kind(cell).is_some_and(|kind| kind.rmid() == rmid::XLOG);
    relation.part == Part::Relation && facts.main_fork(relation).all(has_image)
}

/// Maximum ratio of inserted bytes to image bytes of a file that counts as filled by images. The inserts were
/// made after the rewrite.
const MAX_ROWS_TO_IMAGES: u64 = 10;

/// How a table was written whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// By images of its pages.
    Images,
    /// Row by row by `REPACK (CONCURRENTLY)`; since 19.
    Concurrent,
    /// Row by row by `ALTER TABLE ... SET LOGGED`.
    Logged,
    /// Row by row (`ATRewriteTable`).
    Rows,
    /// By images, to another tablespace.
    Move,
}

fn rewritten_in(facts: &Facts<'_>, table: &Table) -> Option<Way> {
    let is_new = |one: &&Relation| {
        let is_heap = !one.is_index && !one.is_toast() && one.part != Part::Relation;
        is_heap && one.was_created && !facts.is_copied(one)
    };
    let is_logged = |one: &Relation| !facts.explanation.unlogged.contains(&one.file);
    let way = |one: &Relation| match one.written_by {
        Some(by) if by.is_move => Some(Way::Move),
        Some(by) if by.is_concurrent => Some(Way::Concurrent),
        // The file of an unlogged table has an init fork.
        Some(by) if by.was_unlogged && is_logged(one) => Some(Way::Logged),
        _ if is_written_by_images(facts, one) => Some(Way::Images),
        Some(by) => by.has_logged_rows.then_some(Way::Rows),
        None => None,
    };
    let heaps = table.relations.iter().filter(|_| table.part != Part::MaterializedView).filter(is_new);
    heaps.filter_map(way).min()
}

/// How often `SET LOGGED` wrote a table.
fn times_logged(table: &Table) -> usize {
    let is_its = |one: &&Relation| one.written_by.is_some_and(|by| by.was_unlogged && by.has_logged_rows);
    table.heaps().filter(is_its).count()
}

/// Whether images filled a file, and not rows: vacuum logs an image of an empty page now and then
/// (`lazy_scan_new_or_empty`).
fn is_written_by_images(facts: &Facts<'_>, relation: &Relation) -> bool {
    let images = facts.bucket(facts.main_fork(relation), Bucket::ImageForced);
    let rows: u64 = facts.cells([relation], is_insert).map(|cell| facts.tally(cell).bytes()).sum();
    images > 0 && rows <= MAX_ROWS_TO_IMAGES * images
}

/// Claims the bytes of a rewrite: images of the pages of the new files, with their records, and rows that are
/// inserted one by one. Excludes later writes to the new files, and inserted rows beyond the number that the
/// transaction wrote.
fn written_whole(facts: &Facts<'_>, table: &Table) -> Claim {
    let mut claim = Claim::default();
    let created = || table.relations.iter().filter(|one| one.was_created);
    for relation in created() {
        for cell in facts.main_fork(relation) {
            let tally = facts.tally(cell);
            if facts.kind(cell).is_some_and(|kind| is_page_image(kind.rmid(), kind.info())) {
                claim.add_share(cell, tally, 1.0, 1.0);
            } else {
                claim.add_images(cell, tally.buckets.get(Bucket::ImageForced));
            }
        }
    }
    let transactions: BTreeSet<u32> = created().filter_map(|one| one.written_by).map(|by| by.xid).collect();
    for xid in transactions {
        // VACUUM FULL inserts the rows of TOAST tables only.
        let has_rows = |one: &&Relation| {
            one.written_by.is_some_and(|by| by.xid == xid)
                && !one.is_index
                && (one.is_toast() || !is_written_by_images(facts, one))
        };
        let rows = facts.cells(table.relations.iter().filter(has_rows), is_insert);
        facts.extend_plain(&mut claim, rows, facts.bytes_of(xid).0);
    }
    claim
}
