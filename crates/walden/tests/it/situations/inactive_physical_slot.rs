//! Zalando postgres-operator issue 2012: a replica is gone, and its slot keeps all WAL until the volume is
//! full.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[])?;
    scene.run("SELECT pg_create_physical_replication_slot('replica_1', true)");
    scene.write(12);
    let answer = scene.ask();
    answer.expect(1, &["inactive physical slot replica_1", "pg_drop_replication_slot('replica_1')"]);
    assert!(answer.holds("slot") > 10 * MB, "{:#}", answer.document);
    scene.carry_out("pg_drop_replication_slot('replica_1')", |scene| {
        scene.run("SELECT pg_drop_replication_slot('replica_1')");
    });
    scene.ask().expect(0, &[]);
    Ok(())
}
