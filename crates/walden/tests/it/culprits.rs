//! Findings of workloads with a known culprit, on a real server.

use serde_json::Value;
use walden_testing::{Outcome, postgres};

use crate::material::walden;

walden_testing::tests! {
    the_first_finding_names_the_culprit_and_no_other_is_false on [15, 19],
    unknown_culprits_are_refused,
}

/// Some workloads of each family that take a second or two; `walden lab run culprits` runs all.
const SOME: &str = "healthy,unused-index,index-on-hot-column,uuid-keys,no-op-bulk-update,staging-table,select-for-update,on-conflict,\
                    savepoints,sequences,checkpoints-by-command,uncompressed-images,create-and-drop-database,batch-updates,purge-jobs,\
                    drip-deletes,gin-without-list,hash-index,partition-moves,two-phase-commit,setval,refresh-concurrently,audit-trigger,\
                    wide-updates-for-decoding,checkpoints-with-checksums,idle-transaction,updates-with-pruning,set-logged,\
                    reindex-concurrently,reindex,failing-index-builds,dead-entry-hints,initial-copy,redundant-index";

fn the_first_finding_names_the_culprit_and_no_other_is_false(major: u32) -> Outcome {
    let version = postgres(major)?.version.to_string();
    let arguments = ["--pg", &version, "--format", "json"];
    let run = walden(&[&["lab", "run", "culprits", "--only", SOME], &arguments[..]].concat());
    let document: Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    let cases = document["cases"].as_array().unwrap();
    assert_eq!(cases.len(), SOME.split(',').count());
    for case in cases {
        let is_right = case["first_correct"] == true && case["false_rules"].as_array().unwrap().is_empty();
        assert!(is_right, "{case:#}");
        let findings = case["findings"].as_array().unwrap();
        let causes = findings.iter().filter(|one| one["kind"] == "cause");
        let share: f64 = causes.map(|one| one["share"].as_f64().unwrap()).sum();
        assert!(share <= 1.0 + 1e-9, "{case:#}");
        for finding in findings {
            let saves = finding["saves_bytes"].as_u64().unwrap_or(0);
            assert!(saves <= case["bytes"].as_u64().unwrap(), "{finding:#}");
        }
    }
    assert_eq!(run.code, 0, "{}", run.stderr);
    Ok(())
}

fn unknown_culprits_are_refused() {
    let run = walden(&["lab", "run", "culprits", "--only", "unknown"]);
    assert!(run.code == 3 && run.stderr.contains("unknown is not among the culprits"), "{run:?}");
}
