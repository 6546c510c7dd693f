//! The same WAL from every kind of source, split and truncated in every way, must always have the same sums.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use walden_lab::{ClusterBuilder, Wanted, find_or_install};
use walden_source::inventory::Inventory;
use walden_source::scan::{ScanOptions, SegmentEnd, scan, scan_in_order};

use crate::archive::text;
use crate::material::{
    Collector, explain, explain_json, golden, records_of, say, segment_start, sum, walden, write,
};
use crate::restore_forward::files_of;

walden_testing::tests! {
    every_compression_and_layout_gives_the_same,
    segments_named_one_by_one_in_any_order_give_the_same,
    a_partial_segment_is_read_as_far_as_it_goes,
    a_gap_is_reported_and_both_sides_are_explained,
    a_segment_that_lost_its_start_is_damage,
    an_intact_copy_of_a_damaged_segment_is_read,
    every_command_reads_the_intact_copy,
    every_view_adds_up,
    ranges_by_position_join,
    ranges_by_time_join,
    pages_written_between_two_reads_are_no_damage,
    reading_ahead_changes_nothing,
    a_scan_that_ends_early_ends,
    a_running_servers_log_and_names,
}

const CLUSTER: &str = "18.6";

/// Creates a folder with the golden cluster's segments, as in `pg_wal`.
fn plain(folder: &Path) -> PathBuf {
    let wal = folder.join("plain");
    for (name, segment) in golden(CLUSTER) {
        write(&wal, &name, &segment);
    }
    wal
}

fn pack(content: &[u8], ending: &str) -> Vec<u8> {
    let through = |mut encoder: Box<dyn Read + '_>| {
        let mut out = Vec::new();
        encoder.read_to_end(&mut out).unwrap();
        out
    };
    match ending {
        "gz" => through(Box::new(flate2::read::GzEncoder::new(content, flate2::Compression::fast()))),
        "lz4" => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
        "zst" => zstd::encode_all(content, 1).unwrap(),
        "xz" => through(Box::new(liblzma::read::XzEncoder::new(content, 0))),
        "bz2" => through(Box::new(bzip2::read::BzEncoder::new(content, bzip2::Compression::fast()))),
        "br" => through(Box::new(brotli::CompressorReader::new(content, 4096, 3, 22))),
        _ => content.to_vec(),
    }
}

/// An archiver's layout: its name, the extension of its compression, and a segment's path by name.
type Layout = (&'static str, &'static str, fn(&str) -> String);

const LAYOUTS: &[Layout] = &[
    ("plain", "", |name| name.to_owned()),
    ("gzip", "gz", |name| format!("{name}.gz")),
    ("lz4", "lz4", |name| format!("{name}.lz4")),
    ("zstd", "zst", |name| format!("{name}.zst")),
    ("xz", "xz", |name| format!("{name}.xz")),
    ("bzip2", "bz2", |name| format!("{name}.bz2")),
    ("brotli", "br", |name| format!("{name}.br")),
    ("pgbackrest", "zst", |name| {
        let sha1 = "0123456789abcdef0123456789abcdef01234567";
        format!("archive/main/18-1/{}/{name}-{sha1}.zst", &name[..16])
    }),
    ("wal-g", "lz4", |name| format!("wal_005/{name}.lz4")),
    // Compressed, although it has the plain name.
    ("barman", "bz2", |name| format!("wals/{}/{name}", &name[..16])),
];

fn every_compression_and_layout_gives_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let expected = explain(&[plain(folder.path())]).stdout;
    assert!(expected.contains("\"file_bytes\": 3145728"), "{expected}");
    for (layout, ending, path) in LAYOUTS {
        let root = folder.path().join("layouts").join(layout);
        for (name, segment) in golden(CLUSTER) {
            write(&root, &path(&name), &pack(&segment, ending));
        }
        if *layout == "barman" {
            fs::create_dir(root.join("base")).unwrap();
        }
        for threads in ["1", "4"] {
            let run = explain(&["--threads".as_ref(), threads.as_ref(), root.as_os_str()]);
            assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{layout}");
            assert!(run.stdout == expected, "{layout} with {threads} threads differs");
        }
    }
}

