//! Running means of sizes, by key.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Entries of the direct-mapped cache in front of the hash table.
const RECENT: usize = 256;

/// A running mean.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Mean {
    sum: u64,
    count: u64,
}

impl Mean {
    pub fn add(&mut self, value: u32) {
        (self.sum, self.count) = (self.sum + u64::from(value), self.count + 1);
    }

    /// Returns the mean over the values of `self` and `other`.
    pub fn plus(self, other: Mean) -> Mean {
        Mean { sum: self.sum + other.sum, count: self.count + other.count }
    }

    pub fn get(&self) -> Option<u32> {
        (self.count > 0).then(|| (self.sum as f64 / self.count as f64).round() as u32)
    }
}

/// A running mean for each key. Nearly every record updates one and keys are few, hence the cache in front of
/// the table.
#[derive(Debug)]
pub(crate) struct Means<K> {
    means: Vec<(K, Mean)>,
    index: FxHashMap<K, u32>,
    recent: [u32; RECENT],
}

impl<K> Default for Means<K> {
    fn default() -> Means<K> {
        Means { means: Vec::new(), index: FxHashMap::default(), recent: [0; RECENT] }
    }
}

impl<K: Copy + Eq + Hash> Means<K> {
    /// Returns the mean of a key, creating an empty one. `hint` selects the cache entry: it should differ
    /// between keys.
    #[inline]
    pub fn entry(&mut self, key: K, hint: u32) -> &mut Mean {
        let recent = hint.wrapping_mul(0x9E37_79B1) as usize >> 24 & (RECENT - 1);
        let at = self.recent[recent] as usize;
        let at = match self.means.get(at) {
            Some((known, _)) if *known == key => at,
            _ => self.find(key, recent),
        };
        &mut self.means[at].1
    }

    #[inline(never)]
    fn find(&mut self, key: K, recent: usize) -> usize {
        let at = *self.index.entry(key).or_insert_with(|| {
            self.means.push((key, Mean::default()));
            self.means.len() as u32 - 1
        });
        self.recent[recent] = at;
        at as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_mean_whatever_the_hint() {
        let mut means = Means::default();
        for round in 0..5 {
            for key in 0..1000_u64 {
                means.entry(key, key as u32 % 300).add(key as u32 + round);
            }
        }
        assert!((0..1000).all(|key| means.entry(key, 7).get() == Some(key as u32 + 2)));
        assert_eq!(means.entry(1000, 7).get(), None);
    }
}
