//! Runs of pushed segments rewritten into packs: fewer objects, and smaller, as what one segment says need not be said again by the
//! next.
//!
//! A pack is decoded and compared before it is stored, read back and compared afterwards, and only then are its segments' own objects
//! removed. So at any moment a segment is in one object at least, whatever is interrupted, and however many processes pack, push, get
//! or prune meanwhile. What an interrupted process left twice is removed by the next one, once it has compared both.

mod build;
mod plan;
mod tidy;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use walden_codec::container::FileForm;
use walden_format::lsn::{SegmentName, SegmentSize, Timeline};
use walden_source::{error_text, workers};

use self::build::Outcome;
use self::plan::Plan;
use crate::archive::{Archive, ArchiveError};
use crate::encryption::MAX_FILES;
use crate::store::MAX_OBJECT_BYTES;
use crate::stored::name::{ArchivedFile, Object, PackName, WAL};
use crate::stored::object::Finding;

/// Which segments are packed, and how.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// Segments of a pack at most; if nothing is said, as many as are 512 MB of WAL.
    pub segments: Option<u64>,
    /// The newest segments of each timeline, which stay as they are: pushed ahead, they do not come in order, and they are what
    /// standbys ask for.
    pub keep: u64,
    /// Only segments up to the last one that holds nothing younger: microseconds since 1970-01-01 00:00:00 UTC.
    pub before: Option<i64>,
    /// The level of compression, 1 to 9.
    pub level: u8,
    /// Bytes of a pack at most: it is in memory until it is stored.
    pub max_bytes: u64,
    /// Bytes of memory for coding, and for decoding later: a segment that needs more is coded as bytes. If nothing is said, what the
    /// segments may need.
    pub memory: Option<u64>,
    /// Packs that are written at the same time.
    pub threads: usize,
    /// Change nothing.
    pub is_dry_run: bool,
}

impl Default for PackOptions {
    fn default() -> PackOptions {
        PackOptions {
            segments: None,
            keep: 64,
            before: None,
            level: FileForm::Pack.default_level(),
            max_bytes: MAX_OBJECT_BYTES / 2,
            memory: None,
            threads: 1,
            is_dry_run: false,
        }
    }
}

/// What was packed.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Packed {
    /// Where the archive is.
    pub location: String,
    /// Nothing was changed.
    pub is_dry_run: bool,
    /// The packs that were written, or that would be.
    pub packs: Vec<NewPack>,
    /// Segments in them.
    pub segments: u64,
    /// Objects of segments that are in a pack too: an interrupted process left them, and they are removed now.
    pub tidied: Vec<String>,
    /// Segments that stay as they are, as a pack of them would be clearly larger.
    pub incompressible_segments: u64,
    /// Segments that stay as they are until all that belong into a pack with them may be packed.
    pub unfilled_segments: u64,
    /// Segments that stay as they are, as none beside them may be packed with them.
    pub single_segments: u64,
    /// Segments and packs before.
    pub objects_before: u64,
    /// Their bytes.
    pub bytes_before: u64,
    /// Segments and packs now; not known of a dry run.
    pub objects_after: Option<u64>,
    /// Their bytes.
    pub bytes_after: Option<u64>,
    /// What is wrong, by object: such objects are left alone.
    pub problems: Vec<Finding>,
}

/// A pack in place of segments' own objects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NewPack {
    /// Its key.
    pub object: String,
    /// Segments in it.
    pub segments: u64,
    /// Bytes of the segments' own objects.
    pub bytes_before: u64,
    /// Its bytes; nothing if it is not written yet.
    pub bytes: Option<u64>,
}

/// The objects that hold segments.
#[derive(Clone, Default, Debug)]
struct Stored {
    /// Segments of their own, with their bytes.
    singles: BTreeMap<SegmentName, u64>,
    /// Packs, with their bytes.
    packs: BTreeMap<PackName, u64>,
}

impl Stored {
    fn list(archive: &Archive) -> Result<Stored, ArchiveError> {
        let mut stored = Stored::default();
        archive.store().list(WAL, &mut |listed| match Object::of_key(&listed.key) {
            Some(Object::File(ArchivedFile::Segment(name))) => {
                stored.singles.insert(name, listed.bytes);
            }
            Some(Object::Pack(pack)) => {
                stored.packs.insert(pack, listed.bytes);
            }
            _ => {}
        })?;
        Ok(stored)
    }

    fn objects(&self) -> u64 {
        (self.singles.len() + self.packs.len()) as u64
    }

    fn bytes(&self) -> u64 {
        self.singles.values().chain(self.packs.values()).sum()
    }
}

