//! Redirects tablespaces that the WAL creates into the drill's copy, whatever path the record contains.
//!
//! Otherwise recovery would use the original's folders, which contain its live files if they are on this
//! machine. So each segment is rewritten after it is fetched and before the server reads it
//! ([`walden_format::redirect`]). A folder of the drill contains notes: one file for each record that
//! continues in the next segment and whose type is therefore unknown, and one for each tablespace.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize};
use walden_format::redirect::{Head, RedirectError, redirect_tablespaces};

/// Option of `walden archive get` for the folder of the notes.
pub const OPTION: &str = "--redirect-tablespaces";

/// A tablespace that was redirected into the copy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct RedirectedTablespace {
    /// Its OID.
    pub oid: u32,
    /// Path of its folder in the original.
    pub path: String,
    /// LSN of the record that creates it.
    pub lsn: String,
}

/// Reasons for not passing a segment to the server of a drill.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedirectFileError {
    /// The segment cannot be rewritten.
    #[error("cannot keep the tablespaces that {name} creates within the drill's folder")]
    Redirect {
        /// The segment.
        name: SegmentName,
        /// The reason.
        #[source]
        source: RedirectError,
    },
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

walden_format::diagnostics! { RedirectFileError {
    Self::Redirect { .. } => "drill-tablespace": "take a new base backup, now that the tablespace exists, or restore manually on a machine without the original server's files",
    Self::Io { .. } => none,
} }

/// Rewrites a segment that was fetched for a drill. `notes` is the folder of the notes.
///
/// # Errors
/// The segment cannot be rewritten, so the server must not read it.
pub fn redirect_file(segment: SegmentName, file: &Path, notes: &Path) -> Result<(), RedirectFileError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| RedirectFileError::Io { path, source }
    };
    let mut bytes = fs::read(file).map_err(io(file))?;
    let original = bytes.clone();
    let Some(size) = SegmentSize::new(bytes.len() as u64) else {
        let source = RedirectError::Unreadable;
        return Err(RedirectFileError::Redirect { name: segment, source });
    };
    let number = segment.number(size);
    let heads = number.map_or(Ok(Vec::new()), |number| read_heads(notes, number)).map_err(io(notes))?;
    let rewritten = redirect_tablespaces(&mut bytes, segment.timeline, &heads);
    let rewritten = rewritten.map_err(|source| RedirectFileError::Redirect { name: segment, source })?;
    for tablespace in rewritten.tablespaces {
        let (oid, lsn) = (tablespace.tablespace, tablespace.lsn.to_string());
        let path = String::from_utf8_lossy(&tablespace.path).into_owned();
        let note = notes.join(format!("tablespace-{oid}-{:016X}", tablespace.lsn.0));
        let text = serde_json::to_string(&RedirectedTablespace { oid, path, lsn }).unwrap_or_default();
        fs::write(&note, text).map_err(io(&note))?;
    }
    if let (Some(head), Some(number)) = (rewritten.head, number) {
        let note = notes.join(format!("{}{}", head_prefix(number + 1), segment.timeline));
        fs::write(&note, [&head.lsn.0.to_le_bytes()[..], &head.bytes].concat()).map_err(io(&note))?;
    }
    let changed = bytes.iter().zip(&original).position(|(new, old)| new != old);
    if let Some(start) = changed {
        let target = File::options().write(true).open(file).map_err(io(file))?;
        target.write_all_at(&bytes[start..], start as u64).map_err(io(file))?;
    }
    Ok(())
}

fn head_prefix(number: u64) -> String {
    format!("head-{number:016X}-")
}

/// Reads the heads of the records that continue in the segment with this number, on any timeline.
fn read_heads(notes: &Path, number: u64) -> io::Result<Vec<Head>> {
    let prefix = head_prefix(number);
    let mut heads = Vec::new();
    for entry in fs::read_dir(notes)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let bytes = fs::read(entry.path())?;
            if let Some((lsn, bytes)) = bytes.split_first_chunk() {
                heads.push(Head { lsn: Lsn(u64::from_le_bytes(*lsn)), bytes: bytes.to_vec() });
            }
        }
    }
    Ok(heads)
}

/// Returns the redirected tablespaces in WAL order.
///
/// # Errors
/// The file system's errors.
pub fn redirected(notes: &Path) -> io::Result<Vec<RedirectedTablespace>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(notes)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("tablespace-") {
            let text = fs::read(entry.path())?;
            found.push(serde_json::from_slice::<RedirectedTablespace>(&text).map_err(io::Error::other)?);
        }
    }
    found.sort_by_key(|tablespace| tablespace.lsn.parse::<Lsn>().ok());
    Ok(found)
}
