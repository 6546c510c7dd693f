//! Copies files of a spool for recovery, after the same checks as before archiving, so that recovery never
//! gets damaged WAL.
//!
//! PostgreSQL treats a damaged record as the end of WAL. Without these checks, one flipped bit in the middle
//! of the received WAL would end recovery there, and the server would silently start without the WAL after
//! it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use walden_archive::check::{self, Refusal, Rules};
use walden_archive::history::History;
use walden_archive::name::ArchivedFile;
use walden_archive::parts;
use walden_archive::pending::Incoming;
use walden_format::fault::FaultKind;
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::page::{LONG_HEADER, PageHeader};
use walden_format::record::{MAX_RECORD_BYTES, RECORD_HEADER};
use walden_format::stream::StreamInfo;
use walden_source::regular_file;

/// Largest file that is read, in bytes; no segment is larger.
const MAX_BYTES: u64 = 1 << 30;
/// How often a segment that is being received is read while each attempt finds damage at a different place.
const MAX_READS: usize = 100;
/// Wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(5);

/// The cluster of the recovering server, as far as it is known.
#[derive(Clone, Default, Debug)]
pub struct Known {
    /// System identifiers, each with its origin. A file has to match every identifier.
    pub system_ids: Vec<(u64, String)>,
    /// Segment size of the cluster, in bytes.
    pub segment_bytes: Option<u64>,
}

/// Why a file of a spool is not copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file, or the spool.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file is damaged, or does not match its name.
    #[error("cannot use {}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The problem.
        #[source]
        source: Refusal,
    },
    /// The complete records end before the received WAL does.
    #[error(
        "cannot use {}: damaged at {at} (offset {offset}): expected a whole record with the right checksum, or zeros after one that is cut off, found other bytes up to offset {end}",
        path.display()
    )]
    Behind {
        /// The file.
        path: PathBuf,
        /// The end of the records.
        at: Lsn,
        /// Offset in the file of `at`, in bytes.
        offset: u64,
        /// Offset after the last received byte.
        end: u64,
    },
    /// A file belongs to another cluster.
    #[error(
        "cannot use {}: expected system identifier {expected}, as in {says}, found {found}", path.display()
    )]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// Where the expected system identifier comes from.
        says: String,
        /// The expected system identifier.
        expected: u64,
        /// The file's.
        found: u64,
    },
    /// The archive's timeline histories, which limit how far timelines go, cannot be read.
    #[error("cannot read the archive's timeline histories")]
    Histories(#[source] io::Error),
    /// The file for recovery cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl CopyError {
    /// The offset of the damage; 0 if the file as a whole is wrong.
    fn offset(&self) -> u64 {
        match self {
            CopyError::Behind { offset, .. }
            | CopyError::Refused { source: Refusal::Damaged { offset, .. }, .. } => *offset,
            _ => 0,
        }
    }
}

walden_format::diagnostics! { CopyError {
    Self::Read { .. } => "spool-unreadable" as "unreadable": "check the path of --spool and that its file system is mounted, and let the user that walden runs as, which for restore_command is the server's, read the spool and its files",
    Self::Refused { .. } | Self::Behind { .. } => "spool-damaged" as "damaged_spool": "nothing was handed over: recovery has stopped, and continues when the server is started again. Find a good copy of the file, in pg_wal of the server that wrote it or of a standby, and archive it with walden archive push, or copy it into the spool. If there is none, and recovery shall end at that place: in a copy of the spool, cut the file at the offset and fill it with zeros (truncate -s OFFSET, then truncate -s SIZE), under the name that ends with .partial; all later WAL is lost then",
    Self::OtherCluster { .. } => "spool-other-cluster" as "other_cluster": "--spool has to name the spool in which walden receive keeps the log of the server's own cluster; after pg_upgrade a cluster is a new one",
    Self::Histories(_) => "spool-histories" as "unreadable",
    Self::Write { .. } => "spool-write" as "write",
} }

