//! PostgreSQL versions that each version of the format codes as records.

use std::path::Path;

use walden_codec::coder::least_reader;
use walden_codec::container::{FORMAT_VERSION, MIN_READER};
use walden_format::version::Major;

/// Returns the table rows of a documentation page that start with a version and its page magic, with all
/// cells.
fn rows(page: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let is_magic =
        |cell: &String| cell.len() == 4 && cell.starts_with('D') && u16::from_str_radix(cell, 16).is_ok();
    text.lines()
        .filter_map(|line| line.strip_prefix("| "))
        .map(|line| line.trim_end_matches(" |").split(" | ").map(str::to_owned).collect::<Vec<_>>())
        .filter(|cells| cells.get(1).is_some_and(is_magic))
        .collect()
}

#[test]
fn page_magics_are_those_of_the_specification() {
    let found: Vec<Vec<String>> = Major::all()
        .map(|version| {
            let reader = least_reader(version).unwrap_or_else(|| {
                panic!(
                    "the compressed format has no row for PostgreSQL {version}. Records of a new version need a new version \
                     of the format: add the page magic to docs/format.md and to coder/magics.rs with that version as least \
                     reader, describe its redo in docs/format-model.md, and raise FORMAT_VERSION and MIN_READER"
                )
            });
            assert!(reader <= FORMAT_VERSION && FORMAT_VERSION >= MIN_READER, "PostgreSQL {version}");
            vec![version.to_string(), format!("{:04X}", version.magic()), reader.to_string()]
        })
        .collect();
    assert_eq!(found, rows("format.md"), "docs/format.md has other page magics than the code");
    let model: Vec<Vec<String>> =
        rows("format-model.md").into_iter().map(|cells| cells[..2].to_vec()).collect();
    let found: Vec<Vec<String>> = found.into_iter().map(|cells| cells[..2].to_vec()).collect();
    assert_eq!(found, model, "docs/format-model.md describes redo of other page magics");
}

/// Version 1 is frozen: a later version of PostgreSQL requires a later version of the format.
#[test]
fn version_1_codes_the_versions_up_to_19() {
    let coded: Vec<Major> = Major::all().filter(|version| least_reader(*version) == Some(1)).collect();
    assert_eq!(coded.len(), 12);
    assert_eq!((coded[0], coded[11]), (Major::V9_5, Major::V19));
}
