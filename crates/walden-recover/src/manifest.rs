//! `backup_manifest`: the files of a base backup, their checksums, and the WAL that it needs
//! (`backup_manifest.c`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};
use rustix::io::Errno;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use walden_format::crc::crc32c_append;
use walden_format::lsn::{Lsn, Timeline};

use crate::copy::{is_emptied, is_left_out_link, refuse_link};
use crate::error::RecoverError;
use crate::private;
use crate::work_folder::{MARK, RENAME_MARK};

/// Longest accepted line, in bytes. A line describes one file.
const MAX_LINE: usize = 1 << 20;
/// The form of `Last-Modified`.
const TIME: &str = "%Y-%m-%d %H:%M:%S GMT";
/// Files and folders that `pg_verifybackup` does not compare.
const NOT_COMPARED: [&str; 5] =
    ["backup_manifest", "pg_wal", "postgresql.auto.conf", "recovery.signal", "standby.signal"];

/// The WAL that a backup needs from one timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalRange {
    /// The timeline.
    pub timeline: Timeline,
    /// Start of the range.
    pub start: Lsn,
    /// End of the range, if known. A manifest has it.
    pub end: Option<Lsn>,
}

/// A manifest. With `F = IgnoredAny`, its list of files is skipped.
#[derive(Clone, Debug)]
pub struct Manifest<F = ManifestFiles> {
    /// System identifier of the cluster, since PostgreSQL 17.
    pub system_identifier: Option<u64>,
    /// The files of the backup.
    pub files: F,
    /// The WAL that makes the backup consistent, ordered by timeline and position. Never empty.
    pub ranges: Vec<WalRange>,
}

/// The files of a manifest by their paths in the data directory.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Vec<JsonFile>")]
pub struct ManifestFiles(pub(crate) BTreeMap<PathBuf, ManifestFile>);

/// A file of a manifest.
#[derive(Clone, Debug)]
pub(crate) struct ManifestFile {
    pub size: u64,
    /// In seconds since 1970-01-01 00:00:00 UTC.
    pub modified: Option<i64>,
    /// Nothing with `--manifest-checksums=NONE`.
    pub checksum: Option<Checksum>,
}

/// A checksum of a file, in hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Checksum {
    pub algorithm: Algorithm,
    pub digits: String,
}

/// Sizes and CRC-32C of the files of a base backup, computed while it is received.
#[derive(Clone, Default, Debug)]
pub struct FileSums(BTreeMap<PathBuf, (u64, u32)>);

impl FileSums {
    /// Adds a file without content, or replaces it.
    pub fn start(&mut self, path: PathBuf) {
        self.0.insert(path, (0, 0));
    }

    /// Adds content to a file.
    pub fn add(&mut self, path: &Path, content: &[u8]) {
        if let Some((size, crc)) = self.0.get_mut(path) {
            *size += content.len() as u64;
            *crc = crc32c_append(*crc, content);
        }
    }

    /// Adds a file by its size in bytes and its checksum, or replaces it.
    pub fn insert(&mut self, path: PathBuf, bytes: u64, crc: u32) {
        self.0.insert(path, (bytes, crc));
    }

    /// Returns the number of files and the sum of their sizes in bytes.
    pub fn totals(&self) -> (u64, u64) {
        (self.0.len() as u64, self.0.values().map(|(size, _)| size).sum())
    }
}

/// An algorithm of checksums (`pg_basebackup --manifest-checksums`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(crate) enum Algorithm {
    #[serde(rename = "CRC32C")]
    Crc32c,
    #[serde(rename = "SHA224")]
    Sha224,
    #[serde(rename = "SHA256")]
    Sha256,
    #[serde(rename = "SHA384")]
    Sha384,
    #[serde(rename = "SHA512")]
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Crc32c => "CRC32C",
            Algorithm::Sha224 => "SHA224",
            Algorithm::Sha256 => "SHA256",
            Algorithm::Sha384 => "SHA384",
            Algorithm::Sha512 => "SHA512",
        }
    }

    /// The checksum of a content.
    pub fn checksum(self, content: &mut dyn Read) -> io::Result<Checksum> {
        let digits = match self {
            Algorithm::Crc32c => {
                let mut crc = 0;
                read_all(content, |bytes| crc = crc32c_append(crc, bytes))?;
                // PostgreSQL writes the bytes of the number as it is in memory.
                to_hex(&crc.to_le_bytes())
            }
            Algorithm::Sha224 => sha::<Sha224>(content)?,
            Algorithm::Sha256 => sha::<Sha256>(content)?,
            Algorithm::Sha384 => sha::<Sha384>(content)?,
            Algorithm::Sha512 => sha::<Sha512>(content)?,
        };
        Ok(Checksum { algorithm: self, digits })
    }
}

