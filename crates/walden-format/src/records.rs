//! Reads the records of WAL one after the other. Use this module unless every nanosecond counts.
//!
//! [`RecordReader`] reads segments from anything that implements [`Read`], including byte slices, and lends
//! one record after the other. [`Records`] returns the same records as an iterator, whose items own their
//! bytes. Both use [`crate::stream::Decoder`], which calls a visitor instead, also reports page headers and
//! padding, and copies nothing.

use std::fmt;
use std::io::{self, Read};
use std::ops::{ControlFlow, Range};

use crate::fault::{Fault, FaultKind};
use crate::lsn::Lsn;
use crate::page::LONG_HEADER;
use crate::record::{BlockRef, Record};
use crate::stream::{Decoder, Progress, StreamInfo, Visitor};

/// Reads records from WAL segments.
///
/// The input starts with the first page of a segment and may continue with the segments that follow it:
/// `Read::chain` joins files. The end of a record that started in an earlier segment is skipped. Pages are
/// read one at a time, which suits a [`std::io::BufReader`]. Memory holds a page and the longest record, of
/// which at most [`crate::stream::MAX_HELD_BYTES`].
///
/// ```no_run
/// use std::fs::File;
/// use std::io::BufReader;
///
/// use walden_format::records::RecordReader;
///
/// let file = File::open("pg_wal/000000010000000000000001")?;
/// let mut records = RecordReader::new(BufReader::new(file))?;
/// while let Some(record) = records.next_record()? {
///     println!("{} {}", record.lsn, record.kind().name(record.version));
/// }
/// # Ok::<(), walden_format::records::ReadError>(())
/// ```
#[derive(Debug)]
pub struct RecordReader<R> {
    input: R,
    decoder: Decoder,
    info: StreamInfo,
    /// The page that was read last.
    page: Vec<u8>,
    queue: Queue,
    /// The reason why reading has ended; `None` while more pages can be read.
    end: Option<Result<(), Fault>>,
}

impl<R: Read> RecordReader<R> {
    /// Reads the header of the first page.
    ///
    /// Returns the input's error, or a fault if the input does not start with the first page of a segment
    /// that Walden reads.
    pub fn new(mut input: R) -> Result<RecordReader<R>, ReadError> {
        let mut page = vec![0; LONG_HEADER];
        let len = read_up_to(&mut input, &mut page)?;
        let info = StreamInfo::from_first_page(&page[..len]);
        let fault = |kind| ReadError::Fault(Fault { lsn: Lsn(0), at: Lsn(0), kind });
        let (info, start) = info.and_then(|info| Ok((info, first_address(&page)?))).map_err(fault)?;
        page.resize(info.page_bytes as usize, 0);
        let first = read_up_to(&mut input, &mut page[LONG_HEADER..])?;
        page.truncate(LONG_HEADER + first);
        let decoder = Decoder::new(info, start, Lsn(u64::MAX));
        Ok(RecordReader { input, decoder, info, page, queue: Queue::default(), end: None })
    }

    /// The stream's properties from the first page.
    pub fn info(&self) -> &StreamInfo {
        &self.info
    }

    /// Returns the decoder's position. Records that end at or before this position have been returned, or
    /// will be without reading another page.
    pub fn position(&self) -> Lsn {
        self.decoder.position()
    }

    /// Returns the next record, or `None` at the end of WAL: where the input ends, or where nothing has been
    /// written yet.
    ///
    /// A record that starts in the input but does not end in it is not returned.
    ///
    /// # Errors
    /// Returns the input's error, or a fault at the first invalid page or record. The last segment of a
    /// running or crashed server ends in such a fault if its file was used before: an old page or record
    /// follows the last valid one. Later calls return the same fault.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        while self.queue.is_empty() {
            match &self.end {
                Some(Ok(())) => return Ok(None),
                Some(Err(fault)) => return Err(ReadError::Fault(*fault)),
                None => self.read_page()?,
            }
        }
        Ok(self.queue.pop())
    }

    /// Decodes the current page and reads the next one.
    fn read_page(&mut self) -> Result<(), ReadError> {
        self.queue.clear();
        match self.decoder.push(&self.page, &mut self.queue) {
            Ok(Progress::More) => {}
            Ok(Progress::Done) => self.end = Some(Ok(())),
            Err(fault) if fault.is_unwritten() => self.end = Some(Ok(())),
            Err(fault) => self.end = Some(Err(fault)),
        }
        self.page.resize(self.info.page_bytes as usize, 0);
        let len = read_up_to(&mut self.input, &mut self.page)?;
        self.page.truncate(len);
        if len == 0 && self.end.is_none() {
            self.end = Some(Ok(()));
        }
        Ok(())
    }
}

