//! Ends the program with a message and a remedy if memory or threads are exhausted.
//!
//! The standard library aborts the program if an allocation fails, and panics if a thread cannot start. The
//! allocator notes the size of a failed allocation, and the handler of the abort's signal reports it without
//! allocating.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::archive::get::TROUBLE;

/// Bytes of the last allocation that failed; 0 without one.
static FAILED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Exit status if memory or threads are exhausted. A status below 126 would mean to PostgreSQL that an
/// archive lacks a file, and end recovery early.
static STATUS: AtomicI32 = AtomicI32::new(TROUBLE as i32);

const REMEDY: &str = "\nhint: --memory and --threads 1 make commands that have these options need less; otherwise raise the limit: \
                      ulimit -v, MemoryMax= and TasksMax= of a service, or the memory of a container\n";

/// Sets the exit status for exhausted memory or threads.
pub fn set_status(status: u8) {
    STATUS.store(status.into(), Ordering::Relaxed);
}

/// The system's allocator, which notes failures.
struct Noting;

#[global_allocator]
static ALLOCATOR: Noting = Noting;

fn note(pointer: *mut u8, bytes: usize) -> *mut u8 {
    if pointer.is_null() {
        FAILED_BYTES.store(bytes, Ordering::Relaxed);
    }
    pointer
}

// SAFETY: each function calls the system's allocator with its own arguments and returns its result.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Noting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the contract of this function.
        note(unsafe { System.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the contract of this function.
        note(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: by the contract of this function.
        note(unsafe { System.realloc(pointer, layout, bytes) }, bytes)
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by the contract of this function.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Makes the program end with a message if memory or threads are exhausted.
///
/// # Safety
/// No other thread may exist yet.
#[allow(unsafe_code)]
pub unsafe fn report() {
    let handler: extern "C" fn(libc::c_int) = aborted;
    // SAFETY: the handler calls only functions that are safe in a signal handler.
    unsafe { libc::signal(libc::SIGABRT, handler as libc::sighandler_t) };
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if !text.contains("failed to spawn thread") && !text.contains("can't spawn worker thread") {
            return usual(panic);
        }
        eprint!("error: cannot start a thread: {text}{REMEDY}");
        std::process::exit(STATUS.load(Ordering::Relaxed));
    }));
}

/// Handles `SIGABRT`. If no allocation has failed, the program is aborted nevertheless.
#[allow(unsafe_code)]
extern "C" fn aborted(_: libc::c_int) {
    let bytes = FAILED_BYTES.load(Ordering::Relaxed);
    if bytes == 0 {
        return;
    }
    let mut digits = [0; 20];
    for part in ["error: out of memory: cannot allocate ", decimal(bytes, &mut digits), " bytes more", REMEDY]
    {
        // SAFETY: the pointer and the length are those of a string.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: it ends the process at once, without running any other code of it.
    unsafe { libc::_exit(STATUS.load(Ordering::Relaxed)) };
}

/// Writes a number to the end of `digits` without allocating.
fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &str {
    let mut at = digits.len();
    while at > 0 {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    str::from_utf8(&digits[at..]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 9, 10, 98_304, usize::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string());
        }
    }
}
