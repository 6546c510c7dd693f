//! WAL of a version that Walden does not read: a server's segments with another magic in each page header,
//! which no checksum covers.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Outcome, postgres};

use crate::archive::text;
use crate::archive_care::{switch, wait};
use crate::material::{Run, make_archive, walden};
use crate::receive::Receiving;

walden_testing::tests! {
    an_unknown_version_is_the_cause_that_each_command_names,
    segments_of_an_unknown_version_are_archived_as_bytes_if_that_is_accepted,
    the_pages_of_an_unknown_version_are_checked,
    the_log_of_an_unknown_version_is_received_as_bytes_if_that_is_accepted,
}

/// A page magic that no version uses yet.
const NEWER: u16 = 0xD1F0;

/// A data directory with complete segments of a version that Walden does not read, an archive, and a
/// configuration.
struct Site {
    folder: tempfile::TempDir,
    segments: BTreeMap<String, Vec<u8>>,
    /// A copy of the stopped server's data directory from before these segments.
    backup: PathBuf,
}

impl Site {
    fn new(magic: u16) -> Result<Site, walden_testing::Missing> {
        Site::with(|content| set_magic(content, magic))
    }

    /// Creates a site with changed segments.
    fn with(change: impl Fn(&mut [u8])) -> Result<Site, walden_testing::Missing> {
        let cluster = ClusterBuilder::new(postgres(15)?)
            .wal_segsize_mb(1)
            .setting("archive_mode", "on")
            .setting("archive_command", "false")
            .start()
            .unwrap();
        cluster.stop(StopMode::Fast).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let backup = folder.path().join("backup");
        cluster.copy_data(&backup).unwrap();
        cluster.start().unwrap();
        let mut client = cluster.client("postgres").unwrap();
        client.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
        for round in 0..6 {
            switch(&mut client, round);
        }
        let ready = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
        wait(|| client.query_one(ready, &[]).unwrap().get::<_, i64>(0) >= 6);
        drop(client);
        cluster.stop(StopMode::Fast).unwrap();
        let mut site = Site { folder, segments: BTreeMap::new(), backup };
        let marks = site.wal().join("archive_status");
        fs::create_dir_all(&marks).unwrap();
        for entry in fs::read_dir(cluster.data_dir().join("pg_wal/archive_status")).unwrap() {
            let mark = entry.unwrap().file_name().into_string().unwrap();
            let Some(name) = mark.strip_suffix(".ready") else { continue };
            let mut content = fs::read(cluster.data_dir().join("pg_wal").join(name)).unwrap();
            change(&mut content);
            fs::write(site.wal().join(name), &content).unwrap();
            fs::write(marks.join(&mark), "").unwrap();
            site.segments.insert(name.to_owned(), content);
        }
        assert!(site.segments.len() >= 6, "{:?}", site.segments.keys());
        make_archive(&site.repo());
        site.configure("");
        Ok(site)
    }

