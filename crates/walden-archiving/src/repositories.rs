//! Compares several repositories with each other, for status, check and metrics.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use walden_archive::Archive;
use walden_archive::archive::ArchiveError;
use walden_archive::compare;
use walden_archive::neighbors;
use walden_source::error_text;

use crate::error::PlaceError;
use crate::place::Place;
use crate::report::{Comparison, CopyStatus, STORE_ANSWERS_WITHIN, with_hint};

/// Compares repositories with each other. Reads at most `max_read` pairs of objects whose sizes differ.
///
/// # Errors
/// The repositories belong to different clusters: then the files that one of them lacks say nothing.
pub fn compare(archives: &[Archive], max_read: usize) -> Result<Vec<CopyStatus>, ArchiveError> {
    let archives: Vec<&Archive> = archives.iter().collect();
    neighbors::expect_one_cluster(&archives)?;
    let status = |(archive, compared): (&&Archive, Result<_, ArchiveError>)| {
        let location = archive.store().location().to_owned();
        CopyStatus::new(location, compared.map_err(|error| with_hint(&error)))
    };
    Ok(archives.iter().zip(compare::compare(&archives, max_read)).map(status).collect())
}

/// Maximum number of pairs of objects that [`Comparing`] reads because their sizes differ between two
/// repositories.
const MAX_READ: usize = 16;

/// Compares the configured repositories with a time limit, again after a while.
#[derive(Clone)]
pub struct Comparing {
    place: Place,
    /// Age from which a result is not used any more.
    refresh: Duration,
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// Whether a thread compares the repositories.
    is_running: bool,
    last: Option<(Instant, Result<Comparison, String>)>,
}

impl Comparing {
    /// Prepares the comparison of the repositories of a place.
    pub fn new(place: Place, refresh: Duration) -> Comparing {
        Comparing { place, refresh, shared: Arc::default() }
    }

    /// Returns the state of the repositories. Each is unreadable if they cannot be read within `limit`.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn compare_within(&self, limit: Option<Duration>) -> Result<Comparison, PlaceError> {
        let places = self.place.repositories()?;
        if places.len() < 2 {
            return Ok(Comparison::default());
        }
        let mut state = self.state();
        let is_current =
            |state: &State| state.last.as_ref().is_some_and(|(read, _)| read.elapsed() < self.refresh);
        if !is_current(&state) && !state.is_running {
            (state.is_running, state.last) = (true, None);
            let (comparing, places) = (self.clone(), places.clone());
            // A thread blocked on a network file system whose server is down ends only with the process.
            thread::spawn(move || {
                let found = compare_all(&places).map_err(|error| error_text(&error));
                let mut state = comparing.state();
                (state.is_running, state.last) = (false, Some((Instant::now(), found)));
                comparing.shared.1.notify_all();
            });
        }
        let is_waiting = |state: &mut State| state.is_running;
        let state = match limit {
            None => self.shared.1.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.shared.1.wait_timeout_while(state, limit, is_waiting);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        match &state.last {
            Some((_, Ok(found))) => Ok(found.clone()),
            Some((_, Err(problem))) => {
                Ok(Comparison { problem: Some(problem.clone()), ..Comparison::default() })
            }
            None => {
                let limit = limit.unwrap_or_default().as_secs();
                let late = format!("the repositories were not read within {limit} s");
                let status =
                    |place: Place| CopyStatus::new(place.repo.unwrap_or_default(), Err(late.clone()));
                Ok(Comparison { copies: places.into_iter().map(status).collect(), problem: None })
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn compare_all(places: &[Place]) -> Result<Comparison, PlaceError> {
    let open = |place: &Place| Ok(place.open_to_answer_within(STORE_ANSWERS_WITHIN)?.0);
    let archives = places.iter().map(open).collect::<Result<Vec<Archive>, PlaceError>>()?;
    Ok(match compare(&archives, MAX_READ) {
        Ok(copies) => Comparison { copies, problem: None },
        Err(error) => Comparison { problem: Some(with_hint(&error)), ..Comparison::default() },
    })
}
