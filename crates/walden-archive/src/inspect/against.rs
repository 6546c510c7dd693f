//! Finds files that a server still has in its `pg_wal` and that the archive lacks, such as the gaps that a
//! failover leaves.
//!
//! A standby marks received segments as `.done` without archiving them (`XLogWalRcvClose` in
//! `walreceiver.c`), because the primary is expected to archive them. If the primary is lost before it
//! archives them, the archive has a gap although every server reports that all files are archived.

mod same_history;

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, Read};

use serde::Serialize;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_source::error_text;

use self::same_history::Comparison;
pub use self::same_history::OtherHistory;
use crate::archive::{Archive, ArchiveError};
use crate::history::History;
use crate::ingest::intake::{self, Intake};
use crate::ingest::push::{PushOptions, Pusher};
use crate::inspect::list::{self, Branch, ListOptions, Listing};
use crate::inventory::gaps::Gap;
pub use crate::objects::check::RESET_HINT;
use crate::objects::check::{self, Checked};
use crate::objects::name::ArchivedFile;
use crate::objects::object::Content;

/// A server whose WAL is compared.
pub trait Server {
    /// Returns facts about the server.
    ///
    /// # Errors
    /// The server's errors.
    fn facts(&mut self) -> Result<Facts, ServerError>;

    /// Returns the files in `pg_wal`, with their sizes and archive status.
    ///
    /// # Errors
    /// The server's errors.
    fn files(&mut self) -> Result<Vec<ServerFile>, ServerError>;

    /// Opens a file in `pg_wal`.
    fn open(&mut self, file: ArchivedFile) -> Box<dyn Read + '_>;
}

/// The error of a server that does not answer.
pub type ServerError = Box<dyn Error + Send + Sync>;

/// Facts that a server reports.
#[derive(Clone, Debug)]
pub struct Facts {
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// The timeline that the server writes or replays.
    pub timeline: Timeline,
    /// End LSN of the server's complete WAL.
    pub written: Lsn,
    /// Whether the server is a standby, which replays the WAL of another server.
    pub is_standby: bool,
}

/// A file in `pg_wal`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerFile {
    /// Kind and name of the file.
    pub file: ArchivedFile,
    /// Size in bytes.
    pub bytes: u64,
    /// The file's mark in `archive_status`.
    pub mark: Mark,
}

/// Archive status of a file on the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    /// `.done`: archived, or not to be archived by this server.
    Done,
    /// `.ready`: the server will call `archive_command` for the file.
    Ready,
    /// The file has no mark.
    None,
}

/// Reasons for not comparing an archive with a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgainstError {
    /// The archive failed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The server failed.
    #[error("cannot ask the server")]
    Server(#[source] ServerError),
}

walden_format::diagnostics! { AgainstError {
    Self::Archive(error) => of(error),
    Self::Server(_) => none,
} }

/// Result of the comparison.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Compared {
    /// Location of the archive.
    pub location: String,
    /// Timeline of the server.
    pub timeline: Timeline,
    /// End LSN of the server's complete WAL.
    pub written: String,
    /// Whether the server is a standby, which replays the WAL of another server.
    #[serde(rename = "standby")]
    pub is_standby: bool,
    /// Number of the server's complete files that were searched for in the archive.
    pub compared: u64,
    /// Number of files that wait for the server's `archive_command`.
    pub waiting: u64,
    /// Number of archived files that the server still offers.
    pub offered: u64,
    /// The first file that the server offers, if the archive refuses its content. The server cannot archive
    /// any later file.
    pub refused: Option<RefusedFile>,
    /// Where the server's history differs from the archive's. In that case no files are archived from the
    /// server.
    pub other_history: Option<OtherHistory>,
    /// The timeline that recovery follows by default, if it does not contain the end of this primary's WAL:
    /// another server was promoted.
    pub branch: Option<Branch>,
    /// Files that the server has and will not archive, and that the archive lacks.
    pub missing: Vec<Missing>,
    /// Remaining gaps in the archive, except those that consist only of waiting files.
    pub gaps: Vec<Gap>,
}

