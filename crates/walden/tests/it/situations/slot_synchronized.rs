//! Issue 56 of pg_failover_slots: a standby synchronizes a slot from its primary, first as an active slot
//! without a client. It cannot be dropped on the standby.

use std::thread;
use std::time::{Duration, Instant};

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut primary = Scene::start(major, &[("wal_level", "logical")])?;
    primary
        .run("SELECT pg_create_logical_replication_slot('subscriber', 'test_decoding', false, false, true)");
    let mut standby = primary.start_standby(&[]);
    // The standby no longer has the WAL from which the slot starts.
    primary.write(6);
    standby.restart_point(&mut primary);
    standby.set("sync_replication_slots", "on");
    standby.wait("SELECT count(*) = 1 FROM pg_replication_slots WHERE synced AND temporary");
    let answer = standby.ask();
    answer.expect(0, &["synchronized logical slot subscriber"]);
    assert!(!answer.text.contains("it is connected"), "{}", answer.text);
    let began = Instant::now();
    let is_persistent = "SELECT NOT temporary FROM pg_replication_slots WHERE synced";
    while standby.run(is_persistent).as_deref() != Some("t") {
        assert!(began.elapsed() < Duration::from_secs(120), "{}", standby.cluster.log_tail());
        primary.run("SELECT pg_log_standby_snapshot()");
        primary.run("SELECT pg_replication_slot_advance('subscriber', pg_current_wal_lsn())");
        thread::sleep(Duration::from_millis(500));
    }
    primary.write(12);
    standby.replay(&mut primary);
    for answer in [standby.ask(), standby.ask_files()] {
        answer.expect(0, &["slot subscriber is synchronized from the primary", "drop the slot there"]);
        assert!(!answer.text.contains("come back"), "{}", answer.text);
        for remedy in answer.document["remedies"].as_array().unwrap() {
            let text = remedy["text"].as_str().unwrap();
            let is_of_primary = !text.contains("pg_logical_emit_message")
                || text.contains("on the primary, run SELECT pg_logical_emit_message");
            assert!(text.contains("CHECKPOINT on the primary") && is_of_primary, "{text}");
        }
    }
    // As the answer says.
    let refused = standby.client.simple_query("SELECT pg_drop_replication_slot('subscriber')");
    assert!(refused.is_err(), "{refused:?}");
    standby.carry_out_after(
        "is synchronized from the primary",
        |standby| {
            primary.run("SELECT pg_drop_replication_slot('subscriber')");
            standby.wait("SELECT count(*) = 0 FROM pg_replication_slots");
            standby.restart_point(&mut primary);
        },
        |_| {},
    );
    Ok(())
}
