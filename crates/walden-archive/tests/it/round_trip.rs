//! Files are pushed to the archive, and returned unchanged.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use walden_archive::Archive;
use walden_archive::archive::ArchiveError;
use walden_archive::check::{Refusal, Rules, check};
use walden_archive::get::{GetError, get};
use walden_archive::list::{ListOptions, list};
use walden_archive::name::ArchivedFile;
use walden_archive::object::{Content, READ_LIMITS, encode, summary_at_end};
use walden_archive::pack::{PackOptions, pack};
use walden_archive::push::{PushError, PushOptions, push};
use walden_archive::server::expect_own_archive;
use walden_archive::store::{Folder, Listed};
use walden_archive::verify::{VerifyOptions, verify};
use walden_codec::coder::Form;
use walden_codec::container::Reader;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_format::page::LONG_HEADER;
use walden_format::record::RECORD_HEADER;
use walden_format::rmgr::rmid;
use walden_format::stream::StreamInfo;
use walden_format::version::Major;

use crate::material::{SETTLED, archive, archive_of, complete, expect_all, log, pg_wal, segments, stored};
use walden_testing::writer::LogWriter;

#[test]
fn what_is_ready_is_archived_ahead_and_comes_back_byte_for_byte() {
    let root = tempfile::tempdir().expect("a folder");
    let originals = complete();
    let wal = pg_wal(root.path(), &originals);
    let archive = archive(root.path());
    let batch = push(&archive, &wal.join(&originals[0].0), &PushOptions::default());
    let first = batch.asked.expect("archived");
    assert!(!first.was_there && first.stored.expect("stored") < first.bytes / 2);
    assert_eq!((batch.others.len(), batch.ready), (1, 2));
    // Files archived ahead are present when requested.
    for (name, _) in &originals {
        let batch = push(&archive, &wal.join(name), &PushOptions::default());
        assert!(batch.asked.expect("archived").was_there, "{name}");
    }
    for (name, original) in &originals {
        let target = root.path().join("RECOVERYXLOG");
        get(&archive, ArchivedFile::parse(name).expect("a name"), &target).expect("in the archive");
        assert!(fs::read(&target).expect("a file") == *original, "{name}");
    }
    let marks = fs::read_dir(wal.join("archive_status")).expect("marks").count();
    assert_eq!(marks, 2, "PostgreSQL's marks are PostgreSQL's");
    let listing = list(&archive, ListOptions::default()).expect("a list");
    let timeline = &listing.timelines[0];
    assert_eq!((timeline.segments, timeline.gaps.len()), (2, 0));
    assert!(timeline.last_commit_time > timeline.first_commit_time);
    let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
    assert!(verified.is_good(), "{verified:?}");
    assert_eq!(verified.segments, 2);
}

#[test]
fn others_are_begun_when_those_archived_ahead_are_used_up() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 8);
    let wal = pg_wal(root.path(), &files);
    let archive = archive(root.path());
    let options = PushOptions::default().look_ahead(3);
    let mut others = Vec::new();
    for (name, _) in &files {
        let batch = push(&archive, &wal.join(name), &options);
        assert_eq!(batch.asked.expect("archived").was_there, !others.is_empty(), "{name}");
        others.push(batch.others.into_iter().filter(Result::is_ok).count());
        let mark = |ending| wal.join("archive_status").join(format!("{name}.{ending}"));
        fs::rename(mark("ready"), mark("done")).expect("renamed");
    }
    assert_eq!(others, [3, 0, 0, 3, 0, 0, 1, 0]);
    expect_all(&archive, &files, "archived ahead");
}

/// PostgreSQL stops at the first refused file, and later files may belong to another server.
#[test]
fn nothing_is_archived_ahead_of_what_is_refused_or_was_not_compared() {
    let damaged = |bytes: &[u8]| [&bytes[..5000], &[bytes[5000] ^ 1], &bytes[5001..]].concat();
    // The damaged segment, the segment archived beforehand, and the expected segments in the archive.
    for (bad, archived_before, expected) in
        [(Some(0), None, vec![]), (Some(2), None, vec![0, 1]), (None, Some(2), vec![0, 1, 2])]
    {
        for threads in [1, 4] {
            let root = tempfile::tempdir().expect("a folder");
            let files = log(1, 1, 6);
            let wal = pg_wal(root.path(), &files);
            let archive = archive(root.path());
            let options = PushOptions::default().threads(threads);
            if let Some(index) = archived_before {
                let alone = PushOptions::default().look_ahead(0);
                push(&archive, &wal.join(&files[index].0), &alone).asked.expect("archived");
            }
            if let Some(index) = bad {
                let (name, bytes): &(String, Vec<u8>) = &files[index];
                fs::write(wal.join(name), damaged(bytes)).expect("a segment");
            }
            let batch = push(&archive.afresh(), &wal.join(&files[0].0), &options);
            assert_eq!(batch.asked.is_err(), bad == Some(0), "{batch:?}");
            assert_eq!(batch.others.iter().any(Result::is_err), bad == Some(2), "{batch:?}");
            let expected: Vec<String> =
                expected.iter().map(|&index: &usize| format!("{}.wlz", files[index].0)).collect();
            assert_eq!(stored(archive.store()), expected, "{bad:?} {archived_before:?} {threads}");
        }
    }
}

