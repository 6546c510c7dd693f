//! Servers whose WAL was started again: by `pg_resetwal`, with segments of another size too, and by
//! recovery into an archive of its own.

use std::fs;
use std::path::{Path, PathBuf};

use walden_format::lsn::Lsn;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Missing, Outcome, postgres};

use crate::archive::{program_for, recovered, text, wait_until_archived};
use crate::archive_care::{switch, wait};
use crate::material::{Run, make_archive, walden};

walden_testing::tests! {
    a_reset_is_named_with_a_remedy_that_works on [15, 19],
    wal_before_and_after_a_reset_is_read on [15, 19],
    segments_of_another_size_are_refused,
    wal_of_wal_level_minimal_is_named on [15, 19],
    a_restored_server_archives_into_an_archive_of_its_own,
}

/// A server that archives.
struct Site {
    cluster: Cluster,
    program: PathBuf,
}

impl Site {
    /// Starts a server with segments of 1 MB that archives into the folder `repo`, as it does from its
    /// first segment on.
    fn start(version: u32) -> Result<Site, Missing> {
        let cluster = ClusterBuilder::new(postgres(version)?)
            .wal_segsize_mb(1)
            .setting("archive_mode", "on")
            .setting("autovacuum", "off")
            .setting("checkpoint_timeout", "1h")
            .setting("max_wal_size", "200MB")
            .start()
            .unwrap();
        let program = program_for(&cluster);
        let site = Site { cluster, program };
        let repo = site.make_archive("repo");
        site.archive_into(&repo);
        site.cluster.client("postgres").unwrap().batch_execute("CREATE TABLE t (i int, t text)").unwrap();
        Ok(site)
    }

    fn make_archive(&self, name: &str) -> PathBuf {
        let repo = self.cluster.make_folder(name).unwrap();
        make_archive(&repo);
        repo
    }

    fn archive_into(&self, repo: &Path) {
        let push = format!("{} archive push --repo {} %p", self.program.display(), repo.display());
        self.cluster.configure(&[("archive_command", push)]).unwrap();
        self.cluster.reload();
    }

    /// Writes and archives segments.
    fn write(&self, segments: i32) {
        let mut client = self.cluster.client("postgres").unwrap();
        (0..segments).for_each(|round| switch(&mut client, round));
        wait_until_archived(&mut client);
    }

    /// Runs a program of the server on its data directory.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), Missing> {
        let Some(found) = self.cluster.installation().program(program) else {
            return Err(Missing {
                reason: format!("needs {program} of PostgreSQL {}", self.cluster.major()),
            });
        };
        let mut command = walden_server::account::command(&found, self.cluster.dir()).unwrap();
        let done = command.arg("-D").arg(self.cluster.data_dir()).args(arguments).output().unwrap();
        assert!(done.status.success(), "{program}: {done:?}");
        Ok(())
    }

    /// `status`, or another command, by files and by SQL.
    fn ask(&self, command: &str, repo: &Path) -> [Run; 2] {
        let (dsn, data) = (self.cluster.dsn("postgres"), self.cluster.data_dir());
        [["--data", text(&data)], ["--dsn", &dsn]]
            .map(|server| walden(&[&["archive", command, "--repo", text(repo)][..], &server[..]].concat()))
    }

    fn against(&self, repo: &Path) -> Run {
        walden(&["archive", "check", "--repo", text(repo), "--against", &self.cluster.dsn("postgres")])
    }

    /// Takes a base backup.
    fn back_up(&self, name: &str) -> Result<PathBuf, Missing> {
        let Some(found) = self.cluster.installation().program("pg_basebackup") else {
            return Err(Missing { reason: "needs pg_basebackup".to_owned() });
        };
        let backup = self.cluster.dir().join(name);
        let mut command = walden_server::account::command(&found, self.cluster.dir()).unwrap();
        command.args(["-X", "none", "-c", "fast", "-d", &self.cluster.dsn("postgres"), "-D"]).arg(&backup);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{done:?}");
        Ok(backup)
    }
}

fn drill(site: &Site, repo: &Path, backup: &Path) -> Run {
    let postgres = site.cluster.installation().program("postgres").unwrap();
    let bin = text(postgres.parent().unwrap());
    walden(&["archive", "drill", "--repo", text(repo), "--base", text(backup), "--bin", bin])
}

