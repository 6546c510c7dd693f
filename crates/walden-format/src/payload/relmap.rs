//! The file numbers of mapped catalogs: the resource manager RelMap.
//!
//! Structure: `xl_relmap_update` in `utils/relmapper.h`.

use super::listing::listing;
use super::{Fields, Payload, PayloadError};
use crate::record::Record;

/// `UPDATE`: the map of a database, or of the shared catalogs, was replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelationMapUpdate<'a> {
    /// OID of the database; 0 for the shared catalogs.
    pub database: u32,
    /// OID of its tablespace.
    pub tablespace: u32,
    /// The content of the new `pg_filenode.map` (`RelMapFile`).
    pub map: &'a [u8],
}

pub(crate) fn update<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Result<Payload<'a>, PayloadError> {
    let database = fields.u32("dbid")?;
    let tablespace = fields.u32("tsid")?;
    let length = fields.count("nbytes")?;
    let map = fields.bytes("data", length)?;
    Ok(Payload::RelationMapUpdate(RelationMapUpdate { database, tablespace, map }))
}

listing!(RelationMapUpdate<'_>: |it, list| list
    .field("db", it.database)
    .field("tablespace", it.tablespace)
    .field("map", format_args!("{} bytes", it.map.len())));
