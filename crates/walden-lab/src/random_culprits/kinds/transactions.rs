//! Culprits in transactions, locks, sequences and messages.

use super::super::schema::Maker;
use super::Case;

/// Rows that are locked and not changed; the remedy takes advisory locks.
pub(super) fn row_locks(maker: &mut Maker) -> Case {
    let table = maker.table(10_000, 150);
    let table = maker.spread(table);
    let lock = match maker.is_fixed {
        true => "PERFORM pg_advisory_xact_lock($row)".to_owned(),
        false => format!("PERFORM 1 FROM {} WHERE {} FOR UPDATE", table.sql, table.is("$row")),
    };
    let total = maker.size(120_000);
    let sessions = maker.work(total, 3, table.rows, &lock);
    Case { setup: table.create(), sessions, objects: table.objects(), ..Case::default() }
}

/// Four sessions insert rows that refer to a few rows; the remedy inserts those of one row together.
pub(super) fn foreign_keys(maker: &mut Maker) -> Case {
    maker.sessions = 4;
    let mut parent = maker.table(20, 80);
    parent.rows = 16;
    let (child, _) = maker.qualified();
    let mut setup = parent.create();
    setup.push(format!(
        "CREATE TABLE {child} (ref {} NOT NULL REFERENCES {}, n bigint)",
        parent.key_type(),
        parent.sql
    ));
    let referred = if maker.is_fixed { "1 + (n / 20) % 16" } else { "1 + (n * 5 + $s) % 16" };
    let body = format!("INSERT INTO {child} VALUES ({}, $i)", parent.key_of(referred));
    let total = maker.size(110_000);
    let per_commit = if maker.is_fixed { 20 } else { 2 };
    let sessions = maker.work(total, per_commit, 16, &body);
    Case { setup, sessions, objects: vec![parent.bare], ..Case::default() }
}

/// A block with EXCEPTION for each row, with some errors; the remedy leaves out bad rows beforehand.
pub(super) fn exception_blocks(maker: &mut Maker) -> Case {
    let table = maker.table(100, 60);
    let table = maker.spread(table);
    let insert = table.insert("1001 + $i");
    let body = match maker.is_fixed {
        true => format!("IF $i % 4 <> 0 THEN {insert}; END IF"),
        false => format!(
            "BEGIN {insert}; IF $i % 4 = 0 THEN RAISE EXCEPTION USING ERRCODE = 'check_violation'; END IF; \
             EXCEPTION WHEN check_violation THEN NULL; END"
        ),
    };
    let total = maker.size(60_000);
    let sessions = maker.work(total, 200, 100, &body);
    Case { setup: table.create(), sessions, ..Case::default() }
}

/// A block with EXCEPTION for each row, without errors; the remedy has no blocks.
pub(super) fn savepoints(maker: &mut Maker) -> Case {
    let table = maker.table(100, 50);
    let insert = table.insert("1001 + $i");
    let body = match maker.is_fixed {
        true => insert,
        false => format!("BEGIN {insert}; EXCEPTION WHEN unique_violation THEN NULL; END"),
    };
    let per_commit = 20 + maker.below(200);
    let total = maker.size(100_000);
    let sessions = maker.work(total, per_commit, 100, &body);
    Case { setup: table.create(), sessions, ..Case::default() }
}

/// Two of three transactions are rolled back; the remedy checks before they write.
pub(super) fn rollbacks(maker: &mut Maker) -> Case {
    let table = maker.table(100, 120);
    let insert = format!(
        "INSERT INTO {} SELECT {} FROM generate_series(1, 15) g",
        table.sql,
        table.values("(1000 + $i * 15 + g)")
    );
    let body = match maker.is_fixed {
        true => format!("IF $i % 3 = 0 THEN {insert}; END IF"),
        false => format!("{insert}; IF $i % 3 = 0 THEN COMMIT; ELSE ROLLBACK; END IF"),
    };
    let total = maker.size(4000);
    let sessions = maker.work(total, 1, 100, &body);
    Case { setup: table.create(), sessions, ..Case::default() }
}

/// Transactions of one row; the remedy inserts 50 rows in each.
pub(super) fn one_row(maker: &mut Maker) -> Case {
    let table = maker.table(100, 30);
    let table = maker.spread(table);
    let total = maker.size(60_000);
    let per_commit = if maker.is_fixed { 50 } else { 1 };
    let sessions = maker.work(total, per_commit, 100, &table.insert("1001 + $i"));
    Case { setup: table.create(), sessions, ..Case::default() }
}

/// Transactions of one row that are prepared; the remedy commits them.
pub(super) fn two_phase(maker: &mut Maker) -> Case {
    let table = maker.table(100, 40);
    let total = maker.size(9000);
    let mut scripts = Vec::new();
    for number in 0..total {
        let insert = table.insert(&(1001 + number).to_string());
        scripts.extend(["BEGIN".into(), insert]);
        match maker.is_fixed {
            true => scripts.push("COMMIT".into()),
            false => scripts.extend([
                format!("PREPARE TRANSACTION '$database {number}'"),
                format!("COMMIT PREPARED '$database {number}'"),
            ]),
        }
    }
    Case { setup: table.create(), sessions: vec![scripts], ..Case::default() }
}

fn sequence(maker: &mut Maker) -> (String, String) {
    maker.qualified()
}

pub(super) fn setval(maker: &mut Maker) -> Case {
    let (sequence, bare) = sequence(maker);
    let call = match maker.is_fixed {
        true => format!("PERFORM nextval('{sequence}')"),
        false => format!("PERFORM setval('{sequence}', 1 + $i)"),
    };
    let total = maker.size(120_000);
    let sessions = maker.work(total, 50, 100, &call);
    Case {
        setup: vec![format!("CREATE SEQUENCE {sequence}")],
        sessions,
        objects: vec![bare],
        ..Case::default()
    }
}

pub(super) fn nextval(maker: &mut Maker) -> Case {
    let (sequence, bare) = sequence(maker);
    let total = maker.size(5_000_000);
    let script = format!("SELECT count(nextval('{sequence}')) FROM generate_series(1, {total})");
    let setup = vec![format!("CREATE SEQUENCE {sequence} CACHE {}", maker.fix("1", "1000"))];
    Case { setup, sessions: vec![vec![script]], objects: vec![bare], ..Case::default() }
}

pub(super) fn messages(maker: &mut Maker) -> Case {
    let (parts, total) = (5 + maker.below(40), maker.size(400_000));
    let call = match maker.is_fixed {
        true => "PERFORM length(repeat($i::text, 8))".to_owned(),
        false => format!(
            "PERFORM pg_logical_emit_message($i % 2 = 0, 'outbox', (SELECT string_agg(encode(sha256(convert_to(($i + x)::text, 'UTF8')), \
             'hex'), '') FROM generate_series(1, {parts}) x))"
        ),
    };
    let sessions = maker.work(total / parts, 4, 100, &call);
    Case { sessions, ..Case::default() }
}
