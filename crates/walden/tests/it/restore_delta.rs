//! `walden restore --delta`: a restore over the data directory of a stopped server equals one into a new
//! directory, also after kills, and changes nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use walden_lab::StopMode;
use walden_server::account;
use walden_source::datadir::ControlFile;
use walden_testing::{Outcome, postgres};

use crate::archive::{text, wait_until_promoted};
use crate::base_backups::{Site, parsed};
use crate::material::{Run, walden};
use crate::restore_formats::program;
use crate::restore_forward::{amcheck, content, expect_same_content, files_of};

walden_testing::tests! {
    #[slow] a_restore_over_a_data_directory_equals_a_new_one on [14, 18],
    only_the_stopped_server_of_the_cluster_is_restored_over,
}

/// The files of a restored data directory and its tablespaces, except `pg_control`, which has the time.
fn restored_files(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files_of(data, &[""]);
    let control = files.remove(Path::new(ControlFile::PATH)).expect("pg_control");
    let control = ControlFile::parse(&control).unwrap();
    files.insert("control".into(), format!("{:?} {:?}", control.redo, control.checkpoint).into());
    files
}

fn expect_same_files(fresh: &Path, over: &Path) {
    let (expected, found) = (restored_files(fresh), restored_files(over));
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&found));
    for (name, content) in expected {
        assert!(found[&name] == content, "{} differs", name.display());
    }
}

struct Over<'s> {
    site: &'s Site,
    data: PathBuf,
    get: String,
}

