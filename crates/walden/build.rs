//! Sets what `walden --version` prints: version, commit and features.
//!
//! It needs no network, and omits the commit without git, as in a source archive. Debug builds omit it, too,
//! so that a commit alone does not cause a rebuild.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=WALDEN_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = commit().unwrap_or_else(|| "unknown".into());
    let features: Vec<&str> = [
        ("CARGO_FEATURE_DEMO", "demo"),
        ("CARGO_FEATURE_WATCH", "watch"),
        ("CARGO_FEATURE_EXPORT", "export"),
        ("CARGO_FEATURE_S3", "s3"),
        ("CARGO_FEATURE_SFTP", "sftp"),
        ("CARGO_FEATURE_ENCRYPTION", "encryption"),
    ]
    .into_iter()
    .filter_map(|(variable, name)| env::var_os(variable).map(|_| name))
    .collect();
    let features = if features.is_empty() { "none".into() } else { features.join(", ") };
    let target = env::var("TARGET").unwrap_or_default();
    let text = format!("{version}\ncommit: {commit}\nfeatures: {features}\ntarget: {target}");
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    fs::write(Path::new(&out).join("long_version"), text).expect("OUT_DIR can be written");
}

/// Returns the commit being built, from the environment, from a published package, or from git.
fn commit() -> Option<String> {
    env::var("WALDEN_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty())
        .or_else(read_package_commit)
        .or_else(read_git_commit)
}

/// `cargo package` records the commit in the package.
fn read_package_commit() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, after) = text.split_once("\"sha1\"")?;
    let sha1: String =
        after.chars().skip_while(|c| !c.is_ascii_hexdigit()).take_while(char::is_ascii_hexdigit).collect();
    let is_dirty = text.contains("\"dirty\": true");
    Some(short(&sha1) + if is_dirty { " with changes" } else { "" })
}

fn read_git_commit() -> Option<String> {
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        return None;
    }
    // If vendored sources are in another project's repository, this file is unknown to its git.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let sha1 = git(&["rev-parse", "HEAD"])?;
    for name in ["logs/HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let is_dirty = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(short(&sha1) + if is_dirty { " with changes" } else { "" })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn short(sha1: &str) -> String {
    sha1.chars().take(12).collect()
}
