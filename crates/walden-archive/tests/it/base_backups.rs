//! Base backups of hand-written tar archives: stores that fail at their k-th call, removals while a backup is
//! made, and damage.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};
use tar::{Builder, Header};
use walden_archive::archive::Archive;
use walden_archive::base_backups::{
    self, BackupEnd, BaseBackupError, FileRange, FileWriter, Inventory, Layout, ListedArchive, ListedFile,
    NewBackup, RangeContent, SmallFile, StoredBackup, StoredPart, Writer, WriterOptions,
};
use walden_archive::store::{Folder, Store as _};
use walden_format::crc::crc32c_append;
use walden_format::lsn::Lsn;
use walden_recover::manifest::{FileSums, Manifest, ManifestFiles};

use crate::material::{archive_of, complete};
use crate::watched::{Decision, Watched};

/// The files of a backup, and the position of its start.
#[derive(Clone)]
struct Content {
    start: u64,
    files: BTreeMap<String, Vec<u8>>,
}

impl Content {
    /// A backup with large and small files. Two backups differ in a page, the label and `pg_control`.
    fn new(number: u64) -> Content {
        let noise = |bytes: usize, seed: u64| {
            let mut content = vec![0; bytes];
            blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut content);
            content
        };
        let mut large = noise(5 << 20, 1);
        large[3 << 20] = number as u8;
        let mut files = BTreeMap::from([
            ("PG_VERSION".to_owned(), b"18\n".to_vec()),
            ("backup_label".to_owned(), format!("LABEL: {number}\n").into_bytes()),
            ("base/1/16384".to_owned(), large),
            ("global/pg_control".to_owned(), vec![number as u8; 8192]),
        ]);
        for file in 0..200 {
            files.insert(format!("base/1/{file}"), noise(16 << 10, 100 + file));
        }
        Content { start: (0xA << 20) + 0x28 + number * 0x100, files }
    }

    fn tar(&self) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, content) in &self.files {
            let mut header = Header::new_ustar();
            header.set_path(name).expect("a path");
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(1);
            header.set_cksum();
            builder.append(&header, content.as_slice()).expect("an entry");
        }
        builder.into_inner().expect("an archive")
    }

    fn manifest(&self) -> String {
        let mut text = "{ \"PostgreSQL-Backup-Manifest-Version\": 1,\n\"Files\": [\n".to_owned();
        let mut separator = "";
        for (name, content) in &self.files {
            let sum: String =
                crc32c_append(0, content).to_le_bytes().iter().map(|it| format!("{it:02x}")).collect();
            let _ = write!(
                text,
                "{separator}{{ \"Path\": \"{name}\", \"Size\": {}, \"Last-Modified\": \"2026-11-30 10:00:00 GMT\", \
                 \"Checksum-Algorithm\": \"CRC32C\", \"Checksum\": \"{sum}\" }}",
                content.len()
            );
            separator = ",\n";
        }
        let (start, end) = (Lsn(self.start), Lsn(self.start + 0x80));
        let _ = write!(
            text,
            "\n],\n\"WAL-Ranges\": [\n{{ \"Timeline\": 1, \"Start-LSN\": \"{start}\", \"End-LSN\": \"{end}\" }}\n],\n"
        );
        let sum: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        text + &format!("\"Manifest-Checksum\": \"{sum}\"}}\n")
    }

    fn begin(&self, archive: &Archive) -> Result<Writer, BaseBackupError> {
        let system = archive.identity()?.system_identifier.parse().expect("a number");
        let new = NewBackup {
            label: "test".to_owned(),
            server_version: "18.6".to_owned(),
            system_identifier: system,
            start: Lsn(self.start),
        };
        // One thread: calls in a fixed order.
        Writer::begin(archive, new, WriterOptions::default().threads(1).level(1))
    }

    fn write(&self, mut writer: Writer) -> Result<StoredBackup, BaseBackupError> {
        writer.start_archive(None)?;
        for part in self.tar().chunks(32 << 10) {
            writer.add(part)?;
        }
        writer.finish(self.manifest().as_bytes())
    }

    fn store(&self, archive: &Archive) -> Result<StoredBackup, BaseBackupError> {
        self.write(self.begin(archive)?)
    }
}

