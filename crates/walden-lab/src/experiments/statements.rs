//! `full-page-writes`: the WAL of statements with and without full-page images, by statement and by process,
//! compared with MariaDB's redo (measured) and Oracle's (a model, or measured if a database is given).

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postgres::Client;
use serde_json::{Value, json};

use super::definition::{Case, Statement, Table};
use super::report::{Phase, megabytes};
use super::stage::{self, Stage};
use super::{Lab, oracle};
use crate::mariadb::{self, MariaDb, Programs};
use crate::oracle_model::RowChanges;
use crate::trace::Trace;

/// A table whose row changes are decoded from WAL.
#[derive(Debug, Clone)]
pub struct Relation {
    /// Relfilenumber of the relation.
    pub file: u32,
    /// The OID of its database.
    pub database: u32,
    /// Its columns in the order of `attnum`.
    pub columns: Vec<Column>,
}

/// The physical layout of a column, which determines the lengths of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// `attlen`: bytes of a value, -1 for a varlena.
    pub length: i16,
    /// `attalign` in bytes.
    pub alignment: u8,
    /// Whether it is an integer, which Oracle stores as NUMBER.
    pub integer: bool,
}

/// Name of the phase that creates the table.
const SETUP: &str = "setup";

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let rows = lab.size("rows").to_string();
    let table = lab.definition.table.clone().context("cannot run: expected a table in the definition")?;
    let mut changes = None;
    let mut details = Vec::new();
    for case in lab.definition.cases.clone() {
        let (detail, row_changes) = run_case(lab, &case, &table, &rows)?;
        details.push(detail);
        changes = changes.or(row_changes);
    }
    lab.details.insert("statements".into(), Value::Array(details));
    if lab.options.dsn.is_some() {
        lab.unavailable.push(
            "categories of bytes, bytes by process and Oracle's model: the files and processes of an existing server are not accessible"
                .into(),
        );
    }
    lab.notes.push(
        "published volumes are sums of write() calls, which also count pages written twice and miss what was not written \
         yet; MB of WAL are exact distances in the log"
            .into(),
    );
    mariadb(lab, &table, &rows)?;
    oracle::add(lab, &table, &rows, changes.as_deref())
}

/// Row changes by phase.
type ChangesByPhase = Vec<(String, RowChanges)>;

/// Runs the statements under the settings of a case. Returns the case's details, and the row changes if WAL
/// contains every row.
fn run_case(
    lab: &mut Lab<'_>,
    case: &Case,
    table: &Table,
    rows: &str,
) -> Result<(Value, Option<ChangesByPhase>)> {
    let mut stage = Stage::start(lab, case, true)?;
    let mut client = stage.client()?;
    stage.phase(SETUP, |_| client.batch_execute(&table.postgresql).context("cannot create the table"))?;
    let relation = relation(&mut client)?;
    let mut measured = Vec::new();
    for statement in lab.definition.statements.clone() {
        let Some(sql) = &statement.postgresql else { continue };
        lab.options.progress.phase(&format!("{}: {}", case.name, statement.name));
        let one = measure(lab, &mut stage, &mut client, &statement, &sql.replace("$rows", rows))?;
        measured.push(one);
    }
    drop(client);
    lab.options.progress.phase(&format!("{}: reading the WAL", case.name));
    // A block with an image may omit the rows from the record; without images, WAL contains every row.
    let without_images = case.settings.get("full_page_writes").is_some_and(|value| value == "off");
    let (analysis, mut buckets, mut row_changes) = (lab.analysis, Vec::new(), None);
    let result = stage.finish(&lab.definition.about, &lab.definition.name, &mut |wal, run| {
        let phases = &run.phases;
        for phase in phases.iter().filter(|phase| phase.name != SETUP) {
            buckets.push(analysis.buckets(wal, phase.from, phase.to)?);
        }
        if let (true, Some(relation)) = (without_images, &relation) {
            let of_phases = analysis.row_changes(wal, relation, phases)?;
            row_changes = Some(phases.iter().map(|phase| phase.name.clone()).zip(of_phases).collect());
        }
        Ok(())
    })?;
    if lab.options.dsn.is_some() {
        for one in &measured {
            lab.figures.add(&case.name, &one.phase.name, "wal_mb", Some(megabytes(stage::bytes(&one.phase))));
        }
    }
    for (one, buckets) in measured.iter().zip(&buckets) {
        add_figures(lab, &case.name, one, buckets);
    }
    let detail = json!({
        "case": case.name,
        "statements": measured.iter().enumerate().map(|(index, one)| json!({
            "statement": one.phase.name,
            "bytes": stage::bytes(&one.phase),
            "buckets": buckets.get(index),
            "traced": one.traced,
            "statistics": one.statistics,
        })).collect::<Vec<_>>(),
    });
    lab.runs.push(result);
    Ok((detail, row_changes))
}

