//! Runs the server that recovers.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};
use rustix::process::Signal;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_server::account;
use walden_server::folder::{PORT, tail};
use walden_server::guard::Guard;
use walden_server::programs::Version;
use walden_server::signals::wait_for_exit_if_interrupted;
use walden_source::datadir::DataDir;

use super::error::{Context as _, Result};
use super::redirect::{self, RedirectedTablespace};
use super::{DrillError, DrillOptions, Target};
use crate::restore::prefetch::{FOLDER_PREFIX, LOCK};

/// Time limit for stopping the server.
const STOP_TIMEOUT: Duration = Duration::from_secs(180);
/// Minimum `max_prepared_transactions` in a drill, because the original may have raised the setting after the
/// backup.
const MIN_PREPARED_TRANSACTIONS: u32 = 1024;
/// Number of lines from the server's log in an error.
const LOG_LINES: usize = 20;
/// Settings that would let the server use files outside the drill's folder, open connections, or replay
/// segments that were not rewritten.
const REFUSED_SETTINGS: &[&str] = &[
    "archive_cleanup_command",
    "archive_command",
    "archive_library",
    "archive_mode",
    "data_directory",
    "external_pid_file",
    "include",
    "include_dir",
    "include_if_exists",
    "listen_addresses",
    "log_directory",
    "log_filename",
    "primary_conninfo",
    "recovery_end_command",
    "restore_command",
    "stats_temp_directory",
    "unix_socket_directories",
];
/// The first minor releases that can replay WAL with in-place tablespaces. All releases of later major
/// versions can.
const FIRST_WITH_IN_PLACE: [Version; 3] =
    [Version { major: 12, minor: 12 }, Version { major: 13, minor: 8 }, Version { major: 14, minor: 5 }];

/// Error of a server without in-place tablespaces.
const EMPTY_PATH: &str = "directory \"\" does not exist";
/// Remedy for this error.
const OLD_SERVER: &str = "the WAL creates a tablespace, which a drill can replay only with PostgreSQL 12.12, 13.8, 14.5 or a later release: \
                          name its programs with --bin, or take a newer base backup";

/// PostgreSQL's error for a record of an extension that is not loaded (`RmgrNotFound`).
const MISSING_MANAGER: &str = "Include the extension module that implements this resource manager";

/// Returns a remedy for this error. `libraries` is the original's `shared_preload_libraries`.
fn library_hint(libraries: Option<&str>) -> String {
    let value = libraries.unwrap_or("LIBRARY");
    let found = match libraries {
        Some(libraries) => format!("the original has shared_preload_libraries = '{libraries}'"),
        None => "the backup has no such setting".to_owned(),
    };
    format!(
        "the WAL has records of an extension, whose library the server must load ({found}). A drill does not use the original's \
         configuration: add --set shared_preload_libraries={value}"
    )
}

/// Refuses settings that would let the server leave the drill's folder.
///
/// # Errors
/// The settings contain such a name.
pub fn expect_allowed_settings(settings: &[(String, String)]) -> Result<()> {
    let is_refused = |name: &str| REFUSED_SETTINGS.iter().any(|refused| name.eq_ignore_ascii_case(refused));
    match settings.iter().find(|(name, _)| is_refused(name)) {
        Some((name, _)) => Err(DrillError::refused(format!(
            "cannot set {name}: a drill uses files in its own folder only, and archives nothing"
        ))),
        None => Ok(()),
    }
}

/// Returns whether a server has `allow_in_place_tablespaces`, which it needs to recover tablespaces that are
/// folders in `pg_tblspc`.
fn has_in_place_tablespaces(version: Version) -> bool {
    let first = FIRST_WITH_IN_PLACE.iter().find(|first| first.major == version.major);
    first.map_or(version.major > 14, |first| version >= *first)
}

/// A server in a temporary folder.
pub struct Server {
    pub guard: Arc<Guard>,
    pub bin: PathBuf,
    pub version: Version,
    pub user: String,
    /// `shared_preload_libraries` of the original, if known.
    pub libraries: Option<String>,
}

/// The end of recovery.
pub struct Reached {
    pub lsn: Lsn,
    pub time: Option<i64>,
    pub timeline: Timeline,
}

impl Server {
    fn data(&self) -> PathBuf {
        self.guard.dir().join("data")
    }

    fn log(&self) -> PathBuf {
        self.guard.dir().join("server.log")
    }

    /// Returns the script that recovery runs, and the file in which it records the requested files.
    fn restore(&self) -> (PathBuf, PathBuf) {
        (self.guard.dir().join("restore"), self.guard.dir().join("asked"))
    }

