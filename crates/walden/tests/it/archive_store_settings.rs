//! Settings of stores: encryption and tags in the store, profiles of the AWS tools, and the limit of
//! bandwidth.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_testing::Outcome;
use walden_testing::writer::LogWriter;

use crate::archive::text;
use crate::archive_lock::send;
use crate::archive_s3::{BUCKET, Client, Server};
use crate::material::{Run, make_archive, walden};

walden_testing::tests! {
    objects_are_encrypted_with_the_configured_key,
    objects_have_the_configured_tags,
    settings_that_contradict_each_other_are_refused,
    every_request_for_content_has_the_own_key,
    tags_are_sent_to_each_cloud,
    profiles_of_the_aws_tools_are_used,
    profiles_log_in_by_sso,
    transfers_take_their_time_at_the_limit,
}

const KMS_KEY: &str = "arn:aws:kms:us-east-1:123456789012:key/walden";

/// Adds settings to the last section of a configuration, `[archive.store]`.
fn add_settings(client: &Client, lines: &str) {
    let mut file = OpenOptions::new().append(true).open(client.path("walden.toml")).unwrap();
    file.write_all(lines.as_bytes()).unwrap();
}

fn parsed(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

fn start() -> Result<Server, walden_testing::Missing> {
    Server::start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "1000000")])
}

fn objects_are_encrypted_with_the_configured_key() -> Outcome {
    let server = start()?;
    let client = Client::with(server.port, BUCKET, "");
    add_settings(
        &client,
        &format!(
            "server_side_encryption = \"aws:kms\"\nsse_kms_key_id = \"{KMS_KEY}\"\nsse_bucket_key_enabled = \"true\"\n"
        ),
    );
    let client = client.create();
    let names = client.names();
    for name in &names {
        assert_eq!(client.push(name).code, 0);
    }
    let expect_key = |key: &str| {
        let answer = send(&server, "HEAD", &format!("{BUCKET}/main/{key}"), "", "").to_ascii_lowercase();
        for part in [
            "http/1.1 200".to_owned(),
            "x-amz-server-side-encryption: aws:kms\r\n".to_owned(),
            format!("x-amz-server-side-encryption-aws-kms-key-id: {KMS_KEY}\r\n"),
            "x-amz-server-side-encryption-bucket-key-enabled: true\r\n".to_owned(),
        ] {
            assert!(answer.contains(&part), "{key}: {part} is not in {answer}");
        }
    };
    ["README.txt", "archive.json"].into_iter().for_each(expect_key);
    names.iter().for_each(|name| expect_key(&format!("wal/00000001/00000000/{name}.wlz")));
    assert_eq!(client.get(&names[0]).code, 0);
    let packed = parsed(&client.command(&["pack", "--segments", "2", "--keep", "0", "--format", "json"]));
    expect_key(packed["packs"][0]["object"].as_str().unwrap());
    assert_eq!(client.get(&names[1]).code, 0);
    Ok(())
}

fn objects_have_the_configured_tags() -> Outcome {
    let server = start()?;
    let tags = "tags = { team = \"db\", \"cost center\" = \"a+b/4711\" }";
    let client = Client::with(server.port, BUCKET, tags).create();
    let names = client.names();
    assert_eq!(client.push(&names[0]).code, 0);
    for key in ["archive.json".to_owned(), format!("wal/00000001/00000000/{}.wlz", names[0])] {
        let answer = send(&server, "GET", &format!("{BUCKET}/main/{key}?tagging"), "", "");
        let has = |name: &str, value: &str| {
            let is_tag = |tag: &str| tag.contains(&format!("<Key>{name}</Key>")) && tag.contains(value);
            answer.split("<Tag>").any(is_tag)
        };
        assert!(has("team", "<Value>db</Value>"), "{answer}");
        assert!(has("cost center", "<Value>a+b/4711</Value>"), "{answer}");
    }
    assert_eq!(client.get(&names[0]).code, 0);
    Ok(())
}

