//! Reads and writes names as a file; [`Names::write`] describes the format.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use walden_format::record::RelFileLocator;

use super::{
    Column, Database, Missing, NamedFile, Names, NamesError, Origin, Persistence, Relation, RelationKind,
    Type,
};
use crate::regular_file;

const FORM: u32 = 1;

#[derive(Deserialize)]
struct Saved {
    walden_names: u32,
    #[serde(default)]
    server_version: Option<String>,
    #[serde(default)]
    server_version_num: Option<u32>,
    #[serde(default)]
    system_identifier: Option<String>,
    #[serde(default)]
    read_at: Option<String>,
    #[serde(default)]
    lsn: Option<String>,
    #[serde(default)]
    settings: BTreeMap<String, String>,
    #[serde(default)]
    databases: Vec<DatabaseRow>,
    #[serde(default)]
    tablespaces: Vec<TablespaceRow>,
    #[serde(default)]
    types: Vec<TypeRow>,
    #[serde(default)]
    inherits: Vec<InheritsRow>,
    #[serde(default)]
    relations: Vec<RelationRow>,
}

/// The inheritance pairs of a database in which they are known, perhaps none.
#[derive(Serialize, Deserialize)]
struct InheritsRow {
    database: u32,
    pairs: Vec<(u32, u32)>,
}

