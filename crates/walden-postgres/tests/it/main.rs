//! Tests of the crate through its public face, without a server.

mod leftovers;
mod names;
