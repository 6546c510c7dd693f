//! Pages of GIN indexes of which nothing is known yet, as an index that is built has them.
//!
//! A leaf of a posting tree has one key's rows in their order; entries are in the order of their keys. Both are coded as
//! how each follows from the one before it.
//!
//! ```text
//! offset  width
//!     24      6  of a leaf of a posting tree: no row in it is after this one
//!     32         segments of a compressed list, up to `pd_lower`
//!   8184      8  right sibling 4 bytes, number of items 2 bytes, flags 2 bytes (`GinPageOpaqueData`)
//! ```

use walden_redo::page::{PAGE_BYTES, Page};

use super::gin::{Entry, Key, new_entry, number_of, put_rows, segment, text, tree_entry};
use super::heap::{Relation, TupleCoder};
use super::keys::RowPlace;
use super::names::Topic;
use super::pages::{PageKind, against, difference};
use crate::columns::{Class, Coder, Kind, narrow};
use crate::{Corrupt, corrupt};

const SPECIAL: usize = PAGE_BYTES - 8;
const FLAGS: usize = PAGE_BYTES - 2;
/// Flags of a leaf of entries.
const ENTRIES: u16 = 0x02;
/// Flags of a leaf of a posting tree.
const ROWS: u16 = 0x83;

const BOUND: usize = 24;
const LIST: usize = 32;

/// Bytes that PostgreSQL fills a segment with: when building a tree, and when packing a page anew.
const FILLS: [usize; 2] = [376, 248];

/// A page's kind, if it is one of GIN's that are told in a way of their own.
pub fn kind(page: &Page) -> Option<PageKind> {
    if page.special() != SPECIAL {
        return None;
    }
    match u16::from_le_bytes([page.0[FLAGS], page.0[FLAGS + 1]]) {
        ROWS if segments(page).is_some() => Some(PageKind::GinRows),
        ENTRIES if page.item(1).is_some_and(|item| as_entry(item).is_some()) => Some(PageKind::GinEntries),
        _ => None,
    }
}

/// The rows of a leaf of a posting tree, and how many are in each segment; nothing if it would not come back from them.
fn segments(page: &Page) -> Option<(Vec<RowPlace>, Vec<usize>)> {
    let list = page.0.get(LIST..page.lower())?;
    let (mut rows, mut counts, mut at) = (Vec::new(), Vec::new(), 0);
    while at < list.len() {
        let before = rows.len();
        at += segment(&list[at..], &mut rows)?;
        counts.push(rows.len() - before);
    }
    let mut made = Vec::with_capacity(list.len());
    let same = is_list(&rows) && put_segments(&rows, &counts, &mut made) && made == list;
    (same && !rows.is_empty()).then_some((rows, counts))
}

/// Whether rows are in order, each at a place where a row may be.
fn is_list(rows: &[RowPlace]) -> bool {
    rows.is_sorted_by(|a, b| a < b) && rows.iter().all(|row| row.number > 0)
}

fn put_segments(rows: &[RowPlace], counts: &[usize], out: &mut Vec<u8>) -> bool {
    let mut rest = rows;
    let put = |&count: &usize| {
        let Some((rows, after)) = rest.split_at_checked(count) else { return false };
        rest = after;
        put_rows(rows, out)
    };
    counts.iter().all(put)
}

/// How many rows each segment has if it has as many as fit into so many bytes.
fn filled(rows: &[RowPlace], most: usize) -> Vec<usize> {
    let mut counts = Vec::new();
    let (mut bytes, mut count) = (0, 0);
    for (at, &row) in rows.iter().enumerate() {
        let last = if at == 0 { row } else { rows[at - 1] };
        let distance = number_of(row).saturating_sub(number_of(last));
        let len = (64 - distance.leading_zeros()).div_ceil(7).max(1) as usize;
        if count > 0 && bytes + len > most {
            counts.push(count);
            count = 0;
        }
        // A segment's first row is apart from these bytes.
        bytes = if count == 0 { 0 } else { bytes + len };
        count += 1;
    }
    counts.push(count);
    counts
}

