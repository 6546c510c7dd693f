//! Which times recovery can reach, and from which starting points.

use std::path::Path;

use walden_archive::Archive;
use walden_archive::drill::{DrillOptions, Target, drill};
use walden_archive::export::{ExportError, Plan, Selection, export};
use walden_archive::get::{GetError, get_begun, report_gap};
use walden_archive::log::Log;
use walden_archive::name::{ArchivedFile, PackName};
use walden_archive::pack::{PackOptions, pack};
use walden_archive::parts::{self, Part};
use walden_archive::recovery::{LogEnd, Recovery, RecoveryError, RecoveryStart, recovery_to};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_testing::writer::LogWriter;

use crate::material::{archive_of, commit_time, log, log_with_drop, pg_wal, push_all};

fn name(timeline: u32, number: u64) -> SegmentName {
    SegmentName::new(timeline, number, SegmentSize::new(1 << 20).expect("a size"))
}

/// Returns the history of timeline 2, which branches off timeline 1 in a segment.
fn history(number: u64) -> (String, Vec<u8>) {
    ("00000002.history".to_owned(), format!("1\t0/{:X}\tx\n", (number << 20) + 0x8_0000).into_bytes())
}

/// Returns the segment in which timeline 1 was abandoned, as a server archives it.
fn partial(number: u64) -> (String, Vec<u8>) {
    let (name, content) = log(1, number, 1).swap_remove(0);
    (format!("{name}.partial"), content)
}

fn push_more(archive: &Archive, root: &Path, files: &[(String, Vec<u8>)]) {
    push_all(archive, &pg_wal(root, files), files);
}

/// Recovers from a segment of timeline 1 to just after the commit in another one.
fn recover(
    archive: &Archive,
    timeline: Option<u32>,
    from: u64,
    behind: u64,
) -> Result<Recovery, RecoveryError> {
    recovery_to(archive, RecoveryStart::Segment(name(1, from)), timeline, commit_time(behind) + 1)
}

#[test]
fn recovery_does_not_read_partial_segments() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &[log(1, 0x20, 12), vec![partial(0x2C), history(0x2C)]].concat());
    let ends_at = LogEnd::Partial(format!("{}.partial", name(1, 0x2C)));
    for timeline in [None, Some(1), Some(2)] {
        let found = recover(&archive, timeline, 0x20, 0x2A).expect("a recovery");
        assert_eq!(found.log.timeline(), timeline.unwrap_or(2));
        assert_eq!(found.files().last(), Some(&ArchivedFile::Segment(name(1, 0x2B))));
        // The next commit is in the partial segment.
        let error = recover(&archive, timeline, 0x20, 0x2B).expect_err("it cannot be reached");
        let latest = Some(commit_time(0x2B));
        assert!(
            matches!(&error, RecoveryError::Unreachable { latest: found, ends_at: end, .. }
                if *found == latest && *end == ends_at),
            "{timeline:?}: {error}"
        );
        let hint = error.hint().expect("a hint");
        assert!(hint.contains("pg_wal") && error.to_string().contains(".partial"), "{error}");
        let error = recover(&archive, timeline, 0x2C, 0x2B).expect_err("it cannot start");
        assert!(matches!(&error, RecoveryError::NoStart { partial: Some(_), .. }), "{timeline:?}: {error}");
    }
    // Other readers of timeline 1's WAL do read it.
    let of_one = Log::find(&archive, Some(1), 0..=u64::MAX).expect("a log");
    assert!(of_one.segments.last().is_some_and(|last| last.is_partial));
    // Timeline 2 has its records after its first segment is archived.
    push_more(&archive, root.path(), &log(2, 0x2C, 2));
    let found = recover(&archive, None, 0x20, 0x2B).expect("a recovery");
    assert_eq!(found.files().last(), Some(&ArchivedFile::Segment(name(2, 0x2C))));
}

