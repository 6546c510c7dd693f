//! Determines the kind of a file by its first bytes.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use walden_format::fault::FaultKind;
use walden_format::lsn::{Lsn, SegmentName, Timeline};
use walden_format::page::{LONG_HEADER, PageHeader, PageHeaderError};
use walden_format::payload::{self, Payload};
use walden_format::record::{Record, RecordHeader};
use walden_format::rmgr::rmid;
use walden_format::stream::{Decoder, StreamInfo, Visitor};
use walden_format::version::{Major, UnreadableMagic};

use super::search::Candidate;
use super::{Spare, SpareKind, Unreadable, UnreadableReason};
use crate::compressed::{self, Member};
use crate::compression::Compression;
use crate::file_kind::FileKind;
use crate::open::{self, Foreign};
use crate::segment_file::SegmentFile;
use crate::tar_file::{self, TarMember};

/// A file that has a segment, or seems to.
pub struct Found {
    pub file: SegmentFile,
    /// The timeline of the first page; the timeline in the name if the segment's start was not decoded.
    pub first_page: Timeline,
}

/// The content of a file.
pub enum Look {
    Segment(Found),
    Spare(Spare),
    /// A file that `walden compress` wrote.
    Members(Vec<Member>),
    /// A tar file.
    Tar(TarContent),
}

/// The content of a tar file.
pub struct TarContent {
    /// The segments in the tar file, and files named like segments that are not segments.
    pub looks: Vec<Result<Look, Unreadable>>,
    /// Timeline histories: name and content.
    pub histories: Vec<(String, Vec<u8>)>,
    /// Why the tar file could not be read to its end.
    pub fault: Option<UnreadableReason>,
}

/// Reads the start of a file and determines its content.
pub fn look_into(candidate: &Candidate) -> Result<Look, UnreadableReason> {
    let peek = open::peek(&candidate.path).map_err(UnreadableReason::Io)?;
    if peek.size == 0 {
        return Err(UnreadableReason::Empty);
    }
    let (compression, start) = match peek.content {
        Ok((compression, start)) if tar_file::is_tar(&start) => return look_into_tar(candidate, compression),
        Ok(content) => content,
        Err(Foreign::Unknown(_)) if open::start_is(&candidate.path, tar_file::is_tar) => {
            return look_into_tar(candidate, Compression::None);
        }
        Err(Foreign::Encrypted(by)) => return Err(UnreadableReason::Encrypted(by)),
        Err(Foreign::Format(format)) => return Err(UnreadableReason::Format(format)),
        Err(Foreign::Unknown(magic)) => {
            if let Some(members) = compressed::members(&candidate.path).map_err(UnreadableReason::Io)? {
                return Ok(Look::Members(members));
            }
            let magic = u16::from_le_bytes(magic);
            if Major::from_magic(magic).is_err() {
                return Err(unreadable_reason(magic));
            }
            // The magic is right; any other fault of the header is found below.
            (Compression::None, open::first_bytes(&candidate.path).map_err(UnreadableReason::Io)?)
        }
    };
    let file = Content { path: &candidate.path, compression, member: None, size_on_disk: peek.size };
    look_into_content(file, candidate.name, &start)
}

