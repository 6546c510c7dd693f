//! Names in a file; [`Names::write`] describes its form.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use walden_format::record::RelFileLocator;

use super::{Database, NamedFile, Names, NamesError, Origin, Persistence, Relation, RelationKind};

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
    relations: Vec<RelationRow>,
}

#[derive(Serialize, Deserialize)]
struct DatabaseRow {
    oid: u32,
    name: String,
    tablespace: u32,
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
    is_required: Option<bool>,
    #[serde(default)]
    files: Vec<Option<(u32, u32, u32)>>,
}

pub(super) fn load(path: &Path) -> Result<Names, NamesError> {
    let file = File::open(path).map_err(|error| NamesError::File { path: path.to_owned(), error })?;
    let format = |what: String| NamesError::Format { path: path.to_owned(), what };
    let saved: Saved =
        serde_json::from_reader(BufReader::new(file)).map_err(|error| match error.io_error_kind() {
            Some(_) => NamesError::File { path: path.to_owned(), error: error.into() },
            None => format(error.to_string()),
        })?;
    if saved.walden_names != FORM {
        return Err(format(format!("its form is version {}, this Walden reads {FORM}", saved.walden_names)));
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
    for DatabaseRow { oid, name, tablespace } in saved.databases {
        names.databases.insert(oid, Database { name, tablespace });
    }
    names.tablespaces.extend(saved.tablespaces.into_iter().map(|row| (row.oid, row.name)));
    for row in saved.relations {
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
            is_required: row.is_required,
        });
        for (at, file) in row.files.into_iter().enumerate() {
            let Some((tablespace, database, file)) = file else { continue };
            let locator = RelFileLocator { tablespace, database, relation: file };
            names.files.insert(locator, NamedFile { relation, current: at == 0 });
        }
    }
    Ok(names)
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
    });
    array(&mut out, "databases", rows, ",")?;
    let mut tablespaces: Vec<_> = names.tablespaces.iter().collect();
    tablespaces.sort();
    let rows = tablespaces.into_iter().map(|(oid, name)| TablespaceRow { oid: *oid, name: name.clone() });
    array(&mut out, "tablespaces", rows, ",")?;

    let mut files = vec![Vec::new(); names.relations.len()];
    for (locator, file) in &names.files {
        let row = (locator.tablespace, locator.database, locator.relation);
        files[file.relation].push((!file.current, Some(row)));
    }
    // Whatever lost its OID to another relation comes first, so that reading in this order gives the same.
    let mut order: Vec<_> = (0..names.relations.len()).collect();
    order.sort_by_key(|index| (names.relations[*index].database, names.relations[*index].oid, *index));
    let rows = order.into_iter().map(|index| {
        let relation = &names.relations[index];
        let mut files = std::mem::take(&mut files[index]);
        files.sort();
        if files.first().is_some_and(|(is_old, _)| *is_old) {
            files.insert(0, (false, None));
        }
        RelationRow {
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
            is_required: relation.is_required,
            files: files.into_iter().map(|(_, file)| file).collect(),
        }
    });
    array(&mut out, "relations", rows, "")?;
    writeln!(out, "}}")
}

fn field(out: &mut impl Write, name: &str, value: &impl Serialize) -> io::Result<()> {
    writeln!(out, "\"{name}\": {},", serde_json::to_string(value)?)
}

/// One line per element: such a file can be searched and compared by line.
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
