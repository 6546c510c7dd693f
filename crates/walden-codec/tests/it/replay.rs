//! Version 1 of the format predicts bytes from replayed pages, so the behavior of replay is part of the
//! format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;

use walden_format::lsn::Lsn;
use walden_format::record::Record;
use walden_format::stream::{Decoder, StreamInfo, Visitor};
use walden_redo::{BlockKey, Page, PageStore, Replay, State};

use crate::material::segment;

/// Hashes of the pages after each record of the WAL.
struct Hashes {
    replay: Replay,
    records: u64,
    running: blake3::Hasher,
    page: Page,
}

impl Visitor for Hashes {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.replay.apply(record, &mut ());
        self.records += 1;
        self.running.update(&record.lsn.0.to_le_bytes());
        for block in record.blocks {
            self.hash_page(BlockKey::from_block(block));
        }
        ControlFlow::Continue(())
    }
}

impl Hashes {
    /// Adds the current page to the running hash.
    fn hash_page(&mut self, key: BlockKey) {
        let store = &mut self.replay.store;
        let is_exact = match store.find(key) {
            Some(slot) => store.state(slot) == State::Exact && store.read(slot, &mut self.page),
            None => false,
        };
        self.running.update(&[u8::from(is_exact)]);
        if is_exact {
            self.running.update(&self.page.0);
        }
    }
}

/// Returns the first 16 digits of a hash.
fn digits(hash: blake3::Hash) -> String {
    hash.to_hex()[..16].to_owned()
}

/// Returns the segments of each version of PostgreSQL.
fn segments() -> BTreeMap<String, Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden");
    let names = |path: &Path| {
        let mut names: Vec<String> = std::fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| name.strip_suffix(".xz").map(str::to_owned))
            .collect();
        names.sort();
        names
    };
    let folders =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_dir());
    folders.map(|entry| (entry.file_name().into_string().unwrap(), names(&entry.path()))).collect()
}

/// Returns a line for each segment, with a hash over the pages after each record, and a line for each page
/// after the last record.
fn lines() -> String {
    let mut lines = String::new();
    for (version, names) in segments() {
        for name in names {
            let bytes = segment(&version, &name);
            let info = StreamInfo::from_first_page(&bytes).unwrap();
            let start = Lsn(u64::from_le_bytes(bytes[8..16].try_into().unwrap()));
            let mut hashes = Hashes {
                replay: Replay::new(PageStore::default()),
                records: 0,
                running: blake3::Hasher::new(),
                page: Page::default(),
            };
            // The end of the WAL is not an error of the segment.
            let _ = Decoder::new(info, start, Lsn(u64::MAX)).push(&bytes, &mut hashes);
            assert!(hashes.records > 0, "{version}/{name}");
            let (records, running) = (hashes.records, digits(hashes.running.finalize()));
            writeln!(lines, "{version}/{name}: {records} records {running}").unwrap();
            let mut page = Page::default();
            let store = &mut hashes.replay.store;
            for (key, slot) in store.blocks() {
                let state = store.state(slot);
                let hash = match state == State::Exact && store.read(slot, &mut page) {
                    true => digits(blake3::hash(&page.0)),
                    false => "not known".to_owned(),
                };
                writeln!(lines, "  {key}: {hash}").unwrap();
            }
        }
    }
    lines
}

/// Returns the hashes of the segments in `testdata/golden`. Lines are only added, together with a segment.
///
/// To write the lines of new segments: `WALDEN_WRITE_HASHES=FILE cargo test -p walden-codec --test it
/// replay`.
fn frozen() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replay/v1.txt");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn version_1_replays_records_as_when_it_was_frozen() {
    let found = lines();
    if let Some(path) = std::env::var_os("WALDEN_WRITE_HASHES") {
        std::fs::write(path, &found).unwrap();
    }
    let frozen = frozen();
    let first = found.lines().zip(frozen.lines()).find(|(found, frozen)| found != frozen);
    assert!(
        found == frozen,
        "replay yields other pages than when version 1 of the compressed format was frozen: found {:?}, expected {:?}. \
         Files of version 1 that depend on such a page can no longer be decoded. Keep this behavior for version 1, and give \
         the new one to a new version of the format, with a higher least reader (docs/format.md, \"Versions\")",
        first.map(|(found, _)| found),
        first.map(|(_, frozen)| frozen),
    );
}
