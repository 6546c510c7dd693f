//! Headers of heap tuples, by relation.

use super::super::attributes::LayoutKey;
use super::super::names::{Names, Topic};
use crate::columns::{Class, Coder, Column, Kind};
use crate::tuple::heap::{HAS_NULLS, HEAD_BYTES, HEADER_BYTES, Head, Old, layout, whole};
use crate::{Corrupt, corrupt};

/// What is known of heads, on both sides.
#[derive(Default)]
pub struct Heads {
    /// By relation: these are numbered from 0 on.
    relations: Vec<OfRelation>,
    /// Room for whole rows of updates: as given, and as coded.
    pub wholes: [Vec<u8>; 2],
    /// The head of the first, if it is one.
    pub whole: Option<Head>,
}

/// What is known of a relation's heads.
#[derive(Default)]
struct OfRelation {
    heads: Dictionary<Head>,
    /// By where rows begin after them.
    bitmaps: Vec<(u8, Dictionary<Vec<u8>>)>,
}

impl OfRelation {
    fn bitmaps(&self, offset: u8) -> Option<&Dictionary<Vec<u8>>> {
        self.bitmaps.iter().find(|bitmaps| bitmaps.0 == offset).map(|bitmaps| &bitmaps.1)
    }

    fn add_bitmap(&mut self, offset: u8, bitmap: Vec<u8>) -> u64 {
        let known = self.bitmaps.iter().position(|bitmaps| bitmaps.0 == offset);
        let at = known.unwrap_or_else(|| {
            self.bitmaps.push((offset, Dictionary::default()));
            self.bitmaps.len() - 1
        });
        self.bitmaps[at].1.add(bitmap)
    }
}

/// Values by the order in which they were met, of one relation.
struct Dictionary<V>(Vec<V>);

impl<V> Default for Dictionary<V> {
    fn default() -> Self {
        Dictionary(Vec::new())
    }
}

impl<V> Dictionary<V> {
    /// The number of a value.
    fn find<Q: ?Sized + PartialEq<V>>(&self, value: &Q) -> Option<u64> {
        self.0.iter().position(|other| value == other).map(|at| at as u64)
    }

    fn get(&self, number: u64) -> Option<&V> {
        self.0.get(usize::try_from(number).ok()?)
    }

    /// Its number is the next.
    fn add(&mut self, value: V) -> u64 {
        self.0.push(value);
        self.0.len() as u64 - 1
    }
}

/// A null bitmap that is not told.
const NO_BITMAP: u64 = 0;

/// One that is met first; those known follow.
const NEW_BITMAP: u64 = 1;

/// More different heads than this in one relation aren't worth a number.
const MAX_HEADS: usize = 512;

/// Likewise null bitmaps: each is compared with all before it. Rows with others are coded whole.
const MAX_BITMAPS: usize = 4096;

impl Heads {
    fn relation(&mut self, number: u32) -> &mut OfRelation {
        let at = number as usize;
        if at >= self.relations.len() {
            self.relations.resize_with(at + 1, OfRelation::default);
        }
        &mut self.relations[at]
    }

    /// Codes what comes before a row's attributes.
    pub fn head<S: Coder>(
        &mut self,
        coder: &mut S,
        names: &mut Names,
        relation: u32,
        source: Option<&Head>,
    ) -> Result<Head, Corrupt> {
        let column =
            names.column(coder, Topic::RowHead, [relation, 0, 0], Kind::Symbols(Class::RowHeaders))?;
        let of_relation = self.relation(relation);
        let known = source.and_then(|head| of_relation.heads.find(head));
        match coder.symbol(column, known.map_or(0, |number| number + 1))? {
            0 => {
                let kind = Kind::Rows(Class::RowHeaders, HEAD_BYTES as u16);
                let column = names.column(coder, Topic::RowHead, [relation, 1, 0], kind)?;
                let head = coder.array(column, source.unwrap_or(&Head::default()))?;
                if of_relation.heads.0.len() < MAX_HEADS {
                    of_relation.heads.add(head);
                }
                Ok(head)
            }
            number => {
                of_relation.heads.get(number - 1).copied().ok_or_else(|| corrupt("a row's head can't be"))
            }
        }
    }

