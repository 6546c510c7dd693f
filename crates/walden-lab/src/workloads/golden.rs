//! `golden`: a tour through the record kinds of every resource manager, small enough to keep in a repository.
//!
//! The size is the number of rounds through the tour. To keep images few, full_page_writes is off for most of
//! the tour; the last stations turn it on again and write images of a few pages under each compression.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use postgres::Client;
use serde_json::{Value, json};

use super::Context;
use crate::cluster::{StopMode, insert_lsn};

/// One part of the tour.
struct Station {
    name: &'static str,
    visit: Visit,
}

enum Visit {
    /// Statements of one session, each in its own transaction unless it opens one.
    Sql(&'static [&'static str]),
    /// Code, for stations that need more than one session.
    Code(fn(&Tour<'_>, &mut Client) -> Result<()>),
}

struct Tour<'a> {
    context: &'a Context<'a>,
    round: u64,
}

use Visit::{Code, Sql};

const STATIONS: &[Station] = &[
    Station { name: "full_page_writes off", visit: Code(full_page_writes_off) },
    Station {
        name: "heap",
        visit: Sql(&[
            "CREATE TABLE item (id int PRIMARY KEY, name text, n int) WITH (fillfactor = 70)",
            "INSERT INTO item SELECT n, md5(n::text), n FROM generate_series(1, 60) n",
            // HOT: no indexed column changes and the page has free space. Then an update that needs a new
            // index entry.
            "UPDATE item SET n = n + 1 WHERE id <= 20",
            "UPDATE item SET id = id + 1000 WHERE id BETWEEN 21 AND 30",
            "UPDATE item SET name = name || ' of ' || repeat('another length ', id % 7) WHERE id <= 40",
            "DELETE FROM item WHERE id BETWEEN 31 AND 35",
            "INSERT INTO item VALUES (1, 'in the way', 0), (5000, 'new', 0) ON CONFLICT (id) DO UPDATE SET n = -1",
            "BEGIN; INSERT INTO item VALUES (6000, 'never', 0); DELETE FROM item WHERE id = 2; ROLLBACK",
            "SELECT id FROM item WHERE id <= 3 FOR UPDATE",
            "SELECT id FROM item WHERE id <= 3 FOR NO KEY UPDATE",
            "BEGIN; INSERT INTO item VALUES (6001, 'kept', 0); SAVEPOINT a; INSERT INTO item VALUES (6002, 'not', 0);
             ROLLBACK TO a; SAVEPOINT b; UPDATE item SET n = 7 WHERE id = 6001; RELEASE b; COMMIT",
        ]),
    },
    Station { name: "copy", visit: Code(copy) },
    Station {
        name: "prune and vacuum",
        visit: Sql(&[
            "CREATE TABLE busy (id int PRIMARY KEY, n int, filler text)",
            "INSERT INTO busy SELECT n, 0, repeat('x', 100) FROM generate_series(1, 100) n",
            // More versions than a page holds: pruned on access.
            "DO $$ BEGIN FOR i IN 1..60 LOOP UPDATE busy SET n = i WHERE id = 1; COMMIT; END LOOP; END $$",
            "UPDATE busy SET id = id + 1000 WHERE id % 3 = 0",
            "DELETE FROM busy WHERE id % 5 = 0",
            "VACUUM busy",
            "DELETE FROM busy WHERE id > 40",
            // Truncates empty pages at the end.
            "VACUUM (ANALYZE) busy",
            "VACUUM (FREEZE) item",
            "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) busy",
            "UPDATE busy SET n = 0 WHERE id = 2",
        ]),
    },
    Station {
        name: "truncate, rewrite, drop",
        visit: Sql(&[
            "BEGIN; CREATE TABLE gone (id int, t text); INSERT INTO gone VALUES (1, repeat('long ', 1000)); COMMIT",
            "TRUNCATE gone",
            "INSERT INTO gone SELECT n, md5(n::text) FROM generate_series(1, 10) n",
            "VACUUM FULL gone",
            "BEGIN; ALTER TABLE gone ADD COLUMN d date DEFAULT '2025-01-01'; ROLLBACK",
            "DROP TABLE gone",
            "VACUUM FULL pg_tablespace",
        ]),
    },
    Station {
        name: "toast",
        visit: Sql(&[
            "CREATE TABLE large (id int, body text)",
            "ALTER TABLE large ALTER body SET STORAGE EXTERNAL",
            "INSERT INTO large SELECT 1, string_agg(md5(n::text), ' ') FROM generate_series(1, 200) n",
            "UPDATE large SET body = body || 'end'",
            "DELETE FROM large",
            "VACUUM large",
        ]),
    },
    Station {
        name: "btree",
        visit: Sql(&[
            "CREATE TABLE tree (id int, wide text)",
            "CREATE INDEX tree_wide ON tree (wide)",
            "ALTER TABLE tree ALTER wide SET STORAGE PLAIN",
            // Wide keys in random order: splits on both sides; then at the right end.
            "INSERT INTO tree SELECT n, repeat(md5(n::text), 20) FROM generate_series(1, 110) n",
            "INSERT INTO tree SELECT n, repeat('z' || lpad(n::text, 4, '0'), 100) FROM generate_series(1, 24) n",
            "CREATE TABLE duplicate (k int, v int)",
            "CREATE INDEX duplicate_k ON duplicate (k)",
            "INSERT INTO duplicate SELECT n % 3, n FROM generate_series(1, 600) n",
            // Version churn of an indexed column: dead entries are deleted before a page is split.
            "DO $$ BEGIN FOR i IN 1..40 LOOP UPDATE duplicate SET v = v + 1, k = k WHERE v < 12; END LOOP; END $$",
            "DELETE FROM duplicate WHERE v % 4 = 1",
            "VACUUM duplicate",
            // Freed line pointers in the middle of posting lists are reused.
            "INSERT INTO duplicate SELECT n % 3, n FROM generate_series(2000, 2200) n",
            "DELETE FROM tree WHERE wide >= '3' AND wide < 'e'",
            "VACUUM (INDEX_CLEANUP ON) tree",
            "SELECT txid_current()",
            "DELETE FROM tree",
            "VACUUM (INDEX_CLEANUP ON) tree",
            "SELECT txid_current()",
            "SELECT txid_current()",
            "VACUUM (INDEX_CLEANUP ON) tree",
            "INSERT INTO tree SELECT n, repeat(md5(n::text), 20) FROM generate_series(1, 30) n",
            "DROP TABLE duplicate",
        ]),
    },
    Station { name: "btree dead entries", visit: Code(dead_entries) },
    Station {
        name: "hash",
        visit: Sql(&[
            "CREATE TABLE hashed (k int, v int)",
            // If known to be empty, it starts with two buckets; a low fill factor splits them early.
            "VACUUM hashed",
            "CREATE INDEX hashed_k ON hashed USING hash (k) WITH (fillfactor = 10)",
            "INSERT INTO hashed SELECT n, n FROM generate_series(1, 200) n",
            // One value fills several overflow pages, which are emptied and squeezed.
            "INSERT INTO hashed SELECT 7, n FROM generate_series(1, 850) n",
            "DELETE FROM hashed WHERE k = 7 AND v < 640 AND v % 3 <> 0",
            "VACUUM (INDEX_CLEANUP ON) hashed",
            "INSERT INTO hashed SELECT n, n FROM generate_series(1000, 1100) n",
        ]),
    },
    Station { name: "hash dead entries", visit: Code(hash_dead_entries) },
    Station { name: "gin", visit: Code(gin) },
    Station {
        name: "gist",
        visit: Sql(&[
            "CREATE TABLE place (id int, at point, area box)",
            "CREATE INDEX place_at ON place USING gist (at)",
            "CREATE INDEX place_area ON place USING gist (area) WITH (buffering = off)",
            "INSERT INTO place SELECT n, point(n * 7919 % 997, n * 104729 % 991),
                 box(point(n * 31 % 101, n * 17 % 103), point(n * 31 % 101 + 2, n * 17 % 103 + 2))
             FROM generate_series(1, 300) n",
            "DELETE FROM place WHERE at[0] > 200",
            "VACUUM (INDEX_CLEANUP ON) place",
            "SELECT txid_current()",
            "SELECT txid_current()",
            "VACUUM (INDEX_CLEANUP ON) place",
            "INSERT INTO place SELECT n, point(n * 7919 % 997, n * 104729 % 991), NULL FROM generate_series(1, 200) n",
        ]),
    },
    Station { name: "gist dead entries", visit: Code(gist_dead_entries) },
    Station {
        name: "spgist",
        visit: Sql(&[
            "CREATE TABLE route (id int, path text, at point)",
            "CREATE INDEX route_path ON route USING spgist (path)",
            "CREATE INDEX route_at ON route USING spgist (at)",
            "INSERT INTO route SELECT n, 'www.example/' || left(md5((n % 40)::text), 4) || '/' || md5(n::text),
                 point(n * 7919 % 997, n * 104729 % 991)
             FROM generate_series(1, 360) n",
            "INSERT INTO route VALUES (500, 'www.e', NULL), (501, 'ftp.other', NULL), (502, 'www.example/', NULL),
                 (503, 'wwww', NULL), (504, 'www.zzz', NULL)",
            "DELETE FROM route WHERE id % 2 = 0",
            "VACUUM (INDEX_CLEANUP ON) route",
            "DELETE FROM route WHERE id < 300",
            "VACUUM (INDEX_CLEANUP ON) route",
            "DELETE FROM route",
            "VACUUM (INDEX_CLEANUP ON) route",
        ]),
    },
    Station {
        name: "brin",
        visit: Sql(&[
            "CREATE TABLE log (id int, at text) WITH (fillfactor = 25)",
            "CREATE INDEX log_at ON log USING brin (at) WITH (pages_per_range = 1)",
            "INSERT INTO log SELECT n, lpad(n::text, 6, '0') FROM generate_series(1, 500) n",
            "SELECT brin_summarize_new_values('log_at')",
            // A longer summary does not fit in place once its page is full; one of the same size does.
            "UPDATE log SET at = (SELECT string_agg(md5((id * i)::text), '') FROM generate_series(1, 24) i)
             WHERE id % 40 = 3",
            "UPDATE log SET at = 'n' WHERE id % 90 = 5",
            "SELECT brin_desummarize_range('log_at', 1)",
            "SELECT brin_summarize_new_values('log_at')",
        ]),
    },
    Station {
        name: "sequence",
        visit: Sql(&[
            "CREATE SEQUENCE number",
            "SELECT nextval('number') FROM generate_series(1, 70)",
            "SELECT setval('number', 1000)",
            "ALTER SEQUENCE number INCREMENT BY 5 RESTART",
        ]),
    },
    Station { name: "row locks and multixacts", visit: Code(multixacts) },
    Station {
        name: "two-phase commit",
        visit: Sql(&[
            "BEGIN; INSERT INTO item VALUES (7001, 'prepared', 0); PREPARE TRANSACTION 'one'",
            "COMMIT PREPARED 'one'",
            "BEGIN; CREATE TABLE prepared (id int); SAVEPOINT a; INSERT INTO prepared VALUES (1);
             DROP TABLE large; PREPARE TRANSACTION 'two'",
            "CHECKPOINT",
            "ROLLBACK PREPARED 'two'",
        ]),
    },
    Station {
        name: "transactions",
        visit: Sql(&[
            // More than 64 subtransactions: their parent is logged (assignment).
            "DO $$ BEGIN FOR i IN 1..70 LOOP
                 BEGIN INSERT INTO item VALUES (8000 + i, 'sub', i); EXCEPTION WHEN OTHERS THEN NULL; END;
             END LOOP; END $$",
            "BEGIN; LOCK TABLE item IN ACCESS EXCLUSIVE MODE; SELECT pg_log_standby_snapshot(); COMMIT",
            "SET synchronous_commit = off; INSERT INTO item VALUES (9000, 'asynchronous', 0); RESET synchronous_commit",
            "CREATE TYPE mood AS ENUM ('sad', 'glad')",
            "ALTER TYPE mood ADD VALUE 'calm'",
            "BEGIN; CREATE INDEX item_name ON item (name); COMMIT",
            "REINDEX INDEX item_name",
            "DROP INDEX item_name",
        ]),
    },
    Station { name: "many transaction ids", visit: Code(many_transaction_ids) },
    Station { name: "databases and tablespaces", visit: Code(databases) },
    Station {
        name: "messages and origins",
        visit: Sql(&[
            "SELECT pg_logical_emit_message(false, 'walden', 'a message outside a transaction')",
            "BEGIN; SELECT pg_logical_emit_message(true, 'walden', 'one inside'); COMMIT",
            "SELECT pg_replication_origin_create('elsewhere')",
            "SELECT pg_replication_origin_session_setup('elsewhere')",
            "BEGIN; SELECT pg_replication_origin_xact_setup('0/ABCDEF', '2025-06-01 12:00:00+00');
             INSERT INTO item VALUES (9500, 'replicated', 0); COMMIT",
            "BEGIN; SELECT pg_replication_origin_xact_setup('0/ABCDF0', '2025-06-01 12:00:01+00');
             INSERT INTO item VALUES (9501, 'rolled back', 0); ROLLBACK",
            "SELECT pg_replication_origin_session_reset()",
            "SELECT pg_replication_origin_advance('elsewhere', '0/ABCE00')",
            "SELECT pg_replication_origin_drop('elsewhere')",
        ]),
    },
    Station { name: "generic records", visit: Code(bloom) },
    Station { name: "backup, segment switch, restore point", visit: Code(backup) },
    Station { name: "images under each compression", visit: Code(images) },
    Station { name: "logical", visit: Code(logical) },
    Station { name: "repack", visit: Code(repack) },
];

