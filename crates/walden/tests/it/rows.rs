//! Rows from the WAL, compared with an audit table filled by triggers, and with logical decoding.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postgres::Client;
use serde_json::Value;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_rows::encoding::Encoding;
use walden_source::datadir::DataDir;
use walden_testing::{ALL_SERVERS, Missing, Need, Outcome, postgres};

use crate::material::{Run, cluster_that_keeps_wal, say, walden};

walden_testing::tests! {
    #[slow] rows_equal_the_audit on ALL_SERVERS,
    rows_equal_logical_decoding,
    what_is_not_known_is_said,
    a_backup_of_a_busy_server_is_enough,
    a_backup_within_a_transaction_that_changes_tables_is_enough,
    what_a_crash_ended_is_taken_back,
    what_a_crash_ended_beside_a_prepared_transaction_is_taken_back,
    statements_reach_what_they_are_for_alone,
    ranges_that_end_before_the_base_backup_are_refused,
    statements_meet_one_row_or_fail,
    catalogs_and_databases_that_move_are_followed,
    catalogs_that_were_rewritten_before_are_followed,
    catalogs_that_are_not_known_may_hide_changes,
    names_that_are_newer_than_a_rewrite_are_noticed,
    defaults_that_names_have_as_text_are_values,
    names_have_what_inherits_and_what_is_missing,
    names_that_change_hands_are_followed,
    text_is_converted_as_the_server_does,
    rows_of_a_database_in_another_encoding,
    bytes_that_are_no_text_are_named,
    what_a_log_lacks_is_told,
    labels_are_those_at_the_end,
    scripts_that_are_not_complete_can_be_run,
    a_table_that_vacuum_empties_is_not_truncated,
    what_a_server_under_minimal_does_not_log_is_told,
    values_of_narrowed_types_are_not_set,
}

/// Writes each change of a row into `audit`, with rows as `record_out` prints them.
const AUDIT: &str = "
    CREATE TABLE audit (n bigserial, tab text, op text, xid bigint, old text, new text);
    CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit (tab, op, xid, old, new) VALUES (TG_TABLE_NAME, lower(TG_OP), txid_current(),
            CASE WHEN TG_OP <> 'INSERT' THEN OLD::text END, CASE WHEN TG_OP <> 'DELETE' THEN NEW::text END);
        RETURN NULL;
    END $$";

const TABLES: &str = "
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy');
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE DOMAIN price AS numeric(12,2);
    CREATE DOMAIN sale_price AS price CHECK (VALUE >= 0);
    CREATE TYPE pair AS (a int, b text);
    CREATE TYPE span AS RANGE (subtype = float8);
    CREATE TABLE types (id int PRIMARY KEY, b bool, i2 int2, i8 int8, o oid, f4 float4, f8 float8, n numeric,
        nn numeric(12,2), t text, vc varchar(20), ch char(8), nm name, qc \"char\", by bytea, d date, tm time, tz timetz,
        ts timestamp, tstz timestamptz, iv interval, u uuid, js json, jb jsonb, ip inet, ci cidr, ma macaddr,
        ma8 macaddr8, bi bit(10), vb varbit, mo money, po point, li line, ls lseg, bx box, pa path, pg polygon,
        cr circle, ia int[], ta text[], na numeric[], ba box[], m mood, mm mood[], dm positive, p pair, pp pair[],
        r int4range, nr numrange, tr tstzrange, mr int4multirange, sp span, tsv tsvector, lsn pg_lsn, x8 xid8, ti tid,
        v2 int2vector, vo oidvector, va int2vector[], dp sale_price,
        g int GENERATED ALWAYS AS (i2 + 1) STORED);
    CREATE TABLE items (id int PRIMARY KEY, name text, amount numeric, note text, big text, stored text);
    ALTER TABLE items ALTER stored SET STORAGE external;
    CREATE INDEX ON items (name);
    CREATE TABLE keyless (a int, b text, c numeric, f float8);
    CREATE TABLE identity (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \"select\" text);
    CREATE TABLE parts (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
    CREATE TABLE parts_n PARTITION OF parts FOR VALUES IN ('north');
    CREATE TABLE parts_s PARTITION OF parts FOR VALUES IN ('south');
    CREATE TABLE shapes (id int PRIMARY KEY, a text, gone int, b text);
    INSERT INTO items SELECT i, 'item ' || i, i * 1.25, CASE WHEN i % 3 = 0 THEN 'note ' || i END,
        CASE WHEN i % 10 = 0 THEN repeat(md5(i::text), 400) END,
        CASE WHEN i % 10 = 5 THEN repeat('stored ' || i, 700) END FROM generate_series(1, 300) i;
    INSERT INTO keyless SELECT i % 5, 'same', 1.50 FROM generate_series(1, 20) i;
    INSERT INTO identity (\"select\") SELECT 'row ' || i FROM generate_series(1, 20) i;
    INSERT INTO parts SELECT i, CASE i % 2 WHEN 0 THEN 'north' ELSE 'south' END, 'v' || i FROM generate_series(1, 40) i;
    INSERT INTO shapes SELECT i, 'a' || i, i, 'b' || i FROM generate_series(1, 30) i";

const TRACKED: [&str; 7] = ["types", "items", "keyless", "identity", "parts_n", "parts_s", "shapes"];

/// Statements, each in its own transaction unless it controls transactions itself.
const WORK: &[&str] = &[
    "INSERT INTO types VALUES (1, true, -1, 9223372036854775807, 4294967295, 1.1, -0.0, 123456789012345678901234567890.123456789,
        -12.30, 'ünï \"quoted\" \\ text', 'vc', 'ch', 'nm', 'q', '\\x00ff10', '2024-02-29', '23:59:59.123', '12:00:00+05:30',
        '2024-02-29 13:00:00.5', '2024-02-29 13:00:00+02', '1 year -2 mons +3 days -04:05:06.789',
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\" :  [1,2 ]}', '{\"b\": {\"c\": [1, 2.50, \"x\\ny\", null, true]}, \"a\": \"é\"}',
        '10.1.2.3/8', '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', B'1010101010', B'101', '-1234567.89',
        '(1.5,-2)', '{1,2,3}', '[(0,0),(1,1)]', '(3,4),(1,2)', '[(0,0),(1,1),(2,0)]', '((0,0),(1,1),(2,0))', '<(1,2),3>',
        '{1,NULL,3}', '{\"a b\",NULL,\"null\",\"\",x}', '{1.50,NaN}', '{(3,4),(1,2);(5,6),(0,0)}', 'very happy',
        '{sad,\"very happy\"}', 5, '(7,\"x, y\")', ARRAY['(1,a)','(2,)']::pair[], '[1,10)', '(1.5,2.5]',
        '[2024-01-01 00:00+00,2024-02-01 00:00+00)', '{[1,3),[5,7)}', '[1.5,2.5]', 'fat:2A cat:1,3B ''it''''s''', '16/B374D848',
        '12345678901', '(3,7)', '1 -2 3', '4294967295 0', '{\"1 2\",3}', '12.50')",
    "INSERT INTO types (id) VALUES (2)",
    "INSERT INTO types (id, f4, f8, n, d, ts, tstz, iv, tm, mo, ip, jb, ia, r, mr, t, ch, v2) VALUES (3, 'NaN', '-Infinity', 'NaN',
        'infinity', '-infinity', '0044-03-15 12:00:00+00 BC', '0', '24:00:00', '0.05', '2001:db8::1', '[]', '{}', 'empty', '{}', '', '', '')",
    "INSERT INTO types (id, n, jb, ip, ia, iv, d) VALUES (4, 1e-10, '\"scalar\"', '::ffff:1.2.3.4/96', '[0:1]={1,2}', '-1 mon', '12345-01-01')",
    "INSERT INTO types (id, f4, f8, n, nn, d, ts, iv, i8, jb) SELECT i, (random() * power(10, i % 60 - 30))::float4,
        (random() - 0.5) * power(10, i % 300 - 150), (random() * power(10, i % 30))::numeric, random() * 1000000,
        '2000-01-01'::date + (random() * 100000)::int - 50000, '2000-01-01'::timestamp + random() * interval '100 years',
        random() * interval '1000 days' - random() * interval '1000 days', (random() * 1e18)::int8,
        jsonb_build_object('n', random() * 1e9, 's', md5(i::text), 'l', jsonb_build_array(i, i::text, random() < 0.5))
        FROM generate_series(100, 1200) i",
    "UPDATE types SET t = 'changed', f8 = f8 / 3 WHERE id % 7 = 0",
    "UPDATE types SET i2 = 41 WHERE id < 4",
    "DELETE FROM types WHERE id % 11 = 0",
    // TOAST: out of line, compressed and uncompressed; compressed in line; unchanged by an update; changed;
    // removed.
    "INSERT INTO items SELECT i, 'long', 1, repeat('compressible ', 300), repeat(md5(i::text), 300),
        (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 300) j) FROM generate_series(1001, 1020) i",
    "UPDATE items SET amount = amount + 1 WHERE id % 5 = 0",
    "UPDATE items SET big = repeat('new ', 5000) WHERE id IN (10, 1001)",
    "UPDATE items SET stored = NULL WHERE id IN (15, 1002)",
    "DELETE FROM items WHERE id IN (20, 25, 1003)",
    // Compressed with lz4 if the server supports it: in line, and out of line.
    "UPDATE items SET packed = repeat(md5(id::text), 100) WHERE id < 40",
    "UPDATE items SET packed = (SELECT string_agg(md5((items.id * j)::text) || repeat('compressible ', 10), '')
        FROM generate_series(1, 300) j) WHERE id BETWEEN 30 AND 60",
    "UPDATE items SET note = 'unrelated' WHERE id BETWEEN 25 AND 45",
    "DELETE FROM items WHERE id BETWEEN 36 AND 38",
    // HOT updates, several of them of one row.
    "UPDATE items SET note = 'hot ' || id WHERE id < 50",
    "UPDATE items SET note = 'hotter ' || id WHERE id < 50",
    "UPDATE items SET name = 'cold ' || id WHERE id BETWEEN 50 AND 80",
    "COPY items (id, name, amount) FROM PROGRAM 'for i in $(seq 2001 2400); do echo $i,copied,$i.50; done' WITH (FORMAT csv)",
    "INSERT INTO items (id, name) SELECT i, 'upserted' FROM generate_series(2390, 2410) i
        ON CONFLICT (id) DO UPDATE SET note = 'conflict'",
    "INSERT INTO items (id, name) SELECT i, 'ignored' FROM generate_series(2395, 2415) i ON CONFLICT DO NOTHING",
    "BEGIN; DELETE FROM items WHERE id < 100; ROLLBACK",
    "BEGIN; INSERT INTO items VALUES (3001, 'kept'); SAVEPOINT a; INSERT INTO items VALUES (3002, 'rolled back');
        UPDATE items SET name = 'never' WHERE id = 30; ROLLBACK TO a; INSERT INTO items VALUES (3003, 'kept, too');
        SAVEPOINT b; UPDATE items SET name = 'in a subtransaction' WHERE id = 31; RELEASE b; COMMIT",
    "VACUUM items",
    "INSERT INTO items (id, name) SELECT i, 'after vacuum' FROM generate_series(4001, 4050) i",
    "DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless LIMIT 7)",
    "UPDATE keyless SET c = 1.5 WHERE a = 3",
    "INSERT INTO keyless VALUES (9, 'it''s', NULL)",
    "INSERT INTO keyless VALUES (10, 'not a number', 'NaN', 'NaN'), (11, 'zero', 0, 0)",
    "UPDATE keyless SET b = 'still not' WHERE a = 10",
    "UPDATE keyless SET f = '-0' WHERE a = 11",
    "DELETE FROM identity WHERE id < 5",
    "UPDATE identity SET \"select\" = E'tab\\tand\\nline' WHERE id = 7",
    "INSERT INTO identity (\"select\") VALUES ('one more')",
    "UPDATE parts SET region = 'south' WHERE id IN (2, 4)",
    "UPDATE parts SET v = v || 'x' WHERE id > 30",
    "DELETE FROM parts WHERE id = 5",
    "BEGIN; INSERT INTO items VALUES (5001, 'prepared'); UPDATE items SET note = 'prepared' WHERE id = 200; PREPARE TRANSACTION 'p'",
    "COMMIT PREPARED 'p'",
    "BEGIN; INSERT INTO items VALUES (5002, 'never'); PREPARE TRANSACTION 'p'",
    "ROLLBACK PREPARED 'p'",
    // A table that neither the backup nor the names contain.
    "CREATE TABLE fresh (id int, v text)",
    "INSERT INTO fresh VALUES (1, 'one'), (2, 'two')",
    "UPDATE fresh SET v = 'changed' WHERE id = 2",
    "TRUNCATE fresh",
    "BEGIN; TRUNCATE fresh; INSERT INTO fresh VALUES (3, 'never seen'); TRUNCATE fresh; INSERT INTO fresh VALUES (4, 'seen'); COMMIT",
    "DROP TABLE fresh",
    "CREATE TABLE wandering (id int, v text)",
    "INSERT INTO wandering VALUES (1, 'one')",
    "SET allow_in_place_tablespaces = on",
    "CREATE TABLESPACE elsewhere LOCATION ''",
    "ALTER TABLE wandering SET TABLESPACE elsewhere",
    "UPDATE wandering SET v = 'elsewhere'",
    "ALTER TABLE wandering SET TABLESPACE pg_default",
    "UPDATE wandering SET v = 'back'",
    "ALTER TABLE wandering SET UNLOGGED",
    "UPDATE wandering SET v = 'never seen'",
    "ALTER TABLE wandering SET LOGGED",
    "UPDATE wandering SET v = 'seen'",
];

