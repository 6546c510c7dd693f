//! A client with the right to write changes objects. `verify` must report each change, and `get` must never
//! return other bytes than those that were archived.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use walden_archive::archive::Archive;
use walden_archive::encryption::KeyOptions;
use walden_archive::get::{GetError, get};
use walden_archive::name::ArchivedFile;
use walden_archive::pack::{PackOptions, pack};
use walden_archive::store::Folder;
use walden_archive::verify::{VerifyOptions, verify};
use walden_codec::container::{FileForm, Meta, WriteOptions, Writer};

use crate::faults::copy;
use crate::material::{
    archive, archive_of, archive_with, encrypt, expect_all, log, log_of_cluster, log_with_other_time, pg_wal,
    push_all, user,
};

/// An archive of segments 0x20 to 0x27, the first four in two packs, with a backup history file and a
/// timeline's history.
struct Site {
    root: tempfile::TempDir,
    files: Vec<(String, Vec<u8>)>,
    server: KeyOptions,
    reader: KeyOptions,
}

impl Site {
    fn new(is_encrypted: bool) -> Site {
        let root = tempfile::tempdir().expect("a folder");
        let mut files = log(1, 0x20, 8);
        for (number, name) in [(0x21, "one"), (0x25, "two")] {
            files.push(backup(number, name));
        }
        files.push(("00000002.history".to_owned(), b"1\t0/2800000\tno reason\n".to_vec()));
        let (server, reader) = match is_encrypted {
            true => encrypt(root.path(), &user(root.path(), "user")),
            false => (KeyOptions::default(), KeyOptions::default()),
        };
        if !is_encrypted {
            archive(root.path());
        }
        let wal = pg_wal(root.path(), &files);
        push_all(&archive_with(root.path(), &server), &wal, &files);
        let reading = archive_with(root.path(), &reader);
        let options = PackOptions::default().segments(Some(2)).keep(4);
        let packed = pack(&reading, &options, &|_, _| {}).expect("packed");
        assert!(packed.is_good() && packed.packs.len() == 2, "{packed:?}");
        Site { root, files, server, reader }
    }

    /// Returns a copy of the archive in a new folder.
    fn copy(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        copy(&self.root.path().join("archive"), &folder.path().join("archive"));
        folder
    }

    fn open(&self, root: &Path) -> Archive {
        archive_with(root, &self.reader)
    }

    /// Changes a copy of the archive. Expects that `verify` reports it, and that files are returned unchanged
    /// or not at all.
    fn expect_reported(&self, what: &str, change: impl FnOnce(&Path)) {
        let folder = self.expect_found(what, change);
        self.expect_nothing_wrong(folder.path(), what);
    }

    /// Changes a copy of the archive, and expects that `verify` reports it. Returns the folder of the copy.
    fn expect_found(&self, what: &str, change: impl FnOnce(&Path)) -> tempfile::TempDir {
        let folder = self.copy();
        change(&folder.path().join("archive"));
        let verified = verify(&self.open(folder.path()), VerifyOptions::default(), &|_, _| {});
        assert!(!verified.is_ok_and(|found| found.is_good()), "{what}");
        folder
    }

    fn expect_nothing_wrong(&self, root: &Path, what: &str) {
        let target = root.join("target");
        for (name, original) in &self.files {
            let _ = fs::remove_file(&target);
            let file = ArchivedFile::parse(name).expect("a name");
            if get(&self.open(root), file, &target).is_ok() {
                assert!(fs::read(&target).expect("a file") == *original, "{what}: {name} has other content");
            }
        }
    }
}

fn backup(number: u64, label: &str) -> (String, Vec<u8>) {
    let segment = format!("00000001{number:016X}");
    let lsn = |offset: u64| format!("0/{:X}", (number << 20) + offset);
    let text = format!(
        "START WAL LOCATION: {} (file {segment})\nSTOP WAL LOCATION: {} (file {segment})\nLABEL: {label}\n",
        lsn(0x28),
        lsn(0x100)
    );
    (format!("{segment}.00000028.backup"), text.into_bytes())
}

/// Returns the files below a folder of the archive, in order.
fn objects(archive: &Path, below: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => walk(&path, found),
                false => found.push(path),
            }
        }
    }
    let mut found = Vec::new();
    walk(&archive.join(below), &mut found);
    found.sort();
    found
}

/// Returns two objects of the same kind, by the part of their names that identifies it.
fn two(archive: &Path, below: &str, kind: &str) -> (PathBuf, PathBuf) {
    let of_kind = |path: &PathBuf| path.to_string_lossy().contains(kind);
    let mut found = objects(archive, below).into_iter().filter(of_kind);
    (found.next().expect("an object"), found.next().expect("another object"))
}

/// Writes a file, also a read-only one.
fn overwrite(path: &Path, content: impl AsRef<[u8]>) {
    let _ = fs::remove_file(path);
    fs::write(path, content).expect("a file");
}

