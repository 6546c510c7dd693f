//! Reads an archive while another process packs and prunes it, between any two keys of a listing and any two
//! calls.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use walden_archive::Archive;
use walden_archive::export::{Plan, Selection, export};
use walden_archive::list::{ListOptions, list};
use walden_archive::name::Object;
use walden_archive::pack::{PackOptions, pack};
use walden_archive::prune::{Rule, plan};
use walden_archive::source::{Bound, SourceOptions, open};
use walden_archive::status::holdings;
use walden_archive::store::{Folder, Store};
use walden_archive::verify::{VerifyOptions, verify};
use walden_format::lsn::{Lsn, SegmentName};

use crate::faults::{copy, half_packed, pack_all};
use crate::material::{archive, archive_of, commit_time, expect_all, log, pg_wal, push_all, stored};
use crate::watched::{Order, Watched};

/// One call of another process.
#[derive(Clone, Debug)]
enum Step {
    /// Stores an object: its path, and the path of its content.
    Create(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl Step {
    fn run(&self) {
        match self {
            Step::Create(path, content) => {
                fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                fs::copy(content, path).expect("a copy");
            }
            // The test itself may already have pruned the file.
            Step::Remove(path) => match fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
                _ => {}
            },
        }
    }
}

/// The steps of another process, starting with the k-th event: a call, or a key of a listing.
struct Events {
    seen: usize,
    starts_at: usize,
    /// One step per event, instead of all at the first one.
    is_gradual: bool,
    steps: VecDeque<Step>,
}

impl Events {
    /// Runs the steps that are due before an event.
    fn before(&mut self) {
        self.seen += 1;
        if self.seen <= self.starts_at {
            return;
        }
        let count = if self.is_gradual { 1 } else { self.steps.len() };
        for step in self.steps.drain(..count.min(self.steps.len())) {
            step.run();
        }
    }
}

/// Returns the steps from one archive to another, in the order of `pack` and `prune`: objects are removed
/// only after they are in a pack.
fn steps(before: &Path, after: &Path, place: &Path) -> VecDeque<Step> {
    let objects = |root: &Path| -> BTreeMap<Object, String> {
        let mut found = BTreeMap::new();
        Folder::new(root.join("archive"))
            .list("", &mut |listed| {
                found.extend(Object::parse_key(&listed.key).map(|object| (object, listed.key)));
            })
            .expect("a list");
        found
    };
    let (old, new) = (objects(before), objects(after));
    let path = |key: &String| place.join(key);
    let is_within = |object: &Object, pack: &Object| match (object.segments(), pack.segments()) {
        (Some((first, last)), Some(range)) => range.0 <= first && last <= range.1,
        _ => false,
    };
    let (packed, pruned): (Vec<_>, Vec<_>) = old
        .iter()
        .filter(|(object, _)| !new.contains_key(object))
        .partition(|(object, _)| new.keys().any(|pack| is_within(object, pack)));
    let mut steps: VecDeque<Step> = pruned.iter().map(|(_, key)| Step::Remove(path(key))).collect();
    let mut packed = packed;
    for (pack, key) in &new {
        if !old.contains_key(pack) {
            steps.push_back(Step::Create(path(key), after.join("archive").join(key)));
        }
        let replaced = packed.extract_if(.., |(object, _)| is_within(object, pack));
        steps.extend(replaced.map(|(_, key)| Step::Remove(path(key))));
    }
    steps
}

/// Runs an operation on an archive that is packed, or pruned and packed, starting with the k-th event, for
/// every k.
fn while_it_is_packed(run: impl Fn(&Archive, bool, &str)) {
    let before = tempfile::tempdir().expect("a folder");
    half_packed(before.path());
    for (is_pruned, per_pack) in [(false, 3), (true, 3)] {
        let after = tempfile::tempdir().expect("a folder");
        copy(&before.path().join("archive"), &after.path().join("archive"));
        let other = archive(after.path());
        if is_pruned {
            plan(&other, &Rule::KeepBackups(1), Vec::new()).expect("a plan").apply(&other).expect("pruned");
        }
        pack_all(&other, per_pack);
        assert!(stored(other.store()).len() == 3 - usize::from(is_pruned), "{:?}", stored(other.store()));
        for (order, is_gradual) in
            [(Order::Ascending, false), (Order::Ascending, true), (Order::Descending, true)]
        {
            for starts_at in 0.. {
                let what =
                    format!("from event {starts_at}, pruned: {is_pruned}, {order:?}, gradual: {is_gradual}");
                let root = tempfile::tempdir().expect("a folder");
                let place = root.path().join("archive");
                copy(&before.path().join("archive"), &place);
                let steps = steps(before.path(), after.path(), &place);
                assert!(steps.len() > 5, "{steps:?}");
                let events = Arc::new(Mutex::new(Events { seen: 0, starts_at, is_gradual, steps }));
                let meanwhile = events.clone();
                let live = Watched::new(&place, move |_| meanwhile.lock().expect("a lock").before());
                run(&Archive::new(Box::new(live.key_by_key(order))), is_pruned, &what);
                let state = events.lock().expect("a lock");
                if starts_at >= state.seen {
                    assert!(state.seen > 10, "only {} events", state.seen);
                    break;
                }
            }
        }
    }
}

/// Returns whether a name is that of the first existing segment, given that earlier ones may be pruned.
fn is_first(name: &str, is_pruned: bool) -> bool {
    name.ends_with("00000020") || (is_pruned && (name.ends_with("00000021") || name.ends_with("00000022")))
}

#[test]
fn a_list_shows_no_gap_and_every_segment() {
    while_it_is_packed(|archive, is_pruned, what| {
        let listing = list(archive, ListOptions::default().all_summaries(true));
        let listing = listing.unwrap_or_else(|error| panic!("{what}: {error}"));
        let [timeline] = &listing.timelines[..] else { panic!("{what}: {listing:?}") };
        assert_eq!(timeline.gaps, [], "{what}");
        let (first, last) = (timeline.first_segment.as_deref(), timeline.last_segment.as_deref());
        assert!(is_first(first.expect("a segment"), is_pruned), "{what}: {first:?}");
        assert_eq!(last, Some("000000010000000000000026"), "{what}");
        assert!(is_pruned || timeline.segments == 7, "{what}: {timeline:?}");
        assert_eq!(timeline.last_commit_time, Some(commit_time(0x26)), "{what}");
        assert!(is_pruned || timeline.first_commit_time == Some(commit_time(0x20)), "{what}: {timeline:?}");
    });
}

#[test]
fn verification_finds_nothing_wrong_and_looks_at_every_segment() {
    while_it_is_packed(|archive, is_pruned, what| {
        // If only checksums are compared, the path is the same, but faster.
        let options = VerifyOptions::default().fast(true).threads(1);
        let shown = Mutex::new((0, 0));
        let progress = |done: u64, all: u64| {
            let mut shown = shown.lock().expect("a lock");
            assert!(
                shown.0 < done && done <= all && shown.1 <= all,
                "{what}: {done} of {all} after {shown:?}"
            );
            *shown = (done, all);
        };
        let verified = verify(archive, options, &progress).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(verified.is_good(), "{what}: {verified:?}");
        assert!(verified.segments >= if is_pruned { 5 } else { 7 }, "{what}: {verified:?}");
    });
}

#[test]
fn pruning_is_planned_without_warnings_and_removes_nothing_that_is_kept() {
    while_it_is_packed(|archive, _, what| {
        let planned = plan(archive, &Rule::KeepBackups(1), Vec::new());
        let planned = planned.unwrap_or_else(|error| panic!("{what}: {error}"));
        let report = planned.report();
        assert_eq!((&report.warnings[..], &report.reason), (&[][..], &None), "{what}");
        assert_eq!(report.kept_from.as_deref(), Some("0/02200000"), "{what}");
        assert_eq!(report.backups[0].problem, None, "{what}");
        planned.apply(archive).unwrap_or_else(|error| panic!("{what}: {error}"));
        let left = list(archive, ListOptions::default()).expect("a list").timelines.remove(0);
        assert_eq!(left.gaps, [], "{what}");
        assert_eq!(left.last_segment.as_deref(), Some("000000010000000000000026"), "{what}");
        assert!(left.segments >= 5, "{what}: {left:?}");
    });
}

#[test]
fn an_export_has_every_segment() {
    let segments = crate::material::log(1, 0x20, 7);
    while_it_is_packed(|archive, is_pruned, what| {
        let selection = Selection { timeline: None, from: is_pruned.then_some(0x22), to: None };
        let plan = Plan::select(archive, &selection).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(plan.gaps, [], "{what}");
        let target = tempfile::tempdir().expect("a folder");
        export(archive, &plan, target.path(), 1, &|_| {}).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        for (name, original) in &segments[if is_pruned { 2 } else { 0 }..] {
            assert!(fs::read(target.path().join(name)).expect(what) == *original, "{what}: {name}");
        }
    });
}

#[test]
fn a_source_has_every_segment_and_finds_moments() {
    let segments = crate::material::log(1, 0x20, 7);
    while_it_is_packed(|archive, _, what| {
        let options = SourceOptions::new(1).from(Some(Bound::Lsn(Lsn(0x22 << 20))));
        let from_time = Some(Bound::Time(commit_time(0x24)));
        let expected: &[(String, Vec<u8>)] = &segments[2..];
        for (options, expected) in [(options, expected), (options.from(from_time), &segments[3..])] {
            let source = open(archive, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
            let names: Vec<String> = source.segments.iter().map(|segment| segment.name.to_string()).collect();
            let expected_names: Vec<&String> = expected.iter().map(|(name, _)| name).collect();
            assert!(names.iter().eq(expected_names), "{what}: {names:?}");
            for (segment, (name, original)) in source.segments.iter().zip(expected) {
                let mut content = Vec::new();
                let mut reader =
                    walden_source::open::open(segment).unwrap_or_else(|error| panic!("{what}: {error}"));
                reader.read_to_end(&mut content).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(content == *original, "{what}: {name}");
            }
        }
    });
}

/// Several segments are archived concurrently, and one may arrive before its predecessor.
#[test]
fn a_segment_that_is_on_its_way_is_not_missing() {
    let segments = log(1, 0x20, 4);
    let (late, others) = (&segments[1..2], [&segments[..1], &segments[2..]].concat());
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &others);
    let missing = |waiting: &dyn Fn() -> Vec<SegmentName>| {
        holdings(&archive, waiting).expect("holdings").missing_segments
    };
    assert_eq!(missing(&Vec::new), 1);
    assert_eq!(missing(&|| vec![SegmentName::parse(&late[0].0).expect("a name")]), 0);
    // Archived, and no longer waiting, between the listing and the query of waiting files.
    let wal = pg_wal(root.path(), late);
    let arrive = || {
        push_all(&archive, &wal, late);
        Vec::new()
    };
    assert_eq!(missing(&arrive), 0);
}

#[test]
fn a_segment_that_arrives_during_verification_is_not_missing() {
    let segments = log(1, 0x20, 4);
    let (root, whole) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    archive_of(root.path(), &[&segments[..1], &segments[2..]].concat());
    archive_of(whole.path(), &segments);
    let (place, whole) = (root.path().join("archive"), whole.path().join("archive"));
    let (folder, is_listed) = (place.clone(), Mutex::new(false));
    let arriving = Watched::new(&place, move |call| {
        let mut is_listed = is_listed.lock().expect("a lock");
        match call {
            "list" => *is_listed = true,
            _ if *is_listed => copy(&whole, &folder),
            _ => {}
        }
    });
    let options = VerifyOptions::default().fast(true).threads(1);
    let verified = verify(&Archive::new(Box::new(arriving)), options, &|_, _| {}).expect("verified");
    assert_eq!((verified.segments, verified.gaps.len()), (3, 0), "{verified:?}");
}

/// A process writes small packs, or tidies up after a killed one. At its k-th call, for every k, another
/// process has stored a larger pack of the same segments, and tidies up, which removes the small packs.
#[test]
fn a_pack_that_a_larger_one_replaces_meanwhile_is_no_problem() {
    let segments = log(1, 0x20, 8);
    let single = tempfile::tempdir().expect("a folder");
    archive_of(single.path(), &segments);
    let packed_by = |size: u64| {
        let packed = tempfile::tempdir().expect("a folder");
        copy(&single.path().join("archive"), &packed.path().join("archive"));
        pack_all(&archive(packed.path()), size);
        packed
    };
    let (small, large) = (packed_by(4), packed_by(8));
    for is_killed in [false, true] {
        let mut with_fewer_packs = 0;
        for at in 0.. {
            let root = tempfile::tempdir().expect("a folder");
            let place = root.path().join("archive");
            copy(&single.path().join("archive"), &place);
            if is_killed {
                copy(&small.path().join("archive"), &place);
            }
            let (seen, large) = (Arc::new(Mutex::new(0)), large.path().join("archive"));
            let (calls, folder) = (seen.clone(), place.clone());
            let live = Watched::new(&place, move |_| {
                let mut calls = calls.lock().expect("a lock");
                if *calls == at {
                    copy(&large, &folder);
                    pack_all(&Archive::new(Box::new(Folder::new(&folder))), 8);
                }
                *calls += 1;
            });
            let options = PackOptions::default().segments(Some(4)).keep(0).threads(1);
            let what = format!("at call {at}, killed: {is_killed}");
            let packed = pack(&Archive::new(Box::new(live)), &options, &|_, _| {});
            let packed = packed.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(packed.is_good(), "{what}: {packed:?}");
            with_fewer_packs += u64::from(packed.segments < 8);
            let good = archive(root.path());
            pack_all(&good, 8);
            expect_all(&good, &segments, &what);
            let calls = *seen.lock().expect("a lock");
            if at >= calls {
                assert!(calls > 20 && with_fewer_packs > 5, "{calls} calls, {with_fewer_packs}");
                break;
            }
        }
    }
}
