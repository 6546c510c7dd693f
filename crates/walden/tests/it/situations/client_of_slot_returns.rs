//! Patroni issue 3184: the slot of a member that does not consume it. Here its client returns and catches up.

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[])?;
    scene.run("SELECT pg_create_physical_replication_slot('member', true)");
    scene.write(12);
    scene.ask().expect(1, &["inactive physical slot member"]);
    scene.carry_out("let the client of slot member come back", |scene| {
        // Like a client that has received everything.
        scene.run("SELECT pg_replication_slot_advance('member', pg_current_wal_lsn())");
    });
    Ok(())
}
