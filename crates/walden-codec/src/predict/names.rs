//! Columns by what they hold.
//!
//! Both directions name a column the first time that they reach it, in the same order; so files have no names, and a column costs
//! nothing before it is used.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::Corrupt;
use crate::column_kind::Kind;
use crate::columns::{Coder, Column};

/// What a column holds; three numbers distinguish the columns of a topic, of which the first mostly is a relation's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Topic {
    /// Main data of a shape and a length.
    Main,
    /// Whether the block data that an image displaced is predicted.
    DisplacedData,
    /// Pages whose items are deltas against those of the page before.
    PageDelta,
    /// Parts of GIN entries.
    GinEntry,
    /// Pages of GIN indexes.
    GinPage,
    /// Tuples of GIN pending lists.
    Pending,
    /// Forms of block data of a relation and a shape.
    DataForm,
    /// Lengths of block data of a relation and a shape.
    DataLength,
    /// Block data of a relation, a shape and a length.
    Data,
    /// Block data of which only the relation is known.
    LongData,
    /// Blocks of a relation that are not in its move-to-front list.
    NewBlock,
    /// Replication origins.
    Origin,
    /// Headers of a relation's heap tuples.
    TupleHeader,
    /// Null bitmaps of a relation's heap tuples.
    NullBitmap,
    /// Transactions and TIDs in the headers of heap tuples on a relation's pages.
    Visibility,
    /// Line pointers.
    LinePointers,
    /// Multi-inserts: counts and offsets.
    MultiInsert,
    /// TIDs in index tuples, and what predicts them and their keys.
    HeapTids,
    /// Flags and lengths of index tuples.
    IndexForms,
    /// Pages of a kind.
    PageKind,
    /// Page headers of a relation.
    PageHeader,
    /// Special areas of pages of a relation.
    PageSpecial,
    /// Whether pages that records initialize are read before they are initialized again.
    PageIsRead,
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
pub struct Names(CachedMap<Name, Column>);

type Name = (Topic, u32, u32, u32);

/// A name, and a number in which names mostly differ.
#[inline]
fn name_and_hash(topic: Topic, numbers: [u32; 3]) -> (Name, u32) {
    let hash = numbers[0] << 8 ^ numbers[1] << 4 ^ numbers[2] ^ (topic as u32) << 16;
    ((topic, numbers[0], numbers[1], numbers[2]), hash)
}

impl Names {
    /// The column of a topic and three numbers; it is named the first time.
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
        let (name, hash) = name_and_hash(topic, numbers);
        self.0.get(name, hash, || match topic {
            Topic::DisplacedData | Topic::Main | Topic::Origin => coder.shared_column(kind),
            _ => coder.column(kind),
        })
    }

    /// The column, if it was named.
    pub fn existing(&mut self, topic: Topic, numbers: [u32; 3]) -> Option<Column> {
        let (name, hash) = name_and_hash(topic, numbers);
        self.0.existing(name, hash)
    }
}
