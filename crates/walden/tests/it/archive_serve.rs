//! `walden archive serve`, tested over its socket: these tests act as clients, instead of a server's module.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::archive::{json, text};
use crate::material::{golden, make_archive, walden, write};

walden_testing::tests! {
    files_are_archived_when_they_are_asked_for_and_others_ahead,
    a_long_queue_is_archived_fast,
    a_file_that_changed_after_it_was_archived_ahead_is_not_acknowledged,
    what_push_refuses_is_refused,
    requests_of_others_are_refused_and_bytes_that_are_none_do_no_harm,
    a_store_that_takes_nothing_is_told_and_later_tried_again,
    a_signal_ends_it_after_the_running_file_and_the_socket_is_used_again,
    a_folder_that_others_can_write_to_is_refused,
}

/// A data directory without a server, an archive, and the process.
struct Serve {
    folder: tempfile::TempDir,
    child: Child,
}

/// The result of a request: the last reply's kind, and its texts.
#[derive(Debug, PartialEq)]
struct Answer {
    kind: char,
    texts: Vec<String>,
}

/// Returns the complete segments of a golden cluster.
fn segments() -> BTreeMap<String, Vec<u8>> {
    golden("18.6").into_iter().take(2).collect()
}

/// Creates a data directory in which they are ready, and an archive.
fn prepare(folder: &Path) {
    for (name, bytes) in segments() {
        write(&folder.join("data/pg_wal"), &name, &bytes);
        write(&folder.join("data/pg_wal/archive_status"), &format!("{name}.ready"), b"");
    }
    make_archive(&folder.join("repo"));
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
}

fn spawn(folder: &Path, options: &[&str]) -> Child {
    let log = fs::File::options().create(true).append(true).open(folder.join("serve.log")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_walden"))
        .args(["archive", "serve", "--repo", text(&folder.join("repo")), "--log", text(&folder.join("log"))])
        .args(["--data", text(&folder.join("data")), "--socket", text(&folder.join("socket"))])
        .args(options)
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn names() -> Vec<String> {
    segments().into_keys().collect()
}

/// Waits for an effect of another process.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what} takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn kill(signal: &str, process: &Child) {
    assert!(Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap().success());
}

fn connect(socket: &Path) -> Option<UnixStream> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    Some(stream)
}

