//! The state of archiving and its problems, for `walden archive status` and the exporter.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use walden_archive::Archive;
use walden_archive::archive::ArchiveError;
use walden_archive::compare::Compared;
use walden_archive::encryption::KEYS;
#[cfg(feature = "encryption")]
use walden_archive::encryption::keys;
use walden_archive::gaps::{GAPS_UNKNOWN, HISTORY_HINT};
use walden_archive::name::ArchivedFile;
use walden_archive::status::{self, Holdings, Lag, QueuedFile};
use walden_archive::verified::VerifiedAt;
use walden_archive::verify::KEYS_HINT;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::payload::Timestamp;
use walden_postgres::follow::{FolderFollower, Follower as _};
use walden_receive::spool::complete_segments;
use walden_receive::status::Status;
use walden_report::table::harmless;
use walden_report::units;
use walden_source::counted;
use walden_source::datadir::ControlFile;
use walden_source::error_text;

use crate::activity::{Activity, ActivityReader};
use crate::archiver::{Cause, FailingArchiver, SEE_LOG};
use crate::arrival::{self, Archiving, Arrives, NOT_YET, is_far_behind};
use crate::configuration::ArchiveSection;
#[cfg(feature = "encryption")]
use crate::configuration::FILE;
use crate::data_directory;
use crate::error::{ArchivingError, Result as ArchivingResult};
use crate::other_writer::{self, OtherWriter, PROMOTED};
use crate::queue::{QueueOptions, be, waiting};
use crate::receiving::{ReceivingOptions, problem_of};
use crate::standby::{STUCK_HINT, StuckStandby};
use crate::writable::{Unwritable, User, find_unwritable};

/// An object store that takes longer to answer a small request counts as down.
pub const STORE_ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Problem of an encrypted archive without keys.
pub const KEYS_MISSING: &str =
    "the archive is encrypted, and its keys are missing (keys/): newly archived files could never be read";

/// Note of a report for which no server was queried.
const NOT_ASKED: &str =
    "no server was asked whether it archives: --data or --dsn names one, or --spool a receiver";

/// State of archiving.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Problems.
    pub problems: Vec<String>,
    /// Notes: not problems in themselves, but the administrator should know them.
    pub notes: Vec<String>,
    /// Whether a server or a receiver was named; otherwise nothing shows whether WAL arrives.
    #[serde(rename = "server_queried")]
    pub is_server_asked: bool,
    /// Whether anything shows that archiving works or fails. Nothing does before the first segment is
    /// archived, or while an attempt has no result.
    #[serde(rename = "outcome_known")]
    pub is_outcome_known: bool,
    /// Contents of the archive; `None` if it cannot be read.
    pub holdings: Option<Holdings>,
    /// Unarchived part of the server's queue; `None` if no server was named or it does not answer.
    pub lag: Option<Lag>,
    /// Whether a primary's WAL reaches the archive, according to the server. `None` if unknown, for a
    /// standby, or if `walden receive` archives.
    pub arrives: Option<bool>,
    /// Number of waiting files above which the queue is a problem.
    pub backlog_limit: u64,
    /// Seconds that a file may wait before the queue is a problem.
    pub backlog_limit_seconds: u64,
    /// Contents of the activity log; `None` if there is no log.
    pub activity: Option<Activity>,
    /// The repositories, if several are configured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyStatus>,
    /// Status of `walden receive`; `None` if no spool was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiving: Option<Status>,
}

/// The state of several repositories.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Each repository; empty if there is only one.
    pub copies: Vec<CopyStatus>,
    /// The problem if they belong to different clusters.
    pub problem: Option<String>,
}

/// One of several repositories.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CopyStatus {
    /// Location of the repository.
    pub location: String,
    /// Number of files that the repository lacks and another repository has; `None` if the repository cannot
    /// be read.
    pub missing_files: Option<u64>,
    /// The first missing file, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_missing: Option<String>,
    /// Number of bytes of WAL in the missing segments; `None` if unknown.
    pub missing_bytes: Option<u64>,
    /// When a segment or other file was last stored in the repository, in microseconds since 1970-01-01
    /// 00:00:00 UTC by the store's clock; `None` if the time is unknown, or if all segments are in packs.
    pub last_archived: Option<i64>,
    /// Number of damaged objects, by the last `verify` and by comparison with the other repositories; `None`
    /// if the repository cannot be read.
    pub damaged_objects: Option<u64>,
    /// A damaged object and its fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// Why the repository cannot be read, and the remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl CopyStatus {
    /// Describes a repository by comparison with the other repositories.
    pub fn new(location: String, compared: Result<Compared, String>) -> CopyStatus {
        let (compared, problem) = match compared {
            Ok(compared) => (Some(compared), None),
            Err(problem) => (None, Some(problem)),
        };
        let damage = |compared: &Compared| {
            compared.damaged.first().map(|first| format!("{}: {}", first.object, first.problem))
        };
        CopyStatus {
            location,
            missing_files: compared.as_ref().map(|compared| compared.missing_files),
            first_missing: compared.as_ref().and_then(|compared| compared.first_missing.clone()),
            missing_bytes: compared.as_ref().and_then(|compared| compared.missing_bytes),
            last_archived: compared
                .as_ref()
                .and_then(|compared| compared.last_stored)
                .map(jiff::Timestamp::as_microsecond),
            damaged_objects: compared.as_ref().map(|compared| compared.damaged.len() as u64),
            damage: compared.as_ref().and_then(damage),
            problem,
        }
    }

    /// Describes each fault of this repository with its remedy. `other` is the location of a readable
    /// repository with the same WAL, from which the remedies copy.
    pub fn problems(&self, other: &str) -> Vec<String> {
        let (location, other) = (harmless(&self.location), harmless(other));
        let mut problems = Vec::new();
        if let Some(problem) = &self.problem {
            problems.push(format!("the repository {location} cannot be read: {}", harmless(problem)));
        }
        if let Some(missing) = self.missing_files.filter(|&missing| missing > 0) {
            let files = counted(missing, "file");
            let first = self.first_missing.as_deref().unwrap_or_default();
            problems.push(format!(
                "{location} lacks {files} that another repository has, from {first} on; hint: walden archive copy"
            ));
        }
        if let (Some(damaged), Some(damage)) = (self.damaged_objects, &self.damage) {
            let (objects, damage) = (counted(damaged, "damaged object"), harmless(damage));
            problems.push(format!(
                "{location} has {objects}, such as {damage}; hint: walden archive repair --repo {location} --from {other}"
            ));
        }
        problems
    }
}

