//! Crunchy postgres-operator issue 2757: a slot was dropped, but `pg_wal` is as large as before. The next
//! checkpoint removes the files.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_recycle", "off")])?;
    scene.run("SELECT pg_create_physical_replication_slot('replica', true)");
    scene.write(12);
    scene.run("CHECKPOINT");
    scene.run("SELECT pg_drop_replication_slot('replica')");
    let (answer, before) = (scene.ask(), scene.wal_bytes());
    answer.expect(0, &["nothing (until the next checkpoint)", "CHECKPOINT removes or recycles them"]);
    let promised = answer.remedy("CHECKPOINT removes")["releases_bytes"].as_u64().unwrap();
    scene.run("CHECKPOINT");
    let released = before - scene.wal_bytes();
    assert!(promised >= 10 * MB && promised.abs_diff(released) <= 2 * MB, "{promised}, {released}");
    Ok(())
}
