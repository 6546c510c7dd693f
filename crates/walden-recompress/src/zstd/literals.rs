//! The literals section of a block: raw, one repeated byte (RLE), or Huffman-coded.

use super::huffman::{Huffman, Outcome};
use super::{Release, min_gain};

/// Fewer literals are never compressed.
const MIN_TO_COMPRESS: usize = 64;
/// From this many literals on, there are four streams.
const MIN_FOR_FOUR: usize = 256;

const RAW: u32 = 0;
const RLE: u32 = 1;
const COMPRESSED: u64 = 2;

/// Appends the section.
pub(super) fn section(huffman: &mut Huffman, release: Release, literals: &[u8], target: &mut Vec<u8>) {
    if literals.len() < MIN_TO_COMPRESS {
        return raw_section(literals, target);
    }
    let start = target.len();
    // Two sizes, regenerated and compressed, of 10, 14 or 18 bits each.
    let (header, format) = match literals.len() {
        len if len < MIN_FOR_FOUR => (3, 0),
        len if len < 1 << 10 => (3, 1),
        len if len < 1 << 14 => (4, 2),
        _ => (5, 3),
    };
    target.resize(start + header, 0);
    let outcome = huffman.compress(release, literals, format > 0, target);
    let len = target.len() - start - header;
    match outcome {
        Outcome::Same => {
            target.truncate(start);
            put_header(RLE, literals.len(), target);
            target.push(literals[0]);
        }
        Outcome::Coded if len < literals.len() - min_gain(literals.len()) => {
            let bits = 8 * header as u64 / 2 - 2;
            let word = COMPRESSED | format << 2 | (literals.len() as u64) << 4 | (len as u64) << (4 + bits);
            target[start..start + header].copy_from_slice(&word.to_le_bytes()[..header]);
        }
        Outcome::Coded | Outcome::NotWorthIt => {
            target.truncate(start);
            raw_section(literals, target);
        }
    }
}

fn raw_section(literals: &[u8], target: &mut Vec<u8>) {
    put_header(RAW, literals.len(), target);
    target.extend_from_slice(literals);
}

/// Appends the header of a raw or RLE section, with one size of 5, 12 or 20 bits.
fn put_header(kind: u32, len: usize, target: &mut Vec<u8>) {
    let (bytes, word) = match len {
        0..=31 => (1, kind | (len as u32) << 3),
        32..=4095 => (2, kind | 1 << 2 | (len as u32) << 4),
        _ => (3, kind | 3 << 2 | (len as u32) << 4),
    };
    target.extend_from_slice(&word.to_le_bytes()[..bytes]);
}