fn sha<D: Digest>(content: &mut dyn Read) -> io::Result<String> {
    let mut digest = D::new();
    read_all(content, |bytes| digest.update(bytes))?;
    Ok(to_hex(&digest.finalize()))
}

fn read_all(content: &mut dyn Read, mut sink: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => sink(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok();
    text.len().is_multiple_of(2).then(|| text.as_bytes().chunks_exact(2).map(byte).collect())?
}

#[derive(Deserialize)]
struct Json<F> {
    #[serde(rename = "PostgreSQL-Backup-Manifest-Version")]
    version: u32,
    #[serde(rename = "System-Identifier")]
    system_identifier: Option<u64>,
    #[serde(rename = "Files")]
    files: F,
    #[serde(rename = "WAL-Ranges")]
    ranges: Vec<JsonRange>,
    #[serde(rename = "Manifest-Checksum")]
    checksum: String,
}

#[derive(Deserialize)]
struct JsonRange {
    #[serde(rename = "Timeline")]
    timeline: Timeline,
    #[serde(rename = "Start-LSN")]
    start: String,
    #[serde(rename = "End-LSN")]
    end: String,
}

#[derive(Deserialize)]
struct JsonFile {
    #[serde(rename = "Path")]
    path: Option<String>,
    #[serde(rename = "Encoded-Path")]
    encoded_path: Option<String>,
    #[serde(rename = "Size")]
    size: u64,
    #[serde(rename = "Last-Modified")]
    modified: Option<String>,
    #[serde(rename = "Checksum-Algorithm")]
    algorithm: Option<Algorithm>,
    #[serde(rename = "Checksum")]
    checksum: Option<String>,
}

impl TryFrom<Vec<JsonFile>> for ManifestFiles {
    type Error = String;

    fn try_from(files: Vec<JsonFile>) -> Result<ManifestFiles, String> {
        let read = |file: JsonFile| {
            let encoded = || {
                file.encoded_path.as_deref().and_then(from_hex).map(|path| OsString::from_vec(path).into())
            };
            let path: PathBuf =
                file.path.map(PathBuf::from).or_else(encoded).ok_or("expected a path, found none")?;
            let is_inside = |part| matches!(part, Component::Normal(_));
            if path.as_os_str().is_empty() || !path.components().all(is_inside) {
                return Err(format!("expected a path in the backup, found {}", path.display()));
            }
            let seconds = |text: &String| {
                let time = jiff::civil::DateTime::strptime(TIME, text).ok()?;
                Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
            };
            let checksum = file.algorithm.zip(file.checksum);
            let checksum = checksum
                .map(|(algorithm, digits)| Checksum { algorithm, digits: digits.to_ascii_lowercase() });
            let modified = file.modified.as_ref().and_then(seconds);
            Ok((path, ManifestFile { size: file.size, modified, checksum }))
        };
        files.into_iter().map(read).collect::<Result<_, String>>().map(ManifestFiles)
    }
}

impl<F: DeserializeOwned> Manifest<F> {
    /// Reads a manifest and verifies its checksum. A manifest has a line for each file of the backup, so its
    /// text is never held in memory as a whole.
    ///
    /// # Errors
    /// A description of the expected and found values.
    pub fn read(content: impl Read) -> Result<Manifest<F>, String> {
        let mut content = Summed { content, sum: Sha256::new(), last_line: Vec::new() };
        let json: Json<F> = serde_json::from_reader(BufReader::with_capacity(64 << 10, &mut content))
            .map_err(|error| format!("expected the manifest of a base backup: {error}"))?;
        if !(1..=2).contains(&json.version) {
            return Err(format!("expected version 1 or 2 of the manifest, found {}", json.version));
        }
        let checksum = to_hex(&content.sum.finalize());
        if checksum != json.checksum {
            return Err(format!("expected SHA-256 {}, found {checksum}", json.checksum));
        }
        let range = |range: &JsonRange| {
            let (start, end): (Lsn, Lsn) = (range.start.parse().ok()?, range.end.parse().ok()?);
            (start <= end).then_some(WalRange { timeline: range.timeline, start, end: Some(end) })
        };
        let ranges: Option<Vec<WalRange>> = json.ranges.iter().map(range).collect();
        let mut ranges = ranges
            .filter(|ranges| !ranges.is_empty())
            .ok_or("expected ranges of WAL with a start and an end, found others")?;
        ranges.sort_by_key(|range| (range.timeline, range.start));
        Ok(Manifest { system_identifier: json.system_identifier, files: json.files, ranges })
    }
}

/// Computes the SHA-256 of the bytes read up to the start of the last line: a manifest's checksum covers
/// everything before its own line.
struct Summed<R> {
    content: R,
    sum: Sha256,
    /// Bytes that were read but not yet hashed: the last non-blank line and the white space after it.
    last_line: Vec<u8>,
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.last_line.extend_from_slice(&buffer[..read]);
        if let Some(at) = self.last_line.trim_ascii_end().iter().rposition(|&byte| byte == b'\n') {
            self.sum.update(&self.last_line[..=at]);
            self.last_line.drain(..=at);
        }
        if self.last_line.len() > MAX_LINE {
            let problem = format!("expected lines of at most {MAX_LINE} bytes, found a longer one");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        Ok(read)
    }
}

impl Manifest {
    /// Its name in a base backup.
    pub(crate) const FILE: &str = "backup_manifest";

    /// Creates the manifest of a backup. `modified` has the times of the files in seconds since 1970-01-01
    /// 00:00:00 UTC.
    pub fn new(
        system_identifier: u64,
        sums: &FileSums,
        modified: &BTreeMap<PathBuf, i64>,
        ranges: Vec<WalRange>,
    ) -> Manifest {
        let file = |(path, (size, crc)): (&PathBuf, &(u64, u32))| {
            let checksum = Checksum { algorithm: Algorithm::Crc32c, digits: to_hex(&crc.to_le_bytes()) };
            let modified = modified.get(path).copied();
            (path.clone(), ManifestFile { size: *size, modified, checksum: Some(checksum) })
        };
        let files = ManifestFiles(sums.0.iter().map(file).collect());
        Manifest { system_identifier: Some(system_identifier), files, ranges }
    }

    /// Compares the sizes and, if they are of CRC-32C, the checksums of all files with those of a backup.
    ///
    /// # Errors
    /// The first file that is missing, differs, or is not in the manifest.
    pub fn compare(&self, found: &FileSums) -> Result<(), String> {
        for (path, file) in &self.files.0 {
            let Some((size, crc)) = found.0.get(path) else {
                return Err(format!("expected the file {}, found none", path.display()));
            };
            if file.size != *size {
                let (path, expected) = (path.display(), file.size);
                return Err(format!("expected {path} with {expected} bytes, found {size}"));
            }
            let expected = file.checksum.as_ref().filter(|sum| sum.algorithm == Algorithm::Crc32c);
            let digits = to_hex(&crc.to_le_bytes());
            if let Some(sum) = expected.filter(|sum| sum.digits != digits) {
                let (path, expected) = (path.display(), &sum.digits);
                return Err(format!("expected {path} with CRC-32C {expected}, found {digits}"));
            }
        }
        match found.0.keys().find(|path| !self.files.0.contains_key(*path) && !may_differ(path)) {
            Some(path) => Err(format!("expected no file {}, found it", path.display())),
            None => Ok(()),
        }
    }

    /// The files that must be those of the backup.
    pub(crate) fn compared_files(&self) -> impl Iterator<Item = (&Path, &ManifestFile)> {
        let files = self.files.0.iter().map(|(name, file)| (name.as_path(), file));
        files.filter(|(name, _)| !may_differ(name))
    }

    /// Sets the modification times of a backup's copy to those of the manifest. A file that is changed later
    /// then has another modification time.
    pub(crate) fn set_times(&self, copy: &Path) -> Result<(), RecoverError> {
        self.files.0.keys().try_for_each(|name| self.set_time(copy, name))
    }

    /// As [`Manifest::set_times`], for one file. A file that is not in the manifest or not in the copy stays
    /// as it is.
    pub(crate) fn set_time(&self, copy: &Path, name: &Path) -> Result<(), RecoverError> {
        let file = self.files.0.get(name);
        let Some(seconds) = file.and_then(|file| file.modified) else { return Ok(()) };
        let last_modification = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let path = copy.join(name);
        match utimensat(CWD, &path, &Timestamps { last_access, last_modification }, AtFlags::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) | Ok(()) => Ok(()),
            Err(error) => Err(RecoverError::io("write", &path)(error.into())),
        }
    }

    /// Returns the manifest of the backup in `folder`, a copy of this manifest's that was changed after
    /// [`Manifest::set_times`]. Only files with another size or time are read.
    pub(crate) fn after_changes(
        &self,
        folder: &Path,
        range: WalRange,
        threads: usize,
    ) -> Result<Manifest, RecoverError> {
        let mut files = BTreeMap::new();
        list_files(folder, Path::new(""), &mut |name, metadata| {
            let (size, modified) = (metadata.len(), metadata.mtime());
            let is_same = |old: &&ManifestFile| {
                let time = (Some(modified), metadata.mtime_nsec());
                old.size == size && (old.modified, 0) == time && !may_differ(&name)
            };
            let checksum = self.files.0.get(&name).filter(is_same).and_then(|old| old.checksum.clone());
            files.insert(name, ManifestFile { size, modified: Some(modified), checksum });
        })?;
        if let Some(algorithm) = self.algorithm() {
            let changed = files.iter().filter(|(_, file)| file.checksum.is_none());
            let changed: Vec<PathBuf> = changed.map(|(name, _)| name.clone()).collect();
            let changed: Vec<_> = changed.iter().map(|name| (name.as_path(), algorithm)).collect();
            compute_checksums(folder, &changed, threads, &mut |number, checksum, _| {
                if let Some(file) = files.get_mut(changed[number].0) {
                    file.checksum = Some(checksum);
                }
            })?;
        }
        let (system_identifier, ranges) = (self.system_identifier, vec![range]);
        Ok(Manifest { system_identifier, files: ManifestFiles(files), ranges })
    }

    /// Adds a file, or replaces its entry.
    pub(crate) fn add(&mut self, name: &str, content: &[u8], modified: i64) -> io::Result<()> {
        let checksum = self.algorithm().map(|algorithm| algorithm.checksum(&mut &content[..])).transpose()?;
        let file = ManifestFile { size: content.len() as u64, modified: Some(modified), checksum };
        self.files.0.insert(name.into(), file);
        Ok(())
    }

    /// The algorithm of its checksums.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.files.0.values().find_map(|file| Some(file.checksum.as_ref()?.algorithm))
    }

    /// Writes it to a new file. `major` is the version of the server.
    pub(crate) fn write(&self, path: &Path, major: u32) -> io::Result<()> {
        self.write_to(BufWriter::new(private::create(path)?), major)
    }

    /// Writes it. `major` is the version of the server.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: impl Write, major: u32) -> io::Result<()> {
        let mut file = Hashing { out, sum: Sha256::new() };
        match self.system_identifier.filter(|_| major >= 17) {
            Some(system) => write!(
                file,
                "{{ \"PostgreSQL-Backup-Manifest-Version\": 2,\n\"System-Identifier\": {system},\n\"Files\": ["
            )?,
            None => write!(file, "{{ \"PostgreSQL-Backup-Manifest-Version\": 1,\n\"Files\": [")?,
        }
        let mut separator = "\n";
        for (path, one) in &self.files.0 {
            write!(file, "{separator}{}", one.json(path)?)?;
            separator = ",\n";
        }
        write!(file, "\n],\n\"WAL-Ranges\": [\n")?;
        let mut separator = "";
        for WalRange { timeline, start, end } in &self.ranges {
            let end = end.unwrap_or(*start);
            write!(
                file,
                "{separator}{{ \"Timeline\": {timeline}, \"Start-LSN\": \"{start}\", \"End-LSN\": \"{end}\" }}"
            )?;
            separator = ",\n";
        }
        write!(file, "\n],\n")?;
        writeln!(file.out, "\"Manifest-Checksum\": \"{}\"}}", to_hex(&file.sum.finalize()))?;
        file.out.flush()
    }
}