/// An archive with WAL.
fn archive(root: &Path) -> Archive {
    archive_of(root, &complete())
}

/// Reads the tar archive of a backup.
fn read(archive: &Archive, backup: &StoredBackup) -> Result<Vec<u8>, String> {
    read_over(archive, backup, None)
}

/// The same; content that the files of a folder have need not be fetched.
fn read_over(archive: &Archive, backup: &StoredBackup, existing: Option<&Path>) -> Result<Vec<u8>, String> {
    let opened = base_backups::open(archive, &[], backup, 2).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let mut tar = opened.streams.open(None, existing).map_err(|error| error.to_string())?;
    tar.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Expects that each complete backup is that of one of these contents.
fn expect_intact(archive: &Archive, contents: &[Content], what: &str) -> usize {
    let inventory = Inventory::read(archive).expect("an inventory");
    assert!(inventory.unreadable.is_empty() && inventory.unknown.is_empty(), "{what}: {inventory:?}");
    for backup in &inventory.backups {
        let content = contents.iter().find(|content| Lsn(content.start) == backup.start().1).expect("known");
        assert!(read(archive, backup).expect("readable") == content.tar(), "{what}: {}", backup.name);
    }
    inventory.backups.len()
}

/// The keys of all objects of backups.
fn objects(root: &Path) -> Vec<String> {
    let mut keys = Vec::new();
    Folder::new(root.join("archive")).list("base/", &mut |listed| keys.push(listed.key)).expect("listed");
    keys
}

/// Makes the objects of an incomplete backup look old.
fn age(root: &Path) {
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(48 * 3600);
    for key in objects(root) {
        let path = root.join("archive").join(key);
        fs::File::options().write(true).open(path).expect("a file").set_modified(old).expect("a time");
    }
}

#[test]
fn a_second_backup_stores_what_has_changed() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let contents = [Content::new(1), Content::new(2)];
    let first = contents[0].store(&archive).expect("stored");
    let second = contents[1].store(&archive).expect("stored");
    assert_eq!((first.new_bytes, first.files), (first.stored_bytes, 204));
    // The large file, and the groups with the label and pg_control.
    assert!(second.pieces == first.pieces && second.new_bytes < second.stored_bytes, "{second:?}");
    assert_eq!(expect_intact(&archive, &contents, "both"), 2);
    let removed = base_backups::remove(&archive, std::slice::from_ref(&first.name)).expect("removed");
    assert_eq!((removed.backups, removed.postponed), (vec![first.name], None));
    assert_eq!(expect_intact(&archive, &contents, "the second"), 1);
    base_backups::remove(&archive, &[second.name]).expect("removed");
    assert!(Inventory::read(&archive).expect("an inventory").is_empty());
}

/// Whatever fails, each complete backup is whole, and the next run succeeds.
#[test]
fn a_store_that_fails_leaves_whole_backups() {
    let contents = [Content::new(1), Content::new(2)];
    for fault in [Decision::Fail, Decision::FailAfter] {
        let mut has_ended = false;
        for fails_at in 0..200 {
            let root = tempfile::tempdir().expect("a folder");
            let good = archive(root.path());
            let first = contents[0].store(&good).expect("stored");
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&calls);
            let place = root.path().join("archive");
            let faulty = Archive::new(Box::new(Watched::deciding(&place, move |call, _| {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                if call != "discard" && number == fails_at { fault } else { Decision::Pass }
            })));
            let stored = contents[1].store(&faulty);
            let removed = base_backups::remove(&faulty, &[first.name]);
            let what = format!("{fault:?} at {fails_at}");
            let left = expect_intact(&good, &contents, &what);
            assert!(left >= usize::from(stored.is_ok()), "{what}");
            has_ended = calls.load(Ordering::Relaxed) <= fails_at;
            if has_ended {
                assert!(stored.is_ok() && removed.is_ok() && left == 1, "{what}");
                break;
            }
            // Names have seconds: another position gives the next one another name.
            age(root.path());
            let third = Content { start: contents[1].start + 0x1000, ..contents[1].clone() };
            third.store(&good).unwrap_or_else(|error| panic!("{what}: {error}"));
            base_backups::remove(&good, &[]).expect("swept");
            let all = [contents[0].clone(), contents[1].clone(), third];
            assert_eq!(expect_intact(&good, &all, &what), left + 1, "{what}");
        }
        assert!(has_ended, "{fault:?}: more calls than tried");
    }
}

