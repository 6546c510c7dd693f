//! Determines the holders of the files in `pg_wal`: each byte has one holder.
//!
//! A checkpoint removes or recycles the segments before the one with its redo pointer, except those that
//! `KeepLogSeg` keeps for slots and `wal_keep_size`, and those that are not archived yet
//! (`RemoveOldXlogFiles`, `XLogArchiveCheckDone`). If several holders keep a segment, it belongs to the first
//! of: recovery, slots (the one furthest behind first), the archiver, the WAL summarizer, `wal_keep_size`.

mod collect;
mod recycling;
mod remedies;
mod text;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_postgres::connection::Client;

pub use collect::{CollectError, Subject, collect};
pub use text::text;

use crate::process::ServerProcess;
use crate::server::{QueryError, ServerState, Slot, rows};

/// Maximum age of segments whose times show how fast WAL grows.
const RATE_SPAN: Duration = Duration::from_secs(600);
/// An archiver or a summarizer that makes progress is done with a segment after this time.
const MAX_AGE: Duration = Duration::from_secs(300);
/// A healthy client reports its position within this many seconds: `wal_receiver_status_interval` is 10 s by
/// default.
const MAX_SILENCE_SECONDS: u64 = 15;
/// A logical slot may wait for a transaction that has been open for this many seconds. Shorter transactions
/// are ordinary, unless the slot's `catalog_xmin` is their ID: then the slot's client has reached them.
const MIN_OPEN_SECONDS: u64 = 10;

/// A file in `pg_wal` or one of its subfolders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WalFile {
    /// Path of the file relative to `pg_wal`.
    pub name: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// When it was last written.
    pub modified: Option<SystemTime>,
}

/// The files of `pg_wal`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// All regular files, including files in subfolders.
    pub files: Vec<WalFile>,
    /// Names of files that wait to be archived.
    pub ready: HashSet<String>,
    /// The end of the summarised WAL (17 and later): 0 if there are no summaries, `None` if it is not known.
    pub summarised: Option<Lsn>,
}

impl Listing {
    /// Lists a `pg_wal` folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn read_folder(wal: &Path) -> io::Result<Listing> {
        let mut listing = Listing { summarised: Some(Lsn(0)), ..Listing::default() };
        let mut folders = vec![(wal.to_path_buf(), String::new())];
        while let Some((folder, prefix)) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
                // A file may be recycled or removed meanwhile.
                let Ok(metadata) = entry.metadata() else { continue };
                if metadata.is_dir() {
                    folders.push((entry.path(), format!("{name}/")));
                } else if metadata.is_file() {
                    let marked =
                        name.strip_prefix("archive_status/").and_then(|it| it.strip_suffix(".ready"));
                    listing.ready.extend(marked.map(str::to_owned));
                    listing.summarised = listing.summarised.max(end_of_summary(&name));
                    listing.files.push(WalFile {
                        name,
                        bytes: metadata.len(),
                        modified: metadata.modified().ok(),
                    });
                }
            }
        }
        Ok(listing)
    }

    /// Queries the files of a server's `pg_wal`, which needs `pg_monitor`.
    ///
    /// # Errors
    /// Errors that the server reports.
    pub fn by_sql(client: &mut Client) -> Result<Listing, QueryError> {
        let mut listing = Listing::default();
        let marks = "SELECT 'archive_status/' || name, size, extract(epoch FROM modification)::bigint FROM pg_ls_archive_statusdir()";
        let files = "SELECT name, size, extract(epoch FROM modification)::bigint FROM pg_ls_waldir()";
        for row in rows(client, files)?.iter().chain(&rows(client, marks)?) {
            let (name, bytes) =
                (row.get(0).unwrap_or_default().to_owned(), row.get(1).and_then(|it| it.parse().ok()));
            let modified =
                row.get(2).and_then(|it| it.parse().ok()).map(|it| UNIX_EPOCH + Duration::from_secs(it));
            let marked = name.strip_prefix("archive_status/").and_then(|it| it.strip_suffix(".ready"));
            listing.ready.extend(marked.map(str::to_owned));
            listing.files.push(WalFile { name, bytes: bytes.unwrap_or_default(), modified });
        }
        // Servers before 17 do not have this function.
        if let Ok(rows) = rows(client, "SELECT summarized_lsn FROM pg_get_wal_summarizer_state()") {
            listing.summarised = rows.first().and_then(|row| row.get(0)?.parse().ok());
        }
        Ok(listing)
    }
}

/// The last failure of the archiver, from `pg_stat_archiver`.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct ArchiverFailures {
    pub failed_count: u64,
    pub last_failed_file: Option<String>,
    pub last_failed_seconds: Option<f64>,
    pub last_archived_file: Option<String>,
    pub last_archived_seconds: Option<f64>,
    /// Whether the last attempt failed.
    #[serde(rename = "failing")]
    pub is_failing: bool,
    /// Whether the server should archive and has no archiver process (15 and later).
    #[serde(rename = "missing")]
    pub is_missing: bool,
}

impl ArchiverFailures {
    /// Queries a server.
    pub fn by_sql(client: &mut Client) -> Option<ArchiverFailures> {
        let query = "SELECT failed_count, last_failed_wal, extract(epoch FROM now() - last_failed_time), last_archived_wal, \
                     extract(epoch FROM now() - last_archived_time), \
                     coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false), \
                     NOT pg_is_in_recovery() AND current_setting('archive_mode') <> 'off' \
                     AND current_setting('server_version_num')::int >= 150000 \
                     AND EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'checkpointer') \
                     AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'archiver') FROM pg_stat_archiver";
        let rows = rows(client, query).ok()?;
        let row = rows.first()?;
        let text = |at: usize| row.get(at).map(str::to_owned);
        let seconds = |at: usize| row.get(at).and_then(|it| it.parse().ok());
        Some(ArchiverFailures {
            failed_count: row.get(0).and_then(|it| it.parse().ok()).unwrap_or_default(),
            last_failed_file: text(1),
            last_failed_seconds: seconds(2),
            last_archived_file: text(3),
            last_archived_seconds: seconds(4),
            is_failing: row.get(5) == Some("t"),
            is_missing: row.get(6) == Some("t"),
        })
    }
}

