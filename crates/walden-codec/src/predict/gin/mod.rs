//! GIN indexes: their pending lists, and the entries that these become.
//!
//! A row's keys first go to the pending list: a tuple each, in the order of the keys. Of a text's words, the `tsvector` that
//! was put into the table right before tells them all. Later, each key's rows go into its entry together: which rows these
//! are is known from the pending list.

use self::pending_keys::Order;
use super::TupleCoder;
use super::names::Topic;
use super::relation::Relation;
use crate::columns::{Class, Coder, Kind};
use crate::tuple::gin::{Entry, EntryHead, HEAD, HEADER, NUMBER_BITS, are_apart, entry, replaced};
use crate::{Corrupt, corrupt};

pub mod pages;
mod pending;
pub mod pending_keys;

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes what precedes an entry.
    pub fn gin_head(&mut self, relation: Relation, source: Option<&[u8]>) -> Result<EntryHead, Corrupt> {
        let kind = Kind::Rows(Class::IndexTuples, HEAD as u16);
        let column = self.names.column(self.coder, Topic::GinEntry, [relation.number, 0, 0], kind)?;
        self.coder.array(column, source.and_then(|data| data.first_chunk()).unwrap_or(&[0; HEAD]))
    }

    /// Codes an entry as what it has in common with `old` at its beginning and end, and what is between.
    pub fn gin_entry(
        &mut self,
        relation: Relation,
        head: EntryHead,
        old: &[u8],
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        self.pending.settle(relation.number);
        let at = out.len() + HEAD;
        if !self.told_entry(relation, head, old, source, out)? {
            self.other_entry(relation, head, old, source, out)?;
            self.entry_is_done(relation, &out[at..]);
        }
        Ok(())
    }

    /// Codes an entry as what the pending list makes of the one that it replaces; no if it is something else.
    fn told_entry(
        &mut self,
        relation: Relation,
        head: EntryHead,
        old: &[u8],
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        /// Keys that may be left out before the next one.
        const FARTHEST: usize = 64;
        /// Rows that may be left for later.
        const MAX_LEFT: usize = 16;
        let replaces = replaced(&head).is_some();
        if !self.pending.has(relation.number) || (replaces && old.len() < HEADER) {
            return Ok(false);
        }
        let body = source.map(|data| &data[HEAD..]);
        let pending = &self.pending;
        let (mut skip, mut left, mut made) = (0, 0, None);
        let before = Entry::of(old).filter(|_| replaces);
        if let Some(body) = body {
            let mut ways = pending.next(relation.number, before.as_ref()).take(FARTHEST).enumerate();
            // Most entries have a key that is told, or else are not worth another look.
            let new = if before.is_none() { Entry::of(body) } else { None };
            let way = ways
                .find(|(_, (key, _))| before.is_some() || new.as_ref().is_some_and(|new| new.key == **key));
            if let Some((number, (key, rows))) = way {
                skip = number;
                // Rows that are known twice count once; without such, their number says how many are left.
                let count = u16::from_le_bytes([body[4], body[5]]).into();
                let known = before.as_ref().and_then(|entry| entry.rows.as_deref()).unwrap_or_default();
                let surplus = (known.len() + rows.len()).checked_sub(count);
                let lefts = match surplus {
                    None => 0..0,
                    Some(surplus) if are_apart(known, rows) => surplus..surplus + 1,
                    Some(_) => 0..MAX_LEFT,
                };
                left = lefts
                    .filter(|&left| left < MAX_LEFT.min(rows.len()))
                    .find(|left| {
                        made = entry(before.as_ref(), key, &rows[..rows.len() - left]);
                        made.as_ref().is_some_and(|(made, _)| made == body)
                    })
                    .unwrap_or(MAX_LEFT);
            }
        }
        let told = made.as_ref().zip(body).is_some_and(|((made, _), body)| made == body);
        let like = |what: u32| [relation.number, what, u32::from(replaces)];
        let symbols = Kind::Symbols(Class::IndexTuples);
        let column = self.names.column(self.coder, Topic::GinEntry, like(5), symbols)?;
        // 0: not told; else 1 + the rows that are left for later.
        let left = self.coder.symbol(column, if told { 1 + left as u64 } else { 0 })?;
        if left == 0 {
            return Ok(false);
        }
        let skip = if replaces {
            0
        } else {
            let column = self.names.column(self.coder, Topic::GinEntry, like(6), symbols)?;
            usize::try_from(self.coder.symbol(column, skip as u64)?).unwrap_or(usize::MAX)
        };
        let wrong = Corrupt("an entry can't be told from the pending list");
        let ((tuple, rows), order) = {
            let mut ways = self.pending.next(relation.number, before.as_ref());
            let (key, rows) = ways.nth(skip.min(FARTHEST)).ok_or(wrong)?;
            let left = usize::try_from(left - 1).ok().and_then(|left| rows.len().checked_sub(left));
            let rows = &rows[..left.ok_or(wrong)?];
            let order = Order::of(before.as_ref().map_or(&key.bytes, |entry| &entry.key.bytes));
            (made.or_else(|| entry(before.as_ref(), key, rows)).ok_or(wrong)?, order)
        };
        out.extend_from_slice(&head);
        out.extend_from_slice(&tuple);
        match rows.first() {
            Some(first) if first.number < 1 << NUMBER_BITS => {
                self.pending.done(relation.number, order, Some(&rows));
            }
            // What it is read as may be something else.
            _ => self.entry_is_done(relation, &tuple),
        }
        Ok(true)
    }

    fn entry_is_done(&mut self, relation: Relation, tuple: &[u8]) {
        if let Some(entry) = Entry::of(tuple) {
            let order = Order::of(&entry.key.bytes);
            self.pending.done(relation.number, order, entry.rows.as_deref());
        }
    }

    fn other_entry(
        &mut self,
        relation: Relation,
        head: EntryHead,
        old: &[u8],
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        out.extend_from_slice(&head);
        let known = u32::from(old.len() >= HEADER);
        let like = |what: u32| [relation.number, what, known];
        // The header: as the old one's, mixed.
        let kind = Kind::Rows(Class::IndexTuples, HEADER as u16);
        let column = self.names.column(self.coder, Topic::GinEntry, like(1), kind)?;
        let mut mixed =
            source.and_then(|data| data[HEAD..].first_chunk::<HEADER>().copied()).unwrap_or_default();
        mixed.iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        let start = out.len();
        self.coder.bytes(column, &mixed, HEADER, out)?;
        out[start..].iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        let old = old.get(HEADER..).unwrap_or_default();
        let body = source.map_or(&[][..], |data| &data[HEAD + HEADER..]);
        let symbols = Kind::Symbols(Class::IndexTuples);
        let lengths = self.names.column(self.coder, Topic::GinEntry, like(2), symbols)?;
        let common = self.names.column(self.coder, Topic::GinEntry, like(3), symbols)?;
        // Growth, as entries seldom become shorter; then how far from the old one's end they part.
        let growth = (body.len() as i64).wrapping_sub(old.len() as i64);
        let growth = self.coder.symbol(lengths, (growth << 1 ^ growth >> 63).cast_unsigned())?;
        let growth = (growth >> 1).cast_signed() ^ -(growth & 1).cast_signed();
        let len = (old.len() as i64).checked_add(growth).and_then(|len| usize::try_from(len).ok());
        let len =
            len.filter(|&len| len <= u16::MAX.into()).ok_or_else(|| corrupt("an entry can't be so long"))?;
        let most = old.len().min(len);
        let same = body.iter().zip(old).take_while(|(new, old)| new == old).count();
        let away =
            if old.is_empty() { 0 } else { self.coder.symbol(common, (most - same.min(most)) as u64)? };
        let same = usize::try_from(away).ok().and_then(|away| most.checked_sub(away));
        let same = same.ok_or_else(|| corrupt("an entry can't have that in common"))?;
        out.extend_from_slice(&old[..same]);
        let kind = Kind::Bytes(if known == 1 { Class::Payload } else { Class::Text });
        let column = self.names.column(self.coder, Topic::GinEntry, like(4), kind)?;
        self.coder.bytes(column, body.get(same..).unwrap_or_default(), len - same, out)
    }
}
