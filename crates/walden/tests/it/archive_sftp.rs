//! Archives on a server that ssh reaches.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use walden_archive::store::{Cause, Created};
use walden_archive::url::{self, PlaceOptions};
use walden_lab::ClusterBuilder;
use walden_testing::{Missing, Need, Outcome, postgres, write_program};

use crate::archive::{json, text};
use crate::archive_care::switch;
use crate::material::{Run, golden, walden};
use crate::store_conformance::Ssh;

walden_testing::tests! {
    every_command_works_over_ssh,
    an_encrypted_archive_changes_its_keys_over_ssh,
    wal_is_received_into_a_server_that_ssh_reaches,
    what_prevents_a_connection_is_named,
    a_server_without_hard_links_renames,
    a_server_that_overwrites_is_refused,
    leftovers_are_removed_after_a_day,
}

/// A server's files, and a configuration for an archive over ssh.
struct Client {
    ssh: Ssh,
    folder: tempfile::TempDir,
}

impl Client {
    fn new() -> Result<Client, Missing> {
        let client = Client { ssh: Ssh::start()?, folder: tempfile::tempdir().unwrap() };
        for (name, bytes) in golden("18.6").iter().take(2) {
            fs::create_dir_all(client.path("pg_wal/archive_status")).unwrap();
            fs::write(client.path("PG_VERSION"), "18\n").unwrap();
            fs::write(client.path(&format!("pg_wal/{name}")), bytes).unwrap();
            fs::write(client.path(&format!("pg_wal/archive_status/{name}.ready")), "").unwrap();
        }
        client.configure(&client.ssh.url("repo"), text(client.ssh.config()), "");
        Ok(client)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, repo: &str, config: &str, more: &str) {
        let settings =
            format!("[archive]\nrepo = \"{repo}\"\n{more}\n[archive.store]\nconfig = \"{config}\"\n");
        fs::write(self.path("walden.toml"), settings).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let config = self.path("walden.toml");
        walden(&[&["archive"], arguments, &["--config", text(&config)]].concat())
    }

    /// Expects that a command succeeds.
    fn expect(&self, arguments: &[&str]) -> Run {
        let run = self.run(arguments);
        assert_eq!(run.code, 0, "{arguments:?}: {run:?}");
        run
    }

    fn get(&self, name: &str) -> Run {
        let target = self.path("RECOVERYXLOG");
        let _ = fs::remove_file(&target);
        let got = self.run(&["get", "--prefetch", "0", name, text(&target)]);
        if got.code == 0 {
            assert!(fs::read(&target).unwrap() == golden("18.6")[name], "{name}");
        }
        got
    }
}

fn names() -> Vec<String> {
    golden("18.6").into_keys().take(2).collect()
}

