//! Files of `walden compress` as sources of segments: a `.wlz` file has one segment, a pack (`.wpk`) many.
//!
//! Decoding a member of a pack starts at the last keyframe before this member. [`Members`] keeps a pack open
//! and keeps the last decoded members, so that reading members in order decodes each member once.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::machine::page_memory;
use crate::segment_file::SegmentFile;
use crate::store::{SegmentContents, SharedStore, segment_buffer};
use walden_codec::container::{Entry, Error, Excess, FileForm, Head, Place, ReadLimits, Reader};

/// Bytes of decoded members that are kept, but at least two members: the current one, and the next one for
/// the end of the last record. The members that a thread reads ahead are kept here too.
const KEPT_BYTES: usize = 8 << 20;

/// A member of a file, as far as its head describes it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Number of the member within the file, from 0.
    pub number: u64,
    /// Name of the original file, without its folder.
    pub name: String,
    /// Position in the WAL, if the member is coded as records.
    pub place: Option<Place>,
    /// Size of the compressed member in bytes.
    pub stored: u64,
    /// Whether the member can be decoded without the previous member.
    pub is_keyframe: bool,
}

/// Returns the members of a compressed file, or `None` if `walden compress` did not write it.
pub(crate) fn members(path: &Path) -> io::Result<Option<Vec<Member>>> {
    let mut pack = match Pack::open(path) {
        Ok(pack) => pack,
        Err(Error::Foreign | Error::Empty) => return Ok(None),
        Err(error) => return Err(named(path, error)),
    };
    let member = |head: &Head, stored: u64| {
        let name = String::from_utf8_lossy(&head.meta.name);
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        Member { number: head.number, name, place: head.place, stored, is_keyframe: head.keyframe }
    };
    let members = match pack.entries.as_slice() {
        [] => {
            let size = pack.reader.file_bytes();
            let head = pack.reader.next().map_err(|error| named(path, error))?;
            head.iter().map(|head| member(head, size)).collect()
        }
        entries => entries.iter().map(|entry| member(&entry.head, entry.stored)).collect(),
    };
    Ok(Some(members))
}

/// Decoded members, for reading them in order.
#[derive(Default)]
pub(crate) struct Members {
    pack: Option<(PathBuf, Pack)>,
    stored: Option<(SharedStore, Box<dyn SegmentContents>)>,
    decoded: VecDeque<(PathBuf, u64, Arc<Vec<u8>>)>,
}

impl Members {
    /// Decodes the content of a segment that is a member of a file or in a store.
    pub fn read_segment(&mut self, file: &SegmentFile, number: u64) -> io::Result<Arc<Vec<u8>>> {
        let Some(store) = &file.store else { return self.read(&file.path, number) };
        if let Some(content) = self.find(&file.path, number) {
            return Ok(content);
        }
        if self.stored.as_ref().is_none_or(|(of, _)| of != store) {
            self.stored = Some((store.clone(), store.reader()));
        }
        self.make_room();
        let Some((_, reader)) = &mut self.stored else { return Err(io::ErrorKind::NotFound.into()) };
        let content = reader.read(number)?;
        self.keep(&file.path, number, &content);
        Ok(content)
    }

    /// Decodes the content of a member.
    pub fn read(&mut self, path: &Path, number: u64) -> io::Result<Arc<Vec<u8>>> {
        if let Some(content) = self.find(path, number) {
            return Ok(content);
        }
        // A pack whose decoding failed is opened again, because its reader has no defined position.
        let mut pack = match self.pack.take().filter(|(of, _)| of == path) {
            Some((_, pack)) => pack,
            None => Pack::open(path).map_err(|error| named(path, error))?,
        };
        self.make_room();
        let content = Arc::new(pack.decode(number).map_err(|error| named(path, error))?);
        self.pack = Some((path.to_owned(), pack));
        self.keep(path, number, &content);
        Ok(content)
    }

    /// Returns the content of a member, if it is among the most recently decoded members.
    pub fn find(&self, path: &Path, number: u64) -> Option<Arc<Vec<u8>>> {
        let is_wanted = |one: &&(PathBuf, u64, Arc<Vec<u8>>)| one.1 == number && one.0 == path;
        self.decoded.iter().find(is_wanted).map(|(_, _, content)| Arc::clone(content))
    }

    /// Keeps the content of a member for other readers.
    pub fn keep(&mut self, path: &Path, number: u64, content: &Arc<Vec<u8>>) {
        self.decoded.push_back((path.to_owned(), number, Arc::clone(content)));
        self.keep_last(2);
    }

    /// Makes room before a member is decoded. The last kept member may be needed at the same time.
    fn make_room(&mut self) {
        self.keep_last(1);
    }

    /// Drops the oldest decoded members while there are more than `count` and they take too much memory.
    fn keep_last(&mut self, count: usize) {
        let bytes = |all: &VecDeque<(PathBuf, u64, Arc<Vec<u8>>)>| -> usize {
            all.iter().map(|(_, _, content)| content.len()).sum()
        };
        while self.decoded.len() > count && bytes(&self.decoded) > KEPT_BYTES {
            self.decoded.pop_front();
        }
    }
}

/// Returns the limits for decoding a file of this size: enough for all files that `walden compress` writes
/// with its default limits.
fn limits(file_bytes: u64) -> ReadLimits {
    ReadLimits::for_file(file_bytes).page_memory(page_memory())
}

/// A compressed file that is open.
struct Pack {
    reader: Reader<BufReader<File>>,
    /// The entries of the members; empty for a `.wlz` file.
    entries: Vec<Entry>,
}

