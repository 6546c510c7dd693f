//! Tests of the public interface without a server.

mod inventory;
mod material;
mod names;
mod next_segment;
mod open;
