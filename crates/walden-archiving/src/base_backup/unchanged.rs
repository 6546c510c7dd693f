//! What has not changed since the newest stored backup, according to the server's WAL summaries.
//!
//! The WAL from the start of that backup to the start of this one must be summarized without a hole, on each
//! timeline of the server's history. A block that no summary names has the content that the newest backup
//! has: pages that WAL from before its start has changed were written by its checkpoint.

use std::thread::sleep;
use std::time::{Duration, Instant};

use walden_archive::base_backups::{FileWriter, StoredBackup};
use walden_format::lsn::{Lsn, Timeline};
use walden_postgres::backup::{BackupSession, Changes, FileBackupError, ServerFacts, SummaryFile};
use walden_source::datadir::ControlFile;
use walden_source::error_text;
use walden_source::history::History;

use super::{BackupError, Step};

/// Longest wait for the summaries, which is that of the server before an incremental backup.
const WAIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Longest timeline history file in bytes.
const MAX_HISTORY_BYTES: u64 = 16 << 20;

/// What is known from WAL summaries.
pub(super) enum Known {
    /// What has changed since the newest stored backup.
    Changes(Changes),
    /// Nothing, and why, if the server has summaries.
    Nothing(Option<String>),
}

/// WAL on a timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stretch {
    timeline: Timeline,
    start: Lsn,
    end: Lsn,
}

/// Finds what has changed since the start of the newest stored backup. Waits until the server has summarized
/// its WAL up to `start`, where this backup starts.
pub(super) fn changes(
    session: &mut BackupSession,
    writer: &FileWriter,
    facts: &ServerFacts,
    start: Lsn,
    progress: &mut dyn FnMut(Step),
) -> Result<Known, BackupError> {
    let Some(newest) = writer.newest() else { return Ok(Known::Nothing(None)) };
    match find(session, writer, newest, facts, start, progress) {
        Ok(Some(changes)) => Ok(Known::Changes(changes)),
        Ok(None) => Ok(Known::Nothing(None)),
        Err(Unknown::Because(reason)) => Ok(Known::Nothing(Some(reason))),
        // The session that holds the backup may be lost.
        Err(Unknown::Query(error)) if error.is_of_connection() => Err(error.into()),
        Err(Unknown::Query(error)) => Ok(Known::Nothing(Some(error_text(&error)))),
        Err(Unknown::Backup(error)) => Err(error),
    }
}

/// Why nothing is known.
enum Unknown {
    Because(String),
    Query(FileBackupError),
    Backup(BackupError),
}

impl From<FileBackupError> for Unknown {
    fn from(error: FileBackupError) -> Unknown {
        Unknown::Query(error)
    }
}

/// `None`: the server does not summarize its WAL.
fn find(
    session: &mut BackupSession,
    writer: &FileWriter,
    newest: &StoredBackup,
    facts: &ServerFacts,
    start: Lsn,
    progress: &mut dyn FnMut(Step),
) -> Result<Option<Changes>, Unknown> {
    if !session.summarizes_wal()? {
        return Ok(None);
    }
    if let Some(grant) = session.missing_rights_of_summaries()? {
        return Err(Unknown::Because(grant));
    }
    expect_same_checksums(newest, facts.has_checksums)?;
    let timeline = session.timeline_of(start)?;
    let timeline = timeline
        .ok_or_else(|| Unknown::Because(format!("expected a checkpoint at {start} as the last one")))?;
    let earlier: Vec<Stretch> = newest
        .wal_ranges()
        .iter()
        .map(|range| Stretch {
            timeline: range.timeline,
            start: range.start,
            end: range.end.unwrap_or(Lsn(u64::MAX)),
        })
        .collect();
    let history = match earlier.iter().all(|stretch| stretch.timeline == timeline) {
        true => None,
        false => Some(read_history(session, timeline)?),
    };
    let stretches =
        stretches_between(&earlier, timeline, start, history.as_ref()).map_err(Unknown::Because)?;
    let from = stretches.iter().map(|stretch| stretch.start).min().unwrap_or(start);
    let mut began = None;
    let files = loop {
        let files = session.summaries(from, start)?;
        let Some((timeline, missing)) = first_missing(&stretches, &files) else { break files };
        let is_behind = files.iter().all(|file| (file.timeline, file.start) < (timeline, missing));
        let waited = began.map_or(Duration::ZERO, |began: Instant| began.elapsed());
        if !is_behind || waited >= WAIT {
            return Err(Unknown::Because(format!(
                "expected WAL summaries from {from} to {start}, found none at {missing} on timeline {timeline}"
            )));
        }
        began.get_or_insert_with(|| {
            progress(Step::WaitingForSummaries);
            Instant::now()
        });
        writer.note_progress().map_err(|error| Unknown::Backup(error.into()))?;
        sleep(POLL_INTERVAL);
    };
    let files: Vec<SummaryFile> = files.into_iter().filter(|file| is_needed(file, &stretches)).collect();
    let mut noted = Ok(());
    let mut waiting = || {
        if noted.is_ok() {
            noted = writer.note_progress();
        }
    };
    let changes = session.changes(&files, facts.blocks_per_file, &mut waiting)?;
    noted.map_err(|error| Unknown::Backup(error.into()))?;
    Ok(Some(changes))
}

