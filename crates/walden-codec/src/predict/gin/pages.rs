//! Pages of GIN indexes that are seen first, as an index that is built has them.
//!
//! A leaf of a posting tree has one key's rows in their order; entries are in the order of their keys. Both are coded as
//! how each follows from the one before it.

use walden_redo::page::{PAGE_BYTES, Page};

use crate::columns::{Class, Coder, Kind, narrow};
use crate::predict::TupleCoder;
use crate::predict::names::Topic;
use crate::predict::relation::Relation;
use crate::tuple::gin::{
    BOUND, Entry, FILLS, Key, LIST, as_entry, filled, new_entry, put_segments, segments, text, tree_entry,
};
use crate::tuple::tid::RowPlace;
use crate::zigzag::{against, difference};
use crate::{Corrupt, corrupt};

/// What the page's last entry had.
#[derive(Default)]
pub struct Entries {
    key: Vec<u8>,
    flags: u16,
    block: u32,
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes a leaf of a posting tree; its header and special area are known.
    pub fn gin_rows_page(
        &mut self,
        relation: Relation,
        source: Option<&Page>,
        made: &mut Page,
    ) -> Result<(), Corrupt> {
        let parts = source.and_then(segments);
        let like = |what: u32| [relation.number, 0, what];
        let kind = Kind::Rows(Class::IndexTuples, RowPlace::BYTES as u16);
        let bounds = self.names.column(self.coder, Topic::GinPage, like(0), kind)?;
        let mut bound = Vec::with_capacity(RowPlace::BYTES);
        let bytes = source.map_or(&[][..], |page| &page.0[BOUND..BOUND + RowPlace::BYTES]);
        self.coder.bytes(bounds, bytes, RowPlace::BYTES, &mut bound)?;
        made.0[BOUND..BOUND + RowPlace::BYTES].copy_from_slice(&bound);
        let symbols = Kind::Symbols(Class::IndexTuples);
        let counts = self.names.column(self.coder, Topic::GinPage, like(1), symbols)?;
        let count = self.coder.symbol(counts, parts.as_ref().map_or(0, |(rows, _)| rows.len() as u64))?;
        let rows = self.gin_rows([relation.number, 1], parts.as_ref().map(|(rows, _)| &rows[..]), count)?;
        // How segments are filled: from 1 on in one of the usual ways; else their number, and how many rows each has.
        let usual = parts.as_ref().and_then(|(rows, counts)| {
            FILLS.iter().position(|&most| filled(rows, most) == *counts).map(|way| way as u64 + 1)
        });
        let usual = self.coder.symbol(counts, usual.unwrap_or(0))?;
        let in_segments = match usual {
            0 => {
                let source = parts.as_ref().map(|(_, counts)| &counts[..]);
                let number = self.coder.symbol(counts, source.map_or(0, |counts| counts.len() as u64))?;
                if number > rows.len() as u64 {
                    return Err(corrupt("a list can't have so many segments"));
                }
                let count = |at: usize| {
                    let count = self.coder.symbol(counts, source.map_or(0, |counts| counts[at] as u64))?;
                    Ok(usize::try_from(count).unwrap_or(usize::MAX))
                };
                (0..number as usize).map(count).collect::<Result<Vec<usize>, Corrupt>>()?
            }
            way => {
                let most = usize::try_from(way - 1).ok().and_then(|way| FILLS.get(way));
                filled(&rows, *most.ok_or_else(|| corrupt("segments can't be filled so"))?)
            }
        };
        let mut list = Vec::new();
        let fits = put_segments(&rows, &in_segments, &mut list) && LIST + list.len() <= made.special();
        if !fits {
            return Err(corrupt("a page can't have these rows"));
        }
        made.0[LIST..LIST + list.len()].copy_from_slice(&list);
        Ok(())
    }

