//! Reads names from a running server's catalogs.

use std::path::Path;

use walden_format::record::RelFileLocator;

use walden_source::error_text;
use walden_source::names::{
    self as saved, Column, DEFAULT_TABLESPACE, Database, FIRST_USER_OID, GLOBAL_TABLESPACE, Identifier,
    Missing, Names, Origin, Persistence, Relation, RelationKind, Type,
};

use crate::connection::{Client, ConnectionError, Parameters, QueryError, TextRow};

/// The settings that decide how much WAL there is, and how the server's log is parsed. A server does not list
/// unknown settings.
const SETTINGS: [&str; 13] = [
    "archive_timeout",
    "checkpoint_completion_target",
    "checkpoint_timeout",
    "data_checksums",
    "effective_wal_level",
    "full_page_writes",
    "log_line_prefix",
    "max_wal_size",
    "min_wal_size",
    "wal_compression",
    "wal_level",
    "wal_log_hints",
    "wal_segment_size",
];

/// The settings with which `walden rows` prints values. From 12 on, every `extra_float_digits` above 0
/// selects the shortest exact format.
const PRINTED: &str =
    "SET LOCAL datestyle = 'ISO, YMD'; SET LOCAL timezone = 'UTC'; SET LOCAL intervalstyle = 'postgres';
    SET LOCAL extra_float_digits = 3; SET LOCAL bytea_output = 'hex'; SET LOCAL lc_monetary = 'C';";

