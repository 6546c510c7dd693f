//! Replays a folder of WAL segments and prints a block's page as of an LSN.
//!
//! ```text
//! cargo run -p walden-redo --example page_at_lsn -- /archive/wal 1663/5/16384 0 0/01737D50
//! ```

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;

use walden_format::lsn::Lsn;
use walden_format::record::{Fork, Record, RelFileLocator};
use walden_format::stream::Visitor;
use walden_redo::describe::describe;
use walden_redo::{BlockKey, Page, Replay};
use walden_source::inventory::Inventory;
use walden_source::scan::{ScanOptions, scan_in_order};

/// Replays records up to an LSN.
struct ReplayUntil {
    replay: Replay,
    until: Lsn,
}

impl Visitor for ReplayUntil {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if record.end > self.until {
            return ControlFlow::Break(());
        }
        self.replay.apply(record, &mut ());
        ControlFlow::Continue(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, relation, block, until] = arguments.as_slice() else {
        return Err("usage: page_at_lsn FOLDER TABLESPACE/DATABASE/FILE BLOCK LSN".into());
    };
    let numbers = relation.split('/').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let &[tablespace, database, file] = numbers.as_slice() else {
        return Err("the relation is TABLESPACE/DATABASE/FILE".into());
    };
    let relation = RelFileLocator { tablespace, database, relation: file };
    let key = BlockKey { relation, fork: Fork::MAIN, block: block.parse()? };

    let mut visitor = ReplayUntil { replay: Replay::default(), until: until.parse()? };
    for run in &Inventory::search(&[PathBuf::from(folder)])?.runs {
        let options = ScanOptions::new(1).to(Some(visitor.until));
        scan_in_order(run, options, &mut visitor, |_| ());
    }

    let store = &mut visitor.replay.store;
    let Some(slot) = store.find(key) else { return Err("no record touches the block".into()) };
    let mut page = Page::default();
    if !store.read(slot, &mut page) {
        return Err(format!("the page is not known: {:?}", store.state(slot)).into());
    }
    println!("{}", describe(&page, key.fork, key.block, None).kind);
    println!("{page:?}");
    Ok(())
}
