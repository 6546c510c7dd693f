//! Codes leaf tuples of SP-GiST indexes in records (`spgxlogAddLeaf`). The tuple in the main data has the TID
//! of a heap tuple, and usually one of its attributes.

use walden_format::payload::spgist::XlSpgistAddLeaf;
use walden_format::record::RelFileLocator;
use walden_redo::page::spgist::{
    LEAF_HAS_NULLS, LEAF_HEAP_TID, LEAF_NEXT, LEAF_NEXT_MASK, PLACEHOLDER, STATE_BITS, SpGistPageOpaqueData,
    leaf_tuple_size,
};
use walden_redo::page::tid::TID_BYTES;
use walden_redo::page::{Page, SpecialArea, Tid};

use super::{Context, IndexContext};
use crate::Corrupt;
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::BlockAddress;
use crate::predict::survey::{Survey, TupleKind};
use crate::predict::{TupleCoder, expect_block_data};
use crate::tuple::index::IndexTuple;

/// Offset of the key in a leaf tuple without nulls, after the aligned header.
const KEY: usize = (LEAF_HEAP_TID + TID_BYTES).next_multiple_of(8);
/// Length of the fields before the tuple, and of the tuple's link to the next tuple in its chain.
const HEAD_BYTES: usize = XlSpgistAddLeaf::WIDTH + size_of::<u16>();

/// Offsets of that link, and of the tuple's own offset number.
const NEXT: usize = XlSpgistAddLeaf::WIDTH;
const LEAF_OFFSET: usize = 2;

/// Offset numbers in a head that a page predicts.
#[derive(Clone, Copy)]
struct Places {
    /// Offset number of the new tuple.
    leaf: u16,
    /// Offset number of the first tuple of its chain, or 0.
    head: u16,
    /// Offset number of the next tuple of its chain.
    next: u16,
}

impl Places {
    fn from_head(head: &[u8; HEAD_BYTES]) -> Places {
        let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        Places { leaf: number(LEAF_OFFSET), head: number(LEAF_OFFSET + 2), next: number(NEXT) }
    }

    fn put_in(self, mut head: [u8; HEAD_BYTES]) -> [u8; HEAD_BYTES] {
        head[LEAF_OFFSET..LEAF_OFFSET + 2].copy_from_slice(&self.leaf.to_le_bytes());
        head[LEAF_OFFSET + 2..LEAF_OFFSET + 4].copy_from_slice(&self.head.to_le_bytes());
        head[NEXT..].copy_from_slice(&self.next.to_le_bytes());
        head
    }

    fn residual(self, page: Option<&Page>) -> Places {
        let Some(page) = page else { return self };
        let leaf = self.leaf.wrapping_sub(free_place(page));
        let next = self.next.wrapping_sub(next_in_chain(page, self.head));
        let rank = Chains::from_page(page).starts().position(|start| start == self.head);
        let head = rank.map_or(NOT_A_START.wrapping_add(self.head), |rank| rank as u16);
        Places { leaf, head, next }
    }

    fn restored(self, page: Option<&Page>) -> Places {
        let Some(page) = page else { return self };
        let start = Chains::from_page(page).starts().nth(self.head.into());
        let head = start.unwrap_or(self.head.wrapping_sub(NOT_A_START));
        let leaf = self.leaf.wrapping_add(free_place(page));
        Places { leaf, head, next: self.next.wrapping_add(next_in_chain(page, head)) }
    }
}

/// Greater than the rank of any chain.
const NOT_A_START: u16 = 1 << 15;

/// Returns the offset number that a new tuple gets: the offset number of the first placeholder, or else a new
/// offset number (`SpGistPageAddNewItem`).
fn free_place(page: &Page) -> u16 {
    let is_placeholder = |number: &u16| {
        page.item(*number).and_then(<[u8]>::first).is_some_and(|head| head & STATE_BITS == PLACEHOLDER)
    };
    let has_placeholder = SpGistPageOpaqueData::read(page).placeholders > 0;
    let free = (1..=page.items()).find(|number| has_placeholder && is_placeholder(number));
    free.unwrap_or(page.items() + 1)
}

/// Returns the next tuple in the chain of a leaf tuple; 0 for the last. PostgreSQL inserts a new tuple
/// between the two (`addLeafTuple`).
pub fn next_in_chain(page: &Page, number: u16) -> u16 {
    let next = page.item(number).and_then(|item| item.get(LEAF_NEXT..)?.first_chunk());
    next.map_or(0, |&next| u16::from_le_bytes(next) & LEAF_NEXT_MASK)
}

