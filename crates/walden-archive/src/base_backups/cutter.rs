//! Cuts a tar archive into pieces.
//!
//! Cuts depend on the files rather than on offsets in the archive, so that an unchanged file is in the same
//! pieces in each backup. The content of a large file is cut at multiples of [`MAX_PIECE_BYTES`] from its
//! first byte, without its header, which has the file's time. Small files are grouped, and a group ends after
//! a file whose name decides so: after an added or removed file, later groups are as before.

use std::path::{Path, PathBuf};

use tar::{EntryType, Header};

use super::documents::{MAX_INLINE_BYTES, MAX_PIECE_BYTES};

/// Size of the smallest file in bytes that is not in a group.
pub(super) const LARGE_FILE_BYTES: u64 = 4 << 20;
/// Size of the smallest group in bytes that ends after a file whose name decides so.
const MIN_GROUP_BYTES: usize = 1 << 20;
/// Size in bytes from which a group ends after any file.
const MAX_GROUP_BYTES: usize = 8 << 20;
const BLOCK: usize = 512;

/// A part of a tar archive, in order.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Cut {
    Piece(Vec<u8>),
    /// At most [`MAX_INLINE_BYTES`].
    Inline(Vec<u8>),
}

/// Receives the parts and files of the archive.
pub(super) trait Observer {
    /// The next part is complete.
    fn cut(&mut self, cut: Cut);
    /// A file with this number of bytes starts.
    fn start_file(&mut self, path: PathBuf, bytes: u64);
    /// Content of the current file.
    fn content(&mut self, bytes: &[u8]);
}

