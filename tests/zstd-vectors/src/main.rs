//! Prints a line of `vectors.txt`: the results of the linked libzstd for the sources.

#[path = "../../../crates/walden-recompress/src/zstd/numbers.rs"]
mod numbers;
#[path = "../../../crates/walden-recompress/src/zstd/sources.rs"]
mod sources;

use std::ffi::{CStr, c_char, c_int, c_void};

use self::sources::{added, fingerprint, judged_sources, sources};
// Only linked: its declarations omit libzstd's private functions.
use zstd_sys as _;

/// PostgreSQL's level for full-page images (`ZSTD_CLEVEL_DEFAULT`).
const LEVEL: c_int = 3;
/// `MINMATCH`, which libzstd subtracts from the lengths of sequences.
const MIN_MATCH: u32 = 3;
/// Shorter sources are stored without a search for matches.
const MIN_SOURCE: usize = 7;

/// `seqDef` of `zstd_internal.h`. In these releases, only the names of its fields differ.
#[repr(C)]
struct Sequence {
    offset: u32,
    literals: u16,
    copied: u16,
}

/// The first fields of `seqStore_t`.
#[repr(C)]
struct SequenceStore {
    start: *const Sequence,
    end: *const Sequence,
}

unsafe extern "C" {
    fn ZSTD_versionString() -> *const c_char;
    fn ZSTD_createCCtx() -> *mut c_void;
    fn ZSTD_freeCCtx(context: *mut c_void) -> usize;
    fn ZSTD_compressBound(bytes: usize) -> usize;
    fn ZSTD_isError(code: usize) -> u32;
    fn ZSTD_compressCCtx(
        context: *mut c_void,
        target: *mut u8,
        capacity: usize,
        source: *const u8,
        bytes: usize,
        level: c_int,
    ) -> usize;
    /// Private to libzstd; returns the sequences of the last block.
    fn ZSTD_getSeqStore(context: *const c_void) -> *const SequenceStore;
}

/// Compresses a source, which is one block, and adds its sequences to a checksum.
fn compress(source: &[u8], sum: u64) -> (Vec<u8>, u64) {
    // SAFETY: the context is new, target and source have the stated lengths, and the sequences are read
    // before the context is freed.
    unsafe {
        let context = ZSTD_createCCtx();
        let mut target = vec![0; ZSTD_compressBound(source.len())];
        let (out, capacity) = (target.as_mut_ptr(), target.len());
        let written = ZSTD_compressCCtx(context, out, capacity, source.as_ptr(), source.len(), LEVEL);
        assert_eq!(ZSTD_isError(written), 0);
        target.truncate(written);
        let SequenceStore { start, end } = *ZSTD_getSeqStore(context);
        let found = match source.len() < MIN_SOURCE {
            true => &[][..],
            false => std::slice::from_raw_parts(start, end.offset_from(start) as usize),
        };
        let sum = found.iter().fold(added(sum, found.len() as u32), |sum, sequence| {
            let sum = added(added(sum, sequence.literals.into()), sequence.offset);
            added(sum, u32::from(sequence.copied) + MIN_MATCH)
        });
        ZSTD_freeCCtx(context);
        (target, sum)
    }
}

fn main() {
    // SAFETY: the library returns a constant string that ends with a zero.
    let version = unsafe { CStr::from_ptr(ZSTD_versionString()) }.to_str().expect("ASCII");
    let found = sources().iter().fold(0, |sum, source| compress(source, sum).1);
    let frames = judged_sources().map(|source| fingerprint(&compress(&source, 0).0));
    println!("{version} {found:016X} {:016X} {:016X}", frames[0], frames[1]);
}
