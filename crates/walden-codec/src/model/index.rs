//! Index tuples (`itup.h`): in records, and on the pages of all access methods that use them.
//!
//! ```text
//! offset  width
//!      0      6  t_tid     block, upper half first, and line pointer
//!      6      2  t_info    size 13 bits, three flags
//!      8         null bitmap if a flag says so, key; in a posting list's tuple, table rows after the key
//! ```

use super::heap::{Relation, RowCoder};
use super::names::Topic;
use super::rows::{LayoutKey, Plan, PlanKey};
use crate::Corrupt;
use crate::columns::{Class, Kind, Side};

const HEADER: usize = 8;
const PLACE: usize = 6;
const SIZE: u16 = 0x1FFF;
const HAS_NULLS: u16 = 0x8000;
/// `t_tid` has another meaning (`INDEX_ALT_TID_MASK`).
const OTHER_MEANING: u16 = 0x2000;
/// In such a tuple's line pointer: there is a posting list (`BT_IS_POSTING`).
const IS_POSTING: u16 = 0x2000;
const COUNT: u16 = 0x0FFF;
/// Null bitmap (32 attributes) and the gap after it.
const BITMAP: usize = 8;

/// The parts of an index tuple.
struct Parts<'a> {
    bitmap: &'a [u8],
    key: &'a [u8],
    list: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |two| u16::from_le_bytes([two[0], two[1]]))
}

impl Parts<'_> {
    /// The parts, if the tuple is what it says it is.
    fn of(tuple: &[u8]) -> Option<Parts<'_>> {
        let info = u16_at(tuple, 6);
        if tuple.len() < HEADER || usize::from(info & SIZE) != tuple.len() || !tuple.len().is_multiple_of(8) {
            return None;
        }
        let bitmap = if info & HAS_NULLS != 0 { BITMAP } else { 0 };
        let posting = posting(info, u16_at(tuple, 4));
        let (key, list) = if posting > 0 {
            let at = usize::from(u16_at(tuple, 0)) << 16 | usize::from(u16_at(tuple, 2));
            let whole = at.checked_add(posting * PLACE)?.next_multiple_of(8) == tuple.len();
            if !whole || at < HEADER + bitmap || !at.is_multiple_of(8) {
                return None;
            }
            if tuple[at + posting * PLACE..].iter().any(|&byte| byte != 0) {
                return None;
            }
            (tuple.get(HEADER + bitmap..at)?, &tuple[at..at + posting * PLACE])
        } else {
            (tuple.get(HEADER + bitmap..)?, &[][..])
        };
        Some(Parts { bitmap: &tuple[HEADER..HEADER + bitmap], key, list })
    }
}

/// Table rows in a posting list; 0 if there is none.
fn posting(info: u16, line_pointer: u16) -> usize {
    if info & OTHER_MEANING != 0 && line_pointer & IS_POSTING != 0 {
        (line_pointer & COUNT).into()
    } else {
        0
    }
}

/// What tells tuples with different keys apart: flags, and how many attributes a tuple of an inner page still has.
fn layout(info: u16, line_pointer: u16) -> u32 {
    let kept = if info & OTHER_MEANING != 0 && line_pointer & IS_POSTING == 0 { line_pointer } else { 0 };
    u32::from(info & (HAS_NULLS | OTHER_MEANING)) << 16 | u32::from(kept & COUNT)
}

/// Whether a tuple can be coded as one.
pub fn is_tuple(tuple: &[u8]) -> bool {
    Parts::of(tuple).is_some()
}

impl<S: Side> RowCoder<'_, S> {
    /// Codes an index tuple; `context` tells apart where tuples come in another order.
    pub fn index_tuple(
        &mut self,
        relation: Relation,
        context: u32,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let parts = source.and_then(|tuple| Some((tuple, Parts::of(tuple)?)));
        let like = |what: u32| [relation.number, context, what];
        let forms = Kind::Symbols(Class::IndexTuples);
        // Three flags, and below them nothing: the size is told by what follows.
        let column = self.names.column(self.side, Topic::IndexForms, like(0), forms)?;
        let info = parts.as_ref().map_or(0, |(tuple, _)| u16_at(tuple, 6) & !SIZE);
        let info = self.side.symbol(column, u64::from(info >> 13))?;
        let info = u16::try_from(info).ok().filter(|&info| info < 8).ok_or(Corrupt("flags can't be"))? << 13;
        let other = info & OTHER_MEANING != 0;
        let kind = Kind::Rows(Class::IndexTuples, PLACE as u16);
        let places = self.names.column(self.side, Topic::Places, like(u32::from(other)), kind)?;
        let start = out.len();
        let place = parts.as_ref().map_or(&[][..], |(tuple, _)| &tuple[..PLACE]);
        self.side.bytes(places, place, PLACE, out)?;
        out.extend(info.to_le_bytes());
        let line_pointer = u16_at(&out[start..], 4);
        let posting = posting(info, line_pointer);
        let mut bitmap_number = 0;
        if info & HAS_NULLS != 0 {
            let column = self.names.column(
                self.side,
                Topic::IndexForms,
                like(1),
                Kind::Rows(Class::IndexTuples, 8),
            )?;
            let at = out.len();
            let bitmap = parts.as_ref().map_or(&[][..], |(_, parts)| parts.bitmap);
            self.side.bytes(column, bitmap, BITMAP, out)?;
            bitmap_number = u64::from(u32::from_le_bytes([out[at], out[at + 1], out[at + 2], out[at + 3]]));
        }
        let layout = layout(info, line_pointer);
        let mut key = Vec::new();
        let layout_key = LayoutKey(relation.number, u64::from(layout ^ context << 30) << 32 | bitmap_number);
        let source = parts
            .as_ref()
            .map(|(_, parts)| (parts.key, PlanKey::new(relation.locator, (layout, parts.bitmap))));
        self.rows.row(self.side, layout_key, 8, None, source, &mut key)?;
        out.extend_from_slice(&key);
        if posting > 0 {
            let column = self.names.column(self.side, Topic::Places, like(2), kind)?;
            let list = parts.as_ref().map_or(&[][..], |(_, parts)| parts.list);
            self.side.bytes(column, list, posting * PLACE, out)?;
            let len = (out.len() - start).next_multiple_of(8);
            out.resize(start + len, 0);
        }
        let len = out.len() - start;
        if len > SIZE.into() {
            return Err(Corrupt("an index tuple can't be so long"));
        }
        let info = info | len as u16;
        out[start + 6..start + 8].copy_from_slice(&info.to_le_bytes());
        Ok(())
    }
}

/// Adds a tuple to what encoding sees ahead.
pub fn plan(plan: &mut Plan, relation: walden_format::record::RelFileLocator, tuple: &[u8]) {
    if let Some(parts) = Parts::of(tuple) {
        let layout = layout(u16_at(tuple, 6), u16_at(tuple, 4));
        plan.add(PlanKey::new(relation, (layout, parts.bitmap)), parts.key);
    }
}
