//! Recovery and reading from segments and packs, plain and encrypted, in folders and buckets. One server's
//! WAL is archived once, and imported into the other kinds of archives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Outcome, postgres};

use crate::archive::{content, program_for, recovered, text, wait_until_archived, work};
use crate::archive_s3::{BUCKET, Server};
use crate::material::{Run, walden};

walden_testing::tests! {
    a_server_of_15_recovers_from_every_kind_of_archive_and_each_is_read,
}

/// Archives of one cluster, and the recipient that may read them.
struct Archives {
    folder: PathBuf,
    program: PathBuf,
    port: u16,
    recipient: String,
}

impl Archives {
    fn config(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.toml"))
    }

    /// Returns environment variables for the object store.
    fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ACCESS_KEY_ID", "somebody".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    /// Creates an archive, and a complete configuration for it.
    fn init(&self, name: &str, is_in_bucket: bool, is_encrypted: bool) -> String {
        let repo = match is_in_bucket {
            true => format!("s3://{BUCKET}/{name}"),
            false => text(&self.folder.join(name)).to_owned(),
        };
        let config = self.config(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        command.args(["archive", "init", "--repo", &repo, "-o", text(&config)]).envs(self.environment());
        if is_encrypted {
            command.args(["--recipient", &self.recipient]);
        }
        let made = Run::execute(&mut command);
        assert_eq!(made.code, 0, "{made:?}");
        let [endpoint, id, key, region] = self.environment().map(|(_, value)| value);
        let store = format!(
            "\n[archive.store]\nendpoint = \"{endpoint}\"\naccess_key_id = \"{id}\"\nsecret_access_key = \"{key}\"\nregion = \"{region}\"\n"
        );
        fs::write(&config, fs::read_to_string(&config).unwrap() + &store).unwrap();
        repo
    }

    /// Runs an archive command, always with the private key.
    fn run(&self, name: &str, arguments: &[&str]) -> Run {
        let config = self.config(name);
        let key = self.folder.join("user.key");
        let place = ["--config", text(&config), "--identity", text(&key)];
        let run = walden(&[&["archive", arguments[0]], &place[..], &arguments[1..]].concat());
        assert_eq!(run.code, 0, "{name}: {run:?}");
        run
    }

    /// Runs a command that reads an archive as its source.
    fn read(&self, name: &str, arguments: &[&str]) -> Run {
        let run = Run::execute(
            Command::new(env!("CARGO_BIN_EXE_walden"))
                .args(arguments)
                .env("WALDEN_CONFIG", self.config(name))
                .env("WALDEN_IDENTITY", self.folder.join("user.key")),
        );
        assert_eq!(run.code, 0, "{name}: {run:?}");
        run
    }

    fn commands(&self, name: &str) -> [String; 2] {
        let (program, config) = (self.program.display(), self.config(name));
        let (config, key) = (config.display(), self.folder.join("user.key"));
        [
            format!("{program} archive push --config {config} %p"),
            format!("{program} archive get --config {config} --identity {} %f \"%p\"", key.display()),
        ]
    }
}

fn a_server_of_15_recovers_from_every_kind_of_archive_and_each_is_read() -> Outcome {
    let installation = postgres(15)?;
    let server = Server::start(&[])?;
    let primary = ClusterBuilder::new(installation).wal_segsize_mb(1).start().unwrap();
    let folder = primary.make_folder("archives").unwrap();
    let key = folder.join("user.key");
    let made = walden(&["archive", "key", "generate", "-o", text(&key)]);
    let recipient = made.stdout.lines().next().unwrap().to_owned();
    let archives = Archives { folder, program: program_for(&primary), port: server.port, recipient };
    archives.init("bucket", true, false);
    share(&archives.folder);
    let done = archive_work(&primary, &archives);

    // Imports the same files into the other kinds of archives.
    for (name, is_in_bucket) in [("encrypted-bucket", true), ("encrypted-folder", false)] {
        archives.init(name, is_in_bucket, true);
        archives.run(name, &["import", text(&done.wal)]);
    }
    share(&archives.folder);
    for is_packed in [false, true] {
        for (name, place) in [
            ("bucket", format!("s3://{BUCKET}/bucket")),
            ("encrypted-bucket", format!("s3://{BUCKET}/encrypted-bucket")),
            ("encrypted-folder", text(&archives.folder.join("encrypted-folder")).to_owned()),
        ] {
            if is_packed {
                let packed =
                    archives.run(name, &["pack", "--segments", "4", "--keep", "0", "--format", "json"]);
                let report: Value = serde_json::from_str(&packed.stdout).unwrap();
                assert!(report["packs"].as_array().unwrap().len() > 1, "{report:#}");
                share(&archives.folder);
            }
            recover(&primary, &archives, name, &done);
            compare_readings(&archives, name, &place, &done, is_packed);
        }
    }
    Ok(())
}

/// Gives the server's account and this one access to each other's files.
fn share(folder: &Path) {
    let shared = Command::new("chmod").args(["-R", "a+rwX", text(folder)]).status().unwrap();
    assert!(shared.success());
}

/// The results of a server's work.
struct Work {
    backup: PathBuf,
    /// The server's WAL after the backup, as plain files.
    wal: PathBuf,
    /// Path of the table's file.
    file: String,
    /// The table's final content.
    content: String,
}

/// Takes a backup, then works and archives.
fn archive_work(primary: &Cluster, archives: &Archives) -> Work {
    let mut client = primary.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)").unwrap();
    let file = client.query_one("SELECT pg_relation_filepath('t')", &[]).unwrap().get(0);
    drop(client);
    primary.stop(StopMode::Fast).unwrap();
    let backup = primary.dir().join("backup");
    primary.copy_data(&backup).unwrap();
    let [push, _] = archives.commands("bucket");
    primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
    primary.start().unwrap();
    let mut client = primary.client("postgres").unwrap();
    work(&mut client, 0);
    work(&mut client, 1);
    let content = content(&mut client);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    primary.crash().unwrap();
    let wal = primary.dir().join("wal");
    archives.run("bucket", &["export", "-o", text(&wal)]);
    Work { backup, wal, file, content }
}

