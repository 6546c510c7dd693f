//! Several runs of `walden restore` and `walden backup advance` on one backup at the same time.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use walden_testing::{Outcome, postgres};

use crate::archive::text;
use crate::material::{Run, walden};
use crate::restore_forward::{Primary, copy_running, create_tables, keep_busy, work};

walden_testing::tests! {
    runs_at_once_leave_a_complete_backup on [15],
    a_folder_in_use_is_refused on [15],
}

/// A server with a base backup and WAL after it.
fn primary(version: u32) -> Result<Primary, walden_testing::Missing> {
    let primary = Primary::start(&postgres(version)?, &[]);
    create_tables(&primary);
    primary.back_up(keep_busy);
    for round in 1..=2 {
        work(&primary, round);
        primary.checkpoint_and_name(&format!("step{round}"));
        keep_busy(&mut primary.client("postgres"));
    }
    primary.archive_all();
    Ok(primary)
}

fn advance(primary: &Primary, backup: &Path, options: &[&str]) -> Run {
    let wal = primary.cluster.archive_dir();
    walden(&[&["backup", "advance", text(backup), "--wal", text(&wal)], options].concat())
}

fn partial_of(folder: &Path) -> std::path::PathBuf {
    let name = folder.file_name().unwrap().to_str().unwrap();
    folder.with_file_name(format!("{name}.partial"))
}

/// The runs start at different moments of the others. Each succeeds or is refused.
fn runs_at_once_leave_a_complete_backup(version: u32) -> Outcome {
    let primary = primary(version)?;
    for round in 0..4_u64 {
        let backup = primary.cluster.dir().join(format!("backup {round}"));
        let restored = primary.cluster.dir().join(format!("restored {round}"));
        copy_running(&primary.backup, &backup);
        let (runs, restores) = std::thread::scope(|scope| {
            let delay = |number: u64| std::thread::sleep(Duration::from_millis(number * (40 + 90 * round)));
            let (primary, backup, restored) = (&primary, &backup, &restored);
            let run = |number| {
                scope.spawn(move || {
                    delay(number);
                    advance(primary, backup, &[])
                })
            };
            let restore = |number| {
                scope.spawn(move || {
                    delay(number);
                    let wal = primary.cluster.archive_dir();
                    let restore =
                        ["restore", "--base", text(backup), "--wal", text(&wal), "-o", text(restored)];
                    walden(&restore)
                })
            };
            let runs: Vec<_> = (0..3).map(run).collect();
            let restores: Vec<_> = (1..3).map(restore).collect();
            let join = |runs: Vec<std::thread::ScopedJoinHandle<'_, Run>>| -> Vec<Run> {
                runs.into_iter().map(|run| run.join().unwrap()).collect()
            };
            (join(runs), join(restores))
        });
        for run in runs.iter().chain(&restores) {
            run.assert_no_panic();
            let is_refused = run.code == 3 && run.stderr.contains("another run")
                || run.stderr.contains("expected an empty or missing directory");
            assert!(run.code == 0 || is_refused, "{run:?}");
        }
        // Restores read the backup together, so each advance may be refused because of them.
        assert!(runs.iter().chain(&restores).any(|run| run.code == 0), "{runs:?} {restores:?}");
        assert!(!partial_of(&backup).exists() && !partial_of(&restored).exists());
        for name in ["PG_VERSION", "global/pg_control", "backup_label"] {
            assert!(backup.join(name).exists(), "{name}");
        }
        // All files are those of one of the runs: a further advance finds nothing missing.
        let last = advance(&primary, &backup, &[]);
        assert_eq!(last.code, 0, "{last:?}");
        let again = primary.cluster.dir().join(format!("again {round}"));
        let single = advance(&primary, &primary.backup, &["-o", text(&again)]);
        assert_eq!(single.code, 0, "{single:?}");
        let count = |folder: &Path| {
            fs::read_dir(folder.join("base"))
                .unwrap()
                .flatten()
                .map(|entry| fs::read_dir(entry.path()).unwrap().count())
                .sum::<usize>()
        };
        assert_eq!(count(&backup), count(&again));
    }
    Ok(())
}

fn a_folder_in_use_is_refused(version: u32) -> Outcome {
    let primary = primary(version)?;
    let backup = primary.cluster.dir().join("used");
    copy_running(&primary.backup, &backup);
    let folder = File::open(&backup).unwrap();
    folder.lock_shared().unwrap();
    let run = advance(&primary, &backup, &[]);
    assert!(run.code == 3 && run.stderr.contains("another run of walden reads or writes it"), "{run:?}");
    let to = primary.cluster.dir().join("later");
    assert_eq!(advance(&primary, &backup, &["-o", text(&to)]).code, 0, "both only read it");
    folder.unlock().unwrap();
    // The folder in which another run works.
    let partial = partial_of(&backup);
    fs::create_dir(&partial).unwrap();
    let locked = File::open(&partial).unwrap();
    locked.lock().unwrap();
    let run = advance(&primary, &backup, &[]);
    assert!(run.code == 3 && run.stderr.contains("another run of walden reads or writes it"), "{run:?}");
    assert!(partial.exists());
    locked.unlock().unwrap();
    let run = advance(&primary, &backup, &[]);
    assert!(run.code == 0 && !partial.exists(), "{run:?}");
    Ok(())
}
