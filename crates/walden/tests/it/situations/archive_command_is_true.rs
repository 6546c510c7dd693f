//! Pgwatch2 issue 208: `archive_command = '/bin/true'`. The server removes its WAL, and no archive contains
//! it.

use walden_testing::Outcome;

use super::scene::Scene;
use crate::material::make_archive;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "/bin/true")])?;
    let repo = scene.cluster.dir().join("repo");
    make_archive(&repo);
    scene.write(3);
    scene.wait("SELECT archived_count > 1 FROM pg_stat_archiver");
    let run = scene.archive_status(&repo);
    assert!(run.code == 1 && run.stdout.starts_with("PROBLEM: "), "{run:?}");
    assert!(run.stdout.contains("it archives elsewhere"), "{run:?}");
    Ok(())
}
