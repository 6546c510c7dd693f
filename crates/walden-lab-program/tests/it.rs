//! Tests the program's commands and exit statuses. `crates/walden/tests` runs its workloads, experiments and
//! benchmarks.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_walden-lab")).args(arguments).output().unwrap()
}

#[test]
fn workloads_and_benchmarks_are_listed() {
    let list = run(&["list"]);
    let text = String::from_utf8_lossy(&list.stdout);
    assert!(list.status.success() && text.contains("oltp") && text.contains("culprits"), "{list:?}");
    let bench = run(&["bench", "--help"]);
    let text = String::from_utf8_lossy(&bench.stdout);
    assert!(bench.status.success() && text.contains("decode") && text.contains("archive"), "{bench:?}");
}

#[test]
fn an_unknown_workload_is_wrong_usage() {
    let run = run(&["run", "no-such-workload"]);
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert!(String::from_utf8_lossy(&run.stderr).contains("no-such-workload"), "{run:?}");
}
