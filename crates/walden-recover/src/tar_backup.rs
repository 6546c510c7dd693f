//! Base backups in tar format: `base.tar` and a tar file for each tablespace, plain or compressed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use tar::EntryType;
use walden_source::datadir::ControlFile;
use walden_source::open::{Compression, open_path};
use walden_source::read_entries;
use walden_source::tar_end::{CountedReader, end_of_entry, expect_end_block};

use crate::copy::{LABEL, is_emptied, is_left_out};
use crate::destination::Destination;
use crate::error::{RecoverError, invalid};

/// Endings of tar files and their compression, as `pg_basebackup` or users give them.
pub const TAR_ENDINGS: [(&str, Compression); 12] = [
    (".tar", Compression::None),
    (".tar.gz", Compression::Gzip),
    (".tgz", Compression::Gzip),
    (".tar.lz4", Compression::Lz4),
    (".tlz4", Compression::Lz4),
    (".tar.zst", Compression::Zstd),
    (".tzst", Compression::Zstd),
    (".tar.xz", Compression::Xz),
    (".txz", Compression::Xz),
    (".tar.bz2", Compression::Bzip2),
    (".tbz2", Compression::Bzip2),
    (".tbz", Compression::Bzip2),
];
/// The file with the folders of tablespaces.
pub(crate) const TABLESPACE_MAP: &str = "tablespace_map";
/// Largest label and map of tablespaces that is read, in bytes.
const MAX_SMALL: u64 = 1 << 20;

/// The tar archives of a base backup that is not in a folder.
pub trait TarStreams: fmt::Debug + Send + Sync {
    /// Opens the tar archive of a tablespace, or of the data directory (`None`). Content that the files of
    /// `existing` have in the same places may be read from them: a folder with the paths of the archive,
    /// whose files change only behind the reader.
    ///
    /// # Errors
    /// It cannot be read. Reading the content fails with the same errors, and at damage.
    fn open(&self, tablespace: Option<u32>, existing: Option<&Path>) -> io::Result<Box<dyn Read + Send>>;
}

/// A tar file.
#[derive(Clone, Debug)]
struct TarFile {
    /// The file, or a name for messages.
    path: PathBuf,
    content: TarContent,
}

#[derive(Clone, Debug)]
enum TarContent {
    File(Compression),
    Stream(Arc<dyn TarStreams>, Option<u32>),
}

/// A base backup in tar format.
#[derive(Clone, Debug)]
pub(crate) struct TarBackup {
    base: TarFile,
    /// The tar files of tablespaces by OID.
    tablespaces: BTreeMap<u32, TarFile>,
}

/// Content of a backup in tar format, besides relation files.
#[derive(Default)]
pub(crate) struct Contents {
    pub version: Option<Vec<u8>>,
    pub control: Option<Vec<u8>>,
    pub label: Option<Vec<u8>>,
    /// Tablespaces outside of the data directory: OID and folder.
    pub tablespaces: BTreeMap<u32, PathBuf>,
}

/// An entry of a tar file.
enum Member<'r> {
    File {
        size: u64,
        content: &'r mut dyn Read,
    },
    Folder,
    /// A symbolic link and its destination.
    Link(PathBuf),
}

impl TarFile {
    fn new(path: PathBuf) -> Option<TarFile> {
        let name = path.file_name()?.to_str()?;
        let (_, compression) = TAR_ENDINGS.iter().find(|(ending, _)| name.ends_with(ending))?;
        let content = TarContent::File(*compression);
        path.is_file().then_some(TarFile { path, content })
    }

    fn open(&self, existing: Option<&Path>) -> io::Result<Box<dyn Read + Send>> {
        match &self.content {
            TarContent::File(compression) => Ok(Box::new(open_path(&self.path, *compression)?)),
            TarContent::Stream(streams, tablespace) => streams.open(*tablespace, existing),
        }
    }

