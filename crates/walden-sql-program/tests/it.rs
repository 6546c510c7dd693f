//! Tests the program's exit statuses and output.

use std::path::Path;
use std::process::{Command, Output};

fn run(query: &str, options: &[&str]) -> Output {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden/18.6");
    let mut command = Command::new(env!("CARGO_BIN_EXE_walden-sql"));
    command.arg(query).arg(golden).args(options).output().unwrap()
}

#[test]
fn a_query_prints_its_result() {
    let run = run("SELECT count(*) > 100 AS many FROM records", &["--format", "csv"]);
    let (text, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert_eq!((run.status.code(), text.as_ref()), (Some(0), "many\ntrue\n"), "{error}");
}

#[test]
fn a_wrong_query_and_a_wrong_option_are_wrong_usage() {
    let query = run("SELEC 1", &[]);
    assert_eq!(query.status.code(), Some(2), "{query:?}");
    let option = run("SELECT 1", &["--no-such-option"]);
    assert_eq!(option.status.code(), Some(2), "{option:?}");
    assert!(String::from_utf8_lossy(&option.stderr).contains("Usage: walden-sql"), "{option:?}");
}
