//! Rows of the catalogs, as far as they matter here.

use rustc_hash::FxHashMap;
use walden_source::names::{Column, Missing};

use super::layout::{Layout, oid};
use crate::encoding::Encoding;
use crate::stored::{Stored, decompress, next};
use crate::tuple::Tuple;
use crate::types;

/// What a row is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Key {
    Class(u32),
    /// Relation and number of the column.
    Attribute(u32, i16),
    Type(u32),
    Namespace(u32),
    Enum(u32),
    /// Child and parent.
    Inherits(u32, u32),
    Index(u32),
    Range(u32),
}

/// A row of a catalog.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Row {
    Class(Class),
    Attribute {
        relation: u32,
        column: Column,
    },
    Type {
        of: walden_source::names::Type,
        namespace: u32,
    },
    Namespace {
        oid: u32,
        name: String,
    },
    Enum {
        oid: u32,
        of: u32,
        label: String,
    },
    Inherits {
        child: u32,
        parent: u32,
    },
    /// A primary key.
    Index {
        oid: u32,
        table: u32,
        columns: Vec<i16>,
    },
    Range {
        of: u32,
        subtype: u32,
        multirange: u32,
    },
}

/// A row of `pg_class`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Class {
    pub oid: u32,
    pub name: String,
    pub namespace: u32,
    /// 0 for what has no file, and for mapped catalogs.
    pub file: u32,
    /// 0 for that of the database.
    pub tablespace: u32,
    pub toast: u32,
    pub kind: char,
    pub persistence: char,
}

impl Row {
    pub fn key(&self) -> Key {
        match self {
            Row::Class(class) => Key::Class(class.oid),
            Row::Attribute { relation, column } => Key::Attribute(*relation, column.number),
            Row::Type { of, .. } => Key::Type(of.oid),
            Row::Namespace { oid, .. } => Key::Namespace(*oid),
            Row::Enum { oid, .. } => Key::Enum(*oid),
            Row::Inherits { child, parent } => Key::Inherits(*child, *parent),
            Row::Index { oid, .. } => Key::Index(*oid),
            Row::Range { of, .. } => Key::Range(*of),
        }
    }
}

/// Reads a tuple of a catalog whose names are in an encoding; `None` if it does not matter here or cannot be read.
pub(crate) fn read(
    catalog: u32,
    layouts: &FxHashMap<u32, Layout>,
    encoding: Encoding,
    tuple: &[u8],
) -> Option<Row> {
    let layout = layouts.get(&catalog)?;
    let fields = Fields::of(layout, encoding, tuple)?;
    match catalog {
        oid::PG_CLASS => class(&fields).map(Row::Class),
        oid::PG_ATTRIBUTE => attribute(&fields),
        oid::PG_TYPE => type_row(&fields),
        oid::PG_NAMESPACE => {
            Some(Row::Namespace { oid: fields.number("oid")?, name: fields.name("nspname")? })
        }
        oid::PG_ENUM => Some(Row::Enum {
            oid: fields.number("oid")?,
            of: fields.number("enumtypid")?,
            label: fields.name("enumlabel")?,
        }),
        oid::PG_INHERITS => {
            Some(Row::Inherits { child: fields.number("inhrelid")?, parent: fields.number("inhparent")? })
        }
        oid::PG_INDEX => index(&fields),
        oid::PG_RANGE => Some(Row::Range {
            of: fields.number("rngtypid")?,
            subtype: fields.number("rngsubtype")?,
            multirange: fields.number("rngmultitypid")?,
        }),
        _ => None,
    }
}

/// Catalogs whose rows hardly any other table's are taken for, by their many columns. What changes tables changes these.
pub(crate) const DISTINCT_CATALOGS: [u32; 3] = [oid::PG_CLASS, oid::PG_ATTRIBUTE, oid::PG_TYPE];

/// Whether a tuple is most likely one of these catalogs' rows, wherever it lies: it has as many columns, and letters that the catalog
/// has.
pub(crate) fn is_likely_row(
    catalog: u32,
    layouts: &FxHashMap<u32, Layout>,
    encoding: Encoding,
    tuple: &[u8],
) -> bool {
    let natts = layouts.get(&catalog).map(|layout| layout.columns.len());
    if Tuple::of(tuple).map(|tuple| tuple.natts()) != natts {
        return false;
    }
    match read(catalog, layouts, encoding, tuple) {
        Some(Row::Class(class)) => {
            class.oid != 0 && "rimStvcfpI".contains(class.kind) && "put".contains(class.persistence)
        }
        Some(Row::Attribute { relation, column }) => {
            relation != 0 && "csid".contains(column.align) && "pemx".contains(column.storage)
        }
        Some(Row::Type { of, .. }) => of.oid != 0 && "bcdeprm".contains(of.kind) && "csid".contains(of.align),
        _ => false,
    }
}