    /// Calls `found` for each entry. `existing` is that of [`TarStreams::open`]. Refuses entries that would
    /// be outside of a folder, links except for those that a data directory has, and files that are cut off.
    fn read(
        &self,
        existing: Option<&Path>,
        mut found: impl FnMut(PathBuf, Member<'_>) -> Result<(), RecoverError>,
    ) -> Result<(), RecoverError> {
        let content = self.open(existing).map_err(RecoverError::io("read", &self.path))?;
        let (content, read) = CountedReader::new(content);
        let mut archive = tar::Archive::new(content);
        // Errors of `found` pass through the tar reader.
        let (mut failure, mut end) = (None, 0);
        let outcome = archive.entries().and_then(|entries| {
            read_entries(entries.raw(true), |name, mut entry| {
                let size = entry.size();
                end = end_of_entry(&entry)?;
                let path = path_inside(&name)?;
                let named = |what: &str| {
                    invalid(format!("expected files and folders, found {what}: {}", path.display()))
                };
                let member = match entry.header().entry_type() {
                    EntryType::Regular | EntryType::Continuous => Member::File { size, content: &mut entry },
                    EntryType::Directory => Member::Folder,
                    EntryType::Symlink if is_place_of_link(&path) => {
                        let target = entry.header().link_name_bytes().unwrap_or_default();
                        Member::Link(OsStr::from_bytes(&target).into())
                    }
                    EntryType::Symlink => return Err(named("a symbolic link")),
                    EntryType::Link => return Err(named("a hard link")),
                    EntryType::GNUSparse => return Err(named("a sparse file")),
                    _ => return Err(named("an entry of another kind")),
                };
                found(path.clone(), member).map_err(|error| {
                    failure = Some(error);
                    io::ErrorKind::Other.into()
                })
            })
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        let outcome = outcome.and_then(|()| expect_end_block(read.get(), end));
        outcome.map_err(RecoverError::io("read", &self.path))
    }

    /// Unpacks the file. `is_wanted` decides about each path.
    fn unpack(
        &self,
        to: &mut dyn Destination,
        is_wanted: impl Fn(&Path) -> bool,
    ) -> Result<(), RecoverError> {
        let existing = to.existing().map(Path::to_owned);
        self.read(existing.as_deref(), |name, member| match member {
            _ if !is_wanted(&name) => Ok(()),
            // pg_wal of the server may have been a link.
            Member::Link(_) if name != Path::new("pg_wal") => Ok(()),
            Member::Folder | Member::Link(_) => to.folder(&name, None),
            Member::File { size, content } => to.file(&name, size, content),
        })
    }
}

/// Links that a data directory may have: to tablespaces, and to `pg_wal`.
fn is_place_of_link(path: &Path) -> bool {
    tablespace_of(path).is_some() || path == Path::new("pg_wal")
}

/// The tablespace whose folder or link a path is.
fn tablespace_of(path: &Path) -> Option<u32> {
    path.strip_prefix("pg_tblspc").ok()?.to_str()?.parse().ok()
}

/// Returns the path of an entry, which must be inside of the folder.
fn path_inside(name: &[u8]) -> io::Result<PathBuf> {
    let path = Path::new(OsStr::from_bytes(name));
    let mut inside = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(part) => inside.push(part),
            _ => return Err(invalid(format!("expected paths inside of it, found {}", path.display()))),
        }
    }
    Ok(inside)
}

impl TarBackup {
    /// Finds the tar files of a backup: `path` is their folder, or `base.tar` itself.
    pub(crate) fn find(path: &Path) -> Result<Option<TarBackup>, RecoverError> {
        let base = match path.is_file() {
            true => TarFile::new(path.to_owned()),
            false => {
                TAR_ENDINGS.iter().find_map(|(ending, _)| TarFile::new(path.join(format!("base{ending}"))))
            }
        };
        let Some(base) = base else { return Ok(None) };
        let folder = folder_of(&base.path);
        let mut tablespaces = BTreeMap::new();
        for entry in fs::read_dir(folder).map_err(RecoverError::io("read", folder))? {
            let path = entry.map_err(RecoverError::io("read", folder))?.path();
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let oid = name.split('.').next().and_then(|oid| oid.parse().ok());
            if let Some((oid, file)) = oid.zip(TarFile::new(path)) {
                tablespaces.insert(oid, file);
            }
        }
        Ok(Some(TarBackup { base, tablespaces }))
    }

