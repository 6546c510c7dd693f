//! Tests the archive with servers that recover from it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::Value;
use walden_archive::parts::{self, Part};
use walden_format::lsn::SegmentName;
use walden_lab::{Cluster, ClusterBuilder, Installation, StopMode};
use walden_testing::{ALL_SERVERS, Outcome, postgres};

use crate::material::{Run, golden, link_program, make_archive, walden, write};

walden_testing::tests! {
    #[slow] servers_recover_from_the_archive on ALL_SERVERS,
    a_server_of_15_does_not_end_recovery_for_another_clusters_archive,
    a_server_of_15_does_not_end_recovery_at_a_gap,
    restore_command_tells_a_missing_file_from_trouble,
    an_archive_that_was_just_made_is_no_missing_one,
    an_export_of_nothing_is_no_success,
    a_configuration_is_written_and_used,
    an_archive_that_cannot_be_made_leaves_nothing,
    an_archive_that_lost_its_identity_is_no_new_one,
    no_archive_is_made_within_a_data_directory,
    get_replaces_no_other_file,
}

/// Computes a checksum of the table's content.
const CONTENT: &str = "SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM t";

/// Takes a base backup, works, archives, and destroys the server. Then recovers to a restore point, to a
/// time, to the end, and across the timeline switch.
fn servers_recover_from_the_archive(version: u32) -> Outcome {
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
    primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    primary.start().unwrap();
    let mut client = primary.client("postgres").unwrap();
    work(&mut client, 0);
    let at_point = content(&mut client);
    client.batch_execute("SELECT pg_create_restore_point('before_more')").unwrap();
    work(&mut client, 1);
    let at_time = content(&mut client);
    let time: String = client.query_one("SELECT clock_timestamp()::text", &[]).unwrap().get(0);
    std::thread::sleep(Duration::from_millis(20));
    work(&mut client, 2);
    let at_end = content(&mut client);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    primary.crash().unwrap();

    let get = format!("{} archive get --repo {} %f \"%p\"", program.display(), repo.display());
    let commands = [("restore_command", get.as_str()), ("archive_mode", "on"), ("archive_command", &push)];
    let restore =
        |settings: &[(&str, &str)]| recovered(&installation, &backup, &[&commands[..], settings].concat());
    // Each promoted server archives its own timeline and history next to the others'.
    for (settings, expected) in [
        (&[("recovery_target_name", "before_more")][..], &at_point),
        (&[("recovery_target_time", time.as_str()), ("recovery_target_timeline", "1")], &at_time),
    ] {
        let restored = restore(settings);
        assert_eq!(content(&mut restored.client("postgres").unwrap()), *expected, "{version}: {settings:?}");
        restored.stop(StopMode::Fast).unwrap();
    }
    // The third server continues from the end, on a new timeline: more work there, and recovery across the
    // switch.
    let promoted = restore(&[("recovery_target_timeline", "1")]);
    let mut client = promoted.client("postgres").unwrap();
    assert_eq!(content(&mut client), at_end, "{version}: to the end");
    work(&mut client, 3);
    let on_new_timeline = content(&mut client);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    promoted.crash().unwrap();
    let followed = restore(&[("recovery_target_timeline", "latest")]);
    assert_eq!(content(&mut followed.client("postgres").unwrap()), on_new_timeline, "{version}: latest");
    followed.stop(StopMode::Fast).unwrap();
    recover_to_before_a_promotion(version, restore, &time, &at_time, &repo);

    let listing = json(&["archive", "list", "--all", "--format", "json", "--repo", text(&repo)]);
    let timelines = listing["timelines"].as_array().unwrap();
    assert!(timelines.len() >= 4, "{listing:#}");
    assert_eq!(timelines[0]["gaps"].as_array().unwrap().len(), 0, "{listing:#}");
    assert_eq!(timelines[0]["restore_points"][0]["name"], "before_more");
    let verified = walden(&["archive", "verify", "--format", "json", "--repo", text(&repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let verified: Value = serde_json::from_str(&verified.stdout).unwrap();
    assert!(verified["segments"].as_u64().unwrap() > 10 && verified["records"].as_u64().unwrap() > 1000);

    // With the data directory of the abandoned server as another source, the archive is read along that
    // server's timeline.
    let data = primary.data_dir();
    let beside = walden(&["explain", "--format", "json", text(&repo), text(&data)]);
    assert!(beside.stderr.contains("along timeline 1, on which"), "{beside:?}");
    let ranges = json(&["explain", "--format", "json", text(&repo), text(&data)])["ranges"].clone();
    assert_eq!(ranges.as_array().unwrap().len(), 1, "{ranges:#}");
    assert!(ranges[0]["first_segment"].as_str().unwrap().starts_with("00000001"), "{ranges:#}");
    assert!(ranges[0]["last_segment"].as_str().unwrap().starts_with("00000001"), "{ranges:#}");
    Ok(())
}

/// Recovers along the newest timeline to a time before it started. The next timeline's history then has
/// descending LSNs, and its WAL continues that of the first timeline.
fn recover_to_before_a_promotion(
    version: u32,
    restore: impl Fn(&[(&str, &str)]) -> Cluster,
    time: &str,
    at_time: &str,
    repo: &Path,
) {
    let early = restore(&[("recovery_target_time", time), ("recovery_target_timeline", "latest")]);
    let mut client = early.client("postgres").unwrap();
    assert_eq!(content(&mut client), at_time, "{version}: to before the promotion");
    work(&mut client, 4);
    let on_it = content(&mut client);
    let timeline = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int";
    let timeline = client.query_one(timeline, &[]).unwrap().get::<_, i32>(0).to_string();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    early.crash().unwrap();

    let explained = walden(&["explain", "--timeline", &timeline, "--format", "json", text(repo)]);
    assert_eq!(explained.code, 0, "{version}: {explained:?}");
    let explained: Value = serde_json::from_str(&explained.stdout).unwrap();
    assert!(explained["damage"].is_null(), "{version}: {}", explained["damage"]);
    // Exported plain files contain the same WAL.
    let files = early.dir().join("exported");
    let exported =
        walden(&["archive", "export", "--repo", text(repo), "--timeline", &timeline, "-o", text(&files)]);
    assert_eq!(exported.code, 0, "{version}: {exported:?}");
    for path in fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().path()).chain([files.clone()]) {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let copy = format!("cp {}/%f \"%p\"", files.display());
    let from_files = restore(&[("restore_command", copy.as_str()), ("recovery_target_timeline", &timeline)]);
    assert_eq!(content(&mut from_files.client("postgres").unwrap()), on_it, "{version}: from plain files");
    from_files.stop(StopMode::Fast).unwrap();
}

/// A restore_command with a wrong path: reporting the file as missing would end recovery immediately, and
/// promote.
fn a_server_of_15_does_not_end_recovery_for_another_clusters_archive() -> Outcome {
    let installation = postgres(15)?;
    let primary = ClusterBuilder::new(installation.clone()).start().unwrap();
    let program = program_for(&primary);
    let (own, other) = (primary.make_folder("own").unwrap(), primary.make_folder("other").unwrap());
    make_archive(&own);
    make_archive(&other);
    let segment = primary.dir().join("00000001000000000000000A");
    fs::write(&segment, &golden("18.6")["00000001000000000000000A"]).unwrap();
    assert_eq!(walden(&["archive", "push", "--repo", text(&other), text(&segment)]).code, 0);
    let backup = back_up_and_archive(&primary, &program, &own);
    let mut client = primary.client("postgres").unwrap();
    // In a single query, the commit would be in the segment after the switch.
    client.batch_execute("CREATE TABLE t ()").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    let start = |repo: &Path| {
        let get = format!("{} archive get --repo {} %f \"%p\"", program.display(), repo.display());
        let settings = [("restore_command", get.as_str()), ("archive_mode", "off")];
        let builder = ClusterBuilder::new(installation.clone()).copy_of(&backup);
        let builder = settings.iter().fold(builder, |builder, (name, value)| builder.setting(name, value));
        builder.start_after(|data| Ok(fs::write(data.join("recovery.signal"), "")?))
    };
    let Err(error) = start(&other) else { panic!("recovery has ended") };
    let error = format!("{error:#}");
    assert!(error.contains("belongs to another cluster: expected system identifier"), "{error}");
    let recovered = start(&own).unwrap();
    wait_until_promoted(&recovered);
    recovered.client("postgres").unwrap().batch_execute("SELECT FROM t").unwrap();
    Ok(())
}

/// If a segment in the middle of the archive is missing, PostgreSQL would end recovery before it, and
/// promote.
fn a_server_of_15_does_not_end_recovery_at_a_gap() -> Outcome {
    let installation = postgres(15)?;
    let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
    let program = program_for(&primary);
    let repo = primary.make_folder("own").unwrap();
    make_archive(&repo);
    let backup = back_up_and_archive(&primary, &program, &repo);
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (id int, v text)").unwrap();
    work(&mut client, 0);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    let folder = repo.join("wal/00000001/00000000");
    let mut segments: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    let missing = &segments[segments.len() - 3];
    let name = SegmentName::parse(missing.file_stem().unwrap().to_str().unwrap()).unwrap();
    let begun = primary.dir().join("begun");
    assert_eq!(walden(&["archive", "get", "--repo", text(&repo), &name.to_string(), text(&begun)]).code, 0);
    fs::remove_file(missing).unwrap();

    // Without hot standby, a server accepts connections only after recovery.
    let start = |option: &str, signal: &'static str, hot_standby: &str| {
        let get = format!("{} archive get {option} --repo {} %f \"%p\"", program.display(), repo.display());
        ClusterBuilder::new(installation.clone())
            .copy_of(&backup)
            .setting("restore_command", &get)
            .setting("archive_mode", "off")
            .setting("hot_standby", hot_standby)
            .start_after(|data| Ok(fs::write(data.join(signal), "")?))
    };
    let expect_gap = || {
        let Err(error) = start("", "recovery.signal", "off") else { panic!("recovery has ended") };
        let error = format!("{error:#}");
        assert!(error.contains("found a gap"), "{error}");
    };
    expect_gap();
    // The state that `receive --ack-after archive --accept-gap` leaves after its spool was lost.
    let archive = walden_archive::Archive::new(Box::new(walden_archive::store::Folder::new(&repo)));
    parts::store(&archive, Part { segment: name, start: 0, end: 8192 }, &fs::read(&begun).unwrap()[..8192])
        .unwrap();
    expect_gap();
    wait_until_promoted(&start("--ignore-gaps", "recovery.signal", "off").unwrap());
    // A standby does not promote, and its primary may have the segment.
    let standby = start("", "standby.signal", "on").unwrap();
    let mut client = standby.client("postgres").unwrap();
    assert!(client.query_one("SELECT pg_is_in_recovery()", &[]).unwrap().get::<_, bool>(0));
    Ok(())
}

/// Configures a server to archive, stops it, and copies its data directory as a base backup.
pub fn back_up_and_archive(primary: &Cluster, program: &Path, repo: &Path) -> PathBuf {
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    primary.stop(StopMode::Fast).unwrap();
    let backup = primary.dir().join("backup");
    primary.copy_data(&backup).unwrap();
    primary.start().unwrap();
    backup
}

/// Links the program into a folder from which the server's account can run it.
pub fn program_for(cluster: &Cluster) -> PathBuf {
    link_program(&cluster.make_folder("bin").unwrap())
}

pub fn work(client: &mut Client, round: i32) {
    for part in 0..4 {
        let first = round * 40_000 + part * 10_000;
        let insert =
            format!("INSERT INTO t SELECT i, md5(i::text) FROM generate_series({first}, {first} + 9999) i");
        client.batch_execute(&insert).unwrap();
    }
    client.batch_execute("UPDATE t SET v = v || 'x' WHERE id % 7 = 0").unwrap();
}

pub fn content(client: &mut Client) -> String {
    client.query_one(CONTENT, &[]).unwrap().get(0)
}

/// Waits until every complete segment is archived. The last archived file does not show that: a backup
/// history file, which sorts before the following segments, may be archived last.
pub fn wait_until_archived(client: &mut Client) {
    wait(|| {
        let row = client.query_one(
            "SELECT NOT EXISTS (SELECT FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'), failed_count,
                    last_failed_wal FROM pg_stat_archiver",
            &[],
        );
        let row = row.unwrap();
        assert_eq!(row.get::<_, i64>(1), 0, "failed: {:?}", row.get::<_, Option<String>>(2));
        row.get(0)
    });
}

/// Returns a promoted server that recovered from a base backup and by its restore_command.
pub fn recovered(installation: &Installation, backup: &Path, settings: &[(&str, &str)]) -> Cluster {
    let builder = ClusterBuilder::new(installation.clone())
        .copy_of(backup)
        .setting("recovery_target_action", "promote");
    let builder = settings.iter().fold(builder, |builder, (name, value)| builder.setting(name, value));
    let cluster = builder
        .start_after(|data| Ok(fs::write(data.join("recovery.signal"), "")?))
        .unwrap_or_else(|error| panic!("{}, {settings:?}: {error:#}", installation.version));
    wait_until_promoted(&cluster);
    cluster
}

pub fn wait_until_promoted(cluster: &Cluster) {
    wait(|| {
        let mut client = cluster.client("postgres").unwrap();
        !client.query_one("SELECT pg_is_in_recovery()", &[]).unwrap().get::<_, bool>(0)
    });
}

fn wait(mut is_done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < Duration::from_secs(120), "it takes too long");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub fn json(arguments: &[&str]) -> Value {
    let run = walden(arguments);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

/// An existing file may be the only copy of WAL that is not archived.
fn get_replaces_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, wal) = (folder.path().join("repo"), folder.path().join("wal"));
    let name = "00000001000000000000000A";
    write(&wal, name, &golden("18.6")[name]);
    let imported = walden(&["archive", "import", "--repo", text(&repo), text(&wal)]);
    assert_eq!(imported.code, 0, "{imported:?}");
    let get = |target: &Path, more: &[&str]| {
        walden(&[&["archive", "get", "--repo", text(&repo), name, text(target)][..], more].concat())
    };
    let target = write(folder.path(), "notes", b"precious");
    let refused = get(&target, &[]);
    assert_eq!((refused.code, fs::read(&target).unwrap().as_slice()), (200, &b"precious"[..]), "{refused:?}");
    assert!(refused.stderr.contains("the file exists, and its content differs from"), "{refused:?}");
    assert!(refused.stderr.contains("HINT: name another path"), "{refused:?}");
    assert_eq!(get(&target, &["--force"]).code, 0);
    // The same content is no reason to fail.
    assert_eq!(get(&target, &[]).code, 0);
    assert_eq!(&fs::read(&target).unwrap(), &golden("18.6")[name]);
    // A file that a killed restore_command left.
    let of_server = write(folder.path(), "RECOVERYXLOG", b"a part");
    assert_eq!(get(&of_server, &[]).code, 0);
    assert_eq!(&fs::read(&of_server).unwrap(), &golden("18.6")[name]);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with('.')), "{left:?}");
}

