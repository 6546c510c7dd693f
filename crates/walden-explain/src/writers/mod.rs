//! Attributes transactions to users, applications, clients and statements from the server's log.
//!
//! The WAL contains only a transaction's ID. The server's log contains the ID next to the session's user,
//! application, client and statement, but only once the ID is assigned. A statement that is logged before it
//! runs, as the first of its transaction, has no ID yet. A session's earlier statements are therefore kept
//! until a later entry of the same transaction has the ID. IDs wrap around: of several entries with one ID,
//! the nearest to the transaction's end in time applies.

mod statement;
mod tokens;

use rustc_hash::FxHashMap;
use serde::Serialize;
use walden_source::server_log::{Entry, Fields};

pub use self::statement::normalize;

/// The originator of a transaction in the server's log. Texts are numbers for [`Writers::text`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Writer {
    user: u32,
    application: u32,
    client: u32,
    statement: u32,
}

/// The key of a group by properties in the server's log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WriterKey {
    /// The records have no transaction.
    NoTransaction,
    /// The server's log does not contain the transaction.
    Unknown,
    /// The number of the writer.
    Known(u32),
}

/// A property of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum WriterProperty {
    User,
    Application,
    Client,
    Statement,
}

/// The writers of all transactions in the server's log.
#[derive(Debug, Default)]
pub struct Writers {
    by_xid: FxHashMap<u32, Vec<Seen>>,
    writers: Vec<Writer>,
    writer_numbers: FxHashMap<Writer, u32>,
    texts: Vec<String>,
    text_numbers: FxHashMap<String, u32>,
    sessions: FxHashMap<String, Session>,
    fields: Option<Fields>,
    /// Counts of the logs read.
    pub counts: Counts,
    /// Automatic vacuums by table, `DATABASE.SCHEMA.TABLE`.
    vacuums: FxHashMap<String, AutomaticVacuums>,
    /// Names in VACUUM statements, and the number of statements for each.
    manual_vacuums: FxHashMap<String, u64>,
}

/// Counts of entries and transactions in the server's logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Number of files of the server's log.
    pub files: u64,
    /// Number of entries in the files.
    pub entries: u64,
    /// Number of entries with a statement.
    pub statements: u64,
    /// Portion of `statements` that may write and are alone in their transaction, but whose entry has no
    /// transaction ID.
    pub statements_without_xid: u64,
    /// Number of transactions that have an entry with their ID.
    pub transactions: u64,
}

/// Automatic vacuums of a table in the server's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct AutomaticVacuums {
    /// Number of vacuums.
    pub count: u64,
    /// Number of records that these vacuums wrote; 0 if the server's log does not contain the number (before
    /// 13).
    pub wal_records: u64,
    /// Bytes of WAL that these vacuums wrote; 0 if the server's log does not contain the number (before 13).
    pub wal_bytes: u64,
}

/// First and last entry of a transaction ID.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: i64,
    last: i64,
    writer: u32,
}

#[derive(Debug, Default)]
struct Session {
    user: u32,
    application: u32,
    client: u32,
    virtual_xid: String,
    xid: u32,
    is_in_block: bool,
    /// Statements of the current transaction, without immediate repetitions.
    statements: Vec<u32>,
    /// Whether a statement was logged without a transaction ID, and no later statement was logged with the
    /// ID.
    is_pending: bool,
}

impl Session {
    /// Copies the session's properties from an entry. Number 0 is the empty text: the entry does not contain
    /// the property.
    fn name(&mut self, user: u32, application: u32, client: u32) {
        for (kept, new) in
            [(&mut self.user, user), (&mut self.application, application), (&mut self.client, client)]
        {
            if new != 0 {
                *kept = new;
            }
        }
    }
}

/// Whether an entry's transaction has a virtual ID: its local part is not 0.
fn has_virtual_xid(entry: &Entry) -> bool {
    entry.virtual_xid.rsplit('/').next().is_some_and(|local| !matches!(local, "" | "0"))
}

/// Entries of one ID that are further apart, in microseconds, belong to two transactions: wraparound of IDs
/// takes longer. The value also exceeds any difference between time zones.
const MAX_DISTANCE: i64 = 26 * 3600 * 1_000_000;
/// Maximum number of distinct statements kept per transaction.
const MAX_STATEMENTS: usize = 20;
/// Maximum number of sessions tracked at a time.
const MAX_SESSIONS: usize = 100_000;
/// Maximum number of distinct texts; others become "(one of many other statements)".
const MAX_TEXTS: usize = 200_000;

