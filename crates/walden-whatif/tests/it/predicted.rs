//! Converts bytes to records and predicts from them, for the fuzzer and the property test.

use walden_explain::checkpoints::Cause;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::payload::xlog::WalLevel;
use walden_format::record::{Record, RelFileLocator};
use walden_format::stream::Visitor;
use walden_format::version::Major;
use walden_recompress::Method;
use walden_redo::Replay;
use walden_whatif::Bucket;
use walden_whatif::level::Level;
use walden_whatif::objects::{Change, ObjectChange};
use walden_whatif::settings::Settings;
use walden_whatif::simulate::{CheckpointRecords, Simulation};
use walden_whatif::trace::{Pass, PassOutcome, Plan};

#[allow(dead_code, reason = "replay has a use of its own for it")]
#[path = "../../../walden-redo/tests/it/arbitrary.rs"]
mod arbitrary;

/// The number of settings that change no records without images.
const ALIKE: usize = 3;

/// Predicts from the records that the bytes encode.
pub fn predict(input: &[u8]) {
    let outcome = outcome(input, usize::MAX);
    // Without the others, these settings take a shorter path to the same result.
    let alike = self::outcome(input, ALIKE);
    assert_eq!(format!("{:?}", alike.predictions), format!("{:?}", &outcome.predictions[..ALIKE]));
    assert_eq!(
        format!("{:?}", (alike.actual, alike.diagnostics)),
        format!("{:?}", (outcome.actual, outcome.diagnostics))
    );
    // WAL whose records follow a switch in its own segment is invalid.
    if outcome.actual.get(Bucket::Switches) == 0 {
        assert_eq!(outcome.actual.total(), outcome.trace_bytes);
    }
    for prediction in &outcome.predictions {
        assert_eq!(prediction.buckets.total(), prediction.bytes);
    }
}

/// Returns the outcome of a pass with the first `settings` of all.
fn outcome(input: &[u8], settings: usize) -> PassOutcome {
    let last = input.last().copied().unwrap_or(0);
    let pass = arbitrary::run(
        input,
        |replay, version| pass(replay, version, last, settings),
        |pass: &mut Pass, record: &Record<'_>| {
            let _ = pass.record(record);
        },
    );
    let (outcome, mut replay) = pass.finish();
    arbitrary::look_at(&mut replay);
    outcome
}

fn pass(replay: Replay, version: Major, choice: u8, settings: usize) -> Pass {
    const START: Lsn = Lsn(1 << 20);
    let traced = Settings::default_of(version);
    let levels = [Level::Minimal, Level::Replica, Level::Logical];
    let own = CheckpointRecords { redo: 30, running: 50, online: 114 };
    let file = |relation| RelFileLocator { tablespace: 1663, database: 5, relation };
    let all = [
        traced.clone(),
        Settings { full_page_writes: false, ..traced.clone() },
        Settings { wal_compression: Some(Method::Pglz), max_wal_size: 2 << 20, ..traced.clone() },
        Settings { wal_compression: Some(Method::Lz4), wal_level: WalLevel::Logical, ..traced.clone() },
        Settings { wal_compression: Some(Method::Zstd), wal_level: WalLevel::Minimal, ..traced.clone() },
        Settings {
            wal_log_hints: !traced.log_hints(),
            data_checksums: false,
            archive_timeout: 1,
            ..traced.clone()
        },
        Settings { dropped: [file(1)].into_iter().collect(), ..traced.clone() },
    ];
    let all = all.map(|one| Settings { segment_size: SegmentSize::new(1_u64 << 20).unwrap(), ..one });
    let all = all.into_iter().take(settings);
    let simulations = all.map(|one| Simulation::new(one, START, START, 0, own)).collect();
    let plan = Plan {
        version,
        from: START,
        to: (choice & 1 == 0).then_some(Lsn(START.0 + 40_000)),
        redo: (choice & 2 == 0).then_some(START),
        full_page_writes: choice & 4 == 0,
        log_hints: choice & 8 == 0,
        level: levels[usize::from(choice >> 4) % 3],
        running: [Lsn(START.0 + 64)].into_iter().collect(),
        undecided: Vec::new(),
        requested: vec![(Lsn(START.0 + 128), Cause::Requested)],
        times: [(START, 1), (Lsn(START.0 + 256), 400_000_000), (Lsn(START.0 + 512), i64::MAX / 2)].into(),
        redo_pointers: vec![START, Lsn(START.0 + 128)],
        end: Lsn(START.0 + 50_000),
        segment_size: SegmentSize::new(1_u64 << 20).unwrap(),
        drop_switches: choice & 64 == 0,
        shutdown_switches: Vec::new(),
    };
    let mut pass = Pass::new(replay, plan, simulations, choice & 128 == 0);
    let change = |change| ObjectChange {
        what: "it".into(),
        change,
        table: [file(0)].into_iter().collect(),
        indexes: [file(1)].into_iter().collect(),
    };
    pass.count_objects(vec![change(Change::AddIndex(8)), change(Change::FillFactor(70))]);
    pass
}