    /// Codes a row's null bitmap with the gap after it, which a record has whole: its number, or nothing if the row has none
    /// where its head says.
    pub fn bitmap<S: Coder>(
        &mut self,
        coder: &mut S,
        names: &mut Names,
        relation: u32,
        head: &Head,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<Option<u64>, Corrupt> {
        let symbols = Kind::Symbols(Class::RowHeaders);
        let column = names.column(coder, Topic::RowBitmap, like_bitmap(relation, head), symbols)?;
        let of_relation = self.relation(relation);
        let known = of_relation.bitmaps(head[4]);
        let bytes = usize::from(head[4]).checked_sub(HEADER_BYTES);
        let bitmap = source.zip(bytes).and_then(|(body, bytes)| body.get(..bytes));
        let symbol = bitmap.map_or(NO_BITMAP, |bitmap| {
            let full = known.is_some_and(|known| known.0.len() >= MAX_BITMAPS);
            let unknown = if full { NO_BITMAP } else { NEW_BITMAP };
            known.and_then(|known| known.find(bitmap)).map_or(unknown, |number| NEW_BITMAP + 1 + number)
        });
        match coder.symbol(column, symbol)? {
            NO_BITMAP => Ok(None),
            NEW_BITMAP => {
                let bytes = bytes.ok_or_else(|| corrupt("a row's attributes can't begin there"))?;
                let kind = Kind::Bytes(Class::RowHeaders);
                let column = names.column(coder, Topic::RowBitmap, [relation, head[4].into(), 1], kind)?;
                let start = out.len();
                coder.bytes(column, bitmap.unwrap_or_default(), bytes, out)?;
                Ok(Some(of_relation.add_bitmap(head[4], out[start..].to_vec())))
            }
            symbol => {
                let number = symbol - NEW_BITMAP - 1;
                let bitmap = known.and_then(|known| known.get(number));
                let bitmap = bitmap.ok_or_else(|| corrupt("a null bitmap can't be"))?;
                out.extend_from_slice(bitmap);
                Ok(Some(number))
            }
        }
    }
}

impl Heads {
    /// For encoding: the whole row of an update's data, which is coded next; no if it can't be told.
    pub fn take_part(&mut self, data: &[u8], old: Option<Old<'_>>, flags: (bool, bool)) -> bool {
        self.whole = old.and_then(|old| whole(data, old, flags, &mut self.wholes[0]));
        self.whole.is_some()
    }

    /// What rows like this one, an item on its page, have in common: none if there are no columns for it yet.
    pub fn alike<'i>(&mut self, names: &mut Names, relation: u32, item: &'i [u8]) -> Option<Alike<'i>> {
        let Old { head, bitmap, .. } = Old::of(item)?;
        let number = self.relation(relation).bitmaps(head[4])?.find(bitmap)?;
        let symbol = u8::try_from(NEW_BITMAP + 1 + number).ok().filter(|symbol| symbol.is_ascii())?;
        Some(Alike {
            relation,
            column: names.known(Topic::RowHead, [relation, 0, 0])?,
            bitmap: (names.known(Topic::RowBitmap, like_bitmap(relation, head))?, symbol),
            layout: layout_key(relation, head, Some(number)),
            like: item.get(..head[4].into())?,
        })
    }

    /// The layout of a row on its page, and its attributes.
    pub fn layout_of<'a>(&self, relation: u32, row: Old<'a>) -> (LayoutKey, &'a [u8]) {
        let bitmaps = self.relations.get(relation as usize).and_then(|known| known.bitmaps(row.head[4]));
        let bitmap = bitmaps.and_then(|bitmaps| bitmaps.find(row.bitmap));
        (layout_key(relation, row.head, bitmap), row.row)
    }
}

