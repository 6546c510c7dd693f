//! Statements for large objects.
//!
//! Pages are rows like others, which a superuser can insert, update and delete. The row with the owner and
//! the privileges needs functions and `GRANT`, as other catalogs depend on it.

use std::fmt::Write as _;

use super::Statement;
use crate::catalog::{PG_LARGEOBJECT, PG_LARGEOBJECT_METADATA};
use crate::change::{Cell, Image, Operation, RowChange};
use crate::value::Value;

/// The statement that makes or reverts a change of `pg_largeobject_metadata`; `None` for other tables.
pub(super) fn statement(
    change: &RowChange,
    operation: Operation,
    [from, to]: [&Image; 2],
) -> Option<Result<Statement, String>> {
    (change.table.oid == PG_LARGEOBJECT_METADATA).then(|| {
        let metadata = match operation {
            Operation::Insert => [Metadata::default(), Metadata::from_image(to)?],
            Operation::Delete => [Metadata::from_image(from)?, Metadata::default()],
            Operation::Update => [Metadata::from_image(from)?, Metadata::from_image(to)?],
        };
        let is_undo = operation != change.operation;
        Ok(match operation {
            Operation::Insert => create(&metadata[1]),
            Operation::Delete => remove(&metadata[0], is_undo),
            Operation::Update => alter(&metadata),
        })
    })
}

/// A row of `pg_largeobject_metadata`.
#[derive(Default)]
struct Metadata {
    large_object: u32,
    owner: u32,
    privileges: Privileges,
}

/// `lomacl`.
#[derive(Clone, Default, PartialEq, Eq)]
enum Privileges {
    /// Null: only the owner has privileges.
    #[default]
    Default,
    Granted(Vec<AclItem>),
    /// The privileges could not be read.
    Unknown,
}

/// A value of the type `aclitem` (`acl.h`): the privileges on a large object that one role has granted to
/// another role.
#[derive(Clone, PartialEq, Eq)]
struct AclItem {
    /// 0 for `PUBLIC`.
    grantee: u32,
    grantor: u32,
    /// Bits of the privileges, and of those that the role may grant.
    privileges: u32,
    grantable: u32,
}

/// The privileges on large objects, in alphabetical order, with their bits (`parsenodes.h`).
const PRIVILEGES: [(&str, u32); 2] = [("SELECT", 1 << 1), ("UPDATE", 1 << 2)];
/// Bytes of the header of an array of one dimension, without its length.
const ARRAY_HEADER: usize = 20;

/// Parses an array of `aclitem` without its length.
fn parse_items(array: &[u8]) -> Option<Vec<AclItem>> {
    if number_at(array, 0)? == 0 {
        return Some(Vec::new());
    }
    let (header, items) = array.split_at_checked(ARRAY_HEADER)?;
    let count = usize::try_from(number_at(header, 12)?).ok()?;
    let width = items.len().checked_div(count)?;
    if number_at(header, 0)? != 1 || width == 0 || width * count != items.len() {
        return None;
    }
    items.chunks_exact(width).map(AclItem::parse).collect()
}

fn number_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

impl AclItem {
    /// Parses an item of 12 bytes, or of 16 bytes as since PostgreSQL 16.
    fn parse(item: &[u8]) -> Option<AclItem> {
        let bits = number_at(item, 8)?;
        let (privileges, grantable) = match item.len() {
            12 => (bits & 0xFFFF, bits >> 16),
            16 => (bits, number_at(item, 12)?),
            _ => return None,
        };
        Some(AclItem { grantee: number_at(item, 0)?, grantor: number_at(item, 4)?, privileges, grantable })
    }
}

impl Privileges {
    fn from_cell(cell: &Cell) -> Privileges {
        let items = match cell {
            Cell::Null => return Privileges::Default,
            // The type is known from a base backup, or not.
            Cell::Value(Value::Array(array)) => {
                let parse = |element: &Option<Value>| match element {
                    Some(Value::Unknown(item)) => AclItem::parse(item),
                    _ => None,
                };
                array.elements.iter().map(parse).collect()
            }
            Cell::Value(Value::Unknown(array)) => parse_items(array),
            _ => None,
        };
        items.map_or(Privileges::Unknown, Privileges::Granted)
    }

