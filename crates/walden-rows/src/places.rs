//! Places of chunks of TOAST values in a temporary file, so that memory does not grow with the WAL.
//!
//! The chunks of one part of the WAL form a run, sorted by value and number and searched by bisection. Value
//! numbers increase over time, so a search reads few runs. Each run takes a few words of memory.

use std::cmp::Ordering;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use walden_format::record::RelFileLocator;
use walden_redo::page::Tid;

/// A value in a TOAST table: its file and `chunk_id`.
pub(crate) type ValueKey = (RelFileLocator, u32);

/// Bytes of a [`ChunkPlace`] in the file: the value's file and number, the chunk's number, block and line
/// pointer.
const PLACE_BYTES: usize = 26;
/// Number of places read at a time.
const BLOCK_PLACES: u64 = 256;

/// Place of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkPlace {
    pub key: ValueKey,
    /// `chunk_seq`
    pub number: u32,
    pub tid: Tid,
}

impl ChunkPlace {
    fn write(&self, out: &mut Vec<u8>) {
        let (file, value) = self.key;
        for field in [file.tablespace, file.database, file.relation, value, self.number, self.tid.block] {
            out.extend(field.to_le_bytes());
        }
        out.extend(self.tid.offset_number.to_le_bytes());
    }

    fn read(bytes: &[u8; PLACE_BYTES]) -> ChunkPlace {
        let field = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let file = RelFileLocator { tablespace: field(0), database: field(4), relation: field(8) };
        let offset_number = u16::from_le_bytes([bytes[24], bytes[25]]);
        ChunkPlace { key: (file, field(12)), number: field(16), tid: Tid { block: field(20), offset_number } }
    }
}

/// Places that were written together.
#[derive(Debug)]
struct Run {
    /// Offset of the run in the file, in bytes.
    at: u64,
    /// Number of places.
    count: u64,
    first: ValueKey,
    last: ValueKey,
    /// Whether it comes from the base backup instead of the WAL.
    is_of_base: bool,
}

/// Places in a temporary file.
#[derive(Debug, Default)]
pub(crate) struct SpilledPlaces {
    file: Option<File>,
    end: u64,
    /// Runs of the base backup, then the runs of the WAL in WAL order.
    runs: Vec<Run>,
}

impl SpilledPlaces {
    /// Adds the chunks found in the WAL since the previous call.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub fn push(&mut self, places: Vec<ChunkPlace>) -> io::Result<()> {
        let run = self.write(places, false)?;
        self.runs.extend(run);
        Ok(())
    }

    /// Adds the chunks of a base backup, which are older than all chunks in the WAL.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub fn push_base(&mut self, places: Vec<ChunkPlace>) -> io::Result<()> {
        if let Some(run) = self.write(places, true)? {
            self.runs.insert(0, run);
        }
        Ok(())
    }

    fn write(&mut self, mut places: Vec<ChunkPlace>, is_of_base: bool) -> io::Result<Option<Run>> {
        places.sort_by_key(|place| (place.key, place.number));
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return Ok(None) };
        let (first, last, count) = (first.key, last.key, places.len() as u64);
        let run = Run { at: self.end, count, first, last, is_of_base };
        let mut bytes = Vec::with_capacity(places.len() * PLACE_BYTES);
        places.iter().for_each(|place| place.write(&mut bytes));
        let file = match self.file.take() {
            Some(file) => file,
            None => tempfile::tempfile().map_err(failed)?,
        };
        self.file.insert(file).write_all_at(&bytes, self.end).map_err(failed)?;
        self.end += bytes.len() as u64;
        Ok(Some(run))
    }

    /// Returns the chunks of a value. Among chunks with the same number, later chunks follow earlier chunks.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub fn find(&self, key: ValueKey) -> io::Result<Vec<ChunkPlace>> {
        let mut found = Vec::new();
        let Some(file) = &self.file else { return Ok(found) };
        for run in self.runs.iter().filter(|run| run.first <= key && key <= run.last) {
            run.find(file, key, &mut found).map_err(failed)?;
        }
        Ok(found)
    }
}

