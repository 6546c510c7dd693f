//! Columns of the catalogs, by version.

use rustc_hash::FxHashMap;
use walden_format::version::Major;
use walden_source::names::Column;

/// OIDs of the catalogs that are read.
pub(crate) mod oid {
    pub const PG_TYPE: u32 = 1247;
    pub const PG_ATTRIBUTE: u32 = 1249;
    pub const PG_CLASS: u32 = 1259;
    pub const PG_INDEX: u32 = 2610;
    pub const PG_INHERITS: u32 = 2611;
    pub const PG_NAMESPACE: u32 = 2615;
    pub const PG_ENUM: u32 = 3501;
    pub const PG_RANGE: u32 = 3541;
}

/// The columns of a catalog.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub columns: Vec<Column>,
    indexes: FxHashMap<&'static str, usize>,
}

impl Layout {
    /// Index of a column among the catalog's.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.indexes.get(name).copied()
    }
}

/// The catalogs of a version by their OIDs; `None` if the version is unknown.
pub(crate) fn layouts(version: Major) -> Option<FxHashMap<u32, Layout>> {
    let number = version.number() / 10_000;
    let lines = include_str!("catalogs.txt").lines().filter(|line| !line.starts_with('#'));
    let layouts: FxHashMap<u32, Layout> = lines.filter_map(|line| layout(line, number)).collect();
    (!layouts.is_empty()).then_some(layouts)
}

/// The name of a catalog; empty if it is not in the list.
pub(crate) fn name(oid: u32) -> &'static str {
    let mut lines = include_str!("catalogs.txt").lines().filter(|line| !line.starts_with('#'));
    let found = lines.find_map(|line| {
        let (name, rest) = line.split_once(' ')?;
        (rest.split_ascii_whitespace().next()?.parse::<u32>() == Ok(oid)).then_some(name)
    });
    found.unwrap_or_default()
}

fn layout(line: &'static str, version: u32) -> Option<(u32, Layout)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let mut number = || words.next()?.parse::<u32>().ok();
    let (oid, first, last) = (number()?, number()?, number()?);
    if !(first..=last).contains(&version) {
        return None;
    }
    let (mut columns, mut indexes) = (Vec::new(), FxHashMap::default());
    for (index, word) in words.enumerate() {
        let (name, of) = word.split_once(':')?;
        columns.push(column(index, name, of, version));
        indexes.insert(name, index);
    }
    Some((oid, Layout { columns, indexes }))
}

fn column(index: usize, name: &str, of: &str, version: u32) -> Column {
    let (length, align) = match of {
        "bool" | "char" => (1, 'c'),
        "int2" => (2, 's'),
        "name" => (64, 'c'),
        "int4" | "oid" | "xid" | "regproc" | "float4" => (4, 'i'),
        // aclitem has 64-bit privileges since 16.
        "_aclitem" if version >= 16 => (-1, 'd'),
        "anyarray" => (-1, 'd'),
        _ => (-1, 'i'),
    };
    Column::plain(index as i16 + 1, name, 0, length, align)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_all_catalogs() {
        for version in [Major::V14, Major::V15, Major::V16, Major::V17, Major::V18, Major::V19] {
            let layouts = layouts(version).expect("a known version");
            assert_eq!(layouts.len(), 8, "{version}");
            for (oid, layout) in &layouts {
                assert!(layout.columns.len() >= 3 && layout.columns.len() == layout.indexes.len(), "{oid}");
            }
            assert!(layouts[&oid::PG_ATTRIBUTE].index("attmissingval").is_some());
            assert!(layouts.keys().all(|oid| name(*oid).starts_with("pg_")), "{version}");
        }
        assert_eq!([oid::PG_CLASS, oid::PG_RANGE, 1].map(name), ["pg_class", "pg_range", ""]);
        assert!(layouts(Major::V12).is_none());
        for (version, is_there) in [(Major::V18, false), (Major::V19, true)] {
            let layouts = layouts(version).expect("a known version");
            assert_eq!(layouts[&oid::PG_RANGE].index("rngconstruct2").is_some(), is_there, "{version}");
        }
    }
}
