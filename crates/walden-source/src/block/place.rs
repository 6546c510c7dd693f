//! Locations of blocks in the files of a data directory or base backup.

use std::io;

use walden_format::record::{Fork, RelFileLocator};
use walden_redo::page::PAGE_BYTES;
use walden_redo::{BlockKey, PageBox};

use crate::datadir::DataDir;
use crate::names::{DEFAULT_TABLESPACE, GLOBAL_TABLESPACE};

/// Blocks per file of a relation (PostgreSQL's `RELSEG_SIZE`), unless PostgreSQL was built with another
/// value.
pub(super) const FILE_BLOCKS: u32 = 131_072;

/// The result of reading a block from a backup.
#[derive(Debug)]
pub(super) enum BasePage {
    /// The block's page.
    Page(PageBox),
    /// The file is missing, or ends before the block.
    Missing,
    /// The page's checksum is wrong.
    Damaged,
}

/// Reads a block from a backup.
pub(super) fn read(data: &mut DataDir, key: BlockKey) -> io::Result<BasePage> {
    let mut page = PageBox::default();
    if !data.read_page(key.relation, key.fork, key.block, &mut page.0)? {
        return Ok(BasePage::Missing);
    }
    Ok(if data.checksum_holds(key.block, &page) { BasePage::Page(page) } else { BasePage::Damaged })
}

/// Returns a block's offset within its file, in bytes.
pub(super) fn offset_in_file(block: u32, file_blocks: u32) -> u64 {
    u64::from(block % file_blocks) * PAGE_BYTES as u64
}

/// Returns the path of the file that holds a block, relative to the data directory.
pub(super) fn file_path(key: BlockKey, file_blocks: u32) -> String {
    let RelFileLocator { tablespace, database, relation } = key.relation;
    let fork = match key.fork {
        Fork::MAIN => String::new(),
        fork => format!("_{fork}"),
    };
    let file = match key.block / file_blocks {
        0 => String::new(),
        number => format!(".{number}"),
    };
    let name = format!("{relation}{fork}{file}");
    match tablespace {
        GLOBAL_TABLESPACE => format!("global/{name}"),
        DEFAULT_TABLESPACE => format!("base/{database}/{name}"),
        other => format!("pg_tblspc/{other}/PG_*/{database}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_in_their_files() {
        let relation = |tablespace| RelFileLocator { tablespace, database: 5, relation: 16384 };
        let key = |tablespace, fork, block| BlockKey { relation: relation(tablespace), fork, block };
        assert_eq!(file_path(key(1663, Fork::MAIN, 131_071), FILE_BLOCKS), "base/5/16384");
        assert_eq!(file_path(key(1663, Fork::MAIN, 131_072), FILE_BLOCKS), "base/5/16384.1");
        assert_eq!(file_path(key(1663, Fork::VISIBILITY_MAP, 0), FILE_BLOCKS), "base/5/16384_vm");
        assert_eq!(file_path(key(1664, Fork::MAIN, 3), FILE_BLOCKS), "global/16384");
        assert_eq!(
            file_path(key(77, Fork::FREE_SPACE_MAP, 300_000), FILE_BLOCKS),
            "pg_tblspc/77/PG_*/5/16384_fsm.2"
        );
        assert_eq!(offset_in_file(131_073, FILE_BLOCKS), 8192);
    }
}
