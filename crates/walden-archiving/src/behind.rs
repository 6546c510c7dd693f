//! Notes of files that some of several repositories lack, and the process that copies these files.
//!
//! A push that could not store a file in each repository leaves a note beside the segments. The next push
//! that reaches all repositories starts `walden archive copy`, which removes the note when nothing is
//! missing.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use walden_archive::push::Batch;

use crate::error::{ArchivingError, Result};
use crate::place::Place;

/// Name of the note in the folder of the pushed file.
const NOTE: &str = "walden-behind";

/// Writes the note if a file of the batch is not in all `copies`, or starts copying if there is a note.
/// `path` is the path of the pushed file.
pub fn after_push(place: &Place, path: &Path, batch: &Batch, copies: usize) {
    let Some(folder) = path.parent().filter(|_| copies > 1) else { return };
    let note = folder.join(NOTE);
    let pushed = || std::iter::once(&batch.asked).chain(&batch.others).flatten();
    if pushed().any(|pushed| pushed.copies < copies) {
        // Without the note, `status` still reports the missing files.
        let _ = File::create(&note);
    } else if batch.asked.is_ok() && note.exists() {
        let _ = start(place, &note);
    }
}

fn start(place: &Place, note: &Path) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["archive", "copy"]);
    if let Some(config) = &place.config {
        command.arg("--config").arg(config);
    }
    if let Some(identity) = &place.identity {
        command.arg("--identity").arg(identity);
    }
    command.arg("--note").arg(note);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // A separate process group: a server's shutdown waits for archive_command, but must not wait for this
    // process.
    command.process_group(0).spawn()?;
    Ok(())
}

/// A note while its files are copied. Only one process copies at a time.
pub struct Note {
    path: PathBuf,
    _lock: File,
}

impl Note {
    /// Locks a note. Returns `None` if another process copies, or has copied everything.
    ///
    /// # Errors
    /// The note cannot be read.
    pub fn lock(path: &Path) -> Result<Option<Note>> {
        let failed = || ArchivingError::read(path.display().to_string());
        let lock = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(failed())?,
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(Note { path: path.to_owned(), _lock: lock })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed()(error)),
        }
    }

    /// Removes the note, because every repository has all files.
    ///
    /// # Errors
    /// The note cannot be removed.
    pub fn remove(self) -> Result<()> {
        let cannot = |source| ArchivingError::Remove { path: self.path.clone(), source };
        std::fs::remove_file(&self.path).map_err(cannot)
    }
}
