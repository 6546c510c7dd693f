//! A store that fails, lies or is gone at its k-th call, for every k.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use walden_archive::archive::Archive;
use walden_archive::encryption::KeyOptions;
use walden_archive::get::{GetError, get};
use walden_archive::name::ArchivedFile;
use walden_archive::push::{PushOptions, push};
use walden_archive::store::{Cause, Created, Folder, Listed, Store, StoreError};

use crate::material::{complete, encrypt, pg_wal, user};

/// How the call fails.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// Nothing is done.
    Before,
    /// It is done, and the answer is lost.
    After,
    /// Half an object is stored under a temporary name, and nothing more ever happens: the process is killed.
    Killed,
}

/// A folder whose k-th call fails; a killed process makes no further calls.
struct Faulty {
    folder: Folder,
    calls: Arc<AtomicUsize>,
    fails_at: usize,
    fault: Fault,
}

impl Faulty {
    fn run<T>(&self, key: &str, call: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let error = || StoreError {
            operation: "use",
            key: key.to_owned(),
            location: "a store that fails".to_owned(),
            cause: Cause::Unavailable,
            source: None,
        };
        if self.fault == Fault::Killed && number >= self.fails_at {
            return Err(error());
        }
        if number == self.fails_at {
            if self.fault == Fault::After {
                let _ = call()?;
            }
            return Err(error());
        }
        call()
    }
}

impl Store for Faulty {
    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
        self.run(key, || self.folder.create(key, content))
    }
    fn make_durable(&self, key: &str) -> Result<(), StoreError> {
        self.run(key, || self.folder.make_durable(key))
    }
    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.run(key, || self.folder.read(key))
    }
    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        self.run(key, || self.folder.read_range(key, range))
    }
    fn size(&self, key: &str) -> Result<u64, StoreError> {
        self.run(key, || self.folder.size(key))
    }
    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        self.run(prefix, || self.folder.list(prefix, visit))
    }
    fn remove(&self, key: &str) -> Result<(), StoreError> {
        self.run(key, || self.folder.remove(key))
    }
    fn remove_leftovers(&self) -> Result<(), StoreError> {
        self.run("", || self.folder.remove_leftovers())
    }
    fn location(&self) -> &str {
        self.folder.location()
    }
}

#[test]
fn whichever_call_fails_nothing_acknowledged_is_missing_and_the_next_run_repairs() {
    fail_at_every_call(false);
}

#[test]
fn whichever_call_fails_nothing_acknowledged_is_missing_in_an_encrypted_archive_either() {
    fail_at_every_call(true);
}

fn fail_at_every_call(is_encrypted: bool) {
    let originals = complete();
    for fault in [Fault::Before, Fault::After, Fault::Killed] {
        for fails_at in 0.. {
            let root = tempfile::tempdir().expect("a folder");
            let wal = pg_wal(root.path(), &originals);
            let place = root.path().join("archive");
            let (server, reader) = match is_encrypted {
                true => encrypt(root.path(), &user(root.path(), "user")),
                false => (KeyOptions::default(), KeyOptions::default()),
            };
            let calls = Arc::new(AtomicUsize::new(0));
            let store = Faulty { folder: Folder::new(&place), calls: calls.clone(), fails_at, fault };
            let options = PushOptions { threads: 1, ..PushOptions::default() };
            let faulty = Archive::with_keys(Box::new(store), server);
            let batch = push(&faulty, &wal.join(&originals[0].0), &options);
            let good = Archive::with_keys(Box::new(Folder::new(&place)), reader);
            let is_there = |name: &str| {
                let target = root.path().join("target");
                let original = originals.iter().find(|(other, _)| other == name).expect("a segment");
                match get(&good, ArchivedFile::parse(name).expect("a name"), &target) {
                    Ok(()) => {
                        assert!(
                            std::fs::read(&target).expect("a file") == original.1,
                            "{fault:?} {fails_at}"
                        );
                        true
                    }
                    Err(GetError::NotThere { .. }) => false,
                    Err(error) => panic!("{fault:?} {fails_at}: {error}"),
                }
            };
            let calls = calls.load(Ordering::Relaxed);
            if fault != Fault::After && fails_at < calls {
                let failed = batch.asked.is_err() || batch.others.iter().any(Result::is_err);
                assert!(failed, "{fault:?} {fails_at}: a failure that nobody was told of");
            }
            for pushed in [batch.asked].into_iter().chain(batch.others).flatten() {
                assert!(
                    is_there(&pushed.file.to_string()),
                    "{fault:?} {fails_at}: {} is missing",
                    pushed.file
                );
            }
            let again = push(&good, &wal.join(&originals[0].0), &options);
            assert!(again.asked.is_ok() && again.others.iter().all(Result::is_ok), "{fault:?} {fails_at}");
            assert!(originals.iter().all(|(name, _)| is_there(name)), "{fault:?} {fails_at}");
            if fails_at >= calls {
                assert!(calls > 3, "only {calls} calls");
                break;
            }
        }
    }
}
