//! Drills as text.

use std::fmt::Write;

use walden_archive::drill::{Amcheck, Drill, LockedTable, Target};
use walden_explain::moment::time_text;
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;

/// Maximum number of locked tables in the text.
const MAX_LOCKED: usize = 20;

/// Formats a drill.
pub fn table(drill: &Drill) -> String {
    let mut text = String::new();
    let target = match &drill.target {
        Target::End => "to the end of WAL".to_owned(),
        Target::Time(time) => format!("to {time}"),
        Target::RestorePoint(name) => format!("to the restore point {}", harmless(name)),
    };
    let reached = match drill.reached_time {
        Some(time) => format!("last commit or abort at {}", time_text(time)),
        None => "no commit or abort was replayed".to_owned(),
    };
    let _ = writeln!(text, "PostgreSQL {} recovered from {} {target}", drill.server_version, drill.start_lsn);
    let _ = writeln!(text, "  reached {}: {reached}; new timeline {}", drill.reached_lsn, drill.timeline);
    let _ = writeln!(
        text,
        "  {} of WAL in {:.1} s ({} a second), after copying the backup for {:.1} s",
        units::bytes(drill.wal_bytes),
        drill.recovery_seconds + drill.rolled_forward.as_ref().map_or(0.0, |rolled| rolled.seconds),
        units::bytes(drill.wal_bytes_per_second as u64),
        drill.copy_seconds
    );
    if let Some(rolled) = &drill.rolled_forward {
        if let Some(redo) = &rolled.redo_lsn {
            let (bytes, seconds) = (units::bytes(rolled.wal_bytes), rolled.seconds);
            let _ = writeln!(
                text,
                "  Walden replayed {bytes} of it in {seconds:.1} s, up to the redo pointer {redo}"
            );
        }
        if let Some(reason) = &rolled.reason {
            let _ = writeln!(text, "  left to PostgreSQL: {}", harmless(reason));
        }
    }
    for tablespace in &drill.redirected_tablespaces {
        let path = harmless(&tablespace.path);
        let _ = writeln!(
            text,
            "  the tablespace of {path}, created at {}, was in the drill's folder",
            tablespace.lsn
        );
    }
    if let Some(partial) = &drill.unread_partial {
        let reaches = partial.end_lsn.as_ref().map_or(String::new(), |end| format!(" and reaches {end}"));
        let segment = partial.file.trim_end_matches(".partial");
        let _ = writeln!(
            text,
            "  not read: {}, which follows{reaches}; recovery reads it if it is in pg_wal as {segment}",
            partial.file
        );
    }
    let checked = &drill.checked;
    let amcheck = match checked.amcheck {
        Amcheck::Passed => "found nothing wrong",
        Amcheck::Failed => "found something wrong",
        Amcheck::NotAsked => "not run, as asked",
        Amcheck::NotThere => "not run: this installation does not have it, or not the extension amcheck",
    };
    let _ = writeln!(text, "  pg_amcheck: {amcheck}");
    if let (Some(rows), Some(tables), Some(databases)) = (checked.rows, checked.tables, checked.databases) {
        let (rows, tables) = (units::count(rows), units::count(tables));
        let _ = writeln!(text, "  {rows} rows read in {tables} tables of {databases} databases");
    }
    for result in &checked.queries {
        let _ = writeln!(text, "  {}", harmless(&result.query));
        let _ = writeln!(text, "    {}", harmless(&result.columns.join(" | ")));
        for row in &result.rows {
            let values: Vec<&str> = row.iter().map(|value| value.as_deref().unwrap_or("NULL")).collect();
            let _ = writeln!(text, "    {}", harmless(&values.join(" | ")));
        }
    }
    for pending in &checked.prepared_transactions {
        let [name, database, owner] =
            [&pending.name, &pending.database, &pending.owner].map(|it| harmless(it));
        let _ = writeln!(text, "  pending: prepared transaction '{name}' of {owner} in database {database}");
    }
    for locked in checked.locked_tables.iter().take(MAX_LOCKED) {
        let LockedTable { database, table, prepared_transaction } = locked;
        let [database, table, name] = [database, table, prepared_transaction].map(|it| harmless(it));
        let _ =
            writeln!(text, "  table {table} in {database} not read: locked by prepared transaction '{name}'");
    }
    if let Some(more) = checked.locked_tables.len().checked_sub(MAX_LOCKED).filter(|&more| more > 0) {
        let _ = writeln!(text, "  {} not read for the same reason", counted(more as u64, "more table"));
    }
    for problem in &checked.problems {
        let _ = writeln!(text, "WRONG: {}", harmless(problem));
    }
    text
}
