//! `walden backup advance --keep`: a folder of backups that grows and shrinks by a rule.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_server::account;
use walden_testing::{Outcome, postgres};

use crate::archive::{json, text, wait_until_promoted};
use crate::material::{Run, walden};
use crate::restore_forward::{Primary, copy_running, files_of};

walden_testing::tests! {
    a_schedule_keeps_the_newest_of_days_and_weeks on [15, 18],
    kills_leave_complete_backups on [16],
    each_backup_has_its_own_tablespaces on [14, 18],
    a_backup_that_is_read_is_not_replaced on [17],
}

/// A server with a base backup, and a table whose row counts the nights.
fn primary(version: u32) -> Result<Primary, walden_testing::Missing> {
    let primary = Primary::start(&postgres(version)?, &[]);
    primary.client("postgres").batch_execute("CREATE TABLE nights AS SELECT 0 n").unwrap();
    primary.back_up(|client| client.batch_execute("UPDATE nights SET n = n").unwrap());
    Ok(primary)
}

/// A night's changes and a checkpoint, named by the night.
fn work(primary: &Primary, night: u32) {
    let mut client = primary.client("postgres");
    client
        .batch_execute(&format!("UPDATE nights SET n = {night}; CREATE TABLE t{night} AS SELECT 1 i"))
        .unwrap();
    primary.checkpoint_and_name(&format!("night{night}"));
}

struct Schedule<'s> {
    primary: &'s Primary,
    folder: PathBuf,
    rule: &'s str,
}

