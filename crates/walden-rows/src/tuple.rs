//! The columns of a heap tuple (`heap_deform_tuple`).

use walden_redo::page::heap_tuple::{HEAP_TUPLE_HEADER_BYTES, HeapTupleHeader};
use walden_source::names::Column;

use crate::stored_value::{Stored, next};
use crate::types::{Layout, align_of};

/// A heap tuple's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuple<'a> {
    bytes: &'a [u8],
    header: HeapTupleHeader<'a>,
}

/// The tuple does not match the expected columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotThese;

impl<'a> Tuple<'a> {
    /// Wraps a tuple; `None` if the bytes have no header.
    pub fn parse(bytes: &'a [u8]) -> Option<Tuple<'a>> {
        Some(Tuple { bytes, header: HeapTupleHeader::parse(bytes)? })
    }

    /// Returns the number of attributes in the tuple, which excludes columns that were added later.
    pub fn natts(&self) -> usize {
        self.header.natts().into()
    }

    /// Returns each column's bytes, `None` for null, from the first column up to the tuple's last attribute.
    ///
    /// `columns` are all columns of the table in order, including dropped columns.
    pub fn attributes<'c>(
        &self,
        columns: &'c [Column],
    ) -> impl Iterator<Item = Result<Option<Stored<'a>>, NotThese>> + use<'a, 'c> {
        let bitmap =
            self.header.has_nulls().then(|| self.bytes.get(HEAP_TUPLE_HEADER_BYTES..).unwrap_or(&[]));
        // Offsets are relative to this aligned position.
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

fn layout(column: &Column) -> Option<Layout> {
    Some(Layout { length: column.length, align: align_of(column.align)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stored_value::decompress;

    proptest! {
        /// Arbitrary tuples: the returned values are never longer than the tuple, even if headers claim so.
        #[test]
        fn no_tuple_is_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let columns: Vec<Column> =
                [(20, 8, 'd'), (25, -1, 'i'), (21, 2, 's'), (2275, -2, 'c'), (20_001, -1, 'd'), (16, 1, 'c')]
                    .into_iter()
                    .cycle()
                    .take(60)
                    .map(|(oid, length, align)| Column::plain(1, "c", oid, length, align))
                    .collect();
            if let Some(tuple) = Tuple::parse(&bytes) {
                for stored in tuple.attributes(&columns).flatten().flatten() {
                    match stored {
                        Stored::Fixed(part) | Stored::Plain(part) | Stored::Compressed(part) => {
                            prop_assert!(part.len() <= bytes.len());
                            decompress(part);
                        }
                        Stored::Toasted(_) => {}
                    }
                }
            }
        }
    }
}
