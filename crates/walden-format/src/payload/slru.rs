//! The commit log and commit timestamps, and the new pages of all SLRUs: the resource managers CLOG and
//! CommitTs, and a part of MultiXact.
//!
//! Structures: `access/clog.h`, `access/commit_ts.h`. Page numbers are 64 bits wide since 17.

use super::listing::listing;
use super::{Fields, Items, Parsed, Payload, PayloadError, Timestamp};
use crate::record::Record;
use crate::version::Major;

/// `ZEROPAGE`, `ZERO_OFF_PAGE`, `ZERO_MEM_PAGE`: a page was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZeroPage {
    /// The page's number.
    pub page: i64,
}

pub(crate) fn zero_page<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::ZeroPage(ZeroPage { page: page(fields)? }))
}

listing!(ZeroPage: |it, list| list.field("page", it.page));

/// CLOG's `TRUNCATE`: all pages before [`Self::page`] were removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitLogTruncate {
    /// The first page that remains.
    pub page: i64,
    /// The oldest transaction whose status remains; since 10.
    pub oldest_xid: Option<u32>,
    /// OID of a database with that transaction; since 10.
    pub oldest_xid_database: Option<u32>,
}

pub(crate) fn clog_truncate<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let page = page(fields)?;
    let since_10 = fields.since(Major::V10);
    Ok(Payload::CommitLogTruncate(CommitLogTruncate {
        page,
        oldest_xid: if since_10 { Some(fields.u32("oldestXact")?) } else { None },
        oldest_xid_database: if since_10 { Some(fields.u32("oldestXactDb")?) } else { None },
    }))
}

listing!(CommitLogTruncate: |it, list| list
    .field("page", it.page)
    .some("oldest xid", it.oldest_xid)
    .some("in db", it.oldest_xid_database));

/// CommitTs's `TRUNCATE`: all pages before [`Self::page`] were removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitTsTruncate {
    /// The first page that remains.
    pub page: i64,
    /// The oldest transaction whose timestamp remains; since 10.
    pub oldest_xid: Option<u32>,
}

pub(crate) fn commit_ts_truncate<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let page = page(fields)?;
    let oldest_xid = if fields.since(Major::V10) { Some(fields.u32("oldestXid")?) } else { None };
    Ok(Payload::CommitTsTruncate(CommitTsTruncate { page, oldest_xid }))
}

listing!(CommitTsTruncate: |it, list| list.field("page", it.page).some("oldest xid", it.oldest_xid));

/// `SETTS`: the time of a commit was set. Until 13.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CommitTsSet<'a> {
    /// `timestamp`: commit time.
    pub time: Timestamp,
    /// The replication origin.
    pub origin: u16,
    /// The transaction.
    pub xid: u32,
    /// The transaction's subtransactions, which have the same timestamp.
    pub subxacts: Items<'a, u32>,
}

pub(crate) fn commit_ts_set<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::CommitTsSet(CommitTsSet {
        time: fields.timestamp("timestamp")?,
        origin: fields.u16("nodeid")?,
        xid: fields.u32("mainxid")?,
        subxacts: fields.rest_as_items("subxids")?,
    }))
}

listing!(CommitTsSet<'_>: |it, list| list
    .field("time", it.time)
    .field("origin", it.origin)
    .field("xid", it.xid)
    .items("subxacts", it.subxacts));

fn page(fields: &mut Fields<'_>) -> Result<i64, PayloadError> {
    if fields.since(Major::V17) { fields.i64("pageno") } else { fields.i32("pageno").map(i64::from) }
}