/// Copies a file from a spool for recovery, and returns whether the spool has it. The copy of an incomplete
/// segment has the received WAL up to the place where a history that is `archived` or in the spool leaves its
/// timeline. The spool is not changed, so a receiving process may continue.
///
/// A complete file is checked as [`walden_archive::push()`] checks it, an incomplete one up to the end of the
/// received WAL.
///
/// # Errors
/// Errors of the file system and of `archived`, and an error for a file that is damaged, does not match its
/// name, or belongs to another cluster than `known`.
pub fn copy_out(
    spool: &Path,
    file: ArchivedFile,
    target: &Path,
    known: &Known,
    archived: impl FnOnce() -> io::Result<BTreeMap<Timeline, History>>,
) -> Result<bool, CopyError> {
    let partial = match file {
        ArchivedFile::Segment(name) => Some(ArchivedFile::Partial(name)),
        _ => None,
    };
    // A partial segment may be renamed between two attempts, so the full name is tried twice.
    for candidate in [Some(file), partial, Some(file)].into_iter().flatten() {
        let path = spool.join(candidate.to_string());
        let mut input = match regular_file::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(|source| CopyError::Read { path: path.clone(), source })?,
        };
        let received = Received { path: &path, known };
        let content = match candidate {
            ArchivedFile::Partial(name) => {
                let histories = with_histories_of(spool, archived().map_err(CopyError::Histories)?)?;
                received.read_partial(&mut input, name, file, &histories)?
            }
            ArchivedFile::History(timeline) => {
                read_history(spool, timeline)?;
                received.expect_spool_of_cluster(spool)?;
                Some(received.read(&mut input)?)
            }
            ArchivedFile::Segment(_) | ArchivedFile::Backup(..) => {
                let content = received.read(&mut input)?;
                // Unreadable histories count as none: fewer files are accepted without them.
                let histories = || with_histories_of(spool, archived().unwrap_or_default());
                received.check_whole(candidate, &content, histories)?;
                Some(content)
            }
        };
        let Some(content) = content else { return Ok(false) };
        let written = Incoming::create(target).and_then(|mut incoming| {
            incoming.write_all(&content)?;
            incoming.publish()
        });
        written.map_err(|source| CopyError::Write { path: target.to_owned(), source })?;
        return Ok(true);
    }
    // A missing folder, for example on an unmounted file system, does not mean that the file is missing.
    match std::fs::read_dir(spool) {
        Ok(_) => Ok(false),
        Err(source) => Err(CopyError::Read { path: spool.to_owned(), source }),
    }
}

/// A file of the spool.
struct Received<'a> {
    path: &'a Path,
    known: &'a Known,
}

