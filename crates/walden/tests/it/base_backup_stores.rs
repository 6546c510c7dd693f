//! Base backups in each kind of store: they are made, advanced, listed, verified, restored and pruned as in a
//! folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use postgres::Client;
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder};
use walden_testing::{Missing, Outcome, postgres};

use crate::archive::{text, wait_until_archived, wait_until_promoted};
use crate::archive_clouds::{Cloud, KEY};
use crate::archive_lock::{create_locked, lock_of, send};
use crate::archive_s3::{BUCKET, Server};
use crate::base_backups::parsed;
use crate::material::{Run, walden};
use crate::restore_forward::{content, expect_same_content};
use crate::store_conformance::Ssh;

walden_testing::tests! {
    base_backups_are_kept_in_s3,
    #[slow] base_backups_are_kept_in_a_bucket_with_object_lock,
    #[slow] base_backups_are_kept_in_azure,
    base_backups_are_kept_over_sftp,
    #[slow] base_backups_are_kept_in_google,
    #[slow] base_backups_are_kept_in_swift,
}

/// The content of a server's tables.
type Content = BTreeMap<(String, String), (i64, String)>;

/// A server, and an archive in a store to which its WAL is pushed.
struct Site {
    cluster: Cluster,
    config: PathBuf,
}

impl Site {
    fn start(repo: &str, more: &str, store: &[(String, String)]) -> Result<Site, Missing> {
        let builder = ClusterBuilder::new(postgres(18)?).wal_segsize_mb(1).checksums(true).archive(true);
        let cluster = builder
            .setting("autovacuum", "off")
            .setting("wal_level", "replica")
            .setting("max_wal_senders", "4")
            .start()
            .unwrap();
        let config = cluster.dir().join("walden.toml");
        let settings: String = store.iter().map(|(name, value)| format!("{name} = {value:?}\n")).collect();
        let file = format!("[archive]\nrepo = {repo:?}\n{more}\n[archive.store]\n{settings}");
        fs::write(&config, file).unwrap();
        Ok(Site { cluster, config })
    }

    fn run(&self, arguments: &[&str]) -> Run {
        walden(&[arguments, &["--config", text(&self.config)]].concat())
    }

    fn expect(&self, arguments: &[&str]) -> Run {
        let run = self.run(arguments);
        assert_eq!(run.code, 0, "{arguments:?}: {run:?}");
        run
    }

    fn json(&self, arguments: &[&str]) -> Value {
        parsed(&self.expect(&[arguments, &["--format", "json"]].concat()))
    }

    fn push_all(&self, client: &mut Client) {
        client.batch_execute("SELECT pg_switch_wal()").unwrap();
        wait_until_archived(client);
        let entries = fs::read_dir(self.cluster.archive_dir()).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        for file in &files {
            self.expect(&["archive", "push", text(file)]);
        }
    }

    /// Stores a backup. Its WAL is pushed afterwards.
    fn create(&self, client: &mut Client) -> Value {
        let dsn = self.cluster.dsn("postgres");
        let arguments =
            ["backup", "create", &dsn, "--checkpoint", "fast", "--wait-for-wal", "0", "--format", "json"];
        let run = self.run(&arguments);
        assert!(run.code <= 1, "{run:?}");
        self.push_all(client);
        parsed(&run)
    }

    /// Restores the newest backup, and compares the content of a server on it.
    fn expect_restored(&self, folder: &str, expected: &Content) {
        let data = self.cluster.dir().join(folder);
        let get = format!("cp {}/%f \"%p\"", self.cluster.archive_dir().display());
        let options = ["--restore-command", &get, "--target-action", "promote", "--verify-base"];
        self.expect(&[&["restore", "-o", text(&data)], &options[..]].concat());
        let builder = ClusterBuilder::new(self.cluster.installation().clone()).copy_of(&data);
        let server =
            builder.setting("archive_mode", "off").start().unwrap_or_else(|error| panic!("{error:#}"));
        wait_until_promoted(&server);
        expect_same_content(&content(&server), expected);
    }
}

