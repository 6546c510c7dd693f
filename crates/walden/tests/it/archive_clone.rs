//! Servers of the archive's cluster with another history: a clone, and servers that were promoted to the same
//! timeline. None of their files may enter the archive.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use postgres::Client;
use serde_json::Value;
use walden_archive::Archive;
use walden_archive::name::ArchivedFile;
use walden_archive::push::{PushOptions, ready_files};
use walden_archive::serve::Resident;
use walden_archive::store::Folder;
use walden_lab::{Cluster, ClusterBuilder, Installation, StopMode};
use walden_testing::{Outcome, postgres};

use crate::archive::{json, text};
use crate::material::{Run, make_archive, walden};

walden_testing::tests! {
    nothing_of_a_clone_is_archived_behind_what_is_refused,
    nothing_of_a_second_promotion_is_archived_behind_what_is_refused,
    names_that_a_clone_has_taken_are_reported,
    an_archive_is_not_filled_from_a_clone,
    an_archive_is_not_filled_from_a_second_promotion,
}

/// A primary and its archive, which has all WAL written before the primary was stopped and copied.
struct Site {
    installation: Installation,
    primary: Cluster,
    repo: PathBuf,
    base: PathBuf,
}

impl Site {
    fn new() -> Result<Site, walden_testing::Missing> {
        let installation = postgres(18)?;
        // The tests push files themselves.
        let primary = ClusterBuilder::new(installation.clone())
            .wal_segsize_mb(1)
            .setting("wal_keep_size", "100MB")
            .setting("autovacuum", "off")
            .setting("archive_mode", "on")
            .setting("archive_command", "/bin/false")
            .start()
            .unwrap();
        let repo = primary.make_folder("repo").unwrap();
        make_archive(&repo);
        let mut client = primary.client("postgres").unwrap();
        client.batch_execute("CREATE TABLE t (id int, v text)").unwrap();
        switch(&mut client, 1000);
        drop(client);
        let base = primary.dir().join("base");
        let site = Site { installation, primary, repo, base };
        site.copy_to(&site.base);
        site.primary.start().unwrap();
        Ok(site)
    }

    /// Stops the primary, archives all ready files, and copies its data directory with the WAL.
    fn copy_to(&self, folder: &Path) {
        self.primary.stop(StopMode::Fast).unwrap();
        for name in ready(&self.primary) {
            let pushed = self.push(&self.primary, &name, &["--look-ahead", "0"]);
            assert_eq!(pushed.code, 0, "{pushed:?}");
            mark_as_done(&self.primary, &name);
        }
        self.primary.copy_data(folder).unwrap();
        let wal = wal(&self.primary);
        for entry in fs::read_dir(&wal).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), folder.join("pg_wal").join(entry.file_name())).unwrap();
            }
        }
    }

    /// Starts a server on a copy.
    fn clone_of(&self, folder: &Path) -> Cluster {
        ClusterBuilder::new(self.installation.clone()).copy_of(folder).start().unwrap()
    }

    /// Starts and promotes a server on a copy, and writes some segments on its new timeline.
    fn promoted(&self, folder: &Path, rows: i32) -> Cluster {
        let standby = ClusterBuilder::new(self.installation.clone())
            .copy_of(folder)
            .start_after(|data| Ok(fs::write(data.join("standby.signal"), "")?))
            .unwrap();
        let mut client = standby.client("postgres").unwrap();
        client.batch_execute("SELECT pg_promote()").unwrap();
        write_segments(&standby, rows);
        standby
    }

    fn push(&self, server: &Cluster, name: &str, more: &[&str]) -> Run {
        let path = wal(server).join(name);
        walden(&[&["archive", "push", "--repo", text(&self.repo), text(&path)][..], more].concat())
    }

    fn check(&self, server: &Cluster, more: &[&str]) -> (i32, Value) {
        let dsn = server.dsn("postgres");
        let all = ["archive", "check", "--format", "json", "--repo", text(&self.repo), "--against", &dsn];
        let run = walden(&[&all[..], more].concat());
        let report = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
        (run.code, report)
    }

    /// Expects that a file identifies a server's different history, and that nothing is filled from that
    /// server.
    fn expect_other_history(&self, server: &Cluster, file: &str) {
        let before = self.objects();
        for more in [&[][..], &["--repair"]] {
            let (code, report) = self.check(server, more);
            assert_eq!((code, report["other_history"]["file"].as_str()), (1, Some(file)), "{report:#}");
            for key in ["lsn", "problem", "hint"] {
                assert!(!report["other_history"][key].as_str().unwrap().is_empty(), "{report:#}");
            }
            let missing = report["missing"].as_array().unwrap();
            assert!(missing.iter().all(|one| one["outcome"] == "found"), "{report:#}");
        }
        assert_eq!(self.objects(), before);
    }

    fn objects(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        for folder in ["wal", "history", "backup"] {
            files(&self.repo.join(folder), &mut found);
        }
        found
    }

    fn has(&self, name: &str) -> bool {
        self.repo.join(ArchivedFile::parse(name).unwrap().key()).exists()
    }
}