/// PostgreSQL treats exit statuses 1 to 125 as "file missing" and ends recovery, so no other result may have
/// such a status.
fn restore_command_tells_a_missing_file_from_trouble() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, wal) = (folder.path().join("repo"), folder.path().join("pg_wal"));
    fs::create_dir(&wal).unwrap();
    let name = "00000001000000000000000A";
    let target = wal.join("RECOVERYXLOG");
    fs::write(wal.join(name), &golden("18.6")[name]).unwrap();
    let get = |repo: &Path, name: &str| {
        walden(&["archive", "get", "--prefetch", "0", "--repo", text(repo), name, text(&target)])
    };
    make_archive(&repo);
    let pushed = walden(&["archive", "push", "--repo", text(&repo), text(&wal.join(name))]);
    assert_eq!((pushed.code, pushed.stderr.as_str()), (0, ""));
    assert_eq!(get(&repo, name).code, 0);
    assert_eq!(&fs::read(&target).unwrap(), &golden("18.6")[name]);
    fs::remove_file(&target).unwrap();
    // Invoked manually, outside of a data directory, it fetches nothing ahead, as nothing would remove the
    // files.
    assert_eq!(walden(&["archive", "get", "--repo", text(&repo), name, text(&target)]).code, 0);
    let is_spool = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("walden-prefetch-");
    assert!(!fs::read_dir(&wal).unwrap().any(|entry| is_spool(entry.unwrap())));
    fs::remove_file(&target).unwrap();
    assert_eq!(get(&repo, "00000001000000000000000B").code, 1);
    assert_eq!(get(&repo, "00000002.history").code, 1);
    // A damaged object, an unreadable store, an unknown option, a target that cannot be written.
    let object = repo.join(format!("wal/00000001/00000000/{name}.wlz"));
    let good = fs::read(&object).unwrap();
    fs::write(&object, &good[..good.len() / 2]).unwrap();
    assert!(get(&repo, name).code > 125);
    assert!(!target.exists());
    fs::write(&object, &good).unwrap();
    assert!(walden(&["archive", "get", "--no-such-option", name, text(&target)]).code > 125);
    assert!(walden(&["archive", "get", "--repo", "ftp://x/y", name, text(&target)]).code > 125);
    let nowhere = folder.path().join("nowhere/RECOVERYXLOG");
    let unwritable =
        walden(&["archive", "get", "--prefetch", "0", "--repo", text(&repo), name, text(&nowhere)]);
    assert!(unwritable.code > 125, "{unwritable:?}");
}