fn segments_named_one_by_one_in_any_order_give_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let wal = plain(folder.path());
    let expected = explain(&[&wal]).stdout;
    let paths: Vec<PathBuf> = golden(CLUSTER).keys().map(|name| wal.join(name)).collect();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let shuffled = order.map(|index| &paths[index]);
        assert!(explain(&shuffled).stdout == expected, "{order:?}");
    }
    // With a folder and one of its segments as sources, nothing counts twice.
    assert!(explain(&[&wal, &paths[1]]).stdout == expected);
    // Each segment is also explained completely on its own.
    for path in &paths {
        assert_eq!(explain_json(&[path])["file_bytes"], 1 << 20);
    }
}

fn a_partial_segment_is_read_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let (name, segment) = golden("17.11").pop_first().unwrap();
    let original = records_of(&segment);
    for cut in [100_000, 524_288, 800_001] {
        let path = write(folder.path(), &format!("{name}.partial"), &segment[..cut]);
        let json = explain_json(&[&path]);
        assert_eq!(json["file_bytes"], cut as u64);
        let place = segment_start(&segment).plus(cut as u64);
        assert_eq!(json["records"], original.partition_point(|record| record.end <= place) as u64);
    }
    // pg_receivewal leaves partial segments at full size, padded with zeros.
    let mut bytes = segment.clone();
    bytes[524_288..].fill(0);
    let json = explain_json(&[write(folder.path(), &format!("{name}.partial"), &bytes)]);
    assert_eq!(json["file_bytes"], 1 << 20);
    assert!(json["buckets"]["zero_tail"].as_u64().unwrap() >= (1 << 19));
}

fn a_gap_is_reported_and_both_sides_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let wal = plain(folder.path());
    let names: Vec<String> = golden(CLUSTER).into_keys().collect();
    let whole = explain_json(&[&wal]);
    fs::remove_file(wal.join(&names[1])).unwrap();
    let run = explain(&[&wal]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("missing") && run.stderr.contains(&names[1]), "{}", run.stderr);
    let json = run.json();
    assert_eq!(json["file_bytes"], 2 << 20);
    assert_eq!(json["ranges"].as_array().unwrap().len(), 2);
    assert!(json["records"].as_u64() < whole["records"].as_u64());
}

/// The damaged file is the first one in the order of reading.
fn an_intact_copy_of_a_damaged_segment_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let wal = plain(folder.path());
    let expected = explain_json(&["--savings", "never", text(&wal)]);
    let (name, segment) = golden(CLUSTER).into_iter().next().unwrap();
    let mut damaged = segment.clone();
    damaged[40_000..40_008].copy_from_slice(b"XXXXXXXX");
    write(&wal, &name, &damaged);
    let alone = explain(&[&wal]);
    assert_eq!(alone.code, 3, "{alone:?}");
    // A third copy, which is damaged earlier.
    let mut worse = segment.clone();
    worse[20_000..20_008].copy_from_slice(b"XXXXXXXX");
    write(&wal, &format!("{name}.gz"), &pack(&worse, "gz"));
    let alone = explain(&[&wal]);
    assert!(alone.code == 3 && !alone.stderr.contains("instead"), "{alone:?}");
    write(&wal, &format!("{name}.zst"), &pack(&segment, "zst"));
    let run = explain(&["--savings", "never", text(&wal)]);
    assert!(run.code == 0 && run.stderr.contains("is read instead"), "{run:?}");
    for field in ["records", "buckets", "images", "record_kinds"] {
        assert_eq!(run.json()[field], expected[field], "{field}");
    }
}

