//! Redpanda Connect issue 3198 and a Debezium report on RDS: the captured database is quiet, another one
//! writes, and the slot does not advance without a heartbeat.

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_level", "logical")])?;
    scene.run("CREATE DATABASE quiet");
    let mut quiet = scene.cluster.client("quiet").unwrap();
    quiet.batch_execute("CREATE TABLE captured (id int)").unwrap();
    quiet.batch_execute("CREATE PUBLICATION p FOR TABLE captured").unwrap();
    let create = "SELECT pg_create_logical_replication_slot('cdc', 'pgoutput')";
    quiet.simple_query(create).unwrap();
    scene.write(12);
    let answer = scene.ask();
    answer.expect(1, &["inactive logical slot cdc", "of other databases"]);
    let backlog = &answer.document["backlogs"][0];
    let bytes = |field: &str| backlog[field].as_u64().unwrap();
    assert!(bytes("other_databases_bytes") > 9 * bytes("own_database_bytes"), "{backlog:#}");
    Ok(())
}
