//! Options of a receiver.

use std::time::Duration;

use walden_archive::push::PushOptions;

/// How WAL is received.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Replication slot, so that the server keeps WAL until it is received.
    pub slot: Option<String>,
    /// Create the slot if it does not exist.
    pub create_slot: bool,
    /// Whether to synchronise and acknowledge received WAL immediately, because commits wait for the
    /// acknowledgement.
    pub synchronous: bool,
    /// Where WAL must be durable before it is acknowledged.
    pub ack_after: AckAfter,
    /// Longest time between two status messages to the server.
    pub status_interval: Duration,
    /// A server that has sent nothing for this time is considered gone.
    pub server_timeout: Duration,
    /// Whether to continue with the oldest WAL of the server if the server has removed the next WAL. The
    /// archive records the gap.
    pub accept_gap: bool,
    /// With an empty spool, continue with the WAL of the copies that can be reached, although others may have
    /// newer acknowledged WAL.
    pub ignore_unreachable: bool,
    /// How files are archived.
    pub push: PushOptions,
}

walden_format::setters!(Options {
    slot: Option<String>,
    create_slot: bool,
    synchronous: bool,
    ack_after: AckAfter,
    status_interval: Duration,
    server_timeout: Duration,
    accept_gap: bool,
    ignore_unreachable: bool,
    push: PushOptions,
});

/// Where WAL must be durable before it is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckAfter {
    /// In the spool.
    #[default]
    Spool,
    /// Also in the archive: the segment that is being received is archived in parts.
    Archive,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            slot: None,
            create_slot: false,
            synchronous: false,
            ack_after: AckAfter::default(),
            status_interval: Duration::from_secs(10),
            server_timeout: Duration::from_secs(60),
            accept_gap: false,
            ignore_unreachable: false,
            push: PushOptions::default(),
        }
    }
}
