//! How the C library's allocator gets memory from the system, and keeps it.
//!
//! The system clears each page of 4 kB when it is first written to, and takes up to some microseconds for it. So commands that
//! code files keep what they have freed, for what they need next, instead of giving it back and asking for it again. They do
//! not ask for large pages: a process that is done after some dozen megabytes saves little with these, and on a virtual machine
//! that gives free memory back to its host it waits for each of them (docs/codec-notes.md).

/// Has what is freed kept for what is needed next.
///
/// What was used once is not given back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub fn keep_what_is_freed() {
    /// The largest that glibc takes here; what is larger comes from the system and goes back to it.
    const FROM_HEAP: i32 = 32 << 20;
    /// The heap grows by so much at a time. That takes no memory until it is used.
    const STEP: i32 = 16 << 20;

    // SAFETY: these set numbers in the allocator, before there is a second thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, FROM_HEAP);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TOP_PAD, STEP);
    }
}

/// Elsewhere, it is the allocator's business.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_what_is_freed() {}
