//! Schemas that a seed selects: names, types, keys, and the statements that fill and change their tables.

use std::collections::BTreeSet;

use crate::data::Random;

const SUBJECTS: &[&str] = &[
    "parcel", "ledger", "ride", "patient", "beacon", "auction", "tariff", "voucher", "cargo", "shift",
    "loan", "claim", "badge", "crate", "route", "meter", "recipe", "exam", "lease", "pallet", "tenant",
    "reactor", "festival", "survey", "kunde", "pedido", "facture", "turbine", "harvest", "kiosk",
];
const ASPECTS: &[&str] = &[
    "entry",
    "position",
    "history",
    "state",
    "detail",
    "mapping",
    "reference",
    "snapshot",
    "request",
    "event",
    "profile",
    "attempt",
    "version",
    "balance",
    "note",
    "schedule",
];
const COLUMNS: &[&str] = &[
    "label",
    "origin",
    "weight",
    "remark",
    "valid_until",
    "payload",
    "score",
    "lang",
    "zone",
    "checksum",
    "attrs",
    "amount",
    "device",
    "contact",
    "flags",
    "city",
    "serial",
    "margin",
    "channel",
    "quota",
];

/// Types of columns that may have an index in addition to those of the culprit.
const INDEXED: &[&str] = &["numeric(12,2)", "timestamp", "inet", "double precision", "date", "varchar(200)"];

/// How the names of a schema look.
#[derive(Debug, Clone, Copy)]
enum Style {
    Snake,
    Prefixed,
    Camel,
    Abbreviated,
}

/// Draws the selection of a seed. Both runs of a seed draw the same numbers, so that they differ only by the
/// remedy.
pub(super) struct Maker {
    random: Random,
    /// Whether the remedy is applied.
    pub is_fixed: bool,
    /// Sessions of the culprit's work.
    pub sessions: u64,
    style: Style,
    schema: Option<String>,
    used: BTreeSet<String>,
}

/// The type of a primary key.
#[derive(Debug, Clone, Copy)]
enum Key {
    Int,
    Bigint,
    Text,
}

/// A column with an expression of its value, in which `$g` is the row's number.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub name: String,
    kind: &'static str,
    value: String,
}

/// A table that a seed has described.
#[derive(Debug, Clone)]
pub(super) struct Table {
    /// Name of the table in SQL.
    pub sql: String,
    /// Name of the table without schema and quotation marks.
    pub bare: String,
    /// Key column of the table.
    pub key: String,
    /// A number that updates change.
    pub number: String,
    /// A time, which ascends with the key.
    pub time: String,
    /// Other columns of the table.
    pub columns: Vec<Column>,
    /// The name of an index of one of these, which queries use.
    extra: Option<(String, String)>,
    /// The names of its partitions in SQL.
    parts: Vec<String>,
    /// Its rows after [`Table::create`].
    pub rows: u64,
    /// Rows that are written densely if `None`.
    pub fillfactor: Option<u64>,
    /// The clause after the columns, such as `PARTITION BY`.
    pub partitioned: String,
    /// `UNLOGGED`, or nothing.
    pub persistence: &'static str,
    key_kind: Key,
}

impl Maker {
    pub fn new(seed: u64, is_fixed: bool) -> Maker {
        let mut random = Random::new(seed, 1);
        let style = match random.below(4) {
            0 => Style::Snake,
            1 => Style::Prefixed,
            2 => Style::Camel,
            _ => Style::Abbreviated,
        };
        let sessions = 1 + random.below(3);
        let mut maker = Maker { random, is_fixed, sessions, style, schema: None, used: BTreeSet::new() };
        if maker.chance(50) {
            maker.schema = Some(maker.name());
        }
        maker
    }

    /// Returns statements that must come before all others.
    pub fn prepare(&self) -> Vec<String> {
        self.schema.iter().map(|schema| format!("CREATE SCHEMA {}", quote(schema))).collect()
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.random.chance(percent)
    }

