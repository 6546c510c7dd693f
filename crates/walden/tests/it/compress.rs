//! `walden compress`, `decompress` and `test`: WAL and any other files are restored exactly. Nothing is
//! overwritten, removed or left half-written. From a damaged pack, all undamaged members are extracted.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, RunOptions, Wanted, find_or_install, run_workload, workloads};

use crate::material::{Run, golden, walden, write};

walden_testing::tests! {
    a_servers_log_is_restored_byte_for_byte,
    a_server_recovers_from_a_pack,
    any_file_is_restored_with_name_mode_and_time,
    a_folder_is_compressed_file_by_file,
    a_folder_of_compressed_files_is_decompressed_and_tested,
    a_file_and_a_pack_have_a_level_each,
    the_help_has_all_levels,
    existing_files_stay_unless_forced,
    standard_output_has_files_in_order_whatever_the_number_of_threads,
    files_of_one_name_do_not_replace_each_other,
    a_pipe_is_not_waited_for,
    a_missing_file_fails_and_the_others_are_compressed,
    undamaged_members_of_a_damaged_pack_are_decoded,
    members_before_the_end_of_a_truncated_pack_are_decoded,
    names_of_members_cannot_leave_the_output_folder,
    links_below_the_output_folder_are_not_followed,
    members_of_one_name_are_refused,
    other_files_are_refused_by_name,
    segments_missing_between_those_of_a_pack_are_named,
    a_segment_that_is_damaged_at_its_start_is_not_missing_in_a_pack,
    golden_clusters_compress_to_no_more_than_before,
    an_interrupt_leaves_no_partial_file,
    statistics_count_each_byte_of_a_file_once,
    the_same_output_again_is_no_error,
    standard_input_goes_to_standard_output,
    links_to_segments_are_followed,
    leftovers_are_removed_and_never_packed,
    clusters_in_one_pack_are_kept_apart,
    files_that_need_more_than_allowed_are_refused,
}

/// Runs the program with these words, in which paths replace `{}`.
fn run(words: &str, paths: &[&Path]) -> Run {
    let mut paths = paths.iter();
    let words: Vec<PathBuf> = words
        .split_whitespace()
        .map(|word| match word.strip_suffix("{}") {
            Some("") => paths.next().unwrap().to_path_buf(),
            Some(before) => format!("{before}{}", paths.next().unwrap().display()).into(),
            None => word.into(),
        })
        .collect();
    assert!(paths.next().is_none());
    let run = walden(&words);
    run.assert_no_panic();
    run
}

/// Like [`run`], but expects success and nothing on standard error.
fn done(words: &str, paths: &[&Path]) -> String {
    let run = run(words, paths);
    assert!(run.code == 0 && run.stderr.is_empty(), "{words}: {run:?}");
    run.stdout
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns all files below a folder, by relative path.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = PathBuf::from(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|(below, bytes)| (name.join(below), bytes)));
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    found
}

fn assert_same(found: &Path, expected: &Path) {
    let (found, expected) = (files(found), files(expected));
    assert!(found.keys().eq(expected.keys()), "{:?} {:?}", found.keys(), expected.keys());
    for (name, bytes) in expected {
        assert!(found[&name] == bytes, "{} came back otherwise", name.display());
    }
}

/// Creates an archive with consecutive segments, and other typical files.
fn archive(folder: &Path) -> PathBuf {
    let archive = folder.join("archive");
    for (name, segment) in golden("18.6") {
        write(&archive, &name, &segment);
    }
    let (name, partial) = golden("17.11").pop_last().unwrap();
    write(&archive, &format!("{name}.partial"), &partial);
    write(&archive, "00000002.history", b"1\t0/C000000\tno recovery target specified\n");
    write(&archive, "deep/er/00000001000000000000000A.00000028.backup", b"START WAL LOCATION: 0/A000028\n");
    write(&archive, "empty", b"");
    write(&archive, "archive_status/00000001000000000000000A.done", b"");
    archive
}

/// Creates the same archive without the files that compress ignores.
fn archive_without_status(folder: &Path) -> PathBuf {
    let archive = archive(folder);
    fs::remove_dir_all(archive.join("archive_status")).unwrap();
    archive
}

