//! Relations and blocks, as the model numbers them.

use walden_format::record::{Fork, RelFileLocator};
use walden_redo::BlockKey;

/// A relation, as the model and as PostgreSQL identify it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relation {
    /// Its number in the model.
    pub number: u32,
    /// Its locator.
    pub locator: RelFileLocator,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockAddress {
    /// The relation.
    pub relation: Relation,
    /// The fork.
    pub fork: u8,
    /// The block.
    pub block: u32,
}

impl BlockAddress {
    /// The block, as the page store knows it.
    pub fn key(self) -> BlockKey {
        BlockKey { relation: self.relation.locator, fork: Fork(self.fork), block: self.block }
    }
}
