//! WAL for tests: records built in memory, their segments as files, and the golden segments.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use walden_explain::document::{Context, Document};
use walden_explain::group::ViewSpec;
use walden_explain::{Bound, Explanation, Request, explain};
use walden_format::lsn::Lsn;
use walden_format::record::Fork;
use walden_format::rmgr::info::{btree, heap, smgr, standby, xact, xlog};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_source::inventory::Inventory;
use walden_source::names::Names;
use walden_source::open;
use walden_testing::writer::LogWriter;

pub const SEGMENT: usize = 1 << 20;
pub const GOLDEN: [&str; 10] = [
    "14.23",
    "15.18",
    "15.18-first",
    "15.18-lz4",
    "15.18-pglz",
    "15.18-zstd",
    "16.14",
    "17.10",
    "17.11",
    "18.6",
];

pub fn golden(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(version)
}

/// WAL with the records of a workload.
pub struct Log {
    pub writer: LogWriter,
}

impl Log {
    pub fn new() -> Log {
        Log::with_version(Major::V15)
    }

    pub fn with_version(version: Major) -> Log {
        Log { writer: LogWriter::new(version) }
    }

    /// A record with one block without an image.
    pub fn block_record(&mut self, rmid: u8, info: u8, xid: u32, relation: u32, data: usize) -> Lsn {
        let mut rest = vec![0, 0x20];
        rest.extend((data as u16).to_le_bytes());
        for field in [1663, 5, relation, 7] {
            rest.extend(u32::to_le_bytes(field));
        }
        // Main data: an offset number and flags.
        rest.extend([255, 3]);
        rest.resize(rest.len() + data, 0x11);
        rest.extend([1, 0, 0]);
        self.writer.record(rmid, info, xid, &rest)
    }

    /// A record with blocks of one relation, each with its number and data, and with main data.
    pub fn record(
        &mut self,
        (rmid, info): (u8, u8),
        xid: u32,
        relation: u32,
        blocks: &[(u32, &[u8])],
        main: &[u8],
    ) -> Lsn {
        /// `BKPBLOCK_HAS_DATA`, `BKPBLOCK_SAME_REL`
        const HAS_DATA: u8 = 0x20;
        const SAME_REL: u8 = 0x80;
        let mut rest = Vec::new();
        for (id, (block, data)) in blocks.iter().enumerate() {
            let has_data = if data.is_empty() { 0 } else { HAS_DATA };
            rest.extend([id as u8, has_data | if id > 0 { SAME_REL } else { 0 }]);
            rest.extend((data.len() as u16).to_le_bytes());
            if id == 0 {
                [1663, 5, relation].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
            }
            rest.extend(block.to_le_bytes());
        }
        rest.extend([255, main.len() as u8]);
        blocks.iter().for_each(|(_, data)| rest.extend(*data));
        rest.extend(main);
        self.writer.record(rmid, info, xid, &rest)
    }

    /// A record with one block and main data, of a transaction with a replication origin.
    pub fn record_with_origin(
        &mut self,
        (rmid, info): (u8, u8),
        xid: u32,
        relation: u32,
        block: u32,
        main: &[u8],
    ) -> Lsn {
        /// `XLR_BLOCK_ID_ORIGIN`
        const ORIGIN: u8 = 253;
        let mut rest = vec![0, 0, 0, 0];
        [1663, 5, relation, block].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
        rest.extend([ORIGIN, 1, 0, 255, main.len() as u8]);
        rest.extend(main);
        self.writer.record(rmid, info, xid, &rest)
    }

    /// An update of a transaction with a replication origin, whose new tuple is on another page.
    pub fn moving_update_with_origin(
        &mut self,
        xid: u32,
        relation: u32,
        (old_block, old): (u32, u8),
        (block, new): (u32, u8),
    ) -> Lsn {
        const HAS_DATA: u8 = 0x20;
        const SAME_REL: u8 = 0x80;
        const ORIGIN: u8 = 253;
        // t_infomask2, t_infomask, t_hoff, padding, attributes.
        let tuple = [3, 0, 2, 0, 24, 0, 1, 2, 3, 4];
        let mut rest = vec![0, HAS_DATA, tuple.len() as u8, 0];
        [1663, 5, relation, block].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
        rest.extend([1, SAME_REL, 0, 0]);
        rest.extend(old_block.to_le_bytes());
        rest.extend([ORIGIN, 1, 0, 255, 14]);
        rest.extend(tuple);
        rest.extend(xid.to_le_bytes());
        rest.extend([old, 0, 0, 0, 0, 0, 0, 0, new, 0]);
        self.writer.record(rmid::HEAP, heap::UPDATE, xid, &rest)
    }