/// As with a clone, or another server that was promoted to the same timeline.
#[test]
fn a_segment_that_does_not_follow_the_one_before_it_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    // Two pairs of segments, which are not connected.
    let files = [log(1, 1, 2), log(1, 3, 2)].concat();
    let wal = pg_wal(root.path(), &files);
    let archive = archive(root.path());
    let batch = push(&archive, &wal.join(&files[0].0), &PushOptions::default());
    batch.asked.expect("archived");
    match batch.others.last() {
        Some(Err(PushError::Refused { refusal: Refusal::Link { before, found, .. }, .. })) => {
            assert_eq!((before, *found), (&files[1].0, Lsn((3 << 20) - 32)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(stored(archive.store()).len(), 2);
    // The same is detected from the archived segment's summary, when that segment is requested.
    let asked = push(&archive.afresh(), &wal.join(&files[2].0), &PushOptions::default()).asked;
    assert!(matches!(asked, Err(PushError::Refused { refusal: Refusal::Link { .. }, .. })), "{asked:?}");
    assert_eq!(stored(archive.store()).len(), 2);
}

/// Returns whether a segment's records were decoded when it was archived.
fn form(archive: &Archive, name: &str) -> Form {
    let key = ArchivedFile::parse(name).expect("a name").key();
    let object = archive.store().read(&key).expect("an object");
    let mut reader = Reader::open(std::io::Cursor::new(object), *READ_LIMITS).expect("a file");
    reader.next().expect("a head").expect("a member").form
}

#[test]
fn records_that_do_not_come_back_are_archived_as_bytes_with_a_warning() {
    let root = tempfile::tempdir().expect("a folder");
    let (name, mut bytes) = log(1, 1, 1).remove(0);
    let file = ArchivedFile::parse(&name).expect("a name");
    let mut checked = check(file, &mut &bytes[..], Rules::default()).expect("checked");
    // Decoding computes the records' checksums. A wrong one, set after the check, simulates an error of the
    // codec.
    bytes[LONG_HEADER + RECORD_HEADER - 1] ^= 1;
    checked.hash = *blake3::hash(&bytes).as_bytes();
    let object = encode(file, &mut checked, &mut Content::Held(&bytes), 3).expect("archived");
    let mut summary = summary_at_end(&file.key(), &object).expect("a summary");
    assert!(summary.has_records_as_bytes() && summary.is_as_bytes, "{summary:?}");
    assert!(summary.warnings.len() == 1 && !summary.has_accepted_damage(), "{summary:?}");
    // As written by the first versions.
    summary.is_as_bytes = false;
    assert!(summary.has_records_as_bytes());
    let archive = archive(root.path());
    archive.store().create(&file.key(), &object).expect("stored");
    assert_eq!(form(&archive, &name), Form::Bytes);
    expect_all(&archive, &[(name, bytes)], "as bytes");
}

#[test]
fn a_long_queue_is_archived_as_bytes_and_its_end_as_records() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 8);
    let wal = pg_wal(root.path(), &files);
    let archive = archive(root.path());
    let options = PushOptions::default().fast_queue(5).look_ahead(4);
    for (name, _) in &files {
        push(&archive, &wal.join(name), &options).asked.expect("archived");
        let mark = |ending| wal.join("archive_status").join(format!("{name}.{ending}"));
        fs::rename(mark("ready"), mark("done")).expect("renamed");
    }
    // The number of waiting files was 8, 7, 6, and so on.
    let forms: Vec<Form> = files.iter().map(|(name, _)| form(&archive, name)).collect();
    assert_eq!(forms, [[Form::Bytes; 3].as_slice(), [Form::Records; 5].as_slice()].concat());
    expect_all(&archive, &files, "archived fast");
    let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
    assert!(verified.is_good() && verified.segments == 8, "{verified:?}");
    // Packs do not depend on how segments were archived.
    let other = tempfile::tempdir().expect("a folder");
    let options = PackOptions::default().segments(Some(4)).keep(0);
    let packs = [archive, archive_of(other.path(), &files)].map(|archive| {
        assert!(pack(&archive, &options, &|_, _| {}).expect("packed").is_good());
        expect_all(&archive, &files, "packed");
        let mut packs = Vec::new();
        let add = &mut |listed: Listed| packs.push(archive.store().read(&listed.key).expect("a pack"));
        archive.store().list("wal/", add).expect("a list");
        packs
    });
    assert!(packs[0] == packs[1] && packs[0].len() > 1);
}

#[test]
fn a_queue_that_was_long_is_archived_as_bytes_nearly_to_its_end() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 8);
    let wal = pg_wal(root.path(), &files);
    let archive = archive(root.path());
    let options = PushOptions::default().fast_queue(16).look_ahead(0);
    let age = |name: &str, seconds| {
        let file = fs::File::options().write(true).open(wal.join(name)).expect("a segment");
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).expect("a time");
    };
    for (index, (name, _)) in files.iter().enumerate() {
        // The second segment was completed just now.
        age(name, if index == 1 { 1 } else { 60 });
        push(&archive, &wal.join(name), &options).asked.expect("archived");
        let mark = |ending| wal.join("archive_status").join(format!("{name}.{ending}"));
        fs::rename(mark("ready"), mark("done")).expect("renamed");
    }
    let forms: Vec<Form> = files.iter().map(|(name, _)| form(&archive, name)).collect();
    let (bytes, records) = (Form::Bytes, Form::Records);
    assert_eq!(forms, [bytes, records, bytes, bytes, bytes, bytes, records, records]);
}

