//! Compares the library with the specification: a decoder written only from `docs/format.md` decodes the same
//! columns from the golden files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};

use walden_testing::{Need, Outcome};

#[path = "../../examples/columns.rs"]
mod columns;

fn main() -> ExitCode {
    walden_testing::run(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/specification"), &[TESTS])
}

walden_testing::tests! {
    an_independent_decoder_gets_the_same_columns,
}

fn an_independent_decoder_gets_the_same_columns() -> Outcome {
    let python = Need::Python.find()?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files = ["v1", "v2"].into_iter().flat_map(|version| fs::read_dir(folder.join(version)).unwrap());
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 20, "{files:?}");
    // A file takes up to ten seconds.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    compare(python.as_ref(), path);
                }
            });
        }
    });
    Ok(())
}

/// Compares the columns of a file.
fn compare(python: &Path, path: &Path) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/format/decode.py");
    let output = Command::new(python).arg("-B").arg(&program).arg(path).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", path.display());
    let found = String::from_utf8(output.stdout).unwrap();
    let expected = columns::lines_of(&fs::read(path).unwrap()).unwrap();
    assert!(found.lines().eq(expected.iter().map(String::as_str)), "{}: {}", path.display(), {
        let differs = found.lines().zip(&expected).find(|(found, expected)| found != expected);
        format!(
            "first line that differs: {differs:?}; {} and {} lines",
            found.lines().count(),
            expected.len()
        )
    });
}