/// PostgreSQL removes a database's files when it replays the record, which precedes the commit.
#[test]
fn a_time_just_before_a_database_is_dropped_comes_with_a_warning() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log_with_drop(0x20, 6, 0x23));
    let drops = |moment| recover(&archive, None, 0x20, moment).expect("a recovery").early_drops;
    assert_eq!(drops(0x21), []);
    let early = drops(0x22);
    assert_eq!((early.len(), early[0].database, early[0].tablespace), (1, Some(5), None));
    let text = early[0].to_string();
    assert!(text.contains("the files of database 5 at 0/023") && early[0].previous < early[0].lsn, "{text}");
    // Its transaction is committed.
    assert_eq!(drops(0x23), []);
}

/// The drill's server would end recovery on an earlier timeline, and report no problem there.
#[test]
fn a_drill_refuses_to_follow_a_timeline_whose_history_is_missing() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &[log(1, 0x20, 6), vec![history(0x26)], log(2, 0x26, 2)].concat());
    archive.store().remove(&ArchivedFile::parse(&history(0x26).0).expect("a name").key()).expect("removed");
    let base = root.path().join("base");
    std::fs::create_dir(&base).expect("a folder");
    let label = format!("START WAL LOCATION: 0/2100028 (file {})\n", name(1, 0x21));
    std::fs::write(base.join("backup_label"), label).expect("a label");
    let options = |timeline| {
        DrillOptions::new(base.clone(), Target::End)
            .folder(Some(root.path().to_owned()))
            .timeline(timeline)
            .restore_command(Vec::new())
            .user("postgres".to_owned())
            .database("postgres".to_owned())
            .settings(Vec::new())
            .queries(Vec::new())
            .should_amcheck(false)
    };
    for timeline in [None, Some(2)] {
        let error = drill(&archive, &options(timeline), &mut |_| {}).expect_err("it is refused");
        assert!(error.is_recovery_failure(), "{error}");
        assert!(
            error.to_string().contains("the history 00000002.history is missing in the archive"),
            "{error}"
        );
        assert!(error.hint().is_some(), "{error}");
    }
}

#[test]
fn a_base_backup_has_to_have_ended_before_its_timeline_was_left() {
    let root = tempfile::tempdir().expect("a folder");
    // Both timelines continue after the switch, as after a recovery to a time.
    let archive = archive_of(root.path(), &[log(1, 0x20, 12), vec![history(0x26)], log(2, 0x26, 6)].concat());
    let switch = Lsn((0x26 << 20) + 0x8_0000);
    let of = |timeline, start, end: Option<Lsn>| {
        let end_timeline = end.map(|_| timeline);
        RecoveryStart::Backup { start, timeline: Some(timeline), end, end_timeline }
    };
    let follow = |timeline, start| recovery_to(&archive, start, timeline, commit_time(0x2A) + 1);
    let before = Lsn((0x25 << 20) + 0x28);
    let late = of(1, Lsn((0x28 << 20) + 0x28), None);
    for start in [
        of(1, before, None),
        of(1, before, Some(switch)),
        of(1, Lsn(switch.0 - 8), None),
        RecoveryStart::Segment(name(1, 0x26)),
        of(2, switch, Some(Lsn(0x29 << 20))),
        // A backup of a standby that followed its primary across the switch.
        RecoveryStart::Backup {
            start: before,
            timeline: Some(1),
            end: Some(Lsn(switch.0 + 8)),
            end_timeline: Some(2),
        },
    ] {
        assert_eq!(follow(Some(2), start).expect("a recovery").log.timeline(), 2, "{start:?}");
        // The timelines were written at the same time, and only those that ended on the second one cannot
        // follow the first one.
        let is_of_second = matches!(start, RecoveryStart::Backup { timeline, end_timeline, .. } if end_timeline.or(timeline) == Some(2));
        match follow(None, start) {
            Ok(recovery) => assert!(is_of_second && recovery.log.timeline() == 2, "{start:?}"),
            Err(RecoveryError::Diverging(diverging)) => {
                assert!(!is_of_second && (diverging.timeline, diverging.left_by) == (1, 2), "{start:?}");
            }
            Err(error) => panic!("{start:?}: {error}"),
        }
    }
    for start in [
        late,
        of(1, switch, None),
        of(1, before, Some(Lsn(switch.0 + 8))),
        RecoveryStart::Segment(name(1, 0x27)),
    ] {
        let error = follow(None, start).expect_err("it is on another timeline");
        assert!(
            matches!(error, RecoveryError::OtherTimeline { followed: 2, timeline: 1, left_at, .. } if left_at == Some(switch)),
            "{start:?}: {error}"
        );
        assert!(error.to_string().contains("of timeline 1 that ended before 0/02680000"), "{error}");
        assert!(error.hint().expect("a hint").contains("--timeline"));
        // It can be used on its own timeline.
        follow(Some(1), start).unwrap_or_else(|error| panic!("{start:?}: {error}"));
    }
    let error = follow(Some(1), of(2, switch, None)).expect_err("it is on a later timeline");
    assert!(
        matches!(error, RecoveryError::OtherTimeline { followed: 1, timeline: 2, left_at: None, .. }),
        "{error}"
    );
}

