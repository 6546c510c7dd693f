//! `walden whatif`: predictions compared with servers that did the same work under the other settings.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use postgres::Client;
use serde_json::Value;
use tempfile::TempDir;
use walden_format::lsn::Lsn;
use walden_lab::run::{RunOptions, run_workload};
use walden_lab::workloads::by_name;
use walden_lab::{Cluster, ClusterBuilder, Installation, Wanted, find_or_install};
use walden_testing::{Missing, Outcome, postgres};

use crate::archive_packs::run_as_server;
use crate::material::{Run, explain_json, walden};

walden_testing::tests! {
    servers_agree on [15, 18, 19],
    a_forecast_adds_up_and_names_its_assumptions,
    memory_does_not_grow_with_the_number_of_settings,
    minimal_does_not_log_index_builds_and_loads,
    rates_of_recovery_are_read_from_a_file,
    advice_reaches_its_aim_or_says_why_not,
    indexes_and_fillfactors_have_ranges,
    servers_are_within_the_ranges_for_other_tables_and_indexes,
    an_index_is_dropped_with_its_files_of_before_rewrites,
    whatif_accepts_the_names_and_settings_of_findings,
    damage_ends_the_prediction_and_is_reported,
    wrong_settings_are_wrong_usage,
    the_checkpoint_of_a_base_backup_shows_no_max_wal_size on [15, 19],
    archives_under_another_compression_are_within_their_error on [15],
}

fn whatif(arguments: &[&str]) -> Run {
    walden(&[&["whatif", "--format", "json"], arguments].concat())
}

pub(crate) fn forecast(arguments: &[&str]) -> Value {
    let run = whatif(arguments);
    assert_eq!(run.code, 0, "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

/// `pg_basebackup` switches the segment and requests a checkpoint. It is far from the previous one, and at
/// the start of a segment, like one triggered by `max_wal_size`.
fn the_checkpoint_of_a_base_backup_shows_no_max_wal_size(major: u32) -> Outcome {
    let installation = postgres(major)?;
    let Some(pg_basebackup) = installation.program("pg_basebackup") else {
        return Err(Missing { reason: format!("needs pg_basebackup of PostgreSQL {major}") });
    };
    let cluster = ClusterBuilder::new(installation)
        .wal_segsize_mb(1)
        .setting("checkpoint_timeout", "1h")
        .setting("wal_keep_size", "512MB")
        .setting("max_wal_senders", "2")
        .setting("wal_level", "replica")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let work = |client: &mut Client| {
        client
            .batch_execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 60000) i")
            .unwrap();
    };
    client.batch_execute("CREATE TABLE t (id int, v text)").unwrap();
    let from: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
    client.batch_execute("CHECKPOINT").unwrap();
    work(&mut client);
    let backup = cluster.dir().join("backup");
    let (program, dsn) = (pg_basebackup.display(), cluster.dsn("postgres"));
    run_as_server(
        &mut client,
        &format!("{program} -d '{dsn}' -D {} -X none -c fast 2>/dev/null", backup.display()),
    );
    let in_backup: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
    work(&mut client);
    let wal = cluster.data_dir().join("pg_wal");
    let wal = wal.to_str().unwrap();
    // This also holds for a range that ends before the backup does.
    let checkpoint = explain_json(&[wal, "--from", &from])["checkpoints"]["list"][1].clone();
    let before_end = checkpoint["lsn"].as_str().unwrap().parse::<Lsn>().unwrap().plus(200).to_string();
    for to in [&in_backup, &before_end] {
        let document = explain_json(&[wal, "--from", &from, "--to", to]);
        let list = document["checkpoints"]["list"].as_array().unwrap();
        assert_eq!(list.len(), 2, "{list:#?}");
        assert_eq!(list[1]["cause"], "requested", "{list:#?}");
        let findings = document["findings"].as_array().unwrap();
        assert!(findings.iter().all(|one| one["points_at"] != "max_wal_size"), "{findings:#?}");
        let forecast = forecast(&["--from", &from, "--to", to, wal]);
        let traced = forecast["traced_settings"].as_array().unwrap();
        let size = traced.iter().find(|one| one["name"] == "max_wal_size").unwrap();
        assert_eq!(size["from"], "assumed", "{size:#}");
    }
    Ok(())
}

/// Does the same work on a server with this compression. Returns the cluster, and the range of the work.
fn compressed_work(installation: &Installation, compression: &str) -> (Cluster, [String; 2]) {
    let cluster = ClusterBuilder::new(installation.clone())
        .wal_segsize_mb(1)
        .setting("checkpoint_timeout", "1h")
        .setting("max_wal_size", "1GB")
        .setting("wal_keep_size", "512MB")
        .setting("wal_recycle", "off")
        .setting("autovacuum", "off")
        .setting("wal_compression", compression)
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute(
            "CREATE TABLE t (id int PRIMARY KEY, n int, note text, j jsonb);
             INSERT INTO t SELECT i, 0, repeat(md5(i::text), i % 6), jsonb_build_object('k', md5((i * 7)::text), 'x',
               repeat('y', i % 90)) FROM generate_series(1, 30000) i;
             CREATE INDEX t_key ON t ((j->>'k'));
             CREATE PROCEDURE work(round int) LANGUAGE plpgsql AS $$ BEGIN
               FOR i IN round * 1000 + 1..round * 1000 + 1000 LOOP
                 UPDATE t SET n = n + 1 WHERE id = (i * 7919) % 30000 + 1;
                 INSERT INTO t VALUES (100000 + i, i, md5(i::text), jsonb_build_object('k', md5((i * 31)::text)));
                 COMMIT;
               END LOOP;
             END $$",
        )
        .unwrap();
    client.batch_execute("CHECKPOINT").unwrap();
    client.query("SELECT pg_switch_wal()", &[]).unwrap();
    let position = |client: &mut Client| -> String {
        client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0)
    };
    let from = position(&mut client);
    for round in 0..5 {
        // Requested ones, at the same places of the work.
        client.batch_execute("CHECKPOINT").unwrap();
        client.batch_execute(&format!("CALL work({round})")).unwrap();
    }
    let to = position(&mut client);
    drop(client);
    (cluster, [from, to])
}

