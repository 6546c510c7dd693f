//! SP-GiST: the resource manager SPGist. Mirrors `spgxlog.c` and `spgPageIndexMultiDelete`. All fields of a
//! record are in its main data, with or without images.

use walden_format::payload::spgist::{
    XlSpgistAddLeaf, XlSpgistAddNode, XlSpgistMoveLeafs, XlSpgistPickSplit, XlSpgistSplitTuple,
    XlSpgistState, XlSpgistVacuumLeaf, XlSpgistVacuumRedirect, XlSpgistVacuumRoot,
};
use walden_format::reader::Reader;
use walden_format::record::{BlockRef, Fork};
use walden_format::rmgr::info::spgist::{
    ADD_LEAF, ADD_NODE, MOVE_LEAFS, PICKSPLIT, SPLIT_TUPLE, VACUUM_LEAF, VACUUM_REDIRECT, VACUUM_ROOT,
};
use walden_format::version::Major;

use crate::manager::{Manager, PagesAround};
use crate::managers::index_items::{field, new_page, numbers};
use crate::mask;
use crate::page::spgist::flags::{SPGIST_LEAF, SPGIST_META, SPGIST_NULLS};
use crate::page::spgist::{
    DEAD, DEAD_TARGET, DEAD_TUPLE_BYTES, DEAD_XID, INNER_TUPLE_HEADER_BYTES, InnerTupleHead, LEAF_NEXT,
    LEAF_NEXT_MASK, LEAF_TUPLE_HEADER_BYTES, META_CACHED_PAGE_BYTES, META_CACHED_PAGES, META_LAST_USED_PAGES,
    PLACEHOLDER, REDIRECT, STATE_BITS, SpGistPageOpaqueData, leaf_tuple_size,
};
use crate::page::tid::{INVALID_OFFSET_NUMBER, TID_BYTES, Tid};
use crate::page::{Misfit, PAGE_HEADER_BYTES, Page, SpecialArea, index_tuple};
use crate::step::Step;

pub(crate) static SPGIST: Manager = Manager { redo, mask: mask_page, block_data };

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    let mut main = Reader::new(step.main());
    match step.kind() {
        ADD_LEAF => add_leaf(step, &mut main),
        MOVE_LEAFS => move_leafs(step, &mut main),
        ADD_NODE => add_node(step, &mut main),
        SPLIT_TUPLE => split_tuple(step, &mut main),
        PICKSPLIT => pick_split(step, &mut main),
        VACUUM_LEAF => vacuum_leaf(step, &mut main),
        VACUUM_ROOT => vacuum_root(step, &mut main),
        VACUUM_REDIRECT => vacuum_redirect(step, &mut main),
        _ => Err(Misfit("SP-GiST has no such record")),
    }
}

fn add_leaf(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let add = structure(main, XlSpgistAddLeaf::WIDTH, XlSpgistAddLeaf::read)?;
    let XlSpgistAddLeaf { is_new_page: is_new, stores_nulls: nulls, .. } = add;
    let (number, head) = (add.leaf_offset, add.head_offset);
    let parent = Downlink { number: add.parent_offset, node: add.parent_node };
    let tuple = leaf_tuple(main)?;
    nothing_left(main)?;
    if let Some(page) = leaf_page(step, 0, is_new, nulls)? {
        if number == head {
            // Replaces the head of a chain that is entirely dead.
            replace(page, number, tuple)?;
        } else {
            add_or_replace(page, number, tuple)?;
            if head != INVALID_OFFSET_NUMBER {
                set_next(page, head, number)?;
            }
        }
    }
    let block = block_number(step, 0)?;
    if parent.number != INVALID_OFFSET_NUMBER
        && let Some(page) = step.page(1)
    {
        parent.set(page, Tid { block, offset_number: number })?;
    }
    Ok(())
}

