//! Replays records with correct lengths and arbitrary contents on arbitrary pages, and checks the results: no
//! panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/walden-redo/tests/it/arbitrary.rs"]
mod arbitrary;

fuzz_target!(|data: &[u8]| {
    arbitrary::replay(data);
    arbitrary::replay_shares(data, 3);
    arbitrary::replay_overwrites(data, 3);
});
