//! Damaged input to the program: truncated, with flipped bits, or files of other kinds. `walden-format` tests
//! every truncation and every bit.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use walden_format::lsn::Lsn;

use crate::material::{
    Run, explain, golden, golden_segment, link_program, records_of, segment_start, walden, write,
};

walden_testing::tests! {
    the_program_explains_what_is_before_a_cut,
    the_program_explains_what_is_before_a_flipped_bit,
    files_that_are_not_wal_are_named,
    segments_cut_within_their_first_header_are_refused,
    an_unreadable_file_is_named,
    an_unreadable_segment_of_a_folder_is_named_once,
    a_moment_before_the_log_is_refused_with_the_logs_range,
    wrong_usage_is_exit_status_2,
    a_closed_pipe_or_a_full_disk_is_no_panic,
    exhausted_memory_is_reported_with_a_remedy,
}

const PAGE: usize = 8192;

fn in_page_header(at: usize) -> bool {
    at % PAGE < if at < PAGE { 40 } else { 24 }
}

/// Expects one error with the location and the reason, after all output for the intact part. Returns its
/// line.
fn damage_is_reported(run: &Run, segment_name: &str) -> String {
    run.assert_no_panic();
    assert_eq!(run.code, 3, "{run:?}");
    let [error] = run.errors()[..] else { panic!("{} errors: {}", run.errors().len(), run.stderr) };
    for word in [segment_name, "LSN ", "offset ", "expected ", "found "] {
        assert!(error.contains(word), "no \"{word}\" in: {error}");
    }
    assert_eq!(run.stderr.lines().filter(|line| line.starts_with("hint: ")).count(), 1, "{}", run.stderr);
    error.to_owned()
}

fn the_program_explains_what_is_before_a_cut() {
    let (name, segment) = golden_segment();
    let original = records_of(&segment);
    let folder = tempfile::tempdir().unwrap();
    for step in 0..20 {
        let cut = PAGE + step * 51_437;
        let path = write(folder.path(), &name, &segment[..cut]);
        let run = explain(&[&path]);
        let error = damage_is_reported(&run, &name);
        assert!(error.contains(&format!("expected {} bytes, found {cut}", segment.len())), "{error}");
        let place = Lsn(segment_start(&segment).0 + cut as u64);
        let before = original.partition_point(|record| record.end <= place);
        let json = run.json();
        assert_eq!(json["records"], before as u64, "cut at {cut}");
        assert!(json["file_bytes"].as_u64().unwrap() <= cut as u64);
    }
}

fn the_program_explains_what_is_before_a_flipped_bit() {
    let (name, segment) = golden_segment();
    let original = records_of(&segment);
    let folder = tempfile::tempdir().unwrap();
    // Skips the first record: damage there leaves nothing to explain, see below.
    for step in 1..=20 {
        let index = original.len() * step / 21;
        let record = original[index];
        let mut bytes = segment.clone();
        let at = (record.lsn.0 - segment_start(&segment).0) as usize + 21;
        // Skips records for which this byte is in the next page's header.
        if in_page_header(at) {
            continue;
        }
        bytes[at] ^= 0x10;
        let run = explain(&[write(folder.path(), &name, &bytes)]);
        let error = damage_is_reported(&run, &name);
        assert!(error.contains(&format!("LSN {}", record.lsn)), "{error}");
        assert!(error.contains("CRC"), "{error}");
        let json = run.json();
        assert_eq!(json["records"], index as u64);
        let explained = record.lsn.0 - segment_start(&segment).0;
        // The record may follow a page header, which is not counted without the record.
        assert!(json["file_bytes"].as_u64().unwrap().abs_diff(explained) <= 24);
        assert_eq!(json["damage"]["lsn"], record.lsn.to_string());
    }
}

/// Expects the error for a file or folder without WAL: one line with `words`, exit status 3, nothing on
/// standard output.
fn refused<P: AsRef<Path>>(path: P, words: &[&str]) {
    is_refused(&walden(&["explain".as_ref(), path.as_ref().as_os_str()]), words);
}

fn is_refused(run: &Run, words: &[&str]) {
    run.assert_no_panic();
    assert_eq!(run.code, 3, "{run:?}");
    assert_eq!(run.errors().len(), 1, "{run:?}");
    assert_eq!(run.stdout, "");
    for word in words {
        assert!(run.stderr.contains(word), "no \"{word}\" in: {}", run.stderr);
    }
}

