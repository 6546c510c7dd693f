//! Archive commands killed at each of their steps, without disk space, without permission, or with a wrong
//! clock.
//!
//! After each fault, no acknowledged file is missing, no wrong data is returned, the next run repairs the
//! archive, and no temporary file remains.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use walden_archive::get::{GetError, get};
use walden_archive::name::ArchivedFile;
use walden_archive::store::Folder;
use walden_archive::{Archive, ArchiveError, verified};
use walden_testing::{Missing, Need, Outcome};

use crate::material::{Run, golden, link_program, make_archive, walden};

walden_testing::tests! {
    a_push_that_is_killed_at_any_step_loses_nothing,
    a_get_that_is_killed_at_any_step_leaves_a_whole_file_or_none,
    packing_that_is_killed_at_any_step_loses_nothing,
    pruning_that_is_killed_at_any_step_loses_nothing,
    a_disk_that_is_full_at_any_step_loses_nothing,
    a_disk_that_fills_up_loses_nothing,
    what_lies_ready_gives_way_to_what_recovery_asks_for,
    what_may_only_be_read_is_read_and_not_written,
    what_may_not_be_read_is_not_called_damaged,
    a_clock_that_was_set_loses_nothing,
}

/// System calls that change a file system, or make it durable.
const STEPS: [&str; 13] = [
    "write",
    "fsync",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "mkdir",
    "unlink",
    "unlinkat",
    "ftruncate",
    "flock",
    "fchmod",
];
const NAMES: [&str; 2] = ["00000001000000000000000A", "00000001000000000000000B"];

/// A server's pg_wal and an archive.
struct Place {
    root: TempDir,
}

impl Place {
    /// Creates a place with two ready segments.
    fn new() -> Place {
        let place = Place { root: tempfile::tempdir().unwrap() };
        make_archive(&place.repo());
        let marks = place.wal().join("archive_status");
        fs::create_dir_all(&marks).unwrap();
        let segments = golden("18.6");
        for name in NAMES {
            fs::write(place.wal().join(name), &segments[name]).unwrap();
            fs::write(marks.join(format!("{name}.ready")), b"").unwrap();
        }
        place
    }

    /// Creates a place whose archive has both segments, and a backup that needs the second one.
    fn archived() -> Place {
        let place = Place::new();
        let history = format!("{}.00000028.backup", NAMES[1]);
        let text = format!(
            "START WAL LOCATION: 0/B00028 (file {0})\nSTOP WAL LOCATION: 0/B00100 (file {0})\nLABEL: x\n",
            NAMES[1]
        );
        fs::write(place.wal().join(&history), text).unwrap();
        for name in [NAMES[0], &history] {
            let pushed = walden(&place.push(name));
            assert_eq!(pushed.code, 0, "{pushed:?}");
        }
        place
    }

    /// Copies another place.
    fn copy_of(other: &Place) -> Place {
        let place = Place { root: tempfile::tempdir().unwrap() };
        let status =
            Command::new("cp").arg("-a").arg(other.root.path().join(".")).arg(place.root.path()).status();
        assert!(status.unwrap().success());
        place
    }

    fn wal(&self) -> PathBuf {
        self.root.path().join("pg_wal")
    }

    fn repo(&self) -> PathBuf {
        self.root.path().join("repo")
    }

    fn push(&self, name: &str) -> Vec<String> {
        self.arguments(&["push", "--threads", "1"], &[&self.wal().join(name)])
    }

    fn arguments(&self, command: &[&str], paths: &[&Path]) -> Vec<String> {
        let mut arguments = vec!["archive".to_owned()];
        arguments.extend(command.iter().map(|&argument| argument.to_owned()));
        arguments.extend(["--repo".to_owned(), self.repo().display().to_string()]);
        arguments.extend(paths.iter().map(|path| path.display().to_string()));
        arguments
    }

