//! Culprits in updates.

use super::super::schema::{Maker, quote};
use super::{Case, Remedy};

/// Updates that mostly set a column to the value that it has.
pub(super) fn no_op(maker: &mut Maker) -> Case {
    let bytes = 150 + maker.below(200);
    let table = maker.table(15_000, bytes).with_fillfactor(50);
    let table = maker.spread(table);
    let number = &table.number;
    // One in 16 changes something.
    let guard = maker.fix("", " AND $i % 16 = 0");
    let body = format!(
        "UPDATE {} SET {number} = {number} + ($i % 16 = 0)::int, {time} = {time} WHERE {}{guard}",
        table.sql,
        table.is("$row"),
        time = table.time
    );
    let total = maker.size(110_000);
    let sessions = maker.work(total, 6, table.rows, &body);
    Case { setup: table.create(), sessions, objects: table.objects(), ..Case::default() }
}

/// Updates of all rows; the remedy leaves space on each page for a new version of its rows.
fn whole_updates(maker: &mut Maker, rows: u64, rounds: u64) -> Case {
    let bytes = 150 + maker.below(150);
    let table = maker.table(rows, bytes);
    let mut table = maker.spread(table);
    let index = maker.index(&table, &format!("({})", table.time));
    table.fillfactor = maker.is_fixed.then_some(50);
    let mut setup = table.create();
    setup.extend([index.create, table.use_index(&format!("{} > now()", table.time))]);
    let number = &table.number;
    let update = format!("UPDATE {} SET {number} = {number} + 1", table.sql);
    let scripts = vec![update; rounds as usize];
    Case { setup, sessions: vec![scripts], objects: table.objects(), ..Case::default() }
}

pub(super) fn bulk(maker: &mut Maker) -> Case {
    whole_updates(maker, 60_000, 1)
}

pub(super) fn batches(maker: &mut Maker) -> Case {
    let rounds = 3 + maker.below(3);
    whole_updates(maker, 20_000, rounds)
}

/// A transaction updates each row several times; the remedy updates it once.
pub(super) fn same_transaction(maker: &mut Maker) -> Case {
    let table = maker.table(5000, 100).with_fillfactor(50);
    let table = maker.spread(table);
    let times = 5 + maker.below(10);
    let (rounds, by) = if maker.is_fixed { (1, times) } else { (times, 1) };
    let number = &table.number;
    let body = format!(
        "FOR x IN 1..{rounds} LOOP UPDATE {} SET {number} = {number} + {by} WHERE {}; END LOOP",
        table.sql,
        table.is("$row")
    );
    let total = maker.size(160_000) / times;
    let sessions = maker.work(total, 3, table.rows, &body);
    Case { setup: table.create(), sessions, objects: table.objects(), ..Case::default() }
}

/// Transactions that each add to one of a few counters; the remedy adds up 50 changes first.
pub(super) fn counters(maker: &mut Maker) -> Case {
    let mut table = maker.table(30, 40);
    table.rows = 12 * maker.sessions;
    let number = &table.number;
    let (condition, by) = if maker.is_fixed { ("n % 50 = 0 AND ", 50) } else { ("", 1) };
    let body =
        format!("UPDATE {} SET {number} = {number} + {by} WHERE {condition}{}", table.sql, table.is("$row"));
    let total = maker.size(120_000);
    let sessions = maker.work(total, 1, table.rows, &body);
    Case { setup: table.create(), sessions, objects: vec![table.bare], ..Case::default() }
}

/// Inserts that each also count in one of a few rows; the remedy adds up 50 first.
pub(super) fn counted_inserts(maker: &mut Maker) -> Case {
    let mut totals = maker.table(10, 30);
    totals.rows = 6;
    let table = maker.table(200, 50);
    let number = &totals.number;
    let (condition, by) = if maker.is_fixed { ("n % 50 = 0 AND ", 50) } else { ("", 1) };
    let body = format!(
        "{}; UPDATE {} SET {number} = {number} + {by} WHERE {condition}{}",
        table.insert("1001 + $i"),
        totals.sql,
        totals.is("1 + (n / 50) % 6")
    );
    let mut setup = totals.create();
    setup.extend(table.create());
    let total = maker.size(60_000);
    let sessions = maker.work(total, 1, 100, &body);
    Case { setup, sessions, objects: totals.objects(), ..Case::default() }
}