    /// An image of a page of a table that was logged for a hint bit.
    pub fn hint_image_of(&mut self, relation: u32, block: u32, bytes: usize) -> Lsn {
        self.image_of((rmid::XLOG, xlog::FPI_FOR_HINT), 0, (relation, Fork::MAIN, block), bytes)
    }

    /// An insert that names the toplevel transaction, like the first record of a subtransaction with
    /// `wal_level=logical`.
    pub fn first_insert(&mut self, xid: u32, top: u32, data: u8) {
        let mut rest = vec![0, 0x20, data, 0];
        [1663, 5, 16384, 7].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
        // XLR_BLOCK_ID_TOPLEVEL_XID
        rest.push(252);
        rest.extend(top.to_le_bytes());
        rest.extend([255, 3]);
        rest.resize(rest.len() + usize::from(data), 0x11);
        rest.extend([1, 0, 0]);
        self.writer.record(rmid::HEAP, heap::INSERT, xid, &rest);
    }

    /// An `ASSIGNMENT` record, which a transaction writes for 64 subtransactions.
    pub fn assign(&mut self, top: u32, subxids: &[u32]) {
        let numbers = [top, subxids.len() as u32].into_iter().chain(subxids.iter().copied());
        let main: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
        let mut rest = vec![254];
        rest.extend((main.len() as u32).to_le_bytes());
        rest.extend(main);
        self.writer.record(rmid::XACT, xact::ASSIGNMENT, top, &rest);
    }

    /// Bytes of the records of transactions, with alignment.
    pub fn bytes_of(&self, xids: &[u32]) -> u64 {
        let is_of = |record: &[u8]| xids.contains(&u32::from_le_bytes(record[4..8].try_into().unwrap()));
        let records = self.writer.records.iter().filter(|(_, bytes)| is_of(bytes));
        records.map(|(_, bytes)| bytes.len().next_multiple_of(8) as u64).sum()
    }

    pub fn heap_insert(&mut self, xid: u32, relation: u32, data: usize) -> Lsn {
        self.block_record(rmid::HEAP, heap::INSERT, xid, relation, data)
    }

    /// An insert into a table of another database.
    pub fn record_of_database(&mut self, database: u32) {
        let mut rest = vec![0, 0x20, 8, 0];
        [1663, database, 16384, 7].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
        rest.extend([255, 3]);
        rest.extend([0x11; 8]);
        rest.extend([1, 0, 0]);
        self.writer.record(rmid::HEAP, heap::INSERT, 1000, &rest);
    }

    pub fn index_insert(&mut self, xid: u32, relation: u32, data: usize) -> Lsn {
        self.block_record(rmid::BTREE, btree::INSERT_LEAF, xid, relation, data)
    }

    /// The creation of a relation's file.
    pub fn create(&mut self, xid: u32, relation: u32) {
        let main: Vec<u8> = [1663, 5, relation, 0].into_iter().flat_map(u32::to_le_bytes).collect();
        self.record((rmid::SMGR, smgr::CREATE), xid, 0, &[], &main);
    }

    /// An `AccessExclusiveLock` on the relation with an OID.
    pub fn lock_relation(&mut self, xid: u32, oid: u32) {
        let main: Vec<u8> = [1, xid, 5, oid].into_iter().flat_map(u32::to_le_bytes).collect();
        self.record((rmid::STANDBY, standby::LOCK), xid, 0, &[], &main);
    }

    /// A commit record that drops relations' files, of a transaction that logged its locks.
    pub fn commit_and_drop(&mut self, xid: u32, files: &[u32]) {
        /// `XACT_XINFO_HAS_AE_LOCKS`
        const HAS_LOCKS: u32 = 64;
        self.commit_with(xid, HAS_LOCKS, files, &[]);
    }

    /// The same under `wal_level=minimal`, with the OIDs of the dropped relations; none before 15.
    pub fn commit_and_drop_without_locks(&mut self, xid: u32, files: &[u32], relations: &[u32]) {
        self.commit_with(xid, 0, files, relations);
    }

