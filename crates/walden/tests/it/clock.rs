//! WAL of a server whose clock was set back.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use walden_format::lsn::Lsn;
use walden_format::version::Major;
use walden_testing::writer::LogWriter;

use crate::archive::text;
use crate::material::{Run, walden};

walden_testing::tests! {
    ambiguous_times_are_warned_of,
    a_time_that_an_archive_has_twice_is_found,
    nothing_is_undone_by_an_ambiguous_time,
    an_archive_lists_the_commit_at_which_times_go_back,
    extents_are_those_of_the_clock,
}

/// From 1970 to 2000.
const EPOCH: i64 = 946_684_800;
/// The start of 2026-10-25 UTC.
const DAY: i64 = 1_792_886_400;

/// Writes WAL with a commit each minute: 100 from midnight on, then 60 from half past midnight on. Returns
/// the position of the step.
fn write_log(folder: &Path) -> Lsn {
    let mut writer = LogWriter::new(Major::V18);
    let mut commit = |minute: i64| {
        let micros = (DAY + 60 * minute - EPOCH) * 1_000_000;
        writer.main_data(15, 0, &[0; 30_000]);
        writer.main_data(1, 0, &micros.to_le_bytes())
    };
    (0..100).for_each(|minute| {
        commit(minute);
    });
    let step = commit(30);
    (31..90).for_each(|minute| {
        commit(minute);
    });
    writer.switch();
    writer.save(folder);
    step
}

struct Site {
    folder: TempDir,
    wal: PathBuf,
    step: Lsn,
}

impl Site {
    fn new() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let wal = folder.path().join("wal");
        fs::create_dir(&wal).unwrap();
        let step = write_log(&wal);
        Site { folder, wal, step }
    }

    fn expect_warning(&self, run: &Run, is_expected: bool) {
        let warning = format!(
            "commit times go back at {} from 2026-10-25T01:39:00Z to 2026-10-25T00:30:00Z, because the server's clock was set back",
            self.step
        );
        assert_eq!(run.stderr.contains(&warning), is_expected, "{warning}: {run:?}");
        assert_eq!(run.code, 0, "{run:?}");
    }
}

const AMBIGUOUS: [&str; 4] = ["--from", "2026-10-25T00:45:00Z", "--to", "2026-10-25T00:50:00Z"];
const CLEAR: [&str; 4] = ["--from", "2026-10-25T00:05:00Z", "--to", "2026-10-25T00:20:00Z"];

fn ambiguous_times_are_warned_of() {
    let site = Site::new();
    let wal = text(&site.wal);
    let run = |command: &[&str], range: &[&str]| walden(&[command, range].concat());
    for command in [&["explain", wal][..], &["explain", wal, "--format", "json"]] {
        site.expect_warning(&run(command, &AMBIGUOUS), true);
        site.expect_warning(&run(command, &CLEAR), false);
        site.expect_warning(&run(command, &[]), false);
    }
    site.expect_warning(&run(&["explain", wal, "--by", "time"], &[]), true);
    let json = run(&["explain", wal, "--format", "json"], &AMBIGUOUS).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["step_back"]["lsn"], site.step.to_string());
    let differences = run(&["diff", wal, "--at", "2026-10-25T01:00:00Z"], &[]);
    site.expect_warning(&differences, true);
    let predicted = run(&["whatif", wal, "--set", "wal_compression=lz4"], &AMBIGUOUS);
    assert!(predicted.stderr.contains("commit times go back at"), "{predicted:?}");
}

/// The archive's summaries have the first and last time of each segment. A bisection by them finds either of
/// two segments.
fn a_time_that_an_archive_has_twice_is_found() {
    let site = Site::new();
    let repo = site.folder.path().join("repo");
    let imported = walden(&["archive", "import", "--repo", text(&repo), text(&site.wal)]);
    assert_eq!(imported.code, 0, "{imported:?}");
    let of =
        |source: &Path| walden(&[&["explain", text(source), "--format", "json"][..], &AMBIGUOUS].concat());
    let (files, archive) = (of(&site.wal), of(&repo));
    site.expect_warning(&archive, true);
    let records = |run: &Run| {
        let json: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        json["records"].as_u64().unwrap()
    };
    assert_eq!(records(&archive), records(&files));
    assert!(records(&archive) > 0);
}

fn nothing_is_undone_by_an_ambiguous_time() {
    let site = Site::new();
    let rows = |range: &[&str]| {
        walden(&[&["rows", text(&site.wal), "--relation", "1663/5/16384", "--undo"][..], range].concat())
    };
    let refused = rows(&AMBIGUOUS);
    assert_eq!((refused.code, refused.stdout.as_str()), (3, ""), "{refused:?}");
    for part in
        ["error: cannot select all changes of a time: commit times go back at", "hint: give positions"]
    {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    let (from, to) = (site.step.to_string(), site.step.plus(1 << 20).to_string());
    for range in [&CLEAR[..], &["--from", &from, "--to", &to]] {
        assert!(!rows(range).stderr.contains("cannot select all changes"));
    }
}

/// The position and the times are those that `explain` warns of.
fn an_archive_lists_the_commit_at_which_times_go_back() {
    let site = Site::new();
    let repo = site.folder.path().join("repo");
    let imported = walden(&["archive", "import", "--repo", text(&repo), text(&site.wal)]);
    assert_eq!(imported.code, 0, "{imported:?}");
    for more in [&[][..], &["--all"]] {
        let list = walden(&[&["archive", "list", "--repo", text(&repo)][..], more].concat());
        let step = format!("COMMIT TIMES GO BACK at {}, from 2026-10-25 01:39:00", site.step);
        assert!(
            list.stdout.contains(&step) && list.stdout.contains(" to 2026-10-25 00:30:00"),
            "{step}: {list:?}"
        );
    }
}

/// The first transaction was committed while the clock was ahead, and the last one is not the latest.
fn extents_are_those_of_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let wal = folder.path().join("wal");
    fs::create_dir(&wal).unwrap();
    let mut writer = LogWriter::new(Major::V18);
    for minute in [200, 60, 5, 62, 90, 80] {
        for _ in 0..40 {
            writer.main_data(15, 0, &[0; 30_000]);
        }
        let micros = (DAY + 60 * minute - EPOCH) * 1_000_000;
        writer.main_data(1, 0, &micros.to_le_bytes());
    }
    writer.switch();
    writer.save(&wal);
    let repo = folder.path().join("repo");
    let imported = walden(&["archive", "import", "--repo", text(&repo), text(&wal)]);
    assert_eq!(imported.code, 0, "{imported:?}");
    for source in [&wal, &repo] {
        let range = ["--from", "2026-10-25T02:30:00Z", "--to", "2026-10-25T02:40:00Z"];
        let run = walden(&[&["explain", text(source)][..], &range].concat());
        let extent = "ended from 2026-10-25T00:05:00Z to 2026-10-25T03:20:00Z";
        assert!(run.stderr.contains("the range has no WAL") && run.stderr.contains(extent), "{run:?}");
        let run = walden(&["explain", text(source), "--from", "2026-10-25T04:00:00Z"]);
        assert!(run.stderr.contains("the last one ends at 2026-10-25T03:20:00Z"), "{run:?}");
        assert!(run.stderr.contains(extent), "{run:?}");
    }
}