    fn configure(&self, more: &str) {
        let [repo, log] = [self.repo(), self.path("walden.log")].map(|path| path.display().to_string());
        let toml = format!("[archive]\nrepo = \"{repo}\"\nlog = \"{log}\"\n{more}\n");
        fs::write(self.path("walden.toml"), toml).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn repo(&self) -> PathBuf {
        self.path("archive")
    }

    fn wal(&self) -> PathBuf {
        self.path("data/pg_wal")
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let config = self.path("walden.toml");
        walden(&[&["archive"], arguments, &["--config", text(&config)]].concat())
    }

    fn push(&self, name: &str, more: &[&str]) -> Run {
        self.run(&[&["push", text(&self.wal().join(name))], more].concat())
    }

    fn expect_same_bytes(&self) {
        for (name, content) in &self.segments {
            let target = self.path("RECOVERYXLOG");
            let run = self.run(&["get", name, text(&target)]);
            assert_eq!(run.code, 0, "{name}: {run:?}");
            assert!(fs::read(&target).unwrap() == *content, "{name}");
        }
    }
}

/// Sets the magic of each page header.
fn set_magic(content: &mut [u8], magic: u16) {
    for page in content.chunks_mut(8192) {
        if page.len() >= 2 && page[..2] != [0, 0] {
            page[..2].copy_from_slice(&magic.to_le_bytes());
        }
    }
}

/// Moves the fields after `xlp_rem_len` in the first page header to their place on a 32-bit x86 server:
/// `xlp_sysid` at offset 20.
fn align_to_4_bytes(content: &mut [u8]) {
    content.copy_within(24..40, 20);
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

fn an_unknown_version_is_the_cause_that_each_command_names() -> Outcome {
    for (magic, cause, is_remedy) in [
        (Some(NEWER), "written by a PostgreSQL newer than 19", true),
        (Some(0xD115), "a development snapshot, a beta or a fork of PostgreSQL 17", true),
        (Some(0xD071), "written by PostgreSQL 9.2, which is too old", false),
        (Some(0x10D1), "written by PostgreSQL 15 on a big-endian machine", false),
        (None, "written by PostgreSQL 15 on a 32-bit machine that aligns to 4 bytes", false),
    ] {
        let site = magic.map_or_else(|| Site::with(align_to_4_bytes), Site::new)?;
        let first = site.segments.keys().next().unwrap();
        // An option with another meaning does not help, either.
        for more in [&[][..], &["--accept-damaged"]] {
            let pushed = site.push(first, more);
            let is_named = pushed.stderr.contains(cause) && pushed.stderr.contains("offset 0");
            assert!(pushed.code == 1 && is_named, "{pushed:?}");
            assert_eq!(pushed.stderr.contains("accept_unknown_versions"), is_remedy, "{pushed:?}");
            assert!(pushed.stderr.contains("pg_wal fills"), "{pushed:?}");
        }
        let log = fs::read_to_string(site.path("walden.log")).unwrap();
        assert!(log.contains("\"cause\":\"unknown_version\""), "{log}");
        let data = site.path("data");
        for run in [site.run(&["status", "--pgdata", text(&data)]), site.run(&["check"])] {
            assert!(run.code == 1 && run.stdout.contains(cause), "{run:?}");
            assert_eq!(run.stdout.contains("accept_unknown_versions"), is_remedy, "{run:?}");
        }
        for command in [&["watch", "--once"][..], &["retention"]] {
            let run = walden(&[command, &[text(&site.wal())]].concat());
            assert!(run.code == 3 && run.stderr.contains(cause), "{run:?}");
            assert!(run.stderr.contains("offset 0 of ") && run.stderr.contains("hint: "), "{run:?}");
        }
        for command in ["explain", "whatif", "rows", "export"] {
            let more: &[&str] = match command {
                "rows" => &["--relation", "t"],
                "export" => &["-o", "/nonexistent"],
                _ => &[],
            };
            let run = walden(&[&[command, text(&site.wal())], more].concat());
            assert!(run.code != 0 && run.stderr.contains(cause), "{command}: {run:?}");
        }
        let compressed =
            walden(&["compress", text(&site.wal().join(first)), "-o", text(&site.path("compressed"))]);
        assert!(compressed.code == 0 && compressed.stderr.contains(cause), "{compressed:?}");
        let imported = site.run(&["import", text(&site.wal()), "--layout", "plain"]);
        assert!(imported.code == 1 && imported.stdout.contains(cause), "{imported:?}");
        if !is_remedy {
            let refused = site.push(first, &["--accept-unknown-versions"]);
            assert!(refused.code == 1 && refused.stderr.contains(cause), "{refused:?}");
        }
    }
    Ok(())
}

fn segments_of_an_unknown_version_are_archived_as_bytes_if_that_is_accepted() -> Outcome {
    let site = Site::new(NEWER)?;
    let count = site.segments.len();
    let last = site.segments.keys().next_back().unwrap();
    // Archives one segment by the option, and the waiting ones by the configuration key.
    let first = site.segments.keys().next().unwrap();
    let pushed = site.push(first, &["--accept-unknown-versions", "--look-ahead", "0"]);
    assert!(pushed.code == 0 && pushed.stderr.contains("verified by hash only"), "{pushed:?}");
    site.configure("accept_unknown_versions = true");
    for name in site.segments.keys() {
        let pushed = site.push(name, &[]);
        assert_eq!(pushed.code, 0, "{pushed:?}");
    }
    site.expect_same_bytes();
    let said = format!("{count} segments of an unknown version: verified by hash only");
    let expect_said = || {
        let listed = site.run(&["list"]);
        assert!(listed.code == 0 && listed.stdout.contains(&said), "{listed:?}");
        let verified = site.run(&["verify"]);
        assert!(verified.code == 0 && verified.stdout.contains(&said), "{verified:?}");
        let status = site.run(&["status", "--pgdata", text(&site.path("data"))]);
        assert!(status.code == 0 && status.stdout.contains(&said), "{status:?}");
    };
    expect_said();
    let report = json(&site.run(&["verify", "--format", "json"]));
    assert_eq!(report["unknown_version_segments"].as_u64(), Some(count as u64), "{report:#}");
    // Other bytes under an archived name are refused.
    let other = site.path("other");
    let mut content = site.segments[last].clone();
    content[9000] ^= 1;
    fs::create_dir(&other).unwrap();
    fs::write(other.join(last), content).unwrap();
    let log = site.path("other.log");
    let conflict = site.run(&["push", text(&other.join(last)), "--look-ahead", "0", "--log", text(&log)]);
    assert!(conflict.code == 1 && conflict.stderr.contains("archived already"), "{conflict:?}");
    // Packs store them unchanged.
    let packed = site.run(&["pack", "--segments", "4", "--keep", "0"]);
    assert_eq!(packed.code, 0, "{packed:?}");
    let packs = walkdir(&site.repo()).into_iter().filter(|path| text(path).ends_with(".wpk")).count();
    assert!(packs >= 1, "{packed:?}");
    site.expect_same_bytes();
    expect_said();
    // The hash detects a flipped bit in an object.
    let object = walkdir(&site.repo()).into_iter().find(|path| text(path).ends_with(".wpk")).unwrap();
    let sound = fs::read(&object).unwrap();
    let mut damaged = sound.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&object, damaged).unwrap();
    let verified = site.run(&["verify"]);
    assert!(verified.code == 1 && verified.stdout.contains("DAMAGED"), "{verified:?}");
    fs::write(&object, sound).unwrap();
    // A restore cannot be checked.
    let drill = site.run(&["drill", "--base", text(&site.backup)]);
    assert!(drill.code == 3 && drill.stderr.contains("page magic D1F0"), "{drill:?}");
    let pruned = site.run(&["prune", "--keep-backups", "1"]);
    assert!(!pruned.stderr.contains("panicked") && pruned.code <= 3, "{pruned:?}");
    site.expect_same_bytes();
    // Another archive accepts them with the same option.
    let copy = site.path("copy");
    let wal = site.wal();
    let import = |more: &[&str]| {
        let all = ["archive", "import", "--repo", text(&copy), text(&wal), "--layout", "plain"];
        walden(&[&all[..], more].concat())
    };
    assert_eq!(import(&[]).code, 1);
    let imported = import(&["--accept-unknown-versions"]);
    assert_eq!(imported.code, 0, "{imported:?}");
    let verified = walden(&["archive", "verify", "--repo", text(&copy)]);
    assert!(verified.code == 0 && verified.stdout.contains(&said), "{verified:?}");
    Ok(())
}

fn walkdir(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walkdir(&path) } else { vec![path] }).collect()
}

