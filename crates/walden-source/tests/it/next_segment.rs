//! Records that continue in the next segment, of which a reader needs only their end.

use std::fs;
use std::io::{self, Cursor};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use walden_codec::container::{FileForm, Meta, WriteOptions, Writer};
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::record::Record;
use walden_format::stream::Visitor;
use walden_format::version::Major;
use walden_source::inventory::{Inventory, Run};
use walden_source::kept::KeptSegments;
use walden_source::open::Compression;
use walden_source::scan::{Damage, DamageKind, ScanOptions, SegmentEnd, scan, scan_in_order};
use walden_source::store::{SegmentContents, SegmentStore, SharedStore};
use walden_testing::writer::{LogWriter, PAGE};

use crate::material::compress;

const SIZE: usize = 1 << 20;

#[derive(Default)]
struct Records(Vec<Lsn>);

impl Visitor for Records {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.0.push(record.lsn);
        ControlFlow::Continue(())
    }
}

/// Returns three segments. A record with this number of bytes continues in the second one.
fn segments(bytes: usize) -> Vec<(String, Vec<u8>)> {
    let mut log = LogWriter::new(Major::V15);
    let fill = |log: &mut LogWriter, until: usize| {
        while log.bytes.len() < until {
            log.main_data(10, 0, &[1; 100]);
        }
    };
    fill(&mut log, SIZE - 2 * PAGE);
    log.main_data(10, 0, &vec![2; 2 * PAGE + bytes]);
    assert!(log.bytes.len() > SIZE + bytes);
    fill(&mut log, 2 * SIZE + 100_000);
    log.bytes.resize(3 * SIZE, 0);
    let (first, info) = (log.info.segment_size.segment_of(log.start), log.info);
    let name = |index| SegmentName::new(info.timeline, first + index as u64, info.segment_size).to_string();
    log.bytes.chunks(SIZE).enumerate().map(|(index, content)| (name(index), content.to_vec())).collect()
}

fn save(folder: &Path, segments: &[(String, Vec<u8>)]) -> Vec<PathBuf> {
    let save = |(name, content): &(String, Vec<u8>)| {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        path
    };
    segments.iter().map(save).collect()
}

fn options(threads: usize) -> ScanOptions {
    ScanOptions::new(threads)
}

/// Returns the damage that each way of reading finds.
fn damages(run: &Run) -> Vec<Damage> {
    let mut found = Vec::new();
    for threads in [1, 3] {
        let (_, end) = scan_in_order(run, options(threads), &mut Records::default(), |_| ());
        found.push(end);
        let mut last = None;
        scan(
            run,
            options(threads),
            |_| Records::default(),
            |outcome| {
                last = Some(outcome.end);
                ControlFlow::Continue(())
            },
        );
        found.extend(last);
    }
    let damage = |end| match end {
        SegmentEnd::Damaged(damage) => damage,
        other => panic!("{other:?}"),
    };
    found.into_iter().map(damage).collect()
}

#[test]
fn damage_where_a_record_goes_on_is_of_that_segment() {
    let folder = tempfile::tempdir().unwrap();
    let mut segments = segments(300_000);
    let paths = save(folder.path(), &segments);
    let inventory = Inventory::search(&[folder.path()]).unwrap();
    let run = &inventory.runs[0];
    let cut = 12 * PAGE;
    fs::write(&paths[1], &segments[1].1[..cut]).unwrap();
    for damage in damages(run) {
        assert_eq!((damage.path.as_path(), damage.segment), (paths[1].as_path(), run.segments[1].name));
        assert_eq!((damage.offset, damage.lsn), (cut as u64, run.segments[1].start.plus(cut as u64)));
        assert!(
            matches!(damage.kind, DamageKind::Truncated { found, .. } if found == cut as u64),
            "{damage}"
        );
    }

    segments[1].1 = compress(&segments[1].1, Compression::Gzip);
    save(folder.path(), &segments);
    let inventory = Inventory::search(&[folder.path()]).unwrap();
    let run = &inventory.runs[0];
    fs::write(&paths[1], &segments[1].1[..30]).unwrap();
    for damage in damages(run) {
        assert_eq!((damage.path.as_path(), damage.segment), (paths[1].as_path(), run.segments[1].name));
        assert_eq!(damage.lsn, run.segments[1].start.plus(damage.offset));
    }
}

