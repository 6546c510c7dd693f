//! Servers on which nothing is wrong, and the background load of all others.

use super::super::schema::Maker;
use super::{Case, Remedy};

fn healthy(setup: Vec<String>, sessions: Vec<Vec<String>>, objects: Vec<String>) -> Case {
    Case { setup, sessions, objects, remedy: Remedy::TrySettings, ..Case::default() }
}

/// Inserts of some rows in each transaction, with ascending keys.
fn append(maker: &mut Maker, total: u64, bytes: u64) -> Case {
    let mut table = maker.table(2000, bytes);
    table.rows = 2000;
    let per_commit = 5 + maker.below(20);
    let sessions = maker.work(total, per_commit, table.rows, &table.insert("2001 + $i"));
    let mut setup = table.create();
    let mut objects = vec![table.bare.clone()];
    if maker.chance(50) {
        let index = maker.index(&table, &format!("({})", table.time));
        setup.extend([index.create, table.use_index(&format!("{} > now()", table.time))]);
        objects.push(index.bare);
    }
    healthy(setup, sessions, objects)
}

/// HOT updates in a table with free space on its pages, some in each transaction.
fn hot_updates(maker: &mut Maker, total: u64, rows: u64) -> Case {
    let bytes = 90 + maker.below(120);
    let table = maker.table(rows, bytes).with_fillfactor(45);
    let table = maker.spread(table);
    let per_commit = 4 + maker.below(8);
    let sessions = maker.work(total, per_commit, table.rows, &table.update("$row"));
    healthy(table.create(), sessions, table.objects())
}

/// Rows that are inserted, and deleted a little later.
fn queue(maker: &mut Maker, total: u64) -> Case {
    let table = maker.table(500, 90);
    let mut table = maker.spread(table);
    table.rows = 500;
    let delete = format!("DELETE FROM {} WHERE {}", table.sql, table.is("1 + $i"));
    let body = format!("{}; {delete}", table.insert("501 + $i"));
    let per_commit = 2 + maker.below(6);
    let sessions = maker.work(total, per_commit, table.rows, &body);
    healthy(table.create(), sessions, table.objects())
}

/// Inserts of large values.
fn documents(maker: &mut Maker, total: u64) -> Case {
    let bytes = 3000 + maker.below(6000);
    let table = maker.table(50, bytes);
    let mut table = maker.spread(table);
    table.rows = 50;
    let sessions = maker.work(total, 3, table.rows, &table.insert("51 + $i"));
    healthy(table.create(), sessions, table.objects())
}

/// The background load: a session for each of its parts. Its size, and so the culprit's share, differs.
pub(in super::super) fn background(maker: &mut Maker) -> Case {
    let sessions = std::mem::replace(&mut maker.sessions, 1);
    let total = maker.size(1500) * [1, 2, 4, 7][maker.below(4) as usize];
    let bytes = 80 + maker.below(200);
    let mut case = append(maker, total, bytes);
    // More rows than updates: few are updated twice.
    let updates = hot_updates(maker, total, total * 3 / 2);
    let other = match maker.below(3) {
        0 => queue(maker, total),
        1 => documents(maker, total / 12),
        _ => Case::default(),
    };
    for part in [updates, other] {
        case.setup.extend(part.setup);
        case.objects.extend(part.objects);
        case.sessions.extend(part.sessions);
    }
    maker.sessions = sessions;
    case
}

pub(super) fn appends(maker: &mut Maker) -> Case {
    let (total, bytes) = (maker.size(60_000), 100 + maker.below(300));
    append(maker, total, bytes)
}

pub(super) fn updates(maker: &mut Maker) -> Case {
    let total = maker.size(50_000);
    hot_updates(maker, total, total * 3 / 2)
}

pub(super) fn mixed(maker: &mut Maker) -> Case {
    let total = maker.size(30_000);
    let mut case = append(maker, total, 200);
    let updates = hot_updates(maker, total, total * 3 / 2);
    case.setup.extend(updates.setup);
    case.objects.extend(updates.objects);
    case.sessions.extend(updates.sessions);
    case
}

/// Partitions by day that are created, filled and, in the end, dropped: the cheapest way to delete.
pub(super) fn partitions(maker: &mut Maker) -> Case {
    let mut table = maker.table(100, 150);
    table.rows = 100;
    table.partitioned = format!("PARTITION BY RANGE ({})", table.key);
    let per_day = maker.size(12_000);
    let (mut setup, mut scripts) = (vec![table.definition()], Vec::new());
    let partition = |day: u64| format!("{}_{day}", table.sql.trim_end_matches('"'));
    let quoted = |day: u64| if table.sql.ends_with('"') { partition(day) + "\"" } else { partition(day) };
    for day in 0..5 {
        let (from, to) =
            (table.key_of(&(day * per_day).to_string()), table.key_of(&((day + 1) * per_day).to_string()));
        let create = format!(
            "CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({from}) TO ({to})",
            quoted(day),
            table.sql
        );
        match day {
            0 => setup.extend([create, table.fill(0, per_day - 1)]),
            _ => {
                scripts.push(create);
                let first = day * per_day;
                let insert = table.insert(&format!("({first} + n)"));
                scripts.push(format!(
                    "DO $work$ BEGIN FOR n IN 0..{per_day} - 1 LOOP {insert}; IF n % 20 = 19 THEN COMMIT; END IF; END LOOP; END $work$"
                ));
            }
        }
        if day >= 2 {
            scripts.push(format!("DROP TABLE {}", quoted(day - 2)));
        }
    }
    healthy(setup, vec![scripts], vec![table.bare.clone()])
}

/// One load of many rows into a table with its primary key.
pub(super) fn load(maker: &mut Maker) -> Case {
    let table = maker.table(80_000, 200);
    let mut setup = table.create();
    setup.extend(table.write_file());
    healthy(setup, vec![vec![table.copy_file()]], vec![table.bare])
}