    /// The tar archives of a backup that is not in a folder. `name` is its name for messages.
    pub(crate) fn of_streams(
        name: &Path,
        streams: &Arc<dyn TarStreams>,
        tablespaces: impl Iterator<Item = u32>,
    ) -> TarBackup {
        let file = |oid: Option<u32>| {
            let file = oid.map_or_else(|| "base.tar".to_owned(), |oid| format!("{oid}.tar"));
            TarFile { path: name.join(file), content: TarContent::Stream(Arc::clone(streams), oid) }
        };
        let tablespaces = tablespaces.map(|oid| (oid, file(Some(oid)))).collect();
        TarBackup { base: file(None), tablespaces }
    }

    /// The folder of the tar files and of the manifest.
    pub(crate) fn folder(&self) -> &Path {
        folder_of(&self.base.path)
    }

    /// Calls `found` for each file, with its path in the data directory.
    pub(crate) fn read_files(
        &self,
        mut found: impl FnMut(&Path, u64, &mut dyn Read) -> Result<(), RecoverError>,
    ) -> Result<Contents, RecoverError> {
        let mut contents = Contents::default();
        let mut map = Vec::new();
        self.base.read(None, |name, member| match member {
            Member::File { size, content } => {
                let kept = match name.to_str() {
                    Some("PG_VERSION") => contents.version.insert(Vec::new()),
                    Some(ControlFile::PATH) => contents.control.insert(Vec::new()),
                    Some(LABEL) => contents.label.insert(Vec::new()),
                    Some(TABLESPACE_MAP) => &mut map,
                    _ => return found(&name, size, content),
                };
                let read = content.take(MAX_SMALL).read_to_end(kept);
                read.map_err(RecoverError::io("read", &self.base.path))?;
                found(&name, size, &mut kept.as_slice())
            }
            Member::Link(target) => {
                contents.tablespaces.extend(tablespace_of(&name).map(|oid| (oid, target)));
                Ok(())
            }
            Member::Folder => Ok(()),
        })?;
        contents.tablespaces.extend(parse_map(&map));
        for (oid, file) in &self.tablespaces {
            let inside = Path::new("pg_tblspc").join(oid.to_string());
            file.read(None, |name, member| match member {
                Member::File { size, content } => found(&inside.join(name), size, content),
                Member::Folder | Member::Link(_) => Ok(()),
            })?;
        }
        Ok(contents)
    }

    /// Whether there is a tar file of a tablespace.
    pub(crate) fn has_tablespace(&self, oid: u32) -> bool {
        self.tablespaces.contains_key(&oid)
    }

    /// Unpacks everything but the tablespaces in `outside`, as
    /// [`visit_backup`](crate::copy::visit_backup) lists it.
    pub(crate) fn unpack(
        &self,
        outside: &[u32],
        is_server: bool,
        to: &mut dyn Destination,
    ) -> Result<(), RecoverError> {
        let is_wanted =
            |name: &Path| !is_left_out(name, is_server) && !name.ancestors().skip(1).any(is_emptied);
        self.base.unpack(to, is_wanted)?;
        for (oid, file) in self.tablespaces.iter().filter(|(oid, _)| !outside.contains(oid)) {
            let folder = Path::new("pg_tblspc").join(oid.to_string());
            to.folder(&folder, None)?;
            file.unpack(&mut Inside { folder: &folder, to }, |_| true)?;
        }
        Ok(())
    }

