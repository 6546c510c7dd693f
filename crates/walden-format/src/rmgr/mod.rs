//! Resource managers and their kinds of record.
//!
//! One row of [`rows`] describes a kind: its resource manager, number, name and versions, and which of its
//! images are written regardless of the checkpoint settings. The sources are `rmgrlist.h`, the `*_identify`
//! functions in `src/backend/access/rmgrdesc`, and the callers that pass `REGBUF_FORCE_IMAGE`. A table of
//! [`crate::payload`] maps kinds to the decoders of their fields.

use std::borrow::Cow;

use crate::version::Major::{self, V9_6, V10, V11, V12, V13, V14, V15, V16, V17, V18, V19};

pub mod info;
mod kinds;

pub(crate) use kinds::KINDS;

/// A kind of record: a resource manager's number and the bits of the info byte that distinguish its records.
///
/// The number is below [`Kind::COUNT`], so it can be used as an index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Kind(u16);

/// Returns the kind of a record that `version` wrote with this resource manager and info byte.
///
/// Bits of the info byte that do not determine the kind are dropped: the lower four everywhere, and
/// `XLOG_XACT_HAS_INFO` in transaction records. The bit of heap and BRIN records that initialize a page
/// (`INSERT+INIT`) belongs to the kind.
#[inline]
pub fn kind(version: Major, rmid: u8, info: u8) -> Kind {
    KindTable::for_version(version).kind(rmid, info)
}

impl Kind {
    /// The number of kinds, of all versions and extensions.
    pub const COUNT: usize = 4096;

    /// The kind's number, below [`Kind::COUNT`].
    #[inline]
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// The kind with this number.
    #[inline]
    pub fn from_index(index: usize) -> Option<Kind> {
        (index < Kind::COUNT).then_some(Kind(index as u16))
    }

    /// The number of the resource manager.
    #[inline]
    pub fn rmid(self) -> u8 {
        (self.0 >> 4) as u8
    }

    /// The info byte without the bits that do not belong to the kind.
    #[inline]
    pub fn info(self) -> u8 {
        (self.0 << 4) as u8
    }

    /// Returns the description of this kind, if `version` writes it.
    #[inline]
    pub fn row(self, version: Major) -> Option<&'static KindRow> {
        KINDS.get(self.row_index(version)?)
    }

    /// Returns the index of the kind's row in [`KINDS`]; out of range if `version` does not write the kind.
    #[inline]
    pub(crate) fn row_index(self, version: Major) -> Option<usize> {
        KindTable::for_version(version).rows.get(self.index()).map(|row| usize::from(*row))
    }

    /// Returns the kind's name as that version's pg_waldump prints it: `INSERT+INIT`, or `UNKNOWN (f0)`.
    pub fn name(self, version: Major) -> Cow<'static, str> {
        match self.row(version) {
            Some(row) => Cow::Borrowed(row.name),
            None => Cow::Owned(format!("UNKNOWN ({:x})", self.info())),
        }
    }

    /// Returns the resource manager's name, see [`resource_manager`].
    pub fn resource_manager(self, version: Major) -> Cow<'static, str> {
        resource_manager(version, self.rmid())
    }
}

/// Returns a resource manager's name as that version's pg_waldump prints it: `Heap`, `custom128`, or `UNKNOWN
/// (25)`.
pub fn resource_manager(version: Major, rmid: u8) -> Cow<'static, str> {
    match MANAGERS.get(usize::from(rmid)) {
        Some(manager) if manager.since <= version => Cow::Borrowed(manager.name),
        _ if rmid >= FIRST_CUSTOM && version >= V15 => Cow::Owned(format!("custom{rmid:03}")),
        _ => Cow::Owned(format!("UNKNOWN ({rmid})")),
    }
}

