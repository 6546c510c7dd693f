//! Files that commands write: an existing file is replaced only with `--force`, and an input of the command
//! never.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use walden_archive::Archive;
use walden_archive::store::Folder;

use crate::material::{Run, golden, walden, write};

walden_testing::tests! {
    an_existing_file_is_replaced_only_with_force,
    a_file_of_the_source_is_never_replaced,
    nothing_is_written_into_a_data_directory_that_is_read,
    an_existing_file_of_a_server_is_never_replaced,
    nothing_is_written_into_an_archive,
    compressed_originals_of_servers_and_archives_stay,
    exports_into_one_folder_at_once_are_refused,
    an_export_keeps_files_of_others,
    metrics_replace_metrics_alone,
    manual_pages_replace_only_with_force,
}

/// A golden cluster with several segments.
const VERSION: &str = "18.6";

/// Commands that write a file whose name follows, and whether they read a source, named last.
const WRITERS: &[(&[&str], bool)] = &[
    (&["explain", "--savings", "never", "--html"], true),
    (&["diff", "--html"], true),
    (&["whatif", "--html"], true),
    (&["whatif", "--sweep", "max_wal_size=1GB,2GB", "--svg"], true),
    (&["sql", "--format", "csv", "SELECT count(*) AS records FROM records", "-o"], true),
    (&["sql", "--format", "json", "SELECT count(*) AS records FROM records", "-o"], true),
    (&["sql", "--format", "table", "SELECT count(*) AS records FROM records", "-o"], true),
    (&["sql", "--format", "parquet", "SELECT count(*) AS records FROM records", "-o"], true),
    (&["rows", "--relation", "base/5/1259", "--format", "parquet", "-o"], true),
    (&["page", "--relation", "base/5/1259", "--block", "0", "--at", "end", "--out"], true),
    (&["watch", "--once", "--save"], true),
    (&["demo", "--html"], false),
    (&["lab", "run", "segment-size", "--out"], false),
    (&["lab", "run", "segment-size", "--html"], false),
    (&["bench", "decode", "--html"], false),
    (&["bench", "redo", "--html"], false),
    (&["bench", "redo", "--calibrate="], false),
    (&["bench", "archive", "--html"], false),
    (&["bench", "codecs", "--html"], false),
    (&["bench", "codecs", "--svg"], false),
];

/// Returns the arguments of a writer. `diff` compares a source with itself.
fn arguments(writer: &[&str], output: &Path, source: Option<&Path>) -> Vec<String> {
    let output = output.to_str().unwrap();
    let mut all: Vec<String> = writer.iter().map(|&word| word.to_owned()).collect();
    match all.last_mut() {
        Some(last) if last.ends_with('=') => last.push_str(output),
        _ => all.push(output.to_owned()),
    }
    let sources = if writer[0] == "diff" { 2 } else { 1 };
    all.extend(source.into_iter().flat_map(|source| std::iter::repeat_n(source, sources)).map(display));
    all
}

fn display(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Returns every file below a folder with its content; for links, the target.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap();
        if kind.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            found.insert(path, target.into_os_string().into_encoded_bytes());
        } else if kind.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// Creates a folder of segments.
fn segments(folder: &Path) -> PathBuf {
    for (name, segment) in golden(VERSION) {
        write(folder, &name, &segment);
    }
    folder.to_owned()
}

fn expect_refusal(run: &Run, reason: &str) {
    assert!(run.code == 2 && run.stderr.contains(reason) && run.stdout.is_empty(), "{reason}: {run:?}");
}

fn an_existing_file_is_replaced_only_with_force() {
    let folder = tempfile::tempdir().unwrap();
    let wal = segments(&folder.path().join("wal"));
    let existing = write(folder.path(), "existing", b"<somebody's>");
    let link = folder.path().join("link");
    symlink(&existing, &link).unwrap();
    let before = files(folder.path());
    // The error appears before any work: the source does not exist.
    let nothing = folder.path().join("nothing");
    for (writer, has_source) in WRITERS {
        for output in [&existing, &link] {
            let run = walden(&arguments(writer, output, has_source.then_some(&nothing)));
            expect_refusal(&run, "exists already; --force replaces it");
        }
    }
    let names = write(folder.path(), "names.json", b"{\"walden_names\": 1}");
    let saved = ["explain", "--names", names.to_str().unwrap(), "--save-names"].map(str::to_owned);
    expect_refusal(&walden(&[&saved[..], &[display(&existing)]].concat()), "exists already");
    fs::remove_file(&names).unwrap();
    assert!(files(folder.path()) == before);

    // With --force, commands that need neither a server nor a base backup replace it, even through a link.
    let is_alone = |writer: &[&str]| !["watch", "rows"].contains(&writer[0]);
    for (writer, _) in WRITERS.iter().filter(|(writer, has_source)| *has_source && is_alone(writer)) {
        fs::write(&existing, b"<somebody's>").unwrap();
        let run = walden(&[arguments(writer, &link, Some(&wal)), vec!["--force".to_owned()]].concat());
        assert!((0..=1).contains(&run.code), "{writer:?}: {run:?}");
        let is_replaced = fs::read(&existing).unwrap() != b"<somebody's>";
        assert!(is_replaced || run.code == 1, "{writer:?}: {run:?}");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}

fn a_file_of_the_source_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let wal = segments(&folder.path().join("wal"));
    let segment = fs::read_dir(&wal).unwrap().next().unwrap().unwrap().path();
    let (link, copy) = (folder.path().join("link"), folder.path().join("copy"));
    symlink(&segment, &link).unwrap();
    fs::hard_link(&segment, &copy).unwrap();
    let before = files(folder.path());
    for (writer, _) in WRITERS.iter().filter(|(_, has_source)| *has_source) {
        for output in [&segment, &link, &copy] {
            for source in [&wal, &segment] {
                for force in [&["--force".to_owned()][..], &[]] {
                    let run = walden(&[&arguments(writer, output, Some(source)), force].concat());
                    expect_refusal(&run, "a file of the source");
                }
            }
        }
    }
    // The arguments after a shell expands `-o wal/*`: the first segment is then not a source.
    for force in [&["--force"][..], &[]] {
        let words = ["sql", "SELECT 1", "--format", "csv", "-o"];
        let expanded = before.keys().filter(|path| path.starts_with(&wal)).map(|path| path.to_str().unwrap());
        let run = walden(&words.into_iter().chain(expanded).chain(force.iter().copied()).collect::<Vec<_>>());
        expect_refusal(&run, "next to a file of the source");
    }
    assert!(files(folder.path()) == before);
}

