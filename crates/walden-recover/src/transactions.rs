//! States of transactions outside of relations: `pg_xact`, `pg_commit_ts`, `pg_multixact`, `pg_twophase` and
//! the progress of replication origins.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use walden_format::crc::crc32c_append;
use walden_format::lsn::Lsn;
use walden_format::payload::multixact::{MultiXactCreate, MultiXactTruncate};
use walden_format::payload::xact::TransactionEnd;
use walden_format::version::Major;
use walden_redo::PAGE_BYTES;

use crate::private;
use crate::slru::{SegmentNames, Slru};

/// `FirstNormalTransactionId`
const FIRST_NORMAL_XID: u32 = 3;

/// The number of entries of 32 bits that a page of an SLRU spans, for comparisons of pages.
fn page_precedes(one: u64, other: u64, first: u32, per_page: u32) -> bool {
    let position = |page: u64| (page as u32).wrapping_mul(per_page).wrapping_add(first + 1);
    let (one, other) = (position(one), position(other));
    let is_before = |a: u32, b: u32| a.wrapping_sub(b).cast_signed() < 0;
    is_before(one, other) && is_before(one, other.wrapping_add(per_page - 1))
}

/// The commit log: two bits for each transaction (`clog.c`).
#[derive(Debug)]
pub(crate) struct CommitLog(pub(crate) Slru);

impl CommitLog {
    const PER_PAGE: u32 = PAGE_BYTES as u32 * 4;
    const COMMITTED: u8 = 1;
    const ABORTED: u8 = 2;

    pub(crate) fn new(data: &Path) -> CommitLog {
        CommitLog(Slru::new(data.join("pg_xact"), SegmentNames::Short))
    }

    /// Notes the end of a transaction and its subtransactions.
    pub(crate) fn end(&mut self, xid: u32, end: &TransactionEnd<'_>, is_commit: bool) -> io::Result<()> {
        self.end_alone(xid, is_commit)?;
        end.subxacts.into_iter().try_for_each(|xid| self.end_alone(xid, is_commit))
    }

    /// Notes the end of a transaction without subtransactions.
    pub(crate) fn end_alone(&mut self, xid: u32, is_commit: bool) -> io::Result<()> {
        self.set(xid, if is_commit { CommitLog::COMMITTED } else { CommitLog::ABORTED })
    }

    fn set(&mut self, xid: u32, status: u8) -> io::Result<()> {
        if xid < FIRST_NORMAL_XID {
            return Ok(());
        }
        let page = self.0.page((xid / CommitLog::PER_PAGE).into())?;
        let byte = &mut page[(xid % CommitLog::PER_PAGE / 4) as usize];
        let shift = xid % 4 * 2;
        *byte = *byte & !(3 << shift) | status << shift;
        Ok(())
    }

    pub(crate) fn truncate(&mut self, cutoff: u64) -> io::Result<()> {
        self.0.truncate(cutoff, |one, other| page_precedes(one, other, FIRST_NORMAL_XID, CommitLog::PER_PAGE))
    }
}

/// Commit timestamps: 10 bytes for each transaction (`commit_ts.c`).
#[derive(Debug)]
pub(crate) struct CommitTimestamps(pub(crate) Slru);

impl CommitTimestamps {
    const ENTRY_BYTES: usize = 10;
    const PER_PAGE: u32 = (PAGE_BYTES / CommitTimestamps::ENTRY_BYTES) as u32;

    pub(crate) fn new(data: &Path) -> CommitTimestamps {
        CommitTimestamps(Slru::new(data.join("pg_commit_ts"), SegmentNames::Short))
    }

    /// Notes a commit (`TransactionTreeSetCommitTsData`).
    pub(crate) fn commit(&mut self, xid: u32, end: &TransactionEnd<'_>, origin: u16) -> io::Result<()> {
        let time = end.origin.map_or(end.time, |origin| origin.time);
        for xid in std::iter::once(xid).chain(end.subxacts) {
            let page = self.0.page((xid / CommitTimestamps::PER_PAGE).into())?;
            let at = (xid % CommitTimestamps::PER_PAGE) as usize * CommitTimestamps::ENTRY_BYTES;
            page[at..at + 8].copy_from_slice(&time.0.to_le_bytes());
            page[at + 8..at + 10].copy_from_slice(&origin.to_le_bytes());
        }
        Ok(())
    }