/// The numbers of the built-in resource managers (`rmgrlist.h`).
#[allow(missing_docs)]
pub mod rmid {
    pub const XLOG: u8 = 0;
    pub const XACT: u8 = 1;
    pub const SMGR: u8 = 2;
    pub const CLOG: u8 = 3;
    pub const DBASE: u8 = 4;
    pub const TBLSPC: u8 = 5;
    pub const MULTIXACT: u8 = 6;
    pub const RELMAP: u8 = 7;
    pub const STANDBY: u8 = 8;
    pub const HEAP2: u8 = 9;
    pub const HEAP: u8 = 10;
    pub const BTREE: u8 = 11;
    pub const HASH: u8 = 12;
    pub const GIN: u8 = 13;
    pub const GIST: u8 = 14;
    pub const SEQ: u8 = 15;
    pub const SPGIST: u8 = 16;
    pub const BRIN: u8 = 17;
    pub const COMMIT_TS: u8 = 18;
    pub const REPLORIGIN: u8 = 19;
    pub const GENERIC: u8 = 20;
    pub const LOGICALMSG: u8 = 21;
}

/// The lowest number of an extension's resource manager (`RM_MIN_CUSTOM_ID`, since 15).
pub const FIRST_CUSTOM: u8 = 128;

/// A built-in resource manager.
struct ManagerRow {
    name: &'static str,
    since: Major,
    /// The bits of the info byte that distinguish its records.
    mask: u8,
}

const fn manager(name: &'static str) -> ManagerRow {
    ManagerRow { name, since: Major::V9_5, mask: 0xF0 }
}

/// In the order of their numbers.
const MANAGERS: &[ManagerRow] = &[
    manager("XLOG"),
    // XLOG_XACT_OPMASK; the bit above it means that the record has an xinfo field.
    ManagerRow { mask: 0x70, ..manager("Transaction") },
    manager("Storage"),
    manager("CLOG"),
    manager("Database"),
    manager("Tablespace"),
    manager("MultiXact"),
    manager("RelMap"),
    manager("Standby"),
    manager("Heap2"),
    manager("Heap"),
    manager("Btree"),
    manager("Hash"),
    manager("Gin"),
    manager("Gist"),
    manager("Sequence"),
    manager("SPGist"),
    manager("BRIN"),
    manager("CommitTs"),
    manager("ReplicationOrigin"),
    // generic_identify() returns one name for every info byte.
    ManagerRow { mask: 0, since: V9_6, ..manager("Generic") },
    ManagerRow { since: V9_6, ..manager("LogicalMessage") },
];

/// The reason why a record carries an image, as far as its kind and the block's id determine it.
///
/// Some cases are indistinguishable and count as [`ImageClass::Checkpoint`]. A generic record's full image
/// (requested by extensions with `GENERIC_XLOG_FULL_IMAGE`) looks the same as one after a checkpoint. 19
/// forces the image of a heap page that was never WAL-logged before into the record that prunes it or sets
/// its all-visible bit. A page whose LSN is 0 because it was initialized again gets an image however recent
/// the checkpoint: the overflow page that hash's `SQUEEZE_PAGE` frees (its block 2), or a page of a truncated
/// visibility map.
///
/// An image that redo does not apply exists for `wal_consistency_checking`, regardless of its kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ImageClass {
    /// The first change of the page after a checkpoint: depends on `full_page_writes` and the checkpoint
    /// distance.
    Checkpoint,
    /// The writer requested it: present regardless of settings and checkpoints.
    Forced,
    /// A hint bit was the first change after a checkpoint, and checksums or `wal_log_hints` are on.
    ///
    /// Depends on the checkpoint distance, and since 15 on `full_page_writes`.
    Hint,
}

/// The images of a kind that do not result from the first ordinary change after a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Images {
    /// None: all images are [`ImageClass::Checkpoint`].
    Ordinary,
    /// The images of the blocks whose ids are set bits are [`ImageClass::Forced`].
    Forced(u64),
    /// All images are [`ImageClass::Hint`].
    Hint,
}

/// A kind of record in some versions.
#[derive(Clone, Copy)]
pub struct KindRow {
    /// The resource manager's number.
    pub rmid: u8,
    /// The info byte, as in [`Kind::info`].
    pub info: u8,
    /// The name that pg_waldump prints.
    pub name: &'static str,
    /// The first version that writes it.
    pub since: Major,
    /// The last version that writes it; `None` if current versions write it.
    pub until: Option<Major>,
    /// The images that have another reason than a checkpoint.
    pub images: Images,
}

