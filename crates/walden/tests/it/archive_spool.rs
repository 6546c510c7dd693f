//! Recovery from the spool of `walden receive`: it restores exactly the received WAL.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::material::{Run, golden, make_archive, walden};

walden_testing::tests! {
    a_complete_segment_of_the_spool_is_checked_before_it_is_handed_over,
    a_segment_that_was_received_in_part_is_handed_over_up_to_its_end,
    a_segment_of_another_cluster_is_not_handed_over,
}

/// The archived segment.
const ARCHIVED: &str = "00000001000000000000000B";
/// The segment in the spool, which has more records.
const RECEIVED: &str = "00000001000000000000000A";
/// Bytes at the start of the latter that contain records, up to a segment switch.
const RECORDS_BYTES: usize = 300_000;

/// An archive with one segment, and a spool next to it.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap() };
        make_archive(&place.path("repo"));
        fs::create_dir(place.path("spool")).unwrap();
        fs::create_dir(place.path("data")).unwrap();
        let segment = place.path(ARCHIVED);
        fs::write(&segment, &golden("18.6")[ARCHIVED]).unwrap();
        let pushed = walden(&["archive", "push", "--repo", text(&place.path("repo")), text(&segment)]);
        assert_eq!(pushed.code, 0, "{pushed:?}");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn receive(&self, name: &str, content: &[u8]) {
        fs::write(self.path("spool").join(name), content).unwrap();
    }

    fn get(&self, name: &str) -> (Run, Option<Vec<u8>>) {
        let target = self.path("data/RECOVERYXLOG");
        let _ = fs::remove_file(&target);
        let (repo, spool) = (self.path("repo"), self.path("spool"));
        let place = ["--repo", text(&repo), "--spool", text(&spool)];
        let run = walden(&[&["archive", "get", name, text(&target)][..], &place].concat());
        (run, fs::read(&target).ok())
    }

    /// Expects an error for which PostgreSQL stops, and which states the problem and a remedy.
    fn assert_refused(&self, name: &str, what: &str) {
        let (run, content) = self.get(name);
        let says = |text: &str| run.stderr.contains(text);
        assert!(run.code == 200 && content.is_none(), "{what}: {run:?}");
        assert!(says(what) && says(name) && says("HINT: "), "{what}: {run:?}");
    }
}

fn a_complete_segment_of_the_spool_is_checked_before_it_is_handed_over() {
    let place = Place::new();
    let segments = golden("18.6");
    let segment = &segments[RECEIVED];
    let half = RECORDS_BYTES / 2;
    // The archive has only a later segment.
    place.assert_refused(RECEIVED, "found a gap");
    place.receive(RECEIVED, segment);
    let (run, content) = place.get(RECEIVED);
    assert!(run.code == 0 && content.as_ref() == Some(segment), "{run:?}");

    let mut damaged = segment.clone();
    flip(&mut damaged, half);
    place.receive(RECEIVED, &damaged);
    place.assert_refused(RECEIVED, "damaged at 0/00A");
    place.assert_refused(RECEIVED, "(offset ");
    for (content, what) in [
        (&segment[..half], "the file's size: expected 1048576 bytes"),
        (&segment[..0], "found 0 bytes"),
        (&segments[ARCHIVED][..], "the first page's address: expected 0/00A00000"),
    ] {
        place.receive(RECEIVED, content);
        place.assert_refused(RECEIVED, what);
    }
    let mut cut = segment.clone();
    cut[half..].fill(0);
    place.receive(RECEIVED, &cut);
    place.assert_refused(RECEIVED, "the segment is not complete");
    // The spool is unchanged.
    assert!(fs::read(place.path("spool").join(RECEIVED)).unwrap() == cut);
}

fn a_segment_that_was_received_in_part_is_handed_over_up_to_its_end() {
    let place = Place::new();
    let segments = golden("18.6");
    let segment = &segments[RECEIVED];
    let partial = format!("{RECEIVED}.partial");
    for end in [100_000, RECORDS_BYTES, segment.len()] {
        let mut content = segment.clone();
        content[end..].fill(0);
        place.receive(&partial, &content);
        let (run, got) = place.get(RECEIVED);
        assert!(run.code == 0 && got.as_ref() == Some(&content), "{end}: {run:?}");
        flip(&mut content, end.min(RECORDS_BYTES) / 2);
        place.receive(&partial, &content);
        place.assert_refused(RECEIVED, "damaged at 0/00A");
    }
    place.receive(&partial, &segment[..200_000]);
    place.assert_refused(RECEIVED, "the file's size");
    // No WAL of it has been received yet.
    place.receive(&partial, &vec![0; segment.len()]);
    place.assert_refused(RECEIVED, "found a gap");
}

fn a_segment_of_another_cluster_is_not_handed_over() {
    let place = Place::new();
    let (name, other) = golden("17.11").pop_first().unwrap();
    assert!(name != ARCHIVED);
    for file in [name.clone(), format!("{name}.partial")] {
        place.receive(&file, &other);
        place.assert_refused(&name, "expected system identifier");
        fs::remove_file(place.path("spool").join(file)).unwrap();
    }
    // A history does not identify its cluster, but the segment next to it does.
    place.receive(&name, &other);
    place.receive("00000002.history", b"1\t0/B000028\tno recovery target specified\n");
    place.assert_refused("00000002.history", "expected system identifier");
}

/// Flips bits in more bytes than a page or a record leaves without a checksum.
fn flip(content: &mut [u8], offset: usize) {
    for byte in &mut content[offset..offset + 16] {
        *byte ^= 1;
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
