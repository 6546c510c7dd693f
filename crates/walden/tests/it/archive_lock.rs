//! Immutable archives: Object Lock, versions, and credentials that may only add.

use std::fs;

use serde_json::Value;
use walden_testing::{Missing, Outcome};

use crate::archive::text;
use crate::archive_s3::{Client, Server, Trouble, proxy};
use crate::material::{Run, walden};

walden_testing::tests! {
    a_bucket_with_default_retention_needs_no_right_to_change,
    keys_change_without_the_right_to_remove,
    objects_are_locked_for_the_configured_days,
    locked_objects_are_pruned_once_their_locks_end,
    locks_of_needed_objects_are_extended,
    a_lock_that_protects_too_little_is_warned_of,
    deleted_and_overwritten_objects_are_found_and_restored,
    an_encrypted_archive_is_restored_with_its_keys,
    objects_are_restored_without_the_right_to_change,
    removals_of_pack_and_prune_are_no_alarm,
    the_documented_rights_suffice,
}

/// A rule of `walden.toml`.
const LOCK: &str = "lock_days = 30\nlock_mode = \"compliance\"";
const DAY: i64 = 24 * 3600;
const XML: &str = "Content-Type: application/xml\r\n";

/// Requests after the first one need credentials, unless checking is disabled entirely.
fn start() -> Result<Server, Missing> {
    Server::start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "1000000")])
}

/// Sends a request as a user who may do everything: without checks of rights, any signature is right.
pub fn send(server: &Server, method: &str, path: &str, header: &str, body: &str) -> String {
    const SIGNATURE: &str = "Authorization: AWS4-HMAC-SHA256 Credential=admin/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, \
                             Signature=s\r\n";
    let is_signed = header.contains("Authorization");
    server.send(method, path, &format!("{header}{}", if is_signed { "" } else { SIGNATURE }), body)
}

fn expect_ok(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
}

/// Creates a bucket with Object Lock, and with a default retention of one day if a mode is named.
pub fn create_locked(server: &Server, bucket: &str, mode: Option<&str>) {
    expect_ok(&send(server, "PUT", bucket, "x-amz-bucket-object-lock-enabled: true\r\n", ""));
    let Some(mode) = mode else { return };
    let rule = format!(
        "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>{mode}</Mode><Days>1</Days>\
         </DefaultRetention></Rule></ObjectLockConfiguration>"
    );
    expect_ok(&send(server, "PUT", &format!("{bucket}?object-lock"), XML, &rule));
}

fn create_versioned(server: &Server, bucket: &str) {
    expect_ok(&send(server, "PUT", bucket, "", ""));
    let body = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    expect_ok(&send(server, "PUT", &format!("{bucket}?versioning"), XML, body));
}

/// Returns the values of an XML element in an answer.
fn values<'a>(answer: &'a str, element: &str) -> Vec<&'a str> {
    let open = format!("<{element}>");
    answer.split(open.as_str()).skip(1).filter_map(|rest| rest.split('<').next()).collect()
}

/// Returns the current keys below a prefix of the archive.
fn keys(server: &Server, bucket: &str, prefix: &str) -> Vec<String> {
    let answer = send(server, "GET", &format!("{bucket}?list-type=2&prefix=main/{prefix}"), "", "");
    values(&answer, "Key").into_iter().map(str::to_owned).collect()
}

/// Returns the number of delete markers in a bucket.
fn markers(server: &Server, bucket: &str) -> usize {
    send(server, "GET", &format!("{bucket}?versions"), "", "").matches("<DeleteMarker>").count()
}

/// Returns the mode of an object's lock, and the days until its end.
pub fn lock_of(server: &Server, bucket: &str, key: &str) -> Option<(String, i64)> {
    let answer = send(server, "HEAD", &format!("{bucket}/{key}"), "", "").to_ascii_lowercase();
    let header =
        |name: &str| Some(answer.split(&format!("{name}: ")).nth(1)?.lines().next()?.trim().to_owned());
    let until = header("x-amz-object-lock-retain-until-date")?.parse::<jiff::Timestamp>().ok()?;
    let days = (until.as_second() - jiff::Timestamp::now().as_second() + DAY / 2) / DAY;
    Some((header("x-amz-object-lock-mode")?, days))
}

