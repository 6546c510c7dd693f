//! Decompresses files: everything, single members, or everything that is not damaged.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use walden_codec::container::{self, Binding, Entry, Error, Head, Loss, ReadLimits, Reader, Summary, Walk};
use walden_format::diagnostic::Hint;
use walden_output::pending::parent_folder;
use walden_output::stdout::Stdout;
use walden_output::turns::Turn;
use walden_output::{Inputs, Output, expect_no_input, expect_no_link_below, refuse_other_size};
use walden_report::units;
use walden_source::{error_text, machine};

use crate::error::{FileError, at};
use crate::inputs::open;
use crate::{Input, is_stream};

type Result<T> = std::result::Result<T, FileError>;

const WRITE: &str = "cannot write";

/// How files are decompressed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DecompressOptions {
    /// The folder to write to; `None` for the folder of each file.
    pub folder: Option<PathBuf>,
    /// Names of the members to extract; all if empty.
    pub members: Vec<String>,
    /// Whether existing files are replaced.
    pub replaces: bool,
    /// Memory for each file in bytes; `None` for 16384 times the size of the file, at least 2 GB and at most
    /// 11 GB.
    pub memory: Option<u64>,
    /// Space for each file in the folder of temporary files, in bytes; `None` for 4 GB.
    pub spill: Option<u64>,
}

walden_format::setters!(DecompressOptions {
    folder: Option<PathBuf>,
    members: Vec<String>,
    replaces: bool,
    memory: Option<u64>,
    spill: Option<u64>,
});

impl DecompressOptions {
    /// Returns the limits for decoding.
    ///
    /// A small file gets less memory. `file_bytes` is the file's size, or `None` for a stream.
    pub(crate) fn limits(&self, file_bytes: Option<u64>) -> ReadLimits {
        let default = file_bytes.map_or_else(ReadLimits::for_largest_segments, ReadLimits::for_file);
        let memory = self.memory.unwrap_or(default.memory);
        ReadLimits::default()
            .memory(memory)
            .spill(self.spill.unwrap_or(default.spill))
            // Memory that is given is used up before pages go to disk.
            .page_memory(if self.memory.is_some() { memory } else { machine::page_memory() })
    }
}

/// Decompresses files.
pub struct Decompressor<'a> {
    /// How files are decompressed.
    pub options: &'a DecompressOptions,
    /// The files that are read, which no output replaces.
    pub read: &'a Inputs,
    /// Receives the bytes of compressed members that were decoded.
    pub advance: &'a (dyn Fn(u64) + Sync),
}

type Out<'t> = Turn<'t, Stdout>;