impl Writers {
    /// Counts a new file of the server's log. Sessions may continue in the new file.
    pub fn begin_file(&mut self) {
        self.counts.files += 1;
    }

    /// Ends a file that had these fields.
    pub fn end_file(&mut self, fields: Fields) {
        self.fields.get_or_insert(fields);
    }

    /// Adds an entry of the server's log. The entries of a session must be in their order.
    pub fn add(&mut self, entry: &Entry) {
        self.counts.entries += 1;
        self.add_vacuum(entry);
        if entry.session.is_empty() {
            return;
        }
        let (user, application, client) =
            (self.number(&entry.user), self.number(&entry.application), self.number(&entry.client));
        let text = statement::extract(entry);
        let normal = text.map(normalize);
        if self.sessions.len() >= MAX_SESSIONS && !self.sessions.contains_key(&entry.session) {
            self.sessions.clear();
        }
        let mut session = self.sessions.remove(&entry.session).unwrap_or_default();
        session.name(user, application, client);
        self.follow_transaction(&mut session, entry);
        if let Some(normal) = &normal {
            self.add_statement(&mut session, entry, normal);
        }
        if entry.xid != 0 {
            self.add_xid(&mut session, entry);
        }
        let is_over = normal.as_deref().map(statement::kind) == Some(statement::Kind::End);
        if is_over {
            self.end_transaction(&mut session);
        }
        if !entry.message.starts_with("disconnection: ") {
            self.sessions.insert(entry.session.clone(), session);
        }
    }

    /// Ends a session's transaction if an entry belongs to the next one.
    fn follow_transaction(&mut self, session: &mut Session, entry: &Entry) {
        let has_virtual = has_virtual_xid(entry);
        let is_next = (has_virtual && entry.virtual_xid != session.virtual_xid)
            || (entry.xid != 0 && session.xid != 0 && entry.xid != session.xid);
        if is_next {
            self.end_transaction(session);
            if has_virtual {
                session.virtual_xid.clone_from(&entry.virtual_xid);
            }
        }
    }

    /// Adds the statement of an entry, normalized, to the session's transaction.
    fn add_statement(&mut self, session: &mut Session, entry: &Entry, normal: &str) {
        self.counts.statements += 1;
        let kind = statement::kind(normal);
        if !has_virtual_xid(entry) && entry.xid == 0 && !session.is_in_block {
            // A statement outside a transaction block, or the first statement of a transaction.
            self.end_transaction(session);
        }
        match kind {
            statement::Kind::Begin => session.is_in_block = true,
            statement::Kind::End => session.is_in_block = false,
            statement::Kind::Control => {}
            statement::Kind::Read | statement::Kind::Write => {
                let number = self.number(normal);
                if session.statements.last() != Some(&number) && session.statements.len() < MAX_STATEMENTS {
                    session.statements.push(number);
                }
                session.is_pending |= kind == statement::Kind::Write && entry.xid == 0;
            }
        }
    }

    /// Records the ID of a session's transaction from an entry that contains it.
    fn add_xid(&mut self, session: &mut Session, entry: &Entry) {
        session.xid = entry.xid;
        session.is_pending = false;
        let statement = self.statement_of(session);
        let Session { user, application, client, .. } = *session;
        let writer = Writer { user, application, client, statement };
        self.see(entry.xid, entry.time.unwrap_or(0), writer);
    }

    fn end_transaction(&mut self, session: &mut Session) {
        self.counts.statements_without_xid += u64::from(session.is_pending && session.xid == 0);
        session.xid = 0;
        session.is_pending = false;
        session.statements.clear();
    }

    /// The statements of a transaction as one text: those that may write, or all if none may.
    fn statement_of(&mut self, session: &Session) -> u32 {
        let text = |number: &u32| self.texts.get(*number as usize).cloned().unwrap_or_default();
        let all: Vec<String> = session.statements.iter().map(text).collect();
        let writes = |text: &&String| statement::kind(text) == statement::Kind::Write;
        let chosen: Vec<&String> = match all.iter().any(|text| writes(&text)) {
            true => all.iter().filter(writes).collect(),
            false => all.iter().collect(),
        };
        let mut joined: Vec<&str> = chosen.iter().map(|text| text.as_str()).collect();
        joined.dedup();
        let joined = joined.join("; ");
        self.number(&joined)
    }

