//! Causes in system catalogs and sequences.

use std::collections::BTreeMap;

use walden_format::lsn::Lsn;
use walden_format::rmgr::info::{dbase, smgr};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_source::counted;

use super::facts::{Facts, Table, is_delete, is_insert, is_page_image, is_update};
use super::ledger::Claim;
use super::{Candidate, bytes_text};
use crate::evidence::Evidence;
use crate::tally::Bucket;

/// The catalogs that hold large objects: user data, not definitions of database objects.
const OF_LARGE_OBJECTS: [&str; 2] = ["pg_largeobject", "pg_largeobject_metadata"];

/// The saving if relations are no longer created and dropped, as a share of the changes of catalogs. Records
/// of files, locks and commits with invalidation messages disappear, too.
const OF_CHURN: (f64, f64) = (0.8, 1.25);

/// Whether a table is the catalog of this name, in any database.
fn is_named(table: &Table, name: &str) -> bool {
    table.is_catalog && table.name.ends_with(name)
}

fn is_of_large_objects(table: &Table) -> bool {
    OF_LARGE_OBJECTS.iter().any(|name| is_named(table, name))
}

fn cells_of(table: &Table) -> impl Iterator<Item = usize> {
    table.relations.iter().flat_map(|one| one.cells.iter().copied())
}

/// Large objects, whose content is rows of a catalog.
pub(super) fn large_objects(facts: &Facts<'_>) -> Vec<Candidate> {
    let tables = || facts.tables.iter().filter(|table| is_of_large_objects(table));
    let claim = facts.claim(tables().flat_map(cells_of), 1.0, 1.0);
    let heaps = || tables().filter(|table| is_named(table, OF_LARGE_OBJECTS[0])).flat_map(Table::heaps);
    let kinds: [fn(u8, u8) -> bool; 3] = [is_insert, is_update, is_delete];
    let [inserted, updated, deleted] = kinds.map(|is_its| facts.records(facts.cells(heaps(), is_its)));
    if inserted + updated + deleted == 0 {
        return Vec::new();
    }
    let of_updates: u64 = facts.cells(heaps(), is_update).map(|cell| facts.tally(cell).bytes()).sum();
    let most = of_updates as f64 / claim.bytes().max(1) as f64;
    // A row holds LOBLKSIZE bytes, a quarter of a page (storage/large_object.h). inv_write updates rows that
    // exist already.
    let (remedy, saves) = if updated > inserted {
        (
            "write to them in pieces whose sizes and offsets are multiples of 2048 bytes: each smaller piece writes a row of 2 kB again",
            Some((0.0, most)),
        )
    } else if deleted > inserted + updated {
        (
            "keep content that is deleted again as bytea in a table that is partitioned by when it goes, and drop partitions, or keep \
             it outside of the database",
            None,
        )
    } else {
        (
            "compress the content before it is stored (each row is compressed by itself; a bytea value is compressed whole), or \
             keep it outside of the database",
            None,
        )
    };
    let text = format!(
        "{} of the WAL is large objects: {inserted} rows of pg_largeobject were inserted, {updated} updated and {deleted} deleted, \
         each with at most 2 kB of content",
        facts.percent(claim.bytes())
    );
    vec![candidate(claim, text, OF_LARGE_OBJECTS[0], remedy, saves)]
}

/// A candidate that saves between these shares of the claimed bytes, if that is known.
fn candidate(
    claim: Claim,
    text: String,
    points_at: &str,
    remedy: &str,
    saves: Option<(f64, f64)>,
) -> Candidate {
    let candidate = Candidate::new(claim, saves.unwrap_or_default());
    let saves = candidate.saves.filter(|_| saves.is_some());
    Candidate { text, points_at: points_at.into(), remedy: remedy.into(), saves, ..candidate }
}

