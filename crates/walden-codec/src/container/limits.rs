//! Resources that decoding needs, as the file header states them, and the limits of a reader.

use walden_format::lsn::SegmentSize;
use walden_redo::PAGE_BYTES;

use super::file_form::FileForm;
use crate::coder::{self, BLOCK_NOTES};

const MIB: u64 = 1 << 20;
const PAGE: u64 = PAGE_BYTES as u64;

/// Bytes of memory for the state of the record model and of zstd.
const STATE: u64 = 48 * MIB;
/// Bytes of memory in a pack for the shared contents of column classes, which later members refer to.
const SHARED: u64 = 72 * MIB;
/// Bytes of memory for the context-mixing model, from level [`MODELLED`] on.
const PREDICTED: u64 = 128 * MIB;
/// Lowest level that may use context mixing.
const MODELLED: u8 = 7;
/// Bytes of memory per byte of columns while a member is decoded, including one byte for the coded form.
const COLUMNS_FACTOR: u64 = 5;
/// Bytes of memory per member in addition to its columns: directory and heads.
const MEMBER: u64 = 4 * MIB;
/// Blocks that a file may need if its content is not yet known: 4 GiB of pages.
const MAX_BLOCKS: u32 = 1 << 19;
/// Minimum number of pages that a reader keeps in memory.
const MIN_PAGES: u64 = 16;
/// Bytes of memory allowed per byte of a compressed file. Segments of the maximum size rarely compress to a
/// thousandth, and decoding takes about 10 bytes of memory per byte of the segment.
const MEMORY_RATIO: u64 = 16_384;
/// Maximum level.
const MAX_LEVEL: u8 = 9;

/// Maximum resources that a reader needs to decode any member of a file. The file header states them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// MiB of memory, without the pages that are kept and their bookkeeping.
    pub memory_mib: u32,
    /// Number of blocks whose pages are kept at one time, in memory or in a temporary file.
    pub blocks: u32,
}

impl Needs {
    /// Returns the needs of a file whose content is not yet known. `segment_bytes` is the size of its largest
    /// segment.
    ///
    /// Segments that need more are coded as bytes.
    pub fn for_segments(form: FileForm, level: u8, segment_bytes: u64) -> Needs {
        // Columns are rarely larger than the segment. If the server compresses full-page images, they can be
        // four times as large.
        let columns = (2 * segment_bytes).max(64 * MIB);
        Needs { blocks: MAX_BLOCKS, ..Needs::for_member(form, level, columns, 0) }
    }

    /// Returns the needs of one member that has `columns` bytes of columns and refers to `blocks` blocks.
    pub(super) fn for_member(form: FileForm, level: u8, columns: u64, blocks: u64) -> Needs {
        let memory = state(form, level) + MEMBER + columns.saturating_mul(COLUMNS_FACTOR);
        Needs {
            memory_mib: u32::try_from(memory.div_ceil(MIB)).unwrap_or(u32::MAX),
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        }
    }

    /// Returns the required memory in bytes, including block bookkeeping and 16 pages.
    pub fn memory(self) -> u64 {
        u64::from(self.memory_mib) * MIB + u64::from(self.blocks) * BLOCK_NOTES + MIN_PAGES * PAGE
    }

    /// Returns the size in bytes of all pages that are kept, in memory or in a temporary file.
    pub fn pages(self) -> u64 {
        u64::from(self.blocks) * PAGE
    }

    /// Returns whether `other` needs no more memory and no more blocks.
    pub fn covers(self, other: Needs) -> bool {
        other.memory_mib <= self.memory_mib && other.blocks <= self.blocks
    }

    /// Returns the largest needs that fit within `memory` bytes of memory and `spill` bytes of temporary
    /// file. Block bookkeeping gets at most a quarter of the memory that exceeds the fixed state.
    pub fn within(memory: u64, spill: u64) -> Needs {
        let blocks = (spill / PAGE).min(memory.saturating_sub(STATE + 2 * MEMBER) / 4 / BLOCK_NOTES);
        let memory = memory.saturating_sub(blocks * BLOCK_NOTES + MIN_PAGES * PAGE) / MIB;
        Needs {
            memory_mib: u32::try_from(memory).unwrap_or(u32::MAX),
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        }
    }

    /// Returns the minimum memory in bytes, rounded up to MiB, within which any input can be coded.
    pub fn least_memory(form: FileForm, level: u8) -> u64 {
        let is_enough = |memory: &u64| Needs::within(*memory, u64::MAX).columns(form, level) > 0;
        (1..).map(|mib| mib * MIB).find(is_enough).unwrap_or(u64::MAX)
    }