/// Bytes of WAL in a pack, if nothing else is said.
const PACK_BYTES: u64 = 512 << 20;

/// Packs what may be packed; `progress` is called with the segments done and their number.
///
/// # Errors
/// An archive that cannot be listed. What is wrong with an object is a finding, and what keeps a pack from being written is one too.
pub fn pack(
    archive: &Archive,
    options: &PackOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Packed, ArchiveError> {
    let size = archive.segment_size()?;
    if !options.is_dry_run {
        archive.store().remove_leftovers()?;
    }
    let mut stored = Stored::list(archive)?;
    let mut packed = Packed {
        location: archive.store().location().to_owned(),
        is_dry_run: options.is_dry_run,
        objects_before: stored.objects(),
        bytes_before: stored.bytes(),
        ..Packed::default()
    };
    tidy::tidy(archive, &mut stored, options.is_dry_run, &mut packed)?;
    let Plan { runs, unfilled_segments, single_segments } = plan_runs(archive, &stored, options, size)?;
    (packed.unfilled_segments, packed.single_segments) = (unfilled_segments, single_segments);
    if options.is_dry_run {
        for run in runs {
            packed.add_planned(&run, &stored);
        }
        return Ok(packed);
    }
    write_packs(archive, &stored, &runs, options, progress, &mut packed);
    let now = Stored::list(archive)?;
    (packed.objects_after, packed.bytes_after) = (Some(now.objects()), Some(now.bytes()));
    Ok(packed)
}

/// The runs of segments that are to be packs.
fn plan_runs(
    archive: &Archive,
    stored: &Stored,
    options: &PackOptions,
    size: SegmentSize,
) -> Result<Plan, ArchiveError> {
    let left: BTreeSet<Timeline> = archive
        .histories()?
        .into_values()
        .flat_map(|history| history.ancestors)
        .map(|ancestor| ancestor.timeline)
        .collect();
    let mut ends = BTreeMap::new();
    if let Some(before) = options.before {
        ends = plan::ends_before(archive, stored, before, size)?;
    }
    let segments = options.segments.unwrap_or(PACK_BYTES / size.bytes());
    let rules = plan::Rules {
        size,
        segments: if archive.encrypted().is_encrypted()? { segments.min(MAX_FILES) } else { segments },
        keep: options.keep,
        ends: options.before.map(|_| &ends),
        left: &left,
    };
    Ok(plan::plan(stored, &rules))
}

fn write_packs(
    archive: &Archive,
    stored: &Stored,
    runs: &[PackName],
    options: &PackOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
    packed: &mut Packed,
) {
    let all = runs.iter().map(|run| run.segments()).sum();
    let done = AtomicU64::new(0);
    let advance = |segments: u64| progress(done.fetch_add(segments, Ordering::Relaxed) + segments, all);
    let builder = build::Builder { archive, options, advance: &advance };
    workers::run_in_order(
        0..runs.len(),
        options.threads,
        || (),
        |(), index| (runs[index], builder.pack_run(runs[index])),
        |(run, outcomes)| {
            let mut is_stopped = false;
            for outcome in outcomes {
                match outcome {
                    Ok(outcome) => packed.add(outcome, stored),
                    Err(error) => {
                        // What kept this one from being written may keep all of them.
                        is_stopped = true;
                        packed.problems.push(Finding { object: run.key(), problem: error_text(&error) });
                    }
                }
            }
            if is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    );
}

impl Packed {
    /// Nothing is wrong with what was looked at.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    fn add_planned(&mut self, run: &PackName, stored: &Stored) {
        self.segments += run.segments();
        self.packs.push(NewPack::new(*run, stored, None));
    }

    fn add(&mut self, outcome: Outcome, stored: &Stored) {
        match outcome {
            Outcome::Packed { pack, bytes } => {
                self.segments += pack.segments();
                self.packs.push(NewPack::new(pack, stored, Some(bytes)));
            }
            Outcome::Larger(pack) => self.incompressible_segments += pack.segments(),
            Outcome::Single => self.single_segments += 1,
            Outcome::Left => {}
            Outcome::Differs { pack, problem } => {
                self.problems.push(Finding { object: pack.key(), problem });
            }
        }
    }
}

impl NewPack {
    fn new(pack: PackName, stored: &Stored, bytes: Option<u64>) -> NewPack {
        let singles = stored.singles.range(pack.first..=pack.last);
        NewPack {
            object: pack.key(),
            segments: pack.segments(),
            bytes_before: singles.map(|(_, bytes)| bytes).sum(),
            bytes,
        }
    }
}