/// The damaged file is the first one of each segment, and in the middle of the WAL.
fn every_command_reads_the_intact_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, both) = (plain(folder.path()), folder.path().join("both"));
    for (index, (name, segment)) in golden(CLUSTER).into_iter().enumerate() {
        let mut damaged = segment.clone();
        match index {
            0 => damaged[40_000..40_008].copy_from_slice(b"XXXXXXXX"),
            // The end of a record that starts in the segment before.
            1 => damaged[60..68].copy_from_slice(b"XXXXXXXX"),
            _ => damaged.truncate(300_000),
        }
        write(&both, &name, &damaged);
        let other = if index == 0 { format!("{name}.partial") } else { format!("{name}.zst") };
        write(&both, &other, &if index == 0 { segment } else { pack(&segment, "zst") });
    }
    let exported = folder.path().join("exported");
    let commands: [&[&str]; 7] = [
        &["explain", "--savings", "never", "--by", "record", "--format", "csv"],
        &["redo", "check", "--format", "json"],
        &["redo", "replay", "--format", "json"],
        &["rows", "--format", "json", "--relation", "1663/16384/16534"],
        &["whatif", "--set", "wal_compression=lz4", "--set", "max_wal_size=64MB", "--format", "json"],
        &["export", "--tables", "records", "--format", "csv", "-o", text(&exported)],
        &["diff", "--format", "json", text(&whole)],
    ];
    for command in commands {
        let read = |source: &Path| {
            let run = walden(&[command, &[text(source)]].concat());
            let files = files_of(&exported, &[""]);
            let _ = fs::remove_dir_all(&exported);
            (run, files)
        };
        let ((expected, content), (run, found)) = (read(&whole), read(&both));
        assert_eq!(run.code, expected.code, "{command:?}: {run:?}");
        assert_eq!(run.stderr.matches("is read instead").count(), 3, "{command:?}: {run:?}");
        let comparable = |output: &str| -> Vec<String> {
            let lines = output.lines().filter(|line| !line.contains("\"seconds\": "));
            lines.map(|line| line.replace(text(&both), text(&whole))).collect()
        };
        assert_eq!(comparable(&run.stdout), comparable(&expected.stdout), "{command:?}");
        assert_eq!(found, content, "{command:?}");
    }
}

/// Only after the last segment may zeros or older WAL mean a segment that the server keeps for future use.
fn a_segment_that_lost_its_start_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let wal = plain(folder.path());
    let segments = golden(CLUSTER);
    let names: Vec<&String> = segments.keys().collect();
    let whole = explain_json(&[&wal]);
    let lost = wal.join(names[1]);
    let copy = write(folder.path(), &format!("copy/{}", names[1]), &segments[names[1]]);
    let zeros = vec![0; 1 << 20];
    let start = segment_start(&segments[names[1]]);
    let holds_first = format!("found the first page of segment {}", names[0]);
    for (content, found) in [(&zeros, "found zeros"), (&segments[names[0]], holds_first.as_str())] {
        fs::write(&lost, content).unwrap();
        let commands: [&[&str]; 4] = [
            &["explain", "--format", "json"],
            &["redo", "check"],
            &["redo", "replay"],
            &["whatif", "--set", "wal_compression=lz4"],
        ];
        for command in commands {
            let run = walden(&[command, &[wal.to_str().unwrap()]].concat());
            run.assert_no_panic();
            assert_eq!(run.code, 3, "{command:?}: {run:?}");
            let [error] = run.errors()[..] else { panic!("{command:?}: {run:?}") };
            let place = format!("offset 0 (LSN {start})");
            for word in [lost.to_str().unwrap(), &place, "expected ", found, "take another copy"] {
                assert!(error.contains(word), "no \"{word}\" in: {error}");
            }
            assert!(!run.stderr.contains("no new WAL yet"), "{run:?}");
        }
        // If an archive has the segment, nothing is lost.
        let both = explain_json(&[&wal, &copy]);
        assert_eq!(both["records"], whole["records"]);
    }
    fs::write(&lost, &segments[names[1]]).unwrap();
    fs::write(wal.join(names[2]), &zeros).unwrap();
    let run = explain(&[&wal]);
    assert!(
        run.code == 0 && run.stderr.contains("1 recycled file (1.0 MB) contains no new WAL yet"),
        "{run:?}"
    );
}

const DIMENSIONS: [&str; 11] = [
    "relation",
    "record",
    "xid",
    "database",
    "time",
    "checkpoint",
    "schema",
    "partition",
    "tablespace",
    "group",
    "vacuum",
];

