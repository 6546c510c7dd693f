//! The base backup that recovery starts from.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::payload::xlog::Checkpoint;
use walden_source::datadir::{ControlFile, DataDir, DataDirError};

use crate::copy::{LABEL, LOGS, copy_backup, copy_tree};
use crate::destination::NewFolder;
use crate::error::{RecoverError, invalid};
use crate::folder_lock::{FolderLock, Identity, expect_identity, identify};
use crate::manifest::{Checksum, Manifest, ManifestFile, compute_checksums, list_files};
use crate::originals::Originals;
use crate::tar_backup::{TABLESPACE_MAP, TarBackup, TarStreams, format_map, parse_map};

/// The form of `START TIME` in the labels that Walden writes.
const LABEL_TIME: &str = "%Y-%m-%d %H:%M:%S UTC";
/// Major versions that are restored.
const VERSIONS: std::ops::RangeInclusive<u32> = 14..=19;

/// A base backup in plain format or in tar format: a data directory with its `backup_label`, or that of a
/// stopped server.
#[derive(Clone, Debug)]
pub struct BaseBackup {
    pub(crate) path: PathBuf,
    /// Its tar files, if it is in tar format.
    pub(crate) tar: Option<TarBackup>,
    pub(crate) version: String,
    pub(crate) control: ControlFile,
    /// The content of `pg_control`.
    pub(crate) control_content: Vec<u8>,
    pub(crate) label: Label,
    /// Tablespaces outside of the backup's folder.
    pub(crate) tablespaces: Vec<Tablespace>,
    /// `backup_manifest`, if it has one.
    pub(crate) manifest: Option<Manifest>,
    /// Bytes of its files.
    pub(crate) bytes: u64,
    /// Of the folder or file at `path` when it was opened; `None` if it is not in the file system.
    pub(crate) identity: Option<Identity>,
}

/// A base backup in tar format that is not in the file system. Its files were compared with its manifest when
/// it was made.
#[derive(Clone, Debug)]
pub struct StreamedBackup {
    /// Name of the backup in messages.
    pub name: PathBuf,
    /// The content of `PG_VERSION`.
    pub version: String,
    /// The content of `pg_control`.
    pub control: Vec<u8>,
    /// The content of `backup_label`.
    pub label: Vec<u8>,
    /// The content of `tablespace_map`.
    pub tablespace_map: Vec<u8>,
    /// The tablespaces with a tar archive.
    pub tablespaces: Vec<u32>,
    /// The content of `backup_manifest`.
    pub manifest: Vec<u8>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Tar archives of the backup.
    pub streams: Arc<dyn TarStreams>,
}

/// A tablespace of a base backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tablespace {
    /// Its OID: the name of the link.
    pub(crate) oid: u32,
    /// The folder that the link leads to.
    pub(crate) folder: PathBuf,
}

/// The fields of `backup_label` (`build_backup_content` in `xlogbackup.c`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    /// `START WAL LOCATION`: the redo pointer of the backup's checkpoint.
    pub start: Lsn,
    /// `CHECKPOINT LOCATION`
    pub checkpoint: Lsn,
    /// `START TIMELINE`
    pub timeline: Timeline,
    /// `BACKUP FROM: standby`: the end of the backup is `minRecoveryPoint`, and WAL has no record of it.
    pub is_from_standby: bool,
    /// `LABEL`
    pub name: String,
    /// The backup has only the changes since another backup.
    pub is_incremental: bool,
    /// `START TIME`, unless its time zone is ambiguous.
    pub time: Option<Timestamp>,
}

/// The label of a base backup that was rolled forward.
///
/// It is that of a backup of a standby: `pg_control` has the position at which the backup is consistent
/// (`minRecoveryPoint`), and WAL has no record of the end of the backup (`read_backup_label` and
/// `InitWalRecovery` in `xlogrecovery.c`).
pub(crate) struct AdvancedLabel<'l> {
    name: &'l str,
    /// LSN of the checkpoint record.
    lsn: Lsn,
    checkpoint: &'l Checkpoint,
    segment: SegmentName,
}