    /// Returns whether a file is in the archive. If so, checks that it is restored exactly.
    fn has(&self, name: &str, what: &str) -> bool {
        let archive = Archive::new(Box::new(Folder::new(self.repo())));
        let target = self.root.path().join("target");
        match get(&archive, ArchivedFile::parse(name).unwrap(), &target) {
            Ok(()) => {
                assert!(fs::read(&target).unwrap() == golden("18.6")[name], "{what}: {name}");
                true
            }
            Err(GetError::NotThere { .. }) => false,
            // Nothing has been stored yet.
            Err(GetError::Archive { source: ArchiveError::Missing(_), .. }) => false,
            Err(error) => panic!("{what}: {name}: {error:?}"),
        }
    }

    fn objects(&self) -> Vec<String> {
        let mut found: Vec<_> = files(&self.repo())
            .into_iter()
            .filter(|name| name.ends_with("wlz") || name.ends_with("wpk"))
            .collect();
        found.sort();
        found
    }

    fn expect_no_leftovers(&self, what: &str) {
        let found: Vec<_> =
            files(self.root.path()).into_iter().filter(|name| name.ends_with(".tmp")).collect();
        assert!(found.is_empty(), "{what}: {found:?}");
    }
}

/// Returns the names of all files below a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.file_name().into_string().unwrap()),
        }
    }
    found
}

/// A step: the k-th invocation of a system call.
#[derive(Clone, Copy, Debug)]
struct Step {
    call: &'static str,
    number: u32,
}

/// Runs the program with a fault injected at a step.
fn run_with(strace: &Path, fault: &str, step: Step, arguments: &[String]) -> Run {
    let Step { call, number } = step;
    let mut command = Command::new(strace);
    command.args(["-qq", "-o", "/dev/null", "-e"]).arg(format!("trace={call}"));
    command.arg("-e").arg(format!("inject={call}:{fault}:when={number}"));
    Run::execute(command.arg(env!("CARGO_BIN_EXE_walden")).args(arguments))
}

/// Finds `strace`, if tracing is permitted here.
pub fn strace() -> Result<PathBuf, Missing> {
    let strace = Need::Strace.find()?;
    let traced = Command::new(&strace).args(["-qq", "-o", "/dev/null", "true"]).output();
    match traced.is_ok_and(|output| output.status.success()) {
        true => Ok(strace),
        false => Err(Need::Strace.missing("strace may not trace here")),
    }
}

const KILL: &str = "signal=KILL";
const KILLED: [i32; 2] = [-1, 128 + 9];

/// Runs a command on a copy of a place, killed at its k-th step, for every k; then runs it once more.
fn kill_at_every_step(
    master: &Place,
    arguments: impl Fn(&Place) -> Vec<String>,
    check: impl Fn(&Place, &str),
    check_repaired: impl Fn(&Place, &str),
) -> Outcome {
    let strace = strace()?;
    let mut killed = 0;
    for call in STEPS {
        for number in 1.. {
            let step = Step { call, number };
            let what = format!("killed at {step:?}");
            let place = Place::copy_of(master);
            let arguments = arguments(&place);
            let run = run_with(&strace, KILL, step, &arguments);
            check(&place, &what);
            let again = walden(&arguments);
            assert_eq!(again.code, 0, "{what}: {again:?}");
            check_repaired(&place, &what);
            place.expect_no_leftovers(&what);
            if run.code == 0 {
                break;
            }
            assert!(KILLED.contains(&run.code), "{what}: {run:?}");
            killed += 1;
        }
    }
    assert!(killed > 4, "only {killed} steps");
    Ok(())
}

fn a_push_that_is_killed_at_any_step_loses_nothing() -> Outcome {
    let check = |place: &Place, what: &str| {
        // Nothing was acknowledged. Existing files are complete, and no file exists without its predecessors.
        let [first, second] = NAMES.map(|name| place.has(name, what));
        assert!(first || !second, "{what}");
    };
    let check_repaired = |place: &Place, what: &str| {
        assert!(NAMES.iter().all(|name| place.has(name, what)), "{what}");
        assert_eq!(place.objects().len(), 2, "{what}");
    };
    kill_at_every_step(&Place::new(), |place| place.push(NAMES[0]), check, check_repaired)
}

