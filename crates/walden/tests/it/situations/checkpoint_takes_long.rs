//! Multicluster-global-hub pull request 628 and Patroni issue 3117: a checkpoint is spread over most of
//! `checkpoint_timeout`, and until it ends, recovery needs the WAL since the previous one.

use std::thread;
use std::time::Duration;

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("shared_buffers", "96MB")])?;
    scene.set("wal_recycle", "off");
    scene.run("CHECKPOINT");
    // The volume triggers a checkpoint, which would take most of an hour.
    scene.write(42);
    thread::sleep(Duration::from_millis(500));
    let (answer, before) = (scene.ask(), scene.wal_bytes());
    assert!(answer.holds("recovery") > 30 * MB, "{:#}", answer.document);
    answer.expect(0, &["CHECKPOINT removes or recycles them"]);
    let promised = answer.remedy("CHECKPOINT removes")["releases_bytes"].as_u64().unwrap();
    scene.run("CHECKPOINT");
    let released = before - scene.wal_bytes();
    assert!(promised > 30 * MB && promised.abs_diff(released) <= 2 * MB, "{promised}, {released}");
    Ok(())
}
