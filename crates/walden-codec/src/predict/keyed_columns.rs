//! Looks up columns by their content.
//!
//! Both directions create a column when they first use it, in the same order. Files therefore do not store
//! the content of columns, and unused columns cost nothing.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::Corrupt;
use crate::column_kind::Kind;
use crate::columns::{Coder, Column};

/// Declares the topics, one per row.
macro_rules! topics {
    ($($(#[$doc:meta])* $topic:ident,)*) => {
        /// Content of a column. Three numbers distinguish the columns of a topic. The first is usually a
        /// relation's number. Topics have the names of the columns in `docs/format-model.md`.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Topic {
            $($(#[$doc])* $topic,)*
        }

        #[cfg(test)]
        impl Topic {
            const ALL: &[Topic] = &[$(Topic::$topic),*];
        }
    };
}

topics! {
    /// Main data, by shape and length.
    Main,
    /// Block numbers that are not in the relation's move-to-front list.
    NewBlocks,
    /// Whether the block data that an image replaced is coded.
    Displaced,
    /// Forms of block data, by relation and shape.
    DataForms,
    /// Lengths of block data, by relation and shape.
    DataLengths,
    /// Block data, by relation, shape and length.
    Data,
    /// Block data that is too long for [`Topic::Data`], by relation and shape.
    LongData,
    /// Bounds of the free space of pages that generic records change.
    FreeSpaceBounds,
    /// Number of fragments that a generic record has for a page, and their offsets and lengths.
    FragmentBounds,
    /// Lengths of the literals before each copied range.
    LiteralLengths,
    /// Literals before copied ranges.
    Literals,
    /// Lengths of copied ranges.
    CopyLengths,
    /// Deltas between the source of a copied range and the expected source.
    CopyShifts,
    /// Lengths of the moved tuples of a block or a record.
    MovedLengths,
    /// Structures before moved leaf tuples in main data.
    MovedHeads,
    /// Offset numbers of moved leaf tuples before the move.
    MovedFrom,
    /// Offset numbers of moved leaf tuples after the move.
    MovedTo,
    /// Which of two pages a moved leaf tuple goes to.
    MovedPages,
    /// Lengths of inner tuples in records that move leaf tuples.
    InnerLengths,
    /// Inner tuples in records that move leaf tuples.
    InnerTuples,
    /// Fields before a new leaf tuple, with the offset number of the next tuple in its chain.
    LeafHeads,
    /// Replication origins.
    Origins,
    /// Numbers of heap tuple headers, by relation.
    TupleHeaders,
    /// Heap tuple headers on first use.
    NewTupleHeaders,
    /// Numbers of heap tuples' null bitmaps, by relation.
    NullBitmaps,
    /// Null bitmaps of heap tuples on first use.
    NewNullBitmaps,
    /// Padding between the heap tuples of multi-inserts.
    TupleGaps,
    /// `t_xmin` of heap tuples on pages, by relation.
    Xmins,
    /// `t_xmax` of heap tuples on pages.
    Xmaxs,
    /// `t_cid` of heap tuples on pages.
    Cids,
    /// Blocks in `t_ctid` of heap tuples on pages.
    CtidBlocks,
    /// Offset numbers in `t_ctid` of heap tuples on pages.
    CtidNumbers,
    /// Flags of index tuples.
    IndexForms,
    /// Values stored in the place of TIDs (`INDEX_ALT_TID_MASK`).
    OtherTids,
    /// Predictors of TIDs.
    TidForms,
    /// Unpredicted TIDs.
    Tids,
    /// Null bitmaps of index tuples.
    IndexBitmaps,
    /// Predictors of posting lists.
    ListForms,
    /// Unpredicted posting lists.
    Lists,
    /// Predictors of index tuples' keys.
    IndexKeys,
    /// Mappings from heap tuples to keys.
    Mappings,
    /// Tables of indexes.
    Tables,
    /// Predictors of the tuples of an index page.
    IndexPages,
    /// Sort orders of heap tuples.
    Orders,
    /// Number of tuples that a record adds to a pending list.
    PendingCount,
    /// Unpredicted TIDs of pending tuples.
    PendingTids,
    /// Whether the TID of pending tuples is that of the last inserted heap tuple.
    PendingLatest,
    /// Vectors whose words are the keys of pending tuples.
    PendingVectors,
    /// Index of the first such word in its vector.
    PendingWords,
    /// Predictors of pending tuples.
    PendingForms,
    /// `t_info` of unpredicted pending tuples.
    PendingSizes,
    /// Keys of unpredicted pending tuples.
    PendingKeys,
    /// Fields before GIN entries in records.
    EntryHeads,
    /// Predictors of GIN entries in records.
    EntryFormsInRecords,
    /// Number of pending keys skipped before the key of a GIN entry.
    SkippedKeys,
    /// Headers of GIN entries in records.
    EntryHeaders,
    /// Growth of GIN entries in bytes.
    EntryGrowth,
    /// Distance from the end of the prefix shared with the replaced GIN entry to the end of the shorter one.
    EntryApart,
    /// Bytes of GIN entries after that prefix.
    EntryRemainder,
    /// Steps to the next TID of an ascending list.
    TidSteps,
    /// Block distances too large for such a step.
    FarBlocks,
    /// Kinds of pages.
    PageKinds,
    /// Page headers.
    PageHeaders,
    /// Special areas of pages.
    SpecialAreas,
    /// Forms of line pointers.
    Pointers,
    /// Offsets in line pointers.
    Offsets,
    /// Unpredicted line pointers.
    AnyPointers,
    /// Lengths of items of unknown form.
    ItemLengths,
    /// Items of unknown form.
    Items,
    /// Bounds of posting tree leaves.
    Bounds,
    /// Number of TIDs in posting tree leaves and in their segments.
    PostingCounts,
    /// Forms of GIN entries on pages.
    EntryForms,
    /// Forms of the keys of GIN entries on pages.
    KeyForms,
    /// Length of the prefix that a key of a GIN entry shares with the previous one.
    KeyCommon,
    /// Lengths of the remaining bytes of such keys.
    KeyLengths,
    /// Remaining bytes of such keys.
    KeyRemainder,
    /// Root blocks of posting trees.
    Trees,
    /// Whether a page with a known older version is coded as changes to its items. The columns of changed
    /// items have numbers in the same topic ([`changed_item`]).
    PageDeltas,
    /// Headers of pages coded as changes.
    ChangedHeaders,
    /// Forms of line pointers on pages coded as changes.
    ChangedPointers,
    /// Offsets in line pointers on pages coded as changes.
    ChangedOffsets,
    /// Unpredicted line pointers on pages coded as changes.
    AnyChangedPointers,
    /// Whether pages that records initialize are read before they are initialized again.
    Kept,
}

/// Numbers of the columns for changed items in [`Topic::PageDeltas`], in addition to the relation. A number
/// takes the place of a fork, so each column is also the column of page flags of that fork. The format
/// requires this.
pub mod changed_item {
    /// *Changed lengths*.
    pub const CHANGED_LENGTHS: u32 = 1;
    /// *Common bytes* at the start and the end.
    pub const COMMON_BYTES: u32 = 2;
    /// *Changed item headers*.
    pub const CHANGED_ITEM_HEADERS: u32 = 3;
    /// *Changed bytes* between them.
    pub const CHANGED_BYTES: u32 = 4;
}

/// A map with a small cache of the latest lookups, which is faster than the map.
pub struct CachedMap<K, V> {
    all: FxHashMap<K, V>,
    recent: Vec<Option<(K, V)>>,
}

impl<K, V> Default for CachedMap<K, V> {
    fn default() -> Self {
        CachedMap { all: FxHashMap::default(), recent: Vec::new() }
    }
}

impl<K: Copy + Eq + Hash, V: Copy> CachedMap<K, V> {
    const RECENT: usize = 512;

    /// Returns the value of a key, created by `make` on first use. `hash` is a number that mostly differs
    /// between keys.
    #[inline]
    pub fn get<E>(&mut self, key: K, hash: u32, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        let at = hash.wrapping_mul(0x9E37_79B1) as usize >> 16 & (Self::RECENT - 1);
        if let Some(Some((known, value))) = self.recent.get(at)
            && *known == key
        {
            return Ok(*value);
        }
        self.get_uncached(key, at, make)
    }

    /// Returns the value of a key, if there is one.
    pub fn existing(&mut self, key: K, hash: u32) -> Option<V> {
        self.get(key, hash, || Err(())).ok()
    }

    #[inline(never)]
    fn get_uncached<E>(&mut self, key: K, at: usize, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        let value = match self.all.get(&key) {
            Some(&value) => value,
            None => {
                let value = make()?;
                self.all.insert(key, value);
                value
            }
        };
        self.recent.resize(Self::RECENT, None);
        self.recent[at] = Some((key, value));
        Ok(value)
    }
}

/// All columns that are looked up by their content.
#[derive(Default)]
pub struct KeyedColumns(CachedMap<ColumnKey, Column>);

type ColumnKey = (Topic, u32, u32, u32);

/// Returns the key of a column, and a number that mostly differs between keys.
#[inline]
fn key_and_hash(topic: Topic, numbers: [u32; 3]) -> (ColumnKey, u32) {
    let hash = numbers[0] << 8 ^ numbers[1] << 4 ^ numbers[2] ^ (topic as u32) << 16;
    ((topic, numbers[0], numbers[1], numbers[2]), hash)
}

impl KeyedColumns {
    /// Returns the column of a topic and three numbers, created on first use.
    ///
    /// # Errors
    /// Returns an error when decoding a file without such a column.
    #[inline]
    pub fn column<S: Coder>(
        &mut self,
        coder: &mut S,
        topic: Topic,
        numbers: [u32; 3],
        kind: Kind,
    ) -> Result<Column, Corrupt> {
        let (key, hash) = key_and_hash(topic, numbers);
        self.0.get(key, hash, || match topic {
            Topic::Displaced | Topic::Main | Topic::Origins => coder.shared_column(kind),
            _ => coder.column(kind),
        })
    }

    /// Returns the column, if it was created.
    pub fn existing(&mut self, topic: Topic, numbers: [u32; 3]) -> Option<Column> {
        let (key, hash) = key_and_hash(topic, numbers);
        self.0.existing(key, hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specification_has_a_column_of_each_topic() {
        let specification = include_str!("../../../../docs/format-model.md").to_lowercase();
        for topic in Topic::ALL {
            let mut name = String::new();
            for letter in format!("{topic:?}").chars() {
                if letter.is_uppercase() && !name.is_empty() {
                    name.push(' ');
                }
                name.extend(letter.to_lowercase());
            }
            assert!(specification.contains(&format!("*{name}*")), "{topic:?}");
        }
    }
}
