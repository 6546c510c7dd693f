//! Processor time and bytes read and written by processes, with their children that have ended.

use std::ffi::OsStr;
use std::fs;
use std::ops::Sub;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, wait};

/// Clock ticks per second in /proc: the same on all Linux architectures with PostgreSQL packages.
const USER_HZ: f64 = 100.0;
/// Background processes that still run this long after the last call are idle: they wait for further calls.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// Sums of a process and its children that have ended.
#[derive(Clone, Copy, Default, Debug)]
pub struct Usage {
    /// Processor seconds of the children alone, or of all.
    pub cpu: f64,
    /// Bytes of files read by system calls, also from the page cache.
    pub read: u64,
    /// Bytes written by system calls.
    pub written: u64,
}

impl Usage {
    /// Returns that of this process's children, and the bytes of this process as well.
    pub fn of_children() -> Result<Usage> {
        Usage::of("self", 13)
    }

    /// Returns that of another process and its children, also those that run. A child adds its sums to its
    /// parent's when it ends.
    pub fn of_tree(id: u32) -> Result<Usage> {
        let ended = Usage::of(&id.to_string(), 13)?.cpu;
        let mut all = Usage::of(&id.to_string(), 11)?;
        all.cpu += ended;
        for child in children(id)? {
            // It may have ended in the meantime.
            let child = Usage::of(&child.as_raw_nonzero().to_string(), 11).unwrap_or_default();
            all.cpu += child.cpu;
            all.read += child.read;
            all.written += child.written;
        }
        Ok(all)
    }

    /// Reads `/proc`; the times are two fields of `stat`, counted after the name (proc(5)).
    fn of(process: &str, times: usize) -> Result<Usage> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        // The second field is a name in parentheses, which may contain any characters.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace().collect()).unwrap_or_default();
        let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
        let ticks = ticks(times).zip(ticks(times + 1)).context("read processor times in /proc/PID/stat")?;
        let io = fs::read_to_string(format!("/proc/{process}/io"))?;
        let bytes = |name: &str| {
            let line = io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            line.with_context(|| format!("read {name} in /proc/PID/io"))
        };
        Ok(Usage {
            cpu: (ticks.0 + ticks.1) as f64 / USER_HZ,
            read: bytes("rchar:")?,
            written: bytes("wchar:")?,
        })
    }
}

impl Sub for Usage {
    type Output = Usage;

    fn sub(self, before: Usage) -> Usage {
        Usage {
            cpu: self.cpu - before.cpu,
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
        }
    }
}

/// Makes this process the parent of processes that its children leave in the background.
pub fn adopt_background_processes() -> Result<()> {
    set_child_subreaper(Some(Pid::INIT)).context("adopt processes in the background")
}

/// Waits for the processes that the calls left, and terminates those that wait for further calls.
pub fn end_background_processes() -> Result<()> {
    let began = Instant::now();
    loop {
        match wait(WaitOptions::NOHANG) {
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error).context("wait for processes in the background"),
            Ok(Some(_)) => continue,
            Ok(None) => {}
        }
        if began.elapsed() > AFTERWARDS {
            let signal = if began.elapsed() > 2 * AFTERWARDS { Signal::KILL } else { Signal::TERM };
            for child in children(std::process::id())? {
                let _ = kill_process(child, signal);
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the children of a process.
fn children(of: u32) -> Result<Vec<Pid>> {
    let own = of.to_string();
    let is_number = |name: &OsStr| name.to_str().and_then(|name| name.parse::<i32>().ok());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(id) = is_number(&entry?.file_name()) else { continue };
        // The process may have ended in the meantime.
        let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else { continue };
        let parent = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(1));
        if parent == Some(own.as_str()) {
            found.extend(Pid::from_raw(id));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn bytes_of_ended_children_are_counted() {
        let before = Usage::of_children().unwrap();
        let copy = ["if=/dev/zero", "of=/dev/null", "bs=1M", "count=20"];
        assert!(Command::new("dd").args(copy).output().unwrap().status.success());
        let used = Usage::of_children().unwrap() - before;
        assert!(used.read >= 20 << 20 && used.written >= 20 << 20 && used.cpu >= 0.0, "{used:?}");
        assert!(Usage::of_tree(std::process::id()).unwrap().read >= used.read);
    }
}
