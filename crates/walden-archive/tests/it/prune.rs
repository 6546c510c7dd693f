//! Pruning must never remove anything that a kept backup needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use sha2::{Digest, Sha256};
use walden_archive::Archive;
use walden_archive::archive::ArchiveError;
use walden_archive::backup::{self, Backup};
use walden_archive::list::{ListOptions, list};
use walden_archive::pack::{PackOptions, pack};
use walden_archive::prune::{Pruned, Rule, plan};
use walden_archive::store::{Folder, Listed};
use walden_archive::verify::{self, VerifyOptions, verify};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};

use crate::material::{archive_of, commit_time, expect_all, log, log_with_times, push_all, stored};
use crate::watched::{Decision, Watched};

type Files = Vec<(String, Vec<u8>)>;

fn name(timeline: u32, number: u64) -> SegmentName {
    SegmentName::new(timeline, number, SegmentSize::new(1 << 20).expect("a size"))
}

fn lsn(number: u64, offset: u64) -> Lsn {
    Lsn((number << 20) + offset)
}

/// Formats a time as in backup history files.
fn text_of(micros: i64) -> String {
    let time = jiff::Timestamp::from_microsecond(micros).expect("a time");
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Returns the backup history file of a backup from one segment to another.
fn history(timeline: u32, start: u64, stop: u64, time: i64, label: &str) -> (String, Vec<u8>) {
    let file = name(timeline, start);
    let text = format!(
        "START WAL LOCATION: {} (file {file})\nSTOP WAL LOCATION: {} (file {})\nCHECKPOINT LOCATION: {}\n\
         BACKUP METHOD: streamed\nBACKUP FROM: primary\nSTART TIME: {}\nLABEL: {label}\nSTART TIMELINE: {timeline}\n\
         STOP TIME: {}\nSTOP TIMELINE: {timeline}\n",
        lsn(start, 0x28),
        lsn(stop, 0x100),
        name(timeline, stop),
        lsn(start, 0x60),
        text_of(time - 60_000_000),
        text_of(time)
    );
    (format!("{file}.00000028.backup"), text.into_bytes())
}

/// Creates an archive of segments 0x20 to 0x37 with backups in 0x22, 0x2A and 0x32.
fn with_backups(root: &Path) -> (Archive, Files) {
    let mut files = log(1, 0x20, 24);
    for start in [0x22, 0x2A, 0x32] {
        files.push(history(1, start, start + 1, commit_time(start + 1), &format!("backup {start:X}")));
    }
    (archive_of(root, &files), files)
}

#[test]
fn an_ambiguous_zone_is_shown_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut files = log(1, 0x20, 24);
    // NST is the zone of Newfoundland, and has been that of Samoa.
    for (start, zone) in [(0x22, "UTC"), (0x2A, "NST")] {
        let (name, text) = history(1, start, start + 1, commit_time(start + 1), zone);
        let text = String::from_utf8(text).expect("a text").replace(" UTC", &format!(" {zone}"));
        files.push((name, text.into_bytes()));
    }
    let found = planned(&archive_of(folder.path(), &files), &Rule::KeepBackups(1)).backups;
    assert_eq!((found[0].time, &found[0].time_text), (Some(commit_time(0x23)), &None));
    let text = text_of(commit_time(0x2B)).replace("UTC", "NST");
    assert_eq!((found[1].time, &found[1].time_text), (None, &Some(text)));
}

fn push_more(archive: &Archive, root: &Path, files: &Files) {
    push_all(archive, &crate::material::pg_wal(root, files), files);
}

fn planned(archive: &Archive, rule: &Rule) -> Pruned {
    plan(archive, rule, Vec::new()).expect("a plan").report().clone()
}

fn applied(archive: &Archive, rule: &Rule, on_disk: Vec<Backup>) -> Pruned {
    let plan = plan(archive, rule, on_disk).expect("a plan");
    let before = stored(archive.store());
    let mut expected = plan.report().clone();
    assert_eq!(stored(archive.store()), before, "a plan changes nothing");
    let done = plan.apply(archive).expect("applied");
    expected.is_applied = true;
    assert_eq!(done, expected);
    done
}