impl fmt::Display for AdvancedLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.checkpoint;
        let time = Timestamp::from_second(fields.time).unwrap_or_default().strftime(LABEL_TIME);
        writeln!(f, "START WAL LOCATION: {} (file {})", fields.redo, self.segment)?;
        writeln!(f, "CHECKPOINT LOCATION: {}", self.lsn)?;
        writeln!(f, "BACKUP METHOD: streamed\nBACKUP FROM: standby\nSTART TIME: {time}")?;
        writeln!(f, "LABEL: {}\nSTART TIMELINE: {}", self.name, fields.timeline)
    }
}

impl BaseBackup {
    /// Opens a base backup. One in tar format is read as a whole, because `pg_control` is its last file.
    /// `done` gets the bytes of each file that is read.
    ///
    /// # Errors
    /// The path is not a base backup, has something that is not restored, or differs from its manifest.
    pub fn open(path: &Path, mut done: impl FnMut(u64)) -> Result<BaseBackup, RecoverError> {
        let identity = identify(path)?;
        let tar = TarBackup::find(path)?;
        let manifest = read_manifest(tar.as_ref().map_or(path, TarBackup::folder))?;
        let found = match &tar {
            None => Found::in_folder(path)?,
            Some(tar) => Found::in_tar(path, tar, manifest.as_ref(), &mut done)?,
        };
        BaseBackup::complete(path, tar, manifest, found, Some(identity))
    }

    /// Copies a backup that is not in the file system into a new folder, with its tablespaces in folders of
    /// `pg_tblspc`. `done` gets the bytes of each file.
    ///
    /// # Errors
    /// It cannot be read, or a file cannot be written.
    pub fn unpack_streamed(
        backup: &StreamedBackup,
        folder: &Path,
        mut done: impl FnMut(u64),
    ) -> Result<(), RecoverError> {
        let (name, tablespaces) = (&backup.name, backup.tablespaces.iter().copied());
        let tar = TarBackup::of_streams(name, &backup.streams, tablespaces);
        tar.unpack(&[], false, &mut NewFolder { root: folder, done: &mut done })?;
        let control = folder.join(ControlFile::PATH);
        let above = control.parent().map_or(Ok(()), crate::private::create_folders);
        above.map_err(RecoverError::io("create", &control))?;
        match control.exists() {
            true => Ok(()),
            false => {
                crate::private::write(&control, &backup.control).map_err(RecoverError::io("write", &control))
            }
        }
    }

    /// Opens a base backup that is not in the file system. Its tar archives are not read yet.
    ///
    /// # Errors
    /// It has something that is not restored, or its small files cannot be interpreted.
    pub fn open_streamed(backup: &StreamedBackup) -> Result<BaseBackup, RecoverError> {
        let name = &backup.name;
        let tar = TarBackup::of_streams(name, &backup.streams, backup.tablespaces.iter().copied());
        let path = name.join(Manifest::FILE);
        let manifest = Manifest::read(backup.manifest.as_slice())
            .map_err(|problem| RecoverError::io("read", &path)(invalid(problem)))?;
        let control = ControlFile::parse(&backup.control)
            .map_err(|error| DataDirError::Control { path: name.join(ControlFile::PATH), error })?;
        let tablespaces = parse_map(&backup.tablespace_map).into_iter();
        let found = Found {
            version: backup.version.trim().to_owned(),
            control,
            control_content: backup.control.clone(),
            label: Some(backup.label.clone()),
            tablespaces: tablespaces.map(|(oid, folder)| Tablespace { oid, folder }).collect(),
            bytes: backup.bytes,
        };
        if let Some(Tablespace { oid, .. }) = found.tablespaces.iter().find(|it| !tar.has_tablespace(it.oid))
        {
            return Err(no_tar_of_tablespace(name, *oid));
        }
        BaseBackup::complete(name, Some(tar), Some(manifest), found, None)
    }

