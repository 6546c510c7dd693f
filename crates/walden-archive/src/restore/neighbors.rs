//! Checks that a segment of one archive fits between the segments of others, before they are mixed.
//!
//! If two servers wrote the same timeline, each of two repositories may have the WAL of one server. Recovery
//! with segments of both would end early or return other data.

use walden_format::lsn::SegmentName;
use walden_source::error_text;

use crate::archive::{Archive, ArchiveError};
use crate::objects::contents::Contents;
use crate::objects::link::{self, SegmentEnd};
use crate::objects::name::ArchivedFile;
use crate::objects::object;
use crate::restore::get;

/// Checks that a segment of `source` follows the previous segment of the first other archive that has it, and
/// that the next segment of the first other archive follows it. Segments whose summaries cannot be read, for
/// example without a private key, are not compared.
///
/// # Errors
/// [`ArchiveError::OtherHistory`], and errors of the source.
pub fn expect_neighbors(
    source: &Archive,
    name: SegmentName,
    others: &[&Archive],
) -> Result<(), ArchiveError> {
    let Some(own) = contents(source, name) else { return Ok(()) };
    let size = source.segment_size()?;
    let known = |name| others.iter().find_map(|other| contents(other, name));
    let failed = |error: &dyn std::error::Error| ArchiveError::OtherHistory {
        name: name.to_string(),
        location: source.store().location().to_owned(),
        problem: error_text(error),
    };
    let follows = |contents: &Contents, before: SegmentName, end: &Contents| {
        let end = SegmentEnd::new(end, &SegmentEnd::default());
        link::expect_link(contents, before, &end).map_err(|refusal| failed(&refusal))
    };
    if let Some(before) = link::segment_before(name, size)
        && let Some(end) = known(before)
    {
        follows(&own, before, &end)?;
    }
    let next = name.number(size).map(|number| SegmentName::new(name.timeline, number + 1, size));
    match next.and_then(known) {
        Some(next) => follows(&next, name, &own),
        None => Ok(()),
    }
}

/// Checks that archives belong to one cluster. Archives that cannot be read, or are empty, are not compared.
///
/// # Errors
/// [`ArchiveError::OtherCluster`]
pub fn expect_one_cluster(archives: &[&Archive]) -> Result<(), ArchiveError> {
    let mut expected: Option<&str> = None;
    for archive in archives {
        let Ok(identity) = archive.identity() else { continue };
        let found = identity.system_identifier.as_str();
        match expected {
            Some(expected) if expected != found => {
                return Err(ArchiveError::OtherCluster {
                    location: archive.store().location().to_owned(),
                    expected: expected.to_owned(),
                    found: found.to_owned(),
                });
            }
            _ => expected = Some(found),
        }
    }
    Ok(())
}

fn contents(archive: &Archive, name: SegmentName) -> Option<Contents> {
    let read = |object, bytes| Ok(object::read_summaries(archive.store(), object, bytes)?);
    let summaries = get::with_object(archive, ArchivedFile::Segment(name), read).ok()??;
    let own = summaries.into_iter().find(|summary| summary.name == name.to_string())?;
    own.contents.filter(|_| !own.is_damage_accepted)
}
