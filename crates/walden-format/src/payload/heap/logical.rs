//! Records that only logical decoding reads: `TRUNCATE`, `NEW_CID`, `REWRITE`.

use super::{Parsed, XlHeapNewCid};
use crate::lsn::Lsn;
use crate::payload::listing::{flags, listing};
use crate::payload::{Fields, Items, Payload};
use crate::record::{Record, RelFileLocator};

/// Bytes of a `LogicalRewriteMappingData`.
const REWRITE_MAPPING: u64 = 36;

/// `TRUNCATE`: for logical decoding only; another record truncates the files. Since 11.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HeapTruncate<'a> {
    /// OID of the database.
    pub database: u32,
    /// `flags`: `XLH_TRUNCATE_*` (`CASCADE`, `RESTART IDENTITY`).
    pub flags: HeapTruncateFlags,
    /// `relids`: OIDs of the truncated tables.
    pub relations: Items<'a, u32>,
}

flags! {
    /// Options of the truncation (`XLH_TRUNCATE_*`).
    HeapTruncateFlags(u8) {
        /// `CASCADE`
        cascade CASCADE = 1 << 0;
        /// `RESTART IDENTITY`
        restart_sequences RESTART_SEQUENCES = 1 << 1;
    }
}

pub(crate) fn truncate<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let database = fields.u32("dbId")?;
    let count = fields.u32("nrelids")?;
    let flags = HeapTruncateFlags(fields.u8("flags")?);
    fields.padded_to(4, "xl_heap_truncate")?;
    Ok(Payload::HeapTruncate(HeapTruncate { database, flags, relations: fields.items("relids", count)? }))
}

listing!(HeapTruncate<'_>: |it, list| list
    .field("db", it.database)
    .field("flags", it.flags)
    .field("relids", it.relations));

/// `NEW_CID`: the command ids of a catalog's tuple, for logical decoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewCid {
    /// `top_xid`: the top-level transaction.
    pub top_xid: u32,
    /// `cmin`: the command that inserted the tuple.
    pub cmin: u32,
    /// `cmax`: the command that deleted the tuple.
    pub cmax: u32,
    /// `combocid`: the combo command id, if the tuple has one.
    pub combo_cid: u32,
    /// `target_locator`: the catalog.
    pub relation: RelFileLocator,
    /// Block number of `target_tid`.
    pub block: u32,
    /// Offset number of `target_tid`.
    pub offset: u16,
}

pub(crate) fn new_cid<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let XlHeapNewCid { top_xid, cmin, cmax, combo_cid, relation, block, offset } =
        fields.structure("xl_heap_new_cid")?;
    Ok(Payload::NewCid(NewCid { top_xid, cmin, cmax, combo_cid, relation, block: block.0, offset }))
}

listing!(NewCid: |it, list| list
    .field("rel", it.relation)
    .field("tid", format_args!("{}/{}", it.block, it.offset))
    .field("cmin", it.cmin)
    .field("cmax", it.cmax)
    .field("combo", it.combo_cid));

/// `REWRITE`: the new TIDs of tuples of a catalog that was rewritten, for logical decoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewrite<'a> {
    /// The transaction that the mapping file belongs to.
    pub xid: u32,
    /// OID of the database.
    pub database: u32,
    /// OID of the catalog.
    pub relation: u32,
    /// The offset in the mapping file.
    pub offset: i64,
    /// `num_mappings`: number of mappings.
    pub count: u32,
    /// `start_lsn`: insert position when the rewrite started.
    pub start_lsn: Lsn,
    /// The mappings (`LogicalRewriteMappingData`).
    pub mappings: &'a [u8],
}

pub(crate) fn rewrite<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let (xid, database) = (fields.u32("mapped_xid")?, fields.u32("mapped_db")?);
    let relation = fields.u32("mapped_rel")?;
    let offset = fields.i64("offset")?;
    let count = fields.u32("num_mappings")?;
    let start_lsn = fields.lsn("start_lsn")?;
    let mappings = fields.bytes("mappings", u64::from(count) * REWRITE_MAPPING)?;
    Ok(Payload::Rewrite(Rewrite { xid, database, relation, offset, count, start_lsn, mappings }))
}

listing!(Rewrite<'_>: |it, list| list
    .field("xid", it.xid)
    .field("db", it.database)
    .field("rel", it.relation)
    .field("mappings", it.count));