#[test]
fn what_was_archived_ahead_is_compared_when_it_is_asked_for() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 3);
    let wal = pg_wal(root.path(), &files);
    let archive = archive(root.path());
    let batch = push(&archive, &wal.join(&files[0].0), &PushOptions::default());
    assert!(batch.asked.is_ok() && batch.others.len() == 2, "{batch:?}");
    // From another server, or changed later.
    fs::write(wal.join(&files[2].0), &files[1].1).expect("a segment");
    assert!(push(&archive, &wal.join(&files[1].0), &PushOptions::default()).asked.expect("there").was_there);
    let asked = push(&archive, &wal.join(&files[2].0), &PushOptions::default()).asked;
    assert!(asked.is_err(), "{asked:?}");
    fs::remove_file(wal.join(&files[1].0)).expect("removed");
    let asked = push(&archive, &wal.join(&files[1].0), &PushOptions::default()).asked;
    assert!(matches!(asked, Err(PushError::Refused { .. })), "{asked:?}");
    expect_all(&archive, &files, "archived ahead");
}

#[test]
fn what_was_archived_ahead_a_while_after_it_was_written_is_not_acknowledged_once_it_is_another() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 6);
    let wal = pg_wal(root.path(), &files);
    let archive = archive(root.path());
    let object = |index: usize| {
        root.path().join("archive").join(ArchivedFile::parse(&files[index].0).expect("a name").key())
    };
    // Each call simulates another process.
    let push =
        |index: usize| push(&archive.afresh(), &wal.join(&files[index].0), &PushOptions::default()).asked;
    std::thread::sleep(SETTLED);
    push(0).expect("archived");
    assert!(push(1).expect("archived ahead").was_there);
    // Different content of the same size, with the modification time set back.
    let changed = fs::File::options().write(true).open(wal.join(&files[2].0)).expect("a segment");
    let modified = changed.metadata().and_then(|found| found.modified()).expect("a time");
    changed.write_all_at(&files[3].1, 0).expect("written");
    changed.set_modified(modified).expect("set");
    let error = push(2).expect_err("other content");
    assert_eq!(error.cause(), "mismatch", "{error:?}");
    // Another file with the same name and content.
    let copy = wal.join("copy");
    fs::copy(wal.join(&files[3].0), &copy).expect("a copy");
    fs::rename(&copy, wal.join(&files[3].0)).expect("renamed");
    let good = fs::read(object(3)).expect("an object");
    fs::write(object(3), [&good[..100], &[!good[100]], &good[101..]].concat()).expect("damage");
    assert_eq!(push(3).expect_err("damage").cause(), "damaged_object");
    fs::write(object(3), &good).expect("an object");
    // The object was truncated or removed later.
    let good = fs::read(object(4)).expect("an object");
    fs::write(object(4), &good[..good.len() - 1]).expect("cut");
    assert_eq!(push(4).expect_err("damage").cause(), "damaged_object");
    fs::write(object(4), &good).expect("an object");
    fs::remove_file(object(5)).expect("removed");
    assert!(!push(5).expect("archived once more").was_there);
    expect_all(&archive, &files, "archived ahead");
}

#[test]
fn the_same_name_never_gets_another_content() {
    let root = tempfile::tempdir().expect("a folder");
    let originals = complete();
    let wal = pg_wal(root.path(), &originals[..1]);
    let archive = archive(root.path());
    let path = wal.join(&originals[0].0);
    push(&archive, &path, &PushOptions::default()).asked.expect("archived");
    let mut other = originals[0].1.clone();
    other[60] ^= 1;
    fs::write(&path, &other).expect("a segment");
    let options = PushOptions::default().accept_damaged(true);
    match push(&archive, &path, &options).asked {
        Err(PushError::Archive { source: ArchiveError::Conflict { archived, offered, .. }, .. }) => {
            assert!(archived.is_some_and(|archived| archived != offered));
        }
        other => panic!("{other:?}"),
    }
    for (name, text) in [("00000002.history", "1\t0/3000000\tx\n"), ("00000002.history", "1\t0/4000000\tx\n")]
    {
        fs::write(wal.join(name), text).expect("a history");
        let asked = push(&archive, &wal.join(name), &PushOptions::default()).asked;
        assert_eq!(asked.is_ok(), text.contains("0/3000000"), "{asked:?}");
    }
    let target = root.path().join("target");
    get(&archive, ArchivedFile::parse(&originals[0].0).expect("a name"), &target).expect("there");
    assert!(fs::read(&target).expect("a file") == originals[0].1);
}

