//! Archives in Azure Blob Storage, on its emulator Azurite; in OpenStack Swift itself; and in Google Cloud
//! Storage and Alibaba Cloud's OSS, on a small server that speaks their XML APIs. No emulator of the latter
//! two honors conditional requests, so this one proves that Walden's requests are right, not that the clouds'
//! answers are. The same holds for the login to Keystone.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use walden_archive::url::{self, PlaceOptions};
use walden_testing::{Missing, Need, Outcome};

use crate::archive::{json, text};
use crate::archive_s3::{free_port, python_of};
use crate::material::{Run, golden, walden};

walden_testing::tests! {
    segments_go_into_azure_and_come_back,
    segments_go_into_google_and_come_back,
    segments_go_into_oss_and_come_back,
    segments_go_into_swift_and_come_back,
    swift_accepts_each_kind_of_login,
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

/// The XML API of Google and of OSS for one bucket: conditional creation, ranges, listings in pages of three.
/// OSS does not implement the condition of S3.
const GOOGLE: &str = r#"
import re, sys, threading, time, urllib.parse
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
        if self.headers.get("If-None-Match"):
            return self.fail(501, "NotImplemented")
        signed = self.headers.get("Authorization", "")
        with lock:
            if self.headers.get("x-goog-if-generation-match") == "0" and key in objects:
                return self.fail(412, "PreconditionFailed")
            if self.headers.get("x-oss-forbid-overwrite") == "true" and "x-oss-forbid-overwrite" in signed and key in objects:
                return self.fail(409, "FileAlreadyExists")
            objects[key] = body
        self.answer(200, headers={"ETag": '"1"', "x-goog-generation": "1"})
    def do_DELETE(self):
        _, key, _ = self.key()
        with lock:
            found = objects.pop(key, None)
        self.answer(204) if found is not None else self.fail(404, "NoSuchKey")
    def do_POST(self):  # removes several objects
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        with lock:
            for key in re.findall("<Key>(.*?)</Key>", body):
                objects.pop(key, None)
        deleted = body.replace("<Object>", "<Deleted>").replace("</Object>", "</Deleted>")
        deleted = re.sub("<Delete[ >].*?<Deleted>", "<DeleteResult><Deleted>", deleted, count=1).replace("</Delete>", "</DeleteResult>")
        self.answer(200, deleted.encode())
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

/// Swift with one device and one account, in one process: PORT. Beside Swift's own login, it has Keystone's:
/// an answer at `/v3/auth/tokens` that gives the token of the other login. `/forget` ends all logins.
const SWIFT: &str = r#"
import array, json, logging, os, sys, tempfile
import eventlet
eventlet.monkey_patch(thread=False)
from eventlet import listen, spawn, wsgi
import swift.common.storage_policy as policies
import swift.common.utils as utils
utils.HASH_PATH_SUFFIX, utils.HASH_PATH_PREFIX = b"test", b""
utils.validate_hash_conf = lambda: None
policies._POLICIES = policies.StoragePolicyCollection([policies.StoragePolicy(0, "gold", is_default=True)])
from swift.account.server import AccountController
from swift.common.http_protocol import SwiftHttpProtocol
from swift.common.middleware import catch_errors, gatekeeper, listing_formats, tempauth
from swift.common.ring import RingData
from swift.common.swob import Request, Response
from swift.container.server import ContainerController
from swift.obj.server import ObjectController
from swift.proxy.server import Application

port, folder = int(sys.argv[1]), os.getcwd()
os.makedirs("devices/d1/tmp")
conf = {"devices": f"{folder}/devices", "swift_dir": folder, "mount_check": "false", "disable_fallocate": "true",
        "account_autocreate": "true", "node_timeout": "60", "conn_timeout": "60"}
logger = utils.get_logger(conf, "swift", log_to_console=False)
def serve(socket, app): return spawn(wsgi.server, socket, app, logger, protocol=SwiftHttpProtocol, log_output=False)
for name, kind in ("account", AccountController), ("container", ContainerController), ("object", ObjectController):
    socket = listen(("127.0.0.1", 0))
    at = socket.getsockname()[1]
    device = {"id": 0, "region": 1, "zone": 0, "device": "d1", "ip": "127.0.0.1", "port": at, "weight": 1.0,
              "replication_ip": "127.0.0.1", "replication_port": at}
    RingData([array.array("H", [0, 0, 0, 0])], [device], 30).save(f"{folder}/{name}.ring.gz")
    serve(socket, kind(conf, logger=logger))

class Memory(dict):
    def __bool__(self): return True
    def get(self, key, raise_on_error=False): return dict.get(self, key)
    def set(self, key, value, serialize=True, time=0, min_compress_len=0, **_): self[key] = value
    def incr(self, key, delta=1, time=0): self[key] = dict.get(self, key, 0) + delta; return self[key]
    def delete(self, key, server_key=None): self.pop(key, None)
memory = Memory()

OWN = {"X-Auth-User": "test:tester", "X-Auth-Key": "testing"}
USER = {"name": "tester", "domain": {"name": "Default"}}
ACCEPTED = [
    {"identity": {"methods": ["password"], "password": {"user": {**USER, "password": "testing"}}},
     "scope": {"project": {"name": "test", "domain": {"id": "default"}}}},
    {"identity": {"methods": ["application_credential"], "application_credential": {"id": "me", "secret": "testing"}}},
    {"identity": {"methods": ["application_credential"], "application_credential": {"name": "me", "user": USER, "secret": "testing"}}},
]
class Login:
    def __init__(self, app): self.app = app
    def __call__(self, env, start):
        env["swift.cache"] = memory
        if env["PATH_INFO"] == "/forget":
            memory.clear()
            return Response()(env, start)
        if env["PATH_INFO"] != "/v3/auth/tokens":
            return self.app(env, start)
        request = Request(env)
        if json.loads(request.body)["auth"] not in ACCEPTED:
            return Response(status=401)(env, start)
        answer = Request.blank("/auth/v1.0", headers=OWN, environ={"swift.cache": memory}).get_response(self.app)
        endpoint = lambda interface, region, url: {"interface": interface, "region": region, "url": url}
        url = f"http://{env['HTTP_HOST']}/v1/AUTH_test"
        catalog = [{"type": "compute", "endpoints": [endpoint("public", "one", "http://127.0.0.1:1/")]},
                   {"type": "object-store", "endpoints": [endpoint("admin", "one", "http://127.0.0.1:1/"),
                    endpoint("public", "two", "http://127.0.0.1:1/"), endpoint("public", "one", url)]}]
        return Response(status=201, headers={"X-Subject-Token": answer.headers["X-Auth-Token"]},
                        body=json.dumps({"token": {"catalog": catalog}}))(env, start)

app = listing_formats.filter_factory({})(Application(conf, logger=logger))
app = gatekeeper.filter_factory({})(Login(tempauth.filter_factory({"user_test_tester": "testing .admin"})(app)))
app = catch_errors.filter_factory({})(app)
token = Request.blank("/auth/v1.0", headers=OWN).get_response(app).headers["X-Auth-Token"]
made = Request.blank("/v1/AUTH_test/backups", method="PUT", headers={"X-Auth-Token": token, "Content-Length": "0"}).get_response(app)
assert made.status_int == 201, made
serve(listen(("127.0.0.1", port)), app).wait()
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

    pub fn oss() -> Result<Cloud, Missing> {
        let port = free_port();
        let mut command = Command::new(Need::Python.find()?);
        command.args(["-c", GOOGLE, &port.to_string()]);
        let cloud = Cloud::start(command, port);
        let lines = Cloud::oss_settings(port).map(|(name, value)| format!("{name} = \"{value}\"\n"));
        cloud.configure("s3://backups/main", &lines.concat());
        Ok(cloud)
    }

    /// Returns the settings for OSS at a port.
    pub fn oss_settings(port: u16) -> [(&'static str, String); 5] {
        let endpoint = format!("http://127.0.0.1:{port}");
        [
            ("endpoint", endpoint),
            ("region", "oss-cn-hangzhou".to_owned()),
            ("access_key_id", "somebody".to_owned()),
            ("secret_access_key", "secret".to_owned()),
            ("create_header", "x-oss-forbid-overwrite".to_owned()),
        ]
    }

    pub fn swift() -> Result<Cloud, Missing> {
        let (program, port) = (Need::Swift.find()?, free_port());
        let mut command = Command::new(python_of(&program));
        command.args(["-W", "ignore", "-c", SWIFT, &port.to_string()]);
        let cloud = Cloud::start(command, port);
        cloud.log_in_to_swift(&Cloud::swift_settings(port));
        Ok(cloud)
    }

    /// Returns the settings for Swift at a port.
    pub fn swift_settings(port: u16) -> [(&'static str, String); 3] {
        let login = format!("http://127.0.0.1:{port}/auth/v1.0");
        [("auth_url", login), ("username", "test:tester".to_owned()), ("password", "testing".to_owned())]
    }

    fn log_in_to_swift(&self, settings: &[(&str, String)]) {
        let lines: String = settings.iter().map(|(name, value)| format!("{name} = \"{value}\"\n")).collect();
        self.configure("swift://backups/main", &lines);
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

fn segments_go_into_oss_and_come_back() -> Outcome {
    let cloud = Cloud::oss()?;
    assert_archives(&cloud);
    // Without the header, the store does not implement the condition.
    let config = cloud.path("walden.toml");
    let changed = fs::read_to_string(&config).unwrap().replace("create_header", "# create_header");
    fs::write(&config, changed.replace("/missing/", "/backups/")).unwrap();
    let run = cloud.command(&["check"]);
    assert!(run.code == 1 && run.stdout.contains("NotImplemented"), "{run:?}");
    for (value, expected) in [("a b", "expected the name of a header"), ("", "expected the name of a header")]
    {
        let lines = format!("create_header = \"{value}\"\n");
        cloud.configure("s3://backups/main", &lines);
        let run = cloud.command(&["list"]);
        assert!(run.code == 3 && run.stderr.contains(expected), "{run:?}");
    }
    cloud.configure("s3://backups/main", "create_header = \"x-a\"\nskip_signature = \"true\"\n");
    let run = cloud.command(&["list"]);
    assert!(run.code == 3 && run.stderr.contains("cannot use create_header without signatures"), "{run:?}");
    Ok(())
}

fn segments_go_into_swift_and_come_back() -> Outcome {
    let cloud = Cloud::swift()?;
    assert_archives(&cloud);
    Ok(())
}

fn swift_accepts_each_kind_of_login() -> Outcome {
    let cloud = Cloud::swift()?;
    let made = cloud.command(&["init"]);
    assert_eq!(made.code, 0, "{made:?}");
    let keystone = format!("http://127.0.0.1:{}", cloud.port);
    let settings = |more: &[(&'static str, &str)]| {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        [("auth_url", keystone.clone()), ("region_name", "one".to_owned())]
            .into_iter()
            .chain(more)
            .collect::<Vec<_>>()
    };
    let password = settings(&[
        ("username", "tester"),
        ("password", "testing"),
        ("project_name", "test"),
        ("project_domain_id", "default"),
    ]);
    let secret = ("application_credential_secret", "testing");
    let credential = settings(&[("application_credential_id", "me"), secret]);
    let named = settings(&[("application_credential_name", "me"), ("username", "tester"), secret]);
    for login in [&password, &credential, &named] {
        cloud.log_in_to_swift(login);
        let checked = cloud.command(&["check"]);
        assert!(checked.code == 0 && checked.stdout.contains("Swift checks"), "{checked:?}");
    }
    // The same in the environment.
    cloud.log_in_to_swift(&[]);
    let config = cloud.path("walden.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
    command.args(["archive", "check", "--config", text(&config)]);
    command.envs(password.iter().map(|(name, value)| (format!("OS_{}", name.to_ascii_uppercase()), value)));
    let checked = Run::execute(&mut command);
    assert_eq!(checked.code, 0, "{checked:?}");
    let elsewhere: Vec<(&str, String)> = credential
        .iter()
        .map(|(name, value)| (*name, if *name == "region_name" { "three".to_owned() } else { value.clone() }))
        .collect();
    for (login, expected) in [
        (settings(&[("username", "tester"), ("password", "wrong")]), "permission denied"),
        (settings(&[("username", "tester")]), "expected OS_PASSWORD or password, found none"),
        (elsewhere, "check OS_REGION_NAME"),
        (vec![("auth_url", format!("{keystone}/other/v3"))], "expected OS_USERNAME"),
        (vec![("username", "a".to_owned())], "expected the URL of the login"),
        (settings(&[("endpoint", "x")]), "expected a setting of Swift"),
        (vec![("auth_url", "swift.example.net:5000".to_owned())], "expected a URL such as"),
    ] {
        cloud.log_in_to_swift(&login);
        let run = cloud.command(&["list"]);
        assert!(run.code == 3 && run.stderr.contains(expected), "{expected}: {run:?}");
    }
    // A token that ends within a process.
    let options = Cloud::swift_settings(cloud.port).map(|(name, value)| (name.to_owned(), value));
    let archive =
        url::open("swift://backups/main", &PlaceOptions::default().store(options.to_vec())).unwrap();
    let store = archive.encrypted().inner();
    store.create("again/1", b"content").unwrap();
    let mut connection = TcpStream::connect(("127.0.0.1", cloud.port)).unwrap();
    connection.write_all(b"GET /forget HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    connection.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(store.read("again/1").unwrap(), b"content");
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
    // Servers with different contents of one name: one is archived, the others are refused. Swift allows the
    // same only one after the other.
    let is_swift = fs::read_to_string(cloud.path("walden.toml")).unwrap().contains("swift://");
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
    let runs: Vec<Run> = match is_swift {
        true => servers.iter().map(|path| cloud.push(path)).collect(),
        false => std::thread::scope(|scope| {
            let pushes: Vec<_> = servers.iter().map(|path| scope.spawn(move || cloud.push(path))).collect();
            pushes.into_iter().map(|push| push.join().unwrap()).collect()
        }),
    };
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
