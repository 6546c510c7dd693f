//! An archive as a source of segments.

use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use walden_archive::archive::{Archive, ArchiveError};
use walden_archive::push::{PushOptions, push};
use walden_archive::source::{Bound, Source, SourceOptions, open};
use walden_archive::sources::{self, SourcesError};
use walden_format::lsn::Lsn;
use walden_format::record::Record;
use walden_format::stream::Visitor;
use walden_source::inventory::Inventory;
use walden_source::scan::{DamageKind, ScanOptions, SegmentEnd, scan_in_order};

use crate::material::{archive_of, complete, log, pg_wal};
use crate::watched::{Decision, Watched};

/// Creates an archive of the golden segments. The second one is also on timeline 2, which starts in it.
fn archived(root: &Path) -> (Archive, Arc<Mutex<Vec<String>>>) {
    let originals = complete();
    let mut files = originals.clone();
    let second = &originals[1];
    files.push((second.0.replacen("00000001", "00000002", 1), second.1.clone()));
    files.push(("00000002.history".to_owned(), b"1\t0/B80000\tno reason\n".to_vec()));
    let wal = pg_wal(root, &files);
    let read: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = Arc::clone(&read);
    // Records which objects are read completely.
    let store = Watched::deciding(&root.join("archive"), move |call, key| {
        if call == "read" {
            recorded.lock().expect("a lock").push(key.to_owned());
        }
        Decision::Pass
    });
    let archive = Archive::new(Box::new(store));
    archive.create().expect("an archive");
    let batch = push(&archive, &wal.join(&files[0].0), &PushOptions::default());
    batch.asked.expect("archived");
    assert!(batch.others.len() == 3 && batch.others.iter().all(Result::is_ok), "{:?}", batch.others);
    read.lock().expect("a lock").clear();
    (archive, read)
}

fn options() -> SourceOptions {
    SourceOptions::new(2)
}

fn names(source: &Source) -> Vec<String> {
    source.segments.iter().map(|segment| segment.name.to_string()).collect()
}

#[test]
fn an_archive_is_one_log_along_its_newest_timeline() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, _) = archived(root.path());
    let source = open(&archive, &options()).expect("a log");
    assert_eq!(names(&source), ["00000001000000000000000A", "00000002000000000000000B"]);
    let originals = complete();
    for (segment, (_, original)) in source.segments.iter().zip(&originals) {
        let mut content = Vec::new();
        let mut reader = walden_source::open::open(segment).expect("it opens");
        reader.read_to_end(&mut content).expect("it is read");
        assert!(content == *original, "{}", segment.name);
    }
    let nothing: [&str; 0] = [];
    let mut inventory =
        Inventory::with_segments(&nothing, source.segments.clone(), Vec::new(), 1).expect("segments");
    inventory.follow(source.system_id, &source.stretches);
    assert_eq!((inventory.runs.len(), inventory.runs[0].timeline), (1, 2));
    let first = open(&archive, &options().timeline(Some(1))).expect("a log");
    assert_eq!(names(&first), ["00000001000000000000000A", "00000001000000000000000B"]);
}

#[test]
fn no_more_is_read_than_a_range_needs() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, read) = archived(root.path());
    let from = Some(Bound::Lsn(Lsn(0xB0_0100)));
    let source = open(&archive, &options().from(from)).expect("a log");
    assert_eq!(names(&source), ["00000002000000000000000B"]);
    let read: Vec<String> = read.lock().expect("a lock").drain(..).collect();
    let segments: Vec<&String> = read.iter().filter(|key| key.starts_with("wal/")).collect();
    assert_eq!(segments, ["wal/00000002/00000000/00000002000000000000000B.wlz"]);
    let nowhere = Some(Bound::Lsn(Lsn(0xD0_0000)));
    let error = open(&archive, &options().from(nowhere));
    let Err(ArchiveError::NoSegments { timeline: 2, extent: Some(extent), .. }) = error else {
        panic!("{error:?}")
    };
    assert_eq!((extent.start, extent.end), (Lsn(0xA0_0000), Lsn(0xC0_0000)));
    assert!(extent.times.is_some_and(|(first, last)| first <= last), "{extent:?}");
    let text = extent.to_string();
    assert!(text.contains(" to 0/") && text.contains(", with transactions that ended from "), "{text}");
}

#[test]
fn a_range_of_times_is_found_by_the_summaries() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, _) = archived(root.path());
    let listing = walden_archive::list::list(&archive, Default::default()).expect("a list");
    let first = listing.timelines[0].first_commit_time.expect("a time");
    let last = listing.timelines[0].last_commit_time.expect("a time");
    let at = |from: Option<i64>, to: Option<i64>| {
        let (from, to) = (from.map(Bound::Time), to.map(Bound::Time));
        names(&open(&archive, &options().from(from).to(to)).expect("a log"))
    };
    assert_eq!(at(None, None).len(), 2);
    assert_eq!(at(Some(first), None).len(), 2, "all of it ends then or later");
    // The range starts after the last commit, so the segment that contains it is kept.
    let segments = ["00000001000000000000000A", "00000002000000000000000B"];
    let kept = if listing.timelines[1].last_commit_time.is_some() { &segments[1..] } else { &segments[..] };
    assert_eq!(at(Some(last + 1), None), kept);
    assert_eq!(at(None, Some(first)).len(), 2, "with the end of the first segment's last record");
}