/// The WAL of a crashed server ends within its last segment, and the next one is from after `pg_resetwal`.
/// The first is no damage.
fn wal_before_and_after_a_reset_is_read(version: u32) -> Outcome {
    let site = Site::start(version)?;
    let base = site.back_up("before")?;
    site.write(2);
    let mut client = site.cluster.client("postgres").unwrap();
    client.batch_execute("INSERT INTO t VALUES (-1, 'before')").unwrap();
    let last = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())";
    let last: String = client.query_one(last, &[]).unwrap().get(0);
    drop(client);
    site.cluster.crash().unwrap();
    let wal = site.cluster.data_dir().join("pg_wal");
    let mixed = site.cluster.dir().join("mixed");
    fs::create_dir(&mixed).unwrap();
    let copy = || {
        for entry in fs::read_dir(&wal).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if name.len() != 24 || mixed.join(&name).exists() {
                continue;
            }
            fs::copy(entry.path(), mixed.join(name)).unwrap();
        }
    };
    // pg_resetwal continues after the last file, also after one that has no WAL yet.
    for entry in fs::read_dir(&wal).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.len() == 24 && name > last {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    copy();
    site.run("pg_resetwal", &["-f"])?;
    site.cluster.start().unwrap();
    let mut client = site.cluster.client("postgres").unwrap();
    client.batch_execute("INSERT INTO t VALUES (-2, 'after')").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    copy();
    let mixed = text(&mixed);
    let warning = "warning: pg_resetwal restarted the WAL at 0/";
    for arguments in [&["explain", mixed][..], &["whatif", mixed, "--set", "wal_compression=pglz"]] {
        let run = walden(arguments);
        assert!(run.code == 0 && run.stderr.contains(warning), "{run:?}");
        assert!(!run.stderr.contains("error") && !run.stderr.contains("missing"), "{run:?}");
    }
    let rows = |more: &[&str]| {
        walden(&[&["rows", mixed, "--base", text(&base), "--relation", "t", "--undo"], more].concat())
    };
    let all = rows(&[]);
    assert!(
        all.code == 1 && all.stdout.contains("-- Changes may be missing: pg_resetwal restarted"),
        "{all:?}"
    );
    assert!(all.stdout.contains("before") && !all.stderr.contains("damaged"), "{all:?}");
    // As the note says.
    let (_, end) = all.stderr.split_once("(--to ").unwrap();
    let until = rows(&["--to", end.split(')').next().unwrap()]);
    assert!(until.code == 0 && until.stdout.contains("-- Complete"), "{until:?}");
    // A range after the WAL that continues the base backup.
    let from = rows(&["--from", end.split(')').next().unwrap()]);
    let because = "and the WAL that continues the base backup";
    assert!(from.code == 3 && from.stderr.contains(because), "{from:?}");
    assert!(from.stderr.contains("pg_resetwal restarted the WAL at 0/"), "{from:?}");

    // An archive and a pack of the same segments.
    let repo = site.cluster.dir().join("both");
    let imported = walden(&["archive", "import", "--repo", text(&repo), mixed]);
    // An archive gets no segment in which the WAL of a crashed server ends.
    assert!(imported.stdout.contains("refused   1\n"), "{imported:?}");
    assert!(imported.stdout.contains(&format!("REFUSED: {last}")), "{imported:?}");
    let pack = site.cluster.dir().join("both.wpk");
    let packed = walden(&["compress", "--pack", mixed, "-o", text(&pack)]);
    assert_eq!(packed.code, 0, "{packed:?}");
    let mut sources = vec![repo.clone(), pack];
    // Segments of an archive's packs.
    let packed = walden(&["archive", "pack", "--repo", text(&repo), "--keep", "0"]);
    assert!(packed.code == 0, "{packed:?}");
    sources.push(repo.clone());
    for source in &sources {
        for arguments in [&["explain"][..], &["whatif", "--set", "wal_compression=pglz"]] {
            let run = walden(&[arguments, &[text(source)]].concat());
            assert!(run.code == 0 && run.stderr.contains(warning), "{run:?}");
            assert!(!run.stderr.contains("error"), "{run:?}");
        }
        let all = walden(&["rows", text(source), "--base", text(&base), "--relation", "t", "--undo"]);
        let has_crashed_segment = *source != repo;
        assert!(all.code == 1 && all.stdout.contains("'before'") == has_crashed_segment, "{all:?}");
        assert!(all.stdout.contains("-- Changes may be missing: pg_resetwal restarted"), "{all:?}");
    }

    // Recovery ends at the last record before the restart, which the error names.
    for source in [&["--wal", mixed][..], &["--repo", text(&repo)]] {
        let restore = |to: &str| {
            let target = ["--base", text(&base), "-o", "r", "--dry-run", "--to", to];
            walden(&[&["restore"][..], source, &target].concat())
        };
        let run = restore("latest");
        assert!(run.code == 3 && run.stderr.contains("pg_resetwal restarted the WAL at 0/"), "{run:?}");
        assert!(run.stderr.contains("hint: choose that record or an earlier target"), "{run:?}");
        let (_, last) = run.stderr.split_once("the last record before that, at ").unwrap();
        let last = last.split_whitespace().next().unwrap();
        let run = restore(last);
        assert_eq!(run.code, 0, "{run:?}");
        let behind = last.parse::<Lsn>().unwrap().plus(8).to_string();
        let run = restore(&behind);
        assert!(run.code == 3 && run.stderr.contains(&format!("before that, at {last}")), "{run:?}");
    }
    Ok(())
}

