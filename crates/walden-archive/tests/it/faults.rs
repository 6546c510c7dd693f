//! Stores that fail, return wrong data, or change at their k-th call, for every k.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use walden_archive::archive::{Archive, ArchiveError};
use walden_archive::copy::{CopyOptions, replace_damaged};
use walden_archive::encryption::KeyOptions;
use walden_archive::get::{GetError, get};
use walden_archive::list::{ListOptions, list};
use walden_archive::name::ArchivedFile;
use walden_archive::pack::{PackOptions, pack};
use walden_archive::prefetch::{PrefetchOptions, Spool, prefetch};
use walden_archive::prune::{Rule, plan};
use walden_archive::push::{PushError, PushOptions, push};
use walden_archive::store::{Folder, Store};
use walden_archive::verify::{VerifyOptions, verify};
use walden_format::lsn::SegmentName;

use crate::material::{
    archive, archive_of, complete, encrypt, expect_all, leftovers, log, pg_wal, stored, user,
};
use crate::watched::{Decision, Watched};

/// How the call fails.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// The call has no effect.
    Before,
    /// The call takes effect, but its result is lost.
    After,
    /// Neither this call nor any later one has an effect: the process is killed.
    Killed,
    /// Half of the written or read bytes are lost, without an error.
    Torn,
}

/// Returns a folder whose k-th call fails, and the number of calls so far. A killed process makes no further
/// calls.
fn faulty_store(place: &Path, fails_at: usize, fault: Fault) -> (Watched, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let store = Watched::deciding(place, move |call, _| {
        // Followed by the removal, which counts.
        if call == "discard" {
            return Decision::Pass;
        }
        let number = counted.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::Killed if number >= fails_at => Decision::Fail,
            Fault::Before if number == fails_at => Decision::Fail,
            Fault::After if number == fails_at => Decision::FailAfter,
            Fault::Torn if number == fails_at => Decision::Tear,
            _ => Decision::Pass,
        }
    });
    (store, calls)
}

fn faulty_archive(place: &Path, fails_at: usize, fault: Fault) -> (Archive, Arc<AtomicUsize>) {
    let (store, calls) = faulty_store(place, fails_at, fault);
    (Archive::new(Box::new(store)), calls)
}

/// Copies a folder and its contents.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}

fn in_packs_of(segments: u64) -> PackOptions {
    PackOptions::default().segments(Some(segments)).keep(0)
}

pub fn pack_all(archive: &Archive, segments: u64) {
    let packed = pack(archive, &in_packs_of(segments), &|_, _| {}).expect("packed");
    assert!(packed.is_good(), "{packed:?}");
}

#[test]
fn whichever_call_of_push_fails_nothing_acknowledged_is_missing_and_the_next_run_repairs() {
    fail_at_every_call(false);
}

#[test]
fn whichever_call_of_push_fails_nothing_acknowledged_is_missing_in_an_encrypted_archive_either() {
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
            archive(root.path());
            let (store, calls) = faulty_store(&place, fails_at, fault);
            let options = PushOptions::default().threads(1);
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
                    // Nothing has been stored yet.
                    Err(GetError::Archive { source: ArchiveError::Missing(_), .. }) => false,
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

/// Creates an archive of segments 0x20 to 0x26. 0x20 and 0x21 are in a pack, 0x21 also in its own object. A
/// backup is in 0x22.
pub fn half_packed(root: &Path) -> Vec<(String, Vec<u8>)> {
    let segments = log(1, 0x20, 7);
    let archive = archive_of(root, &segments[..2]);
    let key = ArchivedFile::parse(&segments[1].0).expect("a name").key();
    let object = root.join("archive").join(&key);
    let content = fs::read(&object).expect("an object");
    let history = log_of_backup(&segments[2].0);
    pack_all(&archive, 2);
    archive_of(root, &[&segments[2..], &[history]].concat());
    fs::write(object, content).expect("an object");
    segments
}

fn log_of_backup(segment: &str) -> (String, Vec<u8>) {
    let text = format!(
        "START WAL LOCATION: 0/2200028 (file {segment})\nSTOP WAL LOCATION: 0/2200100 (file {segment})\nLABEL: x\n"
    );
    (format!("{segment}.00000028.backup"), text.into_bytes())
}

/// One run on a store with a failing call.
struct Attempt<'a> {
    fault: Fault,
    /// The archive with the fault, for the run, and without it, for later checks.
    faulty: &'a Archive,
    good: &'a Archive,
    what: String,
}