/// As on a standby that archives, too, in a recycled file.
#[test]
fn other_bytes_behind_a_switch_do_not_make_another_segment() {
    let root = tempfile::tempdir().expect("a folder");
    let (name, original) = complete().swap_remove(0);
    let used = original.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1).next_multiple_of(8);
    let recycled = [&original[..used], &segments("18.6")[2].1[used..]].concat();
    assert_ne!(recycled, original);
    let options = PushOptions::default().look_ahead(0).accept_damaged(true);
    for (first, second) in [(&original, &recycled), (&recycled, &original)] {
        let root = root.path().join(if first == &original { "zeros" } else { "recycled" });
        fs::create_dir(&root).expect("a folder");
        let archived = (name.clone(), first.clone());
        let archive = archive_of(&root, std::slice::from_ref(&archived));
        let path = root.join("pg_wal").join(&name);
        fs::write(&path, second).expect("a segment");
        let pushed = push(&archive, &path, &options).asked.expect("the same WAL");
        assert!(pushed.was_there && pushed.warnings[0].contains("the same WAL up to"), "{pushed:?}");
        for at in [60, used - 1] {
            let mut other = second.clone();
            other[at] ^= 1;
            fs::write(&path, other).expect("a segment");
            match push(&archive, &path, &options).asked {
                Err(PushError::Archive { source: error @ ArchiveError::Conflict { .. }, .. }) => {
                    assert!(error.hint().is_some_and(|hint| hint.contains("Two servers")), "{error:?}");
                }
                other => panic!("byte {at}: {other:?}"),
            }
        }
        expect_all(&archive, &[archived], "what was archived first");
    }
}

/// Returns a segment of 1 MB with some records, and `own` more after the LSN at which its timeline was
/// abandoned. Also returns that LSN.
fn left_segment(word: &str, own: usize, is_full: bool) -> (Vec<u8>, Lsn) {
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = 1;
    writer.start = Lsn(0x20 << 20);
    writer.previous = Lsn((0x20 << 20) - 32);
    for number in 10..30 {
        writer.main_data(rmid::XLOG, 0x20, format!("{word} {number}").as_bytes());
    }
    let left = writer.start.plus(writer.bytes.len() as u64);
    for number in 0..own {
        writer.main_data(rmid::XLOG, 0x20, format!("behind that {number}").as_bytes());
    }
    if is_full {
        writer.switch();
    }
    let mut bytes = writer.bytes;
    bytes.resize(1 << 20, 0);
    (bytes, left)
}

/// As left by crash recovery before `pg_rewind`, or by an old primary.
#[test]
fn other_bytes_behind_the_place_where_a_timeline_was_left_do_not_make_another_segment() {
    let (shared, left) = left_segment("record", 0, false);
    let (recovered, full) = (left_segment("record", 1, false).0, left_segment("record", 2, true).0);
    let other = left_segment("commit", 0, false).0;
    let history = ("00000002.history".to_owned(), format!("1\t{left}\tx\n").into_bytes());
    // Archived content, offered content, and whether both count as the same.
    let pairs = [
        (&shared, &recovered, true),
        (&recovered, &shared, true),
        (&full, &shared, true),
        (&full, &recovered, true),
        // The offered segment has more WAL than the archived one.
        (&shared, &full, false),
        (&shared, &other, false),
        (&other, &shared, false),
    ];
    let options = PushOptions::default().look_ahead(0);
    for (at, (archived, offered, is_same)) in pairs.into_iter().enumerate() {
        for name in ["000000010000000000000020", "000000010000000000000020.partial"] {
            // In a partial segment, bytes after that LSN do not count.
            let is_same = is_same || at == 4 && name.ends_with("partial");
            let root = tempfile::tempdir().expect("a folder");
            let wal = pg_wal(root.path(), std::slice::from_ref(&history));
            let archive = archive(root.path());
            let path = wal.join(name);
            fs::write(&path, archived).expect("a segment");
            push(&archive, &path, &options).asked.expect("archived");
            fs::write(&path, offered).expect("a segment");
            match push(&archive, &path, &options).asked {
                Ok(pushed) => assert!(is_same && pushed.was_there, "{at}, {name}: {pushed:?}"),
                Err(PushError::Archive { source: ArchiveError::Conflict { .. }, .. }) => {
                    assert!(!is_same, "{at}, {name}");
                }
                Err(error) => panic!("{at}, {name}: {error:?}"),
            }
            expect_all(&archive, &[(name.to_owned(), archived.clone())], "what was archived first");
        }
    }
}

/// The server removes an acknowledged file, so its archived copy must be intact.
#[test]
fn a_file_whose_object_is_damaged_is_not_acknowledged() {
    let root = tempfile::tempdir().expect("a folder");
    let mut files = complete();
    files.push(("00000002.history".to_owned(), b"1\t0/3000000\tx\n".to_vec()));
    let archive = archive_of(root.path(), &files);
    let options = PushOptions::default().look_ahead(0);
    let fast = VerifyOptions::default().fast(true);
    for (name, _) in &files {
        let key = ArchivedFile::parse(name).expect("a name").key();
        let object = root.path().join("archive").join(key);
        let good = fs::read(&object).expect("an object");
        let push_again = || push(&archive.afresh(), &root.path().join("pg_wal").join(name), &options).asked;
        for at in (0..good.len()).step_by(good.len() / 50) {
            let mut bad = good.clone();
            bad[at] ^= 4;
            fs::write(&object, &bad).expect("an object");
            let error = push_again().expect_err("nothing is acknowledged");
            assert_eq!(error.cause(), "damaged_object", "{name}, byte {at}: {error:?}");
            let verified = verify(&archive, fast, &|_, _| {}).expect("a list");
            assert_eq!(verified.damaged.len(), 1, "{name}, byte {at}: {verified:?}");
        }
        fs::write(&object, &good).expect("an object");
        assert!(push_again().expect("archived").was_there, "{name}");
    }
}

