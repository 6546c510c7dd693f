//! A configuration file with the key of an object store has mode 0644, so every user of the machine may read
//! the key.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use walden_testing::Outcome;

use super::scene::Scene;
use crate::archive::text;
use crate::material::{make_archive, walden};

pub fn run(major: u32) -> Outcome {
    let scene = Scene::start(major, &[])?;
    let (repo, config) = (scene.cluster.dir().join("repo"), scene.cluster.dir().join("walden.toml"));
    make_archive(&repo);
    let toml =
        format!("[archive]\nrepo = \"{}\"\n[archive.store]\nsecret_access_key = \"abc\"\n", repo.display());
    fs::write(&config, toml).unwrap();
    let check = |mode| {
        fs::set_permissions(&config, fs::Permissions::from_mode(mode)).unwrap();
        walden(&["archive", "check", "--config", text(&config)])
    };
    let readable = check(0o644);
    assert!(readable.stdout.contains("secret_access_key is a secret"), "{readable:?}");
    let remedy = format!("chmod 600 {}", config.display());
    assert!(readable.code == 0 && readable.stdout.contains(&remedy), "{readable:?}");
    assert!(!readable.stdout.contains("abc"), "{readable:?}");
    let restricted = check(0o600);
    assert!(restricted.code == 0 && !restricted.stdout.contains("secret"), "{restricted:?}");
    Ok(())
}
