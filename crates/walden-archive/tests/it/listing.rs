//! Listing an archive: missing files, times to which recovery is possible, and the last verification.

use std::ops::ControlFlow;
use std::path::Path;

use walden_archive::Archive;
use walden_archive::acknowledge::{acknowledge, record};
use walden_archive::archive::ArchiveError;
use walden_archive::diverging::find_diverging;
use walden_archive::export::{Plan, Selection};
use walden_archive::gaps::Gap;
use walden_archive::get::{GetError, get, report_gap};
use walden_archive::list::{BaseBackup, Diverging, ListOptions, Listing, RestorableRange, list};
use walden_archive::name::{ArchivedFile, PackName};
use walden_archive::pack::{PackOptions, pack};
use walden_archive::parts::{self, Part};
use walden_archive::prune::{Rule, plan};
use walden_archive::push::{PushOptions, push};
use walden_archive::recovery::{RecoveryError, RecoveryStart, recovery_to};
use walden_archive::source::{self, SourceOptions};
use walden_archive::status::holdings;
use walden_archive::store::Folder;
use walden_archive::verified::{self, LastRun, VerifiedAt};
use walden_archive::verify::{self, VerifyOptions, verify};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::stream::{Decoder, StreamInfo, Visitor};
use walden_source::error_text;

use crate::material::{
    archive_of, commit_time, log, log_at, log_with_minimal_wal, log_with_times, log_without_commits, pg_wal,
    push_all,
};

fn name(timeline: u32, number: u64) -> SegmentName {
    SegmentName::new(timeline, number, SegmentSize::new(1 << 20).expect("a size"))
}

fn push_more(archive: &Archive, root: &Path, files: &[(String, Vec<u8>)]) {
    push_all(archive, &pg_wal(root, files), files);
}

/// Returns the history of timeline 2, which branches off timeline 1 in a segment.
fn history(number: u64) -> (String, Vec<u8>) {
    ("00000002.history".to_owned(), format!("1\t0/{:X}\tx\n", (number << 20) + 0x8_0000).into_bytes())
}

fn remove(archive: &Archive, timeline: u32, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let key = ArchivedFile::Segment(name(timeline, number)).key();
        archive.store().remove(&key).expect("removed");
    }
}

fn listed(archive: &Archive) -> Listing {
    list(archive, ListOptions::default()).expect("a list")
}

/// Returns the gaps of a listing: timeline, first and last segment number.
fn gaps(archive: &Archive) -> Vec<(u32, u64, u64)> {
    let size = SegmentSize::new(1 << 20).expect("a size");
    let parse = |name: &str| SegmentName::parse(name).expect("a name");
    let gap = |gap: Gap| {
        let (first, last) = (parse(&gap.first), parse(&gap.last));
        (first.timeline, first.number(size).expect("a number"), last.number(size).expect("a number"))
    };
    listed(archive).gaps().into_iter().map(gap).collect()
}

/// Returns a restorable range, given its first and last segment, which contain the first and last commit, and
/// the first segment that a base backup may start in.
fn range(first: (u32, u64), last: (u32, u64), base: Option<(u32, u64)>) -> RestorableRange {
    RestorableRange {
        first_segment: name(first.0, first.1).to_string(),
        last_segment: name(last.0, last.1).to_string(),
        base_backup_from: base.map(|(timeline, number)| name(timeline, number).to_string()),
        first_commit_time: Some(commit_time(first.1)),
        last_commit_time: Some(commit_time(last.1)),
        previous_commit_time: None,
    }
}

/// Adds to a range on a branched timeline the segment with the last commit before the switch.
fn range_after(previous: u64, range: RestorableRange) -> RestorableRange {
    RestorableRange { previous_commit_time: Some(commit_time(previous)), ..range }
}

/// Commits in parts are reachable only if no earlier part is missing, within a segment and between segments.
#[test]
fn the_log_in_parts_ends_at_a_missing_one() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 2));
    let part = |number: u64, start: u32, end: u32| Part { segment: name(1, number), start, end };
    let stored = [part(0x22, 0, 9000), part(0x22, 9000, 1 << 20), part(0x23, 0, 1 << 20), part(0x24, 0, 500)];
    for part in stored {
        parts::store(&archive, part, &vec![7; (part.end - part.start) as usize]).expect("stored");
    }
    let live = |archive: &Archive| {
        let mut listing = listed(archive);
        let problem = listing.unreadable.pop().map(|finding| finding.problem);
        assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
        (listing.timelines.remove(0).live_end.expect("an end"), problem)
    };
    assert_eq!(live(&archive), ("0/024001F4".to_owned(), None));
    archive.store().remove(&stored[2].key()).expect("removed");
    let problem = "expected parts with the WAL from 0/02300000, found none before 0/02400000";
    assert_eq!(live(&archive), ("0/02300000".to_owned(), Some(problem.to_owned())));
    archive.store().remove(&stored[0].key()).expect("removed");
    let problem = "expected parts with the WAL from 0/02200000, found none before 0/02202328";
    assert_eq!(live(&archive), ("0/02200000".to_owned(), Some(problem.to_owned())));
}

/// PostgreSQL treats a missing segment as the end of the WAL and promotes.
#[test]
fn a_segment_is_a_gap_if_its_timeline_continues_after_it() {
    let root = tempfile::tempdir().expect("a folder");
    // Timeline 2 branches off in segment 26; timeline 1 has only its start.
    let files = [log(1, 0x20, 6), vec![history(0x26)], log(2, 0x26, 3)];
    let archive = archive_of(root.path(), &files.concat());
    let target = root.path().join("segment");
    let ask = |timeline, number| report_gap(&archive, name(timeline, number), &target);
    let expect_gap = |timeline, number, later: String| {
        let error = ask(timeline, number).expect_err("a gap");
        assert!(matches!(&error, GetError::Gap { later: found, .. } if *found == later), "{error}");
    };
    let expect_end = |timeline, number| {
        let error = ask(timeline, number).expect_err("the end");
        assert!(matches!(error, GetError::NotThere { .. }), "{error}");
    };
    ask(1, 0x25).expect("archived");
    assert!(target.exists());
    expect_end(1, 0x26);
    expect_end(2, 0x29);
    remove(&archive, 1, 0x23..0x24);
    expect_gap(1, 0x23, name(1, 0x24).to_string());
    remove(&archive, 1, 0x25..0x26);
    expect_gap(1, 0x25, ArchivedFile::History(2).to_string());
    expect_end(1, 0x26);
    // This applies to the first segment of a timeline, too.
    remove(&archive, 2, 0x26..0x27);
    expect_gap(2, 0x26, name(2, 0x27).to_string());
    expect_end(3, 0x28);
}

