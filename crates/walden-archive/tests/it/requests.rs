//! The number of object store requests per segment, which `research/costs/layouts.toml` assumes.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use walden_archive::archive::Archive;
use walden_archive::get::{GetError, get, get_begun};
use walden_archive::name::ArchivedFile;
use walden_archive::pack::{PackOptions, pack};
use walden_archive::push::{PushOptions, push};

use crate::material::{SETTLED, log, pg_wal};
use crate::watched::Watched;

/// Requests as object stores bill them: writes and lists, and reads.
#[derive(Default)]
struct Requests {
    write: AtomicUsize,
    read: AtomicUsize,
}

impl Requests {
    /// Returns the counter of a call. Removing objects is free, and making them durable is not a request.
    fn counter(&self, call: &str) -> Option<&AtomicUsize> {
        match call {
            "create" | "list" => Some(&self.write),
            "read" | "read_range" | "size" => Some(&self.read),
            _ => None,
        }
    }

    /// Creates an archive below a folder that counts its requests here.
    fn archive(self: &Arc<Requests>, root: &Path) -> Archive {
        let requests = self.clone();
        let count = move |call| {
            if let Some(count) = requests.counter(call) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        Archive::new(Box::new(Watched::new(&root.join("archive"), count)))
    }

    /// Returns the numbers of requests that write or list, and that read, since the last call.
    fn take(&self) -> (usize, usize) {
        (self.write.swap(0, Ordering::Relaxed), self.read.swap(0, Ordering::Relaxed))
    }
}

/// Returns the figures of a layout in `research/costs/layouts.toml`: write requests, read requests, segments
/// per pack.
fn stated(name: &str) -> (f64, f64, u64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../research/costs/layouts.toml");
    let text = fs::read_to_string(path).expect("research/costs/layouts.toml");
    let section = text
        .split("[[layout]]")
        .find(|section| section.contains(&format!("name = \"{name}\"")))
        .unwrap_or_else(|| panic!("no layout {name}"));
    let number = |key: &str| -> f64 {
        let line = section
            .lines()
            .find(|line| line.starts_with(key))
            .unwrap_or_else(|| panic!("no {key} in {name}"));
        line.split('=').nth(1).and_then(|value| value.trim().parse().ok()).expect("a number")
    };
    (number("write"), number("read"), number("pack_segments") as u64)
}

/// A server without another source requests the next segment every few seconds.
#[test]
fn a_segment_that_is_not_there_takes_three_listings() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 2);
    let wal = pg_wal(root.path(), &files);
    let requests = Arc::new(Requests::default());
    let archive = requests.archive(root.path());
    archive.create().expect("an archive");
    push(&archive, &wal.join(&files[0].0), &PushOptions::default().look_ahead(0)).asked.expect("archived");
    requests.take();
    // Another process, without cached knowledge.
    let next = ArchivedFile::parse(&files[1].0).expect("a segment's name");
    let ArchivedFile::Segment(segment) = next else { panic!("a segment") };
    let target = root.path().join("next");
    // The program's calls for a standby.
    let error = get(&requests.archive(root.path()), next, &target).expect_err("not there");
    assert!(matches!(error, GetError::NotThere { .. }), "{error}");
    let error = get_begun(&requests.archive(root.path()), segment, &target, true).expect_err("not there");
    assert!(matches!(error, GetError::NotThere { .. }), "{error}");
    assert_eq!(requests.take(), (3, 4));
}

/// Creates an archive of these files, each pushed by a separate call, without counting these requests.
fn archived(root: &Path, files: &[(String, Vec<u8>)]) -> (Arc<Requests>, Archive) {
    let wal = pg_wal(root, files);
    let requests = Arc::new(Requests::default());
    let archive = requests.archive(root);
    archive.create().expect("an archive");
    let options = PushOptions::default().look_ahead(0);
    for (name, _) in files {
        push(&archive, &wal.join(name), &options).asked.expect("archived");
    }
    requests.take();
    (requests, archive)
}

