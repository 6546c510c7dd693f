//! Checks restored data: verifies indexes and tables by `pg_amcheck`, and counts every row or runs the user's
//! queries.

use std::error::Error;

use postgres::types::{FromSql, Type};
use postgres::{Client, SimpleQueryMessage};
use serde::Serialize;
use walden_source::error_text;

use super::DrillOptions;
use super::error::{Context as _, Result};
use super::server::Server;

/// Maximum number of lines of a program's output that are reported.
const MAX_LINES: usize = 20;

const DATABASES: &str = "SELECT datname FROM pg_database WHERE datallowconn ORDER BY datname";

const PREPARED: &str =
    "SELECT gid, database::text, owner::text FROM pg_prepared_xacts ORDER BY prepared, gid";

/// The relations of the current database that cannot be read before a prepared transaction ends, with their
/// TOAST tables and indexes. Planning locks the indexes of a table, too.
const LOCKED: &str = "
    WITH held AS (
        SELECT l.relation, p.gid
        FROM pg_locks l JOIN pg_prepared_xacts p ON l.virtualtransaction = '-1/' || p.transaction
        WHERE l.mode = 'AccessExclusiveLock' AND l.relation IS NOT NULL
          AND l.database IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
    ), tables AS (
        SELECT coalesce(i.indrelid, h.relation) AS oid, min(h.gid) AS gid
        FROM held h LEFT JOIN pg_index i ON i.indexrelid = h.relation
        GROUP BY 1
    ), heaps AS (
        SELECT oid, gid FROM tables
        UNION SELECT c.reltoastrelid, t.gid FROM pg_class c JOIN tables t ON t.oid = c.oid WHERE c.reltoastrelid <> 0
    ), relations AS (
        SELECT oid, gid FROM heaps
        UNION SELECT i.indexrelid, h.gid FROM pg_index i JOIN heaps h ON h.oid = i.indrelid
    )
    SELECT n.nspname::text, c.relname::text,
           CASE WHEN c.relkind IN ('r', 'm') AND c.relpersistence = 'p'
                THEN format('%I.%I', n.nspname, c.relname) END,
           min(r.gid)
    FROM relations r JOIN pg_class c ON c.oid = r.oid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'm', 't', 'i', 'S')
    GROUP BY n.nspname, c.relname, c.relkind, c.relpersistence
    ORDER BY 1, 2";

/// The checks and their results.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct CheckedData {
    /// Result of `pg_amcheck`.
    pub amcheck: Amcheck,
    /// Number of databases whose rows were counted, or `None` if queries ran instead.
    pub databases: Option<u64>,
    /// Number of tables in these databases.
    pub tables: Option<u64>,
    /// Number of rows in these tables.
    pub rows: Option<u64>,
    /// Results of the queries.
    pub queries: Vec<QueryResult>,
    /// Prepared transactions that are still pending.
    pub prepared_transactions: Vec<PreparedTransaction>,
    /// Tables that were not read, because prepared transactions lock them against reading.
    pub locked_tables: Vec<LockedTable>,
    /// Problems that the checks found.
    pub problems: Vec<String>,
}

/// A prepared transaction that neither `COMMIT PREPARED` nor `ROLLBACK PREPARED` has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PreparedTransaction {
    /// Its identifier in these statements.
    pub name: String,
    /// Its database.
    pub database: String,
    /// Its user.
    pub owner: String,
}

/// A table that a prepared transaction locks against reading.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LockedTable {
    /// Its database.
    pub database: String,
    /// Its schema and name, quoted as SQL requires.
    pub table: String,
    /// Identifier of the prepared transaction.
    pub prepared_transaction: String,
}

/// Result of `pg_amcheck`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Amcheck {
    /// It found no problems.
    Passed,
    /// It found problems, which are listed in [`CheckedData::problems`].
    Failed,
    /// It was not requested.
    #[default]
    NotAsked,
    /// It is not among the server's programs, or the extension `amcheck` is not installed.
    NotThere,
}

