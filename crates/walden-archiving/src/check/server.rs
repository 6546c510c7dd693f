//! Checks of the server: its data directory, and its answers over a connection.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use postgres::Row;
use walden_archive::Archive;
use walden_archive::archive::{ArchiveError, Identity};
use walden_archive::list;
use walden_archive::name::ArchivedFile;
use walden_archive::serve::SOCKET;
use walden_archive::status::QueuedFile;
use walden_format::lsn::{Lsn, SegmentSize};
use walden_postgres::connection::{Client, QueryError};
use walden_source::datadir::ControlFile;
use walden_source::regular_file;

use super::{Check, Status};
use crate::activity::ActivityReader;
use crate::archiver::{Cause, FailingArchiver, SEE_LOG};
use crate::arrival::{self, Archiving, Arrives, NOT_YET};
use crate::commands::{describe_other, is_own_library, other_archive};
use crate::data_directory;
use crate::error::{ArchivingError, Result};
use crate::missing_library;
use crate::other_writer;
use crate::queue::{self, QueueOptions};
use crate::report::{self, write_position, written_timeline};
use crate::standby::{STUCK_HINT, StuckStandby};
use crate::writable::{Unwritable, User, find_unwritable};

/// A larger difference between clocks makes recovery targets given as times ambiguous.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// Returns the named data directory, or the working directory if it is one.
pub fn data_directory(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(path) => Some(path.to_owned()),
        None => Path::new("global/pg_control").exists().then(|| PathBuf::from(".")),
    }
}

/// Checks which cluster a data directory belongs to, and which files wait in it.
pub fn look_at_data(data: &Path, look: &Look<'_>) -> Vec<Check> {
    let Look { archive, identity, is_received, .. } = *look;
    let path = data.join("global/pg_control");
    let control = regular_file::read(&path, 1 << 16)
        .map_err(ArchivingError::read(path.display().to_string()))
        .and_then(|bytes| {
            let cannot_use = |error| ArchivingError::Use { path: path.clone(), source: Box::new(error) };
            ControlFile::parse(&bytes).map_err(cannot_use)
        });
    let own = match &control {
        Ok(control) => compare_system("data directory", control.system_identifier, identity),
        Err(error) => Check::error("data directory", error),
    };
    let bytes = arrival::segment_size(&data.join("pg_wal")).map(SegmentSize::bytes);
    let size = bytes.zip(identity).map(|(bytes, identity)| compare_segment_size(bytes, identity));
    let is_own = is_ok(&own) && size.as_ref().is_none_or(is_ok);
    let branch = control.as_ref().ok().filter(|_| is_own).and_then(|control| branch(look, data, control));
    // WAL from `walden receive` needs no `archive_mode`.
    let arrives = archive.filter(|_| is_own && !is_received).zip(control.ok());
    let arrives = arrives.and_then(|(archive, control)| look_at_arrival(data, archive, &control));
    let files = queue::read_data_directory(data);
    let archiver =
        files.as_ref().ok().filter(|_| is_own).and_then(|files| archiver_of_data(data, files, look));
    let queue = QueueOptions { pgdata: Some(data.to_owned()), dsn: None };
    let names = files.as_ref().ok().filter(|_| is_own).and_then(|files| names(look, &queue, files));
    let ready = files.as_deref().unwrap_or_default();
    let writable = writable(Some(data), ready, look).filter(|_| is_own && !is_received);
    let waiting = files.map(|files| backlog(&files, look, is_own));
    let waiting = waiting.unwrap_or_else(|error| Check::error("backlog", &error));
    [Some(own), size, branch, writable, archiver, names, Some(waiting), arrives]
        .into_iter()
        .flatten()
        .collect()
}

