//! Codes the delta of a full-page image against its base page: runs of bytes that differ.
//!
//! Against a replayed page, these are the changes that records do not log: hint bits, `pd_lsn` and
//! `pd_checksum`.

use walden_recompress::pglz::same_start;

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::leb128::narrow;
use crate::{Corrupt, corrupt};

/// Columns of a delta: the number of equal bytes, the number of different bytes that follow, and the
/// differences.
#[derive(Clone, Copy)]
pub struct DeltaColumns {
    gap: Column,
    run: Column,
    bytes: Column,
}

impl DeltaColumns {
    /// Creates the columns. A model has one set for all its images.
    pub fn new<S: Coder>(coder: &mut S) -> Result<DeltaColumns, Corrupt> {
        Ok(DeltaColumns {
            gap: coder.column(Kind::Symbols(Class::ImageDeltas))?,
            run: coder.column(Kind::Symbols(Class::ImageDeltas))?,
            bytes: coder.column(Kind::Bytes(Class::ImageDeltas))?,
        })
    }
}

/// Codes bytes as their delta against `page`, and replaces `page` by them. The delta has runs of bytes that
/// differ, XORed with the bytes of the page.
pub fn code_delta<S: Coder>(
    coder: &mut S,
    columns: DeltaColumns,
    page: &mut [u8],
    source: Option<&[u8]>,
) -> Result<(), Corrupt> {
    let wrong = Corrupt("cannot decode a delta: expected gaps and runs within the page");
    if source.is_some_and(|source| source.len() != page.len()) {
        return Err(corrupt("cannot encode a delta: expected a base as long as the page"));
    }
    let (mut at, mut xored, mut bytes) = (0_usize, Vec::new(), Vec::new());
    loop {
        let gap = source.map_or(0, |source| same_start(&source[at..], &page[at..]));
        let gap = narrow(coder.symbol(columns.gap, gap as u64)?)?;
        at = at.checked_add(gap).filter(|&at| at <= page.len()).ok_or(wrong)?;
        if at == page.len() {
            return Ok(());
        }
        xored.clear();
        if let Some(source) = source {
            let end = end_of_run(source, page, at);
            xored.extend(source[at..end].iter().zip(&page[at..end]).map(|(new, old)| new ^ old));
        }
        let run: usize = narrow(coder.symbol(columns.run, xored.len() as u64)?)?;
        let end = at.checked_add(run).filter(|&end| end <= page.len() && run > 0).ok_or(wrong)?;
        bytes.clear();
        coder.bytes(columns.bytes, &xored, run, &mut bytes)?;
        page[at..end].iter_mut().zip(&bytes).for_each(|(byte, xored)| *byte ^= xored);
        at = end;
        if at == page.len() {
            return Ok(());
        }
    }
}

/// Returns the end of a run of different bytes that starts at `at`.
fn end_of_run(source: &[u8], page: &[u8], at: usize) -> usize {
    /// Number of equal bytes that end a run. Fewer are cheaper to code as part of the run.
    const GAP: usize = 4;
    let mut end = at + 1;
    while end < source.len() {
        let until = (end + GAP).min(source.len());
        match source[end..until].iter().zip(&page[end..until]).position(|(new, old)| new != old) {
            Some(skip) => end += skip + 1,
            None => break,
        }
    }
    end
}
