//! The files to compress: finds, opens, counts and removes them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::{CompressArgs, PACK_ENDING, SEGMENT_ENDING, is_stream};
use crate::output;

/// A file to compress or to decompress.
#[derive(Clone)]
pub struct Input {
    pub path: PathBuf,
    /// Path relative to the argument under which the file was found.
    pub relative: PathBuf,
}

/// Finds all files to compress, without duplicates, and returns an error for each argument that cannot be
/// compressed.
pub fn gather(files: &[PathBuf]) -> (Vec<Input>, Vec<anyhow::Error>) {
    let (mut inputs, mut errors) = (Vec::new(), Vec::new());
    for path in files {
        let gathered = match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                let before = inputs.len();
                search(path, Path::new(""), is_original, &mut inputs).and_then(|()| {
                    ensure!(
                        inputs.len() > before,
                        "cannot compress {}: expected files in it, found none",
                        path.display()
                    );
                    Ok(())
                })
            }
            // Compressing a compressed file is never useful. Compressed files in folders are skipped, too.
            Ok(_) if is_compressed(path) => {
                Err(anyhow!("cannot compress {}: it is a compressed file already", path.display()))
            }
            Ok(_) => match path.file_name() {
                Some(name) => {
                    inputs.push(Input { path: path.clone(), relative: name.into() });
                    Ok(())
                }
                None => Err(anyhow!("cannot compress {}: expected a file name", path.display())),
            },
            Err(error) => Err(anyhow!(error).context(format!("cannot open {}", path.display()))),
        };
        errors.extend(gathered.err());
    }
    let mut seen = BTreeSet::new();
    inputs.retain(|input| seen.insert(fs::canonicalize(&input.path).unwrap_or_else(|_| input.path.clone())));
    (inputs, errors)
}

/// Finds the compressed files: those in folders, and every file named as an argument. Returns an error for
/// each folder without any.
pub fn gather_compressed(files: &[PathBuf]) -> (Vec<Input>, Vec<anyhow::Error>) {
    let (mut inputs, mut errors) = (Vec::new(), Vec::new());
    for path in files {
        if is_stream(path) || !path.is_dir() {
            let relative = path.file_name().map(PathBuf::from).unwrap_or_default();
            inputs.push(Input { path: path.clone(), relative });
            continue;
        }
        let before = inputs.len();
        let searched = search(path, Path::new(""), is_compressed, &mut inputs);
        if let Err(error) = searched {
            errors.push(error);
        } else if inputs.len() == before {
            errors.push(anyhow!(
                "cannot read {}: expected .{SEGMENT_ENDING} or .{PACK_ENDING} files in it, found none",
                path.display()
            ));
        }
    }
    (inputs, errors)
}

/// Returns the error text for a missing input that may be meant as the pack's name.
pub fn no_pack(args: &CompressArgs) -> String {
    let is_pack =
        |path: &&PathBuf| path.extension().is_some_and(|ending| ending == PACK_ENDING) && !path.exists();
    match args.files.iter().find(is_pack) {
        Some(name) => {
            format!("no pack is written; its name follows an equals sign: --pack={}", name.display())
        }
        None => "no pack is written".into(),
    }
}

/// The folder in which PostgreSQL records which segments are archived.
const NOT_LOG: &str = "archive_status";

/// Adds all files of a folder and its subfolders for which `is_wanted` returns true.
fn search(
    folder: &Path,
    relative: &Path,
    is_wanted: fn(&Path) -> bool,
    inputs: &mut Vec<Input>,
) -> Result<()> {
    let named = || format!("cannot search {}", folder.display());
    let entries = fs::read_dir(folder).with_context(named)?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().with_context(named)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().with_context(named)?;
        if kind.is_dir() {
            if name != NOT_LOG {
                search(&path, &relative.join(&name), is_wanted, inputs)?;
            }
            continue;
        }
        // A link to a segment is read as the segment. A dangling link is an error. A link to a folder is
        // skipped with a warning, as it could form a cycle.
        let is_link = kind.is_symlink();
        let found = if is_link {
            fs::metadata(&path).with_context(|| format!("cannot open {}", path.display()))?
        } else {
            entry.metadata().with_context(named)?
        };
        if found.is_dir() {
            eprintln!(
                "warning: {} is a link to a folder and is left out; name that folder, too",
                path.display()
            );
        } else if found.is_file() && is_wanted(&path) {
            inputs.push(Input { path, relative: relative.join(&name) });
        }
    }
    Ok(())
}

fn is_original(path: &Path) -> bool {
    !is_compressed(path) && !path.file_name().is_some_and(output::is_temporary)
}

fn is_compressed(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    [Some(SEGMENT_ENDING), Some(PACK_ENDING)].contains(&ending)
}

/// Opens a regular file. Refuses a named pipe: opening it would block until a writer opens it.
pub fn open(path: &Path) -> Result<(File, Metadata)> {
    let named = || format!("cannot open {}", path.display());
    let kind = fs::metadata(path).with_context(named)?.file_type();
    let hint = if kind.is_dir() { ", found a folder: name the files in it" } else { "" };
    ensure!(kind.is_file(), "cannot read {}: expected a regular file{hint}", path.display());
    let file = File::open(path).with_context(named)?;
    let found = file.metadata().with_context(named)?;
    Ok((file, found))
}

/// Removes an original, unless it changed after it was read.
pub fn remove(path: &Path, read: &Metadata) -> Result<()> {
    let now = fs::symlink_metadata(path).with_context(|| format!("cannot remove {}", path.display()))?;
    ensure!(
        !now.is_symlink(),
        "cannot remove {}: it is a symbolic link; neither it nor its target is removed",
        path.display()
    );
    let key = |found: &Metadata| (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec());
    ensure!(key(&now) == key(read), "cannot remove {}: it has changed since it was read", path.display());
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}

/// A reader that reports the bytes read.
pub struct Counted<'a> {
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
