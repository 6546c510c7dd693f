//! `row_changes('public.orders')`: the changes of a table's rows, as a table function.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{ScalarValue, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use walden_arrow::row_changes::{ROW_CHANGE_BATCH_ROWS, RowTable};
use walden_arrow::{BATCHES_AHEAD, ReadError, ReadOptions};
use walden_rows::{Filter, Operation, Options, RowChanges, RowsError, Wanted};
use walden_source::inventory::Inventory;

use crate::pruning;
use crate::table::external;

/// The source of the tables of changes.
#[derive(Debug)]
pub(crate) struct Source {
    pub inventory: Arc<Inventory>,
    pub options: ReadOptions,
    pub base: Option<PathBuf>,
    pub memory_bytes: usize,
    /// Notes for the caller of a query.
    pub notes: Mutex<Vec<String>>,
    /// Whether changes may be missing.
    pub has_gaps: AtomicBool,
}

impl Source {
    /// Surveys the WAL for a table, in one pass.
    fn survey(&self, table: Wanted, with_aborted: bool) -> Result<RowChanges, RowsError> {
        let options = Options::new(table, self.memory_bytes)
            .base(self.base.clone())
            .filter(Filter {
                from: self.options.from,
                to: self.options.to,
                with_aborted,
                ..Filter::default()
            })
            .threads(self.options.threads);
        let changes = RowChanges::survey_part_of(&self.inventory.runs, &self.options.names, options, |_| {})?;
        self.note(&changes.notes);
        self.has_gaps.fetch_or(!changes.gaps.is_empty(), Ordering::Relaxed);
        Ok(changes)
    }

    fn note(&self, texts: &[String]) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        for text in texts {
            if !notes.contains(text) {
                notes.push(text.clone());
            }
        }
    }
}

/// The table function.
#[derive(Debug)]
pub(crate) struct RowChangesFunction(pub Arc<Source>);

impl TableFunctionImpl for RowChangesFunction {
    fn call_with_args(&self, arguments: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let (table, with_aborted) = match arguments.exprs() {
            [Expr::Literal(table, _)] => (table, false),
            [Expr::Literal(table, _), Expr::Literal(ScalarValue::Boolean(Some(with)), _)] => (table, *with),
            found => {
                return plan_err!(
                    "row_changes: expected a table's name and, to have what was rolled back too, true, as in \
                     row_changes('public.orders', true); found {} other arguments",
                    found.len()
                );
            }
        };
        let Some(Some(name)) = table.try_as_str() else {
            return plan_err!(
                "row_changes: expected a table's name, as in row_changes('public.orders'), found {table}"
            );
        };
        let wanted = Wanted::Name(name.to_owned());
        // Archives may wait for their store, which is not allowed in the planning thread.
        let table = std::thread::scope(|scope| {
            let work = || RowTable::new(self.0.survey(wanted, with_aborted)?, self.0.options.lsn_text);
            scope.spawn(work).join()
        });
        let table =
            table.map_err(|_| DataFusionError::Internal("the survey of the log panicked".to_owned()))?;
        let table = table.map_err(|error| external(error.into()))?;
        Ok(Arc::new(RowChangesTable { table, source: Arc::clone(&self.0) }))
    }
}

/// The table of one call.
#[derive(Debug)]
struct RowChangesTable {
    table: RowTable,
    source: Arc<Source>,
}

#[async_trait]
impl TableProvider for RowChangesTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut table = self.table.clone();
        if let Some(columns) = projection {
            table = table.project(columns)?;
        }
        let schema = table.schema();
        let stream: Arc<dyn PartitionStream> = Arc::new(RowStream {
            filter: narrowed(table.changes().filter(), filters),
            batch_rows: limit.map_or(ROW_CHANGE_BATCH_ROWS, |limit| limit.clamp(1, ROW_CHANGE_BATCH_ROWS)),
            schema: Arc::clone(&schema),
            source: Arc::clone(&self.source),
            table,
        });
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![stream], None, None, false, limit)?))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let before = Filter::default();
        let support = |filter: &&Expr| match narrowed(&before, std::slice::from_ref(*filter)) != before {
            true => TableProviderFilterPushDown::Inexact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }
}

