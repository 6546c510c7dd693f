//! Verifies that everything in an archive is intact.
//!
//! Every object is read and decoded, each file's hash is compared, and each segment is checked as strictly as
//! before it was archived: every record's checksum, and that a segment's first record points back at the last
//! record of the previous segment.

pub mod altered;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;
use walden_format::crossing::{Beginning, Continuation};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_source::{error_text, workers};

use crate::archive::{Archive, ArchiveError};
use crate::base_backups;
use crate::history::History;
use crate::inspect::list::{self, BackupWithoutStart, Depth, Gap};
use crate::inspect::replay::{ReplaySummary, Replayed};
use crate::inventory::gaps;
use crate::inventory::parts;
use crate::inventory::verified::{self, VerifiedAt};
use crate::objects::check::{self, Checked, Rules};
use crate::objects::contents::{Contents, MinimalWal};
use crate::objects::link::{self, SegmentEnd};
use crate::objects::name::{ArchivedFile, Object};
use crate::objects::object::{self, Finding, Summary};
use crate::restore::get::{self, PackMembers};
use crate::store::Cause;

use altered::Altered;

/// Result of verification.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Verified {
    /// Number of objects read.
    pub objects: u64,
    /// Number of segments in these objects.
    pub segments: u64,
    /// Number of other files in these objects.
    pub other_files: u64,
    /// Number of segments with a version that Walden cannot read. Only their hashes and page headers were
    /// checked.
    #[serde(default)]
    pub unknown_version_segments: u64,
    /// Number of records whose checksums were verified.
    pub records: u64,
    /// Size before compression, in bytes.
    pub raw_bytes: u64,
    /// Stored size of the objects, in bytes.
    pub stored_bytes: u64,
    /// Number of base backups in the archive.
    pub base_backups: u64,
    /// Number of their pieces.
    pub pieces: u64,
    /// Bytes of the pieces before compression; 0 if they were not decoded.
    pub piece_bytes: u64,
    /// Damage by object.
    pub damaged: Vec<Finding>,
    /// Objects that were deleted or overwritten. The bucket keeps their versions.
    pub altered: Vec<Altered>,
    /// Objects that could not be read, for example because of missing permissions. Their contents are
    /// unknown.
    pub unreadable: Vec<Finding>,
    /// Missing segments.
    pub gaps: Vec<Gap>,
    /// Names of missing timeline histories: see [`list::Listing::missing_histories`].
    pub missing_histories: Vec<String>,
    /// The newest segment of each timeline.
    #[serde(skip)]
    pub newest_segments: Vec<String>,
    /// Base backups whose first segment is missing: see [`list::Listing::backups_without_start`].
    pub backups_without_start: Vec<BackupWithoutStart>,
    /// WAL that was written with `wal_level = minimal`.
    pub minimal_wal: Vec<MinimalWal>,
    /// Notices for the user that are not damage.
    pub warnings: Vec<Finding>,
    /// Number of full-page images compared with replayed pages, or `None` without replay.
    pub replayed_images: Option<u64>,
    /// Number of images that differ.
    pub different: Option<u64>,
    /// Other results of replay.
    pub replay: Option<ReplaySummary>,
}

impl Verified {
    /// Returns whether every object was read and is intact, and all missing segments are acknowledged.
    pub fn is_good(&self) -> bool {
        self.damaged.is_empty()
            && self.altered.is_empty()
            && self.unreadable.is_empty()
            && self.is_replayed_well()
            && !self.gaps.iter().any(Gap::is_new)
            && self.missing_histories.is_empty()
            && self.backups_without_start.iter().all(|backup| backup.is_acknowledged)
    }
}

/// Options for verification.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// Verifies only stored checksums and decodes nothing.
    pub fast: bool,
    /// Number of objects processed concurrently.
    pub threads: usize,
}

walden_format::setters!(VerifyOptions { fast: bool, threads: usize });

