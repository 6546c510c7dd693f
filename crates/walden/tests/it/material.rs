//! Shared by the tests: running the program, servers and archives, golden segments, and decoding with the
//! library.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use walden_archive::Archive;
use walden_archive::store::Folder;
use walden_format::lsn::Lsn;
use walden_format::record::{Record, RecordHeader};
use walden_format::stream::{Decoder, StreamInfo, Visitor};
use walden_lab::{ClusterBuilder, Installation};

/// The result of running the program.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Puts the program into a folder that another account can access: as a hard link, because test builds have
/// hundreds of megabytes, or as a copy if the folder is on another file system.
pub fn link_program(folder: &Path) -> PathBuf {
    let (program, link) = (Path::new(env!("CARGO_BIN_EXE_walden")), folder.join("walden"));
    if fs::hard_link(program, &link).is_err() {
        walden_testing::copy_program(program, &link);
    }
    link
}

/// Runs the program.
pub fn walden<A: AsRef<OsStr>>(arguments: &[A]) -> Run {
    Run::execute(Command::new(env!("CARGO_BIN_EXE_walden")).args(arguments))
}

/// Builds a server that keeps its WAL during a test, and writes none by autovacuum.
pub fn cluster_that_keeps_wal(installation: Installation) -> ClusterBuilder {
    ClusterBuilder::new(installation).setting("wal_keep_size", "1GB").setting("autovacuum", "off")
}

/// Creates an archive like `walden archive init`, owned by the owner of its parent folder.
pub fn make_archive(repo: &Path) {
    let owner = repo.ancestors().find_map(|folder| fs::metadata(folder).ok()).unwrap();
    Archive::new(Box::new(Folder::new(repo))).create().unwrap();
    // The tests may run as root, but servers do not.
    if rustix::process::geteuid().is_root() {
        let chown = Command::new("chown")
            .arg("-R")
            .arg(format!("{}:{}", owner.uid(), owner.gid()))
            .arg(repo)
            .status();
        assert!(chown.unwrap().success());
    }
}

impl Run {
    /// Runs a command to its end.
    pub fn execute(command: &mut Command) -> Run {
        let output = command.output().unwrap();
        Run {
            // No exit status: the process was killed, by an abort or a stack overflow.
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Parses the output as JSON, and checks that the buckets add up.
    pub fn json(&self) -> Value {
        let json: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!(sum(&json["buckets"]), json["file_bytes"].as_u64().unwrap(), "the buckets don't add up");
        json
    }

    /// Returns the lines that report an error.
    pub fn errors(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.starts_with("error:")).collect()
    }

    pub fn assert_no_panic(&self) {
        assert!((0..=3).contains(&self.code) && !self.stderr.contains("panicked"), "{self:?}");
    }
}

/// Runs `walden explain --format json`, which must succeed.
pub fn explain_json<A: AsRef<OsStr>>(arguments: &[A]) -> Value {
    let run = explain(arguments);
    assert_eq!(run.code, 0, "{}", run.stderr);
    run.json()
}

/// Runs `walden explain --format json`.
pub fn explain<A: AsRef<OsStr>>(arguments: &[A]) -> Run {
    let mut all: Vec<&OsStr> = ["explain", "--format", "json"].map(OsStr::new).into();
    all.extend(arguments.iter().map(AsRef::as_ref));
    walden(&all)
}

/// Returns the sum of an object's numbers.
pub fn sum(object: &Value) -> u64 {
    object.as_object().unwrap().values().map(|value| value.as_u64().unwrap()).sum()
}

/// Prints a line, although the test harness suppresses output of passing tests.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Returns the folder of the golden clusters.
pub fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden")
}

/// Versions of the golden clusters.
pub const GOLDEN: [&str; 7] = ["14.23", "15.18", "16.14", "17.10", "17.11", "18.6", "19.rc1"];

/// Returns the uncompressed segments of a golden cluster, by name.
pub fn golden(version: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = golden_dir().join(version);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let unpack = |path: PathBuf| {
        let mut bytes = Vec::new();
        liblzma::read::XzDecoder::new(fs::File::open(&path).unwrap()).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 1 << 20, "{}", path.display());
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), bytes)
    };
    files.map(|entry| unpack(entry.unwrap().path())).collect()
}

/// Returns a segment that is full of records: name and content.
pub fn golden_segment() -> (String, Vec<u8>) {
    golden("17.11").pop_first().unwrap()
}

/// Writes a file, and creates its parent folders.
pub fn write(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    path
}

/// A record without its content, which its checksum represents.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen {
    pub lsn: Lsn,
    /// End of the record, without alignment.
    pub end: Lsn,
    pub header: RecordHeader,
}

/// A visitor that collects records.
#[derive(Default)]
pub struct Collector {
    pub records: Vec<Seen>,
}

impl Visitor for Collector {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let end = Lsn(record.end.0 - u64::from(record.alignment));
        self.records.push(Seen { lsn: record.lsn, end, header: record.header });
        ControlFlow::Continue(())
    }
}

/// Returns a decoder for a segment's pages, starting at `page`.
pub fn decoder(segment: &[u8], page: usize) -> Decoder {
    let info = StreamInfo::from_first_page(segment).unwrap();
    let start = Lsn(segment_start(segment).0 + (page * info.page_bytes as usize) as u64);
    Decoder::new(info, start, Lsn(u64::MAX))
}

/// Returns the LSN at which a segment starts.
pub fn segment_start(segment: &[u8]) -> Lsn {
    Lsn(u64::from_le_bytes(segment[8..16].try_into().unwrap()))
}

/// Returns all complete records of a segment.
pub fn records_of(segment: &[u8]) -> Vec<Seen> {
    let mut collector = Collector::default();
    let _ = decoder(segment, 0).push(segment, &mut collector);
    assert!(!collector.records.is_empty());
    collector.records
}

/// Runs `walden redo check --format json`, and returns its exit status and output.
pub fn redo_check(arguments: &[&Path]) -> (i32, Value) {
    let mut all: Vec<&Path> = ["redo", "check", "--format", "json"].map(Path::new).into();
    all.extend(arguments);
    let run = walden(&all);
    let json = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    (run.code, json)
}
