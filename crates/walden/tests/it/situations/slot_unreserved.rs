//! ReadySet pull request 552: more WAL than `max_slot_wal_keep_size` was written, and the slot is lost at the
//! next checkpoint.

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("max_slot_wal_keep_size", "4MB")])?;
    scene.run("SELECT pg_create_physical_replication_slot('replicator', true)");
    scene.write(12);
    let status = scene.run("SELECT wal_status FROM pg_replication_slots");
    assert_eq!(status.as_deref(), Some("unreserved"));
    let answer = scene.ask();
    answer.expect(0, &["Slot replicator: it is lost at the next checkpoint (max_slot_wal_keep_size)"]);
    scene.run("CHECKPOINT");
    scene.ask().expect(0, &["Slot replicator: lost"]);
    Ok(())
}