fn look_into_tar(candidate: &Candidate, compression: Compression) -> Result<Look, UnreadableReason> {
    let tar = tar_file::search(&candidate.path, compression).map_err(UnreadableReason::Io)?;
    let look = |(number, member): (usize, &TarMember)| {
        let path = candidate.path.join(&member.path);
        let named = |reason| Unreadable { path: path.clone(), reason };
        let number = number as u64;
        if member.bytes == 0 {
            return Err(named(UnreadableReason::Empty));
        }
        let stream = tar.store.stream(number).filter(|_| !member.is_sparse);
        let stream = stream.ok_or_else(|| named(UnreadableReason::Format("a sparse file in a tar file")))?;
        let in_member =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let (compression, start) = open::peek_stream(stream, &member.start)
            .map_err(|error| named(UnreadableReason::Io(in_member(error))))?;
        let name = match FileKind::from_name(&member.name) {
            FileKind::Segment { name, partial } => Some((name, partial)),
            _ => None,
        };
        let file = Content { path: &path, compression, member: None, size_on_disk: member.bytes };
        match look_into_content(file, name, &start).map_err(named)? {
            Look::Segment(Found { file, first_page }) => {
                let store = Some(tar.store.clone());
                let file = SegmentFile { member: Some(number), store, ..file };
                Ok(Look::Segment(Found { file, first_page }))
            }
            other => Ok(other),
        }
    };
    let looks = tar.members.iter().enumerate().map(look).collect();
    let fault = tar.fault.map(UnreadableReason::Io);
    Ok(Look::Tar(TarContent { looks, histories: tar.histories, fault }))
}

/// Returns a member as a segment, or `None` if it is not named like a segment. `before` is the segment found
/// before this member.
///
/// The head of a member coded as records has the position, but not the version and the cluster. Version and
/// cluster are copied from the previous segment if this member continues it, otherwise the start of the
/// content is decoded. Reading checks both on every page. Where `pg_resetwal` restarted the WAL, the member
/// is a keyframe, whose start is decoded.
pub fn look_into_member(
    candidate: &Candidate,
    member: &Member,
    before: Option<&SegmentFile>,
) -> Result<Option<Look>, UnreadableReason> {
    let name = match FileKind::from_name(&member.name) {
        FileKind::Segment { name, partial } => Some((name, partial)),
        _ if member.place.is_some() => None,
        _ => return Ok(None),
    };
    let file = Content {
        path: &candidate.path,
        compression: Compression::Walden,
        member: Some(member),
        size_on_disk: member.stored,
    };
    let is_next = |before: &&SegmentFile| {
        let is_of_same_archive = before.path.parent() == candidate.path.parent();
        is_of_same_archive
            && before.compression == Compression::Walden
            && member.place.zip(name).is_some_and(|(place, (name, _))| {
                before.start.plus(before.segment_size.bytes()) == place.start
                    && before.segment_size == place.size
                    && before.name.timeline == name.timeline
                    && name.start(place.size) == Some(place.start)
            })
    };
    if !member.is_keyframe
        && let (Some(before), Some((name, partial))) = (before.filter(is_next), name)
    {
        let start = before.start.plus(before.segment_size.bytes());
        let file = SegmentFile {
            path: candidate.path.clone(),
            name,
            partial,
            member: Some(member.number),
            needs_previous: true,
            size_on_disk: member.stored,
            start,
            is_restarted: false,
            ..before.clone()
        };
        return Ok(Some(Look::Segment(Found { file, first_page: name.timeline })));
    }
    let start =
        compressed::start(&candidate.path, member.number, PAGE_BYTES).map_err(UnreadableReason::Io)?;
    look_into_content(file, name, &start).map(Some)
}

/// Bytes of a member's content that are decoded to determine its kind.
const PAGE_BYTES: usize = 8 << 10;

/// The file or pack member that holds a segment's content.
struct Content<'a> {
    path: &'a Path,
    compression: Compression,
    member: Option<&'a Member>,
    size_on_disk: u64,
}

