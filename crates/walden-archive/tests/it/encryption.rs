//! Encrypted archives: write access, read access, and refusals.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use walden_archive::archive::{Archive, ArchiveError};
use walden_archive::encryption::{Encrypted, KeyOptions, keys};
use walden_archive::export::{Plan, Selection, export};
use walden_archive::get::{GetError, get};
use walden_archive::list::{ListOptions, list};
use walden_archive::name::ArchivedFile;
use walden_archive::pack::{PackOptions, pack};
use walden_archive::probe::probe;
use walden_archive::push::{PushError, PushOptions, push};
use walden_archive::status::holdings;
use walden_archive::store::{Cause, Created, FileHash, Folder, Store, StoreError};
use walden_archive::verified::{self, LastRun};
use walden_archive::verify::{self, VerifyOptions, verify};

use crate::material::{
    User, archive, archive_with, complete, encrypt, expect_all, log, pg_wal, push_all, stored, user,
};
use crate::watched::Watched;

/// An encrypted archive of two segments, with the originals and the keys.
struct Setting {
    root: tempfile::TempDir,
    originals: Vec<(String, Vec<u8>)>,
    user: User,
    server: KeyOptions,
    reader: KeyOptions,
}

fn setting() -> Setting {
    let root = tempfile::tempdir().expect("a folder");
    let originals = complete();
    let wal = pg_wal(root.path(), &originals);
    let user = user(root.path(), "user");
    let (server, reader) = encrypt(root.path(), &user);
    let batch =
        push(&archive_with(root.path(), &server), &wal.join(&originals[0].0), &PushOptions::default());
    assert!(batch.asked.is_ok() && batch.others.iter().all(Result::is_ok), "{batch:?}");
    Setting { root, originals, user, server, reader }
}

impl Setting {
    fn path(&self) -> &Path {
        self.root.path()
    }

    fn file(&self, at: usize) -> ArchivedFile {
        ArchivedFile::parse(&self.originals[at].0).expect("a name")
    }

    fn object(&self, at: usize) -> std::path::PathBuf {
        self.path().join("archive").join(format!("{}.age", self.file(at).key()))
    }

    /// Gets a segment, and, if it is returned, compares its bytes.
    fn get(&self, keys: &KeyOptions, at: usize) -> Result<(), GetError> {
        let target = self.path().join("target");
        let _ = fs::remove_file(&target);
        let got = get(&archive_with(self.path(), keys), self.file(at), &target);
        assert_eq!(target.exists(), got.is_ok(), "{got:?}");
        if got.is_ok() {
            assert!(fs::read(&target).expect("a file") == self.originals[at].1);
        }
        got
    }

    fn store(&self, keys: &KeyOptions) -> Encrypted {
        Encrypted::new(Box::new(Folder::new(self.path().join("archive"))), keys.clone())
    }
}