fn every_command_works_over_ssh() -> Outcome {
    let client = Client::new()?;
    client.expect(&["init"]);
    let names = names();
    let segment = |name: &str| client.path(&format!("pg_wal/{name}"));
    // One call archives the other segment as well.
    client.expect(&["push", text(&segment(&names[0]))]);
    for name in &names {
        client.expect(&["push", "--look-ahead", "0", text(&segment(name))]);
        assert_eq!(client.get(name).code, 0);
    }
    for missing in ["0000000100000000000000FF", "00000002.history"] {
        assert_eq!(client.get(missing).code, 1, "{missing}");
    }
    let config = client.path("walden.toml");
    let listing = json(&["archive", "list", "--cost", "--format", "json", "--config", text(&config)]);
    assert_eq!(listing["timelines"][0]["segments"], 2, "{listing:#}");
    assert!(listing["cost"]["stored_bytes"].as_u64().unwrap() > 0 && listing["cost"]["prices"].is_null());
    for arguments in [&["verify"][..], &["check"], &["pack", "--segments", "2", "--keep", "0"], &["verify"]] {
        client.expect(arguments);
    }
    for name in &names {
        assert_eq!(client.get(name).code, 0, "from the pack");
    }
    client.expect(&["export", "--output", text(&client.path("exported"))]);
    assert!(fs::read(client.path("exported").join(&names[1])).unwrap() == golden("18.6")[&names[1]]);
    // Different content of an archived name.
    let mut other = fs::read(segment(&names[0])).unwrap();
    other[60] ^= 1;
    fs::write(segment(&names[0]), other).unwrap();
    let refused = client.run(&["push", "--accept-damaged", "--look-ahead", "0", text(&segment(&names[0]))]);
    assert!(refused.code == 1 && refused.stderr.contains("other content"), "{refused:?}");
    // A second repository gets the objects of the first one.
    let second = client.ssh.url("second");
    let repo = client.path("local");
    let settings = format!(
        "[archive]\nrepo = [{{ url = \"{second}\", store = {{ config = \"{}\" }} }}, \"{}\"]\nacknowledge = 1\n",
        client.ssh.config().display(),
        repo.display()
    );
    let both = client.path("both.toml");
    fs::write(&both, settings).unwrap();
    let imported = |repo: &str, from: &Path| {
        walden(&["archive", "import", "--config", text(&both), "--repo", repo, text(from)])
    };
    let run = imported(&second, &client.path("exported"));
    assert_eq!(run.code, 0, "{run:?}");
    let run = walden(&["archive", "init", "--repo", text(&repo), "-o", text(&client.path("local.toml"))]);
    assert_eq!(run.code, 0, "{run:?}");
    let copied = walden(&["archive", "copy", "--config", text(&both)]);
    assert_eq!(copied.code, 0, "{copied:?}");
    let run = walden(&["archive", "verify", "--repo", text(&repo)]);
    assert!(run.code == 0 && run.stdout.contains("2 segments"), "{run:?}");
    // All goes, and nothing is left.
    client.expect(&["prune", "--older-than", "0000000100000000000000FF", "--apply"]);
    // A gap, as verify has seen these segments.
    assert_eq!(client.get(&names[0]).code, 200);
    let mut files = Vec::new();
    find_files(&client.ssh.folder("repo/wal"), &mut files);
    assert_eq!(files, Vec::<PathBuf>::new());
    assert!(fs::read_dir(client.ssh.folder("repo/probe")).is_ok_and(|mut entries| entries.next().is_none()));
    Ok(())
}

fn find_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => find_files(&path, found),
            false => found.push(path),
        }
    }
}

fn an_encrypted_archive_changes_its_keys_over_ssh() -> Outcome {
    let client = Client::new()?;
    let key = client.path("user.key");
    let made = walden(&["archive", "key", "generate", "-o", text(&key)]);
    let user = made.stdout.lines().next().unwrap();
    client.expect(&["init", "--recipient", user]);
    let names = names();
    let push = |name: &str| {
        client.expect(&["push", "--look-ahead", "0", text(&client.path(&format!("pg_wal/{name}")))])
    };
    push(&names[0]);
    client.expect(&["key", "rotate", "--identity", text(&key)]);
    push(&names[1]);
    client.expect(&["verify", "--identity", text(&key)]);
    client.expect(&["pack", "--segments", "2", "--keep", "0", "--identity", text(&key)]);
    let target = client.path("RECOVERYXLOG");
    client.expect(&["get", "--prefetch", "0", "--identity", text(&key), &names[1], text(&target)]);
    assert!(fs::read(&target).unwrap() == golden("18.6")[&names[1]]);
    assert_eq!(client.get(&names[0]).code, 200, "without the private key");
    Ok(())
}

fn wal_is_received_into_a_server_that_ssh_reaches() -> Outcome {
    let client = Client::new()?;
    let cluster = ClusterBuilder::new(postgres(15)?).wal_segsize_mb(1).start().unwrap();
    client.expect(&["init"]);
    let (config, spool) = (client.path("walden.toml"), client.path("spool"));
    let mut receive = Command::new(env!("CARGO_BIN_EXE_walden"));
    receive.args([
        "receive",
        "--config",
        text(&config),
        "--dsn",
        &cluster.dsn("postgres"),
        "--spool",
        text(&spool),
    ]);
    let mut receive = receive.args(["--slot", "walden", "--create-slot"]).spawn().unwrap();
    let began = Instant::now();
    let mut sql = cluster.client("postgres").unwrap();
    sql.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
    let segments = || {
        let run = client.run(&["list", "--format", "json"]);
        let listing: serde_json::Value = serde_json::from_str(&run.stdout).unwrap_or_default();
        listing["timelines"][0]["segments"].as_u64().unwrap_or_default()
    };
    while segments() < 2 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is received");
        switch(&mut sql, 0);
        std::thread::sleep(Duration::from_millis(200));
    }
    let _ = Command::new("kill").arg(receive.id().to_string()).status();
    assert!(receive.wait().unwrap().success());
    client.expect(&["verify"]);
    Ok(())
}

