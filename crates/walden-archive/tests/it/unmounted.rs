//! An archive whose file system is unmounted between two calls of its store: nothing may be acknowledged that
//! is not in the archive, and nothing may create the archive's folder again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use walden_archive::acknowledge;
use walden_archive::archive::Archive;
use walden_archive::copy::{CopyOptions, copy};
use walden_archive::encryption::KeyOptions;
use walden_archive::encryption::keys::{self, Change, User};
use walden_archive::get::get;
use walden_archive::name::ArchivedFile;
use walden_archive::pack::{PackOptions, pack};
use walden_archive::parts::{self, Part};
use walden_archive::prefetch::{PrefetchOptions, Spool, prefetch};
use walden_archive::push::{PushOptions, push};
use walden_archive::store::{Folder, Store};
use walden_archive::verify::{self, VerifyOptions};
use walden_format::lsn::SegmentName;

use crate::material::{archive_of, expect_all, log, pg_wal, stored};
use crate::watched::{Decision, Watched};

/// What the place of the archive has after it was unmounted.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Left {
    Nothing,
    EmptyFolder,
}

/// A folder with an archive, which an operation uses.
struct Place {
    root: PathBuf,
}

impl Place {
    fn archive(&self) -> PathBuf {
        self.root.join("archive")
    }

    fn aside(&self) -> PathBuf {
        self.root.join("aside")
    }

    fn unmount(&self, left: Left) {
        fs::rename(self.archive(), self.aside()).expect("moved");
        if left == Left::EmptyFolder {
            fs::create_dir(self.archive()).expect("a folder");
        }
    }
}

/// An operation that writes to the archive. Returns the keys that it acknowledges, or the error's text.
type Operation<'a> = dyn Fn(&Archive, &Place) -> Result<Vec<String>, String> + 'a;

fn text(error: impl std::error::Error) -> String {
    walden_source::error_text(&error)
}

/// Runs the operation once per call of the store, and unmounts the archive before that call. `open` opens the
/// archive with the store.
fn unmount_before_each_call(
    name: &str,
    prepare: &dyn Fn(&Path) -> Archive,
    open: &dyn Fn(Box<dyn Store>) -> Archive,
    operation: &Operation<'_>,
) {
    for left in [Left::Nothing, Left::EmptyFolder] {
        let mut refused = 0;
        for unmounted_at in 0.. {
            let folder = tempfile::tempdir().expect("a folder");
            let place = Arc::new(Place { root: folder.path().to_owned() });
            prepare(folder.path());
            let (calls, creations) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let watched = {
                let (place, calls, creations) = (Arc::clone(&place), Arc::clone(&calls), creations.clone());
                Watched::deciding(&place.archive(), move |call, _| {
                    let number = calls.fetch_add(1, Ordering::SeqCst);
                    if number == unmounted_at {
                        place.unmount(left);
                    }
                    if number >= unmounted_at && call == "create" {
                        creations.fetch_add(1, Ordering::SeqCst);
                    }
                    Decision::Pass
                })
            };
            let archive = open(Box::new(watched.unmountable()));
            let result = operation(&archive, &place);
            if calls.load(Ordering::SeqCst) <= unmounted_at {
                result.expect("nothing was unmounted");
                assert!(refused > 0, "{name}: no call was refused");
                break;
            }
            let context = format!("{name}, {left:?}, before call {unmounted_at}: {result:?}");
            assert_eq!(place.archive().exists(), left == Left::EmptyFolder, "{context}");
            match &result {
                Ok(keys) => {
                    assert!(keys.iter().all(|key| place.aside().join(key).exists()), "{context}");
                    // A call after that may still store something if it checks the place.
                    assert_eq!(creations.load(Ordering::SeqCst), 0, "{context}");
                }
                Err(text) => refused += usize::from(text.contains("cannot find an archive")),
            }
        }
    }
}

fn plain(store: Box<dyn Store>) -> Archive {
    Archive::new(store)
}

