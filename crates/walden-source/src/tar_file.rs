//! Tar files as sources of segments: `pg_wal.tar` and `base.tar` of `pg_basebackup --format=tar`, plain or
//! compressed.
//!
//! The segments of a plain tar file are read directly from this file. A compressed tar file is decompressed
//! once when it is opened, and its segments are kept in an unnamed temporary file, which the system removes
//! when the process ends: segments are read more than once, by several threads and in any order. In both
//! cases, segments are not held in memory.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use tar::{Archive, Entry, EntryType};

use crate::compression::Compression;
use crate::file_kind::FileKind;
use crate::open::{self, fill};
use crate::store::{FileRange, SegmentContents, SegmentStore, SharedStore};

/// A searched tar file.
pub(crate) struct TarFile {
    /// The store from which segments are read by their number in `members`.
    pub store: SharedStore,
    /// The files in the tar file that are named like segments.
    pub members: Vec<TarMember>,
    /// Timeline histories in the tar file: name and content.
    pub histories: Vec<(String, Vec<u8>)>,
    /// Why the tar file could not be read to its end.
    pub fault: Option<io::Error>,
}

/// A file in a tar file that is named like a segment.
pub(crate) struct TarMember {
    /// The file's name without folders.
    pub name: String,
    /// The file's path in the tar file, for messages.
    pub path: String,
    /// Size of the content in bytes.
    pub bytes: u64,
    /// The first bytes of the content.
    pub start: Vec<u8>,
    /// Whether it is a sparse entry, which cannot be read.
    pub is_sparse: bool,
}

/// Bytes of a member's content that are read to determine its kind.
const START: usize = 8 << 10;
/// Largest content of another entry that is read: long names, histories.
const MAX_SMALL: u64 = 64 << 10;
/// Largest segment that PostgreSQL can have.
const MAX_SEGMENT: u64 = 1 << 30;
/// Bytes of a block of a tar file.
const BLOCK: u64 = 512;
/// Bytes copied at a time.
const COPIED: usize = 128 << 10;
/// Most files named like segments in one tar file; with the smallest segments, 1 TB.
const MAX_MEMBERS: usize = 1 << 20;

/// Returns whether a content starts like a tar file: with the header of an entry that has the right checksum.
pub(crate) fn is_tar(start: &[u8]) -> bool {
    let Some(block) = start.first_chunk::<512>() else { return false };
    let header = tar::Header::from_byte_slice(block);
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| match at {
            148..156 => u32::from(b' '),
            _ => u32::from(*byte),
        })
        .sum();
    block[257..262] == *b"ustar" && header.cksum().is_ok_and(|stored| stored == sum)
}

/// Searches a tar file for segments. Keeps the segments of a compressed tar file in a temporary file.
///
/// # Errors
/// Errors of the file system, with the file's name. A fault of the tar file itself is in [`TarFile::fault`].
pub(crate) fn search(path: &Path, compression: Compression) -> io::Result<TarFile> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut found = Found::default();
    let (file, fault) = match compression {
        Compression::None => {
            let file = File::open(path).map_err(named)?;
            let size = file.metadata().map_err(named)?.len();
            let mut archive = Archive::new(&file);
            let fault = archive.entries_with_seek().and_then(|entries| {
                found.add_all(path, entries.raw(true), &mut |entry, _| {
                    let (start, bytes) = (entry.raw_file_position(), entry.size());
                    match start.checked_add(bytes) {
                        Some(end) if end <= size => Ok(start),
                        _ => Err(cut(path)),
                    }
                })
            });
            (file, fault.err())
        }
        _ => {
            let mut kept = Kept { file: tempfile::tempfile().map_err(no_space)?, end: 0 };
            let mut archive = Archive::new(open::open_path(path, compression)?);
            let fault = archive.entries().and_then(|entries| {
                found.add_all(path, entries.raw(true), &mut |entry, start| kept.add(entry, start))
            });
            kept.file.set_len(kept.end).map_err(no_space)?;
            (kept.file, fault.err())
        }
    };
    // Decompression errors contain the file's name already.
    let fault = fault.map(|error| match error.to_string().starts_with(&*path.to_string_lossy()) {
        true => error,
        false => named(error),
    });
    let Found { members, places, histories } = found;
    let store = SharedStore::new(Members { file: Arc::new(file), places });
    Ok(TarFile { store, members, histories, fault })
}

#[derive(Default)]
struct Found {
    members: Vec<TarMember>,
    /// Start and length of each.
    places: Vec<(u64, u64)>,
    histories: Vec<(String, Vec<u8>)>,
}

/// Returns the offset of an entry's content in a file. The second argument is the start of the content,
/// already read.
type Place<'f, R> = dyn FnMut(&mut Entry<'_, R>, &[u8]) -> io::Result<u64> + 'f;

