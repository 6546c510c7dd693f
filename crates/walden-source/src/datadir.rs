//! The files of a stopped server or of a plain base backup: its `pg_control`, and the pages of its relations.
//!
//! ```text
//! global/REL              shared relations (tablespace 1664)
//! base/DB/REL             the default tablespace (1663)
//! pg_tblspc/SPC/PG_<version>_<catalog version>/DB/REL
//!     REL, REL_fsm, REL_vm, REL_init   the forks; files after the first one of a fork end with .1, .2 ...
//! ```

mod restart_point;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use walden_format::crc::crc32c_append;
use walden_format::lsn::Lsn;
use walden_format::record::{Fork, RelFileLocator};
use walden_redo::page::checksum;
use walden_redo::{BasePages, BlockKey, HintSettings};
use walden_redo::{PAGE_BYTES, Page};

use crate::denied::with_user;
use crate::names::{DEFAULT_TABLESPACE, GLOBAL_TABLESPACE};
use crate::regular_file;

pub use restart_point::RestartPoint;

/// Files that are held open at most.
const MAX_OPEN_FILES: usize = 64;
/// A data directory that no server is writing to, or a base backup in plain format.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// The major version in the file `PG_VERSION`.
    version: String,
    control: ControlFile,
    backup_start: Option<Lsn>,
    open: FxHashMap<FileKey, OpenFile>,
    clock: u64,
}

/// Why a folder cannot be read as a data directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// It is not a data directory.
    #[error("{}: not a data directory: {missing} is not there", path.display())]
    NotOne {
        /// The folder.
        path: PathBuf,
        /// The missing file.
        missing: &'static str,
    },
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// Its `pg_control` cannot be used.
    #[error("{}: {error}", path.display())]
    Control {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        error: ControlError,
    },
    /// Its `backup_label` cannot be used.
    #[error("{}: {what}", path.display())]
    Label {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        what: &'static str,
    },
    /// A server may be writing to it.
    #[error(
        "{}: neither a backup (it has no backup_label) nor the data directory of a server that was stopped (it is {state}): its \
         pages may be half written",
        path.display()
    )]
    Running {
        /// The folder.
        path: PathBuf,
        /// The state of the server.
        state: DatabaseState,
    },
}

impl DataDirError {
    /// The problem with the label of an incremental backup.
    pub const INCREMENTAL: &str = "expected a full backup, found an incremental one";
}

walden_format::diagnostics! { DataDirError {
    Self::NotOne { .. } => "data-directory-missing": "name a base backup in plain format (pg_basebackup -D FOLDER), or the data directory of a stopped server: both have PG_VERSION and \
         global/pg_control",
    Self::Io { .. } => none,
    Self::Control { error: ControlError::Version(_), .. } => "data-directory-version": "use a Walden that knows the version of this server",
    Self::Control { error: ControlError::PageSize(_), .. } => "data-directory-page-size": "servers that were built with another BLCKSZ are not supported here; walden explain and archive read their WAL",
    Self::Label { what: Self::INCREMENTAL, .. } => "backup-incremental": "combine it with the backups before it, and name the result: pg_combinebackup FULL INCREMENTAL... -o FOLDER",
    Self::Control { .. } | Self::Label { .. } => "data-directory-damaged": "use another base backup: this one is damaged or incomplete",
    Self::Running { .. } => "data-directory-running": "make a base backup (pg_basebackup -D FOLDER) and name that, or stop the server first (pg_ctl stop -m fast)",
} }

/// A clone reads the same files, and opens them itself.
impl Clone for DataDir {
    fn clone(&self) -> DataDir {
        let DataDir { path, version, control, backup_start, .. } = self;
        DataDir {
            path: path.clone(),
            version: version.clone(),
            control: *control,
            backup_start: *backup_start,
            open: FxHashMap::default(),
            clock: 0,
        }
    }
}