impl ManifestFile {
    fn json(&self, path: &Path) -> io::Result<String> {
        let mut text = match path.to_str() {
            Some(path) => format!("{{ \"Path\": {}", serde_json::to_string(path)?),
            None => format!("{{ \"Encoded-Path\": \"{}\"", to_hex(path.as_os_str().as_bytes())),
        };
        let modified = jiff::Timestamp::from_second(self.modified.unwrap_or_default()).unwrap_or_default();
        let _ = write!(text, ", \"Size\": {}, \"Last-Modified\": \"{}\"", self.size, modified.strftime(TIME));
        if let Some(Checksum { algorithm, digits }) = &self.checksum {
            let algorithm = algorithm.name();
            let _ = write!(text, ", \"Checksum-Algorithm\": \"{algorithm}\", \"Checksum\": \"{digits}\"");
        }
        Ok(text + " }")
    }
}

/// Computes the SHA-256 of everything that is written through it.
struct Hashing<W> {
    out: W,
    sum: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Whether a file may differ from the manifest: `pg_verifybackup` does not compare it, or an administrator
/// changes it.
fn may_differ(path: &Path) -> bool {
    let is_configuration =
        path.components().count() == 1 && path.extension().is_some_and(|ending| ending == "conf");
    is_configuration || NOT_COMPARED.iter().any(|name| path.starts_with(name))
}

/// Calls `found` for each file of a backup that its manifest lists. Links in `pg_tblspc` are followed, those
/// that a copy does not have are left out, and others are refused.
pub(crate) fn list_files(
    data: &Path,
    inside: &Path,
    found: &mut dyn FnMut(PathBuf, &Metadata),
) -> Result<(), RecoverError> {
    let folder = data.join(inside);
    for entry in fs::read_dir(&folder).map_err(RecoverError::io("read", &folder))? {
        let entry = entry.map_err(RecoverError::io("read", &folder))?;
        let (name, path) = (inside.join(entry.file_name()), entry.path());
        let left_out = [MARK, RENAME_MARK, "pg_wal", Manifest::FILE];
        if left_out.iter().any(|one| name == Path::new(one)) || entry.file_name() == MARK {
            continue;
        }
        let kind = entry.file_type().map_err(RecoverError::io("read", &path))?;
        if kind.is_symlink() && (is_emptied(&name) || is_left_out_link(&name)) {
            continue;
        }
        if kind.is_symlink() && inside != Path::new("pg_tblspc") {
            return Err(refuse_link(data, &name));
        }
        let metadata = fs::metadata(&path).map_err(RecoverError::io("read", &path))?;
        match metadata.is_dir() {
            true => list_files(data, &name, found)?,
            false => found(name, &metadata),
        }
    }
    Ok(())
}

/// Computes checksums of files in a folder with several threads. `done` gets the number of each file, its
/// checksum and its size.
pub(crate) fn compute_checksums(
    folder: &Path,
    files: &[(&Path, Algorithm)],
    threads: usize,
    done: &mut dyn FnMut(usize, Checksum, u64),
) -> Result<(), RecoverError> {
    let compute = |path: &Path, algorithm: Algorithm| {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        Ok((algorithm.checksum(&mut file)?, size))
    };
    let (next, (sender, results)) = (AtomicUsize::new(0), mpsc::sync_channel(64));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, files.len().max(1)) {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((name, algorithm)) = files.get(number) else { break };
                    let path = folder.join(name);
                    let result = compute(&path, *algorithm).map_err(RecoverError::io("read", &path));
                    if sender.send((number, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (number, result) in results {
            let (checksum, size) = result?;
            done(number, checksum, size);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use serde::de::IgnoredAny;

    use super::*;

    fn file(size: u64, checksum: Option<Checksum>) -> ManifestFile {
        ManifestFile { size, modified: Some(1_795_168_800), checksum }
    }

    #[test]
    fn a_manifest_that_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let checksum = Algorithm::Crc32c.checksum(&mut &b"123456789"[..]).unwrap();
        // The check value of CRC-32C is 0xE3069283.
        assert_eq!(checksum.digits, "839206e3");
        let odd = PathBuf::from(OsString::from_vec(b"a\xFF\"b".to_vec()));
        for major in [16, 17] {
            let files =
                [("base/1/\"quoted\"".into(), file(9, Some(checksum.clone()))), (odd.clone(), file(0, None))];
            let ranges = vec![WalRange { timeline: 2, start: Lsn(0x28), end: Some(Lsn(0x1_0000_0100)) }];
            let system_identifier = Some(u64::MAX);
            let files = ManifestFiles(files.into_iter().collect());
            Manifest { system_identifier, files, ranges: ranges.clone() }.write(&path, major).unwrap();
            let found: Manifest = Manifest::read(File::open(&path).unwrap()).unwrap();
            assert_eq!(found.system_identifier, system_identifier.filter(|_| major == 17));
            assert_eq!((found.ranges, found.files.0.len()), (ranges, 2));
            let one = &found.files.0[Path::new("base/1/\"quoted\"")];
            assert_eq!(
                (one.size, one.modified, one.checksum.as_ref()),
                (9, Some(1_795_168_800), Some(&checksum))
            );
            assert!(found.files.0[&odd].checksum.is_none());
        }
        // No bit of it can change, except for the last line break.
        let written = fs::read(&path).unwrap();
        for (at, bit) in (0..written.len() - 1).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut changed = written.clone();
            changed[at] ^= 1 << bit;
            assert!(Manifest::<ManifestFiles>::read(changed.as_slice()).is_err(), "bit {bit} of byte {at}");
        }
    }

    #[test]
    fn a_manifest_with_paths_outside_of_the_backup_is_refused() {
        for path in ["../x", "/etc/passwd", "a/../../x", ""] {
            let text = format!(
                "{{ \"PostgreSQL-Backup-Manifest-Version\": 1,\n\"Files\": [\n{{ \"Path\": \"{path}\", \"Size\": 0 }}\n],\n\
                 \"WAL-Ranges\": [\n{{ \"Timeline\": 1, \"Start-LSN\": \"0/28\", \"End-LSN\": \"0/30\" }}\n],\n"
            );
            let sum = to_hex(&Sha256::digest(&text));
            let text = format!("{text}\"Manifest-Checksum\": \"{sum}\"}}\n");
            let read = Manifest::<ManifestFiles>::read(text.as_bytes());
            assert!(read.is_err(), "{path}");
            assert!(Manifest::<IgnoredAny>::read(text.as_bytes()).is_ok());
        }
    }

    /// Returns a manifest with `files` files in PostgreSQL's format.
    fn manifest(files: u32) -> String {
        let file = |number| format!("{{ \"Path\": \"base/1/{number}\", \"Size\": 8192 }}");
        let files: Vec<String> = (0..files).map(file).collect();
        let text = format!(
            "{{ \"PostgreSQL-Backup-Manifest-Version\": 2,\n\"System-Identifier\": 7,\n\"Files\": [\n{}\n],\n\"WAL-Ranges\": [\n\
             {{ \"Timeline\": 1, \"Start-LSN\": \"0/2000028\", \"End-LSN\": \"0/2000120\" }}\n],\n",
            files.join(",\n")
        );
        let checksum = to_hex(&Sha256::digest(&text));
        format!("{text}\"Manifest-Checksum\": \"{checksum}\"}}\n")
    }

    #[test]
    fn a_manifest_is_read_a_line_at_a_time() {
        // Some manifests are larger than the read buffer.
        for files in [1, 100, 10_000] {
            let text = manifest(files);
            let found = Manifest::<IgnoredAny>::read(text.as_bytes()).unwrap();
            assert_eq!((found.system_identifier, found.ranges.len()), (Some(7), 1));
            let other = text.replacen("8192", "8193", 1);
            let error = Manifest::<IgnoredAny>::read(other.as_bytes()).unwrap_err();
            assert!(error.starts_with("expected SHA-256 "), "{error}");
        }
        let endless = Read::chain(&b"{ \"Path\": \""[..], io::repeat(b'x'));
        let error = Manifest::<IgnoredAny>::read(endless).unwrap_err();
        assert!(error.contains("expected lines of at most 1048576 bytes"), "{error}");
    }
}
