//! Printed entries in the order of commits: in a temporary file until all are known.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;

use walden_format::lsn::Lsn;

use crate::Outcome;
use crate::print_error::{CREATE, PrintError, READ, WRITE, spill};

type Result<T> = std::result::Result<T, PrintError>;

/// Printed entries, which are sorted by the commits of their transactions.
#[derive(Debug)]
pub(crate) struct CommitOrder {
    file: BufWriter<File>,
    bytes: u64,
    pieces: Vec<Piece>,
}

/// Entries of a transaction that follow each other in the log.
#[derive(Debug)]
struct Piece {
    /// The largest position for entries of transactions that did not commit.
    commit: Lsn,
    start: u64,
    length: u64,
}

/// Bytes of a piece at most, as it is read at once.
const MAX_PIECE_BYTES: u64 = 1 << 20;

impl CommitOrder {
    pub fn new() -> Result<CommitOrder> {
        let file = tempfile::tempfile().map_err(spill(CREATE))?;
        Ok(CommitOrder { file: BufWriter::new(file), bytes: 0, pieces: Vec::new() })
    }

    pub fn add(&mut self, outcome: Outcome, text: &str) -> Result<()> {
        let commit = match outcome {
            Outcome::Committed { lsn, .. } => lsn,
            Outcome::Aborted { .. } | Outcome::Unfinished => Lsn(u64::MAX),
        };
        self.file.write_all(text.as_bytes()).map_err(spill(WRITE))?;
        let (start, length) = (self.bytes, text.len() as u64);
        self.bytes += length;
        match self.pieces.last_mut() {
            Some(last) if last.commit == commit && last.length + length <= MAX_PIECE_BYTES => {
                last.length += length
            }
            _ => self.pieces.push(Piece { commit, start, length }),
        }
        Ok(())
    }

    /// Prints all entries.
    pub fn print(mut self, out: &mut impl Write) -> Result<()> {
        self.file.flush().map_err(spill(WRITE))?;
        // A stable sort keeps the WAL's order within a transaction.
        self.pieces.sort_by_key(|piece| piece.commit);
        let mut text = Vec::new();
        for piece in &self.pieces {
            text.resize(piece.length as usize, 0);
            let read = self.file.get_ref().read_exact_at(&mut text, piece.start);
            read.map_err(spill(READ))?;
            out.write_all(&text).map_err(PrintError::Output)?;
        }
        Ok(())
    }
}
