//! A temporary folder for programs that are run to their end and measured.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::guard::Guard;

/// A temporary folder and the one program that runs in it: both are gone in the end, also on Ctrl-C, SIGTERM and SIGHUP,
/// and when this process is killed.
pub struct Scratch {
    guard: Arc<Guard>,
}

/// A program that has ended, and what it took.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Seconds from its start to its end.
    pub wall: f64,
    /// Seconds of processor time, its own and its children's.
    pub cpu: f64,
    /// The most memory that it had at once. A program that needs less than the process that starts it is charged with
    /// that one's.
    pub peak_kilobytes: u64,
}

impl Scratch {
    /// A folder where the system keeps temporary files (`TMPDIR`).
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new() -> Result<Scratch> {
        let folder: PathBuf = tempfile::Builder::new()
            .prefix("walden-")
            .tempdir()
            .context("no temporary folder (TMPDIR names one)")?
            .keep();
        Ok(Scratch { guard: Guard::new(folder)? })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.guard.dir()
    }

    /// Runs a program to its end, whatever that is.
    ///
    /// # Errors
    /// It cannot be started.
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
    fn what_a_program_took_is_measured_and_the_folder_goes_in_the_end() {
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