/// Returns the days until the end of an object's lock.
fn locked_days(server: &Server, bucket: &str, key: &str) -> Option<i64> {
    lock_of(server, bucket, key).map(|(_, days)| days)
}

/// Replaces an object's lock, as a user with the right to bypass governance can.
fn set_lock(server: &Server, bucket: &str, key: &str, seconds: i64) {
    let (key, version) = key.split_once('?').unwrap_or((key, ""));
    let until = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + seconds).unwrap();
    let body =
        format!("<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>");
    let header =
        format!("{XML}x-amz-bypass-governance-retention: true\r\nx-amz-sdk-checksum-algorithm: SHA256\r\n");
    expect_ok(&send(server, "PUT", &format!("{bucket}/{key}?retention&{version}"), &header, &body));
}

/// Changes an object, as a user who may write can. The store demands a checksum.
fn overwrite(server: &Server, bucket: &str, key: &str, content: &str) {
    let header = "x-amz-sdk-checksum-algorithm: SHA256\r\n";
    expect_ok(&send(server, "PUT", &format!("{bucket}/{key}"), header, content));
}

/// Overwrites an object by a copy of another one.
fn copy(server: &Server, from: &str, to: &str) {
    let header = format!("x-amz-copy-source: /{from}\r\nx-amz-sdk-checksum-algorithm: SHA256\r\n");
    expect_ok(&send(server, "PUT", to, &header, ""));
}

fn delete(server: &Server, bucket: &str, key: &str) {
    expect_ok(&send(server, "DELETE", &format!("{bucket}/{key}"), "", ""));
}

fn expect(run: &Run, code: i32, parts: &[&str]) {
    assert_eq!(run.code, code, "{run:?}");
    for part in parts {
        assert!(run.stdout.contains(part) || run.stderr.contains(part), "{part}: {run:?}");
    }
}

/// Initializes an archive, and pushes all segments.
fn fill(client: Client) -> Client {
    let client = client.create();
    for name in client.names() {
        expect(&client.push(&name), 0, &[]);
    }
    client
}

fn expect_all(client: &Client) {
    for name in client.names() {
        expect(&client.get(&name), 0, &[]);
    }
    expect(&client.command(&["verify"]), 0, &["no segment is missing"]);
}

const PACK: [&str; 5] = ["pack", "--keep", "0", "--segments", "2"];

fn a_bucket_with_default_retention_needs_no_right_to_change() -> Outcome {
    let server = start()?;
    let (port, _) = proxy(server.port, &[Trouble::NoChange]);
    for (bucket, mode) in [("compliance", "COMPLIANCE"), ("governance", "GOVERNANCE")] {
        create_locked(&server, bucket, Some(mode));
        let client = Client::with(port, bucket, "");
        let made = client.command(&["init"]);
        expect(&made, 0, &["It stays in probe/: locked until "]);
        let client = fill(client);
        expect_all(&client);
        // More runs than results are kept.
        for _ in 0..18 {
            expect(&client.command(&["verify", "--fast"]), 0, &[]);
        }
        // The pack is stored next to the segments' own objects, again and again.
        expect(
            &client.command(&PACK),
            0,
            &["into 1 pack\n", "2 objects whose segments are in a pack too stay"],
        );
        expect(
            &client.command(&PACK),
            0,
            &["into 0 packs\n", "2 objects whose segments are in a pack too stay"],
        );
        assert_eq!(keys(&server, bucket, "wal/").len(), 3);
        expect_all(&client);
        let pruned = client.command(&["prune", "--older-than", &client.names()[1], "--apply"]);
        expect(&pruned, 0, &["0 objects of 0 B removed", "KEPT: wal/", ": locked until ", "1 object of "]);
        expect_all(&client);
        let check = client.command(&["check"]);
        let rule = format!("objects are locked for 1 day in {} mode", mode.to_lowercase());
        expect(&check, 0, &["it stays in probe/, locked until ", &rule]);
        assert_eq!(markers(&server, bucket), 0);
    }
    Ok(())
}

/// Creates a key pair, and returns its public key and the file with the private one.
fn key(client: &Client, name: &str) -> (String, String) {
    let file = client.path(name);
    let made = walden(&["archive", "key", "generate", "-o", text(&file)]);
    expect(&made, 0, &[]);
    (made.stdout.lines().next().unwrap().to_owned(), text(&file).to_owned())
}