#[test]
fn what_the_oldest_kept_backup_needs_stays() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, files) = with_backups(root.path());
    let plan = planned(&archive, &Rule::KeepBackups(2));
    assert_eq!(plan.kept_from, Some(lsn(0x2A, 0).to_string()));
    let kept: Vec<bool> = plan.backups.iter().map(|backup| backup.is_kept).collect();
    assert_eq!(kept, [false, true, true]);
    let bytes = || {
        let mut bytes = 0;
        // The record of the run is new.
        let mut add = |listed: Listed| {
            let is_record = listed.key.starts_with("pruned/");
            bytes += if is_record { 0 } else { listed.bytes };
        };
        archive.store().list("", &mut add).expect("a list");
        bytes
    };
    let before = bytes();
    let done = applied(&archive, &Rule::KeepBackups(2), Vec::new());
    assert!(done.is_good());
    assert_eq!(before - bytes(), done.removed_bytes);
    // Ten segments and a backup history file.
    assert_eq!((done.removed_objects, done.timelines[0].removed_segments), (11, 10));
    assert_eq!(stored(archive.store()).len(), 14);
    expect_all(&archive, &files[10..24], "kept");
    let listing = list(&archive, ListOptions::default()).expect("a list");
    assert_eq!((listing.timelines[0].gaps.len(), listing.backups.len()), (0, 2));
    // A second run has nothing left to do.
    assert_eq!(applied(&archive, &Rule::KeepBackups(2), Vec::new()).removed_objects, 0);
    // If more backups are to be kept than exist, nothing is removed.
    let few = planned(&archive, &Rule::KeepBackups(3));
    assert!(few.reason.is_some() && few.removed_objects == 0 && few.is_good());
}

#[test]
fn an_archive_that_states_an_impossible_segment_size_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, _) = with_backups(root.path());
    let path = root.path().join("archive/archive.json");
    let text = fs::read_to_string(&path).expect("an identity");
    let wrong = text.replace("1048576", "1048577");
    assert_ne!(text, wrong);
    fs::write(&path, wrong).expect("written");
    let archive = archive.afresh();
    let is_refused = |error: &ArchiveError| matches!(error, ArchiveError::Identity { problem, .. } if problem.contains("expected a segment size"));
    assert!(is_refused(&plan(&archive, &Rule::KeepBackups(2), Vec::new()).expect_err("refused")));
    assert!(is_refused(&list(&archive, ListOptions::default()).expect_err("refused")));
    assert!(is_refused(&pack(&archive, &PackOptions::default(), &|_, _| {}).expect_err("refused")));
}

#[test]
fn gaps_are_warned_of_where_nothing_goes_too() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, files) = with_backups(root.path());
    let missing = walden_archive::name::ArchivedFile::parse(&files[0x0F].0).expect("a name").key();
    archive.store().remove(&missing).expect("removed");
    let plan = planned(&archive, &Rule::KeepBackups(5));
    let gap = name(1, 0x2F);
    assert_eq!(
        plan.warnings,
        [format!("on timeline 1, 1 segment is missing, {gap} to {gap}: recovery ends before them")]
    );
    assert!(plan.reason.is_some() && !plan.is_good(), "{plan:?}");
}

/// No later file shows that the newest segments are missing, but a backup history file or `verify` does.
#[test]
fn a_lost_end_of_the_archive_is_warned_of() {
    let warnings_without = |first_lost: usize, verified: bool| {
        let root = tempfile::tempdir().expect("a folder");
        let (archive, files) = with_backups(root.path());
        if verified {
            let found = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
            verify::record(&archive, &found, false).expect("recorded");
        }
        for (name, _) in &files[first_lost..24] {
            let key = walden_archive::name::ArchivedFile::parse(name).expect("a name").key();
            archive.store().remove(&key).expect("removed");
        }
        let done = applied(&archive, &Rule::KeepBackups(1), Vec::new());
        assert!(done.is_good() == done.warnings.is_empty() && done.backups[0].problem.is_none());
        done.warnings
    };
    let missing = |first: u64, last: u64| {
        let (segments, first, last) = (last - first + 1, name(1, first), name(1, last));
        format!(
            "on timeline 1, {segments} segments are missing, {first} to {last}: recovery ends before them"
        )
    };
    // The third backup starts in 0x32, and the last segment is 0x37.
    assert_eq!(warnings_without(0x10, false), [missing(0x30, 0x32)]);
    assert_eq!(warnings_without(0x10, true), [missing(0x30, 0x37)]);
    assert_eq!(warnings_without(0x14, true), [missing(0x34, 0x37)]);
    assert_eq!(warnings_without(0x14, false), Vec::<String>::new());
}