impl Compared {
    /// Returns whether nothing is missing, or everything missing was archived.
    pub fn is_good(&self) -> bool {
        let is_filled = |one: &Missing| one.outcome == Outcome::Filled;
        self.missing.iter().all(is_filled)
            && self.refused.is_none()
            && self.other_history.is_none()
            && self.branch.is_none()
            && !self.gaps.iter().any(Gap::is_new)
    }
}

/// A file that the archive refuses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RefusedFile {
    /// Name of the file.
    pub file: String,
    /// The reason.
    pub problem: String,
    /// Whether `pg_resetwal` is the likely cause: it started the WAL of the server again with this file.
    #[serde(rename = "reset")]
    pub is_reset: bool,
}

/// A file that the archive lacks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Missing {
    /// Name of the file.
    pub file: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Archive status on the server.
    pub mark: Mark,
    /// Outcome.
    pub outcome: Outcome,
    /// Why it was not archived.
    pub problem: Option<String>,
}

/// Outcome for a missing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The server has the file; archiving was not requested.
    Found,
    /// The file was archived.
    Filled,
    /// The file failed the checks or could not be read.
    Refused,
}

/// Compares an archive with a server. With `repair`, archives missing files after the same checks as for a
/// push, unless the server's WAL differs from the archive's.
///
/// # Errors
/// An archive of another cluster or segment size, a place that has none, and one or the other that does not
/// answer.
pub fn compare(
    archive: &Archive,
    server: &mut dyn Server,
    repair: Option<&PushOptions>,
) -> Result<Compared, AgainstError> {
    let facts = server.facts().map_err(AgainstError::Server)?;
    let listing = list::list_if_any(archive, ListOptions::default())?;
    let own = facts.system_identifier.to_string();
    if let Some(listing) = listing.as_ref().filter(|listing| listing.system_identifier != own) {
        let (location, expected) = (listing.location.clone(), listing.system_identifier.clone());
        return Err(ArchiveError::OtherCluster { location, expected, found: own }.into());
    }
    // With another size, the same names mean other positions.
    archive.expect_segment_bytes(facts.segment_bytes)?;
    let files = server.files().map_err(AgainstError::Server)?;
    let histories = histories(archive, server, &files)?;
    let complete = Complete { facts: &facts, histories: &histories };
    let mut compared = Compared {
        location: archive.store().location().to_owned(),
        timeline: facts.timeline,
        written: facts.written.to_string(),
        is_standby: facts.is_standby,
        compared: 0,
        waiting: 0,
        offered: 0,
        refused: None,
        other_history: None,
        branch: find_branch(archive, &facts)?,
        missing: Vec::new(),
        gaps: Vec::new(),
    };
    let (mut present, mut missing, mut waits) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut first_ready: Option<ServerFile> = None;
    for one in files.iter().filter(|one| complete.holds(one)).cloned() {
        compared.compared += 1;
        if one.mark == Mark::Ready && is_first(&one, first_ready.as_ref()) {
            first_ready = Some(one.clone());
        }
        match (archive.find(one.file)?, one.mark) {
            (Some(_), mark) => {
                compared.offered += u64::from(mark == Mark::Ready);
                present.push(one);
            }
            (None, Mark::Ready) => {
                compared.waiting += 1;
                waits.insert(one.file.to_string());
            }
            (None, Mark::None) if is_before_archive(one.file, listing.as_ref()) => {}
            (None, _) => missing.push(one),
        }
    }
    let pusher = Pusher::new(archive.clone(), PushOptions::default(), histories.clone());
    let comparison = Comparison { archive, facts: &facts, pusher: &pusher, histories: &histories };
    compared.other_history = comparison.find_other_history(server, &files, &present, &missing)?;
    if let Some(first) = first_ready {
        let mut content = Vec::new();
        // Otherwise the file was archived and removed in the meantime, or this user must not read it.
        if server.open(first.file).take(first.bytes).read_to_end(&mut content).is_ok() {
            compared.refused = find_refusal(&pusher, first.file, &content)?;
        }
    }
    if compared.refused.as_ref().is_some_and(|refused| refused.is_reset)
        && let Some(other) = &mut compared.other_history
    {
        other.hint = RESET_HINT.to_owned();
    }
    compared.missing = match repair {
        Some(options) if compared.other_history.is_none() => {
            let cluster = (facts.system_identifier, "the server".to_owned());
            let intake = Intake::new(archive, options, histories, Some(cluster))?;
            fill(&intake, server, missing)?
        }
        _ => missing.into_iter().map(|one| Missing::new(one, Outcome::Found, None)).collect(),
    };
    let listing = list::list_if_any(archive, ListOptions::default())?;
    compared.gaps = listing.as_ref().map(Listing::gaps).unwrap_or_default();
    // Later segments are already archived ahead of the waiting segments.
    compared.gaps.retain(|gap| !gap.is_new() || gap.count(&waits) < gap.segments);
    Ok(compared)
}

