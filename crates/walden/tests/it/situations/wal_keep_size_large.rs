//! Crunchy postgres-operator issue 1136: everything is archived, but the operator's default keeps 400
//! segments.

use walden_testing::Outcome;

use super::scene::{MB, Scene};

pub fn run(major: u32) -> Outcome {
    let mut scene = Scene::start(major, &[("wal_keep_size", "12MB")])?;
    scene.write(20);
    scene.run("CHECKPOINT");
    let (answer, before) = (scene.ask(), scene.wal_bytes());
    // A checkpoint may rename all files that it releases here, so the folder need not shrink.
    answer.expect(
        0,
        &[
            "lower wal_keep_size, reload, and run CHECKPOINT",
            "A checkpoint renames up to",
            "wal_recycle = off",
        ],
    );
    let room = answer.document["recycling"]["room_bytes"].as_u64().unwrap();
    assert!(room > 0 && answer.holds("wal_keep_size") >= 12 * MB, "{:#}", answer.document);
    scene.carry_out("lower wal_keep_size", |scene| scene.set("wal_keep_size", "0"));
    assert!(scene.wal_bytes() < before);
    Ok(())
}
