//! Files read from a stream.

use std::io::{self, Read, Seek, SeekFrom};

/// A stream that can seek forward only, by reading.
pub struct Forward<R> {
    pub(super) input: R,
    pub(super) at: u64,
}

impl<R: Read> Read for Forward<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.input.read(buffer)?;
        self.at += got as u64;
        Ok(got)
    }
}

impl<R: Read> Seek for Forward<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let SeekFrom::Start(to) = to else { return Err(io::ErrorKind::Unsupported.into()) };
        let skipped = to.checked_sub(self.at).ok_or(io::ErrorKind::Unsupported)?;
        io::copy(&mut (&mut self.input).take(skipped), &mut io::sink())?;
        // A position past the end is allowed: reads there return no bytes.
        self.at = to;
        Ok(to)
    }
}
