//! Groups of transactions that lock or update the same tuple: the resource manager MultiXact.
//!
//! Structures: `access/multixact.h`. [`super::slru`] has the records of new pages.

use super::listing::listing;
use super::xlog::multixact_offset;
use super::{Fields, Item, Items, Parsed, Payload};
use crate::reader::Reader;
use crate::record::Record;
use crate::version::Major;

/// `CREATE_ID`: a multixact was created (`xl_multixact_create`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MultiXactCreate<'a> {
    /// `mid`: the multixact's id.
    pub multi: u32,
    /// `moff`: offset of its first member in `pg_multixact/members`.
    pub offset: u64,
    /// `members`: transactions and their lock or update status.
    pub members: Items<'a, Member>,
}

/// A member of a multixact (`MultiXactMember`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// `xid`: the member transaction.
    pub xid: u32,
    /// The member's lock mode or kind of update (`MultiXactStatus`).
    pub status: u32,
}

impl Item for Member {
    fn width(_: Major) -> usize {
        8
    }

    fn read(reader: &mut Reader<'_>) -> Option<Member> {
        Some(Member { xid: reader.u32()?, status: reader.u32()? })
    }
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [&str; 6] = ["keysh", "sh", "fornokeyupd", "forupd", "nokeyupd", "upd"];
        match NAMES.get(self.status as usize) {
            Some(name) => write!(f, "{} ({name})", self.xid),
            None => write!(f, "{} ({})", self.xid, self.status),
        }
    }
}

pub(crate) fn create<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let multi = fields.u32("mid")?;
    let offset = multixact_offset(fields, "moff")?;
    let count = fields.count("nmembers")?;
    Ok(Payload::MultiXactCreate(MultiXactCreate { multi, offset, members: fields.items("members", count)? }))
}

listing!(MultiXactCreate<'_>: |it, list| list
    .field("multi", it.multi)
    .field("offset", it.offset)
    .field("members", it.members));

/// `TRUNCATE_ID`: old multixacts were removed (`xl_multixact_truncate`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultiXactTruncate {
    /// OID of the database with the oldest multixact.
    pub oldest_multi_database: u32,
    /// The first multixact that was removed; until 18.
    pub start_multi: Option<u32>,
    /// `endTruncOff`: the oldest multixact that remains.
    pub oldest_multi: u32,
    /// The first member that was removed; until 18.
    pub start_offset: Option<u64>,
    /// `endTruncMemb`: the oldest member offset that remains.
    pub oldest_offset: u64,
}

pub(crate) fn truncate<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let until_18 = !fields.since(Major::V19);
    Ok(Payload::MultiXactTruncate(MultiXactTruncate {
        oldest_multi_database: fields.u32("oldestMultiDB")?,
        start_multi: if until_18 { Some(fields.u32("startTruncOff")?) } else { None },
        oldest_multi: fields.u32("endTruncOff")?,
        start_offset: if until_18 { Some(fields.u32("startTruncMemb")?.into()) } else { None },
        oldest_offset: multixact_offset(fields, "endTruncMemb")?,
    }))
}

listing!(MultiXactTruncate: |it, list| list
    .field("db", it.oldest_multi_database)
    .some("first multi", it.start_multi)
    .field("oldest multi", it.oldest_multi)
    .some("first offset", it.start_offset)
    .field("oldest offset", it.oldest_offset));
