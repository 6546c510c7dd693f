//! Random tables and histories. Each script is applied to the server: a `Complete` one must restore the table
//! exactly, and any other must name a statement of the history as its reason.
//!
//! `WALDEN_ROWS_TABLES` sets the number of tables (on one server per version), `WALDEN_ROWS_SEED` the first
//! seed.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use postgres::Client;
use walden_lab::{Cluster, StopMode};
use walden_testing::{Outcome, postgres};

use crate::material::{Run, cluster_that_keeps_wal, say, walden};

walden_testing::tests! {
    random_histories_are_reverted on [15, 18, 19],
}

/// Number of tables in a test, unless `WALDEN_ROWS_TABLES` is set.
const TABLES: u64 = 12;

/// SplitMix64, which yields the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Returns true with a probability of 1/`many`.
    fn is_one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// Types with values that PostgreSQL's operators do not distinguish, or stores in unusual ways. `@` in a name
/// is replaced by the table's number.
const TYPES: &[(&str, &[&str])] = &[
    ("int", &["1", "2", "-7"]),
    ("bigint", &["1", "9223372036854775807"]),
    ("bool", &["true", "false"]),
    ("numeric", &["1.5", "1.50", "'NaN'", "0", "0.000", "-1e30"]),
    ("numeric(10,2)", &["1.5", "1.234", "-12"]),
    ("float8", &["0", "'-0'", "'NaN'", "1e300", "0.1"]),
    ("float4", &["0", "'-0'", "1.1"]),
    ("text", &["''", "'a'", "'A'", "'a '", "'ä'", "E'\\\\\\n'", "repeat('long ', 900)"]),
    ("text COLLATE folded", &["'a'", "'A'", "'ä'", "'Ä'"]),
    ("varchar(6)", &["'a'", "'a  '", "'it''s'"]),
    ("bpchar", &["'x'", "'x  '", "' x'"]),
    ("char(5)", &["'x'", "'x  '", "''"]),
    ("\"char\"", &["'a'", "'b'"]),
    ("name", &["'n'", "'N'"]),
    ("bytea", &["'\\x00ff'", "''"]),
    ("interval", &["'1 mon'", "'30 days'", "'720:00:00'", "'-1 day +00:00:01.5'"]),
    ("interval(1)", &["'1.26 s'", "'1.3 s'"]),
    ("timestamp", &["'2024-02-29 13:00:00.123456'", "'infinity'"]),
    ("timestamp(3)", &["'2024-02-29 13:00:00.1236'", "'2024-02-29 13:00:00.124'", "'-infinity'"]),
    ("timestamptz(0)", &["'2024-02-29 13:00:00.5+02'", "'2024-02-29 13:00:00+01'"]),
    ("time(2)", &["'12:00:00.126'", "'24:00:00'"]),
    ("timetz", &["'12:00:00+01'", "'11:00:00+00'"]),
    ("date", &["'2024-02-29'", "'infinity'"]),
    ("json", &["'{\"a\": 1}'", "'{\"a\":1}'"]),
    ("jsonb", &["'{\"a\": 1.0}'", "'{\"a\": 1.00}'", "'{\"a\": null}'"]),
    ("xml", &["'<a/>'", "'<a></a>'"]),
    ("bit(4)", &["B'1010'", "B'0000'"]),
    ("varbit", &["B'10'", "B'100'", "B''"]),
    ("varbit(6)", &["B'10'", "B'100'"]),
    ("inet", &["'10.0.0.1'", "'10.0.0.1/8'"]),
    ("money", &["1.5", "-2"]),
    ("point", &["'(0,0)'", "'(-0,0)'", "'(0.0000001,0)'"]),
    ("tsvector", &["'a:1A b'", "'a:1 b'"]),
    ("int4range", &["'[1,3)'", "'empty'", "'[,3)'"]),
    ("numrange", &["'[1.0,2)'", "'[1.00,2)'"]),
    ("int4multirange", &["'{[1,2),[5,7)}'", "'{}'"]),
    ("regclass", &["'pg_class'", "'pg_type'"]),
    ("int[]", &["'{1,2}'", "'[0:1]={1,2}'", "'{}'", "'{NULL}'"]),
    ("text[] COLLATE folded", &["'{a}'", "'{A}'", "'{NULL}'", "'{\"NULL\"}'"]),
    ("bpchar[]", &["'{x}'", "'{\"x  \"}'"]),
    ("regclass[]", &["'{pg_class}'", "'{pg_type,NULL}'"]),
    ("named@", &["ROW('pg_class', 1.5)", "ROW('pg_class', 1.50)", "ROW(NULL, NULL)"]),
    ("mood@", &["'sad'", "'ok'"]),
    ("mood@[]", &["'{sad}'", "'{sad,NULL}'"]),
    ("mood_domain@", &["'sad'", "'ok'"]),
    ("blank@", &["'x'", "'x  '"]),
    ("one@", &["ROW(NULL)", "ROW(1)"]),
    ("one@[]", &["'{NULL}'", "ARRAY[ROW(NULL)]::one@[]", "ARRAY[ROW(1), NULL]::one@[]"]),
    ("pair@", &["ROW(NULL, NULL)", "ROW('x', 1.5)", "ROW('x  ', 1.50)", "ROW('x', 1.50)"]),
    (
        "nested@",
        &[
            "ROW(NULL, NULL)",
            "ROW(ROW(NULL), NULL)",
            "ROW(ROW(NULL), ROW(NULL, NULL))",
            "ROW(NULL, ROW('', 0.0))",
        ],
    ),
    ("pair_domain@", &["ROW(NULL, NULL)", "ROW('x', 1.5)", "ROW('x ', 1.5)"]),
];

