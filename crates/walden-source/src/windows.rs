//! Reads the bytes of segments in windows: on demand, or ahead by another thread.

use std::io;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use crate::compressed::{self, Members};
use crate::open::{Compression, SegmentReader, fill, open, open_with};
use crate::segment_file::SegmentFile;
use crate::workers::run_in_order;

/// Bytes read at a time: large enough to make system calls cheap, small enough for a core's cache.
const WINDOW: usize = 128 << 10;
/// Bytes that a thread reads ahead at a time: passing them to another thread may wake a sleeping core, which
/// takes as long as reading some hundred kB.
const WINDOW_AHEAD: usize = 1 << 20;
/// Most windows read ahead, in addition to the ones being filled and used. One of several readers may be this
/// far ahead of another.
const MAX_AHEAD: usize = 8;
/// The same where a window is a whole segment: with the pieces for its start and its end.
const MAX_SEGMENT_PIECES_AHEAD: usize = 3;
/// Most segments in memory where several threads decode, in addition to those that the threads are ahead: the
/// ones that are queued, being used, and kept for records that continue in the next segment.
const SEGMENTS_IN_USE: usize = 5;

/// The reading thread ends early only if it panics.
const GONE: &str = "the thread that reads ahead is gone";

/// Decoded members of packs, shared by the readers of one run.
pub(crate) type SharedMembers = Arc<Mutex<Members>>;

/// A source of windows of a segment.
pub(crate) trait Windows {
    /// Returns the most recently decoded members of packs, which other readers of the same run share.
    fn members(&self) -> SharedMembers;

    /// Opens a segment at its start.
    fn open(&mut self, segment: &SegmentFile) -> io::Result<()>;

    /// Returns the next window: complete pages, except at the end; empty after the end. An error is returned
    /// with the bytes read before it.
    fn next(&mut self) -> (&[u8], Option<io::Error>);
}

/// Reads on demand.
pub(crate) struct Direct {
    members: SharedMembers,
    window: Vec<u8>,
    segment: Option<Segment>,
    /// The content that [`Direct::prepare`] has decoded.
    prepared: Option<Arc<Vec<u8>>>,
    /// Whether segments that are decoded as a whole start as [`Started`].
    wants_starts: bool,
    started: Option<Started>,
}

/// A segment whose first window was decoded, but not the rest.
struct Started {
    file: SegmentFile,
    bytes: usize,
    is_read: bool,
}

impl Direct {
    pub fn new() -> Direct {
        let window = vec![0; WINDOW];
        Direct {
            members: SharedMembers::default(),
            window,
            segment: None,
            prepared: None,
            wants_starts: false,
            started: None,
        }
    }

    /// Creates a reader of the starts of segments, with shared members and windows of this number of bytes.
    /// For segments that are decoded as a whole, it decodes the first window, and the rest only if more is
    /// read.
    pub fn for_starts(members: SharedMembers, bytes: usize) -> Direct {
        let window = vec![0; bytes];
        Direct { members, window, segment: None, prepared: None, wants_starts: true, started: None }
    }

    /// Decodes the segment after the one that is opened next, if it is decoded as a whole, and holds it until
    /// the next call. Most segments end in a record that continues in the next one: if one thread waited for
    /// another one that decodes it, one would decode at a time.
    pub fn prepare(&mut self, next: &SegmentFile) {
        self.segment = None;
        // Its reader gets an error again.
        self.prepared = Segment::open(next, &self.members).ok().and_then(|segment| segment.content);
    }

    /// Returns the number of a member whose start can be decoded without other members, unless it is decoded
    /// already.
    fn member_to_start(&self, file: &SegmentFile) -> Option<u64> {
        let is_alone =
            file.compression == Compression::Walden && file.store.is_none() && !file.needs_previous;
        let number = file.member.filter(|_| self.wants_starts && is_alone)?;
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.find(&file.path, number).is_none().then_some(number)
    }
}

impl Windows for Direct {
    fn members(&self) -> SharedMembers {
        Arc::clone(&self.members)
    }

