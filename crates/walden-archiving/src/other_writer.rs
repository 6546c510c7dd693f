//! Detects another server that writes into the same archive: a clone, or a promoted copy with the same
//! `archive_command`.

use std::fmt;
use std::io;
use std::path::Path;

use walden_archive::Archive;
use walden_archive::against::{RESET_HINT, find_taken};
use walden_archive::archive::ArchiveError;
use walden_archive::list::{self, Branch, ListOptions};
use walden_archive::name::ArchivedFile;
use walden_archive::status::QueuedFile;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::payload::Timestamp;
use walden_receive::status::{State, Status};
use walden_source::regular_file;

use crate::error::ArchivingError;
use crate::queue::QueueOptions;
use crate::server_files::read_file;

/// Evidence of another writer.
pub struct OtherWriter {
    /// Evidence.
    pub problem: String,
    /// Remedy.
    pub hint: String,
}

impl fmt::Display for OtherWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; hint: {}", self.problem, self.hint)
    }
}

/// Start of the problem that [`find_branch`] describes.
pub const PROMOTED: &str = "another server was promoted";

/// Remedy for names that another server has used.
const TAKEN_HINT: &str = "find out which of the two servers is the primary, and stop the other from archiving here (archive_mode = off, or its own archive). If this server is the primary, move it to a new archive: create one with walden archive init, and take a new base backup; the first segments that the new archive needs are still in pg_wal. From the first such name on, this archive belongs to the other server";

/// Finds a server's ready file whose name the archive has with other content.
pub fn find_taken_name(
    archive: &Archive,
    queue: &QueueOptions,
    files: &[QueuedFile],
) -> Result<Option<OtherWriter>, ArchivingError> {
    let ready: Vec<ArchivedFile> = files.iter().map(|queued| queued.file).collect();
    let taken = match (&queue.dsn, &queue.pgdata) {
        (Some(dsn), _) => {
            let mut client = walden_postgres::connection::connect(dsn)?;
            find_taken(archive, &ready, &mut |file| read_file(&mut client, file))?
        }
        (None, Some(data)) => find_taken(archive, &ready, &mut |file| read_ready(data, file))?,
        (None, None) => None,
    };
    Ok(taken.map(|taken| match taken.is_reset {
        true => OtherWriter {
            problem: format!(
                "pg_resetwal was run on this server, and the archive has WAL from before: {}",
                taken.problem
            ),
            hint: RESET_HINT.to_owned(),
        },
        false => OtherWriter {
            problem: format!("another server archived the name of a file that waits here: {}", taken.problem),
            hint: TAKEN_HINT.to_owned(),
        },
    }))
}

fn read_ready(data: &Path, file: ArchivedFile) -> io::Result<Vec<u8>> {
    regular_file::read(&data.join("pg_wal").join(file.to_string()), SegmentSize::MAX.bytes())
}

/// Finds a segment in the archive that a primary has not completed. `last` was the last segment of its
/// timeline before the primary reported its write position, `written`.
pub fn find_segment_ahead(
    archive: &Archive,
    last: Option<SegmentName>,
    written: Lsn,
) -> Result<Option<OtherWriter>, ArchiveError> {
    let size = archive.segment_size()?;
    let is_ahead =
        |last: &SegmentName| last.number(size).is_some_and(|number| number >= size.segment_of(written));
    Ok(last.filter(is_ahead).map(|last| OtherWriter {
        problem: format!(
            "another server archived names that this server has yet to write, or pg_resetwal took this server back: the server has written up to {written}, and the archive \
             has {last}"
        ),
        hint: TAKEN_HINT.to_owned(),
    }))
}

/// Finds a timeline that left the one which a receiver gets from its server, if both belong to the archive's
/// cluster.
pub fn find_branch_of_received(
    archive: &Archive,
    status: &Status,
) -> Result<Option<OtherWriter>, ArchiveError> {
    let own = &archive.identity()?.system_identifier;
    let is_own = status.system_identifier.as_ref().is_some_and(|found| found == own);
    match (status.state, status.received_lsn.parse()) {
        (State::Streaming, Ok(received)) if is_own => find_branch(archive, status.timeline, received),
        _ => Ok(None),
    }
}

/// Finds a timeline that left the primary's timeline before `written`, and that its standbys would follow by
/// default.
pub fn find_branch(
    archive: &Archive,
    own: Timeline,
    written: Lsn,
) -> Result<Option<OtherWriter>, ArchiveError> {
    let branch = list::find_branch(archive, own, written)?;
    branch.map(|branch| describe_branch(archive, branch, own, written)).transpose()
}

/// Describes a branch from the timeline of a primary that has written up to `written`.
pub fn describe_branch(
    archive: &Archive,
    branch: Branch,
    own: Timeline,
    written: Lsn,
) -> Result<OtherWriter, ArchiveError> {
    let Branch { timeline, parent, left_at } = branch;
    let listing = list::list(archive, ListOptions::default())?;
    let last_commit = listing
        .timelines
        .iter()
        .find(|one| one.timeline == timeline)
        .and_then(|one| one.parent_last_commit_time)
        .map_or(String::new(), |time| {
            format!(" (in a segment that starts after the commit of {})", Timestamp::from_unix_micros(time))
        });
    Ok(OtherWriter {
        problem: format!(
            "{PROMOTED}: the archive has the history of timeline {timeline}, which left timeline {parent} at \
             {left_at}{last_commit}, and the server still writes timeline {own}, now at {written}. Recovery and standbys from a new base backup \
             of this server fail with \"requested timeline {timeline} is not a child of this server's history\""
        ),
        hint: format!(
            "if the server on timeline {timeline} is the primary, stop this one: its commits are lost at the next failover. If timeline \
             {timeline} is abandoned, set recovery_target_timeline = 'current' on standbys and for recovery. The next promotion takes a \
             number after {timeline}, and 'latest' works again from then on"
        ),
    })
}
