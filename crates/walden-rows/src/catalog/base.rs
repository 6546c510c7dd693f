//! The catalogs of a base backup or of a stopped server's data directory.
//!
//! This module does not decide which row version is valid at the WAL's start. A backup is copied while the
//! server runs, so its files may contain changes from the WAL. Each row version is returned with its
//! transactions, unless their outcome is known from the page.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use walden_format::record::{Fork, RelFileLocator};
use walden_format::transam::FIRST_NORMAL_XID;
use walden_redo::Page;
use walden_redo::page::ItemState;
use walden_redo::page::heap_tuple::{HeapTupleHeader, infomask};
use walden_source::datadir::DataDir;
use walden_source::names::{DEFAULT_TABLESPACE, GLOBAL_TABLESPACE};

use super::layout::{Layout, oid};
use super::row::{Row, read};
use crate::encoding::Encoding;

/// The transaction that created or deleted a row version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// No transaction, or one that was aborted.
    Nobody,
    /// A transaction older than all relevant transactions.
    Frozen,
    /// A transaction, and whether it committed according to the backup.
    Transaction { xid: u32, committed: bool },
}

/// A version of a catalog's row.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Version {
    pub row: Row,
    pub inserted: By,
    pub deleted: By,
}

/// The catalogs of a database.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub tablespace: u32,
    pub encoding: Encoding,
    pub versions: Vec<Version>,
    /// Files of the catalogs, by their OIDs.
    pub files: FxHashMap<u32, RelFileLocator>,
}

impl Version {
    /// Whether the version was valid when the files were copied.
    pub fn is_current(&self) -> bool {
        let is_done = |by| match by {
            By::Nobody => false,
            By::Frozen => true,
            By::Transaction { committed, .. } => committed,
        };
        is_done(self.inserted) && !is_done(self.deleted)
    }
}

/// Databases of a data directory: their OIDs and tablespaces.
pub(crate) fn databases(folder: &Path) -> io::Result<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    for database in entries(&folder.join("base"))?.iter().filter_map(|path| number(path)) {
        found.push((database, DEFAULT_TABLESPACE));
    }
    for tablespace in entries(&folder.join("pg_tblspc"))? {
        let Some(oid) = number(&tablespace) else { continue };
        for version in entries(&tablespace)? {
            let has_catalogs = |path: &&PathBuf| path.join("pg_filenode.map").is_file();
            let databases = entries(&version)?;
            let databases = databases.iter().filter(has_catalogs).filter_map(|path| number(path));
            found.extend(databases.map(|database| (database, oid)));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// A row of `pg_database`.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseRow {
    pub name: String,
    pub encoding: Encoding,
}

/// The names and encodings of databases.
pub(crate) fn database_rows(data: &mut DataDir) -> io::Result<FxHashMap<u32, DatabaseRow>> {
    const PG_DATABASE: u32 = 1262;
    /// `NAMEDATALEN`.
    const NAME_BYTES: usize = 64;
    const OID_BYTES: usize = 4;
    let mapped = mapped_files(&data.path().join("global/pg_filenode.map"))?;
    let file = mapped.iter().find(|(oid, _)| *oid == PG_DATABASE).map_or(PG_DATABASE, |(_, file)| *file);
    let file = RelFileLocator { tablespace: GLOBAL_TABLESPACE, database: 0, relation: file };
    let mut clog = CommitLog::new(data.path());
    let mut found = FxHashMap::default();
    read_all(data, file, &mut clog, |tuple, _| {
        // In every version of PostgreSQL, the first columns of `pg_database` are the OID, the name, the owner
        // and the encoding.
        let hoff = HeapTupleHeader::parse(tuple).map_or(0, |header| usize::from(header.hoff()));
        let Some((oid, rest)) = tuple.get(hoff..).and_then(|row| row.split_first_chunk()) else { return };
        let Some((name, rest)) = rest.split_at_checked(NAME_BYTES) else { return };
        let Some(encoding) = rest.get(OID_BYTES..).and_then(|rest| rest.first_chunk()) else { return };
        let encoding = Encoding::from_number(u32::from_le_bytes(*encoding)).unwrap_or_default();
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        // The encoding of this name is unknown: the name has the encoding of the database in which it was
        // created.
        let name = String::from_utf8_lossy(&name[..end]).into_owned();
        found.insert(u32::from_le_bytes(*oid), DatabaseRow { name, encoding });
    })?;
    Ok(found)
}

/// Reads the rows of a database's catalogs for which `is_wanted` returns true; `pg_class` and `pg_namespace`
/// come first.
pub(crate) fn load(
    data: &mut DataDir,
    (database, tablespace): (u32, u32),
    layouts: &FxHashMap<u32, Layout>,
    encoding: Encoding,
    mut is_wanted: impl FnMut(&Row, &[Version]) -> bool,
) -> io::Result<Loaded> {
    let mut clog = CommitLog::new(data.path());
    let mapped = mapped_files(&map_path(data.path(), database, tablespace)?)?;
    let locator = |relation| RelFileLocator { tablespace, database, relation };
    let mut files: FxHashMap<u32, RelFileLocator> =
        mapped.iter().map(|(oid, file)| (*oid, locator(*file))).collect();
    let mut loaded = Loaded { tablespace, encoding, versions: Vec::new(), files: FxHashMap::default() };
    // The rows that determine which columns are wanted come first.
    let later =
        [oid::PG_INHERITS, oid::PG_TYPE, oid::PG_ATTRIBUTE, oid::PG_ENUM, oid::PG_INDEX, oid::PG_RANGE];
    for catalog in [oid::PG_CLASS, oid::PG_NAMESPACE].into_iter().chain(later) {
        // Without a row in pg_class, a catalog is in the file that initdb assigned.
        let file = *files.entry(catalog).or_insert(locator(catalog));
        read_all(data, file, &mut clog, |tuple, by| {
            if let Some(row) = read(catalog, layouts, encoding, tuple) {
                let [inserted, deleted] = by;
                let version = Version { row, inserted, deleted };
                if let Row::Class(class) = &version.row
                    && version.is_current()
                    && class.file != 0
                    && layouts.contains_key(&class.oid)
                {
                    files.insert(class.oid, locator(class.file));
                }
                if is_wanted(&version.row, &loaded.versions) {
                    loaded.versions.push(version);
                }
            }
        })?;
    }
    files.retain(|oid, _| layouts.contains_key(oid));
    loaded.files = files;
    Ok(loaded)
}

/// Reads each heap tuple of a file, with the transactions that created and deleted it.
fn read_all(
    data: &mut DataDir,
    file: RelFileLocator,
    clog: &mut CommitLog,
    mut each: impl FnMut(&[u8], [By; 2]),
) -> io::Result<()> {
    let mut page = Page::default();
    for block in 0..u32::MAX {
        if !data.read_page(file, Fork::MAIN, block, &mut page.0)? {
            return Ok(());
        }
        // The WAL contains an image of a torn page.
        if !data.checksum_holds(block, &page) {
            continue;
        }
        for number in 1..=page.items() {
            let is_normal =
                page.line_pointer(number).is_some_and(|pointer| pointer.state() == ItemState::Normal);
            let Some(tuple) = page.item(number).filter(|_| is_normal) else { continue };
            let Some(header) = HeapTupleHeader::parse(tuple) else { continue };
            let by = [inserter(&header, clog)?, deleter(&header, clog)?];
            each(tuple, by);
        }
    }
    Ok(())
}

fn inserter(header: &HeapTupleHeader<'_>, clog: &mut CommitLog) -> io::Result<By> {
    if header.is_xmin_frozen() {
        return Ok(By::Frozen);
    }
    if header.infomask() & infomask::HEAP_XMIN_INVALID != 0 {
        return Ok(By::Nobody);
    }
    clog.by(header.xmin())
}

fn deleter(header: &HeapTupleHeader<'_>, clog: &mut CommitLog) -> io::Result<By> {
    let bits = header.infomask();
    let is_lock = bits & infomask::HEAP_XMAX_LOCK_ONLY != 0
        || bits & (infomask::HEAP_XMAX_IS_MULTI | infomask::HEAP_LOCK_MASK) == infomask::HEAP_XMAX_EXCL_LOCK;
    // A catalog row has several lockers only while it is not being changed.
    if bits & (infomask::HEAP_XMAX_INVALID | infomask::HEAP_XMAX_IS_MULTI) != 0 || is_lock {
        return Ok(By::Nobody);
    }
    clog.by(header.xmax())
}

/// Path of the map of a database's catalogs.
fn map_path(folder: &Path, database: u32, tablespace: u32) -> io::Result<PathBuf> {
    if tablespace == DEFAULT_TABLESPACE {
        return Ok(folder.join(format!("base/{database}/pg_filenode.map")));
    }
    let versions = entries(&folder.join(format!("pg_tblspc/{tablespace}")))?;
    let maps = versions.iter().map(|version| version.join(format!("{database}/pg_filenode.map")));
    Ok(maps.into_iter().find(|path| path.is_file()).unwrap_or_default())
}

/// The files of the mapped catalogs (`RelMapFile`): magic, number of mappings, pairs of OID and file.
fn mapped_files(path: &Path) -> io::Result<Vec<(u32, u32)>> {
    let wrong =
        |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()));
    let bytes = fs::read(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    mappings(&bytes).ok_or_else(|| wrong("expected the map of a database's catalogs (0x592717)"))
}

