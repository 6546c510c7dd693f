//! Timescale helm-charts issue 404: the WAL volume grows while replicas receive more slowly than the primary
//! writes.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use walden_testing::Outcome;

use super::scene::Scene;
use crate::archive::text;
use crate::material::make_archive;

/// A receiver, killed on drop, even if it is stopped.
pub struct Receiver(Child);

impl Receiver {
    /// Starts a receiver with a new slot, and waits until the slot is active.
    pub fn start(scene: &mut Scene, slot: &str) -> Receiver {
        let folder = scene.cluster.make_folder("received").unwrap();
        let (dsn, repo, spool) =
            (scene.cluster.dsn("postgres"), folder.join("archive"), folder.join("spool"));
        make_archive(&repo);
        let receiver = Command::new(env!("CARGO_BIN_EXE_walden"))
            .args(["receive", "--dsn", &dsn, "--slot", slot, "--create-slot"])
            .args(["--repo", text(&repo), "--spool", text(&spool)])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let receiver = Receiver(receiver);
        scene.wait(
            "SELECT coalesce(bool_or(active), false) FROM pg_replication_slots WHERE restart_lsn IS NOT NULL",
        );
        scene.write(2);
        receiver
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the client has received everything, and runs a checkpoint.
pub fn catch_up(scene: &mut Scene) {
    scene.wait("SELECT bool_and(pg_current_wal_lsn() - restart_lsn < 1048576) FROM pg_replication_slots");
    scene.run("CHECKPOINT");
}

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_sender_timeout", "0")])?;
    let receiver = Receiver::start(&mut scene, "replica");
    receiver.signal(Signal::STOP);
    scene.write(12);
    // The client's last message is less than 15 seconds old.
    scene.ask().expect(
        0,
        &["active physical slot replica", "let the client of slot replica catch up (it is connected)"],
    );
    scene.carry_out_after(
        "let the client of slot replica catch up",
        |_| receiver.signal(Signal::CONT),
        catch_up,
    );
    Ok(())
}
