//! Relevant rows of the catalogs.

use rustc_hash::FxHashMap;
use walden_redo::page::heap_tuple::HeapTupleHeader;
use walden_source::names::{Column, Missing};

use super::layout::{Layout, oid};
use crate::encoding::Encoding;
use crate::stored_value::{Stored, decompress, next};
use crate::tuple::Tuple;
use crate::types;

/// Identifies a row.
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

/// Bytes of an array's length.
const ARRAY_LENGTH_BYTES: usize = 4;
/// Bytes of the header of an array with one dimension and without nulls.
const ARRAY_HEADER_BYTES: usize = 24;

/// A row of `pg_class`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Class {
    pub oid: u32,
    pub name: String,
    pub namespace: u32,
    /// 0 for relations without a file, and for mapped catalogs.
    pub file: u32,
    /// 0 for the database's default tablespace.
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

/// Classifies an update of a column's row as a step of `ALTER COLUMN ... TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum TypeUpdate {
    /// The update changes other fields, or the change is no update.
    #[default]
    No,
    /// The update keeps the type, its modifier and the collation. The likely reason is an expression
    /// (`USING`).
    Same,
    /// The update sets a different type, modifier or collation.
    Other,
    /// The update sets the expression of a generated column.
    Expression,
}

/// Columns of `pg_attribute` that define a type.
const TYPE_COLUMNS: [&str; 3] = ["atttypid", "atttypmod", "attcollation"];
/// Other columns that `ATExecAlterColumnType` sets.
const OF_TYPE_COLUMNS: [&str; 9] = [
    "attlen",
    "attndims",
    "attcacheoff",
    "attbyval",
    "attalign",
    "attstorage",
    "attcompression",
    "atthasmissing",
    "attmissingval",
];
const OPTIONS_COLUMN: &str = "attoptions";
/// The option in which some servers (Debian's 15.20) count a column's types. `ALTER COLUMN ... TYPE` assigns
/// the same number to all columns after the altered one, whose row it writes first.
const VERSION_OPTION: &[u8] = b"pg_attver=";

/// Whether rows without the column have a default for it.
const MISSING_COLUMN: &str = "atthasmissing";

/// Classifies a change of a `pg_attribute` tuple: `ALTER COLUMN ... TYPE` changes nothing else.
pub(crate) fn type_update(layouts: &FxHashMap<u32, Layout>, old: &[u8], new: &[u8]) -> TypeUpdate {
    let Some(layout) = layouts.get(&oid::PG_ATTRIBUTE) else { return TypeUpdate::No };
    let (Some(old), Some(new)) =
        (Fields::parse(layout, Encoding::default(), old), Fields::parse(layout, Encoding::default(), new))
    else {
        return TypeUpdate::No;
    };
    let is_same = |name: &str| match name {
        OPTIONS_COLUMN => {
            let others = |fields: &Fields<'_>| {
                let all = options(fields).into_iter();
                all.filter(|option| !option.starts_with(VERSION_OPTION)).collect::<Vec<_>>()
            };
            others(&old) == others(&new)
        }
        _ => old.get(name) == new.get(name),
    };
    if gets_expression(&old, &new) {
        return TypeUpdate::Expression;
    }
    let names = layout.columns.iter().map(|column| column.name.as_str());
    let mut others = names.filter(|name| !TYPE_COLUMNS.contains(name) && !OF_TYPE_COLUMNS.contains(name));
    match (others.all(is_same), TYPE_COLUMNS.into_iter().all(is_same)) {
        (false, _) => TypeUpdate::No,
        // A rewrite changes this field for all columns that were added with a default before or after the
        // altered column (`RelationClearMissing`).
        (true, true) if !is_same(MISSING_COLUMN) => TypeUpdate::No,
        (true, true) => TypeUpdate::Same,
        (true, false) => TypeUpdate::Other,
    }
}

/// `SET EXPRESSION` removes the old expression before it stores the new expression (`ATExecSetExpression`).
fn gets_expression(old: &Fields<'_>, new: &Fields<'_>) -> bool {
    let has_expression = |fields: &Fields<'_>| fields.bool("atthasdef");
    let is_generated = new.letter("attgenerated").is_some_and(|letter| letter != '\0');
    is_generated && has_expression(old) == Some(false) && has_expression(new) == Some(true)
}

/// The server's count of the column's types in a `pg_attribute` tuple; `None` if the server keeps none.
pub(crate) fn type_version(layouts: &FxHashMap<u32, Layout>, tuple: &[u8]) -> Option<Vec<u8>> {
    let fields = Fields::parse(layouts.get(&oid::PG_ATTRIBUTE)?, Encoding::default(), tuple)?;
    options(&fields).into_iter().find(|option| option.starts_with(VERSION_OPTION))
}

