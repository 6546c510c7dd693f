//! What decoding needs, as a file's header states it, and what a reader allows.

use walden_format::lsn::SegmentSize;
use walden_redo::PAGE_BYTES;

use super::file_form::FileForm;
use crate::coder::{self, BLOCK_NOTES};

const MIB: u64 = 1 << 20;
const PAGE: u64 = PAGE_BYTES as u64;

/// State of the model of records and of zstd.
const STATE: u64 = 48 * MIB;
/// In a pack: contents of each class of columns that later ones refer to.
const SHARED: u64 = 72 * MIB;
/// From [`MODELLED`] on: what bits are predicted from.
const PREDICTED: u64 = 128 * MIB;
/// The lowest level whose parts may be modelled.
const MODELLED: u8 = 7;
/// Bytes of memory for a byte of columns while a member is decoded, and one for its coded form.
const COLUMNS_FACTOR: u64 = 5;
/// What a member's memory is beside its columns': directory, heads.
const MEMBER: u64 = 4 * MIB;
/// Blocks of a file of which nothing else is known: 4 GiB of pages.
const MAX_BLOCKS: u32 = 1 << 19;
/// Pages that a reader keeps in memory at least.
const MIN_PAGES: u64 = 16;
/// Bytes of memory for each byte of a compressed file. Segments of the largest size rarely compress to a thousandth, and take some 10
/// bytes of memory for each of theirs.
const MEMORY_RATIO: u64 = 16_384;
/// The highest level.
const MAX_LEVEL: u8 = 9;

/// What a reader needs at most to decode any member of a file; the file's header states it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// MiB of memory beside what is kept of blocks.
    pub memory_mib: u32,
    /// Blocks whose pages have to be kept at one time, in memory or in a temporary file.
    pub blocks: u32,
}

impl Needs {
    /// What a file that is written without knowing what comes may need: `segment_bytes` is the size of the largest segment.
    ///
    /// Segments that need more are coded as bytes.
    pub fn of_segments(form: FileForm, level: u8, segment_bytes: u64) -> Needs {
        // Columns are rarely larger than the segment; where the server compressed pages, up to four times as large.
        let columns = (2 * segment_bytes).max(64 * MIB);
        Needs { blocks: MAX_BLOCKS, ..Needs::of_member(form, level, columns, 0) }
    }

    /// What one member needs whose columns have so many bytes.
    pub(super) fn of_member(form: FileForm, level: u8, columns: u64, blocks: u64) -> Needs {
        let memory = state(form, level) + MEMBER + columns.saturating_mul(COLUMNS_FACTOR);
        Needs {
            memory_mib: u32::try_from(memory.div_ceil(MIB)).unwrap_or(u32::MAX),
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        }
    }

    /// Bytes of memory, with what is noted of blocks and the fewest pages.
    pub fn memory(self) -> u64 {
        u64::from(self.memory_mib) * MIB + u64::from(self.blocks) * BLOCK_NOTES + MIN_PAGES * PAGE
    }

    /// Bytes of the pages that are kept, in memory or in a temporary file.
    pub fn pages(self) -> u64 {
        u64::from(self.blocks) * PAGE
    }

    /// Whether `other` needs no more of anything.
    pub fn covers(self, other: Needs) -> bool {
        other.memory_mib <= self.memory_mib && other.blocks <= self.blocks
    }

    /// Needs within so many bytes of memory and of a temporary file: a quarter of the memory for what is noted of blocks, but for
    /// what the smallest file takes.
    pub fn within(memory: u64, spill: u64) -> Needs {
        let blocks = (spill / PAGE).min(memory.saturating_sub(STATE + 2 * MEMBER) / 4 / BLOCK_NOTES);
        let memory = memory.saturating_sub(blocks * BLOCK_NOTES + MIN_PAGES * PAGE) / MIB;
        Needs {
            memory_mib: u32::try_from(memory).unwrap_or(u32::MAX),
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        }
    }

    /// The fewest bytes of memory within which anything can be coded, in steps of MiB.
    pub fn least_memory(form: FileForm, level: u8) -> u64 {
        let is_enough = |memory: &u64| Needs::within(*memory, u64::MAX).columns(form, level) > 0;
        (1..).map(|mib| mib * MIB).find(is_enough).unwrap_or(u64::MAX)
    }

    /// Bytes that columns, counted as [`coder::Limits::columns`] counts them, may have when decoding is to stay within the
    /// memory.
    fn columns(self, form: FileForm, level: u8) -> u64 {
        (u64::from(self.memory_mib) * MIB).saturating_sub(state(form, level) + MEMBER) / COLUMNS_FACTOR
    }