/// Checks the archiver by a data directory. Returns `None` unless it fails.
fn archiver_of_data(data: &Path, files: &[QueuedFile], look: &Look<'_>) -> Option<Check> {
    let control = ControlFile::read_data_directory(data);
    let is_standby = control.is_some_and(|control| written_timeline(data, &control).is_none());
    let failing = FailingArchiver::read_data_directory(data, files, is_standby)?;
    if !failing.is_certain {
        return Some(pending(failing));
    }
    let FailingArchiver { file, evidence, .. } = failing;
    let queue = QueueOptions { pgdata: Some(data.to_owned()), dsn: None };
    let (cause, hint) = cause_of_failure(&file, &queue, look);
    Some(Check::fail("archiver", format!("{evidence}{cause}"), Some(hint)))
}

/// Reports an attempt without a result so far.
fn pending(archiver: FailingArchiver) -> Check {
    let hint =
        "check again in a minute; if the file is still ready then, see the server's log and archive_command";
    Check::warn("archiver", archiver.evidence, hint)
}

/// Returns why the archiver fails with a file, as text to append, and a remedy. The cause is from the
/// activity log or from a search.
fn cause_of_failure(file: &str, queue: &QueueOptions, look: &Look<'_>) -> (String, String) {
    let logged = look.log.and_then(|log| log.failure_of(file));
    let logged = logged.map(|failure| Cause { text: failure.message.clone(), hint: failure.hint.clone() });
    let found = || Cause::find(file, queue, look.archive?, look.accepts_unknown_versions);
    let cause = logged.or_else(found);
    let text = cause.as_ref().map_or(String::new(), |cause| format!(": {}", cause.text));
    let hint = cause.and_then(|cause| cause.hint);
    (text, hint.unwrap_or_else(|| SEE_LOG.to_owned()))
}

fn is_ok(check: &Check) -> bool {
    check.status == Status::Ok
}

/// Checks by a primary's files that its WAL reaches the archive.
fn look_at_arrival(data: &Path, archive: &Archive, control: &ControlFile) -> Option<Check> {
    const NAME: &str = "arrival";
    // Another check has reported a place without an archive.
    if !matches!(archive.identity(), Ok(_) | Err(ArchiveError::Empty(_))) {
        return None;
    }
    let timeline = written_timeline(data, control)?;
    let archiving = Archiving::read_data_directory(data, control, timeline);
    let arrives = list::newest_segment(archive).and_then(|newest| archiving.arrives(archive, newest));
    Some(match arrives {
        Ok(Arrives::Yes) => {
            Check::ok(NAME, "the files that the server reports as archived are in the archive")
        }
        Ok(Arrives::NotYet) => Check::ok(NAME, NOT_YET),
        Ok(Arrives::No(problem)) => Check::fail(NAME, problem, None),
        Err(error) => Check::error(NAME, &error.into()),
    })
}

fn compare_system(name: &'static str, own: u64, identity: Option<&Identity>) -> Check {
    match identity {
        None => Check::ok(name, format!("cluster {own}; the first push assigns the archive to it")),
        Some(identity) if identity.system_identifier == own.to_string() => {
            Check::ok(name, format!("cluster {own}, as in the archive"))
        }
        Some(identity) => Check::fail(
            name,
            format!("cluster {own}, but the archive belongs to cluster {}", identity.system_identifier),
            Some("give each cluster its own archive; pg_upgrade creates a new cluster".to_owned()),
        ),
    }
}

/// Compares segment sizes: with another size, the same names denote other WAL positions.
fn compare_segment_size(own: u64, identity: &Identity) -> Check {
    const NAME: &str = "segment size";
    if own == identity.segment_bytes {
        return Check::ok(NAME, format!("segments of {} MB, as in the archive", own >> 20));
    }
    let found = report::other_segment_size(own, identity.segment_bytes);
    Check::fail(NAME, found, Some(report::OTHER_SEGMENT_SIZE_HINT.to_owned()))
}