/// Checks all commands; `is_locked` if the store refuses removals for now.
fn backups_work(site: &Site, is_locked: bool) {
    site.expect(&["archive", "init"]);
    let mut client = site.cluster.client("postgres").unwrap();
    for sql in [
        "CREATE TABLE large AS SELECT g i, md5(g::text) t FROM generate_series(1, 200000) g",
        "CREATE TABLE small AS SELECT g i FROM generate_series(1, 1000) g",
        "CHECKPOINT",
    ] {
        client.batch_execute(sql).unwrap();
    }
    site.push_all(&mut client);
    let first = site.create(&mut client);
    client.batch_execute("UPDATE small SET i = i + 1; UPDATE large SET t = 'x' WHERE i = 7").unwrap();
    let second = site.create(&mut client);
    assert!(second["new_bytes"].as_u64() < first["new_bytes"].as_u64(), "{first} {second}");
    client.batch_execute("DELETE FROM small WHERE i % 2 = 0; CHECKPOINT").unwrap();
    site.push_all(&mut client);
    let work = site.cluster.dir().join("work");
    let advanced = site.json(&["backup", "advance", "latest", "--store", "--work", text(&work)]);
    client.batch_execute("INSERT INTO small VALUES (0)").unwrap();
    site.push_all(&mut client);
    let expected = content(&site.cluster);

    let names = [&first["name"], &second["name"], &advanced["stored"]["name"]];
    let listed = || -> Vec<Value> {
        let list = site.json(&["archive", "list", "--cost"]);
        assert!(list["cost"]["base_backups"]["objects"].as_u64() > Some(10), "{list:#}");
        let backups = list["stored_backups"].as_array().unwrap().iter();
        let histories = list["backups"].as_array().unwrap();
        let is_named = |backup: &Value| histories.contains(&backup["history_file"]);
        // That of an advanced backup does not exist.
        assert_eq!(
            list["stored_backups"].as_array().unwrap().iter().filter(|it| is_named(it)).count(),
            histories.len()
        );
        backups.map(|backup| backup["name"].clone()).collect()
    };
    assert_eq!(listed().iter().collect::<Vec<_>>(), names);
    assert_eq!(site.json(&["archive", "verify"])["base_backups"], 3);
    site.expect_restored("before", &expected);

    let pruned = site.json(&["archive", "prune", "--keep-backups", "1", "--apply"]);
    match is_locked {
        true => assert_eq!(listed().len(), 3, "{pruned:#}"),
        false => assert_eq!(listed().iter().collect::<Vec<_>>(), names[2..], "{pruned:#}"),
    }
    site.expect(&["archive", "verify"]);
    site.expect_restored("after", &expected);
}

fn pairs<const N: usize>(settings: [(&str, String); N]) -> Vec<(String, String)> {
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn s3_settings(server: &Server) -> Vec<(String, String)> {
    pairs([
        ("endpoint", format!("http://127.0.0.1:{}", server.port)),
        ("access_key_id", "somebody".to_owned()),
        ("secret_access_key", "secret".to_owned()),
        ("region", "us-east-1".to_owned()),
    ])
}

fn base_backups_are_kept_in_s3() -> Outcome {
    let server = Server::start(&[])?;
    let site = Site::start(&format!("s3://{BUCKET}/main"), "", &s3_settings(&server))?;
    backups_work(&site, false);
    Ok(())
}

fn base_backups_are_kept_in_a_bucket_with_object_lock() -> Outcome {
    let server = Server::start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "1000000")])?;
    create_locked(&server, "locked", None);
    let lock = "lock_days = 30\nlock_mode = \"compliance\"";
    let site = Site::start("s3://locked/main", lock, &s3_settings(&server))?;
    backups_work(&site, true);
    let answer = send(&server, "GET", "locked?list-type=2&prefix=main/base/", "", "");
    let keys: Vec<&str> = answer.split("<Key>").skip(1).filter_map(|rest| rest.split('<').next()).collect();
    assert!(keys.len() > 10, "{answer}");
    for key in keys {
        assert!(lock_of(&server, "locked", key).is_some_and(|(_, days)| days >= 29), "{key}");
    }
    Ok(())
}

fn base_backups_are_kept_in_azure() -> Outcome {
    let cloud = Cloud::azure(KEY)?;
    let site = Site::start("az://backups/main", "", &pairs(Cloud::azure_settings(cloud.port, KEY)))?;
    backups_work(&site, false);
    Ok(())
}

fn base_backups_are_kept_in_google() -> Outcome {
    let cloud = Cloud::google()?;
    let account = text(&cloud.google_account(cloud.port)).to_owned();
    let site = Site::start("gs://backups/main", "", &pairs([("service_account", account)]))?;
    backups_work(&site, false);
    Ok(())
}

fn base_backups_are_kept_in_swift() -> Outcome {
    let cloud = Cloud::swift()?;
    let site = Site::start("swift://backups/main", "", &pairs(Cloud::swift_settings(cloud.port)))?;
    backups_work(&site, false);
    Ok(())
}

fn base_backups_are_kept_over_sftp() -> Outcome {
    let ssh = Ssh::start()?;
    let site = Site::start(&ssh.url("archive"), "", &pairs([("config", text(ssh.config()).to_owned())]))?;
    backups_work(&site, false);
    Ok(())
}
