//! Findings of workloads with a known culprit, on a real server.

use serde_json::Value;
use walden_testing::{Outcome, postgres};

use crate::material::walden;

walden_testing::tests! {
    #[slow] the_first_finding_names_the_culprit_and_no_other_is_false on [15, 19],
    unknown_culprits_are_refused,
    a_seed_selects_a_culprit_and_keeps_its_verdict,
    a_seed_selects_settings_and_predictions_are_compared_with_a_server,
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

fn a_seed_selects_a_culprit_and_keeps_its_verdict() -> Outcome {
    let version = postgres(15)?.version.to_string();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let seeds = |arguments: &[&str]| {
        let all = ["lab", "run", "random-culprits", "--pg", &version, "-o", output, "--format", "json"];
        let run = walden(&[&all, arguments].concat());
        let document: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
        (run, document)
    };
    // A healthy server, and one with a culprit whose saving is exact.
    let only = ["--only", "none-mixed,unused-index", "--seeds", "1..2", "--jobs", "2"];
    let (run, first) = seeds(&only);
    assert_eq!((run.code, &first["right"], &first["seeds"]), (0, &2.into(), &2.into()), "{first:#}");
    assert_eq!(first["healthy"], serde_json::json!({ "count": 1, "of": 1 }));
    let verdicts = first["verdicts"].as_array().unwrap();
    let unused = verdicts.iter().find(|one| one["culprit"] == "unused-index").unwrap();
    assert_eq!(
        (&unused["place"], &unused["saving"]["within_range"]),
        (&1.into(), &true.into()),
        "{unused:#}"
    );
    let name = unused["objects"][0].as_str().unwrap();
    let finding = &unused["culprit_run"]["findings"][0];
    assert!(finding["points_at"].as_str().unwrap().contains(name), "{unused:#}");
    let bytes = |run: &str| unused[run]["bytes"].as_u64().unwrap();
    assert!(bytes("culprit_run") > 10_000_000 && bytes("remedy_run") < bytes("culprit_run"), "{unused:#}");

    // The same seeds are not run again.
    let path = folder.path().join("seed-1.json");
    let written = std::fs::metadata(&path).unwrap().modified().unwrap();
    assert_eq!(seeds(&only).1, first);
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written);

    let mixed = walden(&["lab", "run", "mixed", "--seeds", "1"]);
    assert!(
        mixed.code == 2 && mixed.stderr.contains("--seeds is for random-culprits and random-predictions"),
        "{mixed:?}"
    );
    for arguments in [["--seeds", "5..1"], ["--seeds", "x"], ["--size", "1"]] {
        let run = walden(&[&["lab", "run", "random-culprits", "-o", output], &arguments[..]].concat());
        assert_eq!(run.code, 2, "{run:?}");
    }
    let unknown = walden(&["lab", "run", "random-culprits", "-o", output, "--only", "unknown"]);
    assert!(unknown.code == 3 && unknown.stderr.contains("unknown is not among the culprits"), "{unknown:?}");
    Ok(())
}

fn a_seed_selects_settings_and_predictions_are_compared_with_a_server() -> Outcome {
    let version = postgres(15)?.version.to_string();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let predictions = |arguments: &[&str]| {
        let all = ["lab", "run", "random-predictions", "--pg", &version, "-o", output, "--format", "json"];
        let run = walden(&[&all, arguments].concat());
        let document: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
        (run.code, document)
    };
    let (code, first) = predictions(&["--seeds", "109..110", "--jobs", "2", "--keep-wal"]);
    let cells = first["cells"].as_array().unwrap();
    assert_eq!((&first["seeds"], cells.len()), (&2.into(), 2), "{first:#}");
    let within = cells.iter().filter(|cell| cell["within"] == true).count();
    assert_eq!((&first["within"], code), (&within.into(), i32::from(within < 2)), "{first:#}");
    for cell in cells {
        let bytes = |name: &str| cell[name].as_u64().unwrap();
        let (measured, predicted) = (bytes("measured_bytes"), bytes("predicted_bytes"));
        assert!(measured > 5_000_000 && predicted.abs_diff(measured) < measured / 10, "{cell:#}");
        assert_eq!(cell["within"], predicted.abs_diff(measured) <= bytes("error_bytes"), "{cell:#}");
        let changed = cell["changed"].as_object().unwrap();
        assert!(!changed.is_empty() && changed.iter().all(|(name, value)| cell["traced"][name] != *value));
    }
    // They are predicted again from the kept WAL, but the servers do not run again.
    let kept = folder.path().join("seed-109/traced/facts.json");
    let written = std::fs::metadata(&kept).unwrap().modified().unwrap();
    assert_eq!(predictions(&["--seeds", "109..110"]), (code, first));
    assert_eq!(std::fs::metadata(&kept).unwrap().modified().unwrap(), written);
    let only = walden(&["lab", "run", "random-predictions", "-o", output, "--only", "pgbench"]);
    assert!(only.code == 2 && only.stderr.contains("--only is for culprits"), "{only:?}");
    Ok(())
}
