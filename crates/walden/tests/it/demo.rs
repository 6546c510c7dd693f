//! The demo, as a newcomer runs it.

use crate::material::{sum, walden};

walden_testing::tests! {
    the_demo_finds_what_it_put_there_and_agrees_with_pg_waldump,
}

fn the_demo_finds_what_it_put_there_and_agrees_with_pg_waldump() {
    let run = walden(&["demo", "--seconds", "1", "--format", "json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let document: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(sum(&document["buckets"]), document["file_bytes"].as_u64().unwrap());
    let rules: Vec<&str> = document["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["rule"].as_str().unwrap())
        .collect();
    for rule in ["bulk-update", "repeated-updates", "checkpoint-images"] {
        assert!(rules.contains(&rule), "{rule} is not among {rules:?}");
    }
    let named = |name: &str| run.stdout.contains(name);
    assert!(named("orders_changed") && named("pgbench_accounts"));
    assert!(!run.stderr.contains("DIFFERENT"), "{}", run.stderr);
}
