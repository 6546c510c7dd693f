//! Which part of a log is read.

use std::ops::ControlFlow;
use std::path::Path;

use rustc_hash::FxHashSet;
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::payload::{self, Payload};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_source::datadir::DataDir;
use walden_source::inventory::{FileKind, Run, SegmentFile, Unreadable};
use walden_source::scan::{ScanOptions, scan_in_order};
use walden_source::timelines::{Lineage, lineages};

use crate::{Filter, Gap, RowsError};

/// The part of the source's WAL that is read.
#[derive(Debug)]
pub struct Chosen {
    /// The segments of the part.
    pub run: Run,
    /// A warning that the range has other parts, which do not belong to this WAL.
    pub note: Option<&'static str>,
    /// Segments of this WAL that are in the range and are not read, because earlier segments are missing.
    pub gap: Option<Gap>,
}

/// Chooses the part that continues a base backup; without a base backup, the last part in the range of
/// `filter`.
///
/// # Errors
/// No part continues the base backup or is in the range, or the folder is not a base backup.
pub fn choose(runs: Vec<Run>, base: Option<&Path>, filter: &Filter) -> Result<Chosen, RowsError> {
    let base = base.map(DataDir::open_at_rest).transpose()?;
    let mut lineages = lineages(runs);
    let Some(base) = base else {
        let begins_before_end = |lineage: &Lineage| filter.to.is_none_or(|to| lineage.run.start() < to);
        let last = lineages.len().checked_sub(1).ok_or(RowsError::NoLog)?;
        let index = lineages.iter().rposition(begins_before_end).unwrap_or(last);
        let run = lineages.remove(index).run;
        let gap = gap_before(&run, &lineages, filter);
        let is_in_range = |other: &Lineage| {
            filter.to.is_none_or(|to| other.run.start() < to)
                && filter.from.is_none_or(|from| from < other.run.end())
        };
        let note = "the WAL has several ends: only its last part is read";
        let note = (gap.is_none() && lineages.iter().any(is_in_range)).then_some(note);
        return Ok(Chosen { run, note, gap });
    };
    let (id, from) = (base.control().system_identifier, base.redo_from());
    let timeline = base.control().timeline;
    let of_cluster = || lineages.iter().map(|lineage| &lineage.run).filter(|run| run.system_id == id);
    if let Some(first) = of_cluster().map(Run::start).min()
        && let Some(to) = filter.to.filter(|to| *to <= from)
    {
        // A time before the first transaction is the position 0/0.
        let to = if to == Lsn(0) { first.min(from) } else { to };
        return Err(RowsError::EndsBeforeBase { base: base.path().into(), from, to });
    }
    let log = of_cluster().map(Run::start).min().zip(of_cluster().map(Run::end).max());
    let goes_on = |lineage: &Lineage| lineage.run.system_id == id && lineage.run.goes_on_from(from, timeline);
    if let Some(index) = lineages.iter().rposition(goes_on) {
        let run = lineages.remove(index).run;
        let gap = gap_behind(&run, &lineages, filter);
        let is_behind = |start: &Lsn| *start >= run.end() && gap.is_some();
        if let Some(start) = filter.from.filter(is_behind) {
            let why = match later(&run, &lineages).next() {
                Some(first) => break_between(&run, first),
                None => String::new(),
            };
            return Err(RowsError::StartsAfterBase {
                base: base.path().into(),
                from: start,
                end: run.end(),
                why,
            });
        }
        return Ok(Chosen { run, note: None, gap });
    }
    Err(match lineages.iter().find(|lineage| lineage.run.system_id != id) {
        Some(other) => RowsError::OtherCluster { base: id, log: other.run.system_id },
        None => RowsError::NotContinued { base: base.path().into(), from, log },
    })
}

