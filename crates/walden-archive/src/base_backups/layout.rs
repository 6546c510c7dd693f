//! The tar archives of listed files, and the pieces into which they are cut before any content is read.
//!
//! The rules are those of [`Cutter`](super::cutter): an unchanged file is in the same piece in each backup.
//! The files of a tar archive are sorted by their paths.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tar::{EntryType, Header};

use super::cutter::{LARGE_FILE_BYTES, ends_group, is_whole_group, padding_of};
use super::documents::MAX_PIECE_BYTES;
use super::name::PieceHash;

/// A file or folder of a server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ListedFile {
    /// Its path in the data directory, or in the folder of the tablespace.
    pub path: PathBuf,
    /// Its size in bytes; 0 of a folder.
    pub bytes: u64,
    /// When it was modified, in seconds since 1970-01-01 00:00:00 UTC.
    pub modified: i64,
    /// Whether it is a folder.
    pub is_folder: bool,
}

/// The files of a tablespace, or of the data directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedArchive {
    /// The tablespace; `None` for the data directory.
    pub tablespace: Option<u32>,
    /// Its files and folders.
    pub files: Vec<ListedFile>,
}

/// A range of a file's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileRange {
    /// The path in the data directory.
    pub path: PathBuf,
    /// Where the range starts in the file.
    pub offset: u64,
    /// Its length in bytes: at least 1, and at most 16 MB in all ranges of a part.
    pub bytes: u64,
}

/// A part of a tar archive that becomes a piece.
#[derive(Debug)]
pub(super) struct Part {
    /// The content to read.
    pub ranges: Vec<FileRange>,
    /// The entries of a group; none for a range of a large file.
    pub entries: Vec<Entry>,
    /// Hash of everything but the content of the ranges.
    pub frame: PieceHash,
}

/// A file or folder in a group.
#[derive(Debug)]
pub(super) struct Entry {
    pub header: Vec<u8>,
    /// The path in the data directory; `None` for a folder.
    pub file: Option<PathBuf>,
    /// The number of its range in the part; `None` without content.
    pub range: Option<usize>,
    pub modified: i64,
}

/// A part of a tar archive, in order.
#[derive(Debug)]
pub(super) enum Item {
    /// The number of a part with a group of files.
    Group(usize),
    /// A large file, and the numbers of its parts.
    Large { header: Vec<u8>, path: PathBuf, modified: i64, parts: Range<usize>, padding: usize },
}

/// The tar archives of a backup.
#[derive(Debug)]
pub struct Layout {
    pub(super) archives: Vec<(Option<u32>, Vec<Item>)>,
    pub(super) parts: Vec<Part>,
    pub(super) file_mode: u32,
}

impl Layout {
    /// Plans the tar archives. `file_mode` has the permissions of files, such as `0o600`.
    ///
    /// # Errors
    /// A path that a tar archive cannot have.
    pub fn new(archives: Vec<ListedArchive>, file_mode: u32) -> Result<Layout, String> {
        let mut layout = Layout { archives: Vec::new(), parts: Vec::new(), file_mode };
        for ListedArchive { tablespace, mut files } in archives {
            files.sort();
            let mut plan = ArchivePlan {
                tablespace,
                items: Vec::new(),
                entries: Vec::new(),
                ranges: Vec::new(),
                bytes: 0,
            };
            for file in files {
                plan.add(&mut layout, file)?;
            }
            plan.end_group(&mut layout);
            layout.archives.push((tablespace, plan.items));
        }
        Ok(layout)
    }

    /// Returns the number of parts.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns the ranges of files whose content a part has.
    pub fn ranges(&self, part: usize) -> &[FileRange] {
        self.parts.get(part).map_or(&[], |part| &part.ranges)
    }

    /// Returns the bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().flat_map(|part| &part.ranges).map(|range| range.bytes).sum()
    }
}

/// A tar archive that is being planned.
struct ArchivePlan {
    tablespace: Option<u32>,
    items: Vec<Item>,
    /// The current group.
    entries: Vec<Entry>,
    ranges: Vec<FileRange>,
    /// Bytes of the current group.
    bytes: usize,
}

impl ArchivePlan {
    fn add(&mut self, layout: &mut Layout, file: ListedFile) -> Result<(), String> {
        let header = header(&file.path, file.bytes, file.modified, file.is_folder, layout.file_mode)?;
        let ends_group = ends_group(&file.path);
        let path = path_in_data_directory(self.tablespace, &file.path);
        if !file.is_folder && file.bytes >= LARGE_FILE_BYTES {
            self.end_group(layout);
            let first = layout.parts.len();
            let mut offset = 0;
            while offset < file.bytes {
                let bytes = (file.bytes - offset).min(MAX_PIECE_BYTES as u64);
                let ranges = vec![FileRange { path: path.clone(), offset, bytes }];
                layout.parts.push(part(self.tablespace, Vec::new(), ranges));
                offset += bytes;
            }
            let (parts, padding) = (first..layout.parts.len(), padding_of(file.bytes));
            self.items.push(Item::Large { header, path, modified: file.modified, parts, padding });
            return Ok(());
        }
        // At most 4 MB.
        let content = file.bytes as usize;
        let range = (content > 0).then_some(self.ranges.len());
        if content > 0 {
            self.ranges.push(FileRange { path: path.clone(), offset: 0, bytes: file.bytes });
        }
        self.bytes += header.len() + content + padding_of(file.bytes);
        let file_path = (!file.is_folder).then_some(path);
        self.entries.push(Entry { header, file: file_path, range, modified: file.modified });
        if is_whole_group(self.bytes, ends_group) {
            self.end_group(layout);
        }
        Ok(())
    }