fn settings_that_contradict_each_other_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("walden.toml");
    let many: String = (0..11).map(|number| format!("t{number} = \"x\", ")).collect();
    for (archive, store, expected) in [
        ("", "sse_kms_key_id = \"k\"", "cannot use sse_kms_key_id: expected server_side_encryption"),
        (
            "",
            "server_side_encryption = \"AES256\"\nsse_bucket_key_enabled = \"true\"",
            "cannot use sse_bucket_key_enabled: expected server_side_encryption",
        ),
        ("", "server_side_encryption = \"aws:kmz\"", "aws:kmz"),
        ("", "server_side_encryption = \"sse-c\"", "expected sse_customer_key_base64"),
        ("", "sse_customer_key_base64 = \"AAAA\"", "expected server_side_encryption = \"sse-c\""),
        (
            "",
            "server_side_encryption = \"sse-c\"\nsse_customer_key_base64 = \"AAAA\"",
            "expected 32 bytes in base64",
        ),
        ("", "profile = \"wal\"\naccess_key_id = \"a\"", "expected one of them"),
        (&*format!("tags = {{ {many} }}"), "", "expected at most 10, found 11"),
        ("tags = { \"a&b\" = \"c\" }", "", "found \"a&b\""),
        ("tags = { a = \"\u{e9}\" }", "", "cannot use the tag a"),
        ("bandwidth = \"50MB\"", "", "such as 50MB/s, found \"50MB\""),
        ("bandwidth = \"1kB/s\"", "", "expected 64kB/s or more"),
        ("bandwidth = \"99999999999TB/s\"", "", "such as 50MB/s"),
    ] {
        let text_of =
            format!("[archive]\nrepo = \"s3://b/p\"\n{archive}\n[archive.store]\nregion = \"r\"\n{store}\n");
        fs::write(&config, text_of).unwrap();
        let run = walden(&["archive", "list", "--config", text(&config)]);
        assert!(run.code != 0 && run.stderr.contains(expected), "{archive} {store}: {run:?}");
    }
}

/// A store that keeps the heads of all requests, stores nothing, and has no object.
struct Recorder {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    fn start() -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let recorder = Recorder { port: listener.local_addr().unwrap().port(), heads: Arc::default() };
        let heads = Arc::clone(&recorder.heads);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let heads = Arc::clone(&heads);
                std::thread::spawn(move || answer_all(&connection, &heads));
            }
        });
        recorder
    }

    /// Returns the requests with a method since the last call, in lower case.
    fn take(&self, method: &str) -> Vec<String> {
        let heads = std::mem::take(&mut *self.heads.lock().unwrap());
        heads
            .into_iter()
            .filter(|head| head.starts_with(method))
            .map(|head| head.to_ascii_lowercase())
            .collect()
    }
}