/// PostgreSQL 17 and later: a backup of the changes since another one.
#[test]
fn an_incremental_backup_keeps_what_it_was_taken_from() {
    let root = tempfile::tempdir().expect("a folder");
    let mut files = log(1, 0x20, 24);
    let incremental = |start: u64, from: u64| {
        let (name, text) =
            history(1, start, start + 1, commit_time(start + 1), &format!("incremental {start:X}"));
        let more = format!("INCREMENTAL FROM LSN: {}\nINCREMENTAL FROM TLI: 1\n", lsn(from, 0x28));
        (name, [text, more.into_bytes()].concat())
    };
    let full = |start: u64| history(1, start, start + 1, commit_time(start + 1), "full");
    // All except the second full backup depend on the first one.
    files.extend([full(0x22), incremental(0x26, 0x22), full(0x2A), incremental(0x2E, 0x26)]);
    let archive = archive_of(root.path(), &files);
    let plan = planned(&archive, &Rule::KeepBackups(1));
    assert_eq!(plan.kept_from, Some(lsn(0x22, 0).to_string()), "{plan:?}");
    assert!(plan.backups.iter().all(|backup| backup.is_kept && backup.problem.is_none()), "{plan:?}");
    let from: Vec<Option<String>> =
        plan.backups.iter().map(|backup| backup.incremental_from.clone()).collect();
    let text = |number| Some(lsn(number, 0x28).to_string());
    assert_eq!(from, [None, text(0x22), None, text(0x26)]);
    let backups = backup::archived(&archive, SegmentSize::new(1 << 20).expect("a size"));
    let backups = backups.expect("histories");
    for (start, count) in [(0x22, 2), (0x26, 1), (0x2A, 0)] {
        assert_eq!(backup::find_dependents(&backups, lsn(start, 0x28)).len(), count, "{start:X}");
    }
    expect_own_label(root.path(), &archive, &files);
    // Incremental backups do not count separately.
    assert!(planned(&archive, &Rule::KeepBackups(3)).reason.is_some());
    // Dependencies of a kept backup stay even if a later start was chosen.
    let chosen = planned(&archive, &Rule::OlderThanSegment(name(1, 0x26)));
    assert_eq!(chosen.kept_from, Some(lsn(0x22, 0).to_string()), "{chosen:?}");
    // The chain of the last backup is broken: neither it nor its dependencies are kept for it.
    archive
        .store()
        .remove(&walden_archive::name::ArchivedFile::parse(&files[25].0).expect("a name").key())
        .expect("removed");
    let plan = planned(&archive, &Rule::KeepBackups(1));
    assert_eq!(plan.kept_from, Some(lsn(0x2A, 0).to_string()), "{plan:?}");
    let problem = plan.backups.last().and_then(|backup| backup.problem.clone()).expect("a problem");
    assert!(problem.contains("is not known"), "{problem}");
    let explicit = planned(&archive, &Rule::OlderThanSegment(name(1, 0x2E)));
    assert!(explicit.reason.is_some(), "{explicit:?}");
}

/// `pg_combinebackup` makes a full backup with the start of the incremental one, whose history file stays in
/// the archive.
fn expect_own_label(root: &Path, archive: &Archive, files: &Files) {
    let folder = root.join("combined");
    fs::create_dir_all(&folder).expect("a folder");
    let (_, history) = &files[files.len() - 1];
    let history = String::from_utf8_lossy(history);
    let label: Vec<&str> = history.lines().filter(|line| !line.starts_with("INCREMENTAL")).collect();
    let write = |folder: &Path, text: &str| {
        fs::create_dir_all(folder).expect("a folder");
        fs::write(folder.join("backup_label"), text).expect("a label");
    };
    // An incremental backup with the same start does not hide the full one.
    write(&folder.join("1"), &history);
    write(&folder.join("2"), &label.join("\n"));
    let on_disk = backup::in_folder(&folder, "1").expect("backups");
    for on_disk in [on_disk.clone(), on_disk.into_iter().rev().collect()] {
        let plan = plan(archive, &Rule::KeepBackups(1), on_disk).expect("a plan").report().clone();
        let last = plan.backups.last().expect("the combined backup");
        assert!(last.incremental_from.is_none() && last.name.contains("combined/2"), "{plan:?}");
        assert_eq!(plan.kept_from, Some(lsn(0x2E, 0).to_string()), "{plan:?}");
    }
}

#[test]
fn packs_stay_whole_and_histories_and_partial_segments_of_later_stay() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, files) = with_backups(root.path());
    let (partial_before, partial_after) =
        (format!("{}.partial", name(1, 0x21)), format!("{}.partial", name(1, 0x36)));
    let more = vec![
        ("00000002.history".to_owned(), b"1\t0/2180000\tno recovery target\n".to_vec()),
        (partial_before, files[1].1.clone()),
        (partial_after, files[0x16].1.clone()),
    ];
    push_more(&archive, root.path(), &more);
    let options = PackOptions::default().segments(Some(8)).keep(0);
    assert!(pack(&archive, &options, &|_, _| {}).expect("packed").is_good());
    let done = applied(&archive, &Rule::OlderThanBackup("backup 2A".to_owned()), Vec::new());
    // The pack of 0x20 to 0x27, the partial segment and a history file are removed; the pack of 0x28 to 0x2F
    // is needed.
    assert_eq!((done.removed_objects, done.timelines[0].removed_segments), (3, 8));
    expect_all(&archive, &files[8..24], "kept");
    expect_all(&archive, &more[..1], "a history");
    expect_all(&archive, &more[2..], "a partial segment");
}

