//! A segment's bytes, some at a time: read when they are asked for, or ahead of that by another thread.

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Scope;

use crate::inventory::SegmentFile;
use crate::open::{SegmentReader, fill, open};

/// Bytes read at a time: large enough that system calls don't matter, small enough to stay in a core's cache.
const WINDOW: usize = 128 << 10;
/// Bytes that a thread reads ahead at a time: to hand them over may wake a sleeping core, which takes as long as to read
/// some hundred kB.
const WINDOW_AHEAD: usize = 1 << 20;
/// Windows read ahead at most, beside the one being filled and the one being used.
const MAX_AHEAD: usize = 3;

/// It ends before its time only if it panics.
const GONE: &str = "the thread that reads ahead is gone";

/// Where a segment's bytes come from.
pub(crate) trait Windows {
    /// Goes to a segment's start.
    fn open(&mut self, segment: &SegmentFile) -> io::Result<()>;

    /// The next bytes of it, whole pages but at its end: none behind that. An error comes beside what was read before it.
    fn next(&mut self) -> (&[u8], Option<io::Error>);
}

/// Reads when asked.
pub(crate) struct Direct {
    window: Vec<u8>,
    segment: Option<Segment>,
}

impl Direct {
    pub fn new() -> Direct {
        Direct::of(WINDOW)
    }

    /// With windows of so many bytes.
    pub fn of(bytes: usize) -> Direct {
        Direct { window: vec![0; bytes], segment: None }
    }
}

impl Windows for Direct {
    fn open(&mut self, segment: &SegmentFile) -> io::Result<()> {
        self.segment = None;
        self.segment = Some(Segment::open(segment)?);
        Ok(())
    }

    fn next(&mut self) -> (&[u8], Option<io::Error>) {
        let Some(segment) = &mut self.segment else { return (&[], None) };
        let (got, stopped) = segment.read(&mut self.window);
        (&self.window[..got], stopped)
    }
}

/// A segment being read, and how much of it is left: what is behind its size is not read.
struct Segment {
    reader: SegmentReader,
    left: u64,
}

impl Segment {
    fn open(file: &SegmentFile) -> io::Result<Segment> {
        Ok(Segment { reader: open(file)?, left: file.segment_size.bytes() })
    }

    fn read(&mut self, window: &mut [u8]) -> (usize, Option<io::Error>) {
        let wanted = window.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let (got, stopped) = fill(&mut self.reader, &mut window[..wanted]);
        self.left = if got < wanted { 0 } else { self.left - got as u64 };
        (got, stopped)
    }
}

/// Has segments read, one after another, by a thread of their own.
pub(crate) struct Ahead {
    pieces: Receiver<Piece>,
    /// Windows to be filled again.
    used: Sender<Vec<u8>>,
    window: Vec<u8>,
    /// The segment at hand has no more.
    ended: bool,
}

enum Piece {
    /// A segment starts.
    Opened(io::Result<()>),
    /// Bytes of it. An empty piece is its end.
    Bytes(Vec<u8>, usize, Option<io::Error>),
}

impl Ahead {
    /// Starts to read. The segments must be opened in this order.
    pub fn start<'scope, 'env: 'scope>(
        scope: &'scope Scope<'scope, 'env>,
        segments: &'env [SegmentFile],
    ) -> Ahead {
        let (to, pieces) = sync_channel(MAX_AHEAD);
        let (used, free) = channel();
        scope.spawn(move || {
            // Nobody listens any more once the scan is over.
            segments.iter().try_for_each(|segment| read_ahead(segment, &to, &free))
        });
        Ahead { pieces, used, window: Vec::new(), ended: true }
    }
}

/// Reads a segment; nothing if nobody wants it.
fn read_ahead(segment: &SegmentFile, to: &SyncSender<Piece>, free: &Receiver<Vec<u8>>) -> Option<()> {
    let mut segment = match Segment::open(segment) {
        Ok(segment) => {
            to.send(Piece::Opened(Ok(()))).ok()?;
            segment
        }
        Err(error) => return to.send(Piece::Opened(Err(error))).ok(),
    };
    loop {
        let mut window = free.try_recv().unwrap_or_else(|_| vec![0; WINDOW_AHEAD]);
        let (got, stopped) = segment.read(&mut window);
        let is_end = got == 0 || stopped.is_some();
        to.send(Piece::Bytes(window, got, stopped)).ok()?;
        if is_end {
            return Some(());
        }
    }
}

impl Windows for Ahead {
    fn open(&mut self, _: &SegmentFile) -> io::Result<()> {
        loop {
            match self.pieces.recv() {
                Ok(Piece::Opened(opened)) => {
                    self.ended = opened.is_err();
                    return opened;
                }
                // What is left of the segment before.
                Ok(Piece::Bytes(..)) => {}
                Err(_) => return Err(io::Error::other(GONE)),
            }
        }
    }

    fn next(&mut self) -> (&[u8], Option<io::Error>) {
        if self.ended {
            return (&[], None);
        }
        let used = std::mem::take(&mut self.window);
        if !used.is_empty() {
            // Without its thread there is nobody to fill it.
            let _ = self.used.send(used);
        }
        let (window, got, stopped) = match self.pieces.recv() {
            Ok(Piece::Bytes(window, got, stopped)) => (window, got, stopped),
            _ => (Vec::new(), 0, Some(io::Error::other(GONE))),
        };
        self.ended = got == 0 || stopped.is_some();
        self.window = window;
        (&self.window[..got], stopped)
    }
}