#[test]
fn another_clusters_segment_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let (own, other) = (complete(), segments("17.10"));
    let wal = pg_wal(root.path(), &[own[0].clone(), other[0].clone()]);
    push(&archive, &wal.join(&own[0].0), &PushOptions::default().look_ahead(0)).asked.expect("archived");
    let asked = push(&archive, &wal.join(&other[0].0), &PushOptions::default()).asked;
    let Err(PushError::Archive { source: ArchiveError::OtherCluster { .. }, .. }) = asked else {
        panic!("{asked:?}");
    };
}

/// A history of another cluster would make recovery end on the wrong timeline, and a backup history file
/// would count as a backup.
#[test]
fn another_clusters_histories_are_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &complete()[..1]);
    let segment = &segments("17.10")[0];
    let backup = format!("{}.00000028.backup", segment.0);
    let label = format!("START WAL LOCATION: 0/00000028 (file {})\n", segment.0);
    let texts =
        [("00000002.history".to_owned(), b"1\t0/3000000\tx\n".to_vec()), (backup, label.into_bytes())];
    let by_segment =
        pg_wal(&root.path().join("other"), &[&texts[..], std::slice::from_ref(segment)].concat());
    // A server's own files, as named by `%p`.
    let by_server = pg_wal(&root.path().join("server"), &texts);
    fs::create_dir(root.path().join("server/global")).expect("a folder");
    fs::write(root.path().join("server/global/pg_control"), pg_control(7, 1 << 20)).expect("a file");
    // Files of an unknown cluster.
    let unknown = pg_wal(&root.path().join("unknown"), &texts);
    let options = PushOptions::default().look_ahead(0);
    for (name, _) in &texts {
        for folder in [&by_segment, &by_server] {
            let asked = push(&archive, &folder.join(name), &options).asked;
            let Err(PushError::Archive { source: ArchiveError::OtherCluster { .. }, .. }) = asked else {
                panic!("{name} in {}: {asked:?}", folder.display());
            };
        }
        push(&archive, &unknown.join(name), &options).asked.expect("archived");
    }
}

/// The server's own archive may have a file that another cluster's lacks, so reporting it as missing would
/// end recovery.
#[test]
fn a_server_gets_nothing_of_another_clusters_archive() {
    let root = tempfile::tempdir().expect("a folder");
    let originals = complete();
    let archive = archive_of(root.path(), &originals[..1]);
    let own = StreamInfo::from_first_page(&originals[0].1).expect("a segment").system_id;
    let data = root.path().join("data");
    fs::create_dir_all(data.join("global")).expect("a folder");
    let targets = [data.join("pg_wal/RECOVERYXLOG"), root.path().join("elsewhere/RECOVERYXLOG")];
    for (system_id, segment_bytes) in [(own, 1 << 20), (7, 1 << 20), (own, 2 << 20)] {
        let control = pg_control(system_id, segment_bytes);
        fs::write(data.join("global/pg_control"), control).expect("a file");
        for name in [&originals[0].0, &originals[1].0, "00000002.history"] {
            let file = ArchivedFile::parse(name).expect("a name");
            let expect = |target| expect_own_archive(&archive, file, target);
            match (expect(&targets[0]), system_id, segment_bytes) {
                (Ok(()), id, 0x10_0000) if id == own => {}
                (Err(error @ GetError::OtherCluster { expected: 7, .. }), 7, _) => {
                    assert!(error.cause() == "other_cluster" && error.hint().is_some());
                }
                (Err(error @ GetError::OtherSegmentSize { found: 0x10_0000, .. }), _, 0x20_0000) => {
                    assert!(error.cause() == "other_segment_size" && error.hint().is_some());
                    let text = error.to_string();
                    assert!(text.contains("of 2 MB") && text.contains("of 1 MB"), "{text}");
                }
                (other, ..) => panic!("{name}: {other:?}"),
            }
            expect(&targets[1]).expect("no data directory");
        }
    }
}

/// Returns a valid `pg_control` of PostgreSQL 18, which contains only the system identifier and the segment
/// size.
fn pg_control(system_id: u64, segment_bytes: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    bytes[..8].copy_from_slice(&system_id.to_le_bytes());
    for (at, number) in [(8, 1800_u32), (216, 8192), (220, 131_072), (228, segment_bytes)] {
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    let checksum = walden_format::crc::crc32c_append(0, &bytes[..292]);
    bytes[292..296].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// With another segment size, the same names mean other LSNs.
#[test]
fn segments_of_another_size_are_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 1));
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = 1;
    writer.info.segment_size = SegmentSize::new(2 << 20).expect("a size");
    writer.start = Lsn(0x40 << 20);
    writer.previous = Lsn((0x40 << 20) - 32);
    writer.main_data(rmid::XLOG, 0x20, b"nothing");
    writer.switch();
    let name = SegmentName::new(1, 0x20, writer.info.segment_size).to_string();
    let wal = pg_wal(&root.path().join("other"), &[(name.clone(), writer.bytes)]);
    let asked = push(&archive, &wal.join(&name), &PushOptions::default()).asked;
    assert!(
        matches!(asked, Err(PushError::Archive { source: ArchiveError::OtherSegmentSize { .. }, .. })),
        "{asked:?}"
    );
}

