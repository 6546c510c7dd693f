//! Relations and blocks, as the model numbers them.

use walden_format::record::RelFileLocator;

/// A relation, as the model and as PostgreSQL name it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relation {
    /// Its number in the model.
    pub number: u32,
    /// Its name.
    pub locator: RelFileLocator,
}

/// A page's place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The relation.
    pub relation: Relation,
    /// The fork.
    pub fork: u8,
    /// The block.
    pub block: u32,
}