fn tampering_is_reported(is_encrypted: bool) {
    let site = Site::new(is_encrypted);
    let verified =
        verify(&site.open(site.root.path()), VerifyOptions::default(), &|_, _| {}).expect("verified");
    assert!(verified.is_good(), "{verified:?}");
    expect_all(&site.open(site.root.path()), &site.files, "unchanged");
    for (below, kind) in [("wal", ".wlz"), ("wal", ".wpk"), ("backup", ".backup")] {
        site.expect_reported(&format!("{kind} replaced by another one"), |archive| {
            let (one, other) = two(archive, below, kind);
            overwrite(&one, fs::read(other).expect("an object"));
        });
        site.expect_reported(&format!("{kind} swapped"), |archive| {
            let (one, other) = two(archive, below, kind);
            let contents = [&other, &one].map(|path| fs::read(path).expect("an object"));
            overwrite(&one, &contents[0]);
            overwrite(&other, &contents[1]);
        });
        let bytes = {
            let (one, _) = two(&site.root.path().join("archive"), below, kind);
            fs::read(one).expect("an object").len()
        };
        for cut in [0, 1, bytes / 2, bytes - 1] {
            site.expect_reported(&format!("{kind} cut at {cut}"), |archive| {
                let (one, _) = two(archive, below, kind);
                let content = fs::read(&one).expect("an object");
                overwrite(&one, &content[..cut]);
            });
        }
        for at in [0, bytes / 3, bytes / 2, bytes - 1] {
            site.expect_reported(&format!("{kind} changed at {at}"), |archive| {
                let (one, _) = two(archive, below, kind);
                let mut content = fs::read(&one).expect("an object");
                content[at] ^= 1;
                overwrite(&one, content);
            });
        }
    }
    site.expect_reported("a pack replaced by a segment's object", |archive| {
        let (pack, _) = two(archive, "wal", ".wpk");
        let (segment, _) = two(archive, "wal", ".wlz");
        overwrite(&pack, fs::read(segment).expect("an object"));
    });
    site.expect_reported("a segment removed", |archive| {
        let (segment, _) = two(archive, "wal", ".wlz");
        fs::remove_file(segment).expect("removed");
    });
    site.expect_reported("a backup's first segments removed", |archive| {
        let (pack, _) = two(archive, "wal", ".wpk");
        fs::remove_file(pack).expect("removed");
    });
    // Files of another archive, with the same names.
    let other = Site::new(is_encrypted);
    let other_cluster = tempfile::tempdir().expect("a folder");
    let foreign: Vec<(String, Vec<u8>)> = log(1, 0x20, 8)
        .into_iter()
        .map(|(name, mut bytes)| {
            // The system identifier in the first page.
            bytes[24] ^= 1;
            (name, bytes)
        })
        .collect();
    archive_of(other_cluster.path(), &foreign);
    site.expect_reported("archive.json of another cluster", |archive| {
        let path = other_cluster.path().join("archive/archive.json");
        let own =
            objects(archive, "").into_iter().find(|path| path.to_string_lossy().contains("/archive.json"));
        overwrite(&own.expect("an identity"), fs::read(path).expect("an identity"));
    });
    // An intact object of this name, whose segment PostgreSQL refuses.
    site.expect_found("a segment of another cluster", |archive| {
        let (segment, _) = two(archive, "wal", ".wlz");
        let own_name = segment.file_name().expect("a name").to_string_lossy().into_owned();
        let name = own_name.trim_end_matches(".age");
        let found = objects(&other_cluster.path().join("archive"), "wal");
        let found = found.into_iter().find(|path| path.ends_with(name)).expect("the same segment");
        overwrite(&segment, fs::read(found).expect("an object"));
    });
    if is_encrypted {
        site.expect_reported("archive.json of an archive that is not encrypted", |archive| {
            let path = archive.join("archive.json");
            let text = fs::read_to_string(&path).expect("an identity");
            let mut identity: serde_json::Value = serde_json::from_str(&text).expect("an identity");
            identity.as_object_mut().expect("an object").remove("encryption").expect("a recipient");
            overwrite(&path, identity.to_string());
            // Also without a recipient in the configuration.
            let open = Archive::with_keys(
                Box::new(Folder::new(archive)),
                KeyOptions::default().identity(site.reader.identity.clone()),
            );
            let verified = verify(&open, VerifyOptions::default(), &|_, _| {}).expect("verified");
            assert!(
                verified.damaged.iter().any(|found| found.problem.contains("was replaced")),
                "{verified:?}"
            );
        });
        site.expect_reported("an object that is encrypted to another archive's key", |archive| {
            let (segment, _) = two(archive, "wal", ".wlz");
            let (same, _) = two(&other.root.path().join("archive"), "wal", ".wlz");
            overwrite(&segment, fs::read(same).expect("an object"));
        });
        site.expect_reported("keys of another archive", |archive| {
            for (own, other) in
                objects(archive, "keys").iter().zip(objects(&other.root.path().join("archive"), "keys"))
            {
                overwrite(own, fs::read(other).expect("keys"));
            }
        });
        site.expect_reported("keys removed", |archive| {
            fs::remove_dir_all(archive.join("keys")).expect("removed");
        });
    }
}

