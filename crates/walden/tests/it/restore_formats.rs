//! Manifests, tar files and incremental backups of `pg_basebackup`, judged by `pg_verifybackup` and by
//! servers.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use postgres::Client;
use serde_json::Value;
use walden_lab::Installation;
use walden_server::account;
use walden_testing::{ALL_SERVERS, Missing, Outcome, postgres};

use crate::archive::{program_for, text, wait_until_promoted};
use crate::material::{Run, walden};
use crate::restore_forward::{
    Primary, advance, amcheck, content, copy_running, create_tables, expect_same_content, files_of,
    keep_busy, work,
};

walden_testing::tests! {
    #[slow] the_manifest_of_an_advanced_backup_is_verified on ALL_SERVERS,
    wal_before_an_advanced_backup_is_pruned on [15, 18],
    #[slow] backups_in_tar_format_are_restored_and_advanced on [15, 18, 19],
    incremental_backups_are_combined_first on [18, 19],
    #[slow] a_drill_rolls_its_copy_forward on [14, 18],
}

const SETTINGS: &[(&str, &str)] = &[("max_wal_senders", "4")];

/// Finds a program of the server's version, or of a later one.
pub fn program(installation: &Installation, name: &str) -> Result<PathBuf, Missing> {
    let own = installation.program(name);
    let later = || [18, 19].into_iter().find_map(|version| postgres(version).ok()?.program(name));
    own.or_else(later).ok_or_else(|| Missing { reason: format!("needs {name}") })
}

/// Runs a program as the server's account.
fn run(primary: &Primary, program: &Path, arguments: &[&str]) -> Run {
    let mut command = account::command(program, primary.cluster.dir()).unwrap();
    Run::execute(command.args(arguments))
}

fn base_backup(primary: &Primary, program: &Path, to: &Path, options: &[&str]) {
    let dsn = primary.cluster.dsn("postgres");
    let arguments = ["-d", &dsn, "-c", "fast", "-X", "none", "-D", text(to)];
    let run = run(primary, program, &[&arguments[..], options].concat());
    assert_eq!(run.code, 0, "{run:?}");
}

/// Runs `pg_verifybackup`, also on the WAL where the versions agree.
fn verify(primary: &Primary, program: &Path, backup: &Path) -> Run {
    account::chown_all(backup).unwrap();
    let wal = primary.cluster.archive_dir();
    let is_own = program.starts_with(&primary.cluster.installation().bin_dir);
    let wal = if is_own { ["-w", text(&wal)] } else { ["-n", "-q"] };
    // Another version does not read pg_control, which it compares with the system identifier.
    let control = match primary.cluster.major() {
        17 if !is_own => &["-i", "global/pg_control"][..],
        _ => &[],
    };
    run(primary, program, &[&wal[..], control, &[text(backup)]].concat())
}

fn expect_verified(primary: &Primary, program: &Path, backup: &Path) {
    let run = verify(primary, program, backup);
    assert_eq!(run.code, 0, "{run:?}");
}

/// Inverts the last byte of a file.
fn damage(path: &Path) {
    let content = fs::read(path).unwrap();
    let last = content.len() - 1;
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[!content[last]], last as u64).unwrap();
}

/// A file of the table `busy` in a data directory.
fn file_of(client: &mut Client, table: &str) -> String {
    client.query_one(&format!("SELECT pg_relation_filepath('{table}')"), &[]).unwrap().get(0)
}