#[test]
fn a_wrong_segment_size_in_the_archives_identity_is_named() {
    let root = tempfile::tempdir().expect("a folder");
    let originals = log(1, 0x20, 3);
    drop(archive_of(root.path(), &originals));
    let (path, wal) = (root.path().join("archive/archive.json"), root.path().join("pg_wal"));
    let text = fs::read_to_string(&path).expect("an identity");
    // A valid size, and an invalid one.
    for size in [2 << 20, (1 << 20) + 1] {
        fs::write(&path, text.replace("1048576", &size.to_string())).expect("written");
        let archive = Archive::new(Box::new(Folder::new(root.path().join("archive"))));
        let expected = format!("found {size} bytes");
        let is_named = |error: &ArchiveError| matches!(error, ArchiveError::Identity { problem, .. } if problem.contains(&expected));
        let listed = list(&archive, ListOptions::default()).expect_err("a wrong size");
        assert!(is_named(&listed), "{listed:?}");
        let of_status = walden_archive::status::holdings(&archive, &Vec::new).expect_err("a wrong size");
        assert!(is_named(&of_status), "{of_status:?}");
        for fast in [false, true] {
            let options = VerifyOptions::default().fast(fast);
            let verified = verify(&archive, options, &|_, _| {}).expect_err("a wrong size");
            assert!(is_named(&verified), "{verified:?}");
        }
        // This holds even for an archived file.
        let options = PushOptions::default().look_ahead(0);
        let pushed = push(&archive, &wal.join(&originals[0].0), &options).asked;
        assert!(matches!(pushed, Err(PushError::Archive { .. })), "{pushed:?}");
    }
    fs::write(&path, text).expect("written");
    let archive = Archive::new(Box::new(Folder::new(root.path().join("archive"))));
    assert!(verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified").is_good());
}

/// As below the mount point of a file system that is not mounted: acknowledged files there would be lost.
#[test]
fn nothing_is_archived_where_no_archive_was_made() {
    let root = tempfile::tempdir().expect("a folder");
    let originals = complete();
    let wal = pg_wal(root.path(), &originals);
    let place = root.path().join("archive");
    let archive = Archive::new(Box::new(Folder::new(&place)));
    for is_empty in [false, true] {
        if is_empty {
            fs::create_dir(&place).expect("a folder");
        }
        for (name, _) in &originals {
            let asked = push(&archive, &wal.join(name), &PushOptions::default()).asked;
            assert!(
                matches!(asked, Err(PushError::Archive { source: ArchiveError::Missing(_), .. })),
                "{asked:?}"
            );
        }
        let stored = fs::read_dir(&place).map_or(0, Iterator::count);
        assert_eq!((stored, place.exists()), (0, is_empty));
    }
    archive.create().expect("an archive");
    let batch = push(&archive, &wal.join(&originals[0].0), &PushOptions::default());
    assert!(batch.asked.is_ok() && batch.others.iter().all(Result::is_ok), "{batch:?}");
}

/// Part of an archive was moved to another disk, and replaced by a link.
#[test]
fn what_is_behind_links_is_listed_as_it_is_read() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 3);
    let archive = archive_of(root.path(), &segments);
    let (folder, moved) = (root.path().join("archive/wal/00000001"), root.path().join("moved"));
    fs::rename(&folder, &moved).expect("moved");
    std::os::unix::fs::symlink(&moved, &folder).expect("a link");
    let listing = list(&archive, ListOptions::default()).expect("listed");
    assert_eq!(listing.timelines[0].segments, 3);
    expect_all(&archive, &segments, "behind a link");
    // Dangling and circular links.
    for target in [Path::new("/nowhere"), &root.path().join("archive/wal")] {
        fs::remove_file(&folder).expect("removed");
        std::os::unix::fs::symlink(target, &folder).expect("a link");
        let error = list(&archive, ListOptions::default()).expect_err("an error");
        let text = walden_source::error_text(&error);
        assert!(text.contains("link"), "{text}");
    }
}

/// The disk with a part of the archive is missing: recovery must stop with an error, not end at an apparent
/// end of the archive.
#[test]
fn what_is_behind_a_broken_link_is_not_missing() {
    let segments = log(1, 0x20, 3);
    for part in ["wal", "wal/00000001", "wal/00000001/00000000"] {
        let root = tempfile::tempdir().expect("a folder");
        let archive = archive_of(root.path(), &segments[..2]);
        let wal = pg_wal(root.path(), &segments);
        let (folder, moved) = (root.path().join("archive").join(part), root.path().join("moved"));
        let gone = root.path().join("gone");
        fs::rename(&folder, &gone).expect("moved");
        std::os::unix::fs::symlink(&moved, &folder).expect("a link");
        let target = root.path().join("target");
        for (name, _) in &segments {
            let file = ArchivedFile::parse(name).expect("a name");
            let error = get(&archive, file, &target).expect_err("not readable");
            let text = walden_source::error_text(&error);
            assert!(matches!(error, GetError::Archive { .. }) && text.contains("follow the link"), "{text}");
            let asked = push(&archive.afresh(), &wal.join(name), &PushOptions::default()).asked;
            assert!(asked.is_err(), "{part}: {asked:?}");
        }
        assert!(list(&archive, ListOptions::default()).is_err(), "{part}");
        fs::rename(&gone, &moved).expect("there again");
        expect_all(&archive, &segments[..2], part);
    }
}

