//! Real segments of PostgreSQL 14 to 18, generated ones, and archives of them.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use walden_archive::archive::Archive;
use walden_archive::encryption::{Encrypted, KeyOptions, keys};
use walden_archive::name::{ArchivedFile, Object};
use walden_archive::push::{PushOptions, push};
use walden_archive::store::{Folder, Store};
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_testing::writer::LogWriter;

/// Returns the consecutive segments of a version: names and bytes.
pub fn segments(version: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(version);
    let mut found: Vec<_> = fs::read_dir(&folder)
        .expect("golden segments")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "xz"))
        .map(|path| {
            let mut bytes = Vec::new();
            let file = fs::File::open(&path).expect("a segment");
            liblzma::read::XzDecoder::new(file).read_to_end(&mut bytes).expect("xz");
            (path.file_stem().expect("a name").to_string_lossy().into_owned(), bytes)
        })
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no segments in {}", folder.display());
    found
}

/// Returns consecutive segments that a server would archive: complete ones.
pub fn complete() -> Vec<(String, Vec<u8>)> {
    let mut found = segments("18.6");
    found.truncate(2);
    found
}

/// Creates a server's pg_wal with these segments, all ready to be archived.
pub fn pg_wal(root: &Path, segments: &[(String, Vec<u8>)]) -> PathBuf {
    let wal = root.join("pg_wal");
    fs::create_dir_all(wal.join("archive_status")).expect("a folder");
    for (name, bytes) in segments {
        fs::write(wal.join(name), bytes).expect("a segment");
        fs::write(wal.join("archive_status").join(format!("{name}.ready")), b"").expect("a mark");
    }
    wal
}

/// Time after which a file's modification time shows whether it was written to later.
pub const SETTLED: Duration = Duration::from_millis(3100);

/// Creates an archive in a folder.
pub fn archive(root: &Path) -> Archive {
    let archive = Archive::new(Box::new(Folder::new(root.join("archive"))));
    archive.create().expect("an archive");
    archive
}

/// Microseconds from 1970 to 2000, PostgreSQL's epoch.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// Returns the time of the only commit in a segment of [`log`], in microseconds since 1970.
pub fn commit_time(number: u64) -> i64 {
    POSTGRES_EPOCH + number as i64 * 3_600_000_000
}

/// Returns consecutive segments of 1 MB on a timeline, numbered from `first`, each with a commit and a switch
/// at its end.
pub fn log(timeline: u32, first: u64, count: u64) -> Vec<(String, Vec<u8>)> {
    log_with(timeline, first, count, &|number| Some(commit_time(number)), None)
}

/// Like [`log`], but one segment's commit has another time. Nothing else differs, so the segments before and
/// after it fit to it.
pub fn log_with_other_time(timeline: u32, first: u64, count: u64, number: u64) -> Vec<(String, Vec<u8>)> {
    let time = |at| Some(commit_time(at) + i64::from(at == number) * 1000);
    log_with(timeline, first, count, &time, None)
}

/// Returns a segment with a commit at this time.
pub fn log_at(timeline: u32, number: u64, time: i64) -> (String, Vec<u8>) {
    log_with(timeline, number, 1, &|_| Some(time), None).remove(0)
}

/// Like [`log`], but without commits.
pub fn log_without_commits(timeline: u32, first: u64, count: u64) -> Vec<(String, Vec<u8>)> {
    log_with(timeline, first, count, &|_| None, None)
}

/// Like [`log`], but the server runs with `wal_level = minimal` from the middle of a segment on.
pub fn log_with_minimal_wal(first: u64, count: u64, number: u64) -> Vec<(String, Vec<u8>)> {
    // An XLOG_PARAMETER_CHANGE record: five limits, `wal_level`, two flags, and padding.
    let numbers = [100_i32, 8, 0, 0, 64, 0, 0].map(i32::to_le_bytes).concat();
    log_with(1, first, count, &|number| Some(commit_time(number)), Some((number, rmid::XLOG, 0x60, &numbers)))
}

/// Like [`log`], but the transaction that commits in a segment drops database 5.
pub fn log_with_drop(first: u64, count: u64, number: u64) -> Vec<(String, Vec<u8>)> {
    // An XLOG_DBASE_DROP record: the database, and a list of one tablespace.
    let numbers = [5_u32, 1, 1663].map(u32::to_le_bytes).concat();
    log_with(
        1,
        first,
        count,
        &|number| Some(commit_time(number)),
        Some((number, rmid::DBASE, 0x20, &numbers)),
    )
}

/// A segment with transactions that commit at these times.
pub fn log_with_times(timeline: u32, number: u64, times: &[i64]) -> (String, Vec<u8>) {
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = timeline;
    writer.start = Lsn(number << 20);
    writer.previous = Lsn((number << 20) - 32);
    for time in times {
        writer.main_data(rmid::XACT, 0, &(time - POSTGRES_EPOCH).to_le_bytes());
    }
    writer.switch();
    (SegmentName::new(timeline, number, writer.info.segment_size).to_string(), writer.bytes)
}

