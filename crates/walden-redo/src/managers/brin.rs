//! BRIN: the resource manager BRIN.
//!
//! Regular pages hold one tuple per range of the table's blocks; revmap pages have the TID of each range's
//! tuple. Mirrors `brin_xlog.c`.

use walden_format::payload::brin::{
    XlBrinCreateIndex, XlBrinDesummarize, XlBrinInsert, XlBrinRevmapExtend, XlBrinSamepageUpdate,
    XlBrinUpdate,
};
use walden_format::record::{BlockRef, Fork};
use walden_format::rmgr::info::brin::{
    CREATE_INDEX, DESUMMARIZE, INSERT, OPMASK, REVMAP_EXTEND, SAMEPAGE_UPDATE, UPDATE,
};
use walden_format::version::Major;

use crate::manager::{Manager, PagesAround};
use crate::mask;
use crate::page::brin::{
    BRIN_EVACUATE_PAGE, BRIN_META_MAGIC, BRIN_PAGETYPE_META, BRIN_PAGETYPE_REGULAR, BRIN_PAGETYPE_REVMAP,
    BrinSpecialSpace, REVMAP_PAGE_TIDS, meta,
};
use crate::page::tid::{TID_BYTES, Tid};
use crate::page::{Misfit, PAGE_CONTENTS, PAGE_HEADER_BYTES, Page, SpecialArea};
use crate::step::Step;

pub(crate) static BRIN: Manager = Manager { redo, mask: mask_page, block_data };

const SHORT: Misfit = Misfit("the record's fields end too early");

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    match step.kind() & OPMASK {
        CREATE_INDEX => create_index(step),
        INSERT => {
            let insertion = XlBrinInsert::read(step.main()).ok_or(SHORT)?;
            insert(step, insertion)
        }
        UPDATE => update(step),
        SAMEPAGE_UPDATE => {
            let XlBrinSamepageUpdate { offset: number } =
                XlBrinSamepageUpdate::read(step.main()).ok_or(SHORT)?;
            let tuple = step.data(0);
            step.page(0).map_or(Ok(()), |page| page.overwrite_item(number, tuple))
        }
        REVMAP_EXTEND => extend_revmap(step),
        DESUMMARIZE => desummarize(step),
        _ => Err(Misfit("a kind of record that is not known")),
    }
}

fn create_index(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlBrinCreateIndex { pages_per_range, version } = XlBrinCreateIndex::read(step.main()).ok_or(SHORT)?;
    let Some(page) = step.init(0) else { return Ok(()) };
    init(page, BRIN_PAGETYPE_META);
    let fields = [
        (meta::MAGIC, BRIN_META_MAGIC),
        (meta::VERSION, version.into()),
        (meta::PAGES_PER_RANGE, pages_per_range),
        (meta::LAST_REVMAP_PAGE, 0),
    ];
    for (at, value) in fields {
        page.put_u32(PAGE_CONTENTS + at, value);
    }
    page.set_lower(PAGE_CONTENTS + meta::BYTES);
    Ok(())
}

fn update(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlBrinUpdate { old_offset, heap_block, pages_per_range, offset } =
        XlBrinUpdate::read(step.main()).ok_or(SHORT)?;
    if let Some(old) = step.page(2) {
        old.delete_item_keeping_numbers(old_offset)?;
    }
    insert(step, XlBrinInsert { heap_block, pages_per_range, offset })
}

/// Puts a tuple on a page and its TID into the revmap.
fn insert(step: &mut Step<'_, '_>, insertion: XlBrinInsert) -> Result<(), Misfit> {
    let tuple = step.data(0);
    let block = step.block(0).ok_or(Misfit("the record does not say where the tuple is"))?;
    if block.will_init
        && let Some(page) = step.init(0)
    {
        init(page, BRIN_PAGETYPE_REGULAR);
    }
    if let Some(page) = step.page_or_init(0) {
        page.put_item(tuple, insertion.offset)?;
    }
    let Some(revmap) = step.page(1) else { return Ok(()) };
    let place = RevmapPlace { block: insertion.heap_block, pages_per_range: insertion.pages_per_range };
    place.set(revmap, Tid { block: block.block, offset_number: insertion.offset })
}

fn extend_revmap(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlBrinRevmapExtend { target_block: block } = XlBrinRevmapExtend::read(step.main()).ok_or(SHORT)?;
    if let Some(page) = step.page(0) {
        page.put_u32(PAGE_CONTENTS + meta::LAST_REVMAP_PAGE, block);
        page.set_lower(PAGE_CONTENTS + meta::BYTES);
    }
    if let Some(revmap) = step.init(1) {
        init(revmap, BRIN_PAGETYPE_REVMAP);
    }
    Ok(())
}

fn desummarize(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let XlBrinDesummarize { pages_per_range, heap_block: block, offset: number } =
        XlBrinDesummarize::read(step.main()).ok_or(SHORT)?;
    if let Some(revmap) = step.page(0) {
        RevmapPlace { block, pages_per_range }.set(revmap, Tid::INVALID)?;
    }
    step.page(1).map_or(Ok(()), |regular| regular.delete_item_keeping_numbers(number))
}

fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::hint_bits(page);
    let Ok(special) = BrinSpecialSpace::from_page(page) else { return };
    match special.page_type {
        BRIN_PAGETYPE_REGULAR => mask::unused_space(page),
        BRIN_PAGETYPE_META if page.lower() > PAGE_HEADER_BYTES => mask::unused_space(page),
        // A revmap page has its content where other pages have a hole.
        _ => {}
    }
    BrinSpecialSpace { flags: special.flags & !BRIN_EVACUATE_PAGE, ..special }.write(page);
}

fn block_data(around: &PagesAround<'_>, block: &BlockRef) -> Option<Vec<u8>> {
    let main = around.record.main_data();
    let number = match (around.record.rmgr_info() & OPMASK, block.id) {
        (INSERT, 0) => XlBrinInsert::read(main)?.offset,
        (UPDATE, 0) => XlBrinUpdate::read(main)?.offset,
        (SAMEPAGE_UPDATE, 0) => XlBrinSamepageUpdate::read(main)?.offset,
        _ => return Some(Vec::new()),
    };
    around.after(0)?.normal_item(number).ok().map(<[u8]>::to_vec)
}

/// The place of a tuple's TID in the revmap.
struct RevmapPlace {
    block: u32,
    pages_per_range: u32,
}

impl RevmapPlace {
    /// Sets the TID of the tuple (`brinSetHeapBlockItemptr`).
    fn set(&self, revmap: &mut Page, tuple: Tid) -> Result<(), Misfit> {
        if BrinSpecialSpace::from_page(revmap)?.page_type != BRIN_PAGETYPE_REVMAP {
            return Err(Misfit("the page is not of the revmap"));
        }
        let range = self.block.checked_div(self.pages_per_range).ok_or(Misfit("a range has no blocks"))?;
        let at = PAGE_CONTENTS + (range % REVMAP_PAGE_TIDS) as usize * TID_BYTES;
        revmap.0[at..at + TID_BYTES].copy_from_slice(&tuple.to_bytes());
        Ok(())
    }
}

/// Initializes an empty page (`brin_page_init`).
fn init(page: &mut Page, kind: u16) {
    BrinSpecialSpace { flags: 0, page_type: kind }.init(page);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_format::rmgr::info::brin::INIT_PAGE;
    use walden_format::rmgr::rmid;

    use super::*;
    use crate::testing::{any_blocks, any_bytes, replayed};

    fn page_of(kind: u16) -> Page {
        let mut page = Page::default();
        init(&mut page, kind);
        page
    }

    #[test]
    fn a_tuple_moves_and_goes() {
        let fields = |number: u8| [4, 0, 0, 0, 2, 0, 0, 0, number, 0];
        let blocks = [(None, vec![5; 24]), (Some(page_of(BRIN_PAGETYPE_REVMAP)), Vec::new())];
        let pages = replayed((rmid::BRIN, INSERT | INIT_PAGE), &fields(1), &blocks).unwrap();
        let (old, revmap) = (pages[0].clone().unwrap(), pages[1].clone().unwrap());
        assert_eq!(revmap.0[PAGE_HEADER_BYTES + 12..][..6], [0, 0, 0, 0, 1, 0]);

        let main = [&[1, 0, 0, 0][..], &fields(1)].concat();
        let blocks = [
            (None, vec![6; 40]),
            (Some(Page::clone(&revmap)), Vec::new()),
            (Some(Page::clone(&old)), Vec::new()),
        ];
        let pages = replayed((rmid::BRIN, UPDATE | INIT_PAGE), &main, &blocks).unwrap();
        assert_eq!(pages[0].as_deref().unwrap().normal_item(1).unwrap(), [6; 40]);
        assert_eq!(pages[2].as_deref().unwrap().items(), 0);

        let main = [2, 0, 0, 0, 5, 0, 0, 0, 1, 0];
        let blocks = [(pages[1].as_deref().cloned(), Vec::new()), (pages[0].as_deref().cloned(), Vec::new())];
        let pages = replayed((rmid::BRIN, DESUMMARIZE), &main, &blocks).unwrap();
        assert_eq!(
            pages[0].as_deref().unwrap().0[PAGE_HEADER_BYTES + 12..][..6],
            [0xFF, 0xFF, 0xFF, 0xFF, 0, 0]
        );
        assert_eq!(pages[1].as_deref().unwrap().items(), 0);
    }

    #[test]
    fn a_page_holds_more_tuples_than_a_tables_page() {
        let mut page = page_of(BRIN_PAGETYPE_REGULAR);
        for number in 1..=408 {
            page.put_item(&[0; 16], number).unwrap();
        }
        assert!(page.put_item(&[0; 16], 409).is_err());
        assert!(page.put_item(&[0; 16], 7).is_err());
    }

    proptest! {
        #[test]
        fn no_record_panics(kind in 0..16u8, main in any_bytes(30), blocks in any_blocks()) {
            let _ = replayed((rmid::BRIN, kind << 4), &main, &blocks);
        }
    }
}