/// Returns the location of a readable repository other than the one with this index; `URL` if there is none.
pub fn other_location(copies: &[CopyStatus], number: usize) -> &str {
    let other = copies.iter().enumerate().find(|(other, copy)| *other != number && copy.problem.is_none());
    other.map_or("URL", |(_, copy)| copy.location.as_str())
}

impl Report {
    /// Adds the state of several repositories.
    pub fn add_comparison(&mut self, comparison: Comparison) {
        let Comparison { copies, problem } = comparison;
        if let Some(problem) = problem {
            // What they lack of each other says nothing.
            self.problems.push(problem);
            return;
        }
        for (number, copy) in copies.iter().enumerate() {
            // The first one is reported as the archive.
            if number > 0 || copy.problem.is_none() || self.holdings.is_some() {
                self.problems.extend(copy.problems(other_location(&copies, number)));
            }
        }
        self.copies = copies;
    }

    /// Collects the report. Anything that cannot be read becomes a problem.
    pub fn new(
        archive: Option<&Archive>,
        holdings: Result<Holdings, String>,
        queue: &QueueOptions,
        receiving: &ReceivingOptions,
        mut log: Option<&mut ActivityReader>,
        section: &ArchiveSection,
    ) -> Report {
        let mut problems = Vec::new();
        let mut keep = |problem: String| problems.push(problem);
        let text = |error: ArchivingError| error_text(&error);
        // Do not ask an archive again that failed to answer: each request can take a minute.
        let archive = archive.filter(|_| holdings.is_ok());
        let holdings = holdings.map_err(&mut keep).ok();
        let diverging = holdings.iter().flat_map(|holdings| &holdings.diverging);
        let mut notes: Vec<String> = diverging.map(ToString::to_string).collect();
        notes.extend(holdings.iter().flat_map(|holdings| &holdings.minimal_wal).map(ToString::to_string));
        notes.extend(holdings.as_ref().and_then(unknown_gaps_note));
        holdings
            .as_ref()
            .and_then(|holdings| old_backup_problem(holdings, section))
            .into_iter()
            .for_each(&mut keep);
        notes.extend(archive.and_then(|archive| former_key_note(archive, section)));
        let is_server_asked = queue.names_server() || receiving.spool.is_some();
        if !is_server_asked {
            notes.push(NOT_ASKED.to_owned());
        }
        let files = queue.read().map_err(|error| keep(text(error))).ok().flatten();
        let read = |log: &mut ActivityReader| {
            read_log(log, archive).map_err(ArchivingError::read("the activity log"))
        };
        let activity = log.as_deref_mut().and_then(|log| read(log).map_err(|error| keep(text(error))).ok());
        let (mut arrives, mut own, mut is_foreign, mut is_branch_known) = (None, None, false, false);
        let mut is_outcome_known = is_server_asked;
        if files.is_some() {
            // WAL from `walden receive` needs no `archive_mode`.
            let archives_itself = archive.filter(|_| receiving.spool.is_none());
            let (holdings, size) = (holdings.as_ref(), segment_size(archive));
            let expected = Expected { holdings, size, archives_itself, archive, section };
            let files = files.as_deref().unwrap_or_default();
            match look_at_server(queue, files, &expected, activity.as_ref()) {
                Ok(found) => {
                    is_branch_known = found.problems.iter().any(|problem| problem.starts_with(PROMOTED));
                    (arrives, own, is_foreign) = (found.arrives, found.system_id, found.is_foreign);
                    is_outcome_known &= !found.is_outcome_unknown;
                    found.problems.into_iter().for_each(&mut keep);
                    notes.extend(found.notes);
                }
                Err(error) => keep(text(error)),
            }
        }
        let lag = files.map(|queue| lag(archive.filter(|_| !is_foreign), &queue, log.as_deref()));
        let is_received = receiving.is_running();
        let receiving = receiving.read().map_err(|error| keep(text(error))).ok().flatten();
        let last = holdings.as_ref().and_then(last_segment);
        let elsewhere = receiving
            .as_ref()
            .and_then(|status| received_elsewhere(status, own, segment_size(archive), last));
        elsewhere.into_iter().for_each(&mut keep);
        let is_used = holdings.as_ref().is_some_and(|holdings| holdings.system_identifier.is_some());
        let has_news = is_used && !is_branch_known;
        if let Some((status, archive)) = receiving.as_ref().zip(archive.filter(|_| has_news)) {
            match other_writer::find_branch_of_received(archive, status) {
                Ok(Some(other)) => keep(other.to_string()),
                Ok(None) => {}
                Err(error) => keep(error_text(&error)),
            }
        }
        let mut report = Report {
            problems,
            notes,
            is_server_asked,
            is_outcome_known,
            holdings,
            lag,
            arrives,
            backlog_limit: section.backlog() as u64,
            backlog_limit_seconds: section.backlog_seconds(),
            activity,
            copies: Vec::new(),
            receiving,
        };
        report.add_problems(is_received);
        report
    }