/// Chains of a page's live leaf tuples.
struct Chains {
    /// By offset number: whether a chain starts with the tuple.
    is_start: Vec<bool>,
}

impl Chains {
    fn from_page(page: &Page) -> Chains {
        let is_live = |number: u16| page.item(number).is_some_and(|item| item[0] & STATE_BITS == 0);
        let mut is_start: Vec<bool> =
            (0..=page.items()).map(|number| number > 0 && is_live(number)).collect();
        for number in 1..=page.items() {
            if let Some(is_start) = is_start.get_mut(usize::from(next_in_chain(page, number))) {
                *is_start = false;
            }
        }
        Chains { is_start }
    }

    fn starts(&self) -> impl Iterator<Item = u16> {
        (0..).zip(&self.is_start).filter(|(_, is_start)| **is_start).map(|(number, _)| number)
    }
}

/// The parts of main data of a record that inserts a leaf tuple.
pub struct NewLeaf<'a> {
    head: [u8; HEAD_BYTES],
    tid: Tid,
    key: &'a [u8],
}

impl NewLeaf<'_> {
    /// Splits main data; `None` if its tuple is not live or has nulls.
    pub fn parse(main: &[u8]) -> Option<NewLeaf<'_>> {
        let (add, tuple) = main.split_at_checked(XlSpgistAddLeaf::WIDTH)?;
        let size = leaf_tuple_size(u32::from_le_bytes(*tuple.first_chunk()?));
        let next: [u8; 2] = *tuple.get(LEAF_NEXT..)?.first_chunk()?;
        let tid = Tid::read(tuple.get(LEAF_HEAP_TID..)?)?;
        let (header, key) = tuple.split_at_checked(KEY)?;
        let is_plain = tuple[0] & 3 == 0 && u16::from_le_bytes(next) & LEAF_HAS_NULLS == 0;
        let is_padded = header[LEAF_HEAP_TID + TID_BYTES..].iter().all(|&byte| byte == 0);
        if size != tuple.len() || !size.is_multiple_of(8) || !is_plain || !is_padded {
            return None;
        }
        let mut head = [0; HEAD_BYTES];
        head[..XlSpgistAddLeaf::WIDTH].copy_from_slice(add);
        head[XlSpgistAddLeaf::WIDTH..].copy_from_slice(&next);
        Some(NewLeaf { head, tid, key })
    }

    /// Returns the key as that of an index tuple.
    fn index_tuple(&self) -> IndexTuple<'_> {
        IndexTuple { tid: self.tid.to_bytes(), info: 0, bitmap: &[], key: self.key, list: &[] }
    }
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes the main data of a record that inserts a leaf tuple, and appends it to `out`.
    pub fn new_leaf(
        &mut self,
        page: BlockAddress,
        source: Option<&NewLeaf<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let relation = page.relation;
        let index = IndexContext { relation, context: Context::Record };
        let kind = Kind::Rows(Class::MainData, HEAD_BYTES as u16);
        let column =
            self.keyed_columns.column(self.coder, Topic::LeafHeads, [relation.number, 0, 0], kind)?;
        let page = self.store.find(page.key()).and_then(|slot| self.store.page(slot));
        let residual = source
            .map_or([0; HEAD_BYTES], |leaf| Places::from_head(&leaf.head).residual(page).put_in(leaf.head));
        let residual = self.coder.array(column, &residual)?;
        let head = Places::from_head(&residual).restored(page).put_in(residual);
        let tid = self.tid(index, source.map(|leaf| leaf.tid))?;
        let (add, next) = head.split_at(XlSpgistAddLeaf::WIDTH);
        out.extend_from_slice(add);
        let start = out.len();
        out.resize(start + LEAF_NEXT, 0);
        out.extend_from_slice(next);
        out.extend_from_slice(&tid.to_bytes());
        out.resize(start + KEY, 0);
        let tuple = source.map(NewLeaf::index_tuple);
        self.index_tuple_key(index, Some(tid), (0, 0), tuple.as_ref(), out)?;
        self.look_for_table(index, tid, source.map(|leaf| leaf.key))?;
        let size = out.len() - start;
        expect_block_data(size)?;
        // The two lower bits are the state: live.
        out[start..start + LEAF_NEXT].copy_from_slice(&((size as u32) << 2).to_le_bytes());
        Ok(())
    }
}

/// Adds the tuple of main data to the survey.
pub fn survey(survey: &mut Survey, relation: RelFileLocator, main: &[u8]) {
    if let Some(leaf) = NewLeaf::parse(main) {
        survey.add(TupleKind { relation, layout: 0, bitmap: &[] }, leaf.key);
    }
}
