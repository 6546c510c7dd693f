//! Finding and sorting files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use proptest::prelude::*;
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::version::Major;
use walden_source::inventory::{FileKind, IgnoredReason, Inventory, InventoryError, SpareKind};
use walden_source::open::Compression;

use crate::material::{COMPRESSIONS, SIZE, Segment, compress, write};

const SHA1: &str = "da39a3ee5e6b4b0d3255bfef95601890afd80709";

fn search(path: &Path) -> Inventory {
    Inventory::search(&[path]).unwrap()
}

fn names(inventory: &Inventory) -> Vec<Vec<String>> {
    let run = |run: &walden_source::inventory::Run| run.segments.iter().map(|s| s.name.to_string()).collect();
    inventory.runs.iter().map(run).collect()
}

fn expected(segments: &[Segment]) -> Vec<String> {
    segments.iter().map(Segment::name).collect()
}

#[test]
fn what_is_behind_a_segment_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, longer) = (Segment::new(1, 1), Segment::new(1, 2));
    fs::write(folder.path().join(whole.name()), whole.content()).unwrap();
    fs::write(folder.path().join(longer.name()), [longer.content(), b"more".to_vec()].concat()).unwrap();
    let inventory = search(folder.path());
    let found: Vec<_> = inventory.longer().map(|file| (file.name.to_string(), file.size_on_disk)).collect();
    assert_eq!(found, [(longer.name(), u64::from(SIZE) + 4)]);
    assert_eq!(names(&inventory), [expected(&[whole, longer])]);
}

#[test]
fn file_names_say_what_they_are() {
    let name = "0000000100000002000000AB";
    let segment = |partial| FileKind::Segment { name: SegmentName::parse(name).unwrap(), partial };
    for (rest, kind) in [
        ("", segment(false)),
        (".partial", segment(true)),
        (".gz", segment(false)),
        (".gz.partial", segment(true)),
        (".partial.gz", segment(true)),
        (&format!("-{SHA1}"), segment(false)),
        (&format!("-{SHA1}.zst"), segment(false)),
        (&format!(".partial-{SHA1}.lz4"), segment(true)),
        (".lz4.gpg", segment(false)),
        (".00000028.backup", FileKind::BackupLabel),
        (".00000028.backup.gz", FileKind::BackupLabel),
        (".ready", FileKind::Other),
        (".done", FileKind::Other),
        (".tmp", FileKind::Other),
        (".metadata", FileKind::Other),
        (".partial.partial", FileKind::Other),
        ("-", FileKind::Other),
        (".", FileKind::Other),
        ("0", FileKind::Other),
    ] {
        assert_eq!(FileKind::from_name(&format!("{name}{rest}")), kind, "{rest}");
    }
    for (tar, kind) in [
        ("pg_wal.tar", FileKind::WalTar),
        ("pg_wal.tar.gz", FileKind::WalTar),
        ("pg_wal.tgz", FileKind::WalTar),
        ("base.tzst.age", FileKind::BaseTar),
        ("pg_wal.tar.gz.old", FileKind::Other),
        ("pg_wal.gz", FileKind::Other),
        ("base.targz", FileKind::Other),
    ] {
        assert_eq!(FileKind::from_name(tar), kind, "{tar}");
    }
    assert_eq!(FileKind::from_name("00000002.history"), FileKind::History);
    assert_eq!(FileKind::from_name("00000002.history.gz"), FileKind::History);
    for other in ["", "00000002.histories", "xlogtemp.123", "archive_status", "é0000001000000020000000AB"] {
        assert_eq!(FileKind::from_name(other), FileKind::Other, "{other}");
    }
}

proptest! {
    #[test]
    fn no_file_name_is_too_strange(name in ".{0,60}") {
        FileKind::from_name(&name);
        FileKind::from_name(&format!("0000000100000002000000AB{name}"));
        FileKind::from_name(&format!("00000001{name}"));
    }
}

