//! Sequences: the resource manager Sequence. A sequence is one page with one heap tuple, which each record
//! writes as a whole. Mirrors `seq_redo` in `sequence.c`, since 19 in `sequence_xlog.c`.

use walden_format::payload::seq::XlSeqRec;
use walden_format::record::{BlockRef, Fork};
use walden_format::version::Major;

use crate::manager::{Manager, PagesAround};
use crate::mask;
use crate::page::sequence::{SEQ_MAGIC, SequenceMagic};
use crate::page::{Misfit, Page, SpecialArea};
use crate::step::Step;

pub(crate) static SEQUENCE: Manager = Manager { redo, mask: mask_page, block_data };

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let (_, tuple) = XlSeqRec::split(step.main()).ok_or(Misfit("the record's fields cannot be read"))?;
    let Some(page) = step.init(0) else { return Ok(()) };
    SequenceMagic(SEQ_MAGIC).init(page);
    page.insert_item(tuple, 1)
}

/// Mirrors `seq_mask`.
fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::unused_space(page);
}

/// Blocks have no data: all fields are in the main data.
fn block_data(_: &PagesAround<'_>, _: &BlockRef) -> Option<Vec<u8>> {
    Some(Vec::new())
}
