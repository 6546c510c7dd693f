//! What an administrator does with it: packs, the removal of WAL that no backup needs, and restores that are tried out.

pub mod backup;
pub mod drill;
pub mod pack;
pub mod prune;
