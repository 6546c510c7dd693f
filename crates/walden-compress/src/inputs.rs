//! The files to compress or decompress: finds, opens, counts and removes them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use walden_output::is_temporary;
use walden_source::counted;

use crate::error::{FileError, at};
use crate::{PACK_ENDING, SEGMENT_ENDING, is_stream};

type Result<T> = std::result::Result<T, FileError>;

const OPEN: &str = "cannot open";
const COMPRESS: &str = "cannot compress";
const READ: &str = "cannot read";
const REMOVE: &str = "cannot remove";

/// A file to compress or to decompress.
#[derive(Clone, Debug)]
pub struct Input {
    /// Path of the file.
    pub path: PathBuf,
    /// Path relative to the argument under which the file was found.
    pub relative: PathBuf,
}

/// Finds all files to compress, without duplicates, and returns an error for each argument that cannot be
/// compressed. `report` receives each warning as a line.
pub fn gather(files: &[PathBuf], report: &dyn Fn(&str)) -> (Vec<Input>, Vec<FileError>) {
    let (mut inputs, mut errors) = (Vec::new(), Vec::new());
    for path in files {
        let gathered = match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                let (before, compressed) = (inputs.len(), Cell::new(0_u64));
                let is_original = |path: &Path| {
                    // An earlier run made a compressed file that is next to its original.
                    let is_alone = is_compressed(path) && !path.with_extension("").exists();
                    compressed.set(compressed.get() + u64::from(is_alone));
                    is_original(path)
                };
                let searched = search(path, Path::new(""), &is_original, &mut inputs, report);
                if compressed.get() > 0 && searched.is_ok() {
                    report(&format!(
                        "warning: left out {} of {}: walden archive pack packs the segments of an archive, and walden decompress restores the \
                         originals of others",
                        counted(compressed.get(), "compressed file"),
                        path.display()
                    ));
                }
                searched.and_then(|()| match inputs.len() > before {
                    true => Ok(()),
                    false => {
                        Err(FileError::unfit(COMPRESS, path, "expected files in the folder, found none"))
                    }
                })
            }
            // Compressing a compressed file is never useful. Compressed files in folders are skipped, too.
            Ok(_) if is_compressed(path) => {
                Err(FileError::unfit(COMPRESS, path, "it is a compressed file already"))
            }
            Ok(_) => match path.file_name() {
                Some(name) => {
                    inputs.push(Input { path: path.clone(), relative: name.into() });
                    Ok(())
                }
                None => Err(FileError::unfit(COMPRESS, path, "expected a file name")),
            },
            Err(error) => Err(at(OPEN, path)(error)),
        };
        errors.extend(gathered.err());
    }
    let mut seen = BTreeSet::new();
    inputs.retain(|input| seen.insert(fs::canonicalize(&input.path).unwrap_or_else(|_| input.path.clone())));
    (inputs, errors)
}

/// Finds the compressed files: all compressed files in folders, and every file named as an argument. Returns
/// an error for each folder without any. `report` receives each warning as a line.
pub fn gather_compressed(files: &[PathBuf], report: &dyn Fn(&str)) -> (Vec<Input>, Vec<FileError>) {
    let (mut inputs, mut errors) = (Vec::new(), Vec::new());
    for path in files {
        if is_stream(path) || !path.is_dir() {
            let relative = path.file_name().map(PathBuf::from).unwrap_or_default();
            inputs.push(Input { path: path.clone(), relative });
            continue;
        }
        let before = inputs.len();
        let searched = search(path, Path::new(""), &is_compressed, &mut inputs, report);
        if let Err(error) = searched {
            errors.push(error);
        } else if inputs.len() == before {
            let problem =
                format!("expected .{SEGMENT_ENDING} or .{PACK_ENDING} files in the folder, found none");
            errors.push(FileError::unfit(READ, path, problem));
        }
    }
    (inputs, errors)
}

/// The folder in which PostgreSQL records which segments are archived.
const NOT_LOG: &str = "archive_status";

/// Adds to `inputs` each file, in a folder and all its subfolders, for which `is_wanted` returns true.
fn search(
    folder: &Path,
    relative: &Path,
    is_wanted: &dyn Fn(&Path) -> bool,
    inputs: &mut Vec<Input>,
    report: &dyn Fn(&str),
) -> Result<()> {
    let failed = at("cannot search", folder);
    let entries = fs::read_dir(folder).map_err(&failed)?;
    let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(&failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().map_err(&failed)?;
        if kind.is_dir() {
            if name != NOT_LOG {
                search(&path, &relative.join(&name), is_wanted, inputs, report)?;
            }
            continue;
        }
        // A link to a segment is read as the segment. A dangling link is an error. A link to a folder is
        // skipped with a warning, as it could form a cycle.
        let is_link = kind.is_symlink();
        let found = if is_link {
            fs::metadata(&path).map_err(at(OPEN, &path))?
        } else {
            entry.metadata().map_err(&failed)?
        };
        if found.is_dir() {
            report(&format!(
                "warning: {} is a link to a folder and is skipped; give the folder itself as a further input",
                path.display()
            ));
        } else if found.is_file() && is_wanted(&path) {
            inputs.push(Input { path, relative: relative.join(&name) });
        }
    }
    Ok(())
}

fn is_original(path: &Path) -> bool {
    !is_compressed(path) && !path.file_name().is_some_and(is_temporary)
}

fn is_compressed(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    [Some(SEGMENT_ENDING), Some(PACK_ENDING)].contains(&ending)
}

/// Opens a regular file. Refuses a named pipe: opening it would block until a writer opens it.
pub(crate) fn open(path: &Path) -> Result<(File, Metadata)> {
    let failed = at(OPEN, path);
    let kind = fs::metadata(path).map_err(&failed)?.file_type();
    if !kind.is_file() {
        let hint = if kind.is_dir() { ", found a folder: name the files in it" } else { "" };
        return Err(FileError::unfit(READ, path, format!("expected a regular file{hint}")));
    }
    let file = File::open(path).map_err(&failed)?;
    let found = file.metadata().map_err(&failed)?;
    Ok((file, found))
}

/// Removes an original, unless it changed after it was read.
pub(crate) fn remove(path: &Path, read: &Metadata) -> Result<()> {
    let now = fs::symlink_metadata(path).map_err(at(REMOVE, path))?;
    if now.is_symlink() {
        let problem = "it is a symbolic link; neither it nor its target is removed";
        return Err(FileError::unfit(REMOVE, path, problem));
    }
    let key = |found: &Metadata| (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec());
    if key(&now) != key(read) {
        return Err(FileError::unfit(REMOVE, path, "it has changed since it was read"));
    }
    fs::remove_file(path).map_err(at(REMOVE, path))
}

/// A reader that reports the bytes read.
pub(crate) struct Counted<'a> {
    input: &'a mut File,
    /// Bytes of the file not counted yet.
    left: u64,
    advance: &'a (dyn Fn(u64) + Sync),
}

impl<'a> Counted<'a> {
    /// Reports progress through a file of `bytes` bytes; dropping it reports the remaining bytes.
    pub fn new(input: &'a mut File, bytes: u64, advance: &'a (dyn Fn(u64) + Sync)) -> Counted<'a> {
        Counted { input, left: bytes, advance }
    }

    fn count(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        (self.advance)(bytes);
    }
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let max = buffer.len().min(1 << 20);
        let got = self.input.read(&mut buffer[..max])?;
        // A segment is read twice, so each read counts half.
        self.count(got.div_ceil(2) as u64);
        Ok(got)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.count(self.left);
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.input.seek(to)
    }
}
