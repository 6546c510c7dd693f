//! Writes synthetic WAL: cases that a real server creates only in a crash, and any layout of records over
//! pages.

use std::fs;
use std::path::Path;

use walden_format::crc::crc32c_append;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_format::page::{LONG_HEADER, SHORT_HEADER};
use walden_format::stream::StreamInfo;
use walden_format::version::Major;

/// Bytes of a WAL page.
pub const PAGE: usize = 8192;

/// WAL that grows record by record, from the start of a 1 MB segment.
pub struct LogWriter {
    /// The fields of the page headers. Changes affect the following pages.
    pub info: StreamInfo,
    /// Start of the WAL.
    pub start: Lsn,
    /// The WAL so far.
    pub bytes: Vec<u8>,
    /// The start of each complete record, and its bytes.
    pub records: Vec<(Lsn, Vec<u8>)>,
    /// The position to which the next record links back.
    pub previous: Lsn,
    overwrite: bool,
}

impl LogWriter {
    /// Creates empty WAL of a version.
    pub fn new(version: Major) -> LogWriter {
        let info = StreamInfo {
            version,
            timeline: 3,
            system_id: 0x1234_5678_9ABC_DEF0,
            segment_size: SegmentSize::new(1 << 20).unwrap(),
            page_bytes: PAGE as u32,
            data_page_bytes: 8192,
        };
        let start = Lsn(5 << 20);
        LogWriter { info, start, bytes: Vec::new(), records: Vec::new(), previous: Lsn(40), overwrite: false }
    }

    /// Returns the LSN of the end.
    pub fn position(&self) -> Lsn {
        self.start.plus(self.bytes.len() as u64)
    }

    /// Writes the WAL to a folder as segments; the last one ends with zeros.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn save(&self, folder: &Path) {
        let size = self.info.segment_size;
        let segment_bytes = size.bytes() as usize;
        for (number, content) in (size.segment_of(self.start)..).zip(self.bytes.chunks(segment_bytes)) {
            let mut content = content.to_vec();
            content.resize(segment_bytes, 0);
            let name = SegmentName::new(self.info.timeline, number, size).to_string();
            fs::write(folder.join(name), content).unwrap();
        }
    }

    fn page_header(&mut self, remaining: u32) {
        let address = self.position();
        let long = self.info.segment_size.offset_of(address) == 0;
        let overwrite = if self.info.version >= Major::V19 { 4 } else { 8 };
        let info =
            u16::from(remaining > 0) | u16::from(long) << 1 | if self.overwrite { overwrite } else { 0 };
        self.overwrite = false;
        self.bytes.extend(self.info.version.magic().to_le_bytes());
        self.bytes.extend(info.to_le_bytes());
        self.bytes.extend(self.info.timeline.to_le_bytes());
        self.bytes.extend(address.0.to_le_bytes());
        self.bytes.extend(remaining.to_le_bytes());
        self.bytes.extend([0; 4]);
        if long {
            self.bytes.extend(self.info.system_id.to_le_bytes());
            self.bytes.extend((self.info.segment_size.bytes() as u32).to_le_bytes());
            self.bytes.extend(self.info.page_bytes.to_le_bytes());
        }
    }

    fn room(&self) -> usize {
        PAGE - self.bytes.len() % PAGE
    }

    /// Appends a record with these bytes after its fixed header. Returns its start.
    pub fn record(&mut self, rmid: u8, info: u8, xid: u32, rest: &[u8]) -> Lsn {
        let record = self.assemble(rmid, info, xid, rest);
        let lsn = self.append(&record, record.len());
        self.bytes.resize((self.bytes.len() + 7) & !7, 0);
        self.records.push((lsn, record));
        self.previous = lsn;
        lsn
    }

    /// Appends a record that has only main data.
    pub fn main_data(&mut self, rmid: u8, info: u8, data: &[u8]) -> Lsn {
        let mut rest = vec![254];
        rest.extend((data.len() as u32).to_le_bytes());
        rest.extend(data);
        self.record(rmid, info, 7, &rest)
    }

    /// Appends a switch record and the rest of its segment.
    pub fn switch(&mut self) {
        self.record(0, 0x40, 0, &[]);
        self.bytes.resize(self.bytes.len().next_multiple_of(PAGE), 0);
        while self.info.segment_size.offset_of(self.position()) != 0 {
            self.page_header(0);
            self.bytes.resize(self.bytes.len().next_multiple_of(PAGE), 0);
        }
    }

    /// Appends the first pages of a record that a crash cuts off after `bytes`, up to the end of that page.
    /// The next page is marked as overwriting it.
    pub fn crash_in_record(&mut self, length: usize, bytes: usize) {
        let mut rest = vec![254];
        rest.extend((length as u32 - 29).to_le_bytes());
        rest.resize(length - 24, 0xAB);
        let record = self.assemble(10, 0, 9, &rest);
        self.append(&record, bytes);
        let missing = self.room() % PAGE;
        self.bytes.extend(std::iter::repeat_n(0xAB, missing));
        self.overwrite = true;
    }

    fn assemble(&self, rmid: u8, info: u8, xid: u32, rest: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        record.extend((rest.len() as u32 + 24).to_le_bytes());
        record.extend(xid.to_le_bytes());
        record.extend(self.previous.0.to_le_bytes());
        record.extend([info, rmid, 0, 0]);
        let crc = crc32c_append(crc32c_append(0, rest), &record);
        record.extend(crc.to_le_bytes());
        record.extend(rest);
        record
    }

    fn append(&mut self, record: &[u8], length: usize) -> Lsn {
        if self.bytes.len().is_multiple_of(PAGE) {
            self.page_header(0);
        }
        let lsn = self.position();
        let mut written = 0;
        while written < length {
            if self.bytes.len().is_multiple_of(PAGE) {
                self.page_header((record.len() - written) as u32);
            }
            let piece = self.room().min(length - written);
            self.bytes.extend(&record[written..written + piece]);
            written += piece;
        }
        lsn
    }
}

/// Returns the bytes of the page headers within `length` bytes from `start`.
pub fn header_bytes(info: &StreamInfo, start: Lsn, length: usize) -> u64 {
    let pages = (0..length).step_by(PAGE);
    pages
        .map(|offset| info.segment_size.offset_of(start.plus(offset as u64)))
        .map(|offset| if offset == 0 { LONG_HEADER as u64 } else { SHORT_HEADER as u64 })
        .sum()
}
