//! The thread that makes the log durable in the spool while more of it is received. It knows nothing of the archive.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use walden_format::lsn::Lsn;

use crate::spool::{Spool, SpoolError};

/// From memory to the spool's disk: up to where the log is to be durable there, and up to where it is.
pub(crate) struct Syncing<'s> {
    spool: &'s Spool<'s>,
    state: Mutex<State>,
    changed: Condvar,
    /// Gets a byte whenever more is durable or the disk has failed.
    news_writer: UnixStream,
    /// Gives it to the thread that waits for the server.
    news_reader: UnixStream,
}

/// What the threads that receive and synchronise tell each other.
#[derive(Default)]
struct State {
    /// The end of what is to be made durable.
    wanted: Lsn,
    /// The end of what is.
    durable: Lsn,
    error: Option<SpoolError>,
    /// One of the two threads is at it.
    is_busy: bool,
    is_over: bool,
}

impl<'s> Syncing<'s> {
    /// # Errors
    /// The system's, if there are no more file descriptors.
    pub fn new(spool: &'s Spool<'s>) -> io::Result<Syncing<'s>> {
        let (news_writer, news_reader) = UnixStream::pair()?;
        news_writer.set_nonblocking(true)?;
        news_reader.set_nonblocking(true)?;
        Ok(Syncing { spool, state: Mutex::default(), changed: Condvar::new(), news_writer, news_reader })
    }

    /// Works until it is told to stop.
    pub fn run(&self) {
        let mut state = self.state();
        loop {
            if state.durable < state.wanted && state.error.is_none() && !state.is_busy {
                state = self.sync(state);
                // A byte that is there already wakes as well.
                let _ = (&self.news_writer).write(&[1]);
            } else if state.is_over {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Synchronises on the caller's thread, which has nothing else to do: to wake another one, and be woken by it, would take longer
    /// than many a disk. If the thread is at it, it goes on with what is wanted now.
    pub fn sync_here(&self, wanted: Lsn) {
        let mut state = self.state();
        if state.is_busy {
            drop(state);
            self.want(wanted);
        } else if state.durable < wanted && state.error.is_none() {
            state.wanted = state.wanted.max(wanted);
            let _state = self.sync(state);
            // Stopping waits for the one that is busy.
            self.changed.notify_one();
        }
    }

    fn sync<'g>(&'g self, mut state: MutexGuard<'g, State>) -> MutexGuard<'g, State> {
        state.is_busy = true;
        drop(state);
        let result = self.spool.sync();
        let mut state = self.state();
        state.is_busy = false;
        match result {
            Ok(durable) => state.durable = durable,
            Err(error) => state.error = Some(error),
        }
        state
    }

    /// Wants everything up to here durable.
    pub fn want(&self, wanted: Lsn) {
        let mut state = self.state();
        if state.wanted < wanted {
            state.wanted = wanted;
            self.changed.notify_one();
        }
    }

    /// Begins again at another position, with all that was wanted done.
    pub fn restart(&self, at: Lsn) {
        let mut state = self.state();
        (state.wanted, state.durable) = (at, at);
    }

    /// The end of what is durable.
    ///
    /// # Errors
    /// The disk's, once.
    pub fn durable(&self) -> Result<Lsn, SpoolError> {
        let mut state = self.state();
        match state.error.take() {
            Some(error) => Err(error),
            None => Ok(state.durable),
        }
    }

    /// Has the thread end once all is done that was wanted.
    pub fn stop(&self) {
        self.state().is_over = true;
        self.changed.notify_one();
    }

    /// To write a byte to when there is news of another kind.
    ///
    /// # Errors
    /// The system's, if there are no more file descriptors.
    pub fn waker(&self) -> io::Result<UnixStream> {
        self.news_writer.try_clone()
    }

    /// What is readable when there is news.
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news_reader.as_fd()
    }

    /// Takes note of the news.
    pub fn take_news(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.news_reader).read(&mut bytes), Ok(1..)) {}
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