/// A file system is unmounted while a process archives.
#[test]
fn what_was_stored_under_a_mount_point_is_not_acknowledged() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 0x20, 2);
    let archive = archive_of(root.path(), &files[..1]);
    let wal = pg_wal(root.path(), &files);
    let options = PushOptions::default().look_ahead(0);
    let push_to = |archive: &Archive| push(archive, &wal.join(&files[1].0), &options).asked;
    archive.identity().expect("known from now on");
    let (place, aside) = (root.path().join("archive"), root.path().join("aside"));
    fs::rename(&place, &aside).expect("unmounted");
    fs::create_dir(&place).expect("a mount point");
    assert_eq!(push_to(&archive).expect_err("not in the archive").cause(), "no_archive");
    assert!(!place.join("wal").exists());
    // If unmounted at a worse time, the file is stored there, but must not count for later readers, either.
    let other = tempfile::tempdir().expect("a folder");
    archive_of(other.path(), &files);
    let key = ArchivedFile::parse(&files[1].0).expect("a name").key();
    let stray = place.join(&key);
    fs::create_dir_all(stray.parent().expect("a folder")).expect("a folder");
    fs::copy(other.path().join("archive").join(&key), &stray).expect("a copy");
    for found_by in [&archive, &archive.afresh()] {
        assert_eq!(push_to(found_by).expect_err("not in the archive").cause(), "no_archive");
    }
    fs::remove_dir_all(&place).expect("removed");
    fs::rename(&aside, &place).expect("mounted");
    assert!(!push_to(&archive.afresh()).expect("archived").was_there);
    expect_all(&archive, &files, "mounted again");
}

/// PostgreSQL does not fsync backup history files, and after a crash offers a file again if it was not yet
/// marked as done.
#[test]
fn a_backup_history_file_that_a_crash_has_emptied_does_not_stall_archiving() {
    let root = tempfile::tempdir().expect("a folder");
    let name = "000000010000000000000020.00000028.backup";
    let text = |label: &str| {
        let first = "START WAL LOCATION: 0/2000028 (file 000000010000000000000020)";
        format!("{first}\nLABEL: {label}\n").into_bytes()
    };
    let files = [log(1, 0x20, 2), vec![(name.to_owned(), text("weekly"))]].concat();
    let archive = archive_of(root.path(), &files);
    let path = root.path().join("pg_wal").join(name);
    let push_again = |content: &[u8]| {
        fs::write(&path, content).expect("a file");
        push(&archive.afresh(), &path, &PushOptions::default()).asked
    };
    let zeros = [0_u8; 300];
    for lost in [&zeros[..0], &zeros[..]] {
        let pushed = push_again(lost).expect("archived before");
        assert!(pushed.was_there && pushed.warnings[0].contains("empty now"), "{pushed:?}");
    }
    assert_eq!(push_again(&text("another")).expect_err("another backup").cause(), "conflict");
    expect_all(&archive, &files, "as it was archived first");
}

#[test]
fn names_are_exact_and_a_missing_file_is_not_trouble() {
    let root = tempfile::tempdir().expect("a folder");
    let originals = complete();
    let wal = pg_wal(root.path(), &originals[..1]);
    let archive = Archive::new(Box::new(Folder::new(root.path().join("archive"))));
    let target = root.path().join("target");
    let file = ArchivedFile::parse(&originals[0].0).expect("a name");
    // A folder without an archive, such as a mount point without its file system, is an error.
    let nowhere = get(&archive, file, &target);
    assert!(
        matches!(nowhere, Err(GetError::Archive { source: ArchiveError::Missing(_), .. })),
        "{nowhere:?}"
    );
    archive.create().expect("an archive");
    assert!(matches!(get(&archive, file, &target), Err(GetError::NotThere { .. })));
    push(&archive, &wal.join(&originals[0].0), &PushOptions::default()).asked.expect("archived");
    for name in [
        format!("{}.partial", originals[0].0),
        format!("{}.00000028.backup", originals[0].0),
        "00000002.history".to_owned(),
        originals[1].0.clone(),
    ] {
        let missing = get(&archive, ArchivedFile::parse(&name).expect("a name"), &target);
        assert!(matches!(missing, Err(GetError::NotThere { .. })), "{name}: {missing:?}");
        assert!(!target.exists(), "{name}");
    }
}

