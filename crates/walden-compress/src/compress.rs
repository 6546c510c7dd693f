//! Compresses files, and verifies each compressed file before it gets its final name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, PipeWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use walden_codec::coder::Form;
use walden_codec::container::{
    self, Added, FileForm, KEYFRAME_BYTES, Meta, Needs, ReadLimits, Reader, WriteOptions, Writer,
};
use walden_format::lsn::SegmentSize;
use walden_output::pending::parent_folder;
use walden_output::{Inputs, Output, expect_no_input, expect_no_link_below, meta_of, refuse_existing};
use walden_source::inventory::{FileKind, Inventory, InventoryError, UnreadableReason};
use walden_source::{error_text, machine};

use crate::error::{FileError, VerifyError};
use crate::inputs::{Counted, open, remove};
use crate::{Input, SEGMENT_ENDING, STDIN};

type Result<T> = std::result::Result<T, FileError>;

/// Bytes of the largest segment.
const MAX_SEGMENT: u64 = SegmentSize::MAX.bytes();
/// The member name for standard input.
const STDIN_NAME: &str = "stdin";

/// How files are compressed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompressOptions {
    /// The folder to write to; `None` for the folder of each file.
    pub folder: Option<PathBuf>,
    /// The level, 1 (fast) to 9 (small); `None` for the default of the form.
    pub level: Option<u8>,
    /// In a pack, bytes of WAL between segments that can be decoded without the preceding segments.
    pub keyframe: u64,
    /// Maximum memory for decompression in bytes; `None` for enough for the largest segment.
    pub memory: Option<u64>,
    /// Maximum space for decompression in the folder of temporary files, in bytes.
    pub spill: Option<u64>,
    /// Whether the output is decoded and compared.
    pub verifies: bool,
    /// Whether existing files are replaced.
    pub replaces: bool,
    /// Whether each original is removed after its copy was verified and synced.
    pub removes: bool,
}

impl Default for CompressOptions {
    fn default() -> CompressOptions {
        CompressOptions {
            folder: None,
            level: None,
            keyframe: KEYFRAME_BYTES,
            memory: None,
            spill: None,
            verifies: true,
            replaces: false,
            removes: false,
        }
    }
}

walden_format::setters!(CompressOptions {
    folder: Option<PathBuf>,
    level: Option<u8>,
    keyframe: u64,
    memory: Option<u64>,
    spill: Option<u64>,
    verifies: bool,
    replaces: bool,
    removes: bool,
});

impl CompressOptions {
    /// Returns the level for a form.
    pub fn level_of(&self, form: FileForm) -> u8 {
        self.level.unwrap_or(form.default_level())
    }

    /// Returns the options for writing; `largest` is the size of the largest file in bytes.
    pub(crate) fn write_options(&self, form: FileForm, largest: u64) -> WriteOptions {
        let level = self.level_of(form);
        let ReadLimits { memory, spill, .. } = ReadLimits::default();
        let of_segments = Needs::for_segments(form, level, largest.min(MAX_SEGMENT));
        let needs = match (self.memory, self.spill) {
            (None, None) => of_segments,
            given => Needs::within(
                // If only the temporary file is limited, large segments must still be coded as records.
                given.0.unwrap_or(memory.max(of_segments.memory())),
                given.1.unwrap_or(spill),
            ),
        };
        let default = WriteOptions::with_level(form, level);
        let page_memory = self.memory.map_or_else(machine::page_memory, |_| default.page_memory);
        default.keyframe(self.keyframe).needs(needs).page_memory(page_memory)
    }
}

/// A compressed file or pack that was written.
#[derive(Debug)]
#[non_exhaustive]
pub struct Done {
    /// Path of the written file.
    pub output: PathBuf,
    /// Size of the written file in bytes.
    pub output_bytes: u64,
    /// Members of the written file, each with the input from which it was made.
    pub members: Vec<(Input, Added)>,
}

impl Done {
    /// Returns the size of all originals in bytes.
    pub fn original_bytes(&self) -> u64 {
        self.members.iter().map(|(_, added)| added.entry.end.bytes).sum()
    }
}

