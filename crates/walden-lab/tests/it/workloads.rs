//! Every workload, at a small size, on the available server.

use std::fs;
use std::path::Path;

use serde_json::Value;
use walden_lab::workloads::{all, by_name};
use walden_lab::{Cluster, RunOptions, RunResult, run_workload};

walden_testing::tests! {
    oltp,
    oltp_pressure,
    oltp_single_and_paced,
    load,
    dml_matrix,
    dense,
    mixed,
    mixed_paced,
    index_types,
    golden,
    every_workload_has_a_test,
    a_folder_in_use_is_refused_unless_forced,
}

fn run(name: &str, size: u64, output: &Path) -> RunResult {
    let options = RunOptions { size: Some(size), ..RunOptions::new(by_name(name).unwrap(), output) };
    run_workload(options, &mut |_: &Cluster| Ok(())).unwrap()
}

/// Runs a workload and checks the properties that all workloads share. Returns the content of `facts.json`.
fn check(name: &str, size: u64) -> Value {
    let output = tempfile::tempdir().unwrap();
    let result = run(name, size, output.path());
    let facts = &result.facts;

    // A segment for each position from the start to the end, with full size and the right content.
    assert!(facts.start_lsn <= facts.workload_lsn && facts.workload_lsn < facts.end_lsn);
    assert_eq!(facts.start_lsn.0 % facts.wal_segment_bytes, 0);
    let needed =
        (facts.end_lsn.0 - 1) / facts.wal_segment_bytes - facts.start_lsn.0 / facts.wal_segment_bytes + 1;
    assert!(facts.segments.len() as u64 >= needed, "{needed} segments expected: {:?}", facts.segments);
    for (index, segment) in facts.segments.iter().enumerate() {
        let bytes = fs::read(result.wal_dir.join(segment)).unwrap();
        assert_eq!(bytes.len() as u64, facts.wal_segment_bytes);
        // xlp_pageaddr and xlp_sysid of the first page.
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(word(8), facts.start_lsn.0 + index as u64 * facts.wal_segment_bytes);
        assert_eq!(word(24).to_string(), facts.system_identifier);
    }

    let text = fs::read_to_string(output.path().join("facts.json")).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written["workload"], name);
    assert_eq!(written["start_lsn"], facts.start_lsn.to_string());
    assert_eq!(written["settings"]["fsync"]["value"], "off");
    assert!(written["settings"]["wal_level"].is_object());
    let counted = &written["statistics"]["pg_stat_wal"]["delta"];
    assert!(counted["wal_records"].as_u64().unwrap() > 10, "{counted}");
    // Records without page headers and padding take slightly fewer bytes than the LSN range.
    let bytes = counted["wal_bytes"].as_u64().unwrap();
    assert!(bytes <= facts.workload_bytes + 8192, "{bytes} counted in {}", facts.workload_bytes);
    written
}

fn oltp() {
    let facts = check("oltp", 400);
    assert_eq!(facts["notes"]["transactions"], 400);
}

fn oltp_pressure() {
    let facts = check("oltp-pressure", 400);
    assert_eq!(facts["settings"]["max_wal_size"]["value"], "32");
}

fn oltp_single_and_paced() {
    for name in ["oltp-single", "oltp-paced"] {
        let facts = check(name, 200);
        assert_eq!((&facts["notes"]["clients"], &facts["notes"]["transactions"]), (&1.into(), &200.into()));
    }
}

fn load() {
    check("load", 1);
}

fn dml_matrix() {
    let facts = check("dml-matrix", 2000);
    let statements = facts["notes"]["statements"].as_array().unwrap();
    assert_eq!(statements.len(), 10);
    let bytes = |index: usize| statements[index]["bytes"].as_u64().unwrap();
    // Updates of rows that were written before a checkpoint write images; without images they need far less.
    assert!(bytes(1) > bytes(6), "{statements:?}");
}

fn dense() {
    let facts = check("dense", 1000);
    assert_eq!(facts["statistics"]["pg_stat_wal"]["delta"]["wal_fpi"], 0);
}

fn mixed() {
    check("mixed", 600);
}

fn mixed_paced() {
    // A number of operations that takes two seconds.
    let facts = check("mixed-paced", 800);
    assert!(facts["seconds"].as_f64().unwrap() > 1.9, "{}", facts["seconds"]);
}

fn index_types() {
    check("index-types", 500);
}

fn golden() {
    let facts = check("golden", 1);
    assert_eq!(facts["wal_segment_bytes"], 1 << 20);
}

fn every_workload_has_a_test() {
    let tested = [
        "oltp",
        "oltp-pressure",
        "oltp-single",
        "oltp-paced",
        "load",
        "dml-matrix",
        "dense",
        "mixed",
        "mixed-paced",
        "index-types",
        "golden",
    ];
    let names: Vec<_> = all().iter().map(|one| one.name).collect();
    assert_eq!(names, tested);
}

fn a_folder_in_use_is_refused_unless_forced() {
    let output = tempfile::tempdir().unwrap();
    fs::write(output.path().join("precious"), "mine").unwrap();
    let dense = by_name("dense").unwrap();
    let options = RunOptions { size: Some(10), ..RunOptions::new(dense, output.path()) };
    let error = run_workload(options.clone(), &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("expected an empty folder"), "{error}");
    let mut called = false;
    let hook = &mut |cluster: &Cluster| {
        called = cluster.is_running();
        Ok(())
    };
    run_workload(RunOptions { force: true, ..options }, hook).unwrap();
    assert!(called);
    assert!(output.path().join("precious").exists());
    assert!(output.path().join("facts.json").exists());
}