/// Returns the OIDs of the databases in which a transaction or its subtransactions made changes: at most one.
/// `done` gets the number of bytes of each segment that was read.
pub fn databases_of(xid: u32, run: &Run, threads: usize, done: impl FnMut(u64)) -> Vec<u32> {
    let mut databases = Databases { xid, xids: FxHashSet::from_iter([xid]), found: FxHashSet::default() };
    let scan = ScanOptions::new(threads);
    scan_in_order(run, scan, &mut databases, done);
    // If only subtransactions made changes, mostly a later record names the subtransactions.
    if databases.found.is_empty() && databases.xids.len() > 1 {
        scan_in_order(run, scan, &mut databases, |_| ());
    }
    databases.found.into_iter().collect()
}

/// Collects the databases that a transaction changed.
struct Databases {
    xid: u32,
    /// The transaction and its subtransactions.
    xids: FxHashSet<u32>,
    found: FxHashSet<u32>,
}

impl Databases {
    /// Reads the subtransactions from a record that ends, prepares, or assigns to the transaction.
    fn learn_subtransactions(&mut self, record: &Record<'_>) {
        let record_xid = record.header.xid;
        match payload::parse(record) {
            Ok(Payload::Commit(end) | Payload::Abort(end))
                if end.twophase_xid.unwrap_or(record_xid) == self.xid =>
            {
                self.xids.extend(end.subxacts);
            }
            Ok(Payload::Prepare(prepare)) if record_xid == self.xid => self.xids.extend(prepare.subxids()),
            Ok(Payload::Assignment(assignment)) if assignment.top_xid == self.xid => {
                self.xids.extend(assignment.subxacts);
            }
            _ => {}
        }
    }
}

impl Visitor for Databases {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let xid = record.header.xid;
        if record.toplevel_xid.is_some_and(|top| self.xids.contains(&top)) {
            self.xids.insert(xid);
        }
        if matches!(record.header.rmid, rmid::XACT) {
            self.learn_subtransactions(record);
        }
        if self.xids.contains(&xid) {
            let databases = record.blocks.iter().map(|block| block.relation.database);
            // Shared catalogs are in none.
            self.found.extend(databases.filter(|database| *database != 0));
        }
        match self.found.is_empty() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}

/// Returns a gap if the segment after a run exists and cannot be read, unless the range ends before this
/// segment, at `to`.
pub fn gap_at_unreadable(run: &Run, unreadable: &[Unreadable], to: Option<Lsn>) -> Option<Gap> {
    let end = run.end();
    let is_next = |file: &Unreadable| {
        let name = file.path.file_name().and_then(|name| name.to_str());
        match name.map(FileKind::from_name) {
            Some(FileKind::Segment { name, .. }) => name.start(run.segment_size) == Some(end),
            _ => false,
        }
    };
    if to.is_some_and(|to| to <= end) || !unreadable.iter().any(is_next) {
        return None;
    }
    Some(Gap {
        from: end,
        why: format!("the next segment cannot be read: the WAL is not read from {end} on"),
    })
}

/// Returns the unread part of the range before the part that is read. An earlier part on a later timeline
/// belongs to another log.
fn gap_before(run: &Run, others: &[Lineage], filter: &Filter) -> Option<Gap> {
    let start = run.start();
    if filter.from.is_some_and(|from| from >= start) {
        return None;
    }
    let is_earlier =
        |other: &&Run| is_same_log(other, run) && other.timeline <= run.timeline && other.start() < start;
    let earlier = || others.iter().map(|lineage| &lineage.run).filter(is_earlier);
    let last = earlier().max_by_key(|other| other.end())?;
    let size = run.segment_size;
    let is_asked = |segment: &&SegmentFile| {
        filter.from.is_none_or(|from| size.segment_of(segment.start) >= size.segment_of(from))
    };
    let unread = || earlier().flat_map(|other| &other.segments).filter(is_asked);
    let ends = unread().min_by_key(|segment| segment.start).zip(unread().max_by_key(|segment| segment.start));
    // The range may start with the missing segments.
    let (from, unread) = match ends {
        Some((first, last)) => {
            let names = segments(first.name, last.name);
            let verb = if first.name == last.name { "is" } else { "are" };
            (first.start.max(filter.from.unwrap_or_default()), format!("{names} before it {verb} not read"))
        }
        None => (filter.from.unwrap_or(last.end()), String::new()),
    };
    let why = match restarts_after(last, run) {
        Some(restart) => format!("{restart}: {unread}; start there (--from {start})"),
        None => {
            let unread = if unread.is_empty() { unread } else { format!("{unread}; ") };
            let gap = missing(last, run);
            format!("{gap}: {unread}pass the missing segments too, or start after them (--from {start})")
        }
    };
    Some(Gap { from, why })
}

