//! `walden decompress`: restores the originals of compressed files.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::Result;
use clap::Args;
use walden_compress::{
    DecompressOptions, Decompressor, FileError, Input, gather_compressed, hint_of, is_stream,
};
use walden_output::Inputs;
use walden_output::turns::{Turn, Turns};
use walden_source::error_text;
use walden_source::workers::map_in_order;

use crate::arguments::parse_size;
use crate::progress::Progress;
use crate::{DAMAGED, FOUND, USAGE, output, terminal};

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
    /// Compressed files, or folders (searched recursively for .wlz and .wpk files); - for standard input,
    /// which is written to standard output unless --output is given
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// The folder to write to [default: the folder of each file]
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
    /// Returns options with these limits.
    pub fn options(&self) -> DecompressOptions {
        let bytes = |size: Option<usize>| size.map(|bytes| bytes as u64);
        DecompressOptions::default().memory(bytes(self.memory)).spill(bytes(self.spill))
    }
}

/// Runs the command.
pub fn run(args: &DecompressArgs) -> Result<ExitCode> {
    let options =
        args.limits.options().folder(args.output.clone()).members(args.member.clone()).replaces(args.force);
    if args.files.iter().any(|path| is_stream(path)) {
        return stream(args, &options);
    }
    let (inputs, errors) = gather_compressed(&args.files, &|line| output::print_line(line));
    let read = Inputs::from_files(inputs.iter().map(|input| &input.path));
    let total = inputs.iter().filter_map(|input| input.path.metadata().ok()).map(|found| found.len()).sum();
    let progress = Mutex::new(Progress::bytes("decompressing", total));
    let advance = |bytes| {
        if let Ok(mut progress) = progress.lock() {
            progress.advance(bytes);
        }
    };
    let decompressor = Decompressor { options: &options, read: &read, advance: &advance };
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let stdout = Turns::new(terminal::Stdout);
    let numbered: Vec<(usize, &Input)> = inputs.iter().enumerate().collect();
    let results = map_in_order(&numbered, threads, |&(number, input)| {
        if args.salvage {
            return decompressor.salvage(input);
        }
        let out = args.stdout.then(|| stdout.take(number)).transpose();
        let mut out = out.map_err(FileError::OriginalsToStdout)?;
        decompressor.file(input, out.as_mut())?;
        out.map_or(Ok(()), Turn::finish).map_err(FileError::OriginalsToStdout)?;
        Ok(Vec::new())
    });
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    let mut failed = !errors.is_empty();
    let mut code = if failed { ExitCode::from(DAMAGED) } else { ExitCode::SUCCESS };
    errors.into_iter().for_each(|error| output::report(&error.into()));
    for (input, result) in inputs.iter().zip(results) {
        match result {
            Ok(lines) if lines.is_empty() => {}
            Ok(lines) => {
                lines.iter().for_each(|line| output::print_line(line));
                if !failed {
                    code = ExitCode::from(FOUND);
                }
            }
            // Later files were not written, either.
            Err(error @ FileError::OriginalsToStdout(_)) => return Err(error.into()),
            Err(error) => {
                let error = report(&input.path, error);
                let is_refusal = output::is_refusal(&error) && code != ExitCode::from(DAMAGED);
                code = ExitCode::from(if is_refusal { USAGE } else { DAMAGED });
                failed = true;
            }
        }
    }
    Ok(code)
}

/// Decompresses standard input, member by member.
fn stream(args: &DecompressArgs, options: &DecompressOptions) -> Result<ExitCode> {
    let is_alone = args.files.len() == 1 && args.member.is_empty() && !args.salvage;
    if !is_alone {
        crate::wrong_usage(
            "cannot use - (standard input) with --member, --salvage or other files, as it is read only once",
        );
    }
    let stdout = (args.stdout || args.output.is_none()).then(|| Turns::new(terminal::Stdout));
    let out = stdout.as_ref().map(|stdout| stdout.take(0)).transpose();
    let mut out = out.map_err(FileError::OriginalsToStdout)?;
    let decompressor = Decompressor { options, read: &Inputs::default(), advance: &|_| () };
    if let Err(error) = decompressor.stream(io::stdin().lock(), out.as_mut()) {
        return Ok(output::status_of(&[report(Path::new("-"), error)]));
    }
    out.map_or(Ok(()), Turn::finish).map_err(FileError::OriginalsToStdout)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints an error of a file, and a hint. Returns the error.
pub fn report(path: &Path, error: FileError) -> anyhow::Error {
    if let FileError::Container(fault) = &error {
        let named = if is_stream(path) { Path::new("standard input") } else { path };
        output::print_line(&format!("error: {}: {}", named.display(), error_text(fault)));
        let hint = hint_of(path, fault);
        let error = error.into();
        if let Some(hint) = hint.or_else(|| output::hint_of(&error)) {
            eprintln!("hint: {hint}");
        }
        return error;
    }
    let error = error.into();
    output::report(&error);
    error
}