/// Like [`log`] on timeline 1, of a cluster with this system identifier.
pub fn log_of_cluster(system_id: u64, first: u64, count: u64) -> Vec<(String, Vec<u8>)> {
    let mut writer = LogWriter::new(Major::V18);
    (writer.info.system_id, writer.info.timeline) = (system_id, 1);
    write_log(writer, first, count, &|number| Some(commit_time(number)), None)
}

fn log_with(
    timeline: u32,
    first: u64,
    count: u64,
    time_of: &dyn Fn(u64) -> Option<i64>,
    record: Option<(u64, u8, u8, &[u8])>,
) -> Vec<(String, Vec<u8>)> {
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = timeline;
    write_log(writer, first, count, time_of, record)
}

fn write_log(
    mut writer: LogWriter,
    first: u64,
    count: u64,
    time_of: &dyn Fn(u64) -> Option<i64>,
    record: Option<(u64, u8, u8, &[u8])>,
) -> Vec<(String, Vec<u8>)> {
    writer.start = Lsn(first << 20);
    writer.previous = Lsn((first << 20) - 32);
    let (size, timeline) = (writer.info.segment_size, writer.info.timeline);
    for number in first..first + count {
        for part in 0..20 {
            // An XLOG_NOOP record with some text.
            let text = format!("what segment {number} says in part {part} of it").repeat(8);
            writer.main_data(rmid::XLOG, 0x20, text.as_bytes());
        }
        if let Some((_, manager, info, data)) = record.filter(|record| record.0 == number) {
            writer.main_data(manager, info, data);
        }
        if let Some(time) = time_of(number) {
            writer.main_data(rmid::XACT, 0, &(time - POSTGRES_EPOCH).to_le_bytes());
        }
        writer.switch();
    }
    let segments = writer.bytes.chunks(1 << 20).zip(first..);
    segments
        .map(|(bytes, number)| (SegmentName::new(timeline, number, size).to_string(), bytes.to_vec()))
        .collect()
}

/// Archives files of a server's pg_wal, each by a separate call.
pub fn push_all(archive: &Archive, wal: &Path, files: &[(String, Vec<u8>)]) {
    let options = PushOptions::default().look_ahead(0);
    for (name, _) in files {
        push(archive, &wal.join(name), &options).asked.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    }
}

/// Creates an archive in a folder, with these segments.
pub fn archive_of(root: &Path, segments: &[(String, Vec<u8>)]) -> Archive {
    let archive = archive(root);
    push_all(&archive, &pg_wal(root, segments), segments);
    archive
}

/// Expects that the archive returns each of these files exactly.
pub fn expect_all(archive: &Archive, files: &[(String, Vec<u8>)], what: &str) {
    let target = tempfile::tempdir().expect("a folder");
    for (name, original) in files {
        let path = target.path().join(name);
        let file = ArchivedFile::parse(name).expect("a name");
        walden_archive::get::get(archive, file, &path).unwrap_or_else(|error| {
            panic!("{what}: {name}: {}", walden_source::error_text(&error));
        });
        assert!(fs::read(&path).expect("a file") == *original, "{what}: {name}");
    }
}

/// Returns the segments and packs of a store, as the last part of their keys.
pub fn stored(store: &dyn Store) -> Vec<String> {
    let mut found = Vec::new();
    store
        .list("wal/", &mut |listed| {
            assert!(Object::parse_key(&listed.key).is_some(), "{}", listed.key);
            found.push(listed.key.rsplit('/').next().expect("a name").to_owned());
        })
        .expect("a list");
    found.sort();
    found
}

/// Returns temporary files left below a folder.
pub fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry")) {
        if entry.file_type().expect("a type").is_dir() {
            found.extend(leftovers(&entry.path()));
        } else if entry.file_name().to_string_lossy().ends_with(".tmp") {
            found.push(entry.path());
        }
    }
    found
}

/// A user with a private key in a file.
pub struct User {
    pub recipient: String,
    pub identity: PathBuf,
}

/// Creates a user.
pub fn user(root: &Path, name: &str) -> User {
    let pair = keys::generate();
    let identity = root.join(format!("{name}.key"));
    fs::write(&identity, pair.identity_file).expect("a file");
    User { recipient: pair.recipient, identity }
}

/// Creates an [`archive`] encrypted for a user. Returns the keys of a server, and those of the user.
pub fn encrypt(root: &Path, user: &User) -> (KeyOptions, KeyOptions) {
    let store = Encrypted::new(Box::new(Folder::new(root.join("archive"))), KeyOptions::default());
    archive(root);
    let users = [keys::User::parse(&user.recipient).expect("a recipient")];
    let statement = store.initialise_keys(&users).expect("keys");
    let server = KeyOptions::default().recipient(Some(statement.recipients[0].clone()));
    let reader = server.clone().identity(Some(user.identity.clone()));
    (server, reader)
}

/// Opens an encrypted archive in a folder.
pub fn archive_with(root: &Path, keys: &KeyOptions) -> Archive {
    Archive::with_keys(Box::new(Folder::new(root.join("archive"))), keys.clone())
}
