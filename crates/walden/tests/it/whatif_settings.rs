//! The settings that `walden whatif` infers from WAL, compared with the servers that wrote it.

use serde_json::Value;
use tempfile::TempDir;
use walden_format::lsn::Lsn;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Need, Outcome, postgres};

use crate::whatif::{copy_wal, forecast, position};

walden_testing::tests! {
    consistency_checks_are_counted_once,
    settings_count_that_are_in_force_for_most_of_the_log,
    hint_bits_of_cycles_that_the_trace_does_not_have_are_within_the_error,
}

/// Builds a server of version 15 that keeps its WAL.
fn builder() -> Result<ClusterBuilder, walden_testing::Missing> {
    let builder = ClusterBuilder::new(postgres(15)?);
    Ok(builder.setting("autovacuum", "off").setting("wal_keep_size", "2GB"))
}

fn wal_of(cluster: &Cluster) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_wal(cluster, folder.path());
    folder
}

fn traced<'a>(forecast: &'a Value, name: &str) -> &'a Value {
    let settings = forecast["traced_settings"].as_array().unwrap();
    settings.iter().find(|setting| setting["name"] == name).unwrap()
}

fn bucket(of: &Value, name: &str) -> u64 {
    let buckets = of["buckets"].as_array().unwrap();
    buckets.iter().find(|bucket| bucket["name"] == name).unwrap()["bytes"].as_u64().unwrap()
}

/// Under `wal_consistency_checking`, each block has an image, and redo applies some of them. Tested with and
/// without compression.
fn consistency_checks_are_counted_once() -> Outcome {
    let written = |checking: &str, compression: &str| -> Result<_, walden_testing::Missing> {
        let cluster = builder()?
            .setting("wal_consistency_checking", checking)
            .setting("wal_compression", compression)
            .start()
            .unwrap();
        let mut client = cluster.client("postgres").unwrap();
        let bloom = client.query("SELECT FROM pg_available_extensions WHERE name = 'bloom'", &[]).unwrap();
        if bloom.is_empty() {
            return Err(Need::Postgres(15).missing("it has no extension bloom"));
        }
        for statement in [
            "CREATE EXTENSION bloom",
            "CREATE TABLE item (a int PRIMARY KEY, b int, c text); CREATE INDEX ON item USING bloom (a, b)",
            "CHECKPOINT",
        ] {
            client.batch_execute(statement).unwrap();
        }
        let from = position(&mut client).to_string();
        for first in [1, 2501] {
            let rows = format!(
                "SELECT i, i * 7, repeat('x', i % 90) FROM generate_series({first}, {first} + 2499) i"
            );
            client.batch_execute(&format!("INSERT INTO item {rows}")).unwrap();
            client.batch_execute("CHECKPOINT").unwrap();
        }
        client
            .batch_execute("UPDATE item SET b = 0 WHERE a % 50 = 0; DELETE FROM item WHERE a % 50 = 1")
            .unwrap();
        let to = position(&mut client).to_string();
        Ok((wal_of(&cluster), [from, to]))
    };
    for checking in ["generic", "all"] {
        let (wal, [from, to]) = written(checking, "off")?;
        let wal = wal.path().to_str().unwrap();
        let range = ["--from", &from, "--to", &to, "--set", "wal_compression=pglz", wal];
        let traced = forecast(&range);
        let error = traced["self_check_error"].as_f64().unwrap();
        assert!(error.abs() < 0.001, "{checking}: {error}");
        let images = bucket(&traced["trace"], "consistency_images");
        assert!(images > 10_000_000, "{checking}: {images}");
        // The server compresses these images, too.
        let (compressed, [from, to]) = written(checking, "pglz")?;
        let measured = forecast(&["--from", &from, "--to", &to, compressed.path().to_str().unwrap()]);
        let [measured, predicted] = [&measured["trace_bytes"], &traced["predicted_bytes"]];
        let [measured, predicted] = [measured, predicted].map(|bytes| bytes.as_f64().unwrap());
        assert!(
            (predicted / measured - 1.0).abs() < 0.01,
            "{checking}: {predicted} predicted, {measured} measured"
        );
    }
    Ok(())
}