/// Finds a timeline that branched off from the timeline of a data directory's server, as `status` does.
fn branch(look: &Look<'_>, data: &Path, control: &ControlFile) -> Option<Check> {
    const NAME: &str = "timeline";
    let archive = look.archive.filter(|_| look.identity.is_some())?;
    let own = written_timeline(data, control)?;
    match other_writer::find_branch(archive, own, write_position(data, control, own)) {
        Ok(None) => Some(Check::ok(NAME, format!("the server writes timeline {own}"))),
        Ok(Some(found)) => Some(Check::fail(NAME, found.problem, Some(found.hint))),
        Err(error) => Some(Check::error(NAME, &error.into())),
    }
}

/// Finds a waiting file whose name another server has already used in the archive.
fn names(look: &Look<'_>, queue: &QueueOptions, files: &[QueuedFile]) -> Option<Check> {
    const NAME: &str = "names";
    let archive = look.archive.filter(|_| look.identity.is_some())?;
    match other_writer::find_taken_name(archive, queue, files) {
        Ok(found) => found.map(|found| Check::fail(NAME, found.problem, Some(found.hint))),
        Err(error) => Some(Check::error(NAME, &error)),
    }
}

/// Checks whether the server's user may write into the archive's folders. Returns `None` if it may, or if
/// that cannot be determined.
fn writable(data: Option<&Path>, files: &[QueuedFile], look: &Look<'_>) -> Option<Check> {
    const NAME: &str = "permissions";
    let (archive, user) = look.archive.zip(User::for_data_directory(data?))?;
    let Unwritable { problem, hint } = find_unwritable(archive, files, &user)?;
    Some(Check::fail(NAME, problem, Some(hint)))
}

/// Checks the server's queue as `status` does. Files of a foreign cluster count as unarchived whatever their
/// names.
fn backlog(files: &[QueuedFile], look: &Look<'_>, is_own: bool) -> Check {
    const NAME: &str = "backlog";
    let archive = look.archive.filter(|_| is_own && look.identity.is_some());
    let lag = report::lag(archive, files, look.log);
    match report::backlog_problem(&lag, look.limits) {
        None => Check::ok(NAME, queue::describe(&lag)),
        Some(problem) => Check::fail(NAME, problem, Some(SEE_LOG.to_owned())),
    }
}

/// Which of the server's files the archive must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// No file yet.
    Nothing,
    /// The last file that the server archived.
    Last,
    /// The segment that `pg_switch_wal` completes; the check waits for at most this time.
    Next(Duration),
}

/// Context for the checks of a server.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// Limits of the queue: files, and seconds that a file may wait.
    pub limits: (u64, u64),
    /// Archive that the server should use.
    pub archive: Option<&'a Archive>,
    /// Identity of that archive.
    pub identity: Option<&'a Identity>,
    /// Activity log, already read.
    pub log: Option<&'a ActivityReader>,
    /// The file that must arrive.
    pub expected: Arrival,
    /// Whether `walden receive` archives the server's WAL; the server's own archiving settings are then
    /// irrelevant.
    pub is_received: bool,
    /// The slot with which it is received.
    pub slot: Option<&'a str>,
    /// Whether `walden.toml` has `accept_unknown_versions`.
    pub accepts_unknown_versions: bool,
    /// `archive_command` and `restore_command` as postgresql.conf should have them.
    pub commands: &'a [String; 2],
}

