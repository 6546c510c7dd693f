//! The first look at a trace: when what was written, which checkpoints came, and what betrays the settings.
//!
//! A record's time is known only when its transaction ends, and a checkpoint's redo pointer lies before its record, so this
//! takes a pass of its own. It reads in parallel and looks at little.

use std::ops::ControlFlow;

use walden_explain::checkpoints::CheckpointSeen;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::payload::xact::plain_usual_end;
use walden_format::payload::xlog::WalLevel;
use walden_format::payload::{self, Payload, Timestamp};
use walden_format::record::{Compression, Record};
use walden_format::rmgr::info::standby::RUNNING_XACTS;
use walden_format::rmgr::info::xlog::{CHECKPOINT_ONLINE, FPI_FOR_HINT, SWITCH};
use walden_format::rmgr::info::{heap, heap2, xact};
use walden_format::rmgr::{ImageClass, KindTable, rmid};
use walden_format::stream::Visitor;
use walden_format::usual::UsualRecord;
use walden_format::version::Major;
use walden_source::inventory::Run;
use walden_source::scan::{Damage, ScanOptions, SegmentEnd, scan};

/// Times closer to each other than this are not told apart, in microseconds.
const TIME_STEP: i64 = 10_000;

/// What a first pass over a run tells.
#[derive(Debug)]
pub struct Survey {
    /// Who wrote it.
    pub version: Major,
    /// Size of its segments.
    pub segment_size: SegmentSize,
    /// Where its first and last whole record start and end.
    pub span: Option<(Lsn, Lsn)>,
    /// Its checkpoints, in order.
    pub checkpoints: Vec<CheckpointSeen>,
    /// From each position on, transactions end at or after that time: microseconds since 1970-01-01 UTC.
    pub times: Vec<(Lsn, i64)>,
    /// Where `RUNNING_XACTS` records start.
    pub running: Vec<Lsn>,
    /// What there is within the window.
    pub seen: Seen,
    /// Where it can't be read any further, if it can't.
    pub damage: Option<Damage>,
}

/// Evidence of settings.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// `full_page_writes` as checkpoints and changes of it say, in order.
    pub full_page_writes: Vec<(Lsn, bool)>,
    /// `wal_level` as records say, in order.
    pub wal_level: Vec<(Lsn, WalLevel)>,
    /// `wal_log_hints` as records say.
    pub wal_log_hints: Option<bool>,
    /// Images that redo applies: not compressed, pglz, lz4, zstd.
    pub images: [u64; 4],
    /// Of these, those after checkpoints.
    pub checkpoint_images: u64,
    /// Images for `wal_consistency_checking`.
    pub beside: u64,
    /// `FPI_FOR_HINT` records.
    pub hints: u64,
    /// Records that only `wal_level=logical` writes.
    pub logical: u64,
    /// Records that `wal_level=minimal` does not write.
    pub standby: u64,
    /// Switch records.
    pub switches: u64,
    /// Base backups that ended.
    pub backups: u64,
    /// Bytes of `CHECKPOINT_ONLINE`, `CHECKPOINT_REDO` and `RUNNING_XACTS` records, and how many there are.
    pub own: [(u64, u64); 3],
}

impl Survey {
    /// Reads a run; what is before `from` tells of checkpoints and times alone.
    pub fn read(
        run: &Run,
        from: Option<Lsn>,
        to: Option<Lsn>,
        threads: usize,
        mut progress: impl FnMut(u64),
    ) -> Survey {
        let mut survey = Survey {
            version: run.version,
            segment_size: run.segment_size,
            span: None,
            checkpoints: Vec::new(),
            times: Vec::new(),
            running: Vec::new(),
            seen: Seen::default(),
            damage: None,
        };
        let mut last_end = None;
        scan(
            run,
            ScanOptions { threads, from: None, to },
            |_| Segment::new(run.version, from),
            |outcome| {
                survey.append(outcome.visitor, &mut last_end);
                if let SegmentEnd::Damaged(damage) = outcome.end {
                    survey.damage = Some(damage);
                }
                progress(run.segment_size.bytes());
                ControlFlow::Continue(())
            },
        );
        survey
    }