impl Found {
    /// Adds the segments among entries.
    fn add_all<R: Read>(
        &mut self,
        path: &Path,
        entries: tar::Entries<'_, R>,
        place: &mut Place<'_, R>,
    ) -> io::Result<()> {
        read_entries(entries, |inner, mut entry| {
            let inner = String::from_utf8_lossy(&inner).into_owned();
            let name = inner.rsplit('/').next().unwrap_or_default().to_owned();
            let is_sparse = match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous => false,
                EntryType::GNUSparse => true,
                _ => return Ok(()),
            };
            match FileKind::from_name(&name) {
                FileKind::Segment { .. } => {}
                FileKind::History if entry.size() <= MAX_SMALL => {
                    let content = small(&mut entry)?;
                    self.histories.push((name, content));
                    return Ok(());
                }
                _ => return Ok(()),
            }
            let bytes = entry.size();
            if bytes > MAX_SEGMENT {
                let text = format!("{inner} has {bytes} bytes, and a segment at most {MAX_SEGMENT}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if self.members.len() == MAX_MEMBERS {
                let text =
                    format!("more than {MAX_MEMBERS} files named like segments; unpack it to read them");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            let mut start = vec![0; START.min(bytes as usize)];
            let mut at = 0;
            if !is_sparse {
                let (got, error) = fill(&mut entry, &mut start);
                if let Some(error) = error {
                    return Err(error);
                }
                if got < start.len() {
                    return Err(cut(path));
                }
                at = place(&mut entry, &start)?;
            }
            self.members.push(TarMember { name, path: inner, bytes, start, is_sparse });
            self.places.push((at, bytes));
            Ok(())
        })
    }
}

/// Calls `found` with the path and the content of each entry of a tar file. `entries` are raw entries
/// ([`tar::Entries::raw`]), so that a long name of any length takes bounded memory.
///
/// # Errors
/// Errors of the reader and of `found`, and entries in a format that is not supported.
pub fn read_entries<R: Read>(
    entries: tar::Entries<'_, R>,
    mut found: impl FnMut(Vec<u8>, Entry<'_, R>) -> io::Result<()>,
) -> io::Result<()> {
    let mut long_name = None;
    for entry in with_offsets(entries) {
        let mut entry = entry?;
        match entry.header().entry_type() {
            EntryType::GNULongName => {
                let content = small(&mut entry)?;
                let end = content.iter().position(|byte| *byte == 0).unwrap_or(content.len());
                long_name = Some(content[..end].to_vec());
            }
            EntryType::XHeader => long_name = pax_path(&small(&mut entry)?)?.or(long_name),
            EntryType::XGlobalHeader | EntryType::GNULongLink => {}
            _ => {
                let of_header = || entry.header().path_bytes().into_owned();
                let name = long_name.take().unwrap_or_else(of_header);
                found(name, entry)?;
            }
        }
    }
    Ok(())
}

/// Returns the entries of a tar file. An error of the tar reader names the offset of the header at which it
/// failed, and the remedy.
pub fn with_offsets<R: Read>(entries: tar::Entries<'_, R>) -> impl Iterator<Item = io::Result<Entry<'_, R>>> {
    let mut next_header = 0;
    entries.map(move |entry| {
        let entry = entry.map_err(|error| damaged_header(next_header, error))?;
        let end = entry.raw_file_position().saturating_add(entry.size());
        next_header = end.checked_next_multiple_of(BLOCK).unwrap_or(end);
        Ok(entry)
    })
}

/// Explains an error of the tar reader itself, whose kind is [`io::ErrorKind::Other`]. Errors of the file
/// system and of the decompression have other kinds.
fn damaged_header(offset: u64, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::Other {
        return error;
    }
    let text = format!(
        "expected the header of a file, or the end of the tar file, at offset {offset} (decompressed), found neither: {error}; the tar \
         file is damaged or was cut off: get another copy of it, or use another backup"
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Returns the content of an entry that must be small.
fn small<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Vec<u8>> {
    if entry.size() > MAX_SMALL {
        let text = format!("a name or history of {} bytes, at most {MAX_SMALL} are read", entry.size());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content)?;
    Ok(content)
}

/// Returns the path in a pax header, if it has a path. A pax header with a size is not supported: the size in
/// the entry's own header is then wrong.
fn pax_path(content: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut path = None;
    for extension in tar::PaxExtensions::new(content) {
        let extension = extension?;
        match extension.key_bytes() {
            b"path" => path = Some(extension.value_bytes().to_vec()),
            b"size" => {
                let text = "a size in a pax header, which is not supported; unpack it to read its segments";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            _ => {}
        }
    }
    Ok(path)
}

fn cut(path: &Path) -> io::Error {
    let text =
        format!("{}: the tar file ends early: it was cut off; get a complete copy of it", path.display());
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

fn no_space(error: io::Error) -> io::Error {
    let folder = std::env::temp_dir();
    let text = format!(
        "cannot keep the segments of a compressed tar file in {}: {error}; set TMPDIR to a folder with space for them",
        folder.display()
    );
    io::Error::new(error.kind(), text)
}

/// The temporary file that receives copies of segments.
struct Kept {
    file: File,
    end: u64,
}

impl Kept {
    /// Copies the content of an entry whose start has been read already. Zeros become holes.
    fn add(&mut self, entry: &mut Entry<'_, impl Read>, start: &[u8]) -> io::Result<u64> {
        let (first, bytes) = (self.end, entry.size());
        let mut at = self.write(start, first)?;
        let mut buffer = vec![0; COPIED];
        while at < first + bytes {
            let (got, error) = fill(entry, &mut buffer);
            at = self.write(&buffer[..got], at)?;
            if let Some(error) = error {
                return Err(error);
            }
            if got < buffer.len() && at < first + bytes {
                let text = "the tar file ends early: it was cut off; get a complete copy of it";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
        }
        self.end = at;
        Ok(first)
    }

    fn write(&self, bytes: &[u8], at: u64) -> io::Result<u64> {
        if bytes.iter().any(|byte| *byte != 0) {
            self.file.write_all_at(bytes, at).map_err(no_space)?;
        }
        Ok(at + bytes.len() as u64)
    }
}

/// The segments of one tar file.
#[derive(Debug)]
struct Members {
    file: Arc<File>,
    places: Vec<(u64, u64)>,
}

impl Members {
    fn range_of(&self, number: u64) -> Option<FileRange> {
        let (start, bytes) = *self.places.get(usize::try_from(number).ok()?)?;
        Some(FileRange::new(Arc::clone(&self.file), start, bytes))
    }
}

impl SegmentStore for Members {
    fn reader(&self) -> Box<dyn SegmentContents> {
        Box::new(Members { file: Arc::clone(&self.file), places: self.places.clone() })
    }

    fn stream(&self, number: u64) -> Option<Box<dyn Read + Send>> {
        Some(Box::new(self.range_of(number)?))
    }
}

impl SegmentContents for Members {
    fn read(&mut self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        let mut range = self.range_of(number).ok_or(io::ErrorKind::NotFound)?;
        let mut content = Vec::new();
        range.read_to_end(&mut content)?;
        Ok(Arc::new(content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, bytes: u64) -> tar::Header {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_size(bytes);
        header.set_cksum();
        header
    }

    fn written(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    #[test]
    fn a_tar_file_is_known_by_its_first_header() {
        let good = header("000000010000000000000001", 512);
        assert!(is_tar(good.as_bytes()));
        let mut bad = *good.as_bytes();
        bad[0] ^= 1;
        assert!(!is_tar(&bad) && !is_tar(&bad[..511]) && !is_tar(&[0; 512]));
    }

    #[test]
    fn hostile_tar_files_are_faults_and_cost_no_memory() {
        // A member whose size exceeds the file or a segment, a long name of 1 GB, and a size of 2^63.
        let claims = |name: &str, bytes| {
            let mut content = header(name, bytes).as_bytes().to_vec();
            content.extend([7; 1024]);
            content
        };
        let mut long = tar::Header::new_gnu();
        long.set_entry_type(EntryType::GNULongName);
        long.set_size(1 << 30);
        long.set_cksum();
        let mut huge = header("base/1/1259", 0);
        huge.as_mut_bytes()[124..136].copy_from_slice(b"\x80\0\0\0\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
        huge.set_cksum();
        let segment = "000000010000000000000001";
        let cases = [
            (claims(segment, 16 << 20), "ends early"),
            (claims(segment, 1 << 33), "at most"),
            (long.as_bytes().to_vec(), "at most"),
            ([huge.as_bytes().as_slice(), &[1; 512]].concat(), ""),
            ([header("x", 0).as_bytes().as_slice(), &[1; 512]].concat(), ""),
        ];
        for (content, expected) in cases {
            let plain = written(&content);
            let found = search(plain.path(), Compression::None).unwrap();
            assert!(found.members.is_empty());
            let fault = found.fault.expect("a fault").to_string();
            assert!(fault.contains(expected), "{fault}");
            assert!(fault.starts_with(&*plain.path().to_string_lossy()), "{fault}");
            let packed = written(&zstd::encode_all(content.as_slice(), 1).unwrap());
            let found = search(packed.path(), Compression::Zstd).unwrap();
            assert!(found.members.is_empty() && found.fault.is_some(), "{expected}");
        }
    }
}
