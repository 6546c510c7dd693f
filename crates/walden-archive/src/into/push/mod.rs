//! What `archive_command` asks for, and what PostgreSQL is going to ask for next.

mod ahead;
mod order;
mod pg_wal;
mod pusher;
mod result;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use walden_source::workers;

use crate::archive::Archive;
use crate::stored::name::ArchivedFile;

pub(crate) use self::ahead::{MAX_AGE, Stamp};
use self::ahead::{Note, Notes};
use self::order::Order;
pub(crate) use self::pg_wal::local_histories;
pub use self::pg_wal::ready_files;
pub(crate) use self::pusher::{FileRead, Pusher, is_locked};
pub use self::result::{FAST, PushError, PushOptions, Pushed};

/// What one call did.
#[derive(Debug)]
pub struct Batch {
    /// What became of the file that was asked for.
    pub asked: Result<Pushed, PushError>,
    /// What became of others that were ready.
    pub others: Vec<Result<Pushed, PushError>>,
    /// Files that are ready, with those that were archived now: PostgreSQL has not marked them as done yet.
    pub ready: usize,
}

/// Archives a file and others that PostgreSQL has ready, in parallel; none of the others appears in the archive before all that
/// PostgreSQL asks for earlier do.
///
/// What becomes of the others is said, and has no influence on what is said of the first.
pub fn push(archive: &Archive, path: &Path, options: &PushOptions) -> Batch {
    let began = Instant::now();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(file) = ArchivedFile::parse(&name) else {
        return Batch { asked: Err(PushError::Name(name)), others: Vec::new(), ready: 0 };
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let ready = ready_files(folder).unwrap_or_default();
    let mut pusher = Pusher::new(archive.clone(), options.clone(), local_histories(folder));
    pusher.ahead = Notes::read(folder, archive);
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
    let order = Order::default();
    let push_file = |buffer: &mut Vec<u8>, index: usize| {
        let turn = order.turn(index);
        // PostgreSQL comes back with the one that failed, and gets past it no more than this call does.
        if index > 0 && (turn.is_held() || began.elapsed() >= options.time) {
            return None;
        }
        let (file, other_path) = (files[index], folder.join(files[index].to_string()));
        let path = if index == 0 { path } else { &other_path };
        let pushed = pusher.push(file, path, waiting.saturating_sub(index), buffer, &|| turn.wait());
        let result = pushed.transpose();
        if let Some(Ok(_)) = result {
            turn.end();
        }
        result
    };
    let (mut results, mut notes) = (Vec::new(), Vec::new());
    workers::run_in_order(0..files.len(), options.threads, Vec::new, push_file, |result| {
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
    // The first one is always worked on.
    let asked = results.remove(0);
    Batch { asked, others: results, ready: ready.len() }
}

/// Checks a file as [`push`] does, and stores nothing.
///
/// # Errors
/// Why a push would fail, as far as that shows without a write.
pub fn find_refusal(archive: &Archive, path: &Path, options: &PushOptions) -> Result<(), PushError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let file = ArchivedFile::parse(&name).ok_or(PushError::Name(name))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let pusher = Pusher::new(archive.clone(), options.clone(), local_histories(folder));
    pusher.learn_link_before(file);
    pusher.find_refusal(file, path)
}

/// What the call that asks for a file need not read again. What has a warning is read, so that it is said once more.
fn note(pushed: &Pushed, read: Option<FileRead>) -> Option<Note> {
    let (stamp, stored) = (read?.stamp?, pushed.stored?);
    pushed.warnings.is_empty().then(|| Note::new(pushed.file, stamp, stored))
}

/// Archives files of a folder, and no others; `done` gets what became of each, in their order, up to the first that is not archived at
/// least, and may end it. None appears in the archive before all that precede it.
///
/// `begin` is called on each thread first.
pub fn push_all(
    archive: &Archive,
    folder: &Path,
    files: &[ArchivedFile],
    options: &PushOptions,
    begin: fn(),
    mut done: impl FnMut(ArchivedFile, Result<Pushed, PushError>) -> ControlFlow<()>,
) {
    let pusher = Pusher::new(archive.clone(), options.clone(), local_histories(folder));
    let buffer = || {
        begin();
        Vec::new()
    };
    let order = Order::default();
    let push = |buffer: &mut Vec<u8>, index: usize| {
        let turn = order.turn(index);
        if turn.is_held() {
            return None;
        }
        let (file, waiting) = (files[index], files.len() - index);
        let path = folder.join(file.to_string());
        let result = pusher.push(file, &path, waiting, buffer, &|| turn.wait()).transpose()?;
        if result.is_ok() {
            turn.end();
        }
        Some((file, result.map(|(pushed, _)| pushed)))
    };
    workers::run_in_order(0..files.len(), options.threads, buffer, push, |result| match result {
        Some((file, result)) => done(file, result),
        None => ControlFlow::Continue(()),
    });
}
