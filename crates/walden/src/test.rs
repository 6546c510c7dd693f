//! `walden test`: verifies that compressed files decode to their originals.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use walden_codec::coder::{Breakdown, Form};
use walden_codec::container::{self, Entry, Error, FileHeader, Head, Loss, ReadLimits, Reader, Summary};
use walden_report::table::{Row, table};
use walden_report::units;
use walden_source::error_text;
use walden_source::workers::map_in_order;

use crate::breakdown::{self, Counted};
use crate::compress::{Input, MAX_ROWS, form_name, gather_compressed, is_stream, open, ratio};
use crate::decompress::{LimitArgs, hint_of, repeated_name, report, two_members, unverified, words_of};
use crate::progress::Progress;
use crate::segment_sink::SegmentSink;
use crate::terminal::Format;
use crate::{DAMAGED, FOUND, output, terminal};

const EXAMPLES: &str = "\
Examples:
  walden test /backup/*.wpk
      decode everything and compare it with the checksums of the originals; nothing is written
  walden test --list march.wpk
      list the members of a pack, without decoding it
  walden test --stats march.wpk
      where its bytes are: by kind of data and by relation

Exit status: 0 everything is as it was, 1 something is damaged, 2 wrong usage, 3 a file could not be read.";

/// Decode compressed files and compare with the originals' checksums
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TestArgs {
    /// Compressed files, or folders of them (searched recursively for .wlz and .wpk files); - for standard
    /// input
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// Only list the members
    #[arg(short, long)]
    list: bool,

    /// Attribute the bytes: by column class and by relation, before and after entropy coding; and list why
    /// members are stored as bytes
    #[arg(long, conflicts_with = "list")]
    stats: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    limits: LimitArgs,

    /// Threads, one file each [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// The findings for a file.
#[derive(Default)]
struct Found {
    file_bytes: u64,
    members: Vec<Member>,
    damage: Vec<Error>,
    /// Members that may have been moved or renamed, in words.
    unverified: Vec<String>,
    lost: Vec<Loss>,
    breakdown: Breakdown,
    /// Members that are coded as bytes: name and reason.
    as_bytes: Vec<(String, String)>,
}

impl Found {
    /// Returns a name that two members share.
    fn repeated_name(&self) -> Option<String> {
        repeated_name(self.members.iter().map(|member| &member.head))
    }

    fn is_good(&self) -> bool {
        self.damage.is_empty() && self.lost.is_empty() && self.repeated_name().is_none()
    }
}

struct Member {
    head: Head,
    original: u64,
    stored: u64,
    hash: [u8; 32],
}

/// Runs the command.
pub fn run(args: &TestArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let (inputs, errors) = gather_compressed(&args.files);
    let total = inputs.iter().filter_map(|input| input.path.metadata().ok()).map(|found| found.len()).sum();
    let progress = Mutex::new(Progress::bytes("testing", total));
    let advance = |bytes| {
        if let Ok(mut progress) = progress.lock() {
            progress.advance(bytes);
        }
    };
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let results = map_in_order(&inputs, threads, |input| {
        if args.list { list(args, &input.path) } else { test(args, &input.path, &advance) }
    });
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    let mut code = if errors.is_empty() { 0 } else { DAMAGED };
    errors.iter().for_each(output::report);
    for (Input { path, .. }, result) in inputs.iter().zip(&results) {
        match result {
            Ok(found) => {
                let mut hint = None;
                for damage in &found.damage {
                    output::tell(&format!("error: {}: {}", path.display(), error_text(damage)));
                    hint = hint.or(hint_of(path, damage));
                    code = code.max(FOUND);
                }
                if let Some(name) = found.repeated_name() {
                    output::tell(&format!("error: {}: {}", path.display(), two_members(&name)));
                    code = code.max(FOUND);
                }
                found.unverified.iter().for_each(|line| output::tell(line));
                for loss in &found.lost {
                    output::tell(&format!("lost: {}: {}", path.display(), words_of(loss)));
                    code = code.max(FOUND);
                }
                if let Some(hint) = hint {
                    eprintln!("hint: {hint}");
                }
            }
            Err(error) => {
                report(path, error);
                code = DAMAGED;
            }
        }
    }
    let found: Vec<(&Path, &Found)> = inputs
        .iter()
        .zip(&results)
        .filter_map(|(input, result)| Some((input.path.as_path(), result.as_ref().ok()?)))
        .collect();
    if args.stats {
        let counted: Vec<Counted<'_>> = found.into_iter().map(|(path, found)| count(path, found)).collect();
        breakdown::print(&counted, args.format)?;
        return Ok(ExitCode::from(code));
    }
    print(args, &found, started.elapsed().as_secs_f64())?;
    Ok(ExitCode::from(code))
}

fn count<'f>(path: &'f Path, found: &'f Found) -> Counted<'f> {
    Counted {
        path: Some(path),
        file_bytes: found.file_bytes,
        original_bytes: found.members.iter().map(|member| member.original).sum(),
        members: found.members.len() as u64,
        breakdown: found.breakdown.clone(),
        as_bytes: &found.as_bytes,
    }
}

/// Tests a stream up to the first damage, as it can be read only once.
fn test_stream(args: &TestArgs) -> Result<Found> {
    let mut found = Found::default();
    let limits = if args.list { list_limits(args) } else { args.limits.to_limits(None) };
    let mut reader = match Reader::open_stream(std::io::stdin().lock(), limits) {
        Ok(reader) => reader,
        Err(error @ Error::Damage(_)) => {
            found.damage.push(error);
            return Ok(found);
        }
        Err(error) => return Err(error.into()),
    };
    if args.stats {
        reader.count_bytes();
    }
    let mut read_all = || -> Result<(), Error> {
        while let Some(head) = reader.next()? {
            let summary = match (args.list, args.stats) {
                (true, _) => reader.skip(&head)?,
                (_, true) => decode_counted(&mut reader, &head, &mut found.as_bytes)?,
                _ => reader.decode(&head, &mut std::io::sink())?,
            };
            if let Some(counted) = reader.take_breakdown() {
                found.breakdown.merge(&counted);
            }
            found.members.push(Member {
                head,
                original: summary.end.bytes,
                stored: summary.stored,
                hash: summary.end.hash,
            });
        }
        Ok(())
    };
    match read_all() {
        Err(error @ (Error::Damage(_) | Error::Limit { .. })) => found.damage.push(error),
        read => read?,
    }
    found.file_bytes = reader.position();
    Ok(found)
}

/// Decodes a member. If it is coded as bytes, records the reason.
fn decode_counted<R: Read + Seek>(
    reader: &mut Reader<R>,
    head: &Head,
    as_bytes: &mut Vec<(String, String)>,
) -> Result<Summary, Error> {
    if head.form == Form::Records {
        return reader.decode(head, &mut std::io::sink());
    }
    let mut original = SegmentSink::default();
    let summary = reader.decode(head, &mut original)?;
    let reason = match (reader.header(), original.segment()) {
        (Some(FileHeader { level: 0, .. }), _) => "level 0 does not decode records".to_owned(),
        (_, None) => "too large to find out".to_owned(),
        (_, Some(segment)) => reader.fallback_of(segment).map_or_else(
            || {
                "its records can be coded: another version, or a failed check of the result, chose bytes"
                    .to_owned()
            },
            |reason| reason.to_string(),
        ),
    };
    as_bytes.push((String::from_utf8_lossy(&head.meta.name).into_owned(), reason));
    Ok(summary)
}

/// Returns limits for listing. Nothing is decoded, so the memory for decoding does not matter.
fn list_limits(args: &TestArgs) -> ReadLimits {
    args.limits.to_limits(None).memory(u64::MAX).spill(u64::MAX)
}

fn test(args: &TestArgs, path: &Path, advance: &(dyn Fn(u64) + Sync)) -> Result<Found> {
    if is_stream(path) {
        return test_stream(args);
    }
    let (file, found) = open(path)?;
    let file_bytes = found.len();
    let (mut breakdown, mut as_bytes) = (Breakdown::default(), Vec::new());
    let walk = container::walk(file, args.limits.to_limits(Some(file_bytes)), &mut |reader, head| {
        let summary = if args.stats {
            reader.count_bytes();
            decode_counted(reader, head, &mut as_bytes)?
        } else {
            reader.decode(head, &mut std::io::sink())?
        };
        if let Some(found) = reader.take_breakdown() {
            breakdown.merge(&found);
        }
        advance(summary.stored);
        Ok(summary)
    });
    let walk = match walk {
        // An unreadable file is a result of the test, not an error.
        Err(error @ Error::Damage(_)) => {
            container::Walk { damage: vec![error], ..container::Walk::default() }
        }
        walk => walk?,
    };
    let unverified = unverified(path, &walk);
    let members = walk
        .members
        .into_iter()
        .map(|(head, summary)| Member {
            head,
            original: summary.end.bytes,
            stored: summary.stored,
            hash: summary.end.hash,
        })
        .collect();
    Ok(Found { file_bytes, members, damage: walk.damage, unverified, lost: walk.lost, breakdown, as_bytes })
}

fn list(args: &TestArgs, path: &Path) -> Result<Found> {
    if is_stream(path) {
        return test_stream(args);
    }
    let mut reader = Reader::open(open(path)?.0, list_limits(args))?;
    let file_bytes = reader.file_bytes();
    let (entries, fault) = reader.entries();
    let members = entries
        .into_iter()
        .map(|Entry { stored, head, end, .. }| Member { head, original: end.bytes, stored, hash: end.hash })
        .collect();
    Ok(Found { file_bytes, members, damage: fault.into_iter().collect(), ..Found::default() })
}

fn print(args: &TestArgs, all: &[(&Path, &Found)], seconds: f64) -> Result<()> {
    let sum =
        |of: fn(&Member) -> u64| -> u64 { all.iter().flat_map(|(_, found)| &found.members).map(of).sum() };
    let (members, original) = (sum(|_| 1), sum(|member| member.original));
    let file_bytes: u64 = all.iter().map(|(_, found)| found.file_bytes).sum();
    let text = match args.format {
        Format::Json => {
            let files: Vec<Value> = all.iter().map(|(path, found)| as_json(path, found)).collect();
            let object = json!({
                "format_version": 1,
                "files": files,
                "decoded": !args.list,
                "members": members,
                "original_bytes": original,
                "compressed_bytes": file_bytes,
                "seconds": seconds,
            });
            terminal::json(&object)?
        }
        Format::Table if all.is_empty() => String::new(),
        Format::Table => {
            let look = terminal::look();
            let each = args.list || members + all.len() as u64 <= MAX_ROWS as u64;
            let rows: Vec<Row> = all.iter().flat_map(|(path, found)| rows(args, path, found, each)).collect();
            let head: &[&str] = &["original", "compressed", "ratio", "as", ""];
            let title = if args.list { "Members" } else { "Decoded and compared" };
            let mut text = table(look, title, ("file", head), &rows) + "\n";
            text += &format!(
                "{members} members, {} in {}, {}",
                units::bytes(original),
                units::bytes(file_bytes),
                ratio(original, file_bytes)
            );
            if !args.list {
                text += &format!(", {}/s", units::bytes((original as f64 / seconds.max(1e-6)) as u64));
            }
            text + "\n"
        }
    };
    terminal::print(&text)
}

fn rows(args: &TestArgs, path: &Path, found: &Found, each: bool) -> Vec<Row> {
    let row = |depth, label: String, original, stored, form: &str, state: &str| Row {
        depth,
        label,
        cells: vec![
            units::bytes(original),
            units::bytes(stored),
            ratio(original, stored),
            form.to_owned(),
            state.to_owned(),
        ],
        share: None,
    };
    let state = match (args.list, found.is_good()) {
        (true, true) => "",
        (false, true) => "good",
        (_, false) => "DAMAGED",
    };
    let original = found.members.iter().map(|member| member.original).sum();
    let whole = row(0, path.display().to_string(), original, found.file_bytes, "", state);
    let members = found.members.iter().filter(|_| each).map(|member| {
        let name = String::from_utf8_lossy(&member.head.meta.name).into_owned();
        let state = match (args.list, member.head.keyframe) {
            (true, true) => "keyframe",
            (true, false) => "",
            (false, _) => "good",
        };
        row(1, name, member.original, member.stored, form_name(member.head.form), state)
    });
    std::iter::once(whole).chain(members).collect()
}

fn as_json(path: &Path, found: &Found) -> Value {
    let members: Vec<Value> = found
        .members
        .iter()
        .map(|member| {
            let place = member.head.place;
            json!({
                "name": String::from_utf8_lossy(&member.head.meta.name),
                "form": form_name(member.head.form),
                "keyframe": member.head.keyframe,
                "original_bytes": member.original,
                "compressed_bytes": member.stored,
                "blake3": member.hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
                "timeline": place.map(|place| place.timeline),
                "start_lsn": place.map(|place| place.start.to_string()),
                "end_lsn": place.map(|place| place.end().to_string()),
            })
        })
        .collect();
    let lost: Vec<Value> = found
        .lost
        .iter()
        .map(|loss| {
            json!({
                "name": loss.name,
                "number": loss.number,
                "members": loss.members,
                "timeline": loss.place.map(|place| place.timeline),
                "start_lsn": loss.place.map(|place| place.start.to_string()),
                "end_lsn": loss.place.map(|place| place.end().to_string()),
                "damaged": loss.damaged,
            })
        })
        .collect();
    json!({
        "file": path.to_string_lossy(),
        "compressed_bytes": found.file_bytes,
        "good": found.is_good(),
        "members": members,
        "damage": found.damage.iter().map(|damage| error_text(damage)).collect::<Vec<_>>(),
        "lost": lost,
    })
}
