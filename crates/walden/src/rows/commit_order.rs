//! `--order commit`: printed entries, in a temporary file until all are known.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result};
use walden_format::lsn::Lsn;
use walden_rows::Outcome;

use crate::terminal;

/// Printed entries, which are sorted by the commits of their transactions.
pub(super) struct CommitOrder {
    file: BufWriter<File>,
    bytes: u64,
    pieces: Vec<Piece>,
}

/// Entries of a transaction that follow each other in the log.
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
        let file = tempfile::tempfile().context("cannot make a temporary file (TMPDIR)")?;
        Ok(CommitOrder { file: BufWriter::new(file), bytes: 0, pieces: Vec::new() })
    }

    pub fn add(&mut self, outcome: Outcome, text: &str) -> Result<()> {
        let commit = match outcome {
            Outcome::Committed { lsn, .. } => lsn,
            Outcome::Aborted { .. } | Outcome::Unfinished => Lsn(u64::MAX),
        };
        self.file.write_all(text.as_bytes()).context("cannot write to the temporary file (TMPDIR)")?;
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
    pub fn print(mut self) -> Result<()> {
        self.file.flush().context("cannot write to the temporary file (TMPDIR)")?;
        // It keeps the log's order within a transaction.
        self.pieces.sort_by_key(|piece| piece.commit);
        let mut text = Vec::new();
        for piece in &self.pieces {
            text.resize(piece.length as usize, 0);
            let read = self.file.get_ref().read_exact_at(&mut text, piece.start);
            read.context("cannot read the temporary file (TMPDIR)")?;
            terminal::print_data(&text)?;
        }
        Ok(())
    }
}
