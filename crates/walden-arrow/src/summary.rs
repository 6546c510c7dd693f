//! The tables `checkpoints` and `relations`, from the sums of `walden explain`.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{UInt32Type, UInt64Type};
use walden_explain::checkpoints::{
    Checkpoint, CheckpointSettings, explain_checkpoints, replace_contradicted,
};
use walden_explain::group::{Cell, Owner};
use walden_explain::tally::{Bucket, Tally};
use walden_explain::{Bound, Explanation, Request, explain};
use walden_format::record::{Fork, RelFileLocator};
use walden_format::rmgr::Kind;
use walden_format::version::Major;
use walden_source::inventory::Run;

use crate::columns::{bools, label_rows, numbers, times};
use crate::options::{ReadError, ReadOptions};
use crate::rows::Named;
use crate::schema::Table;

/// Reads one of these tables, as one batch.
pub(crate) fn read(runs: &[Run], table: Table, options: &ReadOptions) -> Result<RecordBatch, ReadError> {
    let bound = |lsn: Option<_>| lsn.map(Bound::Lsn);
    let request = Request::new(options.threads).top(0).from(bound(options.from)).to(bound(options.to));
    let explanation = explain(runs, &request, |_| ())?;
    if let Some(damage) = &explanation.damage {
        return Err(ReadError::Damaged(damage.clone()));
    }
    match table {
        Table::Checkpoints => checkpoints(&explanation, options),
        _ => relations(&explanation, options),
    }
}

fn checkpoints(explanation: &Explanation, options: &ReadOptions) -> Result<RecordBatch, ReadError> {
    let Explanation { checkpoints, segment_size, version, .. } = explanation;
    let mut settings = options.names.settings.clone();
    replace_contradicted(&mut settings, checkpoints, *segment_size, *version);
    let settings = CheckpointSettings::from_settings(&settings, *version);
    let rows = explain_checkpoints(checkpoints, *segment_size, settings);
    let optional = |value: &dyn Fn(&Checkpoint) -> Option<u64>| {
        let nulls = NullBuffer::from_iter(rows.iter().map(|row| value(row).is_some()));
        numbers::<UInt64Type>(rows.iter().map(|row| value(row).unwrap_or_default()), Some(nulls))
    };
    let column = |name: &str| -> ArrayRef {
        match name {
            "lsn" => numbers::<UInt64Type>(rows.iter().map(|row| row.record.lsn.0), None),
            "redo_lsn" => numbers::<UInt64Type>(rows.iter().map(|row| row.record.redo.0), None),
            "time" => times(rows.iter().map(|row| row.record.time.saturating_mul(1_000_000))),
            "cause" => label_rows(rows.iter().map(|row| Some(row.cause.name()))),
            "finished" => bools(rows.iter().map(|row| row.record.is_finished)),
            "distance" => optional(&|row| row.distance),
            "interval_seconds" => optional(&|row| row.interval.and_then(|seconds| seconds.try_into().ok())),
            _ => unreachable!("checkpoints has no column {name}"),
        }
    };
    Ok(options.batch(Table::Checkpoints, rows.len(), column)?)
}

fn relations(explanation: &Explanation, options: &ReadOptions) -> Result<RecordBatch, ReadError> {
    let rows = &explanation.cells;
    let named = Named::new(&options.names);
    let sum = |sum: &dyn Fn(&Tally) -> u64| numbers::<UInt64Type>(rows.iter().map(|row| sum(&row.1)), None);
    let of_file = |number: &dyn Fn(RelFileLocator) -> u32| {
        let nulls = NullBuffer::from_iter(rows.iter().map(|row| file(&row.0).is_some()));
        let values = rows.iter().map(|row| file(&row.0).map_or(0, |(file, _)| number(file)));
        numbers::<UInt32Type>(values, Some(nulls))
    };
    let column = |name: &str| -> ArrayRef {
        match name {
            "tablespace" => of_file(&|file| file.tablespace),
            "database" => of_file(&|file| file.database),
            "relfilenumber" => of_file(&|file| file.relation),
            "fork" => label_rows(rows.iter().map(|row| file(&row.0).map(|(_, fork)| fork.to_string()))),
            "resource_manager" => kind_labels(rows, explanation.version, Kind::resource_manager),
            "record_type" => kind_labels(rows, explanation.version, Kind::name),
            "records" => sum(&|tally| tally.records),
            "fpi_count" => sum(&|tally| tally.images),
            "bytes" => sum(&Tally::bytes),
            "fpi_length" => sum(&|tally| tally.buckets.images()),
            "record_header_bytes" => sum(&|tally| tally.buckets.get(Bucket::RecordHeader)),
            "block_header_bytes" => sum(&|tally| tally.buckets.get(Bucket::BlockHeader)),
            "block_data_bytes" => sum(&|tally| tally.buckets.get(Bucket::BlockData)),
            "main_data_bytes" => sum(&main_data),
            "other_bytes" => sum(&other),
            _ => label_rows(rows.iter().map(|row| file(&row.0).and_then(|(file, _)| named.text(name, file)))),
        }
    };
    Ok(options.batch(Table::Relations, rows.len(), column)?)
}

fn file(cell: &Cell) -> Option<(RelFileLocator, Fork)> {
    match cell.owner {
        Owner::Relation(file, fork) => Some((file, fork)),
        Owner::None | Owner::Framing => None,
    }
}

fn kind_labels<T: AsRef<str>>(
    rows: &[(Cell, Tally)],
    version: Major,
    text: impl Fn(Kind, Major) -> T,
) -> ArrayRef {
    let kind = |cell: &Cell| cell.kind.and_then(|kind| Kind::from_index(kind.into()));
    label_rows(rows.iter().map(|row| kind(&row.0).map(|kind| text(kind, version))))
}

fn main_data(tally: &Tally) -> u64 {
    tally.buckets.get(Bucket::MainHeader) + tally.buckets.get(Bucket::MainData)
}

fn other(tally: &Tally) -> u64 {
    let others = Bucket::all()
        .filter(|bucket| bucket.is_framing() || matches!(bucket, Bucket::ImageHeader | Bucket::Alignment));
    others.map(|bucket| tally.buckets.get(bucket)).sum()
}