/// The columns of a catalog's tuple by their names.
struct Fields<'a> {
    layout: &'a Layout,
    /// Of names.
    encoding: Encoding,
    values: Vec<Option<Stored<'a>>>,
}

impl<'a> Fields<'a> {
    fn of(layout: &'a Layout, encoding: Encoding, tuple: &'a [u8]) -> Option<Fields<'a>> {
        let attributes = Tuple::of(tuple)?.attributes(&layout.columns);
        let values: Vec<_> = attributes.map(Result::ok).collect::<Option<_>>()?;
        Some(Fields { layout, encoding, values })
    }

    fn get(&self, name: &str) -> Option<Stored<'a>> {
        self.values.get(self.layout.index(name)?).copied().flatten()
    }

    fn fixed(&self, name: &str) -> Option<&'a [u8]> {
        match self.get(name)? {
            Stored::Fixed(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn number(&self, name: &str) -> Option<u32> {
        Some(u32::from_le_bytes(self.fixed(name)?.try_into().ok()?))
    }

    fn short(&self, name: &str) -> Option<i16> {
        Some(i16::from_le_bytes(self.fixed(name)?.try_into().ok()?))
    }

    fn letter(&self, name: &str) -> Option<char> {
        self.fixed(name)?.first().map(|&byte| char::from(byte))
    }

    fn bool(&self, name: &str) -> Option<bool> {
        self.fixed(name)?.first().map(|&byte| byte != 0)
    }

    fn name(&self, name: &str) -> Option<String> {
        let bytes = self.fixed(name)?;
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Some(self.encoding.decode_name(&bytes[..end]))
    }
}

fn class(fields: &Fields<'_>) -> Option<Class> {
    Some(Class {
        oid: fields.number("oid")?,
        name: fields.name("relname")?,
        namespace: fields.number("relnamespace")?,
        file: fields.number("relfilenode")?,
        tablespace: fields.number("reltablespace")?,
        toast: fields.number("reltoastrelid")?,
        kind: fields.letter("relkind")?,
        persistence: fields.letter("relpersistence")?,
    })
}

fn attribute(fields: &Fields<'_>) -> Option<Row> {
    let number = fields.short("attnum")?;
    if number < 1 {
        return None;
    }
    let (length, align) = (fields.short("attlen")?, fields.letter("attalign")?);
    let missing = match fields.bool("atthasmissing") {
        Some(true) => fields.get("attmissingval").and_then(|array| missing(array, length, align)),
        _ => None,
    };
    let column = Column {
        number,
        name: fields.name("attname")?,
        type_oid: fields.number("atttypid")?,
        typmod: fields.number("atttypmod")?.cast_signed(),
        length,
        align,
        storage: fields.letter("attstorage")?,
        is_dropped: fields.bool("attisdropped")?,
        is_generated: fields.letter("attgenerated")? != '\0',
        is_virtual: fields.letter("attgenerated")? == 'v',
        is_identity_always: fields.letter("attidentity")? == 'a',
        is_key: false,
        missing: missing.map_or(Missing::Null, Missing::Bytes),
    };
    Some(Row::Attribute { relation: fields.number("attrelid")?, column })
}

/// The element of `attmissingval`, an array of one.
fn missing(array: Stored<'_>, length: i16, align: char) -> Option<Vec<u8>> {
    let content = match array {
        Stored::Plain(content) => content.to_vec(),
        Stored::Compressed(bytes) => decompress(bytes)?,
        _ => return None,
    };
    let mut whole = vec![0; 4];
    whole.extend(content);
    let number = |at: usize| whole.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let (rank, data_at) = (number(4)?, number(8)? as usize);
    if rank != 1 {
        return None;
    }
    // The header with one dimension has 24 bytes.
    let mut at = if data_at == 0 { 24 } else { data_at };
    let layout = types::Layout { length, align: types::align_of(align)? };
    match next(&whole, &mut at, layout)? {
        Stored::Fixed(bytes) | Stored::Plain(bytes) => Some(bytes.to_vec()),
        Stored::Compressed(bytes) => decompress(bytes),
        Stored::Toasted(_) => None,
    }
}

fn type_row(fields: &Fields<'_>) -> Option<Row> {
    let of = walden_source::names::Type {
        oid: fields.number("oid")?,
        schema: String::new(),
        name: fields.name("typname")?,
        kind: fields.letter("typtype")?,
        length: fields.short("typlen")?,
        align: fields.letter("typalign")?,
        element: fields.number("typelem")?,
        is_array: fields.letter("typcategory")? == 'A',
        base: fields.number("typbasetype")?,
        typmod: Some(fields.number("typtypmod")?.cast_signed()).filter(|typmod| *typmod >= 0),
        relation: fields.number("typrelid")?,
        ..walden_source::names::Type::default()
    };
    Some(Row::Type { of, namespace: fields.number("typnamespace")? })
}

fn index(fields: &Fields<'_>) -> Option<Row> {
    if !fields.bool("indisprimary")? {
        return None;
    }
    let Stored::Plain(bytes) = fields.get("indkey")? else { return None };
    // int2vector: an array's number of dimensions, offset, type, length and lower bound, then the numbers.
    let (numbers, _) = bytes.get(20..)?.as_chunks::<2>();
    let count = usize::try_from(fields.short("indnkeyatts")?).ok()?;
    let columns = numbers.iter().take(count).map(|number| i16::from_le_bytes(*number)).collect();
    Some(Row::Index { oid: fields.number("indexrelid")?, table: fields.number("indrelid")?, columns })
}

#[cfg(test)]
mod tests {
    use walden_format::version::Major;

    use super::*;
    use crate::catalog::layouts;

    /// Values of columns by their names.
    type Values<'a> = &'a [(&'a str, &'a [u8])];

    /// A tuple with these values, zeros in the other columns of a fixed length, and nulls in all others.
    fn tuple(layout: &Layout, values: Values<'_>) -> Vec<u8> {
        const HEADER_BYTES: usize = 23;
        let natts = layout.columns.len();
        let hoff = (HEADER_BYTES + natts.div_ceil(8)).next_multiple_of(8);
        let mut bytes = vec![0; hoff];
        // t_infomask2, HEAP_HASNULL of t_infomask, t_hoff
        (bytes[18], bytes[20], bytes[22]) = (natts as u8, 1, hoff as u8);
        for (index, column) in layout.columns.iter().enumerate() {
            let Ok(length) = usize::try_from(column.length) else { continue };
            bytes[HEADER_BYTES + index / 8] |= 1 << (index % 8);
            let align = types::align_of(column.align).expect("an alignment");
            bytes.resize(bytes.len().next_multiple_of(align), 0);
            let at = bytes.len();
            bytes.resize(at + length, 0);
            if let Some((_, value)) = values.iter().find(|(name, _)| *name == column.name) {
                bytes[at..at + value.len()].copy_from_slice(value);
            }
        }
        bytes
    }

    #[test]
    fn rows_of_catalogs_are_told_from_others() {
        for version in [Major::V14, Major::V15, Major::V16, Major::V17, Major::V18, Major::V19] {
            let layouts = layouts(version).expect("a known version");
            let rows: [(u32, Values<'_>); 3] = [
                (
                    oid::PG_CLASS,
                    &[("oid", &[7]), ("relname", b"t"), ("relkind", b"r"), ("relpersistence", b"p")],
                ),
                (
                    oid::PG_ATTRIBUTE,
                    &[("attrelid", &[7]), ("attnum", &[1]), ("attalign", b"i"), ("attstorage", b"p")],
                ),
                (oid::PG_TYPE, &[("oid", &[7]), ("typtype", b"b"), ("typalign", b"c")]),
            ];
            for (catalog, values) in rows {
                let is_row = |of: u32, values: Values<'_>| {
                    is_likely_row(of, &layouts, Encoding::default(), &tuple(&layouts[&catalog], values))
                };
                for other in DISTINCT_CATALOGS {
                    assert_eq!(is_row(other, values), other == catalog, "{version}: {catalog}, {other}");
                }
                // Without its letters, or its OID.
                assert!(
                    !is_row(catalog, &values[..2]) && !is_row(catalog, &values[1..]),
                    "{version}: {catalog}"
                );
            }
        }
    }
}