fn answer_all(connection: &TcpStream, heads: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(connection);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match reader.read_line(&mut head) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let length = head.to_ascii_lowercase();
        let length = length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        let target = head.split(' ').nth(1).unwrap_or_default();
        let answer = |status: &str, body: &str| {
            let length = body.len();
            format!("HTTP/1.1 {status}\r\nETag: \"e\"\r\nContent-Length: {length}\r\n\r\n{body}")
        };
        let answer = match head.starts_with("PUT") {
            true => answer("201 Created", ""),
            // The portal of IAM Identity Center.
            false if target.starts_with("/federation/credentials?") => answer(
                "200 OK",
                "{\"roleCredentials\":{\"accessKeyId\":\"ofsso\",\"secretAccessKey\":\"s\",\"sessionToken\":\"ofrole\",\"expiration\":99999999999999}}",
            ),
            // Empty listings of Azure, and of S3 and Google.
            false if target.contains("comp=list") => {
                answer("200 OK", "<EnumerationResults><Blobs/></EnumerationResults>")
            }
            false if target.contains("list-type") => {
                answer("200 OK", "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
            }
            false => answer("404 Not Found", ""),
        };
        heads.lock().unwrap().push(head);
        if (&mut &*connection).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Runs `init` with a configuration, which fails because the store has nothing of what it stored.
fn init(folder: &Path, repo: &str, archive: &str, store: &str, environment: &[(&str, &str)]) -> Run {
    let config = folder.join("walden.toml");
    fs::write(&config, format!("[archive]\nrepo = \"{repo}\"\n{archive}\n[archive.store]\n{store}\n"))
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.args(["archive", "init", "--config", text(&config)]).envs(environment.iter().copied());
    let run = Run::execute(&mut command);
    assert_ne!(run.code, 0, "{run:?}");
    run
}

fn every_request_for_content_has_the_own_key() {
    let (folder, recorder) = (tempfile::tempdir().unwrap(), Recorder::start());
    let key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let store = format!(
        "endpoint = \"http://127.0.0.1:{}\"\nregion = \"r\"\naccess_key_id = \"a\"\nsecret_access_key = \"b\"\n\
         server_side_encryption = \"sse-c\"\nsse_customer_key_base64 = \"{key}\"",
        recorder.port
    );
    for lock in ["", "lock_days = 3"] {
        init(folder.path(), "s3://b/p", lock, &store, &[]);
        let heads = recorder.heads.lock().unwrap().clone();
        for method in ["PUT", "GET", "HEAD"] {
            let of_objects = heads.iter().filter(|head| head.starts_with(&format!("{method} /b/p/")));
            let of_objects: Vec<String> = of_objects.map(|head| head.to_ascii_lowercase()).collect();
            // Without a lock, init reads no object before it stores one.
            assert!(!of_objects.is_empty() || method == "GET", "{lock}: {method} in {heads:?}");
            for head in of_objects {
                let header = format!("x-amz-server-side-encryption-customer-key: {}\r\n", key.to_lowercase());
                assert!(head.contains(&header), "{head}");
                assert!(head.contains("customer-key-md5: "), "{head}");
                if method == "PUT" {
                    assert_eq!(
                        head.contains("x-amz-object-lock-mode"),
                        !lock.is_empty() && !head.contains("/probe/"),
                        "{head}"
                    );
                }
            }
        }
        recorder.take("");
    }
    // Other users must not read such a key.
    let config = folder.path().join("walden.toml");
    for secret in ["sse_customer_key_base64", "account_key"] {
        fs::write(
            &config,
            format!("[archive]\nrepo = \"/nowhere\"\n[archive.store]\n{secret} = \"{key}\"\n"),
        )
        .unwrap();
        let run = walden(&["archive", "check", "--config", text(&config)]);
        assert!(run.stdout.contains(&format!("{secret} is a secret")), "{run:?}");
    }
}

fn tags_are_sent_to_each_cloud() {
    let (folder, recorder) = (tempfile::tempdir().unwrap(), Recorder::start());
    let port = recorder.port;
    let account = folder.path().join("account.json");
    let google = serde_json::json!({
        "private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true,
        "gcs_base_url": format!("http://127.0.0.1:{port}"),
    });
    fs::write(&account, google.to_string()).unwrap();
    let s3 =
        format!("endpoint = \"http://127.0.0.1:{port}\"\naccess_key_id = \"a\"\nsecret_access_key = \"b\"");
    let azure =
        format!("endpoint = \"http://127.0.0.1:{port}/me\"\naccount_name = \"me\"\naccount_key = \"a2V5\"");
    for (repo, store, header) in [
        ("s3://b/p", s3, "x-amz-tagging: team=db\r\n"),
        ("az://b/p", azure, "x-ms-tags: team=db\r\n"),
        ("gs://b/p", format!("service_account = \"{}\"", text(&account)), "x-goog-meta-team: db\r\n"),
    ] {
        init(folder.path(), repo, "tags = { team = \"db\" }", &store, &[]);
        let stored = recorder.take("PUT");
        assert!(!stored.is_empty() && stored.iter().all(|head| head.contains(header)), "{repo}: {stored:?}");
    }
}

fn profiles_of_the_aws_tools_are_used() {
    let (folder, recorder) = (tempfile::tempdir().unwrap(), Recorder::start());
    let path = |name: &str| folder.path().join(name);
    let endpoint = format!("http://127.0.0.1:{}", recorder.port);
    fs::create_dir(path(".aws")).unwrap();
    fs::write(
        path(".aws/credentials"),
        "[default]\naws_access_key_id = ofdefault\naws_secret_access_key = s\n[wal]\naws_access_key_id = ofwal\naws_secret_access_key = s\n\
         aws_session_token = oftoken\n",
    )
    .unwrap();
    let printed = "{\"Version\":1,\"AccessKeyId\":\"ofprocess\",\"SecretAccessKey\":\"s\"}";
    fs::write(
        path(".aws/config"),
        format!(
            "[default]\nregion = eu-north-1\n[profile wal]\nregion = eu-central-1\n[profile process]\nregion = eu-west-3\n\
             endpoint_url = {endpoint}\ncredential_process = echo '{printed}'\n[profile sso]\nsso_session = x\n"
        ),
    )
    .unwrap();
    let home = path("");
    let home = ("HOME", text(&home));
    let store = format!("endpoint = \"{endpoint}\"\n");
    let named = |name: &str| format!("{store}profile = \"{name}\"\n");
    let environment = [("AWS_ACCESS_KEY_ID", "ofenvironment"), ("AWS_SECRET_ACCESS_KEY", "s")];
    for (store, variables, expected) in [
        (&*store, &[home][..], "credential=ofdefault/@/eu-north-1/s3/"),
        (&*store, &[home, ("AWS_PROFILE", "wal")], "credential=ofwal/@/eu-central-1/s3/"),
        (&*named("wal"), &[home], "credential=ofwal/@/eu-central-1/s3/"),
        (&*named("wal"), &[home, ("AWS_REGION", "us-west-2")], "credential=ofwal/@/us-west-2/s3/"),
        // Without a setting of the store, the profile names it.
        ("profile = \"process\"\n", &[home], "credential=ofprocess/@/eu-west-3/s3/"),
        // Keys in the environment precede the default profile, but not one that the configuration names.
        (&*store, &[home, environment[0], environment[1]], "credential=ofenvironment/@/us-east-1/s3/"),
        (&*named("wal"), &[home, environment[0], environment[1]], "credential=ofwal/@/eu-central-1/s3/"),
    ] {
        let run = init(folder.path(), "s3://b/p", "", store, variables);
        let heads = recorder.take("");
        let is_expected = |head: &String| {
            let (before, after) = expected.split_once("/@/").unwrap();
            head.contains(before) && head.contains(after)
        };
        assert!(
            !heads.is_empty() && heads.iter().all(is_expected),
            "{store} {variables:?}: {heads:?} {run:?}"
        );
        let has_token = heads.iter().all(|head| head.contains("x-amz-security-token: oftoken"));
        assert_eq!(has_token, expected.contains("ofwal"), "{heads:?}");
    }
    let config = fs::read_to_string(path(".aws/config")).unwrap();
    fs::write(path(".aws/config"), format!("{config}[profile failing]\ncredential_process = false\n"))
        .unwrap();
    for (name, expected) in [
        ("none", "[profile none]"),
        ("sso", "aws configure export-credentials"),
        ("failing", "no credentials are configured: "),
        ("failing", "cannot use credential_process false: expected status 0"),
    ] {
        let run = init(folder.path(), "s3://b/p", "", &named(name), &[home]);
        assert!(run.stderr.contains(expected), "{run:?}");
    }
}

fn profiles_log_in_by_sso() {
    let (folder, recorder) = (tempfile::tempdir().unwrap(), Recorder::start());
    let path = |name: &str| folder.path().join(name);
    let endpoint = format!("http://127.0.0.1:{}", recorder.port);
    fs::create_dir_all(path(".aws/sso/cache")).unwrap();
    let role = "sso_account_id = 123456789012\nsso_role_name = Backup\n";
    fs::write(
        path(".aws/config"),
        format!(
            "[profile new]\nsso_session = my session\n{role}[sso-session my session]\nsso_region = eu-west-1\nsso_start_url = https://x\n\
             [profile old]\nsso_start_url = https://x.awsapps.com/start\nsso_region = eu-west-1\n{role}"
        ),
    )
    .unwrap();
    let home = path("");
    let variables = [("HOME", text(&home)), ("AWS_ENDPOINT_URL_SSO", &*endpoint)];
    // SHA-1 of "my session" and "https://x.awsapps.com/start".
    for (profile, file) in [
        ("new", "0810fbc4bcaca0e26000b03ebf865d8ea87be4b9"),
        ("old", "3947de8b16688092197fa616c34e01335f21d256"),
    ] {
        let store = format!("endpoint = \"{endpoint}\"\nregion = \"r\"\nprofile = \"{profile}\"\n");
        let cache = path(&format!(".aws/sso/cache/{file}.json"));
        for (content, expected) in [
            ("", "log in by aws sso login"),
            ("{", "expected a token"),
            (
                r#"{"accessToken": "a", "expiresAt": "2020-01-01T00:00:00UTC"}"#,
                "found one that ended at 2020-01-01",
            ),
        ] {
            if !content.is_empty() {
                fs::write(&cache, content).unwrap();
            }
            let run = init(folder.path(), "s3://b/p", "", &store, &variables);
            assert!(
                run.stderr.contains("no credentials are configured: ") && run.stderr.contains(expected),
                "{run:?}"
            );
            assert!(recorder.take("").is_empty());
        }
        fs::write(&cache, r#"{"accessToken": "oflogin", "expiresAt": "2999-01-01T00:00:00Z"}"#).unwrap();
        let run = init(folder.path(), "s3://b/p", "", &store, &variables);
        let heads = recorder.take("");
        let (logins, others): (Vec<&String>, Vec<&String>) =
            heads.iter().partition(|head| head.starts_with("get /federation/credentials?"));
        assert!(logins.len() == 1 && !others.is_empty(), "{heads:?} {run:?}");
        assert!(logins[0].contains("role_name=backup&account_id=123456789012"), "{heads:?}");
        assert!(logins[0].contains("x-amz-sso_bearer_token: oflogin\r\n"), "{heads:?}");
        for head in others {
            assert!(
                head.contains("credential=ofsso/") && head.contains("x-amz-security-token: ofrole"),
                "{head}"
            );
        }
    }
}

/// Returns a segment of random bytes, which cannot be compressed.
fn random_segment() -> (String, Vec<u8>) {
    let mut writer = LogWriter::new(Major::V18);
    writer.start = Lsn(0x20 << 20);
    writer.previous = Lsn((0x20 << 20) - 32);
    let mut state = 1_u64;
    for _ in 0..100 {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(8000)
        .collect();
        writer.main_data(rmid::XLOG, 0x20, &bytes);
    }
    writer.switch();
    (SegmentName::new(writer.info.timeline, 0x20, writer.info.segment_size).to_string(), writer.bytes)
}

fn transfers_take_their_time_at_the_limit() -> Outcome {
    const LIMIT: f64 = 262_144.0;
    let server = start()?;
    let client = Client::with(server.port, BUCKET, "").create();
    let (name, original) = random_segment();
    let (path, target) = (client.path(&format!("pg_wal/{name}")), client.path("target"));
    fs::write(&path, &original).unwrap();
    let get = || {
        let got = client.command(&["get", "--prefetch", "0", &name, text(&target)]);
        assert!(got.code == 0 && fs::read(&target).unwrap() == original, "{got:?}");
    };
    let folder = tempfile::tempdir().unwrap();
    let repo = folder.path().join("archive");
    make_archive(&repo);
    let settings = fs::read_to_string(client.path("walden.toml")).unwrap();
    for location in [format!("s3://{BUCKET}/main"), repo.display().to_string()] {
        let configure = |limit: &str| {
            let first =
                settings.replace(&format!("\"s3://{BUCKET}/main\"\n"), &format!("{location:?}\n{limit}\n"));
            fs::write(client.path("walden.toml"), first).unwrap();
        };
        configure("bandwidth = \"256kB/s\"");
        let began = Instant::now();
        let pushed = client.push(&name);
        let pushing = began.elapsed();
        assert_eq!(pushed.code, 0, "{pushed:?}");
        let bytes = parsed(&client.command(&["list", "--format", "json"]))["timelines"][0]["stored_bytes"]
            .as_f64()
            .unwrap();
        // Long enough to be measured, and not the time of another limit.
        let least = Duration::from_secs_f64(bytes / LIMIT);
        // The first piece and a small credit take no time.
        let at_least = least.mul_f64(0.9);
        assert!(least > Duration::from_secs(2) && pushing >= at_least, "{bytes}: {pushing:?} {least:?}");
        assert!(pushing < least * 3 + Duration::from_secs(60), "{bytes}: {pushing:?} {least:?}");
        let began = Instant::now();
        get();
        assert!(began.elapsed() >= at_least, "{bytes}: {:?} {least:?}", began.elapsed());
        configure("");
        get();
    }
    Ok(())
}