fn every_view_adds_up() {
    let folder = tempfile::tempdir().unwrap();
    let wal = plain(folder.path());
    let mut views: Vec<String> = DIMENSIONS.map(str::to_owned).into();
    for (index, one) in DIMENSIONS.iter().enumerate() {
        views.extend(DIMENSIONS[index + 1..].iter().map(|other| format!("{one},{other}")));
    }
    views.extend([
        "checkpoint,record,relation".to_owned(),
        "xid,time,record".to_owned(),
        DIMENSIONS.join(","),
    ]);
    for top in ["0", "3"] {
        let mut arguments: Vec<String> = ["--top", top, "--group", "pg_(.)"].map(str::to_owned).into();
        arguments.push(wal.display().to_string());
        arguments.extend(views.iter().flat_map(|view| ["--by".to_owned(), view.clone()]));
        let json = explain_json(&arguments);
        let made = json["views"].as_array().unwrap();
        assert_eq!(made.len(), views.len());
        for (view, asked) in made.iter().zip(&views) {
            let groups = view["groups"].as_array().unwrap();
            let rest = (!view["rest"].is_null()).then_some(&view["rest"]);
            for sum_of in ["bytes", "records"] {
                let total: u64 = groups.iter().chain(rest).map(|group| group[sum_of].as_u64().unwrap()).sum();
                let whole = if sum_of == "bytes" { "file_bytes" } else { "records" };
                assert_eq!(json[whole], total, "{asked}: {sum_of}");
            }
            for group in groups.iter().chain(rest) {
                assert_eq!(sum(&group["buckets"]), group["bytes"].as_u64().unwrap(), "{asked}");
            }
            assert!(groups.len() > 1 || asked == "time", "{asked} has one group");
        }
    }
}

/// Returns records and bytes by kind of record.
fn by_kind(json: &Value) -> BTreeMap<String, (u64, u64)> {
    let rows = json["record_kinds"].as_array().unwrap().iter();
    let of = |row: &Value| (row["records"].as_u64().unwrap(), row["bytes"].as_u64().unwrap());
    rows.map(|row| (row["keys"][0]["text"].as_str().unwrap().to_owned(), of(row))).collect()
}

fn joined(one: &Value, other: &Value) -> BTreeMap<String, (u64, u64)> {
    let mut sums = by_kind(one);
    for (kind, (records, bytes)) in by_kind(other) {
        let sum = sums.entry(kind).or_default();
        *sum = (sum.0 + records, sum.1 + bytes);
    }
    sums
}

fn ranges_by_position_join() {
    let folder = tempfile::tempdir().unwrap();
    let wal = plain(folder.path());
    let segments: Vec<Vec<u8>> = golden(CLUSTER).into_values().collect();
    let (first, last) = (records_of(&segments[0]), records_of(&segments[2]));
    let range = |from: &str, to: &str| {
        explain_json(&["--from".as_ref(), from.as_ref(), "--to".as_ref(), to.as_ref(), wal.as_os_str()])
    };
    let cuts = [
        (first[10].lsn, first[first.len() / 2].lsn, first[first.len() - 1].lsn),
        (first[100].lsn, first[first.len() - 3].lsn, last[last.len() / 2].lsn),
        (first[3].lsn, last[5].lsn, last[last.len() - 1].lsn),
    ];
    for (a, b, c) in cuts {
        let (a, b, c) = (a.to_string(), b.to_string(), c.to_string());
        let (left, right, whole) = (range(&a, &b), range(&b, &c), range(&a, &c));
        let number = |json: &Value, field: &str| json[field].as_u64().unwrap();
        assert!(number(&left, "records") > 0 && number(&right, "records") > 0);
        for field in ["records", "file_bytes"] {
            assert_eq!(
                number(&left, field) + number(&right, field),
                number(&whole, field),
                "{field}: {a} {b} {c}"
            );
        }
        assert_eq!(joined(&left, &right), by_kind(&whole), "{a} {b} {c}");
    }
    for (bound, position) in [("--from", "F0/0"), ("--to", "0/10")] {
        let outside = explain(&[bound.as_ref(), position.as_ref(), wal.as_os_str()]);
        assert!(outside.stderr.contains("warning: nothing is in the range"), "{bound}: {outside:?}");
    }
}

fn ranges_by_time_join() {
    let folder = tempfile::tempdir().unwrap();
    let wal = plain(folder.path());
    let whole = explain_json(&[&wal]);
    let last = whole["time"]["last"].as_str().unwrap();
    // The last second in which a transaction ended.
    let second = format!("{}Z", &last[..19]);
    let before = explain_json(&["--to".as_ref(), second.as_ref(), wal.as_os_str()]);
    let after = explain_json(&["--from".as_ref(), second.as_ref(), wal.as_os_str()]);
    assert!(after["records"].as_u64().unwrap() > 0);
    for field in ["records", "file_bytes"] {
        assert_eq!(
            before[field].as_u64().unwrap() + after[field].as_u64().unwrap(),
            whole[field].as_u64().unwrap()
        );
    }
    assert_eq!(joined(&before, &after), by_kind(&whole));
    let never = explain(&["--from".as_ref(), "2100-01-01T00:00:00Z".as_ref(), wal.as_os_str()]);
    assert_eq!((never.code, never.errors().len()), (3, 1), "{never:?}");
}