/// Creates the types that a table's columns use.
const MADE: &str = "
    CREATE TYPE mood@ AS ENUM ('sad', 'ok');
    CREATE DOMAIN mood_domain@ AS mood@;
    CREATE DOMAIN blank@ AS bpchar;
    CREATE TYPE one@ AS (x int);
    CREATE TYPE pair@ AS (a bpchar, b numeric);
    CREATE TYPE named@ AS (c regclass, n numeric);
    CREATE TYPE nested@ AS (o one@, p pair@);
    CREATE DOMAIN pair_domain@ AS pair@;";

/// Primary keys: column definitions, and column names.
const KEYS: &[(&str, &str)] = &[
    ("", ""),
    ("", ""),
    ("id int", "id"),
    ("id int", "id"),
    ("id int GENERATED BY DEFAULT AS IDENTITY", "id"),
    ("id text", "id"),
    ("id numeric", "id"),
    ("id text COLLATE folded", "id"),
    ("id int, id2 text", "id, id2"),
    ("id interval", "id"),
    ("id bpchar", "id"),
];

/// Statements that no script can revert, and for each, parts of valid reasons in a script.
const REASONS: &[(&str, &[&str])] = &[
    ("TRUNCATE", &["a truncate removed"]),
    ("ADD COLUMN", &["ADD COLUMN", "others were added since"]),
    ("DROP COLUMN", &["DROP COLUMN", "the column was dropped since"]),
    ("TYPE", &["a change of the type of column", "its type was changed since", "has most likely recomputed"]),
    ("ATTRIBUTE", &["a change of the type of column", "attributes of its composite type"]),
    ("UNLOGGED", &["while it was unlogged", "is unlogged at"]),
    ("DROP EXPRESSION", &["DROP EXPRESSION"]),
];
/// Reasons that follow from other reasons.
const FOLLOWING: &[&str] =
    &["a later change of the row is not reverted", "a row that has its key is left in the table"];

struct Column {
    name: String,
    definition: usize,
    is_there: bool,
}

/// A table and its statements.
struct History {
    random: Random,
    number: u64,
    name: String,
    key: &'static str,
    columns: Vec<Column>,
    /// Virtual columns, which have no values.
    computed: Vec<String>,
    has_virtual_columns: bool,
    statements: Vec<String>,
}

impl History {
    fn new(seed: u64, number: u64, version: u32) -> History {
        let mut random = Random(seed);
        let is_bare = random.is_one_in(5);
        let (key_columns, key) = if is_bare { ("", "") } else { *random.pick(KEYS) };
        let name = format!("t{number}");
        let mut of = History {
            random,
            number,
            name,
            key,
            columns: Vec::new(),
            computed: Vec::new(),
            has_virtual_columns: version >= 18,
            statements: Vec::new(),
        };
        let mut columns: Vec<String> = Vec::new();
        if !key.is_empty() {
            columns.push(key_columns.to_owned());
        }
        let count = if is_bare { 0 } else { 1 + of.random.below(5) };
        for _ in 0..count {
            columns.push(of.new_column());
        }
        if of.has_virtual_columns && of.random.is_one_in(4) {
            columns.push(of.new_virtual_column());
        }
        if !key.is_empty() && of.random.is_one_in(3) {
            columns.push("generated text GENERATED ALWAYS AS (left('abc', 2)) STORED".to_owned());
        }
        if !is_bare && of.random.is_one_in(4) {
            columns.push("counted int GENERATED ALWAYS AS IDENTITY".to_owned());
        }
        if !key.is_empty() {
            columns.push(format!("PRIMARY KEY ({key})"));
        }
        let made = format!("{MADE} CREATE TABLE t@ ({}) WITH (fillfactor = 50)", columns.join(", "));
        of.statements.push(made.replace('@', &number.to_string()));
        of
    }

