//! Tables: the resource managers Heap and Heap2, and the visibility map that they keep.
//!
//! `heapam.c` and, since 18, `heapam_xlog.c` decide.

use walden_format::record::{BlockRef, Fork};
use walden_format::version::Major;

use crate::displaced::Displaced;
use crate::mask;
use crate::page::{Misfit, Page};
use crate::replay::{Manager, Step};

pub(crate) mod visibility_map;

pub(crate) static HEAP: Manager = Manager { redo, mask: mask_page, displaced };
pub(crate) static HEAP2: Manager = Manager { redo: redo2, mask: mask_page, displaced };

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let _ = step;
    Err(Misfit("not written yet"))
}

fn redo2(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let _ = step;
    Err(Misfit("not written yet"))
}

fn displaced(_: &Displaced<'_>, _: &BlockRef) -> Option<Vec<u8>> {
    None
}

fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::hint_bits(page);
}
