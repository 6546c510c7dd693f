//! Databasus pull request 759: the WAL summarizer makes no progress for minutes. As a last resort,
//! `summarize_wal` is turned off.

use std::fs::File;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("summarize_wal", "on")])?;
    let pid = scene.run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsummarizer'").unwrap();
    let process = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    scene.write(12);
    scene.run("CHECKPOINT");
    make_older(&scene);
    scene.ask().expect(1, &["the WAL summarizer does not continue", "summarize_wal = off"]);
    scene.carry_out("summarize_wal = off", |scene| scene.set("summarize_wal", "off"));
    kill_process(process, Signal::CONT).unwrap();
    Ok(())
}

/// Sets the modification time of finished segments to ten minutes ago.
fn make_older(scene: &Scene) {
    let time = SystemTime::now() - Duration::from_secs(600);
    for entry in std::fs::read_dir(scene.cluster.data_dir().join("pg_wal")).unwrap().flatten() {
        let is_segment = entry.file_name().len() == 24;
        if is_segment {
            File::options().write(true).open(entry.path()).unwrap().set_modified(time).unwrap();
        }
    }
}
