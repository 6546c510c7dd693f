//! The settings that `walden whatif` infers from a log, held against the servers that wrote it.

use serde_json::Value;
use tempfile::TempDir;
use walden_lab::{Cluster, ClusterBuilder};
use walden_testing::{Need, Outcome, postgres};

use crate::whatif::{copy_wal, forecast, position};

walden_testing::tests! {
    consistency_checks_are_counted_once,
}

/// A server of 15 whose log is kept.
fn builder() -> Result<ClusterBuilder, walden_testing::Missing> {
    let builder = ClusterBuilder::new(postgres(15)?);
    Ok(builder.setting("autovacuum", "off").setting("wal_keep_size", "2GB"))
}

fn wal_of(cluster: &Cluster) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_wal(cluster, folder.path());
    folder
}

fn bucket(of: &Value, name: &str) -> u64 {
    let buckets = of["buckets"].as_array().unwrap();
    buckets.iter().find(|bucket| bucket["name"] == name).unwrap()["bytes"].as_u64().unwrap()
}

/// Under `wal_consistency_checking`, each block has an image, of which redo applies some; with and without compression.
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
