//! A server's state apart from its WAL: its checkpoints, archiver and slots, from its files or by SQL.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use postgres::error::SqlState;
use serde::Serialize;
use walden_format::lsn::Lsn;
use walden_postgres::connection::{self, Client, TextRow};
use walden_postgres::replication::SLOT_IS_LOST;
use walden_source::configuration::Configuration;
use walden_source::datadir::ControlFile;

use crate::archiver::{Archiver, archiver_of};
use crate::process::{PostmasterFile, ServerProcess};
use crate::settings::Settings;
use crate::slots::slots_in;

/// The folders of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Folders {
    /// The data directory; `None` if only the WAL folder is available.
    pub data: Option<PathBuf>,
    /// `pg_wal`.
    pub wal: PathBuf,
}

impl Folders {
    /// Returns the folders of a data directory or of a `pg_wal` folder, which may be the target of a symbolic
    /// link.
    pub fn find(path: &Path) -> Folders {
        let is_data = |folder: &Path| folder.join(ControlFile::PATH).is_file();
        if is_data(path) {
            return Folders { data: Some(path.to_owned()), wal: path.join("pg_wal") };
        }
        let parent = path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
        let named = path.parent().filter(|parent| !parent.as_os_str().is_empty()).map(Path::to_owned);
        let data = [named, parent].into_iter().flatten().find(|folder| is_data(folder));
        Folders { data, wal: path.to_owned() }
    }

    /// Returns a note if the settings of the server cannot be read from the files of its data directory.
    pub(crate) fn settings_note(&self) -> Option<String> {
        let configuration = Configuration::read(self.data.as_ref()?);
        let main = configuration.main_file().display();
        (!configuration.has_main_file())
            .then(|| format!("cannot read {main}: PostgreSQL's defaults are assumed for its settings"))
    }
}

/// The state of a slot and its client.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Slot {
    /// Name of the slot.
    pub name: String,
    /// Whether it is a logical one.
    #[serde(rename = "logical")]
    pub is_logical: bool,
    /// The database of a logical slot: its name by SQL, or else its OID.
    pub database: Option<String>,
    /// The OID of that database.
    pub database_oid: Option<u32>,
    /// The output plugin of a logical slot.
    pub plugin: Option<String>,
    /// Whether a client is connected; files do not have this.
    pub active: Option<bool>,
    /// The client: `application_name` and address.
    pub client: Option<String>,
    /// Seconds since it was last used, according to the server (17 and later) or the time of its file.
    pub idle_seconds: Option<u64>,
    /// The oldest LSN that the slot needs.
    #[serde(serialize_with = "as_text")]
    pub restart_lsn: Option<Lsn>,
    /// The LSN up to which the client of a logical slot has confirmed changes.
    #[serde(serialize_with = "as_text")]
    pub confirmed_flush_lsn: Option<Lsn>,
    /// The oldest transaction whose catalog rows a logical slot needs, if the server was queried.
    #[serde(skip)]
    pub catalog_xmin: Option<u32>,
    /// Whether the slot is `lost`, because the server has invalidated it.
    #[serde(rename = "lost")]
    pub is_lost: bool,
    /// Why the server has invalidated the slot, as in `invalidation_reason` of `pg_replication_slots` (17 and
    /// later, or by its file).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalidation_reason: Option<String>,
    /// Whether this server is a standby and synchronizes the slot from its primary (17 and later): it has no
    /// client here, and only the primary can drop it.
    #[serde(rename = "synced")]
    pub is_synced: bool,
    /// Seconds since its client last reported a position, if the server reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<u64>,
    /// The problem with its file.
    pub problem: Option<String>,
}

pub(crate) fn as_text<S: serde::Serializer>(lsn: &Option<Lsn>, serializer: S) -> Result<S::Ok, S::Error> {
    match lsn {
        Some(lsn) => serializer.collect_str(lsn),
        None => serializer.serialize_none(),
    }
}

