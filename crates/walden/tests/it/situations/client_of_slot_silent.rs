//! Barman issue 314: the receiver process hangs. Its connection stays open, so the slot is active while
//! `pg_wal` grows.

use rustix::process::Signal;
use walden_testing::Outcome;

use super::client_of_slot_slow::{Receiver, catch_up};
use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_sender_timeout", "0")])?;
    let receiver = Receiver::start(&mut scene, "barman");
    receiver.signal(Signal::STOP);
    scene.write(12);
    scene.wait("SELECT bool_and(now() - reply_time > '17 s') FROM pg_stat_replication");
    scene
        .ask()
        .expect(1, &["active physical slot barman", "does not report a position: resume or restart it"]);
    scene.carry_out_after("resume or restart it", |_| receiver.signal(Signal::CONT), catch_up);
    scene.ask().expect(0, &[]);
    Ok(())
}