fn files_that_are_not_wal_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (name, segment) = golden_segment();
    let with_magic = |magic: u16| {
        let mut bytes = segment.clone();
        for page in bytes.chunks_mut(PAGE) {
            page[..2].copy_from_slice(&magic.to_le_bytes());
        }
        bytes
    };
    let missing = folder.path().join("missing");
    refused(&missing, &[missing.to_str().unwrap(), "no such file"]);
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    refused(&empty, &[empty.to_str().unwrap()]);
    refused(
        write(folder.path(), "text", b"The quick brown fox\n".repeat(600).as_slice()),
        &["text", "not a WAL segment"],
    );
    refused(write(folder.path(), "zero", b""), &["zero", "empty"]);
    refused(write(folder.path(), &format!("old/{name}"), &with_magic(0xD07E)), &[&name, "9.4", "D07E"]);
    refused(write(folder.path(), &format!("new/{name}"), &with_magic(0xD1F0)), &[&name, "newer", "D1F0"]);
    refused(folder.path().join("new"), &[&name, "newer"]);
}

fn segments_cut_within_their_first_header_are_refused() {
    let (name, segment) = golden_segment();
    let folder = tempfile::tempdir().unwrap();
    for cut in [1, 2, 3, 15, 16, 20, 23, 24, 39] {
        refused(write(folder.path(), &name, &segment[..cut]), &[&name]);
    }
}

fn an_unreadable_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (name, segment) = golden_segment();
    let path = write(folder.path(), &name, &segment);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let run = as_unprivileged_user(folder.path(), &["explain", path.to_str().unwrap()]);
    is_refused(
        &run,
        &[&name, "ermission", "walden runs as user ", "the mode 0000", "hint: the user that runs walden"],
    );
}

