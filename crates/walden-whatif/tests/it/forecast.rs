//! Forecasts of the golden segments and of WAL generated in memory, without a server.

use std::path::{Path, PathBuf};

use walden_format::rmgr::info::{heap, smgr, xact, xlog};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_recompress::Method;
use walden_source::inventory::Inventory;
use walden_testing::writer::LogWriter;
use walden_whatif::learn::Origin;
use walden_whatif::survey::Survey;
use walden_whatif::{Bucket, ErrorParts, Forecast, Prediction, Question, predict};

/// Predicts sets of settings, each as `name=value ...`.
fn forecast(folder: &Path, changes: &[&str]) -> Forecast {
    forecast_under(folder, &[], changes)
}

/// Predicts like [`forecast`], with settings of the trace.
fn forecast_under(folder: &Path, traced: &[(&str, &str)], changes: &[&str]) -> Forecast {
    let inventory = Inventory::search(&[folder]).unwrap();
    let change = |text: &&str| {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let question = Question {
        traced: traced.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        changes: changes.iter().map(change).collect(),
        threads: 2,
        memory_bytes: 64 << 20,
        ..Question::default()
    };
    let forecast = predict(&inventory.runs[0], &question, &|_| ()).unwrap();
    assert_eq!(forecast.actual.total(), forecast.trace_bytes);
    for (_, prediction) in &forecast.predictions {
        assert_eq!(prediction.buckets.total(), prediction.bytes);
    }
    forecast
}

fn golden(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(version)
}

fn only(forecast: &Forecast) -> &Prediction {
    &forecast.predictions[0].1
}

/// The golden segments start while a server is working, so most of their pages are unknown. Records and
/// forced images do not depend on them, and the image rule is applied only to known pages. The workload turns
/// `full_page_writes` off at its start, where all of these pages have their image.
#[test]
fn the_self_check_reproduces_what_the_trace_shows() {
    for version in ["14.23", "15.18", "16.14", "17.10", "17.11"] {
        let forecast = forecast_under(&golden(version), &[("full_page_writes", "on")], &[]);
        let counts = forecast.diagnostics;
        assert!(counts.decisions > 4000 && counts.pages_unknown > 0, "{version}: {counts:?}");
        assert_eq!(counts.missing_images + counts.unexpected_images, 0, "{version}: {counts:?}");
        let bytes = |bucket| (forecast.self_check.buckets.get(bucket), forecast.actual.get(bucket));
        let (predicted, actual) = bytes(Bucket::ForcedImages);
        assert_eq!(predicted, actual, "{version}");
        let (predicted, actual) = bytes(Bucket::Records);
        assert!(predicted.abs_diff(actual) * 100 < actual, "{version}: {predicted} for {actual}");
    }
}

#[test]
fn settings_are_learned_from_the_trace() {
    let value = |forecast: &Forecast, name: &str| {
        let row = forecast.learned.traced.iter().find(|row| row.name == name).unwrap();
        (row.value.clone(), row.from)
    };
    for (version, compression) in
        [("15.18-pglz", Method::Pglz), ("15.18-lz4", Method::Lz4), ("15.18-zstd", Method::Zstd)]
    {
        let forecast = forecast(&golden(version), &[]);
        assert_eq!(forecast.learned.settings.wal_compression, Some(compression));
        assert_eq!(value(&forecast, "wal_compression").1, Origin::Learned);
        assert_eq!(value(&forecast, "wal_segment_size"), ("1MB".into(), Origin::Learned));
    }
}

#[test]
fn without_full_page_writes_only_forced_images_are_left() {
    let changes = ["full_page_writes=off", "full_page_writes=on"];
    let forecast = forecast_under(&golden("15.18"), &[("full_page_writes", "on")], &changes);
    let [(_, off), (_, on)] = forecast.predictions.as_slice() else { panic!() };
    assert!(forecast.actual.get(Bucket::CheckpointImages) > 0);
    assert_eq!(off.buckets.get(Bucket::CheckpointImages), 0);
    assert_eq!(off.buckets.get(Bucket::ForcedImages), forecast.actual.get(Bucket::ForcedImages));
    assert!(
        off.buckets.get(Bucket::Records) > forecast.actual.get(Bucket::Records),
        "displaced data is back"
    );
    assert_eq!(on.buckets, forecast.self_check.buckets);
}

#[test]
fn compression_shrinks_images_and_nothing_else() {
    let forecast = forecast(
        &golden("15.18"),
        &["wal_compression=pglz", "wal_compression=lz4", "wal_compression=zstd", "wal_compression=off"],
    );
    let off = &forecast.predictions[3].1;
    assert_eq!(off.buckets, forecast.self_check.buckets);
    for (settings, prediction) in &forecast.predictions[..3] {
        assert!(prediction.buckets.images() < off.buckets.images() * 9 / 10, "{settings:?}");
        assert!(prediction.buckets.images() > 0);
        assert_eq!(prediction.buckets.get(Bucket::Records), off.buckets.get(Bucket::Records));
        assert_eq!(prediction.images, off.images);
    }
}

#[test]
fn uncompressed_images_are_predicted_from_a_compressed_trace() {
    let forecast = forecast(&golden("15.18-lz4"), &["wal_compression=off"]);
    let compressed = &forecast.self_check;
    assert!(only(&forecast).buckets.images() > compressed.buckets.images());
    assert_eq!(only(&forecast).images, compressed.images);
    assert_eq!(only(&forecast).buckets.get(Bucket::Records), compressed.buckets.get(Bucket::Records));
}

#[test]
fn the_segment_size_moves_page_headers_alone() {
    let forecast = forecast(&golden("15.18"), &["wal_segment_size=1MB", "wal_segment_size=16MB"]);
    let [(_, small), (_, large)] = forecast.predictions.as_slice() else { panic!() };
    for bucket in Bucket::ALL.into_iter().filter(|bucket| *bucket != Bucket::PageHeaders) {
        assert_eq!(small.buckets.get(bucket), large.buckets.get(bucket), "{bucket:?}");
    }
    let headers = |one: &Prediction| one.buckets.get(Bucket::PageHeaders);
    // A long header has 16 additional bytes, at the start of each segment.
    assert!((headers(small) - headers(large)) % 16 == 0 && headers(small) >= headers(large));
    assert!(large.segments <= small.segments);
}

/// A table whose pages are initialized in the WAL, with a checkpoint and one more insert into each page;
/// written with `full_page_writes=off`, so that the WAL itself has no image.
struct Table {
    writer: LogWriter,
    pages: u32,
}

impl Table {
    fn new(pages: u32) -> Table {
        let mut table = Table { writer: LogWriter::new(Major::V15), pages };
        table.checkpoint(0);
        (0..pages).for_each(|block| table.insert(block, 1, true));
        table
    }

    fn insert(&mut self, block: u32, offset: u16, is_first: bool) {
        self.insert_into(16384, block, offset, is_first);
    }

    fn insert_into(&mut self, relation: u32, block: u32, offset: u16, is_first: bool) {
        self.insert_row(relation, (block, offset), is_first, &[0x55; 100]);
    }

    fn insert_row(&mut self, relation: u32, (block, offset): (u32, u16), is_first: bool, row: &[u8]) {
        const WILL_INIT: u8 = 0x40;
        const HAS_DATA: u8 = 0x20;
        let mut rest = vec![0, HAS_DATA | if is_first { WILL_INIT } else { 0 }];
        // xl_heap_header: infomask2, infomask, t_hoff; then the tuple after its fixed header.
        let mut data = vec![1, 0, 2, 8, 24, 0];
        data.extend(row);
        rest.extend((data.len() as u16).to_le_bytes());
        for field in [1663, 5, relation, block] {
            rest.extend(u32::to_le_bytes(field));
        }
        rest.extend([255, 3]);
        rest.extend(data);
        rest.extend(offset.to_le_bytes());
        rest.push(0);
        let info = heap::INSERT | if is_first { heap::INIT_PAGE } else { 0 };
        self.writer.record(rmid::HEAP, info, 700, &rest);
    }

    fn commit(&mut self, seconds: i64) {
        let mut rest = vec![255, 8];
        rest.extend((seconds * 1_000_000).to_le_bytes());
        self.writer.record(rmid::XACT, xact::COMMIT, 700, &rest);
    }

    /// An online checkpoint that started at a time in seconds since 2000-01-01 UTC.
    fn checkpoint(&mut self, seconds: i64) {
        let redo = self.writer.position();
        let mut data = vec![0; 88];
        data[..8].copy_from_slice(&redo.0.to_le_bytes());
        (data[8], data[12]) = (3, 3);
        data[64..72].copy_from_slice(&(946_684_800 + seconds).to_le_bytes());
        let mut rest = vec![255, 88];
        rest.extend(data);
        self.writer.record(rmid::XLOG, xlog::CHECKPOINT_ONLINE, 0, &rest);
    }

    fn forecast(&self, changes: &[&str]) -> Forecast {
        let folder = tempfile::tempdir().unwrap();
        self.writer.save(folder.path());
        forecast(folder.path(), changes)
    }
}

#[test]
fn a_page_has_an_image_at_its_first_change_after_the_redo_pointer() {
    let mut table = Table::new(50);
    let images = |table: &Table| {
        let forecast = table.forecast(&["full_page_writes=on"]);
        assert!(!forecast.learned.settings.full_page_writes, "as the checkpoints log it");
        assert_eq!(forecast.diagnostics.pages_unknown, 0);
        let records = forecast.actual.get(Bucket::Records);
        assert_eq!(forecast.self_check.buckets.get(Bucket::Records), records);
        only(&forecast).images
    };
    table.commit(10);
    // Changed again in the same cycle: no image.
    (0..table.pages).for_each(|block| table.insert(block, 2, false));
    assert_eq!(images(&table), 0);
    table.checkpoint(15);
    table.commit(20);
    // The first change of 20 pages after the redo pointer, twice.
    for offset in [3, 4] {
        (0..20).for_each(|block| table.insert(block, offset, false));
    }
    assert_eq!(images(&table), 20);
    table.checkpoint(25);
    (0..7).for_each(|block| table.insert(block, 5, false));
    assert_eq!(images(&table), 27);
}

#[test]
fn the_size_of_an_image_is_the_page_without_its_hole() {
    let mut table = Table::new(10);
    table.commit(10);
    table.checkpoint(15);
    (0..10).for_each(|block| table.insert(block, 2, false));
    let forecast = table.forecast(&["full_page_writes=on"]);
    // Page header, two line pointers and two tuples of 24 + 100 bytes, aligned; the image header is 5 bytes.
    let page = 24 + 2 * 4 + 2 * (24 + 100_u64).next_multiple_of(8);
    assert_eq!(only(&forecast).buckets.get(Bucket::CheckpointImages), 10 * (page + 5));
    assert_eq!(only(&forecast).sampling_error, 0.0);
}

#[test]
fn a_smaller_max_wal_size_brings_checkpoints_and_images() {
    let mut table = Table::new(300);
    for round in 0..60 {
        table.commit(10 + i64::from(round));
        for block in 0..table.pages {
            table.insert(block, round + 2, false);
        }
    }
    let forecast = table.forecast(&[
        "full_page_writes=on max_wal_size=2MB",
        "full_page_writes=on max_wal_size=1GB",
        "max_wal_size=2MB",
    ]);
    let [(_, small), (_, large), (_, without)] = forecast.predictions.as_slice() else { panic!() };
    assert!(small.checkpoints.len() as u64 >= forecast.trace_bytes / (1 << 20), "{:?}", small.checkpoints);
    assert_eq!(large.images, 0);
    assert_eq!(without.images, 0);
    // Each page has at most one image per checkpoint. The images fill segments in turn, so that each cycle
    // contains only some pages.
    let (cycles, pages) = (small.checkpoints.len() as u64, u64::from(table.pages));
    assert!((2 * pages..=pages * cycles).contains(&small.images), "{cycles}: {}", small.images);
    assert!(small.bytes > large.bytes);
    assert_eq!(large.buckets.get(Bucket::Records), forecast.actual.get(Bucket::Records));
}

/// Images of some pages compress well, and of others not at all, so that a sample has an error. It moves the
/// second checkpoint by volume, which starts while pages are changed that have their image already: without
/// one, a change has a fiftieth of the bytes.
#[test]
fn the_error_covers_checkpoints_that_the_error_of_a_sample_moves() {
    const PAGES: u32 = 400;
    let forecast = |filling: u32, all_images| {
        let mut noise = 12_345_u32;
        let mut next = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            noise >> 24
        };
        let mut table = Table { writer: LogWriter::new(Major::V15), pages: PAGES };
        table.checkpoint(0);
        for block in 0..PAGES {
            let mut row = vec![0; 6500];
            let incompressible = 6500 * next() as usize / 255;
            row[..incompressible].iter_mut().for_each(|byte| *byte = next() as u8);
            table.insert_row(16384, (block, 1), true, &row);
        }
        table.checkpoint(1);
        (0..PAGES).for_each(|block| table.insert(block, 2, false));
        // Slowly, so that no checkpoint is requested while another one is in progress.
        let seconds = |commit: u32| i64::from(10 + commit / 20);
        (0..filling).for_each(|commit| table.commit(seconds(commit)));
        for offset in 3..7 {
            for block in 0..PAGES {
                table.insert(block, offset, false);
                table.commit(seconds(filling + u32::from(offset) * PAGES + block));
            }
        }
        let folder = tempfile::tempdir().unwrap();
        table.writer.save(folder.path());
        let inventory = Inventory::search(&[folder.path()]).unwrap();
        let change = ["full_page_writes=on", "wal_compression=lz4", "max_wal_size=4MB"];
        let pairs = change.map(|pair| pair.split_once('=').unwrap());
        let question = Question {
            changes: vec![pairs.map(|(name, value)| (name.to_string(), value.to_string())).into()],
            traced: vec![("checkpoint_timeout".into(), "1h".into())],
            all_images,
            threads: 2,
            memory_bytes: 64 << 20,
            ..Question::default()
        };
        predict(&inventory.runs[0], &question, &|_| ()).unwrap()
    };
    let mut is_needed = false;
    for filling in (8000..20_000).step_by(1000) {
        let (sampled, all) = (forecast(filling, false), forecast(filling, true));
        let (predicted, exact) = (only(&sampled), only(&all));
        let (off, parts) = (predicted.bytes.abs_diff(exact.bytes), sampled.error_parts(predicted));
        is_needed |= off as f64 > ErrorParts { positions: 0.0, ..parts }.total();
        assert!(off as f64 <= parts.total(), "{filling}: {off} of {}: {parts:?}", exact.bytes);
    }
    assert!(is_needed, "no checkpoint was moved by much");
}