/// A server's WAL is restored from both forms at every level, also member by member.
fn a_servers_log_is_restored_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let mut options = RunOptions::new(workloads::by_name("mixed").unwrap(), &output);
    options.installation = Some(find_or_install("18".parse().unwrap()).unwrap());
    options.size = Some(400);
    options.wal_segsize_mb = Some(1);
    run_workload(options, &mut |_| Ok(())).unwrap();
    let wal = output.join("wal");
    let names: Vec<PathBuf> = files(&wal).into_keys().collect();
    assert!(names.len() > 4, "{names:?}");
    // In a debug build, the highest level takes minutes for all of the WAL.
    let [smallest, back] = ["smallest.wpk", "from-smallest"].map(|name| folder.path().join(name));
    let two = [&names[0], &names[1]].map(|name| wal.join(name));
    done("compress -9 --pack={} {} {}", &[&smallest, &two[0], &two[1]]);
    done("decompress -o {} {}", &[&back, &smallest]);
    for (name, file) in names.iter().zip(&two) {
        assert!(fs::read(back.join(name)).unwrap() == fs::read(file).unwrap());
    }
    for level in ["-1", "-5"] {
        let [single, pack, back, back_from_pack] =
            ["single", "pack.wpk", "back", "back-from-pack"].map(|name| folder.path().join(level).join(name));
        let made = json(&done(&format!("compress {level} --format json -o {{}} {{}}"), &[&single, &wal]));
        assert_eq!(made["files"], names.len() as u64);
        for made in made["outputs"].as_array().unwrap() {
            assert_eq!(made["members"][0]["form"], "records", "{made}");
        }
        let packed = json(&done(
            &format!("compress {level} --format json --keyframe 3MB --pack={{}} {{}}"),
            &[&pack, &wal],
        ));
        let keyframes: Vec<usize> = packed["outputs"][0]["members"]
            .as_array()
            .unwrap()
            .iter()
            .enumerate()
            .filter(|(_, member)| member["keyframe"] == true)
            .map(|(number, _)| number)
            .collect();
        assert_eq!(keyframes, (0..names.len()).step_by(3).collect::<Vec<_>>());

        // Shared data makes the pack smaller if there are more segments between keyframes.
        let shared = folder.path().join(level).join("shared.wpk");
        let shared =
            json(&done(&format!("compress {level} --format json --pack={{}} {{}}"), &[&shared, &wal]));
        let [shared, single_bytes] = [&shared, &made].map(|json| json["compressed_bytes"].as_u64().unwrap());
        assert!(shared < single_bytes, "{level}: {shared} in a pack, {single_bytes} one by one");

        let compressed: Vec<PathBuf> = files(&single).into_keys().map(|name| single.join(name)).collect();
        for compressed in &compressed {
            done("decompress -o {} {}", &[&back, compressed]);
        }
        assert_same(&back, &wal);
        done("decompress -o {} {}", &[&back_from_pack, &pack]);
        assert_same(&back_from_pack, &wal);

        let tested = json(&done("test --format json {} {}", &[&pack, &compressed[0]]));
        assert_eq!((&tested["files"][0]["good"], &tested["files"][1]["good"]), (&true.into(), &true.into()));
        assert_eq!(tested["members"], names.len() as u64 + 1);
        // A member that is no keyframe.
        let member = folder.path().join(level).join("member");
        done("decompress --member {} -o {} {}", &[&names[4], &member, &pack]);
        assert!(
            files(&member) == BTreeMap::from([(names[4].clone(), fs::read(wal.join(&names[4])).unwrap())])
        );
    }
}

/// A server that fetches segments individually from a pack, as with a `restore_command`, recovers everything
/// that was committed.
fn a_server_recovers_from_a_pack() {
    let folder = tempfile::tempdir().unwrap();
    let installation = find_or_install(Wanted::Major(18)).unwrap();
    let output = folder.path().join("run");
    let mut counted = 0_i64;
    let options = RunOptions {
        size: Some(2000),
        installation: Some(installation.clone()),
        wal_segsize_mb: Some(1),
        keep_data: true,
        ..RunOptions::new(workloads::by_name("oltp").unwrap(), &output)
    };
    run_workload(options, &mut |cluster| {
        counted = history(cluster);
        Ok(())
    })
    .unwrap();
    assert!(counted >= 2000);
    let (wal, pack) = (output.join("wal"), folder.path().join("log.wpk"));
    done("compress --pack={} {}", &[&pack, &wal]);
    let names: Vec<PathBuf> = files(&wal).into_keys().collect();
    assert!(names.len() > 3, "{names:?}");
    fs::remove_dir_all(&wal).unwrap();

    let fetched = folder.path().join("fetched");
    let cluster = ClusterBuilder::new(installation)
        .copy_of(&output.join("base"))
        .setting("restore_command", "false")
        .setting("hot_standby", "off")
        .start_after(|data| {
            for name in &names {
                done("decompress --member {} -o {} {}", &[name, &fetched, &pack]);
                fs::copy(fetched.join(name), data.join("pg_wal").join(name))?;
            }
            fs::write(data.join("recovery.signal"), "")?;
            Ok(())
        })
        .unwrap();
    assert_eq!(history(&cluster), counted);
}

fn history(cluster: &Cluster) -> i64 {
    let mut client = cluster.client("postgres").unwrap();
    client.query_one("SELECT count(*) FROM pgbench_history", &[]).unwrap().get(0)
}

fn any_file_is_restored_with_name_mode_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let long_ago = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for (name, mode) in [("empty", 0o644), ("00000002.history", 0o400), ("00000001000000000000000A", 0o600)] {
        let file = fs::File::options().append(true).open(archive.join(name)).unwrap();
        file.set_modified(long_ago).unwrap();
        fs::set_permissions(archive.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let pack = folder.path().join("pack");
    done("compress --pack -o {} {}", &[&pack, &archive]);
    // Segments first, then other files by name.
    let name = "00000001000000000000000A-00000001000000000000000C.wpk";
    assert!(files(&pack).keys().eq([Path::new(name)]));
    let back = folder.path().join("back");
    done("decompress -o {} {}", &[&back, &pack.join(name)]);
    assert_same(&back, &archive);
    for name in ["empty", "00000002.history", "00000001000000000000000A"] {
        let [then, now] = [&archive, &back].map(|folder| fs::metadata(folder.join(name)).unwrap());
        assert_eq!(now.modified().unwrap(), long_ago, "{name}");
        assert_eq!(now.permissions(), then.permissions(), "{name}");
    }
}

fn a_folder_is_compressed_file_by_file() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let before = files(&archive);
    // Compressed files are written next to their originals. The server's archive status files are not WAL.
    let made = json(&done("compress --format json {}", &[&archive]));
    assert_eq!(made["files"], before.len() as u64 - 1);
    let after = files(&archive);
    assert_eq!(after.len(), 2 * before.len() - 1);
    assert!(before.iter().all(|(name, bytes)| after[name] == *bytes));
    // Compressed files are not compressed again, and existing identical output is no error.
    done("compress {}", &[&archive]);
    assert!(files(&archive) == after);
    // Output never overwrites a file made from another original, or in another way.
    let empty = archive.join("empty");
    let modified = fs::metadata(&empty).unwrap().modified().unwrap();
    fs::write(&empty, "no more").unwrap();
    for level in ["-3", "-1"] {
        let again = run(&format!("compress {level} {{}}"), &[&archive]);
        let expected = if level == "-3" { 1 } else { before.len() - 1 };
        assert_eq!((again.code, again.errors().len()), (2, expected), "{again:?}");
        assert!(
            again.errors().iter().all(|error| error.contains("exists already") && error.contains("--force"))
        );
    }
    fs::write(&empty, "").unwrap();
    fs::File::options().append(true).open(&empty).unwrap().set_modified(modified).unwrap();
    assert!(files(&archive) == after);
    // With --rm, only the compressed files remain, and decompress restores the originals next to them.
    done("compress --rm --force {}", &[&archive]);
    let left = files(&archive);
    assert!(
        left.keys().all(|name| name.extension().is_some_and(|ending| ending == "wlz" || ending == "done"))
    );
    for name in left.keys().filter(|name| name.extension().is_some_and(|ending| ending == "wlz")) {
        done("decompress {}", &[&archive.join(name)]);
    }
    assert!(files(&archive) == after);
}