/// `pg_verifybackup` accepts a backup that was advanced in place and to a new folder, and finds damage in it.
fn the_manifest_of_an_advanced_backup_is_verified(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let pg_basebackup = program(&installation, "pg_basebackup")?;
    let pg_verifybackup = program(&installation, "pg_verifybackup")?;
    let primary = Primary::start(&installation, SETTINGS);
    create_tables(&primary);
    let mut client = primary.client("postgres");
    client.batch_execute("CREATE TABLE still AS SELECT generate_series(1, 1000) i").unwrap();
    client.batch_execute("VACUUM (FREEZE) still").unwrap();
    let algorithm = match version {
        14 => "NONE",
        16 => "SHA384",
        _ => "CRC32C",
    };
    let option = format!("--manifest-checksums={algorithm}");
    base_backup(&primary, &pg_basebackup, &primary.backup, &[&option]);
    let (still, busy) = (file_of(&mut client, "still"), file_of(&mut client, "busy"));
    for round in 1..=2 {
        (0..5).for_each(|_| keep_busy(&mut client));
        work(&primary, round);
        primary.checkpoint_and_name(&format!("step{round}"));
    }
    primary.archive_all();
    expect_verified(&primary, &pg_verifybackup, &primary.backup);

    let backup = &primary.backup;
    let lines = |backup: &Path| -> BTreeMap<String, String> {
        let text = fs::read_to_string(backup.join("backup_manifest")).unwrap();
        let name = |line: &str| line.strip_prefix("{ \"Path\": \"")?.split('"').next().map(str::to_owned);
        let line = |line: &str| Some((name(line)?, line.trim_end_matches(',').to_owned()));
        text.lines().filter_map(line).collect()
    };
    let old = lines(backup);
    advance(&primary, backup, &["--to", "name:step1"]);
    expect_verified(&primary, &pg_verifybackup, backup);
    let new = lines(backup);
    assert_eq!(old[&still], new[&still]);
    assert_ne!(old[&busy], new[&busy]);
    assert!(new[&busy].contains(algorithm) || algorithm == "NONE", "{}", new[&busy]);
    let later = primary.cluster.dir().join("later");
    advance(
        &primary,
        backup,
        &["--verify-base", "-o", text(&later)].as_slice()[usize::from(version == 14)..],
    );
    expect_verified(&primary, &pg_verifybackup, &later);
    let server = primary.server_of(&later).setting("restore_command", &primary.restore_command());
    let server = server.start_after(|data| Ok(fs::write(data.join("recovery.signal"), "")?)).unwrap();
    wait_until_promoted(&server);
    drop(server);

    // Damage of the later backup is found.
    if version != 14 {
        damage(&later.join(&busy));
        let run = verify(&primary, &pg_verifybackup, &later);
        assert!(run.code != 0 && run.stderr.contains(&busy), "{run:?}");
    }
    // Damage of the base backup is found by --verify-base, and in the later backup, whose manifest has the
    // old checksum of the file.
    damage(&backup.join(&still));
    let wal = primary.cluster.archive_dir();
    let last = primary.cluster.dir().join("last");
    let arguments = ["backup", "advance", text(backup), "--wal", text(&wal), "-o", text(&last)];
    let refused = walden(&[&arguments[..], &["--verify-base"]].concat());
    let expected = match version {
        14 => "expected checksums of its files".to_owned(),
        _ => format!("found {still} with another checksum"),
    };
    assert!(refused.code == 3 && refused.stderr.contains(&expected), "{refused:?}");
    assert!(!last.exists());
    let advanced = walden(&arguments);
    assert_eq!(advanced.code, 0, "{advanced:?}");
    if version != 14 {
        let run = verify(&primary, &pg_verifybackup, &last);
        assert!(run.code != 0 && run.stderr.contains(&still), "{run:?}");
    }
    // Other sizes, missing files and a damaged manifest are found without an option.
    let manifest = backup.join("backup_manifest");
    let text_of_manifest = fs::read_to_string(&manifest).unwrap();
    let refused = |expected: &str| {
        for options in
            [&["backup", "advance", text(backup)][..], &["restore", "--base", text(backup), "-o", "x"]]
        {
            let run = walden(&[options, &["--wal", text(&wal)]].concat());
            assert!(run.code == 3 && run.stderr.contains(expected), "{expected}: {run:?}");
        }
    };
    fs::write(&manifest, text_of_manifest.replacen("8192", "8193", 1)).unwrap();
    refused("expected SHA-256");
    fs::write(&manifest, text_of_manifest).unwrap();
    fs::remove_file(backup.join(&busy)).unwrap();
    refused(&format!("found no {busy}"));
    fs::write(backup.join(&still), "x").unwrap();
    refused("and 1 other files that differ");
    Ok(())
}