/// The measurements of a statement.
struct Measured {
    phase: Phase,
    traced: Option<Value>,
    traced_bytes: Option<u64>,
    statistics: Option<Value>,
}

fn measure(
    lab: &mut Lab<'_>,
    stage: &mut Stage,
    client: &mut Client,
    statement: &Statement,
    sql: &str,
) -> Result<Measured> {
    // After a checkpoint, the first change of each page logs a full-page image.
    client.batch_execute("CHECKPOINT")?;
    let before = statistics(stage, client)?;
    let trace = match stage.cluster().and_then(crate::Cluster::pid) {
        Some(postmaster) => Some(Trace::start(postmaster, client)?),
        None => None,
    };
    let ((), phase) =
        stage.phase(&statement.name, |_| client.batch_execute(sql).with_context(|| sql.to_owned()))?;
    let traced = match trace {
        Some(Ok(trace)) => Some(trace.finish()?),
        Some(Err(why)) => {
            if !lab.unavailable.iter().any(|other| other.ends_with(&why)) {
                lab.unavailable.push(format!("bytes written by each process: {why}"));
            }
            None
        }
        None => None,
    };
    let after = statistics(stage, client)?;
    Ok(Measured {
        phase,
        traced_bytes: traced.as_ref().map(|traced| traced.values().map(|one| one.bytes).sum()),
        traced: traced.map(serde_json::to_value).transpose()?,
        statistics: before.zip(after).map(|(before, after)| difference(&before, &after)),
    })
}

fn add_figures(lab: &mut Lab<'_>, case: &str, one: &Measured, buckets: &BTreeMap<String, u64>) {
    let images = buckets.iter().filter(|(name, _)| name.starts_with("image_")).map(|(_, bytes)| bytes).sum();
    let phase = &one.phase.name;
    lab.figures.add(case, phase, "wal_mb", Some(megabytes(stage::bytes(&one.phase))));
    lab.figures.add(case, phase, "images_mb", Some(megabytes(images)));
    lab.figures.add(case, phase, "written_mb", one.traced_bytes.map(megabytes));
}

/// Reads the bytes that each process wrote to the WAL, which the server counts since 18.
fn statistics(stage: &Stage, client: &mut Client) -> Result<Option<BTreeMap<String, i64>>> {
    if stage.server()?.version_num < 180_000 {
        return Ok(None);
    }
    client.batch_execute("SELECT pg_stat_force_next_flush()")?;
    // Other processes flush their statistics once a second.
    thread::sleep(Duration::from_millis(1200));
    let mut found = BTreeMap::new();
    let rows = client.query(
        "SELECT backend_type, coalesce(sum(write_bytes), 0)::bigint, coalesce(sum(writes), 0)::bigint
         FROM pg_stat_io WHERE object = 'wal' GROUP BY 1",
        &[],
    )?;
    for row in rows {
        let kind: String = row.get(0);
        found.insert(format!("{kind}: bytes written"), row.get(1));
        found.insert(format!("{kind}: writes"), row.get(2));
    }
    let row = client.query_one(
        "SELECT wal_bytes::bigint, wal_records, wal_fpi FROM pg_stat_get_backend_wal(pg_backend_pid())",
        &[],
    )?;
    for (index, name) in ["bytes", "records", "images"].into_iter().enumerate() {
        found.insert(format!("this session: {name} of WAL"), row.get(index));
    }
    Ok(Some(found))
}

