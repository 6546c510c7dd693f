//! Columns by what they hold.
//!
//! Both directions create a column the first time that they reach it, in the same order; so files do not say what a column holds,
//! and it costs nothing before it is used.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::Corrupt;
use crate::column_kind::Kind;
use crate::columns::{Coder, Column};

/// Declares the topics: a row each.
macro_rules! topics {
    ($($(#[$doc:meta])* $topic:ident,)*) => {
        /// What a column holds; three numbers distinguish the columns of a topic, of which the first mostly is a relation's. Topics
        /// have the names of the columns in `docs/format-model.md`.
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
    /// Main data of a shape and a length.
    Main,
    /// Blocks of a relation that are not in its move-to-front list.
    NewBlocks,
    /// Whether the block data that an image displaced is predicted.
    Displaced,
    /// Forms of block data of a relation and a shape.
    DataForms,
    /// Lengths of block data of a relation and a shape.
    DataLengths,
    /// Block data of a relation, a shape and a length.
    Data,
    /// Block data of a relation and a shape that is longer.
    LongData,
    /// Bounds of the free space of pages that Generic records change.
    FreeSpaceBounds,
    /// How many fragments a Generic record has for a page, and where they are.
    FragmentBounds,
    /// How many bytes precede each copied range.
    LiteralLengths,
    /// These bytes.
    Literals,
    /// Lengths of copied ranges.
    CopyLengths,
    /// How far the source of a copied range is from the expected place.
    CopyShifts,
    /// How many bytes of moved tuples a block or a record has.
    MovedLengths,
    /// The structures before moved leaf tuples in main data.
    MovedHeads,
    /// Line pointers that they had.
    MovedFrom,
    /// Line pointers that they get.
    MovedTo,
    /// Which of two pages each is for.
    MovedPages,
    /// Lengths of inner tuples of these records.
    InnerLengths,
    /// These tuples.
    InnerTuples,
    /// The fields before a new leaf tuple, with the number of the next tuple in its chain.
    LeafHeads,
    /// Replication origins.
    Origins,
    /// Numbers of the headers of a relation's heap tuples.
    TupleHeaders,
    /// Headers of heap tuples that are met first.
    NewTupleHeaders,
    /// Numbers of the null bitmaps of a relation's heap tuples.
    NullBitmaps,
    /// Null bitmaps of heap tuples that are met first.
    NewNullBitmaps,
    /// The bytes between the heap tuples of multi-inserts.
    TupleGaps,
    /// `t_xmin` of heap tuples on a relation's pages.
    Xmins,
    /// `t_xmax` of these.
    Xmaxs,
    /// `t_cid` of these.
    Cids,
    /// The blocks in `t_ctid` of these.
    CtidBlocks,
    /// The line pointers in `t_ctid` of these.
    CtidNumbers,
    /// Flags of index tuples.
    IndexForms,
    /// What is in the place of TIDs (`INDEX_ALT_TID_MASK`).
    OtherTids,
    /// What predicts TIDs.
    TidForms,
    /// TIDs that are not predicted.
    Tids,
    /// Null bitmaps of index tuples.
    IndexBitmaps,
    /// What predicts posting lists.
    ListForms,
    /// Posting lists that are not predicted.
    Lists,
    /// What predicts keys of index tuples.
    IndexKeys,
    /// Mappings from heap tuples to keys.
    Mappings,
    /// Tables of indexes.
    Tables,
    /// What predicts the tuples of an index's page.
    IndexPages,
    /// Orders of heap tuples.
    Orders,
    /// How many tuples a record puts into a pending list.
    PendingCount,
    /// TIDs of these that are not predicted.
    PendingTids,
    /// Whether their TID is that of the heap tuple that was inserted last.
    PendingLatest,
    /// The vectors whose words they have.
    PendingVectors,
    /// The first of these words.
    PendingWords,
    /// What predicts each.
    PendingForms,
    /// `t_info` of those that are not predicted.
    PendingSizes,
    /// Keys of these.
    PendingKeys,
    /// What precedes GIN entries in records.
    EntryHeads,
    /// What predicts GIN entries in records.
    EntryFormsInRecords,
    /// How many pending keys have no entry before the next one.
    SkippedKeys,
    /// Headers of GIN entries in records.
    EntryHeaders,
    /// By how much GIN entries grow.
    EntryGrowth,
    /// Where GIN entries differ from those that they replace.
    EntryApart,
    /// Bytes of GIN entries from there on.
    EntryRemainder,
    /// Which TID of an ascending list is the next.
    TidSteps,
    /// How far away its block is.
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
    /// Whole line pointers.
    AnyPointers,
    /// Lengths of items of which nothing is known.
    ItemLengths,
    /// These items.
    Items,
    /// Bounds of leaves of posting trees.
    Bounds,
    /// How many TIDs leaves of posting trees and their segments have.
    PostingCounts,
    /// Forms of GIN entries on pages.
    EntryForms,
    /// Forms of their keys.
    KeyForms,
    /// How much each key has in common with the one before.
    KeyCommon,
    /// Lengths of what keys have after that.
    KeyLengths,
    /// These bytes.
    KeyRemainder,
    /// Where posting trees begin.
    Trees,
    /// Of a page of which an older one is known: whether its items are coded against those of that page. The columns of these
    /// items have numbers in the same topic ([`changed_item`]).
    PageDeltas,
    /// The headers of such pages.
    ChangedHeaders,
    /// Forms of line pointers of such pages.
    ChangedPointers,
    /// Offsets in these.
    ChangedOffsets,
    /// Whole line pointers of such pages.
    AnyChangedPointers,
    /// Whether pages that records initialize are read before they are initialized again.
    Kept,
}

/// Columns of changed items in [`Topic::PageDeltas`], by relation and one of these numbers. They are in the place of a fork, so each is
/// the same column as the flags of the pages of that fork; the format has it so.
pub mod changed_item {
    /// *Changed lengths*.
    pub const CHANGED_LENGTHS: u32 = 1;
    /// *Common bytes* at the beginning and the end.
    pub const COMMON_BYTES: u32 = 2;
    /// *Changed item headers*.
    pub const CHANGED_ITEM_HEADERS: u32 = 3;
    /// *Changed bytes* between.
    pub const CHANGED_BYTES: u32 = 4;
}

/// A map with a small cache of the entries that were asked for last, which is faster than the map.
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

    /// The value of a key, made by `make` if there is none; `hash` is a number in which keys mostly differ.
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

    /// The value of a key, if there is one.
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

/// All columns that are looked up by what they hold.
#[derive(Default)]
pub struct KeyedColumns(CachedMap<ColumnKey, Column>);

type ColumnKey = (Topic, u32, u32, u32);

/// A column's key, and a number in which keys mostly differ.
#[inline]
fn key_and_hash(topic: Topic, numbers: [u32; 3]) -> (ColumnKey, u32) {
    let hash = numbers[0] << 8 ^ numbers[1] << 4 ^ numbers[2] ^ (topic as u32) << 16;
    ((topic, numbers[0], numbers[1], numbers[2]), hash)
}

impl KeyedColumns {
    /// The column of a topic and three numbers; it is created the first time.
    ///
    /// # Errors
    /// Decoding: the file has no such column.
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

    /// The column, if it was created.
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
