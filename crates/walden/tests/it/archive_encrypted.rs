//! Encrypted archives: read by other implementations of age, used for a server's recovery, and checked end to
//! end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use walden_lab::{ClusterBuilder, StopMode};
use walden_testing::{Need, Outcome, postgres};

use crate::archive::{content, json, program_for, recovered, text, wait_until_archived, work};
use crate::material::{Run, golden, walden};

walden_testing::tests! {
    a_server_of_15_recovers_from_an_encrypted_archive,
    age_itself_decrypts_an_archive_as_its_readme_says,
    pyrage_decrypts_an_archive_and_makes_keys_for_it,
    users_are_listed_added_and_removed,
    a_check_finds_what_is_wrong,
    damage_that_verify_has_found_is_known_without_a_private_key,
    lost_timelines_are_not_known_without_a_private_key_and_every_command_says_so,
    a_list_without_the_archives_keys_says_that_they_are_missing,
    a_damaged_generation_of_keys_is_named_by_every_command,
    an_object_of_another_archive_is_not_acknowledged_and_hides_nothing,
    a_configuration_says_which_value_it_cannot_have,
    an_encrypted_archive_that_cannot_be_made_leaves_nothing,
}

const SEGMENT: &str = "00000001000000000000000A";

/// An encrypted archive with one segment.
struct Setting {
    folder: tempfile::TempDir,
    recipient: String,
}

impl Setting {
    fn new() -> Setting {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("user.key");
        let made = walden(&["archive", "key", "generate", "-o", text(&key)]);
        assert_eq!(made.code, 0, "{made:?}");
        let recipient = made.stdout.lines().next().unwrap().to_owned();
        Setting::with_user(folder, recipient)
    }

    fn with_user(folder: tempfile::TempDir, recipient: String) -> Setting {
        let set = Setting { folder, recipient };
        let user = format!("somebody={}", set.recipient);
        let init = walden(&[
            "archive",
            "init",
            "--repo",
            &set.path("repo"),
            "--recipient",
            &user,
            "-o",
            &set.path("walden.toml"),
        ]);
        assert_eq!(init.code, 0, "{init:?}");
        let segment = set.folder.path().join(SEGMENT);
        fs::write(&segment, &golden("18.6")[SEGMENT]).unwrap();
        let pushed = set.run("push", &[text(&segment)]);
        assert_eq!((pushed.code, pushed.stderr.as_str()), (0, ""));
        set
    }

    fn path(&self, name: &str) -> String {
        text(&self.folder.path().join(name)).to_owned()
    }

    /// Runs an archive command as the server would.
    fn run(&self, command: &str, arguments: &[&str]) -> Run {
        let config = self.path("walden.toml");
        walden(&[&["archive", command, "--config", &config], arguments].concat())
    }

    fn object(&self) -> PathBuf {
        self.folder.path().join(format!("repo/wal/00000001/00000000/{SEGMENT}.wlz.age"))
    }
}

fn a_server_of_15_recovers_from_an_encrypted_archive() -> Outcome {
    let installation = postgres(15)?;
    let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
    let program = program_for(&primary);
    let program = text(&program);
    let folder = primary.make_folder("encrypted").unwrap();
    let (repo, key, config) = (folder.join("repo"), folder.join("user.key"), folder.join("walden.toml"));
    let made = walden(&["archive", "key", "generate", "-o", text(&key)]);
    let recipient = made.stdout.lines().next().unwrap();
    let init =
        walden(&["archive", "init", "--repo", text(&repo), "--recipient", recipient, "-o", text(&config)]);
    assert_eq!(init.code, 0, "{init:?}");
    let shared = Command::new("chmod").args(["-R", "a+rwX", text(&folder)]).status().unwrap();
    assert!(shared.success());
    primary.client("postgres").unwrap().batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)").unwrap();
    primary.stop(StopMode::Fast).unwrap();
    let backup = primary.dir().join("backup");
    primary.copy_data(&backup).unwrap();
    // The archiving server knows only the public key.
    let push = format!("{program} archive push --config {} %p", config.display());
    let get =
        format!("{program} archive get --config {} --identity {} %f \"%p\"", config.display(), key.display());
    primary
        .configure(&[("archive_mode", "on"), ("archive_command", &push), ("restore_command", &get)])
        .unwrap();
    primary.start().unwrap();
    let dsn = primary.dsn("postgres");
    let check = walden(&[
        "archive",
        "check",
        "--config",
        text(&config),
        "--dsn",
        &dsn,
        "--switch",
        "--format",
        "json",
    ]);
    let report: Value =
        serde_json::from_str(&check.stdout).unwrap_or_else(|error| panic!("{error}: {check:?}"));
    assert_eq!((check.code, report["failed"].as_u64()), (0, Some(0)), "{report:#}");
    assert_eq!(status(&report, "switch"), "ok", "{report:#}");
    let mut client = primary.client("postgres").unwrap();
    work(&mut client, 0);
    let expected = content(&mut client);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);
    primary.crash().unwrap();
    let mut objects = 0;
    for entry in fs::read_dir(repo.join("wal/00000001/00000000")).unwrap() {
        let object = fs::read(entry.unwrap().path()).unwrap();
        assert!(object.starts_with(b"age-encryption.org/v1\n"));
        objects += 1;
    }
    assert!(objects > 3, "{objects}");
    let restored = recovered(&installation, &backup, &[("restore_command", &get)]);
    assert_eq!(content(&mut restored.client("postgres").unwrap()), expected);
    restored.stop(StopMode::Fast).unwrap();
    Ok(())
}

