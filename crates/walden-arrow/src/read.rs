//! Reads a table as record batches.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use walden_format::record::Record;
use walden_format::rmgr::{Kind, KindTable};
use walden_format::simple::SimpleRecord;
use walden_source::inventory::Run;
use walden_source::scan::Damage;

use crate::blocks::BlockRows;
use crate::columns::NO_TIME;
use crate::framing::{FramingRows, SegmentRows, SumRows};
use crate::options::{Emit, ReadError, ReadOptions};
use crate::records::RecordRows;
use crate::rows::{ColumnSelection, Place, Rows};
use crate::schema::Table;
use crate::segments::{Bounds, Part, read_segments};
use crate::visitor::Observer;
use crate::{summary, transactions};

/// Maximum number of bytes of segments that are read at a time. The rows of a segment, which take up to twice
/// as much memory, are kept until the segment's turn; a single thread delivers rows as it reads them.
const BYTES_AT_A_TIME: u64 = 256 << 20;

/// Reads a table of runs, in WAL order, and calls `emit` with each batch until it breaks.
///
/// Memory does not grow with the WAL, except for the table `relations`, which grows with the number of
/// relations, and `transactions`, which grows with the number of transactions in progress.
///
/// # Errors
/// Damage in the WAL, after `emit` received all rows before it; for tables of sums, runs of several clusters
/// or versions.
pub fn read(
    runs: &[Run],
    table: Table,
    options: &ReadOptions,
    mut emit: impl FnMut(RecordBatch) -> ControlFlow<()> + Send,
) -> Result<(), ReadError> {
    match table {
        Table::Transactions => return transactions::read(runs, options, &mut emit),
        Table::Checkpoints | Table::Relations => {
            let _ = emit(summary::read(runs, table, options)?);
            return Ok(());
        }
        Table::Records | Table::Blocks | Table::Framing | Table::Segments => {}
    }
    for run in runs {
        if read_part(&Part::all(run), table, options, &mut emit)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Whether a table can be read in parts, by several concurrent readers.
pub fn is_divisible(table: Table) -> bool {
    matches!(table, Table::Records | Table::Blocks | Table::Framing | Table::Segments)
}

/// Reads a table of a part of a run, like [`read`]. Tables that are not divisible have no rows in a part.
///
/// # Errors
/// Damage in the WAL, after `emit` received all rows before it.
pub fn read_part(
    part: &Part<'_>,
    table: Table,
    options: &ReadOptions,
    mut emit: impl FnMut(RecordBatch) -> ControlFlow<()> + Send,
) -> Result<ControlFlow<()>, ReadError> {
    match table {
        Table::Records => read_rows::<RecordRows>(part, table, options, &mut emit),
        Table::Blocks => read_rows::<BlockRows>(part, table, options, &mut emit),
        Table::Framing => read_sums(part, table, options, FramingRows::default(), &mut emit),
        Table::Segments => read_sums(part, table, options, SegmentRows::default(), &mut emit),
        Table::Transactions | Table::Checkpoints | Table::Relations => Ok(ControlFlow::Continue(())),
    }
}

/// Takes full rows while their segment is still being read.
type Deliver<'a, R> = Mutex<&'a mut (dyn FnMut(R) -> ControlFlow<()> + Send)>;

/// Rows of a segment, delivered whenever a batch is full, or kept until the segment's turn.
struct Filling<'a, R> {
    wanted: &'a ColumnSelection,
    batch_rows: usize,
    kinds: &'static KindTable,
    rows: R,
    full: Vec<R>,
    deliver: Option<&'a Deliver<'a, R>>,
}

impl<R: Rows> Filling<'_, R> {
    #[inline(always)]
    fn added(&mut self) -> ControlFlow<()> {
        if self.rows.len() < self.batch_rows { ControlFlow::Continue(()) } else { self.next_batch() }
    }

    #[inline(never)]
    fn next_batch(&mut self) -> ControlFlow<()> {
        let full = std::mem::replace(&mut self.rows, R::new(self.wanted, self.batch_rows));
        match self.deliver {
            Some(deliver) => (deliver.lock().unwrap_or_else(PoisonError::into_inner))(full),
            None => {
                self.full.push(full);
                ControlFlow::Continue(())
            }
        }
    }
}

impl<R: Rows> Observer for Filling<'_, R> {
    fn record(&mut self, record: &Record<'_>, kind: Kind, time: i64) -> ControlFlow<()> {
        self.rows.record(record, kind, self.kinds, time);
        self.added()
    }

    #[inline(always)]
    fn simple(&mut self, record: &SimpleRecord<'_>, kind: Kind, time: i64) -> ControlFlow<()> {
        self.rows.simple(record, kind, time);
        self.added()
    }
}

