//! `walden backup create`: a base backup of a server, stored in the archive.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use walden_archive::base_backups::WriterOptions;
use walden_archiving::base_backup::{self, BackupOptions, CreatedBackup, Step};
use walden_postgres::connection::Parameters;
use walden_postgres::replication::BaseBackupOptions;
use walden_report::table::harmless;
use walden_report::units;

use crate::arguments::parse_size;
use crate::place::PlaceArgs;
use crate::progress::{Progress, Waiting};
use crate::terminal::{self, Format};
use crate::{FOUND, output};

const EXAMPLES: &str = "\
Examples:
  walden backup create 'host=db1 user=backup' --repo /backup/main
      store a base backup in the archive
  walden backup create 'host=db1 user=backup' --jobs 4 --label before_upgrade --checkpoint fast --max-rate 100MB
  walden backup create 'host=db1 user=replicator' --jobs 0
      receive it over the replication protocol
  walden backup create && walden archive prune --keep daily=7,weekly=5 --apply
      every night, from cron: the server is named by WALDEN_DSN, the archive by walden.toml

The server sends only parts of files that the newest backup in the archive does not have, and only those are stored. Each backup is complete: \
it does not depend on the removal of others. A backup that ended early is continued by the next one. The user needs to call \
pg_backup_start() and others, which docs/restore.md lists, or REPLICATION and a line in pg_hba.conf for it; the server must archive its WAL to \
the same archive. walden restore restores it.

Exit status: 0 stored, and the archive has the WAL of the backup; 1 stored, but some of its WAL is missing; 2 wrong usage; 3 the server or the \
archive cannot be used, or the backup was not stored.";