impl DataDir {
    /// Reads the control file and the backup label of a folder.
    ///
    /// # Errors
    /// It is not a data directory, is of an unknown version, or has pages of another size than 8 kB.
    pub fn open(path: &Path) -> Result<DataDir, DataDirError> {
        let read = |name: &'static str| {
            let file = path.join(name);
            fs::read(&file).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    DataDirError::NotOne { path: path.into(), missing: name }
                }
                _ => {
                    let error = with_user(&file, error);
                    DataDirError::Io { path: file, error }
                }
            })
        };
        let version = String::from_utf8_lossy(&read("PG_VERSION")?).trim().to_owned();
        let control = ControlFile::parse(&read("global/pg_control")?)
            .map_err(|error| DataDirError::Control { path: path.join("global/pg_control"), error })?;
        let backup_start = match read("backup_label") {
            Ok(label) => Some(
                start_of_backup(&label)
                    .map_err(|what| DataDirError::Label { path: path.join("backup_label"), what })?,
            ),
            Err(DataDirError::NotOne { .. }) => None,
            Err(error) => return Err(error),
        };
        let open = FxHashMap::default();
        Ok(DataDir { path: path.into(), version, control, backup_start, open, clock: 0 })
    }

    /// Opens a base backup, or the data directory of a stopped server.
    ///
    /// # Errors
    /// As [`DataDir::open`], and [`DataDirError::Running`] if its pages may be half written.
    pub fn open_at_rest(path: &Path) -> Result<DataDir, DataDirError> {
        let data = DataDir::open(path)?;
        let state = data.control.state;
        match data.is_backup() || state.is_shut_down() {
            true => Ok(data),
            false => Err(DataDirError::Running { path: path.into(), state }),
        }
    }

    /// Returns the path of the data directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of its `pg_control`.
    pub fn control(&self) -> &ControlFile {
        &self.control
    }

    /// Returns the position from which WAL has to be replayed to bring the pages up to date: the backup's
    /// start, or the last checkpoint's redo pointer.
    pub fn redo_from(&self) -> Lsn {
        self.backup_start.unwrap_or(self.control.redo)
    }

    /// Returns whether the files are a backup, whose pages become consistent by replaying WAL from
    /// [`DataDir::redo_from`] on.
    pub fn is_backup(&self) -> bool {
        self.backup_start.is_some()
    }

    /// Reads a page. Returns false if the page does not exist, because the file is missing or ends before it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_page(
        &mut self,
        relation: RelFileLocator,
        fork: Fork,
        block: u32,
        page: &mut [u8; PAGE_BYTES],
    ) -> io::Result<bool> {
        let per_segment = self.control.blocks_per_segment;
        let key = FileKey { relation, fork, segment: block / per_segment };
        let Some(file) = self.file(key)? else { return Ok(false) };
        let mut filled = 0;
        let offset = u64::from(block % per_segment) * PAGE_BYTES as u64;
        while filled < PAGE_BYTES {
            match file.read_at(&mut page[filled..], offset + filled as u64) {
                Ok(0) => return Ok(false),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.named(key, error)),
            }
        }
        Ok(true)
    }

    /// Returns the number of complete pages of a fork; 0 if the fork does not exist.
    ///
    /// # Errors
    /// A file's length cannot be read.
    pub fn blocks(&mut self, relation: RelFileLocator, fork: Fork) -> io::Result<u32> {
        let per_segment = self.control.blocks_per_segment;
        for segment in 0..=u32::MAX / per_segment {
            let key = FileKey { relation, fork, segment };
            let Some(file) = self.file(key)? else { return Ok(segment.saturating_mul(per_segment)) };
            let pages = file.metadata().map_err(|error| self.named(key, error))?.len() / PAGE_BYTES as u64;
            let pages = u32::try_from(pages).unwrap_or(u32::MAX);
            if pages < per_segment {
                return Ok(segment.saturating_mul(per_segment).saturating_add(pages));
            }
        }
        Ok(u32::MAX)
    }

    /// Returns whether a page's checksum is right. Always true without checksums, and for pages that were
    /// never initialized.
    pub fn checksum_holds(&self, block: u32, page: &Page) -> bool {
        self.control.data_checksum_version == 0 || checksum::is_sound(page, block)
    }

    /// The major version, as the file `PG_VERSION` has it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The file that holds a segment of a fork, opened now or before; nothing if it is not there.
    fn file(&mut self, key: FileKey) -> io::Result<Option<&File>> {
        self.clock += 1;
        let open = match self.open.remove(&key) {
            Some(open) => open,
            None => self.open_file(key)?,
        };
        let open = self.open.entry(key).insert_entry(OpenFile { used: self.clock, ..open }).into_mut();
        Ok(open.file.as_ref())
    }

    /// Opens a file. Closes the least recently used one if there are too many.
    fn open_file(&mut self, key: FileKey) -> io::Result<OpenFile> {
        let file = match File::open(self.file_path(key)) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(self.named(key, error)),
        };
        if self.open.len() >= MAX_OPEN_FILES {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.used).map(|(key, _)| *key);
            oldest.map(|oldest| self.open.remove(&oldest));
        }
        Ok(OpenFile { file, used: 0 })
    }

    fn file_path(&self, key: FileKey) -> PathBuf {
        let RelFileLocator { tablespace, database, relation } = key.relation;
        let folder = match tablespace {
            GLOBAL_TABLESPACE => self.path.join("global"),
            DEFAULT_TABLESPACE => self.path.join(format!("base/{database}")),
            _ => {
                let (version, catalog) = (&self.version, self.control.catalog_version);
                self.path.join(format!("pg_tblspc/{tablespace}/PG_{version}_{catalog}/{database}"))
            }
        };
        let fork = match key.fork {
            Fork::MAIN => "",
            Fork::FREE_SPACE_MAP => "_fsm",
            Fork::VISIBILITY_MAP => "_vm",
            Fork::INIT => "_init",
            // PostgreSQL has no file of this name.
            _ => "_unknown",
        };
        match key.segment {
            0 => folder.join(format!("{relation}{fork}")),
            segment => folder.join(format!("{relation}{fork}.{segment}")),
        }
    }

    fn named(&self, key: FileKey, error: io::Error) -> io::Error {
        let path = self.file_path(key);
        let kind = error.kind();
        io::Error::new(kind, format!("{}: {}", path.display(), with_user(&path, error)))
    }
}