    /// Returns the maximum size of columns in bytes, as [`coder::Limits::columns`] counts them, for which
    /// decoding stays within the memory.
    fn columns(self, form: FileForm, level: u8) -> u64 {
        (u64::from(self.memory_mib) * MIB).saturating_sub(state(form, level) + MEMBER) / COLUMNS_FACTOR
    }

    /// Returns the coding limits that correspond to these needs.
    pub(super) fn limits(self, form: FileForm, level: u8, page_memory: u64) -> coder::Limits {
        coder::Limits {
            page_memory: usize::try_from(page_memory).unwrap_or(usize::MAX),
            columns: usize::try_from(self.columns(form, level)).unwrap_or(usize::MAX),
            blocks: self.blocks as usize,
            may_model: level >= MODELLED,
            may_copy: true,
        }
    }
}

/// Returns the bytes of memory for state carried from member to member, without blocks.
fn state(form: FileForm, level: u8) -> u64 {
    let shared = if form == FileForm::Pack { SHARED } else { 0 };
    STATE + shared + if level >= MODELLED { PREDICTED } else { 0 }
}

/// Resource limits of a reader.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReadLimits {
    /// Bytes of memory for decoding, one member at a time. A file whose header states more is rejected.
    pub memory: u64,
    /// Bytes of a temporary file for pages that do not fit in memory. A file that may need more is rejected.
    pub spill: u64,
    /// Maximum bytes of memory for pages, within the part of `memory` that the file's needs leave free.
    pub page_memory: u64,
}

walden_format::setters!(ReadLimits { memory: u64, spill: u64, page_memory: u64 });

impl Default for ReadLimits {
    /// Sufficient for segments of up to 128 MB.
    fn default() -> ReadLimits {
        ReadLimits { memory: 2 << 30, spill: 4 << 30, page_memory: 64 << 20 }
    }
}

/// A resource that a file needs beyond the reader's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Excess {
    /// Bytes of memory.
    Memory {
        /// Bytes that the file header states.
        needed: u64,
        /// Bytes that the reader allows.
        allowed: u64,
    },
    /// Bytes of a temporary file.
    Spill {
        /// Bytes that the file header states, less the pages that fit in memory.
        needed: u64,
        /// Bytes that the reader allows.
        allowed: u64,
    },
}

impl ReadLimits {
    /// Returns limits that are sufficient for every file with needs from [`Needs::for_segments`], up to
    /// PostgreSQL's maximum segment size of 1 GB.
    pub fn for_largest_segments() -> ReadLimits {
        let memory = Needs::for_segments(FileForm::Pack, MAX_LEVEL, SegmentSize::MAX.bytes()).memory();
        ReadLimits { memory: memory.next_multiple_of(1 << 30), ..ReadLimits::default() }
    }

    /// Returns the limits of [`ReadLimits::for_largest_segments`], but with less memory for a small file: the
    /// memory is proportional to the compressed size.
    pub fn for_file(file_bytes: u64) -> ReadLimits {
        let (least, most) = (ReadLimits::default(), ReadLimits::for_largest_segments());
        let memory = file_bytes.saturating_mul(MEMORY_RATIO).clamp(least.memory, most.memory);
        ReadLimits { memory, ..most }
    }

    /// Returns the bytes of memory for pages when a file with these needs is decoded, or the resource that it
    /// exceeds.
    pub fn admit(&self, needs: Needs) -> Result<u64, Excess> {
        let (needed, allowed) = (needs.memory(), self.memory);
        if needed > allowed {
            return Err(Excess::Memory { needed, allowed });
        }
        let spare = allowed - needed + MIN_PAGES * PAGE;
        let page_memory = spare.min(self.page_memory.max(MIN_PAGES * PAGE));
        // The page store's bookkeeping counts towards the page memory.
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
        let limits = ReadLimits::for_largest_segments();
        assert_eq!(limits.memory, 11 << 30, "as the help of walden decompress says");
        for form in [FileForm::Segment, FileForm::Pack] {
            for level in 0..=MAX_LEVEL {
                for segment_bytes in (20..=30).map(|shift| 1_u64 << shift) {
                    let needs = Needs::for_segments(form, level, segment_bytes);
                    assert!(limits.admit(needs).is_ok(), "{form:?}, level {level}, {segment_bytes}");
                }
            }
        }
    }
}