/// An advanced backup is the oldest one of those that exist, with a manifest and without one.
fn wal_before_an_advanced_backup_is_pruned(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let pg_basebackup = program(&installation, "pg_basebackup")?;
    let primary = Primary::start(&installation, SETTINGS);
    create_tables(&primary);
    base_backup(&primary, &pg_basebackup, &primary.backup, &[]);
    work(&primary, 1);
    primary.checkpoint_and_name("step");
    keep_busy(&mut primary.client("postgres"));
    primary.client("postgres").batch_execute("SELECT pg_create_restore_point('end')").unwrap();
    let mut expected = content(&primary.cluster);
    expected.remove(&("postgres".to_owned(), "counter".to_owned()));
    primary.archive_all();
    let (repo, walden_of_server) = (primary.push_all(), program_for(&primary.cluster));
    for has_manifest in [true, false] {
        let dir = primary.cluster.dir().join(format!("manifest {has_manifest}"));
        let (backups, archive) = (dir.join("backups"), dir.join("repo"));
        let backup = backups.join("main");
        copy_running(&primary.backup, &backup);
        copy_running(&repo, &archive);
        if !has_manifest {
            fs::remove_file(backup.join("backup_manifest")).unwrap();
        }
        let place = ["--repo", text(&archive), "--format", "json"];
        let json = |arguments: &[&str]| -> Value {
            let run = walden(&[arguments, &place].concat());
            assert_eq!(run.code, 0, "{run:?}");
            serde_json::from_str(&run.stdout).unwrap()
        };
        let advanced = json(&["backup", "advance", text(&backup), "--to", "name:step"]);
        assert!(advanced["advanced"]["pages"].as_u64().unwrap() > 0, "{advanced}");
        let label = fs::read_to_string(backup.join("backup_label")).unwrap();
        let (_, first) = label.lines().next().unwrap().split_once("(file ").unwrap();
        let first = first.trim_end_matches(')');
        let prune = ["archive", "prune", "--keep-backups", "1", "--backups", text(&backups), "--apply"];
        let pruned = json(&prune);
        assert!(pruned["removed_objects"].as_u64().unwrap() > 0, "{pruned:#}");
        let listing = json(&["archive", "list"]);
        assert_eq!(listing["timelines"][0]["first_segment"], first, "{listing:#}");
        assert_eq!(json(&prune)["removed_objects"], 0);

        account::chown_all(&dir).unwrap();
        let data = dir.join("data");
        let mut command = Command::new(&walden_of_server);
        command.args(["restore", "--repo", text(&archive), "--base", text(&backup), "-o", text(&data)]);
        let restored = Run::execute(command.args(["--to", "name:end", "--target-action", "promote"]));
        assert_eq!(restored.code, 0, "{restored:?}");
        let server = primary.server_of(&data).start().unwrap_or_else(|error| panic!("{error:#}"));
        wait_until_promoted(&server);
        let mut found = content(&server);
        // WAL has a sequence's values ahead of those that were given out.
        assert!(found.remove(&("postgres".to_owned(), "counter".to_owned())).is_some());
        expect_same_content(&found, &expected);
    }
    Ok(())
}