fn what_prevents_a_connection_is_named() -> Outcome {
    let client = Client::new()?;
    client.expect(&["init"]);
    let config = fs::read_to_string(client.ssh.config()).unwrap();
    let with = |name: &str, from: &str, to: &str| {
        assert!(config.contains(from), "{config}");
        let path = client.path(name);
        fs::write(&path, config.replace(from, to)).unwrap();
        path
    };
    let unknown = with("strict", "StrictHostKeyChecking no", "StrictHostKeyChecking yes");
    let key = client.path("other_key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", text(&key)]).status();
    assert!(made.unwrap().success());
    let own_key = config.lines().find(|line| line.contains("IdentityFile")).unwrap();
    let stranger = with("stranger", own_key, &format!("  IdentityFile {}", key.display()));
    let name = &names()[0];
    let push = || client.run(&["push", "--look-ahead", "0", text(&client.path(&format!("pg_wal/{name}")))]);
    let repo = client.ssh.url("repo");
    for (config, expected, hint) in [
        (&unknown, "host key is not a known one", "connect once by ssh"),
        (&stranger, "the server refuses the login", "authorized_keys"),
    ] {
        client.configure(&repo, text(config), "");
        let (pushed, began) = (push(), Instant::now());
        assert!(pushed.code == 1 && pushed.stderr.contains(expected), "{pushed:?}");
        assert!(pushed.stderr.contains(hint) && began.elapsed() < Duration::from_secs(5), "{pushed:?}");
        let got = client.get(name);
        assert!(got.code == 200 && got.stderr.contains(expected), "{got:?}");
    }
    let program = format!("{}\"\nprogram = \"/nowhere/ssh", client.ssh.config().display());
    client.configure(&repo, &program, "");
    let pushed = push();
    assert!(pushed.code == 1 && pushed.stderr.contains("cannot run /nowhere/ssh"), "{pushed:?}");
    assert!(pushed.stderr.contains("HINT: install OpenSSH's client"), "{pushed:?}");
    client.configure(&repo, &format!("{}\"\nendpoint = \"x", client.ssh.config().display()), "");
    let pushed = push();
    assert!(pushed.code != 0 && pushed.stderr.contains("found endpoint"), "{pushed:?}");
    // A folder that the user of the server may not write.
    client.configure(&repo, text(client.ssh.config()), "");
    let folder = client.ssh.folder("repo/wal");
    let _ = fs::create_dir(&folder);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    if rustix::process::geteuid().is_root() {
        let owned = Command::new("chown").args(["0:0", text(&folder)]).status();
        assert!(owned.unwrap().success());
    }
    let pushed = push();
    assert!(pushed.code == 1 && pushed.stderr.contains("permission denied"), "{pushed:?}");
    assert!(!pushed.stderr.contains("s3:"), "{pushed:?}");
    Ok(())
}

/// Writes a program that takes the place of ssh. Returns the settings of the store.
fn program(folder: &Path, text_of_program: &str) -> PlaceOptions {
    let path = folder.join("ssh");
    write_program(&path, text_of_program);
    let store = vec![("program".to_owned(), text(&path).to_owned())];
    PlaceOptions::default().store(store).answer_within(Some(Duration::from_secs(10)))
}

/// The program of OpenSSH's server that speaks SFTP.
fn sftp_server() -> Result<PathBuf, Missing> {
    Need::Sshd.find()?;
    let places =
        ["/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server"];
    let found = places.into_iter().map(PathBuf::from).find(|path| path.exists());
    found.ok_or_else(|| Missing { reason: "sftp-server is missing (openssh-sftp-server)".to_owned() })
}

