//! Pages of extensions: the resource manager Generic. A block's data consists of fragments: ranges of the
//! page with their new bytes. Mirrors `generic_xlog.c`.

use walden_format::payload::generic::GenericFragment;
use walden_format::record::{BlockRef, Fork};
use walden_format::version::Major;

use crate::manager::{Manager, PagesAround};
use crate::mask;
use crate::page::{Misfit, PAGE_BYTES, Page};
use crate::step::Step;

pub(crate) static GENERIC: Manager = Manager { redo, mask: mask_page, block_data };

/// A run of equal bytes longer than a fragment's header ends a fragment (`MATCH_THRESHOLD`).
const MATCH_THRESHOLD: usize = GenericFragment::WIDTH;

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    for block in step.record.blocks {
        let data = step.data(block.id);
        if let Some(page) = step.page(block.id) {
            apply(page, data)?;
        }
    }
    Ok(())
}

/// Mirrors `applyPageRedo`, and zeroes the unused space, which no fragment covers.
pub(crate) fn apply(page: &mut Page, data: &[u8]) -> Result<(), Misfit> {
    const BEYOND: Misfit = Misfit("the record changes bytes beyond the page");
    let mut data = data;
    while !data.is_empty() {
        let (GenericFragment { offset, length }, rest) = GenericFragment::split(data).ok_or(BEYOND)?;
        let (bytes, rest) = rest.split_at_checked(length.into()).ok_or(BEYOND)?;
        let offset = usize::from(offset);
        page.0.get_mut(offset..offset + bytes.len()).ok_or(BEYOND)?.copy_from_slice(bytes);
        data = rest;
    }
    page.zero_hole();
    Ok(())
}

/// Mirrors `generic_mask`.
fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::unused_space(page);
}

/// Returns the fragments that change the page before into the image (`computeDelta`).
///
/// For a page that an extension logs as a whole, PostgreSQL writes no fragments, but these fragments yield
/// the same page.
fn block_data(around: &PagesAround<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    fragments(around.before(block.id)?, around.after(block.id)?)
}

/// Returns the fragments that change one page into another; `None` if either page has an invalid `pd_lower`
/// or `pd_upper`.
pub(crate) fn fragments(before: &Page, after: &Page) -> Option<Vec<u8>> {
    let in_order = |page: &Page| page.lower() <= page.upper() && page.upper() <= PAGE_BYTES;
    if !in_order(before) || !in_order(after) {
        return None;
    }
    let mut data = Vec::new();
    push_fragments(&mut data, before, after, 0..after.lower(), 0..before.lower());
    push_fragments(&mut data, before, after, after.upper()..PAGE_BYTES, before.upper()..PAGE_BYTES);
    Some(data)
}

/// Appends the fragments of a region of the page. Bytes outside `valid` are new (`computeRegionDelta`).
fn push_fragments(
    data: &mut Vec<u8>,
    before: &Page,
    after: &Page,
    region: std::ops::Range<usize>,
    valid: std::ops::Range<usize>,
) {
    let mut push = |from: usize, to: usize| {
        let fragment = GenericFragment { offset: from as u16, length: (to - from) as u16 };
        data.extend(fragment.to_bytes());
        data.extend(&after.0[from..to]);
    };
    // The start of the open fragment, and its end if equal bytes follow up to the end.
    let (mut begin, mut end) = (None, None);
    let mut at = region.start;
    if valid.start > region.start {
        begin = Some(region.start);
        at = valid.start;
    }
    let loop_end = region.end.min(valid.end);
    let equal = |at: usize| before.0[at] == after.0[at];
    while at < loop_end {
        if !equal(at) {
            begin = begin.or(Some(at));
            end = None;
            while at < loop_end && !equal(at) {
                at += 1;
            }
            if at >= loop_end {
                break;
            }
        }
        let matching = at;
        end = Some(matching);
        while at < loop_end && equal(at) {
            at += 1;
        }
        if let Some(from) = begin.take_if(|_| at - matching > MATCH_THRESHOLD) {
            push(from, matching);
            end = None;
        }
    }
    if loop_end < region.end {
        begin = begin.or(Some(loop_end));
        end = Some(region.end);
    }
    if let Some(from) = begin {
        push(from, end.unwrap_or(region.end).max(from));
    }
}
