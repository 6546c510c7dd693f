//! Canonical postgresql-operator pull request 799: `wal_keep_size` is configurable. It was set too large, and
//! the server was stopped.

use walden_lab::StopMode;
use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_keep_size", "12MB"), ("wal_recycle", "off")])?;
    scene.write(20);
    scene.run("CHECKPOINT");
    let before = scene.wal_bytes();
    scene.cluster.stop(StopMode::Fast).unwrap();
    let answer = scene.ask_files();
    answer.expect(0, &["the server is stopped", "lower wal_keep_size and start the server"]);
    let promised = answer.remedy("lower wal_keep_size")["releases_bytes"].as_u64().unwrap();
    scene.cluster.configure(&[("wal_keep_size", "0")]).unwrap();
    scene.cluster.start().unwrap();
    scene.client = scene.cluster.client("postgres").unwrap();
    scene.run("CHECKPOINT");
    let released = before - scene.wal_bytes();
    assert!(promised >= 10 * MB && promised.abs_diff(released) <= 2 * MB, "{promised}, {released}");
    Ok(())
}
