//! A copy is promoted with the `archive_command` of its primary, while the primary continues.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Outcome, postgres};

use crate::archive::{
    back_up_and_archive, program_for, recovered, text, wait_until_archived, wait_until_promoted, work,
};
use crate::material::{make_archive, walden};

walden_testing::tests! {
    an_abandoned_history_is_reported_with_a_remedy_that_works on [15, 19],
}

fn wait_for(path: &Path) {
    let began = Instant::now();
    while !path.exists() {
        assert!(began.elapsed() < Duration::from_secs(120), "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(50));
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
    let primary = ClusterBuilder::new(installation.clone()).wal_segsize_mb(1).start().unwrap();
    let program = program_for(&primary);
    let repo = primary.make_folder("own").unwrap();
    make_archive(&repo);
    let backup = back_up_and_archive(&primary, &program, &repo);
    write_and_archive(&primary, 0);
    let command = |call: &str| format!("{} archive {call} --repo {}", program.display(), repo.display());
    let (get, push) = (format!("{} %f \"%p\"", command("get")), format!("{} %p", command("push")));
    let archiving = [("restore_command", get.as_str()), ("archive_mode", "on"), ("archive_command", &push)];
    let check = |server: &Cluster| {
        walden(&["archive", "check", "--repo", text(&repo), "--dsn", &server.dsn("postgres")])
    };
    assert!(!check(&primary).stdout.contains("another server was promoted"));
    // The copy is restored, promoted, and lost before it archived a segment.
    let copy = recovered(&installation, &backup, &archiving);
    wait_for(&repo.join("history/00000002.history.wlz"));
    copy.crash().unwrap();
    write_and_archive(&primary, 1);

    let checked = check(&primary);
    assert_eq!(checked.code, 1, "{checked:?}");
    let (dsn, data) = (primary.dsn("postgres"), primary.data_dir());
    let status = [["--dsn", dsn.as_str()], ["--pgdata", text(&data)]]
        .map(|server| walden(&[&["archive", "status", "--repo", text(&repo)][..], &server[..]].concat()));
    for run in [&checked, &status[0], &status[1]] {
        assert_eq!(run.code, 1, "{run:?}");
        for part in
            ["the history of timeline 2", "(after the commit of ", "recovery_target_timeline = 'current'"]
        {
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
