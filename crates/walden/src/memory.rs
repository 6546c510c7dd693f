//! How the C library's allocator gets memory from the system, and keeps it.
//!
//! The system clears each page of 4 kB when it is first written to, and takes up to some microseconds for it. So commands that
//! code files keep what they have freed, for what they need next, instead of giving it back and asking for it again. They do
//! not ask for large pages: a process that is done after some dozen megabytes saves little with these, and on a virtual machine
//! that gives free memory back to its host it waits for each of them (docs/codec-notes.md).

/// Makes the allocator keep what is freed, for the next allocation.
///
/// Memory that was used once is not given back to the system.
///
/// # Safety
/// No other thread may be there yet: these numbers of the allocator are not protected by a lock.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub unsafe fn keep_freed() {
    /// The largest allocation that comes from the heap; what is larger comes from the system and goes back to it.
    const MAX_HEAP_ALLOCATION: i32 = 32 << 20;
    /// The heap grows by so much at a time. That takes no memory until it is used.
    const HEAP_STEP: i32 = 16 << 20;

    // SAFETY: `mallopt` only sets numbers, and by this function's contract no other thread reads them meanwhile.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAX_HEAP_ALLOCATION);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TOP_PAD, HEAP_STEP);
    }
}

/// Other allocators are left as they are.
///
/// # Safety
/// None is needed; the other one's contract holds for both.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
#[allow(unsafe_code)]
pub unsafe fn keep_freed() {}