/// A page with a wrong checksum counts as missing: a base backup may have copied it half written, and then
/// the WAL has a full-page image of it before any record that needs it.
impl BasePages for DataDir {
    fn read(&mut self, key: BlockKey, page: &mut Page) -> io::Result<bool> {
        if !self.read_page(key.relation, key.fork, key.block, &mut page.0)? {
            return Ok(false);
        }
        Ok(self.checksum_holds(key.block, page))
    }

    fn may_be_torn(&self) -> bool {
        self.is_backup() && self.control.data_checksum_version == 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct FileKey {
    relation: RelFileLocator,
    fork: Fork,
    segment: u32,
}

#[derive(Debug)]
struct OpenFile {
    /// `None` if the file does not exist.
    file: Option<File>,
    used: u64,
}

/// Returns where a backup starts according to `backup_label` (`build_backup_content`).
fn start_of_backup(label: &[u8]) -> Result<Lsn, &'static str> {
    let label = String::from_utf8_lossy(label);
    if label.lines().any(|line| line.starts_with("INCREMENTAL FROM")) {
        return Err(DataDirError::INCREMENTAL);
    }
    let start = label.lines().find_map(|line| line.strip_prefix("START WAL LOCATION: "));
    let start = start.and_then(|line| line.split_whitespace().next()).and_then(|lsn| lsn.parse().ok());
    start.ok_or("it does not say where the backup starts")
}

/// The relevant fields of a `pg_control`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlFile {
    /// The system identifier, which is also in the first page header of each segment.
    pub system_identifier: u64,
    /// The catalog version: part of the name of a tablespace's folder.
    pub catalog_version: u32,
    /// `ControlFileData.state`: whether the server was shut down, in recovery or running.
    pub state: DatabaseState,
    /// `checkPoint`: LSN of the last checkpoint record.
    pub checkpoint: Lsn,
    /// The checkpoint's redo pointer, from which WAL must be replayed.
    pub redo: Lsn,
    /// The timeline of the checkpoint.
    pub timeline: u32,
    /// When the checkpoint started, in seconds since 1970-01-01 UTC.
    pub checkpoint_time: i64,
    /// Most pages of a file of a relation; further pages are in the next file.
    pub blocks_per_segment: u32,
    /// `xlog_seg_size`: bytes of a WAL segment.
    pub wal_segment_bytes: u32,
    /// `data_checksum_version`: 0 if pages have no checksums.
    pub data_checksum_version: u32,
    /// The server's setting of `wal_log_hints`.
    pub wal_log_hints: bool,
    /// `minRecoveryPoint`: a standby's files are consistent from this position on; 0 if the server was none.
    pub min_recovery_point: Lsn,
    /// The server's `track_commit_timestamp`.
    pub track_commit_timestamp: bool,
    /// Settings that a server which recovers needs to be at least as large.
    pub sizes: SharedSizes,
}