/// Tasks with an indexed state: each is inserted, updated twice, and deleted later.
pub(super) fn task_states(maker: &mut Maker) -> Case {
    let mut table = maker.table(2000, 100);
    table.rows = 2000;
    let index = maker.index(&table, &format!("({}, {})", table.number, table.key));
    let mut setup = table.create();
    setup.extend([index.create, table.use_index(&format!("{} = 1", table.number))]);
    let (sql, number, task) = (&table.sql, &table.number, table.is("2001 + $i"));
    let body = format!(
        "{}; UPDATE {sql} SET {number} = 1 WHERE {task}; COMMIT; UPDATE {sql} SET {number} = 2 WHERE {task}; \
         DELETE FROM {sql} WHERE {}",
        table.insert("2001 + $i"),
        table.is("1 + $i")
    );
    let total = maker.size(30_000);
    let sessions = maker.work(total, 1, 100, &body);
    let objects = vec![index.bare, table.bare];
    Case { setup, sessions, objects, remedy: Remedy::None, ..Case::default() }
}

/// Updates of an indexed time, in a table with free space.
pub(super) fn indexed_column(maker: &mut Maker) -> Case {
    let table = maker.table(20_000, 160).with_fillfactor(40);
    let table = maker.spread(table);
    let index = maker.index(&table, &format!("({})", table.time));
    let mut setup = table.create();
    setup.extend([index.create, table.use_index(&format!("{} > now()", table.time))]);
    if maker.is_fixed {
        setup.push(format!("DROP INDEX {}", index.sql));
    }
    let body = format!(
        "UPDATE {} SET {time} = clock_timestamp() WHERE {}",
        table.sql,
        table.is("$row"),
        time = table.time
    );
    let total = maker.size(50_000);
    let sessions = maker.work(total, 5, table.rows, &body);
    Case { setup, sessions, objects: table.objects_of(&index.bare), ..Case::default() }
}

/// Updates that make rows on full pages longer.
pub(super) fn full_pages(maker: &mut Maker) -> Case {
    let bytes = 90 + maker.below(100);
    let table = maker.table(35_000, bytes);
    let mut table = maker.spread(table);
    let index = maker.index(&table, &format!("({})", table.time));
    // The finding recommends 90.
    table.fillfactor = maker.is_fixed.then_some(90);
    let mut setup = vec![table.definition()];
    setup.extend(table.partitions());
    setup.push(format!("ALTER TABLE {} ADD trail text", table.sql));
    setup.push(table.fill(1, table.rows).replacen(" FROM generate_series", ", '' FROM generate_series", 1));
    setup.extend([index.create, table.use_index(&format!("{} > now()", table.time))]);
    let growth = 20 + maker.below(40);
    let body = format!(
        "UPDATE {} SET trail = trail || right(repeat('-', {growth}) || $i, {growth}) WHERE {}",
        table.sql,
        table.is("$row")
    );
    let total = maker.size(45_000);
    let sessions = maker.work(total, 4, table.rows, &body);
    Case { setup, sessions, objects: table.objects(), ..Case::default() }
}

fn with_open_session(maker: &mut Maker, begin: &str) -> Case {
    let table = maker.table(3000, 120).with_fillfactor(50);
    let (other, _) = maker.qualified();
    let mut setup = table.create();
    setup.push(format!("CREATE TABLE {other} (x int)"));
    let total = maker.size(90_000);
    let mut sessions = maker.work_in(3, total, 4, table.rows, &table.update("$row"));
    // Snapshots of running transactions are logged at checkpoints.
    sessions[0].insert(0, "CHECKPOINT".into());
    sessions[0].push("CHECKPOINT".into());
    let held = if maker.is_fixed { Vec::new() } else { vec![begin.replace("$other", &other)] };
    // The finding names the transaction, whose number differs.
    Case { setup, held, sessions, ..Case::default() }
}

/// Updates of the same rows while a session stays idle in a transaction that has written.
pub(super) fn idle_transaction(maker: &mut Maker) -> Case {
    with_open_session(maker, "BEGIN; INSERT INTO $other VALUES (1)")
}