/// The result of a query.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct QueryResult {
    /// The query.
    pub query: String,
    /// Names of its columns.
    pub columns: Vec<String>,
    /// Its rows as text.
    pub rows: Vec<Vec<Option<String>>>,
}

/// A name from a server. Bytes that are not UTF-8 are U+FFFD.
struct Name {
    text: String,
    is_exact: bool,
}

impl<'a> FromSql<'a> for Name {
    fn from_sql(_: &Type, bytes: &'a [u8]) -> std::result::Result<Name, Box<dyn Error + Sync + Send>> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        Ok(Name { is_exact: text.as_bytes() == bytes, text })
    }

    fn accepts(of: &Type) -> bool {
        <&str as FromSql>::accepts(of)
    }
}

/// Connects to a database to read [`Name`]s. With the usual encoding of the client, the server refuses to
/// send names of a SQL_ASCII database that are not UTF-8.
fn connect(server: &Server, database: &str) -> Result<Client> {
    const AS_THEY_ARE: &str = "SELECT set_config('client_encoding', 'SQL_ASCII', false)
        WHERE current_setting('server_encoding') = 'SQL_ASCII'";
    let mut client = server.connect(database)?;
    let set = client.batch_execute(AS_THEY_ARE);
    set.with_context(|| format!("cannot set the encoding of a connection to {database}"))?;
    Ok(client)
}

/// Checks the data of a recovered server.
pub fn check(server: &Server, options: &DrillOptions) -> Result<CheckedData> {
    let mut checked = CheckedData::default();
    let mut client = connect(server, "postgres")?;
    let list = "cannot list prepared transactions";
    for row in client.query(PREPARED, &[]).context(list)? {
        let name = |column| row.try_get(column).map(|name: Name| name.text).context(list);
        let prepared = PreparedTransaction { name: name(0)?, database: name(1)?, owner: name(2)? };
        checked.prepared_transactions.push(prepared);
    }
    let mut databases = Vec::new();
    let list = "cannot list databases";
    for row in client.query(DATABASES, &[]).context(list)? {
        let Name { text, is_exact } = row.try_get(0).context(list)?;
        match is_exact {
            true => databases.push(text),
            false => checked.problems.push(format!(
                "cannot connect to the database {text}: expected a name in UTF-8, found other bytes"
            )),
        }
    }
    drop(client);
    let mut excluded = Vec::new();
    if !checked.prepared_transactions.is_empty() {
        for database in &databases {
            find_locked(server, database, &mut checked.locked_tables, &mut excluded)?;
        }
    }
    if options.should_amcheck {
        checked.amcheck = amcheck(server, &excluded, &mut checked.problems)?;
    }
    if options.queries.is_empty() {
        count_rows(server, &databases, &mut checked)?;
    }
    for query in &options.queries {
        match run_query(server, &options.database, query) {
            Ok(result) => checked.queries.push(result),
            Err(error) => checked.problems.push(format!("{query}: {}", error_text(&error))),
        }
    }
    Ok(checked)
}

/// Finds the tables of a database that prepared transactions lock against reading, and adds patterns of
/// `pg_amcheck` for them, their TOAST tables and their indexes to `excluded`.
fn find_locked(
    server: &Server,
    database: &str,
    locked: &mut Vec<LockedTable>,
    excluded: &mut Vec<String>,
) -> Result<()> {
    let list = || format!("cannot list the locks in {database}");
    let rows = connect(server, database)?.query(LOCKED, &[]);
    for row in rows.with_context(list)? {
        let name = |column| {
            let name = row.try_get::<_, Option<Name>>(column).with_context(list);
            name.map(|name| name.map(|name| name.text))
        };
        let [schema, relation] = [name(0)?, name(1)?].map(Option::unwrap_or_default);
        let quoted = [database, &schema, &relation].map(|part| format!("\"{}\"", part.replace('"', "\"\"")));
        excluded.push(quoted.join("."));
        if let Some(table) = name(2)? {
            let (database, prepared_transaction) = (database.to_owned(), name(3)?.unwrap_or_default());
            locked.push(LockedTable { database, table, prepared_transaction });
        }
    }
    Ok(())
}

