//! Stores a base backup in plain format as the tar archives that a server would send.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tar::{EntryType, Header};
use walden_recover::{MARK, MappedTablespace, RecoverError};

use super::documents::StoredBackup;
use super::error::BaseBackupError;
use super::writer::Writer;
use crate::objects::backup_files::MANIFEST;

/// Size of the blocks of a tar archive in bytes.
const BLOCK: usize = 512;

/// Adds the files of a base backup with its `backup_manifest`, and completes the stored one. Tablespaces are
/// read from their new folders. `done` gets the bytes of each part.
///
/// # Errors
/// A file cannot be read, or the backup cannot be stored.
pub fn store_folder(
    mut writer: Writer,
    data: &Path,
    tablespaces: &[MappedTablespace],
    done: &mut dyn FnMut(u64),
) -> Result<StoredBackup, BaseBackupError> {
    let manifest_path = data.join(MANIFEST);
    let manifest = fs::read(&manifest_path).map_err(|error| unreadable(&manifest_path, error))?;
    writer.start_archive(None)?;
    add_folder(&mut writer, data, Path::new(""), done)?;
    end_archive(&mut writer)?;
    for tablespace in tablespaces {
        let Some(oid) = tablespace.oid() else { continue };
        writer.start_archive(Some(oid))?;
        add_folder(&mut writer, tablespace.new_folder(), Path::new(""), done)?;
        end_archive(&mut writer)?;
    }
    writer.finish(&manifest)
}

/// Adds what is in a folder, in the order of the names: a later backup has unchanged files in the same
/// pieces.
fn add_folder(
    writer: &mut Writer,
    root: &Path,
    inside: &Path,
    done: &mut dyn FnMut(u64),
) -> Result<(), BaseBackupError> {
    let folder = root.join(inside);
    let entries = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut names: Vec<PathBuf> = entries
        .map_err(|error| unreadable(&folder, error))?
        .iter()
        .map(|entry| inside.join(entry.file_name()))
        .filter(|name| ![MARK, MANIFEST].iter().any(|left_out| name == Path::new(left_out)))
        .collect();
    names.sort_unstable();
    for name in names {
        let path = root.join(&name);
        let metadata = path.symlink_metadata().map_err(|error| unreadable(&path, error))?;
        if metadata.is_dir() {
            let header = header(&name, EntryType::Directory, &metadata, 0);
            writer.add(header.map_err(|error| unreadable(&path, error))?.as_bytes())?;
            add_folder(writer, root, &name, done)?;
        } else if metadata.is_file() {
            add_file(writer, &path, &name, done)?;
        }
        // Links lead to tablespaces, which have archives of their own.
    }
    Ok(())
}

fn add_file(
    writer: &mut Writer,
    path: &Path,
    name: &Path,
    done: &mut dyn FnMut(u64),
) -> Result<(), BaseBackupError> {
    let failed = |error| unreadable(path, error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let size = metadata.len();
    writer.add(header(name, EntryType::Regular, &metadata, size).map_err(failed)?.as_bytes())?;
    let (mut content, mut buffer, mut read_bytes) = (file.take(size), vec![0; 256 << 10], 0);
    loop {
        let read = match content.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        if read == 0 {
            break;
        }
        writer.add(&buffer[..read])?;
        read_bytes += read as u64;
        done(read as u64);
    }
    if read_bytes != size {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    let padding = (size.wrapping_neg() % BLOCK as u64) as usize;
    writer.add(&[0; BLOCK][..padding])
}

/// Returns the header of a file or folder.
fn header(name: &Path, kind: EntryType, metadata: &Metadata, size: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_path(name)?;
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(metadata.mode() & 0o7777);
    header.set_uid(metadata.uid().into());
    header.set_gid(metadata.gid().into());
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or_default());
    header.set_cksum();
    Ok(header)
}

fn end_archive(writer: &mut Writer) -> Result<(), BaseBackupError> {
    writer.add(&[0; 2 * BLOCK])
}

fn unreadable(path: &Path, error: io::Error) -> BaseBackupError {
    BaseBackupError::Recover(RecoverError::Io { action: "read", path: path.to_owned(), error })
}
