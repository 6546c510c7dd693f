//! A base backup: a copy of a data directory, from which pages are read that the log tells only the changes of.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use walden_format::lsn::Lsn;
use walden_format::record::{Fork, RelFileLocator};
use walden_redo::page::PAGE_BYTES;
use walden_redo::store::BlockKey;
use walden_redo::{Page, checksum};
use walden_source::names::{DEFAULT_TABLESPACE, GLOBAL_TABLESPACE};

/// Blocks of a file before the next one begins (`RELSEG_SIZE`).
pub const FILE_BLOCKS: u32 = 131_072;

/// A base backup, or any copy of a data directory that was made while its server did not run.
#[derive(Debug)]
pub struct BaseBackup {
    folder: PathBuf,
    /// Its cluster.
    pub system_id: u64,
    /// Where the log has to be replayed from.
    pub redo: Lsn,
    /// Whether its pages have checksums, if that can be told.
    pub checksums: Option<bool>,
}

/// What became of a block in a backup.
#[derive(Debug)]
pub enum BasePage {
    /// Its page.
    Page(Box<Page>),
    /// The file is not there or ends before it.
    Missing,
    /// The page's checksum is wrong; the file.
    Damaged(PathBuf),
}

impl BaseBackup {
    /// Looks at a backup.
    pub fn open(folder: &Path) -> Result<BaseBackup> {
        let path = folder.join("global/pg_control");
        let control = fs::read(&path)
            .with_context(|| format!("{}: not a base backup: no global/pg_control", folder.display()))?;
        let control = Control::parse(&control)
            .with_context(|| format!("{}: not a pg_control of PostgreSQL 13 or later", path.display()))?;
        let label = folder.join("backup_label");
        let redo = match fs::read_to_string(&label) {
            Ok(text) => start_of_backup(&text)
                .with_context(|| format!("{}: no START WAL LOCATION", label.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if !control.is_shut_down {
                    bail!(
                        "{}: neither a backup (it has no backup_label) nor the data directory of a server that was \
                         stopped: the pages of a running server can't be told from torn ones",
                        folder.display()
                    );
                }
                control.redo
            }
            Err(error) => return Err(error).with_context(|| label.display().to_string()),
        };
        let (system_id, checksums) = (control.system_id, control.checksums);
        Ok(BaseBackup { folder: folder.to_owned(), system_id, redo, checksums })
    }

    /// Reads a block.
    pub fn read(&self, key: BlockKey) -> Result<BasePage> {
        let Some(path) = self.path(key)? else { return Ok(BasePage::Missing) };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BasePage::Missing),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let mut page = Box::<Page>::default();
        match file.read_exact_at(&mut page.0, offset_in_file(key.block)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(BasePage::Missing),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
        let is_checked = self.checksums == Some(true) || page.checksum() != 0 && self.checksums.is_none();
        if is_checked && !checksum::is_sound(&page, key.block) {
            return Ok(BasePage::Damaged(path));
        }
        Ok(BasePage::Page(page))
    }

    /// The file of a block; nothing if its tablespace is not there.
    fn path(&self, key: BlockKey) -> Result<Option<PathBuf>> {
        let name = file_name(key);
        let RelFileLocator { tablespace, database, .. } = key.relation;
        Ok(match tablespace {
            GLOBAL_TABLESPACE => Some(self.folder.join("global").join(name)),
            DEFAULT_TABLESPACE => Some(self.folder.join(format!("base/{database}")).join(name)),
            other => {
                // Below is a folder per version, such as PG_18_202506291; a backup has one.
                let folder = self.folder.join(format!("pg_tblspc/{other}"));
                let Ok(versions) = fs::read_dir(&folder) else { return Ok(None) };
                let mut paths = Vec::new();
                for version in versions {
                    let path = version?.path().join(database.to_string());
                    paths.extend(path.is_dir().then_some(path));
                }
                ensure!(paths.len() <= 1, "{}: more than one version's folder", folder.display());
                paths.pop().map(|path| path.join(name))
            }
        })
    }
}

/// Where a block is within its file.
pub fn offset_in_file(block: u32) -> u64 {
    u64::from(block % FILE_BLOCKS) * PAGE_BYTES as u64
}

/// The name of the file that a block is in.
pub fn file_name(key: BlockKey) -> String {
    let fork = match key.fork {
        Fork::MAIN => String::new(),
        fork => format!("_{fork}"),
    };
    let file = match key.block / FILE_BLOCKS {
        0 => String::new(),
        number => format!(".{number}"),
    };
    format!("{}{fork}{file}", key.relation.relation)
}

/// The path of the file that a block is in, below the data directory.
pub fn file_path(key: BlockKey) -> String {
    let (name, RelFileLocator { tablespace, database, .. }) = (file_name(key), key.relation);
    match tablespace {
        GLOBAL_TABLESPACE => format!("global/{name}"),
        DEFAULT_TABLESPACE => format!("base/{database}/{name}"),
        other => format!("pg_tblspc/{other}/PG_*/{database}/{name}"),
    }
}

/// What is needed of `pg_control`.
#[derive(Debug, PartialEq)]
struct Control {
    system_id: u64,
    redo: Lsn,
    is_shut_down: bool,
    checksums: Option<bool>,
}

/// `DB_SHUTDOWNED` and `DB_SHUTDOWNED_IN_RECOVERY`.
const SHUT_DOWN: [u32; 2] = [1, 2];
/// The version of `pg_control` since PostgreSQL 13, and the first of 19, which has more fields.
const VERSIONS: std::ops::Range<u32> = 1300..1900;
/// `FLOATFORMAT_VALUE`, which has the same place since 13.
const FLOAT: f64 = 1_234_567.0;
const FLOAT_AT: usize = 208;

impl Control {
    fn parse(bytes: &[u8]) -> Option<Control> {
        let word = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let long = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let version = word(8)?;
        let is_known = VERSIONS.contains(&version) && long(FLOAT_AT)? == FLOAT.to_bits();
        (version >= VERSIONS.start).then_some(())?;
        Some(Control {
            system_id: long(0)?,
            redo: Lsn(long(40)?),
            is_shut_down: SHUT_DOWN.contains(&word(16)?),
            checksums: if is_known { Some(word(FLOAT_AT + 44)? != 0) } else { None },
        })
    }
}

/// The redo pointer in a `backup_label`: `START WAL LOCATION: 0/2000028 (file ...)`.
fn start_of_backup(label: &str) -> Option<Lsn> {
    let line = label.lines().find_map(|line| line.strip_prefix("START WAL LOCATION: "))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_in_their_files() {
        let relation = |tablespace| RelFileLocator { tablespace, database: 5, relation: 16384 };
        let key = |tablespace, fork, block| BlockKey { relation: relation(tablespace), fork, block };
        assert_eq!(file_path(key(1663, Fork::MAIN, 131_071)), "base/5/16384");
        assert_eq!(file_path(key(1663, Fork::MAIN, 131_072)), "base/5/16384.1");
        assert_eq!(file_path(key(1663, Fork::VISIBILITY_MAP, 0)), "base/5/16384_vm");
        assert_eq!(file_path(key(1664, Fork::MAIN, 3)), "global/16384");
        assert_eq!(file_path(key(77, Fork::FREE_SPACE_MAP, 300_000)), "pg_tblspc/77/PG_*/5/16384_fsm.2");
        assert_eq!(offset_in_file(131_073), 8192);
    }

    #[test]
    fn a_label_says_where_the_backup_starts() {
        let label =
            "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nCHECKPOINT LOCATION: 0/2000080\n";
        assert_eq!(start_of_backup(label), Some(Lsn(0x200_0028)));
        assert_eq!(start_of_backup("LABEL: x\n"), None);
    }

    #[test]
    fn a_control_file_that_is_none_is_refused() {
        assert_eq!(Control::parse(&[]), None);
        assert_eq!(Control::parse(&[0; 8192]), None);
        let mut bytes = vec![0; 8192];
        bytes[0..8].copy_from_slice(&7_u64.to_le_bytes());
        bytes[8..12].copy_from_slice(&1800_u32.to_le_bytes());
        bytes[16] = 1;
        bytes[40..48].copy_from_slice(&0x28_u64.to_le_bytes());
        bytes[208..216].copy_from_slice(&FLOAT.to_bits().to_le_bytes());
        bytes[252] = 1;
        let expected = Control { system_id: 7, redo: Lsn(0x28), is_shut_down: true, checksums: Some(true) };
        assert_eq!(Control::parse(&bytes), Some(expected));
    }
}
