//! Move-to-front lists: values by how lately they were used, coded as their ranks.

/// Values, the latest one last in memory and first in rank.
#[derive(Default)]
pub struct MoveToFrontList {
    values: Vec<u32>,
}

impl MoveToFrontList {
    /// The values that it holds; the oldest one gives way.
    pub const MAX_VALUES: usize = 64;

    /// The rank of a value, from 1 on; 0 if it is not there.
    pub fn rank(&self, value: u32) -> u64 {
        // Most of what is looked for is among the latest or nowhere: eight are compared at once.
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

    /// Gives the value of a rank, and moves it to the front.
    pub fn promote(&mut self, rank: u64) -> Option<u32> {
        let at = self.values.len().checked_sub(usize::try_from(rank).ok()?)?;
        let (&value, later) = self.values.get(at..)?.split_first()?;
        if !later.is_empty() {
            self.values.copy_within(at + 1.., at);
            *self.values.last_mut()? = value;
        }
        Some(value)
    }

    /// The value at the front.
    pub fn last(&self) -> Option<u32> {
        self.values.last().copied()
    }

    /// Puts a value that is not there to the front.
    pub fn push(&mut self, value: u32) {
        if self.values.len() == Self::MAX_VALUES {
            self.values.remove(0);
        }
        self.values.push(value);
    }
}

/// The rank of a value among these, counted from the last one on; 0 if it is not there.
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