/// Returns the store's reason for an error.
fn cause(got: Result<(), GetError>) -> Cause {
    match got {
        Err(GetError::Archive { source: ArchiveError::Store(StoreError { cause, .. }), .. }) => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_without_secrets_archives_and_a_user_reads() {
    let set = setting();
    let stored = fs::read(set.object(0)).expect("an object");
    assert!(stored.starts_with(b"age-encryption.org/v1\n"));
    for at in 0..2 {
        set.get(&set.reader, at).expect("in the archive");
    }
    let reader = archive_with(set.path(), &set.reader);
    let listing = list(&reader, ListOptions::default()).expect("a list");
    let timeline = &listing.timelines[0];
    assert_eq!(
        (timeline.segments, timeline.gaps.len(), listing.encrypted, listing.locked),
        (2, 0, true, false)
    );
    assert!(timeline.last_commit_time > timeline.first_commit_time);
    assert!(listing.unknown.is_empty(), "{:?}", listing.unknown);
    for fast in [false, true] {
        let options = VerifyOptions::default().fast(fast);
        let verified = verify(&reader, options, &|_, _| {}).expect("verified");
        assert!(verified.is_good(), "{verified:?}");
        assert_eq!(verified.segments, 2);
    }
    // Names, sizes and gaps are not secret.
    let listing = list(&archive_with(set.path(), &set.server), ListOptions::default()).expect("a list");
    assert_eq!((listing.timelines[0].segments, listing.locked), (2, true));
    assert_eq!(listing.timelines[0].last_commit_time, None);
}

#[test]
fn without_a_secret_the_same_content_is_known_again_and_another_one_is_refused() {
    let set = setting();
    let wal = set.path().join("pg_wal");
    let path = wal.join(&set.originals[0].0);
    let server = || archive_with(set.path(), &set.server);
    // At another level, the object would differ.
    let options = PushOptions::default().level(1).accept_damaged(true);
    assert!(push(&server(), &path, &options).asked.expect("archived").was_there);
    let mut other = set.originals[0].1.clone();
    let last = other.len() - 1;
    other[last] ^= 1;
    fs::write(&path, &other).expect("a segment");
    // The archived segment has zeros after the switch at its end, so the offered one can be compared without
    // a private key.
    let pushed = push(&server(), &path, &options).asked.expect("the same WAL");
    assert!(pushed.was_there && pushed.warnings[0].contains("the same WAL up to"), "{pushed:?}");
    let used = set.originals[0].1.iter().rposition(|&byte| byte != 0).expect("bytes");
    for at in [60, used] {
        let mut other = other.clone();
        other[at] ^= 1;
        fs::write(&path, other).expect("a segment");
        let asked = push(&server(), &path, &options).asked;
        let is_refused =
            matches!(asked, Err(PushError::Archive { source: ArchiveError::Conflict { .. }, .. }));
        assert!(is_refused, "byte {at}: {asked:?}");
    }
    // In the opposite case, there is nothing to compare with.
    let root = tempfile::tempdir().expect("a folder");
    let (server_keys, reader_keys) = encrypt(root.path(), &user(root.path(), "user"));
    let server = || archive_with(root.path(), &server_keys);
    let (name, original) = &set.originals[0];
    push_all(&server(), &pg_wal(root.path(), &[(name.clone(), other)]), &set.originals[..1]);
    let path = root.path().join("pg_wal").join(name);
    fs::write(&path, original).expect("a segment");
    match push(&server(), &path, &options).asked {
        Err(error @ PushError::Archive { source: ArchiveError::Conflict { .. }, .. }) => {
            assert!(error.hint().is_some_and(|hint| hint.contains("to a private key")), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    // With a private key, the WAL turns out to be the same: the segment ends with a switch.
    let reader = archive_with(root.path(), &reader_keys);
    let pushed = push(&reader, &path, &options).asked.expect("the same WAL");
    assert!(pushed.was_there && pushed.warnings.len() == 1, "{pushed:?}");
    let server = || archive_with(set.path(), &set.server);
    for (text, is_accepted) in
        [("1\t0/3000000\tx\n", true), ("1\t0/3000000\tx\n", true), ("1\t0/4000000\tx\n", false)]
    {
        fs::write(wal.join("00000002.history"), text).expect("a history");
        let asked = push(&server(), &wal.join("00000002.history"), &options).asked;
        assert_eq!(asked.is_ok(), is_accepted, "{asked:?}");
    }
    set.get(&set.reader, 0).expect("what was archived first");
}

/// The server removes an acknowledged file, so its archived copy must be intact, as far as it can be read.
#[test]
fn with_a_private_key_a_damaged_object_is_not_acknowledged() {
    let set = setting();
    let path = set.path().join("pg_wal").join(&set.originals[0].0);
    let options = PushOptions::default().look_ahead(0);
    let push_again = |keys: &KeyOptions| push(&archive_with(set.path(), keys), &path, &options).asked;
    let good = fs::read(set.object(0)).expect("an object");
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    fs::write(set.object(0), bad).expect("an object");
    let error = push_again(&set.reader).expect_err("nothing is acknowledged");
    assert_eq!(error.cause(), "damaged_object", "{error:?}");
    fs::write(set.object(0), good).expect("an object");
    assert!(push_again(&set.reader).expect("archived").was_there);
    // A private key that decrypts nothing counts as no key.
    let stranger = user(set.path(), "stranger");
    let keys = set.server.clone().identity(Some(stranger.identity));
    assert!(push_again(&keys).expect("archived").was_there);
}

#[test]
fn without_a_key_and_with_a_wrong_one_it_is_said_what_to_do() {
    let set = setting();
    assert_eq!(cause(set.get(&set.server, 0)), Cause::Locked);
    let stranger = user(set.path(), "stranger");
    let keys = |identity: &Path| set.server.clone().identity(Some(identity.to_owned()));
    let got = set.get(&keys(&stranger.identity), 0);
    assert!(got.as_ref().is_err_and(|error| error.hint().is_some_and(|hint| hint.contains("key list"))));
    assert_eq!(cause(got), Cause::WrongIdentity);
    let no_key = set.path().join("no.key");
    let plain = "chmod 600 restore.key";
    for (content, expected, advice) in [
        ("", Cause::NoIdentity, "age-keygen"),
        ("# nothing\n", Cause::NoIdentity, "age-keygen"),
        (set.user.recipient.as_str(), Cause::NoIdentity, "the public key (age1...) decrypts nothing"),
        ("AGE-SECRET-KEY-1XYZ\n", Cause::NoIdentity, "age-keygen"),
        ("age-encryption.org/v1\n-> scrypt", Cause::ProtectedIdentity, plain),
        ("-----BEGIN AGE ENCRYPTED FILE-----\n", Cause::ProtectedIdentity, plain),
    ] {
        fs::write(&no_key, content).expect("a file");
        let got = set.get(&keys(&no_key), 0);
        let text = format!("{got:?}");
        assert!(!text.contains("1XYZ"), "a secret in a message: {text}");
        let hint = got.as_ref().err().and_then(GetError::hint).unwrap_or_default();
        assert!(hint.contains(advice), "{content:?}: {hint}");
        assert_eq!(cause(got), expected, "{content:?}");
        // Archiving needs no private key.
        let options = PushOptions::default().look_ahead(0);
        let path = set.path().join("pg_wal").join(&set.originals[0].0);
        let pushed = push(&archive_with(set.path(), &keys(&no_key)), &path, &options).asked;
        assert!(pushed.expect("archived").was_there, "{content:?}");
    }
    for unreadable in ["nowhere.key", "pg_wal"] {
        let got = set.get(&keys(&set.path().join(unreadable)), 0);
        let hint = got.as_ref().err().and_then(GetError::hint).unwrap_or_default();
        assert!(hint.contains("check the path"), "{unreadable}: {hint}");
        assert_eq!(cause(got), Cause::UnreadableIdentity, "{unreadable}");
    }
    let verified = verify(&archive_with(set.path(), &set.server), VerifyOptions::default(), &|_, _| {});
    assert!(matches!(verified, Err(ArchiveError::Store(StoreError { cause: Cause::Locked, .. }))));
}

#[test]
fn the_keys_are_listed_once_to_be_unlocked() {
    let set = setting();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let store = Watched::new(&set.path().join("archive"), move |call| seen.lock().expect("calls").push(call));
    Archive::with_keys(Box::new(store), set.reader.clone()).unlock().expect("unlocked");
    // Reads archive.json, lists the generations, and reads the only one.
    assert_eq!(*calls.lock().expect("calls"), ["read", "list", "read"]);
}

#[test]
fn damaged_ciphertext_is_never_handed_over() {
    let set = setting();
    let object = set.object(1);
    let good = fs::read(&object).expect("an object");
    let header = good.windows(5).position(|bytes| bytes == b"\n--- ").expect("a header's end");
    let reader = archive_with(set.path(), &set.reader);
    let damages = (0..good.len()).step_by(good.len() / 40).chain([
        header - 40,
        header + 10,
        header + 60,
        good.len() - 1,
    ]);
    for at in damages {
        let mut bad = good.clone();
        bad[at] ^= 4;
        fs::write(&object, &bad).expect("an object");
        let error = set.get(&set.reader, 1).expect_err("damaged");
        assert!(!matches!(error, GetError::NotThere { .. }), "byte {at}: {error:?}");
        let verified = verify(&reader, VerifyOptions::default(), &|_, _| {}).expect("a list");
        assert_eq!(verified.damaged.len(), 1, "byte {at}: {verified:?}");
    }
    // Truncated, including at the end of a chunk.
    let payload = header + 5 + 43 + 1 + 16;
    for bytes in [0, 10, header, payload, payload + 65_552, good.len() - 1] {
        fs::write(&object, &good[..bytes.min(good.len() - 1)]).expect("an object");
        let error = set.get(&set.reader, 1).expect_err("cut off");
        assert!(!matches!(error, GetError::NotThere { .. }), "{bytes}: {error:?}");
        let archive = archive_with(set.path(), &set.reader);
        let summary = walden_archive::object::read_summary(archive.store(), &set.file(1).key(), bytes as u64);
        assert!(summary.is_err(), "{bytes}");
    }
}

#[test]
fn an_object_under_the_key_of_another_one_is_refused() {
    let set = setting();
    let (first, second) = (set.object(0), set.object(1));
    let kept = fs::read(&second).expect("an object");
    fs::copy(&first, &second).expect("a copy");
    assert_eq!(cause(set.get(&set.reader, 1)), Cause::Damaged);
    let reader = archive_with(set.path(), &set.reader);
    let (key, bytes) = (set.file(1).key(), fs::metadata(&second).expect("an object").len());
    let summary = walden_archive::object::read_summary(reader.store(), &key, bytes);
    assert!(format!("{summary:?}").contains("moved since"), "{summary:?}");
    // Nor does it count as archived when the original is pushed.
    let path = set.path().join("pg_wal").join(&set.originals[1].0);
    assert!(push(&archive_with(set.path(), &set.server), &path, &PushOptions::default()).asked.is_err());
    fs::write(&second, &kept).expect("an object");
    // An object of another archive, for the same user.
    let other = tempfile::tempdir().expect("a folder");
    let (server, _) = encrypt(other.path(), &set.user);
    let pushed = push(&archive_with(other.path(), &server), &path, &PushOptions::default());
    pushed.asked.expect("archived");
    fs::copy(other.path().join("archive").join(format!("{key}.age")), &second).expect("a copy");
    assert_eq!(cause(set.get(&set.reader, 1)), Cause::ForeignKey);
    // Its tag is valid for the recipient that it names.
    for keys in [&set.server, &set.reader] {
        let asked = push(&archive_with(set.path(), keys), &path, &PushOptions::default()).asked;
        let Err(PushError::Archive { source, .. }) = asked else { panic!("{asked:?}") };
        assert!(source.hint().is_some_and(|hint| hint.contains("another archive")), "{source}");
        let text = walden_source::error_text(&source);
        assert!(text.contains(".wlz.age") && text.contains("found one that is encrypted to"), "{text}");
        let listing = list(&archive_with(set.path(), keys), ListOptions::default()).expect("a list");
        let [unreadable] = listing.unreadable.as_slice() else { panic!("{listing:?}") };
        assert!(unreadable.object.ends_with(".wlz.age"), "{unreadable:?}");
    }
}

#[test]
fn an_empty_object_of_an_encrypted_archive_is_damaged_and_not_missing() {
    let set = setting();
    fs::write(set.object(1), b"").expect("an empty object");
    assert_eq!(cause(set.get(&set.reader, 1)), Cause::Damaged);
    let listing = list(&archive_with(set.path(), &set.reader), ListOptions::default()).expect("a list");
    assert_eq!((listing.timelines[0].segments, listing.timelines[0].gaps.len()), (2, 0));
    let [unreadable] = listing.unreadable.as_slice() else { panic!("{listing:?}") };
    assert!(unreadable.problem.contains("0 bytes"), "{unreadable:?}");
    // The same applies to a server without a private key.
    let path = set.path().join("pg_wal").join(&set.originals[1].0);
    let pushed = push(&archive_with(set.path(), &set.server), &path, &PushOptions::default()).asked;
    assert_eq!(pushed.expect_err("not acknowledged").cause(), "damaged_object");
}

#[test]
fn plain_objects_do_not_answer_in_an_encrypted_archive() {
    let set = setting();
    let file = set.file(0);
    let plain = tempfile::tempdir().expect("a folder");
    let path = set.path().join("pg_wal").join(&set.originals[0].0);
    push(&archive(plain.path()), &path, &PushOptions::default()).asked.expect("archived");
    fs::remove_file(set.object(0)).expect("removed");
    let forged = set.path().join("archive").join(file.key());
    fs::copy(plain.path().join("archive").join(file.key()), forged).expect("a copy");
    assert!(matches!(set.get(&set.reader, 0), Err(GetError::NotThere { .. })));
    let listing = list(&archive_with(set.path(), &set.reader), ListOptions::default()).expect("a list");
    assert_eq!(listing.unknown, [format!("{} (not encrypted)", file.key())]);
    // An archive that lost its archive.json must not look like one that has ended.
    fs::remove_file(set.path().join("archive/archive.json")).expect("removed");
    fs::remove_dir_all(set.path().join("archive/keys")).expect("removed");
    let got = get(&archive(set.path()), set.file(1), &set.path().join("other"));
    assert!(matches!(got, Err(GetError::Archive { .. })), "{got:?}");
}

/// PostgreSQL would recycle its copy.
#[test]
fn nothing_is_archived_for_keys_that_are_gone() {
    let set = setting();
    let keys = set.path().join("archive/keys");
    fs::remove_file(set.object(1)).expect("removed");
    fs::rename(&keys, set.path().join("keys")).expect("moved away");
    let path = set.path().join("pg_wal").join(&set.originals[1].0);
    let stated = KeyOptions::default();
    for options in [&set.server, &stated] {
        let asked = push(&archive_with(set.path(), options), &path, &PushOptions::default()).asked;
        let Err(PushError::Archive { source, .. }) = asked else { panic!("{asked:?}") };
        assert_eq!(source.cause(), "keys_missing");
    }
    assert!(!set.object(1).exists());
    assert_eq!(cause(set.get(&set.reader, 0)), Cause::KeysMissing);
    let archive = archive_with(set.path(), &set.server);
    for options in [&set.server, &set.reader] {
        let archive = archive_with(set.path(), options);
        assert!(holdings(&archive, &Vec::new).expect("holdings").are_keys_missing);
        let listing = list(&archive, ListOptions::default()).expect("a list");
        assert_eq!((listing.locked, listing.timelines[0].segments), (true, 1));
        assert!(listing.are_keys_missing);
    }
    let error = probe(&archive).expect_err("without keys");
    assert!(error.hint().is_some_and(|hint| hint.contains("keys/")), "{error}");
    fs::rename(set.path().join("keys"), &keys).expect("moved back");
    push(&archive_with(set.path(), &set.server), &path, &PushOptions::default()).asked.expect("archived");
    set.get(&set.reader, 1).expect("there");
    assert!(!holdings(&archive, &Vec::new).expect("holdings").are_keys_missing);
    assert!(!list(&archive, ListOptions::default()).expect("a list").are_keys_missing);
}

#[test]
fn what_must_be_encrypted_is_not_written_otherwise() {
    let root = tempfile::tempdir().expect("a folder");
    let originals = complete();
    let wal = pg_wal(root.path(), &originals);
    let path = wal.join(&originals[0].0);
    let recipient = keys::generate().recipient;
    let pinned = KeyOptions::default().recipient(Some(recipient));
    // The archive is empty, then unencrypted, then encrypted to another recipient.
    let refuse = || {
        let asked = push(&archive_with(root.path(), &pinned), &path, &PushOptions::default()).asked;
        let Err(PushError::Archive { source: ArchiveError::Store(error), .. }) = asked else {
            panic!("{asked:?}");
        };
        assert_eq!(error.cause, Cause::OtherRecipient);
    };
    archive(root.path());
    refuse();
    assert!(!root.path().join("archive/wal").exists());
    push(&archive(root.path()), &path, &PushOptions::default().look_ahead(0)).asked.expect("plain");
    fs::remove_file(
        root.path().join("archive").join(ArchivedFile::parse(&originals[0].0).expect("a name").key()),
    )
    .expect("removed");
    refuse();
    fs::remove_dir_all(root.path().join("archive")).expect("removed");
    encrypt(root.path(), &user(root.path(), "user"));
    refuse();
}

#[test]
fn an_archive_in_use_is_not_made_an_encrypted_one() {
    let root = tempfile::tempdir().expect("a folder");
    let originals = complete();
    let wal = pg_wal(root.path(), &originals);
    push(&archive(root.path()), &wal.join(&originals[0].0), &PushOptions::default()).asked.expect("archived");
    let store = Encrypted::new(Box::new(Folder::new(root.path().join("archive"))), KeyOptions::default());
    let users = [keys::User::parse(&keys::generate().recipient).expect("a recipient")];
    let error = store.initialise_keys(&users).expect_err("in use");
    assert!(format!("{error:?}").contains("import its files into a new one"), "{error:?}");
    assert!(!root.path().join("archive/keys").exists());
}

#[test]
fn users_come_and_go_and_keys_change_without_objects_being_written_again() {
    let set = setting();
    let before = fs::read(set.object(0)).expect("an object");
    let second = user(set.path(), "second");
    let as_second = set.server.clone().identity(Some(second.identity.clone()));
    assert_eq!(cause(set.get(&as_second, 0)), Cause::WrongIdentity);
    let added = keys::User::parse(&format!("second={}", second.recipient)).expect("a user");
    let made =
        set.store(&set.reader).change_keys(&keys::Change::Add(vec![added.clone()])).expect("added").statement;
    assert_eq!((made.generation, made.users.len(), made.recipients.len()), (2, 2, 1));
    set.get(&as_second, 0).expect("readable");
    set.get(&set.reader, 1).expect("still readable");
    assert!(set.store(&set.reader).change_keys(&keys::Change::Add(vec![added])).is_err(), "twice");
    let former_content = fs::read(set.path().join("archive/keys/0002.age")).expect("the second generation");
    // Removes the first user. From now on, objects are encrypted to another key.
    let gone = keys::Change::Remove(vec![set.user.recipient.clone()]);
    let made = set.store(&as_second).change_keys(&gone).expect("removed").statement;
    assert_eq!((made.generation, made.users.len(), made.recipients.len()), (3, 1, 2));
    assert_eq!(cause(set.get(&set.reader, 0)), Cause::WrongIdentity);
    // Simulates an interruption: the previous generation exists again, and repeating the removal completes
    // it.
    let (newest, former) =
        (set.path().join("archive/keys/0003.age"), set.path().join("archive/keys/0002.age"));
    assert!(newest.is_file() && !former.exists());
    fs::write(&former, &former_content).expect("written");
    assert_eq!(set.store(&as_second).change_keys(&gone).expect("finished").statement, made);
    assert!(newest.is_file() && !former.exists());
    assert!(set.store(&as_second).change_keys(&gone).is_err(), "nothing is left to do");
    let last = keys::Change::Remove(vec!["second".to_owned()]);
    assert!(set.store(&as_second).change_keys(&last).is_err(), "nobody would be left");
    let history = set.path().join("pg_wal/00000002.history");
    fs::write(&history, "1\t0/3000000\tx\n").expect("a history");
    let unpinned = KeyOptions::default();
    push(&archive_with(set.path(), &unpinned), &history, &PushOptions::default()).asked.expect("archived");
    let stored = fs::read(set.path().join("archive/history/00000002.history.wlz.age")).expect("an object");
    let header = String::from_utf8_lossy(&stored[..600]).into_owned();
    assert!(header.contains(&made.recipients[0]) && !header.contains(&made.recipients[1]), "{header}");
    let archive = archive_with(set.path(), &as_second);
    assert_eq!(archive.histories().expect("readable").len(), 1);
    set.get(&as_second, 0).expect("old objects too");
    // Archiving works with the former and with the new recipient.
    for recipient in &made.recipients {
        let keys = KeyOptions::default().recipient(Some(recipient.clone()));
        assert!(
            push(&archive_with(set.path(), &keys), &history, &PushOptions::default())
                .asked
                .expect("same")
                .was_there
        );
    }
    assert_eq!(fs::read(set.object(0)).expect("an object"), before);
}

#[test]
fn any_part_of_an_object_is_the_same_part_of_its_content() {
    let set = setting();
    let chunk: usize = 64 << 10;
    let server = set.store(&set.server);
    for bytes in [0, 1, chunk - 1, chunk, chunk + 1, 3 * chunk, 3 * chunk + 7] {
        let content: Vec<u8> = (0..bytes).map(|at| (at * 31 / 7) as u8).collect();
        let key = format!("wal/test/{bytes}");
        let file = FileHash { name: "x", hash: &[7; 32] };
        assert_eq!(server.create_with(&key, &content, &[file]).expect("stored"), Created::New);
        assert_eq!(server.create_with(&key, &content, &[file]).expect("stored"), Created::Exists);
        assert_eq!(server.holds(&key, file).expect("a header"), Some(true));
        assert_eq!(server.holds(&key, FileHash { name: "y", ..file }).expect("a header"), Some(false));
        assert_eq!(server.holds(&key, FileHash { hash: &[8; 32], ..file }).expect("a header"), Some(false));
        let reader = set.store(&set.reader);
        let stored = reader.size(&key).expect("a size");
        assert_eq!(reader.content_bytes(&key, stored).expect("a size"), bytes as u64);
        assert_eq!(reader.read(&key).expect("content"), content);
        let edges =
            [0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk, bytes.saturating_sub(1), bytes, bytes + 10];
        for start in edges {
            for end in edges.into_iter().filter(|&end| end >= start) {
                let part = reader.read_range(&key, start as u64..end as u64).expect("a part");
                let expected = &content[start.min(bytes)..end.min(bytes)];
                assert!(part == expected, "{bytes}: {start}..{end}");
            }
        }
    }
}

#[test]
fn any_part_of_an_object_with_as_many_files_as_a_pack_can_have_is_read() {
    let set = setting();
    let server = set.store(&set.server);
    let content: Vec<u8> = (0..200_000_u32).map(|at| (at * 31 / 7) as u8).collect();
    let (names, hashes): (Vec<String>, Vec<[u8; 32]>) = (0..512_u32)
        .map(|number| (format!("{number:024X}"), *blake3::hash(&number.to_le_bytes()).as_bytes()))
        .unzip();
    let files: Vec<FileHash<'_>> =
        names.iter().zip(&hashes).map(|(name, hash)| FileHash { name, hash }).collect();
    let key = "wal/test/pack";
    assert_eq!(server.create_with(key, &content, &files).expect("stored"), Created::New);
    assert_eq!(server.holds(key, files[511]).expect("a header"), Some(true));
    let reader = set.store(&set.reader);
    assert_eq!(reader.content_bytes(key, reader.size(key).expect("a size")).expect("bytes"), 200_000);
    assert!(reader.read_range(key, 100_000..150_000).expect("a part") == content[100_000..150_000]);
    assert!(reader.read(key).expect("content") == content);
    // Nothing is stored that could not be read.
    let twice = [files.clone(), files].concat();
    let refused = server.create_with("wal/test/larger", &content, &twice).expect_err("too many");
    assert!(format!("{refused:?}").contains("at most 512 files"), "{refused:?}");
    assert!(reader.size("wal/test/larger").is_err());
}

#[test]
fn generations_of_keys_that_were_moved_or_damaged_are_refused() {
    let set = setting();
    let keys_folder = set.path().join("archive/keys");
    let first = keys_folder.join("0001.age");
    let good = fs::read(&first).expect("keys");
    // If a later generation is invalid, the earlier one decrypts older objects.
    fs::copy(&first, keys_folder.join("0002.age")).expect("a copy");
    set.get(&set.reader, 0).expect("by the first generation");
    assert!(keys::newest(set.store(&set.server).inner()).is_err());
    assert!(
        Archive::with_keys(Box::new(Folder::new(set.path().join("archive"))), KeyOptions::default())
            .encrypted()
            .recipient()
            .is_err()
    );
    fs::remove_file(keys_folder.join("0002.age")).expect("removed");
    for at in [30, 200, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&first, &bad).expect("keys");
        let got = cause(set.get(&set.reader, 0));
        assert!(matches!(got, Cause::KeysDamaged | Cause::WrongIdentity), "{at}: {got:?}");
    }
}

/// Readers can use an earlier generation. But new objects must not be encrypted to lost keys, and no change
/// may lose those keys permanently.
#[test]
fn keys_are_not_lost_with_a_damaged_generation() {
    let set = setting();
    let rotated = set.store(&set.reader).change_keys(&keys::Change::Rotate).expect("rotated").statement;
    assert_eq!((rotated.generation, rotated.recipients.len()), (2, 2));
    let unpinned = |keys: &KeyOptions| keys.clone().recipient(None);
    let (server, reader) = (unpinned(&set.server), unpinned(&set.reader));
    let folder = set.path().join("archive/keys");
    let (newest, checksum) = (folder.join("0002.age"), folder.join("0002.age.blake3"));
    let good = fs::read(&newest).expect("keys");
    let sum = fs::read_to_string(&checksum).expect("a checksum");
    assert_eq!(sum, format!("{}  0002.age\n", blake3::hash(&good).to_hex()));
    let history = set.path().join("pg_wal/00000002.history");
    fs::write(&history, "1\t0/3000000\tx\n").expect("a history");
    let push_history = |keys| push(&archive_with(set.path(), keys), &history, &PushOptions::default()).asked;
    let files = || {
        let mut names: Vec<_> =
            fs::read_dir(&folder).expect("keys").map(|it| it.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let all_files = files();
    let mut flipped = good.clone();
    *flipped.last_mut().expect("a byte") ^= 1;
    let damages: [(&str, Option<&[u8]>, bool); 5] = [
        ("one bit", Some(&flipped), true),
        ("one bit without a checksum", Some(&flipped), false),
        ("garbage", Some(b"garbage"), true),
        ("garbage without a checksum", Some(b"garbage"), false),
        ("gone", None, true),
    ];
    for (what, content, has_checksum) in damages {
        match content {
            Some(content) => fs::write(&newest, content).expect("written"),
            None => fs::remove_file(&newest).expect("removed"),
        }
        if !has_checksum {
            fs::remove_file(&checksum).expect("removed");
        }
        let before = files();
        // Without a checksum, only readers detect damage after the header.
        let is_public = has_checksum || what.starts_with("garbage");
        for (keys, is_known) in [(&server, is_public), (&reader, true)] {
            let faults = set.store(keys).key_faults().expect("read");
            let found: Vec<&str> = faults.iter().map(|fault| fault.object.as_str()).collect();
            assert_eq!(found, if is_known { &["keys/0002.age"][..] } else { &[] }, "{what}");
            let listing = list(&archive_with(set.path(), keys), ListOptions::default()).expect("a list");
            assert_eq!(listing.unreadable.len(), usize::from(is_known), "{what}: {:?}", listing.unreadable);
            assert_eq!(push_history(keys).is_err(), is_public, "{what}");
            let _ = fs::remove_dir_all(set.path().join("archive/history"));
        }
        let verified = verify(&archive_with(set.path(), &reader), VerifyOptions::default(), &|_, _| {});
        let damaged = verified.expect("verified").damaged;
        assert!(matches!(damaged.as_slice(), [one] if one.object == "keys/0002.age"), "{what}: {damaged:?}");
        set.get(&reader, 0).expect("by the first generation");
        let add = keys::Change::Add(vec![keys::User::parse(&keys::generate().recipient).expect("a user")]);
        let remove = keys::Change::Remove(vec![set.user.recipient.clone()]);
        for change in [keys::Change::Rotate, add, remove] {
            let error = set.store(&reader).change_keys(&change).expect_err("refused");
            assert_eq!((error.cause, error.key.as_str()), (Cause::KeysDamaged, "keys/0002.age"), "{what}");
        }
        assert_eq!(files(), before, "{what}");
        fs::write(&newest, &good).expect("written");
        fs::write(&checksum, &sum).expect("written");
    }
    assert_eq!(files(), all_files);
    // A generation that disappeared without a trace is detected if the configuration names its recipient.
    fs::remove_file(&newest).expect("removed");
    fs::remove_file(&checksum).expect("removed");
    let pinned = reader.clone().recipient(rotated.recipients.first().cloned());
    assert_eq!(set.store(&pinned).key_findings().expect("read")[0].object, "keys/");
    let error = set.store(&pinned).change_keys(&keys::Change::Rotate).expect_err("refused");
    assert_eq!(error.cause, Cause::OtherRecipient);
    fs::write(&newest, &good).expect("written");
    // The state from before checksums existed.
    let made = set.store(&reader).change_keys(&keys::Change::Rotate).expect("rotated").statement;
    assert_eq!((made.generation, made.recipients.len()), (3, 3));
    assert_eq!(made.recipients[1..], rotated.recipients);
    assert!(set.store(&reader).key_faults().expect("read").is_empty());
    assert!(push_history(&server).is_ok());
    set.get(&reader, 0).expect("by the newest generation");
}

/// An unreadable object must not hide others.
#[test]
fn an_object_of_another_archive_is_named_and_the_others_are_exported() {
    let set = setting();
    let other = tempfile::tempdir().expect("a folder");
    let (server, _) = encrypt(other.path(), &set.user);
    let path = set.path().join("pg_wal").join(&set.originals[1].0);
    push(&archive_with(other.path(), &server), &path, &PushOptions::default()).asked.expect("archived");
    let foreign = other.path().join("archive").join(format!("{}.age", set.file(1).key()));
    fs::copy(foreign, set.object(1)).expect("a copy");
    let reader = archive_with(set.path(), &set.reader);
    let listing =
        list(&reader, ListOptions::default().all_summaries(true).base_backups(true)).expect("a list");
    assert_eq!(listing.unreadable.len(), 1, "{:?}", listing.unreadable);
    assert!(listing.timelines[0].last_commit_time.is_some());
    let verified = verify(&reader, VerifyOptions::default(), &|_, _| {}).expect("a list");
    assert_eq!((verified.damaged.len(), verified.objects), (1, 2));
    let folder = set.path().join("exported");
    let selection = Selection { timeline: None, from: None, to: None };
    let plan = Plan::select(&reader, &selection).expect("a plan");
    let exported = export(&reader, &plan, &folder, 1, &|_| {}).expect("exported");
    assert_eq!((exported.written, exported.damaged.len()), (1, 1));
    assert!(exported.damaged[0].object.ends_with(".wlz.age"), "{:?}", exported.damaged);
    assert!(fs::read(folder.join(&set.originals[0].0)).expect("a segment") == set.originals[0].1);
}

#[test]
fn without_a_private_key_it_is_known_what_verify_has_found() {
    let set = setting();
    let reader = archive_with(set.path(), &set.reader);
    let last = |keys: &KeyOptions| verified::last(&archive_with(set.path(), keys)).expect("read");
    assert_eq!(last(&set.server), LastRun::None);
    // As written by the first versions.
    let old = set.path().join("archive/verified/run-0000000001.json.age");
    fs::create_dir(set.path().join("archive/verified")).expect("a folder");
    fs::write(&old, fs::read(set.object(0)).expect("an object")).expect("written");
    assert_eq!(last(&set.server), LastRun::Locked);
    let holdings = walden_archive::status::holdings(&archive_with(set.path(), &set.server), &Vec::new);
    let holdings = holdings.expect("read");
    assert!(holdings.is_verification_locked && holdings.verified.is_none(), "{holdings:?}");
    let mut bad = fs::read(set.object(0)).expect("an object");
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    fs::write(set.object(0), bad).expect("an object");
    let found = verify(&reader, VerifyOptions::default(), &|_, _| {}).expect("a list");
    verify::record(&reader, &found, false).expect("recorded");
    for keys in [&set.server, &set.reader] {
        let run = last(keys).found().expect("a run");
        assert_eq!((run.damaged, run.objects), (1, found.objects));
    }
    assert!(set.path().join("archive/verified/run-0000000002.json").exists());
    let listing = list(&reader, ListOptions::default()).expect("a list");
    assert!(listing.unknown.is_empty(), "{:?}", listing.unknown);
}

/// Names of histories are not encrypted, but their contents are.
#[test]
fn without_a_private_key_it_is_said_that_lost_timelines_are_not_known() {
    let root = tempfile::tempdir().expect("a folder");
    let history = |name: &str, text: &str| vec![(name.to_owned(), text.as_bytes().to_vec())];
    let second = history("00000002.history", "1\t0/1280000\tx\n");
    let third = history("00000003.history", "1\t0/1280000\tx\n2\t0/1480000\tx\n");
    let files = [log(1, 0x10, 3), second, log(2, 0x12, 3), third, log(3, 0x14, 2)].concat();
    let (server, reader) = encrypt(root.path(), &user(root.path(), "user"));
    push_all(&archive_with(root.path(), &server), &pg_wal(root.path(), &files), &files);
    let listed = |keys: &KeyOptions| {
        let archive = archive_with(root.path(), keys);
        let listing = list(&archive, ListOptions::default()).expect("a list");
        let holdings = holdings(&archive, &Vec::new).expect("holdings");
        assert_eq!(holdings.has_all_gaps, listing.has_all_gaps);
        assert_eq!(holdings.timelines_without_segments, listing.timelines_without_segments);
        let missing: u64 = listing.gaps().iter().map(|gap| gap.segments).sum();
        assert_eq!(holdings.missing_segments, missing);
        (listing.has_all_gaps, listing.timelines_without_segments, missing, holdings.missing_by_verify())
    };
    assert_eq!(listed(&server), (false, vec![], 0, None));
    assert_eq!(listed(&reader), (true, vec![], 0, None));
    fs::remove_dir_all(root.path().join("archive/wal/00000002")).expect("removed");
    assert_eq!(listed(&server), (false, vec![2], 0, None));
    assert_eq!(listed(&reader), (true, vec![], 2, None));
    // The findings of a run with a private key are readable without one.
    let archive = archive_with(root.path(), &reader);
    let found = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("a list");
    verify::record(&archive, &found, false).expect("recorded");
    assert_eq!(listed(&server), (false, vec![2], 0, Some(2)));
    assert_eq!(listed(&reader), (true, vec![], 2, None));
}

#[test]
fn packs_are_read_by_users_and_compared_by_servers_without_secrets() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 10, 12);
    let wal = pg_wal(root.path(), &segments);
    let (server, reader) = encrypt(root.path(), &user(root.path(), "user"));
    push_all(&archive_with(root.path(), &server), &wal, &segments);
    let archive = archive_with(root.path(), &reader);
    pack(&archive, &PackOptions::default().keep(2).segments(Some(4)), &|_, _| {}).expect("packed");
    let names = stored(archive.store());
    assert!(names.len() < segments.len() && names.iter().any(|name| name.ends_with(".wpk")), "{names:?}");
    expect_all(&archive, &segments, "from packs");
    assert!(verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified").is_good());
    let listing = list(&archive, ListOptions::default()).expect("a list");
    assert_eq!(listing.timelines[0].last_commit_time, Some(crate::material::commit_time(21)));
    let (name, original) = &segments[5];
    let push_again = || {
        let options = PushOptions::default().look_ahead(0).accept_damaged(true);
        push(&archive_with(root.path(), &server), &wal.join(name), &options).asked
    };
    assert!(push_again().expect("archived").was_there);
    let mut other = original.clone();
    *other.last_mut().expect("a byte") ^= 1;
    fs::write(wal.join(name), other).expect("a segment");
    assert!(matches!(push_again(), Err(PushError::Archive { source: ArchiveError::Conflict { .. }, .. })));
}

#[test]
fn a_probe_goes_the_way_of_every_segment_and_leaves_nothing() {
    let set = setting();
    let files = || {
        let mut found = Vec::new();
        Folder::new(set.path().join("archive")).list("", &mut |listed| found.push(listed)).expect("a list");
        found.sort();
        found
    };
    let before = files();
    let probe =
        |keys: &KeyOptions| walden_archive::probe::probe(&archive_with(set.path(), keys)).map_err(Box::new);
    assert!(probe(&set.server).expect("a probe").get.is_none(), "not without a private key");
    assert!(probe(&set.reader).expect("a probe").get.is_some());
    let other = KeyOptions::default().recipient(Some(keys::generate().recipient));
    assert!(probe(&other).is_err());
    assert_eq!(files(), before);
    let plain = tempfile::tempdir().expect("a folder");
    let found = walden_archive::probe::probe(&archive(plain.path())).expect("a probe");
    assert!(found.get.is_some() && found.left.is_none());
}
