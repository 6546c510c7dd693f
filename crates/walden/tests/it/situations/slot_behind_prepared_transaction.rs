//! Airbyte issue 27647 and psycopg2 issue 1189: `confirmed_flush_lsn` advances, but `restart_lsn` does not.
//! The cause is a forgotten prepared transaction, which no view of replication shows.

use std::thread;
use std::time::Duration;

use walden_testing::Outcome;

use super::scene::Scene;

const CONFIRM: &str = "SELECT count(*) FROM pg_logical_slot_get_changes('cdc', NULL, NULL)";

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_level", "logical"), ("max_prepared_transactions", "5")])?;
    scene.run("CREATE TABLE orders (id int)");
    scene.run("SELECT pg_create_logical_replication_slot('cdc', 'test_decoding')");
    scene.run("BEGIN; INSERT INTO orders VALUES (1); PREPARE TRANSACTION 'job 7'");
    scene.write(12);
    scene.run("CHECKPOINT");
    scene.run(CONFIRM);
    scene.wait("SELECT bool_and(now() - prepared > '11 s') FROM pg_prepared_xacts");
    let answer = scene.ask();
    answer.expect(1, &["COMMIT PREPARED 'job 7' or ROLLBACK PREPARED 'job 7'"]);
    scene.carry_out_after(
        "ROLLBACK PREPARED 'job 7'",
        |scene| {
            scene.run("ROLLBACK PREPARED 'job 7'");
        },
        confirm_and_checkpoint,
    );
    scene.ask().expect(1, &["let the client of slot cdc come back"]);
    Ok(())
}

/// Advances the slot to a record of running transactions after the end of the last transaction that it waited
/// for.
pub fn confirm_and_checkpoint(scene: &mut Scene) {
    for _ in 0..3 {
        scene.run("CREATE TEMP TABLE IF NOT EXISTS noise (id int)");
        scene.run("SELECT pg_logical_emit_message(true, 'test', '')");
        scene.run("CHECKPOINT");
        scene.run(CONFIRM);
        thread::sleep(Duration::from_millis(100));
    }
    scene.run("CHECKPOINT");
}
