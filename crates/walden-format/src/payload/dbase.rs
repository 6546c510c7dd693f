//! Databases and tablespaces: the resource managers Database and Tablespace.
//!
//! Structures: `commands/dbcommands_xlog.h`, `commands/tablespace.h`.

use super::listing::listing;
use super::{Fields, Items, Parsed, Payload, Text};
use crate::record::Record;
use crate::version::Major;

/// `CREATE`; since 15 `CREATE_FILE_COPY` and `CREATE_WAL_LOG`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatabaseCreate {
    /// OID of the database.
    pub database: u32,
    /// OID of the tablespace.
    pub tablespace: u32,
    /// OIDs of the database and tablespace whose files are copied; `None` if WAL contains the pages
    /// themselves.
    pub source: Option<(u32, u32)>,
}

pub(crate) fn create<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::DatabaseCreate(DatabaseCreate {
        database: fields.u32("db_id")?,
        tablespace: fields.u32("tablespace_id")?,
        source: Some((fields.u32("src_db_id")?, fields.u32("src_tablespace_id")?)),
    }))
}

pub(crate) fn create_wal_log<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::DatabaseCreate(DatabaseCreate {
        database: fields.u32("db_id")?,
        tablespace: fields.u32("tablespace_id")?,
        source: None,
    }))
}

listing!(DatabaseCreate: |it, list| list
    .field("db", it.database)
    .field("tablespace", it.tablespace)
    .some("source db", it.source.map(|source| source.0))
    .some("source tablespace", it.source.map(|source| source.1)));

/// `DROP`: the files of a database were removed (`xl_dbase_drop_rec`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DatabaseDrop<'a> {
    /// OID of the database.
    pub database: u32,
    /// OIDs of the tablespaces; one until 12.
    pub tablespaces: Items<'a, u32>,
}

pub(crate) fn drop<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let database = fields.u32("db_id")?;
    let count = if fields.since(Major::V13) { fields.count("ntablespaces")? } else { 1 };
    Ok(Payload::DatabaseDrop(DatabaseDrop { database, tablespaces: fields.items("tablespace_ids", count)? }))
}

listing!(DatabaseDrop<'_>: |it, list| list.field("db", it.database).field("tablespaces", it.tablespaces));

/// Tablespace `CREATE` (`xl_tblspc_create_rec`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TablespaceCreate<'a> {
    /// OID of the tablespace.
    pub tablespace: u32,
    /// `ts_path`: the directory of the tablespace.
    pub path: Text<'a>,
}

pub(crate) fn tablespace_create<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let tablespace = fields.u32("ts_id")?;
    Ok(Payload::TablespaceCreate(TablespaceCreate { tablespace, path: fields.c_string("ts_path")? }))
}

listing!(TablespaceCreate<'_>: |it, list| list.field("tablespace", it.tablespace).field("path", it.path));

/// Tablespace `DROP` (`xl_tblspc_drop_rec`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TablespaceDrop {
    /// OID of the tablespace.
    pub tablespace: u32,
}

pub(crate) fn tablespace_drop<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::TablespaceDrop(TablespaceDrop { tablespace: fields.u32("ts_id")? }))
}

listing!(TablespaceDrop: |it, list| list.field("tablespace", it.tablespace));
