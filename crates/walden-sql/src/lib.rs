#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod functions;
mod mistakes;
mod positions;
mod pruning;
mod row_changes;
mod table;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;
use walden_arrow::{ReadOptions, Table};
use walden_source::inventory::Inventory;

use self::row_changes::{RowChangesFunction, Source};
use self::table::WalTable;

/// WAL as a database of the tables of `walden-arrow`.
pub struct Database {
    context: SessionContext,
    runtime: tokio::runtime::Runtime,
    rows: Arc<Source>,
}

/// Resource limits of queries.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of threads, at least 1.
    pub threads: usize,
    /// Bytes available for sorting, grouping and joining; and the same amount for the pages that
    /// `row_changes` replays. Sorting and grouping use temporary files beyond that; most joins, and sorting
    /// for only the first rows (`ORDER BY` with `LIMIT`), fail.
    pub memory_bytes: usize,
}

impl Database {
    /// Registers the tables of the WAL in an inventory. `options` determine names and the range; threads and
    /// columns come from the queries.
    ///
    /// The function `row_changes` takes columns and rows from `base`, a base backup from which the WAL
    /// continues, otherwise columns from the names.
    ///
    /// Starts `limits.threads` threads, which end when the database is dropped.
    ///
    /// # Errors
    /// Threads or temporary files cannot be created.
    pub fn new(
        inventory: &Arc<Inventory>,
        options: &ReadOptions,
        base: Option<PathBuf>,
        limits: Limits,
    ) -> Result<Database> {
        let threads = limits.threads.max(1);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .map_err(DataFusionError::from)?;
        let pool = Arc::new(FairSpillPool::new(limits.memory_bytes));
        let environment = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
        let config = SessionConfig::new().with_target_partitions(threads).with_information_schema(true);
        let context = SessionContext::new_with_config_rt(config, environment);
        for table in Table::all() {
            let provider = WalTable::new(inventory.clone(), table, options.clone());
            context.register_table(table.name(), Arc::new(provider))?;
        }
        for function in functions::all() {
            context.register_udf(function);
        }
        let rows = Arc::new(Source {
            inventory: inventory.clone(),
            options: options.clone(),
            base,
            memory_bytes: limits.memory_bytes,
            notes: Mutex::default(),
            has_gaps: AtomicBool::new(false),
        });
        context.register_udtf("row_changes", Arc::new(RowChangesFunction(Arc::clone(&rows))));
        Ok(Database { context, runtime, rows })
    }

    /// Returns the temporary files of this database's queries.
    pub fn temporary_files(&self) -> TemporaryFiles {
        TemporaryFiles(Arc::downgrade(&self.context.runtime_env().disk_manager))
    }

