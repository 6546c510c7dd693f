//! Citus issue 2630: `DROP TABLE` of a table with thousands of partitions writes more WAL than the partitions
//! had rows.

use walden_testing::Outcome;

use super::scene::Scene;
use crate::archive::text;
use crate::material::explain_json;

pub fn run(major: u32) -> Outcome {
    let mut scene =
        Scene::start(major, &[("wal_keep_size", "256MB"), ("max_locks_per_transaction", "1000")])?;
    scene.run("CREATE TABLE events (id bigint, day int, note text) PARTITION BY LIST (day)");
    scene.run(
        "DO $$ BEGIN FOR i IN 1..200 LOOP EXECUTE format('CREATE TABLE events_%s PARTITION OF events FOR VALUES IN (%s)', i, i); \
         END LOOP; END $$",
    );
    scene.run("CREATE INDEX ON events (id)");
    let position = |scene: &mut Scene| scene.run("SELECT pg_current_wal_insert_lsn()").unwrap();
    let from = position(&mut scene);
    scene.run("DROP TABLE events");
    let to = position(&mut scene);
    let wal = scene.cluster.data_dir().join("pg_wal");
    let document = explain_json(&["--from", &from, "--to", &to, text(&wal)]);
    let findings = document["findings"].as_array().unwrap();
    let found = findings.iter().find(|one| one["rule"] == "catalog-churn");
    let found = found.unwrap_or_else(|| panic!("{findings:#?}"));
    // Tables with TOAST tables and two indexes each.
    assert_eq!(found["points_at"], "tables dropped", "{found:#}");
    assert!(
        found["text"].as_str().unwrap().contains("800 files of older relations were dropped, 800 of them by"),
        "{found:#}"
    );
    Ok(())
}