/// If PostgreSQL cannot get a timeline's history, it assumes that the timeline does not exist, and ends
/// recovery on the previous one.
#[test]
fn a_missing_history_is_a_finding_and_ends_no_recovery_early() {
    let root = tempfile::tempdir().expect("a folder");
    let third = ("00000003.history".to_owned(), b"1\t0/2680000\tx\n2\t0/2880000\tx\n".to_vec());
    let files = [log(1, 0x20, 8), vec![history(0x26)], log(2, 0x26, 4), vec![third], log(3, 0x28, 3)];
    let archive = archive_of(root.path(), &files.concat());
    let target = root.path().join("history");
    let ask = |timeline| get(&archive, ArchivedFile::History(timeline), &target);
    let recover = |timeline| {
        let start = RecoveryStart::Segment(name(1, 0x20));
        recovery_to(&archive, start, timeline, commit_time(0x24) + 1)
    };
    let found = || {
        let missing = listed(&archive).missing_histories;
        let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
        assert_eq!(verified.missing_histories, missing);
        assert!(missing.is_empty() || !verified.is_good());
        assert_eq!(holdings(&archive, &Vec::new).expect("holdings").missing_histories, missing);
        missing
    };
    assert!(found().is_empty());
    assert_eq!(recover(None).expect("a recovery").log.timeline(), 3);
    for timeline in [2, 3] {
        let missing = ArchivedFile::History(timeline);
        let kept = archive.store().read(&missing.key()).expect("read");
        archive.store().remove(&missing.key()).expect("removed");
        assert_eq!(found(), [missing.to_string()]);
        assert!(matches!(ask(timeline), Err(GetError::NoHistory { .. })), "{timeline}");
        assert!(matches!(ask(4), Err(GetError::NotThere { .. })));
        let error = recover(None).expect_err("it would end too early");
        assert!(matches!(&error, RecoveryError::NoHistory(name) if *name == missing.to_string()), "{error}");
        recover(Some(1)).expect("a recovery along a timeline that needs none");
        archive.store().create(&missing.key(), &kept).expect("stored");
    }
    // An archive may start on any timeline without the WAL that leads to it.
    archive.store().remove(&ArchivedFile::History(2).key()).expect("removed");
    remove(&archive, 1, 0x20..0x28);
    assert!(found().is_empty());
    assert!(matches!(ask(2), Err(GetError::NotThere { .. })));
}

#[test]
fn moments_that_can_be_restored_to_end_at_gaps() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 12));
    assert_eq!(listed(&archive).restorable(), [range((1, 0x20), (1, 0x2B), None)]);
    remove(&archive, 1, [0x25, 0x26]);
    let behind = Some((1, 0x27));
    let ranges = [range((1, 0x20), (1, 0x24), None), range((1, 0x27), (1, 0x2B), behind)];
    assert_eq!(listed(&archive).timelines[0].restorable, ranges);
    assert_eq!(listed(&archive).restorable(), ranges);
    // Timeline 2 continues from 0x29, so later WAL of timeline 1 is not on its path.
    push_more(&archive, root.path(), &[vec![history(0x29)], log(2, 0x29, 5)].concat());
    let along = [range((1, 0x20), (1, 0x24), None), range((1, 0x27), (2, 0x2D), behind)];
    let listing = listed(&archive);
    assert_eq!(listing.restorable(), along);
    assert_eq!(listing.timelines[1].restorable, [range_after(0x28, range((2, 0x29), (2, 0x2D), behind))]);
    // While the missing segments wait to be archived, later ones cannot be reached.
    let waiting = || vec![name(1, 0x25), name(1, 0x26)];
    let held = holdings(&archive, &waiting).expect("holdings");
    assert_eq!((held.missing_segments, held.restorable.as_slice()), (0, &along[..1]));
    assert_eq!(held.newest_restorable, Some(commit_time(0x24)));
    // One of them is lost. Acknowledged or not, recovery cannot pass it.
    let held = holdings(&archive, &|| vec![name(1, 0x25)]).expect("holdings");
    assert_eq!((held.missing_segments, held.restorable.as_slice()), (1, &along[..]));
    acknowledge(&archive, name(1, 0x25), name(1, 0x26), "me", "lost").expect("acknowledged");
    let held = holdings(&archive, &Vec::new).expect("holdings");
    assert_eq!((held.missing_segments, held.acknowledged_segments), (0, 2));
    assert_eq!(held.restorable, along);
    assert_eq!(
        (held.oldest_restorable, held.newest_restorable),
        (Some(commit_time(0x27)), Some(commit_time(0x2D)))
    );
    // The first segment of timeline 2 is lost as well, so no path leads from timeline 1 to the remaining
    // segments.
    remove(&archive, 2, [0x29]);
    let apart =
        [along[0].clone(), range((1, 0x27), (1, 0x28), behind), range((2, 0x2A), (2, 0x2D), Some((2, 0x2A)))];
    assert_eq!(listed(&archive).restorable(), apart);
}

#[test]
fn moments_before_a_switch_are_known_while_the_new_timeline_has_no_commit() {
    let root = tempfile::tempdir().expect("a folder");
    let files = [log(1, 0x20, 12), vec![history(0x26)], log_without_commits(2, 0x26, 2)].concat();
    let archive = archive_of(root.path(), &files);
    let expected =
        RestorableRange { last_commit_time: Some(commit_time(0x25)), ..range((1, 0x20), (2, 0x27), None) };
    assert_eq!(listed(&archive).restorable(), std::slice::from_ref(&expected));
    assert_eq!(listed(&archive).timelines[1].parent_last_commit_time, Some(commit_time(0x25)));
    // The same applies to a pack that continues after the switch.
    let options = PackOptions::default().segments(Some(8)).keep(0);
    assert!(pack(&archive, &options, &|_, _| {}).expect("packed").is_good());
    assert_eq!(listed(&archive).restorable(), [expected]);
}