/// Creates an archive of two segments of a cluster.
fn archive_of_cluster(root: &Path, system_id: u64) -> Archive {
    let mut segments = log(1, 0x20, 2);
    for (_, bytes) in &mut segments {
        // `xlp_sysid`, after the short header.
        bytes[24..32].copy_from_slice(&system_id.to_le_bytes());
    }
    archive_of(root, &segments)
}

#[test]
fn archives_of_two_clusters_are_not_one_log_in_whatever_order_they_are_named() {
    let roots = [7, 8].map(|cluster| (cluster, tempfile::tempdir().expect("a folder")));
    let archives = roots.each_ref().map(|(cluster, root)| archive_of_cluster(root.path(), *cluster));
    let named = |order: &[usize]| {
        let archives: Vec<(String, Archive)> =
            order.iter().map(|&at| (at.to_string(), archives[at].clone())).collect();
        sources::open(&archives, &[], &options())
    };
    for order in [&[0, 1][..], &[0, 1, 0], &[0, 0, 1]] {
        let error = named(order).expect_err("two clusters");
        assert!(matches!(error, SourcesError::TwoClusters(7, 8)), "{order:?}: {error}");
    }
}

/// Counts the records of a run.
struct Count(u64);

impl Visitor for Count {
    fn record(&mut self, _: &Record<'_>) -> ControlFlow<()> {
        self.0 += 1;
        ControlFlow::Continue(())
    }
}

/// A server archives a segment, renames its file and writes a later segment into it, while a reader that
/// found it only in `pg_wal` has not read it yet.
#[test]
fn a_segment_recycled_since_it_was_found_is_read_from_the_archive_that_has_it_by_then() {
    let scan = |inventory: &Inventory, threads| {
        let [run] = &inventory.runs[..] else { panic!("{inventory:?}") };
        let mut count = Count(0);
        let options = ScanOptions::new(threads);
        let (reached, end) = scan_in_order(run, options, &mut count, |_| ());
        (reached, count.0, end)
    };
    for pages in [1, 3, 40] {
        let root = tempfile::tempdir().expect("a folder");
        let segments = log(1, 0x20, 6);
        let archive = archive_of(root.path(), &segments[..2]);
        let wal = root.path().join("data");
        fs::create_dir(&wal).expect("a folder");
        for (name, bytes) in &segments[2..5] {
            fs::write(wal.join(name), bytes).expect("a segment");
        }
        let archives = [("the archive".to_owned(), archive.clone())];
        let found = || sources::open(&archives, std::slice::from_ref(&wal), &options()).expect("sources");
        let inventory = found().inventory;
        let (reached, records, _) = scan(&inventory, 1);
        let inventory = found().inventory;

        let (name, _) = &segments[2];
        let later = wal.join(&segments[5].0);
        let recycle = |inventory: &Inventory| {
            // The first two segments are read, and a part of the third one.
            assert_eq!(inventory.segments().count(), 5);
            fs::rename(wal.join(name), &later).expect("renamed");
            let file = fs::OpenOptions::new().write(true).open(&later).expect("a file");
            file.write_all_at(&segments[5].1[..pages * 8192], 0).expect("written");
        };
        recycle(&inventory);
        let SegmentEnd::Damaged(damage) = scan(&inventory, 1).2 else { panic!("read without the segment") };
        let DamageKind::Recycled { next, .. } = damage.kind else { panic!("{damage}") };
        assert_eq!((next, damage.lsn), (Some(Lsn(0x23 << 20)), Lsn(0x22 << 20)), "{damage}");
        for part in ["a running server recycled the file", "still exists starts at 0/02300000"] {
            assert!(damage.to_string().contains(part), "{damage}");
        }

        // The archive gets it later than the reader has opened its sources.
        let queue = pg_wal(root.path(), &segments[2..3]);
        push(&archive, &queue.join(name), &PushOptions::default()).asked.expect("archived");
        for threads in [1, 2] {
            let (again, count, end) = scan(&inventory, threads);
            assert_eq!((again, count), (reached, records), "{pages} {threads}: {end:?}");
        }
        // A damaged copy is an error that names the archive.
        let object = root.path().join(format!("archive/wal/00000001/00000000/{name}.wlz"));
        fs::write(&object, b"no segment").expect("damaged");
        let SegmentEnd::Damaged(damage) = scan(&inventory, 1).2 else { panic!("read a damaged object") };
        assert!(matches!(damage.kind, DamageKind::Io(_)) && damage.to_string().contains(name), "{damage}");
    }
}

#[test]
fn a_damaged_object_is_an_error_where_it_is_read() {
    let root = tempfile::tempdir().expect("a folder");
    let (archive, _) = archived(root.path());
    let object = root.path().join("archive/wal/00000002/00000000/00000002000000000000000B.wlz");
    let mut bytes = fs::read(&object).expect("an object");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&object, bytes).expect("an object");
    // From here on, objects are read ahead.
    let source = open(&archive, &options()).expect("a log");
    let mut content = Vec::new();
    let read = walden_source::open::open(&source.segments[1]).and_then(|mut it| it.read_to_end(&mut content));
    let error = read.expect_err("damaged").to_string();
    assert!(error.contains("00000002000000000000000B.wlz"), "{error}");
    assert!(walden_source::open::open(&source.segments[0]).is_ok());
}