    pub(crate) fn truncate(&mut self, cutoff: u64) -> io::Result<()> {
        self.0.truncate(cutoff, |one, other| {
            page_precedes(one, other, FIRST_NORMAL_XID, CommitTimestamps::PER_PAGE)
        })
    }
}

/// Multixacts: an offset for each, and the members at the offsets (`multixact.c`).
#[derive(Debug)]
pub(crate) struct MultiXacts {
    version: Major,
    pub(crate) offsets: Slru,
    pub(crate) members: Slru,
    /// A page of offsets that a multixact has extended the log to before the record that adds the page.
    early_page: Option<u64>,
}

impl MultiXacts {
    /// Members in a group, which starts with a byte of flags for each.
    const GROUP_MEMBERS: u64 = 4;
    const GROUP_BYTES: u64 = 20;
    const GROUPS_PER_PAGE: u64 = PAGE_BYTES as u64 / MultiXacts::GROUP_BYTES;
    const MEMBERS_PER_PAGE: u64 = MultiXacts::GROUPS_PER_PAGE * MultiXacts::GROUP_MEMBERS;
    const SEGMENT_PAGES: u64 = 32;
    const FIRST: u32 = 1;

    pub(crate) fn new(data: &Path, version: Major) -> MultiXacts {
        let names = if version >= Major::V19 { SegmentNames::Long } else { SegmentNames::Short };
        MultiXacts {
            version,
            offsets: Slru::new(data.join("pg_multixact/offsets"), SegmentNames::Short),
            members: Slru::new(data.join("pg_multixact/members"), names),
            early_page: None,
        }
    }

    /// Bytes of an offset: 8 since 19.
    fn offset_bytes(&self) -> usize {
        if self.version >= Major::V19 { 8 } else { 4 }
    }

    fn offsets_per_page(&self) -> u32 {
        (PAGE_BYTES / self.offset_bytes()) as u32
    }

    fn next(multi: u32) -> u32 {
        multi.checked_add(1).unwrap_or(MultiXacts::FIRST)
    }

    /// Adds a page of offsets.
    pub(crate) fn add_offsets_page(&mut self, page: u64) -> io::Result<()> {
        if self.early_page.take() == Some(page) {
            return Ok(());
        }
        self.offsets.zero_page(page)
    }

    /// Creates a multixact (`RecordNewMultiXact`). As the newest minor releases do, this sets the next
    /// multixact's offset as well, which is where this one's members end.
    pub(crate) fn create(&mut self, multi: &MultiXactCreate<'_>) -> io::Result<()> {
        self.set_offset(multi.multi, multi.offset)?;
        let next = MultiXacts::next(multi.multi);
        let end = multi.offset.wrapping_add(multi.members.len() as u64);
        let end = if self.version >= Major::V19 { end } else { u64::from(end as u32) };
        let page = u64::from(next / self.offsets_per_page());
        if page != u64::from(multi.multi / self.offsets_per_page()) && !self.offsets.has_page(page) {
            self.offsets.zero_page(page)?;
            self.early_page = Some(page);
        }
        self.set_offset(next, end.max(1))?;
        for (index, member) in multi.members.into_iter().enumerate() {
            let offset = multi.offset.wrapping_add(index as u64);
            let offset = if self.version >= Major::V19 { offset } else { u64::from(offset as u32) };
            let page = self.members.page(offset / MultiXacts::MEMBERS_PER_PAGE)?;
            let group = offset / MultiXacts::GROUP_MEMBERS % MultiXacts::GROUPS_PER_PAGE;
            let start = (group * MultiXacts::GROUP_BYTES) as usize;
            let within = (offset % MultiXacts::GROUP_MEMBERS) as usize;
            page[start + within] = member.status as u8;
            let at = start + MultiXacts::GROUP_MEMBERS as usize + 4 * within;
            page[at..at + 4].copy_from_slice(&member.xid.to_le_bytes());
        }
        Ok(())
    }

    fn set_offset(&mut self, multi: u32, offset: u64) -> io::Result<()> {
        let (bytes, per_page) = (self.offset_bytes(), self.offsets_per_page());
        let page = self.offsets.page((multi / per_page).into())?;
        let at = (multi % per_page) as usize * bytes;
        page[at..at + bytes].copy_from_slice(&offset.to_le_bytes()[..bytes]);
        Ok(())
    }