    fn add_problems(&mut self, is_received: bool) {
        let mut found = Vec::new();
        let limits = (self.backlog_limit, self.backlog_limit_seconds);
        found.extend(self.lag.as_ref().and_then(|lag| backlog_problem(lag, limits)));
        if let Some((problem, hint)) = self.activity.as_ref().and_then(failure_problem) {
            let hint = hint.map_or(String::new(), |hint| format!("; hint: {hint}"));
            found.push(format!("{problem}{hint}"));
        }
        if let Some(status) = &self.receiving
            && let Some(problem) = problem_of(status, is_received)
        {
            let hint = status.hint.as_ref().map(|hint| format!("; hint: {}", harmless(hint)));
            found.push(problem + &hint.unwrap_or_default());
        }
        if let Some(holdings) = &self.holdings {
            let was_used = self.activity.as_ref().is_some_and(|activity| activity.archived > 0);
            if holdings.system_identifier.is_none() && was_used {
                found.push(format!("the archive in {} no longer exists", holdings.location));
            }
            if holdings.are_keys_missing {
                found.push(KEYS_MISSING.to_owned());
            }
            if holdings.missing_segments > 0 {
                found.push(missing_text(holdings));
            }
            found.extend(missing_by_verify(holdings));
            if !holdings.missing_histories.is_empty() {
                let histories = holdings.missing_histories.join(", ");
                found.push(format!("missing: {histories}; {HISTORY_HINT}"));
            }
            if let Some(first) = holdings.unreadable.first() {
                let others = match holdings.unreadable.len() - 1 {
                    0 => String::new(),
                    others => format!(" and {}", counted(others as u64, "other object")),
                };
                let hint = if first.object.starts_with(KEYS) {
                    format!("; hint: {KEYS_HINT}")
                } else {
                    String::new()
                };
                found.push(format!(
                    "{}{others} cannot be read, as walden archive verify finds too: {}{hint}",
                    harmless(&first.object),
                    harmless(&first.problem)
                ));
            }
            // A verification dated in the future would never become too old.
            if let Some(verified) = holdings.verified.as_ref().filter(|verified| is_in_future(verified.time))
            {
                let time = Timestamp::from_unix_micros(verified.time);
                found.push(format!("the last verify is dated {time}, which is in the future: a clock was set wrong; verify again"));
            }
            if let Some(verified) = holdings.verified.as_ref().filter(|verified| verified.damaged > 0) {
                found.push(damage_text(verified));
            }
        }
        self.problems.append(&mut found);
    }
}

/// Describes that the newest base backup in the archive is older than the configuration allows, or missing.
pub fn old_backup_problem(holdings: &Holdings, section: &ArchiveSection) -> Option<String> {
    let limit = section.backup_max_age_hours?;
    let make = "walden backup create stores one";
    let Some(newest) = holdings.newest_base_backup else {
        let limit = format!("expected one of the last {limit} hours (backup_max_age_hours)");
        return Some(format!("the archive has no base backup: {limit}; {make}"));
    };
    let age = jiff::Timestamp::now().as_microsecond().saturating_sub(newest) / 3_600_000_000;
    let is_old = u64::try_from(age).is_ok_and(|hours| hours >= limit);
    is_old.then(|| {
        format!("the newest base backup in the archive is {age} hours old: expected less than {limit} (backup_max_age_hours); {make}")
    })
}

/// Describes which gaps of an encrypted archive cannot be determined without a private key.
pub fn unknown_gaps_note(holdings: &Holdings) -> Option<String> {
    if holdings.has_all_gaps {
        return None;
    }
    let mut note = GAPS_UNKNOWN.to_owned();
    for timeline in &holdings.timelines_without_segments {
        note += &format!("; timeline {timeline} has a history and no segment");
    }
    Some(note)
}

/// Reports segments that `verify` found missing and that are invisible without a private key. The result
/// counts until the next run, as damage does.
pub fn missing_by_verify(holdings: &Holdings) -> Option<String> {
    let missing = counted(holdings.missing_by_verify()?, "segment");
    Some(format!(
        "the last verify has found {missing} missing, more than is known without a private key: walden archive list --identity FILE \
         names them, and walden archive verify looks again"
    ))
}