/// The WAL starts with a new cluster under settings that differ from those of the work. No record logs
/// `wal_compression`.
fn settings_count_that_are_in_force_for_most_of_the_log() -> Outcome {
    let cluster = builder()?
        .setting("wal_level", "replica")
        .setting("wal_compression", "pglz")
        .setting("full_page_writes", "on")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute(
            "CREATE TABLE account (id int PRIMARY KEY, balance int, filler text);
             INSERT INTO account SELECT i, 0, repeat('x', 60) FROM generate_series(1, 40000) i",
        )
        .unwrap();
    client.batch_execute("CHECKPOINT").unwrap();
    client.batch_execute("UPDATE account SET balance = 1 WHERE id % 100 = 0").unwrap();
    cluster.configure(&[("wal_level", "logical"), ("wal_compression", "off")]).unwrap();
    drop(client);
    cluster.restart(StopMode::Fast).unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let changed = position(&mut client);
    for round in 0..6 {
        client.batch_execute("CHECKPOINT").unwrap();
        client
            .batch_execute(&format!("UPDATE account SET balance = {round} WHERE id % 2 = {round} % 2"))
            .unwrap();
    }
    let wal = wal_of(&cluster);
    let wal = wal.path().to_str().unwrap();
    let all = forecast(&["--set", "max_wal_size=2GB", wal]);
    let before = changed.0 - (1 << 24);
    assert!(before * 4 < all["trace_bytes"].as_u64().unwrap(), "{before} of {}", all["trace_bytes"]);
    let values = ["wal_level", "wal_compression"].map(|name| traced(&all, name));
    assert_eq!(values.map(|setting| setting["value"].as_str().unwrap()), ["logical", "off"]);
    assert!(
        values.iter().all(|setting| setting["why"].as_str().unwrap().contains("% of the bytes")),
        "{values:?}"
    );
    let notes: Vec<&str> = all["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for change in ["wal_level changes from replica to logical", "wal_compression changes from pglz to off"] {
        assert!(notes.iter().any(|note| note.starts_with(change)), "{change}: {notes:?}");
    }
    // The part under the other values is predicted as if written under these.
    let error = all["self_check_error"].as_f64().unwrap();
    assert!(error.abs() < 0.08, "{error}");
    let part = forecast(&["--from", &changed.to_string(), "--set", "max_wal_size=2GB", wal]);
    let error = part["self_check_error"].as_f64().unwrap();
    assert!(error.abs() < 0.001, "{error}");
    // In a range of the earlier part, its values are in effect for most of the range.
    let part = forecast(&["--to", &changed.to_string(), "--set", "max_wal_size=2GB", wal]);
    let values = ["wal_level", "wal_compression"].map(|name| traced(&part, name)["value"].as_str().unwrap());
    assert_eq!(values, ["replica", "pglz"]);
    Ok(())
}

/// With checksums, rows are changed, read after one checkpoint, and changed again after another. With fewer
/// checkpoints, reading the rows logs no image.
fn hint_bits_of_cycles_that_the_trace_does_not_have_are_within_the_error() -> Outcome {
    let written = |max_wal_size: &str| -> Result<_, walden_testing::Missing> {
        let cluster = builder()?
            .checksums(true)
            .wal_segsize_mb(1)
            .setting("max_wal_size", max_wal_size)
            .setting("min_wal_size", "2MB")
            .setting("checkpoint_timeout", "1h")
            .start()
            .unwrap();
        let mut client = cluster.client("postgres").unwrap();
        for statement in [
            "CREATE TABLE account (id int, balance int, filler text) WITH (fillfactor = 70); CREATE TABLE log (line text)",
            "INSERT INTO account SELECT i, 0, repeat('x', 60) FROM generate_series(1, 10000) i",
            "VACUUM account",
            "CHECKPOINT",
        ] {
            client.batch_execute(statement).unwrap();
        }
        let from = position(&mut client);
        let fill = "INSERT INTO log SELECT repeat('y', 900) FROM generate_series(1, 3000)";
        for round in 0..6 {
            for statement in [
                &format!("UPDATE account SET balance = balance + 1 WHERE id % 20 = {round}"),
                fill,
                "SELECT pg_sleep(0.3)",
                "SELECT sum(balance) FROM account",
                fill,
                "SELECT pg_sleep(0.3)",
            ] {
                client.batch_execute(statement).unwrap();
            }
        }
        let to = position(&mut client);
        Ok((wal_of(&cluster), [from, to]))
    };
    let (wal, [from, to]) = written("1GB")?;
    let (other, [other_from, other_to]) = written("4MB")?;
    let range =
        |from: Lsn, to: Lsn| ["--from".to_owned(), from.to_string(), "--to".to_owned(), to.to_string()];
    let forecast_of = |range: [String; 4], more: &[&str]| {
        let range: Vec<&str> = range.iter().map(String::as_str).collect();
        forecast(&[&range[..], more].concat())
    };
    let traced = ["--traced", "data_checksums=on", "--traced", "checkpoint_timeout=1h"];
    let wal = wal.path().to_str().unwrap();
    let predicted =
        forecast_of(range(from, to), &[&traced[..], &["--sweep", "max_wal_size=4MB,2GB", wal]].concat());
    let measured =
        forecast_of(range(other_from, other_to), &[&traced[..], &[other.path().to_str().unwrap()]].concat());
    let hints = bucket(&measured["trace"], "hint_images");
    let measured = measured["trace_bytes"].as_u64().unwrap();
    assert!(hints > measured / 20, "{hints} of {measured}");
    let [with_more, with_fewer] = [0, 1].map(|at| &predicted["predictions"][at]);
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap();
    let (bytes, error) = (number(with_more, "bytes"), number(with_more, "error_bytes"));
    assert!(bytes.abs_diff(measured) <= error, "{bytes} with {error}: {measured}, {hints} for hint bits");
    let bound = number(with_more, "hints_at_most_bytes");
    assert!((hints / 2..3 * hints).contains(&bound), "{bound} for {hints}");
    assert_eq!(number(with_fewer, "hints_at_most_bytes"), 0, "the trace has all of them");
    Ok(())
}
