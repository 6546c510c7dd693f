//! Checks restored data: verifies indexes and tables by `pg_amcheck`, and counts every row or runs the user's
//! queries.

use anyhow::{Context, Result};
use postgres::SimpleQueryMessage;
use serde::Serialize;

use super::DrillOptions;
use super::server::Server;

/// Maximum number of lines of a program's output that are reported.
const MAX_LINES: usize = 20;

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
    /// Problems that the checks found.
    pub problems: Vec<String>,
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

/// Checks the data of a recovered server.
pub fn check(server: &Server, options: &DrillOptions) -> Result<CheckedData> {
    let mut checked = CheckedData::default();
    if options.should_amcheck {
        checked.amcheck = amcheck(server, &mut checked.problems)?;
    }
    if options.queries.is_empty() {
        count_rows(server, &mut checked)?;
    }
    for query in &options.queries {
        match run_query(server, &options.database, query) {
            Ok(result) => checked.queries.push(result),
            Err(error) => checked.problems.push(format!("{query}: {error:#}")),
        }
    }
    Ok(checked)
}

fn amcheck(server: &Server, problems: &mut Vec<String>) -> Result<Amcheck> {
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
    let output = command.args(["--all", "--install-missing"]).output().context("cannot run pg_amcheck")?;
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
fn count_rows(server: &Server, checked: &mut CheckedData) -> Result<()> {
    const DATABASES: &str = "SELECT datname FROM pg_database WHERE datallowconn ORDER BY datname";
    const TABLES: &str = "SELECT format('%I.%I', n.nspname, c.relname)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'm') AND c.relpersistence = 'p' AND (c.relkind = 'r' OR c.relispopulated)
        ORDER BY 1";
    let databases = server.connect("postgres")?.query(DATABASES, &[]).context("cannot list databases")?;
    let (mut counted, mut all_tables, mut all_rows) = (0, 0, 0);
    for database in databases.iter().map(|row| row.get::<_, String>(0)) {
        let mut client = server.connect(&database)?;
        let tables =
            client.query(TABLES, &[]).with_context(|| format!("cannot list the tables of {database}"))?;
        for table in tables.iter().map(|row| row.get::<_, String>(0)) {
            match client.query_one(&format!("SELECT count(*) FROM ONLY {table}"), &[]) {
                Ok(row) => {
                    all_rows += row.get::<_, i64>(0).unsigned_abs();
                    all_tables += 1;
                }
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    checked.problems.push(format!("cannot read {table} in {database}: {error:#}"));
                    // The error may have closed the connection.
                    client = server.connect(&database)?;
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
            let value = |index| row.get(index).map(str::to_owned);
            result.rows.push((0..row.len()).map(value).collect());
        }
    }
    Ok(result)
}
