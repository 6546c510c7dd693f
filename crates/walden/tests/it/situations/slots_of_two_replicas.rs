//! Zalando postgres-operator issue 1061: two slots at the same LSN. Dropping one of them releases nothing.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[])?;
    for slot in ["gitlab_1", "gitlab_2"] {
        scene.run(&format!("SELECT pg_create_physical_replication_slot('{slot}', true)"));
    }
    scene.write(12);
    scene.set("wal_recycle", "off");
    scene.run("CHECKPOINT");
    let (answer, before) = (scene.ask(), scene.wal_bytes());
    answer.expect(1, &["0 B alone", "with those above"]);
    let remedies = ["gitlab_1", "gitlab_2"].map(|slot| answer.remedy(slot));
    assert!(remedies.iter().all(|remedy| remedy["releases_bytes"] == 0), "{:#}", answer.document);
    let together =
        remedies.iter().filter_map(|remedy| remedy["releases_with_previous_bytes"].as_u64()).max().unwrap();
    scene.run("SELECT pg_drop_replication_slot('gitlab_1')");
    scene.run("CHECKPOINT");
    assert!(before.abs_diff(scene.wal_bytes()) <= 2 * MB);
    scene.run("SELECT pg_drop_replication_slot('gitlab_2')");
    scene.run("CHECKPOINT");
    let released = before - scene.wal_bytes();
    assert!(together >= 10 * MB && together.abs_diff(released) <= 2 * MB, "{together}, {released}");
    Ok(())
}
