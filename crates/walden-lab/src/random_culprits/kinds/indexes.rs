//! Culprits in indexes.

use super::super::schema::{Maker, quote};
use super::{Case, Remedy};

/// An index that no query uses; the remedy drops it.
pub(super) fn unused(maker: &mut Maker) -> Case {
    let bytes = 90 + maker.below(150);
    let table = maker.table(20_000, bytes);
    let mut table = maker.spread(table);
    table.rows = 20_000;
    let column = match maker.below(3) {
        0 => format!("({})", table.time),
        1 => format!("({}, {} DESC)", table.number, table.time),
        _ => format!("(date_trunc('hour', {} AT TIME ZONE 'UTC'), {})", table.time, table.key),
    };
    let index = maker.index(&table, &column);
    let mut setup = table.create();
    setup.push(index.create);
    if maker.is_fixed {
        setup.push(format!("DROP INDEX {}", index.sql));
    }
    let total = maker.size(60_000);
    let sessions = maker.work(total, 4, 100, &table.insert("20001 + $i"));
    Case { setup, sessions, objects: table.objects_of(&index.bare), ..Case::default() }
}

/// An index of a column that is the first one of another index; queries use both.
pub(super) fn prefix(maker: &mut Maker) -> Case {
    let table = maker.table(20_000, 100);
    let mut table = maker.spread(table);
    table.rows = 20_000;
    let (number, time) = (table.number.clone(), table.time.clone());
    let (short, long) = match maker.chance(50) {
        true => (format!("({number})"), format!("({number}, {time})")),
        false => (format!("({time})"), format!("({time}, {number}) INCLUDE ({})", table.key)),
    };
    let (short, long) = (maker.index(&table, &short), maker.index(&table, &long));
    let mut setup = table.create();
    setup.extend([
        short.create,
        table.use_index(&format!("{number} = 5")),
        table.use_index(&format!("{time} > now()")),
    ]);
    setup.extend([long.create, table.use_index(&format!("{number} = 5 AND {time} > now()"))]);
    if maker.is_fixed {
        setup.push(format!("DROP INDEX {}", short.sql));
    }
    let total = maker.size(60_000);
    let sessions = maker.work(total, 4, 100, &table.insert("20001 + $i"));
    Case { setup, sessions, objects: table.objects_of(&short.bare), ..Case::default() }
}

/// Inserts into a table with many indexes; the remedy drops most.
pub(super) fn many(maker: &mut Maker) -> Case {
    let table = maker.table(20_000, 70);
    let mut table = maker.spread(table);
    table.rows = 20_000;
    let (key, number, time) = (table.key.clone(), table.number.clone(), table.time.clone());
    let mut setup = table.create();
    let conditions = [
        format!("{time} > now()"),
        format!("{number} = 7 AND {time} > now()"),
        format!("{number} = 3"),
        format!("abs({number}) = 5"),
    ];
    let columns = [
        format!("({time})"),
        format!("({number}, {time}, {key})"),
        format!("({number}, {key})"),
        format!("(abs({number}), {key})"),
    ];
    for (at, (columns, condition)) in columns.iter().zip(&conditions).enumerate() {
        let index = maker.index(&table, columns);
        if at == 0 || !maker.is_fixed {
            setup.extend([index.create, table.use_index(condition)]);
        }
    }
    let total = maker.size(60_000);
    let sessions = maker.work(total, 4, 100, &table.insert("20001 + $i"));
    Case { setup, sessions, objects: table.objects(), ..Case::default() }
}

/// Inserts into a table with a GiST index of ranges.
pub(super) fn gist(maker: &mut Maker) -> Case {
    let mut table = maker.table(3000, 40);
    table.rows = 3000;
    let index = maker.index(&table, "USING gist (span)");
    let span = |number: &str| format!("int8range({number} * 7919 % 1000003, {number} * 7919 % 1000003 + 40)");
    let mut setup = vec![table.definition(), format!("ALTER TABLE {} ADD span int8range", table.sql)];
    setup.push(format!(
        "INSERT INTO {} SELECT {}, {} FROM generate_series(1::bigint, 3000) g",
        table.sql,
        table.values("g"),
        span("g")
    ));
    setup.extend([index.create, table.use_index("span @> 5::bigint")]);
    let number = "(3001 + $i)";
    let body = format!("INSERT INTO {} VALUES ({}, {})", table.sql, table.values(number), span(number));
    let total = maker.size(60_000);
    let sessions = maker.work(total, 5, 100, &body);
    Case { setup, sessions, objects: vec![table.bare, index.bare], remedy: Remedy::None, ..Case::default() }
}

