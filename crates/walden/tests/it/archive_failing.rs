//! `walden archive status` must report every failing archiver, for any reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use postgres::Client;
use walden_lab::{Cluster, ClusterBuilder};
use walden_testing::{Outcome, postgres};

use crate::archive::{program_for, text};
use crate::archive_care::{switch, wait};
use crate::archive_status::other_segment;
use crate::material::{Run, make_archive, walden};

walden_testing::tests! {
    each_cause_for_which_an_archiver_fails_is_named,
    a_failing_archiver_fails_also_while_it_tries_again,
    without_a_server_nothing_is_said_to_be_well,
}

/// A server with an archive_command that each case sets.
struct Site {
    cluster: Cluster,
    client: Client,
    program: PathBuf,
}

impl Site {
    fn new() -> Result<Site, walden_testing::Missing> {
        let cluster = ClusterBuilder::new(postgres(15)?)
            .wal_segsize_mb(1)
            .setting("archive_mode", "on")
            .setting("archive_command", "true")
            .start()
            .unwrap();
        let mut client = cluster.client("postgres").unwrap();
        client.batch_execute("CREATE TABLE t (i int, t text)").unwrap();
        let program = program_for(&cluster);
        Ok(Site { cluster, client, program })
    }

    fn set_command(&mut self, command: &str) {
        let command = command.replace('\'', "''");
        self.client.batch_execute(&format!("ALTER SYSTEM SET archive_command = '{command}'")).unwrap();
        self.client.batch_execute("SELECT pg_reload_conf()").unwrap();
    }

    fn number(&mut self, query: &str) -> i64 {
        self.client.query_one(query, &[]).unwrap().get(0)
    }

