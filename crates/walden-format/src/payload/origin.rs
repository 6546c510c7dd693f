//! Logical replication: the resource managers ReplicationOrigin and LogicalMessage.
//!
//! Structures: `replication/origin.h`, `replication/message.h`.

use super::listing::listing;
use super::{Fields, Parsed, Payload, PayloadFault, Text};
use crate::lsn::Lsn;
use crate::record::Record;

/// `SET`: the replay progress of a replication origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OriginSet {
    /// The LSN in the origin's WAL up to which changes were replayed.
    pub remote_lsn: Lsn,
    /// The origin.
    pub origin: u16,
    /// Whether the position may move backwards.
    pub force: bool,
}

pub(crate) fn set<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let remote_lsn = fields.lsn("remote_lsn")?;
    let origin = fields.u16("node_id")?;
    let force = fields.bool("force")?;
    fields.padded_to(8, "xl_replorigin_set")?;
    Ok(Payload::OriginSet(OriginSet { remote_lsn, origin, force }))
}

listing!(OriginSet: |it, list| list
    .field("origin", it.origin)
    .field("lsn", it.remote_lsn)
    .field("force", it.force));

/// `DROP`: a replication origin was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OriginDrop {
    /// The origin.
    pub origin: u16,
}

pub(crate) fn drop<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    Ok(Payload::OriginDrop(OriginDrop { origin: fields.u16("node_id")? }))
}

listing!(OriginDrop: |it, list| list.field("origin", it.origin));

/// `MESSAGE`: a message written by `pg_logical_emit_message()`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogicalMessage<'a> {
    /// OID of the database.
    pub database: u32,
    /// Whether the message belongs to a transaction.
    pub transactional: bool,
    /// The prefix that identifies the intended receivers.
    pub prefix: Text<'a>,
    /// Bytes of the message.
    pub len: u64,
    /// The message, or the first part of a message that is too long to be kept in memory.
    pub message: &'a [u8],
}

pub(crate) fn message<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let database = fields.u32("dbId")?;
    let transactional = fields.bool("transactional")?;
    let prefix_len = fields.u64("prefix_size")?;
    let len = fields.u64("message_size")?;
    // The prefix includes its terminating zero.
    let prefix = fields.bytes("prefix", prefix_len)?;
    let prefix = Text(prefix.strip_suffix(&[0]).unwrap_or(prefix));
    let message = match fields.bytes("message", len) {
        Err(error) if error.cause == PayloadFault::NotHeld => fields.rest(),
        message => message?,
    };
    Ok(Payload::LogicalMessage(LogicalMessage { database, transactional, prefix, len, message }))
}

listing!(LogicalMessage<'_>: |it, list| list
    .field("db", it.database)
    .field("transactional", it.transactional)
    .field("prefix", it.prefix)
    .field("message", format_args!("{} bytes", it.len)));
