//! Checksums of data pages, as PostgreSQL writes them when a page leaves its buffer.
//!
//! 32 sums over the page's 32-bit words are computed in parallel, each a variant of FNV-1a
//! (`checksum_impl.h`).

use crate::page::{PAGE_BYTES, Page, header};

const SUMS: usize = 32;
const PRIME: u32 = 16_777_619;

/// Initial values of the sums.
const START: [u32; SUMS] = [
    0x5B1F_36E9,
    0xB852_5960,
    0x02AB_50AA,
    0x1DE6_6D2A,
    0x79FF_467A,
    0x9BB9_F8A3,
    0x217E_7CD2,
    0x83E1_3D2C,
    0xF8D4_474F,
    0xE39E_B970,
    0x42C6_AE16,
    0x9932_16FA,
    0x7B09_3B5D,
    0x98DA_FF3C,
    0xF718_902A,
    0x0B1C_9CDB,
    0xE58F_764B,
    0x1876_36BC,
    0x5D7B_3BB1,
    0xE73D_E7DE,
    0x92BE_C979,
    0xCCA6_C0B2,
    0x304A_0979,
    0x85AA_43D4,
    0x7831_25BB,
    0x6CA8_EAA2,
    0xE407_EAC6,
    0x4B5C_FC3E,
    0x9FBF_8C76,
    0x15CA_20BE,
    0xF2CA_9FD3,
    0x959B_D756,
];

/// Returns the checksum of the page of block `block` of its fork, counted through all of the fork's files.
/// The page's stored checksum does not matter.
pub fn checksum(page: &Page, block: u32) -> u16 {
    let mut sums = START;
    let (rows, _) = page.0.as_chunks::<{ 4 * SUMS }>();
    for (index, row) in rows.iter().enumerate() {
        let mut row = *row;
        if index == 0 {
            row[header::CHECKSUM..header::FLAGS].fill(0);
        }
        let (words, _) = row.as_chunks::<4>();
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = mix(*sum, u32::from_le_bytes(*word));
        }
    }
    let whole = sums.into_iter().map(|sum| mix(mix(sum, 0), 0)).fold(0, |all, sum| all ^ sum) ^ block;
    (whole % 65_535 + 1) as u16
}

/// Sets the checksum of the page of block `block`; a page that was never initialized has none.
pub fn set_checksum(page: &mut Page, block: u32) {
    if !page.is_new() {
        let value = checksum(page, block);
        page.put_checksum(value);
    }
}

/// Returns whether the page of block `block` has a correct checksum. A page of zeros is valid without one.
pub fn is_sound(page: &Page, block: u32) -> bool {
    if page.is_new() { page.0 == [0; PAGE_BYTES] } else { page.checksum() == checksum(page, block) }
}

fn mix(sum: u32, value: u32) -> u32 {
    let mixed = sum ^ value;
    mixed.wrapping_mul(PRIME) ^ mixed >> 17
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_and_each_byte_count() {
        let mut page = Page::default();
        assert!(is_sound(&page, 7));
        page.init(16);
        set_checksum(&mut page, 7);
        assert!(is_sound(&page, 7) && !is_sound(&page, 8));
        for at in (0..PAGE_BYTES).step_by(97) {
            let mut other = page.clone();
            other.0[at] ^= 1;
            assert!(!is_sound(&other, 7), "{at}");
        }
    }
}
