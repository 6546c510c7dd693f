//! The demo, as a newcomer runs it.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use walden_testing::{Outcome, postgres};

use crate::material::{sum, walden};

walden_testing::tests! {
    #[slow] the_demo_tells_the_whole_story_and_agrees_with_pg_waldump on [15, 19],
    an_interrupted_demo_and_run_of_the_lab_leave_nothing,
}

fn the_demo_tells_the_whole_story_and_agrees_with_pg_waldump(major: u32) -> Outcome {
    let version = postgres(major)?.version.to_string();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("demo.html");
    let arguments = ["--transactions", "4000", "--format", "json", "--html", page.to_str().unwrap()];
    let run = walden(&[&["demo", "--pg", &version], &arguments[..]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let story: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let document = &story["explanation"];
    assert_eq!(sum(&document["buckets"]), document["file_bytes"].as_u64().unwrap());
    let rules: Vec<&str> = document["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["rule"].as_str().unwrap())
        .collect();
    for rule in ["rolled-back", "unused-index", "checkpoint-images"] {
        assert!(rules.contains(&rule), "{rule} is not among {rules:?}");
    }
    let has_savings = |one: &serde_json::Value| one["saves_bytes"].as_u64().is_some_and(|bytes| bytes > 0);
    assert!(document["findings"].as_array().unwrap().iter().any(has_savings), "{document}");
    let named = |name: &str| run.stdout.contains(name);
    assert!(named("orders_changed") && named("pgbench_accounts"));
    assert!(!run.stderr.contains("DIFFERENT"), "{}", run.stderr);

    // The suggested setting must save the predicted amount.
    let prediction = &story["prediction"];
    let bytes = |name: &str| prediction[name].as_u64().unwrap_or_else(|| panic!("no {name} in {prediction}"));
    assert!(["max_wal_size", "wal_compression"].contains(&prediction["setting"].as_str().unwrap()));
    let (traced, measured) = (bytes("traced_bytes"), bytes("measured_bytes"));
    assert_eq!(traced, document["file_bytes"].as_u64().unwrap());
    assert!(measured * 10 < traced * 9, "{prediction}");
    let (predicted, stated) = (bytes("predicted_bytes"), bytes("predicted_error_bytes"));
    assert!(predicted.abs_diff(measured) <= stated.max(measured / 20), "{prediction}");

    let sizes = story["compression"].as_array().unwrap();
    let sizes: Vec<u64> = sizes.iter().map(|one| one["bytes"].as_u64().unwrap()).collect();
    let [plain, xz, pack] = sizes[..] else { panic!("{sizes:?}") };
    assert!(pack < xz && xz < plain, "{sizes:?}");

    assert_eq!(story["page"], page.to_str().unwrap());
    let html = fs::read_to_string(&page).unwrap();
    for heading in ["Findings", "Another setting: predicted, then measured", "The WAL, compressed"] {
        assert!(html.contains(heading), "{heading}");
    }
    Ok(())
}

fn an_interrupted_demo_and_run_of_the_lab_leave_nothing() -> Outcome {
    let version = postgres(15)?.version.to_string();
    let demo = ["demo", "--pg", &version];
    let lab = ["lab", "run", "oltp", "--pg", &version, "-o", "output"];
    for arguments in [&demo[..], &lab] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        command.args(arguments).current_dir(&folder).env("TMPDIR", folder.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let entries = || fs::read_dir(folder.path()).unwrap().count();
        let deadline = Instant::now() + Duration::from_secs(60);
        while entries() == 0 && Instant::now() < deadline {
            assert!(child.try_wait().unwrap().is_none(), "{arguments:?} ended before it made a folder");
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(500));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert!(!child.wait().unwrap().success(), "{arguments:?}");
        assert_eq!(entries(), 0, "{arguments:?} left something");
    }
    Ok(())
}