    /// Codes an entry of a page.
    pub fn gin_page_entry(
        &mut self,
        relation: Relation,
        last: &mut Entries,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        /// How the rows are told.
        const OTHER: u64 = 0;
        const TREE: u64 = 1;
        // From here on: so many rows.
        const LISTED: u64 = 1;
        let parts = source.and_then(as_entry);
        let like = |what: u32| [relation.number, 2, what];
        let symbols = Kind::Symbols(Class::IndexTuples);
        let forms = self.names.column(self.coder, Topic::GinPage, like(0), symbols)?;
        let form = parts.as_ref().map_or(OTHER, |(entry, _)| match &entry.rows {
            None => TREE,
            Some(rows) => LISTED + rows.len() as u64,
        });
        let form = self.coder.symbol(forms, form)?;
        if form == OTHER {
            return self.any_item(relation, source, out);
        }
        let key = self.gin_page_key(relation, last, parts.as_ref().map(|(entry, _)| &entry.key))?;
        let made = if form == TREE {
            let blocks = self.names.column(self.coder, Topic::GinPage, like(1), symbols)?;
            let block = parts.as_ref().map_or(0, |(_, block)| against(*block, last.block));
            last.block = difference(narrow(self.coder.symbol(blocks, block.into())?)?, last.block);
            tree_entry(&key, last.block)
        } else {
            let rows = parts.as_ref().and_then(|(entry, _)| entry.rows.as_deref());
            let rows = self.gin_rows([relation.number, 3], rows, form - LISTED)?;
            let is_same =
                |(entry, _): &(Entry<'_>, u32)| entry.key == key && entry.rows.as_ref() == Some(&rows);
            // Encoding has made it already.
            if let Some(item) = source.filter(|_| parts.as_ref().is_some_and(is_same)) {
                out.extend_from_slice(item);
                return Ok(());
            }
            new_entry(&key, &rows)
        };
        out.extend(made.ok_or_else(|| corrupt("an entry can't be"))?);
        Ok(())
    }

    /// A key as what it has in common with the last one, and the rest.
    fn gin_page_key(
        &mut self,
        relation: Relation,
        last: &mut Entries,
        source: Option<&Key>,
    ) -> Result<Key, Corrupt> {
        const IS_TEXT: u64 = 1;
        const NEW_FLAGS: u64 = 2;
        let like = |what: u32| [relation.number, 4, what];
        let symbols = Kind::Symbols(Class::IndexTuples);
        let forms = self.names.column(self.coder, Topic::GinPage, like(0), symbols)?;
        let as_text = source.and_then(|key| text(&key.bytes));
        let form = source.map_or(0, |key| {
            let text = if as_text.is_some() { IS_TEXT } else { 0 };
            text | if key.flags == last.flags { 0 } else { NEW_FLAGS }
        });
        let form = self.coder.symbol(forms, form)?;
        if form & NEW_FLAGS != 0 {
            let flags = self.coder.symbol(forms, source.map_or(0, |key| key.flags.into()))?;
            /// What is left of `t_info` beside them.
            const SIZE: u64 = 0x1FFF;
            let flags = u16::try_from(flags & !SIZE).map_err(|_| corrupt("flags can't be"))?;
            last.flags = flags;
        }
        let bytes = as_text.or(source.map(|key| &key.bytes[..])).unwrap_or_default();
        let same = bytes.iter().zip(&last.key).take_while(|(new, last)| new == last).count();
        let common = self.names.column(self.coder, Topic::GinPage, like(1), symbols)?;
        let same = usize::try_from(self.coder.symbol(common, same as u64)?).unwrap_or(usize::MAX);
        let wrong = Corrupt("a key can't be so long");
        if same > last.key.len() {
            return Err(wrong);
        }
        last.key.truncate(same);
        let lengths = self.names.column(self.coder, Topic::GinPage, like(2), symbols)?;
        let len = self.coder.symbol(lengths, bytes.len().saturating_sub(same) as u64)?;
        let len = usize::try_from(len).ok().filter(|&len| len <= PAGE_BYTES).ok_or(wrong)?;
        let texts = self.names.column(self.coder, Topic::GinPage, like(3), Kind::Bytes(Class::Text))?;
        self.coder.bytes(texts, bytes.get(same..).unwrap_or_default(), len, &mut last.key)?;
        let mut bytes = Vec::with_capacity(last.key.len() + 8);
        if form & IS_TEXT != 0 {
            /// The longest text with a header of one byte.
            const LONGEST: usize = 126;
            if last.key.len() > LONGEST {
                return Err(wrong);
            }
            bytes.push((last.key.len() as u8 + 1) << 1 | 1);
        }
        bytes.extend_from_slice(&last.key);
        if form & IS_TEXT != 0 {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        Ok(Key { flags: last.flags, bytes })
    }

    /// So many rows in their order, each as how far it is from the one before.
    fn gin_rows(
        &mut self,
        [relation, what]: [u32; 2],
        source: Option<&[RowPlace]>,
        count: u64,
    ) -> Result<Vec<RowPlace>, Corrupt> {
        /// Where the next row is: in the same block, the next one, or so many after that.
        const SAME: u64 = 0;
        const NEXT: u64 = 1;
        const FAR: u64 = 2;
        let wrong = Corrupt("a list can't have these rows");
        let count = usize::try_from(count).ok().filter(|&count| count <= PAGE_BYTES).ok_or(wrong)?;
        let symbols = Kind::Symbols(Class::IndexTuples);
        let steps = self.names.column(self.coder, Topic::GinPage, [relation, what, 10], symbols)?;
        let far = self.names.column(self.coder, Topic::GinPage, [relation, what, 11], symbols)?;
        let mut rows = Vec::with_capacity(count);
        let mut last = RowPlace { block: 0, number: 0 };
        for at in 0..count {
            let (mut step, mut blocks) = (0, 0);
            if let Some(&row) = source.and_then(|rows| rows.get(at)) {
                (step, blocks) = match row.block.wrapping_sub(last.block) {
                    0 => (SAME + 3 * u64::from(row.number.wrapping_sub(last.number).wrapping_sub(1)), 0),
                    1 => (NEXT + 3 * u64::from(row.number.wrapping_sub(1)), 0),
                    more => (FAR + 3 * u64::from(row.number.wrapping_sub(1)), more - 2),
                };
            }
            let step = self.coder.symbol(steps, step)?;
            // Which of the first two it is nobody can foresee, so nothing branches on it.
            let (number, step) = (step / 3 + 1, step % 3);
            let before = if step == SAME { last.number } else { 0 };
            let blocks = if step == FAR { narrow::<u32>(self.coder.symbol(far, blocks.into())?)? } else { 0 };
            last = RowPlace {
                block: u32::try_from(u64::from(last.block) + step + u64::from(blocks)).map_err(|_| wrong)?,
                number: u16::try_from(number + u64::from(before)).map_err(|_| wrong)?,
            };
            rows.push(last);
        }
        Ok(rows)
    }
}