/// Settings that determine the size of a server's shared memory (`ControlFileData` has them for standbys).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names of the server's settings")]
pub struct SharedSizes {
    pub max_connections: u32,
    pub max_worker_processes: u32,
    pub max_wal_senders: u32,
    pub max_prepared_transactions: u32,
    pub max_locks_per_transaction: u32,
}

/// The state of a server when it last wrote `pg_control` (`DBState`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatabaseState {
    /// It was stopped, and the files are up to date.
    ShutDown,
    /// It was stopped as a standby.
    ShutDownInRecovery,
    /// Any other state, by its number.
    Other(u32),
}

const DB_IN_ARCHIVE_RECOVERY: u32 = 5;

impl DatabaseState {
    /// Returns whether no server writes the files.
    pub fn is_shut_down(self) -> bool {
        matches!(self, DatabaseState::ShutDown | DatabaseState::ShutDownInRecovery)
    }

    /// Returns whether the server was a standby, or recovered from an archive.
    pub fn is_standby(self) -> bool {
        matches!(self, DatabaseState::ShutDownInRecovery | DatabaseState::Other(DB_IN_ARCHIVE_RECOVERY))
    }
}

impl fmt::Display for DatabaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DatabaseState::ShutDown => "shut down",
            DatabaseState::ShutDownInRecovery => "shut down in recovery",
            DatabaseState::Other(0) => "starting up",
            DatabaseState::Other(3) => "shutting down",
            DatabaseState::Other(4) => "in crash recovery",
            DatabaseState::Other(DB_IN_ARCHIVE_RECOVERY) => "in archive recovery",
            DatabaseState::Other(6) => "in production",
            DatabaseState::Other(state) => return write!(f, "in state {state}"),
        })
    }
}

/// Why a `pg_control` cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ControlError {
    #[error("the file is too short: {0} bytes")]
    Short(usize),
    #[error("its format {0} is not known here (PostgreSQL 13 to 19 are)")]
    Version(u32),
    #[error("the server runs on a big-endian machine, which Walden does not read")]
    BigEndian,
    #[error(
        "the server runs on a 32-bit machine that aligns to {0} bytes (maxAlign), which Walden does not read"
    )]
    Alignment(u32),
    #[error("its checksum is wrong: stored {stored:08x}, computed {computed:08x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("data pages have {0} bytes; only pages of 8192 bytes are read")]
    PageSize(u32),
    #[error("cannot use a file length of {0} pages: expected a power of two")]
    SegmentSize(u32),
    #[error("cannot store a checkpoint of {found} bytes: expected {expected} bytes in this version")]
    Checkpoint { expected: usize, found: usize },
}

/// The fields whose offsets differ between versions of the format (`ControlFileData` in `pg_control.h`).
struct ControlLayout {
    /// `PG_CONTROL_VERSION`
    version: u32,
    checkpoint_time: usize,
    wal_log_hints: usize,
    page_bytes: usize,
    blocks_per_segment: usize,
    wal_segment_bytes: usize,
    data_checksum_version: usize,
    /// The CRC-32C of all bytes before it.
    crc: usize,
}