/// Creates the parts of a data directory that the program reads. `pg_wal` is a link.
fn data_directory(folder: &Path) -> PathBuf {
    let data = folder.join("data");
    write(&data, "PG_VERSION", b"17\n");
    write(&data, "global/pg_control", b"");
    segments(&folder.join("disk/pg_wal"));
    fs::create_dir_all(folder.join("disk/pg_wal/archive_status")).unwrap();
    fs::create_dir_all(folder.join("space/PG_17_1/5")).unwrap();
    fs::create_dir_all(data.join("pg_tblspc")).unwrap();
    symlink(folder.join("disk/pg_wal"), data.join("pg_wal")).unwrap();
    symlink(folder.join("space"), data.join("pg_tblspc/16384")).unwrap();
    data
}

fn nothing_is_written_into_a_data_directory_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_directory(folder.path());
    let before = files(folder.path());
    let outputs = ["data/new", "data/global/new", "data/pg_wal/new", "disk/pg_wal/new", "space/PG_17_1/new"];
    for (writer, _) in WRITERS.iter().filter(|(_, has_source)| *has_source) {
        for output in outputs {
            let output = folder.path().join(output);
            let run = walden(&[arguments(writer, &output, Some(&data)), vec!["--force".to_owned()]].concat());
            expect_refusal(&run, "belongs to a server");
        }
    }
    let pg_wal = data.join("pg_wal");
    for words in [
        vec!["export", "--force", "-o", data.to_str().unwrap(), data.to_str().unwrap()],
        vec!["export", "--force", "-o", pg_wal.to_str().unwrap(), pg_wal.to_str().unwrap()],
        vec!["compress", "--force", pg_wal.to_str().unwrap()],
        vec!["compress", "--force", "--pack", pg_wal.to_str().unwrap()],
    ] {
        let run = walden(&words);
        assert!(run.code == 2 && run.stderr.contains("belongs to a server"), "{words:?}: {run:?}");
    }
    assert!(files(folder.path()) == before);
}

/// This holds for any source, with `--force`, and through a link.
fn an_existing_file_of_a_server_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let wal = segments(&folder.path().join("wal"));
    data_directory(folder.path());
    let other = segments(&folder.path().join("other"));
    let segment = fs::read_dir(&other).unwrap().next().unwrap().unwrap().file_name();
    symlink(folder.path().join("data"), folder.path().join("link")).unwrap();
    let before = files(folder.path());
    let pg_wal = folder.path().join("data/pg_wal").join(&segment);
    let outputs = [
        (folder.path().join("data/global/pg_control"), "belongs to the server"),
        (folder.path().join("link/PG_VERSION"), "belongs to the server"),
        (pg_wal, "belongs to the server"),
        (other.join(&segment), "that of a WAL segment"),
    ];
    for (writer, _) in WRITERS.iter().filter(|(_, has_source)| *has_source) {
        for (output, reason) in &outputs {
            let run = walden(&[arguments(writer, output, Some(&wal)), vec!["--force".to_owned()]].concat());
            expect_refusal(&run, reason);
        }
    }
    assert!(files(folder.path()) == before);
}

/// Creates an archive with the complete golden segments.
fn archive(folder: &Path) -> PathBuf {
    let repo = folder.join("archive");
    Archive::new(Box::new(Folder::new(&repo))).create().unwrap();
    let wal = segments(&folder.join("wal"));
    for name in golden(VERSION).keys().take(2) {
        let run =
            walden(&["archive", "push", "--repo", repo.to_str().unwrap(), wal.join(name).to_str().unwrap()]);
        assert_eq!(run.code, 0, "{run:?}");
    }
    repo
}