    /// Returns the folder of notes about tablespaces.
    fn notes(&self) -> PathBuf {
        self.guard.dir().join("notes")
    }

    /// Returns the tablespaces that the WAL created.
    pub fn redirected_tablespaces(&self) -> Result<Vec<RedirectedTablespace>> {
        redirect::redirected(&self.notes()).context("cannot read the notes about tablespaces")
    }

    /// Writes the configuration and the script that fetches files.
    pub fn configure(&self, copied: &DataDir, size: SegmentSize, options: &DrillOptions) -> Result<()> {
        let dir = self.guard.dir();
        let socket = dir.join("s");
        fs::create_dir(&socket).context("cannot make a folder for the socket")?;
        fs::create_dir(self.notes()).context("cannot make a folder for notes")?;
        self.write_restore_script(&options.restore_command)?;
        let data = self.data();
        let text = self.settings(copied, size, options, &socket)?;
        fs::write(data.join("postgresql.conf"), text).context("cannot write postgresql.conf")?;
        // Only the server's account and root can enter the socket's folder.
        fs::write(data.join("pg_hba.conf"), "local all all trust\n").context("cannot write pg_hba.conf")?;
        fs::write(data.join("pg_ident.conf"), "").context("cannot write pg_ident.conf")?;
        fs::write(data.join("recovery.signal"), "").context("cannot write recovery.signal")?;
        Ok(account::chown_all(dir)?)
    }