/// `logical` logs rows also next to images, which displaced them in the trace.
#[test]
fn rows_next_to_images_are_predicted_whatever_the_other_settings_are() {
    let alone = forecast(&golden("15.18"), &["wal_level=logical"]);
    let among = forecast(&golden("15.18"), &["wal_level=logical", "wal_level=logical full_page_writes=off"]);
    let records = |forecast: &Forecast| forecast.predictions[0].1.buckets.get(Bucket::Records);
    assert_eq!(records(&alone), records(&among));
    assert!(records(&alone) > alone.self_check.buckets.get(Bucket::Records));
}

/// A server that logs hint bits logs images of the free space map, too, which the trace does not show.
#[test]
fn images_of_free_space_maps_are_in_the_bound_of_hint_bits() {
    let mut table = Table::new(50);
    table.commit(10);
    let bound = |table: &Table| {
        let forecast = table.forecast(&["full_page_writes=on wal_log_hints=on"]);
        (only(&forecast).hints_at_most, forecast.error_bytes(only(&forecast)) as u64)
    };
    let image = (24 + 20 + 8192_u64).next_multiple_of(8);
    let (hints, error) = bound(&table);
    assert!(hints == 3 * image && error >= hints, "{hints}, {error}");
    // A page that is changed again in the next cycle has an image anyway; it may have one for hint bits alone
    // in a cycle without changes.
    table.checkpoint(15);
    (0..20).for_each(|block| table.insert(block, 2, false));
    table.checkpoint(25);
    table.commit(30);
    let (hints, _) = bound(&table);
    let pages = 50 * image;
    assert!((6 * image + pages / 10..=6 * image + pages).contains(&hints), "{hints}");
}

