//! Permissions that users lack: which folder, whose, and each cause once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use walden_lab::ClusterBuilder;
use walden_testing::{Missing, Outcome, postgres};

use crate::archive::{program_for, text, wait_until_archived};
use crate::archive_care::switch;
use crate::material::{Run, golden, link_program, make_archive, walden, write};

walden_testing::tests! {
    a_folder_that_the_server_may_not_write_into_is_named,
    no_cause_is_reported_twice,
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn a_folder_that_the_server_may_not_write_into_is_named() -> Outcome {
    let cluster =
        ClusterBuilder::new(postgres(15)?).wal_segsize_mb(1).setting("archive_mode", "on").start().unwrap();
    let program = program_for(&cluster);
    let repo = cluster.make_folder("repo").unwrap();
    make_archive(&repo);
    let push = format!("{} archive push --repo {} %p", program.display(), repo.display());
    cluster.configure(&[("archive_command", push)]).unwrap();
    cluster.reload();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
    switch(&mut client, 0);
    wait_until_archived(&mut client);
    let (dsn, data) = (cluster.dsn("postgres"), cluster.data_dir());
    let ask = |command: &str| {
        [["--data", text(&data)], ["--dsn", &dsn]]
            .map(|server| walden(&[&["archive", command, "--repo", text(&repo)][..], &server[..]].concat()))
    };
    for run in ask("status").iter().chain(&ask("check")) {
        assert!(run.code == 0, "{run:?}");
    }
    let root = repo.canonicalize().unwrap();
    fs::create_dir(root.join("history")).unwrap();
    for (folder, what) in [
        ("wal/00000001/00000000", "cannot write into"),
        ("wal/00000001", "cannot enter"),
        ("history", "cannot write into"),
    ] {
        let folder = root.join(folder);
        let before = fs::metadata(&folder).unwrap().permissions().mode();
        set_mode(&folder, if what == "cannot enter" { 0o600 } else { 0o500 });
        let expected = format!("{what} the archive's folder {}: owner ", folder.display());
        let runs = ask("status").into_iter().chain(ask("check")).collect::<Vec<_>>();
        set_mode(&folder, before);
        for run in runs {
            // As another user than root, nothing below can be read either.
            let is_named = run.stdout.contains(&expected) && run.stdout.contains("mode 0");
            assert!(run.code != 0 && (is_named || what == "cannot enter"), "{folder:?}: {run:?}");
            assert!(run.stdout.contains("(uid "), "{run:?}");
        }
    }
    Ok(())
}

/// Runs commands as a user who may read nothing.
fn no_cause_is_reported_twice() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Missing { reason: "needs root, to run commands as another user".to_owned() });
    }
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o755);
    let program = link_program(folder.path());
    let (repo, wal, data) =
        (folder.path().join("repo"), folder.path().join("wal"), folder.path().join("data"));
    make_archive(&repo);
    let (name, content) = golden("18.6").pop_first().unwrap();
    let segment = write(&wal, &name, &content);
    let pushed = walden(&["archive", "push", "--repo", text(&repo), text(&segment)]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    for file in ["PG_VERSION", "global/pg_control", "pg_wal/archive_status/x.ready", "backup_label"] {
        write(&data, file, b"17\n");
    }
    let file = write(folder.path(), "closed", b"content");
    let closed = [&repo, &wal, &data, &file];
    let output = folder.path().join("output");
    let [repo, wal, data, file, segment, output] =
        [&repo, &wal, &data, &file, &segment, &output].map(|path| text(path));
    let commands: &[&[&str]] = &[
        &["explain", wal],
        &["explain", segment],
        &["explain", file],
        &["explain", "--names", file, segment],
        &["explain", "--log", file, segment],
        &["explain", data],
        &["explain", repo],
        &["whatif", wal],
        &["diff", wal, "--a", "0/0..0/1", "--b", "0/1.."],
        &["watch", data],
        &["retention", data],
        &["redo", "check", wal, "--base", data],
        &["redo", "check", wal, "--data", data],
        &["rows", wal, "--relation", "public.t", "--base", data],
        &["page", wal, "--relation", "public.t", "--block", "0"],
        &["compress", segment, "-o", output],
        &["compress", segment],
        &["decompress", file],
        &["test", file],
        &["export", wal, "-o", output],
        &["archive", "push", "--repo", repo, segment],
        &["archive", "push", "--repo", repo, file],
        &["archive", "get", "--repo", repo, &name, output],
        &["archive", "get", "--repo", repo, "00000002.history", output],
        &["archive", "list", "--repo", repo],
        &["archive", "verify", "--repo", repo],
        &["archive", "pack", "--repo", repo],
        &["archive", "prune", "--repo", repo, "--keep-backups", "1"],
        &["archive", "status", "--repo", repo],
        &["archive", "status", "--repo", repo, "--data", data],
        &["archive", "check", "--repo", repo, "--data", data],
        &["archive", "check", "--config", file],
        &["archive", "list", "--config", file],
        &["archive", "drill", "--repo", repo, "--base", data],
        &["archive", "export", "--repo", repo, "-o", output],
        &["archive", "import", "--repo", repo, wal],
        &["archive", "init", "--repo", wal, "-o", output],
        &["archive", "repair", "--repo", repo],
        &["archive", "acknowledge-gap", "--repo", repo, &format!("{name}..{name}"), "--reason", "none"],
    ];
    let run = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        Run::execute(command.args(arguments).current_dir("/").env("TZ", "UTC"))
    };
    let mut denied = 0;
    // The folders themselves, then the files in them.
    for is_inside in [false, true] {
        for path in closed {
            set_mode(path, if is_inside && path.is_dir() { 0o755 } else { 0 });
            if is_inside && path.is_dir() {
                for entry in fs::read_dir(path).unwrap() {
                    set_mode(&entry.unwrap().path(), 0);
                }
            }
        }
        for arguments in commands {
            let run = run(arguments);
            for line in run.stdout.lines().chain(run.stderr.lines()) {
                let found = line.to_ascii_lowercase().matches("permission denied").count();
                denied += found;
                // A line of `status` has several problems, each with its cause.
                let allowed = line.matches("; ").count().max(1);
                assert!(found <= allowed, "{arguments:?}: {line}");
                assert!(!line.contains("denied (os error 13): Permission"), "{arguments:?}: {line}");
                assert!(!line.contains("permission denied: "), "{arguments:?}: {line}");
            }
        }
    }
    assert!(denied > commands.len(), "{denied}");
    Ok(())
}