const CONTROL_LAYOUTS: [ControlLayout; 4] = [
    // 13 to 16
    ControlLayout {
        version: 1300,
        checkpoint_time: 104,
        wal_log_hints: 176,
        page_bytes: 216,
        blocks_per_segment: 220,
        wal_segment_bytes: 228,
        data_checksum_version: 252,
        crc: 288,
    },
    // 17: `wal_level` in former padding of a checkpoint
    ControlLayout {
        version: 1700,
        checkpoint_time: 104,
        wal_log_hints: 176,
        page_bytes: 216,
        blocks_per_segment: 220,
        wal_segment_bytes: 228,
        data_checksum_version: 252,
        crc: 288,
    },
    // 18: default_char_signedness
    ControlLayout {
        version: 1800,
        checkpoint_time: 104,
        wal_log_hints: 176,
        page_bytes: 216,
        blocks_per_segment: 220,
        wal_segment_bytes: 228,
        data_checksum_version: 252,
        crc: 292,
    },
    // 19: a checkpoint of 96 bytes, `slru_pages_per_segment`, `data_checksum_version_init` before
    // `data_checksum_version`
    ControlLayout {
        version: 1905,
        checkpoint_time: 112,
        wal_log_hints: 184,
        page_bytes: 224,
        blocks_per_segment: 228,
        wal_segment_bytes: 240,
        data_checksum_version: 268,
        crc: 308,
    },
];

fn unknown_format(version: u32) -> ControlError {
    match CONTROL_LAYOUTS.iter().any(|layout| layout.version == version.swap_bytes()) {
        true => ControlError::BigEndian,
        false => ControlError::Version(version),
    }
}

/// Returns the server's alignment, `maxAlign`, in any layout. It is just before `floatFormat`, which is
/// always `FLOATFORMAT_VALUE` (`pg_control.h`).
fn max_align(bytes: &[u8]) -> Option<u32> {
    const FLOATFORMAT_VALUE: f64 = 1_234_567.0;
    let fields = bytes.windows(12).step_by(4);
    let mut fields = fields.filter(|fields| fields[4..] == FLOATFORMAT_VALUE.to_le_bytes());
    fields.next()?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

impl ControlFile {
    /// The path of the file in a data directory.
    pub const PATH: &str = "global/pg_control";

    /// Reads that of a data directory. Returns `None` if it cannot be read.
    pub fn read_data_directory(data: &Path) -> Option<ControlFile> {
        /// Many times its size in every version.
        const MAX_BYTES: u64 = 1 << 20;
        ControlFile::parse(&regular_file::read(&data.join(ControlFile::PATH), MAX_BYTES).ok()?).ok()
    }

    /// Parses a `pg_control`.
    ///
    /// # Errors
    /// Its format is unknown, its checksum is wrong, or its pages have another size.
    pub fn parse(bytes: &[u8]) -> Result<ControlFile, ControlError> {
        let short = || ControlError::Short(bytes.len());
        let u32_at = |at: usize| {
            bytes
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok())
                .map(u32::from_le_bytes)
                .ok_or_else(short)
        };
        let u64_at = |at: usize| Ok(u64::from(u32_at(at)?) | u64::from(u32_at(at + 4)?) << 32);
        let version = u32_at(8)?;
        let layout = CONTROL_LAYOUTS.iter().find(|layout| layout.version == version);
        let layout = layout.ok_or_else(|| unknown_format(version))?;
        let stored = u32_at(layout.crc)?;
        let computed = crc32c_append(0, &bytes[..layout.crc]);
        if stored != computed {
            let alignment = max_align(bytes).filter(|&alignment| alignment == 4).map(ControlError::Alignment);
            return Err(alignment.unwrap_or(ControlError::Checksum { stored, computed }));
        }
        let page_bytes = u32_at(layout.page_bytes)?;
        if page_bytes as usize != PAGE_BYTES {
            return Err(ControlError::PageSize(page_bytes));
        }
        let blocks_per_segment = u32_at(layout.blocks_per_segment)?;
        if blocks_per_segment == 0 {
            return Err(ControlError::SegmentSize(blocks_per_segment));
        }
        Ok(ControlFile {
            system_identifier: u64_at(0)?,
            catalog_version: u32_at(12)?,
            state: match u32_at(16)? {
                1 => DatabaseState::ShutDown,
                2 => DatabaseState::ShutDownInRecovery,
                state => DatabaseState::Other(state),
            },
            checkpoint: Lsn(u64_at(32)?),
            redo: Lsn(u64_at(40)?),
            timeline: u32_at(48)?,
            checkpoint_time: u64_at(layout.checkpoint_time)?.cast_signed(),
            blocks_per_segment,
            wal_segment_bytes: u32_at(layout.wal_segment_bytes)?,
            data_checksum_version: u32_at(layout.data_checksum_version)?,
            wal_log_hints: bytes[layout.wal_log_hints] != 0,
            min_recovery_point: Lsn(u64_at(layout.wal_log_hints - restart_point::MIN_RECOVERY_POINT)?),
            track_commit_timestamp: bytes[layout.wal_log_hints + restart_point::TRACK_COMMIT_TIMESTAMP] != 0,
            // The fields behind it, in this order in every version.
            sizes: SharedSizes {
                max_connections: u32_at(layout.wal_log_hints + 4)?,
                max_worker_processes: u32_at(layout.wal_log_hints + 8)?,
                max_wal_senders: u32_at(layout.wal_log_hints + 12)?,
                max_prepared_transactions: u32_at(layout.wal_log_hints + 16)?,
                max_locks_per_transaction: u32_at(layout.wal_log_hints + 20)?,
            },
        })
    }

    /// Returns the settings that decide whether the first change of a page after a checkpoint is logged if it
    /// only changes hint bits (`XLogHintBitIsNeeded`).
    pub fn hint_settings(&self) -> HintSettings {
        HintSettings { data_checksums: self.data_checksum_version != 0, wal_log_hints: self.wal_log_hints }
    }
}

