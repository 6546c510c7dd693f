//! Archives files into several archives of the same cluster.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use walden_source::error_text;

use super::pusher::{FileRead, MayStore, Pusher, Scratch};
use super::result::{PushError, PushOptions, Pushed};
use crate::archive::ArchiveError;
use crate::copies::Copies;
use crate::history::History;
use crate::objects::name::ArchivedFile;
use crate::store::{Cause, StoreError};

/// A pusher for each copy.
///
/// A copy that fails gets no later file from the same pushers. So each copy receives files in PostgreSQL's
/// order, and an unreachable store is not asked again for each file.
pub(crate) struct Pushers {
    pushers: Vec<Member>,
    acknowledge: usize,
}

struct Member {
    pusher: Pusher,
    /// The first file, in PostgreSQL's order, that could not be stored in this copy.
    failed: Mutex<Option<ArchivedFile>>,
    /// Why this copy cannot be used at all.
    unavailable: Mutex<Option<String>>,
}

/// The result of one copy.
enum Attempt {
    Archived(Pushed, Option<FileRead>),
    Failed(PushError),
    /// Not tried, for this reason.
    Skipped(String),
}

impl Pushers {
    /// Creates the pushers of all copies. `histories` state where timelines ended.
    pub fn new(copies: &Copies, options: &PushOptions, histories: &[History]) -> Pushers {
        let member = |copy: &crate::copies::Copy| {
            let level = copy.level.unwrap_or(options.level);
            let options = options.clone().level(level);
            let pusher = Pusher::new(copy.archive.clone(), options, histories.to_vec());
            Member { pusher, failed: Mutex::default(), unavailable: Mutex::default() }
        };
        Pushers { pushers: copies.iter().map(member).collect(), acknowledge: copies.acknowledge() }
    }

    /// Returns the pusher of the first copy.
    pub fn first_mut(&mut self) -> &mut Pusher {
        &mut self.pushers[0].pusher
    }

    /// Chooses the files to archive after the requested one, as [`Pusher::choose_others`] does, with the
    /// first copy that can be listed. Copies that cannot be listed are not asked again.
    ///
    /// # Errors
    /// The first copy's error, if no copy can be listed.
    pub fn choose_others(
        &self,
        asked: ArchivedFile,
        ready: &[ArchivedFile],
    ) -> Result<(Vec<ArchivedFile>, usize), ArchiveError> {
        if let [only] = self.pushers.as_slice() {
            return only.pusher.choose_others(asked, ready);
        }
        let (mut chosen, mut first_error) = (None, None);
        for member in &self.pushers {
            match member.pusher.choose_others(asked, ready) {
                Ok(found) => chosen = chosen.or(Some(found)),
                Err(error) => {
                    *member.unavailable.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(error_text(&error));
                    first_error = first_error.or(Some(error));
                }
            }
        }
        match (chosen, first_error) {
            (Some(chosen), _) => Ok(chosen),
            (None, Some(error)) => Err(error),
            (None, None) => Ok((Vec::new(), ready.len())),
        }
    }

    /// Returns whether the first copy that can be listed has a segment.
    pub fn is_listed(&self, file: ArchivedFile) -> bool {
        self.pushers.iter().any(|member| member.pusher.is_listed(file))
    }

    /// Reads the last records of the predecessor of an unarchived segment: see
    /// [`Pusher::learn_link_before`].
    pub fn learn_link_before(&self, file: ArchivedFile) {
        let available = self.pushers.iter().filter(|member| member.unavailable().is_none());
        available.for_each(|member| member.pusher.learn_link_before(file));
    }