    /// The limits of coding that keep within this.
    pub(super) fn limits(self, form: FileForm, level: u8, page_memory: u64) -> coder::Limits {
        coder::Limits {
            page_memory: usize::try_from(page_memory).unwrap_or(usize::MAX),
            columns: usize::try_from(self.columns(form, level)).unwrap_or(usize::MAX),
            blocks: self.blocks as usize,
            may_model: level >= MODELLED,
        }
    }
}

/// Bytes of what is kept from member to member, beside blocks.
fn state(form: FileForm, level: u8) -> u64 {
    let shared = if form == FileForm::Pack { SHARED } else { 0 };
    STATE + shared + if level >= MODELLED { PREDICTED } else { 0 }
}

/// What a reader allows.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes of memory for decoding one member at a time. A file whose header states more is refused.
    pub memory: u64,
    /// Bytes of a temporary file for pages that memory has no space for. A file that may need more is refused.
    pub spill: u64,
    /// Bytes of memory for pages at most, of what the file leaves of `memory`.
    pub page_memory: u64,
}

impl Default for ReadLimits {
    /// Enough for segments of up to 128 MB.
    fn default() -> ReadLimits {
        ReadLimits { memory: 2 << 30, spill: 4 << 30, page_memory: 64 << 20 }
    }
}

/// What a file needs of one thing, and what is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Excess {
    /// Bytes of memory.
    Memory {
        /// What the file's header states.
        needed: u64,
        /// What the reader allows.
        allowed: u64,
    },
    /// Bytes of a temporary file.
    Spill {
        /// What the file's header states, less what memory has space for.
        needed: u64,
        /// What the reader allows.
        allowed: u64,
    },
}

impl ReadLimits {
    /// Enough for every file whose needs are those of [`Needs::of_segments`], up to PostgreSQL's largest segments, of 1 GB.
    pub fn of_largest_segments() -> ReadLimits {
        let memory = Needs::of_segments(FileForm::Pack, MAX_LEVEL, SegmentSize::MAX.bytes()).memory();
        ReadLimits { memory: memory.next_multiple_of(1 << 30), ..ReadLimits::default() }
    }

    /// As [`ReadLimits::of_largest_segments`], with less memory for a small file: no more than segments of such a compressed size take.
    pub fn of_file(file_bytes: u64) -> ReadLimits {
        let (least, most) = (ReadLimits::default(), ReadLimits::of_largest_segments());
        let memory = file_bytes.saturating_mul(MEMORY_RATIO).clamp(least.memory, most.memory);
        ReadLimits { memory, ..most }
    }

    /// Bytes of memory for pages when a file of such needs is decoded; or what it needs more of.
    pub fn admit(&self, needs: Needs) -> Result<u64, Excess> {
        let (needed, allowed) = (needs.memory(), self.memory);
        if needed > allowed {
            return Err(Excess::Memory { needed, allowed });
        }
        let spare = allowed - needed + MIN_PAGES * PAGE;
        let page_memory = spare.min(self.page_memory.max(MIN_PAGES * PAGE));
        // The store takes its notes out of this.
        let for_pages = page_memory.saturating_sub(u64::from(needs.blocks) * BLOCK_NOTES);
        let needed = needs.pages().saturating_sub(for_pages);
        if needed > self.spill {
            return Err(Excess::Spill { needed, allowed: self.spill });
        }
        Ok(page_memory)
    }
}

impl std::fmt::Display for Excess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, needed, allowed) = match *self {
            Excess::Memory { needed, allowed } => ("memory", needed, allowed),
            Excess::Spill { needed, allowed } => ("temporary file for pages", needed, allowed),
        };
        let mb = |bytes: u64| bytes.div_ceil(MIB);
        write!(
            f,
            "cannot decode what may need {} MB of {what}: expected at most {} MB",
            mb(needed),
            allowed / MIB
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_of_any_segments_can_be_read() {
        let limits = ReadLimits::of_largest_segments();
        assert_eq!(limits.memory, 11 << 30, "as the help of walden decompress says");
        for form in [FileForm::Segment, FileForm::Pack] {
            for level in 0..=MAX_LEVEL {
                for segment_bytes in (20..=30).map(|shift| 1_u64 << shift) {
                    let needs = Needs::of_segments(form, level, segment_bytes);
                    assert!(limits.admit(needs).is_ok(), "{form:?}, level {level}, {segment_bytes}");
                }
            }
        }
    }
}