    /// Returns the definition of an additional column.
    fn new_column(&mut self) -> String {
        let definition = self.random.below(TYPES.len());
        let name = format!("c{}", self.columns.len());
        let text = format!("{name} {}", TYPES[definition].0);
        self.columns.push(Column { name, definition, is_there: true });
        text.replace('@', &self.number.to_string())
    }

    fn new_virtual_column(&mut self) -> String {
        let name = format!("v{}", self.statements.len());
        let text = format!("{name} int GENERATED ALWAYS AS (1 + 1) VIRTUAL");
        self.computed.push(name);
        text
    }

    fn value(&mut self, definition: usize) -> String {
        if self.random.is_one_in(5) {
            return "NULL".to_owned();
        }
        self.random.pick(TYPES[definition].1).replace('@', &self.number.to_string())
    }

    fn key_value(&mut self, name: &str) -> String {
        let number = self.random.below(30);
        match name {
            "id2" => format!("'k{}'", self.random.below(3)),
            // Equal keys that are printed differently, or that a cast makes equal.
            _ if self.random.is_one_in(4) => format!("'{number}.0'"),
            _ => format!("'{number}'"),
        }
    }

    fn insert(&mut self) -> String {
        let mut names: Vec<String> =
            self.key.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let keys = names.clone();
        let there: Vec<(String, usize)> = self.there();
        names.extend(there.iter().map(|(name, _)| name.clone()));
        let mut rows = String::new();
        for row in 0..1 + self.random.below(4) {
            let mut values: Vec<String> = keys.iter().map(|name| self.key_value(name)).collect();
            values.extend(there.iter().map(|(_, definition)| self.value(*definition)));
            let _ = write!(rows, "{}({})", if row == 0 { "" } else { ", " }, values.join(", "));
        }
        let skip = if self.key.is_empty() { "" } else { " ON CONFLICT DO NOTHING" };
        match names.is_empty() {
            true => format!("INSERT INTO {} DEFAULT VALUES", self.name),
            false => format!("INSERT INTO {} ({}) VALUES {rows}{skip}", self.name, names.join(", ")),
        }
    }

    fn there(&self) -> Vec<(String, usize)> {
        let there = self.columns.iter().filter(|column| column.is_there);
        there.map(|column| (column.name.clone(), column.definition)).collect()
    }

    /// Returns a condition that selects some rows by their TIDs.
    fn some(&mut self) -> String {
        let (skip, count) = (self.random.below(12), 1 + self.random.below(4));
        format!("ctid IN (SELECT ctid FROM {} ORDER BY ctid OFFSET {skip} LIMIT {count})", self.name)
    }

    fn change(&mut self) -> String {
        let there = self.there();
        match self.random.below(10) {
            0..=3 => self.insert(),
            4..=5 => {
                let some = self.some();
                format!("DELETE FROM {} WHERE {some}", self.name)
            }
            6 if self.key == "id" => {
                let value = self.key_value("id");
                let (skip, name) = (self.random.below(12), &self.name);
                format!(
                    "UPDATE {name} SET id = {value} WHERE ctid IN (SELECT ctid FROM {name} OFFSET {skip} LIMIT 1)"
                )
            }
            _ if there.is_empty() => self.insert(),
            _ => {
                let (name, definition) = self.random.pick(&there).clone();
                let (value, some) = (self.value(definition), self.some());
                format!("UPDATE {} SET {name} = {value} WHERE {some}", self.name)
            }
        }
    }

    /// Adds a statement, or a few in a transaction. Those that fail are rolled back.
    fn step(&mut self, with_ddl: bool) {
        let text = match self.random.below(12) {
            0 => format!("BEGIN; {}; {}; ROLLBACK", self.change(), self.change()),
            1 => format!(
                "BEGIN; {}; SAVEPOINT a; {}; ROLLBACK TO a; SAVEPOINT b; {}; RELEASE b; {}; COMMIT",
                self.change(),
                self.change(),
                self.change(),
                self.change()
            ),
            2 if with_ddl => self.ddl(),
            3 => format!("VACUUM {}", self.name),
            _ => self.change(),
        };
        self.statements.push(text);
    }