/// For every problem with the requested time, the reported reachable times are the same: from the backup's
/// checkpoint on.
#[test]
fn the_moments_that_can_be_reached_begin_at_the_backups_checkpoint() {
    let root = tempfile::tempdir().expect("a folder");
    let begun = commit_time(0x20) - 3_600_000_000;
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = 1;
    (writer.start, writer.previous) = (Lsn(0x20 << 20), Lsn((0x20 << 20) - 32));
    let mut checkpoint = [0; 88];
    checkpoint[64..72].copy_from_slice(&(begun / 1_000_000).to_le_bytes());
    let at = writer.main_data(rmid::XLOG, 0x10, &checkpoint);
    writer.switch();
    let first = (name(1, 0x20).to_string(), writer.bytes);
    let archive = archive_of(root.path(), &[vec![first], log(1, 0x21, 4)].concat());
    let consistent = Lsn(0x21 << 20);
    let start =
        |end| RecoveryStart::Backup { start: at, timeline: Some(1), end: Some(end), end_timeline: Some(1) };
    let reachable = |end, moment| match recovery_to(&archive, start(end), None, moment) {
        Err(RecoveryError::Unreachable { earliest, latest, .. }) => Some((earliest, latest)),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    };
    let last = commit_time(0x24);
    let expected = Some((Some(begun), Some(last)));
    assert_eq!([begun - 1, last].map(|moment| reachable(consistent, moment)), [expected, expected]);
    assert_eq!([begun, last - 1].map(|moment| reachable(consistent, moment)), [None, None]);
    // If there is a commit before the backup is consistent, it is the earliest reachable time.
    let (late, first) = (Lsn(0x23 << 20), commit_time(0x22));
    let expected = Some((Some(first), Some(last)));
    assert_eq!([begun, first - 1, last].map(|moment| reachable(late, moment)), [expected; 3]);
    assert_eq!([first, last - 1].map(|moment| reachable(late, moment)), [None, None]);
    // The current segment counts, as far as the archive has it.
    let (segment, content) = (name(1, 0x25), log(1, 0x25, 1).swap_remove(0).1);
    parts::store(&archive, Part { segment, start: 0, end: content.len() as u32 }, &content).expect("stored");
    let last = commit_time(0x25);
    let expected = Some((Some(begun), Some(last)));
    assert_eq!([begun - 1, last].map(|moment| reachable(consistent, moment)), [expected, expected]);
}

