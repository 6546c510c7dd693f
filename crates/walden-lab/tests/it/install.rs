//! Finding and obtaining PostgreSQL.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use walden_lab::{Installation, Wanted, find_or_install, tools};

walden_testing::tests! {
    a_server_is_found_or_obtained,
    pgbench_is_found_or_obtained,
    pg_waldump_is_of_exactly_the_major_version,
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

fn what_is_missing_is_named() {
    let error = find_or_install(Wanted::Major(9)).unwrap_err();
    assert!(format!("{error:#}").contains("PostgreSQL 9"), "{error:#}");
    let error = Installation::from_bin_dir("/nowhere".as_ref()).unwrap_err();
    assert!(format!("{error:#}").contains("/nowhere"), "{error:#}");
}

/// A missing library shows in what the program prints.
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