/// Keys that are random UUIDs; those of the remedy ascend.
pub(super) fn random_keys(maker: &mut Maker) -> Case {
    let table = maker.table(100_000, 60);
    let table = maker.spread(table);
    let (key, primary) = (table.key.clone(), maker.name());
    let definition = table.definition().replacen(
        &format!("{key} {} PRIMARY KEY", table.key_type()),
        &format!("{key} uuid CONSTRAINT {} PRIMARY KEY", quote(&primary)),
        1,
    );
    let uuid = |number: &str| match maker.is_fixed {
        true => format!(
            "(lpad(to_hex({number}), 12, '0') || substr(encode(sha256(convert_to(({number})::text, 'UTF8')), 'hex'), 1, 20))::uuid"
        ),
        false => format!("substr(encode(sha256(convert_to(({number})::text, 'UTF8')), 'hex'), 1, 32)::uuid"),
    };
    let rows = table.rows;
    let fill = format!(
        "INSERT INTO {} SELECT {} FROM generate_series(1::bigint, {rows}) g",
        table.sql,
        table.values_with(&uuid("g"), "g")
    );
    let number = format!("({rows} + 1 + $i)");
    let body = format!("INSERT INTO {} VALUES ({})", table.sql, table.values_with(&uuid(&number), &number));
    let total = maker.size(25_000);
    let mut sessions = maker.work_in(2, total, 5, 100, &body);
    sessions[0].insert(1, "CHECKPOINT".into());
    let mut setup = vec![definition];
    setup.extend(table.partitions());
    setup.push(fill);
    Case { setup, sessions, objects: table.objects_of(&primary), ..Case::default() }
}

fn gin(maker: &mut Maker, options: &str, keys: u64, total: u64) -> Case {
    let table = maker.table(4000, 60);
    let mut table = maker.spread(table);
    table.rows = 4000;
    let with = format!("USING gin (terms) WITH ({options})");
    let index = maker.index(&table, &with);
    let terms = |number: &str| {
        format!("(SELECT array_agg('t' || ({number} * x * 131) % {keys}) FROM generate_series(1, 15) x)")
    };
    let mut setup = vec![table.definition()];
    setup.extend(table.partitions());
    setup.extend([
        format!("ALTER TABLE {} ADD terms text[]", table.sql),
        format!(
            "INSERT INTO {} SELECT {}, {} FROM generate_series(1::bigint, 4000) g",
            table.sql,
            table.values("g"),
            terms("g")
        ),
        index.create,
        table.use_index("terms @> ARRAY['t0']"),
    ]);
    let number = "(4001 + $i)";
    let body = format!("INSERT INTO {} VALUES ({}, {})", table.sql, table.values(number), terms(number));
    let sessions = maker.work(total, 3, 100, &body);
    Case { setup, sessions, objects: table.objects_of(&index.bare), ..Case::default() }
}

pub(super) fn gin_without_list(maker: &mut Maker) -> Case {
    let (keys, total) = (500 + maker.below(4000), maker.size(7000));
    let options = maker.fix("fastupdate = off", "fastupdate = on").to_owned();
    gin(maker, &options, keys, total)
}

/// Keys that mostly differ, so that the pending list only adds to the WAL.
pub(super) fn gin_pending(maker: &mut Maker) -> Case {
    let total = maker.size(8000);
    let options = maker.fix("fastupdate = on, gin_pending_list_limit = 256", "fastupdate = off").to_owned();
    gin(maker, &options, 2_000_003, total)
}