fn a_reset_is_named_with_a_remedy_that_works(version: u32) -> Outcome {
    let site = Site::start(version)?;
    let repo = site.cluster.dir().join("repo");
    site.write(2);
    let old_backup = site.back_up("old")?;
    site.write(4);
    // The last checkpoint lies some segments back, and pg_wal is lost.
    site.cluster.crash().unwrap();
    let wal = site.cluster.data_dir().join("pg_wal");
    for folder in [wal.clone(), wal.join("archive_status")] {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
    site.run("pg_resetwal", &["-f"])?;
    site.cluster.start().unwrap();
    let mut client = site.cluster.client("postgres").unwrap();
    (0..2).for_each(|round| switch(&mut client, round));
    let failed = "SELECT failed_count > 0 FROM pg_stat_archiver";
    wait(|| client.query_one(failed, &[]).unwrap().get(0));
    let log = fs::read_to_string(site.cluster.log_path()).unwrap();
    assert!(log.contains("a pg_resetwal checkpoint"), "{log}");
    let [status, check] = [site.ask("status", &repo), site.ask("check", &repo)];
    for run in status.iter().chain(&check).chain([&site.against(&repo)]) {
        assert!(run.code == 1 && run.stdout.contains("pg_resetwal"), "{run:?}");
        assert!(run.stdout.contains("new base backup"), "{run:?}");
        assert!(!run.stdout.contains("wo servers write the same timeline"), "{run:?}");
    }
    // The remedy: a new archive, and a new base backup.
    let new = site.make_archive("new");
    site.archive_into(&new);
    let waits = "SELECT NOT EXISTS (SELECT FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready')";
    wait(|| client.query_one(waits, &[]).unwrap().get(0));
    client.batch_execute("SELECT pg_stat_reset_shared('archiver')").unwrap();
    drop(client);
    let backup = site.back_up("new-backup")?;
    site.write(2);
    for run in site.ask("status", &new) {
        assert!(run.code == 0 && run.stdout.starts_with("OK"), "{run:?}");
    }
    let drilled = drill(&site, &new, &backup);
    assert_eq!(drilled.code, 0, "{drilled:?}");
    // The old archive is as good as before.
    let drilled = drill(&site, &repo, &old_backup);
    assert_eq!(drilled.code, 0, "{drilled:?}");

    // After a clean stop, the reset takes a later name, and leaves a gap in the archive.
    site.cluster.stop(StopMode::Fast).unwrap();
    site.run("pg_resetwal", &[])?;
    site.cluster.start().unwrap();
    site.write(2);
    let list = walden(&["archive", "list", "--repo", text(&new)]);
    assert!(list.stdout.contains("pg_resetwal restarted the WAL at "), "{list:?}");
    let [status, check] = [site.ask("status", &new), site.ask("check", &new)];
    for run in status.iter().chain(&check) {
        assert!(run.code == 1 && run.stdout.contains("pg_resetwal restarted the WAL at "), "{run:?}");
    }
    let backup = site.back_up("newer-backup")?;
    site.write(1);
    let list = walden(&["archive", "list", "--format", "json", "--repo", text(&new)]);
    let list: serde_json::Value = serde_json::from_str(&list.stdout).unwrap();
    let gap = &list["timelines"][0]["gaps"][0];
    let [first, last] = ["first", "last"].map(|end| gap[end].as_str().unwrap());
    let acknowledge = ["archive", "acknowledge-gap", "--repo", text(&new), "--reason", "pg_resetwal"];
    let acknowledged = walden(&[&acknowledge[..], &[&format!("{first}..{last}")]].concat());
    assert_eq!(acknowledged.code, 0, "{acknowledged:?}");
    for run in site.ask("status", &new) {
        assert!(run.code == 0 && run.stdout.starts_with("OK"), "{run:?}");
    }
    assert_eq!(drill(&site, &new, &backup).code, 0);
    site.cluster.stop(StopMode::Fast).unwrap();
    Ok(())
}

/// The server runs with `wal_level = minimal` for a moment, within one segment, so that no segment is
/// missing.
fn wal_of_wal_level_minimal_is_named(version: u32) -> Outcome {
    let site = Site::start(version)?;
    let repo = site.cluster.dir().join("repo");
    site.write(2);
    let old_backup = site.back_up("old")?;
    let restart = |wal_level: &str, archive_mode: &str, max_wal_senders: &str| {
        let settings =
            [("wal_level", wal_level), ("archive_mode", archive_mode), ("max_wal_senders", max_wal_senders)];
        site.cluster.configure(&settings).unwrap();
        site.cluster.restart(StopMode::Fast).unwrap();
    };
    restart("minimal", "off", "0");
    site.cluster.client("postgres").unwrap().batch_execute("CREATE TABLE bulk AS SELECT 1").unwrap();
    restart("replica", "on", "4");
    site.write(2);
    let backup = site.back_up("new")?;
    site.write(3);
    let verify = walden(&["archive", "verify", "--repo", text(&repo)]);
    let list = walden(&["archive", "list", "--repo", text(&repo)]);
    assert!(list.stdout.contains("from a base backup that started in"), "{list:?}");
    let [status, check] = [site.ask("status", &repo), site.ask("check", &repo)];
    for run in status.iter().chain(&check).chain([&list, &verify]) {
        assert!(run.stdout.contains("the server ran with wal_level = minimal from 0/"), "{run:?}");
    }
    for run in status.iter().chain([&list, &verify]) {
        assert_eq!(run.code, 0, "{run:?}");
    }
    let json = walden(&["archive", "list", "--format", "json", "--repo", text(&repo)]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let ranges = json["timelines"][0]["restorable"].as_array().unwrap();
    assert!(ranges.len() == 2 && !ranges[1]["base_backup_from"].is_null(), "{json:#}");
    // A moment in the last range.
    let last = ranges[1]["last_commit_time"].as_i64().unwrap();
    let moment = walden_format::payload::Timestamp::from_unix_micros(last - 1).to_string();
    let moment = moment.replace(" UTC", "+00");
    let get_until = |base: &Path, output: &str| {
        let output = site.cluster.dir().join(output);
        let until = ["archive", "get", "--repo", text(&repo), "--until", &moment, "--base", text(base), "-o"];
        walden(&[&until[..], &[text(&output)]].concat())
    };
    let refused = get_until(&old_backup, "refused");
    assert!(refused.code == 1 && refused.stderr.contains("wal_level = minimal"), "{refused:?}");
    assert_eq!(get_until(&backup, "files").code, 0);
    // PostgreSQL agrees.
    assert_eq!(drill(&site, &repo, &old_backup).code, 1);
    assert_eq!(drill(&site, &repo, &backup).code, 0);
    Ok(())
}

fn segments_of_another_size_are_refused() -> Outcome {
    let site = Site::start(15)?;
    let repo = site.cluster.dir().join("repo");
    site.write(3);
    let name = first_segment(&repo);
    site.cluster.stop(StopMode::Fast).unwrap();
    let target = site.cluster.data_dir().join("pg_wal/RECOVERYXLOG");
    let get = || walden(&["archive", "get", "--prefetch", "0", "--repo", text(&repo), &name, text(&target)]);
    assert_eq!(get().code, 0);
    fs::remove_file(&target).unwrap();
    site.run("pg_resetwal", &["--wal-segsize=2"])?;
    let sizes = |run: &Run| {
        let text = run.stdout.clone() + &run.stderr;
        assert!(text.contains("1 MB") && text.contains("2 MB") && text.contains("--wal-segsize"), "{run:?}");
        assert!(!text.contains("ANOTHER HISTORY"), "{run:?}");
    };
    // Recovery must stop.
    let got = get();
    assert!(got.code == 200 && !target.exists(), "{got:?}");
    sizes(&got);
    let elsewhere = site.cluster.dir().join("elsewhere");
    let by_hand = walden(&["archive", "get", "--repo", text(&repo), &name, text(&elsewhere)]);
    assert_eq!(by_hand.code, 0, "{by_hand:?}");
    let stopped = site.cluster.dir().join("stopped");
    site.cluster.copy_data(&stopped).unwrap();
    let folder = site.cluster.dir().join("export");
    let export = [
        "archive",
        "export",
        "--repo",
        text(&repo),
        "--base",
        text(&stopped),
        "-o",
        text(&folder),
        "--until",
    ];
    let exported = walden(&[&export[..], &["2030-01-01 00:00+00"]].concat());
    let drilled = drill(&site, &repo, &stopped);
    for run in [&exported, &drilled] {
        assert_eq!(run.code, 3, "{run:?}");
        sizes(run);
    }
    site.cluster.start().unwrap();
    let against = site.against(&repo);
    assert_eq!(against.code, 3, "{against:?}");
    sizes(&against);
    site.cluster.stop(StopMode::Fast).unwrap();
    Ok(())
}

fn first_segment(repo: &Path) -> String {
    let list = walden(&["archive", "list", "--format", "json", "--repo", text(repo)]);
    let list: serde_json::Value = serde_json::from_str(&list.stdout).unwrap();
    list["timelines"][0]["first_segment"].as_str().unwrap().to_owned()
}

fn a_restored_server_archives_into_an_archive_of_its_own() -> Outcome {
    let site = Site::start(15)?;
    let repo = site.cluster.dir().join("repo");
    site.write(3);
    let backup = site.back_up("backup")?;
    site.write(3);
    site.cluster.stop(StopMode::Fast).unwrap();
    // As in a copy of a whole folder, the segments before the backup are there with their marks.
    let marks = backup.join("pg_wal/archive_status");
    for entry in fs::read_dir(site.cluster.data_dir().join("pg_wal/archive_status")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), marks.join(entry.file_name())).unwrap();
    }
    walden_server::account::chown_all(&backup).unwrap();
    let own = site.make_archive("own");
    let command = |call: &str, repo: &Path| {
        format!("{} archive {call} --repo {}", site.program.display(), repo.display())
    };
    let get = format!("{} %f \"%p\"", command("get", &repo));
    let push = format!("{} %p", command("push", &own));
    let installation = site.cluster.installation().clone();
    let settings = [("restore_command", get.as_str()), ("archive_mode", "on"), ("archive_command", &push)];
    let restored =
        Site { cluster: recovered(&installation, &backup, &settings), program: site.program.clone() };
    let history = own.join("history/00000002.history.wlz");
    wait(|| history.exists());
    let marks = restored.cluster.data_dir().join("pg_wal/archive_status");
    let is_of_parent = |name: &str| name.starts_with("00000001") && name.ends_with(".done");
    let has_marks = fs::read_dir(marks).unwrap();
    let mut names = has_marks.map(|mark| mark.unwrap().file_name().into_string().unwrap());
    assert!(names.any(|name| is_of_parent(&name)), "no mark came with the copy");
    let expect_no_claim = |repo: &Path, is_own: bool| {
        for run in restored.ask("status", repo).iter().chain(&restored.ask("check", repo)) {
            let is_elsewhere = run.stdout.contains("the last file that the server archived");
            assert_eq!(is_elsewhere, !is_own, "{run:?}");
        }
    };
    expect_no_claim(&own, true);
    restored.write(2);
    expect_no_claim(&own, true);
    for run in restored.ask("status", &own) {
        assert!(run.code == 0 && run.stdout.starts_with("OK"), "{run:?}");
    }
    // It does archive elsewhere than into the archive that it was restored from.
    expect_no_claim(&repo, false);
    // A new archive has no file of before.
    let next = restored.make_archive("next");
    expect_no_claim(&next, false);
    restored.archive_into(&next);
    let mut client = restored.cluster.client("postgres").unwrap();
    let is_loaded = "SELECT current_setting('archive_command') LIKE '%/next %'";
    wait(|| client.query_one(is_loaded, &[]).unwrap().get(0));
    expect_no_claim(&next, true);
    restored.write(1);
    expect_no_claim(&next, true);
    // Files that were archived there are lost.
    fs::remove_dir_all(next.join("wal")).unwrap();
    expect_no_claim(&next, false);
    Ok(())
}