/// The tar files are unpacked into the new data directory, and tablespaces into their new folders.
fn backups_in_tar_format_are_restored_and_advanced(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let pg_basebackup = program(&installation, "pg_basebackup")?;
    let pg_verifybackup = program(&installation, "pg_verifybackup")?;
    let primary = Primary::start(&installation, SETTINGS);
    create_tables(&primary);
    let mut client = primary.client("postgres");
    let space = primary.cluster.make_folder("space with \\ backslash").unwrap();
    for sql in [
        &format!("CREATE TABLESPACE space LOCATION '{}'", space.display()),
        "CREATE TABLE in_space TABLESPACE space AS SELECT g i, md5(g::text) t FROM generate_series(1, 3000) g",
        "SET allow_in_place_tablespaces = on; CREATE TABLESPACE in_place LOCATION ''",
        "CREATE TABLE in_place TABLESPACE in_place AS SELECT g i FROM generate_series(1, 3000) g",
    ] {
        let statements = sql.split_once("; ");
        statements.iter().for_each(|(set, _)| client.batch_execute(set).unwrap());
        client.batch_execute(statements.map_or(sql, |(_, statement)| statement)).unwrap();
    }
    let compressions: &[(&str, &[&str])] = match version {
        18 => &[("plain", &[]), ("gzip", &["-z"])],
        _ => &[("zstd", &["-Z", "client-zstd:1"]), ("lz4", &["-Z", "client-lz4:1"])],
    };
    let backup = |name: &str| primary.cluster.dir().join(format!("tar_{name}"));
    for (name, options) in compressions {
        base_backup(&primary, &pg_basebackup, &backup(name), &[&["-F", "tar"][..], options].concat());
    }
    work(&primary, 1);
    for sql in [
        "UPDATE in_space SET t = t || 'x' WHERE i % 3 = 0",
        "UPDATE in_place SET i = -i WHERE i % 3 = 0",
        "CHECKPOINT",
        "DELETE FROM in_space WHERE i % 7 = 0",
        "SELECT pg_create_restore_point('end')",
    ] {
        client.batch_execute(sql).unwrap();
    }
    primary.archive_all();
    let mut expected = content(&primary.cluster);
    // WAL has a sequence's values ahead of those that were given out.
    expected.remove(&("postgres".to_owned(), "counter".to_owned()));
    let oid: u32 =
        client.query_one("SELECT oid FROM pg_tablespace WHERE spcname = 'space'", &[]).unwrap().get(0);
    let wal = primary.cluster.archive_dir();
    let start = |data: &Path, new: &Path, settings: &[(&str, &str)]| {
        let link = data.join("pg_tblspc").join(oid.to_string());
        assert_eq!(fs::read_link(&link).unwrap(), new);
        // The lab copies the directory without the link.
        fs::remove_file(&link).unwrap();
        let builder = primary.server_of(data);
        let builder = settings.iter().fold(builder, |builder, (name, value)| builder.setting(name, value));
        let server = builder.start_after(|copy| {
            symlink(new, copy.join("pg_tblspc").join(oid.to_string()))?;
            fs::write(copy.join("recovery.signal"), "")?;
            account::chown_all(new)
        });
        let server = server.unwrap_or_else(|error| panic!("{error:#}"));
        wait_until_promoted(&server);
        let mut found = content(&server);
        found.remove(&("postgres".to_owned(), "counter".to_owned()));
        expect_same_content(&found, &expected);
        amcheck(&server);
    };
    for (name, _) in compressions {
        let base = backup(name);
        let [data, new, later, moved] =
            ["data", "new", "later", "moved"].map(|it| primary.cluster.dir().join(format!("{name} {it}")));
        let mapping = |to: &Path| format!("{}={}", space.display(), to.display());
        let restore = |options: &[&str]| {
            let arguments = ["restore", "--base", text(&base), "--wal", text(&wal), "-o", text(&data)];
            walden(&[&arguments[..], &["--target-action", "promote"], options].concat())
        };
        let unmapped = restore(&[]);
        assert!(
            unmapped.code == 3 && unmapped.stderr.contains("expected a new folder for it"),
            "{unmapped:?}"
        );
        let in_place = walden(&["backup", "advance", text(&base), "--wal", text(&wal)]);
        assert!(in_place.code == 3 && in_place.stderr.contains("to a new folder: -o FOLDER"), "{in_place:?}");
        let restored = restore(&["--verify-base", "--tablespace-mapping", &mapping(&new)]);
        assert_eq!(restored.code, 0, "{restored:?}");
        assert!(!data.join("tablespace_map").exists() && !data.join("pg_wal/archive_status").exists());
        start(&data, &new, &[]);
        let options = ["-o", text(&later), "--tablespace-mapping", &mapping(&moved), "--to", "name:end"];
        advance(&primary, &base, &options);
        expect_verified(&primary, &pg_verifybackup, &later);
        start(&later, &moved, &[("restore_command", &primary.restore_command())]);
    }
    // A tar file that was cut off, and one that is missing.
    let (base, data) = (backup(compressions[0].0), primary.cluster.dir().join("refused"));
    let refused = |expected: &str| {
        let run = walden(&["restore", "--base", text(&base), "--wal", text(&wal), "-o", text(&data)]);
        assert!(run.code == 3 && run.stderr.contains(expected), "{expected}: {run:?}");
        assert!(!data.exists());
    };
    let files = fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().path());
    let of_space =
        files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&oid.to_string()));
    let of_space: Vec<PathBuf> = of_space.collect();
    fs::rename(&of_space[0], of_space[0].with_extension("moved")).unwrap();
    refused("differ");
    fs::remove_file(base.join("backup_manifest")).unwrap();
    refused(&format!("found none of {oid}"));
    Ok(())
}

