//! Reproducible numbers for tests.

/// Returns a generator of pseudorandom numbers below a limit, the same for each run.
pub fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    }
}
