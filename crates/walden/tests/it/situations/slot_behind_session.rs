//! PgJDBC issue 1983: a session is idle in a transaction that has written, and a logical slot keeps the WAL
//! since its start.

use walden_testing::Outcome;

use super::scene::Scene;
use super::slot_behind_prepared_transaction::confirm_and_checkpoint;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_level", "logical")])?;
    scene.run("CREATE TABLE orders (id int)");
    scene.run("SELECT pg_create_logical_replication_slot('cdc', 'test_decoding')");
    let mut session = scene.cluster.client("postgres").unwrap();
    session.batch_execute("BEGIN; INSERT INTO orders VALUES (1)").unwrap();
    let pid: i32 = session.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    scene.write(12);
    scene.run("CHECKPOINT");
    scene.run("SELECT count(*) FROM pg_logical_slot_get_changes('cdc', NULL, NULL)");
    scene.wait(&format!("SELECT now() - xact_start > '11 s' FROM pg_stat_activity WHERE pid = {pid}"));
    let remedy = format!("pg_terminate_backend({pid})");
    scene.ask().expect(1, &["end the transaction of process", &remedy]);
    let end = format!("SELECT {remedy}");
    scene.carry_out_after(
        &remedy,
        |scene| {
            scene.run(&end);
        },
        confirm_and_checkpoint,
    );
    Ok(())
}
