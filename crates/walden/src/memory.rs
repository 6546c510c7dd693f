//! How the C library's allocator gets memory from the system, and keeps it.
//!
//! The system clears each small page of 4 kB when it is first written to, and takes about a microsecond for it: a tenth to a
//! fifth of what compressing a segment takes. So commands that code files keep what they have freed, for what they need next,
//! instead of giving it back and asking for it again, and get it on large pages.

/// Has what is freed kept for what is needed next, on large pages as far as these come at once.
///
/// What was used once is not given back, and a large page takes its 2 MB as soon as some of it is used.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub fn keep_what_is_freed() {
    /// The largest that glibc takes here; what is larger comes from the system and goes back to it.
    const FROM_HEAP: i32 = 32 << 20;
    /// The heap grows by so much at a time.
    const STEP: i32 = 16 << 20;
    /// Pieces of the heap that are put on large pages, each below [`FROM_HEAP`]; the rest comes as it may.
    const PIECES: usize = 3;
    const PIECE: usize = 31 << 20;

    // SAFETY: these set numbers in the allocator, before there is a second thread.
    let set = unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, FROM_HEAP) == 1
            && libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX) == 1
            && libc::mallopt(libc::M_TOP_PAD, STEP) == 1
    };
    if set {
        // The heap grows by them in one piece, and keeps that when they are dropped. Nothing is written to them.
        let pieces: [Option<Vec<u8>>; PIECES] = std::array::from_fn(|_| walden_codec::try_room(PIECE));
        drop(pieces);
    }
}

/// Elsewhere, it is the allocator's business.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_what_is_freed() {}
