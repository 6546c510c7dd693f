//! WAL summaries (PostgreSQL 17 and later): which blocks of relations a range of WAL has changed.
//!
//! The rules are those of `GetFileBackupMethod` in `basebackup_incremental.c`, with one more exception:
//! records that clear bits of a visibility map do not name its block, so that summaries lack it. Free space
//! maps have no WAL at all. Only the main fork of a relation is known to be unchanged.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use walden_format::lsn::{Lsn, Timeline};

use super::{BackupSession, FileBackupError, ReadRange, failed, get, lsn, rules};

/// Number of blocks (16 MB) whose changes are counted together.
const BLOCKS_PER_CHUNK: u64 = 2048;
/// Most chunks and relations that are kept, with about 100 bytes each.
const MAX_CHANGES: usize = 1 << 20;
/// Most files that are listed. The missing ones count as a hole.
const MAX_FILES: i64 = 100_000;
/// Number of files that one query reads.
const FILES_PER_QUERY: usize = 64;
const PAGE_BYTES: u64 = 8192;
const DEFAULT_TABLESPACE: u32 = 1663;
const GLOBAL_TABLESPACE: u32 = 1664;

/// A file with a WAL summary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SummaryFile {
    /// The timeline.
    pub timeline: Timeline,
    /// Where the summarized WAL starts.
    pub start: Lsn,
    /// Where it ends.
    pub end: Lsn,
}

/// A relation's main fork: tablespace, database and number of its file.
type Relation = (u32, u32, u32);

/// What summaries say about the main forks of relations.
#[derive(Debug)]
pub struct Changes {
    relations: HashMap<Relation, Changed>,
    /// Tablespace and database, if all relations there may be new.
    databases: HashSet<(u32, u32)>,
    blocks_per_file: u64,
}

#[derive(Debug)]
struct Changed {
    /// The smallest number of blocks that the relation has had.
    limit: u64,
    /// Chunks with changed blocks.
    chunks: BTreeSet<u64>,
}

impl Changes {
    fn new(blocks_per_file: u32) -> Changes {
        let blocks_per_file = u64::from(blocks_per_file);
        Changes { relations: HashMap::new(), databases: HashSet::new(), blocks_per_file }
    }

    /// Adds a changed block, or the number of blocks that a relation was cut to.
    fn add(&mut self, (tablespace, database, number): Relation, is_limit: bool, block: u64) {
        if number == 0 {
            self.databases.insert((tablespace, database));
            return;
        }
        let relation = self.relations.entry((tablespace, database, number));
        let changed = relation.or_insert_with(|| Changed { limit: u64::MAX, chunks: BTreeSet::new() });
        match is_limit {
            true => changed.limit = changed.limit.min(block),
            false => drop(changed.chunks.insert(block / BLOCKS_PER_CHUNK)),
        }
    }

    /// Returns whether a range of a file has the content that it had before the summarized WAL, if the file
    /// existed then.
    pub fn is_unchanged(&self, range: &ReadRange<'_>) -> bool {
        let Some((relation, file)) = relation_at(range.path) else { return false };
        let file_bytes = self.blocks_per_file * PAGE_BYTES;
        let Some(end) = range.offset.checked_add(range.bytes).filter(|&end| end <= file_bytes) else {
            return false;
        };
        if !range.offset.is_multiple_of(PAGE_BYTES) || !end.is_multiple_of(PAGE_BYTES) {
            return false;
        }
        let first = u64::from(file) * self.blocks_per_file;
        let (start, end) = (first + range.offset / PAGE_BYTES, first + end / PAGE_BYTES);
        if self.databases.contains(&(relation.0, relation.1)) {
            return false;
        }
        let Some(changed) = self.relations.get(&relation) else { return true };
        let chunks = start / BLOCKS_PER_CHUNK..end.div_ceil(BLOCKS_PER_CHUNK);
        changed.limit >= end && changed.chunks.range(chunks).next().is_none()
    }
}

