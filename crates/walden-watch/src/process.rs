//! Determines whether a server runs on a data directory, by its files and the processes of this machine.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use walden_source::datadir::ControlFile;
use walden_source::regular_file;

/// The file that a running server keeps in its data directory (`CreateDataDirLockFile`).
const PID_FILE: &str = "postmaster.pid";
/// Many times the size of a `postmaster.pid`.
const MAX_BYTES: u64 = 1 << 16;

/// Whether a server runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ServerProcess {
    /// Not known, for example without the data directory.
    #[default]
    Unknown,
    /// The server runs.
    Running,
    /// The server was stopped, according to `pg_control`.
    ShutDown,
    /// The server does not run, because `postmaster.pid` is missing, but according to `pg_control` it was not
    /// stopped.
    Crashed,
    /// The process with this ID, from `postmaster.pid`, does not exist here. The server crashed, or runs in
    /// another PID namespace.
    ProcessMissing(u32),
}

impl ServerProcess {
    /// Reads the state of a data directory, and its `pg_control` if possible.
    pub fn read_data_directory(data: &Path) -> (ServerProcess, Option<ControlFile>) {
        // In this order: a server that is stopped writes `pg_control` before it removes `postmaster.pid`.
        let before = PidFile::read_data_directory(data);
        let control = ControlFile::read_data_directory(data);
        let process = match (&control, before) {
            (Some(control), _) if control.state.is_shut_down() => ServerProcess::ShutDown,
            (_, PidFile::Running) => ServerProcess::Running,
            (_, PidFile::ProcessMissing(pid)) => ServerProcess::ProcessMissing(pid),
            // The server may have been started between the two reads.
            (Some(_), PidFile::Absent) if PidFile::read_data_directory(data) == PidFile::Absent => {
                ServerProcess::Crashed
            }
            _ => ServerProcess::Unknown,
        };
        (process, control)
    }

    /// Returns whether no server runs here, as far as this can be determined.
    pub fn is_stopped(self) -> bool {
        match self {
            ServerProcess::Unknown | ServerProcess::Running => false,
            ServerProcess::ShutDown | ServerProcess::Crashed | ServerProcess::ProcessMissing(_) => true,
        }
    }

    /// Returns its name in JSON, or `None` if the state is not known.
    pub fn name(self) -> Option<&'static str> {
        match self {
            ServerProcess::Unknown => None,
            ServerProcess::Running => Some("running"),
            ServerProcess::ShutDown => Some("shut_down"),
            ServerProcess::Crashed => Some("crashed"),
            ServerProcess::ProcessMissing(_) => Some("process_missing"),
        }
    }

    /// Describes for the user why the server counts as not running, or returns `None` if it does not.
    pub fn stopped_text(self) -> Option<String> {
        match self {
            ServerProcess::Unknown | ServerProcess::Running => None,
            ServerProcess::ShutDown => Some("the server is stopped".to_owned()),
            ServerProcess::Crashed => {
                Some("the server is not running; it was not shut down cleanly".to_owned())
            }
            ServerProcess::ProcessMissing(pid) => Some(format!(
                "the process {pid} of {PID_FILE} is not here: the server is not running, unless it runs in a container"
            )),
        }
    }
}

/// The state of a `postmaster.pid`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PidFile {
    Absent,
    /// The file exists but cannot be read or used.
    Unknown,
    Running,
    ProcessMissing(u32),
}

impl PidFile {
    fn read_data_directory(data: &Path) -> PidFile {
        match read_pid(data) {
            Ok(Some(pid)) if is_there(pid) => PidFile::Running,
            Ok(Some(pid)) => PidFile::ProcessMissing(pid.as_raw_nonzero().get().cast_unsigned()),
            // The server is writing it.
            Ok(None) => PidFile::Unknown,
            Err(error) if error.kind() == ErrorKind::NotFound => PidFile::Absent,
            Err(_) => PidFile::Unknown,
        }
    }
}

/// Returns the process ID in a `postmaster.pid`, or `None` if it has none yet.
fn read_pid(data: &Path) -> io::Result<Option<Pid>> {
    let pid = PostmasterFile::read(data)?.pid.and_then(|pid| i32::try_from(pid).ok());
    Ok(pid.and_then(Pid::from_raw))
}

