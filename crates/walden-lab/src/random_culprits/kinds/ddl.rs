//! Culprits in definitions of database objects and in maintenance.

use super::super::schema::Maker;
use super::{Case, Remedy};

/// VACUUM FULL or CLUSTER; the remedy is a plain VACUUM.
pub(super) fn rewrite(maker: &mut Maker) -> Case {
    let bytes = 150 + maker.below(200);
    let table = maker.table(130_000, bytes);
    let primary = maker.name();
    let definition = table.definition().replacen(
        "PRIMARY KEY",
        &format!("CONSTRAINT {} PRIMARY KEY", super::super::schema::quote(&primary)),
        1,
    );
    let delete = format!("DELETE FROM {} WHERE {} < timestamptz '2025-05-05 06:00'", table.sql, table.time);
    let statement = match maker.chance(50) {
        true => format!("VACUUM FULL {}", table.sql),
        false => format!("CLUSTER {} USING {}", table.sql, super::super::schema::quote(&primary)),
    };
    let statement = if maker.is_fixed { format!("VACUUM {}", table.sql) } else { statement };
    let setup = vec![definition, table.fill(1, table.rows), delete];
    Case { setup, sessions: vec![vec![statement]], objects: vec![table.bare], ..Case::default() }
}

/// Changes of columns that each rewrite the table; the remedy makes them in one statement.
pub(super) fn alter_type(maker: &mut Maker) -> Case {
    let table = maker.table(40_000, 150);
    let changes = [
        format!("ALTER {} TYPE bigint", table.number),
        "ADD token uuid DEFAULT gen_random_uuid()".to_owned(),
        format!("ALTER {} TYPE timestamp", table.time),
    ];
    let count = 2 + maker.below(2) as usize;
    let scripts = match maker.is_fixed {
        true => vec![format!("ALTER TABLE {} {}", table.sql, changes[..count].join(", "))],
        false => {
            changes[..count].iter().map(|change| format!("ALTER TABLE {} {change}", table.sql)).collect()
        }
    };
    Case { setup: table.create(), sessions: vec![scripts], objects: vec![table.bare], ..Case::default() }
}

/// Loads into a table that is unlogged meanwhile; the remedy leaves it so.
pub(super) fn set_logged(maker: &mut Maker) -> Case {
    let table = maker.table(25_000, 150);
    let rounds = 2 + maker.below(3);
    let mut setup = vec![table.definition()];
    if maker.is_fixed {
        setup.push(format!("ALTER TABLE {} SET UNLOGGED", table.sql));
    }
    let mut scripts = Vec::new();
    for _ in 0..rounds {
        scripts.push(format!("TRUNCATE {}", table.sql));
        if !maker.is_fixed {
            scripts.push(format!("ALTER TABLE {} SET UNLOGGED", table.sql));
        }
        scripts.push(table.fill(1, table.rows));
        if !maker.is_fixed {
            scripts.push(format!("ALTER TABLE {} SET LOGGED", table.sql));
        }
    }
    Case { setup, sessions: vec![scripts], objects: vec![table.bare], ..Case::default() }
}

/// VACUUM FREEZE of loaded rows; those of the remedy are frozen when they are loaded.
pub(super) fn freeze(maker: &mut Maker) -> Case {
    let table = maker.table(120_000, 120);
    let mut setup = table.create();
    setup.push(format!("VACUUM {} {}", maker.fix("", "FREEZE"), table.sql));
    let sessions = vec![vec![format!("VACUUM FREEZE {}", table.sql)]];
    Case { setup, sessions, objects: vec![table.bare], is_vacuumed: true, ..Case::default() }
}

/// The first query of loaded rows, with data checksums; the remedy vacuums after the load.
pub(super) fn hint_bits(maker: &mut Maker) -> Case {
    let table = maker.table(100_000, 150);
    let query = format!("SELECT max({}) FROM {}", table.number, table.sql);
    let has_checksums = maker.chance(50);
    let settings = vec![
        ("autovacuum", "off".into()),
        ("wal_log_hints", if has_checksums { "off" } else { "on" }.into()),
    ];
    let mut setup = table.create();
    // Hint bits are set once the WAL of the load is on disk.
    setup.push("SELECT pg_sleep(1)".into());
    if maker.is_fixed {
        setup.push(format!("VACUUM {}", table.sql));
    }
    let sessions = vec![vec![query]];
    Case {
        checksums: Some(has_checksums),
        is_vacuumed: true,
        settings,
        setup,
        sessions,
        objects: vec![table.bare],
        ..Case::default()
    }
}