#[test]
fn archives_of_every_tool_are_one_run() {
    let segments: Vec<_> = (1..=8).map(|number| Segment::new(1, number)).collect();
    type Layout = fn(&Segment) -> (String, Compression);
    let layouts: [(&str, Layout); 7] = [
        ("plain", |s| (s.name(), Compression::None)),
        ("pg_receivewal", |s| (format!("{}.gz", s.name()), Compression::Gzip)),
        ("pgbackrest", |s| {
            let (name, stanza) = (s.name(), "archive/main/15-1");
            (format!("{stanza}/{}/{name}-{SHA1}.zst", &name[..16]), Compression::Zstd)
        }),
        ("wal-g", |s| (format!("server/wal_005/{}.lz4", s.name()), Compression::Lz4)),
        ("wal-g lzma", |s| (format!("server/wal_005/{}.lzma", s.name()), Compression::Lzma)),
        ("wal-g brotli", |s| (format!("server/wal_005/{}.br", s.name()), Compression::Brotli)),
        ("barman", |s| (format!("server/wals/{}/{}", &s.name()[..16], s.name()), Compression::Bzip2)),
    ];
    for (tool, layout) in layouts {
        let folder = tempfile::tempdir().unwrap();
        for segment in &segments {
            let (name, compression) = layout(segment);
            write(folder.path(), &name, &compress(&segment.content(), compression));
        }
        write(folder.path(), "archive/main/archive.info", b"[backrest]");
        write(folder.path(), "backup/main/backup.info", b"[backrest]");
        let in_backup = "backup/main/20260101/pg_data/pg_wal/000000010000000000000001";
        segments[0].write(folder.path(), in_backup);
        write(folder.path(), "server/wals/xlog.db", b"000000010000000000000001\t16777216\t1.0\tNone");
        segments[0].write(folder.path(), "server/base/20260101T000000/data/pg_wal/000000010000000000000001");
        write(folder.path(), "server/base/20260101T000000/backup.info", b"");
        let inventory = search(folder.path());
        assert_eq!(names(&inventory), [expected(&segments)], "{tool}");
        let run = &inventory.runs[0];
        assert_eq!((run.version, run.timeline, run.segment_size.bytes()), (Major::V18, 1, u64::from(SIZE)));
        assert_eq!((run.start(), run.end()), (Lsn(0x10_0000), Lsn(0x90_0000)));
        assert_eq!(run.segments[0].compression, layout(&segments[0]).1);
        assert!(
            inventory.unreadable.is_empty() && inventory.gaps().is_empty() && inventory.duplicates.is_empty()
        );
    }
}

#[test]
fn a_data_directory_has_its_log_in_pg_wal() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = folder.path();
    write(data, "PG_VERSION", b"18");
    write(data, "base/5/1259", b"");
    // `pg_wal` is often on a separate disk.
    symlink(elsewhere.path(), data.join("pg_wal")).unwrap();
    let wal = data.join("pg_wal");
    let (one, two) = (Segment::new(1, 1), Segment::new(1, 2));
    one.write(&wal, &one.name());
    two.write(&wal, &two.name());
    // Kept for later: an old segment under a new name, and zeros.
    one.write(&wal, &Segment::new(1, 3).name());
    write(&wal, &Segment::new(1, 4).name(), &vec![0; SIZE as usize]);
    write(&wal, "archive_status/000000010000000000000001.done", b"");
    one.write(&wal, "summaries/000000010000000000000005");
    write(&wal, "00000002.history", b"1\t0/200000\tno recovery target specified\n");

    let inventory = search(data);
    assert_eq!(names(&inventory), [expected(&[one, two])]);
    let holds = SegmentName::parse(&one.name()).unwrap();
    let kinds: Vec<_> = inventory.spares.iter().map(|spare| spare.kind).collect();
    assert_eq!(kinds, [SpareKind::Recycled(holds), SpareKind::Preallocated]);
    assert_eq!(inventory.spare_bytes(), (2, 2 * u64::from(SIZE)));
    assert_eq!(inventory.ignored.len(), 1);
    assert_eq!(inventory.ignored[0].reason, IgnoredReason::History);
    // Searching the parent folder yields the same; a link that leads back changes nothing.
    symlink(folder.path(), elsewhere.path().join("back")).unwrap();
    assert_eq!(names(&search(folder.path())), names(&inventory));
}