#[test]
fn a_timeline_without_its_history_is_warned_of() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, _) = with_backups(root.path());
    let history = ("00000002.history".to_owned(), b"1\t0/3380000\tno recovery target\n".to_vec());
    push_more(&archive, root.path(), &[vec![history], log(2, 0x33, 3)].concat());
    let plan = planned(&archive, &Rule::KeepBackups(2));
    assert!(plan.is_good() && plan.warnings.is_empty(), "{plan:?}");
    archive.store().remove("history/00000002.history.wlz").expect("removed");
    let plan = planned(&archive, &Rule::KeepBackups(2));
    let expected = "00000002.history is missing: recovery from an earlier timeline cannot reach timeline 2";
    assert_eq!(plan.warnings, [expected]);
    assert!(!plan.is_good());
}

#[test]
fn a_backup_without_its_wal_does_not_count() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, files) = with_backups(root.path());
    // The last backup cannot become consistent, so the others must stay.
    let missing = walden_archive::name::ArchivedFile::parse(&files[0x13].0).expect("a name").key();
    archive.store().remove(&missing).expect("removed");
    let plan = planned(&archive, &Rule::KeepBackups(1));
    assert_eq!(plan.kept_from, Some(lsn(0x2A, 0).to_string()));
    assert_eq!(plan.backups[2].problem.as_deref(), Some("000000010000000000000033 is not in the archive"));
    // The gap is reported, too, as recovery from the kept backup ends there.
    assert!(!plan.is_good() && plan.warnings[0].contains("000000010000000000000033"), "{plan:?}");
    let by_label = planned(&archive, &Rule::OlderThanBackup("backup 32".to_owned()));
    assert!(by_label.removed_objects == 0 && !by_label.is_good());
}

#[test]
fn an_empty_history_file_neither_counts_nor_stops_anything() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, _) = with_backups(root.path());
    let empty = vec![(format!("{}.00000028.backup", name(1, 0x35)), Vec::new())];
    push_more(&archive, root.path(), &empty);
    let plan = planned(&archive, &Rule::KeepBackups(1));
    assert_eq!(plan.kept_from, Some(lsn(0x32, 0).to_string()));
    assert!(plan.backups[3].problem.is_some() && plan.backups[3].is_kept);
    // Without any other backup, nothing is removed.
    let other = tempfile::tempdir().expect("a folder");
    let alone = archive_of(other.path(), &[log(1, 0x35, 2), empty].concat());
    for rule in [Rule::KeepBackups(1), Rule::KeepSince { moment: i64::MAX, age: 0 }] {
        let plan = planned(&alone, &rule);
        assert!(plan.removed_objects == 0 && !plan.is_good(), "{rule:?}");
    }
}

#[test]
fn labels_name_one_backup_or_none() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, _) = with_backups(root.path());
    let same = vec![history(1, 0x2E, 0x2F, commit_time(0x2F), "backup 2A")];
    push_more(&archive, root.path(), &same);
    for wanted in ["backup 2A", "no such label"] {
        let plan = planned(&archive, &Rule::OlderThanBackup(wanted.to_owned()));
        assert!(plan.removed_objects == 0 && !plan.is_good(), "{wanted}: {plan:?}");
    }
    let plan = planned(&archive, &Rule::OlderThanBackup(same[0].0.clone()));
    assert_eq!(plan.kept_from, Some(lsn(0x2E, 0).to_string()));
}

#[test]
fn an_end_that_the_user_chose_leaves_a_backup() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, _) = with_backups(root.path());
    let at = |number| planned(&archive, &Rule::OlderThanSegment(name(1, number)));
    assert_eq!(at(0x30).kept_from, Some(lsn(0x30, 0).to_string()));
    assert_eq!(at(0x32).removed_objects, 0x12 + 2);
    assert!(at(0x33).removed_objects == 0 && !at(0x33).is_good());
    let lsn = planned(&archive, &Rule::OlderThanPosition(lsn(0x30, 0x1234)));
    assert_eq!(lsn, at(0x30));
    // Backups that the archive does not know, such as snapshots.
    let other = tempfile::tempdir().expect("a folder");
    let unknown = archive_of(other.path(), &log(1, 0x20, 8));
    assert_eq!(planned(&unknown, &Rule::OlderThanSegment(name(1, 0x24))).removed_objects, 4);
}