#[derive(Serialize, Deserialize)]
struct DatabaseRow {
    oid: u32,
    name: String,
    tablespace: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encoding: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    statistics_reset: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct TablespaceRow {
    oid: u32,
    name: String,
}

#[derive(Serialize, Deserialize)]
struct RelationRow {
    database: u32,
    oid: u32,
    schema: String,
    name: String,
    kind: char,
    persistence: char,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access_method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition_of: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scans: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    required: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    covered_by: Option<u32>,
    #[serde(default)]
    files: Vec<Option<(u32, u32, u32)>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    columns: Vec<ColumnRow>,
}

/// The fields have the names of `pg_attribute`. Common values are omitted.
#[derive(Serialize, Deserialize)]
struct ColumnRow {
    attnum: i16,
    attname: String,
    atttypid: u32,
    #[serde(default = "no_typmod", skip_serializing_if = "is_no_typmod")]
    atttypmod: i32,
    attlen: i16,
    attalign: char,
    attstorage: char,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    attisdropped: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    generated: bool,
    #[serde(rename = "virtual", default, skip_serializing_if = "std::ops::Not::not")]
    is_virtual: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    identity_always: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    key: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing_bytes: Option<Vec<u8>>,
}

fn no_typmod() -> i32 {
    -1
}

fn is_no_typmod(typmod: &i32) -> bool {
    *typmod == no_typmod()
}

#[derive(Serialize, Deserialize)]
struct TypeRow {
    database: u32,
    oid: u32,
    schema: String,
    name: String,
    kind: char,
    length: i16,
    align: char,
    #[serde(default, skip_serializing_if = "is_zero")]
    element: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    array: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    base: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    typmod: Option<i32>,
    #[serde(default, skip_serializing_if = "is_zero")]
    relation: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    subtype: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    labels: Vec<(u32, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    columns: Vec<ColumnRow>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl From<&Column> for ColumnRow {
    fn from(column: &Column) -> ColumnRow {
        let (missing, missing_bytes) = match &column.missing {
            Missing::Null => (None, None),
            Missing::Text(text) => (Some(text.clone()), None),
            Missing::Bytes(bytes) => (None, Some(bytes.clone())),
        };
        ColumnRow {
            attnum: column.number,
            attname: column.name.clone(),
            atttypid: column.type_oid,
            atttypmod: column.typmod,
            attlen: column.length,
            attalign: column.align,
            attstorage: column.storage,
            attisdropped: column.is_dropped,
            generated: column.is_generated,
            is_virtual: column.is_virtual,
            identity_always: column.is_identity_always,
            key: column.is_key,
            missing,
            missing_bytes,
        }
    }
}

impl From<ColumnRow> for Column {
    fn from(row: ColumnRow) -> Column {
        let missing = match (row.missing, row.missing_bytes) {
            (_, Some(bytes)) => Missing::Bytes(bytes),
            (Some(text), None) => Missing::Text(text),
            (None, None) => Missing::Null,
        };
        Column {
            number: row.attnum,
            name: row.attname,
            type_oid: row.atttypid,
            typmod: row.atttypmod,
            length: row.attlen,
            align: row.attalign,
            storage: row.attstorage,
            is_dropped: row.attisdropped,
            is_generated: row.generated,
            is_virtual: row.is_virtual,
            is_identity_always: row.identity_always,
            is_key: row.key,
            missing,
        }
    }
}

impl From<TypeRow> for Type {
    fn from(row: TypeRow) -> Type {
        Type {
            oid: row.oid,
            schema: row.schema,
            name: row.name,
            kind: row.kind,
            length: row.length,
            align: row.align,
            element: row.element,
            is_array: row.array,
            base: row.base,
            typmod: row.typmod,
            relation: row.relation,
            subtype: row.subtype,
            labels: row.labels,
            columns: row.columns.into_iter().map(Column::from).collect(),
        }
    }
}

fn type_row(database: u32, of: &Type) -> TypeRow {
    TypeRow {
        database,
        oid: of.oid,
        schema: of.schema.clone(),
        name: of.name.clone(),
        kind: of.kind,
        length: of.length,
        align: of.align,
        element: of.element,
        array: of.is_array,
        base: of.base,
        typmod: of.typmod,
        relation: of.relation,
        subtype: of.subtype,
        labels: of.labels.clone(),
        columns: of.columns.iter().map(ColumnRow::from).collect(),
    }
}

pub(super) fn load(path: &Path) -> Result<Names, NamesError> {
    let file = regular_file::open(path).map_err(|error| NamesError::File { path: path.to_owned(), error })?;
    let format = |what: String| NamesError::Format { path: path.to_owned(), what };
    let saved: Saved =
        serde_json::from_reader(BufReader::new(file)).map_err(|error| match error.io_error_kind() {
            Some(_) => NamesError::File { path: path.to_owned(), error: error.into() },
            None => format(error.to_string()),
        })?;
    if saved.walden_names != FORM {
        return Err(format(format!(
            "a file of names of version {}, of which this Walden reads {FORM}",
            saved.walden_names
        )));
    }
    let bad = |field: &str, text: &str| format(format!("{field} is \"{}\"", text.escape_default()));
    let parse_id = |text: String| text.parse().map_err(|_| bad("system_identifier", &text));
    let parse_lsn = |text: String| text.parse().map_err(|_| bad("lsn", &text));
    let mut names = Names {
        origin: Origin {
            server_version: saved.server_version,
            server_version_num: saved.server_version_num,
            system_id: saved.system_identifier.map(parse_id).transpose()?,
            read_at: saved.read_at,
            lsn: saved.lsn.map(parse_lsn).transpose()?,
        },
        settings: saved.settings,
        ..Names::default()
    };
    for DatabaseRow { oid, name, tablespace, encoding, statistics_reset } in saved.databases {
        names.databases.insert(oid, Database { name, tablespace, encoding, statistics_reset });
    }
    names.tablespaces.extend(saved.tablespaces.into_iter().map(|row| (row.oid, row.name)));
    for row in saved.types {
        names.add_type(row.database, row.into());
    }
    for InheritsRow { database, pairs } in saved.inherits {
        names.set_inherits(database, pairs);
    }
    for row in saved.relations {
        if !row.columns.is_empty() {
            names.set_columns(row.database, row.oid, row.columns.into_iter().map(Column::from).collect());
        }
        let relation = names.add_relation(Relation {
            database: row.database,
            shared: row.database == 0,
            oid: row.oid,
            schema: row.schema,
            name: row.name,
            kind: RelationKind::from_letter(row.kind),
            persistence: Persistence::from_letter(row.persistence),
            access_method: row.access_method,
            table: row.table,
            partition_of: row.partition_of,
            scans: row.scans,
            is_required: row.required,
            covered_by: row.covered_by,
        });
        for (at, file) in row.files.into_iter().enumerate() {
            let Some((tablespace, database, file)) = file else { continue };
            let locator = RelFileLocator { tablespace, database, relation: file };
            names.files.insert(locator, NamedFile { relation, current: at == 0 });
        }
    }
    Ok(names)
}

pub(super) fn is_saved(path: &Path) -> io::Result<bool> {
    let members: serde_json::Result<BTreeMap<String, IgnoredAny>> =
        serde_json::from_reader(BufReader::new(regular_file::open(path)?));
    match members {
        Ok(members) => Ok(members.contains_key("walden_names")),
        Err(error) if error.is_io() => Err(error.into()),
        Err(_) => Ok(false),
    }
}

pub(super) fn write(names: &Names, mut out: impl Write) -> io::Result<()> {
    let origin = &names.origin;
    writeln!(out, "{{")?;
    field(&mut out, "walden_names", &FORM)?;
    field(&mut out, "server_version", &origin.server_version)?;
    field(&mut out, "server_version_num", &origin.server_version_num)?;
    field(&mut out, "system_identifier", &origin.system_id.map(|id| id.to_string()))?;
    field(&mut out, "read_at", &origin.read_at)?;
    field(&mut out, "lsn", &origin.lsn.map(|lsn| lsn.to_string()))?;
    field(&mut out, "settings", &names.settings)?;

    let mut databases: Vec<_> = names.databases.iter().collect();
    databases.sort_by_key(|(oid, _)| **oid);
    let rows = databases.into_iter().map(|(oid, database)| DatabaseRow {
        oid: *oid,
        name: database.name.clone(),
        tablespace: database.tablespace,
        encoding: database.encoding.clone(),
        statistics_reset: database.statistics_reset.clone(),
    });
    array(&mut out, "databases", rows, ",")?;
    let mut tablespaces: Vec<_> = names.tablespaces.iter().collect();
    tablespaces.sort();
    let rows = tablespaces.into_iter().map(|(oid, name)| TablespaceRow { oid: *oid, name: name.clone() });
    array(&mut out, "tablespaces", rows, ",")?;

    let mut types: Vec<_> = names.types.iter().collect();
    types.sort_by_key(|(key, _)| **key);
    array(&mut out, "types", types.into_iter().map(|((database, _), of)| type_row(*database, of)), ",")?;

    let mut inherits: Vec<_> = names.inherits.iter().collect();
    inherits.sort_by_key(|(database, _)| **database);
    let rows = inherits.into_iter().map(|(&database, pairs)| InheritsRow { database, pairs: pairs.clone() });
    array(&mut out, "inherits", rows, ",")?;

    let mut files = vec![Vec::new(); names.relations.len()];
    for (locator, file) in &names.files {
        let row = (locator.tablespace, locator.database, locator.relation);
        files[file.relation].push((!file.current, Some(row)));
    }
    // Relations whose OID was reused come first, so that reading in this order yields the same names.
    let mut order: Vec<_> = (0..names.relations.len()).collect();
    order.sort_by_key(|index| (names.relations[*index].database, names.relations[*index].oid, *index));
    let rows = order.into_iter().map(|index| {
        let relation = &names.relations[index];
        let mut files = std::mem::take(&mut files[index]);
        files.sort();
        if files.first().is_some_and(|(is_old, _)| *is_old) {
            files.insert(0, (false, None));
        }
        let is_newest = names.by_oid.get(&(relation.database, relation.oid)) == Some(&index);
        let columns = names.columns(relation.database, relation.oid).filter(|_| is_newest).unwrap_or(&[]);
        RelationRow {
            columns: columns.iter().map(ColumnRow::from).collect(),
            database: relation.database,
            oid: relation.oid,
            schema: relation.schema.clone(),
            name: relation.name.clone(),
            kind: relation.kind.letter(),
            persistence: relation.persistence.letter(),
            access_method: relation.access_method.clone(),
            table: relation.table,
            partition_of: relation.partition_of,
            scans: relation.scans,
            required: relation.is_required,
            covered_by: relation.covered_by,
            files: files.into_iter().map(|(_, file)| file).collect(),
        }
    });
    array(&mut out, "relations", rows, "")?;
    writeln!(out, "}}")
}

fn field(out: &mut impl Write, name: &str, value: &impl Serialize) -> io::Result<()> {
    writeln!(out, "\"{name}\": {},", serde_json::to_string(value)?)
}

/// Writes one line per element, so that files can be searched and compared by line.
fn array<T: Serialize>(
    out: &mut impl Write,
    name: &str,
    rows: impl Iterator<Item = T>,
    comma: &str,
) -> io::Result<()> {
    write!(out, "\"{name}\": [")?;
    for (at, row) in rows.enumerate() {
        write!(out, "{}\n{}", if at == 0 { "" } else { "," }, serde_json::to_string(&row)?)?;
    }
    writeln!(out, "\n]{comma}")
}
