//! What a server still has in its `pg_wal` and the archive lacks: the holes that a failover leaves.
//!
//! A standby marks what it received as `.done` without having archived it (`XLogWalRcvClose` in `walreceiver.c`), as the primary was
//! to do that. If the primary is lost before, nobody does: the archive has a hole although each server says that all is archived.

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
use crate::inspect::list::{self, ListOptions, Listing};
use crate::into::intake::{self, Intake};
use crate::into::push::{PushOptions, Pusher};
use crate::inventory::gaps::Gap;
use crate::stored::check::{self, Checked};
use crate::stored::name::ArchivedFile;
use crate::stored::object::Content;

/// A server that is asked for its WAL.
pub trait Server {
    /// What the server says of itself.
    ///
    /// # Errors
    /// The server's.
    fn facts(&mut self) -> Result<Facts, ServerError>;

    /// The files in `pg_wal`, with their bytes and marks.
    ///
    /// # Errors
    /// The server's.
    fn files(&mut self) -> Result<Vec<ServerFile>, ServerError>;

    /// The content of a file in `pg_wal`.
    fn open(&mut self, file: ArchivedFile) -> Box<dyn Read + '_>;
}

/// Why a server does not answer.
pub type ServerError = Box<dyn Error + Send + Sync>;

/// What a server says of itself.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The system identifier that `initdb` gave its cluster.
    pub system_identifier: u64,
    /// Bytes of its segments.
    pub segment_bytes: u64,
    /// The timeline that it writes or replays.
    pub timeline: Timeline,
    /// Up to where its WAL is complete.
    pub written: Lsn,
    /// It replays WAL of another server.
    pub is_standby: bool,
}

/// A file in `pg_wal`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerFile {
    /// Which.
    pub file: ArchivedFile,
    /// Its bytes.
    pub bytes: u64,
    /// What `archive_status` says of it.
    pub mark: Mark,
}

/// What the server thinks of a file's archiving.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    /// `.done`: archived, or not this server's business.
    Done,
    /// `.ready`: `archive_command` is going to be called for it.
    Ready,
    /// None.
    None,
}

/// Why an archive and a server were not compared.
#[derive(Debug, thiserror::Error)]
pub enum AgainstError {
    /// The archive's.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The server's.
    #[error("cannot ask the server")]
    Server(#[source] ServerError),
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Compared {
    /// The archive.
    pub location: String,
    /// The timeline of the server.
    pub timeline: Timeline,
    /// Up to where the server's WAL is complete.
    pub written: String,
    /// The server replays WAL of another one.
    pub is_standby: bool,
    /// Complete files of the server that were looked for in the archive.
    pub compared: u64,
    /// Files that wait for the server's `archive_command`.
    pub waiting: u64,
    /// Files that are archived under their names, and that the server offers still.
    pub offered: u64,
    /// The first file that the server offers, if the archive refuses its content: the server does not get past it.
    pub refused: Option<RefusedFile>,
    /// Where the server's history is another one than the archive's: then nothing is filled from it.
    pub other_history: Option<OtherHistory>,
    /// Files that the server has, does not archive any more, and the archive lacks.
    pub missing: Vec<Missing>,
    /// Gaps of the archive that are left, but for those of nothing but files that wait.
    pub gaps: Vec<Gap>,
}

impl Compared {
    /// Nothing is missing, or nothing any more.
    pub fn is_good(&self) -> bool {
        let is_filled = |one: &Missing| one.outcome == Outcome::Filled;
        self.missing.iter().all(is_filled)
            && self.refused.is_none()
            && self.other_history.is_none()
            && !self.gaps.iter().any(Gap::is_new)
    }
}

/// A file that the archive refuses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RefusedFile {
    /// Its name.
    pub file: String,
    /// Why.
    pub problem: String,
}

/// A file that the archive lacks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Missing {
    /// Its name.
    pub file: String,
    /// Its bytes.
    pub bytes: u64,
    /// What the server thinks of its archiving.
    pub mark: Mark,
    /// What was done about it.
    pub outcome: Outcome,
    /// Why it was not archived.
    pub problem: Option<String>,
}