/// Compresses files.
pub struct Compressor<'a> {
    /// How files are compressed.
    pub options: &'a CompressOptions,
    /// The files that are read, which no output replaces.
    pub read: &'a Inputs,
    /// Receives the bytes of originals that were read.
    pub advance: &'a (dyn Fn(u64) + Sync),
    /// Receives warnings and notes, a line each.
    pub report: &'a (dyn Fn(&str) + Sync),
}

impl Compressor<'_> {
    /// Compresses a file to a compressed file with one member.
    ///
    /// # Errors
    /// The file cannot be read, or its compressed form cannot be written or does not decode to it.
    pub fn file(&self, input: &Input) -> Result<Done> {
        let mut relative = input.relative.clone().into_os_string();
        relative.push(".");
        relative.push(SEGMENT_ENDING);
        let target = match &self.options.folder {
            Some(folder) => {
                let target = folder.join(relative);
                expect_no_link_below(folder, parent_folder(&target))?;
                target
            }
            None => with_ending(&input.path),
        };
        expect_no_input(&target, self.read)?;
        let (mut source, found) = open(&input.path)?;
        let name = input.path.file_name().unwrap_or_default().as_bytes().to_vec();
        if !self.options.replaces {
            // Before the file is compressed, checks that an existing target was made from the same file.
            refuse_other_members(&target, &[(&name, found.len())])?;
        }
        let output = Output::create(&target, self.options.replaces)?;
        let meta = meta_of(name, &found);
        let mut counted = Counted::new(&mut source, found.len(), self.advance);
        let added = self.write_verified(&meta, &mut counted, found.len(), output.file(), &input.path)?;
        output.commit(&meta)?;
        self.note_damage(&input.path, &added);
        if self.options.removes {
            remove(&input.path, &found)?;
        }
        Ok(Done { output: target, output_bytes: added.file_end, members: vec![(input.clone(), added)] })
    }

    /// Compresses a file of `bytes` bytes to a compressed file with one member, and decodes that again. If
    /// coding by records does not restore the original, codes the file as bytes.
    fn write_verified(
        &self,
        meta: &Meta,
        source: &mut (impl Read + Seek),
        bytes: u64,
        output: &File,
        path: &Path,
    ) -> Result<Added> {
        let mut as_bytes = false;
        loop {
            let mut writer =
                Writer::new(BufWriter::new(output), self.options.write_options(FileForm::Segment, bytes));
            let added = writer.add(meta.clone(), as_bytes, source);
            let written = added.and_then(|added| writer.finish().map(|_| added));
            let added = written.map_err(|error| FileError::Compress { path: path.to_owned(), error })?;
            self.warn_of_failure(path, &added);
            if !self.options.verifies {
                return Ok(added);
            }
            match verify(output, &added) {
                Ok(()) => return Ok(added),
                Err(error)
                    if !as_bytes && !error.is_out_of_memory() && added.entry.head.form == Form::Records =>
                {
                    self.warn_of(path, &error);
                    as_bytes = true;
                    source.seek(SeekFrom::Start(0))?;
                    output.set_len(0)?;
                    (&mut &*output).seek(SeekFrom::Start(0))?;
                }
                Err(error) => {
                    return Err(FileError::Verify { path: path.to_owned(), error });
                }
            }
        }
    }

    pub(crate) fn warn_of_failure(&self, path: &Path, added: &Added) {
        if let Some(failure) = &added.failure {
            (self.report)(&format!(
                "warning: {}: {failure}; it is compressed as bytes instead, and nothing is lost, but it is larger. Free some space \
             for temporary files, or name another folder for them (TMPDIR)",
                path.display()
            ));
        }
    }

    /// Reports why a segment that is damaged at its start is compressed as bytes. A segment that is
    /// damaged later is coded by records up to the damage.
    pub(crate) fn note_damage(&self, path: &Path, added: &Added) {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_segment = matches!(FileKind::from_name(name), FileKind::Segment { .. });
        if added.entry.head.form == Form::Records || !is_segment {
            return;
        }
        if let Err(InventoryError::Unreadable(unreadable)) = Inventory::search(&[path])
            && matches!(unreadable.reason, UnreadableReason::Header(_) | UnreadableReason::Magic(..))
        {
            let (text, file) = (unreadable.to_string(), format!("{}: ", path.display()));
            let reason = text.strip_prefix(&file).unwrap_or(&text);
            (self.report)(&format!("note: {file}stored as bytes: {reason}"));
        }
    }

    pub(crate) fn warn_of(&self, path: &Path, error: &VerifyError) {
        (self.report)(&format!(
            "warning: {}: its records do not come back as they were ({}); it is compressed as bytes instead, and \
         nothing is lost, but please report this",
            path.display(),
            error_text(error)
        ));
    }

    /// Compresses standard input. Up to 1 GB of it and its compressed form are kept in temporary files;
    /// longer input is no segment, and is written and verified as it arrives.
    ///
    /// # Errors
    /// The input cannot be read, or its compressed form cannot be written or does not decode to it.
    pub fn stream(&self, mut input: impl Read, mut output: impl Write) -> Result<()> {
        let folder = std::env::temp_dir();
        let failed = |action: &'static str| {
            let folder = folder.clone();
            move |error| FileError::Temporary { action, folder, error }
        };
        let temporary =
            || tempfile::tempfile().map_err(failed("cannot create a temporary file for standard input"));
        let meta = Meta { name: STDIN_NAME.into(), ..Meta::default() };
        let mut source = temporary()?;
        // One byte more than the largest segment shows that the input is no segment.
        let bytes = io::copy(&mut (&mut input).take(MAX_SEGMENT + 1), &mut source)
            .map_err(failed("cannot copy standard input to a temporary file"))?;
        source.seek(SeekFrom::Start(0))?;
        if bytes > MAX_SEGMENT {
            return self.stream_as_bytes(meta, &mut source.chain(input), output);
        }
        let mut compressed = temporary()?;
        self.write_verified(&meta, &mut source, bytes, &compressed, Path::new(STDIN))?;
        compressed.seek(SeekFrom::Start(0))?;
        let written = io::copy(&mut compressed, &mut output).and_then(|_| output.flush());
        written.map_err(FileError::Stdout)
    }

    /// Compresses standard input as bytes while it arrives, as it may exceed the space for temporary
    /// files. The output is decoded at the same time, so a verification error is reported only after
    /// output was written.
    fn stream_as_bytes(&self, meta: Meta, input: &mut impl Read, output: impl Write) -> Result<()> {
        let (compressed, copy) = io::pipe().map_err(FileError::Pipe)?;
        std::thread::scope(|scope| -> Result<()> {
            let decode =
                move || container::decompress(BufReader::new(compressed), io::sink(), own_limits()).map(drop);
            let (verifier, copy) = match self.options.verifies {
                false => (None, None),
                true => (Some(scope.spawn(decode)), Some(copy)),
            };
            let output = BufWriter::new(Copied { output, copy });
            let mut writer = Writer::new(output, self.options.write_options(FileForm::Segment, MAX_SEGMENT));
            // The writer is dropped here, which closes the pipe and ends verification.
            let written = writer.add_bytes(meta, input).and_then(|_| writer.finish()).map(drop);
            let verified = verifier.map(std::thread::ScopedJoinHandle::join).transpose();
            written.map_err(|error| FileError::Compress { path: STDIN.into(), error })?;
            let verified = verified.map_err(|_| VerifyError::Panic)?;
            verified
                .transpose()
                .map_err(|error| FileError::Verify { path: STDIN.into(), error: error.into() })?;
            Ok(())
        })
    }
}

