//! Implements the administrator's tasks: packing segments, pruning WAL that no backup needs, testing
//! restores, copying to other archives, and repairing a lost `archive.json`.

pub mod backup;
pub mod catch_up;
pub mod compare;
pub mod copy;
pub mod drill;
pub mod lock;
pub mod pack;
pub mod prune;
pub mod repair;
pub mod undelete;
