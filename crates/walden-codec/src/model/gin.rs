//! Entries of GIN indexes in records (`ginxlogInsertEntry`): mostly an entry that is there already, with one more table row.
//!
//! ```text
//! offset  width
//!      0      2  line pointer
//!      2      1  whether the entry there is replaced
//!      3      1
//!      4      8  the entry's header
//!     12         key, posting list
//! ```

use super::heap::{Relation, RowCoder};
use super::names::Topic;
use crate::Corrupt;
use crate::columns::{Class, Kind, Side};

/// In a record's flags: it is not about entries (`GIN_INSERT_ISDATA`).
pub const IS_DATA: u16 = 1;

const HEAD: usize = 4;
const HEADER: usize = 8;

/// What precedes an entry.
pub type EntryHead = [u8; HEAD];

/// Whether data is an entry.
pub fn is_entry(data: &[u8]) -> bool {
    data.len() >= HEAD + HEADER
}

/// The number of the entry that is replaced.
pub fn replaced(head: &EntryHead) -> Option<u16> {
    (head[2] != 0).then_some(u16::from_le_bytes([head[0], head[1]]))
}

impl<S: Side> RowCoder<'_, S> {
    /// Codes what precedes an entry.
    pub fn gin_head(&mut self, relation: Relation, source: Option<&[u8]>) -> Result<EntryHead, Corrupt> {
        let kind = Kind::Rows(Class::IndexTuples, HEAD as u16);
        let column = self.names.column(self.side, Topic::GinEntry, [relation.number, 0, 0], kind)?;
        let mut head = Vec::with_capacity(HEAD);
        self.side.bytes(column, source.map_or(&[], |data| &data[..HEAD]), HEAD, &mut head)?;
        head.try_into().map_err(|_| Corrupt("an entry is cut short"))
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
        out.extend(head);
        let known = u32::from(old.len() >= HEADER);
        let like = |what: u32| [relation.number, what, known];
        // The header: as the old one's, mixed.
        let kind = Kind::Rows(Class::IndexTuples, HEADER as u16);
        let column = self.names.column(self.side, Topic::GinEntry, like(1), kind)?;
        let mut mixed = source.map_or(Vec::new(), |data| data[HEAD..HEAD + HEADER].to_vec());
        mixed.iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        let start = out.len();
        self.side.bytes(column, &mixed, HEADER, out)?;
        out[start..].iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
        let old = old.get(HEADER..).unwrap_or_default();
        let body = source.map_or(&[][..], |data| &data[HEAD + HEADER..]);
        let symbols = Kind::Symbols(Class::IndexTuples);
        let lengths = self.names.column(self.side, Topic::GinEntry, like(2), symbols)?;
        let common = self.names.column(self.side, Topic::GinEntry, like(3), symbols)?;
        // Growth, as entries seldom become shorter; then how far from the old one's end they part.
        let growth = (body.len() as i64).wrapping_sub(old.len() as i64);
        let growth = self.side.symbol(lengths, (growth << 1 ^ growth >> 63).cast_unsigned())?;
        let growth = (growth >> 1).cast_signed() ^ -(growth & 1).cast_signed();
        let len = (old.len() as i64).checked_add(growth).and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|&len| len <= u16::MAX.into()).ok_or(Corrupt("an entry can't be so long"))?;
        let most = old.len().min(len);
        let same = body.iter().zip(old).take_while(|(new, old)| new == old).count();
        let away =
            if old.is_empty() { 0 } else { self.side.symbol(common, (most - same.min(most)) as u64)? };
        let same = usize::try_from(away).ok().and_then(|away| most.checked_sub(away));
        let same = same.ok_or(Corrupt("an entry can't have that in common"))?;
        out.extend_from_slice(&old[..same]);
        let kind = Kind::Bytes(if known == 1 { Class::Payload } else { Class::Text });
        let column = self.names.column(self.side, Topic::GinEntry, like(4), kind)?;
        self.side.bytes(column, body.get(same..).unwrap_or_default(), len - same, out)
    }
}
