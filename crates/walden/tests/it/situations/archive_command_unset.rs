//! WAL-G issue 50: `archive_mode` is on and `archive_command` is empty. The server keeps all segments, and
//! counts no failure.

use walden_testing::Outcome;

use super::scene::Scene;

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "")])?;
    scene.write(12);
    assert_eq!(scene.run("SELECT failed_count FROM pg_stat_archiver").as_deref(), Some("0"));
    scene.ask().expect(1, &["not archived yet", "both are empty"]);
    scene.carry_out_after(
        "set archive_command or archive_library",
        |scene| scene.set("archive_command", "true"),
        |scene| {
            scene.wait("SELECT count(*) = 0 FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'");
            scene.run("CHECKPOINT");
        },
    );
    scene.ask().expect(0, &[]);
    Ok(())
}