/// The known state of the WAL and of the server.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The end of WAL.
    pub end: Lsn,
    /// `wal_segment_size`
    pub segment_size: SegmentSize,
    /// The server's state: checkpoint, slots, settings.
    pub server: ServerState,
    /// The content of `pg_stat_archiver`, if the server was queried.
    pub failures: Option<ArchiverFailures>,
    /// Free and total bytes of the disk, if it belongs to this machine.
    pub disk: Option<(u64, u64)>,
    /// The open transaction with the oldest ID, if the server was queried.
    pub oldest_transaction: Option<OpenTransaction>,
}

/// An unfinished transaction that has an ID. Logical decoding keeps the WAL from its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenTransaction {
    /// The session or prepared transaction that holds it open.
    pub owner: TransactionOwner,
    /// ID of the transaction.
    pub xid: u32,
    /// Seconds since it started or was prepared.
    pub seconds: u64,
}

/// The owner of a transaction, which can end it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransactionOwner {
    /// The transaction is prepared under this identifier.
    Prepared(String),
    /// The session of the process with this ID.
    Session(u32),
}

impl OpenTransaction {
    /// Queries the transaction with the oldest ID. A session may have started its transaction long before the
    /// transaction wrote and got an ID.
    pub fn by_sql(client: &mut Client) -> Option<OpenTransaction> {
        let query = "SELECT gid, NULL, extract(epoch FROM now() - prepared)::bigint, transaction AS xid, age(transaction) FROM pg_prepared_xacts \
                     UNION ALL SELECT NULL, pid::text, extract(epoch FROM now() - xact_start)::bigint, backend_xid, age(backend_xid) \
                     FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY 5 DESC LIMIT 1";
        let rows = rows(client, query).ok()?;
        let row = rows.first()?;
        let owner = match row.get(0) {
            Some(prepared) => TransactionOwner::Prepared(prepared.to_owned()),
            None => TransactionOwner::Session(row.get(1)?.parse().ok()?),
        };
        let seconds = row.get(2)?.parse::<i64>().ok()?.max(0).cast_unsigned();
        Some(OpenTransaction { owner, xid: row.get(3)?.parse().ok()?, seconds })
    }
}

/// The kind of a holder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum HolderKind {
    /// WAL from the redo pointer of the last checkpoint to the end, which crash recovery needs.
    Recovery,
    Slot,
    Archiver,
    /// WAL that `summarize_wal` has not summarised yet (17 and later).
    Summarizer,
    WalKeepSize,
    /// No holder: the next checkpoint removes or recycles them.
    Removable,
    /// Files for future segments.
    Recycled,
    /// `.history`, `.backup`, `archive_status`, `.partial` of the current segment, and others.
    Other,
}

/// A holder and the files that it holds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Holder {
    /// Kind of the holder.
    pub kind: HolderKind,
    /// The slot's name, or the kind of other files.
    pub name: String,
    /// Number of files that belong to the holder.
    pub files: u64,
    /// Bytes of the files that belong to the holder. The sum over all holders is the size of the folder.
    pub bytes: u64,
    /// Bytes of all files that the holder keeps, including files that other holders keep too.
    pub holds_bytes: u64,
    /// Bytes that a checkpoint now could remove or recycle if this holder kept no files. For recovery, the
    /// bytes that a checkpoint now could remove or recycle in any case.
    pub releases_bytes: u64,
    /// Seconds since its oldest segment was written.
    pub oldest_seconds: Option<f64>,
    /// The slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// How many more bytes may be written before the server invalidates the slot; if it is 0 or negative, the
    /// next checkpoint does. `None` if `max_slot_wal_keep_size` does not limit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safe_wal_size: Option<i64>,
    /// `idle_replication_slot_timeout` in seconds (18 and later): a checkpoint invalidates a slot that had no
    /// client for this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
}

/// The holders of `pg_wal`, and remedies.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct Retention {
    pub format: &'static str,
    pub format_version: u32,
    /// Bytes of all files.
    pub bytes: u64,
    pub files: u64,
    pub end_lsn: String,
    pub redo_lsn: Option<String>,
    /// Whether the server runs ([`ServerProcess::name`]); `None` if that is not known.
    pub server_state: Option<&'static str>,
    /// The most important information for the user, for example that the server does not run.
    pub warnings: Vec<String>,
    pub holders: Vec<Holder>,
    pub archiver: Option<ArchiverFailures>,
    /// Bytes of WAL written per second in the last minutes. `None` if the folder has no segment that was
    /// completed in that time: on an idle server, on one that has written less than a segment, and if
    /// checkpoints recycle completed segments immediately.
    pub bytes_per_second: Option<f64>,
    /// Whether the folder grows by all new WAL, because a slot or the archiver makes no progress. A slot that
    /// the server invalidates before the disk is full does not count.
    #[serde(rename = "growing")]
    pub is_growing: bool,
    /// Whether the file system has no room for another segment.
    pub disk_is_full: bool,
    pub disk_free_bytes: Option<u64>,
    pub disk_bytes: Option<u64>,
    /// Seconds until the disk is full at the current rate.
    pub disk_full_seconds: Option<f64>,
    /// Possible remedies: first for files without holder, then for the holders, the one furthest behind
    /// first.
    pub remedies: Vec<Remedy>,
    /// How checkpoints recycle files.
    pub recycling: Recycling,
    /// For each logical slot, the WAL that it holds by database.
    pub backlogs: Vec<Backlog>,
}

/// How checkpoints recycle files: they rename old segments to future ones (`XLOGfileslop` and
/// `RemoveXlogFile` in `xlog.c`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Recycling {
    /// `wal_recycle`
    #[serde(rename = "enabled")]
    pub is_on: bool,
    /// `min_wal_size`, up to which files are always kept; `None` if it is not known.
    pub min_bytes: Option<u64>,
    /// `max_wal_size`, up to which files are kept if recent checkpoints were that far apart; `None` if it is
    /// not known.
    pub max_bytes: Option<u64>,
    /// Most bytes of released files that the next checkpoint may recycle.
    pub room_bytes: u64,
}

/// A remedy.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Remedy {
    /// Bytes that the remedy releases if only a checkpoint follows.
    pub releases_bytes: u64,
    /// Bytes that the remedy releases together with all remedies before it. If several holders keep the same
    /// files, the last remedy releases these files.
    pub releases_with_previous_bytes: u64,
    pub text: String,
}

/// The WAL that a logical slot holds, divided by whether its database can need it.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Backlog {
    pub slot: String,
    /// Bytes from its restart position to the end.
    pub bytes: u64,
    /// Bytes of relations of its own database.
    pub own_database_bytes: u64,
    pub other_databases_bytes: u64,
    /// Bytes of commits, checkpoints, page headers, and shared relations.
    pub shared_bytes: u64,
    /// Bytes of tables of its own database that are in no publication, if the server was queried.
    pub unpublished_bytes: Option<u64>,
}

