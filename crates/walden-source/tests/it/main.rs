//! Tests of the crate through its public face, without a server.

mod inventory;
mod material;
mod names;
mod next_segment;
mod open;
