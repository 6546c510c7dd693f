//! Archives in an object store, accessed by HTTP from a server that honours `If-None-Match`, and through an
//! unreliable network.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use walden_testing::{Need, Outcome};

use crate::archive::{json, text};
use crate::material::{Run, golden, walden};

walden_testing::tests! {
    segments_go_into_a_bucket_and_come_back,
    two_pushes_at_once_store_one_object,
    a_store_without_conditional_requests_is_asked_first_and_warned_of,
    an_encrypted_archive_in_a_bucket_is_verified_and_read,
    a_bucket_with_object_lock_is_used,
    a_store_that_keeps_what_is_removed_is_said_to,
    a_bucket_that_is_missing_is_no_end_of_the_archive,
    wrong_credentials_are_refused_and_said_so,
    credentials_of_the_shell_are_warned_of,
    a_network_that_cuts_and_refuses_costs_time_and_nothing_else,
    a_slow_network_costs_time_alone,
    a_store_that_does_not_answer_is_given_up_in_time,
}

pub const BUCKET: &str = "backups";

/// Starts `moto_server` with sequential request handling. Normally it checks whether an object exists and
/// stores it in two steps without a lock, so two concurrent conditional puts can both succeed, which no real
/// store allows.
const ONE_AT_A_TIME: &str = r#"
import threading
from moto import server

lock = threading.Lock()
run = server.run_simple

def run_one_at_a_time(host, port, app, **options):
    def one_at_a_time(environ, start_response):
        # S3 takes a checksum for buckets with Object Lock; moto looks for the name of the algorithm alone.
        if "HTTP_X_AMZ_CHECKSUM_SHA256" in environ:
            environ["HTTP_X_AMZ_SDK_CHECKSUM_ALGORITHM"] = "SHA256"
        with lock:
            return app(environ, start_response)
    run(host, port, one_at_a_time, **options)

server.run_simple = run_one_at_a_time
server.main()
"#;