/// Returns the part of a server's queue that is not archived. If the archive is unreachable or foreign, every
/// queued file counts as unarchived. A file whose failure is in `log` counts too, even if the archive has a
/// file of its name.
pub fn lag(archive: Option<&Archive>, queue: &[QueuedFile], log: Option<&ActivityReader>) -> Lag {
    let now = SystemTime::now();
    let is_refused = |file: ArchivedFile| log.is_some_and(|log| log.is_refused(&file.to_string()));
    let lag = archive.and_then(|archive| status::lag(archive, queue, &is_refused, now).ok());
    lag.unwrap_or_else(|| Lag::from_queue(queue, now))
}

/// Describes a queue that exceeds its limits: files, and seconds that a file may wait. Files archived ahead
/// do not shorten the queue: the server marks and removes no file until it has archived the first file.
pub fn backlog_problem(lag: &Lag, (limit, limit_seconds): (u64, u64)) -> Option<String> {
    let is_late = |seconds: f64| seconds > limit_seconds as f64;
    let stops = lag.is_next_missing || is_late(lag.ready_seconds);
    if lag.ready_files > limit.max(lag.files) && stops {
        let ready = counted(lag.ready_files, "file");
        let (be, next) = (be(lag.ready_files), lag.next_file.as_deref().unwrap_or_default());
        let waited = units::seconds(lag.ready_seconds);
        return Some(format!(
            "{ready} {be} ready to be archived, more than {limit}, the oldest for {waited}, and the server does not get past \
             {next}: pg_wal grows until it does"
        ));
    }
    if lag.files > limit {
        let (waiting, waited) = (waiting(lag.files), units::seconds(lag.seconds));
        return Some(format!(
            "{waiting} to be archived, more than {limit}, the oldest for {waited}: pg_wal grows until they are"
        ));
    }
    let limit = units::seconds(limit_seconds as f64);
    if is_late(lag.seconds) {
        let (waiting, waited) = (waiting(lag.files), units::seconds(lag.seconds));
        return Some(format!("{waiting} to be archived, the oldest for {waited}, longer than {limit}"));
    }
    // A file of the same name may be from another server or another cluster.
    is_late(lag.ready_seconds).then(|| {
        let (ready, be) = (counted(lag.ready_files, "file"), be(lag.ready_files));
        let waited = units::seconds(lag.ready_seconds);
        format!(
            "{ready} {be} marked as ready, the oldest for {waited}, longer than {limit}, although the archive has a file of its \
             name: its push is refused, or does not run"
        )
    })
}

/// Reads the activity log. A failure is resolved once the archive, if reachable, has the file.
pub fn read_log(log: &mut ActivityReader, archive: Option<&Archive>) -> io::Result<Activity> {
    log.read(&|file| {
        let file = ArchivedFile::parse(file);
        archive.zip(file).is_some_and(|(archive, file)| matches!(archive.find(file), Ok(Some(_))))
    })
}

/// Notes that a server encrypts to a former key of the archive, which is so until its configuration is
/// updated after `key remove` or `key rotate`. A push refuses a key that the archive never had.
#[cfg(feature = "encryption")]
fn former_key_note(archive: &Archive, section: &ArchiveSection) -> Option<String> {
    let own = section.recipient.as_ref()?;
    let encrypted = archive.encrypted();
    if !encrypted.is_encrypted().ok()? {
        return None;
    }
    encrypted.recipient().ok()?;
    let newest = keys::expect_newest(encrypted.inner()).ok()?.recipients.into_iter().next()?;
    (*own != newest).then(|| {
        format!(
            "{FILE} names {own}, a former key of the archive, which every former user may have: put recipient = \"{newest}\" there, if \
             you changed the keys"
        )
    })
}

#[cfg(not(feature = "encryption"))]
fn former_key_note(_: &Archive, _: &ArchiveSection) -> Option<String> {
    None
}

/// Expectations of a server.
struct Expected<'a> {
    /// Contents of the archive, if it answers.
    holdings: Option<&'a Holdings>,
    /// Size of the archive's segments.
    size: Option<SegmentSize>,
    /// The archive, if the server itself should archive into it.
    archives_itself: Option<&'a Archive>,
    /// The archive, if it answers.
    archive: Option<&'a Archive>,
    section: &'a ArchiveSection,
}

/// Facts found about a server.
#[derive(Default)]
struct ServerLook {
    problems: Vec<String>,
    notes: Vec<String>,
    /// As [`Report::arrives`].
    arrives: Option<bool>,
    /// System identifier of the server.
    system_id: Option<u64>,
    /// Whether the server's cluster or segment size differs from the archive's: its names then denote other
    /// files.
    is_foreign: bool,
    /// Whether nothing was archived yet, or an attempt has no result.
    is_outcome_unknown: bool,
}

