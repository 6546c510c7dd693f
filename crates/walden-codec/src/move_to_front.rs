//! Move-to-front lists: values ordered by recency of use, coded as their ranks.

/// A list of values. The most recent one is last in memory and has rank 1.
#[derive(Default)]
pub struct MoveToFrontList {
    values: Vec<u32>,
}

impl MoveToFrontList {
    /// Maximum number of values. A new value evicts the oldest.
    pub const MAX_VALUES: usize = 64;

    /// Returns the rank of a value, from 1; 0 if the list does not contain it.
    pub fn rank(&self, value: u32) -> u64 {
        // Most values searched for are either recent or missing, so eight are compared at once.
        let (first, eights) = self.values.as_rchunks::<8>();
        let mut later = 0;
        for eight in eights.iter().rev() {
            if eight.iter().fold(false, |found, &other| found | (other == value)) {
                return later + rank_in(eight, value);
            }
            later += eight.len() as u64;
        }
        match rank_in(first, value) {
            0 => 0,
            rank => later + rank,
        }
    }

    /// Returns the value with a rank and moves it to the front.
    pub fn promote(&mut self, rank: u64) -> Option<u32> {
        let at = self.values.len().checked_sub(usize::try_from(rank).ok()?)?;
        let (&value, later) = self.values.get(at..)?.split_first()?;
        if !later.is_empty() {
            self.values.copy_within(at + 1.., at);
            *self.values.last_mut()? = value;
        }
        Some(value)
    }

    /// Returns the value at the front.
    pub fn last(&self) -> Option<u32> {
        self.values.last().copied()
    }

    /// Adds a value that the list does not contain to the front.
    pub fn push(&mut self, value: u32) {
        if self.values.len() == Self::MAX_VALUES {
            self.values.remove(0);
        }
        self.values.push(value);
    }
}

/// Returns the rank of a value in a slice, counted from its end, from 1; 0 if it is missing.
fn rank_in(values: &[u32], value: u32) -> u64 {
    values.iter().rev().position(|&other| other == value).map_or(0, |at| at as u64 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_from_the_latest_and_lead_back_to_their_values() {
        let mut recent = MoveToFrontList::default();
        for value in 0..100 {
            assert_eq!(recent.rank(value), 0, "{value} is not there yet");
            recent.push(value);
            let least = value.saturating_sub(MoveToFrontList::MAX_VALUES as u32 - 1);
            for known in 0..=value {
                let rank = if known < least { 0 } else { u64::from(value - known) + 1 };
                assert_eq!(recent.rank(known), rank, "{known} among {least} to {value}");
            }
        }
        for rank in [1, 8, 9, 33, 64] {
            let value = (0..100).find(|&value| recent.rank(value) == rank).expect("one of each rank");
            assert_eq!(recent.promote(rank), Some(value));
            assert_eq!(recent.rank(value), 1, "the latest now");
            assert_eq!(recent.values.len(), MoveToFrontList::MAX_VALUES);
        }
        assert_eq!((recent.promote(0), recent.promote(65)), (None, None));
    }
}