#[test]
fn a_file_with_later_segments_beside_it_is_not_kept_for_later() {
    let segment = |number| Segment::new(1, number);
    let zeros = vec![0; SIZE as usize];
    let first_page_of_zeros = [&zeros[..8192], &segment(2).content()[8192..]].concat();
    let holds_first = format!("the first page of segment {}", segment(1).name());
    for (content, found) in
        [(&zeros, "zeros"), (&first_page_of_zeros, "zeros"), (&segment(1).content(), holds_first.as_str())]
    {
        let folder = tempfile::tempdir().unwrap();
        for number in [1, 3, 4] {
            segment(number).write(folder.path(), &segment(number).name());
        }
        let path = write(folder.path(), &segment(2).name(), content);
        // A server keeps them after the last segment.
        write(folder.path(), &segment(5).name(), content);
        write(folder.path(), &segment(6).name(), &zeros);
        let inventory = search(folder.path());
        assert_eq!(names(&inventory), [expected(&[segment(1)]), expected(&[segment(3), segment(4)])]);
        assert_eq!(inventory.spares.len(), 2, "{inventory:?}");
        let [lost] = &inventory.unreadable[..] else { panic!("{inventory:?}") };
        assert_eq!(
            lost.to_string(),
            format!(
                "{}: segment {}, offset 0 (LSN 0/00200000): expected the first page of this segment, as segment {} is beside it, \
                 found {found}; take another copy of this segment (archive, standby, backup)",
                path.display(),
                segment(2).name(),
                segment(4).name()
            )
        );
        let named = [1, 2, 3].map(|number| folder.path().join(segment(number).name()));
        assert_eq!(Inventory::search(&named).unwrap().unreadable.len(), 1);
        // With another copy of the segment, nothing is lost.
        let elsewhere = tempfile::tempdir().unwrap();
        segment(2).write(elsewhere.path(), &segment(2).name());
        let inventory = Inventory::search(&[folder.path(), elsewhere.path()]).unwrap();
        assert_eq!(names(&inventory), [expected(&[1, 2, 3, 4].map(segment))]);
        assert!(inventory.unreadable.is_empty() && inventory.spares.len() == 3, "{inventory:?}");
    }
}

#[test]
fn segments_elsewhere_or_of_another_log_do_not_count_as_later_ones() {
    let (one, later) = (Segment::new(1, 1), Segment::new(1, 3));
    let zeros = vec![0; SIZE as usize];
    let two = Segment::new(1, 2).name();
    let beside = |segment: &Segment| format!("pg_wal/{}", segment.name());
    let (of_two, other) = (Segment::new(2, 3), Segment { system_id: 7, ..later });
    for (what, segment, place, kept, content) in [
        ("an archive", later, format!("archive/{}", later.name()), two.clone(), &zeros),
        ("the next timeline", of_two, beside(&of_two), two.clone(), &zeros),
        ("received so far", later, beside(&later), format!("{two}.partial"), &zeros),
        ("another cluster", other, beside(&other), two.clone(), &one.content()),
    ] {
        let folder = tempfile::tempdir().unwrap();
        one.write(folder.path(), &beside(&one));
        segment.write(folder.path(), &place);
        write(folder.path(), &format!("pg_wal/{kept}"), content);
        let inventory = search(folder.path());
        assert!(inventory.unreadable.is_empty() && inventory.spares.len() == 1, "{what}: {inventory:?}");
    }
}

#[test]
fn a_lost_segment_is_found_across_the_folders_of_archivers_and_timelines() {
    let folder = tempfile::tempdir().unwrap();
    // With 1 MB segments, 4096 of them have 16 digits of their names in common.
    let segments = [4094, 4095, 4096].map(|number| Segment::new(1, number));
    for segment in &segments {
        let name = segment.name();
        segment.write(folder.path(), &format!("main/18-1/{}/{name}", &name[..16]));
    }
    let lost = segments[1].name();
    write(folder.path(), &format!("main/18-1/{}/{lost}", &lost[..16]), &vec![0; SIZE as usize]);
    assert_eq!(search(folder.path()).unreadable.len(), 1);

    // A page of the previous timeline with the right address, but not in the new timeline's first segment.
    let folder = tempfile::tempdir().unwrap();
    for (holds, number) in [(1, 2), (1, 3), (2, 4)] {
        Segment::new(holds, number).write(folder.path(), &Segment::new(2, number).name());
    }
    let inventory = search(folder.path());
    let [lost] = &inventory.unreadable[..] else { panic!("{inventory:?}") };
    assert_eq!(lost.path, folder.path().join(Segment::new(2, 3).name()));
    assert!(lost.to_string().contains("found the first page of segment 000000010000000000000003"), "{lost}");
}

