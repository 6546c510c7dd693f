//! Decodes the bytes of a column to a cell of a row.

use walden_redo::page::toast_pointer::ToastPointer;
use walden_source::names::Column;

use crate::change::Cell;
use crate::decode::value;
use crate::stored_value::{Stored, decompress};
use crate::tuple::{NotThese, Tuple};
use crate::types::Types;

pub(crate) const DAMAGED: &str = "its compressed bytes are damaged";
pub(crate) const NO_CHUNKS: &str =
    "its chunks in the TOAST table are neither in earlier WAL nor in a base backup";

/// Decodes the values of a heap tuple with these columns, [`Cell::Null`] for null, for tuples from a source
/// other than WAL. `columns` are all columns of the table in order, including dropped columns, whose values
/// are returned too. Attributes that the tuple does not contain are omitted. Values in TOAST tables are
/// unknown.
///
/// Returns `None` if the tuple does not match the columns.
pub fn tuple_values(types: &Types, columns: &[Column], tuple: &[u8]) -> Option<Vec<Cell>> {
    let tuple = Tuple::parse(tuple).filter(|tuple| tuple.natts() <= columns.len())?;
    let cell = |(stored, column): (Result<Option<Stored<'_>>, NotThese>, &Column)| {
        Some(match stored.ok()? {
            Some(stored) => cell_in_row(types, column, stored).unwrap_or(Cell::Unknown(NO_CHUNKS)),
            None => Cell::Null,
        })
    };
    tuple.attributes(columns).zip(columns).map(cell).collect()
}

/// Decodes a column's value. Returns the pointer if it is in a TOAST table.
pub(crate) fn cell_in_row(types: &Types, column: &Column, stored: Stored<'_>) -> Result<Cell, ToastPointer> {
    match stored {
        Stored::Fixed(bytes) | Stored::Plain(bytes) => Ok(Cell::Value(value(types, column.type_oid, bytes))),
        Stored::Compressed(bytes) => Ok(match decompress(bytes) {
            Some(bytes) => Cell::Value(value(types, column.type_oid, &bytes)),
            None => Cell::Unknown(DAMAGED),
        }),
        Stored::Toasted(pointer) => Err(pointer),
    }
}
