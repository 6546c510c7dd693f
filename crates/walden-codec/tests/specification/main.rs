//! The specification against the library: a decoder that was written from `docs/format.md` alone gets the same columns out of
//! the golden files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use walden_testing::{Need, Outcome};

#[path = "../../examples/columns.rs"]
mod columns;

/// Golden files with modelled parts, which `tests/format/entropy.py` does not decode yet.
const MODELLED: [&str; 7] = [
    "records-14.wlz",
    "records-level-7.wlz",
    "records-level-8.wlz",
    "records-level-9.wlz",
    "records-words-7.wlz",
    "records-words-8.wlz",
    "records-words-9.wlz",
];

fn main() -> ExitCode {
    walden_testing::run(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/specification"), &[TESTS])
}

walden_testing::tests! {
    an_independent_decoder_gets_the_same_columns,
}

fn an_independent_decoder_gets_the_same_columns() -> Outcome {
    let python = Need::Python.find()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = root.join("../../tests/format/decode.py");
    let mut files: Vec<PathBuf> = fs::read_dir(root.join("tests/golden/v1"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !MODELLED.iter().any(|name| path.ends_with(name)))
        .collect();
    files.sort();
    assert!(files.len() > 10, "{files:?}");
    for path in files {
        let output = Command::new(&python).arg("-B").arg(&program).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", path.display());
        let found = String::from_utf8(output.stdout).unwrap();
        let expected = columns::lines_of(&fs::read(&path).unwrap()).unwrap();
        assert!(found.lines().eq(expected.iter().map(String::as_str)), "{}: {}", path.display(), {
            let differs = found.lines().zip(&expected).find(|(found, expected)| found != expected);
            format!("first other line: {differs:?}; {} and {} lines", found.lines().count(), expected.len())
        });
    }
    Ok(())
}
