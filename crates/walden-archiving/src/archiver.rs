//! Detects by files or by SQL that a server's archiver fails, and finds the cause.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use walden_archive::Archive;
use walden_archive::name::ArchivedFile;
use walden_archive::push::{self, PushOptions};
use walden_archive::serve::SOCKET;
use walden_archive::status::QueuedFile;
use walden_postgres::connection::Client;
use walden_report::table::harmless;
use walden_report::units;
use walden_source::configuration::Configuration;
use walden_source::error_text;
use walden_watch::process::{ArchiverProcess, ServerProcess};
use walden_watch::settings::Settings;

use crate::arrival::{changed_at, has_settings};
use crate::commands::{describe_other, is_own_library, other_archive};
use crate::data_directory;
use crate::error::{ArchivingError, Result};
use crate::missing_library;
use crate::queue::QueueOptions;
use crate::writable::{User, find_unwritable};

/// Maximum duration of an `archive push` call, including the files that the call archives ahead.
const MAX_CALL: Duration = Duration::from_secs(60);
/// A call without a result after this time may hang forever.
const PENDING_CALL: Duration = Duration::from_secs(10);
/// Lowest rate at which a large segment is archived.
const MIN_BYTES_PER_SECOND: u64 = 8 << 20;

/// An archiver that does not get past a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailingArchiver {
    /// File name.
    pub file: String,
    /// Evidence of the failure.
    pub evidence: String,
    /// Whether archiving the file has certainly failed. If false, the attempt has no result yet, and no
    /// evidence shows that it will succeed.
    pub is_certain: bool,
}

impl FailingArchiver {
    /// Creates the finding that the last attempt failed, by the statistics or the process title.
    fn from_last_attempt(file: String, failures: Option<i64>) -> FailingArchiver {
        let failures = failures.map_or(String::new(), |count| format!(", after {count} failures in all"));
        let evidence =
            format!("the server's last attempt to archive failed, with {}{failures}", harmless(&file));
        FailingArchiver { file, evidence, is_certain: true }
    }

    /// Reads the statistics and the processes of a server. `queue` has its ready files.
    ///
    /// # Errors
    /// The user may not see them, or the server does not answer.
    pub fn query_server(client: &mut Client, queue: &[QueuedFile]) -> Result<Option<FailingArchiver>> {
        let row = client
            .query_one(ARCHIVER, &[])
            .map_err(ArchivingError::query("cannot ask the server for its archiver"))?;
        let (is_failing, is_standby, is_missing) = (row.try_get(0)?, row.try_get(4)?, row.try_get(5)?);
        Ok(match (is_failing, is_standby) {
            (true, _) => Some(FailingArchiver::from_last_attempt(row.try_get(1)?, Some(row.try_get(2)?))),
            (false, true) => None,
            (false, false) if is_missing => FailingArchiver::without_process(queue),
            (false, false) => FailingArchiver::from_queue(queue, row.try_get(3)?, row.try_get(6)?),
        })
    }

    /// Reads the process title of the archiver and the marks in a data directory. A standby with
    /// `archive_mode = on` archives no files, however long they are ready.
    pub fn read_data_directory(
        data: &Path,
        queue: &[QueuedFile],
        is_standby: bool,
    ) -> Option<FailingArchiver> {
        match ArchiverProcess::find_after_attempt(data, ATTEMPT_PATIENCE) {
            ArchiverProcess::Failed(file) => Some(FailingArchiver::from_last_attempt(file, None)),
            _ if is_standby => None,
            _ if ServerProcess::read_data_directory(data).0.is_stopped() => None,
            ArchiverProcess::Missing if !is_off(data) => FailingArchiver::without_process(queue),
            _ => FailingArchiver::from_queue(queue, last_done(data), SystemTime::now()),
        }
    }

    /// Detects a server that should archive and has no archiver process although files are ready.
    fn without_process(queue: &[QueuedFile]) -> Option<FailingArchiver> {
        let file = next_of(queue)?.file.to_string();
        let evidence = format!(
            "the server has no archiver process, and {file} is ready: its command could not be run (exit status over 125), its library \
             could not be loaded, or a signal ended it"
        );
        Some(FailingArchiver { file, evidence, is_certain: true })
    }