    fn complete(
        path: &Path,
        tar: Option<TarBackup>,
        manifest: Option<Manifest>,
        found: Found,
        identity: Option<Identity>,
    ) -> Result<BaseBackup, RecoverError> {
        let refuse = |expected, found: String, hint| RecoverError::Base {
            base: path.to_owned(),
            expected,
            found,
            hint,
        };
        let Found { version, control, control_content, label, tablespaces, bytes } = found;
        if !version.parse().is_ok_and(|version: u32| VERSIONS.contains(&version)) {
            let hint = "recover with PostgreSQL alone";
            return Err(refuse("a base backup of PostgreSQL 14 to 19", format!("version {version}"), hint));
        }
        let label = match label {
            Some(text) => Label::parse(&String::from_utf8_lossy(&text)).map_err(|line| {
                let hint = "use another base backup: this one is damaged or incomplete";
                refuse(line, "none in backup_label".into(), hint)
            })?,
            None if control.state.is_shut_down() => Label::for_stopped_server(&control),
            None => return Err(DataDirError::Running { path: path.into(), state: control.state }.into()),
        };
        if label.is_incremental {
            let (path, what) = (path.join(LABEL), DataDirError::INCREMENTAL);
            return Err(DataDirError::Label { path, what }.into());
        }
        let base = BaseBackup {
            path: path.to_owned(),
            tar,
            version,
            control,
            control_content,
            label,
            tablespaces,
            manifest,
            bytes,
            identity,
        };
        base.expect_own_manifest()?;
        Ok(base)
    }