/// The content of a `postmaster.pid`; lines that the server has not written yet are `None` (`pidfile.h`
/// defines the lines).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PostmasterFile {
    /// The ID of the server's first process, in the PID namespace of the server.
    pub pid: Option<u32>,
    /// When that process started, in seconds since 1970-01-01 UTC.
    pub started: Option<i64>,
    /// The port.
    pub port: Option<u16>,
    /// The folder of the first socket, or else the first address that the server listens on.
    pub host: Option<String>,
}

impl PostmasterFile {
    /// Reads the file of a data directory.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn read(data: &Path) -> io::Result<PostmasterFile> {
        let content = regular_file::read(&data.join(PID_FILE), MAX_BYTES)?;
        let text = String::from_utf8_lossy(&content);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let line = |number: usize| lines.get(number - 1).copied().filter(|line| !line.is_empty());
        // The number is negative for a server in single-user mode.
        let pid = line(1).and_then(|line| line.parse::<i32>().ok()).map(i32::unsigned_abs);
        Ok(PostmasterFile {
            pid: pid.filter(|pid| *pid != 0),
            started: line(3).and_then(|line| line.parse().ok()),
            port: line(4).and_then(|line| line.parse().ok()),
            host: line(5).or(line(6)).map(|host| if host == "*" { "localhost" } else { host }.to_owned()),
        })
    }
}

/// The state of a server's archiver process, according to its title (`pgarch_ArchiverCopyLoop` and
/// `pgarch_archiveXlog` in `pgarch.c`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArchiverProcess {
    /// The server does not run, or its processes are not visible.
    Unknown,
    /// The server runs without an archiver. A command that cannot be executed ends the archiver
    /// (`pgarch_archiveXlog`, exit statuses over 125).
    Missing,
    /// The archiver runs, and its last attempt did not fail.
    Running,
    /// An attempt is in progress. The previous one may have failed.
    Archiving,
    /// The last attempt failed, for this file.
    Failed(String),
}

impl ArchiverProcess {
    /// Finds the archiver of a data directory's server among the processes of this machine.
    pub fn find_for_data_directory(data: &Path) -> ArchiverProcess {
        let Some(titles) = titles_of_children(data).filter(|titles| !titles.is_empty()) else {
            return ArchiverProcess::Unknown;
        };
        ArchiverProcess::in_titles(&titles)
    }

    fn in_titles(titles: &[String]) -> ArchiverProcess {
        if let Some(file) = titles.iter().find_map(|title| failed_file_in_title(title)) {
            return ArchiverProcess::Failed(file.to_owned());
        }
        let has = |text: &str| titles.iter().any(|title| title.contains(text));
        match has("archiver ") {
            true if has("archiver archiving ") => ArchiverProcess::Archiving,
            true => ArchiverProcess::Running,
            false => ArchiverProcess::Missing,
        }
    }

