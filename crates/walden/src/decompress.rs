//! `walden decompress`: restores the originals of compressed files.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use walden_codec::container::{self, Binding, Entry, Error, Head, Loss, ReadLimits, Reader, Summary, Walk};
use walden_output::pending::parent_folder;
use walden_output::turns::{Turn, Turns};
use walden_report::units;
use walden_source::error_text;
use walden_source::machine;
use walden_source::workers::map_in_order;

use crate::arguments::parse_size;
use crate::compress::{Input, gather_compressed, is_stream, open};
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::protect::Inputs;
use crate::{DAMAGED, FOUND, USAGE, terminal};

const EXAMPLES: &str = "\
Examples:
  walden decompress 0000000100000A2B000000C5.wlz
      the segment, in the same folder; the compressed file is kept
  walden decompress -o /restore /backup/*.wpk
      all members of packs
  walden decompress -o /restore /backup
      the originals of all compressed files of a folder
  walden decompress --member 0000000100000A2B000000C5 -o /tmp march.wpk && pg_waldump /tmp/0000000100000A2B000000C5
      one member of a pack, for a program that reads files; it is decoded from the last keyframe before it on
  walden decompress - < 0000000100000A2B000000C5.wlz > 0000000100000A2B000000C5
      standard input to standard output
  walden decompress --salvage -o /restore damaged.wpk
      everything that is not damaged, and a list of lost parts

Output is compared with the hash of the original before it gets its name.

Exit status: 0 done, 1 salvaged, but something is lost, 2 wrong usage, or a file exists and --force is not given, 3 a file is damaged or could not be read or written.";

/// Decompress files written by walden compress
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DecompressArgs {
    /// Compressed files, or folders of them (searched recursively for .wlz and .wpk files); - for standard
    /// input, which is written to standard output unless --output is given
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// The folder to write to [default: that of each file]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Extract only this member of a pack; may be given more than once. walden test --list lists them
    #[arg(long, value_name = "NAME")]
    member: Vec<String>,

    /// Write to standard output, in the order of the files
    #[arg(long, conflicts_with_all = ["output", "salvage"])]
    stdout: bool,

    /// Replace existing files
    #[arg(short, long)]
    force: bool,

    /// Extract everything that is not damaged, and list the losses
    #[arg(long, conflicts_with = "member")]
    salvage: bool,

    #[command(flatten)]
    limits: LimitArgs,

    /// Threads, one file each [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// Memory and disk space that decoding may use.
#[derive(Args, Debug)]
pub struct LimitArgs {
    /// Memory for each file that is decoded at a time. A file whose header states that it may need more is
    /// refused before decoding [default: 16384 times the size of the file, at least 2GB and at most 11GB;
    /// walden compress states less than 1 GB for segments of 16 MB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,

    /// Temporary file (in TMPDIR) for pages that do not fit in memory; a file that may need more is refused
    /// [default: 4GB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    spill: Option<usize>,
}

impl LimitArgs {
    /// Returns the limits for the codec.
    ///
    /// A small file gets less memory. `file_bytes` is the file's size, or `None` for a stream.
    pub fn to_limits(&self, file_bytes: Option<u64>) -> ReadLimits {
        let default = file_bytes.map_or_else(ReadLimits::for_largest_segments, ReadLimits::for_file);
        let memory = self.memory.map_or(default.memory, |bytes| bytes as u64);
        ReadLimits::default()
            .memory(memory)
            .spill(self.spill.map_or(default.spill, |bytes| bytes as u64))
            // An explicit `--memory` is used up before pages go to disk.
            .page_memory(if self.memory.is_some() { memory } else { machine::page_memory() })
    }
}

/// Runs the command.
pub fn run(args: &DecompressArgs) -> Result<ExitCode> {
    if args.files.iter().any(|path| is_stream(path)) {
        return stream(args);
    }
    let (inputs, errors) = gather_compressed(&args.files);
    let read = Inputs::from_files(inputs.iter().map(|input| &input.path));
    let total = inputs.iter().filter_map(|input| input.path.metadata().ok()).map(|found| found.len()).sum();
    let progress = Mutex::new(Progress::bytes("decompressing", total));
    let advance = |bytes| {
        if let Ok(mut progress) = progress.lock() {
            progress.advance(bytes);
        }
    };
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let stdout = Turns::new(terminal::Stdout);
    let numbered: Vec<(usize, &Input)> = inputs.iter().enumerate().collect();
    let results = map_in_order(&numbered, threads, |&(number, input)| {
        if args.salvage {
            return salvage(args, input, &read, &advance);
        }
        let mut out = args.stdout.then(|| stdout.take(number)).transpose().context(TO_STDOUT)?;
        whole(args, input, &read, out.as_mut(), &advance)?;
        out.map_or(Ok(()), Turn::finish).context(TO_STDOUT)?;
        Ok(Vec::new())
    });
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    let mut failed = !errors.is_empty();
    let mut code = if failed { ExitCode::from(DAMAGED) } else { ExitCode::SUCCESS };
    errors.iter().for_each(output::report);
    for (input, result) in inputs.iter().zip(results) {
        match result {
            Ok(lines) if lines.is_empty() => {}
            Ok(lines) => {
                lines.iter().for_each(|line| output::tell(line));
                if !failed {
                    code = ExitCode::from(FOUND);
                }
            }
            // Later files were not written, either.
            Err(error) if error.to_string() == TO_STDOUT => return Err(error),
            Err(error) => {
                report(&input.path, &error);
                let is_refusal = output::is_refusal(&error) && code != ExitCode::from(DAMAGED);
                code = ExitCode::from(if is_refusal { USAGE } else { DAMAGED });
                failed = true;
            }
        }
    }
    Ok(code)
}

/// Decompresses standard input, member by member.
fn stream(args: &DecompressArgs) -> Result<ExitCode> {
    let is_alone = args.files.len() == 1 && args.member.is_empty() && !args.salvage;
    if !is_alone {
        crate::wrong_usage(
            "cannot use - (standard input) with --member, --salvage or other files, as it is read only once",
        );
    }
    let input = Input { path: STDIN.into(), relative: PathBuf::new() };
    let stdout = (args.stdout || args.output.is_none()).then(|| Turns::new(terminal::Stdout));
    let mut out = stdout.as_ref().map(|stdout| stdout.take(0)).transpose().context(TO_STDOUT)?;
    let mut extract_all = || -> Result<()> {
        let mut reader = Reader::open_stream(io::stdin().lock(), args.limits.to_limits(None))?;
        while let Some(head) = reader.next()? {
            extract(args, &input, &Inputs::default(), &mut reader, &head, out.as_mut(), &|_| ())?;
        }
        Ok(())
    };
    if let Err(error) = extract_all() {
        report(Path::new("-"), &error);
        return Ok(output::status_of(&[error]));
    }
    out.map_or(Ok(()), Turn::finish).context(TO_STDOUT)?;
    Ok(ExitCode::SUCCESS)
}

/// The name of standard input in messages.
const STDIN: &str = "standard input";
const TO_STDOUT: &str = "write to standard output";

type Stdout<'t> = Turn<'t, terminal::Stdout>;

/// Prints an error of a file, and a hint.
pub fn report(path: &Path, error: &anyhow::Error) {
    match error.downcast_ref::<Error>() {
        Some(fault) => {
            let named = if is_stream(path) { Path::new(STDIN) } else { path };
            output::tell(&format!("error: {}: {}", named.display(), output::chain_text(error)));
            if let Some(hint) = hint_of(path, fault).or_else(|| output::hint_of(error)) {
                eprintln!("hint: {hint}");
            }
        }
        None => output::report(error),
    }
}

/// Returns a hint for a fault of a file. Standard input is read only once, so nothing can be salvaged from
/// it.
pub fn hint_of(path: &Path, fault: &Error) -> Option<&'static str> {
    match fault {
        Error::Damage(_) if is_stream(path) => Some(
            "get another copy of it, or save it to a file first: walden decompress --salvage extracts everything that is not damaged \
             from a file",
        ),
        fault => fault.hint(),
    }
}

/// Decompresses all members, or those named by `--member`.
fn whole(
    args: &DecompressArgs,
    input: &Input,
    read: &Inputs,
    mut stdout: Option<&mut Stdout<'_>>,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let (file, found) = open(&input.path)?;
    let mut reader = Reader::open(file, args.limits.to_limits(Some(found.len())))?;
    let (entries, fault) = reader.entries();
    let wanted: Vec<&Entry> = match &args.member[..] {
        [] => entries.iter().collect(),
        names => names.iter().map(|name| find(&input.path, name, &entries)).collect::<Result<_>>()?,
    };
    if !args.stdout {
        // Checks targets before the work, not after it.
        if let Some(name) = repeated_name(wanted.iter().map(|entry| &entry.head)) {
            bail!("{}: {}", input.path.display(), two_members(&name));
        }
        for entry in &wanted {
            let target = target_of(args, input, &entry.head)?;
            output::expect_no_input(&target, read)
                .and_then(|()| output::refuse_other_size(&target, entry.end.bytes, args.force))
                .with_context(|| format!("cannot decompress {}", input.path.display()))?;
        }
    }
    if args.member.is_empty() {
        loop {
            match reader.next()? {
                Some(head) => {
                    extract(args, input, read, &mut reader, &head, stdout.as_deref_mut(), advance)?;
                }
                None => return Ok(()),
            }
        }
    }
    for entry in wanted {
        let head = reader.seek_decodable(&entries, entry)?;
        extract(args, input, read, &mut reader, &head, stdout.as_deref_mut(), advance)?;
    }
    match fault {
        // The wanted members were extracted, but the remaining file is damaged.
        Some(fault) => Err(fault.into()),
        None => Ok(()),
    }
}

fn find<'e>(path: &Path, name: &str, entries: &'e [Entry]) -> Result<&'e Entry> {
    let found = entries.iter().find(|entry| entry.head.meta.name == name.as_bytes());
    found.with_context(|| {
        let some: Vec<_> =
            entries.iter().take(3).map(|entry| String::from_utf8_lossy(&entry.head.meta.name)).collect();
        let more = if entries.len() > 3 { ", ..." } else { "" };
        format!("{} has no member {name}; it has {}{more}", path.display(), some.join(", "))
    })
}

/// Decodes a member to its target file.
fn extract<R: Read + Seek>(
    args: &DecompressArgs,
    input: &Input,
    read: &Inputs,
    reader: &mut Reader<R>,
    head: &Head,
    stdout: Option<&mut Stdout<'_>>,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<Summary> {
    let summary = if let Some(out) = stdout {
        let summary = reader.decode(head, out).map_err(|error| plain_of_original(error, TO_STDOUT))?;
        out.keep();
        summary
    } else {
        let target = target_of(args, input, head)?;
        // The context names the file: if several files have the same members, the target alone is ambiguous.
        let output = output::expect_no_input(&target, read)
            .and_then(|()| Output::create(&target, args.force))
            .with_context(|| format!("cannot decompress {}", input.path.display()))?;
        let mut out = BufWriter::new(output.file());
        let summary = reader.decode(head, &mut out);
        let summary = summary
            .map_err(|error| plain_of_original(error, &format!("cannot write {}", target.display())))?;
        out.flush().with_context(|| format!("cannot write {}", target.display()))?;
        drop(out);
        output.commit(&head.meta)?;
        summary
    };
    advance(summary.stored);
    Ok(summary)
}

/// Separates errors of writing the output from errors of the compressed file.
fn plain_of_original(error: Error, what: &str) -> anyhow::Error {
    match error {
        Error::Original(error) => anyhow!(error).context(what.to_owned()),
        error => error.into(),
    }
}

/// Returns the target path of a member, which is never outside the output folder. Files found in a folder
/// keep their relative path below `--output`.
fn target_of(args: &DecompressArgs, input: &Input, head: &Head) -> Result<PathBuf> {
    let name = Path::new(OsStr::from_bytes(&head.meta.name));
    // An absolute name starts with an empty part.
    let mut parts = head.meta.name.split(|byte| *byte == b'/');
    let inside = parts.all(|part| !matches!(part, b"" | b"." | b"..")) && !head.meta.name.contains(&0);
    if !inside {
        bail!(
            "{}: the name of member {}, {}, leads elsewhere",
            input.path.display(),
            head.number + 1,
            name.display()
        );
    }
    let folder_of = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
    let folder = match &args.output {
        Some(output) => output.join(folder_of(&input.relative)),
        None => folder_of(&input.path),
    };
    let target = folder.join(name);
    // The user chose the folder itself, so it may be a link.
    let root = args.output.as_ref().unwrap_or(&folder);
    output::expect_no_link_below(root, parent_folder(&target))
        .with_context(|| format!("{}: cannot write member {}", input.path.display(), name.display()))?;
    Ok(target)
}

/// Returns a name that two members share.
pub fn repeated_name<'h>(heads: impl IntoIterator<Item = &'h Head>) -> Option<String> {
    let mut seen = HashSet::new();
    let repeated = heads.into_iter().find(|head| !seen.insert(&head.meta.name[..]))?;
    Some(String::from_utf8_lossy(&repeated.meta.name).into_owned())
}

/// Returns the error text for a name that two members share.
pub fn two_members(name: &str) -> String {
    format!("expected members with different names, found two named {name}")
}

/// Decompresses everything that is not damaged. Returns a line for each loss; empty if nothing is lost.
fn salvage(
    args: &DecompressArgs,
    input: &Input,
    read: &Inputs,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<Vec<String>> {
    let path = &input.path;
    let mut failure = None;
    let (file, found) = open(path)?;
    let walk = container::walk(file, args.limits.to_limits(Some(found.len())), &mut |reader, head| {
        extract(args, input, read, reader, head, None, advance).map_err(|error| {
            match error.downcast::<Error>() {
                Ok(error) => error,
                Err(error) => {
                    failure = Some(error);
                    Error::Original(std::io::ErrorKind::Other.into())
                }
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

/// Returns a line for each member whose content is verified, but not its name and place in the pack.
pub fn unverified(path: &Path, walk: &Walk) -> Vec<String> {
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

/// Describes a loss in words.
pub fn words_of(loss: &Loss) -> String {
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
        let limits = LimitArgs { memory: None, spill: None }.to_limits(None);
        for level in 0..=9 {
            assert!(limits.admit(Needs::for_segments(FileForm::Pack, level, 1 << 30)).is_ok(), "{level}");
        }
    }

    #[test]
    fn small_files_get_less_memory() {
        let memory = |bytes| LimitArgs { memory: None, spill: None }.to_limits(Some(bytes)).memory;
        assert_eq!((memory(0), memory(38_000)), (2 << 30, 2 << 30));
        assert_eq!(memory(300_000), 300_000 * 16_384);
        assert_eq!((memory(1 << 20), memory(u64::MAX)), (11 << 30, 11 << 30));
        assert_eq!(LimitArgs { memory: Some(1 << 33), spill: None }.to_limits(Some(0)).memory, 1 << 33);
        // A pack may hold segments of 64 MB, however small it is.
        let limits = LimitArgs { memory: None, spill: None }.to_limits(Some(1000));
        assert!(limits.admit(Needs::for_segments(FileForm::Pack, 9, 64 << 20)).is_ok());
    }
}