/// The same with a session that has only read.
pub(super) fn idle_snapshot(maker: &mut Maker) -> Case {
    with_open_session(maker, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM $other")
}

pub(super) fn upserts(maker: &mut Maker) -> Case {
    let table = maker.table(15_000, 80).with_fillfactor(50);
    let table = maker.spread(table);
    let (key, number) = (&table.key, &table.number);
    let upsert = format!(
        "{} ON CONFLICT ({key}) DO UPDATE SET {number} = {}.{number} + 1",
        table.insert("$row"),
        quote(&table.bare)
    );
    let body = if maker.is_fixed { table.update("$row") } else { upsert };
    let total = maker.size(90_000);
    let sessions = maker.work(total, 5, table.rows, &body);
    Case { setup: table.create(), sessions, objects: table.objects(), ..Case::default() }
}

pub(super) fn replica_identity(maker: &mut Maker) -> Case {
    let bytes = 300 + maker.below(500);
    let table = maker.table(8000, bytes).with_fillfactor(50);
    let mut setup = table.create();
    setup.push(format!("ALTER TABLE {} REPLICA IDENTITY {}", table.sql, maker.fix("FULL", "DEFAULT")));
    let total = maker.size(25_000);
    let sessions = maker.work(total, 4, table.rows, &table.update("$row"));
    let settings = vec![("wal_level", "logical".into())];
    Case { settings, setup, sessions, objects: vec![table.bare], ..Case::default() }
}

/// Updates of a number within a large document; the remedy keeps the number in a column.
pub(super) fn large_values(maker: &mut Maker) -> Case {
    let table = maker.table(400, 60).with_fillfactor(50);
    let table = maker.spread(table);
    let parts = 150 + maker.below(250);
    let mut setup = table.create();
    setup.push(format!("ALTER TABLE {} ADD doc jsonb", table.sql));
    setup.push(format!(
        "UPDATE {} SET doc = jsonb_build_object('n', 0, 'parts', (SELECT jsonb_agg(encode(sha256(convert_to(({key}::text || x), \
         'UTF8')), 'hex')) FROM generate_series(1, {parts}) x))",
        table.sql,
        key = table.key
    ));
    let body = if maker.is_fixed {
        table.update("$row")
    } else {
        format!(
            "UPDATE {} SET doc = jsonb_set(doc, '{{n}}', to_jsonb($i)) WHERE {}",
            table.sql,
            table.is("$row")
        )
    };
    let total = maker.size(600_000) / parts;
    let sessions = maker.work(total, 2, table.rows, &body);
    Case { setup, sessions, objects: table.objects(), ..Case::default() }
}

/// Updates of a number in wide rows; the remedy keeps the number in a narrow table.
pub(super) fn wide_rows(maker: &mut Maker) -> Case {
    let bytes = 1100 + maker.below(600);
    let table = maker.table(1500, bytes).with_fillfactor(50);
    let table = maker.spread(table);
    let mut narrow = maker.table(1500, 30).with_fillfactor(50);
    narrow.rows = table.rows;
    let mut setup = table.create();
    setup.extend(narrow.create());
    let body = if maker.is_fixed { narrow.update("$row") } else { table.update("$row") };
    let total = maker.size(110_000);
    let sessions = maker.work(total, 4, table.rows, &body);
    Case { setup, sessions, objects: table.objects(), ..Case::default() }
}

/// Updates of the column by which a table is partitioned; the remedy partitions by its key.
pub(super) fn partition_moves(maker: &mut Maker) -> Case {
    let bytes = 100 + maker.below(150);
    let mut table = maker.table(25_000, bytes);
    let key = table.key.clone();
    let [first, second] = [maker.qualified(), maker.qualified()];
    table.partitioned = format!("PARTITION BY {}", maker.fix("LIST", "HASH"));
    table.partitioned += &format!(" ({})", maker.fix(&table.number, &key));
    // The key of a partitioned table contains the column by which it is partitioned.
    let unique = format!("PRIMARY KEY ({key}, {})", table.number);
    let definition = table.definition().replacen(" PRIMARY KEY", "", 1).replacen(
        ") PARTITION",
        &format!(", {unique}) PARTITION"),
        1,
    );
    let part = |at: u64, name: &str| {
        let values = match maker.is_fixed {
            true => format!("WITH (modulus 2, remainder {at})"),
            false => format!("IN ({at})"),
        };
        format!("CREATE TABLE {name} PARTITION OF {} FOR VALUES {values}", table.sql)
    };
    let parts = [part(0, &first.0), part(1, &second.0)];
    let mut setup = vec![definition];
    setup.extend(parts);
    setup.push(table.fill(1, table.rows));
    let body = format!("UPDATE {} SET {} = 1 WHERE {}", table.sql, table.number, table.is("$row"));
    let total = table.rows;
    let sessions = maker.work(total, 5, table.rows, &body);
    Case { setup, sessions, objects: vec![table.bare, first.1, second.1], ..Case::default() }
}