impl KindRow {
    /// Whether `version` writes it.
    pub const fn is_of(&self, version: Major) -> bool {
        let late = match self.until {
            Some(until) => version as u8 > until as u8,
            None => false,
        };
        version as u8 >= self.since as u8 && !late
    }

    const fn since(mut self, version: Major) -> KindRow {
        self.since = version;
        self
    }

    const fn until(mut self, version: Major) -> KindRow {
        self.until = Some(version);
        self
    }

    const fn images(mut self, images: Images) -> KindRow {
        self.images = images;
        self
    }
}

/// Returns all kinds of all versions, by resource manager.
pub fn rows() -> impl Iterator<Item = &'static KindRow> {
    KINDS.iter()
}

/// A version's kinds of record as arrays, so that no lookup needs a search.
pub struct KindTable {
    version: Major,
    masks: [u8; 256],
    /// Index into `KINDS`, or `NO_ROW`.
    rows: [u8; BUILT_IN],
    /// Bit n: the image of block n is forced; the top bit: all images are for hints.
    images: [u64; BUILT_IN],
}

/// The upper bound of the kinds of built-in resource managers.
const BUILT_IN: usize = MANAGERS.len() << 4;
const NO_ROW: u8 = u8::MAX;
const HINT_BIT: u64 = 1 << 63;

impl KindTable {
    /// The table of a version.
    #[inline]
    pub fn for_version(version: Major) -> &'static KindTable {
        &TABLES[version as usize]
    }

    /// The version.
    pub fn version(&self) -> Major {
        self.version
    }

    /// Returns the [`kind`] for this version.
    #[inline]
    pub fn kind(&self, rmid: u8, info: u8) -> Kind {
        let mask = self.masks[rmid as usize];
        Kind((rmid as u16) << 4 | ((info & mask) >> 4) as u16)
    }

    /// Returns the reason why a record of the kind with this number carries an image of its block with this
    /// id.
    #[inline]
    pub fn image_class(&self, kind_index: usize, block_id: u8) -> ImageClass {
        let bits = self.images.get(kind_index).copied().unwrap_or(0);
        if bits == 0 {
            ImageClass::Checkpoint
        } else if bits == HINT_BIT {
            ImageClass::Hint
        } else if bits >> (block_id & 63) & 1 != 0 {
            ImageClass::Forced
        } else {
            ImageClass::Checkpoint
        }
    }

    const fn build(version: Major) -> KindTable {
        let mut table =
            KindTable { version, masks: [0xF0; 256], rows: [NO_ROW; BUILT_IN], images: [0; BUILT_IN] };
        let mut at = 0;
        while at < MANAGERS.len() {
            if MANAGERS[at].since as u8 <= version as u8 {
                table.masks[at] = MANAGERS[at].mask;
            }
            at += 1;
        }
        let mut at = 0;
        while at < KINDS.len() {
            let row = &KINDS[at];
            if row.is_of(version) {
                let index = (row.rmid as usize) << 4 | (row.info >> 4) as usize;
                assert!(table.rows[index] == NO_ROW, "two rows for one kind in one version");
                table.rows[index] = at as u8;
                table.images[index] = match row.images {
                    Images::Ordinary => 0,
                    Images::Forced(blocks) => blocks,
                    Images::Hint => HINT_BIT,
                };
            }
            at += 1;
        }
        table
    }
}