fn a_folder_of_compressed_files_is_decompressed_and_tested() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let [single, packs, empty] = ["single", "packs", "empty"].map(|name| folder.path().join(name));
    done("compress -o {} {}", &[&single, &archive]);
    done("compress --pack -o {} {}", &[&packs, &archive]);
    for compressed in [&single, &packs] {
        let names = files(compressed);
        // A file of another program is ignored.
        write(compressed, "README", b"compressed on Monday");
        let back = compressed.with_extension("back");
        done("decompress -o {} {}", &[&back, compressed]);
        assert_same(&back, &archive);
        let tested = json(&done("test --format json {}", &[compressed]));
        assert_eq!(tested["files"].as_array().unwrap().len(), names.len());
        assert_eq!(tested["members"], files(&archive).len());
        let again = run("compress -o {} {}", &[&compressed.with_extension("again"), compressed]);
        let warning = format!("warning: left out {} compressed file", names.len());
        assert!(again.code == 0 && again.stderr.contains(&warning), "{again:?}");
    }
    // Without an output folder, files are restored next to the compressed files.
    done("decompress {}", &[&single]);
    assert!(files(&archive).iter().all(|(name, bytes)| fs::read(single.join(name)).unwrap() == *bytes));
    fs::create_dir(&empty).unwrap();
    for words in ["decompress {} {}", "test {} {}"] {
        let failed = run(words, &[&empty, &packs]);
        assert!(failed.code == 3 && failed.errors().len() == 1, "{failed:?}");
        assert!(
            failed.errors()[0].contains("expected .wlz or .wpk files in the folder, found none"),
            "{failed:?}"
        );
    }
}

/// The default level depends on the form, and the file states it.
fn a_file_and_a_pack_have_a_level_each() {
    const LEVEL: usize = 13;
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let [single, pack] = ["single", "pack.wpk"].map(|name| folder.path().join(name));
    for (words, path, level) in [
        ("compress -o {} {}", &single, 3),
        ("compress --force -1 -o {} {}", &single, 1),
        ("compress --pack={} {}", &pack, 6),
        ("compress --force -4 --pack={} {}", &pack, 4),
    ] {
        done(words, &[path, &archive]);
        let made =
            if path.is_dir() { files(path) } else { [(pack.clone(), fs::read(&pack).unwrap())].into() };
        assert!(!made.is_empty() && made.values().all(|bytes| bytes[LEVEL] == level), "{words}");
    }
}

fn the_help_has_all_levels() {
    let help = done("compress --help", &[]);
    assert!(help.contains("1 (fast) to 9 (small), also as -1 to -9"), "{help}");
    let folder = tempfile::tempdir().unwrap();
    let history = write(folder.path(), "00000002.history", b"one");
    for level in 1..=9 {
        done(&format!("compress --force -{level} {{}}"), &[&history]);
        done(&format!("compress --force --level {level} {{}}"), &[&history]);
    }
}

fn existing_files_stay_unless_forced() {
    let folder = tempfile::tempdir().unwrap();
    let history = write(folder.path(), "00000002.history", b"one");
    let compressed = folder.path().join("00000002.history.wlz");
    done("compress {}", &[&history]);
    fs::write(&history, "another").unwrap();
    let refused = run("decompress {}", &[&compressed]);
    assert!(refused.code == 2 && refused.errors()[0].contains("exists already"), "{refused:?}");
    assert_eq!(fs::read(&history).unwrap(), b"another");
    done("decompress --force {}", &[&compressed]);
    assert_eq!(fs::read(&history).unwrap(), b"one");
    let pack = folder.path().join("a.wpk");
    done("compress --pack={} {}", &[&pack, &history]);
    let before = fs::read(&pack).unwrap();
    fs::write(&history, "two").unwrap();
    assert_eq!(run("compress --pack={} {}", &[&pack, &history]).code, 2);
    assert_eq!(fs::read(&pack).unwrap(), before);
    done("compress --force --pack={} {}", &[&pack, &history]);
    assert_eq!(done("decompress --stdout {}", &[&pack]), "two");
    // No temporary files remain.
    assert_eq!(files(folder.path()).len(), 3);
}