impl Decompressor<'_> {
    /// Decompresses a stream, member by member, to files, or to `out` if it is given.
    ///
    /// # Errors
    /// The stream is damaged, or its originals cannot be written.
    pub fn stream(&self, stream: impl Read, mut out: Option<&mut Out<'_>>) -> Result<()> {
        let input = Input { path: crate::STDIN.into(), relative: PathBuf::new() };
        let mut reader = Reader::open_stream(stream, self.options.limits(None))?;
        while let Some(head) = reader.next()? {
            self.extract(&input, &mut reader, &head, out.as_deref_mut())?;
        }
        Ok(())
    }

    /// Decompresses all members of a file, or the members in the options, to files, or to `out` if it is
    /// given.
    ///
    /// # Errors
    /// The file is damaged, or its originals cannot be written.
    pub fn file(&self, input: &Input, mut out: Option<&mut Out<'_>>) -> Result<()> {
        let (file, found) = open(&input.path)?;
        let mut reader = Reader::open(file, self.options.limits(Some(found.len())))?;
        let (entries, fault) = reader.entries();
        let wanted: Vec<&Entry> = match &self.options.members[..] {
            [] => entries.iter().collect(),
            names => names.iter().map(|name| find(&input.path, name, &entries)).collect::<Result<_>>()?,
        };
        if out.is_none() {
            // Checks targets before the work, not after it.
            if let Some(name) = repeated_name(wanted.iter().map(|entry| &entry.head)) {
                return Err(FileError::Members { path: input.path.clone(), problem: two_members(&name) });
            }
            for entry in &wanted {
                let target = self.target_of(input, &entry.head)?;
                expect_no_input(&target, self.read)
                    .and_then(|()| refuse_other_size(&target, entry.end.bytes, self.options.replaces))
                    .map_err(|error| FileError::Decompress { path: input.path.clone(), error })?;
            }
        }
        if self.options.members.is_empty() {
            loop {
                match reader.next()? {
                    Some(head) => {
                        self.extract(input, &mut reader, &head, out.as_deref_mut())?;
                    }
                    None => return Ok(()),
                }
            }
        }
        for entry in wanted {
            let head = reader.seek_decodable(&entries, entry)?;
            self.extract(input, &mut reader, &head, out.as_deref_mut())?;
        }
        match fault {
            // The wanted members were extracted, but the remaining file is damaged.
            Some(fault) => Err(fault.into()),
            None => Ok(()),
        }
    }

    /// Decodes a member to its target file.
    fn extract<R: Read + Seek>(
        &self,
        input: &Input,
        reader: &mut Reader<R>,
        head: &Head,
        out: Option<&mut Out<'_>>,
    ) -> Result<Summary> {
        let summary = if let Some(out) = out {
            let summary = reader
                .decode(head, out)
                .map_err(|error| plain_of_original(error, FileError::OriginalsToStdout))?;
            out.keep();
            summary
        } else {
            let target = self.target_of(input, head)?;
            // The context names the file: if several files have the same members, the target alone is
            // ambiguous.
            let output = expect_no_input(&target, self.read)
                .and_then(|()| Output::create(&target, self.options.replaces))
                .map_err(|error| FileError::Decompress { path: input.path.clone(), error })?;
            let mut out = BufWriter::new(output.file());
            let summary = reader.decode(head, &mut out);
            let summary = summary.map_err(|error| plain_of_original(error, at(WRITE, &target)))?;
            out.flush().map_err(at(WRITE, &target))?;
            drop(out);
            output.commit(&head.meta)?;
            summary
        };
        (self.advance)(summary.stored);
        Ok(summary)
    }

    /// Returns the target path of a member, which is never outside the output folder. Files found in a folder
    /// keep their relative path below the output folder.
    fn target_of(&self, input: &Input, head: &Head) -> Result<PathBuf> {
        let name = Path::new(OsStr::from_bytes(&head.meta.name));
        // An absolute name starts with an empty part.
        let mut parts = head.meta.name.split(|byte| *byte == b'/');
        let inside = parts.all(|part| !matches!(part, b"" | b"." | b"..")) && !head.meta.name.contains(&0);
        if !inside {
            let problem =
                format!("the name of member {}, {}, leads elsewhere", head.number + 1, name.display());
            return Err(FileError::Members { path: input.path.clone(), problem });
        }
        let folder_of = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
        let folder = match &self.options.folder {
            Some(output) => output.join(folder_of(&input.relative)),
            None => folder_of(&input.path),
        };
        let target = folder.join(name);
        // The user chose the folder itself, so it may be a link.
        let root = self.options.folder.as_ref().unwrap_or(&folder);
        expect_no_link_below(root, parent_folder(&target)).map_err(|error| FileError::Member {
            path: input.path.clone(),
            member: name.to_owned(),
            error,
        })?;
        Ok(target)
    }

    /// Decompresses everything that is not damaged. Returns a line for each loss; empty if nothing is lost.
    ///
    /// # Errors
    /// The file cannot be read, or its originals cannot be written.
    pub fn salvage(&self, input: &Input) -> Result<Vec<String>> {
        let path = &input.path;
        let mut failure = None;
        let (file, found) = open(path)?;
        let walk = container::walk(file, self.options.limits(Some(found.len())), &mut |reader, head| {
            self.extract(input, reader, head, None).map_err(|error| match error {
                FileError::Container(error) => error,
                error => {
                    failure = Some(error);
                    Error::Original(io::ErrorKind::Other.into())
                }
            })
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        let walk = walk?;
        let mut lines: Vec<String> = walk
            .damage
            .iter()
            .map(|damage| format!("damaged: {}: {}", path.display(), error_text(damage)))
            .collect();
        lines.extend(unverified(path, &walk));
        lines.extend(walk.lost.iter().map(|loss| format!("lost: {}: {}", path.display(), words_of(loss))));
        if !lines.is_empty() {
            let bytes: u64 = walk.members.iter().map(|(_, summary)| summary.end.bytes).sum();
            let count = walk.members.len();
            lines.push(format!("salvaged: {}: {count} members, {}", path.display(), units::bytes(bytes)));
        }
        Ok(lines)
    }
}

fn find<'e>(path: &Path, name: &str, entries: &'e [Entry]) -> Result<&'e Entry> {
    let found = entries.iter().find(|entry| entry.head.meta.name == name.as_bytes());
    found.ok_or_else(|| {
        let some: Vec<_> =
            entries.iter().take(3).map(|entry| String::from_utf8_lossy(&entry.head.meta.name)).collect();
        let more = if entries.len() > 3 { ", ..." } else { "" };
        let known = format!("{}{more}", some.join(", "));
        FileError::NoMember { path: path.to_owned(), name: name.to_owned(), known }
    })
}