fn field(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn request(fields: [&str; 4]) -> Vec<u8> {
    let fields = fields.map(|text| field(text.as_bytes())).concat();
    [&b"WALD\x01\0"[..], &field(&fields)].concat()
}

/// Returns the last reply; `None` if the connection ends without one.
fn answer(stream: &mut UnixStream) -> Option<Answer> {
    loop {
        let mut frame = [0; 3];
        stream.read_exact(&mut frame).ok()?;
        let mut fields = vec![0; usize::from(u16::from_be_bytes([frame[1], frame[2]]))];
        stream.read_exact(&mut fields).ok()?;
        if frame[0] == b'W' {
            assert!(fields.is_empty());
            continue;
        }
        let mut texts = Vec::new();
        let mut left = &fields[..];
        while let [high, low, behind @ ..] = left {
            let (text, behind) = behind.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            texts.push(String::from_utf8(text.to_vec()).unwrap());
            left = behind;
        }
        assert_eq!(left, b"");
        return Some(Answer { kind: frame[0].into(), texts });
    }
}

impl Serve {
    fn start(options: &[&str]) -> Serve {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let child = spawn(folder.path(), options);
        let serve = Serve { folder, child };
        serve.wait_until_it_listens();
        serve
    }

    fn wait_until_it_listens(&self) {
        wait_for("start", || connect(&self.path("socket")).is_some());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn wal(&self, name: &str) -> PathBuf {
        self.path("data/pg_wal").join(name)
    }

    fn begin(&self, fields: [&str; 4]) -> UnixStream {
        let mut stream = connect(&self.path("socket")).unwrap();
        stream.write_all(&request(fields)).unwrap();
        stream
    }

    fn ask_with(&self, fields: [&str; 4]) -> Answer {
        answer(&mut self.begin(fields)).unwrap()
    }

    fn ask(&self, name: &str) -> Answer {
        self.ask_with([text(&self.path("data")), name, "", ""])
    }

    /// Returns the lines of the process's log file.
    fn log(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn listed_segments(&self) -> Value {
        let listing = json(&["archive", "list", "--format", "json", "--repo", text(&self.path("repo"))]);
        listing["timelines"][0]["segments"].clone()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn archived() -> Answer {
    Answer { kind: 'D', texts: vec![String::new()] }
}

#[track_caller]
fn assert_refused(answer: &Answer, name: &str, detail: &str) {
    assert_eq!((answer.kind, answer.texts.len()), ('F', 3), "{answer:?}");
    assert_eq!(answer.texts[0], format!("cannot archive {name}"));
    assert!(answer.texts[1].contains(detail), "{answer:?}");
    assert!(!answer.texts[2].is_empty(), "{answer:?}");
}

fn files_are_archived_when_they_are_asked_for_and_others_ahead() {
    let serve = Serve::start(&[]);
    let names = names();
    assert_eq!(serve.ask(&names[0]), archived());
    wait_for("look-ahead", || serve.log().len() == names.len());
    assert_eq!(serve.listed_segments(), names.len());
    // Several servers repeatedly ask for the same files at the same time.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| names.iter().for_each(|name| assert_eq!(serve.ask(name), archived())));
        }
    });
    let verified = walden(&["archive", "verify", "--repo", text(&serve.path("repo"))]);
    assert_eq!(verified.code, 0, "{verified:?}");
    for line in serve.log() {
        assert_eq!(line["command"], "push");
        assert!(line["outcome"] == "archived" || line["outcome"] == "present", "{line}");
    }
    // Only PostgreSQL changes its marks.
    for name in &names {
        assert!(serve.wal(&format!("archive_status/{name}.ready")).exists());
    }
}

fn a_long_queue_is_archived_fast() {
    let stored = ["0", "2"].map(|limit| {
        let serve = Serve::start(&["--fast-queue", limit]);
        assert_eq!(serve.ask(&names()[0]), archived());
        wait_for("look-ahead", || serve.log().len() == names().len());
        serve.log().iter().map(|line| line["stored"].as_u64().unwrap()).sum::<u64>()
    });
    assert!(stored[0] > stored[1] + stored[1] / 4, "{stored:?}");
}

fn a_file_that_changed_after_it_was_archived_ahead_is_not_acknowledged() {
    let serve = Serve::start(&[]);
    let names = names();
    assert_eq!(serve.ask(&names[0]), archived());
    wait_for("look-ahead", || serve.log().len() == names.len());
    let mut other = segments()[&names[1]].clone();
    other[60] ^= 1;
    fs::write(serve.wal(&names[1]), &other).unwrap();
    let refused = serve.ask(&names[1]);
    assert_eq!(refused.kind, 'F', "{refused:?}");
    fs::write(serve.wal(&names[1]), &segments()[&names[1]]).unwrap();
    assert_eq!(serve.ask(&names[1]), archived());
}

fn what_push_refuses_is_refused() {
    let serve = Serve::start(&["--look-ahead", "0"]);
    let (name, other) = (&names()[0], &names()[1]);
    let good = segments()[name].clone();
    let mut damaged = good.clone();
    damaged[50_000] ^= 0x10;
    fs::write(serve.wal(name), &damaged).unwrap();
    let refused = serve.ask(name);
    assert_refused(&refused, name, "damaged at ");
    assert!(refused.texts[1].contains("offset"), "{refused:?}");
    for (content, detail) in
        [(&segments()[other][..], "the first page's address"), (&good[..5000], ""), (b"", "the first page")]
    {
        fs::write(serve.wal(name), content).unwrap();
        assert_refused(&serve.ask(name), name, detail);
    }
    fs::remove_file(serve.wal(name)).unwrap();
    assert_refused(&serve.ask(name), name, "cannot read the file");
    assert!(!serve.path("repo/archive.json").exists());
    fs::write(serve.wal(name), &good).unwrap();
    assert_eq!(serve.ask(name), archived());
    let log = serve.log();
    let causes: Vec<&Value> = log.iter().map(|line| &line["cause"]).collect();
    assert_eq!(
        causes,
        ["damaged", "mismatch", "mismatch", "mismatch", "unreadable"]
            .map(Value::from)
            .iter()
            .chain([&Value::Null])
            .collect::<Vec<_>>()
    );
}

fn requests_of_others_are_refused_and_bytes_that_are_none_do_no_harm() {
    let serve = Serve::start(&[]);
    let (data, name) = (serve.path("data"), &names()[0]);
    let (data, nowhere, repo) = (text(&data), serve.path("nowhere"), serve.path("repo"));
    for file in [
        "../../etc/passwd",
        "",
        "postgresql.conf",
        "archive_status",
        &format!("./{name}"),
        &format!("{name}.gz"),
    ] {
        assert_refused(&serve.ask(file), file, "Expected the name of a segment");
    }
    for other in [text(&nowhere), "", text(&repo), text(serve.folder.path())] {
        assert_refused(&serve.ask_with([other, name, "", ""]), name, "was asked by the server in");
    }
    assert_refused(
        &serve.ask_with([data, name, "s3://other/archive", ""]),
        name,
        "walden.repo is s3://other/archive",
    );
    assert_refused(
        &serve.ask_with([data, name, "", "/etc/other.toml"]),
        name,
        "walden.config is /etc/other.toml",
    );
    assert!(!serve.path("repo/archive.json").exists());

    let good = request([data, name, "", ""]);
    for end in 0..good.len() {
        let mut stream = connect(&serve.path("socket")).unwrap();
        stream.write_all(&good[..end]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = answer(&mut stream).unwrap();
        assert_eq!(
            (answer.kind, answer.texts[0].as_str()),
            ('F', "cannot archive a file"),
            "{end}: {answer:?}"
        );
    }
    let version = [&b"WALD\x02\0"[..], &good[6..]].concat();
    for (bytes, detail) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "expected \"WALD\""),
        (&version, "expected version 1, found 2"),
        (b"WALD\x01\0\xFF\xFF", "at most 8192 bytes"),
        (b"WALD\x01\0\0\x02\xFF\xFF", "four fields"),
    ] {
        let mut stream = connect(&serve.path("socket")).unwrap();
        stream.write_all(bytes).unwrap();
        let answer = answer(&mut stream).unwrap();
        assert!(answer.texts[1].contains(detail), "{answer:?}");
    }
    // Clients that are silent or disconnect do not block others.
    let idle: Vec<_> = (0..10).map(|_| connect(&serve.path("socket")).unwrap()).collect();
    for _ in 0..10 {
        drop(serve.begin([data, name, "", ""]));
    }
    assert_eq!(serve.ask_with([data, name, text(&repo), ""]), archived());
    drop(idle);
}

fn a_store_that_takes_nothing_is_told_and_later_tried_again() {
    let serve = Serve::start(&[]);
    let names = names();
    fs::rename(serve.path("repo"), serve.path("away")).unwrap();
    fs::write(serve.path("repo"), "a file where the archive should be").unwrap();
    for _ in 0..3 {
        let refused = serve.ask(&names[0]);
        assert_eq!(
            (refused.kind, refused.texts[0].as_str()),
            ('F', &*format!("cannot archive {}", names[0]))
        );
        assert!(!refused.texts[1].is_empty(), "{refused:?}");
    }
    fs::remove_file(serve.path("repo")).unwrap();
    fs::rename(serve.path("away"), serve.path("repo")).unwrap();
    for name in &names {
        assert_eq!(serve.ask(name), archived());
    }
    // The process notices when its archive disappears, as when a file system is unmounted.
    fs::rename(serve.path("repo"), serve.path("away")).unwrap();
    fs::write(serve.path("repo"), "").unwrap();
    assert_eq!(serve.ask(&names[0]).kind, 'F');
    fs::remove_file(serve.path("repo")).unwrap();
    // Nothing may be archived into the mount point.
    fs::create_dir(serve.path("repo")).unwrap();
    let refused = serve.ask(&names[0]);
    assert!(refused.kind == 'F' && refused.texts[1].contains("cannot find an archive"), "{refused:?}");
    fs::remove_dir(serve.path("repo")).unwrap();
    fs::rename(serve.path("away"), serve.path("repo")).unwrap();
    assert_eq!(serve.ask(&names[0]), archived());
}

fn a_signal_ends_it_after_the_running_file_and_the_socket_is_used_again() {
    let mut serve = Serve::start(&["--level", "9", "--threads", "1"]);
    let (names, data) = (names(), serve.path("data"));
    let second = walden(&[
        "archive",
        "serve",
        "--repo",
        text(&serve.path("other")),
        "--data",
        text(&data),
        "--socket",
        text(&serve.path("socket")),
    ]);
    assert!(second.code == 3 && second.stderr.contains("another walden archive serve uses it"), "{second:?}");

    let mut running = serve.begin([text(&data), &names[0], "", ""]);
    let mut first = [0];
    running.read_exact(&mut first).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    // A request that has not started, and a silent connection.
    let mut queued = serve.begin([text(&data), &names[1], "", ""]);
    let _idle = connect(&serve.path("socket")).unwrap();
    kill("-TERM", &serve.child);
    // The remaining bytes of the reply whose first byte was read.
    running.read_exact(&mut [0; 2]).unwrap();
    assert_eq!(answer(&mut running), Some(archived()));
    let answered = Instant::now();
    let queued = answer(&mut queued).map(|answer| answer.kind);
    assert!(matches!(queued, None | Some('F' | 'D')), "{queued:?}");
    assert_eq!(serve.child.wait().unwrap().code(), Some(143));
    assert!(answered.elapsed() < Duration::from_secs(1), "{:?}", answered.elapsed());
    assert!(!serve.path("socket").exists());

    // A killed process leaves its socket behind.
    serve.child = spawn(serve.folder.path(), &[]);
    serve.wait_until_it_listens();
    kill("-KILL", &serve.child);
    serve.child.wait().unwrap();
    assert!(serve.path("socket").exists());
    serve.child = spawn(serve.folder.path(), &[]);
    serve.wait_until_it_listens();
    let mode = fs::metadata(serve.path("socket")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for name in &names {
        assert_eq!(serve.ask(name), archived());
    }
}

fn a_folder_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    let run = walden(&[
        "archive",
        "serve",
        "--repo",
        text(&folder.path().join("repo")),
        "--data",
        text(&folder.path().join("data")),
        "--socket",
        text(&open.join("socket")),
    ]);
    assert!(run.code == 3 && run.stderr.contains("no other user can write to"), "{run:?}");
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
}