/// A possible holder of segments.
struct Claim {
    kind: HolderKind,
    name: String,
    slot: Option<Slot>,
    /// Keeps segments from this number on; `None` for the archiver, which keeps files that are not archived.
    from: Option<u64>,
}

impl Retention {
    /// Assigns each file to its holder.
    pub fn new(listing: &Listing, situation: &Situation) -> Retention {
        let size = situation.segment_size;
        let current = size.segment_of(Lsn(situation.end.0.saturating_sub(1)));
        let redo = situation.server.checkpoint.map(|(redo, _)| redo);
        let now = SystemTime::now();
        let (holders, releases) = holders(listing, situation, current, now);
        let bytes = listing.files.iter().map(|file| file.bytes).sum();
        let rate = rate(listing, situation, current, now);
        let is_growing = holders.iter().any(|holder| holder.is_growing(situation));
        let disk_full_seconds = match (situation.disk, rate) {
            (Some((free, _)), Some(rate)) if is_growing && rate > 0.0 => Some(free as f64 / rate),
            _ => None,
        };
        Retention {
            format: "walden retention",
            format_version: 1,
            bytes,
            files: listing.files.len() as u64,
            end_lsn: situation.end.to_string(),
            redo_lsn: redo.map(|redo| redo.to_string()),
            server_state: situation.server.process.name(),
            warnings: situation
                .server
                .process
                .stopped_text()
                .into_iter()
                .chain(full_disk_text(situation))
                .collect(),
            remedies: remedies::list(&holders, &releases, listing, situation),
            recycling: recycling::estimate(listing, situation, current),
            holders,
            archiver: situation.failures.clone(),
            bytes_per_second: rate,
            is_growing,
            disk_is_full: situation.has_full_disk(),
            disk_free_bytes: situation.disk.map(|(free, _)| free),
            disk_bytes: situation.disk.map(|(_, all)| all),
            disk_full_seconds,
            backlogs: Vec::new(),
        }
    }
}

impl Situation {
    /// Returns whether the file system has no room for another segment.
    fn has_full_disk(&self) -> bool {
        self.disk.is_some_and(|(free, _)| free < self.segment_size.bytes())
    }

    /// Returns whether the client of a slot is connected, behind, and does not report its position.
    fn is_silent(&self, slot: &Slot) -> bool {
        let segment = |lsn| self.segment_size.segment_of(lsn);
        let is_behind = slot.restart_lsn.is_some_and(|restart| segment(restart) < segment(self.end));
        let is_late = slot.silent_seconds.is_some_and(|seconds| seconds > MAX_SILENCE_SECONDS);
        is_behind && is_late && slot.active == Some(true)
    }

    /// Returns the transaction for which a logical slot waits: its client has confirmed later segments than
    /// the segment that the slot still needs. Without a client, the transaction must have been open when the
    /// slot was last used: later transactions do not keep the slot's position.
    fn transaction_of(&self, slot: &Slot) -> Option<&OpenTransaction> {
        let segment = |lsn: Option<Lsn>| lsn.map(|lsn| self.segment_size.segment_of(lsn));
        let is_held_back = slot.is_logical && segment(slot.restart_lsn)? < segment(slot.confirmed_flush_lsn)?;
        let idle = slot.idle_seconds.filter(|_| slot.active == Some(false)).unwrap_or(0);
        let waits_for = |open: &&OpenTransaction| {
            slot.catalog_xmin == Some(open.xid) || open.seconds >= MIN_OPEN_SECONDS.max(idle)
        };
        self.oldest_transaction.as_ref().filter(|open| is_held_back && waits_for(open))
    }

    /// Returns whether no archive command is set, so that files wait although the server never tries to
    /// archive them and counts no failure.
    fn is_archiving_unset(&self) -> bool {
        let is_empty = |name: &str| {
            self.server.settings.get(name).is_some_and(|value| matches!(value, "" | "(disabled)"))
        };
        is_empty("archive_command") && is_empty("archive_library")
    }

    /// Returns whether the archiver fails or hangs. `is_old` is set if a segment has waited for long.
    fn is_archiver_stuck(&self, is_old: bool) -> bool {
        let Some(failures) = &self.failures else { return is_old };
        let has_just_archived =
            failures.last_archived_seconds.is_some_and(|seconds| seconds < MAX_AGE.as_secs_f64());
        failures.is_failing || failures.is_missing || (is_old && !has_just_archived)
    }

    /// Returns whether a file that is not archived is kept: not if `archive_mode` is off, nor on a standby
    /// unless it is `always` (`XLogArchiveCheckDone` in `xlogarchive.c`).
    fn is_archiving(&self) -> bool {
        match self.server.settings.get("archive_mode") {
            None | Some("always") => true,
            Some("off" | "false" | "no" | "0") => false,
            Some(_) => !self.server.is_standby,
        }
    }
}

/// Returns the warning before all remedies on a full disk: a stopped server cannot start there.
fn full_disk_text(situation: &Situation) -> Option<String> {
    let (free, _) = situation.disk.filter(|_| situation.has_full_disk())?;
    let effect = match situation.server.process {
        ServerProcess::ShutDown | ServerProcess::Crashed => "the server cannot start until it has room",
        _ => "the server stops at the next segment",
    };
    Some(format!(
        "the file system of pg_wal has {free} bytes free and needs {} for a segment, so {effect}. Make room first: enlarge the file system, \
         remove other files from it, or move pg_wal to another one while the server is stopped and put a symbolic link in its place. Do not \
         remove segments by hand",
        situation.segment_size.bytes()
    ))
}

/// The bytes that become free once a holder and all holders before it in the list are removed.
struct Release {
    kind: HolderKind,
    name: String,
    bytes: u64,
}