#[cfg(test)]
mod tests {
    use walden_format::payload::xlog::{ParameterChange, WalLevel};

    use super::*;

    /// Returns a valid `pg_control` of a version.
    fn control(version: u32) -> Vec<u8> {
        let layout = CONTROL_LAYOUTS.iter().find(|layout| layout.version == version).unwrap();
        let mut bytes = vec![0; 8192];
        let mut put = |at: usize, value: u64, width: usize| {
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        };
        put(0, 0x1122_3344_5566_7788, 8);
        put(8, version.into(), 4);
        put(12, 202_107_181, 4);
        put(16, 1, 4);
        put(32, 0x0200_0060, 8);
        put(40, 0x0200_0028, 8);
        put(48, 3, 4);
        put(layout.checkpoint_time, 1_795_000_000, 8);
        put(layout.page_bytes, 8192, 4);
        put(layout.blocks_per_segment, 131_072, 4);
        put(layout.wal_segment_bytes, 16 << 20, 4);
        put(layout.data_checksum_version, 1, 4);
        put(layout.wal_log_hints, 1, 1);
        for (index, size) in [100, 8, 10, 2, 64].into_iter().enumerate() {
            put(layout.wal_log_hints + 4 + 4 * index, size, 4);
        }
        seal(bytes)
    }

    fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
        let version = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        if let Some(layout) = CONTROL_LAYOUTS.iter().find(|layout| layout.version == version) {
            let crc = crc32c_append(0, &bytes[..layout.crc]);
            bytes[layout.crc..layout.crc + 4].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn each_format_of_pg_control_is_read() {
        for layout in CONTROL_LAYOUTS {
            let read = ControlFile::parse(&control(layout.version)).unwrap();
            assert_eq!(
                read,
                ControlFile {
                    system_identifier: 0x1122_3344_5566_7788,
                    catalog_version: 202_107_181,
                    state: DatabaseState::ShutDown,
                    checkpoint: Lsn(0x0200_0060),
                    redo: Lsn(0x0200_0028),
                    timeline: 3,
                    checkpoint_time: 1_795_000_000,
                    blocks_per_segment: 131_072,
                    wal_segment_bytes: 16 << 20,
                    data_checksum_version: 1,
                    wal_log_hints: true,
                    min_recovery_point: Lsn(0),
                    track_commit_timestamp: false,
                    sizes: SharedSizes {
                        max_connections: 100,
                        max_worker_processes: 8,
                        max_wal_senders: 10,
                        max_prepared_transactions: 2,
                        max_locks_per_transaction: 64,
                    },
                }
            );
        }
    }

    #[test]
    fn a_pg_control_that_is_cut_or_changed_is_refused() {
        let whole = control(1800);
        for len in 0..296 {
            assert_eq!(ControlFile::parse(&whole[..len]), Err(ControlError::Short(len)));
        }
        for at in (0..8).chain(12..292) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert!(matches!(ControlFile::parse(&bytes), Err(ControlError::Checksum { .. })), "byte {at}");
        }
        let mut other = whole.clone();
        other[8..12].copy_from_slice(&960u32.to_le_bytes());
        assert_eq!(ControlFile::parse(&other), Err(ControlError::Version(960)));
        let mut large = whole;
        large[216..220].copy_from_slice(&32768u32.to_le_bytes());
        assert_eq!(ControlFile::parse(&seal(large)), Err(ControlError::PageSize(32768)));
    }

    #[test]
    fn a_pg_control_of_another_machine_is_recognized() {
        let mut big = control(1800);
        big[8..12].copy_from_slice(&1800_u32.to_be_bytes());
        assert_eq!(ControlFile::parse(&big), Err(ControlError::BigEndian));
        // On 32-bit x86, the preceding fields are shorter.
        for (version, at) in [(1300, 184), (1700, 188)] {
            let mut bytes = control(version);
            bytes[at..at + 4].copy_from_slice(&4_u32.to_le_bytes());
            bytes[at + 4..at + 12].copy_from_slice(&1_234_567_f64.to_le_bytes());
            assert_eq!(ControlFile::parse(&bytes), Err(ControlError::Alignment(4)));
            bytes[at] = 8;
            assert!(matches!(ControlFile::parse(&bytes), Err(ControlError::Checksum { .. })));
        }
    }

    #[test]
    fn a_restart_point_is_written_into_each_format_of_pg_control() {
        for layout in CONTROL_LAYOUTS {
            let mut bytes = control(layout.version);
            let mut data = vec![0; layout.wal_log_hints - 48 - 40];
            data[..8].copy_from_slice(&0x0300_0028_u64.to_le_bytes());
            data[8..12].copy_from_slice(&2_u32.to_le_bytes());
            let settings = ParameterChange {
                max_connections: 200,
                max_worker_processes: 9,
                max_wal_senders: Some(11),
                max_prepared_transactions: 3,
                max_locks_per_transaction: 65,
                wal_level: WalLevel::Replica,
                wal_log_hints: false,
                track_commit_timestamp: true,
            };
            let (checkpoint, end) = (Lsn(0x0300_0060), Lsn(0x0300_00D8));
            let point = RestartPoint {
                checkpoint,
                data: &data,
                end,
                timeline: 2,
                settings: Some(&settings),
                time: 1,
                is_synchronized: false,
            };
            point.change_control_file(&mut bytes).unwrap();
            let read = ControlFile::parse(&bytes).unwrap();
            assert_eq!((read.state.to_string().as_str(), read.timeline), ("in archive recovery", 2));
            assert_eq!((read.checkpoint, read.redo), (checkpoint, Lsn(0x0300_0028)));
            assert_eq!((read.min_recovery_point, read.track_commit_timestamp), (end, true));
            assert_eq!((read.sizes.max_connections, read.sizes.max_locks_per_transaction), (200, 65));
            RestartPoint { is_synchronized: true, ..point }.change_control_file(&mut bytes).unwrap();
            let state = ControlFile::parse(&bytes).unwrap().state;
            assert_eq!(state, DatabaseState::ShutDownInRecovery);
            let short = RestartPoint { data: &data[1..], ..point };
            assert!(matches!(short.change_control_file(&mut bytes), Err(ControlError::Checkpoint { .. })));
        }
    }

