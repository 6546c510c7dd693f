//! What there is and what is missing, as listings show it.

pub mod gaps;
pub mod parts;
pub(crate) mod snapshot;
pub mod verified;