    /// Unpacks a tablespace.
    pub(crate) fn unpack_tablespace(&self, oid: u32, to: &mut dyn Destination) -> Result<(), RecoverError> {
        self.tablespaces.get(&oid).map_or(Ok(()), |file| file.unpack(to, |_| true))
    }
}

/// A folder in a destination.
struct Inside<'d> {
    folder: &'d Path,
    to: &'d mut dyn Destination,
}

impl Destination for Inside<'_> {
    fn folder(&mut self, name: &Path, permissions: Option<Permissions>) -> Result<(), RecoverError> {
        self.to.folder(&self.folder.join(name), permissions)
    }

    fn file(&mut self, name: &Path, size: u64, content: &mut dyn Read) -> Result<(), RecoverError> {
        self.to.file(&self.folder.join(name), size, content)
    }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Reads `tablespace_map`: a line for each tablespace, with its OID and its folder. A backslash precedes line
/// breaks and backslashes of the folder (`do_pg_backup_start` in `xlog.c`).
pub(crate) fn parse_map(map: &[u8]) -> BTreeMap<u32, PathBuf> {
    let (mut lines, mut is_escaped) = (vec![Vec::new()], false);
    for &byte in map {
        match byte {
            b'\\' if !is_escaped => is_escaped = true,
            b'\n' if !is_escaped => lines.push(Vec::new()),
            _ => {
                is_escaped = false;
                lines.last_mut().into_iter().for_each(|line| line.push(byte));
            }
        }
    }
    let entry = |line: &Vec<u8>| {
        let at = line.iter().position(|&byte| byte == b' ')?;
        let oid = std::str::from_utf8(&line[..at]).ok()?.parse().ok()?;
        Some((oid, OsStr::from_bytes(&line[at + 1..]).into()))
    };
    lines.iter().filter_map(entry).collect()
}