    fn commit_with(&mut self, xid: u32, flags: u32, files: &[u32], relations: &[u32]) {
        /// `XLOG_XACT_HAS_INFO`, `XACT_XINFO_HAS_RELFILELOCATORS`, `XACT_XINFO_HAS_DROPPED_STATS`,
        /// `PGSTAT_KIND_RELATION`
        const HAS_INFO: u8 = 0x80;
        const HAS_FILES: u32 = 4;
        const HAS_STATS: u32 = 256;
        const RELATION: u32 = 2;
        let flags = flags | HAS_FILES | if relations.is_empty() { 0 } else { HAS_STATS };
        let mut numbers = vec![flags, files.len() as u32];
        numbers.extend(files.iter().flat_map(|file| [1663, 5, *file]));
        if !relations.is_empty() {
            numbers.push(relations.len() as u32);
            numbers.extend(relations.iter().flat_map(|oid| [RELATION, 5, *oid]));
        }
        let mut data = (i64::from(xid) * 1_000_000).to_le_bytes().to_vec();
        data.extend(numbers.into_iter().flat_map(u32::to_le_bytes));
        self.record((rmid::XACT, xact::COMMIT | HAS_INFO), xid, 0, &[], &data);
    }

    /// An image of a page of a fork (`XLOG_FPI`), with the given number of bytes around its hole, at least a
    /// page header.
    pub fn page_image(&mut self, xid: u32, relation: u32, fork: Fork, bytes: usize) -> Lsn {
        self.image((rmid::XLOG, xlog::FPI), xid, relation, fork, bytes)
    }

    /// An insert on a page that is changed for the first time since a checkpoint.
    pub fn insert_with_image(&mut self, xid: u32, relation: u32, bytes: usize) -> Lsn {
        self.image((rmid::HEAP, heap::INSERT), xid, relation, Fork::MAIN, bytes)
    }

    /// Writes an insert with an image that pglz compressed to the given number of bytes; since 15.
    pub fn insert_with_compressed_image(&mut self, xid: u32, relation: u32, bytes: usize) -> Lsn {
        /// `BKPBLOCK_HAS_IMAGE`; `BKPIMAGE_APPLY` and `BKPIMAGE_COMPRESS_PGLZ`.
        const HAS_IMAGE: u8 = 0x10;
        const APPLY_PGLZ: u8 = 6;
        let mut rest = vec![0, HAS_IMAGE, 0, 0];
        rest.extend((bytes as u16).to_le_bytes());
        rest.extend([0, 0, APPLY_PGLZ]);
        [1663, 5, relation, 0].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
        rest.resize(rest.len() + bytes, 0x55);
        self.writer.record(rmid::HEAP, heap::INSERT, xid, &rest)
    }

    /// An insert on a leaf page of an index that is changed for the first time since a checkpoint.
    pub fn index_insert_with_image(&mut self, xid: u32, relation: u32, bytes: usize) -> Lsn {
        self.image((rmid::BTREE, btree::INSERT_LEAF), xid, relation, Fork::MAIN, bytes)
    }

    /// An image of a page of a fork that was logged for a hint bit.
    pub fn hint_image(&mut self, relation: u32, fork: Fork, bytes: usize) -> Lsn {
        self.image((rmid::XLOG, xlog::FPI_FOR_HINT), 0, relation, fork, bytes)
    }

    /// A record with an image of the first page.
    pub fn image(&mut self, kind: (u8, u8), xid: u32, relation: u32, fork: Fork, bytes: usize) -> Lsn {
        self.image_of(kind, xid, (relation, fork, 0), bytes)
    }

    /// A record with an image of a page.
    fn image_of(
        &mut self,
        (rmid, info): (u8, u8),
        xid: u32,
        (relation, fork, block): (u32, Fork, u32),
        bytes: usize,
    ) -> Lsn {
        /// `BKPBLOCK_HAS_IMAGE`; `BKPIMAGE_HAS_HOLE` and `BKPIMAGE_APPLY`.
        const HAS_IMAGE: u8 = 0x10;
        const HAS_HOLE_APPLY: u8 = 3;
        let mut rest = vec![0, HAS_IMAGE | fork.0, 0, 0];
        rest.extend((bytes as u16).to_le_bytes());
        rest.extend(24_u16.to_le_bytes());
        rest.push(HAS_HOLE_APPLY);
        [1663, 5, relation, block].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
        rest.resize(rest.len() + bytes, 0x55);
        self.writer.record(rmid, info, xid, &rest)
    }

    /// A commit or abort record at a time in seconds since 2000-01-01 UTC.
    pub fn end(&mut self, xid: u32, is_commit: bool, seconds: i64, subxids: &[u32]) {
        self.end_at(xid, is_commit, seconds * 1_000_000, subxids);
    }

    /// Writes the end of a transaction, with the time in microseconds.
    pub fn end_at(&mut self, xid: u32, is_commit: bool, micros: i64, subxids: &[u32]) {
        let mut data = micros.to_le_bytes().to_vec();
        let mut info = if is_commit { xact::COMMIT } else { xact::ABORT };
        if !subxids.is_empty() {
            // XLOG_XACT_HAS_INFO, XACT_XINFO_HAS_SUBXACTS
            info |= 0x80;
            data.extend(2_u32.to_le_bytes());
            data.extend((subxids.len() as u32).to_le_bytes());
            subxids.iter().for_each(|subxid| data.extend(subxid.to_le_bytes()));
        }
        let mut rest = vec![255, data.len() as u8];
        rest.extend(data);
        self.writer.record(rmid::XACT, info, xid, &rest);
    }

