//! Go-pq-cdc issue 136: only some tables are published. A slot mostly holds WAL of others: a refreshed
//! materialized view, and dropped tables.

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_level", "logical")])?;
    scene.run("CREATE TABLE published (id int, fill text)");
    scene.run("CREATE PUBLICATION p FOR TABLE published");
    scene.run(
        "CREATE MATERIALIZED VIEW v AS SELECT i, repeat('x', 500) AS fill FROM generate_series(1, 4000) AS i",
    );
    scene.run("SELECT pg_create_logical_replication_slot('cdc', 'pgoutput')");
    for _ in 0..3 {
        scene.run("REFRESH MATERIALIZED VIEW v");
    }
    scene.run("CREATE TABLE copied AS SELECT i, repeat('x', 500) AS fill FROM generate_series(1, 4000) AS i");
    scene.run("DROP TABLE copied");
    scene.run("INSERT INTO published SELECT i, 'few' FROM generate_series(1, 100) AS i");
    let answer = scene.ask();
    let backlog = &answer.document["backlogs"][0];
    let bytes = |field: &str| backlog[field].as_u64().unwrap() as f64;
    let share = bytes("unpublished_bytes") / bytes("own_database_bytes");
    assert!(share > 0.98, "{share}: {backlog:#}");
    // Rows from before a rewrite of the published table still count as published.
    scene.run("INSERT INTO published SELECT i, repeat('y', 500) FROM generate_series(1, 20000) AS i");
    let before = scene.ask().document["backlogs"][0]["unpublished_bytes"].as_u64().unwrap();
    scene.run("TRUNCATE published");
    let after = scene.ask().document["backlogs"][0]["unpublished_bytes"].as_u64().unwrap();
    assert!(after - before < 1 << 20, "{before}, {after}");
    Ok(())
}