/// Refuses a cluster whose checksums were enabled or disabled since: `pg_checksums` changes all pages without
/// WAL.
fn expect_same_checksums(newest: &StoredBackup, has_checksums: bool) -> Result<(), Unknown> {
    let control = newest.small_file(ControlFile::PATH).map_err(Unknown::Because)?;
    let control = ControlFile::parse(&control).map_err(|error| Unknown::Because(error_text(&error)))?;
    match (control.data_checksum_version, has_checksums) {
        (0, false) | (1, true) => Ok(()),
        (found, _) => Err(Unknown::Because(format!(
            "expected the same data_checksums as in {}, found version {found} there, and {has_checksums} now",
            newest.name
        ))),
    }
}

fn read_history(session: &mut BackupSession, timeline: Timeline) -> Result<History, Unknown> {
    let path = format!("pg_wal/{timeline:08X}.history");
    let file = session.read_small(&path, MAX_HISTORY_BYTES)?;
    let (content, _) = file.ok_or_else(|| Unknown::Because(format!("expected {path}, found none")))?;
    History::parse(timeline, &content).map_err(|error| Unknown::Because(format!("{path}: {error}")))
}

/// Returns the WAL from the start of an earlier backup to `start` on `timeline`. `earlier` has the WAL of
/// that backup; it must be a part of the same history. Without `history`, the timeline has no ancestors.
fn stretches_between(
    earlier: &[Stretch],
    timeline: Timeline,
    start: Lsn,
    history: Option<&History>,
) -> Result<Vec<Stretch>, String> {
    let mut line = Vec::new();
    let mut begin = Lsn(0);
    for ancestor in history.iter().flat_map(|history| &history.ancestors) {
        line.push(Stretch { timeline: ancestor.timeline, start: begin, end: ancestor.end });
        begin = ancestor.end;
    }
    line.push(Stretch { timeline, start: begin, end: start });
    for range in earlier {
        let Some(own) = line.iter().find(|own| own.timeline == range.timeline) else {
            let found = range.timeline;
            return Err(format!("expected a timeline in the history of {timeline}, found {found}"));
        };
        if range.start < own.start || range.end > own.end {
            return Err(format!(
                "expected the WAL of the newest backup from {} to {} on timeline {}, found {} to {}",
                own.start, own.end, own.timeline, range.start, range.end
            ));
        }
    }
    let Some(first) = earlier.first() else { return Err("expected WAL of the newest backup".to_owned()) };
    let mut stretches: Vec<Stretch> =
        line.into_iter().skip_while(|own| own.timeline != first.timeline).collect();
    if let Some(own) = stretches.first_mut() {
        own.start = first.start;
    }
    Ok(stretches)
}

fn is_needed(file: &SummaryFile, stretches: &[Stretch]) -> bool {
    stretches.iter().any(|stretch| {
        file.timeline == stretch.timeline && file.start < stretch.end && file.end > stretch.start
    })
}

