//! Checksums of the pages of a relation's file, verified while the server changes it.

use walden_format::lsn::Lsn;
use walden_redo::page::checksum;
use walden_redo::{PAGE_BYTES, Page};

use super::layout::FileRange;

/// Which pages are verified, as `basebackup.c` does (`verify_page_checksum`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRules {
    /// The redo pointer of the backup's checkpoint. A page with a later LSN may be half written; WAL has it.
    pub start: Lsn,
    /// Number of blocks of a file of a relation, except for its last one.
    pub blocks_per_file: u32,
}

/// The result of verifying pages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FoundPages {
    /// Numbers of pages with a wrong checksum, counted from the start of the content.
    pub invalid: Vec<u32>,
    /// Whether each page was verified.
    pub is_complete: bool,
}

impl PageRules {
    /// Verifies the content of a range. A file that is not one of a relation has no pages.
    pub fn verify(&self, range: &FileRange, content: &[u8]) -> FoundPages {
        let Some(file) = file_number(range) else {
            return FoundPages { is_complete: true, ..FoundPages::default() };
        };
        let first = u64::from(file) * u64::from(self.blocks_per_file) + range.offset / PAGE_BYTES as u64;
        let (pages, rest) = content.as_chunks::<PAGE_BYTES>();
        let mut found = FoundPages { invalid: Vec::new(), is_complete: rest.is_empty() };
        for (number, bytes) in (0u32..).zip(pages) {
            let page = Page(*bytes);
            // A new page has no checksum.
            if page.is_new() {
                continue;
            }
            if page.lsn() >= self.start {
                found.is_complete = false;
                continue;
            }
            let block = (first + u64::from(number)) as u32;
            if page.checksum() != checksum::checksum(&page, block) {
                found.invalid.push(number);
            }
        }
        found
    }
}

/// Returns the number of a relation's file among those of its fork; `None` of other files.
fn file_number(range: &FileRange) -> Option<u32> {
    let first = range.path.iter().next()?;
    if !["base", "global", "pg_tblspc"].iter().any(|folder| first == *folder) {
        return None;
    }
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = range.path.file_name()?.to_str()?;
    let (name, file) = name.split_once('.').unwrap_or((name, "0"));
    let (relation, fork) = name.split_once('_').unwrap_or((name, "fsm"));
    let is_relation = is_number(relation) && is_number(file) && ["fsm", "vm", "init"].contains(&fork);
    file.parse().ok().filter(|_| is_relation)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: PageRules = PageRules { start: Lsn(1000), blocks_per_file: 131_072 };

    fn range(path: &str, offset: u64) -> FileRange {
        FileRange { path: path.into(), offset, bytes: 3 * PAGE_BYTES as u64 }
    }

    #[test]
    fn old_pages_are_verified_by_their_blocks() {
        let block = 2 * 131_072 + 2048;
        let mut content = Vec::new();
        for (number, lsn) in [(0, 999), (1, 1000)] {
            let mut page = Page::default();
            page.init(0);
            page.set_lsn(Lsn(lsn));
            checksum::set_checksum(&mut page, block + number);
            content.extend_from_slice(&page.0);
        }
        content.extend([0; PAGE_BYTES]);
        let here = range("base/5/16384.2", 16 << 20);
        let found = |range: &FileRange, content: &[u8]| RULES.verify(range, content);
        assert_eq!(found(&here, &content), FoundPages { invalid: vec![], is_complete: false });
        assert_eq!(found(&here, &content[..PAGE_BYTES]), FoundPages { invalid: vec![], is_complete: true });
        content[100] ^= 1;
        // The second page is later than the start.
        content[PAGE_BYTES + 100] ^= 1;
        assert_eq!(found(&here, &content).invalid, [0]);
        for other in ["base/5/16384.2", "pg_tblspc/9/PG_18_1/5/16384_vm"] {
            assert_eq!(found(&range(other, 0), &content).invalid, [0], "{other}");
        }
        for other in ["base/5/PG_VERSION", "global/pg_control", "x/5/16384", "base/5/t3_16384", "base/5/1_x"]
        {
            assert_eq!(found(&range(other, 0), &content), FoundPages { invalid: vec![], is_complete: true });
        }
    }
}
