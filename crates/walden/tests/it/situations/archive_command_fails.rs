//! Crunchy postgres-operator issue 2813 and Open Library issue 13549: `archive_command` fails, and `pg_wal`
//! keeps every segment.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "exit 2")])?;
    scene.write(12);
    scene.wait("SELECT failed_count > 0 FROM pg_stat_archiver");
    let answer = scene.ask();
    answer.expect(1, &["not archived yet", "The archiver fails", "archive_command = 'exit 2'"]);
    assert!(answer.holds("archiver") > 10 * MB, "{:#}", answer.document);
    scene.carry_out_after(
        "repair or speed up archiving",
        |scene| scene.set("archive_command", "true"),
        |scene| {
            scene.wait("SELECT count(*) = 0 FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'");
            scene.run("CHECKPOINT");
        },
    );
    scene.ask().expect(0, &[]);
    Ok(())
}
