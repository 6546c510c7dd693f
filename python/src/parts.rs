//! Divides WAL into parts, for several readers at once, also in other processes.

use std::ops::Range;
use std::sync::Arc;

use pyo3::prelude::*;
use walden_arrow::{Part, segments_between};
use walden_format::lsn::Lsn;
use walden_source::inventory::{Inventory, Run};

use crate::errors::{self, WaldenError};
use crate::interrupt;
use crate::log::Log;

/// The segments of a part: system identifier, timeline of the run, start of the first segment, end of the
/// last one, and their number.
pub type Place = (u64, u32, u64, u64, usize);

/// The requested rows: bounds of LSN and of time (microseconds since 1970-01-01 UTC), both inclusive.
type Wanted = (Option<u64>, Option<u64>, Option<i64>, Option<i64>);

/// Divides the WAL into about `count` parts with about the same number of segments, or into more parts so
/// that none has more than `each` segments. Returns the parts and the LSNs of the range's bounds. `wanted`
/// excludes segments without such rows.
#[pyfunction]
#[pyo3(signature = (log, count, *, each=None, wanted=None))]
pub fn parts(
    py: Python<'_>,
    log: &Log,
    count: usize,
    each: Option<usize>,
    wanted: Option<Wanted>,
) -> PyResult<(Vec<Place>, Option<u64>, Option<u64>)> {
    if count == 0 {
        return Err(errors::wrong_value("count: expected 1 or more, found 0"));
    }
    let options = log.options(py, None)?;
    let inventory = Arc::clone(&log.inventory);
    interrupt::run(py, move |_| {
        let between = |run| wanted_part(run, options.from, options.to, wanted.unwrap_or_default());
        let all: Vec<Part<'_>> = inventory.runs.iter().map(between).collect();
        let segments: usize = all.iter().map(|part| part.segments.len()).sum();
        let count = each.map_or(count, |each| count.max(segments.div_ceil(each.max(1))));
        let places = Part::divide(&all, count).into_iter().filter_map(place).collect();
        (places, options.from.map(|lsn| lsn.0), options.to.map(|lsn| lsn.0))
    })
}

fn wanted_part(run: &Run, from: Option<Lsn>, to: Option<Lsn>, wanted: Wanted) -> Part<'_> {
    let (low, high, first, last) = wanted;
    let mut part = Part::between(run, from, to);
    let by_position = Part::between(run, low.map(Lsn), high.map(|high| Lsn(high.saturating_add(1))));
    let by_time = match (first, last) {
        (None, None) => 0..run.segments.len(),
        (first, last) => segments_between(run, first, last),
    };
    for range in [by_position.segments, by_time] {
        part.segments.start = part.segments.start.max(range.start);
        part.segments.end = part.segments.end.min(range.end).max(part.segments.start);
    }
    part
}

fn place(part: Part<'_>) -> Option<Place> {
    let segments = part.run.segments.get(part.segments)?;
    let (first, last) = (segments.first()?, segments.last()?);
    let end = last.start.plus(part.run.segment_size.bytes());
    Some((part.run.system_id, part.run.timeline, first.start.0, end.0, segments.len()))
}

/// Finds the run and the segments of a part in an inventory, which may have grown since.
pub fn find(inventory: &Inventory, place: Place) -> PyResult<(usize, Range<usize>)> {
    let (system_id, timeline, start, end, count) = place;
    for (index, run) in inventory.runs.iter().enumerate() {
        if run.system_id != system_id || run.timeline != timeline {
            continue;
        }
        let of = |lsn: u64| run.segments.partition_point(|segment| segment.start < Lsn(lsn));
        let segments = of(start)..of(end);
        if segments.len() == count
            && run.segments.get(segments.start).is_some_and(|one| one.start == Lsn(start))
        {
            return Ok((index, segments));
        }
    }
    let (start, end) = (Lsn(start), Lsn(end));
    Err(WaldenError::new_err(format!(
        "cannot read the part from {start} to {end}: expected its {count} segments of timeline {timeline} in the source, found \
         not all of them; divide the source again"
    )))
}