/// `minimal` logs files created by a transaction as whole pages at commit, if they are small: including the
/// hole, and with the free space map that single inserts create.
#[test]
fn minimal_logs_small_files_with_their_holes() {
    const IMAGE: u64 = 8192 + 5;
    let forced = |pages: u32| {
        let mut table = Table { writer: LogWriter::new(Major::V15), pages };
        // xl_smgr_create: file, fork.
        let mut rest = vec![255, 16];
        for field in [1663, 5, 16384, 0] {
            rest.extend(u32::to_le_bytes(field));
        }
        table.writer.record(rmid::SMGR, smgr::CREATE, 700, &rest);
        (0..pages).for_each(|block| table.insert(block, 1, true));
        table.commit(10);
        let forecast = table.forecast(&["wal_level=minimal", "wal_level=minimal wal_skip_threshold=0"]);
        let [(_, small), (_, synced)] = forecast.predictions.as_slice() else { panic!() };
        assert_eq!((synced.buckets.get(Bucket::ForcedImages), synced.unshown), (0, 0));
        (small.buckets.get(Bucket::ForcedImages), small.unshown > 3 * IMAGE)
    };
    assert_eq!(forced(1), (IMAGE, false));
    assert_eq!(forced(40), (43 * IMAGE, true));
}

/// The pages are unknown: pages of catalogs are seldom full, but may be.
#[test]
fn pages_of_catalogs_are_not_assumed_to_be_full() {
    let of = |relation: u32| {
        let mut table = Table { writer: LogWriter::new(Major::V15), pages: 300 };
        (0..300).for_each(|block| table.insert_into(relation, block, 2, false));
        table.commit(1);
        let forecast = table.forecast(&["full_page_writes=on"]);
        let image = only(&forecast).buckets.get(Bucket::CheckpointImages) / 300;
        (image, image + forecast.error_bytes(only(&forecast)) as u64 / 300 >= 8192)
    };
    assert_eq!(of(1249), (5125, true));
    assert_eq!(of(16384).0, 8197);
}

