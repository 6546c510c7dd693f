//! A table of WAL for DataFusion.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use walden_arrow::{
    BATCHES_AHEAD, Part, ReadError, ReadOptions, Table, is_divisible, read, read_part, segments_between,
};
use walden_source::inventory::Inventory;

use crate::pruning::{self, speaks_of};

/// A table of the WAL in an inventory.
#[derive(Debug)]
pub(crate) struct WalTable {
    inventory: Arc<Inventory>,
    table: Table,
    options: ReadOptions,
    schema: SchemaRef,
}

impl WalTable {
    pub fn new(inventory: Arc<Inventory>, table: Table, options: ReadOptions) -> WalTable {
        let options = options.columns(None).threads(1);
        WalTable { inventory, table, schema: options.schema(table), options }
    }

    /// Whether conditions on positions do not affect the other rows.
    fn is_of_records(&self) -> bool {
        matches!(self.table, Table::Records | Table::Blocks)
    }

    /// Returns about `count` parts with rows for which the conditions may hold; fewer if the segments are
    /// large, because one thread reads each part.
    fn parts(&self, filters: &[Expr], count: usize) -> Vec<ToRead> {
        let runs = &self.inventory.runs;
        let count = runs.iter().map(|run| run.decoding_threads(count)).min().unwrap_or(count);
        let mut wanted: Vec<Part<'_>> = runs.iter().map(Part::all).collect();
        if self.is_of_records() {
            let (from, to) = pruning::Range::from_conditions("start_lsn", filters).positions();
            let time = pruning::Range::from_conditions("time", filters);
            let micros = |value: i128| value.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
            for part in &mut wanted {
                part.segments = Part::between(part.run, from, to).segments;
                if time != pruning::Range::default() {
                    let of_time = segments_between(part.run, time.from.map(micros), time.to.map(micros));
                    part.segments.start = part.segments.start.max(of_time.start);
                    part.segments.end = part.segments.end.min(of_time.end).max(part.segments.start);
                }
            }
        }
        let index = |part: &Part<'_>| runs.iter().position(|run| std::ptr::eq(run, part.run));
        Part::divide(&wanted, count)
            .into_iter()
            .filter_map(|part| Some(ToRead::Segments { run: index(&part)?, segments: part.segments }))
            .collect()
    }
}

#[async_trait]
impl TableProvider for WalTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = self.options.clone().columns(projection.cloned());
        let schema = options.schema(self.table);
        let mut parts = match is_divisible(self.table) {
            true => self.parts(filters, state.config().target_partitions()),
            false => vec![ToRead::Table],
        };
        if parts.is_empty() {
            // A plan needs a partition, even if there is nothing to read.
            parts.push(ToRead::Nothing);
        }
        let stream = |part| -> Arc<dyn PartitionStream> {
            Arc::new(PartStream {
                inventory: self.inventory.clone(),
                table: self.table,
                options: options.clone(),
                schema: schema.clone(),
                part,
            })
        };
        let streams: Vec<Arc<dyn PartitionStream>> = parts.into_iter().map(stream).collect();
        Ok(Arc::new(StreamingTableExec::try_new(schema, streams, None, None, false, limit)?))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let skips = |filter: &&Expr| speaks_of("start_lsn", filter) || speaks_of("time", filter);
        let support = |filter| match self.is_of_records() && skips(filter) {
            true => TableProviderFilterPushDown::Inexact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }
}

/// The part of a table that a stream reads.
#[derive(Clone, Debug)]
enum ToRead {
    Nothing,
    /// All of a table that cannot be divided.
    Table,
    /// Segments of a run, both by their indexes.
    Segments {
        run: usize,
        segments: Range<usize>,
    },
}

/// A part of a table, read when rows are requested from its stream.
#[derive(Debug)]
struct PartStream {
    inventory: Arc<Inventory>,
    table: Table,
    options: ReadOptions,
    schema: SchemaRef,
    part: ToRead,
}

impl PartitionStream for PartStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStream::builder(self.schema.clone(), BATCHES_AHEAD);
        let sender = builder.tx();
        let (inventory, table, options) = (self.inventory.clone(), self.table, self.options.clone());
        let part = self.part.clone();
        builder.spawn_blocking(move || {
            let emit = |batch| match sender.blocking_send(Ok(batch)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            };
            let result = match part {
                ToRead::Nothing => Ok(()),
                ToRead::Table => read(&inventory.runs, table, &options, emit),
                ToRead::Segments { run, segments } => {
                    let part = Part { run: &inventory.runs[run], segments };
                    read_part(&part, table, &options, emit).map(|_| ())
                }
            };
            // Sent after the batches that wait for their reader: the error of the task itself may overtake
            // them.
            if let Err(error) = result {
                let _ = sender.blocking_send(Err(external(error)));
            }
            Ok(())
        });
        builder.build()
    }
}

pub(crate) fn external(error: ReadError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
