//! What an administrator does with it: packs, the removal of WAL that no backup needs, restores that are tried out, and what was lost
//! written anew.

pub mod backup;
pub mod drill;
pub mod pack;
pub mod prune;
pub mod repair;