    fn ddl(&mut self) -> String {
        let (name, number) = (self.name.clone(), self.number);
        let there = self.there();
        match self.random.below(16) {
            0 | 1 => {
                let column = self.new_column();
                let definition = self.columns.last().map_or(0, |column| column.definition);
                let value = self.value(definition);
                format!("ALTER TABLE {name} ADD COLUMN {column} DEFAULT {value}")
            }
            2 if there.len() > 1 => {
                let (column, _) = self.random.pick(&there).clone();
                self.columns.iter_mut().filter(|of| of.name == column).for_each(|of| of.is_there = false);
                format!("ALTER TABLE {name} DROP COLUMN {column}")
            }
            3 => format!("TRUNCATE {name}"),
            4 => format!("VACUUM FULL {name}"),
            5 if !there.is_empty() => {
                let (column, _) = self.random.pick(&there).clone();
                let other = self.random.below(TYPES.len());
                let made = TYPES[other].0.replace('@', &number.to_string());
                // Most of these fail.
                format!("ALTER TABLE {name} ALTER COLUMN {column} TYPE {made}")
            }
            6 => format!("ALTER TYPE one{number} ADD ATTRIBUTE y{} int", self.statements.len()),
            7 => format!("ALTER TABLE {name} SET UNLOGGED"),
            8 => format!("ALTER TABLE {name} SET LOGGED"),
            9 => format!("ALTER TYPE mood{number} ADD VALUE 'm{}'", self.statements.len()),
            10 => format!("BEGIN; ALTER TABLE {name} ADD COLUMN never int; {}; ROLLBACK", self.change()),
            11 | 14 if self.has_virtual_columns => {
                format!("ALTER TABLE {name} ADD COLUMN {}", self.new_virtual_column())
            }
            12 if !self.computed.is_empty() => {
                let column = self.computed.remove(0);
                format!("ALTER TABLE {name} DROP COLUMN {column}")
            }
            // Most tables have no such column.
            13 => format!("ALTER TABLE {name} ALTER COLUMN generated DROP EXPRESSION"),
            _ => self.change(),
        }
    }
}

