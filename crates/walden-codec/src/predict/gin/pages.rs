//! Codes pages of GIN indexes without a base, such as pages of a newly built index.
//!
//! A posting tree leaf has the sorted TIDs of one key. Entries are sorted by their keys. Both are coded as
//! deltas against their predecessors.

use walden_redo::page::gin::GIN_DATA;
use walden_redo::page::index_tuple::INDEX_SIZE_MASK;
use walden_redo::page::{PAGE_BYTES, PAGE_CONTENTS, Page};

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::leb128::narrow;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::Relation;
use crate::predict::{Predictor, TupleCoder, UnknownItems};
use crate::tuple::gin::{
    Entry, FILLS, Key, as_entry, filled, new_entry, put_segments, put_text, segments, text, tree_entry,
};
use crate::zigzag::{zigzag_delta, zigzag_value};
use crate::{Corrupt, corrupt};
use walden_redo::page::Tid;
use walden_redo::page::tid::TID_BYTES;

/// The entries of a page, in order.
pub struct PageEntries {
    relation: Relation,
    /// Key of the last entry: its text, or its bytes.
    key: Vec<u8>,
    flags: u16,
    /// Root block of the last posting tree.
    block: u32,
}

impl PageEntries {
    /// Creates the predictor for the entries of an index page.
    pub fn new(relation: Relation) -> PageEntries {
        PageEntries { relation, key: Vec::new(), flags: 0, block: 0 }
    }
}

impl<S: Coder> Predictor<S> for PageEntries {
    fn fits(&mut self, _: &mut TupleCoder<'_, S>, _: &[u8]) -> bool {
        true
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        // Forms: not an entry; TIDs in a posting tree; else 1 + the number of TIDs. No list is empty.
        const OTHER: u64 = 0;
        const TREE: u64 = 1;
        const LISTED: u64 = 1;
        let relation = self.relation;
        let entry = source.and_then(as_entry);
        let (entry, block) = (entry.as_ref().map(|entry| &entry.0), entry.as_ref().map(|entry| entry.1));
        let forms = coder.gin_column(Topic::EntryForms, relation.number)?;
        let form = entry.map_or(OTHER, |entry| match &entry.tids {
            None => TREE,
            Some(tids) => LISTED + tids.len() as u64,
        });
        let form = coder.coder.symbol(forms, form)?;
        if form == OTHER {
            return UnknownItems { relation }.code(coder, source, out);
        }
        let key = self.key(coder, entry.map(|entry| &entry.key))?;
        let made = if form == TREE {
            let blocks = coder.gin_column(Topic::Trees, relation.number)?;
            let block = block.map_or(0, |block| zigzag_delta(block, self.block));
            self.block = zigzag_value(narrow(coder.coder.symbol(blocks, block.into())?)?, self.block);
            tree_entry(&key, self.block)
        } else {
            let tids = entry.and_then(|entry| entry.tids.as_deref());
            let tids = coder.tids_in_order([relation.number, 3], tids, form - LISTED)?;
            let is_same = |entry: &Entry<'_>| entry.key == key && entry.tids.as_ref() == Some(&tids);
            // When encoding, the item equals the result.
            if let Some(item) = source.filter(|_| entry.is_some_and(is_same)) {
                out.extend_from_slice(item);
                return Ok(());
            }
            new_entry(&key, &tids)
        };
        out.extend(
            made.ok_or_else(|| corrupt("cannot decode a GIN entry: expected a key and TIDs that fit"))?,
        );
        Ok(())
    }
}