#[test]
fn a_history_that_is_missing_takes_few_listings_however_many_timelines_there_may_be_before_it() {
    const TIMELINE: u32 = 5000;
    let root = tempfile::tempdir().expect("a folder");
    let (requests, _) = archived(root.path(), &[log(1, 1, 1), log(TIMELINE, 2, 1)].concat());
    let get_history = |timeline| {
        let archive = requests.archive(root.path());
        get(&archive, ArchivedFile::History(timeline), &root.path().join("history")).expect_err("not there")
    };
    assert!(matches!(get_history(TIMELINE), GetError::NoHistory { .. }));
    let (listings, _) = requests.take();
    assert!(listings <= 6, "{listings} listings");
    // No file of the timeline exists.
    assert!(matches!(get_history(TIMELINE - 1), GetError::NotThere { .. }));
}

#[test]
fn a_file_that_was_archived_ahead_takes_no_more_than_a_listing() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 3);
    let wal = pg_wal(root.path(), &files);
    let requests = Arc::new(Requests::default());
    requests.archive(root.path()).create().expect("an archive");
    // Each call simulates another process.
    let push = |index: usize| {
        requests.take();
        let pushed =
            push(&requests.archive(root.path()), &wal.join(&files[index].0), &PushOptions::default());
        (pushed.asked.expect("archived").was_there, requests.take())
    };
    std::thread::sleep(SETTLED);
    assert!(!push(0).0);
    let (was_there, (listings, reads)) = push(1);
    assert!(was_there);
    // The folder's identity is checked again, but the object is not read.
    assert_eq!((listings, reads), (1, 1));
    // Written to later, with the same content.
    fs::write(wal.join(&files[2].0), &files[2].1).expect("a segment");
    let (was_there, (_, reads)) = push(2);
    assert!(was_there && reads > 1, "{reads} reads");
}

#[test]
fn a_pack_that_ends_early_reads_no_segment_twice() {
    let reads = |options: PackOptions| {
        let root = tempfile::tempdir().expect("a folder");
        let (requests, archive) = archived(root.path(), &log(1, 0x24, 12));
        let packed = pack(&archive, &options, &|_, _| {}).expect("packed");
        assert_eq!(packed.packs.len(), 6, "{packed:?}");
        requests.take().1
    };
    let planned = PackOptions::default().keep(0).segments(Some(2));
    let early = planned.clone().segments(Some(12)).max_bytes(1 << 20);
    assert_eq!(reads(early), reads(planned));
}

#[test]
fn requests_per_segment_are_what_the_cost_table_reckons_with() {
    const SEGMENTS: u64 = 64;
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, SEGMENTS);
    let wal = pg_wal(root.path(), &files);
    let requests = Arc::new(Requests::default());
    // Each call of archive_command is a new process without cached knowledge.
    let archive = || requests.archive(root.path());
    let options = PushOptions::default().look_ahead(0);
    archive().create().expect("an archive");
    push(&archive(), &wal.join(&files[0].0), &options).asked.expect("archived");
    requests.take();
    for (name, _) in &files[1..] {
        push(&archive(), &wal.join(name), &options).asked.expect("archived");
        let (write, read) = requests.take();
        let (stated_write, stated_read, _) = stated("Walden, segments");
        assert_eq!((write as f64, read as f64), (stated_write, stated_read), "{name}");
    }

    let (stated_write, stated_read, per_pack) = stated("Walden, packed");
    let options = PackOptions::default().keep(0).segments(Some(per_pack));
    pack(&archive(), &options, &|_, _| {}).expect("packed");
    let (write, read) = requests.take();
    let (pushed_write, pushed_read, _) = stated("Walden, segments");
    let per_segment = |requests: usize| requests as f64 / SEGMENTS as f64;
    let (write, read) = (pushed_write + per_segment(write), pushed_read + per_segment(read));
    assert!(write <= stated_write && stated_write < write + 0.2, "{write} write requests per segment");
    assert!(read <= stated_read && stated_read < read + 0.2, "{read} read requests per segment");
}