    pub fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        self.random.pick(of)
    }

    /// Returns one of two texts, the second one if the remedy is applied.
    pub fn fix<'a>(&self, culprit: &'a str, remedy: &'a str) -> &'a str {
        if self.is_fixed { remedy } else { culprit }
    }

    /// Returns a number within 30 % of a typical one.
    pub fn size(&mut self, typical: u64) -> u64 {
        typical * (70 + self.below(61)) / 100
    }

    /// Returns a new name in the schema's style, without quotation marks.
    pub fn name(&mut self) -> String {
        loop {
            let (subject, aspect) = (self.random.pick(SUBJECTS), self.random.pick(ASPECTS));
            let name = match self.style {
                Style::Snake => format!("{subject}_{aspect}"),
                Style::Prefixed => format!("tb_{subject}_{aspect}s"),
                Style::Camel => capital(subject) + &capital(aspect),
                Style::Abbreviated => {
                    format!("{}{}{}", &subject[..3], &aspect[..3], 10 + self.random.below(90))
                }
            };
            if self.used.insert(name.to_lowercase()) {
                return name;
            }
        }
    }

    /// Returns a name with the schema, as SQL, and the name alone.
    pub fn qualified(&mut self) -> (String, String) {
        let bare = self.name();
        let sql = match &self.schema {
            Some(schema) => format!("{}.{}", quote(schema), quote(&bare)),
            None => quote(&bare),
        };
        (sql, bare)
    }

    /// Describes a table with about `row_bytes` bytes in each row.
    pub fn table(&mut self, rows: u64, row_bytes: u64) -> Table {
        let (sql, bare) = self.qualified();
        let key_kind = match self.below(3) {
            0 => Key::Int,
            1 => Key::Bigint,
            _ => Key::Text,
        };
        let key = self.pick(&["id", "code", "nr", "pk"]).to_owned();
        let number = self.pick(&["hits", "stock", "revision", "tries"]).to_owned();
        let time = self.pick(&["created_at", "ts", "moment"]).to_owned();
        let columns = self.columns(row_bytes);
        let extra =
            columns.iter().find(|column| INDEXED.contains(&column.kind)).map(|column| column.name.clone());
        let extra = extra.filter(|_| self.chance(40)).map(|column| (self.name(), column));
        Table {
            sql,
            bare,
            key,
            number,
            time,
            columns,
            extra,
            parts: Vec::new(),
            rows: self.size(rows),
            fillfactor: None,
            partitioned: String::new(),
            persistence: "",
            key_kind,
        }
    }

    fn columns(&mut self, row_bytes: u64) -> Vec<Column> {
        let mut columns: Vec<Column> = Vec::new();
        let mut bytes = 24;
        while bytes < row_bytes {
            let left = row_bytes - bytes;
            let (kind, value, size) = self.content(left);
            bytes += size;
            let name = self.pick(COLUMNS);
            let count = columns.iter().filter(|one| one.name.starts_with(name)).count();
            let name = if count == 0 { name.to_owned() } else { format!("{name}_{count}") };
            columns.push(Column { name, kind, value });
        }
        columns
    }

    /// Returns a type, an expression of a value, and about how many bytes that has.
    fn content(&mut self, left: u64) -> (&'static str, String, u64) {
        if left > 160 {
            let parts = (left / 64).clamp(2, 400);
            return ("text", random_text(parts), parts * 64);
        }
        match self.below(10) {
            0 => ("numeric(12,2)", "($g * 37 % 100003) / 100.0".into(), 8),
            1 => ("timestamp", "timestamp '2024-02-29' + $g * interval '41 seconds'".into(), 8),
            2 => (
                "jsonb",
                "jsonb_build_object('k', $g % 501, 'ref', to_hex($g * 40503 % 1000003), 'ok', $g % 3 = 0)"
                    .into(),
                60,
            ),
            3 => ("inet", "inet '10.0.0.0' + $g % 65521".into(), 12),
            4 => ("int[]", "ARRAY[$g % 1009, $g % 17, $g % 251]::int[]".into(), 36),
            5 => ("bytea", "sha256(convert_to(($g)::text, 'UTF8'))".into(), 36),
            6 => ("double precision", "sqrt($g)".into(), 8),
            7 => ("date", "date '2020-01-01' + ($g % 2500)::int".into(), 4),
            8 => (
                "varchar(200)",
                format!("'{} ' || $g % 977 || ' {}'", self.random.word(), self.random.word()),
                20,
            ),
            _ => ("text", random_text(1), 64),
        }
    }

    /// Divides some tables into partitions by a hash of their key.
    pub fn spread(&mut self, mut table: Table) -> Table {
        let (is_spread, count) = (self.chance(30), 3 + self.below(12));
        if is_spread {
            let schema = self.schema.as_ref().map_or_else(String::new, |schema| quote(schema) + ".");
            table.parts =
                (0..count).map(|at| schema.clone() + &quote(&format!("{}_p{at}", table.bare))).collect();
        }
        table
    }

    /// Describes an index of a table.
    pub fn index(&mut self, table: &Table, definition: &str) -> Index {
        let bare = self.name();
        let sql = match &self.schema {
            Some(schema) => format!("{}.{}", quote(schema), quote(&bare)),
            None => quote(&bare),
        };
        let create = format!("CREATE INDEX {} ON {} {definition}", quote(&bare), table.sql);
        Index { sql, bare, create }
    }

    /// Returns a script for each session: loops that run `body` so often in all, in transactions of
    /// `per_commit`. `$i` is the number of the repetition from 0 on, and `$row` one of the rows from 1 to
    /// `rows`, which no other session changes.
    pub fn work(&mut self, total: u64, per_commit: u64, rows: u64, body: &str) -> Vec<Vec<String>> {
        self.work_in(1, total, per_commit, rows, body)
    }

    /// Same as [`Maker::work`], with `parts` scripts for each session.
    pub fn work_in(
        &mut self,
        parts: u64,
        total: u64,
        per_commit: u64,
        rows: u64,
        body: &str,
    ) -> Vec<Vec<String>> {
        let sessions = self.sessions;
        let each = total / sessions;
        let own_rows = (rows / sessions).max(1);
        // A prime number that does not divide the number of rows, so that the work reaches all of them.
        let primes = [7919, 6007, 10007, 4001, 8191];
        let first = self.below(primes.len() as u64) as usize;
        let step =
            primes.iter().cycle().skip(first).find(|prime| !own_rows.is_multiple_of(**prime)).unwrap_or(&1);
        // A plan that was made while a table was empty must not scan it for each row later.
        let script = |session: u64, part: u64| {
            let body = body
                .replace(
                    "$row",
                    &format!("(1 + {session} + {sessions} * ((n::bigint * {step}) % {own_rows}))"),
                )
                .replace("$i", &format!("({session} + {sessions} * n::bigint)"))
                .replace("$s", &session.to_string());
            let (first, last) = (part * each / parts, (part + 1) * each / parts);
            format!(
                "DO $work$ BEGIN PERFORM set_config('enable_seqscan', 'off', false); FOR n IN {first}..{last} - 1 LOOP {body}; \
                 IF n % {per_commit} = {per_commit} - 1 THEN COMMIT; END IF; END LOOP; END $work$"
            )
        };
        (0..sessions).map(|session| (0..parts).map(|part| script(session, part)).collect()).collect()
    }
}

