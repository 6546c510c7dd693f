//! Patroni issue 3184: an unused slot on a standby. CHECKPOINT alone releases nothing there.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut primary = Scene::start(major, &[])?;
    let mut standby = primary.start_standby(&[]);
    primary.write(12);
    standby.replay(&mut primary);
    // The WAL that recovery keeps, without a slot.
    standby.set("wal_recycle", "off");
    let answer = standby.ask();
    answer.expect(0, &["CHECKPOINT on the primary"]);
    let promised = answer.remedy("CHECKPOINT on the primary")["releases_bytes"].as_u64().unwrap();
    let before = standby.wal_bytes();
    standby.run("CHECKPOINT");
    assert!(before.abs_diff(standby.wal_bytes()) <= 2 * MB, "{before}, {}", standby.wal_bytes());
    standby.restart_point(&mut primary);
    let released = before.saturating_sub(standby.wal_bytes());
    assert!(promised >= 8 * MB && promised.abs_diff(released) <= 2 * MB, "{promised}, {released}");
    // Then with a slot.
    standby.run("SELECT pg_create_physical_replication_slot('left_over', true)");
    primary.write(12);
    standby.replay(&mut primary);
    let answer = standby.ask();
    answer.expect(1, &["inactive physical slot left_over", "pg_drop_replication_slot('left_over')"]);
    for answer in [answer, standby.ask_files()] {
        for remedy in answer.document["remedies"].as_array().unwrap() {
            assert!(remedy["text"].as_str().unwrap().contains("CHECKPOINT on the primary"), "{remedy}");
        }
    }
    standby.carry_out_after(
        "pg_drop_replication_slot('left_over')",
        |standby| {
            standby.run("SELECT pg_drop_replication_slot('left_over')");
        },
        |standby| standby.restart_point(&mut primary),
    );
    Ok(())
}