/// As `walden compress` writes them: only the start of the next one is decoded, which may or may not be
/// enough.
#[test]
fn records_that_go_on_in_compressed_segments_are_read() {
    for bytes in [1000, 300_000] {
        let plain = segments(bytes);
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), &plain);
        let expected = read(folder.path());
        let compressed = tempfile::tempdir().unwrap();
        for (name, content) in &plain {
            let mut writer = Writer::new(Vec::new(), WriteOptions::new(FileForm::Segment));
            let meta = Meta { name: name.clone().into_bytes(), ..Meta::default() };
            writer.add(meta, false, &mut Cursor::new(content)).unwrap();
            fs::write(compressed.path().join(format!("{name}.wlz")), writer.finish().unwrap()).unwrap();
        }
        assert_eq!(read(compressed.path()), expected, "{bytes}");
    }
}

/// Returns all records, which are the same for all ways of reading.
fn read(folder: &Path) -> Vec<Lsn> {
    let inventory = Inventory::search(&[folder]).unwrap();
    assert_eq!((inventory.runs.len(), inventory.runs[0].segments.len()), (1, 3));
    let run = &inventory.runs[0];
    let mut in_order = Records::default();
    let (_, end) = scan_in_order(run, options(1), &mut in_order, |_| ());
    assert!(matches!(end, SegmentEnd::EndOfLog(_)), "{end:?}");
    for threads in [1, 2, 3] {
        let mut ahead = Records::default();
        let _ = scan_in_order(run, options(threads), &mut ahead, |_| ());
        let mut parallel = Vec::new();
        scan(
            run,
            options(threads),
            |_| Records::default(),
            |outcome| {
                parallel.extend(outcome.visitor.0);
                ControlFlow::Continue(())
            },
        );
        assert!(ahead.0 == in_order.0 && parallel == in_order.0, "{threads}");
    }
    in_order.0
}

/// Segments that two threads should decode at the same time.
#[derive(Clone, Debug)]
struct Pairs {
    segments: Arc<Vec<Vec<u8>>>,
    state: Arc<(Mutex<Waiting>, Condvar)>,
}

#[derive(Debug, Default)]
struct Waiting {
    is_waiting: bool,
    pairs: usize,
    /// How often no other thread came.
    alone: usize,
}

impl SegmentStore for Pairs {
    fn reader(&self) -> Box<dyn SegmentContents> {
        Box::new(self.clone())
    }
}

impl SegmentContents for Pairs {
    fn read(&mut self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        let (state, changed) = &*self.state;
        let mut waiting = state.lock().unwrap();
        waiting.is_waiting = !waiting.is_waiting;
        if waiting.is_waiting {
            let pairs = waiting.pairs;
            let wait = changed.wait_timeout_while(waiting, Duration::from_secs(2), |it| it.pairs == pairs);
            let (mut waiting, outcome) = wait.unwrap();
            if outcome.timed_out() {
                waiting.is_waiting = false;
                waiting.alone += 1;
            }
        } else {
            waiting.pairs += 1;
            changed.notify_all();
        }
        Ok(Arc::new(self.segments[number as usize].clone()))
    }
}

/// Each segment ends in a record that continues in the next one, which another thread decodes.
#[test]
fn a_thread_does_not_wait_for_the_next_segment_while_it_could_decode_another_one() {
    const COUNT: usize = 12;
    let mut log = LogWriter::new(Major::V15);
    while log.bytes.len() < COUNT * SIZE - PAGE {
        log.main_data(10, 0, &[1; 3000]);
    }
    let folder = tempfile::tempdir().unwrap();
    log.save(folder.path());
    let expected: Vec<Lsn> = log.records.iter().map(|(lsn, _)| *lsn).collect();
    let mut run = Inventory::search(&[folder.path()]).unwrap().runs.remove(0);
    let segments = run.segments.iter().map(|segment| fs::read(&segment.path).unwrap()).collect();
    let pairs = Pairs { segments: Arc::new(segments), state: Arc::default() };
    let store = SharedStore::new(pairs.clone());
    for (segment, number) in run.segments.iter_mut().zip(0..) {
        segment.compression = Compression::Walden;
        (segment.member, segment.store) = (Some(number), Some(store.clone()));
    }
    let _kept = KeptSegments::keep(&mut run, Lsn(0), (COUNT + 1) * SIZE);
    let mut found = Vec::new();
    scan(
        &run,
        options(2),
        |_| Records::default(),
        |outcome| {
            found.extend(outcome.visitor.0);
            ControlFlow::Continue(())
        },
    );
    assert_eq!(found, expected);
    let alone = pairs.state.0.lock().unwrap().alone;
    assert!(alone <= 3, "{alone} of {COUNT} segments");
}
