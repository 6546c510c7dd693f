//! Estimates how many unheld files a checkpoint recycles for future segments.

use walden_format::lsn::SegmentName;

use super::{Listing, Recycling, Situation};

/// Returns the settings for recycling, and the bytes that a checkpoint at the current end of WAL may still
/// recycle.
///
/// The server keeps files for the WAL that it expects until the end of the next checkpoint (`XLOGfileslop`).
/// The server does not show its estimate, but `min_wal_size` and `max_wal_size` limit the estimate.
pub(super) fn estimate(listing: &Listing, situation: &Situation, current: u64) -> Recycling {
    let (size, settings) = (situation.segment_size, &situation.server.settings);
    let is_on =
        settings.get("wal_recycle").is_none_or(|value| !matches!(value, "off" | "false" | "no" | "0"));
    let max_bytes = settings.bytes("max_wal_size");
    let numbers = listing.files.iter().filter_map(|file| SegmentName::parse(&file.name)?.number(size));
    let last = numbers.max().unwrap_or(current).max(current);
    let limit = max_bytes.map_or(current, |bytes| current + (bytes / size.bytes()).saturating_sub(1));
    let room = if is_on { limit.saturating_sub(last) } else { 0 };
    Recycling {
        is_on,
        min_bytes: settings.bytes("min_wal_size"),
        max_bytes,
        room_bytes: room.saturating_mul(size.bytes()),
    }
}