/// The entry that an item is, if it would come back from its parts; where its tree begins, if it has one.
fn as_entry(item: &[u8]) -> Option<(Entry<'_>, u32)> {
    let entry_of = Entry::of(item)?;
    let block = RowPlace::of(item)?.block;
    let made = match &entry_of.rows {
        Some(rows) if is_list(rows) => new_entry(&entry_of.key, rows)?,
        Some(_) => return None,
        None => tree_entry(&entry_of.key, block)?,
    };
    (made == item).then_some((entry_of, block))
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use crate::model::heap::Heads;
    use crate::model::keys::Keys;
    use crate::model::names::Names;
    use crate::model::pages::Place;
    use crate::model::rows::Rows;
    use walden_format::record::RelFileLocator;
    use walden_redo::PageStore;
    use walden_redo::store::StoreOptions;

    fn empty_page(lower: usize, upper: usize, flags: u16) -> Box<Page> {
        let mut page = Box::<Page>::default();
        page.0[12..14].copy_from_slice(&(lower as u16).to_le_bytes());
        page.0[14..16].copy_from_slice(&(upper as u16).to_le_bytes());
        page.0[16..18].copy_from_slice(&(SPECIAL as u16).to_le_bytes());
        page.0[18..20].copy_from_slice(&(PAGE_BYTES as u16 | 4).to_le_bytes());
        page.0[SPECIAL..SPECIAL + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        page.0[FLAGS..].copy_from_slice(&flags.to_le_bytes());
        page
    }

    fn rows(count: u32) -> Vec<RowPlace> {
        let block = |at: u32| at / 3 + (at / 50) * 5 + (at / 400) * 70_000;
        (0..count)
            .map(|at| RowPlace { block: block(at), number: (at % 3 * 20 + at / 90 + 1) as u16 })
            .collect()
    }

    fn page_of_rows(count: u32, segments: impl Fn(&[RowPlace]) -> Vec<usize>) -> Box<Page> {
        let rows = rows(count);
        let mut list = Vec::new();
        assert!(put_segments(&rows, &segments(&rows), &mut list));
        let mut page = empty_page(LIST + list.len(), SPECIAL, ROWS);
        page.0[LIST..LIST + list.len()].copy_from_slice(&list);
        page
    }

    fn page_of_entries() -> Box<Page> {
        let key = |text: &str| {
            let mut bytes = vec![(text.len() as u8 + 1) << 1 | 1];
            bytes.extend(text.bytes());
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            Key { flags: 0x4000, bytes }
        };
        let mut items: Vec<Vec<u8>> = (1..60)
            .map(|at| new_entry(&key(&format!("word {}", at + 1000)), &rows(at)).expect("an entry"))
            .collect();
        items.insert(7, tree_entry(&key("word 1007 and more"), 77).expect("an entry"));
        items.push(new_entry(&Key { flags: 0, bytes: vec![1, 2, 3, 4, 0, 0, 0, 0] }, &rows(2)).unwrap());
        // None that could be one.
        items.push(vec![0x80, 0, 0, 1, 9, 9, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut page = empty_page(24 + 4 * items.len(), 0, ENTRIES);
        let mut at = SPECIAL;
        for (number, item) in items.iter().enumerate() {
            at -= item.len().next_multiple_of(8);
            page.0[at..at + item.len()].copy_from_slice(item);
            let pointer = at as u32 | 1 << 15 | (item.len() as u32) << 17;
            page.0[24 + 4 * number..28 + 4 * number].copy_from_slice(&pointer.to_le_bytes());
        }
        page.0[14..16].copy_from_slice(&(at as u16).to_le_bytes());
        page
    }

    fn pages() -> Vec<Box<Page>> {
        vec![
            page_of_rows(900, |rows| filled(rows, FILLS[0])),
            page_of_rows(1200, |rows| filled(rows, FILLS[1])),
            page_of_rows(30, |_| vec![20, 1, 9]),
            page_of_entries(),
        ]
    }

    /// Codes pages one after another; what is made of each.
    fn code<S: Coder>(coder: &mut S, sources: &[Option<&Page>]) -> Result<Vec<Box<Page>>, Corrupt> {
        let (mut names, mut heads, mut rows) = (Names::default(), Heads::default(), Rows::default());
        let mut keys = Keys::default();
        let mut store = PageStore::new(StoreOptions::default());
        let relation = Relation { number: 3, locator: RelFileLocator::default() };
        let mut tuple_coder = TupleCoder {
            coder,
            names: &mut names,
            heads: &mut heads,
            rows: &mut rows,
            keys: &mut keys,
            store: &mut store,
        };
        let page = |(block, source): (usize, &Option<&Page>)| {
            let mut made = Box::<Page>::default();
            let place = Place { relation, fork: 0, block: block as u32 };
            tuple_coder.page(place, *source, &mut made).map(|_| made)
        };
        sources.iter().enumerate().map(page).collect()
    }

    #[test]
    fn pages_come_back() {
        let pages = pages();
        let kinds: Vec<_> = pages.iter().map(|page| kind(page)).collect();
        let (rows, entries) = (Some(PageKind::GinRows), Some(PageKind::GinEntries));
        assert_eq!(kinds, [rows, rows, rows, entries]);
        let mut coder = Encoder::default();
        let sources: Vec<Option<&Page>> = pages.iter().map(|page| Some(&**page)).collect();
        code(&mut coder, &sources).unwrap();
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).unwrap();
        let made = code(&mut coder, &vec![None; pages.len()]).unwrap();
        coder.finish().unwrap();
        for (page, made) in pages.iter().zip(&made) {
            assert!(page.0 == made.0);
        }
    }

    #[test]
    fn what_would_not_come_back_is_of_no_kind_of_gins() {
        let page = page_of_rows(900, |rows| filled(rows, FILLS[0]));
        for at in (LIST..page.lower()).step_by(11) {
            let mut other = page.clone();
            other.0[at] ^= 0x90;
            if let Some((rows, counts)) = segments(&other) {
                let mut list = Vec::new();
                assert!(put_segments(&rows, &counts, &mut list));
                assert_eq!(list, other.0[LIST..other.lower()]);
            }
        }
        let mut other = page.clone();
        other.0[FLAGS] = 0x01;
        assert_eq!(kind(&other), None);
    }

    #[test]
    fn segments_are_filled_as_postgresql_does() {
        // One byte each after the first.
        let rows: Vec<RowPlace> = (0..1000).map(|at| RowPlace { block: 9, number: at + 1 }).collect();
        assert_eq!(filled(&rows, 376), [377, 377, 246]);
        assert_eq!(filled(&rows[..377], 376), [377]);
    }
}