/// A time between the last commit before a switch and the first one after it is reached along the new
/// timeline.
#[test]
fn moments_between_two_timelines_belong_to_the_later_one() {
    // Timeline 1 ends with the segment before the switch, or continues after it.
    for segments in [6, 12] {
        let root = tempfile::tempdir().expect("a folder");
        let third = ("00000003.history".to_owned(), b"1\t0/2680000\tx\n2\t0/2880000\tx\n".to_vec());
        let files = [
            log(1, 0x20, segments),
            vec![history(0x26)],
            log_without_commits(2, 0x26, 2),
            vec![third],
            log(3, 0x28, 3),
        ];
        let archive = archive_of(root.path(), &files.concat());
        let listing = listed(&archive);
        let [first, second, third] = listing.timelines.as_slice() else { panic!("{listing:?}") };
        let last = 0x20 + segments - 1;
        assert_eq!(first.restorable, [range((1, 0x20), (1, last), None)]);
        // Nothing was committed on timeline 2, so the last commit before timeline 3 is on timeline 1.
        assert_eq!(second.restorable[0].moments(), None);
        assert_eq!(second.restorable[0].previous_commit_time, Some(commit_time(0x25)));
        assert_eq!(third.restorable, [range_after(0x25, range((3, 0x28), (3, 0x2A), None))]);
        assert_eq!(third.restorable[0].moments(), Some((commit_time(0x25), commit_time(0x2A))));
        assert_eq!(listing.restorable(), [range((1, 0x20), (3, 0x2A), None)]);
        // Recovery agrees with the listing.
        let recover = |timeline, moment| {
            recovery_to(&archive, RecoveryStart::Segment(name(1, 0x20)), Some(timeline), moment)
        };
        let between = commit_time(0x25) + 1;
        let stop = recover(3, between).expect("a recovery along the new timeline").stop;
        assert_eq!((stop.segment, stop.time), (name(3, 0x28).to_string(), commit_time(0x28)));
        assert!(matches!(recover(2, between), Err(RecoveryError::Unreachable { .. })));
        assert_eq!(recover(1, between).is_ok(), segments > 6);
    }
}

#[test]
fn what_backup_history_files_say_is_listed_as_it_was_written() {
    let root = tempfile::tempdir().expect("a folder");
    let text = "START WAL LOCATION: 0/02200028 (file 000000010000000000000022)\nBACKUP METHOD: streamed\nSTART TIME: 2026-11-20 10:00:00 CET\n\
                LABEL: before: the move\nSTART TIMELINE: 1\nSTOP TIME: 2026-11-20 10:05:00 CET\n\
                INCREMENTAL FROM LSN: 0/02100028\n";
    let backup = |number| ArchivedFile::Backup(name(1, number), 0x28).to_string();
    let histories = vec![(backup(0x22), text.as_bytes().to_vec()), (backup(0x23), Vec::new())];
    let archive = archive_of(root.path(), &[log(1, 0x20, 4), histories].concat());
    assert!(listed(&archive).base_backups.is_empty(), "read only where it was asked for");
    let described = || {
        let options = ListOptions::default().base_backups(true);
        list(&archive, options).expect("a list")
    };
    let said = BaseBackup {
        name: backup(0x22),
        label: Some("before: the move".to_owned()),
        start_time: Some("2026-11-20 10:00:00 CET".to_owned()),
        stop_time: Some("2026-11-20 10:05:00 CET".to_owned()),
        method: Some("streamed".to_owned()),
        is_incremental: true,
    };
    let empty = BaseBackup {
        name: backup(0x23),
        label: None,
        start_time: None,
        stop_time: None,
        method: None,
        is_incremental: false,
    };
    assert_eq!(described().base_backups, [said, empty.clone()]);
    // An unreadable backup history file is still listed.
    cut(root.path(), &backup(0x22));
    let listing = described();
    assert_eq!((listing.backups.len(), listing.base_backups.as_slice()), (2, &[empty][..]));
    let key = ArchivedFile::parse(&backup(0x22)).expect("a name").key();
    assert_eq!(listing.unreadable.iter().map(|one| one.object.as_str()).collect::<Vec<_>>(), [key]);
}

/// The old primary continues after a failover, which the listing must report. After recovery to a time, the
/// abandoned timeline ended earlier.
#[test]
fn a_timeline_that_is_written_to_after_it_was_left_is_known() {
    // The second server may have archived only the segment of the branch.
    let cases = [(6, 4, false), (8, 4, false), (9, 4, true), (12, 4, true), (7, 1, false), (9, 1, true)];
    for (segments, later, is_diverging) in cases {
        let root = tempfile::tempdir().expect("a folder");
        let files = [log(1, 0x20, segments), vec![history(0x26)], log(2, 0x26, later)].concat();
        let archive = archive_of(root.path(), &files);
        let listing = listed(&archive);
        let expected = Diverging { timeline: 1, left_by: 2, left_at: "0/02680000".to_owned() };
        let expected: Vec<Diverging> = is_diverging.then_some(expected).into_iter().collect();
        assert_eq!(listing.diverging, expected, "{segments} {later}");
        let found = find_diverging(&archive, None, None).expect("a listed archive");
        assert_eq!(found.as_ref(), expected.first(), "{segments} {later}");
        assert!(listing.missing_histories.is_empty());
    }
}

#[test]
fn base_backups_that_no_timeline_goes_on_from_are_known() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &[log(1, 0x20, 12), vec![history(0x26)], log(2, 0x26, 4)].concat());
    let listing = listed(&archive);
    let left = |timeline, number, offset: u32| -> Vec<u32> {
        let backup = ArchivedFile::Backup(name(timeline, number), offset).to_string();
        listing.left_before_backup(&backup).iter().map(|timeline| timeline.timeline).collect()
    };
    assert!(left(1, 0x26, 0x28).is_empty());
    assert_eq!(left(1, 0x26, 0x8_0000), [2]);
    assert_eq!(left(1, 0x28, 0x28), [2]);
    assert!(left(2, 0x28, 0x28).is_empty());
    assert!(listing.left_before_backup("no backup").is_empty());
}

#[test]
fn many_gaps_need_few_summaries() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 80));
    remove(&archive, 1, (0x20..0x70).filter(|number| number % 2 == 1));
    let ranges = listed(&archive).restorable();
    assert_eq!(ranges.len(), 40);
    assert_eq!(ranges.iter().filter(|range| range.commit_times().is_some()).count(), 16);
    assert!(ranges[39].commit_times().is_some());
}

/// Returns a segment with transactions that commit at these times, and the LSNs of their commits.
fn log_with_lsns(number: u64, times: &[i64]) -> ((String, Vec<u8>), Vec<Lsn>) {
    let segment = log_with_times(1, number, times);
    let info = StreamInfo::from_first_page(&segment.1).expect("a segment");
    let mut ends = Ends(Vec::new());
    let start = Lsn(number << 20);
    Decoder::new(info, start, start.plus(1 << 20)).push(&segment.1, &mut ends).expect("records");
    assert_eq!(ends.0.len(), times.len());
    (segment, ends.0)
}

struct Ends(Vec<Lsn>);

impl Visitor for Ends {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.header.rmid == rmid::XACT {
            self.0.push(record.lsn);
        }
        ControlFlow::Continue(())
    }
}