/// While a backup is made, no piece is removed that it may refer to.
#[test]
fn a_backup_is_whole_although_others_are_removed_meanwhile() {
    let contents = [Content::new(1), Content::new(2), Content::new(3)];
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let first = contents[0].store(&archive).expect("stored");
    let writer = contents[1].begin(&archive).expect("begun");
    let removed = base_backups::remove(&archive, std::slice::from_ref(&first.name)).expect("removed");
    assert!(removed.postponed.expect("postponed").contains(writer.name()));
    let second = contents[1].write(writer).expect("stored");
    assert!(second.new_bytes < second.stored_bytes);
    base_backups::remove(&archive, &[]).expect("swept");
    assert_eq!(expect_intact(&archive, &contents, "the second"), 1);

    // Removed before the backup starts: nothing of it is referred to.
    base_backups::remove(&archive, &[second.name]).expect("removed");
    let third = contents[2].store(&archive).expect("stored");
    assert_eq!(third.new_bytes, third.stored_bytes);
    assert_eq!(expect_intact(&archive, &contents, "the third"), 1);
}

/// A writer that counted as killed does not complete its backup, and neither does one whose pieces
/// are gone.
#[test]
fn a_backup_whose_objects_were_removed_is_not_completed() {
    let contents = [Content::new(1), Content::new(2)];
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let first = contents[0].store(&archive).expect("stored");
    let writer = contents[1].begin(&archive).expect("begun");
    age(root.path());
    let removed = base_backups::remove(&archive, &[]).expect("swept");
    assert!(removed.postponed.is_none() && removed.objects == 1, "{removed:?}");
    let error = contents[1].write(writer).expect_err("removed");
    assert!(
        matches!(&error, BaseBackupError::Removed { object, .. } if object.ends_with("started.json")),
        "{error}"
    );
    assert_eq!(expect_intact(&archive, &contents, "the first"), 1);

    let writer = contents[1].begin(&archive).expect("begun");
    let is_piece = |key: &String| key.contains(&first.name) && key.len() > 90;
    let pieces = objects(root.path()).into_iter().filter(is_piece);
    pieces.for_each(|key| fs::remove_file(root.path().join("archive").join(key)).expect("removed"));
    let error = contents[1].write(writer).expect_err("removed");
    assert!(matches!(error, BaseBackupError::Removed { .. }), "{error}");
}

#[test]
fn files_that_differ_from_the_manifest_are_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let content = Content::new(1);
    for change in [
        |content: &mut Content| drop(content.files.remove("base/1/7")),
        |content: &mut Content| drop(content.files.insert("base/1/new".into(), Vec::new())),
        |content: &mut Content| content.files.get_mut("base/1/7").expect("a file")[3] ^= 1,
        |content: &mut Content| content.files.get_mut("base/1/7").expect("a file").push(0),
    ] {
        let mut other = content.clone();
        change(&mut other);
        other.start += 0x2000;
        let mut writer = other.begin(&archive).expect("begun");
        writer.start_archive(None).expect("started");
        writer.add(&other.tar()).expect("added");
        let error = writer.finish(content.manifest().as_bytes()).expect_err("refused");
        assert!(matches!(&error, BaseBackupError::Manifest(_)), "{error}");
        assert_eq!(expect_intact(&archive, &[], "nothing"), 0);
        fs::remove_dir_all(root.path().join("archive/base")).expect("removed");
    }
    let mut writer = content.begin(&archive).expect("begun");
    writer.start_archive(None).expect("started");
    writer.add(&content.tar()[..10_000]).expect("added");
    assert!(matches!(writer.finish(content.manifest().as_bytes()), Err(BaseBackupError::Content(_))));
}