/// With `receive --ack-after archive`, a base backup may start after the last complete segment.
#[test]
fn recovery_starts_in_a_segment_of_which_the_archive_has_parts() {
    let root = tempfile::tempdir().expect("a folder");
    let begun = commit_time(0x20);
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = 1;
    (writer.start, writer.previous) = (Lsn(0x21 << 20), Lsn((0x21 << 20) - 32));
    let mut checkpoint = [0; 88];
    checkpoint[64..72].copy_from_slice(&(begun / 1_000_000).to_le_bytes());
    let at = writer.main_data(rmid::XLOG, 0x10, &checkpoint);
    let [first, _] = [0x21, 0x22].map(|number: i64| {
        // Microseconds since 2000, PostgreSQL's epoch.
        writer.main_data(rmid::XACT, 0, &(number * 3_600_000_000).to_le_bytes())
    });
    let archive = archive_of(root.path(), &log(1, 0x20, 1));
    let (segment, content) = (name(1, 0x21), writer.bytes);
    let backup =
        RecoveryStart::Backup { start: at, timeline: Some(1), end: Some(first), end_timeline: Some(1) };
    let error = recovery_to(&archive, backup, None, begun).expect_err("it cannot start");
    assert!(matches!(error, RecoveryError::NoStart { partial: None, .. }), "{error}");
    parts::store(&archive, Part { segment, start: 0, end: content.len() as u32 }, &content).expect("stored");
    for start in [backup, RecoveryStart::Segment(segment)] {
        let found = recovery_to(&archive, start, None, commit_time(0x21)).expect("a recovery");
        assert_eq!((found.begun, found.stop.time), (Some(segment), commit_time(0x22)));
        assert_eq!(found.last.as_ref().map(|last| last.time), Some(commit_time(0x21)));
        assert_eq!(found.files(), [ArchivedFile::Segment(segment)]);
    }
    let found = recovery_to(&archive, backup, None, begun).expect("a recovery");
    assert_eq!((&found.last, found.stop.time), (&None, commit_time(0x21)));
    for moment in [begun - 1, commit_time(0x22)] {
        let error = recovery_to(&archive, backup, None, moment).expect_err("it cannot be reached");
        assert!(
            matches!(error, RecoveryError::Unreachable { earliest, latest, .. }
                if (earliest, latest) == (Some(begun), Some(commit_time(0x22)))),
            "{error}"
        );
    }
    let folder = root.path().join("plain");
    let plan = Plan::for_recovery(&archive, &found).expect("a plan");
    assert_eq!(export(&archive, &plan, &folder, 2, &|_| {}).expect("exported").written, 1);
    let exported = std::fs::read(folder.join(segment.to_string())).expect("a file");
    assert!(exported.starts_with(&content) && exported.len() == 1 << 20);
}

/// Salvaging an archive requires everything that is not damaged.
#[test]
fn what_is_damaged_is_named_and_all_else_is_exported() {
    for is_packed in [false, true] {
        let root = tempfile::tempdir().expect("a folder");
        let files = log(1, 0x20, 8);
        let archive = archive_of(root.path(), &files);
        let key = if is_packed {
            let options = PackOptions::default().segments(Some(4)).keep(0);
            assert_eq!(pack(&archive, &options, &|_, _| {}).expect("packed").segments, 8);
            PackName { first: name(1, 0x20), last: name(1, 0x23) }.key()
        } else {
            ArchivedFile::Segment(name(1, 0x22)).key()
        };
        let object = root.path().join("archive").join(&key);
        let mut content = std::fs::read(&object).expect("an object");
        // A byte in the compressed content of the first segment.
        content[100] ^= 1;
        std::fs::write(&object, content).expect("written");
        let plan =
            Plan::select(&archive, &Selection { timeline: None, from: None, to: None }).expect("a plan");
        let folder = root.path().join("plain");
        let done = export(&archive, &plan, &folder, 2, &|_| {}).expect("exported");
        assert!(done.damaged.iter().all(|one| one.object == key && one.problem.starts_with("cannot get ")));
        let damaged = done.damaged.len() as u64;
        assert!(if is_packed { (1..=4).contains(&damaged) } else { damaged == 1 }, "{done:?}");
        assert_eq!((done.written + damaged, done.segments), (8, done.written));
        let mut there = 0;
        for (name, original) in &files {
            if let Ok(exported) = std::fs::read(folder.join(name)) {
                assert!(exported == *original, "{name}");
                there += 1;
            }
        }
        assert_eq!(there, done.written);
    }
}