/// The state of a server.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ServerState {
    /// Settings, in the format of `pg_settings`.
    pub settings: Settings,
    /// Redo pointer of the last checkpoint, and when it started in seconds since 1970-01-01 UTC.
    pub checkpoint: Option<(Lsn, i64)>,
    /// When it started, in seconds since 1970-01-01 UTC; `None` if it does not run, or it is not known.
    pub started: Option<i64>,
    /// Whether it runs, according to its files or its answer.
    pub process: ServerProcess,
    /// Files that wait to be archived; `None` if it is not known.
    pub archiver: Option<Archiver>,
    /// Replication slots.
    pub slots: Vec<Slot>,
    /// Whether it is a standby.
    pub is_standby: bool,
}

/// Reads a server's state from its files.
pub fn from_files(folders: &Folders) -> ServerState {
    let mut state = ServerState { archiver: archiver_of(&folders.wal), ..ServerState::default() };
    let Some(data) = &folders.data else { return state };
    state.settings = Settings::read_data_directory(data);
    let (process, control) = ServerProcess::read_data_directory(data);
    state.process = process;
    state.started = PostmasterFile::read(data).ok().and_then(|file| file.started);
    state.is_standby = control.as_ref().is_some_and(|control| control.state.is_standby());
    state.checkpoint = control.map(|control| (control.redo, control.checkpoint_time));
    let now = SystemTime::now();
    for file in slots_in(data) {
        let written = file.written.and_then(|written| now.duration_since(written).ok());
        let mut slot =
            Slot { name: file.name, idle_seconds: written.map(|age| age.as_secs()), ..Slot::default() };
        match file.state {
            Ok(found) => {
                slot.is_logical = found.database != 0;
                slot.database = slot.is_logical.then(|| found.database.to_string());
                slot.database_oid = slot.is_logical.then_some(found.database);
                slot.plugin = Some(found.plugin).filter(|plugin| !plugin.is_empty());
                slot.is_synced = found.is_synced && state.is_standby;
                slot.is_lost = found.is_invalidated;
                slot.invalidation_reason = found.invalidation_reason.map(str::to_owned);
                slot.restart_lsn = found.restart_lsn.filter(|_| !found.is_invalidated);
                slot.confirmed_flush_lsn = found.confirmed_flush;
            }
            Err(error) => slot.problem = Some(error.to_string()),
        }
        state.slots.push(slot);
    }
    state
}

/// Why a query fails.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub struct QueryError(#[from] connection::QueryError);

