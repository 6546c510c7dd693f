//! Options that name a server and the process that receives its WAL.

use std::path::PathBuf;

use clap::Args;
use walden_archiving::queue::QueueOptions;
use walden_archiving::receiving::ReceivingOptions;

/// The server whose queue is read.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub struct QueueArgs {
    /// Data directory of the server, to report how far the archive lags
    #[arg(long = "data", visible_alias = "pgdata", value_name = "DIR", env = "PGDATA")]
    pub pgdata: Option<PathBuf>,

    /// Connection to the server (libpq string or URL), to report the same by SQL
    #[arg(long, value_name = "DSN")]
    pub dsn: Option<String>,
}

impl QueueArgs {
    /// Returns the options.
    pub fn options(&self) -> QueueOptions {
        QueueOptions { pgdata: self.pgdata.clone(), dsn: self.dsn.clone() }
    }
}

/// The receiving process, if any.
#[derive(Args, Debug)]
pub struct ReceivingArgs {
    /// Spool of walden receive, to report how far it lags behind the server
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
}

impl ReceivingArgs {
    /// Returns the options.
    pub fn options(&self) -> ReceivingOptions {
        ReceivingOptions { spool: self.spool.clone() }
    }
}
