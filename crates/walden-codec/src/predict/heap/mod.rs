//! Rows of tables, in records and on pages.

use walden_format::record::RelFileLocator;

use self::headers::layout_key;
use self::visibility::Visible;
use super::TupleCoder;
use super::names::Topic;
use super::relation::{Place, Relation};
use super::survey::{Plan, PlanHead};
use crate::columns::{Class, Coder, Kind, narrow};
use crate::tuple::heap::{HEAD_BYTES, HEADER_BYTES, Head, MultiInsert, Old, in_common, layout};
use crate::{Corrupt, corrupt};

pub mod headers;
mod run;
pub mod visibility;

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

    /// A row with the part of its header that only pages have.
    pub fn heap_row(
        &mut self,
        place: Place,
        number: u16,
        visible: &mut Visible,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let header = visible.code(self, place, number, source)?;
        out.extend_from_slice(&header);
        let at = out.len();
        out.extend([0; HEAD_BYTES]);
        let source = source.and_then(|item| item.get(header.len()..)?.split_first_chunk::<HEAD_BYTES>());
        let head = self.row(place.relation, None, source, out)?;
        out[at..at + HEAD_BYTES].copy_from_slice(&head);
        Ok(())
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