    /// Checks that `backup_manifest` is of the same cluster, and that files in plain format have its sizes.
    fn expect_own_manifest(&self) -> Result<(), RecoverError> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let system = self.control.system_identifier;
        if let Some(other) = manifest.system_identifier.filter(|&found| found != system) {
            let found = format!("a manifest of the system {other} and pg_control of {system}");
            return Err(differs_from_manifest(&self.path, found));
        }
        if self.tar.is_some() {
            return Ok(());
        }
        let mut differences = Differences::default();
        for (name, file) in manifest.compared_files() {
            let path = self.path.join(name);
            match fs::metadata(&path) {
                Ok(metadata) => differences.add_size(name, metadata.len(), file.size),
                Err(error) if error.kind() == io::ErrorKind::NotFound => differences.add_missing(name),
                Err(error) => return Err(RecoverError::io("read", &path)(error)),
            }
        }
        differences.refuse(&self.path)
    }

    /// Checks that a later backup can take the place of this one.
    ///
    /// # Errors
    /// It is in tar format, or has tablespaces in other folders.
    pub fn expect_replaceable(&self) -> Result<(), RecoverError> {
        if self.tar.is_some() {
            return Err(RecoverError::Base {
                base: self.path.clone(),
                expected: "a backup in plain format to replace",
                found: "one in tar format".to_owned(),
                hint: "write the later backup, in plain format, to a new folder: -o FOLDER",
            });
        }
        match self.tablespaces.is_empty() {
            true => Ok(()),
            false => Err(RecoverError::InPlace { base: self.path.clone() }),
        }
    }

    /// Copies everything but `pg_control` and the tablespaces outside into a new data directory. With
    /// `later`, relation files in plain format are added to it instead.
    pub(crate) fn copy(
        &self,
        data: &Path,
        is_server: bool,
        later: Option<&Originals>,
        done: &mut dyn FnMut(u64),
    ) -> Result<(), RecoverError> {
        match &self.tar {
            None => copy_backup(&self.path, data, is_server, later, done),
            Some(tar) => tar.unpack(&self.outside(), is_server, &mut NewFolder { root: data, done }),
        }
    }

    /// Adds `tablespace_map` with this backup's tablespaces to a later one in a folder, and to its manifest.
    /// A backup without tablespaces in other folders has none.
    ///
    /// # Errors
    /// The folder has no manifest, or a file cannot be written.
    pub fn write_tablespace_map(&self, folder: &Path) -> Result<(), RecoverError> {
        if self.tablespaces.is_empty() {
            return Ok(());
        }
        let map = format_map(self.tablespaces.iter().map(|it| (it.oid, it.folder.as_path())));
        let (path, manifest_path) = (folder.join(TABLESPACE_MAP), folder.join(Manifest::FILE));
        crate::private::write(&path, &map).map_err(RecoverError::io("write", &path))?;
        let file = File::open(&manifest_path).map_err(RecoverError::io("read", &manifest_path))?;
        let mut manifest: Manifest = Manifest::read(file)
            .map_err(|problem| RecoverError::io("read", &manifest_path)(invalid(problem)))?;
        let modified = Timestamp::now().as_second();
        let write = manifest.add(TABLESPACE_MAP, &map, modified);
        write
            .and_then(|()| manifest.write(&manifest_path, self.major()))
            .map_err(RecoverError::io("write", &manifest_path))
    }

    /// The folders that have its files: none if it is not in the file system.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        match &self.tar {
            _ if self.identity.is_none() => Vec::new(),
            Some(tar) => vec![tar.folder().to_owned()],
            None => {
                let tablespaces = self.tablespaces.iter().map(|tablespace| tablespace.folder.clone());
                std::iter::once(self.path.clone()).chain(tablespaces).collect()
            }
        }
    }

    /// The OIDs of its tablespaces outside of the backup's folder.
    pub(crate) fn outside(&self) -> Vec<u32> {
        self.tablespaces.iter().map(|tablespace| tablespace.oid).collect()
    }

    /// Copies a tablespace into a new folder. With `later`, relation files in plain format are added to it
    /// instead, in the new data directory `data`.
    pub(crate) fn copy_tablespace(
        &self,
        tablespace: &Tablespace,
        new: &Path,
        later: Option<(&Originals, &Path)>,
        done: &mut dyn FnMut(u64),
    ) -> Result<(), RecoverError> {
        match &self.tar {
            None => {
                let link = later.map(|(_, data)| data.join("pg_tblspc").join(tablespace.oid.to_string()));
                let later = later.zip(link.as_deref()).map(|((originals, _), link)| (originals, link));
                copy_tree(&tablespace.folder, new, later, done)
            }
            Some(tar) => tar.unpack_tablespace(tablespace.oid, &mut NewFolder { root: new, done }),
        }
    }

    /// The permissions of its data directory, as far as a server accepts them.
    pub(crate) fn mode(&self) -> u32 {
        let of_folder =
            || fs::metadata(&self.path).ok().map(|metadata| metadata.permissions().mode() & 0o750);
        self.tar.is_none().then(of_folder).flatten().unwrap_or(0o700)
    }

    /// Checks the files' checksums in `backup_manifest`. `done` gets the bytes of each file.
    ///
    /// # Errors
    /// There is no manifest with checksums, a file differs, or it cannot be read.
    pub fn verify_checksums(&self, threads: usize, mut done: impl FnMut(u64)) -> Result<(), RecoverError> {
        let files = self.manifest.iter().flat_map(Manifest::compared_files);
        let expected: Vec<(&Path, &Checksum)> =
            files.filter_map(|(name, file)| Some((name, file.checksum.as_ref()?))).collect();
        if expected.is_empty() {
            return Err(RecoverError::Base {
                base: self.path.clone(),
                expected: "checksums of its files in backup_manifest",
                found: "none".to_owned(),
                hint: "without checksums, leave out --verify-base",
            });
        }
        let mut differences = Differences::default();
        let mut compare = |name: &Path, found: &Checksum, expected: &Checksum, size| {
            if found != expected {
                differences.add(|| format!("{} with another checksum", name.display()));
            }
            done(size);
        };
        match &self.tar {
            None => {
                let files: Vec<_> = expected.iter().map(|(name, sum)| (*name, sum.algorithm)).collect();
                compute_checksums(&self.path, &files, threads, &mut |number, found, size| {
                    compare(expected[number].0, &found, expected[number].1, size);
                })?;
            }
            Some(tar) => {
                let expected: BTreeMap<&Path, &Checksum> = expected.into_iter().collect();
                tar.read_files(|name, size, content| {
                    if let Some(expected) = expected.get(name) {
                        let found = expected.algorithm.checksum(content);
                        let found = found.map_err(RecoverError::io("read", &self.path))?;
                        compare(name, &found, expected, size);
                    }
                    Ok(())
                })?;
            }
        }
        differences.refuse(&self.path)
    }

    /// Locks the backup, unless it is not in the file system.
    pub(crate) fn lock(&self) -> Result<Option<FolderLock>, RecoverError> {
        self.identity.map(|_| FolderLock::shared(&self.path)).transpose()
    }

    /// Checks that the path still leads to the backup that was opened.
    pub(crate) fn expect_same(&self) -> Result<(), RecoverError> {
        self.identity.map_or(Ok(()), |identity| expect_identity(&self.path, identity))
    }

    /// Returns whether the backup is in the file system.
    pub(crate) fn is_in_file_system(&self) -> bool {
        self.identity.is_some()
    }

    /// Returns the links to folders of the server's log, which copies do not have.
    pub fn links_left_out(&self) -> impl Iterator<Item = &'static str> {
        LOGS.into_iter().filter(|log| self.tar.is_none() && self.path.join(log).is_symlink())
    }

    /// Its folder or tar file, or its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of its files, without WAL.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the files whose checksums `backup_manifest` has.
    pub fn verified_bytes(&self) -> u64 {
        let files = self.manifest.iter().flat_map(Manifest::compared_files);
        files.filter(|(_, file)| file.checksum.is_some()).map(|(_, file)| file.size).sum()
    }

    /// The major version of the server.
    pub(crate) fn major(&self) -> u32 {
        self.version.parse().unwrap_or_default()
    }

    /// The cluster.
    pub fn system_identifier(&self) -> u64 {
        self.control.system_identifier
    }

    /// The position from which WAL is replayed.
    pub fn start(&self) -> Lsn {
        self.label.start
    }

    /// The timeline at the start.
    pub fn timeline(&self) -> Timeline {
        self.label.timeline
    }
}

