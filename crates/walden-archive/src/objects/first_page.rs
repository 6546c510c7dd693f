//! Checks that a decoded segment is the archive's own: an object of another cluster can have the same name.

use std::io::{self, Write};

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::page::{LongHeader, PageHeader, UnreadPageHeader};

use crate::objects::name::ArchivedFile;
use crate::objects::object::ObjectError;

/// Bytes of the header of a segment's first page.
const HEADER: usize = 40;

/// Passes a file on, and keeps the header of its first page.
pub(crate) struct FirstPage<'o> {
    out: &'o mut dyn Write,
    header: Vec<u8>,
}

impl<'o> FirstPage<'o> {
    /// Passes a file on to `out`.
    pub fn new(out: &'o mut dyn Write) -> FirstPage<'o> {
        FirstPage { out, header: Vec::with_capacity(HEADER) }
    }

    /// Checks the system identifier of a segment. A header that was damaged when the segment was archived has
    /// none.
    ///
    /// # Errors
    /// [`ObjectError::Mismatch`] with the object's key.
    pub fn expect_cluster(&self, key: &str, system_id: Option<u64>) -> Result<(), ObjectError> {
        match (system_id, self.fields()) {
            (Some(expected), Some(Fields { long, .. })) if long.system_id != expected => Err(mismatch(
                key,
                format!("a segment of system identifier {expected}"),
                long.system_id.to_string(),
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the address and the timeline of a segment's first page match the segment's name.
    ///
    /// # Errors
    /// [`ObjectError::Mismatch`] with the object's key.
    pub fn expect_name(&self, key: &str, file: ArchivedFile) -> Result<(), ObjectError> {
        let (ArchivedFile::Segment(name) | ArchivedFile::Partial(name)) = file else { return Ok(()) };
        let Some(Fields { timeline, address, long }) = self.fields() else { return Ok(()) };
        // The first segment of a timeline starts with a copy of its parent's pages.
        if name_start(name, long.segment_size()) == Some(address) && (1..=name.timeline).contains(&timeline) {
            return Ok(());
        }
        Err(mismatch(
            key,
            format!("pages of {name}"),
            format!("a first page at {address} of timeline {timeline}"),
        ))
    }

    fn fields(&self) -> Option<Fields> {
        let fields = match PageHeader::parse(&self.header) {
            Ok(header) => (header.timeline, header.address, header.long),
            Err(_) => {
                let header = UnreadPageHeader::parse(&self.header)?;
                (header.timeline, header.address, header.long)
            }
        };
        let (timeline, address, long) = fields;
        Some(Fields { timeline, address, long: long? })
    }
}

/// The fields that a segment's name and archive determine.
struct Fields {
    timeline: Timeline,
    address: Lsn,
    long: LongHeader,
}

fn name_start(name: SegmentName, size: Option<SegmentSize>) -> Option<Lsn> {
    name.start(size?)
}

fn mismatch(key: &str, expected: String, found: String) -> ObjectError {
    let found = format!(
        "{found}: it was not archived under this name. Move it out of the archive, and restore it from another copy"
    );
    ObjectError::Mismatch { key: key.to_owned(), expected, found }
}

impl Write for FirstPage<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        let missing = HEADER - self.header.len();
        self.header.extend(bytes[..written].iter().take(missing));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
