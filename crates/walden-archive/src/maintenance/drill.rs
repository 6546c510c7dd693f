//! Tests a restore: a server recovers from a copy of a base backup and the archive, and its data are checked.
//!
//! The drill uses only a copy of the original's files. It does not use the original's configuration, its
//! connections, or the paths of its tablespaces, including those that the WAL creates (`redirect`). The
//! server listens only on a socket in a temporary folder and archives nothing. The folder is removed at the
//! end, even if this process is interrupted or killed.

mod checks;
mod copy;
mod error;
mod extent;
mod forward;
mod redirect;
mod server;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use walden_format::lsn::{SegmentName, Timeline};
use walden_recover::StreamedBackup;
use walden_server::folder;
use walden_server::guard::Guard;
use walden_server::programs::{Version, installed_bin_dirs, program_version};
use walden_server::signals::wait_for_exit_if_interrupted;
use walden_source::datadir::DataDir;

pub use checks::{Amcheck, CheckedData, LockedTable, PreparedTransaction, QueryResult};
pub use error::DrillError;
pub use extent::UnreadPartial;
pub use forward::{RollForward, RolledForward};
pub use redirect::{RedirectFileError, RedirectedTablespace, redirect_file};
pub use server::expect_allowed_settings;

use self::error::{Context as _, Result};
use crate::archive::Archive;
use crate::inspect::list::{self, ListOptions, Listing};
use crate::restore::base::{self, BackupStart};
use crate::restore::log::Log;
use crate::restore::recovery::{self, RecoveryError, RecoveryStart};

/// Where recovery stops.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The end of the WAL.
    End,
    /// A time, in a form that PostgreSQL parses independently of its time zone.
    Time(String),
    /// A named restore point.
    RestorePoint(String),
}

/// A base backup of an archive.
#[derive(Clone, Debug)]
pub struct StoredBase {
    /// Where recovery starts.
    pub start: BackupStart,
    /// Its files.
    pub files: StreamedBackup,
}

/// Options for testing a restore.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DrillOptions {
    /// The base backup: a folder in plain or tar format, or the data directory of a stopped server; or a name
    /// for messages with `stored`.
    pub base: PathBuf,
    /// The base backup, if it is one of an archive.
    pub stored: Option<StoredBase>,
    /// The folder of the server's programs. If `None`, the drill searches for them.
    pub bin: Option<PathBuf>,
    /// The parent of the temporary folder. The default is the system's temporary folder.
    pub folder: Option<PathBuf>,
    /// Where recovery stops.
    pub target: Target,
    /// Roll the copy forward before the server starts.
    pub roll_forward: Option<RollForward>,
    /// The timeline to follow. The default is the latest.
    pub timeline: Option<Timeline>,
    /// A program and arguments. With `--redirect-tablespaces`, a folder, a name and a path appended, it
    /// fetches a file from the archive and rewrites it by [`redirect_file`].
    pub restore_command: Vec<OsString>,
    /// A superuser of the cluster.
    pub user: String,
    /// The database for the queries.
    pub database: String,
    /// Additional settings for the server's configuration.
    pub settings: Vec<(String, String)>,
    /// `shared_preload_libraries` of the original, for a hint if recovery needs one of them, or `None` if
    /// unknown.
    pub original_libraries: Option<String>,
    /// Queries whose results are printed. If empty, all rows are counted.
    pub queries: Vec<String>,
    /// Run `pg_amcheck`, if the server has it.
    pub should_amcheck: bool,
    /// Time limit for recovery.
    pub timeout: Option<Duration>,
}

impl DrillOptions {
    /// Creates options with the defaults of the other fields.
    pub fn new(base: PathBuf, target: Target) -> DrillOptions {
        DrillOptions {
            base,
            stored: None,
            bin: None,
            folder: None,
            target,
            roll_forward: None,
            timeline: None,
            restore_command: Vec::new(),
            user: "postgres".to_owned(),
            database: "postgres".to_owned(),
            settings: Vec::new(),
            original_libraries: None,
            queries: Vec::new(),
            should_amcheck: false,
            timeout: None,
        }
    }
}

walden_format::setters!(DrillOptions {
    stored: Option<StoredBase>,
    bin: Option<PathBuf>,
    folder: Option<PathBuf>,
    roll_forward: Option<RollForward>,
    timeline: Option<Timeline>,
    restore_command: Vec<OsString>,
    user: String,
    database: String,
    settings: Vec<(String, String)>,
    original_libraries: Option<String>,
    queries: Vec<String>,
    should_amcheck: bool,
    timeout: Option<Duration>,
});

