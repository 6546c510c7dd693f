//! Columns by what they are of.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::Corrupt;
use crate::columns::{Coder, Column, Kind};

/// What a column is of, apart from the numbers that tell it from its like.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Topic {
    /// Main data of a shape and a length.
    Main,
    /// Whether the data that an image displaced is told.
    Told,
    /// Pages whose items are compared with those before.
    PageAgainst,
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
    /// Blocks of a relation that were not used lately.
    NewBlock,
    /// Replication origins.
    Origin,
    /// Heads of a relation's rows.
    RowHead,
    /// Null bitmaps of a relation's rows.
    RowBitmap,
    /// Visible parts of rows on pages of a relation: transactions and places.
    Visibility,
    /// Line pointers.
    LinePointers,
    /// Multi-inserts: counts and offsets.
    MultiInsert,
    /// Index tuples' heap places.
    Places,
    /// Index tuples' forms.
    IndexForms,
    /// Pages of a kind.
    PageKind,
    /// Page headers of a relation.
    PageHeader,
    /// Special areas of pages of a relation.
    PageSpecial,
    /// Whether pages that are made anew are kept.
    Kept,
}

/// What belongs to keys; that of the keys asked for last is found in less time.
pub struct Recall<K, V> {
    all: FxHashMap<K, V>,
    recent: Vec<Option<(K, V)>>,
}

impl<K, V> Default for Recall<K, V> {
    fn default() -> Self {
        Recall { all: FxHashMap::default(), recent: Vec::new() }
    }
}

impl<K: Copy + Eq + Hash, V: Copy> Recall<K, V> {
    const RECENT: usize = 512;

    /// What belongs to a key, made if it is asked for first; `mixed` is a number that its like mostly differ in.
    #[inline]
    pub fn get<E>(&mut self, key: K, mixed: u32, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        let at = mixed.wrapping_mul(0x9E37_79B1) as usize >> 16 & (Self::RECENT - 1);
        if let Some(Some((known, value))) = self.recent.get(at)
            && *known == key
        {
            return Ok(*value);
        }
        self.other(key, at, make)
    }

    /// What belongs to a key, if it was asked for before.
    pub fn known(&mut self, key: K, mixed: u32) -> Option<V> {
        self.get(key, mixed, || Err(())).ok()
    }

    #[inline(never)]
    fn other<E>(&mut self, key: K, at: usize, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
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

/// All columns met.
#[derive(Default)]
pub struct Names(Recall<Name, Column>);

type Name = (Topic, u32, u32, u32);

/// A name, and a number that its like mostly differ in.
#[inline]
fn named(topic: Topic, like: [u32; 3]) -> (Name, u32) {
    let mixed = like[0] << 8 ^ like[1] << 4 ^ like[2] ^ (topic as u32) << 16;
    ((topic, like[0], like[1], like[2]), mixed)
}

impl Names {
    /// The column of a topic, told from its like by three numbers; it is named when it is met first.
    #[inline]
    pub fn column<S: Coder>(
        &mut self,
        coder: &mut S,
        topic: Topic,
        like: [u32; 3],
        kind: Kind,
    ) -> Result<Column, Corrupt> {
        let (name, mixed) = named(topic, like);
        self.0.get(name, mixed, || match topic {
            Topic::Told | Topic::Main | Topic::Origin => coder.shared_column(kind),
            _ => coder.column(kind),
        })
    }

    /// The same, if it was named.
    pub fn known(&mut self, topic: Topic, like: [u32; 3]) -> Option<Column> {
        let (name, mixed) = named(topic, like);
        self.0.known(name, mixed)
    }
}