fn move_leafs(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let moved = structure(main, XlSpgistMoveLeafs::WIDTH, XlSpgistMoveLeafs::read)?;
    let XlSpgistMoveLeafs { moves: count, is_new_page: is_new, replaces_dead, stores_nulls: nulls, .. } =
        moved;
    let parent = Downlink { number: moved.parent_offset, node: moved.parent_node };
    let source = Source::read(main)?;
    let deleted = numbers(main, count)?;
    let inserted = numbers(main, if replaces_dead { 1 } else { usize::from(count) + 1 })?;
    let tuples = inserted.iter().map(|_| leaf_tuple(main)).collect::<Result<Vec<_>, _>>()?;
    nothing_left(main)?;
    let offset_number = inserted.last().copied().unwrap_or(INVALID_OFFSET_NUMBER);
    let target = Tid { block: block_number(step, 1)?, offset_number };
    if let Some(page) = leaf_page(step, 1, is_new, nulls)? {
        for (&number, tuple) in inserted.iter().zip(tuples) {
            add_or_replace(page, number, tuple)?;
        }
    }
    if let Some(page) = step.page(0) {
        SpGistPageOpaqueData::from_page(page)?;
        delete(page, &deleted, source.moved_to(target), Dead::PLACEHOLDER)?;
    }
    if let Some(page) = step.page(2) {
        parent.set(page, target)?;
    }
    Ok(())
}

fn add_node(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let add = structure(main, XlSpgistAddNode::WIDTH, XlSpgistAddNode::read)?;
    let XlSpgistAddNode { old_offset: old, new_offset: new, is_new_page: is_new, parent_block, .. } = add;
    let parent = Downlink { number: add.parent_offset, node: add.parent_node };
    let source = Source::read(main)?;
    let tuple = inner_tuple(main)?;
    nothing_left(main)?;
    if step.block(1).is_none() {
        if let Some(page) = step.page(0) {
            replace(page, old, tuple)?;
        }
        return Ok(());
    }
    let target = Tid { block: block_number(step, 1)?, offset_number: new };
    if let Some(page) = inner_page(step, 1, is_new, false)? {
        add_or_replace(page, new, tuple)?;
        if parent_block == 1 {
            parent.set(page, target)?;
        }
    }
    if let Some(page) = step.page(0) {
        let dead = source.moved_to(target);
        replace(page, old, &dead.bytes())?;
        dead.count(page);
        if parent_block == 0 {
            parent.set(page, target)?;
        }
    }
    if parent_block == 2
        && let Some(page) = step.page(2)
    {
        parent.set(page, target)?;
    }
    Ok(())
}

fn split_tuple(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let split = structure(main, XlSpgistSplitTuple::WIDTH, XlSpgistSplitTuple::read)?;
    let XlSpgistSplitTuple { is_new_page: is_new, is_on_same_page: same_page, .. } = split;
    let (prefix_number, postfix_number) = (split.prefix_offset, split.postfix_offset);
    let prefix = inner_tuple(main)?;
    let postfix = inner_tuple(main)?;
    nothing_left(main)?;
    if !same_page && let Some(page) = inner_page(step, 1, is_new, false)? {
        add_or_replace(page, postfix_number, postfix)?;
    }
    if let Some(page) = step.page(0) {
        replace(page, prefix_number, prefix)?;
        if same_page {
            add_or_replace(page, postfix_number, postfix)?;
        }
    }
    Ok(())
}

fn pick_split(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let split = structure(main, XlSpgistPickSplit::WIDTH, XlSpgistPickSplit::read)?;
    let XlSpgistPickSplit { deletes, inserts, is_new_source, is_new_target, is_new_inner, .. } = split;
    let XlSpgistPickSplit { is_root_split: is_root, stores_nulls: nulls, .. } = split;
    let (inner_number, inner_is_parent) = (split.inner_offset, split.is_inner_on_parent_page);
    let parent = Downlink { number: split.parent_offset, node: split.parent_node };
    let source = Source::read(main)?;
    let deleted = numbers(main, deletes)?;
    let inserted = numbers(main, inserts)?;
    let to_target = field(main.take(inserts.into()))?;
    let inner = inner_tuple(main)?;
    let leafs = inserted.iter().map(|_| leaf_tuple(main)).collect::<Result<Vec<_>, _>>()?;
    nothing_left(main)?;
    let target = Tid { block: block_number(step, 2)?, offset_number: inner_number };
    let fill = |page: &mut Page, is_target: bool| {
        inserted
            .iter()
            .zip(to_target)
            .zip(&leafs)
            .filter(|((_, to_target), _)| (**to_target != 0) == is_target)
            .try_for_each(|((&number, _), leaf)| add_or_replace(page, number, leaf))
    };
    if !is_root && let Some(page) = leaf_page(step, 0, is_new_source, nulls)? {
        if !is_new_source {
            delete(page, &deleted, source.moved_to(target), Dead::PLACEHOLDER)?;
        }
        fill(page, false)?;
    }
    if step.block(1).is_some()
        && let Some(page) = leaf_page(step, 1, is_new_target, nulls)?
    {
        fill(page, true)?;
    }
    if let Some(page) = inner_page(step, 2, is_new_inner, nulls)? {
        add_or_replace(page, inner_number, inner)?;
        if inner_is_parent {
            parent.set(page, target)?;
        }
    }
    if let Some(page) = step.page(3) {
        parent.set(page, target)?;
    }
    Ok(())
}

