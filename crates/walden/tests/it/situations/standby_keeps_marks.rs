//! pgBackRest issue 475: primary and standby have the same configuration. A standby with `archive_mode = on`
//! archives nothing, and its marks keep nothing.

use std::fs;

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "false")])?;
    scene.write(6);
    assert!(scene.ask().holds("archiver") > 0);
    scene.cluster.stop(walden_lab::StopMode::Fast).unwrap();
    fs::write(scene.cluster.data_dir().join("standby.signal"), "").unwrap();
    scene.cluster.start().unwrap();
    scene.client = scene.cluster.client("postgres").unwrap();
    assert_eq!(scene.run("SELECT pg_is_in_recovery()").as_deref(), Some("t"));
    let answer = scene.ask();
    answer.expect(0, &[]);
    assert_eq!(answer.holds("archiver"), 0, "{:#}", answer.document);
    assert!(!answer.text.contains("pg_logical_emit_message"), "{}", answer.text);
    Ok(())
}