impl Default for VerifyOptions {
    fn default() -> VerifyOptions {
        VerifyOptions { fast: false, threads: 2 }
    }
}

/// Remedy for a damaged object.
pub const DAMAGE_HINT: &str = "put the object back from another copy of the archive. If there is none, move it out of the archive, and archive \
                               the segment once more with walden archive push while a server still has it in pg_wal; from a pack (.wpk), first copy the segments that walden archive get can still read. If a segment is lost for good, move its object out and run walden archive acknowledge-gap";

/// Remedy for objects that were deleted or overwritten.
pub const UNDELETE_HINT: &str = "walden archive repair --undelete restores the intact versions, with credentials that may write. Find out which credentials deleted or overwrote objects (the bucket's access log), and replace them; Walden never overwrites an object";

/// Remedy for objects that could not be read.
pub const UNREADABLE_HINT: &str = "nothing shows that they are damaged: leave them where they are. Run verify as the user whose commands use \
                                   the archive, such as PostgreSQL's, or with credentials that may read it, and give that user the files \
                                   that another one, such as root, made there (chown -R); if the store did not answer, verify again once \
                                   it does. Until then, the findings of earlier runs count";

/// Remedy for damaged keys of an encrypted archive.
pub const KEYS_HINT: &str = "restore the file of keys from another copy of the archive, and verify again. Until then leave all objects where they are: those that only these keys decrypt are not damaged themselves";