pub(super) fn churn(facts: &Facts<'_>) -> Vec<Candidate> {
    let catalogs = || facts.tables.iter().filter(|table| table.is_catalog && !is_of_large_objects(table));
    let mut claim = facts.claim(catalogs().flat_map(cells_of), 1.0, 1.0);
    if claim.bytes() == 0 {
        return Vec::new();
    }
    let of_users = pages_copied_from_template(facts);
    let bytes = |table: &Table| -> u64 { cells_of(table).map(|cell| facts.tally(cell).bytes()).sum() };
    let of = |name: &str| catalogs().filter(|table| is_named(table, name)).map(bytes).sum::<u64>();
    let count =
        |is_wanted: fn(u8, u8) -> bool| facts.records(facts.cells_without_relation(is_wanted).into_iter());
    let files = count(|manager, info| manager == rmid::SMGR && info == smgr::CREATE);
    let rows_of_class = facts.records(facts.cells(
        catalogs().filter(|table| is_named(table, "pg_class")).flat_map(|table| table.heaps()),
        is_insert,
    ));
    let databases = match facts.explanation.version >= Major::V15 {
        true => count(|manager, info| manager == rmid::DBASE && info == dbase::CREATE_WAL_LOG),
        false => 0,
    };
    let copied = facts.bucket(catalogs().flat_map(cells_of), Bucket::ImageForced) + of_users.bytes();
    claim.merge(of_users);
    let (created, dropped) = (&facts.explanation.created, &facts.explanation.dropped);
    let dropped_again = created.iter().filter(|file| dropped.contains_key(*file)).count();
    let initdb = facts.initdb_bytes();
    let all = facts.percent(claim.bytes());
    let of_relations = format!(
        "{all} of the WAL is changes of system catalogs: {rows_of_class} relations were entered in pg_class, {files} with a logged file"
    );
    // A cause is named only if rows or files show it.
    let (text, what, remedy, saves) = if initdb * 2 >= claim.bytes() {
        (
            format!(
                "{all} of the WAL is changes of system catalogs: the WAL starts with initdb, which wrote up to {}",
                bytes_text(initdb)
            ),
            "initdb",
            "nothing: this is written once for a cluster; --from leaves it out",
            None,
        )
    } else if of("pg_statistic") * 2 > claim.bytes() {
        (
            of_relations,
            "ANALYZE and autovacuum",
            "less frequent ANALYZE of tables that change little (autovacuum_analyze_scale_factor)",
            Some((0.8, 1.0)),
        )
    } else if databases > 0 && copied * 2 > claim.bytes() {
        (
            format!(
                "{all} of the WAL is CREATE DATABASE: {databases} {} created, each with an image of every page of its template",
                if databases == 1 { "database was" } else { "databases were" }
            ),
            "CREATE DATABASE",
            "where databases are created often, keep them and empty them; STRATEGY = file_copy logs no pages, but takes two \
             checkpoints of the whole server",
            Some((0.5, 1.0)),
        )
    // Files of temporary tables are not logged, but their rows in pg_class are.
    } else if rows_of_class > 2 * files {
        (
            of_relations,
            "temporary tables",
            "create a temporary table once a session, with ON COMMIT DELETE ROWS; or use a CTE or an array instead",
            Some(OF_CHURN),
        )
    } else if rows_of_class > 0 && dropped_again * 2 > created.len() {
        (
            format!("{of_relations}; {dropped_again} of {} new files were dropped again", created.len()),
            "tables created and dropped",
            "keep the table and TRUNCATE it, or use partitions that are made in advance",
            Some(OF_CHURN),
        )
    // Partitions made in advance, or a schema that is loaded.
    } else if rows_of_class > 0 {
        (
            format!("{of_relations}; {dropped_again} of {} new files were dropped again", created.len()),
            "tables created",
            "fewer and larger partitions, with fewer indexes and columns: each of these has rows of its own in the catalogs",
            None,
        )
    } else if let Some(dropped) = dropped_files(facts) {
        (
            format!("{all} of the WAL is changes of system catalogs: {dropped}"),
            "tables dropped",
            "fewer and larger partitions, with fewer indexes and columns: a drop deletes the rows that each of these has in the catalogs. A \
             cleanup that happens once needs no remedy",
            None,
        )
    } else {
        let Some(largest) = catalogs().max_by_key(|table| bytes(table)) else { return Vec::new() };
        (
            format!(
                "{all} of the WAL is changes of system catalogs, {} of {}; no relation was entered in pg_class",
                facts.percent(bytes(largest)),
                largest.name
            ),
            largest.name.as_str(),
            "--by relation,record shows the records of each catalog",
            None,
        )
    };
    vec![candidate(claim, text, what, remedy, saves)]
}

