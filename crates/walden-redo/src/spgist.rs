//! SP-GiST indexes.
//!
//! ```text
//! special area of a page, 8 bytes (SpGistPageOpaqueData)
//! offset  width
//!      0      2  flags
//!      2      2  nRedirection
//!      4      2  nPlaceholder
//!      6      2  spgist_page_id
//!
//! every tuple
//!      0   2 bits  state: live, redirection, dead or placeholder
//! inner tuple, behind the state (SpGistInnerTupleData)
//!          1 bit   all nodes are alike
//!         13 bits  number of nodes
//!         16 bits  bytes of the prefix
//!      4      2    bytes of the tuple
//!      8           the prefix, then the nodes: index tuples
//! leaf tuple, behind the state (SpGistLeafTupleData)
//!         30 bits  bytes of the tuple
//!      4      2    number of the chain's next tuple in the lower 14 bits
//!      6      6    the row version
//!     12           the value
//! tuple that is not live, behind the state (SpGistDeadTupleData)
//!         30 bits  16
//!      6      6    of a redirection: where to
//!     12      4    of a redirection: the transaction that made it
//! ```
//!
//! `spgxlog.c` and `spgPageIndexMultiDelete` decide. All that a record says is in its main data, images or not.

use walden_format::reader::Reader;
use walden_format::record::{BlockRef, Fork};
use walden_format::rmgr::info::spgist::{
    ADD_LEAF, ADD_NODE, MOVE_LEAFS, PICKSPLIT, SPLIT_TUPLE, VACUUM_LEAF, VACUUM_REDIRECT, VACUUM_ROOT,
};
use walden_format::version::Major;

use crate::displaced::Displaced;
use crate::index_items::{field, index_tuple_size, new_page, numbers};
use crate::mask;
use crate::page::{Misfit, PAGE_BYTES, PAGE_HEADER, Page};
use crate::replay::{Manager, Step};

pub(crate) static SPGIST: Manager = Manager { redo, mask: mask_page, displaced };

const NO_BLOCK: u32 = u32::MAX;
/// `InvalidOffsetNumber`
const NO_ITEM: u16 = 0;

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
    let is_new = flag(main)?;
    let nulls = flag(main)?;
    let number = field(main.u16())?;
    let head = field(main.u16())?;
    let parent = Downlink::read(main)?;
    let tuple = leaf_tuple(main)?;
    nothing_left(main)?;
    if let Some(page) = leaf_page(step, 0, is_new, nulls)? {
        if number == head {
            // In the place of a chain that is all dead.
            replace(page, number, tuple)?;
        } else {
            add_or_replace(page, number, tuple)?;
            if head != NO_ITEM {
                set_next(page, head, number)?;
            }
        }
    }
    let block = block_number(step, 0)?;
    if parent.number != NO_ITEM
        && let Some(page) = step.page(1)
    {
        parent.set(page, (block, number))?;
    }
    Ok(())
}

fn move_leafs(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let count = field(main.u16())?;
    let is_new = flag(main)?;
    let replaces_dead = flag(main)?;
    let nulls = flag(main)?;
    field(main.u8())?;
    let parent = Downlink::read(main)?;
    field(main.u16())?;
    let source = Source::read(main)?;
    let deleted = numbers(main, count)?;
    let inserted = numbers(main, if replaces_dead { 1 } else { usize::from(count) + 1 })?;
    let tuples = inserted.iter().map(|_| leaf_tuple(main)).collect::<Result<Vec<_>, _>>()?;
    nothing_left(main)?;
    let target = (block_number(step, 1)?, inserted.last().copied().unwrap_or(NO_ITEM));
    if let Some(page) = leaf_page(step, 1, is_new, nulls)? {
        for (&number, tuple) in inserted.iter().zip(tuples) {
            add_or_replace(page, number, tuple)?;
        }
    }
    if let Some(page) = step.page(0) {
        opaque::check(page)?;
        delete(page, &deleted, source.moved_to(target), Dead::PLACEHOLDER)?;
    }
    if let Some(page) = step.page(2) {
        parent.set(page, target)?;
    }
    Ok(())
}

