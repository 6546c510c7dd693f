//! Malicious objects, by an attacker with write access to the store: small ones that decode to far more than
//! any archived file.

use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use walden_archive::archive::{Archive, ArchiveError};
use walden_archive::get::{GetError, get};
use walden_archive::name::{ArchivedFile, PackName};
use walden_archive::prefetch::{PrefetchOptions, Spool, prefetch};
use walden_archive::source::{self, SourceOptions};
use walden_archive::store::{Cause, MAX_OBJECT_BYTES};
use walden_archive::verify::{VerifyOptions, verify};
use walden_codec::container::{FileForm, Meta, WriteOptions, Writer};
use walden_format::lsn::SegmentName;

use crate::material::{archive_of, leftovers, log};

/// Replaces a file's object by an intact one with this many bytes of content.
fn replace(root: &Path, name: &str, bytes: usize) {
    let mut writer = Writer::new(Vec::new(), WriteOptions::with_level(FileForm::Segment, 3));
    let meta = Meta { name: name.as_bytes().to_vec(), ..Meta::default() };
    writer.add(meta, false, &mut Cursor::new(vec![0; bytes])).expect("a member");
    let object = writer.finish().expect("an object");
    assert!(object.len() < 100_000, "{} bytes", object.len());
    let key = ArchivedFile::parse(name).expect("a name").key();
    let path = root.join("archive").join(key);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, object).expect("an object");
}

/// Expects that a file is refused, and that nothing remains of it. Returns the error.
fn refused(archive: &Archive, root: &Path, name: &str) -> String {
    let target = root.join("RECOVERYXLOG");
    let got = get(archive, ArchivedFile::parse(name).expect("a name"), &target);
    assert!(!target.exists() && leftovers(root).is_empty(), "{name}");
    match got {
        Err(GetError::Archive { source: source @ ArchiveError::Object(_), .. }) => {
            walden_source::error_text(&source)
        }
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn no_object_decodes_to_more_than_its_file_can_have() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 4);
    let archive = archive_of(root.path(), &segments);
    let size = archive.segment_size().expect("a size").bytes() as usize;
    let name = &segments[2].0;
    replace(root.path(), name, size + 1);
    let found = refused(&archive, root.path(), name);
    assert!(found.contains(name) && found.contains("expected at most 1048576 bytes, found "), "{found}");
    replace(root.path(), name, 64 * size);
    refused(&archive, root.path(), name);
    let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
    let is_found = |problem: &str| problem.contains("expected at most 1048576 bytes");
    assert!(verified.damaged.iter().any(|it| is_found(&it.problem)), "{verified:?}");
    let spool = Spool::new(root.path(), &archive);
    let lock = spool.lock().expect("a lock").expect("no other process");
    spool.note(SegmentName::parse(&segments[1].0).expect("a name")).expect("a note");
    let options = PrefetchOptions::default().segments(4).threads(1).idle(Duration::from_secs(20));
    let failed = prefetch(&archive, &spool, lock, &options).expect_err("an error");
    let failed = walden_source::error_text(&failed);
    assert!(failed.contains(name) && failed.contains("expected at most 1048576 bytes"), "{failed}");
    assert!(!spool.folder().join(name).exists() && leftovers(root.path()).is_empty());
    // The limit for histories does not depend on the archive's segment size.
    let history = "00000002.history";
    replace(root.path(), history, 2 << 20);
    assert!(refused(&archive, root.path(), history).contains("expected at most 1048576 bytes"));
}

#[test]
fn no_pack_gives_who_reads_the_log_more_than_its_segments_can_have() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 2);
    let archive = archive_of(root.path(), &segments);
    let [first, last] = [0, 1].map(|at: usize| SegmentName::parse(&segments[at].0).expect("a name"));
    let mut writer = Writer::new(Vec::new(), WriteOptions::with_level(FileForm::Pack, 3));
    for name in [first, last] {
        let meta = Meta { name: name.to_string().into_bytes(), ..Meta::default() };
        writer.add(meta, false, &mut Cursor::new(vec![0; 64 << 20])).expect("a member");
        archive.store().remove(&ArchivedFile::Segment(name).key()).expect("removed");
    }
    let pack = root.path().join("archive").join(PackName { first, last }.key());
    fs::write(pack, writer.finish().expect("a pack")).expect("an object");
    let options = SourceOptions::new(1);
    let found = source::open(&archive, &options).expect_err("more than a segment");
    let found = walden_source::error_text(&found);
    assert!(found.contains("expected at most "), "{found}");
}

/// A sparse file stands for an object that would take all memory. It is refused by its size.
#[test]
fn an_object_above_the_limit_is_refused_before_it_is_read() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 1);
    let archive = archive_of(root.path(), &segments);
    let key = ArchivedFile::parse(&segments[0].0).expect("a name").key();
    let file =
        fs::File::options().write(true).open(root.path().join("archive").join(&key)).expect("an object");
    file.set_len(MAX_OBJECT_BYTES + 1).expect("a sparse file");
    let began = std::time::Instant::now();
    let read = archive.store().read(&key).expect_err("too large");
    let text = walden_source::error_text(&read);
    assert!(read.cause == Cause::TooLarge && text.contains(&MAX_OBJECT_BYTES.to_string()), "{text}");
    assert!(read.hint().is_some_and(|hint| hint.contains("no object of this size")));
    let file = ArchivedFile::parse(&segments[0].0).expect("a name");
    let got = get(&archive, file, &root.path().join("target")).expect_err("too large");
    assert_eq!(got.cause(), "too_large");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // Nothing is stored that could not be read again: virtual memory that is never touched.
    let content = vec![0; usize::try_from(MAX_OBJECT_BYTES).expect("a size")];
    let stored = archive.store().create("wal/00000001/00000000/large", &content).expect_err("too large");
    assert_eq!((stored.cause, stored.operation), (Cause::TooLarge, "create"));
}