    /// Archives a file in all copies, as [`Pusher::push`] does in one. The file is archived if enough copies
    /// have it; the failures of the others become warnings.
    pub fn push(
        &self,
        file: ArchivedFile,
        path: &Path,
        waiting: usize,
        scratch: &mut Scratch,
        may_store: MayStore<'_>,
    ) -> Result<Option<(Pushed, Option<FileRead>)>, PushError> {
        if let [only] = self.pushers.as_slice() {
            return only.pusher.push(file, path, waiting, scratch, may_store);
        }
        let mut archived: Option<(Pushed, Option<FileRead>)> = None;
        let (mut copies, mut failures, mut skipped) = (0, Vec::new(), Vec::new());
        for member in &self.pushers {
            let location = member.pusher.location();
            match member.push(file, path, waiting, scratch, may_store) {
                None => return Ok(None),
                Some(Attempt::Skipped(problem)) => skipped.push((location, problem)),
                Some(Attempt::Failed(error)) => failures.push((location, error)),
                Some(Attempt::Archived(pushed, read)) => {
                    copies += 1;
                    match &mut archived {
                        None => archived = Some((pushed, read)),
                        Some((first, _)) => first.was_there &= pushed.was_there,
                    }
                }
            }
        }
        let Some((mut pushed, read)) = archived.filter(|_| copies >= self.acknowledge) else {
            let failed = failures.iter().map(|(location, error)| format!("{location}: {}", reason(error)));
            let skipped_too = skipped.iter().map(|(location, problem)| format!("{location}: {problem}"));
            let problems: Vec<String> = failed.chain(skipped_too).collect();
            // Without a failure of this file, an earlier file failed, and the result of the earlier file has
            // the reason.
            return match (failures.into_iter().next(), skipped.into_iter().next()) {
                (Some((_, error)), _) if problems.len() > 1 => {
                    Err(PushError::Copies { name: file.to_string(), problems, first: Box::new(error) })
                }
                (Some((_, error)), _) => Err(error),
                (None, Some((location, problem))) if problems.len() > 1 => {
                    let source = unavailable_error(file, location, problem);
                    let name = file.to_string();
                    let first = Box::new(PushError::Archive { name: name.clone(), source });
                    Err(PushError::Copies { name, problems, first })
                }
                (None, Some((location, problem))) => Err(PushError::Archive {
                    name: file.to_string(),
                    source: unavailable_error(file, location, problem),
                }),
                (None, None) => Ok(None),
            };
        };
        pushed.warnings.extend(failures.iter().map(|(location, error)| describe_failure(location, error)));
        let skipped =
            skipped.iter().map(|(location, problem)| format!("not archived in {location}: {problem}"));
        pushed.warnings.extend(skipped);
        pushed.copies = copies;
        Ok(Some((pushed, read)))
    }
}

/// Describes the failure of a copy, with the remedy. If its store failed, the file is copied later. A copy
/// that refuses the file also refuses it from `walden archive copy`.
fn describe_failure(location: &str, error: &PushError) -> String {
    let is_of_store = matches!(error, PushError::Archive { source, .. } if source.store_error().is_some());
    let hint = match is_of_store {
        true => Some("walden archive copy brings it up to date".into()),
        false => error.hint(),
    };
    let hint = hint.map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    format!("not archived in {location}: {}{hint}", error_text(error))
}

/// Returns the text of an error without the name of the file.
fn reason(error: &PushError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), error_text)
}

fn unavailable_error(file: ArchivedFile, location: &str, problem: String) -> ArchiveError {
    let mut error = StoreError::new("create", &file.key(), location, Cause::Unavailable);
    error.source = Some(problem.into());
    error.into()
}

impl Member {
    fn unavailable(&self) -> Option<String> {
        self.unavailable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns `None` if the file must not be stored yet.
    fn push(
        &self,
        file: ArchivedFile,
        path: &Path,
        waiting: usize,
        scratch: &mut Scratch,
        may_store: MayStore<'_>,
    ) -> Option<Attempt> {
        let order = file.archiving_order();
        let is_behind_failed = || {
            let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.is_some_and(|failed| failed.archiving_order() < order)
        };
        let skipped = || Attempt::Skipped("an earlier file could not be archived".to_owned());
        if let Some(problem) = self.unavailable() {
            return Some(Attempt::Skipped(problem));
        }
        if is_behind_failed() {
            return Some(skipped());
        }
        // Another thread's file can fail while this file waits for its turn.
        let result = self.pusher.push(file, path, waiting, scratch, &|| may_store() && !is_behind_failed());
        Some(match result {
            Ok(None) if is_behind_failed() => skipped(),
            Ok(None) => return None,
            Ok(Some((pushed, read))) => Attempt::Archived(pushed, read),
            Err(error) => {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                *failed = Some(failed.filter(|failed| failed.archiving_order() < order).unwrap_or(file));
                Attempt::Failed(error)
            }
        })
    }
}