/// "No archive" must mean a file system that is not mounted, not an empty archive.
fn an_archive_that_was_just_made_is_no_missing_one() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, plain) = (folder.path().join("repo"), folder.path().join("plain"));
    let commands: [(&[&str], i32); 5] = [
        (&["list"], 0),
        (&["verify"], 0),
        (&["pack"], 0),
        (&["prune", "--keep-backups", "1"], 0),
        (&["export", "-o", text(&plain)], 1),
    ];
    for is_made in [false, true] {
        if is_made {
            make_archive(&repo);
        }
        for (command, code) in commands {
            let run = walden(&[&["archive"][..], command, &["--repo", text(&repo)]].concat());
            let (code, says) = match is_made {
                true => (code, "nothing was archived yet"),
                false => (3, "cannot find an archive"),
            };
            assert_eq!((run.code, run.stderr.contains(says)), (code, true), "{command:?}: {run:?}");
        }
    }
}

fn an_export_of_nothing_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, plain) = (folder.path().join("repo"), folder.path().join("plain"));
    let name = "00000001000000000000000A";
    let segment = folder.path().join(name);
    fs::write(&segment, &golden("18.6")[name]).unwrap();
    make_archive(&repo);
    assert_eq!(walden(&["archive", "push", "--repo", text(&repo), text(&segment)]).code, 0);
    let export = |more: &[&str]| {
        walden(&[&["archive", "export", "--repo", text(&repo), "-o", text(&plain)][..], more].concat())
    };
    let later = "00000001000000000000000C";
    for (more, code) in [
        (&["--timeline", "7"][..], 1),
        (&["--from", later], 1),
        (&["--from", later, "--to", name], 2),
        (&["--from", name, "--to", name], 0),
    ] {
        let run = export(more);
        assert_eq!(run.code, code, "{more:?}: {run:?}");
    }
    // Damage in the archive is reported once, and with one hint.
    let object = repo.join(format!("wal/00000001/00000000/{name}.wlz"));
    let good = fs::read(&object).unwrap();
    fs::write(&object, &good[..good.len() / 2]).unwrap();
    fs::remove_file(plain.join(name)).unwrap();
    let damaged = export(&[]);
    assert_eq!((damaged.code, damaged.stderr.matches("hint: ").count()), (3, 1), "{damaged:?}");
    assert!(damaged.stderr.starts_with("error: cannot get"), "{damaged:?}");
    assert!(damaged.stderr.contains("hint: put the object back"), "{damaged:?}");
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert!(verified.code == 1 && verified.stdout.contains("  HINT: put the object back"), "{verified:?}");
}