impl Received<'_> {
    fn read(&self, input: &mut File) -> Result<Vec<u8>, CopyError> {
        let mut content = Vec::new();
        let read = input.rewind().and_then(|()| input.take(MAX_BYTES + 1).read_to_end(&mut content));
        read.map_err(|source| CopyError::Read { path: self.path.to_owned(), source })?;
        Ok(content)
    }

    fn refused(&self, source: Refusal) -> CopyError {
        CopyError::Refused { path: self.path.to_owned(), source }
    }

    /// Returns the segment size. Every segment file of the spool has its full size from the start.
    fn expect_size(&self, content: &[u8]) -> Result<SegmentSize, CopyError> {
        let bytes = content.len() as u64;
        let size =
            SegmentSize::new(bytes).filter(|_| self.known.segment_bytes.is_none_or(|known| known == bytes));
        size.ok_or_else(|| {
            let expected = match self.known.segment_bytes {
                Some(known) => format!("{known} bytes (the cluster's segment size)"),
                None => "a segment size of PostgreSQL".to_owned(),
            };
            self.refused(Refusal::Mismatch {
                what: "the file's size",
                expected,
                found: format!("{bytes} bytes"),
            })
        })
    }

    fn expect_cluster(&self, found: u64) -> Result<(), CopyError> {
        match self.known.system_ids.iter().find(|(expected, _)| *expected != found) {
            None => Ok(()),
            Some((expected, says)) => Err(CopyError::OtherCluster {
                path: self.path.to_owned(),
                says: says.clone(),
                expected: *expected,
                found,
            }),
        }
    }

    /// A history does not contain a system identifier, so the system identifier of a segment in the same
    /// spool is checked.
    fn expect_spool_of_cluster(&self, spool: &Path) -> Result<(), CopyError> {
        let entries = std::fs::read_dir(spool).into_iter().flatten().flatten();
        let found = entries.map(|entry| entry.path()).find_map(|path| {
            let name = ArchivedFile::parse(path.file_name()?.to_str()?)?;
            if !matches!(name, ArchivedFile::Segment(_) | ArchivedFile::Partial(_)) {
                return None;
            }
            let mut first = Vec::new();
            regular_file::open(&path).ok()?.take(LONG_HEADER as u64).read_to_end(&mut first).ok()?;
            check::system_id_of(&first)
        });
        found.map_or(Ok(()), |found| self.expect_cluster(found))
    }

    /// Checks a complete file as before archiving.
    fn check_whole(
        &self,
        file: ArchivedFile,
        content: &[u8],
        histories: impl FnOnce() -> Result<BTreeMap<Timeline, History>, CopyError>,
    ) -> Result<(), CopyError> {
        if let ArchivedFile::Segment(_) = file {
            self.expect_size(content)?;
            if let Some(found) = check::system_id_of(content) {
                self.expect_cluster(found)?;
            }
        }
        let checked = match check::check_held(file, content, rules_for(&[])) {
            // According to a history, a timeline may start or end in the segment.
            Err(Refusal::Timeline { .. } | Refusal::Damaged { .. } | Refusal::Incomplete { .. }) => {
                let histories: Vec<History> = histories().unwrap_or_default().into_values().collect();
                check::check_held(file, content, rules_for(&histories))
            }
            other => other,
        };
        checked.map(drop).map_err(|refusal| self.refused(refusal))
    }

    /// Reads the received WAL of a segment, followed by zeros. Returns `None` if no WAL was received, or if
    /// recovery must not use it.
    ///
    /// A receiving process may write at the same time. Of two adjacent pages, this function may read the
    /// first before the process writes it, and the second after. The next attempt then reads both pages as
    /// written, whereas real damage stays.
    fn read_partial(
        &self,
        input: &mut File,
        name: SegmentName,
        asked: ArchivedFile,
        histories: &BTreeMap<Timeline, History>,
    ) -> Result<Option<Vec<u8>>, CopyError> {
        let known: Vec<History> = histories.values().cloned().collect();
        let mut reads = 1;
        let mut before = None;
        loop {
            let mut content = self.read(input)?;
            let size = self.expect_size(&content)?;
            if let ArchivedFile::Segment(_) = asked
                && let Some(left_at) = parts::left_at(name, size, histories)
            {
                content[left_at as usize..].fill(0);
            }
            match self.check_received(name, size, &content, &known) {
                Ok(has_come) => return Ok(has_come.then_some(content)),
                Err(error) if reads == MAX_READS || before == Some(error.offset()) => return Err(error),
                Err(error) => before = Some(error.offset()),
            }
            reads += 1;
            thread::sleep(PAUSE);
        }
    }

    /// Checks an incomplete segment: records with the right checksums up to a record that is cut off, and
    /// only zeros after it. Returns whether any WAL was received.
    fn check_received(
        &self,
        name: SegmentName,
        size: SegmentSize,
        content: &[u8],
        histories: &[History],
    ) -> Result<bool, CopyError> {
        let written = content.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1);
        // No more than the first page's header.
        if written <= LONG_HEADER as u64 {
            return Ok(false);
        }
        let info = StreamInfo::from_first_page(content);
        if let Some(found) = check::system_id_of(content) {
            self.expect_cluster(found)?;
        }
        let rules = rules_for(histories);
        let (end, refusal) = match check::check_held(ArchivedFile::Partial(name), content, rules) {
            Ok(checked) => {
                let end = checked.contents.and_then(|contents| contents.end.parse::<Lsn>().ok());
                (end, None)
            }
            // If a record crosses pages and is cut off in its last one, the earlier pages are complete and
            // the fault is at its start.
            Err(refusal) => match refusal {
                Refusal::Damaged { fault, .. }
                    if matches!(fault.kind, FaultKind::Checksum { .. } | FaultKind::PreviousLink { .. }) =>
                {
                    (Some(fault.lsn), Some(refusal))
                }
                _ => return Err(self.refused(refusal)),
            },
        };
        let (Ok(info), Some(end), Some(start)) = (info, end, name.start(size)) else { return Ok(true) };
        if is_cut_off_at(&info, content, (start, end), written) {
            return Ok(true);
        }
        Err(match refusal {
            Some(refusal) => self.refused(refusal),
            None => CopyError::Behind {
                path: self.path.to_owned(),
                at: end,
                offset: end.bytes_since(start),
                end: written,
            },
        })
    }
}

