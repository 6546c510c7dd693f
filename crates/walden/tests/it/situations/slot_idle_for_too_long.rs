//! Trail-replay issue 64: `idle_replication_slot_timeout` (18 and later) invalidates unused slots.

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("idle_replication_slot_timeout", "1h")])?;
    scene.run("SELECT pg_create_physical_replication_slot('forgotten', true)");
    scene.write(12);
    let answer = scene.ask();
    answer.expect(1, &["the first checkpoint after 60 min 0 s without a client invalidates it (idle_replication_slot_timeout)"]);
    scene.set("idle_replication_slot_timeout", "1s");
    scene.set("wal_recycle", "off");
    scene.wait("SELECT bool_and(now() - inactive_since > '2 s') FROM pg_replication_slots");
    scene.run("CHECKPOINT");
    let reason = "lost because it had no client for longer than idle_replication_slot_timeout";
    let answer = scene.ask();
    answer.expect(0, &[reason, "pg_drop_replication_slot('forgotten')"]);
    assert_eq!(
        answer.document["holders"].as_array().unwrap().iter().filter(|one| one["kind"] == "slot").count(),
        1
    );
    let slot =
        answer.document["holders"].as_array().unwrap().iter().find(|one| one["kind"] == "slot").unwrap();
    assert_eq!(slot["slot"]["invalidation_reason"], "idle_timeout", "{slot:#}");
    Ok(())
}