fn a_configuration_is_written_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, config) = (folder.path().join("repo"), folder.path().join("walden.toml"));
    let init = walden(&["archive", "init", "--repo", text(&repo), "-o", text(&config)]);
    assert_eq!(init.code, 0, "{init:?}");
    assert!(init.stdout.contains("archive_command = '"), "{}", init.stdout);
    let again = walden(&["archive", "init", "--repo", text(&repo), "-o", text(&config)]);
    assert_eq!(again.code, 3, "{again:?}");
    let name = "00000001000000000000000A";
    let segment = folder.path().join(name);
    fs::write(&segment, &golden("18.6")[name]).unwrap();
    let pushed = walden(&["archive", "push", "--config", text(&config), text(&segment)]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    let listing = json(&["archive", "list", "--format", "json", "--config", text(&config)]);
    assert_eq!(listing["timelines"][0]["segments"], 1);
    // A refusal states the reason and a remedy.
    let other = folder.path().join("00000001000000000000000C");
    fs::write(&other, &golden("18.6")[name]).unwrap();
    let refused = walden(&["archive", "push", "--config", text(&config), text(&other)]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.stderr.contains("the first page's address") && refused.stderr.contains("HINT: "),
        "{refused:?}"
    );
}

fn an_archive_that_cannot_be_made_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let above = folder.path().join("above");
    let repo = above.join("repo");
    // No file can be created in that folder.
    let init = || walden(&["archive", "init", "--repo", text(&repo), "-o", "/proc/walden.toml"]);
    let run = init();
    assert!(run.code == 3 && run.stderr.contains("/proc"), "{run:?}");
    assert!(!above.exists());
    // Existing files stay.
    fs::create_dir_all(&repo).unwrap();
    fs::write(repo.join("notes.txt"), "somebody's").unwrap();
    assert_eq!(init().code, 3);
    let names = |folder: &Path| -> Vec<_> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(&repo), ["notes.txt"]);
    make_archive(&repo);
    let before = names(&repo.join("docs"));
    assert_eq!(init().code, 3);
    assert!(repo.join("README.txt").exists() && names(&repo.join("docs")) == before);
}

