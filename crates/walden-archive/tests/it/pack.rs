//! Packs: which segments are packed, which objects exist at any time, and reading from packs.

use std::fs;
use std::time::{Duration, Instant};

use walden_archive::Archive;
use walden_archive::archive::ArchiveError;
use walden_archive::check::{Rules, check};
use walden_archive::get::{GetError, PackMembers, get};
use walden_archive::list::{ListOptions, list};
use walden_archive::name::{ArchivedFile, Object};
use walden_archive::object::{self, Content};
use walden_archive::pack::{PackOptions, Packed, pack};
use walden_archive::prefetch::{PrefetchOptions, Spool, prefetch};
use walden_archive::push::{PushError, PushOptions, push};
use walden_archive::store::Folder;
use walden_archive::verify::{VerifyOptions, verify};

use crate::material::{
    archive, archive_of, commit_time, complete, expect_all, leftovers, log, pg_wal, push_all, stored,
};

fn options(segments: u64, keep: u64) -> PackOptions {
    PackOptions::default().segments(Some(segments)).keep(keep)
}

fn packed(archive: &Archive, options: &PackOptions) -> Packed {
    let packed = pack(archive, options, &|_, _| {}).expect("packed");
    assert!(packed.is_good(), "{packed:?}");
    packed
}

#[test]
fn packs_take_the_place_of_segments_and_everything_comes_back() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 3, 20);
    let archive = archive_of(root.path(), &segments);
    let all = ListOptions::default().all_summaries(true);
    let before = list(&archive, all).expect("a list");
    let planned = packed(&archive, &options(8, 2).dry_run(true));
    assert_eq!(stored(archive.store()).len(), 20);
    let done = packed(&archive, &options(8, 2));
    assert_eq!((done.segments, done.packs.len()), (planned.segments, planned.packs.len()));
    let names = [
        "000000010000000000000003-000000010000000000000007.wpk",
        "000000010000000000000008-00000001000000000000000F.wpk",
    ];
    assert_eq!(stored(archive.store())[..2], names);
    assert_eq!((done.segments, done.objects_before, done.objects_after), (13, 20, Some(9)));
    assert!(done.bytes_after.expect("bytes") < done.bytes_before);
    expect_all(&archive, &segments, "packed");
    // Lists and searches by time return the same, without decoding anything.
    let after = list(&archive, all).expect("a list");
    let (mut expected, found) = (before.timelines[0].clone(), after.timelines[0].clone());
    (expected.stored_bytes, expected.objects) = (found.stored_bytes, found.objects);
    assert_eq!(found, expected);
    assert_eq!(found.first_commit_time, Some(commit_time(3)));
    let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
    assert!(verified.is_good() && verified.segments == 20, "{verified:?}");
    // A second run finds nothing to do.
    let again = packed(&archive, &options(8, 2));
    assert_eq!((again.segments, again.tidied.len()), (0, 0));
    assert_eq!(leftovers(root.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn what_is_young_by_its_commits_stays_and_a_clock_that_was_set_does_no_harm() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x10, 16);
    let archive = archive_of(root.path(), &segments);
    let before = |moment| options(4, 0).before(Some(moment));
    assert_eq!(packed(&archive, &before(commit_time(0x0F))).segments, 0);
    assert_eq!(packed(&archive, &before(commit_time(0x18) - 1)).segments, 8);
    assert_eq!(packed(&archive, &before(commit_time(0x1A))).segments, 0);
    // If the clock is far in the future, all segments are old.
    assert_eq!(packed(&archive, &before(i64::MAX)).segments, 8);
    expect_all(&archive, &segments, "packed");
}

