//! Explanations of WAL created in memory and of the golden segments, without a server.

mod accounting;
mod checkpoints;
mod diff;
mod findings;
mod material;
mod transactions;