/// Returns the holders with their files, and the bytes that become free as they are removed one after
/// another.
fn holders(
    listing: &Listing,
    situation: &Situation,
    current: u64,
    now: SystemTime,
) -> (Vec<Holder>, Vec<Release>) {
    let size = situation.segment_size;
    let claims = claims(listing, situation, current);
    let mut holders: Vec<Holder> = claims.iter().map(|claim| Holder::from_claim(claim, situation)).collect();
    let mut held = Vec::new();
    let mut others: BTreeMap<(HolderKind, &str), Holder> = BTreeMap::new();
    for file in &listing.files {
        let segment = match file.name.strip_suffix(".partial") {
            Some(name) => number_of_partial(name, size).filter(|number| *number <= current),
            None => SegmentName::parse(&file.name).and_then(|name| name.number(size)),
        };
        let is_held = |claim: &Claim, number: u64| match claim.from {
            Some(from) => number >= from,
            None => listing.ready.contains(&file.name),
        };
        let holding: Vec<usize> = match segment {
            Some(number) if number <= current => {
                (0..claims.len()).filter(|index| is_held(&claims[*index], number)).collect()
            }
            _ => Vec::new(),
        };
        if let [first, rest @ ..] = holding.as_slice() {
            holders[*first].own(file, now);
            rest.iter().for_each(|index| holders[*index].holds_bytes += file.bytes);
            let is_of_recovery = claims[*first].kind == HolderKind::Recovery;
            // A checkpoint now moves the redo pointer to the current segment. On a standby, the remedy also
            // makes one on the primary.
            let can_go = !is_of_recovery || segment < Some(current);
            let keepers = if is_of_recovery { rest } else { holding.as_slice() };
            match (segment.filter(|_| can_go), keepers) {
                (Some(_), []) => holders[*first].releases_bytes += file.bytes,
                (Some(number), keepers) => {
                    if let [only] = keepers {
                        holders[*only].releases_bytes += file.bytes;
                    }
                    held.push(HeldFile { number, bytes: file.bytes, holders: keepers.to_vec() });
                }
                (None, _) => {}
            }
            continue;
        }
        let (kind, name) = match segment {
            None => (HolderKind::Other, other_name(&file.name)),
            Some(number) if number > current => (HolderKind::Recycled, ""),
            Some(_) => (HolderKind::Removable, ""),
        };
        others.entry((kind, name)).or_insert_with(|| Holder::new(kind, name)).own(file, now);
    }
    holders.extend(others.into_values());
    let is_free = |holder: &&mut Holder| holder.kind == HolderKind::Removable || holder.name == PREFETCHED;
    holders.iter_mut().filter(is_free).for_each(|holder| holder.releases_bytes = holder.bytes);
    holders.retain(|holder| holder.files > 0 || holder.holds_bytes > 0 || holder.kind == HolderKind::Slot);
    (holders, releases(&claims, &held))
}

/// Returns the number of the segment with which a checkpoint removes a `.partial` file: the segment after the
/// file's own. `RemoveOldXlogFiles` compares names, and `.partial` makes the name greater than the name of
/// the segment.
fn number_of_partial(name: &str, size: SegmentSize) -> Option<u64> {
    SegmentName::parse(name)?.number(size)?.checked_add(1)
}

/// A segment that recovery would not need after a checkpoint now, and the claims that keep it.
struct HeldFile {
    number: u64,
    bytes: u64,
    holders: Vec<usize>,
}

/// Returns the bytes that become free as the holders are removed one after another, starting with the one
/// furthest behind. In any other order, the first steps free nothing, because an older holder still keeps all
/// files.
fn releases(claims: &[Claim], held: &[HeldFile]) -> Vec<Release> {
    let mut oldest: BTreeMap<usize, u64> = BTreeMap::new();
    for file in held {
        for index in &file.holders {
            let number = oldest.entry(*index).or_insert(file.number);
            *number = file.number.min(*number);
        }
    }
    let mut order: Vec<usize> = oldest.keys().copied().collect();
    order.sort_by_key(|index| oldest[index]);
    let mut gone = HashSet::new();
    let step = |index: usize| {
        gone.insert(index);
        let is_free = |file: &&HeldFile| file.holders.iter().all(|holder| gone.contains(holder));
        let bytes = held.iter().filter(is_free).map(|file| file.bytes).sum();
        Release { kind: claims[index].kind, name: claims[index].name.clone(), bytes }
    };
    order.into_iter().map(step).collect()
}

/// Returns how many more bytes may be written before the server invalidates a slot, as
/// `pg_get_replication_slots` computes `safe_wal_size`. If it is 0 or negative, the next checkpoint does.
/// `None` if the slot's WAL is not limited.
fn safe_wal_size(slot: &Slot, situation: &Situation) -> Option<i64> {
    let (size, settings) = (situation.segment_size, &situation.server.settings);
    let segments = |name| settings.bytes(name).map(|bytes| bytes / size.bytes());
    let limit = segments("max_slot_wal_keep_size")?.max(segments("wal_keep_size").unwrap_or(0));
    let lost_in = size.segment_of(slot.restart_lsn?).checked_add(limit)?.checked_add(1)?;
    let lost_at = i128::from(lost_in) * i128::from(size.bytes());
    i64::try_from(lost_at - i128::from(situation.end.0)).ok()
}

impl Holder {
    /// Returns whether the holder is a slot that the server invalidates before its WAL fills the disk.
    pub fn is_limited(&self, disk_free: Option<u64>) -> bool {
        // If it is 0 or negative, only the WAL until the next checkpoint is still kept.
        let left = self.safe_wal_size.map(|left| u64::try_from(left).unwrap_or(0));
        left.is_some_and(|left| disk_free.is_none_or(|free| left < free))
    }

    /// Returns whether its files grow with the WAL: an unused slot, a failing archiver, a stuck summarizer.
    fn is_growing(&self, situation: &Situation) -> bool {
        let is_old = self.oldest_seconds.is_some_and(|age| age > MAX_AGE.as_secs_f64());
        match (self.kind, &self.slot) {
            (HolderKind::Slot, Some(slot)) => {
                let is_behind = self.holds_bytes + self.bytes > 0;
                let is_limited = self.is_limited(situation.disk.map(|(free, _)| free));
                // The server does not show whether a synchronized slot has a client on the primary.
                let is_stuck = match slot.is_synced {
                    true => is_old,
                    false => {
                        slot.active == Some(false)
                            || situation.is_silent(slot)
                            || situation.transaction_of(slot).is_some()
                    }
                };
                is_behind && !is_limited && is_stuck
            }
            (HolderKind::Archiver, _) => {
                situation.is_archiving_unset() || situation.is_archiver_stuck(is_old)
            }
            (HolderKind::Summarizer, _) => is_old,
            _ => false,
        }
    }

    fn new(kind: HolderKind, name: &str) -> Holder {
        Holder {
            kind,
            name: name.to_owned(),
            files: 0,
            bytes: 0,
            holds_bytes: 0,
            releases_bytes: 0,
            oldest_seconds: None,
            slot: None,
            safe_wal_size: None,
            idle_timeout_seconds: None,
        }
    }

