#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod functions;
mod pruning;
mod row_changes;
mod table;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::SQLOptions;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;
use walden_arrow::{ReadOptions, Table};
use walden_source::inventory::Inventory;

use self::row_changes::{RowChangesFunction, Source};
use self::table::WalTable;

/// A log as a database of the tables of `walden-arrow`.
pub struct Database {
    context: SessionContext,
    runtime: tokio::runtime::Runtime,
    rows: Arc<Source>,
}

/// How queries run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of threads, at least 1.
    pub threads: usize,
    /// Bytes that sorting, grouping and joining may take before they spill to temporary files; and as many for the pages that
    /// `row_changes` replays.
    pub memory_bytes: usize,
}

impl Database {
    /// Registers the tables of what an inventory found. `options` give names and the range; threads and columns are the queries'.
    ///
    /// The function `row_changes` takes columns and rows from `base`, a base backup from which the log goes on, or else columns from
    /// the names.
    ///
    /// Starts `limits.threads` threads, which end when the database is dropped.
    ///
    /// # Errors
    /// Threads or temporary files cannot be had.
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
        });
        context.register_udtf("row_changes", Arc::new(RowChangesFunction(Arc::clone(&rows))));
        Ok(Database { context, runtime, rows })
    }

    /// What the caller should know of the queries so far: parts of the log that `row_changes` did not read, for example.
    pub fn notes(&self) -> Vec<String> {
        self.rows.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a query and calls `each` with the schema of its result, then with each batch, until that fails.
    ///
    /// # Errors
    /// The query's, the log's, or that of `each`.
    pub fn query<E: From<DataFusionError>>(
        &self,
        sql: &str,
        mut each: impl FnMut(&SchemaRef, Option<RecordBatch>) -> Result<(), E>,
    ) -> Result<(), E> {
        let reads_only =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        self.runtime.block_on(async {
            let frame = self.context.sql_with_options(sql, reads_only).await?;
            let mut stream = frame.execute_stream().await?;
            let schema = stream.schema();
            each(&schema, None)?;
            while let Some(batch) = stream.next().await {
                each(&schema, Some(batch?))?;
            }
            Ok(())
        })
    }
}

/// Whether an error of [`Database::query`] is the query's own: its syntax, a table or a column that is not there, a statement that
/// is not allowed. Everything else is the log's, or happened while the query ran.
pub fn is_wrong_query(error: &DataFusionError) -> bool {
    use DataFusionError::{NotImplemented, Plan, SQL, SchemaError};
    matches!(error.find_root(), Plan(_) | SQL(..) | SchemaError(..) | NotImplemented(_))
}