/// With only its segments left, it would look like a working archive until the next push.
fn an_archive_that_lost_its_identity_is_no_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, config) = (folder.path().join("repo"), folder.path().join("walden.toml"));
    let name = "00000001000000000000000A";
    let segment = folder.path().join(name);
    fs::write(&segment, &golden("18.6")[name]).unwrap();
    make_archive(&repo);
    let push = || walden(&["archive", "push", "--repo", text(&repo), text(&segment)]);
    assert_eq!(push().code, 0);
    for lost in ["archive.json", "README.txt"] {
        fs::remove_file(repo.join(lost)).unwrap();
        let run = walden(&["archive", "init", "--repo", text(&repo), "-o", text(&config)]);
        let says = |text: &str| run.stderr.contains(text);
        assert!(run.code == 3 && says("hint: put archive.json back"), "without {lost}: {run:?}");
        assert!(!config.exists(), "without {lost}");
        assert_eq!(push().code, 1, "without {lost}");
        expect_whole_files_alone(&repo, name, &fs::read(&segment).unwrap());
    }
    let repair = || walden(&["archive", "repair", "--repo", text(&repo)]);
    let repaired = repair();
    let expected = "archive.json was rewritten: cluster ";
    assert!(repaired.code == 0 && repaired.stdout.contains(expected), "{repaired:?}");
    assert_eq!((push().code, walden(&["archive", "verify", "--repo", text(&repo)]).code), (0, 0));
    let again = repair();
    assert!(again.code == 3 && again.stderr.contains("is not lost"), "{again:?}");
    assert!(again.stderr.contains("nothing was changed"), "{again:?}");
}