impl PageEntries {
    /// Codes a key as the prefix shared with the last key, and the remainder.
    fn key<S: Coder>(&mut self, coder: &mut TupleCoder<'_, S>, source: Option<&Key>) -> Result<Key, Corrupt> {
        const IS_TEXT: u64 = 1;
        const NEW_FLAGS: u64 = 2;
        let relation = self.relation.number;
        let forms = coder.gin_column(Topic::KeyForms, relation)?;
        let as_text = source.and_then(|key| text(&key.bytes));
        let form = source.map_or(0, |key| {
            let text = if as_text.is_some() { IS_TEXT } else { 0 };
            text | if key.flags == self.flags { 0 } else { NEW_FLAGS }
        });
        let form = coder.coder.symbol(forms, form)?;
        if form & NEW_FLAGS != 0 {
            let flags = coder.coder.symbol(forms, source.map_or(0, |key| key.flags.into()))?;
            self.flags = u16::try_from(flags & !u64::from(INDEX_SIZE_MASK))
                .map_err(|_| corrupt("cannot decode a GIN key: expected flags of 16 bits"))?;
        }
        let bytes = as_text.or(source.map(|key| &key.bytes[..])).unwrap_or_default();
        self.key_bytes(coder, bytes)?;
        let mut bytes = Vec::with_capacity(self.key.len() + 8);
        if form & IS_TEXT == 0 {
            bytes.extend_from_slice(&self.key);
        } else if !put_text(&self.key, &mut bytes) {
            return Err(corrupt("cannot decode a GIN key: expected a text of at most 126 bytes"));
        }
        Ok(Key { flags: self.flags, bytes })
    }

    /// Codes the number of bytes shared with the last key, and the bytes after them.
    fn key_bytes<S: Coder>(&mut self, coder: &mut TupleCoder<'_, S>, source: &[u8]) -> Result<(), Corrupt> {
        let wrong =
            Corrupt("cannot decode a GIN key: expected at most the bytes of the previous key in common");
        let relation = self.relation.number;
        let same = source.iter().zip(&self.key).take_while(|(new, last)| new == last).count();
        let common = coder.gin_column(Topic::KeyCommon, relation)?;
        let same = usize::try_from(coder.coder.symbol(common, same as u64)?).unwrap_or(usize::MAX);
        if same > self.key.len() {
            return Err(wrong);
        }
        self.key.truncate(same);
        let lengths = coder.gin_column(Topic::KeyLengths, relation)?;
        let len = coder.coder.symbol(lengths, source.len().saturating_sub(same) as u64)?;
        let len = usize::try_from(len).ok().filter(|&len| len <= PAGE_BYTES).ok_or(wrong)?;
        let (key, kind) = ([relation, 0, 0], Kind::Bytes(Class::Text));
        let texts = coder.keyed_columns.column(coder.coder, Topic::KeyRemainder, key, kind)?;
        coder.coder.bytes(texts, source.get(same..).unwrap_or_default(), len, &mut self.key)
    }
}

