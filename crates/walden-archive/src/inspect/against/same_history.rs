//! Checks whether a server's WAL and the archive's WAL are the same. A clone, or a second server promoted to
//! the same timeline, has the same system identifier and the same file names, but its files must not fill the
//! archive's gaps.
//!
//! After two histories diverge, all segments differ. So the check compares the last segment that server and
//! archive both have, and the links between the records of the segments to be archived and the records of
//! their neighbors.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde::Serialize;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_source::error_text;

use super::{AgainstError, Facts, Server, ServerFile};
use crate::archive::{Archive, ArchiveError};
use crate::history::History;
use crate::ingest::intake;
use crate::ingest::push::{Pusher, is_locked};
use crate::objects::check::{self, Checked, RESET_HINT, Refusal};
use crate::objects::contents::Contents;
use crate::objects::link::{self, SegmentEnd};
use crate::objects::name::ArchivedFile;
use crate::objects::object::Content;
use crate::objects::same_log;
use crate::restore::get;

/// Remedy for a server with a different history.
const HINT: &str = "after that position, the server's WAL differs from the archive's: the server is a clone, or two servers were promoted to the same timeline. Find out which server is the primary. If it is this one, give it its own archive and take a new base backup; otherwise, compare with the server that archives here";

/// Where a server's history differs from the archive's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OtherHistory {
    /// The file that shows the difference.
    pub file: String,
    /// LSN of the difference, as far as known.
    pub lsn: String,
    /// The expected and found values.
    pub problem: String,
    /// A remedy for the user.
    pub hint: String,
}

impl OtherHistory {
    /// Names `pg_resetwal` as the cause where it started the server's WAL again.
    fn after_reset(self, at: Lsn) -> OtherHistory {
        let problem = format!("{}; pg_resetwal restarted the server's WAL at {at}", self.problem);
        OtherHistory { problem, hint: RESET_HINT.to_owned(), ..self }
    }

    fn new(file: ArchivedFile, lsn: Lsn, problem: String) -> OtherHistory {
        OtherHistory { file: file.to_string(), lsn: lsn.to_string(), problem, hint: HINT.to_owned() }
    }
}

/// An archive and a server that are compared.
pub(super) struct Comparison<'a> {
    pub archive: &'a Archive,
    pub facts: &'a Facts,
    /// Checks files as for a push.
    pub pusher: &'a Pusher,
    pub histories: &'a [History],
}

/// How a segment of the server compares with the archived one.
enum Outcome {
    Same,
    Different(OtherHistory),
    /// The segment of the server or of the archive cannot be read or is damaged.
    Unknown,
}