impl Run {
    fn find(&self, file: &File, key: ValueKey, found: &mut Vec<ChunkPlace>) -> io::Result<()> {
        // Places before `low` belong to lesser values, places from `high` on do not.
        let (mut low, mut high) = (0, self.count);
        while high - low > BLOCK_PLACES {
            let middle = low + (high - low) / 2;
            let mut bytes = [0; PLACE_BYTES];
            file.read_exact_at(&mut bytes, self.at + middle * PLACE_BYTES as u64)?;
            if ChunkPlace::read(&bytes).key < key {
                low = middle;
            } else {
                high = middle;
            }
        }
        while low < self.count {
            let count = BLOCK_PLACES.min(self.count - low);
            let mut bytes = vec![0; count as usize * PLACE_BYTES];
            file.read_exact_at(&mut bytes, self.at + low * PLACE_BYTES as u64)?;
            let (places, _) = bytes.as_chunks::<PLACE_BYTES>();
            for place in places.iter().map(ChunkPlace::read) {
                match place.key.cmp(&key) {
                    Ordering::Less => {}
                    Ordering::Equal => {
                        // A rewritten table contains the value again. Pages of a base backup are read in any
                        // order.
                        if place.number == 0 && !self.is_of_base {
                            found.clear();
                        }
                        found.push(place);
                    }
                    Ordering::Greater => return Ok(()),
                }
            }
            low += count;
        }
        Ok(())
    }
}

/// An error of the temporary file.
fn failed(error: io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("cannot use the temporary file for places of chunks (TMPDIR): {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: RelFileLocator = RelFileLocator { tablespace: 1663, database: 5, relation: 16_384 };

    fn place(value: u32, number: u32, block: u32) -> ChunkPlace {
        ChunkPlace { key: (FILE, value), number, tid: Tid { block, offset_number: 7 } }
    }

    #[test]
    fn each_value_is_found_in_its_runs() {
        let mut spilled = SpilledPlaces::default();
        assert!(spilled.find((FILE, 1)).expect("no file is needed").is_empty());
        // Three chunks each, unordered.
        let of = |values: std::ops::Range<u32>| -> Vec<ChunkPlace> {
            (0..3)
                .rev()
                .flat_map(|number| values.clone().map(move |value| place(value, number, value)))
                .collect()
        };
        spilled.push(of(0..1000)).expect("a temporary file");
        spilled.push(Vec::new()).expect("a temporary file");
        spilled.push(of(900..5000)).expect("a temporary file");
        for value in [0, 1, 499, 900, 999, 1000, 4999] {
            let expected = [0, 1, 2].map(|number| place(value, number, value));
            assert_eq!(spilled.find((FILE, value)).expect("a temporary file"), expected, "{value}");
        }
        let other = RelFileLocator { relation: 16_385, ..FILE };
        for key in [(FILE, 5000), (other, 1)] {
            assert!(spilled.find(key).expect("a temporary file").is_empty());
        }
    }

    #[test]
    fn what_the_log_has_is_newer_than_the_base() {
        let mut spilled = SpilledPlaces::default();
        // The remaining chunks of a value whose first chunk is already known, and a value that is written
        // again.
        spilled.push(vec![place(1, 1, 30), place(2, 0, 31), place(3, 0, 32)]).expect("a temporary file");
        spilled.push(vec![place(3, 1, 40), place(4, 0, 41)]).expect("a temporary file");
        spilled.push_base(vec![place(2, 0, 10), place(2, 1, 10), place(1, 1, 11)]).expect("a temporary file");
        spilled.push_base(vec![place(1, 0, 20)]).expect("a temporary file");
        for (value, expected) in [
            (1, vec![place(1, 0, 20), place(1, 1, 11), place(1, 1, 30)]),
            (2, vec![place(2, 0, 31)]),
            (3, vec![place(3, 0, 32), place(3, 1, 40)]),
            (4, vec![place(4, 0, 41)]),
        ] {
            assert_eq!(spilled.find((FILE, value)).expect("a temporary file"), expected, "{value}");
        }
    }
}