/// Result of testing a restore.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Drill {
    /// Version of the server.
    pub server_version: String,
    /// Where recovery started.
    pub start_lsn: String,
    /// Where recovery was expected to stop.
    pub target: Target,
    /// End of the last replayed record.
    pub reached_lsn: String,
    /// Time of the last replayed commit or abort, in microseconds since 1970-01-01 00:00:00 UTC.
    pub reached_time: Option<i64>,
    /// The new timeline of the restored server.
    pub timeline: Timeline,
    /// Time to copy the backup, in seconds.
    pub copy_seconds: f64,
    /// Time from starting the server to its first connection, in seconds.
    pub recovery_seconds: f64,
    /// Replayed WAL in bytes.
    pub wal_bytes: u64,
    /// Replayed WAL in bytes per second.
    pub wal_bytes_per_second: f64,
    /// The part of it that Walden replayed before the server started, if it was asked to.
    pub rolled_forward: Option<RolledForward>,
    /// Tablespaces that the WAL created, and that were redirected to the drill's folder.
    pub redirected_tablespaces: Vec<RedirectedTablespace>,
    /// The incomplete segment after the archived WAL, if the target was the end: recovery does not read it.
    pub unread_partial: Option<UnreadPartial>,
    /// The checks and their results.
    pub checked: CheckedData,
}

impl Drill {
    /// Returns whether recovery reached its target and the checks found no problems.
    pub fn is_good(&self) -> bool {
        self.checked.problems.is_empty()
    }
}

/// The current step, for reporting progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// This many bytes of the backup were copied.
    Copied(u64),
    /// Walden replayed this many bytes of WAL, out of this many.
    Replayed(u64, u64),
    /// Recovery requested this many files, out of this many segments.
    Restored(u64, u64),
    /// The data is being checked.
    Checking,
}

/// Tests a restore.
///
/// # Errors
/// No server of the backup's version is installed, the backup is unusable, or recovery failed. After a failed
/// recovery, the message contains the end of the server's log.
pub fn drill(
    archive: &Archive,
    options: &DrillOptions,
    progress: &mut dyn FnMut(Step),
) -> std::result::Result<Drill, DrillError> {
    let result = try_out(archive, options, progress);
    // If a signal stopped the server, this failure is not a result: the signal handler ends the process.
    wait_for_exit_if_interrupted();
    result
}