/// Why reading names failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamesError {
    /// The server cannot be reached, or refuses the connection.
    #[error("cannot read names from the server")]
    Connection(#[from] ConnectionError),
    /// The server does not answer as expected.
    #[error("cannot read names from the server: {0}")]
    Server(String),
    /// The file of saved names cannot be read.
    #[error(transparent)]
    Saved(#[from] saved::NamesError),
    /// The source is no regular file.
    #[error("cannot read names from {0}: expected a file that --save-names made, found no regular file")]
    NoFile(String),
    /// The source is neither a file nor a connection string.
    #[error("{0}: no such file (--names takes a connection string or a file that --save-names made)")]
    Missing(String),
    /// The source is empty.
    #[error("--names is empty: expected a connection string or a file that --save-names made")]
    Empty,
    /// The names of a source belong to another cluster than the names of the previous sources.
    #[error("cannot use the names of {place}")]
    Merge {
        /// The file, or "the server".
        place: String,
        /// The reason.
        #[source]
        error: saved::NamesError,
    },
}

walden_format::diagnostics! { NamesError {
    Self::Connection(error) => of(error),
    Self::Server(_) => "names-server",
    Self::Saved(error) | Self::Merge { error, .. } => of(error),
    Self::NoFile(_) | Self::Missing(_) | Self::Empty => "names-missing",
} }

/// Reads names from a server if `source` is a URL or contains `key=value`, otherwise from a saved file.
///
/// # Errors
/// Errors of [`from_server`] and [`Names::load`].
pub fn read(source: &str) -> Result<Names, NamesError> {
    let is_url = source.starts_with("postgres://") || source.starts_with("postgresql://");
    if is_url || (source.contains('=') && !Path::new(source).exists()) {
        from_server(source)
    } else {
        Ok(Names::load(Path::new(source))?)
    }
}

/// Reads and merges the names of each source: a server, or a file of saved names.
///
/// # Errors
/// A source cannot be read, or is of another cluster than those before.
pub fn read_all(sources: &[String]) -> Result<Names, NamesError> {
    let mut names = Names::default();
    for source in sources {
        let path = Path::new(source);
        let is_connection = || source.contains("://") || source.contains('=');
        let (more, place) = match path.is_file() {
            true => (Names::load(path)?, source.as_str()),
            false if path.exists() => return Err(NamesError::NoFile(source.clone())),
            false if source.is_empty() => return Err(NamesError::Empty),
            false if !is_connection() => return Err(NamesError::Missing(source.clone())),
            // Errors do not repeat the connection string: it may contain a password.
            false => (from_server(source)?, "the server"),
        };
        let merged = names.merge(more);
        merged.map_err(|error| NamesError::Merge { place: place.to_owned(), error })?;
    }
    Ok(names)
}

/// Reads the catalogs of all databases of a running server or standby, 9.5 or newer.
///
/// `conninfo` is a URL or a list of `key=value`, as for psql; other parameters come from the same places as
/// in libpq ([`crate::connection`]). Connects once per database; databases that refuse connections are listed
/// in [`Names::notes`], as are those that cannot be read. Bytes of names that are not UTF-8 become U+FFFD.
/// Needs no privileges.
///
/// # Errors
/// The server cannot be reached, refuses the connection, or is older than 9.5.
pub fn from_server(conninfo: &str) -> Result<Names, NamesError> {
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
        names.settings.insert(text(&row, 0).to_owned(), with_unit(text(&row, 1), text(&row, 2)));
    }
    let mut open_to_connections = Vec::new();
    let query = "SELECT d.oid, d.datname, d.dattablespace, pg_encoding_to_char(d.encoding), d.datallowconn,
                        to_char(s.stats_reset AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')
                 FROM pg_database d LEFT JOIN pg_stat_database s ON s.datid = d.oid ORDER BY d.oid";
    for row in rows(&mut client, query)? {
        let (oid, name) = (number(&row, 0), text(&row, 1).to_owned());
        let encoding = Some(text(&row, 3).to_owned());
        let statistics_reset = row.get(5).map(str::to_owned);
        let tablespace = number(&row, 2);
        names.add_database(oid, Database { name: name.clone(), tablespace, encoding, statistics_reset });
        let unread = match text(&row, 4) {
            // Users cannot have changed it, so its catalogs have their built-in names.
            _ if name == "template0" => continue,
            "t" if row.is_exact(1) => {
                open_to_connections.push((oid, name));
                continue;
            }
            "t" => {
                "its name is not UTF-8, so that Walden cannot connect to it; a base backup (--base) has its names"
            }
            _ => "it allows no connections",
        };
        names.notes.push(format!("database {}: {unread}", Identifier(&name)));
    }
    drop(client);
    for (oid, name) in open_to_connections {
        let client = parameters.with("dbname", &name).connect().map_err(NamesError::from);
        let error = match client.and_then(|mut client| relations(&mut client, oid, version, &mut names)) {
            Err(NamesError::Server(error)) => error,
            Err(NamesError::Connection(error)) => error_text(&error),
            Err(error) => error_text(&error),
            Ok(()) => continue,
        };
        names.notes.push(format!("database {}: {error}", Identifier(&name)));
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
    origin.lsn =
        query_optional(client, &format!("SELECT {position}"), notes).and_then(|lsn| lsn.parse().ok());
    if version >= 90_600 {
        let id = query_optional(client, "SELECT system_identifier FROM pg_control_system()", notes);
        // SQL has no unsigned integers, so a large identifier is negative.
        origin.system_id = id.and_then(|id| id.parse::<i64>().ok()).map(i64::cast_unsigned);
    }
    Ok(origin)
}

/// The index that starts with all columns of the index `i`, as [`Relation::covered_by`] has it. The vectors
/// are compared as text, in which spaces separate the numbers. Only key columns have an operator class.
fn covering_index(version: u32) -> String {
    let has_only_keys = if version >= 110_000 { "i.indnatts = i.indnkeyatts" } else { "true" };
    let starts_alike = ["indkey", "indclass", "indcollation", "indoption"]
        .map(|vector| format!("o.{vector}::text || ' ' LIKE i.{vector}::text || ' %'"))
        .join(" AND ");
    format!(
        "CASE WHEN i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND a.amname = 'btree' AND {has_only_keys}
                  AND NOT (i.indisprimary OR i.indisunique OR i.indisexclusion OR i.indisreplident) THEN
             (SELECT o.indexrelid FROM pg_index o JOIN pg_class oc ON oc.oid = o.indexrelid
              WHERE o.indrelid = i.indrelid AND o.indexrelid <> i.indexrelid AND oc.relam = c.relam
                  AND o.indisvalid AND o.indpred IS NULL AND {starts_alike}
                  AND (o.indkey::text <> i.indkey::text OR o.indisunique OR o.indexrelid < i.indexrelid)
              ORDER BY o.indnatts, o.indexrelid LIMIT 1) END"
    )
}

fn relations(client: &mut Client, database: u32, version: u32, names: &mut Names) -> Result<(), NamesError> {
    let partition = if version >= 100_000 {
        "(SELECT h.inhparent FROM pg_inherits h WHERE c.relispartition AND h.inhrelid = c.oid LIMIT 1)"
    } else {
        "NULL::oid"
    };
    let covered = covering_index(version);
    // A TOAST table's index belongs to the table that the TOAST table belongs to.
    let query = format!(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relisshared, c.reltablespace,
                pg_relation_filenode(c.oid), a.amname, COALESCE(it.oid, i.indrelid, t.oid), {partition},
                s.idx_scan,
                i.indisprimary OR i.indisunique OR i.indisexclusion OR i.indisreplident, {covered}
         FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace
         LEFT JOIN pg_am a ON a.oid = c.relam
         LEFT JOIN pg_index i ON i.indexrelid = c.oid
         LEFT JOIN pg_class it ON it.reltoastrelid = i.indrelid
         LEFT JOIN pg_class t ON t.reltoastrelid = c.oid
         LEFT JOIN pg_stat_all_indexes s ON s.indexrelid = c.oid
         WHERE c.relkind IN ('r', 'i', 't', 'S', 'm', 'p', 'I') AND c.relpersistence <> 't'"
    );
    let default_tablespace = names.database(database).map_or(DEFAULT_TABLESPACE, |known| known.tablespace);
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
            covered_by: optional(13),
        };
        names.add(relation, file);
    }
    columns(client, database, version, names)?;
    types(client, database, version, names)?;
    let query = "SELECT h.inhrelid, h.inhparent FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
         WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' ORDER BY 1, 2";
    let pairs = rows(client, query)?.iter().map(|row| (number(row, 0), number(row, 1))).collect();
    names.set_inherits(database, pairs);
    Ok(())
}