impl Comparison<'_> {
    /// Returns where the server's history differs, based on its complete files: those that the archive also
    /// has (`present`), and those that could be archived (`missing`). Unreadable files are skipped.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn find_other_history(
        &self,
        server: &mut dyn Server,
        files: &[ServerFile],
        present: &[ServerFile],
        missing: &[ServerFile],
    ) -> Result<Option<OtherHistory>, AgainstError> {
        if let Some(found) = self.compare_histories(server, files)? {
            return Ok(Some(found));
        }
        if let Some(found) = self.compare_last_segments(server, present)? {
            return Ok(Some(found));
        }
        self.compare_links(server, missing)
    }

    /// Compares the histories that lead to the server's timeline.
    fn compare_histories(
        &self,
        server: &mut dyn Server,
        files: &[ServerFile],
    ) -> Result<Option<OtherHistory>, AgainstError> {
        let (archived, _) = self.archive.undamaged_histories()?;
        let own = self.histories.iter().find(|history| history.timeline == self.facts.timeline);
        let is_on_the_way = |timeline: Timeline| {
            timeline == self.facts.timeline || own.is_some_and(|own| own.end_of(timeline).is_some())
        };
        for one in files {
            let ArchivedFile::History(timeline) = one.file else { continue };
            let Some(archived) = archived.get(&timeline).filter(|_| is_on_the_way(timeline)) else {
                continue;
            };
            let Ok(text) = intake::read_text(&mut *server.open(one.file)) else { continue };
            let Ok(found) = History::parse(timeline, &text) else { continue };
            let (expected, found_text) = (ancestors_text(archived), ancestors_text(&found));
            if expected != found_text {
                let lsn = found.parent().map_or(Lsn::INVALID, |parent| parent.end);
                let problem = format!(
                    "the timeline's ancestors: expected {expected}, as archived, found {found_text} on the server"
                );
                return Ok(Some(OtherHistory::new(one.file, lsn, problem)));
            }
        }
        Ok(None)
    }

    /// For each timeline, compares the last segment that both have and that can be compared.
    fn compare_last_segments(
        &self,
        server: &mut dyn Server,
        present: &[ServerFile],
    ) -> Result<Option<OtherHistory>, AgainstError> {
        let mut by_timeline: BTreeMap<Timeline, BTreeMap<SegmentName, &ServerFile>> = BTreeMap::new();
        for one in present {
            if let ArchivedFile::Segment(name) = one.file {
                by_timeline.entry(name.timeline).or_default().insert(name, one);
            }
        }
        for segments in by_timeline.values() {
            for (&name, one) in segments.iter().rev() {
                let Some(content) = read(server, one) else { continue };
                match self.compare_segment(name, &content)? {
                    Outcome::Same => break,
                    Outcome::Different(found) => return Ok(Some(found)),
                    Outcome::Unknown => {}
                }
            }
        }
        Ok(None)
    }

    fn compare_segment(&self, name: SegmentName, content: &[u8]) -> Result<Outcome, ArchiveError> {
        let file = ArchivedFile::Segment(name);
        let offered = Checked::from_hash(content.len() as u64, *blake3::hash(content).as_bytes());
        let is_locked = match self.pusher.find_present(file, &offered) {
            Ok(Some(_)) => return Ok(Outcome::Same),
            Err(ArchiveError::Conflict { archived, .. }) => archived.is_none(),
            Ok(None) | Err(ArchiveError::DamageAccepted { .. }) => return Ok(Outcome::Unknown),
            Err(error) if error.is_damage() => return Ok(Outcome::Unknown),
            Err(error) => return Err(error),
        };
        let Ok(checked) = check::check_held(file, content, self.pusher.rules()) else {
            return Ok(Outcome::Unknown);
        };
        if matches!(self.pusher.find_same_log(file, &checked, &mut Content::Held(content)), Ok(Some(_))) {
            return Ok(Outcome::Same);
        }
        // Without a private key, it is unknown whether the WAL differs or only bytes after the WAL.
        if is_locked && (!checked.is_sound || same_log::switch_end(name, content).is_some()) {
            return Ok(Outcome::Unknown);
        }
        let (lsn, offset) = self.first_difference(name, content);
        let problem = format!(
            "the content at {lsn} (offset {offset}) differs: the server has other bytes than the archive"
        );
        let found = OtherHistory::new(file, lsn, problem);
        Ok(Outcome::Different(match checked.contents.as_ref().and_then(Contents::reset_at) {
            Some(at) => found.after_reset(at),
            None => found,
        }))
    }

    /// Returns the first difference from the archived segment, or the segment's start if the archived one
    /// cannot be read.
    fn first_difference(&self, name: SegmentName, content: &[u8]) -> (Lsn, u64) {
        let archived = self.archived_content(name).ok().flatten().unwrap_or_default();
        let offset = archived.iter().zip(content).position(|(archived, own)| archived != own).unwrap_or(0);
        let start = self.size().and_then(|size| name.start(size)).unwrap_or(Lsn::INVALID);
        (start.plus(offset as u64), offset as u64)
    }

    /// Compares the links between missing segments and their neighbors, which are archived or also missing.
    fn compare_links(
        &self,
        server: &mut dyn Server,
        missing: &[ServerFile],
    ) -> Result<Option<OtherHistory>, AgainstError> {
        let Some(size) = self.size() else { return Ok(None) };
        let segments = missing.iter().filter_map(|one| match one.file {
            ArchivedFile::Segment(name) => Some((name, one)),
            _ => None,
        });
        let missing: BTreeMap<SegmentName, &ServerFile> = segments.collect();
        let mut pairs = BTreeSet::new();
        for &name in missing.keys() {
            pairs.extend(self.before(name, size).map(|before| (before, name)));
            pairs.extend(self.after(name, size).into_iter().map(|after| (name, after)));
        }
        let mut known: BTreeMap<SegmentName, Option<(Contents, bool)>> = BTreeMap::new();
        for (before, after) in pairs {
            for name in [before, after] {
                if let Entry::Vacant(free) = known.entry(name) {
                    let content = match missing.get(&name) {
                        Some(one) => read(server, one),
                        None => self.archived_content(name)?,
                    };
                    free.insert(content.and_then(|content| self.contents(name, &content)));
                }
            }
            // The records of a damaged segment end before the segment does.
            let (Some(Some((last, true))), Some(Some((first, _)))) = (known.get(&before), known.get(&after))
            else {
                continue;
            };
            if let Err(refusal) =
                link::expect_link(first, before, &SegmentEnd::new(last, &SegmentEnd::default()))
            {
                let lsn = first.first_record.as_ref().and_then(|lsn| lsn.parse().ok());
                let file = ArchivedFile::Segment(after);
                let found = OtherHistory::new(file, lsn.unwrap_or(Lsn::INVALID), error_text(&refusal));
                return Ok(Some(match refusal {
                    Refusal::Reset { .. } => OtherHistory { hint: RESET_HINT.to_owned(), ..found },
                    _ => found,
                }));
            }
        }
        Ok(None)
    }

    fn size(&self) -> Option<SegmentSize> {
        SegmentSize::new(self.facts.segment_bytes)
    }

    /// Returns the predecessor of a segment; the predecessor is on the parent timeline if the segment's
    /// timeline starts in the segment.
    fn before(&self, name: SegmentName, size: SegmentSize) -> Option<SegmentName> {
        let number = name.number(size)?;
        let own = self.histories.iter().find(|history| history.timeline == name.timeline);
        let parent = own.and_then(History::parent).filter(|parent| size.segment_of(parent.end) == number);
        let timeline = parent.map_or(name.timeline, |parent| parent.timeline);
        Some(SegmentName::new(timeline, number.checked_sub(1)?, size))
    }

    /// Returns the successors of a segment: on its own timeline, and on timelines that start in the next
    /// segment.
    fn after(&self, name: SegmentName, size: SegmentSize) -> Vec<SegmentName> {
        let Some(next) = name.number(size).and_then(|number| number.checked_add(1)) else {
            return Vec::new();
        };
        let begins = |history: &&History| {
            let parent = history.parent();
            parent
                .is_some_and(|parent| parent.timeline == name.timeline && size.segment_of(parent.end) == next)
        };
        let children = self.histories.iter().filter(begins).map(|history| history.timeline);
        let timelines: BTreeSet<Timeline> = children.chain([name.timeline]).collect();
        timelines.into_iter().map(|timeline| SegmentName::new(timeline, next, size)).collect()
    }

    /// Returns the archived content of a segment, or `None` if it is not archived, is damaged, or needs a
    /// private key.
    fn archived_content(&self, name: SegmentName) -> Result<Option<Vec<u8>>, ArchiveError> {
        let (file, mut content) = (ArchivedFile::Segment(name), Vec::new());
        let found = get::with_object(self.archive, file, |object, bytes| {
            content.clear();
            get::decode(self.archive, file, object, bytes, &mut content)
        });
        match found {
            Ok(found) => Ok(found.map(|()| content)),
            Err(error) if error.is_damage() || is_locked(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a segment's contents and whether its records are valid to the end, or `None` if the segment
    /// would be refused.
    fn contents(&self, name: SegmentName, content: &[u8]) -> Option<(Contents, bool)> {
        let checked = check::check_held(ArchivedFile::Segment(name), content, self.pusher.rules()).ok()?;
        Some((checked.contents?, checked.is_sound))
    }
}

/// Reads a file of the server. Returns `None` if it was removed in the meantime or this user must not read
/// it.
fn read(server: &mut dyn Server, one: &ServerFile) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    server.open(one.file).take(one.bytes).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Formats a timeline's ancestors without the reasons for the switches.
fn ancestors_text(history: &History) -> String {
    let ancestor = |timeline: Timeline, end: Lsn| format!("timeline {timeline} up to {end}");
    let ancestors = history.ancestors.iter().map(|one| ancestor(one.timeline, one.end));
    ancestors.collect::<Vec<_>>().join(", ")
}