/// The clock of a server was ahead for some time, and was then set back. The position and the times are those
/// of the commits on both sides of the step, wherever it is in the segments, and whether or not the samples
/// have these segments.
#[test]
fn commit_times_that_go_back_are_listed() {
    let hours = |number: u64, hours: &[i64]| -> Vec<i64> {
        hours.iter().map(|hour| commit_time(number) + hour * 3_600_000_000).collect()
    };
    // Hours after the usual time of a segment's commits, and the index of the commit after the step. The
    // usual time is an hour later in each segment.
    let cases: [(&[i64], usize); 4] = [
        (&[0, 80, 70], 2),
        (&[0, 90, 1], 2),
        (&[-50, -49, 0], 0),
        // The first and the last commit do not show it.
        (&[0, 85, -20, 90], 2),
    ];
    for number in [0x21, 0x22, 0x2F, 0x47] {
        for (offsets, after) in cases {
            let root = tempfile::tempdir().expect("a folder");
            let mut files = log(1, 0x20, 40);
            let times = hours(number, offsets);
            let (segment, lsns) = log_with_lsns(number, &times);
            files[(number - 0x20) as usize] = segment;
            let archive = archive_of(root.path(), &files);
            assert!(
                listed(&archive).timelines[0].times_go_back.is_empty() || number == 0x47,
                "not asked for"
            );
            let before = after.checked_sub(1).map_or(commit_time(number - 1), |before| times[before]);
            let step = (lsns[after].to_string(), before, times[after]);
            let of = |options| -> Vec<_> {
                let listing = list(&archive, options).expect("a list");
                let found = &listing.timelines[0].times_go_back;
                found.iter().map(|it| (it.lsn.clone(), it.from, it.to)).collect()
            };
            let all = of(ListOptions::default().all_summaries(true));
            assert!(all.contains(&step), "{number:X} {offsets:?}: {step:?} {all:?}");
            // With forty files, every second one is sampled. An excursion between two samples is not seen.
            let sampled = of(ListOptions::default().time_samples(true));
            assert!(sampled.iter().all(|one| all.contains(one)), "{sampled:?} {all:?}");
            assert!(sampled.contains(&step) || number % 2 == 1, "{number:X} {offsets:?}: {sampled:?}");
        }
    }
}

/// The clock was set back for good between two samples: a bisection finds the segment.
#[test]
fn the_place_of_a_step_back_between_samples_is_exact() {
    for number in [0x21, 0x23, 0x46, 0x60, 0x9E, 0x9F] {
        let root = tempfile::tempdir().expect("a folder");
        let mut files = log(1, 0x20, 0x80);
        for at in number..0xA0 {
            files[(at - 0x20) as usize] = log_with_times(1, at, &[commit_time(at) - 400 * 3_600_000_000]);
        }
        // Segments without commits around it.
        for at in [number - 1, number + 1].into_iter().filter(|at| (0x21..0x9F).contains(at)) {
            files[(at - 0x20) as usize] = log_without_commits(1, at, 1).remove(0);
        }
        let archive = archive_of(root.path(), &files);
        let listing = list(&archive, ListOptions::default().time_samples(true)).expect("a list");
        let [step] = &listing.timelines[0].times_go_back[..] else { panic!("{number:X} {listing:?}") };
        let segment =
            SegmentSize::new(1 << 20).map(|size| size.segment_of(step.lsn.parse().expect("an LSN")));
        let before = if number - 1 > 0x20 { number - 2 } else { number - 1 };
        assert_eq!((segment, step.from), (Some(number), commit_time(before)), "{number:X} {step:?}");
        assert_eq!(step.to, commit_time(number) - 400 * 3_600_000_000);
        let (_, lsns) = log_with_lsns(number, &[step.to]);
        assert_eq!(step.lsn, lsns[0].to_string());
    }
}

#[test]
fn it_is_said_whether_all_restore_points_are_known() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 4));
    assert!(!listed(&archive).has_all_restore_points);
    let all = list(&archive, ListOptions::default().all_summaries(true)).expect("a list");
    assert!(all.has_all_restore_points);
}

#[test]
fn a_timeline_that_was_pruned_lacks_nothing_at_its_beginning() {
    let root = tempfile::tempdir().expect("a folder");
    let files = [log(1, 0x20, 24), vec![history(0x2D)], log(2, 0x2D, 12)].concat();
    let archive = archive_of(root.path(), &files);
    assert_eq!(gaps(&archive), []);
    // Prunes at each position: before, at and after the switch.
    for cut in [0x2B, 0x2C, 0x2D, 0x2E, 0x32] {
        let rule = Rule::OlderThanSegment(name(1, cut));
        let done = plan(&archive, &rule, Vec::new()).expect("a plan").apply(&archive).expect("applied");
        assert!(done.is_good(), "{cut:X}");
        assert_eq!(gaps(&archive), [], "{cut:X}");
        let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
        assert_eq!(verified.gaps, [], "{cut:X}");
    }
    let timeline = &listed(&archive).timelines[1];
    // Base backups of timeline 1 ended before the switch, and their WAL was removed.
    assert_eq!(timeline.restorable, [range((2, 0x32), (2, 0x38), Some((2, 0x32)))]);
}

#[test]
fn an_archive_that_begins_at_a_switch_has_no_gap_before_it() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &[vec![history(0x2D)], log(2, 0x2D, 4)].concat());
    assert_eq!(listed(&archive).timelines[0].restorable, [range((2, 0x2D), (2, 0x30), None)]);
}

#[test]
fn what_is_missing_at_a_switch_is_found() {
    let root = tempfile::tempdir().expect("a folder");
    let files = [log(1, 0x20, 24), vec![history(0x2D)], log(2, 0x2D, 12)].concat();
    let archive = archive_of(root.path(), &files);
    remove(&archive, 2, [0x2D, 0x2E]);
    assert_eq!(gaps(&archive), [(2, 0x2D, 0x2E)]);
    // The last segments of the abandoned timeline are missing, too, and all of its segments after the switch.
    remove(&archive, 1, [0x2B, 0x2C].into_iter().chain(0x2D..0x38));
    assert_eq!(gaps(&archive), [(1, 0x2B, 0x2C), (2, 0x2D, 0x2E)]);
    // Without any segment from before the switch, the archive starts after it.
    remove(&archive, 1, 0x20..0x2B);
    assert_eq!(gaps(&archive), []);
}

