//! Rows of tables, in records and on pages.

use walden_format::record::RelFileLocator;
use walden_format::rmgr::rmid;
use walden_redo::PageStore;
use walden_redo::pglz::same_start;

use super::keys::Keys;
use super::names::{Names, Topic};
use super::rows::{LayoutKey, Plan, PlanHead, Rows};
use crate::columns::{Class, Coder, Column, Kind, narrow};
use crate::{Corrupt, corrupt};

/// What a record says of a row's header: `t_infomask2`, `t_infomask`, `t_hoff` (`xl_heap_header`); as on a page.
pub type Head = [u8; HEAD_BYTES];
/// Bytes of it.
pub const HEAD_BYTES: usize = 5;
/// Bytes of a row's header on its page, without the null bitmap.
pub const HEADER_BYTES: usize = 23;

const ATTRIBUTES: u16 = 0x07FF;
/// In `t_infomask`.
const HAS_NULLS: u8 = 0x01;

/// A relation, as the model and as PostgreSQL name it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relation {
    /// Its number in the model.
    pub number: u32,
    /// Its name.
    pub locator: RelFileLocator,
}

/// What is known of heads, on both sides.
#[derive(Default)]
pub struct Heads {
    /// By relation: these are numbered from 0 on.
    relations: Vec<OfRelation>,
    /// Room for whole rows of updates: as given, and as coded.
    wholes: [Vec<u8>; 2],
    /// The head of the first, if it is one.
    whole: Option<Head>,
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
    fn bitmap<S: Coder>(
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

/// Everything that coding rows needs.
pub struct TupleCoder<'m, S> {
    /// Where columns are.
    pub coder: &'m mut S,
    /// Columns.
    pub names: &'m mut Names,
    /// Heads.
    pub heads: &'m mut Heads,
    /// Rows.
    pub rows: &'m mut Rows,
    /// Keys of indexes.
    pub keys: &'m mut Keys,
    /// Pages as they are before the record.
    pub store: &'m mut PageStore,
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes a row's head and what follows the fixed part of its header; the latter is appended to `out`.
    pub fn row(
        &mut self,
        relation: Relation,
        old: Option<Old<'_>>,
        source: Option<(&Head, &[u8])>,
        out: &mut Vec<u8>,
    ) -> Result<Head, Corrupt> {
        let Relation { number, locator } = relation;
        self.keys.table(relation);
        let head = self.heads.head(self.coder, self.names, number, source.map(|(head, _)| head))?;
        let body = source.map(|(_, body)| body);
        let bitmap = self.heads.bitmap(self.coder, self.names, number, &head, body, out)?;
        let skipped = if bitmap.is_some() { usize::from(head[4]) - HEADER_BYTES } else { 0 };
        let key = layout_key(number, &head, bitmap);
        let source = body.map(|body| {
            let (bitmap, row) = body.split_at(skipped.min(body.len()));
            (row, PlanHead { relation: locator, layout: layout(&head) as u32, bitmap })
        });
        let bitmap = &out[out.len() - skipped..];
        let old = old.filter(|old| layout(old.head) == layout(&head) && old.bitmap == bitmap);
        self.rows.row(self.coder, key, 1, old.map(|old| old.row), source, out)?;
        Ok(head)
    }

    /// Codes the data of an update without what it has in common with the old row: as the whole row, which
    /// [`Heads::take_part`] has told.
    pub fn part(
        &mut self,
        relation: Relation,
        old: Option<Old<'_>>,
        (prefix, suffix): (bool, bool),
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let old = old.ok_or_else(|| corrupt("the old row is not known"))?;
        let [whole_body, mut body] = std::mem::take(&mut self.heads.wholes);
        body.clear();
        let head = self.heads.whole.take();
        let source = head.as_ref().map(|head| (head, &whole_body[..]));
        let head = self.row(relation, Some(old), source, &mut body)?;
        let bitmap = usize::from(head[4]).checked_sub(HEADER_BYTES).filter(|&bytes| bytes <= body.len());
        let (bitmap, row) = body.split_at(bitmap.ok_or_else(|| corrupt("a row is cut short"))?);
        let common = in_common(old.row, row);
        if (prefix, suffix) != (common.0 > 0, common.1 > 0) {
            return Err(corrupt("a row has other bytes in common with the old one"));
        }
        for len in [common.0, common.1].into_iter().filter(|&len| len > 0) {
            let len = u16::try_from(len).map_err(|_| corrupt("a row can't be so long"))?;
            out.extend_from_slice(&len.to_le_bytes());
        }
        out.extend_from_slice(&head);
        out.extend_from_slice(bitmap);
        out.extend_from_slice(&row[common.0..row.len() - common.1]);
        self.heads.wholes = [whole_body, body];
        Ok(())
    }

    /// Codes the data of INSERT, or that of an update with the whole row.
    pub fn insert(
        &mut self,
        relation: Relation,
        old: Option<Old<'_>>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let source = source.and_then(|data| data.split_first_chunk::<HEAD_BYTES>());
        let start = out.len();
        out.extend_from_slice(&[0; HEAD_BYTES]);
        let head = self.row(relation, old, source, out)?;
        out[start..start + HEAD_BYTES].copy_from_slice(&head);
        Ok(())
    }

    /// Codes the data of MULTI_INSERT: rows, each with its length before its head, at even places.
    pub fn multi_insert(
        &mut self,
        relation: Relation,
        rows: usize,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let mut source = source.map(MultiInsert::new);
        let kind = Kind::Symbols(Class::RowHeaders);
        let gaps = self.names.column(self.coder, Topic::MultiInsert, [relation.number, 0, 0], kind)?;
        let start = out.len();
        for _ in 0..rows {
            let next = source.as_mut().and_then(Iterator::next);
            if !(out.len() - start).is_multiple_of(2) {
                // What PostgreSQL leaves there is not always zero.
                let gap = self.coder.symbol(gaps, next.as_ref().map_or(0, |row| row.gap.into()))?;
                out.push(narrow(gap)?);
            }
            let at = out.len();
            out.extend_from_slice(&[0; 2 + HEAD_BYTES]);
            let head = self.row(relation, None, next.map(|row| (row.head, row.body)), out)?;
            let len = out.len() - at - 2 - HEAD_BYTES;
            let len = u16::try_from(len).map_err(|_| corrupt("a row can't be so long"))?;
            out[at..at + 2].copy_from_slice(&len.to_le_bytes());
            out[at + 2..at + 2 + HEAD_BYTES].copy_from_slice(&head);
        }
        Ok(())
    }
}

/// A row on its page, to which another is compared.
#[derive(Clone, Copy, Debug)]
pub struct Old<'a> {
    head: &'a Head,
    bitmap: &'a [u8],
    row: &'a [u8],
}