fn read_rows<R: Rows>(
    part: &Part<'_>,
    table: Table,
    options: &ReadOptions,
    emit: &mut Emit<'_>,
) -> Result<ControlFlow<()>, ReadError> {
    let wanted = options.wanted(table);
    let mut reader = RowReader { table, options, wanted: &wanted, bounds: options.bounds(&wanted), emit };
    let at_a_time = (BYTES_AT_A_TIME / part.run.segment_size.bytes()) as usize;
    let threads = options.threads.min(at_a_time);
    if threads > 1 {
        return reader.in_parallel::<R>(part, threads);
    }
    for unit in part.units() {
        let flow = match unit.segments.len() {
            1 => reader.in_turn::<R>(&unit)?,
            _ => reader.in_parallel::<R>(&unit, 1)?,
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}

struct RowReader<'a, 'e> {
    table: Table,
    options: &'a ReadOptions,
    wanted: &'a ColumnSelection,
    bounds: Bounds,
    emit: &'a mut Emit<'e>,
}

impl RowReader<'_, '_> {
    /// Reads several segments at a time; the rows of each are kept until the segment's turn.
    fn in_parallel<R: Rows>(
        &mut self,
        part: &Part<'_>,
        threads: usize,
    ) -> Result<ControlFlow<()>, ReadError> {
        let RowReader { table, options, wanted, .. } = *self;
        let bounds = Bounds { threads, in_turn: false, ..self.bounds };
        let mut outcome = Ok(ControlFlow::Continue(()));
        let damage = read_segments(
            part,
            bounds,
            || filling::<R>(part, wanted, options, None),
            |read| {
                self.bounds.known_time = Some(read.time_after);
                let place = place(part, read.index, options);
                let Filling { full, rows, .. } = read.observer;
                for mut rows in full.into_iter().chain([rows]).filter(|rows| rows.len() > 0) {
                    fill_times(rows.times(), read.time_before);
                    outcome = emit_rows(&rows, table, options, &place, self.emit);
                    if !matches!(outcome, Ok(ControlFlow::Continue(()))) {
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            },
        );
        finish(outcome, damage)
    }

    /// Reads one segment; each batch is delivered during the read.
    fn in_turn<R: Rows>(&mut self, part: &Part<'_>) -> Result<ControlFlow<()>, ReadError> {
        let RowReader { table, options, wanted, .. } = *self;
        let bounds = Bounds { threads: 1, in_turn: true, ..self.bounds };
        let place = place(part, part.segments.start, options);
        let mut outcome = Ok(ControlFlow::Continue(()));
        let mut deliver = |rows: R| match emit_rows(&rows, table, options, &place, self.emit) {
            Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
            other => {
                outcome = other;
                ControlFlow::Break(())
            }
        };
        let damage = {
            let deliver: Deliver<'_, R> = Mutex::new(&mut deliver);
            let filling = || filling(part, wanted, options, Some(&deliver));
            read_segments(part, bounds, filling, |read| {
                self.bounds.known_time = Some(read.time_after);
                let rest = read.observer.rows;
                match rest.len() {
                    0 => ControlFlow::Continue(()),
                    _ => (deliver.lock().unwrap_or_else(PoisonError::into_inner))(rest),
                }
            })
        };
        finish(outcome, damage)
    }
}

fn filling<'a, R: Rows>(
    part: &Part<'_>,
    wanted: &'a ColumnSelection,
    options: &ReadOptions,
    deliver: Option<&'a Deliver<'a, R>>,
) -> Filling<'a, R> {
    let batch_rows = options.batch_rows.max(1);
    Filling {
        wanted,
        batch_rows,
        kinds: KindTable::for_version(part.run.version),
        rows: R::new(wanted, batch_rows),
        full: Vec::new(),
        deliver,
    }
}

fn finish(
    outcome: Result<ControlFlow<()>, ReadError>,
    damage: Option<Arc<Damage>>,
) -> Result<ControlFlow<()>, ReadError> {
    match (outcome?, damage) {
        (ControlFlow::Continue(()), Some(damage)) => Err(ReadError::Damaged(damage)),
        (flow, _) => Ok(flow),
    }
}

fn place<'a>(part: &Part<'a>, index: usize, options: &'a ReadOptions) -> Place<'a> {
    Place {
        timeline: part.run.timeline,
        segment: part.run.segments[index].name,
        version: part.run.version,
        names: &options.names,
    }
}

/// Assigns the time before the segment to rows before its first transaction end.
fn fill_times(times: &mut [i64], before: i64) {
    times.iter_mut().take_while(|time| **time == NO_TIME).for_each(|time| *time = before);
}

fn emit_rows<R: Rows>(
    rows: &R,
    table: Table,
    options: &ReadOptions,
    place: &Place<'_>,
    emit: &mut Emit<'_>,
) -> Result<ControlFlow<()>, ReadError> {
    let batch = options.batch(table, rows.len(), |name| rows.column(name, place))?;
    Ok(emit(batch))
}

fn read_sums<S: SumRows + Default>(
    part: &Part<'_>,
    table: Table,
    options: &ReadOptions,
    mut rows: S,
    emit: &mut Emit<'_>,
) -> Result<ControlFlow<()>, ReadError> {
    let mut outcome = Ok(ControlFlow::Continue(()));
    let bounds = Bounds { known_time: Some(NO_TIME), ..options.bounds(&options.wanted(table)) };
    let mut flush = |rows: S| -> Result<ControlFlow<()>, ReadError> {
        match rows.len() {
            0 => Ok(ControlFlow::Continue(())),
            count => Ok(emit(options.batch(table, count, |name| rows.column(name))?)),
        }
    };
    let damage = read_segments(
        part,
        bounds,
        || (),
        |read| {
            rows.add(part.run, read.index, &read);
            if rows.len() >= options.batch_rows {
                outcome = flush(std::mem::take(&mut rows));
            }
            match outcome {
                Ok(flow) => flow,
                Err(_) => ControlFlow::Break(()),
            }
        },
    );
    if matches!(outcome, Ok(ControlFlow::Continue(()))) {
        outcome = flush(rows);
    }
    finish(outcome, damage)
}
