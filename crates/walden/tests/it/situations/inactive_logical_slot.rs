//! CourtListener issue 910: a subscription was removed, but its slot remained on the publisher.

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_level", "logical")])?;
    scene.run("SELECT pg_create_logical_replication_slot('subscriber', 'pgoutput')");
    scene.write(12);
    scene.ask().expect(
        1,
        &["inactive logical slot subscriber", "drop it: SELECT pg_drop_replication_slot('subscriber')"],
    );
    scene.carry_out("pg_drop_replication_slot('subscriber')", |scene| {
        scene.run("SELECT pg_drop_replication_slot('subscriber')");
    });
    Ok(())
}
