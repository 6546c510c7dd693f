//! Reads the replication slots of a server from `pg_replslot/NAME/state`.
//!
//! ```text
//! magic 4, CRC-32C 4, version 4, length 4,
//! name 64, database 4, persistency 4, xmin 4, catalog_xmin 4, restart_lsn 8,
//! invalidated_at 8 (version 2, PostgreSQL 13 to 15) or cause 4 and padding 4 (later), confirmed_flush 8,
//! two_phase_at 8 and two_phase 1 (since 14), plugin 64, synced 1 and failover 1 (version 5, since 17)
//! ```
//! (`ReplicationSlotOnDisk` in `slot.c` and `slot.h`). A running server writes the file at checkpoints and
//! when the client of a logical slot has confirmed a position, so the positions may be outdated. Only the
//! server's memory has whether a client is connected.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use walden_format::crc::crc32c_append;
use walden_format::lsn::Lsn;

const MAGIC: u32 = 0x0105_1CA1;
const HEADER: usize = 16;
/// The CRC covers everything from this offset.
const CHECKED_FROM: usize = 8;
const NAME_BYTES: usize = 64;
/// `RS_PERSISTENT` of `ReplicationSlotPersistency` (`slot.h`); ephemeral and temporary slots have other
/// numbers.
const PERSISTENT: u32 = 0;

/// The content of a slot's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotState {
    /// The slot's name.
    pub name: String,
    /// The database of a logical slot; 0 for a physical one.
    pub database: u32,
    /// Whether it survives a restart.
    pub is_persistent: bool,
    /// The oldest LSN that the slot needs; `None` if the slot reserves no WAL.
    pub restart_lsn: Option<Lsn>,
    /// The LSN up to which the client of a logical slot has confirmed changes.
    pub confirmed_flush: Option<Lsn>,
    /// Whether the server has invalidated the slot, for example because it was too far behind. An invalidated
    /// slot holds no WAL.
    pub is_invalidated: bool,
    /// The cause of the invalidation, as in `pg_replication_slots`, if the file has it (16 and later).
    pub invalidation_reason: Option<&'static str>,
    /// The output plugin of a logical slot.
    pub plugin: String,
    /// Whether it was synchronized from a primary (17 and later). After a promotion, it keeps this mark.
    pub is_synced: bool,
}

/// Why a file is not the state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum SlotError {
    #[error("the slot file is too short: {0} bytes")]
    Short(usize),
    #[error("the slot file has a wrong magic number: expected 01051ca1, found {0:08x}")]
    Magic(u32),
    #[error("unknown version {0} of the slot file: expected 2, 3 or 5, which PostgreSQL 13 to 19 write")]
    Version(u32),
    #[error("the slot file has an unknown length of {0} bytes")]
    Length(u32),
    #[error("the slot file's checksum is wrong: stored {stored:08x}, computed {computed:08x}")]
    Checksum { stored: u32, computed: u32 },
}