    fn open(&mut self, segment: &SegmentFile) -> io::Result<()> {
        (self.segment, self.started) = (None, None);
        match self.member_to_start(segment) {
            Some(number) => {
                let content = compressed::start(&segment.path, number, self.window.len())?;
                self.window[..content.len()].copy_from_slice(&content);
                self.started = Some(Started { file: segment.clone(), bytes: content.len(), is_read: false });
            }
            None => self.segment = Some(Segment::open(segment, &self.members)?),
        }
        Ok(())
    }

    fn next(&mut self) -> (&[u8], Option<io::Error>) {
        match self.started.take() {
            Some(started) if !started.is_read => {
                let bytes = started.bytes;
                self.started = Some(Started { is_read: true, ..started });
                return (&self.window[..bytes], None);
            }
            Some(Started { file, bytes, .. }) => match Segment::open(&file, &self.members) {
                Ok(segment) => {
                    let (_, stopped) = self.segment.insert(segment).next(&mut self.window[..bytes]);
                    if stopped.is_some() {
                        return (&[], stopped);
                    }
                }
                Err(error) => return (&[], Some(error)),
            },
            None => {}
        }
        match &mut self.segment {
            Some(segment) => segment.next(&mut self.window),
            None => (&[], None),
        }
    }
}

/// A segment being read, up to its size.
struct Segment {
    reader: SegmentReader,
    left: u64,
    /// The whole content, if it was decoded when the segment was opened, at most the size of a segment.
    content: Option<Arc<Vec<u8>>>,
    /// Bytes of `content` that were returned.
    at: usize,
}

impl Segment {
    fn open(file: &SegmentFile, members: &SharedMembers) -> io::Result<Segment> {
        let reader = match file.member {
            None => open(file)?,
            Some(_) => open_with(file, &mut members.lock().unwrap_or_else(PoisonError::into_inner))?,
        };
        let left = file.segment_size.bytes();
        let content = reader.decoded().filter(|content| content.len() as u64 <= left);
        Ok(Segment { reader, left, content, at: 0 })
    }

    /// Returns the next bytes, as many as `window` has, or fewer at the end. Decoded bytes are not copied to
    /// `window`.
    fn next<'s>(&'s mut self, window: &'s mut [u8]) -> (&'s [u8], Option<io::Error>) {
        if self.content.is_none() {
            let (got, stopped) = self.read(window);
            return (&window[..got], stopped);
        }
        let content = self.content.as_ref().map_or(&[][..], |content| content.as_slice());
        let start = self.at;
        self.at = content.len().min(start + window.len());
        (&content[start..self.at], None)
    }

    fn read(&mut self, window: &mut [u8]) -> (usize, Option<io::Error>) {
        let wanted = window.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let (got, stopped) = fill(&mut self.reader, &mut window[..wanted]);
        self.left = if got < wanted { 0 } else { self.left - got as u64 };
        (got, stopped)
    }
}

/// Reads segments in order on another thread.
pub(crate) struct Ahead {
    members: SharedMembers,
    pieces: Receiver<Piece>,
    /// Used windows, for reuse.
    used: Sender<Window>,
    window: Window,
    /// Bytes of the window that belong to the segment.
    got: usize,
    /// Whether the current segment has been read.
    ended: bool,
}

/// A window that several readers may use at the same time.
type Window = Arc<Vec<u8>>;

#[derive(Clone)]
enum Piece {
    /// A segment starts.
    Opened(Result<(), SharedError>),
    /// Bytes of the segment. An empty piece is its end.
    Bytes(Window, usize, Option<SharedError>),
}

/// An error that several readers get.
type SharedError = Arc<io::Error>;

fn into_error(error: SharedError) -> io::Error {
    Arc::try_unwrap(error).unwrap_or_else(|error| io::Error::new(error.kind(), error))
}