#[test]
fn each_damaged_object_is_named_and_nothing_of_it_is_read() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let content = Content::new(1);
    let backup = content.store(&archive).expect("stored");
    for name in objects(root.path()).into_iter().filter(|key| !key.ends_with("started.json")) {
        let path = root.path().join("archive").join(&name);
        let whole = fs::read(&path).expect("an object");
        for change in [
            |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2),
            |bytes: &mut Vec<u8>| {
                let at = bytes.len() / 3;
                bytes[at] ^= 4;
            },
        ] {
            let mut damaged = whole.clone();
            change(&mut damaged);
            fs::write(&path, damaged).expect("written");
            let verified = walden_archive::verify::verify(
                &archive,
                walden_archive::verify::VerifyOptions::default(),
                &|_, _| {},
            )
            .expect("verified");
            // A label in backup.json may have another letter.
            if !name.ends_with("backup.json") || !verified.damaged.is_empty() {
                assert!(verified.damaged.iter().any(|it| it.object.contains(&name)), "{name}: {verified:?}");
            }
            if let Ok(bytes) = read(&archive, &backup) {
                assert!(bytes == content.tar(), "{name}");
            }
            fs::write(&path, &whole).expect("written");
        }
    }
    assert_eq!(expect_intact(&archive, &[content], "repaired"), 1);
}

/// A copy has the backups, and what `prune` removed there does not come back.
/// The content of a large file is read from an existing one if it is the same there, and only then.
#[test]
fn content_that_a_folder_has_is_not_fetched() {
    let root = tempfile::tempdir().expect("a folder");
    let existing = tempfile::tempdir().expect("a folder");
    let (archive, content) = (archive(root.path()), Content::new(1));
    let backup = content.store(&archive).expect("a backup");
    let (large, file) = (&content.files["base/1/16384"], existing.path().join("base/1/16384"));
    fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    let hash = blake3::hash(large).to_hex();
    let key = objects(root.path()).into_iter().find(|key| key.contains(hash.as_str())).expect("a piece");
    let piece = fs::read(root.path().join("archive").join(&key)).expect("a piece");
    let tar = content.tar();
    let mut other = large.clone();
    other[4 << 20] ^= 1;
    let longer = [large.as_slice(), b"more"].concat();
    // Whatever the folder has, the content is that of the backup.
    for (found, is_same) in [
        (Some(large), true),
        (Some(&longer), true),
        (Some(&other), false),
        (Some(&Vec::new()), false),
        (None, false),
    ] {
        match found {
            Some(found) => fs::write(&file, found).expect("a file"),
            None => fs::remove_file(&file).expect("a file"),
        }
        fs::write(root.path().join("archive").join(&key), &piece).expect("a piece");
        assert!(read_over(&archive, &backup, Some(existing.path())) == Ok(tar.clone()));
        fs::remove_file(root.path().join("archive").join(&key)).expect("a piece");
        let without = read_over(&archive, &backup, Some(existing.path()));
        assert!(if is_same { without == Ok(tar.clone()) } else { without.is_err() }, "{is_same}");
    }
    // A link is not followed.
    fs::write(existing.path().join("elsewhere"), large).expect("a file");
    std::os::unix::fs::symlink(existing.path().join("elsewhere"), &file).expect("a link");
    assert!(read_over(&archive, &backup, Some(existing.path())).is_err());
}