/// Checks the server's settings and statistics over a connection, and whether its WAL arrives.
pub fn look_at_server(dsn: &str, look: &Look<'_>) -> Vec<Check> {
    let Look { archive, identity, is_received, .. } = *look;
    let mut client = match walden_postgres::connection::connect(dsn) {
        Ok(client) => client,
        Err(error) => return vec![Check::error("server", &error.into())],
    };
    let mut checks = Vec::new();
    let mut add = |name, found: Result<Check>| {
        let check = found.unwrap_or_else(|error| Check::error(name, &error));
        let is_good = is_ok(&check);
        checks.push(check);
        is_good
    };
    let mut is_own = add("server", system(&mut client, identity));
    // Timelines of two clusters are unrelated.
    if let Some(archive) = archive.filter(|_| identity.is_some() && is_own) {
        add("timeline", timeline(&mut client, archive));
    }
    if let Some(identity) = identity {
        is_own &= add("segment size", segment_size(&mut client, identity));
    }
    add("clock", clock(&mut client));
    let library = setting(&mut client, "archive_library").unwrap_or_default();
    // The setting that the server does not use.
    let unused = if library.is_empty() { "archive_library" } else { "archive_command" };
    let is_judged = |name: &str| name != unused && !(is_received && name.starts_with("archive_"));
    let missing = missing_library::find(&mut client, &library);
    for (name, judge) in SETTINGS.iter().filter(|(name, _)| is_judged(name)) {
        match &missing {
            Some(missing) if *name == "archive_library" => {
                add(name, Ok(Check::fail(name, missing, Some(missing_library::HINT.to_owned()))))
            }
            _ => add(name, setting(&mut client, name).map(|value| judge(&value, look))),
        };
    }
    // Another library does not connect to the socket.
    if is_own_library(&library) {
        add("archive serve", serve(&mut client, archive));
    }
    // The other checks of a standby do not need the switch.
    let is_standby =
        query(&mut client, "SELECT pg_is_in_recovery()").is_ok_and(|row| row.try_get(0).unwrap_or(false));
    if let Some((archive, identity)) = archive.zip(identity).filter(|_| is_standby && is_own)
        && let Some(stuck) = stuck_standby(&mut client, archive, identity).transpose()
    {
        add("standby", stuck);
    }
    if let Some(slot) = look.slot.filter(|_| is_own)
        && let Some(lost) = lost_slot(&mut client, slot)
    {
        add("slot", Ok(lost));
    }
    let expected = match look.expected {
        Arrival::Next(_) if is_standby => {
            add("switch", Ok(switch_on_standby()));
            Arrival::Last
        }
        expected => expected,
    };
    // An empty archive lacks the server's last file too; another check has reported a place without an
    // archive.
    let has_archive = |archive: &&Archive| matches!(archive.identity(), Ok(_) | Err(ArchiveError::Empty(_)));
    // The server itself may archive received WAL elsewhere, or not at all.
    let arrived_in = archive.filter(|_| !is_received && is_own).filter(has_archive);
    if !is_received || is_archiving(&mut client).unwrap_or(true) {
        add("archiver", archiver(dsn, &mut client, arrived_in, look, expected));
    }
    let files = queue::query_server(&mut client);
    let queue = QueueOptions { dsn: Some(dsn.to_owned()), pgdata: None };
    if let Some(found) = files.as_ref().ok().filter(|_| is_own).and_then(|files| names(look, &queue, files)) {
        add("names", Ok(found));
    }
    let ready = files.as_deref().unwrap_or_default();
    let local = || data_directory::query(dsn);
    if let Some(found) = arrived_in.and_then(|_| writable(local().as_deref(), ready, look)) {
        add("permissions", Ok(found));
    }
    add("backlog", files.map(|files| backlog(&files, look, is_own)));
    match (expected, archive) {
        (Arrival::Next(_), Some(_)) if !is_own => {
            add("switch", Ok(Check::fail("switch", "not tried: the archive is not this server's", None)));
        }
        (Arrival::Next(wait), Some(archive)) => {
            add("switch", switch(&mut client, archive, wait, is_received));
        }
        _ => {}
    }
    checks
}

fn query(client: &mut Client, query: &str) -> Result<Row> {
    client.query_one(query, &[]).map_err(ArchivingError::query(format!("the server refused {query}")))
}

fn system(client: &mut Client, identity: Option<&Identity>) -> Result<Check> {
    let row = query(client, "SELECT system_identifier FROM pg_control_system()")?;
    // SQL has no unsigned numbers.
    Ok(compare_system("server", row.try_get::<_, i64>(0)?.cast_unsigned(), identity))
}

fn segment_size(client: &mut Client, identity: &Identity) -> Result<Check> {
    let row = query(client, "SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'")?;
    Ok(compare_segment_size(row.try_get::<_, i64>(0)?.cast_unsigned(), identity))
}