/// Compresses the segments of the range one by one. Returns the sum of their sizes by `walden compress` and
/// by a command.
fn archived(cluster: &Cluster, range: &[String; 2], command: &str) -> [u64; 2] {
    let folder = tempfile::tempdir().unwrap();
    let number = |lsn: &String| lsn.parse::<Lsn>().unwrap().0 >> 20;
    let name = |at: u64| format!("{:08X}{:08X}{:08X}", 1, at >> 12, at & 0xFFF);
    let segments: Vec<PathBuf> = (number(&range[0])..=number(&range[1]))
        .map(|at| cluster.data_dir().join("pg_wal").join(name(at)))
        .collect();
    let compressed = folder.path().join("compressed");
    let mut arguments = vec!["compress", "-o", compressed.to_str().unwrap()];
    arguments.extend(segments.iter().map(|one| one.to_str().unwrap()));
    let run = walden(&arguments);
    assert_eq!(run.code, 0, "{run:?}");
    let sizes = fs::read_dir(&compressed).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    let through = |segment: &PathBuf| {
        let line = format!("{command} < {}", segment.display());
        Command::new("sh").args(["-c", &line]).output().unwrap().stdout.len() as u64
    };
    [sizes.sum(), segments.iter().map(through).sum()]
}

/// Images that the server compresses are stored by an archiver in another size than images that only the
/// archiver compresses; and segments then hold more of the work.
fn archives_under_another_compression_are_within_their_error(major: u32) -> Outcome {
    const COMMAND: &str = "gzip -6";
    let installation = postgres(major)?;
    let methods = ["off", "pglz", "lz4", "zstd"];
    let works: Vec<_> = methods.map(|method| compressed_work(&installation, method)).into();
    let measured: Vec<_> = works.iter().map(|(cluster, range)| archived(cluster, range, COMMAND)).collect();
    let mut wrong = Vec::new();
    // From images that are not compressed, and from compressed ones.
    for (traced, (cluster, [from, to])) in works.iter().enumerate().step_by(2) {
        let wal = cluster.data_dir().join("pg_wal");
        let wal = wal.to_str().unwrap();
        let sweep = format!("wal_compression={}", methods.join(","));
        let document = forecast(
            &[
                &["--traced", "checkpoint_timeout=1h", "--traced", "max_wal_size=1GB"][..],
                &["--from", from, "--to", to, "--archive", "--archiver", COMMAND, "--sweep", &sweep, wal],
            ]
            .concat(),
        );
        let predictions = document["predictions"].as_array().unwrap();
        assert_eq!(predictions.len(), methods.len());
        let of_trace = std::iter::once((traced, &document["trace"]["archive"]));
        let predicted = predictions.iter().map(|one| &one["archive"]).enumerate();
        for (at, archive) in of_trace.chain(predicted) {
            for (size, measured) in archive.as_array().unwrap().iter().zip(measured[at]) {
                let number = |name: &str| size[name].as_u64().unwrap();
                let (bytes, error) = (number("bytes"), number("error_bytes"));
                // An error that covers anything says nothing.
                if bytes.abs_diff(measured) > error || error > bytes / 4 {
                    wrong
                        .push(format!("{} to {}: {size}, measured {measured}", methods[traced], methods[at]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// Does reproducible work, in segments of 1 MB.
fn trace() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let options = RunOptions {
        size: Some(1500),
        installation: Some(find_or_install(Wanted::Major(18)).unwrap()),
        settings: [("max_wal_size", "16MB"), ("checkpoint_completion_target", "0.5")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        wal_segsize_mb: Some(1),
        checksums: Some(false),
        ..RunOptions::new(by_name("oltp-single").unwrap(), folder.path())
    };
    let wal = run_workload(options, &mut |_| Ok(())).unwrap().wal_dir;
    (folder, wal)
}

/// The same work on other servers: checkpoints closer together, without full-page images, compressed, with
/// larger segments; predicted from WAL with images and from WAL without.
fn servers_agree(major: u32) -> Outcome {
    postgres(major)?;
    let folder = tempfile::tempdir().unwrap();
    let definition = folder.path().join("small.toml");
    fs::write(
        &definition,
        r#"
name = "small"
kind = "whatif-validation"
about = "predictions in small"
workload = "oltp-single"
traces = ["far", "without"]

[sizes]
quick = { transactions = 1700 }
default = { transactions = 1700 }
full = { transactions = 1700 }

# Half of the distance is left for a checkpoint that is late: PostgreSQL requests none while another one runs.
[settings]
checkpoint_timeout = "1h"
checkpoint_completion_target = "0.5"
max_wal_size = "64MB"

[[case]]
name = "far"
segment-megabytes = 1

[[case]]
name = "close"
segment-megabytes = 1
settings = { max_wal_size = "8MB" }

[[case]]
name = "without"
segment-megabytes = 1
settings = { full_page_writes = "off" }

[[case]]
name = "pglz"
segment-megabytes = 1
settings = { wal_compression = "pglz" }

[[case]]
name = "large"
segment-megabytes = 8
settings = { max_wal_size = "32MB" }

[[case]]
name = "logical"
segment-megabytes = 4
settings = { wal_level = "logical" }
"#,
    )
    .unwrap();
    assert_eq!(wrong_cells(major, &definition), [""; 0]);
    Ok(())
}

/// Maximum error of a prediction, as a share of the measured WAL.
///
/// The work has one client, so without checkpoints its WAL is the same each time, and so is the error: at
/// most 0.12 %. With checkpoints, their time depends on the machine's load: in six runs, some of them with
/// nine busy processes on two cores, the error was 0.21 to 0.30 %.
const MAX_ERROR: f64 = 0.0025;
const MAX_ERROR_WITH_CHECKPOINTS: f64 = 0.01;

/// Runs a validation. Returns the cells whose error is larger, or whose checkpoints differ from the
/// prediction.
fn wrong_cells(major: u32, definition: &Path) -> Vec<String> {
    let page = definition.with_extension("html");
    let major = major.to_string();
    let [definition, html] = [definition, &page].map(|path| path.to_str().unwrap());
    let run = walden(&["lab", "run", definition, "--pg", &major, "--html", html, "--format", "json"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let calibration = &report["details"]["calibration"];
    let ratios = calibration["sorted"].as_array().unwrap().iter();
    let ratios: Vec<f64> = ratios.map(|cell| cell["error_to_width"].as_f64().unwrap()).collect();
    assert!(ratios.is_sorted() && ratios.len() == 12, "{calibration:#}");
    assert_eq!(calibration["within"], ratios.iter().filter(|ratio| **ratio <= 1.0).count());
    assert!(fs::read_to_string(page).unwrap().contains("Error in parts of the error printed"));
    let (mut brought_by_volume, mut wrong) = (0, Vec::new());
    for trace in ["from far", "from without"] {
        let cells = report["details"][trace].as_array().unwrap();
        assert_eq!(cells.len(), 6);
        for cell in cells {
            let error = cell["error"].as_f64().unwrap();
            let (measured, predicted) =
                (&cell["measured_checkpoints_for_volume"], &cell["predicted_checkpoints_for_volume"]);
            let has_checkpoints = measured.as_u64() > Some(0);
            let max_error = if has_checkpoints { MAX_ERROR_WITH_CHECKPOINTS } else { MAX_ERROR };
            if error.abs() >= max_error || measured != predicted {
                wrong.push(format!("{trace}: {cell}"));
            }
            brought_by_volume += measured.as_u64().unwrap();
        }
    }
    assert!(brought_by_volume >= 4, "nothing was triggered: {report:#}");
    wrong
}

fn a_forecast_adds_up_and_names_its_assumptions() {
    let (_folder, wal) = trace();
    let wal = wal.to_str().unwrap();
    let one = forecast(&["--set", "max_wal_size=4MB", "--archiver", "gzip -1", wal]);
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    let trace_bytes = number(&one["trace_bytes"]);
    assert!(number(&one["predicted_bytes"]) > trace_bytes, "closer checkpoints write more");
    assert!(one["self_check_error"].as_f64().unwrap().abs() < 0.005, "{}", one["self_check"]);
    assert!(number(&one["checkpoints"]) > number(&one["trace"]["checkpoints"]["total"]));
    let predicted = &one["predictions"][0];
    let sum = |buckets: &Value| -> u64 {
        buckets.as_array().unwrap().iter().map(|bucket| number(&bucket["bytes"])).sum()
    };
    assert_eq!(sum(&predicted["buckets"]), number(&predicted["bytes"]));
    assert_eq!(sum(&one["trace"]["buckets"]), trace_bytes);
    let shares: f64 =
        predicted["shares"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9);
    let learned = one["traced_settings"].as_array().unwrap();
    let learned_value = |name: &str| learned.iter().find(|one| one["name"] == name).unwrap()["value"].clone();
    assert_eq!(learned_value("wal_segment_size"), "1MB");
    let archives = predicted["archive"].as_array().unwrap();
    assert_eq!(archives.len(), 2);
    assert!(number(&archives[0]["bytes"]) < number(&archives[1]["bytes"]), "smaller than by gzip");

    // Several predictions in one pass equal separate ones.
    let sweep = forecast(&["--sweep", "max_wal_size=4MB,64MB", "--sweep", "wal_compression=off,pglz", wal]);
    let all = sweep["predictions"].as_array().unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!(all[0]["bytes"], predicted["bytes"]);

    // A server does not start with fewer than two segments.
    for option in ["--set", "--sweep"] {
        let refused = whatif(&[option, "max_wal_size=1MB", wal]);
        assert!(refused.code == 2 && refused.stderr.contains("max_wal_size"), "{refused:?}");
    }

    // A setting without effect is noted.
    let nothing = forecast(&["--set", "wal_buffers=64MB", wal]);
    assert_eq!(nothing["predictions"][0]["bytes"], nothing["self_check"]["predicted_bytes"]);
    assert!(
        nothing["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|note| note.as_str().unwrap().contains("wal_buffers"))
    );
}

/// Returns the peak resident memory, in kB, of predictions with so little memory that most pages are in the
/// spill file.
#[cfg(target_os = "linux")]
fn peak_kilobytes(arguments: &[&str]) -> i64 {
    use wait4::Wait4;
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_walden"));
    command.args(["whatif", "--format", "json", "--threads", "2", "--memory", "1MB"]).args(arguments);
    let used = command.stdout(std::process::Stdio::null()).spawn().unwrap().wait4().unwrap();
    assert!(used.status.success());
    used.rusage.maxrss as i64 / 1024
}

#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_the_number_of_settings() {
    let (_folder, wal) = trace();
    let wal = wal.to_str().unwrap();
    let one = peak_kilobytes(&["--set", "max_wal_size=4MB", wal]);
    let sizes = ["--sweep", "max_wal_size=4MB,8MB,64MB"];
    let nine = peak_kilobytes(&[&sizes[..], &["--sweep", "wal_compression=off,lz4,pglz", wal]].concat());
    let search = peak_kilobytes(&["--advise", "least WAL", wal]);
    // Two concurrent passes would have two page stores and two compressors. For each set of settings, only
    // sums and 400 points of its growth are kept.
    assert!(nine - one < 6 << 10, "{one} kB for one set of settings, {nine} kB for nine");
    assert!(search - one < 12 << 10, "{one} kB for one set of settings, {search} kB for a search");
}

#[cfg(not(target_os = "linux"))]
fn memory_does_not_grow_with_the_number_of_settings() {}

fn advice_reaches_its_aim_or_says_why_not() {
    let (_folder, wal) = trace();
    let wal = wal.to_str().unwrap();
    let advised = forecast(&["--advise", "halve the WAL with recovery under 2 minutes", wal]);
    let advice = &advised["advice"];
    assert_eq!(advice["reached"], true, "{advice:#}");
    let steps = advice["steps"].as_array().unwrap();
    let last = steps.last().unwrap();
    assert!(last["bytes"].as_u64().unwrap() * 2 <= advised["trace_bytes"].as_u64().unwrap());
    assert!(last["statement"].as_str().unwrap().starts_with("ALTER SYSTEM SET "));
    assert_eq!(advised["predicted_bytes"], last["bytes"]);
    // Applying the advice yields the promised result.
    let words = steps.iter().map(|step| step["statement"].as_str().unwrap());
    let settings: Vec<String> = words
        .map(|words| {
            words.trim_start_matches("ALTER SYSTEM SET ").replace(" = ", "=").replace(['\'', ';'], "")
        })
        .collect();
    let mut arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    arguments.push(wal);
    assert_eq!(forecast(&arguments)["predicted_bytes"], last["bytes"]);

    // A size smaller by one step does not reach the goal.
    let advised = forecast(&["--advise", "WAL by 5% without compression", wal]);
    assert_eq!(advised["advice"]["reached"], true, "{:#}", advised["advice"]);
    let steps = advised["advice"]["steps"].as_array().unwrap();
    let size = steps[0]["name"].as_str().unwrap().trim_start_matches("max_wal_size=").trim_end_matches("MB");
    let smaller = format!("max_wal_size={}MB", size.parse::<u64>().unwrap() - 8);
    let other = forecast(&["--set", &smaller, wal]);
    let max_bytes = advised["trace_bytes"].as_u64().unwrap() / 20 * 19;
    let bytes = [&advised, &other].map(|forecast| forecast["predicted_bytes"].as_u64().unwrap());
    assert!(
        steps.len() == 1 && bytes[0] <= max_bytes && bytes[1] > max_bytes,
        "{size}: {bytes:?}, {max_bytes}"
    );

    let never = forecast(&["--advise", "WAL by 99.9%", wal]);
    assert_eq!(never["advice"]["reached"], false);
    assert!(!never["advice"]["why"].as_str().unwrap().is_empty());
}

fn indexes_and_fillfactors_have_ranges() {
    let (_folder, wal) = trace();
    let [table, index] = largest_files(&wal);
    let wal = wal.to_str().unwrap();
    let fill = format!("{table}=80");
    let add = format!("{table}:8");
    let one = forecast(&["--fillfactor", &fill, "--add-index", &add, "--drop-index", &index, wal]);
    let predicted = &one["predictions"][0];
    assert!(
        predicted["bytes"].as_u64().unwrap() < one["trace_bytes"].as_u64().unwrap(),
        "without its records"
    );
    let effects = predicted["objects"].as_array().unwrap();
    assert_eq!(effects.len(), 3);
    for effect in effects {
        assert!(
            effect["best_bytes"].as_i64().unwrap() <= effect["worst_bytes"].as_i64().unwrap(),
            "{effect}"
        );
    }
    assert!(effects.iter().any(|effect| effect["worst_bytes"].as_i64().unwrap() > 10_000));
    let unknown = whatif(&["--drop-index", "no_such_index", wal]);
    assert!(unknown.code == 2 && unknown.stderr.contains("no_such_index"), "{unknown:?}");
}

/// Reads a file as written by `walden bench redo --calibrate`.
fn rates_of_recovery_are_read_from_a_file() {
    let (folder, wal) = trace();
    let path = folder.path().join("recovery.json");
    let [wal, file] = [&wal, &path].map(|path| path.to_str().unwrap().to_owned());
    let with = |factor: f64| {
        let nanoseconds = serde_json::json!({
            "record": 450.0 * factor, "record_byte": 1.5 * factor, "page": 1e4 * factor, "image_byte": 0.8 * factor,
            "pglz_image": 2700.0, "lz4_image": 1400.0, "zstd_image": 22500.0,
        });
        let rates = serde_json::json!({
            "machine": "a machine", "postgresql": "15.20", "measured_on": "2026-11-25", "recoveries": [],
            "nanoseconds": nanoseconds,
        });
        fs::write(&path, rates.to_string()).unwrap();
        forecast(&["--set", "max_wal_size=4MB", "--recovery-rates", &file, &wal])
    };
    let (one, two) = (with(1.0), with(2.0));
    let seconds = |of: &Value| of["predictions"][0]["recovery_seconds"].as_f64().unwrap();
    assert!((seconds(&two) / seconds(&one) - 2.0).abs() < 1e-6, "{} {}", seconds(&one), seconds(&two));
    let notes = one["notes"].as_array().unwrap();
    let is_named = |note: &Value| {
        note.as_str().unwrap().contains("rates measured on this machine on 2026-11-25 (a machine")
    };
    assert!(notes.iter().any(is_named), "{notes:?}");
    fs::write(&path, "{}").unwrap();
    let wrong = whatif(&["--recovery-rates", &file, &wal]);
    assert!(wrong.code != 0 && wrong.stderr.contains("--calibrate"), "{wrong:?}");
}

/// An index build and a table load, each in its own transaction, predicted from WAL of `replica`.
fn minimal_does_not_log_index_builds_and_loads() {
    let server = |level: &str| {
        let cluster = ClusterBuilder::new(find_or_install(Wanted::Any).unwrap())
            .setting("autovacuum", "off")
            .setting("wal_keep_size", "1GB")
            .setting("max_wal_senders", "0")
            .setting("wal_level", level)
            .start()
            .unwrap();
        let mut client = cluster.client("postgres").unwrap();
        client
            .batch_execute(
                "CREATE TABLE item AS SELECT id, id::text AS name FROM generate_series(1, 150000) id",
            )
            .unwrap();
        for statement in ["VACUUM item", "CHECKPOINT"] {
            client.batch_execute(statement).unwrap();
        }
        let file = cluster.make_folder("rows").unwrap().join("item");
        client.batch_execute(&format!("COPY item TO '{}'", file.display())).unwrap();
        let mut positions = vec![position(&mut client)];
        let copy = format!("COPY loaded FROM '{}'", file.display());
        let work = [
            "CREATE INDEX ON item (id)".to_owned(),
            "BEGIN; CREATE TABLE loaded (id int, name text); INSERT INTO loaded SELECT * FROM item; COMMIT"
                .to_owned(),
            "CREATE INDEX ON item (name); UPDATE item SET name = 'x' WHERE id < 100".to_owned(),
            // Truncated and loaded again.
            format!("BEGIN; TRUNCATE loaded; {copy}; COMMIT"),
            // Pages that were not logged have no LSN, so their first change logs an image, whenever the last
            // checkpoint was.
            "UPDATE loaded SET name = 'y' WHERE id % 20 = 0".to_owned(),
        ];
        for statements in work {
            client.batch_execute(&statements).unwrap();
            positions.push(position(&mut client));
        }
        let folder = tempfile::tempdir().unwrap();
        copy_wal(&cluster, folder.path());
        (folder, positions)
    };
    let (folder, traced) = server("replica");
    let (_, measured) = server("minimal");
    let predict = |from: Lsn, to: Lsn| {
        let (from, to, wal) = (from.to_string(), to.to_string(), folder.path().to_str().unwrap());
        let one = forecast(&["--from", &from, "--to", &to, "--set", "wal_level=minimal", wal]);
        one["predictions"][0]["bytes"].as_u64().unwrap()
    };
    let (predicted, measured_bytes) = (predict(traced[3], traced[5]), measured[5].0 - measured[3].0);
    assert!(
        predicted.abs_diff(measured_bytes) < measured_bytes / 50 && measured_bytes > 4_000_000,
        "{predicted} predicted, {measured_bytes} measured"
    );
    for (from, measured) in traced.windows(2).zip(measured.windows(2)).take(4) {
        let predicted = predict(from[0], from[1]);
        let (measured, replica) = (measured[1].0 - measured[0].0, from[1].0 - from[0].0);
        // The remaining WAL consists of catalog changes, whose pages differ by some images.
        assert!(
            predicted.abs_diff(measured) < 24_000 && measured < replica / 4,
            "{predicted} predicted, {measured} measured, {replica} with replica"
        );
    }
}

pub(crate) fn position(client: &mut postgres::Client) -> Lsn {
    let row = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap();
    row.get::<_, String>(0).parse().unwrap()
}

/// Copies the segments of a running server.
pub(crate) fn copy_wal(cluster: &Cluster, folder: &Path) {
    for entry in fs::read_dir(cluster.data_dir().join("pg_wal")).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
}

/// The same work on a table with another fillfactor or another index must be within the predicted range.
fn servers_are_within_the_ranges_for_other_tables_and_indexes() {
    let server = |fillfactor: u8, more: &str| {
        let cluster = ClusterBuilder::new(find_or_install(Wanted::Any).unwrap())
            .setting("autovacuum", "off")
            .setting("wal_keep_size", "1GB")
            .start()
            .unwrap();
        let mut client = cluster.client("postgres").unwrap();
        client
            .batch_execute(&format!(
                "CREATE TABLE account (id int PRIMARY KEY, balance int, filler char(84)) WITH (fillfactor = {fillfactor});
                 INSERT INTO account SELECT id, 0, '' FROM generate_series(1, 20000) id; {more}"
            ))
            .unwrap();
        // VACUUM and CHECKPOINT must each be executed separately.
        for statement in ["VACUUM account", "CHECKPOINT"] {
            client.batch_execute(statement).unwrap();
        }
        let from = position(&mut client);
        let mut worker = cluster.client("postgres").unwrap();
        worker
            .batch_execute(
                "DO $$ BEGIN FOR i IN 1..6000 LOOP
                     UPDATE account SET balance = balance + i WHERE id = 1 + i::bigint * 7919 % 20000;
                     IF i % 10 = 0 THEN COMMIT; END IF;
                 END LOOP; END $$",
            )
            .unwrap();
        let to = position(&mut client);
        let folder = tempfile::tempdir().unwrap();
        let (wal, names) = (folder.path().join("wal"), folder.path().join("names.json"));
        let saved = walden(&[
            "explain".as_ref(),
            "--names".as_ref(),
            cluster.dsn("postgres").as_ref(),
            "--save-names".as_ref(),
            names.as_os_str(),
        ]);
        assert_eq!(saved.code, 0, "{}", saved.stderr);
        fs::create_dir(&wal).unwrap();
        copy_wal(&cluster, &wal);
        (folder, [from, to], to.0 - from.0)
    };
    let plain = server(100, "");
    let filled = server(70, "");
    let indexed = server(100, "CREATE INDEX account_balance ON account (balance);");
    let changes = [
        (&plain, "--fillfactor", "public.account=70", filled.2),
        (&filled, "--fillfactor", "public.account=100", plain.2),
        (&plain, "--add-index", "public.account:4", indexed.2),
        (&indexed, "--drop-index", "public.account_balance", plain.2),
    ];
    for ((folder, [from, to], _), flag, change, measured) in changes {
        let (from, to) = (from.to_string(), to.to_string());
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (wal, names) = (path("wal"), path("names.json"));
        let one = forecast(&["--from", &from, "--to", &to, "--names", &names, flag, change, &wal]);
        let predicted = &one["predictions"][0];
        let effect = &predicted["objects"][0];
        let bytes = predicted["bytes"].as_i64().unwrap();
        let range =
            [&effect["best_bytes"], &effect["worst_bytes"]].map(|more| bytes + more.as_i64().unwrap());
        // Allows half a percent for differences between any two servers.
        let (least, most) = (range[0] - bytes / 200, range[1] + bytes / 200);
        assert!(
            (least..=most).contains(&(measured as i64)),
            "{flag} {change}: {measured} is not in {range:?}"
        );
    }
}

/// Dropping an index by name drops all files that it ever had, as if each was named. Names contain only the
/// last file.
fn an_index_is_dropped_with_its_files_of_before_rewrites() {
    let cluster = ClusterBuilder::new(find_or_install(Wanted::Any).unwrap())
        .setting("autovacuum", "off")
        .setting("wal_keep_size", "1GB")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE INDEX t_v ON t (v); CHECKPOINT")
        .unwrap();
    let from = position(&mut client).to_string();
    let mut files = Vec::new();
    for (first, statement) in [(1, "VACUUM FULL t"), (3001, "REINDEX INDEX t_v"), (6001, "CHECKPOINT")] {
        let rows = format!(
            "INSERT INTO t SELECT i, i * 7919 % 10007 FROM generate_series({first}, {first} + 2999) i"
        );
        client.batch_execute(&rows).unwrap();
        let place = "SELECT '1663/' || oid || '/' || pg_relation_filenode('t_v') FROM pg_database
                     WHERE datname = current_database()";
        files.push(client.query_one(place, &[]).unwrap().get::<_, String>(0));
        client.batch_execute(statement).unwrap();
    }
    files.dedup();
    assert_eq!(files.len(), 3, "{files:?}");
    let to = position(&mut client).to_string();
    let wal = cluster.data_dir().join("pg_wal").to_str().unwrap().to_owned();
    let dsn = cluster.dsn("postgres");
    let saved = |arguments: &[&str], indexes: &[&str]| {
        let dropped: Vec<&str> = indexes.iter().flat_map(|index| ["--drop-index", index]).collect();
        let common = [&["--from", &from, "--to", &to, &wal][..], arguments].concat();
        let bytes = |arguments: &[&str]| forecast(arguments)["predictions"][0]["bytes"].as_u64().unwrap();
        bytes(&common) - bytes(&[&common[..], &dropped].concat())
    };
    let by_file = saved(&[], &files.iter().map(String::as_str).collect::<Vec<_>>());
    let names = ["--names", dsn.as_str()];
    assert!(by_file > 500_000, "{by_file}");
    for index in ["public.t_v", &files[0]] {
        let by_name = saved(&names, &[index]);
        assert!(by_name.abs_diff(by_file) < 1000, "{index}: {by_name}, {by_file} by its files");
    }
}

/// Names and settings in the remedies of findings are accepted as they are printed.
fn whatif_accepts_the_names_and_settings_of_findings() {
    let cluster = ClusterBuilder::new(find_or_install(Wanted::Any).unwrap())
        .setting("autovacuum", "off")
        .setting("wal_keep_size", "1GB")
        .setting("max_wal_size", "48MB")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE DATABASE \"TheShop\"").unwrap();
    let databases = ["postgres", "TheShop"];
    for database in databases {
        let mut client = cluster.client(database).unwrap();
        client
            .batch_execute(
                "CREATE SCHEMA s; CREATE TABLE s.parts (id int, \"A key\" uuid, note text) PARTITION BY HASH (id);
                 CREATE TABLE s.parts_0 PARTITION OF s.parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
                 CREATE TABLE s.parts_1 PARTITION OF s.parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
                 CREATE INDEX \"Of parts\" ON s.parts (\"A key\");
                 CREATE TABLE filled (id int PRIMARY KEY, key uuid, note text); CREATE INDEX ON filled (key);
                 CREATE INDEX covered ON filled (key, note)",
            )
            .unwrap();
    }
    // No finding recommends to drop an index that was created within the range.
    let from = position(&mut client).to_string();
    for database in databases {
        let mut client = cluster.client(database).unwrap();
        for _ in 0..4 {
            client
                .batch_execute(
                    "INSERT INTO s.parts SELECT i, gen_random_uuid(), 'n' FROM generate_series(1, 40000) i;
                     INSERT INTO filled SELECT count(*) OVER () * 0 + i + (SELECT coalesce(max(id), 0) FROM filled),
                     gen_random_uuid(), 'n' FROM generate_series(1, 5000) i; UPDATE filled SET note = note || 'm';
                     CHECKPOINT",
                )
                .unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("names.json");
    let names_argument = names.to_str().unwrap();
    let (one, other) = (cluster.dsn("postgres"), cluster.dsn("TheShop"));
    let saved = walden(&["explain", "--names", &one, "--names", &other, "--save-names", names_argument]);
    assert_eq!(saved.code, 0, "{}", saved.stderr);
    let wal = cluster.data_dir().join("pg_wal").to_str().unwrap().to_owned();
    let arguments = ["--names", names_argument, "--from", &from, &wal].map(std::ffi::OsStr::new);
    let explained = explain_json(&arguments);
    let mut accepted = Vec::new();
    for finding in explained["findings"].as_array().unwrap() {
        let text = |name: &str| finding[name].as_str().unwrap();
        for (name, value) in finding["try_settings"].as_object().into_iter().flatten() {
            accepted.push(("--set", format!("{name}={}", value.as_str().unwrap())));
        }
        let statement = |before: &str, after: &str| {
            let (_, rest) = text("remedy").split_once(before)?;
            Some(rest.trim_start_matches("CONCURRENTLY ").split_once(after)?.0.to_owned())
        };
        for name in
            statement("DROP INDEX ", ",").into_iter().flat_map(|name| [name, text("points_at").to_owned()])
        {
            accepted.push(("--drop-index", name));
        }
        for name in statement("ALTER TABLE ", " SET (fillfactor")
            .into_iter()
            .flat_map(|name| [name, text("points_at").to_owned()])
        {
            accepted.push(("--fillfactor", format!("{name}=90")));
        }
    }
    let has =
        |option: &str, part: &str| accepted.iter().any(|(one, value)| *one == option && value.contains(part));
    assert!(has("--drop-index", "Of parts") && has("--set", "="), "{accepted:?}: {explained:#}");
    for (option, value) in accepted {
        let run = whatif(&["--names", names_argument, "--from", &from, option, &value, &wal]);
        // A name without its database, which the remedy has before the statement, is that of two relations.
        let is_ambiguous = run.stderr.contains("more than one table or index has this name");
        assert!(run.code == 0 || (is_ambiguous && !value.contains(": ")), "{option} {value}: {run:?}");
    }
}

/// Returns the files with most of the WAL: pgbench's largest table and its index.
fn largest_files(wal: &Path) -> [String; 2] {
    let json = explain_json(&[wal]);
    let mut files =
        json["relations"].as_array().unwrap().iter().filter_map(|row| row["label"]["file"].as_str());
    std::array::from_fn(|_| files.next().unwrap().to_owned())
}

fn damage_ends_the_prediction_and_is_reported() {
    let (_folder, wal) = trace();
    let whole = forecast(&[wal.to_str().unwrap()]);
    let mut segments: Vec<PathBuf> = fs::read_dir(&wal).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    let hurt = &segments[segments.len() / 2];
    let mut bytes = fs::read(hurt).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 0xFF;
    fs::write(hurt, bytes).unwrap();
    let run = whatif(&["--set", "full_page_writes=off", wal.to_str().unwrap()]);
    assert_eq!(run.code, 3, "{}", run.stderr);
    let name = hurt.file_name().unwrap().to_str().unwrap();
    assert!(run.errors().iter().any(|line| line.contains(name)), "{}", run.stderr);
    let part: Value = serde_json::from_str(&run.stdout).unwrap();
    let (part, whole) = (part["trace_bytes"].as_u64().unwrap(), whole["trace_bytes"].as_u64().unwrap());
    assert!(part > 0 && part < whole * 3 / 4, "{part} of {whole}");
}

fn wrong_settings_are_wrong_usage() {
    for wrong in [
        &["--set", "nonsense=1"][..],
        &["--set", "max_wal_size"],
        &["--set", "checkpoint_timeout=2 bananas"],
        &["--sweep", "full_page_writes=on,maybe"],
        &["--advise", "be quick"],
        &["--advise", "halve the WAL", "--set", "max_wal_size=4GB"],
        &["--add-index", "orders"],
        &["--fillfactor", "orders=5"],
    ] {
        let run = whatif(&[wrong, &["/nowhere"]].concat());
        assert_eq!(run.code, 2, "{wrong:?}: {}", run.stderr);
    }
    assert_eq!(whatif(&["/nowhere"]).code, 3);
}
