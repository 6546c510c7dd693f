//! Records whose lengths are right and whose contents are arbitrary, replayed on arbitrary pages and judged: no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/walden-redo/tests/it/arbitrary.rs"]
mod arbitrary;

fuzz_target!(|data: &[u8]| arbitrary::replay(data));
