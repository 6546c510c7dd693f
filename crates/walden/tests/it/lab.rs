//! Small runs of the published experiments, and their effects on existing servers.

use std::fs;
use std::path::Path;

use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, Wanted, find_or_install};
use walden_testing::{Need, Outcome};

use crate::html::assert_draws;
use crate::material::{Run, explain_json, sum, walden};

walden_testing::tests! {
    #[slow] an_import_writes_almost_nothing_under_minimal,
    #[slow] a_definition_can_be_copied_and_changed,
    #[slow] statements_are_measured_on_three_engines,
    #[slow] the_same_bytes_are_copied_and_the_published_loops_copy_a_quarter,
    #[slow] a_users_server_is_left_as_it_was,
    impossible_requests_are_wrong_usage_before_anything_starts,
}

/// Runs an experiment, which must succeed, and returns its results.
fn experiment(arguments: &[&str]) -> Value {
    let mut all = vec!["lab", "run", "--format", "json"];
    all.extend(arguments);
    let run = walden(&all);
    assert_eq!(run.code, 0, "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

fn figure<'a>(report: &'a Value, key: [&str; 3]) -> &'a Value {
    let all = report["figures"].as_array().unwrap();
    let found = all.iter().find(|one| [&one["case"], &one["phase"], &one["measure"]] == key);
    found.unwrap_or_else(|| panic!("no {key:?} in {all:#?}"))
}

fn measured(report: &Value, key: [&str; 3]) -> f64 {
    figure(report, key)["measured"].as_f64().unwrap_or_else(|| panic!("{key:?} was not measured"))
}

/// Returns why a measurement was not possible, if so: the reason that starts with these words.
fn unavailable<'a>(report: &'a Value, what: &str) -> Option<&'a str> {
    let mut reasons = report["unavailable"].as_array().unwrap().iter().map(|reason| reason.as_str().unwrap());
    reasons.find(|reason| reason.starts_with(what))
}

/// Returns an error if the report states that a measurement lacked a program.
fn measured_with(need: Need, report: &Value, what: &str) -> Outcome {
    unavailable(report, what).map_or(Ok(()), |reason| Err(need.missing(reason)))
}

fn an_import_writes_almost_nothing_under_minimal() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let (keep, out) = (folder.path().join("keep"), folder.path().join("out.json"));
    let (keep_text, out_text) = (keep.to_str().unwrap(), out.to_str().unwrap());
    let html = folder.path().join("page.html");
    let files = ["--out", out_text, "--html", html.to_str().unwrap()];
    let sizes = ["--scale", "2", "--transactions", "400", "--keep", keep_text];
    let report = experiment(&[&["wal-level"], &sizes[..], &files].concat());
    let written: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    assert_eq!(written, report);
    // Expects charts of claims, of each part, and of predictions.
    let drawn = assert_draws(&html, 4);
    // The WAL of one case predicts the others.
    for key in [
        ["minimal", "transactions", "wal_mb"],
        ["logical", "transactions", "wal_mb"],
        ["logical", "import", "wal_mb"],
    ] {
        let predicted = figure(&report, key)["predicted"].as_f64().unwrap();
        let measured = measured(&report, key);
        assert!((predicted / measured - 1.0).abs() < 0.02, "{key:?}: {predicted} for {measured}");
    }

    let import = |case| measured(&report, [case, "import", "wal_mb"]);
    assert!(import("replica") > 10.0 * import("minimal"), "{} and {}", import("replica"), import("minimal"));
    assert!((import("logical") / import("replica") - 1.0).abs() < 0.05);
    assert!(measured(&report, ["minimal", "transactions", "wal_mb"]) > 0.1);
    let checks = report["checks"].as_array().unwrap();
    assert_eq!((checks.len(), &checks[0]["holds"], &checks[0]["published"]), (4, &true.into(), &35.0.into()));

    for run in report["runs"].as_array().unwrap() {
        let case = run["case"].as_str().unwrap();
        assert_eq!(run["settings"]["wal_level"]["value"], case);
        // The kept WAL is the measured WAL.
        assert_eq!(run["kept"]["folder"].as_str().unwrap(), keep.join(case).to_str().unwrap());
        let facts = fs::read_to_string(keep.join(case).join("facts.json")).unwrap();
        let facts: Value = serde_json::from_str(&facts).unwrap();
        assert_eq!(facts["workload"], format!("wal-level/{case}"));
        let import = &run["phases"][0];
        let wal = run["kept"]["wal"].as_str().unwrap();
        let range = ["--from", import["from"].as_str().unwrap(), "--to", import["to"].as_str().unwrap()];
        let explained = explain_json(&[&range[..], &[wal]].concat());
        let megabytes = sum(&explained["buckets"]) as f64 / f64::from(1 << 20);
        assert!(
            (megabytes - measured(&report, [case, "import", "wal_mb"])).abs() < 0.001,
            "{case}: {megabytes}"
        );
    }
    // Existing files are not overwritten.
    let again =
        walden(&["lab", "run", "wal-level", "--scale", "1", "--transactions", "10", "--keep", keep_text]);
    assert!(again.code == 3 && again.stderr.contains("expected an empty folder"), "{again:?}");
    drawn
}

