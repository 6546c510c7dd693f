//! Finding and obtaining PostgreSQL.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use walden_lab::{ClusterBuilder, Installation, Wanted, find_or_install, tools};
use walden_server::account;
use walden_server::programs::program_version;
use walden_testing::{Outcome, postgres};

walden_testing::tests! {
    a_server_is_found_or_obtained,
    pgbench_is_found_or_obtained,
    pg_waldump_is_of_exactly_the_major_version,
    every_program_of_19_runs,
    what_is_missing_is_named,
    the_output_of_a_program_that_fails_is_shown,
}

fn a_server_is_found_or_obtained() {
    let found = find_or_install(Wanted::Any).unwrap();
    assert!(found.version.major >= 14);
    assert!(found.initdb().is_file() && found.postgres().is_file());
    assert_eq!(find_or_install(Wanted::Exact(found.version)).unwrap().version, found.version);
    assert_eq!(Installation::from_bin_dir(&found.bin_dir).unwrap(), found);
}

fn pgbench_is_found_or_obtained() {
    assert!(tools().pgbench().unwrap().is_file());
}

fn pg_waldump_is_of_exactly_the_major_version() {
    assert_eq!(tools().pg_waldump(9), None);
}

/// Programs of Debian's package need its own C library, also when another program starts them or loads their
/// modules.
fn every_program_of_19_runs() -> Outcome {
    let installation = postgres(19)?;
    let expected = installation.version;
    let mut programs = 0;
    for entry in fs::read_dir(&installation.bin_dir).unwrap() {
        let path = entry.unwrap().path();
        // It prints its version in another form.
        if path.file_name().is_some_and(|name| name != "pg_config") {
            assert_eq!(program_version(&path).unwrap(), expected, "{}", path.display());
            programs += 1;
        }
    }
    assert!(programs > 20, "{programs} programs in {}", installation.bin_dir.display());

    let cluster = ClusterBuilder::new(installation.clone()).setting("summarize_wal", "on").start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    for extension in ["pgcrypto", "pageinspect", "pg_walinspect", "amcheck", "xml2"] {
        client.batch_execute(&format!("CREATE EXTENSION {extension}")).unwrap();
    }
    let digest: String = client.query_one("SELECT encode(digest('a', 'sha256'), 'hex')", &[]).unwrap().get(0);
    assert!(digest.starts_with("ca978112ca1bbdca"), "{digest}");
    // Commands of a server use the machine's own C library.
    client.batch_execute("COPY (SELECT 1) TO PROGRAM 'cat >/dev/null'").unwrap();

    let run = |name: &str, arguments: &[&str]| {
        let mut command = account::command(&installation.bin_dir.join(name), cluster.dir()).unwrap();
        let output = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{name} {arguments:?}: {stderr}");
        stdout.into_owned()
    };
    let dsn = cluster.dsn("postgres");
    run("pgbench", &["--initialize", "--quiet", &dsn]);
    run("pg_amcheck", &["--install-missing", &dsn]);
    let [full, incremental, whole] = ["full", "incremental", "whole"].map(|name| cluster.dir().join(name));
    let [full, incremental, whole] = [&full, &incremental, &whole].map(|path| path.to_str().unwrap());
    run("pg_basebackup", &["--dbname", &dsn, "--checkpoint=fast", "--pgdata", full]);
    let manifest = format!("--incremental={full}/backup_manifest");
    run("pg_basebackup", &["--dbname", &dsn, "--checkpoint=fast", &manifest, "--pgdata", incremental]);
    run("pg_combinebackup", &[full, incremental, "--output", whole]);
    run("pg_verifybackup", &[whole]);
    // The server would keep open the pipes that pg_ctl prints to.
    let log = format!("--log={whole}/log");
    run("pg_ctl", &["--pgdata", whole, &log, "--options=-c port=5433", "--wait", "start"]);
    run("pg_ctl", &["--pgdata", whole, "--mode=fast", "--wait", "stop"]);
    Ok(())
}

fn what_is_missing_is_named() {
    let error = find_or_install(Wanted::Major(9)).unwrap_err();
    assert!(format!("{error:#}").contains("PostgreSQL 9"), "{error:#}");
    let error = Installation::from_bin_dir("/nowhere".as_ref()).unwrap_err();
    assert!(format!("{error:#}").contains("/nowhere"), "{error:#}");
}

/// The output of the program shows a missing library.
fn the_output_of_a_program_that_fails_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("postgres");
    fs::write(
        &program,
        "#!/bin/sh\necho 'libsomething.so.1: cannot open shared object file' >&2\nexit 127\n",
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let error = Installation::from_bin_dir(dir.path()).unwrap_err();
    assert!(format!("{error:#}").contains("libsomething.so.1"), "{error:#}");
}