/// Returns the rows of a table as text, sorted.
fn contents(client: &mut Client, table: &str) -> Vec<String> {
    let query = format!("SELECT whole::text FROM {table} whole ORDER BY whole::text COLLATE \"C\"");
    client.query(&query, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

fn connect(cluster: &Cluster) -> Client {
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("SET timezone = 'UTC'; SET allow_in_place_tablespaces = on").unwrap();
    client
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A point in a table's history: its LSN, and the table's rows.
struct Moment {
    lsn: String,
    rows: Vec<String>,
    /// Number of statements run before.
    statements: usize,
}

/// Runs statements of a history. Failed statements change nothing.
fn run_steps(client: &mut Client, history: &mut History, from: usize) {
    for statement in &mut history.statements[from..] {
        if client.batch_execute(statement).is_err() {
            client.batch_execute("ROLLBACK").unwrap();
            statement.insert_str(0, "-- failed: ");
        }
    }
}

fn moment(client: &mut Client, history: &History) -> Moment {
    let lsn = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
    Moment { lsn, rows: contents(client, &history.name), statements: history.statements.len() }
}

fn undo(wal: &Path, base: &Path, table: &str, bounds: &[&str]) -> Run {
    let (wal, base) = (wal.to_str().unwrap(), base.to_str().unwrap());
    let relation = format!("public.{table}");
    walden(&[&["rows", wal, "--base", base, "--relation", &relation, "--undo"], bounds].concat())
}

/// Applies a script that reverts a table to a moment. Returns whether it is complete.
fn judge(client: &mut Client, script: &Run, history: &History, to: &Moment) -> Result<bool, String> {
    let failed = |what: &str| {
        let (name, statements) = (&history.name, history.statements.join(";\n"));
        Err(format!("{name}: {what}\n{statements}\n{}\n{}", script.stdout, script.stderr))
    };
    if let Err(error) = client.batch_execute(&script.stdout) {
        client.batch_execute("ROLLBACK").unwrap();
        // Changes of an unlogged table are unknown: the script finds other rows, and changes nothing.
        if script.code == 1 && script.stdout.contains("was unlogged, from here on") {
            return Ok(false);
        }
        return failed(&format!("{error:?}"));
    }
    let is_complete = script.stdout.contains("\n-- Complete: ");
    if script.code != i32::from(!is_complete) {
        return failed("another exit status than the script says");
    }
    if is_complete {
        if did("DROP EXPRESSION", history, to) {
            return failed("it does not report that a column is no longer generated");
        }
        let rows = contents(client, &history.name);
        return match rows == to.rows {
            true => Ok(true),
            false => failed(&format!("{rows:#?}\nexpected {:#?}", to.rows)),
        };
    }
    let reasons = script
        .stdout
        .lines()
        .filter(|line| line.starts_with("-- NOT REVERTED") || line.starts_with("-- Changes may be missing"));
    let reasons: Vec<&str> = reasons.collect();
    if reasons.is_empty() || !script.stdout.contains("-- NOT COMPLETE") {
        return failed("it has no reason");
    }
    match reasons.into_iter().find(|reason| !is_true(reason, history, to)) {
        Some(reason) => failed(&format!("not true: {reason}")),
        None => Ok(false),
    }
}

/// Returns whether a statement after a moment in the history explains a reason.
fn is_true(reason: &str, history: &History, to: &Moment) -> bool {
    let because = |(what, parts): &(&str, &[&str])| {
        did(what, history, to) && parts.iter().any(|part| reason.contains(part))
    };
    REASONS.iter().any(because) || FOLLOWING.iter().any(|part| reason.contains(part))
}

/// Returns whether a statement after a moment in the history contains these words.
fn did(what: &str, history: &History, to: &Moment) -> bool {
    let done = history.statements.iter().enumerate();
    let mut done = done.filter(|(_, statement)| !statement.starts_with("--") && statement.contains(what));
    // A table that became unlogged before the moment stays unlogged.
    done.any(|(index, _)| index >= to.statements || what == "UNLOGGED")
}

/// A server with the tables, a base backup, and the start of each history.
struct Ready {
    cluster: Cluster,
    base: PathBuf,
    histories: Vec<(History, Moment)>,
}

fn ready(version: u32, seed: u64) -> Result<Ready, walden_testing::Missing> {
    let cluster = cluster_that_keeps_wal(postgres(version)?).start().unwrap();
    let mut client = connect(&cluster);
    let folded =
        "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
    // For a server without ICU.
    let plain = "CREATE COLLATION folded FROM \"C\"";
    client.batch_execute(folded).or_else(|_| client.batch_execute(plain)).unwrap();
    let count = from_environment("WALDEN_ROWS_TABLES", TABLES);
    let mut histories: Vec<History> =
        (0..count).map(|number| History::new(seed.wrapping_add(number), number, version)).collect();
    for history in &mut histories {
        client.batch_execute(&history.statements[0]).unwrap();
        for _ in 0..6 {
            let insert = history.insert();
            history.statements.push(insert);
        }
        run_steps(&mut client, history, 1);
    }
    client.batch_execute("CHECKPOINT").unwrap();
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();
    let base = cluster.dir().join("backup");
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    let mut client = connect(&cluster);
    let histories = histories.into_iter().map(|history| {
        let moment = moment(&mut client, &history);
        (history, moment)
    });
    let histories = histories.collect();
    Ok(Ready { cluster, base, histories })
}

fn random_histories_are_reverted(version: u32) -> Outcome {
    let seed = from_environment("WALDEN_ROWS_SEED", 1);
    let Ready { cluster, base, histories } = ready(version, seed)?;
    let mut client = connect(&cluster);
    let mut complete = 0;
    let mut worked = Vec::new();
    for (index, (mut history, start)) in histories.into_iter().enumerate() {
        let with_ddl = index % 2 == 0;
        let steps = |client: &mut Client, history: &mut History| {
            let from = history.statements.len();
            (0..14).for_each(|_| history.step(with_ddl));
            run_steps(client, history, from);
        };
        steps(&mut client, &mut history);
        let middle = moment(&mut client, &history);
        steps(&mut client, &mut history);
        worked.push((history, start, middle));
    }
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    let wal = cluster.dir().join("log");
    cluster.collect_wal("000000010000000000000001", &wal).unwrap();
    let count = worked.len();
    let mut failures = Vec::new();
    for (history, start, middle) in worked {
        let script = undo(&wal, &base, &history.name, &["--from", &middle.lsn]);
        match judge(&mut client, &script, &history, &middle) {
            Ok(true) => complete += 1,
            Ok(false) => continue,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        }
        let has_changed_names = history.statements[start.statements..]
            .iter()
            .any(|statement| !statement.starts_with("--") && statement.contains("ALTER"));
        if !has_changed_names {
            let script = undo(&wal, &base, &history.name, &["--to", &middle.lsn]);
            failures.extend(judge(&mut client, &script, &history, &start).err());
        }
    }
    say(&format!("{complete} of {count} scripts of {version} are complete, from seed {seed} on"));
    assert!(failures.is_empty(), "{} of {count} failed:\n{}", failures.len(), failures.join("\n\n"));
    assert!(complete * 3 >= count, "{complete} of {count}");
    Ok(())
}