    /// Removes old multixacts (`PerformMembersTruncation`, `PerformOffsetsTruncation`).
    pub(crate) fn truncate(&mut self, cut: &MultiXactTruncate) -> io::Result<()> {
        let page_of = |offset: u64| offset / MultiXacts::MEMBERS_PER_PAGE;
        match cut.start_offset {
            None => self.members.truncate(page_of(cut.oldest_offset), |one, other| one < other)?,
            Some(start) => {
                // Until 18, offsets wrap around.
                let segment_of = |offset: u64| page_of(offset) / MultiXacts::SEGMENT_PAGES;
                let (start, end) = (segment_of(start), segment_of(cut.oldest_offset));
                self.members.remove_segments(|segment| match start <= end {
                    true => start <= segment && segment < end,
                    false => start <= segment || segment < end,
                })?;
            }
        }
        let previous = match cut.oldest_multi {
            0 | MultiXacts::FIRST => u32::MAX,
            multi => multi - 1,
        };
        let per_page = self.offsets_per_page();
        self.offsets.truncate((previous / per_page).into(), |one, other| {
            page_precedes(one, other, MultiXacts::FIRST, per_page)
        })
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.offsets.flush()?;
        self.members.flush()
    }
}

/// Prepared transactions, whose state PostgreSQL writes to `pg_twophase` at a restart point
/// (`CheckPointTwoPhase`).
#[derive(Debug)]
pub(crate) struct PreparedTransactions {
    folder: PathBuf,
    version: Major,
    /// Files of the base backup, by transaction.
    stored: BTreeMap<u32, PathBuf>,
    /// States of transactions that WAL has prepared.
    prepared: BTreeMap<u32, Vec<u8>>,
}

impl PreparedTransactions {
    pub(crate) fn open(data: &Path, version: Major) -> io::Result<PreparedTransactions> {
        let folder = data.join("pg_twophase");
        let mut stored = BTreeMap::new();
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let xid = name.get(name.len().saturating_sub(8)..);
            if let Some(xid) = xid.and_then(|xid| u32::from_str_radix(xid, 16).ok()) {
                stored.insert(xid, path);
            }
        }
        Ok(PreparedTransactions { folder, version, stored, prepared: BTreeMap::new() })
    }

    /// `PREPARE TRANSACTION`: the record's main data is the state file but for its checksum.
    pub(crate) fn prepare(&mut self, xid: u32, state: &[u8]) -> io::Result<()> {
        self.remove_stored(xid)?;
        self.prepared.insert(xid, state.to_owned());
        Ok(())
    }

    /// The transaction has ended.
    pub(crate) fn end(&mut self, xid: u32) -> io::Result<()> {
        self.prepared.remove(&xid);
        self.remove_stored(xid)
    }

    fn remove_stored(&mut self, xid: u32) -> io::Result<()> {
        self.stored.remove(&xid).map_or(Ok(()), fs::remove_file)
    }

    /// Number of transactions that remain prepared.
    pub(crate) fn count(&self) -> usize {
        self.stored.len() + self.prepared.len()
    }

    /// Writes the state files (`RecreateTwoPhaseFile`). `next_xid` is that of the checkpoint, with its epoch.
    pub(crate) fn write(&self, next_xid: u64) -> io::Result<()> {
        for (&xid, state) in &self.prepared {
            let name = match self.version >= Major::V17 {
                true => {
                    let epoch = (next_xid >> 32) as u32;
                    let epoch = if xid > next_xid as u32 { epoch.wrapping_sub(1) } else { epoch };
                    format!("{epoch:08X}{xid:08X}")
                }
                false => format!("{xid:08X}"),
            };
            let mut file = state.clone();
            file.extend(crc32c_append(0, state).to_le_bytes());
            private::write(&self.folder.join(name), file)?;
        }
        Ok(())
    }
}

/// How far each replication origin was applied (`origin.c`).
#[derive(Debug)]
pub(crate) struct Origins {
    path: PathBuf,
    positions: BTreeMap<u16, Lsn>,
    is_changed: bool,
}

impl Origins {
    /// `REPLICATION_STATE_MAGIC`
    const MAGIC: u32 = 0x1257_DADE;
    /// `InvalidRepOriginId` and `DoNotReplicateId`, which have no progress.
    const WITHOUT_PROGRESS: [u16; 2] = [0, u16::MAX];

    pub(crate) fn open(data: &Path) -> io::Result<Origins> {
        let path = data.join("pg_logical/replorigin_checkpoint");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let positions = if bytes.is_empty() { BTreeMap::new() } else { Origins::parse(&bytes)? };
        Ok(Origins { path, positions, is_changed: false })
    }