impl Pack {
    fn open(path: &Path) -> Result<Pack, Error> {
        let file = File::open(path).map_err(Error::Io)?;
        let limits = limits(file.metadata().map_err(Error::Io)?.len());
        let mut reader = Reader::open(BufReader::with_capacity(256 << 10, file), limits)?;
        let is_pack = reader.header().is_some_and(|header| header.form == FileForm::Pack);
        let entries = if is_pack { reader.index()? } else { Vec::new() };
        Ok(Pack { reader, entries })
    }

    /// Decodes a member. Starts at the last keyframe, unless the reader is directly before the member.
    fn decode(&mut self, number: u64) -> Result<Vec<u8>, Error> {
        let Some(entry) = self.entries.iter().find(|entry| entry.head.number == number) else {
            return self.decode_segment_form();
        };
        let head = self.reader.seek_decodable(&self.entries, entry)?;
        let mut content = buffer_for(&head);
        self.reader.decode(&head, &mut content)?;
        Ok(content)
    }

    fn decode_segment_form(&mut self) -> Result<Vec<u8>, Error> {
        let Some(head) = self.reader.next()? else { return Ok(Vec::new()) };
        let mut content = buffer_for(&head);
        self.reader.decode(&head, &mut content)?;
        Ok(content)
    }
}

/// Creates a buffer for a member's content.
fn buffer_for(head: &Head) -> Vec<u8> {
    segment_buffer(head.place.map_or(0, |place| place.size.bytes()))
}

/// Returns the first `bytes` bytes of a member's content, or all of a shorter content.
pub(crate) fn start(path: &Path, number: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut pack = Pack::open(path).map_err(|error| named(path, error))?;
    let is_keyframe = |entry: &&Entry| entry.head.number == number && entry.head.keyframe;
    if let Some(entry) = pack.entries.iter().find(is_keyframe).cloned() {
        let head = pack.reader.seek(&entry).map_err(|error| named(path, error))?;
        return pack.start(&head, bytes).map_err(|error| named(path, error));
    }
    if !pack.entries.is_empty() {
        let mut content = pack.decode(number).map_err(|error| named(path, error))?;
        content.truncate(bytes);
        return Ok(content);
    }
    match pack.reader.next().map_err(|error| named(path, error))? {
        Some(head) => pack.start(&head, bytes).map_err(|error| named(path, error)),
        None => Ok(Vec::new()),
    }
}

impl Pack {
    fn start(&mut self, head: &Head, bytes: usize) -> Result<Vec<u8>, Error> {
        let mut start = Start { content: Vec::with_capacity(bytes), bytes };
        match self.reader.decode(head, &mut start) {
            Err(_) if start.content.len() == bytes => Ok(start.content),
            Err(error) => Err(error),
            Ok(_) => Ok(start.content),
        }
    }
}

/// Accepts a number of bytes and then ends decoding with an error.
struct Start {
    content: Vec<u8>,
    bytes: usize,
}

impl Write for Start {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        let wanted = more.len().min(self.bytes - self.content.len());
        self.content.extend(&more[..wanted]);
        if wanted == 0 && !more.is_empty() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(wanted) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds the file's name to an error. If decoding needs too much, adds the command that allows more.
fn named(path: &Path, error: Error) -> io::Error {
    let by_decompress = |option, bytes: u64| {
        format!("; decompress it first, with walden decompress {option} {}MB", bytes.div_ceil(1 << 20))
    };
    let remedy = match error {
        Error::Needs(Excess::Memory { needed, .. }) => by_decompress("--memory", needed),
        Error::Needs(Excess::Spill { needed, .. }) => by_decompress("--spill", needed),
        _ => String::new(),
    };
    let text = format!("{}: {}{remedy}", path.display(), crate::error_text(&error));
    let kind = match &error {
        Error::Io(error) | Error::Original(error) => error.kind(),
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, text)
}

#[cfg(test)]
mod tests {
    use walden_codec::container::Needs;

    use super::*;

    #[test]
    fn no_more_than_two_large_members_are_kept() {
        let kept = |bytes: usize| {
            let (mut members, content) = (Members::default(), Arc::new(vec![0; bytes]));
            for number in 0..5 {
                members.make_room();
                assert!(members.decoded.len() <= 1 || bytes < KEPT_BYTES / 4, "{number}");
                members.keep(Path::new("a.wpk"), number, &content);
            }
            members.decoded.iter().map(|(_, number, _)| *number).collect::<Vec<u64>>()
        };
        assert_eq!(kept(KEPT_BYTES), [3, 4]);
        assert_eq!(kept(1 << 10), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn packs_of_the_largest_segments_are_read() {
        for level in 0..=9 {
            let needs = Needs::for_segments(FileForm::Pack, level, 1 << 30);
            assert!(limits(1 << 20).admit(needs).is_ok(), "{level}");
        }
    }

    #[test]
    fn a_small_file_cannot_demand_much_memory() {
        let demanding = Needs { memory_mib: 3 << 10, blocks: 0 };
        assert!(matches!(limits(38 << 10).admit(demanding), Err(Excess::Memory { .. })));
        assert!(limits(38 << 10).admit(Needs::for_segments(FileForm::Pack, 9, 128 << 20)).is_ok());
    }

    #[test]
    fn what_needs_too_much_says_how_to_allow_more() {
        let allowed = 11 << 30;
        let memory = Error::Needs(Excess::Memory { needed: allowed + 1, allowed });
        assert_eq!(
            named(Path::new("a.wpk"), memory).to_string(),
            "a.wpk: cannot decode what may need 11265 MB of memory: expected at most 11264 MB; decompress it first, with walden \
             decompress --memory 11265MB"
        );
        let spill = Error::Needs(Excess::Spill { needed: 5 << 30, allowed: 4 << 30 });
        assert!(named(Path::new("a.wpk"), spill).to_string().ends_with("walden decompress --spill 5120MB"));
    }
}