#[test]
fn tampering_with_an_archive_is_reported() {
    tampering_is_reported(false);
}

#[test]
fn tampering_with_an_encrypted_archive_is_reported() {
    tampering_is_reported(true);
}

/// Every client with write access can archive: encryption to a public key proves no origin. Only versions and
/// locks of the store show that an object was replaced by WAL that fits between its neighbors
/// (`docs/archive-reference.md`).
#[test]
fn wal_that_was_rewritten_consistently_is_that_of_a_server() {
    for is_encrypted in [false, true] {
        let site = Site::new(is_encrypted);
        let forged = log_with_other_time(1, 0x20, 8, 0x26).swap_remove(6);
        let original = &site.files[6];
        assert!(forged.0 == original.0 && forged.1 != original.1);
        let file = ArchivedFile::parse(&forged.0).expect("a name");
        let key = site.open(site.root.path()).stored_name(&file.key());
        fs::remove_file(site.root.path().join("archive").join(key)).expect("removed");
        let wal = pg_wal(site.root.path(), std::slice::from_ref(&forged));
        push_all(&archive_with(site.root.path(), &site.server), &wal, &[forged]);
        let verified =
            verify(&site.open(site.root.path()), VerifyOptions::default(), &|_, _| {}).expect("verified");
        assert!(verified.is_good(), "{verified:?}");
        // A segment that does not fit is reported.
        let alone = log(1, 0x26, 1);
        let folder = site.copy();
        let key = site.open(folder.path()).stored_name(&file.key());
        fs::remove_file(folder.path().join("archive").join(key)).expect("removed");
        let wal = pg_wal(folder.path(), &alone);
        push_all(&archive_with(folder.path(), &site.server), &wal, &alone);
        let verified =
            verify(&site.open(folder.path()), VerifyOptions::default(), &|_, _| {}).expect("verified");
        assert!(!verified.is_good(), "a segment without its neighbors' records");
    }
}

/// An object of another cluster, or of another position, was put under the name of a segment. It is intact,
/// and its own hash confirms it.
#[test]
fn get_refuses_a_segment_that_is_not_that_of_its_name_or_archive() {
    let root = tempfile::tempdir().expect("a folder");
    let own = log(1, 0x20, 4);
    let archive = archive_of(root.path(), &own);
    let foreign = log_of_cluster(4711, 0x20, 4);
    assert!(foreign.iter().zip(&own).all(|(other, own)| other.0 == own.0 && other.1 != own.1));
    let other_root = tempfile::tempdir().expect("a folder");
    let other = archive_of(other_root.path(), &foreign);
    let object =
        |root: &Path, name: &str| root.join("archive").join(ArchivedFile::parse(name).expect("a name").key());
    let refused = |name: &str, expected: &str| {
        let file = ArchivedFile::parse(name).expect("a name");
        let target = root.path().join("target");
        let error = get(&archive.afresh(), file, &target).expect_err("not its own");
        let text = walden_source::error_text(&error);
        assert!(text.contains(expected) && !target.exists(), "{text}");
        // A copy in another repository is used instead.
        assert!(matches!(&error, GetError::Archive { source, .. } if source.is_damage()), "{text}");
    };
    let (name, kept) = (&own[1].0, root.path().join("kept"));
    fs::copy(object(root.path(), name), &kept).expect("a copy");
    fs::copy(object(other_root.path(), name), object(root.path(), name)).expect("a copy");
    refused(name, "expected a segment of system identifier");
    // The WAL of another segment, timeline or nothing at all, under the right name.
    for (content, expected) in [
        (&own[2].1, "expected pages of"),
        (&log(2, 0x21, 1)[0].1, "of timeline 2"),
        (&log(1, 0x10, 1)[0].1, "a first page at 0/01000000"),
    ] {
        let mut writer = Writer::new(Vec::new(), WriteOptions::with_level(FileForm::Segment, 3));
        let meta = Meta { name: name.as_bytes().to_vec(), ..Meta::default() };
        writer.add(meta, false, &mut Cursor::new(content)).expect("a member");
        fs::write(object(root.path(), name), writer.finish().expect("an object")).expect("an object");
        refused(name, expected);
    }
    // In a pack.
    fs::copy(&kept, object(root.path(), name)).expect("a copy");
    for archive in [&archive, &other] {
        let packed = pack(archive, &PackOptions::default().segments(Some(2)).keep(2), &|_, _| {});
        assert_eq!(packed.expect("packed").packs.len(), 1);
    }
    expect_all(&archive, &own, "own pack");
    let pack_of = |root: &Path| {
        let mut packs = objects(&root.join("archive"), "wal").into_iter();
        packs.find(|path| path.extension().is_some_and(|end| end == "wpk")).expect("a pack")
    };
    fs::copy(pack_of(other_root.path()), pack_of(root.path())).expect("a copy");
    refused(name, "expected a segment of system identifier");
}