/// What was done about a missing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Nothing: that was not asked for.
    Found,
    /// It is archived now.
    Filled,
    /// It did not pass the checks, or could not be read.
    Refused,
}

/// Compares an archive with a server; with `repair`, archives what is missing, after the same checks as at a push. Nothing is archived from
/// a server whose log is not the archive's.
///
/// # Errors
/// An archive of another cluster, a place that has none, and one or the other that does not answer.
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
        // Archived and removed meanwhile, or nothing that this user may read.
        if server.open(first.file).take(first.bytes).read_to_end(&mut content).is_ok() {
            let problem = why_refused(&pusher, first.file, &content)?;
            compared.refused = problem.map(|problem| RefusedFile { file: first.file.to_string(), problem });
        }
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
    // Others behind them are archived already, ahead of them.
    compared.gaps.retain(|gap| !gap.is_new() || gap.count(&waits) < gap.segments);
    Ok(compared)
}

/// Finds a file that a server has ready to be archived, and whose name another server has taken: the archive has other content under it.
///
/// Files appear in the archive in the order of their names, so the first and the last of `ready` are compared. `read` returns the content
/// of a file in `pg_wal`; one that cannot be read is not compared.
///
/// # Errors
/// The store's.
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
        if let Some(problem) = why_refused(pusher, file, &content)? {
            return Ok(Some(RefusedFile { file: file.to_string(), problem }));
        }
    }
    Ok(None)
}

/// Whether PostgreSQL asks for a file before another one.
fn is_first(one: &ServerFile, other: Option<&ServerFile>) -> bool {
    other.is_none_or(|other| one.file.archiving_order() < other.file.archiving_order())
}

/// Why the archive refuses a file that a server offers, if so; nothing is stored. One file is read over the connection, and all others
/// wait for it.
fn why_refused(pusher: &Pusher, file: ArchivedFile, content: &[u8]) -> Result<Option<String>, ArchiveError> {
    let offered = Checked::of_hash(content.len() as u64, *blake3::hash(content).as_bytes());
    let conflict = match pusher.find_present(file, &offered) {
        Ok(Some(_)) => return Ok(None),
        Ok(None) => None,
        Err(conflict @ (ArchiveError::Conflict { .. } | ArchiveError::DamageAccepted { .. })) => {
            Some(conflict)
        }
        Err(error) if error.is_damage() => return Ok(Some(error_text(&error))),
        Err(error) => return Err(error),
    };
    let checked = check::check_held(file, content, pusher.rules());
    Ok(match (checked, conflict) {
        (Ok(_), None) => None,
        (Err(refusal), None) => Some(error_text(&refusal)),
        (Err(_), Some(conflict)) => Some(error_text(&conflict)),
        // The same log, and other bytes behind it.
        (Ok(checked), Some(conflict)) => {
            let same = pusher.find_same_log(file, &checked, &mut Content::Held(content));
            let is_same = same.is_ok_and(|same| same.is_some());
            (!is_same).then(|| error_text(&conflict))
        }
    })
}

/// The histories of the archive and of the server: one of the two may lack some.
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

/// Which of a server's files are complete.
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
        // What is behind the end of the WAL was made ahead of its use. A timeline that was left ends within a segment, which is
        // archived as `.partial`.
        end.is_some_and(|end| end <= self.end_of(name.timeline))
    }

    /// Up to where a timeline goes, as far as this server is concerned.
    fn end_of(&self, timeline: Timeline) -> Lsn {
        let own = self.histories.iter().find(|history| history.timeline == self.facts.timeline);
        own.and_then(|history| history.end_of(timeline)).unwrap_or(self.facts.written)
    }
}

/// Whether a segment was written before anything was archived: no server has been asked to archive it.
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