    fn append(&mut self, segment: Segment, last_end: &mut Option<Lsn>) {
        if let Some((first, last)) = segment.span {
            self.span = Some((self.span.map_or(first, |span| span.0), last));
        }
        for (from, micros) in segment.times {
            if self.times.last().is_none_or(|last| micros >= last.1 + TIME_STEP) {
                self.times.push((from.or(*last_end).unwrap_or(Lsn(0)), micros));
            }
        }
        *last_end = segment.last_end.or(*last_end);
        self.checkpoints.extend(segment.checkpoints);
        self.running.extend(segment.running);
        self.seen.add(segment.seen);
    }

    /// The redo pointer that holds at a position: that of the last checkpoint that began at or before it.
    pub fn redo_at(&self, lsn: Lsn) -> Option<Lsn> {
        self.checkpoints.iter().map(|checkpoint| checkpoint.redo).filter(|redo| *redo <= lsn).max()
    }

    /// Seconds from the first transaction's end to the last one's, from a position on.
    pub fn seconds(&self, from: Lsn) -> Option<f64> {
        let first = self.times.iter().find(|(lsn, _)| *lsn >= from)?.1;
        Some((self.times.last()?.1 - first) as f64 / 1e6)
    }
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.full_page_writes.extend(other.full_page_writes);
        self.wal_level.extend(other.wal_level);
        self.wal_log_hints = other.wal_log_hints.or(self.wal_log_hints);
        for (sum, more) in [
            (&mut self.checkpoint_images, other.checkpoint_images),
            (&mut self.beside, other.beside),
            (&mut self.hints, other.hints),
            (&mut self.logical, other.logical),
            (&mut self.standby, other.standby),
            (&mut self.switches, other.switches),
            (&mut self.backups, other.backups),
        ] {
            *sum += more;
        }
        self.images.iter_mut().zip(other.images).for_each(|(sum, more)| *sum += more);
        for (sum, more) in self.own.iter_mut().zip(other.own) {
            *sum = (sum.0 + more.0, sum.1 + more.1);
        }
    }
}

/// Records that a checkpoint writes itself, by their place in [`Seen::own`].
pub(crate) mod own {
    pub const ONLINE: usize = 0;
    pub const REDO: usize = 1;
    pub const RUNNING: usize = 2;
}

/// What one segment tells.
struct Segment {
    from: Lsn,
    kinds: &'static KindTable,
    span: Option<(Lsn, Lsn)>,
    checkpoints: Vec<CheckpointSeen>,
    /// Nothing for where: right after the last transaction's end in an earlier segment.
    times: Vec<(Option<Lsn>, i64)>,
    last_end: Option<Lsn>,
    running: Vec<Lsn>,
    seen: Seen,
}

impl Segment {
    fn new(version: Major, from: Option<Lsn>) -> Segment {
        Segment {
            from: from.unwrap_or(Lsn(0)),
            kinds: KindTable::of(version),
            span: None,
            checkpoints: Vec::new(),
            times: Vec::new(),
            last_end: None,
            running: Vec::new(),
            seen: Seen::default(),
        }
    }

    #[inline(always)]
    fn passed(&mut self, lsn: Lsn, end: Lsn) {
        self.span = Some((self.span.map_or(lsn, |span| span.0), end));
    }

    /// A transaction ended, by a record that ends at `end`.
    #[inline(always)]
    fn ended(&mut self, time: Timestamp, end: Lsn) {
        let micros = time.unix_micros();
        // Times are taken before positions, so they may go back a little.
        if self.times.last().is_none_or(|last| micros >= last.1 + TIME_STEP) {
            self.times.push((self.last_end, micros));
        }
        self.last_end = Some(end);
    }

    fn own(&mut self, which: usize, record: &Record<'_>) {
        let (bytes, count) = &mut self.seen.own[which];
        (*bytes, *count) = (*bytes + u64::from(record.header.total_len), *count + 1);
    }

