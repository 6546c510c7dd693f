//! Opens files that must be regular files.
//!
//! Opening a FIFO waits for a writer, and a device such as `/dev/zero` has no end.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading, without waiting for a writer.
///
/// # Errors
/// Errors of the file system, and [`io::ErrorKind::InvalidInput`] for anything but a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // The flag changes nothing for a regular file.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    // Opening a socket fails, so its type is read with `stat`.
    let file =
        opened.map_err(|error| std::fs::metadata(path).and_then(|it| expect(&it)).err().unwrap_or(error))?;
    expect(&file.metadata()?)?;
    Ok(file)
}

/// Refuses anything but a regular file.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`], which names the type of file that was found.
pub fn expect(metadata: &Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    let found = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("expected a regular file, found {found}")))
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// Errors of [`open`], and [`io::ErrorKind::FileTooLarge`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        let text = format!("expected a file of at most {most} bytes, found a longer file");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use walden_testing::make_fifo;

    use super::*;

    #[test]
    fn only_regular_files_are_read_and_only_so_much() {
        let folder = tempfile::tempdir().unwrap();
        let (file, fifo) = (folder.path().join("file"), folder.path().join("fifo"));
        std::fs::write(&file, "12345").unwrap();
        make_fifo(&fifo);
        assert_eq!(read(&file, 5).unwrap(), b"12345");
        assert_eq!(read(&file, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        for other in [&fifo, folder.path(), Path::new("/dev/zero")] {
            assert_eq!(open(other).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", other.display());
        }
        assert_eq!(open(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