/// Statements that older versions lack are skipped, by the first version that supports them.
const SKIPPED: &[(&str, u32)] = &[("pg_log_standby_snapshot", 16)];

pub(super) fn run(context: &Context<'_>) -> Result<Value> {
    let mut stations = Vec::new();
    context.progress.counted("golden: on tour", context.size * STATIONS.len() as u64);
    for round in 0..context.size {
        let tour = Tour { context, round };
        context.cluster.client("postgres")?.batch_execute(&format!(
            "CREATE DATABASE {} {}",
            tour.database(),
            tour.file_copy()
        ))?;
        for station in STATIONS {
            let mut client = tour.client()?;
            let before = insert_lsn(&mut client)?;
            tour.visit(&mut client, &station.visit)
                .with_context(|| format!("at the station \"{}\"", station.name))?;
            drop(client);
            let after = insert_lsn(&mut tour.client()?)?;
            stations.push(json!({
                "station": station.name,
                "lsn_before": before.to_string(),
                "lsn_after": after.to_string(),
                "bytes": after.bytes_since(before),
            }));
            context.progress.advance(1);
        }
    }
    Ok(json!({ "stations": stations }))
}

impl Tour<'_> {
    fn database(&self) -> String {
        format!("tour{}", self.round)
    }

    fn client(&self) -> Result<Client> {
        self.context.cluster.client(&self.database())
    }

    /// The clause that keeps CREATE DATABASE from logging every page of the template (the default since 15).
    fn file_copy(&self) -> &'static str {
        if self.context.cluster.major() >= 15 { "STRATEGY file_copy" } else { "" }
    }

    fn visit(&self, client: &mut Client, visit: &Visit) -> Result<()> {
        match visit {
            Code(function) => function(self, client),
            Sql(statements) => {
                let major = self.context.cluster.major();
                for statement in *statements {
                    let lacking =
                        SKIPPED.iter().find(|(name, since)| statement.contains(name) && major < *since);
                    let statement = match lacking {
                        Some((name, _)) => statement.replace(&format!("{name}()"), "1"),
                        None => (*statement).to_owned(),
                    };
                    client
                        .batch_execute(&statement)
                        .with_context(|| format!("in the statement: {statement}"))?;
                }
                Ok(())
            }
        }
    }

    /// Changes a setting for all sessions, and waits until it is in effect.
    fn set(&self, client: &mut Client, name: &str, value: &str) -> Result<()> {
        client.batch_execute(&format!("ALTER SYSTEM SET {name} = {value}"))?;
        client.batch_execute("SELECT pg_reload_conf()")?;
        // The checkpointer is involved too: it logs the change of full_page_writes.
        for _ in 0..200 {
            let row = self.client()?.query_one("SELECT current_setting($1)", &[&name])?;
            if row.get::<_, &str>(0) == value {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        Ok(())
    }
}

/// `REPACK`; its concurrent form switches logical decoding on and off.
fn repack(tour: &Tour<'_>, client: &mut Client) -> Result<()> {
    if tour.context.cluster.major() < 19 {
        return Ok(());
    }
    for statement in ["REPACK item", "REPACK (CONCURRENTLY) item USING INDEX item_pkey"] {
        client.batch_execute(statement).with_context(|| format!("in the statement: {statement}"))?;
    }
    Ok(())
}

fn full_page_writes_off(tour: &Tour<'_>, client: &mut Client) -> Result<()> {
    if tour.context.own_settings.iter().any(|(name, _)| name == "full_page_writes") {
        return Ok(());
    }
    tour.set(client, "full_page_writes", "off")
}

/// COPY writes several rows with one record.
fn copy(_: &Tour<'_>, client: &mut Client) -> Result<()> {
    client.batch_execute("CREATE TABLE copied (id int, t text)")?;
    for rows in [150, 3] {
        let mut writer = client.copy_in("COPY copied FROM STDIN")?;
        for n in 0..rows {
            writeln!(writer, "{n}\trow number {n}")?;
        }
        writer.finish()?;
    }
    // Into a table that is new in this transaction, frozen immediately.
    let mut transaction = client.transaction()?;
    transaction.batch_execute("CREATE TABLE frozen (id int, t text)")?;
    let mut writer = transaction.copy_in("COPY frozen FROM STDIN WITH (FREEZE)")?;
    for n in 0..200 {
        writeln!(writer, "{n}\tfrozen row number {n}")?;
    }
    writer.finish()?;
    transaction.commit()?;
    Ok(())
}

/// An index scan marks entries of dead rows; the next insertion that needs their space deletes them.
fn dead_entries(_: &Tour<'_>, client: &mut Client) -> Result<()> {
    client.batch_execute(
        "CREATE TABLE dead (k int, v text);
         CREATE UNIQUE INDEX dead_k ON dead (k);
         INSERT INTO dead SELECT n, 'x' FROM generate_series(1, 360) n;",
    )?;
    client.batch_execute("DELETE FROM dead WHERE k <= 300")?;
    client.batch_execute(
        "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off",
    )?;
    client.batch_execute(
        "SELECT v FROM dead WHERE k > 0 ORDER BY k; SELECT v FROM dead WHERE k > 0 ORDER BY k",
    )?;
    client.batch_execute("INSERT INTO dead SELECT n, 'y' FROM generate_series(1001, 1020) n")?;
    client.batch_execute("INSERT INTO dead SELECT n, 'y' FROM generate_series(1, 60) n")?;
    client.batch_execute("RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_indexonlyscan")?;
    Ok(())
}

fn gin(_: &Tour<'_>, client: &mut Client) -> Result<()> {
    client.batch_execute("CREATE TABLE bag (id int, words int[])")?;
    // A list of rows slightly too short for a posting tree, built with the index; the pending entries then
    // turn it into one.
    let mut writer = client.copy_in("COPY bag FROM STDIN")?;
    for n in 1..=2600 {
        writeln!(writer, "{n}\t{{1}}")?;
    }
    writer.finish()?;
    for statement in [
        "CREATE INDEX bag_words ON bag USING gin (words) WITH (fastupdate = on, gin_pending_list_limit = 64)",
        "INSERT INTO bag SELECT n, ARRAY[1, n % 50] FROM generate_series(3000, 3140) n",
        "SELECT gin_clean_pending_list('bag_words')",
        "ALTER INDEX bag_words SET (fastupdate = off)",
        "INSERT INTO bag SELECT n, ARRAY[1, n, n + 100, n + 200, n + 300, n + 400] FROM generate_series(4000, 4090) n",
        "DELETE FROM bag WHERE id % 5 = 0",
        "VACUUM (INDEX_CLEANUP ON) bag",
    ] {
        client.batch_execute(statement).with_context(|| format!("in the statement: {statement}"))?;
    }
    Ok(())
}

fn hash_dead_entries(_: &Tour<'_>, client: &mut Client) -> Result<()> {
    client.batch_execute(
        "CREATE TABLE hash_dead (k int, v int);
         CREATE INDEX hash_dead_k ON hash_dead USING hash (k);
         INSERT INTO hash_dead SELECT 1, n FROM generate_series(1, 406) n;",
    )?;
    client.batch_execute("DELETE FROM hash_dead WHERE v > 5")?;
    client.batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off")?;
    client.batch_execute("SELECT v FROM hash_dead WHERE k = 1; SELECT v FROM hash_dead WHERE k = 1")?;
    client.batch_execute("INSERT INTO hash_dead SELECT 1, n FROM generate_series(1, 20) n")?;
    client.batch_execute("RESET enable_seqscan; RESET enable_bitmapscan")?;
    Ok(())
}

/// Entries of a root page are never marked: the root must have child pages.
fn gist_dead_entries(_: &Tour<'_>, client: &mut Client) -> Result<()> {
    client.batch_execute(
        "CREATE TABLE gist_dead (at point);
         CREATE INDEX gist_dead_at ON gist_dead USING gist (at);
         INSERT INTO gist_dead SELECT point(n % 13, n % 7) FROM generate_series(1, 200) n",
    )?;
    client.batch_execute("DELETE FROM gist_dead")?;
    client.batch_execute(
        "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off",
    )?;
    for _ in 0..2 {
        client.batch_execute("SELECT * FROM gist_dead WHERE at <@ box '((0,0),(100,100))'")?;
    }
    client
        .batch_execute("INSERT INTO gist_dead SELECT point(n % 2, n % 7) FROM generate_series(1, 110) n")?;
    client.batch_execute("RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_indexonlyscan")?;
    Ok(())
}

/// Several sessions lock the same rows.
fn multixacts(tour: &Tour<'_>, client: &mut Client) -> Result<()> {
    let (mut second, mut third) = (tour.client()?, tour.client()?);
    client.batch_execute("BEGIN; SELECT id FROM item WHERE id IN (3, 4, 5) FOR KEY SHARE")?;
    second.batch_execute("BEGIN; SELECT id FROM item WHERE id IN (3, 4, 5) FOR KEY SHARE")?;
    third.batch_execute("BEGIN; SELECT id FROM item WHERE id IN (3, 4) FOR SHARE; COMMIT")?;
    // An updater among lockers, then a locker of the updated version.
    third.batch_execute("BEGIN; UPDATE item SET n = 100 WHERE id = 3")?;
    second.batch_execute("SELECT id FROM item WHERE id = 3 FOR KEY SHARE")?;
    client.batch_execute("COMMIT")?;
    client.batch_execute("SELECT id FROM item WHERE id = 3 FOR KEY SHARE")?;
    third.batch_execute("COMMIT")?;
    second.batch_execute("ROLLBACK")?;

    // A first update by one session, a key-share lock by another session that follows it.
    client.batch_execute("BEGIN; UPDATE item SET n = n + 1 WHERE id = 6")?;
    second.batch_execute("BEGIN; SELECT id FROM item WHERE id = 6 FOR KEY SHARE; COMMIT")?;
    client.batch_execute("COMMIT")?;

    client.batch_execute("BEGIN; UPDATE item SET n = n + 1 WHERE id = 7; DELETE FROM item WHERE id = 8")?;
    client.batch_execute("ROLLBACK")?;
    // Enough members for a second page of them.
    client.batch_execute("BEGIN; SELECT id FROM copied FOR KEY SHARE")?;
    for _ in 0..4 {
        second.batch_execute("BEGIN; SELECT id FROM copied WHERE id < 150 FOR KEY SHARE; COMMIT")?;
    }
    client.batch_execute("COMMIT")?;
    client.batch_execute("VACUUM (FREEZE) copied")?;
    client.batch_execute("VACUUM (FREEZE) item")?;
    Ok(())
}

/// Subtransactions that touch only temporary tables use up transaction ids without writing any WAL, so that
/// new pages of the commit log and of commit timestamps are started, and one commit record is longer than a
/// page.
fn many_transaction_ids(_: &Tour<'_>, client: &mut Client) -> Result<()> {
    client.batch_execute("CREATE TEMPORARY TABLE scratch (n int)")?;
    client.batch_execute(
        "DO $$ BEGIN FOR i IN 1..33000 LOOP
             BEGIN INSERT INTO scratch VALUES (1); EXCEPTION WHEN OTHERS THEN NULL; END;
         END LOOP; END $$",
    )?;
    Ok(())
}

fn databases(tour: &Tour<'_>, client: &mut Client) -> Result<()> {
    let folder = tour.context.cluster.make_folder(&format!("tablespace{}", tour.round))?;
    client.batch_execute(&format!("CREATE TABLESPACE elsewhere LOCATION '{}'", folder.display()))?;
    client.batch_execute("CREATE TABLE moved (id int) TABLESPACE elsewhere")?;
    client.batch_execute("INSERT INTO moved VALUES (1)")?;
    client.batch_execute("ALTER TABLE moved SET TABLESPACE pg_default")?;
    client.batch_execute(&format!("CREATE DATABASE other {} TABLESPACE elsewhere", tour.file_copy()))?;
    let mut other = tour.context.cluster.client("other")?;
    other.batch_execute("CREATE TABLE there (id int); INSERT INTO there VALUES (1)")?;
    drop(other);
    client.batch_execute("DROP DATABASE other WITH (FORCE)")?;
    client.batch_execute("DROP TABLESPACE elsewhere")?;
    Ok(())
}

/// The bloom access method, if the installation includes it, logs generic deltas of pages.
fn bloom(_: &Tour<'_>, client: &mut Client) -> Result<()> {
    let available = client.query("SELECT FROM pg_available_extensions WHERE name = 'bloom'", &[])?;
    if !available.is_empty() {
        client.batch_execute("CREATE EXTENSION bloom")?;
        client.batch_execute(
            "CREATE TABLE signed (a int, b int); CREATE INDEX signed_ab ON signed USING bloom (a, b)",
        )?;
        client.batch_execute("INSERT INTO signed SELECT n, n * 3 FROM generate_series(1, 40) n")?;
        client.batch_execute("DELETE FROM signed WHERE a < 20")?;
        client.batch_execute("VACUUM (INDEX_CLEANUP ON) signed")?;
    }
    Ok(())
}

/// The start and the stop of a backup each switch to a new segment.
fn backup(tour: &Tour<'_>, client: &mut Client) -> Result<()> {
    let (start, stop) = match tour.context.cluster.major() {
        15.. => ("pg_backup_start('walden', true)", "pg_backup_stop(false)"),
        _ => ("pg_start_backup('walden', true, false)", "pg_stop_backup(false, false)"),
    };
    client.batch_execute(&format!("SELECT {start}"))?;
    client.batch_execute(&format!("SELECT {stop}"))?;
    client.batch_execute("SELECT pg_create_restore_point('after the switch')")?;
    Ok(())
}

/// Images of a first change after a checkpoint, of a hint bit, and of an index build; plain and compressed.
fn images(tour: &Tour<'_>, client: &mut Client) -> Result<()> {
    tour.set(client, "full_page_writes", "on")?;
    client.batch_execute("CREATE TABLE pictured (id int, t text) WITH (autovacuum_enabled = off)")?;
    client.batch_execute("INSERT INTO pictured SELECT n, md5(n::text) FROM generate_series(1, 100) n")?;
    client.batch_execute("CHECKPOINT")?;
    // The first read sets hint bits, whose image is logged because of checksums.
    client.batch_execute("SELECT count(*) FROM pictured")?;
    let row = client.query_one("SELECT enumvals FROM pg_settings WHERE name = 'wal_compression'", &[])?;
    // A boolean up to 14; later the supported methods, next to other names for on and off.
    let methods = row.get::<_, Option<Vec<String>>>(0).unwrap_or_else(|| vec!["on".into()]);
    let known = |method: &&String| ["pglz", "lz4", "zstd"].contains(&method.as_str()) || methods.len() == 1;
    for method in methods.iter().filter(known) {
        client.batch_execute(&format!("SET wal_compression = {method}"))?;
        client.batch_execute("CHECKPOINT")?;
        client.batch_execute("UPDATE pictured SET t = t WHERE id IN (1, 50, 100)")?;
        client.batch_execute(&format!("CREATE INDEX pictured_{method} ON pictured (t)"))?;
    }
    client.batch_execute("RESET wal_compression")?;
    Ok(())
}

/// A restart under wal_level=logical: shutdown, changed parameters, old keys, command ids of catalog rows,
/// invalidations, TRUNCATE records, and the mapping of a rewritten catalog.
fn logical(tour: &Tour<'_>, client: &mut Client) -> Result<()> {
    client.batch_execute("ALTER SYSTEM SET wal_level = logical")?;
    client.batch_execute("ALTER SYSTEM SET full_page_writes = off")?;
    tour.context.cluster.restart(StopMode::Fast)?;
    let mut client = tour.client()?;
    for statement in [
        "CREATE TABLE watched (id int PRIMARY KEY, t text, big text)",
        "INSERT INTO watched SELECT n, md5(n::text) FROM generate_series(1, 20) n",
        "UPDATE watched SET id = id + 100 WHERE id <= 3",
        "DELETE FROM watched WHERE id = 5",
        "ALTER TABLE watched REPLICA IDENTITY FULL",
        "UPDATE watched SET t = 'changed' WHERE id = 6",
        "DELETE FROM watched WHERE id = 7",
        "BEGIN; ALTER TABLE watched ADD COLUMN n int; INSERT INTO watched (id, n) VALUES (500, 1); COMMIT",
        "BEGIN; SAVEPOINT a; INSERT INTO watched (id) VALUES (501); RELEASE a; SAVEPOINT b; CREATE TABLE w2 (i int);
         ROLLBACK TO b; COMMIT",
        "TRUNCATE watched",
        "SELECT pg_logical_emit_message(true, 'walden', 'logical')",
    ] {
        client.batch_execute(statement).with_context(|| format!("in the statement: {statement}"))?;
    }
    // A slot keeps old catalog rows, so that rewriting a catalog must log their new locations.
    let plugin =
        client.query_one("SELECT pg_create_logical_replication_slot('watcher', 'pgoutput')::text", &[]);
    if plugin.is_ok() {
        client.batch_execute("CREATE TABLE catalogued (id int) WITH (user_catalog_table = true)")?;
        client.batch_execute("INSERT INTO catalogued SELECT generate_series(1, 10)")?;
        client.batch_execute("UPDATE catalogued SET id = id + 1; DELETE FROM catalogued WHERE id < 4")?;
        client.batch_execute("VACUUM FULL catalogued")?;
        client.batch_execute("SELECT pg_drop_replication_slot('watcher')")?;
    }
    client.batch_execute("ALTER SYSTEM RESET ALL")?;
    Ok(())
}