fn a_definition_can_be_copied_and_changed() -> Outcome {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../walden-lab/experiments/checkpoint-distance.toml");
    let changed = fs::read_to_string(shipped)
        .unwrap()
        .replace(
            "max_wal_size = \"32MB\", min_wal_size = \"32MB\"",
            "max_wal_size = \"2MB\", min_wal_size = \"2MB\"",
        )
        .replace("published = { \"run/wal_mb\" = 23552 }", "segment-megabytes = 1")
        .replace("name = \"checkpoint-distance\"", "name = \"of-my-own\"");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    fs::write(&file, changed).unwrap();
    let html = folder.path().join("page.html");
    let sizes = ["--scale", "1", "--clients", "2", "--transactions", "3000"];
    let report =
        experiment(&[&[file.to_str().unwrap(), "--html", html.to_str().unwrap()], &sizes[..]].concat());
    assert_eq!(report["experiment"], "of-my-own");
    assert_eq!((&report["sizes"]["clients"], &report["published_size"]), (&2.into(), &false.into()));
    let run = |case, measure| measured(&report, [case, "run", measure]);
    assert!(run("close-together", "checkpoints") >= 2.0 && run("defaults", "checkpoints") == 0.0);
    assert!(run("close-together", "wal_mb") > 1.5 * run("defaults", "wal_mb"), "{report:#}");
    assert!(run("close-together", "images") > run("defaults", "images") && run("defaults", "tps") > 0.0);
    assert_eq!(figure(&report, ["defaults", "run", "tps"])["published"], 7173.0);
    assert!(figure(&report, ["close-together", "run", "wal_mb"])["published"].is_null());
    // Each case is predicted from the WAL of one of them. Steps that were not run are predicted, too.
    let predicted = |case, measure| figure(&report, [case, "run", measure])["predicted"].as_f64().unwrap();
    for case in ["close-together", "defaults", "max_wal_size=64MB"] {
        let error = predicted(case, "wal_mb") / run(case, "wal_mb") - 1.0;
        assert!(error.abs() < 0.25, "{case}: {error}");
    }
    assert!(predicted("close-together", "checkpoints") >= 2.0 && predicted("defaults", "checkpoints") == 0.0);
    assert_eq!(report["details"]["predicted"]["from"], "defaults");
    assert_eq!(report["details"]["predicted"]["cases"].as_array().unwrap().len(), 12);
    let text = fs::read_to_string(&html).unwrap();
    assert!(
        text.contains("\"kind\":\"predicted_against_measured\"") && text.contains("from the log of defaults")
    );
    let drawn = assert_draws(&html, text.matches("<figure ").count() as u64);
    // The first step has no checkpoint, so it is the last.
    assert!(report["notes"].to_string().contains("at max_wal_size=64MB no checkpoint came during the run"));

    fs::write(&file, "name = 'x'\nkind = 'wall'\n").unwrap();
    let run = walden(&["lab", "run", file.to_str().unwrap()]);
    assert!(run.code == 2 && run.stderr.contains("unknown variant"), "{run:?}");
    drawn
}