/// After two promotions within one segment, the intermediate timeline has no complete segment, but an earlier
/// backup can still be used.
#[test]
fn backups_from_before_two_promotions_within_a_segment_count() {
    let root = tempfile::tempdir().expect("a folder");
    let histories = [
        ("00000003.history", "1\t0/2680000\tx\n2\t0/2780000\tx\n"),
        ("00000004.history", "1\t0/2680000\tx\n2\t0/2780000\tx\n3\t0/2790000\tx\n"),
    ];
    let histories = histories.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).to_vec();
    let partial = vec![(format!("{}.partial", name(3, 0x27)), log(3, 0x27, 1).remove(0).1)];
    let files =
        [log(1, 0x20, 6), vec![history(0x26)], log(2, 0x26, 1), histories, partial, log(4, 0x27, 3)].concat();
    let archive = archive_of(root.path(), &files);
    let listing = listed(&archive);
    assert_eq!(listing.timelines[3].restorable, [range_after(0x26, range((4, 0x27), (4, 0x29), None))]);
    assert_eq!(listing.restorable(), [range((1, 0x20), (4, 0x29), None)]);
    assert_eq!(gaps(&archive), []);
    // If an earlier segment is missing, a later backup is required.
    remove(&archive, 1, [0x23]);
    assert_eq!(listed(&archive).timelines[3].restorable[0].base_backup_from, Some(name(1, 0x24).to_string()));
    remove(&archive, 2, [0x26]);
    assert_eq!(listed(&archive).timelines[3].restorable[0].base_backup_from, Some(name(4, 0x27).to_string()));
}

/// A backup history file is archived after the segment in which the backup starts, so it shows that this
/// segment existed.
#[test]
fn an_end_that_is_lost_is_known_by_a_backup() {
    let root = tempfile::tempdir().expect("a folder");
    let backup = (ArchivedFile::Backup(name(1, 0x24), 0x28).to_string(), Vec::new());
    let archive = archive_of(root.path(), &[log(1, 0x20, 6), vec![backup.clone()]].concat());
    let target = root.path().join("segment");
    let ask = |number| report_gap(&archive, name(1, number), &target).expect_err("missing");
    assert_eq!(gaps(&archive), []);
    assert!(matches!(ask(0x26), GetError::NotThere { .. }));
    remove(&archive, 1, [0x23, 0x24, 0x25]);
    assert_eq!(gaps(&archive), [(1, 0x23, 0x24)]);
    assert_eq!(holdings(&archive, &Vec::new).expect("holdings").missing_segments, 2);
    for number in [0x23, 0x24] {
        let error = ask(number);
        assert!(matches!(&error, GetError::Gap { later, .. } if *later == backup.0), "{error}");
    }
    assert!(matches!(ask(0x25), GetError::NotThere { .. }));
    // If a timeline branched off in this segment, the new timeline has it.
    push_more(&archive, root.path(), &[history(0x24)]);
    assert!(matches!(ask(0x24), GetError::NotThere { .. }));
}

/// Returns options without the check of records across segments: the timelines of these tests are not
/// connected record by record.
fn fast() -> VerifyOptions {
    VerifyOptions::default().fast(true)
}

/// Returns timelines 1, 2 and 3. Each of 2 and 3 branches off the previous one.
fn three_timelines() -> Vec<(String, Vec<u8>)> {
    let third = ("00000003.history".to_owned(), b"1\t0/2680000\tx\n2\t0/2880000\tx\n".to_vec());
    [log(1, 0x20, 8), vec![history(0x26)], log(2, 0x26, 4), vec![third], log(3, 0x28, 3)].concat()
}

/// All segments of a timeline on the path are lost. Its history, or that of the next timeline, shows which
/// are missing.
#[test]
fn a_timeline_that_is_lost_as_a_whole_is_missing() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &three_timelines());
    assert_eq!(gaps(&archive), []);
    remove(&archive, 2, 0x26..0x2A);
    let missing = || {
        let gaps = gaps(&archive);
        let new = |gaps: &[Gap]| gaps.iter().filter(|gap| gap.is_new()).map(|gap| gap.segments).sum::<u64>();
        let exported = [None, Some(3)].map(|timeline| {
            let selection = Selection { timeline, from: None, to: None };
            new(&Plan::select(&archive, &selection).expect("a plan").gaps)
        });
        let rule = Rule::OlderThanSegment(name(1, 0x22));
        let pruned = plan(&archive, &rule, Vec::new()).expect("a plan").report().warnings.clone();
        let verified = verify(&archive, fast(), &|_, _| {}).expect("verified");
        assert_eq!(verified.gaps, listed(&archive).gaps());
        assert_eq!(verified.is_good(), new(&verified.gaps) == 0);
        let held = holdings(&archive, &Vec::new).expect("holdings");
        (gaps, exported, pruned, held.missing_segments, held.acknowledged_segments)
    };
    let lost = vec![(2, 0x26, 0x27)];
    let warning = format!(
        "on timeline 2, 2 segments are missing, {} to {}: recovery ends before them",
        name(2, 0x26),
        name(2, 0x27)
    );
    assert_eq!(missing(), (lost.clone(), [2, 2], vec![warning], 2, 0));
    let apart = [range((1, 0x20), (1, 0x25), None), range((3, 0x28), (3, 0x2A), Some((3, 0x28)))];
    assert_eq!(listed(&archive).restorable(), apart);
    acknowledge(&archive, name(2, 0x26), name(2, 0x27), "me", "lost").expect("acknowledged");
    assert_eq!(missing(), (lost.clone(), [0, 0], Vec::new(), 0, 2));
    // The timeline's history is lost, too.
    archive.store().remove(&ArchivedFile::History(2).key()).expect("removed");
    assert_eq!(gaps(&archive), lost);
    // After pruning all earlier segments, the archive starts on the next timeline.
    let rule = Rule::OlderThanSegment(name(1, 0x28));
    plan(&archive, &rule, Vec::new()).expect("a plan").apply(&archive).expect("applied");
    assert_eq!(gaps(&archive), []);
}

#[test]
fn an_archive_that_begins_on_a_later_timeline_lacks_none_before_it() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &three_timelines());
    remove(&archive, 1, 0x20..0x28);
    assert_eq!(gaps(&archive), []);
    remove(&archive, 2, 0x26..0x2A);
    assert_eq!(gaps(&archive), []);
    assert_eq!(listed(&archive).restorable(), [range((3, 0x28), (3, 0x2A), None)]);
    // Later WAL of timeline 1 does not lead to the other timelines.
    push_more(&archive, root.path(), &log(1, 0x27, 4));
    assert_eq!(gaps(&archive), []);
}

