//! Tests of the public interface without a server.

mod leftovers;
mod names;