impl SlotState {
    /// Parses a slot's file.
    ///
    /// # Errors
    /// The file is no state file of a slot, is of an unknown version, or is damaged.
    pub fn parse(bytes: &[u8]) -> Result<SlotState, SlotError> {
        let short = || SlotError::Short(bytes.len());
        let take =
            |at: usize, length: usize| bytes.get(at..at.checked_add(length)?).filter(|it| it.len() == length);
        let u32_at = |at: usize| {
            let bytes = take(at, 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_le_bytes).ok_or_else(short)
        };
        let lsn_at = |at: usize| {
            let bytes = take(at, 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).map(Lsn).ok_or_else(short)
        };
        let magic = u32_at(0)?;
        if magic != MAGIC {
            return Err(SlotError::Magic(magic));
        }
        let (version, length) = (u32_at(8)?, u32_at(12)?);
        if !matches!(version, 2 | 3 | 5) {
            return Err(SlotError::Version(version));
        }
        // The length excludes `two_phase` in 13, and includes it since 14. Any other length means another
        // layout.
        let (with_two_phase, end) = match (version, length) {
            (2, 168) => (false, HEADER + 168),
            (_, 184) => (true, HEADER + 184),
            _ => return Err(SlotError::Length(length)),
        };
        let checked = bytes.get(CHECKED_FROM..end).ok_or_else(short)?;
        let (stored, computed) = (u32_at(4)?, crc32c_append(0, checked));
        if stored != computed {
            return Err(SlotError::Checksum { stored, computed });
        }
        let text = |at: usize| {
            let name = take(at, NAME_BYTES).unwrap_or_default();
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            String::from_utf8_lossy(&name[..end]).into_owned()
        };
        let (restart, confirmed) = (lsn_at(96)?, lsn_at(112)?);
        let invalidated_at = lsn_at(104)?;
        let is_invalidated = match version {
            2 => invalidated_at != Lsn::INVALID && restart == Lsn::INVALID,
            _ => u32_at(104)? != 0,
        };
        // `ReplicationSlotInvalidationCause` is a number in 16 and 17, and has a bit for each cause since 18.
        let invalidation_reason = match (version, u32_at(104)?) {
            (2, _) => None,
            (_, 1) => Some("wal_removed"),
            (_, 2) => Some("rows_removed"),
            (_, 3 | 4) => Some("wal_level_insufficient"),
            (_, 8) => Some("idle_timeout"),
            _ => None,
        };
        let some = |lsn: Lsn| (lsn != Lsn::INVALID).then_some(lsn);
        Ok(SlotState {
            name: text(HEADER),
            database: u32_at(80)?,
            is_persistent: u32_at(84)? == PERSISTENT,
            restart_lsn: some(restart),
            confirmed_flush: some(confirmed),
            is_invalidated,
            invalidation_reason,
            plugin: text(if with_two_phase { 129 } else { 120 }),
            is_synced: version >= 5 && take(193, 1).is_some_and(|byte| byte != [0]),
        })
    }
}

/// A slot in a data directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotFile {
    /// The name of its folder, which is the slot's name.
    pub name: String,
    /// State of the slot.
    pub state: Result<SlotState, SlotError>,
    /// When the file was written.
    pub written: Option<SystemTime>,
}

/// Returns the slots of a data directory, sorted by name.
pub fn slots_in(data: &Path) -> Vec<SlotFile> {
    let mut slots = Vec::new();
    for entry in fs::read_dir(data.join("pg_replslot")).into_iter().flatten().flatten() {
        let path = entry.path().join("state");
        let (Ok(bytes), name) = (fs::read(&path), entry.file_name().to_string_lossy().into_owned()) else {
            continue;
        };
        // A slot that is being dropped.
        if name.ends_with(".tmp") {
            continue;
        }
        let written = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
        slots.push(SlotFile { name, state: SlotState::parse(&bytes), written });
    }
    slots.sort_by(|one, other| one.name.cmp(&other.name));
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state(version: u32, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + length as usize];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC.to_le_bytes());
        put(8, &version.to_le_bytes());
        put(12, &length.to_le_bytes());
        put(16, b"standby_1");
        put(80, &16_384_u32.to_le_bytes());
        put(96, &0x0300_0060_u64.to_le_bytes());
        put(112, &0x0300_0100_u64.to_le_bytes());
        put(if length == 184 { 129 } else { 120 }, b"pgoutput");
        let crc = crc32c_append(0, &bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn states_of_all_versions_are_read() {
        for (version, length) in [(2, 168), (2, 184), (3, 184), (5, 184)] {
            let found = SlotState::parse(&state(version, length)).unwrap();
            let expected = SlotState {
                name: "standby_1".into(),
                database: 16_384,
                is_persistent: true,
                restart_lsn: Some(Lsn(0x0300_0060)),
                confirmed_flush: Some(Lsn(0x0300_0100)),
                is_invalidated: false,
                invalidation_reason: None,
                plugin: "pgoutput".into(),
                is_synced: false,
            };
            assert_eq!(found, expected);
        }
        assert_eq!(SlotState::parse(&state(4, 184)), Err(SlotError::Version(4)));
        assert_eq!(SlotState::parse(&state(5, 180)), Err(SlotError::Length(180)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(garbage in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(SlotState::parse(&garbage).is_err());
        }

        #[test]
        fn damage_is_found(at in 0_usize..200, bit in 0_u8..8, cut in 0_usize..200) {
            let whole = state(5, 184);
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            prop_assert!(SlotState::parse(&damaged).is_err());
            prop_assert!(SlotState::parse(&whole[..cut]).is_err());
        }
    }
}
