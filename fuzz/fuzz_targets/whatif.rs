//! Records whose lengths are right and whose contents are arbitrary, predicted under many settings: no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/walden-whatif/tests/it/predicted.rs"]
mod predicted;

fuzz_target!(|data: &[u8]| predicted::predict(data));