/// Changes of columns and files, only for `shapes`, as an undo cannot restore columns.
const ALTERATIONS: &[&str] = &[
    "UPDATE shapes SET b = 'before' WHERE id < 5",
    "ALTER TABLE shapes ADD COLUMN extra text DEFAULT 'default value', ADD COLUMN number numeric DEFAULT 12.50, ADD COLUMN empty int",
    "UPDATE shapes SET a = 'added' WHERE id BETWEEN 3 AND 8",
    "DELETE FROM shapes WHERE id = 9",
    "ALTER TABLE shapes DROP COLUMN gone",
    "UPDATE shapes SET a = 'dropped' WHERE id BETWEEN 6 AND 12",
    "INSERT INTO shapes (id, a) VALUES (101, 'new')",
    "BEGIN; ALTER TABLE shapes ADD COLUMN never int; ROLLBACK",
    "INSERT INTO shapes (id, a) VALUES (102, 'newer')",
    "ALTER TABLE shapes RENAME COLUMN b TO renamed",
    "VACUUM FULL shapes",
    "UPDATE shapes SET a = 'after vacuum full' WHERE id % 4 = 0",
    "ALTER TABLE shapes ALTER id TYPE bigint",
    "UPDATE shapes SET a = 'after a change of type', extra = repeat(md5(id::text), 200) WHERE id % 3 = 0",
    "CLUSTER shapes USING shapes_pkey",
    "DELETE FROM shapes WHERE id % 5 = 0",
    "TRUNCATE shapes",
    "INSERT INTO shapes (id, a) SELECT i, 'after truncate' FROM generate_series(1, 10) i",
    "UPDATE shapes SET a = 'last' WHERE id > 8",
];

fn run(client: &mut Client, script: &str) {
    client.batch_execute(script).unwrap_or_else(|error| panic!("{error:?}: {script}"));
}