/// Checks a server's cluster, timeline and archiver; and, if a primary is to archive into the archive itself,
/// whether its WAL arrives. `files` are the server's ready files, and `activity` is the content of the log.
fn look_at_server(
    queue: &QueueOptions,
    files: &[QueuedFile],
    expected: &Expected<'_>,
    activity: Option<&Activity>,
) -> ArchivingResult<ServerLook> {
    let Expected { holdings, size, archives_itself, .. } = *expected;
    let mut found = ServerLook::default();
    let (mut archiving, mut failing, mut written) = (None, None, None);
    let (archive, mut stuck) = (expected.archive.zip(size), None);
    let (own, own_bytes, timeline) = match (&queue.dsn, &queue.pgdata) {
        (Some(dsn), _) => {
            let mut client = walden_postgres::connection::connect(dsn)?;
            let row = client
                .query_one(SERVER, &[])
                .map_err(ArchivingError::query("cannot ask the server for its statistics"))?;
            let is_failing: bool = row.try_get(1)?;
            failing = FailingArchiver::query_server(&mut client, files)?;
            let is_standby = row.try_get::<_, Option<String>>(3)?.is_none();
            if let Some((archive, size)) = archive.filter(|_| is_standby) {
                stuck = StuckStandby::query(&mut client, archive, size)?;
            }
            if let Some(reached) = row.try_get::<_, Option<String>>(3)? {
                let last: String = row.try_get(4)?;
                let timeline = row.try_get::<_, Option<i32>>(2)?.map_or(0, i32::cast_unsigned);
                archiving = Some(Archiving {
                    is_off: row.try_get::<_, String>(5)? == "off",
                    timeline,
                    last: ArchivedFile::parse(&last).filter(|_| !is_failing),
                    newer_command: row.try_get(10)?,
                    data: data_directory::query(dsn),
                    reached: SegmentName::parse(&reached),
                    has_ready_files: row.try_get(6)?,
                    is_unset: row.try_get(7)?,
                });
            }
            // SQL has no unsigned numbers.
            let own = row.try_get::<_, i64>(0)?.cast_unsigned();
            let bytes = row.try_get::<_, i64>(8)?.cast_unsigned();
            written = row.try_get::<_, Option<String>>(9)?.map(|lsn| lsn.parse::<Lsn>()).transpose()?;
            (Some(own), Some(bytes), row.try_get::<_, Option<i32>>(2)?.map(i32::cast_unsigned))
        }
        (None, Some(data)) => {
            let control = ControlFile::read_data_directory(data);
            let timeline = control.as_ref().and_then(|control| written_timeline(data, control));
            let primary = control.as_ref().filter(|_| timeline.is_some());
            archiving = primary
                .zip(timeline)
                .map(|(control, timeline)| Archiving::read_data_directory(data, control, timeline));
            let is_standby = control.is_some() && timeline.is_none();
            if let Some(((archive, size), control)) = archive.zip(control.as_ref()).filter(|_| is_standby) {
                stuck = StuckStandby::read_data_directory(data, control, archive, size)?;
            }
            written =
                primary.zip(timeline).map(|(control, timeline)| write_position(data, control, timeline));
            failing = FailingArchiver::read_data_directory(data, files, is_standby);
            let bytes = arrival::segment_size(&data.join("pg_wal")).map(SegmentSize::bytes);
            (control.map(|control| control.system_identifier), bytes, timeline)
        }
        (None, None) => (None, None, None),
    };
    found.system_id = own;
    let whose = holdings.and_then(|holdings| holdings.system_identifier.as_deref());
    let foreign = match (own.map(|own| own.to_string()), whose, own_bytes, size.map(SegmentSize::bytes)) {
        (Some(own), Some(whose), ..) if own != whose => Some(format!(
            "the server is of cluster {own}, and the archive of cluster {whose}, so it gets nothing from the server: give each cluster its own archive; pg_upgrade creates a new cluster"
        )),
        (.., Some(own), Some(archived)) if own != archived => Some(format!(
            "the server has {}, so the archive gets nothing from it: {OTHER_SEGMENT_SIZE_HINT}",
            other_segment_size(own, archived)
        )),
        _ => None,
    };
    let (pending, failing): (Vec<_>, Vec<_>) = failing.into_iter().partition(|failing| !failing.is_certain);
    // A file that was archived ahead proves that archiving works.
    let is_archived = |file: &str| {
        let file = ArchivedFile::parse(file).zip(expected.archive);
        file.is_some_and(|(file, archive)| matches!(archive.find(file), Ok(Some(_))))
    };
    for pending in pending.into_iter().filter(|pending| !is_archived(&pending.file)) {
        found.is_outcome_unknown = true;
        found.notes.push(pending.evidence);
    }
    if let Some(failing) = failing.into_iter().next() {
        let is_known = foreign.is_some()
            || activity
                .and_then(|activity| activity.unresolved_failure.as_ref())
                .is_some_and(|failure| failure.file == failing.file);
        found.problems.push(describe_failing(&failing, is_known, queue, expected));
    }
    if let Some(problem) = foreign {
        found.problems.push(problem);
        found.is_foreign = true;
        found.arrives = archiving.and(archives_itself).map(|_| false);
        return Ok(found);
    }
    match stuck {
        Some(stuck) if stuck.is_certain => found.problems.push(format!("{stuck}; hint: {STUCK_HINT}")),
        Some(stuck) => found.notes.push(format!("{stuck}; hint: {STUCK_HINT}")),
        None => {}
    }
    let data = match &queue.dsn {
        Some(dsn) => data_directory::query(dsn),
        None => queue.pgdata.clone(),
    };
    let user = data.and_then(|data| User::for_data_directory(&data));
    if let Some((archive, user)) = archives_itself.zip(user)
        && archiving.as_ref().is_some_and(|archiving| !archiving.is_off)
        && let Some(Unwritable { problem, hint }) = find_unwritable(archive, files, &user)
        && !found.problems.iter().any(|known| known.contains(&problem))
    {
        found.problems.push(format!("{problem}; hint: {hint}"));
    }
    let last = holdings.and_then(last_segment);
    if let Some((archiving, archive)) = archiving.zip(archives_itself) {
        match archiving.arrives(archive, last)? {
            Arrives::Yes => found.arrives = Some(true),
            Arrives::NotYet => {
                found.is_outcome_unknown = true;
                let reached = archiving
                    .reached
                    .map_or(String::new(), |segment| format!("; the server is in {segment}"));
                found.notes.push(format!("{NOT_YET}{reached}"));
            }
            Arrives::No(problem) => {
                found.arrives = Some(false);
                found.problems.push(problem);
            }
        }
    }
    let other = find_other_writer(queue, files, expected, timeline.zip(written))?;
    match other {
        // The report already contains this reason.
        Some(_) if found.problems.iter().any(|problem| problem.contains("with other content")) => {}
        Some(other) => found.problems.push(other.to_string()),
        None => found.notes.extend(timeline.and_then(|timeline| earlier_timeline_note(timeline, last))),
    }
    Ok(found)
}

