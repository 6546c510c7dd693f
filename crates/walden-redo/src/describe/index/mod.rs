//! Pages of indexes. What all access methods but SP-GiST and BRIN share is the entry's header (`itup.h`).

use super::{At, Bytes, Fields, Tid};

pub(super) mod brin;
pub(super) mod btree;
pub(super) mod gin;
pub(super) mod gist;
pub(super) mod hash;
pub(super) mod spgist;

/// No block (`InvalidBlockNumber`).
const NO_BLOCK: u32 = u32::MAX;
const ENTRY_HEADER: usize = 8;
/// Bytes of an entry's header with its bitmap of nulls, padded.
const ENTRY_HEADER_WITH_NULLS: usize = 16;

/// An index entry's header: a row's place, or what the access method keeps there, and lengths and flags.
struct Entry<'a> {
    tid: Tid,
    info: u16,
    bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    fn read(bytes: &'a [u8]) -> Option<Entry<'a>> {
        Some(Entry { tid: bytes.tid_in(0)?, info: bytes.u16_in(6)?, bytes })
    }

    fn len(&self) -> usize {
        usize::from(self.info & 0x1FFF).min(self.bytes.len())
    }

    /// `INDEX_AM_RESERVED_BIT`
    fn reserved_bit(&self) -> bool {
        self.info & 0x2000 != 0
    }

    fn has_nulls(&self) -> bool {
        self.info & 0x8000 != 0
    }

    fn key_at(&self) -> usize {
        if self.has_nulls() { ENTRY_HEADER_WITH_NULLS } else { ENTRY_HEADER }
    }

    fn key(&self, end: usize) -> Bytes {
        Bytes(self.bytes.get(self.key_at()..end.min(self.len())).unwrap_or(&[]).to_vec())
    }

    /// The fields that each entry has, as pageinspect names them.
    fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields.text("ctid", self.tid);
        fields.bool("nulls", self.has_nulls());
        fields.bool("vars", self.info & 0x4000 != 0);
        fields
    }

    fn plain(&self) -> (Fields, Bytes) {
        (self.fields(), self.key(self.len()))
    }
}

/// What is too short for a header.
fn no_entry(bytes: &[u8]) -> (Fields, Bytes) {
    (Fields::default(), Bytes(bytes.to_vec()))
}

/// A link to another page.
fn link(fields: &mut Fields, name: &'static str, block: Option<u32>) {
    match block {
        Some(NO_BLOCK) => fields.text(name, "none"),
        block => fields.maybe(name, block),
    }
}
