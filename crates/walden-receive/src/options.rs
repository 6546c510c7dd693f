//! How a log is received.

use std::time::Duration;

use walden_archive::push::PushOptions;

/// How a log is received.
#[derive(Clone, Debug)]
pub struct Options {
    /// The replication slot, so that the server keeps what is not received yet.
    pub slot: Option<String>,
    /// Make the slot if it is not there.
    pub is_slot_created: bool,
    /// Synchronise as soon as something has come, and say so at once: commits wait for it.
    pub is_synchronous: bool,
    /// Where the log must be durable before it is acknowledged.
    pub ack_after: AckAfter,
    /// How often the server is told how far we are, at least.
    pub status_interval: Duration,
    /// A server that says nothing for so long is gone.
    pub server_timeout: Duration,
    /// Continue with the oldest WAL that the server has, if it has removed the next WAL. The archive records the gap.
    pub is_gap_accepted: bool,
    /// How files are archived.
    pub push: PushOptions,
}

/// Where the log must be durable before it is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AckAfter {
    /// In the spool.
    #[default]
    Spool,
    /// In the archive as well: the segment that is being written, in parts.
    Archive,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            slot: None,
            is_slot_created: false,
            is_synchronous: false,
            ack_after: AckAfter::default(),
            status_interval: Duration::from_secs(10),
            server_timeout: Duration::from_secs(60),
            is_gap_accepted: false,
            push: PushOptions::default(),
        }
    }
}