fn amcheck(server: &Server, excluded: &[String], problems: &mut Vec<String>) -> Result<Amcheck> {
    let Some(mut command) = server.client_command("pg_amcheck")? else { return Ok(Amcheck::NotThere) };
    let mut client = server.connect("postgres")?;
    let is_available = client
        .query_opt("SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck'", &[])
        .context("cannot ask for extensions")?
        .is_some();
    if !is_available {
        return Ok(Amcheck::NotThere);
    }
    // The copy is disposable, so a missing extension may be installed in it.
    command.args(["--all", "--install-missing"]);
    command.args(excluded.iter().map(|relation| format!("--exclude-relation={relation}")));
    let output = command.output().context("cannot run pg_amcheck")?;
    if output.status.success() {
        return Ok(Amcheck::Passed);
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    problems.extend(text.lines().take(MAX_LINES).map(|line| format!("pg_amcheck: {line}")));
    if text.trim().is_empty() {
        problems.push(format!("pg_amcheck ended with {}", output.status));
    }
    Ok(Amcheck::Failed)
}

/// Counts the rows of every table in every database, which reads each table entirely.
fn count_rows(server: &Server, databases: &[String], checked: &mut CheckedData) -> Result<()> {
    const TABLES: &str = "SELECT format('%I.%I', n.nspname, c.relname), c.oid
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'm') AND c.relpersistence = 'p' AND (c.relkind = 'r' OR c.relispopulated)
        ORDER BY 1";
    // For a table with a name that is not UTF-8, which no query can contain: the server makes the query.
    const BY_OID: &str =
        "SELECT substring(query_to_xml(format('SELECT count(*) AS rows FROM ONLY %s', $1::oid::regclass),
        true, true, '')::text FROM '<rows>([0-9]+)</rows>')::bigint";
    let (mut counted, mut all_tables, mut all_rows) = (0, 0, 0);
    for database in databases {
        let mut client = connect(server, database)?;
        let list = || format!("cannot list the tables of {database}");
        let tables = client.query(TABLES, &[]).with_context(list)?;
        for row in tables {
            let Name { text: table, is_exact } = row.try_get(0).with_context(list)?;
            let oid: u32 = row.try_get(1).with_context(list)?;
            let mut locked = checked.locked_tables.iter();
            if locked.any(|locked| locked.database == *database && locked.table == table) {
                continue;
            }
            let rows = match is_exact {
                true => client.query_one(&format!("SELECT count(*) FROM ONLY {table}"), &[]),
                false => client.query_one(BY_OID, &[&oid]),
            };
            match rows.and_then(|row| row.try_get::<_, i64>(0)) {
                Ok(rows) => {
                    all_rows += rows.unsigned_abs();
                    all_tables += 1;
                }
                Err(error) => {
                    let error = error_text(&error);
                    checked.problems.push(format!("cannot read {table} in {database}: {error}"));
                    // The error may have closed the connection.
                    client = connect(server, database)?;
                }
            }
        }
        counted += 1;
    }
    (checked.databases, checked.tables, checked.rows) = (Some(counted), Some(all_tables), Some(all_rows));
    Ok(())
}

fn run_query(server: &Server, database: &str, query: &str) -> Result<QueryResult> {
    let mut result = QueryResult { query: query.to_owned(), columns: Vec::new(), rows: Vec::new() };
    for message in server.connect(database)?.simple_query(query)? {
        if let SimpleQueryMessage::Row(row) = message {
            result.columns = row.columns().iter().map(|column| column.name().to_owned()).collect();
            let value = |index| Ok(row.try_get(index)?.map(str::to_owned));
            let values: std::result::Result<_, postgres::Error> = (0..row.len()).map(value).collect();
            result.rows.push(values.context("cannot read the result")?);
        }
    }
    Ok(result)
}