impl Label {
    /// The label of this backup after it was rolled forward to a checkpoint.
    pub(crate) fn at<'l>(
        &'l self,
        lsn: Lsn,
        checkpoint: &'l Checkpoint,
        size: SegmentSize,
    ) -> AdvancedLabel<'l> {
        let segment = SegmentName::new(checkpoint.timeline, size.segment_of(checkpoint.redo), size);
        AdvancedLabel { name: &self.name, lsn, checkpoint, segment }
    }

    /// The label that a copy of a stopped server's data directory would have. The files of a primary are
    /// consistent at its last checkpoint, and those of a standby at `minRecoveryPoint`.
    fn for_stopped_server(control: &ControlFile) -> Label {
        Label {
            start: control.redo,
            checkpoint: control.checkpoint,
            timeline: control.timeline,
            is_from_standby: true,
            name: "copy of a stopped server".to_owned(),
            is_incremental: false,
            time: None,
        }
    }

    /// Reads a label. The error names the missing line.
    pub(crate) fn parse(text: &str) -> Result<Label, &'static str> {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let lsn = |name| value(name)?.split_whitespace().next()?.parse().ok();
        Ok(Label {
            start: lsn("START WAL LOCATION: ").ok_or("START WAL LOCATION")?,
            checkpoint: lsn("CHECKPOINT LOCATION: ").ok_or("CHECKPOINT LOCATION")?,
            timeline: value("START TIMELINE: ")
                .and_then(|number| number.trim().parse().ok())
                .ok_or("START TIMELINE")?,
            is_from_standby: value("BACKUP FROM: ").is_some_and(|from| from.trim() == "standby"),
            name: value("LABEL: ").unwrap_or_default().to_owned(),
            is_incremental: value("INCREMENTAL FROM ").is_some(),
            time: value("START TIME: ").and_then(|text| {
                let time = jiff::civil::DateTime::strptime(LABEL_TIME, text.trim()).ok()?;
                Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
            }),
        })
    }
}