static TABLES: [KindTable; 12] = {
    assert!(KINDS.len() < NO_ROW as usize);
    [
        KindTable::build(Major::V9_5),
        KindTable::build(V9_6),
        KindTable::build(V10),
        KindTable::build(V11),
        KindTable::build(V12),
        KindTable::build(V13),
        KindTable::build(V14),
        KindTable::build(V15),
        KindTable::build(V16),
        KindTable::build(V17),
        KindTable::build(V18),
        KindTable::build(V19),
    ]
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_tables_are_in_the_versions_order() {
        for version in Major::all() {
            assert_eq!(KindTable::for_version(version).version(), version);
        }
    }

    #[test]
    fn every_row_is_found_in_its_versions_and_no_others() {
        for row in rows() {
            for version in Major::all() {
                let found = kind(version, row.rmid, row.info).row(version);
                let same = found.is_some_and(|found| found.name == row.name && found.since == row.since);
                assert_eq!(same, row.is_of(version), "{} {version}", row.name);
            }
        }
    }

    #[test]
    fn names_follow_the_version() {
        let name = |version, rmid, info| kind(version, rmid, info).name(version);
        assert_eq!(name(Major::V9_5, rmid::HEAP2, 0x10), "CLEAN");
        assert_eq!(name(V14, rmid::HEAP2, 0x10), "PRUNE");
        assert_eq!(name(V17, rmid::HEAP2, 0x10), "PRUNE_ON_ACCESS");
        assert_eq!(name(V18, rmid::HEAP2, 0x40), "VISIBLE");
        assert_eq!(name(V19, rmid::HEAP2, 0x40), "UNKNOWN (40)");
        assert_eq!(name(V15, rmid::HEAP, 0x80), "INSERT+INIT");
        assert_eq!(name(V15, rmid::HEAP, 0x90), "UNKNOWN (90)");
        assert_eq!(name(V12, rmid::BTREE, 0x50), "UNKNOWN (50)");
        assert_eq!(name(V13, rmid::BTREE, 0x50), "INSERT_POST");
        assert_eq!(name(V16, rmid::GENERIC, 0x70), "Generic");
        assert_eq!(name(V16, 200, 0xF0), "UNKNOWN (f0)");
    }

    #[test]
    fn resource_managers_follow_the_version() {
        assert_eq!(resource_manager(V18, rmid::BTREE), "Btree");
        // Snapshots of 19's development branch had a resource manager XLOG2.
        assert_eq!(resource_manager(V19, 22), "UNKNOWN (22)");
        assert_eq!(resource_manager(Major::V9_5, rmid::GENERIC), "UNKNOWN (20)");
        assert_eq!(resource_manager(V15, 128), "custom128");
        assert_eq!(resource_manager(V14, 128), "UNKNOWN (128)");
        assert_eq!(resource_manager(V15, 25), "UNKNOWN (25)");
    }

    #[test]
    fn a_transaction_with_xinfo_is_of_the_same_kind() {
        assert_eq!(kind(V18, rmid::XACT, 0x80), kind(V18, rmid::XACT, 0x00));
        assert_eq!(kind(V18, rmid::XACT, 0xB0).name(V18), "COMMIT_PREPARED");
        assert_ne!(kind(V18, rmid::HEAP, 0x80), kind(V18, rmid::HEAP, 0x00));
    }

    #[test]
    fn images_are_classed_by_kind_and_block() {
        for version in Major::all() {
            let table = KindTable::for_version(version);
            let class = |rmid, info, block| table.image_class(table.kind(rmid, info).index(), block);
            assert_eq!(class(rmid::XLOG, 0xB0, 0), ImageClass::Forced);
            assert_eq!(class(rmid::XLOG, 0xB0, 32), ImageClass::Forced);
            assert_eq!(class(rmid::XLOG, 0xA0, 0), ImageClass::Hint);
            assert_eq!(class(rmid::GIN, 0x30, 2), ImageClass::Forced);
            assert_eq!(class(rmid::GIN, 0x30, 3), ImageClass::Checkpoint);
            assert_eq!(class(rmid::GIN, 0x40, 0), ImageClass::Forced);
            assert_eq!(class(rmid::HEAP, 0x00, 0), ImageClass::Checkpoint);
            let hash = if version >= V10 { ImageClass::Forced } else { ImageClass::Checkpoint };
            assert_eq!(class(rmid::HASH, 0x50, 0), hash);
        }
    }

    proptest! {
        #[test]
        fn every_kind_has_names_and_an_index(rmid: u8, info: u8, block: u8, at in 0..12usize) {
            let version = Major::all().nth(at).unwrap();
            let kind = kind(version, rmid, info);
            prop_assert_eq!(Kind::from_index(kind.index()), Some(kind));
            prop_assert_eq!(kind.rmid(), rmid);
            prop_assert_eq!(kind.info() & !info, 0);
            prop_assert!(!kind.name(version).is_empty() && !kind.resource_manager(version).is_empty());
            KindTable::for_version(version).image_class(kind.index(), block);
        }
    }
}