/// Finds a sign of another server that writes into the archive, by a primary's timeline and write position,
/// and by the ready files.
fn find_other_writer(
    queue: &QueueOptions,
    files: &[QueuedFile],
    expected: &Expected<'_>,
    primary: Option<(Timeline, Lsn)>,
) -> ArchivingResult<Option<OtherWriter>> {
    let is_used = expected.holdings.is_some_and(|holdings| holdings.system_identifier.is_some());
    let Some(archive) = expected.archive.filter(|_| is_used) else { return Ok(None) };
    if let Some((own, written)) = primary
        && let Some(found) = other_writer::find_branch(archive, own, written)?
    {
        return Ok(Some(found));
    }
    if let Some(found) = other_writer::find_taken_name(archive, queue, files)? {
        return Ok(Some(found));
    }
    // The last checkpoint in the data directory does not show how far the server has written.
    let last = expected.holdings.and_then(last_segment);
    match primary.filter(|_| queue.dsn.is_some()) {
        Some((own, written)) => {
            let last = last.filter(|last| last.timeline == own);
            Ok(other_writer::find_segment_ahead(archive, last, written)?)
        }
        None => Ok(None),
    }
}

/// Describes a failing archiver, with the cause unless `is_known`: the report has a known cause as a separate
/// problem.
fn describe_failing(
    failing: &FailingArchiver,
    is_known: bool,
    queue: &QueueOptions,
    expected: &Expected<'_>,
) -> String {
    let FailingArchiver { file, evidence, .. } = failing;
    // An unreachable archive is a separate problem as well.
    let Some(archive) = expected.archive.filter(|_| !is_known) else { return evidence.clone() };
    match Cause::find(file, queue, archive, expected.section.accept_unknown_versions) {
        Some(Cause { text, hint: Some(hint) }) => format!("{evidence}: {text}; hint: {hint}"),
        Some(Cause { text, hint: None }) => format!("{evidence}: {text}"),
        None => format!("{evidence}: {SEE_LOG}"),
    }
}

/// Describes segments whose size differs from the archive's. Both sizes are in bytes.
pub fn other_segment_size(own: u64, archived: u64) -> String {
    format!("segments of {} MB, and the archive has segments of {} MB", own >> 20, archived >> 20)
}

/// Remedy for another segment size.
pub const OTHER_SEGMENT_SIZE_HINT: &str = "after a change of the segment size (pg_resetwal --wal-segsize), the same names denote other WAL positions: give the cluster a new archive, and take a new base backup";

/// Returns the last segment of the latest timeline in an archive.
fn last_segment(holdings: &Holdings) -> Option<SegmentName> {
    holdings.last_segment.as_deref().and_then(SegmentName::parse)
}

/// Returns the segment size of a readable archive that has WAL.
pub fn segment_size(archive: Option<&Archive>) -> Option<SegmentSize> {
    archive?.segment_size().ok()
}

/// Describes a receiver of another cluster than `own` (of the server or the archive), or one that archives
/// elsewhere: its last archived position is not in the archive, which has segments of `size` and `last` as
/// its last one.
pub fn received_elsewhere(
    status: &Status,
    own: Option<u64>,
    size: Option<SegmentSize>,
    last: Option<SegmentName>,
) -> Option<String> {
    if let (Some(own), Some(received)) = (own.map(|own| own.to_string()), &status.system_identifier)
        && own != *received
    {
        return Some(format!("the received WAL is of cluster {received}, and not of cluster {own}"));
    }
    let size = size?;
    let archived: Lsn = status.archived_lsn.as_deref()?.parse().ok()?;
    let archived = size.segment_of(Lsn(archived.0.checked_sub(1)?));
    // The receiver may have archived more since the archive was listed.
    last.is_none_or(|last| is_far_behind(last, archived, size)).then(|| {
        format!(
            "the received WAL was archived up to {}, which is not in this archive: the receiver archives elsewhere",
            status.archived_lsn.as_deref().unwrap_or_default()
        )
    })
}

