//! Imports WAL from repositories that other archivers wrote.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Need, Outcome, postgres, write_program};

use crate::material::{Run, golden, make_archive, walden, write};

walden_testing::tests! {
    a_repository_of_pgbackrest_is_imported,
    an_encrypted_repository_of_pgbackrest_is_refused,
    a_home_of_barman_is_imported,
    a_storage_of_wal_g_is_imported,
    plain_folders_and_a_servers_pg_wal_are_imported,
    compressed_partial_segments_are_imported,
    an_interrupted_import_goes_on,
}

/// An archiving server, and a client of it.
struct Server {
    cluster: Cluster,
    client: Option<Client>,
}

impl Server {
    /// Starts a server. `script` archives the file `$1` (a path) under the name `$2`; `prepare` runs before,
    /// as the server's user.
    fn new(
        folders: &[&str],
        prepare: impl Fn(&Path) -> String,
        script: impl Fn(&Path) -> String,
    ) -> Result<Server, walden_testing::Missing> {
        let builder = ClusterBuilder::new(postgres(15)?)
            .wal_segsize_mb(1)
            .setting("wal_keep_size", "512MB")
            .setting("archive_mode", "on");
        let cluster = builder.start().unwrap();
        for folder in folders {
            cluster.make_folder(folder).unwrap();
        }
        let push = cluster.dir().join("push.sh");
        write_script(&push, &script(cluster.dir()));
        let mut server = Server { cluster, client: None };
        let prepare = prepare(server.cluster.dir());
        server.run(&prepare);
        let command = format!("{} %p %f", push.display());
        server.sql(&format!("ALTER SYSTEM SET archive_command = '{command}'"));
        server.sql("SELECT pg_reload_conf()");
        Ok(server)
    }

    fn client(&mut self) -> &mut Client {
        let cluster = &self.cluster;
        self.client.get_or_insert_with(|| cluster.client("postgres").unwrap())
    }