#[test]
fn days_count_from_what_the_archive_has_and_a_clock_that_was_set_makes_nothing_old() {
    const HOUR: i64 = 3_600_000_000;
    let root = tempfile::tempdir().expect("a folder");
    // One segment per hour.
    let (archive, _) = with_backups(root.path());
    let last = commit_time(0x37);
    let since = |now: i64, hours: i64| Rule::KeepSince { moment: now - hours * HOUR, age: hours * HOUR };
    // The backups end in 23, 2B and 33.
    let kept_from = |rule: &Rule| planned(&archive, rule).kept_from;
    assert_eq!(kept_from(&since(last, 2)), Some(lsn(0x32, 0).to_string()));
    assert_eq!(kept_from(&since(last, 10)), Some(lsn(0x2A, 0).to_string()));
    assert_eq!(kept_from(&since(last, 13)), Some(lsn(0x22, 0).to_string()));
    assert_eq!(kept_from(&since(last, 100)), None);
    // If the local clock is years ahead, the result is the same as with the correct time.
    assert_eq!(kept_from(&since(last + 100_000 * HOUR, 10)), Some(lsn(0x2A, 0).to_string()));
    // If the local clock is behind, more is kept.
    assert_eq!(kept_from(&since(last - 8 * HOUR, 10)), Some(lsn(0x22, 0).to_string()));
    // The server's clock was behind during a backup, which must not replace an older one.
    push_more(&archive, root.path(), &vec![history(1, 0x35, 0x36, commit_time(0x21), "clock behind")]);
    assert_eq!(kept_from(&since(last, 10)), Some(lsn(0x2A, 0).to_string()));
    // The server's clock was ahead: everything since then is kept until that time has passed.
    push_more(&archive, root.path(), &vec![history(1, 0x20, 0x21, commit_time(0x900), "clock ahead")]);
    assert_eq!(kept_from(&since(last, 2)), None);
    assert_eq!(kept_from(&Rule::KeepBackups(1)), Some(lsn(0x35, 0).to_string()));
}

/// By its time, the second backup is older than the period, but transactions of the period precede it.
#[test]
fn a_backup_with_a_wrong_time_does_not_replace_an_older_one() {
    const HOUR: i64 = 3_600_000_000;
    let root = tempfile::tempdir().expect("a folder");
    let mut files = log(1, 0x20, 24);
    files.push(history(1, 0x22, 0x23, commit_time(0x23), "first"));
    files.push(history(1, 0x2A, 0x2B, commit_time(0x10), "clock behind"));
    let archive = archive_of(root.path(), &files);
    let last = commit_time(0x37);
    let since = |hours: i64| Rule::KeepSince { moment: last - hours * HOUR, age: hours * HOUR };
    assert_eq!(planned(&archive, &since(0x37 - 0x26)).kept_from, Some(lsn(0x22, 0).to_string()));
    assert_eq!(planned(&archive, &since(0x37 - 0x29)).kept_from, Some(lsn(0x2A, 0).to_string()));
}

/// The summary of a segment has the times of its first and last transaction only.
#[test]
fn a_clock_that_was_set_within_a_segment_does_not_hide_transactions() {
    const HOUR: i64 = 3_600_000_000;
    let root = tempfile::tempdir().expect("a folder");
    let mut files = log(1, 0x20, 24);
    let times = [0x26, 0x28, 0x10].map(commit_time);
    files[6] = log_with_times(1, 0x26, &times);
    for number in 0x27..0x2C {
        files[number as usize - 0x20] = log_with_times(1, number, &[commit_time(0x10) + HOUR / 60]);
    }
    files.push(history(1, 0x22, 0x23, commit_time(0x23), "first"));
    files.push(history(1, 0x2A, 0x2B, commit_time(0x11), "clock behind"));
    let archive = archive_of(root.path(), &files);
    let last = commit_time(0x37);
    let since = |hours: i64| Rule::KeepSince { moment: last - hours * HOUR, age: hours * HOUR };
    // Transactions of the hour 28 precede the second backup.
    assert_eq!(planned(&archive, &since(0x37 - 0x27)).kept_from, Some(lsn(0x22, 0).to_string()));
    assert_eq!(planned(&archive, &since(0x37 - 0x28)).kept_from, Some(lsn(0x2A, 0).to_string()));
}

#[test]
fn backups_on_ancestors_keep_the_way_to_every_later_timeline() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, files) = with_backups(root.path());
    // Timeline 2 branches off timeline 1 in 0x2D, timeline 3 off timeline 2 in 0x31, and timeline 1
    // continues.
    let more = [
        log(2, 0x2D, 5),
        log(3, 0x31, 6),
        vec![
            ("00000002.history".to_owned(), b"1\t0/2D80000\tx\n".to_vec()),
            ("00000003.history".to_owned(), b"1\t0/2D80000\tx\n2\t0/3180000\tx\n".to_vec()),
        ],
    ]
    .concat();
    push_more(&archive, root.path(), &more);
    // The only kept backup is on timeline 1, and timelines 2 and 3 can be reached from it.
    let done = applied(&archive, &Rule::OlderThanBackup("backup 2A".to_owned()), Vec::new());
    assert_eq!(
        done.timelines.iter().map(|timeline| timeline.removed_segments).collect::<Vec<_>>(),
        [10, 0, 0]
    );
    expect_all(&archive, &files[10..24], "timeline 1");
    expect_all(&archive, &more, "timelines 2 and 3");
    // A backup on timeline 3 is the newest, although timeline 1 has higher LSNs.
    let newest = vec![history(3, 0x32, 0x33, commit_time(0x33), "on timeline 3")];
    push_more(&archive, root.path(), &newest);
    let done = applied(&archive, &Rule::KeepBackups(1), Vec::new());
    assert_eq!(done.kept_from, Some(lsn(0x32, 0).to_string()));
    expect_all(&archive, &more[6..11], "timeline 3");
    // Everything newer than the oldest kept backup stays, even on a timeline that no kept backup needs.
    expect_all(&archive, &files[0x12..24], "timeline 1");
    expect_all(&archive, &more[11..], "histories");
}

