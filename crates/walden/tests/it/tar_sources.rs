//! Tar files as sources: those of `pg_basebackup`, and damaged ones.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use walden_lab::{Cluster, ClusterBuilder};
use walden_testing::{Missing, Outcome, postgres};

use crate::material::{explain, explain_json, golden, walden, write};

walden_testing::tests! {
    a_tar_file_is_read_like_the_folder_in_it,
    base_backups_in_tar_format_are_read_like_their_segments,
    every_command_reads_tar_files,
    damaged_tar_files_are_errors,
}

/// Creates a tar file with the golden cluster's segments, under names from `name`.
fn golden_tar(name: impl Fn(&str) -> String) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    // pg_basebackup's tar files also contain folders and other files.
    add(&mut builder, "backup_label", b"START WAL LOCATION\n");
    add(&mut builder, "00000002.history", b"1\t0/5000000\tno recovery target specified\n");
    for (segment, content) in golden("18.6") {
        add(&mut builder, &name(&segment), &content);
    }
    builder.into_inner().unwrap()
}

fn add(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) {
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    header.set_mode(0o600);
    builder.append_data(&mut header, name, content).unwrap();
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn lz4(content: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn a_tar_file_is_read_like_the_folder_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    for (name, segment) in golden("18.6") {
        write(&plain, &name, &segment);
    }
    let expected = explain(&[&plain]).stdout;
    let flat = golden_tar(str::to_owned);
    // A name of more than 100 bytes has a separate header.
    let long = golden_tar(|name| format!("{}/{name}", "folder".repeat(30)));
    let base = golden_tar(|name| format!("pg_wal/{name}"));
    let half = flat.len() / 2 + 77;
    let several = [gzip(&flat[..half]), gzip(&flat[half..])].concat();
    let mut inner = tar::Builder::new(Vec::new());
    for (name, segment) in golden("18.6") {
        add(&mut inner, &format!("archive/{name}.gz"), &gzip(&segment));
    }
    let files = [
        ("a/pg_wal.tar", flat.clone()),
        ("b/pg_wal.tar.gz", several),
        ("c/pg_wal.tar.zst", zstd::encode_all(flat.as_slice(), 1).unwrap()),
        ("d/pg_wal.tar.lz4", lz4(&flat)),
        ("e/base.tar.gz", gzip(&base)),
        ("f/under-any-name", long),
        ("g/of-compressed-segments", inner.into_inner().unwrap()),
    ];
    for (name, content) in &files {
        let path = write(folder.path(), name, content);
        for threads in ["1", "3"] {
            let run = explain(&["--threads".as_ref(), threads.as_ref(), path.as_os_str()]);
            assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{name}");
            assert!(run.stdout == expected, "{name} with {threads} threads differs");
        }
        // pg_waldump's option, and the folder of a backup in tar format.
        let named = walden(&["explain", "--format", "json", "-p", path.to_str().unwrap()]);
        assert!(named.stdout == expected, "{named:?}");
        if name.contains(".tar") {
            let parent = path.parent().unwrap();
            write(parent, "backup_manifest", b"{}");
            assert!(explain(&[parent]).stdout == expected, "the folder of {name}");
        }
    }
    // With the tar file and its segments as sources, nothing counts twice.
    let both = explain(&[&plain, &folder.path().join("a/pg_wal.tar")]);
    assert!(both.stdout == expected);
    assert_eq!(both.stderr.matches("holds the same segment").count(), 3, "{}", both.stderr);
}

/// Takes a base backup in tar format.
fn base_backup(cluster: &Cluster, program: &Path, to: &Path, options: &[&str]) {
    let mut command = cluster.client_command(program, "postgres");
    command.arg("-D").arg(to).args(["-Ft", "-c", "fast"]).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn base_backups_in_tar_format_are_read_like_their_segments() -> Outcome {
    let installation = postgres(15)?;
    let Some(program) = installation.program("pg_basebackup") else {
        return Err(Missing { reason: "needs pg_basebackup of PostgreSQL 15".to_owned() });
    };
    let cluster = ClusterBuilder::new(installation).wal_segsize_mb(1).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE walrus (id bigint PRIMARY KEY, tusk text)").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&str, &[&str]); 7] = [
        ("pg_wal.tar", &["-X", "stream"]),
        ("pg_wal.tar.gz", &["-X", "stream", "-z"]),
        ("base.tar", &["-X", "fetch"]),
        ("base.tar.gz", &["-X", "fetch", "-z"]),
        ("base.tar.gz", &["-X", "fetch", "--compress=server-gzip"]),
        ("base.tar.zst", &["-X", "fetch", "--compress=server-zstd"]),
        ("base.tar.lz4", &["-X", "fetch", "--compress=client-lz4"]),
    ];
    for (number, (file, options)) in cases.iter().enumerate() {
        let rows =
            "INSERT INTO walrus SELECT $1::bigint * 10000 + n, md5(n::text) FROM generate_series(1, 9999) n";
        client.execute(rows, &[&(number as i64)]).unwrap();
        let to = folder.path().join(number.to_string());
        base_backup(&cluster, &program, &to, options);
        let tar = to.join(file);
        assert!(tar.is_file(), "{options:?} made {:?}", fs::read_dir(&to).unwrap().collect::<Vec<_>>());
        let unpacked = folder.path().join(format!("{number}-unpacked"));
        unpack(&tar, &unpacked);
        let wal = if file.starts_with("base") { unpacked.join("pg_wal") } else { unpacked };
        let expected = explain_json(&[&wal]);
        assert!(expected["records"].as_u64().unwrap() > 0, "{options:?}");
        assert_eq!(explain_json(&[&tar]), expected, "{options:?}");
        assert_eq!(explain_json(&[&to]), expected, "the folder of {options:?}");
    }
    Ok(())
}

/// Unpacks a tar file with the system's programs.
fn unpack(tar: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    let program = match tar.extension().unwrap().to_str().unwrap() {
        "gz" => "gzip -dc",
        "zst" => "zstd -dc",
        "lz4" => "lz4 -dc",
        _ => "cat",
    };
    let command = format!("{program} '{}' | tar -x -C '{}'", tar.display(), to.display());
    assert!(std::process::Command::new("sh").args(["-c", &command]).status().unwrap().success());
}

fn every_command_reads_tar_files() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    for (name, segment) in golden("18.6") {
        write(&plain, &name, &segment);
    }
    let tar = write(
        folder.path(),
        "pg_wal.tar.zst",
        &zstd::encode_all(golden_tar(str::to_owned).as_slice(), 1).unwrap(),
    );
    for command in [
        &["redo", "check", "--format", "json"][..],
        &["whatif", "--set", "wal_compression=lz4", "--format", "json"],
    ] {
        let of = |source: &Path| {
            let all: Vec<PathBuf> = command.iter().map(PathBuf::from).chain([source.to_owned()]).collect();
            walden(&all)
        };
        let (expected, found) = (of(&plain), of(&tar));
        assert_eq!(found.code, expected.code, "{found:?}");
        assert!(found.stdout == expected.stdout, "{command:?}");
    }
}