#[test]
fn a_packed_segment_is_pushed_again_only_if_it_is_the_same() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 8, 8);
    let archive = archive_of(root.path(), &segments);
    packed(&archive, &options(8, 0));
    let wal = root.path().join("pg_wal");
    let again = push(&archive, &wal.join(&segments[3].0), &PushOptions::default());
    assert!(again.asked.expect("archived").was_there);
    assert!(again.others.iter().all(|other| other.as_ref().expect("archived").was_there));
    assert_eq!(stored(archive.store()).len(), 1);
    // Different content that is equally valid.
    let other = log(1, 11, 1).swap_remove(0).1;
    assert_ne!(other, segments[3].1);
    fs::write(wal.join(&segments[3].0), &other).expect("a segment");
    match push(&archive, &wal.join(&segments[3].0), &PushOptions::default()).asked {
        Err(PushError::Archive { source: ArchiveError::Conflict { .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(stored(archive.store()).len(), 1);
    expect_all(&archive, &segments, "packed");
}

#[test]
fn a_packed_segment_that_cannot_be_read_is_not_acknowledged() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 8, 8);
    let archive = archive_of(root.path(), &segments);
    packed(&archive, &options(8, 0));
    let pack = stored(archive.store()).remove(0);
    let path = root.path().join("archive/wal/00000001/00000000").join(pack);
    let good = fs::read(&path).expect("a pack");
    let alone = PushOptions::default().look_ahead(0);
    for at in (0..good.len()).step_by(good.len() / 10) {
        let mut bad = good.clone();
        bad[at] ^= 4;
        fs::write(&path, &bad).expect("a pack");
        let mut refused = 0;
        for (name, _) in &segments {
            let pushed = push(&archive.afresh(), &root.path().join("pg_wal").join(name), &alone).asked;
            let file = ArchivedFile::parse(name).expect("a name");
            let got = get(&archive.afresh(), file, &root.path().join("target"));
            assert!(pushed.is_err() || got.is_ok(), "byte {at}: {name}");
            refused += u64::from(pushed.is_err());
        }
        assert!(refused > 0, "byte {at}");
    }
}

/// An interrupted run leaves segments twice. Recovery needs only one of the two.
#[test]
fn a_segment_whose_own_object_is_damaged_comes_out_of_its_pack() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 8, 8);
    let archive = archive_of(root.path(), &segments);
    let file = ArchivedFile::parse(&segments[2].0).expect("a name");
    let own = root.path().join("archive").join(file.key());
    let good = fs::read(&own).expect("an object");
    packed(&archive, &options(8, 0));
    let pack = stored(archive.store()).remove(0);
    let pack = root.path().join("archive/wal/00000001/00000000").join(pack);
    for bad in [&good[..0], &good[..good.len() / 2]] {
        fs::write(&own, bad).expect("an object");
        expect_all(&archive, &segments, "beside a damaged object");
    }
    // If a segment is damaged in both, nothing is returned.
    fs::write(&pack, b"").expect("a pack");
    let target = root.path().join("target");
    let error = get(&archive, file, &target).expect_err("nothing to hand over");
    assert!(matches!(error, GetError::Archive { .. }) && !target.exists(), "{error:?}");
}

#[test]
fn what_an_interrupted_run_left_twice_is_compared_and_removed() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 16);
    let archive = archive_of(root.path(), &segments);
    let folder = root.path().join("archive/wal/00000001/00000000");
    let copies: Vec<_> = segments
        .iter()
        .map(|(name, _)| (folder.join(format!("{name}.wlz")), fs::read(folder.join(format!("{name}.wlz")))))
        .collect();
    packed(&archive, &options(4, 0));
    // The run was killed before it removed the segments' own objects, and earlier runs used another pack
    // size.
    for (path, bytes) in &copies {
        fs::write(path, bytes.as_ref().expect("an object")).expect("an object");
    }
    for pack in stored(archive.store()).iter().filter(|name| name.ends_with(".wpk")).skip(2) {
        fs::remove_file(folder.join(pack)).expect("a pack");
    }
    let planned = packed(&archive, &options(8, 0).dry_run(true));
    assert_eq!((planned.tidied.len(), planned.segments), (8, 8));
    let done = packed(&archive, &options(8, 0));
    assert_eq!((done.tidied.len(), done.segments), (8, 8));
    assert_eq!(stored(archive.store()).len(), 3);
    expect_all(&archive, &segments, "tidied");
    // A pack that is contained in a larger one.
    let small =
        fs::read(folder.join("000000010000000000000020-000000010000000000000023.wpk")).expect("a pack");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let other = archive_of(elsewhere.path(), &segments);
    packed(&other, &options(16, 0));
    let place = elsewhere.path().join("archive/wal/00000001/00000000");
    fs::write(place.join("000000010000000000000020-000000010000000000000023.wpk"), small).expect("a pack");
    let done = packed(&other, &options(16, 0));
    assert_eq!(done.tidied.len(), 1);
    assert_eq!(stored(other.store()).len(), 1);
    expect_all(&other, &segments, "in a larger pack");
}