/// A standby was promoted, and the old primary continues. The newest backup does not show which of the two is
/// in use.
#[test]
fn the_only_way_to_a_newer_timeline_is_kept_unless_it_is_given_up() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, files) = with_backups(root.path());
    // Timeline 2 branches off timeline 1 in 0x2E, and the last backup is on timeline 1.
    let left = ("00000002.history".to_owned(), b"1\t0/2E80000\tx\n".to_vec());
    let more = [log(2, 0x2E, 5), vec![left]].concat();
    push_more(&archive, root.path(), &more);
    let keep = Rule::KeepBackups(1);
    let done = applied(&archive, &keep, Vec::new());
    assert_eq!(done.kept_from, Some(lsn(0x2A, 0).to_string()));
    assert!(!done.is_good() && done.warnings[0].contains("timeline 2"), "{:?}", done.warnings);
    expect_all(&archive, &files[10..24], "timeline 1");
    expect_all(&archive, &more, "timeline 2");
    // If the user names the backup, no earlier WAL is kept.
    let given_up = planned(&archive, &Rule::OlderThanBackup("backup 32".to_owned()));
    assert_eq!(given_up.kept_from, Some(lsn(0x32, 0).to_string()));
    assert!(
        !given_up.is_good() && given_up.warnings[0].contains("becomes impossible"),
        "{:?}",
        given_up.warnings
    );
    // With its own backup, the timeline needs no other.
    push_more(&archive, root.path(), &vec![history(2, 0x30, 0x31, commit_time(0x31), "of timeline 2")]);
    let own = planned(&archive, &keep);
    assert!(own.is_good() && own.kept_from == Some(lsn(0x30, 0).to_string()), "{own:?}");
}

/// A promoted copy archives into its primary's archive. The copy's newer timeline must not cause removal of
/// the primary's WAL.
#[test]
fn each_timeline_that_continues_keeps_its_newest_backups() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, files) = with_backups(root.path());
    // The copy branches off timeline 1 in 0x28, and writes more WAL than the primary.
    let more = [
        log(2, 0x28, 0x20),
        vec![
            ("00000002.history".to_owned(), b"1\t0/2880000\tx\n".to_vec()),
            history(2, 0x3A, 0x3B, commit_time(0x3B), "first of the copy"),
            history(2, 0x40, 0x41, commit_time(0x41), "second of the copy"),
        ],
    ]
    .concat();
    push_more(&archive, root.path(), &more);
    let last = commit_time(0x47);
    for rule in [Rule::KeepBackups(1), Rule::KeepSince { moment: last, age: 0 }] {
        let plan = planned(&archive, &rule);
        assert_eq!(plan.kept_from, Some(lsn(0x32, 0).to_string()), "{rule:?}: {plan:?}");
        assert!(!plan.is_good() && plan.warnings.len() == 1, "{rule:?}: {:?}", plan.warnings);
        for part in
            ["(1, 2)", &name(1, 0x32).to_string(), &name(2, 0x40).to_string(), "--older-than 0/04000000"]
        {
            assert!(plan.warnings[0].contains(part), "{part}: {:?}", plan.warnings);
        }
    }
    let two = planned(&archive, &Rule::KeepBackups(2));
    assert_eq!(two.kept_from, Some(lsn(0x2A, 0).to_string()), "{two:?}");
    let done = applied(&archive, &Rule::KeepBackups(1), Vec::new());
    assert_eq!(done.kept_from, Some(lsn(0x32, 0).to_string()));
    expect_all(&archive, &files[0x12..24], "timeline 1");
    expect_all(&archive, &more[0x0A..0x20], "timeline 2");
    // The user may abandon a timeline, with a warning.
    let given_up = applied(&archive, &Rule::OlderThanPosition(lsn(0x40, 0)), Vec::new());
    assert_eq!(given_up.kept_from, Some(lsn(0x40, 0).to_string()));
    assert!(given_up.warnings[0].contains("recovery to timeline 1 becomes impossible"), "{given_up:?}");
    assert!(planned(&archive, &Rule::KeepBackups(1)).is_good(), "nothing is ambiguous any more");
}