fn nothing_is_written_into_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let repo = archive(folder.path());
    let wal = folder.path().join("wal");
    let before = files(folder.path());
    let object = before.keys().find(|path| path.starts_with(repo.join("wal"))).unwrap();
    let copy = folder.path().join("copy");
    fs::hard_link(object, &copy).unwrap();
    for (writer, has_source) in WRITERS {
        for (source, outputs) in [(&wal, [&repo.join("new"), object]), (&repo, [object, &copy])] {
            for output in outputs {
                let source = has_source.then_some(source);
                if writer[0] == "watch" || (source.is_none() && output == &copy) {
                    continue;
                }
                let run = walden(
                    &[arguments(writer, output, source.map(PathBuf::as_path)), vec!["--force".to_owned()]]
                        .concat(),
                );
                assert!(
                    run.code == 2
                        && (run.stderr.contains("is an archive") || run.stderr.contains("of the source")),
                    "{writer:?}: {run:?}"
                );
            }
        }
    }
    fs::remove_file(&copy).unwrap();
    let [repo_text, wal_text] = [&repo, &wal].map(|path| path.to_str().unwrap());
    for words in [
        vec!["export", "-o", repo_text, wal_text],
        vec!["compress", "-o", repo_text, wal_text],
        vec!["decompress", repo_text],
        vec!["archive", "export", "--repo", repo_text, "-o", repo_text],
        vec!["archive", "status", "--repo", repo_text, "--textfile", object.to_str().unwrap()],
        vec!["man", repo_text],
    ] {
        let run = walden(&words);
        assert!(run.code == 2 && run.stderr.contains("is an archive"), "{words:?}: {run:?}");
    }
    assert!(files(folder.path()) == before);
}

fn compressed_originals_of_servers_and_archives_stay() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_directory(folder.path());
    let before = files(folder.path());
    let out = folder.path().join("out");
    let [out_text, pg_wal] = [out.clone(), data.join("pg_wal")].map(|path| display(&path));
    let run = walden(&["compress", "--rm", "-o", &out_text, &pg_wal]);
    assert!(run.code == 3 && run.stderr.contains("cannot remove"), "{run:?}");
    assert!(files(folder.path()) == before);
    assert_eq!(walden(&["compress", "-o", &out_text, &pg_wal]).code, 0);
}

fn exports_into_one_folder_at_once_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let wal = segments(&folder.path().join("wal"));
    let out = folder.path().join("out");
    let export = |segments: &str| {
        let words = ["export", "--segments", segments, "-o", out.to_str().unwrap(), wal.to_str().unwrap()];
        walden(&words)
    };
    assert_eq!(export("2").code, 0);
    let before = files(&out);
    let locked = File::open(&out).unwrap();
    locked.lock().unwrap();
    expect_refusal(&export("1"), "another process is exporting to it");
    assert!(files(&out) == before);
    drop(locked);
    assert_eq!(export("1").code, 0);
}

fn an_export_keeps_files_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let wal = segments(&folder.path().join("wal"));
    let out = folder.path().join("out");
    let export = |force: &[&str]| {
        let words = ["export", "--tables", "segments", "-o", out.to_str().unwrap(), wal.to_str().unwrap()];
        walden(&[&words[..], force].concat())
    };
    assert_eq!(export(&[]).code, 0);
    let other =
        files(&out).into_keys().find(|path| path.extension().is_some_and(|it| it == "parquet")).unwrap();
    fs::write(&other, b"somebody's").unwrap();
    expect_refusal(&export(&[]), "exists already; --force replaces it");
    assert_eq!(fs::read(&other).unwrap(), b"somebody's");
    assert_eq!(export(&["--force"]).code, 0);
    // An export replaces its own files as the WAL grows.
    assert_eq!(export(&[]).code, 0);
}

fn metrics_replace_metrics_alone() {
    let folder = tempfile::tempdir().unwrap();
    let repo = archive(folder.path());
    let file = folder.path().join("walden.prom");
    let status = || {
        let words =
            ["archive", "status", "--repo", repo.to_str().unwrap(), "--textfile", file.to_str().unwrap()];
        walden(&words)
    };
    assert_eq!(status().code, 0);
    assert_eq!(status().code, 0);
    fs::write(&file, "node_load1 1\n").unwrap();
    expect_refusal(&status(), "does not have Walden's metrics");
    assert_eq!(fs::read(&file).unwrap(), b"node_load1 1\n");
}

fn manual_pages_replace_only_with_force() {
    let folder = tempfile::tempdir().unwrap();
    let man = |force: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        Run::execute(command.arg("man").arg(folder.path()).args(force))
    };
    assert_eq!(man(&[]).code, 0);
    // Identical pages are no conflict.
    assert_eq!(man(&[]).code, 0);
    let page = folder.path().join("walden-explain.1");
    let before = fs::read(&page).unwrap();
    fs::write(&page, "somebody's").unwrap();
    expect_refusal(&man(&[]), "exists already; --force replaces it");
    assert_eq!(man(&["--force"]).code, 0);
    assert_eq!(fs::read(&page).unwrap(), before);
}