/// A change of a segment, and the expected error.
type Change = (fn(&mut Vec<u8>), &'static str);

fn the_pages_of_an_unknown_version_are_checked() -> Outcome {
    let site = Site::new(NEWER)?;
    let names: Vec<&String> = site.segments.keys().collect();
    let option = ["--accept-unknown-versions", "--look-ahead", "0"];
    assert_eq!(site.push(names[0], &option).code, 0);
    let offer = |name: &str, content: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        site.run(&[&["push", text(&path)][..], &option].concat())
    };
    let content = &site.segments[names[1]];
    let renamed = offer(names[2], content);
    assert!(renamed.code == 1 && renamed.stderr.contains("the first page's address"), "{renamed:?}");
    let later = names[1].replacen("00000001", "00000002", 1);
    let run = offer(&later, content);
    assert!(run.code == 1 && run.stderr.contains("the pages' timeline"), "{run:?}");
    let changes: [Change; 7] = [
        (|content| content.truncate(1 << 19), "the file's size: expected 1048576 bytes"),
        (|content| content.push(0), "the file's size: expected 1048576 bytes"),
        (|content| content[24] ^= 1, "belongs to another cluster"),
        (|content| content[34] ^= 0x30, "the first page's address"),
        (|content| content[8192 + 9] ^= 1, "the pages: expected the header of the page at "),
        (|content| content[8192..2 * 8192].fill(0), "the pages: expected the header of the page at "),
        // The remaining content of a recycled file.
        (
            |content| {
                for page in content[8 * 8192..].chunks_mut(8192) {
                    page[..2].copy_from_slice(&NEWER.to_le_bytes());
                    page[8..16].fill(0);
                }
            },
            "the segment is not complete",
        ),
    ];
    for (number, (change, expected)) in changes.into_iter().enumerate() {
        let mut changed = content.clone();
        change(&mut changed);
        let run = offer(names[1], &changed);
        assert!(run.code == 1 && run.stderr.contains(expected), "{number}: {expected}: {run:?}");
    }
    assert_eq!(offer(names[1], content).code, 0);
    Ok(())
}