#[test]
fn base_backups_whose_first_segment_is_missing_are_known() {
    let root = tempfile::tempdir().expect("a folder");
    let backup = |number| ArchivedFile::Backup(name(1, number), 0x28).to_string();
    let backups = [0x21, 0x23, 0x26].map(|number| (backup(number), Vec::new()));
    let files = [log(1, 0x20, 6), vec![history(0x26)], log(2, 0x26, 3), backups.to_vec()].concat();
    let archive = archive_of(root.path(), &files);
    let without = || {
        let listing = listed(&archive);
        let verified = verify(&archive, fast(), &|_, _| {}).expect("verified");
        assert_eq!(verified.backups_without_start, listing.backups_without_start);
        let without: Vec<(String, bool)> =
            listing.backups_without_start.into_iter().map(|one| (one.backup, one.is_acknowledged)).collect();
        (without, verified.is_good())
    };
    // The segment in which timeline 1 was abandoned exists on timeline 2.
    assert_eq!(without(), (Vec::new(), true));
    remove(&archive, 1, [0x23]);
    assert_eq!(without(), (vec![(backup(0x23), false)], false));
    acknowledge(&archive, name(1, 0x23), name(1, 0x23), "me", "lost").expect("acknowledged");
    assert_eq!(without(), (vec![(backup(0x23), true)], true));
    // At the archive's start no segment counts as missing, but base backups without their segments are
    // unusable.
    remove(&archive, 1, [0x20, 0x21, 0x22]);
    assert_eq!(without(), (vec![(backup(0x21), false), (backup(0x23), true)], false));
    // All segments are lost.
    remove(&archive, 1, [0x24, 0x25]);
    remove(&archive, 2, 0x26..0x29);
    let all = vec![(backup(0x21), false), (backup(0x23), true), (backup(0x26), false)];
    assert_eq!(without(), (all, false));
}

/// A timeline that starts and is abandoned within one segment has no segment of its own. The next timeline
/// continues the one before it.
#[test]
fn a_pack_that_stays_keeps_the_beginning_of_timelines_behind_one_without_segments() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 24));
    let options = PackOptions::default().segments(Some(16)).keep(0);
    assert!(pack(&archive, &options, &|_, _| {}).expect("packed").is_good());
    let third = ("00000003.history".to_owned(), b"1\t0/2280000\tx\n2\t0/2290000\tx\n".to_vec());
    push_more(&archive, root.path(), &[vec![history(0x22), third], log(3, 0x22, 14)].concat());
    assert_eq!(gaps(&archive), []);
    let rule = Rule::OlderThanSegment(name(1, 0x28));
    let done = plan(&archive, &rule, Vec::new()).expect("a plan").apply(&archive).expect("applied");
    assert_eq!((done.removed_objects, done.is_good(), gaps(&archive).len()), (0, true, 0));
}

#[test]
fn a_pack_that_stays_keeps_the_beginning_of_the_timeline_that_left_it() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 24));
    let options = PackOptions::default().segments(Some(16)).keep(0);
    assert!(pack(&archive, &options, &|_, _| {}).expect("packed").is_good());
    push_more(&archive, root.path(), &[vec![history(0x22)], log(2, 0x22, 14)].concat());
    let rule = Rule::OlderThanSegment(name(1, 0x28));
    let done = plan(&archive, &rule, Vec::new()).expect("a plan").apply(&archive).expect("applied");
    // The pack of 0x20 to 0x2F is needed for 0x28 and later.
    assert_eq!((done.removed_objects, gaps(&archive).len()), (0, 0));
    // Without it, timeline 2 can be pruned.
    let rule = Rule::OlderThanSegment(name(1, 0x30));
    let done = plan(&archive, &rule, Vec::new()).expect("a plan").apply(&archive).expect("applied");
    assert_eq!((done.removed_objects, gaps(&archive).len()), (15, 0));
}

#[test]
fn acknowledged_gaps_do_not_trouble_prune_and_export() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &[log(1, 0x20, 12), vec![history(0x2A)], log(2, 0x2A, 4)].concat());
    remove(&archive, 1, [0x26, 0x27]);
    let selections = [
        Selection { timeline: None, from: None, to: None },
        Selection { timeline: Some(2), from: None, to: None },
        Selection { timeline: Some(2), from: Some(0x20), to: Some(0x2D) },
    ];
    let missing = |selection: &Selection| {
        let gaps = Plan::select(&archive, selection).expect("a plan").gaps;
        gaps.iter().filter(|gap| gap.is_new()).map(|gap| gap.segments).sum::<u64>()
    };
    let warnings = || {
        let rule = Rule::OlderThanSegment(name(1, 0x22));
        plan(&archive, &rule, Vec::new()).expect("a plan").report().warnings.len()
    };
    assert_eq!((selections.each_ref().map(missing), warnings()), ([2, 2, 2], 1));
    acknowledge(&archive, name(1, 0x26), name(1, 0x26), "me", "lost").expect("acknowledged");
    assert_eq!((selections.each_ref().map(missing), warnings()), ([1, 1, 1], 1));
    acknowledge(&archive, name(1, 0x27), name(1, 0x27), "me", "lost").expect("acknowledged");
    assert_eq!((selections.each_ref().map(missing), warnings()), ([0, 0, 0], 0));
    // Missing segments around a switch are reported on each timeline, and are new in addition to the
    // acknowledged ones.
    remove(&archive, 1, [0x29]);
    remove(&archive, 2, [0x2A]);
    let gaps = Plan::select(&archive, &selections[1]).expect("a plan").gaps;
    let new: Vec<_> =
        gaps.iter().filter(|gap| gap.is_new()).map(|gap| (gap.first.clone(), gap.last.clone())).collect();
    let alone = |timeline, number| (name(timeline, number).to_string(), name(timeline, number).to_string());
    assert_eq!(new, [alone(1, 0x29), alone(2, 0x2A)]);
}

/// `receive --accept-gap` acknowledges a gap before it has archived any WAL that follows.
#[test]
fn a_gap_that_is_acknowledged_before_later_wal_is_archived_is_no_end() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 4));
    let target = root.path().join("segment");
    let ask = |number| report_gap(&archive, name(1, number), &target).expect_err("missing");
    assert!(matches!(ask(0x24), GetError::NotThere { .. }));
    record(&archive, name(1, 0x24), name(1, 0x26), "me", "lost").expect("recorded");
    for number in [0x24, 0x26] {
        let error = ask(number);
        let expected = format!("expected it before {}, the end of an acknowledged gap", name(1, 0x26));
        assert!(matches!(error, GetError::Gap { .. }) && error.to_string().contains(&expected), "{error}");
    }
    assert!(matches!(ask(0x27), GetError::NotThere { .. }));
    assert_eq!(gaps(&archive), [(1, 0x24, 0x26)]);
    assert!(listed(&archive).gaps()[0].acknowledged.is_some());
    let holdings = holdings(&archive, &Vec::new).expect("holdings");
    assert_eq!((holdings.missing_segments, holdings.acknowledged_segments), (0, 3));
    let verified = verify(&archive, fast(), &|_, _| {}).expect("verified");
    assert!(verified.is_good() && verified.gaps.len() == 1, "{:?}", verified.gaps);
    // A base backup from after the gap makes it irrelevant.
    push_more(&archive, root.path(), &log(1, 0x27, 2));
    let rule = Rule::OlderThanSegment(name(1, 0x27));
    plan(&archive, &rule, Vec::new()).expect("a plan").apply(&archive).expect("applied");
    assert_eq!(gaps(&archive), []);
}

