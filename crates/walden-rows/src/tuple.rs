//! The columns of a heap tuple (`heap_deform_tuple`).

use walden_redo::page::heap_tuple::{HEAP_TUPLE_HEADER_BYTES, HeapTupleHeader};
use walden_source::names::Column;

use crate::change::Cell;
use crate::decode::{Stored, ToastPointer, decompress, next, value};
use crate::read::DAMAGED;
use crate::toast::NO_CHUNKS;
use crate::types::{Layout, Types, align_of};

/// A heap tuple's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuple<'a> {
    bytes: &'a [u8],
    header: HeapTupleHeader<'a>,
}

/// The tuple does not have the columns that it should have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotThese;

impl<'a> Tuple<'a> {
    /// A tuple; `None` if the bytes have no header.
    pub fn of(bytes: &'a [u8]) -> Option<Tuple<'a>> {
        Some(Tuple { bytes, header: HeapTupleHeader::of(bytes)? })
    }

    /// Number of attributes that it has; those of columns added later are not there.
    pub fn natts(&self) -> usize {
        self.header.natts().into()
    }

    /// Each column's bytes, nothing for null, from the first on; ends with the tuple's last attribute.
    ///
    /// `columns` are all of the table, in their order, dropped ones included.
    pub fn attributes<'c>(
        &self,
        columns: &'c [Column],
    ) -> impl Iterator<Item = Result<Option<Stored<'a>>, NotThese>> + use<'a, 'c> {
        let bitmap =
            self.header.has_nulls().then(|| self.bytes.get(HEAP_TUPLE_HEADER_BYTES..).unwrap_or(&[]));
        // Offsets count from there, which is aligned.
        let data = self.bytes.get(usize::from(self.header.hoff())..).unwrap_or(&[]);
        let (mut at, mut failed) = (0, false);
        columns.iter().take(self.natts()).enumerate().map_while(move |(index, column)| {
            if failed {
                return None;
            }
            let is_set = |bitmap: &[u8]| bitmap.get(index / 8).map(|byte| byte >> (index % 8) & 1 == 1);
            let attribute = match bitmap.map(is_set) {
                Some(None) => Err(NotThese),
                Some(Some(false)) => Ok(None),
                _ => layout(column).and_then(|layout| next(data, &mut at, layout)).map(Some).ok_or(NotThese),
            };
            failed = attribute.is_err();
            Some(attribute)
        })
    }
}

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

fn layout(column: &Column) -> Option<Layout> {
    Some(Layout { length: column.length, align: align_of(column.align)? })
}