#[test]
fn a_damaged_pack_never_costs_a_segment() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 8);
    let archive = archive_of(root.path(), &segments);
    let folder = root.path().join("archive/wal/00000001/00000000");
    let single = |at: usize| folder.join(format!("{}.wlz", segments[at].0));
    let copy = fs::read(single(5)).expect("an object");
    packed(&archive, &options(8, 0));
    let path = folder.join(&stored(archive.store())[0]);
    let good = fs::read(&path).expect("a pack");
    fs::write(single(5), &copy).expect("an object");
    for at in [3, 100, good.len() / 3, good.len() / 2, good.len() - 200, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x20;
        fs::write(&path, &bad).expect("a pack");
        let found = pack(&archive, &options(8, 0), &|_, _| {}).expect("a report");
        assert!(single(5).exists());
        // Damage of a summary frame does not affect the segments.
        assert!(found.problems.len() == 1 || found.tidied.is_empty(), "byte {at}: {found:?}");
        expect_all(&archive, &segments[5..6], "beside a damaged pack");
        for (name, original) in &segments {
            let target = root.path().join("target");
            match get(&archive, ArchivedFile::parse(name).expect("a name"), &target) {
                Ok(()) => assert!(fs::read(&target).expect("a file") == *original, "{at} {name}"),
                Err(GetError::Archive { .. }) => {}
                Err(error) => panic!("{at} {name}: {error:?}"),
            }
        }
        let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("a list");
        assert!(!verified.is_good(), "byte {at}");
    }
    // If two contents have the same name, both are kept, and the conflict is reported.
    fs::write(&path, &good).expect("a pack");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let mut other = segments.clone();
    let last = other[5].1.len() - 1;
    other[5].1[last] ^= 1;
    let wal = pg_wal(elsewhere.path(), &other[5..6]);
    let other_archive = crate::material::archive(elsewhere.path());
    let accept = PushOptions::default().accept_damaged(true);
    push(&other_archive, &wal.join(&other[5].0), &accept).asked.expect("archived");
    let object =
        elsewhere.path().join("archive").join(ArchivedFile::parse(&other[5].0).expect("a name").key());
    fs::copy(object, single(5)).expect("an object");
    let found = pack(&archive, &options(8, 0), &|_, _| {}).expect("a report");
    assert_eq!((found.problems.len(), found.tidied.len()), (1, 0), "{found:?}");
    assert!(single(5).exists() && path.exists());
}

#[test]
fn a_pack_ends_early_where_memory_does() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x24, 12);
    let archive = archive_of(root.path(), &segments);
    let short = options(12, 0).max_bytes((1 << 20) + 8_000);
    let done = packed(&archive, &short);
    assert!(done.packs.len() > 1 && done.segments == 12, "{done:?}");
    expect_all(&archive, &segments, "in short packs");
    // A limit below the minimum for coding is an error that changes nothing.
    let other = log(1, 0x30, 12);
    push_all(&archive, &pg_wal(root.path(), &other), &other);
    let nothing = options(12, 0).memory(Some(1 << 20));
    let found = pack(&archive, &nothing, &|_, _| {}).expect("a report");
    assert_eq!((found.problems.len(), found.segments), (1, 0));
    expect_all(&archive, &other, "not packed");
}

#[test]
fn members_are_decoded_from_the_nearest_keyframe() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x28, 20);
    let archive = archive_of(root.path(), &segments);
    packed(&archive, &options(20, 0));
    let mut found = Vec::new();
    archive.store().list("wal/", &mut |listed| found.push(listed)).expect("a list");
    let Some(Object::Pack(name)) = Object::parse_key(&found[0].key) else { panic!("{found:?}") };
    let mut members = PackMembers::open(&archive, name, found[0].bytes).expect("a pack");
    let names: Vec<_> = name.names().collect();
    let keyframes: Vec<_> = names.iter().filter(|name| members.keyframe_of(**name) == **name).collect();
    assert_eq!(keyframes, [&names[0], &names[8], &names[16]]);
    for at in [3, 4, 12, 2, 19, 0, 17, 18] {
        members.go_to(names[at]).expect("a segment");
        let mut content = Vec::new();
        members.decode_next(&mut content).expect("a segment");
        assert!(content == segments[at].1, "{at}");
    }
}