#[test]
fn backups_are_copied_once() {
    let contents = [Content::new(1), Content::new(2), Content::new(3)];
    let (root, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (source, target) = (archive(root.path()), archive(other.path()));
    let first = contents[0].store(&source).expect("stored");
    contents[1].store(&source).expect("stored");
    let copy = |all| base_backups::copy(std::slice::from_ref(&source), &target, 2, all).expect("copied");
    let copied = copy(false);
    assert!(copied.copied == 2 && copied.is_complete(), "{copied:?}");
    assert_eq!(expect_intact(&target, &contents, "copies"), 2);
    base_backups::remove(&target, &[first.name]).expect("removed");
    contents[2].store(&source).expect("stored");
    assert_eq!(copy(false).copied, 1);
    assert_eq!(expect_intact(&target, &contents, "copies"), 2);
    assert_eq!(copy(true).copied, 1);
    assert_eq!(expect_intact(&target, &contents, "copies"), 3);
    assert_eq!(copy(true).objects, 0);
    // A missing piece of a backup that the target has is copied, too.
    let keys = objects(other.path());
    let piece = keys.iter().find(|key| key.len() > 90).expect("a piece");
    fs::remove_file(other.path().join("archive").join(piece)).expect("removed");
    assert_eq!(copy(false).objects, 1);
    assert_eq!(expect_intact(&target, &contents, "mended"), 3);
}

/// The files of a server that are read one by one.
fn layout_of(content: &Content) -> Layout {
    let small = ["PG_VERSION", "backup_label", "global/pg_control"];
    let listed = content.files.iter().filter(|(path, _)| !small.contains(&path.as_str()));
    let listed = listed.map(|(path, bytes)| ListedFile {
        path: path.into(),
        bytes: bytes.len() as u64,
        modified: 7,
        is_folder: false,
    });
    Layout::new(vec![ListedArchive { tablespace: None, files: listed.collect() }], 0o600).expect("a layout")
}

fn begin_files(content: &Content, archive: &Archive) -> Result<FileWriter, BaseBackupError> {
    let system = archive.identity()?.system_identifier.parse().expect("a number");
    let new = NewBackup {
        label: "by files".to_owned(),
        server_version: "18.6".to_owned(),
        system_identifier: system,
        start: Lsn(content.start),
    };
    FileWriter::begin(archive, new, 1, layout_of(content))
}

/// Stores parts, up to this number. Returns how many were new, unchanged and continued.
fn store_parts(writer: &FileWriter, content: &Content, parts: usize) -> Result<[usize; 3], BaseBackupError> {
    let mut counts = [0; 3];
    for part in 0..writer.layout().parts().min(parts) {
        let read = |range: &FileRange| {
            let file = content.files.get(range.path.to_str().expect("a path"))?;
            let from = (range.offset as usize).min(file.len());
            Some(file[from..(from + range.bytes as usize).min(file.len())].to_vec())
        };
        let contents: Vec<Option<Vec<u8>>> = writer.layout().ranges(part).iter().map(read).collect();
        let sums: Option<Vec<[u8; 32]>> =
            contents.iter().map(|it| Some(Sha256::digest(it.as_ref()?).into())).collect();
        let known =
            sums.filter(|_| writer.is_known(part, true)).and_then(|sums| writer.take_over(part, &sums));
        let contents =
            contents.into_iter().map(|it| Some(RangeContent { bytes: it?, sha256: None })).collect();
        let stored = known.map_or_else(|| writer.store(part, contents, true), Ok)?;
        counts[match stored {
            StoredPart::Unchanged => 1,
            StoredPart::Continued => 2,
            _ => 0,
        }] += 1;
    }
    writer.note_all()?;
    Ok(counts)
}

fn finish_files(writer: FileWriter, content: &Content) -> Result<StoredBackup, BaseBackupError> {
    let small =
        |path: &str| SmallFile { path: path.to_owned(), content: content.files[path].clone(), modified: 7 };
    writer.finish(BackupEnd {
        timeline: 1,
        end: Lsn(content.start + 0x80),
        tablespaces: BTreeSet::new(),
        first: vec![small("backup_label"), small("PG_VERSION")],
        control: small("global/pg_control"),
    })
}

/// Reads the files of a backup, and compares them with its manifest.
fn read_files(archive: &Archive, backup: &StoredBackup) -> BTreeMap<String, Vec<u8>> {
    let opened = base_backups::open(archive, &[], backup, 2).expect("opened");
    let mut tar = tar::Archive::new(opened.streams.open(None, None).expect("a stream"));
    let mut sums = FileSums::default();
    let mut files = BTreeMap::new();
    for entry in tar.entries().expect("entries") {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a path").into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("content");
        sums.start(path.clone());
        sums.add(&path, &bytes);
        files.insert(path.to_str().expect("a path").to_owned(), bytes);
    }
    Manifest::<ManifestFiles>::read(opened.manifest.as_slice())
        .expect("a manifest")
        .compare(&sums)
        .expect("equal");
    files
}

/// A file that is removed after it was listed is left out, and one that becomes shorter has zeros.
#[test]
fn files_that_change_while_they_are_read_are_stored() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let mut content = Content::new(1);
    content.files.insert("base/1/gone_large".to_owned(), vec![3; 20 << 20]);
    content.files.insert("base/1/empty".to_owned(), Vec::new());
    let writer = begin_files(&content, &archive).expect("begun");
    let mut later = content.clone();
    for path in ["base/1/gone_large", "base/1/17"] {
        later.files.remove(path);
    }
    for path in ["base/1/16384", "base/1/18"] {
        let file = later.files.get_mut(path).expect("a file");
        file.truncate(file.len() - 5000);
    }
    store_parts(&writer, &later, usize::MAX).expect("stored");
    let backup = finish_files(writer, &later).expect("stored");
    for path in ["base/1/16384", "base/1/18"] {
        let file = later.files.get_mut(path).expect("a file");
        file.resize(file.len() + 5000, 0);
    }
    assert!(read_files(&archive, &backup) == later.files);
    assert_eq!(backup.files, later.files.len() as u64);
}