/// Finds a timeline of the archive that left the WAL of a server that writes its own.
fn find_branch(archive: &Archive, facts: &Facts) -> Result<Option<Branch>, ArchiveError> {
    match archive.identity() {
        Ok(_) if !facts.is_standby => list::find_branch(archive, facts.timeline, facts.written),
        _ => Ok(None),
    }
}

/// Finds a ready file of a server whose name another server has taken: the archive has different content
/// under this name.
///
/// Files are archived in the order of their names, so only the first and the last of `ready` are compared.
/// `read` returns the content of a file in `pg_wal`. A file that cannot be read is skipped.
///
/// # Errors
/// Errors of the store.
pub fn find_taken(
    archive: &Archive,
    ready: &[ArchivedFile],
    read: &mut dyn FnMut(ArchivedFile) -> io::Result<Vec<u8>>,
) -> Result<Option<RefusedFile>, ArchiveError> {
    let first = ready.iter().min_by_key(|file| file.archiving_order());
    let last = ready.iter().max_by_key(|file| file.archiving_order()).filter(|last| Some(*last) != first);
    let mut pusher = None;
    for &file in first.into_iter().chain(last) {
        if archive.find(file)?.is_none() {
            continue;
        }
        let Ok(content) = read(file) else { continue };
        if pusher.is_none() {
            let histories = archive
                .undamaged_histories()
                .map_or_else(|_| Vec::new(), |(all, _)| all.into_values().collect());
            pusher = Some(Pusher::new(archive.clone(), PushOptions::default(), histories));
        }
        let Some(pusher) = &pusher else { continue };
        if let Some(refused) = find_refusal(pusher, file, &content)? {
            return Ok(Some(refused));
        }
    }
    Ok(None)
}

/// Returns whether PostgreSQL requests `one` before `other`.
fn is_first(one: &ServerFile, other: Option<&ServerFile>) -> bool {
    other.is_none_or(|other| one.file.archiving_order() < other.file.archiving_order())
}