fn a_get_that_is_killed_at_any_step_leaves_a_whole_file_or_none() -> Outcome {
    let target = |place: &Place| place.wal().join("RECOVERYXLOG");
    let is_whole = |place: &Place| {
        fs::read(target(place)).is_ok_and(|content| {
            assert!(content == golden("18.6")[NAMES[1]]);
            true
        })
    };
    let arguments = |place: &Place| place.arguments(&["get", "--prefetch", "0", NAMES[1]], &[&target(place)]);
    let check = |place: &Place, _: &str| {
        is_whole(place);
    };
    kill_at_every_step(&Place::archived(), arguments, check, |place, what| assert!(is_whole(place), "{what}"))
}

fn packing_that_is_killed_at_any_step_loses_nothing() -> Outcome {
    let check = |place: &Place, what: &str| {
        assert!(NAMES.iter().all(|name| place.has(name, what)), "{what}");
    };
    let check_repaired = |place: &Place, what: &str| {
        check(place, what);
        let objects = place.objects();
        assert!(objects.len() == 2 && objects[0].ends_with(".wpk"), "{what}: {objects:?}");
    };
    let arguments = |place: &Place| place.arguments(&["pack", "--segments", "2", "--keep", "0"], &[]);
    kill_at_every_step(&Place::archived(), arguments, check, check_repaired)
}

fn pruning_that_is_killed_at_any_step_loses_nothing() -> Outcome {
    let check = |place: &Place, what: &str| assert!(place.has(NAMES[1], what), "{what}");
    let check_repaired = |place: &Place, what: &str| {
        check(place, what);
        assert_eq!(place.objects().len(), 2, "{what}");
    };
    let master = Place::archived();
    // An older backup provides more to remove.
    let history = format!("{}.00000028.backup", NAMES[0]);
    let text = format!("START WAL LOCATION: 0/A00028 (file {})\n", NAMES[0]);
    fs::write(master.wal().join(&history), text).unwrap();
    assert_eq!(walden(&master.push(&history)).code, 0);
    let arguments = |place: &Place| {
        place.arguments(&["prune", "--keep-backups", "1", "--assume-backups-exist", "--apply"], &[])
    };
    kill_at_every_step(&master, arguments, check, check_repaired)
}