fn standard_output_has_files_in_order_whatever_the_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let mut originals: Vec<Vec<u8>> = golden("18.6").into_values().collect();
    originals.extend((0..20).map(|number| format!("{number} ").repeat(number * 1000).into_bytes()));
    let out = folder.path().join("out");
    let compressed: Vec<PathBuf> = (10..)
        .zip(&originals)
        .map(|(number, original)| {
            let path = write(folder.path(), &number.to_string(), original);
            done("compress -o {} {}", &[&out, &path]);
            out.join(format!("{number}.wlz"))
        })
        .collect();
    let decompress = |threads: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        command.args(["decompress", "--stdout", "--threads", threads]).args(&compressed).output().unwrap()
    };
    for threads in ["1", "2", "5"] {
        let run = decompress(threads);
        assert!(
            run.status.success() && run.stdout == originals.concat(),
            "{threads} threads: {:?}",
            run.status
        );
    }
    // An unreadable file does not affect the others.
    fs::write(&compressed[7], "nothing of ours").unwrap();
    let run = decompress("4");
    let others = [originals[..7].concat(), originals[8..].concat()].concat();
    assert!(run.status.code() == Some(3) && run.stdout == others, "{:?}", run.status);
    // A full output is reported once.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
    let run = command.args(["decompress", "--stdout"]).args(&compressed[8..]).stdout(full).output().unwrap();
    let reported = String::from_utf8(run.stderr).unwrap();
    assert!(run.status.code() == Some(3) && reported.matches("error:").count() == 1, "{reported}");
    assert!(reported.contains("write to standard output: No space left"), "{reported}");
}

fn files_of_one_name_do_not_replace_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) =
        (write(&folder.path().join("a"), "x", b"one"), write(&folder.path().join("b"), "x", b"two"));
    let (out, back) = (folder.path().join("out"), folder.path().join("back"));
    // The second original is kept, even with options to replace files and remove originals.
    let run_twice = |threads: &str| {
        run(&format!("compress --force --rm --threads {threads} -o {{}} {{}} {{}}"), &[&out, &one, &two])
    };
    let first = run_twice("1");
    assert!(first.code == 3 && first.errors().len() == 1, "{first:?}");
    assert!(
        first.errors()[0].contains("out/x.wlz twice: the output of another of these files has this path"),
        "{first:?}"
    );
    assert!(!one.exists() && fs::read(&two).unwrap() == b"two");
    assert_eq!(done("decompress --stdout {}", &[&out.join("x.wlz")]), "one");
    fs::write(&one, "one").unwrap();
    let both = run_twice("2");
    assert!(both.code == 3 && [&one, &two].iter().filter(|path| path.exists()).count() == 1, "{both:?}");
    let left = if one.exists() { "two" } else { "one" };
    assert_eq!(done("decompress --stdout {}", &[&out.join("x.wlz")]), left);
    // Decompression refuses this too.
    let names = ["a", "b"].map(|name| folder.path().join(name).join("x.wlz"));
    for (name, content) in names.iter().zip(["one", "two"]) {
        let original = write(name.parent().unwrap(), "x", content.as_bytes());
        done("compress {}", &[&original]);
    }
    let failed = run("decompress --force --threads 1 -o {} {} {}", &[&back, &names[0], &names[1]]);
    assert!(failed.code == 3 && failed.errors().len() == 1, "{failed:?}");
    assert_eq!(fs::read(back.join("x")).unwrap(), b"one");
    // Compressed files are refused when named explicitly.
    let again = run("compress {} {}", &[&names[0], &names[1]]);
    assert!(
        again.code == 3 && again.errors()[1].contains("b/x.wlz: it is a compressed file already"),
        "{again:?}"
    );
    assert!(!folder.path().join("a/x.wlz.wlz").exists());
}

fn a_pipe_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("000000010000000000000001");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for command in ["compress", "decompress", "test", "explain", "whatif", "redo check", "redo replay"] {
        let refused = run(&format!("{command} {{}}"), &[&pipe]);
        assert!(refused.code == 3 && refused.errors().len() == 1, "{command}: {refused:?}");
    }
    let explained = run("explain {}", &[&pipe]);
    assert!(
        explained.errors()[0].contains("a pipe or device, and segments are read more than once"),
        "{explained:?}"
    );
    for command in ["explain", "whatif", "redo check"] {
        let refused = run(&format!("{command} -"), &[]);
        assert!(refused.code == 2, "{command}: {refused:?}");
        assert!(refused.errors()[0].contains("from standard input (-)"), "{command}: {refused:?}");
    }
    // Among segments, it is ignored.
    for (name, segment) in golden("18.6") {
        write(folder.path(), &name, &segment);
    }
    assert_eq!(run("explain {}", &[folder.path()]).code, 0);
    assert_eq!(run("compress {}", &[folder.path()]).code, 0);
}

fn a_missing_file_fails_and_the_others_are_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let there = write(folder.path(), "there", b"there");
    let missing = folder.path().join("missing");
    let failed = run("compress --rm {} {}", &[&missing, &there]);
    assert!(
        failed.code == 3 && failed.errors().len() == 1 && failed.errors()[0].contains("missing"),
        "{failed:?}"
    );
    assert!(!there.exists() && folder.path().join("there.wlz").exists());
    // A pack without some of the requested files would be a trap.
    let there = write(folder.path(), "there", b"there");
    let pack = folder.path().join("a.wpk");
    let failed = run("compress --rm --pack={} {} {}", &[&pack, &there, &missing]);
    assert!(failed.code == 3 && !pack.exists() && there.exists(), "{failed:?}");
    assert!(failed.stderr.contains("hint: check the name"), "{failed:?}");
    // The pack's name is easily mistaken for an input file.
    let failed = run("compress --pack {} {}", &[&pack, &there]);
    assert!(
        failed.code == 3 && failed.errors()[0].contains(&format!("--pack={}", pack.display())),
        "{failed:?}"
    );
    // Without an error, naming the wrong folder would look like success.
    let empty = tempfile::tempdir().unwrap();
    let failed = run("compress {}", &[empty.path()]);
    assert!(
        failed.code == 3 && failed.errors()[0].contains("expected files in the folder, found none"),
        "{failed:?}"
    );
}