/// Returns the unread part of the range after the part that is read.
fn gap_behind(run: &Run, others: &[Lineage], filter: &Filter) -> Option<Gap> {
    let end = run.end();
    if filter.to.is_some_and(|to| to <= end) {
        return None;
    }
    let first = later(run, others).next()?;
    let last = later(run, others).max_by_key(|other| other.end())?;
    let unread = segments(first_of(first)?, last_of(last)?);
    let verb = if first_of(first) == last_of(last) { "is" } else { "are" };
    let remedy = match restarts_after(run, first) {
        Some(_) => "give a base backup that was taken after it (--base) to read them, or end before it",
        None => "pass the missing segments too, or end before them",
    };
    let why =
        format!("{}: {unread} after it {verb} not read; {remedy} (--to {end})", break_between(run, first));
    Some(Gap { from: end, why })
}

/// Returns the later parts of the same WAL, the nearest part first. A later part on an earlier timeline
/// belongs to a timeline that this WAL has left.
fn later<'a>(run: &'a Run, others: &'a [Lineage]) -> impl Iterator<Item = &'a Run> {
    let end = run.end();
    let is_later =
        move |other: &&Run| is_same_log(other, run) && other.timeline >= run.timeline && other.start() >= end;
    let mut found: Vec<&Run> = others.iter().map(|lineage| &lineage.run).filter(is_later).collect();
    found.sort_by_key(|other| other.start());
    found.into_iter()
}

/// Describes why the WAL does not continue from the part `left` to the later part `right`.
fn break_between(left: &Run, right: &Run) -> String {
    restarts_after(left, right).unwrap_or_else(|| missing(left, right))
}

/// Describes the restart of the WAL between two runs, if `pg_resetwal` restarted it at the start of `right`.
fn restarts_after(left: &Run, right: &Run) -> Option<String> {
    let first = right.segments.first().filter(|first| first.is_restarted && left.end() <= first.start)?;
    Some(format!("pg_resetwal restarted the WAL at {}, and WAL before it may be lost", first.start))
}

fn is_same_log(one: &Run, other: &Run) -> bool {
    (one.system_id, one.version, one.segment_size) == (other.system_id, other.version, other.segment_size)
}

/// Describes the gap between two parts of a log.
fn missing(left: &Run, right: &Run) -> String {
    let size = left.segment_size;
    let first = size.segment_of(left.end());
    let Some(last) = size.segment_of(right.start()).checked_sub(1).filter(|last| *last >= first) else {
        return format!("the WAL does not continue from timeline {} to {}", left.timeline, right.timeline);
    };
    // If the timeline changes in the gap, the last missing segment is on the later timeline.
    let later = first_of(right).map_or(right.timeline, |name| name.timeline);
    let names = segments(SegmentName::new(left.timeline, first, size), SegmentName::new(later, last, size));
    format!("the WAL has a gap, {names}")
}

fn first_of(run: &Run) -> Option<SegmentName> {
    run.segments.first().map(|segment| segment.name)
}

fn last_of(run: &Run) -> Option<SegmentName> {
    run.segments.last().map(|segment| segment.name)
}