    fn see(&mut self, xid: u32, time: i64, writer: Writer) {
        let number = match self.writer_numbers.get(&writer) {
            Some(number) => *number,
            None => {
                let number = self.writers.len() as u32;
                self.writers.push(writer);
                self.writer_numbers.insert(writer, number);
                number
            }
        };
        let seen = self.by_xid.entry(xid).or_default();
        let near = seen.iter_mut().find(|seen| (time - seen.last).abs() < MAX_DISTANCE);
        match near {
            Some(near) => {
                near.first = near.first.min(time);
                near.last = near.last.max(time);
                near.writer = number;
            }
            None => {
                seen.push(Seen { first: time, last: time, writer: number });
                self.counts.transactions += 1;
            }
        }
    }

    fn number(&mut self, text: &str) -> u32 {
        if self.texts.is_empty() {
            self.texts.push(String::new());
            self.text_numbers.insert(String::new(), 0);
        }
        if let Some(number) = self.text_numbers.get(text) {
            return *number;
        }
        let is_full = self.texts.len() >= MAX_TEXTS;
        let text = if is_full { "(one of many other statements)" } else { text };
        if let Some(number) = self.text_numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.to_owned());
        self.text_numbers.insert(text.to_owned(), number);
        number
    }

    /// Returns the writer of a transaction that ended at a time, in microseconds since 1970-01-01 UTC.
    pub fn find(&self, xid: u32, time: Option<i64>) -> WriterKey {
        let Some(seen) = self.by_xid.get(&xid) else { return WriterKey::Unknown };
        let distance = |seen: &Seen| match time {
            Some(time) if time < seen.first => seen.first - time,
            Some(time) => (time - seen.last).max(0),
            None => 0,
        };
        // Without a time, the transaction is open at the end of the WAL or a crash ended it: take the latest.
        let nearest = seen.iter().min_by_key(|seen| (distance(seen), std::cmp::Reverse(seen.last)));
        match nearest {
            Some(seen) if distance(seen) < MAX_DISTANCE => WriterKey::Known(seen.writer),
            _ => WriterKey::Unknown,
        }
    }

    /// Returns a property of a writer as text.
    pub fn text(&self, key: WriterKey, property: WriterProperty) -> &str {
        let number = match key {
            WriterKey::NoTransaction => return "(no transaction)",
            WriterKey::Unknown => return "(not in the server's log)",
            WriterKey::Known(number) => number,
        };
        let Some(writer) = self.writers.get(number as usize) else { return "" };
        let (text, empty) = match property {
            WriterProperty::User => (writer.user, "(user not logged)"),
            WriterProperty::Application => (writer.application, "(no application name)"),
            WriterProperty::Client => (writer.client, "(client not logged)"),
            WriterProperty::Statement => (writer.statement, "(statement not logged)"),
        };
        self.texts.get(text as usize).map(String::as_str).filter(|text| !text.is_empty()).unwrap_or(empty)
    }

    /// Whether a writer's statement is known.
    pub fn has_statement(&self, key: WriterKey) -> bool {
        let WriterKey::Known(number) = key else { return false };
        self.writers.get(number as usize).is_some_and(|writer| writer.statement != 0)
    }

    /// The fields of the first file; `None` without files.
    pub fn fields(&self) -> Option<Fields> {
        self.fields
    }

    /// Returns the automatic vacuums of a table, `DATABASE.SCHEMA.TABLE`, and the number of `VACUUM`
    /// statements that name the table. `None` if the server's log contains neither.
    pub fn vacuums_of(&self, table: &str) -> Option<(AutomaticVacuums, u64)> {
        let automatic = self.vacuums.get(table).copied();
        let name = table.rsplit('.').next().unwrap_or(table);
        let manual = self.manual_vacuums.get(name).copied();
        (automatic.is_some() || manual.is_some())
            .then(|| (automatic.unwrap_or_default(), manual.unwrap_or(0)))
    }

    fn add_vacuum(&mut self, entry: &Entry) {
        let message = entry.message.as_str();
        let automatic = [
            "automatic vacuum of table \"",
            "automatic aggressive vacuum of table \"",
            "automatic vacuum to prevent wraparound of table \"",
            "automatic aggressive vacuum to prevent wraparound of table \"",
        ];
        if let Some(rest) = automatic.iter().find_map(|start| message.strip_prefix(start)) {
            let Some((table, rest)) = rest.split_once("\":") else { return };
            let vacuums = self.vacuums.entry(table.to_owned()).or_default();
            vacuums.count += 1;
            let usage =
                rest.split("WAL usage: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or_default();
            for part in usage.split(", ") {
                let mut words = part.split(' ');
                let number: u64 = words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
                match words.next() {
                    Some("records") => vacuums.wal_records += number,
                    Some("bytes") => vacuums.wal_bytes += number,
                    _ => {}
                }
            }
        } else if let Some(text) = statement::extract(entry)
            && text.get(..6).is_some_and(|word| word.eq_ignore_ascii_case("vacuum"))
        {
            // Without options in parentheses, the following words are names.
            let names = text[6..].split_once(')').map_or(&text[6..], |(_, names)| names);
            for name in names.split([',', ' ', ';']).filter(|name| !name.is_empty()).take(MAX_STATEMENTS) {
                let name = name.rsplit('.').next().unwrap_or(name).trim_matches('"');
                if self.manual_vacuums.len() < MAX_TEXTS {
                    *self.manual_vacuums.entry(name.to_owned()).or_default() += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(session: &str, vxid: &str, xid: u32, message: &str) -> Entry {
        Entry {
            time: Some(1_000_000_000_000_000),
            session: session.to_owned(),
            virtual_xid: vxid.to_owned(),
            xid,
            user: "app".to_owned(),
            message: message.to_owned(),
            ..Entry::default()
        }
    }

    fn statement(writers: &Writers, xid: u32) -> String {
        writers.text(writers.find(xid, Some(1_000_000_000_000_000)), WriterProperty::Statement).to_owned()
    }

    #[test]
    fn a_statement_logged_before_its_id_belongs_to_the_transaction() {
        for with_vxid in [true, false] {
            let vxid = |vxid: &'static str| if with_vxid { vxid } else { "" };
            let mut writers = Writers::default();
            for (vx, xid, message) in [
                ("3/1", 0, "statement: BEGIN"),
                ("3/1", 0, "statement: SELECT 1"),
                ("3/1", 0, "statement: INSERT INTO t VALUES (1, 'a')"),
                ("3/1", 7, "statement: UPDATE t SET a = 2"),
                ("3/1", 7, "statement: UPDATE t SET a = 3"),
                ("3/1", 7, "statement: COMMIT"),
                ("3/2", 0, "statement: DELETE FROM t"),
                ("3/3", 0, "statement: BEGIN"),
                ("3/3", 0, "statement: INSERT INTO u VALUES (2)"),
                ("3/3", 9, "statement: COMMIT"),
            ] {
                writers.add(&entry("a", vxid(vx), xid, message));
            }
            assert_eq!(
                statement(&writers, 7),
                "INSERT INTO t VALUES ($1, $2); UPDATE t SET a = $1",
                "{with_vxid}"
            );
            assert_eq!(statement(&writers, 9), "INSERT INTO u VALUES ($1)", "{with_vxid}");
            assert_eq!(writers.counts.statements_without_xid, 1, "{with_vxid}");
            assert_eq!(writers.find(8, None), WriterKey::Unknown);
        }
    }

    #[test]
    fn an_id_that_occurs_again_is_another_transaction() {
        let mut writers = Writers::default();
        let day = 86_400_000_000;
        for (time, user) in [(10 * day, "first"), (40 * day, "second")] {
            let entry = Entry {
                time: Some(time),
                user: user.to_owned(),
                ..entry("s", "", 5, "statement: DELETE FROM t")
            };
            writers.add(&entry);
        }
        let user = |time| writers.text(writers.find(5, time), WriterProperty::User);
        assert_eq!(
            (user(Some(10 * day + 5)), user(Some(40 * day - 5)), user(None)),
            ("first", "second", "second")
        );
        assert_eq!(user(Some(25 * day)), "(not in the server's log)");
    }

    #[test]
    fn automatic_vacuums_are_known_and_others() {
        let mut writers = Writers::default();
        let log = "automatic vacuum of table \"db.public.orders\": index scans: 1\npages: 0 removed\nWAL usage: 12 records, 3 full page images, 4567 bytes\nsystem usage: CPU";
        writers.add(&entry("v", "", 0, log));
        writers.add(&entry("s", "", 0, "statement: VACUUM (VERBOSE) public.orders, other;"));
        let (automatic, manual) = writers.vacuums_of("db.public.orders").unwrap();
        assert_eq!((automatic.count, automatic.wal_records, automatic.wal_bytes, manual), (1, 12, 4567, 1));
        assert_eq!(writers.vacuums_of("db.public.other").unwrap().1, 1);
        assert_eq!(writers.vacuums_of("db.public.none"), None);
    }
}
