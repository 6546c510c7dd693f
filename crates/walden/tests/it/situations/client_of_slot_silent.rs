//! Barman issue 314: the process that receives hangs. Its connection stays open, so the slot is active while `pg_wal` grows.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use walden_testing::Outcome;

use super::scene::Scene;
use crate::archive::text;
use crate::material::make_archive;

/// A receiver, which is killed in the end, also while it is stopped.
struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_sender_timeout", "0")])?;
    let folder = scene.cluster.make_folder("received").unwrap();
    make_archive(&folder.join("archive"));
    let (dsn, repo, spool) = (scene.cluster.dsn("postgres"), folder.join("archive"), folder.join("spool"));
    let receiver = Command::new(env!("CARGO_BIN_EXE_walden"))
        .args(["receive", "--dsn", &dsn, "--slot", "barman", "--create-slot"])
        .args(["--repo", text(&repo), "--spool", text(&spool)])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let receiver = Receiver(receiver);
    scene.wait(
        "SELECT coalesce(bool_or(active), false) FROM pg_replication_slots WHERE restart_lsn IS NOT NULL",
    );
    scene.write(2);
    let process = Pid::from_child(&receiver.0);
    kill_process(process, Signal::STOP).unwrap();
    scene.write(12);
    scene.wait("SELECT bool_and(now() - reply_time > '17 s') FROM pg_stat_replication");
    scene
        .ask()
        .expect(1, &["active physical slot barman", "does not report a position: resume or restart it"]);
    scene.carry_out_after(
        "resume or restart it",
        |_| kill_process(process, Signal::CONT).unwrap(),
        |scene| {
            scene.wait(
                "SELECT bool_and(pg_current_wal_lsn() - restart_lsn < 1048576) FROM pg_replication_slots",
            );
            thread::sleep(Duration::from_millis(200));
            scene.run("CHECKPOINT");
        },
    );
    scene.ask().expect(0, &[]);
    Ok(())
}