/// The elements of `attoptions`, an array of texts.
fn options(fields: &Fields<'_>) -> Vec<Vec<u8>> {
    let content = match fields.get(OPTIONS_COLUMN) {
        Some(Stored::Plain(content)) => content.to_vec(),
        Some(Stored::Compressed(bytes)) => decompress(bytes).unwrap_or_default(),
        _ => return Vec::new(),
    };
    // Elements are aligned relative to the array's length, which the content does not include.
    let mut whole = vec![0; ARRAY_LENGTH_BYTES];
    whole.extend(content);
    let (mut at, mut found) = (ARRAY_HEADER_BYTES, Vec::new());
    let layout = types::Layout { length: -1, align: 4 };
    while at < whole.len() {
        let before = at;
        match next(&whole, &mut at, layout) {
            Some(Stored::Plain(text)) if at > before => found.push(text.to_vec()),
            _ => break,
        }
    }
    found
}

/// Reads a tuple of a catalog whose names are in an encoding; `None` if it is irrelevant or cannot be read.
pub(crate) fn read(
    catalog: u32,
    layouts: &FxHashMap<u32, Layout>,
    encoding: Encoding,
    tuple: &[u8],
) -> Option<Row> {
    let layout = layouts.get(&catalog)?;
    let fields = Fields::parse(layout, encoding, tuple)?;
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

/// Catalogs with so distinctive columns that rows of other tables hardly resemble theirs. Every change of a
/// table changes these catalogs.
pub(crate) const DISTINCT_CATALOGS: [u32; 3] = [oid::PG_CLASS, oid::PG_ATTRIBUTE, oid::PG_TYPE];

/// Other catalogs. Rows of a user's table resemble theirs only if the table is defined like the catalog. Such
/// rows are searched for if the names show that the catalog was rewritten.
pub(crate) const OTHER_CATALOGS: [u32; 4] =
    [oid::PG_INDEX, oid::PG_ENUM, oid::PG_NAMESPACE, oid::PG_INHERITS];

/// Whether a tuple is most likely a row of one of these catalogs, in any file: its number of columns, and its
/// letters, names and numbers match the catalog's.
pub(crate) fn is_likely_row(
    catalog: u32,
    layouts: &FxHashMap<u32, Layout>,
    encoding: Encoding,
    tuple: &[u8],
) -> bool {
    let natts = layouts.get(&catalog).map(|layout| layout.columns.len());
    if Tuple::parse(tuple).map(|tuple| tuple.natts()) != natts {
        return false;
    }
    if OTHER_CATALOGS.contains(&catalog) {
        return is_likely_other(catalog, layouts, tuple).unwrap_or(false);
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

/// Returns whether a tuple is likely a row of one of [`OTHER_CATALOGS`]; `None` if the tuple has other
/// columns.
fn is_likely_other(catalog: u32, layouts: &FxHashMap<u32, Layout>, tuple: &[u8]) -> Option<bool> {
    /// Bytes of the columns, which have a fixed length.
    const ENUM_BYTES: usize = 4 + 4 + 4 + 64;
    const INHERITS_BYTES: usize = 4 + 4 + 4 + 1;
    /// The first superuser (`BOOTSTRAP_SUPERUSERID`), whose OID is the lowest.
    const FIRST_OWNER: u32 = 10;
    let fields = Fields::parse(layouts.get(&catalog)?, Encoding::default(), tuple)?;
    let bytes = tuple.len().checked_sub(usize::from(HeapTupleHeader::parse(tuple)?.hoff()))?;
    let is_oid = |name: &str| fields.number(name).is_some_and(|oid| oid != 0);
    // The server fills the bytes after a name with zeros (`namein`).
    let is_name = |name: &str| {
        let end =
            fields.fixed(name).and_then(|bytes| Some((bytes, bytes.iter().position(|byte| *byte == 0)?)));
        end.is_some_and(|(bytes, end)| end > 0 && bytes[end..].iter().all(|byte| *byte == 0))
    };
    // A `bool` is 0 or 1.
    let mut flags = fields.values.iter().filter_map(|value| match value {
        Some(Stored::Fixed([byte])) => Some(*byte),
        _ => None,
    });
    Some(match catalog {
        oid::PG_INDEX => {
            let (all, keys) = (fields.short("indnatts")?, fields.short("indnkeyatts")?);
            is_oid("indexrelid")
                && is_oid("indrelid")
                && 0 < keys
                && keys <= all
                && flags.all(|flag| flag < 2)
        }
        oid::PG_ENUM => bytes == ENUM_BYTES && is_oid("oid") && is_oid("enumtypid") && is_name("enumlabel"),
        oid::PG_NAMESPACE => is_oid("oid") && is_name("nspname") && fields.number("nspowner")? >= FIRST_OWNER,
        oid::PG_INHERITS => {
            let are_oids = is_oid("inhrelid")
                && is_oid("inhparent")
                && fields.number("inhrelid") != fields.number("inhparent");
            bytes == INHERITS_BYTES
                && are_oids
                && fields.number("inhseqno")?.cast_signed() > 0
                && flags.all(|flag| flag < 2)
        }
        _ => false,
    })
}

/// The columns of a catalog's tuple by their names.
struct Fields<'a> {
    layout: &'a Layout,
    /// The encoding of names.
    encoding: Encoding,
    values: Vec<Option<Stored<'a>>>,
}

impl<'a> Fields<'a> {
    fn parse(layout: &'a Layout, encoding: Encoding, tuple: &'a [u8]) -> Option<Fields<'a>> {
        let attributes = Tuple::parse(tuple)?.attributes(&layout.columns);
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

/// The element of `attmissingval`, an array with one element.
fn missing(array: Stored<'_>, length: i16, align: char) -> Option<Vec<u8>> {
    let content = match array {
        Stored::Plain(content) => content.to_vec(),
        Stored::Compressed(bytes) => decompress(bytes)?,
        _ => return None,
    };
    let mut whole = vec![0; ARRAY_LENGTH_BYTES];
    whole.extend(content);
    let number = |at: usize| whole.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let (rank, data_at) = (number(4)?, number(8)? as usize);
    if rank != 1 {
        return None;
    }
    let mut at = if data_at == 0 { ARRAY_HEADER_BYTES } else { data_at };
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

    /// A tuple with these values, zeros in the other columns of fixed length, and nulls in all others.
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
            let others: [(u32, Values<'_>); 4] = [
                (
                    oid::PG_INDEX,
                    &[("indexrelid", &[7]), ("indrelid", &[8]), ("indnatts", &[2]), ("indnkeyatts", &[1])],
                ),
                (oid::PG_ENUM, &[("oid", &[7]), ("enumtypid", &[8]), ("enumlabel", b"low")]),
                (oid::PG_NAMESPACE, &[("oid", &[7]), ("nspname", b"s"), ("nspowner", &[10])]),
                (oid::PG_INHERITS, &[("inhrelid", &[7]), ("inhparent", &[8]), ("inhseqno", &[1])]),
            ];
            for (catalog, values) in others {
                let is_row = |of: u32, values: Values<'_>| {
                    is_likely_row(of, &layouts, Encoding::default(), &tuple(&layouts[&catalog], values))
                };
                for other in DISTINCT_CATALOGS.into_iter().chain(OTHER_CATALOGS) {
                    assert_eq!(is_row(other, values), other == catalog, "{version}: {catalog}, {other}");
                }
                let (_, without) = values.split_last().expect("some values");
                assert!(!is_row(catalog, without) && !is_row(catalog, &values[1..]), "{version}: {catalog}");
            }
        }
    }

    /// A tuple of `pg_attribute` with these options.
    fn with_options(layout: &Layout, values: Values<'_>, options: &[&str]) -> Vec<u8> {
        let at = layout.index("attoptions").expect("a column");
        let mut bytes = tuple(layout, values);
        bytes[23 + at / 8] |= 1 << (at % 8);
        let mut array = [1, 0, types::oid::TEXT, options.len() as u32, 1].map(u32::to_le_bytes).concat();
        for option in options {
            array.resize(array.len().next_multiple_of(4), 0);
            array.extend(((option.len() as u32 + 4) << 2).to_le_bytes());
            array.extend(option.as_bytes());
        }
        // The header of a short value.
        bytes.push(((array.len() as u8 + 1) << 1) | 1);
        bytes.extend(array);
        bytes
    }

    #[test]
    fn updates_that_set_a_type_change_nothing_else() {
        let layouts = layouts(Major::V15).expect("a known version");
        let layout = &layouts[&oid::PG_ATTRIBUTE];
        let column: Values<'_> = &[("attname", b"v"), ("atttypid", &[23]), ("attstorage", b"p")];
        let before = with_options(layout, column, &["pg_attver=7", "n_distinct=5"]);
        let after = |values: Values<'_>, options: &[&str]| {
            type_update(&layouts, &before, &with_options(layout, values, options))
        };
        let versions = &["n_distinct=5", "pg_attver=8"][..];
        assert_eq!(after(column, versions), TypeUpdate::Same);
        let retyped: Values<'_> = &[("attname", b"v"), ("atttypid", &[20]), ("attstorage", b"x")];
        assert_eq!(after(retyped, versions), TypeUpdate::Other);
        let renamed: Values<'_> = &[("attname", b"w"), ("atttypid", &[23]), ("attstorage", b"p")];
        assert_eq!(after(renamed, versions), TypeUpdate::No);
        assert_eq!(after(column, &["n_distinct=6", "pg_attver=8"]), TypeUpdate::No);
        assert_eq!(type_update(&layouts, &before, &before[..20]), TypeUpdate::No);
        assert_eq!(type_version(&layouts, &before), Some(b"pg_attver=7".to_vec()));
        assert_eq!(type_version(&layouts, &tuple(layout, column)), None);
    }
}