/// Returns the relation whose main fork a file belongs to, and the number of the file.
fn relation_at(path: &Path) -> Option<(Relation, u32)> {
    let parts: Vec<&str> = path.to_str()?.split('/').collect();
    let (tablespace, database, name) = match parts[..] {
        ["global", name] => (GLOBAL_TABLESPACE, 0, name),
        ["base", database, name] => (DEFAULT_TABLESPACE, database.parse().ok()?, name),
        ["pg_tblspc", tablespace, version, database, name] if version.starts_with("PG_") => {
            (tablespace.parse().ok()?, database.parse().ok()?, name)
        }
        _ => return None,
    };
    let (number, None) = rules::relation_of(name)? else { return None };
    let file = name.split_once('.').map_or(Some(0), |(_, file)| file.parse().ok())?;
    Some(((tablespace, database, number.parse().ok().filter(|&number| number > 0)?), file))
}

impl BackupSession {
    /// Returns whether the server summarizes its WAL.
    ///
    /// # Errors
    /// The query fails.
    pub fn summarizes_wal(&mut self) -> Result<bool, FileBackupError> {
        if self.major < 17 {
            return Ok(false);
        }
        let row = self.client.query_one("SELECT current_setting('summarize_wal')", &[]);
        Ok(get::<String>(&row.map_err(failed("read summarize_wal"))?, 0)? == "on")
    }

    /// Returns the command that permits the role to read WAL summaries, if it may not.
    ///
    /// # Errors
    /// The query fails.
    pub fn missing_rights_of_summaries(&mut self) -> Result<Option<String>, FileBackupError> {
        self.missing_rights_of(&[
            "pg_available_wal_summaries()",
            "pg_wal_summary_contents(bigint, pg_lsn, pg_lsn)",
        ])
    }

    /// Returns the timeline of the last checkpoint (on a standby: restart point), if it is the one with this
    /// redo pointer.
    ///
    /// # Errors
    /// The query fails.
    pub fn timeline_of(&mut self, redo: Lsn) -> Result<Option<Timeline>, FileBackupError> {
        let query = "SELECT timeline_id, redo_lsn::text FROM pg_control_checkpoint()";
        let row = self.client.query_one(query, &[]).map_err(failed("read the last checkpoint"))?;
        let timeline = get::<i32>(&row, 0)?.cast_unsigned();
        Ok((lsn(&row, 1)? == redo).then_some(timeline))
    }

    /// Returns the summaries of all timelines of WAL between two positions, in order.
    ///
    /// # Errors
    /// The query fails.
    pub fn summaries(&mut self, start: Lsn, end: Lsn) -> Result<Vec<SummaryFile>, FileBackupError> {
        let query = "SELECT tli, start_lsn::text, end_lsn::text FROM pg_available_wal_summaries() \
             WHERE end_lsn > $1::text::pg_lsn AND start_lsn < $2::text::pg_lsn ORDER BY tli, start_lsn LIMIT $3";
        let rows = self.client.query(query, &[&start.to_string(), &end.to_string(), &MAX_FILES]);
        let file = |row: &postgres::Row| {
            let timeline = get::<i64>(row, 0)?;
            let timeline = Timeline::try_from(timeline).map_err(|_| FileBackupError::Answer {
                expected: "the timeline of a WAL summary",
                found: timeline.to_string(),
            })?;
            Ok(SummaryFile { timeline, start: lsn(row, 1)?, end: lsn(row, 2)? })
        };
        rows.map_err(failed("list the WAL summaries"))?.iter().map(file).collect()
    }