/// Notes that the archive has segments of a later timeline than a primary writes.
fn earlier_timeline_note(own: Timeline, last_segment: Option<SegmentName>) -> Option<String> {
    let newest = last_segment?.timeline;
    (own < newest).then(|| {
        format!(
            "the server writes timeline {own}, and the archive has timeline {newest}: another server was promoted"
        )
    })
}

/// Returns the timeline that the server of a data directory writes, or wrote before it was stopped. Returns
/// `None` for a standby, which follows another server's timeline.
pub fn written_timeline(data: &Path, control: &ControlFile) -> Option<Timeline> {
    // Until a standby starts for the first time, its `pg_control` is a copy of the other server's.
    let is_asked_to_recover =
        ["standby.signal", "recovery.signal", "recovery.conf"].iter().any(|name| data.join(name).exists());
    if control.state.is_standby() || is_asked_to_recover {
        return None;
    }
    // After a promotion, `pg_control` has the new timeline only once the first checkpoint on it is complete.
    let entries = fs::read_dir(data.join("pg_wal")).into_iter().flatten().flatten();
    let timelines =
        entries.filter_map(|entry| Some(SegmentName::parse(entry.file_name().to_str()?)?.timeline));
    timelines.chain([control.timeline]).max()
}

/// Returns where the primary of a data directory writes, on its timeline. If its WAL cannot be read, that is
/// its last checkpoint.
pub fn write_position(data: &Path, control: &ControlFile, timeline: Timeline) -> Lsn {
    let follower = FolderFollower::at_end(&data.join("pg_wal")).ok();
    let follower = follower.filter(|follower| follower.info().timeline == timeline);
    follower.map_or(control.checkpoint, |follower| follower.write_position().max(control.checkpoint))
}