    /// Returns notes for the caller about the queries so far, for example parts of the WAL that `row_changes`
    /// did not read.
    pub fn notes(&self) -> Vec<String> {
        self.rows.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether `row_changes` may lack changes, for a reason stated in the notes.
    pub fn has_gaps(&self) -> bool {
        self.rows.has_gaps.load(Ordering::Relaxed)
    }

    /// Runs a query and calls `each` with the schema of its result, then with each batch, until that fails.
    ///
    /// # Errors
    /// Returns the error of the query, of reading the WAL, or of `each`.
    pub fn query<E: From<DataFusionError>>(
        &self,
        sql: &str,
        mut each: impl FnMut(&SchemaRef, Option<RecordBatch>) -> Result<(), E>,
    ) -> Result<(), E> {
        let reads_only =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        self.runtime.block_on(async {
            let mut stream = self.plan(sql, &reads_only).await.map_err(|error| self.explain(error, sql))?;
            let schema = stream.schema();
            each(&schema, None)?;
            while let Some(batch) = stream.next().await {
                each(&schema, Some(batch?))?;
            }
            Ok(())
        })
    }

    /// Prepares a query; reading the stream runs it.
    async fn plan(&self, sql: &str, allowed: &SQLOptions) -> Result<SendableRecordBatchStream> {
        let plan = self.context.state().create_logical_plan(sql).await?;
        allowed.verify_plan(&plan)?;
        let plan = positions::replace_texts(plan)?;
        self.context.execute_logical_plan(plan).await?.execute_stream().await
    }

    fn explain(&self, error: DataFusionError, sql: &str) -> DataFusionError {
        let tables: Vec<String> = Table::all().map(|table| table.name().to_owned()).collect();
        mistakes::explain(error, sql, &tables)
    }
}

/// The temporary files of a database's queries, for a process that is ended by a signal. Dropping the
/// database removes the files, but a signal does not drop it.
#[derive(Clone, Debug)]
pub struct TemporaryFiles(Weak<DiskManager>);

impl TemporaryFiles {
    /// Removes all existing files. Running queries fail afterwards if they need them.
    pub fn remove(&self) {
        let Some(manager) = self.0.upgrade() else { return };
        for folder in manager.temp_dir_paths() {
            // A running query may create a file in the directory while it is emptied.
            let _ = (0..REMOVAL_ATTEMPTS).any(|_| fs::remove_dir_all(&folder).is_ok() || !folder.exists());
        }
    }
}

/// Number of attempts to remove a directory.
const REMOVAL_ATTEMPTS: usize = 10;

/// Whether a query of [`Database::query`] needed more than [`Limits::memory_bytes`].
pub fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Describes the error of a query in one line if the query itself is wrong: its syntax, a missing table or
/// column, or a statement that is not allowed. `None` for errors of reading the WAL or of running the query.
///
/// `DataFusion`'s own text of an error repeats that of its cause; for a syntax error, in Rust's debug format.
pub fn what_is_wrong(error: &DataFusionError) -> Option<String> {
    use DataFusionError::{NotImplemented, Plan, SQL, SchemaError};
    let text = match error.find_root() {
        SQL(cause, _) => {
            let text = cause.to_string();
            format!("wrong syntax: {}", text.strip_prefix("sql parser error: ").unwrap_or(&text))
        }
        // Users cannot change options of DataFusion.
        SchemaError(cause, _) => cause
            .to_string()
            .replace(" or disable the datafusion.sql_parser.enable_ident_normalization configuration", ""),
        Plan(text) => text.clone(),
        NotImplemented(text) => format!("not supported: {text}"),
        _ => return None,
    };
    Some(text.lines().collect::<Vec<&str>>().join(" "))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::path::Path;

    use datafusion::arrow::array::AsArray as _;
    use datafusion::arrow::datatypes::Int64Type;

    use super::*;

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/17.11");

    fn database() -> Database {
        database_of(Path::new(GOLDEN))
    }

    fn database_of(path: &Path) -> Database {
        let inventory = Arc::new(Inventory::search(&[path]).unwrap());
        let version = inventory.runs.first().map(|run| run.version);
        let names = walden_source::names::Names::builtin(version);
        let options = ReadOptions::new(Arc::new(names), 1);
        Database::new(&inventory, &options, None, Limits { threads: 1, memory_bytes: 64 << 20 }).unwrap()
    }

    fn error_of(database: &Database, query: &str) -> DataFusionError {
        database.query::<DataFusionError>(query, |_, _| Ok(())).unwrap_err()
    }

    #[test]
    fn what_is_wrong_with_a_query_is_said_once() {
        let database = database();
        let wrong = |query: &str| what_is_wrong(&error_of(&database, query)).unwrap();
        let column = wrong("SELECT nothing FROM records");
        assert!(column.starts_with("No field named nothing."), "{column}");
        assert_eq!(column.matches("Valid fields are").count(), 1, "{column}");
        assert!(!column.contains('\n'), "{column}");
        let syntax = wrong("SELEC 1");
        assert!(syntax.starts_with("wrong syntax: ") && syntax.contains("SELEC"), "{syntax}");
        assert!(!syntax.contains("ParserError") && !syntax.contains("sql parser error"), "{syntax}");
        let failed = error_of(&database, "SELECT lsn(relation) FROM records");
        assert!(what_is_wrong(&failed).is_none() && !is_out_of_memory(&failed), "{failed}");
    }

    #[test]
    fn common_mistakes_are_explained() {
        let database = database();
        for (query, expected) in [
            ("SELECT * FROM record", "no table is named record: the tables are records, blocks,"),
            ("SELECT * FROM other.t", "no table is named datafusion.other.t"),
            ("SELECT * FROM records WHERE record_type = \"INSERT\"", "text in single quotes: 'INSERT'"),
            ("SELECT * FROM records WHERE start_lsn > 'x'", "expected a position such as '16/B374D848'"),
            ("SELECT * FROM records WHERE time > 'yesterday'", "now() - interval '1 day'"),
            ("SELECT * FROM records WHERE time BETWEEN 'now' AND 'then'", "found 'now'"),
            ("SELECT * FROM records WHERE start_lsn > '0/1'::pg_lsn", "lsn('16/B374D848') makes a position"),
        ] {
            let wrong = what_is_wrong(&error_of(&database, query)).unwrap();
            assert!(wrong.contains(expected), "{query}: {wrong}");
        }
    }

    #[test]
    fn positions_are_compared_with_text() {
        let database = database();
        let count = |condition: &str| count(&database, &format!("records AS r WHERE {condition}"));
        let middle = "0/980000";
        for (text, number) in [
            ("start_lsn >= '0/980000'", "start_lsn >= lsn('0/980000')"),
            ("'0/980000' > r.start_lsn", "start_lsn < lsn('0/980000')"),
            ("end_lsn BETWEEN '0/940000' AND '0/00980000'", "end_lsn BETWEEN 9699328 AND 9961472"),
            ("start_lsn > '9961472'", "start_lsn > 9961472"),
            (
                "start_lsn IN (SELECT min(start_lsn) FROM records WHERE start_lsn > '0/980000')",
                "start_lsn IN (SELECT min(start_lsn) FROM records WHERE start_lsn > 9961472)",
            ),
        ] {
            assert!(count(number) > 0, "{number}");
            assert_eq!(count(text), count(number), "{text}");
        }
        let first = format!(
            "start_lsn IN ('0/1', (SELECT min(start_lsn) FROM records WHERE start_lsn > '{middle}'))"
        );
        assert_eq!(count(&first), 1);
    }

    fn count(database: &Database, table: &str) -> i64 {
        let mut rows = 0;
        let query = format!("SELECT count(*) FROM {table}");
        let result = database.query::<DataFusionError>(&query, |_, batch| {
            let counts = batch.as_ref().map(|batch| batch.column(0).as_primitive::<Int64Type>());
            rows += counts.into_iter().flatten().flatten().sum::<i64>();
            Ok(())
        });
        result.unwrap();
        rows
    }

    /// A checkpoint of a running server can remove a file at any time.
    #[test]
    fn a_file_that_is_removed_after_it_was_found_is_read() {
        let golden = Inventory::search(&[GOLDEN]).unwrap();
        let segment = golden.segments().next().unwrap();
        let mut content = Vec::new();
        walden_source::open::open(segment).unwrap().read_to_end(&mut content).unwrap();
        let folder = std::env::temp_dir().join(format!("walden-sql-held-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(segment.name.to_string()), content).unwrap();
        let held = database_of(&folder);
        fs::remove_dir_all(&folder).unwrap();
        for table in ["records", "transactions"] {
            let rows = count(&database(), table);
            assert!(rows > 0, "{table}");
            assert_eq!(count(&held, table), rows, "{table}");
        }
    }

    #[test]
    fn a_lack_of_memory_is_told_from_other_errors() {
        let exhausted = DataFusionError::ResourcesExhausted("Failed to allocate".to_owned());
        assert!(is_out_of_memory(&exhausted.context("Not enough memory to continue external sort")));
        assert!(!is_out_of_memory(&DataFusionError::Execution("other".to_owned())));
    }

    #[test]
    fn temporary_files_are_removed_while_the_database_is_there() {
        let database = database();
        let files = database.temporary_files();
        files.remove();
        let manager = Arc::clone(&database.context.runtime_env().disk_manager);
        let file = manager.create_tmp_file("a test").unwrap();
        let folders = manager.temp_dir_paths();
        assert!(!folders.is_empty() && folders.iter().all(|folder| folder.is_dir()));
        files.remove();
        assert!(folders.iter().all(|folder| !folder.exists()));
        // They do not keep files that a regularly closed database removes.
        drop((file, manager, database));
        assert!(files.0.upgrade().is_none());
    }
}