/// Separates errors of writing the output from errors of the compressed file.
fn plain_of_original(error: Error, named: impl FnOnce(io::Error) -> FileError) -> FileError {
    match error {
        Error::Original(error) => named(error),
        error => error.into(),
    }
}

/// Returns a hint for a fault of a file. Standard input is read only once, so nothing can be salvaged from
/// it.
pub fn hint_of(path: &Path, fault: &Error) -> Option<Hint> {
    match fault {
        Error::Damage(_) if is_stream(path) => Some(
            "get another copy of it, or save it to a file first: walden decompress --salvage extracts everything that is not damaged \
             from a file"
                .into(),
        ),
        fault => fault.hint(),
    }
}

/// Returns a name that two members share.
pub(crate) fn repeated_name<'h>(heads: impl IntoIterator<Item = &'h Head>) -> Option<String> {
    let mut seen = HashSet::new();
    let repeated = heads.into_iter().find(|head| !seen.insert(&head.meta.name[..]))?;
    Some(String::from_utf8_lossy(&repeated.meta.name).into_owned())
}

/// Returns the error text for a name that two members share.
pub(crate) fn two_members(name: &str) -> String {
    format!("expected members with different names, found two named {name}")
}

/// Returns a line for each member whose content is verified, but not its name and place in the pack.
pub(crate) fn unverified(path: &Path, walk: &Walk) -> Vec<String> {
    let of = walk.members.iter().filter(|(_, summary)| summary.binding != Binding::Verified);
    of.map(|(head, _)| {
        let name = String::from_utf8_lossy(&head.meta.name);
        format!(
            "not verified: {}: {name}: its content is right, its name and its place may be another's",
            path.display()
        )
    })
    .collect()
}

/// Describes a loss as text.
pub(crate) fn words_of(loss: &Loss) -> String {
    let first = loss.number + 1;
    let what = match (&loss.name, loss.members) {
        (Some(name), _) => name.clone(),
        (None, Some(1)) => format!("member {first}, which is unknown"),
        (None, Some(members)) => {
            format!("members {first} to {}, which are unknown", loss.number + members)
        }
        (None, None) => format!("all members from {first}, which are unknown"),
    };
    let place = loss.place.map_or(String::new(), |place| {
        format!(", LSN {} to {} of timeline {}", place.start, place.end(), place.timeline)
    });
    let why = if loss.damaged { "" } else { " (not damaged itself, but needs the lost data before it)" };
    format!("{what}{place}{why}")
}

#[cfg(test)]
mod tests {
    use walden_codec::container::{FileForm, Needs};

    use super::*;

    #[test]
    fn damage_of_standard_input_is_salvaged_from_a_file() {
        let damage = container::Damage {
            member: None,
            part: "a piece",
            offset: 40,
            expected: "8 bytes".into(),
            found: "7 bytes".into(),
            source: None,
        };
        let damage = Error::Damage(Box::new(damage));
        let hint = |path: &str| hint_of(Path::new(path), &damage).unwrap();
        assert!(hint("-").contains("save it to a file first"));
        assert_eq!(Some(hint("a.wlz")), damage.hint());
        assert_eq!(hint_of(Path::new("-"), &Error::Foreign), None);
    }

    #[test]
    fn packs_of_the_largest_segments_are_decoded_without_an_option() {
        let limits = DecompressOptions::default().limits(None);
        for level in 0..=9 {
            assert!(limits.admit(Needs::for_segments(FileForm::Pack, level, 1 << 30)).is_ok(), "{level}");
        }
    }

    #[test]
    fn small_files_get_less_memory() {
        let memory = |bytes| DecompressOptions::default().limits(Some(bytes)).memory;
        assert_eq!((memory(0), memory(38_000)), (2 << 30, 2 << 30));
        assert_eq!(memory(300_000), 300_000 * 16_384);
        assert_eq!((memory(1 << 20), memory(u64::MAX)), (11 << 30, 11 << 30));
        assert_eq!(DecompressOptions::default().memory(Some(1 << 33)).limits(Some(0)).memory, 1 << 33);
        // A pack may hold segments of 64 MB, however small it is.
        let limits = DecompressOptions::default().limits(Some(1000));
        assert!(limits.admit(Needs::for_segments(FileForm::Pack, 9, 64 << 20)).is_ok());
    }
}