/// Creates a backup's folder with a manifest of these ranges.
fn backup_folder(folder: &Path, system: u64, ranges: &[(u32, Lsn, Lsn)]) -> PathBuf {
    fs::create_dir_all(folder).expect("a folder");
    let ranges: Vec<String> = ranges
        .iter()
        .map(|(timeline, start, end)| {
            format!("{{ \"Timeline\": {timeline}, \"Start-LSN\": \"{start}\", \"End-LSN\": \"{end}\" }}")
        })
        .collect();
    let mut text = format!(
        "{{ \"PostgreSQL-Backup-Manifest-Version\": 2,\n\"System-Identifier\": {system},\n\"Files\": [\n\
         {{ \"Path\": \"backup_label\", \"Size\": 225, \"Last-Modified\": \"2026-11-20 10:00:00 GMT\" }}\n],\n\
         \"WAL-Ranges\": [\n{}\n],\n",
        ranges.join(",\n")
    );
    let checksum: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    text.push_str(&format!("\"Manifest-Checksum\": \"{checksum}\"}}\n"));
    let path = folder.join("backup_manifest");
    fs::write(&path, text).expect("a manifest");
    path
}

#[test]
fn backups_of_standbys_are_known_by_their_manifests() {
    const SYSTEM: u64 = 0x1234_5678_9ABC_DEF0;
    let root = tempfile::tempdir().expect("a folder");
    let (archive, files) = with_backups(root.path());
    let more = [log(2, 0x35, 3), vec![("00000002.history".to_owned(), b"1\t0/3580000\tpromoted\n".to_vec())]]
        .concat();
    push_more(&archive, root.path(), &more);
    let folder = root.path().join("backups");
    // Taken on a standby that was promoted meanwhile, so its WAL is on two timelines.
    let ranges = [(1, lsn(0x34, 0x28), lsn(0x35, 0x8_0000)), (2, lsn(0x35, 0x8_0000), lsn(0x36, 0x100))];
    let manifest = backup_folder(&folder.join("host/promoted"), SYSTEM, &ranges);
    backup_folder(&folder.join("old"), SYSTEM, &[(1, lsn(0x26, 0x28), lsn(0x27, 0x100))]);
    let system = SYSTEM.to_string();
    let on_disk = backup::in_folder(&folder, &system).expect("backups");
    assert_eq!(on_disk.len(), 2);
    // Only backups on disk count, not three further history files.
    let report = plan(&archive, &Rule::KeepBackups(2), on_disk.clone()).expect("a plan").report().clone();
    assert_eq!(report.kept_from, Some(lsn(0x26, 0).to_string()));
    assert_eq!(report.backups.iter().filter(|backup| backup.problem.is_none()).count(), 2);
    // A backup is named by its folder or its manifest.
    for path in [manifest.as_path(), manifest.parent().expect("a folder")] {
        let found = backup::at_path(path, &system).expect("a readable backup").expect("a backup");
        assert_eq!(found.name, manifest.display().to_string());
    }
    assert_eq!(backup::at_path(&folder, &system).expect("no backup"), None);
    let done = applied(&archive, &Rule::OlderThanBackup(manifest.display().to_string()), on_disk);
    assert_eq!(done.kept_from, Some(lsn(0x34, 0).to_string()));
    expect_all(&archive, &files[0x14..24], "timeline 1");
    expect_all(&archive, &more, "timeline 2");
    // A damaged manifest, or one of another cluster, is an error.
    assert!(backup::read_manifest(&manifest, "7").is_err());
    let good = fs::read(&manifest).expect("a manifest");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&manifest, &bad).expect("a manifest");
        let found = backup::read_manifest(&manifest, &system);
        // The checksum does not cover the bytes after it, nor the letters of its name.
        assert!(found.is_err() || at > good.len() - 4, "byte {at}");
        fs::write(&manifest, &good[..at]).expect("a manifest");
        assert!(backup::read_manifest(&manifest, &system).is_err() || at == good.len() - 1, "cut at {at}");
    }
    // A backup in progress has a label but no manifest yet, so it does not count.
    let running = folder.join("running");
    fs::create_dir(&running).expect("a folder");
    let label =
        "START WAL LOCATION: 0/3700028 (file 000000010000000000000037)\nSTART TIMELINE: 1\nLABEL: running\n";
    fs::write(running.join("backup_label"), label).expect("a label");
    fs::write(&manifest, &good).expect("a manifest");
    let on_disk = backup::in_folder(&folder, &system).expect("backups");
    assert_eq!(on_disk.len(), 3);
    let report = plan(&archive, &Rule::KeepBackups(1), on_disk).expect("a plan").report().clone();
    assert_eq!(report.kept_from, Some(lsn(0x34, 0).to_string()), "{report:?}");
    assert!(backup::in_folder(&root.path().join("pg_wal"), &system).is_err());
}