    /// Detects that the server has archived no file for longer than a successful call takes although one is
    /// ready, or that its attempt has no result yet.
    fn from_queue(
        queue: &[QueuedFile],
        last_archived: Option<SystemTime>,
        now: SystemTime,
    ) -> Option<FailingArchiver> {
        let next = next_of(queue)?;
        let since = last_archived.map_or(next.since, |last| last.max(next.since));
        let waited = now.duration_since(since).ok()?;
        let limit = MAX_CALL + Duration::from_secs(next.bytes / MIN_BYTES_PER_SECOND);
        let (file, seconds) = (next.file.to_string(), units::seconds(waited.as_secs_f64()));
        let evidence = match waited > limit {
            true => format!(
                "the server has archived nothing for {seconds}, and {file} is ready: its archive_command or archive_library fails, hangs or does not run"
            ),
            false => format!(
                "the server has been archiving {file} for {seconds} without a result: whether it succeeds is not known"
            ),
        };
        (waited > PENDING_CALL).then(|| FailingArchiver { file, evidence, is_certain: waited > limit })
    }
}

/// How long to wait for the result of an attempt that is in progress. Most attempts take less, and the title
/// of the archiver shows a failure only until the next attempt.
const ATTEMPT_PATIENCE: Duration = Duration::from_secs(2);

/// Whether the last attempt failed and with which file, the number of failures, the time of the last success,
/// whether the server is a standby or lacks an archiver process (in `pg_stat_activity` since 15, if the role
/// may see it), and the server's time.
const ARCHIVER: &str = "
SELECT coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false), coalesce(last_failed_wal, ''), failed_count,
       last_archived_time, pg_is_in_recovery(),
       current_setting('archive_mode') <> 'off' AND current_setting('server_version_num')::int >= 150000
           AND EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'checkpointer')
           AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'archiver'),
       clock_timestamp()
FROM pg_stat_archiver";

/// How to distinguish a command that fails from one that hangs, if nothing else shows the cause.
pub const SEE_LOG: &str = "see the server's log for the cause; if it has none, the command hangs: ps shows it as a child of \"archiver archiving \
                           FILE\", and failed_count of pg_stat_archiver does not grow";

/// Returns the file that the server archives next.
fn next_of(queue: &[QueuedFile]) -> Option<&QueuedFile> {
    queue.iter().min_by_key(|queued| queued.file.archiving_order())
}

/// Returns whether the settings in a data directory have `archive_mode = off`.
fn is_off(data: &Path) -> bool {
    has_settings(data) && Settings::read_data_directory(data).get("archive_mode") == Some("off")
}

/// Returns when a file was last marked as done.
fn last_done(data: &Path) -> Option<SystemTime> {
    let entries = fs::read_dir(data.join("pg_wal/archive_status")).ok()?.flatten();
    let done = entries.filter(|entry| entry.file_name().as_encoded_bytes().ends_with(b".done"));
    done.filter_map(|mark| changed_at(&mark.metadata().ok()?)).max()
}

/// Cause of a failing archiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    /// Problem.
    pub text: String,
    /// Remedy.
    pub hint: Option<String>,
}

impl Cause {
    fn new(text: impl Into<String>, hint: &str) -> Cause {
        Cause { text: text.into(), hint: Some(hint.to_owned()) }
    }

    /// Searches the server's settings, the file, and the archive for the reason why a server does not get
    /// past a file. `accept_unknown_versions` is the setting of `walden.toml`.
    pub fn find(
        file: &str,
        queue: &QueueOptions,
        archive: &Archive,
        accept_unknown_versions: bool,
    ) -> Option<Cause> {
        let settings = ArchivingSettings::read(queue)?;
        let data = queue.pgdata.clone().or_else(|| queue.dsn.as_deref().and_then(data_directory::query));
        let is_local = data.is_some();
        let command = settings.cause(archive, is_local);
        command
            .or_else(|| {
                cause_in_file(
                    file,
                    data.as_deref()?,
                    archive,
                    &settings.push_options(accept_unknown_versions),
                )
            })
            .or_else(|| cause_in_store(archive))
            .or_else(|| {
                let queue =
                    ArchivedFile::parse(file).map(|file| QueuedFile { file, bytes: 0, since: UNIX_EPOCH });
                let user = User::for_data_directory(data.as_deref()?)?;
                let found = find_unwritable(archive, queue.as_slice(), &user)?;
                Some(Cause { text: harmless(&found.problem).into_owned(), hint: Some(found.hint) })
            })
            .or_else(|| settings.other_program())
    }
}

