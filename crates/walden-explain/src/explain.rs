//! Reads runs of segments and sums up their bytes.

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use walden_format::lsn::Lsn;
use walden_format::rmgr::KindTable;
use walden_redo::PAGE_BYTES;
use walden_source::inventory::Run;
use walden_source::scan::{ScanOptions, scan};

use crate::collect::{CollectSpec, SegmentTally};
use crate::explanation::Explanation;
use crate::group::{Dimension, ViewSpec};
use crate::merge::{Cluster, Merge};
use crate::request::{Bound, ExplainError, Request};
use crate::slices::Slices;
use crate::timeline::{Spans, Timeline};

/// Maximum number of time spans if the request sets no width.
const MAX_SPANS: i64 = 60;

/// Reads runs and sums up their bytes. Calls `progress` with the number of bytes read since the previous
/// call. Damage is not an error: the sums end before the damage, and [`Explanation::damage`] describes it.
///
/// # Errors
/// There are no runs, they belong to several clusters or versions, or the start time is after the last
/// transaction end.
pub fn explain(
    runs: &[Run],
    request: &Request,
    mut progress: impl FnMut(u64),
) -> Result<Explanation, ExplainError> {
    let first = runs.first().ok_or(ExplainError::Nothing)?;
    if let Some(other) = runs.iter().find(|run| run.system_id != first.system_id) {
        return Err(ExplainError::SeveralClusters(first.system_id, other.system_id));
    }
    if let Some(other) = runs.iter().find(|run| run.version != first.version) {
        return Err(ExplainError::SeveralVersions(first.version, other.version));
    }
    let by_time = |bound: Option<Bound>| matches!(bound, Some(Bound::Time(_)));
    let needs_timeline =
        by_time(request.from) || by_time(request.to) || request.views.iter().any(ViewSpec::needs_timeline);
    let timeline = match needs_timeline {
        true => Timeline::read(runs, request.threads, &mut progress),
        false => Timeline::default(),
    };
    let (from, to) = timeline.range(request.from, request.to)?;
    let cuts = Cuts::new(request, &timeline, (from, to), runs);
    let views: Vec<ViewSpec> = request.views.iter().filter(|view| view.needs_pieces()).cloned().collect();
    let spec = CollectSpec {
        version: first.version,
        kinds: KindTable::for_version(first.version),
        views: &views,
        slices: &cuts.slices,
        from,
        geometry: first.geometry(),
        data_page_bytes: PAGE_BYTES as u32,
        sample_images: request.sample_images,
    };
    let mut merge = Merge::new(&views, &cuts.slices, request.top, request.writers.as_deref());
    // Tallies of merged segments, for reuse.
    let spare = Mutex::new(Vec::new());
    let spare = || spare.lock().unwrap_or_else(PoisonError::into_inner);
    for run in runs {
        merge.begin_range(run, from, to);
        let options = ScanOptions::new(request.threads).from(from).to(to);
        let size = run.segment_size.bytes();
        let make = |index: usize| {
            let start = run.segments[index].start;
            let tally = spare().pop().unwrap_or_else(|| SegmentTally::new(spec));
            tally.begin(start, start.plus(size))
        };
        scan(run, options, make, |outcome| {
            progress(size);
            let tally = merge.add_segment(run, outcome);
            spare().push(tally);
            ControlFlow::Continue(())
        });
        merge.end_range();
        if merge.damage.is_some() {
            break;
        }
    }
    let by_time = request.views.iter().any(|view| view.has(Dimension::Time));
    let step_back = timeline
        .ambiguous([request.from, request.to])
        .or_else(|| timeline.steps_back().first().copied().filter(|_| by_time));
    let explanation = merge.finish(Cluster::from_run(first), request, cuts.spans, &cuts.cycles);
    Ok(Explanation { step_back, ..explanation })
}

/// The positions at which views by time and checkpoint are split.
struct Cuts {
    slices: Slices,
    spans: Option<(i64, i64)>,
    cycles: Vec<(Lsn, i64)>,
}

impl Cuts {
    fn new(
        request: &Request,
        timeline: &Timeline<'_>,
        range: (Option<Lsn>, Option<Lsn>),
        runs: &[Run],
    ) -> Cuts {
        let wants = |dimension| request.views.iter().any(|view| view.has(dimension));
        let spans = wants(Dimension::Time).then(|| timeline.spans(range, request.every, MAX_SPANS)).flatten();
        let times: &[Lsn] = spans.as_ref().map_or(&[], |spans: &Spans| &spans.starts);
        let cycles = if wants(Dimension::Checkpoint) { timeline.redo.clone() } else { Vec::new() };
        let starts: Vec<Lsn> = cycles.iter().map(|(lsn, _)| *lsn).collect();
        let start = runs.iter().map(Run::start).min().unwrap_or_default();
        let end = runs.iter().map(Run::end).max().unwrap_or_default();
        let slices = Slices::cut(times, &starts, (start, end));
        Cuts { slices, spans: spans.map(|spans| (spans.begin, spans.width)), cycles }
    }
}