/// Flips one bit in the second of three dependent members, which precede a keyframe. That member and those up
/// to the keyframe are lost.
fn undamaged_members_of_a_damaged_pack_are_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let pack = folder.path().join("a.wpk");
    let made = json(&done("compress -1 --format json --pack={} {}", &[&pack, &archive]));
    let first = made["outputs"][0]["members"][0]["compressed_bytes"].as_u64().unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    bytes[first as usize + 32 + 250] ^= 4;
    fs::write(&pack, bytes).unwrap();

    let test = run("test {}", &[&pack]);
    assert_eq!(test.code, 1, "{test:?}");
    let [error] = test.errors()[..] else { panic!("{test:?}") };
    for word in ["a.wpk", "member 00000001000000000000000B", "a piece at offset", "expected CRC-32C", "found"]
    {
        assert!(error.contains(word), "no \"{word}\" in: {error}");
    }
    let back = folder.path().join("back");
    let refused = run("decompress -o {} {}", &[&back, &pack]);
    assert!(refused.code == 3 && refused.stderr.contains("--salvage"), "{refused:?}");
    let salvaged = run("decompress --salvage --force -o {} {}", &[&back, &pack]);
    assert_eq!(salvaged.code, 1, "{salvaged:?}");
    let lost: Vec<&str> = salvaged.stderr.lines().filter(|line| line.starts_with("lost:")).collect();
    assert_eq!(lost.len(), 2, "{salvaged:?}");
    assert!(lost[0].contains("0B, LSN 0/00B00000 to 0/00C00000 of timeline 1"), "{lost:?}");
    assert!(
        lost[1].contains("0C, LSN 0/00C00000 to 0/00D00000") && lost[1].contains("not damaged itself"),
        "{lost:?}"
    );
    for name in ["00000001000000000000000B", "00000001000000000000000C"] {
        fs::remove_file(archive.join(name)).unwrap();
    }
    assert_same(&back, &archive);
}

fn members_before_the_end_of_a_truncated_pack_are_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let pack = folder.path().join("a.wpk");
    done("compress -1 --pack={} {}", &[&pack, &archive]);
    let whole = fs::read(&pack).unwrap();
    let expected = files(&archive);
    for step in 0..10 {
        let cut = whole.len() * (step + 1) / 11;
        fs::write(&pack, &whole[..cut]).unwrap();
        let back = folder.path().join(step.to_string());
        let salvaged = run("decompress --salvage -o {} {}", &[&back, &pack]);
        assert!([1, 3].contains(&salvaged.code) && salvaged.stderr.contains("a.wpk"), "{salvaged:?}");
        let found = if back.exists() { files(&back) } else { BTreeMap::new() };
        assert!(found.iter().all(|(name, bytes)| expected[name] == *bytes), "cut at {cut}");
        assert_eq!(run("test --list {}", &[&pack]).code, 1);
    }
}

fn names_of_members_cannot_leave_the_output_folder() {
    use walden_codec::container::{FileForm, Meta, WriteOptions, Writer};

    let folder = tempfile::tempdir().unwrap();
    for name in ["../outside", "/tmp/outside", "a/../../outside", "a//b", "a/.", "", ".", "nul\0"] {
        let options = WriteOptions::with_level(FileForm::Pack, 1);
        let mut writer = Writer::new(Vec::new(), options);
        let meta = Meta { name: name.into(), ..Meta::default() };
        writer.add(meta, false, &mut Cursor::new(b"content")).unwrap();
        let pack = write(folder.path(), "hostile.wpk", &writer.finish().unwrap());
        for salvage in ["", "--salvage"] {
            let refused =
                run(&format!("decompress {salvage} -o {{}} {{}}"), &[&folder.path().join("in"), &pack]);
            assert!(refused.code == 3 && refused.stderr.contains("leads elsewhere"), "{name}: {refused:?}");
            assert_eq!(files(folder.path()).len(), 1, "{name}");
        }
    }
}

fn links_below_the_output_folder_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output, elsewhere] = ["in", "out", "elsewhere"].map(|name| folder.path().join(name));
    write(&input.join("a/b"), "file", b"content");
    let pack = folder.path().join("a.wpk");
    done("compress --pack={} {}", &[&pack, &input]);
    fs::create_dir_all(&elsewhere).unwrap();
    fs::create_dir_all(&output).unwrap();
    std::os::unix::fs::symlink(&elsewhere, output.join("a")).unwrap();
    for options in ["", "--salvage", "--force"] {
        let refused = run(&format!("decompress {options} -o {{}} {{}}"), &[&output, &pack]);
        assert!(refused.code == 3 && refused.stderr.contains("is a link to another folder"), "{refused:?}");
        assert!(files(&elsewhere).is_empty());
    }
    for options in ["", "--force"] {
        let refused = run(&format!("compress {options} -o {{}} {{}}"), &[&output, &input]);
        assert!(refused.code == 3 && refused.stderr.contains("is a link to another folder"), "{refused:?}");
        assert!(files(&elsewhere).is_empty());
    }
    // The folder itself may be a link.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    done("decompress -o {} {}", &[&link, &pack]);
    assert_eq!(fs::read(elsewhere.join("a/b/file")).unwrap(), b"content");
}

