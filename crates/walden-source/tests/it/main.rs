//! Tests of the crate through its public face.

mod inventory;
mod material;
mod names;
mod open;