/// Returns the first WAL without a summary. The files are in the order of their starts.
fn first_missing(stretches: &[Stretch], files: &[SummaryFile]) -> Option<(Timeline, Lsn)> {
    stretches.iter().find_map(|stretch| {
        let mut reached = stretch.start;
        for file in files.iter().filter(|file| file.timeline == stretch.timeline && file.start <= stretch.end)
        {
            if file.start > reached {
                break;
            }
            reached = reached.max(file.end);
        }
        (reached < stretch.end).then_some((stretch.timeline, reached))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(timeline: Timeline, start: u64, end: u64) -> Stretch {
        Stretch { timeline, start: Lsn(start), end: Lsn(end) }
    }

    fn file(timeline: Timeline, start: u64, end: u64) -> SummaryFile {
        SummaryFile { timeline, start: Lsn(start), end: Lsn(end) }
    }

    #[test]
    fn a_backup_is_followed_along_the_history() {
        let between = |earlier: &[Stretch], start, history: Option<&History>| {
            stretches_between(earlier, history.map_or(1, |history| history.timeline), Lsn(start), history)
        };
        assert_eq!(between(&[stretch(1, 100, 120)], 200, None), Ok(vec![stretch(1, 100, 200)]));
        let history = History::parse(4, b"1\t0/100\tx\n2\t0/200\tx\n").unwrap();
        let expected = vec![stretch(1, 0x50, 0x100), stretch(2, 0x100, 0x200), stretch(4, 0x200, 0x300)];
        assert_eq!(between(&[stretch(1, 0x50, 0x60)], 0x300, Some(&history)), Ok(expected.clone()));
        // The timeline has changed during the backup.
        let both = [stretch(1, 0x50, 0x100), stretch(2, 0x100, 0x110)];
        assert_eq!(between(&both, 0x300, Some(&history)), Ok(expected));
        for wrong in [
            // Ends after this one starts.
            stretch(4, 0x250, 0x301),
            // Its timeline was left before its end, or is no ancestor.
            stretch(1, 0x50, 0x101),
            stretch(2, 0x90, 0x110),
            stretch(3, 0x150, 0x160),
        ] {
            between(&[wrong], 0x300, Some(&history)).unwrap_err();
        }
        between(&[stretch(1, 100, 201)], 200, None).unwrap_err();
        between(&[stretch(2, 100, 120)], 200, None).unwrap_err();
        between(&[], 200, None).unwrap_err();
    }

    #[test]
    fn holes_between_summaries_are_found() {
        let stretches = [stretch(1, 100, 200), stretch(2, 200, 300)];
        let missing = |files: &[SummaryFile]| first_missing(&stretches, files);
        let whole = [file(1, 50, 150), file(1, 150, 200), file(2, 200, 300)];
        assert_eq!(missing(&whole), None);
        assert_eq!(missing(&whole[1..]), Some((1, Lsn(100))));
        assert_eq!(missing(&[whole[0], whole[2]]), Some((1, Lsn(150))));
        assert_eq!(missing(&whole[..2]), Some((2, Lsn(200))));
        assert_eq!(missing(&[whole[0], file(1, 151, 200), whole[2]]), Some((1, Lsn(150))));
        assert_eq!(missing(&[whole[0], file(1, 150, 199), whole[2]]), Some((1, Lsn(199))));
        // Another timeline has no part in it; overlaps are allowed.
        assert_eq!(missing(&[file(1, 50, 150), file(3, 150, 300)]), Some((1, Lsn(150))));
        assert_eq!(
            missing(&[file(1, 50, 180), file(1, 90, 120), file(1, 150, 250), file(2, 200, 400)]),
            None
        );
        let needed: Vec<bool> =
            [file(1, 50, 100), file(1, 50, 101), file(1, 200, 250), file(2, 100, 250), file(3, 100, 300)]
                .iter()
                .map(|file| is_needed(file, &stretches))
                .collect();
        assert_eq!(needed, [false, true, false, true, false]);
    }
}