/// Whatever fails, complete backups are whole, and the next one continues.
#[test]
fn files_are_stored_although_the_store_fails() {
    let (first, second) = (Content::new(1), Content::new(2));
    let mut has_continued = false;
    for fault in [Decision::Fail, Decision::FailAfter] {
        for fails_at in 0.. {
            let root = tempfile::tempdir().expect("a folder");
            let good = archive(root.path());
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&calls);
            let place = root.path().join("archive");
            let faulty = Archive::new(Box::new(Watched::deciding(&place, move |call, _| {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                if call != "discard" && number == fails_at { fault } else { Decision::Pass }
            })));
            let stored = begin_files(&first, &faulty).and_then(|writer| {
                store_parts(&writer, &first, 2)?;
                store_parts(&writer, &first, usize::MAX)?;
                finish_files(writer, &first)
            });
            let what = format!("{fault:?} at {fails_at}");
            let writer = begin_files(&second, &good).unwrap_or_else(|error| panic!("{what}: {error}"));
            let [new, unchanged, continued] = store_parts(&writer, &second, usize::MAX).expect("stored");
            has_continued |= continued > 0;
            let parts = writer.layout().parts();
            assert!(new + unchanged + continued == parts && (stored.is_err() || unchanged > 0), "{what}");
            let backup = finish_files(writer, &second).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(read_files(&good, &backup) == second.files, "{what}");
            let inventory = Inventory::read(&good).expect("an inventory");
            assert!(inventory.unreadable.is_empty() && inventory.unknown.is_empty(), "{what}: {inventory:?}");
            for backup in inventory.backups.iter().filter(|it| it.start().1 == Lsn(first.start)) {
                assert!(read_files(&good, backup) == first.files, "{what}");
            }
            if calls.load(Ordering::Relaxed) <= fails_at {
                assert!(stored.is_ok(), "{what}");
                break;
            }
        }
    }
    assert!(has_continued);
}

/// The objects of a run that has ended are removed by the next one, once nothing can come from it any more.
#[test]
fn what_an_ended_run_has_left_is_removed() {
    let (first, second) = (Content::new(1), Content::new(2));
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let ended = begin_files(&first, &archive).expect("begun");
    store_parts(&ended, &first, usize::MAX).expect("stored");
    let ended_name = ended.name().to_owned();
    let writer = begin_files(&second, &archive).expect("begun");
    let [_, _, continued] = store_parts(&writer, &second, usize::MAX).expect("stored");
    assert!(continued > 0);
    // This process still exists, and so may the first run.
    finish_files(writer, &second).expect("stored");
    let of_ended = || objects(root.path()).into_iter().filter(|key| key.contains(&ended_name)).count();
    assert!(of_ended() > continued, "{:?}", objects(root.path()));
    age(root.path());
    let third = Content { start: second.start + 0x1000, ..second.clone() };
    let writer = begin_files(&third, &archive).expect("begun");
    store_parts(&writer, &third, usize::MAX).expect("stored");
    let backup = finish_files(writer, &third).expect("stored");
    assert!(read_files(&archive, &backup) == third.files);
    let left = objects(root.path());
    assert!(
        !left.iter().any(|key| key.contains("progress") || key.contains(&format!("{ended_name}/started"))),
        "{left:?}"
    );
    // A run that was not killed does not complete a backup that has lost its objects.
    let error = finish_files(ended, &first).expect_err("removed");
    assert!(matches!(error, BaseBackupError::Removed { .. }), "{error}");
}