    fn from_claim(claim: &Claim, situation: &Situation) -> Holder {
        Holder {
            slot: claim.slot.clone(),
            safe_wal_size: claim.slot.as_ref().and_then(|slot| safe_wal_size(slot, situation)),
            idle_timeout_seconds: claim.slot.as_ref().and_then(|_| {
                situation
                    .server
                    .settings
                    .seconds("idle_replication_slot_timeout")
                    .filter(|seconds| *seconds > 0)
            }),
            ..Holder::new(claim.kind, &claim.name)
        }
    }

    fn own(&mut self, file: &WalFile, now: SystemTime) {
        self.files += 1;
        self.bytes += file.bytes;
        self.holds_bytes += file.bytes;
        let age = file.modified.and_then(|modified| now.duration_since(modified).ok());
        let age = age.map(|age| age.as_secs_f64());
        self.oldest_seconds = [self.oldest_seconds, age].into_iter().flatten().reduce(f64::max);
    }
}

/// Returns the possible holders of segments. A segment with several holders belongs to the first holder.
fn claims(listing: &Listing, situation: &Situation, current: u64) -> Vec<Claim> {
    let size = situation.segment_size;
    let settings = &situation.server.settings;
    let claim = |kind, from| Claim { kind, name: String::new(), slot: None, from };
    let redo = situation.server.checkpoint.map(|(redo, _)| size.segment_of(redo)).unwrap_or(current);
    let mut claims = vec![claim(HolderKind::Recovery, Some(redo.min(current)))];
    let mut slots: Vec<&Slot> = situation.server.slots.iter().collect();
    slots.sort_by_key(|slot| slot.restart_lsn.map_or(u64::MAX, |lsn| lsn.0));
    // `max_slot_wal_keep_size` limits the WAL of slots, in whole segments.
    let max = settings.bytes("max_slot_wal_keep_size").map(|bytes| bytes / size.bytes());
    let limit = max.map_or(0, |segments| current.saturating_sub(segments));
    for slot in slots {
        let from = slot.restart_lsn.map_or(u64::MAX, |lsn| size.segment_of(lsn).max(limit));
        claims.push(Claim {
            kind: HolderKind::Slot,
            name: slot.name.clone(),
            slot: Some(slot.clone()),
            from: Some(from),
        });
    }
    if situation.is_archiving() {
        claims.push(claim(HolderKind::Archiver, None));
    }
    let is_summarised =
        settings.get("summarize_wal").is_some_and(|value| matches!(value, "on" | "true" | "yes" | "1"));
    // A summary ends at a redo pointer. At the last redo pointer, the summarizer has read all WAL that it
    // can, and keeps only WAL that recovery keeps too.
    let summarised = listing.summarised.map(|end| size.segment_of(end)).filter(|from| *from < redo);
    if let Some(from) = summarised.filter(|_| is_summarised) {
        claims.push(claim(HolderKind::Summarizer, Some(from)));
    }
    let keep = settings.bytes("wal_keep_size").map_or(0, |bytes| bytes / size.bytes());
    if keep > 0 {
        claims.push(claim(HolderKind::WalKeepSize, Some(current.saturating_sub(keep).max(1))));
    }
    claims
}

/// Returns the end of a summary's WAL from its name, which consists of timeline, start and end
/// (`GetWalSummaries`).
fn end_of_summary(name: &str) -> Option<Lsn> {
    let digits = name.strip_prefix("summaries/")?.strip_suffix(".summary")?;
    let is_whole = digits.len() == 40 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_whole { u64::from_str_radix(&digits[24..], 16).ok().map(Lsn) } else { None }
}

/// Files in a folder that `walden archive get` fills during recovery. The folder stays if a standby then
/// streams.
const PREFETCHED: &str = "segments that walden archive get has fetched ahead";

/// Returns the kind of a file that is not a segment.
fn other_name(name: &str) -> &'static str {
    match name {
        _ if name.starts_with("archive_status/") => "archive_status",
        _ if name.starts_with("summaries/") => "summaries",
        _ if name.ends_with(".history") => "timeline histories",
        _ if name.ends_with(".backup") => "backup histories",
        _ if name.ends_with(".partial") => "partial segments",
        // `XLogFileInitInternal` and `RestoreArchivedFile` create these, and rename them when they are
        // complete.
        _ if name.starts_with("xlogtemp.") => "segments that are being created",
        "RECOVERYXLOG" | "RECOVERYHISTORY" => "files that are being restored",
        // walden-archive defines the prefixes (`restore/prefetch/spool.rs`, `ingest/push/ahead.rs`).
        _ if name.starts_with("walden-prefetch-") => PREFETCHED,
        _ if name.starts_with("walden-ahead-") => "notes of walden archive push",
        // RestoreArchivedFile asks for these names; `pending.rs` of walden-archive adds the dot and the
        // ending.
        _ if name.starts_with(".RECOVERY") && name.ends_with(".tmp") => "files that are being restored",
        _ => "files that are not PostgreSQL's",
    }
}

/// Returns how fast WAL grows, from the times at which the last segments were completed. The current segment
/// does not count: its modification time is the time of the last write, and the time at which it was started
/// is not known.
fn rate(listing: &Listing, situation: &Situation, current: u64, now: SystemTime) -> Option<f64> {
    let size = situation.segment_size;
    let age = |file: &WalFile| now.duration_since(file.modified?).ok();
    let finished = listing.files.iter().filter_map(|file| {
        let number = SegmentName::parse(&file.name)?.number(size).filter(|number| *number < current)?;
        Some((age(file).filter(|age| *age <= RATE_SPAN)?, number))
    });
    let (age, number) = finished.max()?;
    let bytes = situation.end.0.saturating_sub(size.start_of(number + 1).0);
    Some(bytes as f64 / age.as_secs_f64().max(1.0))
}

