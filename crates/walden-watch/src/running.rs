//! Finds the PostgreSQL servers that run on this machine by their processes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use walden_source::regular_file;

use crate::process::PostmasterFile;

/// A server that runs on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningServer {
    /// Data directory of the server, as a path that this process can access.
    pub data: PathBuf,
    /// The user as which it runs: the name, or the number if the user has no name here.
    pub owner: String,
    /// The number of that user.
    pub uid: u32,
    /// Major version of the server; `None` if it cannot be read.
    pub version: Option<String>,
    /// The content of its `postmaster.pid`, if it can be read.
    pub file: Option<PostmasterFile>,
}

/// Finds the servers whose processes are visible, in the order of their data directories. Empty on systems
/// without `/proc`.
pub fn servers() -> Vec<RunningServer> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let paths = processes.map(|entry| entry.path()).filter(is_process);
    let mut found: Vec<RunningServer> = paths.filter_map(|path| server_of(&path)).collect();
    found.sort_by(|one, other| one.data.cmp(&other.data));
    found.dedup();
    found
}

/// Returns the server whose postmaster is the process with this folder in `/proc`.
fn server_of(process: &Path) -> Option<RunningServer> {
    let program = fs::read_to_string(process.join("comm")).ok()?;
    if !matches!(program.trim_end(), "postgres" | "postmaster") {
        return None;
    }
    let uid = fs::metadata(process).ok()?.uid();
    let server =
        |data: PathBuf, version, file| RunningServer { data, owner: name_of(uid), uid, version, file };
    let folder = process.join("cwd");
    let Ok(named) = fs::read_link(&folder) else {
        return data_directory_argument(process).map(|data| server(data, None, None));
    };
    let file = PostmasterFile::read(&folder).ok()?;
    // In a container, the file has the process ID of the container's namespace.
    if file.pid? != innermost_pid(process)? {
        return None;
    }
    let version = regular_file::read(&folder.join("PG_VERSION"), 64).ok();
    let version = version.map(|text| String::from_utf8_lossy(&text).trim().to_owned());
    let is_here = is_same_folder(&named, &folder);
    let data = if is_here { named } else { process.join("root").join(named.strip_prefix("/").ok()?) };
    Some(server(data, version, Some(file)))
}

/// Returns the process's ID in its innermost PID namespace.
fn innermost_pid(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Returns the absolute path after `-D`. Only the postmaster keeps its arguments; other processes overwrite
/// them with their title.
fn data_directory_argument(process: &Path) -> Option<PathBuf> {
    let arguments = fs::read(process.join("cmdline")).ok()?;
    let text = String::from_utf8_lossy(&arguments);
    let mut words = text.split('\0').skip_while(|word| !word.starts_with("-D"));
    let attached = words.next()?.strip_prefix("-D")?;
    let path = if attached.is_empty() { words.next()? } else { attached };
    Path::new(path).is_absolute().then(|| path.into())
}

fn is_same_folder(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(one).is_some_and(|found| Some(found) == identity(other))
}

/// The user's name by the program `id`, which also knows users that are not in `/etc/passwd`.
pub fn name_of(uid: u32) -> String {
    let output = Command::new("id")
        .args(["-nu", &uid.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let name = output.ok().filter(|output| output.status.success());
    let name = name.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| uid.to_string())
}