fn members_of_one_name_are_refused() {
    use walden_codec::container::{FileForm, Meta, WriteOptions, Writer};

    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(Vec::new(), WriteOptions::with_level(FileForm::Pack, 1));
    for content in [b"one", b"two"] {
        let meta = Meta { name: b"same".to_vec(), ..Meta::default() };
        writer.add(meta, false, &mut Cursor::new(content)).unwrap();
    }
    let pack = write(folder.path(), "same.wpk", &writer.finish().unwrap());
    for (command, code) in [("test", 1), ("test --list", 1), ("decompress --force", 3)] {
        let refused = run(&format!("{command} {{}}"), &[&pack]);
        let text = "expected members with different names, found two named same";
        assert!(refused.code == code && refused.stderr.contains(text), "{refused:?}");
    }
    assert_eq!(files(folder.path()).len(), 1);
}

fn other_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "file", b"anything else");
    for command in ["decompress", "test", "test --list", "decompress --salvage"] {
        let refused = run(&format!("{command} {{}}"), &[&file]);
        assert!(
            refused.code == 3 && refused.errors()[0].contains("not made by walden compress"),
            "{refused:?}"
        );
    }
    let segment = folder.path().join("file.wlz");
    done("compress {}", &[&file]);
    let no_member = run("decompress --member other {}", &[&segment]);
    assert!(
        no_member.code == 3 && no_member.errors()[0].contains("no member other; it has file"),
        "{no_member:?}"
    );
    for usage in [
        "compress",
        "compress -0 {}",
        "compress -1 -9 {}",
        "compress --keyframe 2MB {}",
        "compress --rm --no-verify {}",
        // One folder would have to be ignored, or be nested in the other.
        "compress -o out --pack=out/a.wpk {}",
        "compress --pack=a {}",
        "compress --pack=a.pack {}",
        "compress -o out --pack=.wpk {}",
    ] {
        let paths: &[&Path] = if usage.contains("{}") { &[&file] } else { &[] };
        assert_eq!(run(usage, paths).code, 2, "{usage}");
    }
    // With another extension, the pack would not be found in a folder.
    let unnamed = run("compress --pack={} {}", &[&folder.path().join("march"), &file]);
    let right = format!("--pack={}", folder.path().join("march.wpk").display());
    assert!(unnamed.code == 2 && unnamed.stderr.contains(&right), "{unnamed:?}");
    assert_eq!(files(folder.path()).len(), 2);
}

/// A pack of non-consecutive segments is created, and the missing segments are reported.
fn segments_missing_between_those_of_a_pack_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let missing = "00000001000000000000000B";
    fs::remove_file(archive.join(missing)).unwrap();
    let [pack, back] = ["a.wpk", "back"].map(|name| folder.path().join(name));
    let made = run("compress -1 --pack={} {}", &[&pack, &archive]);
    assert!(made.code == 0, "{made:?}");
    assert_eq!(made.stderr, format!("warning: segment {missing} is missing in the pack\n"));
    done("decompress -o {} {}", &[&back, &pack]);
    assert_same(&back, &archive);
}

/// The segment follows the others, coded as bytes, and is restored exactly.
fn a_segment_that_is_damaged_at_its_start_is_not_missing_in_a_pack() {
    let folder = tempfile::tempdir().unwrap();
    let wal = folder.path().join("wal");
    let mut segments = golden("18.6");
    let names: Vec<String> = segments.keys().cloned().collect();
    // Sets flags that no page has.
    segments.get_mut(&names[1]).unwrap()[3] = 0xFF;
    for (name, content) in &segments {
        write(&wal, name, content);
    }
    let [out, single, back] = ["out", "single", "back"].map(|name| folder.path().join(name));
    let made = run("compress -1 --pack -o {} {}", &[&out, &wal]);
    assert!(made.code == 0, "{made:?}");
    let note = format!(
        "note: {}: stored as bytes: damaged at its first page: expected page flags that this version has, found FF02\n",
        wal.join(&names[1]).display()
    );
    assert_eq!(made.stderr, note);
    let pack = format!("{}-{}.wpk", names[0], names[2]);
    assert!(files(&out).keys().eq([Path::new(&pack)]));
    done("decompress -o {} {}", &[&back, &out.join(&pack)]);
    assert_same(&back, &wal);
    let alone = run("compress -1 -o {} {}", &[&single, &wal]);
    assert!(alone.code == 0 && alone.stderr == note, "{alone:?}");
}

/// A change that makes files larger must be noticed; `xz -2` compresses these segments to 139,576 bytes. A
/// file's size varies by some bytes with its folder's name and times.
fn golden_clusters_compress_to_no_more_than_before() {
    let folder = tempfile::tempdir().unwrap();
    let wal = folder.path().join("wal");
    for (name, content) in golden("18.6") {
        write(&wal, &name, &content);
    }
    let rows = [("-1", 91_200), ("-3", 90_600), ("-6", 82_900), ("-9", 69_700), ("--pack", 82_200)];
    for (options, most) in rows {
        let out = folder.path().join(format!("out{options}"));
        let reported = json(&done(&format!("compress --format json {options} -o {{}} {{}}"), &[&out, &wal]));
        let bytes = files(&out).values().map(|file| file.len() as u64).sum::<u64>();
        assert_eq!(reported["compressed_bytes"].as_u64(), Some(bytes), "{options}");
        assert!(most / 20 * 19 < bytes && bytes <= most, "{options}: {bytes} bytes, {most} at most");
    }
}

