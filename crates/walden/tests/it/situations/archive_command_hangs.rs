//! WAL-G issue 358: `archive_command` hung for a whole weekend. PostgreSQL counts no failure, as the command
//! has no result.

use walden_testing::Outcome;

use super::scene::Scene;
use crate::material::make_archive;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "exec sleep 120")])?;
    let repo = scene.cluster.dir().join("repo");
    make_archive(&repo);
    scene.write(2);
    scene.wait(
        "SELECT coalesce(bool_or(now() - modification > '11 s'), false) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'",
    );
    let run = scene.archive_status(&repo);
    assert!(run.code == 0 && run.stdout.starts_with("UNKNOWN: "), "{run:?}");
    assert!(run.stdout.contains("the server has been archiving 0000000100000000"), "{run:?}");
    assert!(run.stdout.contains("without a result"), "{run:?}");
    scene.ask().expect(0, &["not archived yet", "archiver archiving FILE"]);
    Ok(())
}
