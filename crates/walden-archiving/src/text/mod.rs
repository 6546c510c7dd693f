//! Documents of [`walden_archive`] as text for a terminal.

pub mod against;
pub mod copying;
pub mod cost;
pub mod drill;
pub mod export;
pub mod gaps;
pub mod importing;
pub mod listing;
pub mod locks;
pub mod packing;
pub mod pruning;
pub mod repair;
pub mod verification;