    fn end_group(&mut self, layout: &mut Layout) {
        self.bytes = 0;
        let (entries, ranges) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.ranges));
        if !entries.is_empty() {
            self.items.push(Item::Group(layout.parts.len()));
            layout.parts.push(part(self.tablespace, entries, ranges));
        }
    }
}

fn part(tablespace: Option<u32>, entries: Vec<Entry>, ranges: Vec<FileRange>) -> Part {
    let mut frame = Vec::from("walden piece 1\0");
    frame.extend(tablespace.unwrap_or_default().to_le_bytes());
    for entry in &entries {
        frame.extend_from_slice(&entry.header);
    }
    for FileRange { path, offset, bytes } in &ranges {
        frame.extend_from_slice(path.as_os_str().as_encoded_bytes());
        frame.push(0);
        frame.extend(offset.to_le_bytes());
        frame.extend(bytes.to_le_bytes());
    }
    Part { ranges, entries, frame: PieceHash::of(&frame) }
}

/// Returns the header of a file or folder.
pub(super) fn header(
    path: &Path,
    bytes: u64,
    modified: i64,
    is_folder: bool,
    file_mode: u32,
) -> Result<Vec<u8>, String> {
    let mut header = Header::new_ustar();
    let problem = |error| format!("{error}, for {}", path.display());
    header.set_path(path).map_err(problem)?;
    header.set_size(bytes);
    header.set_mtime(modified.max(0) as u64);
    // Who may read a file may enter a folder.
    let folder_mode = file_mode | (file_mode & 0o444) >> 2;
    header.set_mode(if is_folder { folder_mode } else { file_mode });
    header.set_entry_type(if is_folder { EntryType::Directory } else { EntryType::Regular });
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    Ok(header.as_bytes().to_vec())
}

fn path_in_data_directory(tablespace: Option<u32>, path: &Path) -> PathBuf {
    match tablespace {
        Some(oid) => Path::new("pg_tblspc").join(oid.to_string()).join(path),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, bytes: u64) -> ListedFile {
        ListedFile { path: path.into(), bytes, modified: 7, is_folder: false }
    }

    fn plan(files: Vec<ListedFile>) -> Layout {
        Layout::new(vec![ListedArchive { tablespace: None, files }], 0o600).unwrap()
    }

    #[test]
    fn each_byte_of_each_file_is_in_one_part() {
        let mut files: Vec<ListedFile> = (0..500).map(|it| file(&format!("base/1/{it}"), it * 100)).collect();
        files.push(file("base/1/large", (40 << 20) + 100));
        files.push(ListedFile { is_folder: true, ..file("base", 0) });
        let expected: u64 = files.iter().map(|file| file.bytes).sum();
        let layout = plan(files);
        assert_eq!(layout.bytes(), expected);
        for part in &layout.parts {
            let bytes: u64 = part.ranges.iter().map(|range| range.bytes).sum();
            assert!(bytes <= MAX_PIECE_BYTES as u64, "{bytes}");
        }
        let large: Vec<(u64, u64)> = (0..layout.parts())
            .flat_map(|part| layout.ranges(part))
            .filter(|range| range.path == Path::new("base/1/large"))
            .map(|range| (range.offset, range.bytes))
            .collect();
        let piece = 16 << 20;
        assert_eq!(large, [(0, piece), (piece, piece), (2 * piece, (8 << 20) + 100)]);
    }

    #[test]
    fn frames_differ_by_path_size_and_time() {
        let frame = |file: ListedFile| plan(vec![file]).parts[0].frame;
        let known = frame(file("base/1/1", 8192));
        assert_eq!(known, frame(file("base/1/1", 8192)));
        let others = [
            file("base/1/2", 8192),
            file("base/1/1", 16384),
            ListedFile { modified: 8, ..file("base/1/1", 8192) },
        ];
        for other in others {
            assert_ne!(known, frame(other));
        }
        // A large file's time is not in its pieces.
        let large = file("base/1/1", 32 << 20);
        assert_eq!(frame(large.clone()), frame(ListedFile { modified: 8, ..large }));
    }

    #[test]
    fn a_path_that_a_tar_archive_cannot_have_is_an_error() {
        let path = format!("{}/x", "long".repeat(100));
        let listed = ListedArchive { tablespace: None, files: vec![file(&path, 1)] };
        assert!(Layout::new(vec![listed], 0o600).unwrap_err().contains("long"));
    }
}