/// An incremental backup is refused with the remedy, and the result of the remedy is accepted.
fn incremental_backups_are_combined_first(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let pg_basebackup = program(&installation, "pg_basebackup")?;
    let pg_combinebackup = program(&installation, "pg_combinebackup")?;
    let pg_verifybackup = program(&installation, "pg_verifybackup")?;
    let primary = Primary::start(&installation, &[SETTINGS, &[("summarize_wal", "on")]].concat());
    create_tables(&primary);
    let [incremental, tar, combined] =
        ["incremental", "tar", "combined"].map(|name| primary.cluster.dir().join(name));
    base_backup(&primary, &pg_basebackup, &primary.backup, &[]);
    keep_busy(&mut primary.client("postgres"));
    let option = format!("--incremental={}/backup_manifest", primary.backup.display());
    base_backup(&primary, &pg_basebackup, &incremental, &[&option]);
    base_backup(&primary, &pg_basebackup, &tar, &[&option, "-F", "tar"]);
    let arguments = [text(&primary.backup), text(&incremental), "-o", text(&combined)];
    let combining = run(&primary, &pg_combinebackup, &arguments);
    assert_eq!(combining.code, 0, "{combining:?}");
    work(&primary, 1);
    primary.checkpoint_and_name("end");
    primary.archive_all();
    let (wal, data) = (primary.cluster.archive_dir(), primary.cluster.dir().join("refused"));
    for base in [&incremental, &tar] {
        let run = walden(&["restore", "--base", text(base), "--wal", text(&wal), "-o", text(&data)]);
        assert!(run.code == 3 && run.stderr.contains("pg_combinebackup FULL INCREMENTAL"), "{run:?}");
        assert!(!data.exists());
    }
    let repo = primary.push_all();
    let kept = walden(&["backup", "advance", text(&primary.backup), "--repo", text(&repo)]);
    assert!(kept.code == 3 && kept.stderr.contains("2 incremental backups depend on it"), "{kept:?}");
    let rejoined = primary.cluster.dir().join("rejoined");
    let arguments = [text(&primary.backup), text(&incremental), "-o", text(&rejoined)];
    assert_eq!(run(&primary, &pg_combinebackup, &arguments).code, 0);
    advance(&primary, &combined, &[]);
    expect_verified(&primary, &pg_verifybackup, &combined);
    let combined = Primary { cluster: primary.cluster, backup: combined };
    let (data, _) = combined.restore("name:end", "restored");
    let server = combined.server_of(&data).start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(&server);
    let (mut found, mut expected) = (content(&server), content(&combined.cluster));
    for content in [&mut found, &mut expected] {
        content.remove(&("postgres".to_owned(), "counter".to_owned()));
    }
    expect_same_content(&found, &expected);
    Ok(())
}

