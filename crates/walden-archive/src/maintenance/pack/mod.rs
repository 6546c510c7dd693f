//! Rewrites runs of pushed segments into packs: fewer and smaller objects, because each segment is compressed
//! with the context of the previous ones.
//!
//! A pack is decoded and compared before it is stored, and read back and compared again before the segments'
//! own objects are removed. So every segment is in at least one object at any time, even if a process is
//! interrupted, and while other processes pack, push, get or prune. If an interrupted process leaves a
//! segment in two objects, the next run compares both objects and removes one.

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
use crate::inspect::cost::{Ages, Early};
use crate::objects::name::{ArchivedFile, Object, PackName, WAL};
use crate::objects::object::Finding;

/// Options for packing segments.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PackOptions {
    /// Maximum number of segments in a pack. The default is 512 MB of WAL.
    pub segments: Option<u64>,
    /// Number of newest segments on each timeline that are not packed, because they may be pushed out of
    /// order, and standbys request them.
    pub keep: u64,
    /// Packs only segments up to the last segment without records after this time, in microseconds since
    /// 1970-01-01 00:00:00 UTC.
    pub before: Option<i64>,
    /// Compression level, 1 to 9.
    pub level: u8,
    /// Maximum size of a pack in bytes. A pack is in memory until it is stored.
    pub max_bytes: u64,
    /// Memory limit for encoding and for later decoding, in bytes. Segments that need more are encoded as
    /// bytes. The default is the requirement of the segments.
    pub memory: Option<u64>,
    /// Number of packs written concurrently.
    pub threads: usize,
    /// Changes nothing.
    pub dry_run: bool,
}

walden_format::setters!(PackOptions {
    segments: Option<u64>,
    keep: u64,
    before: Option<i64>,
    level: u8,
    max_bytes: u64,
    memory: Option<u64>,
    threads: usize,
    dry_run: bool,
});

impl Default for PackOptions {
    fn default() -> PackOptions {
        PackOptions {
            segments: None,
            keep: 64,
            before: None,
            level: FileForm::Pack.default_level(),
            max_bytes: 1 << 29,
            memory: None,
            threads: 1,
            dry_run: false,
        }
    }
}

/// Result of packing.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Packed {
    /// Location of the archive.
    pub location: String,
    /// Nothing was changed.
    #[serde(rename = "dry_run")]
    pub is_dry_run: bool,
    /// Packs that were written, or would be.
    pub packs: Vec<NewPack>,
    /// Number of segments in these packs.
    pub segments: u64,
    /// Objects that an interrupted process left although a pack contains their segments, and that are now
    /// removed.
    pub tidied: Vec<String>,
    /// Number of objects whose segments are in a pack too, and that the store keeps: they are locked, or
    /// these credentials may not remove them. A later run tries again.
    pub kept_objects: u64,
    /// Number of segments that stay separate because a pack would be considerably larger.
    pub incompressible_segments: u64,
    /// Number of segments that stay separate until all other segments of their pack can be packed.
    pub unfilled_segments: u64,
    /// Number of segments that stay separate because no neighbor can be packed with them.
    pub single_segments: u64,
    /// Number of segments and packs before.
    pub objects_before: u64,
    /// Stored size of the segments and packs before, in bytes.
    pub bytes_before: u64,
    /// Number of segments and packs now, or `None` for a dry run.
    pub objects_after: Option<u64>,
    /// Stored size of the segments and packs now, in bytes; `None` for a dry run.
    pub bytes_after: Option<u64>,
    /// Removed objects, replaced by packs or left over, that are younger than the minimum storage duration of
    /// their class.
    pub early: Option<Early>,
    /// Problems by object. The affected objects are left unchanged.
    pub problems: Vec<Finding>,
}

/// A pack that replaces the segments' own objects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NewPack {
    /// Key of the pack.
    pub object: String,
    /// Number of segments in the pack.
    pub segments: u64,
    /// Total size of the segments' own objects in bytes.
    pub bytes_before: u64,
    /// Size of the pack in bytes, or `None` if it is not written yet.
    pub bytes: Option<u64>,
}

/// The objects that contain segments.
#[derive(Clone, Default, Debug)]
struct Stored {
    /// Segments in their own objects, with their stored sizes.
    singles: BTreeMap<SegmentName, u64>,
    /// Packs, with their stored sizes.
    packs: BTreeMap<PackName, u64>,
}

impl Stored {
    fn list(archive: &Archive) -> Result<Stored, ArchiveError> {
        let mut stored = Stored::default();
        archive.store().list(WAL, &mut |listed| match Object::parse_key(&listed.key) {
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

/// Default size of the WAL in a pack, in bytes.
const PACK_BYTES: u64 = 512 << 20;

/// Packs all eligible segments. Calls `progress` with the number of finished segments and the total.
///
/// # Errors
/// The archive cannot be listed. A problem with an object or with writing a pack is reported as a finding.
pub fn pack(
    archive: &Archive,
    options: &PackOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Packed, ArchiveError> {
    let size = archive.segment_size()?;
    if !options.dry_run {
        archive.store().remove_leftovers()?;
    }
    let mut stored = Stored::list(archive)?;
    let ages = Ages::list(archive)?;
    let mut packed = Packed {
        location: archive.store().location().to_owned(),
        is_dry_run: options.dry_run,
        objects_before: stored.objects(),
        bytes_before: stored.bytes(),
        ..Packed::default()
    };
    tidy::tidy(archive, &mut stored, options.dry_run, &mut packed)?;
    let Plan { runs, unfilled_segments, single_segments } = plan_runs(archive, &stored, options, size)?;
    (packed.unfilled_segments, packed.single_segments) = (unfilled_segments, single_segments);
    if options.dry_run {
        for run in runs {
            packed.add_planned(&run, &stored);
        }
        packed.early = packed.early_of(&ages, |_| true);
        return Ok(packed);
    }
    write_packs(archive, &stored, &runs, options, progress, &mut packed);
    let now = Stored::list(archive)?;
    packed.early = packed.early_of(&ages, |segment| !now.singles.contains_key(&segment));
    (packed.objects_after, packed.bytes_after) = (Some(now.objects()), Some(now.bytes()));
    Ok(packed)
}

/// Returns the runs of segments that become packs.
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
                        // The same error may prevent writing every pack.
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
    /// Returns whether no problems were found.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns the removed objects, tidied or packed, that are younger than the minimum storage duration of
    /// their class.
    fn early_of(&self, ages: &Ages, is_removed: impl Fn(SegmentName) -> bool) -> Option<Early> {
        let packs = self.packs.iter().filter_map(|pack| match Object::parse_key(&pack.object) {
            Some(Object::Pack(name)) => Some(name),
            _ => None,
        });
        let replaced = packs.flat_map(PackName::names).filter(|name| is_removed(*name));
        let replaced = replaced.map(|name| ArchivedFile::Segment(name).key());
        let keys: BTreeSet<String> = replaced.chain(self.tidied.iter().cloned()).collect();
        ages.early(keys.iter().map(String::as_str))
    }

    fn add_planned(&mut self, run: &PackName, stored: &Stored) {
        self.segments += run.segments();
        self.packs.push(NewPack::new(*run, stored, None));
    }

    fn add(&mut self, outcome: Outcome, stored: &Stored) {
        match outcome {
            Outcome::Packed { pack, bytes, kept } => {
                self.kept_objects += kept;
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