/// The removals make room for the record of the first kept segment.
#[test]
fn a_full_archive_is_pruned() {
    let root = tempfile::tempdir().expect("a folder");
    let (whole, _) = with_backups(root.path());
    let has_room = AtomicBool::new(false);
    let decide = move |call: &'static str, _: &str| match call {
        "create" if !has_room.load(Relaxed) => Decision::Full,
        "discard" => {
            has_room.store(true, Relaxed);
            Decision::Pass
        }
        _ => Decision::Pass,
    };
    let full = Archive::new(Box::new(Watched::deciding(Path::new(whole.store().location()), decide)));
    let plan = plan(&full, &Rule::KeepBackups(2), Vec::new()).expect("a plan");
    let done = plan.apply(&full).expect("applied");
    // Ten segments and a backup history file.
    assert_eq!(done.removed_objects, 11);
    let mut records = Vec::new();
    full.store().list("pruned/", &mut |listed| records.push(listed.key)).expect("a list");
    assert_eq!(records, ["pruned/00000001/00000001000000000000002A.json"]);
}

/// Returns an archive in a folder that refuses to remove one of `share` objects, like a bucket with locks.
/// `seed` decides which ones.
fn keeping(place: &Path, share: u8, seed: u8) -> Archive {
    let keeps = move |key: &str| share > 0 && Sha256::digest(format!("{seed}{key}"))[0].is_multiple_of(share);
    let decide = move |call: &'static str, key: &str| match call {
        "discard" if keeps(key) => Decision::Keep,
        // An object that is not discarded may be removed only if it is not kept.
        "remove" if keeps(key) => Decision::Fail,
        _ => Decision::Pass,
    };
    Archive::new(Box::new(Watched::deciding(place, decide)))
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a copy");
        }
    }
}

/// Whichever objects a store keeps, pruning leaves neither a gap nor a backup without its start, and a later
/// run removes the rest.
#[test]
fn objects_that_the_store_keeps_leave_no_gap() {
    let folder = tempfile::tempdir().expect("a folder");
    let original = folder.path().join("original");
    let (whole, files) = with_backups(&original);
    let location = PathBuf::from(whole.store().location());
    let rule = Rule::KeepBackups(1);
    let expected = {
        let place = folder.path().join("expected");
        copy_folder(&location, &place);
        let archive = Archive::new(Box::new(Folder::new(&place)));
        applied(&archive, &rule, Vec::new());
        stored(archive.store())
    };
    let (mut incomplete, mut packed_twice) = (0, 0);
    for seed in 0..24_u8 {
        let place = folder.path().join(seed.to_string());
        copy_folder(&location, &place);
        let share = [1, 2, 5, 20][usize::from(seed % 4)];
        let archive = keeping(&place, share, seed);
        if seed % 3 == 0 {
            // Own objects and a pack have the same segments then.
            let options = || PackOptions::default().keep(0).segments(Some(6));
            let packed = pack(&archive, &options(), &|_, _| {}).expect("packed");
            let again = pack(&archive, &options(), &|_, _| {}).expect("packed");
            assert!(packed.is_good() && again.is_good() && again.packs.is_empty(), "{packed:?} {again:?}");
            packed_twice += u64::from(again.kept_objects > 0);
            expect_all(&archive, &files, "after pack");
        }
        let planned = planned(&archive, &rule);
        let done = plan(&archive, &rule, Vec::new()).expect("a plan").apply(&archive).expect("applied");
        assert_eq!(done.removed_objects + done.kept_objects, planned.removed_objects, "{done:?}");
        assert_eq!(done.removed_bytes + done.kept_bytes, planned.removed_bytes, "{done:?}");
        assert_eq!(done.kept.is_empty(), done.kept_objects == 0, "{done:?}");
        incomplete += u64::from(done.kept_objects > 0 && done.removed_objects > 0);
        let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
        assert!(verified.is_good(), "{seed}: {:?} {:?}", verified.gaps, verified.backups_without_start);
        // The locks have ended.
        let archive = keeping(&place, 0, seed);
        let done = plan(&archive, &rule, Vec::new()).expect("a plan").apply(&archive).expect("applied");
        assert_eq!((done.kept_objects, done.kept.len()), (0, 0));
        if seed % 3 != 0 {
            assert_eq!(stored(archive.store()), expected);
        }
        let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
        assert!(verified.is_good(), "{seed}: {:?}", verified.gaps);
    }
    assert!(incomplete > 2 && packed_twice > 2, "{incomplete}, {packed_twice}");
}