fn files(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), found);
        } else {
            found.insert(entry.path());
        }
    }
}

fn wal(server: &Cluster) -> PathBuf {
    server.data_dir().join("pg_wal")
}

/// Returns the server's ready files, in PostgreSQL's order.
fn ready(server: &Cluster) -> Vec<String> {
    ready_files(&wal(server)).unwrap().iter().map(ArchivedFile::to_string).collect()
}

fn mark_as_done(server: &Cluster, name: &str) {
    let mark = |ending: &str| wal(server).join("archive_status").join(format!("{name}.{ending}"));
    fs::rename(mark("ready"), mark("done")).unwrap();
}

/// Completes a segment. Servers that write different numbers of rows write different records at the same
/// LSNs.
fn switch(client: &mut Client, rows: i32) {
    let insert = format!("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, {rows}) i");
    client.batch_execute(&insert).unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
}

/// Writes three segments, and returns their names.
fn write_segments(server: &Cluster, rows: i32) -> Vec<String> {
    let mut client = server.client("postgres").unwrap();
    for _ in 0..3 {
        switch(&mut client, rows);
    }
    let mut names = ready(server);
    names.retain(|name| !name.contains('.'));
    names
}

/// A clone's segment is refused. The following segments would take names that the primary is going to use.
fn nothing_of_a_clone_is_archived_behind_what_is_refused() -> Outcome {
    let site = Site::new()?;
    let clone = site.clone_of(&site.base);
    let names = write_segments(&site.primary, 1000);
    assert_eq!(write_segments(&clone, 500), names);
    assert_eq!(site.push(&site.primary, &names[0], &["--look-ahead", "0"]).code, 0);
    let before = site.objects();
    // PostgreSQL retries the same segment.
    for _ in 0..2 {
        let refused = site.push(&clone, &names[0], &[]);
        assert!(refused.code == 1 && refused.stderr.contains("with other content"), "{refused:?}");
        assert_eq!(site.objects(), before);
    }
    // The same applies to the resident process.
    let archive = Archive::new(Box::new(Folder::new(&site.repo)));
    let resident = Resident::new(archive, wal(&clone), PushOptions::default());
    let file = ArchivedFile::parse(&names[0]).unwrap();
    let asked = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| resident.work(&|_| {}));
        }
        let asked: Vec<_> = (0..3)
            .map(|_| {
                let asked = resident.archive(file, &mut || ControlFlow::Continue(()));
                std::thread::sleep(Duration::from_millis(300));
                asked
            })
            .collect();
        resident.stop();
        asked
    });
    assert!(asked.iter().all(|asked| matches!(asked, Ok(Err(_)))), "{asked:?}");
    assert_eq!(site.objects(), before);
    // The primary continues.
    let pushed = site.push(&site.primary, &names[0], &[]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    assert!(names.iter().all(|name| site.has(name)), "{:?}", site.objects());
    let verified = walden(&["archive", "verify", "--repo", text(&site.repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    Ok(())
}

/// Two servers that do not know each other choose the same timeline.
fn nothing_of_a_second_promotion_is_archived_behind_what_is_refused() -> Outcome {
    let site = Site::new()?;
    let first = site.promoted(&site.base, 1000);
    let pushed = site.push(&first, "00000002.history", &[]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    for name in ready(&first) {
        assert!(site.has(&name), "{name}");
    }
    let before = site.objects();
    // Promoted at the same LSN: the history is identical, but the segments differ.
    let second = site.promoted(&site.base, 500);
    let pushed = site.push(&second, "00000002.history", &[]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    let segment = ready(&second).into_iter().find(|name| !name.contains('.')).unwrap();
    let refused = site.push(&second, &segment, &[]);
    assert!(refused.code == 1 && refused.stderr.contains("with other content"), "{refused:?}");
    assert_eq!(site.objects(), before);
    // Promoted at another LSN.
    write_segments(&site.primary, 1000);
    let later = site.primary.dir().join("later");
    site.copy_to(&later);
    let before = site.objects();
    let third = site.promoted(&later, 500);
    assert!(ready(&third).iter().any(|name| name.starts_with("00000002") && !site.has(name)));
    let pushed = site.push(&third, "00000002.history", &[]);
    assert!(pushed.code == 1 && pushed.stderr.contains("with other content"), "{pushed:?}");
    assert_eq!(site.objects(), before);
    Ok(())
}

/// A clone is busier than its primary and archives first. From then on, the primary's files are refused.
fn names_that_a_clone_has_taken_are_reported() -> Outcome {
    let site = Site::new()?;
    let clone = site.clone_of(&site.base);
    let names = write_segments(&clone, 500);
    let pushed = site.push(&clone, &names[0], &[]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    let (dsn, data) = (site.primary.dsn("postgres"), site.primary.data_dir());
    let report = |command: [&str; 3]| {
        let run = walden(&["archive", command[0], "--repo", text(&site.repo), command[1], command[2]]);
        assert_eq!(run.code, 1, "{run:?}");
        run.stdout
    };
    // The primary has not written the segments yet.
    for command in [["status", "--dsn", &dsn], ["check", "--dsn", &dsn]] {
        let found = report(command);
        assert!(found.contains("another server archived names that this server has yet to write"), "{found}");
    }
    assert_eq!(write_segments(&site.primary, 1000), names);
    let data = text(&data);
    let by_files = [["status", "--pgdata", data], ["check", "--data", data]];
    for command in [["status", "--dsn", &dsn], ["check", "--dsn", &dsn]].into_iter().chain(by_files) {
        let found = report(command);
        for part in ["archived already with other content", &names[0], "stop the other"] {
            assert!(found.contains(part), "{command:?}: {part}: {found}");
        }
    }
    // Identical content counts as the server's own.
    let own = write_segments(&clone, 500);
    let found = walden(&["archive", "check", "--repo", text(&site.repo), "--dsn", &clone.dsn("postgres")]);
    assert!(own.len() > names.len() && !found.stdout.contains("another server archived"), "{found:?}");
    Ok(())
}

fn an_archive_is_not_filled_from_a_clone() -> Outcome {
    let site = Site::new()?;
    let clone = site.clone_of(&site.base);
    let names = write_segments(&site.primary, 1000);
    assert_eq!(write_segments(&clone, 500), names);
    assert_eq!(site.push(&site.primary, &names[0], &["--look-ahead", "0"]).code, 0);
    // As a standby marks received segments.
    for server in [&site.primary, &clone] {
        names.iter().for_each(|name| mark_as_done(server, name));
    }
    site.expect_other_history(&clone, &names[0]);
    let dsn = clone.dsn("postgres");
    let shown = walden(&["archive", "check", "--repo", text(&site.repo), "--against", &dsn, "--repair"]);
    assert!(shown.code == 1 && shown.stdout.contains("ANOTHER HISTORY at 0/"), "{shown:?}");
    assert!(shown.stdout.contains("Nothing is archived from this server"), "{shown:?}");
    // Without a common segment, detected by the link to the previous one.
    fs::remove_file(wal(&clone).join(&names[0])).unwrap();
    site.expect_other_history(&clone, &names[1]);
    // The primary has the segments that the archive lacks.
    let (code, report) = site.check(&site.primary, &["--repair"]);
    let missing = report["missing"].as_array().unwrap();
    let is_filled = missing.iter().all(|one| one["outcome"] == "filled");
    assert!(code == 0 && missing.len() == 2 && is_filled, "{report:#}");
    assert!(report["other_history"].is_null(), "{report:#}");
    let listing = json(&["archive", "list", "--format", "json", "--repo", text(&site.repo)]);
    assert!(listing["timelines"][0]["gaps"].as_array().unwrap().is_empty(), "{listing:#}");
    Ok(())
}

fn an_archive_is_not_filled_from_a_second_promotion() -> Outcome {
    let site = Site::new()?;
    let first = site.promoted(&site.base, 1000);
    assert_eq!(site.push(&first, "00000002.history", &[]).code, 0);
    // The first server's later segments are lost.
    let names: Vec<String> = ready(&first).into_iter().filter(|name| !name.contains('.')).collect();
    for name in &names[1..] {
        fs::remove_file(site.repo.join(ArchivedFile::parse(name).unwrap().key())).unwrap();
    }
    let second = site.promoted(&site.base, 500);
    ready(&second).iter().for_each(|name| mark_as_done(&second, name));
    site.expect_other_history(&second, &names[0]);
    // Promoted at another LSN: detected by the history.
    write_segments(&site.primary, 1000);
    let later = site.primary.dir().join("later");
    site.copy_to(&later);
    let third = site.promoted(&later, 500);
    ready(&third).iter().for_each(|name| mark_as_done(&third, name));
    site.expect_other_history(&third, "00000002.history");
    Ok(())
}
