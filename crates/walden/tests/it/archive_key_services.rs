//! Encrypted archives whose readers use a key service: KMS of AWS, on an emulator, and commands.

use std::fs;
use std::process::Command;

use serde_json::Value;
use walden_testing::Outcome;

use crate::archive::text;
use crate::archive_s3::{BUCKET, Server, Trouble, proxy};
use crate::material::{Run, golden};

walden_testing::tests! {
    kms_decrypts_the_keys_of_an_archive,
    the_credentials_of_the_bucket_are_those_of_kms,
    commands_decrypt_the_keys_of_an_archive,
}

const SEGMENT: &str = "00000001000000000000000A";

/// An archive in a folder, and the environment of its users.
struct Setting {
    folder: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Setting {
    fn new() -> Setting {
        Setting { folder: tempfile::tempdir().unwrap(), environment: Vec::new() }
    }

    fn path(&self, name: &str) -> String {
        text(&self.folder.path().join(name)).to_owned()
    }

    /// Runs a command with or without the credentials.
    fn execute(&self, has_credentials: bool, arguments: &[&str]) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AWS_")) {
            command.env_remove(name);
        }
        command.env("HOME", self.folder.path()).args(arguments);
        if has_credentials {
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        }
        Run::execute(&mut command)
    }

    fn init(&self, recipient: &str) {
        let (repo, config) = (self.path("repo"), self.path("walden.toml"));
        let arguments = ["archive", "init", "--repo", &repo, "--recipient", recipient, "-o", &config];
        let made = self.execute(true, &arguments);
        assert_eq!(made.code, 0, "{made:?}");
    }

    fn push(&self) {
        let segment = self.path(SEGMENT);
        fs::write(&segment, &golden("18.6")[SEGMENT]).unwrap();
        // Without any secret.
        let pushed =
            self.execute(false, &["archive", "push", "--config", &self.path("walden.toml"), &segment]);
        assert_eq!((pushed.code, pushed.stderr.as_str()), (0, ""));
    }

    fn get(&self, identity: &[&str]) -> Run {
        let (config, target) = (self.path("walden.toml"), self.path("target"));
        let _ = fs::remove_file(&target);
        let get = ["archive", "get", "--prefetch", "0", "--config", &config];
        let got = self.execute(true, &[&get, identity, &[SEGMENT, &target]].concat());
        assert_eq!(
            got.code == 0,
            fs::read(&target).is_ok_and(|found| found == golden("18.6")[SEGMENT]),
            "{got:?}"
        );
        got
    }

    fn expect(&self, identity: &str) {
        let got = self.get(&["--identity", identity]);
        assert_eq!(got.code, 0, "{got:?}");
    }

    fn expect_error(&self, identity: &str, parts: &[&str]) {
        let got = self.get(&["--identity", identity]);
        assert_eq!(got.code, 200, "{got:?}");
        for part in parts {
            assert!(got.stderr.contains(part), "{part}: {got:?}");
        }
    }

    fn key(&self, command: &str, identity: &str, rest: &[&str]) -> Run {
        let config = self.path("walden.toml");
        let all = [&["archive", "key", command, "--config", &config, "--identity", identity], rest].concat();
        self.execute(true, &all)
    }

    fn users(&self) -> Vec<Value> {
        let list = ["archive", "key", "list", "--format", "json", "--config", &self.path("walden.toml")];
        let listed = self.execute(false, &list);
        let listed: Value =
            serde_json::from_str(&listed.stdout).unwrap_or_else(|error| panic!("{error}: {listed:?}"));
        listed["users"].as_array().unwrap().clone()
    }
}

const DENIED: &[Trouble] =
    &[Trouble::AnswerWith("400 Bad Request", "{\"__type\": \"AccessDeniedException\", \"Message\": \"no\"}")];
const PASSING: &[Trouble] = &[
    Trouble::AnswerWith("400 Bad Request", "{\"__type\": \"ThrottlingException\"}"),
    Trouble::Answer("500 Internal Server Error"),
    Trouble::CutAnswer(0),
    Trouble::None,
];

