//! The same checks of every store: folder, S3, OSS, Azure, Google Cloud Storage, Swift and SFTP.
//!
//! The stores' servers are those of the tests of each store. A proxy injects the failures of networks and
//! clouds.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use walden_archive::Archive;
use walden_archive::store::{Cause, Created, Store, StoreError};
use walden_archive::url::{self, PlaceOptions};
use walden_lab::sshd::{HOST, Sshd};
use walden_testing::{Missing, Need, Outcome};

use crate::archive::text;
use crate::archive_clouds::{Cloud, KEY};
use crate::archive_s3::{BUCKET, Server, Trouble, free_port, proxy};

walden_testing::tests! {
    a_folder_conforms,
    s3_conforms,
    azure_conforms,
    google_conforms,
    oss_conforms,
    swift_conforms,
    sftp_conforms,
}

/// Returns the settings of a store whose server is at a port.
type Settings = Box<dyn Fn(u16) -> Vec<(String, String)>>;

/// A store to check.
struct Site {
    url: String,
    settings: Settings,
    /// The server's port, if it has one.
    port: Option<u16>,
    /// The folder with the objects, if they are files.
    folder: Option<PathBuf>,
    /// How many objects are listed. Emulators are slow.
    objects: usize,
    /// Whether requests are HTTP.
    is_http: bool,
    /// Ends the server when dropped.
    _server: Box<dyn Any>,
}

impl Site {
    fn open(&self) -> Archive {
        self.open_at(self.port.unwrap_or_default(), None)
    }

    fn open_at(&self, port: u16, answer_within: Option<Duration>) -> Archive {
        let options = PlaceOptions::default()
            .store((self.settings)(port))
            .answer_within(answer_within)
            .tags([("team".to_owned(), "db".to_owned())].into());
        url::open(&self.url, &options).unwrap()
    }

    /// Opens the store through a proxy with these troubles.
    fn through(&self, troubles: &'static [Trouble], answer_within: Option<Duration>) -> Archive {
        let (port, _) = proxy(self.port.unwrap(), troubles);
        self.open_at(port, answer_within)
    }
}

/// The store itself, without encryption.
fn store(archive: &Archive) -> &dyn Store {
    archive.encrypted().inner()
}

fn pairs<const N: usize>(settings: [(&str, String); N]) -> Vec<(String, String)> {
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn a_folder_conforms() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("archive");
    conforms(&Site {
        url: text(&folder).to_owned(),
        settings: Box::new(|_| Vec::new()),
        port: None,
        folder: Some(folder),
        objects: 10_000,
        is_http: false,
        _server: Box::new(root),
    });
}

fn s3_conforms() -> Outcome {
    let server = Server::start(&[])?;
    let settings = |port| {
        pairs([
            ("endpoint", format!("http://127.0.0.1:{port}")),
            ("access_key_id", "somebody".to_owned()),
            ("secret_access_key", "secret".to_owned()),
            ("region", "us-east-1".to_owned()),
        ])
    };
    let site = Site {
        url: format!("s3://{BUCKET}/main"),
        settings: Box::new(settings),
        port: Some(server.port),
        folder: None,
        // Three pages.
        objects: 2_001,
        is_http: true,
        _server: Box::new(server),
    };
    conforms(&site);
    let answer = |body| [Trouble::AnswerWith("400 Bad Request", body)];
    const EXPIRED: &str =
        "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>";
    assert_eq!(cause_of(&site, Box::leak(Box::new(answer(EXPIRED)))), Cause::Expired);
    const SKEWED: &str =
        "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>";
    const SKEW: &[Trouble] = &[Trouble::AnswerWith("403 Forbidden", SKEWED)];
    assert_eq!(cause_of(&site, SKEW), Cause::ClockSkew);
    Ok(())
}

