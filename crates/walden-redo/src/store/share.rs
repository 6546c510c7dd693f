//! Divides all pages among several stores, which replay the same WAL at the same time.

use super::BlockKey;

/// Blocks that follow one another and belong to the same share (512 kB). A small number distributes busy
/// tables evenly; a large one lets each store write long pieces of a file.
const BLOCKS: u32 = 64;

/// One of several shares of all pages. Each page belongs to exactly one share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageShare {
    index: u32,
    count: u32,
}

impl PageShare {
    /// All pages.
    pub const ALL: PageShare = PageShare { index: 0, count: 1 };

    /// Returns the share with an index, counted from 0, among `count` shares. Returns [`PageShare::ALL`] if
    /// `index` is not less than `count`.
    pub fn new(index: u32, count: u32) -> PageShare {
        match index < count {
            true => PageShare { index, count },
            false => PageShare::ALL,
        }
    }

    /// Returns whether the share has all pages.
    #[inline]
    pub fn is_all(self) -> bool {
        self.count == 1
    }

    /// Returns whether a page belongs to the share.
    #[inline]
    pub fn has(self, key: BlockKey) -> bool {
        if self.is_all() {
            return true;
        }
        // The multipliers are odd and have no simple relation to each other (golden ratio; MurmurHash3).
        let relation =
            (key.relation.relation ^ key.relation.database.rotate_left(16)).wrapping_mul(0x9E37_79B1);
        let place = (key.block / BLOCKS).wrapping_mul(4).wrapping_add(u32::from(key.fork.0));
        let mixed = (relation ^ place).wrapping_mul(0x85EB_CA6B);
        // The upper bits are mixed best; the product maps them to an index.
        let mixed = mixed ^ (mixed >> 15);
        ((u64::from(mixed) * u64::from(self.count)) >> 32) as u32 == self.index
    }
}

#[cfg(test)]
mod tests {
    use walden_format::record::{Fork, RelFileLocator};

    use super::*;

    #[test]
    fn each_page_belongs_to_one_share_and_shares_are_alike() {
        for count in 1..=16 {
            let mut pages = vec![0_u32; count as usize];
            for relation in 16384..16394 {
                for block in 0..20_000 {
                    let relation = RelFileLocator { tablespace: 1663, database: 5, relation };
                    let key = BlockKey { relation, fork: Fork::MAIN, block };
                    let owners: Vec<u32> =
                        (0..count).filter(|&index| PageShare::new(index, count).has(key)).collect();
                    let [owner] = owners[..] else { panic!("{key} has the owners {owners:?}") };
                    pages[owner as usize] += 1;
                }
            }
            let fair = 200_000 / count;
            for found in pages {
                assert!(
                    (fair * 7 / 10..=fair * 13 / 10).contains(&found),
                    "{found} of {fair}, {count} shares"
                );
            }
        }
    }
}
