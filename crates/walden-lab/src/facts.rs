//! `facts.json`, written next to the segments of a run: the workload, the server, and the LSN range.

use std::collections::BTreeMap;

use anyhow::Result;
use postgres::{Client, SimpleQueryMessage};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value};
use walden_format::lsn::Lsn;

/// The content of `facts.json`. LSNs are written as PostgreSQL prints them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// The workload's name.
    pub workload: String,
    /// The workload's description, one line.
    pub about: String,
    /// The workload's size, in `size_unit`.
    pub size: u64,
    /// The unit of `size`: transactions, rows, MB.
    pub size_unit: String,
    /// The seed that all content derives from.
    pub seed: u64,
    /// Version of the server that wrote the WAL.
    pub server: Server,
    /// The options initdb was run with.
    pub initdb_options: Vec<String>,
    /// Settings that differ from the built-in default, and all settings that affect the volume of WAL.
    pub settings: BTreeMap<String, Setting>,
    /// The cluster's system identifier; text, because it does not fit into a JSON number.
    pub system_identifier: String,
    /// The timeline of all segments.
    pub timeline: u32,
    /// Size of a segment in bytes.
    pub wal_segment_bytes: u64,
    /// Start of the first segment, which starts with the records of a checkpoint.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub start_lsn: Lsn,
    /// The insert position when the workload started, after that checkpoint.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub workload_lsn: Lsn,
    /// The insert position when the workload had ended; the rest of the last segment is the server's
    /// shutdown.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub end_lsn: Lsn,
    /// Bytes of WAL from `workload_lsn` to `end_lsn`.
    pub workload_bytes: u64,
    /// The segments in `wal/`, in order.
    pub segments: Vec<String>,
    /// The start of the workload, UTC.
    pub started_at: String,
    /// The end of the workload, UTC.
    pub finished_at: String,
    /// Duration of the workload in seconds.
    pub seconds: f64,
    /// `pg_stat_wal` and, depending on the version, `pg_stat_bgwriter` and `pg_stat_checkpointer`.
    pub statistics: BTreeMap<String, StatPair>,
    /// The workload's own measurements; the fields depend on the workload.
    pub notes: Value,
}

fn as_text<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// Version of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Server {
    /// The output of `version()`.
    pub version: String,
    /// `server_version_num`.
    pub version_num: u32,
}

/// One row of `pg_settings`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setting {
    /// The value, in `unit`.
    pub value: String,
    /// `pg_settings.unit`: `8kB`, `MB`, `s`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// `pg_settings.source`: `default`, `configuration file`, ...
    pub source: String,
}

/// The one row of a statistics view before and after the workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatPair {
    /// The row before the workload.
    pub before: Value,
    /// The row after the workload, once its sessions had reported their statistics.
    pub after: Value,
    /// `after` minus `before`, for all numbers.
    pub delta: Value,
}

/// Settings that are reported even at their default.
const WAL_SETTINGS: &[&str] = &[
    "archive_mode",
    "archive_timeout",
    "autovacuum",
    "block_size",
    "checkpoint_completion_target",
    "checkpoint_timeout",
    "commit_delay",
    "data_checksums",
    "full_page_writes",
    "io_method",
    "max_wal_size",
    "min_wal_size",
    "shared_buffers",
    "synchronous_commit",
    "track_commit_timestamp",
    "wal_block_size",
    "wal_buffers",
    "wal_compression",
    "wal_init_zero",
    "wal_level",
    "wal_log_hints",
    "wal_recycle",
    "wal_segment_size",
    "wal_skip_threshold",
];

/// Cumulative statistics views that have one row.
const STATISTICS: &[&str] = &["pg_stat_wal", "pg_stat_bgwriter", "pg_stat_checkpointer"];

/// Reads the settings that affect the volume of WAL, and all that are not at their default.
pub(crate) fn read_settings(client: &mut Client) -> Result<BTreeMap<String, Setting>> {
    let rows = client.query(
        "SELECT name, setting, unit, source FROM pg_settings
         WHERE name = ANY ($1)
            OR source NOT IN ('default', 'override', 'client', 'session', 'environment variable')
               AND name NOT IN ('unix_socket_directories', 'archive_command')",
        &[&WAL_SETTINGS],
    )?;
    let setting = |row: &postgres::Row| Setting { value: row.get(1), unit: row.get(2), source: row.get(3) };
    Ok(rows.iter().map(|row| (row.get(0), setting(row))).collect())
}

/// Reads those of [`STATISTICS`] that the server's version supports.
pub(crate) fn read_statistics(client: &mut Client) -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    for &view in STATISTICS {
        let exists = client.query_one("SELECT to_regclass($1::text) IS NOT NULL", &[&view])?;
        if exists.get::<_, bool>(0) {
            let messages = client.simple_query(&format!("SELECT row_to_json(view) FROM {view} view"))?;
            let row = messages.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            found.insert(view.to_owned(), serde_json::from_str(row.unwrap_or("{}"))?);
        }
    }
    Ok(found)
}

/// Pairs two readings of the same views, with their differences.
pub(crate) fn pair_statistics(
    mut before: BTreeMap<String, Value>,
    after: BTreeMap<String, Value>,
) -> BTreeMap<String, StatPair> {
    let pair_one = |(view, after): (String, Value)| {
        let before = before.remove(&view).unwrap_or_default();
        let delta = difference(&before, &after);
        (view, StatPair { before, after, delta })
    };
    after.into_iter().map(pair_one).collect()
}

fn difference(before: &Value, after: &Value) -> Value {
    let mut delta = Map::new();
    for (name, value) in after.as_object().into_iter().flatten() {
        let earlier = before.get(name);
        let whole = earlier.and_then(Value::as_i64).zip(value.as_i64()).map(|(a, b)| Value::from(b - a));
        let real = || earlier.and_then(Value::as_f64).zip(value.as_f64()).map(|(a, b)| Value::from(b - a));
        if let Some(change) = whole.or_else(real) {
            delta.insert(name.clone(), change);
        }
    }
    Value::Object(delta)
}