/// After a failover, the new primary archives `.partial`, and the old one archives the same segment.
#[test]
fn a_partial_segment_beside_the_complete_one_is_no_step_back_in_time() {
    let root = tempfile::tempdir().expect("a folder");
    let mut files = log(1, 0x20, 6);
    let partial = (format!("{}.partial", files[5].0), log_at(1, 0x25, commit_time(0x24)).1);
    files.push(partial);
    let archive = archive_of(root.path(), &files);
    let listing = list(&archive, ListOptions::default().all_summaries(true)).expect("a list");
    let timeline = &listing.timelines[0];
    assert_eq!(timeline.times_go_back, []);
    assert_eq!(timeline.last_commit_time, Some(commit_time(0x25)));
    assert_eq!(timeline.end.as_deref(), Some("0/02600000"));
    assert!(listing.has_all_restore_points);
}

/// PostgreSQL refuses to recover past WAL that was written with `wal_level = minimal`.
#[test]
fn wal_of_wal_level_minimal_ends_what_can_be_restored() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log_with_minimal_wal(0x20, 40, 0x23));
    let ranges = [range((1, 0x20), (1, 0x22), None), range((1, 0x24), (1, 0x47), Some((1, 0x24)))];
    let expect = |listing: &Listing, what: &str| {
        let timeline = &listing.timelines[0];
        assert_eq!(timeline.restorable, ranges, "{what}");
        assert_eq!(timeline.minimal_wal[0].segment, name(1, 0x23).to_string(), "{what}");
        assert_eq!(listing.restorable(), ranges, "{what}");
        assert_eq!(listing.gaps(), [], "{what}");
    };
    expect(&list(&archive, ListOptions::default().all_summaries(true)).expect("a list"), "summaries");
    // Without its summary, the setting is known from `verify`.
    assert_eq!(listed(&archive).timelines[0].minimal_wal, []);
    let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
    assert!(verified.is_good() && verified.minimal_wal.len() == 1, "{verified:?}");
    verify::record(&archive, &verified, false).expect("recorded");
    expect(&listed(&archive), "verify");
    // A run that decodes nothing does not hide it.
    verify::record(&archive, &verify(&archive, fast(), &|_, _| {}).expect("verified"), true)
        .expect("recorded");
    expect(&listed(&archive), "verify --fast");
    let holdings = holdings(&archive, &Vec::new).expect("holdings");
    assert_eq!((holdings.restorable.as_slice(), holdings.minimal_wal.len()), (&ranges[..], 1));
    let recover = |first, moment| {
        recovery_to(&archive, RecoveryStart::Segment(name(1, first)), None, commit_time(moment))
    };
    assert!(recover(0x20, 0x21).is_ok() && recover(0x24, 0x30).is_ok());
    let error = recover(0x20, 0x30).expect_err("it is refused");
    assert!(matches!(error, RecoveryError::MinimalWal { .. }), "{error}");
    assert!(error.to_string().contains("wal_level = minimal"), "{error}");
}

/// Returns a run that ended in 2099, according to its clock.
fn future() -> VerifiedAt {
    VerifiedAt {
        time: 4_102_444_799_000_000,
        is_fast: false,
        objects: 4,
        segments: 4,
        damaged: 0,
        damaged_objects: Vec::new(),
        missing_segments: 0,
        unknown_version_segments: 0,
        newest_segments: Vec::new(),
        minimal_wal: Vec::new(),
    }
}

#[test]
fn a_run_of_verify_with_a_clock_ahead_hides_no_later_one() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 4));
    let write = |key: &str| {
        let json = serde_json::to_vec(&future()).expect("JSON");
        archive.store().create(key, &json).expect("created");
    };
    // Results written before keys had numbers can be read.
    write("verified/20991231235959000000.json");
    assert_eq!(verified::last(&archive).expect("read"), LastRun::Found(future()));
    let key = ArchivedFile::Segment(name(1, 0x21)).key();
    std::fs::write(root.path().join("archive").join(key), b"damaged").expect("written");
    let run = || {
        let found = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
        verify::record(&archive, &found, false).expect("recorded");
        verified::last(&archive).expect("read").found().expect("a run")
    };
    assert_eq!(run().damaged, 1);
    // The same with a numbered result: it is the last one until the next run.
    write("verified/run-0000000002.json");
    assert_eq!(verified::last(&archive).expect("read"), LastRun::Found(future()));
    assert_eq!(run().damaged, 1);
    // Old results are removed, whatever their times.
    for _ in 0..20 {
        run();
    }
    let mut keys = Vec::new();
    archive.store().list("verified/", &mut |listed| keys.push(listed.key)).expect("a list");
    keys.sort();
    assert_eq!((keys.len(), keys[0].as_str()), (16, "verified/run-0000000008.json"));
}

/// A file system that is not mounted must not look like a healthy archive.
#[test]
fn where_there_is_no_archive_nothing_is_said_of_what_it_holds() {
    let root = tempfile::tempdir().expect("a folder");
    let place = root.path().join("archive");
    let nowhere = Archive::new(Box::new(Folder::new(place.clone())));
    let is_missing = || matches!(holdings(&nowhere, &Vec::new), Err(ArchiveError::Missing(_)));
    assert!(is_missing() && !place.exists());
    std::fs::create_dir(&place).expect("a mount point");
    assert!(is_missing());
    nowhere.create().expect("an archive");
    let held = holdings(&nowhere, &Vec::new).expect("holdings");
    assert_eq!((held.segments, held.system_identifier), (0, None));
}

/// A server removes acknowledged files, but an archive without its identity cannot be read.
#[test]
fn without_archive_json_nothing_is_acknowledged() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 0x20, 2);
    let archive = archive_of(root.path(), &files);
    std::fs::remove_file(root.path().join("archive/archive.json")).expect("removed");
    let options = PushOptions::default().look_ahead(0);
    let wal = pg_wal(root.path(), &[files, log(1, 0x22, 1)].concat());
    for number in 0x20..0x23 {
        let pushed = push(&archive.afresh(), &wal.join(name(1, number).to_string()), &options).asked;
        assert_eq!(pushed.expect_err("not acknowledged").cause(), "damaged_identity", "{number:X}");
    }
}