/// A tar archive that is being cut.
#[derive(Default)]
pub(super) struct Cutter {
    inside: Inside,
    header: Vec<u8>,
    /// The current group, or the current piece of a large file.
    piece: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Inside {
    /// At a header, or within one.
    #[default]
    Header,
    /// In a file's content, of which this number of bytes is left.
    Content {
        left: u64,
        padding: usize,
        is_large: bool,
        ends_group: bool,
    },
    Padding {
        left: usize,
        ends_group: bool,
    },
    /// After an empty block.
    End,
}

impl Cutter {
    /// Adds bytes.
    ///
    /// # Errors
    /// The expected and the found content.
    pub fn add(&mut self, mut bytes: &[u8], observer: &mut dyn Observer) -> Result<(), String> {
        while !bytes.is_empty() {
            match self.inside {
                Inside::Header => {
                    let taken = take(&mut bytes, BLOCK - self.header.len());
                    self.header.extend_from_slice(taken);
                    if self.header.len() == BLOCK {
                        self.start_entry(observer)?;
                    }
                }
                Inside::Content { left, padding, is_large, ends_group } => {
                    let room = match is_large {
                        true => MAX_PIECE_BYTES - self.piece.len(),
                        false => usize::MAX,
                    };
                    let taken = take(&mut bytes, room.min(usize::try_from(left).unwrap_or(usize::MAX)));
                    observer.content(taken);
                    self.piece.extend_from_slice(taken);
                    let left = left - taken.len() as u64;
                    self.inside = Inside::Content { left, padding, is_large, ends_group };
                    if is_large && (left == 0 || self.piece.len() == MAX_PIECE_BYTES) {
                        self.flush(observer);
                    }
                    if left == 0 {
                        self.inside = Inside::Padding { left: padding, ends_group };
                        self.end_entry(observer);
                    }
                }
                Inside::Padding { left, ends_group } => {
                    let taken = take(&mut bytes, left);
                    self.piece.extend_from_slice(taken);
                    self.inside = Inside::Padding { left: left - taken.len(), ends_group };
                    self.end_entry(observer);
                }
                Inside::End => {
                    let taken = take(&mut bytes, MAX_PIECE_BYTES - self.piece.len());
                    self.piece.extend_from_slice(taken);
                    if self.piece.len() == MAX_PIECE_BYTES {
                        self.flush(observer);
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// It is not complete.
    pub fn finish(mut self, observer: &mut dyn Observer) -> Result<(), String> {
        if self.inside != Inside::End {
            return Err(
                "expected two empty blocks at the end of the tar archive, found its end before".into()
            );
        }
        self.flush(observer);
        Ok(())
    }

    fn start_entry(&mut self, observer: &mut dyn Observer) -> Result<(), String> {
        let header = std::mem::take(&mut self.header);
        if header.iter().all(|&byte| byte == 0) {
            self.inside = Inside::End;
            self.piece.extend_from_slice(&header);
            return Ok(());
        }
        let parsed = Header::from_byte_slice(&header);
        let path = path_of(&parsed.path_bytes());
        let stated =
            parsed.cksum().map_err(|error| format!("{error}, in the tar header of {}", path.display()))?;
        let sum = header.iter().enumerate().map(|(at, &byte)| match at {
            148..156 => u32::from(b' '),
            _ => u32::from(byte),
        });
        let sum: u32 = sum.sum();
        if sum != stated {
            return Err(format!("expected a tar header with the sum {sum}, found {stated}"));
        }
        let bytes = parsed
            .entry_size()
            .map_err(|error| format!("{error}, in the tar header of {}", path.display()))?;
        let is_file = match parsed.entry_type() {
            EntryType::Regular | EntryType::Continuous => true,
            EntryType::Directory | EntryType::Symlink if bytes == 0 => false,
            other => {
                let kind = other.as_byte().escape_ascii();
                return Err(format!(
                    "expected files and folders, found {} of the kind '{kind}'",
                    path.display()
                ));
            }
        };
        let padding = padding_of(bytes);
        let is_large = bytes >= LARGE_FILE_BYTES;
        let ends_group = ends_group(&path);
        if is_file {
            observer.start_file(path, bytes);
        }
        if is_large {
            self.flush(observer);
            observer.cut(Cut::Inline(header));
        } else {
            self.piece.extend_from_slice(&header);
        }
        self.inside = Inside::Content { left: bytes, padding, is_large, ends_group };
        if bytes == 0 {
            self.inside = Inside::Padding { left: 0, ends_group };
            self.end_entry(observer);
        }
        Ok(())
    }

    /// Ends an entry after its padding.
    fn end_entry(&mut self, observer: &mut dyn Observer) {
        let Inside::Padding { left: 0, ends_group } = self.inside else { return };
        self.inside = Inside::Header;
        if is_whole_group(self.piece.len(), ends_group) {
            self.flush(observer);
        }
    }

    fn flush(&mut self, observer: &mut dyn Observer) {
        let piece = std::mem::take(&mut self.piece);
        match piece.len() {
            0 => {}
            1..=MAX_INLINE_BYTES => observer.cut(Cut::Inline(piece)),
            _ => observer.cut(Cut::Piece(piece)),
        }
    }
}

/// Returns the number of bytes between the content of an entry and the next header.
pub(super) fn padding_of(bytes: u64) -> usize {
    (bytes.wrapping_neg() % BLOCK as u64) as usize
}

/// Returns whether a group may end after a file: one of 16 names decides so.
pub(super) fn ends_group(path: &Path) -> bool {
    blake3::hash(path.as_os_str().as_encoded_bytes()).as_bytes()[0] < 16
}

/// Returns whether a group of this number of bytes ends.
pub(super) fn is_whole_group(bytes: usize, ends_group: bool) -> bool {
    bytes >= MAX_GROUP_BYTES || (bytes >= MIN_GROUP_BYTES && ends_group)
}

fn take<'b>(bytes: &mut &'b [u8], most: usize) -> &'b [u8] {
    let (taken, left) = bytes.split_at(most.min(bytes.len()));
    *bytes = left;
    taken
}

/// Returns the path and the size of a large file, if a part is its header. Its content follows.
pub(super) fn large_file(part: &[u8]) -> Option<(PathBuf, u64)> {
    let header = Header::from_byte_slice(<&[u8; BLOCK]>::try_from(part).ok()?);
    let bytes = header.entry_size().ok()?;
    let is_file = matches!(header.entry_type(), EntryType::Regular | EntryType::Continuous);
    (is_file && bytes >= LARGE_FILE_BYTES).then(|| (path_of(&header.path_bytes()), bytes))
}

/// Returns the path of an entry in the data directory.
fn path_of(name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    let name = name.strip_prefix(b"./").unwrap_or(name);
    PathBuf::from(std::ffi::OsStr::from_bytes(name))
}

/// Cuts bytes, and checks that the parts are these bytes; for fuzzing. Returns the number of parts, or the
/// error.
///
/// # Errors
/// Those of the cutter.
///
/// # Panics
/// The parts differ from the bytes, or a part has a wrong size.
pub fn cut_for_fuzzing(bytes: &[u8]) -> Result<usize, String> {
    #[derive(Default)]
    struct Joined {
        bytes: Vec<u8>,
        parts: usize,
    }
    impl Observer for Joined {
        fn cut(&mut self, cut: Cut) {
            let part = match cut {
                Cut::Piece(part) => {
                    assert!((MAX_INLINE_BYTES + 1..=MAX_PIECE_BYTES).contains(&part.len()));
                    part
                }
                Cut::Inline(part) => {
                    assert!((1..=MAX_INLINE_BYTES).contains(&part.len()));
                    part
                }
            };
            self.bytes.extend(part);
            self.parts += 1;
        }
        fn start_file(&mut self, _: PathBuf, _: u64) {}
        fn content(&mut self, _: &[u8]) {}
    }
    let (mut cutter, mut joined) = (Cutter::default(), Joined::default());
    for part in bytes.chunks(777) {
        cutter.add(part, &mut joined)?;
    }
    cutter.finish(&mut joined)?;
    assert!(joined.bytes == bytes, "the parts differ from the archive");
    Ok(joined.parts)
}

#[cfg(test)]
mod tests {
    use tar::Builder;

    use super::*;

    #[derive(Default)]
    struct Seen {
        cuts: Vec<Cut>,
        files: Vec<(PathBuf, u64)>,
        content: u64,
    }

    impl Observer for Seen {
        fn cut(&mut self, cut: Cut) {
            self.cuts.push(cut);
        }
        fn start_file(&mut self, path: PathBuf, bytes: u64) {
            self.files.push((path, bytes));
        }
        fn content(&mut self, bytes: &[u8]) {
            self.content += bytes.len() as u64;
        }
    }

    fn archive(files: &[(&str, &[u8], u64)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, content, time) in files {
            let mut header = Header::new_ustar();
            header.set_path(name).unwrap();
            header.set_size(content.len() as u64);
            header.set_mtime(*time);
            header.set_mode(0o600);
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn cut(archive: &[u8]) -> Seen {
        let (mut cutter, mut seen) = (Cutter::default(), Seen::default());
        for part in archive.chunks(1000) {
            cutter.add(part, &mut seen).unwrap();
        }
        cutter.finish(&mut seen).unwrap();
        let joined: Vec<u8> = seen
            .cuts
            .iter()
            .flat_map(|cut| match cut {
                Cut::Piece(bytes) | Cut::Inline(bytes) => bytes.as_slice(),
            })
            .copied()
            .collect();
        assert!(joined == archive);
        seen
    }

    fn noise(bytes: usize, seed: u64) -> Vec<u8> {
        let mut out = vec![0; bytes];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
        out
    }

    fn pieces(seen: &Seen) -> Vec<&[u8]> {
        let piece = |cut: &'_ Cut| matches!(cut, Cut::Piece(_));
        seen.cuts
            .iter()
            .filter(|cut| piece(cut))
            .map(|cut| match cut {
                Cut::Piece(bytes) | Cut::Inline(bytes) => bytes.as_slice(),
            })
            .collect()
    }

    #[test]
    fn a_changed_page_and_time_of_a_large_file_change_one_piece() {
        let mut content = noise((40 << 20) + 100, 1);
        let (label, control) = (noise(200, 2), noise(8192, 3));
        let files = |content: &[u8], time| {
            archive(&[
                ("backup_label", &label, 1),
                ("base/1/16384", content, time),
                ("global/pg_control", &control, 2),
            ])
        };
        let before = cut(&files(&content, 7));
        content[20 << 20] ^= 1;
        let after = cut(&files(&content, 8));
        assert_eq!(before.files.len(), 3);
        assert_eq!(before.content, (40 << 20) + 100 + 200 + 8192);
        // Three of the large file, and the group after it.
        let (before, after) = (pieces(&before), pieces(&after));
        assert_eq!((before.len(), before[0].len(), before[2].len()), (4, 16 << 20, (8 << 20) + 100));
        let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert_eq!((after.len(), changed), (4, 1));
    }

    #[test]
    fn an_added_small_file_changes_the_groups_beside_it_only() {
        let content: Vec<(String, Vec<u8>)> =
            (0..1000).map(|number| (format!("base/1/{number}"), noise(16 << 10, number))).collect();
        let files = |skipped: usize| {
            let all = content.iter().enumerate().filter(|(at, _)| *at != skipped);
            let all: Vec<(&str, &[u8], u64)> =
                all.map(|(_, (name, content))| (name.as_str(), content.as_slice(), 1)).collect();
            archive(&all)
        };
        let (all, fewer) = (cut(&files(usize::MAX)), cut(&files(100)));
        let (all, fewer) = (pieces(&all), pieces(&fewer));
        assert!((4..=20).contains(&all.len()), "{}", all.len());
        let new = fewer.iter().filter(|piece| !all.contains(piece)).count();
        assert!((1..=2).contains(&new), "{new} of {}", fewer.len());
    }

    #[test]
    fn damaged_and_incomplete_archives_are_refused() {
        let whole = archive(&[("a", &[7; 600], 1), ("b", &[7; 600], 1)]);
        assert!(cut_for_fuzzing(&whole).is_ok());
        for bytes in [0, 100, 512, 1000, 1536, 3071] {
            assert!(cut_for_fuzzing(&whole[..bytes]).is_err(), "{bytes}");
        }
        for at in [0, 124, 148, 156, 300] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(cut_for_fuzzing(&damaged).is_err(), "{at}");
        }
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_path("x").unwrap();
        header.set_entry_type(EntryType::Link);
        header.set_size(0);
        header.set_cksum();
        builder.append(&header, &[][..]).unwrap();
        assert!(cut_for_fuzzing(&builder.into_inner().unwrap()).unwrap_err().contains("files and folders"));
    }

    #[test]
    fn an_impossible_size_allocates_nothing() {
        let mut header = Header::new_gnu();
        header.set_path("huge").unwrap();
        header.set_size(u64::MAX);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(4096, 1);
        assert!(cut_for_fuzzing(&bytes).is_err());
    }
}