    /// Returns what summaries say. `waiting` is called now and then.
    ///
    /// # Errors
    /// The query fails, a file is damaged or was removed, or there are too many changes.
    pub fn changes(
        &mut self,
        files: &[SummaryFile],
        blocks_per_file: u32,
        waiting: &mut dyn FnMut(),
    ) -> Result<Changes, FileBackupError> {
        let query = format!(
            "SELECT c.reltablespace, c.reldatabase, c.relfilenode, c.is_limit_block, min(c.relblocknumber) \
             FROM unnest($1::int8[], $2::text[], $3::text[]) AS f(t, s, e), \
             LATERAL pg_wal_summary_contents(f.t, f.s::pg_lsn, f.e::pg_lsn) AS c WHERE c.relforknumber = 0 \
             GROUP BY 1, 2, 3, 4, CASE WHEN c.is_limit_block THEN 0 ELSE c.relblocknumber / {BLOCKS_PER_CHUNK} END \
             LIMIT {}",
            MAX_CHANGES + 1
        );
        let mut changes = Changes::new(blocks_per_file);
        let mut count = 0;
        for files in files.chunks(FILES_PER_QUERY) {
            let timelines: Vec<i64> = files.iter().map(|file| i64::from(file.timeline)).collect();
            let starts: Vec<String> = files.iter().map(|file| file.start.to_string()).collect();
            let ends: Vec<String> = files.iter().map(|file| file.end.to_string()).collect();
            let rows = self.client.query(&query, &[&timelines, &starts, &ends]);
            let rows = rows.map_err(failed("read the WAL summaries"))?;
            count += rows.len();
            if count > MAX_CHANGES {
                return Err(FileBackupError::Answer {
                    expected: "at most 1048576 changed relations and ranges of 16 MB",
                    found: format!("{count} or more"),
                });
            }
            for row in &rows {
                let relation = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
                changes.add(relation, get(row, 3)?, get::<i64>(row, 4)?.max(0).cast_unsigned());
            }
            waiting();
        }
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 131_072;

    fn changes() -> Changes {
        let mut changes = Changes::new(BLOCKS as u32);
        let base = |number| (DEFAULT_TABLESPACE, 5, number);
        changes.add(base(10), false, 2048);
        changes.add(base(11), false, BLOCKS + 4096);
        changes.add(base(12), true, 3000);
        changes.add(base(12), true, 4000);
        changes.add(base(13), true, 0);
        changes.add((DEFAULT_TABLESPACE, 6, 0), true, 0);
        changes.add((16_384, 5, 10), false, 0);
        changes
    }

    fn is_unchanged(path: &str, start: u64, end: u64) -> bool {
        let (offset, bytes) = (start * PAGE_BYTES, (end - start) * PAGE_BYTES);
        changes().is_unchanged(&ReadRange { path: Path::new(path), offset, bytes })
    }

    #[test]
    fn ranges_without_changed_blocks_are_unchanged() {
        for (path, start, end, expected) in [
            ("base/5/9", 0, 100, true),
            ("base/5/10", 0, 2048, true),
            ("base/5/10", 2048, 4096, false),
            ("base/5/10", 2047, 2049, false),
            ("base/5/10", 4096, 4097, true),
            // The second file.
            ("base/5/11", 4096, 6144, true),
            ("base/5/11.1", 4096, 6144, false),
            ("base/5/11.1", 0, 4096, true),
            ("base/5/11.2", 4096, 6144, true),
            // Cut to 3000 blocks.
            ("base/5/12", 0, 2048, true),
            ("base/5/12", 2048, 3000, true),
            ("base/5/12", 2048, 3001, false),
            ("base/5/12", 4096, 6144, false),
            ("base/5/12.1", 0, 1, false),
            ("base/5/13", 0, 1, false),
            ("base/6/9", 0, 1, false),
            // A relation of the same number elsewhere.
            ("pg_tblspc/16384/PG_18_202506291/5/10", 0, 1, false),
            ("pg_tblspc/16384/PG_18_202506291/5/10", 2048, 2049, true),
            ("global/10", 2048, 2049, true),
            // More blocks than a file has.
            ("base/5/9", BLOCKS - 1, BLOCKS, true),
            ("base/5/9", BLOCKS, BLOCKS + 1, false),
        ] {
            assert_eq!(is_unchanged(path, start, end), expected, "{path} {start} {end}");
        }
    }

    #[test]
    fn of_other_files_nothing_is_known() {
        for path in [
            "base/5/9_fsm",
            "base/5/9_vm",
            "base/5/9_vm.1",
            "base/5/9_init",
            "base/5/t3_9",
            "base/5/0",
            "base/5/9.x",
            "base/5/99999999999",
            "base/5/pg_filenode.map",
            "base/5/PG_VERSION",
            "base/x/9",
            "base/5/6/9",
            "base/9",
            "pg_tblspc/16384/9",
            "pg_tblspc/16384/other/5/9",
            "pg_xact/0000",
            "9",
            "",
        ] {
            assert!(!is_unchanged(path, 0, 1), "{path}");
        }
        for (offset, bytes) in [(1, 8192), (0, 100), (8192, 8191), (u64::MAX, 1), (u64::MAX - 8191, 8192)] {
            let range = ReadRange { path: Path::new("base/5/9"), offset, bytes };
            assert!(!changes().is_unchanged(&range), "{offset} {bytes}");
        }
        let unknown = Changes::new(0);
        assert!(!unknown.is_unchanged(&ReadRange { path: Path::new("base/5/9"), offset: 0, bytes: 8192 }));
    }
}