fn difference(before: &BTreeMap<String, i64>, after: &BTreeMap<String, i64>) -> Value {
    let change = |(name, value): (&String, &i64)| {
        let change = value - before.get(name).unwrap_or(&0);
        (change != 0).then(|| (name.clone(), Value::from(change)))
    };
    Value::Object(after.iter().filter_map(change).collect())
}

/// Returns the table `demo`, if the setup created it.
fn relation(client: &mut Client) -> Result<Option<Relation>> {
    let row = client.query_one(
        "SELECT pg_relation_filenode(to_regclass('demo')),
                (SELECT oid FROM pg_database WHERE datname = current_database())",
        &[],
    )?;
    let (Some(file), database) = (row.get::<_, Option<u32>>(0), row.get::<_, u32>(1)) else {
        return Ok(None);
    };
    let rows = client.query(
        "SELECT attlen, attalign::text, atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
         FROM pg_attribute WHERE attrelid = 'demo'::regclass AND attnum > 0 ORDER BY attnum",
        &[],
    )?;
    let column = |row: &postgres::Row| Column {
        length: row.get(0),
        alignment: match row.get::<_, String>(1).as_str() {
            "c" => 1,
            "s" => 2,
            "i" => 4,
            _ => 8,
        },
        integer: row.get(2),
    };
    Ok(Some(Relation { file, database, columns: rows.iter().map(column).collect() }))
}

/// Runs the statements on MariaDB.
fn mariadb(lab: &mut Lab<'_>, table: &Table, rows: &str) -> Result<()> {
    const CASE: &str = "mariadb";
    let Some(programs) = Programs::find() else {
        lab.unavailable.push(format!("MariaDB: it is not installed (package {})", mariadb::PACKAGE));
        return Ok(());
    };
    lab.options.progress.phase("MariaDB: starting the server");
    let server = MariaDb::start(programs)?;
    lab.notes.push(format!(
        "MariaDB {}: redo is InnoDB's, undo's redo included; pages of the doublewrite buffer are what full-page images are \
         to PostgreSQL and are counted once the statement's pages are flushed; the last statement lets the purge run, which \
         an open snapshot held up until then",
        server.version()?
    ));
    server.sql("CREATE DATABASE lab")?;
    server.sql(&format!("USE lab; {}", table.mariadb))?;
    let mut snapshot = Some(server.snapshot()?);
    let page = server.counters()?.get("Innodb_page_size").copied().unwrap_or(16_384);
    let statements: Vec<(String, String)> = lab
        .definition
        .statements
        .iter()
        .filter_map(|one| Some((one.name.clone(), one.mariadb.as_ref()?.replace("$rows", rows))))
        .collect();
    for (index, (name, sql)) in statements.iter().enumerate() {
        lab.options.progress.phase(&format!("MariaDB: {name}"));
        server.flush()?;
        if index + 1 == statements.len() {
            drop(snapshot.take());
        }
        let before = server.counters()?;
        server.sql(&format!("USE lab; {sql}"))?;
        let after = server.counters()?;
        server.flush()?;
        let flushed = server.counters()?;
        let count = |name: &str, after: &BTreeMap<String, u64>| -> Option<u64> {
            Some(after.get(name)?.saturating_sub(*before.get(name)?))
        };
        let mb = |bytes: Option<u64>| bytes.map(megabytes);
        lab.figures.add(CASE, name, "redo_mb", mb(count("Innodb_lsn_current", &after)));
        lab.figures.add(CASE, name, "redo_written_mb", mb(count("Innodb_os_log_written", &flushed)));
        let pages = count("Innodb_dblwr_pages_written", &flushed);
        lab.figures.add(CASE, name, "doublewrite_mb", mb(pages.map(|pages| pages * page)));
    }
    Ok(())
}