/// Returns free and total bytes of the disk of a folder.
pub fn disk_of(folder: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some((stat.f_bavail.checked_mul(stat.f_frsize)?, stat.f_blocks.checked_mul(stat.f_frsize)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_known_once_a_segment_was_finished() {
        let segment = SegmentSize::DEFAULT.bytes();
        let situation = Situation {
            end: Lsn(5 * segment + 1000),
            segment_size: SegmentSize::DEFAULT,
            server: ServerState::default(),
            failures: None,
            disk: None,
            oldest_transaction: None,
        };
        let rate = |files: &[(&str, u64)]| {
            let files = files.iter().map(|(name, age)| WalFile {
                name: (*name).to_owned(),
                bytes: segment,
                modified: SystemTime::now().checked_sub(Duration::from_secs(*age)),
            });
            let listing = Listing { files: files.collect(), ..Listing::default() };
            Retention::new(&listing, &situation).bytes_per_second
        };
        let (finished, current) = ("000000010000000000000004", "000000010000000000000005");
        assert_eq!(rate(&[(current, 1)]), None);
        assert_eq!(rate(&[(finished, 700), (current, 1)]), None);
        let found = rate(&[(finished, 100), (current, 1)]).unwrap();
        assert!((found - 10.0).abs() < 0.5, "{found}");
    }

    /// A server that has written segments 1 to 9.
    fn situation(server: ServerState) -> Situation {
        let segment_size = SegmentSize::DEFAULT;
        let end = segment_size.start_of(10);
        Situation { end, segment_size, server, failures: None, disk: None, oldest_transaction: None }
    }

    /// Segments 1 to 9, each written this many seconds before the next one.
    fn segments(seconds: u64) -> Vec<WalFile> {
        let file = |number| WalFile {
            name: SegmentName::new(1, number, SegmentSize::DEFAULT).to_string(),
            bytes: SegmentSize::DEFAULT.bytes(),
            modified: SystemTime::now().checked_sub(Duration::from_secs(seconds * (10 - number))),
        };
        (1..10).map(file).collect()
    }

    /// Segments 1 to 9, where recovery needs the last two. Each was written 50 s before the next one.
    fn retention(settings: &[(&str, &str)], ready: &[&str], summarised: Option<Lsn>) -> Retention {
        let size = SegmentSize::DEFAULT;
        let at = |number: u64| Lsn(number * size.bytes());
        let mut server = ServerState { checkpoint: Some((at(8), 0)), ..ServerState::default() };
        assert!(settings.iter().all(|(name, value)| server.settings.set(name, value)));
        let situation = situation(server);
        let files = segments(50);
        let ready = ready.iter().map(|name| (*name).to_owned()).collect();
        Retention::new(&Listing { files, ready, summarised }, &situation)
    }

    /// As [`retention`], with inactive slots at the starts of segments and a disk with `free` bytes.
    fn with_slots(settings: &[(&str, &str)], slots: &[(&str, u64)], free: u64) -> Retention {
        let size = SegmentSize::DEFAULT;
        let at = |number: u64| Lsn(number * size.bytes());
        let mut server = ServerState { checkpoint: Some((at(8), 0)), ..ServerState::default() };
        assert!(settings.iter().all(|(name, value)| server.settings.set(name, value)));
        server.slots.extend(slots.iter().map(|(name, number)| Slot {
            name: (*name).to_owned(),
            active: Some(false),
            restart_lsn: Some(at(*number)),
            ..Slot::default()
        }));
        let disk = Some((free, 1 << 40));
        let situation = Situation { disk, ..situation(server) };
        let files = segments(50);
        Retention::new(&Listing { files, ..Listing::default() }, &situation)
    }

    #[test]
    fn a_slot_that_is_given_up_does_not_fill_the_disk() {
        let segment = SegmentSize::DEFAULT.bytes();
        let slot = |retention: &Retention| {
            let slot = retention.holders.iter().find(|holder| holder.kind == HolderKind::Slot);
            slot.unwrap().safe_wal_size
        };
        let unlimited = with_slots(&[], &[("a", 6)], 1 << 30);
        assert!(unlimited.is_growing && unlimited.disk_full_seconds.is_some());
        assert_eq!(slot(&unlimited), None);
        // Segment 6 is lost once segment 11 is started, and WAL ends where segment 10 starts.
        let limited = with_slots(&[("max_slot_wal_keep_size", "64MB")], &[("a", 6)], 1 << 30);
        assert_eq!((limited.is_growing, limited.disk_full_seconds), (false, None));
        assert_eq!(slot(&limited), Some(segment as i64));
        // The WAL that the slot may keep does not fit on the disk.
        let on_a_small_disk = with_slots(&[("max_slot_wal_keep_size", "64MB")], &[("a", 6)], segment / 2);
        assert!(on_a_small_disk.is_growing);
        let unreserved = with_slots(&[("max_slot_wal_keep_size", "32MB")], &[("a", 6)], 1 << 30);
        assert_eq!((slot(&unreserved), unreserved.is_growing), (Some(-(segment as i64)), false));
        let settings = [("max_slot_wal_keep_size", "32MB"), ("wal_keep_size", "96MB")];
        assert_eq!(slot(&with_slots(&settings, &[("a", 6)], 1 << 30)), Some(3 * segment as i64));
    }

    #[test]
    fn a_full_disk_comes_before_all_remedies() {
        let segment = SegmentSize::DEFAULT.bytes();
        let enough = with_slots(&[], &[], segment);
        assert!(!enough.disk_is_full && enough.warnings.is_empty(), "{:?}", enough.warnings);
        let full = with_slots(&[], &[], segment - 1);
        assert!(full.disk_is_full);
        assert!(full.warnings[0].contains("Make room first"), "{:?}", full.warnings);
    }

    #[test]
    fn remedies_say_what_they_release_together() {
        let segment = SegmentSize::DEFAULT.bytes();
        let found = with_slots(&[("wal_keep_size", "48MB")], &[("b", 3), ("a", 3)], 1 << 30);
        let of = |remedy: &Remedy| {
            (remedy.releases_bytes / segment, remedy.releases_with_previous_bytes / segment)
        };
        // Segments 1 and 2 are removable, both slots hold 3 to 8, and `wal_keep_size` 6 to 8 as well.
        assert_eq!(found.remedies.iter().map(of).collect::<Vec<_>>(), [(2, 2), (0, 2), (0, 5), (0, 8)]);
        assert!(found.remedies[3].text.contains("wal_keep_size"), "{:?}", found.remedies);
        // So far it holds only the current segment. A checkpoint now releases segment 8, which recovery needs
        // until then.
        let young = with_slots(&[], &[("a", 9)], 1 << 30);
        assert_eq!(young.remedies.iter().map(of).collect::<Vec<_>>(), [(8, 8), (0, 8)]);
        assert!(young.is_growing);
    }

    #[test]
    fn a_server_that_does_not_run_is_started_first() {
        let size = SegmentSize::DEFAULT;
        let at = |number: u64| Lsn(number * size.bytes());
        let of = |process: ServerProcess| {
            let mut server = ServerState { checkpoint: Some((at(8), 0)), process, ..ServerState::default() };
            assert!(server.settings.set("wal_keep_size", "48MB"));
            let slot = Slot { name: "a".to_owned(), restart_lsn: Some(at(3)), ..Slot::default() };
            server.slots.push(slot);
            let situation = situation(server);
            let files = (1..10).map(|number| WalFile {
                name: SegmentName::new(1, number, size).to_string(),
                bytes: size.bytes(),
                modified: None,
            });
            Retention::new(&Listing { files: files.collect(), ..Listing::default() }, &situation)
        };
        for process in [ServerProcess::Unknown, ServerProcess::Running] {
            let found = of(process);
            assert!(found.warnings.is_empty(), "{:?}", found.warnings);
            assert!(
                found.remedies.iter().all(|remedy| !remedy.text.contains("start")),
                "{:?}",
                found.remedies
            );
        }
        for process in [ServerProcess::ShutDown, ServerProcess::Crashed, ServerProcess::ProcessMissing(4711)]
        {
            let found = of(process);
            assert_eq!((found.server_state, found.warnings.len()), (process.name(), 1));
            assert_eq!(found.remedies.len(), 3);
            let is_after_start = |remedy: &Remedy| remedy.text.contains("after its start");
            assert!(found.remedies.iter().all(is_after_start), "{:?}", found.remedies);
        }
        let crashed = of(ServerProcess::Crashed);
        assert!(
            crashed.remedies.iter().all(|remedy| !remedy.text.contains("reload")),
            "{:?}",
            crashed.remedies
        );
    }

    /// A slot at segment 3 of a server that answers, and the transaction that has been open for longest.
    fn with_client(slot: Slot, oldest_transaction: Option<OpenTransaction>) -> Retention {
        let size = SegmentSize::DEFAULT;
        let at = |number: u64| Lsn(number * size.bytes());
        let server =
            ServerState { checkpoint: Some((at(8), 0)), slots: vec![slot], ..ServerState::default() };
        let situation = Situation { oldest_transaction, ..situation(server) };
        let files = segments(1);
        Retention::new(&Listing { files, ..Listing::default() }, &situation)
    }

    #[test]
    fn a_client_that_is_silent_or_waits_for_a_transaction_does_not_get_on() {
        let at = |number: u64| Some(Lsn(number * SegmentSize::DEFAULT.bytes()));
        let of_client = |silent| Slot {
            name: "a".to_owned(),
            active: Some(true),
            restart_lsn: at(3),
            silent_seconds: Some(silent),
            ..Slot::default()
        };
        let (heard, silent) = (with_client(of_client(1), None), with_client(of_client(60), None));
        assert_eq!((heard.is_growing, silent.is_growing), (false, true));
        assert!(silent.remedies[1].text.contains("does not report a position"), "{:?}", silent.remedies);
        let logical = || Slot { is_logical: true, confirmed_flush_lsn: at(9), ..of_client(1) };
        let open = |seconds| OpenTransaction {
            owner: TransactionOwner::Prepared("it's".to_owned()),
            xid: 731,
            seconds,
        };
        let inexact =
            OpenTransaction { owner: TransactionOwner::Prepared("\u{FFFD}".to_owned()), ..open(600) };
        let held = with_client(logical(), Some(open(600)));
        assert!(held.is_growing);
        assert!(held.remedies[1].text.contains("ROLLBACK PREPARED 'it''s'"), "{:?}", held.remedies);
        let held = with_client(logical(), Some(inexact));
        assert!(!held.remedies[1].text.contains("PREPARED"), "{:?}", held.remedies);
        assert!(!with_client(logical(), Some(open(1))).is_growing);
        let physical = Slot { is_logical: false, ..logical() };
        assert!(!with_client(physical, Some(open(600))).is_growing);
    }

    /// A consumer that polls, for example with `pg_logical_slot_get_changes`, is not connected in between.
    #[test]
    fn a_transaction_holds_back_a_slot_without_a_client_too() {
        let at = |number: u64| Some(Lsn(number * SegmentSize::DEFAULT.bytes()));
        let polled = |confirmed, idle, catalog_xmin| Slot {
            name: "a".to_owned(),
            is_logical: true,
            active: Some(false),
            restart_lsn: at(3),
            confirmed_flush_lsn: at(confirmed),
            idle_seconds: Some(idle),
            catalog_xmin,
            ..Slot::default()
        };
        let open = |seconds| OpenTransaction { owner: TransactionOwner::Session(4711), xid: 731, seconds };
        let remedy = |slot: &Slot, seconds| {
            with_client(slot.clone(), Some(open(seconds))).remedies.swap_remove(1).text
        };
        let text = remedy(&polled(9, 5, Some(700)), 600);
        assert!(text.starts_with("end the transaction of process 4711"), "{text}");
        assert!(text.contains("let the client of slot a come back and confirm"), "{text}");
        // The client has met it: it is the oldest transaction that the slot still knows.
        let text = remedy(&polled(9, 5, Some(731)), 2);
        assert!(text.starts_with("end the transaction of process 4711"), "{text}");
        // The transaction started after the client left, is too young to tell, or keeps nothing.
        for (slot, seconds) in
            [(polled(9, 3600, Some(700)), 600), (polled(9, 0, Some(700)), 2), (polled(3, 5, Some(731)), 600)]
        {
            let text = remedy(&slot, seconds);
            assert!(text.starts_with("let the client of slot a come back, or drop it"), "{text}");
        }
    }

    /// `RemoveOldXlogFiles` removes them like segments, but compares their whole names.
    #[test]
    fn partial_segments_are_held_like_segments() {
        let segment = SegmentSize::DEFAULT.bytes();
        let redo = Lsn(8 * segment);
        let holder_of = |number: u64, settings: &[(&str, &str)], ready: bool| {
            let mut server = ServerState { checkpoint: Some((redo, 0)), ..ServerState::default() };
            assert!(settings.iter().all(|(name, value)| server.settings.set(name, value)));
            let name = format!("{}.partial", SegmentName::new(1, number, SegmentSize::DEFAULT));
            let ready = ready.then(|| name.clone()).into_iter().collect();
            let files = vec![WalFile { name, bytes: segment, modified: None }];
            let found = Retention::new(&Listing { files, ready, ..Listing::default() }, &situation(server));
            let holder = found.holders.iter().find(|holder| holder.files == 1).unwrap();
            let remedies: u64 = found.remedies.iter().map(|remedy| remedy.releases_bytes).sum();
            assert_eq!(remedies, holder.releases_bytes, "{:?}", found.remedies);
            (holder.kind, holder.releases_bytes / segment)
        };
        assert_eq!(holder_of(6, &[], false), (HolderKind::Removable, 1));
        // The checkpoint at segment 8 has left this one, and the next one, in segment 9, removes it.
        assert_eq!(holder_of(7, &[], false), (HolderKind::Recovery, 1));
        assert_eq!(holder_of(8, &[], false), (HolderKind::Recovery, 0));
        assert_eq!(holder_of(9, &[], false), (HolderKind::Other, 0));
        assert_eq!(holder_of(4, &[("wal_keep_size", "96MB")], false), (HolderKind::WalKeepSize, 1));
        assert_eq!(holder_of(4, &[("wal_keep_size", "64MB")], false), (HolderKind::WalKeepSize, 1));
        assert_eq!(holder_of(3, &[("wal_keep_size", "64MB")], false), (HolderKind::Removable, 1));
        assert_eq!(holder_of(3, &[], true), (HolderKind::Archiver, 1));
    }

    #[test]
    fn files_that_wait_for_an_archiver_without_a_command_grow() {
        let ready = ["000000010000000000000007"];
        let unset = retention(&[("archive_mode", "on"), ("archive_command", "")], &ready, None);
        assert!(!unset.is_growing, "archive_library is not known");
        let settings = [("archive_mode", "on"), ("archive_command", ""), ("archive_library", "")];
        let unset = retention(&settings, &ready, None);
        assert!(unset.is_growing);
        assert!(unset.remedies.iter().any(|remedy| remedy.text.contains("both are empty")));
        // Its `.ready` files keep nothing.
        let off = retention(&[("archive_mode", "off")], &ready, None);
        assert_eq!((segments_of(&off, HolderKind::Archiver), off.is_growing), (0, false));
    }

    #[test]
    fn a_checkpoint_recycles_up_to_max_wal_size() {
        let segment = SegmentSize::DEFAULT.bytes();
        let room = |settings: &[(&str, &str)]| retention(settings, &[], None).recycling.room_bytes / segment;
        assert_eq!(room(&[]), 0);
        assert_eq!(room(&[("max_wal_size", "160MB")]), 9);
        assert_eq!(room(&[("max_wal_size", "160MB"), ("wal_recycle", "off")]), 0);
    }

    fn segments_of(retention: &Retention, kind: HolderKind) -> u64 {
        retention.holders.iter().filter(|holder| holder.kind == kind).map(|holder| holder.files).sum()
    }

    #[test]
    fn files_of_walden_are_named_so() {
        let ahead = "segments that walden archive get has fetched ahead";
        for name in ["position", "lock", "000000010000000000000007", ".000000010000000000000007.tmp"] {
            assert_eq!(other_name(&format!("walden-prefetch-4a5646968e75afe9/{name}")), ahead);
        }
        assert_eq!(other_name("walden-ahead-4a5646968e75afe9"), "notes of walden archive push");
    }

    #[test]
    fn a_folder_of_prefetched_segments_can_be_removed() {
        let size = SegmentSize::DEFAULT;
        let prefetched = |name: &str, bytes| WalFile {
            name: format!("walden-prefetch-4a56/{name}"),
            bytes,
            modified: None,
        };
        let with = |file: WalFile| {
            let files = vec![file, prefetched("lock", 0)];
            let remedies =
                Retention::new(&Listing { files, ..Listing::default() }, &situation(ServerState::default()))
                    .remedies;
            remedies.into_iter().find(|remedy| remedy.text.contains("rm -r"))
        };
        let found = with(prefetched("000000010000000000000003", size.bytes())).unwrap();
        assert_eq!(found.releases_bytes, size.bytes());
        assert!(found.text.contains("remove walden-prefetch-4a56 in pg_wal (rm -r)"), "{}", found.text);
        assert_eq!(with(prefetched("position", 24)), None);
    }

    #[test]
    fn files_that_postgresql_is_making_are_its_own() {
        assert_eq!(other_name("xlogtemp.4711"), "segments that are being created");
        assert_eq!(other_name("RECOVERYXLOG"), "files that are being restored");
        assert_eq!(other_name("RECOVERYHISTORY"), "files that are being restored");
        assert_eq!(other_name("00000002.history"), "timeline histories");
        assert_eq!(other_name(".RECOVERYXLOG.tmp"), "files that are being restored");
        assert_eq!(other_name("notes.txt"), "files that are not PostgreSQL's");
    }

    #[test]
    fn an_archiver_that_gets_on_is_no_alarm() {
        let young = retention(&[], &["000000010000000000000007"], None);
        assert_eq!((segments_of(&young, HolderKind::Archiver), young.is_growing), (1, false));
        let old = retention(&[], &["000000010000000000000003"], None);
        assert!(old.is_growing);
    }

    #[test]
    fn what_is_not_summarised_is_kept() {
        let name = "summaries/000000010000000002000028000000000500A0B8.summary";
        let end = end_of_summary(name);
        assert_eq!(end, Some(Lsn(0x500_A0B8)));
        assert_eq!(end_of_summary("summaries/temp.summary"), None);
        let on = retention(&[("summarize_wal", "on")], &[], end);
        assert_eq!(
            (segments_of(&on, HolderKind::Summarizer), segments_of(&on, HolderKind::Removable)),
            (3, 4)
        );
        assert!(!on.is_growing);
        let stuck = retention(&[("summarize_wal", "on")], &[], Some(Lsn(0)));
        assert!(stuck.is_growing && segments_of(&stuck, HolderKind::Removable) == 0);
        assert!(stuck.remedies[0].text.contains("summarizer"), "{:?}", stuck.remedies);
        assert!(stuck.remedies[0].text.contains("summarize_wal = off"), "{:?}", stuck.remedies);
        // It cannot be further than the last redo pointer, and is not a holder there.
        let redo = Some(Lsn(8 * SegmentSize::DEFAULT.bytes()));
        let done = retention(&[("summarize_wal", "on")], &[], redo);
        assert_eq!(segments_of(&done, HolderKind::Removable), 7);
        assert!(done.holders.iter().all(|holder| holder.kind != HolderKind::Summarizer));
        assert!(done.remedies.iter().all(|remedy| !remedy.text.contains("summarize")), "{:?}", done.remedies);
        assert!(on.remedies.iter().all(|remedy| !remedy.text.contains("off")), "{:?}", on.remedies);
        let off = retention(&[], &[], end);
        assert_eq!(segments_of(&off, HolderKind::Removable), 7);
    }
}
