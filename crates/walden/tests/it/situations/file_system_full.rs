//! Open Library issue 13549: the file system of `pg_wal` is full, and the server cannot start. Making space
//! precedes all other remedies.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use walden_lab::StopMode;
use walden_testing::{Missing, Outcome};

use super::scene::{Answer, Scene};
use crate::archive::text;

/// A small file system in memory, unmounted on drop.
struct SmallFileSystem(PathBuf);

impl SmallFileSystem {
    fn mount(folder: PathBuf) -> Result<SmallFileSystem, Missing> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m,mode=777", "tmpfs", text(&folder)])
            .output();
        match mounted {
            Ok(output) if output.status.success() => Ok(SmallFileSystem(folder)),
            _ => Err(Missing { reason: "needs the right to mount a file system".to_owned() }),
        }
    }

    fn free(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.0).unwrap();
        found.f_bavail * found.f_frsize
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", text(&self.0)]).status();
    }
}

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "exit 2")])?;
    let small = SmallFileSystem::mount(scene.cluster.make_folder("small").unwrap())?;
    scene.cluster.stop(StopMode::Fast).unwrap();
    move_wal(&scene, &small);
    scene.cluster.start().unwrap();
    scene.client = scene.cluster.client("postgres").unwrap();
    let began = Instant::now();
    // The loop ends when the server panics.
    while scene
        .client
        .batch_execute("INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 900)")
        .is_ok()
    {
        assert!(began.elapsed() < Duration::from_secs(60), "{} bytes are free", small.free());
    }
    let _ = scene.cluster.stop(StopMode::Immediate);
    let answer = Answer::run(&[text(&scene.cluster.data_dir())]);
    assert!(answer.document["disk_is_full"] == true, "{:#}", answer.document);
    answer.expect(
        1,
        &["the server cannot start until it has room", "Make room first: enlarge the file system"],
    );
    assert!(scene.cluster.start().is_err());
    let enlarged = Command::new("mount").args(["-o", "remount,size=64m", text(&small.0)]).status();
    assert!(enlarged.unwrap().success());
    let _ = scene.cluster.stop(StopMode::Immediate);
    scene.cluster.start().unwrap();
    scene.ask().expect(1, &["archive_command = 'exit 2'"]);
    scene.cluster.stop(StopMode::Immediate).unwrap();
    Ok(())
}

/// Moves `pg_wal` to another file system, and replaces it by a symbolic link.
fn move_wal(scene: &Scene, small: &SmallFileSystem) {
    let (from, to) = (scene.cluster.data_dir().join("pg_wal"), small.0.join("pg_wal"));
    let moved = Command::new("cp").args(["-a", text(&from), text(&to)]).status();
    assert!(moved.unwrap().success());
    std::fs::remove_dir_all(&from).unwrap();
    std::os::unix::fs::symlink(&to, &from).unwrap();
}
