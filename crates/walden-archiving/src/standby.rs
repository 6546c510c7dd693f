//! Standbys that cannot continue from the archive, because the archive's WAL starts after the WAL that they
//! need next, for example since `prune` removed it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

use walden_archive::{Archive, list};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_postgres::connection::Client;
use walden_source::datadir::ControlFile;

use crate::error::{ArchivingError, Result};

/// Remedy for a standby that cannot continue.
pub const STUCK_HINT: &str = "let it stream from a server that still has that WAL, or replace it by a copy of a new base backup; before \
                              prune, let standbys catch up";

/// A standby whose next segment is neither in its `pg_wal` nor in the archive, which starts later.
pub struct StuckStandby {
    reached: Lsn,
    next: SegmentName,
    /// The first segment in the archive.
    first: SegmentName,
    /// Whether the standby is known not to stream.
    pub is_certain: bool,
}

impl StuckStandby {
    /// Asks a standby that runs. One that streams is not stuck.
    pub fn query(client: &mut Client, archive: &Archive, size: SegmentSize) -> Result<Option<StuckStandby>> {
        let row = client.query_one(
            "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::text,
                    EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')",
            &[],
        )?;
        let is_streaming: bool = row.try_get(1)?;
        let Some(reached) = row.try_get::<_, Option<String>>(0)?.filter(|_| !is_streaming) else {
            return Ok(None);
        };
        let (reached, next) = (reached.parse::<Lsn>()?, size.segment_of(reached.parse::<Lsn>()?));
        let is_local =
            "SELECT count(*) > 0 FROM pg_ls_waldir() WHERE substr(name, 9) = $1 AND length(name) = 24";
        let number = SegmentName::new(0, next, size).to_string();
        if client.query_one(is_local, &[&&number[8..]])?.try_get(0)? {
            return Ok(None);
        }
        StuckStandby::find(archive, size, reached, next, true)
    }

    /// Reads a standby's data directory, which does not show whether it streams.
    pub fn read_data_directory(
        data: &Path,
        control: &ControlFile,
        archive: &Archive,
        size: SegmentSize,
    ) -> Result<Option<StuckStandby>> {
        let reached = control.min_recovery_point;
        // On any timeline.
        let mut local = BTreeSet::new();
        let wal = data.join("pg_wal");
        let failed = |error| ArchivingError::read(wal.display().to_string())(error);
        for entry in fs::read_dir(&wal).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_str().and_then(SegmentName::parse);
            local.extend(name.and_then(|name| name.number(size)));
        }
        let next = (size.segment_of(reached)..).find(|number| !local.contains(number));
        match next {
            Some(next) if reached != Lsn::INVALID => StuckStandby::find(archive, size, reached, next, false),
            _ => Ok(None),
        }
    }

    fn find(
        archive: &Archive,
        size: SegmentSize,
        reached: Lsn,
        next: u64,
        is_certain: bool,
    ) -> Result<Option<StuckStandby>> {
        let first = list::first_segments(archive)?.into_values();
        let first = first.filter_map(|name| Some((name.number(size)?, name))).min();
        let Some((_, first)) = first.filter(|(first, _)| next < *first) else { return Ok(None) };
        let next = SegmentName::new(first.timeline, next, size);
        Ok(Some(StuckStandby { reached, next, first, is_certain }))
    }
}

impl fmt::Display for StuckStandby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StuckStandby { reached, next, first, is_certain } = self;
        let how = match is_certain {
            true => "the standby does not stream and cannot continue",
            false => "unless the standby streams, it cannot continue",
        };
        write!(
            f,
            "{how} from {reached} ({next}): the archive starts with {first}, and pg_wal does not have the segment"
        )
    }
}
