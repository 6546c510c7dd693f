//! The bytes of a column as a cell of a row.

use walden_redo::page::toast_pointer::ToastPointer;
use walden_source::names::Column;

use crate::change::Cell;
use crate::decode::value;
use crate::stored::{Stored, decompress};
use crate::tuple::{NotThese, Tuple};
use crate::types::Types;

pub(crate) const DAMAGED: &str = "its compressed bytes are damaged";
pub(crate) const NO_CHUNKS: &str =
    "its chunks in the TOAST table are neither in the log before it nor in a base backup";

/// The values of a heap tuple that has these columns, nothing for null: for tuples that come from elsewhere than a log. `columns` are all
/// of the table, in their order, dropped ones included, whose values are given, too; attributes that the tuple does not have are
/// left out. Values in TOAST tables are unknown.
///
/// `None` if the tuple does not fit the columns.
pub fn tuple_values(types: &Types, columns: &[Column], tuple: &[u8]) -> Option<Vec<Cell>> {
    let tuple = Tuple::of(tuple).filter(|tuple| tuple.natts() <= columns.len())?;
    let cell = |(stored, column): (Result<Option<Stored<'_>>, NotThese>, &Column)| {
        Some(match stored.ok()? {
            Some(stored) => cell_in_row(types, column, stored).unwrap_or(Cell::Unknown(NO_CHUNKS)),
            None => Cell::Null,
        })
    };
    tuple.attributes(columns).zip(columns).map(cell).collect()
}

/// A column's value; where it is, if it is in a TOAST table.
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