/// Checks that a primary writes the newest timeline of the archive.
fn timeline(client: &mut Client, archive: &Archive) -> Result<Check> {
    const NAME: &str = "timeline";
    // Before the query, because the server may complete a segment in the meantime.
    let last = list::last_segments(archive)?;
    let row = query(
        client,
        "SELECT CASE WHEN NOT pg_is_in_recovery()
                     THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END,
                CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn()::text END",
    )?;
    let Some(own) = row.try_get::<_, Option<i32>>(0)?.map(i32::cast_unsigned) else {
        return Ok(Check::ok(NAME, "a standby: it follows its primary's"));
    };
    let written: Lsn = row.try_get::<_, String>(1)?.parse()?;
    let found = match other_writer::find_branch(archive, own, written)? {
        None => other_writer::find_segment_ahead(archive, last.get(&own).copied(), written)?,
        found => found,
    };
    if let Some(found) = found {
        return Ok(Check::fail(NAME, found.problem, Some(found.hint)));
    }
    Ok(match last.keys().next_back().copied() {
        Some(newest) if own < newest => Check::warn(
            NAME,
            format!(
                "the server writes timeline {own}, and the archive has timeline {newest}: another server was promoted"
            ),
            "find out which of the two is the primary, and stop the other: its commits are lost at the next failover",
        ),
        _ => Check::ok(NAME, format!("the server writes timeline {own}")),
    })
}

fn clock(client: &mut Client) -> Result<Check> {
    let row = query(client, "SELECT clock_timestamp()")?;
    let (server, own): (SystemTime, SystemTime) = (row.try_get(0)?, SystemTime::now());
    let apart = own.duration_since(server).or_else(|_| server.duration_since(own)).unwrap_or_default();
    Ok(match apart <= CLOCK_TOLERANCE {
        true => Check::ok("clock", "the server's and this machine's agree"),
        false => Check::warn(
            "clock",
            format!("the server's and this machine's are {} s apart", apart.as_secs()),
            "recovery to a time uses the server's clock; synchronize both with the same time server",
        ),
    })
}

fn setting(client: &mut Client, name: &str) -> Result<String> {
    let query = "SELECT coalesce(current_setting($1, true), '')";
    let failed = || ArchivingError::query(format!("the server does not show {name}"));
    let row = client.query_one(query, &[&name]).map_err(failed())?;
    row.try_get(0).map_err(QueryError::from).map_err(failed())
}

