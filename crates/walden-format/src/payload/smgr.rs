//! Files of relations: the resource manager Storage.
//!
//! Structures: `catalog/storage_xlog.h`.

use super::listing::{flags, listing};
use super::{Fields, Parsed, Payload};
use crate::record::{Fork, Record, RelFileLocator};
use crate::version::Major;

/// `CREATE`: a relation's file was created (`xl_smgr_create`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StorageCreate {
    /// The relation.
    pub relation: RelFileLocator,
    /// `forkNum`: the fork whose file was created.
    pub fork: Fork,
}

pub(crate) fn create<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let relation = fields.relation("rlocator")?;
    let number = fields.u32("forkNum")?;
    let fork = u8::try_from(number).map_err(|_| fields.value("forkNum", number.into()))?;
    Ok(Payload::StorageCreate(StorageCreate { relation, fork: Fork(fork) }))
}

listing!(StorageCreate: |it, list| list.field("rel", it.relation).field("fork", it.fork));

/// `TRUNCATE`: a relation's files were truncated (`xl_smgr_truncate`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StorageTruncate {
    /// The number of blocks of the main fork that remain.
    pub blocks: u32,
    /// The relation.
    pub relation: RelFileLocator,
    /// The truncated files; since 9.6. Before, all of the relation's files were truncated.
    pub flags: Option<TruncateFlags>,
}

flags! {
    /// The files of a relation that were truncated.
    TruncateFlags(u32) {
        /// The main fork.
        heap HEAP = 0x01;
        /// The visibility map.
        visibility_map VISIBILITY_MAP = 0x02;
        /// The free space map.
        free_space_map FREE_SPACE_MAP = 0x04;
    }
}

pub(crate) fn truncate<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::StorageTruncate(StorageTruncate {
        blocks: fields.u32("blkno")?,
        relation: fields.relation("rlocator")?,
        flags: if fields.since(Major::V9_6) { Some(TruncateFlags(fields.u32("flags")?)) } else { None },
    }))
}

listing!(StorageTruncate: |it, list| list
    .field("rel", it.relation)
    .field("blocks", it.blocks)
    .some("flags", it.flags));
