//! Relations and blocks as numbered by the model.

use walden_format::record::{Fork, RelFileLocator};
use walden_redo::BlockKey;

/// A relation as identified by the model and by PostgreSQL.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relation {
    /// Number in the model.
    pub number: u32,
    /// Locator in PostgreSQL.
    pub locator: RelFileLocator,
}

/// Address of a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockAddress {
    pub relation: Relation,
    pub fork: u8,
    pub block: u32,
}

impl BlockAddress {
    /// Returns the key of the block in the page store.
    pub fn key(self) -> BlockKey {
        BlockKey { relation: self.relation.locator, fork: Fork(self.fork), block: self.block }
    }
}
