//! Archives in Azure Blob Storage, on its emulator Azurite, and in Google Cloud Storage, on a small server
//! that speaks its XML API. No emulator of the latter honors conditional requests, so this one proves that
//! Walden's requests are right, not that Google's answers are.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use walden_testing::{Missing, Need, Outcome};

use crate::archive::{json, text};
use crate::archive_s3::free_port;
use crate::material::{Run, golden, walden};

walden_testing::tests! {
    segments_go_into_azure_and_come_back,
    segments_go_into_google_and_come_back,
    azure_refuses_a_wrong_key,
}

/// The account of Azurite, and a key that is no secret.
const ACCOUNT: &str = "devstoreaccount1";
pub const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Creates a container: PORT ACCOUNT KEY NAME.
const CREATE_CONTAINER: &str = r#"
import base64, email.utils, hashlib, hmac, sys, urllib.request
port, account, key, name = sys.argv[1:]
date = email.utils.formatdate(usegmt=True)
version = "2021-08-06"
signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n/{account}/{account}/{name}\nrestype:container"
signature = base64.b64encode(hmac.new(base64.b64decode(key), signed.encode(), hashlib.sha256).digest()).decode()
headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {account}:{signature}", "Content-Length": "0"}
url = f"http://127.0.0.1:{port}/{account}/{name}?restype=container"
urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))
"#;

/// Google's XML API for one bucket: conditional creation, ranges, listings in pages of three.
const GOOGLE: &str = r#"
import sys, threading, time, urllib.parse
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

objects, lock = {}, threading.Lock()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, status, body=b"", headers={}):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
    def fail(self, status, code):
        self.answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())
    def key(self):
        url = urllib.parse.urlsplit(self.path)
        bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        return bucket, key, dict(urllib.parse.parse_qsl(url.query))
    def do_PUT(self):
        bucket, key, _ = self.key()
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the client disconnected
            return
        if bucket != "backups":
            return self.fail(404, "NoSuchBucket")
        with lock:
            if self.headers.get("x-goog-if-generation-match") == "0" and key in objects:
                return self.fail(412, "PreconditionFailed")
            objects[key] = body
        self.answer(200, headers={"ETag": '"1"', "x-goog-generation": "1"})
    def do_DELETE(self):
        _, key, _ = self.key()
        with lock:
            found = objects.pop(key, None)
        self.answer(204) if found is not None else self.fail(404, "NoSuchKey")
    def do_HEAD(self): self.do_GET()
    def do_GET(self):
        bucket, key, query = self.key()
        if bucket != "backups":
            return self.fail(404, "NoSuchBucket")
        if not key:
            return self.list(query)
        with lock:
            body = objects.get(key)
        if body is None:
            return self.fail(404, "NoSuchKey")
        headers = {"ETag": '"1"', "Last-Modified": formatdate(usegmt=True), "x-goog-generation": "1"}
        if "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            first, last = int(first), min(int(last or len(body) - 1), len(body) - 1)
            if first >= len(body):
                return self.fail(416, "InvalidRange")
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            return self.answer(206, body[first:last + 1], headers)
        self.answer(200, body, headers)
    def list(self, query):
        with lock:
            found = sorted((key, len(body)) for key, body in objects.items() if key.startswith(query.get("prefix", "")))
        found = [it for it in found if it[0] > query.get("continuation-token", "")]
        page, date = found[:3], time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        rows = "".join(f"<Contents><Key>{key}</Key><LastModified>{date}</LastModified><ETag>\"1\"</ETag><Size>{size}</Size></Contents>" for key, size in page)
        more = f"<NextContinuationToken>{page[-1][0]}</NextContinuationToken>" if len(found) > 3 else ""
        self.answer(200, f"<?xml version='1.0'?><ListBucketResult>{rows}{more}</ListBucketResult>".encode(), {"Content-Type": "application/xml"})

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

/// A store for one test, ended on drop, and a server's files.
pub struct Cloud {
    child: Child,
    pub port: u16,
    folder: tempfile::TempDir,
}

impl Drop for Cloud {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Cloud {
    fn start(mut command: Command, port: u16) -> Cloud {
        let folder = tempfile::tempdir().unwrap();
        let command = command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let cloud = Cloud { child: command.spawn().unwrap(), port, folder };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "the object store does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        for (name, bytes) in golden("18.6").iter().take(2) {
            fs::create_dir_all(cloud.path("pg_wal")).unwrap();
            fs::write(cloud.path(&format!("pg_wal/{name}")), bytes).unwrap();
        }
        fs::write(cloud.path("PG_VERSION"), "18\n").unwrap();
        cloud
    }

    pub fn azure(key: &str) -> Result<Cloud, Missing> {
        let (program, python, port) = (Need::Azurite.find()?, Need::Python.find()?, free_port());
        let mut command = Command::new(program);
        let port_text = port.to_string();
        command.args([
            "--silent",
            "--skipApiVersionCheck",
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            &port_text,
        ]);
        let cloud = Cloud::start(command, port);
        let create =
            Command::new(python).args(["-c", CREATE_CONTAINER, &port_text, ACCOUNT, KEY, "backups"]).status();
        assert!(create.unwrap().success());
        let settings = Cloud::azure_settings(port, key);
        let lines = settings.map(|(name, value)| format!("{name} = \"{value}\"\n"));
        cloud.configure("az://backups/main", &lines.concat());
        Ok(cloud)
    }

