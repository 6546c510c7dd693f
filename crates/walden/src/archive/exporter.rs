//! `walden archive exporter`: serves metrics for Prometheus over HTTP.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use walden_archiving::exporter::Exporter;

use super::server::{QueueArgs, ReceivingArgs};
use crate::output;
use crate::place::PlaceArgs;

const EXAMPLES: &str = "\
Examples:
  walden archive exporter --data /var/lib/postgresql/18/main
      serve http://127.0.0.1:9719/metrics until it is stopped
  walden archive exporter --dsn 'host=db1 user=monitor' --listen 0.0.0.0:9719 --refresh 300

The endpoint has neither encryption nor a password: listen where only the scraper can connect.";

/// Serve metrics for Prometheus over HTTP
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExporterArgs {
    #[command(flatten)]
    place: PlaceArgs,

    #[command(flatten)]
    queue: QueueArgs,

    #[command(flatten)]
    receiving: ReceivingArgs,

    /// Log that push and get append to [default: the one in walden.toml]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9719")]
    listen: SocketAddr,

    /// Seconds between listings of the archive; each request reads the queue and the log
    #[arg(long, value_name = "N", default_value_t = 60)]
    refresh: u64,
}

/// Runs `walden archive exporter` until the process is terminated.
pub fn run(args: &ExporterArgs) -> Result<ExitCode> {
    let place = args.place.for_server(args.queue.pgdata.as_deref());
    let queue = args.queue.options().or_beside_configuration(&place);
    let refresh = Duration::from_secs(args.refresh);
    let exporter = Exporter::new(place, queue, args.receiving.options(), args.log.as_deref(), refresh)?;
    let listener =
        TcpListener::bind(args.listen).with_context(|| format!("cannot listen on {}", args.listen))?;
    output::print_line(&format!("serving http://{}/metrics", listener.local_addr()?));
    exporter.serve(&listener);
    Ok(ExitCode::SUCCESS)
}
