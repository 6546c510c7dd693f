//! The thread that makes WAL durable in the spool while more WAL is received. It does not use the archive.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use walden_format::lsn::Lsn;

use crate::spool::{Spool, SpoolError};

/// Synchronises the spool: tracks up to which position WAL is wanted durable, and up to which it is.
pub(crate) struct Syncing<'s> {
    spool: &'s Spool<'s>,
    state: Mutex<State>,
    changed: Condvar,
    /// Gets a byte whenever more WAL is durable or the disk has failed.
    news_writer: UnixStream,
    /// The other end, which the thread that waits for the server polls.
    news_reader: UnixStream,
}

/// State shared by the threads that receive and synchronise.
#[derive(Default)]
struct State {
    /// End of the WAL that should become durable.
    wanted: Lsn,
    /// End of the durable WAL.
    durable: Lsn,
    error: Option<SpoolError>,
    /// One of the two threads is synchronising.
    is_busy: bool,
    is_over: bool,
}

impl<'s> Syncing<'s> {
    /// # Errors
    /// Errors of the system, if there are no more file descriptors.
    pub fn new(spool: &'s Spool<'s>) -> io::Result<Syncing<'s>> {
        let (news_writer, news_reader) = UnixStream::pair()?;
        news_writer.set_nonblocking(true)?;
        news_reader.set_nonblocking(true)?;
        Ok(Syncing { spool, state: Mutex::default(), changed: Condvar::new(), news_writer, news_reader })
    }

    /// Synchronises until [`Syncing::stop`] is called.
    pub fn run(&self) {
        let mut state = self.state();
        loop {
            if state.durable < state.wanted && state.error.is_none() && !state.is_busy {
                state = self.sync(state);
                // If the write would block, unread bytes wake the reader already.
                let _ = (&self.news_writer).write(&[1]);
            } else if state.is_over {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Synchronises on the caller's thread, which has nothing else to do. Waking another thread and being
    /// woken by it would take longer than the disk often does. If the other thread is synchronising, it
    /// continues with the WAL wanted now.
    pub fn sync_here(&self, wanted: Lsn) {
        let mut state = self.state();
        if state.is_busy {
            drop(state);
            self.want(wanted);
        } else if state.durable < wanted && state.error.is_none() {
            state.wanted = state.wanted.max(wanted);
            let _state = self.sync(state);
            // The receiving thread may be waiting for this thread to finish before it stops.
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

    /// Requests that everything up to `wanted` becomes durable.
    pub fn want(&self, wanted: Lsn) {
        let mut state = self.state();
        if state.wanted < wanted {
            state.wanted = wanted;
            self.changed.notify_one();
        }
    }

    /// Restarts at another position, with nothing left to synchronise.
    pub fn restart(&self, at: Lsn) {
        let mut state = self.state();
        (state.wanted, state.durable) = (at, at);
    }

    /// Returns the end of the durable WAL.
    ///
    /// # Errors
    /// The disk's error, reported once.
    pub fn durable(&self) -> Result<Lsn, SpoolError> {
        let mut state = self.state();
        match state.error.take() {
            Some(error) => Err(error),
            None => Ok(state.durable),
        }
    }

    /// Makes the thread end once everything requested is durable.
    pub fn stop(&self) {
        self.state().is_over = true;
        self.changed.notify_one();
    }

    /// Returns a stream: a byte written to it wakes the thread that waits for the server.
    ///
    /// # Errors
    /// Errors of the system, if there are no more file descriptors.
    pub fn waker(&self) -> io::Result<UnixStream> {
        self.news_writer.try_clone()
    }

    /// Returns the descriptor that is readable when there is news.
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news_reader.as_fd()
    }

    /// Reads and discards the bytes that signalled news.
    pub fn take_news(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.news_reader).read(&mut bytes), Ok(1..)) {}
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
