//! Reads and prints tuples with arbitrary columns and bytes: no panic.

use std::fmt::Write;

use walden_rows::{Cell, Types, tuple_values};
use walden_source::names::Column;

/// Built-in types: numbers, texts, times, bits, addresses, geometry, JSON, text search, arrays, ranges,
/// multiranges. Each with its OID, `attlen` and `attalign`.
const TYPES: [(u32, i16, char); 40] = [
    (16, 1, 'c'),
    (17, -1, 'i'),
    (19, 64, 'c'),
    (20, 8, 'd'),
    (21, 2, 's'),
    (23, 4, 'i'),
    (25, -1, 'i'),
    (26, 4, 'i'),
    (114, -1, 'i'),
    (600, 16, 'd'),
    (602, -1, 'd'),
    (604, -1, 'd'),
    (700, 4, 'i'),
    (701, 8, 'd'),
    (718, 24, 'd'),
    (790, 8, 'd'),
    (829, 6, 'i'),
    (869, -1, 'i'),
    (1042, -1, 'i'),
    (1082, 4, 'i'),
    (1083, 8, 'd'),
    (1114, 8, 'd'),
    (1184, 8, 'd'),
    (1186, 16, 'd'),
    (1266, 12, 'd'),
    (1560, -1, 'i'),
    (1562, -1, 'i'),
    (1700, -1, 'i'),
    (2950, 16, 'c'),
    (3220, 8, 'd'),
    (3614, -1, 'i'),
    (3802, -1, 'i'),
    (1007, -1, 'i'),
    (1009, -1, 'i'),
    (1231, -1, 'i'),
    (3807, -1, 'i'),
    (3904, -1, 'i'),
    (3906, -1, 'i'),
    (4451, -1, 'i'),
    (4532, -1, 'i'),
];

/// Accepts a limited number of bytes of text.
struct Limited(usize);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 = self.0.checked_sub(text.len()).ok_or(std::fmt::Error)?;
        Ok(())
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let Some((choices, bytes)) = rest.split_at_checked(usize::from(count % 16)) else { return };
    let column = |(index, choice): (usize, &u8)| {
        let (type_oid, length, align) = TYPES[usize::from(*choice) % TYPES.len()];
        Column::plain(index as i16 + 1, "c", type_oid, length, align)
    };
    let columns: Vec<Column> = choices.iter().enumerate().map(column).collect();
    // The header of a tuple without nulls. In half of the inputs, the header comes from the input.
    let mut tuple = vec![0; 24];
    tuple[18] = columns.len() as u8;
    tuple[22] = 24;
    if data.len().is_multiple_of(2) {
        tuple.clear();
    }
    tuple.extend(bytes);
    for cell in tuple_values(&Types::default(), &columns, &tuple).unwrap_or_default() {
        if let Cell::Value(value) = cell {
            // A number of few bytes may have 100,000 digits, and an array may have many such numbers.
            let _ = write!(Limited(1 << 20), "{value}");
        }
    }
}