fn keys_change_without_the_right_to_remove() -> Outcome {
    let server = start()?;
    create_locked(&server, "worm", Some("COMPLIANCE"));
    let (port, _) = proxy(server.port, &[Trouble::NoChange]);
    let client = Client::with(port, "worm", "");
    let ((own, identity), (other, _)) = (key(&client, "own.key"), key(&client, "other.key"));
    expect(&client.command(&["init", "--recipient", &own]), 0, &[]);
    let config = text(&client.path("walden.toml")).to_owned();
    let change = |arguments: &[&str]| {
        let place = ["--config", &config, "--identity", &identity];
        walden(&[&["archive", "key", arguments[0]], &place[..], &arguments[1..]].concat())
    };
    expect(&change(&["add", &format!("other={other}")]), 0, &["generation 2"]);
    let removed = change(&["remove", "other"]);
    expect(&removed, 0, &["generation 3", "WARNING: keys/0002.age stays", "locked until "]);
    // The removal is tried again.
    expect(&change(&["rotate"]), 0, &["generation 4", "WARNING: keys/0002.age stays"]);
    for name in client.names() {
        expect(&client.push(&name), 0, &[]);
    }
    let verified = walden(&["archive", "verify", "--config", &config, "--identity", &identity]);
    expect(&verified, 0, &["no segment is missing"]);
    Ok(())
}

fn objects_are_locked_for_the_configured_days() -> Outcome {
    let server = start()?;
    create_locked(&server, "worm", None);
    let client = fill(Client::with(server.port, "worm", LOCK));
    let wal = keys(&server, "worm", "wal/");
    assert_eq!(wal.len(), 2);
    for key in wal.iter().map(String::as_str).chain(["main/archive.json", "main/README.txt"]) {
        assert_eq!(locked_days(&server, "worm", key), Some(30), "{key}");
    }
    assert_eq!(lock_of(&server, "worm", &wal[0]), Some(("compliance".to_owned(), 30)));
    expect_all(&client);
    let verified = keys(&server, "worm", "verified/");
    assert_eq!(locked_days(&server, "worm", &verified[0]), None);
    assert!(keys(&server, "worm", "probe/").is_empty());
    expect(&client.command(&["check"]), 0, &["objects are locked for 30 days in compliance mode"]);
    // Each repository has its own rule.
    create_locked(&server, "second", None);
    let configuration = fs::read_to_string(client.path("walden.toml")).unwrap();
    let list = "repo = [\"s3://worm/main\", { url = \"s3://second/main\", lock_days = 7, lock_mode = \"governance\" }]";
    let configuration = configuration.replace("repo = \"s3://worm/main\"", list);
    fs::write(client.path("walden.toml"), configuration).unwrap();
    expect(&client.command(&["copy"]), 3, &["cannot find an archive in s3://second/main"]);
    let _second = Client::with(server.port, "second", "").create();
    expect(&client.command(&["copy"]), 0, &[]);
    let copied = keys(&server, "second", "wal/");
    assert_eq!(copied.len(), 2);
    for key in &copied {
        assert_eq!(lock_of(&server, "second", key), Some(("governance".to_owned(), 7)));
    }
    Ok(())
}

