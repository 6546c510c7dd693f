//! Replay, compared with PostgreSQL: every page that it logs or leaves in a file must equal the replayed one.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use walden_lab::{RunOptions, run_workload, workloads};
use walden_testing::{ALL_SERVERS, Missing, Outcome, postgres};

use crate::material::{GOLDEN, golden, redo_check, say, walden, write};

walden_testing::tests! {
    every_record_gives_the_page_that_postgresql_logs on ALL_SERVERS,
    golden_clusters_are_replayed_without_a_misfit,
    an_unreadable_segment_is_an_error_and_a_missing_one_a_warning,
    bounds_of_memory_and_threads_change_nothing,
    images_are_the_replayed_pages_and_a_wrong_byte_in_a_data_file_is_named,
}

fn number(json: &Value, name: &str) -> u64 {
    json[name].as_u64().unwrap_or_else(|| panic!("no {name} in {json}"))
}

/// Settings of a server, which differ between versions so that all are covered.
struct Variant {
    version: u32,
    checksums: bool,
    wal_segsize_mb: u32,
    settings: &'static [(&'static str, &'static str)],
}

const CONSISTENCY: (&str, &str) = ("wal_consistency_checking", "all");
const LOGICAL: (&str, &str) = ("wal_level", "logical");

#[rustfmt::skip]
const VARIANTS: [Variant; ALL_SERVERS.len()] = [
    Variant { version: 14, checksums: true,  wal_segsize_mb: 16, settings: &[CONSISTENCY] },
    Variant { version: 15, checksums: false, wal_segsize_mb: 1,  settings: &[CONSISTENCY, LOGICAL] },
    Variant { version: 16, checksums: true,  wal_segsize_mb: 1,  settings: &[CONSISTENCY] },
    Variant { version: 17, checksums: false, wal_segsize_mb: 16, settings: &[CONSISTENCY, LOGICAL] },
    Variant { version: 18, checksums: true,  wal_segsize_mb: 1,  settings: &[CONSISTENCY] },
    Variant { version: 19, checksums: true,  wal_segsize_mb: 16, settings: &[CONSISTENCY, LOGICAL] },
];

/// Runs the workload `mixed`, and keeps its data directory from before and after.
fn mixed(folder: &Path, variant: &Variant, size: u64) -> Result<PathBuf, Missing> {
    let output = folder.join(variant.version.to_string());
    let mut options = RunOptions::new(workloads::by_name("mixed").unwrap(), &output);
    options.installation = Some(postgres(variant.version)?);
    options.size = Some(size);
    options.keep_data = true;
    options.checksums = Some(variant.checksums);
    options.wal_segsize_mb = Some(variant.wal_segsize_mb);
    let settings = variant.settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    options.settings = settings.collect();
    run_workload(options, &mut |_| Ok(())).unwrap();
    Ok(output)
}

/// With `wal_consistency_checking`, PostgreSQL logs the expected page with every record.
fn every_record_gives_the_page_that_postgresql_logs(of_version: u32) -> Outcome {
    let variant = VARIANTS.iter().find(|variant| variant.version == of_version).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = mixed(folder.path(), variant, 400)?;
    let paths = ["--base", "base", "--pgdata", "data"]
        .map(|part| if part.starts_with("--") { PathBuf::from(part) } else { output.join(part) });
    let mut arguments = vec![output.join("wal")];
    arguments.extend(paths);
    let arguments: Vec<&Path> = arguments.iter().map(PathBuf::as_path).collect();
    let (code, json) = redo_check(&arguments);
    let version = variant.version;
    assert_eq!((code, number(&json, "different")), (0, 0), "{version}: {json:#}");
    // All records of all access methods are covered: hundreds of pages, thousands of images.
    let (images, pages) = (number(&json, "images_compared"), number(&json, "pages_compared"));
    assert!(images > 8000 && pages > 500, "{version}: {images} images, {pages} pages");
    // Only the free space map may be untracked, as it is not logged.
    for row in json["by_record"].as_array().unwrap() {
        let untracked = row["counts"]["untracked"].as_u64().unwrap();
        assert!(untracked == 0 || row["page"] == "free space map", "{version}: {row}");
    }
    assert_eq!(json["misfits"].as_array().unwrap().len(), 0, "{version}: {json:#}");
    say(&format!("PostgreSQL {version}: {images} images and {pages} pages are as replayed"));
    Ok(())
}

/// The golden clusters' WAL has records of every resource manager that must fit their pages, and few
/// full-page images.
fn golden_clusters_are_replayed_without_a_misfit() {
    let mut images = 0;
    for version in GOLDEN {
        let folder = tempfile::tempdir().unwrap();
        for (name, segment) in golden(version) {
            write(folder.path(), &name, &segment);
        }
        let (code, json) = redo_check(&[folder.path()]);
        assert_eq!((code, number(&json, "different")), (0, 0), "{version}: {json:#}");
        assert_eq!(json["misfits"].as_array().unwrap().len(), 0, "{version}: {json:#}");
        images += number(&json, "images_compared");
    }
    assert!(images > 18, "{images} images");
}