    fn settings(
        &self,
        copied: &DataDir,
        size: SegmentSize,
        options: &DrillOptions,
        socket: &Path,
    ) -> Result<String> {
        let sizes = copied.control().sizes;
        let (script, _) = self.restore();
        // PostgreSQL replaces %f and %p, and %% by %.
        let script = script.display().to_string().replace('%', "%%");
        let timeline = options.timeline.map_or("latest".to_owned(), |timeline| timeline.to_string());
        let mut settings: Vec<(&str, String)> = vec![
            ("listen_addresses", String::new()),
            ("unix_socket_directories", socket.display().to_string()),
            ("unix_socket_permissions", "0700".into()),
            ("port", PORT.to_string()),
            // Unlike a hot standby, recovery then does not stop if the WAL raises a setting.
            ("hot_standby", "off".into()),
            ("archive_mode", "off".into()),
            ("restore_command", format!("/bin/sh {} %f \"%p\"", quoted(&script))),
            ("recovery_target_action", "promote".into()),
            ("recovery_target_timeline", timeline),
            ("max_connections", sizes.max_connections.max(20).to_string()),
            ("max_worker_processes", sizes.max_worker_processes.max(1).to_string()),
            ("max_wal_senders", sizes.max_wal_senders.to_string()),
            (
                "max_prepared_transactions",
                sizes.max_prepared_transactions.max(MIN_PREPARED_TRANSACTIONS).to_string(),
            ),
            ("max_locks_per_transaction", sizes.max_locks_per_transaction.max(64).to_string()),
            // Subscriptions would connect to the servers that they name.
            ("max_logical_replication_workers", "0".into()),
            ("autovacuum", "off".into()),
            // Only prepared transactions of the original hold locks for long. A query of the user, or a lock
            // on a catalog, would wait for them forever.
            ("lock_timeout", "10s".into()),
            ("logging_collector", "off".into()),
            ("timezone", "UTC".into()),
            ("log_timezone", "UTC".into()),
        ];
        settings.extend(wal_sizes(size));
        if has_in_place_tablespaces(self.version) {
            settings.push(("allow_in_place_tablespaces", "on".into()));
        }
        if self.version.major >= 17 {
            settings.push(("event_triggers", "off".into()));
        }
        match &options.target {
            Target::End => {}
            Target::Time(time) => settings.push(("recovery_target_time", time.clone())),
            Target::RestorePoint(name) => settings.push(("recovery_target_name", name.clone())),
        }
        let mut text = "# Written by walden archive drill.\n".to_owned();
        let own = settings.iter().map(|(name, value)| (*name, value.as_str()));
        let wanted = options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(wanted) {
            if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.')) {
                return Err(DrillError::refused(format!("cannot set {name}: not the name of a setting")));
            }
            writeln!(
                text,
                "{name} = '{}'",
                value.replace('\\', "\\\\").replace('\'', "''").replace('\n', " ")
            )?;
        }
        Ok(text)
    }

    /// Writes the script. It records each name for progress, then executes the program that fetches the file.
    fn write_restore_script(&self, command: &[std::ffi::OsString]) -> Result<()> {
        let (script, asked) = self.restore();
        let [program, arguments @ ..] = command else {
            return Err(DrillError::refused("cannot restore without a command".to_string()));
        };
        let mut words = vec![quoted(&self.runnable(Path::new(program))?.display().to_string())];
        words.extend(arguments.iter().map(|argument| quoted(&argument.to_string_lossy())));
        words.extend([redirect::OPTION.to_owned(), quoted(&self.notes().display().to_string())]);
        let asked = quoted(&asked.display().to_string());
        let text = format!("printf '%s\\n' \"$1\" >> {asked}\nexec {} \"$1\" \"$2\"\n", words.join(" "));
        fs::write(&script, text).with_context(|| format!("cannot write {}", script.display()))
    }

    /// Returns the program itself if the server's account can run it, otherwise a copy.
    fn runnable(&self, program: &Path) -> Result<PathBuf> {
        let dir = self.guard.dir();
        let status = account::command(program, dir)?
            .arg("--version")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success()) {
            return Ok(program.to_owned());
        }
        let copy = dir.join("walden");
        fs::copy(program, &copy).with_context(|| format!("cannot copy {}", program.display()))?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))
            .context("cannot make the copy a program")?;
        Ok(copy)
    }

    /// Fetches a segment as the server will, to report a failure early and with the command's own message.
    pub fn check_restore_command(&self, segment: SegmentName) -> Result<()> {
        let (script, asked) = self.restore();
        let target = self.guard.dir().join("probe");
        let mut command = account::command(Path::new("/bin/sh"), self.guard.dir())?;
        let output = command.arg(&script).arg(segment.to_string()).arg(&target).output();
        let output = output.context("cannot run /bin/sh")?;
        if !output.status.success() {
            let user = account::server_account()?.map(|user| format!(" as the user {}", user.name));
            return Err(DrillError::refused(format!(
                "cannot fetch {segment}, at which recovery starts{} ({}): {}",
                user.unwrap_or_default(),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        }
        self.end_prefetch(self.guard.dir());
        for path in [target, asked] {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Starts the server and waits until recovery ends and the server accepts connections. Calls `asked` with
    /// the number of requested files.
    pub fn recover(&self, timeout: Option<Duration>, asked: &mut dyn FnMut(u64)) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log());
        let log = log.context("cannot write the server's log")?;
        let mut command = account::command(&self.bin.join("postgres"), self.guard.dir())?;
        command.arg("-D").arg(self.data()).stdout(log.try_clone()?).stderr(log);
        self.guard.spawn(&mut command)?;
        let (_, asked_in) = self.restore();
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(status) = self.guard.poll()? {
                wait_for_exit_if_interrupted();
                let log = self.log_tail();
                let problem =
                    format!("recovery failed: the server ended ({status}); the end of its log:\n{log}");
                let mut hint = None;
                if log.contains(EMPTY_PATH) && !has_in_place_tablespaces(self.version) {
                    hint = Some(OLD_SERVER.into());
                }
                if log.contains(MISSING_MANAGER) {
                    hint = Some(library_hint(self.libraries.as_deref()).into());
                }
                return Err(DrillError::RecoveryFailed { problem, hint });
            }
            if self.is_ready() {
                return self.connect("postgres").map(drop).with_context(|| {
                    format!(
                        "the server has recovered; --user must name a superuser of the cluster, and is {}",
                        self.user
                    )
                });
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                let log = self.log_tail();
                let text = format!("recovery takes longer than allowed; the end of the server's log:\n{log}");
                return Err(DrillError::recovery_failed(text));
            }
            let lines =
                fs::read(&asked_in).map_or(0, |text| text.iter().filter(|&&byte| byte == b'\n').count());
            asked(lines as u64);
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns whether the server accepts connections, which it does only after recovery because it is not a
    /// hot standby. Reads the eighth line of `postmaster.pid` (`AddToDataDirLockFile`), because connection
    /// attempts would fill its log.
    fn is_ready(&self) -> bool {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        file.lines().nth(7).is_some_and(|status| status.trim() == "ready")
    }

    /// Returns where recovery ended.
    pub fn reached(&self) -> Result<Reached> {
        let row = self.connect("postgres")?.query_one(
            "SELECT pg_last_wal_replay_lsn()::text,
                    (extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000000)::int8,
                    (SELECT timeline_id FROM pg_control_checkpoint())",
            &[],
        );
        let row = row.context("cannot query how far recovery got")?;
        let read = "cannot read how far recovery got";
        let lsn: Option<String> = row.try_get(0).context(read)?;
        let lsn = lsn
            .and_then(|lsn| lsn.parse().ok())
            .ok_or_else(|| DrillError::refused("the server does not report how far recovery got"))?;
        let timeline = row.try_get::<_, i32>(2).context(read)?.cast_unsigned();
        Ok(Reached { lsn, time: row.try_get(1).context(read)?, timeline })
    }

    /// Stops the server and the processes that prefetch files for it.
    pub fn stop(&self) -> Result<()> {
        self.guard.signal(Signal::INT);
        if self.guard.wait(STOP_TIMEOUT)?.is_none() {
            return Err(DrillError::refused(format!(
                "the server did not stop in {STOP_TIMEOUT:?}; the end of its log:\n{}",
                self.log_tail()
            )));
        }
        self.end_prefetch(&self.data().join("pg_wal"));
        Ok(())
    }

    /// Ends prefetching processes with spool folders in `folder`, by removing their folders. Waits for the
    /// lock of each.
    fn end_prefetch(&self, folder: &Path) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        let is_spool = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FOLDER_PREFIX))
        };
        for spool in entries.flatten().map(|entry| entry.path()).filter(is_spool) {
            let lock = File::open(spool.join(LOCK));
            let deadline = Instant::now() + Duration::from_secs(10);
            loop {
                // The process may be writing a file into the folder.
                let is_gone = fs::remove_dir_all(&spool).is_ok() || !spool.exists();
                let is_free = lock.as_ref().map_or(true, |lock| lock.try_lock().is_ok());
                if (is_gone && is_free) || Instant::now() > deadline {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Returns the connection settings for a database.
    pub fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config
            .host_path(self.guard.dir().join("s"))
            .port(PORT)
            .user(&self.user)
            .dbname(database)
            .application_name("walden archive drill")
            .connect_timeout(Duration::from_secs(10));
        config
    }

    /// Connects to a database.
    pub fn connect(&self, database: &str) -> Result<Client> {
        let client = self.config(database).connect(NoTls);
        client.with_context(|| format!("cannot connect to the database {database}"))
    }

    /// Returns a command for one of the server's client programs, or `None` if it is not installed.
    pub fn client_command(&self, program: &str) -> Result<Option<Command>> {
        let path = self.bin.join(program);
        if !path.is_file() {
            return Ok(None);
        }
        let mut command = account::command(&path, self.guard.dir())?;
        command
            .env("PGHOST", self.guard.dir().join("s"))
            .env("PGPORT", PORT.to_string())
            .env("PGUSER", &self.user);
        Ok(Some(command))
    }

    fn log_tail(&self) -> String {
        tail(&self.log(), LOG_LINES)
    }
}

/// Returns `min_wal_size` and `max_wal_size`: PostgreSQL's defaults, or more for large segments. The server
/// requires each to hold at least two segments (`ReadControlFile` in `xlog.c`), so 80 MB is too small for
/// segments of 64 MB, and 1 GB for segments of 1 GB.
fn wal_sizes(size: SegmentSize) -> [(&'static str, String); 2] {
    let segment = size.bytes() >> 20;
    let megabytes = |default: u64, segments: u64| format!("{}MB", default.max(segments * segment));
    [("min_wal_size", megabytes(80, 2)), ("max_wal_size", megabytes(1024, 4))]
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_the_original_are_named() {
        assert!(library_hint(Some("one, two")).ends_with("--set shared_preload_libraries=one, two"));
        assert!(library_hint(None).ends_with("--set shared_preload_libraries=LIBRARY"));
    }

    #[test]
    fn wal_sizes_fit_segments_of_all_sizes() {
        for bytes in (20..=30).map(|shift| 1_u64 << shift) {
            let sizes = wal_sizes(SegmentSize::new(bytes).unwrap());
            let megabytes = sizes.map(|(_, value)| value.strip_suffix("MB").unwrap().parse::<u64>().unwrap());
            assert!(megabytes.iter().all(|&size| size >= 2 * (bytes >> 20)), "{bytes}: {megabytes:?}");
            assert!(megabytes[0] < megabytes[1], "{bytes}: {megabytes:?}");
        }
        let default = [("min_wal_size", "80MB".to_owned()), ("max_wal_size", "1024MB".to_owned())];
        assert_eq!(wal_sizes(SegmentSize::DEFAULT), default);
    }
}