/// Archiving settings of a server.
struct ArchivingSettings {
    command: String,
    library: String,
    /// Socket that `walden_archive.so` connects to.
    socket: String,
    /// Where the library is expected and is not installed.
    missing_library: Option<String>,
}

impl ArchivingSettings {
    fn read(queue: &QueueOptions) -> Option<ArchivingSettings> {
        if let Some(dsn) = &queue.dsn {
            let mut client = walden_postgres::connection::connect(dsn).ok()?;
            let row = client.query_one(ARCHIVING_SETTINGS, &[]).ok()?;
            let text = |column: usize| row.try_get::<_, String>(column).unwrap_or_default();
            let [command, library, socket] = [0, 1, 2].map(text);
            let missing_library = missing_library::find(&mut client, &library);
            return Some(ArchivingSettings { command, library, socket, missing_library });
        }
        let data = queue.pgdata.as_deref()?;
        let configuration = Configuration::read(data);
        let default = if configuration.has_main_file() { "" } else { "?" };
        let text = |name: &str| configuration.get(name).unwrap_or(default).to_owned();
        Some(ArchivingSettings {
            command: text("archive_command"),
            library: text("archive_library"),
            socket: configuration.get("walden.socket").unwrap_or_default().to_owned(),
            missing_library: missing_library::find_from_data(&configuration),
        })
    }

    /// Finds a cause in the settings. `is_local`: the server runs on this machine.
    fn cause(&self, archive: &Archive, is_local: bool) -> Option<Cause> {
        let is_unset = matches!(self.command.as_str(), "" | "(disabled)");
        if is_unset && self.library.is_empty() {
            let hint = "set archive_command to what walden archive init printed, and reload the server";
            return Some(Cause::new("neither archive_command nor archive_library is set", hint));
        }
        if let Some(missing) = self.missing_library.as_ref().filter(|_| is_local) {
            return Some(Cause::new(missing, missing_library::HINT));
        }
        if is_own_library(&self.library) {
            return self.cause_at_socket().filter(|_| is_local);
        }
        if !self.library.is_empty() && self.library != "?" {
            return None;
        }
        let program = self.command.split_whitespace().next().unwrap_or_default().trim_matches(['\'', '"']);
        if is_local && program.starts_with('/') && !is_executable(Path::new(program)) {
            let hint = "install the program there, or correct archive_command and reload the server";
            let text =
                format!("archive_command calls {}, which is not an executable file", harmless(program));
            return Some(Cause::new(text, hint));
        }
        let other = other_archive(&self.command, Some(archive))?;
        let hint = "give archive_command and this command the same --repo or --config";
        let text = format!("archive_command: {}", harmless(&describe_other(&other, Some(archive))));
        Some(Cause::new(text, hint))
    }

    fn cause_at_socket(&self) -> Option<Cause> {
        let socket = if self.socket.is_empty() { SOCKET } else { &self.socket };
        let error = UnixStream::connect(socket).err()?;
        let hint = "start walden archive serve, or set walden.socket to the socket that it listens at";
        Some(Cause::new(format!("no walden archive serve listens at {socket}: {error}"), hint))
    }

    /// Returns the cause that the configured program is not Walden.
    fn other_program(&self) -> Option<Cause> {
        let (name, value) = match self.library.as_str() {
            "" | "?" => ("archive_command", &self.command),
            _ => ("archive_library", &self.library),
        };
        if self.command == "?" || self.command.contains("archive push") || is_own_library(&self.library) {
            return None;
        }
        let hint = "see the server's log for why it fails, or set archive_command to what walden archive init printed";
        Some(Cause::new(format!("{name} is '{}', which is not Walden's", harmless(value)), hint))
    }