/// Content of a base backup of either format.
struct Found {
    version: String,
    control: ControlFile,
    control_content: Vec<u8>,
    label: Option<Vec<u8>>,
    tablespaces: Vec<Tablespace>,
    bytes: u64,
}

impl Found {
    fn in_folder(path: &Path) -> Result<Found, RecoverError> {
        let data = DataDir::open_at_rest(path)?;
        let read = |name: &str| {
            let file = path.join(name);
            fs::read(&file).map_err(RecoverError::io("read", &file))
        };
        let label = data.is_backup().then(|| read(LABEL)).transpose()?;
        if path.join(TABLESPACE_MAP).exists() {
            return Err(RecoverError::Base {
                base: path.to_owned(),
                expected: "links in pg_tblspc instead of a tablespace_map",
                found: "a tablespace_map".to_owned(),
                hint: "name the folder with the tar files themselves, or recover with PostgreSQL alone",
            });
        }
        let mut bytes = 0;
        list_files(path, Path::new(""), &mut |_, metadata| bytes += metadata.len())?;
        Ok(Found {
            version: data.version().to_owned(),
            control: *data.control(),
            control_content: read(ControlFile::PATH)?,
            label,
            tablespaces: find_tablespaces(path)?,
            bytes,
        })
    }

    fn in_tar(
        path: &Path,
        tar: &TarBackup,
        manifest: Option<&Manifest>,
        done: &mut dyn FnMut(u64),
    ) -> Result<Found, RecoverError> {
        let mut missing: BTreeMap<&Path, &ManifestFile> =
            manifest.into_iter().flat_map(Manifest::compared_files).collect();
        let (mut differences, mut bytes) = (Differences::default(), 0);
        let contents = tar.read_files(|name, size, _| {
            if let Some(file) = missing.remove(name) {
                differences.add_size(name, size, file.size);
            }
            bytes += size;
            done(size);
            Ok(())
        })?;
        missing.into_keys().for_each(|name| differences.add_missing(name));
        differences.refuse(path)?;
        let not_one = |missing| DataDirError::NotOne { path: path.to_owned(), missing };
        let version = contents.version.ok_or_else(|| not_one("PG_VERSION"))?;
        let control_content = contents.control.ok_or_else(|| not_one(ControlFile::PATH))?;
        let control = ControlFile::parse(&control_content)
            .map_err(|error| DataDirError::Control { path: path.join(ControlFile::PATH), error })?;
        if let Some((oid, _)) = contents.tablespaces.iter().find(|(oid, _)| !tar.has_tablespace(**oid)) {
            return Err(no_tar_of_tablespace(path, *oid));
        }
        let tablespaces = contents.tablespaces.into_iter();
        Ok(Found {
            version: String::from_utf8_lossy(&version).trim().to_owned(),
            control,
            control_content,
            label: contents.label,
            tablespaces: tablespaces.map(|(oid, folder)| Tablespace { oid, folder }).collect(),
            bytes,
        })
    }
}

fn no_tar_of_tablespace(base: &Path, oid: u32) -> RecoverError {
    RecoverError::Base {
        base: base.to_owned(),
        expected: "a tar file of each tablespace next to base.tar",
        found: format!("none of {oid}"),
        hint: "add the tar files of all tablespaces",
    }
}