fn try_out(archive: &Archive, options: &DrillOptions, progress: &mut dyn FnMut(Step)) -> Result<Drill> {
    expect_allowed_settings(&options.settings)?;
    // Until the copy is complete, no advance replaces the backup.
    let (lock, start) = match &options.stored {
        Some(stored) => (None, stored.start.clone()),
        None => (Some(base::lock(&options.base)?), BackupStart::read(&options.base)?),
    };
    let identity = archive.identity()?;
    if let Some(found) =
        start.system_identifier.filter(|found| found.to_string() != identity.system_identifier)
    {
        return Err(DrillError::refused(format!(
            "cannot restore {}: expected system identifier {}, the archive's, found {found}",
            options.base.display(),
            identity.system_identifier
        )));
    }
    if let Some(bytes) = start.segment_bytes {
        archive
            .expect_segment_bytes(bytes)
            .with_context(|| format!("cannot restore {}", options.base.display()))?;
    }
    copy::expect_tablespaces(&options.base)?;
    if let Target::RestorePoint(name) = &options.target {
        expect_restore_point(archive, name)?;
    }
    let log = log_from(archive, &start, options.timeline)?;
    extent::expect_known_version(archive, &log)?;
    if !options.settings.iter().any(|(name, _)| name.eq_ignore_ascii_case("recovery_target_timeline")) {
        // Without the history, the server would end recovery on an earlier timeline and report success.
        recovery::check_histories(archive, options.timeline, start.timeline).map_err(no_history)?;
        // The server would report the same, but less clearly and only after the backup was copied.
        recovery::check_timelines(&log, RecoveryStart::from(&start))?;
    }
    let temporary = match &options.folder {
        Some(folder) => folder::temporary_folder_in(folder)
            .with_context(|| format!("cannot make a temporary folder in {}", folder.display()))?,
        None => folder::temporary_folder()?,
    };
    let guard = Guard::new(temporary)?;
    let dir = guard.dir().to_owned();
    if let (Ok(base), Ok(inside)) = (options.base.canonicalize(), dir.canonicalize())
        && inside.starts_with(&base)
    {
        return Err(DrillError::refused(format!(
            "cannot use a folder in the backup {}",
            options.base.display()
        ))
        .with_hint("name a folder outside of it with --folder"));
    }
    let copying = Instant::now();
    let data = dir.join("data");
    let source = match &options.stored {
        Some(stored) => copy::Source::Stored(&stored.files),
        None => copy::Source::Path(&options.base),
    };
    copy::copy_backup(source, &data, &dir.join("tablespaces"), &mut |bytes| progress(Step::Copied(bytes)))?;
    drop(lock);
    let copy_seconds = copying.elapsed().as_secs_f64();
    let roll_forward = |limits| forward::roll_forward(archive, &data, options, limits, progress);
    let rolled_forward = options.roll_forward.map(roll_forward).transpose()?;
    let copied = DataDir::open(&data)?;
    let version = std::fs::read_to_string(data.join("PG_VERSION")).context("cannot read PG_VERSION")?;
    let bin = find_programs(options.bin.as_deref(), version.trim())?;
    let (user, libraries) = (options.user.clone(), options.original_libraries.clone());
    let server = server::Server { guard, bin: bin.0, version: bin.1, user, libraries };
    server.configure(&copied, archive.segment_size()?, options)?;
    server.check_restore_command(first_segment(&log, &start))?;
    // Approximate number of segments that recovery to the end requests.
    let redo = rolled_forward.as_ref().and_then(|rolled| rolled.redo_lsn.as_ref()?.parse().ok());
    let from = log.size.segment_of(redo.unwrap_or(start.start));
    let segments = log.segments.iter().filter(|segment| segment.number >= from).count() as u64;
    let recovering = Instant::now();
    let recovered = server.recover(options.timeout, &mut |asked| progress(Step::Restored(asked, segments)));
    recovered.map_err(|error| match (error, extent::end_text(archive, &log)) {
        (DrillError::RecoveryFailed { problem, hint }, Some(end)) => {
            DrillError::RecoveryFailed { problem: format!("{end}: {problem}"), hint }
        }
        (error, _) => error,
    })?;
    let recovery_seconds = recovering.elapsed().as_secs_f64();
    progress(Step::Checking);
    let reached = server.reached()?;
    let mut checked = checks::check(&server, options)?;
    checked.problems.extend(extent::find_shortfall(
        archive,
        &log,
        options,
        server.version.major,
        reached.lsn,
    )?);
    let unread_partial = extent::find_unread_partial(archive, &log, &options.target)?;
    server.stop()?;
    let redirected_tablespaces = server.redirected_tablespaces()?;
    let wal_bytes = reached.lsn.bytes_since(start.start);
    let forward_seconds = rolled_forward.as_ref().map_or(0.0, |rolled| rolled.seconds);
    Ok(Drill {
        server_version: server.version.to_string(),
        start_lsn: start.start.to_string(),
        target: options.target.clone(),
        reached_lsn: reached.lsn.to_string(),
        reached_time: reached.time,
        timeline: reached.timeline,
        copy_seconds,
        recovery_seconds,
        wal_bytes,
        wal_bytes_per_second: wal_bytes as f64 / (forward_seconds + recovery_seconds).max(0.001),
        rolled_forward,
        redirected_tablespaces,
        unread_partial,
        checked,
    })
}

/// Maximum number of restore points listed if the requested one is missing. The newest ones are listed.
const MAX_NAMED: usize = 10;

/// Checks that a restore point is in the archive. Otherwise the server would report it as missing only after
/// replaying everything.
fn expect_restore_point(archive: &Archive, name: &str) -> Result<()> {
    let mut listing = list::list(archive, ListOptions::default())?;
    let has = |listing: &Listing| points(listing).any(|point| point == name);
    if !has(&listing) && !listing.has_all_restore_points {
        listing = list::list(archive, ListOptions { all_summaries: true, ..ListOptions::default() })?;
    }
    // Received but unarchived WAL and unreadable objects may contain it.
    let is_all = listing.has_all_restore_points
        && listing.unreadable.is_empty()
        && listing.timelines.iter().all(|timeline| timeline.live_end.is_none());
    if has(&listing) || !is_all {
        return Ok(());
    }
    let known: BTreeSet<&str> = points(&listing).rev().take(MAX_NAMED).collect();
    let known = match known.is_empty() {
        true => "it has none".to_owned(),
        false => {
            let is_other = |name: &&str| name.contains(char::REPLACEMENT_CHARACTER);
            let hint = match known.iter().any(is_other) {
                true => "; one whose name is not UTF-8 is reached by its LSN, with recovery_target_lsn",
                false => "",
            };
            format!("known: {}{hint}", known.into_iter().collect::<Vec<_>>().join(", "))
        }
    };
    Err(DrillError::UnknownRestorePoint { name: name.to_owned(), known })
}