/// Adds the columns of user tables and composite types.
fn columns(client: &mut Client, database: u32, version: u32, names: &mut Names) -> Result<(), NamesError> {
    let since = |first: u32, column: &str| if version >= first { column.to_owned() } else { "''".to_owned() };
    // `attmissingval` is an array of one element of any type; the function returns its text without quotes.
    // Databases and roles may have other settings; `SET LOCAL` holds for the statements of one message.
    let (settings, missing) = match version >= 110_000 {
        true => (PRINTED, "CASE WHEN a.atthasmissing THEN array_to_string(a.attmissingval, '') END"),
        false => ("", "NULL"),
    };
    let query = format!(
        "SELECT a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attlen, a.attalign, a.attstorage, a.attisdropped,
                {}, {}, a.attnum = ANY (i.indkey), {missing}, c.relkind
         FROM pg_attribute a
         JOIN pg_class c ON c.oid = a.attrelid
         LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
         WHERE c.oid >= {} AND c.relkind IN ('r', 'm', 'p', 'c') AND c.relpersistence <> 't' AND a.attnum > 0
         ORDER BY a.attrelid, a.attnum",
        since(120_000, "a.attgenerated"),
        since(100_000, "a.attidentity"),
        FIRST_USER_OID
    );
    let mut tables: Vec<(u32, Vec<Column>)> = Vec::new();
    for row in client.simple_query_with(settings, &query).map_err(server_error)? {
        let (table, column) = (number(&row, 0), column(&row));
        match tables.last_mut().filter(|(last, _)| *last == table) {
            Some((_, columns)) => columns.push(column),
            None => tables.push((table, vec![column])),
        }
    }
    for (table, columns) in tables {
        names.set_columns(database, table, columns);
    }
    Ok(())
}