    fn log(&mut self, record: &Record<'_>) {
        match (record.kind(), payload::parse(record)) {
            (kind, Ok(Payload::Checkpoint(checkpoint))) => {
                self.checkpoints.push(CheckpointSeen {
                    lsn: record.lsn,
                    redo: checkpoint.redo,
                    time: checkpoint.time,
                    shutdown: checkpoint.shutdown,
                });
                self.seen.full_page_writes.push((checkpoint.redo, checkpoint.full_page_writes));
                self.seen.wal_level.extend(checkpoint.wal_level.map(|level| (checkpoint.redo, level)));
                if kind == CHECKPOINT_ONLINE {
                    self.own(own::ONLINE, record);
                }
            }
            (_, Ok(Payload::CheckpointRedo(redo))) => {
                self.seen.wal_level.push((record.lsn, redo.wal_level));
                self.own(own::REDO, record);
            }
            (_, Ok(Payload::ParameterChange(change))) => {
                self.seen.wal_level.push((record.lsn, change.wal_level));
                self.seen.wal_log_hints = Some(change.wal_log_hints);
            }
            (_, Ok(Payload::FullPageWritesChange(change))) => {
                self.seen.full_page_writes.push((record.lsn, change.enabled));
            }
            (_, Ok(Payload::BackupEnd(_))) => self.seen.backups += 1,
            (SWITCH, _) if record.lsn >= self.from => self.seen.switches += 1,
            (FPI_FOR_HINT, _) if record.lsn >= self.from => self.seen.hints += 1,
            _ => {}
        }
    }

    fn evidence(&mut self, record: &Record<'_>) {
        let kind = record.kind();
        match record.header.rmid {
            rmid::STANDBY => {
                self.seen.standby += 1;
                if kind == RUNNING_XACTS {
                    self.own(own::RUNNING, record);
                }
            }
            rmid if is_logical_alone(rmid, kind) => self.seen.logical += 1,
            _ => {}
        }
        self.seen.logical += u64::from(record.toplevel_xid.is_some());
        for block in record.blocks {
            let Some(image) = block.image else { continue };
            if !image.apply {
                self.seen.beside += 1;
                continue;
            }
            let method = match image.compression {
                Compression::None => 0,
                Compression::Pglz => 1,
                Compression::Lz4 => 2,
                Compression::Zstd => 3,
            };
            self.seen.images[method] += 1;
            let kind = self.kinds.kind(record.header.rmid, record.header.info);
            let class = self.kinds.image_class(kind.index(), block.id);
            self.seen.checkpoint_images += u64::from(class == ImageClass::Checkpoint);
        }
    }
}

/// `INVALIDATION`, `REWRITE`, `NEW_CID`, `TRUNCATE`: what only `wal_level=logical` writes.
#[inline]
const fn is_logical_alone(rmid: u8, info: u8) -> bool {
    match rmid {
        rmid::XACT => info & xact::OPMASK == xact::INVALIDATION,
        rmid::HEAP2 => matches!(info & heap2::OPMASK, heap2::REWRITE | heap2::NEW_CID),
        rmid::HEAP => info & heap::OPMASK == heap::TRUNCATE,
        _ => false,
    }
}

/// By resource manager, a bit for each kind of its records that tell something even without an image. Kinds come in an
/// order that no processor foresees, so that a branch for each would take longer than all else here.
static TELLING: [u16; 256] = {
    let mut telling = [0; 256];
    telling[rmid::XACT as usize] = !0;
    telling[rmid::STANDBY as usize] = !0;
    let mut at = 0;
    while at < 256 * 16 {
        let (rmid, kind) = (at >> 4, at & 15);
        if is_logical_alone(rmid as u8, (kind << 4) as u8) {
            telling[rmid] |= 1 << kind;
        }
        at += 1;
    }
    telling
};

impl Visitor for Segment {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.passed(record.lsn, record.end);
        match record.header.rmid {
            rmid::XLOG | rmid::XLOG2 => self.log(record),
            rmid::XACT => {
                if let Ok(Payload::Commit(end) | Payload::Abort(end)) = payload::parse(record) {
                    self.ended(end.time, record.end);
                }
            }
            rmid::STANDBY if record.kind() == RUNNING_XACTS => self.running.push(record.lsn),
            _ => {}
        }
        if record.lsn >= self.from {
            self.evidence(record);
        }
        ControlFlow::Continue(())
    }

    /// Without an image, most records tell nothing but where they are, and ends of transactions the time.
    #[inline(always)]
    fn usual_record(&mut self, record: UsualRecord<'_>) -> ControlFlow<()> {
        let header = record.header();
        if TELLING[usize::from(header.rmid)] >> (header.info >> 4) & 1 == 0 {
            self.passed(record.lsn, record.end());
        } else if let Some((_, time)) = plain_usual_end(&record) {
            self.passed(record.lsn, record.end());
            self.ended(time, record.end());
        } else {
            return record.as_record(|record| self.record(record));
        }
        ControlFlow::Continue(())
    }
}
