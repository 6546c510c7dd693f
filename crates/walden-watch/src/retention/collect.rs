//! Collects the situation of a server's `pg_wal`: from its files, and from the server itself.

use std::io;
use std::path::PathBuf;

use walden_explain::group::{Dimension, Owner};
use walden_explain::{ExplainError, Explanation, Request, explain, rewrites};
use walden_format::lsn::{Lsn, SegmentSize};
use walden_postgres::connection::{self, Client, ConnectionError};
use walden_postgres::follow::{FolderFollower, FollowError, Follower as _};
use walden_report::units::bytes;
use walden_source::inventory::{Inventory, InventoryError};
use walden_source::names::Names;

use super::{ArchiverFailures, Backlog, Listing, OpenTransaction, Retention, Situation, disk_of};
use crate::server::{self, Folders, QueryError, ServerState};

/// The server, and how much of its WAL is decoded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Subject {
    /// Data directory or `pg_wal` folder of the server.
    pub source: Option<PathBuf>,
    /// Connection string of the server.
    pub dsn: Option<String>,
    /// The largest backlog of a logical slot to decode, in bytes.
    pub max_decoded_bytes: u64,
    /// Number of threads that decode.
    pub threads: usize,
}

impl Subject {
    /// Creates a subject whose backlogs are decoded up to 4 GB, on one thread. At least one of folder and
    /// connection string is needed.
    pub fn new(source: Option<PathBuf>, dsn: Option<String>) -> Subject {
        Subject { source, dsn, max_decoded_bytes: 4096 << 20, threads: 1 }
    }
}

walden_format::setters!(Subject { max_decoded_bytes: u64, threads: usize });