/// The thread that reads ahead, and the readers that get its windows.
pub(crate) struct ReadingThread {
    members: SharedMembers,
    readers: Vec<SyncSender<Piece>>,
    used: (Sender<Window>, Receiver<Window>),
    /// Threads that decode whole segments, including this one; with 1, it reads them window by window.
    decoders: usize,
}

impl ReadingThread {
    /// `decoders` is 1 or a result of [`decoders`].
    pub fn new(decoders: usize) -> ReadingThread {
        ReadingThread { members: SharedMembers::default(), readers: Vec::new(), used: channel(), decoders }
    }

    /// Adds a reader, which gets all segments.
    pub fn add_reader(&mut self) -> Ahead {
        let pieces = if self.decoders > 1 { MAX_SEGMENT_PIECES_AHEAD } else { MAX_AHEAD };
        let (sender, pieces) = sync_channel(pieces);
        self.readers.push(sender);
        let (members, used) = (Arc::clone(&self.members), self.used.0.clone());
        Ahead { members, pieces, used, window: Window::default(), got: 0, ended: true }
    }

    /// Starts to read. The readers must open the segments in this order.
    pub fn start<'scope, 'env: 'scope>(
        mut self,
        scope: &'scope Scope<'scope, 'env>,
        segments: &'env [SegmentFile],
    ) {
        // All readers are gone once the scan has ended.
        scope.spawn(move || match self.decoders > 1 {
            true => self.read_decoded(segments),
            false => segments.iter().try_for_each(|segment| self.read(segment)),
        });
    }

    /// Decodes several segments at a time, and sends them in order. Returns `None` if no reader is left.
    fn read_decoded(&mut self, segments: &[SegmentFile]) -> Option<()> {
        let groups = groups(segments);
        let mut decoded_before: Option<DecodedSegment> = None;
        run_in_order(
            0..groups.len(),
            self.decoders,
            || (),
            |(), index| decode_group(&segments[groups[index].clone()]),
            |group| {
                for segment in group {
                    // Readers find the end of a record in the next segment: it must be there before they get
                    // to the end of this one.
                    segment.keep(&self.members);
                    if let Some(before) = decoded_before.replace(segment)
                        && self.send_decoded(before).is_none()
                    {
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            },
        );
        decoded_before.map_or(Some(()), |last| self.send_decoded(last))
    }

    fn send_decoded(&mut self, segment: DecodedSegment) -> Option<()> {
        // Used windows are whole segments, which nothing reuses.
        self.used.1.try_iter().for_each(drop);
        match segment.content {
            Err(error) => self.send(Piece::Opened(Err(error))),
            Ok((content, stopped)) => {
                self.send(Piece::Opened(Ok(())))?;
                let bytes = content.len();
                self.send(Piece::Bytes(content, bytes, stopped))?;
                self.send(Piece::Bytes(Window::default(), 0, None))
            }
        }
    }

    /// Sends a piece to all readers. Returns `None` if none is left: a reader that has ended gets nothing.
    /// The last reader gets the piece itself: a single one is its only owner.
    fn send(&mut self, piece: Piece) -> Option<()> {
        let last = self.readers.pop()?;
        self.readers.retain(|reader| reader.send(piece.clone()).is_ok());
        if last.send(piece).is_ok() {
            self.readers.push(last);
        }
        (!self.readers.is_empty()).then_some(())
    }

    /// Returns a window that no reader uses any more, or a new one.
    fn window(&self) -> Window {
        let mut used = self.used.1.try_iter();
        // Each reader returns the window; the last one is the only owner.
        let free = used.find(|window| Arc::strong_count(window) == 1);
        free.unwrap_or_else(|| Arc::new(vec![0; WINDOW_AHEAD]))
    }

    /// Reads a segment. Returns `None` if no reader is left.
    fn read(&mut self, segment: &SegmentFile) -> Option<()> {
        let mut segment = match Segment::open(segment, &self.members) {
            Ok(segment) => {
                self.send(Piece::Opened(Ok(())))?;
                segment
            }
            Err(error) => return self.send(Piece::Opened(Err(error.into()))),
        };
        loop {
            let mut window = self.window();
            let bytes = Arc::make_mut(&mut window);
            let (got, stopped) = segment.read(bytes);
            let is_end = got == 0 || stopped.is_some();
            self.send(Piece::Bytes(window, got, stopped.map(Arc::new)))?;
            if is_end {
                return Some(());
            }
        }
    }
}

/// A segment that was decoded as a whole.
struct DecodedSegment {
    /// Its place in a pack or an archive.
    member: Option<(PathBuf, u64)>,
    /// Its bytes, and why there are no more; or why it cannot be opened.
    content: Result<(Window, Option<SharedError>), SharedError>,
}

impl DecodedSegment {
    fn read(file: &SegmentFile, members: &SharedMembers) -> DecodedSegment {
        let read = || -> io::Result<(Window, Option<SharedError>)> {
            let mut segment = Segment::open(file, members)?;
            if let Some(content) = segment.content {
                return Ok((content, None));
            }
            let size = usize::try_from(segment.left).unwrap_or(usize::MAX);
            let mut content = vec![0; size];
            let (got, stopped) = segment.read(&mut content);
            content.truncate(got);
            Ok((Arc::new(content), stopped.map(Arc::new)))
        };
        let member = file.member.map(|number| (file.path.clone(), number));
        DecodedSegment { member, content: read().map_err(Arc::new) }
    }

    /// Keeps a member among the decoded ones.
    fn keep(&self, members: &SharedMembers) {
        if let (Some((path, number)), Ok((content, None))) = (&self.member, &self.content) {
            members.lock().unwrap_or_else(PoisonError::into_inner).keep(path, *number, content);
        }
    }
}

fn decode_group(segments: &[SegmentFile]) -> Vec<DecodedSegment> {
    let members = SharedMembers::default();
    segments.iter().map(|segment| DecodedSegment::read(segment, &members)).collect()
}

/// Returns the segments that are decoded together: a single one, or the members of a pack from one keyframe
/// to the next.
fn groups(segments: &[SegmentFile]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if segment.needs_previous => group.end = index + 1,
            _ => groups.push(index..index + 1),
        }
    }
    groups
}