/// An object store for one test, ended on drop.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    pub fn start(environment: &[(&str, &str)]) -> Result<Server, walden_testing::Missing> {
        let program = Need::Moto.find()?;
        let port = free_port();
        let child = Command::new(python_of(&program))
            .args(["-c", ONE_AT_A_TIME, "-H", "127.0.0.1", "-p", &port.to_string()])
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server { child, port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "the object store does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        // The first request, which this server accepts without credentials.
        server.put(BUCKET, "", "");
        Ok(server)
    }

    /// Stores something without credentials.
    fn put(&self, path: &str, header: &str, body: &str) {
        let answer = self.send("PUT", path, header, body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// Sends a request without credentials, and returns the answer with its head.
    pub fn send(&self, method: &str, path: &str, header: &str, body: &str) -> String {
        let port = self.port;
        let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} /{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {length}\r\nConnection: close\r\n{header}\r\n{body}"
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the interpreter next to the program, as in a virtual environment, otherwise the default one.
pub fn python_of(program: &Path) -> PathBuf {
    let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let beside = program.with_file_name("python3");
    if beside.exists() { beside } else { "python3".into() }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A server's files, and a configuration for a bucket at a port.
pub struct Client {
    folder: tempfile::TempDir,
}

impl Client {
    fn new(port: u16) -> Client {
        Client::with(port, BUCKET, "")
    }

    pub fn with(port: u16, bucket: &str, more: &str) -> Client {
        let folder = tempfile::tempdir().unwrap();
        let client = Client { folder };
        for (name, bytes) in golden("18.6").iter().take(2) {
            fs::create_dir_all(client.path("pg_wal/archive_status")).unwrap();
            fs::write(client.path("PG_VERSION"), "18\n").unwrap();
            fs::write(client.path(&format!("pg_wal/{name}")), bytes).unwrap();
            fs::write(client.path(&format!("pg_wal/archive_status/{name}.ready")), "").unwrap();
        }
        client.configure(port, bucket, more);
        client
    }

    pub fn configure(&self, port: u16, bucket: &str, more: &str) {
        let configuration = format!(
            "[archive]\nrepo = \"s3://{bucket}/main\"\n{more}\n[archive.store]\nendpoint = \"http://127.0.0.1:{port}\"\n\
             access_key_id = \"somebody\"\nsecret_access_key = \"secret\"\nregion = \"us-east-1\"\n"
        );
        fs::write(self.path("walden.toml"), configuration).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn names(&self) -> Vec<String> {
        golden("18.6").into_keys().take(2).collect()
    }

    pub fn command(&self, arguments: &[&str]) -> Run {
        let config = self.path("walden.toml");
        walden(&[&["archive", arguments[0], "--config", text(&config)], &arguments[1..]].concat())
    }

    /// Initializes the archive.
    pub fn create(self) -> Client {
        let made = self.command(&["init"]);
        assert_eq!(made.code, 0, "{made:?}");
        self
    }

    pub fn push(&self, name: &str) -> Run {
        self.command(&["push", "--look-ahead", "0", text(&self.path(&format!("pg_wal/{name}")))])
    }

    /// Gets a segment, and compares its content.
    pub fn get(&self, name: &str) -> Run {
        let target = self.path("RECOVERYXLOG");
        let _ = fs::remove_file(&target);
        let got = self.command(&["get", "--prefetch", "0", name, text(&target)]);
        assert_eq!(got.code == 0, target.exists(), "{got:?}");
        if got.code == 0 {
            assert!(fs::read(&target).unwrap() == golden("18.6")[name], "{name}");
        }
        got
    }
}

fn segments_go_into_a_bucket_and_come_back() -> Outcome {
    let server = Server::start(&[])?;
    let client = Client::new(server.port).create();
    let names = client.names();
    // One call archives the other segment as well.
    let pushed = client.command(&["push", text(&client.path(&format!("pg_wal/{}", names[0])))]);
    assert_eq!((pushed.code, pushed.stderr.as_str()), (0, ""));
    for name in &names {
        assert_eq!(client.push(name).code, 0, "again");
        assert_eq!(client.get(name).code, 0);
    }
    assert_eq!(client.get("0000000100000000000000FF").code, 1);
    assert_eq!(client.get("00000002.history").code, 1);
    let listing =
        json(&["archive", "list", "--format", "json", "--config", text(&client.path("walden.toml"))]);
    assert_eq!(listing["timelines"][0]["segments"], 2, "{listing:#}");
    assert!(listing["timelines"][0]["last_commit_time"].is_i64(), "{listing:#}");
    for arguments in [&["verify"][..], &["verify", "--fast"]] {
        let verified = client.command(arguments);
        assert_eq!(verified.code, 0, "{verified:?}");
    }
    let check = client.command(&["check"]);
    assert!(check.code == 0 && check.stdout.contains("came back in"), "{check:?}");
    // Different content under the same name.
    let path = client.path(&format!("pg_wal/{}", names[0]));
    let mut other = fs::read(&path).unwrap();
    other[60] ^= 1;
    fs::write(&path, other).unwrap();
    let refused = client.command(&["push", "--accept-damaged", "--look-ahead", "0", text(&path)]);
    assert!(
        refused.code == 1 && refused.stderr.contains("archived already with other content"),
        "{refused:?}"
    );
    assert_eq!(client.get(&names[0]).code, 0);
    // As in recovery: the second segment is already prefetched when requested.
    let target = client.path("pg_wal/RECOVERYXLOG");
    fs::write(client.path("postmaster.pid"), std::process::id().to_string()).unwrap();
    fs::write(client.path("recovery.signal"), "").unwrap();
    let got = client.command(&["get", &names[0], text(&target)]);
    assert_eq!(got.code, 0, "{got:?}");
    let spool = || {
        let folders = fs::read_dir(client.path("pg_wal")).unwrap().map(|entry| entry.unwrap().path());
        folders.into_iter().find(|path| text(path).contains("walden-prefetch-"))
    };
    let began = Instant::now();
    while !spool().is_some_and(|spool| spool.join(&names[1]).exists()) {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is fetched ahead");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(server);
    // Prefetched segments are available even without the store.
    let got = client.command(&["get", &names[1], text(&target)]);
    assert_eq!(got.code, 0, "{got:?}");
    assert!(fs::read(&target).unwrap() == golden("18.6")[&names[1]]);
    Ok(())
}

fn two_pushes_at_once_store_one_object() -> Outcome {
    let server = Server::start(&[])?;
    let client = Client::new(server.port).create();
    let (name, other) = (&client.names()[0], &client.names()[1]);
    let same: Vec<Run> = std::thread::scope(|scope| {
        let pushes: Vec<_> = (0..4).map(|_| scope.spawn(|| client.push(name))).collect();
        pushes.into_iter().map(|push| push.join().unwrap()).collect()
    });
    assert!(same.iter().all(|push| push.code == 0), "{same:?}");
    // Four servers have different contents: one of them is archived, and the others report a conflict.
    let path = client.path(&format!("pg_wal/{other}"));
    let original = fs::read(&path).unwrap();
    let servers: Vec<PathBuf> = (0..4_u8)
        .map(|number| {
            let folder = client.path(&format!("server-{number}"));
            fs::create_dir(&folder).unwrap();
            let mut content = original.clone();
            content[60] ^= number;
            fs::write(folder.join(other), content).unwrap();
            folder.join(other)
        })
        .collect();
    let different: Vec<Run> = std::thread::scope(|scope| {
        let push = |path: &PathBuf| client.command(&["push", "--accept-damaged", text(path)]);
        let pushes: Vec<_> = servers.iter().map(|path| scope.spawn(move || push(path))).collect();
        pushes.into_iter().map(|push| push.join().unwrap()).collect()
    });
    let archived: Vec<usize> = (0..4).filter(|&at| different[at].code == 0).collect();
    assert_eq!(archived.len(), 1, "{different:?}");
    assert_eq!(
        different.iter().filter(|push| push.stderr.contains("other content")).count(),
        3,
        "{different:?}"
    );
    let target = client.path("RECOVERYXLOG");
    assert_eq!(client.command(&["get", "--prefetch", "0", other, text(&target)]).code, 0);
    assert!(fs::read(&target).unwrap() == fs::read(&servers[archived[0]]).unwrap());
    Ok(())
}

fn a_store_without_conditional_requests_is_asked_first_and_warned_of() -> Outcome {
    let server = Server::start(&[])?;
    let client = Client::with(server.port, BUCKET, "without_conditional_requests = true").create();
    let name = &client.names()[0];
    assert_eq!(client.push(name).code, 0);
    assert_eq!(client.push(name).code, 0);
    let path = client.path(&format!("pg_wal/{name}"));
    let mut other = fs::read(&path).unwrap();
    other[60] ^= 1;
    fs::write(&path, other).unwrap();
    let refused = client.command(&["push", "--accept-damaged", text(&path)]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert_eq!(client.get(name).code, 0);
    let check = client.command(&["check"]);
    assert!(check.code == 0 && check.stdout.contains("no conditional requests"), "{check:?}");
    Ok(())
}

fn an_encrypted_archive_in_a_bucket_is_verified_and_read() -> Outcome {
    let server = Server::start(&[])?;
    let client = Client::new(server.port);
    let key = client.path("user.key");
    let made = walden(&["archive", "key", "generate", "-o", text(&key)]);
    let recipient = made.stdout.lines().next().unwrap();
    let environment = [
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", server.port)),
        ("AWS_ACCESS_KEY_ID", "somebody".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ];
    let run = |arguments: &[&str]| {
        Run::execute(
            Command::new(env!("CARGO_BIN_EXE_walden")).args(arguments).envs(environment.iter().cloned()),
        )
    };
    let (repo, config) = (format!("s3://{BUCKET}/encrypted"), client.path("encrypted.toml"));
    let init = run(&["archive", "init", "--repo", &repo, "--recipient", recipient, "-o", text(&config)]);
    assert_eq!(init.code, 0, "{init:?}");
    for name in &client.names() {
        let path = client.path(&format!("pg_wal/{name}"));
        let pushed = run(&["archive", "push", "--config", text(&config), text(&path)]);
        assert_eq!((pushed.code, pushed.stderr.as_str()), (0, ""));
    }
    let verified = run(&["archive", "verify", "--config", text(&config), "--identity", text(&key)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let target = client.path("RECOVERYXLOG");
    for (identity, code) in [(Some(text(&key)), 0), (None, 200)] {
        let mut arguments = vec!["archive", "get", "--prefetch", "0", "--config", text(&config)];
        arguments.extend(identity.iter().flat_map(|identity| ["--identity", *identity]));
        let name = &client.names()[1];
        arguments.extend([name.as_str(), text(&target)]);
        let got = run(&arguments);
        assert_eq!(got.code, code, "{got:?}");
    }
    Ok(())
}

/// A bucket that retains each object for a day accepts only objects with a checksum.
fn a_bucket_with_object_lock_is_used() -> Outcome {
    // Requests after the first one need credentials, unless checking is disabled entirely.
    let server = Server::start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "1000000")])?;
    server.put("worm", "x-amz-bucket-object-lock-enabled: true\r\n", "");
    let rule = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>COMPLIANCE\
                </Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
    server.put("worm?object-lock", "Content-Type: application/xml\r\n", rule);
    let client = Client::with(server.port, "worm", "").create();
    for name in client.names() {
        let pushed = client.push(&name);
        assert_eq!(pushed.code, 0, "{pushed:?}");
        assert_eq!(client.get(&name).code, 0);
    }
    let verified = client.command(&["verify"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    Ok(())
}

/// With credentials without the right to delete, `init` reports that its test segment remains.
fn a_store_that_keeps_what_is_removed_is_said_to() -> Outcome {
    let server = Server::start(&[])?;
    let (port, _) = proxy(server.port, &[Trouble::NoChange]);
    let made = Client::new(port).command(&["init"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.stdout.contains("It could not be removed from probe/: "), "{made:?}");
    assert!(!made.stdout.contains("was removed"), "{made:?}");
    let made = Client::new(server.port).command(&["check"]);
    assert!(made.stdout.contains("came back in"), "{made:?}");
    Ok(())
}

/// An object store returns 404 for a missing bucket, as for a missing object: recovery must not end for that.
fn a_bucket_that_is_missing_is_no_end_of_the_archive() -> Outcome {
    let server = Server::start(&[])?;
    let client = Client::with(server.port, "no-such-bucket", "");
    let name = &client.names()[0];
    let pushed = client.push(name);
    assert!(pushed.code == 1 && pushed.stderr.contains("no such bucket\n"), "{pushed:?}");
    for name in [name.as_str(), "00000002.history"] {
        let got = client.get(name);
        assert!(got.code == 200 && got.stderr.contains("HINT: check the name of the bucket"), "{got:?}");
    }
    let listed = client.command(&["list"]);
    assert_eq!(listed.code, 3, "{listed:?}");
    let check = client.command(&["check"]);
    assert!(check.code == 1 && check.stdout.contains("no such bucket"), "{check:?}");
    for run in [&pushed, &listed, &check] {
        assert!(!run.stderr.contains("<Error>") && !run.stdout.contains("<Error>"), "{run:?}");
    }
    // A prefix without an archive, such as a misspelt one, is not the end of an archive, either.
    client.configure(server.port, BUCKET, "");
    let got = client.get(name);
    assert!(got.code == 200 && got.stderr.contains("cannot find an archive"), "{got:?}");
    assert!(got.stderr.contains("HINT: check the URL, its prefix"), "{got:?}");
    assert!(!got.stderr.contains("mount"), "{got:?}");
    Ok(())
}

fn wrong_credentials_are_refused_and_said_so() -> Outcome {
    // From the second request on, this server requires a known user's signature.
    let server = Server::start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "1")])?;
    let client = Client::new(server.port);
    let name = &client.names()[0];
    let pushed = client.push(name);
    assert!(pushed.code == 1 && pushed.stderr.contains("permission denied"), "{pushed:?}");
    assert!(pushed.stderr.contains("HINT: "), "{pushed:?}");
    let got = client.get(name);
    assert!(got.code == 200 && got.stderr.contains("permission denied"), "{got:?}");
    Ok(())
}

/// A server started by systemd lacks the shell's credentials.
fn credentials_of_the_shell_are_warned_of() -> Outcome {
    let server = Server::start(&[])?;
    let client = Client::new(server.port);
    assert!(!client.command(&["init"]).stderr.contains("warning"), "all settings are in the file");
    let (repo, config) = (format!("s3://{BUCKET}/shell"), client.path("shell.toml"));
    let mut init = Command::new(env!("CARGO_BIN_EXE_walden"));
    init.args(["archive", "init", "--repo", &repo, "-o", text(&config)]);
    init.env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", server.port)).env("AWS_REGION", "us-east-1");
    init.env("AWS_ACCESS_KEY_ID", "somebody").env("AWS_SECRET_ACCESS_KEY", "secret");
    let made = Run::execute(&mut init);
    assert_eq!(made.code, 0, "{made:?}");
    for part in ["AWS_SECRET_ACCESS_KEY", "systemd", "[archive.store]"] {
        assert!(made.stderr.contains(part), "{part}: {made:?}");
    }
    let written = fs::read_to_string(&config).unwrap();
    assert!(written.contains("# secret_access_key = "), "{written}");
    Ok(())
}

/// The behaviour of a proxy for a connection.
#[derive(Clone, Copy, PartialEq)]
pub enum Trouble {
    None,
    /// Forwards after a delay.
    Delay(Duration),
    /// Forwards this many bytes of the client's, then disconnects.
    CutRequest(usize),
    /// Forwards this many bytes of the server's, then disconnects.
    CutAnswer(usize),
    /// Responds with this itself.
    Answer(&'static str),
    /// Responds with this status and body itself.
    AnswerWith(&'static str, &'static str),
    /// Refuses to delete and to overwrite objects.
    NoChange,
}

/// Starts a proxy in front of a server, which cycles through the troubles. Returns its port, and a counter of
/// connections.
pub fn proxy(server: u16, troubles: &'static [Trouble]) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = connections.clone();
    // This thread ends with the process.
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let number = counter.fetch_add(1, Ordering::Relaxed);
            let trouble = troubles[number % troubles.len()];
            std::thread::spawn(move || client.and_then(|client| serve(client, server, trouble)));
        }
    });
    (port, connections)
}

fn serve(mut client: TcpStream, server: u16, trouble: Trouble) -> io::Result<()> {
    if let Trouble::Answer(status) = trouble {
        read_head(&mut client)?;
        return answer(client, status, "");
    }
    if let Trouble::AnswerWith(status, body) = trouble {
        read_head(&mut client)?;
        return answer(client, status, body);
    }
    let mut server = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], server)))?;
    if let Trouble::NoChange = trouble {
        let request = read_head(&mut client)?;
        let head = String::from_utf8_lossy(&request).to_ascii_lowercase();
        let is_overwriting = head.starts_with("put") && !head.contains("if-none-match");
        let is_retention = head.lines().next().is_some_and(|line| line.contains("?retention"));
        if head.starts_with("delete") || head.starts_with("post") || is_overwriting && !is_retention {
            return answer(client, "403 Forbidden", "");
        }
        // Forces one request per connection, so that each is checked.
        let line = request.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        server.write_all(&request[..line])?;
        server.write_all(b"Connection: close\r\n")?;
        server.write_all(&request[line..])?;
    }
    let (request, answer) = match trouble {
        Trouble::CutRequest(bytes) => (bytes, usize::MAX),
        Trouble::CutAnswer(bytes) => (usize::MAX, bytes),
        _ => (usize::MAX, usize::MAX),
    };
    let delay = if let Trouble::Delay(delay) = trouble { delay } else { Duration::ZERO };
    let back = (server.try_clone()?, client.try_clone()?);
    let pump = std::thread::spawn(move || pass_on(back.0, back.1, answer, delay));
    let result = pass_on(client, server, request, delay);
    let _ = pump.join();
    result
}

/// Reads the head of a request, and any bytes received with it.
fn read_head(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut request: Vec<u8> = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let bytes = client.read(&mut buffer)?;
        if bytes == 0 {
            break;
        }
        request.extend(&buffer[..bytes]);
    }
    Ok(request)
}

