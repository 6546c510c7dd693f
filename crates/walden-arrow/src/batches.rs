//! Batches one at a time, for readers that pull them.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use walden_source::inventory::Inventory;

use crate::options::{ReadError, ReadOptions};
use crate::read::{read, read_part};
use crate::row_changes::RowTable;
use crate::schema::Table;
use crate::segments::Part;

/// Maximum number of batches that wait for their reader.
pub const BATCHES_AHEAD: usize = 2;

/// The batches of a table, read by a thread that is never more than a few batches ahead.
///
/// The thread starts with [`Batches::start`] and has ended once this value is dropped.
#[derive(Debug)]
pub struct Batches {
    schema: SchemaRef,
    receiver: Option<Receiver<Result<RecordBatch, ReadError>>>,
    thread: Option<JoinHandle<()>>,
}

impl Batches {
    /// Starts to read a table of the WAL in an inventory.
    pub fn start(inventory: Arc<Inventory>, table: Table, options: ReadOptions) -> Batches {
        Batches::spawn(table.name(), options.schema(table), move |sender| {
            let emit = |batch| send(sender, batch);
            read(&inventory.runs, table, &options, emit)
        })
    }

    /// Starts to read segments of the run with index `run`, see [`Part`]. If no run has this index, there are
    /// no batches.
    pub fn start_part(
        inventory: Arc<Inventory>,
        (run, segments): (usize, Range<usize>),
        table: Table,
        options: ReadOptions,
    ) -> Batches {
        Batches::spawn(table.name(), options.schema(table), move |sender| {
            let Some(run) = inventory.runs.get(run) else { return Ok(()) };
            let end = segments.end.min(run.segments.len());
            let part = Part { run, segments: segments.start.min(end)..end };
            read_part(&part, table, &options, |batch| send(sender, batch)).map(|_| ())
        })
    }

    /// Starts to read the changes of a table's rows, in batches of up to `batch_rows`. Damage ends the
    /// batches with an error.
    pub fn start_row_changes(table: RowTable, batch_rows: usize) -> Batches {
        Batches::spawn("row_changes", table.schema(), move |sender| {
            let filter = table.changes().filter();
            let summary = table.read(filter, batch_rows, |_| {}, |batch| send(sender, batch))?;
            summary.damage.map_or(Ok(()), |damage| Err(ReadError::Damaged(Arc::new(damage))))
        })
    }

    fn spawn(
        table: &str,
        schema: SchemaRef,
        work: impl FnOnce(&SyncSender<Result<RecordBatch, ReadError>>) -> Result<(), ReadError> + Send + 'static,
    ) -> Batches {
        let (sender, receiver) = sync_channel(BATCHES_AHEAD);
        let spawned = std::thread::Builder::new().name(format!("walden {table}")).spawn({
            let sender = sender.clone();
            move || {
                if let Err(error) = work(&sender) {
                    // If the reader has gone, no caller needs the error.
                    let _ = sender.send(Err(error));
                }
            }
        });
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(error) => {
                let _ = sender.try_send(Err(ArrowError::from(error).into()));
                None
            }
        };
        Batches { schema, receiver: Some(receiver), thread }
    }

    /// Returns the next batch or the original error.
    pub fn next_batch(&mut self) -> Option<Result<RecordBatch, ReadError>> {
        match self.receiver.as_ref()?.recv() {
            Ok(batch) => Some(batch),
            Err(_) => self.end(),
        }
    }

    /// Returns an error if the thread has ended by a panic: batches are then missing.
    fn end(&mut self) -> Option<Result<RecordBatch, ReadError>> {
        let thread = self.thread.take()?;
        let panicked =
            || ArrowError::ComputeError("the thread that reads the WAL ended by a panic".to_owned());
        thread.join().err().map(|_| Err(panicked().into()))
    }

    /// Same as [`Batches::next_batch`], for a caller with other work: returns `None` if no batch is ready
    /// after this time.
    pub fn next_batch_within(&mut self, time: Duration) -> Option<Option<Result<RecordBatch, ReadError>>> {
        let Some(receiver) = &self.receiver else { return Some(None) };
        match receiver.recv_timeout(time) {
            Ok(batch) => Some(Some(batch)),
            Err(RecvTimeoutError::Disconnected) => Some(self.end()),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }
}

fn send(sender: &SyncSender<Result<RecordBatch, ReadError>>, batch: RecordBatch) -> ControlFlow<()> {
    match sender.send(Ok(batch)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.next_batch()?;
        Some(batch.map_err(|error| match error {
            ReadError::Arrow(error) => error,
            other => ArrowError::ExternalError(Box::new(other)),
        }))
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // Without a receiver, the thread ends with its next batch.
        self.receiver = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_not_the_end_of_the_batches() {
        let mut batches =
            Batches::spawn("records", SchemaRef::new(arrow::datatypes::Schema::empty()), |_| {
                std::panic::resume_unwind(Box::new("a panic that is not printed"))
            });
        let error = batches.next_batch().unwrap().unwrap_err();
        assert!(matches!(error, ReadError::Arrow(ArrowError::ComputeError(_))), "{error}");
        assert!(batches.next_batch().is_none());
    }
}
