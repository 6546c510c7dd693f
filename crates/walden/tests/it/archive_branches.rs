//! A copy is promoted with the `archive_command` of its primary, while the primary continues.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use walden_lab::{Cluster, ClusterBuilder, Installation, StopMode};
use walden_testing::{Outcome, postgres};

use crate::archive::{
    back_up_and_archive, program_for, recovered, text, wait_until_archived, wait_until_promoted, work,
};
use crate::material::{make_archive, walden};
use crate::receive::Receiving;

walden_testing::tests! {
    an_abandoned_history_is_reported_with_a_remedy_that_works on [15, 19],
    no_command_chooses_between_two_servers on [15, 18],
}

fn wait_for(path: &Path) {
    let began = Instant::now();
    while !path.exists() {
        assert!(began.elapsed() < Duration::from_secs(120), "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that archives, with a base backup and WAL after it.
struct Site {
    primary: Cluster,
    repo: PathBuf,
    backup: PathBuf,
    /// `restore_command` and `archive_command`
    get: String,
    push: String,
}

impl Site {
    fn new(installation: &Installation) -> Site {
        let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
        let program = program_for(&primary);
        let repo = primary.make_folder("own").unwrap();
        make_archive(&repo);
        let backup = back_up_and_archive(&primary, &program, &repo);
        write_and_archive(&primary, 0);
        let command = |call: &str| format!("{} archive {call} --repo {}", program.display(), repo.display());
        let (get, push) = (format!("{} %f \"%p\"", command("get")), format!("{} %p", command("push")));
        Site { primary, repo, backup, get, push }
    }
}

fn write_and_archive(cluster: &Cluster, round: i32) {
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE TABLE IF NOT EXISTS t (id int, v text)").unwrap();
    work(&mut client, round);
    client.batch_execute("SELECT pg_switch_wal(); CHECKPOINT").unwrap();
    wait_until_archived(&mut client);
}

fn an_abandoned_history_is_reported_with_a_remedy_that_works(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let Site { primary, repo, backup, get, push } = Site::new(&installation);
    let archiving = [("restore_command", get.as_str()), ("archive_mode", "on"), ("archive_command", &push)];
    let check = |server: &Cluster| {
        walden(&["archive", "check", "--repo", text(&repo), "--dsn", &server.dsn("postgres")])
    };
    assert!(!check(&primary).stdout.contains("another server was promoted"));
    let spool = primary.dir().join("spool");
    let receiving =
        Receiving::start(&primary.dsn("postgres"), &repo, &spool, &["--slot", "walden", "--create-slot"]);
    wait_for(&spool.join("status.json"));
    // The copy is restored, promoted, and lost before it archived a segment.
    let copy = recovered(&installation, &backup, &archiving);
    wait_for(&repo.join("history/00000002.history.wlz"));
    copy.crash().unwrap();
    let mut client = primary.client("postgres").unwrap();
    // No checkpoint shows that the primary has continued.
    client.batch_execute("INSERT INTO t VALUES (0, 'after the promotion')").unwrap();
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    drop(client);

    let (dsn, data) = (primary.dsn("postgres"), primary.data_dir());
    let asked = [["--dsn", dsn.as_str()], ["--pgdata", text(&data)]];
    let of_both = |command: &str| {
        asked.map(|server| walden(&[&["archive", command, "--repo", text(&repo)][..], &server[..]].concat()))
    };
    let of_receiver = ["check", "status"].map(|command| {
        let arguments = ["archive", command, "--repo", text(&repo), "--spool", text(&spool)];
        let began = Instant::now();
        loop {
            let run = walden(&arguments);
            // The receiver writes its status every few seconds.
            if run.code != 0 || began.elapsed() > Duration::from_secs(30) {
                return run;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let of_server_and_receiver =
        walden(&["archive", "status", "--repo", text(&repo), "--dsn", &dsn, "--spool", text(&spool)]);
    assert_eq!(of_server_and_receiver.stdout.matches("the history of timeline 2").count(), 1);
    let against = walden(&["archive", "check", "--repo", text(&repo), "--against", &dsn]);
    assert!(!against.stdout.contains("of the primary"), "{against:?}");
    assert_eq!(receiving.stop().1, Some(0));
    let of_all = [against, of_server_and_receiver];
    for run in of_both("check").iter().chain(&of_both("status")).chain(&of_receiver).chain(&of_all) {
        assert_eq!(run.code, 1, "{run:?}");
        for part in [
            "the history of timeline 2",
            "(in a segment that starts after the commit of ",
            "recovery_target_timeline = 'current'",
        ] {
            assert!(run.stdout.contains(part), "{part}: {run:?}");
        }
    }

    // As the report predicts, a standby from a new base backup fails, and the remedy works.
    primary.stop(StopMode::Fast).unwrap();
    let second = primary.dir().join("second");
    primary.copy_data(&second).unwrap();
    // The copy needs the segment with its checkpoint from the archive.
    primary.start().unwrap();
    write_and_archive(&primary, 2);
    let standby = |target: &str| {
        let builder = ClusterBuilder::new(installation.clone()).copy_of(&second);
        let builder = archiving.iter().fold(builder, |builder, (name, value)| builder.setting(name, value));
        builder
            .setting("recovery_target_timeline", target)
            .start_after(|data| Ok(fs::write(data.join("standby.signal"), "")?))
    };
    let Err(error) = standby("latest") else { panic!("the standby has started") };
    let error = format!("{error:#}");
    assert!(error.contains("requested timeline 2 is not a child of this server's history"), "{error}");
    let standby = standby("current").unwrap();
    primary.stop(StopMode::Fast).unwrap();
    standby.client("postgres").unwrap().batch_execute("SELECT pg_promote()").unwrap();
    wait_until_promoted(&standby);
    wait_for(&repo.join("history/00000003.history.wlz"));
    write_and_archive(&standby, 3);
    let checked = check(&standby);
    assert!(!checked.stdout.contains("another server was promoted"), "{checked:?}");
    assert!(checked.stdout.contains("the server writes timeline 3"), "{checked:?}");
    Ok(())
}

/// A promoted copy archives its timeline, and the primary continues: commands that write follow neither until
/// a timeline is named.
fn no_command_chooses_between_two_servers(version: u32) -> Outcome {
    let installation = postgres(version)?;
    let Site { primary, repo, backup, get, push } = Site::new(&installation);
    let archiving = [("restore_command", get.as_str()), ("archive_mode", "on"), ("archive_command", &push)];
    let copy = recovered(&installation, &backup, &archiving);
    wait_until_promoted(&copy);
    write_and_archive(&copy, 1);
    copy.stop(StopMode::Fast).unwrap();
    write_and_archive(&primary, 2);
    let mut client = primary.client("postgres").unwrap();
    client
        .batch_execute("CREATE TABLE mistaken (i int); INSERT INTO mistaken SELECT generate_series(1, 100)")
        .unwrap();
    let target: String = client.query_one("SELECT clock_timestamp()::text", &[]).unwrap().get(0);
    client.batch_execute("DELETE FROM mistaken").unwrap();
    write_and_archive(&primary, 3);
    let names = primary.make_folder("names").unwrap().join("names.json");
    let dsn = primary.dsn("postgres");
    let saved = walden(&["explain", "--names", &dsn, "--save-names", text(&names)]);
    assert_eq!(saved.code, 0, "{saved:?}");

    let advanced = primary.dir().join("advanced");
    let restored = primary.dir().join("restored");
    let exported = primary.dir().join("exported");
    let (repo, base) = (text(&repo), text(&backup));
    let commands: [&[&str]; 4] = [
        &["backup", "advance", base, "--repo", repo, "-o", text(&advanced)],
        &["restore", "--repo", repo, "--base", base, "-o", text(&restored), "--to", &target],
        &["archive", "get", "--repo", repo, "--base", base, "-o", text(&exported), "--until", &target],
        &[
            "rows",
            "--base",
            base,
            "--names",
            text(&names),
            "--relation",
            "public.mistaken",
            "--op",
            "delete",
            "--undo",
            repo,
        ],
    ];
    for arguments in commands {
        let run = walden(arguments);
        assert!([1, 3, 200].contains(&run.code), "{arguments:?}: {run:?}");
        assert!(run.stderr.contains("cannot choose a timeline: timeline 1 continues after "), "{run:?}");
        assert!(run.stderr.contains("--timeline"), "{run:?}");
        assert!(!run.stdout.contains("Complete"), "{run:?}");
    }
    for path in [&advanced, &restored, &exported] {
        assert!(!path.exists(), "{}", path.display());
    }
    for arguments in commands {
        let run = walden(&[arguments, &["--timeline", "1"]].concat());
        assert_eq!(run.code, 0, "{arguments:?}: {run:?}");
        assert!(!arguments.contains(&"--undo") || run.stdout.contains("Complete"), "{run:?}");
    }
    // The others read the newest timeline, and name the other one.
    let explained = walden(&["explain", repo]);
    assert!(
        explained.code == 0 && explained.stderr.contains("--timeline 1 names the other"),
        "{explained:?}"
    );
    Ok(())
}