    /// Waits until the archiver has failed three times, after which it pauses for a minute.
    fn wait_until_failed(&mut self, failures_before: i64) {
        let began = Instant::now();
        while self.number("SELECT failed_count FROM pg_stat_archiver") < failures_before + 3 {
            assert!(began.elapsed() < Duration::from_secs(120), "{}", self.cluster.log_tail());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn wait_until_archiver_ended(&mut self) {
        const ENDED: &str =
            "SELECT (NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'archiver'))::int::bigint";
        wait(|| self.number(ENDED) == 1);
    }

    /// Empties the queue, then makes the archiver fail on a segment. Returns the segment's path.
    fn fail_with_segment(&mut self) -> PathBuf {
        const READY: &str = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
        self.set_command("true");
        wait(|| self.number(READY) == 0);
        let before = self.number("SELECT failed_count FROM pg_stat_archiver");
        self.set_command("false");
        // The archiver may still archive the first segment with the previous command.
        wait(|| {
            if self.number(READY) == 0 {
                switch(&mut self.client, 0);
            }
            self.number("SELECT failed_count FROM pg_stat_archiver") >= before + 3
        });
        let name: String =
            self.client.query_one("SELECT last_failed_wal FROM pg_stat_archiver", &[]).unwrap().get(0);
        self.cluster.data_dir().join("pg_wal").join(name)
    }
}

/// A change of the archive or of the ready segment, and the server's command. The test replaces `PROGRAM` and
/// `REPO` by paths.
struct Case {
    prepare: fn(&Path, &Path),
    command: &'static str,
    expected: &'static str,
}

const PUSH: &str = "PROGRAM archive push --repo REPO %p";

fn cases() -> Vec<Case> {
    let case = |prepare, command, expected| Case { prepare, command, expected };
    vec![
        case(|_, _| {}, "false", "archive_command is 'false', which is not Walden's"),
        case(
            |_, _| {},
            "/nowhere/walden archive push --repo REPO %p",
            "archive_command calls /nowhere/walden",
        ),
        case(|_, _| {}, "nowhere-walden archive push --repo REPO %p", "see the server's log"),
        case(|_, _| {}, "PROGRAM archive push --repo REPO-other %p", "it names the archive"),
        case(set_magic, PUSH, "written by a PostgreSQL newer than 19"),
        case(flip_bit, PUSH, "damaged at "),
        case(cut, PUSH, "the file's size: expected 1048576 bytes"),
        case(|repo, _| fs::remove_dir_all(repo).unwrap(), PUSH, "cannot find an archive in"),
        case(make_read_only, PUSH, "cannot write into the archive's folder "),
        case(archive_of_another_cluster, PUSH, "give each cluster its own archive"),
        case(archive_another_content, PUSH, "Two servers write the same timeline"),
    ]
}

/// Changes a segment to a version that Walden does not read.
fn set_magic(_: &Path, segment: &Path) {
    let mut content = fs::read(segment).unwrap();
    for page in content.chunks_mut(8192).filter(|page| page[..2] != [0, 0]) {
        page[..2].copy_from_slice(&0xD1F0_u16.to_le_bytes());
    }
    fs::write(segment, content).unwrap();
}

fn flip_bit(_: &Path, segment: &Path) {
    let mut content = fs::read(segment).unwrap();
    content[9000] ^= 1;
    fs::write(segment, content).unwrap();
}

fn cut(_: &Path, segment: &Path) {
    fs::File::options().write(true).open(segment).unwrap().set_len(1 << 19).unwrap();
}

fn make_read_only(repo: &Path, _: &Path) {
    let changed = Command::new("chmod").args(["-R", "a-w", text(repo)]).status();
    assert!(changed.unwrap().success());
}

fn push_as(system_id: u64, repo: &Path, segment: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap();
    let other = other_segment(folder.path(), name, system_id);
    let pushed = walden(&["archive", "push", "--look-ahead", "0", "--repo", text(repo), text(&other)]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
}

fn archive_of_another_cluster(repo: &Path, segment: &Path) {
    push_as(7777, repo, segment);
}

fn archive_another_content(repo: &Path, segment: &Path) {
    let content = fs::read(segment).unwrap();
    push_as(u64::from_le_bytes(content[24..32].try_into().unwrap()), repo, segment);
}

fn each_cause_for_which_an_archiver_fails_is_named() -> Outcome {
    let mut site = Site::new()?;
    let (dsn, data) = (site.cluster.dsn("postgres"), site.cluster.data_dir());
    for (number, Case { prepare, command, expected }) in cases().into_iter().enumerate() {
        let repo = site.cluster.make_folder(&format!("repo{number}")).unwrap();
        make_archive(&repo);
        let segment = site.fail_with_segment();
        prepare(&repo, &segment);
        let failures = site.number("SELECT failed_count FROM pg_stat_archiver");
        let command = command.replace("PROGRAM", text(&site.program)).replace("REPO", text(&repo));
        // If the command cannot be run, the archiver process exits, and the server counts no failure.
        let is_counted = !command.contains("nowhere");
        site.set_command(&command);
        match is_counted {
            true => site.wait_until_failed(failures),
            false => {
                site.client.batch_execute("SELECT pg_stat_reset_shared('archiver')").unwrap();
                site.wait_until_archiver_ended();
            }
        }
        let name = segment.file_name().unwrap().to_str().unwrap();
        for server in [["--dsn", dsn.as_str()], ["--pgdata", text(&data)]] {
            let run = walden(&[&["archive", "status", "--repo", text(&repo)][..], &server[..]].concat());
            let case = format!("{command}, {server:?}: {run:?}");
            assert!(matches!(run.code, 1 | 3) && run.stdout.starts_with("PROBLEM: "), "{case}");
            assert!(run.stdout.contains(expected), "{case}");
            let failed = match is_counted {
                true => format!("the server's last attempt to archive failed, with {name}"),
                false => format!("the server has no archiver process, and {name} is ready"),
            };
            assert!(run.stdout.contains(&failed), "{case}");
        }
        let check = |server: [&str; 2]| {
            walden(&[&["archive", "check", "--repo", text(&repo)][..], &server[..]].concat())
        };
        for run in [check(["--dsn", &dsn]), check(["--data", text(&data)])] {
            assert!(run.code == 1 && run.stdout.contains("FAIL"), "{command}: {run:?}");
        }
    }
    assert_server_without_command_is_not_well(&mut site);
    Ok(())
}

/// The title of the archiver shows a failure only until the next attempt.
fn a_failing_archiver_fails_also_while_it_tries_again() -> Outcome {
    let mut site = Site::new()?;
    let repo = site.cluster.make_folder("repo").unwrap();
    make_archive(&repo);
    let failures = "SELECT failed_count FROM pg_stat_archiver";
    site.fail_with_segment();
    site.set_command("sleep 1; false");
    let (before, data) = (site.number(failures), site.cluster.data_dir());
    // A new archiver starts its attempts at once.
    let archiver =
        "SELECT pg_terminate_backend(pid)::int::bigint FROM pg_stat_activity WHERE backend_type = 'archiver'";
    site.number(archiver);
    wait(|| site.number(failures) > before);
    while site.number(failures) < before + 3 {
        let run = walden(&["archive", "status", "--repo", text(&repo), "--pgdata", text(&data)]);
        assert!(run.code == 1 && run.stdout.contains("last attempt to archive failed"), "{run:?}");
    }
    Ok(())
}

/// Such a server never fails, as it never tries.
fn assert_server_without_command_is_not_well(site: &mut Site) {
    let (dsn, data) = (site.cluster.dsn("postgres"), site.cluster.data_dir());
    let repo = site.cluster.make_folder("unset").unwrap();
    make_archive(&repo);
    site.set_command("");
    for server in [["--dsn", dsn.as_str()], ["--pgdata", text(&data)]] {
        let run = walden(&[&["archive", "status", "--repo", text(&repo)][..], &server[..]].concat());
        assert!(run.code == 1 && run.stdout.contains("archive_command is not set"), "{run:?}");
    }
}

fn without_a_server_nothing_is_said_to_be_well() -> Outcome {
    let mut site = Site::new()?;
    let repo = site.cluster.make_folder("repo").unwrap();
    make_archive(&repo);
    site.fail_with_segment();
    let status = |more: &[&str]| walden(&[&["archive", "status"][..], more].concat());
    let says_unknown = |run: &Run| {
        let is_said = run.stdout.starts_with("UNKNOWN: ") && run.stdout.contains("no server was asked");
        assert!(run.code == 0 && is_said, "{run:?}");
    };
    says_unknown(&status(&["--repo", text(&repo)]));
    let json = status(&["--repo", text(&repo), "--format", "json"]);
    assert!(json.stdout.contains("\"server_queried\": false"), "{json:?}");
    // A configuration in the data directory identifies the archiving server.
    let (data, beside) = (site.cluster.data_dir(), site.cluster.dir().join("walden.toml"));
    let config = data.join("walden.toml");
    for path in [&config, &beside] {
        fs::write(path, format!("[archive]\nrepo = \"{}\"\n", repo.display())).unwrap();
    }
    says_unknown(&status(&["--config", text(&beside)]));
    let found = status(&["--config", text(&config)]);
    assert!(
        found.code == 1 && found.stdout.contains("the server's last attempt to archive failed"),
        "{found:?}"
    );
    // A failure in the log file is a problem with and without a server.
    let log = site.cluster.dir().join("walden.log");
    let segment = site.cluster.dir().join("000000010000000000000001");
    fs::write(&segment, "no segment").unwrap();
    let pushed = walden(&["archive", "push", "--repo", text(&repo), "--log", text(&log), text(&segment)]);
    assert_eq!(pushed.code, 1, "{pushed:?}");
    let failed = status(&["--repo", text(&repo), "--log", text(&log)]);
    assert!(failed.code == 1 && failed.stdout.starts_with("PROBLEM: 000000010000000000000001"), "{failed:?}");
    assert!(failed.stdout.contains("no server was asked"), "{failed:?}");
    Ok(())
}