#[test]
fn gaps_split_runs_and_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let segments: Vec<_> = [1, 2, 5, 7].map(|number| Segment::new(1, number)).to_vec();
    for segment in &segments {
        segment.write(folder.path(), &segment.name());
    }
    let inventory = search(folder.path());
    assert_eq!(
        names(&inventory),
        [expected(&segments[..2]), expected(&segments[2..3]), expected(&segments[3..])]
    );
    let gaps: Vec<_> = inventory.gaps().iter().map(ToString::to_string).collect();
    assert_eq!(
        gaps,
        [
            "segments 000000010000000000000003 to 000000010000000000000004 are missing (2 of them)",
            "segment 000000010000000000000006 is missing"
        ]
    );
}

#[test]
fn timelines_clusters_and_versions_are_runs_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let segment = Segment::new;
    let new_timeline = segment(2, 2);
    segment(1, 1).write(folder.path(), "a/000000010000000000000001");
    segment(1, 2).write(folder.path(), "a/000000010000000000000002");
    // The first segment of a timeline starts with a page of the previous one.
    segment(1, 2).write(folder.path(), &format!("a/{}", new_timeline.name()));
    segment(2, 3).write(folder.path(), "a/000000020000000000000003");
    Segment { system_id: 7, ..segment(1, 3) }.write(folder.path(), "b/000000010000000000000003");
    Segment { magic: Major::V17.magic(), ..segment(1, 3) }.write(folder.path(), "c/000000010000000000000003");
    let inventory = search(folder.path());
    let runs: Vec<_> =
        inventory.runs.iter().map(|r| (r.system_id, r.timeline, r.version, r.segments.len())).collect();
    let id = segment(1, 1).system_id;
    assert_eq!(
        runs,
        [(7, 1, Major::V18, 1), (id, 1, Major::V17, 1), (id, 1, Major::V18, 2), (id, 2, Major::V18, 2)]
    );
    assert!(inventory.gaps().is_empty());
}

#[test]
fn a_segment_that_is_there_twice_is_taken_once() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (Segment::new(1, 1), Segment::new(1, 2));
    let partial = format!("{}.partial", one.name());
    one.write(folder.path(), &partial);
    write(folder.path(), &format!("{}.gz", one.name()), &compress(&one.content(), Compression::Gzip));
    two.write(folder.path(), &two.name());
    let other = Segment::new(1, 2).content().into_iter().rev().collect::<Vec<_>>();
    let other = [&two.content()[..SIZE as usize / 2], &other[SIZE as usize / 2..]].concat();
    write(folder.path(), &format!("copy/{}", two.name()), &other);
    let inventory = search(folder.path());
    assert_eq!(names(&inventory), [expected(&[one, two])]);
    assert_eq!(inventory.runs[0].segments[0].compression, Compression::Gzip);
    assert!(!inventory.runs[0].segments[0].partial);
    let agree: Vec<_> = inventory.duplicates.iter().map(|twice| twice.agrees().unwrap()).collect();
    assert_eq!(agree, [true, false]);
    // The same file named twice is not a duplicate.
    let path = folder.path().join(two.name());
    let inventory = Inventory::search(&[path.as_path(), folder.path(), path.as_path()]).unwrap();
    assert_eq!(inventory.duplicates.len(), 2);
    assert_eq!(names(&search(&folder.path().join(partial))), [expected(&[one])]);
}

#[test]
fn a_file_of_any_name_is_taken_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let segment = Segment::new(3, 0x1234);
    for compression in COMPRESSIONS {
        let path = write(folder.path(), "mystery", &compress(&segment.content(), compression));
        let inventory = search(&path);
        assert_eq!(names(&inventory), [expected(&[segment])]);
        assert_eq!(inventory.runs[0].segments[0].compression, compression);
    }
    assert!(matches!(Inventory::search(&[folder.path()]), Err(InventoryError::NoSegments { .. })));
}

#[test]
fn every_size_of_segments_is_recognised() {
    let folder = tempfile::tempdir().unwrap();
    for shift in 20..=30 {
        let segment = Segment { bytes: 1 << shift, ..Segment::new(1, 3) };
        // The start is enough; the scan finds out that the rest is missing.
        let content = Segment { bytes: SIZE, ..segment }.content();
        let mut content = content[..8192].to_vec();
        content[32..36].copy_from_slice(&(1u32 << shift).to_le_bytes());
        content[8..16].copy_from_slice(&(3u64 << shift).to_le_bytes());
        let inventory = search(&write(folder.path(), &segment.name(), &content));
        assert_eq!(inventory.runs[0].segment_size.bytes(), 1 << shift);
        assert_eq!(inventory.runs[0].start(), Lsn(3 << shift));
    }
}