fn statistics_count_each_byte_of_a_file_once() {
    let folder = tempfile::tempdir().unwrap();
    let wal = folder.path().join("wal");
    for (name, content) in golden("18.6") {
        write(&wal, &name, &content);
    }
    write(&wal, "notes", b"no segment");
    let pack = folder.path().join("golden.wpk");
    done("compress --pack={} {}", &[&pack, &wal]);
    let found = json(&done("test --stats --format json {}", &[&pack]));
    let bytes = |value: &Value, name: &str| value[name].as_u64().unwrap();
    let sum = |name: &str| -> u64 {
        found[name].as_array().unwrap().iter().map(|row| bytes(row, "stored_bytes")).sum()
    };
    assert_eq!(sum("classes"), sum("relations"));
    let others = ["column_directory", "not_in_columns"].map(|name| bytes(&found[name], "stored_bytes"));
    let whole = sum("classes") + others.iter().sum::<u64>() + bytes(&found, "container_bytes");
    assert_eq!(whole, pack.metadata().unwrap().len());
    assert_eq!(bytes(&found, "compressed_bytes"), whole);
    assert!(others[1] > 0, "a file that is no segment");
    let text = done("test --stats {}", &[&pack]);
    for word in ["column class", "relation", "1663/", "no relation", "container", "total"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(text.contains("1 members stored as bytes:\n  notes: no segment: "), "{text}");
    let reasons = found["files"][0]["as_bytes"].as_array().unwrap();
    assert_eq!((reasons.len(), &reasons[0]["name"]), (1, &Value::from("notes")));
}

/// A signal during writing leaves no partial file.
fn an_interrupt_leaves_no_partial_file() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    fs::File::create(&large).unwrap().set_len(16 << 30).unwrap();
    let output = folder.path().join("output");
    let mut child = Command::new(env!("CARGO_BIN_EXE_walden"))
        .args(["compress", "-9", "-o"])
        .args([&output, &large])
        .spawn()
        .unwrap();
    let started = Instant::now();
    while !output.exists() || files(&output).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(files(&output).is_empty() && large.exists());
}

/// Needed by an `archive_command` that is repeated after a crash.
fn the_same_output_again_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let [out, pack, back] = ["out", "a.wpk", "back"].map(|name| folder.path().join(name));
    for _ in 0..2 {
        done("compress -o {} {}", &[&out, &archive]);
        done("compress --pack={} {}", &[&pack, &archive]);
        done("decompress -o {} {}", &[&back, &pack]);
    }
    let before = files(folder.path());
    // Other content of the same size.
    let history = archive.join("00000002.history");
    let other = fs::read(&history).unwrap().to_ascii_uppercase();
    fs::write(&history, &other).unwrap();
    fs::write(back.join("00000002.history"), &other).unwrap();
    for (words, paths) in [
        ("compress -o {} {}", [&out, &history]),
        ("compress --pack={} {}", [&pack, &archive]),
        ("decompress -o {} {}", [&back, &pack]),
    ] {
        let refused = run(words, &paths.map(PathBuf::as_path));
        assert!(refused.code == 2 && refused.errors()[0].contains("exists already"), "{words}: {refused:?}");
    }
    let after = files(folder.path());
    assert!(before.keys().eq(after.keys()), "no temporary files");
    let changed = before.iter().filter(|(name, bytes)| after[*name] != **bytes).count();
    assert_eq!(changed, 2, "only the files that the test has written");
    // Existing identical output suffices to remove the original.
    fs::write(&history, b"1\t0/C000000\tno recovery target specified\n").unwrap();
    let segment = archive.join("00000001000000000000000A");
    done("compress --rm -o {} {}", &[&out, &segment]);
    assert!(!segment.exists());
}

fn standard_input_goes_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let piped = |arguments: &[&str], input: &[u8]| {
        let path = write(folder.path(), "input", input);
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        let run = command.args(arguments).stdin(fs::File::open(path).unwrap()).output().unwrap();
        (run.status.code(), run.stdout, String::from_utf8(run.stderr).unwrap())
    };
    for original in golden("18.6").into_values().chain([Vec::new(), b"a text".repeat(1000)]) {
        let (code, compressed, said) = piped(&["compress", "-"], &original);
        assert_eq!((code, said.as_str()), (Some(0), ""));
        assert!(compressed.len() < original.len() / 5 || original.is_empty());
        assert!(piped(&["decompress", "-"], &compressed) == (Some(0), original, String::new()));
        assert_eq!(piped(&["test", "-"], &compressed).0, Some(0));
        let cut = &compressed[..compressed.len() - 1];
        let (code, _, said) = piped(&["decompress", "-"], cut);
        assert!(code == Some(3) && said.contains("standard input: "), "{said}");
        let (code, _, said) = piped(&["test", "-"], cut);
        assert!(code == Some(1) && said.contains("save it to a file first"), "{said}");
    }
    for command in ["test", "decompress"] {
        let (code, _, said) = piped(&[command, "-"], b"");
        assert!(code == Some(3) && said.contains("found an empty file"), "{said}");
    }
    for (option, value, reason) in
        [("--format", "json", "with --format"), ("--memory", "10MB", "at least 54MB")]
    {
        let (code, _, said) = piped(&["compress", "-", option, value], b"");
        assert!(code == Some(2) && said.contains(reason), "{said}");
    }
    let archive = archive_without_status(folder.path());
    let [pack, out] = ["a.wpk", "out"].map(|name| folder.path().join(name));
    done("compress --pack={} {}", &[&pack, &archive]);
    let pack = fs::read(pack).unwrap();
    assert_eq!(piped(&["decompress", "-", "-o", out.to_str().unwrap()], &pack).0, Some(0));
    assert_same(&out, &archive);
    for (option, title) in [("--list", "00000001000000000000000A"), ("--stats", "relation")] {
        let (code, table, _) = piped(&["test", option, "-"], &pack);
        assert!(code == Some(0) && String::from_utf8(table).unwrap().contains(title), "{option}");
    }
    let (code, _, said) = piped(&["compress", "-", "other"], b"");
    assert!(code == Some(2) && said.contains("cannot use - (standard input)"), "{said}");
}