fn statements_are_measured_on_three_engines() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let html = folder.path().join("page.html");
    let report =
        experiment(&["full-page-writes", "--rows", "2000", "--quick", "--html", html.to_str().unwrap()]);
    let drawn = assert_draws(&html, 5);
    let wal = |case, phase| measured(&report, [case, phase, "wal_mb"]);
    let images = |case, phase| measured(&report, [case, phase, "images_mb"]);
    for statement in ["insert", "update", "sparse update", "delete", "vacuum"] {
        assert_eq!(images("off", statement), 0.0, "{statement}");
        assert!(wal("on", statement) > wal("off", statement) * 0.9, "{statement}");
    }
    assert!(images("on", "update") > 0.0 && wal("on", "sparse update") > 2.0 * wal("off", "sparse update"));
    let published = &figure(&report, ["on", "sparse update", "wal_mb"])["published"];
    assert_eq!(published, 151.27);

    for case in report["details"]["statements"].as_array().unwrap() {
        for one in case["statements"].as_array().unwrap() {
            assert_eq!(sum(&one["buckets"]), one["bytes"].as_u64().unwrap(), "{one:#}");
        }
    }
    let traced = measured_with(Need::Strace, &report, "bytes written by each process: ");
    if traced.is_ok() {
        // The commit waited until everything was written, page by page.
        assert!(measured(&report, ["off", "delete", "written_mb"]) >= wal("off", "delete") * 0.9);
        let processes = &report["details"]["statements"][1]["statements"][3]["traced"];
        assert!(processes["client backend"]["bytes"].as_u64().unwrap() > 0, "{processes:#}");
    }
    let mariadb = measured_with(Need::MariaDb, &report, "MariaDB: ");
    if mariadb.is_ok() {
        let redo = |statement| measured(&report, ["mariadb", statement, "redo_mb"]);
        assert!(redo("insert") > 0.1 && redo("sparse update") < redo("update"));
        assert!(measured(&report, ["mariadb", "update", "doublewrite_mb"]) > 0.1);
    }

    // Read from the WAL: exactly the rows that the statements changed, each with six numbers and 100
    // characters.
    let oracle = report["details"]["oracle"].as_array().unwrap();
    let counts = |index: usize| {
        let changes = &oracle[index]["row_changes"];
        ["inserted", "updated", "deleted", "changed_columns"].map(|name| changes[name].as_u64().unwrap())
    };
    assert_eq!(counts(0), [2000, 0, 0, 0]);
    assert_eq!(counts(1), [0, 2001, 0, 2001]);
    assert_eq!(counts(2), [0, 200, 0, 200]);
    assert_eq!(counts(3), [0, 0, 2001, 0]);
    assert_eq!(oracle[3]["row_changes"]["columns"], 7 * 2001);
    assert!(figure(&report, ["oracle", "delete", "redo_mb"])["predicted"].as_f64().unwrap() > 0.5);
    assert!(figure(&report, ["oracle", "delete", "redo_mb"])["measured"].is_null());
    assert!(report["unavailable"].to_string().contains("--oracle-dsn"));
    drawn.and(traced).and(mariadb)
}