    pub fn google() -> Result<Cloud, Missing> {
        let port = free_port();
        let mut command = Command::new(Need::Python.find()?);
        command.args(["-c", GOOGLE, &port.to_string()]);
        let cloud = Cloud::start(command, port);
        let account = cloud.google_account(port);
        cloud.configure("gs://backups/main", &format!("service_account = \"{}\"\n", text(&account)));
        Ok(cloud)
    }

    /// Returns the settings for Azurite at a port.
    pub fn azure_settings(port: u16, key: &str) -> [(&'static str, String); 3] {
        let endpoint = format!("http://127.0.0.1:{port}/{ACCOUNT}");
        [("endpoint", endpoint), ("account_name", ACCOUNT.to_owned()), ("account_key", key.to_owned())]
    }

    /// Writes the account file for Google's server at a port. Returns its path.
    pub fn google_account(&self, port: u16) -> PathBuf {
        let account = serde_json::json!({
            "private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true,
            "gcs_base_url": format!("http://127.0.0.1:{port}"),
        });
        let path = self.path(&format!("account-{port}.json"));
        fs::write(&path, account.to_string()).unwrap();
        path
    }

    fn configure(&self, repo: &str, store: &str) {
        let text = format!("[archive]\nrepo = \"{repo}\"\n[archive.store]\n{store}");
        fs::write(self.path("walden.toml"), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Run {
        let config = self.path("walden.toml");
        walden(&[&["archive", arguments[0], "--config", text(&config)], &arguments[1..]].concat())
    }

    fn push(&self, path: &Path) -> Run {
        self.command(&["push", "--look-ahead", "0", "--accept-damaged", text(path)])
    }
}

fn segments_go_into_azure_and_come_back() -> Outcome {
    assert_archives(&Cloud::azure(KEY)?);
    Ok(())
}

fn segments_go_into_google_and_come_back() -> Outcome {
    assert_archives(&Cloud::google()?);
    Ok(())
}

/// Expects that the store keeps what it acknowledges, and replaces nothing.
fn assert_archives(cloud: &Cloud) {
    let made = cloud.command(&["init"]);
    assert_eq!(made.code, 0, "{made:?}");
    let names: Vec<String> = golden("18.6").into_keys().take(2).collect();
    let segment = |name: &str| cloud.path(&format!("pg_wal/{name}"));
    for name in &names {
        for _ in 0..2 {
            let pushed = cloud.push(&segment(name));
            assert_eq!((pushed.code, pushed.stderr.as_str()), (0, ""));
        }
    }
    let target = cloud.path("RECOVERYXLOG");
    let get = |name: &str| cloud.command(&["get", "--prefetch", "0", name, text(&target)]);
    for name in &names {
        assert_eq!(get(name).code, 0);
        assert!(fs::read(&target).unwrap() == golden("18.6")[name], "{name}");
    }
    for missing in ["0000000100000000000000FF", "00000002.history"] {
        assert_eq!(get(missing).code, 1, "{missing}");
    }
    let listing =
        json(&["archive", "list", "--format", "json", "--config", text(&cloud.path("walden.toml"))]);
    assert_eq!(listing["timelines"][0]["segments"], 2, "{listing:#}");
    for arguments in [&["verify"][..], &["check"], &["pack", "--segments", "2"], &["verify"]] {
        let run = cloud.command(arguments);
        assert_eq!(run.code, 0, "{run:?}");
    }
    // Servers with different contents of one name: one is archived, the others are refused.
    let original = fs::read(segment(&names[0])).unwrap();
    let next = "00000001000000000000000C";
    let servers: Vec<PathBuf> = (0..3_u8)
        .map(|number| {
            let folder = cloud.path(&format!("server-{number}"));
            fs::create_dir(&folder).unwrap();
            let mut content = golden("18.6")[next].clone();
            content[60] ^= number;
            fs::write(folder.join(next), content).unwrap();
            folder.join(next)
        })
        .collect();
    let runs: Vec<Run> = std::thread::scope(|scope| {
        let pushes: Vec<_> = servers.iter().map(|path| scope.spawn(move || cloud.push(path))).collect();
        pushes.into_iter().map(|push| push.join().unwrap()).collect()
    });
    let archived: Vec<usize> = (0..3).filter(|&at| runs[at].code == 0).collect();
    assert_eq!(archived.len(), 1, "{runs:?}");
    assert_eq!(get(next).code, 0);
    assert!(fs::read(&target).unwrap() == fs::read(&servers[archived[0]]).unwrap());
    assert!(original == golden("18.6")[&names[0]]);
    // A missing bucket or container is not the end of the archive.
    let config = fs::read_to_string(cloud.path("walden.toml")).unwrap().replace("://backups", "://missing");
    fs::write(cloud.path("walden.toml"), config).unwrap();
    let got = get(&names[0]);
    assert!(got.code == 200 && got.stderr.contains("no such bucket"), "{got:?}");
}

fn azure_refuses_a_wrong_key() -> Outcome {
    let cloud = Cloud::azure("d3Jvbmcga2V5")?;
    let name = golden("18.6").into_keys().next().unwrap();
    let pushed = cloud.push(&cloud.path(&format!("pg_wal/{name}")));
    assert!(pushed.code == 1 && pushed.stderr.contains("permission denied"), "{pushed:?}");
    Ok(())
}