fn differs_from_manifest(base: &Path, found: String) -> RecoverError {
    RecoverError::Base {
        base: base.to_owned(),
        expected: "the files of its backup_manifest",
        found,
        hint: "use another base backup: this one is damaged or was changed",
    }
}

/// Differences between a backup and its manifest.
#[derive(Default)]
struct Differences {
    first: Option<String>,
    others: u64,
}

impl Differences {
    fn add(&mut self, describe: impl FnOnce() -> String) {
        match self.first {
            Some(_) => self.others += 1,
            None => self.first = Some(describe()),
        }
    }

    fn add_missing(&mut self, name: &Path) {
        self.add(|| format!("no {}", name.display()));
    }

    fn add_size(&mut self, name: &Path, found: u64, expected: u64) {
        if found != expected {
            self.add(|| format!("{} with {found} bytes instead of {expected}", name.display()));
        }
    }

    /// Refuses a base backup that differs.
    fn refuse(self, base: &Path) -> Result<(), RecoverError> {
        let Some(first) = self.first else { return Ok(()) };
        let others = match self.others {
            0 => String::new(),
            others => format!(", and {others} other files that differ"),
        };
        Err(differs_from_manifest(base, first + &others))
    }
}

/// Reads the manifest of a base backup, if it has one.
fn read_manifest(base: &Path) -> Result<Option<Manifest>, RecoverError> {
    let path = base.join(Manifest::FILE);
    match File::open(&path) {
        Ok(file) => Manifest::read(file).map(Some).map_err(|problem| {
            RecoverError::io("read", &path)(io::Error::new(io::ErrorKind::InvalidData, problem))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RecoverError::io("read", &path)(error)),
    }
}

/// The tablespaces of a base backup (`pg_tblspc`). Folders without a link (`allow_in_place_tablespaces`) are
/// in the backup itself.
fn find_tablespaces(base: &Path) -> Result<Vec<Tablespace>, RecoverError> {
    let folder = base.join("pg_tblspc");
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(RecoverError::io("read", &folder))? {
        let entry = entry.map_err(RecoverError::io("read", &folder))?;
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            continue;
        }
        let oid = entry.file_name().to_str().and_then(|name| name.parse().ok()).ok_or_else(|| {
            RecoverError::Base {
                base: base.to_owned(),
                expected: "links with the number of a tablespace in pg_tblspc",
                found: format!("{}", entry.file_name().display()),
                hint: "remove the link, or take another base backup",
            }
        })?;
        let folder = fs::canonicalize(&path).map_err(RecoverError::io("follow the link", &path))?;
        found.push(Tablespace { oid, folder });
    }
    found.sort_by_key(|tablespace| tablespace.oid);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_start_checkpoint_timeline_and_origin() {
        let text = "START WAL LOCATION: 0/2000028 (file 000000020000000000000002)\nCHECKPOINT LOCATION: 0/2000080\n\
                    BACKUP METHOD: streamed\nBACKUP FROM: standby\nSTART TIME: 2026-11-29 10:00:00 UTC\nLABEL: x\nSTART TIMELINE: 2\n";
        let label = Label::parse(text).unwrap();
        assert_eq!((label.start, label.checkpoint), (Lsn(0x200_0028), Lsn(0x200_0080)));
        assert_eq!((label.timeline, label.is_from_standby), (2, true));
        assert_eq!(label.time.unwrap().to_string(), "2026-11-29T10:00:00Z");
        assert_eq!(Label::parse(&text.replace("UTC", "CET")).unwrap().time, None);
        assert!(!Label::parse(&text.replace("standby", "primary")).unwrap().is_from_standby);
        assert!(!label.is_incremental);
        let incremental =
            Label::parse(&format!("{text}INCREMENTAL FROM LSN: 0/28\nINCREMENTAL FROM TLI: 1\n"));
        assert!(incremental.unwrap().is_incremental);
        assert_eq!(Label::parse(&text.replace("CHECKPOINT", "X")), Err("CHECKPOINT LOCATION"));
    }
}