impl Old<'_> {
    /// Its parts, from the item.
    pub fn of(item: &[u8]) -> Option<Old<'_>> {
        let (head, body) = item.get(HEADER_BYTES - HEAD_BYTES..)?.split_first_chunk::<HEAD_BYTES>()?;
        let bitmap = usize::from(head[4]).checked_sub(HEADER_BYTES)?;
        let (bitmap, row) = body.split_at_checked(bitmap)?;
        Some(Old { head, bitmap, row })
    }
}

/// Bytes that two rows have in common at their beginning and at their end, as `log_heap_update` counts them: fewer than
/// three are not worth it.
fn in_common(old: &[u8], new: &[u8]) -> (usize, usize) {
    let worth = |len: usize| if len < 3 { 0 } else { len };
    let prefix = worth(same_start(old, new));
    let most = old.len().min(new.len()) - prefix;
    (prefix, worth(same_end(&old[old.len() - most..], &new[new.len() - most..])))
}

/// How many bytes are the same from the end on.
fn same_end(one: &[u8], other: &[u8]) -> usize {
    let (mut one, mut other, mut same) = (one, other, 0);
    while let (Some((before, a)), Some((other_before, b))) =
        (one.split_last_chunk(), other.split_last_chunk())
    {
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return same + (differing.leading_zeros() / 8) as usize;
        }
        same += 8;
        (one, other) = (before, other_before);
    }
    same + one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count()
}

/// The whole row of an update's data: its head, and in `body` bitmap and row.
fn whole(data: &[u8], old: Old<'_>, (prefix, suffix): (bool, bool), body: &mut Vec<u8>) -> Option<Head> {
    let mut rest = data;
    let mut length = |said: bool| -> Option<usize> {
        if !said {
            return Some(0);
        }
        let (two, after) = rest.split_first_chunk::<2>()?;
        rest = after;
        Some(u16::from_le_bytes(*two).into())
    };
    let (prefix, suffix) = (length(prefix)?, length(suffix)?);
    let (head, rest) = rest.split_first_chunk::<HEAD_BYTES>()?;
    let (bitmap, middle) = rest.split_at_checked(usize::from(head[4]).checked_sub(HEADER_BYTES)?)?;
    body.clear();
    body.extend_from_slice(bitmap);
    body.extend_from_slice(old.row.get(..prefix)?);
    body.extend_from_slice(middle);
    body.extend_from_slice(&old.row[old.row.len().checked_sub(suffix)?..]);
    let row = &body[bitmap.len()..];
    (in_common(old.row, row) == (prefix, suffix)).then_some(*head)
}

/// Which null bitmaps' numbers are in one column. Without nulls, there is only the gap.
fn like_bitmap(relation: u32, head: &Head) -> [u32; 3] {
    let has_nulls = u32::from(head[2] & HAS_NULLS);
    [relation, head[4].into(), 2 * has_nulls]
}