    /// A snapshot without running transactions: the next one gets the ID `next_xid`.
    pub fn running_xacts(&mut self, next_xid: u32) {
        // xcnt, subxcnt, subxid_overflow, nextXid, oldestRunningXid, latestCompletedXid
        let numbers = [0, 0, 0, next_xid, next_xid, next_xid - 1];
        let main: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
        self.record((rmid::STANDBY, standby::RUNNING_XACTS), 0, 0, &[], &main);
    }

    /// An online checkpoint whose redo pointer is at this position, started at a time in seconds since
    /// 1970-01-01 UTC.
    pub fn checkpoint(&mut self, time: i64, full_page_writes: bool) {
        self.checkpoint_record(xlog::CHECKPOINT_ONLINE, time, full_page_writes);
    }

    /// A checkpoint of a server that shuts down.
    pub fn shutdown(&mut self, time: i64) {
        self.checkpoint_record(xlog::CHECKPOINT_SHUTDOWN, time, true);
    }

    fn checkpoint_record(&mut self, info: u8, time: i64, full_page_writes: bool) {
        let redo = self.writer.position();
        let mut data = vec![0; 88];
        data[..8].copy_from_slice(&redo.0.to_le_bytes());
        data[8] = 3;
        data[12] = 3;
        data[16] = full_page_writes.into();
        data[64..72].copy_from_slice(&time.to_le_bytes());
        let mut rest = vec![255, 88];
        rest.extend(data);
        self.writer.record(rmid::XLOG, info, 0, &rest);
    }

    pub fn explain(&self, request: &Request) -> Explanation {
        let folder = tempfile::tempdir().unwrap();
        self.writer.save(folder.path());
        explain_folder(folder.path(), request)
    }

    pub fn document(&self) -> Document {
        document(&self.explain(&request(Vec::new())))
    }
}

pub fn request(views: Vec<ViewSpec>) -> Request {
    Request::new(2).views(views).top(1000)
}

pub fn range(from: Option<Lsn>, to: Option<Lsn>) -> Request {
    Request::new(1).from(from.map(Bound::Lsn)).to(to.map(Bound::Lsn))
}

pub fn explain_folder(folder: &Path, request: &Request) -> Explanation {
    let inventory = Inventory::search(&[folder]).unwrap();
    explain(&inventory.runs, request, |_| {}).unwrap()
}

/// Explains each run of a golden cluster: some clusters contain the WAL of two servers.
pub fn explain_golden(version: &str, request: &Request) -> Vec<Explanation> {
    let inventory = Inventory::search(&[golden(version)]).unwrap();
    let runs = inventory.runs.iter();
    runs.map(|run| explain(std::slice::from_ref(run), request, |_| {}).unwrap()).collect()
}

pub fn document(explanation: &Explanation) -> Document {
    document_with(explanation, &Names::default())
}

pub fn document_with(explanation: &Explanation, names: &Names) -> Document {
    Document::new(
        explanation,
        &Context { names, checkpoint_settings: None, top: None, pattern: None, writers: None },
    )
}

/// Writes a golden cluster's segments uncompressed, and returns their paths.
pub fn unpack(version: &str, folder: &Path) -> Vec<PathBuf> {
    let inventory = Inventory::search(&[golden(version)]).unwrap();
    let unpack = |segment| {
        let mut content = Vec::new();
        open::open(segment).unwrap().read_to_end(&mut content).unwrap();
        let path = folder.join(segment.name.to_string());
        fs::write(&path, content).unwrap();
        path
    };
    inventory.segments().map(unpack).collect()
}

/// Start of each record of a run.
pub fn record_starts(inventory: &Inventory) -> Vec<Lsn> {
    struct Starts(Vec<Lsn>);
    impl walden_format::stream::Visitor for Starts {
        fn record(&mut self, record: &walden_format::record::Record<'_>) -> std::ops::ControlFlow<()> {
            self.0.push(record.lsn);
            std::ops::ControlFlow::Continue(())
        }
    }
    let mut starts = Starts(Vec::new());
    let options = walden_source::scan::ScanOptions::new(1);
    for run in &inventory.runs {
        walden_source::scan::scan_in_order(run, options, &mut starts, |_| {});
    }
    starts.0
}
