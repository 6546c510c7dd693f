//! Altinity clickhouse-sink-connector issue 246: a slot holds WAL. With `publish_via_partition_root`, the
//! view of published tables lists only the root, but its partitions are published, too.

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_level", "logical")])?;
    scene.run("CREATE TABLE events (id int, fill text) PARTITION BY RANGE (id)");
    scene.run("CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (1000000)");
    scene.run("CREATE PUBLICATION p FOR TABLE events WITH (publish_via_partition_root = true)");
    scene.run("SELECT pg_create_logical_replication_slot('cdc', 'pgoutput')");
    scene.run("INSERT INTO events SELECT i, repeat('x', 500) FROM generate_series(1, 4000) AS i");
    let answer = scene.ask();
    let backlog = &answer.document["backlogs"][0];
    let bytes = |field: &str| backlog[field].as_u64().unwrap() as f64;
    assert!(bytes("unpublished_bytes") < 0.2 * bytes("own_database_bytes"), "{backlog:#}");
    Ok(())
}