/// With `receive --ack-after archive` and `--accept-gap`, the first part of a segment may precede a gap.
#[test]
fn the_beginning_of_a_segment_is_the_end_of_the_log_only_without_later_wal() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 0x20, 5);
    let archive = archive_of(root.path(), &files[..1]);
    let target = root.path().join("segment");
    let store = |number: usize, start: usize, end: usize| {
        let part = Part { segment: name(1, 0x20 + number as u64), start: start as u32, end: end as u32 };
        parts::store(&archive, part, &files[number].1[start..end]).expect("stored");
    };
    let get = |may_end: bool| get_begun(&archive, name(1, 0x21), &target, may_end);
    let is_refused = || matches!(get(false), Err(GetError::NotThere { .. }));
    store(1, 0, 4096);
    get(false).expect("the last segment");
    let written = std::fs::read(&target).expect("a segment");
    assert!(written[..4096] == files[1].1[..4096] && written[4096..].iter().all(|&byte| byte == 0));
    // Later WAL, first in a live part, then archived.
    store(3, 0, 4096);
    assert!(is_refused());
    push_all(&archive, &pg_wal(root.path(), &files[4..]), &files[4..]);
    assert!(is_refused());
    let error = report_gap(&archive, name(1, 0x21), &target).expect_err("a gap");
    assert!(matches!(&error, GetError::Gap { later, .. } if *later == files[3].0), "{error}");
    get(true).expect("on request");
    // With all of its parts archived, a segment is complete.
    store(1, 4096, files[1].1.len());
    get(false).expect("a whole segment");
    assert!(std::fs::read(&target).expect("a segment") == files[1].1);
}

/// With `receive --ack-after archive`, these parts contain acknowledged commits.
#[test]
fn parts_of_the_segment_that_is_being_written_are_exported() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 0x20, 3);
    let archive = archive_of(root.path(), &files[..2]);
    let (segment, content) = (name(1, 0x22), &files[2].1);
    // The last record is the switch, which ends the written bytes.
    let written = content.iter().rposition(|&byte| byte != 0).expect("bytes") + 1;
    let store = |start: usize, end: usize| {
        let part = Part { segment, start: start as u32, end: end as u32 };
        parts::store(&archive, part, &content[start..end]).expect("stored");
    };
    let folder = root.path().join("plain");
    let run = |plan: &Plan| export(&archive, plan, &folder, 2, &|_| {});
    let all = Selection { timeline: None, from: None, to: None };
    let plan = |selection: &Selection| Plan::select(&archive, selection).expect("a plan");
    let exported = || std::fs::read(folder.join(segment.to_string())).expect("a file");
    store(0, 4096);
    for timeline in [None, Some(1)] {
        assert_eq!(plan(&Selection { timeline, ..all }).begun, [segment]);
    }
    assert_eq!(plan(&Selection { to: Some(0x21), ..all }).begun, []);
    assert_eq!(run(&plan(&all)).expect("exported").written, 3);
    assert!(exported()[..4096] == content[..4096] && exported()[4096..].iter().all(|&byte| byte == 0));
    // A longer part replaces it, and then the complete segment.
    store(4096, written);
    let done = run(&plan(&all)).expect("exported");
    assert!((done.written, done.unchanged) == (1, 2) && exported() == *content);
    // Recovery to a time before its commit stops there.
    let found = recover(&archive, None, 0x20, 0x21).expect("a recovery");
    assert_eq!((found.begun, found.stop.segment.clone()), (Some(segment), segment.to_string()));
    assert_eq!(found.files().last(), Some(&ArchivedFile::Segment(segment)));
    assert_eq!(run(&Plan::for_recovery(&archive, &found).expect("a plan")).expect("exported").unchanged, 3);
    let error = recover(&archive, None, 0x20, 0x22).expect_err("behind the last commit");
    assert!(
        matches!(error, RecoveryError::Unreachable { latest, .. } if latest == Some(commit_time(0x22))),
        "{error}"
    );
    push_more(&archive, root.path(), &files[2..]);
    assert_eq!(plan(&all).begun, []);
    // Different content is never replaced.
    std::fs::write(folder.join(segment.to_string()), vec![1; content.len()]).expect("a file");
    assert!(matches!(run(&plan(&all)), Err(ExportError::Conflict(_))));
}