    /// Returns a query that is true if a large object has these privileges.
    fn condition(&self, large_object: u32) -> String {
        let exists = |what: &str| {
            format!(
                "EXISTS (SELECT FROM pg_largeobject_metadata WHERE oid = {large_object} AND lomacl IS {what})"
            )
        };
        let Privileges::Granted(items) = self else { return exists("NULL") };
        let mut expected = Vec::new();
        for item in items {
            for (name, bit) in PRIVILEGES.iter().filter(|(_, bit)| item.privileges & bit != 0) {
                let is_grantable = item.grantable & bit != 0;
                expected.push((item.grantor, item.grantee, *name, if is_grantable { "t" } else { "f" }));
            }
        }
        expected.sort_unstable();
        let expected: Vec<String> = expected
            .into_iter()
            .map(|(grantor, grantee, name, grantable)| format!("{grantor} {grantee} {name} {grantable}"))
            .collect();
        format!(
            "{} AND '{}' = (SELECT coalesce(string_agg(concat_ws(' ', grantor, grantee, privilege_type, is_grantable), \
             ',' ORDER BY grantor, grantee, privilege_type), '') \
             FROM pg_largeobject_metadata, aclexplode(lomacl) WHERE oid = {large_object})",
            exists("NOT NULL"),
            expected.join(",")
        )
    }
}

impl Metadata {
    fn from_image(image: &Image) -> Result<Metadata, String> {
        let row = match image {
            Image::Row(row) => row,
            Image::Unknown(why) => return Err((*why).to_owned()),
            Image::None => return Err("the record has no row".to_owned()),
        };
        match row.cells.as_slice() {
            [Cell::Value(Value::Oid(large_object)), Cell::Value(Value::Oid(owner)), privileges] => {
                Ok(Metadata {
                    large_object: *large_object,
                    owner: *owner,
                    privileges: Privileges::from_cell(privileges),
                })
            }
            _ => Err("the row is not one of pg_largeobject_metadata".to_owned()),
        }
    }

    fn set_owner(&self) -> String {
        let Metadata { large_object, owner, .. } = self;
        format!("EXECUTE format('ALTER LARGE OBJECT {large_object} OWNER TO %I', pg_get_userbyid({owner}));")
    }

    /// Replaces all privileges. As in PostgreSQL, a superuser grants as the owner, and a role that may grant
    /// a privilege must have it before.
    fn set_privileges(&self) -> String {
        let large_object = self.large_object;
        let mut text = format!(
            "DECLARE prior text := current_setting('role'); item record;\nBEGIN\n\
             FOR item IN SELECT DISTINCT grantee FROM pg_largeobject_metadata, \
             aclexplode(coalesce(lomacl, acldefault('L', lomowner))) WHERE oid = {large_object} LOOP\n\
             EXECUTE format('REVOKE ALL ON LARGE OBJECT {large_object} FROM %s CASCADE', \
             CASE item.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(item.grantee)) END);\nEND LOOP;\n"
        );
        let Privileges::Granted(items) = &self.privileges else {
            // Nobody has a privilege here, so no other catalog refers to one.
            let _ = write!(
                text,
                "UPDATE pg_largeobject_metadata SET lomacl = NULL WHERE oid = {large_object};\nEND;"
            );
            return text;
        };
        for item in items {
            let grantee = match item.grantee {
                0 => "'PUBLIC'".to_owned(),
                role => format!("quote_ident(pg_get_userbyid({role}))"),
            };
            let is_of_owner = item.grantor == self.owner;
            if !is_of_owner {
                let _ =
                    writeln!(text, "PERFORM set_config('role', pg_get_userbyid({}), true);", item.grantor);
            }
            for (name, bit) in PRIVILEGES.iter().filter(|(_, bit)| item.privileges & bit != 0) {
                let option = if item.grantable & bit != 0 { " WITH GRANT OPTION" } else { "" };
                let _ = writeln!(
                    text,
                    "EXECUTE format('GRANT {name} ON LARGE OBJECT {large_object} TO %s{option}', {grantee});"
                );
            }
            if !is_of_owner {
                text.push_str("PERFORM set_config('role', prior, true);\n");
            }
        }
        text + "END;"
    }

