//! Databasus issue 756: the WAL summarizer (17 and later) lags, and the server keeps the WAL that it has not
//! read.

use rustix::process::{Pid, Signal, kill_process};
use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("summarize_wal", "on")])?;
    let pause = |scene: &mut Scene| {
        let pid = scene.run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsummarizer'").unwrap();
        let process = Pid::from_raw(pid.parse().unwrap()).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        scene.write(12);
        process
    };
    let process = pause(&mut scene);
    scene.run("CHECKPOINT");
    let answer = scene.ask();
    answer.expect(0, &["not summarised yet (summarize_wal)", "wait until the WAL summarizer"]);
    assert!(answer.holds("summarizer") > 8 * MB, "{:#}", answer.document);
    scene.carry_out_after(
        "wait until the WAL summarizer",
        |_| kill_process(process, Signal::CONT).unwrap(),
        |scene| {
            scene.wait(
                "SELECT summarized_lsn >= redo_lsn FROM pg_get_wal_summarizer_state(), pg_control_checkpoint()",
            );
            scene.run("CHECKPOINT");
        },
    );
    Ok(())
}