    fn parse(bytes: &[u8]) -> io::Result<BTreeMap<u16, Lsn>> {
        let wrong = |problem: &str| {
            io::Error::new(io::ErrorKind::InvalidData, format!("pg_logical/replorigin_checkpoint: {problem}"))
        };
        let (content, crc) =
            bytes.split_last_chunk().ok_or_else(|| wrong("expected a checksum, found its end"))?;
        if crc32c_append(0, content) != u32::from_le_bytes(*crc) {
            return Err(wrong("its checksum is wrong"));
        }
        let (magic, states) =
            content.split_first_chunk().ok_or_else(|| wrong("expected its magic number"))?;
        if u32::from_le_bytes(*magic) != Origins::MAGIC {
            return Err(wrong("its magic number is wrong"));
        }
        let state = |state: &[u8; 16]| {
            let [origin_low, origin_high, _, _, _, _, _, _, position @ ..] = *state;
            (u16::from_le_bytes([origin_low, origin_high]), Lsn(u64::from_le_bytes(position)))
        };
        Ok(states.as_chunks().0.iter().map(state).collect())
    }

    /// Moves an origin forward, or anywhere if `force` is set (`replorigin_advance`).
    pub(crate) fn advance(&mut self, origin: u16, position: Lsn, force: bool) {
        if Origins::WITHOUT_PROGRESS.contains(&origin) {
            return;
        }
        let known = self.positions.entry(origin).or_insert(Lsn(0));
        if force || *known < position {
            *known = position;
        }
        self.is_changed = true;
    }

    pub(crate) fn drop(&mut self, origin: u16) {
        self.is_changed |= self.positions.remove(&origin).is_some();
    }

    /// Writes the file as a checkpoint does (`CheckPointReplicationOrigin`).
    pub(crate) fn write(&self) -> io::Result<()> {
        if !self.is_changed {
            return Ok(());
        }
        let mut bytes = Origins::MAGIC.to_le_bytes().to_vec();
        for (origin, position) in &self.positions {
            bytes.extend(origin.to_le_bytes());
            bytes.extend([0; 6]);
            bytes.extend(position.0.to_le_bytes());
        }
        let crc = crc32c_append(0, &bytes);
        bytes.extend(crc.to_le_bytes());
        private::write(&self.path, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_precede_each_other_across_the_wraparound() {
        let precedes = |one, other| page_precedes(one, other, FIRST_NORMAL_XID, CommitLog::PER_PAGE);
        assert!(precedes(1, 2) && !precedes(2, 1) && !precedes(2, 2));
        let last = u64::from(u32::MAX / CommitLog::PER_PAGE);
        assert!(precedes(last, 0) && !precedes(0, last));
    }

    #[test]
    fn origins_are_written_as_they_are_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pg_logical")).unwrap();
        let mut origins = Origins::open(folder.path()).unwrap();
        origins.write().unwrap();
        assert!(!origins.path.exists(), "nothing has changed");
        origins.advance(1, Lsn(0x100), false);
        origins.advance(1, Lsn(0x50), false);
        origins.advance(2, Lsn(0x200), false);
        origins.advance(2, Lsn(0x60), true);
        origins.advance(u16::MAX, Lsn(1), false);
        origins.advance(7, Lsn(1), false);
        origins.drop(7);
        origins.write().unwrap();
        let read = Origins::open(folder.path()).unwrap();
        assert_eq!(read.positions, BTreeMap::from([(1, Lsn(0x100)), (2, Lsn(0x60))]));
        let mut bytes = fs::read(&read.path).unwrap();
        bytes[5] ^= 1;
        fs::write(&read.path, bytes).unwrap();
        assert!(Origins::open(folder.path()).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn a_prepared_transaction_has_a_file_with_its_epoch_since_17() {
        for (version, name) in [(Major::V16, "00000300"), (Major::V17, "0000000200000300")] {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("pg_twophase")).unwrap();
            let stale = folder.path().join("pg_twophase").join(name.replace("300", "301"));
            fs::write(&stale, "of the backup").unwrap();
            let mut prepared = PreparedTransactions::open(folder.path(), version).unwrap();
            prepared.prepare(0x300, b"state").unwrap();
            prepared.end(0x301).unwrap();
            assert!(!stale.exists());
            prepared.write(0x2_0000_0400).unwrap();
            let file = fs::read(folder.path().join("pg_twophase").join(name)).unwrap();
            assert_eq!(file[..5], *b"state");
            assert_eq!(file[5..], crc32c_append(0, b"state").to_le_bytes());
        }
    }
}
