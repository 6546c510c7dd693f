//! Archives the file that `archive_command` requests and the files that PostgreSQL will request next.

mod ahead;
mod order;
mod pg_wal;
mod pusher;
mod pushers;
mod result;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use walden_source::workers;

use crate::archive::Archive;
use crate::copies::Copies;
use crate::objects::name::ArchivedFile;

pub(crate) use self::ahead::{MAX_AGE, Stamp};
use self::ahead::{Note, Notes};
use self::order::Order;
pub(crate) use self::pg_wal::local_histories;
pub use self::pg_wal::ready_files;
pub(crate) use self::pusher::{FileRead, Pusher, Scratch, is_locked};
pub(crate) use self::pushers::Pushers;
pub use self::result::{FAST, PushError, PushOptions, Pushed};

/// Result of one call.
#[derive(Debug)]
pub struct Batch {
    /// Result for the requested file.
    pub asked: Result<Pushed, PushError>,
    /// Results for other files that were ready.
    pub others: Vec<Result<Pushed, PushError>>,
    /// Number of ready files, including those archived by this call, which PostgreSQL has not marked as done
    /// yet.
    pub ready: usize,
}

/// Archives the requested file, and other ready files in parallel. No other file appears in the archive
/// before all files that PostgreSQL requests earlier.
///
/// Failures of other files are reported separately and do not affect the result of the requested file.
pub fn push(archive: &Archive, path: &Path, options: &PushOptions) -> Batch {
    push_copies(&archive.into(), path, options)
}

/// Archives files as [`push`] does, each in several copies of the archive. A file is archived if enough
/// copies have it; the failures of the others become warnings.
pub fn push_copies(copies: &Copies, path: &Path, options: &PushOptions) -> Batch {
    let archive = copies.first();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(file) = ArchivedFile::parse(&name) else {
        return Batch { asked: Err(PushError::Name(name)), others: Vec::new(), ready: 0 };
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let ready = ready_files(folder).unwrap_or_default();
    let mut pusher = Pushers::new(copies, options, &local_histories(folder));
    pusher.first_mut().ahead = Notes::read(folder, archive);
    let mut files = vec![file];
    let waiting = match pusher.choose_others(file, &ready) {
        Ok((others, waiting)) => {
            files.extend(others);
            waiting
        }
        Err(source) => {
            let asked = Err(PushError::Archive { name, source });
            return Batch { asked, others: Vec::new(), ready: ready.len() };
        }
    };
    if options.look_ahead > 0 {
        pusher.learn_link_before(file);
    }
    // An unreachable copy has taken its time already.
    let began = Instant::now();
    let order = Order::default();
    let push_file = |scratch: &mut Scratch, index: usize| {
        let turn = order.turn(index);
        // PostgreSQL retries a failed file before any later one, so this call does not continue past it
        // either.
        if index > 0 && (turn.is_held() || began.elapsed() >= options.time) {
            return None;
        }
        let (file, other_path) = (files[index], folder.join(files[index].to_string()));
        let path = if index == 0 { path } else { &other_path };
        let pushed = pusher.push(file, path, waiting.saturating_sub(index), scratch, &|| turn.wait());
        let result = pushed.transpose();
        if let Some(Ok(_)) = result {
            turn.end();
        }
        result
    };
    let (mut results, mut notes) = (Vec::new(), Vec::new());
    workers::run_in_order(0..files.len(), options.threads, Scratch::default, push_file, |result| {
        results.extend(result.map(|result| {
            let (pushed, read) = result?;
            notes.extend(note(&pushed, read).filter(|_| pushed.file != file));
            Ok(pushed)
        }));
        ControlFlow::Continue(())
    });
    if !notes.is_empty() {
        Notes::replace(folder, archive, notes);
    }
    // The requested file is always processed.
    let asked = results.remove(0);
    Batch { asked, others: results, ready: ready.len() }
}

/// Checks a file as [`push`] does without storing it.
///
/// # Errors
/// The reason for which a push would fail, as far as it can be found without writing.
pub fn find_refusal(archive: &Archive, path: &Path, options: &PushOptions) -> Result<(), PushError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let file = ArchivedFile::parse(&name).ok_or(PushError::Name(name))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let pusher = Pusher::new(archive.clone(), options.clone(), local_histories(folder));
    pusher.learn_link_before(file);
    pusher.find_refusal(file, path)
}

/// Returns a note for the call that requests this file. A file with a warning gets no note, so that the call
/// repeats the warning.
fn note(pushed: &Pushed, read: Option<FileRead>) -> Option<Note> {
    let (stamp, stored) = (read?.stamp?, pushed.stored?);
    pushed.warnings.is_empty().then(|| Note::new(pushed.file, stamp, stored))
}

/// Archives the given files of a folder. Calls `done` with each result in order, at least up to the first
/// failure; `done` can stop the operation. No file appears in the archive before all preceding files.
///
/// Each thread calls `begin` first.
pub fn push_all(
    copies: &Copies,
    folder: &Path,
    files: &[ArchivedFile],
    options: &PushOptions,
    begin: fn(),
    mut done: impl FnMut(ArchivedFile, Result<Pushed, PushError>) -> ControlFlow<()>,
) {
    let pusher = Pushers::new(copies, options, &local_histories(folder));
    let scratch = || {
        begin();
        Scratch::default()
    };
    let order = Order::default();
    let push = |scratch: &mut Scratch, index: usize| {
        let turn = order.turn(index);
        if turn.is_held() {
            return None;
        }
        let (file, waiting) = (files[index], files.len() - index);
        let path = folder.join(file.to_string());
        let result = pusher.push(file, &path, waiting, scratch, &|| turn.wait()).transpose()?;
        if result.is_ok() {
            turn.end();
        }
        Some((file, result.map(|(pushed, _)| pushed)))
    };
    workers::run_in_order(0..files.len(), options.threads, scratch, push, |result| match result {
        Some((file, result)) => done(file, result),
        None => ControlFlow::Continue(()),
    });
}