/// System identifier; whether the archiver has failed since it last archived a file, as `check` asks; a
/// primary's timeline and the segment that it writes; archiving settings; segment size in bytes; a primary's
/// write position; and `archive_command` if it was loaded after the last file was archived.
const SERVER: &str = "
SELECT system_identifier, coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false),
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn()) END,
       coalesce(last_archived_wal, ''), current_setting('archive_mode'),
       EXISTS (SELECT FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'),
       current_setting('archive_command') = '' AND coalesce(current_setting('archive_library', true), '') = '',
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'),
       CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn()::text END,
       CASE WHEN coalesce(last_archived_time < pg_conf_load_time(), true)
                 AND coalesce(current_setting('archive_library', true), '') = ''
            THEN current_setting('archive_command') END
FROM pg_control_system(), pg_stat_archiver";

/// Describes segments that are missing.
pub fn missing_text(holdings: &Holdings) -> String {
    let segments = holdings.missing_segments;
    let mut text =
        format!("{} {} missing: see walden archive list", counted(segments, "segment"), be(segments));
    if let Some(reset) = holdings.resets.last() {
        text += &format!(
            "; pg_resetwal restarted the WAL at {}, and earlier base backups cannot be recovered past it: take a new base backup, and \
             note the missing segments with walden archive acknowledge-gap",
            reset.lsn
        );
    }
    text
}

/// Describes damage that `verify` has found.
pub fn damage_text(verified: &VerifiedAt) -> String {
    let (objects, be) = (counted(verified.damaged, "object"), be(verified.damaged));
    let time = Timestamp::from_unix_micros(verified.time);
    format!("{objects} {be} damaged, as walden archive verify found at {time}")
}

/// Describes the first unresolved failure, and its remedy.
pub fn failure_problem(activity: &Activity) -> Option<(String, Option<String>)> {
    let failure = activity.unresolved_failure.as_ref()?;
    let (file, message) = (harmless(&failure.file), harmless(&failure.message));
    let others = match activity.unresolved_files.saturating_sub(1) {
        0 => String::new(),
        1 => ", nor is another file that failed".to_owned(),
        others => format!(", nor are {others} other files that failed"),
    };
    let time = Timestamp::from_unix_micros(failure.time);
    let hint = failure.hint.as_ref().map(|hint| harmless(hint).into_owned());
    Some((format!("{file}, last tried at {time}, is not archived{others}: {message}"), hint))
}

/// Returns whether a time is further in the future than clocks of two machines differ.
fn is_in_future(micros: i64) -> bool {
    const HOUR: i64 = 3600 * 1_000_000;
    micros.saturating_sub(jiff::Timestamp::now().as_microsecond()) > HOUR
}

/// Reads the contents of an archive. Files in the queue or in a spool do not count as missing.
pub fn holdings(
    archive: &Archive,
    queue: &QueueOptions,
    receiving: &ReceivingOptions,
) -> Result<Holdings, String> {
    // A queue or spool that cannot be read is reported elsewhere.
    let waiting = || {
        // Ready files of another cluster do not explain segments that are missing here.
        let ready = queue.read().ok().flatten().filter(|_| is_own_server(archive, queue));
        let ready = ready.unwrap_or_default();
        let ready = ready.into_iter().filter_map(|queued| match queued.file {
            ArchivedFile::Segment(name) => Some(name),
            _ => None,
        });
        let received = receiving.spool.as_deref().map(complete_segments);
        ready.chain(received.and_then(Result::ok).unwrap_or_default()).collect()
    };
    status::holdings(archive, &waiting).map_err(|error| with_hint(&error))
}

/// Formats an error of a repository with its remedy.
pub fn with_hint(error: &ArchiveError) -> String {
    let hint = error.hint().map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    format!("{}{hint}", error_text(error))
}

/// Returns whether a server has the archive's cluster and segment size, as far as both report them.
fn is_own_server(archive: &Archive, queue: &QueueOptions) -> bool {
    let by_sql = |dsn: &str| {
        let mut client = walden_postgres::connection::connect(dsn).ok()?;
        let row = client.query_one(IDENTITY, &[]).ok()?;
        let number = |column: usize| Some(row.try_get::<_, i64>(column).ok()?.cast_unsigned());
        Some((number(0)?, number(1)))
    };
    let own = match (&queue.dsn, &queue.pgdata) {
        (Some(dsn), _) => by_sql(dsn),
        (None, Some(data)) => ControlFile::read_data_directory(data).map(|control| {
            (control.system_identifier, arrival::segment_size(&data.join("pg_wal")).map(SegmentSize::bytes))
        }),
        (None, None) => None,
    };
    let (Some((cluster, bytes)), Ok(archived)) = (own, archive.identity()) else { return true };
    archived.system_identifier == cluster.to_string() && bytes.is_none_or(|own| own == archived.segment_bytes)
}

/// System identifier, and segment size in bytes.
const IDENTITY: &str = "
SELECT system_identifier, (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size') FROM pg_control_system()";

/// Returns a reader of the log that the option or the configuration names.
pub fn log_reader(option: Option<&Path>, section: &ArchiveSection) -> Option<ActivityReader> {
    option.or(section.log.as_deref()).map(ActivityReader::new)
}

#[cfg(test)]
mod tests {
    use walden_source::datadir::DatabaseState;

    use super::*;
    use crate::testing::control_file;

    const IN_ARCHIVE_RECOVERY: DatabaseState = DatabaseState::Other(5);
    const IN_PRODUCTION: DatabaseState = DatabaseState::Other(6);

    #[test]
    fn a_primary_on_an_earlier_timeline_than_the_archives_is_noted() {
        let data = tempfile::tempdir().unwrap();
        let note = |state| {
            let own = written_timeline(data.path(), &control_file(state))?;
            earlier_timeline_note(own, SegmentName::parse("000000020000000000000007"))
        };
        for state in [DatabaseState::ShutDown, IN_PRODUCTION] {
            let note = note(state).unwrap();
            assert!(note.contains("writes timeline 1, and the archive has timeline 2"), "{note}");
        }
        for state in [DatabaseState::ShutDownInRecovery, IN_ARCHIVE_RECOVERY] {
            assert_eq!(note(state), None);
        }
        let signal = data.path().join("standby.signal");
        fs::write(&signal, "").unwrap();
        assert_eq!(note(IN_PRODUCTION), None);
        fs::remove_file(signal).unwrap();
        // Just promoted.
        fs::create_dir(data.path().join("pg_wal")).unwrap();
        fs::write(data.path().join("pg_wal/000000020000000000000006"), "").unwrap();
        assert_eq!(note(IN_PRODUCTION), None);
        for last in [None, SegmentName::parse("000000010000000000000007")] {
            assert_eq!(earlier_timeline_note(1, last), None);
        }
    }

    #[test]
    fn a_receiver_of_another_cluster_or_into_another_archive_is_named() {
        let size = SegmentSize::new(1 << 20);
        let last = SegmentName::parse("000000010000000000000007");
        let (cluster, elsewhere) =
            (Some("is of cluster 7, and not of cluster 8"), Some("archives elsewhere"));
        let cases = [
            // System identifier, last archived position, and the archive's segment size and last segment.
            (Some(7), Some("0/00800000"), size, last, None),
            (None, Some("0/00800000"), size, last, None),
            (Some(8), Some("0/00800000"), size, last, cluster),
            (Some(8), None, None, None, cluster),
            // Up to two segments may have been archived since the archive was listed.
            (Some(7), Some("0/00A00000"), size, last, None),
            (Some(7), Some("0/00B00000"), size, last, elsewhere),
            (Some(7), Some("0/00100000"), size, None, elsewhere),
            // The archive is empty or unreadable.
            (Some(7), None, size, last, None),
            (Some(7), Some("0/00000000"), size, last, None),
            (Some(7), Some("0/00B00000"), None, last, None),
        ];
        for (own, archived, size, last, expected) in cases {
            let status = Status {
                system_identifier: Some("7".to_owned()),
                archived_lsn: archived.map(str::to_owned),
                ..Status::default()
            };
            let found = received_elsewhere(&status, own, size, last);
            let is_expected = match (&found, expected) {
                (Some(found), Some(expected)) => found.contains(expected),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{own:?}, {archived:?}, {last:?}: {found:?}");
        }
    }
}