fn locked_objects_are_pruned_once_their_locks_end() -> Outcome {
    let server = start()?;
    create_locked(&server, "worm", None);
    let client = fill(Client::with(server.port, "worm", "lock_days = 30"));
    let [first, second] = <[String; 2]>::try_from(client.names()).unwrap();
    let own = keys(&server, "worm", "wal/").into_iter().find(|key| key.contains(&first)).unwrap();
    let prune = || client.command(&["prune", "--older-than", &second, "--apply", "--format", "json"]);
    let report = |run: &Run| serde_json::from_str::<Value>(&run.stdout).unwrap();
    let kept = prune();
    expect(&kept, 0, &[]);
    let kept = report(&kept);
    assert_eq!((&kept["removed_objects"], &kept["kept_objects"]), (&0.into(), &1.into()), "{kept:#}");
    let until = kept["kept"][0]["locked_until"].as_i64().unwrap();
    assert!(until > jiff::Timestamp::now().as_microsecond() + 29 * DAY * 1_000_000, "{kept:#}");
    assert_eq!(kept["locks"]["extended"], 0, "{kept:#}");
    // Other versions on top do not survive either.
    overwrite(&server, "worm", &own, "other content");
    let answer = send(&server, "GET", "worm?versions&prefix=main/wal/", "", "");
    let versions: Vec<(&str, &str)> = values(&answer, "Key")
        .into_iter()
        .zip(values(&answer, "VersionId"))
        .filter(|(key, _)| *key == own)
        .collect();
    assert_eq!(versions.len(), 2, "{answer}");
    for (key, version) in &versions {
        set_lock(&server, "worm", &format!("{key}?versionId={version}"), -DAY);
    }
    let removed = report(&prune());
    assert_eq!(
        (&removed["removed_objects"], &removed["kept_objects"]),
        (&1.into(), &0.into()),
        "{removed:#}"
    );
    let answer = send(&server, "GET", "worm?versions&prefix=main/wal/", "", "");
    assert!(!answer.contains(&first) && answer.contains(&second), "{answer}");
    expect(&client.get(&second), 0, &[]);
    expect(&client.command(&["verify"]), 0, &[]);
    Ok(())
}

fn locks_of_needed_objects_are_extended() -> Outcome {
    let server = start()?;
    create_locked(&server, "worm", None);
    let client = fill(Client::with(server.port, "worm", "lock_days = 30"));
    let wal = keys(&server, "worm", "wal/");
    set_lock(&server, "worm", &wal[0], 2 * DAY);
    set_lock(&server, "worm", &wal[1], 20 * DAY);
    let extended = client.command(&["lock"]);
    expect(&extended, 0, &["Locks of 1 of "]);
    let days = |key: &String| locked_days(&server, "worm", key);
    assert_eq!(wal.iter().map(days).collect::<Vec<_>>(), [Some(30), Some(20)]);
    // `prune` extends the locks of the kept WAL only.
    for key in &wal {
        set_lock(&server, "worm", key, 2 * DAY);
    }
    let pruned = client.command(&["prune", "--older-than", &client.names()[1], "--apply"]);
    expect(&pruned, 0, &["KEPT: ", "Locks of 1 of "]);
    assert_eq!(wal.iter().map(days).collect::<Vec<_>>(), [Some(2), Some(30)]);
    // Without a rule, the bucket's default retention counts.
    create_locked(&server, "default", Some("GOVERNANCE"));
    let client = fill(Client::with(server.port, "default", ""));
    let first = &keys(&server, "default", "wal/")[0];
    set_lock(&server, "default", first, 60);
    expect(&client.command(&["lock"]), 0, &["Locks of 1 of "]);
    assert_eq!(locked_days(&server, "default", first), Some(1));
    // A bucket without Object Lock has nothing to extend.
    create_versioned(&server, "plain");
    let client = fill(Client::with(server.port, "plain", ""));
    expect(&client.command(&["lock"]), 3, &["or with lock_days in walden.toml"]);
    Ok(())
}