impl Over<'_> {
    /// The arguments of a restore over the server's data directory, or to another one.
    fn arguments(&self, to: &Path, space: &Path, options: &[&str]) -> Vec<String> {
        let mapping = format!("{}={}", self.site.tablespace.display(), space.display());
        let arguments = ["restore", "--repo", text(&self.site.repo), "-o", text(to)];
        let settings = ["--restore-command", &self.get, "--target-action", "promote", "--format", "json"];
        let target = ["--to", "name:later", "--tablespace-mapping", &mapping];
        let all = [&arguments[..], &settings, &target, options].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    fn run(&self, options: &[&str]) -> Run {
        let options = [&["--delta"], options].concat();
        let arguments = self.arguments(&self.data, &self.site.tablespace, &options);
        walden(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn restore(&self, options: &[&str]) -> Value {
        let run = self.run(options);
        assert_eq!(run.code, 0, "{run:?}");
        parsed(&run)
    }

    fn fresh(&self, folder: &str, options: &[&str]) -> PathBuf {
        let to = self.site.cluster.dir().join(folder);
        let arguments = self.arguments(&to, &to.with_extension("fast"), options);
        let run = walden(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(run.code, 0, "{run:?}");
        to
    }

    fn refused(&self, options: &[&str], expected: &str) {
        let run = self.run(options);
        assert!(run.code == 3 && run.stderr.contains(expected), "{expected}: {run:?}");
        assert!(self.data.join(ControlFile::PATH).exists(), "{expected}");
    }

    /// Changes the data directory and the tablespace. `still` is a file of 20 MB.
    fn damage(&self, still: &str) {
        let path = |name: &str| self.data.join(name);
        // A changed page, a longer and a shorter file, missing and added ones, and other kinds.
        let file = fs::File::options().write(true).open(path(still)).unwrap();
        file.write_all_at(b"changed", 18 << 20).unwrap();
        let pg_version = path("base/1/PG_VERSION");
        fs::write(&pg_version, "longer than before\n").unwrap();
        fs::write(path("PG_VERSION"), "").unwrap();
        // An earlier run may have been killed before it changed anything.
        let remove = |path: PathBuf| match path.is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        };
        remove(path("pg_xact"));
        fs::write(path("pg_xact"), "no folder").unwrap();
        remove(path("pg_hba.conf"));
        fs::create_dir_all(path("pg_hba.conf/deep")).unwrap();
        fs::create_dir_all(path("added/deep")).unwrap();
        for name in ["added/deep/file", "base/1/424242", "standby.signal", "pg_wal/000000010000000000000001"]
        {
            fs::write(path(name), "added").unwrap();
        }
        let version = fs::read_dir(&self.site.tablespace).unwrap().next().unwrap().unwrap().path();
        for entry in fs::read_dir(&version).unwrap() {
            remove(entry.unwrap().path());
        }
        fs::write(version.join("added"), "added").unwrap();
    }
}

fn a_restore_over_a_data_directory_equals_a_new_one(version: u32) -> Outcome {
    let pg_basebackup = program(&postgres(version)?, "pg_basebackup")?;
    let site = Site::start(version, 1)?;
    let mut client = site.prepare();
    client
        .batch_execute("CREATE TABLE still AS SELECT md5(g::text) t FROM generate_series(1, 400000) g")
        .unwrap();
    client.batch_execute("VACUUM (FREEZE) still").unwrap();
    let still: String = client.query_one("SELECT pg_relation_filepath('still')", &[]).unwrap().get(0);
    client.batch_execute("CHECKPOINT").unwrap();
    site.created(&[]);
    let cluster = &site.cluster;
    let [plain, tar] = ["plain", "tar"].map(|name| cluster.dir().join(name));
    let plain_space = format!("{}={}", site.tablespace.display(), cluster.dir().join("plain.fast").display());
    for (to, options) in [(&plain, &["-Fp", "-T", &plain_space][..]), (&tar, &["-Ft", "-z"])] {
        let dsn = cluster.dsn("postgres");
        let arguments = ["-d", &dsn, "-c", "fast", "-X", "none", "-D", text(to)];
        let mut command = account::command(&pg_basebackup, cluster.dir()).unwrap();
        let run = Run::execute(command.args(arguments).args(options));
        assert_eq!(run.code, 0, "{run:?}");
    }
    for sql in [
        "UPDATE large SET t = t || 'x' WHERE i % 9 = 0; DELETE FROM in_fast WHERE i > 2900",
        "CHECKPOINT",
        "DELETE FROM large WHERE i % 7 = 0",
        "SELECT pg_create_restore_point('later')",
        "SELECT pg_switch_wal()",
    ] {
        client.batch_execute(sql).unwrap();
    }
    site.wait_until_archived(&mut client);
    let expected = content(cluster);
    client.batch_execute("TRUNCATE in_fast; CREATE TABLE later AS SELECT generate_series(1, 10000)").unwrap();
    drop(client);

    let get = format!("{} archive get --repo {} %f \"%p\"", site.program.display(), site.repo.display());
    let over = Over { site: &site, data: cluster.data_dir(), get };
    over.refused(&[], "postmaster.pid");
    let fresh = over.fresh("fresh", &[]);
    let mapping = over.arguments(&over.data, &cluster.dir().join("other"), &[]);
    let run = walden(&mapping.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(run.code == 3 && run.stderr.contains("--delta"), "{run:?}");
    cluster.stop(StopMode::Fast).unwrap();

    // Another name of a file keeps its content.
    let other_name = cluster.dir().join("other_name");
    over.damage(&still);
    fs::hard_link(over.data.join("base/1/PG_VERSION"), &other_name).unwrap();
    let before = files_of(&over.data, &[""]);
    let compared = over.restore(&["--dry-run"])["delta"].clone();
    assert!(files_of(&over.data, &[""]) == before, "a dry run writes nothing");
    let number = |value: &Value, name: &str| value[name].as_u64().unwrap();
    assert!(number(&compared, "kept_bytes") > 40 << 20, "{compared:#}");
    assert!(number(&compared, "written_bytes") < 60 << 20, "{compared:#}");
    assert!(number(&compared, "removed_files") >= 6, "{compared:#}");
    let began = Instant::now();
    let restored = over.restore(&[]);
    let duration = began.elapsed();
    assert_eq!(restored["delta"], compared);
    expect_same_files(&fresh, &over.data);
    assert_eq!(fs::read(&other_name).unwrap(), b"longer than before\n");

    // What the folder has is not fetched: not even a piece that the archive lost.
    let piece = site.pieces()[0].clone();
    let content_of_piece = fs::read(&piece).unwrap();
    fs::remove_file(&piece).unwrap();
    over.restore(&[]);
    expect_same_files(&fresh, &over.data);
    let options = over.arguments(&cluster.dir().join("refused"), &cluster.dir().join("refused.fast"), &[]);
    let run = walden(&options.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(run.code, 3, "{run:?}");
    fs::write(&piece, content_of_piece).unwrap();

    // Killed at any moment, PostgreSQL cannot start, or it is complete; and it can be repeated.
    let mut incomplete = 0;
    for round in 1..=8 {
        if over.data.join(ControlFile::PATH).exists() {
            over.damage(&still);
        }
        let options = over.arguments(&over.data, &site.tablespace, &["--delta"]);
        let mut killed = Command::new(env!("CARGO_BIN_EXE_walden"))
            .args(&options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(duration * round / 9);
        killed.kill().unwrap();
        let ended = killed.wait().unwrap();
        incomplete += u32::from(!over.data.join(ControlFile::PATH).exists() && !ended.success());
    }
    assert!(incomplete > 0, "{duration:?}");
    over.restore(&[]);
    expect_same_files(&fresh, &over.data);

    // From a folder and from tar files.
    for base in [&plain, &tar] {
        let mut options = vec!["--base", text(base)];
        let fresh = format!("fresh_{}", base.file_name().unwrap().to_str().unwrap());
        let own = cluster.dir().join("plain.fast");
        // In plain format, the folder of the tablespace is that of the copy.
        let (old, new) = (if base == &plain { &own } else { &site.tablespace }, &site.tablespace);
        let restore = |to: &Path, new: &Path, options: &[&str]| {
            let mapping = format!("{}={}", old.display(), new.display());
            let arguments = ["restore", "--repo", text(&site.repo), "-o", text(to), "--to", "name:later"];
            let settings = ["--restore-command", &over.get, "--target-action", "promote", "--format", "json"];
            let run =
                walden(&[&arguments[..], &settings, &["--tablespace-mapping", &mapping], options].concat());
            assert_eq!(run.code, 0, "{run:?}");
            parsed(&run)
        };
        let fresh = cluster.dir().join(fresh);
        restore(&fresh, &fresh.with_extension("fast"), &options);
        over.damage(&still);
        options.push("--delta");
        let restored = restore(&over.data, new, &options);
        assert!(number(&restored["delta"], "kept_bytes") > 40 << 20, "{restored:#}");
        expect_same_files(&fresh, &over.data);
        if base == &plain {
            // The folder of the backup's own tablespace is never written.
            let mapping = format!("{}={}", own.display(), own.display());
            let run = walden(&[
                "restore",
                "--repo",
                text(&site.repo),
                "-o",
                text(&over.data),
                "--delta",
                "--base",
                text(base),
                "--tablespace-mapping",
                &mapping,
            ]);
            assert_eq!(run.code, 3, "{run:?}");
        }
    }

    // The server continues.
    cluster.start().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until_promoted(cluster);
    expect_same_content(&content(cluster), &expected);
    amcheck(cluster);
    cluster.stop(StopMode::Immediate).unwrap();
    Ok(())
}

fn only_the_stopped_server_of_the_cluster_is_restored_over() -> Outcome {
    let site = Site::start(18, 1)?;
    let mut client = site.prepare();
    site.created(&[]);
    client.batch_execute("SELECT pg_create_restore_point('later'); SELECT pg_switch_wal()").unwrap();
    site.wait_until_archived(&mut client);
    drop(client);
    let cluster = &site.cluster;
    cluster.stop(StopMode::Fast).unwrap();
    let over = Over { site: &site, data: cluster.data_dir(), get: "true".to_owned() };
    let before = files_of(&over.data, &[""]);

    // WAL that only this directory has.
    let segment = "0000000100000000000000FF";
    let files = [format!("pg_wal/{segment}"), format!("pg_wal/archive_status/{segment}.ready")];
    files.iter().for_each(|name| fs::write(over.data.join(name), "").unwrap());
    over.refused(&[], segment);
    files.iter().for_each(|name| fs::remove_file(over.data.join(name)).unwrap());

    // Links that lead elsewhere, and an archive in the directory.
    let outside = cluster.make_folder("outside").unwrap();
    fs::write(outside.join("file"), "own").unwrap();
    for link in ["base/link", "pg_tblspc/424242", "pg_stat/link"] {
        symlink(&outside, over.data.join(link)).unwrap();
        over.refused(&[], "link");
        fs::remove_file(over.data.join(link)).unwrap();
    }
    let nested = over.data.join("repo");
    fs::create_dir(&nested).unwrap();
    fs::copy(site.repo.join("archive.json"), nested.join("archive.json")).unwrap();
    over.refused(&[], "an archive: repo/archive.json");
    fs::remove_dir_all(&nested).unwrap();
    // A folder with files that are not those of the tablespace.
    let arguments = over.arguments(&over.data, &outside, &["--delta"]);
    let run = walden(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(run.code == 3 && run.stderr.contains("one with files"), "{run:?}");
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"own");
    // The WAL that is read would be removed.
    let (wal, get) = (over.data.join("pg_wal"), ["--restore-command", "true", "--delta"]);
    let arguments = ["restore", "--wal", text(&wal), "--base", text(&site.repo), "-o", text(&over.data)];
    let run = walden(&[&arguments[..], &get].concat());
    assert!(run.code == 3 && run.stderr.contains("whose WAL is read"), "{run:?}");
    assert!(files_of(&over.data, &[""]) == before, "refusals write nothing");

    // Other folders.
    let empty = cluster.make_folder("empty").unwrap();
    let other = Site::start(18, 1)?;
    other.cluster.stop(StopMode::Fast).unwrap();
    for (folder, expected) in [
        (&cluster.dir().join("missing"), "found none"),
        (&empty, "no global/pg_control"),
        (&outside, "no global/pg_control"),
        (&other.cluster.data_dir(), "of the system"),
    ] {
        let arguments = over.arguments(folder, &site.tablespace, &["--delta"]);
        let run = walden(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(run.code == 3 && run.stderr.contains(expected), "{expected}: {run:?}");
    }
    Ok(())
}
