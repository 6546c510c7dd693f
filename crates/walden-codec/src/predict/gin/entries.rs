//! Codes GIN entries in records: predicted from the pending list, or as deltas against the replaced entry.

use super::pending_keys::SortKey;
use walden_format::payload::gin::GinInsertEntry;
use walden_redo::page::gin::MAX_PACKED_OFFSET_NUMBER;

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::{BlockAddress, Relation};
use crate::predict::{Predictor, TupleCoder};
use crate::tuple::gin::{Entry, EntryHead, HEADER, Key, are_apart, entry_with, is_entry, replaced};
use crate::zigzag::{zigzag_delta_u64, zigzag_value_u64};
use crate::{Corrupt, corrupt};
use walden_redo::page::Tid;

/// Block data of a record that inserts or replaces an entry.
pub struct NewEntry {
    /// The page of the entry.
    pub address: BlockAddress,
}

impl<S: Coder> Predictor<S> for NewEntry {
    fn fits(&mut self, _: &mut TupleCoder<'_, S>, data: &[u8]) -> bool {
        is_entry(data)
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let relation = self.address.relation;
        let kind = Kind::Rows(Class::IndexTuples, GinInsertEntry::WIDTH as u16);
        let column =
            coder.keyed_columns.column(coder.coder, Topic::EntryHeads, [relation.number, 0, 0], kind)?;
        let head = source.and_then(|data| data.first_chunk()).unwrap_or(&[0; GinInsertEntry::WIDTH]);
        let head = coder.coder.array(column, head)?;
        let old = replaced(&head).and_then(|number| coder.known_page(self.address)?.item(number));
        let old = old.unwrap_or_default().to_vec();
        coder.pending.settle(relation.number);
        out.extend_from_slice(&head);
        let start = out.len();
        let body = source.map(|data| &data[GinInsertEntry::WIDTH..]);
        if !coder.predicted_entry(relation, &head, &old, body, out)? {
            coder.entry_against_old(relation, &old, body, out)?;
            coder.finish_entry(relation, &out[start..]);
        }
        Ok(())
    }
}

/// Prediction of an entry from the pending list: its key, and the number of the key's TIDs that it lacks.
///
/// `ginInsertCleanup` processes the pending list in key order, so an entry's key is mostly the next one. It
/// stops when its memory is full, so an entry may lack the last TIDs of its key.
#[derive(Default)]
struct PendingPrediction {
    /// Number of keys that are skipped before it.
    skip: usize,
    /// Number of TIDs that remain pending.
    left: usize,
    /// The entry and all its TIDs.
    entry: Option<(Vec<u8>, Vec<Tid>)>,
}

/// Maximum number of skipped keys.
const MAX_SKIP: usize = 64;
/// Maximum number of TIDs that remain pending.
const MAX_LEFT: usize = 16;

