//! Names from a running server's catalogs.

use postgres::{Client, SimpleQueryMessage, SimpleQueryRow};
use walden_format::record::RelFileLocator;

use super::{
    Database, GLOBAL_TABLESPACE, Identifier, Names, NamesError, Origin, Persistence, Relation, RelationKind,
};
use crate::connection::Parameters;
use crate::error_text;

/// The settings that decide how much log there is, and how the server's own log is read.
const SETTINGS: [&str; 12] = [
    "archive_timeout",
    "checkpoint_completion_target",
    "checkpoint_timeout",
    "data_checksums",
    "full_page_writes",
    "log_line_prefix",
    "max_wal_size",
    "min_wal_size",
    "wal_compression",
    "wal_level",
    "wal_log_hints",
    "wal_segment_size",
];

pub(super) fn read(conninfo: &str) -> Result<Names, NamesError> {
    let parameters = Parameters::parse(conninfo)?;
    let mut names = Names::default();
    let mut client = parameters.connect_anywhere()?;
    names.origin = origin(&mut client, &mut names.notes)?;
    let version = names.origin.server_version_num.unwrap_or(0);
    if version < 90_500 {
        let version = names.origin.server_version.as_deref().unwrap_or("unknown");
        return Err(NamesError::Server(format!("it is PostgreSQL {version}; Walden reads 9.5 and later")));
    }
    for row in rows(&mut client, "SELECT oid, spcname FROM pg_tablespace")? {
        names.add_tablespace(number(&row, 0), text(&row, 1));
    }
    let settings = SETTINGS.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let query =
        format!("SELECT name, setting, COALESCE(unit, '') FROM pg_settings WHERE name IN ({settings})");
    for row in rows(&mut client, &query)? {
        let value = format!("{} {}", text(&row, 1), text(&row, 2)).trim().to_owned();
        names.settings.insert(text(&row, 0).to_owned(), value);
    }
    let mut open_to_connections = Vec::new();
    for row in
        rows(&mut client, "SELECT oid, datname, dattablespace, datallowconn FROM pg_database ORDER BY oid")?
    {
        let (oid, name) = (number(&row, 0), text(&row, 1).to_owned());
        names.add_database(oid, Database { name: name.clone(), tablespace: number(&row, 2) });
        match text(&row, 3) {
            "t" => open_to_connections.push((oid, name)),
            // Nobody can have changed it: its catalogs have their built-in names.
            _ if name == "template0" => {}
            _ => names.notes.push(format!("database {}: it allows no connections", Identifier(&name))),
        }
    }
    drop(client);
    for (oid, name) in open_to_connections {
        let client = parameters.with("dbname", &name).connect().map_err(NamesError::from);
        match client.and_then(|mut client| relations(&mut client, oid, version, &mut names)) {
            Err(NamesError::Server(error)) => {
                names.notes.push(format!("database {}: {error}", Identifier(&name)));
            }
            Err(NamesError::Connection(error)) => {
                names.notes.push(format!("database {}: {error}", Identifier(&name)));
            }
            _ => {}
        }
    }
    Ok(names)
}

fn origin(client: &mut Client, notes: &mut Vec<String>) -> Result<Origin, NamesError> {
    let utc = "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
    let query = format!(
        "SELECT current_setting('server_version'), current_setting('server_version_num'), {utc}, pg_is_in_recovery()"
    );
    let mut origin = Origin::default();
    let mut is_standby = false;
    if let Some(row) = rows(client, &query)?.first() {
        origin.server_version = row.get(0).map(str::to_owned);
        origin.server_version_num = row.get(1).and_then(|number| number.parse().ok());
        origin.read_at = row.get(2).map(str::to_owned);
        is_standby = row.get(3) == Some("t");
    }
    let version = origin.server_version_num.unwrap_or(0);
    let position = match (is_standby, version >= 100_000) {
        (false, true) => "pg_current_wal_lsn()",
        (true, true) => "pg_last_wal_replay_lsn()",
        (false, false) => "pg_current_xlog_location()",
        (true, false) => "pg_last_xlog_replay_location()",
    };
    origin.lsn = one(client, &format!("SELECT {position}"), notes).and_then(|lsn| lsn.parse().ok());
    if version >= 90_600 {
        let id = one(client, "SELECT system_identifier FROM pg_control_system()", notes);
        // SQL has no unsigned numbers, so a large one comes back as a negative one.
        origin.system_id = id.and_then(|id| id.parse::<i64>().ok()).map(i64::cast_unsigned);
    }
    Ok(origin)
}