fn segments(first: SegmentName, last: SegmentName) -> String {
    match first == last {
        true => format!("the segment {first}"),
        false => format!("the segments {first} to {last}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use walden_format::lsn::{SegmentSize, Timeline};
    use walden_format::version::Major;
    use walden_source::open::Compression;

    use super::*;

    const SIZE: u64 = 1 << 20;

    fn run(timeline: Timeline, numbers: std::ops::Range<u64>) -> Run {
        let size = SegmentSize::new(SIZE).expect("a size that segments have");
        let segment = |number| SegmentFile {
            path: PathBuf::new(),
            name: SegmentName::new(timeline, number, size),
            partial: false,
            compression: Compression::None,
            member: None,
            store: None,
            needs_previous: false,
            size_on_disk: SIZE,
            start: Lsn(number * SIZE),
            version: Major::V17,
            system_id: 7,
            segment_size: size,
            page_bytes: 8192,
            is_restarted: false,
        };
        let segments = numbers.map(segment).collect();
        Run { system_id: 7, timeline, segment_size: size, version: Major::V17, segments }
    }

    fn range(from: Option<u64>, to: Option<u64>) -> Filter {
        let position = |segment: u64| Lsn(segment * SIZE);
        Filter { from: from.map(position), to: to.map(position), ..Filter::default() }
    }

    /// The first segment of the part that is read, and where the gap is.
    fn chosen(runs: Vec<Run>, filter: &Filter) -> (u64, Option<u64>) {
        let chosen = choose(runs, None, filter).expect("a part");
        assert!(chosen.gap.is_none() || chosen.note.is_none());
        (chosen.run.start().0 / SIZE, chosen.gap.map(|gap| gap.from.0 / SIZE))
    }

    #[test]
    fn a_gap_in_the_range_is_told() {
        let runs = || vec![run(1, 2..4), run(1, 5..7), run(1, 9..10)];
        assert_eq!(chosen(runs(), &range(None, None)), (9, Some(2)));
        assert_eq!(chosen(runs(), &range(Some(6), None)), (9, Some(6)));
        assert_eq!(chosen(runs(), &range(Some(8), None)), (9, Some(8)));
        assert_eq!(chosen(runs(), &range(Some(9), None)), (9, None));
        assert_eq!(chosen(runs(), &range(Some(5), Some(7))), (5, None));
        assert_eq!(chosen(runs(), &range(None, Some(7))), (5, Some(2)));
        assert_eq!(chosen(runs(), &range(None, Some(4))), (2, None));
        assert_eq!(chosen(vec![run(1, 2..4)], &range(Some(0), None)), (2, None));
        let gap = choose(runs(), None, &range(None, None)).expect("a part").gap.expect("a gap");
        let missing = "a gap, the segments 000000010000000000000007 to 000000010000000000000008: ";
        assert!(gap.why.contains(missing), "{}", gap.why);
        let unread =
            ": the segments 000000010000000000000002 to 000000010000000000000006 before it are not read; ";
        assert!(gap.why.contains(unread), "{}", gap.why);
        // Segments before the range are not among the unread segments.
        let why =
            |from| choose(runs(), None, &range(Some(from), None)).expect("a part").gap.expect("a gap").why;
        let unread = ": the segment 000000010000000000000006 before it is not read; pass";
        assert!(why(6).contains(unread), "{}", why(6));
        assert!(why(8).contains("000000010000000000000008: pass the missing segments"), "{}", why(8));
    }

    #[test]
    fn what_is_behind_a_gap_is_told_of_a_backup_as_well() {
        let read = run(1, 2..4);
        let of = |others: Vec<Run>, filter: &Filter| {
            let lineage = |run| Lineage { run, new_from: None };
            let others: Vec<Lineage> = others.into_iter().map(lineage).collect();
            gap_behind(&read, &others, filter).map(|gap| (gap.from.0 / SIZE, gap.why))
        };
        let (from, why) = of(vec![run(2, 5..7)], &range(None, None)).expect("a gap");
        assert_eq!(from, 4);
        let name = "the segments 000000010000000000000004 to 000000020000000000000004: ";
        assert!(why.contains(name) && why.contains("the segments 000000020000000000000005 to "), "{why}");
        assert_eq!(of(vec![run(2, 5..7)], &range(None, Some(4))), None);
        assert_eq!(of(vec![run(1, 0..1)], &range(None, None)), None);
    }
}