/// Verifies an archive. Calls `progress` with the number of finished objects and the total, neither of which
/// ever decreases: objects that disappear before they are read count too.
///
/// # Errors
/// The archive cannot be listed. Damage to an object is reported as a finding.
pub fn verify(
    archive: &Archive,
    options: VerifyOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Verified, ArchiveError> {
    archive.unlock()?;
    let (mut listing, mut objects) = list::list_objects(archive, Depth::Keys)?;
    let size = archive.segment_size()?;
    expect_segment_size(archive, &objects)?;
    let histories = read_histories(archive, &objects);
    let unknown = |object| Finding { object, problem: "not an object of an archive".to_owned() };
    let mut inspected: BTreeMap<Object, Inspection> = BTreeMap::new();
    let mut gone: u64 = 0;
    for round in 1.. {
        let count = |done: u64, all: u64| progress(gone + done, gone + all);
        inspect_new(archive, &objects, options, &histories, &count, &mut inspected);
        if round == MAX_ROUNDS || !inspected.values().any(|it| it.is_gone) {
            break;
        }
        // Packed or pruned since the listing.
        (listing, objects) = list::list_objects(archive, Depth::Keys)?;
        let listed: BTreeSet<Object> = objects.iter().map(|(object, _)| *object).collect();
        let before = inspected.len();
        inspected.retain(|object, it| !it.is_gone && listed.contains(object));
        gone += (before - inspected.len()) as u64;
    }
    let mut gaps = listing.gaps();
    if gaps.iter().any(Gap::is_new) {
        // Missing segments may have been in the process of being archived.
        gaps = gaps::in_both(&gaps, &list::list_objects(archive, Depth::Keys)?.0.gaps(), size);
    }
    let (sealed, unknown_names): (Vec<String>, Vec<String>) =
        listing.unknown.into_iter().partition(|name| !listing.encrypted && list::is_sealed_object(name));
    let mut found = Verified {
        gaps,
        newest_segments: listing.timelines.iter().filter_map(|it| it.last_segment.clone()).collect(),
        missing_histories: listing.missing_histories,
        backups_without_start: listing.backups_without_start,
        warnings: unknown_names.into_iter().map(unknown).collect(),
        damaged: sealed.into_iter().map(list::sealed_in_plain).collect(),
        ..Verified::default()
    };
    let mut links = Links::new(size, &histories);
    for (object, inspected) in inspected {
        if !inspected.is_unreadable {
            found.objects += 1;
            found.stored_bytes += inspected.stored_bytes;
        }
        found.add(archive.stored_name(&object.key()), inspected, &mut links);
    }
    for segment in parts::segments(archive)? {
        let Err(error) = parts::assemble(archive, segment) else { continue };
        let finding = Finding { object: parts::folder_of(segment), problem: error_text(&error) };
        match is_unreadable(&error) {
            true => found.unreadable.push(finding),
            false => found.damaged.push(finding),
        }
    }
    let backups = base_backups::verify(archive, options.fast, options.threads, &is_unreadable)?;
    (found.base_backups, found.pieces, found.piece_bytes) =
        (backups.backups, backups.pieces, backups.raw_bytes);
    found.stored_bytes += backups.stored_bytes;
    found.damaged.extend(backups.damaged);
    found.unreadable.extend(backups.unreadable);
    found.warnings.extend(backups.unknown.into_iter().map(unknown));
    match altered::find(archive) {
        Ok(altered) => found.altered = altered,
        // The rights to read versions are needed only if locks are configured.
        Err(error) => {
            let problem = error_text(&error);
            found.warnings.push(Finding { object: "versions".to_owned(), problem });
        }
    }
    found.damaged.extend(archive.encrypted().key_findings()?);
    found.damaged.sort();
    found.unreadable.sort();
    found.minimal_wal.sort();
    // A segment that is in a pack and in its own object counts once.
    found.minimal_wal.dedup();
    Ok(found)
}

/// Reads the histories. An unreadable one is skipped here and reported when its object is inspected.
fn read_histories(archive: &Archive, objects: &[(Object, u64)]) -> Vec<History> {
    let read = |&(object, bytes): &(Object, u64)| {
        let Object::File(file @ ArchivedFile::History(timeline)) = object else { return None };
        let mut text = Vec::new();
        get::decode(archive, file, object, bytes, &mut text).ok()?;
        History::parse(timeline, &text).ok()
    };
    objects.iter().filter_map(read).collect()
}

/// Compares the segment size in `archive.json` with the first and last segment, because a wrong size makes
/// every object look damaged.
fn expect_segment_size(archive: &Archive, objects: &[(Object, u64)]) -> Result<(), ArchiveError> {
    let segments = || objects.iter().filter(|(object, _)| object.segments().is_some());
    // Unreadable objects are reported later.
    let read = |&(object, bytes): &(Object, u64)| get::read_contents(archive, object, bytes).ok();
    let ends: Vec<_> =
        [segments().next(), segments().next_back()].into_iter().flatten().filter_map(read).collect();
    archive.expect_size_of(ends.iter().flatten())
}

/// Returns whether an error means only that this user cannot read the object, or that the store is
/// unavailable.
fn is_unreadable(error: &ArchiveError) -> bool {
    use Cause::{Denied, NoBucket, NoCredentials, Unavailable};
    let cause = error.store_error().map(|error| error.cause);
    matches!(cause, Some(Denied | NoBucket | NoCredentials | Unavailable))
}

/// Maximum number of listings if objects disappear before they are read.
const MAX_ROUNDS: usize = 16;

/// Inspects the objects that were not inspected yet.
fn inspect_new(
    archive: &Archive,
    objects: &[(Object, u64)],
    options: VerifyOptions,
    histories: &[History],
    progress: &(dyn Fn(u64, u64) + Sync),
    inspected: &mut BTreeMap<Object, Inspection>,
) {
    let new: Vec<(Object, u64)> =
        objects.iter().copied().filter(|(object, _)| !inspected.contains_key(object)).collect();
    let all = (inspected.len() + new.len()) as u64;
    workers::run_in_order(
        0..new.len(),
        options.threads,
        || (),
        |(), index| {
            let (object, bytes) = new[index];
            let inspected = match options.fast {
                true => inspect_fast(archive, object, bytes),
                false => inspect(archive, object, bytes, histories),
            };
            (object, Inspection { stored_bytes: bytes, ..inspected })
        },
        |(object, one)| {
            inspected.insert(object, one);
            progress(inspected.len() as u64, all);
            ControlFlow::Continue(())
        },
    );
}

impl Verified {
    /// Returns whether replay was not requested, or confirmed every image.
    fn is_replayed_well(&self) -> bool {
        let is_good = |replay: &ReplaySummary| replay.misfits.is_empty() && replay.damaged.is_empty();
        self.different.unwrap_or(0) == 0 && self.replay.as_ref().is_none_or(is_good)
    }

    /// Adds the results of replay from a base backup. Damage in the WAL was already reported.
    pub fn add_replay(&mut self, replayed: &Replayed) {
        let (compared, different) = replayed.images();
        self.replayed_images = Some(compared);
        self.different = Some(different);
        self.replay = Some(replayed.summary());
    }

    /// Adds the results for an object, under its name in the store.
    fn add(&mut self, name: String, inspected: Inspection, links: &mut Links) {
        for CheckedFile { file, bytes, warnings, records, minimal_wal, is_of_unknown_version } in
            inspected.files
        {
            self.unknown_version_segments += u64::from(is_of_unknown_version);
            self.raw_bytes += bytes;
            match file {
                ArchivedFile::Segment(_) => self.segments += 1,
                _ => self.other_files += 1,
            }
            let warning = |problem| Finding { object: name.clone(), problem };
            self.warnings.extend(warnings.into_iter().map(warning));
            self.minimal_wal.extend(minimal_wal);
            if let (ArchivedFile::Segment(segment), Some(records)) = (file, records) {
                self.records += records.count;
                let (crossed, problems) = links.follow(segment, records);
                self.records += u64::from(crossed);
                let finding = |problem| Finding { object: name.clone(), problem };
                self.damaged.extend(problems.into_iter().map(finding));
            }
        }
        if let Some(problem) = inspected.problem {
            links.last = None;
            let finding = Finding { object: name, problem };
            match inspected.is_unreadable {
                true => self.unreadable.push(finding),
                false => self.damaged.push(finding),
            }
        }
    }
}

/// The results for a checked file. Kept small because an archive may contain millions of files.
struct CheckedFile {
    file: ArchivedFile,
    bytes: u64,
    warnings: Vec<String>,
    /// Records of a segment, if they were read.
    records: Option<Records>,
    minimal_wal: Option<MinimalWal>,
    is_of_unknown_version: bool,
}

impl CheckedFile {
    fn new(file: ArchivedFile, checked: Checked) -> CheckedFile {
        let Checked { bytes, warnings, contents, .. } = checked;
        if contents.as_ref().is_some_and(|contents| contents.unknown_magic.is_some()) {
            // Segments of unknown versions are counted instead.
            let warnings = Vec::new();
            let (records, minimal_wal) = (None, None);
            return CheckedFile { file, bytes, warnings, records, minimal_wal, is_of_unknown_version: true };
        }
        let records = contents.as_ref().map(Records::from_contents);
        let minimal_wal = contents.as_ref().and_then(Contents::minimal_wal);
        CheckedFile { file, bytes, warnings, records, minimal_wal, is_of_unknown_version: false }
    }
}

/// The facts about a segment's records that show whether segments follow each other.
struct Records {
    count: u64,
    /// Start of the previous record according to the first record.
    first_previous: Option<Lsn>,
    /// Start of the last complete record, and of a record that continues in the next segment.
    last: [Option<Lsn>; 2],
    /// The parts of records that cross the segment's ends. Boxed, because most records do not.
    crossing: Option<Box<(Option<Continuation>, Option<Beginning>)>>,
}

impl Records {
    fn from_contents(contents: &Contents) -> Records {
        let lsn = |text: &Option<String>| text.as_ref()?.parse::<Lsn>().ok();
        Records {
            count: contents.records,
            first_previous: lsn(&contents.first_record_previous),
            last: [&contents.last_record, &contents.unfinished_record].map(lsn),
            crossing: match (contents.continuation(), contents.beginning()) {
                (None, None) => None,
                parts => Some(Box::new(parts)),
            },
        }
    }
}

/// The results for an object.
#[derive(Default)]
struct Inspection {
    files: Vec<CheckedFile>,
    problem: Option<String>,
    /// The object disappeared, as described in `problem`.
    is_gone: bool,
    /// The object could not be read, as described in `problem`.
    is_unreadable: bool,
    stored_bytes: u64,
}

impl Inspection {
    fn failed(error: &ArchiveError) -> Inspection {
        Inspection {
            problem: Some(error_text(error)),
            is_gone: error.is_not_found(),
            is_unreadable: is_unreadable(error),
            ..Inspection::default()
        }
    }
}

fn inspect_fast(archive: &Archive, object: Object, bytes: u64) -> Inspection {
    match object::check_stored(archive.store(), object, bytes) {
        Ok(files) => {
            let file = |(file, bytes, hash)| CheckedFile::new(file, Checked::from_hash(bytes, hash));
            Inspection { files: files.into_iter().map(file).collect(), ..Inspection::default() }
        }
        Err(error) => Inspection::failed(&error.into()),
    }
}

fn inspect(archive: &Archive, object: Object, bytes: u64, histories: &[History]) -> Inspection {
    let result = match object {
        Object::File(file) => inspect_file(archive, file, histories),
        Object::Pack(_) => inspect_pack(archive, object, bytes, histories),
    };
    result.unwrap_or_else(|error| Inspection::failed(&error))
}

fn inspect_file(
    archive: &Archive,
    file: ArchivedFile,
    histories: &[History],
) -> Result<Inspection, ArchiveError> {
    let object = archive.store().read(&file.key())?;
    let mut content = Vec::new();
    object::decode_within(file, archive.known_segment_bytes(), &object, &mut content)?;
    let mut inspected = Inspection::default();
    let summary = object::summary_at_end(&file.key(), &object)?;
    inspected.check(archive, file, &content, histories, Some(&summary));
    Ok(inspected)
}

fn inspect_pack(
    archive: &Archive,
    object: Object,
    bytes: u64,
    histories: &[History],
) -> Result<Inspection, ArchiveError> {
    let Object::Pack(pack) = object else { return Ok(Inspection::default()) };
    let mut members = PackMembers::open(archive, pack, bytes)?;
    let mut summaries = object::read_pack_summaries(archive.store(), pack, bytes)?.into_iter();
    let mut inspected = Inspection::default();
    while let Some(segment) = members.next_segment() {
        let mut content = Vec::new();
        if let Err(error) = members.decode_next(&mut content) {
            inspected.is_gone = error.is_not_found();
            // Damage that was found before remains damage.
            inspected.is_unreadable = inspected.problem.is_none() && is_unreadable(&error);
            inspected.problem.get_or_insert(format!("{segment}: {}", error_text(&error)));
            break;
        }
        let (file, summary) = (ArchivedFile::Segment(segment), summaries.next());
        inspected.check(archive, file, &content, histories, summary.as_ref());
    }
    Ok(inspected)
}

impl Inspection {
    /// Checks a decoded file as strictly as before it was archived, and compares it with its stored summary.
    /// Damage that was accepted when the file was archived is only a warning.
    fn check(
        &mut self,
        archive: &Archive,
        file: ArchivedFile,
        content: &[u8],
        histories: &[History],
        stored: Option<&Summary>,
    ) {
        let rules = Rules { accept_damaged: true, accept_unknown_versions: true, histories };
        match check::check_held(file, content, rules) {
            Ok(checked) => {
                let expected = archive.identity().map(|identity| identity.system_identifier.clone());
                let found = checked.cluster.map(|cluster| cluster.system_id.to_string());
                if let (Ok(expected), Some(found)) = (expected, found)
                    && expected != found
                {
                    let problem = format!("{file}: expected system identifier {expected}, found {found}");
                    self.problem.get_or_insert(problem);
                }
                if let Some(stored) = stored {
                    self.compare(file, &checked, stored);
                }
                self.files.push(CheckedFile::new(file, checked));
            }
            Err(refusal) => {
                self.problem.get_or_insert(format!("{file}: {}", error_text(&refusal)));
            }
        }
    }

    /// Compares a checked file with its stored summary, on which lists and searches by time rely. Warnings
    /// may differ, because accepted damage now results in a different warning.
    fn compare(&mut self, file: ArchivedFile, checked: &Checked, stored: &Summary) {
        let mut found = Summary {
            warnings: stored.warnings.clone(),
            is_damage_accepted: stored.is_damage_accepted,
            is_as_bytes: stored.is_as_bytes,
            ..Summary::new(file, checked)
        };
        // The version of Walden that archived the file could not read its PostgreSQL version.
        if stored.is_of_unknown_version() && !found.is_of_unknown_version() {
            found.contents.clone_from(&stored.contents);
        }
        // Older summaries lack it.
        if let (Some(found), Some(stored)) = (&mut found.contents, &stored.contents)
            && stored.minimal_wal.is_none()
        {
            found.minimal_wal = None;
        }
        if *stored != found {
            let [found, stored] = [&found, stored].map(|it| serde_json::to_value(it).unwrap_or_default());
            let difference = difference("", &found, &stored);
            self.problem.get_or_insert(format!(
                "{file}: the stored summary differs from the file's content{difference}"
            ));
        }
    }
}

/// Describes the first difference between two JSON values: of the file, and as stored.
fn difference(path: &str, found: &Value, stored: &Value) -> String {
    if let (Value::Object(found), Value::Object(stored)) = (found, stored) {
        let keys: BTreeSet<&String> = found.keys().chain(stored.keys()).collect();
        let of =
            |map: &serde_json::Map<String, Value>, key: &String| map.get(key).cloned().unwrap_or_default();
        let differing =
            keys.into_iter().map(|key| (key, of(found, key), of(stored, key))).find(|(_, a, b)| a != b);
        return match differing {
            Some((key, found, stored)) => difference(&format!("{path}{key}."), &found, &stored),
            None => String::new(),
        };
    }
    let path = path.trim_end_matches('.');
    format!(": expected {path} {found}, found {stored}")
}

/// Checks that segments follow each other, on one timeline and across timeline switches.
struct Links {
    size: SegmentSize,
    /// The previous segment, and how it ends.
    last: Option<(SegmentName, SegmentEnd)>,
    /// Maps the first segment of each timeline to its predecessor, which is on the parent timeline.
    switches: BTreeMap<SegmentName, SegmentName>,
    /// How the predecessors of timeline switches end.
    before_switches: BTreeMap<SegmentName, SegmentEnd>,
}

impl Links {
    fn new(size: SegmentSize, histories: &[History]) -> Links {
        let switch = |history: &History| {
            let parent = history.parent()?;
            let number = size.segment_of(parent.end);
            let before = SegmentName::new(parent.timeline, number.checked_sub(1)?, size);
            Some((SegmentName::new(history.timeline, number, size), before))
        };
        let switches = histories.iter().filter_map(switch).collect();
        Links { size, last: None, switches, before_switches: BTreeMap::new() }
    }

    /// Returns whether a record that started before the segment ends in it and has the right checksum, and
    /// the problems between the previous segment and this segment.
    fn follow(&mut self, name: SegmentName, found: Records) -> (bool, Vec<String>) {
        let last = self.last.take();
        let number = name.number(self.size);
        let follows = |before: SegmentName| {
            before.timeline == name.timeline && before.number(self.size).map(|before| before + 1) == number
        };
        // A timeline's first segment starts with a copy of its parent's WAL, so it has the same predecessor
        // as that segment of the parent.
        let of_parent = || self.before_switches.get(self.switches.get(&name)?).cloned();
        let of_last = last.filter(|(before, _)| follows(*before)).map(|(_, end)| end);
        let before = of_last.or_else(of_parent).unwrap_or_default();
        let mut problems = Vec::new();
        let (continued, begun) = found.crossing.map_or((None, None), |parts| *parts);
        let joined = link::join(&before, continued.as_ref()).unwrap_or_else(|(at, fault)| {
            problems.push(format!("{name}: the record at {at}, which continues here: {fault}"));
            None
        });
        let is_crossed = matches!(joined, Some(None));
        let last_records = link::last_of(found.last, &before.last_records);
        let end = SegmentEnd { last_records, unfinished: begun.or(joined.flatten()) };
        if self.switches.values().any(|before| *before == name) {
            self.before_switches.insert(name, end.clone());
        }
        self.last = Some((name, end));
        problems
            .extend(found.first_previous.and_then(|found| link_problem(name, &before.last_records, found)));
        (is_crossed, problems)
    }
}

/// Describes a first record that points back at none of the last records of the previous segment.
fn link_problem(name: SegmentName, expected: &[Lsn], found: Lsn) -> Option<String> {
    let is_right = expected.is_empty() || expected.contains(&found);
    (!is_right).then(|| {
        let expected = expected.iter().map(Lsn::to_string).collect::<Vec<_>>().join(" or ");
        let cause = match found {
            Lsn::INVALID => ": pg_resetwal restarted the WAL here, and recovery cannot get past it",
            _ => "",
        };
        format!("{name}: expected the first record to point back at {expected}, found {found}{cause}")
    })
}

/// Stores the result of a run, and removes old results.
///
/// A run that could not read some objects does not prove that they are intact. So damage found by an earlier
/// run still counts, and if this run found no damage, its result is not stored.
///
/// # Errors
/// Errors of the store. A user with read-only access cannot store the result.
pub fn record(archive: &Archive, run: &Verified, is_fast: bool) -> Result<(), ArchiveError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let time = i64::try_from(now).unwrap_or(i64::MAX);
    let mut damaged = (run.damaged.len() + run.altered.len()) as u64;
    let names = run.damaged.iter().map(|finding| finding.object.clone());
    let mut names: Vec<String> =
        names.chain(run.altered.iter().map(|altered| altered.object.clone())).collect();
    if !run.unreadable.is_empty() {
        if damaged == 0 {
            return Ok(());
        }
        if let Some(before) = verified::last(archive)?.found() {
            damaged = damaged.max(before.damaged);
            names.extend(before.damaged_objects);
        }
    }
    names.sort();
    names.dedup();
    names.truncate(verified::MAX_DAMAGED);
    // Segments that have disappeared remain known.
    let before = verified::last_readable(archive)?;
    let mut newest = before.as_ref().map(VerifiedAt::newest_by_timeline).unwrap_or_default();
    for name in run.newest_segments.iter().filter_map(|name| SegmentName::parse(name)) {
        newest.entry(name.timeline).and_modify(|known| *known = name.max(*known)).or_insert(name);
    }
    let mut minimal_wal = run.minimal_wal.clone();
    if is_fast || !run.unreadable.is_empty() {
        minimal_wal.extend(before.map(|before| before.minimal_wal).unwrap_or_default());
        minimal_wal.sort();
        minimal_wal.dedup();
    }
    let new = run.gaps.iter().filter(|gap| gap.is_new());
    let found = VerifiedAt {
        time,
        is_fast,
        objects: run.objects,
        segments: run.segments,
        damaged,
        damaged_objects: names,
        missing_segments: new.map(|gap: &Gap| gap.segments).sum(),
        unknown_version_segments: run.unknown_version_segments,
        newest_segments: newest.values().map(SegmentName::to_string).collect(),
        minimal_wal,
    };
    verified::store(archive, &found)
}