/// The pairs of OID and file of a map.
pub(crate) fn mappings(bytes: &[u8]) -> Option<Vec<(u32, u32)>> {
    const MAGIC: u32 = 0x0059_2717;
    let (words, _) = bytes.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    match words.split_first_chunk() {
        Some((&[MAGIC, count], pairs)) => {
            let (pairs, _) = pairs.as_chunks::<2>();
            Some(pairs.iter().take(count as usize).map(|&[oid, file]| (oid, file)).collect())
        }
        _ => None,
    }
}

/// The commit status of transactions (`pg_xact`): 2 bits each.
struct CommitLog {
    folder: PathBuf,
    segment: Option<(u32, Vec<u8>)>,
}

impl CommitLog {
    fn new(data: &Path) -> CommitLog {
        CommitLog { folder: data.join("pg_xact"), segment: None }
    }

    fn by(&mut self, xid: u32) -> io::Result<By> {
        /// Transactions in a segment: 4 in a byte, 32 pages.
        const IN_SEGMENT: u32 = 4 * 8192 * 32;
        match xid {
            0 => return Ok(By::Nobody),
            1..FIRST_NORMAL_XID => return Ok(By::Frozen),
            _ => {}
        }
        let number = xid / IN_SEGMENT;
        if self.segment.as_ref().is_none_or(|(known, _)| *known != number) {
            let bytes = match fs::read(self.folder.join(format!("{number:04X}"))) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(error) => return Err(error),
            };
            self.segment = Some((number, bytes));
        }
        let bytes = self.segment.as_ref().map_or(&[][..], |(_, bytes)| bytes);
        let at = xid % IN_SEGMENT;
        let status = bytes.get(at as usize / 4).map_or(0, |byte| byte >> (at % 4 * 2) & 3);
        Ok(match status {
            2 => By::Nobody,
            status => By::Transaction { xid, committed: status == 1 },
        })
    }
}