/// Returns the names of all restore points, ordered by timeline.
fn points(listing: &Listing) -> impl DoubleEndedIterator<Item = &str> {
    listing.timelines.iter().flat_map(|timeline| &timeline.restore_points).map(|point| point.name.as_str())
}

/// A missing history makes recovery fail, so it counts as a recovery failure even before the attempt.
fn no_history(error: RecoveryError) -> DrillError {
    if !matches!(error, RecoveryError::NoHistory(_)) {
        return error.into();
    }
    DrillError::RecoveryFailed { problem: error.to_string(), hint: error.hint() }
}

/// Returns the segment in which recovery starts. PostgreSQL requests it on the newest timeline that may have
/// it, then on older ones (`XLogFileReadAnyTLI` in `xlogrecovery.c`). If a standby was promoted soon after
/// its backup, the backup starts in the segment of the switch, which its own timeline has only as a
/// `.partial`, if at all.
fn first_segment(log: &Log, start: &BackupStart) -> SegmentName {
    let number = log.size.segment_of(start.start);
    let first = log.segments.first().filter(|first| first.number == number);
    let of_start = || SegmentName::new(start.timeline.unwrap_or(1), number, log.size);
    first.map_or_else(of_start, |first| first.name)
}

/// Returns the WAL that recovery to the end replays.
fn log_from(archive: &Archive, start: &BackupStart, timeline: Option<Timeline>) -> Result<Log> {
    let number = archive.segment_size()?.segment_of(start.start);
    Ok(Log::find_for_recovery(archive, timeline, start.timeline, number)?)
}

/// Finds the server programs of a major version, and their exact version.
fn find_programs(bin: Option<&Path>, major: &str) -> Result<(PathBuf, Version)> {
    let wanted: u32 = major.parse().with_context(|| {
        format!("cannot use the backup: expected a major version of PostgreSQL 12 or later in PG_VERSION, found {major}")
    })?;
    let is_named = bin.is_some();
    let folders = match bin {
        Some(bin) => vec![bin.to_owned()],
        None => installed_bin_dirs(),
    };
    let mut others = Vec::new();
    for folder in folders {
        let program = folder.join("postgres");
        if !is_named && !program.exists() {
            continue;
        }
        match program_version(&program) {
            Ok(version) if version.major == wanted => return Ok((folder.canonicalize()?, version)),
            Ok(version) => others.push(format!("{version} in {}", folder.display())),
            Err(error) if is_named => return Err(error.into()),
            Err(_) => {}
        }
    }
    let found = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
    Err(DrillError::refused(format!(
        "cannot find a server for the backup: expected PostgreSQL {wanted}, found {found}"
    ))
    .with_hint("install it, or name the folder of its programs with --bin"))
}

#[cfg(test)]
mod tests {
    use walden_format::lsn::{Lsn, SegmentSize};
    use walden_source::timelines::Stretch;

    use super::*;
    use crate::objects::name::{ArchivedFile, Object};
    use crate::restore::log::LogSegment;

    #[test]
    fn recovery_starts_in_the_segment_of_the_newest_timeline_that_has_it() {
        let size = SegmentSize::DEFAULT;
        let name = |timeline, number| SegmentName::new(timeline, number, size);
        // The backup of a standby that was promoted within the same segment.
        let end = Some(Lsn(0x1200_02B8));
        let stretches = vec![Stretch { timeline: 1, end }, Stretch { timeline: 2, end: None }];
        let log = |numbers: &[u64]| {
            let segment = |&number: &u64| {
                let name = name(2, number);
                let object = Object::File(ArchivedFile::Segment(name));
                LogSegment { name, number, is_partial: false, object, bytes: 1 }
            };
            Log { size, stretches: stretches.clone(), segments: numbers.iter().map(segment).collect() }
        };
        let backup = |start| {
            let timeline = Some(1);
            BackupStart {
                start: Lsn(start),
                timeline,
                end: None,
                end_timeline: None,
                system_identifier: None,
                segment_bytes: None,
            }
        };
        let first = |log: &Log, start| first_segment(log, &backup(start));
        assert_eq!(first(&log(&[0x12, 0x13]), 0x1200_0098), name(2, 0x12));
        // If that segment does not exist, the one on the backup's own timeline is requested.
        assert_eq!(first(&log(&[]), 0x1200_0098), name(1, 0x12));
        assert_eq!(first(&log(&[0x12]), 0x1100_0028), name(1, 0x11));
    }
}
