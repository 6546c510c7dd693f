//! Tests that a store with little memory produces the same pages as one with unlimited memory.

use std::ops::ControlFlow;
use std::path::Path;

use walden_format::record::Record;
use walden_format::stream::Visitor;
use walden_redo::{MIN_RESIDENT, StoreOptions};
use walden_redo::{Page, PageStore, Replay, State};
use walden_source::inventory::Inventory;
use walden_source::scan::{ScanOptions, scan_in_order};

const GOLDEN: [&str; 7] = ["14.23", "15.18", "16.14", "17.10", "17.11", "18.6", "19.rc1"];

struct Both([Replay; 2]);

impl Visitor for Both {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.0.iter_mut().for_each(|replay| replay.apply(record, &mut ()));
        ControlFlow::Continue(())
    }
}

#[test]
fn a_bound_of_memory_changes_no_page() {
    for version in GOLDEN {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(version);
        let inventory = Inventory::search(&[folder]).unwrap();
        let whole = PageStore::default();
        let bounded = PageStore::new(StoreOptions::default().memory_bytes(0));
        let mut both = Both([whole, bounded].map(Replay::new));
        for run in &inventory.runs {
            let options = ScanOptions::new(1);
            scan_in_order(run, options, &mut both, |_| ());
        }
        let Both([mut whole, mut bounded]) = both;
        assert!(bounded.store.failure().is_none());
        let blocks = whole.store.blocks();
        let (resident, spilled) = bounded.store.kept();
        assert!(resident <= MIN_RESIDENT);
        assert!(spilled > 20, "{version}: {spilled} pages in the file");
        assert_eq!(
            blocks.iter().map(|(key, _)| *key).collect::<Vec<_>>(),
            bounded.store.blocks().iter().map(|(key, _)| *key).collect::<Vec<_>>()
        );
        let (mut expected, mut found) = (Page::default(), Page::default());
        for (key, slot) in blocks {
            let other = bounded.store.find(key).unwrap();
            let state = whole.store.state(slot);
            assert_eq!(state, bounded.store.state(other), "{version}: {key}");
            assert_eq!(whole.store.last(slot), bounded.store.last(other), "{version}: {key}");
            assert_eq!(whole.store.read(slot, &mut expected), state == State::Exact);
            assert_eq!(bounded.store.read(other, &mut found), state == State::Exact);
            assert!(state != State::Exact || expected.0 == found.0, "{version}: {key}");
        }
    }
}
