//! Culprits in settings, and in commands that act like them.

use super::super::schema::Maker;
use super::{Case, Remedy};

/// Updates of wide rows with `wal_level = logical`, which no slot needs.
pub(super) fn logical_level(maker: &mut Maker) -> Case {
    let bytes = 600 + maker.below(900);
    let table = maker.table(6000, bytes).with_fillfactor(45);
    let total = maker.size(20_000);
    let sessions = maker.work(total, 4, table.rows, &table.update("$row"));
    let settings = vec![("wal_level", maker.fix("logical", "replica").into())];
    Case { settings, setup: table.create(), sessions, objects: vec!["wal_level".into()], ..Case::default() }
}

/// Updates all over a table of `pages` pages, in `parts`; each page is changed `times` times.
fn passes(maker: &mut Maker, pages: u64, parts: u64, times: u64) -> (Vec<String>, Vec<Vec<String>>) {
    let table = maker.table(pages * 20, 160).with_fillfactor(45);
    let mut setup = table.create();
    setup.push(format!("VACUUM {}", table.sql));
    let total = pages * times;
    let sessions = maker.work_in(parts, total, 4, table.rows, &table.update("$row"));
    (setup, sessions)
}

/// `max_wal_size` is small, with segments of 1 MB.
pub(super) fn max_wal_size(maker: &mut Maker) -> Case {
    let pages = maker.size(4000);
    let (setup, mut sessions) = passes(maker, pages, 40, 8);
    // Slowly enough that the server starts its checkpoints in time.
    for scripts in &mut sessions {
        *scripts = scripts.drain(..).flat_map(|script| [script, "SELECT pg_sleep(0.15)".into()]).collect();
    }
    let settings = vec![
        ("max_wal_size", format!("{}MB", 4 + maker.below(4))),
        ("min_wal_size", "2MB".into()),
        ("checkpoint_completion_target", "0.2".into()),
    ];
    Case {
        segment_mb: Some(1),
        settings,
        setup,
        sessions,
        objects: vec!["max_wal_size".into()],
        remedy: Remedy::TrySettings,
        ..Case::default()
    }
}

fn with_checkpoints(maker: &mut Maker, sessions: Vec<Vec<String>>, then: &str) -> Vec<Vec<String>> {
    let scripts = sessions.into_iter().enumerate().map(|(session, scripts)| {
        let add = |script: String| match session == 0 && !maker.is_fixed {
            true => vec![script, "CHECKPOINT".to_owned(), then.to_owned()],
            false => vec![script, then.to_owned()],
        };
        scripts.into_iter().flat_map(add).filter(|script| !script.is_empty()).collect()
    });
    scripts.collect()
}

/// A command makes a checkpoint after each pass.
pub(super) fn checkpoint_command(maker: &mut Maker) -> Case {
    let pages = maker.size(1500);
    let count = 4 + maker.below(6);
    let (setup, sessions) = passes(maker, pages, count, count);
    let sessions = with_checkpoints(maker, sessions, "");
    Case { setup, sessions, objects: vec!["CHECKPOINT".into()], ..Case::default() }
}

/// The same with data checksums, and reads that set hint bits after each checkpoint.
pub(super) fn checkpoints_and_checksums(maker: &mut Maker) -> Case {
    let table = maker.table(30_000, 160).with_fillfactor(45);
    let parts = 5 + maker.below(6);
    let mut setup = table.create();
    setup.push(format!("VACUUM {}", table.sql));
    let total = parts * maker.size(1500);
    let sessions = maker.work_in(parts, total, 4, table.rows, &table.update("$row"));
    let sessions =
        with_checkpoints(maker, sessions, &format!("SELECT max({}) FROM {}", table.number, table.sql));
    Case { checksums: Some(true), setup, sessions, objects: vec!["CHECKPOINT".into()], ..Case::default() }
}

/// Images after one checkpoint, without compression.
pub(super) fn uncompressed(maker: &mut Maker) -> Case {
    let pages = maker.size(4000);
    let (setup, sessions) = passes(maker, pages, 1, 1);
    let settings = vec![("wal_compression", "off".into())];
    Case {
        settings,
        setup,
        sessions,
        objects: vec!["wal_compression".into()],
        remedy: Remedy::TrySettings,
        ..Case::default()
    }
}

/// A setting for developers.
pub(super) fn consistency(maker: &mut Maker) -> Case {
    let pages = maker.size(400);
    let (setup, sessions) = passes(maker, pages, 4, 4);
    let managers = maker.pick(&["all", "heap", "heap,btree"]);
    let settings = vec![("wal_consistency_checking", if maker.is_fixed { "" } else { managers }.to_owned())];
    Case { settings, setup, sessions, objects: vec!["wal_consistency_checking".into()], ..Case::default() }
}

fn beats(maker: &mut Maker, times: u64, then: &str) -> (Vec<String>, Vec<String>) {
    let table = maker.table(10, 80);
    let mut scripts = Vec::new();
    for number in 0..times {
        scripts.extend([table.insert(&(100_000 + number).to_string()), then.to_owned()]);
    }
    (table.create(), scripts)
}

/// An almost idle server, whose segments are switched every second.
pub(super) fn archive_timeout(maker: &mut Maker) -> Case {
    let (setup, scripts) = beats(maker, 4, "SELECT pg_sleep(1.5)");
    let settings = vec![
        ("archive_mode", "on".into()),
        ("archive_command", "true".into()),
        ("archive_timeout", maker.fix("1s", "1h").to_owned()),
    ];
    Case {
        settings,
        setup,
        sessions: vec![scripts],
        objects: vec!["archive_timeout".into()],
        ..Case::default()
    }
}

/// Segments that a command switches.
pub(super) fn switches(maker: &mut Maker) -> Case {
    let times = 3 + maker.below(3);
    let then = maker.fix("SELECT pg_switch_wal()", "SELECT 1");
    let then = format!("SELECT pg_sleep(0.3); {then}");
    let (setup, scripts) = beats(maker, times, &then);
    Case { setup, sessions: vec![scripts], objects: vec!["pg_switch_wal".into()], ..Case::default() }
}