/// An index that a seed has described.
#[derive(Debug, Clone)]
pub(super) struct Index {
    pub sql: String,
    pub bare: String,
    pub create: String,
}

impl Table {
    /// Returns the statement that creates it, without rows.
    pub fn definition(&self) -> String {
        let kind = self.key_type();
        let mut text = format!(
            "CREATE {} TABLE {} ({} {kind} PRIMARY KEY, {} int NOT NULL, {} timestamptz NOT NULL",
            self.persistence, self.sql, self.key, self.number, self.time
        );
        for column in &self.columns {
            text += &format!(", {} {}", column.name, column.kind);
        }
        text += ") ";
        text += &self.partitioned;
        match self.parts.is_empty() {
            true => text + &self.options(),
            false => text + &format!("PARTITION BY HASH ({})", self.key),
        }
    }

    fn options(&self) -> String {
        self.fillfactor.map_or_else(String::new, |fillfactor| format!(" WITH (fillfactor = {fillfactor})"))
    }

    /// Returns the statements that create its partitions.
    pub fn partitions(&self) -> Vec<String> {
        let create = |(at, part): (usize, &String)| {
            format!(
                "CREATE {} TABLE {part} PARTITION OF {} FOR VALUES WITH (modulus {}, remainder {at}){}",
                self.persistence,
                self.sql,
                self.parts.len(),
                self.options()
            )
        };
        self.parts.iter().enumerate().map(create).collect()
    }

    /// Returns the names that a finding about it may contain; the last one is the start of those of its
    /// partitions and their indexes.
    pub fn objects(&self) -> Vec<String> {
        let parts = (!self.parts.is_empty()).then(|| format!("{}_p*", self.bare));
        std::iter::once(self.bare.clone()).chain(parts).collect()
    }