/// A drill whose copy Walden has rolled forward finds the same content as PostgreSQL alone, with tablespaces
/// and in both formats.
fn a_drill_rolls_its_copy_forward(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let pg_basebackup = program(&installation, "pg_basebackup")?;
    let bin = installation.bin_dir.clone();
    let primary = Primary::start(&installation, SETTINGS);
    create_tables(&primary);
    let mut client = primary.client("postgres");
    let [space, copy] = ["space", "copy of space"].map(|name| primary.cluster.make_folder(name).unwrap());
    for sql in [
        &format!("CREATE TABLESPACE space LOCATION '{}'", space.display()),
        "CREATE TABLE in_space TABLESPACE space AS SELECT g i, md5(g::text) t FROM generate_series(1, 3000) g",
    ] {
        client.batch_execute(sql).unwrap();
    }
    let tar = primary.cluster.dir().join("tar");
    base_backup(&primary, &pg_basebackup, &tar, &["-F", "tar", "-z"]);
    let mapping = format!("--tablespace-mapping={}={}", space.display(), copy.display());
    base_backup(&primary, &pg_basebackup, &primary.backup, &[&mapping]);
    for round in 1..=2 {
        work(&primary, round);
        client.batch_execute("UPDATE in_space SET t = t || 'x' WHERE i % 3 = 0; CHECKPOINT").unwrap();
    }
    keep_busy(&mut client);
    client.batch_execute("SELECT pg_create_restore_point('here')").unwrap();
    keep_busy(&mut client);
    primary.archive_all();
    let repo = primary.push_all();
    let before = [&space, &copy].map(|folder| files_of(folder, &[""]));
    let drill = |base: &Path, options: &[&str]| -> Value {
        let query = "SELECT count(*), md5(string_agg(m::text, ',' ORDER BY i)) FROM main m";
        let spaces = "SELECT count(*), md5(string_agg(t, ',' ORDER BY i)) FROM in_space";
        let arguments =
            ["archive", "drill", "--repo", text(&repo), "--base", text(base), "--bin", text(&bin)];
        let queries = ["--query", query, "--query", spaces, "--format", "json"];
        let run = walden(&[&arguments[..], &queries, options].concat());
        assert_eq!(run.code, 0, "{run:?}");
        serde_json::from_str(&run.stdout).unwrap()
    };
    for target in [&[][..], &["--restore-point", "here"]] {
        let alone = drill(&primary.backup, target);
        assert!(alone["rolled_forward"].is_null(), "{alone}");
        for base in [&primary.backup, &tar] {
            let rolled = drill(base, &[target, &["--roll-forward"]].concat());
            let forward = &rolled["rolled_forward"];
            assert!(forward["redo_lsn"].is_string() && forward["reason"].is_null(), "{rolled}");
            assert!(forward["wal_bytes"].as_u64().unwrap() > 1_000_000, "{rolled}");
            assert_eq!(rolled["checked"], alone["checked"]);
            assert_eq!(rolled["reached_lsn"], alone["reached_lsn"]);
        }
    }
    let after = [&space, &copy].map(|folder| files_of(folder, &[""]));
    assert!(before == after, "a tablespace's own folder has changed");
    // Walden does not know the target of --set: the server replays everything.
    let none = drill(&tar, &["--roll-forward", "--set", "recovery_target_name=here"]);
    assert!(none["rolled_forward"]["redo_lsn"].is_null(), "{none}");
    assert!(none["rolled_forward"]["reason"].as_str().unwrap().contains("--set"), "{none}");
    Ok(())
}
