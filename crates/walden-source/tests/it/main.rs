//! Tests of the crate through its public face.

mod datadir;
mod inventory;
mod material;
mod names;
mod open;