/// Rows of a relation with the same null bitmap, and heads that say the same of their attributes.
pub struct Alike<'i> {
    relation: u32,
    /// What comes before one's attributes on a page.
    pub like: &'i [u8],
    /// The column of heads.
    pub column: Column,
    /// The column of bitmaps, and its symbol for theirs.
    pub bitmap: (Column, u8),
    /// Their layout.
    pub layout: LayoutKey,
}

impl Alike<'_> {
    /// A head, by its symbol of one byte, if it is one of these.
    pub fn head(&self, heads: &Heads, symbol: u8) -> Option<Head> {
        let number = u64::from(symbol).checked_sub(1).filter(|_| symbol.is_ascii())?;
        let head = heads.relations.get(self.relation as usize)?.heads.get(number)?;
        self.is_like(head).then_some(*head)
    }

    /// The symbol of a row's head, if it is one of these.
    pub fn symbol(&self, heads: &Heads, item: &[u8]) -> Option<u8> {
        let head = item[HEADER_BYTES - HEAD_BYTES..].first_chunk()?;
        let is_like =
            self.is_like(head) && item.get(HEADER_BYTES..self.like.len()) == self.like.get(HEADER_BYTES..);
        let number = is_like.then(|| heads.relations.get(self.relation as usize)?.heads.find(head))??;
        u8::try_from(number + 1).ok().filter(|symbol| symbol.is_ascii())
    }

    fn is_like(&self, head: &Head) -> bool {
        let own = self.like[HEADER_BYTES - HEAD_BYTES..].first_chunk();
        own.is_some_and(|own| layout(own) == layout(head) && (own[2] ^ head[2]) & HAS_NULLS == 0)
    }
}

/// Which null bitmaps' numbers are in one column. Without nulls, there is only the gap.
fn like_bitmap(relation: u32, head: &Head) -> [u32; 3] {
    let has_nulls = u32::from(head[2] & HAS_NULLS);
    [relation, head[4].into(), 2 * has_nulls]
}

/// The layout of rows with such a head and a null bitmap of this number.
pub fn layout_key(relation: u32, head: &Head, bitmap: Option<u64>) -> LayoutKey {
    LayoutKey(relation, layout(head) | bitmap.map_or(u64::MAX << 32, |number| number << 32))
}

#[cfg(test)]
mod tests {
    use walden_format::record::RelFileLocator;
    use walden_redo::PageStore;

    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use crate::predict::Predictors;
    use crate::predict::relation::Relation;

    /// A row of 40 attributes with this null bitmap, as in INSERT.
    fn row(number: u32) -> Vec<u8> {
        let mut data = vec![40, 0, 1, 0, 32];
        data.extend([number.to_le_bytes(), 1_u32.to_le_bytes()].as_flattened());
        data.push(0);
        data.extend(number.wrapping_mul(7919).to_le_bytes());
        data
    }

    #[test]
    fn more_null_bitmaps_than_are_kept_come_back() {
        const ROWS: u32 = MAX_BITMAPS as u32 + 1000;
        let relation = Relation { number: 0, locator: RelFileLocator::default() };
        let mut coder = Encoder::default();
        let (mut predictors, mut store) = (Predictors::default(), PageStore::default());
        for number in 0..ROWS {
            let mut tuple_coder = predictors.tuple_coder(&mut coder, &mut store);
            tuple_coder.insert(relation, None, Some(&row(number)), &mut Vec::new()).expect("any row");
        }
        assert_eq!(predictors.heads.relation(0).bitmaps(32).map(|known| known.0.len()), Some(MAX_BITMAPS));
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        let (mut predictors, mut store) = (Predictors::default(), PageStore::default());
        for number in 0..ROWS {
            let mut tuple_coder = predictors.tuple_coder(&mut coder, &mut store);
            let mut out = Vec::new();
            tuple_coder.insert(relation, None, None, &mut out).expect("a row");
            assert_eq!(out, row(number));
        }
        coder.finish().expect("nothing is left");
    }
}
