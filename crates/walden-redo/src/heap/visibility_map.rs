//! The visibility map: two bits per block of a table.

use walden_format::record::{Fork, RelFileLocator};

use crate::store::PageStore;

/// The table was cut to `heap_blocks`.
pub(crate) fn truncate(store: &mut PageStore, relation: RelFileLocator, heap_blocks: u32) {
    let _ = (store, relation, heap_blocks, Fork::VISIBILITY_MAP);
}