/// Iterates over records that own their bytes.
impl<R: Read> IntoIterator for RecordReader<R> {
    type Item = Result<OwnedRecord, ReadError>;
    type IntoIter = Records<R>;

    fn into_iter(self) -> Records<R> {
        Records { reader: self, has_failed: false }
    }
}

/// The records of WAL as an iterator, see [`RecordReader`]. The iterator ends after an error.
///
/// ```no_run
/// use std::collections::BTreeSet;
/// use std::fs::File;
///
/// use walden_format::records::RecordReader;
///
/// let file = File::open("pg_wal/000000010000000000000001")?;
/// let mut transactions = BTreeSet::new();
/// for record in RecordReader::new(file)? {
///     transactions.insert(record?.as_record().header.xid);
/// }
/// # Ok::<(), walden_format::records::ReadError>(())
/// ```
#[derive(Debug)]
pub struct Records<R> {
    reader: RecordReader<R>,
    has_failed: bool,
}

impl<R: Read> Iterator for Records<R> {
    type Item = Result<OwnedRecord, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let next = self.reader.next_record().map(|record| record.map(|record| OwnedRecord::from(&record)));
        self.has_failed = next.is_err();
        next.transpose()
    }
}

/// A record that owns its bytes.
#[derive(Clone, Debug)]
pub struct OwnedRecord {
    record: Record<'static>,
    blocks: Vec<BlockRef>,
    bytes: Vec<u8>,
}

impl OwnedRecord {
    /// Returns the record as a borrowed [`Record`].
    pub fn as_record(&self) -> Record<'_> {
        Record { blocks: &self.blocks, bytes: &self.bytes, ..self.record }
    }
}

impl From<&Record<'_>> for OwnedRecord {
    fn from(record: &Record<'_>) -> OwnedRecord {
        let (blocks, bytes) = (record.blocks.to_vec(), record.bytes.to_vec());
        OwnedRecord { record: Record { blocks: &[], bytes: &[], ..*record }, blocks, bytes }
    }
}

/// The reason why reading WAL stopped.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The input failed.
    Io(io::Error),
    /// A page or record is invalid.
    Fault(Fault),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io(_) => f.write_str("cannot read the log"),
            ReadError::Fault(_) => f.write_str("cannot decode the log"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io(error) => Some(error),
            ReadError::Fault(fault) => Some(fault),
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}

/// The records of a page that have not been returned yet, in buffers that are reused for the next page.
#[derive(Debug, Default)]
struct Queue {
    records: Vec<Queued>,
    /// The number of records that have been returned.
    returned: usize,
    blocks: Vec<BlockRef>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Queued {
    /// The record without its blocks and bytes.
    record: Record<'static>,
    blocks: Range<usize>,
    bytes: Range<usize>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.returned == self.records.len()
    }

    fn clear(&mut self) {
        self.records.clear();
        self.returned = 0;
        self.blocks.clear();
        self.bytes.clear();
    }

    fn pop(&mut self) -> Option<Record<'_>> {
        let queued = self.records.get(self.returned)?;
        self.returned += 1;
        let blocks = self.blocks.get(queued.blocks.clone())?;
        let bytes = self.bytes.get(queued.bytes.clone())?;
        Some(Record { blocks, bytes, ..queued.record })
    }
}

impl Visitor for Queue {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let (blocks, bytes) = (self.blocks.len(), self.bytes.len());
        self.blocks.extend_from_slice(record.blocks);
        self.bytes.extend_from_slice(record.bytes);
        self.records.push(Queued {
            record: Record { blocks: &[], bytes: &[], ..*record },
            blocks: blocks..self.blocks.len(),
            bytes: bytes..self.bytes.len(),
        });
        ControlFlow::Continue(())
    }
}

fn first_address(page: &[u8]) -> Result<Lsn, FaultKind> {
    crate::page::PageHeader::parse(page).map(|header| header.address).map_err(FaultKind::PageHeader)
}

/// Fills `buffer` as far as the input allows. Returns the number of bytes read.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match input.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