/// Each step fails once for lack of space. The command's report must be true, and the command must work when
/// there is space again.
fn a_disk_that_is_full_at_any_step_loses_nothing() -> Outcome {
    let strace = strace()?;
    let (fresh, archived) = (Place::new(), Place::archived());
    let pack = |place: &Place| place.arguments(&["pack", "--segments", "2", "--keep", "0"], &[]);
    let push = |place: &Place| place.push(NAMES[0]);
    type Arguments<'a> = &'a dyn Fn(&Place) -> Vec<String>;
    let commands: [(&Place, Arguments<'_>, usize); 2] = [(&fresh, &push, 2), (&archived, &pack, 2)];
    for (master, arguments, objects) in commands {
        let mut failures = 0;
        // The first steps of each kind cover one object from start to end, and more.
        for step in STEPS.into_iter().flat_map(|call| (1..5).map(move |number| Step { call, number })) {
            let place = Place::copy_of(master);
            let arguments = arguments(&place);
            let what = format!("{} without space at {step:?}", arguments[1]);
            let run = run_with(&strace, "error=ENOSPC", step, &arguments);
            assert!((0..=3).contains(&run.code) && !run.stderr.contains("panicked"), "{what}: {run:?}");
            let is_archived = run.code == 0 || master.has(NAMES[0], &what);
            assert!(!is_archived || place.has(NAMES[0], &what), "{what}: {run:?}");
            let again = walden(&arguments);
            assert_eq!(again.code, 0, "{what}: {again:?}");
            assert!(NAMES.iter().all(|name| place.has(name, &what)), "{what}");
            assert_eq!(place.objects().len(), objects, "{what}");
            place.expect_no_leftovers(&what);
            failures += u32::from(run.code != 0);
        }
        assert!(failures >= 5, "only {failures} steps failed");
    }
    Ok(())
}

/// A separate file system, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: &Path, options: &str) -> Result<SmallDisk, Missing> {
        fs::create_dir_all(folder).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder).output();
        match mounted.is_ok_and(|output| output.status.success()) {
            true => Ok(SmallDisk(folder.to_owned())),
            false => {
                Err(Missing { reason: "needs the right to mount a small file system (root)".to_owned() })
            }
        }
    }

    fn remount(&self, options: &str) {
        let status =
            Command::new("mount").args(["-o"]).arg(format!("remount,{options}")).arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn a_disk_that_fills_up_loses_nothing() -> Outcome {
    let place = Place::new();
    let disk = SmallDisk::mount(&place.repo(), "size=64m")?;
    make_archive(&place.repo());
    disk.remount(&format!("size={}", files_sizes(&place.repo()) + 8192));
    let pushed = walden(&place.push(NAMES[0]));
    assert_eq!(pushed.code, 1, "{pushed:?}");
    assert!(pushed.stderr.contains("No space left") && pushed.stderr.contains("HINT: "), "{pushed:?}");
    assert!(!place.has(NAMES[0], "full"));
    place.expect_no_leftovers("full");
    disk.remount("size=64m");
    assert_eq!(walden(&place.push(NAMES[0])).code, 0);
    assert!(NAMES.iter().all(|name| place.has(name, "not full any more")));
    // There is no space for a pack next to its segments.
    let stored: u64 = files_sizes(&place.repo());
    disk.remount(&format!("size={}k", stored / 1024 + 8));
    let arguments = place.arguments(&["pack", "--segments", "2", "--keep", "0"], &[]);
    let packed = walden(&arguments);
    assert_eq!(packed.code, 1, "{packed:?}");
    assert!(NAMES.iter().all(|name| place.has(name, "full")));
    place.expect_no_leftovers("full");
    disk.remount("size=64m");
    assert_eq!(walden(&arguments).code, 0);
    assert!(NAMES.iter().all(|name| place.has(name, "packed")) && place.objects().len() == 1);
    // There is no space for the exported files, which does not mean damage.
    let plain = place.root.path().join("plain");
    let _small = SmallDisk::mount(&plain, "size=1m")?;
    let exported = walden(&place.arguments(&["export", "-o", plain.to_str().unwrap()], &[]));
    assert_eq!(exported.code, 3, "{exported:?}");
    let says = |text: &str| exported.stderr.contains(text);
    assert!(says("error: cannot write") && says("hint: free some space") && !says("verify"), "{exported:?}");
    Ok(())
}

fn what_lies_ready_gives_way_to_what_recovery_asks_for() -> Outcome {
    let place = Place::archived();
    let data = place.root.path().join("data");
    let disk = SmallDisk::mount(&data, "size=32m")?;
    fs::create_dir_all(data.join("pg_wal")).unwrap();
    fs::write(data.join("postmaster.pid"), format!("{}\n", std::process::id())).unwrap();
    fs::write(data.join("recovery.signal"), "").unwrap();
    let target = data.join("pg_wal/RECOVERYXLOG");
    let get_first = place.arguments(&["get", NAMES[0]], &[&target]);
    assert_eq!(walden(&get_first).code, 0);
    let began = std::time::Instant::now();
    while !files(&data).iter().any(|path| path.ends_with(NAMES[1])) {
        assert!(began.elapsed().as_secs() < 60, "nothing is fetched ahead");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // There is space for prefetched files, and for half of the requested file.
    fs::remove_file(&target).unwrap();
    disk.remount(&format!("size={}k", files_sizes(&data) / 1024 + 512));
    let again = walden(&get_first);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(fs::read(&target).unwrap() == golden("18.6")[NAMES[0]]);
    // No prefetched file remains that could be removed.
    let full = walden(&place.arguments(&["get", NAMES[1]], &[&data.join("pg_wal/other")]));
    assert!(full.code > 125 && full.stderr.contains("cannot write "), "{full:?}");
    assert!(full.stderr.contains("HINT: make room in the file system of the file"), "{full:?}");
    Ok(())
}

fn files_sizes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => files_sizes(&entry.path()),
            false => entry.metadata().unwrap().len().next_multiple_of(4096),
        })
        .sum()
}