fn add_node(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let old = field(main.u16())?;
    let new = field(main.u16())?;
    let is_new = flag(main)?;
    // The block that the parent is on; 255: the parent does not change.
    let parent_block = field(main.u8())?;
    let parent = Downlink::read(main)?;
    field(main.u16())?;
    let source = Source::read(main)?;
    let tuple = inner_tuple(main)?;
    nothing_left(main)?;
    if step.block(1).is_none() {
        if let Some(page) = step.page(0) {
            replace(page, old, tuple)?;
        }
        return Ok(());
    }
    let target = (block_number(step, 1)?, new);
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
    let prefix_number = field(main.u16())?;
    let postfix_number = field(main.u16())?;
    let is_new = flag(main)?;
    let same_page = flag(main)?;
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
    let is_root = flag(main)?;
    field(main.u8())?;
    let deletes = field(main.u16())?;
    let inserts = field(main.u16())?;
    let is_new_source = flag(main)?;
    let is_new_target = flag(main)?;
    let inner_number = field(main.u16())?;
    let is_new_inner = flag(main)?;
    let nulls = flag(main)?;
    let inner_is_parent = flag(main)?;
    field(main.u8())?;
    let parent = Downlink::read(main)?;
    field(main.u16())?;
    let source = Source::read(main)?;
    let deleted = numbers(main, deletes)?;
    let inserted = numbers(main, inserts)?;
    let to_target = field(main.take(inserts.into()))?;
    let inner = inner_tuple(main)?;
    let leafs = inserted.iter().map(|_| leaf_tuple(main)).collect::<Result<Vec<_>, _>>()?;
    nothing_left(main)?;
    let target = (block_number(step, 2)?, inner_number);
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
    let [dead, placeholders, moves, chains] =
        [field(main.u16())?, field(main.u16())?, field(main.u16())?, field(main.u16())?];
    let _source = Source::read(main)?;
    let dead = numbers(main, dead)?;
    let placeholders = numbers(main, placeholders)?;
    let (move_from, move_to) = (numbers(main, moves)?, numbers(main, moves)?);
    let (chained, next) = (numbers(main, chains)?, numbers(main, chains)?);
    nothing_left(main)?;
    let Some(page) = step.page(0) else { return Ok(()) };
    opaque::check(page)?;
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
    let count = field(main.u16())?;
    field(main.u16())?;
    let _source = Source::read(main)?;
    let deleted = numbers(main, count)?;
    nothing_left(main)?;
    if let Some(page) = step.page(0) {
        opaque::check(page)?;
        page.delete_items(&deleted)?;
    }
    Ok(())
}

fn vacuum_redirect(step: &mut Step<'_, '_>, main: &mut Reader<'_>) -> Result<(), Misfit> {
    let count = field(main.u16())?;
    let first_placeholder = field(main.u16())?;
    let _horizon = field(main.u32())?;
    if step.version() >= Major::V16 {
        let _is_catalog_and_padding = field(main.u16())?;
    }
    let redirections = numbers(main, count)?;
    nothing_left(main)?;
    let Some(page) = step.page(0) else { return Ok(()) };
    opaque::check(page)?;
    for &number in &redirections {
        let tuple = page.normal_item_mut(number)?;
        let parts = tuple.get_mut(..DEAD_TUPLE_BYTES).ok_or(Misfit("the tuple is too short"))?;
        parts[0] = parts[0] & !STATE_BITS | Dead::PLACEHOLDER.state;
        parts[TARGET..TARGET + 6].copy_from_slice(&item_pointer((NO_BLOCK, NO_ITEM)));
    }
    opaque::add(page, opaque::REDIRECTIONS, count.wrapping_neg());
    opaque::add(page, opaque::PLACEHOLDERS, count);
    if first_placeholder != NO_ITEM {
        let last: Vec<u16> = (first_placeholder..=page.items()).collect();
        opaque::add(page, opaque::PLACEHOLDERS, (last.len() as u16).wrapping_neg());
        page.delete_items(&last)?;
    }
    Ok(())
}

/// Where a downlink is: the inner tuple's number and which of its nodes.
struct Downlink {
    number: u16,
    node: u16,
}

impl Downlink {
    fn read(main: &mut Reader<'_>) -> Result<Downlink, Misfit> {
        Ok(Downlink { number: field(main.u16())?, node: field(main.u16())? })
    }

    /// Points it to a block's item (`spgUpdateNodeLink`).
    fn set(&self, page: &mut Page, target: (u32, u16)) -> Result<(), Misfit> {
        const NO_SUCH_NODE: Misfit = Misfit("the inner tuple has no such node");
        opaque::check(page)?;
        let tuple = page.normal_item_mut(self.number)?;
        let head = Reader::new(tuple).u32().ok_or(NO_SUCH_NODE)?;
        let (nodes, prefix) = (head >> 3 & 0x1FFF, head >> 16);
        if u32::from(self.node) >= nodes {
            return Err(NO_SUCH_NODE);
        }
        let mut node = tuple.get_mut(INNER_TUPLE_HEADER + prefix as usize..).ok_or(NO_SUCH_NODE)?;
        for _ in 0..self.node {
            let size = index_tuple_size(node).ok_or(NO_SUCH_NODE)?;
            node = node.get_mut(size.into()..).ok_or(NO_SUCH_NODE)?;
        }
        node.get_mut(..6).ok_or(NO_SUCH_NODE)?.copy_from_slice(&item_pointer(target));
        Ok(())
    }
}