impl PendingPrediction {
    /// When encoding: finds the prediction of an entry from the pending list. `before` is the replaced entry.
    fn find<'k>(
        pending: impl Iterator<Item = (&'k Key, &'k [Tid])>,
        before: Option<&Entry<'_>>,
        body: &[u8],
    ) -> PendingPrediction {
        let mut keys = pending.take(MAX_SKIP).enumerate();
        // Most entries have a predicted key. Others are not worth a search.
        let new = if before.is_none() { Entry::parse(body) } else { None };
        let of_entry =
            keys.find(|(_, (key, _))| before.is_some() || new.as_ref().is_some_and(|new| new.key == **key));
        let Some((skip, (key, tids))) = of_entry else { return PendingPrediction::default() };
        // TIDs known from both sources count once. If the sources are disjoint, the count implies how many
        // TIDs remain pending.
        let count = Tid::read(body).map_or(0, |tid| tid.offset_number.into());
        let known = before.and_then(|entry| entry.tids.as_deref()).unwrap_or_default();
        let surplus = (known.len() + tids.len()).checked_sub(count);
        let lefts = match surplus {
            None => 0..0,
            Some(surplus) if are_apart(known, tids) => surplus..surplus + 1,
            Some(_) => 0..MAX_LEFT,
        };
        for left in lefts.filter(|&left| left < MAX_LEFT.min(tids.len())) {
            let entry = entry_with(before, key, &tids[..tids.len() - left]);
            if entry.as_ref().is_some_and(|(entry, _)| entry == body) {
                return PendingPrediction { skip, left, entry };
            }
        }
        PendingPrediction { skip, ..PendingPrediction::default() }
    }
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes an entry as predicted from the pending list and the replaced entry. Returns false if the
    /// prediction fails.
    fn predicted_entry(
        &mut self,
        relation: Relation,
        head: &EntryHead,
        old: &[u8],
        body: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        let replaces = replaced(head).is_some();
        if !self.pending.has(relation.number) || (replaces && old.len() < HEADER) {
            return Ok(false);
        }
        let before = Entry::parse(old).filter(|_| replaces);
        let before = before.as_ref();
        let PendingPrediction { skip, left, entry } = body.map_or(PendingPrediction::default(), |body| {
            PendingPrediction::find(self.pending.next(relation.number, before), before, body)
        });
        // 0: not predicted. Otherwise 1 + the number of TIDs that remain pending.
        let left = if entry.is_some() { 1 + left as u64 } else { 0 };
        let column = self.entry_column(relation, Topic::EntryFormsInRecords, replaces)?;
        let left = self.coder.symbol(column, left)?;
        if left == 0 {
            return Ok(false);
        }
        let skip = if replaces {
            0
        } else {
            let column = self.entry_column(relation, Topic::SkippedKeys, replaces)?;
            usize::try_from(self.coder.symbol(column, skip as u64)?).unwrap_or(usize::MAX)
        };
        let wrong = Corrupt("cannot decode a GIN entry: expected one that the pending list predicts");
        let ((tuple, tids), sort_key) = {
            let mut keys = self.pending.next(relation.number, before);
            let (key, tids) = keys.nth(skip.min(MAX_SKIP)).ok_or(wrong)?;
            let left = usize::try_from(left - 1).ok().and_then(|left| tids.len().checked_sub(left));
            let tids = &tids[..left.ok_or(wrong)?];
            let sort_key = SortKey::from_key(before.map_or(&key.bytes, |entry| &entry.key.bytes));
            (entry.or_else(|| entry_with(before, key, tids)).ok_or(wrong)?, sort_key)
        };
        out.extend_from_slice(&tuple);
        match tids.first() {
            Some(first) if first.offset_number <= MAX_PACKED_OFFSET_NUMBER => {
                self.pending.done(relation.number, sort_key, Some(&tids));
            }
            // The tuple may read back as different TIDs.
            _ => self.finish_entry(relation, &tuple),
        }
        Ok(true)
    }

    fn entry_column(&mut self, relation: Relation, topic: Topic, has_old: bool) -> Result<Column, Corrupt> {
        let key = [relation.number, has_old.into(), 0];
        self.keyed_columns.column(self.coder, topic, key, Kind::Symbols(Class::IndexTuples))
    }

    /// Removes an entry's TIDs from the pending list.
    fn finish_entry(&mut self, relation: Relation, tuple: &[u8]) {
        if let Some(entry) = Entry::parse(tuple) {
            let sort_key = SortKey::from_key(&entry.key.bytes);
            self.pending.done(relation.number, sort_key, entry.tids.as_deref());
        }
    }

    /// Codes an entry as the prefix shared with `old`, and the remainder.
    fn entry_against_old(
        &mut self,
        relation: Relation,
        old: &[u8],
        body: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let is_known = old.len() >= HEADER;
        let key = [relation.number, is_known.into(), 0];
        // The header is XORed with the old one.
        let kind = Kind::Rows(Class::IndexTuples, HEADER as u16);
        let column = self.keyed_columns.column(self.coder, Topic::EntryHeaders, key, kind)?;
        let mut header = body.and_then(|body| body.first_chunk()).copied().unwrap_or([0; HEADER]);
        header.iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        let mut header = self.coder.array(column, &header)?;
        header.iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        out.extend_from_slice(&header);
        let old = old.get(HEADER..).unwrap_or_default();
        let body = body.map_or(&[][..], |body| &body[HEADER..]);
        let lengths = self.entry_column(relation, Topic::EntryGrowth, is_known)?;
        let common = self.entry_column(relation, Topic::EntryApart, is_known)?;
        // Growth, because entries rarely shrink; then the distance of the shared prefix from the end of the
        // shorter entry.
        let growth = zigzag_delta_u64(body.len() as u64, old.len() as u64);
        let growth = self.coder.symbol(lengths, growth)?;
        let growth = zigzag_value_u64(growth, 0).cast_signed();
        let len = (old.len() as i64).checked_add(growth).and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|&len| len <= u16::MAX.into());
        let len = len.ok_or_else(|| corrupt("cannot decode a GIN entry: expected at most 65535 bytes"))?;
        let most = old.len().min(len);
        let same = body.iter().zip(old).take_while(|(new, old)| new == old).count();
        let away =
            if old.is_empty() { 0 } else { self.coder.symbol(common, (most - same.min(most)) as u64)? };
        let same = usize::try_from(away).ok().and_then(|away| most.checked_sub(away));
        let same =
            same.ok_or_else(|| corrupt("cannot decode a GIN entry: expected a shared prefix within both"))?;
        out.extend_from_slice(&old[..same]);
        let kind = Kind::Bytes(if is_known { Class::Payload } else { Class::Text });
        let column = self.keyed_columns.column(self.coder, Topic::EntryRemainder, key, kind)?;
        self.coder.bytes(column, body.get(same..).unwrap_or_default(), len - same, out)
    }
}
