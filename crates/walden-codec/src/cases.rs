//! Special cases of the codec. Each can be disabled to measure its gain.
//!
//! Containers always use [`Cases::ALL`], as `docs/format-model.md` specifies. A smaller set can be passed to
//! [`Encoder::with_cases`](crate::coder::Encoder::with_cases) and
//! [`Decoder::with_cases`](crate::coder::Decoder::with_cases). Both need the same set, because it is not
//! stored.

/// Declares the cases, one per row, in the order of the stages.
macro_rules! cases {
    ($($case:ident $name:literal $what:literal,)*) => {
        /// A special case of the codec.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Case {
            $(#[doc = $what] $case,)*
        }

        impl Case {
            /// All cases, in the order of the stages.
            pub const ALL: &[Case] = &[$(Case::$case),*];

            /// Returns the case's name on the command line and in results.
            pub fn name(self) -> &'static str {
                match self {
                    $(Case::$case => $name,)*
                }
            }

            /// Returns a description of the case.
            pub fn description(self) -> &'static str {
                match self {
                    $(Case::$case => $what,)*
                }
            }
        }
    };
}

cases! {
    QuietPieces "quiet-pieces" "reading ahead skips pieces of a segment once they have nothing new",
    ShapeContext "shape-context" "shapes in a column for each shape of the record before, not in one",
    TransactionRanks "transaction-ranks" "transactions by their ranks in a move-to-front list",
    BlockRanks "block-ranks" "blocks by their ranks in a move-to-front list",
    NextBlocks "next-blocks" "the block after the last one has a symbol",
    CommitTimes "commit-times" "times of commits and aborts as distances from the last one",
    ConflictHorizons "conflict-horizons" "horizons of prune, visible and B-tree delete records as distances from the highest",
    XmaxIsXid "xmax-is-xid" "xmax of updates, deletes and locks combined with the record's transaction",
    Subtransactions "subtransactions" "subtransactions of commits, aborts and assignments as distances",
    DisplacedData "displaced-data" "images as deltas against the page that the record gives without them",
    KnownPages "known-pages" "images as deltas against the page before",
    ChangedItems "changed-items" "items of images as what became of the items of the page before",
    HeapPages "heap-pages" "unknown pages of heap tuples, tuple by tuple",
    IndexPages "index-pages" "unknown pages of index tuples, tuple by tuple",
    OtherPages "other-pages" "unknown pages of other items, item by item",
    PostingPages "posting-pages" "unknown leaves of GIN posting trees, TID by TID",
    EntryPages "entry-pages" "unknown leaves of GIN entries, entry by entry",
    DroppedPages "dropped-pages" "pages that no later record reads are not replayed",
    CompressedImages "compressed-images" "images that the server compressed are coded uncompressed",
    TupleHeads "tuple-heads" "heads of heap tuples by number",
    NullBitmaps "null-bitmaps" "null bitmaps of heap tuples by number, and layouts by null bitmap",
    TupleRuns "tuple-runs" "similar tuples of a page at once, column by column; the bytes are the same",
    Schemas "schemas" "attributes by inferred schemas",
    UpdatedFields "updated-fields" "attributes of updates that are the same as in the old tuple are left out",
    UpdateParts "update-parts" "updates that log a part of the tuple are coded as the whole one",
    ChangedNumbers "changed-numbers" "numbers in updated fields as distances from old values where these predict them",
    KeptTuples "kept-tuples" "tuples with the values of the layout's last one",
    CompressedValues "compressed-values" "values that the server compressed are coded uncompressed, up to level 3 where that saves a third",
    ToastChunks "toast-chunks" "values in chunks of TOAST tables as a whole, with their first chunk",
    Jsonb "jsonb" "jsonb by its keys and values",
    Tsvectors "tsvectors" "tsvector as its words in the order of the text",
    TextsOfVectors "texts-of-vectors" "texts predicted from the words of a tsvector",
    IndexKeys "index-keys" "keys of index tuples predicted from their heap tuples",
    ExpectedTids "expected-tids" "TIDs of index tuples predicted from the heap tuples inserted last",
    KeyOrder "key-order" "TIDs on pages of new indexes predicted by sorting heap tuples",
    NearKeys "near-keys" "pages whose keys predict each other, up to level 3, without heap tuples",
    PendingWords "pending-words" "tuples of GIN pending lists predicted from the words of a tsvector",
    PendingEntries "pending-entries" "GIN entries predicted from pending lists",
    MovedBytes "moved-bytes" "block data of Generic records as the changed page, whose bytes are copied from the page before",
    GistTuples "gist-tuples" "tuples that GiST records insert as index tuples, predicted from heap tuples",
    LeafTuples "leaf-tuples" "tuples that SP-GiST records insert, predicted from heap tuples",
    MovedTuples "moved-tuples" "tuples that splits of GiST and SP-GiST pages move, copied from the page before",
    ReplacedEntries "replaced-entries" "GIN entries against those that they replace",
    Planes "planes" "rows transposed into planes",
    PlaneDeltas "plane-deltas" "planes as differences from byte to byte where these are cheaper",
    ConstantPlanes "constant-planes" "planes with the same byte in all rows as that byte",
    Words "words" "frequent words of text as numbers",
    WordsInData "words-in-data" "the same in block data and image bytes, at levels 4 to 6",
    Prefixes "prefixes" "zstd with the earlier contents of a class as prefix, in packs",
    RowModes "row-modes" "context mixing: positions of rows that are constant, or coded as differences or by frequency",
    FrequencyMode "frequency-mode" "context mixing: noisy positions of rows coded by frequency alone",
    MatchModel "match-model" "context mixing: the byte after the longest match is a candidate",
    Extrapolation "extrapolation" "context mixing: the byte that continues the rows above is a candidate",
    LearnedParts "learned-parts" "context mixing: parts that zstd makes smaller are coded by zstd",
}

impl Case {
    /// Returns whether the case can occur at a level from 1 to 9. `is_pack` distinguishes packs from single
    /// files.
    pub fn may_occur(self, level: u8, is_pack: bool) -> bool {
        match self {
            Case::NearKeys => level <= 3,
            Case::WordsInData => (4..=6).contains(&level),
            Case::DroppedPages => !is_pack,
            Case::Prefixes => is_pack && level <= 6,
            Case::RowModes
            | Case::FrequencyMode
            | Case::MatchModel
            | Case::Extrapolation
            | Case::LearnedParts => level >= 7,
            _ => true,
        }
    }
}

/// A set of cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cases(u64);

impl Cases {
    /// All cases, as used in files.
    pub const ALL: Cases = Cases(u64::MAX);

    /// Returns the set without a case.
    #[must_use]
    pub fn without(self, case: Case) -> Cases {
        Cases(self.0 & !(1 << case as u32))
    }

    /// Returns whether a case is in the set.
    #[inline]
    pub fn has(self, case: Case) -> bool {
        self.0 & 1 << case as u32 != 0
    }
}

impl Default for Cases {
    fn default() -> Cases {
        Cases::ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lacks_what_was_left_out_and_nothing_else() {
        assert!(Case::ALL.len() <= u64::BITS as usize, "each has a bit");
        for (number, &left_out) in Case::ALL.iter().enumerate() {
            let cases = Cases::ALL.without(left_out);
            let missing: Vec<Case> = Case::ALL.iter().copied().filter(|&case| !cases.has(case)).collect();
            assert_eq!(missing, [left_out]);
            let same_name = |other: &&Case| other.name() == left_out.name();
            assert_eq!(Case::ALL.iter().position(|other| same_name(&other)), Some(number), "{left_out:?}");
        }
    }
}
