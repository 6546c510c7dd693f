//! Zalando postgres-operator issue 1743 and Patroni issue 3117: `pg_wal` stays large after a load, although
//! nothing holds it.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("archive_mode", "on"), ("archive_command", "true")])?;
    scene.write(40);
    scene.run("CHECKPOINT");
    scene.run("SELECT pg_switch_wal()");
    scene.run("CHECKPOINT");
    scene.wait("SELECT count(*) = 0 FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'");
    scene.run("CHECKPOINT");
    let answer = scene.ask();
    assert!(answer.holds("recycled") > 10 * MB, "{:#}", answer.document);
    answer.expect(
        0,
        &["files for segments to come contain no WAL yet", "min_wal_size = 2 MB", "max_wal_size = 64 MB"],
    );
    scene.carry_out_after("to remove the files for segments to come", fill_recycled, |scene| {
        scene.wait("SELECT count(*) = 0 FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'");
        scene.run("CHECKPOINT");
    });
    assert!(scene.ask().holds("recycled") <= 2 * MB);
    Ok(())
}

/// Runs the statement of the remedy.
fn fill_recycled(scene: &mut Scene) {
    let answer = scene.ask();
    let text = answer.remedy("to remove the files for segments to come")["text"].as_str().unwrap().to_owned();
    let start = text.find("SELECT pg_logical_emit_message").unwrap();
    let statement = text[start..].split(';').next().unwrap().to_owned();
    scene.run(&statement);
}