/// Returns the texts of all relations' labels.
fn labels(json: &Value) -> Vec<String> {
    let rows = json["views"][0]["groups"].as_array().unwrap().iter();
    rows.map(|row| row["keys"][0].to_string()).collect()
}

/// Pages appear while the segment is being read: an earlier read finds nothing, and a later one finds more
/// WAL.
fn pages_written_between_two_reads_are_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let wal = plain(folder.path());
    let inventory = Inventory::search(&[&wal]).unwrap();
    let run = &inventory.runs[0];
    let options = ScanOptions::new(1);
    let count = |make: &(dyn Fn(usize) -> Collector + Sync)| {
        let mut records = 0;
        scan(run, options, make, |outcome| {
            assert!(!matches!(outcome.end, SegmentEnd::Damaged(_)), "{:?}", outcome.end);
            records += outcome.visitor.records.len();
            ControlFlow::Continue(())
        });
        records
    };
    let whole = count(&|_| Collector::default());
    // Some of the first pages are not written yet. Each reading finds some more pages.
    let (path, content) = (&run.segments[0].path, fs::read(&run.segments[0].path).unwrap());
    let mut early = content.clone();
    early[4 << 13..24 << 13].fill(0);
    fs::write(path, &early).unwrap();
    let readings = AtomicUsize::new(0);
    let make = |index| {
        if index == 0 {
            let written = 4 + 10 * readings.fetch_add(1, Ordering::Relaxed).min(2);
            early_write(path, &content, written << 13);
        }
        Collector::default()
    };
    assert_eq!(count(&make), whole);
    assert_eq!(readings.into_inner(), 3);
}

/// For any damage and segment, reading ahead yields the same as reading on request.
fn reading_ahead_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let wal = plain(folder.path());
    let files: Vec<PathBuf> =
        Inventory::search(&[&wal]).unwrap().runs[0].segments.iter().map(|of| of.path.clone()).collect();
    let (first, last) = (&files[0], &files[files.len() - 1]);
    let contents: Vec<(&PathBuf, Vec<u8>)> = [first, last].map(|path| (path, fs::read(path).unwrap())).into();
    let half = contents[0].1.len() / 2 + 100;
    type Harm<'a> = (&'a str, &'a PathBuf, Box<dyn Fn(&mut Vec<u8>)>);
    let harms: [Harm<'_>; 7] = [
        ("nothing", first, Box::new(|_| ())),
        ("a bit", first, Box::new(move |content| content[50_001] ^= 4)),
        ("cut", first, Box::new(move |content| content.truncate(half))),
        ("no file", first, Box::new(Vec::clear)),
        ("cut at the end", last, Box::new(move |content| content.truncate(half))),
        ("zeros", last, Box::new(move |content| content[half..].fill(0))),
        (
            "compressed and cut",
            first,
            Box::new(move |content| {
                *content = pack(content, "gz");
                content.truncate(content.len() / 2);
            }),
        ),
    ];
    let mut ends = Vec::new();
    for (what, path, harm) in &harms {
        // The inventory is taken while the files are intact.
        contents.iter().for_each(|(path, content)| fs::write(path, content).unwrap());
        let compressed = *what == "compressed and cut";
        if compressed {
            fs::write(path, pack(&fs::read(path).unwrap(), "gz")).unwrap();
        }
        let inventory = Inventory::search(&[&wal]).unwrap();
        let mut content = contents.iter().find(|(of, _)| of == path).unwrap().1.clone();
        harm(&mut content);
        match content.is_empty() {
            true => fs::remove_file(path).unwrap(),
            false => fs::write(path, &content).unwrap(),
        }
        let read = |threads| {
            let (mut seen, mut bytes) = (Collector::default(), 0);
            let options = ScanOptions::new(threads);
            let (reached, end) = scan_in_order(&inventory.runs[0], options, &mut seen, |more| bytes += more);
            (reached, format!("{end:?}"), seen.records, bytes)
        };
        let (asked, ahead) = (read(1), read(2));
        assert!(asked == ahead, "{what}: {:?}, {:?}", asked.1, ahead.1);
        ends.push(asked.1);
    }
    assert!(ends[0].starts_with("EndOfLog") || ends[0] == "Complete", "{}", ends[0]);
    assert_eq!(ends[3], ends[0], "a file that a server removes meanwhile is read to its end");
    for (harm, found) in [(1, "Fault"), (2, "Truncated"), (6, "Io")] {
        assert!(ends[harm].starts_with("Damaged") && ends[harm].contains(found), "{}", ends[harm]);
    }
}