/// Returns an error if the target exists and was not made from files of these names and sizes.
pub(crate) fn refuse_other_members(target: &Path, members: &[(&[u8], u64)]) -> Result<()> {
    let is_like = || {
        let mut reader = Reader::open(File::open(target).ok()?, own_limits()).ok()?;
        let (entries, fault) = reader.entries();
        let found = entries.iter().map(|entry| (&entry.head.meta.name[..], entry.end.bytes));
        Some(fault.is_none() && found.eq(members.iter().copied()))
    };
    if is_like() != Some(true) {
        refuse_existing(target, false)?;
    }
    Ok(())
}

/// Returns the limits for decoding a file that this program has just written: unlimited.
pub(crate) fn own_limits() -> ReadLimits {
    ReadLimits::default().memory(u64::MAX).spill(u64::MAX).page_memory(machine::page_memory())
}

/// Decodes the output and compares it with the input.
fn verify(file: &File, added: &Added) -> std::result::Result<(), VerifyError> {
    let mut reader = Reader::open(file, own_limits())?;
    verify_member(&mut reader, added)?;
    match reader.next()? {
        None => Ok(()),
        Some(_) => Err(VerifyError::MoreMembers),
    }
}

/// Decodes the next member and compares it with the written one.
pub(crate) fn verify_member<R: Read + Seek>(
    reader: &mut Reader<R>,
    added: &Added,
) -> std::result::Result<(), VerifyError> {
    let head = reader.next()?.ok_or(VerifyError::NoMember)?;
    if head != added.entry.head {
        return Err(VerifyError::OtherHead);
    }
    let summary = reader.decode(&head, &mut std::io::sink())?;
    match summary.end == added.entry.end {
        true => Ok(()),
        false => Err(VerifyError::OtherHash),
    }
}

