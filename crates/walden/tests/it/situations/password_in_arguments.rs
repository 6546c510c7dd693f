//! SFTPGo issue 1206, for tools of all kinds: a password in the arguments shows in `ps`.

use walden_testing::Outcome;

use super::scene::Scene;
use crate::material::walden;

pub fn run(major: u32) -> Outcome {
    let scene = Scene::start(major, &[])?;
    let dsn = scene.cluster.dsn("postgres");
    let with_password = format!("{dsn} password=secret-word");
    let run = walden(&["retention", "--dsn", &with_password]);
    assert!(run.code == 0 && run.stderr.contains("warning: --dsn has a password"), "{run:?}");
    assert!(run.stderr.contains("PGPASSFILE") && run.stderr.contains("PGSERVICEFILE"), "{run:?}");
    assert!(!run.stderr.contains("secret-word"), "{run:?}");
    let run = walden(&["retention", "--dsn", &dsn]);
    assert!(run.code == 0 && !run.stderr.contains("password"), "{run:?}");
    Ok(())
}
