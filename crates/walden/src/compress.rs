//! `walden compress`: compresses files.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use walden_codec::container::{FileForm, KEYFRAME_BYTES, Needs};
use walden_compress::{
    CompressOptions, Compressor, Done, FileError, PACK_ENDING, document, gather, is_stream, table,
};
use walden_output::Inputs;
use walden_source::workers::map_in_order;

use crate::arguments::parse_size;
use crate::level::LevelFlags;
use crate::output;
use crate::progress::Progress;
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

    /// The folder to write to [default: the folder of each file]
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

    /// In a pack, bytes of WAL between keyframes: segments that can be decoded without the preceding
    /// segments. A smaller value speeds up access to single segments and limits loss by damage, a larger
    /// value makes the pack smaller
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

const KEYFRAME: &str = "512MB";
const _: () = assert!(KEYFRAME_BYTES == 512 << 20);

impl CompressArgs {
    fn options(&self) -> CompressOptions {
        CompressOptions::default()
            .folder(self.output.clone())
            .level(self.level_flags.or(self.level))
            .keyframe(self.keyframe as u64)
            .memory(self.memory.map(|bytes| bytes as u64))
            .spill(self.spill.map(|bytes| bytes as u64))
            .verifies(!self.no_verify)
            .replaces(self.force)
            .removes(self.rm)
    }
}

/// Runs the command.
pub fn run(args: &CompressArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let options = args.options();
    refuse_little_memory(args, &options);
    if args.files.iter().any(|path| is_stream(path)) {
        return stream(args, &options);
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
    let (inputs, mut errors) = gather(&args.files, &|line| output::print_line(line));
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
    let compressor = Compressor {
        options: &options,
        read: &read,
        advance: &advance,
        report: &|line| output::print_line(line),
    };
    let results: Vec<Done> = if let Some(name) = &args.pack {
        if !errors.is_empty() {
            return Err(anyhow::Error::from(errors.remove(0)).context(no_pack(args)));
        }
        ensure!(!inputs.is_empty(), "cannot compress: expected files, found none");
        vec![compressor.pack(name.as_deref(), inputs)?]
    } else {
        let threads = args.threads.map_or_else(terminal::cores, usize::from);
        let results = map_in_order(&inputs, threads, |input| compressor.file(input));
        let (done, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        errors.extend(failed.into_iter().filter_map(Result::err));
        done.into_iter().filter_map(Result::ok).collect()
    };
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    let errors: Vec<anyhow::Error> = errors.into_iter().map(FileError::into).collect();
    errors.iter().for_each(output::report);
    let (seconds, is_verified) = (started.elapsed().as_secs_f64(), !args.no_verify);
    terminal::show(
        args.format,
        || document(&results, errors.len(), seconds, is_verified),
        || table(&results, seconds, is_verified, terminal::look()),
    )?;
    Ok(output::status_of(&errors))
}

/// Returns the error text for a missing input that may be meant as the pack's name.
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
fn refuse_little_memory(args: &CompressArgs, options: &CompressOptions) {
    let form = if args.pack.is_some() { FileForm::Pack } else { FileForm::Segment };
    let least = Needs::least_memory(form, options.level_of(form));
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

/// Compresses standard input to standard output.
fn stream(args: &CompressArgs, options: &CompressOptions) -> Result<ExitCode> {
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
    let (read, print) = (Inputs::default(), |line: &str| output::print_line(line));
    let compressor = Compressor { options, read: &read, advance: &|_| (), report: &print };
    compressor.stream(io::stdin().lock(), terminal::Stdout)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        args: CompressArgs,
    }

    #[test]
    fn the_least_memory_is_that_of_the_help() {
        for (words, least) in
            [(&["compress", "x"][..], "54MB"), (&["compress", "--pack", "-7", "x"], "319MB")]
        {
            let args = <Alone as clap::Parser>::try_parse_from(words.iter().copied()).unwrap().args;
            let form = if args.pack.is_some() { FileForm::Pack } else { FileForm::Segment };
            assert_eq!(
                in_megabytes(Needs::least_memory(form, args.options().level_of(form)) as usize),
                least
            );
        }
        assert_eq!(in_megabytes(1000), "1000B");
    }
}
