//! How much memory there is, and how the C library's allocator gets it from the system and keeps it.
//!
//! The system clears each page of 4 kB when it is first written to, and takes up to some microseconds for it. So commands that
//! code files keep what they have freed, for what they need next, instead of giving it back and asking for it again.
//!
//! Commands that replay a whole log have the pages of its relations in memory, and ask for huge pages, which take a third less of
//! the time on small logs. Others do not: a process that is done after some dozen megabytes saves little with these, and on a
//! virtual machine that gives free memory back to its host it waits for each of them (research/codec-notes.md).

/// The heap grows by so much at a time. That takes no memory until it is used.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAP_STEP: i32 = 16 << 20;

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

    // SAFETY: `mallopt` only sets numbers, and by this function's contract no other thread reads them meanwhile.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAX_HEAP_ALLOCATION);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TOP_PAD, HEAP_STEP);
    }
}

/// Has the next gigabyte of the heap on huge pages, where the system allows that. What does not fit in it is on small ones.
///
/// The heap has to be there to be advised, so it grows by all of that at once, of which nothing is in memory until it is used. Where it
/// may not grow so far, nothing changes.
///
/// # Safety
/// As for [`keep_freed`].
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub unsafe fn use_huge_pages() {
    const HUGE_BYTES: i32 = 1 << 30;
    const HUGE_PAGE: usize = 2 << 20;
    /// More than the heap has left when a program starts.
    const PROBE: usize = 1 << 20;

    // SAFETY: by this function's contract no other thread reads what `mallopt` sets. Of what lies between the probe and the heap's end,
    // `madvise` changes only on which pages it will be.
    unsafe {
        libc::mallopt(libc::M_TOP_PAD, HUGE_BYTES);
        let probe = libc::malloc(PROBE);
        libc::mallopt(libc::M_TOP_PAD, HEAP_STEP);
        let start = (probe as usize).next_multiple_of(HUGE_PAGE);
        // Not of the heap, if that could not grow.
        let bytes = (libc::sbrk(0) as usize).saturating_sub(start);
        if !probe.is_null() && (HUGE_PAGE..=2 * HUGE_BYTES as usize).contains(&bytes) {
            // Where it fails, pages are small.
            libc::madvise(start as *mut libc::c_void, bytes, libc::MADV_HUGEPAGE);
        }
        libc::free(probe);
    }
}

/// Other allocators are left as they are.
///
/// # Safety
/// None is needed; the other one's contract holds for both.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
#[allow(unsafe_code)]
pub unsafe fn keep_freed() {}

/// The same.
///
/// # Safety
/// None is needed; the other one's contract holds for both.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
#[allow(unsafe_code)]
pub unsafe fn use_huge_pages() {}

/// A quarter of the memory that the machine has, or that the process's control group is allowed.
pub fn quarter_of_machine() -> usize {
    usize::try_from(walden_source::machine::memory_bytes() / 4).unwrap_or(usize::MAX)
}