    /// Returns the same for an index of it.
    pub fn objects_of(&self, index: &str) -> Vec<String> {
        let parts = (!self.parts.is_empty()).then(|| format!("{}_p*", self.bare));
        std::iter::once(index.to_owned()).chain(parts).collect()
    }

    /// Returns the type of its key.
    pub fn key_type(&self) -> &'static str {
        match self.key_kind {
            Key::Int => "int",
            Key::Bigint => "bigint",
            Key::Text => "text",
        }
    }

    /// Returns the statements that create and fill it.
    pub fn create(&self) -> Vec<String> {
        let mut statements = vec![self.definition()];
        statements.extend(self.partitions());
        statements.push(self.fill(1, self.rows));
        if let Some((index, column)) = &self.extra {
            statements.push(format!("CREATE INDEX {} ON {} ({column})", quote(index), self.sql));
            statements.push(self.use_index(&format!("{column} = (SELECT max({column}) FROM {})", self.sql)));
        }
        statements
    }

    pub fn with_fillfactor(mut self, fillfactor: u64) -> Table {
        self.fillfactor = Some(fillfactor);
        self
    }

    /// Returns the key of the row with this number, an expression.
    pub fn key_of(&self, number: &str) -> String {
        match self.key_kind {
            Key::Int => format!("({number})::int"),
            Key::Bigint => format!("({number})::bigint"),
            Key::Text => format!("'K' || lpad(({number})::text, 9, '0')"),
        }
    }

    /// Returns a condition for the row with this number.
    pub fn is(&self, number: &str) -> String {
        format!("{} = {}", self.key, self.key_of(number))
    }

    /// Returns a condition for the rows from one number to another.
    pub fn between(&self, first: &str, last: &str) -> String {
        format!("{} BETWEEN {} AND {}", self.key, self.key_of(first), self.key_of(last))
    }

    /// Returns the values of a row, with its number for the key.
    pub fn values(&self, number: &str) -> String {
        self.values_with(&self.key_of(number), number)
    }

    /// Returns the values of a row with a key of the caller.
    pub fn values_with(&self, key: &str, number: &str) -> String {
        let mut text = format!("{key}, 0, timestamptz '2025-05-05' + ({number}) * interval '3 seconds'");
        for column in &self.columns {
            text += ", ";
            text += &column.value.replace("$g", &format!("({number})::bigint"));
        }
        text
    }

    /// Returns the statement that inserts a row with this number.
    pub fn insert(&self, number: &str) -> String {
        format!("INSERT INTO {} VALUES ({})", self.sql, self.values(number))
    }

    /// Returns the statement that inserts the rows with these numbers.
    pub fn fill(&self, first: u64, last: u64) -> String {
        format!(
            "INSERT INTO {} SELECT {} FROM generate_series({first}::bigint, {last}) g",
            self.sql,
            self.values("g")
        )
    }

    /// Returns the statements that write its rows to a file, and empty it.
    pub fn write_file(&self) -> Vec<String> {
        vec![format!("COPY (SELECT * FROM {}) TO '$file'", self.sql), format!("TRUNCATE {}", self.sql)]
    }

    /// Returns the statement that loads the rows of [`Table::write_file`].
    pub fn copy_file(&self) -> String {
        format!("COPY {} FROM '$file'", self.sql)
    }

    /// Returns the statement that adds to the number of a row.
    pub fn update(&self, number: &str) -> String {
        let column = &self.number;
        format!("UPDATE {} SET {column} = {column} + 1 WHERE {}", self.sql, self.is(number))
    }

    /// Returns a script that uses an index, so that the statistics count a scan of it.
    pub fn use_index(&self, condition: &str) -> String {
        format!(
            "SET enable_seqscan = off; SELECT count(*) FROM {} WHERE {condition}; RESET enable_seqscan",
            self.sql
        )
    }
}

/// Returns an expression of a text of `parts` times 64 characters that does not compress.
fn random_text(parts: u64) -> String {
    match parts {
        1 => "encode(sha256(convert_to(($g)::text, 'UTF8')), 'hex')".into(),
        _ => format!(
            "(SELECT string_agg(encode(sha256(convert_to(($g * 449 + x)::text, 'UTF8')), 'hex'), '') \
             FROM generate_series(1, {parts}) x)"
        ),
    }
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

/// Quotes a name if SQL needs that.
pub(super) fn quote(name: &str) -> String {
    match name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
        true => name.to_owned(),
        false => format!("\"{name}\""),
    }
}
