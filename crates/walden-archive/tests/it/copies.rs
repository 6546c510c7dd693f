//! Copies of an archive: missing and damaged objects in one of them, and bringing them up to date.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use walden_archive::archive::Archive;
use walden_archive::catch_up::CatchUp;
use walden_archive::compare::{Compared, compare};
use walden_archive::copies::{Copies, Copy};
use walden_archive::copy::{CopyOptions, copy, replace_damaged};
use walden_archive::pack::{PackOptions, pack};
use walden_archive::prune::{self, Rule};
use walden_archive::store::Folder;
use walden_archive::verify::{self, VerifyOptions, verify};
use walden_format::lsn::SegmentName;

use crate::material::{archive_of, log};

/// Two archives with the same four segments.
struct Pair {
    folder: tempfile::TempDir,
}

impl Pair {
    fn new() -> Pair {
        let pair = Pair { folder: tempfile::tempdir().expect("a folder") };
        for name in ["one", "two"] {
            archive_of(&pair.folder.path().join(name), &log(1, 0x20, 4));
        }
        pair
    }

    fn root(&self, name: &str) -> PathBuf {
        self.folder.path().join(name).join("archive")
    }

    fn open(&self, name: &str) -> Archive {
        Archive::new(Box::new(Folder::new(self.root(name))))
    }

    fn object(&self, name: &str, number: u32) -> PathBuf {
        self.root(name).join(format!("wal/00000001/00000000/0000000100000000000000{number:X}.wlz"))
    }

    fn compare(&self) -> [Compared; 2] {
        let archives = ["one", "two"].map(|name| self.open(name));
        let compared = compare(&archives.each_ref(), 16).into_iter().map(|found| found.expect("listed"));
        compared.collect::<Vec<_>>().try_into().expect("two")
    }

    /// Returns the numbers of missing files and of damaged objects in each.
    fn counts(&self) -> [(u64, usize); 2] {
        self.compare().map(|found| (found.missing_files, found.damaged.len()))
    }

    fn verify(&self, name: &str) -> verify::Verified {
        let archive = self.open(name);
        let found = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
        verify::record(&archive, &found, false).expect("recorded");
        found
    }
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    fs::write(path, bytes).expect("written");
}

#[test]
fn damage_in_one_copy_counts_there() {
    let pair = Pair::new();
    assert_eq!(pair.counts(), [(0, 0), (0, 0)]);
    // A flipped bit is known once it is verified.
    flip(&pair.object("two", 0x21));
    assert_eq!(pair.counts(), [(0, 0), (0, 0)]);
    assert_eq!(pair.verify("two").damaged.len(), 1);
    let [one, two] = pair.compare();
    assert_eq!((one.damaged.len(), two.damaged.len()), (0, 1));
    assert!(two.damaged[0].object.contains("21.wlz") && two.damaged[0].problem.contains("verify"), "{two:?}");
    // A truncated object has another size than in the other copy.
    let content = fs::read(pair.object("one", 0x22)).expect("read");
    fs::write(pair.object("one", 0x22), &content[..content.len() / 3]).expect("written");
    assert_eq!(pair.counts(), [(0, 1), (0, 1)]);
    fs::remove_file(pair.object("two", 0x23)).expect("removed");
    assert_eq!(pair.counts(), [(0, 1), (1, 1)]);
    let [_, two] = pair.compare();
    assert_eq!(two.first_missing.as_deref(), Some("000000010000000000000023"));

    // Both are repaired from each other, and nothing is left.
    for (name, other) in [("one", "two"), ("two", "one")] {
        let (target, source) = (pair.open(name), pair.open(other));
        let mut found = pair.verify(name);
        let options = CopyOptions::default();
        let replaced = replace_damaged(std::slice::from_ref(&source), &target, &found.damaged, &options)
            .expect("replaced");
        assert!(replaced.is_complete(), "{replaced:?}");
        found.damaged.clear();
        verify::record(&target, &found, false).expect("recorded");
        let copied = copy(&[source], &target, &options, &|_, _| std::ops::ControlFlow::Continue(()));
        assert!(copied.expect("copied").is_complete());
    }
    assert_eq!(pair.counts(), [(0, 0), (0, 0)]);
    assert!(pair.verify("one").is_good() && pair.verify("two").is_good());
}