/// Runs an operation on a half-packed archive whose k-th call fails, for every k and fault. `run` gets the
/// archive's segments, and returns whether a failure was reported. The operation must make more than
/// `min_calls` calls, and each is made to fail once.
fn with_every_call_failing(min_calls: usize, run: impl Fn(&Attempt<'_>, &[(String, Vec<u8>)]) -> bool) {
    let master = tempfile::tempdir().expect("a folder");
    let segments = half_packed(master.path());
    for fault in [Fault::Before, Fault::After, Fault::Killed, Fault::Torn] {
        for fails_at in 0.. {
            let what = format!("{fault:?} {fails_at}");
            let root = tempfile::tempdir().expect("a folder");
            let place = root.path().join("archive");
            copy(&master.path().join("archive"), &place);
            let (faulty, calls) = faulty_archive(&place, fails_at, fault);
            let good = archive(root.path());
            // Later checks use the archive without the fault.
            let attempt = Attempt { fault, faulty: &faulty, good: &good, what };
            let is_reported = run(&attempt, &segments);
            let calls = calls.load(Ordering::Relaxed);
            if matches!(fault, Fault::Before | Fault::Killed) && fails_at < calls {
                assert!(is_reported, "{}: a failure that is not reported", attempt.what);
            }
            assert_eq!(leftovers(root.path()).len(), 0, "{}", attempt.what);
            if fails_at >= calls {
                assert!(calls > min_calls, "only {calls} calls");
                break;
            }
        }
    }
}

#[test]
fn whichever_call_of_pack_fails_every_segment_comes_back_and_the_next_run_repairs() {
    with_every_call_failing(20, |Attempt { fault, faulty, good, what }, segments| {
        let packed = pack(faulty, &in_packs_of(2), &|_, _| {});
        expect_all(good, segments, what);
        let is_clean = packed.as_ref().is_ok_and(|packed| packed.is_good());
        let again = pack(good, &in_packs_of(2), &|_, _| {}).expect("packed");
        expect_all(good, segments, what);
        if *fault == Fault::Torn && !again.is_good() {
            // The store returned wrong data when the pack was written, so the pack remains next to its
            // segments.
            assert!(!is_clean && again.problems.len() == 1, "{what}: {again:?}");
            return true;
        }
        // Three packs, and the last segment, whose pack is not complete yet.
        assert!(again.is_good() && stored(good.store()).len() == 4, "{what}: {:?}", stored(good.store()));
        !is_clean
    });
}

#[test]
fn whichever_call_of_prune_fails_what_is_kept_comes_back_and_the_next_run_goes_on() {
    with_every_call_failing(5, |Attempt { faulty, good, what, .. }, segments| {
        let rule = Rule::KeepBackups(1);
        let pruned = plan(faulty, &rule, Vec::new()).and_then(|plan| plan.apply(faulty));
        expect_all(good, &segments[2..], what);
        let gaps = list(good, ListOptions::default()).expect("a list").timelines.remove(0).gaps;
        assert_eq!(gaps, [], "{what}");
        plan(good, &rule, Vec::new()).and_then(|plan| plan.apply(good)).expect("pruned");
        assert_eq!(stored(good.store()).len(), 5, "{what}");
        expect_all(good, &segments[2..], what);
        pruned.is_err()
    });
}

#[test]
fn whichever_call_of_get_fails_nothing_wrong_is_handed_over() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = half_packed(root.path());
    let target = root.path().join("RECOVERYXLOG");
    for (name, original) in [&segments[0], &segments[1], &segments[5]] {
        let file = ArchivedFile::parse(name).expect("a name");
        for fault in [Fault::Before, Fault::After, Fault::Killed, Fault::Torn] {
            for fails_at in 0.. {
                let (faulty, calls) = faulty_archive(&root.path().join("archive"), fails_at, fault);
                let got = get(&faulty, file, &target);
                match &got {
                    Ok(()) => {
                        assert!(fs::read(&target).expect("a file") == *original, "{fault:?} {fails_at}")
                    }
                    // Recovery must not treat this as the archive's end.
                    Err(GetError::NotThere { .. }) => panic!("{name} {fault:?} {fails_at}: not there"),
                    Err(_) => assert!(!target.exists(), "{fault:?} {fails_at}"),
                }
                let _ = fs::remove_file(&target);
                assert_eq!(leftovers(root.path()).len(), 0);
                if fails_at >= calls.load(Ordering::Relaxed) {
                    got.expect("without a fault");
                    break;
                }
            }
        }
    }
}

/// Runs an operation on an archive in which another process packs everything, or prunes, before the k-th
/// call, for every k.
fn with_packing_meanwhile(run: impl Fn(&Archive, &Path, &str)) {
    let master = tempfile::tempdir().expect("a folder");
    let segments = half_packed(master.path());
    for is_pruned in [false, true] {
        for at in 0.. {
            let what = format!("before call {at}, pruned: {is_pruned}");
            let root = tempfile::tempdir().expect("a folder");
            let place = root.path().join("archive");
            copy(&master.path().join("archive"), &place);
            pg_wal(root.path(), &segments);
            let other = archive(root.path());
            let calls = Arc::new(AtomicUsize::new(0));
            let seen = calls.clone();
            let watched = Watched::new(&place, move |_| {
                if seen.fetch_add(1, Ordering::SeqCst) != at {
                    return;
                }
                if is_pruned {
                    let plan = plan(&other, &Rule::KeepBackups(1), Vec::new()).expect("a plan");
                    plan.apply(&other).expect("pruned");
                }
                pack_all(&other, 2);
                // Then packs into larger packs.
                pack_all(&other, 4);
            });
            let shared = Archive::new(Box::new(watched));
            run(&shared, root.path(), &what);
            expect_all(&archive(root.path()), &segments[2..], &what);
            if at >= calls.load(Ordering::SeqCst) {
                assert!(at > 0);
                break;
            }
        }
    }
}