fn a_lock_that_protects_too_little_is_warned_of() -> Outcome {
    let server = start()?;
    // The bucket has versions, but no Object Lock.
    create_versioned(&server, "plain");
    let refused = Client::with(server.port, "plain", LOCK).command(&["init"]);
    expect(
        &refused,
        3,
        &["the bucket has no Object Lock, which lock_days needs", "--object-lock-enabled-for-bucket"],
    );
    let client = fill(Client::with(server.port, "plain", ""));
    let check = client.command(&["check"]);
    assert!(check.code == 0 && !check.stdout.contains("object lock"), "{check:?}");
    client.configure(server.port, "plain", LOCK);
    expect(
        &client.command(&["check"]),
        0,
        &["the bucket has no Object Lock: it rejects objects with a lock"],
    );
    expect_ok(&send(&server, "PUT", "bare", "", ""));
    let client = fill(Client::with(server.port, "bare", ""));
    client.configure(server.port, "bare", LOCK);
    expect(&client.command(&["check"]), 0, &["the bucket keeps no versions"]);
    create_locked(&server, "unused", None);
    let client = fill(Client::with(server.port, "unused", ""));
    expect(&client.command(&["check"]), 0, &["the bucket has Object Lock, but no rule locks objects"]);
    // Base backups at an interval of 10 days. The oldest one needs WAL whose lock has ended.
    create_locked(&server, "worm", None);
    let client = fill(Client::with(server.port, "worm", "lock_days = 3"));
    let names = client.names();
    for (name, day) in [(&names[0], 10), (&names[1], 20)] {
        let number = u64::from_str_radix(&name[16..], 16).unwrap();
        let file = format!("{name}.00000028.backup");
        let content = format!(
            "START WAL LOCATION: 0/{number:X}000028 (file {name})\nSTOP WAL LOCATION: 0/{number:X}000100 (file {name})\n\
             CHECKPOINT LOCATION: 0/{number:X}000060\nBACKUP METHOD: streamed\nBACKUP FROM: primary\n\
             START TIME: 2026-11-{day} 10:00:00 UTC\nLABEL: weekly\nSTART TIMELINE: 1\nSTOP TIME: 2026-11-{day} 10:05:00 UTC\n\
             STOP TIMELINE: 1\n"
        );
        fs::write(client.path(&format!("pg_wal/{file}")), content).unwrap();
        expect(&client.push(&file), 0, &[]);
    }
    let check = client.command(&["check"]);
    expect(&check, 0, &["objects are locked for 3 days, but 10 days passed between two base backups"]);
    assert!(!check.stdout.contains("unlocked since"), "{check:?}");
    let first = keys(&server, "worm", "wal/").into_iter().find(|key| key.contains(&names[0])).unwrap();
    set_lock(&server, "worm", &first, -DAY);
    expect(&client.command(&["check"]), 0, &["has been unlocked since"]);
    set_lock(&server, "worm", &first, DAY / 2);
    expect(&client.command(&["check"]), 0, &["is locked only until"]);
    expect(&client.command(&["lock"]), 0, &[]);
    let check = client.command(&["check"]);
    assert!(check.code == 0 && !check.stdout.contains("is locked only until"), "{check:?}");
    // A lock needs a store that has it, and a reasonable time.
    for (more, part) in [
        ("lock_days = 0", "lock_days in [archive]: expected 1 to 36500, found 0"),
        ("lock_mode = \"governance\"", "expected lock_days with it"),
        ("lock_mode = \"forever\"\nlock_days = 1", "lock_mode"),
    ] {
        client.configure(server.port, "worm", more);
        expect(&client.command(&["list"]), 3, &[part]);
    }
    let configuration = format!("[archive]\nrepo = \"{}\"\nlock_days = 1\n", text(&client.path("folder")));
    fs::write(client.path("walden.toml"), configuration).unwrap();
    expect(&client.command(&["init"]), 3, &["cannot use lock_days: expected an archive in s3://"]);
    Ok(())
}

