//! Ctrl-C at any time during pack, import and export: the commands end immediately, leave no partial files,
//! and continue when rerun.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::archive::{json, text};
use crate::material::{golden, walden, write};

walden_testing::tests! {
    an_interrupted_pack_leaves_every_segment_and_goes_on,
    an_interrupted_import_leaves_whole_objects_and_goes_on,
    an_interrupted_export_leaves_whole_files_and_goes_on,
}

/// Writes those segments of version 18 that a server would have archived.
fn segments(folder: &Path) -> PathBuf {
    let wal = folder.join("wal");
    for (name, bytes) in golden("18.6").iter().take(2) {
        write(&wal, name, bytes);
    }
    wal
}

/// Creates an archive of these segments.
fn archived(folder: &Path) -> PathBuf {
    let (wal, repo) = (segments(folder), folder.join("repo"));
    let imported = walden(&["archive", "import", "--repo", text(&repo), text(&wal)]);
    assert_eq!(imported.code, 0, "{imported:?}");
    repo
}

/// Retries until a command was interrupted at least once: on a busy machine it may end before this process is
/// scheduled.
fn until_interrupted(attempt: impl Fn() -> bool) {
    assert!((0..5).any(|_| attempt()), "it was never interrupted while it worked");
}

/// Runs a command repeatedly, and interrupts it later each time, until it ends before the interrupt. Calls
/// `check` each time. Returns whether any run was interrupted.
fn interrupt(arguments: &[&str], check: &dyn Fn(bool)) -> bool {
    let mut delay = Duration::ZERO;
    let mut is_handled = false;
    loop {
        let mut running = Command::new(env!("CARGO_BIN_EXE_walden"))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The delay starts when the handler is installed: a program's startup time depends on the machine's
        // load.
        wait_for_handler(&mut running);
        std::thread::sleep(delay);
        // The process ID of an ended child remains valid until `wait`.
        let pid = rustix::process::Pid::from_child(&running);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let began = Instant::now();
        let status = running.wait().unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "it continues for {:?}", began.elapsed());
        if status.success() {
            check(true);
            break;
        }
        assert_eq!(status.code(), Some(130), "{delay:?}: {status:?}");
        is_handled = true;
        check(false);
        delay = delay * 5 / 4 + Duration::from_millis(1);
    }
    is_handled
}

/// Waits until a program catches SIGINT, or has ended.
pub fn wait_for_handler(running: &mut Child) {
    let status = format!("/proc/{}/status", running.id());
    while running.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        if caught & (1 << (rustix::process::Signal::INT.as_raw() - 1)) != 0 {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns the files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

fn expect_nothing_unfinished(folder: &Path) {
    let is_temporary = |path: &PathBuf| text(path).ends_with("tmp");
    let unfinished: Vec<PathBuf> = files(folder).into_iter().filter(is_temporary).collect();
    assert_eq!(unfinished, Vec::<PathBuf>::new());
}

fn an_interrupted_pack_leaves_every_segment_and_goes_on() {
    until_interrupted(pack);
}

fn pack() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let repo = archived(folder.path());
    let pack = ["archive", "pack", "--repo", text(&repo), "--segments", "2", "--keep", "0", "--level", "9"];
    let is_interrupted = interrupt(&pack, &|_| {
        expect_nothing_unfinished(&repo);
        let listing = json(&["archive", "list", "--format", "json", "--repo", text(&repo)]);
        let timeline = &listing["timelines"][0];
        assert_eq!((&timeline["segments"], &timeline["gaps"]), (&2.into(), &serde_json::json!([])));
    });
    assert!(files(&repo).iter().any(|path| text(path).ends_with(".wpk")));
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    is_interrupted
}

fn an_interrupted_import_leaves_whole_objects_and_goes_on() {
    until_interrupted(import);
}

fn import() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let (wal, repo) = (segments(folder.path()), folder.path().join("repo"));
    let import = ["archive", "import", "--repo", text(&repo), "--level", "9", text(&wal)];
    let is_interrupted = interrupt(&import, &|is_done| {
        expect_nothing_unfinished(&repo);
        let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
        // The archive exists only after the first segment.
        assert!(
            verified.code == 0 || (!is_done && verified.stderr.contains("cannot find an archive")),
            "{verified:?}"
        );
    });
    let listing = json(&["archive", "list", "--format", "json", "--repo", text(&repo)]);
    assert_eq!(listing["timelines"][0]["segments"], 2, "{listing:#}");
    is_interrupted
}

fn an_interrupted_export_leaves_whole_files_and_goes_on() {
    until_interrupted(export);
}

fn export() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let repo = archived(folder.path());
    let target = folder.path().join("out");
    let originals = golden("18.6");
    let export = ["archive", "export", "--repo", text(&repo), "--threads", "1", "-o", text(&target)];
    interrupt(&export, &|is_done| {
        expect_nothing_unfinished(&target);
        let found = files(&target);
        assert!(!is_done || found.len() == 2, "{found:?}");
        for path in found {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(fs::read(&path).unwrap() == originals[name], "{name}");
        }
    })
}