/// The layout of rows with such a head and a null bitmap of this number.
fn layout_key(relation: u32, head: &Head, bitmap: Option<u64>) -> LayoutKey {
    LayoutKey(relation, layout(head) | bitmap.map_or(u64::MAX << 32, |number| number << 32))
}

fn layout(head: &Head) -> u64 {
    let attributes = u16::from_le_bytes([head[0], head[1]]) & ATTRIBUTES;
    u64::from(attributes) << 8 | u64::from(head[4])
}

/// A row of MULTI_INSERT.
pub struct MultiInsertRow<'a> {
    gap: u8,
    head: &'a Head,
    body: &'a [u8],
}

/// The rows of MULTI_INSERT's data.
pub struct MultiInsert<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> MultiInsert<'a> {
    /// Reads them.
    pub fn new(data: &'a [u8]) -> MultiInsert<'a> {
        MultiInsert { data, at: 0 }
    }

    /// Whether the data is so many rows and nothing else.
    pub fn is_exactly(data: &[u8], rows: usize) -> bool {
        let mut iter = MultiInsert::new(data);
        iter.by_ref().take(rows).count() == rows && iter.at == data.len()
    }
}

impl<'a> Iterator for MultiInsert<'a> {
    type Item = MultiInsertRow<'a>;

    fn next(&mut self) -> Option<MultiInsertRow<'a>> {
        let gap = match self.at % 2 {
            0 => 0,
            _ => *self.data.get(self.at)?,
        };
        let at = self.at.next_multiple_of(2);
        let (len, rest) = self.data.get(at..)?.split_first_chunk::<2>()?;
        let (head, rest) = rest.split_first_chunk::<HEAD_BYTES>()?;
        let body = rest.get(..u16::from_le_bytes(*len).into())?;
        self.at = at + 2 + HEAD_BYTES + body.len();
        Some(MultiInsertRow { gap, head, body })
    }
}

/// Gives the line pointers of the rows that a record puts on its first page, in their order.
pub fn inserted(manager: u8, info: u8, main: &[u8], put: impl FnMut(u16)) {
    const MADE_ANEW: u8 = 0x80;
    let half = |at: usize| main.get(at..at + 2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    match (manager, info & 0x70) {
        (rmid::HEAP, 0x00) => half(0).into_iter().for_each(put),
        // `xl_heap_update`. Where the row stays on its page without a word to indexes, no index tuple follows.
        (rmid::HEAP, 0x20) => half(12).into_iter().for_each(put),
        // `xl_heap_multi_insert`: numbers only where the page is not new.
        (rmid::HEAP2, 0x50) => {
            let rows = half(2).unwrap_or(0);
            match info & MADE_ANEW {
                0 => (0..rows).map_while(|row| half(4 + 2 * usize::from(row))).for_each(put),
                _ => (1..=rows.min(2048)).for_each(put),
            }
        }
        _ => {}
    }
}

/// Adds a row to what encoding sees ahead.
pub fn plan(plan: &mut Plan, relation: RelFileLocator, head: &Head, body: &[u8]) {
    let Some(bytes) = usize::from(head[4]).checked_sub(HEADER_BYTES) else { return };
    let Some((bitmap, row)) = body.split_at_checked(bytes) else { return };
    plan.add(PlanHead { relation, layout: layout(head) as u32, bitmap }, row);
}

/// Adds the rows of MULTI_INSERT.
pub fn plan_multi_insert(target: &mut Plan, relation: RelFileLocator, data: &[u8]) {
    MultiInsert::new(data).for_each(|row| plan(target, relation, row.head, row.body));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};

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
        let (mut names, mut heads, mut rows) = (Names::default(), Heads::default(), Rows::default());
        for number in 0..ROWS {
            let mut tuple_coder = TupleCoder {
                coder: &mut coder,
                names: &mut names,
                heads: &mut heads,
                rows: &mut rows,
                keys: &mut Keys::default(),
                store: &mut PageStore::default(),
            };
            tuple_coder.insert(relation, None, Some(&row(number)), &mut Vec::new()).expect("any row");
        }
        assert_eq!(heads.relation(0).bitmaps(32).map(|known| known.0.len()), Some(MAX_BITMAPS));
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        let (mut names, mut heads, mut rows) = (Names::default(), Heads::default(), Rows::default());
        for number in 0..ROWS {
            let mut tuple_coder = TupleCoder {
                coder: &mut coder,
                names: &mut names,
                heads: &mut heads,
                rows: &mut rows,
                keys: &mut Keys::default(),
                store: &mut PageStore::default(),
            };
            let mut out = Vec::new();
            tuple_coder.insert(relation, None, None, &mut out).expect("a row");
            assert_eq!(out, row(number));
        }
        coder.finish().expect("nothing is left");
    }
}