fn what_may_only_be_read_is_read_and_not_written() -> Outcome {
    let place = Place::archived();
    let folder = place.root.path().join("disk");
    let disk = SmallDisk::mount(&folder, "size=64m")?;
    let copied = Command::new("cp").arg("-a").arg(place.repo().join(".")).arg(&folder).status();
    assert!(copied.unwrap().success());
    disk.remount("ro");
    let on_disk = |command: &[&str], path: Option<&Path>| {
        let mut arguments: Vec<String> = vec!["archive".to_owned()];
        arguments.extend(command.iter().map(|&argument| argument.to_owned()));
        arguments.extend(["--repo".to_owned(), folder.display().to_string()]);
        arguments.extend(path.map(|path| path.display().to_string()));
        walden(&arguments)
    };
    // A file that the archive has is acknowledged. A new one is refused, with the reason.
    let again = on_disk(&["push", "--threads", "1"], Some(&place.wal().join(NAMES[0])));
    assert_eq!(again.code, 0, "{again:?}");
    let history = place.wal().join("00000002.history");
    fs::write(&history, "1\t0/B80000\tx\n").unwrap();
    let refused = on_disk(&["push"], Some(&history));
    assert!(refused.code == 1 && refused.stderr.contains("Read-only"), "{refused:?}");
    let target = place.root.path().join("target");
    let got = on_disk(&["get", "--prefetch", "0", NAMES[0]], Some(&target));
    assert_eq!(got.code, 0, "{got:?}");
    for command in [&["list"][..], &["verify"], &["pack", "--dry-run"], &["prune", "--keep-backups", "1"]] {
        let run = on_disk(command, None);
        assert_eq!(run.code, 0, "{command:?}: {run:?}");
    }
    for command in [
        &["pack", "--segments", "2", "--keep", "0"][..],
        &["prune", "--keep-backups", "1", "--assume-backups-exist", "--apply"],
    ] {
        let run = on_disk(command, None);
        assert!([1, 3].contains(&run.code) && !run.stderr.contains("panicked"), "{command:?}: {run:?}");
        assert!((run.stdout + &run.stderr).contains("Read-only"), "{command:?}");
    }
    disk.remount("rw");
    expect_denied(&folder, &place);
    Ok(())
}

/// Tests an account without read permission.
fn expect_denied(folder: &Path, place: &Place) {
    let program = link_program(place.root.path());
    let readable = Command::new("chmod").arg("-R").arg("a+rX").arg(place.root.path()).status();
    assert!(readable.unwrap().success());
    let closed = Command::new("chmod").arg("0700").arg(folder).status();
    assert!(closed.unwrap().success());
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        Run::execute(command.arg("archive").args(arguments).arg("--repo").arg(folder).current_dir("/"))
    };
    let segment = place.wal().join(NAMES[0]);
    let pushed = as_nobody(&["push", segment.to_str().unwrap()]);
    assert!(pushed.code == 1 && pushed.stderr.contains("Permission denied"), "{pushed:?}");
    // Recovery must stop, and not take it for the archive's end.
    let got = as_nobody(&["get", "--prefetch", "0", NAMES[0], "/tmp/never-written"]);
    assert!(got.code > 125 && got.stderr.contains("Permission denied"), "{got:?}");
    for command in
        [&["pack"][..], &["prune", "--keep-backups", "1", "--assume-backups-exist", "--apply"], &["list"]]
    {
        let run = as_nobody(command);
        assert!(run.code == 3 && run.stderr.contains("Permission denied"), "{command:?}: {run:?}");
    }
}