pub(super) fn hash(maker: &mut Maker) -> Case {
    let bytes = 60 + maker.below(80);
    let table = maker.table(10_000, bytes);
    let mut table = maker.spread(table);
    table.rows = 10_000;
    let index = maker.index(&table, &format!("USING {} (tag)", maker.fix("hash", "btree")));
    let tag =
        |number: &str| format!("substr(encode(sha256(convert_to(({number})::text, 'UTF8')), 'hex'), 1, 24)");
    let mut setup = vec![table.definition()];
    setup.extend(table.partitions());
    setup.extend([
        format!("ALTER TABLE {} ADD tag text", table.sql),
        format!(
            "INSERT INTO {} SELECT {}, {} FROM generate_series(1::bigint, 10000) g",
            table.sql,
            table.values("g"),
            tag("g")
        ),
        index.create,
        table.use_index("tag = 'x'"),
    ]);
    let number = "(10001 + $i)";
    let body = format!("INSERT INTO {} VALUES ({}, {})", table.sql, table.values(number), tag(number));
    let total = maker.size(50_000);
    let sessions = maker.work(total, 6, 100, &body);
    Case { setup, sessions, objects: table.objects_of(&index.bare), ..Case::default() }
}

/// Scans of an index whose rows were deleted, with data checksums; the remedy vacuums before.
pub(super) fn dead_entries(maker: &mut Maker) -> Case {
    let table = maker.table(200_000, 120);
    let index = maker.index(&table, &format!("({}, {})", table.time, table.key));
    let mut setup = table.create();
    // A prepared transaction keeps the deleted rows until the work starts.
    setup.extend([
        index.create,
        format!("VACUUM {}", table.sql),
        "BEGIN; CREATE TABLE keeper (); PREPARE TRANSACTION '$database keeper'".into(),
        format!(
            "DELETE FROM {} WHERE {} < timestamptz '2025-05-05' + {} * interval '3 seconds'",
            table.sql,
            table.time,
            table.rows * 2 / 3
        ),
        "SELECT pg_sleep(1)".into(),
        format!("SELECT count(*) FROM {}", table.sql),
        "COMMIT PREPARED '$database keeper'".into(),
    ]);
    if maker.is_fixed {
        setup.push(format!("VACUUM {}", table.sql));
    }
    let query = format!(
        "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; \
         SELECT sum({}) OVER (ORDER BY {}, {}) FROM {} OFFSET {}",
        table.number, table.time, table.key, table.sql, table.rows
    );
    let has_checksums = maker.chance(50);
    let settings = vec![
        ("autovacuum", "off".into()),
        ("wal_log_hints", if has_checksums { "off" } else { "on" }.into()),
    ];
    Case {
        checksums: Some(has_checksums),
        is_vacuumed: true,
        settings,
        setup,
        sessions: vec![vec![query]],
        objects: vec![index.bare, table.bare],
        ..Case::default()
    }
}

fn filled(maker: &mut Maker) -> (super::super::schema::Table, super::super::schema::Index, Vec<String>) {
    let bytes = 150 + maker.below(150);
    let mut table = maker.table(100_000, bytes);
    table.fillfactor = None;
    let index = maker.index(&table, &format!("({}, {}, {})", table.time, table.number, table.key));
    let setup = table.create();
    (table, index, setup)
}

/// The same index built again and again; the remedy builds it once.
pub(super) fn reindex_concurrently(maker: &mut Maker) -> Case {
    let (table, index, mut setup) = filled(maker);
    setup.extend([index.create.clone(), table.use_index(&format!("{} > now()", table.time))]);
    let times = if maker.is_fixed { 1 } else { 5 };
    let reindex = format!("REINDEX INDEX {} {}", maker.pick(&["CONCURRENTLY", ""]), index.sql);
    Case { setup, sessions: vec![vec![reindex; times]], objects: vec![index.bare], ..Case::default() }
}

/// An index that is created, and dropped again.
pub(super) fn builds(maker: &mut Maker) -> Case {
    let (_, index, setup) = filled(maker);
    let times = if maker.is_fixed { 1 } else { 5 };
    let pair = [index.create.clone(), format!("DROP INDEX {}", index.sql)];
    let mut scripts: Vec<String> = (0..times).flat_map(|_| pair.clone()).collect();
    scripts.push(index.create);
    Case { setup, sessions: vec![scripts], remedy: Remedy::Other, ..Case::default() }
}
