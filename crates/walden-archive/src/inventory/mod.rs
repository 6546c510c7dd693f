//! Determines from listings which objects exist and which are missing.

pub mod gaps;
pub mod parts;
pub(crate) mod pruned;
pub(crate) mod segments;
pub(crate) mod snapshot;
pub mod verified;
