//! `walden bench codecs`: verifiable figures, and missing programs.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use walden_server::programs::find_in_path;
use walden_testing::{Need, Outcome, write_program};

use crate::material::{golden, write};

walden_testing::tests! {
    programs_are_measured_and_their_output_compared,
    a_program_that_loses_bytes_is_reported,
}

/// Creates a folder with the first two segments of a golden cluster.
fn two_segments(folder: &Path) -> PathBuf {
    for (name, content) in golden("18.6").into_iter().take(2) {
        write(folder, &format!("wal/{name}"), &content);
    }
    folder.join("wal")
}

/// Runs the benchmark. It finds only the programs in `programs`.
fn codecs(folder: &Path, programs: &[&str], arguments: &[&str]) -> (i32, Value, String) {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    // The shell and rm remove temporary folders if this process is killed.
    for name in programs.iter().chain(&["sh", "rm"]) {
        symlink(find_in_path(name).unwrap(), bin.join(name)).unwrap();
    }
    let temporary = folder.join("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
    command.args(["bench", "codecs", "--format", "json"]).args(arguments);
    let output = command.env("PATH", &bin).env("TMPDIR", &temporary).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "temporary files are left");
    (output.status.code().unwrap_or(-1), json, stderr)
}

fn contender<'a>(of: &'a Value, name: &str) -> &'a Value {
    let all = of["contenders"].as_array().unwrap();
    all.iter().find(|one| one["contender"] == name).unwrap_or_else(|| panic!("no {name} in {of:#}"))
}

fn programs_are_measured_and_their_output_compared() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let wal = two_segments(folder.path());
    let present: Vec<&str> = ["gzip", "xz"].into_iter().filter(|name| find_in_path(name).is_some()).collect();
    Need::Gzip.find()?;
    let html = folder.path().join("codecs.html");
    let (html, wal) = (html.to_str().unwrap(), wal.to_str().unwrap());
    let (code, json, stderr) =
        codecs(folder.path(), &present, &["--only", "gzip,xz,zpaq", "--levels", "1,2", "--html", html, wal]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(json["corpora"].as_array().unwrap().len(), 1);
    for of in [&json["corpora"][0], &json["total"]] {
        assert_eq!((of["segments"].as_u64(), of["bytes"].as_u64()), (Some(2), Some(2 << 20)));
        for name in ["gzip -1", "gzip -2"] {
            let figures = &contender(of, name)["figures"];
            let size = figures["bytes_out"].as_u64().unwrap();
            assert!(size > 0 && size < 2 << 20, "{name}: {size}");
            for way in ["compress", "decompress"] {
                assert!(figures[way]["wall_seconds"].as_f64().unwrap() > 0.0, "{figures}");
                assert!(figures[way]["peak_kilobytes"].as_u64().unwrap() > 0, "{figures}");
            }
        }
        assert_eq!(contender(of, "gzip -1")["published"]["megabytes"], 4.927);
        if present.contains(&"xz") {
            assert_eq!(contender(of, "xz -2")["figures"]["times_xz_2"]["bytes"], 1.0);
            assert!(contender(of, "gzip -2")["figures"]["times_xz_2"]["bytes"].as_f64().unwrap() > 1.0);
        }
    }
    // Equal to the size when gzip itself compresses the segments.
    let mut own = 0;
    for entry in std::fs::read_dir(wal).unwrap() {
        let input = std::fs::File::open(entry.unwrap().path()).unwrap();
        own += Command::new("gzip").args(["-c", "-1"]).stdin(input).output().unwrap().stdout.len();
    }
    assert_eq!(contender(&json["total"], "gzip -1")["figures"]["bytes_out"], own);

    let missing = json["missing"].as_array().unwrap();
    let zpaq = missing.iter().find(|one| one["program"] == "zpaq").unwrap();
    assert_eq!((&zpaq["package"], &zpaq["contenders"][1]), (&"zpaq".into(), &"zpaq -m2".into()));
    assert!(stderr.contains("zpaq is not installed (package zpaq)"), "{stderr}");
    let page = std::fs::read_to_string(html).unwrap();
    assert!(
        page.contains("\"kind\":\"scatter\"")
            && page.contains("gzip -1")
            && page.contains("Not installed: zpaq")
    );
    Ok(())
}

fn a_program_that_loses_bytes_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let wal = two_segments(folder.path());
    // The program compresses correctly, but truncates its output on decompression.
    let script = "#!/bin/sh\ncase $2 in -d) /usr/bin/head -c 5000 ;; *) /bin/cat ;; esac\n";
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    write_program(&folder.path().join("bin/lz4"), script);
    let wal = wal.to_str().unwrap();
    let (code, json, _) = codecs(folder.path(), &[], &["--only", "lz4", "--levels", "1", wal]);
    assert_eq!(code, 1);
    let lz4 = contender(&json["total"], "lz4 -1");
    assert!(lz4["figures"].is_null());
    let failure = lz4["failure"].as_str().unwrap();
    assert!(
        failure.starts_with("round trip:") && failure.ends_with("differs from the original at byte 5000"),
        "{failure}"
    );
    // The missing reference is reported.
    assert_eq!(json["missing"][0]["program"], "xz");
}