fn deleted_and_overwritten_objects_are_found_and_restored() -> Outcome {
    let server = start()?;
    create_locked(&server, "locked", None);
    create_versioned(&server, "versioned");
    // The same segment of a server that wrote other WAL.
    expect_ok(&send(&server, "PUT", "foreign", "", ""));
    let foreign = Client::with(server.port, "foreign", "").create();
    let path = foreign.path(&format!("pg_wal/{}", foreign.names()[0]));
    let mut content = fs::read(&path).unwrap();
    content[60] ^= 1;
    fs::write(&path, content).unwrap();
    expect(&foreign.command(&["push", "--accept-damaged", "--look-ahead", "0", text(&path)]), 0, &[]);
    for (bucket, more) in [("locked", LOCK), ("versioned", "")] {
        let client = fill(Client::with(server.port, bucket, more));
        expect_all(&client);
        let wal = keys(&server, bucket, "wal/");
        let names = client.names();
        let damage: [&dyn Fn(); 5] = [
            &|| delete(&server, bucket, &wal[1]),
            &|| overwrite(&server, bucket, &wal[0], "not a segment"),
            // An intact object with other content.
            &|| copy(&server, &format!("foreign/{}", wal[0]), &format!("{bucket}/{}", wal[0])),
            &|| {
                overwrite(&server, bucket, &wal[1], "");
                delete(&server, bucket, &wal[1]);
                delete(&server, bucket, &wal[1]);
            },
            &|| {
                delete(&server, bucket, &wal[0]);
                overwrite(&server, bucket, &wal[0], "after a marker");
            },
        ];
        for (number, damage) in damage.iter().enumerate() {
            damage();
            let verified = client.command(&["verify"]);
            let word = if matches!(number, 0 | 3) { "DELETED: " } else { "OVERWRITTEN: " };
            expect(&verified, 1, &[word, " is intact\n", "walden archive repair --undelete"]);
            let report = client.command(&["verify", "--format", "json"]);
            let report: Value = serde_json::from_str(&report.stdout).unwrap();
            assert_eq!(report["altered"].as_array().map(Vec::len), Some(1), "{report:#}");
            for field in ["object", "change", "version", "stored", "intact_version"] {
                assert!(report["altered"][0][field].is_string(), "{report:#}");
            }
            let restored = client.command(&["repair", "--undelete"]);
            expect(&restored, 0, &[word, "restored", "1 object restored, 0 not"]);
            expect_all(&client);
        }
        let restored = client.command(&["repair", "--undelete"]);
        expect(&restored, 0, &["0 objects restored, 0 not"]);
        // Without archive.json, nothing else can be read.
        delete(&server, bucket, "main/archive.json");
        delete(&server, bucket, "main/README.txt");
        delete(&server, bucket, &wal[1]);
        assert_ne!(client.get(&names[1]).code, 0);
        expect(&client.command(&["repair", "--undelete"]), 0, &["3 objects restored, 0 not"]);
        expect_all(&client);
        overwrite(&server, bucket, "main/archive.json", "{\"walden_archive\":1");
        expect(
            &client.command(&["repair", "--undelete"]),
            0,
            &["OVERWRITTEN: archive.json", "1 object restored"],
        );
        expect_all(&client);
    }
    expect_ok(&send(&server, "PUT", "bare", "", ""));
    let client = fill(Client::with(server.port, "bare", ""));
    expect(&client.command(&["repair", "--undelete"]), 3, &["expected a bucket of S3 that keeps versions"]);
    Ok(())
}

fn an_encrypted_archive_is_restored_with_its_keys() -> Outcome {
    let server = start()?;
    create_locked(&server, "worm", None);
    let client = Client::with(server.port, "worm", LOCK);
    let (own, identity) = key(&client, "own.key");
    expect(&client.command(&["init", "--recipient", &own]), 0, &[]);
    for name in client.names() {
        expect(&client.push(&name), 0, &[]);
    }
    let wal = keys(&server, "worm", "wal/");
    assert!(wal.iter().all(|key| key.ends_with(".age")));
    assert_eq!(locked_days(&server, "worm", &wal[0]), Some(30));
    for key in keys(&server, "worm", "keys/").iter().chain([&wal[0]]) {
        delete(&server, "worm", key);
    }
    overwrite(&server, "worm", &wal[1], "not encrypted");
    let run = |arguments: &[&str]| client.command(&[arguments, &["--identity", &identity]].concat());
    assert_ne!(run(&["verify"]).code, 0);
    expect(
        &run(&["repair", "--undelete"]),
        0,
        &["DELETED: keys/0001.age", "OVERWRITTEN: wal/", "4 objects restored"],
    );
    expect(&run(&["verify"]), 0, &["no segment is missing"]);
    Ok(())
}

fn objects_are_restored_without_the_right_to_change() -> Outcome {
    let server = start()?;
    create_locked(&server, "worm", None);
    let client = fill(Client::with(server.port, "worm", LOCK));
    let wal = keys(&server, "worm", "wal/");
    let (port, _) = proxy(server.port, &[Trouble::NoChange]);
    client.configure(port, "worm", LOCK);
    delete(&server, "worm", &wal[0]);
    expect(&client.command(&["repair", "--undelete"]), 0, &["1 object restored, 0 not"]);
    expect_all(&client);
    assert_eq!(locked_days(&server, "worm", &wal[0]), Some(30));
    overwrite(&server, "worm", &wal[0], "x");
    expect(&client.command(&["repair", "--undelete"]), 1, &["NOT RESTORED: wal/", "permission denied"]);
    client.configure(server.port, "worm", LOCK);
    expect(&client.command(&["repair", "--undelete"]), 0, &["1 object restored, 0 not"]);
    expect_all(&client);
    // A damaged original has no intact version.
    overwrite(&server, "worm", "main/wal/00000001/00000000/0000000100000000000000EE.wlz", "a");
    overwrite(&server, "worm", "main/wal/00000001/00000000/0000000100000000000000EE.wlz", "b");
    delete(&server, "worm", "main/wal/00000001/00000000/0000000100000000000000EE.wlz");
    expect(&client.command(&["verify"]), 1, &["DELETED: wal/", "no version is intact"]);
    expect(&client.command(&["repair", "--undelete"]), 1, &["NOT RESTORED: wal/", "no version is intact"]);
    Ok(())
}

