//! Statements for large objects.
//!
//! Pages are rows like others, which a superuser can insert, update and delete. The row with the owner needs
//! functions, as other catalogs depend on it.

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
    /// `None` for the default privileges.
    privileges: Option<Cell>,
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
                    privileges: Some(privileges.clone()).filter(|cell| *cell != Cell::Null),
                })
            }
            _ => Err("the row is not one of pg_largeobject_metadata".to_owned()),
        }
    }

    fn set_owner(&self) -> String {
        let Metadata { large_object, owner, .. } = self;
        format!("EXECUTE format('ALTER LARGE OBJECT {large_object} OWNER TO %I', pg_get_userbyid({owner}));")
    }

    /// Reports privileges, which are known by the OIDs of their roles alone.
    fn statement(&self, text: Option<String>, has_other_privileges: bool) -> Statement {
        let left_out = has_other_privileges.then(|| {
            format!(
                "the privileges of large object {}: GRANT and REVOKE ... ON LARGE OBJECT set them",
                self.large_object
            )
        });
        Statement { text, is_partial: left_out.is_some(), left_out }
    }
}

/// The call that creates a large object.
const CREATE: &str = "PERFORM lo_create(";

/// Whether a statement of these catalogs creates a large object. It sets neither comments nor security
/// labels.
pub fn creates_large_object(statement: &str) -> bool {
    statement.starts_with(CREATE)
}

fn create(of: &Metadata) -> Statement {
    let text = format!("{CREATE}{});\n{}", of.large_object, of.set_owner());
    of.statement(Some(text), of.privileges.is_some())
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
    let text = (from.owner != to.owner).then(|| {
        format!(
            "IF NOT EXISTS (SELECT FROM pg_largeobject_metadata WHERE oid = {large_object} AND lomowner = {owner}) THEN \
             RAISE EXCEPTION 'the owner of large object {large_object} differs from the WAL'; END IF;\n{}",
            to.set_owner()
        )
    });
    to.statement(text, from.privileges != to.privileges)
}