/// A database that is created from another one; the remedy copies its files.
pub(super) fn create_database(maker: &mut Maker) -> Case {
    let table = maker.table(70_000, 200);
    let mut source = maker.prepare();
    source.extend(table.create());
    let is_dropped = maker.chance(40);
    let copy = "\"$database copy\"";
    let mut scripts = vec![format!(
        "CREATE DATABASE {copy} TEMPLATE \"$source\" STRATEGY {}",
        maker.fix("wal_log", "file_copy")
    )];
    if is_dropped {
        scripts.push(format!("DROP DATABASE {copy}"));
    }
    Case { source, sessions: vec![scripts], ..Case::default() }
}

/// A temporary table in each transaction; the remedy creates one a session.
pub(super) fn temporary_tables(maker: &mut Maker) -> Case {
    let (columns, total) = (5 + maker.below(15), maker.size(1200));
    let columns: Vec<String> = (0..columns).map(|at| format!("c{at} numeric")).collect();
    let columns = columns.join(", ");
    let insert = "INSERT INTO buffer (c0) SELECT x FROM generate_series(1, 50) x";
    let scripts = match maker.is_fixed {
        true => vec![
            format!("CREATE TEMPORARY TABLE buffer ({columns}, note text) ON COMMIT DELETE ROWS"),
            format!("DO $work$ BEGIN FOR n IN 1..{total} LOOP {insert}; COMMIT; END LOOP; END $work$"),
        ],
        false => vec![format!(
            "DO $work$ BEGIN FOR n IN 1..{total} LOOP CREATE TEMPORARY TABLE buffer ({columns}, note text) ON COMMIT DROP; {insert}; COMMIT; \
             END LOOP; END $work$"
        )],
    };
    Case { sessions: vec![scripts], ..Case::default() }
}

/// Empty tables that are created and dropped; the remedy truncates one.
pub(super) fn create_and_drop(maker: &mut Maker) -> Case {
    let table = maker.table(10, 200);
    let total = maker.size(900);
    let body = match maker.is_fixed {
        true => format!("TRUNCATE {}", table.sql),
        false => format!("{}; COMMIT; DROP TABLE {}", table.definition(), table.sql),
    };
    let setup = if maker.is_fixed { vec![table.definition()] } else { Vec::new() };
    let script = format!("DO $work$ BEGIN FOR n IN 1..{total} LOOP {body}; COMMIT; END LOOP; END $work$");
    Case { setup, sessions: vec![vec![script]], ..Case::default() }
}

/// A table with many partitions that is dropped.
pub(super) fn drop_partitions(maker: &mut Maker) -> Case {
    let mut table = maker.table(10, 150);
    table.partitioned = format!("PARTITION BY HASH ({})", table.key);
    let total = maker.size(500);
    let setup = vec![
        table.definition(),
        format!(
            "DO $make$ BEGIN FOR n IN 0..{total} - 1 LOOP EXECUTE format('CREATE TABLE shard_%s PARTITION OF {} FOR VALUES WITH (modulus {total}, \
             remainder %s)', n, n); IF n % 100 = 99 THEN COMMIT; END IF; END LOOP; END $make$",
            table.sql
        ),
    ];
    let sessions = vec![vec![format!("DROP TABLE {}", table.sql)]];
    let settings = vec![("max_locks_per_transaction", "1024".into())];
    Case { settings, setup, sessions, remedy: Remedy::None, ..Case::default() }
}

/// ANALYZE again and again; the remedy does so once.
pub(super) fn analyze(maker: &mut Maker) -> Case {
    let table = maker.table(8000, 900);
    let times = if maker.is_fixed { 1 } else { 160 };
    let settings = vec![("autovacuum", "off".into())];
    let analyze = format!("ANALYZE {}", table.sql);
    Case { settings, setup: table.create(), sessions: vec![vec![analyze; times]], ..Case::default() }
}