/// Runs the commands from the archive's `README.txt` in a shell.
fn age_itself_decrypts_an_archive_as_its_readme_says() -> Outcome {
    let age = Need::Age.find()?;
    let set = Setting::new();
    let readme = fs::read_to_string(set.path("repo/README.txt")).unwrap();
    let folder = set.folder.path();
    let mut lines = readme.lines().map(str::trim).filter(|line| line.starts_with("age "));
    let (keys, object) = (lines.next().unwrap(), lines.next().unwrap());
    let keys = keys
        .split("  (")
        .next()
        .unwrap()
        .replace("PRIVATE-KEY", "../user.key")
        .replace("archive.key", "../archive.key");
    let object = object.replace("OBJECT.age", text(&set.object())).replace("archive.key", "../archive.key");
    for (command, output) in [(keys, None), (object, Some("../segment"))] {
        let command = command
            .replacen("age ", &format!("{} ", age.display()), 1)
            .replace("walden ", &format!("{} ", env!("CARGO_BIN_EXE_walden")));
        let command = format!(
            "set -o pipefail; {command}{}",
            output.map(|output| format!(" > {output}")).unwrap_or_default()
        );
        let run = Run::execute(Command::new("bash").args(["-c", &command]).current_dir(folder.join("repo")));
        assert_eq!(run.code, 0, "{command}: {run:?}");
    }
    assert!(fs::read(folder.join("segment")).unwrap() == golden("18.6")[SEGMENT]);
    Ok(())
}

const PYRAGE: &str = r#"
import sys, pyrage
command, folder = sys.argv[1:3]
read = lambda name: open(f"{folder}/{name}", "rb").read()
def write(name, content): open(f"{folder}/{name}", "wb").write(content)
if command == "generate":
    identity = pyrage.x25519.Identity.generate()
    write("user.key", str(identity).encode())
    print(identity.to_public())
elif command == "decrypt":
    user = pyrage.x25519.Identity.from_str(read("user.key").decode().strip())
    lines = pyrage.decrypt(read("repo/keys/0001.age"), [user]).decode().splitlines()
    keys = [pyrage.x25519.Identity.from_str(line) for line in lines if line.startswith("AGE-SECRET-KEY-")]
    write("object.wlz", pyrage.decrypt(read(sys.argv[3]), keys))
    print(keys[0].to_public())
elif command == "encrypt":
    recipient = pyrage.x25519.Recipient.from_str(sys.argv[4])
    write(sys.argv[3], pyrage.encrypt(read("object.wlz"), [recipient]))
"#;