    /// Makes a statement of the parts, and reports privileges that could not be read.
    fn statement(&self, text: Option<String>, reports_privileges: bool) -> Statement {
        let left_out = reports_privileges.then(|| {
            format!(
                "the privileges of large object {}, which could not be read: GRANT and REVOKE ... ON LARGE OBJECT set them",
                self.large_object
            )
        });
        Statement { text, is_partial: left_out.is_some(), left_out }
    }
}

/// The call that creates a large object.
const CREATE: &str = "PERFORM lo_create(";

/// Whether a statement of these catalogs creates a large object. Such a statement sets neither comments nor
/// security labels.
pub fn creates_large_object(statement: &str) -> bool {
    statement.starts_with(CREATE)
}

fn create(of: &Metadata) -> Statement {
    let mut text = format!("{CREATE}{});\n{}", of.large_object, of.set_owner());
    if matches!(of.privileges, Privileges::Granted(_)) {
        let _ = write!(text, "\n{}", of.set_privileges());
    }
    of.statement(Some(text), of.privileges == Privileges::Unknown)
}

/// The pages come before the row that an undo script removes, and after the row that is removed again.
fn remove(of: &Metadata, is_undo: bool) -> Statement {
    let oid = of.large_object;
    let text = match is_undo {
        true => format!(
            "IF EXISTS (SELECT FROM pg_largeobject WHERE loid = {oid}) THEN RAISE EXCEPTION \
             'large object {oid} has pages that the log does not have'; END IF;\nPERFORM lo_unlink({oid});"
        ),
        false => format!(
            "DELETE FROM pg_shdepend WHERE classid = {PG_LARGEOBJECT} AND objid = {oid} AND dbid = \
             (SELECT oid FROM pg_database WHERE datname = current_database());\n\
             DELETE FROM pg_largeobject_metadata WHERE oid = {oid};"
        ),
    };
    of.statement(Some(text), false)
}

fn alter([from, to]: &[Metadata; 2]) -> Statement {
    let Metadata { large_object, owner, .. } = from;
    let mut parts = Vec::new();
    let mut expect = |condition: &str, what: &str, differs: &str| {
        parts.push(format!(
            "IF NOT ({condition}) THEN RAISE EXCEPTION 'the {what} of large object {large_object} {differs} from the WAL'; END IF;"
        ));
    };
    let is_unknown = [from, to].iter().any(|metadata| metadata.privileges == Privileges::Unknown);
    let sets_owner = from.owner != to.owner;
    let sets_privileges = !is_unknown && from.privileges != to.privileges;
    if sets_owner {
        let row = format!("pg_largeobject_metadata WHERE oid = {large_object} AND lomowner = {owner}");
        expect(&format!("EXISTS (SELECT FROM {row})"), "owner", "differs");
    }
    if sets_privileges {
        expect(&from.privileges.condition(*large_object), "privileges", "differ");
    }
    parts.extend(sets_owner.then(|| to.set_owner()));
    parts.extend(sets_privileges.then(|| to.set_privileges()));
    let text = (!parts.is_empty()).then(|| parts.join("\n"));
    to.statement(text, is_unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_both_widths_are_parsed() {
        let item = AclItem { grantee: 0, grantor: 10, privileges: 6, grantable: 2 };
        let header = |count: u32| [1, 0, 1033, count, 1].map(u32::to_le_bytes).concat();
        let narrow = [0, 10, 0x0002_0006].map(u32::to_le_bytes).concat();
        let wide = [0, 10, 6, 2].map(u32::to_le_bytes).concat();
        for encoded in [narrow, wide] {
            let two = [header(2), encoded.clone(), encoded.clone()].concat();
            assert!(parse_items(&two).is_some_and(|items| items == [item.clone(), item.clone()]));
            assert!(parse_items(&two[..two.len() - 1]).is_none());
            assert!(parse_items(&[header(3), encoded].concat()).is_none());
        }
        assert!(parse_items(&[0; 12]).is_some_and(|items| items.is_empty()));
        for damaged in [&header(0)[..], &header(1), &header(u32::MAX), &[1]] {
            assert!(parse_items(damaged).is_none());
        }
    }
}