/// Finds out whether the archive refuses a file that a server offers, and stores nothing. One file is read
/// over the connection; all other files of the server wait for this file.
fn find_refusal(
    pusher: &Pusher,
    file: ArchivedFile,
    content: &[u8],
) -> Result<Option<RefusedFile>, ArchiveError> {
    let name = file.to_string();
    let refused = |problem| RefusedFile { file: name.clone(), problem, is_reset: false };
    let offered = Checked::from_hash(content.len() as u64, *blake3::hash(content).as_bytes());
    let conflict = match pusher.find_present(file, &offered) {
        Ok(Some(_)) => return Ok(None),
        Ok(None) => None,
        Err(conflict @ (ArchiveError::Conflict { .. } | ArchiveError::DamageAccepted { .. })) => {
            Some(conflict)
        }
        Err(error) if error.is_damage() => return Ok(Some(refused(error_text(&error)))),
        Err(error) => return Err(error),
    };
    let checked = check::check_held(file, content, pusher.rules());
    Ok(match (checked, conflict) {
        (Ok(_), None) => None,
        (Err(refusal), None) => Some(refused(error_text(&refusal))),
        (Err(_), Some(conflict)) => Some(refused(error_text(&conflict))),
        // Both files have the same WAL, followed by different bytes.
        (Ok(checked), Some(conflict)) => {
            let same = pusher.find_same_log(file, &checked, &mut Content::Held(content));
            let is_same = same.is_ok_and(|same| same.is_some());
            let conflict = conflict.with_reset(file, &checked);
            let is_reset = matches!(conflict, ArchiveError::Reset { .. });
            (!is_same).then(|| RefusedFile { is_reset, ..refused(error_text(&conflict)) })
        }
    })
}

/// Returns the histories of the archive and the server. Each may lack some.
fn histories(
    archive: &Archive,
    server: &mut dyn Server,
    files: &[ServerFile],
) -> Result<Vec<History>, AgainstError> {
    let own = files.iter().filter_map(|one| match one.file {
        ArchivedFile::History(timeline) => Some((timeline, intake::read_text(&mut *server.open(one.file)))),
        _ => None,
    });
    Ok(intake::histories(archive, own)?)
}

/// Determines which of a server's files are complete.
struct Complete<'a> {
    facts: &'a Facts,
    histories: &'a [History],
}

impl Complete<'_> {
    fn holds(&self, one: &ServerFile) -> bool {
        if one.file.timeline() > self.facts.timeline {
            return false;
        }
        let ArchivedFile::Segment(name) = one.file else { return true };
        let end = SegmentSize::new(self.facts.segment_bytes)
            .filter(|size| one.bytes == size.bytes())
            .and_then(|size| Some(name.start(size)?.plus(size.bytes())));
        // Segments after the end of the WAL were created in advance. A timeline that was left ends within a
        // segment, which is archived as `.partial`.
        end.is_some_and(|end| end <= self.end_of(name.timeline))
    }

    /// Returns the end of a timeline from this server's point of view.
    fn end_of(&self, timeline: Timeline) -> Lsn {
        let own = self.histories.iter().find(|history| history.timeline == self.facts.timeline);
        own.and_then(|history| history.end_of(timeline)).unwrap_or(self.facts.written)
    }
}

/// Returns whether a segment was written before archiving started, so that no server was asked to archive it.
fn is_before_archive(file: ArchivedFile, listing: Option<&Listing>) -> bool {
    let ArchivedFile::Segment(name) = file else { return false };
    let Some(listing) = listing else { return true };
    let first = listing.timelines.iter().find_map(|timeline| timeline.first_segment.as_deref());
    first.and_then(SegmentName::parse).is_none_or(|first| name < first)
}

impl Missing {
    fn new(one: ServerFile, outcome: Outcome, problem: Option<String>) -> Missing {
        Missing { file: one.file.to_string(), bytes: one.bytes, mark: one.mark, outcome, problem }
    }
}

fn fill(
    intake: &Intake,
    server: &mut dyn Server,
    missing: Vec<ServerFile>,
) -> Result<Vec<Missing>, AgainstError> {
    let mut filled = Vec::new();
    for one in missing {
        let taken = intake.ingest(one.file, &mut *server.open(one.file), None);
        filled.push(match intake::split_final(taken)? {
            Ok(_) => Missing::new(one, Outcome::Filled, None),
            Err(refused) => Missing::new(one, Outcome::Refused, Some(error_text(&refused))),
        });
    }
    Ok(filled)
}