walden_format::diagnostics! { QueryError {
    Self(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => "server-query-denied": "the user needs pg_monitor: GRANT pg_monitor TO ...",
    Self(_) => none,
} }

/// Queries the settings in force, and adds them to `known` ones. Only privileged roles can see the archiver's
/// command.
///
/// # Errors
/// The connection is lost.
pub(crate) fn settings_by_sql(client: &mut Client, mut known: Settings) -> Result<Settings, QueryError> {
    for row in permitted(rows(client, &Settings::query()))?.unwrap_or_default() {
        if let (Some(name), Some(value)) = (row.get(0), row.get(1)) {
            known.set_of_server(name, value, row.get(2).unwrap_or_default());
        }
    }
    Ok(known)
}

/// Queries a server's state. Omits parts that the user may not see.
///
/// # Errors
/// The connection is lost.
pub fn by_sql(client: &mut Client, settings: &Settings) -> Result<ServerState, QueryError> {
    let process = ServerProcess::Running;
    let mut state = ServerState { settings: settings.clone(), process, ..ServerState::default() };
    let checkpoint =
        "SELECT redo_lsn, extract(epoch FROM checkpoint_time)::bigint FROM pg_control_checkpoint()";
    if let Some(rows) = permitted(rows(client, checkpoint))? {
        state.checkpoint =
            rows.first().and_then(|row| Some((row.get(0)?.parse().ok()?, row.get(1)?.parse().ok()?)));
    }
    let ready = "SELECT count(*), coalesce(sum(wal.size), 0), \
                 coalesce(extract(epoch FROM now() - min(mark.modification)), 0) \
                 FROM pg_ls_archive_statusdir() AS mark LEFT JOIN pg_ls_waldir() AS wal ON mark.name = wal.name || '.ready' \
                 WHERE mark.name LIKE '%.ready'";
    if let Some(rows) = permitted(rows(client, ready))? {
        state.archiver = rows.first().and_then(|row| {
            let (files, bytes) = (row.get(0)?.parse().ok()?, row.get(1)?.parse().ok()?);
            Some(Archiver {
                ready_files: files,
                ready_bytes: bytes,
                oldest_seconds: row.get(2)?.parse().ok()?,
            })
        });
    }
    let rows =
        rows(client, "SELECT pg_is_in_recovery(), extract(epoch FROM pg_postmaster_start_time())::bigint")?;
    let row = rows.first();
    state.is_standby = row.is_some_and(|row| row.get(0) == Some("t"));
    state.started = row.and_then(|row| row.get(1)?.parse().ok());
    state.slots = slots_by_sql(client)?;
    Ok(state)
}

/// Returns `None` if the server answers with an error, such as a missing permission. Other errors concern the
/// connection.
fn permitted<T>(result: Result<T, QueryError>) -> Result<Option<T>, QueryError> {
    match result {
        Err(error) if error.0.code().is_none() => Err(error),
        result => Ok(result.ok()),
    }
}

/// Queries the slots of a server.
///
/// # Errors
/// The connection is lost.
pub fn slots_by_sql(client: &mut Client) -> Result<Vec<Slot>, QueryError> {
    let query = |idle: &str, lost: &str, reason: &str, synced: &str, silent: &str| {
        format!(
            "SELECT s.slot_name, s.slot_type, s.database, s.plugin, s.active, \
             coalesce(nullif(r.application_name, ''), r.usename) || coalesce(' at ' || host(r.client_addr), ''), {idle}, \
             s.restart_lsn, s.confirmed_flush_lsn, {lost}, s.datoid, {reason}, {silent}, {synced}, s.catalog_xmin \
             FROM pg_replication_slots AS s LEFT JOIN pg_stat_replication AS r ON r.pid = s.active_pid ORDER BY 1"
        )
    };
    let idle = "extract(epoch FROM now() - s.inactive_since)::bigint";
    // Querying columns that a server may lack would leave an error in its log each time.
    let version = rows(client, "SHOW server_version_num")?;
    let version = version.first().and_then(|row| row.get(0)?.parse().ok()).unwrap_or(0);
    let silent = "extract(epoch FROM now() - r.reply_time)::bigint";
    // After a promotion, slots keep the mark.
    let synced = "s.synced AND pg_is_in_recovery()";
    let found = rows(
        client,
        &match version {
            170_000.. => query(idle, SLOT_IS_LOST, "s.invalidation_reason", synced, silent),
            130_000.. => query("NULL", SLOT_IS_LOST, "NULL", "false", silent),
            120_000.. => query("NULL", "false", "NULL", "false", silent),
            _ => query("NULL", "false", "NULL", "false", "NULL"),
        },
    )?;
    let slot = |row: &TextRow| {
        let text = |at: usize| row.get(at).map(str::to_owned);
        let is = |at: usize| row.get(at) == Some("t");
        let seconds_at =
            |at: usize| row.get(at).and_then(|it| it.parse::<i64>().ok()).map(|it| it.max(0).cast_unsigned());
        Slot {
            name: text(0).unwrap_or_default(),
            is_logical: row.get(1) == Some("logical"),
            database: text(2),
            database_oid: row.get(10).and_then(|oid| oid.parse().ok()),
            plugin: text(3),
            active: Some(is(4)),
            client: text(5),
            idle_seconds: seconds_at(6),
            restart_lsn: row.get(7).and_then(|lsn| lsn.parse().ok()).filter(|_| !is(9)),
            confirmed_flush_lsn: row.get(8).and_then(|lsn| lsn.parse().ok()),
            is_lost: is(9),
            invalidation_reason: text(11),
            silent_seconds: seconds_at(12),
            is_synced: is(13),
            catalog_xmin: row.get(14).and_then(|xid| xid.parse().ok()),
            problem: None,
        }
    };
    Ok(found.iter().map(slot).collect())
}

/// Runs a simple query and returns text, which works through every connection pooler.
pub(crate) fn rows(client: &mut Client, query: &str) -> Result<Vec<TextRow>, QueryError> {
    Ok(client.simple_query(query)?)
}
