//! A file with a segment: its path or store, and the information of the segment's first page.

use std::path::PathBuf;

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::version::Major;

use crate::compression::Compression;
use crate::store::SharedStore;

/// A file with a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The segment's name: the file's name, or determined from the content.
    pub name: SegmentName,
    /// Whether the file is named `.partial`: the segment was not complete when it was written.
    pub partial: bool,
    /// Compression of the file, found by its content.
    pub compression: Compression,
    /// Number of the segment's member in a file of `walden compress` or in `store`.
    pub member: Option<u64>,
    /// The store from which the segment is read. `path` is then only for messages.
    pub store: Option<SharedStore>,
    /// Whether the segment can be decoded only after the previous segment in the same pack.
    pub needs_previous: bool,
    /// Bytes that the segment takes on disk.
    pub size_on_disk: u64,
    /// LSN of the segment's start.
    pub start: Lsn,
    /// PostgreSQL major version that wrote the segment.
    pub version: Major,
    /// The cluster's system identifier.
    pub system_id: u64,
    /// The cluster's segment size.
    pub segment_size: SegmentSize,
    /// Size of WAL pages (`XLOG_BLCKSZ`), in bytes.
    pub page_bytes: u32,
    /// Whether `pg_resetwal` restarted the WAL at the start of this segment, so that this segment does not
    /// continue the previous segment. False for segments whose content was not decoded.
    pub is_restarted: bool,
}

/// The properties that all segments of a run have in common, by which runs are sorted.
pub(crate) type Key = (u64, Timeline, Major, SegmentSize, u32);

impl SegmentFile {
    /// Describes the restart of the WAL at the segment's start, see `is_restarted`.
    pub fn restart_text(&self) -> String {
        format!(
            "pg_resetwal restarted the WAL at {} ({}): WAL before it may be lost, and earlier base backups cannot be recovered past it",
            self.start, self.name
        )
    }

    /// Returns an uncompressed segment file in a folder.
    #[cfg(test)]
    pub(crate) fn plain(
        folder: &std::path::Path,
        name: SegmentName,
        segment_size: SegmentSize,
    ) -> SegmentFile {
        SegmentFile {
            path: folder.join(name.to_string()),
            name,
            partial: false,
            compression: Compression::None,
            member: None,
            store: None,
            needs_previous: false,
            size_on_disk: segment_size.bytes(),
            start: name.start(segment_size).unwrap(),
            version: Major::V17,
            system_id: 7,
            segment_size,
            page_bytes: 8192,
            is_restarted: false,
        }
    }

    /// Returns whether a running server has overwritten the file with a later segment, or removed it.
    pub(crate) fn is_recycled(&self) -> bool {
        let store = self.store.as_ref().zip(self.member);
        store.is_some_and(|(store, number)| store.is_recycled(number))
    }

    pub(crate) fn key(&self) -> Option<Key> {
        Some((self.system_id, self.name.timeline, self.version, self.segment_size, self.page_bytes))
    }
}
