//! Zalando postgres-operator issue 1486: `archive_mode` was turned off to save space. Files waiting to be
//! archived are then no longer kept.

use walden_lab::StopMode;
use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "false")])?;
    scene.write(12);
    assert!(scene.ask().holds("archiver") > 10 * MB);
    scene.set("archive_mode", "off");
    scene.cluster.restart(StopMode::Immediate).unwrap();
    scene.client = scene.cluster.client("postgres").unwrap();
    let answer = scene.ask();
    answer.expect(0, &[]);
    assert_eq!(answer.holds("archiver"), 0, "{:#}", answer.document);
    Ok(())
}
