//! Packs and pruning, tested with servers: they archive while another process packs, and recover from packs.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use postgres::Client;
use walden_lab::{ClusterBuilder, StopMode};
use walden_testing::{ALL_SERVERS, Missing, Outcome, postgres};

use crate::archive::{content, json, program_for, recovered, text, wait_until_archived, work};
use crate::material::{make_archive, walden};

walden_testing::tests! {
    #[slow] servers_recover_from_packs on ALL_SERVERS,
    what_is_pruned_is_not_needed_by_the_backup_that_is_kept,
}

/// Runs a command as the server's account, which owns the archive.
pub fn run_as_server(client: &mut Client, command: &str) {
    // The server reports an error if the program does not read its input.
    let command = format!("cat >/dev/null; {}", command.replace('\'', "''"));
    let copied = client.batch_execute(&format!("COPY (SELECT 1) TO PROGRAM '{command}'"));
    copied.unwrap_or_else(|error| panic!("{command}: {error:?}"));
}

/// Archives work while another process packs. Then packs everything, and recovers to a time, to the end, and
/// across a timeline switch.
fn servers_recover_from_packs(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
    let program = program_for(&primary);
    let repo = primary.make_folder("repo").unwrap();
    make_archive(&repo);
    primary.client("postgres").unwrap().batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)").unwrap();
    primary.stop(StopMode::Fast).unwrap();
    let backup = primary.dir().join("backup");
    primary.copy_data(&backup).unwrap();
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    let log = primary.make_folder("log").unwrap().join("pack.log");
    let pack = format!("{} archive pack --repo {} --segments 4", program.display(), repo.display());
    primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    primary.start().unwrap();
    let mut client = primary.client("postgres").unwrap();
    archive_all(&mut client);
    let is_done = AtomicBool::new(false);
    let (at_time, time, at_end) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = primary.client("postgres").unwrap();
            while !is_done.load(Ordering::Relaxed) {
                run_as_server(&mut other, &format!("{pack} --keep 2 >> {} 2>&1", log.display()));
            }
        });
        // Catches panics, as the other thread must end in any case.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            work(&mut client, 0);
            let at_time = content(&mut client);
            let time: String = client.query_one("SELECT clock_timestamp()::text", &[]).unwrap().get(0);
            std::thread::sleep(std::time::Duration::from_millis(20));
            work(&mut client, 1);
            let at_end = content(&mut client);
            archive_all(&mut client);
            (at_time, time, at_end)
        }));
        is_done.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    run_as_server(&mut client, &format!("{pack} --keep 0 >> {} 2>&1", log.display()));
    drop(client);
    primary.crash().unwrap();
    expect_packs(&repo, &log);

    let get = format!("{} archive get --repo {} %f \"%p\"", program.display(), repo.display());
    let commands = [("restore_command", get.as_str()), ("archive_mode", "on"), ("archive_command", &push)];
    let restore =
        |settings: &[(&str, &str)]| recovered(&installation, &backup, &[&commands[..], settings].concat());
    let on_first = ("recovery_target_timeline", "1");
    let restored = restore(&[("recovery_target_time", time.as_str()), on_first]);
    assert_eq!(content(&mut restored.client("postgres").unwrap()), at_time, "{version}: to a time");
    restored.stop(StopMode::Fast).unwrap();
    // Recovers to the end, works on the new timeline, packs everything, and recovers across the switch.
    let promoted = restore(&[on_first]);
    let mut client = promoted.client("postgres").unwrap();
    assert_eq!(content(&mut client), at_end, "{version}: to the end");
    work(&mut client, 2);
    let on_new_timeline = content(&mut client);
    archive_all(&mut client);
    run_as_server(&mut client, &format!("{pack} --keep 0 >> {} 2>&1", log.display()));
    drop(client);
    promoted.crash().unwrap();
    let followed = restore(&[("recovery_target_timeline", "latest")]);
    assert_eq!(content(&mut followed.client("postgres").unwrap()), on_new_timeline, "{version}: latest");
    followed.stop(StopMode::Fast).unwrap();
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    Ok(())
}

fn archive_all(client: &mut Client) {
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(client);
}