/// Checks the value of a setting.
type Judge = fn(&str, &Look<'_>) -> Check;

const SETTINGS: [(&str, Judge); 5] = [
    ("wal_level", |value, _| match value {
        "minimal" => Check::fail(
            "wal_level",
            "minimal: the WAL does not suffice for recovery",
            Some("wal_level = replica, and a restart".to_owned()),
        ),
        _ => Check::ok("wal_level", value),
    }),
    ("archive_mode", |value, _| match value {
        "on" | "always" => Check::ok("archive_mode", value),
        _ => Check::fail(
            "archive_mode",
            format!("{value}: nothing is archived"),
            Some("archive_mode = on, and a restart".to_owned()),
        ),
    }),
    ("archive_command", |value, look| match value {
        "" | "(disabled)" => Check::fail(
            "archive_command",
            "not set",
            Some(format!("archive_command = {}, and a reload", look.commands[0])),
        ),
        _ if !value.contains("archive push") => Check::warn(
            "archive_command",
            value,
            "it does not call walden archive push; this is fine if it runs a script that does",
        ),
        _ if !value.contains("%p") => Check::fail(
            "archive_command",
            format!("{value}: without %p it does not receive the file's path"),
            Some(format!("archive_command = {}, and a reload", look.commands[0])),
        ),
        _ => match other_archive(value, look.archive) {
            Some(other) => Check::fail(
                "archive_command",
                format!("{value}: {}", describe_other(&other, look.archive)),
                Some(format!("archive_command = {}, and a reload", look.commands[0])),
            ),
            None => Check::ok("archive_command", value),
        },
    }),
    ("archive_library", |value, _| match is_own_library(value) {
        true => Check::ok("archive_library", value),
        false => Check::fail(
            "archive_library",
            format!("{value}: another library archives, and archive_command is not called"),
            Some("archive_library = 'walden_archive', or '' for archive_command".to_owned()),
        ),
    }),
    ("restore_command", |value, look| match value {
        "" => Check::warn(
            "restore_command",
            "not set",
            format!(
                "restore_command = {} lets a copy of this server, a standby and pg_rewind read the archive",
                look.commands[1]
            ),
        ),
        _ if value.contains("archive get") && value.contains("%f") && value.contains("%p") => {
            match other_archive(value, look.archive) {
                Some(other) => Check::warn(
                    "restore_command",
                    format!("{value}: {}", describe_other(&other, look.archive)),
                    format!("restore_command = {}", look.commands[1]),
                ),
                None => Check::ok("restore_command", value),
            }
        }
        _ => Check::warn("restore_command", value, "it does not call walden archive get with %f and %p"),
    }),
];

/// Checks that a process listens for `walden_archive.so`, and which archive it uses.
fn serve(client: &mut Client, archive: Option<&Archive>) -> Result<Check> {
    const NAME: &str = "archive serve";
    let named = |value: String, default: &str| if value.is_empty() { default.to_owned() } else { value };
    let socket = named(setting(client, "walden.socket")?, SOCKET);
    let repo = setting(client, "walden.repo")?;
    if let Some(own) = archive.map(|archive| archive.store().location()).filter(|_| !repo.is_empty())
        && own.trim_end_matches('/') != repo.trim_end_matches('/')
    {
        let hint = "name the archive of walden.repo in this check, or set walden.repo to this archive";
        let found = format!("walden.repo is {repo}, but this check uses {own}");
        return Ok(Check::fail(NAME, found, Some(hint.to_owned())));
    }
    let is_local: bool = query(client, "SELECT inet_server_addr() IS NULL")?.try_get(0)?;
    Ok(match UnixStream::connect(&socket) {
        _ if !is_local => {
            Check::ok(NAME, format!("{socket} is on the server's machine, and cannot be checked from here"))
        }
        Ok(_) => Check::ok(NAME, format!("a process listens at {socket}")),
        Err(error) => Check::fail(
            NAME,
            format!("no process listens at {socket}, the server's walden.socket: {error}"),
            Some(format!("start walden archive serve --socket {socket}, and see its activity log")),
        ),
    })
}

/// Checks that archiving works and reaches this archive: the server's command may name another archive.
fn archiver(
    dsn: &str,
    client: &mut Client,
    archive: Option<&Archive>,
    look: &Look<'_>,
    expected: Arrival,
) -> Result<Check> {
    // If the caller waits for the next file, the next file proves more than the last file.
    let arrived_in = archive.filter(|_| expected == Arrival::Last);
    let row = query(
        client,
        "SELECT archived_count, failed_count, coalesce(last_archived_wal, ''), coalesce(last_failed_wal, ''),
                coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false), pg_is_in_recovery(),
                CASE WHEN coalesce(last_archived_time < pg_conf_load_time(), true)
                          AND coalesce(current_setting('archive_library', true), '') = ''
                     THEN current_setting('archive_command') END,
                CASE WHEN NOT pg_is_in_recovery()
                     THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END
         FROM pg_stat_archiver",
    )?;
    let archiving = Archiving {
        // A standby with archive_mode = always archives segments of any timeline.
        timeline: row.try_get::<_, Option<i32>>(7)?.map_or(0, i32::cast_unsigned),
        newer_command: row.try_get(6)?,
        data: data_directory::query(dsn),
        ..Archiving::default()
    };
    let (archived, failed): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let (last, last_failed): (String, String) = (row.try_get(2)?, row.try_get(3)?);
    let (is_failing, is_standby): (bool, bool) = (row.try_get(4)?, row.try_get(5)?);
    let queue = QueueOptions { pgdata: None, dsn: Some(dsn.to_owned()) };
    // The archiver may fail even if the server counts no failures.
    let files = queue::query_server(client)?;
    let uncounted = FailingArchiver::query_server(client, &files)?.filter(|_| !is_failing);
    if let Some(FailingArchiver { file, evidence, .. }) = uncounted.as_ref().filter(|it| it.is_certain) {
        let (cause, hint) = cause_of_failure(file, &queue, look);
        return Ok(Check::fail("archiver", format!("{evidence}{cause}"), Some(hint)));
    }
    if let (false, Some(archive), Some(file)) = (is_failing, arrived_in, ArchivedFile::parse(&last))
        && let Some(problem) = archiving.elsewhere(archive, file)?
    {
        return Ok(Check::fail(
            "archiver",
            problem,
            Some(
                "check which archive the server's settings name (--config, --repo); if they were changed to this one, walden archive check --switch shows whether WAL arrives".to_owned(),
            ),
        ));
    }
    if let Some(failing) = uncounted {
        return Ok(pending(failing));
    }
    Ok(match (is_failing, archived) {
        (true, _) => {
            let (cause, hint) = cause_of_failure(&last_failed, &queue, look);
            Check::fail(
                "archiver",
                format!("it fails with {last_failed} ({failed} failures, {archived} files archived){cause}"),
                Some(hint),
            )
        }
        (false, 0) if is_standby => Check::ok("archiver", "a standby: it archives after a promotion"),
        (false, 0) if matches!(expected, Arrival::Next(_)) => {
            Check::ok("archiver", "nothing was archived since the statistics were reset; the switch tests it")
        }
        (false, 0) => Check::warn(
            "archiver",
            "nothing was archived since the statistics were reset",
            "SELECT pg_switch_wal(), or walden archive check --switch, shows whether it works",
        ),
        (false, _) => Check::ok(
            "archiver",
            format!("{archived} files archived, the last one {last}; {failed} failures before"),
        ),
    })
}

