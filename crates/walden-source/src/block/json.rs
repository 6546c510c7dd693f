//! The JSON of a block's history.

use serde_json::{Value, json};
use walden_format::record::Compression;
use walden_format::version::Major;
use walden_redo::describe::follow::{Entry, PageState, Snapshot};

use super::END;

/// Formats a page at an LSN.
pub(super) fn moment(snapshot: &Snapshot, version: Major) -> Value {
    let last = snapshot.last.map(|last| {
        json!({
            "lsn": last.lsn.to_string(),
            "resource_manager": last.kind.resource_manager(version),
            "record": last.kind.name(version),
        })
    });
    json!({
        "lsn": if snapshot.at == END { snapshot.reached } else { snapshot.at }.to_string(),
        "known": snapshot.page.is_some(),
        "state": snapshot.state.to_string(),
        "last_record": last,
    })
}

/// Formats an entry of a page's history.
pub(super) fn entry(entry: &Entry) -> Value {
    let image = entry.image.map(|image| {
        let compression = match image.compression {
            Compression::None => "none",
            Compression::Pglz => "pglz",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        };
        json!({"bytes": image.len, "compression": compression, "hole_bytes": image.hole_len, "restored": image.apply})
    });
    json!({
        "lsn": entry.lsn.to_string(),
        "end_lsn": entry.end.to_string(),
        "xid": entry.xid,
        "time": entry.ended.map(|ended| ended.time.to_string()),
        "committed": entry.ended.map(|ended| ended.committed),
        "resource_manager": entry.kind.resource_manager(entry.version),
        "record": entry.kind.name(entry.version),
        "bytes": entry.record_bytes,
        "data_bytes": entry.data_bytes,
        "image": image,
        "init": entry.init,
        "in_backup": entry.ahead,
        "page": match entry.state {
            PageState::Exact => "exact",
            PageState::Untracked => "untracked",
            PageState::Gone => "gone",
            _ => "unknown",
        },
        "why": match entry.state {
            PageState::Exact | PageState::Untracked | PageState::Gone => None,
            state => Some(state.to_string()),
        },
    })
}