/// A permission error does not mean that objects are damaged, and a run that could not read some objects must
/// not clear the findings of an earlier one.
fn what_may_not_be_read_is_not_called_damaged() {
    let place = Place::new();
    for name in NAMES {
        let pushed = walden(&place.push(name));
        assert_eq!(pushed.code, 0, "{pushed:?}");
    }
    let object = |name: &str| place.repo().join(format!("wal/00000001/00000000/{name}.wlz"));
    let damaged = || {
        let archive = Archive::new(Box::new(Folder::new(place.repo())));
        verified::last(&archive).unwrap().found().map(|run| run.damaged)
    };
    let verify = || walden(&place.arguments(&["verify"], &[]));
    let whole = fs::read(object(NAMES[0])).unwrap();
    fs::write(object(NAMES[0]), b"damaged").unwrap();
    assert_eq!((verify().code, damaged()), (1, Some(1)));
    fs::write(object(NAMES[0]), whole).unwrap();
    // The tests may run as root, who may read everything.
    let program = link_program(place.root.path());
    let readable = Command::new("chmod").arg("-R").arg("a+rX").arg(place.root.path()).status();
    assert!(readable.unwrap().success());
    fs::set_permissions(object(NAMES[1]), fs::Permissions::from_mode(0o000)).unwrap();
    let verify_as_other = |format: &str| {
        let mut command = Command::new(&program);
        if rustix::process::geteuid().is_root() {
            command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        }
        Run::execute(command.args(place.arguments(&["verify", "--format", format], &[])).current_dir("/"))
    };
    let run = verify_as_other("table");
    let says = |text: &str| run.stdout.contains(text);
    assert!(run.code == 1 && says("1 object could not be read") && says("Permission denied"), "{run:?}");
    assert!(says("HINT: nothing shows that they are damaged") && !says("DAMAGED"), "{run:?}");
    let run = verify_as_other("json");
    let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(found["damaged"], serde_json::json!([]), "{run:?}");
    let unreadable = found["unreadable"][0]["object"].as_str().unwrap();
    assert!(run.code == 1 && unreadable.contains(NAMES[1]), "{run:?}");
    assert_eq!(damaged(), Some(1));
    // The error names the folder that cannot be listed.
    let folder = place.repo().join("wal/00000001");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o000)).unwrap();
    let run = verify_as_other("table");
    let expected = format!("{}: ", folder.display());
    assert!(run.code == 3 && run.stderr.contains(&expected), "{run:?}");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(object(NAMES[1]), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!((verify().code, damaged()), (0, Some(0)));
}

/// The local clock may only affect how much is packed, never cause a removal.
fn a_clock_that_was_set_loses_nothing() -> Outcome {
    let faketime = Need::Faketime.find()?;
    let master = Place::archived();
    for clock in ["1971-01-01 00:00:00", "2099-01-01 00:00:00"] {
        let place = Place::copy_of(&master);
        let at = |command: &[&str]| {
            let arguments = place.arguments(command, &[]);
            Run::execute(Command::new(&faketime).arg(clock).arg(env!("CARGO_BIN_EXE_walden")).args(arguments))
        };
        let pruned = at(&["prune", "--keep-days", "1", "--assume-backups-exist", "--apply"]);
        assert_eq!(pruned.code, 0, "{clock}: {pruned:?}");
        assert_eq!(place.objects(), master.objects(), "{clock}");
        let packed = at(&["pack", "--segments", "2", "--keep", "0", "--older-than", "1d"]);
        assert_eq!(packed.code, 0, "{clock}: {packed:?}");
        assert!(NAMES.iter().all(|name| place.has(name, clock)), "{clock}");
        place.expect_no_leftovers(clock);
    }
    Ok(())
}