/// If the archive's cluster is unknown, a manual get restores archived files, with a warning. A file that is
/// not found must not be reported as missing.
fn expect_whole_files_alone(repo: &Path, name: &str, content: &[u8]) {
    let target = repo.with_extension("target");
    let get = |name: &str| walden(&["archive", "get", "--repo", text(repo), name, text(&target)]);
    let run = get(name);
    let expected = "nothing identifies its cluster";
    assert!(run.code == 0 && run.stderr.contains(expected) && run.stderr.contains("WARNING"), "{run:?}");
    assert!(fs::read(&target).unwrap() == content);
    for missing in ["0000000100000000000000F0", "00000002.history"] {
        let run = get(missing);
        assert_eq!(run.code, 200, "{run:?}");
    }
}

fn no_archive_is_made_within_a_data_directory() {
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (folder.path().join("data"), folder.path().join("walden.toml"));
    fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink(&data, folder.path().join("link")).unwrap();
    let init = |repo: &str, more: &[&str]| {
        let repo = folder.path().join(repo);
        walden(&[&["archive", "init", "--repo", text(&repo), "-o", text(&config)], more].concat())
    };
    let refused = |repo: &str, more: &[&str]| {
        let run = init(repo, more);
        let says = |text: &str| run.stderr.contains(text);
        assert!(run.code == 3 && says("is inside the data directory"), "{repo}: {run:?}");
        assert!(says("base backup would copy") && says("hint: keep the archive"), "{run:?}");
        assert!(!config.exists() && !folder.path().join(repo).exists(), "{repo}");
    };
    refused("data/archive", &["--data", text(&data)]);
    refused("link/not/there", &["--data", text(&data)]);
    // Recognized by its content.
    fs::create_dir(data.join("global")).unwrap();
    fs::write(data.join("global/pg_control"), "").unwrap();
    fs::write(data.join("PG_VERSION"), "18\n").unwrap();
    refused("data/archive", &[]);
    refused("link/archive", &[]);
    let made = init("archive", &["--data", text(&data)]);
    assert_eq!(made.code, 0, "{made:?}");
    let (nested, unused) = (folder.path().join("archive/wal/nested"), folder.path().join("unused.toml"));
    let nested = walden(&["archive", "init", "--repo", text(&nested), "-o", text(&unused)]);
    assert!(nested.code == 3 && nested.stderr.contains("is an archive"), "{nested:?}");
    // An existing archive, named in full, and as the server's commands see it.
    let is_warned_of = |place: &Path| {
        let configuration = format!("[archive]\nrepo = \"{}\"\n", place.display());
        fs::write(&config, configuration).unwrap();
        let arguments = ["archive", "check", "--config", text(&config), "--data", text(&data)];
        let run = walden(&[&arguments[..], &["--format", "json"]].concat());
        let report: Value = serde_json::from_str(&run.stdout).unwrap();
        report["checks"].as_array().unwrap().iter().any(|check| check["name"] == "place")
    };
    let within = data.join("archive");
    make_archive(&within);
    assert!(is_warned_of(&within));
    assert!(is_warned_of(Path::new("archive-that-is-not-there")));
    assert!(!is_warned_of(&folder.path().join("archive")));
    // A path on the command line is relative to the working directory.
    let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
    command.args(["archive", "check", "--repo", "archive", "--data", text(&data), "--format", "json"]);
    let run = Run::execute(command.current_dir(folder.path()));
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(report["checks"].as_array().unwrap().iter().all(|check| check["name"] != "place"), "{report:#}");
}