/// A stopped server after its work, with the paths that the tests need.
struct Worked {
    cluster: Cluster,
    base: PathBuf,
    wal: PathBuf,
    names: PathBuf,
    /// Content of the tables before the work.
    before: Vec<(&'static str, Vec<String>)>,
}

/// Returns all rows of a table as text, sorted.
fn contents(client: &mut Client, table: &str) -> Vec<String> {
    let rows = client.query(&format!("SELECT whole::text FROM {table} whole ORDER BY 1"), &[]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn connect(cluster: &Cluster) -> Client {
    let mut client = cluster.client("postgres").unwrap();
    run(&mut client, "SET timezone = 'UTC'");
    client
}

/// Starts a server of the version that most tests use, and connects a client.
fn server() -> Result<(Cluster, Client), Missing> {
    server_with(&[])
}

fn server_with(settings: &[(&str, &str)]) -> Result<(Cluster, Client), Missing> {
    let builder = cluster_that_keeps_wal(postgres(15)?);
    let cluster =
        settings.iter().fold(builder, |builder, (name, value)| builder.setting(name, value)).start().unwrap();
    let client = connect(&cluster);
    Ok((cluster, client))
}

/// The input of `walden rows`: WAL, and `--base` or `--names` with its path.
struct Log {
    wal: PathBuf,
    from: (&'static str, PathBuf),
}

impl Log {
    fn rows(&self, table: &str, more: &[&str]) -> Run {
        rows_of(&self.wal, (self.from.0, &self.from.1), table, more)
    }
}

/// Returns the WAL of a running server.
fn running_log(cluster: &Cluster, from: (&'static str, PathBuf)) -> Log {
    Log { wal: cluster.data_dir().join("pg_wal"), from }
}

/// Stops the server, copies its data as a base, and starts it again.
fn copy_base(cluster: &Cluster) -> PathBuf {
    cluster.stop(StopMode::Fast).unwrap();
    let base = cluster.dir().join("backup");
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    base
}

/// Copies the server's data as a base. The returned WAL grows with the server, and is usable up to the last
/// completed segment.
fn log_after_base(cluster: &Cluster, mut client: Client) -> (Client, Log) {
    run(&mut client, "CHECKPOINT");
    drop(client);
    let base = copy_base(cluster);
    (connect(cluster), running_log(cluster, ("--base", base)))
}

/// Returns the command that copies the data of a running server.
fn pg_basebackup(cluster: &Cluster, to: &Path) -> Result<Command, Missing> {
    let Some(program) = cluster.installation().program("pg_basebackup") else {
        return Err(Missing { reason: "needs pg_basebackup of PostgreSQL 15".to_owned() });
    };
    let mut command = cluster.client_command(&program, "postgres");
    command.args(["--wal-method=none", "--no-sync", "--checkpoint=fast", "--pgdata"]).arg(to);
    command.stderr(Stdio::null());
    Ok(command)
}

/// Ends the current segment.
fn switch_segment(client: &mut Client) {
    run(client, "SELECT pg_switch_wal()");
}

/// Ends the current segment, and saves the server's current names.
fn log_with_names(cluster: &Cluster, mut client: Client, database: &str) -> Log {
    switch_segment(&mut client);
    drop(client);
    running_log(cluster, ("--names", save_names(cluster, database)))
}

/// Saves the server's current names, stops it, and copies its WAL starting with a segment.
fn stop_with_names(cluster: &Cluster, client: Client, first: &str) -> Log {
    drop(client);
    let names = save_names(cluster, "postgres");
    Log { wal: stop_and_collect_wal(cluster, first), from: ("--names", names) }
}

/// Returns the segment that contains the last checkpoint's redo pointer.
fn redo_segment(client: &mut Client) -> String {
    let query = "SELECT pg_walfile_name(redo_lsn) FROM pg_control_checkpoint()";
    client.query_one(query, &[]).unwrap().get(0)
}

/// Starts a segment whose first record is a checkpoint's. Returns the segment's name.
fn begin_segment(client: &mut Client) -> String {
    switch_segment(client);
    run(client, "CHECKPOINT");
    redo_segment(client)
}

/// Copies the server's data as a base. Also returns the segment in which the WAL continues.
fn copy_base_and_begin_segment(cluster: &Cluster, mut client: Client) -> (PathBuf, String) {
    run(&mut client, "CHECKPOINT");
    switch_segment(&mut client);
    drop(client);
    let base = copy_base(cluster);
    (base, redo_segment(&mut connect(cluster)))
}

/// Runs `walden rows` for a table, with `--base` or `--names` and its path.
fn rows_of(wal: &Path, (option, path): (&str, &PathBuf), table: &str, more: &[&str]) -> Run {
    let (wal, path) = (wal.to_str().unwrap(), path.to_str().unwrap());
    walden(&[&["rows", wal, option, path, "--relation", table], more].concat())
}

const JSON: &[&str] = &["--format", "json"];

/// Saves the server's current names.
fn save_names(cluster: &Cluster, database: &str) -> PathBuf {
    let names = cluster.dir().join("names.json");
    let saved =
        walden(&["explain", "--names", &cluster.dsn(database), "--save-names", names.to_str().unwrap()]);
    assert_eq!(saved.code, 0, "{}", saved.stderr);
    names
}

/// Stops the server, and copies its WAL starting with a segment.
fn stop_and_collect_wal(cluster: &Cluster, first: &str) -> PathBuf {
    cluster.stop(StopMode::Fast).unwrap();
    let wal = cluster.dir().join("collected");
    cluster.collect_wal(first, &wal).unwrap();
    wal
}

fn work(version: u32) -> Result<Worked, Missing> {
    let cluster = cluster_that_keeps_wal(postgres(version)?)
        .setting("wal_level", "replica")
        .setting("max_prepared_transactions", "4")
        .start()
        .unwrap();
    let mut client = connect(&cluster);
    run(&mut client, AUDIT);
    run(&mut client, TABLES);
    let packed = client.batch_execute("ALTER TABLE items ADD packed text COMPRESSION lz4");
    if packed.is_err() {
        run(&mut client, "ALTER TABLE items ADD packed text");
    }
    let before = TRACKED.map(|table| (table, contents(&mut client, table))).into();
    let (base, first) = copy_base_and_begin_segment(&cluster, client);
    let mut client = connect(&cluster);
    for table in TRACKED {
        run(
            &mut client,
            &format!(
                "CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION audit()"
            ),
        );
    }
    for statement in WORK.iter().chain(ALTERATIONS) {
        run(&mut client, statement);
    }
    drop(client);
    let names = save_names(&cluster, "postgres");
    let wal = stop_and_collect_wal(&cluster, &first);
    cluster.start().unwrap();
    Ok(Worked { cluster, base, wal, names, before })
}

impl Worked {
    fn rows(&self, table: &str, more: &[&str]) -> Run {
        rows_of(&self.wal, ("--base", &self.base), table, more)
    }
}

/// Parses the output as JSON lines.
fn lines(run: &Run) -> Vec<Value> {
    run.stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Formats a row in JSON like `record_out`.
fn record(row: &Value) -> Option<String> {
    let columns = row.as_object()?.values().map(|value| match value {
        Value::Null => String::new(),
        Value::Bool(value) => if *value { "t" } else { "f" }.to_owned(),
        Value::String(text) => {
            let is_special = |c: char| "\"\\(), \t\n\r\u{b}\u{c}".contains(c);
            match text.is_empty() || text.contains(is_special) {
                true => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\"\"")),
                false => text.clone(),
            }
        }
        other => other.to_string(),
    });
    Some(format!("({})", columns.collect::<Vec<_>>().join(",")))
}

/// Operation, transaction, row before, row after.
type Change = (String, i64, Option<String>, Option<String>);

fn audited(client: &mut Client, table: &str) -> Vec<Change> {
    let rows =
        client.query("SELECT op, xid, old, new FROM audit WHERE tab = $1 ORDER BY n", &[&table]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

fn changes(lines: &[Value]) -> Vec<Change> {
    let is_change =
        |line: &&Value| ["insert", "update", "delete"].contains(&line["operation"].as_str().unwrap());
    let change = |line: &Value| {
        assert_eq!(line["state"], "committed", "{line}");
        assert!(line["time"].as_str().unwrap().starts_with("20"), "{line}");
        let operation = line["operation"].as_str().unwrap().to_owned();
        (operation, line["top_xid"].as_i64().unwrap(), record(&line["before"]), record(&line["after"]))
    };
    lines.iter().filter(is_change).map(change).collect()
}

fn assert_equal(found: &[Change], expected: &[Change], what: &str) {
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "{what}, change {index}");
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

fn rows_equal_the_audit(version: u32) -> Outcome {
    let worked = work(version)?;
    let mut client = connect(&worked.cluster);
    let mut count = 0;
    for table in TRACKED {
        let found = worked.rows(&format!("public.{table}"), JSON);
        assert_eq!(found.code, 0, "{version} {table}: {}", found.stderr);
        let lines = lines(&found);
        csv_says_the_same(&worked, table, &lines);
        let found = changes(&lines);
        assert_equal(&found, &audited(&mut client, table), &format!("{version} {table}"));
        count += found.len();
    }
    let query = "SELECT count(*), (SELECT attcompression = 'l' FROM pg_attribute
        WHERE attrelid = 'items'::regclass AND attname = 'packed') FROM items WHERE pg_column_compression(packed) = 'lz4'";
    let row = client.query_one(query, &[]).unwrap();
    let (packed, has_lz4): (i64, bool) = (row.get(0), row.get(1));
    assert_eq!(packed > 0, has_lz4, "{packed} rows with lz4");
    say(&format!(
        "PostgreSQL {version}: {count} changes are as the triggers saw them, {packed} rows at the end with lz4"
    ));
    names_alone_know_what_was_changed_since_the_checkpoint(&worked, &mut client);
    events_are_there(&worked);
    typed_values_equal_the_servers(&worked, &mut client);
    undo_gives_the_start(&worked, &mut client);
    Ok(())
}

/// Expects that `--format csv` has the content of `--format json`, except for TIDs.
fn csv_says_the_same(worked: &Worked, table: &str, lines: &[Value]) {
    let run = worked.rows(&format!("public.{table}"), &["--format", "csv"]);
    let mut reader = csv::Reader::from_reader(run.stdout.as_bytes());
    let header = reader.headers().unwrap().clone();
    let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(records.len(), lines.len());
    for (record, line) in records.iter().zip(lines) {
        for (name, field) in header.iter().zip(record) {
            let expected = match &line[name] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(field, expected, "{name} of {line}");
        }
    }
}

/// The WAL starts with a checkpoint, so it has a full-page image of each page before its first change. It
/// lacks only older values in TOAST tables.
fn names_alone_know_what_was_changed_since_the_checkpoint(worked: &Worked, client: &mut Client) {
    for table in TRACKED {
        let run = rows_of(&worked.wal, ("--names", &worked.names), table, JSON);
        let mut expected = audited(client, table);
        if table != "items" {
            assert_eq!(run.code, 0, "{table}: {}", run.stderr);
            assert_equal(&changes(&lines(&run)), &expected, &format!("{table} by names"));
            continue;
        }
        assert_eq!(run.code, 1, "{table}: {}", run.stderr);
        let lines = lines(&run);
        let is_unknown = |line: &Value, name: &str| !line[format!("{name}_unknown_columns")].is_null();
        let mut found = changes(&lines);
        for (line, (found, expected)) in lines.iter().zip(found.iter_mut().zip(&mut expected)) {
            if is_unknown(line, "before") {
                (found.2, expected.2) = (None, None);
            }
            if is_unknown(line, "after") {
                (found.3, expected.3) = (None, None);
            }
        }
        assert_equal(&found, &expected, "items by names");
        let unknown = lines.iter().filter(|line| is_unknown(line, "before")).count();
        assert!(unknown > 20 && unknown * 10 < lines.len(), "{unknown} of {}", lines.len());
    }
}

/// Returns the rows of a query by `walden sql`.
fn sql(worked: &Worked, query: &str) -> Vec<Value> {
    let (wal, base) = (worked.wal.to_str().unwrap(), worked.base.to_str().unwrap());
    let run = walden(&["sql", "--format", "json", "--base", base, query, wal]);
    assert_eq!(run.code, 0, "{query}: {}", run.stderr);
    lines(&run)
}

/// Compares sums over the typed columns of `row_changes`, computed by the program and by the server.
fn typed_values_equal_the_servers(worked: &Worked, client: &mut Client) {
    // The existing rows are those whose last change has an after row.
    let newest = "SELECT after, row_number() OVER (PARTITION BY coalesce(after['id'], before['id']) ORDER BY lsn DESC) AS age
        FROM row_changes('public.types')";
    let columns = "count(*) AS rows, sum(i8 / 1000) AS bigints, CAST(sum(nn) AS TEXT) AS decimals, CAST(max(f8) AS TEXT) AS largest, count(b) AS booleans,
        max(ts) FILTER (WHERE id > 10) AS last, min(d) FILTER (WHERE id > 10) AS first, count(by) AS bytes, sum(x8) AS xids,
        max(arrow_typeof(nn)) AS type, max(arrow_typeof(dp)) AS domain";
    let fields = ["id", "i8", "nn", "f8", "b", "ts", "d", "by", "x8", "dp"];
    let fields: Vec<String> = fields.iter().map(|name| format!("after['{name}'] AS \"{name}\"")).collect();
    let columns = columns.replace("(by)", "(\"by\")");
    let query = format!(
        "SELECT {columns} FROM (SELECT {} FROM ({newest}) WHERE age = 1 AND after['id'] IS NOT NULL)",
        fields.join(", ")
    );
    let found = sql(worked, &query).remove(0);
    let row = client
        .query_one(
            "SELECT count(*)::text, sum(i8 / 1000)::text, sum(nn)::text, max(f8)::text, count(b)::text,
                to_char(max(ts) FILTER (WHERE id > 10), 'YYYY-MM-DD\"T\"HH24:MI:SS.US'),
                (min(d) FILTER (WHERE id > 10))::text, count(\"by\")::text, sum(x8::text::numeric)::text FROM types",
            &[],
        )
        .unwrap();
    let text = |name: &str| found[name].as_str().map_or_else(|| found[name].to_string(), str::to_owned);
    for (index, name) in ["rows", "bigints", "decimals"].iter().enumerate() {
        assert_eq!(text(name), row.get::<_, String>(index), "{name}: {found}");
    }
    let largest: f64 = row.get::<_, String>(3).parse().unwrap();
    assert_eq!(text("largest").parse(), Ok(largest), "{found}");
    assert_eq!(text("booleans"), row.get::<_, String>(4));
    let last: String = row.get(5);
    assert!(last.starts_with(text("last").trim_end_matches('0')), "{last}: {found}");
    for (index, name) in [(6, "first"), (7, "bytes"), (8, "xids")] {
        assert_eq!(text(name), row.get::<_, String>(index), "{name}: {found}");
    }
    assert_eq!(
        (&found["type"], &found["domain"]),
        (&"Decimal128(12, 2)".into(), &"Decimal128(12, 2)".into())
    );
    // Values that a typed column cannot hold are reported.
    let special = sql(
        worked,
        "SELECT after['d'] AS d, after['n'] AS n, CAST(after['f8'] AS TEXT) AS f8, after_unknown_columns AS why
         FROM row_changes('public.types') WHERE operation = 'insert' AND after['id'] = 3",
    );
    let why = &special[0]["why"];
    assert!(
        special[0]["d"].is_null() && special[0]["n"] == "NaN" && special[0]["f8"] == "-inf",
        "{special:?}"
    );
    for (name, value) in [("d", "infinity"), ("ts", "-infinity"), ("tm", "24:00:00")] {
        assert!(why[name].as_str().unwrap().starts_with(&format!("{value}: not a value of")), "{special:?}");
    }
    // The columns of all of the WAL, one of them with two types.
    let shapes = sql(
        worked,
        "SELECT arrow_typeof(before) AS type, count(*) AS rows, count(after['renamed']) AS renamed FROM row_changes('shapes') GROUP BY 1",
    );
    let columns = shapes[0]["type"].as_str().unwrap();
    for (name, is_there) in [("\"id\": Int64", true), ("\"gone\": Int32", true), ("\"never\"", false)] {
        assert_eq!(columns.contains(name), is_there, "{name}: {columns}");
    }
    assert!(shapes[0]["renamed"].as_u64().unwrap() > 5, "{shapes:?}");
    // Conditions and a limit select from the same rows.
    for (condition, hidden) in [
        ("operation = 'delete'", "operation || '' = 'delete'"),
        ("operation IN ('insert', 'update')", "operation || '' IN ('insert', 'update')"),
        ("relation = 'public.parts_n'", "relation || '' = 'public.parts_n'"),
    ] {
        let count = |condition: &str| {
            sql(
                worked,
                &format!(
                    "SELECT count(*) AS rows, max(lsn) AS last FROM row_changes('parts') WHERE {condition}"
                ),
            )
        };
        assert_eq!(count(condition), count(hidden), "{condition}");
        assert!(count(condition)[0]["rows"].as_u64().unwrap() > 0, "{condition}");
    }
    assert_eq!(sql(worked, "SELECT lsn FROM row_changes('items') LIMIT 3").len(), 3);
    let aborted = "SELECT DISTINCT state FROM row_changes('items', true) ORDER BY 1";
    assert_eq!(sql(worked, aborted).len(), 2);
}

fn events_are_there(worked: &Worked) {
    let events = operations(&worked.rows("shapes", JSON));
    let count = |kind: &str| events.iter().filter(|event| *event == kind).count();
    // VACUUM FULL, a change of a column's type, CLUSTER.
    assert_eq!((count("rewrite"), count("truncate")), (3, 1));
    let fresh = worked.rows("public.fresh", JSON);
    let expected =
        ["insert", "insert", "update", "truncate", "truncate", "insert", "truncate", "insert", "drop"];
    assert_eq!(operations(&fresh), expected, "{}", fresh.stderr);
    let lines = lines(&fresh);
    assert_eq!(lines[2]["before"]["v"], "two");
    assert_eq!(lines[7]["after"]["v"], "seen");
    let expected = [
        "incomplete",
        "insert",
        "rewrite",
        "update",
        "rewrite",
        "update",
        "set-unlogged",
        "set-logged",
        "update",
    ];
    assert_eq!(operations(&worked.rows("public.wandering", JSON)), expected);
    let script = worked.rows("public.wandering", &["--undo"]).stdout;
    assert!(
        script.contains("NOT COMPLETE") && script.contains("while it was unlogged, from here on"),
        "{script}"
    );
}

/// Reverting restores the tables' content at the start, and reapplying the changes restores that at the end.
fn undo_gives_the_start(worked: &Worked, client: &mut Client) {
    for (table, parts) in [
        ("types", &["types"][..]),
        ("items", &["items"]),
        ("keyless", &["keyless"]),
        ("identity", &["identity"]),
        ("parts", &["parts_n", "parts_s"]),
    ] {
        let after: Vec<_> = parts.iter().map(|part| contents(client, part)).collect();
        let script = worked.rows(table, &["--undo"]);
        assert_eq!(script.code, 0, "{table}: {}", script.stderr);
        assert!(script.stdout.contains("-- Complete"), "{}", script.stdout);
        run(client, &script.stdout);
        for part in parts {
            let (_, before) = worked.before.iter().find(|(name, _)| name == part).unwrap();
            assert_eq!(&contents(client, part), before, "{part} reverted");
        }
        run(client, &worked.rows(table, &["--format", "sql"]).stdout);
        for (part, after) in parts.iter().zip(&after) {
            assert_eq!(&contents(client, part), after, "{part} made again");
        }
    }
}

/// Without full-page images, old rows come from the data logged for logical decoding.
fn rows_equal_logical_decoding() -> Outcome {
    let (cluster, mut client) = server_with(&[("wal_level", "logical"), ("full_page_writes", "off")])?;
    let create = "CREATE TABLE decoded (id int PRIMARY KEY, t text, n numeric, b bool, at timestamptz, bits bit(3));
        ALTER TABLE decoded REPLICA IDENTITY FULL;
        INSERT INTO decoded SELECT i, 'it''s ' || i, i / 4.0, i % 2 = 0, '2026-01-01 00:00+00', B'101' FROM generate_series(1, 200) i";
    run(&mut client, create);
    let slot = client.batch_execute("SELECT pg_create_logical_replication_slot('judge', 'test_decoding')");
    if let Err(error) = slot {
        return Err(Need::Postgres(15).missing(&format!("cannot make a slot of test_decoding: {error:?}")));
    }
    let first = begin_segment(&mut client);
    for statement in [
        "UPDATE decoded SET t = NULL WHERE id % 5 = 0",
        "UPDATE decoded SET n = n * 2, b = NOT b WHERE id < 20",
        "BEGIN; DELETE FROM decoded WHERE id < 100; ROLLBACK",
        "DELETE FROM decoded WHERE id % 10 = 3",
        "INSERT INTO decoded (id, n) SELECT i, 1.50 FROM generate_series(300, 320) i",
        "INSERT INTO decoded SELECT i, 'conflict' FROM generate_series(310, 330) i ON CONFLICT (id) DO UPDATE SET t = 'updated'",
    ] {
        run(&mut client, statement);
    }
    let decoded =
        client.query("SELECT data FROM pg_logical_slot_get_changes('judge', NULL, NULL)", &[]).unwrap();
    let decoded: Vec<String> =
        decoded.iter().map(|row| row.get(0)).filter(|line: &String| line.starts_with("table")).collect();
    let log = stop_with_names(&cluster, client, &first);
    let found = log.rows("decoded", JSON);
    assert_eq!(found.code, 0, "{}", found.stderr);
    let found: Vec<String> = lines(&found).iter().map(as_test_decoding).collect();
    assert!(decoded.len() > 90);
    for (found, decoded) in found.iter().zip(&decoded) {
        assert_eq!(found, decoded);
    }
    assert_eq!(found.len(), decoded.len());
    Ok(())
}

/// Formats a change like test_decoding.
fn as_test_decoding(line: &Value) -> String {
    const TYPES: [&str; 6] = ["integer", "text", "numeric", "boolean", "timestamp with time zone", "bit"];
    let columns = |row: &Value, with_nulls: bool| -> String {
        let columns = row.as_object().unwrap().iter().zip(TYPES);
        let shown = columns.filter(|((_, value), _)| with_nulls || !value.is_null());
        let text = |((name, value), of): ((&String, &Value), &str)| {
            let text = match (value, of) {
                (Value::String(text), "numeric") => text.clone(),
                (Value::String(text), "bit") => format!("B'{text}'"),
                (Value::String(text), _) => format!("'{}'", text.replace('\'', "''")),
                (other, _) => other.to_string(),
            };
            format!(" {name}[{of}]:{text}")
        };
        shown.map(text).collect()
    };
    let (before, after) = (&line["before"], &line["after"]);
    let change = match line["operation"].as_str().unwrap() {
        "insert" => format!("INSERT:{}", columns(after, true)),
        "delete" => format!("DELETE:{}", columns(before, false)),
        _ => format!("UPDATE: old-key:{} new-tuple:{}", columns(before, false), columns(after, true)),
    };
    format!("table public.decoded: {change}")
}

/// Without full-page images and a base backup, the pages are unknown.
fn what_is_not_known_is_said() -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(18)?).setting("full_page_writes", "off").start().unwrap();
    let mut client = connect(&cluster);
    run(
        &mut client,
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'old'), (2, 'old'), (3, 'old')",
    );
    let first = begin_segment(&mut client);
    run(&mut client, "DELETE FROM t WHERE id = 1");
    run(&mut client, "UPDATE t SET v = 'completely different' WHERE id = 2");
    run(&mut client, "INSERT INTO t VALUES (4, 'new')");
    run(&mut client, "BEGIN; DELETE FROM t WHERE id = 3; ROLLBACK");
    let log = stop_with_names(&cluster, client, &first);
    let rows = |more: &[&str]| log.rows("public.t", more);
    let found = rows(&["--format", "json", "--aborted"]);
    assert_eq!(found.code, 1, "{}", found.stderr);
    assert_eq!(operations(&found), ["delete", "update", "insert", "delete"]);
    let lines = lines(&found);
    assert!(
        lines[0]["before"].is_null()
            && lines[0]["before_unknown"].as_str().unwrap().contains("no earlier image of its page")
    );
    assert!(lines[1]["before"].is_null());
    assert_eq!(lines[2]["after"]["v"], "new");
    assert_eq!(lines[3]["state"], "aborted");
    let script = rows(&["--undo"]);
    assert_eq!(script.code, 1, "{}", script.stderr);
    assert!(script.stdout.contains("-- NOT COMPLETE: 2 changes"), "{}", script.stdout);
    assert!(
        script.stdout.contains(
            "DELETE FROM ONLY \"public\".\"t\" WHERE \"id\" = 4 AND \"v\" = 'new' COLLATE \"C\";\n"
        ),
        "{}",
        script.stdout
    );
    let missing = log.rows("public.nothing", &[]);
    assert!(
        missing.code == 3 && missing.stderr.contains("cannot find the table public.nothing"),
        "{}",
        missing.stderr
    );
    Ok(())
}

/// A backup is copied while four sessions write and another one changes columns, so its pages and catalogs
/// are from different times.
fn a_backup_of_a_busy_server_is_enough() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?)
        .setting("wal_keep_size", "4GB")
        .setting("max_wal_size", "4GB")
        .start()
        .unwrap();
    let mut client = connect(&cluster);
    run(&mut client, AUDIT);
    run(
        &mut client,
        "CREATE TABLE busy (id int PRIMARY KEY, count int, pad text, big text) WITH (fillfactor = 70);
        INSERT INTO busy SELECT i, 0, 'pad ' || i, CASE WHEN i % 20 = 0 THEN repeat(md5(i::text), 200) END
            FROM generate_series(1, 8000) i;
        CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON busy FOR EACH ROW EXECUTE FUNCTION audit()",
    );
    let backup = cluster.make_folder("busy").unwrap();
    let mut copy = pg_basebackup(&cluster, &backup)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for session in 0..4 {
            let (cluster, is_over) = (&cluster, &is_over);
            scope.spawn(move || write_until(cluster, session, is_over));
        }
        std::thread::sleep(Duration::from_millis(300));
        let mut child = copy.arg("--max-rate=32M").spawn().unwrap();
        for number in 0..4 {
            std::thread::sleep(Duration::from_millis(250));
            run(&mut client, &format!("ALTER TABLE busy ADD COLUMN extra{number} int DEFAULT {number}"));
        }
        assert!(child.wait().unwrap().success());
        std::thread::sleep(Duration::from_millis(300));
        is_over.store(true, Ordering::Relaxed);
    });
    let mut expected: BTreeMap<i64, Vec<Change>> = BTreeMap::new();
    for change in audited(&mut client, "busy") {
        expected.entry(change.1).or_default().push(change);
    }
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    let wal = cluster.data_dir().join("pg_wal");
    let found = rows_of(&wal, ("--base", &backup), "busy", JSON);
    assert!(found.code <= 1, "{}", found.stderr);
    let mut lines = lines(&found);
    // Catalog pages may have been copied after their rows were replaced and pruned.
    lines.retain(|line| line["operation"] != "incomplete");
    let mut by_transaction: BTreeMap<i64, Vec<(Change, &Value)>> = BTreeMap::new();
    for (change, line) in changes(&lines).into_iter().zip(&lines) {
        by_transaction.entry(change.1).or_default().push((change, line));
    }
    let (mut equal, mut cut, mut unknown) = (0, 0, 0);
    for (xid, found) in &by_transaction {
        // The WAL starts within at most one transaction of each session.
        let expected = &expected[xid];
        let before = expected.len() - found.len();
        if before == 0 {
            equal += 1
        } else {
            cut += 1
        }
        for ((found, line), expected) in found.iter().zip(&expected[before..]) {
            let (mut found, mut expected) = (found.clone(), expected.clone());
            if is_chunk_unknown(line, "before_unknown_columns") {
                (found.2, expected.2) = (None, None);
                unknown += 1;
            }
            if is_chunk_unknown(line, "after_unknown_columns") {
                (found.3, expected.3) = (None, None);
            }
            assert_eq!(found, expected, "{line}");
        }
    }
    let first = by_transaction.keys().next().unwrap();
    let later = expected.keys().filter(|xid| *xid > &(first + 50)).count();
    assert!(equal > 100 && cut <= 4 && equal + 50 >= later, "{equal} equal, {cut} cut, {later} expected");
    assert!(unknown * 100 < lines.len(), "{unknown} of {}", lines.len());
    Ok(())
}

