//! Savings that `walden explain` prints for settings, compared with replay and with servers that did the same
//! work under them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use walden_lab::run::{RunOptions, run_workload};
use walden_lab::workloads::by_name;
use walden_testing::{Outcome, postgres};

use crate::material::explain_json;

walden_testing::tests! {
    #[slow] savings_are_within_their_range on [14, 15, 19],
}

type Settings = BTreeMap<String, String>;

/// Returns the WAL of reproducible work, in segments of 1 MB, and its folder.
fn work(major: u32, changed: &Settings) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let of_trace =
        [("max_wal_size", "8MB"), ("min_wal_size", "2MB"), ("checkpoint_completion_target", "0.5")];
    let mut settings: Settings = of_trace.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    settings.extend(changed.clone());
    let options = RunOptions {
        size: Some(2500),
        installation: postgres(major).ok(),
        settings: settings.into_iter().collect(),
        wal_segsize_mb: Some(1),
        checksums: Some(false),
        ..RunOptions::new(by_name("oltp-single").unwrap(), folder.path())
    };
    let wal = run_workload(options, &mut |_| Ok(())).unwrap().wal_dir;
    (folder, wal)
}

fn number(value: &Value) -> f64 {
    value.as_u64().unwrap() as f64
}

/// Returns the findings whose remedy is a setting, in order, and the bytes of the WAL.
fn findings(wal: &Path, method: &str) -> (Vec<Value>, f64) {
    let document = explain_json(&["--savings".as_ref(), method.as_ref(), wal.as_os_str()]);
    let all = document["findings"].as_array().unwrap().iter();
    let of_settings =
        all.filter(|finding| finding["kind"] == "setting" && !finding["try_settings"].is_null());
    (of_settings.cloned().collect(), number(&document["wal_bytes"]))
}

fn savings_are_within_their_range(major: u32) -> Outcome {
    postgres(major)?;
    let (_folder, wal) = work(major, &Settings::new());
    let (estimated, wal_bytes) = findings(&wal, "estimate");
    let (replayed, _) = findings(&wal, "exact");
    assert!(!estimated.is_empty() && replayed[0]["try_settings"] == estimated[0]["try_settings"]);
    // The second saving is in addition to the first.
    let (mut changed, mut saves, mut error) = (Settings::new(), 0.0, 0.0);
    for finding in &estimated {
        let [estimate, range] = ["saves_bytes", "saves_error_bytes"].map(|member| number(&finding[member]));
        assert!(range < 0.2 * wal_bytes, "{finding:#}");
        if let Some(exact) = replayed.iter().find(|one| one["try_settings"] == finding["try_settings"]) {
            let [replay, error] = ["saves_bytes", "saves_error_bytes"].map(|member| number(&exact[member]));
            assert!((estimate - replay).abs() <= range + error, "{finding:#} {exact:#}");
        }
        changed.extend(serde_json::from_value::<Settings>(finding["try_settings"].clone()).unwrap());
        (saves, error) = (saves + estimate, error + range);
        let (_other, other_wal) = work(major, &changed);
        let (_, other_bytes) = findings(&other_wal, "never");
        let saved = wal_bytes - other_bytes;
        assert!(
            (saved - saves).abs() <= error,
            "{changed:?} saved {saved} bytes of {wal_bytes}: {finding:#}"
        );
    }
    Ok(())
}