/// Returns how many threads decode whole segments, at most `threads`: their segments fit into `bytes` of
/// memory. One thread, which decodes in windows, suffices if no segment is compressed.
pub(crate) fn decoders(segments: &[SegmentFile], threads: usize, bytes: usize) -> usize {
    if segments.iter().all(|segment| segment.compression == Compression::None) {
        return 1;
    }
    let of_group = |group: Range<usize>| {
        let sizes = segments[group].iter().map(|segment| segment.segment_size.bytes());
        usize::try_from(sizes.sum::<u64>()).unwrap_or(usize::MAX)
    };
    let largest = groups(segments).into_iter().map(of_group).max().unwrap_or(1).max(1);
    // run_in_order works on at most 2 * threads + 1 groups.
    let fitting = (bytes / largest).saturating_sub(SEGMENTS_IN_USE + 1) / 2;
    fitting.min(threads).max(1)
}

impl Windows for Ahead {
    fn members(&self) -> SharedMembers {
        Arc::clone(&self.members)
    }

    fn open(&mut self, _: &SegmentFile) -> io::Result<()> {
        loop {
            match self.pieces.recv() {
                Ok(Piece::Opened(opened)) => {
                    self.ended = opened.is_err();
                    return opened.map_err(into_error);
                }
                // Unused windows of the previous segment.
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
            // Sending fails if the thread has ended, which does not matter.
            let _ = self.used.send(used);
        }
        let (window, got, stopped) = match self.pieces.recv() {
            Ok(Piece::Bytes(window, got, stopped)) => (window, got, stopped.map(into_error)),
            _ => (Window::default(), 0, Some(io::Error::other(GONE))),
        };
        self.ended = got == 0 || stopped.is_some();
        (self.window, self.got) = (window, got);
        (&self.window[..got], stopped)
    }
}
