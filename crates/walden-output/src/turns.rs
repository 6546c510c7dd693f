//! An output shared by several threads, which write in turns.
//!
//! A later thread can work ahead: its output is buffered, up to a limit, until all previous threads are done.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::stdout;

/// Maximum number of bytes that each thread buffers: a segment of the usual size.
const MAX_HELD: usize = 16 << 20;

/// An output, and the number of the current turn.
#[derive(Debug)]
pub struct Turns<W> {
    place: Mutex<Place>,
    passed: Condvar,
    /// Locked only by the thread of the current turn, so that a slow output does not block the others.
    out: Mutex<W>,
}

#[derive(Debug)]
struct Place {
    number: usize,
    /// An earlier write failed, so nothing more can be written.
    failed: Option<io::ErrorKind>,
}

impl Place {
    fn can_go_on(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(stdout::mark(kind.into())))
    }
}

impl<W: Write> Turns<W> {
    /// Creates the turns of an output. Number 0 is first.
    pub fn new(out: W) -> Turns<W> {
        let place = Mutex::new(Place { number: 0, failed: None });
        Turns { place, passed: Condvar::new(), out: Mutex::new(out) }
    }

    /// Returns a thread's turn, unless an earlier write failed. Threads must take each number exactly once,
    /// in order, and drop it: otherwise later turns would wait forever.
    ///
    /// # Errors
    /// The error of the earlier write.
    pub fn take(&self, number: usize) -> io::Result<Turn<'_, W>> {
        self.place().can_go_on()?;
        Ok(Turn { turns: self, number, held: Vec::new(), whole: 0 })
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn out(&self, act: impl FnOnce(&mut W) -> io::Result<()>) -> io::Result<()> {
        let done = act(&mut self.out.lock().unwrap_or_else(PoisonError::into_inner));
        done.inspect_err(|error| {
            self.place().failed = Some(error.kind());
            self.passed.notify_all();
        })
    }
}

/// A thread's part of the output. Dropping it starts the next turn.
#[derive(Debug)]
pub struct Turn<'t, W: Write> {
    turns: &'t Turns<W>,
    number: usize,
    held: Vec<u8>,
    /// Number of bytes at the start of `held` that are written even if later output fails.
    whole: usize,
}

impl<W: Write> Turn<'_, W> {
    /// Marks all output so far as valid.
    pub fn keep(&mut self) {
        self.whole = self.held.len();
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// The error of the write that failed, also if it was an earlier turn's.
    pub fn finish(mut self) -> io::Result<()> {
        self.keep();
        self.wait()?;
        self.write_held(self.whole)
    }

    /// Waits for this turn.
    fn wait(&self) -> io::Result<()> {
        let too_early = |place: &mut Place| place.number != self.number && place.failed.is_none();
        let place = self.turns.passed.wait_while(self.turns.place(), too_early);
        place.unwrap_or_else(PoisonError::into_inner).can_go_on()
    }

    /// Writes the first `bytes` held bytes and drops the others. The caller waits for this turn first.
    /// Flushes, so that no bytes stay in the output's own buffer.
    fn write_held(&mut self, bytes: usize) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        self.whole = 0;
        self.turns.out(|out| out.write_all(&held[..bytes]).and_then(|()| out.flush()))
    }
}

impl<W: Write> Write for Turn<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let place = self.turns.place();
        place.can_go_on()?;
        let is_next = place.number == self.number;
        drop(place);
        if !is_next && self.held.len() + bytes.len() <= MAX_HELD {
            self.held.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        self.wait()?;
        if !self.held.is_empty() {
            self.write_held(self.held.len())?;
        }
        self.turns.out(|out| out.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write> Drop for Turn<'_, W> {
    fn drop(&mut self) {
        // Output remains only after another error, which is reported, so this error can be ignored.
        let _ = self.wait().and_then(|()| self.write_held(self.whole));
        self.turns.place().number += 1;
        self.turns.passed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    fn written(turns: Turns<Vec<u8>>) -> String {
        String::from_utf8(turns.out.into_inner().unwrap()).unwrap()
    }

    #[test]
    fn what_comes_later_is_written_later() {
        let turns = Turns::new(Vec::new());
        let (sender, receiver) = channel();
        thread::scope(|scope| {
            let (turns, sender) = (&turns, sender);
            scope.spawn(move || {
                let mut second = turns.take(1).unwrap();
                second.write_all(b"second ").unwrap();
                sender.send(()).unwrap();
                second.finish().unwrap();
            });
            let mut first = turns.take(0).unwrap();
            receiver.recv().unwrap();
            first.write_all(b"first ").unwrap();
            first.finish().unwrap();
        });
        assert_eq!(written(turns), "first second ");
    }

    #[test]
    fn who_has_more_than_may_be_held_waits() {
        let turns = Turns::new(Vec::new());
        let much = vec![b'b'; MAX_HELD];
        thread::scope(|scope| {
            let mut first = turns.take(0).unwrap();
            let waiting = scope.spawn(|| {
                let mut second = turns.take(1).unwrap();
                second.write_all(&much).unwrap();
                // One byte over the limit: this call returns when the first turn is done.
                second.write_all(b"c").unwrap();
                assert!(second.held.is_empty());
                second.finish().unwrap();
            });
            first.write_all(b"a").unwrap();
            first.finish().unwrap();
            waiting.join().unwrap();
        });
        let written = written(turns);
        assert_eq!((written.len(), &written[..2], &written[MAX_HELD..]), (MAX_HELD + 2, "ab", "bc"));
    }

    #[test]
    fn a_failed_turn_writes_only_its_kept_bytes() {
        let turns = Turns::new(Vec::new());
        let (mut first, mut second) = (turns.take(0).unwrap(), turns.take(1).unwrap());
        second.write_all(b"whole").unwrap();
        second.keep();
        second.write_all(b"half").unwrap();
        first.write_all(b"first ").unwrap();
        drop(first);
        drop(second);
        assert_eq!(written(turns), "first whole");
    }

    #[test]
    fn all_turns_report_a_full_output() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let turns = Turns::new(Full);
        let (mut first, mut second) = (turns.take(0).unwrap(), turns.take(1).unwrap());
        second.write_all(b"held").unwrap();
        assert_eq!(first.write_all(b"no room").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(second.write_all(b"more").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(second.finish().unwrap_err().kind(), io::ErrorKind::StorageFull, "no turn waits any more");
        assert!(turns.take(2).is_err());
    }
}
