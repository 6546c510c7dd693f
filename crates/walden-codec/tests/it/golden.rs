//! Golden files, one per feature of the format. Every later version reads them to the same bytes.
//!
//! `tests/golden/vN/` holds the files that require a reader of version *N* of the format. Their originals
//! come from `testdata/golden/`. Version 1 is frozen, because archives may contain it: its files are never
//! regenerated, changed or removed. To add a file for another feature, add a row here and run
//! `WALDEN_ADD_GOLDEN=1 cargo test -p walden-codec --test it golden`, which writes the missing files.

use std::collections::BTreeSet;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use walden_codec::coder::Form;
use walden_codec::container::{Error, FileForm, Reader, WriteOptions};

use crate::additions::{Addition, with_additions};
use crate::material::{
    File, consecutive, crashed, first_pages, forms, limits, mixture, noise, options, promoted, read, segment,
    write,
};

/// Name of a file, options to write it, and its members. A file named after records must not hold members
/// coded as bytes.
type Golden = (String, WriteOptions, Vec<File>);

fn all() -> Vec<Golden> {
    let [first, second, third] = consecutive();
    let of = |version, name: &'static str, pages| (name, first_pages(&segment(version, name), pages));
    let single = |level| options(FileForm::Segment, level);
    let pack = |level| options(FileForm::Pack, level);
    let clusters = vec![
        of("17.10", "000000010000000000000009", 6),
        of("16.14", "000000010000000000000009", 5),
        ("other/000000010000000000000009", of("17.11", "000000010000000000000009", 4).1),
        first.clone(),
    ];
    let files = [
        ("level-0.wlz", single(0), vec![of("17.11", SEGMENT, 8)]),
        ("additions.wlz", single(3), vec![first.clone()]),
        ("additions.wpk", pack(1), mixture()),
        ("empty.wlz", single(5), vec![("empty", Vec::new())]),
        ("stored.wlz", single(5), vec![("noise", noise(1000))]),
        ("bytes.wlz", single(5), vec![("text", b"The quick brown fox\n".repeat(50))]),
        ("pieces.wlz", single(1), vec![("zeros", vec![0; (16 << 20) + 1])]),
        ("records-14.wlz", single(9), vec![of("14.23", "00000001000000000000000B", 20)]),
        ("records-15.wlz", single(6), vec![of("15.18", "000000010000000000000009", 16)]),
        ("records-16.wlz", single(6), vec![of("16.14", "000000010000000000000009", 16)]),
        ("records-17.wlz", single(5), vec![of("17.11", "000000010000000000000009", 64)]),
        ("records-18.wlz", single(1), vec![of("18.6", "00000001000000000000000C", 16)]),
        ("records-19.wlz", single(6), vec![of("19.rc1", "00000001000000000000000D", 48)]),
        ("records-pglz.wlz", single(5), vec![of("15.18-pglz", "000000010000000000000009", 14)]),
        ("records-zstd.wlz", single(5), vec![of("15.18-zstd", "00000001000000000000000A", 40)]),
        ("records-lz4.wlz", single(5), vec![of("15.18-lz4", "00000001000000000000000F", 14)]),
        ("records-first.wlz", single(3), vec![of("15.18-first", "000000010000000000000001", 12)]),
        ("records-promotion.wlz", single(3), vec![(SEGMENT, promoted(of("17.11", SEGMENT, 8).1, 5))]),
        ("records-crash.wlz", single(3), vec![(SEGMENT, crashed(&segment("17.11", SEGMENT), 5))]),
        ("cut-record.wlz", single(5), vec![(second.0, second.1.clone())]),
        ("none.wpk", pack(5), Vec::new()),
        ("records-sharing.wpk", pack(5), vec![first.clone(), second.clone(), third.clone()]),
        ("records-keyframes.wpk", pack(5).keyframe(1), vec![first, second, third]),
        ("records-clusters.wpk", pack(6), clusters),
        ("mixture.wpk", pack(1), mixture()),
        (GENERIC, single(6), vec![of("15.20-rum", "000000010000000000000011", 128)]),
        (POINTS, single(6), vec![of("15.20-points", "000000010000000000000007", 128)]),
    ];
    let level = |level| (format!("records-level-{level}.wlz"), single(level), vec![of("17.11", SEGMENT, 8)]);
    let words = |level| {
        let files = vec![of("18.6", "00000001000000000000000C", 24)];
        (format!("records-words-{level}.wlz"), single(level), files)
    };
    let named = |(name, options, files): (&str, _, _)| (name.to_owned(), options, files);
    files.into_iter().map(named).chain((1..=9).map(level)).chain((7..=9).map(words)).collect()
}