/// Narrows a filter by conditions that all hold. The result may pass more changes than the conditions do.
fn narrowed(filter: &Filter, conditions: &[Expr]) -> Filter {
    let mut filter = filter.clone();
    let (from, to) = pruning::Range::from_conditions("lsn", conditions).positions();
    filter.from = filter.from.max(from);
    filter.to = [filter.to, to].into_iter().flatten().min();
    for column in ["xid", "top_xid"] {
        let range = pruning::Range::from_conditions(column, conditions);
        if range.from == range.to && filter.xid.is_none() {
            filter.xid = range.from.and_then(|xid| u32::try_from(xid).ok());
        }
    }
    for condition in conditions {
        if let Some(wanted) = operations(condition).filter(|_| filter.operations.is_empty()) {
            filter.operations = wanted;
        }
    }
    filter
}

/// Returns the operations that pass a condition; `None` if the condition does not restrict them, or passes
/// events.
fn operations(condition: &Expr) -> Option<Vec<Operation>> {
    let is_operation = |expr: &Expr| matches!(expr, Expr::Column(column) if column.name == "operation");
    let operation = |expr: &Expr| {
        let Expr::Literal(value, _) = expr else { return None };
        Operation::from_name(value.try_as_str()??)
    };
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) if is_operation(left) => {
            Some(vec![operation(right)?])
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            Some([operations(left)?, operations(right)?].concat())
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            operations(left).or_else(|| operations(right))
        }
        Expr::InList(InList { expr, list, negated: false }) if is_operation(expr) => {
            list.iter().map(operation).collect()
        }
        _ => None,
    }
}

/// The changes, read when rows are requested from the stream.
#[derive(Debug)]
struct RowStream {
    table: RowTable,
    filter: Filter,
    batch_rows: usize,
    schema: SchemaRef,
    source: Arc<Source>,
}

impl PartitionStream for RowStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStream::builder(self.schema.clone(), BATCHES_AHEAD);
        let sender = builder.tx();
        let (table, filter, source) = (self.table.clone(), self.filter.clone(), Arc::clone(&self.source));
        let batch_rows = self.batch_rows;
        builder.spawn_blocking(move || {
            let emit = |batch| match sender.blocking_send(Ok(batch)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            };
            if let Some(gap) = table.changes().gap_at_start(&filter) {
                source.note(&[gap.why]);
                source.has_gaps.store(true, Ordering::Relaxed);
            }
            let error = match table.read(&filter, batch_rows, |_| {}, emit) {
                Ok(summary) => {
                    source.note(&summary.counts.notes());
                    summary.damage.map(|damage| ReadError::Damaged(Arc::new(damage)))
                }
                Err(error) => Some(error),
            };
            // Sent after the batches that wait for their reader: the error of the task itself may overtake
            // them.
            if let Some(error) = error {
                let _ = sender.blocking_send(Err(external(error)));
            }
            Ok(())
        });
        builder.build()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{col, lit};
    use walden_format::lsn::Lsn;

    use super::*;

    fn narrow(condition: Expr) -> Filter {
        narrowed(&Filter::default(), &[condition])
    }

    #[test]
    fn conditions_narrow_what_is_read() {
        let both = narrow(col("lsn").gt_eq(lit(10_u64)).and(col("lsn").lt_eq(lit(20_u64))));
        assert_eq!((both.from, both.to), (Some(Lsn(10)), Some(Lsn(21))));
        assert_eq!(narrow(col("top_xid").eq(lit(7_u32))).xid, Some(7));
        assert_eq!(narrow(col("xid").gt(lit(7_u32))), Filter::default());
        let (insert, delete) = (col("operation").eq(lit("insert")), lit("delete"));
        assert_eq!(narrow(insert.clone()).operations, [Operation::Insert]);
        let either = insert.clone().or(col("operation").eq(delete.clone()));
        assert_eq!(narrow(either).operations, [Operation::Insert, Operation::Delete]);
        let listed = col("operation").in_list(vec![delete.clone(), lit("update")], false);
        assert_eq!(narrow(listed).operations, [Operation::Delete, Operation::Update]);
        for other in [
            insert.clone().or(col("xid").eq(lit(7_u32))),
            col("operation").in_list(vec![delete.clone(), lit("truncate")], false),
            col("operation").in_list(vec![delete], true),
            col("operation").eq(lit("drop")),
        ] {
            assert_eq!(narrow(other.clone()), Filter::default(), "{other}");
        }
    }
}