fn recover(primary: &Cluster, archives: &Archives, name: &str, done: &Work) {
    let [_, get] = archives.commands(name);
    let restored = recovered(primary.installation(), &done.backup, &[("restore_command", &get)]);
    assert_eq!(content(&mut restored.client("postgres").unwrap()), done.content, "{name}");
    restored.stop(StopMode::Fast).unwrap();
}

/// Compares the results of each command for an archive and for plain files.
fn compare_readings(archives: &Archives, name: &str, place: &str, done: &Work, is_packed: bool) {
    let (files, file) = (text(&done.wal), done.file.as_str());
    let explain = |source: &str| {
        archives.read(name, &["explain", "--format", "json", "--by", "relation", source]).json()
    };
    let (of_archive, of_files) = (explain(place), explain(files));
    for field in ["buckets", "records", "ranges", "views"] {
        assert_eq!(of_archive[field], of_files[field], "{name}: {field}");
    }
    if !is_packed {
        return;
    }
    for arguments in [
        vec!["redo", "check", "--format", "json"],
        vec!["page", "--relation", file, "--block", "0", "--format", "json"],
        vec!["whatif", "--set", "wal_compression=lz4", "--format", "json"],
    ] {
        let of = |source: &str| {
            let run = archives.read(name, &[&arguments[..], &[source]].concat());
            let mut document: Value = serde_json::from_str(&run.stdout).unwrap();
            // Depends on the replay speed of this machine, which is measured each time.
            if let Some(Value::Object(prediction)) = document.pointer_mut("/predictions/0") {
                prediction.remove("recovery_seconds");
                return document["predictions"].take();
            }
            document
        };
        assert_eq!(of(place), of(files), "{name}: {arguments:?}");
    }
}