/// A visitor that stops early does not wait for segments being read ahead.
fn a_scan_that_ends_early_ends() {
    let folder = tempfile::tempdir().unwrap();
    let inventory = Inventory::search(&[&plain(folder.path())]).unwrap();
    let run = &inventory.runs[0];
    let whole = {
        let mut seen = Collector::default();
        let _ = scan_in_order(run, ScanOptions::new(1), &mut seen, |_| ());
        seen.records
    };
    for at in [0, 1, whole.len() / 3, whole.len() - 1] {
        let mut seen = Collector::default();
        let to = Some(whole[at].lsn);
        let (_, end) = scan_in_order(run, ScanOptions::new(2).to(to), &mut seen, |_| ());
        assert!(matches!(end, SegmentEnd::Limit), "{end:?}");
        assert_eq!(seen.records, whole[..at]);
    }
}

/// Overwrites the file with the content up to a position, and keeps the remaining bytes.
fn early_write(path: &Path, content: &[u8], end: usize) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all(&content[..end]).unwrap();
}

fn a_running_servers_log_and_names() {
    let cluster =
        ClusterBuilder::new(find_or_install(Wanted::Any).unwrap()).wal_segsize_mb(1).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute(
            "CREATE TABLE walrus (id bigint PRIMARY KEY, tusk text);
             INSERT INTO walrus SELECT n, repeat(md5(n::text), 100) FROM generate_series(1, 3000) n;
             CREATE INDEX walrus_tusk ON walrus (left(tusk, 10));",
        )
        .unwrap();
    let pg_wal = cluster.data_dir().join("pg_wal");
    let writer = std::thread::spawn(move || {
        for round in 0..60 {
            let text = format!(
                "INSERT INTO walrus SELECT {round} * 1000 + n, 'x' FROM generate_series(10000, 10400) n"
            );
            client.batch_execute(&text).unwrap();
        }
    });
    // While the server writes, no damage is reported, even if half a page is written.
    let (mut rounds, mut records) = (0, 0);
    while !writer.is_finished() || rounds < 5 {
        let run = explain(&[&pg_wal]);
        assert_eq!((run.code, run.errors().len()), (0, 0), "{}", run.stderr);
        let now = run.json()["records"].as_u64().unwrap();
        assert!(now >= records, "{now} records after {records}");
        (rounds, records) = (rounds + 1, now);
    }
    writer.join().unwrap();
    say(&format!("read {rounds} times while the server wrote, {records} records in the end"));

    // A copy, so that both read the same WAL.
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&pg_wal).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        write(
            folder.path(),
            &format!("wal/{}", entry.file_name().display()),
            &fs::read(entry.path()).unwrap(),
        );
    }
    let (wal, saved) = (folder.path().join("wal"), folder.path().join("names.json"));
    let by_relation = |names: &str, more: &[&str]| {
        let mut arguments = vec!["--by", "relation", "--names", names];
        arguments.extend(more);
        arguments.push(wal.to_str().unwrap());
        explain_json(&arguments)
    };
    let from_server = by_relation(&cluster.dsn("postgres"), &["--save-names", saved.to_str().unwrap()]);
    drop(cluster);
    let from_file = by_relation(saved.to_str().unwrap(), &[]);
    assert_eq!(labels(&from_server), labels(&from_file));
    for name in ["walrus", "walrus_pkey", "walrus_tusk"] {
        let quoted = format!("\"name\":\"{name}\"");
        assert!(
            labels(&from_file).iter().any(|label| label.contains(&quoted)),
            "{name}: {:?}",
            labels(&from_file)
        );
    }
    assert_eq!(from_server["findings"], from_file["findings"]);
    // Saving names needs no WAL.
    let again = folder.path().join("again.json");
    let run =
        walden(&["explain", "--names", saved.to_str().unwrap(), "--save-names", again.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(again.is_file());
}