/// An output that is copied to a pipe until its reader stops. The reader reports why it stopped.
struct Copied<O> {
    output: O,
    copy: Option<PipeWriter>,
}

impl<O: Write> Write for Copied<O> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        let copied = self.copy.as_mut().map(|copy| copy.write_all(&bytes[..written]));
        if matches!(copied, Some(Err(_))) {
            self.copy = None;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

fn with_ending(path: &Path) -> PathBuf {
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    bytes.push(b'.');
    bytes.extend(SEGMENT_ENDING.bytes());
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_as_bytes(options: &CompressOptions, original: &[u8], output: impl Write) -> Result<()> {
        let (read, report) = (Inputs::default(), |_: &str| ());
        let compressor = Compressor { options, read: &read, advance: &|_| (), report: &report };
        compressor.stream_as_bytes(Meta::default(), &mut &original[..], output)
    }

    /// A writer that accepts this many bytes, then fails like a full disk.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_longer_than_a_segment_is_compressed_as_it_comes() {
        let original: Vec<u8> = (0..200_000_u32).flat_map(|n| (n / 3).to_le_bytes()).collect();
        for verifies in [true, false] {
            let options = CompressOptions::default().level(Some(1)).verifies(verifies);
            let (mut compressed, mut decoded) = (Vec::new(), Vec::new());
            stream_as_bytes(&options, &original, &mut compressed).unwrap();
            container::decompress(&compressed[..], &mut decoded, ReadLimits::default()).unwrap();
            assert!(decoded == original && compressed.len() < original.len());
            for bytes in [0, compressed.len() - 1] {
                let full = stream_as_bytes(&options, &original, Full(bytes));
                let error = full.unwrap_err();
                let FileError::Compress { error: container::Error::Io(cause), .. } = &error else {
                    panic!("{error:?}")
                };
                assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
                assert!(error.to_string().starts_with("cannot compress standard input"), "{error}");
            }
        }
    }

    #[test]
    fn memory_that_is_not_there_is_no_fault_of_what_was_written() {
        let of = |kind: io::ErrorKind| VerifyError::Container(container::Error::Io(kind.into()));
        assert!(of(io::ErrorKind::OutOfMemory).is_out_of_memory());
        assert!(!of(io::ErrorKind::StorageFull).is_out_of_memory());
    }

    /// A pack's header states the memory that its largest segment may need.
    #[test]
    fn a_limit_of_the_temporary_file_alone_leaves_large_segments_their_memory() {
        let given = CompressOptions::default().spill(Some(1 << 30));
        let needs = given.write_options(FileForm::Pack, MAX_SEGMENT).needs;
        assert!(needs.memory() > 10 << 30, "{needs:?}");
        assert!(ReadLimits::for_largest_segments().admit(needs).is_ok(), "{needs:?}");
        let small = given.write_options(FileForm::Pack, 16 << 20).needs;
        assert!(ReadLimits::default().admit(small).is_ok(), "{small:?}");
    }
}