impl<S: Coder> TupleCoder<'_, S> {
    fn gin_column(&mut self, topic: Topic, relation: u32) -> Result<Column, Corrupt> {
        self.keyed_columns.column(self.coder, topic, [relation, 0, 0], Kind::Symbols(Class::IndexTuples))
    }

    /// Codes a posting tree leaf. Its header and special area are already decoded.
    pub fn posting_leaf(
        &mut self,
        relation: Relation,
        source: Option<&Page>,
        target: &mut Page,
    ) -> Result<(), Corrupt> {
        let list = source.and_then(segments);
        let (tids, counts) = (list.as_ref().map(|list| &list.0[..]), list.as_ref().map(|list| &list.1[..]));
        let (key, kind) = ([relation.number, 0, 0], Kind::Rows(Class::IndexTuples, TID_BYTES as u16));
        let bounds = self.keyed_columns.column(self.coder, Topic::Bounds, key, kind)?;
        let bound = source.and_then(|page| page.0[PAGE_CONTENTS..].first_chunk()).copied();
        let bound: [u8; TID_BYTES] = self.coder.array(bounds, &bound.unwrap_or_default())?;
        target.0[PAGE_CONTENTS..PAGE_CONTENTS + TID_BYTES].copy_from_slice(&bound);
        let column = self.gin_column(Topic::PostingCounts, relation.number)?;
        let count = self.coder.symbol(column, tids.map_or(0, |tids| tids.len() as u64))?;
        let tids = self.tids_in_order([relation.number, 1], tids, count)?;
        let counts = self.segment_counts(column, &tids, counts)?;
        let mut list = Vec::new();
        if !put_segments(&tids, &counts, &mut list) || GIN_DATA + list.len() > target.special() {
            return Err(corrupt("cannot decode a posting tree page: expected TIDs that fit"));
        }
        target.0[GIN_DATA..GIN_DATA + list.len()].copy_from_slice(&list);
        Ok(())
    }

    /// Codes the number of TIDs in each segment: as PostgreSQL fills segments, or explicitly.
    fn segment_counts(
        &mut self,
        column: Column,
        tids: &[Tid],
        source: Option<&[usize]>,
    ) -> Result<Vec<usize>, Corrupt> {
        // 0: the number of segments and the TIDs of each follow. Otherwise 1 + the index in `FILLS`.
        let fill = source.and_then(|counts| FILLS.iter().position(|&most| filled(tids, most) == *counts));
        let fill = self.coder.symbol(column, fill.map_or(0, |fill| 1 + fill as u64))?;
        if let Some(fill) = fill.checked_sub(1) {
            let most = usize::try_from(fill).ok().and_then(|fill| FILLS.get(fill));
            return Ok(filled(
                tids,
                *most.ok_or_else(|| {
                    corrupt("cannot decode a posting list: expected a known way of filling segments")
                })?,
            ));
        }
        let number = self.coder.symbol(column, source.map_or(0, |counts| counts.len() as u64))?;
        if number > tids.len() as u64 {
            return Err(corrupt("cannot decode a posting list: expected no more segments than TIDs"));
        }
        let mut count = |at: usize| {
            let count = self.coder.symbol(column, source.map_or(0, |counts| counts[at] as u64))?;
            Ok(usize::try_from(count).unwrap_or(usize::MAX))
        };
        (0..number as usize).map(&mut count).collect()
    }

    /// Codes `count` sorted TIDs as deltas.
    fn tids_in_order(
        &mut self,
        [relation, what]: [u32; 2],
        source: Option<&[Tid]>,
        count: u64,
    ) -> Result<Vec<Tid>, Corrupt> {
        // Block of the next TID: the same, the next one, or a distance.
        const SAME: u64 = 0;
        const NEXT: u64 = 1;
        const FAR: u64 = 2;
        let wrong = Corrupt("cannot decode a posting list: expected TIDs that fit their types");
        let count = usize::try_from(count).ok().filter(|&count| count <= PAGE_BYTES).ok_or(wrong)?;
        let (key, kind) = ([relation, what, 0], Kind::Symbols(Class::IndexTuples));
        let steps = self.keyed_columns.column(self.coder, Topic::TidSteps, key, kind)?;
        let far = self.keyed_columns.column(self.coder, Topic::FarBlocks, key, kind)?;
        let mut tids = Vec::with_capacity(count);
        let mut last = Tid { block: 0, offset_number: 0 };
        for at in 0..count {
            let (mut step, mut blocks) = (0, 0);
            if let Some(&tid) = source.and_then(|tids| tids.get(at)) {
                (step, blocks) = match tid.block.wrapping_sub(last.block) {
                    0 => (
                        SAME + 3 * u64::from(
                            tid.offset_number.wrapping_sub(last.offset_number).wrapping_sub(1),
                        ),
                        0,
                    ),
                    1 => (NEXT + 3 * u64::from(tid.offset_number.wrapping_sub(1)), 0),
                    more => (FAR + 3 * u64::from(tid.offset_number.wrapping_sub(1)), more - 2),
                };
            }
            let step = self.coder.symbol(steps, step)?;
            // The processor cannot predict which of the first two it is, so the code does not branch on it.
            let (number, step) = (step / 3 + 1, step % 3);
            let before = if step == SAME { last.offset_number } else { 0 };
            let blocks = if step == FAR { narrow::<u32>(self.coder.symbol(far, blocks.into())?)? } else { 0 };
            last = Tid {
                block: u32::try_from(u64::from(last.block) + step + u64::from(blocks)).map_err(|_| wrong)?,
                offset_number: u16::try_from(number + u64::from(before)).map_err(|_| wrong)?,
            };
            tids.push(last);
        }
        Ok(tids)
    }
}