fn damaged_tar_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let whole = golden_tar(str::to_owned);
    // Truncated within the third segment: the two previous segments are explained.
    let cut = &whole[..whole.len() - (1 << 19)];
    for (name, content) in [("pg_wal.tar", cut.to_vec()), ("pg_wal.tar.gz", gzip(cut))] {
        let path = write(folder.path(), name, &content);
        let run = explain(&[&path]);
        assert_eq!((run.code, run.errors().len()), (3, 1), "{run:?}");
        assert!(run.stderr.contains(name) && run.stderr.contains("cut off"), "{}", run.stderr);
        assert_eq!(run.json()["file_bytes"], 2 << 20);
    }
    // Truncated compressed data, bits flipped in the header of a member, an empty archive.
    let gz = gzip(&whole);
    let mut flipped = whole.clone();
    let third = 512 * 4 + 2 * ((1 << 20) + 512);
    flipped[third + 3] ^= 1;
    let cases = [
        ("cut.tar.gz", gz[..gz.len() / 2].to_vec()),
        ("flipped.tar", flipped),
        ("empty.tar", {
            let mut builder = tar::Builder::new(Vec::new());
            add(&mut builder, "PG_VERSION", b"18\n");
            builder.into_inner().unwrap()
        }),
    ];
    for (name, content) in cases {
        let run = explain(&[write(folder.path(), name, &content)]);
        run.assert_no_panic();
        assert_eq!(run.code, 3, "{run:?}");
        assert!(run.stderr.contains(name), "{}", run.stderr);
    }
}
