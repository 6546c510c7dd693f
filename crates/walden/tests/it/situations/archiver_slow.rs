//! pgBackRest issue 274: archiving succeeds, but is slower than the server writes. That is a backlog, not a
//! failure.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let command = ("archive_command", "sleep 0.3");
    let mut scene = Scene::start(major, &[("archive_mode", "on"), command])?;
    scene.write(12);
    scene.wait("SELECT archived_count > 0 FROM pg_stat_archiver");
    let answer = scene.ask();
    answer.expect(0, &["not archived yet", "repair or speed up archiving (archive_command = 'sleep 0.3')"]);
    assert!(answer.holds("archiver") > 5 * MB, "{:#}", answer.document);
    assert!(!answer.text.contains("The archiver fails"), "{}", answer.text);
    Ok(())
}