    /// Returns the options that a push has under the server's command.
    fn push_options(&self, accept_unknown_versions: bool) -> PushOptions {
        PushOptions::default()
            .accept_damaged(self.command.contains("--accept-damaged"))
            .accept_unknown_versions(
                accept_unknown_versions || self.command.contains("--accept-unknown-versions"),
            )
    }
}

const ARCHIVING_SETTINGS: &str = "
SELECT current_setting('archive_command'), coalesce(current_setting('archive_library', true), ''),
       coalesce(current_setting('walden.socket', true), '')";

fn is_executable(program: &Path) -> bool {
    fs::metadata(program).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns the cause if a push refuses the file.
fn cause_in_file(file: &str, data: &Path, archive: &Archive, options: &PushOptions) -> Option<Cause> {
    // The name comes from the server: accept only a valid file name.
    ArchivedFile::parse(file)?;
    let path: PathBuf = data.join("pg_wal").join(file);
    let error = push::find_refusal(archive, &path, options).err()?;
    let hint = error.hint().map(|hint| harmless(&hint).into_owned());
    Some(Cause { text: harmless(&error_text(&error)).into_owned(), hint })
}

/// Returns the cause if the archive's file system is full or read-only.
fn cause_in_store(archive: &Archive) -> Option<Cause> {
    /// More than the object of an ordinary segment needs.
    const MIN_FREE: u64 = 4 << 20;
    let folder = archive.encrypted().inner().folder()?;
    let system = rustix::fs::statvfs(folder).ok()?;
    if system.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        let text = format!("the file system of {} is mounted read-only", folder.display());
        return Some(Cause::new(text, "mount it for writing"));
    }
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    (free < MIN_FREE).then(|| {
        let text = format!("the file system of {} has {} free", folder.display(), units::bytes(free));
        Cause::new(text, "free space there; walden archive prune removes WAL that no kept base backup needs")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(name: &str, seconds_ago: u64, now: SystemTime) -> QueuedFile {
        let since = now - Duration::from_secs(seconds_ago);
        QueuedFile { file: ArchivedFile::parse(name).unwrap(), bytes: 16 << 20, since }
    }

    #[test]
    fn the_socket_of_the_servers_files_is_used() {
        let data = tempfile::tempdir().unwrap();
        let queue = QueueOptions { dsn: None, pgdata: Some(data.path().to_owned()) };
        let settings = || ArchivingSettings::read(&queue).unwrap();
        assert_eq!((settings().library, settings().command), ("?".to_owned(), "?".to_owned()));
        let text = "archive_library = 'walden_archive'\nwalden.socket = '/nowhere/socket'\n";
        fs::write(data.path().join("postgresql.conf"), text).unwrap();
        assert!(settings().command.is_empty());
        let cause = settings().cause_at_socket().unwrap();
        assert!(cause.text.contains("listens at /nowhere/socket: "), "{cause:?}");
    }

    #[test]
    fn a_server_that_archives_nothing_for_longer_than_a_call_takes_is_failing() {
        let now = SystemTime::now();
        let ago = |seconds| Some(now - Duration::from_secs(seconds));
        let [first, second] = ["000000010000000000000007", "000000010000000000000008"];
        type Expected<'a> = Option<(&'a str, bool)>;
        let cases: [(&[QueuedFile], Option<SystemTime>, Expected<'_>); 6] = [
            (&[], ago(1000), None),
            // An attempt without a result so far.
            (&[queued(first, 30, now)], None, Some((first, false))),
            (&[queued(first, 90, now)], None, Some((first, true))),
            // The archiver makes progress although the queue is old.
            (&[queued(first, 900, now), queued(second, 800, now)], ago(5), None),
            (&[queued(second, 800, now), queued(first, 900, now)], ago(70), Some((first, true))),
            // The server was idle until now.
            (&[queued(first, 5, now)], ago(1000), None),
        ];
        for (queue, last_archived, expected) in cases {
            let found = FailingArchiver::from_queue(queue, last_archived, now);
            let is_expected = found.as_ref().map(|found| (found.file.as_str(), found.is_certain)) == expected;
            assert!(is_expected, "{queue:?}: {found:?}");
        }
    }
}
