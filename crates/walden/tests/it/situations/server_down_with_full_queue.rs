//! CloudNativePG issue 6152: archiving failed, the volume filled up, and the server crashed. The files alone
//! must show the cause.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "false")])?;
    scene.write(12);
    scene.cluster.crash().unwrap();
    let answer = scene.ask_files();
    answer.expect(
        0,
        &["the server is not running", "start the server; after its start, repair or speed up archiving"],
    );
    assert!(answer.holds("archiver") > 10 * MB, "{:#}", answer.document);
    scene.cluster.start().unwrap();
    scene.client = scene.cluster.client("postgres").unwrap();
    scene.carry_out_after(
        "repair or speed up archiving",
        |scene| scene.set("archive_command", "true"),
        |scene| {
            scene.wait("SELECT count(*) = 0 FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'");
            scene.run("CHECKPOINT");
        },
    );
    Ok(())
}