#[test]
fn other_compression_is_no_damage() {
    let pair = Pair::new();
    let target = pair.open("two");
    // Segments of a pack become objects of another level.
    let names = [0x20, 0x21].map(|number| pair.object("two", number));
    names.iter().for_each(|path| fs::remove_file(path).expect("removed"));
    let source = pair.open("one");
    pack(&source, &PackOptions::default().keep(0).segments(Some(4)), &|_, _| {}).expect("packed");
    let options = CopyOptions::default().level(0);
    let copied = copy(&[source], &target, &options, &|_, _| std::ops::ControlFlow::Continue(()));
    assert_eq!(copied.expect("copied").copied, 2);
    assert_eq!(pair.counts(), [(0, 0), (0, 0)]);
}

#[test]
fn what_was_pruned_does_not_come_back() {
    let pair = Pair::new();
    let (source, target) = (pair.open("one"), pair.open("two"));
    let first = SegmentName { timeline: 1, log: 0, segment: 0x22 };
    let plan = prune::plan(&target, &Rule::OlderThanSegment(first), Vec::new()).expect("planned");
    let pruned = plan.apply(&target).expect("pruned");
    assert_eq!(pruned.removed_objects, 2, "{pruned:?}");
    fs::remove_file(pair.object("two", 0x23)).expect("removed");
    assert_eq!(pair.counts(), [(0, 0), (1, 0)]);
    let copy = |all: bool| {
        let options = CopyOptions::default().all(all);
        let sources = [source.clone()];
        let copied = copy(&sources, &target, &options, &|_, _| std::ops::ControlFlow::Continue(()));
        copied.expect("copied").copied
    };
    assert_eq!((copy(false), copy(false)), (1, 0));
    assert!(!pair.object("two", 0x20).exists() && pair.object("two", 0x23).exists());
    assert_eq!((copy(true), copy(true)), (2, 0));
    assert!(pair.object("two", 0x20).exists());
    // The other archive was not pruned: nothing of it is to be removed or copied.
    assert_eq!(pair.counts(), [(0, 0), (0, 0)]);
}

struct Stop<'c>(&'c CatchUp);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn a_copy_that_was_away_is_brought_up_to_date() {
    let pair = Pair::new();
    let away = pair.root("two").with_extension("away");
    for number in [0x22, 0x23] {
        fs::remove_file(pair.object("two", number)).expect("removed");
    }
    fs::rename(pair.root("two"), &away).expect("away");
    let copies = ["one", "two"].map(|name| Copy::new(pair.open(name)));
    let catch_up = CatchUp::new(Copies::new(copies.to_vec(), 1).expect("copies"), 3);
    let rounds = Mutex::new(Vec::new());
    let wait = |is_done: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_done() {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", rounds.lock());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    std::thread::scope(|scope| {
        // Also if an assertion fails.
        let _stop = Stop(&catch_up);
        let running = scope.spawn(|| {
            catch_up.run(&|round| {
                let found = (round.copy, round.is_behind(), round.problem().map(|(problem, _)| problem));
                rounds.lock().expect("locked").push(found);
            });
        });
        wait(&|| rounds.lock().expect("locked").len() >= 2);
        let found = rounds.lock().expect("locked").clone();
        // The other one lacks nothing that is known.
        assert_eq!(found[0], (0, false, None));
        assert!(found[1].1 && found[1].2.as_ref().is_some_and(|problem| problem.contains("cannot find")));
        assert!(!pair.root("two").exists(), "nothing is written below a mount point");
        fs::rename(&away, pair.root("two")).expect("back");
        wait(&|| pair.object("two", 0x23).exists() && pair.object("two", 0x22).exists());
        // Another file, which a push stored in one of them.
        fs::remove_file(pair.object("one", 0x21)).expect("removed");
        catch_up.note_behind();
        wait(&|| pair.object("one", 0x21).exists());
        catch_up.stop();
        running.join().expect("ended");
    });
    assert_eq!(pair.counts(), [(0, 0), (0, 0)]);
}
