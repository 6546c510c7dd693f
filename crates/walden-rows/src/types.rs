//! Types: PostgreSQL's own by their OIDs, users' types from the catalogs or saved names.

use rustc_hash::{FxHashMap, FxHashSet};
use walden_source::names::{Column, Type};

use crate::encoding::Encoding;

/// How values of a type are decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// By the decoder of the built-in type with this OID.
    Base(u32),
    Enum,
    Array {
        element: u32,
    },
    Composite,
    Range {
        subtype: u32,
    },
    Multirange {
        subtype: u32,
    },
    /// A type with an unknown layout.
    Unknown,
}

/// Length and alignment of a type's values, as in `pg_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// Bytes; -1 for values with a length header, -2 for zero-terminated text.
    pub length: i16,
    /// 1, 2, 4 or 8.
    pub align: usize,
}

/// Maximum depth of domains over domains.
const MAX_DOMAINS: usize = 32;

/// A built-in type: OID, name, length, alignment (`pg_type.typalign`), OID of its array.
struct Builtin(u32, &'static str, i16, char, u32);

/// OIDs of types with their own output format.
#[allow(missing_docs)]
pub mod oid {
    pub const BOOL: u32 = 16;
    pub const BYTEA: u32 = 17;
    pub const CHAR: u32 = 18;
    pub const NAME: u32 = 19;
    pub const INT8: u32 = 20;
    pub const INT2: u32 = 21;
    pub const INT2VECTOR: u32 = 22;
    pub const INT4: u32 = 23;
    pub const REGPROC: u32 = 24;
    pub const TEXT: u32 = 25;
    pub const OID: u32 = 26;
    pub const TID: u32 = 27;
    pub const XID: u32 = 28;
    pub const CID: u32 = 29;
    pub const OIDVECTOR: u32 = 30;
    pub const JSON: u32 = 114;
    pub const XML: u32 = 142;
    pub const POINT: u32 = 600;
    pub const LSEG: u32 = 601;
    pub const PATH: u32 = 602;
    pub const BOX: u32 = 603;
    pub const POLYGON: u32 = 604;
    pub const LINE: u32 = 628;
    pub const CIDR: u32 = 650;
    pub const FLOAT4: u32 = 700;
    pub const FLOAT8: u32 = 701;
    pub const CIRCLE: u32 = 718;
    pub const MACADDR8: u32 = 774;
    pub const MONEY: u32 = 790;
    pub const MACADDR: u32 = 829;
    pub const INET: u32 = 869;
    pub const BPCHAR: u32 = 1042;
    pub const VARCHAR: u32 = 1043;
    pub const DATE: u32 = 1082;
    pub const TIME: u32 = 1083;
    pub const TIMESTAMP: u32 = 1114;
    pub const TIMESTAMPTZ: u32 = 1184;
    pub const INTERVAL: u32 = 1186;
    pub const TIMETZ: u32 = 1266;
    pub const BIT: u32 = 1560;
    pub const VARBIT: u32 = 1562;
    pub const NUMERIC: u32 = 1700;
    pub const UUID: u32 = 2950;
    pub const REFCURSOR: u32 = 1790;
    pub const PG_LSN: u32 = 3220;
    pub const TSVECTOR: u32 = 3614;
    pub const JSONB: u32 = 3802;
    pub const XID8: u32 = 5069;
}

#[rustfmt::skip]
const BUILTIN: &[Builtin] = &[
    Builtin(oid::BOOL,          "boolean",                     1, 'c', 1000),
    Builtin(oid::BYTEA,         "bytea",                      -1, 'i', 1001),
    Builtin(oid::CHAR,          "\"char\"",                    1, 'c', 1002),
    Builtin(oid::NAME,          "name",                       64, 'c', 1003),
    Builtin(oid::INT8,          "bigint",                      8, 'd', 1016),
    Builtin(oid::INT2,          "smallint",                    2, 's', 1005),
    Builtin(oid::INT2VECTOR,    "int2vector",                 -1, 'i', 1006),
    Builtin(oid::INT4,          "integer",                     4, 'i', 1007),
    Builtin(oid::REGPROC,       "regproc",                     4, 'i', 1008),
    Builtin(oid::TEXT,          "text",                       -1, 'i', 1009),
    Builtin(oid::OID,           "oid",                         4, 'i', 1028),
    Builtin(oid::TID,           "tid",                         6, 's', 1010),
    Builtin(oid::XID,           "xid",                         4, 'i', 1011),
    Builtin(oid::CID,           "cid",                         4, 'i', 1012),
    Builtin(oid::OIDVECTOR,     "oidvector",                  -1, 'i', 1013),
    Builtin(oid::JSON,          "json",                       -1, 'i', 199),
    Builtin(oid::XML,           "xml",                        -1, 'i', 143),
    Builtin(oid::POINT,         "point",                      16, 'd', 1017),
    Builtin(oid::LSEG,          "lseg",                       32, 'd', 1018),
    Builtin(oid::PATH,          "path",                       -1, 'd', 1019),
    Builtin(oid::BOX,           "box",                        32, 'd', 1020),
    Builtin(oid::POLYGON,       "polygon",                    -1, 'd', 1027),
    Builtin(oid::LINE,          "line",                       24, 'd', 629),
    Builtin(oid::CIDR,          "cidr",                       -1, 'i', 651),
    Builtin(oid::FLOAT4,        "real",                        4, 'i', 1021),
    Builtin(oid::FLOAT8,        "double precision",            8, 'd', 1022),
    Builtin(oid::CIRCLE,        "circle",                     24, 'd', 719),
    Builtin(oid::MACADDR8,      "macaddr8",                    8, 'i', 775),
    Builtin(oid::MONEY,         "money",                       8, 'd', 791),
    Builtin(oid::MACADDR,       "macaddr",                     6, 'i', 1040),
    Builtin(oid::INET,          "inet",                       -1, 'i', 1041),
    Builtin(oid::BPCHAR,        "character",                  -1, 'i', 1014),
    Builtin(oid::VARCHAR,       "character varying",          -1, 'i', 1015),
    Builtin(oid::DATE,          "date",                        4, 'i', 1182),
    Builtin(oid::TIME,          "time without time zone",      8, 'd', 1183),
    Builtin(oid::TIMESTAMP,     "timestamp without time zone", 8, 'd', 1115),
    Builtin(oid::TIMESTAMPTZ,   "timestamp with time zone",    8, 'd', 1185),
    Builtin(oid::INTERVAL,      "interval",                   16, 'd', 1187),
    Builtin(oid::TIMETZ,        "time with time zone",        12, 'd', 1270),
    Builtin(oid::BIT,           "bit",                        -1, 'i', 1561),
    Builtin(oid::VARBIT,        "bit varying",                -1, 'i', 1563),
    Builtin(oid::NUMERIC,       "numeric",                    -1, 'i', 1231),
    Builtin(oid::REFCURSOR,     "refcursor",                  -1, 'i', 2201),
    Builtin(2202,               "regprocedure",                4, 'i', 2207),
    Builtin(2203,               "regoper",                     4, 'i', 2208),
    Builtin(2204,               "regoperator",                 4, 'i', 2209),
    Builtin(2205,               "regclass",                    4, 'i', 2210),
    Builtin(2206,               "regtype",                     4, 'i', 2211),
    Builtin(3734,               "regconfig",                   4, 'i', 3735),
    Builtin(3769,               "regdictionary",               4, 'i', 3770),
    Builtin(4191,               "regcollation",                4, 'i', 4192),
    Builtin(oid::UUID,          "uuid",                       16, 'c', 2951),
    Builtin(oid::PG_LSN,        "pg_lsn",                      8, 'd', 3221),
    Builtin(oid::TSVECTOR,      "tsvector",                   -1, 'i', 3643),
    Builtin(oid::JSONB,         "jsonb",                      -1, 'i', 3807),
    Builtin(4089,               "regnamespace",                4, 'i', 4090),
    Builtin(4096,               "regrole",                     4, 'i', 4097),
    Builtin(oid::XID8,          "xid8",                        8, 'd', 271),
];

/// PostgreSQL's own ranges: OID, OID of its array, of its multirange, of the multirange's array, of its
/// bounds, name.
#[rustfmt::skip]
const RANGES: &[(u32, u32, u32, u32, u32, &str)] = &[
    (3904, 3905, 4451, 6150, oid::INT4,        "int4"),
    (3906, 3907, 4532, 6151, oid::NUMERIC,     "num"),
    (3908, 3909, 4533, 6152, oid::TIMESTAMP,   "ts"),
    (3910, 3911, 4534, 6153, oid::TIMESTAMPTZ, "tstz"),
    (3912, 3913, 4535, 6155, oid::DATE,        "date"),
    (3926, 3927, 4536, 6157, oid::INT8,        "int8"),
];

/// The types of a database.
#[derive(Clone, Debug, Default)]
pub struct Types {
    /// The encoding of text.
    pub encoding: Encoding,
    /// Whether `pg_lsn` is printed with leading zeros: since 19.
    pub pads_lsn: bool,
    types: FxHashMap<u32, Type>,
}

impl Types {
    /// Creates the types of a database with an encoding, without users' types.
    pub fn for_encoding(encoding: Encoding) -> Types {
        Types { encoding, ..Types::default() }
    }

    /// Adds or replaces a type; `None` removes it. Returns the previous one.
    pub fn set(&mut self, oid: u32, new: Option<Type>) -> Option<Type> {
        match new {
            Some(new) => self.types.insert(oid, new),
            None => self.types.remove(&oid),
        }
    }

    /// Returns a user's type by its OID.
    pub fn get(&self, oid: u32) -> Option<&Type> {
        self.types.get(&oid)
    }

    /// Returns a user's type for modification.
    pub(crate) fn get_mut(&mut self, oid: u32) -> Option<&mut Type> {
        self.types.get_mut(&oid)
    }

    /// A type's name in SQL syntax; `None` if unknown.
    pub fn name(&self, oid: u32) -> Option<String> {
        if let Some(found) = self.types.get(&oid) {
            return Some(found.to_string());
        }
        for &Builtin(of, name, _, _, array) in BUILTIN {
            if of == oid {
                return Some(name.to_owned());
            }
            if array == oid {
                return Some(format!("{name}[]"));
            }
        }
        RANGES.iter().find_map(|&(range, array, multirange, multirange_array, _, name)| match oid {
            of if of == range => Some(format!("{name}range")),
            of if of == array => Some(format!("{name}range[]")),
            of if of == multirange => Some(format!("{name}multirange")),
            of if of == multirange_array => Some(format!("{name}multirange[]")),
            _ => None,
        })
    }

    /// How values of a type are decoded; a domain has the kind of its base type.
    pub(crate) fn kind(&self, oid: u32) -> Kind {
        let mut oid = oid;
        for _ in 0..MAX_DOMAINS {
            if let Some(kind) = builtin(oid) {
                return kind;
            }
            let Some(found) = self.types.get(&oid) else { return Kind::Unknown };
            match found.kind {
                'd' => oid = found.base,
                'e' => return Kind::Enum,
                'c' => return Kind::Composite,
                'r' => return Kind::Range { subtype: found.subtype },
                'm' => return Kind::Multirange { subtype: found.subtype },
                // The type of the extension with this name is stored as text.
                'b' if found.name == "citext" && found.length == -1 && found.element == 0 => {
                    return Kind::Base(oid::TEXT);
                }
                _ if found.length == -1 && found.element != 0 && found.is_array => {
                    return Kind::Array { element: found.element };
                }
                _ => return Kind::Unknown,
            }
        }
        Kind::Unknown
    }

    /// The type modifier of a column's values. A column of a domain type has none, but the innermost domain
    /// has one (`getBaseTypeAndTypmod`).
    pub(crate) fn typmod(&self, oid: u32, typmod: i32) -> i32 {
        let (mut oid, mut typmod) = (oid, typmod);
        for _ in 0..MAX_DOMAINS {
            let Some(domain) = self.types.get(&oid).filter(|found| found.kind == 'd') else { break };
            (oid, typmod) = (domain.base, domain.typmod.unwrap_or(-1));
        }
        typmod
    }

    /// Length and alignment of a type's values in a tuple or array.
    pub(crate) fn layout(&self, oid: u32) -> Option<Layout> {
        if let Some(found) = self.types.get(&oid) {
            return Some(Layout { length: found.length, align: align_of(found.align)? });
        }
        if let Some(&Builtin(_, _, length, align, _)) = BUILTIN.iter().find(|builtin| builtin.0 == oid) {
            return Some(Layout { length, align: align_of(align)? });
        }
        let wide = |subtype| matches!(subtype, oid::TIMESTAMP | oid::TIMESTAMPTZ | oid::INT8);
        let range = RANGES.iter().find(|range| [range.0, range.1, range.2, range.3].contains(&oid));
        let is_array = BUILTIN.iter().any(|builtin| builtin.4 == oid);
        match (range, is_array) {
            (Some(range), _) => Some(Layout { length: -1, align: if wide(range.4) { 8 } else { 4 } }),
            (None, true) => {
                let is_wide = BUILTIN.iter().any(|builtin| builtin.4 == oid && builtin.3 == 'd');
                Some(Layout { length: -1, align: if is_wide { 8 } else { 4 } })
            }
            (None, false) => None,
        }
    }

    /// The columns of a composite type.
    pub(crate) fn columns(&self, oid: u32) -> Option<&[Column]> {
        let mut oid = oid;
        for _ in 0..MAX_DOMAINS {
            let found = self.types.get(&oid)?;
            match found.kind {
                'd' => oid = found.base,
                _ => return Some(&found.columns),
            }
        }
        None
    }

    /// Returns the attributes of composite types that values of a type have or may contain: the composite
    /// type's OID and the attribute's number. The number 0 represents the composite type itself, which may
    /// have no attributes.
    pub(crate) fn attributes(&self, oid: u32) -> Vec<(u32, i16)> {
        let (mut attributes, mut seen, mut within) = (Vec::new(), FxHashSet::default(), vec![oid]);
        while let Some(oid) = within.pop() {
            if !seen.insert(oid) {
                continue;
            }
            if let Some(domain) = self.types.get(&oid).filter(|found| found.kind == 'd') {
                within.push(domain.base);
                continue;
            }
            match self.kind(oid) {
                Kind::Array { element } => within.push(element),
                Kind::Range { subtype } | Kind::Multirange { subtype } => within.push(subtype),
                Kind::Composite => {
                    attributes.push((oid, 0));
                    let columns = self.columns(oid).unwrap_or_default();
                    for column in columns.iter().filter(|column| !column.is_dropped) {
                        attributes.push((oid, column.number));
                        within.push(column.type_oid);
                    }
                }
                Kind::Base(_) | Kind::Enum | Kind::Unknown => {}
            }
        }
        attributes
    }

    /// Whether values of a type can be decoded, including all nested values.
    pub(crate) fn is_read(&self, oid: u32) -> bool {
        !self.has_within(oid, |kind| kind == Kind::Unknown)
    }

    /// Whether values of a type are or may contain OIDs that are printed as names (`regclass` and similar
    /// types).
    pub(crate) fn prints_names(&self, oid: u32) -> bool {
        let is_alias = |oid| BUILTIN.iter().any(|builtin| builtin.0 == oid && builtin.1.starts_with("reg"));
        self.has_within(oid, |kind| matches!(kind, Kind::Base(oid) if is_alias(oid)))
    }

    /// Whether `is` holds for a type or for one that its values may contain.
    fn has_within(&self, oid: u32, is: impl Fn(Kind) -> bool) -> bool {
        let (mut seen, mut within) = (FxHashSet::default(), vec![oid]);
        while let Some(oid) = within.pop() {
            if !seen.insert(oid) {
                continue;
            }
            let kind = self.kind(oid);
            if is(kind) {
                return true;
            }
            match kind {
                Kind::Array { element } => within.push(element),
                Kind::Range { subtype } | Kind::Multirange { subtype } => within.push(subtype),
                Kind::Composite => {
                    let columns = self.columns(oid).unwrap_or_default().iter();
                    within.extend(columns.filter(|column| !column.is_dropped).map(|column| column.type_oid));
                }
                Kind::Base(_) | Kind::Enum | Kind::Unknown => {}
            }
        }
        false
    }

    /// The label of a value of an enum.
    pub(crate) fn label(&self, enum_type: u32, value: u32) -> Option<&str> {
        let labels = self.labels(enum_type)?;
        labels.iter().find(|(label, _)| *label == value).map(|(_, label)| label.as_str())
    }

    /// The value of an enum with a label.
    pub(crate) fn labelled(&self, enum_type: u32, label: &str) -> Option<u32> {
        let labels = self.labels(enum_type)?;
        labels.iter().find(|(_, known)| known == label).map(|(value, _)| *value)
    }

    /// The values of an enum, or of a domain over one, with their labels.
    fn labels(&self, enum_type: u32) -> Option<&[(u32, String)]> {
        let mut oid = enum_type;
        for _ in 0..MAX_DOMAINS {
            let found = self.types.get(&oid)?;
            match found.kind {
                'd' => oid = found.base,
                _ => return Some(&found.labels),
            }
        }
        None
    }
}

/// Whether a type is PostgreSQL's own, which is never a composite type.
pub(crate) fn is_builtin(oid: u32) -> bool {
    builtin(oid).is_some()
}

fn builtin(oid: u32) -> Option<Kind> {
    for &Builtin(of, _, _, _, array) in BUILTIN {
        if of == oid {
            return Some(Kind::Base(oid));
        }
        if array == oid {
            return Some(Kind::Array { element: of });
        }
    }
    RANGES.iter().find_map(|&(range, array, multirange, multirange_array, subtype, _)| match oid {
        of if of == range => Some(Kind::Range { subtype }),
        of if of == array => Some(Kind::Array { element: range }),
        of if of == multirange => Some(Kind::Multirange { subtype }),
        of if of == multirange_array => Some(Kind::Array { element: multirange }),
        _ => None,
    })
}

/// Bytes for a letter of `pg_type.typalign`.
pub(crate) fn align_of(letter: char) -> Option<usize> {
    match letter {
        'c' => Some(1),
        's' => Some(2),
        'i' => Some(4),
        'd' => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_that_print_an_oids_name_are_known() {
        let types = Types::default();
        for (oid, array) in [(24, 1008), (2205, 2210), (3734, 3735), (3769, 3770), (4191, 4192)] {
            assert_eq!((types.kind(oid), types.kind(array)), (Kind::Base(oid), Kind::Array { element: oid }));
            assert_eq!(types.layout(oid), Some(Layout { length: 4, align: 4 }));
            assert!(types.name(oid).is_some_and(|name| name.starts_with("reg")));
        }
    }

    #[test]
    fn arrays_of_multiranges_are_known() {
        let types = Types::default();
        for (multirange, array, subtype, align) in [(4451, 6150, oid::INT4, 4), (4536, 6157, oid::INT8, 8)] {
            assert_eq!(types.kind(array), Kind::Array { element: multirange });
            assert_eq!(types.kind(multirange), Kind::Multirange { subtype });
            assert_eq!(types.layout(array), Some(Layout { length: -1, align }));
        }
        assert_eq!(types.name(6150).as_deref(), Some("int4multirange[]"));
    }

    /// An array of a domain over a type with an attribute of another composite type, and a dropped one.
    #[test]
    fn attributes_are_found_at_any_depth() {
        let mut types = Types::default();
        let column = |number, type_oid| Column::plain(number, "c", type_oid, -1, 'd');
        let dropped = Column { is_dropped: true, ..column(2, 0) };
        let of = |oid, kind| Type { oid, kind, length: -1, ..Type::default() };
        for of in [
            Type { element: 20_001, is_array: true, ..of(20_000, 'b') },
            Type { base: 20_002, ..of(20_001, 'd') },
            Type { columns: vec![column(1, 20_003), dropped, column(3, oid::TEXT)], ..of(20_002, 'c') },
            Type { columns: vec![column(1, 20_000)], ..of(20_003, 'c') },
        ] {
            types.set(of.oid, Some(of));
        }
        assert!(types.is_read(20_000) && types.is_read(oid::TEXT));
        // An extension's type.
        let unread = Type { columns: vec![column(1, 20_009)], ..of(20_004, 'c') };
        types.set(unread.oid, Some(unread));
        types.set(20_009, Some(of(20_009, 'b')));
        assert!(!types.is_read(20_004) && !types.is_read(20_009));
        let mut found = types.attributes(20_000);
        found.sort_unstable();
        assert_eq!(found, [(20_002, 0), (20_002, 1), (20_002, 3), (20_003, 0), (20_003, 1)]);
        assert!(types.attributes(oid::TEXT).is_empty());
    }

    #[test]
    fn a_domain_has_the_modifier_of_its_base_type() {
        let mut types = Types::default();
        let domain = |oid, base, typmod| Type { oid, kind: 'd', base, typmod, ..Type::default() };
        for of in [
            domain(20_000, oid::NUMERIC, Some(786_438)),
            domain(20_001, 20_000, None),
            domain(20_002, oid::NUMERIC, None),
            domain(20_003, 20_003, None),
        ] {
            types.set(of.oid, Some(of));
        }
        assert_eq!(types.typmod(oid::NUMERIC, 9), 9);
        assert_eq!(types.typmod(20_001, -1), 786_438);
        assert_eq!(types.typmod(20_002, -1), -1);
        assert_eq!(types.typmod(20_003, -1), -1);
    }
}