/// The receiver accepts WAL of an unknown version only if the user allows it, so it is accepted here.
fn rules_for(histories: &[History]) -> Rules<'_> {
    Rules { accept_damaged: false, accept_unknown_versions: true, histories }
}

/// Returns whether the received bytes of a segment starting at `start` end at `end`, the end of its complete
/// records, or within the record that follows.
fn is_cut_off_at(info: &StreamInfo, content: &[u8], (start, end): (Lsn, Lsn), written: u64) -> bool {
    let geometry = info.geometry();
    let (mut at, mut length) = (end, None);
    let is_written = |at: Lsn, bytes: u64| at.bytes_since(start).saturating_add(bytes) <= written;
    if geometry.offset_in_page(at) == 0 {
        let header_bytes = geometry.header_bytes(at) as u64;
        if !is_written(at, header_bytes) {
            return true;
        }
        let page = content.get(at.bytes_since(start) as usize..).unwrap_or_default();
        let Ok(header) = PageHeader::parse(page) else { return false };
        // The rest of a record that starts on an earlier page or in an earlier segment.
        length = (header.remaining > 0).then_some(header.remaining);
        at = at.plus(header_bytes);
    }
    if !is_written(at, 1) {
        return true;
    }
    let is_rest = length.is_some();
    let length = match length {
        Some(length) => length,
        None => {
            let rest = content.get(at.bytes_since(start) as usize..).unwrap_or_default();
            let Some(first) = rest.first_chunk().filter(|_| is_written(at, 4)) else { return true };
            u32::from_le_bytes(*first)
        }
    };
    let is_length = length <= MAX_RECORD_BYTES && (is_rest || length >= RECORD_HEADER as u32);
    is_length && !is_written(start, geometry.record_end(at, length.into()).bytes_since(start))
}

/// Adds the histories in a spool.
fn with_histories_of(
    spool: &Path,
    mut histories: BTreeMap<Timeline, History>,
) -> Result<BTreeMap<Timeline, History>, CopyError> {
    let failed = |source| CopyError::Read { path: spool.to_owned(), source };
    for entry in std::fs::read_dir(spool).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if let Some(ArchivedFile::History(timeline)) = name.to_str().and_then(ArchivedFile::parse) {
            histories.insert(timeline, read_history(spool, timeline)?);
        }
    }
    Ok(histories)
}

fn read_history(spool: &Path, timeline: Timeline) -> Result<History, CopyError> {
    let path = spool.join(ArchivedFile::History(timeline).to_string());
    let text = match regular_file::read(&path, MAX_BYTES) {
        Ok(text) => text,
        Err(source) => return Err(CopyError::Read { path, source }),
    };
    History::parse(timeline, &text).map_err(|error| CopyError::Refused { path, source: error.into() })
}
