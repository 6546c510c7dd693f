//! Reading records one after the other returns the records that a visitor receives.

use std::error::Error;
use std::io::{self, Read};

use walden_format::fault::FaultKind;
use walden_format::lsn::Lsn;
use walden_format::records::{ReadError, RecordReader};
use walden_format::version::Major;
use walden_testing::writer::PAGE;

use crate::stream::sample;

type LsnAndBytes = (Lsn, Vec<u8>);

/// Returns the records up to the end or an error.
fn read(input: impl Read) -> (Vec<LsnAndBytes>, Result<(), ReadError>) {
    let mut seen = Vec::new();
    let mut records = match RecordReader::new(input) {
        Ok(records) => records,
        Err(error) => return (seen, Err(error)),
    };
    loop {
        match records.next_record() {
            Ok(Some(record)) => seen.push((record.lsn, record.bytes().to_vec())),
            Ok(None) => return (seen, Ok(())),
            Err(error) => return (seen, Err(error)),
        }
    }
}

/// Returns one byte at a time, and an interruption on every other call.
struct Slow<'a>(&'a [u8], bool);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = buffer.len().min(1).min(self.0.len());
        self.0.read(&mut buffer[..len])
    }
}

#[test]
fn all_records_of_every_version_are_read() {
    for version in Major::all() {
        let log = sample(version);
        let (seen, end) = read(&log.bytes[..]);
        assert!(end.is_ok() && seen == log.records, "{version}");
    }
    let log = sample(Major::V18);
    let (seen, end) = read(Slow(&log.bytes, false));
    assert!(end.is_ok() && seen == log.records, "a slow input");
}

#[test]
fn owned_records_are_the_same_as_lent_ones() {
    let log = sample(Major::V16);
    let records: Result<Vec<_>, _> = RecordReader::new(&log.bytes[..]).unwrap().into_iter().collect();
    let seen: Vec<_> = records
        .unwrap()
        .iter()
        .map(|record| (record.as_record().lsn, record.as_record().bytes().to_vec()))
        .collect();
    assert_eq!(seen, log.records);
}

#[test]
fn a_log_ends_where_nothing_was_written() {
    let log = sample(Major::V17);
    for zeros in [8, PAGE, 3 * PAGE] {
        let bytes = [&log.bytes[..], &vec![0; zeros]].concat();
        let (seen, end) = read(&bytes[..]);
        assert!(end.is_ok() && seen == log.records, "{zeros} zeros");
    }
    // A record that is not complete is not returned.
    let (seen, end) = read(&log.bytes[..log.bytes.len() - 20]);
    assert!(end.is_ok());
    assert_eq!(seen, log.records[..log.records.len() - 1]);
}

#[test]
fn a_fault_comes_after_the_records_before_it_and_again() {
    let log = sample(Major::V17);
    let mut bytes = log.bytes.clone();
    let (lsn, _) = log.records[9];
    let offset = lsn.bytes_since(log.start) as usize;
    bytes[offset + 30] ^= 1;
    let mut records = RecordReader::new(&bytes[..]).unwrap();
    for (expected, _) in &log.records[..9] {
        assert_eq!(records.next_record().unwrap().unwrap().lsn, *expected);
    }
    for _ in 0..2 {
        let error = records.next_record().unwrap_err();
        let ReadError::Fault(fault) = &error else { panic!("{error}") };
        assert!(fault.lsn == lsn && matches!(fault.kind, FaultKind::Checksum { .. }), "{fault}");
        assert_eq!(error.source().unwrap().to_string(), fault.to_string());
    }
    let mut owned = RecordReader::new(&bytes[..]).unwrap().into_iter();
    assert_eq!(owned.by_ref().filter(Result::is_ok).count(), 9);
    assert!(owned.next().is_none(), "an iterator ends after an error");
}

#[test]
fn errors_keep_their_sources() {
    let error = RecordReader::new(&[0x7F; 100][..]).unwrap_err();
    let (mut chain, mut next) = (Vec::new(), Some(&error as &dyn Error));
    while let Some(error) = next {
        chain.push(error.to_string());
        next = error.source();
    }
    assert_eq!(chain.len(), 4, "{chain:?}");
    assert_eq!(chain[0], "cannot decode the log");
    assert_eq!(chain[3], "not a page of PostgreSQL's write-ahead log");
    let error = RecordReader::new(&[][..]).unwrap_err();
    assert!(matches!(error, ReadError::Fault(fault) if matches!(fault.kind, FaultKind::PageHeader(_))));

    #[derive(Debug)]
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk failed"))
        }
    }
    let error = RecordReader::new(Failing).unwrap_err();
    assert_eq!(error.source().unwrap().to_string(), "the disk failed");
    let log = sample(Major::V17);
    let (seen, end) = read((&log.bytes[..2 * PAGE]).chain(Failing));
    assert!(matches!(end, Err(ReadError::Io(_))) && !seen.is_empty());
}