/// Calls KMS as a user who may do everything.
fn kms(server: &Server, action: &str, body: &str) -> Value {
    let head = format!(
        "Authorization: AWS4-HMAC-SHA256 Credential=admin/20260101/us-east-1/kms/aws4_request, SignedHeaders=host, Signature=s\r\n\
         X-Amz-Target: TrentService.{action}\r\nContent-Type: application/x-amz-json-1.1\r\n"
    );
    let answer = server.send("POST", "", &head, body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{action}: {answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() }
}

fn create_key(server: &Server) -> String {
    kms(server, "CreateKey", "{}")["KeyMetadata"]["Arn"].as_str().unwrap().to_owned()
}

fn kms_decrypts_the_keys_of_an_archive() -> Outcome {
    let server = Server::start(&[])?;
    let (one, two) = (create_key(&server), create_key(&server));
    let mut set = Setting::new();
    set.environment = vec![
        ("AWS_ENDPOINT_URL_KMS", format!("http://127.0.0.1:{}", server.port)),
        ("AWS_ACCESS_KEY_ID", "somebody".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ];
    set.init(&one);
    set.push();
    assert!(set.get(&[]).stderr.contains("no private key was named"));
    set.expect(&one);
    // In the configuration, where a path is relative to it.
    let config = fs::read_to_string(set.path("walden.toml")).unwrap();
    fs::write(
        set.path("walden.toml"),
        config.replace("[archive]\n", &format!("[archive]\nidentity = \"{one}\"\n")),
    )
    .unwrap();
    assert_eq!(set.get(&[]).code, 0);
    let check = set.execute(true, &["archive", "check", "--config", &set.path("walden.toml")]);
    assert!(check.stdout.contains(&format!("{one} opens the archive")), "{check:?}");
    fs::write(set.path("walden.toml"), config).unwrap();
    // The documented way without Walden.
    let wrapped = set.users()[0]["wrapped"].clone();
    assert_eq!(wrapped["service"], one.as_str());
    let plain = kms(&server, "Decrypt", &format!("{{\"CiphertextBlob\": {}}}", wrapped["key"]));
    // "AGE-SECRET-KEY-1" in base64.
    assert!(plain["Plaintext"].as_str().unwrap().starts_with("QUdFLVNFQ1JFVC1LRVktM"), "{plain}");
    // Another key of KMS.
    set.expect_error(&two, &["the private key cannot be used", "found none whose private key it encrypts"]);
    let added = set.key("add", &one, &[&format!("new={two}")]);
    assert!(added.code == 0 && added.stdout.contains(&format!("  new  {two}")), "{added:?}");
    let again = set.key("add", &one, &[&two]);
    assert!(again.code == 3 && again.stderr.contains(&format!("{two} can read already")), "{again:?}");
    let removed = set.key("remove", &two, &[&one]);
    assert_eq!(removed.code, 0, "{removed:?}");
    set.expect(&two);
    set.expect_error(&one, &["the private key cannot be used"]);
    assert_eq!(set.users().len(), 1);
    // The service refuses, fails for a moment, or does not answer.
    let through = |troubles| format!("http://127.0.0.1:{}", proxy(server.port, troubles).0);
    set.environment[0].1 = through(DENIED);
    set.expect_error(&two, &["the key service failed", "AccessDeniedException no", "kms:Decrypt"]);
    set.environment[0].1 = through(PASSING);
    set.expect(&two);
    set.environment[0].1 = "http://127.0.0.1:1".to_owned();
    set.expect_error(&two, &["the key service failed", "http://127.0.0.1:1"]);
    set.environment[0].1 = "no URL".to_owned();
    set.expect_error(&two, &["cannot use AWS_ENDPOINT_URL_KMS"]);
    for identity in ["arn:aws:s3:::bucket", "command:"] {
        set.expect_error(identity, &["the private key cannot be used", "expected"]);
    }
    Ok(())
}

fn the_credentials_of_the_bucket_are_those_of_kms() -> Outcome {
    let server = Server::start(&[])?;
    let key = create_key(&server);
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    let mut set = Setting::new();
    set.environment = vec![("AWS_ENDPOINT_URL_KMS", endpoint.clone())];
    let store = format!(
        "endpoint = \"{endpoint}\"\nregion = \"us-east-1\"\naccess_key_id = \"somebody\"\nsecret_access_key = \"secret\"\n"
    );
    fs::write(
        set.path("walden.toml"),
        format!("[archive]\nrepo = \"s3://{BUCKET}/main\"\n[archive.store]\n{store}"),
    )
    .unwrap();
    let made =
        set.execute(true, &["archive", "init", "--config", &set.path("walden.toml"), "--recipient", &key]);
    assert_eq!(made.code, 0, "{made:?}");
    set.push();
    set.expect(&key);
    Ok(())
}

fn commands_decrypt_the_keys_of_an_archive() {
    let set = Setting::new();
    set.init("service=command:base64");
    set.push();
    set.expect("command:base64 -d");
    set.expect("command:sh -c 'base64 -d'");
    assert_eq!(set.users()[0]["wrapped"]["service"], "command");
    for (command, expected) in [
        ("command:false", "expected status 0"),
        ("command:/no/such/program", "No such file"),
        ("command:cat", "expected AGE-SECRET-KEY-1"),
        ("command:sh -c 'cat >/dev/null'", "found no private key"),
        ("command:sh -c 'exec head -c 3000000 /dev/zero'", "the command sh"),
    ] {
        set.expect_error(command, &["the key service failed", expected, "exits with 0"]);
    }
    // A command whose result is not the user's key.
    let other = set.path("other.key");
    assert_eq!(set.execute(false, &["archive", "key", "generate", "-o", &other]).code, 0);
    set.expect_error(&format!("command:cat {other}"), &["found another one"]);
    // Users with keys of their own beside it.
    let added = set.key(
        "add",
        "command:base64 -d",
        &["alice=age1lggyhqrw2nlhcxprm67z43rta597azn8gknawjehu9d9dl0jq3yqqvfafg"],
    );
    assert_eq!(added.code, 0, "{added:?}");
    let rotated = set.key("rotate", "command:base64 -d", &[]);
    assert_eq!(rotated.code, 0, "{rotated:?}");
    set.expect("command:base64 -d");
    // A command that encrypts nothing changes nothing.
    for (command, expected) in [("bad=command:false", "expected status 0"), ("bad=command:true", "found 0")] {
        let failed = set.key("add", "command:base64 -d", &[command]);
        assert!(failed.code == 3 && failed.stderr.contains(expected), "{failed:?}");
    }
    assert_eq!(set.users().len(), 2);
    let removed = set.key("remove", "command:base64 -d", &["alice"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    set.expect("command:base64 -d");
}