fn vacuum_leaf(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let XlSpgistVacuumLeaf { dead, placeholders, moves, chains } =
        structure(main, XlSpgistVacuumLeaf::WIDTH, XlSpgistVacuumLeaf::read)?;
    let _source = Source::read(main)?;
    let dead = numbers(main, dead)?;
    let placeholders = numbers(main, placeholders)?;
    let (move_from, move_to) = (numbers(main, moves)?, numbers(main, moves)?);
    let (chained, next) = (numbers(main, chains)?, numbers(main, chains)?);
    nothing_left(main)?;
    let Some(page) = step.page(0) else { return Ok(()) };
    SpGistPageOpaqueData::from_page(page)?;
    delete(page, &dead, Dead::DEAD, Dead::DEAD)?;
    delete(page, &placeholders, Dead::PLACEHOLDER, Dead::PLACEHOLDER)?;
    for (&from, &to) in move_from.iter().zip(&move_to) {
        let (one, other) = (page.expect_line_pointer(from)?, page.expect_line_pointer(to)?);
        page.set_line_pointer(from, other)?;
        page.set_line_pointer(to, one)?;
    }
    delete(page, &move_from, Dead::PLACEHOLDER, Dead::PLACEHOLDER)?;
    for (&number, &next) in chained.iter().zip(&next) {
        set_next(page, number, next)?;
    }
    Ok(())
}

fn vacuum_root(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let XlSpgistVacuumRoot { deletes: count } =
        structure(main, XlSpgistVacuumRoot::WIDTH, XlSpgistVacuumRoot::read)?;
    let _source = Source::read(main)?;
    let deleted = numbers(main, count)?;
    nothing_left(main)?;
    if let Some(page) = step.page(0) {
        SpGistPageOpaqueData::from_page(page)?;
        page.delete_items(&deleted)?;
    }
    Ok(())
}

fn vacuum_redirect(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let XlSpgistVacuumRedirect { to_placeholder: count, first_placeholder, .. } =
        structure(main, XlSpgistVacuumRedirect::WIDTH, XlSpgistVacuumRedirect::read)?;
    if step.version() >= Major::V16 {
        let _is_catalog_and_padding = field(main.u16())?;
    }
    let redirections = numbers(main, count)?;
    nothing_left(main)?;
    let Some(page) = step.page(0) else { return Ok(()) };
    SpGistPageOpaqueData::from_page(page)?;
    for &number in &redirections {
        let tuple = page.normal_item_mut(number)?;
        let parts = tuple.get_mut(..DEAD_TUPLE_BYTES).ok_or(Misfit("the tuple is too short"))?;
        parts[0] = parts[0] & !STATE_BITS | PLACEHOLDER;
        parts[DEAD_TARGET..DEAD_TARGET + TID_BYTES].copy_from_slice(&Tid::INVALID.to_bytes());
    }
    self::count(page, |opaque| &mut opaque.redirections, count.wrapping_neg());
    self::count(page, |opaque| &mut opaque.placeholders, count);
    if first_placeholder != INVALID_OFFSET_NUMBER {
        let last: Vec<u16> = (first_placeholder..=page.items()).collect();
        self::count(page, |opaque| &mut opaque.placeholders, (last.len() as u16).wrapping_neg());
        page.delete_items(&last)?;
    }
    Ok(())
}

/// The position of a downlink: the inner tuple's number and the node.
struct Downlink {
    number: u16,
    node: u16,
}