    /// Finds the archiver like [`ArchiverProcess::find_for_data_directory`], but waits up to `patience` for
    /// the result of an attempt that is in progress.
    pub fn find_after_attempt(data: &Path, patience: Duration) -> ArchiverProcess {
        /// The title shows a failure for a second, until the server tries again (`PGARCH_RESTART_INTERVAL`).
        /// Each search reads the parents of all processes.
        const INTERVAL: Duration = Duration::from_millis(200);
        let deadline = Instant::now() + patience;
        loop {
            let found = ArchiverProcess::find_for_data_directory(data);
            if found != ArchiverProcess::Archiving || Instant::now() >= deadline {
                return found;
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

/// Returns the titles of the processes that the postmaster of a data directory started.
fn titles_of_children(data: &Path) -> Option<Vec<String>> {
    let postmaster = read_pid(data).ok()??.as_raw_nonzero().to_string();
    // The process ID of a server in a container may belong to another server here.
    if let Ok(folder) = fs::read_link(format!("/proc/{postmaster}/cwd"))
        && folder != fs::canonicalize(data).ok()?
    {
        return None;
    }
    let titles = fs::read_dir("/proc").ok()?.flatten().filter_map(|process| {
        let stat = fs::read_to_string(process.path().join("stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        let parent = fields.split_whitespace().nth(1)?;
        let title = (parent == postmaster).then(|| fs::read(process.path().join("cmdline")).ok())??;
        Some(String::from_utf8_lossy(&title).into_owned()).filter(|title| title.starts_with(TITLE))
    });
    Some(titles.collect())
}

/// The start of the titles of a server's processes.
const TITLE: &str = "postgres: ";

/// Returns the file in the title of an archiver whose last attempt failed.
fn failed_file_in_title(title: &str) -> Option<&str> {
    let (_, activity) = title.strip_prefix(TITLE)?.split_once("archiver ")?;
    // Up to version 10, the title has "archiver process" before this.
    let (_, file) = activity.split_once("failed on ")?;
    let file = file.split(['\0', ' ']).next()?;
    (!file.is_empty()).then_some(file)
}

/// Returns whether a process exists in the PID namespace of this process.
fn is_there(pid: Pid) -> bool {
    // The signal is not permitted for a process of another user, but that process exists.
    if matches!(test_kill_process(pid), Err(Errno::SRCH)) {
        return false;
    }
    // A killed process can be signalled until its parent reads its status, which never happens in many
    // containers.
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn the_title_of_an_archiver_says_whether_it_failed() {
        const FILE: &str = "000000010000000000000007";
        for (title, expected) in [
            ("postgres: archiver failed on 000000010000000000000007\0\0", Some(FILE)),
            ("postgres: main: archiver failed on 000000010000000000000007  ", Some(FILE)),
            ("postgres: archiver process   failed on 000000010000000000000007", Some(FILE)),
            ("postgres: archiver last was 000000010000000000000007", None),
            ("postgres: archiver archiving 000000010000000000000007", None),
            ("postgres: archiver ", None),
            ("postgres: walwriter ", None),
            ("", None),
        ] {
            assert_eq!(failed_file_in_title(title), expected, "{title}");
            let found = ArchiverProcess::in_titles(&["postgres: walwriter ".to_owned(), title.to_owned()]);
            assert_eq!(found == ArchiverProcess::Archiving, title.contains("archiving"), "{title}");
            assert_eq!(found == ArchiverProcess::Missing, !title.contains("archiver"), "{title}");
        }
    }

    fn read(pid_file: Option<&str>) -> PidFile {
        let folder = tempfile::tempdir().unwrap();
        if let Some(text) = pid_file {
            fs::write(folder.path().join(PID_FILE), text).unwrap();
        }
        PidFile::read_data_directory(folder.path())
    }

    /// Returns a process that has ended and keeps its ID until its parent waits for it.
    fn ended() -> Child {
        let child = Command::new("true").spawn().unwrap();
        let pid = rustix::process::WaitId::Pid(Pid::from_child(&child));
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(pid, ended).unwrap();
        child
    }

    #[test]
    fn a_pid_file_says_whether_its_process_is_there() {
        let own = std::process::id();
        assert_eq!(read(None), PidFile::Absent);
        assert_eq!(read(Some(&format!("{own}\n/data\n1795000000\n5432\n"))), PidFile::Running);
        assert_eq!(read(Some(&format!("-{own}\n/data\n"))), PidFile::Running);
        let whole = "4711\n/data\n1795000000\n5433\n\n*\n  1 2\nready\n";
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(PID_FILE), whole).unwrap();
        let expected = PostmasterFile {
            pid: Some(4711),
            started: Some(1_795_000_000),
            port: Some(5433),
            host: Some("localhost".to_owned()),
        };
        assert_eq!(PostmasterFile::read(folder.path()).unwrap(), expected);
        for unusable in ["", "\n", "0\n", "postmaster\n", "-2147483648\n", "99999999999\n"] {
            assert_eq!(read(Some(unusable)), PidFile::Unknown, "{unusable:?}");
        }
        let mut child = ended();
        let pid = child.id();
        let text = format!("{pid}\n/data\n");
        #[cfg(target_os = "linux")]
        assert_eq!(read(Some(&text)), PidFile::ProcessMissing(pid));
        child.wait().unwrap();
        assert_eq!(read(Some(&text)), PidFile::ProcessMissing(pid));
    }

    #[test]
    fn without_pg_control_no_server_is_taken_for_a_crashed_one() {
        let folder = tempfile::tempdir().unwrap();
        let (process, control) = ServerProcess::read_data_directory(folder.path());
        assert_eq!((process, control), (ServerProcess::Unknown, None));
        assert!(!process.is_stopped() && process.stopped_text().is_none() && process.name().is_none());
    }

    #[test]
    fn a_server_that_does_not_run_is_described() {
        let stopped = [ServerProcess::ShutDown, ServerProcess::Crashed, ServerProcess::ProcessMissing(4711)];
        assert!(stopped.iter().all(|process| process.is_stopped() && process.stopped_text().is_some()));
        let text = ServerProcess::ProcessMissing(4711).stopped_text().unwrap();
        assert!(text.starts_with("the process 4711 of postmaster.pid is not here: "), "{text}");
    }
}