fn answer(mut client: TcpStream, status: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")?;
    client.shutdown(Shutdown::Write)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, limit: usize, delay: Duration) -> io::Result<()> {
    let mut buffer = [0; 8192];
    let mut passed = 0;
    while passed < limit {
        let room = buffer.len().min(limit - passed);
        let bytes = from.read(&mut buffer[..room]).unwrap_or(0);
        if bytes == 0 {
            break;
        }
        std::thread::sleep(delay);
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
        passed += bytes;
    }
    let _ = from.shutdown(Shutdown::Both);
    to.shutdown(Shutdown::Both)
}

const TROUBLES: [Trouble; 8] = [
    Trouble::CutRequest(2_000),
    Trouble::Answer("503 Slow Down"),
    Trouble::None,
    Trouble::CutAnswer(40),
    Trouble::Answer("500 Internal Server Error"),
    Trouble::CutRequest(0),
    Trouble::CutAnswer(1_000),
    Trouble::None,
];

fn a_network_that_cuts_and_refuses_costs_time_and_nothing_else() -> Outcome {
    let server = Server::start(&[])?;
    let (port, connections) = proxy(server.port, &TROUBLES);
    let flaky = Client::new(port);
    let names = flaky.names();
    let good = Client::new(server.port).create();
    for name in &names {
        let done = (0..20).any(|_| {
            let pushed = flaky.push(name);
            // An acknowledged segment must exist, despite network errors.
            assert!(pushed.code == 1 || good.get(name).code == 0, "{pushed:?}");
            pushed.code == 0
        });
        assert!(done, "{name} is never archived");
    }
    for name in &names {
        let done = (0..20).any(|_| {
            let got = flaky.get(name);
            assert!(matches!(got.code, 0 | 200), "{got:?}");
            got.code == 0
        });
        assert!(done, "{name} never comes back");
    }
    let verified = good.command(&["verify"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    assert!(connections.load(Ordering::Relaxed) >= TROUBLES.len(), "not every trouble had its turn");
    Ok(())
}

const SLOW: [Trouble; 1] = [Trouble::Delay(Duration::from_millis(60))];

fn a_slow_network_costs_time_alone() -> Outcome {
    let server = Server::start(&[])?;
    let (port, _) = proxy(server.port, &SLOW);
    Client::new(server.port).create();
    let client = Client::new(port);
    let name = &client.names()[0];
    assert_eq!(client.push(name).code, 0);
    assert_eq!(client.get(name).code, 0);
    Ok(())
}

/// PostgreSQL's archiver is blocked while it waits.
fn a_store_that_does_not_answer_is_given_up_in_time() {
    // The first port is closed; the second one accepts connections, but never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    for (port, expected) in [(free_port(), ""), (silent_port, "expected an answer within 15 s, found none")] {
        let client = Client::new(port);
        let began = Instant::now();
        let pushed = client.push(&client.names()[0]);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}: {pushed:?}");
        assert!(pushed.code == 1 && pushed.stderr.contains(expected), "{pushed:?}");
        assert!(pushed.stderr.contains("HINT: check the network and the store"), "{pushed:?}");
        assert!(pushed.stderr.contains("endpoint in [archive.store]"), "{pushed:?}");
        let began = Instant::now();
        let listed = client.command(&["list"]);
        let took = began.elapsed();
        assert!(listed.code == 3 && took < Duration::from_secs(30), "{took:?}: {listed:?}");
    }
}