/// What a record says of whoever wrote it (`spgxlogState`).
struct Source {
    xid: u32,
    is_build: bool,
}

impl Source {
    fn read(main: &mut Reader<'_>) -> Result<Source, Misfit> {
        let source = Source { xid: field(main.u32())?, is_build: flag(main)? };
        field(main.take(3))?;
        Ok(source)
    }

    /// What takes the place of a tuple that scans may still look for: none do while the index is built.
    fn moved_to(&self, target: (u32, u16)) -> Dead {
        if self.is_build { Dead::PLACEHOLDER } else { Dead { state: REDIRECTION, target, xid: self.xid } }
    }
}

const STATE_BITS: u8 = 3;
const REDIRECTION: u8 = 1;
const DEAD_TUPLE_BYTES: usize = 16;
const LEAF_TUPLE_HEADER: usize = 12;
const INNER_TUPLE_HEADER: usize = 8;
const NEXT: usize = 4;
const TARGET: usize = 6;

/// A tuple that is not live (`spgFormDeadTuple`).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Dead {
    state: u8,
    target: (u32, u16),
    xid: u32,
}

impl Dead {
    const DEAD: Dead = Dead { state: 2, target: (NO_BLOCK, NO_ITEM), xid: 0 };
    const PLACEHOLDER: Dead = Dead { state: 3, target: (NO_BLOCK, NO_ITEM), xid: 0 };

    fn bytes(&self) -> [u8; DEAD_TUPLE_BYTES] {
        let mut bytes = [0; DEAD_TUPLE_BYTES];
        bytes[0] = (DEAD_TUPLE_BYTES as u8) << 2 | self.state;
        bytes[TARGET..TARGET + 6].copy_from_slice(&item_pointer(self.target));
        bytes[12..].copy_from_slice(&self.xid.to_le_bytes());
        bytes
    }

    /// Counts it in the page's special area.
    fn count(&self, page: &mut Page) {
        match self.state {
            REDIRECTION => opaque::add(page, opaque::REDIRECTIONS, 1),
            state if state == Dead::PLACEHOLDER.state => opaque::add(page, opaque::PLACEHOLDERS, 1),
            _ => {}
        }
    }
}

/// An item's place as tuples have it: the block number's upper half first.
fn item_pointer((block, number): (u32, u16)) -> [u8; 6] {
    let mut bytes = [0; 6];
    bytes[..2].copy_from_slice(&((block >> 16) as u16).to_le_bytes());
    bytes[2..4].copy_from_slice(&(block as u16).to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Puts tuples that are not live in the place of others: one kind in the place of the first listed, another in the place
/// of the rest (`spgPageIndexMultiDelete`).
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

/// Puts a tuple in the place of a placeholder, or behind all others (`addOrReplaceTuple`).
fn add_or_replace(page: &mut Page, number: u16, tuple: &[u8]) -> Result<(), Misfit> {
    if number > page.items() {
        return page.insert_item(tuple, number);
    }
    let state = page.normal_item(number)?.first().map(|byte| byte & STATE_BITS);
    if state != Some(Dead::PLACEHOLDER.state) {
        return Err(Misfit("the tuple to replace is not a placeholder"));
    }
    opaque::add(page, opaque::PLACEHOLDERS, u16::MAX);
    replace(page, number, tuple)
}

/// Puts a tuple in the place of another.
fn replace(page: &mut Page, number: u16, tuple: &[u8]) -> Result<(), Misfit> {
    opaque::check(page)?;
    page.delete_item(number)?;
    page.insert_item(tuple, number)
}

/// Sets which tuple comes next in a leaf tuple's chain.
fn set_next(page: &mut Page, number: u16, next: u16) -> Result<(), Misfit> {
    let tuple = page.normal_item_mut(number)?;
    let info = tuple.get_mut(NEXT..NEXT + 2).ok_or(Misfit("the tuple is too short"))?;
    let flags = u16::from_le_bytes([info[0], info[1]]) & 0xC000;
    info.copy_from_slice(&(flags | next & 0x3FFF).to_le_bytes());
    Ok(())
}

fn flag(main: &mut Reader<'_>) -> Result<bool, Misfit> {
    Ok(field(main.u8())? != 0)
}

fn leaf_tuple<'a>(main: &mut Reader<'a>) -> Result<&'a [u8], Misfit> {
    let size = field(Reader::new(main.rest()).u32())? >> 2;
    sized(main, size as usize, LEAF_TUPLE_HEADER)
}