#[test]
fn recovery_gets_every_segment_in_order_while_they_are_packed_and_pruned_behind_it() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 40);
    let archive = archive_of(root.path(), &segments);
    packed(&archive, &options(16, 30));
    let spool = Spool::new(root.path(), &archive);
    let lock = spool.lock().expect("a lock").expect("no other process");
    let ahead = PrefetchOptions::default().segments(12).threads(2).idle(Duration::from_secs(2));
    let target = root.path().join("RECOVERYXLOG");
    // The first `get` does this before it starts the prefetching process, which would otherwise end
    // immediately.
    let Some(ArchivedFile::Segment(first)) = ArchivedFile::parse(&segments[0].0) else { panic!("a segment") };
    spool.note(first).expect("a note");
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| prefetch(&archive, &spool, lock, &ahead));
        let other = crate::material::archive(root.path());
        scope.spawn(move || {
            packed(&other, &options(8, 8));
            packed(&other, &options(4, 0));
        });
        let mut ready = 0;
        for (name, original) in &segments {
            let Some(ArchivedFile::Segment(segment)) = ArchivedFile::parse(name) else { panic!("{name}") };
            spool.note(segment).expect("a note");
            // Replay of the previous segment may take this long. How much is fetched meanwhile depends on the
            // machine.
            let began = Instant::now();
            let mut is_ready = spool.take(segment, &target).expect("the spool");
            while !is_ready && began.elapsed() < Duration::from_secs(1) {
                std::thread::sleep(Duration::from_millis(5));
                is_ready = spool.take(segment, &target).expect("the spool");
            }
            if is_ready {
                ready += 1;
            } else {
                get(&archive, ArchivedFile::Segment(segment), &target).expect(name);
            }
            assert!(fs::read(&target).expect("a file") == *original, "{name}");
        }
        assert!(ready > 20, "{ready} segments lay ready");
        fetching.join().expect("a thread").expect("fetched");
    });
    assert_eq!(leftovers(spool.folder()), Vec::<std::path::PathBuf>::new());
    expect_all(&archive, &segments, "afterwards");
}

#[test]
fn two_at_once_and_servers_that_push_do_not_disturb_each_other() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 0x20, 32);
    let archive = archive_of(root.path(), &segments[..20]);
    let wal = pg_wal(root.path(), &segments);
    std::thread::scope(|scope| {
        for sizes in [[8, 4], [8, 8], [4, 16]] {
            let other = crate::material::archive(root.path());
            scope.spawn(move || {
                for segments in sizes {
                    packed(&other, &options(segments, 6));
                }
            });
        }
        push_all(&archive, &wal, &segments[20..]);
        expect_all(&archive, &segments[..20], "meanwhile");
    });
    let last = packed(&crate::material::archive(root.path()), &options(8, 0));
    assert!(last.segments > 0);
    expect_all(&archive, &segments, "afterwards");
    let listing = list(&archive, ListOptions::default()).expect("a list");
    assert_eq!((listing.timelines[0].segments, listing.timelines[0].gaps.len()), (32, 0));
    assert_eq!(leftovers(root.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn an_archive_that_is_not_there_is_none_to_pack() {
    let root = tempfile::tempdir().expect("a folder");
    let nowhere = Archive::new(Box::new(Folder::new(root.path().join("archive"))));
    let run = |archive: &Archive| pack(archive, &PackOptions::default(), &|_, _| {});
    let missing = run(&nowhere);
    assert!(matches!(missing, Err(ArchiveError::Missing(_))), "{missing:?}");
    let made = archive(root.path());
    assert!(matches!(run(&made), Err(ArchiveError::Empty(_))));
    // The archive's identity was lost, but not its objects.
    push_all(&made, &pg_wal(root.path(), &complete()), &complete());
    fs::remove_file(root.path().join("archive/archive.json")).expect("a file");
    let lost = run(&archive(root.path()));
    assert!(matches!(lost, Err(ArchiveError::Identity { .. })), "{lost:?}");
}

/// Lists and searches by time rely on summaries, whose agreement with the segment is not covered by checksums
/// of stored bytes.
#[test]
fn a_summary_that_says_something_else_than_its_segment_is_damage() {
    let root = tempfile::tempdir().expect("a folder");
    let segments = log(1, 8, 4);
    let archive = archive_of(root.path(), &segments);
    let (name, content) = &segments[2];
    let file = ArchivedFile::parse(name).expect("a name");
    let rules = Rules::default();
    let mut checked = check(file, &mut &content[..], rules).expect("a good segment");
    let end = checked.contents.as_mut().and_then(|contents| contents.last_end_of_transaction.as_mut());
    *end.expect("a commit") += 3_600_000_000;
    let forged = object::encode(file, &mut checked, &mut Content::Held(content), 3).expect("an object");
    fs::write(root.path().join("archive").join(file.key()), forged).expect("an object");
    let damaged = || {
        let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
        assert_eq!(verified.segments, 4, "{verified:?}");
        let [finding] = &verified.damaged[..] else { panic!("{verified:?}") };
        let is_named = finding.problem.contains(name) && finding.problem.contains("last_end_of_transaction");
        assert!(is_named && finding.problem.contains(&commit_time(10).to_string()), "{finding:?}");
        finding.object.clone()
    };
    assert_eq!(damaged(), file.key());
    // A pack copies the summaries unchanged.
    packed(&archive, &options(4, 0));
    assert!(damaged().ends_with(".wpk"));
    expect_all(&archive, &segments, "packed");
}
