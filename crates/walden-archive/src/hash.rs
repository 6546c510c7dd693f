//! The BLAKE3 hash of a file, computed by two threads if it is large: no other work needs the processors
//! meanwhile.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;

use blake3::hazmat::{self, ChainingValue, HasherExt, Mode};

/// File size in bytes from which two threads are faster than one.
const MIN_SHARED: u64 = 4 << 20;
/// Bytes that are read at a time, and hashed while they are in the processor's cache.
const CHUNK: usize = 128 << 10;

/// Hashes a whole file, regardless of its current offset. Returns its size and hash.
///
/// # Errors
/// Errors of the file system, and a file that is truncated meanwhile.
pub(crate) fn hash_file(file: &File, threads: usize) -> io::Result<(u64, [u8; 32])> {
    let bytes = file.metadata()?.len();
    if threads < 2 || bytes < MIN_SHARED {
        let mut hasher = blake3::Hasher::new();
        update(&mut hasher, file, 0, bytes)?;
        return Ok((bytes, *hasher.finalize().as_bytes()));
    }
    // BLAKE3 is a tree: the hashes of the two subtrees below its root depend only on their own bytes.
    let middle = hazmat::left_subtree_len(bytes);
    let (left, right) = thread::scope(|scope| {
        let right = scope.spawn(|| hash_subtree(file, middle, bytes));
        let left = hash_subtree(file, 0, middle);
        (left, right.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    Ok((bytes, *hazmat::merge_subtrees_root(&left?, &right?, Mode::Hash).as_bytes()))
}

fn hash_subtree(file: &File, from: u64, to: u64) -> io::Result<ChainingValue> {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(from);
    update(&mut hasher, file, from, to)?;
    Ok(hasher.finalize_non_root())
}

fn update(hasher: &mut blake3::Hasher, file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut at = from;
    while at < to {
        let now = (to - at).min(CHUNK as u64);
        let part = &mut chunk[..now as usize];
        file.read_exact_at(part, at)?;
        hasher.update(part);
        at += now;
    }
    Ok(())
}

/// Formats bytes as hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hexadecimal digits.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_hash_does_not_depend_on_the_number_of_threads() {
        let bytes: Vec<u8> = (0..2 * MIN_SHARED + 77).map(|at| (at / 1000) as u8).collect();
        for len in
            [0, 1, 1 << 20, MIN_SHARED - 1, MIN_SHARED, MIN_SHARED + 1, 2 * MIN_SHARED, 2 * MIN_SHARED + 77]
        {
            let part = &bytes[..len as usize];
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(part).unwrap();
            for threads in [1, 2] {
                let expected = (len, *blake3::hash(part).as_bytes());
                assert_eq!(hash_file(&file, threads).unwrap(), expected, "{len} bytes, {threads} threads");
            }
        }
    }
}