fn the_same_bytes_are_copied_and_the_published_loops_copy_a_quarter() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let html = folder.path().join("page.html");
    let report = experiment(&["segment-size", "--quick", "--html", html.to_str().unwrap()]);
    let drawn = assert_draws(&html, 4);
    let seconds = |case: &str, phase: &str| measured(&report, [case, phase, "seconds"]);
    assert_eq!(unavailable(&report, "cp: "), None);
    let mut copied = Ok(());
    for (command, need) in [("cp", None), ("rsync", Some(Need::Rsync)), ("scp", Some(Need::Sshd))] {
        if let Some(need) = need {
            let with_program = measured_with(need, &report, &format!("{command}: "));
            if with_program.is_err() {
                copied = copied.and(with_program);
                continue;
            }
        }
        for cache in ["cold", "warm"] {
            assert!(seconds("16MB", &format!("{command} {cache}")) > 0.0);
            assert!(seconds("64MB", &format!("{command} {cache}")) > 0.0);
            assert!(seconds("64MB", &format!("{command} {cache}, as published")) > 0.0);
        }
    }
    assert_eq!(figure(&report, ["64MB", "cp cold, as published", "seconds"])["published"], 5.365);
    let explained = report["details"]["explanation"].as_array().unwrap();
    assert!(
        explained[0]["words"].as_str().unwrap().starts_with("cp: published 3.25 times"),
        "{explained:#?}"
    );
    let archived = |case, measure| measured(&report, [case, "archive_command", measure]);
    assert!(archived("16MB", "files") > archived("64MB", "files"));
    for case in ["16MB", "64MB"] {
        assert!(archived(case, "archived_mb") >= 64.0 && archived(case, "seconds") > 0.0);
    }
    assert_eq!(report["runs"][1]["settings"]["wal_segment_size"]["value"], (64 << 20).to_string());
    copied.and(drawn)
}

/// Starts a server that represents the user's own.
fn users_server() -> Cluster {
    let cluster = ClusterBuilder::new(find_or_install(Wanted::Major(18)).unwrap()).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("ALTER SYSTEM SET max_wal_size = '777MB'").unwrap();
    cluster
}

fn own_settings(cluster: &Cluster) -> (Vec<(String, String)>, Vec<String>) {
    let mut client = cluster.client("postgres").unwrap();
    let sql = "SELECT name, setting FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf' ORDER BY 1";
    let settings = client.query(sql, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    let databases = client.query("SELECT datname::text FROM pg_database ORDER BY 1", &[]).unwrap();
    (settings, databases.iter().map(|row| row.get(0)).collect())
}

fn a_users_server_is_left_as_it_was() {
    let cluster = users_server();
    let before = own_settings(&cluster);
    let dsn = cluster.dsn("postgres");
    let report = experiment(&["full-page-writes", "--rows", "500", "--dsn", &dsn]);
    assert!(measured(&report, ["on", "update", "wal_mb"]) > measured(&report, ["off", "update", "wal_mb"]));
    for (index, value) in ["on", "off"].iter().enumerate() {
        let settings = &report["runs"][index]["settings"];
        assert_eq!(settings["full_page_writes"]["value"], *value);
        assert_eq!(settings["max_wal_size"]["value"], "102400");
    }
    assert!(report["unavailable"].to_string().contains("not accessible"));
    assert_eq!(own_settings(&cluster), before);
    assert_eq!(before.0, [("max_wal_size".to_owned(), "777MB".to_owned())]);

    // A statement that fails in the middle leaves nothing behind, either.
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../walden-lab/experiments/full-page-writes.toml");
    let text =
        fs::read_to_string(shipped).unwrap().replace("\"DELETE FROM demo\"", "\"DELETE FROM nothing\"");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fails.toml");
    fs::write(&file, text).unwrap();
    let run = walden(&["lab", "run", file.to_str().unwrap(), "--rows", "500", "--dsn", &dsn]);
    assert!(run.code == 3 && run.stderr.contains("DELETE FROM nothing"), "{run:?}");
    assert_eq!(own_settings(&cluster), before);
}

fn impossible_requests_are_wrong_usage_before_anything_starts() {
    let refused = |arguments: &[&str], why: &str| {
        let Run { code, stderr, .. } = walden(&[&["lab", "run"], arguments].concat());
        assert!(code == 2 && stderr.contains(why), "{arguments:?}: {code} {stderr}");
    };
    refused(&["wal-level", "--dsn", "host=nowhere"], "wal_level takes effect only when a server starts");
    refused(&["segment-size", "--dsn", "host=nowhere"], "chosen by initdb");
    refused(&["wal-level", "--rows", "500"], "expected one of scale, transactions");
    refused(&["wal-level", "--size", "5"], "--size is for workloads");
    refused(&["oltp", "--quick"], "--quick is for experiments");
    refused(&["wal-level", "--quick", "--full"], "cannot be used with");
    refused(&["no-such-thing"], "expected one of the workloads");
    assert!(!Path::new("no-such-thing").exists());
}
