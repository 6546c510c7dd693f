//! Crunchy postgres-operator issue 2531: no repository is set up. This is not visible before the first
//! segment is complete.

use walden_testing::Outcome;

use super::scene::Scene;
use crate::archive::text;
use crate::material::make_archive;
use crate::material::walden;

pub fn run(major: u32) -> Outcome {
    let scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "false")])?;
    let repo = scene.cluster.dir().join("repo");
    make_archive(&repo);
    let data = scene.cluster.data_dir();
    let by_files = walden(&["archive", "status", "--repo", text(&repo), "--pgdata", text(&data)]);
    for run in [scene.archive_status(&repo), by_files] {
        assert!(run.code == 0 && run.stdout.starts_with("UNKNOWN: "), "{run:?}");
        assert!(run.stdout.contains("no segment of the server was archived here yet"), "{run:?}");
    }
    Ok(())
}