impl Downlink {
    /// Sets the downlink to an item of a block (`spgUpdateNodeLink`).
    fn set(&self, page: &mut Page, target: Tid) -> Result<(), Misfit> {
        const NO_SUCH_NODE: Misfit = Misfit("the inner tuple has no such node");
        SpGistPageOpaqueData::from_page(page)?;
        let tuple = page.normal_item_mut(self.number)?;
        let head = Reader::new(tuple).u32().ok_or(NO_SUCH_NODE)?;
        let head = InnerTupleHead::decode(head);
        if self.node >= head.nodes {
            return Err(NO_SUCH_NODE);
        }
        let mut node =
            tuple.get_mut(INNER_TUPLE_HEADER_BYTES + usize::from(head.prefix_bytes)..).ok_or(NO_SUCH_NODE)?;
        for _ in 0..self.node {
            let size = index_tuple::size(node).ok_or(NO_SUCH_NODE)?;
            node = node.get_mut(size..).ok_or(NO_SUCH_NODE)?;
        }
        node.get_mut(..TID_BYTES).ok_or(NO_SUCH_NODE)?.copy_from_slice(&target.to_bytes());
        Ok(())
    }
}

/// The writer's state in a record (`spgxlogState`).
struct Source {
    xid: u32,
    is_build: bool,
}

impl Source {
    fn read(main: &mut Reader<'_>) -> Result<Source, Misfit> {
        let XlSpgistState { redirect_xid: xid, is_build } =
            structure(main, XlSpgistState::WIDTH, XlSpgistState::read)?;
        Ok(Source { xid, is_build })
    }

    /// Returns the replacement of a moved tuple that scans may still visit. While the index is built there
    /// are no scans.
    fn moved_to(&self, target: Tid) -> Dead {
        if self.is_build { Dead::PLACEHOLDER } else { Dead { state: REDIRECT, target, xid: self.xid } }
    }
}

/// A tuple that is not live (`spgFormDeadTuple`).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Dead {
    state: u8,
    target: Tid,
    xid: u32,
}

impl Dead {
    const DEAD: Dead = Dead { state: DEAD, target: Tid::INVALID, xid: 0 };
    const PLACEHOLDER: Dead = Dead { state: PLACEHOLDER, target: Tid::INVALID, xid: 0 };

    fn bytes(&self) -> [u8; DEAD_TUPLE_BYTES] {
        let mut bytes = [0; DEAD_TUPLE_BYTES];
        bytes[0] = (DEAD_TUPLE_BYTES as u8) << 2 | self.state;
        bytes[DEAD_TARGET..DEAD_TARGET + TID_BYTES].copy_from_slice(&self.target.to_bytes());
        bytes[DEAD_XID..].copy_from_slice(&self.xid.to_le_bytes());
        bytes
    }

    /// Counts the tuple in the page's special area.
    fn count(&self, page: &mut Page) {
        match self.state {
            REDIRECT => count(page, |opaque| &mut opaque.redirections, 1),
            PLACEHOLDER => count(page, |opaque| &mut opaque.placeholders, 1),
            _ => {}
        }
    }
}

/// Replaces tuples by dead ones: `first` replaces the first listed tuple, and `rest` all further listed
/// tuples (`spgPageIndexMultiDelete`).
fn delete(page: &mut Page, numbers: &[u16], first: Dead, rest: Dead) -> Result<(), Misfit> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    page.delete_items(&sorted)?;
    for &number in &sorted {
        let dead = if Some(&number) == numbers.first() { first } else { rest };
        page.insert_item(&dead.bytes(), number)?;
        dead.count(page);
    }
    Ok(())
}

/// Puts a tuple in place of a placeholder, or after all others (`addOrReplaceTuple`).
fn add_or_replace(page: &mut Page, number: u16, tuple: &[u8]) -> Result<(), Misfit> {
    if number > page.items() {
        return page.insert_item(tuple, number);
    }
    let state = page.normal_item(number)?.first().map(|byte| byte & STATE_BITS);
    if state != Some(PLACEHOLDER) {
        return Err(Misfit("the tuple to replace is not a placeholder"));
    }
    count(page, |opaque| &mut opaque.placeholders, u16::MAX);
    replace(page, number, tuple)
}

/// Replaces a tuple.
fn replace(page: &mut Page, number: u16, tuple: &[u8]) -> Result<(), Misfit> {
    SpGistPageOpaqueData::from_page(page)?;
    page.delete_item(number)?;
    page.insert_item(tuple, number)
}

/// Sets the next tuple in a leaf tuple's chain.
fn set_next(page: &mut Page, number: u16, next: u16) -> Result<(), Misfit> {
    let tuple = page.normal_item_mut(number)?;
    let info = tuple.get_mut(LEAF_NEXT..LEAF_NEXT + 2).ok_or(Misfit("the tuple is too short"))?;
    let flags = u16::from_le_bytes([info[0], info[1]]) & !LEAF_NEXT_MASK;
    info.copy_from_slice(&(flags | next & LEAF_NEXT_MASK).to_le_bytes());
    Ok(())
}

