//! Patroni issue 3641 and Electric issue 1089: `max_slot_wal_keep_size` has invalidated a slot. Its client
//! fails forever, and the slot must be dropped manually.

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("max_slot_wal_keep_size", "4MB"), ("max_wal_size", "6MB")])?;
    scene.run("SELECT pg_create_physical_replication_slot('replica', true)");
    scene.write(1);
    scene.ask().expect(0, &["it is lost after another", "max_slot_wal_keep_size"]);
    scene.write(20);
    scene.run("CHECKPOINT");
    let reason = match major {
        17.. => "lost because the server removed WAL that it needs (max_slot_wal_keep_size)",
        _ => "Slot replica: lost",
    };
    scene.ask().expect(0, &[reason, "Drop it (SELECT pg_drop_replication_slot('replica'))", "a base backup"]);
    scene.run("SELECT pg_drop_replication_slot('replica')");
    assert!(!scene.ask().text.contains("lost"));
    Ok(())
}