#[test]
fn what_is_damaged_in_the_archive_is_found_and_never_handed_over() {
    let root = tempfile::tempdir().expect("a folder");
    let originals = complete();
    let wal = pg_wal(root.path(), &originals);
    let archive = archive(root.path());
    push(&archive, &wal.join(&originals[0].0), &PushOptions::default()).asked.expect("archived");
    let file = ArchivedFile::parse(&originals[1].0).expect("a name");
    let object = root.path().join("archive").join(file.key());
    let good = fs::read(&object).expect("an object");
    let target = root.path().join("target");
    for at in [0, 40, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 4;
        fs::write(&object, &bad).expect("an object");
        let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("a list");
        assert_eq!(verified.damaged.len(), 1, "byte {at}: {verified:?}");
        if get(&archive, file, &target).is_ok() {
            assert!(fs::read(&target).expect("a file") == originals[1].1, "byte {at}");
        } else {
            assert!(!target.exists(), "byte {at}");
        }
        let _ = fs::remove_file(&target);
    }
}

/// The server itself wrote the damage, or an administrator assumed that. Another copy is intact.
#[test]
fn a_good_copy_of_what_was_archived_damaged_is_archived_once_that_is_moved_aside() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let (name, good) = complete().swap_remove(0);
    let mut damaged = good.clone();
    damaged[300_000] ^= 1;
    let wal = pg_wal(root.path(), &[(name.clone(), damaged)]);
    let options = PushOptions::default().look_ahead(0).accept_damaged(true);
    push(&archive, &wal.join(&name), &options).asked.expect("accepted");
    fs::write(wal.join(&name), &good).expect("a segment");
    let error = push(&archive, &wal.join(&name), &options).asked.expect_err("nothing is overwritten");
    let hint = error.hint().expect("one");
    assert!(hint.contains("move the archived object") && !hint.contains("Two servers"), "{hint}");
    let key = ArchivedFile::parse(&name).expect("a name").key();
    fs::rename(root.path().join("archive").join(key), root.path().join("aside")).expect("moved");
    push(&archive.afresh(), &wal.join(&name), &options).asked.expect("archived");
    expect_all(&archive, &[(name, good)], "the good copy");
}

/// The server's account must be able to read objects that an administrator packs, verifies or imports.
#[test]
fn what_root_stores_belongs_to_the_owner_of_the_archives_folder() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("archive");
    fs::create_dir(&folder).expect("a folder");
    chown(&folder, Some(12_345), Some(23_456)).expect("another owner");
    let archive = archive_of(root.path(), &log(1, 8, 4));
    let options = PackOptions::default().segments(Some(4)).keep(0);
    assert_eq!(pack(&archive, &options, &|_, _| {}).expect("packed").segments, 4);
    verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
    let (mut folders, mut found) = (vec![folder], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let metadata = path.metadata().expect("metadata");
            assert_eq!((metadata.uid(), metadata.gid()), (12_345, 23_456), "{}", path.display());
            found += 1;
            if metadata.is_dir() {
                folders.push(path);
            }
        }
    }
    assert!(found > 5, "{found}");
}

#[test]
fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let wal = pg_wal(root.path(), &[]);
    let names = ["000000010000000000000007", "00000002.history"].map(|name| wal.join(name));
    for path in &names {
        assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
    }
    let folder = wal.join("000000010000000000000009");
    fs::create_dir(&folder).expect("a folder");
    for path in names.iter().chain([&folder]) {
        match push(&archive, path, &PushOptions::default()).asked {
            Err(PushError::Refused { refusal: Refusal::Mismatch { what, .. }, .. }) => {
                assert_eq!(what, "the file's type");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A FIFO, a folder, or a device instead of an object is an immediate error: no command waits for another
/// process to write into it.
#[test]
fn an_object_that_is_not_a_regular_file_is_an_error() {
    let make_fifo =
        |path: &Path| assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
    let make_folder = |path: &Path| fs::create_dir(path).expect("a folder");
    let make_device =
        |path: &Path| std::os::unix::fs::symlink("/dev/zero", path).expect("a link to a device");
    let make_socket = |path: &Path| drop(std::os::unix::net::UnixListener::bind(path).expect("a socket"));
    type Make<'m> = &'m dyn Fn(&Path);
    let makers: [(Make<'_>, &str); 4] = [
        (&make_fifo, "found a FIFO"),
        (&make_folder, "found a folder"),
        (&make_device, "found a device"),
        (&make_socket, "found a socket"),
    ];
    for (make, expected) in makers {
        let root = tempfile::tempdir().expect("a folder");
        let originals = log(1, 5, 2);
        let repo = root.path().join("archive");
        drop(archive_of(root.path(), &originals));
        let wal = root.path().join("pg_wal");
        let file = ArchivedFile::parse(&originals[0].0).expect("a name");
        for key in [file.key(), "archive.json".to_owned()] {
            fs::remove_file(repo.join(&key)).expect("removed");
            make(&repo.join(&key));
            let archive = Archive::new(Box::new(Folder::new(&repo)));
            let target = root.path().join("target");
            let gotten = get(&archive, file, &target).expect_err("no object");
            assert!(walden_source::error_text(&gotten).contains(expected), "{key}: {gotten:?}");
            let pushed = push(&archive, &wal.join(&originals[0].0), &PushOptions::default()).asked;
            let pushed = pushed.expect_err("no object");
            assert!(walden_source::error_text(&pushed).contains(expected), "{key}: {pushed:?}");
            let verified = verify(&archive, VerifyOptions::default(), &|_, _| {});
            assert!(verified.is_err() || key != "archive.json", "{key}");
            assert!(list(&archive, ListOptions::default()).is_err() || key != "archive.json", "{key}");
        }
    }
}