/// Reads a structure of `width` bytes.
fn structure<T>(
    main: &mut Reader<'_>,
    width: usize,
    read: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T, Misfit> {
    field(main.take(width).and_then(read))
}

fn leaf_tuple<'a>(main: &mut Reader<'a>) -> Result<&'a [u8], Misfit> {
    let size = leaf_tuple_size(field(Reader::new(main.rest()).u32())?);
    sized(main, size, LEAF_TUPLE_HEADER_BYTES)
}

fn inner_tuple<'a>(main: &mut Reader<'a>) -> Result<&'a [u8], Misfit> {
    let mut head = Reader::new(main.rest());
    field(head.u32())?;
    let size = field(head.u16())?;
    sized(main, size.into(), INNER_TUPLE_HEADER_BYTES)
}

fn sized<'a>(main: &mut Reader<'a>, size: usize, least: usize) -> Result<&'a [u8], Misfit> {
    if size < least {
        return Err(Misfit("a tuple is shorter than its header"));
    }
    field(main.take(size))
}

fn nothing_left(main: &Reader<'_>) -> Result<(), Misfit> {
    if main.left() == 0 { Ok(()) } else { Err(Misfit("the record has more data than it says")) }
}

fn block_number(step: &Step<'_, '_>, id: u8) -> Result<u32, Misfit> {
    step.block(id).map(|block| block.block).ok_or(Misfit("the record lacks a page"))
}

fn leaf_page<'s>(
    step: &'s mut Step<'_, '_>,
    id: u8,
    is_new: bool,
    nulls: bool,
) -> Result<Option<&'s mut Page>, Misfit> {
    page_or_new(step, id, is_new, SPGIST_LEAF | if nulls { SPGIST_NULLS } else { 0 })
}

fn inner_page<'s>(
    step: &'s mut Step<'_, '_>,
    id: u8,
    is_new: bool,
    nulls: bool,
) -> Result<Option<&'s mut Page>, Misfit> {
    page_or_new(step, id, is_new, if nulls { SPGIST_NULLS } else { 0 })
}

/// Returns a page to change, or to initialize with these flags.
fn page_or_new<'s>(
    step: &'s mut Step<'_, '_>,
    id: u8,
    is_new: bool,
    flags: u16,
) -> Result<Option<&'s mut Page>, Misfit> {
    if !is_new {
        let page = step.page(id);
        return page.map(|page| SpGistPageOpaqueData::from_page(page).map(|_| page)).transpose();
    }
    let mut page = new_page(step, id)?;
    if let Some(page) = &mut page {
        SpGistPageOpaqueData::new(flags).init(page);
    }
    Ok(page)
}

/// Increments a counter of an SP-GiST page, or decrements it by a wrapped negative number.
fn count(page: &mut Page, counter: fn(&mut SpGistPageOpaqueData) -> &mut u16, by: u16) {
    let mut opaque = SpGistPageOpaqueData::read(page);
    let counter = counter(&mut opaque);
    *counter = counter.wrapping_add(by);
    opaque.write(page);
}

/// Mirrors `spg_mask`, and masks the metapage's list of pages with free space, which is never logged.
fn mask_page(page: &mut Page, _: Major, _: Fork) {
    mask::hint_bits(page);
    if page.lower() >= PAGE_HEADER_BYTES {
        mask::unused_space(page);
    }
    if SpGistPageOpaqueData::from_page(page).is_ok_and(|opaque| opaque.flags & SPGIST_META != 0) {
        let bytes = META_CACHED_PAGES * META_CACHED_PAGE_BYTES;
        page.0[META_LAST_USED_PAGES..META_LAST_USED_PAGES + bytes].fill(0);
    }
}

/// Blocks have no data: all fields are in the main data.
fn block_data(_: &PagesAround<'_>, _: &BlockRef) -> Option<Vec<u8>> {
    Some(Vec::new())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_format::rmgr::rmid;

    use crate::managers::index_items::hostile;

    const SPECIALS: &[&[u8]] = &[&[0, 0, 0, 0, 0, 0, 0x82, 0xFF], &[4, 0, 1, 0, 1, 0, 0x82, 0xFF]];

    proptest! {
        #[test]
        fn no_record_however_wrong_panics(case in hostile::cases(SPECIALS)) {
            hostile::replay(rmid::SPGIST, &case);
        }
    }
}