#[test]
fn only_what_is_in_the_archive_is_acknowledged() {
    let segments = log(1, 0x20, 4);
    let before = |root: &Path| archive_of(root, &segments[..3]);
    unmount_before_each_call("push", &before, &plain, &|archive, place| {
        let wal = pg_wal(&place.root, &segments);
        let pushed = push(archive, &wal.join(&segments[3].0), &PushOptions::default().look_ahead(0));
        let file = ArchivedFile::parse(&segments[3].0).expect("a name");
        pushed.asked.map(|_| vec![file.key()]).map_err(text)
    });
    unmount_before_each_call("push again", &before, &plain, &|archive, place| {
        let wal = pg_wal(&place.root, &segments);
        let pushed = push(archive, &wal.join(&segments[1].0), &PushOptions::default().look_ahead(0));
        let file = ArchivedFile::parse(&segments[1].0).expect("a name");
        pushed.asked.map(|_| vec![file.key()]).map_err(text)
    });
    unmount_before_each_call("receive", &before, &plain, &|archive, _| {
        let segment = SegmentName::parse(&segments[3].0).expect("a name");
        let part = Part { segment, start: 0, end: 8192 };
        parts::store(archive, part, &segments[3].1[..8192]).map_err(text)?;
        Ok(vec![part.key()])
    });
    let source = tempfile::tempdir().expect("a folder");
    let source = archive_of(source.path(), &segments);
    unmount_before_each_call("copy", &before, &plain, &|archive, _| {
        let copied = copy(std::slice::from_ref(&source), archive, &CopyOptions::default(), &|_, _| {
            std::ops::ControlFlow::Continue(())
        });
        let copied = copied.map_err(text)?;
        let file = ArchivedFile::parse(&segments[3].0).expect("a name");
        match copied.is_complete() {
            true => Ok(vec![file.key()]),
            false => Err(format!("{copied:?}")),
        }
    });
    unmount_before_each_call("acknowledge", &before, &plain, &|archive, _| {
        let name = SegmentName::parse("000000010000000000000019").expect("a name");
        acknowledge::record(archive, name, name, "admin", "lost").map_err(text)?;
        Ok(Vec::new())
    });
    unmount_before_each_call("verify", &before, &plain, &|archive, _| {
        let verified = verify::verify(archive, VerifyOptions::default(), &|_, _| {}).map_err(text)?;
        verify::record(archive, &verified, false).map_err(text)?;
        Ok(Vec::new())
    });
}

#[test]
fn a_pack_in_another_place_removes_no_segment() {
    let segments = log(1, 0x20, 6);
    let before = |root: &Path| archive_of(root, &segments);
    unmount_before_each_call("pack", &before, &plain, &|archive, place| {
        let options = PackOptions::default().segments(Some(2)).keep(2);
        let packed = pack(archive, &options, &|_, _| {});
        let real = if place.aside().exists() { place.aside() } else { place.archive() };
        expect_all(&Archive::new(Box::new(Folder::new(real))), &segments, "after pack");
        let packed = packed.map_err(text)?;
        match packed.is_good() {
            true => Ok(Vec::new()),
            false => Err(format!("{packed:?}")),
        }
    });
}

#[test]
fn new_keys_are_made_only_in_the_archive() {
    let (user, other) = (keys::generate(), keys::generate());
    let folder = tempfile::tempdir().expect("a folder");
    let identity = folder.path().join("user.key");
    fs::write(&identity, &user.identity_file).expect("a file");
    let before = |root: &Path| {
        let archive = Archive::new(Box::new(Folder::new(root.join("archive"))));
        let users = [User::parse(&user.recipient).expect("a user")];
        archive.encrypted().initialise_keys(&users).expect("keys");
        archive.create().expect("an archive");
        archive
    };
    let open = |store| Archive::with_keys(store, KeyOptions::default().identity(Some(identity.clone())));
    unmount_before_each_call("key add", &before, &open, &|archive, _| {
        let change = Change::Add(vec![User::parse(&format!("alice={}", other.recipient)).expect("a user")]);
        archive.encrypted().change_keys(&change).map(|_| Vec::new()).map_err(text)
    });
}

#[test]
fn prefetch_and_get_report_a_place_without_the_archive() {
    let segments = log(1, 0x20, 3);
    for left in [Left::Nothing, Left::EmptyFolder] {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place { root: folder.path().to_owned() };
        let archive = archive_of(folder.path(), &segments);
        archive.identity().expect("known from now on");
        let spool = Spool::new(&pg_wal(folder.path(), &[]), &archive);
        place.unmount(left);
        let lock = spool.lock().expect("a lock").expect("no other process");
        spool.note(SegmentName::parse(&segments[0].0).expect("a name")).expect("a note");
        let options = PrefetchOptions::default().idle(std::time::Duration::from_millis(100));
        let fetched = prefetch(&archive, &spool, lock, &options);
        assert!(segments.iter().all(|(name, _)| !spool.folder().join(name).exists()), "{fetched:?}");
        let file = ArchivedFile::parse(&segments[1].0).expect("a name");
        let error = get(&archive.afresh(), file, &folder.path().join("target")).expect_err("no archive");
        assert!(text(error).contains("cannot find an archive"));
        assert_eq!(place.archive().exists(), left == Left::EmptyFolder);
        if place.archive().exists() {
            assert!(stored(&Folder::new(place.archive())).is_empty());
        }
    }
}
