//! Predicts records with correct lengths and arbitrary contents under many settings: no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/walden-whatif/tests/it/predicted.rs"]
mod predicted;

fuzz_target!(|data: &[u8]| predicted::predict(data));