/// Store a base backup of a running server in the archive
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CreateArgs {
    /// The server: a connection string or URL of PostgreSQL
    #[arg(value_name = "DSN", env = "WALDEN_DSN", hide_env_values = true)]
    dsn: String,

    #[command(flatten)]
    place: PlaceArgs,

    /// The label of the backup
    #[arg(long, value_name = "LABEL", default_value = "walden backup", value_parser = parse_label)]
    label: String,

    /// Write the checkpoint with which the backup starts immediately, or spread over time with less load
    #[arg(long, value_enum, default_value_t)]
    checkpoint: Checkpoint,

    /// Number of connections that read the server's files; 0 receives the backup over one replication
    /// connection [default: one per core, 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=64))]
    jobs: Option<u16>,

    /// Most bytes a second that the server reads, such as 100MB; 32kB to 1GB
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    max_rate: Option<u32>,

    /// How long to wait at the end for WAL that is not in the archive yet
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait_for_wal: u64,

    /// Do not let the server verify the checksums of its pages
    #[arg(long)]
    no_verify_checksums: bool,

    /// Compression level of zstd
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,

    /// Number of pieces that are compressed and stored at the same time with --jobs 0, each of up to 16 MB
    /// [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,

    /// How to print it; docs/json.md has the JSON
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum Checkpoint {
    Fast,
    #[default]
    Spread,
}

fn parse_label(text: &str) -> Result<String, String> {
    // MAXPGPATH of the server, and lines of backup_label.
    match text.len() < 1024 && !text.chars().any(char::is_control) {
        true => Ok(text.to_owned()),
        false => Err("expected at most 1023 bytes without control characters, found others".to_owned()),
    }
}

/// Reads a rate, in kB a second.
fn parse_rate(text: &str) -> Result<u32, String> {
    let kilobytes = parse_size(text)? >> 10;
    u32::try_from(kilobytes)
        .ok()
        .filter(|rate| (32..=1 << 20).contains(rate))
        .ok_or_else(|| format!("expected 32kB to 1GB a second, found {text}"))
}

/// Runs `walden backup create`.
pub fn create(args: &CreateArgs) -> Result<ExitCode> {
    let (archive, _) = args.place.open()?;
    let parameters = Parameters::parse(&args.dsn)?;
    let mut server = BaseBackupOptions::new(args.label.clone());
    server.is_fast = args.checkpoint == Checkpoint::Fast;
    server.max_rate = args.max_rate;
    server.verify_checksums = !args.no_verify_checksums;
    let threads = args.threads.map_or_else(terminal::cores, usize::from);
    let writer = WriterOptions::default().threads(threads).level(args.level);
    let jobs = args.jobs.map_or_else(|| terminal::cores().clamp(2, 4), usize::from);
    let options = BackupOptions::new(server, writer, Duration::from_secs(args.wait_for_wal), jobs);
    let mut bar: Option<Progress> = None;
    let mut waiting: Option<Waiting> = None;
    let created = base_backup::create(&archive, &parameters, &options, &mut |step| match step {
        Step::Checkpoint => waiting = Some(Waiting::new("waiting for a checkpoint of the server".to_owned())),
        Step::WaitingForSummaries => {
            waiting = Some(Waiting::new("waiting for WAL summaries of the server".to_owned()));
        }
        Step::Started(bytes) => {
            waiting = None;
            bar = Some(Progress::bytes("storing", bytes));
        }
        Step::Received(bytes) => bar.iter_mut().for_each(|bar| bar.advance(bytes)),
        Step::WaitingForWal => {
            if let Some(bar) = bar.take() {
                bar.finish();
            }
            waiting.get_or_insert_with(|| Waiting::new("waiting for WAL in the archive".to_owned()));
        }
    });
    if let Some(bar) = bar {
        bar.finish();
    }
    drop(waiting);
    let created = created?;
    for warning in &created.warnings {
        output::print_line(&format!("the server: {}", harmless(warning)));
    }
    if let Some(note) = &created.note {
        let what = match created.jobs {
            0 => "the backup was received over one replication connection, without several jobs",
            _ => "the server has read whole files, without its WAL summaries",
        };
        output::print_line(&format!("note: {what}: {}", harmless(note)));
    }
    if created.is_without_list {
        output::print_line(
            "note: without a private key, only pieces in the folders of existing backups were found; --identity names one",
        );
    }
    terminal::show(args.format, || &created, || text(&created))?;
    let Some(missing) = &created.missing_segment else { return Ok(ExitCode::SUCCESS) };
    output::print_line(&format!(
        "error: the backup is stored, but cannot be restored yet: expected its WAL up to {} in the archive, found no {missing}",
        created.end_lsn
    ));
    output::print_line(
        "hint: the server archives it later: walden archive check --dsn DSN shows whether it does, and walden archive list whether the backup has \
         its WAL. On a standby, a segment is archived when it is full or the primary switches (SELECT pg_switch_wal()); --wait-for-wal waits longer",
    );
    Ok(ExitCode::from(FOUND))
}

fn text(created: &CreatedBackup) -> String {
    let kept = |bytes: u64, whose: &str| match bytes {
        0 => String::new(),
        bytes => format!(", {} not sent, as {whose} has them", units::bytes(bytes)),
    };
    let sent = units::bytes(created.received_bytes);
    let unchanged = kept(created.unchanged_bytes, "the newest backup");
    let unread = match created.unread_bytes {
        0 => String::new(),
        bytes => format!(" (of these, it has not read {})", units::bytes(bytes)),
    };
    let continued = kept(created.continued_bytes, "an interrupted backup");
    let read = format!("  the server has sent {sent}{unchanged}{unread}{continued}\n");
    format!(
        "Stored {} in {}: {} of files in {}, {} of them new, in {:.1} s\n{read}  WAL from {} to {} on timeline {}\n",
        created.name,
        harmless(&created.location),
        units::bytes(created.bytes),
        units::bytes(created.stored_bytes),
        units::bytes(created.new_bytes),
        created.seconds,
        created.start_lsn,
        created.end_lsn,
        created.timeline
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_server() {
        assert_eq!(parse_rate("100MB"), Ok(100 << 10));
        assert_eq!(parse_rate("32kB"), Ok(32));
        for wrong in ["1kB", "2GB", "x", ""] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        assert!(parse_label("it's").is_ok() && parse_label("a\nSTART WAL LOCATION: 0/0").is_err());
    }
}
