//! Codes page items of unknown form.

use walden_redo::page::PAGE_BYTES;

use super::keyed_columns::Topic;
use super::relation::Relation;
use super::{Predictor, TupleCoder};
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::{Corrupt, corrupt};

/// Page items of unknown form, coded as lengths and bytes.
pub struct UnknownItems {
    /// The relation of the page.
    pub relation: Relation,
}

impl<S: Coder> Predictor<S> for UnknownItems {
    fn fits(&mut self, _: &mut TupleCoder<'_, S>, _: &[u8]) -> bool {
        true
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let TupleCoder { coder, keyed_columns, .. } = coder;
        let key = [self.relation.number, 0, 0];
        let kind = Kind::Symbols(Class::PageHeaders);
        let lengths = keyed_columns.column(*coder, Topic::ItemLengths, key, kind)?;
        let len = coder.symbol(lengths, source.map_or(0, |item| item.len() as u64))?;
        let len = usize::try_from(len).ok().filter(|&len| len <= PAGE_BYTES);
        let len = len.ok_or_else(|| corrupt("cannot decode an item: expected at most 8192 bytes"))?;
        let bytes = keyed_columns.column(*coder, Topic::Items, key, Kind::Bytes(Class::Text))?;
        coder.bytes(bytes, source.unwrap_or_default(), len, out)
    }
}