/// Expects that most segments are in packs, and none is missing.
fn expect_packs(repo: &Path, log: &Path) {
    let log = fs::read_to_string(log).unwrap();
    let listing = json(&["archive", "list", "--format", "json", "--repo", text(repo)]);
    let timeline = &listing["timelines"][0];
    let (segments, objects) = (timeline["segments"].as_u64().unwrap(), timeline["objects"].as_u64().unwrap());
    assert!(segments > 8 && objects <= segments / 4 + 5, "{timeline:#}\n{log}");
    assert_eq!(timeline["gaps"].as_array().unwrap().len(), 0, "{timeline:#}");
}

/// Backups by `pg_basebackup` are found by their history files and by their manifests. The older one's WAL is
/// removed.
fn what_is_pruned_is_not_needed_by_the_backup_that_is_kept() -> Outcome {
    let installation = postgres(15)?;
    let Some(pg_basebackup) = installation.program("pg_basebackup") else {
        return Err(Missing { reason: "needs pg_basebackup of PostgreSQL 15".to_owned() });
    };
    let primary = ClusterBuilder::new(installation.clone())
        .wal_segsize_mb(1)
        .setting("wal_level", "replica")
        .setting("max_wal_senders", "4")
        .start()
        .unwrap();
    let program = program_for(&primary);
    let (repo, backups) = (primary.make_folder("repo").unwrap(), primary.make_folder("backups").unwrap());
    make_archive(&repo);
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    primary.restart(StopMode::Fast).unwrap();
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)").unwrap();
    // The last copy becomes a standby, and leaves a history file like a backup.
    let folders = [backups.join("first"), backups.join("second"), primary.dir().join("clone")];
    for (round, folder) in folders.iter().enumerate() {
        work(&mut client, round as i32);
        let (connection, label) = (primary.dsn("postgres"), folder.file_name().unwrap().display());
        let (pg_basebackup, folder) = (pg_basebackup.display(), folder.display());
        run_as_server(
            &mut client,
            &format!("{pg_basebackup} -d '{connection}' -D {folder} -X none -c fast -l {label} 2>/dev/null"),
        );
    }
    work(&mut client, 3);
    let at_end = content(&mut client);
    archive_all(&mut client);
    run_as_server(
        &mut client,
        &format!(
            "{} archive pack --repo {} --segments 2 --keep 0 >/dev/null",
            program.display(),
            repo.display()
        ),
    );
    drop(client);
    primary.crash().unwrap();

    let prune = |more: &[&str]| {
        json(&[&["archive", "prune", "--repo", text(&repo), "--format", "json"], more].concat())
    };
    // History files and manifests yield the same result if the clone counts as a backup.
    let by_history = prune(&["--keep-backups", "2"]);
    let by_manifest = prune(&["--keep-backups", "1", "--backups", text(&backups)]);
    assert_eq!(by_history["kept_from"], by_manifest["kept_from"]);
    assert_eq!(by_history["removed_objects"], by_manifest["removed_objects"]);
    assert_eq!(by_history["applied"], false);
    assert!(by_history["removed_objects"].as_u64().unwrap() > 2, "{by_history:#}");
    assert_eq!(by_history["backups"].as_array().unwrap().len(), 3, "{by_history:#}");
    // A backup is named by its folder, too.
    let by_folder = prune(&["--older-than-backup", text(&backups.join("second"))]);
    assert_eq!(by_folder["kept_from"], by_history["kept_from"], "{by_folder:#}");
    // With history files only, the clone's WAL would be kept and that of the backups removed.
    for rule in ["--keep-backups", "--keep-days"] {
        let refused = walden(&["archive", "prune", "--repo", text(&repo), rule, "1", "--apply"]);
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{refused:?}");
        assert!(refused.stderr.contains("--assume-backups-exist"), "{refused:?}");
    }
    assert_eq!(prune(&["--keep-backups", "2"])["removed_objects"], by_history["removed_objects"]);
    let applied = prune(&["--keep-backups", "1", "--backups", text(&backups), "--apply"]);
    assert_eq!((&applied["kept_from"], &applied["applied"]), (&by_history["kept_from"], &true.into()));

    let get = format!("{} archive get --repo {} %f \"%p\"", program.display(), repo.display());
    let settings =
        [("restore_command", get.as_str()), ("recovery_target_timeline", "1"), ("archive_mode", "off")];
    let restored = recovered(&installation, &backups.join("second"), &settings);
    assert_eq!(content(&mut restored.client("postgres").unwrap()), at_end);
    restored.stop(StopMode::Fast).unwrap();
    Ok(())
}