fn azure_conforms() -> Outcome {
    let cloud = Cloud::azure(KEY)?;
    let site = Site {
        url: "az://backups/main".to_owned(),
        settings: Box::new(|port| pairs(Cloud::azure_settings(port, KEY))),
        port: Some(cloud.port),
        folder: None,
        objects: 300,
        is_http: true,
        _server: Box::new(cloud),
    };
    conforms(&site);
    const OLD: &str = "<Error><Code>AuthenticationFailed</Code><AuthenticationErrorDetail>Request date header too old</AuthenticationErrorDetail></Error>";
    assert_eq!(cause_of(&site, &[Trouble::AnswerWith("403 Forbidden", OLD)]), Cause::ClockSkew);
    const ENDED: &str = "<Error><Code>AuthenticationFailed</Code><AuthenticationErrorDetail>Signature not valid in the specified time frame</AuthenticationErrorDetail></Error>";
    assert_eq!(cause_of(&site, &[Trouble::AnswerWith("403 Forbidden", ENDED)]), Cause::Expired);
    Ok(())
}

fn google_conforms() -> Outcome {
    let cloud = std::rc::Rc::new(Cloud::google()?);
    let accounts = cloud.clone();
    conforms(&Site {
        url: "gs://backups/main".to_owned(),
        settings: Box::new(move |port| {
            pairs([("service_account", text(&accounts.google_account(port)).to_owned())])
        }),
        port: Some(cloud.port),
        folder: None,
        // Pages of three.
        objects: 100,
        is_http: true,
        _server: Box::new(cloud),
    });
    Ok(())
}

fn oss_conforms() -> Outcome {
    cloud_conforms(Cloud::oss()?, "s3://backups/main", |port| pairs(Cloud::oss_settings(port)), 100)
}

fn swift_conforms() -> Outcome {
    cloud_conforms(Cloud::swift()?, "swift://backups/main", |port| pairs(Cloud::swift_settings(port)), 300)
}

fn cloud_conforms(
    cloud: Cloud,
    url: &str,
    settings: fn(u16) -> Vec<(String, String)>,
    objects: usize,
) -> Outcome {
    conforms(&Site {
        url: url.to_owned(),
        settings: Box::new(settings),
        port: Some(cloud.port),
        folder: None,
        objects,
        is_http: true,
        _server: Box::new(cloud),
    });
    Ok(())
}

/// An sshd with a folder for archives, which the user of the server may write.
pub struct Ssh {
    sshd: Sshd,
    root: tempfile::TempDir,
}