fn column(row: &TextRow) -> Column {
    let letter = |at| text(row, at).chars().next().unwrap_or(' ');
    let short = |at| text(row, at).parse().unwrap_or(0);
    Column {
        number: short(1),
        name: text(row, 2).to_owned(),
        type_oid: number(row, 3),
        typmod: text(row, 4).parse().unwrap_or(-1),
        length: short(5),
        align: letter(6),
        storage: letter(7),
        is_dropped: text(row, 8) == "t",
        is_generated: !text(row, 9).is_empty(),
        is_virtual: text(row, 9) == "v",
        is_identity_always: text(row, 10) == "a",
        is_key: text(row, 11) == "t",
        missing: row.get(12).map_or(Missing::Null, |text| Missing::Text(text.to_owned())),
    }
}

/// Adds the user-defined types.
fn types(client: &mut Client, database: u32, version: u32, names: &mut Names) -> Result<(), NamesError> {
    let multirange = if version >= 140_000 {
        "(SELECT r.rngsubtype FROM pg_range r WHERE r.rngmultitypid = t.oid)"
    } else {
        "NULL"
    };
    let query = format!(
        "SELECT t.oid, n.nspname, t.typname, t.typtype, t.typlen, t.typalign, t.typelem, t.typcategory = 'A',
                t.typbasetype, t.typtypmod, t.typrelid,
                COALESCE((SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid), {multirange})
         FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid >= {}",
        FIRST_USER_OID
    );
    for row in rows(client, &query)? {
        let letter = |at| text(&row, at).chars().next().unwrap_or(' ');
        let relation = number(&row, 10);
        // A table's columns are stored with the table.
        let is_alone = names.by_oid(database, relation).is_none();
        let columns = names.columns(database, relation).filter(|_| is_alone).unwrap_or(&[]).to_vec();
        let added = Type {
            oid: number(&row, 0),
            schema: text(&row, 1).to_owned(),
            name: text(&row, 2).to_owned(),
            kind: letter(3),
            length: text(&row, 4).parse().unwrap_or(-1),
            align: letter(5),
            element: number(&row, 6),
            is_array: text(&row, 7) == "t",
            base: number(&row, 8),
            typmod: text(&row, 9).parse::<i32>().ok().filter(|typmod| *typmod >= 0),
            relation,
            subtype: number(&row, 11),
            labels: Vec::new(),
            columns,
        };
        names.add_type(database, added);
    }
    let labels = "SELECT enumtypid, oid, enumlabel FROM pg_enum ORDER BY enumtypid, enumsortorder";
    for row in rows(client, labels)? {
        names.add_label(database, number(&row, 0), number(&row, 1), text(&row, 2));
    }
    Ok(())
}

fn rows(client: &mut Client, query: &str) -> Result<Vec<TextRow>, NamesError> {
    client.simple_query(query).map_err(server_error)
}

fn server_error(error: QueryError) -> NamesError {
    NamesError::Server(error_text(&error))
}

/// Returns an optional value; notes an error instead of failing.
fn query_optional(client: &mut Client, query: &str, notes: &mut Vec<String>) -> Option<String> {
    match rows(client, query) {
        Ok(rows) => rows.first().and_then(|row| row.get(0)).map(str::to_owned),
        Err(error) => {
            notes.push(error.to_string());
            None
        }
    }
}

/// Formats a setting with its unit, such as `300 s`. Spaces are kept: a `log_line_prefix` usually ends with
/// one.
fn with_unit(setting: &str, unit: &str) -> String {
    if unit.is_empty() { setting.to_owned() } else { format!("{setting} {unit}") }
}

fn number(row: &TextRow, at: usize) -> u32 {
    row.get(at).and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn text(row: &TextRow, at: usize) -> &str {
    row.get(at).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_keep_their_spaces() {
        assert_eq!(with_unit("300", "s"), "300 s");
        assert_eq!(with_unit("64", "16MB"), "64 16MB");
        assert_eq!(with_unit("%m [%p] %x ", ""), "%m [%p] %x ");
        assert_eq!(with_unit("", ""), "");
    }
}