/// Writes `tablespace_map`.
pub(crate) fn format_map<'m>(tablespaces: impl Iterator<Item = (u32, &'m Path)>) -> Vec<u8> {
    let mut map = Vec::new();
    for (oid, folder) in tablespaces {
        map.extend_from_slice(format!("{oid} ").as_bytes());
        for &byte in folder.as_os_str().as_bytes() {
            if matches!(byte, b'\\' | b'\n' | b'\r') {
                map.push(b'\\');
            }
            map.push(byte);
        }
        map.push(b'\n');
    }
    map
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use tar::{Builder, Header};

    use super::*;
    use crate::destination::NewFolder;

    fn new<'f>(root: &'f Path, done: &'f mut dyn FnMut(u64)) -> NewFolder<'f> {
        NewFolder { root, done }
    }

    fn header(name: &[u8], kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        // `set_path` refuses hostile names.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o600);
        header.set_cksum();
        header
    }

    fn tar_of(path: &Path, entries: &[(Header, &[u8])]) -> TarFile {
        let mut builder = Builder::new(File::create(path).unwrap());
        for (header, content) in entries {
            builder.append(header, *content).unwrap();
        }
        builder.into_inner().unwrap();
        TarFile::new(path.to_owned()).unwrap()
    }

    #[test]
    fn hostile_entries_are_refused_and_nothing_is_written_outside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.tar");
        let mut link = header(b"base/link", EntryType::Symlink, 0);
        link.set_link_name("/etc").unwrap();
        link.set_cksum();
        let cases: [(Header, &[u8], &str); 7] = [
            (header(b"/etc/x", EntryType::Regular, 1), b"x", "expected paths inside"),
            (header(b"../x", EntryType::Regular, 1), b"x", "expected paths inside"),
            (header(b"base/../../x", EntryType::Regular, 1), b"x", "expected paths inside"),
            (link, b"", "found a symbolic link: base/link"),
            (header(b"base/1", EntryType::Link, 0), b"", "found a hard link"),
            (header(b"base/1", EntryType::Fifo, 0), b"", "of another kind"),
            (header(b"long", EntryType::GNULongName, 1 << 20), &[b'x'; 1 << 20], "at most"),
        ];
        for (header, content, expected) in cases {
            let file = tar_of(&path, &[(header, content)]);
            let target = folder.path().join("target");
            let error = file.unpack(&mut new(&target, &mut |_| ()), |_| true).unwrap_err();
            let text = walden_source::error_text(&error);
            assert!(text.contains(expected), "{expected}: {text}");
            assert!(!folder.path().join("x").exists() && !target.exists(), "{expected}");
        }
    }

    #[test]
    fn a_file_is_never_written_through_a_link_or_twice() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("base.tar"), folder.path().join("target"));
        let file = |name| header(name, EntryType::Regular, 1);
        let mut link = header(b"pg_wal", EntryType::Symlink, 0);
        link.set_link_name("/etc").unwrap();
        link.set_cksum();
        let tar = tar_of(&path, &[(link, b""), (file(b"./pg_wal/x"), b"x"), (file(b"a"), b"1")]);
        tar.unpack(&mut new(&target, &mut |_| ()), |_| true).unwrap();
        assert!(!target.join("pg_wal").is_symlink());
        assert_eq!(fs::read(target.join("pg_wal/x")).unwrap(), b"x");
        fs::remove_dir_all(&target).unwrap();
        let tar = tar_of(&path, &[(file(b"a"), b"1"), (file(b"./a"), b"2")]);
        assert!(tar.unpack(&mut new(&target, &mut |_| ()), |_| true).is_err());
        assert_eq!(fs::read(target.join("a")).unwrap(), b"1");
    }

    #[test]
    fn a_tar_file_that_was_cut_off_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.tar");
        let entry = |name| (header(name, EntryType::Regular, 600), &[7_u8; 600][..]);
        tar_of(&path, &[entry(b"a"), entry(b"b")]);
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len(), 2 * 1536 + 1024);
        let is_read = |bytes: usize| {
            fs::write(&path, &whole[..bytes]).unwrap();
            TarFile::new(path.clone()).unwrap().read(None, |_, _| Ok(())).is_ok()
        };
        assert!(is_read(whole.len()) && is_read(2 * 1536 + 512));
        for cut in [0, 300, 512, 1000, 1536, 2048, 2 * 1536 - 1, 2 * 1536] {
            assert!(!is_read(cut), "{cut}");
        }
    }

    #[test]
    fn damage_of_a_header_is_located() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.tar");
        let entry = |name| (header(name, EntryType::Regular, 600), &[7_u8; 600][..]);
        tar_of(&path, &[entry(b"a"), entry(b"b")]);
        let whole = fs::read(&path).unwrap();
        // The name, the size and the checksum of the second entry.
        for offset in [1536, 1536 + 124, 1536 + 148] {
            let mut damaged = whole.clone();
            damaged[offset] ^= 1;
            fs::write(&path, damaged).unwrap();
            let error = TarFile::new(path.clone()).unwrap().read(None, |_, _| Ok(())).unwrap_err();
            let text = walden_source::error_text(&error);
            assert!(
                text.starts_with(&format!("cannot read {}: expected the header", path.display())),
                "{text}"
            );
            assert!(text.contains("at offset 1536 (decompressed), found neither: "), "{text}");
            assert!(text.contains("get another copy of it"), "{text}");
        }
    }

    #[test]
    fn a_map_of_tablespaces_is_unescaped() {
        let found = parse_map(b"16384 /srv/fast\n16385 /with space/a\\\\b\\\nc\n");
        let expected = [(16384, "/srv/fast".into()), (16385, "/with space/a\\b\nc".into())];
        let expected = BTreeMap::from(expected);
        assert_eq!(found, expected);
        let written = format_map(expected.iter().map(|(oid, folder)| (*oid, folder.as_path())));
        assert_eq!(parse_map(&written), expected);
        assert!(parse_map(b"").is_empty() && parse_map(b"x\n\n1").is_empty());
    }
}
