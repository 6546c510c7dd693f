//! Columns by what they are of.

use rustc_hash::FxHashMap;

use crate::Corrupt;
use crate::columns::{Column, Kind, Side};

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
}

/// All columns met.
#[derive(Default)]
pub struct Names {
    all: FxHashMap<Name, Column>,
    /// Those met last, by a hash that takes less time.
    recent: Vec<Option<(Name, Column)>>,
}

type Name = (Topic, u32, u32, u32);

impl Names {
    const RECENT: usize = 512;

    /// The column of a topic, told from its like by three numbers; it is named when it is met first.
    #[inline]
    pub fn column<S: Side>(
        &mut self,
        side: &mut S,
        topic: Topic,
        like: [u32; 3],
        kind: Kind,
    ) -> Result<Column, Corrupt> {
        let name = (topic, like[0], like[1], like[2]);
        let mixed = like[0] << 8 ^ like[1] << 4 ^ like[2] ^ (topic as u32) << 16;
        let at = mixed.wrapping_mul(0x9E37_79B1) as usize >> 16 & (Names::RECENT - 1);
        if let Some(Some((known, column))) = self.recent.get(at)
            && *known == name
        {
            return Ok(*column);
        }
        self.other(side, name, kind, at)
    }

    #[inline(never)]
    fn other<S: Side>(&mut self, side: &mut S, name: Name, kind: Kind, at: usize) -> Result<Column, Corrupt> {
        let column = match self.all.get(&name) {
            Some(&column) => column,
            None => {
                let column = side.column(kind)?;
                self.all.insert(name, column);
                column
            }
        };
        self.recent.resize(Names::RECENT, None);
        self.recent[at] = Some((name, column));
        Ok(column)
    }
}
