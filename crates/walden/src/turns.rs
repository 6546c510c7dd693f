//! Standard output for several threads, each of which writes when it is its turn.
//!
//! Who comes later works ahead meanwhile: what it writes is held back, up to a limit, until those before it are done.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::terminal::of_stdout;

/// Bytes that one of them holds back at most: a segment of usual size.
const MAX_HELD: usize = 16 << 20;

/// An output, and whose turn it is.
pub struct Turns<W> {
    place: Mutex<Place>,
    passed: Condvar,
    /// Locked only by the thread whose turn it is, so that a slow output does not stop the others.
    out: Mutex<W>,
}

struct Place {
    number: usize,
    /// Nothing can be written any more.
    failed: Option<io::ErrorKind>,
}

impl Place {
    fn can_go_on(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(of_stdout(kind.into())))
    }
}

impl<W: Write> Turns<W> {
    /// Number 0 is first.
    pub fn new(out: W) -> Turns<W> {
        let place = Mutex::new(Place { number: 0, failed: None });
        Turns { place, passed: Condvar::new(), out: Mutex::new(out) }
    }

    /// What a thread writes to, unless nothing can be written any more. Each number is taken once, by threads that take them in
    /// order and drop them: the others would wait for a number that is not in use.
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

/// A thread's part of the output. Those after it come when it is dropped.
pub struct Turn<'t, W: Write> {
    turns: &'t Turns<W>,
    number: usize,
    held: Vec<u8>,
    /// How many of these bytes are to be written even if what is to follow fails.
    whole: usize,
}

impl<W: Write> Turn<'_, W> {
    /// What was written so far is as it should be.
    pub fn keep(&mut self) {
        self.whole = self.held.len();
    }

    /// Waits until all is written, and what went wrong with that.
    pub fn finish(mut self) -> io::Result<()> {
        self.keep();
        self.wait()?;
        self.write_held(self.whole)
    }

    /// Until it is its turn.
    fn wait(&self) -> io::Result<()> {
        let too_early = |place: &mut Place| place.number != self.number && place.failed.is_none();
        let place = self.turns.passed.wait_while(self.turns.place(), too_early);
        place.unwrap_or_else(PoisonError::into_inner).can_go_on()
    }

    /// When it is its turn. Nothing stays in the output's own buffer, either.
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
        // Output is left over only after another error, which is reported.
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
                // One byte too many: this returns when the first one is done.
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
    fn of_what_failed_only_what_was_kept_is_written() {
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
    fn a_full_output_is_told_to_all() {
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
        assert_eq!(second.finish().unwrap_err().kind(), io::ErrorKind::StorageFull, "nobody waits any more");
        assert!(turns.take(2).is_err());
    }
}