/// An extension requests the image of a page that it created (`GENERIC_XLOG_FULL_IMAGE`), regardless of
/// settings.
#[test]
fn images_that_extensions_ask_for_stay() {
    let mut table = Table::new(1);
    for (block, lsn) in [(0, 0), (1, 1)] {
        const HAS_IMAGE: u8 = 0x10;
        const APPLY: u8 = 0x02;
        let mut rest = vec![0, HAS_IMAGE, 0, 0];
        rest.extend([0, 0x20, 0, 0, APPLY]);
        for field in [1663, 5, 16385, block] {
            rest.extend(u32::to_le_bytes(field));
        }
        let mut page = [0; 8192];
        page[4] = lsn;
        for (at, value) in [(12, 24_u16), (14, 8192), (16, 8192), (18, 8196)] {
            page[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        rest.extend(page);
        table.writer.record(rmid::GENERIC, 0, 700, &rest);
    }
    table.commit(10);
    let folder = tempfile::tempdir().unwrap();
    table.writer.save(folder.path());
    let inventory = Inventory::search(&[folder.path()]).unwrap();
    let images = |traced: &str| {
        let traced = vec![("full_page_writes".to_owned(), traced.to_owned())];
        let changes = vec![vec![("full_page_writes".to_owned(), "off".to_owned())]];
        let question =
            Question { traced, changes, threads: 1, memory_bytes: 64 << 20, ..Question::default() };
        let forecast = predict(&inventory.runs[0], &question, &|_| ()).unwrap();
        only(&forecast).buckets.get(Bucket::ForcedImages) / (8192 + 5)
    };
    // The second page was logged before; without full_page_writes nothing else explains its image.
    assert_eq!((images("on"), images("off")), (1, 2));
}

#[test]
fn a_log_without_images_or_checkpoints_was_written_without_full_page_writes() {
    let learned = |pages: u32| {
        let mut table = Table { writer: LogWriter::new(Major::V15), pages };
        (0..pages).for_each(|block| table.insert(block, 2, false));
        table.commit(1);
        let forecast = table.forecast(&["full_page_writes=on"]);
        let row = forecast.learned.traced.iter().find(|row| row.name == "full_page_writes").unwrap();
        (row.value.clone(), row.from, only(&forecast).images)
    };
    assert_eq!(learned(300), ("off".into(), Origin::Learned, 300));
    // All of a few pages may have been changed before, since the same checkpoint.
    assert_eq!(learned(50).1, Origin::Assumed);
}

#[test]
fn evidence_in_the_trace_overrides_the_server_but_not_the_command_line() {
    let inventory = Inventory::search(&[golden("15.18-lz4")]).unwrap();
    let forecast = |traced: &[&str], server: &[&str]| {
        let setting = |value: &&str| ("wal_compression".to_string(), value.to_string());
        let [traced, server] = [traced, server].map(|values| values.iter().map(setting).collect());
        let question = Question { traced, server, threads: 2, memory_bytes: 64 << 20, ..Question::default() };
        let forecast = predict(&inventory.runs[0], &question, &|_| ()).unwrap();
        let row = forecast.learned.traced.iter().find(|row| row.name == "wal_compression").unwrap().clone();
        assert_eq!(forecast.learned.settings.show("wal_compression").as_ref(), Some(&row.value));
        row
    };
    let given = forecast(&["lz4"], &[]);
    assert_eq!((given.from, given.contradicted, given.contradiction()), (Origin::Given, false, None));
    let given = forecast(&["off"], &[]);
    assert!(given.contradicted && given.why.contains("the trace shows lz4"), "{}", given.why);
    assert_eq!(given.value, "off");
    let of_server = forecast(&[], &["lz4"]);
    assert_eq!((of_server.from, of_server.contradiction()), (Origin::Server, None));
    let of_trace = forecast(&[], &["off"]);
    assert_eq!((of_trace.from, of_trace.value.as_str()), (Origin::Learned, "lz4"));
    let text = "wal_compression: the server has off now, the WAL shows lz4, which counts";
    assert_eq!(of_trace.contradiction().unwrap().to_string(), text);
}

#[test]
fn archive_timeout_is_learned_from_switches_after_equal_times() {
    let learned = |waits: [i64; 5], given: Option<&str>| {
        let mut table = Table::new(10);
        let mut now = 10;
        table.commit(now);
        for wait in waits {
            now += wait;
            table.commit(now);
            table.writer.switch();
        }
        // The time of a switch is that of the next transaction end.
        table.commit(now + waits[4]);
        let folder = tempfile::tempdir().unwrap();
        table.writer.save(folder.path());
        let inventory = Inventory::search(&[folder.path()]).unwrap();
        let traced = given.map(|value| ("archive_timeout".to_string(), value.to_string()));
        let question = Question {
            traced: traced.into_iter().collect(),
            threads: 2,
            memory_bytes: 64 << 20,
            ..Question::default()
        };
        let forecast = predict(&inventory.runs[0], &question, &|_| ()).unwrap();
        let row = forecast.learned.traced.iter().find(|row| row.name == "archive_timeout").unwrap();
        (forecast.learned.settings.archive_timeout, row.from, row.contradicted)
    };
    assert_eq!(learned([60, 60, 61, 60, 59], None), (60, Origin::Learned, false));
    assert_eq!(learned([90, 20, 106, 108, 175], None), (0, Origin::Assumed, false));
    assert_eq!(learned([60, 60, 61, 60, 59], Some("0")), (0, Origin::Given, false));
}

/// A base backup switches the segment before its checkpoint and after its end.
#[test]
fn switches_of_a_base_backup_are_not_counted() {
    let mut table = Table::new(10);
    table.commit(10);
    table.writer.switch();
    let start = table.writer.position().plus(40);
    table.commit(20);
    let mut rest = vec![255, 8];
    rest.extend(start.0.to_le_bytes());
    table.writer.record(rmid::XLOG, xlog::BACKUP_END, 0, &rest);
    table.writer.switch();
    table.commit(30);
    table.writer.switch();
    let requested = table.writer.records.last().unwrap().0;
    table.commit(40);
    let folder = tempfile::tempdir().unwrap();
    table.writer.save(folder.path());
    let inventory = Inventory::search(&[folder.path()]).unwrap();
    let survey = Survey::read(&inventory.runs[0], None, None, 1, |_| ());
    assert_eq!((survey.evidence.backups, survey.switches), (1, vec![requested]));
}

/// Settings are inferred from all of the WAL, whatever the window.
#[test]
fn the_window_does_not_hide_what_the_log_shows() {
    let mut table = Table::new(50);
    table.commit(1);
    let (from, before) = (table.writer.position(), table.writer.position());
    (0..10).for_each(|block| table.insert(block, 2, false));
    table.commit(2);
    let folder = tempfile::tempdir().unwrap();
    table.writer.save(folder.path());
    let inventory = Inventory::search(&[folder.path()]).unwrap();
    let question = Question { from: Some(from), threads: 2, memory_bytes: 64 << 20, ..Question::default() };
    let forecast = predict(&inventory.runs[0], &question, &|_| ()).unwrap();
    assert!(forecast.span.0 >= before);
    let row = forecast.learned.traced.iter().find(|row| row.name == "full_page_writes").unwrap();
    assert_eq!((row.from, row.why.as_str()), (Origin::Learned, "logged by checkpoints"));
}

/// Returns the value of an inferred setting, its origin, and its range if it is assumed.
fn learned_of(forecast: &Forecast, name: &str) -> (String, Origin, Option<[String; 2]>) {
    let row = forecast.learned.traced.iter().find(|row| row.name == name).unwrap();
    (row.value.clone(), row.from, row.range.clone())
}

/// Sixteen minutes without a checkpoint: until 16, one whose record is missing from the WAL may be in
/// progress.
#[test]
fn an_assumed_timeout_is_as_long_as_the_trace_shows() {
    let mut table = Table::new(40);
    for second in 0..954 {
        table.commit(10 + second);
        table.insert(second as u32 % 40, 2 + (second / 40) as u16, false);
    }
    let forecast = table.forecast(&[]);
    let range = ["506s", "1d"].map(str::to_owned);
    assert_eq!(
        learned_of(&forecast, "checkpoint_timeout"),
        ("15min".to_owned(), Origin::Assumed, Some(range))
    );
}

/// A checkpoint by volume every 50 or 70 seconds, so that none is triggered by time: any longer timeout is
/// possible. With a larger `max_wal_size`, the timeout decides.
#[test]
fn the_error_covers_the_settings_that_the_trace_does_not_show() {
    let mut table = Table::new(300);
    let mut now = 0;
    for cycle in 0..14 {
        let end = table.writer.position().0.next_multiple_of(1 << 20);
        let mut blocks = 0..300;
        for _ in 0..if cycle % 2 == 0 { 50 } else { 70 } {
            table.commit(now);
            now += 1;
            blocks.by_ref().take(6).for_each(|block| table.insert(block, cycle + 2, false));
            (0..3).for_each(|_| _ = table.writer.main_data(rmid::LOGICALMSG, 0, &[0x33; 4000]));
        }
        while table.writer.position().0 < end {
            table.writer.main_data(rmid::LOGICALMSG, 0, &[0x33; 4000]);
        }
        table.checkpoint(now);
    }
    let folder = tempfile::tempdir().unwrap();
    table.writer.save(folder.path());
    let changes = [
        "full_page_writes=on max_wal_size=8GB",
        "full_page_writes=on max_wal_size=8GB checkpoint_timeout=5min",
    ];
    let assumed = forecast(folder.path(), &changes);
    let range = ["69s", "1d"].map(str::to_owned);
    assert_eq!(learned_of(&assumed, "checkpoint_timeout"), ("5min".to_owned(), Origin::Assumed, Some(range)));
    assert_eq!(learned_of(&assumed, "max_wal_size").1, Origin::Learned);
    let with = |timeout| {
        let forecast = forecast_under(folder.path(), &[("checkpoint_timeout", timeout)], &changes[..1]);
        assert_eq!(forecast.predictions[0].1.assumption_error, 0.0, "given");
        forecast.predictions[0].1.bytes
    };
    let [shortest, longest] = ["69s", "1d"].map(with);
    assert!(shortest > longest + longest / 20, "{shortest} {longest}");
    let prediction = &assumed.predictions[0].1;
    let error = assumed.error_bytes(prediction) as u64;
    for possible in [shortest, longest] {
        assert!(
            prediction.bytes.abs_diff(possible) <= error,
            "{possible}: {} with {error}",
            prediction.bytes
        );
    }
    assert_eq!(assumed.predictions[1].1.assumption_error, 0.0, "named");
}

/// A job switches segments every minute for a while, and later a segment stays open for ten minutes.
#[test]
fn a_segment_that_stays_open_contradicts_archive_timeout() {
    let learned = |seconds: i64| {
        let mut table = Table::new(10);
        let mut now = 10;
        for _ in 0..5 {
            table.commit(now);
            now += 60;
            table.writer.switch();
        }
        for step in 0..20 {
            table.commit(now + step * seconds / 20);
        }
        learned_of(&table.forecast(&[]), "archive_timeout").1
    };
    assert_eq!(learned(50), Origin::Learned);
    assert_eq!(learned(600), Origin::Assumed);
}
