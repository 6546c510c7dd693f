//! `archive.json` is rewritten only if it is lost.

use std::fs;
use std::path::Path;

use walden_archive::archive::{Archive, ArchiveError};
use walden_archive::encryption::KeyOptions;
use walden_archive::encryption::keys::Change;
use walden_archive::pack::{PackOptions, pack};
use walden_archive::push::{PushOptions, push};
use walden_archive::repair::{RepairError, Rewritten, copy_identity, rewrite_identity};
use walden_archive::store::{Cause, Folder};
use walden_archive::verify::{VerifyOptions, verify};

use crate::material::{
    archive, archive_of, archive_with, complete, encrypt, expect_all, log, pg_wal, push_all, user,
};

fn plain(root: &Path) -> Archive {
    Archive::new(Box::new(Folder::new(root.join("archive"))))
}

fn identity(root: &Path) -> std::path::PathBuf {
    root.join("archive/archive.json")
}

/// Removes `archive.json`, has it rewritten, and compares it with the original.
fn lose_and_repair(root: &Path, keys: &KeyOptions) -> Rewritten {
    let before = fs::read(identity(root)).expect("archive.json");
    fs::remove_file(identity(root)).expect("removed");
    let rewritten = rewrite_identity(&archive_with(root, keys)).expect("written");
    assert_eq!(fs::read(identity(root)).expect("archive.json"), before);
    let verified = verify(&archive_with(root, keys), VerifyOptions::default(), &|_, _| {});
    assert!(verified.expect("verified").is_good());
    rewritten
}

#[test]
fn it_is_what_it_was_before_it_was_lost() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 0x20, 12);
    let archive = archive_of(root.path(), &files);
    let keys = KeyOptions::default();
    let rewritten = lose_and_repair(root.path(), &keys);
    assert_eq!((rewritten.objects, rewritten.asked, rewritten.agreeing), (12, 12, 12));
    // Also rewrites the README, and reads from packs.
    fs::remove_file(root.path().join("archive/README.txt")).expect("removed");
    pack(&archive, &PackOptions::default().keep(2).segments(Some(4)), &|_, _| {}).expect("packed");
    assert!(lose_and_repair(root.path(), &keys).objects < 12);
    assert!(root.path().join("archive/README.txt").exists());
    let more = log(1, 0x2C, 1);
    push_all(&plain(root.path()), &pg_wal(root.path(), &more), &more);
    expect_all(&plain(root.path()), &[files, more].concat(), "after the repair");
}

#[test]
fn one_that_is_there_is_not_replaced() {
    let root = tempfile::tempdir().expect("a folder");
    archive_of(root.path(), &log(1, 0x20, 2));
    let repair = || rewrite_identity(&plain(root.path()));
    let expect_unchanged = |content: &[u8]| {
        assert_eq!(fs::read(identity(root.path())).expect("archive.json"), content);
    };
    let good = fs::read(identity(root.path())).expect("archive.json");
    assert!(matches!(repair(), Err(RepairError::NotLost { .. })));
    expect_unchanged(&good);
    for bad in
        [&b""[..], b"{", b"{\"walden_archive\": 99, \"system_identifier\": \"7\", \"segment_bytes\": 1}"]
    {
        fs::write(identity(root.path()), bad).expect("written");
        let error = repair().expect_err("it is there");
        assert!(matches!(error, RepairError::Damaged { .. }), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("move it out")));
        expect_unchanged(bad);
    }
    fs::remove_file(identity(root.path())).expect("removed");
    repair().expect("written");
    expect_unchanged(&good);
}

#[test]
fn a_place_without_segments_is_no_archive_to_repair() {
    let root = tempfile::tempdir().expect("a folder");
    let error = rewrite_identity(&plain(root.path())).expect_err("there is nothing");
    assert!(matches!(error, RepairError::Archive(ArchiveError::Missing(_))), "{error}");
    let empty = archive(root.path());
    let error = rewrite_identity(&empty).expect_err("nothing was lost");
    assert!(matches!(error, RepairError::Archive(ArchiveError::Empty(_))), "{error}");
    assert!(!identity(root.path()).exists());
}