/// Catalog changes that a transaction made before the WAL's start apply immediately within it, and to others
/// after its commit.
fn a_backup_within_a_transaction_that_changes_tables_is_enough() -> Outcome {
    let (cluster, mut client) = server()?;
    let mut other = connect(&cluster);
    run(
        &mut client,
        "CREATE TABLE emptied (id int, v text); INSERT INTO emptied VALUES (1, 'a');
        CREATE TABLE widened (id int, v text); INSERT INTO widened VALUES (1, 'a')",
    );
    run(
        &mut other,
        "BEGIN; TRUNCATE emptied; INSERT INTO emptied VALUES (2, 'b'); SAVEPOINT s;
        ALTER TABLE widened ALTER id TYPE bigint, ADD COLUMN more int DEFAULT 5",
    );
    let backup = cluster.make_folder("within").unwrap();
    assert!(pg_basebackup(&cluster, &backup)?.status().unwrap().success());
    run(
        &mut other,
        "INSERT INTO emptied VALUES (3, 'c'); INSERT INTO widened VALUES (5000000000, 'e', 6); COMMIT",
    );
    run(&mut client, "UPDATE emptied SET v = 'd' WHERE id = 3; UPDATE widened SET v = 'f' WHERE id = 1");
    switch_segment(&mut client);
    let log = running_log(&cluster, ("--base", backup));
    let changes = |table: &str| {
        let found = log.rows(table, JSON);
        // The changes before the backup are not read.
        assert!(found.code == 1 && found.stderr.contains("these started earlier"), "{table}: {found:?}");
        let fields = ["operation", "state", "before", "after"];
        let change = |line: &Value| fields.map(|field| line[field].clone());
        let lines = lines(&found);
        lines.iter().filter(|line| line["operation"] != "incomplete").map(change).collect::<Vec<_>>()
    };
    let row = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let none = Value::Null;
    let expected = [
        ["insert".into(), "committed".into(), none.clone(), row(r#"{"id": 3, "v": "c"}"#)],
        ["update".into(), "committed".into(), row(r#"{"id": 3, "v": "c"}"#), row(r#"{"id": 3, "v": "d"}"#)],
    ];
    assert_eq!(changes("emptied"), expected);
    let expected = [
        ["insert".into(), "committed".into(), none, row(r#"{"id": "5000000000", "v": "e", "more": 6}"#)],
        [
            "update".into(),
            "committed".into(),
            row(r#"{"id": "1", "v": "a", "more": 5}"#),
            row(r#"{"id": "1", "v": "f", "more": 5}"#),
        ],
    ];
    assert_eq!(changes("widened"), expected);
    Ok(())
}

/// After a crash, no record ends the transaction, but its catalog changes are gone.
fn what_a_crash_ended_is_taken_back() -> Outcome {
    let (cluster, mut client) = server()?;
    run(
        &mut client,
        "CREATE TABLE kept (id int PRIMARY KEY, gone text, v text);
        INSERT INTO kept VALUES (1, 'x', 'a'), (2, 'y', 'b')",
    );
    let (base, first) = copy_base_and_begin_segment(&cluster, client);
    let mut client = connect(&cluster);
    let names = save_names(&cluster, "postgres");
    let mut other = connect(&cluster);
    run(&mut client, "UPDATE kept SET v = 'c' WHERE id = 1");
    run(
        &mut other,
        "BEGIN; ALTER TABLE kept DROP COLUMN gone; TRUNCATE kept; INSERT INTO kept VALUES (3, 'lost')",
    );
    // Makes its writes durable.
    switch_segment(&mut client);
    cluster.crash().unwrap();
    drop((client, other));
    cluster.start().unwrap();
    let mut client = connect(&cluster);
    run(&mut client, "UPDATE kept SET v = 'd' WHERE id = 2");
    run(&mut client, "TRUNCATE kept");
    drop(client);
    let wal = stop_and_collect_wal(&cluster, &first);
    for from in [("--base", &base), ("--names", &names)] {
        let found = rows_of(&wal, from, "public.kept", &["--format", "json", "--aborted"]);
        let mut lines = lines(&found);
        lines.retain(|line| line["operation"] != "drop-column");
        let changes: Vec<(&str, &str)> = lines
            .iter()
            .map(|line| (line["operation"].as_str().unwrap(), line["state"].as_str().unwrap()))
            .collect();
        let expected = [
            ("update", "committed"),
            ("truncate", "aborted"),
            ("insert", "aborted"),
            ("update", "committed"),
            ("truncate", "committed"),
        ];
        assert_eq!(changes, expected, "{from:?}: {}", found.stderr);
        assert_eq!(lines[2]["after"].to_string(), r#"{"id":3,"v":"lost"}"#);
        let update = &lines[3];
        assert_eq!((&update["before"]["gone"], &update["before"]["v"]), (&"y".into(), &"b".into()));
        assert_eq!((&update["after"]["gone"], &update["after"]["v"]), (&"y".into(), &"d".into()));
        let script = rows_of(&wal, from, "public.kept", &["--undo"]);
        assert_eq!(script.code, 1, "{from:?}: {}", script.stderr);
        let script = script.stdout;
        // The updated rows no longer exist.
        assert!(script.contains("NOT COMPLETE: 2 changes and 1 truncation or drop"), "{from:?}: {script}");
        assert!(script.contains(" changes were rolled back"), "{script}");
        assert!(!script.contains("whose end is not in the range"), "{script}");
    }
    Ok(())
}

/// A prepared transaction with a subtransaction continues after the crash, without ending another one's.
fn what_a_crash_ended_beside_a_prepared_transaction_is_taken_back() -> Outcome {
    let (cluster, mut client) = server_with(&[("max_prepared_transactions", "4")])?;
    run(&mut client, "CREATE TABLE kept (id int PRIMARY KEY)");
    let prepare = "BEGIN; INSERT INTO kept VALUES (1); SAVEPOINT a; INSERT INTO kept VALUES (2); PREPARE TRANSACTION 'p'";
    run(&mut client, prepare);
    // These transactions are younger than the prepared one, like its subtransaction.
    let mut other = connect(&cluster);
    run(&mut other, "BEGIN; INSERT INTO kept VALUES (3); SAVEPOINT a; INSERT INTO kept VALUES (4)");
    switch_segment(&mut client);
    cluster.crash().unwrap();
    drop((client, other));
    cluster.start().unwrap();
    let mut client = connect(&cluster);
    run(&mut client, "COMMIT PREPARED 'p'");
    let log = log_with_names(&cluster, client, "postgres");
    let found = log.rows("public.kept", &["--format", "json", "--aborted"]);
    let lines = lines(&found);
    let changes: Vec<(i64, &str)> = lines
        .iter()
        .map(|line| (line["after"]["id"].as_i64().unwrap(), line["state"].as_str().unwrap()))
        .collect();
    let expected = [(1, "committed"), (2, "committed"), (3, "aborted"), (4, "aborted")];
    assert_eq!(changes, expected, "{}", found.stderr);
    Ok(())
}

/// Returns whether a TOAST value is unknown: it was removed, and its chunks pruned, before the backup copied
/// their pages. The other columns are known, as the WAL has images of the table's own pages.
fn is_chunk_unknown(line: &Value, name: &str) -> bool {
    let Some(columns) = line[name].as_object() else { return false };
    assert_eq!(columns.keys().collect::<Vec<_>>(), ["big"], "{line}");
    assert!(columns["big"].as_str().unwrap().contains("TOAST"), "{line}");
    true
}

/// The work of one session: some statements and a savepoint in each transaction.
fn write_until(cluster: &Cluster, session: usize, is_over: &AtomicBool) {
    let mut client = connect(cluster);
    for round in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let (id, new) = ((round * 7919 + session * 1777) % 8000 + 1, 10_000 + round * 4 + session);
        let big = if round % 10 == 0 { format!("repeat(md5('{round}'), 150)") } else { "big".to_owned() };
        run(
            &mut client,
            &format!(
                "BEGIN; UPDATE busy SET count = count + 1 WHERE id = {id}; SAVEPOINT a;
                UPDATE busy SET pad = pad || 'x', big = {big} WHERE id = {id}; RELEASE a;
                INSERT INTO busy (id, pad) VALUES ({new}, 'new') ON CONFLICT (id) DO UPDATE SET count = 5;
                {}; COMMIT",
                if round % 3 == 0 {
                    format!("DELETE FROM busy WHERE id = {}", new - 40)
                } else {
                    String::new()
                }
            ),
        );
    }
}

const TABLES_APART: &str = "
    CREATE TABLE par (id int PRIMARY KEY, v text);
    CREATE TABLE chi () INHERITS (par);
    INSERT INTO chi VALUES (1, 'child'), (2, 'child');
    CREATE TABLE q (id int, v text) PARTITION BY RANGE (id);
    CREATE TABLE q_x (id int, v text);
    INSERT INTO q_x VALUES (1, 'a'), (2, 'b');
    CREATE TABLE old_name (id int, v text);
    INSERT INTO old_name VALUES (1, 'x');
    CREATE SCHEMA s1;
    CREATE TABLE s1.twice (id int);
    CREATE TABLE public.twice (id int);
    CREATE TYPE unread AS (a int, q tsquery);
    CREATE TABLE comp (id int PRIMARY KEY, c unread);
    INSERT INTO comp VALUES (1, '(1,a)');
    CREATE TYPE grow AS (a int);
    CREATE TABLE growing (id int PRIMARY KEY, g grow);
    INSERT INTO growing VALUES (1, '(1)');
    CREATE TABLE numbers (x xid, c cid, r regclass, q \"char\");
    INSERT INTO numbers VALUES ('3000000000', '3', 'par', '\\303'), ('3000000000', '3', 'par', 'a');
    CREATE TABLE dropping (id int PRIMARY KEY, gone text, v text);
    INSERT INTO dropping VALUES (1, 'g', 'a'), (2, 'g', 'b');
    CREATE TABLE keyless (a int, b int, v text, PRIMARY KEY (a, b));
    INSERT INTO keyless VALUES (1, 1, 'x'), (1, 2, 'y');
    CREATE TABLE replaced (id int);
    CREATE TABLE unkeyed (id int PRIMARY KEY, v text);
    INSERT INTO unkeyed VALUES (1, 'a');
    CREATE TABLE in_progress (id int, v text);
    INSERT INTO in_progress VALUES (1, 'x')";

/// Inheritance, partitions attached within the WAL, renamed tables, transactions in progress, unsupported
/// types.
fn statements_reach_what_they_are_for_alone() -> Outcome {
    let (cluster, mut client) = server()?;
    run(&mut client, TABLES_APART);
    let (mut client, log) = log_after_base(&cluster, client);
    let before = ["q_x", "old_name", "growing", "numbers"].map(|table| contents(&mut client, table));
    for statement in [
        "INSERT INTO par VALUES (1, 'parent')",
        "ALTER TABLE q ATTACH PARTITION q_x FOR VALUES FROM (0) TO (100)",
        "UPDATE q SET v = 'c' WHERE id = 1",
        "BEGIN; DELETE FROM q; ROLLBACK",
        "UPDATE old_name SET v = 'w'",
        "ALTER TABLE old_name RENAME TO new_name",
        "UPDATE new_name SET v = 'y'",
        "ALTER TABLE new_name RENAME v TO new_column",
        "DELETE FROM new_name",
        "BEGIN; ALTER TABLE new_name RENAME TO never; ROLLBACK",
        "ALTER TABLE new_name SET SCHEMA s1",
        "INSERT INTO s1.twice VALUES (1)",
        "INSERT INTO public.twice VALUES (2)",
        "DELETE FROM comp",
        "ALTER TYPE grow ADD ATTRIBUTE b text",
        "DELETE FROM growing",
        "UPDATE numbers SET x = '4' WHERE q = 'a'",
        "DELETE FROM numbers",
        "ALTER SCHEMA s1 RENAME TO s2",
        "UPDATE dropping SET gone = 'h' WHERE id = 1",
        "UPDATE dropping SET gone = 'i', v = 'c' WHERE id = 2",
        "DELETE FROM dropping WHERE id = 1",
        "INSERT INTO dropping VALUES (3, 'g', 'd')",
        "BEGIN; ALTER TABLE dropping DROP COLUMN v; ROLLBACK",
        "ALTER TABLE dropping DROP COLUMN gone",
        "UPDATE keyless SET v = 'z' WHERE b = 2",
        "ALTER TABLE keyless DROP COLUMN b",
        "UPDATE unkeyed SET v = 'b'",
        "ALTER TABLE unkeyed DROP CONSTRAINT unkeyed_pkey",
        "INSERT INTO unkeyed VALUES (1, 'other')",
        "INSERT INTO replaced VALUES (1)",
        "BEGIN; DROP TABLE replaced; CREATE TABLE replaced (v text); COMMIT",
        "INSERT INTO replaced VALUES ('second')",
    ] {
        run(&mut client, statement);
    }
    let mut other = connect(&cluster);
    run(&mut other, "BEGIN");
    run(&mut other, "DELETE FROM in_progress");
    switch_segment(&mut client);
    let undo = |client: &mut Client, table: &str| {
        let script = log.rows(table, &["--undo"]);
        let is_complete = !script.stdout.contains("-- NOT REVERTED");
        assert_eq!(script.code, i32::from(!is_complete), "{table}: {script:?}");
        assert_eq!(script.stdout.contains("-- Complete"), is_complete, "{table}: {script:?}");
        // No script restores a column.
        let not_reverted = script.stdout.lines().filter(|line| line.starts_with("-- NOT REVERTED"));
        for line in not_reverted {
            let of_column =
                ["DROP COLUMN", "the column was dropped since", "a change of the type of column g"];
            assert!(of_column.iter().any(|what| line.contains(what)), "{table}: {script:?}");
        }
        run(client, &script.stdout);
        script.stdout
    };
    undo(&mut client, "public.par");
    assert!(contents(&mut client, "ONLY par").is_empty());
    assert_eq!(contents(&mut client, "chi").len(), 2);
    let changes = lines(&log.rows("public.q", JSON));
    let found: Vec<_> = changes.iter().map(|line| (&line["operation"], &line["state"])).collect();
    assert_eq!(found, [(&"update".into(), &"committed".into())], "{changes:?}");
    undo(&mut client, "public.q");
    assert_eq!(contents(&mut client, "q_x"), before[0]);
    let script = undo(&mut client, "public.new_name");
    assert_eq!(script.matches("UPDATE ONLY \"s2\".\"new_name\" SET \"new_column\"").count(), 2, "{script}");
    assert!(script.contains("INSERT INTO \"s2\".\"new_name\" (\"id\", \"new_column\")"), "{script}");
    assert_eq!(contents(&mut client, "s2.new_name"), before[1]);
    undo(&mut client, "growing");
    assert_eq!(contents(&mut client, "growing"), ["(1,\"(1,)\")"], "before: {:?}", before[2]);
    undo(&mut client, "numbers");
    assert_eq!(contents(&mut client, "numbers"), before[3]);
    let script = undo(&mut client, "dropping");
    assert_eq!(contents(&mut client, "dropping"), ["(1,a)", "(2,b)"], "{script}");
    assert!(
        script.contains("INSERT INTO \"public\".\"dropping\" (\"id\", \"v\") VALUES (1, 'a');"),
        "{script}"
    );
    undo(&mut client, "keyless");
    assert_eq!(contents(&mut client, "keyless"), ["(1,x)", "(1,y)"]);
    // Two rows now have the key that the row had then.
    let updates = log.rows("unkeyed", &["--undo", "--op", "update"]);
    assert!(updates.code == 0 && updates.stdout.contains("-- Complete"), "{updates:?}");
    run(&mut client, &updates.stdout);
    assert_eq!(contents(&mut client, "unkeyed"), ["(1,a)", "(1,other)"]);
    let replaced = log.rows("public.replaced", JSON);
    assert_eq!(operations(&replaced), ["insert", "drop"], "{replaced:?}");
    let (_, named) = replaced.stderr.split_once("another table is named public.replaced from ").unwrap();
    let (_, file) = named.split_once("in the file ").unwrap();
    let anew = lines(&log.rows(file.split_whitespace().next().unwrap(), JSON));
    assert_eq!(anew.len(), 1, "{anew:?}");
    assert_eq!(anew[0]["after"]["v"], "second");
    let unread = log.rows("comp", &["--undo"]);
    assert!(unread.code == 1 && unread.stdout.contains("-- NOT REVERTED"), "{unread:?}");
    let script = log.rows("in_progress", &["--undo"]).stdout;
    assert!(
        !script.contains("INSERT INTO") && script.contains("1 changes are of transactions whose end"),
        "{script}"
    );
    let ambiguous = log.rows("twice", JSON);
    assert!(
        ambiguous.code == 3 && ambiguous.stderr.contains("more than one table is named twice"),
        "{ambiguous:?}"
    );
    assert_eq!(lines(&log.rows("s1.twice", JSON)).len(), 1);
    // A range that has nothing of the log.
    let named = Log { wal: log.wal.clone(), from: ("--names", save_names(&cluster, "postgres")) };
    for (log, bound, position) in [(&log, "--from", "F0/0"), (&named, "--to", "0/10")] {
        let query = "SELECT lsn FROM row_changes('public.par')";
        let (source, path) = (log.from.0, log.from.1.to_str().unwrap());
        let wal = log.wal.to_str().unwrap();
        for found in [
            log.rows("public.par", &["--format", "json", bound, position]),
            walden(&["sql", "--format", "json", source, path, bound, position, query, wal]),
        ] {
            let is_said = found.stderr.contains("warning: nothing is in the range: the segments are from");
            assert!(found.code == 0 && found.stdout.is_empty() && is_said, "{bound}: {found:?}");
        }
    }
    assert_eq!(log.rows("public.par", &["--from", "0/20", "--to", "0/10"]).code, 2);
    Ok(())
}

/// A base backup that starts after the range shows no change of that range: an empty script would look
/// complete.
fn ranges_that_end_before_the_base_backup_are_refused() -> Outcome {
    let (cluster, mut client) = server()?;
    run(&mut client, "CREATE TABLE kept (id int PRIMARY KEY); INSERT INTO kept VALUES (1)");
    let first = begin_segment(&mut client);
    run(&mut client, "DELETE FROM kept");
    let to: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
    let to = to.parse::<Lsn>().unwrap().to_string();
    let time: String = client.query_one("SELECT clock_timestamp()::text", &[]).unwrap().get(0);
    std::thread::sleep(Duration::from_millis(20));
    for _ in 0..3 {
        run(&mut client, "INSERT INTO kept VALUES (2); DELETE FROM kept");
        switch_segment(&mut client);
    }
    run(&mut client, "CHECKPOINT");
    drop(client);
    let base = copy_base(&cluster);
    let starts_at = DataDir::open(&base).unwrap().redo_from().to_string();
    let mut client = connect(&cluster);
    run(&mut client, "INSERT INTO kept VALUES (3)");
    switch_segment(&mut client);
    drop(client);
    let wal = stop_and_collect_wal(&cluster, &first);
    // An archive takes complete segments only.
    let last = std::fs::read_dir(&wal).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    std::fs::remove_file(last).unwrap();
    let repo = cluster.dir().join("repo");
    let imported = walden(&["archive", "import", "--repo", repo.to_str().unwrap(), wal.to_str().unwrap()]);
    assert_eq!(imported.code, 0, "{imported:?}");
    for source in [&wal, &repo] {
        for to in [&to, &starts_at, &time, "2001-01-01 00:00 UTC"] {
            for format in [&["--undo"][..], &["--format", "json"]] {
                let refused = rows_of(source, ("--base", &base), "kept", &[format, &["--to", to]].concat());
                let is_named = refused.stderr.contains(&format!("starts at {starts_at}"))
                    && refused.stderr.contains("hint: use a base backup that started before")
                    && (!to.contains('/') || refused.stderr.contains(&format!("the range ends at {to},")));
                assert!(refused.code == 3 && refused.stdout.is_empty() && is_named, "{to}: {refused:?}");
            }
        }
        let complete = rows_of(source, ("--base", &base), "kept", &["--undo"]);
        assert!(complete.code == 0 && complete.stdout.contains("DELETE FROM"), "{complete:?}");
    }
    Ok(())
}

/// Keys that are deferred, rows that others changed, identity columns, columns that get other types, inserts
/// that a trigger keeps from the table, names and values that are those of the script.
fn statements_meet_one_row_or_fail() -> Outcome {
    let (cluster, mut client) = server()?;
    run(
        &mut client,
        "CREATE TABLE shifted (id int PRIMARY KEY DEFERRABLE, v text);
        INSERT INTO shifted VALUES (1, 'a'), (2, 'b'), (3, 'a');
        CREATE TABLE seats (id int PRIMARY KEY, pos int UNIQUE DEFERRABLE);
        INSERT INTO seats VALUES (1, 1), (2, 2);
        CREATE TABLE later (id int PRIMARY KEY, v text, w text);
        INSERT INTO later VALUES (1, 'a', 'x'), (2, 'b', 'y');
        CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
        INSERT INTO numbered (v) VALUES ('a'), ('b');
        CREATE TABLE referring (id int REFERENCES numbered DEFERRABLE);
        CREATE TABLE zoned (id int PRIMARY KEY, at timestamp, n int);
        INSERT INTO zoned VALUES (1, '2026-01-01 12:00:00', 1);
        CREATE TYPE shrinking AS (a int, b text);
        CREATE TABLE shrunk (id int PRIMARY KEY, c shrinking);
        INSERT INTO shrunk VALUES (1, '(1,a)');
        CREATE TYPE around AS (s shrinking, n int);
        CREATE TABLE nested (id int PRIMARY KEY, c around, l shrinking[], n int);
        INSERT INTO nested VALUES (1, '(\"(1,a)\",5)', '{\"(1,a)\"}', 1);
        CREATE TABLE met (met int PRIMARY KEY, found text, \"into\" text);
        INSERT INTO met VALUES (1, '$walden$', 'a');
        CREATE TABLE guarded (id int PRIMARY KEY, v text);
        INSERT INTO guarded VALUES (1, 'a');
        CREATE VIEW a_view AS SELECT 1 AS one;
        CREATE SEQUENCE a_sequence;
        CREATE TABLE nothing ()",
    );
    let (mut client, log) = log_after_base(&cluster, client);
    let tables = ["shifted", "seats", "numbered", "later", "met"];
    let before = tables.map(|table| contents(&mut client, table));
    for statement in [
        "UPDATE shifted SET id = id + 1",
        "UPDATE seats SET pos = 3 - pos",
        "UPDATE later SET v = 'wrong'",
        "UPDATE numbered SET id = DEFAULT WHERE id = 1",
        "INSERT INTO referring VALUES (2)",
        "UPDATE zoned SET n = 2",
        "UPDATE zoned SET at = '2026-02-02', n = 3",
        "ALTER TABLE zoned ALTER at TYPE timestamptz USING at AT TIME ZONE 'Europe/Berlin', ALTER n TYPE bigint",
        "UPDATE shrunk SET c = '(2,b)'",
        "UPDATE nested SET c = '(\"(2,b)\",6)', n = 2",
        "UPDATE nested SET l = '{\"(2,b)\"}', n = 3",
        "UPDATE met SET found = 'END $walden$;', \"into\" = '$walden1$'",
        "DELETE FROM guarded",
        "ALTER TYPE shrinking DROP ATTRIBUTE b",
    ] {
        run(&mut client, statement);
    }
    switch_segment(&mut client);
    for (table, before) in tables.iter().zip(&before) {
        let after = contents(&mut client, table);
        let (undo, redo) = (log.rows(table, &["--undo"]), log.rows(table, &["--format", "sql"]));
        assert!(undo.code == 0 && undo.stdout.contains("-- Complete"), "{table}: {undo:?}");
        let is_replica = "SET session_replication_role = replica;";
        let as_replica = undo.stdout.replace(&format!("-- {is_replica}"), is_replica);
        assert_ne!(as_replica, undo.stdout);
        for undo in [&undo.stdout, &as_replica] {
            run(&mut client, undo);
            assert_eq!(&contents(&mut client, table), before, "{table}: {undo}");
            run(&mut client, "RESET session_replication_role");
            run(&mut client, &redo.stdout);
            assert_eq!(contents(&mut client, table), after, "{table}: {}", redo.stdout);
        }
    }
    let query =
        "SELECT attidentity::text FROM pg_attribute WHERE attrelid = 'numbered'::regclass AND attname = 'id'";
    assert_eq!(client.query_one(query, &[]).unwrap().get::<_, &str>(0), "a");
    // Later changes by others are not overwritten, and then nothing else is changed, either.
    let changes = lines(&log.rows("later", JSON));
    let xid = changes[0]["xid"].to_string();
    run(&mut client, "UPDATE later SET w = 'by others' WHERE id = 1");
    let script = log.rows("later", &["--xid", &xid, "--undo"]).stdout;
    run(&mut client, &script);
    assert_eq!(contents(&mut client, "later"), ["(1,a,\"by others\")", "(2,b,y)"]);
    run(&mut client, "UPDATE later SET v = 'wrong'; UPDATE later SET v = 'corrected' WHERE id = 2");
    let error = client.batch_execute(&script).expect_err("the row was changed");
    let message = error.as_db_error().unwrap().message();
    assert!(message.contains("the row differs from the WAL"), "{message}");
    run(&mut client, "ROLLBACK");
    assert_eq!(contents(&mut client, "later"), ["(1,wrong,\"by others\")", "(2,corrected,y)"]);
    // A value whose meaning depends on the column's former type is not set.
    let script = log.rows("zoned", &["--undo"]);
    assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE: 2 changes"), "{script:?}");
    let left_out = "column at = '2026-01-01 12:00:00': its type was changed since";
    assert!(script.stdout.contains(left_out), "{script:?}");
    run(&mut client, &script.stdout);
    assert_eq!(contents(&mut client, "zoned"), ["(1,\"2026-02-01 23:00:00+00\",1)"], "{script:?}");
    let script = log.rows("shrunk", &["--undo"]);
    assert!(script.code == 1 && script.stdout.contains("-- NOT REVERTED"), "{script:?}");
    let script = log.rows("nested", &["--undo"]);
    assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE: 4 changes"), "{script:?}");
    for left_out in ["column c = '(\"(1,a)\",5)': attributes", "column l = '{\"(1,a)\"}': attributes"] {
        assert!(script.stdout.contains(left_out), "{script:?}");
    }
    run(&mut client, &script.stdout);
    assert_eq!(client.query_one("SELECT n FROM nested", &[]).unwrap().get::<_, i32>(0), 1);
    // The script creates nothing in the database.
    run(&mut client, "CREATE ROLE plain; GRANT ALL ON met TO plain");
    run(&mut client, "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC; SET ROLE plain");
    run(&mut client, &log.rows("met", &["--undo"]).stdout);
    run(&mut client, "RESET ROLE");
    assert_eq!(contents(&mut client, "met"), ["(1,$walden$,a)"]);
    let swallow = "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER swallow BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION swallow()";
    run(&mut client, swallow);
    let script = log.rows("guarded", &["--undo"]).stdout;
    let error = client.batch_execute(&script).expect_err("the row was not inserted");
    let message = error.as_db_error().unwrap().message();
    let expected = "the row was not inserted: delete of public.guarded at ";
    assert!(message.starts_with(expected) && message.ends_with("(met 0 rows)"), "{message}");
    run(&mut client, "ROLLBACK");
    for (name, what) in [
        ("a_view", "a_view, which is a view"),
        ("public.a_sequence", "public.a_sequence, which is a sequence"),
        ("later_pkey", "later_pkey, which is an index"),
    ] {
        let found = log.rows(name, &[]);
        assert!(found.code == 3 && found.stderr.contains(what), "{name}: {found:?}");
    }
    let found = log.rows("later", &["--xid", "4000000000"]);
    // More than half of all IDs ahead, so it would be an old transaction.
    let note = "and transaction 4000000000 started earlier: its changes before that position are not read";
    assert!(found.code == 1 && found.stderr.contains(note), "{found:?}");
    let found = log.rows("later", &["--xid", "1000000", "--undo"]);
    let note = "the WAL has no record of transaction 1000000";
    assert!(found.code == 1 && found.stderr.contains(note) && found.stdout.contains(note), "{found:?}");
    assert!(found.stdout.contains("-- NOT COMPLETE"), "{found:?}");
    Ok(())
}

/// `VACUUM FULL` moves catalogs to other files, and `ALTER DATABASE` moves all relations of a database to
/// another tablespace.
fn catalogs_and_databases_that_move_are_followed() -> Outcome {
    let (cluster, mut client) = server()?;
    run(&mut client, "CREATE DATABASE moving");
    let mut moving = cluster.client("moving").unwrap();
    run(
        &mut moving,
        "CREATE TABLE moved (id int PRIMARY KEY, v text, big text);
        INSERT INTO moved VALUES (1, 'a'), (2, 'x')",
    );
    drop(moving);
    let (base, first) = copy_base_and_begin_segment(&cluster, client);
    let mut client = connect(&cluster);
    let mut moving = cluster.client("moving").unwrap();
    for statement in [
        "UPDATE moved SET v = 'b' WHERE id = 1",
        "VACUUM FULL pg_class",
        "VACUUM FULL pg_attribute",
        "VACUUM FULL pg_index",
        "ALTER TABLE moved ADD COLUMN more int DEFAULT 7",
        "UPDATE moved SET v = 'c' WHERE id = 1",
        "CREATE TABLE made (id int); INSERT INTO made VALUES (1)",
        "VACUUM FULL",
        "ALTER TABLE moved DROP COLUMN big",
        "UPDATE moved SET v = 'd' WHERE id = 1",
    ] {
        run(&mut moving, statement);
    }
    drop(moving);
    run(&mut client, "SET allow_in_place_tablespaces = on");
    run(&mut client, "CREATE TABLESPACE elsewhere LOCATION ''");
    run(&mut client, "ALTER DATABASE moving SET TABLESPACE elsewhere");
    let mut moving = cluster.client("moving").unwrap();
    run(&mut moving, "UPDATE moved SET v = 'e' WHERE id = 1");
    run(&mut moving, "ALTER TABLE moved RENAME v TO w");
    run(&mut moving, "DELETE FROM moved WHERE id = 2");
    drop((client, moving));
    let names = save_names(&cluster, "moving");
    let wal = stop_and_collect_wal(&cluster, &first);
    for from in [("--base", &base), ("--names", &names)] {
        let rows = |table: &str| rows_of(&wal, from, table, JSON);
        let found = rows("moved");
        assert_eq!(found.code, 0, "{from:?}: {}", found.stderr);
        let changes: Vec<(String, String, String)> = lines(&found)
            .iter()
            .map(|line| {
                let operation = line["operation"].as_str().unwrap().to_owned();
                (operation, line["before"].to_string(), line["after"].to_string())
            })
            .filter(|(operation, _, _)| operation != "rewrite" && !operation.ends_with("-column"))
            .collect();
        let update = |before: &str, after: &str| ("update".to_owned(), before.to_owned(), after.to_owned());
        let expected = [
            update(r#"{"id":1,"v":"a","big":null}"#, r#"{"id":1,"v":"b","big":null}"#),
            update(r#"{"id":1,"v":"b","big":null,"more":7}"#, r#"{"id":1,"v":"c","big":null,"more":7}"#),
            update(r#"{"id":1,"v":"c","more":7}"#, r#"{"id":1,"v":"d","more":7}"#),
            update(r#"{"id":1,"v":"d","more":7}"#, r#"{"id":1,"v":"e","more":7}"#),
            ("delete".to_owned(), r#"{"id":2,"w":"x","more":7}"#.to_owned(), "null".to_owned()),
        ];
        assert_eq!(changes, expected, "{from:?}: {}", found.stderr);
        assert_eq!(lines(&rows("moving.public.made"))[0]["after"]["id"], 1, "{from:?}");
    }
    Ok(())
}

/// The names are newer than a rewrite, before which the catalogs were already not in initdb's files.
fn catalogs_that_were_rewritten_before_are_followed() -> Outcome {
    let (cluster, mut client) = server()?;
    for statement in [
        "CREATE TABLE moved (id int PRIMARY KEY, v text)",
        "VACUUM FULL pg_class",
        "VACUUM FULL pg_attribute",
        "VACUUM FULL pg_index",
    ] {
        run(&mut client, statement);
    }
    let first = begin_segment(&mut client);
    for statement in [
        "INSERT INTO moved VALUES (1, '123'), (2, 'abc')",
        "TRUNCATE moved",
        "INSERT INTO moved VALUES (3, 'x')",
        "ALTER TABLE moved ALTER v TYPE int USING 5",
        "VACUUM FULL pg_attribute",
        "VACUUM FULL pg_class",
        "VACUUM FULL pg_index",
        "INSERT INTO moved VALUES (4, 6)",
    ] {
        run(&mut client, statement);
    }
    let log = stop_with_names(&cluster, client, &first);
    let found = log.rows("public.moved", JSON);
    let lines = lines(&found);
    let inserts = lines.iter().filter(|line| line["operation"] == "insert");
    let rows: Vec<String> = inserts.map(|line| line["after"].to_string()).collect();
    let expected =
        [r#"{"id":1,"v":"123"}"#, r#"{"id":2,"v":"abc"}"#, r#"{"id":3,"v":"x"}"#, r#"{"id":4,"v":6}"#];
    assert_eq!(rows, expected, "{}", found.stderr);
    assert_eq!(found.code, 0, "{}", found.stderr);
    Ok(())
}

/// Without full-page images, the catalog rows that `DROP TABLE` removes are unknown, so any table may be
/// affected.
fn catalogs_that_are_not_known_may_hide_changes() -> Outcome {
    let (cluster, mut client) = server_with(&[("full_page_writes", "off")])?;
    run(&mut client, "CREATE TABLE kept (id int PRIMARY KEY); CREATE TABLE dropped (id int)");
    let first = begin_segment(&mut client);
    run(&mut client, "INSERT INTO kept VALUES (1)");
    run(&mut client, "DROP TABLE dropped");
    let log = stop_with_names(&cluster, client, &first);
    let rows = |more: &[&str]| log.rows("public.kept", more);
    let found = rows(JSON);
    assert_eq!(operations(&found), ["incomplete", "insert"], "{}", found.stderr);
    let lines = lines(&found);
    assert_eq!(found.code, 1, "{}", found.stderr);
    let why = lines[0]["why"].as_str().unwrap();
    assert!(why.contains("changes of the catalogs could not be read"), "{why}");
    assert!(why.contains(lines[0]["lsn"].as_str().unwrap()), "{why}");
    assert!(found.stderr.contains(&format!("note: {why}")), "{}", found.stderr);
    let comment = format!("-- Changes may be missing: {why}\n");
    let script = rows(&["--undo"]);
    assert!(script.code == 1 && script.stdout.contains(&comment), "{script:?}");
    let header = "-- NOT COMPLETE: only the changes that are known are reverted.\n";
    assert!(script.stdout.contains(header) && !script.stdout.contains("-- Complete"), "{script:?}");
    let script = rows(&["--format", "sql"]);
    assert!(script.code == 1 && script.stdout.starts_with(&comment), "{script:?}");
    assert_eq!([rows(&[]).code, rows(&["--format", "csv"]).code], [1, 1]);
    Ok(())
}

/// When the names are read, the catalogs are in other files than at the end of the WAL; before that, they
/// were in other files than initdb's.
fn names_that_are_newer_than_a_rewrite_are_noticed() -> Outcome {
    let (cluster, mut client) = server()?;
    for statement in [
        "CREATE TABLE moved (id int PRIMARY KEY, v text)",
        "VACUUM FULL pg_class",
        "VACUUM FULL pg_attribute",
    ] {
        run(&mut client, statement);
    }
    let early = cluster.dir().join("early.json");
    std::fs::rename(save_names(&cluster, "postgres"), &early).unwrap();
    let first = begin_segment(&mut client);
    for statement in [
        "INSERT INTO moved VALUES (1, 'a')",
        "ALTER TABLE moved ADD w int",
        "INSERT INTO moved VALUES (2, 'b', 3)",
    ] {
        run(&mut client, statement);
    }
    let end: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
    run(&mut client, "VACUUM FULL pg_class");
    run(&mut client, "VACUUM FULL pg_attribute");
    drop(client);
    let late = save_names(&cluster, "postgres");
    let wal = stop_and_collect_wal(&cluster, &first);
    let rows = |names: &PathBuf, more: &[&str]| {
        let more = [&["--to", &end, "--format", "json"], more].concat();
        rows_of(&wal, ("--names", names), "public.moved", &more)
    };
    let found = rows(&late, &[]);
    let note = "was rewritten (VACUUM FULL) between the log and the names";
    assert!(found.code == 1 && found.stderr.contains(note), "{found:?}");
    assert_eq!(lines(&found)[0]["operation"], "incomplete");
    for found in [rows(&early, &[]), rows(&early, &["--names", late.to_str().unwrap()])] {
        let rows: Vec<String> = lines(&found).iter().map(|line| line["after"].to_string()).collect();
        assert_eq!(rows, [r#"{"id":1,"v":"a"}"#, "null", r#"{"id":2,"v":"b","w":3}"#], "{}", found.stderr);
        assert!(found.code == 0 && !found.stderr.contains(note), "{}", found.stderr);
    }
    Ok(())
}

/// Rows older than some of their columns take those values from the catalogs; saved names have them as text.
fn defaults_that_names_have_as_text_are_values() -> Outcome {
    let (cluster, mut client) = server()?;
    for table in ["keyed (id int PRIMARY KEY)", "keyless (id int)"] {
        let (name, _) = table.split_once(' ').unwrap();
        run(
            &mut client,
            &format!(
                "CREATE TABLE {table};
                INSERT INTO {name} VALUES (1), (2), (3);
                ALTER TABLE {name} ADD n numeric(8, 2) DEFAULT 12.50, ADD m numeric DEFAULT -0.00012300,
                    ADD u uuid DEFAULT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', ADD d date DEFAULT '0044-03-15 BC',
                    ADD tm time DEFAULT '23:59:59.5', ADD ts timestamp DEFAULT 'infinity',
                    ADD tz timestamptz DEFAULT '2024-01-01 00:00:00.25+00', ADD x xid DEFAULT '7', ADD p point DEFAULT '(1,2)',
                    ADD j jsonb DEFAULT '{{\"a\": 1}}', ADD a int[] DEFAULT '{{1,2}}', ADD iv interval DEFAULT '1 day', ADD v int"
            ),
        );
    }
    let tables = ["keyed", "keyless"];
    let before = tables.map(|table| contents(&mut client, table));
    let first = begin_segment(&mut client);
    for table in tables {
        run(&mut client, &format!("UPDATE {table} SET v = 1 WHERE id = 1; DELETE FROM {table} WHERE id = 2"));
    }
    let after = tables.map(|table| contents(&mut client, table));
    let log = stop_with_names(&cluster, client, &first);
    cluster.start().unwrap();
    let mut client = connect(&cluster);
    for (table, (before, after)) in tables.iter().zip(before.iter().zip(&after)) {
        let rows = |more: &[&str]| log.rows(table, more);
        let found = rows(JSON);
        assert_eq!(found.code, 0, "{}", found.stderr);
        // Compares the rows at that time, as stored now, and as the server prints them.
        let lines = lines(&found);
        let mut updated = lines[0]["before"].clone();
        assert_eq!([&updated, &lines[1]["before"]].map(|row| record(row).unwrap()), before[..2]);
        updated["v"] = 1.into();
        assert_eq!(updated, lines[0]["after"]);
        // Nothing else has changed.
        let shown = rows(&[]).stdout;
        assert_eq!(shown.matches(" -> ").count(), 1, "{shown}");
        for (more, expected) in [(&["--undo"][..], before), (&["--format", "sql"], after)] {
            let script = rows(more);
            let assigned = script.stdout.matches(" SET \"v\" = ").count();
            assert!(script.code == 0 && assigned == 1 && !script.stdout.contains(", \"m\" = "), "{script:?}");
            run(&mut client, &script.stdout);
            assert_eq!(&contents(&mut client, table), expected, "{script:?}");
        }
    }
    Ok(())
}

/// With names only: inheritance, and defaults of columns that were added later. Also an unlogged table.
fn names_have_what_inherits_and_what_is_missing() -> Outcome {
    let (cluster, mut client) = server()?;
    for statement in [
        "ALTER DATABASE postgres SET timezone = 'America/New_York'",
        "ALTER DATABASE postgres SET extra_float_digits = -3",
        "CREATE TABLE top (id int)",
        "CREATE TABLE middle () INHERITS (top)",
        "CREATE TABLE bottom () INHERITS (middle, top)",
        "CREATE UNLOGGED TABLE unseen (id int)",
        "CREATE TABLE late (id int)",
    ] {
        run(&mut client, statement);
    }
    let first = begin_segment(&mut client);
    for statement in [
        "INSERT INTO late VALUES (1)",
        "ALTER TABLE late ADD z int DEFAULT 7, ADD b bool DEFAULT true, ADD bx box DEFAULT '(1,1),(0,0)',
            ADD f float8 DEFAULT 0.1234567890123456, ADD ts timestamptz DEFAULT '2024-01-01 00:00+00', ADD v int",
        "UPDATE late SET v = 1",
        "INSERT INTO top VALUES (1)",
        "INSERT INTO middle VALUES (2)",
        "INSERT INTO bottom VALUES (3)",
        "INSERT INTO unseen VALUES (4)",
    ] {
        run(&mut client, statement);
    }
    let log = stop_with_names(&cluster, client, &first);
    let rows = |table: &str| log.rows(table, JSON);
    let found = rows("public.top");
    let relations: Vec<String> = lines(&found).iter().map(|line| line["relation"].to_string()).collect();
    assert_eq!(relations, ["public.top", "public.middle", "public.bottom"].map(|name| format!("\"{name}\"")));
    assert!(!found.stderr.contains("inherit"), "{}", found.stderr);
    let found = rows("public.late");
    let lines = lines(&found);
    let update = lines.iter().find(|line| line["operation"] == "update").unwrap();
    for column in ["z", "b", "bx", "f", "ts"] {
        assert_eq!(update["before"][column], update["after"][column], "{update}");
    }
    let found = rows("public.unseen");
    assert!(found.code == 1 && found.stderr.contains("unseen is unlogged at 0/"), "{}", found.stderr);
    Ok(())
}

/// A table is renamed, and another one gets its name. The names were read later.
fn names_that_change_hands_are_followed() -> Outcome {
    let (cluster, mut client) = server()?;
    for statement in [
        "CREATE TABLE stock (id int PRIMARY KEY, v text)",
        "INSERT INTO stock VALUES (1, 'a')",
        "ALTER TABLE stock RENAME TO stock_old",
        "CREATE TABLE stock (id int PRIMARY KEY, w text)",
        "UPDATE stock_old SET v = 'b'",
        "INSERT INTO stock VALUES (9, 'new')",
        "CREATE TABLE once (id int)",
        "INSERT INTO once VALUES (1)",
        "ALTER TABLE once RENAME TO now",
        "INSERT INTO now VALUES (2)",
    ] {
        run(&mut client, statement);
    }
    let log = log_with_names(&cluster, client, "postgres");
    let changes = |table: &str| {
        let found = log.rows(table, JSON);
        assert_eq!(found.code, 0, "{table}: {}", found.stderr);
        let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
        let change =
            |line: &Value| ["operation", "state", "relation"].map(|field| text(line, field)).join(" ");
        lines(&found).iter().map(change).collect::<Vec<_>>()
    };
    let expected = [
        "insert committed public.stock",
        "update committed public.stock_old",
        "insert committed public.stock",
    ];
    assert_eq!(changes("public.stock"), expected);
    assert_eq!(changes("public.once"), ["insert committed public.once", "insert committed public.now"]);
    assert_eq!(changes("public.now"), changes("public.once"));
    Ok(())
}

/// All characters of one and two bytes, and EUC_JP's of three, in all server encodings.
fn text_is_converted_as_the_server_does() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?).start().unwrap();
    let mut client = connect(&cluster);
    let text_of = "CREATE FUNCTION text_of(bytes bytea, encoding name) RETURNS text LANGUAGE plpgsql AS $$
        BEGIN RETURN convert_from(bytes, encoding); EXCEPTION WHEN OTHERS THEN RETURN NULL; END $$";
    run(&mut client, text_of);
    let numbers = client.query("SELECT pg_encoding_to_char(n) FROM generate_series(0, 34) n", &[]).unwrap();
    for (number, row) in numbers.iter().enumerate() {
        let name: &str = row.get(0);
        let encoding = Encoding::from_number(number as u32).unwrap();
        assert_eq!((encoding.name(), Encoding::from_name(name)), (name, Some(encoding)));
        if matches!(name, "SQL_ASCII" | "UTF8" | "EUC_TW" | "EUC_JIS_2004" | "MULE_INTERNAL") {
            continue;
        }
        let query = "SELECT bytes, text_of(bytes, $1::text::name) FROM (
                SELECT decode(to_hex(n), 'hex') AS bytes FROM generate_series(128, 255) n
                UNION ALL SELECT decode(to_hex(a * 256 + b), 'hex') FROM generate_series(128, 255) a, generate_series(128, 255) b
                    WHERE $1 LIKE 'EUC%'
                UNION ALL SELECT decode('8f' || to_hex(a * 256 + b), 'hex') FROM generate_series(161, 254) a,
                    generate_series(161, 254) b WHERE $1 = 'EUC_JP') all_of";
        let (mut known, mut different, mut ours_alone, mut theirs_alone) = (0, Vec::new(), 0, Vec::new());
        for row in client.query(query, &[&name]).unwrap() {
            let (bytes, expected): (&[u8], Option<&str>) = (row.get(0), row.get(1));
            let found = encoding.decode(bytes);
            match (found.as_deref(), expected) {
                (Some(found), Some(expected)) if found == expected => known += 1,
                (Some(found), Some(expected)) => {
                    different.push((bytes.to_vec(), found.to_owned(), expected.to_owned()))
                }
                (Some(_), None) => ours_alone += 1,
                (None, Some(expected)) => theirs_alone.push((bytes.to_vec(), expected.to_owned())),
                (None, None) => {}
            }
        }
        say(&format!(
            "{name}: {known} equal, {ours_alone} not the server's, {} not known",
            theirs_alone.len()
        ));
        assert!(different.is_empty(), "{name}: {different:x?}");
        // Except in EUC encodings, Walden converts at most one byte sequence that the server rejects.
        assert!(known > 80 && (ours_alone < 2 || name.starts_with("EUC")), "{name}: {ours_alone}");
        assert!(theirs_alone.len() < 120, "{name}: {theirs_alone:x?}");
    }
    Ok(())
}

/// Names of relations and columns, and values of all text types: with a backup, with names only, and
/// reverted.
fn rows_of_a_database_in_another_encoding() -> Outcome {
    let (cluster, mut client) = server()?;
    run(&mut client, "CREATE DATABASE old ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    let mut client = cluster.client("old").unwrap();
    let create = "CREATE TYPE größe AS ENUM ('klein', 'groß');
        CREATE TABLE größen (id int PRIMARY KEY, \"straße\" text, j jsonb, js json, v tsvector, g größe, a text[], n name);
        INSERT INTO größen SELECT i, 'Allée ' || i, '{\"ü\": \"é\"}', '[\"ß\"]', 'à:1 ''ç d'':2', 'groß', '{ö,\"ä b\"}', 'ñ'
            FROM generate_series(1, 20) i";
    run(&mut client, create);
    let before = contents(&mut client, "größen");
    let (base, first) = copy_base_and_begin_segment(&cluster, client);
    let mut client = cluster.client("old").unwrap();
    run(&mut client, "UPDATE größen SET \"straße\" = 'Rue de la Liberté', j = '{\"à\": 1}' WHERE id = 1");
    run(&mut client, "ALTER TABLE größen RENAME n TO \"née\"");
    run(&mut client, "DELETE FROM größen WHERE id = 2");
    run(&mut client, "INSERT INTO größen (id, née) VALUES (30, 'à côté')");
    let after = contents(&mut client, "größen");
    drop(client);
    let names = save_names(&cluster, "old");
    let wal = stop_and_collect_wal(&cluster, &first);
    cluster.start().unwrap();
    let mut client = cluster.client("old").unwrap();
    for from in [("--base", &base), ("--names", &names)] {
        let rows = |more: &[&str]| rows_of(&wal, from, "größen", more);
        let found = rows(JSON);
        assert_eq!(found.code, 0, "{}", found.stderr);
        let lines = lines(&found);
        assert_eq!(lines[0]["after"]["straße"], "Rue de la Liberté", "{}", lines[0]);
        assert_eq!(lines[0]["before"]["straße"], "Allée 1");
        assert_eq!((&lines[0]["before"]["n"], &lines[1]["before"]["née"]), (&"ñ".into(), &"ñ".into()));
        run(&mut client, &rows(&["--undo"]).stdout);
        assert_eq!(contents(&mut client, "größen"), before);
        run(&mut client, &rows(&["--format", "sql"]).stdout);
        assert_eq!(contents(&mut client, "größen"), after);
    }
    Ok(())
}

/// A SQL_ASCII database contains whatever bytes clients sent.
fn bytes_that_are_no_text_are_named() -> Outcome {
    let (cluster, mut client) = server()?;
    run(
        &mut client,
        "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    );
    let mut client = cluster.client("bytes").unwrap();
    for statement in [
        "CREATE TABLE drinks (id int PRIMARY KEY, v text, w text)",
        "INSERT INTO drinks VALUES (1, 'th\u{e9}', E'caf\\351')",
        "UPDATE drinks SET v = 'tea'",
        "DELETE FROM drinks",
    ] {
        run(&mut client, statement);
    }
    let log = log_with_names(&cluster, client, "bytes");
    let rows = |more: &[&str]| log.rows("public.drinks", more);
    let script = rows(&["--undo"]);
    // Reverting earlier changes of the row requires the row.
    assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE: 3 changes"), "{script:?}");
    let left_out =
        r"column w = '\x636166e9': its type is not known, or it is no text in the database's encoding";
    assert!(script.stdout.contains(left_out), "{script:?}");
    let script = rows(&["--undo", "--op", "update"]);
    assert!(script.stdout.contains("SET \"v\" = 'th\u{e9}' WHERE \"id\" = 1"), "{script:?}");
    Ok(())
}

/// Runs a script that is marked incomplete. Returns its lines about changes that are not reverted.
fn run_incomplete(client: &mut Client, script: &Run, what: &str) -> Vec<String> {
    assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE"), "{what}: {script:?}");
    run(client, &script.stdout);
    script
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("-- NOT REVERTED: ").map(str::to_owned))
        .collect()
}

/// Expects that each line has this start and end. LSNs in between are ignored.
fn assert_lines(found: &[String], expected: &[(&str, &str)]) {
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (line, (start, end)) in found.iter().zip(expected) {
        assert!(line.starts_with(*start) && line.ends_with(*end), "{found:#?}");
    }
}

/// Returns the operations of JSON lines.
fn operations(run: &Run) -> Vec<String> {
    lines(run).iter().map(|line| line["operation"].as_str().unwrap().to_owned()).collect()
}

/// A segment is missing, or damaged.
fn what_a_log_lacks_is_told() -> Outcome {
    let (cluster, mut client) = server()?;
    run(&mut client, "CREATE TABLE kept (id int PRIMARY KEY)");
    let (base, first) = copy_base_and_begin_segment(&cluster, client);
    let mut client = connect(&cluster);
    for id in 1..=3 {
        run(&mut client, &format!("INSERT INTO kept VALUES ({id})"));
        switch_segment(&mut client);
    }
    drop(client);
    let names = save_names(&cluster, "postgres");
    let wal = stop_and_collect_wal(&cluster, &first);
    let mut segments: Vec<PathBuf> =
        std::fs::read_dir(&wal).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    let size = SegmentSize::new(cluster.wal_segment_bytes()).unwrap();
    let start = |index: usize| {
        let name = segments[index].file_name().unwrap().to_str().unwrap();
        SegmentName::parse(name).unwrap().start(size).unwrap().to_string()
    };
    let (from, to) = (start(2), start(1));
    let rows = |of: (&str, &PathBuf), more: &[&str]| rows_of(&wal, of, "public.kept", more);
    let of_base = ("--base", &base);
    let mut bytes = std::fs::read(&segments[1]).unwrap();
    bytes[60] ^= 0xFF;
    std::fs::write(&segments[1], bytes).unwrap();
    let damaged = rows(of_base, JSON);
    assert_eq!((damaged.code, operations(&damaged)), (3, vec!["incomplete".into(), "insert".into()]));
    let script = rows(of_base, &["--undo"]);
    assert!(script.code == 3 && script.stdout.contains("-- NOT COMPLETE"), "{script:?}");
    assert!(
        script.stdout.contains("is damaged at offset") && !script.stdout.contains("-- Complete"),
        "{script:?}"
    );
    std::fs::remove_file(&segments[1]).unwrap();
    for (of, id, bound) in [(of_base, 1, ["--to", &to]), (("--names", &names), 3, ["--from", &from])] {
        let found = rows(of, JSON);
        assert_eq!(found.code, 1, "{of:?}: {}", found.stderr);
        assert_eq!(operations(&found), ["incomplete", "insert"], "{of:?}");
        let lines = lines(&found);
        assert_eq!(lines[1]["after"]["id"], id, "{of:?}");
        let why = lines[0]["why"].as_str().unwrap();
        assert!(why.starts_with("the WAL has a gap, the segment 0000") && why.contains("not read"), "{why}");
        assert!(found.stderr.contains(&format!("note: {why}")), "{}", found.stderr);
        for format in [&["--undo"][..], &["--format", "sql"]] {
            let script = rows(of, format);
            let comment = format!("-- Changes may be missing: {why}");
            assert!(script.code == 1 && script.stdout.contains(&comment), "{script:?}");
            assert!(!script.stdout.contains("-- Complete"), "{script:?}");
        }
        let (wal, option, path) = (wal.to_str().unwrap(), of.0, of.1.to_str().unwrap());
        let query = "SELECT lsn FROM row_changes('public.kept')";
        let sql = walden(&["sql", "--format", "json", option, path, query, wal]);
        assert!(sql.code == 1 && sql.stderr.contains(&format!("note: {why}")), "{sql:?}");
        // Nothing in the range is missing.
        let found = rows(of, &[JSON, &bound].concat());
        assert_eq!((found.code, operations(&found)), (0, vec!["insert".to_owned()]), "{}", found.stderr);
        assert!(rows(of, &[&["--undo"][..], &bound].concat()).stdout.contains("-- Complete"));
    }
    let first_part = rows(("--names", &names), &["--format", "json", "--to", &to]);
    assert_eq!((first_part.code, operations(&first_part)), (0, vec!["insert".to_owned()]));
    for format in [&["--undo"][..], JSON] {
        let found = rows(of_base, &[format, &["-o", "/nowhere/file"]].concat());
        assert!(found.code == 2 && found.stderr.contains("-o is for --format parquet"), "{found:?}");
    }
    Ok(())
}

/// Labels of enums are renamed, and one gets a label that another one had.
fn labels_are_those_at_the_end() -> Outcome {
    let (cluster, mut client) = server()?;
    run(
        &mut client,
        "CREATE TYPE mood AS ENUM ('low', 'high', 'other');
        CREATE DOMAIN any_mood AS mood;
        CREATE TYPE moods AS RANGE (subtype = mood);
        CREATE TYPE pair AS (m mood, n int);
        CREATE TABLE felt (id int PRIMARY KEY, m mood, d any_mood, l mood[], r moods, p pair);
        INSERT INTO felt VALUES (1, 'low', 'low', '{low,NULL,high}', '[low,high]', '(low,1)'),
            (2, 'high', 'high', '{}', 'empty', '(high,2)'), (3, NULL, NULL, NULL, NULL, NULL);
        CREATE TABLE keyless (m mood);
        INSERT INTO keyless VALUES ('low'), ('high'), ('other')",
    );
    let (base, first) = copy_base_and_begin_segment(&cluster, client);
    let mut client = connect(&cluster);
    for statement in [
        "UPDATE felt SET m = 'high', d = 'high', l = '{low}', r = '[low,low]', p = '(other,1)' WHERE id = 1",
        "DELETE FROM felt WHERE id = 2",
        "UPDATE keyless SET m = 'other' WHERE m = 'low'",
        "BEGIN; ALTER TYPE mood RENAME VALUE 'low' TO 'never'; ROLLBACK",
        "ALTER TYPE mood RENAME VALUE 'low' TO 'very low'",
        "ALTER TYPE mood RENAME VALUE 'high' TO 'low'",
        "INSERT INTO felt VALUES (4, 'low', 'very low', '{\"very low\"}', NULL, NULL)",
    ] {
        run(&mut client, statement);
    }
    drop(client);
    let wal = stop_and_collect_wal(&cluster, &first);
    cluster.start().unwrap();
    let mut client = connect(&cluster);
    for table in ["felt", "keyless"] {
        let rows = |more: &[&str]| rows_of(&wal, ("--base", &base), table, more);
        let after = contents(&mut client, table);
        let (undo, redo) = (rows(&["--undo"]), rows(&["--format", "sql"]));
        assert!(undo.code == 0 && undo.stdout.contains("-- Complete"), "{undo:?}");
        run(&mut client, &undo.stdout);
        let expected: &[&str] = match table {
            "felt" => &[
                r#"(1,"very low","very low","{""very low"",NULL,low}","[""very low"",low]","(""very low"",1)")"#,
                r#"(2,low,low,{},empty,"(low,2)")"#,
                "(3,,,,,)",
            ],
            _ => &[r#"("very low")"#, "(low)", "(other)"],
        };
        let mut found = contents(&mut client, table);
        found.sort();
        assert_eq!(found, expected, "{}", undo.stdout);
        run(&mut client, &redo.stdout);
        assert_eq!(contents(&mut client, table), after, "{}", redo.stdout);
    }
    // A change is printed with the labels of its time.
    let shown = lines(&rows_of(&wal, ("--base", &base), "felt", JSON));
    assert_eq!(shown[1]["before"]["m"], "high");
    Ok(())
}

/// Statements that cannot revert a change are omitted, and so are those that depend on them: for dropped
/// partitions, rows removed by a truncate, rows that cannot be inserted again. Columns other than those of an
/// unsupported type are set.
fn scripts_that_are_not_complete_can_be_run() -> Outcome {
    let (cluster, mut client) = server()?;
    run(
        &mut client,
        "CREATE TABLE parts (id int, region text) PARTITION BY LIST (region);
        CREATE TABLE parts_n PARTITION OF parts FOR VALUES IN ('north');
        CREATE TABLE parts_s PARTITION OF parts FOR VALUES IN ('south');
        INSERT INTO parts VALUES (1, 'north'), (2, 'south');
        CREATE TABLE emptied (id int PRIMARY KEY, v text);
        INSERT INTO emptied VALUES (0, 'old'), (9, 'deleted before');
        CREATE TABLE retyped (id int PRIMARY KEY, a int, v text);
        INSERT INTO retyped VALUES (1, 1, 'x'), (2, 2, 'y');
        CREATE TABLE keyless (a int, v text);
        INSERT INTO keyless VALUES (1, 'x'), (2, 'y');
        CREATE TABLE searched (id int PRIMARY KEY, q tsquery, n int);
        INSERT INTO searched VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 1)",
    );
    let (mut client, log) = log_after_base(&cluster, client);
    for statement in [
        "UPDATE parts SET id = id + 10",
        "DROP TABLE parts_n",
        "DELETE FROM parts",
        "INSERT INTO emptied VALUES (1, 'a')",
        "UPDATE emptied SET v = 'new' WHERE id = 0",
        "DELETE FROM emptied WHERE id = 9",
        "TRUNCATE emptied",
        "INSERT INTO emptied VALUES (2, 'b')",
        "UPDATE retyped SET v = 'yy' WHERE id = 2",
        "DELETE FROM retyped WHERE id = 2",
        "UPDATE retyped SET v = 'xx' WHERE id = 1",
        "ALTER TABLE retyped ALTER a TYPE text USING a::text",
        "UPDATE keyless SET v = 'yy' WHERE a = 2",
        "UPDATE keyless SET v = 'xx' WHERE a = 1",
        "DELETE FROM keyless WHERE a = 2",
        "ALTER TABLE keyless ALTER v TYPE bytea USING v::bytea",
        "UPDATE searched SET n = 2, q = 'aa' WHERE id = 1",
        "UPDATE searched SET n = 5 WHERE id = 2",
        "DELETE FROM searched WHERE id = 2",
        "INSERT INTO searched VALUES (4, 'd', 1)",
        "UPDATE searched SET q = 'dd', n = 9 WHERE id = 4",
    ] {
        run(&mut client, statement);
    }
    switch_segment(&mut client);
    let undo = |table: &str| log.rows(table, &["--undo"]);
    let later = "a later change of the row is not reverted";
    let found = run_incomplete(&mut client, &undo("parts"), "parts");
    let dropped = ("parts_n at ", "the rows that a drop removed are not in the WAL");
    assert_lines(&found, &[dropped, ("update of parts_n at ", "its table was dropped since")]);
    assert_eq!(contents(&mut client, "parts"), ["(2,south)"]);
    let found = run_incomplete(&mut client, &undo("emptied"), "emptied");
    let gone = "a truncate removed the row since";
    let truncate = ("emptied at ", "the rows that a truncate removed are not in the WAL");
    assert_lines(&found, &[truncate, ("update of emptied at ", gone), ("insert of emptied at ", gone)]);
    assert_eq!(contents(&mut client, "emptied"), ["(9,\"deleted before\")"]);
    let found = run_incomplete(&mut client, &undo("retyped"), "retyped");
    let delete = ("delete of retyped at ", "its type was changed since");
    let column = ("retyped at ", "rows that the script does not change keep converted values");
    assert_lines(&found, &[column, delete, ("update of retyped at ", later)]);
    assert_eq!(contents(&mut client, "retyped"), ["(1,1,x)"]);
    let found = run_incomplete(&mut client, &undo("keyless"), "keyless");
    assert_eq!(found.len(), 4, "{found:#?}");
    let found = run_incomplete(&mut client, &undo("searched"), "searched");
    let unread = "its type is not known, or it is no text in the database's encoding";
    let expected = [
        ("update of searched at ", unread),
        ("delete of searched at ", unread),
        ("update of searched at ", later),
        ("update of searched at ", unread),
    ];
    assert_lines(&found, &expected);
    assert_eq!(contents(&mut client, "searched"), ["(1,'aa',1)", "(3,'c',1)"]);
    Ok(())
}

/// VACUUM truncates a file without remaining rows, in a separate transaction. So does TRUNCATE of a table
/// created in the same transaction.
fn a_table_that_vacuum_empties_is_not_truncated() -> Outcome {
    let (cluster, mut client) = server()?;
    run(&mut client, "CREATE TABLE kept (id int PRIMARY KEY, v text); INSERT INTO kept VALUES (0, 'zero')");
    let (base, first) = copy_base_and_begin_segment(&cluster, client);
    let mut client = connect(&cluster);
    run(&mut client, "DELETE FROM kept");
    run(&mut client, "VACUUM (INDEX_CLEANUP on) kept");
    let size: i64 = client.query_one("SELECT pg_relation_size('kept')", &[]).unwrap().get(0);
    assert_eq!(size, 0);
    run(&mut client, "INSERT INTO kept VALUES (1, 'one')");
    let made = "BEGIN; CREATE TABLE made (id int); SAVEPOINT a; INSERT INTO made VALUES (1); RELEASE a;
        TRUNCATE made; INSERT INTO made VALUES (2); COMMIT";
    run(&mut client, made);
    drop(client);
    let wal = stop_and_collect_wal(&cluster, &first);
    let found = rows_of(&wal, ("--base", &base), "kept", JSON);
    assert_eq!((found.code, operations(&found)), (0, vec!["delete".to_owned(), "insert".to_owned()]));
    let script = rows_of(&wal, ("--base", &base), "kept", &["--undo"]);
    assert!(script.code == 0 && script.stdout.contains("-- Complete"), "{script:?}");
    let found = rows_of(&wal, ("--base", &base), "postgres.public.made", JSON);
    assert_eq!(operations(&found), ["insert", "truncate", "insert"], "{}", found.stderr);
    Ok(())
}

/// Such a server does not log rows inserted into a table that was created or truncated in the same
/// transaction. Everything else is logged.
fn what_a_server_under_minimal_does_not_log_is_told() -> Outcome {
    let settings = [("wal_level", "minimal"), ("max_wal_senders", "0"), ("wal_skip_threshold", "0")];
    let (cluster, mut client) = server_with(&settings)?;
    run(&mut client, "CREATE TABLE kept (id int PRIMARY KEY, v text); INSERT INTO kept VALUES (0, 'zero')");
    run(&mut client, "CREATE TABLE emptied (id int)");
    let (mut client, log) = log_after_base(&cluster, client);
    for statement in [
        "INSERT INTO kept VALUES (1, 'one')",
        "BEGIN; TRUNCATE emptied; INSERT INTO emptied VALUES (1); COMMIT",
        "BEGIN; TRUNCATE kept; ROLLBACK",
        "BEGIN; CREATE TABLE made (id int); INSERT INTO made VALUES (1); COMMIT",
    ] {
        run(&mut client, statement);
    }
    switch_segment(&mut client);
    let kept = log.rows("kept", &["--undo"]);
    assert!(kept.code == 0 && kept.stdout.contains("-- Complete"), "{kept:?}");
    for table in ["emptied", "postgres.public.made"] {
        let found = log.rows(table, JSON);
        assert!(found.code == 1 && found.stderr.contains("wal_level = minimal"), "{table}: {found:?}");
        assert_eq!(operations(&found)[0], "incomplete", "{table}");
        let script = log.rows(table, &["--undo"]);
        assert!(script.code == 1 && script.stdout.contains("-- NOT COMPLETE"), "{table}: {script:?}");
    }
    Ok(())
}

/// `ALTER TABLE` changes columns to types that do not fit all earlier values, and generated columns to
/// ordinary ones, whose values are set.
fn values_of_narrowed_types_are_not_set() -> Outcome {
    let (cluster, mut client) = server()?;
    run(
        &mut client,
        "CREATE TABLE narrowed (id int PRIMARY KEY, n numeric(10,2), w varchar(20), v text);
        INSERT INTO narrowed VALUES (1, 1.25, 'abc', 'a');
        CREATE TABLE computed (id int PRIMARY KEY, b int, g int GENERATED ALWAYS AS (b * 2) STORED);
        INSERT INTO computed VALUES (1, 5), (2, 6)",
    );
    let before = contents(&mut client, "computed");
    let (mut client, log) = log_after_base(&cluster, client);
    for statement in [
        "UPDATE narrowed SET n = 9.99, w = 'zzz', v = 'b'",
        "ALTER TABLE narrowed ALTER n TYPE numeric(10,1), ALTER w TYPE varchar(30)",
        "DELETE FROM computed WHERE id = 1",
        "UPDATE computed SET b = 7 WHERE id = 2",
        "ALTER TABLE computed ALTER g DROP EXPRESSION",
    ] {
        run(&mut client, statement);
    }
    switch_segment(&mut client);
    let undo = |table: &str| log.rows(table, &["--undo"]);
    let found = run_incomplete(&mut client, &undo("narrowed"), "narrowed");
    assert!(
        found.len() == 2 && found[1].contains("column n = '1.25': its type was changed since"),
        "{found:?}"
    );
    assert_eq!(contents(&mut client, "narrowed")[0].rsplit(',').next(), Some("a)"));
    // The rows are as before, and the column is an ordinary one.
    let script = undo("computed");
    let found = run_incomplete(&mut client, &script, "computed");
    assert_lines(&found, &[("computed at ", "DROP EXPRESSION g: the column stays an ordinary one")]);
    assert_eq!(contents(&mut client, "computed"), before, "{}", script.stdout);
    Ok(())
}