const SEGMENT: &str = "000000010000000000000009";

/// Files that require version 2.
const GENERIC: &str = "records-generic.wlz";
const POINTS: &str = "records-points.wlz";

fn folder(version: u16) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

#[test]
fn every_version_reads_what_was_written() {
    let is_adding = std::env::var_os("WALDEN_ADD_GOLDEN").is_some();
    let mut expected = BTreeSet::new();
    for (name, options, files) in all() {
        let version = if [GENERIC, POINTS].contains(&&*name) { 2 } else { 1 };
        let path = folder(version).join(&name);
        if is_adding && !path.exists() {
            let written = write(options, &files).0;
            // Written as a later version may write them.
            let additions = if name.starts_with("additions.") { &Addition::ALL[..] } else { &[] };
            fs::write(&path, with_additions(&written, additions)).unwrap();
        }
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(bytes.len() < 50_000, "{name} is too large to be kept");
        let back = read(&bytes);
        assert_eq!(back.len(), files.len(), "{name}");
        for ((name_back, bytes_back), (name_then, bytes_then)) in back.iter().zip(&files) {
            assert!(name_back == name_then && bytes_back == bytes_then, "{name}: {name_then}");
        }
        let is_feature = name.starts_with("records-");
        assert!(!is_feature || forms(&bytes).iter().all(|form| *form == Form::Records), "{name}");
        assert!(version == 1 || bytes[8..12] == [2, 0, 2, 0], "{name}: version and least reader");
        expected.insert(name);
    }
    let found: BTreeSet<String> = [1, 2].into_iter().flat_map(files_of).collect();
    assert_eq!(found, expected, "each file is read, and none is missing");
}

/// Returns the names of the files of a version.
fn files_of(version: u16) -> BTreeSet<String> {
    let entries = fs::read_dir(folder(version)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn the_specification_lists_each_file() {
    let specification = include_str!("../../../../docs/format.md");
    for version in [1, 2] {
        let heading = format!("| File of version {version} | Feature |\n");
        let (_, table) = specification.split_once(&heading).expect("a table of each version");
        let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
        let listed: BTreeSet<String> =
            rows.flat_map(|row| names_in(row.split('|').nth(1).unwrap())).collect();
        assert_eq!(listed, files_of(version), "files of version {version}");
    }
}

/// Returns the names in a table cell: "`a.wlz`, `b.wlz`", or "`a-1.wlz` to `a-3.wlz`".
fn names_in(cell: &str) -> Vec<String> {
    let quoted: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    let [first, last] = quoted[..] else { return quoted.into_iter().map(str::to_owned).collect() };
    if !cell.contains("` to `") {
        return vec![first.to_owned(), last.to_owned()];
    }
    let at = first.bytes().zip(last.bytes()).position(|(one, other)| one != other).expect("a range");
    let digits = first[at..=at].chars().zip(last[at..=at].chars()).next().expect("digits");
    (digits.0..=digits.1).map(|digit| format!("{}{digit}{}", &first[..at], &first[at + 1..])).collect()
}

/// The header of a file binds its members: a file that states version 1 has no form of data of version 2, or
/// is damaged.
#[test]
fn a_file_for_readers_of_version_1_has_nothing_of_version_2() {
    for name in [GENERIC, POINTS] {
        let mut file = fs::read(folder(2).join(name)).unwrap();
        file[8..12].copy_from_slice(&[1, 0, 1, 0]);
        // With a right checksum and a right binding.
        let file = with_additions(&file, &[]);
        let mut reader = Reader::open(Cursor::new(file), limits()).unwrap();
        let head = reader.next().unwrap().unwrap();
        let Err(Error::Damage(damage)) = reader.decode(&head, &mut std::io::sink()) else {
            panic!("{name}: expected damage")
        };
        let text = damage.source.unwrap().to_string();
        assert!(text.contains("expected forms of version 1 alone"), "{name}: {text}");
    }
}