/// Query whether the server has marked a segment as done. The server removes the mark together with the
/// segment at a checkpoint.
const IS_DONE: &str = r#"
SELECT EXISTS (SELECT FROM pg_ls_archive_statusdir() WHERE name = $1::text || '.done')
       OR EXISTS (SELECT FROM pg_stat_archiver
                  WHERE length(last_archived_wal) = 24 AND left(last_archived_wal, 8) = left($1::text, 8)
                        AND last_archived_wal COLLATE "C" >= $1::text AND NOT EXISTS (
                            SELECT FROM pg_ls_archive_statusdir() WHERE name = $1::text || '.ready'))"#;

fn is_done(client: &mut Client, name: &str) -> Result<bool> {
    let row = client.query_one(IS_DONE, &[&name]);
    let failed = || ArchivingError::query("the server does not show the marks of its files");
    row.map_err(failed())?.try_get(0).map_err(QueryError::from).map_err(failed())
}

/// Returns whether the server archives its WAL by any means.
fn is_archiving(client: &mut Client) -> Result<bool> {
    if setting(client, "archive_mode")? == "off" {
        return Ok(false);
    }
    let command = setting(client, "archive_command")?;
    Ok(!matches!(command.as_str(), "" | "(disabled)") || !setting(client, "archive_library")?.is_empty())
}

/// Checks whether a standby can continue; see [`StuckStandby`].
fn stuck_standby(client: &mut Client, archive: &Archive, identity: &Identity) -> Result<Option<Check>> {
    let Some(size) = SegmentSize::new(identity.segment_bytes) else { return Ok(None) };
    let stuck = StuckStandby::query(client, archive, size)?;
    Ok(stuck.map(|stuck| Check::fail("standby", stuck.to_string(), Some(STUCK_HINT.to_owned()))))
}

