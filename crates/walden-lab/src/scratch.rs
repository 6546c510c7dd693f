//! A temporary folder in which programs are run to completion and measured.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::guard::Guard;

/// A temporary folder and the one program that runs in it. The program is stopped and the folder removed when
/// the value is dropped, on SIGINT, SIGTERM and SIGHUP, and when this process is killed.
pub struct Scratch {
    guard: Arc<Guard>,
}

/// Exit status, time and memory of a program that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Wall time in seconds.
    pub wall: f64,
    /// Processor time in seconds, user and system, children included.
    pub cpu: f64,
    /// Peak resident memory in units of 1024 bytes (`ru_maxrss`). Linux counts at least the parent's memory.
    pub peak_kilobytes: u64,
}

impl Scratch {
    /// Creates a folder in the system's folder of temporary files (`TMPDIR`).
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn new() -> Result<Scratch> {
        let folder: PathBuf = tempfile::Builder::new()
            .prefix("walden-")
            .tempdir()
            .context("cannot create a temporary folder (name one by TMPDIR)")?
            .keep();
        Ok(Scratch { guard: Guard::new(folder)? })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.guard.dir()
    }

    /// Runs a program and waits for its end; a failing exit status is not an error.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn run(&self, command: &mut Command) -> Result<Finished> {
        let started = Instant::now();
        let used = self.guard.run(command)?;
        Ok(Finished {
            status: used.status,
            wall: started.elapsed().as_secs_f64(),
            cpu: (used.rusage.utime + used.rusage.stime).as_secs_f64(),
            peak_kilobytes: used.rusage.maxrss / 1024,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_measured_and_the_folder_is_removed() {
        let scratch = Scratch::new().unwrap();
        let folder = scratch.path().to_owned();
        let command = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]).current_dir(&folder);
            command
        };
        let slept = scratch.run(&mut command("touch file; sleep 0.2")).unwrap();
        assert!(slept.status.success() && slept.wall >= 0.2 && slept.peak_kilobytes > 0, "{slept:?}");
        assert!(folder.join("file").exists());
        assert_eq!(scratch.run(&mut command("exit 3")).unwrap().status.code(), Some(3));
        assert!(scratch.run(&mut Command::new("/no such program")).is_err());
        drop(scratch);
        assert!(!folder.exists());
    }
}
