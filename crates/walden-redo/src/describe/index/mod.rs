//! Describes pages of indexes. The header of an index tuple (`itup.h`) is common to all access methods except
//! SP-GiST and BRIN.

use super::{Bytes, Fields};
use crate::page::index_tuple::IndexTuple;
use crate::page::tid::INVALID_BLOCK;

pub(super) mod brin;
pub(super) mod btree;
pub(super) mod gin;
pub(super) mod gist;
pub(super) mod hash;
pub(super) mod spgist;

/// An index tuple, to be described as fields.
struct Entry<'a>(IndexTuple<'a>);

impl<'a> std::ops::Deref for Entry<'a> {
    type Target = IndexTuple<'a>;

    fn deref(&self) -> &IndexTuple<'a> {
        &self.0
    }
}

impl<'a> Entry<'a> {
    fn read(bytes: &'a [u8]) -> Option<Entry<'a>> {
        IndexTuple::read(bytes).map(Entry)
    }

    /// Returns the key's bytes, up to `end` at most.
    fn key(&self, end: usize) -> Bytes {
        Bytes(self.bytes.get(self.data_offset()..end.min(self.size())).unwrap_or(&[]).to_vec())
    }

    /// Returns the fields that all index tuples have, under pageinspect's names.
    fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields.text("ctid", self.tid);
        fields.bool("nulls", self.has_nulls());
        fields.bool("vars", self.has_varwidths());
        fields
    }

    fn plain(&self) -> (Fields, Bytes) {
        (self.fields(), self.key(self.size()))
    }
}

/// Describes bytes that are too short for a header.
fn no_entry(bytes: &[u8]) -> (Fields, Bytes) {
    (Fields::default(), Bytes(bytes.to_vec()))
}

/// Adds a link to another page.
fn link(fields: &mut Fields, name: &'static str, block: u32) {
    match block {
        INVALID_BLOCK => fields.text(name, "none"),
        block => fields.number(name, block),
    }
}

/// Adds a link to another page, if the link exists.
fn maybe_link(fields: &mut Fields, name: &'static str, block: Option<u32>) {
    if let Some(block) = block {
        link(fields, name, block);
    }
}