/// Returns a failure if the server has invalidated the slot of `walden receive`. PostgreSQL 16 and 17 stream
/// with an invalidated slot nevertheless.
fn lost_slot(client: &mut Client, name: &str) -> Option<Check> {
    let slots = walden_watch::server::slots_by_sql(client).ok()?;
    let slot = slots.into_iter().find(|slot| slot.name == name && slot.is_lost)?;
    let reason = slot.invalidation_reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some(Check::fail(
        "slot",
        format!("the server has invalidated the slot {name}{reason}, which therefore keeps no WAL"),
        Some("restart walden receive with --create-slot, which replaces the slot".to_owned()),
    ))
}

/// PostgreSQL refuses `pg_switch_wal` during recovery (`pg_switch_wal` in `xlogfuncs.c`).
fn switch_on_standby() -> Check {
    Check::warn(
        "switch",
        "not tried: the server is a standby, and only a primary can switch to a new segment",
        "give --dsn of the primary, or leave --switch out",
    )
}

/// Switches to a new segment and waits until the server reports the previous one as archived and the archive
/// has it. For WAL from `walden receive`, the server's own report is not required.
fn switch(client: &mut Client, archive: &Archive, wait: Duration, is_received: bool) -> Result<Check> {
    if !is_received && !is_archiving(client)? {
        return Ok(Check::fail("switch", "not tried: the server's settings disable archiving", None));
    }
    if !is_received
        && setting(client, "archive_library")?.is_empty()
        && let Some(other) = other_archive(&setting(client, "archive_command")?, Some(archive))
    {
        let found = format!(
            "not tried: archive_command archives elsewhere, {}",
            describe_other(&other, Some(archive))
        );
        return Ok(Check::fail("switch", found, None));
    }
    // pg_switch_wal does nothing if no WAL was written since the last switch.
    let row = query(client, "SELECT pg_walfile_name(pg_create_restore_point('walden archive check'))")?;
    let current: String = row.try_get(0)?;
    let is_taken = match ArchivedFile::parse(&current) {
        Some(current) => archive.find(current)?.is_some(),
        None => false,
    };
    let row = query(client, "SELECT pg_walfile_name(pg_switch_wal())")?;
    let name: String = row.try_get(0)?;
    let Some(file) = ArchivedFile::parse(&name) else {
        return Ok(Check::fail("switch", format!("the server names a segment {name}"), None));
    };
    let location = archive.store().location();
    // On a busy server, WAL may have moved to another segment before the archive was queried.
    if is_taken && current == name {
        return Ok(Check::fail(
            "switch",
            format!("{name} was in {location} before the server had completed it: it is not this server's"),
            Some(
                "two servers write the same timeline, pg_resetwal took this one back, or one that was restored continues without a timeline of its own: find out which one \
                 is the primary, and stop the other from archiving"
                    .to_owned(),
            ),
        ));
    }
    let began = Instant::now();
    loop {
        let found = archive.find(file)?;
        // The archive may have a file before the server marks it as done: archived ahead, or with other
        // content.
        if let Some((object, bytes)) = found
            && (is_received || is_done(client, &name)?)
        {
            let key = object.key();
            let found =
                format!("{name} arrived after {} ms: {key}, {bytes} bytes", began.elapsed().as_millis());
            return Ok(Check::ok("switch", found));
        }
        // If the mark existed before this second query of the archive, the server has finished with the file.
        if !is_received && is_done(client, &name)? && archive.find(file)?.is_none() {
            return Ok(Check::fail(
                "switch",
                format!(
                    "the server reports {name} as archived, but it is not in {location}: the server archives elsewhere"
                ),
                Some("see its archive_command, and which archive it names".to_owned()),
            ));
        }
        if began.elapsed() > wait {
            let what = match found {
                Some(_) => "is in the archive, but the server did not mark it as done",
                None => "did not arrive",
            };
            return Ok(Check::fail(
                "switch",
                format!("{name} {what} within {} s", wait.as_secs()),
                Some(match is_received {
                    true => "see the activity log of walden receive for the cause".to_owned(),
                    false => SEE_LOG.to_owned(),
                }),
            ));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