    fn sql(&mut self, sql: &str) {
        self.client().batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Runs a command as the server's user.
    fn run(&mut self, command: &str) {
        let quoted = format!("exec >> {}/commands.log 2>&1; {command}", self.cluster.socket_dir().display())
            .replace('\'', "''");
        let copy = format!("COPY (SELECT 1 WHERE false) TO PROGRAM '{quoted}'");
        if let Err(error) = self.client().batch_execute(&copy) {
            let log = fs::read_to_string(self.cluster.socket_dir().join("commands.log")).unwrap_or_default();
            panic!("{command}: {error}\n{log}");
        }
    }

    /// Writes segments, a backup history file, a timeline switch with its history and partial segment, and
    /// more segments.
    fn work(&mut self) {
        self.sql("CREATE TABLE t AS SELECT i, md5(i::text) FROM generate_series(1, 20000) i; SELECT pg_switch_wal()");
        self.sql("SELECT pg_backup_start('label', fast => true)");
        self.sql("SELECT pg_backup_stop(wait_for_archive => false)");
        self.sql("SELECT pg_switch_wal()");
        self.wait_until_archived();
        self.client = None;
        self.cluster.stop(StopMode::Fast).unwrap();
        fs::write(self.cluster.data_dir().join("standby.signal"), "").unwrap();
        self.cluster.start().unwrap();
        self.sql("SELECT pg_promote()");
        self.sql(
            "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 20000) i; SELECT pg_switch_wal()",
        );
        self.wait_until_archived();
    }

    fn wait_until_archived(&mut self) {
        let began = Instant::now();
        loop {
            let ready = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
            if self.client().query_one(ready, &[]).unwrap().get::<_, i64>(0) == 0 {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{}", self.cluster.log_tail());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the files that the server has archived, as stored in its pg_wal.
    fn archived(&self) -> BTreeMap<String, Vec<u8>> {
        let wal = self.cluster.data_dir().join("pg_wal");
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(wal.join("archive_status")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let name = name.strip_suffix(".done").unwrap_or_else(|| panic!("{name}"));
            files.insert(name.to_owned(), fs::read(wal.join(name)).unwrap());
        }
        let ending = |ending: &str| files.keys().filter(|name| name.ends_with(ending)).count();
        assert_eq!(
            (ending(".history"), ending(".backup"), ending(".partial")),
            (1, 1, 1),
            "{:?}",
            files.keys()
        );
        assert!(files.len() > 8, "{:?}", files.keys());
        files
    }
}

fn write_script(path: &Path, text: &str) {
    write_program(path, &format!("#!/bin/sh\nset -e\n{text}\n"));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn import(repo: &Path, source: &Path) -> (Run, Value) {
    let run = walden(&["archive", "import", "--format", "json", "--repo", text(repo), text(source)]);
    let json = serde_json::from_str(&run.stdout).unwrap_or(Value::Null);
    (run, json)
}

/// Checks that the archive returns each file unchanged, and is complete.
fn assert_archived(repo: &Path, files: &BTreeMap<String, Vec<u8>>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let target = folder.path().join(name);
        let got = walden(&["archive", "get", "--prefetch", "0", "--repo", text(repo), name, text(&target)]);
        assert_eq!(got.code, 0, "{name}: {got:?}");
        assert!(fs::read(&target).unwrap() == *content, "{name}");
    }
    let verified = walden(&["archive", "verify", "--repo", text(repo)]);
    assert_eq!(verified.code, 0, "{verified:?}");
}

/// Cycles through all kinds of compression.
fn pgbackrest_script(dir: &Path) -> String {
    format!(
        "case $2 in *0) t=gz;; *1|*6) t=lz4;; *2|*7) t=zst;; *3|*8) t=bz2;; *4) t=none;; *) t=gz;; esac\n\
         exec pgbackrest --config={}/pgbackrest.conf --compress-type=$t --stanza=main archive-push $1",
        dir.display()
    )
}

fn pgbackrest_configuration(dir: &Path, more: &str) {
    let dir_text = dir.display();
    let configuration = format!(
        "[main]\npg1-path={dir_text}/data\n[global]\nrepo1-path={dir_text}/repo\nlog-path={dir_text}/s\nlock-path={dir_text}/s\n\
         spool-path={dir_text}/s\nlog-level-file=off\nlog-level-console=warn\n{more}"
    );
    fs::write(dir.join("pgbackrest.conf"), configuration).unwrap();
}

fn pgbackrest_server(more: &str) -> Result<Server, walden_testing::Missing> {
    Need::PgBackRest.find()?;
    let prepare = |dir: &Path| {
        pgbackrest_configuration(dir, more);
        format!(
            "pgbackrest --config={}/pgbackrest.conf --stanza=main --no-online stanza-create",
            dir.display()
        )
    };
    Server::new(&["repo"], prepare, pgbackrest_script)
}

fn a_repository_of_pgbackrest_is_imported() -> Outcome {
    let mut server = pgbackrest_server("")?;
    server.work();
    let (repository, folder) = (server.cluster.dir().join("repo"), tempfile::tempdir().unwrap());
    let repo = folder.path().join("archive");
    let (run, imported) = import(&repo, &repository);
    assert_eq!(run.code, 0, "{run:?}");
    let archived = server.archived();
    assert_eq!(imported["layout"], "pgbackrest");
    assert_eq!(imported["imported"].as_u64(), Some(archived.len() as u64), "{imported:#}");
    assert_archived(&repo, &archived);
    // A second import, by the stanza's and the cluster's folder, stores nothing.
    for below in ["archive", "archive/main", "archive/main/15-1"] {
        let (run, imported) = import(&repo, &repository.join(below));
        assert_eq!((run.code, &imported["imported"]), (0, &Value::from(0)), "{run:?}");
        assert_eq!(imported["present"].as_u64(), Some(archived.len() as u64));
    }
    // A damaged file is refused, and the others are imported.
    let segments = repository.join("archive/main/15-1/0000000100000000");
    let damaged = files_in(&segments).into_iter().find(|path| text(path).ends_with(".zst")).unwrap();
    let mut content = fs::read(&damaged).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&damaged, content).unwrap();
    let (run, imported) = import(&folder.path().join("other"), &repository);
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(imported["refused"].as_array().unwrap().len(), 1, "{imported:#}");
    assert_eq!(imported["refused"][0]["path"], text(&damaged));
    assert_eq!(imported["imported"].as_u64(), Some(archived.len() as u64 - 1));
    // The archive of another cluster accepts none of these files.
    let foreign = folder.path().join("foreign");
    let (name, content) = golden("18.6").pop_first().unwrap();
    let segment = write(folder.path(), &name, &content);
    make_archive(&foreign);
    assert_eq!(walden(&["archive", "push", "--repo", text(&foreign), text(&segment)]).code, 0);
    let (run, _) = import(&foreign, &repository);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("expected system identifier"), "{run:?}");
    Ok(())
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn an_encrypted_repository_of_pgbackrest_is_refused() -> Outcome {
    let mut server = pgbackrest_server("repo1-cipher-type=aes-256-cbc\nrepo1-cipher-pass=secret\n")?;
    server.sql("CREATE TABLE t AS SELECT i FROM generate_series(1, 1000) i; SELECT pg_switch_wal()");
    server.wait_until_archived();
    let (repository, folder) = (server.cluster.dir().join("repo"), tempfile::tempdir().unwrap());
    let (run, _) = import(&folder.path().join("archive"), &repository);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("is encrypted by pgBackRest"), "{run:?}");
    // Without archive.info, the files themselves show it.
    let (run, _) =
        import(&folder.path().join("archive"), &repository.join("archive/main/15-1/0000000100000000"));
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("is encrypted in OpenSSL's form"), "{run:?}");
    Ok(())
}

/// Barman's command on servers connects to Barman by ssh. Here this script replaces ssh, and runs commands on
/// the same machine.
const SSH: &str = "while [ $# -gt 0 ]; do case $1 in -p) shift 2;; -*) shift;; *) break;; esac; done\nshift\nexec sh -c \"$*\"";

/// Returns the user that runs the server and its archive_command. Barman refuses to run as a user other than
/// the configured one.
fn owner(dir: &Path) -> String {
    let output = Command::new("stat").args(["-c", "%U"]).arg(dir).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn barman_configuration(dir: &Path, compression: &str) {
    let dir_text = dir.display();
    let configuration = format!(
        "[barman]\nbarman_user={}\nbarman_home={dir_text}/barman\nlog_file={dir_text}/s/barman.log\nbarman_lock_directory={dir_text}/s\n\
         {compression}\n[main]\ndescription=main\nconninfo=host={dir_text}/s user=postgres dbname=postgres\narchiver=on\n\
         backup_options=concurrent_backup\nbackup_method=rsync\nssh_command=true\n",
        owner(dir)
    );
    fs::write(dir.join("barman.conf"), configuration).unwrap();
}

fn a_home_of_barman_is_imported() -> Outcome {
    Need::Barman.find()?;
    let prepare = |dir: &Path| {
        write_script(&dir.join("bin/ssh"), SSH);
        barman_configuration(dir, "compression=gzip");
        "true".to_owned()
    };
    let script = |dir: &Path| {
        let dir = dir.display();
        format!("PATH={dir}/bin:$PATH exec barman-wal-archive --config {dir}/barman.conf localhost main $1")
    };
    let mut server = Server::new(&["barman", "bin"], prepare, script)?;
    let archive = format!("barman -q -c {}/barman.conf archive-wal main", server.cluster.dir().display());
    server.work();
    server.run(&archive);
    barman_configuration(server.cluster.dir(), "compression=bzip2");
    server
        .sql("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 20000) i; SELECT pg_switch_wal()");
    server.wait_until_archived();
    server.run(&archive);
    barman_configuration(server.cluster.dir(), "");
    server.sql("SELECT txid_current(); SELECT pg_switch_wal()");
    server.wait_until_archived();
    server.run(&archive);
    // The last segments wait in `incoming`: Barman has acknowledged them.
    server.sql("SELECT txid_current(); SELECT pg_switch_wal()");
    server.wait_until_archived();
    let home = server.cluster.dir().join("barman");
    assert!(!files_in(&home.join("main/incoming")).is_empty());
    let archived = server.archived();
    let folder = tempfile::tempdir().unwrap();
    for (source, repo) in [("", "a"), ("main", "b"), ("main/wals", "c")] {
        let repo = folder.path().join(repo);
        let (run, imported) = import(&repo, &home.join(source));
        assert_eq!((run.code, &imported["layout"]), (0, &Value::from("barman")), "{run:?}");
        assert_eq!(imported["imported"].as_u64(), Some(archived.len() as u64), "{imported:#}");
        assert_archived(&repo, &archived);
    }
    Ok(())
}

/// Compresses content like each of WAL-G's compressors.
fn compressed(ending: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match ending {
        ".lz4" => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(bytes);
            encoder.write_all(content).unwrap();
            bytes = encoder.finish().unwrap();
        }
        ".zst" => bytes = zstd::encode_all(content, 3).unwrap(),
        ".br" => {
            let mut encoder = brotli::CompressorWriter::new(&mut bytes, 1 << 16, 3, 22);
            encoder.write_all(content).unwrap();
        }
        ".lzma" => {
            let options = liblzma::stream::LzmaOptions::new_preset(6).unwrap();
            let stream = liblzma::stream::Stream::new_lzma_encoder(&options).unwrap();
            let mut encoder = liblzma::write::XzEncoder::new_stream(bytes, stream);
            encoder.write_all(content).unwrap();
            bytes = encoder.finish().unwrap();
        }
        _ => bytes = content.to_vec(),
    }
    bytes
}

const HISTORY: &[u8] = b"1\t0/C00000\tno recovery target specified\n";

/// Returns complete segments of a golden cluster, and a small file of each other kind.
fn files() -> BTreeMap<String, Vec<u8>> {
    let mut files = golden("18.6");
    let first = files.keys().next().unwrap().clone();
    // The server was stopped in the last segment.
    files.pop_last();
    let start = u64::from_str_radix(&first[16..], 16).unwrap() << 20;
    let label = format!("START WAL LOCATION: 0/{:X} (file {first})\nLABEL: x\n", start + 0x28);
    files.insert(format!("{first}.00000028.backup"), label.into_bytes());
    files.insert("00000002.history".to_owned(), HISTORY.to_vec());
    files
}

fn a_storage_of_wal_g_is_imported() {
    let folder = tempfile::tempdir().unwrap();
    let (storage, repo) = (folder.path().join("storage"), folder.path().join("archive"));
    let endings = [".lz4", ".zst", ".br", ".lzma", ""];
    let files = files();
    assert!(files.len() >= 4);
    // Stores each file with each compressor: one copy is imported, and the others count as present.
    for (name, content) in &files {
        for ending in endings {
            write(&storage.join("wal_005"), &format!("{name}{ending}"), &compressed(ending, content));
        }
    }
    write(&storage.join("wal_005"), "000000010000000000000000_delta.lz4", b"delta");
    write(&storage.join("basebackups_005"), "base_000000010000000000000008_backup_stop_sentinel.json", b"{}");
    let (run, imported) = import(&repo, &storage);
    assert_eq!((run.code, &imported["layout"]), (0, &Value::from("wal-g")), "{run:?}");
    let count = |name: &str| imported[name].as_u64().unwrap() as usize;
    assert_eq!(count("files"), files.len() * endings.len());
    assert_eq!(count("imported") + count("present"), count("files"));
    assert_eq!(imported["ignored"].as_array().unwrap().len(), 1);
    assert_archived(&repo, &files);
    // WAL-G's encryption leaves no mark; the only symptom is that decompression fails.
    let encrypted = folder.path().join("encrypted");
    let noise: Vec<u8> = (0..200_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    write(&encrypted.join("wal_005"), "000000010000000000000008.lz4", &noise);
    let (run, _) = import(&folder.path().join("other"), &encrypted);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("encrypted"), "{run:?}");
}

/// pg_receivewal compresses the segment that it is receiving, and writes the end of the compressed data last.
fn compressed_partial_segments_are_imported() {
    let (name, content) = golden("17.11").pop_first().unwrap();
    for (ending, is_killed) in [("gz", false), ("gz", true), ("lz4", false), ("lz4", true)] {
        let folder = tempfile::tempdir().unwrap();
        let (wal, repo) = (folder.path().join("wal"), folder.path().join("archive"));
        let received = &content[..content.len() / 2];
        let mut compressed = match ending {
            "gz" => {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gzip.write_all(received).unwrap();
                gzip.finish().unwrap()
            }
            _ => {
                let blocks =
                    lz4_flex::frame::FrameInfo::new().block_size(lz4_flex::frame::BlockSize::Max64KB);
                let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(blocks, Vec::new());
                encoder.write_all(received).unwrap();
                encoder.finish().unwrap()
            }
        };
        if is_killed {
            compressed.truncate(compressed.len() * 3 / 4);
        }
        write(&wal, &format!("{name}.{ending}.partial"), &compressed);
        let (run, imported) = import(&repo, &wal);
        assert_eq!((run.code, imported["imported"].as_u64()), (0, Some(1)), "{ending}: {run:?}");
        let got = folder.path().join("RECOVERYXLOG");
        let file = format!("{name}.partial");
        let get = ["archive", "get", "--repo", repo.to_str().unwrap(), &file, got.to_str().unwrap()];
        let run = walden(&get);
        assert_eq!(run.code, 0, "{run:?}");
        let got = fs::read(&got).unwrap();
        let end = got.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        assert_eq!(got.len(), content.len());
        assert!(got[..end] == content[..end] && end > received.len() / 3, "{ending}: {end}");
        assert_eq!(end > received.len() - 8192, !is_killed, "{ending}: {end}");
    }
}

fn plain_folders_and_a_servers_pg_wal_are_imported() {
    let folder = tempfile::tempdir().unwrap();
    let (data, repo) = (folder.path().join("data"), folder.path().join("archive"));
    let wal = data.join("pg_wal");
    write(&data, "PG_VERSION", b"18\n");
    write(&wal.join("archive_status"), "000000010000000000000008.done", b"");
    let files = files();
    for (name, content) in &files {
        write(&wal, name, content);
    }
    // Recycled segments for future use: one renamed, one without content.
    let last = files.keys().rfind(|name| name.len() == 24).unwrap();
    write(&wal, "0000000100000000000000F0", &files[last]);
    write(&wal, "0000000100000000000000F1", &vec![0; 1 << 20]);
    let (run, imported) = import(&repo, &data);
    assert_eq!((run.code, &imported["layout"]), (0, &Value::from("plain")), "{run:?}");
    assert_eq!(imported["imported"].as_u64(), Some(files.len() as u64), "{imported:#}");
    assert_eq!(imported["ignored"].as_array().unwrap().len(), 2, "{imported:#}");
    assert_archived(&repo, &files);
    // Damaged, misnamed or different files are refused, each with its reason.
    let bad = folder.path().join("bad");
    let mut damaged = files[last].clone();
    // Changes a byte of the first record: bytes after a switch do not matter.
    damaged[60] ^= 1;
    write(&bad, "a/0000000100000000000000F0.gz", b"\x1F\x8B\x08not gzip");
    write(&bad, &format!("b/{last}"), &damaged);
    write(&bad, "c/0000000100000000000000F2", &files[last]);
    write(&bad, "d/00000002.history", b"1\t0/B000000\tother\n");
    write(&bad, "e/0000000100000000000000F3", b"");
    let (run, imported) = import(&repo, &bad);
    assert_eq!((run.code, imported["imported"].as_u64()), (1, Some(0)), "{run:?}");
    let refused = imported["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 5, "{imported:#}");
    let damaged = refused.iter().find(|one| one["file"] == last.as_str()).unwrap();
    let (problem, hint) = (damaged["problem"].as_str().unwrap(), damaged["hint"].as_str().unwrap());
    assert!(
        problem.contains("damaged at") && problem.contains("the archive has an intact copy"),
        "{problem}"
    );
    assert!(!hint.contains("Two servers"), "{hint}");
    assert_archived(&repo, &files);
}

/// An import continues where an interrupted one stopped.
fn an_interrupted_import_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (source, part, repo) =
        (folder.path().join("source"), folder.path().join("part"), folder.path().join("archive"));
    let files = files();
    for (done, (name, content)) in files.iter().enumerate() {
        write(&source, name, content);
        write(&part, name, content);
        let (run, imported) = import(&repo, &part);
        assert_eq!(run.code, 0, "{run:?}");
        assert_eq!(
            (imported["imported"].as_u64(), imported["present"].as_u64()),
            (Some(1), Some(done as u64))
        );
    }
    let (run, imported) = import(&repo, &source);
    assert_eq!((run.code, imported["imported"].as_u64()), (0, Some(0)), "{run:?}");
    assert_archived(&repo, &files);
}
