//! Records whose lengths are right and whose contents are arbitrary, predicted under many settings: no panic, and bytes that
//! add up.

use proptest::prelude::*;

use crate::predicted::predict;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn arbitrary_records(input in proptest::collection::vec(any::<u8>(), 0..512)) {
        predict(&input);
    }
}