fn links_to_segments_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let links = folder.path().join("links");
    fs::create_dir(&links).unwrap();
    let name = "00000001000000000000000A";
    std::os::unix::fs::symlink(archive.join(name), links.join(name)).unwrap();
    std::os::unix::fs::symlink(&archive, links.join("folder")).unwrap();
    let out = folder.path().join("out");
    let linked = run("compress -o {} {}", &[&out, &links]);
    assert!(linked.code == 0 && linked.stderr.contains("links/folder is a link to a folder"), "{linked:?}");
    let segment = out.join(format!("{name}.wlz"));
    assert!(files(&out).len() == 1 && segment.exists());
    done("decompress -o {} {}", &[&out, &segment]);
    assert!(fs::read(out.join(name)).unwrap() == fs::read(archive.join(name)).unwrap());
    let kept = run("compress --force --rm -o {} {}", &[&out, &links]);
    assert!(
        kept.code == 3
            && kept.errors()[0].contains("is a symbolic link; neither it nor its target is removed"),
        "{kept:?}"
    );
    assert!(archive.join(name).exists() && links.join(name).exists());
    std::os::unix::fs::symlink("nowhere", links.join("dangling")).unwrap();
    let failed = run("compress -o {} {}", &[&out, &links]);
    assert!(failed.code == 3 && failed.errors()[0].contains("links/dangling"), "{failed:?}");
}

fn leftovers_are_removed_and_never_packed() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let expected = files(&archive);
    let [stale, old, young] = [".x.wlz.AbCdEf.walden-tmp", ".x.wlz.AbCdEf.tmp", ".y.wpk.AbCdEf.walden-tmp"]
        .map(|name| write(&archive, name, b"half of it"));
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for path in [&stale, &old] {
        fs::File::options().append(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let [pack, back] = ["a.wpk", "back"].map(|name| folder.path().join(name));
    done("compress --pack={} {}", &[&pack, &archive]);
    done("decompress -o {} {}", &[&back, &pack]);
    assert!(files(&back) == expected);
    // A running process holds the lock of its file.
    let held = fs::File::options().append(true).open(&stale).unwrap();
    held.lock().unwrap();
    let next_to_it = archive.join("pack.wpk");
    done("compress --pack={} {}", &[&next_to_it, &archive]);
    assert!(stale.exists() && !old.exists() && young.exists());
    drop(held);
    fs::remove_file(&next_to_it).unwrap();
    done("compress --pack={} {}", &[&next_to_it, &archive]);
    assert!(!stale.exists() && young.exists(), "it may be another process's that has no lock yet");
    let of_decompress = write(&back, ".x.AbCdEf.walden-tmp", b"half of it");
    fs::File::options().append(true).open(&of_decompress).unwrap().set_modified(long_ago).unwrap();
    done("decompress --force -o {} {}", &[&back, &pack]);
    assert!(files(&back) == expected);
}

/// Segments of two clusters at the same LSNs: each shares data only with those of its own cluster.
fn clusters_in_one_pack_are_kept_apart() {
    let folder = tempfile::tempdir().unwrap();
    let both = folder.path().join("both");
    let mut sum = 0;
    for (cluster, id) in [("one", 1_u8), ("two", 2)] {
        for (name, mut segment) in golden("18.6") {
            // The system identifier, in the first page's header.
            segment[24] = id;
            write(&both.join(cluster), &name, &segment);
        }
        let pack = folder.path().join(format!("{cluster}.wpk"));
        let made = json(&done("compress --format json --pack={} {}", &[&pack, &both.join(cluster)]));
        sum += made["compressed_bytes"].as_u64().unwrap();
    }
    let pack = folder.path().join("both.wpk");
    let made = json(&done("compress --format json --pack={} {}", &[&pack, &both]));
    let members = made["outputs"][0]["members"].as_array().unwrap();
    let keyframes: Vec<bool> = members.iter().map(|member| member["keyframe"] == true).collect();
    assert_eq!(keyframes, [true, false, false, true, false, false]);
    assert!(made["compressed_bytes"].as_u64().unwrap() <= sum);
}

fn files_that_need_more_than_allowed_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive_without_status(folder.path());
    let [pack, small, out] = ["a.wpk", "small.wpk", "out"].map(|name| folder.path().join(name));
    done("compress --pack={} {}", &[&pack, &archive]);
    for command in ["test", "decompress --stdout", "decompress --salvage"] {
        let refused = run(&format!("{command} --memory 100MB {{}}"), &[&pack]);
        assert!(
            refused.code == 3 && refused.stderr.contains("MB of memory: expected at most 100 MB"),
            "{refused:?}"
        );
        assert!(refused.stderr.contains("hint: allow more with --memory"), "{refused:?}");
        let refused = run(&format!("{command} --spill 1MB {{}}"), &[&pack]);
        assert!(refused.code == 3 && refused.stderr.contains("hint: allow more with --spill"), "{refused:?}");
    }
    // Listing needs neither limit.
    done("test --list --memory 1MB --spill 1MB {}", &[&pack]);
    // The limits given at compression suffice for decompression.
    done("compress --memory 200MB --spill 16MB --pack={} {}", &[&small, &archive]);
    done("decompress --memory 200MB --spill 16MB -o {} {}", &[&out, &small]);
    assert_same(&out, &archive);
}