/// Truncates an object, as a full disk or an incomplete copy would.
fn cut(root: &Path, file: &str) -> std::path::PathBuf {
    let key = ArchivedFile::parse(file).expect("a name").key();
    let path = root.join("archive").join(key);
    let object = std::fs::File::options().write(true).open(&path).expect("an object");
    object.set_len(100).expect("a shorter one");
    path
}

#[test]
fn a_damaged_object_is_a_finding_and_its_file_is_archived_again_once_it_is_moved_aside() {
    let root = tempfile::tempdir().expect("a folder");
    let files = [vec![history(0x23)], log(1, 0x20, 4)].concat();
    let archive = archive_of(root.path(), &files);
    let last = &files[4].0;
    let objects = [cut(root.path(), last), cut(root.path(), "00000002.history")];
    let listing = listed(&archive);
    let unreadable: Vec<&str> = listing.unreadable.iter().map(|one| one.object.as_str()).collect();
    let keys = ["00000002.history", last].map(|name| ArchivedFile::parse(name).expect("a name").key());
    assert_eq!(unreadable, keys, "{listing:?}");
    // The other objects' information is still available.
    let timeline = &listing.timelines[0];
    assert_eq!((timeline.segments, timeline.last_commit_time), (4, Some(commit_time(0x22))));
    let all = ListOptions::default().all_summaries(true);
    assert!(!list(&archive, all).expect("a list").has_all_restore_points);
    assert_eq!(holdings(&archive, &Vec::new).expect("holdings").unreadable, listing.unreadable);

    let wal = root.path().join("pg_wal");
    let options = PushOptions::default().look_ahead(0);
    let push_again = |name: &str| push(&archive.afresh(), &wal.join(name), &options).asked;
    for (name, object) in [last, "00000002.history"].into_iter().zip(objects) {
        let error = push_again(name).expect_err("nothing is overwritten");
        assert!(error.hint().is_some_and(|hint| hint.contains("Move the damaged object")), "{error:?}");
        assert_eq!(error.cause(), "damaged_object");
        std::fs::rename(object, root.path().join("aside")).expect("moved");
        assert!(!push_again(name).expect("archived").was_there);
    }
    let listing = listed(&archive);
    assert_eq!(
        (listing.unreadable.len(), listing.timelines[0].last_commit_time),
        (0, Some(commit_time(0x23)))
    );
}

/// An empty object exists: its file must not be reported as missing, which would end recovery.
#[test]
fn an_empty_object_is_damaged_and_not_missing() {
    for is_packed in [false, true] {
        let root = tempfile::tempdir().expect("a folder");
        let files = log(1, 0x20, 8);
        let archive = archive_of(root.path(), &files);
        let last = ArchivedFile::Segment(name(1, 0x27));
        let key = if is_packed {
            let options = PackOptions::default().segments(Some(4)).keep(0);
            assert_eq!(pack(&archive, &options, &|_, _| {}).expect("packed").segments, 8);
            PackName { first: name(1, 0x24), last: name(1, 0x27) }.key()
        } else {
            last.key()
        };
        std::fs::write(root.path().join("archive").join(&key), b"").expect("an empty object");
        let expect = |what: &str, said: &str| {
            for part in [key.as_str(), "0 bytes", "restore it"] {
                assert!(said.contains(part), "{what}: {said}");
            }
        };

        let listing = listed(&archive);
        assert_eq!((listing.timelines[0].segments, listing.timelines[0].gaps.len()), (8, 0));
        assert_eq!(listing.unreadable.len(), 1, "{listing:?}");
        expect("list", &listing.unreadable[0].problem);
        let held = holdings(&archive, &Vec::new).expect("holdings");
        assert_eq!((held.missing_segments, &held.unreadable), (0, &listing.unreadable));
        for fast in [false, true] {
            let options = VerifyOptions::default().fast(fast);
            let verified = verify(&archive, options, &|_, _| {}).expect("verified");
            assert_eq!((verified.gaps.len(), verified.damaged.len()), (0, 1), "{verified:?}");
            expect("verify", &verified.damaged[0].problem);
        }
        let error = get(&archive, last, &root.path().join("target")).expect_err("nothing to get");
        assert!(matches!(error, GetError::Archive { .. }) && error.cause() == "damaged_object", "{error:?}");
        expect("get", &error_text(&error));
        let options = SourceOptions::new(1);
        let source = source::open(&archive, &options).expect("a log");
        let error = walden_source::open::open(&source.segments[7]).expect_err("nothing to read");
        let error = error.to_string();
        expect("a source", &error);
        assert!(error.contains(&format!("segment {}", name(1, 0x27))), "{error}");
        let options = PushOptions::default().look_ahead(0);
        let wal = root.path().join("pg_wal").join(&files[7].0);
        let error = push(&archive.afresh(), &wal, &options).asked.expect_err("nothing is overwritten");
        assert_eq!(error.cause(), "damaged_object");
        expect("push", &error_text(&error));
    }
}

/// No later file shows that the newest segments are missing, but `verify` found them before.
#[test]
fn newest_segments_that_disappeared_after_a_verification_are_missing() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 0x20, 6);
    let archive = archive_of(root.path(), &files);
    let verify = || verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
    let found = verify();
    assert!(found.is_good());
    verify::record(&archive, &found, false).expect("recorded");
    for (name, _) in &files[4..] {
        let key = ArchivedFile::parse(name).expect("a name").key();
        archive.store().remove(&key).expect("removed");
    }
    // This still holds after a run that found them missing.
    for _ in 0..2 {
        let listing = list(&archive, ListOptions::default()).expect("a list");
        let gaps = listing.gaps();
        assert_eq!((gaps.len(), &gaps[0].first, &gaps[0].last), (1, &files[4].0, &files[5].0));
        assert_eq!(listing.timelines[0].last_segment.as_ref(), Some(&files[3].0));
        let holdings = walden_archive::status::holdings(&archive, &Vec::new).expect("holdings");
        assert_eq!(holdings.missing_segments, 2);
        let first = SegmentName::parse(&files[4].0).expect("a name");
        let error = report_gap(&archive, first, &root.path().join("segment")).expect_err("a gap");
        assert!(matches!(&error, GetError::Gap { .. }) && error.to_string().contains(&files[5].0), "{error}");
        let found = verify();
        assert!(!found.is_good() && found.gaps.len() == 1, "{:?}", found.gaps);
        verify::record(&archive, &found, false).expect("recorded");
    }
    // They are archived again.
    push_all(&archive, &root.path().join("pg_wal"), &files[4..]);
    assert!(verify().is_good());
}
