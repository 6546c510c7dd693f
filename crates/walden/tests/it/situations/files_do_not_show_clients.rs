//! Pgoperate issue 15: old segments stay on one site after a switchover. Files alone do not show whether a
//! slot has a client.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_recycle", "off")])?;
    scene.run("SELECT pg_create_physical_replication_slot('other_site', true)");
    scene.write(12);
    scene.run("CHECKPOINT");
    let (answer, before) = (scene.ask_files(), scene.wal_bytes());
    answer
        .expect(0, &["physical slot other_site", "if slot other_site has no client (--dsn asks the server)"]);
    let promised = answer.remedy("if slot other_site has no client")["releases_bytes"].as_u64().unwrap();
    scene.run("SELECT pg_drop_replication_slot('other_site')");
    scene.run("CHECKPOINT");
    let released = before - scene.wal_bytes();
    assert!(promised >= 10 * MB && promised.abs_diff(released) <= 2 * MB, "{promised}, {released}");
    Ok(())
}
