//! `walden compress`: compresses files, and verifies each compressed file before renaming it to its final
//! name.

mod inputs;
mod pack;
mod show;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, IsTerminal as _, PipeWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use walden_codec::coder::Form;
use walden_codec::container::{
    self, Added, FileForm, KEYFRAME_BYTES, Meta, Needs, ReadLimits, Reader, WriteOptions, Writer,
};
use walden_format::lsn::SegmentSize;
use walden_output::pending::parent_folder;
use walden_source::inventory::{FileKind, Inventory, InventoryError, UnreadableReason};
use walden_source::machine;
use walden_source::workers::map_in_order;

use self::inputs::{Counted, gather, no_pack, remove};
pub use self::inputs::{Input, gather_compressed, open};
#[cfg(feature = "demo")]
pub use self::pack::write_pack_of;
pub use self::show::{form_name, ratio};
use crate::arguments::parse_size;
use crate::level::LevelFlags;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::protect::Inputs;
use crate::terminal;
use crate::terminal::Format;

const EXAMPLES: &str = "\
Examples:
  walden compress 0000000100000A2B000000C5
      one segment, to 0000000100000A2B000000C5.wlz in the same folder
  walden compress -9 --rm /archive/wal
      each file of a folder at the slowest level; each original is removed after its copy was verified
  walden compress --pack -o /backup /archive/wal
      consecutive segments into one file, which is smaller because segments share statistics and pages
  walden decompress /backup/*.wpk -o /restore
      decompress the pack's segments
  ssh db cat pg_wal/0000000100000A2B000000C5 | walden compress - > 0000000100000A2B000000C5.wlz
      standard input to standard output

Levels: 1 is the fastest; 3, the default for single files, is about as fast as gzip -1. From 4 on, values that the server compressed (TOAST) \
are decompressed before: smaller where a log has such values. 6, the default for packs, is 6 % smaller than 5, in 2.5 times the time. From 7 on \
contexts are mixed, and decompressing takes as long as compressing: packs of 7 are 8 % smaller than of 6, in twice the time; 8 is 5 % smaller \
than 7, in 2.4 times its time; 9, the smallest, is 2 % smaller than 8, in 1.4 times its time.

Segments are compressed record by record; anything else (other versions, damaged or encrypted segments, history and backup files) is compressed as bytes. Every file is restored byte for byte, with its name, permissions and time of modification. An existing compressed file is not replaced; it is no error if the new one would be the same. Unfinished files of a killed run (.NAME.walden-tmp) are removed by a run that writes to the same folder at least a minute later.

Exit status: 0 done, 2 wrong usage, or compressed files exist and --force is not given, 3 a file could not be read or written (the others are done).";

/// Compress WAL: each file to NAME.wlz, or consecutive segments to one pack
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompressArgs {
    /// Files, or folders of files (searched recursively, skipping compressed files); - for standard input,
    /// which is compressed to standard output. Up to 1 GB of standard input and its compressed form are kept
    /// in temporary files (TMPDIR); longer input is no segment, and is written and verified as it arrives
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// The folder to write to [default: that of each file]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Compression level, 1 (fast) to 9 (small), also as -1 to -9 [default: 3 for files, 6 for packs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=9))]
    level: Option<u8>,

    #[command(flatten)]
    level_flags: LevelFlags,

    /// Write all files, in WAL order, to one pack, in the folder of --output or at the given path, which ends
    /// in .wpk; only one of them may name a folder [default name: FIRST-LAST.wpk]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pack: Option<Option<PathBuf>>,

    /// In a pack, bytes of WAL between keyframes: segments that can be decoded without the preceding ones. A
    /// smaller value speeds up access to single segments and limits loss by damage, a larger value makes the
    /// pack smaller
    #[arg(long, value_name = "SIZE", default_value = KEYFRAME, requires = "pack", value_parser = parse_size)]
    keyframe: usize,

    /// Maximum memory for decompression, at least 54MB (a pack: 149MB; from level 7 on 223MB and 319MB). A
    /// segment that would need more is compressed as bytes [default: enough for the largest segment]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,

    /// Maximum space for decompression in the folder of temporary files (TMPDIR) [default: 4GB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    spill: Option<usize>,

    /// Do not decode and compare the output. Faster, but a fault of the program, the memory or the disk goes
    /// unnoticed until the file is needed
    #[arg(long)]
    no_verify: bool,

    /// Replace existing files
    #[arg(short, long)]
    force: bool,

    /// Remove each original after its copy was verified and synced
    #[arg(long, conflicts_with = "no_verify")]
    rm: bool,

    /// Output format of the summary
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Threads, one file each [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// File name extension of a compressed segment.
pub const SEGMENT_ENDING: &str = "wlz";
/// File name extension of a pack.
pub const PACK_ENDING: &str = "wpk";
const KEYFRAME: &str = "512MB";
const _: () = assert!(KEYFRAME_BYTES == 512 << 20);
const MAX_SEGMENT: u64 = SegmentSize::MAX.bytes();
/// Maximum number of files whose results are listed individually.
pub const MAX_ROWS: usize = 50;

/// Runs the command.
pub fn run(args: &CompressArgs) -> Result<ExitCode> {
    let started = Instant::now();
    refuse_little_memory(args);
    if args.files.iter().any(|path| is_stream(path)) {
        return stream(args);
    }
    if let (Some(Some(name)), Some(folder)) = (&args.pack, &args.output)
        && name.file_name() != Some(name.as_os_str())
    {
        crate::wrong_usage(&format!(
            "cannot use --pack={} with --output {}: both name a folder; use --pack with a path alone, or with a file's name and \
             --output",
            name.display(),
            folder.display()
        ));
    }
    refuse_other_ending(args);
    let (inputs, mut errors) = gather(&args.files);
    let read = Inputs::from_files(inputs.iter().map(|input| &input.path));
    if args.rm {
        inputs.iter().try_for_each(|input| output::expect_removable(&input.path, &read))?;
    }
    let total =
        inputs.iter().filter_map(|input| fs::metadata(&input.path).ok()).map(|found| found.len()).sum();
    let progress = Mutex::new(Progress::bytes("compressing", total));
    let advance = |bytes| {
        if let Ok(mut progress) = progress.lock() {
            progress.advance(bytes);
        }
    };
    let results = if let Some(name) = &args.pack {
        if !errors.is_empty() {
            return Err(errors.remove(0).context(no_pack(args)));
        }
        ensure!(!inputs.is_empty(), "cannot compress: expected files, found none");
        vec![pack::pack(args, name.as_deref(), inputs, &read, &advance)?]
    } else {
        let threads = args.threads.map_or_else(terminal::cores, usize::from);
        let results = map_in_order(&inputs, threads, |input| single(args, input, &read, &advance));
        let (done, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        errors.extend(failed.into_iter().filter_map(Result::err));
        done.into_iter().filter_map(Result::ok).collect()
    };
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    errors.iter().for_each(output::report);
    show::print(args, &results, errors.len(), started.elapsed().as_secs_f64())?;
    Ok(output::status_of(&errors))
}

/// Ends the process if a pack's name lacks the extension by which packs are found in folders.
fn refuse_other_ending(args: &CompressArgs) {
    let Some(Some(name)) = &args.pack else { return };
    let target = args.output.as_ref().map_or_else(|| name.clone(), |folder| folder.join(name));
    // A folder at this path is a different mistake, with its own error.
    if target.is_dir() || name.extension().is_some_and(|ending| ending == PACK_ENDING) {
        return;
    }
    let mut whole = name.clone();
    whole.as_mut_os_string().push(format!(".{PACK_ENDING}"));
    crate::wrong_usage(&format!(
        "cannot use --pack={}: expected a name that ends in .{PACK_ENDING}, by which packs are found in folders; use --pack={}",
        name.display(),
        whole.display()
    ));
}

/// Ends the process if `--memory` is too small to decompress anything.
fn refuse_little_memory(args: &CompressArgs) {
    let form = if args.pack.is_some() { FileForm::Pack } else { FileForm::Segment };
    let least = Needs::least_memory(form, level(args, form));
    if let Some(memory) = args.memory.filter(|memory| (*memory as u64) < least) {
        crate::wrong_usage(&format!(
            "cannot use --memory {}: expected at least {}MB at this level",
            in_megabytes(memory),
            least >> 20
        ));
    }
}

/// Formats a size as [`parse_size`] reads it: in megabytes, or in bytes if megabytes would be rounded.
fn in_megabytes(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{}MB", bytes >> 20) } else { format!("{bytes}B") }
}

/// A compressed file or pack that was written.
struct Done {
    output: PathBuf,
    output_bytes: u64,
    members: Vec<(Input, Added)>,
}

impl Done {
    fn original_bytes(&self) -> u64 {
        self.members.iter().map(|(_, added)| added.entry.end.bytes).sum()
    }
}

/// Compresses a file to a compressed file with one member.
fn single(args: &CompressArgs, input: &Input, read: &Inputs, advance: &(dyn Fn(u64) + Sync)) -> Result<Done> {
    let mut relative = input.relative.clone().into_os_string();
    relative.push(".");
    relative.push(SEGMENT_ENDING);
    let target = match &args.output {
        Some(folder) => {
            let target = folder.join(relative);
            output::expect_no_link_below(folder, parent_folder(&target))?;
            target
        }
        None => with_ending(&input.path),
    };
    output::expect_no_input(&target, read)?;
    let (mut source, found) = open(&input.path)?;
    let name = input.path.file_name().unwrap_or_default().as_bytes().to_vec();
    if !args.force {
        // Checks before the work that an existing target was made from the same file.
        refuse_other_members(&target, &[(&name, found.len())])?;
    }
    let output = Output::create(&target, args.force)?;
    let meta = output::meta_of(name, &found);
    let mut counted = Counted::new(&mut source, found.len(), advance);
    let added = write_verified(args, &meta, &mut counted, found.len(), output.file(), &input.path)?;
    output.commit(&meta)?;
    note_damage(&input.path, &added);
    if args.rm {
        remove(&input.path, &found)?;
    }
    Ok(Done { output: target, output_bytes: added.file_end, members: vec![(input.clone(), added)] })
}

/// Compresses a file of `bytes` bytes to a compressed file with one member, and decodes that again. If coding
/// by records does not restore the original, codes the file as bytes.
fn write_verified(
    args: &CompressArgs,
    meta: &Meta,
    source: &mut (impl Read + Seek),
    bytes: u64,
    output: &File,
    path: &Path,
) -> Result<Added> {
    let mut as_bytes = false;
    loop {
        let mut writer = Writer::new(BufWriter::new(output), options(args, FileForm::Segment, bytes));
        let added = writer.add(meta.clone(), as_bytes, source);
        let written = added.and_then(|added| writer.finish().map(|_| added));
        let added = written.with_context(|| format!("cannot compress {}", path.display()))?;
        warn_of_failure(path, &added);
        if args.no_verify {
            return Ok(added);
        }
        match verify(output, &added) {
            Ok(()) => return Ok(added),
            Err(error)
                if !as_bytes && !is_out_of_memory(&error) && added.entry.head.form == Form::Records =>
            {
                warn_of(path, &error);
                as_bytes = true;
                source.seek(SeekFrom::Start(0))?;
                output.set_len(0)?;
                (&mut &*output).seek(SeekFrom::Start(0))?;
            }
            Err(error) => {
                return Err(error.context(format!("cannot verify the compressed form of {}", path.display())));
            }
        }
    }
}

/// Returns whether memory ran out, which does not mean that the output is wrong.
fn is_out_of_memory(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::OutOfMemory)
}

/// Returns an error if the target exists and was not made from files of these names and sizes.
fn refuse_other_members(target: &Path, members: &[(&[u8], u64)]) -> Result<()> {
    let is_like = || {
        let mut reader = Reader::open(File::open(target).ok()?, own_limits()).ok()?;
        let (entries, fault) = reader.entries();
        let found = entries.iter().map(|entry| (&entry.head.meta.name[..], entry.end.bytes));
        Some(fault.is_none() && found.eq(members.iter().copied()))
    };
    if is_like() != Some(true) {
        output::refuse_existing(target, false)?;
    }
    Ok(())
}

/// Returns the limits for decoding a file that this program has just written: unlimited.
fn own_limits() -> ReadLimits {
    ReadLimits::default().memory(u64::MAX).spill(u64::MAX).page_memory(machine::page_memory())
}

/// Decodes the output and compares it with the input.
fn verify(file: &File, added: &Added) -> Result<()> {
    let mut reader = Reader::open(file, own_limits())?;
    verify_member(&mut reader, added)?;
    ensure!(reader.next()?.is_none(), "expected one member, found more");
    Ok(())
}

fn verify_member<R: Read + Seek>(reader: &mut Reader<R>, added: &Added) -> Result<()> {
    let head = reader.next()?.ok_or_else(|| anyhow!("expected the member that was written, found none"))?;
    ensure!(head == added.entry.head, "expected the member's header as it was written, found another");
    let summary = reader.decode(&head, &mut std::io::sink())?;
    ensure!(summary.end == added.entry.end, "expected the hash of the original, found another");
    Ok(())
}

fn warn_of_failure(path: &Path, added: &Added) {
    if let Some(failure) = &added.failure {
        eprintln!(
            "warning: {}: {failure}; it is compressed as bytes instead, and nothing is lost, but it is larger. Free some space \
             for temporary files, or name another folder for them (TMPDIR)",
            path.display()
        );
    }
}

/// Reports why a segment that is damaged at its start is compressed as bytes. A segment that is damaged later
/// is coded by records up to the damage.
fn note_damage(path: &Path, added: &Added) {
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
        output::tell(&format!("note: {file}stored as bytes: {reason}"));
    }
}

fn warn_of(path: &Path, error: &anyhow::Error) {
    eprintln!(
        "warning: {}: its records do not come back as they were ({error:#}); it is compressed as bytes instead, and \
         nothing is lost, but please report this",
        path.display()
    );
}

/// Compresses standard input to standard output.
fn stream(args: &CompressArgs) -> Result<ExitCode> {
    const ALONE: &str = "cannot use - (standard input) with --output, --pack, --rm or other files: its output goes to standard output";
    let is_alone = args.files.len() == 1 && args.output.is_none() && args.pack.is_none() && !args.rm;
    if !is_alone {
        crate::wrong_usage(ALONE);
    }
    if args.format != Format::default() {
        crate::wrong_usage(
            "cannot use - (standard input) with --format: standard output is the compressed data, and nothing is printed",
        );
    }
    ensure!(
        !io::stdout().is_terminal(),
        "compressed data is not written to a terminal; redirect standard output"
    );
    let folder = std::env::temp_dir();
    let temporary = || {
        tempfile::tempfile().with_context(|| {
            format!("cannot create a temporary file for standard input in {} (TMPDIR)", folder.display())
        })
    };
    let meta = Meta { name: STDIN_NAME.into(), ..Meta::default() };
    let mut input = io::stdin().lock();
    let mut source = temporary()?;
    // One byte more than the largest segment shows that the input is no segment.
    let bytes = io::copy(&mut (&mut input).take(MAX_SEGMENT + 1), &mut source).with_context(|| {
        format!("cannot copy standard input to a temporary file in {} (TMPDIR)", folder.display())
    })?;
    source.seek(SeekFrom::Start(0))?;
    if bytes > MAX_SEGMENT {
        stream_as_bytes(args, meta, &mut source.chain(input), terminal::Stdout)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut output = temporary()?;
    write_verified(args, &meta, &mut source, bytes, &output, Path::new("standard input"))?;
    output.seek(SeekFrom::Start(0))?;
    let written = io::copy(&mut output, &mut terminal::Stdout).and_then(|_| terminal::Stdout.flush());
    written.context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Compresses standard input as bytes while it arrives, as it may exceed the space for temporary files. The
/// output is decoded at the same time, so a verification error is reported only after output was written.
fn stream_as_bytes(args: &CompressArgs, meta: Meta, input: &mut impl Read, output: impl Write) -> Result<()> {
    let (compressed, copy) = io::pipe().context("cannot make a pipe")?;
    std::thread::scope(|scope| -> Result<()> {
        let decode =
            move || container::decompress(BufReader::new(compressed), io::sink(), own_limits()).map(drop);
        let (verifier, copy) =
            if args.no_verify { (None, None) } else { (Some(scope.spawn(decode)), Some(copy)) };
        let output = BufWriter::new(Copied { output, copy });
        let mut writer = Writer::new(output, options(args, FileForm::Segment, MAX_SEGMENT));
        // The writer is dropped here, which closes the pipe and ends verification.
        let written = writer.add_bytes(meta, input).and_then(|_| writer.finish()).map(drop);
        let verified = verifier.map(std::thread::ScopedJoinHandle::join).transpose();
        written.context("cannot compress standard input")?;
        let verified = verified.map_err(|_| anyhow!("cannot verify: the thread ended by a panic"))?;
        verified.transpose().context("cannot verify the compressed form of standard input")?;
        Ok(())
    })
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

/// The member name for standard input.
const STDIN_NAME: &str = "stdin";

/// Returns whether a file name means standard input and output.
pub fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns the chosen level, or the default level of the form.
fn level(args: &CompressArgs, form: FileForm) -> u8 {
    args.level_flags.or(args.level).unwrap_or(form.default_level())
}

/// Returns the options for writing; `largest` is the size of the largest file in bytes.
fn options(args: &CompressArgs, form: FileForm, largest: u64) -> WriteOptions {
    let level = level(args, form);
    let ReadLimits { memory, spill, .. } = ReadLimits::default();
    let of_segments = Needs::for_segments(form, level, largest.min(MAX_SEGMENT));
    let needs = match (args.memory, args.spill) {
        (None, None) => of_segments,
        given => Needs::within(
            // If only the temporary file is limited, large segments must still be coded as records.
            given.0.map_or(memory.max(of_segments.memory()), |bytes| bytes as u64),
            given.1.map_or(spill, |bytes| bytes as u64),
        ),
    };
    let default = WriteOptions::with_level(form, level);
    let page_memory = args.memory.map_or_else(machine::page_memory, |_| default.page_memory);
    default.keyframe(args.keyframe as u64).needs(needs).page_memory(page_memory)
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

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        args: CompressArgs,
    }

    fn args(words: &[&str]) -> CompressArgs {
        <Alone as clap::Parser>::try_parse_from(words.iter().copied()).unwrap().args
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
        for words in [&["compress", "-1", "-"][..], &["compress", "-1", "--no-verify", "-"]] {
            let (mut compressed, mut decoded) = (Vec::new(), Vec::new());
            stream_as_bytes(&args(words), Meta::default(), &mut &original[..], &mut compressed).unwrap();
            container::decompress(&compressed[..], &mut decoded, ReadLimits::default()).unwrap();
            assert!(decoded == original && compressed.len() < original.len());
            for bytes in [0, compressed.len() - 1] {
                let full = stream_as_bytes(&args(words), Meta::default(), &mut &original[..], Full(bytes));
                let error = full.unwrap_err();
                assert!(format!("{error:#}").starts_with("cannot compress standard input"), "{error:#}");
                assert!(output::hint_of(&error).is_some_and(|hint| hint.starts_with("free some space")));
            }
        }
    }

    #[test]
    fn the_least_memory_is_that_of_the_help() {
        for (words, least) in
            [(&["compress", "x"][..], "54MB"), (&["compress", "--pack", "-7", "x"], "319MB")]
        {
            let args = args(words);
            let form = if args.pack.is_some() { FileForm::Pack } else { FileForm::Segment };
            assert_eq!(in_megabytes(Needs::least_memory(form, level(&args, form)) as usize), least);
        }
        assert_eq!(in_megabytes(1000), "1000B");
    }

    #[test]
    fn memory_that_is_not_there_is_no_fault_of_what_was_written() {
        let of = |kind: io::ErrorKind| anyhow::Error::from(container::Error::Io(kind.into()));
        assert!(is_out_of_memory(&of(io::ErrorKind::OutOfMemory).context("cannot verify")));
        assert!(!is_out_of_memory(&of(io::ErrorKind::StorageFull)));
    }

    /// A pack's header states the memory that its largest segment may need.
    #[test]
    fn a_limit_of_the_temporary_file_alone_leaves_large_segments_their_memory() {
        let given = args(&["compress", "--pack", "--spill", "1GB", "000000010000000000000001"]);
        let needs = options(&given, FileForm::Pack, MAX_SEGMENT).needs;
        assert!(needs.memory() > 10 << 30, "{needs:?}");
        assert!(ReadLimits::for_largest_segments().admit(needs).is_ok(), "{needs:?}");
        let small = options(&given, FileForm::Pack, 16 << 20).needs;
        assert!(ReadLimits::default().admit(small).is_ok(), "{small:?}");
    }
}