/// Each command names it once, with the user and the remedy, and calls no segment missing.
fn an_unreadable_segment_of_a_folder_is_named_once() {
    let page = ["page", "--relation", "base/5/16384", "--block", "0"];
    let rows = ["rows", "--relation", "public.orders"];
    let commands: [&[&str]; 5] = [&["explain"], &["whatif"], &page, &rows, &["redo", "check"]];
    let names: Vec<String> = golden("18.6").into_keys().collect();
    let folder = tempfile::tempdir().unwrap();
    for (name, segment) in golden("18.6") {
        write(folder.path(), &name, &segment);
    }
    for unreadable in &names {
        let path = folder.path().join(unreadable);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        for command in commands {
            let run =
                as_unprivileged_user(folder.path(), &[command, &[folder.path().to_str().unwrap()]].concat());
            run.assert_no_panic();
            let lines = |part: &str| run.stderr.lines().filter(|line| line.contains(part)).count();
            let errors = run.errors().into_iter().filter(|line| line.contains("ermission denied"));
            let errors: Vec<&str> = errors.collect();
            let [error] = errors[..] else { panic!("{run:?}") };
            assert_eq!(run.code, 3, "{run:?}");
            let parts = [unreadable, "ermission denied", "walden runs as user ", "the mode 0000"];
            assert!(parts.iter().all(|part| error.contains(part)), "{run:?}");
            assert_eq!(lines("hint: the user that runs walden needs to read the files"), 1, "{run:?}");
            assert_eq!(lines("is missing"), 0, "{run:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }
}

fn a_moment_before_the_log_is_refused_with_the_logs_range() {
    let (name, segment) = golden_segment();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &name, &segment);
    let path = folder.path().to_str().unwrap();
    let run = walden(&["page", path, "--relation", "1663/5/16385", "--block", "0", "--at", "0/1"]);
    run.assert_no_panic();
    assert_eq!(run.code, 1, "{run:?}");
    let start = segment_start(&segment);
    let range = format!("the WAL that was read is from {start} to {}", start.plus(segment.len() as u64));
    assert!(matches!(run.errors()[..], [error] if error.contains(&range)), "{run:?}");
}

/// Runs the program; root may read every file, so as root it runs as `nobody`, where this user can reach it.
fn as_unprivileged_user(folder: &Path, arguments: &[&str]) -> Run {
    let mut program = PathBuf::from(env!("CARGO_BIN_EXE_walden"));
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if is_root {
        program = folder.join("walden");
        if !program.exists() {
            program = link_program(folder);
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(program);
    command.args(arguments);
    if is_root {
        /// The overflow UID on Linux, usually named `nobody`.
        const OVERFLOW_UID: u32 = 65534;
        command.uid(OVERFLOW_UID).gid(OVERFLOW_UID);
    }
    Run::execute(&mut command)
}

fn wrong_usage_is_exit_status_2() {
    for arguments in [
        vec!["explain"],
        vec!["explain", "--by", "colour", "."],
        vec!["explain", "--by", "relation,relation", "."],
        vec!["explain", "--from", "yesterday", "."],
        vec!["explain", "--every", "0", "."],
        vec!["explain", "--threads", "0", "."],
        vec!["explain", "--format", "xml", "."],
        vec!["explain", "--save-names", "names.json", "."],
        vec!["no-such-command"],
    ] {
        let run = walden(&arguments);
        run.assert_no_panic();
        assert_eq!(run.code, 2, "{arguments:?}: {run:?}");
        assert!(run.stdout.is_empty() && run.stderr.contains("error:"), "{arguments:?}: {run:?}");
    }
}

/// A reader that closes the pipe, as in `walden ... | head`, is no error; a full disk is.
fn a_closed_pipe_or_a_full_disk_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let (name, segment) = golden_segment();
    let segment = write(folder.path(), &name, &segment);
    let segment = segment.to_str().unwrap();
    let commands: [&[&str]; 9] = [
        &["--help"],
        &["--version"],
        &["explain", "--help"],
        &["help", "archive", "get"],
        &["lab", "list"],
        &["lab", "list", "--format", "json"],
        &["explain", segment],
        &["compress", "--force", segment],
        &["test", &format!("{segment}.wlz")],
    ];
    for arguments in commands {
        let run = |stdout: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
            let output = command.args(arguments).stdout(stdout).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, reported) = run(writer.into());
        assert!(code == Some(0) && !reported.contains("error:"), "{arguments:?}: {code:?} {reported}");
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let (code, reported) = run(full.into());
        assert!(code == Some(3) && !reported.contains("panicked"), "{arguments:?}: {code:?} {reported}");
        assert!(reported.contains("write to standard output: No space left"), "{arguments:?}: {reported}");
    }
}

/// With little address space, a command completes or names the remedy. PostgreSQL would take a status of
/// `get` below 126 for the end of the WAL.
fn exhausted_memory_is_reported_with_a_remedy() {
    let (name, segment) = golden_segment();
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &name, &segment);
    let (path, repo) = (path.display(), folder.path().join("repo"));
    crate::material::make_archive(&repo);
    let repo = repo.display();
    let base = folder.path().join("base");
    let commands = [
        (format!("explain --threads 8 {path}"), 3),
        (format!("whatif --threads 8 --set wal_compression=pglz {path}"), 3),
        (format!("rows {path}"), 3),
        (
            format!(
                "restore --wal {} --base {} -o {}",
                folder.path().display(),
                base.display(),
                base.display()
            ),
            3,
        ),
        (format!("archive push --repo {repo} {path}"), 3),
        (format!("archive get --repo {repo} {name} {}", folder.path().join("got").display()), 200),
    ];
    let mut exhausted = [0; 6];
    let starts = |kilobytes: &u64| {
        let line = format!("ulimit -v {kilobytes}; exec {} --version", env!("CARGO_BIN_EXE_walden"));
        Run::execute(Command::new("sh").args(["-c", &line])).code == 0
    };
    let least = (60_000..400_000).step_by(5000).find(starts).unwrap();
    for kilobytes in (least..least + 100_000).step_by(5000) {
        for (at, (command, status)) in commands.iter().enumerate() {
            let line = format!("ulimit -v {kilobytes}; exec {} {command}", env!("CARGO_BIN_EXE_walden"));
            let run = Run::execute(Command::new("sh").args(["-c", &line]));
            assert!(![101, 134].contains(&run.code) && run.code >= 0, "{line}: {run:?}");
            if run.stderr.contains("out of memory") || run.stderr.contains("cannot start a thread") {
                assert!(run.code == *status && run.stderr.contains("hint: "), "{line}: {run:?}");
                exhausted[at] += 1;
            }
        }
    }
    assert!(exhausted.iter().any(|times| *times > 0), "memory was never exhausted: {exhausted:?}");
}