/// Forwards connections to a server, and changes the magic in its WAL to that of a newer version. Returns a
/// connection string.
fn proxy_of_newer_version(cluster: &Cluster) -> String {
    let is_socket = |path: &PathBuf| text(path).contains(".s.PGSQL.") && !text(path).ends_with(".lock");
    let sockets = fs::read_dir(cluster.socket_dir()).unwrap().map(|entry| entry.unwrap().path());
    let socket = sockets.into_iter().find(is_socket).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), UnixStream::connect(&socket).unwrap());
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
            thread::spawn(move || pass_on(server, client));
        }
    });
    let dsn = cluster.dsn("postgres");
    let user = dsn.split(' ').find(|word| word.starts_with("user=")).unwrap();
    format!("host=127.0.0.1 port={port} {user} sslmode=disable")
}

/// Forwards a server's messages. An XLogData message has a tag byte and 24 bytes before its WAL; the first 8
/// of these are the LSN at which the WAL starts.
fn pass_on(mut server: UnixStream, mut client: TcpStream) {
    const BEFORE_WAL: usize = 25;
    loop {
        let mut head = [0; 5];
        if server.read_exact(&mut head).is_err() {
            let _ = client.shutdown(std::net::Shutdown::Both);
            return;
        }
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
        let mut content = vec![0; length];
        server.read_exact(&mut content).unwrap();
        if head[0] == b'd' && content[0] == b'w' {
            let start = u64::from_be_bytes(content[1..9].try_into().unwrap());
            let first = (start.next_multiple_of(8192) - start) as usize;
            for page in content[BEFORE_WAL..].get_mut(first..).unwrap_or_default().chunks_mut(8192) {
                set_magic(page, NEWER);
            }
        }
        if client.write_all(&[&head[..], &content].concat()).is_err() {
            return;
        }
    }
}

fn the_log_of_an_unknown_version_is_received_as_bytes_if_that_is_accepted() -> Outcome {
    let cluster = ClusterBuilder::new(postgres(15)?)
        .wal_segsize_mb(1)
        .setting("wal_keep_size", "200MB")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [repo, spool] = ["repo", "spool"].map(|name| folder.path().join(name));
    make_archive(&repo);
    let dsn = proxy_of_newer_version(&cluster);
    let (code, said) = Receiving::start(&dsn, &repo, &spool, &[]).ended();
    let is_named =
        said.contains("written by a PostgreSQL newer than 19") && said.contains("accept_unknown_versions");
    assert!(code == Some(1) && is_named && !said.contains("damaged"), "{code:?}: {said}");
    for ack_after in ["spool", "archive"] {
        let options = ["--accept-unknown-versions", "--ack-after", ack_after];
        let receiving = Receiving::start(&dsn, &repo, &spool, &options);
        let name = |client: &mut postgres::Client| -> String {
            client.query_one("SELECT pg_walfile_name(pg_current_wal_insert_lsn())", &[]).unwrap().get(0)
        };
        let first = name(&mut client);
        for round in 0..4 {
            switch(&mut client, round);
        }
        let last = name(&mut client);
        let target = folder.path().join("RECOVERYXLOG");
        let get = |name: &str| walden(&["archive", "get", "--repo", text(&repo), name, text(&target)]);
        let number = |name: &str| u64::from_str_radix(&name[8..], 16).unwrap();
        for number in number(&first)..number(&last) {
            let name = format!("00000001{number:016X}");
            wait(|| get(&name).code == 0);
            let mut expected = fs::read(cluster.data_dir().join("pg_wal").join(&name)).unwrap();
            set_magic(&mut expected, NEWER);
            assert!(fs::read(&target).unwrap() == expected, "{name}");
        }
        let said = receiving.said();
        assert_eq!(receiving.stop().1, Some(0), "{said}");
    }
    let verified = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert!(verified.code == 0 && verified.stdout.contains("of an unknown version"), "{verified:?}");
    Ok(())
}