impl Schedule<'_> {
    fn arguments<'a>(&'a self, wal: &'a Path) -> Vec<&'a str> {
        let (first, folder) = (text(&self.primary.backup), text(&self.folder));
        vec!["backup", "advance", first, "--wal", text(wal), "--keep", self.rule, "-o", folder]
    }

    fn advance(&self, options: &[&str]) -> Run {
        walden(&[&self.arguments(&self.primary.cluster.archive_dir())[..], options].concat())
    }

    fn json(&self, options: &[&str]) -> Value {
        let run = self.advance(&[options, &["--format", "json"]].concat());
        assert_eq!(run.code, 0, "{run:?}");
        serde_json::from_str(&run.stdout).unwrap()
    }

    fn names(&self) -> BTreeSet<String> {
        names_in(&self.folder)
    }

    /// Makes all backups of the schedule older: their names and labels.
    fn make_older(&self, by: SignedDuration) {
        // The oldest first: it frees its name.
        for name in self.names() {
            let Some((time, lsn)) = name.split_once('_').filter(|(time, _)| time.ends_with('Z')) else {
                continue;
            };
            let time: Timestamp =
                format!("{}-{}-{}T{}Z", &time[..4], &time[4..6], &time[6..8], &time[9..15]).parse().unwrap();
            let [old, new] = [time, time - by];
            let renamed = self.folder.join(format!("{}_{lsn}", new.strftime("%Y%m%dT%H%M%SZ")));
            fs::rename(self.folder.join(&name), &renamed).unwrap();
            let label = renamed.join("backup_label");
            let [from, to] = [old, new].map(|time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
            let content = fs::read_to_string(&label).unwrap();
            assert!(content.contains(&from), "{content}");
            fs::write(&label, content.replace(&from, &to)).unwrap();
        }
    }
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn decided(json: &Value, removed: bool) -> BTreeSet<&str> {
    let backups = json["backups"].as_array().unwrap().iter();
    let wanted = backups.filter(|backup| backup["kept_for"].as_array().unwrap().is_empty() == removed);
    wanted.map(|backup| backup["name"].as_str().unwrap()).collect()
}

/// One backup each night for two weeks, with times that are made older by a day after each night.
fn a_schedule_keeps_the_newest_of_days_and_weeks(version: u32) -> Outcome {
    let primary = primary(version)?;
    let dir = primary.cluster.dir();
    let schedule = Schedule { primary: &primary, folder: dir.join("nightly"), rule: "daily=3,weekly=2" };
    let none = schedule.json(&["--dry-run"]);
    assert!(none["backups"].as_array().unwrap().is_empty() && !schedule.folder.exists(), "{none}");
    for night in 1..=14 {
        schedule.make_older(SignedDuration::from_hours(24));
        work(&primary, night);
        primary.archive_all();
        let before = schedule.names();
        let planned = schedule.json(&["--dry-run"]);
        assert_eq!(schedule.names(), before, "a dry run has changed the folder");
        let done = schedule.json(&[]);
        assert_eq!(decided(&planned, false), decided(&done, false));
        let kept: BTreeSet<String> = decided(&done, false).into_iter().map(str::to_owned).collect();
        assert_eq!(schedule.names(), kept, "{done}");
        let expected = match night {
            1..=3 => night as usize..=night as usize,
            // The newest of the week before is one of the three days, or not.
            _ => 3..=4,
        };
        assert!(expected.contains(&kept.len()), "night {night}: {done}");
    }
    // Without a later checkpoint, nothing is added.
    let before = schedule.names();
    let same = schedule.json(&[]);
    assert!(same["advanced"].is_null(), "{same}");
    assert_eq!(schedule.names(), before);

    // Everything else in the folder is kept: a renamed backup, an unknown folder, a link and a file.
    let all: Vec<String> = before.into_iter().collect();
    fs::rename(schedule.folder.join(&all[0]), schedule.folder.join("monday")).unwrap();
    fs::create_dir(schedule.folder.join("20200101T000000Z_0-01000028")).unwrap();
    fs::write(schedule.folder.join("20200102T000000Z_0-01000028"), "").unwrap();
    symlink(&primary.backup, schedule.folder.join("link")).unwrap();
    // A backup that another run reads is kept until the next run.
    let last = Schedule { rule: "last=1", folder: schedule.folder.clone(), primary: &primary };
    let read = File::open(schedule.folder.join(&all[1])).unwrap();
    read.lock_shared().unwrap();
    // A failure removes nothing.
    let before = schedule.names();
    let nowhere = dir.join("nowhere");
    fs::create_dir(&nowhere).unwrap();
    let failed = walden(&last.arguments(&nowhere));
    assert!(failed.code == 3 && schedule.names() == before, "{failed:?}");
    work(&primary, 15);
    primary.archive_all();
    let table = last.advance(&[]);
    assert_eq!(table.code, 0, "{table:?}");
    for line in [
        format!("{}  kept: in use", all[1]),
        format!("{}  removed", all[2]),
        "monday  kept: not of this schedule".into(),
    ] {
        assert!(table.stdout.contains(&line), "{line}: {table:?}");
    }
    assert_eq!(schedule.names().len(), 6, "{:?}", schedule.names());
    drop(read);
    // The next run starts from the newest in the folder, and needs no other.
    let wal = primary.cluster.archive_dir();
    let options =
        ["backup", "advance", "--wal", text(&wal), "--keep", "last=1", "-o", text(&schedule.folder)];
    let run = walden(&options);
    assert!(run.code == 0 && !schedule.folder.join(&all[1]).exists(), "{run:?}");
    assert!(run.stdout.contains("The backup stays as it is"), "{run:?}");

    fs::remove_file(schedule.folder.join("link")).unwrap();
    // The WAL that the oldest existing backup needs is kept, and that suffices.
    let repo = primary.push_all();
    let prune =
        ["archive", "prune", "--repo", text(&repo), "--backups", text(&schedule.folder), "--format", "json"];
    let planned = json(&prune);
    assert!(planned["removed_objects"].as_u64().unwrap() > 5 && planned["applied"] == false, "{planned:#}");
    let pruned = json(&[&prune[..], &["--apply"]].concat());
    let oldest = schedule.folder.join("monday");
    let label = fs::read_to_string(oldest.join("backup_label")).unwrap();
    let start: Lsn = label["START WAL LOCATION: ".len()..].split(' ').next().unwrap().parse().unwrap();
    let size = SegmentSize::new(1 << 20).unwrap();
    assert_eq!(pruned["kept_from"], size.start_of(size.segment_of(start)).to_string(), "{pruned:#}");
    let kept = pruned["backups"].as_array().unwrap().iter().filter(|it| it["kept"] == true);
    assert_eq!(kept.count(), 2, "{pruned:#}");
    let again = json(&prune);
    assert_eq!(again["removed_objects"], 0, "{again:#}");
    let none = walden(&["archive", "prune", "--repo", text(&repo)]);
    assert!(none.code == 2 && none.stderr.contains("expected a rule"), "{none:?}");

    let newest = schedule
        .names()
        .into_iter()
        .rfind(|name| name.ends_with(|c: char| c.is_ascii_hexdigit()) && name.contains('_'));
    for (index, base) in [oldest, schedule.folder.join(newest.unwrap())].iter().enumerate() {
        let data = dir.join(format!("restored{index}"));
        let restore = ["restore", "--repo", text(&repo), "--base", text(base), "-o", text(&data)];
        let run = walden(&[&restore[..], &["--target-action", "promote"]].concat());
        assert_eq!(run.code, 0, "{run:?}");
        let server = primary.server_of(&data).setting("restore_command", &primary.restore_command());
        let server = server.start().unwrap_or_else(|error| panic!("{error:#}"));
        wait_until_promoted(&server);
        let n: i32 =
            server.client("postgres").unwrap().query_one("SELECT n FROM nights", &[]).unwrap().get(0);
        assert_eq!(n, 15);
    }
    Ok(())
}

/// Runs that are killed at any moment leave complete backups, and the next run removes their remainders.
fn kills_leave_complete_backups(version: u32) -> Outcome {
    const KILLS: u32 = 12;
    let primary = primary(version)?;
    let schedule =
        Schedule { primary: &primary, folder: primary.cluster.dir().join("nightly"), rule: "last=1" };
    for night in 1..=KILLS + 2 {
        work(&primary, night);
    }
    primary.archive_all();
    let started = Instant::now();
    schedule.json(&["--to", "name:night1"]);
    let mut duration = started.elapsed();
    let files = |backup: &Path| files_of(backup, &["base", "global"]).len();
    let mut expected = files(&schedule.folder.join(schedule.names().first().unwrap()));
    let (wal, mut killed) = (primary.cluster.archive_dir(), 0);
    for night in 2..KILLS + 2 {
        let target = format!("name:night{night}");
        let arguments = [&schedule.arguments(&wal)[..], &["--to", &target]].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        let mut child = command.args(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(duration * (night - 1) / KILLS);
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        let complete: Vec<PathBuf> =
            (schedule.names().into_iter().filter(|name| !name.ends_with(".partial")))
                .map(|name| schedule.folder.join(name))
                .filter(|path| !path.join("walden_restore_is_incomplete").exists())
                .collect();
        assert!(!complete.is_empty(), "{target}");
        for backup in &complete {
            assert!(
                backup.join("global/pg_control").exists() && files(backup) >= expected,
                "{}",
                backup.display()
            );
        }
        let started = Instant::now();
        let run = walden(&arguments);
        assert_eq!(run.code, 0, "{run:?}");
        duration = started.elapsed();
        assert_eq!(schedule.names().len(), 1, "{:?}", schedule.names());
        let newest = schedule.folder.join(schedule.names().first().unwrap());
        // Each night adds a table.
        assert!(files(&newest) > expected, "{target}");
        expected = files(&newest);
    }
    assert!(killed > KILLS / 4, "{killed} of {KILLS} were killed");
    let at_once = primary.cluster.dir().join("at once");
    copy_running(&primary.backup, &at_once);
    let target = format!("name:night{}", KILLS + 1);
    let run = walden(&["backup", "advance", text(&at_once), "--wal", text(&wal), "--to", &target]);
    assert_eq!(run.code, 0, "{run:?}");
    let newest = schedule.folder.join(schedule.names().first().unwrap());
    let differs = |(path, content): (PathBuf, Vec<u8>)| {
        (fs::read(newest.join(&path)).ok() != Some(content)).then_some(path)
    };
    let different: Vec<PathBuf> = files_of(&at_once, &[""]).into_iter().filter_map(differs).collect();
    // pg_control has the time of its last change.
    assert!(different.iter().all(|path| path.ends_with("pg_control")), "{different:?}");
    Ok(())
}

/// Returns the folders of tablespaces to which a backup links.
fn tablespaces_of(backup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(backup.join("pg_tblspc")).unwrap();
    entries.map(|entry| fs::canonicalize(entry.unwrap().path()).unwrap()).collect()
}

/// Each backup of a schedule has copies of the tablespaces outside of the first backup, which are removed
/// with it, and by nothing else.
fn each_backup_has_its_own_tablespaces(version: u32) -> Outcome {
    let primary = Primary::start(&postgres(version)?, &[]);
    let dir = primary.cluster.dir();
    let [original, copy] = ["fast", "fast_copy"].map(|name| primary.cluster.make_folder(name).unwrap());
    let mut client = primary.client("postgres");
    for sql in [
        "CREATE TABLE nights AS SELECT 0 n".to_owned(),
        format!("CREATE TABLESPACE fast LOCATION '{}'", original.display()),
        "CREATE TABLE in_fast TABLESPACE fast AS SELECT g i, 0 n FROM generate_series(1, 2000) g".to_owned(),
    ] {
        client.batch_execute(&sql).unwrap();
    }
    primary.back_up(|client| client.batch_execute("UPDATE in_fast SET n = -1 WHERE i % 9 = 0").unwrap());
    copy_running(&original, &copy);
    let oid: String =
        client.query_one("SELECT oid::text FROM pg_tablespace WHERE spcname = 'fast'", &[]).unwrap().get(0);
    symlink(&copy, primary.backup.join("pg_tblspc").join(&oid)).unwrap();
    let schedule = Schedule { primary: &primary, folder: dir.join("nightly"), rule: "last=2" };
    let mut contents = Vec::new();
    let mut next = |night: u32| {
        client.batch_execute(&format!("UPDATE in_fast SET n = {night} WHERE i % {night} = 0")).unwrap();
        work(&primary, night);
        primary.archive_all();
        let before = files_of(&copy, &[""]);
        let names = schedule.names();
        schedule.json(&["--dry-run"]);
        assert_eq!(schedule.names(), names, "a dry run has changed the folder");
        let done = schedule.json(&[]);
        assert!(done["advanced"].is_object(), "{done}");
        assert!(files_of(&copy, &[""]) == before, "the first backup's tablespace has changed");
        let sql = "SELECT md5(string_agg(i || ' ' || n, ',' ORDER BY i)) FROM in_fast";
        contents.push(client.query_one(sql, &[]).unwrap().get::<_, String>(0));
        decided(&done, false).into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let with_tablespaces = |names: &[String]| -> BTreeSet<String> {
        names.iter().flat_map(|name| [name.clone(), format!("{name}.tablespaces")]).collect()
    };
    for night in 1..=3 {
        let kept = next(night);
        assert_eq!(schedule.names(), with_tablespaces(&kept));
        assert_eq!(kept.len(), night.min(2) as usize);
        for name in &kept {
            let beside = fs::canonicalize(schedule.folder.join(format!("{name}.tablespaces"))).unwrap();
            assert_eq!(tablespaces_of(&schedule.folder.join(name)), [beside.join(&oid)]);
            assert!(
                !files_of(&beside, &[""]).keys().any(|path| path.ends_with("walden_restore_is_incomplete"))
            );
        }
    }
    // Files of a killed run are removed.
    let left = schedule.folder.join("20200101T000000Z_0-01000028");
    for folder in [left.with_extension("partial"), left.with_extension("tablespaces")] {
        fs::create_dir_all(folder.join("16384")).unwrap();
        fs::write(folder.join("walden_restore_is_incomplete"), "").unwrap();
    }
    // A backup with another name keeps its tablespaces; so does a removed one.
    let before = next(4);
    let [renamed, moved] = [&before[0], &before[1]].map(|name| schedule.folder.join(name));
    fs::rename(&renamed, schedule.folder.join("monday")).unwrap();
    let kept = next(5);
    assert_eq!(kept.len(), 3, "{kept:?}");
    let kept = next(6);
    assert!(!moved.exists() && !moved.with_extension("tablespaces").exists(), "{kept:?}");
    let mut expected = with_tablespaces(&kept);
    assert!(expected.remove("monday.tablespaces"));
    expected.insert(format!("{}.tablespaces", before[0]));
    assert_eq!(schedule.names(), expected);

    // Night 3, and the newest.
    let newest = schedule.folder.join(kept.iter().rfind(|name| *name != "monday").unwrap());
    for (base, content) in [(schedule.folder.join("monday"), &contents[2]), (newest, &contents[5])] {
        let wal = primary.cluster.archive_dir();
        let name = base.file_name().unwrap().to_str().unwrap().to_owned();
        let [data, new] = [dir.join(format!("restored_{name}")), dir.join(format!("fast_{name}"))];
        let night = if name == "monday" { "name:night3" } else { "name:night6" };
        let arguments = ["restore", "--wal", text(&wal), "--base", text(&base), "-o", text(&data)];
        let options = ["--to", night, "--target-action", "promote"];
        let unmapped = walden(&[&arguments[..], &options].concat());
        let [old] = &tablespaces_of(&base)[..] else { panic!("{}", base.display()) };
        assert!(unmapped.code == 3 && unmapped.stderr.contains(text(old)), "{unmapped:?}");
        let mapping = format!("{}={}", old.display(), new.display());
        let run = walden(&[&arguments[..], &options, &["--tablespace-mapping", &mapping]].concat());
        assert_eq!(run.code, 0, "{run:?}");
        let link = data.join("pg_tblspc").join(&oid);
        assert_eq!(fs::read_link(&link).unwrap(), new);
        // The lab copies the directory without the link.
        fs::remove_file(&link).unwrap();
        let server = primary.server_of(&data).start_after(|copy| {
            symlink(&new, copy.join("pg_tblspc").join(&oid))?;
            account::chown_all(&new)
        });
        let server = server.unwrap_or_else(|error| panic!("{error:#}"));
        wait_until_promoted(&server);
        let sql = "SELECT md5(string_agg(i || ' ' || n, ',' ORDER BY i)) FROM in_fast";
        let found: String = server.client("postgres").unwrap().query_one(sql, &[]).unwrap().get(0);
        assert_eq!(found, *content, "{name}");
    }
    Ok(())
}

/// Starts a command and stops its process while it has locked a folder.
fn stop_while_locked(command: &[&str], folder: &Path) -> Child {
    let inode = fs::metadata(folder).unwrap().ino().to_string();
    for _ in 0..20 {
        let mut program = Command::new(env!("CARGO_BIN_EXE_walden"));
        let mut child = program.args(command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = child.id().to_string();
        let has_lock = || {
            let is_own = |line: &str| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                fields.contains(&"FLOCK")
                    && fields.contains(&pid.as_str())
                    && fields.iter().any(|field| field.rsplit(':').next() == Some(&inode))
            };
            fs::read_to_string("/proc/locks").unwrap().lines().any(is_own)
        };
        while child.try_wait().unwrap().is_none() && !has_lock() {
            std::thread::sleep(Duration::from_micros(200));
        }
        let pid = Pid::from_child(&child);
        if kill_process(pid, Signal::STOP).is_ok() && has_lock() {
            return child;
        }
        let _ = kill_process(pid, Signal::CONT);
        child.wait().unwrap();
    }
    panic!("the backup was never locked: {command:?}");
}

/// A drill and a verification read a backup; an advance in its place is refused until they end.
fn a_backup_that_is_read_is_not_replaced(version: u32) -> Outcome {
    let primary = primary(version)?;
    work(&primary, 1);
    work(&primary, 2);
    primary.archive_all();
    let repo = primary.push_all();
    let backup = &primary.backup;
    let drill = ["archive", "drill", "--repo", text(&repo), "--base", text(backup), "--no-amcheck"];
    let bin = text(&primary.cluster.installation().bin_dir).to_owned();
    let drill = [&drill[..], &["--bin", &bin]].concat();
    let verify = ["archive", "verify", "--repo", text(&repo), "--replay", "--base", text(backup)];
    for (command, target) in [(&drill[..], "name:night1"), (&verify[..], "latest")] {
        let advance = ["backup", "advance", text(backup), "--repo", text(&repo), "--to", target];
        let before = files_of(backup, &[""]);
        let mut child = stop_while_locked(command, backup);
        let refused = walden(&advance);
        assert!(
            refused.code == 3
                && refused.stderr.contains(text(backup))
                && refused.stderr.contains("hint: wait until the other run ends"),
            "{command:?}: {refused:?}"
        );
        assert!(files_of(backup, &[""]) == before && !backup.with_extension("partial").exists());
        kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
        let ended = child.wait().unwrap();
        assert!(ended.success(), "{command:?}: {ended}");
        let advanced = walden(&advance);
        assert!(advanced.code == 0 && files_of(backup, &[""]) != before, "{advanced:?}");
    }
    Ok(())
}