/// An unreadable segment is reported, regardless of the other segments, and so is a missing one.
fn an_unreadable_segment_is_an_error_and_a_missing_one_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let mut segments = golden("18.6");
    let (name, segment) = segments.pop_first().unwrap();
    write(folder.path(), &name, &segment);
    let (name, segment) = segments.pop_last().unwrap();
    write(folder.path(), &name, &segment);
    let source = folder.path().to_str().unwrap();
    let (name, _) = segments.pop_first().unwrap();
    for command in ["check", "replay"] {
        let run = walden(&["redo", command, source]);
        assert_eq!((run.code, run.errors().len()), (0, 0), "{run:?}");
        assert!(run.stderr.contains(&format!("warning: segment {name} is missing")), "{run:?}");
    }
    // Neither a WAL page nor compressed data.
    write(folder.path(), &name, b"no segment");
    for command in ["check", "replay"] {
        let run = walden(&["redo", command, source]);
        assert_eq!((run.code, run.errors().len()), (3, 1), "{run:?}");
        assert!(run.errors()[0].contains(&name), "{run:?}");
    }
}

/// A page store limited to a few pages yields the same result as an unlimited one, and one thread the same as
/// several.
fn bounds_of_memory_and_threads_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (name, segment) in golden("18.6") {
        write(folder.path(), &name, &segment);
    }
    let (_, whole) = redo_check(&[folder.path()]);
    let (_, bounded) = redo_check(&[Path::new("--memory"), Path::new("1MB"), folder.path()]);
    assert_eq!(whole, bounded);
    let (_, alone) = redo_check(&[Path::new("--threads"), Path::new("1"), folder.path()]);
    assert_eq!(whole, alone);
}

/// Full-page images replace data, as PostgreSQL usually writes them, and the omitted data is reconstructed
/// from the images. A single wrong byte in a data file is found and reported.
fn images_are_the_replayed_pages_and_a_wrong_byte_in_a_data_file_is_named() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let variant = Variant { version: 18, checksums: false, wal_segsize_mb: 1, settings: &[] };
    let output = mixed(folder.path(), &variant, 300)?;
    let (wal, data) = (output.join("wal"), output.join("data"));
    let base = output.join("base");
    let arguments = [wal.as_path(), Path::new("--base"), &base, Path::new("--pgdata"), &data];
    let (code, json) = redo_check(&arguments);
    assert_eq!((code, number(&json, "different")), (0, 0), "{json:#}");
    assert!(number(&json, "images_compared") > 300, "{json:#}");
    let (path, page) = changed_heap_page(&base, &data);
    let mut bytes = fs::read(&path).unwrap();
    let item = {
        let page = &bytes[page << 13..][..1 << 13];
        let pointers = page[24..].chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap()));
        // The first normal line pointer: state 1. Its last byte is data of the tuple.
        let pointer =
            pointers.take(100).find(|pointer| pointer >> 15 & 3 == 1 && pointer >> 17 > 24).unwrap();
        ((pointer & 0x7FFF) + (pointer >> 17) - 1) as usize
    };
    bytes[(page << 13) + item] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (code, json) = redo_check(&arguments);
    assert_eq!((code, number(&json, "different")), (1, 1), "{json:#}");
    let difference = &json["differences"][0];
    let place = format!("{} block {page}", path.file_name().unwrap().display());
    assert!(difference["block"].as_str().unwrap().ends_with(&place), "{difference} for {place}");
    assert!(difference["field"].as_str().unwrap().starts_with("item "), "{difference}");
    assert_eq!(difference["offset"].as_u64(), Some(item as u64));
    Ok(())
}

/// Returns a heap page that the WAL changed: its LSN differs from that in the base backup.
fn changed_heap_page(base: &Path, data: &Path) -> (PathBuf, usize) {
    for database in fs::read_dir(data.join("base")).unwrap().map(|entry| entry.unwrap().path()) {
        for path in fs::read_dir(&database).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            let before = fs::read(base.join(path.strip_prefix(data).unwrap())).unwrap_or_default();
            let after = fs::read(&path).unwrap();
            for (page, (before, after)) in before.chunks(1 << 13).zip(after.chunks(1 << 13)).enumerate() {
                let is_heap = after[16..18] == 8192_u16.to_le_bytes();
                let items = usize::from(u16::from_le_bytes([after[12], after[13]]).saturating_sub(24)) / 4;
                if before[..8] != after[..8] && is_heap && items > 100 {
                    return (path, page);
                }
            }
        }
    }
    panic!("no page of a table changed");
}