impl Ssh {
    pub fn start() -> Result<Ssh, Missing> {
        let program = Need::Sshd.find()?;
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let sshd = Sshd::start(&program, &std::env::temp_dir()).unwrap();
        Ok(Ssh { sshd, root })
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn url(&self, name: &str) -> String {
        format!("sftp://{HOST}{}", text(&self.folder(name)))
    }

    pub fn config(&self) -> &Path {
        &self.sshd.config
    }

    fn port(&self) -> u16 {
        let config = fs::read_to_string(self.config()).unwrap();
        let line = config.lines().find(|line| line.trim().starts_with("Port ")).unwrap();
        line.trim()["Port ".len()..].parse().unwrap()
    }

    /// Writes a client's configuration for another port. Returns its path.
    fn config_for(&self, port: u16) -> PathBuf {
        let config = fs::read_to_string(self.config()).unwrap();
        let config = config.replace(&format!("Port {}", self.port()), &format!("Port {port}"));
        let path = self.folder(&format!("config-{port}"));
        fs::write(&path, config).unwrap();
        path
    }
}

fn sftp_conforms() -> Outcome {
    let ssh = std::rc::Rc::new(Ssh::start()?);
    let configs = ssh.clone();
    conforms(&Site {
        url: ssh.url("archive"),
        settings: Box::new(move |port| pairs([("config", text(&configs.config_for(port)).to_owned())])),
        port: Some(ssh.port()),
        folder: Some(ssh.folder("archive")),
        objects: 10_000,
        is_http: false,
        _server: Box::new(ssh),
    });
    Ok(())
}

/// Returns the cause of the error if the server answers every request like this.
fn cause_of(site: &Site, troubles: &'static [Trouble]) -> Cause {
    let archive = site.through(troubles, Some(Duration::from_secs(4)));
    let error = store(&archive).read("wal/1").unwrap_err();
    assert!(error.hint().is_some(), "{error:?}");
    error.cause
}

fn conforms(site: &Site) {
    only_a_new_archive_creates_its_folder(site);
    objects_are_created_once(site);
    ranges_are_read(site);
    objects_are_listed_and_removed(site);
    no_key_leaves_the_archive(site);
    many_objects_are_listed(site);
    if site.port.is_some() {
        failures_pass(site);
        a_cut_upload_leaves_no_object(site);
        a_server_that_does_not_answer_is_given_up(site);
    }
}

fn only_a_new_archive_creates_its_folder(site: &Site) {
    let archive = site.open();
    let one = store(&archive);
    if let Some(folder) = &site.folder {
        assert!(one.can_be_unmounted() && !folder.exists());
        for key in ["archive.json", "wal/00000001/first"] {
            let error = one.create(key, b"first").unwrap_err();
            assert_eq!(error.cause, Cause::NoArchive, "{}: {error:?}", site.url);
            assert!(error.hint().unwrap().contains("mount the file system"));
        }
        assert!(!folder.exists(), "{}", site.url);
    }
    one.make_root().unwrap();
    one.make_root().unwrap();
    assert_eq!(one.create("root/first", b"first").unwrap(), Created::New);
    if let Some(folder) = &site.folder {
        // It disappears while a process has it open.
        let aside = folder.with_extension("aside");
        std::fs::rename(folder, &aside).unwrap();
        for key in ["root/second", "other/second"] {
            assert_eq!(one.create(key, b"second").unwrap_err().cause, Cause::NoArchive, "{}", site.url);
        }
        assert!(!folder.exists(), "{}", site.url);
        std::fs::rename(&aside, folder).unwrap();
    }
    assert_eq!(one.create("root/second", b"second").unwrap(), Created::New);
}

fn objects_are_created_once(site: &Site) {
    let archive = site.open();
    let one = store(&archive);
    assert_eq!(one.create("once/first", b"first").unwrap(), Created::New);
    assert_eq!(one.create("once/first", b"second").unwrap(), Created::Exists);
    assert_eq!(one.read("once/first").unwrap(), b"first");
    one.make_durable("once/first").unwrap();
    assert_eq!(one.make_durable("once/missing").map_err(|error| error.cause).err(), missing(site));
    // Writers with connections of their own, and threads that share one.
    for round in 0..4 {
        let key = format!("once/race-{round}");
        let contents: Vec<Vec<u8>> = (0..6_u8).map(|number| vec![number; 200_000]).collect();
        let archives: Vec<Archive> = (0..3).map(|_| site.open()).collect();
        let results: Vec<Created> = std::thread::scope(|scope| {
            let writers: Vec<_> = contents
                .iter()
                .enumerate()
                .map(|(number, content)| {
                    let (archive, key) = (&archives[number % 3], &key);
                    scope.spawn(move || store(archive).create(key, content).unwrap())
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let winners: Vec<usize> = (0..6).filter(|&number| results[number] == Created::New).collect();
        // Swift checks only when an upload starts; its warning says so.
        let is_swift = site.url.starts_with("swift://");
        assert_eq!(one.warning().is_some_and(|warning| warning.contains("both succeed")), is_swift);
        assert!(winners.len() == 1 || is_swift && !winners.is_empty(), "{}: {results:?}", site.url);
        let found = one.read(&key).unwrap();
        assert!(winners.iter().any(|&winner| found == contents[winner]), "{}", site.url);
    }
}

/// An object store need not make objects durable, and does not look whether they exist.
fn missing(site: &Site) -> Option<Cause> {
    (!site.is_http).then_some(Cause::NotFound)
}

fn ranges_are_read(site: &Site) {
    let archive = site.open();
    let one = store(&archive);
    let content: Vec<u8> = (0..700_001_u32).map(|number| (number * 7 % 251) as u8).collect();
    assert_eq!(one.create("ranges/object", &content).unwrap(), Created::New);
    assert_eq!(one.size("ranges/object").unwrap(), 700_001);
    assert!(one.read("ranges/object").unwrap() == content);
    for (start, end) in [(0, 1), (0, 700_001), (13, 300_000), (699_999, 700_001), (700_000, 900_000), (5, 5)]
    {
        let found = one.read_range("ranges/object", start..end).unwrap();
        let expected = &content[start as usize..(end as usize).min(content.len())];
        assert!(found == expected, "{}: {start}..{end}: {} bytes", site.url, found.len());
    }
    // Behind the end is either nothing or an object that lacks its bytes.
    match one.read_range("ranges/object", 700_001..700_002) {
        Ok(found) => assert!(found.is_empty()),
        Err(error) => assert_eq!(error.cause, Cause::Damaged, "{error:?}"),
    }
    assert_eq!(one.create("ranges/empty", b"").unwrap(), Created::New);
    assert_eq!((one.size("ranges/empty").unwrap(), one.read("ranges/empty").unwrap()), (0, Vec::new()));
    let cause = |result: Result<Vec<u8>, StoreError>| result.unwrap_err().cause;
    assert_eq!(cause(one.read("ranges/missing")), Cause::NotFound);
    assert_eq!(cause(one.read_range("ranges/missing", 0..1)), Cause::NotFound);
    assert_eq!(one.size("ranges/missing").unwrap_err().cause, Cause::NotFound);
}

fn listed(one: &dyn Store, prefix: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let now = jiff::Timestamp::now().as_second();
    let visit = &mut |listed: walden_archive::store::Listed| {
        let stored = listed.stored.expect("a time").as_second();
        assert!((now - stored).abs() < 3600, "{}: {stored}, not {now}", listed.key);
        assert_eq!(found.insert(listed.key, listed.bytes), None);
    };
    one.list(prefix, visit).unwrap();
    found
}

fn objects_are_listed_and_removed(site: &Site) {
    let archive = site.open();
    let one = store(&archive);
    for (key, content) in [("list/1/a", "1"), ("list/1/b/c", "22"), ("list/10/a", "333"), ("list/x", "")] {
        one.create(key, content.as_bytes()).unwrap();
    }
    let expect = |prefix: &str, expected: &[(&str, u64)]| {
        let expected: BTreeMap<String, u64> =
            expected.iter().map(|(key, bytes)| ((*key).to_owned(), *bytes)).collect();
        assert_eq!(listed(one, prefix), expected, "{} {prefix}", site.url);
    };
    expect("list/1/", &[("list/1/a", 1), ("list/1/b/c", 2)]);
    expect("list/", &[("list/1/a", 1), ("list/1/b/c", 2), ("list/10/a", 3), ("list/x", 0)]);
    expect("list/missing/", &[]);
    one.remove("list/1/a").unwrap();
    one.remove("list/1/a").unwrap();
    assert_eq!(one.size("list/1/a").unwrap_err().cause, Cause::NotFound);
    expect("list/1/", &[("list/1/b/c", 2)]);
    assert_eq!(one.create("list/1/a", b"again").unwrap(), Created::New);
    assert_eq!(one.discard("list/1/a").unwrap(), None);
    assert_eq!(one.remove_all("list/").unwrap(), None);
    expect("list/", &[]);
    assert_eq!(one.create("list/1/a", b"again").unwrap(), Created::New);
    one.remove_leftovers().unwrap();
    expect("list/", &[("list/1/a", 5)]);
}

fn no_key_leaves_the_archive(site: &Site) {
    let archive = site.open();
    for key in ["", "/a", "a/../../b", "a//b", "a/", "./a", "..", "a\0b"] {
        let causes = [
            store(&archive).create(key, b"content").map(drop),
            store(&archive).read(key).map(drop),
            store(&archive).remove(key),
        ];
        for result in causes {
            assert_eq!(result.unwrap_err().cause, Cause::InvalidKey, "{} {key:?}", site.url);
        }
    }
}

fn many_objects_are_listed(site: &Site) {
    let archive = site.open();
    let one = store(&archive);
    // As segments are distributed: up to 256 in a folder.
    let key = |number: usize| format!("many/{:08X}/{number:024X}.wlz", number / 256);
    match &site.folder {
        Some(folder) => {
            for number in 0..site.objects {
                let path = folder.join(key(number));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "x").unwrap();
            }
        }
        None => std::thread::scope(|scope| {
            for worker in 0..4 {
                let (archive, objects) = (site.open(), site.objects);
                scope.spawn(move || {
                    for number in (worker..objects).step_by(4) {
                        store(&archive).create(&key(number), b"x").unwrap();
                    }
                });
            }
        }),
    }
    let found = listed(one, "many/");
    assert_eq!(found.len(), site.objects, "{}", site.url);
    assert!((0..site.objects).all(|number| found.get(&key(number)) == Some(&1)), "{}", site.url);
}

/// Throttling and cut connections, between requests that succeed.
const HTTP_FAILURES: &[Trouble] = &[
    Trouble::AnswerWith(
        "503 Slow Down",
        "<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>",
    ),
    Trouble::Answer("429 Too Many Requests"),
    Trouble::CutRequest(2_000),
    Trouble::None,
    Trouble::Answer("500 Internal Server Error"),
    Trouble::CutAnswer(30),
    Trouble::None,
];
/// Connections that end during the login and in the middle of a transfer.
const TCP_FAILURES: &[Trouble] =
    &[Trouble::CutRequest(0), Trouble::CutRequest(60_000), Trouble::CutAnswer(20_000), Trouble::None];

fn failures_pass(site: &Site) {
    let troubles = if site.is_http { HTTP_FAILURES } else { TCP_FAILURES };
    let content: Vec<u8> = (0..100_000_u32).map(|number| (number % 253) as u8).collect();
    for round in 0..3 {
        let archive = site.through(troubles, None);
        let one = store(&archive);
        let key = format!("retried/{round}");
        // The object exists already if only the answer was lost.
        one.create(&key, &content).unwrap();
        assert!(one.read(&key).unwrap() == content, "{}", site.url);
        assert!(listed(one, "retried/").contains_key(&key));
        assert_eq!(one.size(&key).unwrap(), 100_000);
    }
}

/// In the middle of the content: more than the login of ssh takes.
const CUT: &[Trouble] = &[Trouble::CutRequest(400_000)];

fn a_cut_upload_leaves_no_object(site: &Site) {
    let content: Vec<u8> =
        (0..1_500_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let cut = site.through(CUT, Some(Duration::from_secs(6)));
    let error = store(&cut).create("cut/object", &content).unwrap_err();
    assert_eq!(error.cause, Cause::Unavailable, "{error:?}");
    drop(cut);
    let archive = site.open();
    let one = store(&archive);
    assert_eq!(listed(one, "cut/"), BTreeMap::new(), "{}", site.url);
    assert_eq!(one.read("cut/object").unwrap_err().cause, Cause::NotFound);
    assert_eq!(one.create("cut/object", &content).unwrap(), Created::New);
    assert!(one.read("cut/object").unwrap() == content);
}

fn a_server_that_does_not_answer_is_given_up(site: &Site) {
    // The first port is closed; the second one accepts connections, but never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for port in [free_port(), silent.local_addr().unwrap().port()] {
        let archive = site.open_at(port, Some(Duration::from_secs(3)));
        let began = Instant::now();
        let error = store(&archive).read("once/first").unwrap_err();
        assert_eq!(error.cause, Cause::Unavailable, "{error:?}");
        assert!(error.hint().is_some() && began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    }
}
