//! Replays records that no server wrote, on pages that no server wrote.

use proptest::prelude::*;

use crate::arbitrary::{replay, replay_overwrites, replay_shares};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// For any record and any pages, replay does not panic, and writes only to pages.
    #[test]
    fn no_record_panics(input in prop::collection::vec(any::<u8>(), 16..600)) {
        replay(&input);
    }

    /// Threads that replay a share of the pages each compare the same images, with the same outcome.
    #[test]
    fn shares_are_checked_as_all_pages_are(input in prop::collection::vec(any::<u8>(), 16..600), count in 2..6_u32) {
        replay_shares(&input, count);
    }

    /// Changes of pages that a later record overwrites do not matter.
    #[test]
    fn overwritten_changes_can_be_left_out(input in prop::collection::vec(any::<u8>(), 16..600), count in 1..4_u32) {
        replay_overwrites(&input, count);
    }
}