#[test]
fn a_segment_is_found_in_its_own_object_or_in_a_pack_at_any_moment() {
    let segments = log(1, 0x20, 7);
    for at in [0, 1, 3, 6] {
        let (name, original) = &segments[at];
        with_packing_meanwhile(|archive, root, what| {
            let target = root.join("RECOVERYXLOG");
            match get(archive, ArchivedFile::parse(name).expect("a name"), &target) {
                Ok(()) => assert!(fs::read(&target).expect("a file") == *original, "{name}, {what}"),
                Err(GetError::NotThere { .. }) if at < 2 && what.ends_with("true") => {}
                Err(error) => panic!("{name}, {what}: {error:?}"),
            }
        });
    }
}

#[test]
fn a_segment_is_pushed_again_at_any_moment_and_another_content_never() {
    let segments = log(1, 0x20, 7);
    let alone = PushOptions::default().look_ahead(0);
    with_packing_meanwhile(|archive, root, what| {
        let again = push(archive, &root.join("pg_wal").join(&segments[3].0), &alone);
        assert!(again.asked.unwrap_or_else(|error| panic!("{what}: {error:?}")).was_there, "{what}");
    });
    let other = log(1, 0x23, 1).swap_remove(0).1;
    with_packing_meanwhile(|archive, root, what| {
        let path = root.join("pg_wal").join(&segments[3].0);
        fs::write(&path, &other).expect("a segment");
        match push(archive, &path, &alone).asked {
            Err(PushError::Archive { source: ArchiveError::Conflict { .. }, .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
    });
}

#[test]
fn segments_are_fetched_ahead_while_they_are_packed() {
    let segments = log(1, 0x20, 7);
    let options = PrefetchOptions::default().segments(4).threads(2).idle(Duration::from_secs(20));
    with_packing_meanwhile(|archive, root, what| {
        let spool = Spool::new(root, archive);
        let lock = spool.lock().expect("a lock").expect("no other process");
        spool.note(SegmentName::parse(&segments[1].0).expect("a name")).expect("a note");
        std::thread::scope(|scope| {
            let fetching = scope.spawn(|| prefetch(archive, &spool, lock, &options));
            let began = Instant::now();
            for (name, original) in &segments[2..6] {
                let path = spool.folder().join(name);
                while !path.exists() {
                    assert!(began.elapsed() < Duration::from_secs(20), "{what}: {name} does not come");
                    // Like a server that keeps asking.
                    std::thread::sleep(Duration::from_millis(2));
                }
                assert!(fs::read(&path).expect("a segment") == *original, "{what}: {name}");
            }
            // No more requests follow.
            fs::remove_file(spool.folder().join("position")).expect("a note");
            fetching.join().expect("a thread").unwrap_or_else(|error| panic!("{what}: {error:?}"));
        });
        assert_eq!(leftovers(root).len(), 0, "{what}");
    });
}

#[test]
fn whichever_call_of_a_repair_fails_the_damaged_object_or_its_replacement_is_there() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 1, 2);
    let source = archive_of(root.path(), &segments);
    let repo = root.path().join("archive");
    let name = stored(&Folder::new(&repo)).remove(0);
    let mut failures = 0;
    for fails_at in 0.. {
        let place = root.path().join(format!("damaged-{fails_at}"));
        copy(&repo, &place);
        let mut path = None;
        let folder = Folder::new(&place);
        folder
            .list("wal/", &mut |listed| {
                if listed.key.ends_with(&name) {
                    path = Some(place.join(listed.key));
                }
            })
            .expect("a list");
        let path = path.expect("the object");
        let mut bytes = fs::read(&path).expect("the object");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        fs::remove_file(&path).expect("removed");
        fs::write(&path, bytes).expect("damaged");
        let intact = Archive::new(Box::new(Folder::new(&place)));
        let damaged = verify(&intact, VerifyOptions::default(), &|_, _| {}).expect("verified").damaged;
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        let (target, calls) = faulty_archive(&place, fails_at, Fault::Before);
        let result =
            replace_damaged(std::slice::from_ref(&source), &target, &damaged, &CopyOptions::default());
        assert!(path.exists(), "call {fails_at}: {result:?}");
        if calls.load(Ordering::Relaxed) <= fails_at {
            expect_all(&intact.afresh(), &segments, "repaired");
            break;
        }
        failures += usize::from(!result.is_ok_and(|copied| copied.failed.is_empty()));
    }
    assert!(failures > 2, "{failures}");
}