fn removals_of_pack_and_prune_are_no_alarm() -> Outcome {
    let server = start()?;
    create_versioned(&server, "versioned");
    create_locked(&server, "locked", None);
    for bucket in ["versioned", "locked"] {
        let packed = fill(Client::with(server.port, bucket, ""));
        expect(&packed.command(&PACK), 0, &["into 1 pack\n"]);
        assert_eq!(keys(&server, bucket, "wal/").len(), 1);
        expect_all(&packed);
        let pruned_bucket = format!("{bucket}-2");
        match bucket {
            "locked" => create_locked(&server, &pruned_bucket, None),
            _ => create_versioned(&server, &pruned_bucket),
        }
        let pruned = fill(Client::with(server.port, &pruned_bucket, ""));
        expect(
            &pruned.command(&["prune", "--older-than", &pruned.names()[1], "--apply"]),
            0,
            &["1 object of "],
        );
        assert_eq!(keys(&server, &pruned_bucket, "wal/").len(), 1);
        for (client, bucket) in [(packed, bucket), (pruned, pruned_bucket.as_str())] {
            expect(&client.command(&["verify"]), 0, &["no segment is missing"]);
            expect(&client.command(&["repair", "--undelete"]), 0, &["0 objects restored"]);
            // Where versions can be locked, Walden leaves no delete markers, so that any other one is found.
            assert_eq!(markers(&server, bucket) == 0, bucket.starts_with("locked"));
        }
    }
    Ok(())
}

/// With checks of signatures and rights: credentials that may only add and read.
fn the_documented_rights_suffice() -> Outcome {
    const RIGHTS: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject","s3:GetObjectVersion",
        "s3:GetObjectRetention","s3:ListBucket","s3:ListBucketVersions","s3:GetBucketVersioning","s3:GetBucketObjectLockConfiguration",
        "s3:PutObject","s3:PutObjectRetention"],"Resource":"*"}]}"#;
    // The bucket that every test has, and the four requests below.
    let server = Server::start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "5")])?;
    create_locked(&server, "worm", None);
    let header = "Content-Type: application/x-www-form-urlencoded\r\nAuthorization: AWS4-HMAC-SHA256 \
                  Credential=k/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=s\r\n";
    let iam = |body: &str| {
        let answer =
            send(&server, "POST", "", header, &format!("Version=2010-05-08&UserName=archiver&{body}"));
        expect_ok(&answer);
        answer
    };
    iam("Action=CreateUser");
    let policy: String = RIGHTS.bytes().map(|byte| format!("%{byte:02X}")).collect();
    iam(&format!("Action=PutUserPolicy&PolicyName=archive&PolicyDocument={policy}"));
    let created = iam("Action=CreateAccessKey");
    let [id, secret] =
        ["AccessKeyId", "SecretAccessKey"].map(|element| values(&created, element)[0].to_owned());
    let client = Client::with(server.port, "worm", LOCK);
    let configuration = fs::read_to_string(client.path("walden.toml")).unwrap();
    let configure = |secret: &str| {
        let own = configuration
            .replace("\"somebody\"", &format!("\"{id}\""))
            .replace("\"secret\"", &format!("\"{secret}\""));
        fs::write(client.path("walden.toml"), own).unwrap();
    };
    configure(&secret);
    let client = fill(client);
    expect_all(&client);
    expect(&client.command(&PACK), 0, &["into 1 pack\n", "2 objects whose segments are in a pack too stay"]);
    expect(&client.command(&["lock"]), 0, &["Locks of 0 of "]);
    let pruned = client.command(&["prune", "--older-than", &client.names()[1], "--apply"]);
    expect(&pruned, 0, &["KEPT: wal/", "locked until "]);
    expect_all(&client);
    expect(&client.command(&["check"]), 0, &["objects are locked for 30 days"]);
    Ok(())
}