fn a_server_without_hard_links_renames() -> Outcome {
    let root = tempfile::tempdir().unwrap();
    let server = sftp_server()?;
    let script = format!("#!/bin/sh\nexec {} -P hardlink,fsync\n", server.display());
    let options = program(root.path(), &script);
    let place = format!("sftp://host{}", root.path().join("repo").display());
    let archive = url::open(&place, &options).unwrap();
    archive.make_root().unwrap();
    let store = archive.encrypted().inner();
    assert_eq!(store.create("wal/1", b"one").unwrap(), Created::New);
    assert_eq!(store.create("wal/1", b"two").unwrap(), Created::Exists);
    assert_eq!(store.read("wal/1").unwrap(), b"one");
    assert!(store.warning().is_some_and(|text| text.contains("power failure")));
    let results: Vec<Created> = std::thread::scope(|scope| {
        let create = |number: u8| {
            url::open(&place, &options).unwrap().encrypted().inner().create("wal/2", &[number; 9])
        };
        let writers: Vec<_> = (0..4).map(|number| scope.spawn(move || create(number).unwrap())).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(results.iter().filter(|result| **result == Created::New).count(), 1, "{results:?}");
    let mut files = Vec::new();
    find_files(&root.path().join("repo"), &mut files);
    assert_eq!(files.len(), 2, "{files:?}");
    Ok(())
}

/// A server of version 3 without extensions whose rename replaces files.
const OVERWRITING: &str = r#"
import os, struct, sys
handles = {}
def read(count):
    data = sys.stdin.buffer.read(count)
    if len(data) < count: sys.exit()
    return data
def send(kind, body):
    sys.stdout.buffer.write(struct.pack(">IB", len(body) + 1, kind) + body)
    sys.stdout.buffer.flush()
def string(data): return struct.pack(">I", len(data)) + data
def take(data):
    (count,) = struct.unpack(">I", data[:4])
    return data[4:4 + count], data[4 + count:]
while True:
    (count,) = struct.unpack(">I", read(4))
    packet = read(count)
    kind, body = packet[0], packet[1:]
    if kind == 1:
        send(2, struct.pack(">I", 3))
        continue
    number, body = body[:4], body[4:]
    def status(code): send(101, number + struct.pack(">I", code) + string(b"no") + string(b""))
    try:
        if kind in (7, 17):
            path, _ = take(body)
            found = (os.lstat if kind == 7 else os.stat)(path)
            send(105, number + struct.pack(">IQI", 5, found.st_size, found.st_mode))
        elif kind == 3:
            path, _ = take(body)
            handle = str(len(handles)).encode()
            handles[handle] = open(path, "xb")
            send(102, number + string(handle))
        elif kind == 6:
            handle, body = take(body)
            handles[handle].seek(struct.unpack(">Q", body[:8])[0])
            handles[handle].write(take(body[8:])[0])
            status(0)
        elif kind == 4:
            handles.pop(take(body)[0]).close()
            status(0)
        elif kind == 13: os.remove(take(body)[0]); status(0)
        elif kind == 14: os.mkdir(take(body)[0]); status(0)
        elif kind == 18:
            one, body = take(body)
            os.replace(one, take(body)[0])
            status(0)
        else: status(8)
    except FileNotFoundError: status(2)
    except OSError: status(4)
"#;

fn a_server_that_overwrites_is_refused() -> Outcome {
    let root = tempfile::tempdir().unwrap();
    let python = Need::Python.find()?;
    fs::write(root.path().join("server.py"), OVERWRITING).unwrap();
    let server = root.path().join("server.py");
    let options =
        program(root.path(), &format!("#!/bin/sh\nexec {} {}\n", python.display(), server.display()));
    let archive = url::open(&format!("sftp://host{}", root.path().join("repo").display()), &options).unwrap();
    archive.make_root().unwrap();
    let error = archive.encrypted().inner().create("wal/1", b"one").unwrap_err();
    let error_text = format!("{:?}", error.source);
    assert!(error.cause == Cause::Other && error_text.contains("overwrite each other's WAL"), "{error:?}");
    let mut files = Vec::new();
    find_files(&root.path().join("repo"), &mut files);
    assert_eq!(files, Vec::<PathBuf>::new());
    Ok(())
}

fn leftovers_are_removed_after_a_day() -> Outcome {
    let root = tempfile::tempdir().unwrap();
    let options = program(root.path(), &format!("#!/bin/sh\nexec {}\n", sftp_server()?.display()));
    let archive = url::open(&format!("sftp://host{}", root.path().join("repo").display()), &options).unwrap();
    archive.make_root().unwrap();
    let store = archive.encrypted().inner();
    store.create("wal/1", b"one").unwrap();
    let [old, new] = ["old", "new"].map(|name| root.path().join(format!("repo/wal/.{name}.tmp")));
    for path in [&old, &new] {
        fs::write(path, "").unwrap();
    }
    let yesterday = std::time::SystemTime::now() - Duration::from_secs(25 * 3600);
    fs::File::options().write(true).open(&old).unwrap().set_modified(yesterday).unwrap();
    store.remove_leftovers().unwrap();
    assert!(!old.exists() && new.exists());
    let mut keys = Vec::new();
    store.list("", &mut |listed| keys.push(listed.key)).unwrap();
    assert_eq!(keys, ["wal/1"]);
    Ok(())
}
