//! Replays records that no server wrote, on pages that no server wrote.

use proptest::prelude::*;

use crate::arbitrary::replay;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// For any record and any pages, replay does not panic, and writes only to pages.
    #[test]
    fn no_record_panics(input in prop::collection::vec(any::<u8>(), 16..600)) {
        replay(&input);
    }
}