fn pyrage_decrypts_an_archive_and_makes_keys_for_it() -> Outcome {
    let python = Need::Pyrage.find()?;
    if !Command::new(&python).args(["-c", "import pyrage"]).output().unwrap().status.success() {
        return Err(Need::Pyrage.missing("Python cannot import pyrage"));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = text(folder.path()).to_owned();
    let pyrage = |arguments: &[&str]| {
        let run = Run::execute(Command::new(&python).args(["-c", PYRAGE]).args(arguments));
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout.trim().to_owned()
    };
    let recipient = pyrage(&["generate", &path]);
    let set = Setting::with_user(folder, recipient);
    let object = format!("repo/wal/00000001/00000000/{SEGMENT}.wlz.age");
    let archives = pyrage(&["decrypt", &path, &object]);
    let statement =
        json(&["archive", "key", "list", "--format", "json", "--config", &set.path("walden.toml")]);
    assert_eq!(statement["recipients"][0], archives.as_str());
    let decoded = walden(&["decompress", &set.path("object.wlz"), "-o", &set.path("decoded")]);
    assert_eq!(decoded.code, 0, "{decoded:?}");
    let decoded = match Path::new(&set.path("decoded")).is_dir() {
        true => set.path(&format!("decoded/{SEGMENT}")),
        false => set.path("decoded"),
    };
    assert!(fs::read(decoded).unwrap() == golden("18.6")[SEGMENT]);
    let get = || {
        set.run(
            "get",
            &["--prefetch", "0", "--identity", &set.path("user.key"), SEGMENT, &set.path("target")],
        )
    };
    let got = get();
    assert_eq!(got.code, 0, "{got:?}");
    assert!(fs::read(set.path("target")).unwrap() == golden("18.6")[SEGMENT]);
    // Anyone with the public key can encrypt data, but that does not make it an object of the archive.
    pyrage(&["encrypt", &path, &object, &archives]);
    let got = get();
    assert_eq!(got.code, 200, "{got:?}");
    assert!(got.stderr.contains("walden-object"), "{got:?}");
    Ok(())
}

fn users_are_listed_added_and_removed() {
    let set = Setting::new();
    let other = set.folder.path().join("other.key");
    let made = walden(&["archive", "key", "generate", "-o", text(&other)]);
    let recipient = made.stdout.lines().next().unwrap().to_owned();
    assert_eq!(
        walden(&["archive", "key", "generate", "-o", text(&other)]).code,
        3,
        "never over a private key"
    );
    let config = set.path("walden.toml");
    let key = |command: &str, identity: &str, arguments: &[&str]| {
        let identity = set.path(identity);
        walden(
            &[&["archive", "key", command, "--config", &config, "--identity", &identity], arguments].concat(),
        )
    };
    let target = set.path("target");
    let get = |identity: &str| {
        let identity = set.path(identity);
        set.run("get", &["--prefetch", "0", "--identity", &identity, SEGMENT, &target])
    };
    let refused = get("other.key");
    assert_eq!(refused.code, 200);
    assert!(refused.stderr.contains("HINT: walden archive key list"), "{refused:?}");
    let unnamed = set.run("get", &["--prefetch", "0", SEGMENT, &target]);
    assert!(unnamed.code == 200 && unnamed.stderr.contains("--identity"), "{unnamed:?}");
    let added = key("add", "user.key", &[&format!("other={recipient}")]);
    assert_eq!(added.code, 0, "{added:?}");
    assert_eq!(get("other.key").code, 0);
    let removed = key("remove", "other.key", &["somebody"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    assert!(removed.stdout.contains("recipient = \"age1"), "{removed:?}");
    assert_eq!(get("user.key").code, 200);
    let listed = walden(&["archive", "key", "list", "--config", &config]);
    assert!(listed.stdout.contains("other") && !listed.stdout.contains("somebody"), "{listed:?}");
    // The server's configuration names a former key: it works, and status and check report it.
    let report: Value =
        serde_json::from_str(&set.run("status", &["--format", "json"]).stdout).expect("a report");
    let note = report["notes"][0].as_str().unwrap_or_default();
    assert!(note.contains("a former key of the archive, "), "{report:#}");
    assert!(note.contains("recipient = \"age1"), "{report:#}");
    let line = set.run("status", &[]);
    assert!(line.code == 0 && line.stdout.contains("note: walden.toml names age1"), "{line:?}");
    let check = set.run("check", &["--identity", text(&other), "--format", "json"]);
    let report: Value = serde_json::from_str(&check.stdout).unwrap();
    assert_eq!((check.code, status(&report, "encryption")), (0, "warn"), "{report:#}");
    assert_eq!(status(&report, "private key"), "ok", "{report:#}");
}

fn a_check_finds_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, config) = (folder.path().join("repo"), folder.path().join("walden.toml"));
    let init = walden(&["archive", "init", "--repo", text(&repo), "-o", text(&config)]);
    assert!(init.code == 0 && init.stdout.contains("came back byte for byte"), "{init:?}");
    let check = |config: &Path, arguments: &[&str]| {
        let run = walden(
            &[&["archive", "check", "--format", "json", "--config", text(config)], arguments].concat(),
        );
        let report: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
        (run.code, report)
    };
    let (code, report) = check(&config, &[]);
    assert_eq!((code, status(&report, "push and get")), (0, "ok"), "{report:#}");
    // An invalid configuration, one without an archive, an archive that is not a folder, one that must be
    // encrypted.
    let broken = folder.path().join("broken.toml");
    let place = folder.path().join("file");
    fs::write(&place, "not a folder").unwrap();
    let recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
    for (text, failed) in [
        ("[archive]\nrepository = 1\n".to_owned(), "configuration"),
        ("[archive]\n".to_owned(), "archive"),
        (format!("[archive]\nrepo = \"{}\"\n", place.display()), "archive"),
        (format!("[archive]\nrepo = \"{}\"\nrecipient = \"{recipient}\"\n", repo.display()), "encryption"),
    ] {
        fs::write(&broken, &text).unwrap();
        let (code, report) = check(&broken, &[]);
        assert_eq!((code, status(&report, failed)), (1, "fail"), "{text}: {report:#}");
    }
    // Another cluster's data directory, and an unreachable server.
    let segment = folder.path().join(SEGMENT);
    fs::write(&segment, &golden("18.6")[SEGMENT]).unwrap();
    assert_eq!(walden(&["archive", "push", "--config", text(&config), text(&segment)]).code, 0);
    let (code, report) = check(&config, &["--data", text(folder.path())]);
    assert_eq!((code, status(&report, "data directory")), (1, "fail"), "{report:#}");
    let (code, report) = check(&config, &["--dsn", "host=127.0.0.1 port=1 user=nobody connect_timeout=5"]);
    assert_eq!((code, status(&report, "server")), (1, "fail"), "{report:#}");
    let table = walden(&["archive", "check", "--config", text(&config)]);
    assert!(table.stdout.contains("Nothing is wrong."), "{table:?}");
}

fn damage_that_verify_has_found_is_known_without_a_private_key() {
    let set = Setting::new();
    let status_line = |code: i32, expected: &str| {
        let run = set.run("status", &[]);
        assert!(run.code == code && run.stdout.contains(expected), "{run:?}");
    };
    status_line(0, "never verified");
    // Encrypted, as written by the first versions.
    let old = set.folder.path().join("repo/verified/run-0000000001.json.age");
    fs::create_dir_all(old.parent().unwrap()).unwrap();
    fs::copy(set.object(), &old).unwrap();
    let unreadable = "verification results cannot be read without a private key";
    status_line(0, unreadable);
    let check = set.run("check", &[]);
    assert!(check.code == 0 && check.stdout.contains(unreadable), "{check:?}");
    let mut content = fs::read(set.object()).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(set.object(), content).unwrap();
    assert_eq!(set.run("verify", &["--identity", &set.path("user.key")]).code, 1);
    status_line(1, "1 object is damaged");
    let metrics = set.path("walden.prom");
    assert_eq!(set.run("status", &["--textfile", &metrics]).code, 1);
    let metrics = fs::read_to_string(metrics).unwrap();
    assert!(metrics.contains("walden_archive_last_verified_damaged_objects 1\n"), "{metrics}");
    let check = set.run("check", &["--format", "json"]);
    let report: Value = serde_json::from_str(&check.stdout).unwrap();
    assert_eq!((check.code, status(&report, "verification")), (1, "fail"), "{report:#}");
}

fn lost_timelines_are_not_known_without_a_private_key_and_every_command_says_so() {
    let set = Setting::new();
    let json = |command: &str, code: i32| {
        let run = set.run(command, &["--format", "json"]);
        assert_eq!(run.code, code, "{run:?}");
        serde_json::from_str::<Value>(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
    };
    assert_eq!(json("list", 0)["gaps_complete"], true);
    // Timeline 2 started after the existing segment, and all of its segments are lost.
    let histories =
        [("00000002.history", "1\t0/B80000\tx\n"), ("00000003.history", "1\t0/B80000\tx\n2\t0/E80000\tx\n")];
    for (name, text) in histories {
        let path = set.path(name);
        fs::write(&path, text).unwrap();
        let pushed = set.run("push", &[&path]);
        assert_eq!((pushed.code, pushed.stderr.as_str()), (0, ""), "{name}");
    }
    let listing = json("list", 0);
    assert_eq!(listing["gaps_complete"], false, "{listing:#}");
    assert_eq!(listing["timelines_without_segments"], serde_json::json!([2]), "{listing:#}");
    let unknown = "without a private key, some gaps remain unknown";
    let listed = set.run("list", &[]);
    assert!(listed.stdout.contains("it has no segments"), "{listed:?}");
    assert!(listed.stdout.contains(&format!("NOTE: {unknown}")), "{listed:?}");
    let state = set.run("status", &[]);
    assert!(state.code == 0 && state.stdout.contains(&format!("note: {unknown}")), "{state:?}");
    assert!(state.stdout.contains("timeline 2 has a history and no segment"), "{state:?}");
    let report = json("status", 0);
    assert_eq!(report["holdings"]["gaps_complete"], false, "{report:#}");
    let report = json("check", 0);
    assert_eq!(status(&report, "segments"), "warn", "{report:#}");
    // With a private key, the segments are known to be missing. The findings of verify are then readable
    // without a key.
    let identity = set.path("user.key");
    let listed = set.run("list", &["--identity", &identity]);
    assert!(listed.code == 1 && !listed.stdout.contains(unknown), "{listed:?}");
    assert_eq!(set.run("verify", &["--identity", &identity]).code, 1);
    let state = set.run("status", &[]);
    assert!(state.code == 1 && state.stdout.contains("the last verify has found"), "{state:?}");
    assert_eq!(status(&json("check", 1), "segments"), "fail");
}

fn an_encrypted_archive_that_cannot_be_made_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (repo, config) = (folder.path().join("repo"), folder.path().join("walden.toml"));
    let made = walden(&["archive", "key", "generate", "-o", text(&folder.path().join("user.key"))]);
    let recipient = made.stdout.lines().next().unwrap();
    let init = |output: &str| {
        walden(&["archive", "init", "--repo", text(&repo), "--recipient", recipient, "-o", output])
    };
    assert_eq!(init("/proc/walden.toml").code, 3);
    assert!(!repo.exists());
    let made = init(text(&config));
    assert_eq!(made.code, 0, "{made:?}");
    // An existing archive keeps the keys of its objects.
    fs::remove_file(&config).unwrap();
    assert_eq!(init("/proc/walden.toml").code, 3);
    assert!(repo.join("keys/0001.age").exists());
}

fn a_list_without_the_archives_keys_says_that_they_are_missing() {
    let set = Setting::new();
    let listed = |arguments: &[&str]| set.run("list", arguments);
    assert_eq!(listed(&[]).code, 0);
    fs::rename(set.path("repo/keys"), set.path("keys")).unwrap();
    let identity = set.path("user.key");
    for arguments in [&["--format", "json"][..], &["--format", "json", "--identity", &identity]] {
        let run = listed(arguments);
        assert!(run.code == 1 && run.stderr.contains("its keys are missing"), "{run:?}");
        assert!(run.stderr.contains("HINT: restore the folder keys/"), "{run:?}");
        let listing: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(listing["keys_missing"], true, "{listing:#}");
    }
    fs::rename(set.path("keys"), set.path("repo/keys")).unwrap();
    let run = listed(&[]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
}

fn a_damaged_generation_of_keys_is_named_by_every_command() {
    let set = Setting::new();
    let identity = set.path("user.key");
    let config = set.path("walden.toml");
    let key = |command: &str, arguments: &[&str]| {
        let fixed = ["archive", "key", command, "--config", &config, "--identity", &identity];
        walden(&[&fixed[..], arguments].concat())
    };
    let rotated = key("rotate", &[]);
    assert_eq!(rotated.code, 0, "{rotated:?}");
    let newest = PathBuf::from(set.path("repo/keys/0002.age"));
    let good = fs::read(&newest).unwrap();
    let segment = set.path(SEGMENT);
    let made = walden(&["archive", "key", "generate", "-o", &set.path("other.key")]);
    let other = made.stdout.lines().next().unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for content in [Some(flipped.as_slice()), Some(&b"garbage"[..]), None] {
        match content {
            Some(content) => fs::write(&newest, content).unwrap(),
            None => fs::remove_file(&newest).unwrap(),
        }
        for (command, arguments) in [
            ("list", &[][..]),
            ("list", &["--identity", &identity]),
            ("status", &[]),
            ("status", &["--identity", &identity]),
            ("check", &[]),
            ("check", &["--identity", &identity]),
            ("verify", &["--identity", &identity]),
            ("push", &[segment.as_str()]),
        ] {
            let run = set.run(command, arguments);
            let text = format!("{}{}", run.stdout, run.stderr);
            assert!(run.code == 1 && text.contains("keys/0002.age"), "{command} {arguments:?}: {run:?}");
            assert!(text.contains("restore the file of keys"), "{command} {arguments:?}: {run:?}");
            assert!(!text.contains("move it out"), "{command} {arguments:?}: {run:?}");
        }
        let before = fs::read_dir(set.path("repo/keys")).unwrap().count();
        for (command, arguments) in
            [("rotate", &[][..]), ("add", &[other]), ("remove", &["somebody"]), ("list", &[])]
        {
            let run = key(command, arguments);
            assert!(run.code == 3 && run.stderr.contains("keys/0002.age"), "{command}: {run:?}");
        }
        assert_eq!(fs::read_dir(set.path("repo/keys")).unwrap().count(), before);
        // Recovery continues with objects of an earlier generation.
        let got = set.run("get", &["--prefetch", "0", "--identity", &identity, SEGMENT, &set.path("target")]);
        assert_eq!(got.code, 0, "{got:?}");
        fs::write(&newest, &good).unwrap();
    }
    assert_eq!(set.run("push", &[&segment]).code, 0);
    assert_eq!(set.run("verify", &["--identity", &identity]).code, 0);
    // If all keys are missing, the archive must not be treated as unencrypted.
    fs::rename(set.path("repo/keys"), set.path("keys")).unwrap();
    for (command, arguments) in [("rotate", &[][..]), ("add", &[other]), ("list", &[])] {
        let run = key(command, arguments);
        assert!(run.code == 3 && run.stderr.contains("its keys are missing"), "{command}: {run:?}");
    }
}

fn an_object_of_another_archive_is_not_acknowledged_and_hides_nothing() {
    let (set, other) = (Setting::new(), Setting::new());
    fs::copy(other.object(), set.object()).unwrap();
    let (segment, identity) = (set.path(SEGMENT), set.path("user.key"));
    let name = format!("{SEGMENT}.wlz.age");
    for arguments in [&[segment.as_str()][..], &["--identity", &identity, &segment]] {
        let pushed = set.run("push", arguments);
        assert!(pushed.code == 1 && pushed.stderr.contains(&name), "{pushed:?}");
        assert!(pushed.stderr.contains("a key that the archive does not have"), "{pushed:?}");
        assert!(pushed.stderr.contains("HINT: the object is from another archive"), "{pushed:?}");
    }
    for (command, arguments) in [
        ("list", &[][..]),
        ("list", &["--identity", &identity]),
        ("status", &[]),
        ("status", &["--identity", &identity]),
        ("check", &[]),
        ("check", &["--identity", &identity]),
        ("verify", &["--identity", &identity]),
    ] {
        let run = set.run(command, arguments);
        assert!(run.code == 1 && run.stdout.contains(&name), "{command} {arguments:?}: {run:?}");
        assert!(!run.stdout.contains("put the recipient"), "{run:?}");
    }
    let exported = set.run("export", &["--identity", &identity, "-o", &set.path("exported")]);
    let text = format!("{}{}", exported.stdout, exported.stderr);
    assert!(exported.code == 3 && text.contains(&name), "{exported:?}");
    // After its removal, the server's file replaces it.
    fs::remove_file(set.object()).unwrap();
    assert_eq!(set.run("push", &[&segment]).code, 0);
    assert_eq!(set.run("verify", &["--identity", &identity]).code, 0);
}

fn a_configuration_says_which_value_it_cannot_have() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("walden.toml");
    for (line, expected) in [
        ("level = 99", "level in [archive]"),
        ("threads = 0", "threads in [archive]"),
        ("recipient = \"age1xyz\"", "recipient in [archive]"),
        ("recipient = \"\"", "recipient in [archive]"),
    ] {
        fs::write(&config, format!("[archive]\nrepo = \"/nowhere\"\n{line}\n")).unwrap();
        let run = walden(&["archive", "list", "--config", text(&config)]);
        let is_named = run.stderr.contains(text(&config)) && run.stderr.contains(expected);
        assert!(run.code == 3 && is_named, "{line}: {run:?}");
    }
}

/// Returns the result of a check in a report.
fn status<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    check.unwrap_or_else(|| panic!("no check {name}: {report:#}"))["status"].as_str().unwrap()
}