#[test]
fn many_files_are_looked_into_at_once_and_stay_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let segments: Vec<_> = (0..1000).map(|number| Segment::new(1, number)).collect();
    for segment in &segments {
        let mut first_page = Segment { bytes: SIZE, ..*segment }.content();
        first_page.truncate(8192);
        write(folder.path(), &segment.name(), &first_page);
    }
    assert_eq!(names(&search(folder.path())), [expected(&segments)]);
}

#[test]
fn errors_name_the_file_and_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let name = "000000010000000000000001";
    let error = |content: &[u8]| {
        let path = write(folder.path(), name, content);
        let explicit = Inventory::search(&[&path]).unwrap_err().to_string();
        assert!(explicit.starts_with(&path.display().to_string()), "{explicit}");
        let text = Inventory::search(&[folder.path()]).unwrap_err().to_string();
        assert!(text.contains(&explicit), "{text}");
        explicit
    };
    let with_magic = |magic: u16| error(&Segment { magic, ..Segment::new(1, 1) }.content());
    assert!(error(b"").contains("empty"));
    let compressed = write(folder.path(), &format!("{name}.wlz"), b"");
    assert!(Inventory::search(&[&compressed]).unwrap_err().to_string().ends_with("the file is empty"));
    Segment::new(1, 2).write(folder.path(), "000000010000000000000002");
    let unreadable = Inventory::search(&[folder.path()]).unwrap().unreadable;
    assert!(unreadable.iter().any(|one| one.path == compressed), "{unreadable:?}");
    fs::remove_file(compressed).unwrap();
    fs::remove_file(folder.path().join("000000010000000000000002")).unwrap();
    assert!(with_magic(0xD07E).contains("written by PostgreSQL 9.4, which is too old"));
    assert!(with_magic(0xD130).contains("newer than 19"));
    assert!(with_magic(Major::V15.magic().swap_bytes()).contains("big-endian"));
    assert!(with_magic(0x4142).contains("not a WAL segment"));
    assert!(error(&[b"Salted__".as_slice(), &[0xA5; 5000]].concat()).contains("encrypted in OpenSSL's form"));
    assert!(error(&[b"\xFF\x06\0\0sNaPpY".as_slice(), &[0xA5; 5000]].concat()).contains("snappy"));
    assert!(error(b"\x85\x01\x0C\x03\x11\x22\x33\x44\x55").contains("encrypted by PGP"));
    assert!(error(&Segment::new(1, 1).content()[8192..]).contains("0/00102000, in the middle of a segment"));
    assert!(
        error(&Segment::new(1, 2).content()).contains("holds another segment than its name says: 0000000100")
    );
    assert!(
        error(&Segment { bytes: 1 << 20 | 1, ..Segment::new(1, 1) }.content()[..9000]).contains("damaged")
    );
    let mut flags = Segment::new(1, 1).content();
    flags[3] = 0xFF;
    let reason = "damaged at its first page: expected page flags that this version has, found FF02";
    assert!(error(&flags).ends_with(reason));
    let mut short = Segment::new(1, 1).content();
    short.truncate(30);
    assert!(error(&short).ends_with("expected a whole page header, found the end of the data"));
    let cut = compress(&Segment::new(1, 1).content(), Compression::Zstd);
    assert!(error(&cut[..20]).contains("the zstd data ends early"));

    let text = Inventory::search(&["/no/such/place"]).unwrap_err().to_string();
    assert_eq!(text, "/no/such/place: no such file or folder");
    let empty = tempfile::tempdir().unwrap();
    let text = Inventory::search(&[empty.path()]).unwrap_err().to_string();
    assert!(text.ends_with("expected files named like 000000010000000000000001"), "{text}");
    Segment::new(1, 1).write(empty.path(), "000000010000000000000009");
    let text = Inventory::search(&[empty.path()]).unwrap_err().to_string();
    assert!(text.contains("000000010000000000000009 still holds 000000010000000000000001"), "{text}");
}

#[test]
fn one_bad_file_does_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let good = Segment::new(1, 1);
    good.write(folder.path(), &good.name());
    let bad = write(folder.path(), "000000010000000000000002", b"this was never a segment");
    fs::create_dir(folder.path().join("000000010000000000000003")).unwrap();
    let inventory = search(folder.path());
    assert_eq!(names(&inventory), [expected(&[good])]);
    assert_eq!(inventory.unreadable.len(), 1);
    assert!(inventory.unreadable[0].to_string().starts_with(&bad.display().to_string()));
}
