//! Records that no server wrote, on pages that no server made.

use proptest::prelude::*;

use crate::arbitrary::replay;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever a record says and whatever its pages are: no panic, and nothing outside of pages is touched.
    #[test]
    fn no_record_panics(input in prop::collection::vec(any::<u8>(), 16..600)) {
        replay(&input);
    }
}
