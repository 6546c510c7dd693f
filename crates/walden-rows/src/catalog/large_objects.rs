//! The catalogs of large objects: `pg_largeobject` contains their pages, `pg_largeobject_metadata` contains a
//! row for each large object with its owner and privileges.

use walden_source::names::Column;

use super::Row;
use crate::types::oid;

/// OID of `pg_largeobject`.
pub(crate) const PG_LARGEOBJECT: u32 = 2613;
/// OID of `pg_largeobject_metadata`.
pub(crate) const PG_LARGEOBJECT_METADATA: u32 = 2995;
/// OIDs of both catalogs.
const CATALOGS: [u32; 2] = [PG_LARGEOBJECT, PG_LARGEOBJECT_METADATA];

const ACL_ARRAY: u32 = 1034;
/// The rows of `pg_index` of their primary keys.
const KEYS: [u32; 2] = [2683, 2996];

/// Whether a relation is one of the catalogs of large objects.
pub fn is_large_object_catalog(relation: u32) -> bool {
    CATALOGS.contains(&relation)
}

/// The columns and primary keys of the catalogs, which are the same in all versions. Saved names contain only
/// columns and keys of users' tables.
pub(crate) fn large_object_rows() -> Vec<Row> {
    let columns = |relation: u32, key: i16, columns: &[(&str, u32, i16)]| {
        let mut rows = Vec::new();
        for (number, &(name, type_oid, length)) in (1..).zip(columns) {
            let column =
                Column { is_key: number <= key, ..Column::plain(number, name, type_oid, length, 'i') };
            rows.push(Row::Attribute { relation, column });
        }
        rows
    };
    let mut rows = columns(
        PG_LARGEOBJECT,
        2,
        &[("loid", oid::OID, 4), ("pageno", oid::INT4, 4), ("data", oid::BYTEA, -1)],
    );
    let metadata = [("oid", oid::OID, 4), ("lomowner", oid::OID, 4), ("lomacl", ACL_ARRAY, -1)];
    rows.extend(columns(PG_LARGEOBJECT_METADATA, 1, &metadata));
    let keys = [vec![1, 2], vec![1]];
    let keys = KEYS.into_iter().zip(CATALOGS).zip(keys);
    rows.extend(keys.map(|((oid, table), columns)| Row::Index { oid, table, columns }));
    rows
}
