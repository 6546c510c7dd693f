//! The machine's memory, and tuning of the C library's allocator.
//!
//! The kernel clears each 4 kB page on its first write, which takes up to some microseconds. So commands that
//! encode or decode files keep freed memory for later allocations instead of returning it to the system.
//!
//! Commands that replay all of the WAL keep pages of relations in memory. They request huge pages, which save
//! a third of the time on small inputs. Other commands do not: a process that uses a few dozen megabytes
//! saves little, and on a virtual machine that returns free memory to its host, each huge page has to be
//! waited for (research/codec-notes.md). There, restores use small pages, too: they may need a gigabyte.

/// Bytes by which the heap grows at a time. They take no memory until used.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAP_STEP: i32 = 16 << 20;

/// Makes the allocator keep freed memory for later allocations.
///
/// Memory is never returned to the system after its first use.
///
/// # Safety
/// No other thread may exist yet: the allocator's parameters are not protected by a lock.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub unsafe fn keep_freed() {
    /// Size of the largest allocation on the heap. Larger ones come directly from the system and are returned
    /// to it.
    const MAX_HEAP_ALLOCATION: i32 = 32 << 20;

    // SAFETY: `mallopt` only sets parameters, and by this function's contract no other thread reads them
    // meanwhile.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAX_HEAP_ALLOCATION);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TOP_PAD, HEAP_STEP);
    }
}

/// Returns whether this is a virtual machine that returns free memory to its host: its balloon device has
/// `VIRTIO_BALLOON_F_REPORTING`, which is bit 5.
pub fn is_returned_to_host() -> bool {
    let devices = std::fs::read_dir("/sys/bus/virtio/drivers/virtio_balloon").into_iter().flatten().flatten();
    let features = devices.filter_map(|device| std::fs::read(device.path().join("features")).ok());
    features.into_iter().any(|features| features.get(5) == Some(&b'1'))
}

/// Puts the next gigabyte of the heap on huge pages, if the system allows that. Memory beyond it uses small
/// pages.
///
/// The advised range must exist, so the heap grows by all of it now; none of it is resident until used. If
/// the heap cannot grow that far, nothing changes.
///
/// # Safety
/// As for [`keep_freed`].
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub unsafe fn use_huge_pages() {
    const HUGE_BYTES: i32 = 1 << 30;
    const HUGE_PAGE: usize = 2 << 20;
    /// More than the free space of the heap when a program starts, so that the allocation grows the heap.
    const PROBE: usize = 1 << 20;

    // SAFETY: by this function's contract no other thread reads the parameters that `mallopt` sets. For the
    // range from the probe to the heap's end, `madvise` changes only the size of the pages.
    unsafe {
        libc::mallopt(libc::M_TOP_PAD, HUGE_BYTES);
        let probe = libc::malloc(PROBE);
        libc::mallopt(libc::M_TOP_PAD, HEAP_STEP);
        let start = (probe as usize).next_multiple_of(HUGE_PAGE);
        // If the heap could not grow, the probe is outside of the heap, and the check below fails.
        let bytes = (libc::sbrk(0) as usize).saturating_sub(start);
        if !probe.is_null() && (HUGE_PAGE..=2 * HUGE_BYTES as usize).contains(&bytes) {
            // If this fails, the pages stay small.
            libc::madvise(start as *mut libc::c_void, bytes, libc::MADV_HUGEPAGE);
        }
        libc::free(probe);
    }
}

/// Does nothing: other allocators are not tuned.
///
/// # Safety
/// No requirements; it is `unsafe` only to match the other definition.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
#[allow(unsafe_code)]
pub unsafe fn keep_freed() {}

/// Does nothing: other allocators are not tuned.
///
/// # Safety
/// No requirements; it is `unsafe` only to match the other definition.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
#[allow(unsafe_code)]
pub unsafe fn use_huge_pages() {}

/// Returns a quarter of the memory of the machine, or of the limit of the process's control group.
pub fn quarter_of_machine() -> usize {
    usize::try_from(walden_source::machine::memory_bytes() / 4).unwrap_or(usize::MAX)
}