/// Why the holders of WAL cannot be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// Neither a folder nor a connection string is given.
    #[error("cannot tell which server is meant: expected a data directory or --dsn")]
    NoSource,
    /// There is no connection.
    #[error("{0}")]
    Connection(#[from] ConnectionError),
    /// A query fails.
    #[error("{0}")]
    Query(#[from] QueryError),
    /// The folder has no WAL.
    #[error("{0}")]
    Follow(#[from] FollowError),
    /// Folder and server are of different clusters.
    #[error(
        "the folder is of the cluster with the system identifier {folder}, the server's is {server}: name the folder \
         and the server of one cluster"
    )]
    OtherCluster {
        /// System identifier of the folder.
        folder: u64,
        /// System identifier of the server.
        server: u64,
    },
    /// The server cannot be asked for the end of its WAL.
    #[error("cannot ask the server for the end of its WAL")]
    AskForEnd(#[source] connection::QueryError),
    /// The server does not report the end of its WAL.
    #[error("the server does not report where its WAL ends")]
    NoEnd,
    /// The folder cannot be read.
    #[error("cannot read {}", folder.display())]
    Read {
        /// The folder.
        folder: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// The segments cannot be searched.
    #[error("{0}")]
    Inventory(#[from] InventoryError),
    /// The backlog of a slot cannot be decoded.
    #[error("{0}")]
    Explain(#[from] ExplainError),
}

type Result<T> = std::result::Result<T, CollectError>;

/// Determines the holders of a server's `pg_wal`. `print` receives each warning and note as a line.
///
/// If the server is down, or refuses connections because a full disk prevents the end of its recovery, its
/// files still contain most of the answer, so this only warns. An invalid connection string is always an
/// error.
///
/// # Errors
/// The files cannot be read, or, without files, the server does not answer.
pub fn collect(subject: &Subject, print: &mut dyn FnMut(&str)) -> Result<Retention> {
    let folders = subject.source.as_deref().map(Folders::find);
    let mut client = match &subject.dsn {
        Some(dsn) => connect(dsn, folders.is_some(), print)?,
        None => None,
    };
    let mut situation = match (&folders, &mut client) {
        (Some(folders), client) => read_files(folders, client.as_mut())?,
        (None, Some(client)) => query_server(client)?,
        (None, None) => return Err(CollectError::NoSource),
    };
    if let Some(asked) = &mut client
        && let Err(error) = ask_server(asked, &mut situation)
    {
        if folders.is_none() {
            return Err(error.into());
        }
        continue_from_files(&error, print);
        client = None;
    }
    if let Some(note) = folders.as_ref().filter(|_| client.is_none()).and_then(Folders::settings_note) {
        print(&format!("note: {note}; --dsn has the server's settings"));
    }
    let listing = match (&folders, &mut client) {
        (Some(folders), _) => Listing::read_folder(&folders.wal)
            .map_err(|error| CollectError::Read { folder: folders.wal.clone(), error })?,
        (None, Some(client)) => Listing::by_sql(client)?,
        (None, None) => Listing::default(),
    };
    let mut retention = Retention::new(&listing, &situation);
    if let Some(folders) = &folders {
        let dsn = subject.dsn.as_deref().filter(|_| client.is_some());
        retention.backlogs = backlogs(dsn, subject, folders, &situation, print)?;
    }
    Ok(retention)
}

/// Connects to the server, if it accepts connections.
fn connect(dsn: &str, has_files: bool, print: &mut dyn FnMut(&str)) -> Result<Option<Client>> {
    let parameters = connection::Parameters::parse(dsn)?;
    match parameters.connect_anywhere() {
        Ok(client) => Ok(Some(client)),
        Err(error @ (ConnectionError::Silent { .. } | ConnectionError::Server { .. })) if has_files => {
            continue_from_files(&error, print);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn continue_from_files(error: &dyn std::error::Error, print: &mut dyn FnMut(&str)) {
    print(&format!("warning: {}; this is from the files alone", walden_source::error_text(error)));
}

/// Adds the server's own information.
fn ask_server(client: &mut Client, situation: &mut Situation) -> std::result::Result<(), QueryError> {
    let settings = server::settings_by_sql(client, situation.server.settings.clone())?;
    let asked = server::by_sql(client, &settings)?;
    let mut slots = asked.slots;
    for slot in slots.iter_mut().filter(|slot| slot.active == Some(false)) {
        // Servers before 17 do not report it. The slot's file is written at the checkpoint after a slot has
        // advanced.
        let file = situation.server.slots.iter().find(|file| file.name == slot.name);
        slot.idle_seconds = slot.idle_seconds.or(file.and_then(|file| file.idle_seconds));
    }
    situation.server = ServerState {
        settings,
        checkpoint: situation.server.checkpoint.or(asked.checkpoint),
        started: asked.started,
        process: asked.process,
        archiver: situation.server.archiver.or(asked.archiver),
        slots,
        is_standby: asked.is_standby,
    };
    situation.failures = ArchiverFailures::by_sql(client);
    situation.oldest_transaction = OpenTransaction::by_sql(client);
    Ok(())
}

/// Reads the situation from the files; `client` must be connected to the same server.
fn read_files(folders: &Folders, client: Option<&mut Client>) -> Result<Situation> {
    let follower = FolderFollower::at_end(&folders.wal)?;
    let (expected, found) = (follower.info().system_id, client.and_then(system_identifier));
    if let Some(found) = found.filter(|found| *found != expected) {
        return Err(CollectError::OtherCluster { folder: expected, server: found });
    }
    Ok(Situation {
        end: follower.write_position(),
        segment_size: follower.info().segment_size,
        server: server::from_files(folders),
        failures: None,
        disk: disk_of(&folders.wal),
        oldest_transaction: None,
    })
}

/// Asks the server for its system identifier. Returns `None` if the role may not read it.
fn system_identifier(client: &mut Client) -> Option<u64> {
    let rows = client.simple_query("SELECT system_identifier FROM pg_control_system()").ok()?;
    // SQL has no unsigned integers: a large identifier is returned as a negative number.
    rows.first()?.get(0)?.parse::<i64>().ok().map(i64::cast_unsigned)
}

fn query_server(client: &mut Client) -> Result<Situation> {
    let query = "SELECT CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) \
                 ELSE pg_current_wal_lsn() END, setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'";
    let rows = client.simple_query(query).map_err(CollectError::AskForEnd)?;
    let found = rows.first().and_then(|row| {
        let end: Lsn = row.get(0)?.parse().ok()?;
        Some((end, SegmentSize::new(row.get(1)?.parse().ok()?)?))
    });
    let (end, segment_size) = found.ok_or(CollectError::NoEnd)?;
    let server = ServerState::default();
    Ok(Situation { end, segment_size, server, failures: None, disk: None, oldest_transaction: None })
}

/// Sums up the WAL that logical slots hold, by database, and, with a connection, by whether a publication
/// includes the table.
fn backlogs(
    dsn: Option<&str>,
    subject: &Subject,
    folders: &Folders,
    situation: &Situation,
    print: &mut dyn FnMut(&str),
) -> Result<Vec<Backlog>> {
    let mut backlogs = Vec::new();
    let logical = situation.server.slots.iter().filter(|slot| slot.is_logical);
    let slots: Vec<_> = logical.filter_map(|slot| Some((slot, slot.restart_lsn?))).collect();
    if slots.is_empty() {
        return Ok(backlogs);
    }
    let mut names = dsn.and_then(|dsn| walden_postgres::names::from_server(dsn).ok());
    let inventory = Inventory::search(&[&folders.wal])?;
    for (slot, restart) in slots {
        let length = situation.end.0.saturating_sub(restart.0);
        if length > subject.max_decoded_bytes {
            let length = bytes(length);
            print(&format!(
                "note: the backlog of slot {} ({length}) is not decoded; --decode-limit is lower",
                slot.name
            ));
            continue;
        }
        let Some(own) = slot.database_oid else { continue };
        let request = Request::sums(restart, situation.end, subject.threads);
        let explanation = explain(&inventory.runs, &request, |_| {})?;
        if let Some(names) = &mut names {
            rewrites::learn(&explanation, names);
        }
        let published = dsn.and_then(|dsn| published(dsn, names.as_ref()?, own));
        let published = published.as_ref().zip(names.as_ref());
        backlogs.push(backlog(&slot.name, own, &explanation, published));
    }
    Ok(backlogs)
}

/// Sums up the WAL that a slot of the database `own` holds. `published` has the OIDs of published tables, and
/// the names of all tables.
fn backlog(
    slot: &str,
    own: u32,
    explanation: &Explanation,
    published: Option<(&Vec<u32>, &Names)>,
) -> Backlog {
    let mut backlog = Backlog {
        slot: slot.to_owned(),
        bytes: explanation.file_bytes,
        own_database_bytes: 0,
        other_databases_bytes: 0,
        shared_bytes: 0,
        unpublished_bytes: published.map(|_| 0),
    };
    for (key, tally) in &explanation.view_by(&[Dimension::Relation]).rows {
        let sum = match key.owner {
            Some(Owner::Relation(file, _)) if file.database == own => {
                if let (Some((tables, names)), Some(unpublished)) =
                    (published, &mut backlog.unpublished_bytes)
                {
                    let relation = names.resolve(file).relation();
                    let table = relation.map(|relation| names.table_of(file.database, relation).oid);
                    // A file without a name was dropped, so its relation is no longer in a publication.
                    if table.is_none_or(|table| !tables.contains(&table)) {
                        *unpublished += tally.bytes();
                    }
                }
                &mut backlog.own_database_bytes
            }
            Some(Owner::Relation(file, _)) if file.database != 0 => &mut backlog.other_databases_bytes,
            _ => &mut backlog.shared_bytes,
        };
        *sum += tally.bytes();
    }
    backlog
}

/// Returns the OIDs of a database's published tables; `None` if it has none or cannot be queried.
fn published(dsn: &str, names: &Names, database: u32) -> Option<Vec<u32>> {
    let name = &names.database(database)?.name;
    let parameters = connection::Parameters::parse(dsn).ok()?.with("dbname", name);
    let mut client = parameters.connect_anywhere().ok()?;
    // With publish_via_partition_root, the view lists the root, not the partitions that are written.
    let query = "WITH listed AS (SELECT c.oid FROM pg_publication_tables AS p JOIN pg_namespace AS n ON n.nspname = p.schemaname \
                 JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename) \
                 SELECT oid FROM listed UNION SELECT t.relid::oid FROM listed, pg_partition_tree(listed.oid) AS t";
    let rows = client.simple_query(query).ok()?;
    let oids: Vec<u32> = rows.iter().map(|row| row.get(0)?.parse().ok()).collect::<Option<_>>()?;
    (!oids.is_empty()).then_some(oids)
}