fn inner_tuple<'a>(main: &mut Reader<'a>) -> Result<&'a [u8], Misfit> {
    let mut head = Reader::new(main.rest());
    field(head.u32())?;
    let size = field(head.u16())?;
    sized(main, size.into(), INNER_TUPLE_HEADER)
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
    page_or_new(step, id, is_new, opaque::LEAF | if nulls { opaque::NULLS } else { 0 })
}

fn inner_page<'s>(
    step: &'s mut Step<'_, '_>,
    id: u8,
    is_new: bool,
    nulls: bool,
) -> Result<Option<&'s mut Page>, Misfit> {
    page_or_new(step, id, is_new, if nulls { opaque::NULLS } else { 0 })
}

/// A page to change, or to make with these flags.
fn page_or_new<'s>(
    step: &'s mut Step<'_, '_>,
    id: u8,
    is_new: bool,
    flags: u16,
) -> Result<Option<&'s mut Page>, Misfit> {
    if !is_new {
        let page = step.page(id);
        return page.map(|page| opaque::check(page).map(|()| page)).transpose();
    }
    let mut page = new_page(step, id)?;
    if let Some(page) = &mut page {
        opaque::init(page, flags);
    }
    Ok(page)
}

/// The special area of every page.
mod opaque {
    use super::*;

    const BYTES: usize = 8;
    const FLAGS: usize = 0;
    pub const REDIRECTIONS: usize = 2;
    pub const PLACEHOLDERS: usize = 4;
    const PAGE_ID: usize = 6;
    const SPGIST_PAGE_ID: u16 = 0xFF82;

    pub const META: u16 = 1 << 0;
    pub const LEAF: u16 = 1 << 2;
    pub const NULLS: u16 = 1 << 3;

    /// Where it is on a page that passed [`check`].
    const AT: usize = PAGE_BYTES - BYTES;

    /// Whether the page is one of an SP-GiST index.
    pub fn check(page: &Page) -> Result<(), Misfit> {
        page.special_exactly(BYTES)?;
        if page.u16_at(AT + PAGE_ID) == SPGIST_PAGE_ID {
            Ok(())
        } else {
            Err(Misfit("the page is not one of an SP-GiST index"))
        }
    }

    /// Makes an empty page (`SpGistInitPage`).
    pub fn init(page: &mut Page, flags: u16) {
        page.init(BYTES);
        page.put_u16(AT + FLAGS, flags);
        page.put_u16(AT + PAGE_ID, SPGIST_PAGE_ID);
    }

    pub fn flags(page: &Page) -> u16 {
        page.u16_at(AT + FLAGS)
    }

    /// Counts up or, by a wrapped negative number, down.
    pub fn add(page: &mut Page, counter: usize, by: u16) {
        page.put_u16(AT + counter, page.u16_at(AT + counter).wrapping_add(by));
    }
}

/// `spg_mask`, and what the meta page remembers of pages with room, which no record ever tells.
fn mask_page(page: &mut Page, _: Major, _: Fork) {
    const LAST_USED_PAGES: std::ops::Range<usize> = PAGE_HEADER + 4..PAGE_HEADER + 4 + 8 * 8;
    mask::hint_bits(page);
    if page.lower() >= PAGE_HEADER {
        mask::unused_space(page);
    }
    if opaque::check(page).is_ok() && opaque::flags(page) & opaque::META != 0 {
        page.0[LAST_USED_PAGES].fill(0);
    }
}

/// Images displace nothing: no block has data.
fn displaced(_: &Displaced<'_>, _: &BlockRef) -> Option<Vec<u8>> {
    Some(Vec::new())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_format::rmgr::rmid;

    use crate::index_items::hostile;

    const SPECIALS: &[&[u8]] = &[&[0, 0, 0, 0, 0, 0, 0x82, 0xFF], &[4, 0, 1, 0, 1, 0, 0x82, 0xFF]];

    proptest! {
        #[test]
        fn no_record_however_wrong_panics(case in hostile::cases(SPECIALS)) {
            hostile::replay(rmid::SPGIST, &case);
        }
    }
}