/// Determines the kind of a segment's content by its start.
fn look_into_content(
    file: Content<'_>,
    name: Option<(SegmentName, bool)>,
    start: &[u8],
) -> Result<Look, UnreadableReason> {
    let (path, size_on_disk) = (file.path.to_owned(), file.size_on_disk);
    if start.iter().all(|byte| *byte == 0) {
        let (name, partial) = name.ok_or(UnreadableReason::NotWal)?;
        let (system_id, kind) = (None, SpareKind::Preallocated);
        return Ok(Look::Spare(Spare { path, name, partial, size_on_disk, system_id, kind }));
    }
    let address = match PageHeader::parse(start) {
        Ok(header) if header.long.is_none() => return Err(UnreadableReason::MidSegment(header.address)),
        Ok(header) => header.address,
        Err(PageHeaderError::Magic(_, UnreadableMagic::NotWal)) => return Err(UnreadableReason::NotWal),
        Err(PageHeaderError::Magic(magic, what)) => return Err(UnreadableReason::Magic(magic, what)),
        Err(other) => return Err(UnreadableReason::Header(FaultKind::PageHeader(other))),
    };
    let info = StreamInfo::from_first_page(start).map_err(UnreadableReason::Header)?;
    let size = info.segment_size;
    if size.offset_of(address) != 0 {
        return Err(UnreadableReason::MidSegment(address));
    }
    let holds = SegmentName::new(info.timeline, size.segment_of(address), size);
    let (name, partial) = name.unwrap_or((holds, false));
    match name.start(size) {
        // The first segment of a timeline starts with pages of the previous timeline.
        Some(start) if start == address && info.timeline <= name.timeline => {}
        Some(start) if start > address => {
            let (system_id, kind) = (Some(info.system_id), SpareKind::Recycled(holds));
            return Ok(Look::Spare(Spare { path, name, partial, size_on_disk, system_id, kind }));
        }
        _ => return Err(UnreadableReason::Misnamed(holds)),
    }
    let file = SegmentFile {
        path,
        name,
        partial,
        compression: file.compression,
        member: file.member.map(|member| member.number),
        store: None,
        needs_previous: file.member.is_some_and(|member| !member.is_keyframe),
        size_on_disk,
        start: address,
        version: info.version,
        system_id: info.system_id,
        segment_size: size,
        page_bytes: info.page_bytes,
        is_restarted: is_restarted(info, address, start),
    };
    Ok(Look::Segment(Found { file, first_page: info.timeline }))
}

/// Returns whether a segment starts WAL without earlier records: with a shutdown checkpoint that links to no
/// previous record. `pg_resetwal` writes this checkpoint to a new segment (`WriteEmptyXLOG` in
/// `pg_resetwal.c`), and `initdb` to the cluster's first segment.
fn is_restarted(info: StreamInfo, address: Lsn, start: &[u8]) -> bool {
    let at = address.plus(LONG_HEADER as u64);
    let is_checkpoint = |header: RecordHeader| {
        header.prev == Lsn::INVALID && header.rmid == rmid::XLOG && header.total_len > 0
    };
    if !start.get(LONG_HEADER..).and_then(RecordHeader::parse).is_some_and(is_checkpoint) {
        return false;
    }
    let mut restart = Restart { at, is_found: false };
    let page = &start[..start.len().min(info.page_bytes as usize)];
    // Faults after the first record do not matter here.
    let _ = Decoder::new(info, address, Lsn(u64::MAX)).push(page, &mut restart);
    restart.is_found
}

/// Checks whether the segment's first record starts at `at`, directly after the page header, and is a
/// shutdown checkpoint. The decoder checks its checksum.
struct Restart {
    at: Lsn,
    is_found: bool,
}

impl Visitor for Restart {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let is_shutdown =
            || matches!(payload::parse(record), Ok(Payload::Checkpoint(checkpoint)) if checkpoint.shutdown);
        self.is_found = record.lsn == self.at && record.header.prev == Lsn::INVALID && is_shutdown();
        ControlFlow::Break(())
    }
}

fn unreadable_reason(magic: u16) -> UnreadableReason {
    match Major::from_magic(magic) {
        Err(UnreadableMagic::NotWal) => UnreadableReason::NotWal,
        Err(what) => UnreadableReason::Magic(magic, what),
        // The magic is right, but the rest of the header is not.
        Ok(_) => UnreadableReason::Header(FaultKind::PageHeader(PageHeaderError::Short)),
    }
}
