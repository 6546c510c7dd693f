//! Savings that `walden explain` prints for settings, compared with replay and with servers that did the same
//! work under them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use walden_lab::run::{RunOptions, run_workload};
use walden_lab::workloads::by_name;
use walden_testing::{Outcome, postgres};

use crate::material::{cluster_that_keeps_wal, explain_json};

walden_testing::tests! {
    #[slow] savings_are_within_their_range on [14, 15, 19],
    savings_of_causes_contain_what_their_remedies_save on [15, 18],
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

/// The same work before and after the remedy of a finding, on tables of their own.
const REMEDIES: [(&str, &str, &str, &str); 4] = [
    (
        "bulk-update",
        "CREATE TABLE full_pages (id int PRIMARY KEY, a int, b int, pad text);
         INSERT INTO full_pages SELECT g, 0, g, repeat('p', 60) FROM generate_series(1, 20000) g;
         CREATE INDEX ON full_pages (b);
         CREATE TABLE half_pages (id int PRIMARY KEY, a int, b int, pad text) WITH (fillfactor = 50);
         INSERT INTO half_pages SELECT g, 0, g, repeat('p', 60) FROM generate_series(1, 20000) g;
         CREATE INDEX ON half_pages (b); VACUUM full_pages, half_pages",
        "UPDATE full_pages SET a = a + 1",
        "UPDATE half_pages SET a = a + 1",
    ),
    (
        "upserts",
        "CREATE TABLE counted (k int PRIMARY KEY, c int);
         INSERT INTO counted SELECT g, 0 FROM generate_series(1, 500) g;
         CREATE TABLE updated (k int PRIMARY KEY, c int);
         INSERT INTO updated SELECT g, 0 FROM generate_series(1, 500) g; VACUUM counted, updated",
        "DO $$ BEGIN FOR i IN 1..6000 LOOP
           INSERT INTO counted VALUES (i % 500 + 1, 1) ON CONFLICT (k) DO UPDATE SET c = counted.c + 1; COMMIT;
         END LOOP; END $$",
        "DO $$ BEGIN FOR i IN 1..6000 LOOP UPDATE updated SET c = c + 1 WHERE k = i % 500 + 1; COMMIT; END LOOP; END $$",
    ),
    (
        "toast-rewrites",
        "CREATE TABLE wide (id int PRIMARY KEY, doc text, hits int);
         CREATE TABLE other (id int PRIMARY KEY, doc text, hits int);
         ALTER TABLE wide ALTER doc SET STORAGE external; ALTER TABLE other ALTER doc SET STORAGE external;
         INSERT INTO wide SELECT g, repeat(md5(g::text), 200), 0 FROM generate_series(1, 1000) g;
         INSERT INTO other SELECT * FROM wide; VACUUM wide, other",
        "UPDATE wide SET doc = doc || 'x', hits = hits + 1 WHERE id <= 500",
        "UPDATE other SET hits = hits + 1 WHERE id <= 500",
    ),
    (
        "savepoints",
        "CREATE TABLE noted (i int); CREATE TABLE plain (i int)",
        "DO $$ BEGIN FOR i IN 1..2000 LOOP
           BEGIN INSERT INTO noted VALUES (i); EXCEPTION WHEN unique_violation THEN END;
           BEGIN INSERT INTO noted VALUES (i); EXCEPTION WHEN unique_violation THEN END;
           BEGIN INSERT INTO noted VALUES (i); EXCEPTION WHEN unique_violation THEN END; COMMIT;
         END LOOP; END $$",
        "DO $$ BEGIN FOR i IN 1..2000 LOOP
           INSERT INTO plain VALUES (i); INSERT INTO plain VALUES (i); INSERT INTO plain VALUES (i); COMMIT;
         END LOOP; END $$",
    ),
];

fn savings_of_causes_contain_what_their_remedies_save(major: u32) -> Outcome {
    let cluster = cluster_that_keeps_wal(postgres(major)?)
        .setting("max_wal_size", "4GB")
        .setting("checkpoint_timeout", "1h")
        .setting("bgwriter_delay", "10s")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let mut wrong = Vec::new();
    for (rule, prepare, before, after) in REMEDIES {
        let mut ranges = Vec::new();
        for statement in prepare.split(";\n").flat_map(|part| part.split("; ")) {
            client.batch_execute(statement).unwrap();
        }
        for statement in [before, after] {
            client.batch_execute("CHECKPOINT").unwrap();
            let mut position = || -> String {
                client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0)
            };
            let from = position();
            client.batch_execute(statement).unwrap();
            let to: String =
                client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
            ranges.push([from, to]);
        }
        let (wal, dsn) = (cluster.data_dir().join("pg_wal"), cluster.dsn("postgres"));
        let of = |[from, to]: &[String; 2]| {
            explain_json(&[wal.to_str().unwrap(), "--from", from, "--to", to, "--names", &dsn])
        };
        let (with, without) = (of(&ranges[0]), of(&ranges[1]));
        let saved = number(&with["wal_bytes"]) - number(&without["wal_bytes"]);
        let findings = with["findings"].as_array().unwrap();
        let Some(finding) = findings.iter().find(|one| one["rule"] == rule) else {
            wrong.push(format!("{rule}: no such finding"));
            continue;
        };
        let [stated, error] = ["saves_bytes", "saves_error_bytes"].map(|member| number(&finding[member]));
        // A snapshot of running transactions may be written meanwhile, and pages have headers.
        if (stated - saved).abs() > error + 2000.0 {
            wrong.push(format!("{rule}: states {stated} ±{error}, saved {saved}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}
