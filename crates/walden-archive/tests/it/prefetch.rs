//! Prefetched segments: how long they are valid, when they are removed, and the cost of waiting at the
//! archive's end.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use walden_archive::archive::Archive;
use walden_archive::prefetch::{PrefetchOptions, Spool, prefetch};
use walden_format::lsn::SegmentName;

use crate::material::{archive_of, log};
use crate::watched::Watched;

fn name(text: &str) -> SegmentName {
    SegmentName::parse(text).expect("a name")
}

/// Creates a standby's data directory, in which prefetched segments stay after a period without requests.
fn standby(root: &Path) -> std::path::PathBuf {
    let wal = root.join("data/pg_wal");
    fs::create_dir_all(&wal).expect("a folder");
    fs::write(root.join("data/standby.signal"), "").expect("a file");
    wal
}

/// Prefetches the segments after the given one, until `idle` has passed without a request.
fn fetch(archive: &Archive, spool: &Spool, after: &str, idle: Duration) {
    let lock = spool.lock().expect("a lock").expect("no other process");
    spool.note(name(after)).expect("a note");
    let options = PrefetchOptions::default().segments(4).threads(2).idle(idle);
    prefetch(archive, spool, lock, &options).expect("fetched");
}

const IDLE: Duration = Duration::from_millis(1500);

#[test]
fn what_lies_ready_counts_until_the_system_starts_again() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 5);
    let archive = archive_of(root.path(), &segments);
    let (boot_id, target) = (root.path().join("boot_id"), root.path().join("RECOVERYXLOG"));
    fs::write(&boot_id, "7a0e\n").expect("a file");
    let spool = Spool::new(&standby(root.path()), &archive).with_boot_id(&boot_id);
    fetch(&archive, &spool, &segments[0].0, IDLE);
    assert!(segments[1..].iter().all(|(segment, _)| spool.is_ahead(name(segment))));
    assert!(spool.take(name(&segments[1].0), &target).expect("the spool"));
    assert!(fs::read(&target).expect("a file") == segments[1].1);
    // After a power failure, files have their names and sizes, but stale content.
    fs::write(&boot_id, "7a0f\n").expect("a file");
    for (segment, original) in &segments[2..] {
        fs::write(spool.folder().join(segment), vec![0x55; original.len()]).expect("a file");
        assert!(!spool.is_ahead(name(segment)), "{segment}");
        assert!(!spool.take(name(segment), &target).expect("the spool"), "{segment}");
    }
    fetch(&archive, &spool, &segments[1].0, IDLE);
    for (segment, original) in &segments[2..] {
        assert!(spool.take(name(segment), &target).expect("the spool"), "{segment}");
        assert!(fs::read(&target).expect("a file") == *original, "{segment}");
    }
}

#[test]
fn a_segment_of_another_size_is_not_handed_over_but_fetched_again() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 4);
    let archive = archive_of(root.path(), &segments);
    let target = root.path().join("RECOVERYXLOG");
    // With the system's boot ID, and without any.
    for boot_id in [None, Some(root.path().join("no such file"))] {
        let spool = Spool::new(&standby(root.path()), &archive);
        let spool = boot_id.iter().fold(spool, |spool, path| spool.with_boot_id(path));
        fetch(&archive, &spool, &segments[0].0, IDLE);
        let (short, empty) = (&segments[1], &segments[2]);
        fs::write(spool.folder().join(&short.0), &short.1[..4096]).expect("a file");
        fs::write(spool.folder().join(&empty.0), "").expect("a file");
        for (segment, _) in [short, empty] {
            assert!(!spool.take(name(segment), &target).expect("the spool"), "{segment}");
        }
        assert!(!target.exists());
        fetch(&archive, &spool, &segments[0].0, IDLE);
        for (segment, original) in &segments[1..] {
            assert!(spool.take(name(segment), &target).expect("the spool"), "{segment}");
            assert!(fs::read(&target).expect("a file") == *original, "{segment}");
        }
        fs::remove_file(&target).expect("a file");
    }
}

#[test]
fn the_spool_goes_with_recovery() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 4);
    let archive = archive_of(root.path(), &segments);
    let wal = standby(root.path());
    let spool = Spool::new(&wal, &archive);
    fetch(&archive, &spool, &segments[0].0, IDLE);
    // Recovery is slow, or paused, and will request the prefetched segments later.
    assert!(spool.is_ahead(name(&segments[1].0)) && !spool.is_left_over());
    fs::remove_file(root.path().join("data/standby.signal")).expect("promoted");
    // The server does not run: pg_rewind has listed its files.
    fetch(&archive, &spool, &segments[0].0, IDLE);
    assert!(spool.is_ahead(name(&segments[1].0)) && !spool.is_left_over());
    fs::write(root.path().join("data/postmaster.pid"), "").expect("a file");
    assert!(spool.is_left_over());
    fetch(&archive, &spool, &segments[0].0, IDLE);
    assert_eq!(fs::read_dir(&wal).expect("a folder").count(), 0);
    assert!(!spool.is_left_over() && !spool.is_ahead(name(&segments[1].0)));
    // Files of other origin stay.
    spool.note(name(&segments[0].0)).expect("a note");
    fs::write(spool.folder().join("mine"), "").expect("a file");
    fetch(&archive, &spool, &segments[0].0, IDLE);
    let left: Vec<_> = fs::read_dir(spool.folder()).expect("a folder").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn waiting_at_the_end_of_the_archive_takes_few_listings() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 2);
    archive_of(root.path(), &segments);
    let listings = Arc::new(AtomicUsize::new(0));
    let counted = listings.clone();
    let store = Watched::new(&root.path().join("archive"), move |call| {
        counted.fetch_add(usize::from(call == "list"), Ordering::Relaxed);
    });
    let archive = Archive::new(Box::new(store));
    let spool = Spool::new(root.path(), &archive);
    fetch(&archive, &spool, &segments[1].0, Duration::from_secs(6));
    // Listings of histories, and of segments after 0, 0.5, 1.5 and 3.5 seconds.
    let listings = listings.load(Ordering::Relaxed);
    assert!((2..=5).contains(&listings), "{listings} listings");
}