fn relations(client: &mut Client, database: u32, version: u32, names: &mut Names) -> Result<(), NamesError> {
    let partition = if version >= 100_000 {
        "(SELECT h.inhparent FROM pg_inherits h WHERE c.relispartition AND h.inhrelid = c.oid LIMIT 1)"
    } else {
        "NULL::oid"
    };
    // A TOAST table's index belongs to the table that the TOAST table belongs to.
    let query = format!(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relisshared, c.reltablespace,
                pg_relation_filenode(c.oid), a.amname, COALESCE(it.oid, i.indrelid, t.oid), {partition},
                s.idx_scan,
                i.indisprimary OR i.indisunique OR i.indisexclusion OR i.indisreplident
         FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace
         LEFT JOIN pg_am a ON a.oid = c.relam
         LEFT JOIN pg_index i ON i.indexrelid = c.oid
         LEFT JOIN pg_class it ON it.reltoastrelid = i.indrelid
         LEFT JOIN pg_class t ON t.reltoastrelid = c.oid
         LEFT JOIN pg_stat_all_indexes s ON s.indexrelid = c.oid
         WHERE c.relkind IN ('r', 'i', 't', 'S', 'm', 'p', 'I') AND c.relpersistence <> 't'"
    );
    let default_tablespace =
        names.database(database).map_or(super::DEFAULT_TABLESPACE, |known| known.tablespace);
    for row in rows(client, &query)? {
        let optional =
            |at| row.get(at).and_then(|value| value.parse::<u32>().ok()).filter(|value| *value != 0);
        let letter = |at| text(&row, at).chars().next().unwrap_or('?');
        let shared = text(&row, 5) == "t";
        let (database, default_tablespace) =
            if shared { (0, GLOBAL_TABLESPACE) } else { (database, default_tablespace) };
        let tablespace = optional(6).unwrap_or(default_tablespace);
        let file = optional(7).map(|relation| RelFileLocator { tablespace, database, relation });
        let relation = Relation {
            database,
            shared,
            oid: number(&row, 0),
            schema: text(&row, 1).to_owned(),
            name: text(&row, 2).to_owned(),
            kind: RelationKind::from_letter(letter(3)),
            persistence: Persistence::from_letter(letter(4)),
            access_method: row.get(8).map(str::to_owned),
            table: optional(9),
            partition_of: optional(10),
            scans: row.get(11).and_then(|scans| scans.parse().ok()),
            is_required: row.get(12).map(|is_required| is_required == "t"),
        };
        names.add(relation, file);
    }
    Ok(())
}

/// Plain queries without parameters, and text back: that works through every connection pooler.
fn rows(client: &mut Client, query: &str) -> Result<Vec<SimpleQueryRow>, NamesError> {
    let messages = client.simple_query(query).map_err(|error| NamesError::Server(error_text(&error)))?;
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}

/// A value that names can do without.
fn one(client: &mut Client, query: &str, notes: &mut Vec<String>) -> Option<String> {
    match rows(client, query) {
        Ok(rows) => rows.first().and_then(|row| row.get(0)).map(str::to_owned),
        Err(error) => {
            notes.push(error.to_string());
            None
        }
    }
}

fn number(row: &SimpleQueryRow, at: usize) -> u32 {
    row.get(at).and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn text(row: &SimpleQueryRow, at: usize) -> &str {
    row.get(at).unwrap_or("")
}