    #[test]
    fn a_folder_that_is_no_data_directory_is_named_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let error = DataDir::open(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("not a data directory: PG_VERSION is not there"), "{error}");
        fs::write(folder.path().join("PG_VERSION"), "18\n").unwrap();
        let error = DataDir::open(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("not a data directory: global/pg_control is not there"), "{error}");
        let error = DataDir::open(&folder.path().join("PG_VERSION")).unwrap_err().to_string();
        assert!(error.contains("not a data directory"), "{error}");
    }

    #[test]
    fn a_backup_starts_where_its_label_says() {
        let label = b"START WAL LOCATION: 1/2000028 (file 000000010000000100000002)\nCHECKPOINT LOCATION: 1/2000060\n";
        assert_eq!(start_of_backup(label), Ok(Lsn(0x1_0200_0028)));
        assert!(start_of_backup(b"").is_err());
        let incremental = [&label[..], b"INCREMENTAL FROM LSN: 0/2000028\n"].concat();
        assert_eq!(start_of_backup(&incremental), Err(DataDirError::INCREMENTAL));
    }

    #[test]
    fn pages_are_found_in_every_place_that_relations_are_in() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.join("global")).unwrap();
        fs::create_dir_all(root.join("base/5")).unwrap();
        fs::create_dir_all(root.join("pg_tblspc/16400/PG_18_202107181/5")).unwrap();
        fs::create_dir_all(elsewhere.path().join("PG_18_202107181/5")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), root.join("pg_tblspc/16401")).unwrap();
        fs::write(root.join("PG_VERSION"), "18\n").unwrap();
        let mut sealed = control(1800);
        sealed[220..224].copy_from_slice(&2u32.to_le_bytes());
        fs::write(root.join("global/pg_control"), seal(sealed)).unwrap();
        let at = |tablespace, database| RelFileLocator { tablespace, database, relation: 7 };
        let places = [
            ("global/7", at(1664, 0), Fork::MAIN, 0..2),
            ("base/5/7", at(1663, 5), Fork::MAIN, 0..2),
            ("base/5/7.1", at(1663, 5), Fork::MAIN, 2..3),
            ("base/5/7_fsm", at(1663, 5), Fork::FREE_SPACE_MAP, 0..1),
            ("base/5/7_vm", at(1663, 5), Fork::VISIBILITY_MAP, 0..1),
            ("base/5/7_init", at(1663, 5), Fork::INIT, 0..1),
            ("pg_tblspc/16400/PG_18_202107181/5/7", at(16400, 5), Fork::MAIN, 0..1),
            ("pg_tblspc/16401/PG_18_202107181/5/7_vm.1", at(16401, 5), Fork::VISIBILITY_MAP, 2..4),
        ];
        for (index, (file, _, _, blocks)) in places.iter().enumerate() {
            // Half a page at the end does not count.
            let mut content = vec![0x40 + index as u8; PAGE_BYTES * blocks.len()];
            content.extend([0xFF; 100]);
            fs::write(root.join(file), content).unwrap();
        }
        let mut data = DataDir::open(root).unwrap();
        let mut page = [0; PAGE_BYTES];
        for (index, (file, relation, fork, blocks)) in places.iter().enumerate() {
            for block in 0..6 {
                let there = data.read_page(*relation, *fork, block, &mut page).unwrap();
                let elsewhere = places.iter().any(|(other, r, f, blocks)| {
                    other != file && (r, f) == (relation, fork) && blocks.contains(&block)
                });
                assert_eq!(there, blocks.contains(&block) || elsewhere, "{file} block {block}");
                assert!(
                    !there || elsewhere || page == [0x40 + index as u8; PAGE_BYTES],
                    "{file} block {block}"
                );
            }
        }
        for relation in 100..300 {
            let missing = RelFileLocator { relation, ..at(1663, 5) };
            assert!(!data.read_page(missing, Fork::MAIN, 0, &mut page).unwrap());
        }
        assert!(data.open.len() <= MAX_OPEN_FILES);
        assert!(data.read_page(at(1663, 5), Fork::MAIN, 0, &mut page).unwrap());
    }
}
