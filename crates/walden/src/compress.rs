//! `walden compress`: compresses files, and verifies each compressed file before it gets its name.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, IsTerminal as _, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::{ArgAction, Args};
use serde_json::{Value, json};
use walden_codec::coder::{Form, start_of};
use walden_codec::container::{
    Added, FileForm, KEYFRAME_BYTES, Meta, Needs, ReadLimits, Reader, WriteOptions, Writer,
};
use walden_format::lsn::{Lsn, SegmentName, Timeline};
use walden_format::page::LONG_HEADER;
use walden_format::stream::StreamInfo;
use walden_report::table::{Row, table};
use walden_report::units;
use walden_source::workers::map_in_order;

use crate::output::{self, Output};
use crate::progress::Progress;
use crate::redo::parse_size;
use crate::terminal::Format;
use crate::{DAMAGED, terminal};

const EXAMPLES: &str = "\
Examples:
  walden compress 0000000100000A2B000000C5
      one segment, to 0000000100000A2B000000C5.wlz beside it
  walden compress -9 --rm /archive/wal
      each file of a folder at the slowest level; each original is removed after its copy was verified
  walden compress --pack -o /backup /archive/wal
      consecutive segments into one file, which is smaller because segments share statistics and pages
  walden decompress /backup/*.wpk -o /restore
      decompress the pack's segments
  ssh db cat pg_wal/0000000100000A2B000000C5 | walden compress - > 0000000100000A2B000000C5.wlz
      standard input to standard output

Segments are compressed record by record; anything else (other versions, damaged or encrypted segments, history and backup files) is compressed as bytes. Every file is restored byte for byte, with its name, permissions and time of modification. An existing compressed file is not replaced; it is no error if the new one would be the same.

Exit status: 0 done, 2 wrong usage, 3 a file could not be read or written (the others are done).";

/// Compress WAL: each file to NAME.wlz, or consecutive segments to one pack
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompressArgs {
    /// Files, or folders of files (searched recursively, without the compressed files in them); - for standard input, which is
    /// compressed to standard output
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// The folder to write to [default: that of each file]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    #[command(flatten)]
    levels: Levels,

    /// Write all files, in the order of the log, to one pack [default name: FIRST-LAST.wpk]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pack: Option<Option<PathBuf>>,

    /// In a pack, bytes of WAL between keyframes, which are segments that are decoded without those before them. Fewer bytes
    /// give faster access to single segments and less loss by damage, more give a smaller file
    #[arg(long, value_name = "SIZE", default_value = KEYFRAME, requires = "pack", value_parser = parse_size)]
    keyframe: usize,

    /// Memory that decompressing may need at most. A segment that would need more is compressed as bytes [default: what the
    /// largest segment may need]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,

    /// Space in the folder of temporary files (TMPDIR) that decompressing may need at most [default: 4GB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    spill: Option<usize>,

    /// Do not decode and compare the output. Faster; but a fault of the program, the memory or the disk is noticed only when
    /// the file is needed
    #[arg(long)]
    no_verify: bool,

    /// Replace existing files
    #[arg(short, long)]
    force: bool,

    /// Remove each original after its copy was verified and synced
    #[arg(long, conflicts_with = "no_verify")]
    rm: bool,

    /// How to print what was done
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Threads, each with a file of its own [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// `-1` to `-9`.
#[derive(Args, Debug)]
#[group(multiple = false)]
struct Levels {
    /// Fastest
    #[arg(short = '1', action = ArgAction::SetTrue)]
    one: bool,
    #[arg(short = '2', action = ArgAction::SetTrue, hide = true)]
    two: bool,
    /// Default for single files; about as fast as gzip -1
    #[arg(short = '3', action = ArgAction::SetTrue)]
    three: bool,
    #[arg(short = '4', action = ArgAction::SetTrue, hide = true)]
    four: bool,
    #[arg(short = '5', action = ArgAction::SetTrue, hide = true)]
    five: bool,
    /// Smaller; default for packs
    #[arg(short = '6', action = ArgAction::SetTrue)]
    six: bool,
    /// Context mixing: packs 8 % smaller than with -6, in twice the time. Decompressing takes as long as compressing
    #[arg(short = '7', action = ArgAction::SetTrue)]
    seven: bool,
    /// 5 % smaller than -7, in 2.4 times its time
    #[arg(short = '8', action = ArgAction::SetTrue)]
    eight: bool,
    /// Smallest: 2 % smaller than -8, in 1.4 times its time
    #[arg(short = '9', action = ArgAction::SetTrue)]
    nine: bool,
}

/// The ending of a compressed segment.
pub const SEGMENT_ENDING: &str = "wlz";
/// The ending of a pack.
pub const PACK_ENDING: &str = "wpk";
const KEYFRAME: &str = "512MB";
const _: () = assert!(KEYFRAME_BYTES == 512 << 20);
/// Most files whose results are listed one by one.
pub const MAX_ROWS: usize = 50;

/// Runs the command.
pub fn run(args: &CompressArgs) -> Result<ExitCode> {
    let started = Instant::now();
    if args.files.iter().any(|path| is_stream(path)) {
        return stream(args);
    }
    let (inputs, mut errors) = gather(&args.files);
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
        vec![pack(args, name.as_deref(), inputs, &advance)?]
    } else {
        let threads = args.threads.map_or_else(terminal::cores, usize::from);
        let results = map_in_order(&inputs, threads, |input| single(args, input, &advance));
        let (done, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        errors.extend(failed.into_iter().filter_map(Result::err));
        done.into_iter().filter_map(Result::ok).collect()
    };
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    errors.iter().for_each(output::report);
    print(args, &results, errors.len(), started.elapsed().as_secs_f64())?;
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

/// A file to compress.
struct Input {
    path: PathBuf,
    /// Path relative to the argument that it was found under.
    relative: PathBuf,
}

/// A compressed file or member that was written.
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

/// Compresses a file to a file of one member.
fn single(args: &CompressArgs, input: &Input, advance: &(dyn Fn(u64) + Sync)) -> Result<Done> {
    let mut relative = input.relative.clone().into_os_string();
    relative.push(".");
    relative.push(SEGMENT_ENDING);
    let target = match &args.output {
        Some(folder) => folder.join(relative),
        None => with_ending(&input.path),
    };
    let (mut source, found) = open(&input.path)?;
    let name = input.path.file_name().unwrap_or_default().as_bytes().to_vec();
    if !args.force {
        // What was made of another file stays, and that is seen now, not after the work.
        refuse_other_members(&target, &[(&name, found.len())])?;
    }
    let output = Output::create(&target, args.force)?;
    let meta = output::meta_of(name, &found);
    let mut counted = Counted { input: &mut source, left: found.len(), advance };
    let added = write_verified(args, &meta, &mut counted, found.len(), output.file(), &input.path)?;
    output.commit(&meta)?;
    if args.rm {
        remove(&input.path, &found)?;
    }
    let input = Input { path: input.path.clone(), relative: input.relative.clone() };
    Ok(Done { output: target, output_bytes: added.file_end, members: vec![(input, added)] })
}

/// Compresses a file of `bytes` bytes to a file of one member, and decodes that. If coding by records does not restore the
/// original, the file is coded as bytes.
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
            Err(error) if !as_bytes && added.entry.head.form == Form::Records => {
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

/// An error if the target exists and was not made from files of these names and sizes.
fn refuse_other_members(target: &Path, members: &[(&[u8], u64)]) -> Result<()> {
    let is_like = || {
        let mut reader = Reader::open(File::open(target).ok()?, OWN).ok()?;
        let (entries, fault) = reader.entries();
        let found = entries.iter().map(|entry| (&entry.head.meta.name[..], entry.end.bytes));
        Some(fault.is_none() && found.eq(members.iter().copied()))
    };
    if is_like() == Some(true) { Ok(()) } else { output::refuse_existing(target, false) }
}

/// Compresses standard input to standard output.
fn stream(args: &CompressArgs) -> Result<ExitCode> {
    const ALONE: &str = "cannot use - (standard input) with --output, --pack, --rm or other files: its output goes to standard output";
    let is_alone = args.files.len() == 1 && args.output.is_none() && args.pack.is_none() && !args.rm;
    ensure!(is_alone, ALONE);
    ensure!(
        !io::stdout().is_terminal(),
        "compressed data is not written to a terminal; redirect standard output"
    );
    let named = "standard input";
    let temporary =
        || tempfile::tempfile().with_context(|| format!("cannot create a temporary file for {named}"));
    let (mut source, mut output) = (temporary()?, temporary()?);
    let bytes =
        io::copy(&mut io::stdin().lock(), &mut source).with_context(|| format!("cannot read {named}"))?;
    source.seek(SeekFrom::Start(0))?;
    let meta = Meta { name: STDIN_NAME.into(), ..Meta::default() };
    write_verified(args, &meta, &mut source, bytes, &output, Path::new(named))?;
    output.seek(SeekFrom::Start(0))?;
    io::copy(&mut output, &mut io::stdout().lock()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// The name of a member that came from standard input.
const STDIN_NAME: &str = "stdin";

/// Whether a file's name stands for standard input and output.
pub fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Limits for decoding a file that this program has just written: none.
const OWN: ReadLimits = ReadLimits { memory: u64::MAX, spill: u64::MAX, page_memory: 64 << 20 };

/// Decodes the output and compares it with the input.
fn verify(file: &File, added: &Added) -> Result<()> {
    let mut reader = Reader::open(file, OWN)?;
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

fn warn_of(path: &Path, error: &anyhow::Error) {
    eprintln!(
        "warning: {}: its records do not come back as they were ({error:#}); it is compressed as bytes instead, and \
         nothing is lost, but please report this",
        path.display()
    );
}

/// Compresses all files to one pack. If a member decodes to other bytes, starts again with that one coded as bytes.
fn pack(
    args: &CompressArgs,
    name: Option<&Path>,
    inputs: Vec<Input>,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<Done> {
    let inputs = in_order(inputs)?;
    let target = pack_target(args, name, &inputs);
    if !args.force {
        let members: Option<Vec<(&[u8], u64)>> = inputs
            .iter()
            .map(|input| Some((input.relative.as_os_str().as_bytes(), fs::metadata(&input.path).ok()?.len())))
            .collect();
        refuse_other_members(&target, &members.unwrap_or_default())?;
    }
    let mut as_bytes = BTreeSet::new();
    loop {
        let output = Output::create(&target, args.force)?;
        match write_pack(args, &output, &inputs, &as_bytes, advance)? {
            Packed::Done { added, found, bytes } => {
                let meta = output::meta_of(Vec::new(), &found[0]);
                output.commit(&Meta { modified: None, ..meta })?;
                if args.rm {
                    for (input, found) in inputs.iter().zip(&found) {
                        remove(&input.path, found)?;
                    }
                }
                let members = inputs.into_iter().zip(added).collect();
                return Ok(Done { output: target, output_bytes: bytes, members });
            }
            Packed::Wrong(number, error) => {
                let input = usize::try_from(number).ok().and_then(|number| inputs.get(number));
                match input {
                    Some(input) if as_bytes.insert(number) => warn_of(&input.path, &error),
                    _ => return Err(error.context(format!("cannot verify {}", target.display()))),
                }
            }
        }
    }
}

enum Packed {
    Done {
        added: Vec<Added>,
        found: Vec<Metadata>,
        bytes: u64,
    },
    /// A member that decodes to other bytes than the original's.
    Wrong(u64, anyhow::Error),
}

fn write_pack(
    args: &CompressArgs,
    output: &Output,
    inputs: &[Input],
    as_bytes: &BTreeSet<u64>,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<Packed> {
    let largest = inputs.iter().filter_map(|input| fs::metadata(&input.path).ok()).map(|found| found.len());
    let options = options(args, FileForm::Pack, largest.max().unwrap_or(0));
    let mut writer = Writer::new(BufWriter::new(output.file()), options);
    let (mut all, mut all_found) = (Vec::new(), Vec::new());
    // The verifying thread is at most two members behind.
    let (sender, receiver) = mpsc::sync_channel::<Added>(1);
    let written = std::thread::scope(|scope| {
        let verifier = scope.spawn(|| {
            let mut reader: Option<Reader<File>> = None;
            for added in receiver {
                let number = added.entry.head.number;
                let verified = match &mut reader {
                    Some(reader) => {
                        reader.look_again().map_err(Into::into).and_then(|()| verify_member(reader, &added))
                    }
                    none => File::open(output.temporary())
                        .map_err(Into::into)
                        .and_then(|file| Ok(Reader::open(file, OWN)?))
                        .and_then(|opened| verify_member(none.insert(opened), &added)),
                };
                if let Err(error) = verified {
                    return Some((number, error));
                }
            }
            None
        });
        let mut add_all = || -> Result<bool> {
            for (number, input) in inputs.iter().enumerate() {
                let (mut source, found) = open(&input.path)?;
                let meta = output::meta_of(input.relative.as_os_str().as_bytes().to_vec(), &found);
                let mut counted = Counted { input: &mut source, left: found.len(), advance };
                let added = writer.add(meta, as_bytes.contains(&(number as u64)), &mut counted);
                let added = added.with_context(|| format!("cannot compress {}", input.path.display()))?;
                warn_of_failure(&input.path, &added);
                if !args.no_verify {
                    writer.flush()?;
                    // The receiver has stopped: a member was wrong.
                    if sender.send(added.clone()).is_err() {
                        return Ok(false);
                    }
                }
                all.push(added);
                all_found.push(found);
            }
            Ok(true)
        };
        let added = add_all();
        drop(sender);
        let wrong = verifier.join().map_err(|_| anyhow!("cannot verify: the thread ended by a panic"))?;
        added.map(|_| wrong)
    });
    if let Some((number, error)) = written? {
        return Ok(Packed::Wrong(number, error));
    }
    writer.finish()?;
    let bytes = output.file().metadata()?.len();
    if !args.no_verify {
        let index = Reader::open(output.file(), OWN)?.index()?;
        ensure!(
            index.iter().eq(all.iter().map(|added| &added.entry)),
            "the pack's index is not what was written"
        );
    }
    Ok(Packed::Done { added: all, found: all_found, bytes })
}

/// Sorts segments by cluster, timeline and LSN, so that segments that share pages follow each other; then other files by name.
fn in_order(mut inputs: Vec<Input>) -> Result<Vec<Input>> {
    let key = |input: &Input| {
        let place = place_of(&input.path);
        (place.is_none(), place, input.relative.clone())
    };
    inputs.sort_by_cached_key(key);
    for pair in inputs.windows(2) {
        ensure!(
            pair[0].relative != pair[1].relative,
            "{} and {} would have the same name in the pack: name the folder above them",
            pair[0].path.display(),
            pair[1].path.display()
        );
    }
    Ok(inputs)
}

/// Cluster (its system identifier), timeline and LSN of a file that is a segment by its name and its first page.
fn place_of(path: &Path) -> Option<(u64, Timeline, Lsn)> {
    path.file_name().and_then(OsStr::to_str).and_then(SegmentName::parse)?;
    let mut first = [0; LONG_HEADER];
    open(path).ok()?.0.read_exact(&mut first).ok()?;
    let info = StreamInfo::of_segment(&first).ok()?;
    Some((info.system_id, info.timeline, start_of(&first)))
}

fn pack_target(args: &CompressArgs, name: Option<&Path>, inputs: &[Input]) -> PathBuf {
    let beside = || inputs[0].path.parent().unwrap_or(Path::new("")).to_owned();
    match (name, &args.output) {
        (Some(name), Some(folder)) => folder.join(name),
        (Some(name), None) => name.to_owned(),
        (None, folder) => {
            let is_segment =
                |name: &&OsStr| name.to_str().is_some_and(|name| SegmentName::parse(name).is_some());
            let names: Vec<&OsStr> = inputs.iter().filter_map(|input| input.path.file_name()).collect();
            let last = names.iter().rev().copied().find(is_segment).or(names.last().copied());
            let mut name = OsString::from(names.first().copied().unwrap_or_default());
            if let Some(last) = last.filter(|last| *last != name) {
                name.push("-");
                name.push(last);
            }
            name.push(".");
            name.push(PACK_ENDING);
            folder.clone().unwrap_or_else(beside).join(name)
        }
    }
}

/// `largest` is the size of the largest file.
fn options(args: &CompressArgs, form: FileForm, largest: u64) -> WriteOptions {
    /// The largest segment that PostgreSQL has.
    const MAX_SEGMENT: u64 = 1 << 30;
    let Levels { one, two, three, four, five, six, seven, eight, nine } = args.levels;
    let chosen = [one, two, three, four, five, six, seven, eight, nine];
    let level = chosen.iter().position(|chosen| *chosen).map_or(form.default_level(), |at| at as u8 + 1);
    let ReadLimits { memory, spill, .. } = ReadLimits::default();
    let needs = match (args.memory, args.spill) {
        (None, None) => Needs::of_segments(form, level, largest.min(MAX_SEGMENT)),
        given => Needs::within(
            given.0.map_or(memory, |bytes| bytes as u64),
            given.1.map_or(spill, |bytes| bytes as u64),
        ),
    };
    WriteOptions { keyframe: args.keyframe as u64, needs, ..WriteOptions::with_level(form, level) }
}

/// Finds all files to compress, without duplicates, and the errors of those that cannot be.
fn gather(files: &[PathBuf]) -> (Vec<Input>, Vec<anyhow::Error>) {
    let (mut inputs, mut errors) = (Vec::new(), Vec::new());
    for path in files {
        let gathered = match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                let before = inputs.len();
                search(path, Path::new(""), &mut inputs).and_then(|()| {
                    ensure!(
                        inputs.len() > before,
                        "cannot compress {}: expected files in it, found none",
                        path.display()
                    );
                    Ok(())
                })
            }
            // Who compresses all there is again has no use for it twice, and a folder's are left out as well.
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
            Err(error) => Err(anyhow!(error).context(path.display().to_string())),
        };
        errors.extend(gathered.err());
    }
    let mut seen = BTreeSet::new();
    inputs.retain(|input| seen.insert(fs::canonicalize(&input.path).unwrap_or_else(|_| input.path.clone())));
    (inputs, errors)
}

/// The error for a missing input, which may be meant as the pack's name.
fn no_pack(args: &CompressArgs) -> String {
    let is_pack =
        |path: &&PathBuf| path.extension().is_some_and(|ending| ending == PACK_ENDING) && !path.exists();
    match args.files.iter().find(is_pack) {
        Some(name) => {
            format!("no pack is written; its name follows an equals sign: --pack={}", name.display())
        }
        None => "no pack is written".into(),
    }
}

/// Whether the folder is `archive_status`, whose files are not WAL.
const NOT_LOG: &str = "archive_status";

fn search(folder: &Path, relative: &Path, inputs: &mut Vec<Input>) -> Result<()> {
    let named = || format!("search {}", folder.display());
    let entries = fs::read_dir(folder).with_context(named)?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().with_context(named)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().with_context(named)?;
        if kind.is_dir() {
            if name != NOT_LOG {
                search(&path, &relative.join(&name), inputs)?;
            }
            continue;
        }
        // A link to a segment is read as the segment; one that leads nowhere is an error, one to a folder could lead around.
        let is_link = kind.is_symlink();
        let found = if is_link {
            fs::metadata(&path).with_context(|| path.display().to_string())?
        } else {
            entry.metadata().with_context(named)?
        };
        if found.is_dir() {
            eprintln!(
                "warning: {} is a link to a folder and is left out; name that folder, too",
                path.display()
            );
        } else if found.is_file() && !is_compressed(&path) && !output::is_temporary(&name) {
            inputs.push(Input { path, relative: relative.join(&name) });
        }
    }
    Ok(())
}

fn is_compressed(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    [Some(SEGMENT_ENDING), Some(PACK_ENDING)].contains(&ending)
}

/// Opens a regular file. Opening a named pipe would wait for a writer.
pub fn open(path: &Path) -> Result<(File, Metadata)> {
    let named = || format!("open {}", path.display());
    ensure!(
        fs::metadata(path).with_context(named)?.is_file(),
        "cannot compress {}: expected a regular file",
        path.display()
    );
    let file = File::open(path).with_context(named)?;
    let found = file.metadata().with_context(named)?;
    Ok((file, found))
}

/// Removes an original, unless it has changed since it was read.
fn remove(path: &Path, read: &Metadata) -> Result<()> {
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

fn with_ending(path: &Path) -> PathBuf {
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    bytes.push(b'.');
    bytes.extend(SEGMENT_ENDING.bytes());
    OsString::from_vec(bytes).into()
}

/// A reader that reports the bytes read.
struct Counted<'a> {
    input: &'a mut File,
    /// Bytes of the file that are not counted yet.
    left: u64,
    advance: &'a (dyn Fn(u64) + Sync),
}

impl Counted<'_> {
    fn count(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        (self.advance)(bytes);
    }
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = buffer.len().min(1 << 20);
        let got = self.input.read(&mut buffer[..most])?;
        // A segment is read twice.
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
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.input.seek(to)
    }
}

fn print(args: &CompressArgs, results: &[Done], failed: usize, seconds: f64) -> Result<()> {
    let original: u64 = results.iter().map(Done::original_bytes).sum();
    let stored: u64 = results.iter().map(|done| done.output_bytes).sum();
    let files: usize = results.iter().map(|done| done.members.len()).sum();
    let text = match args.format {
        Format::Json => {
            let outputs: Vec<Value> = results.iter().map(as_json).collect();
            let object = json!({
                "format_version": 1,
                "outputs": outputs,
                "files": files,
                "failed": failed,
                "original_bytes": original,
                "compressed_bytes": stored,
                "seconds": seconds,
                "verified": !args.no_verify,
            });
            terminal::json(&object)?
        }
        Format::Table if files == 0 => String::new(),
        Format::Table => {
            let mut text = String::new();
            if files <= MAX_ROWS {
                let rows: Vec<Row> = results.iter().flat_map(rows).collect();
                let head: &[&str] = &["original", "compressed", "ratio", "as"];
                let look = terminal::look();
                text = table(look, "Compressed", ("file", head), &rows) + "\n";
            }
            let verified = if args.no_verify { "not verified" } else { "verified" };
            text + &format!(
                "{files} files, {} to {}, {}, {}/s, {verified}\n",
                units::bytes(original),
                units::bytes(stored),
                ratio(original, stored),
                units::bytes((original as f64 / seconds.max(1e-6)) as u64)
            )
        }
    };
    terminal::print(&text)
}

/// The compression factor: original size over compressed size.
pub fn ratio(original: u64, stored: u64) -> String {
    format!("{:.2}x", original as f64 / stored.max(1) as f64)
}

/// The form of a member, for the table.
pub fn form_name(form: Form) -> &'static str {
    match form {
        Form::Records => "records",
        Form::Bytes => "bytes",
    }
}

fn rows(done: &Done) -> Vec<Row> {
    let row = |depth, label: String, original, stored, form: &str| Row {
        depth,
        label,
        cells: vec![units::bytes(original), units::bytes(stored), ratio(original, stored), form.to_owned()],
        share: None,
    };
    match &done.members[..] {
        [(_, added)] => {
            let form = form_name(added.entry.head.form);
            vec![row(0, done.output.display().to_string(), added.entry.end.bytes, done.output_bytes, form)]
        }
        members => {
            let whole =
                row(0, done.output.display().to_string(), done.original_bytes(), done.output_bytes, "");
            let each = members.iter().map(|(input, added)| {
                let form = form_name(added.entry.head.form);
                let name = input.relative.display().to_string();
                row(1, name, added.entry.end.bytes, added.entry.stored, form)
            });
            std::iter::once(whole).chain(each).collect()
        }
    }
}

fn as_json(done: &Done) -> Value {
    let members: Vec<Value> = done
        .members
        .iter()
        .map(|(input, added)| {
            json!({
                "file": input.path.to_string_lossy(),
                "name": String::from_utf8_lossy(&added.entry.head.meta.name),
                "form": form_name(added.entry.head.form),
                "keyframe": added.entry.head.keyframe,
                "original_bytes": added.entry.end.bytes,
                "compressed_bytes": added.entry.stored,
            })
        })
        .collect();
    json!({
        "output": done.output.to_string_lossy(),
        "original_bytes": done.original_bytes(),
        "compressed_bytes": done.output_bytes,
        "members": members,
    })
}