/// As if objects had been copied from one archive to another.
#[test]
fn segments_of_several_clusters_are_named_and_nothing_is_written() {
    let (root, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    archive_of(root.path(), &log(1, 0x20, 3));
    let foreign = complete();
    archive_of(other.path(), &foreign);
    let folder = "archive/wal/00000001/00000000";
    let object = format!("{}.wlz", foreign[0].0);
    let copy = root.path().join(folder).join(&object);
    fs::copy(other.path().join(folder).join(&object), &copy).expect("a copy");
    fs::remove_file(identity(root.path())).expect("removed");
    let error = rewrite_identity(&plain(root.path())).expect_err("two clusters");
    let RepairError::Different { found, .. } = &error else { panic!("{error}") };
    assert!(found.contains("3 of cluster ") && found.contains("1 of cluster "), "{found}");
    assert!(found.contains(&object), "{found}");
    assert!(!identity(root.path()).exists());
    fs::remove_file(copy).expect("removed");
    // A damaged segment does not identify the cluster, but the others do.
    let damaged = root.path().join(folder).join("000000010000000000000021.wlz");
    fs::write(&damaged, b"damaged").expect("written");
    let rewritten = rewrite_identity(&plain(root.path())).expect("written");
    assert_eq!((rewritten.asked, rewritten.agreeing, rewritten.unreadable.len()), (3, 2, 1));
    // No segment identifies the cluster.
    fs::remove_file(identity(root.path())).expect("removed");
    for number in [0x20, 0x22] {
        fs::remove_file(root.path().join(folder).join(format!("0000000100000000000000{number:X}.wlz")))
            .expect("removed");
    }
    let error = rewrite_identity(&plain(root.path())).expect_err("no segment says it");
    assert!(matches!(error, RepairError::Silent { asked: 1, .. }), "{error}");
    assert!(!identity(root.path()).exists());
}

#[test]
fn an_encrypted_archive_stays_one_with_the_key_of_its_beginning() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 0x20, 3);
    let (server, reader) = encrypt(root.path(), &user(root.path(), "user"));
    push_all(&archive_with(root.path(), &server), &pg_wal(root.path(), &files), &files);
    let changed =
        archive_with(root.path(), &reader).encrypted().change_keys(&Change::Rotate).expect("rotated");
    let first = server.recipient.clone().expect("a recipient");
    assert_eq!(changed.statement.recipients.last(), Some(&first));
    let rewritten = lose_and_repair(root.path(), &reader);
    assert_eq!(rewritten.identity.encryption.map(|it| it.recipient), Some(first));
    assert_eq!(rewritten.agreeing, 3);
    // Without a private key, no segment identifies the cluster.
    fs::remove_file(identity(root.path())).expect("removed");
    let error = rewrite_identity(&archive_with(root.path(), &server)).expect_err("no private key");
    let RepairError::Archive(ArchiveError::Store(error)) = &error else { panic!("{error}") };
    assert_eq!(error.cause, Cause::Locked);
    // If its keys are lost, too, it must not become an unencrypted archive.
    let keys = root.path().join("archive/keys");
    fs::rename(&keys, root.path().join("keys")).expect("moved away");
    for options in [&KeyOptions::default(), &reader] {
        let error = rewrite_identity(&archive_with(root.path(), options)).expect_err("no keys");
        assert!(matches!(error, RepairError::NoKeys { .. }), "{error}");
        let pushed = push(
            &archive_with(root.path(), options),
            &root.path().join("pg_wal").join(&files[0].0),
            &PushOptions::default(),
        );
        assert!(pushed.asked.is_err());
    }
    assert!(!identity(root.path()).exists());
    fs::rename(root.path().join("keys"), &keys).expect("moved back");
    rewrite_identity(&archive_with(root.path(), &reader)).expect("written");
    expect_all(&archive_with(root.path(), &reader), &files, "after the repair");
}

/// If it had keys, all objects of an unencrypted archive would count as unknown.
#[test]
fn a_plain_archive_does_not_become_an_encrypted_one() {
    let (root, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    archive_of(root.path(), &log(1, 0x20, 2));
    let (_, reader) = encrypt(other.path(), &user(other.path(), "user"));
    fs::remove_file(identity(root.path())).expect("removed");
    fs::rename(other.path().join("archive/keys"), root.path().join("archive/keys")).expect("moved");
    let options = reader.recipient(None);
    let error = rewrite_identity(&archive_with(root.path(), &options)).expect_err("another archive's keys");
    assert!(matches!(error, RepairError::NotEncrypted { .. }), "{error}");
    assert!(!identity(root.path()).exists());
}

#[test]
fn it_is_written_again_from_another_copy() {
    let (root, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let files = log(1, 0x20, 3);
    archive_of(root.path(), &files);
    archive_of(other.path(), &files);
    let good = fs::read(identity(root.path())).expect("archive.json");
    let copy = || copy_identity(&plain(root.path()), &plain(other.path()));
    let content = || fs::read(identity(root.path())).expect("archive.json");
    assert_eq!(copy().expect("intact"), None);
    // A flipped digit of the system identifier, which all segments contradict.
    let digit = good.windows(3).position(|bytes| bytes == b": \"").expect("a text") + 3;
    let mut flipped = good.clone();
    flipped[digit] = if flipped[digit] == b'9' { b'8' } else { flipped[digit] + 1 };
    for bad in [None, Some(&b""[..]), Some(b"{"), Some(&flipped)] {
        match bad {
            Some(bad) => fs::write(identity(root.path()), bad).expect("written"),
            None => fs::remove_file(identity(root.path())).expect("removed"),
        }
        let rewritten = copy().expect("written").expect("it was damaged");
        assert_eq!((rewritten.asked, rewritten.agreeing), (3, 3));
        assert_eq!(content(), good);
    }
    // One of a later version is not damaged.
    let later = b"{\"walden_archive\": 99, \"system_identifier\": \"7\", \"segment_bytes\": 1}";
    fs::write(identity(root.path()), later).expect("written");
    let error = copy().expect_err("a later version");
    assert!(matches!(error, RepairError::Damaged { .. }), "{error}");
    assert_eq!(content(), later);
    // The other archive is another cluster's: the damaged one is put back.
    let foreign = tempfile::tempdir().expect("a folder");
    archive_of(foreign.path(), &complete());
    fs::write(identity(root.path()), b"{").expect("written");
    let error = copy_identity(&plain(root.path()), &plain(foreign.path())).expect_err("two clusters");
    let RepairError::Different { found, .. } = &error else { panic!("{error}") };
    assert!(found.contains("archive.json of the other archive"), "{found}");
    assert_eq!(content(), b"{");
    fs::write(identity(root.path()), &good).expect("written");
    assert_eq!(copy_identity(&plain(root.path()), &plain(foreign.path())).expect("no copies"), None);
    assert_eq!(content(), good);
    // A place without segments may be a file system that is not mounted.
    let nowhere = tempfile::tempdir().expect("a folder");
    assert!(copy_identity(&plain(nowhere.path()), &plain(other.path())).is_err());
    assert!(!identity(nowhere.path()).exists());
}
