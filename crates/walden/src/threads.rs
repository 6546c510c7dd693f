//! Threads of long-running commands.

use std::panic::AssertUnwindSafe;

/// Ends the process if `work` panics. Without its thread, the command would give no answers or outdated ones;
/// the service manager restarts it.
pub fn end_on_panic<T>(work: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(_) => std::process::exit(101),
    }
}