/// Claims the images of user tables and indexes that `CREATE DATABASE` copied from a template. Together with
/// the catalogs of the new databases, these images are the WAL of the statement.
fn pages_copied_from_template(facts: &Facts<'_>) -> Claim {
    let mut claim = Claim::default();
    let relations = facts.user_tables().flat_map(|table| &table.relations);
    for relation in relations.filter(|one| facts.is_copied(one)) {
        let is_image =
            |cell: &usize| facts.kind(*cell).is_some_and(|kind| is_page_image(kind.rmid(), kind.info()));
        facts.extend(&mut claim, relation.cells.iter().copied().filter(is_image), 1.0, 1.0);
    }
    claim
}

/// Describes the drop of many relations that are older than the WAL, if there is one.
fn dropped_files(facts: &Facts<'_>) -> Option<String> {
    /// Fewer files do not explain changes of catalogs.
    const MIN_FILES: usize = 10;
    let (created, dropped) = (&facts.explanation.created, &facts.explanation.dropped);
    let mut commits: BTreeMap<Lsn, usize> = BTreeMap::new();
    for (_, commit) in dropped.iter().filter(|(file, _)| !created.contains(*file)) {
        *commits.entry(*commit).or_default() += 1;
    }
    let files: usize = commits.values().sum();
    // TRUNCATE and rewrites create a file for each file that they drop.
    if files < MIN_FILES || files <= 2 * created.len() {
        return None;
    }
    let (commit, most) = commits.into_iter().max_by_key(|(_, files)| *files)?;
    Some(format!("{files} files of older relations were dropped, {most} of them by the commit at {commit}"))
}

pub(super) fn sequences(facts: &Facts<'_>) -> Vec<Candidate> {
    let is_sequence = |manager: u8, _: u8| manager == rmid::SEQ;
    let mut found = Vec::new();
    for sequence in &facts.tables {
        let claim = facts.claim(facts.cells(&sequence.relations, is_sequence), 1.0, 1.0);
        let records = facts.records(facts.cells(&sequence.relations, is_sequence));
        if records == 0 {
            continue;
        }
        let name = &sequence.name;
        // nextval() only raises, or only lowers, the value. After setval(), the next number is logged too.
        let set_of = |one: &Evidence| (one.set_values, one.raised_values.min(one.lowered_values));
        let all = sequence.relations.iter().map(|one| set_of(&one.evidence));
        let (near, far) = all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let (set, needless) = (near + far, near + 2 * far);
        if needless * 2 > records {
            found.push(Candidate {
                text: format!(
                    "sequence {name} takes {} of the WAL: {}, at least {set} of them from setval(), which logs each call and the next number drawn",
                    facts.percent(claim.bytes()),
                    counted(records, "record")
                ),
                points_at: name.clone(),
                remedy: "draw numbers by nextval(), which logs one record per 32 numbers; after a load, call setval() once".into(),
                ..Candidate::new(claim, (0.9 * needless.min(records) as f64 / records as f64, 1.0))
            });
            continue;
        }
        found.push(Candidate {
            text: format!(
                "sequence {name} takes {} of the WAL: {}, one per 32 numbers drawn",
                facts.percent(claim.bytes()),
                counted(records, "record")
            ),
            points_at: name.clone(),
            remedy: sequence.sql.statement(
                "ALTER SEQUENCE",
                " CACHE 1000, if sessions are long and draw many numbers: a session reserves 1000 numbers with one record, unused numbers \
                 are lost, and numbers no longer follow the order of time",
            ),
            ..Candidate::new(claim, (0.9, 0.98))
        });
    }
    found
}
