//! `walden retention`: explains the size of pg_wal.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use walden_postgres::connection::is_connection_string;
use walden_watch::retention::{Subject, collect, text};

use crate::terminal::{self, Format};
use crate::{FOUND, output};

const EXAMPLES: &str = "\
Examples:
  walden retention /var/lib/postgresql/18/main
      from the files alone: pg_wal, pg_control, pg_replslot, archive_status, the settings
  walden retention /var/lib/postgresql/18/main --dsn 'host=/run/postgresql user=postgres'
      also who uses each slot, and how the archiver fails
  walden retention --dsn 'host=db1 user=monitor'
      of a server elsewhere, by SQL alone; needs pg_monitor

A logical slot's backlog is decoded, up to --decode-limit, to distinguish its own database from others.

Exit status: 0 done; 1 pg_wal grows by all WAL that is written, as a slot or the archiver makes no progress, and no \
max_slot_wal_keep_size ends that, or its file system is full; 2 wrong usage; 3 it cannot be read.";

/// Explain the size of pg_wal: the holder of each byte, and how to release it
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RetentionArgs {
    /// A server's data directory or its pg_wal folder
    #[arg(value_name = "PGDATA|PG_WAL", required_unless_present = "dsn")]
    source: Option<PathBuf>,

    /// The server, for its slots and archiver, and for its files unless a folder is given
    #[arg(long, value_name = "DSN")]
    dsn: Option<String>,

    /// The largest backlog of a logical slot to decode, in MB
    #[arg(long, value_name = "MB", default_value_t = 4096)]
    decode_limit: u64,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs `walden retention`.
pub fn run(args: &RetentionArgs) -> Result<ExitCode> {
    if let Some(source) = args.source.as_deref().filter(|source| is_connection_string(source)) {
        crate::wrong_usage(&format!("a server is given by --dsn: --dsn '{}'", source.display()));
    }
    let subject = Subject::new(args.source.clone(), args.dsn.clone())
        .max_decoded_bytes(args.decode_limit.saturating_mul(1 << 20))
        .threads(terminal::cores());
    let retention = collect(&subject, &mut |line| output::print_line(line))?;
    terminal::show(args.format, || &retention, || text(&retention, terminal::look()))?;
    let is_alarming = retention.is_growing || retention.disk_is_full;
    Ok(if is_alarming { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
}
